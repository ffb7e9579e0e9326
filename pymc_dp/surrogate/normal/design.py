r"""A normal surrogate where covariates are public: the score's sum is all that is asked.

A unit's term is :math:`\psi_i = \operatorname{clip}_b(z_i - c_i)`, with :math:`z_i = V^\top \nabla\ell_i(\theta_t)`. The place
:math:`\theta_t`, V, b and the centres :math:`c_i` are public, and so is what the model expects of the sum wherever its parameters
are: the mean, how that moves with them, and the covariance. So an answer is compared with its own mean, and not with
that of a straight line: where the model is right nothing is biased by clipping, and a place may be far off. No model is right
everywhere. So the answers that count are asked near the mode, and of outcomes without ends b is so long that noise and what it
clips, if none of that were as the model says, are least together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, positive, symmetric
from pymc_dp.records.design import PublicDesign
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Deviation
from pymc_dp.surrogate.normal.deviations import CHOSEN, Asker, Question
from pymc_dp.surrogate.normal.estimates import whitening
from pymc_dp.surrogate.normal.fit import improbable, nothing
from pymc_dp.surrogate.normal.law import Posterior, posterior_of
from pymc_dp.surrogate.normal.model import NormalSurrogate

_FIRST, _MOST = 0.004, 0.3
"""Share of the first query, and of all of the search. Each costs twice as much as the one before."""
_NEAR = 0.2
"""Sds of a unit's score by which it is uncertain where the mode is, root mean square: then the last query is asked there."""
_FAR = 3.0
"""Sds of what is known of the mode by which the last query of a search was asked beside it, per parameter, at most: what is seen from further
off rests on the model's being right on all of the way. With half an sd of a unit's score in its place, at any n, and all answers kept, earnings of
15,992 people are off by 2.3 to 3.3 limits, and 14 of 18 runs called themselves unusable; with it by 1 to 1.2, and none of 48 did
(`benchmarks/surrogate_limit.py --real --public`)."""
_HARMLESS = 0.3
"""Posterior sds by which earlier answers may move a mean beside chance. No model is as right as 214,144 outcomes at ε = 3 can tell: where the fit
of all answers was asked for, with as much allowed in each, 25 of 48 such runs called themselves unusable that were off by .5 to .015 sds; now none
does, nor of 96 others (`benchmarks/surrogate_limit.py --real --public`). With 0 it is a χ² (`tests/steps/test_design.py`)."""
_ON_THE_WAY, _LAST = (8, 0.5), (16, 0.3)
"""Outcomes that are drawn of a unit, to know the mean of what was answered; and the length of a step that no other follows, in
sds of the law, of which such means are off by √½ over the root of that number at most."""
_DRAWN, _MOST_DRAWN = 2**18, 256
"""Outcomes of all units at the end, at least: of a few hundred, those of ten that matter most make the width."""
_STEPS, _LONGEST = 50, 1.0
"""To the mode, at most, and the longest, in sds of a unit's score, root mean square."""


@dataclass(frozen=True)
class _Answer:
    """The sum of a question's terms, with noise of this standard deviation in each entry."""

    question: Question
    total: Vector
    noise: float


