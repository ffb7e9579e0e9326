"""What a fit of the normal surrogate gives."""

import math
from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector, power
from pymc_dp.surrogate.normal.law import Posterior


@dataclass(frozen=True)
class NormalSurrogate:
    r"""What a run's evaluations have found out. Nothing in it is private.

    Parameters
    ----------
    posterior : Posterior
        Given what was released, approximately; its law is what draws are made from.
    V : ndarray, shape (d, d)
        The last evaluation's whitening matrix.
    gradient_clip, hessian_clip : float
        b and C of the last evaluation, in its coordinates.
    surprise : float
        Root mean square of the last gradient, where the earlier evaluations say it should be, in sds of what noise
        explains, per parameter: about 1 if all is well. Of a public design: of the mean by all answers, where the last one alone puts it, in
        sds of what chance explains and a little that is harmless: about 1 or less (a test of Hausman, 1978).
    off : ndarray, shape (d,)
        How far the last evaluation says that the earlier ones were off, in every parameter's sd.
    improbable : ndarray, shape (d,)
        Nats that the prior would gain if a parameter were back at the start, and the others where they are.
    rounds : int
        Steps to the mode.
    arrived : bool
        Whether the search ended near it, as far as it could tell.
    """

    posterior: Posterior
    V: Vector
    gradient_clip: float
    hessian_clip: float
    surprise: float
    off: Vector
    improbable: Vector
    rounds: int
    arrived: bool

    @classmethod
    def known(cls, posterior: Posterior) -> "NormalSurrogate":
        """Of a law that is there already, without a search."""
        zero = np.zeros_like(posterior.mean)
        V = power(posterior.covariance, 0.5)
        return cls(posterior, V, math.nan, math.nan, 0.0, zero, zero, 0, arrived=True)

    @property
    def privacy_shift(self) -> float:
        """How far noise has moved the posterior, in its standard deviations per parameter."""
        return self.posterior.privacy_shift

    @property
    def unlearnt(self) -> Vector:
        """Variance of every parameter over the prior's, shape (d,)."""
        return np.minimum(self.posterior.of_prior, 1.0)
