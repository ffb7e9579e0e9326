"""A normal surrogate in one loop: ask at a place, go to the mean of the law of all answers, ask again."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, floored, positive, symmetric
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Information
from pymc_dp.surrogate.normal.estimates import (
    Estimate,
    estimate,
    pooled_gradient,
    root_trace,
    whitening,
)
from pymc_dp.surrogate.normal.evaluation import USUAL_INFORMATION, Evaluation, Evaluator, Parts
from pymc_dp.surrogate.normal.law import Law, Posterior, posterior_of
from pymc_dp.surrogate.normal.model import NormalSurrogate

OF_COUNT = 1e-4
"""Share of the number of units, where that is private: it sets scales only."""
_OF_UNITS = 0.01
"""Share of the units of parameters, at the start; as much again where noise hides some of them."""
_SEARCH = 0.4
"""Share from which on the search is broken off."""
_QUERY = 0.005, 0.03
"""Range of the share of a query on the way. Up to .06: errors 1.4 times as large, as there are fewer of them."""
_RECORDS_TOLD = 18e3
"""(n/z)² of the first share, z its noise's sd / sensitivity: about the mean of that range at n = 10,000 and ε = 1."""
_ON_THE_WAY = Parts(sizes=0.2, scores=0.5, information=0.3, room=0.2)
"""With (.3, .4, .3) errors are 1.1 times as large, with (.2, .3, .5) the same; without room .5 % of the records that alone tell of a parameter are
lost, and with room .1 now and then, with .4 errors are 1.1 times as large."""
_LAST = Parts(sizes=0.05, scores=0.83, information=0.12, room=0.05)
"""With a tenth for sizes errors of simulated and of real data are 1.05 times as large. Information gets more where its noise counts, see
:func:`_balanced`."""
_ENDING = 0.15, 0.3
"""Parts of what is left that the queries before the last one get. All gradients are pooled, so that costs next to nothing, and
the last has coordinates in which few records that alone tell of a parameter are not long. Without them, 0.1 % of 20,000 records at ε = 3 make errors 2.4 times as large, and two runs of five are lost
(`benchmarks/surrogate_limit.py`, "rare category")."""
_BEFORE_LAST_SUM = 0.03
"""Share that must be left before the last sum, or it is not worth what its coordinates then lack."""
_PREPARING = 0.5
"""Part of it for a whole query, whose coordinates and bound the last one has; the rest is for the last one's sizes and information."""
_ALIKE = 2.0
"""By how much information may differ from 1 in coordinates that are called white. Where few records alone tell of a parameter, what
is seen of it at first is the prior's, and it takes the three long queries to find it: without this, errors are three times as large."""
# Most of both goes to sizes: few units are beyond the last bound, and where sizes got a third, it was half as long again as it is best.
_PREPARED = Parts(sizes=0.5, scores=0.2, information=0.3, room=0.05)
_LAST_SUM = Parts(sizes=0.6, scores=0.0, information=0.4, room=0.05)
_RADIUS = 4.0
"""Nats by which a step may change a record's log-likelihood at first. Doubled where the gradient was as predicted, halved
where it was not."""
_LEAST_RADIUS = 1.0
_PRIOR_SDS = 2.0
"""No step is longer, in the prior's sds of any parameter: towards small scales a Newton step is many times too long."""
_FLAT = 1e-12
"""A prior's precision below which it says nothing. If no unit tells of such a parameter at the start either, by symmetry perhaps, it is
searched in steps of about 1: with the prior's width, noise leads a ring with a flat prior to 10^5, in half of the runs."""
_NEAR = 2.5
"""A step is short if it is less than this, in sds of what noise makes of one, or of the posterior's."""
_KNOWN = 2.0
"""Noise in a step from which on its place is known, in posterior sds per parameter."""


@dataclass(frozen=True)
class _Predicted:
    """What the law said of the place it led to: slope of the posterior, and what might be off in it."""

    slope: Vector
    S: Vector
    length: float
    noise: float


