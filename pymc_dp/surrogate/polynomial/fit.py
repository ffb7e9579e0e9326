"""A run's rounds, in order: a design, an evaluation, a colder density, and the next design from that."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.records.measurements import Measurements
from pymc_dp.surrogate.polynomial.annealing import (
    Region,
    cooled,
    hopeless,
    normal_region,
    settled,
    wider,
)
from pymc_dp.surrogate.polynomial.basis import leverage, terms_of
from pymc_dp.surrogate.polynomial.ensemble import OfMany
from pymc_dp.surrogate.polynomial.evaluation import Design, draw_design, evaluate, evaluate_last
from pymc_dp.surrogate.polynomial.model import Found, Surrogate
from pymc_dp.surrogate.polynomial.settings import SETTINGS


def fit_polynomial(
    measure: Measurements,
    log_prior: OfMany,
    start: Vector,
    scales: Vector,
    *,
    tempering: float = 1.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[Found, Design]:
    """Find out what a budget allows to be known of a posterior of any smooth shape.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of data. What is left afterwards pays for a
        :func:`~pymc_dp.surrogate.polynomial.evaluation.check`.
    log_prior : callable
        Of many points, shape (points, d).
    start, scales : ndarray, shape (d,)
        Middle and sds of the first region; public.
    tempering : float
        T.
    on_progress : callable, optional
        Told what is being done. Gets public text only.

    Returns
    -------
    found : Found
    design : Design
        Of its last evaluation.

    Notes
    -----
    **Releases**: histograms, sums of clipped vectors and of their second moments, each a function of one unit's
    records and of earlier releases; see :class:`~pymc_dp.records.measurements.Measurements` for their
    sensitivities. **Guarantee**: together one Gaussian release of the budget's multiplier.
    """
    run = _Run(measure, log_prior, start, scales, tempering)
    while not run.done:
        run.round(on_progress)
    on_progress("the last query, with what is left")
    return run.last()


class _Run:
    """What is known so far."""

    def __init__(
        self,
        measure: Measurements,
        log_prior: OfMany,
        start: Vector,
        scales: Vector,
        tempering: float,
    ):
        self.measure, self.log_prior, self.tempering = measure, log_prior, tempering
        self.rng = np.random.default_rng(0)  # public
        self.n_units = max(sum(measure.units(SETTINGS.histogram)), 1.0)
        d = len(start)
        self.region = normal_region(start, np.diag(scales**2), 0.0, self.rng)
        self.first = self.region.log_density
        self.older: Vector | None = None
        self.degree = max(
            p for p in (1, 2, 3, SETTINGS.degree) if terms_of(d, p) <= SETTINGS.most_terms
        )
        self.straight, self.spread = False, SETTINGS.spread
        self.narrower: Region | None = None
        self.share, self.before = SETTINGS.warm, math.inf
        self.rounds, self.reached, self.moving, self.done = 0, 0.0, True, False

    def round(self, on_progress: Callable[[str], None]) -> None:
        """One round."""
        region, s = self.region, SETTINGS
        clouds = region.cloud
        if self.older is not None:
            some = self.rng.choice(
                len(self.older), round(s.of_old * len(self.older)), replace=False
            )
            clouds = np.vstack([clouds, self.older[some]])
        design = draw_design(clouds, self.degree, self.straight, self.tempering, self.rng)
        surrogate, misfit = evaluate(self.measure, design, region.cloud, self.share)
        self.rounds += 1
        if design.basis.chart is None and region.beta > 0 and region.beta * misfit < s.agrees:
            surrogate = Surrogate(
                surrogate.basis, surrogate.c, surrogate.root, s.trusted * surrogate.limit
            )
        if hopeless(region, surrogate, misfit):
            self._again(surrogate, misfit)
            return
        factor, self.narrower, self.spread = self.spread, None, s.spread
        found = cooled(region, surrogate, misfit, self.log_prior, self.first, self.rng)
        self.reached = found.beta
        on_progress(f"round {self.rounds}, at temperature {1 / max(found.beta, 1e-9):.3g}")
        after = settled(found, self.rng)
        if found.stopped == "border":
            self.narrower = after
            after = wider(after.cloud, after.beta, factor, self.rng)
        self._decide(surrogate, misfit, found.stopped, after)

    def _again(self, surrogate: Surrogate, misfit: float) -> None:
        """What to do about an evaluation that tells nothing."""
        s, d = SETTINGS, self.region.cloud.shape[1]
        if self.narrower is not None:
            self.region, self.narrower, self.spread = self.narrower, None, math.sqrt(self.spread)
        elif misfit > surrogate.noise:
            self.degree = self._higher(d) if self.straight else self.degree
            self.straight = True
        else:
            self.share = min(2 * self.share, s.most_of_round)
        self.done = self._poor or self.rounds >= s.rounds

    @property
    def _poor(self) -> bool:
        """Whether another round would leave too little for the last evaluation."""
        s = SETTINGS
        last = s.moments + s.bound_histogram + 4 * s.last_histogram + s.check
        left = 1 - self.measure.spent - self.share - 6 * s.histogram - last
        return left < s.kept_for_last

    def _decide(self, surrogate: Surrogate, misfit: float, stopped: str, after: Region) -> None:
        """Whether the next evaluation is the last one; if not, what it may cost, and of which degree it is."""
        s, before, d = SETTINGS, self.region, self.region.cloud.shape[1]
        at_one = surrogate.noise * math.sqrt(max(before.beta, 1e-300))
        still = self._still(surrogate, after, at_one * math.sqrt(after.beta))
        ready = (
            after.beta >= s.cold
            and stopped != "border"
            and at_one <= s.fine
            and misfit <= s.fits * max(1.0, 0.25 / after.beta)
            and still
        )
        if not ready:
            self._set_share(at_one, stopped, before.beta, after.beta)
        if stopped == "misfit" and self.straight and after.beta < 1.5 * before.beta:
            self.degree = self._higher(d)
        self.straight |= stopped == "misfit"
        self.older, self.region = before.cloud, after
        self.done = ready or self._poor or self.rounds >= s.rounds

    def _still(self, surrogate: Surrogate, after: Region, noise: float) -> bool:
        """Whether the next region lies inside this one, or where it was."""
        s, old, new = SETTINGS, self.region.cloud, after.cloud
        q = surrogate.basis(new)
        near, few = s.inside
        outside = float(np.mean(leverage(q) > near * surrogate.limit))
        move = np.abs(new.mean(axis=0) - old.mean(axis=0))
        sds, sds_old = new.std(axis=0), old.std(axis=0)
        inside = (
            outside < few
            and self.region.beta > 0
            and bool(np.all(move + sds <= s.within * sds_old))
        )
        most, little = s.still
        drift = max(float(np.max(move / sds)), float(np.max(np.abs(np.log(sds / sds_old)))))
        uncertain = min(max(noise, self.before), 0.4)
        still = (
            outside < most
            and self.region.beta >= s.cold
            and drift < little + s.still_noise * uncertain
        )
        self.before = noise
        self.moving = not (inside or (outside < most and drift < s.moving))
        return inside or still

    def _set_share(self, at_one: float, stopped: str, beta: float, after: float) -> None:
        s = SETTINGS
        stuck = stopped == "noise" and after < 1.5 * beta
        if after < s.warmest:
            self.share = min(2 * self.share, s.stuck_share) if stuck else self.share
        elif at_one > s.fine:
            needed = self.share * (at_one / s.aim) ** 2 if beta > 0 else s.warm
            needed = max(needed, 1.5 * self.share if stuck else 0.0)
            self.share = float(np.clip(needed, s.warm, s.most_of_round))
        elif at_one < s.spare:
            self.share = max(s.warm, self.share / 2)

    def _higher(self, d: int) -> int:
        s, higher = SETTINGS, self.degree + 2
        fits = terms_of(d, higher) <= s.most_terms and higher <= s.most_degree
        return higher if fits else self.degree

    def last(self) -> tuple[Found, Design]:
        """The last evaluation."""
        cloud, rng = self.region.cloud, self.rng
        design = draw_design(cloud, self.degree, self.straight, self.tempering, rng)
        surrogate = evaluate_last(self.measure, design, cloud, self.n_units, SETTINGS.check)
        high = math.sqrt(max(surrogate.high, 0.0))
        return Found(
            surrogate, cloud, self.reached, not self.moving, self.rounds, high, self.degree
        ), design
