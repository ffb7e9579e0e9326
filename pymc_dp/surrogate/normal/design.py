r"""A normal surrogate where covariates are public: the score's sum is all that is asked.

A unit's term is :math:`\psi_i = \operatorname{clip}_b(z_i - c_i)`, with :math:`z_i = V^\top \nabla\ell_i(\theta_t)`. The place
:math:`\theta_t`, V, b and the centres :math:`c_i` are public, and so is what the model expects of the sum wherever its parameters
are: the mean, how that moves with them, and the covariance. So an answer is compared with its own mean, and not with
that of a straight line: nothing is biased by clipping, b is as short as noise wants it, and a place may be far off.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
class _Answer:
    """A sum of clipped deviations, with noise. Nothing in it is private.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    V : ndarray, shape (d, d)
    bound : float
    centres : ndarray, shape (units, d)
    total : ndarray, shape (d,)
    noise : float
        Standard deviation in each entry.
    """

    theta: Vector
    V: Vector
    bound: float
    centres: Vector
    total: Vector
    noise: float

    def clipped(self, scores: Vector, first: int) -> Vector:
        """Terms of units from the first on, shape (outcomes, units, d)."""
        return _clipped(scores @ self.V, self.centres[first : first + scores.shape[1]], self.bound)


def _clipped(z: Vector, centres: Vector, bound: float) -> Vector:
    psi = z - centres
    factors = shrink(np.sqrt(np.einsum("knd,knd->kn", psi, psi)), bound)
    return psi * factors[:, :, None]


class _Moments:
    """Of sums of terms ψ at outcomes of the model's: mean, how it moves with the parameters (M), covariance (Q).

    Parameters
    ----------
    d : int
        Of the scores.
    size : int
        Of the terms.
    """

    def __init__(self, d: int, size: int):
        self.J, self.M, self.Q = np.zeros((d, d)), np.zeros((size, d)), np.zeros((size, size))
        self.mean, self._of_score, self._outcomes = np.zeros(size), np.zeros(d), 0

    def add(self, weights: Vector, score: Vector, psi: Vector) -> None:
        """A chunk of units: scores where the parameters are, and terms."""
        d, size = len(self.J), len(self.Q)
        flat, terms = score.reshape(-1, d), psi.reshape(weights.size, size)
        weighted = weights.reshape(-1, 1) * flat
        means = np.einsum("kn,knd->nd", weights, psi)
        self.J += flat.T @ weighted
        self.M += terms.T @ weighted
        self.Q += terms.T @ (weights.reshape(-1, 1) * terms) - means.T @ means
        self.mean += means.sum(axis=0)
        self._of_score += weighted.sum(axis=0)
        self._outcomes = len(weights)

    def of_draws(self) -> "_Moments":
        """With what is known of outcomes that were drawn, and with what chance leaves open."""
        of_scores = self.M @ np.linalg.pinv(self.J, rcond=1e-9, hermitian=True)
        self.Q *= self._outcomes / (self._outcomes - 1)
        # Scores have mean 0: by what those that were drawn miss it, clipped ones do in part.
        self.mean = self.mean - of_scores @ self._of_score
        self.Q += positive(symmetric(self.Q - of_scores @ self.M.T), 0.0) / self._outcomes
        return self


class _Run:
    """What is known so far.

    Parameters
    ----------
    measure, design, log_public, start, tempering
        As :func:`fit_design` takes them.
    """

    def __init__(
        self, measure: Measurements, design: PublicDesign, log_public: LogPrior, start: Vector, tempering: float
    ):  # fmt: skip
        self.measure, self.design, self.log_public = measure, design, log_public
        self.start, self.tempering = start, tempering
        self.answers: list[_Answer] = []
        self.posterior: Posterior | None = None
        self.surprise, self.off, self.arrived = math.nan, np.zeros(len(start)), False

    @property
    def theta(self) -> Vector:
        """Where the mode is, as far as is known."""
        return self.start if self.posterior is None else self.posterior.mean

    @property
    def is_near(self) -> bool:
        """Whether no unit's score would be very different at the mode."""
        r = self.posterior
        if r is None:
            return False
        return float(np.trace(r.law.J @ r.covariance)) / self.tempering < _NEAR**2 * self.design.n_units

    def ask(self, share: float) -> None:
        """One query at :attr:`theta`, in coordinates and with the bound that are best there."""
        theta, prior, T = self.theta, self.log_public, self.tempering
        known = [(w, z) for w, (z,) in self.design.scores(theta, [theta], 0, _CHOSEN)]
        J = _Moments(len(theta), 0)
        for w, z in known:
            J.add(w, z, z[:, :, :0])
        of_prior = -prior.hessian(theta)
        V = whitening(positive(T * J.J + of_prior, 1e-12))
        whitened = [(w, z @ V) for w, z in known]
        b = self._bound(whitened, V.T @ of_prior @ V, self.measure.noise_sd(1.0, share))
        centres = np.concatenate([self._reach(w, z).centres(b) for w, z in whitened])
        total, noise = self.measure.sum(Deviation(theta, V, centres), b, share)
        self.answers.append(_Answer(theta, V, b, centres, total, noise))

    def _reach(self, weights: Vector, z: Vector) -> _Reach:
        """Of outcomes that are drawn it is not known; and about 0 there are errors least, as they have no ends."""
        if self.design.is_exact:
            return _Reach.of(weights, z)
        return _Reach(np.zeros(z.shape[1:]), *np.zeros((2, z.shape[1])))

    def _bound(self, scores: Sequence[tuple[Vector, Vector]], of_prior: Vector, noise: float) -> float:
        """The bound with which the posterior's variances are least, noise and what is lost by clipping together.

        Parameters
        ----------
        scores : sequence
            Whitened.
        of_prior : ndarray, shape (d, d)
            Its precision, whitened.
        noise : float
            Standard deviation at a bound of 1.
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

        longest = math.log(max(float(np.linalg.norm(z, axis=2).max()) for _, z in some) + 1e-100)
        coarse = longest - _OCTAVE * np.arange(_OCTAVES)
        best = coarse[int(np.argmin([cost(x) for x in coarse]))]
        near = best - _OCTAVE, best + _OCTAVE
        found = minimize_scalar(cost, bounds=near, method="bounded", options={"xatol": _CLOSE})
        return math.exp(found.x)

    def _expected(self, theta: Vector, answers: Sequence[_Answer], draws: int) -> _Moments:
        """What the model expects of answers if its parameters are θ."""
        d, first = len(theta), 0
        found = _Moments(d, d * len(answers))
        places = [theta, *(answer.theta for answer in answers)]
        for w, (score, *others) in self.design.scores(theta, places, 1, draws):
            psi = [answer.clipped(z, first) for answer, z in zip(answers, others, strict=True)]
            found.add(w, score, np.concatenate(psi, axis=2))
            first += w.shape[1]
        return found if self.design.is_exact else found.of_draws()

    def _law(self, theta: Vector, draws: int) -> tuple[Law, Vector]:
        r"""Of all answers, about θ; and the information there.

        They are :math:`N(m(\theta), Q + N)`, N their noise. So with M the derivative of m there, they say of θ what
        :math:`K = M^\top (Q + N)^{-1} M` is the precision of. As of a gradient with noise of covariance S that is
        :math:`J (J + S)^{-1} J = K`.
        """
        found = self._expected(theta, self.answers, draws)
        noise = np.repeat([answer.noise**2 for answer in self.answers], len(theta))
        said = np.concatenate([answer.total for answer in self.answers]) - found.mean
        V, T = whitening(positive(found.J, 1e-12)), self.tempering
        M, inverse = found.M @ V, np.linalg.inv(V)
        of_answers = np.linalg.solve(found.Q + np.diag(noise), M).T
        J = V.T @ found.J @ V
        gain = J @ np.linalg.pinv(symmetric(of_answers @ M), rcond=1e-9, hermitian=True)
        S = positive(symmetric(gain @ J) - J, 0.0)
        beta = inverse.T @ gain @ of_answers @ said
        return Law(theta, T * beta, T * found.J, T**2 * inverse.T @ S @ inverse), found.J

    def update(self, draws: int, short: float) -> None:
        """Go to the mode of what all answers say, and of the prior. No records are read.

        Parameters
        ----------
        draws : int
            Outcomes of a unit.
        short : float
            Length of a step that no other follows, in sds of the law.
        """
        theta, longest, before = self.theta, _LONGEST, np.zeros(len(self.start))
        for _ in range(_STEPS):
            law, J = self._law(theta, draws)
            self.posterior = r = posterior_of(law, self.log_public, theta)
            step = r.mean - theta
            self.arrived = float(step @ r.precision @ step) < short**2 * len(step)
            if self.arrived:
                return
            if float(step @ J @ before) < 0:  # beyond it
                longest /= 2
            scores = math.sqrt(max(float(step @ J @ step), 0.0) / self.design.n_units)
            before = step * min(1.0, longest / max(scores, 1e-300))
            theta = theta + before

    def compare(self, known: Posterior) -> None:
        """The last answer, and what had been known before: see :class:`~pymc_dp.surrogate.normal.model.NormalSurrogate`."""
        last, d = self.answers[-1], len(self.start)
        expected = self._expected(last.theta, [last], _LAST[0])
        said, M = last.total - expected.mean, expected.M
        spread = expected.Q + last.noise**2 * np.eye(d) + M @ known.covariance @ M.T
        self.surprise = math.sqrt(max(float(said @ np.linalg.solve(spread, said)), 0.0) / d)
        off = last.V @ np.linalg.pinv(M @ last.V, rcond=1e-9) @ said
        self.off = off / np.sqrt(np.diag(np.linalg.inv(known.exact)))


def fit_design(
    measure: Measurements,
    design: PublicDesign,
    log_public: LogPrior,
    start: Vector,
    *,
    tempering: float = 1.0,
    watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> NormalSurrogate:
    """Find out what a budget allows to be known of a posterior, if covariates are public.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of outcomes, and spent afterwards.
    design : PublicDesign
        What is known of everything else.
    log_public, start, tempering, watch, on_progress
        As in :func:`~pymc_dp.surrogate.normal.fit.fit_normal`.

    Returns
    -------
    NormalSurrogate

    Notes
    -----
    **Releases**: sums of :class:`~pymc_dp.records.queries.Deviation`, each of a function of one unit's outcome, of its
    public covariates and of earlier releases; see :class:`~pymc_dp.records.measurements.Measurements` for their
    sensitivity. **Guarantee**: together one Gaussian release of the budget's multiplier.
    """
    try:
        run, share = _Run(measure, design, log_public, start, tempering), _FIRST
        while not run.is_near and measure.spent + share <= _MOST:
            run.ask(share)
            on_progress(f"query {len(run.answers)} on the way to the mode")
            run.update(*_ON_THE_WAY)
            share *= 2
        known = run.posterior
        watch(len(run.answers), known)
        on_progress("the last query, with all that is left")
        run.ask(1 - measure.spent)
        run.update(*_LAST)
        run.compare(known)
        r, last = run.posterior, run.answers[-1]
    except (np.linalg.LinAlgError, OverflowError):  # of released numbers
        return nothing(log_public, start)
    return NormalSurrogate(
        posterior=r, V=last.V, gradient_clip=last.bound, hessian_clip=math.nan, surprise=run.surprise, off=run.off,
        improbable=improbable(log_public, start, r.mean), rounds=len(run.answers) - 1, arrived=run.arrived,
    )  # fmt: skip
