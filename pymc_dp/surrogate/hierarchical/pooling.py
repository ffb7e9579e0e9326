"""Gradients at several places and what is known of the information, put together: the law, and how sure each part of it is."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.linalg import Vector
from pymc_dp.surrogate.hierarchical.evaluation import Slope
from pymc_dp.surrogate.hierarchical.information import Information
from pymc_dp.surrogate.hierarchical.law import Belief, GroupLaw, diagonal_blocks
from pymc_dp.surrogate.hierarchical.shrinkage import by_secants
from pymc_dp.surrogate.hierarchical.structured import Structured

_ROOTS = np.geomspace(0.01, 3.0, 40)
"""Of the scale of doubts, the roots that are tried, a seventh apart: beyond, their prior density is a ninetieth of the highest."""

_STEEPEST = 3.0
"""Of the logarithm of what a gradient is made longer or shorter by, the largest: a guard, where next to nothing is seen. Half and twice:
`benchmarks/hierarchical_constants.py`, not run yet."""


def pooled(
    slopes: Sequence[Slope], information: Information, shape: Shape, n_units: float,
    centre: Vector, believed: Belief, bends: Sequence[float], last: bool,
) -> GroupLaw:  # fmt: skip
    r"""Gradients as observations of one :math:`J(\tilde\psi_* - \tilde\psi_0)`, each with its own doubts.

    A gradient at a place far from the mode says less: J is not sure, and changes on the way. How far that is,
    is known from what was learnt so far.

    Parameters
    ----------
    slopes, information
        Of the evaluations.
    shape : Shape
    n_units : float
    centre : ndarray, shape (n,)
        :math:`\psi_0`.
    believed : Belief
    bends : sequence of float
        Of every table: :func:`~pymc_dp.surrogate.hierarchical.bends.bends`.
    last : bool
        Whether nothing is asked any more: only then groups' effects may hang together with covariates, and gradients contradict each other.
        On the way, places would be drawn far from each other for it.
    """
    p, R = shape.p, information.Q
    J = information.J.sheared(information.R - R)
    doubts = _Doubts(information, J, shape, n_units, believed, bends)
    slopes = [doubts.as_steep(slope) for slope in slopes]
    seen = [doubts.seen(slope) for slope in slopes]
    noise = [one.of_rows for one in seen]
    ways = [one.place - centre - R @ centre[:p] for one in seen]
    J, unsure_rows = _by_secants(
        J, information.unsure_rows, [one.gradient for one in seen], ways,
        np.add(noise, [one.bent for one in seen]), shape,
    )  # fmt: skip
    unsure_each = [doubts.of_information(one.squares, one.common, unsure_rows) for one in seen]
    rhs = [one.gradient + J @ way for one, way in zip(seen, ways, strict=True)]
    # φ: by matrices that add up to the identity; rows: number by number.
    Q = [
        np.linalg.inv(one.of_common + d) * slope.of_common
        for one, (d, _), slope in zip(seen, unsure_each, slopes, strict=True)
    ]
    total = np.linalg.inv(sum(Q))
    B = [total @ one for one in Q]
    doubted = [one.bent + d for one, (_, d) in zip(seen, unsure_each, strict=True)]
    eta = scale_of_doubts([x[p:] for x in rhs], noise, doubted)
    q = [1 / (v + eta * d) for v, d in zip(noise, doubted, strict=True)]
    sums = sum(q)
    b = [one / sums for one in q]
    beta = np.concatenate([
        sum(W @ x[:p] for W, x in zip(B, rhs, strict=True)) if p else np.zeros(0),
        sum(w * x[p:] for w, x in zip(b, rhs, strict=True)),
    ])  # fmt: skip
    S_common = sum(W @ one.of_common @ W.T for W, one in zip(B, seen, strict=True))
    if last:
        # Where gradients contradict each other by more than their noise, the law is that much wider: Birge's ratio (Phys. Rev. 40, 1932).
        off = [x[:p] - beta[:p] for x in rhs]
        contradicted = sum(x @ W @ x for x, W in zip(off, Q, strict=True))
        S_common = S_common * max(1.0, float(contradicted) / max(p * (len(slopes) - 1), 1))
    S_rows = sum(w**2 * (v + eta * one.bent) for w, v, one in zip(b, noise, seen, strict=True))
    # What is not known of J is one and the same for all: it counts from where the evaluations were, as each part weighs them.
    places = [one.place for one in seen]
    at_common = sum(np.trace(W) / max(p, 1) * x for W, x in zip(B, places, strict=True))
    at_rows = np.concatenate([
        sum(W.T @ x[:p] for W, x in zip(B, places, strict=True)) if p else np.zeros(0),
        sum(w * x[p:] for w, x in zip(b, places, strict=True)),
    ])  # fmt: skip
    S_rows = S_rows + eta * doubts.of_information(*doubts.far(at_rows), unsure_rows)[1]
    if p:
        S_common = S_common + doubts.of_information(*doubts.far(at_common), unsure_rows)[0]
        if last:
            off_common, unsure_off = doubts.going_with_effects()
            beta[:p] -= off_common
            S_common = S_common + unsure_off
        cut = _cut(R, J, S_common, shape)
        beta = beta - J @ (cut @ (believed.mode - centre)[:p])
        S_rows = S_rows + doubts.own**2 * (cut[p:] ** 2 @ believed.variances[:p])
        R = R - cut
    of_rows = diagonal_blocks(J, np.concatenate([np.zeros(p), S_rows]))[1:]
    S = Structured.block_diagonal([np.asarray(S_common)[None], *of_rows])
    for w, slope in zip(b, slopes, strict=True):
        U = np.vstack([np.zeros((p, len(slope.M))), w[:, None] * slope.U])
        S = S.with_low_rank(U, slope.M)
    return GroupLaw(centre, beta, J, S, R)


class _Seen(NamedTuple):
    """A gradient of ψ̃ and its place, expected squares of the way from there and the matrix of φ's, and covariances and variances of its errors."""

    gradient: Vector
    place: Vector
    squares: Vector
    common: Vector
    of_common: Vector
    of_rows: Vector
    bent: Vector