class _Shares(NamedTuple):
    """What is spent on what."""

    of_count: float
    units: float
    search: float
    query: tuple[float, float]
    on_the_way: Parts
    last: Parts
    ending: tuple[float, ...]


_PURE = _Shares(
    of_count=0.005,
    units=0.05,
    search=0.45,
    query=(0.005, 0.05),
    on_the_way=Parts(sizes=0.0, scores=0.5, information=0.5, room=0.2, kept="nothing"),
    last=Parts(sizes=0.0, scores=0.75, information=0.25, room=0.05, kept="diagonal"),
    ending=(0.25,),
)


def least_pure_epsilon(d: int, n_units: int, terms: int) -> float:
    """ε that a search at δ = 0 takes: from there on noise in the information, at last, is less than all that there is of it.

    A function of public numbers. Of 20,000 units it is .14 for 5 parameters, .70 for 10 and 3.7 for 20.

    Parameters
    ----------
    d : int
        Number of parameters.
    n_units : int
    terms : int
        κ.
    """
    last = _PURE.last
    share = (1 - _PURE.search) * math.prod(1 - part for part in _PURE.ending) * last.information
    D = Information(np.zeros(d), np.eye(d), 1.0, kept=last.kept).dimension
    bound = USUAL_INFORMATION * d / n_units
    return math.sqrt(terms) * bound * math.sqrt(D + 1) * math.sqrt(d) / share


def _shares(pure: bool) -> _Shares:
    if pure:
        return _PURE
    return _Shares(OF_COUNT, _OF_UNITS, _SEARCH, _QUERY, _ON_THE_WAY, _LAST, _ENDING)


def _balanced(parts: Parts, noise: float) -> Parts:
    """With as much for the information that errors by both noises are least, about.

    Squares of errors are as 1 / s by the scores' share and as `noise`² / (1 - s) by the information's, `noise` being that in all of it, times
    √d, for the whole budget. With .12 whatever it is, errors of 50 coefficients and 25,000 records at ε = 1 are 2.3 times the limit, with .3
    to .45 1.6 times, and with 2,000 records and 10 coefficients 1 of 16 runs is usable, not 15 (`benchmarks/many_parameters.py`).
    """
    both, noise = parts.scores + parts.information, min(noise, 1.0)
    information = max(parts.information, both * noise / (1 + noise))
    return replace(parts, scores=both - information, information=information)


