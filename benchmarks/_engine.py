r"""A surrogate engine in one loop: an experiment, not the package's.

Each query at a place θ, in a frame V in which the posterior is about white, asks for two histograms of sizes, which choose
the bounds; for the sum of clipped scores, each less its own expectation under the model,
:math:`\operatorname{clip}_b(z) - E[\operatorname{clip}_b(z)]`; and for the information :math:`E[z z^\top]` and what the
clipped scores keep of it, :math:`E[\operatorname{clip}_b(z) z^\top]`. As :math:`E[z] = 0`, the expectation is the covariance of
z with the factor that clips it: with that, eight outcomes do.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_dp.anchor.law import Law, posterior_of
from pymc_dp.linalg import as_matrix, as_vectors, norms, power, shrink

EDGES = np.exp2(np.arange(181) / 2 - 60)


@dataclass(frozen=True)
class Settings:
    """What the sweep of ``benchmarks/engine.py`` varies. Shares are of the budget."""

    beyond: float = 6.0
    """So many times √d/μ records are clipped: there noise and bias balance. 3 or 12: errors 1.1 times as large."""
    beyond_information: float = 1.0
    """The same of information, whose clipping bias is all in one direction. 3: 1.02 times."""
    first: float = 0.01
    """For the units of parameters, at the start."""
    shares: tuple[float, float] = (0.005, 0.03)
    """Range of a query's on the way. Up to .06: 1.4 times."""
    search: float = 0.4
    """Of all queries on the way."""
    parts: tuple[float, float, float] = (0.2, 0.5, 0.3)
    """Of sizes, scores, information in them. (.3, .4, .3), (.2, .3, .5): 1.1, 1.0 times."""
    last_parts: tuple[float, float, float] = (0.05, 0.83, 0.12)
    trust: float = 0.2
    """A far gradient is believed to this part of its length. .4: 1.1 times."""
    radius: float = 4.0
    """Nats by which a step may change a record's log-likelihood at first."""
    least: float = 0.05
    """A query may widen the frame by the inverse root of this."""


@dataclass(frozen=True, eq=False)
class Score:
    """Clipped scores in a frame, less their expectations."""

    theta: Any
    V: Any
    bound: float

    def terms(self, records, units=None):
        for g, s, w in records.scores(self.theta):
            z = g @ self.V
            psi = np.where(np.isfinite(z), z, 0.0) * shrink(norms(z), self.bound)[:, None]
            if s is not None:
                zs = s @ self.V
                f = factors(zs, self.bound)
                f = f - (f * w).sum(axis=0)
                psi -= np.einsum("kn,knd->nd", f * w, np.where(np.isfinite(zs), zs, 0.0))
            yield psi


@dataclass(frozen=True, eq=False)
class Information:
    """Information of a unit's score, and what the clipped score keeps of it, as one vector."""

    theta: Any
    V: Any
    bound: float
    acute = True

    def terms(self, records, units=None):
        for g, s, w in records.scores(self.theta):
            z, w = (g[None] @ self.V, np.ones((1, len(g)))) if s is None else (s @ self.V, w)
            f = factors(z, self.bound)
            z = np.where(np.isfinite(z), z, 0.0)
            left, right = z.transpose(1, 2, 0), z.transpose(1, 0, 2)
            both = [as_vectors((left * v.T[:, None, :]) @ right) for v in (w, w * f)]
            yield np.concatenate(both, axis=1)


@dataclass(frozen=True, eq=False)
class Entry:
    """One coordinate of a score."""

    theta: Any
    k: int

    def terms(self, records, units=None):
        for g in records.gradients(self.theta):
            yield g[:, self.k]


@dataclass(frozen=True, eq=False)
class Length:
    """Norms of another query's terms, or of plain scores in a frame."""

    of: Any

    def terms(self, records, units=None):
        for chunk in self.of.terms(records):
            yield norms(chunk)


@dataclass(frozen=True, eq=False)
class Plain:
    """Scores in a frame."""

    theta: Any
    V: Any

    def terms(self, records, units=None):
        for g in records.gradients(self.theta):
            yield g @ self.V


def factors(z, bound):
    """What clips outcomes' scores, shape (outcomes, units); 0 for what is not finite."""
    r = np.linalg.norm(z, axis=2)
    return np.where(np.isfinite(r), np.minimum(1.0, bound / np.maximum(r, 1e-300)), 0.0)


