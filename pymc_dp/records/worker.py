"""What a worker of a Dask cluster holds, and how it answers."""

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_dp._version import __version__
from pymc_dp.exceptions import PrivacyError, ShardError
from pymc_dp.likelihood.unit import numbered
from pymc_dp.records.sums import LocalRecords

Answer = tuple[str, NDArray[np.int64], PrivacyError | None]
"""Where it was made, the numbers, and what to raise instead of them."""


@dataclass(frozen=True)
class Program:
    """What a worker needs to know, and nothing that it must not."""

    template: LocalRecords
    load: Callable[[int], Mapping[str, ArrayLike]]
    records: tuple[int, ...]
    unit: str | None
    units: tuple[int, ...]


def _shard(program: Program, k: int) -> LocalRecords:
    """One shard's records, loaded and checked."""
    roles = program.template.likelihood.roles
    arrays = _load(program, k)
    data = []
    for leaf in roles.record_data:
        x = np.asarray(arrays[leaf.name])
        shape = list(leaf.values.shape)
        shape[leaf.axis] = program.records[k]
        if x.shape != tuple(shape) or not np.can_cast(x.dtype, leaf.values.dtype, "same_kind"):
            raise ShardError(
                f"Of shard {k}, {leaf.name!r} must be an array of {leaf.values.dtype} with the shape that it has "
                f"in the model, but for `records[{k}]` of `Shards` on axis {leaf.axis}. It is not."
            )
        data.append(x.astype(leaf.values.dtype, copy=False))
    codes = None
    if program.unit is not None:
        codes = _codes(program.unit, arrays[program.unit], program.records[k], program.units[k], k)
    return program.template.of_data(data, codes, first_unit=sum(program.units[:k]))


def _load(program: Program, k: int) -> Mapping[str, ArrayLike]:
    names = {leaf.name for leaf in program.template.likelihood.roles.record_data}
    names |= set() if program.unit is None else {program.unit}
    try:
        arrays = program.load(k)
        if names <= set(arrays):
            return arrays
    except Exception:  # noqa: BLE001  may quote what it was loading
        pass
    raise ShardError(
        f"load({k}) failed on a worker, or did not return all of {sorted(names)}. Call it on a "
        "worker's machine to see why."
    )


def _codes(name: str, given: ArrayLike, records: int, units: int, k: int) -> NDArray[np.int64]:
    ids = np.asarray(given)
    if ids.shape == (records,) and ids.dtype.kind in "iuUS":
        codes, found = numbered(ids)
        if found == units:
            return codes
    raise ShardError(
        f"Of shard {k}, {name!r} must hold {records} integer or text identifiers, {units} of them "
        "different, as announced to `Shards`. It does not."
    )


class _Held:
    """The shards that this process holds. Those of one step only: a new one takes their place."""

    def __init__(self) -> None:
        self.label: tuple[str, str] | None = None
        self.program: Program | None = None
        self.shards: dict[int, LocalRecords] = {}

    def shard(self, program: bytes, label: tuple[str, str], k: int) -> LocalRecords:
        """Shard k, loaded if it is not here yet."""
        if label != self.label or self.program is None:
            self.label, self.program, self.shards = label, _unpacked(program, label), {}
        if k not in self.shards:
            self.shards[k] = _shard(self.program, k)
        return self.shards[k]


def _unpacked(program: bytes, label: tuple[str, str]) -> Program:
    if label[1] == __version__:
        try:
            found: Program = pickle.loads(program)
            return found
        except Exception:  # noqa: BLE001
            pass
    raise ShardError(
        f"A worker cannot run the model. It needs pymc-dp {label[1]}, and the same versions of Python, "
        "PyMC and everything else that the model and `load` use."
    )


_held = _Held()
_one_at_a_time = Lock()


def answer(
    program: bytes, label: tuple[str, str], shards: Sequence[int], method: str, args: Sequence[Any]
) -> Answer:
    """Runs on a worker: whole numbers of some shards, added up.

    Never raises and never warns: Dask would write it down, with its arguments, and pass it on.

    Returns
    -------
    address : str
        The worker's, where the shards are now.
    total : ndarray of int64
    failure : PrivacyError or None
        To raise instead.
    """
    from distributed import get_worker

    address, nothing = get_worker().address, np.zeros(1, dtype=np.int64)
    with _one_at_a_time, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            held = [_held.shard(program, label, k) for k in shards]
            if method == "ready":
                return address, nothing, None
            parts = [_of_shard(records, method, args) for records in held]
            return address, sum(parts[1:], start=parts[0]), None
        except PrivacyError as refusal:
            return address, nothing, type(refusal)(*refusal.args)
        except Exception:  # noqa: BLE001
            return address, nothing, ShardError("A worker could not sum its shards.")


def _of_shard(records: LocalRecords, method: str, args: Sequence[Any]) -> NDArray[np.int64]:
    if method == "counts":
        return records.counts(*args)
    of, bound, units = args
    if units is not None:  # the sampled units that are here, by their numbers here
        here = units - records.first_unit
        units = here[(here >= 0) & (here < records.n_units)]
    return records.total(of, bound, units)