class _Doubts:
    """How far gradients may be off, as J changes on the way from their places to ψ and is not sure."""

    def __init__(
        self, information: Information, J: Structured, shape: Shape, n_units: float,
        believed: Belief, bends: Sequence[float],
    ):  # fmt: skip
        p, V, self.R = shape.p, information.preconditioner.V, information.Q
        self.information, self.shape, self.n_units = information, shape, n_units
        self.Vi, self.own = np.linalg.inv(V), np.maximum(J.diagonal[p:], 0.0)
        self.known = V.T @ information.J.blocks[0][0] @ V
        self.per_unit = np.concatenate([
            np.tile(table.sum(axis=0) / n_units, len(table)) for table in shape.parts(J.diagonal)[1:]
        ])  # fmt: skip
        self.bend = np.repeat(bends, [groups * r for groups, r in shape.tables])
        self.columns = shape.in_columns.T @ self.own
        self.believed, self.mode = believed, believed.mode + self.R @ believed.mode[:p]

    def as_steep(self, slope: Slope) -> Slope:
        """A gradient as steep in every column as J is: where φ is far from the law's, so is the information, as that of means where σ is.

        How far that may be is expected as of a normal outcome's σ, of which others' information depends most; less than noise makes of what is seen, nothing is done.
        """
        p, (_, common) = self.shape.p, self.far(slope.psi + self.R @ slope.psi[: self.shape.p])
        change = 2 * float(np.trace(self.known @ common)) / self.n_units
        off = np.log(self.columns / slope.steepness) * change / (change + slope.unsure_steepness)
        times = self.shape.in_columns @ np.exp(np.clip(off, -_STEEPEST, _STEEPEST))
        return slope._replace(
            gradient=np.concatenate([slope.gradient[:p], times * slope.gradient[p:]]),
            variance=times**2 * slope.variance,
            U=times[:, None] * slope.U,
        )

    def seen(self, slope: Slope) -> _Seen:
        """A gradient in ψ̃, with what privacy noise and the way make of errors."""
        p, D = self.shape.p, slope.R - self.R
        gradient, place = slope.gradient.copy(), slope.psi + self.R @ slope.psi[:p]
        gradient[:p] += D.T @ gradient
        far = self.far(place)
        bent_common, bent = self.on_the_way(*far)
        of_common = slope.covariance + (D[p:] * slope.variance[:, None]).T @ D[p:] + bent_common
        return _Seen(gradient, place, *far, of_common, slope.variance, bent)

    def far(self, place: Vector) -> tuple[Vector, Vector]:
        """Expected squares of ψ̃* - ψ̃, of all entries, and the matrix of φ's in the preconditioner."""
        p, away = self.shape.p, self.mode - place
        x, variances = self.Vi @ away[:p], self.believed.variances
        spread = self.Vi @ np.diag(variances[:p]) @ self.Vi.T
        return away**2 + variances, np.outer(x, x) + spread

    def on_the_way(self, squares: Vector, common: Vector) -> tuple[Vector, Vector]:
        """By third derivatives: covariance in φ, variances in rows. How far φ is away bends rows' gradients, too, and the other way round.

        Without, rows were taken for exact where φ was far off, and what they say of φ by their prior led to and fro. What rows' distances add to
        φ's gradients is taken off as it is expected; how far chance makes them longer or shorter is in φ's covariance, as large as a normal
        outcome's σ has it.
        """
        v, n, known, Vi = squares[self.shape.p :], self.n_units, self.known, self.Vi
        by_common = float(np.trace(known @ common)) / n
        change = by_common + float(self.own @ (self.bend * v)) / n
        by_chance = float(np.sum((self.own * v) ** 2)) / n
        in_common = Vi.T @ (known @ common @ known * change / 4 + known * by_chance) @ Vi
        changes = by_common + _over_rows(self.bend * self.per_unit * v, self.shape)
        ways = v + by_common / np.maximum(self.per_unit, 1e-300)
        return in_common, changes * ways * self.own**2 / 4

    def of_information(
        self, squares: Vector, common: Vector, unsure_rows: Vector
    ) -> tuple[Vector, Vector]:
        """The same by what is not known of J."""
        p, of, v = self.shape.p, self.information, squares[self.shape.p :]
        by_common = of.sd_common**2 / 2 * (np.trace(common) * np.eye(p) + common)
        by_cross = np.diag(of.unsure_cross.T @ v)
        in_rows = unsure_rows * v + of.unsure_cross @ np.diag(common)
        return self.Vi.T @ (by_common + by_cross) @ self.Vi, in_rows

    def going_with_effects(self) -> tuple[Vector, Vector]:
        """What φ's gradients are off by as covariates go with effects, and its covariance.

        What is not known of C hangs together with where rows are, about which no more is known either.
        """
        of, shape, Vi = self.information, self.shape, self.Vi
        off, variances = np.zeros(shape.p), np.zeros(shape.p)
        tables = map(shape.of_rows, (of.slope, of.unsure_slope, self.believed.of_rows))
        for slope, unsure, of_rows in zip(*tables, strict=True):
            off += np.einsum("grp,gr->p", slope, of_rows)
            variances += np.sum(np.einsum("grp,gr->rp", unsure, of_rows) ** 2, axis=0)
        return Vi.T @ off, Vi.T @ np.diag(variances) @ Vi


