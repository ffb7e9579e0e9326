"""The way to the mode: steps from looks that cost little, each as dear as the noise of the one before asks for."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_dp.anchor.law import far_away, pooled, posterior_of
from pymc_dp.anchor.look import Look
from pymc_dp.anchor.looks import Looks
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, floored, power


class Search:
    r"""Moves to the mean of the law of all looks so far, within a trust region.

    Post-processing: it is shown releases, and never data. Where noise drowns the data the law's mean is the
    prior's mode; looks from afar count for little in it.

    Parameters
    ----------
    theta : ndarray, shape (d,)
        Where it starts; public.
    n_units : float
        How many units, about.
    scales : ndarray, shape (d,)
        The prior's: no step is longer than two of them.
    log_public : LogPrior
        The prior.

    Attributes
    ----------
    theta : ndarray, shape (d,)
        Where it has come to.
    P : ndarray, shape (d, d) or None
        The posterior's precision, as far as known.
    looks : list of Look
    length, travelled : float
        Of the last step as it should have been, and of what was made of it, in posterior standard
        deviations; infinite if the place it led to was no place.
    change : float
        Largest factor by which the curvature differed from what it was before the last look.
    error : float
        Standard deviation that noise gave the last look, per parameter, in posterior standard deviations.
    privacy_shift : float
        The same of all looks together.
    t1 : float
        What a gradient that costs all of the budget would have for an `error`.
    lost : bool
        Whether it has plainly diverged.
    """

    def __init__(self, theta: Vector, n_units: float, scales: Vector, log_public: LogPrior):
        self.theta, self.lost, self.looks = theta, False, list[Look]()
        self.P: Any = None
        self.length = self.travelled = self.change = self.error = self.privacy_shift = self.t1 = (
            math.inf
        )
        self._n, self._scales, self._log_public = n_units, scales, log_public
        # In posterior sds: √n of them are one record's, about where a quadratic model may fail.
        self._trust = math.sqrt(n_units)
        self._predicted: Vector | None = None
        self._furthest = SETTINGS.lost * math.sqrt(n_units)

    def step(self, look: Look) -> None:
        """Make a step from a look at :attr:`theta`."""
        d = len(self.theta)
        prior = -self._log_public.hessian(self.theta)
        P = self.P
        if P is None:
            PV = look.V.T @ (look.curvature + prior) @ look.V
            least = max(look.curvature_sd * math.sqrt(d), 0.002 * float(np.trace(PV)) / d, 1e-8)
            P = look.inverse.T @ floored(PV, least) @ look.inverse
        self.looks.append(look)
        pool = pooled(self.looks, self.theta, P, self._n, self._scales, far_away, prior)
        P_new = floored(pool.law.J + prior, 1e-12)
        R = power(P, -0.5)
        values = np.linalg.eigvalsh(R @ P_new @ R)
        self.change = float(max(values[-1], 1 / values[0])) if self.P is not None else math.inf
        P = P_new
        C: Vector = np.asarray(np.linalg.inv(P))
        noise = math.sqrt(float(np.trace(C @ look.covariance)))
        self.error = noise / math.sqrt(d)
        slope = self._log_public.gradient(self.theta)
        if self._predicted is not None:
            self._adapt(look.gradient + slope - self._predicted, C, noise)

        r = posterior_of(pool.law, self._log_public, self.theta)
        step = r.mean - self.theta
        self.privacy_shift, self.length = r.privacy_shift, math.sqrt(float(step @ P @ step))
        if self._predicted is None:  # with covariates of any scale it may begin anywhere
            self._furthest = max(self._furthest, SETTINGS.lost * self.length)
        self.lost = not self.length <= self._furthest
        part = min(
            1.0,
            self._trust / max(self.length, 1e-300),
            SETTINGS.prior_sds / max(float(np.max(np.abs(step) / self._scales)), 1e-300),
        )
        step = part * step
        self.travelled = part * self.length
        # What the law says the gradient will be there.
        law = pool.law
        self._predicted = law.beta - law.J @ (self.theta + step - law.centre)
        moved = self.theta + step
        self._predicted = self._predicted + self._log_public.gradient(moved)
        if math.isfinite(self._log_public(moved)):
            self.theta = moved
        else:
            self._trust, self.travelled = self._trust / 4, math.inf
        self.P = P

    def _adapt(self, off: Vector, C: Vector, noise: float) -> None:
        """Trust the quadratic model further, or less far, for how well it has predicted the gradient."""
        surprise = max(0.0, math.sqrt(float(off @ C @ off)) - 2 * noise)
        if surprise < 0.25 * self.travelled:
            self._trust *= 8
        elif surprise > 0.75 * self.travelled:
            self._trust /= 4


def find_mode(
    looks: Looks,
    log_public: LogPrior,
    start: Vector,
    on_progress: Callable[[str], None] = lambda _: None,
    watch: Callable[[int], None] = lambda rounds: None,
) -> Search:
    """Search for the mode.

    Parameters
    ----------
    looks : Looks
        What pays for it: :attr:`AnchorSettings.search <pymc_dp.anchor.settings.AnchorSettings.search>`, about.
    log_public : LogPrior
    start : ndarray, shape (d,)
        Public.
    on_progress : callable, optional
        Told how far the search is. Gets public text only.
    watch : callable, optional
        Told how many looks were made. It may raise, to leave.

    Returns
    -------
    Search
        Where it has come to; not the mode if it is `lost`, or still far by its `length`.
    """
    s, measure = SETTINGS, looks.measure
    d, root_n = len(start), math.sqrt(looks.n_units)
    search = Search(start, looks.n_units, looks.scales, log_public)
    raw, spent_before = np.diag(looks.scales), measure.spent
    # From afar noise may be a tenth of the way, which is about √n sds; units' gradients are some 2√(d/n) long.
    ahead = measure.noise_sd(2 * math.sqrt(d) / root_n, 1.0) * math.sqrt(d) / (0.1 * root_n)
    share = float(np.clip(ahead**2, *s.first_step))
    while True:
        frames = [raw, np.eye(d)] if search.P is None else [power(search.P, -0.5)]
        if search.P is not None and not looks.poor:
            frames.append(raw)
        for_gradient = s.gradient_of_step * share
        for_count = 0.0 if looks.poor else max(looks.few, share / 8)
        choices = looks.choose(
            search.theta, frames, search.P, looks.cheap, for_gradient, 1, s.search_kept, for_count
        )
        chosen = choices[0]
        if search.P is not None and for_count and share > 5 * looks.few:
            chosen, _ = looks.closely(
                search.theta, choices, search.P, for_gradient, s.search_kept, for_count, looks.cheap
            )
        search.step(
            looks.look(
                search.theta, chosen, for_gradient, share - for_gradient, s.hessians_of_search
            )
        )
        length, travelled, error = search.length, search.travelled, search.error
        rounds = len(search.looks)
        on_progress(f"step {rounds} towards the mode, about {length:.3g} sds away")
        search.t1 = error * math.sqrt(for_gradient)
        close = min(3 * float(np.clip(error, 0.7, 3)) * math.sqrt(d), s.quadratic * root_n)
        arrived = rounds >= 3 and length < close and search.change < s.settled
        if arrived or search.lost or measure.spent - spent_before > s.search:
            return search
        watch(rounds)
        left = length - travelled + 0.3 * travelled if math.isfinite(travelled) else length
        tolerable = max(1.5, 0.4 * left / math.sqrt(d))
        share = float(np.clip((search.t1 / tolerable) ** 2 / s.gradient_of_step, *s.step))
