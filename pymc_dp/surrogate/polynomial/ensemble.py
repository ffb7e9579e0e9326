r"""Public draws of a surrogate's density, by moves of many walkers: released numbers only.

Walkers move by differential evolution (ter Braak, 2006), half of them at a time along differences of the other
half, and now and then by the stretch of Goodman and Weare (2010): both leave the density invariant, and need no
scale.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.surrogate.polynomial.basis import Places
from pymc_dp.surrogate.polynomial.chart import Chart
from pymc_dp.surrogate.polynomial.model import Surrogate
from pymc_dp.surrogate.polynomial.settings import SETTINGS

OfMany = Callable[[Vector], Vector]
"""Of points, shape (points, d): log-densities, shape (points,)."""
LogDensity = Callable[[Vector, Places], Vector]
"""Of points, shape (points, d), and the numbers of the walkers that they belong to."""


@dataclass(frozen=True)
class Tempered:
    r""":math:`\log p(\theta) + \beta\, c \cdot q(\theta)`, lowered where noise may have made what is seen.

    Parameters
    ----------
    log_prior : callable
        Of many points.
    surrogate : Surrogate
    beta : float
    middle : ndarray, shape (r,)
        Mean of q over the walkers: noise matters beside what it is there.
    first : callable, optional
        Log-density of the first region, of many points: while warm, a density is held together by it.
    own : ndarray, shape (walkers, r), optional
        Coefficients of every walker's own.
    """

    log_prior: OfMany
    surrogate: Surrogate
    beta: float
    middle: Vector
    first: OfMany | None = None
    own: Vector | None = None

    def __call__(self, theta: Vector, which: Places) -> Vector:
        """Log-density at some points; -inf where the surrogate may not be used."""
        q, usable = self.surrogate.at(theta)
        c = self.surrogate.c if self.own is None else self.own[which]
        values = q @ c if self.own is None else np.einsum("ij,ij->i", q, c)
        doubt = np.maximum(self.beta**2 * self.variance(q) - SETTINGS.unsure, 0.0) / 2
        with np.errstate(all="ignore"):
            found = self.log_prior(theta) + self.beta * values - doubt
            if self.first is not None and self.beta < SETTINGS.held:
                found += (1 - self.beta / SETTINGS.held) ** 2 * self.first(theta)
        return np.where(usable & np.isfinite(found), found, -np.inf)

    def variance(self, q: Vector) -> Vector:
        """Of the noise, beside the middle's."""
        off = (q - self.middle) @ self.surrogate.root
        return np.asarray(np.einsum("ij,ij->i", off, off))

    def at_temperature(self, beta: float, theta: Vector) -> "Tempered":
        """The same at another temperature, with the middle of these walkers."""
        return replace(self, beta=beta, middle=self.surrogate.at(theta)[0].mean(axis=0))

    def with_noise(self, walkers: int, rng: np.random.Generator) -> "Tempered":
        """The same with coefficients of every walker's own: posterior draws, given what was released."""
        c, root = self.surrogate.c, self.surrogate.root
        return replace(self, own=c + rng.standard_normal((walkers, len(c))) @ root.T)


def moved(
    theta: Vector,
    log_density: LogDensity,
    steps: int,
    rng: np.random.Generator,
    chart: Chart | None = None,
) -> Vector:
    """Walkers after some moves of each, shape (walkers, d), in the coordinates of a chart if there is one."""
    if chart is not None:

        def in_chart(u: Vector, which: Places) -> Vector:
            x, log_det = chart.back(u)
            return log_density(x, which) + log_det

        return chart.back(moved(chart(theta)[0], in_chart, steps, rng))[0]
    theta, (walkers, d) = theta.copy(), theta.shape
    now = log_density(theta, np.arange(walkers))
    scale = 2.38 / math.sqrt(2 * d)
    for _ in range(steps):
        order = rng.permutation(walkers)
        halves = order[: walkers // 2], order[walkers // 2 :]
        for some, others in (halves, halves[::-1]):
            a, b = rng.choice(others, len(some)), rng.choice(others, len(some))
            if rng.random() < 0.3:
                stretch = (1 + rng.random(len(some))) ** 2 / 2
                new = theta[a] + stretch[:, None] * (theta[some] - theta[a])
                proposals = (d - 1) * np.log(stretch)
            else:
                length = scale * rng.choice([1.0, 0.5, 0.2], p=[0.5, 0.3, 0.2], size=len(some))
                new = theta[some] + length[:, None] * (theta[a] - theta[b])
                proposals = np.zeros(len(some))
            there = log_density(new, some)
            with np.errstate(invalid="ignore"):
                taken = np.log(rng.random(len(some))) < there - now[some] + proposals
            theta[some[taken]], now[some[taken]] = new[taken], there[taken]
    return theta


def largest_step(log_weights: Vector, most: float) -> float:
    """How far, up to `most`, weights may be raised to a power before too few walkers count."""

    def effective(t: float) -> float:
        w = np.exp(t * (log_weights - log_weights.max()))
        return float(w.sum() ** 2 / (w @ w)) / len(w)

    if effective(most) >= SETTINGS.alike:
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if effective(middle) < SETTINGS.alike else (middle, high)
    return low


def resampled(theta: Vector, log_weights: Vector, rng: np.random.Generator) -> Vector:
    """As many walkers, drawn with weights."""
    w = np.exp(log_weights - log_weights.max())
    return theta[rng.choice(len(theta), len(theta), p=w / w.sum())]


def carried(
    theta: Vector,
    before: OfMany,
    after: LogDensity,
    rng: np.random.Generator,
    chart: Chart | None = None,
) -> Vector:
    """Walkers of one density as walkers of another, by a geometric path between the two."""
    part, everyone = 0.0, np.arange(len(theta))
    while part < 1:
        weights = after(theta, everyone) - before(theta)
        step = max(largest_step(weights, 1 - part), min(1e-4, 1 - part))
        theta, part = resampled(theta, step * weights, rng), part + step

        def between(x: Vector, which: Places, part: float = part) -> Vector:
            new = after(x, which)
            with np.errstate(invalid="ignore"):
                return np.where(np.isfinite(new), part * new + (1 - part) * before(x), -np.inf)

        theta = moved(theta, between, SETTINGS.steps, rng, chart)
    return theta