class _Run(Asker):
    """What is known so far.

    Parameters
    ----------
    measure : Measurements
    start : ndarray, shape (d,)
    asker
        As :class:`Asker` takes it.
    """

    def __init__(self, measure: Measurements, start: Vector, *asker: Any):
        super().__init__(*asker)
        self.measure, self.theta = measure, start
        self.answers: list[_Answer] = []
        self.surprise, self.arrived = math.nan, False

    def ask(self, share: float) -> None:
        """One query, at :attr:`theta`."""
        at = self.question(self.theta, self.measure.noise_sd(1.0, share, len(self.theta)))
        deviations = Deviation(at.theta, at.V, at.centres)
        self._add(at, *self.measure.sum(deviations, at.bound, share))

    def _add(self, at: Question, total: Vector, noise: float) -> None:
        self.answers.append(_Answer(at, total, math.hypot(noise, at.off)))

    @property
    def last_noise(self) -> float:
        """Standard deviation of what is added to a sum for all that is left, at a bound of 1."""
        measure, d = self.measure, len(self.theta)
        if measure.before_last_sum <= 0:
            return measure.noise_sd(1.0, 1 - measure.spent, d)
        return measure.last_noise_sd(1.0, d)

    def ask_last(self) -> None:
        """One query for all that is left."""
        measure = self.measure
        if measure.before_last_sum <= 0:
            return self.ask(1 - measure.spent)
        at = self.question(self.theta, self.last_noise)
        deviations = Deviation(at.theta, at.V, at.centres)
        self._add(at, *measure.last_sum(deviations, at.bound))

    def known(self, draws: int, short: float) -> Posterior:
        """What all answers and the prior say, about its mode, which :attr:`theta` is set to. No records are read.

        Parameters
        ----------
        draws : int
            Outcomes of a unit.
        short : float
            Length of a step that no other follows, in sds.
        """
        questions = [answer.question for answer in self.answers]
        totals = np.concatenate([answer.total for answer in self.answers])
        noise = np.repeat([answer.noise for answer in self.answers], len(self.theta))
        longest, before = _LONGEST, np.zeros(len(self.theta))
        for _ in range(_STEPS):
            found = self.expected(self.theta, questions, draws)
            law = found.law(self.theta, totals, noise, self.tempering)
            r = posterior_of(law, self.log_public, self.theta)
            step = r.mean - self.theta
            self.arrived = float(step @ r.precision @ step) < short**2 * len(step)
            if self.arrived:
                break
            if float(step @ found.J @ before) < 0:  # beyond it
                longest /= 2
            scores = math.sqrt(max(float(step @ found.J @ step), 0.0) / self.design.n_units)
            before = step * min(1.0, longest / max(scores, 1e-300))
            self.theta = self.theta + before
        d = len(step)
        last = found.last(d).law(self.theta, totals[-d:], noise[-d:], self.tempering)
        alone = posterior_of(last, self.log_public, self.theta)
        way = alone.mean - r.mean
        # What the other answers add moves a mean by the difference of the two variances.
        spread = alone.covariance - (1 - _HARMLESS**2) * r.covariance
        self.surprise = math.sqrt(float(way @ np.linalg.solve(positive(spread, 1e-12), way)) / d)
        self.theta = r.mean
        return r

    def is_near(self, r: Posterior) -> bool:
        """Whether units' scores are about what they would be at the mode, and the last query was asked there, as far as is known."""
        way = r.mean - self.answers[-1].question.theta
        sharp = float(np.trace(r.law.J @ r.covariance))
        known = sharp < _NEAR**2 * self.tempering * self.design.n_units
        return known and float(way @ r.precision @ way) < _FAR**2 * len(way)


def _at_the_end(design: PublicDesign) -> int:
    """How many outcomes of a unit are drawn then."""
    return min(max(_LAST[0], math.ceil(_DRAWN / design.n_units)), _MOST_DRAWN)


