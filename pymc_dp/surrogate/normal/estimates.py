r"""What answers say of the log-likelihood: as if nothing had been clipped, and all of them together.

With s a sum of centred clipped scores at θ and K what these keep of the information J, the mean of s is
:math:`K (\theta^* - \theta)` near the mode θ* of the likelihood, where the gradient is :math:`J (\theta^* - \theta)`: so the
gradient that s tells of is :math:`J K^{-1} s`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, denoised, power, product_covariance, symmetric
from pymc_dp.surrogate.normal.evaluation import Evaluation

_CHANGE = 2.0
"""Curvature changes by about √(2/n) of itself over a posterior sd."""
_RESOLVED = 0.1
"""Eigenvalue of the posterior's precision, in the coordinates that should have made it 1, from which a direction is resolved."""
_SPREAD, _STANDS_OUT = 3.0, 4.0
"""By how much the posterior's precision may differ between directions, in parts of its mean, as far as nothing is seen of it; and that mean, in
sds of its noise, from which on it is not just 1: noise alone is above in one of 30,000. In 32 runs of 2,000 records, 10 coefficients and ε = 1 errors are 1.8, 1.7,
1.7 and 1.9 times the limit with 2, 3, 5 and 10 for the first. With half and twice the second errors are within 1 % of these (`benchmarks/surrogate_constants.py`); without the mean
they fail `tests/steps/test_normal.py`, and are .9 and .8 times as large where noise hides nearly all (12 runs each, which are on no page)."""
_DROWNED = 0.3
"""Least eigenvalue that is believed, in parts of √½ of the largest of the noise's own. Without the mean of all, with 2,000 records, 10 coefficients and ε = 1, squares of
errors over reported variances are 1.1, 1.5 and 2.4 with .2, .3 and .5, with 25,000 and 50 they are .99, .93 and .9."""
_LEAST = 0.05
"""A query may widen the coordinates by the inverse root of this: noise has no more to say than that."""
_LEAST_KEPT = 0.2
"""Of the information, in any direction: what a clipped score is said to keep of it at least."""
_USUALLY_KEPT = 0.75
"""The same where it was not asked: scores with a bound of 1.5 root mean squares."""
_KEPT_SPREAD = 0.1
"""By how much it differs from direction to direction, as far as nothing else is known of it. Half and twice as much: errors within .01
of these (`benchmarks/surrogate_constants.py`)."""
_HALF, _LEAST_PART = 0.5, 0.1
"""Part of the information that scores should keep, and the least that noise lets be told of it. Without, 2 % of outcomes at
ε = .3 are four of their sds off and said to be known; with .7 errors are 1.1 times as large."""
_PLAINLY = 1.5
"""Of the largest eigenvalue that noise alone has in a difference of two informations, about, what is not noise. Intervals of a category of 100 in
100,000 records are 1.07 times as wide as exact ones, with half of it 1.07 and with twice 1.11; without what is filled in, 2.2
(`tests/steps/test_normal.py`)."""
_TRUST = 0.2
"""Of a far gradient's length, what is believed to be off: curvature changes on the way. Half and twice as much: errors 1.06 and .95 times as large with two noises
(`benchmarks/surrogate_constants.py`)."""


@dataclass(frozen=True)
class Estimate:
    """What an evaluation says, in θ. Nothing in it is private.

    Parameters
    ----------
    at : Evaluation
    gradient : ndarray, shape (d,)
        Of the log-likelihood.
    S : ndarray, shape (d, d)
        Covariance of what is off in it.
    P, J : ndarray, shape (d, d)
        Precision of the posterior, and without the prior: information.
    information_sd : float
        Of the noise in J, in whitened coordinates.
    resolved : bool
        Whether all directions stand out of the noise.
    noise : float
        What noise in the gradient makes of a step, in posterior sds.
    part_kept : float
        Of the information, the mean part that clipped scores keep.
    """

    at: Evaluation
    gradient: Vector
    S: Vector
    P: Vector
    J: Vector
    information_sd: float
    resolved: bool
    noise: float
    part_kept: float

    def bound_in(self, V: Vector) -> float:
        """A bound in other coordinates with which scores keep at least about half of the information.

        Where few units have most of it, counts do not show them, and a longer bound costs nothing: noise and what
        scores keep grow with it alike.
        """
        scale = float(np.linalg.norm(np.linalg.solve(self.at.V, V))) / math.sqrt(len(V))
        return self.at.bound * scale * _HALF / max(self.part_kept, _LEAST_PART)

    def information_bound_in(self, V: Vector) -> float:
        """A bound in other coordinates that keeps of a unit's information what was kept here, where these are narrower most."""
        narrower = float(np.linalg.norm(np.linalg.solve(V, self.at.V), 2)) ** -2
        return min(self.at.information_clip, self.at.largest) * narrower

    def of_curvature(self, step: Vector) -> Vector:
        """Covariance of what noise in J makes of a gradient at the end of a step."""
        u, inverse = np.linalg.solve(self.at.V, step), np.linalg.inv(self.at.V)
        noise = product_covariance(np.outer(u, u), self.information_sd)
        return np.asarray(inverse.T @ noise @ inverse)


