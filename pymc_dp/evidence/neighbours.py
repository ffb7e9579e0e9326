"""Data sets that differ in one unit, for audits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.roles import Roles


def check_neighbours(first: Roles, second: Roles) -> None:
    """Refuse data sets that no claim is about."""
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
