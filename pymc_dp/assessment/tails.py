r"""A clipping bound for sums in which few units may weigh as much as all others.

Where one model has heavy tails and another one has none, some hundred people in 20,000 decide which is better. A
histogram spreads them over many bins, and at a small ε none of these stands out. A count of all that are
longer than a bound does.
"""

import math
from typing import Any

import numpy as np

from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import NormExceeds

_OF_ONE_COUNT, _MOST_COUNTS, OF_LAST_COUNT = 0.03, 5, 0.1
"""Shares of the budget of counts on the way, how many there are at most, and of the count at the bound."""

_APART = 4.0

_TAIL = 2.0
r"""If N units are longer than B, and numbers fall off like :math:`s^{-\alpha}`, what they exceed it by is
:math:`N B / (\alpha - 1)` in all. With α of 2 or less there is no standard error, so 2 is the worst of what can be
compared at all."""


def find_bound(of: Any, sizes: PrivateHistogram, measure: PaidMeasurements, kept: float) -> float:
    """A bound for the sum that takes the rest of the budget: by balance of noise and of what may be clipped.

    Parameters
    ----------
    of : Query
        What is summed.
    sizes : PrivateHistogram
        Of its terms.
    measure : PaidMeasurements
        Asked for a few counts, each of the units beyond a length that follows from the ones before.
    kept : float
        Share of the budget that the sum will not get.
    """
    noise = measure.noise_sd(1.0, 1 - measure.spent - kept - OF_LAST_COUNT - _OF_ONE_COUNT)
    start = sizes.balanced(noise, np.geomspace(sizes.quantile(0.5) / 2, sizes.largest, 200))
    for _ in range(_MOST_COUNTS):
        _, beyond = longer(of, start, measure, _OF_ONE_COUNT)
        further = np.geomspace(start, _APART * start, 50)
        costs = [math.hypot(noise * b, beyond * (b / start) ** (1 - _TAIL)) for b in further]
        best = float(further[int(np.argmin(costs))])
        if best < _APART * start / 1.5:
            return best
        start *= _APART
    return best


def longer(of: Any, bound: float, measure: PaidMeasurements, share: float) -> tuple[float, float]:
    """How many units are longer than a bound, and what they exceed it by: at least as if one sd of noise hid some.

    **Sensitivity** 1, of :meth:`~pymc_dp.records.measurements.PaidMeasurements.count`.
    """
    many, sd = measure.count(NormExceeds(of, bound), share)
    return many, max(many, sd) * bound / (_TAIL - 1)
