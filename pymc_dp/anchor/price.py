r"""Whether a chain on residuals would pay, and what it costs: asked of releases before the last look.

A normal law is off where the log-likelihood is not quadratic. A chain of K moves on the :mod:`residuals
<pymc_dp.anchor.residuals>` makes that good, at a price that their size decides; how far off the law is can be
seen in the residuals' sums at a few of its draws, which are all 0 where it is exact.
"""

import math
from dataclasses import dataclass

import numpy as np

from pymc_dp.anchor.law import Posterior
from pymc_dp.anchor.residuals import Expansion, Residual, ResidualSizes, reach
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import Vector
from pymc_dp.privacy.purse import LEAST_SHARE
from pymc_dp.records.measurements import Measurements


@dataclass(frozen=True)
class Price:
    """What a chain costs. Nothing in it is private.

    Parameters
    ----------
    clip : float
        c: a unit's residual ratio is clipped to c times the :func:`~pymc_dp.anchor.residuals.reach` of a move.
    need : float
        Share of the budget, for all moves, with which the noise in a typical one's log ratio has standard
        deviation 1.
    """

    clip: float
    need: float


def price(
    measure: Measurements, expansion: Expansion, posterior: Posterior, moves: int, share: float
) -> Price:
    """Ask what a chain costs.

    Parameters
    ----------
    measure : Measurements
    expansion : Expansion
        Of the looks so far.
    posterior : Posterior
        What their law says.
    moves : int
        K, of all chains together.
    share : float
        Of what is released: one histogram (sensitivity √κ).
    """
    s, drawn = SETTINGS, _Draws(expansion, posterior)
    pairs = drawn(s.probes, 2)
    sizes = measure.histogram(ResidualSizes(expansion, pairs), share, 1)
    c = s.residuals_widened * max(sizes.quantile(s.residuals_kept), 1e-12)
    typical = float(np.median([reach(x, new) for x, new in drawn(200, 2)]))
    return Price(c, moves * measure.noise_sd(c * typical, 1.0) ** 2)


def divergence(
    measure: Measurements, expansion: Expansion, posterior: Posterior, clip: float
) -> float:
    """How far a law is off: half the variance of the residuals' sums at its draws.

    That is about its KL divergence from the posterior. NaN if asking would cost too much.

    Parameters
    ----------
    measure, expansion, posterior
        As for :func:`price`.
    clip : float
        c of the price.

    Notes
    -----
    **Releases**: :attr:`~pymc_dp.anchor.settings.AnchorSettings.sums` sums of residuals clipped to B
    (sensitivity κB each).
    """
    s = SETTINGS
    places = _Draws(expansion, posterior)(s.sums)
    bounds = [clip * reach(np.zeros(len(x)), x) for x in places]
    shares = [max((measure.noise_sd(b, 1.0) / s.sums_sd) ** 2, LEAST_SHARE) for b in bounds]
    if sum(shares) > s.most_for_sums:
        return math.nan
    released = [
        measure.sum(Residual(expansion, x), b, share)
        for x, b, share in zip(places, bounds, shares, strict=True)
    ]
    noise = np.mean([sd**2 for _, sd in released])
    return float(np.var([float(total) for total, _ in released], ddof=1) - noise) / 2


class _Draws:
    """Of a law's normal approximation: public places."""

    def __init__(self, expansion: Expansion, posterior: Posterior):
        self._rng = np.random.default_rng(0)
        self._R = expansion.inverse @ np.linalg.cholesky(posterior.covariance)
        self._mean = expansion.inverse @ (posterior.mean - expansion.pool.law.centre)

    def __call__(self, *shape: int) -> Vector:
        e = self._rng.standard_normal((*shape, len(self._mean)))
        return np.asarray(self._mean + e @ self._R.T)
