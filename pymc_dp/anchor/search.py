"""Newton steps towards a mode, from noisy gradients and curvatures alone."""

import math

import numpy as np

from pymc_dp.anchor.matrices import Vector, floored, inverse_root
from pymc_dp.exceptions import PrivacyError
from pymc_dp.likelihood.prior import PublicLogDensity

QUADRATIC = 0.35
"""A record's log-likelihood looks quadratic over about this many times √n posterior standard deviations."""


# Searches that arrived, on real data (six regressions, unscaled covariates among them), were never twice
# as far from the mode as at first. One that is so many times as far, or as a record's own scale √n if that
# is more, has diverged; left alone, it was seen to end at 1e40.
_LOST = 100.0
# A precision that says nothing, in coordinates in which the posterior's is about one.
_LEAST = 1e-9


class SearchLost(PrivacyError):
    """A search has plainly diverged, or ended far from any mode."""


class NewtonSearch:
    r"""A search within a trust region. Post-processing: it is shown releases, and never data.

    With a gradient :math:`\hat g \sim N(Ju, J + S)` of the likelihood, J its information and S the noise's
    covariance, the step is to the mean of u given :math:`\hat g` and the prior,
    :math:`(L_0 + KJ)^{-1}(\rho + K\hat g)` with :math:`K = J(J + S)^{-1}`, as for noise-aware draws.

    Parameters
    ----------
    theta : ndarray, shape (d,)
        Where it starts; public.
    n_units : int
    log_public : PublicLogDensity
        The prior.

    Attributes
    ----------
    theta : ndarray, shape (d,)
        Where it has come to.
    W : ndarray, shape (d, d)
        Coordinates of the next look, :math:`\theta + W u`: whitens the posterior, about.
    rounds : int
        Steps made.
    length, travelled : float
        Of the last Newton step, and of what was made of it, in posterior standard deviations; infinite
        if the place it led to was no place.
    change : float
        Largest factor by which the curvature differed from what the look before had made of it.
    error : float
        Standard deviation that noise gave the last step, per parameter, in the coordinates before it.
    """

    def __init__(self, theta: Vector, n_units: int, log_public: PublicLogDensity):
        self.theta, self.W, self.rounds = theta, np.eye(len(theta)), 0
        self.length = self.travelled = self.change = self.error = math.inf
        self._log_public = log_public
        # In posterior sds: √n of them are one record's, about where a quadratic model may fail.
        self._trust, self._predicted = math.sqrt(n_units), np.zeros(len(theta))
        self._furthest = _LOST * math.sqrt(n_units)

    def step(self, gradient: Vector, sd: float, M: Vector, sd_M: float) -> None:
        """Make a step, and whiten.

        Parameters
        ----------
        gradient : ndarray, shape (d,)
            Of the log-likelihood at :attr:`theta`, in u, with noise of standard deviation `sd`.
        M : ndarray, shape (d, d)
            Minus its Hessian, with noise of standard deviation `sd_M`.

        Raises
        ------
        SearchLost
            If it has diverged: more steps would be paid for in vain.
        """
        d, W = len(self.theta), self.W
        slope = W.T @ self._log_public.gradient(self.theta)
        s = gradient + slope
        L0 = prior_precision(self._log_public, self.theta, W)
        P = M + L0
        P = floored(P, max(sd_M * math.sqrt(d), 0.02 * float(np.trace(P)) / d, 1e-8))
        values = np.linalg.eigvalsh(P)
        self.change = float(max(values[-1], 1 / values[0]))
        surprise = max(0.0, float(np.linalg.norm(s - self._predicted)) - 2 * sd * math.sqrt(d))
        if self.rounds and surprise < 0.25 * self.travelled:
            self._trust *= 8
        elif self.rounds and surprise > 0.75 * self.travelled:
            self._trust /= 4
        # Where noise is all that a gradient says, the prior decides how far a step goes.
        known = floored(L0, _LEAST)
        J = floored(P - known, _LEAST)
        kept = J @ np.linalg.inv(J + sd * sd * np.eye(d))
        step = np.linalg.solve(known + kept @ J, slope + kept @ gradient)
        self.length = math.sqrt(float(step @ P @ step))
        if self.rounds == 0:  # with covariates of any scale it may begin anywhere
            self._furthest = max(self._furthest, _LOST * self.length)
        if not self.length <= self._furthest:
            raise SearchLost(
                f"after {self.rounds + 1} steps it was {self.length:.3g} posterior standard deviations away, "
                f"much further than at first"
            )
        self.travelled = min(self.length, self._trust)
        step *= self.travelled / max(self.length, 1e-300)
        self.error = sd * math.sqrt(float(np.trace(np.linalg.inv(P))) / d)
        root = inverse_root(P)
        self._predicted, moved = root @ (s - P @ step), self.theta + W @ step
        if math.isfinite(self._log_public(moved)):
            self.theta = moved
        else:
            self._trust, self.travelled = self._trust / 4, math.inf
        self.W, self.rounds = W @ root, self.rounds + 1


def prior_precision(log_public: PublicLogDensity, theta: Vector, W: Vector) -> Vector:
    r""":math:`W^\top \Lambda W`, Λ minus the Hessian of the log prior at `theta`."""
    return -W.T @ log_public.hessian(theta) @ W