class _Run:
    """What is known so far."""

    def __init__(
        self, measure: Measurements, log_public: LogPrior, start: Vector, tempering: float
    ):
        self.shares, d = _shares(measure.pure), len(start)
        n, sd = measure.units(self.shares.of_count)
        self.n = max(n, sd, 1.0)
        if (
            not measure.pure
        ):  # where noise grows with the number of entries, too: its parts are its own
            noise = math.sqrt(d) * measure.noise_sd(USUAL_INFORMATION * d / self.n, 1.0)
            self.shares = self.shares._replace(last=_balanced(self.shares.last, noise))
        self.measure, self.log_public, self.start = measure, log_public, start
        self.evaluator = Evaluator(measure, self.n, tempering)
        self.of_prior = np.maximum(-np.diag(log_public.hessian(start)), _FLAT)
        self.theta = start.copy()
        found = np.maximum(self.of_prior, self.evaluator.squares(start, self.shares.units))
        self.P = np.diag(np.where(found > _FLAT, found, 1.0))
        self.estimates: list[Estimate] = []
        self.radius, self.arrived, self.surprise = _RADIUS, False, math.nan
        self.off = np.zeros(len(start))
        self._predicted: _Predicted | None = None
        self._near: Evaluation | None = None
        first = measure.share(self.n / math.sqrt(_RECORDS_TOLD), len(start))
        self.share = float(np.clip(first, *self.shares.query))

    @property
    def must_end(self) -> bool:
        """Whether the rest is for the last queries."""
        return self.arrived or self.measure.spent > min(self.shares.search, 1 - 2 * self.share)

    @property
    def settled(self) -> bool:
        """Whether the last query has found its coordinates to be about white by what the data say, in every direction."""
        last = self.estimates[-1]
        values = np.linalg.eigvalsh(symmetric(last.at.V.T @ last.J @ last.at.V))
        return bool(values[0] > 1 / _ALIKE and values[-1] < _ALIKE)

    def ask(
        self, share: float, parts: Parts, last: bool = False, by_last_sum: bool = False
    ) -> Posterior:
        """One query, and the posterior given all of them; sets :attr:`theta` to where it leads."""
        theta, d, prior = self.theta, len(self.theta), self.log_public
        V = whitening(self.P)
        least = (0.0, 0.0)
        if self.estimates:
            least = self.estimates[-1].bound_in(V), self.estimates[-1].information_bound_in(V)
        at = self.evaluator.at(theta, V, share, parts, self._near, least, by_last_sum)
        self.estimates.append(estimate(at, self.estimates, prior, self.n, last))
        now, slope = self.estimates[-1], prior.gradient(theta)
        self.P = now.P
        gradient, S = pooled_gradient(self.estimates)
        inverse = np.linalg.inv(at.V)
        J = symmetric(inverse.T @ positive(symmetric(at.V.T @ now.J @ at.V)) @ inverse)
        r = posterior_of(Law(theta, gradient, J, S), prior, theta)
        step = r.mean - theta
        self._check(now, slope)
        length = math.sqrt(max(float(step @ now.P @ step), 0.0))
        nats = math.sqrt(at.largest) * float(np.linalg.norm(inverse @ step))
        if last:
            before = self._predicted.noise if self._predicted else 0.0
            # Whether it contradicts the ones before is judged by `surprise`, whose law is known.
            short = length < _NEAR * math.hypot(before, math.sqrt(d))
            self.arrived = short and not at.saturated
            law = Law(theta, gradient, J, S + now.of_curvature(step))
            return posterior_of(law, prior, theta)

        of_prior = float(np.max(np.abs(step) * np.sqrt(self.of_prior)))
        part = min(1.0, self.radius / max(nats, 1e-300), _PRIOR_SDS / max(of_prior, 1e-300))
        moved = theta + part * step
        noise = root_trace(np.linalg.solve(now.P, S))
        self._predicted = _Predicted(
            gradient - part * J @ step + prior.gradient(moved), S, length, noise
        )
        self.theta = moved
        near = part == 1 and length < _NEAR * math.hypot(noise, math.sqrt(d))
        self._near = at if near and len(self.estimates) > 1 else None
        self.arrived = now.resolved and self._good and near and noise < _KNOWN * math.sqrt(d)
        # As dear as makes its noise a quarter of how far it is from there, which is not known to a fifth.
        rest = math.hypot(root_trace(now.P @ r.covariance), (1 - 0.8 * part) * length)
        off = max(now.noise, 1e-9)  # nought, where scales leave the range of floating point
        wanted = max(math.sqrt(d), rest / 4) / off * self.measure.multiplier(share, d)
        self.share = float(
            np.clip(self.measure.share(wanted, d) / parts.scores, *self.shares.query)
        )
        return r

    def _check(self, now: Estimate, slope: Vector) -> None:
        """Compare what was found with what was predicted, and trust the law further or less far."""
        self._good = False
        if self._predicted is None:
            return
        d, before = len(slope), self._predicted
        off = now.gradient + slope - before.slope
        miss = math.sqrt(max(float(off @ np.linalg.solve(now.P, off)), 0.0))
        noise = math.hypot(root_trace(np.linalg.solve(now.P, now.S)), before.noise)
        self._good = miss <= max(before.length / 2, 2 * noise)
        self.radius = 2 * self.radius if self._good else max(self.radius / 2, _LEAST_RADIUS)
        self.surprise = math.sqrt(max(float(off @ np.linalg.solve(now.S + before.S, off)), 0.0) / d)
        self.off = np.linalg.solve(now.P, off) / np.sqrt(np.diag(np.linalg.inv(now.P)))

    def surrogate(self, r: Posterior) -> NormalSurrogate:
        """All that was found."""
        if not all(np.isfinite(x).all() for x in (r.mean, r.covariance, r.privacy_shifts)):
            raise np.linalg.LinAlgError("what noise left has no law")
        last = self.estimates[-1].at
        return NormalSurrogate(
            posterior=r, V=last.V, gradient_clip=last.bound, hessian_clip=last.largest, surprise=self.surprise,
            off=self.off, improbable=improbable(self.log_public, self.start, r.mean), rounds=len(self.estimates) - 1, arrived=self.arrived,
        )  # fmt: skip


