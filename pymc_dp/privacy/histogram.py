"""Private histograms of positive sizes, and what is read off them: quantiles and excesses."""

import math
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.clipping import in_silence
from pymc_dp.privacy.events import Gaussian, Pure
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_multiplier, release
from pymc_dp.privacy.plans import Permit

_LOWEST, _HIGHEST = -60, 30
"""Sizes are counted between 2^-60 and 2^30; smaller and larger ones count as these."""

# Counts are noised on a grid this fine, where discrete and continuous Gaussian are alike.
_GRID = 2**24

# In standard deviations of the noise. A bin counts for what it says above the first. The tail is
# followed while what lies beyond exceeds the second; one octave or three count together, as a small group of
# records can be spread over several bins, and as these windows overlap, with 2 instead of 3 a lucky one
# carried the bound further out for one noise in twenty, now and then by four octaves. Sizes may be few and far between (two groups
# of records, say), so a bin beyond a gap is kept above the third. A normal surrogate has some 20 histograms of 90 bins or
# more, and one bin in the wrong place makes a bound, and with it the noise, as large as numbers get: with 4.5
# one run in a thousand was lost to that.
_SIGNIFICANT, _TAIL, _ON_ITS_OWN = 2.0, 3.0, 5.5
_OCTAVES_TOGETHER = (1, 3)
# A bin or an octave of units, where all others seem to have no size: of noise alone, one histogram in 100 has one.
_RATHER_THAN_NONE = 4.0
_PLAINLY_SEEN = 10.0


class PrivateHistogram:
    """What noisy counts say of the units' sizes. Post-processing of :func:`noisy_counts`.

    Parameters
    ----------
    counts : ndarray, shape (bins,)
        Of bins of equal ratio, with noise.
    sd : float
        The noise's standard deviation in each.
    bins_per_octave : int
        How many bins between a size and its double.

    Attributes
    ----------
    released : ndarray, shape (bins,)
        `counts`.
    sd : float
    seen : bool
        Whether units of any size but 0 stand out of the noise. If not, what is read off them means nothing.
    """

    def __init__(self, counts: NDArray[np.float64], sd: float, bins_per_octave: int):
        self.released, self.sd = counts, sd
        self._first, self._counts, self.seen = _significant_range(counts, sd, bins_per_octave)
        self._edges = self.edges(bins_per_octave)

    @staticmethod
    def edges(bins_per_octave: int) -> NDArray[np.float64]:
        """Sizes between which the bins are, shape (bins + 1,)."""
        return 2.0 ** (np.arange(count_of_bins(bins_per_octave) + 1) / bins_per_octave + _LOWEST)

    def quantile(self, p: float) -> float:
        """Size that a share `p` of the units do not exceed, interpolated within its bin.

        Beyond what can be plainly seen, sizes are taken to fall off exponentially, if that is larger.
        """
        t, far, rate = self._fall
        beyond = far + rate * math.log(t / (1 - p)) if 1 - t < p < 1 else 0.0
        return max(self._within(p), beyond)

    def _within(self, p: float) -> float:
        upto = np.concatenate([[0.0], np.cumsum(self._counts)]) / self._counts.sum()
        k = min(int(np.searchsorted(upto, p, side="left")), len(self._counts)) or 1
        within = (p - upto[k - 1]) / (upto[k] - upto[k - 1])
        low, high = self._edges[self._first + k - 1], self._edges[self._first + k]
        return float(low * (high / low) ** min(max(within, 0.0), 1.0))

    @cached_property
    def _fall(self) -> tuple[float, float, float]:
        """Share of the units that are larger than a size, that size, and by how much the next e-th part is.

        From where there are enough to be seen: noise hides the ends of a distribution, and bounds from what
        stands out of it alone clipped twice as much as they should.
        """
        t = min(_PLAINLY_SEEN * self.sd / float(self._counts.sum()), 0.2)
        if not t > 0:
            return 0.0, self.largest, 0.0
        near, far = self._within(1 - 2.5 * t), self._within(1 - t)
        return t, far, (far - near) / math.log(2.5)

    def balanced(self, noise: float, bounds: NDArray[np.float64]) -> float:
        """Of some bounds, the one at which noise and what is clipped are least together, in squares.

        Parameters
        ----------
        noise : float
            The noise's standard deviation in the sum, at a bound of 1.
        bounds : ndarray
        """
        costs = [math.hypot(noise * b, self.excess(b)) for b in bounds]
        return float(bounds[int(np.argmin(costs))])

    def kept(self, bound: float) -> float:
        r""":math:`\sum_i s_i \min(s_i, b) / \sum_i s_i^2`: what clipping to `bound` leaves of the product of a vector and itself."""
        ends = self._edges[self._first : self._first + len(self._counts) + 1]
        sizes = np.sqrt(ends[1:] * ends[:-1])
        squares = self._counts * sizes**2
        return float(squares @ np.minimum(1.0, bound / sizes) / squares.sum())

    @property
    def largest(self) -> float:
        """Above all sizes that were seen, and above those that :meth:`excess` takes to hide."""
        return float(self._edges[min(self._first + len(self._counts) + 1, len(self._edges) - 1)])

    def excess(self, bound: float) -> float:
        r"""About :math:`\sum_i (s_i - B)_+`, with as many units past the largest bin seen as could hide.

        One more bin is taken to hold one standard deviation of the noise. Units are spread evenly over
        their bin, on a logarithmic scale: were they all at its middle, the best bound would always be one.
        """
        counts = np.append(self._counts, self.sd)
        places = self._first + np.arange(len(counts))
        places = np.minimum(places, len(self._edges) - 2)
        low, high = self._edges[places], self._edges[places + 1]
        within = np.clip(bound, low, high)
        beyond = (high - within - bound * np.log(high / within)) / np.log(high / low)
        return max(float(counts @ beyond), self._tail(bound))

    def _tail(self, bound: float) -> float:
        """The excess if sizes fall off exponentially from where they are plainly seen."""
        t, far, rate = self._fall
        if not rate > 0:
            return 0.0
        beyond = rate * math.exp(-(bound - far) / rate) if bound > far else rate + far - bound
        return float(self._counts.sum()) * t * beyond


