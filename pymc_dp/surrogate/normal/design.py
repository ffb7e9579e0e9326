r"""A normal surrogate where covariates are public: the score's sum is all that is asked.

A unit's term is :math:`\psi_i = \operatorname{clip}_b(z_i - c_i)`, with :math:`z_i = V^\top \nabla\ell_i(\theta_t)`. The place
:math:`\theta_t`, V, b and the centres :math:`c_i` are public, and so is what the model expects of the sum wherever its parameters
are: the mean, how that moves with them, and the covariance. So an answer is compared with its own mean, and not with
that of a straight line: nothing is biased by clipping, b is as short as noise wants it, and a place may be far off.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, positive, shrink, symmetric
from pymc_dp.records.design import PublicDesign
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Deviation
from pymc_dp.surrogate.normal.estimates import whitening
from pymc_dp.surrogate.normal.fit import improbable, nothing
from pymc_dp.surrogate.normal.law import Law, Posterior, posterior_of
from pymc_dp.surrogate.normal.model import NormalSurrogate

_FIRST, _MOST = 0.01, 0.3
"""Share of the first query, and of all of the search. Each costs twice as much as the one before."""
_NEAR = 0.2
"""Sds of a unit's score by which it is uncertain where the mode is, root mean square: then the last query is asked there."""
_CHOSEN = 32
"""Outcomes that are drawn of a unit, to choose what is asked."""
_ON_THE_WAY, _LAST = (8, 0.5), (16, 0.3)
"""The same, to know the mean of what was answered; and the length of a step that no other follows, in sds of the law, of
which such means are off by √½ over the root of that number at most."""
_LOOKED_AT = 2**19
"""Numbers of simulated scores that a bound is chosen by, at most: of more units, every second one, or third."""
_OCTAVE, _OCTAVES = math.log(2.0), 10
"""Bounds that are tried, from the longest score down: costs are flat below, and have more than one minimum."""
_CLOSE = 0.03
"""Of log b, about where costs are least: there they are flat."""
_IMPOSSIBLE = 1e-9
"""Outcomes that are less probable have no say in where a unit's are centred."""
_NOUGHT = 1e-9
"""Of the largest eigenvalue: one of which nothing is known."""
_STEPS, _LONGEST = 50, 1.0
"""To the mode, at most, and the longest, in sds of a unit's score, root mean square."""


class _Reach(NamedTuple):
    """How far units' scores go, each unit's along the longest of its own.

    Parameters
    ----------
    axis : ndarray, shape (units, d)
        Of length 1; 0 if all scores are.
    low, high : ndarray, shape (units,)
        0 or less, and 0 or more.
    """

    axis: Vector
    low: Vector
    high: Vector

    @classmethod
    def of(cls, weights: Vector, z: Vector) -> "_Reach":
        """Of scores at all outcomes, shape (outcomes, units, d), and their probabilities."""
        possible = weights > _IMPOSSIBLE
        squares = np.where(possible, np.einsum("knd,knd->kn", z, z), 0.0)
        longest = z[squares.argmax(axis=0), np.arange(z.shape[1])]
        axis = longest / np.sqrt(np.maximum(squares.max(axis=0), 1e-300))[:, None]
        along = np.where(possible, np.einsum("knd,nd->kn", z, axis), 0.0)
        return cls(axis, np.minimum(along.min(axis=0), 0.0), np.maximum(along.max(axis=0), 0.0))

    def centres(self, b: float) -> Vector:
        """Where a ball of radius b has no room that is empty: about 0, unless it reaches beyond all scores there."""
        low, high = self.low + b, self.high - b
        shift = np.where(low <= high, np.clip(0.0, low, high), (low + high) / 2)
        return np.asarray(shift[:, None] * self.axis)


