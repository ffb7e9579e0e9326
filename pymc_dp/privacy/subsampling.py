"""Secret samples of the units.

A sample amplifies privacy only as long as nobody can tell who is in it: it is drawn from the noise
source, never from the host's public random numbers, and never leaves.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""``size ->`` that many fresh words of 64 secret uniform bits."""

_RATE_MARGIN = 1e-6


def accounted_rate(rate: float) -> float:
    r"""Rate to charge for :func:`poisson_sample` at `rate`: a little more.

    The gaps are computed in floating point from numbers of 53 bits. Given what happened to the units
    before it, a unit enters with probability :math:`q (1 \pm 2^{-48}/q(1-q))`, a relative error below
    1e-7 for every allowed rate up to 1 − 1e-7, and no error at 1; the margin is ten times that.
    """
    return min(1.0, rate * (1 + _RATE_MARGIN))


def poisson_sample(units: int, rate: float, words: Words) -> NDArray[np.int64]:
    """Each of `units` with probability `rate`, independently; in increasing order.

    Takes time in proportion to the sample, not to the units: it draws the geometric gaps between
    sampled units. A gap longer than 1/rate is cut there and drawn on, so that only the coarse part
    of a uniform number's tail is ever used.
    """
    if rate == 1:
        return np.arange(units)
    longest = math.ceil(1 / rate)
    found: list[NDArray[np.int64]] = []
    start = 0
    while start < units:
        expected = (units - start) * rate * math.e / (math.e - 1)
        size = int(expected + 4 * math.sqrt(expected)) + 8
        u = (words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        gaps = (np.log1p(-u) / math.log1p(-rate)).astype(np.int64)
        hit = gaps < longest
        places = start - 1 + np.cumsum(np.where(hit, gaps + 1, longest))
        found.append(places[hit & (places < units)])
        start = int(places[-1]) + 1
    return np.concatenate(found) if found else np.empty(0, np.int64)


def fixed_size_sample(units: int, size: int, words: Words) -> NDArray[np.int64]:
    """`size` of `units`, every subset with the same probability; in increasing order.

    A large sample is what a small one leaves out. The first `size` distinct values of a sequence of uniform ones; a word beyond the largest
    multiple of `units` is thrown away, so that the values are exactly uniform.
    """
    if 2 * size > units:
        left_out = fixed_size_sample(units, units - size, words)
        return np.delete(np.arange(units), left_out)
    if size == 0:
        return np.empty(0, np.int64)
    limit = np.uint64(2**64 - 2**64 % units - 1)
    drawn = np.empty(0, np.int64)
    while True:
        fresh = words(size + 8)
        drawn = np.concatenate([drawn, (fresh[fresh <= limit] % np.uint64(units)).astype(np.int64)])
        values, first = np.unique(drawn, return_index=True)
        if len(values) >= size:
            return np.sort(drawn[np.sort(first)[:size]])
