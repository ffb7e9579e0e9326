"""Newton steps towards a mode, from noisy gradients and curvatures alone."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.anchor.looks import Looks
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.exceptions import PrivacyError
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, floored, inverse_root

_LEAST = 1e-9
"""A precision that says nothing, in coordinates in which the posterior's is about one."""


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
        self._furthest = SETTINGS.lost * math.sqrt(n_units)

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
            self._furthest = max(self._furthest, SETTINGS.lost * self.length)
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


def find_mode(
    looks: Looks,
    log_public: PublicLogDensity,
    start: Vector,
    on_progress: Callable[[str], None] = lambda _: None,
) -> NewtonSearch:
    """Private Newton steps within a trust region, each as dear as what the noise of the one before asks for.

    Parameters
    ----------
    looks : Looks
        What pays for them: :attr:`AnchorSettings.mode <pymc_dp.anchor.settings.AnchorSettings.mode>`, at most.
    log_public : PublicLogDensity
    start : ndarray, shape (d,)
        Public.
    on_progress : callable, optional
        Told how far the search is. Gets public text only.

    Returns
    -------
    NewtonSearch
        Where it has come to.

    Raises
    ------
    SearchLost
        If it did not arrive.
    """
    s, measure = SETTINGS, looks.measure
    d, root_n, share = len(start), math.sqrt(measure.n_units), s.first_step
    search = NewtonSearch(start, measure.n_units, log_public)
    spent_before, last, of_sizes = measure.spent, False, 2 * s.search_sizes
    while True:
        if last:
            share = min(s.last_step, s.mode - (measure.spent - spent_before) - of_sizes)
        search.step(*looks.both(search.theta, search.W, share))
        length, travelled, error = search.length, search.travelled, search.error
        on_progress(f"step {search.rounds} towards the mode, about {length:.3g} sds away")
        if last:
            if length - travelled > 2 * s.quadratic * root_n:
                raise SearchLost(
                    f"it ended {length:.3g} posterior standard deviations away, and took "
                    f"{search.rounds} steps to get there"
                )
            return search
        # From afar a rough direction will do; nearby, the place is wanted to a fraction of an sd.
        left = length - travelled + 0.3 * travelled if math.isfinite(travelled) else length
        tolerable = max(0.7, 0.5 * left / math.sqrt(d))
        share = float(np.clip(share * (error / tolerable) ** 2, s.smallest_step, s.largest_step))
        close = min(2 * float(np.clip(error, 0.25, 1.0)) * math.sqrt(d), s.quadratic * root_n)
        spent = measure.spent - spent_before
        nearly_used_up = spent + share + 2 * of_sizes > s.mode - s.last_step
        settled = search.rounds >= 3 and length < close and search.change < s.settled
        last = settled or nearly_used_up


def prior_precision(log_public: PublicLogDensity, theta: Vector, W: Vector) -> Vector:
    r""":math:`W^\top \Lambda W`, Λ minus the Hessian of the log prior at `theta`."""
    return -W.T @ log_public.hessian(theta) @ W
