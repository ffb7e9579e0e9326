r"""What all evaluations of groups say together: :math:`\hat\beta \sim N(J(\psi - \psi_0),\, J + S)`.

J has a block for φ, a small block for every row, what couples each row with φ, and what couples tables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.linalg import Vector, inverse_root
from pymc_dp.records.grouped import Preconditioner
from pymc_dp.surrogate.hierarchical.evaluation import Curvature, Slope
from pymc_dp.surrogate.hierarchical.shrinkage import shrunk_positive, shrunk_ratios
from pymc_dp.surrogate.hierarchical.structured import Structured

_LEAST_OWN = 0.05
"""Of what is known of φ, this part at least is not explained by the groups; of a row's size, its least
eigenvalue."""
_TOGETHER = 0.98
"""Two tables never determine each other quite."""
_ALONE = 0.999
"""Nor do a table's rows, but more nearly: of games only the prior knows how good all are together. With .98 and next to no noise, the sd of 50
players' mean was .65 times the prior's, as if games told of it; so it was .92 times, and .65 still with 40 players at ε = 20."""
_RIDGE = 1e-3


@dataclass(frozen=True)
class GroupLaw:
    r""":math:`\hat\beta \sim N(J(\psi - \psi_0), J + S)`, of which S is block-diagonal.

    Parameters
    ----------
    centre, beta : ndarray, shape (n,)
        :math:`\psi_0` and :math:`\hat\beta`.
    J : Structured
    S : sequence of ndarray
        Its blocks, of the sizes of J's.
    """

    centre: Vector
    beta: Vector
    J: Structured
    S: Sequence[Vector]

    @cached_property
    def _inverse(self) -> Structured:
        """Of J + S."""
        return self.J.plus(self.S).inverse

    @cached_property
    def K(self) -> Structured:  # noqa: N802
        r"""The information about ψ: :math:`J (J + S)^{-1} J = J - S + S (J + S)^{-1} S`."""
        return self.J.plus(self.S, -1.0).combined(self._inverse.between(self.S))

    @cached_property
    def k(self) -> Vector:
        r""":math:`J (J + S)^{-1} \hat\beta`."""
        return np.asarray(self.beta - self._noise(self._inverse @ self.beta))

    def _noise(self, x: Vector) -> Vector:
        return Structured(self.S, self.J.U, self.J.M).of_blocks(x)

    def privacy_shifts(self, prior_sds: Vector) -> Vector:
        """How far noise moves every entry of ψ, in posterior standard deviations without it, shape (n,).

        A posterior that knows of its noise is wider by the variance of what noise moves the mean by. Where nothing is to be learnt of an entry
        beside its prior, noise does not move it.
        """
        exact = self.J.plus(_diagonal(self.J, prior_sds)).inverse.diagonal
        return np.asarray(np.sqrt(np.maximum(self.variances(prior_sds) / exact - 1, 0.0)))

    def variances(self, prior_sds: Vector) -> Vector:
        """Posterior variances of the entries of ψ, shape (n,), given how wide the prior is there."""
        return np.maximum(self.K.plus(_diagonal(self.J, prior_sds)).inverse.diagonal, 0.0)


def _diagonal(like: Structured, sds: Vector) -> list[Vector]:
    parts = like.parts(sds**-2.0)
    return [part[..., None] * np.eye(part.shape[1]) for part in parts]


class Information(NamedTuple):
    """Evaluations' curvatures put together, and how sure they are.

    Parameters
    ----------
    preconditioner : Preconditioner
        Its V is that of `cross` and of the noise in φ.
    J : Structured
        In ψ.
    cross : list of ndarray, shape (groups, r, p)
    unsure_cross : list of ndarray, shape (groups, r, p)
        Variances.
    unsure_rows : ndarray, shape (n - p,)
        Variances of the diagonal of the rows' blocks.
    sd_common : float
        Of φ's block, in the preconditioner.
    V : ndarray, shape (p, p)
        Whitens φ given the rows.
    """

    preconditioner: Preconditioner
    J: Structured
    cross: list[Vector]
    unsure_cross: list[Vector]
    unsure_rows: Vector
    sd_common: float
    V: Vector


def informed(curvatures: Sequence[Curvature], shape: Shape) -> Information:
    """Curvatures averaged with their noise in mind, shrunk where noise is most of them, and made possible.

    Of a row's block and of what couples it with φ, as much is expected as its size times what rows at such a
    place have in common; how far rows differ from that is estimated, too.
    """
    preconditioner, (p, tables, uses) = curvatures[-1].preconditioner, shape
    weights = np.array([1 / c.sd["rows"] ** 2 for c in curvatures])
    weights /= weights.sum()
    back = [np.linalg.solve(c.preconditioner.V, preconditioner.V) for c in curvatures]
    # An answer in coordinates that were far too narrow says next to nothing of φ, however much it says of rows.
    of_common = np.array([
        (c.sd["common"] * (np.linalg.norm(B, 2) ** 2 if p else 1.0)) ** -2.0
        for c, B in zip(curvatures, back, strict=True)
    ])  # fmt: skip
    of_common /= of_common.sum()
    common = sum(
        w * (B.T @ o.common @ B) for w, B, o in zip(of_common, back, curvatures, strict=True)
    )
    sd_common = math.sqrt(
        sum(
            (w * o.sd["common"] * np.trace(B.T @ B) / max(p, 1)) ** 2
            for w, B, o in zip(of_common, back, curvatures, strict=True)
        )
    )
    blocks, unsure_rows, cross, unsure_cross, sizes = [], [], [], [], []
    for k, (groups, r) in enumerate(tables):
        ratios = [preconditioner.scales[k] / o.preconditioner.scales[k] for o in curvatures]
        squares = [np.outer(x, x) for x in ratios]
        rows = sum(w * o.rows[k] * x for w, o, x in zip(weights, curvatures, squares, strict=True))
        sds = np.sqrt(
            sum(
                (w * o.sd["rows"] * x) ** 2
                for w, o, x in zip(weights, curvatures, squares, strict=True)
            )
        )
        own = np.arange(r)
        # Curvature changes with the place: in groups that lie alike, alike.
        Z = _standard(
            sum(w * shape.parts(o.psi)[1 + k] for w, o in zip(weights, curvatures, strict=True))
        )
        t, unsure = shrunk_positive(
            rows[:, own, own].mean(axis=1), float(np.linalg.norm(np.diag(sds)) / r), Z
        )
        block, variances = np.zeros_like(rows), np.zeros((groups, r))
        for c in range(r):
            for e in range(c + 1):
                sd = float(sds[c, e]) / (1.0 if c == e else math.sqrt(2))
                x, v = (t, unsure) if r == 1 else shrunk_ratios(rows[:, c, e], t, sd, Z, unsure)
                block[:, c, e] = block[:, e, c] = x
                if c == e:
                    variances[:, c] = v
        block = _possible(block, t)
        s = preconditioner.scales[k]
        blocks.append(block / np.outer(s, s))
        unsure_rows.append(np.ravel(variances / s**4))
        between, doubt = np.zeros((groups, r, p)), np.zeros((groups, r, p))
        for c in range(r):
            for j in range(p):
                x = sum(w * o.cross[k][:, c] @ B[:, j] * a[c]
                        for w, o, B, a in zip(of_common, curvatures, back, ratios, strict=True))  # fmt: skip
                sd = math.sqrt(
                    sum((w * o.sd["cross"] * a[c] * np.linalg.norm(B[:, j])) ** 2
                        for w, o, B, a in zip(of_common, curvatures, back, ratios, strict=True))
                )  # fmt: skip
                between[:, c, j], doubt[:, c, j] = shrunk_ratios(x, t, sd, Z, unsure)
        cross.append(between / s[:, None])
        unsure_cross.append(doubt / s[:, None] ** 2)
        sizes.append(t)
    U, M = _between_rows(curvatures, weights, preconditioner, sizes, blocks, uses)
    of_rows = Structured([b * (1 + _RIDGE) for b in blocks], U, M)
    C = _stacked(cross)
    explained = C.T @ (of_rows.inverse @ C)
    values, vectors = np.linalg.eigh(common)
    floor = max(sd_common * math.sqrt(p), 1e-3 * float(np.trace(common)) / max(p, 1), 1e-300)
    # What noise drowns keeps the coordinates that it had.
    values = np.where(values > floor, values, min(floor, preconditioner.of_common))
    common = (vectors * values) @ vectors.T
    # Noise in C explains more than there is to explain: of C, not of what is known better.
    L = np.linalg.cholesky(common)
    parts = np.linalg.solve(L, np.linalg.solve(L, explained).T)
    values, vectors = np.linalg.eigh((parts + parts.T) / 2)
    less = np.sqrt(np.minimum(1.0, (1 - _LEAST_OWN) / np.maximum(values, 1e-300)))
    less = np.linalg.solve(L.T, (vectors * less) @ vectors.T) @ L.T
    C, own = C @ less, common - less.T @ explained @ less
    cross = [c @ less for c in cross]
    Vi = np.linalg.inv(preconditioner.V)
    return Information(
        preconditioner,
        _joined(Vi.T @ common @ Vi, blocks, C @ Vi, U, M),
        cross,
        unsure_cross,
        np.concatenate(unsure_rows),
        sd_common,
        preconditioner.V @ inverse_root(own),
    )


def _stacked(cross: Sequence[Vector]) -> Vector:
    """The tables' rows one below the other, shape (n - p, p); there may be no φ."""
    return np.concatenate([c.reshape(len(c) * c.shape[1], c.shape[2]) for c in cross])