@dataclass
class Query:
    """What was asked at a place, and what it says."""

    theta: Any
    V: Any
    bound: float = 0.0
    top: float = 0.0
    score: Any = None
    noise: float = 0.0
    sd: float = 0.0
    information: Any = None
    kept: Any = None
    a: float = 0.0
    pooled_a: float = 0.0
    sizes: Any = None
    information_sizes: Any = None
    gradient: Any = None
    S: Any = None
    P: Any = None
    B: Any = None
    t1: float = 0.0
    resolved: bool = False


@dataclass
class Found:
    """Where a run ended. `surprise`: of the last query, in sds of what was predicted."""

    posterior: Any
    surprise: float
    arrived: bool
    queries: list = field(default_factory=list)


def symmetric(A):
    return (A + A.T) / 2


def inverse_root(A):
    """Of a positive definite matrix whose rows may have any units."""
    D = 1 / np.sqrt(np.maximum(np.diag(A), 1e-300))
    values, U = np.linalg.eigh(symmetric(A) * D[:, None] * D)
    return D[:, None] * ((U / np.sqrt(np.maximum(values, 1e-14))) @ U.T)


def root_trace(M):
    return math.sqrt(max(float(np.trace(M)), 0.0))


def pooled_counts(histograms):
    w = np.array([sd**-2 for _, sd in histograms])
    return sum(c * v for (c, _), v in zip(histograms, w, strict=True)) / w.sum(), w.sum() ** -0.5


