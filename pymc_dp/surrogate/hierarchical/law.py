r"""What all evaluations of groups say together: :math:`\hat\beta \sim N(J(\tilde\psi - \tilde\psi_0),\, J + S)`.

Here :math:`\tilde\psi = (\varphi, \alpha + R\varphi)`: the score in φ, rows given, is that of a unit less what its rows' score tells of
it, and noise in rows is none in φ. J has a block for φ, a small block for every row, and what couples tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.linalg import Vector
from pymc_dp.surrogate.hierarchical.evaluation import Slope
from pymc_dp.surrogate.hierarchical.information import Information
from pymc_dp.surrogate.hierarchical.shrinkage import by_secants
from pymc_dp.surrogate.hierarchical.structured import Structured

_ROOTS = np.geomspace(0.01, 3.0, 40)
"""Of the scale of doubts, the roots that are tried, a seventh apart: beyond, their prior density is a ninetieth of the highest."""


@dataclass(frozen=True)
class GroupLaw:
    r""":math:`\hat\beta \sim N(J(\tilde\psi - \tilde\psi_0), J + S)`, of which S is block-diagonal but for what totals tell.

    Parameters
    ----------
    centre, beta : ndarray, shape (n,)
        :math:`\psi_0` and :math:`\hat\beta`.
    J : Structured
    S : Structured
        Blocks are of the sizes of J's.
    R : ndarray, shape (n, p)
        Of :math:`\tilde\psi`; 0 in φ's rows.
    """

    centre: Vector
    beta: Vector
    J: Structured
    S: Structured
    R: Vector

    @cached_property
    def _inverse(self) -> Structured:
        """Of J + S."""
        return self.J.combined(self.S).inverse

    @cached_property
    def K(self) -> Structured:  # noqa: N802
        r"""The information about ψ: of ψ̃ it is :math:`J (J + S)^{-1} J = J - S + S (J + S)^{-1} S`."""
        known = self.J.combined(self.S, -1.0).combined(self._inverse.between(self.S))
        return known.sheared(self.R)

    @cached_property
    def k(self) -> Vector:
        r""":math:`J (J + S)^{-1} \hat\beta`, in ψ."""
        k = np.array(self.beta - self.S @ (self._inverse @ self.beta))
        k[: self.R.shape[1]] += self.R.T @ k
        return k

    def privacy_shifts(self, prior_sds: Vector) -> Vector:
        """How far noise moves every entry of ψ, in posterior standard deviations without it, shape (n,).

        A posterior that knows of its noise is wider by the variance of what noise moves the mean by. Where nothing is to be learnt of an entry
        beside its prior, noise does not move it.
        """
        exact = (
            self.J.sheared(self.R).plus(diagonal_blocks(self.J, prior_sds**-2.0)).inverse.diagonal
        )
        noisy = self.covariance(prior_sds).diagonal
        return np.asarray(np.sqrt(np.maximum(noisy / exact - 1, 0.0)))

    def covariance(self, prior_sds: Vector) -> Structured:
        """Posterior covariance of ψ, given how wide the prior is there."""
        return self.K.plus(diagonal_blocks(self.J, prior_sds**-2.0)).inverse


class Belief(NamedTuple):
    """Where ψ is thought to be, and how sure that is.

    Parameters
    ----------
    mode : ndarray, shape (n,)
    variances : ndarray, shape (n,)
        Of ψ̃.
    of_rows : ndarray, shape (n - p,)
        Of α.
    """

    mode: Vector
    variances: Vector
    of_rows: Vector

    @classmethod
    def of(cls, mode: Vector, covariance: Structured, R: Vector) -> "Belief":
        """By the covariance of ψ."""
        return cls(mode, covariance.spread(R), covariance.diagonal[R.shape[1] :])

    def half_way(self, other: "Belief") -> "Belief":
        """Between two."""
        return Belief(*((x + y) / 2 for x, y in zip(self, other, strict=True)))


def diagonal_blocks(like: Structured, values: Vector) -> list[Vector]:
    """A diagonal matrix as blocks of the same sizes as another's."""
    parts = like.parts(values)
    return [part[..., None] * np.eye(part.shape[1]) for part in parts]


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
    Vi = np.linalg.inv(information.preconditioner.V)
    own, doubt = np.maximum(J.diagonal[p:], 0.0), information.unsure_cross
    per_unit = np.concatenate([
        np.tile(rows.reshape(-1, r).sum(axis=0) / n_units, len(rows) // r)
        for rows, r in ((np.ravel(J.diagonal[a:b]), r) for a, b, r in _spans(shape))
    ])  # fmt: skip
    moved, variances = believed.mode + R @ believed.mode[:p], believed.variances
    bend = np.repeat(bends, [b - a for a, b, _ in _spans(shape)])

    V = information.preconditioner.V
    known = V.T @ information.J.blocks[0][0] @ V

    def bent(squares: Vector, common: Vector) -> tuple[Vector, Vector]:
        """By third derivatives: covariance in φ, variances in rows. How far φ is away bends rows' gradients, too, and the other way round.

        Without, rows were taken for exact where φ was far off, and what they say of φ by their prior led to and fro. What rows' distances add to
        φ's gradients is taken off as it is expected; how far chance makes them longer or shorter is in φ's covariance, as large as a normal
        outcome's σ has it.
        """
        v, by_common = squares[p:], float(np.trace(known @ common)) / n_units
        change = by_common + float(own @ (bend * v)) / n_units
        by_chance = float(np.sum((own * v) ** 2)) / n_units
        in_common = Vi.T @ (known @ common @ known * change / 4 + known * by_chance) @ Vi
        changes = by_common + _of_rows(bend * per_unit * v, shape)
        return in_common, changes * (v + by_common / np.maximum(per_unit, 1e-300)) * own**2 / 4

    def far(psi: Vector) -> tuple[Vector, Vector]:
        """Expected squares of ψ̃* - ψ̃, of all entries, and the matrix of φ's in the preconditioner."""
        away = moved - psi
        x = Vi @ away[:p]
        spread = Vi @ np.diag(variances[:p]) @ Vi.T
        return away**2 + variances, np.outer(x, x) + spread

    gradients, places, distances, noise, of_rows, bent_rows = [], [], [], [], [], []
    for slope in slopes:
        D = slope.R - R
        gradient, psi = slope.gradient.copy(), slope.psi + R @ slope.psi[:p]
        gradient[:p] += D.T @ gradient
        distances.append(far(psi))
        bent_common, by_place = bent(*distances[-1])
        noise.append(slope.covariance + (D[p:] * slope.variance[:, None]).T @ D[p:] + bent_common)
        of_rows.append(slope.variance)
        bent_rows.append(by_place)
        gradients.append(gradient)
        places.append(psi)
    ways = [psi - centre - R @ centre[:p] for psi in places]
    J, unsure_rows = _by_secants(
        J, information.unsure_rows, gradients, ways, np.add(of_rows, bent_rows), shape
    )

    def unsure(squares: Vector, common: Vector) -> tuple[Vector, Vector]:
        """By what is not known of J."""
        v, x = squares[p:], np.diag(common)
        by_common = information.sd_common**2 / 2 * (np.trace(common) * np.eye(p) + common)
        in_common = Vi.T @ (by_common + np.diag(doubt.T @ v)) @ Vi
        return in_common, unsure_rows * v + doubt @ x

    unsure_each = [unsure(*far_off) for far_off in distances]
    doubted = [x + d for x, (_, d) in zip(bent_rows, unsure_each, strict=True)]
    Q = [
        np.linalg.inv(cov + d) * slope.of_common
        for cov, (d, _), slope in zip(noise, unsure_each, slopes, strict=True)
    ]
    rhs = [gradient + J @ way for gradient, way in zip(gradients, ways, strict=True)]
    eta = scale_of_doubts([x[p:] for x in rhs], of_rows, doubted)
    q = [1 / (v + eta * d) for v, d in zip(of_rows, doubted, strict=True)]
    total, sums = np.linalg.inv(sum(Q)), sum(q)
    B, b = [total @ one for one in Q], [one / sums for one in q]
    beta = np.concatenate([
        sum(W @ x[:p] for W, x in zip(B, rhs, strict=True)) if p else np.zeros(0),
        sum(w * x[p:] for w, x in zip(b, rhs, strict=True)),
    ])  # fmt: skip
    S_common = sum(W @ cov @ W.T for W, cov in zip(B, noise, strict=True))
    if last:
        # Where gradients contradict each other by more than their noise, the law is that much wider: Birge's ratio (Phys. Rev. 40, 1932).
        contradicted = sum(
            (x[:p] - beta[:p]) @ W @ (x[:p] - beta[:p]) for x, W in zip(rhs, Q, strict=True)
        )
        free = p * (len(slopes) - 1)
        S_common = S_common * max(1.0, float(contradicted) / max(free, 1))
    S_rows = sum(w**2 * (v + eta * d) for w, v, d in zip(b, of_rows, bent_rows, strict=True))
    # Where the evaluations were, as each part weighs them.
    at_common = sum(np.trace(W) / max(p, 1) * x for W, x in zip(B, places, strict=True))
    at_rows = np.concatenate([
        sum(W.T @ x[:p] for W, x in zip(B, places, strict=True)) if p else np.zeros(0),
        sum(w * x[p:] for w, x in zip(b, places, strict=True)),
    ])  # fmt: skip
    if p:
        S_common = S_common + unsure(*far(at_common))[0]
    if p and last:
        # What is not known of C hangs together with where rows are, about which no more is known either.
        for first, end, r in _spans(shape):
            for c in range(r):
                here = slice(first - p + c, end - p, r)
                off, sd = (
                    (x[here] * believed.of_rows[here, None]).sum(axis=0)
                    for x in (information.slope, information.unsure_slope)
                )
                beta[:p] -= Vi.T @ off
                S_common = S_common + Vi.T @ np.diag(sd**2) @ Vi
    S_rows = S_rows + eta * unsure(*far(at_rows))[1]
    if p:
        # Rows' prior draws φ to where R φ explains effects, by which R was estimated: no further than it would without noise, as far as the rest of R φ is taken to be known.
        # What of R is the same in all rows draws nothing, as rows have a mean of their own.
        J_common, cut = J.own_blocks[0][0], R.copy()
        for rows in shape.parts(cut)[1:]:
            rows -= rows.mean(axis=0)
        cut = cut @ (np.eye(p) - np.linalg.solve(J_common + S_common, J_common))
        beta = beta - J @ (cut @ (believed.mode - centre)[:p])
        S_rows = S_rows + own**2 * (cut[p:] ** 2 @ variances[:p])
        R = R - cut
    S = Structured.block_diagonal(_blocks(S_common, S_rows, shape))
    for w, slope in zip(b, slopes, strict=True):
        U = np.vstack([np.zeros((p, len(slope.M))), w[:, None] * slope.U])
        S = S.with_low_rank(U, slope.M)
    return GroupLaw(centre, beta, J, S, R)


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


def _spans(shape: Shape) -> list[tuple[int, int, int]]:
    spans, start = [], shape.p
    for groups, r in shape.tables:
        spans.append((start, start + groups * r, r))
        start += groups * r
    return spans


def _of_rows(values: Vector, shape: Shape) -> Vector:
    """Sums over every row, in all of its places."""
    sums = []
    for a, b, r in _spans(shape):
        table = values[a - shape.p : b - shape.p].reshape(-1, r)
        sums.append(np.repeat(table.sum(axis=1), r))
    return np.concatenate(sums)


def _blocks(common: Vector, rows: Vector, shape: Shape) -> list[Vector]:
    blocks = [np.asarray(common)[None]]
    for a, b, r in _spans(shape):
        table = rows[a - shape.p : b - shape.p].reshape(-1, r)
        blocks.append(table[..., None] * np.eye(r))
    return blocks