def counts_of(sizes: Iterable[NDArray[np.float64]], bins_per_octave: int) -> NDArray[np.int64]:
    """Exact counts of all chunks' sizes by bin, shape (bins,). Private.

    What computes the sizes may overflow: it is drawn on
    :func:`in silence <pymc_dp.privacy.clipping.in_silence>`.
    """
    counts = np.zeros(count_of_bins(bins_per_octave), dtype=np.int64)
    with in_silence():
        for chunk in sizes:
            counts += bin_counts(chunk, bins_per_octave)
    return counts


def noisy_counts(
    counts: Callable[[], NDArray[np.int64]],
    *,
    noise_multiplier: float,
    permit: Permit,
    noise: NoiseSource,
    neighbours: Neighbours = SUBSTITUTE_ONE,
) -> NDArray[np.float64]:
    """Noisy counts of the units' sizes in bins of equal ratio, shape (bins,).

    **Neighbouring relation**: `neighbours`. **Sensitivity**: in L2 norm √2 under substitute-one, as a
    unit leaves a bin and another enters one; 1 under add-or-remove. **Guarantee**: one ``Gaussian(noise_multiplier)`` event; exact
    integer counts and discrete Gaussian noise (Canonne, Kamath and Steinke, 2020).

    Parameters
    ----------
    counts : callable
        ``() ->`` :func:`counts_of` of all units, in which each unit is in one bin. Called once, after the
        permit is taken.
    noise_multiplier : float
        z: standard deviation of a count's noise / sensitivity.
    permit : Permit
        Covers the event.
    noise : NoiseSource
    neighbours : Neighbours
    """
    check_multiplier(noise_multiplier, noise)
    released = release(
        lambda _: counts() * _GRID,
        Gaussian(noise_multiplier),
        neighbours.count_sd(noise_multiplier) * _GRID,
        permit,
        noise,
    )
    return np.asarray(released / _GRID)


