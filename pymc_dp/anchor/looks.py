"""What an anchor asks of the records at a place: sizes, gradients and Hessians of the units, with noise."""

import numpy as np

from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import Vector, as_matrix
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.questions import Gradient, Hessian


class Looks:
    r"""Noisy derivatives of the tempered log-likelihood in coordinates :math:`\theta + W u`.

    Parameters
    ----------
    measure : Measurements
        Asked, and paid, for everything.
    tempering : float
        T.
    """

    def __init__(self, measure: Measurements, tempering: float = 1.0):
        self.measure, self._tempering = measure, tempering

    def gradient_sizes(
        self, theta: Vector, W: Vector, share: float, bins_per_octave: int = 2
    ) -> PrivateHistogram:
        """Histogram of the norms of units' gradients."""
        return self.measure.histogram(Gradient(theta, W, self._tempering), share, bins_per_octave)

    def hessian_sizes(
        self, theta: Vector, W: Vector, share: float, bins_per_octave: int = 2
    ) -> PrivateHistogram:
        """Histogram of the Frobenius norms of units' Hessians."""
        return self.measure.histogram(Hessian(theta, W, self._tempering), share, bins_per_octave)

    def gradient(
        self, theta: Vector, W: Vector, bound: float, share: float
    ) -> tuple[Vector, float]:
        """Gradient, shape (d,), and the noise's standard deviation in every entry."""
        return self.measure.sum(Gradient(theta, W, self._tempering), bound, share)

    def hessian(self, theta: Vector, W: Vector, bound: float, share: float) -> tuple[Vector, float]:
        """Minus the Hessian, shape (d, d), and the noise's standard deviation on its diagonal."""
        packed, sd = self.measure.sum(Hessian(theta, W, self._tempering), bound, share)
        return -as_matrix(packed, len(theta)), sd

    def curvature(
        self, theta: Vector, W: Vector, share: float, of_sizes: float
    ) -> tuple[Vector, float]:
        """As :meth:`hessian`, with a bound from a histogram of its own that costs `of_sizes`."""
        sizes = self.hessian_sizes(theta, W, of_sizes, bins_per_octave=1)
        return self.hessian(theta, W, bound_of_search(sizes, self.measure.multiplier(share)), share)

    def both(self, theta: Vector, W: Vector, share: float) -> tuple[Vector, float, Vector, float]:
        """Gradient and curvature for a step of the search, each with its noise's standard deviation."""
        s = SETTINGS
        sizes = self.gradient_sizes(theta, W, s.search_sizes, bins_per_octave=1)
        for_gradient = 0.65 * share
        b = bound_of_search(sizes, self.measure.multiplier(for_gradient))
        gradient, sd = self.gradient(theta, W, b, for_gradient)
        M, sd_M = self.curvature(theta, W, share - for_gradient, s.search_sizes)
        return gradient, sd, M, sd_M


def bound_of_search(sizes: PrivateHistogram, noise_multiplier: float) -> float:
    """Clipping bound of a step towards the mode.

    By balance, but not so that a small group of records is clipped: its gradients would be missed, and
    its clipped Hessians would make every step too long in its direction. The quantile is interpolated
    within its bin, where all units may be; the balance takes its middle.
    """
    return max(1.05 * sizes.quantile(SETTINGS.search_kept), balanced_bound(sizes, noise_multiplier))


def balanced_bound(sizes: PrivateHistogram, noise_multiplier: float) -> float:
    """The bound for a sum of vectors that balances the noise it costs against the bias of what it clips.

    In one direction, as the interval of a parameter sees it: what is clipped may all point there.

    Parameters
    ----------
    sizes : PrivateHistogram
        Of the units' vectors.
    noise_multiplier : float
        z of the sum that will be released with this bound.
    """
    candidates = np.geomspace(sizes.quantile(0.5) / 2, sizes.largest, 100)
    costs = [
        SUBSTITUTE_ONE.noise_sd(b, noise_multiplier) ** 2 + sizes.excess(b) ** 2 for b in candidates
    ]
    return float(candidates[int(np.argmin(costs))])