@dataclass(frozen=True)
class _Question:
    """What is asked at a place. Public.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    V : ndarray, shape (d, d)
    bound : float
    centres : ndarray, shape (units, d)
    """

    theta: Vector
    V: Vector
    bound: float
    centres: Vector

    def terms(self, scores: Vector, first: int) -> Vector:
        """Clipped deviations of units from the first on, shape (outcomes, units, d)."""
        units = slice(first, first + scores.shape[1])
        return _clipped(scores @ self.V, self.centres[units], self.bound)


@dataclass(frozen=True)
class _Answer:
    """The sum of a question's terms, with noise of this standard deviation in each entry."""

    question: _Question
    total: Vector
    noise: float


def _clipped(z: Vector, centres: Vector, bound: float) -> Vector:
    psi = z - centres
    factors = shrink(np.sqrt(np.einsum("knd,knd->kn", psi, psi)), bound)
    return np.asarray(psi * factors[:, :, None])


class _Moments:
    """Of sums of terms at outcomes of the model's: mean, how it moves with the parameters (M), covariance (Q); and J.

    Parameters
    ----------
    d : int
        Of the scores, of which J is the information.
    size : int
        Of the terms.
    """

    def __init__(self, d: int, size: int):
        self.J, self.M, self.Q = np.zeros((d, d)), np.zeros((size, d)), np.zeros((size, size))
        self.mean, self._of_score, self._outcomes = np.zeros(size), np.zeros(d), 0

    def add(self, weights: Vector, score: Vector, terms: Vector) -> None:
        """A chunk of units, at each outcome: probabilities, scores where the parameters are, and terms."""
        means, w = np.einsum("kn,knd->nd", weights, terms), weights.reshape(-1, 1)
        score, terms = score.reshape(w.size, -1), terms.reshape(w.size, -1)
        self.J += score.T @ (w * score)
        self.M += terms.T @ (w * score)
        self.Q += terms.T @ (w * terms) - means.T @ means
        self.mean += means.sum(axis=0)
        self._of_score += w[:, 0] @ score
        self._outcomes = len(weights)

    def of_draws(self) -> "_Moments":
        """With what is known of outcomes that were drawn, and with what chance leaves open."""
        of_scores = self.M @ np.linalg.pinv(self.J, rcond=_NOUGHT, hermitian=True)
        self.Q *= self._outcomes / (self._outcomes - 1)
        # Scores have mean 0: by what those that were drawn miss it, clipped ones do in part.
        self.mean = self.mean - of_scores @ self._of_score
        self.Q += positive(symmetric(self.Q - of_scores @ self.M.T), 0.0) / self._outcomes
        return self

    def law(self, theta: Vector, totals: Vector, noise: Vector, tempering: float) -> Law:
        r"""Of sums with noise, about θ, where these are the moments.

        They are :math:`N(m(\theta), Q + N)`, N their noise. So with M the derivative of m there, they say of θ what
        :math:`K = M^\top (Q + N)^{-1} M` is the precision of. As of a gradient with noise of covariance S that is
        :math:`J (J + S)^{-1} J = K`.
        """
        V, T = whitening(positive(self.J, 1e-12)), tempering
        M, J, inverse = self.M @ V, V.T @ self.J @ V, np.linalg.inv(V)
        of_sums = np.linalg.solve(self.Q + np.diag(noise**2), M).T
        gain = J @ np.linalg.pinv(symmetric(of_sums @ M), rcond=_NOUGHT, hermitian=True)
        S = inverse.T @ positive(symmetric(gain @ J) - J, 0.0) @ inverse
        beta = inverse.T @ gain @ of_sums @ (totals - self.mean)
        return Law(theta, T * beta, T * self.J, T**2 * S)


