"""The record axis, and the unit of privacy that each record belongs to."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pymc_dp.checks import whole
from pymc_dp.compat import ancestors, index_axes
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.nodes import values_of

DECLARED_UNIT = "_privacy_unit"
"""Attribute of a model in which `integrate_out` has made every record a person: what a person is called."""
MANY = 100
"""Levels of an effect, or values of a variable, that may be people: of fewer, nothing could be learnt in private."""
_FEWEST = 2
"""Records. An array with a single value would be taken for a number that the model is written with."""


def record_axis(unit: Any) -> tuple[int, str | None]:
    """Axis number (0 unless given) and dimension name of the records."""
    if isinstance(unit, str):
        return 0, unit
    if isinstance(unit, bool):
        raise PrivacyConfigurationError("`unit` must be a dimension, an axis or identifiers.")
    return (whole("unit", unit, 0) if _is_axis(unit) else 0), None


def _is_axis(unit: Any) -> bool:
    return isinstance(unit, int | np.integer)


def axis_of_observed(model: pm.Model, rv: Variable, axis: int, dim: str | None) -> int:
    """Record axis of an observed variable."""
    dims = model.named_vars_to_dims.get(rv.name, ())
    if dim is not None:
        if dim not in dims:
            raise PrivacyConfigurationError(
                f"`unit={dim!r}` is not a dimension of the observed variable {rv.name!r}, which has "
                f"{list(dims)}. Give `dims=` to {rv.name!r}, or `unit` the number of its record axis."
            )
        axis = dims.index(dim)
    if values_of(model.rvs_to_values[rv]).ndim <= axis:
        raise UnsupportedModelError(
            f"The observed variable {rv.name!r} has no axis {axis}, so it has no records. Give it "
            "one value (or row) per record."
        )
    return axis


def count_records(model: pm.Model, axes: Iterable[int]) -> int:
    """Length of the record axis, which all observed variables share."""
    lengths = {
        rv.name: values_of(model.rvs_to_values[rv]).shape[axis]
        for rv, axis in zip(model.observed_RVs, axes, strict=True)
    }
    if len(set(lengths.values())) != 1:
        raise UnsupportedModelError(
            f"The observed variables {sorted(lengths)} have different numbers of records. They must share "
            "their records; sample models with separate data sets separately, on one ledger."
        )
    (n,) = set(lengths.values())
    if n < _FEWEST:
        raise UnsupportedModelError(
            "The observed variables are empty, or have a single record: there is nothing to learn in private."
        )
    return int(n)


def record_dims_of(model: pm.Model, axes: Iterable[int], dim: str | None) -> frozenset[str]:
    """Names of the record axis: one, or none."""
    found = {dim} if dim is not None else set()
    for rv, axis in zip(model.observed_RVs, axes, strict=True):
        dims = model.named_vars_to_dims.get(rv.name)
        if dims and dims[axis] is not None:
            found.add(dims[axis])
    if dim is None and len(found) > 1:
        raise UnsupportedModelError(
            f"The observed variables have different record dimensions: {sorted(found)}. If their "
            "records belong to the same people, in the same order, give them one dimension; if not, "
            "sample the models separately, on one ledger."
        )
    return frozenset(found)


def unit_codes(unit: Any, n: int) -> tuple[NDArray[np.int64] | None, int]:
    """Unit of each record, or None if every record is one, and the number of units."""
    if unit is None or isinstance(unit, str) or _is_axis(unit):
        return None, n
    ids = np.asarray(unit)
    if ids.shape != (n,):
        raise PrivacyConfigurationError(
            "`unit` as an array needs one identifier per record, and one axis. It has another shape."
        )
    if ids.dtype.kind in "OT":
        # Whatever is in it: which types there are would tell of a record. All that is missing is one unit's.
        ids = np.array([str(x) for x in ids])
    if ids.dtype.kind not in "iuUS":
        raise PrivacyConfigurationError(
            f"`unit` as an array holds integer or text identifiers. Found dtype {ids.dtype}."
        )
    return numbered(ids)


def numbered(ids: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Number identifiers as they first appear, and count them.

    In the order of the identifiers themselves, one person's would move the place of all others.
    """
    labels, first, codes = np.unique(ids, return_index=True, return_inverse=True)
    place = np.empty(len(labels), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(labels))
    return place[codes], len(labels)


def effects_by_record(model: pm.Model, roles: Any) -> tuple[str, int] | None:
    """A free variable of which every record reads one of many values, by a private index, and how many there are.

    Rows with one index may be one person's. A function of the graph and of the variable's own size.
    """
    private = {leaf.variable for leaf in roles.record_data if leaf.private}
    start = model.initial_point(0)
    for node in {
        v.owner for v in ancestors(model.observed_RVs, blockers=model.free_RVs) if v.owner
    }:
        for place, _ in index_axes(node):
            if not private & set(ancestors([node.inputs[place]], blockers=model.free_RVs)):
                continue
            for rv in ancestors([node.inputs[0]], blockers=model.free_RVs):
                if rv in model.free_RVs and rv.type.ndim:
                    levels = max(start[model.rvs_to_values[rv].name].shape)
                    if levels >= MANY:
                        return rv.name, levels
    return None


def unit_name(unit: Any, record_dims: frozenset[str]) -> str:
    """The unit of privacy in words: a person or the like if it was said that a record is one."""
    if isinstance(unit, str):
        return f"one {unit}"
    if unit is not None and not _is_axis(unit):
        return "all records with one identifier"
    # A name with underscores around it was made by a program (bambi's is "__obs__").
    names = [dim for dim in record_dims if not dim.startswith("__")]
    return f"one record of {names[0]!r}" if len(names) == len(record_dims) == 1 else "one record"
