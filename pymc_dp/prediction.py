"""Predictions for public rows, from released draws and from nothing that is private."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pymc_dp.checks import is_whole
from pymc_dp.compat import ancestors, from_groups
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.formulas import comes_of_formula
from pymc_dp.likelihood.nodes import RecordData
from pymc_dp.likelihood.origins import lengths_of_leaves
from pymc_dp.likelihood.outcomes import Outcomes
from pymc_dp.likelihood.roles import Roles
from pymc_dp.results import released


@refuses_from_outside
def predict(
    idata: Any,
    model: pm.Model | CompiledModel,
    new_data: Mapping[str, ArrayLike] | int,
    *,
    unit: str | int | ArrayLike | None = None,
    public: Sequence[str] = (),
    random_seed: Any = None,
) -> Any:
    """Draw outcomes of new, public rows from the posterior predictive distribution.

    Costs nothing: the result is a function of released draws and of `new_data`, so it has the guarantee
    of `idata`. (``pm.sample_posterior_predictive`` predicts for the model's own, private rows, and puts
    the exact observed data beside its predictions.)

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pymc_dp.sample`` or :func:`~pymc_dp.release`, or loaded from a file of one.
    model : Model, CompiledModel or bambi.Model
        The one that was sampled. Of its records nothing is used but their shape.
    new_data : mapping, DataFrame or int
        For each ``pm.Data`` with a row per record that predictions depend on, an array of any number of
        rows; outcomes are not needed, and what else there is is ignored. Must be public. For a
        model without such data, the number of rows.
    unit, public
        As they were given to ``pymc_dp.sample``.
    random_seed : int or Generator, optional
        Of the outcomes.

    Returns
    -------
    InferenceData or DataTree
        With the groups ``predictions``, of dimensions (chain, draw, row, ...) for each observed variable,
        and ``predictions_constant_data``, the new rows.

    Raises
    ------
    PrivacyError
        If `idata` has not been through :func:`~pymc_dp.release`.
    UnsupportedModelError
        If a row cannot be given by name.
    PrivacyConfigurationError
        If `new_data` has not all that is needed, not in the right shape, or an index out of range.

    Examples
    --------
    >>> with model:                                                    # doctest: +SKIP
    ...     idata = sample(1000, epsilon=1.0)
    >>> predict(idata, model, {"X": [[1.0, 45.0], [1.0, 60.0]]})       # doctest: +SKIP
    """
    attrs, groups = released(idata, instead="pm.sample_posterior_predictive")
    compiled = compile_model(model, unit=unit, public=public)
    model, roles = compiled.model, compiled.roles
    # Observed values tell their variable its shape, and no more.
    blockers = lengths_of_leaves(model.observed_RVs)
    known = set(ancestors(model.observed_RVs, blockers=blockers))
    needed = [leaf for leaf in roles.record_data if leaf.variable in known]
    rows = {leaf.name: _rows(model, leaf, new_data) for leaf in needed}
    n = _common_length(needed, rows, new_data)
    variables = _draw(model, roles, rows, n, groups["posterior"], random_seed)
    constants = {
        leaf.name: (_dims(model, leaf.name, leaf.axis, leaf.values.ndim, roles), rows[leaf.name])
        for leaf in needed
    }
    labels = {
        dim: labels
        for dim, labels in model.coords.items()
        if labels is not None and dim not in roles.record_dims
    }
    index = getattr(new_data, "index", None)
    if index is not None:
        labels[_record_dim(roles)] = np.asarray(index)
    return from_groups(
        {
            "predictions": _dataset(variables, labels),
            "predictions_constant_data": _dataset(constants, labels),
        },
        {k: v for k, v in attrs.items() if k.startswith(("privacy_", "pymc_dp_"))},
        like=idata,
    )


def _rows(model: pm.Model, leaf: RecordData, new_data: Any) -> NDArray[Any]:
    """The new rows for one data node, in its type and shape."""
    if comes_of_formula(model):
        raise UnsupportedModelError(
            f"Predictions depend on {leaf.name}, which bambi makes of columns of the table. Bambi predicts for new rows "
            'itself, from released draws: `model.predict(idata, data=new_table, kind="response")`, where `model` is the '
            "bambi model and `new_table` is public."
        )
    if leaf.name not in model.named_vars:
        raise UnsupportedModelError(
            f"Predictions depend on {leaf.name}, for which new rows cannot be given by name. Make it a "
            "`pm.Data`, with `pm.Data('name', values)`, and sample again."
        )
    shape = tuple(
        "rows" if axis == leaf.axis else size for axis, size in enumerate(leaf.values.shape)
    )
    wanted = (
        f"{leaf.name!r}, an array of {leaf.values.dtype} of shape ({', '.join(map(str, shape))})"
    )
    if np.isscalar(new_data) or leaf.name not in new_data:
        raise PrivacyConfigurationError(f"`new_data` needs {wanted}.")
    rows = np.asarray(new_data[leaf.name])
    if (
        rows.ndim != leaf.values.ndim
        or any(a != b for a, b in zip(rows.shape, shape, strict=True) if b != "rows")
        or not np.can_cast(rows.dtype, leaf.values.dtype, "same_kind")
    ):
        raise PrivacyConfigurationError(
            f"`new_data` needs {wanted}. Found {rows.dtype} of shape {rows.shape}."
        )
    return rows.astype(leaf.values.dtype)


def _common_length(
    needed: Sequence[RecordData], rows: Mapping[str, NDArray[Any]], new_data: Any
) -> int:
    lengths = {leaf.name: rows[leaf.name].shape[leaf.axis] for leaf in needed}
    if not lengths:
        if not is_whole(new_data, 1):
            raise PrivacyConfigurationError(
                "Outcomes of this model depend on no data. Give as `new_data` the number of rows."
            )
        return int(new_data)
    if len(set(lengths.values())) != 1:
        raise PrivacyConfigurationError(
            f"The arrays of `new_data` have different numbers of rows: {lengths}."
        )
    return next(iter(lengths.values()))


def _draw(
    model: pm.Model,
    roles: Roles,
    rows: Mapping[str, NDArray[Any]],
    n: int,
    posterior: xr.Dataset,
    random_seed: Any,
) -> dict[str, tuple[tuple[str, ...], NDArray[Any]]]:
    outcomes = Outcomes(model, roles, random_seed)
    given = [rows.get(leaf.name, _zeros(leaf, n)) for leaf in roles.record_data]
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    outcomes.refuse_out_of_range(next(outcomes.points(posterior)), n, given)
    drawn = [outcomes.draw(point, n, given) for point in outcomes.points(posterior)]
    return {
        name: (
            ("chain", "draw", *_dims(model, name, axis, np.ndim(values[0]), roles)),
            np.reshape(np.stack(values), (chains, draws, *np.shape(values[0]))),
        )
        for name, axis, values in zip(
            outcomes.names, roles.observed_axes, zip(*drawn, strict=True), strict=True
        )
    }


def _zeros(leaf: RecordData, n: int) -> NDArray[Any]:
    """In place of rows of which nothing is used but their shape."""
    shape = [n if axis == leaf.axis else size for axis, size in enumerate(leaf.values.shape)]
    return np.zeros(shape, leaf.values.dtype)


def _record_dim(roles: Roles) -> str:
    return min(roles.record_dims, default="row")


def _dims(model: pm.Model, name: str, axis: int, ndim: int, roles: Roles) -> tuple[str, ...]:
    """Names of an array's dimensions, as in the model where it has names for them."""
    dims = model.named_vars_to_dims.get(name) or (None,) * ndim
    return tuple(
        _record_dim(roles) if k == axis else dim or f"{name}_dim_{k}" for k, dim in enumerate(dims)
    )


def _dataset(
    variables: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]], labels: Mapping[str, Any]
) -> xr.Dataset:
    sizes = {
        dim: size
        for dims, array in variables.values()
        for dim, size in zip(dims, np.shape(array), strict=True)
    }
    coords = {
        dim: list(labels[dim]) if len(labels.get(dim, ())) == size else np.arange(size)
        for dim, size in sizes.items()
    }
    return xr.Dataset(dict(variables), coords=coords)