def fit_design(
    measure: Measurements,
    log_public: LogPrior,
    start: Vector,
    *,
    design: PublicDesign,
    tempering: float = 1.0,
    watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> NormalSurrogate:
    """Find out what a budget allows to be known of a posterior, if covariates are public.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of outcomes, and spent afterwards.
    log_public, start, tempering, on_progress
        As in :func:`~pymc_dp.surrogate.normal.fit.fit_normal`.
    design : PublicDesign
        What is known of everything else.
    watch : callable, optional
        Told after the search how many queries there were, and what will be known when the last one is answered, if its answer
        is as expected. It may raise, and the rest is not spent here.

    Returns
    -------
    NormalSurrogate

    Notes
    -----
    **Releases**: sums of :class:`~pymc_dp.records.queries.Deviation`, each of a function of one unit's outcome, of its
    public covariates and of earlier releases; see :class:`~pymc_dp.records.measurements.Measurements` for their
    sensitivity. **Guarantee**: that of :func:`~pymc_dp.surrogate.normal.fit.fit_normal`.
    """
    run, share = _Run(measure, start, design, log_public, tempering), _FIRST
    try:
        while True:
            run.ask(share)
            rounds = len(run.answers)
            on_progress(f"query {rounds} on the way to the mode")
            before, share = run.known(*_ON_THE_WAY), 2 * share
            if run.is_near(before) or measure.spent + share > _MOST:
                break
        watch(rounds, posterior_at(run, run.theta, run.last_noise))
        on_progress("the last query, with all that is left")
        run.ask_last()
        # Those from afar led here; what they say of the mode is right as far as the model is on the way.
        run.answers = run.answers[-2:]
        r = run.known(_at_the_end(design), _LAST[1])
        moved = (r.mean - before.mean) / np.sqrt(np.diag(np.linalg.inv(r.exact)))
    except (np.linalg.LinAlgError, OverflowError):  # of released numbers
        return nothing(log_public, start)
    last = run.answers[-1].question
    return NormalSurrogate(
        posterior=r, V=last.V, gradient_clip=last.bound, hessian_clip=math.nan, surprise=run.surprise, off=moved,
        improbable=improbable(log_public, start, r.mean), rounds=rounds, arrived=run.arrived,
    )  # fmt: skip


def posterior_at(asker: Asker, theta: Vector, noise: float) -> Posterior:
    """What one query tells if θ is the mode, with noise of this standard deviation at a bound of 1. Reads no outcomes."""
    at = asker.question(theta, noise)
    found = asker.expected(theta, [at], _at_the_end(asker.design))
    noises = np.full(len(theta), math.hypot(noise * at.bound, at.off))
    law = found.law(theta, found.mean, noises, asker.tempering)
    of_prior = -asker.log_public.hessian(theta)
    known, exact = positive(law.K + of_prior, 1e-12), positive(law.J + of_prior, 1e-12)
    return Posterior(law, theta, known, exact, of_prior)


def bend(
    design: PublicDesign, log_public: LogPrior, posterior: Posterior, tempering: float
) -> float:
    """By how much the logarithm of the precision changes over a posterior sd, in any direction at most. Reads no outcomes.

    Parameters
    ----------
    design, log_public, tempering
        As in :func:`fit_design`.
    posterior : Posterior
    """
    V = whitening(posterior.precision)

    def precision(theta: Vector) -> Vector:
        chunks = [(w, z) for w, (z,) in design.scores(theta, [theta], 0, CHOSEN)]
        J = sum(np.einsum("kn,knd,kne->de", w, z, z, optimize=True) for w, z in chunks)
        return positive(V.T @ (tempering * symmetric(J) - log_public.hessian(theta)) @ V, 1e-12)

    here = precision(posterior.mean)
    changes = [
        eigvalsh(precision(posterior.mean + step), here) for step in np.concatenate([V.T, -V.T])
    ]
    return float(np.max(np.abs(np.log(np.maximum(changes, 1e-300)))))


def expected_shifts(
    design: PublicDesign, log_public: LogPrior, theta: Vector, noise: float, tempering: float
) -> tuple[float, float]:
    r"""How far noise will move a posterior, in its sds per parameter, if its mode is at θ. Reads no outcomes.

    Parameters
    ----------
    design, log_public, tempering
        As in :func:`fit_design`.
    theta : ndarray, shape (d,)
    noise : float
        Standard deviation of the whole budget's noise, at a bound of 1.

    Returns
    -------
    shift : float
        After one query at the mode.
    if_private : float
        If covariates were private, and the best bound for plainly clipped scores and the curvature known.
    """
    asker, d = Asker(design, log_public, tempering), len(theta)
    r = posterior_at(asker, theta, noise)
    V = whitening(r.exact)
    known = [
        (w, np.linalg.norm(tempering * z @ V, axis=2))
        for w, (z,) in design.scores(theta, [theta], 0, CHOSEN)
    ]
    longest = max(float(np.max(sizes)) for _, sizes in known)
    # As for any clipped sum: noise, and what all that is clipped may add up to, in squares.
    costs = [
        noise**2 * b**2
        + sum(float((w * np.maximum(sizes - b, 0.0)).sum()) for w, sizes in known) ** 2 / d
        for b in longest * 2.0 ** -np.linspace(0, 8, 50)
    ]
    return r.privacy_shift, math.sqrt(min(costs))
