"""What a law of groups asks of the records at a place: noisy gradients and Hessians, and their sizes."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from pymc_dp.likelihood.local import Psi
from pymc_dp.linalg import Vector, as_matrix
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.grouped import GroupGradient, GroupHessian, Preconditioner
from pymc_dp.records.measurements import Measurements

Part = Literal["common", "rows", "cross", "tables"]


class Shape(NamedTuple):
    """Of ψ: φ of length p, and tables, of so many groups and columns each."""

    p: int
    tables: tuple[tuple[int, int], ...]

    @property
    def n(self) -> int:
        """Length of ψ."""
        return self.p + sum(groups * columns for groups, columns in self.tables)

    def parts(self, psi: Vector) -> list[Vector]:
        """φ, and tables of shape (groups, columns)."""
        parts, start = [psi[: self.p]], self.p
        for groups, columns in self.tables:
            parts.append(psi[start : start + groups * columns].reshape(groups, columns))
            start += groups * columns
        return parts

    def psi(self, values: Vector) -> Psi:
        """As what queries take."""
        common, *tables = self.parts(values)
        return Psi(common, tables)


class Curvature(NamedTuple):
    """Minus the Hessian, with noise, in the coordinates of a preconditioner.

    Parameters
    ----------
    psi : Psi
        Where.
    preconditioner : Preconditioner
    common : ndarray, shape (p, p)
    rows : list of ndarray, shape (groups, r, r)
    cross : list of ndarray, shape (groups, r, p)
    tables : list of ndarray, shape (r, r')
        Of all pairs of tables, summed over rows.
    sd : dict
        The noise's standard deviation, of each of these; on the diagonal, and √½ of it elsewhere, of
        symmetric ones.
    """

    psi: Psi
    preconditioner: Preconditioner
    common: Vector
    rows: list[Vector]
    cross: list[Vector]
    tables: list[Vector]
    sd: dict[str, float]


class Slope(NamedTuple):
    """A gradient with noise, and where.

    Parameters
    ----------
    psi : ndarray, shape (n,)
    gradient : ndarray, shape (n,)
        In ψ.
    covariance : ndarray, shape (p, p)
        Of the noise in φ.
    variance : ndarray, shape (n - p,)
        Of the noise in rows; all of it is independent.
    """

    psi: Vector
    gradient: Vector
    covariance: Vector
    variance: Vector


class Evaluator:
    """Noisy derivatives of the tempered log-likelihood in ψ.

    Parameters
    ----------
    measure : Measurements
        Asked, and paid, for everything.
    shape : Shape
    tempering : float
        T.
    counts : float
        Share of a histogram.
    """

    def __init__(self, measure: Measurements, shape: Shape, tempering: float, counts: float):
        self.measure, self.shape, self._tempering, self._counts = measure, shape, tempering, counts

    @property
    def parts(self) -> list[Part]:
        """Of the Hessian."""
        parts: list[Part] = ["rows"]
        parts += ["common", "cross"] if self.shape.p else []
        return parts + (["tables"] if len(self.shape.tables) > 1 else [])

    def curvature(
        self,
        psi: Psi,
        preconditioner: Preconditioner,
        share: float,
        split: dict[str, float],
        kept: float,
    ) -> Curvature:
        """Minus the Hessian at ψ, for `share`, of which every part gets as much as `split` says."""
        parts = self.parts
        found: dict[str, Vector] = {}
        sd: dict[str, float] = {}
        total = sum(split[part] for part in parts)
        for part in parts:
            query = GroupHessian(psi, preconditioner, part, self._tempering)
            part_share = share * split[part] / total
            sizes = self.measure.histogram(query, self._counts)
            bound = self._bound(sizes, part_share, kept)
            found[part], sd[part] = self.measure.sum(query, bound, part_share)
        p, tables = self.shape
        columns = [r for _, r in tables]
        pairs = [(r, e) for k, r in enumerate(columns) for e in columns[k + 1 :]]
        return Curvature(
            psi,
            preconditioner,
            as_matrix(found["common"], p) if p else np.zeros((0, 0)),
            _cut(found["rows"], [(m, r * (r + 1) // 2) for m, r in tables], columns),
            _cut(found.get("cross", np.zeros(0)), [(m, r, p) for m, r in tables]),
            _cut(found["tables"], pairs) if pairs else [],
            sd,
        )

    def lengths(self, psi: Psi, V: Vector, quantile: float) -> tuple[float, list[Vector]]:
        """How long units' gradients are: of φ in coordinates V, and of each column of each table."""
        preconditioner = Preconditioner(V, tuple(np.ones(r) for _, r in self.shape.tables))

        def length(part: str | tuple[int, int]) -> float:
            query = GroupGradient(psi, preconditioner, self._tempering, part)
            return self.measure.histogram(query, self._counts).quantile(quantile)

        return length("common") if self.shape.p else 0.0, [
            np.array([length((k, c)) for c in range(r)])
            for k, (_, r) in enumerate(self.shape.tables)
        ]

    def slope(
        self,
        at: Vector,
        psi: Psi,
        preconditioner: Preconditioner,
        share: float,
        kept: float,
        counts: float,
    ) -> Slope:
        """Gradient at ψ, for `share`; its bound by a histogram of its own, for `counts`."""
        query = GroupGradient(psi, preconditioner, self._tempering)
        sizes = self.measure.histogram(query, counts)
        bound = self._bound(sizes, share, kept)
        released, sd = self.measure.sum(query, bound, share)
        common, *tables = self.shape.parts(released)
        back = np.linalg.inv(preconditioner.V)
        scales = [
            np.broadcast_to(s, t.shape) for s, t in zip(preconditioner.scales, tables, strict=True)
        ]
        rows = [t / s for t, s in zip(tables, scales, strict=True)]
        return Slope(
            at,
            np.concatenate([back.T @ common, *map(np.ravel, rows)]),
            sd**2 * back.T @ back,
            np.concatenate([np.ravel((sd / s) ** 2) for s in scales]),
        )

    def _bound(self, sizes: PrivateHistogram, share: float, kept: float) -> float:
        """Balances noise and what is clipped, if all of that points one way; not below a quantile."""
        candidates = np.geomspace(sizes.quantile(0.5) / 2, sizes.largest, 100)
        unit = self.measure.noise_sd(1.0, share)
        costs = [(unit * b) ** 2 + sizes.excess(b) ** 2 for b in candidates]
        least = 1.05 * sizes.quantile(kept) if kept else 0.0
        return max(float(candidates[int(np.argmin(costs))]), least)


def _cut(
    numbers: Vector, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[int] | None = None
) -> list[Vector]:
    """Numbers as arrays, one after the other; packed rows as symmetric matrices, if of these sizes."""
    arrays, start = [], 0
    for k, shape in enumerate(shapes):
        size = math.prod(shape)
        array = numbers[start : start + size].reshape(shape)
        if symmetric is not None:
            i, j = np.tril_indices(symmetric[k])
            full = np.zeros((shape[0], symmetric[k], symmetric[k]))
            full[:, i, j] = full[:, j, i] = array / np.where(i == j, 1.0, math.sqrt(2))
            array = full
        arrays.append(array)
        start += size
    return arrays
