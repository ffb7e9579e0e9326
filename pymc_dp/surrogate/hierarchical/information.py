"""What noisy curvatures of groups say together of the information: of what all share once rows are known, and of every row."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.linalg import Vector, inverse_root
from pymc_dp.records.grouped import Preconditioner
from pymc_dp.surrogate.hierarchical.evaluation import Curvature
from pymc_dp.surrogate.hierarchical.seen import (
    Seen,
    by_common,
    by_rows,
    features_of,
    mean_of,
    sd_of,
    standard,
)
from pymc_dp.surrogate.hierarchical.shrinkage import Sums, shrunk_positive, shrunk_ratios
from pymc_dp.surrogate.hierarchical.structured import Structured

_LEAST_OWN = 0.05
"""Of a row's size, its least eigenvalue; of what is known of φ, the part that rows do not explain, at least."""
_LEAST_SDS = 2.0
"""Nor is that less than so many sds of its noise. Where noise made nearly nothing of it, coordinates were stretched for it, and the next query's noise was larger by that: searches went
astray from there. With 0, 1, 2 and 4, 90 % of common errors of 50 players' games at ε = 1 are below 16.4, 1.1, 1.0 and 1.3 posterior sds (ten data sets), those of 160 schools' pupils below 15.2,
5.7, 5.6 and 6.1 (16 runs, of which 14 are usable with 0, and all with the others), and intervals of these hold .74, .80, .82 and .81 of the exact posterior."""
_ALL = 2.0
"""Half of φ's information may be in rows, and is taken off; of more, less is."""
_TOGETHER = 1 - 1e-5
"""Two tables, or a table's two rows of a pair, never determine each other quite, but nearly: what all of one have more and all of another less, and how good
all players are together, only the prior knows. With .98 the law of 50,000 records knew 1,000 records' worth of it: the sd of 25 effects' mean, of a second factor, was .048 without noise, .080 by 500 draws of NUTS, and is
.107 now; that of 50 players' mean .082 (.071); one data set each, on no page."""
_RIDGE = 0.02
"""Of a row's block, added where what rows tell of φ is solved for: of games no row alone tells of all together. With .001 errors of 50 players were
four times as large at ε = 1, of four runs."""
_LEAST_LEVEL = 0.1
"""Of a table's information at a place, beside that of all: where noise hides it, it is not taken for less."""


class Information(NamedTuple):
    r"""Evaluations' curvatures put together, and how sure they are.

    Parameters
    ----------
    preconditioner : Preconditioner
        Its V is that of the noise in φ.
    J : Structured
        In :math:`(\varphi, \alpha + R\varphi)`: nothing couples φ with rows there, as far as is known.
    R : ndarray, shape (n, p)
        What rows' scores tell of φ's, 0 in φ's rows.
    Q : ndarray, shape (n, p)
        As much of that as the next queries are to take off: none where rows tell all, as of what is the same in all of a group.
    unsure_cross : ndarray, shape (n - p, p)
        Variances of what couples rows with φ.
    slope, unsure_slope : ndarray, shape (n - p, p)
        How what is not known of that changes with the row's place, and the sd of this, for a column of a table all in one.
    unsure_rows : ndarray, shape (n - p,)
        Variances of the diagonal of the rows' blocks.
    sd_common : float
        Of φ's block, in the preconditioner.
    drowned : bool
        Whether noise hides what is known of φ in any direction.
    """

    preconditioner: Preconditioner
    J: Structured
    R: Vector
    Q: Vector
    unsure_cross: Vector
    slope: Vector
    unsure_slope: Vector
    unsure_rows: Vector
    sd_common: float
    drowned: bool


