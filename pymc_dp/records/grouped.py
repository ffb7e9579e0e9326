r"""Queries about units that each use one row of some tables: few numbers per unit, in many places.

With a unit's gradient :math:`(x_i, a_i)` in φ and in the rows that it uses, ψ's vector has :math:`a_i` in
the places of these rows and 0 in all others. So its norm is that of the few numbers, whichever rows they
are, and it is :class:`clipped and summed <pymc_dp.privacy.clipping.Sparse>` without the zeros.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.local import Local, Psi
from pymc_dp.linalg import as_vectors
from pymc_dp.privacy.clipping import Sparse
from pymc_dp.records.queries import Units, Vector
from pymc_dp.records.sums import LocalRecords


@dataclass(frozen=True, eq=False)
class Preconditioner:
    r"""Coordinates of a unit's numbers: a matrix for φ, and a scale for each column of each table.

    Parameters
    ----------
    V : ndarray, shape (p, p)
        Gradients in φ are :math:`V^\top x_i`.
    scales : tuple of ndarray, shape (columns,)
        Gradients in rows are multiplied by these.
    """

    V: Vector
    scales: tuple[Vector, ...]

    @cached_property
    def columns(self) -> list[slice]:
        """Where the tables' columns are among a unit's q numbers."""
        ends = len(self.V) + np.cumsum([len(s) for s in self.scales])
        return [slice(int(e) - len(s), int(e)) for e, s in zip(ends, self.scales, strict=True)]

    def of_gradients(self, values: Vector) -> Vector:
        """Shape (units, q)."""
        parts = [values[:, : len(self.V)] @ self.V]
        parts += [values[:, c] * s for c, s in zip(self.columns, self.scales, strict=True)]
        return np.hstack(parts)


class _Query:
    """What queries about groups have in common."""

    psi: Psi

    def _of_all(self, units: Units | None) -> None:
        if units is not None:
            raise NotImplementedError("Groups are computed of all units.")

    def _places(self, rows: list[NDArray[np.int64]], each: list[int], first: int = 0) -> Units:
        """Places of `each` numbers for every row, one table after the other."""
        places = []
        for table, row, size in zip(self.psi.tables, rows, each, strict=True):
            places.append(first + row[:, None] * size + np.arange(size))
            first += len(table) * size
        return np.hstack(places)


@dataclass(frozen=True, eq=False)
class GroupGradient(_Query):
    r""":math:`T\,(V^\top x_i,\ s\, a_i)` at :math:`\psi`, to be clipped together.

    Parameters
    ----------
    psi : Psi
    preconditioner : Preconditioner
    tempering : float
        T.
    part : {"all", "common"} or tuple of int
        All numbers; those in φ alone; or those of one table's one column alone.
    """

    psi: Psi
    preconditioner: Preconditioner
    tempering: float = 1.0
    about = "gradients"
    part: str | tuple[int, int] = "all"

    @property
    def dimension(self) -> int | None:
        """Length of ψ, or of the part of it."""
        p = len(self.psi.common)
        if self.part == "all":
            return p + sum(table.size for table in self.psi.tables)
        return p if self.part == "common" else None

    @property
    def nonzeros(self) -> int | None:
        """How many numbers a unit has."""
        columns = sum(table.shape[1] for table in self.psi.tables)
        return len(self.psi.common) + columns if self.part == "all" else None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector | Sparse]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        self._of_all(units)
        p, each = len(self.psi.common), [table.shape[1] for table in self.psi.tables]
        for chunk in records.local_gradients(self.psi):
            values = self.tempering * self.preconditioner.of_gradients(chunk.values)
            if not isinstance(self.part, str):
                table, column = self.part
                yield values[:, self.preconditioner.columns[table].start + column]
            elif self.part == "all":
                common = np.broadcast_to(np.arange(p), (len(values), p))
                yield Sparse(values, np.hstack([common, self._places(chunk.rows, each, p)]))
            else:
                yield values[:, :p]


@dataclass(frozen=True, eq=False)
class GroupHessian(_Query):
    r"""A part of :math:`-T` times the Hessian in preconditioned coordinates: of φ, of rows, between both, or between tables.

    What is 0 for every unit is not released, and gets no noise.

    Parameters
    ----------
    psi, preconditioner, tempering
        As in :class:`GroupGradient`.
    part : {"common", "rows", "cross", "tables"}
        As vectors: :math:`p(p+1)/2` numbers; for every row of r numbers r (r + 1)/2; for every row r p; for
        two tables, r of the one times r of the other, all rows together.
    """

    psi: Psi
    preconditioner: Preconditioner
    part: Literal["common", "rows", "cross", "tables"]
    tempering: float = 1.0
    about = "curvature"

    @property
    def _each(self) -> list[int]:
        p = len(self.psi.common)
        columns = [table.shape[1] for table in self.psi.tables]
        return [r * p if self.part == "cross" else r * (r + 1) // 2 for r in columns]

    @property
    def dimension(self) -> int:
        """How many numbers there are."""
        p = len(self.psi.common)
        if self.part == "common":
            return p * (p + 1) // 2
        if self.part == "tables":
            return sum(len(one) * len(other) for one, other in self._pairs)
        return sum(len(t) * size for t, size in zip(self.psi.tables, self._each, strict=True))

    @property
    def nonzeros(self) -> int | None:
        """How many numbers a unit has."""
        return sum(self._each) if self.part in ("rows", "cross") else None

    @property
    def _pairs(self) -> list[tuple[Vector, Vector]]:
        return list(combinations(self.preconditioner.scales, 2))

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector | Sparse]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        self._of_all(units)
        for chunk in records.local_hessians(self.psi):
            yield self._of_chunk(chunk)

    def _of_chunk(self, chunk: Local) -> Vector | Sparse:
        p, V, minus = len(self.psi.common), self.preconditioner.V, -self.tempering
        H, parts = chunk.values, []
        if self.part == "common":
            return as_vectors(minus * (V.T @ H[:, :p, :p] @ V))
        if self.part == "tables":
            columns = combinations(self.preconditioner.columns, 2)
            for (one, other), (c, e) in zip(self._pairs, columns, strict=True):
                between = minus * H[:, c, e] * np.outer(one, other)
                parts.append(between.reshape(len(H), -1))
            return np.hstack(parts)
        for c, s in zip(self.preconditioner.columns, self.preconditioner.scales, strict=True):
            if self.part == "rows":
                parts.append(as_vectors(minus * H[:, c, c] * np.outer(s, s)))
            else:
                between = (H[:, c, :p] @ V) * s[:, None]
                parts.append(minus * between.reshape(len(H), -1))
        return Sparse(np.hstack(parts), self._places(chunk.rows, self._each))
