"""Clipping bounds, from noisy counts of units by the size of what is to be clipped."""

import math
from collections.abc import Sequence

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.privacy.histogram import PrivateHistogram

BINS_PER_OCTAVE = 2
"""With 4, noise in a bin counts for more, with 1 a bound may be 1.4 times too long: errors within .03 of these."""
_PLAIN = 4.0
"""In sds of the noise, a bin, or up to four together, that is seen: of 180 bins one run in a hundred has one of noise alone."""
_TOGETHER = (1, 2, 3, 4)
_FALL = 2**0.75
"""Beyond, a bin has at most this part of the units of the one before: a density of sizes that falls as their cube, the
heaviest tail whose sum of squares is finite with some room. With 2 errors are the same, with 1.2 bounds are 1.3 times as long."""
_LEAST_END = 1.5
"""Sizes are read at least up to this: in whitened coordinates most are 1/√n, and who is longer moves the posterior by an sd alone."""

_UNSEEN = 0.3
"""Mean excess over a bound of units that no bin shows, at most: that of a normal law's tail is .2. Without, noise in those bins is
taken for a tail, and half of the runs' errors are said to be up to twice what they are."""


SHORTEST = 0.2
"""Of a unit's usual length, the least bound of scores. Where counts are noise alone, the longest that they show may be of no size at all:
then a sum has no noise, and nothing else in it, and of 60 runs at a budget six and more were called usable with a privacy shift of about 0
(`tests/steps/test_normal.py`). With it none is, nor with half or twice as much, of 160 each."""
_HALVINGS = 20
"""Of an interval for a number of units, which is then known to a millionth of it."""


def number_beyond(beyond: float, d: int, multiplier: float, n_units: float) -> float:
    """How many units are to be longer than a bound.

    Parameters
    ----------
    beyond : float
        In √d z.
    d : int
        Numbers that are asked for.
    multiplier : float
        z, the noise's standard deviation in the sum / sensitivity.
    n_units : float
        About; never more than a third of them.
    """
    return min(beyond * math.sqrt(d) * multiplier, n_units / 3)


def pooled(histograms: Sequence[PrivateHistogram]) -> tuple[Vector, float]:
    """Mean of counts of the same sizes, and the noise's standard deviation in it."""
    weights = np.array([h.sd**-2.0 for h in histograms])
    counts = sum(w * h.released for w, h in zip(weights, histograms, strict=True))
    return np.asarray(counts / weights.sum()), float(weights.sum() ** -0.5)