def pure_noisy_counts(
    counts: Callable[[], NDArray[np.int64]],
    *,
    noise_multiplier: float,
    permit: Permit,
    noise: NoiseSource,
    neighbours: Neighbours = SUBSTITUTE_ONE,
) -> NDArray[np.float64]:
    """As :func:`noisy_counts`, with discrete Laplace noise.

    **Neighbouring relation**: `neighbours`. **Sensitivity**: κ in L1 norm, 2 under substitute-one, as a unit leaves a bin
    and another enters one; 1 under add-or-remove. **Guarantee**: one ``Pure(1 / noise_multiplier)`` event, as all masses of noise of
    scale :math:`z κ` change by a factor of :math:`e^{1/z}` at most (the geometric mechanism; Ghosh, Roughgarden and
    Sundararajan, 2012).

    Parameters
    ----------
    counts, permit, noise, neighbours
        As in :func:`noisy_counts`.
    noise_multiplier : float
        z: scale of a count's noise / sensitivity.
    """
    check_multiplier(noise_multiplier, noise)
    released = release(
        lambda _: counts(),
        Pure(1 / noise_multiplier),
        noise_multiplier * neighbours.terms,
        permit,
        noise,
        noise.discrete_laplace,
    )
    return np.asarray(released, dtype=np.float64)


def count_of_bins(bins_per_octave: int) -> int:
    """How many bins there are."""
    return (_HIGHEST - _LOWEST) * bins_per_octave


def bin_counts(sizes: NDArray[np.float64], bins_per_octave: int) -> NDArray[np.int64]:
    """How many of `sizes` are in each bin: every one in exactly one."""
    bins = count_of_bins(bins_per_octave)
    sized = np.nan_to_num(np.abs(sizes), nan=0.0, posinf=np.inf)
    octave = np.log2(np.clip(sized, 2.0**_LOWEST, 2.0**_HIGHEST)) - _LOWEST
    place = np.clip((octave * bins_per_octave).astype(np.int64), 0, bins - 1)
    return np.bincount(place, minlength=bins)


def _significant_range(
    counts: NDArray[np.float64], sd: float, bins_per_octave: int
) -> tuple[int, NDArray[np.float64], bool]:
    """The bins from the first to the last that stand out, each holding one unit at least; and whether any does.

    Units without size, as where a covariate is 0, are in the first bin of all, and tell nothing of the others' sizes: it
    is left out if there are others.
    """
    seen = 1 + np.flatnonzero(counts[1:] > _ON_ITS_OWN * sd)
    some = len(seen) > 0
    if not some:
        widths = {1, bins_per_octave}
        sums = [np.convolve(counts[1:], np.ones(k), "valid") / math.sqrt(k) for k in widths]
        highest = max(sums, key=np.max)
        start, some = 1 + int(np.argmax(highest)), bool(highest.max() > _RATHER_THAN_NONE * sd)
        inside = counts[start : start + bins_per_octave]
        seen = np.array([start + np.argmax(inside) if some else np.argmax(counts)])
    first, last = int(seen[0]), int(seen[-1])
    while last + 1 < len(counts):
        beyond = counts[last + 1 :]
        windows = [beyond[: octaves * bins_per_octave] for octaves in _OCTAVES_TOGETHER]
        if not any(window.sum() > _TAIL * sd * math.sqrt(len(window)) for window in windows):
            break
        last += 1
    while first > 1 and counts[first - 1] > _SIGNIFICANT * sd:
        first -= 1
    kept = counts[first : last + 1]
    return first, np.where(kept > _SIGNIFICANT * sd, kept, np.clip(kept, 1.0, sd)), some