def _cut(R: Vector, J: Structured, S_common: Vector, shape: Shape) -> Vector:
    r"""What of R is left out of the law, :math:`R (1 - \rho)` with :math:`\rho = (J + S)^{-1} J` of φ, as far as it differs between rows.

    Rows' prior draws φ to where R φ explains effects, by which R was estimated: no further than it would without noise, as far as the rest of R φ is taken to be known.
    What of R is the same in all rows draws nothing, as rows have a mean of their own.
    """
    J_common, cut = J.own_blocks[0][0], R.copy()
    for rows in shape.parts(cut)[1:]:
        rows -= rows.mean(axis=0)
    return np.asarray(cut @ (np.eye(shape.p) - np.linalg.solve(J_common + S_common, J_common)))


def _by_secants(
    J: Structured, unsure: Vector, gradients: Sequence[Vector], ways: Sequence[Vector], variances: Vector, shape: Shape,
) -> tuple[Structured, Vector]:  # fmt: skip
    """J with every row's information as gradients at several places have it, too, and the variances of that.

    Of a table's whole curvatures know more, which are of where the law is, and not of ways to it.
    """
    p, own = shape.p, np.maximum(J.diagonal, 1e-300)
    seen = np.stack([(J @ way)[p:] for way in ways])
    found, doubts = by_secants(np.stack(gradients)[:, p:], seen, variances, unsure / own[p:] ** 2)
    parts = np.concatenate([np.ones(p), found])
    for rows, whole in zip(shape.parts(parts)[1:], shape.parts(own)[1:], strict=True):
        rows *= whole.sum(axis=0) / (whole * rows).sum(axis=0)
    roots = np.sqrt(parts)
    blocks = [
        block * x[:, :, None] * x[:, None, :]
        for block, x in zip(J.blocks, J.parts(roots), strict=True)
    ]
    return Structured(blocks, roots[:, None] * J.U, J.M), (own * parts)[p:] ** 2 * doubts


def scale_of_doubts(
    seen: Sequence[Vector], noise: Sequence[Vector], doubts: Sequence[Vector]
) -> float:
    r"""The posterior mean of η, if what was seen several times has variances noise + η doubts.

    How far it contradicts itself tells η, as differences between studies tell how far these differ (Paule and Mandel, J. Res. Natl. Bur. Stand. 87, 1982); here by
    the likelihood of differences, each number's own mean integrated out. :math:`\sqrt\eta` is half-normal with a mean square of 1: where noise hides doubts, they stay what they are.

    Parameters
    ----------
    seen, noise, doubts : sequence of ndarray, shape (k,)
        Of every time.
    """
    if len(seen) < 2:
        return 1.0
    x, v, d = (np.stack(each) for each in (seen, noise, doubts))
    fits = []
    for root in _ROOTS:
        q = 1 / (v + root**2 * d)
        off = x - (q * x).sum(axis=0) / q.sum(axis=0)
        fit = np.log(q).sum() - np.log(q.sum(axis=0)).sum() - (q * off**2).sum()
        fits.append((fit - root**2) / 2 + np.log(root))
    weights = np.exp(np.array(fits) - max(fits))
    return float(weights @ _ROOTS**2 / weights.sum())


def _over_rows(values: Vector, shape: Shape) -> Vector:
    """Sums over every row, in all of its places."""
    sums = [np.repeat(table.sum(axis=1), table.shape[1]) for table in shape.of_rows(values)]
    return np.concatenate(sums)