def estimate(
    at: Evaluation, before: Sequence[Estimate], prior: LogPrior, n_units: float, last: bool
) -> Estimate:
    """What an answer says, with what the others know of curvature.

    Parameters
    ----------
    at : Evaluation
    before : sequence of Estimate
    prior : LogPrior
    n_units : float
    last : bool
        Of the run.
    """
    V, inverse, d = at.V, np.linalg.inv(at.V), len(at.theta)
    of_prior = symmetric(-(V.T @ prior.hessian(at.theta) @ V))
    information, sd = _pooled_information(
        [*(belief.at for belief in before if not belief.at.saturated), at], n_units
    )
    P = information + of_prior
    floor, average = _DROWNED * sd * math.sqrt(d), np.trace(P) / d
    # The mean has a d-th of the noise; that others differ from it by more than some times as much is noise.
    average = average if average > _STANDS_OUT * sd / math.sqrt(d) else 1.0
    part = 1 / (1 + d * (sd / (_SPREAD * average)) ** 2)
    alike = np.diag(_drawn_to(average, np.diag(P), sd))
    values, U = np.linalg.eigh(alike + denoised(part * (P - alike), part * sd))
    resolved = bool(values[0] > max(floor, _RESOLVED)) and not at.saturated
    # What noise drowns keeps the coordinates that it had.
    values = np.maximum(values, min(floor, 1.0))
    values = np.maximum(values, _LEAST if before else 1e-9)
    P = (U * values) @ U.T
    root, R = (U * np.sqrt(values)) @ U.T, (U / np.sqrt(values)) @ U.T
    if at.kept is None:
        kept, kept_sd = _USUALLY_KEPT * np.eye(d), _KEPT_SPREAD
    else:
        seen = symmetric(R @ (at.kept + of_prior) @ R)
        kept, kept_sd = _shrunk(seen, at.information_sd, R @ R, at.kept_is_diagonal)
    values, U = np.linalg.eigh(kept)
    K_inverse = (U / np.clip(values, _LEAST_KEPT, 1.0)) @ U.T
    gain = inverse.T @ root @ K_inverse @ R

    slope = prior.gradient(at.theta)
    gradient = gain @ (at.score + V.T @ slope) - slope
    P_theta = symmetric(inverse.T @ P @ inverse)
    there = gradient + slope
    if last:
        white = np.linalg.solve(inverse.T @ root, there)
        of_kept = K_inverse @ product_covariance(np.outer(white, white), kept_sd) @ K_inverse
        doubted = inverse.T @ root @ of_kept @ root @ inverse
    else:
        doubted = _TRUST**2 * float(there @ np.linalg.solve(P_theta, there)) / d * P_theta
    noise = at.noise * root_trace(np.linalg.solve(P_theta, gain @ gain.T))
    return Estimate(
        at, gradient, gain @ gain.T * at.sd**2 + doubted, P_theta,
        symmetric(inverse.T @ (P - of_prior) @ inverse), sd, resolved, noise, float(np.trace(kept)) / d,
    )  # fmt: skip


def _drawn_to(middle: float, seen: Vector, sd: float) -> Vector:
    """Numbers that were seen with noise, drawn to their middle as James and Stein do, shape (d,).

    Of 43 means and one σ, whose information alone does not change with where σ is, that of σ was up to 2.2 times what it should be without, as all that noise drowns
    of a matrix was drawn to its mean, and every query led half as far as it should: of 10,000 records and a noise multiplier of 1 it was 7, 2 and 5 exact sds off.
    """
    spread = max(float(np.mean((seen - middle) ** 2)), 1e-300)
    return np.asarray(middle + max(0.0, 1 - sd**2 / spread) * (seen - middle))


def _pooled_information(answers: Sequence[Evaluation], n_units: float) -> tuple[Vector, float]:
    """In the last one's coordinates and at its place: mean of what all have measured, and the noise in it."""
    last, d = answers[-1], len(answers[-1].theta)
    total, weight, noise = np.zeros((d, d)), 0.0, 0.0
    for answer in answers:
        M, step = np.linalg.solve(answer.V, last.V), last.theta - answer.theta
        H = M.T @ answer.information @ M
        # In the direction in which the coordinates were narrowest: there it says least of this one.
        sd = answer.information_sd * float(np.linalg.norm(M, 2)) ** 2
        if answer is not last:
            H = _filled(H, last.information, math.hypot(sd, last.information_sd))
        far = min(float(np.sum(np.linalg.solve(V, step) ** 2)) for V in (last.V, answer.V))
        change = _CHANGE * far / n_units * max(1.0, float(np.linalg.norm(H)) ** 2 / d)
        w = 1 / (sd**2 + change + 1e-12)
        total, weight, noise = total + w * H, weight + w, noise + (w * sd) ** 2
    return symmetric(total / weight), math.sqrt(noise) / weight


