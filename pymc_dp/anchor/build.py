"""A run's looks, in order: towards the mode, near it, and with all that is left."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from pymc_dp.anchor.law import Law, Pooled, Posterior, nearby, pooled, posterior_of
from pymc_dp.anchor.look import Look
from pymc_dp.anchor.looks import Looks, middle_frame
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.search import Search, find_mode
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, floored, positive, power
from pymc_dp.records.measurements import Measurements


def build_anchor(
    measure: Measurements,
    log_public: LogPrior,
    start: Vector,
    *,
    tempering: float = 1.0,
    watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Anchor:
    """Find out what a budget allows to be known of a posterior.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of data, and spent afterwards.
    log_public : LogPrior
    start : ndarray, shape (d,)
        Where the search begins; public.
    tempering : float
        T.
    watch : callable, optional
        Told after every look of the search how many there were, and after the first look near the mode what that
        says. It may raise, and the rest is not spent here.
    on_progress : callable, optional
        Told what is being done. Gets public text only.

    Returns
    -------
    Anchor

    Notes
    -----
    **Releases**, each of a function of one unit's record and of earlier releases: histograms, counts, sums of
    clipped gradients, and sums of clipped Hessians as vectors of the same Frobenius norm; see
    :class:`~pymc_dp.records.measurements.Measurements` for their sensitivities. **Guarantee**: together one
    Gaussian release of the budget's multiplier.
    """
    run = _Run(measure, log_public, start, tempering)
    try:
        on_progress("searching for the mode")
        search = find_mode(
            run.looks, log_public, start, on_progress, lambda rounds: watch(rounds, None)
        )
        if search.lost:
            return run.nothing()
        on_progress("a first query there")
        run.first(search)
        watch(len(search.looks), run.posterior)
        on_progress("choosing clipping bounds for good")
        run.settle()
        on_progress("measuring the gradient, second query")
        run.last(third=False)
        on_progress("measuring the gradient, third query")
        run.last(third=True)
        return run.anchor(search)
    except (np.linalg.LinAlgError, OverflowError):  # of released numbers
        return run.nothing()


class _Run:
    """What is known so far."""

    def __init__(
        self,
        measure: Measurements,
        log_public: LogPrior,
        start: Vector,
        tempering: float,
    ):
        self.measure, self.log_public, self.start = measure, log_public, start
        self.scales = prior_scales(log_public, start)
        n, sd = measure.units(SETTINGS.of_units)
        self.n = max(n, sd, 1.0)
        self.looks = Looks(measure, self.n, self.scales, tempering)
        self.found: list[Look] = []

    def first(self, search: Search) -> None:
        """The first look, so that the next is within about one sd."""
        s, looks = SETTINGS, self.looks
        self.place, self.P, t1 = search.theta, search.P, search.t1
        self.found += search.looks
        share = float(np.clip(t1**2, *s.first_look))
        frames = [power(self.P, -0.5), np.diag(self.scales)]
        pays = max(share, s.pooled_share)
        choices = looks.choose(
            self.place, frames, self.P, looks.cheap, pays, 2, s.near_kept,
            0.0 if looks.poor else looks.fine,
        )  # fmt: skip
        chosen, _ = looks.closely(
            self.place, choices, self.P, pays, s.near_kept, s.final_count, looks.cheap
        )
        for_hessian = max(s.hessian_part[0], s.hessian_of_first * share)
        self.found.append(looks.look(self.place, chosen, share, for_hessian, s.hessians_kept))
        self._t = t1 / math.sqrt(share)
        self._move()

    def _move(self) -> None:
        """To the mean of the law so far."""
        pool = self._pool(self.found)
        r = posterior_of(pool.law, self.log_public, self.place, pool)
        self.place, self.P, self.posterior = r.mean, r.exact, r

    def _pool(self, looks: Sequence[Look]) -> Pooled:
        prior = -self.log_public.hessian(self.place)
        return pooled(looks, self.place, self.P, self.n, self.scales, nearby, prior)

    def settle(self) -> None:
        """The frame and the bound for all that is left, and how noise is best divided."""
        looks, s, d = self.looks, SETTINGS, len(self.place)
        frames = [power(self.P, -0.5), np.diag(self.scales), middle_frame(self.P, self.scales)]
        share = looks.fine
        choices = looks.choose(self.place, frames, self.P, looks.cheap, 0.8, 2)
        self.chosen, sizes = looks.closely(
            self.place, choices, self.P, 0.8, 0.0, s.final_count, share / 2, finely=share
        )
        V, b = self.chosen.V, self.chosen.b
        inverse = np.linalg.inv(V)
        X = inverse @ power(self.P, -0.5)
        size = float(np.trace(X.T @ X)) / d
        noise = self.measure.noise_sd
        self.t1 = noise(b, 1.0) * math.sqrt(size)
        C = looks.bound(sizes, 0.05, s.hessians_kept, self.chosen.hessians)
        self.a1 = noise(C, 1.0) * size

    def last(self, third: bool) -> None:
        """A look with half of what is left, or with all of it."""
        s, d = SETTINGS, len(self.place)
        left = 1 - self.measure.spent
        share = (left if third else left / 2) - self.looks.fine / 2
        # How far the mode is from the place, by what is known, in posterior sds: there the curvature's noise acts.
        distance = math.sqrt(d) * min(self.t1 / math.sqrt(0.4) if third else self._t, 5 * self.t1)
        ratio = self.a1 * distance * math.sqrt((1 + 1 / d) / 2) / self.t1
        least, most = (part * share for part in s.hessian_part)
        known = (self.a1 / 0.1) ** 2 / 2  # by then a curvature is known to a tenth
        for_hessian = float(
            np.clip(share * ratio / (1 + ratio), min(max(known, least), most), most)
        )
        if third:
            pool = self._pool(self.found)
            self._predicted = pool.law.beta, pool.noise_at(np.zeros(d))
        self.found.append(
            self.looks.look(
                self.place,
                self.chosen,
                share - for_hessian,
                for_hessian,
                s.hessians_kept,
                self.looks.fine / 2,
            )
        )
        self.last_place = self.place
        self._move()

    def anchor(self, search: Search) -> Anchor:
        """All looks together."""
        d, last = len(self.place), self.found[-1]
        pool = pooled(self.found, self.last_place, self.P, self.n, self.scales)
        r = posterior_of(pool.law, self.log_public, self.last_place, pool)
        expected, S = self._predicted
        off, V = last.gradient - expected, last.covariance + S
        return Anchor(
            posterior=r, V=last.V, gradient_clip=last.gradient_clip,
            hessian_clip=last.hessian_clip,
            surprise=math.sqrt(max(float(off @ np.linalg.solve(V, off)), 0.0) / d),
            off=np.linalg.solve(r.exact, off) / np.sqrt(np.diag(np.linalg.inv(r.exact))),
            improbable=self._improbable(r.mean), rounds=len(search.looks), arrived=True,
        )  # fmt: skip

    def _improbable(self, theta: Vector) -> Vector:
        """What the prior would gain if a parameter were back at the start."""
        here = self.log_public(theta)
        back = np.where(np.eye(len(theta), dtype=bool), self.start, theta)
        return np.array([self.log_public(moved) - here for moved in back])

    def nothing(self) -> Anchor:
        """The prior, for all that was learnt."""
        at, zero = self.start, np.zeros((len(self.start),) * 2)
        law, Λ = Law(at, np.zeros(len(at)), zero, zero), -self.log_public.hessian(at)
        # Not at the prior's mode: a funnel has none.
        r = Posterior(law, at, floored(Λ, 1e-12), positive(Λ, 1e-12), Λ)
        return Anchor(
            posterior=r, V=np.diag(self.scales), gradient_clip=math.nan,
            hessian_clip=math.nan, surprise=math.nan, off=np.zeros(len(at)), improbable=np.zeros(len(at)),
            rounds=0, arrived=False,
        )  # fmt: skip


def prior_scales(log_public: LogPrior, start: Vector) -> Vector:
    """Standard deviations of the prior, about, of every parameter; 1 where it has none."""
    precision = -np.diag(log_public.hessian(start))
    return np.where(precision > 0, 1 / np.sqrt(np.maximum(precision, 1e-300)), 1.0)
