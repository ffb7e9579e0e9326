"""Which records to evaluate together: chunks of whole units, of all of them or of a sample."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.roles import Roles


@dataclass(frozen=True)
class Chunk:
    """Some units' records.

    Parameters
    ----------
    records : slice or ndarray of int
        Where they are; a unit's records follow each other.
    starts : ndarray of int or None
        Where each unit's records begin among them; None if every unit has one.
    """

    records: Any
    starts: NDArray[np.int64] | None

    def per_unit(self, per_record: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over each unit's records, shape (records, ...) to (units, ...)."""
        return per_record if self.starts is None else np.add.reduceat(per_record, self.starts)


class UnitChunks:
    """Cuts records into chunks. A unit is never cut, however many records it has.

    Parameters
    ----------
    unit_of_record : ndarray of int, optional
        0 to units - 1, each at least once. Default: every record is a unit.
    n_records : int
    chunk_size : int
        Records in a chunk, at most, unless one unit has more.
    """

    def __init__(self, unit_of_record: NDArray[np.int64] | None, n_records: int, chunk_size: int):
        self._n, self._size = n_records, chunk_size
        self._by_unit: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if unit_of_record is not None:
            order = np.argsort(unit_of_record, kind="stable")
            firsts = np.concatenate([[0], np.cumsum(np.bincount(unit_of_record))])
            self._by_unit = order, firsts

    def of_records(self, roles: Roles) -> "UnitChunks":
        """Chunks of the same size for other records."""
        return UnitChunks(roles.unit_of_record, roles.n_records, self._size)

    def cut_to(self, records: int) -> "UnitChunks":
        """The same units, in chunks of so many records at most."""
        other = copy.copy(self)
        other._size = min(self._size, records)
        return other

    def all(self) -> Iterator[Chunk]:
        """Every unit once."""
        if self._by_unit is not None:
            yield from self.of(np.arange(len(self._by_unit[1]) - 1))
            return
        for start in range(0, self._n, self._size):
            yield Chunk(slice(start, min(start + self._size, self._n)), None)

    def of(self, units: NDArray[np.int64]) -> Iterator[Chunk]:
        """The records of some units, in that order."""
        if self._by_unit is None:
            for start in range(0, len(units), self._size):
                yield Chunk(units[start : start + self._size], None)
            return
        order, firsts = self._by_unit
        lengths = firsts[units + 1] - firsts[units]
        ends = np.cumsum(lengths)
        begin = 0
        while begin < len(units):
            before = ends[begin] - lengths[begin]
            # The units that fit into a chunk; at least one, however many records it has.
            stop = max(begin + 1, int(np.searchsorted(ends, before + self._size, side="right")))
            some, starts = lengths[begin:stop], ends[begin:stop] - lengths[begin:stop] - before
            within = np.arange(int(some.sum())) - np.repeat(starts, some)
            yield Chunk(order[np.repeat(firsts[units[begin:stop]], some) + within], starts)
            begin = stop
