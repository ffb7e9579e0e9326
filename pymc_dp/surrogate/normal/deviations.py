"""What is asked where covariates are public, and what the model expects of the answers: nothing here reads an outcome."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, positive, shrink, symmetric
from pymc_dp.records.design import PublicDesign
from pymc_dp.surrogate.normal.estimates import whitening
from pymc_dp.surrogate.normal.law import Law

CHOSEN = 32
"""Outcomes that are drawn of a unit, to choose what is asked."""
_LOOKED_AT = 2**19
"""Numbers of simulated scores that a bound is chosen by, at most: of more units, every second one, or third."""
_OCTAVE, _OCTAVES = math.log(2.0), 10
"""Bounds that are tried, from the longest score down: costs are flat below, and have more than one minimum."""
_CLOSE = 0.03
"""Of log b, about where costs are least: there they are flat."""
_IMPOSSIBLE = 1e-9
"""Outcomes that are less probable have no say in where a unit's are centred."""
NOUGHT = 1e-9
"""Of the largest eigenvalue: one of which nothing is known."""


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
class Question:
    """What is asked at a place. Public.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    V : ndarray, shape (d, d)
    bound : float
    centres : ndarray, shape (units, d)
    off : float
        Standard deviation, in every direction, of what a sum may be off by where the tail of outcomes is not the model's.
    """

    theta: Vector
    V: Vector
    bound: float
    centres: Vector
    off: float = 0.0

    def terms(self, scores: Vector, first: int) -> Vector:
        """Clipped deviations of units from the first on, shape (outcomes, units, d)."""
        units = slice(first, first + scores.shape[1])
        return _clipped(scores @ self.V, self.centres[units], self.bound)


def _clipped(z: Vector, centres: Vector, bound: float) -> Vector:
    psi = z - centres
    factors = shrink(np.sqrt(np.einsum("knd,knd->kn", psi, psi)), bound)
    return np.asarray(psi * factors[:, :, None])


class Moments:
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

    def of_draws(self) -> "Moments":
        """With what is known of outcomes that were drawn, and with what chance leaves open."""
        of_scores = self.M @ np.linalg.pinv(self.J, rcond=NOUGHT, hermitian=True)
        self.Q *= self._outcomes / (self._outcomes - 1)
        # Scores have mean 0: by what those that were drawn miss it, clipped ones do in part.
        self.mean = self.mean - of_scores @ self._of_score
        self.Q += positive(symmetric(self.Q - of_scores @ self.M.T), 0.0) / self._outcomes
        return self

    def last(self, size: int) -> "Moments":
        """Of the last terms alone."""
        alone = Moments(len(self.J), size)
        alone.J, alone.M, alone.Q = self.J, self.M[-size:], self.Q[-size:, -size:]
        alone.mean = self.mean[-size:]
        return alone

    def law(self, theta: Vector, totals: Vector, noise: Vector, tempering: float) -> Law:
        r"""Of sums with noise, about θ, where these are the moments.

        They are :math:`N(m(\theta), Q + N)`, N their noise. So with M the derivative of m there, they say of θ what
        :math:`K = M^\top (Q + N)^{-1} M` is the precision of. As of a gradient with noise of covariance S that is
        :math:`J (J + S)^{-1} J = K`.
        """
        V, T = whitening(positive(self.J, 1e-12)), tempering
        M, J, inverse = self.M @ V, V.T @ self.J @ V, np.linalg.inv(V)
        of_sums = np.linalg.solve(self.Q + np.diag(noise**2), M).T
        gain = J @ np.linalg.pinv(symmetric(of_sums @ M), rcond=NOUGHT, hermitian=True)
        S = inverse.T @ positive(symmetric(gain @ J) - J, 0.0) @ inverse
        beta = inverse.T @ gain @ of_sums @ (totals - self.mean)
        return Law(theta, T * beta, T * self.J, T**2 * S)


class Asker:
    """What to ask of a model whose design is public, and what the model expects to hear. Reads no records.

    Parameters
    ----------
    design, log_public, tempering
        As :func:`fit_design` takes them.
    """

    def __init__(self, design: PublicDesign, log_public: LogPrior, tempering: float):
        self.design, self.log_public, self.tempering = design, log_public, tempering

    def question(self, theta: Vector, noise: float) -> Question:
        """In coordinates and with the bound that are best at a place.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        noise : float
            Standard deviation at a bound of 1.
        """
        known = [(w, z) for w, (z,) in self.design.scores(theta, [theta], 0, CHOSEN)]
        J = sum(np.einsum("kn,knd,kne->de", w, z, z, optimize=True) for w, z in known)
        of_prior = -self.log_public.hessian(theta)
        V = whitening(positive(symmetric(self.tempering * J) + of_prior, 1e-12))
        known = [(w, z @ V) for w, z in known]
        b = self._bound(known, V.T @ of_prior @ V, noise)
        centres = np.concatenate([self._reach(w, z).centres(b) for w, z in known])
        off = sum(self._clipped_off(w, z, b) for w, z in known) / math.sqrt(len(V))
        return Question(theta, V, b, centres, off)

    def _clipped_off(self, weights: Vector, z: Vector, b: float) -> float:
        """How long all is together that a bound clips of outcomes as the model has them; 0 if all values of one are known.

        Clipping between the ends of all that there is changes weights of units, and no tail is cut off.
        """
        if self.design.is_exact:
            return 0.0
        return float((weights * np.maximum(np.linalg.norm(z, axis=2) - b, 0.0)).sum())

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
            b, found, lost = math.exp(log_b), Moments(d, d), 0.0
            for (w, z), units in zip(some, reach, strict=True):
                found.add(w, z, _clipped(z, units.centres(b), b))
                lost += scale * self._clipped_off(w, z, b)
            Q = scale * found.Q + ((noise * b) ** 2 + lost**2 / d) * np.eye(d)
            known = scale**2 * found.M.T @ np.linalg.solve(Q, found.M)
            return float(np.trace(np.linalg.inv(positive(self.tempering * known + of_prior))))

        longest = math.log(max(float(np.max(np.linalg.norm(z, axis=2))) for _, z in some) + 1e-100)
        coarse = longest - _OCTAVE * np.arange(_OCTAVES)
        best = coarse[int(np.argmin([cost(x) for x in coarse]))]
        near = best - _OCTAVE, best + _OCTAVE
        found = minimize_scalar(cost, bounds=near, method="bounded", options={"xatol": _CLOSE})
        return math.exp(found.x)

    def expected(self, theta: Vector, questions: Sequence[Question], draws: int) -> Moments:
        """Moments of the sums that are asked for, if the parameters are θ."""
        d, first = len(theta), 0
        found = Moments(d, d * len(questions))
        places = [theta, *(question.theta for question in questions)]
        for w, (score, *others) in self.design.scores(theta, places, 1, draws):
            terms = [
                question.terms(z, first) for question, z in zip(questions, others, strict=True)
            ]
            found.add(w, score, np.concatenate(terms, axis=2))
            first += w.shape[1]
        return found if self.design.is_exact else found.of_draws()
