"""Curvatures that were seen at different places and in different coordinates, in those of the last."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.shape import Shape
from pymc_dp.linalg import Vector
from pymc_dp.records.grouped import Preconditioner
from pymc_dp.surrogate.hierarchical.evaluation import Curvature, flat


class Seen(NamedTuple):
    """A curvature in the last one's coordinates.

    Of rows, tables one after the other: what couples them with φ, as it was seen and moved to where its sums times features are what they
    were seen to be, with G as in :func:`~pymc_dp.surrogate.hierarchical.shrinkage.shrunk_ratios`.
    """

    psi: list[Vector]
    features: tuple[Vector, ...]
    common: Vector
    sd_common: float
    stretched: float
    precision_common: float
    rows: list[Vector]
    sd_rows: list[Vector]
    precision_rows: float
    cross: list[Vector]
    best: Vector
    sd_cross: list[Vector]
    raw_sd_cross: float
    G: list[list[Vector]]
    sums: list[Vector]
    sd_sums: list[Vector]
    between: dict[tuple[int, int], Vector]
    R: Vector

    @classmethod
    def of(cls, o: Curvature, last: Preconditioner, shape: Shape) -> "Seen":
        """Change its coordinates."""
        p, was, sd, where = shape.p, o.preconditioner, o.sd, places(o, shape)
        B = np.linalg.solve(was.V, last.V)
        ratios = [new / old for new, old in zip(last.scales, was.scales, strict=True)]
        lengths, stretched = np.linalg.norm(B, axis=0), np.linalg.norm(B, 2) if p else 1.0
        sums, best = [], []
        G: list[list[Vector]] = []
        for k, (x, f) in enumerate(zip(o.cross, o.features, strict=True)):
            _, r, m = f.shape
            of_uses = sum(
                o.shared[:p, i] for i, use in zip(where, shape.uses, strict=True) if use == k
            )
            of_each = np.reshape(of_uses, (p, r, m)).transpose(1, 2, 0)
            noise = shape.uses.count(k) * (sd["shared"] / sd["cross"]) ** 2 / 2
            squares = [f[:, c].T @ f[:, c] + noise * np.eye(m) for c in range(r)]
            G.append([np.asarray(np.linalg.inv(x)) for x in squares])
            moved = [f[:, c] @ (G[k][c] @ (of_each[c] - f[:, c].T @ x[:, c])) for c in range(r)]
            moved_rows = (x + np.stack(moved, axis=1)) @ B * ratios[k][:, None]
            best.append(moved_rows.reshape(len(x) * r, p))
            sums.append(of_each @ B * ratios[k][:, None, None])
        between: dict[tuple[int, int], Vector] = {}
        for i, j in combinations(range(len(shape.uses)), 2):
            a, b = shape.uses[i], shape.uses[j]
            first = [where[n][:: o.features[k].shape[2]] for n, k in ((i, a), (j, b))]
            x = o.shared[np.ix_(*first)] * np.outer(ratios[a], ratios[b])
            between[a, b] = between.get((a, b), 0.0) + (x if a != b else x + x.T)
        return cls(
            shape.parts(o.psi)[1:],
            o.features,
            B.T @ o.common @ B,
            sd["common"] * float(np.trace(B.T @ B)) / max(p, 1),
            float(stretched),
            # An answer in coordinates that were far too narrow says next to nothing of φ, however much it says of rows.
            (sd["common"] * float(stretched) ** 2) ** -2.0,
            [x * np.outer(y, y) for x, y in zip(_with_totals(o, where, shape), ratios, strict=True)],
            [sd["rows"] * np.outer(y, y) for y in ratios],
            (sd["rows"] * float(np.mean(np.concatenate(ratios) ** 2))) ** -2.0,
            [x @ B * y[:, None] for x, y in zip(o.cross, ratios, strict=True)],
            np.concatenate(best),
            [sd["cross"] * np.outer(y, lengths) for y in ratios],
            sd["cross"],
            G,
            sums,
            [sd["shared"] * math.sqrt(shape.uses.count(k) / 2) * np.outer(y, lengths) for k, y in enumerate(ratios)],
            between,
            (flat(was.R, shape)[p:] @ last.V) / last.of_rows(shape)[:, None],
        )  # fmt: skip


def _with_totals(o: Curvature, where: Sequence[NDArray[np.int64]], shape: Shape) -> list[Vector]:
    """Rows' blocks, all of a table moved alike to where they add up to what is seen of it in all, where noise of many does not."""
    found = []
    for k, (x, f) in enumerate(zip(o.rows, o.features, strict=True)):
        first = [i[:: f.shape[2]] for i, use in zip(where, shape.uses, strict=True) if use == k]
        constant = f[0, :, 0]
        total = sum(o.shared[np.ix_(i, i)] for i in first) / np.outer(constant, constant)
        noise = len(first) * (o.sd["shared"] / o.sd["rows"]) ** 2
        found.append(x + (total - x.sum(axis=0)) / (len(x) + noise))
    return found


def places(o: Curvature, shape: Shape) -> list[NDArray[np.int64]]:
    """Where the parts of every use are in what is shared: of columns, one after the other, the features."""
    widths = [math.prod(o.features[k].shape[1:]) for k in shape.uses]
    ends = shape.p + np.cumsum([0, *widths])
    return [np.arange(a, b) for a, b in pairwise(ends)]


def by_common(seen: Sequence[Seen]) -> Vector:
    """Weights that make noise in φ's block least."""
    weights = np.array([o.precision_common for o in seen])
    return np.asarray(weights / weights.sum())


def by_rows(seen: Sequence[Seen]) -> Vector:
    """Weights that make noise in rows least."""
    weights = np.array([o.precision_rows for o in seen])
    return np.asarray(weights / weights.sum())


def mean_of(weights: Vector, values: Sequence[Vector]) -> Vector:
    """With weights that add up to 1."""
    return np.asarray(sum(w * x for w, x in zip(weights, values, strict=True)))


def sd_of(weights: Vector, sds: Sequence[Vector]) -> Vector:
    """Of the mean of independent ones with these."""
    return np.asarray(np.sqrt(sum((w * x) ** 2 for w, x in zip(weights, sds, strict=True))))


def features_of(at: Vector, believed: Vector) -> Vector:
    """Of every number of rows, what others may hang together with: 1, what it is believed to be, and how far from that it is, shape (groups, columns, 3)."""
    parts = [standard(x)[:, 1 : 1 + x.shape[1]] for x in (believed, at - believed)]
    return np.stack([np.ones_like(believed), *parts], axis=2)


def standard(places: Vector) -> Vector:
    """One, the columns with mean 0 and variance 1, and their squares."""
    away = places - places.mean(axis=0)
    away /= away.std(axis=0) + 1e-12
    return np.hstack([np.ones((len(places), 1)), away, away**2])
