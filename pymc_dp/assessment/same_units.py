"""Whether several models are about the same units, as far as their data can tell."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.nodes import values_of
from pymc_dp.likelihood.roles import Roles


def refuse_other_units(models: Mapping[str, CompiledModel]) -> None:
    """Refuse models in which unit i is not the same person, or has not the same outcomes.

    A unit that were another one elsewhere would count twice, and differences of densities of different outcomes
    say nothing. Pass or fail is all that leaves; the data are not looked at otherwise.

    Raises
    ------
    PrivacyConfigurationError
    """
    (name, first), *others = models.items()
    for other, model in others:
        pair = f"{name!r} and {other!r}"
        a, b = first.roles, model.roles
        if (a.n_records, a.n_units) != (b.n_records, b.n_units):
            raise PrivacyConfigurationError(
                f"The models {pair} have different numbers of records or of units. Compare models of the same people, "
                "with the same `unit`."
            )
        if not _same(_owners(a), _owners(b)):
            raise PrivacyConfigurationError(
                f"The models {pair} do not have the same units: records belong to other people. Give all of them "
                "the same `unit`, and the records in the same order."
            )
        if not _same(_outcomes(first), _outcomes(model)):
            raise PrivacyConfigurationError(
                f"The models {pair} do not observe the same values in the same order. Densities of different "
                "outcomes cannot be compared, those of y and of log y neither (write the second as a "
                "`pm.LogNormal` of y); and the records must be the same people, row by row."
            )
        for shared in sorted(set(_covariates(first)) & set(_covariates(model))):
            if not _same([_covariates(first)[shared]], [_covariates(model)[shared]]):
                raise PrivacyConfigurationError(
                    f"The models {pair} hold other values in {shared!r}, so their records may not be the same "
                    "people, row by row. If they are, give it another name in one of them."
                )
        for dim in sorted(a.record_dims & b.record_dims):
            labels = first.model.coords.get(dim), model.model.coords.get(dim)
            if None not in labels and tuple(labels[0]) != tuple(labels[1]):
                raise PrivacyConfigurationError(
                    f"The models {pair} have other labels along {dim!r}: their records are not the same people, "
                    "row by row."
                )


def _owners(roles: Roles) -> list[NDArray[Any]]:
    return [] if roles.unit_of_record is None else [roles.unit_of_record]


def _outcomes(compiled: CompiledModel) -> list[NDArray[Any]]:
    model = compiled.model
    return [values_of(model.rvs_to_values[rv]) for rv in model.observed_RVs]


def _covariates(compiled: CompiledModel) -> dict[str, NDArray[Any]]:
    named = set(compiled.model.named_vars)
    return {leaf.name: leaf.values for leaf in compiled.roles.record_data if leaf.name in named}


def _same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )
