"""Observed variables of which some values are missing, as laws of all records."""

from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV, LogNormalRV, NormalRV
from pytensor.tensor.subtensor import Subtensor

from pymc_dp.compat import AdvancedSubtensor, AdvancedSubtensor1, ancestors, written
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.nodes import quoting_nothing, values_of
from pymc_dp.likelihood.rows import with_rows


class ObservedLaw(NamedTuple):
    """An observed variable, for all records.

    Parameters
    ----------
    name : str
    rv : Variable
        A function of the other observed variables themselves, with their gaps.
    value : Variable
        What was observed of it; something in its gaps.
    seen : ndarray, optional
        1 where it was observed, 0 in gaps; None if it has none.
    filled : bool
        Whether it is integrated over. An outcome's gap is left out.
    """

    name: str
    rv: Variable
    value: Variable
    seen: NDArray[np.float64] | None
    filled: bool

    @property
    def is_normal(self) -> bool:
        """Whether it is integrated over, by nodes of a normal law."""
        return self.filled and isinstance(self.rv.owner.op, NormalRV | LogNormalRV)


def laws_of(model: pm.Model, variables: list[str]) -> list[ObservedLaw]:
    """All observed variables, in the order in which they are in the model: parents first.

    Parameters
    ----------
    model : Model
    variables : list of str
        Names of those that may have gaps.

    Raises
    ------
    PrivacyConfigurationError
        If others have some, or there is no such variable.
    UnsupportedModelError
        If one has several values for each record.
    """
    split = {
        rv.name.removesuffix("_unobserved")
        for rv in model.free_RVs
        if f"{rv.name.removesuffix('_unobserved')}_observed" in model.named_vars
    }
    names = [rv.name for rv in model.observed_RVs]
    names = [
        x.removesuffix("_observed") if x.removesuffix("_observed") in split else x for x in names
    ]
    unknown = [x for x in variables if x not in names]
    if unknown or not variables:
        raise PrivacyConfigurationError(
            f"`integrate_missing` takes names of observed variables. {unknown} are none of {names}."
        )
    if unnamed := [x for x in names if x in split and x not in variables]:
        raise PrivacyConfigurationError(
            f"{unnamed} may have missing values too. Name all variables that may: {[*variables, *unnamed]}."
        )
    read = [set(ancestors([rv])) for rv in model.observed_RVs]
    whole: dict[Variable, Variable] = {}
    laws = []
    for k, name in enumerate(names):
        rv, value, seen = model.observed_RVs[k], model.rvs_to_values[model.observed_RVs[k]], None
        if name in variables:
            rv, value, seen = _completed(model, name, name in split)
        (rv,) = with_rows([rv], whole)
        whole[model[name]] = rv
        filled = seen is not None and any(
            model[name] in above for j, above in enumerate(read) if j != k
        )
        laws.append(ObservedLaw(name, rv, value, seen, filled))
    return laws


def _completed(
    model: pm.Model, name: str, split: bool
) -> tuple[Variable, Variable, NDArray[np.float64]]:
    """A variable's law for all records, what was observed with a constant in gaps, and what was seen.

    The graph is the same whether PyMC has split the variable, because somebody has a gap, or not.
    """
    joined = model[name]
    rv = model[f"{name}_observed"] if split else joined
    if joined.ndim != 1:
        raise UnsupportedModelError(
            f"{name!r} may have missing values, and has several for each record. Make each column a variable of its own."
        )
    values = values_of(model.rvs_to_values[rv])
    if split:
        _, (mask,) = written(joined.owner.inputs[0].owner)
        seen = np.asarray(mask.data)
        there, values = values, np.empty(seen.shape, values.dtype)
        values[seen] = there
    else:
        seen = ~np.isnan(values)
    # Within the support of most laws. No law's density is taken there, but its derivative might be undefined.
    values = np.where(
        seen, values, np.array(0.5).astype(values.dtype) if values.dtype.kind == "f" else 1
    )
    if isinstance(rv.owner.op, PartialObservedRV):
        rv = rv.owner.inputs[0]
    elif hasattr(rv.owner.op, "dist_params"):
        parameters = [_unindexed(v) if split else v for v in rv.owner.op.dist_params(rv.owner)]
        node = rv.owner.op.make_node(rv.owner.inputs[0], pt.constant(seen.shape), *parameters)
        rv = node.outputs[1]
    return rv, pt.constant(values, name=name), seen.astype(float)


def _unindexed(v: Variable) -> Variable:
    """A parameter of a variable that was split, of all records: PyMC has written ``mu[seen]`` for ``mu``."""
    op = getattr(v.owner, "op", None)
    if isinstance(op, AdvancedSubtensor | AdvancedSubtensor1):
        return v.owner.inputs[0]
    inner = v.owner.inputs[0] if isinstance(op, DimShuffle) else None
    if inner is not None and inner.owner is not None and isinstance(inner.owner.op, Subtensor):
        return inner.owner.inputs[0]
    return v


def how_many(law: ObservedLaw) -> int:
    """How many values a discrete variable has, which are 0, 1 and so on.

    Raises
    ------
    UnsupportedModelError
        If it is none that can be summed out.
    """
    op = law.rv.owner.op
    if isinstance(op, BernoulliRV):
        return 2
    if isinstance(op, CategoricalRV):
        with quoting_nothing(
            f"The number of values of {law.name!r} could not be found ({{error}})."
        ):
            return int(law.rv.owner.inputs[-1].shape[-1].eval())
    raise UnsupportedModelError(
        f"{law.name!r} may have missing values, and others depend on it, so it has to be `pm.Normal`, `pm.LogNormal`, "
        "`pm.Bernoulli` or `pm.Categorical`."
    )