def fit_normal(
    measure: Measurements,
    log_public: LogPrior,
    start: Vector,
    *,
    tempering: float = 1.0,
    watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> NormalSurrogate:
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
        Told after every query of the search how many there were, and once it has arrived what that says. It may raise,
        and the rest is not spent here.
    on_progress : callable, optional
        Told what is being done. Gets public text only.

    Returns
    -------
    NormalSurrogate

    Notes
    -----
    **Releases**, each of a function of one unit's record and of earlier releases: histograms of the sizes of
    :class:`~pymc_dp.records.queries.Gradient` and :class:`~pymc_dp.records.queries.Information`, sums of
    :class:`~pymc_dp.records.queries.Score` and of the latter; see
    :class:`~pymc_dp.records.measurements.Measurements` for their sensitivities. **Guarantee**: together one
    Gaussian release of the budget's multiplier; if the measurements have a last sum by the ℓ2 mechanism, that of
    :class:`~pymc_dp.privacy.events.GaussianOrL2` after a first part; if they are pure, the budget's ε.
    """
    try:
        on_progress("finding the parameters' units")
        run = _Run(measure, log_public, start, tempering)
        while not run.must_end:
            r = run.ask(run.share, run.shares.on_the_way)
            rounds = len(run.estimates)
            on_progress(f"query {rounds} on the way to the mode")
            watch(rounds, r if run.arrived else None)
        on_progress("the last queries, with all that is left")
        if run.arrived and measure.before_last_sum > _BEFORE_LAST_SUM:
            run.ask(_PREPARING * measure.before_last_sum, _PREPARED)
            if run.settled:
                share = measure.before_last_sum
                return run.surrogate(run.ask(share, _LAST_SUM, last=True, by_last_sum=True))
        for part in run.shares.ending:
            run.ask(part * (1 - measure.spent), run.shares.last)
        r = run.ask(1 - measure.spent, run.shares.last, last=True)
        return run.surrogate(r)
    except (np.linalg.LinAlgError, OverflowError):  # of released numbers
        return nothing(log_public, start)


def nothing(log_public: LogPrior, start: Vector) -> NormalSurrogate:
    """The prior, for all that was learnt."""
    d, zero = len(start), np.zeros((len(start),) * 2)
    law, Λ = Law(start, np.zeros(d), zero, zero), -log_public.hessian(start)
    # Not at the prior's mode: a funnel has none.
    r = Posterior(law, start, floored(Λ, 1e-12), positive(Λ, 1e-12), Λ)
    return NormalSurrogate(
        posterior=r, V=np.eye(d), gradient_clip=math.nan, hessian_clip=math.nan, surprise=math.nan, off=np.zeros(d),
        improbable=np.zeros(d), rounds=0, arrived=False,
    )  # fmt: skip


def improbable(log_public: LogPrior, start: Vector, theta: Vector) -> Vector:
    """What the prior would gain if a parameter were back at the start, shape (d,)."""
    here = log_public(theta)
    back = np.where(np.eye(len(theta), dtype=bool), start, theta)
    return np.array([log_public(moved) - here for moved in back])


def prior_scales(log_public: LogPrior, start: Vector) -> Vector:
    """Standard deviations of the prior, about, of every parameter; 1 where it has none."""
    precision = -np.diag(log_public.hessian(start))
    return np.where(precision > 0, 1 / np.sqrt(np.maximum(precision, 1e-300)), 1.0)
