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
        Share of the budget, for all moves, with which the noise in a typical one's log ratio has standard deviation 1.
    off : float
        Half the variance of the residuals' sums, about the law's KL divergence from the posterior; NaN if it
        was not asked for.
    """

    clip: float
    need: float
    off: float

    @property
    def pays(self) -> bool:
        """Whether the chain should run."""
        return self.off > SETTINGS.law_is_off and self.need <= SETTINGS.most_for_chain


def price(
    measure: Measurements, expansion: Expansion, posterior: Posterior, moves: int, share: float
) -> Price:
    """Ask what a chain costs and, if it can be afforded, whether there is anything for it to do.

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
        Of the histogram.

    Notes
    -----
    **Releases**: a histogram (sensitivity √2) and perhaps
    :attr:`~pymc_dp.anchor.settings.AnchorSettings.sums` sums of clipped residuals (2B each).
    """
    s, d = SETTINGS, len(posterior.mean)
    rng = np.random.default_rng(0)  # public: where to look
    R = expansion.inverse @ np.linalg.cholesky(posterior.covariance)
    mean = expansion.inverse @ (posterior.mean - expansion.pool.law.centre)

    def drawn(*shape: int) -> Vector:
        return np.asarray(mean + rng.standard_normal((*shape, d)) @ R.T)

    pairs = drawn(s.probes, 2)
    sizes = measure.histogram(ResidualSizes(expansion, pairs), share, 1)
    c = s.residuals_widened * max(sizes.quantile(s.residuals_kept), 1e-12)
    typical = float(np.median([reach(x, new) for x, new in drawn(200, 2)]))
    need = moves * measure.noise_sd(c * typical, 1.0) ** 2

    places = drawn(s.sums)
    zero = np.zeros(d)
    bounds = [c * reach(zero, x) for x in places]
    shares = [(measure.noise_sd(b, 1.0) / s.sums_sd) ** 2 for b in bounds]
    if need > s.most_for_chain or sum(shares) > s.most_for_sums:
        return Price(c, need, math.nan)
    sums = []
    for x, b, of_sum in zip(places, bounds, shares, strict=True):
        total, sd = measure.sum(Residual(expansion, x), b, max(of_sum, LEAST_SHARE))
        sums.append((float(total), sd))
    values, sds = np.array(sums).T
    return Price(c, need, float(np.var(values, ddof=1) - np.mean(sds**2)) / 2)
