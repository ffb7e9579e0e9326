"""A run's looks, in order: towards the mode, near it, and with all that is left."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.anchor.law import Law, Pooled, nearby, pooled, posterior_of
from pymc_dp.anchor.looks import Look, Looks, middle_frame
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.search import Search, find_mode
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, power
from pymc_dp.records.measurements import Measurements


def build_anchor(
    measure: Measurements,
    log_public: PublicLogDensity,
    start: Vector,
    *,
    tempering: float = 1.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Anchor:
    """Find out what a budget allows to be known of a posterior.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of data, and spent afterwards.
    log_public : PublicLogDensity
    start : ndarray, shape (d,)
        Where the search begins; public.
    tempering : float
        T.
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
        search = find_mode(run.looks, log_public, start, on_progress)
        if search.lost:
            return run.nothing()
        on_progress("a first look there")
        run.first(search)
        on_progress("choosing clipping bounds for good")
        run.settle()
        for which in ("second", "third"):
            on_progress(f"measuring the gradient, {which} look")
            run.last(which == "third")
        return run.anchor(search)
    except (np.linalg.LinAlgError, OverflowError):  # of released numbers
        return run.nothing()


class _Run:
    """What is known so far."""

    def __init__(
        self,
        measure: Measurements,
        log_public: PublicLogDensity,
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
        chosen = looks.choose(
            self.place, frames, self.P, looks.cheap, max(share, s.pooled_share), 2, s.near_kept,
            0.0 if looks.poor else looks.fine,
        )  # fmt: skip
        for_hessian = max(s.hessian_part[0], s.hessian_of_first * share)
        self.found.append(looks.look(self.place, chosen, share, for_hessian, s.hessians_kept))
        self._t = t1 / math.sqrt(share)
        self._move()

    def _move(self) -> None:
        """To the mean of the law so far."""
        pool = self._pool_here()
        r = posterior_of(pool.law, self.log_public, self.place, pool)
        self.place, self.P = r.mean, r.exact

    def _pool_here(self) -> Pooled:
        prior = -self.log_public.hessian(self.place)
        return pooled(self.found, self.place, self.P, self.n, self.scales, nearby, prior)

    def settle(self) -> None:
        """The frame and the bound for all that is left, and how noise is best divided."""
        looks, s, d = self.looks, SETTINGS, len(self.place)
        frames = [power(self.P, -0.5), np.diag(self.scales), middle_frame(self.P, self.scales)]
        share = looks.fine
        self.chosen = looks.choose(
            self.place, frames, self.P, looks.cheap, 0.8, 2, for_count=s.final_count, finely=share
        )
        V, b, _, long = self.chosen
        inverse = np.linalg.inv(V)
        X = inverse @ power(self.P, -0.5)
        size = float(np.trace(X.T @ X)) / d
        noise = self.measure.noise_sd
        self.t1 = noise(b, 1.0) * math.sqrt(size)
        sizes = looks.hessian_sizes(self.place, V, share / 2)
        C = looks.hessian_bound(sizes, 0.05, s.hessians_kept, long)
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
            pool = self._pool_here()
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
            posterior=r, W=power(self.P, -0.5), V=last.V, gradient_clip=last.gradient_clip,
            hessian_clip=last.hessian_clip,
            surprise=math.sqrt(max(float(off @ np.linalg.solve(V, off)), 0.0) / d),
            off=np.linalg.solve(r.exact, off) / np.sqrt(np.diag(np.linalg.inv(r.exact))),
            rounds=len(search.looks), arrived=True,
        )  # fmt: skip

    def nothing(self) -> Anchor:
        """The prior, for all that was learnt."""
        at, zero = self.start, np.zeros((len(self.start),) * 2)
        r = posterior_of(Law(at, np.zeros(len(at)), zero, zero), self.log_public, at)
        return Anchor(
            posterior=r, W=np.diag(self.scales), V=np.diag(self.scales), gradient_clip=math.nan,
            hessian_clip=math.nan, surprise=math.nan, off=np.zeros(len(at)), rounds=0, arrived=False,
        )  # fmt: skip


def prior_scales(log_public: PublicLogDensity, start: Vector) -> Vector:
    """Standard deviations of the prior, about, of every parameter; 1 where it has none."""
    precision = -np.diag(log_public.hessian(start))
    return np.where(precision > 0, 1 / np.sqrt(np.maximum(precision, 1e-300)), 1.0)
