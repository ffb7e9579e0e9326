"""The record axis, and the unit of privacy that each record belongs to."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pymc_dp.checks import whole
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.nodes import values_of


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
    if n == 0:
        raise UnsupportedModelError("The observed variables are empty: there are no records.")
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
    if ids.dtype.kind in "OT" and all(isinstance(x, str) for x in ids):
        ids = np.array([str(x) for x in ids])
    elif ids.dtype.kind == "O" and all(isinstance(x, int | np.integer) for x in ids):
        ids = ids.astype(np.int64)
    if ids.dtype.kind in "OT":
        raise PrivacyConfigurationError(
            "`unit` as an array holds integer or text identifiers. Some are missing, or of another "
            "type."
        )
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


def refuse_repeated_labels(model: pm.Model, record_dims: frozenset[str]) -> None:
    """Records with one label are one unit's, and would be counted as several."""
    for dim in sorted(record_dims):
        labels = model.coords.get(dim)
        if labels is not None and len(set(labels)) < len(labels):
            raise PrivacyConfigurationError(
                f"Labels of the dimension {dim!r} repeat, so one {dim} seems to have several records, "
                "and each record would be protected on its own only. If they are identifiers, pass them "
                "as `unit=` too (an array); if not, leave them out of `coords`."
            )


def unit_name(unit: Any, record_dims: frozenset[str]) -> str:
    """The unit of privacy in words."""
    if unit is not None and not isinstance(unit, str) and not _is_axis(unit):
        return "all records with one identifier"
    # A name with underscores around it was made by a program (bambi's is "__obs__").
    names = [dim for dim in record_dims if not dim.startswith("__")]
    return f"one {names[0]}" if len(names) == len(record_dims) == 1 else "one record"