def informed(
    curvatures: Sequence[Curvature], shape: Shape, believed: Vector, variances: Vector, coupled: Sequence[Vector],
) -> Information:  # fmt: skip
    r"""Curvatures averaged with their noise in mind, shrunk where noise is most of them, and made possible.

    Of a row's block and of what couples it with φ, as much is expected as its size times what rows at such a
    place have in common; how far rows differ from that is estimated, too.

    A covariate's mean in a group may hang together with the group's effect, as models of groups do not say and data often have it. Then
    what is not known of :math:`C_k = E[a x^\top]` has a mean once :math:`\alpha_k` is given: :math:`t_k \beta\,(\alpha_k -
    \hat\alpha_k)`, with β the slope of :math:`C_k / t_k` in what is believed of :math:`\alpha_k`. As that is a posterior mean, noise in it
    does not make β smaller. Where curvatures were asked for is in the regression, too: what the place alone changes is not β.

    Parameters
    ----------
    curvatures : sequence of Curvature
    shape : Shape
    believed, variances : ndarray, shape (n,)
        Posterior means and variances of ψ.
    coupled : sequence of ndarray, shape (columns, p)
        Of every table: how nearly its scores and φ's are one and the same.
    """
    last, p = curvatures[-1].preconditioner, shape.p
    seen = [Seen.of(o, last, shape) for o in curvatures]
    tables = [_Table.of(seen, k, r) for k, (_, r) in enumerate(shape.tables)]
    U, M = _between_rows(seen, tables, shape)
    of_rows = Structured([t.blocks * (1 + _RIDGE) for t in tables], U, M)
    level = [
        np.concatenate([np.tile(t.levels[e], len(t.sizes)) for t in tables])
        for e in range(len(seen))
    ]
    total = _all(seen, of_rows, level, np.zeros_like(seen[0].R))
    values, vectors = np.linalg.eigh((total + total.T) / 2)
    sd_total = float(sd_of(by_common(seen), [np.array(o.sd_common) for o in seen]))
    floor = max(sd_total * math.sqrt(p), 1e-3 * float(np.trace(total)) / max(p, 1), 1e-300)
    drowned = bool((values <= floor).any())
    # What noise drowns keeps the coordinates that it had.
    values = np.where(values > floor, values, min(floor, last.of_common))
    L, Vi = np.linalg.cholesky((vectors * values) @ vectors.T), np.linalg.inv(last.V)
    of_each = np.linalg.norm(L.T @ Vi, axis=0)
    # What rows tell of φ's score is no longer than that is: by Cauchy and Schwarz, of sums over groups.
    most = [
        (x * of_each) @ np.abs(last.V) / math.sqrt(t.sizes.sum())
        for x, t in zip(coupled, tables, strict=True)
    ]
    cross = _coupled(seen, tables, of_rows, most, shape, believed, variances)
    known = mean_of(by_common(seen), [
        o.best / y[:, None] + of_rows @ o.R for o, y in zip(seen, level, strict=True)
    ])  # fmt: skip
    R, part, least = _explained(cross, known, of_rows, L)
    own, sd_common = _left(seen, of_rows, level, R, 2 * part * cross.of_noise(of_rows), L, shape)
    s = last.of_rows(shape)
    of_psi = [t.blocks / np.outer(x, x) for t, x in zip(tables, last.scales, strict=True)]
    own_psi, R_psi = Vi.T @ own @ Vi, np.vstack([np.zeros((p, p)), (R * s[:, None]) @ Vi])
    fraction = 1 - np.diag(own_psi) / of_each**2
    return Information(
        last,
        Structured([own_psi[None], *of_psi], np.vstack([np.zeros((p, U.shape[1])), U / s[:, None]]), M),
        R_psi,
        R_psi * np.clip(_ALL * (1 - fraction), 0.0, 1.0),
        cross.doubts * least / s[:, None] ** 2,
        cross.slopes * part / s[:, None],
        cross.unsure_slopes * least / s[:, None],
        np.concatenate([np.ravel(t.unsure_blocks) for t in tables]) / s**4,
        sd_common,
        drowned,
    )  # fmt: skip


class _Table(NamedTuple):
    """What all curvatures say of a table's rows.

    A table's information changes with the place; what it tells of φ's score for each part of it does so less. Levels are every curvature's.
    """

    blocks: Vector
    unsure_blocks: Vector
    sizes: Vector
    unsure_sizes: Vector
    levels: list[Vector]

    @classmethod
    def of(cls, seen: Sequence[Seen], k: int, r: int) -> "_Table":
        """Average, shrink, and make possible."""
        weights, own = by_rows(seen), np.arange(r)
        rows = mean_of(weights, [o.rows[k] for o in seen])
        sds = sd_of(weights, [o.sd_rows[k] for o in seen])
        # Curvature changes with the place: in groups that lie alike, alike.
        Z = standard(mean_of(weights, [o.psi[k] for o in seen]))
        t, unsure = shrunk_positive(
            rows[:, own, own].mean(axis=1), float(np.linalg.norm(np.diag(sds)) / r), Z
        )
        blocks, unsure_blocks = np.zeros_like(rows), np.zeros((len(t), r))
        for c in range(r):
            for e in range(c + 1):
                sd = float(sds[c, e]) / (1.0 if c == e else math.sqrt(2))
                x, v = t, unsure
                if r > 1:
                    x, v, *_ = shrunk_ratios(rows[:, c, e], t, sd, Z, r, unsure)
                blocks[:, c, e] = blocks[:, e, c] = x
                if c == e:
                    unsure_blocks[:, c] = v
        whole = np.maximum(blocks[:, own, own].sum(axis=0), 1e-300)
        levels = [level_of(o.rows[k][:, own, own], whole) for o in seen]
        return cls(_possible(blocks, t), unsure_blocks, t, unsure, levels)


