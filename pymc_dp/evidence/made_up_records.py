"""Records that a model itself predicts, in place of its own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.replace import clone_replace

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.nodes import RecordData
from pymc_dp.likelihood.origins import has_functions, lengths_of_leaves
from pymc_dp.likelihood.outcomes import Outcomes


def made_up_records(
    compiled: CompiledModel,
    *,
    data: Mapping[str, ArrayLike],
    truth: Mapping[str, ArrayLike],
    records: int,
    seed: int,
) -> list[NDArray[Any]]:
    """Rows of `records` records with outcomes drawn from the model, one array per data node of the likelihood.

    Of the model's own records nothing is used but the types and the number of columns.

    Parameters
    ----------
    compiled : CompiledModel
    data : mapping
        Made-up rows of the covariates.
    truth : mapping
        Values of parameters that the outcomes are drawn with; the others come from their priors.
    records, seed : int

    Raises
    ------
    UnsupportedModelError, PrivacyConfigurationError
        If outcomes cannot be drawn, or a covariate is not named or not of the right shape.
    """
    model, roles = compiled.model, compiled.roles
    for rv in model.observed_RVs:
        if has_functions(rv, model.free_RVs):
            raise UnsupportedModelError(
                f"{rv.name!r} is drawn by a function of yours, which may have captured data that nobody can see. Write "
                "it with distributions of PyMC's."
            )
    known = set(ancestors(model.observed_RVs, blockers=lengths_of_leaves(model.observed_RVs)))
    rows = [_rows(leaf, data, records, leaf.variable in known) for leaf in roles.record_data]
    outcomes = Outcomes(model, roles, seed)
    return outcomes.in_place(_parameters(model, truth, seed), records, rows)


def _rows(leaf: RecordData, data: Mapping[str, ArrayLike], n: int, needed: bool) -> NDArray[Any]:
    shape = tuple(n if axis == leaf.axis else s for axis, s in enumerate(leaf.values.shape))
    if leaf.name in data:
        rows = np.asarray(data[leaf.name])
        if rows.shape != shape:
            raise PrivacyConfigurationError(
                f"The made-up values of {leaf.name!r} must be of shape {shape}. Found {rows.shape}."
            )
        return rows.astype(leaf.values.dtype)
    if not needed:
        return np.zeros(shape, leaf.values.dtype)
    if leaf.private or leaf.values.shape != shape:
        raise PrivacyConfigurationError(
            f"The outcomes depend on {leaf.name!r}, whose values are not looked at. Give made-up ones of shape {shape}: "
            f"`data={{{leaf.name!r}: ...}}`."
        )
    return leaf.values


def _parameters(
    model: pm.Model, truth: Mapping[str, ArrayLike], seed: int
) -> list[NDArray[np.float64]]:
    """Values of the free variables, in the model's order."""
    free = {rv.name: rv for rv in model.free_RVs}
    if unknown := sorted(set(truth) - set(free)):
        raise PrivacyConfigurationError(
            f"`truth` names {unknown}, which are no free variables of the model. It has {sorted(free)}."
        )
    fixed = {
        free[name]: free[name].type.filter_variable(pt.constant(np.asarray(x, free[name].dtype)))
        for name, x in truth.items()
    }
    variables = list(free.values())
    if fixed:
        variables = clone_replace(variables, fixed, rebuild_strict=False)
    return list(pm.draw(variables, random_seed=seed))
