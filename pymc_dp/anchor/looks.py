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
from typing import NamedTuple

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


class Group(NamedTuple):
    """Units that are longer than a histogram shows.

    Parameters
    ----------
    many, length : float
        How many, and how long.
    """

    many: float
    length: float

    def excess(self, bound: float) -> float:
        """What a bound clips of them."""
        return self.many * max(self.length - bound, 0.0)


NOBODY = Group(0.0, 0.0)


class Choice(NamedTuple):
    """How to look at a gradient.

    Parameters
    ----------
    V : ndarray, shape (d, d)
        The frame.
    b : float
        The clipping bound.
    excess : float
        What that clips, if it all points in one direction.
    long : float
        Length of units that no histogram has shown, if there are such; else 0.
    """

    V: Vector
    b: float
    excess: float
    long: float


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
        self._longest = 0.0
        self.fine = float(np.clip((whole / (s.fine_count * n)) ** 2, *s.fine))

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
        chosen: "Choice",
        for_gradient: float,
        for_hessian: float,
        kept: float,
        of_sizes: float = 0.0,
    ) -> Look:
        """Gradient and curvature at a place.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        chosen : Choice
            In which frame, and within which bounds.
        for_gradient, for_hessian : float
            Shares.
        kept : float
            Quantile of their sizes up to which Hessians are not clipped.
        of_sizes : float
            Share of the histogram of these; default: :attr:`cheap`.
        """
        V, b, excess, long = chosen
        G, sd = self.measure.sum(Gradient(theta, V, self._tempering), b, for_gradient)
        sizes = self.hessian_sizes(theta, V, of_sizes or self.cheap)
        C = self.hessian_bound(sizes, for_hessian, kept, long)
        packed, sd_A = self.measure.sum(Hessian(theta, V, self._tempering), C, for_hessian)
        inverse = np.linalg.inv(V)
        A = -inverse.T @ as_matrix(packed, len(theta)) @ inverse
        return Look(theta, V, inverse.T @ G, A, sd, sd_A, b, C, excess)

    def hessian_bound(
        self, sizes: PrivateHistogram, share: float, kept: float, long: float
    ) -> float:
        """C: as :meth:`bound`, and not below the square of a length that hidden units have.

        A unit's information is about its score's square; clipped, it makes every step too long in the
        direction that these units alone speak of.
        """
        return max(self.bound(sizes, share, kept), long**2 / SETTINGS.group_length)

    def bound(
        self,
        sizes: PrivateHistogram,
        share: float,
        kept: float = 0.0,
        group: Group = NOBODY,
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
        group : Group
            That the histogram does not show.
        """
        candidates = np.geomspace(sizes.quantile(0.5) / 2, max(sizes.largest, group.length), 200)
        noise = self.measure.noise_sd(1.0, share)
        costs = [
            (noise * b) ** 2 + SETTINGS.bias * (sizes.excess(b) + group.excess(b)) ** 2
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
        for_count: float = 0.0,
        finely: float = 0.0,
    ) -> Choice:
        r"""The frame in which a gradient's noise hurts least, and its clipping bound there.

        By a histogram in each of the frames, and counts of units that are too few to be seen in bins: from the
        second place on, of those that are still as long as the longest at the first, where rare outcomes look
        like all others; and for good, of those that are well beyond the bound, as a rare category's are.

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
        for_count : float
            Share of a count; 0 for none.
        finely : float
            Share of another histogram, in the chosen frame, for the bound; 0 for none.
        """
        count = for_count > 0 and self._longest > 0 and not finely
        still = self._still_long(theta, for_count) if count else (0.0, 1.0)
        found, seen = [], math.inf
        for V in frames:
            sizes = self.gradient_sizes(theta, V, share, bins)
            group = self._in(V, still, sizes)
            b = self.bound(sizes, for_gradient, kept, group)
            unseen = sizes.excess(b) + group.excess(b)
            noise = math.hypot(self.measure.noise_sd(b, for_gradient), unseen)
            found.append((_loss(V, noise, P), V, b, sizes, group))
            seen = min(seen, sizes.quantile(0.995) / self._size(V))
        self._longest = self._longest or seen
        _, V, b, sizes, group = min(found, key=lambda f: f[0])
        if finely:
            sizes = self.gradient_sizes(theta, V, finely, self.bins_for(finely))
            b = self.bound(sizes, for_gradient, kept, group)
            if P is not None and group is NOBODY:
                group = self._group(theta, V, P, SETTINGS.well_beyond * b, sizes, for_count)
                b = max(b, self.bound(sizes, for_gradient, kept, group))
        return Choice(V, b, sizes.excess(b) + group.excess(b), group.length)

    def _size(self, V: Vector) -> float:
        """How much longer a frame makes what is equally long in all of the prior's scales."""
        return float(np.linalg.norm(V / self.scales[:, None])) / math.sqrt(len(V))

    def _in(self, V: Vector, still: tuple[float, float], sizes: PrivateHistogram) -> Group:
        """Of the units that are still long, those that a histogram in this frame does not show."""
        many, sd = still
        length = self._longest * self._size(V)
        hidden = many - sizes.beyond(length / 2)
        return Group(hidden, length) if hidden > SETTINGS.counted * sd else NOBODY

    def _still_long(self, theta: Vector, share: float) -> tuple[float, float]:
        """How many units' gradients are half as long as the longest at the first place, and the noise's sd."""
        D, s = np.diag(self.scales), SETTINGS
        of = Longer(theta, D * self._tempering, self._longest / 2)
        many, sd = self.measure.count(of, share)
        return (many, sd) if many < s.rare * self.n_units else (0.0, sd)

    def _group(
        self,
        theta: Vector,
        V: Vector,
        P: Vector,
        length: float,
        sizes: PrivateHistogram,
        share: float,
    ) -> Group:
        """Units longer than this that a histogram does not show, as a group that alone tells of something.

        m such units are about 1/√m posterior sds long: what they say is that parameter's information. A
        histogram spreads them over its bins, each with noise of its own; a count does not.
        """
        s = SETTINGS
        many, sd = self.measure.count(Longer(theta, V * self._tempering, length), share)
        if many - sizes.beyond(length) < s.counted * sd or many > s.rare * self.n_units:
            return NOBODY
        most = float(np.linalg.eigvalsh(V.T @ P @ V)[-1])
        alone = s.group_length * math.sqrt(most / (many + sd)) if most < s.about_white else 0.0
        return Group(many, max(s.hidden_length * length, alone))


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