def level_of(rows: Vector, whole: Vector) -> Vector:
    """Information of a table at a place, beside that of all places, shape (columns,), of the diagonals of its rows' blocks, shape (groups, columns)."""
    return np.asarray(np.maximum(rows.sum(axis=0) / whole, _LEAST_LEVEL))


def _all(seen: Sequence[Seen], of_rows: Structured, level: Sequence[Vector], R: Vector) -> Vector:
    """Of φ's score less R times that of rows, on average: with R = 0 all that is known of φ if rows were."""
    found = []
    for o, y in zip(seen, level, strict=True):
        D = o.R - R
        X = D.T @ o.best
        found.append(o.common + X + X.T + (D * y[:, None]).T @ (of_rows @ D))
    return mean_of(by_common(seen), found)


class _Cross(NamedTuple):
    """What couples rows with φ: means, variances, slopes in effects, and noise, taken for something and in all, shape (rows, p)."""

    means: Vector
    doubts: Vector
    slopes: Vector
    unsure_slopes: Vector
    taken: Vector
    noises: Vector

    def of_noise(self, of_rows: Structured) -> Vector:
        """Noise in what rows seem to explain, shape (p,)."""
        return _explains(self.taken, of_rows)


def _explains(variances: Vector, of_rows: Structured) -> Vector:
    return np.asarray(np.sum(variances / np.maximum(of_rows.diagonal, 1e-300)[:, None], axis=0))


def _coupled(
    seen: Sequence[Seen], tables: Sequence[_Table], of_rows: Structured, most: Sequence[Vector], shape: Shape,
    believed: Vector, variances: Vector,
) -> _Cross:  # fmt: skip
    """What couples rows with φ, in all: also what was taken off before it was seen."""
    weights, of_R = by_common(seen), [of_rows @ o.R for o in seen]
    cross = _Cross(*(np.zeros_like(seen[0].R) for _ in _Cross._fields))
    start = 0
    for k, (groups, r) in enumerate(shape.tables):
        t, mean, sure = tables[k], shape.parts(believed)[1 + k], shape.parts(variances)[1 + k]
        at = mean_of(by_rows(seen), [o.psi[k] for o in seen])
        for c in range(r):
            here = slice(start + c, start + groups * r, r)
            spreads = [x[:, c].std() + 1e-12 for x in (mean, at - mean)]
            Z = features_of(at, mean)[:, c]
            # What believed effects tell is what effects tell: of these, they are a part.
            less = 1 + float(sure[:, c].mean()) / spreads[0] ** 2
            contrast = np.array([0, 1, -1]) / [1, *spreads]
            F = np.hstack([o.features[k][:, c] for o in seen])
            for j in range(shape.p):
                own = [
                    (o.cross[k][:, c, j], o.sd_cross[k][c, j], y[c])
                    for o, y in zip(seen, t.levels, strict=True)
                ]
                x = mean_of(
                    weights, [x / y + z[here, j] for (x, _, y), z in zip(own, of_R, strict=True)]
                )
                sd = float(sd_of(weights, [np.array(sd / y) for _, sd, y in own]))
                sums = Sums(
                    F,
                    np.concatenate([
                        o.sums[k][c][:, j] / y[c] + o.features[k][:, c].T @ z[here, j]
                        for o, y, z in zip(seen, t.levels, of_R, strict=True)
                    ]),
                    np.concatenate([
                        np.full(o.features[k].shape[2], (o.sd_sums[k][c, j] / y[c]) ** 2)
                        for o, y in zip(seen, t.levels, strict=True)
                    ]),
                )  # fmt: skip
                found = shrunk_ratios(
                    x, t.sizes, sd, Z, most[k][c, j], t.unsure_sizes, sums, contrast, less
                )
                cross.means[here, j], cross.doubts[here, j] = found.mean, found.variance
                cross.slopes[here, j], cross.unsure_slopes[here, j] = found.slope, found.unsure
                cross.taken[here, j], cross.noises[here, j] = found.noise, sd**2
        start += groups * r
    return cross


