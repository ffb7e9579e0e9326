"""Whether several models are about the same units, as far as their shapes and what was declared can tell."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.roles import Roles


def refuse_other_units(models: Mapping[str, CompiledModel]) -> None:
    """Refuse models that cannot have the same people, row by row.

    That unit i is the same person in all of them, with the same outcomes, has to be true: a person who were another
    unit elsewhere would count twice. It cannot be looked up without telling of values, and is for who calls to see to.

    Raises
    ------
    PrivacyConfigurationError
    """
    (name, first), *others = models.items()
    for other, model in others:
        a, b, pair = first.roles, model.roles, f"{name!r} and {other!r}"
        if (a.n_records, a.n_units) != (b.n_records, b.n_units):
            raise PrivacyConfigurationError(
                f"The models {pair} have different numbers of records or of units. Compare models of the same people, "
                "with the same `unit`."
            )
        # Of what was given as `unit`.
        if not np.array_equal(_owners(a), _owners(b)):
            raise PrivacyConfigurationError(
                f"The models {pair} do not have the same units: records belong to other people. Give all of them "
                "the same `unit`, and the records in the same order."
            )


def _owners(roles: Roles) -> NDArray[np.int64]:
    return np.arange(roles.n_records) if roles.unit_of_record is None else roles.unit_of_record