def _standard(places: Vector) -> Vector:
    """One, the columns with mean 0 and variance 1, and their squares."""
    away = places - places.mean(axis=0)
    away /= away.std(axis=0) + 1e-12
    return np.hstack([np.ones((len(places), 1)), away, away**2])


def _possible(blocks: Vector, t: Vector) -> Vector:
    """Positive definite, with eigenvalues a part of the size at least."""
    values, vectors = np.linalg.eigh(blocks)
    values = np.maximum(values, _LEAST_OWN * t[:, None])
    return np.asarray((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def _between_rows(
    curvatures: Sequence[Curvature],
    weights: Vector,
    preconditioner: Preconditioner,
    sizes: Sequence[Vector],
    blocks: Sequence[Vector],
    uses: Sequence[int],
) -> tuple[Vector, Vector]:
    """What couples the rows that units use, in ψ's rows, as if they met in proportion to their sizes."""
    widths = [block.shape[1] for block in blocks]
    n = sum(len(t) * r for t, r in zip(sizes, widths, strict=True))
    starts = np.cumsum([0, *(len(t) * r for t, r in zip(sizes, widths, strict=True))])
    U, M = np.zeros((n, 0)), np.zeros((0, 0))
    ends = np.cumsum([0, *(widths[k] for k in uses)])
    coupled: dict[tuple[int, int], Vector] = {}
    for i, j in combinations(range(len(uses)), 2):
        a, b = uses[i], uses[j]
        G = sum(
            w
            * o.tables[ends[i] : ends[i + 1], ends[j] : ends[j + 1]]
            / np.outer(o.preconditioner.scales[a], o.preconditioner.scales[b])
            for w, o in zip(weights, curvatures, strict=True)
        )
        coupled[a, b] = coupled.get((a, b), 0.0) + (G if a != b else G + G.T)
    for (a, b), G in coupled.items():
        share = [sizes[k] / sizes[k].sum() for k in (a, b)]
        roots = []
        for k, q in zip((a, b), share, strict=True):
            most = np.linalg.inv(np.einsum("n,nij->ij", q * q, np.linalg.inv(blocks[k])))
            roots.append(inverse_root(most))
        left, values, right = np.linalg.svd(roots[0] @ G @ roots[1])
        kept = np.minimum(values, _TOGETHER if a != b else _ALONE)
        r = len(kept)
        G = np.linalg.inv(roots[0]) @ (left[:, :r] * kept) @ right[:r] @ np.linalg.inv(roots[1])
        u = np.zeros((n, widths[a] + widths[b]))
        for k, q, column in ((a, share[0], 0), (b, share[1], widths[a])):
            u[starts[k] : starts[k + 1], column : column + widths[k]] = np.kron(
                q[:, None], np.eye(widths[k])
            )
        m = np.zeros((u.shape[1],) * 2)
        m[: widths[a], widths[a] :], m[widths[a] :, : widths[a]] = G, G.T
        if a == b:
            u, m = u[:, :r], (G + G.T) / 2
        U = np.hstack([U, u])
        M = np.block([[M, np.zeros((len(M), len(m)))], [np.zeros((len(m), len(M))), m]])
    return U, M


def _joined(common: Vector, blocks: list[Vector], C: Vector, U: Vector, M: Vector) -> Structured:
    """J from its parts, in ψ."""
    p, n = len(common), len(C)
    low = np.zeros((p + n, 2 * p + U.shape[1]))
    low[:p, :p], low[p:, p : 2 * p], low[p:, 2 * p :] = np.eye(p), C, U
    middle = np.zeros((low.shape[1],) * 2)
    middle[:p, p : 2 * p] = middle[p : 2 * p, :p] = np.eye(p)
    middle[2 * p :, 2 * p :] = M
    return Structured([common[None], *blocks], low, middle)


def pooled(
    slopes: Sequence[Slope], information: Information, shape: Shape, n_units: float,
    centre: Vector, mode: Vector, variances: Vector,
) -> GroupLaw:  # fmt: skip
    r"""Gradients as observations of one :math:`J(\psi_* - \psi_0)`, each with its own doubts.

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
    mode, variances : ndarray, shape (n,)
        Where ψ is thought to be, and how sure that is.
    """
    p, J = shape.p, information.J
    Vi = np.linalg.inv(information.preconditioner.V)
    own = np.maximum(J.diagonal[p:], 0.0)
    per_unit = np.concatenate([
        np.tile(rows.reshape(-1, r).sum(axis=0) / n_units, len(rows) // r)
        for rows, r in ((np.ravel(J.diagonal[a:b]), r) for a, b, r in _spans(shape))
    ])  # fmt: skip
    C = _stacked(information.cross)
    doubt = _stacked(information.unsure_cross)

    def bent(squares: Vector) -> tuple[Vector, Vector]:
        """By third derivatives: covariance in φ, variances in rows."""
        v = squares[p:]
        change = _of_rows(per_unit * v, shape)
        in_common = (C**2 / 4).T @ (change * v)
        return Vi.T @ np.diag(in_common) @ Vi, change * v * own**2 / 4

    def unsure(squares: Vector, common: Vector) -> tuple[Vector, Vector]:
        """By what is not known of J."""
        v, x = squares[p:], np.diag(common)
        by_common = information.sd_common**2 / 2 * (np.trace(common) * np.eye(p) + common)
        in_common = Vi.T @ (by_common + np.diag(doubt.T @ v)) @ Vi
        return in_common, information.unsure_rows * v + doubt @ x

    def far(psi: Vector) -> tuple[Vector, Vector]:
        """Expected squares of ψ* - psi, of all entries, and the matrix of φ's in the preconditioner."""
        away = mode - psi
        x = Vi @ away[:p]
        spread = Vi @ np.diag(variances[:p]) @ Vi.T
        return away**2 + variances, np.outer(x, x) + spread

    Q, q, rhs, noise = [], [], [], []
    for slope in slopes:
        squares, common = far(slope.psi)
        (bent_common, bent_rows), (unsure_common, unsure_rows) = (
            bent(squares),
            unsure(squares, common),
        )
        noise.append((slope.covariance + bent_common, slope.variance + bent_rows))
        Q.append(np.linalg.inv(noise[-1][0] + unsure_common))
        q.append(1 / (noise[-1][1] + unsure_rows))
        rhs.append(slope.gradient + J @ (slope.psi - centre))
    total, sums = np.linalg.inv(sum(Q)), sum(q)
    B, b = [total @ one for one in Q], [one / sums for one in q]
    beta = np.concatenate([
        sum(W @ x[:p] for W, x in zip(B, rhs, strict=True)) if p else np.zeros(0),
        sum(w * x[p:] for w, x in zip(b, rhs, strict=True)),
    ])  # fmt: skip
    S_common = sum(W @ cov @ W.T for W, (cov, _) in zip(B, noise, strict=True))
    S_rows = sum(w**2 * var for w, (_, var) in zip(b, noise, strict=True))
    # Where the evaluations were, as each part weighs them.
    at_common = sum(np.trace(W) / max(p, 1) * s.psi for W, s in zip(B, slopes, strict=True))
    at_rows = np.concatenate([
        sum(W.T @ s.psi[:p] for W, s in zip(B, slopes, strict=True)) if p else np.zeros(0),
        sum(w * s.psi[p:] for w, s in zip(b, slopes, strict=True)),
    ])  # fmt: skip
    if p:
        S_common = S_common + unsure(*far(at_common))[0]
    S_rows = S_rows + unsure(*far(at_rows))[1]
    return GroupLaw(centre, beta, J, _blocks(S_common, S_rows, shape))


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
