r"""Looks: noisy derivatives of the log-likelihood at a place, in the frame in which noise hurts least.

A *frame* is an invertible matrix V of public numbers. In it a unit's gradient is :math:`V^\top g_i` and its
Hessian :math:`V^\top H_i V`; these are clipped in norm, summed, and get noise that is the same in all
directions of the frame. So the frame is the shape of the noise: white (:math:`V V^\top = P^{-1}`) is best
where units are alike in all directions, the prior's scales where some parameters are those of few units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import Vector, as_matrix, power, product_covariance
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.questions import Gradient, Hessian, Longer


@dataclass(frozen=True)
class Look:
    r"""Gradient and curvature of the log-likelihood at a place, in θ. Nothing in it is private.

    Parameters
    ----------
    theta : ndarray, shape (d,)
        The place.
    V : ndarray, shape (d, d)
        The frame.
    gradient : ndarray, shape (d,)
        G, with noise of standard deviation `gradient_sd` in every direction of the frame.
    curvature : ndarray, shape (d, d)
        A, minus the Hessian, with noise of standard deviation `curvature_sd` on the frame's diagonal.
    gradient_sd, curvature_sd : float
    gradient_clip, hessian_clip : float
        b and C, in the frame.
    excess : float
        What clipping takes from the gradients' sum, in the frame, if it all points in one direction.
    """

    theta: Vector
    V: Vector
    gradient: Vector
    curvature: Vector
    gradient_sd: float
    curvature_sd: float
    gradient_clip: float
    hessian_clip: float
    excess: float

    @cached_property
    def inverse(self) -> Vector:
        """:math:`V^{-1}`."""
        return np.asarray(np.linalg.inv(self.V))

    @cached_property
    def covariance(self) -> Vector:
        """S, of the noise in :attr:`gradient`."""
        return np.asarray(self.gradient_sd**2 * (self.inverse.T @ self.inverse))

    @cached_property
    def clipped(self) -> Vector:
        """R, RRᵀ the covariance of what clipping takes from the gradient: all of it, in any direction."""
        return np.asarray(self.excess / math.sqrt(len(self.V)) * self.inverse.T)

    def curvature_covariance(self, v: Vector) -> Vector:
        r"""Covariance of :math:`\Xi v`, Ξ the noise in :attr:`curvature`."""
        noise = product_covariance(self.inverse @ v, self.curvature_sd)
        return np.asarray(self.inverse.T @ noise @ self.inverse)

    def curvature_sd_in(self, W: Vector) -> float:
        """Typical standard deviation of the curvature's noise in another frame."""
        X = self.inverse @ W
        return self.curvature_sd * float(np.trace(X.T @ X)) / len(X)


