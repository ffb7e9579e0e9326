"""How many numbers the likelihood sees of θ, and where a unit's few are among them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_dp.linalg import Vector


class Shape(NamedTuple):
    """Of ψ: φ of length p, and tables, of so many groups and columns each; and the table of every row that a unit uses."""

    p: int
    tables: tuple[tuple[int, int], ...]
    uses: tuple[int, ...]

    @property
    def n(self) -> int:
        """Length of ψ."""
        return self.p + sum(groups * columns for groups, columns in self.tables)

    @property
    def q(self) -> int:
        """How many numbers of it a unit sees."""
        return self.p + sum(self.tables[k][1] for k in self.uses)

    @property
    def r(self) -> int:
        """Columns of all tables."""
        return sum(columns for _, columns in self.tables)

    @property
    def in_columns(self) -> Vector:
        """Which of these each number of all rows is in, 1 or 0, shape (n - p, r)."""
        ends = np.cumsum([columns for _, columns in self.tables])
        own = np.split(np.eye(self.r), ends[:-1])
        return np.concatenate(
            [np.tile(x, (groups, 1)) for x, (groups, _) in zip(own, self.tables, strict=True)]
        )

    @property
    def columns(self) -> list[slice]:
        """Where the numbers of the rows that a unit uses are among these."""
        widths = [self.tables[k][1] for k in self.uses]
        return [
            slice(int(e) - r, int(e))
            for e, r in zip(self.p + np.cumsum(widths), widths, strict=True)
        ]

    def by_columns(self, values: Vector) -> Vector:
        """Of numbers that units see, shape (..., q), those of tables' columns, shape (..., r): added up where a unit uses two rows of a table."""
        found = [np.zeros((*values.shape[:-1], r)) for _, r in self.tables]
        for k, columns in zip(self.uses, self.columns, strict=True):
            found[k] += values[..., columns]
        return np.concatenate(found, axis=-1)

    def parts(self, psi: Vector) -> list[Vector]:
        """φ, and tables of shape (groups, columns), of a vector of length n or of a matrix with so many rows."""
        return [psi[: self.p], *self.of_rows(psi[self.p :])]

    def of_rows(self, values: Vector) -> list[Vector]:
        """The same without φ, of length n - p."""
        found, start = [], 0
        for groups, columns in self.tables:
            own = values[start : start + groups * columns]
            found.append(own.reshape(groups, columns, *values.shape[1:]))
            start += groups * columns
        return found

    def places(
        self, rows: Sequence[NDArray[np.int64]], each: Sequence[int], first: int
    ) -> list[NDArray[np.int64]]:
        """The places of the rows used, of `each` numbers by their table, one table after the other."""
        sizes = [groups * size for (groups, _), size in zip(self.tables, each, strict=True)]
        starts = first + np.cumsum([0, *sizes])
        return [
            starts[k] + row[:, None] * each[k] + np.arange(each[k])
            for k, row in zip(self.uses, rows, strict=True)
        ]