def _explained(
    cross: _Cross, known: Vector, of_rows: Structured, L: Vector
) -> tuple[Vector, Vector, Vector]:
    """What rows tell of φ's score, the part of what they seem to tell that it is, and that of doubts that is left, shape (p,).

    Of all that they seem to tell, noise tells a part; where no more is seen than noise alone would show, it is all.
    """
    R = of_rows.inverse @ cross.means
    by_chance = math.sqrt(2 / max(len(R), 1))
    of_seen = np.sum(R * known, axis=0) - (1 + by_chance) * cross.of_noise(of_rows)
    of_all = np.sum(R * (of_rows @ R), axis=0)
    part = np.clip(of_seen / np.maximum(of_all, 1e-300), 0.0, 1.0)
    R = R * part
    values, vectors = _beside(L, R.T @ (of_rows @ R))
    less = np.sqrt(np.minimum(1.0, (1 - _LEAST_OWN) / np.maximum(values, 1e-300)))
    R = R @ (np.linalg.solve(L.T, (vectors * less) @ vectors.T) @ L.T)
    hidden = 2 * by_chance * _explains(cross.noises, of_rows)
    hidden /= np.maximum(_explains(cross.doubts, of_rows), 1e-300)
    return R, part, np.clip(hidden, part, 1.0)


def _left(
    seen: Sequence[Seen], of_rows: Structured, level: Sequence[Vector], R: Vector, of_noise: Vector, L: Vector, shape: Shape,
) -> tuple[Vector, float]:  # fmt: skip
    """What is known of φ once rows are, and its noise's sd: noise in C that R has taken for something is no less of it."""
    left = _all(seen, of_rows, level, R) + np.diag(of_noise)
    sds = []
    for o in seen:
        along, start, D = 0.0, 0, o.R - R
        for k, (groups, r) in enumerate(shape.tables):
            for c in range(r):
                x = o.features[k][:, c].T @ D[start + c : start + groups * r : r]
                along += float(np.sum(x * (o.G[k][c] @ x)))
            start += groups * r
        of_D = 4 * (o.raw_sd_cross * o.stretched) ** 2 * (float(np.sum(D**2)) - along)
        sds.append(np.sqrt(o.sd_common**2 + of_D / max(shape.p, 1)))
    # Neither is it more than all, nor nothing.
    values, vectors = _beside(L, left)
    sd = float(sd_of(by_common(seen), sds))
    # Noise in uᵀNu has an sd of |u|² of these, as entries off the diagonal have √½ of it.
    noise = sd * np.sum(np.linalg.solve(L.T, vectors) ** 2, axis=0)
    values = np.clip(values, np.clip(_LEAST_SDS * noise, _LEAST_OWN, 1.0), 1.0)
    return (L @ (vectors * values)) @ (L @ vectors).T, sd


def _beside(L: Vector, A: Vector) -> tuple[Vector, Vector]:
    """Eigenvalues and eigenvectors of a symmetric matrix in coordinates in which L Lᵀ is the identity."""
    parts = np.linalg.solve(L, np.linalg.solve(L, A).T)
    values, vectors = np.linalg.eigh((parts + parts.T) / 2)
    return values, vectors


def _possible(blocks: Vector, t: Vector) -> Vector:
    """Positive definite, with eigenvalues a part of the size at least."""
    values, vectors = np.linalg.eigh(blocks)
    values = np.maximum(values, _LEAST_OWN * t[:, None])
    return np.asarray((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def _between_rows(
    seen: Sequence[Seen], tables: Sequence[_Table], shape: Shape
) -> tuple[Vector, Vector]:
    """What couples the rows that units use, as if they met in proportion to their sizes."""
    widths, weights = [r for _, r in shape.tables], by_rows(seen)
    n = shape.n - shape.p
    starts = np.cumsum([0, *(g * r for g, r in shape.tables)])
    U, M = np.zeros((n, 0)), np.zeros((0, 0))
    for a, b in seen[0].between:
        G = mean_of(weights, [o.between[a, b] for o in seen])
        share = [tables[k].sizes / tables[k].sizes.sum() for k in (a, b)]
        roots = []
        for k, q in zip((a, b), share, strict=True):
            most = np.linalg.inv(np.einsum("n,nij->ij", q * q, np.linalg.inv(tables[k].blocks)))
            roots.append(inverse_root(most))
        left, values, right = np.linalg.svd(roots[0] @ G @ roots[1])
        kept = np.minimum(values, _TOGETHER)
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