class Looks:
    r"""Looks at the tempered log-likelihood, and what decides in which frame and within which bounds.

    Parameters
    ----------
    measure : Measurements
        Asked, and paid, for everything.
    n_units : float
        How many units there are, about: public, or released.
    scales : ndarray, shape (d,)
        The prior's, of every parameter: public.
    tempering : float
        T.

    Attributes
    ----------
    cheap, fine : float
        Shares of a histogram that looks roughly, or closely.
    poor : bool
        Whether even a rough histogram costs too much to look at many.
    """

    def __init__(
        self, measure: Measurements, n_units: float, scales: Vector, tempering: float = 1.0
    ):
        s, n = SETTINGS, n_units
        self.measure, self.n_units, self.scales, self._tempering = measure, n, scales, tempering
        whole = measure.count_sd(1.0)
        rough = (whole / (s.rough_count * n)) ** 2
        self.poor = rough > s.poor
        self.cheap = float(np.clip(rough, *s.cheap))
        self.fine = float(np.clip((whole / (s.fine_count * n)) ** 2, *s.fine))
        self._longest = 0.0

    def gradient_sizes(self, theta: Vector, V: Vector, share: float, bins: int) -> PrivateHistogram:
        """Histogram of the norms of units' gradients, with so many bins per octave."""
        return self.measure.histogram(Gradient(theta, V, self._tempering), share, bins)

    def hessian_sizes(self, theta: Vector, V: Vector, share: float) -> PrivateHistogram:
        """Histogram of the Frobenius norms of units' Hessians."""
        return self.measure.histogram(Hessian(theta, V, self._tempering), share, 2)

    def bins_for(self, share: float) -> int:
        """How many bins per octave a histogram of this share can tell apart."""
        noise = self.measure.count_sd(share) / self.n_units
        return 4 if noise < 0.0015 else 2 if noise < 0.01 else 1

    def look(
        self,
        theta: Vector,
        V: Vector,
        b: float,
        for_gradient: float,
        for_hessian: float,
        kept: float,
        excess: float = 0.0,
    ) -> Look:
        """Gradient, clipped to b, and curvature at a place.

        Parameters
        ----------
        theta, V, b
            Where, in which frame, and the gradients' clipping bound there.
        for_gradient, for_hessian : float
            Shares.
        kept : float
            Quantile of their sizes up to which Hessians are not clipped.
        excess : float
            What is clipped of the gradients.
        """
        G, sd = self.measure.sum(Gradient(theta, V, self._tempering), b, for_gradient)
        sizes = self.hessian_sizes(theta, V, self.cheap)
        C = self.bound(sizes, for_hessian, kept)
        packed, sd_A = self.measure.sum(Hessian(theta, V, self._tempering), C, for_hessian)
        inverse = np.linalg.inv(V)
        A = -inverse.T @ as_matrix(packed, len(theta)) @ inverse
        return Look(theta, V, inverse.T @ G, A, sd, sd_A, b, C, excess)

    def bound(
        self,
        sizes: PrivateHistogram,
        share: float,
        kept: float = 0.0,
        hidden: tuple[float, float] = (0.0, 0.0),
    ) -> float:
        """Clipping bound of a sum: by balance, but not below a quantile of the sizes.

        The balance is in one direction, as the interval of a parameter sees it: what is clipped may all
        point there.

        Parameters
        ----------
        sizes : PrivateHistogram
        share : float
            What the sum will cost.
        kept : float
            The quantile.
        hidden : (float, float)
            How many units are known to be longer than the histogram shows, and how long they are.
        """
        many, length = hidden
        candidates = np.geomspace(sizes.quantile(0.5) / 2, max(sizes.largest, length), 200)
        noise = self.measure.noise_sd(1.0, share)
        costs = [
            (noise * b) ** 2 + SETTINGS.bias * (sizes.excess(b) + many * max(length - b, 0.0)) ** 2
            for b in candidates
        ]
        b = float(candidates[int(np.argmin(costs))])
        return max(b, 1.05 * sizes.quantile(kept)) if kept else b

    def choose(
        self,
        theta: Vector,
        frames: Sequence[Vector],
        P: Vector | None,
        share: float,
        for_gradient: float,
        bins: int,
        kept: float = 0.0,
        count: bool = True,
    ) -> tuple[Vector, float, float]:
        r"""The frame in which a gradient's noise hurts least, and its clipping bound there, and what it clips.

        By a histogram in each of the frames and, from the second place on, one count: of units that are still
        as long as the longest at the first. Groups of few units, rare outcomes say, look like all others at
        first, and later are too few to show in bins.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        frames : sequence of ndarray of shape (d, d)
        P : ndarray, shape (d, d), optional
            The posterior's precision, as far as known.
        share : float
            Of each histogram.
        for_gradient : float
            Share of the gradient to come.
        bins : int
            Per octave.
        kept : float
            As in :meth:`bound`.
        count : bool
            Whether to count.
        """
        many = self._still_long(theta, share) if self._longest and count else 0.0
        best: tuple[float, Vector, float, float] | None = None
        seen = math.inf
        for V in frames:
            X = V / self.scales[:, None]
            longest = self._longest * float(np.linalg.norm(X)) / math.sqrt(len(X))
            sizes = self.gradient_sizes(theta, V, share, bins)
            hidden = (many, longest) if many else (0.0, 0.0)
            b = self.bound(sizes, for_gradient, kept, hidden)
            seen = min(
                seen, sizes.quantile(0.995) * math.sqrt(len(X)) / float(np.linalg.norm(X))
            )
            unseen = sizes.excess(b) + many * max(longest - b, 0.0)
            noise = math.hypot(self.measure.noise_sd(b, for_gradient), unseen)
            hurts = _loss(V, noise, P)
            if best is None or hurts < best[0]:
                best = hurts, V, b, unseen
        self._longest = self._longest or seen
        assert best is not None
        return best[1:]

    def _still_long(self, theta: Vector, share: float) -> float:
        """How many units' gradients are half as long as the longest at the first place."""
        D, s = np.diag(self.scales), SETTINGS
        of = Longer(theta, D * self._tempering, self._longest / 2)
        many, sd = self.measure.count(of, max(s.of_count, share / 2))
        return many if s.counted * sd < many < s.rare * self.n_units else 0.0


def _loss(V: Vector, noise: float, P: Vector | None) -> float:
    """What noise of this size in all directions of a frame costs: mean of log(1 + variance added)."""
    if P is None:  # nothing is known yet: the volume
        return math.log(noise) - float(np.linalg.slogdet(V)[1]) / len(V)
    C, inverse = np.linalg.inv(P), np.linalg.inv(V)
    added = C @ (noise**2 * inverse.T @ inverse) @ C
    return float(np.mean(np.log1p(np.diag(added) / np.diag(C))))


def middle_frame(P: Vector, scales: Vector) -> Vector:
    r"""Half-way between white and the prior's scales D: :math:`W M^{-1/4}`, :math:`M = W^\top D^{-2} W`."""
    W = power(P, -0.5)
    M = W.T @ (W / scales[:, None] ** 2)
    return np.asarray(W @ power(M / np.trace(M), -0.25))
