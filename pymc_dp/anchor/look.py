r"""Looks: noisy derivatives of the log-likelihood at a place, in the frame in which noise hurts least.

A *frame* is an invertible matrix V of public numbers. In it a unit's gradient is :math:`V^\top g_i` and its
Hessian :math:`V^\top H_i V`; these are clipped in norm, summed, and get noise that is the same in all
directions of the frame. So the frame is the shape of the noise: white (:math:`V V^\top = P^{-1}`) is best
where units are alike in all directions, the prior's scales where some parameters are those of few units.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_dp.linalg import Vector, product_covariance
from pymc_dp.privacy.histogram import PrivateHistogram


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
    units : float
        So many units, about, that alone tell of something, if there were such.
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
    units: float = math.inf

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

    def curvature_covariance(self, vv: Vector) -> Vector:
        r"""Covariance of :math:`\Xi v`, Ξ the noise in :attr:`curvature`, from the mean of :math:`v v^\top`."""
        noise = product_covariance(self.inverse @ vv @ self.inverse.T, self.curvature_sd)
        return np.asarray(self.inverse.T @ noise @ self.inverse)

    def curvature_sd_in(self, W: Vector) -> float:
        """Typical standard deviation of the curvature's noise in another frame."""
        X = self.inverse @ W
        return self.curvature_sd * float(np.trace(X.T @ X)) / len(X)


class Group(NamedTuple):
    """Units that are longer than a histogram shows: from some length on fewer and fewer, exponentially.

    Parameters
    ----------
    many, lengths, rates : ndarray
        How many, from which length on, and by how much longer the next e-th part is.
    """

    many: Vector
    lengths: Vector
    rates: Vector

    def excess(self, bound: float) -> float:
        """What a bound clips of them."""
        beyond = np.maximum(bound - self.lengths, 0.0)
        each = self.rates * np.exp(-beyond / self.rates) + np.maximum(self.lengths - bound, 0.0)
        return float(self.many @ each)

    @property
    def longest(self) -> float:
        """About; 0 if there are none."""
        return float(np.max(self.lengths + 4 * self.rates, initial=0.0))


NOBODY = Group(*np.zeros((3, 0)))


class Choice(NamedTuple):
    """How to look at a place.

    Parameters
    ----------
    V : ndarray, shape (d, d)
        The frame.
    b : float
        The gradients' clipping bound.
    sizes : PrivateHistogram
        Of the gradients.
    group : Group
        Units whose gradients are longer than that shows.
    loss : float
        What noise in this frame costs.
    hessians : Group
        Units whose Hessians are longer than a histogram shows.
    """

    V: Vector
    b: float
    sizes: PrivateHistogram
    group: Group
    loss: float
    hessians: Group = NOBODY

    @property
    def excess(self) -> float:
        """What the bound clips, if it all points in one direction."""
        return self.sizes.excess(self.b) + self.group.excess(self.b)

    @property
    def units(self) -> float:
        """How many there are of those with long Hessians; infinite if there are none."""
        return max(float(self.hessians.many.sum()), 1.0) if len(self.hessians.many) else math.inf
