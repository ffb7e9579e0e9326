"""Newton steps towards a mode, from noisy gradients and curvatures alone."""

import math

import numpy as np

from pymc_dp.anchor.matrices import Vector, floored, inverse_root
from pymc_dp.likelihood.prior import PublicLogDensity

QUADRATIC = 0.35
"""A record's log-likelihood looks quadratic over about this many times √n posterior standard deviations."""


class NewtonSearch:
    r"""A search within a trust region. Post-processing: it is shown releases, and never data.

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

    def step(self, gradient: Vector, sd: float, M: Vector, sd_M: float) -> None:
        """Make a step, and whiten.

        Parameters
        ----------
        gradient : ndarray, shape (d,)
            Of the log-likelihood at :attr:`theta`, in u, with noise of standard deviation `sd`.
        M : ndarray, shape (d, d)
            Minus its Hessian, with noise of standard deviation `sd_M`.
        """
        d, W = len(self.theta), self.W
        s = gradient + W.T @ self._log_public.gradient(self.theta)
        P = M + prior_precision(self._log_public, self.theta, W)
        P = floored(P, max(sd_M * math.sqrt(d), 0.02 * float(np.trace(P)) / d, 1e-8))
        values = np.linalg.eigvalsh(P)
        self.change = float(max(values[-1], 1 / values[0]))
        surprise = max(0.0, float(np.linalg.norm(s - self._predicted)) - 2 * sd * math.sqrt(d))
        if self.rounds and surprise < 0.25 * self.travelled:
            self._trust *= 8
        elif self.rounds and surprise > 0.75 * self.travelled:
            self._trust /= 4
        step = np.linalg.solve(P, s)
        self.length = math.sqrt(float(step @ P @ step))
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
