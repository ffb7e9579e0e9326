"""Data sets that differ in one unit, for audits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.roles import Roles
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE


def check_neighbours(first: Roles, second: Roles, neighbours: str = SUBSTITUTE_ONE.name) -> None:
    """Refuse data sets that no claim under this relation is about."""
    if neighbours == ADD_OR_REMOVE.name:
        _check_one_removed(*sorted((first, second), key=lambda roles: -roles.n_records))
        return
    pairs = [
        (np.moveaxis(a.values, a.axis, 0), np.moveaxis(b.values, b.axis, 0))
        for a, b in zip(first.record_data, second.record_data, strict=True)
        if a.private
    ]
    if any(a.shape != b.shape for a, b in pairs):
        raise PrivacyConfigurationError(
            "The two data sets have different numbers of records or columns. Neighbours have the same, "
            "and differ in one unit."
        )
    differ = np.any([(a != b).reshape(len(a), -1).any(axis=1) for a, b in pairs], axis=0)
    codes = np.arange(len(differ)) if first.unit_of_record is None else first.unit_of_record
    if (count := len(np.unique(codes[differ]))) != 1:
        raise PrivacyConfigurationError(
            f"The two data sets differ in {count} units. The claim is about replacing one."
        )


def _check_one_removed(larger: Roles, smaller: Roles) -> None:
    """Refuse data sets of which the second is not the first without one of its units."""
    whole, part = (
        [np.moveaxis(leaf.values, leaf.axis, 0) for leaf in roles.record_data if leaf.private]
        for roles in (larger, smaller)
    )
    codes = larger.unit_of_record
    codes = np.arange(larger.n_records) if codes is None else codes
    counts = np.bincount(codes)
    for unit in np.flatnonzero(counts == larger.n_records - smaller.n_records):
        rest = codes != unit
        if all(np.array_equal(a[rest], b) for a, b in zip(whole, part, strict=True)):
            return
    raise PrivacyConfigurationError(
        "Neither of the two data sets is the other one without a unit. The claim is about adding or removing "
        "one; `without` takes it out."
    )


def without(data: Any, record: Any = 0) -> Any:
    """`data`, an array or a mapping of arrays, without the rows `record` of a unit.

    Parameters
    ----------
    data : array or mapping
        Of a mapping, every array has its records on axis 0.
    record : int or array of int
    """
    if isinstance(data, Mapping):
        return {name: without(array, record) for name, array in data.items()}
    return np.delete(np.array(data), record, axis=0)


def replaced(data: Any, canary: Any, record: Any = 0) -> Any:
    """`data`, an array or a mapping of arrays, with the rows `record` replaced by `canary`."""
    if isinstance(data, Mapping):
        unknown = sorted(set(canary) - set(data)) if isinstance(canary, Mapping) else [canary]
        if unknown:
            raise PrivacyConfigurationError(
                f"`canary` is a mapping like the data, whose arrays are {sorted(data)}. Found "
                f"{unknown}."
            )
        changed = {k: replaced(data[k], row, record) for k, row in canary.items()}
        return {**data, **changed}
    array, row = np.array(data), np.asarray(canary)
    rows = array[record].shape
    if row.shape != rows or row.dtype.kind not in "biuf" or np.any(row.astype(array.dtype) != row):
        raise PrivacyConfigurationError(
            f"`canary` replaces rows of shape {rows} and type {array.dtype}. Found shape {row.shape} "
            f"and type {row.dtype}."
        )
    array[record] = row
    return array


def data_of(model: pm.Model) -> dict[str, Any]:
    """Values of every ``pm.Data`` of a model, by name."""
    return {v.name: v.get_value() for v in model.data_vars}


@contextmanager
def data_restored(subject: Any) -> Iterator[None]:
    """Leave a model with the data it came with."""
    own = data_of(subject) if isinstance(subject, pm.Model) else {}
    try:
        yield
    finally:
        if own:
            pm.set_data(own, model=subject)