def _filled(less: Vector, more: Vector, sd: float) -> Vector:
    """An information with what another one has and it plainly lacks: clipping takes from information and adds nothing to it.

    Where few units alone tell of a parameter, answers in coordinates that do not show it yet have lost nearly all of what these
    know, with next to no noise, and would outweigh those that have it.

    Parameters
    ----------
    less, more : ndarray, shape (d, d)
    sd : float
        Of the noise in their difference.
    """
    values, U = np.linalg.eigh(more - less)
    plain = values > _PLAINLY * sd * math.sqrt(2 * len(values))
    return np.asarray(less + (U * np.where(plain, values, 0.0)) @ U.T)


def _shrunk(matrix: Vector, sd: float, R2: Vector, diagonal: bool) -> tuple[Vector, float]:
    """A matrix that was seen with noise, drawn towards a multiple of 1 as James and Stein do; and what may be off in an entry.

    Parameters
    ----------
    matrix : ndarray, shape (d, d)
        In coordinates R of those in which the noise is the same in all directions.
    sd : float
        Of that noise.
    R2 : ndarray, shape (d, d)
        R Rᵀ.
    diagonal : bool
        Whether its diagonal only was seen, before R.
    """
    mean = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
    if diagonal:
        noise = sd**2 * float(np.sum(np.diag(R2) ** 2))
    else:
        noise = sd**2 / 2 * (np.trace(R2) ** 2 + np.trace(R2 @ R2))
    spread = max(float(np.sum((matrix - mean) ** 2)), 1e-12)
    part = max(0.0, 1 - noise / spread)
    left = max(part, 1 / (1 + (sd / _KEPT_SPREAD) ** 2))
    return np.asarray(mean + part * (matrix - mean)), math.sqrt(left) * sd


def pooled_gradient(estimates: Sequence[Estimate]) -> tuple[Vector, Vector]:
    """What all say of the gradient at the last one's place, and the covariance of what is off in it.

    Each is carried there by the mean of the curvatures at both ends, and in every white coordinate believed as far as the last one agrees.
    In all alike, one that is ten sds off in log σ alone would be doubted by a d-th of that. Of 43 means and log σ, 10,000 records and a noise multiplier of 1, σ is then 3.8 of its
    own sds off, root mean square, as answers on the way all lead too little far, and means .58 exact ones; with this 1.4 and 1.2, and .49; with half and a fourth of each square
    1.6 and 1.8, and 2.1, means .50 to .54 (two data sets, one of them that of `tests/steps/test_normal.py`, six other noises each).
    """
    last = estimates[-1]
    W = whitening(last.P)
    of_last = np.diag(W.T @ last.S @ W)
    information, weighted = np.linalg.inv(last.S), np.linalg.solve(last.S, last.gradient)
    for belief in estimates[:-1]:
        step = last.at.theta - belief.at.theta
        gradient = belief.gradient - (belief.J + last.J) / 2 @ step
        far2 = max(float(step @ (belief.P + last.P) @ step) / 2, 0.0)
        values = np.linalg.eigvalsh(symmetric(W.T @ belief.P @ W))
        turn = float(np.abs(np.log(np.maximum(values, 1e-9))).max())
        # The trapezium's error is a twelfth of how the curvature changes, here by the factor e^turn.
        S = belief.S + last.P * turn**4 * far2 / 144
        S = S + (belief.of_curvature(step) + last.of_curvature(step)) / 4
        S, off = W.T @ S @ W, W.T @ (gradient - last.gradient)
        doubted = np.sqrt(np.maximum(1.0, off**2 / (np.diag(S) + of_last)))
        Q = W @ np.linalg.inv(S * np.outer(doubted, doubted)) @ W.T
        information, weighted = information + Q, weighted + Q @ gradient
    S = symmetric(np.linalg.inv(information))
    return S @ weighted, S


def root_trace(matrix: NDArray[Any]) -> float:
    """Root of the trace, of a covariance in coordinates in which the posterior is white."""
    return math.sqrt(max(float(np.trace(matrix)), 0.0))


def whitening(P: Vector) -> Vector:
    """V with V Vᵀ the inverse of a precision, in whatever units its parameters are."""
    scale = 1 / np.sqrt(np.maximum(np.diag(P), 1e-300))
    return np.asarray(
        scale[:, None] * power(symmetric(P * scale[:, None] * scale) + 1e-14 * np.eye(len(P)), -0.5)
    )