class _Asker:
    """What to ask of a model whose design is public, and what the model expects to hear. Reads no records.

    Parameters
    ----------
    design, log_public, tempering
        As :func:`fit_design` takes them.
    """

    def __init__(self, design: PublicDesign, log_public: LogPrior, tempering: float):
        self.design, self.log_public, self.tempering = design, log_public, tempering

    def question(self, theta: Vector, noise: float) -> _Question:
        """In coordinates and with the bound that are best at a place.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        noise : float
            Standard deviation at a bound of 1.
        """
        known = [(w, z) for w, (z,) in self.design.scores(theta, [theta], 0, _CHOSEN)]
        J = sum(np.einsum("kn,knd,kne->de", w, z, z, optimize=True) for w, z in known)
        of_prior = -self.log_public.hessian(theta)
        V = whitening(positive(symmetric(self.tempering * J) + of_prior, 1e-12))
        known = [(w, z @ V) for w, z in known]
        b = self._bound(known, V.T @ of_prior @ V, noise)
        centres = np.concatenate([self._reach(w, z).centres(b) for w, z in known])
        return _Question(theta, V, b, centres)

    def _reach(self, weights: Vector, z: Vector) -> _Reach:
        """Of outcomes that are drawn nobody knows; most have no ends, and then 0 is best."""
        if self.design.is_exact:
            return _Reach.of(weights, z)
        return _Reach(np.zeros(z.shape[1:]), *np.zeros((2, z.shape[1])))

    def _bound(
        self, scores: Sequence[tuple[Vector, Vector]], of_prior: Vector, noise: float
    ) -> float:
        """The bound with which the posterior's variances are least, noise and what is lost by clipping together.

        Parameters
        ----------
        scores : sequence
            Probabilities of outcomes, and scores, whitened.
        of_prior : ndarray, shape (d, d)
            Its precision, whitened.
        noise : float
        """
        d = len(of_prior)
        stride = math.ceil(sum(z.size for _, z in scores) / _LOOKED_AT)
        some = [(w[:, ::stride], z[:, ::stride]) for w, z in scores]
        scale = self.design.n_units / sum(w.shape[1] for w, _ in some)
        reach = [self._reach(*each) for each in some]

        def cost(log_b: float) -> float:
            b, found = math.exp(log_b), _Moments(d, d)
            for (w, z), units in zip(some, reach, strict=True):
                found.add(w, z, _clipped(z, units.centres(b), b))
            Q = scale * found.Q + (noise * b) ** 2 * np.eye(d)
            known = scale**2 * found.M.T @ np.linalg.solve(Q, found.M)
            return float(np.trace(np.linalg.inv(positive(self.tempering * known + of_prior))))

        longest = math.log(max(float(np.max(np.linalg.norm(z, axis=2))) for _, z in some) + 1e-100)
        coarse = longest - _OCTAVE * np.arange(_OCTAVES)
        best = coarse[int(np.argmin([cost(x) for x in coarse]))]
        near = best - _OCTAVE, best + _OCTAVE
        found = minimize_scalar(cost, bounds=near, method="bounded", options={"xatol": _CLOSE})
        return math.exp(found.x)

    def expected(self, theta: Vector, questions: Sequence[_Question], draws: int) -> _Moments:
        """Moments of the sums that are asked for, if the parameters are θ."""
        d, first = len(theta), 0
        found = _Moments(d, d * len(questions))
        places = [theta, *(question.theta for question in questions)]
        for w, (score, *others) in self.design.scores(theta, places, 1, draws):
            terms = [
                question.terms(z, first) for question, z in zip(questions, others, strict=True)
            ]
            found.add(w, score, np.concatenate(terms, axis=2))
            first += w.shape[1]
        return found if self.design.is_exact else found.of_draws()