class Tail:
    """What noisy counts say of the sizes of the longest units.

    Counts are taken as they are up to the last that stands out of the noise. Past it they fall, as the isotonic fit to
    them says and by :data:`_FALL` a bin at least: noise alone is no tail.

    Parameters
    ----------
    counts : ndarray, shape (bins,)
        From :data:`BINS_PER_OCTAVE` bins an octave.
    sd : float
        Of the noise in each.
    """

    def __init__(self, counts: Vector, sd: float):
        self._edges = PrivateHistogram.edges(BINS_PER_OCTAVE)
        counts = counts.copy()
        counts[0] = 0  # units without size tell nothing of the others'
        last = int(np.argmax(counts))
        counts = counts[: max(last + 2, int(np.searchsorted(self._edges, _LEAST_END)))]
        upto = np.concatenate([[0.0], np.cumsum(counts)])
        for width in _TOGETHER:
            seen = np.flatnonzero(upto[width:] - upto[:-width] > _PLAIN * sd * math.sqrt(width))
            last = max([last, *seen[-1:]])
        self._last = last
        self._counts = np.concatenate([counts[: last + 1], _falling(counts[last:])[1:]])
        self._middles = self._edges[: len(self._counts)] * 2 ** (0.5 / BINS_PER_OCTAVE)
        self._above = np.cumsum(self._counts[::-1])[::-1]

    def exceeded_by(self, number: float) -> tuple[float, float]:
        """The size that so many units exceed, and by how much they do on average, in parts of it."""
        c, k = self._counts, len(self._counts) - 1
        while k > 0 and self._above[k] < number:
            k -= 1
        part = float(np.clip((self._above[k] - number) / max(c[k], 1e-9), 0, 1))
        ratio = 2 ** (1 / BINS_PER_OCTAVE)
        size = float(self._edges[k] * ratio**part)
        beyond = np.maximum(c[k + 1 :], 0) * (self._middles[k + 1 :] / size - 1)
        shown, rest = np.split(beyond, [max(self._last - k, 0)])
        excess = float(shown.sum()) + min(float(rest.sum()), _UNSEEN * number)
        excess += max(c[k], 0) * (1 - part) * (self._edges[k] * ratio / size - 1) / 2
        return size, min(excess / max(number, 1e-9), 1.0)

    def clipped_to(self, bound: float) -> float:
        """Sum of sizes that are clipped to a bound, as far as counts stand out of the noise."""
        counts, sizes = self._counts[: self._last + 1], self._middles[: self._last + 1]
        return float(np.maximum(counts, 0) @ np.minimum(sizes, bound))

    def lost(self, bound: float) -> float:
        r"""Information that units seem to tell and clipping takes, as far as counts stand out of the noise: the sum of :math:`(z - b)^+ z`.

        In coordinates in which all information in a direction is 1, units that are as long as the model says lose about that, or less.
        """
        counts, sizes = self._counts[: self._last + 1], self._middles[: self._last + 1]
        return float(counts @ (np.maximum(sizes - bound, 0) * sizes))

    def balanced(self, noise: float, most: float) -> tuple[float, float]:
        r"""The bound at which noise and what is clipped, if all of that points one way, are least in squares; and the latter, in posterior sds.

        Units that exceed b, N of them and by e b on average, tell, if all of them point one way, of the information
        :math:`Q = N (1 + e)^2 b^2` there at least. Where that is more than the 1 which coordinates were to make it, few units that alone tell
        of a parameter have not been seen yet, and what is clipped of them moves the posterior by :math:`N e b / \sqrt Q` of its sds. So
        :math:`(\sigma b)^2 + (N e b)^2 / \max(1, Q)` is least: where :math:`N \sqrt e = \sigma \sqrt{\max(1, Q)}`, as N is minus the derivative of
        what is clipped. What centring by the model takes off that is not counted on: where the model is wrong, it takes off
        nothing. Without Q, of 200,000 records of which 200 alone tell of a parameter, bounds are as long as theirs: at ε = 3 errors
        are twice as large (`benchmarks/surrogate_limit.py`, "rare category").

        With N of :math:`3 \sqrt d z` on the way and :math:`6 \sqrt d z` at last in its place, z the noise's sd / sensitivity, and half of what is
        clipped allowed for, errors of real data are as large and 90 % intervals hold less of the exact posterior (`benchmarks/ordinary_models.py`); of
        data as the model has them, errors are up to a tenth smaller (`benchmarks/surrogate_limit.py`).

        Parameters
        ----------
        noise : float
            σ, root mean square length of the noise in the sum, over the bound.
        most : float
            Units that are clipped, at most.
        """
        least = 0.0
        for _ in range(_HALVINGS):
            number = (least + most) / 2
            size, excess = self.exceeded_by(number)
            Q = max(1.0, number * (size * (1 + excess)) ** 2)
            enough = number * math.sqrt(excess) < noise * math.sqrt(Q)
            least, most = (number, most) if enough else (least, number)
        return size, number * excess * size / math.sqrt(Q)


def _falling(counts: Vector) -> Vector:
    """Weighted isotonic fit of counts that fall by a factor of :data:`_FALL` a bin at least; none is negative."""
    blocks: list[list[float]] = []
    for k, count in enumerate(counts):
        blocks.append([count * _FALL**k, _FALL ** (-2 * k), 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (v, w, many), (u, x, others) = blocks.pop(), blocks.pop()
            blocks.append([(v * w + u * x) / (w + x), w + x, many + others])
    fit = np.concatenate([[max(value, 0.0)] * int(many) for value, _, many in blocks])
    return np.asarray(fit * _FALL ** -np.arange(len(counts)))