def bound_of(counts, sd, beyond, decay=2**0.75):
    """The size that `beyond` records exceed, and their mean relative excess.

    Counts are taken as they are up to the last bin that stands out of the noise, alone or with its neighbours; past it they
    fall by `decay` a bin at least.
    """
    counts = counts.copy()
    counts[0] = 0
    top = int(np.argmax(counts))
    counts = counts[: max(top + 2, int(np.searchsorted(EDGES, 1.5)))]
    last, cumulative = top, np.concatenate([[0], np.cumsum(counts)])
    for w in (1, 2, 3, 4):
        big = np.flatnonzero(cumulative[w:] - cumulative[:-w] > 4.0 * sd * math.sqrt(w))
        last = max(last, int(big[-1])) if len(big) else last
    blocks = []
    for k, v in enumerate(counts[last:]):
        blocks.append([v * decay**k, decay ** (-2 * k), 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            p, q = blocks.pop(), blocks.pop()
            blocks.append([(p[0] * p[1] + q[0] * q[1]) / (p[1] + q[1]), p[1] + q[1], p[2] + q[2]])
    tail = np.concatenate([[max(v, 0)] * k for v, _, k in blocks])
    tail = tail * decay ** -np.arange(len(counts) - last)
    c = np.concatenate([counts[: last + 1], tail[1:]])
    above, k = np.cumsum(c[::-1])[::-1], len(c) - 1
    while k > 0 and above[k] < beyond:
        k -= 1
    part = float(np.clip((above[k] - beyond) / max(c[k], 1e-9), 0, 1))
    b, middle = EDGES[k] * 2 ** (part / 2), EDGES[: len(c)] * 2**0.25
    excess = np.sum(np.maximum(c[k + 1 :], 0) * (middle[k + 1 :] / b - 1))
    excess += max(c[k], 0) * (1 - part) * 0.5 * (EDGES[k] * math.sqrt(2) / b - 1)
    return b, min(excess / max(beyond, 1e-9), 1.0)


def scales_of(m, theta, share):
    """Root mean squares of the scores' coordinates, 0 where nothing stands out: which units parameters have."""
    found = []
    for k in range(len(theta)):
        c, sd = m.counts(Entry(theta, k), share / len(theta))
        c = c.copy()
        c[:20] = 0
        seen = c > 3.5 * sd
        if not seen.any():
            cumulative, best = np.concatenate([[0], np.cumsum(c)]), 4.0
            for w in (2, 3, 4, 6, 8):
                z = (cumulative[w:] - cumulative[:-w]) / (sd * math.sqrt(w))
                if z.max() > best:
                    best, seen = z.max(), np.zeros(len(c), bool)
                    seen[int(np.argmax(z)) : int(np.argmax(z)) + w] = True
        squares = np.sum((c * EDGES[:-1] ** 2 * math.sqrt(2))[seen])
        found.append(math.sqrt(max(squares, 0.0) / m.n_units))
    return np.array(found)


def ask(m, theta, V, share, parts, s, before):
    """One query."""
    d, n = len(theta), m.n_units
    of_sizes, of_score, of_information = (share * part for part in parts)
    q = Query(theta, V)

    def number(beyond, part):
        return min(beyond * math.sqrt(d) / (m.mu * math.sqrt(part)), n / 3)

    many = number(s.beyond, of_score)
    seen = [before.sizes] if before else []
    q.sizes = pooled_counts([*seen, m.counts(Length(Plain(theta, V)), 0.6 * of_sizes)])
    q.bound, excess = bound_of(*q.sizes, many)
    q.score, q.noise = m.sum(Score(theta, V, q.bound), q.bound, of_score)
    q.sd = math.hypot(q.noise, 0.3 * many * excess * q.bound / math.sqrt(d))
    of = Information(theta, V, q.bound)
    seen = [before.information_sizes] if before else []
    q.information_sizes = pooled_counts([*seen, m.counts(Length(of), 0.4 * of_sizes)])
    q.top, _ = bound_of(*q.information_sizes, number(s.beyond_information, of_information))
    # Wider, noise would drown all directions but one; clipped, the next frame shows more of it.
    C = min(q.top, math.sqrt(2 / d) / m.noise_sd(1.0, of_information))
    packed, q.a = m.sum(of, C, of_information)
    half = d * (d + 1) // 2
    q.information, q.kept = as_matrix(packed[:half], d), as_matrix(packed[half:], d)
    return q


def pooled_information(queries, theta, V, n):
    """In frame V at θ: mean of what queries have measured, and the noise in it. It changes by √(2/n) over an sd."""
    d = len(theta)
    total, weight, noise = 0.0, 0.0, 0.0
    for q in queries:
        M = np.linalg.solve(q.V, V)
        H, sd = M.T @ q.information @ M, q.a * np.linalg.norm(M) ** 2 / d
        far = min(float(u @ u) for u in (np.linalg.solve(W, theta - q.theta) for W in (V, q.V)))
        change = 2 * far / n * max(1.0, np.linalg.norm(H) ** 2 / d)
        w = 1 / (sd**2 + change + 1e-12)
        total, weight, noise = total + w * H, weight + w, noise + (w * sd) ** 2
    return symmetric(total / weight), math.sqrt(noise) / weight


def believe(q, queries, prior, n, s, last):
    """The gradient that a query tells of, as if nothing had been clipped, and the precision there."""
    d, V, inverse = len(q.theta), q.V, np.linalg.inv(q.V)
    lam = V.T @ -prior.hessian(q.theta) @ V
    J, q.pooled_a = pooled_information(queries, q.theta, V, n)
    values, U = np.linalg.eigh(symmetric(J + lam))
    floor = (0.5 if last else 1.0) * q.pooled_a * math.sqrt(d)
    q.resolved = values[0] > max(floor, 0.1)
    values = np.where(values > floor, values, min(floor, 1.0))
    Pw = (U * np.maximum(values, s.least if len(queries) > 1 else 1e-9)) @ U.T
    R, root = power(Pw, -0.5), power(Pw, 0.5)
    Q = symmetric(R @ (q.kept + lam) @ R)  # drawn towards a multiple of 1 by its noise
    mean, R2 = np.trace(Q) / d * np.eye(d), R @ R
    noise = q.a**2 / 2 * (np.trace(R2) ** 2 + np.trace(R2 @ R2))
    Q = mean + max(0.0, 1 - noise / max(np.sum((Q - mean) ** 2), 1e-12)) * (Q - mean)
    values, U = np.linalg.eigh(Q)
    gain = inverse.T @ root @ ((U / np.clip(values, 0.2, 1.0)) @ U.T) @ R
    q.P = inverse.T @ Pw @ inverse
    q.B = q.P - inverse.T @ lam @ inverse
    slope = prior.gradient(q.theta)
    q.gradient = gain @ (q.score + V.T @ slope) - slope
    there = q.gradient + slope
    length = math.sqrt(max(there @ np.linalg.solve(q.P, there), 0.0))
    q.S = gain @ gain.T * q.sd**2 + (0.0 if last else (s.trust * length) ** 2 / d) * q.P
    q.t1 = root_trace(np.linalg.solve(q.P, gain @ gain.T)) * q.noise


def of_curvature(q, step):
    """Covariance of what noise in a query's information makes of a step."""
    u, inverse = np.linalg.solve(q.V, step), np.linalg.inv(q.V)
    return inverse.T @ (q.a**2 / 2 * ((u @ u) * np.eye(len(u)) + np.outer(u, u))) @ inverse


def gradient_at(queries, place, P):
    """What all queries say of the records' gradient at the last one's place, and its covariance.

    Each is carried there by the mean of the curvatures at both ends; and believed as far as the last one agrees.
    """
    last, V, found = queries[-1], inverse_root(P), []
    for q in queries:
        step = place - q.theta
        g, S = q.gradient - (q.B + last.B) / 2 @ step, q.S
        if q is not last:
            r = math.sqrt(max(step @ ((q.P + P) / 2) @ step, 0.0))
            values = np.linalg.eigvalsh(symmetric(V.T @ q.P @ V))
            turn = np.abs(np.log(np.maximum(values, 1e-9))).max()
            S = (
                S
                + P * (turn**2 * r / 12) ** 2
                + (of_curvature(q, step) + of_curvature(last, step)) / 4
            )
        found.append((g, S))
    g0, S0 = found[-1]
    precision, weighted = 0.0, 0.0
    for k, (g, S) in enumerate(found):
        if k < len(found) - 1:
            S = S * max(1.0, (g - g0) @ np.linalg.solve(S + S0, g - g0) / len(g))
        Q = np.linalg.inv(S)
        precision, weighted = precision + Q, weighted + Q @ g
    S = np.linalg.inv(precision)
    return S @ weighted, S


def fit(m, prior, start, s=None):
    """Spend the whole budget of `m` on the normal law of a posterior."""
    s = s or Settings()
    d, n, theta = len(start), m.n_units, start.copy()
    curved = np.maximum(-np.diag(prior.hessian(start)), 1e-12)
    P = np.diag(np.maximum(curved, scales_of(m, theta, s.first) ** 2 * n))
    queries, arrived, before, predicted, good = [], False, None, None, False
    share = float(np.clip(18e3 / (m.mu * n) ** 2, *s.shares))
    radius = s.radius
    while True:
        left = 1 - m.spent
        last = arrived or left < max(1 - s.search, 2 * share)
        share = left if last else share
        q = ask(m, theta, inverse_root(P), share, s.last_parts if last else s.parts, s, before)
        queries.append(q)
        believe(q, queries, prior, n, s, last)
        P, inverse, slope = q.P, np.linalg.inv(q.V), prior.gradient(theta)
        g, S = gradient_at(queries, theta, P)
        values, U = np.linalg.eigh(symmetric(q.V.T @ q.B @ q.V))
        law = Law(theta, g, inverse.T @ ((U * np.maximum(values, 1e-9)) @ U.T) @ inverse, S)
        r = posterior_of(law, prior, theta)
        step = r.mean - theta
        length = math.sqrt(max(step @ P @ step, 0.0))
        known, noise = root_trace(P @ r.covariance), root_trace(np.linalg.solve(P, S))
        surprise = math.nan
        if predicted is not None:
            there, far, by, S_before = predicted
            off = q.gradient + slope - there
            surprise = math.sqrt(max(off @ np.linalg.solve(q.S + S_before, off), 0.0) / d)
            miss = math.sqrt(max(off @ np.linalg.solve(P, off), 0.0))
            good = miss <= max(far / 2, 2 * math.hypot(root_trace(np.linalg.solve(P, q.S)), by))
            radius = 2 * radius if good else max(radius / 2, 1.0)
        if last:
            break
        cut = min(
            1.0,
            2 / max(float(np.max(np.abs(step) * np.sqrt(curved))), 1e-300),
            radius / (math.sqrt(q.top) * np.linalg.norm(inverse @ step)),
        )
        moved = theta + cut * step
        predicted = g - cut * law.J @ step + prior.gradient(moved), length, noise, S
        theta = moved
        near = cut == 1 and length < 2.5 * math.hypot(noise, math.sqrt(d))
        before = q if near and len(queries) > 1 else None
        arrived = q.resolved and good and near and noise < 2 * math.sqrt(d)
        rest = math.hypot(known, (1 - cut) * length + 0.2 * cut * length)
        wanted = q.t1 * math.sqrt(share) / max(math.sqrt(d), 0.25 * rest)
        share = float(np.clip(wanted**2 / s.parts[1], *s.shares))
    q.a = q.pooled_a
    law = Law(theta, g, law.J, S + of_curvature(q, step))
    return Found(posterior_of(law, prior, theta), surprise, arrived, queries)