class _Run(_Asker):
    """What is known so far.

    Parameters
    ----------
    measure : Measurements
    start : ndarray, shape (d,)
    asker
        As :class:`_Asker` takes it.
    """

    def __init__(self, measure: Measurements, start: Vector, *asker: Any):
        super().__init__(*asker)
        self.measure, self.theta = measure, start
        self.answers: list[_Answer] = []
        self.arrived = False

    def ask(self, share: float) -> None:
        """One query, at :attr:`theta`."""
        at = self.question(self.theta, self.measure.noise_sd(1.0, share, len(self.theta)))
        deviations = Deviation(at.theta, at.V, at.centres)
        self.answers.append(_Answer(at, *self.measure.sum(deviations, at.bound, share)))

    def ask_last(self) -> None:
        """One query for all that is left."""
        measure, d = self.measure, len(self.theta)
        if measure.before_last_sum <= 0:
            return self.ask(1 - measure.spent)
        sensitivity = measure.noise_sd(1.0, 1.0, d) / measure.multiplier(1.0, d)
        at = self.question(self.theta, measure.last_multiplier(d) * sensitivity)
        deviations = Deviation(at.theta, at.V, at.centres)
        self.answers.append(_Answer(at, *measure.last_sum(deviations, at.bound)))

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
        self.theta = r.mean
        return r

    def is_near(self, r: Posterior) -> bool:
        """Whether units' scores are about what they would be at the mode."""
        spread = float(np.trace(r.law.J @ r.covariance)) / self.tempering
        return spread < _NEAR**2 * self.design.n_units

    def compared(self, before: Posterior) -> tuple[float, Vector]:
        """How far the last answer is from what those before had predicted, in sds; and in every parameter's."""
        last, d = self.answers[-1], len(self.theta)
        at = last.question
        expected = self.expected(at.theta, [at], _LAST[0])
        off, M = last.total - expected.mean, expected.M
        spread = expected.Q + last.noise**2 * np.eye(d) + M @ before.covariance @ M.T
        surprise = math.sqrt(max(float(off @ np.linalg.solve(spread, off)), 0.0) / d)
        step = at.V @ np.linalg.pinv(M @ at.V, rcond=_NOUGHT) @ off
        return surprise, step / np.sqrt(np.diag(np.linalg.inv(before.exact)))


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
        Told after the search how many queries there were and what they say. It may raise, and the rest is not spent here.

    Returns
    -------
    NormalSurrogate

    Notes
    -----
    **Releases**: sums of :class:`~pymc_dp.records.queries.Deviation`, each of a function of one unit's outcome, of its
    public covariates and of earlier releases; see :class:`~pymc_dp.records.measurements.Measurements` for their
    sensitivity. **Guarantee**: together one Gaussian release of the budget's multiplier.
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
        watch(rounds, before)
        on_progress("the last query, with all that is left")
        run.ask_last()
        r = run.known(*_LAST)
        surprise, off = run.compared(before)
    except (np.linalg.LinAlgError, OverflowError):  # of released numbers
        return nothing(log_public, start)
    last = run.answers[-1].question
    return NormalSurrogate(
        posterior=r, V=last.V, gradient_clip=last.bound, hessian_clip=math.nan, surprise=surprise, off=off,
        improbable=improbable(log_public, start, r.mean), rounds=rounds, arrived=run.arrived,
    )  # fmt: skip


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
    asker, d = _Asker(design, log_public, tempering), len(theta)
    at = asker.question(theta, noise)
    found = asker.expected(theta, [at], _LAST[0])
    law = found.law(theta, found.mean, np.full(d, noise * at.bound), tempering)
    of_prior = -log_public.hessian(theta)
    P = positive(law.J + of_prior, 1e-12)
    known = [
        (w, np.linalg.norm(tempering * z @ at.V, axis=2))
        for w, (z,) in design.scores(theta, [theta], 0, _CHOSEN)
    ]
    longest = max(float(np.max(sizes)) for _, sizes in known)
    # As for any clipped sum: noise, and what all that is clipped may add up to, in squares.
    costs = [
        noise**2 * b**2
        + sum(float((w * np.maximum(sizes - b, 0.0)).sum()) for w, sizes in known) ** 2 / d
        for b in longest * 2.0 ** -np.linspace(0, 8, 50)
    ]
    posterior = Posterior(law, theta, P, P, of_prior)
    return posterior.privacy_shift, math.sqrt(min(costs))
