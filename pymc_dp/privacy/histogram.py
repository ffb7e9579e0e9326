"""Private histograms of positive sizes, and what is read off them: quantiles and excesses."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.ledger import Permit
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_multiplier

_LOWEST, _HIGHEST = -60, 30
"""Sizes are counted between 2^-60 and 2^30; smaller and larger ones count as these."""

# Counts are noised on a grid this fine, where discrete and continuous Gaussian are alike.
_GRID = 2**24

# A bin next to the others is kept while its count exceeds this many standard deviations of noise.
_SIGNIFICANT = 2.0


class PrivateHistogram:
    r"""Noisy counts of the units' sizes in bins of equal ratio.

    **Neighbouring relation**: substitute-one: one unit leaves a bin and enters another.
    **Sensitivity**: √2 in L2 norm. **Guarantee**: one ``Gaussian(noise_multiplier)`` event; exact
    integer counts and discrete Gaussian noise (Canonne, Kamath and Steinke, 2020).

    Parameters
    ----------
    sizes : iterable of ndarray
        Chunks of the units' sizes; nothing is drawn from it before the permit is taken. NaN counts
        as the smallest, infinity as the largest size.
    bins_per_octave : int
        How many bins between a size and its double.
    noise_multiplier : float
        z: standard deviation of a count's noise / √2.
    permit : Permit
        Covers the event.
    noise : NoiseSource
    """

    def __init__(
        self,
        sizes: Iterable[NDArray[np.float64]],
        *,
        bins_per_octave: int,
        noise_multiplier: float,
        permit: Permit,
        noise: NoiseSource,
    ):
        check_multiplier(noise_multiplier, noise)
        address = permit.take(Gaussian(noise_multiplier))
        bins = (_HIGHEST - _LOWEST) * bins_per_octave
        counts = np.zeros(bins, dtype=np.int64)
        for chunk in sizes:
            counts += bin_counts(chunk, bins_per_octave)
        self._sd = noise_multiplier * math.sqrt(2)
        counts *= _GRID
        if self._sd > 0:
            counts += noise.discrete_gaussian(self._sd * _GRID, bins, address)
        # From here on, only the noisy counts.
        self._first, self._counts = _significant_run(counts / _GRID, _SIGNIFICANT * self._sd)
        self._edges = 2.0 ** (np.arange(bins + 1) / bins_per_octave + _LOWEST)

    def quantile(self, p: float) -> float:
        """Size that a share `p` of the units do not exceed, interpolated within its bin."""
        upto = np.concatenate([[0.0], np.cumsum(self._counts)]) / self._counts.sum()
        k = min(int(np.searchsorted(upto, p, side="left")), len(self._counts)) or 1
        within = (p - upto[k - 1]) / (upto[k] - upto[k - 1])
        low, high = self._edges[self._first + k - 1], self._edges[self._first + k]
        return float(low * (high / low) ** min(max(within, 0.0), 1.0))

    def excess(self, bound: float) -> float:
        r"""About :math:`\sum_i (s_i - B)_+`, with as many units past the largest bin seen as could hide.

        Two more bins are taken to hold one, and half of one, standard deviation of the noise.
        """
        counts = np.append(self._counts, [self._sd, self._sd / 2])
        places = self._first + np.arange(len(counts))
        places = np.minimum(places, len(self._edges) - 2)
        middles = np.sqrt(self._edges[places] * self._edges[places + 1])
        return float(counts @ np.maximum(middles - bound, 0.0))


def bin_counts(sizes: NDArray[np.float64], bins_per_octave: int) -> NDArray[np.int64]:
    """How many of `sizes` are in each bin: every one in exactly one."""
    bins = (_HIGHEST - _LOWEST) * bins_per_octave
    with np.errstate(all="ignore"):
        sized = np.nan_to_num(np.abs(sizes), nan=0.0, posinf=np.inf)
        octave = np.log2(np.clip(sized, 2.0**_LOWEST, 2.0**_HIGHEST)) - _LOWEST
    place = np.clip((octave * bins_per_octave).astype(np.int64), 0, bins - 1)
    return np.bincount(place, minlength=bins)


def _significant_run(
    counts: NDArray[np.float64], threshold: float
) -> tuple[int, NDArray[np.float64]]:
    """The bins around the fullest one, as far as they stand out; each holds one unit at least."""
    first = last = int(np.argmax(counts))
    while last + 1 < len(counts) and counts[last + 1] > threshold:
        last += 1
    while first > 0 and counts[first - 1] > threshold:
        first -= 1
    return first, np.maximum(counts[first : last + 1], 1.0)
