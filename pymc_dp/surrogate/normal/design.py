r"""What there is to ask where covariates are public: the score's sum, and nothing else.

A unit's term is :math:`\psi_i = \operatorname{clip}_b(z_i - c_i)`, with :math:`z_i = V^\top \nabla\ell_i(\theta)`. The place, V, b
and the centres :math:`c_i` are public, and so is all that the model expects at any place: the mean of the sum, its
covariance Q, and how its mean moves with the parameters, :math:`M = \sum_i E[\psi_i z_i^\top]`. As the mean is taken off, nothing
is biased by clipping, and b is as short as the noise wants it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
from scipy.optimize import minimize_scalar

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, positive, symmetric
from pymc_dp.records.design import PublicDesign, scores_of
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Deviation
from pymc_dp.surrogate.normal.estimates import Estimate, root_trace, whitening
from pymc_dp.surrogate.normal.evaluation import Evaluation

_LOOKED_AT = 2**19
"""Numbers of simulated scores that a bound is chosen by, at most: of more units, every second one, or third."""
_OCTAVE, _OCTAVES = math.log(2.0), 10
"""Bounds that are tried, from the longest score down: costs are flat below, and have more than one minimum."""
_CLOSE = 0.03
"""Of log b, about where costs are least: there they are flat."""
_IMPOSSIBLE = 1e-9
"""Outcomes that are less probable have no say in where a unit's are centred."""


class _Reach(NamedTuple):
    """How far a unit's scores go along the longest of them.

    Parameters
    ----------
    axis : ndarray, shape (units, d)
        Of length 1, or 0 if all scores are.
    low, high : ndarray, shape (units,)
        0 or less, and 0 or more.
    """

    axis: Vector
    low: Vector
    high: Vector

    def centres(self, b: float) -> Vector:
        """Where a ball of radius b has to be, so that no room in it is empty: at 0, unless that reaches beyond all scores."""
        low, high = self.low + b, self.high - b
        return np.where(low <= high, np.clip(0.0, low, high), (low + high) / 2)[:, None] * self.axis


@dataclass(frozen=True)
class _Scores:
    """Of a chunk of units at outcomes of the model's, in whitened coordinates: shapes (outcomes, units, d), (outcomes, units)."""

    z: Vector
    weights: Vector

    def reach(self) -> _Reach:
        """Of each unit."""
        possible = self.weights > _IMPOSSIBLE
        sizes = np.where(possible, np.einsum("knd,knd->kn", self.z, self.z), 0.0)
        longest = self.z[sizes.argmax(axis=0), np.arange(self.z.shape[1])]
        axis = longest / np.sqrt(np.maximum(sizes.max(axis=0), 1e-300))[:, None]
        along = np.where(possible, np.einsum("knd,nd->kn", self.z, axis), 0.0)
        return _Reach(axis, np.minimum(along.min(axis=0), 0.0), np.maximum(along.max(axis=0), 0.0))


@dataclass(frozen=True)
class _Expected:
    """Of a sum of clipped deviations at a place: mean, how it moves with the parameters, and covariance.

    Parameters
    ----------
    J : ndarray, shape (d, d)
        Information, of all.
    mean : ndarray, shape (d,)
    M, Q : ndarray, shape (d, d)
    """

    J: Vector
    mean: Vector
    M: Vector
    Q: Vector

    @property
    def gain(self) -> Vector:
        r""":math:`J M^{-1}`: what makes of the sum a gradient."""
        return np.asarray(self.J @ np.linalg.pinv(self.M, rcond=1e-9))

    def noise(self, sd: float) -> Vector:
        """What the gradient is off by, beyond what outcomes are by chance: noise, and what clipping has lost."""
        total = self.gain @ (self.Q + sd**2 * np.eye(len(self.Q))) @ self.gain.T
        return positive(symmetric(total) - self.J)


def _expected(scores: Sequence[_Scores], centres: Sequence[Vector], b: float, exact: bool) -> _Expected:
    d = scores[0].z.shape[2]
    J, M, Q, mean, of_score = (np.zeros(s) for s in ((d, d), (d, d), (d, d), d, d))
    for chunk, c in zip(scores, centres, strict=True):
        _add_moments(chunk.z, chunk.weights, c, b, J, M, Q, mean, of_score)
    if not exact:
        outcomes = len(scores[0].weights)
        Q *= outcomes / (outcomes - 1)
        # Scores have mean 0: by what those that were drawn miss it, clipped ones do in part.
        of_scores = M @ np.linalg.pinv(J, rcond=1e-9)
        mean -= of_scores @ of_score
        Q += positive(symmetric(Q - of_scores @ M.T), 0.0) / outcomes
    return _Expected(J, mean, M, Q)


@numba.njit(cache=True, error_model="numpy")
def _add_moments(z, weights, centres, b, J, M, Q, mean, of_score):  # type: ignore[no-untyped-def]
    outcomes, units, d = z.shape
    psi, of_unit = np.empty(d), np.empty(d)
    for i in range(units):
        of_unit[:] = 0.0
        for k in range(outcomes):
            w, size = weights[k, i], 0.0
            for j in range(d):
                psi[j] = z[k, i, j] - centres[i, j]
                size += psi[j] ** 2
            factor = min(1.0, b / max(math.sqrt(size), 1e-300))
            for j in range(d):
                psi[j] *= factor
                of_unit[j] += w * psi[j]
                of_score[j] += w * z[k, i, j]
                for l in range(d):
                    M[j, l] += w * psi[j] * z[k, i, l]
                for l in range(j + 1):
                    J[j, l] += w * z[k, i, j] * z[k, i, l]
                    Q[j, l] += w * psi[j] * psi[l]
        for j in range(d):
            mean[j] += of_unit[j]
            for l in range(j + 1):
                Q[j, l] -= of_unit[j] * of_unit[l]
    for j in range(d):
        for l in range(j):
            J[l, j], Q[l, j] = J[j, l], Q[j, l]


class DesignEvaluator:
    """Asks for gradients of a model whose design is public.

    Parameters
    ----------
    measure : Measurements
    design : PublicDesign
    tempering : float
        T.
    """

    def __init__(self, measure: Measurements, design: PublicDesign, tempering: float):
        self._measure, self._design, self._tempering = measure, design, tempering

    def at(self, theta: Vector, share: float, prior: LogPrior) -> Estimate:
        """Ask at a place, in the coordinates and with the bound that are best there.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        share : float
        prior : LogPrior
        """
        T, d, exact = self._tempering, len(theta), self._design.exact
        known = list(scores_of(self._design.chosen, theta))
        J = symmetric(sum(np.einsum("kn,knd,kne->de", w, z, z, optimize=True) for z, w in known))
        of_prior = -prior.hessian(theta)
        V = whitening(positive(T * J + of_prior, 1e-12))
        inverse = np.linalg.inv(V)
        scores = [_Scores(z @ V, w) for z, w in known]
        reach = [chunk.reach() for chunk in scores]
        b = self._bound(scores, V.T @ of_prior @ V, self._measure.noise_sd(1.0, share))
        centres = [units.centres(b) for units in reach]
        if not exact:  # independent of what the centres are functions of
            scores = [_Scores(z @ V, w) for z, w in scores_of(self._design.expected, theta)]
        expected = _expected(scores, centres, b, exact)
        total, noise = self._measure.sum(Deviation(theta, V, np.concatenate(centres)), b, share)
        score = total - expected.mean
        S = symmetric(T**2 * inverse.T @ expected.noise(noise) @ inverse)
        J = T * symmetric(inverse.T @ expected.J @ inverse)
        P = symmetric(positive(J + of_prior, 1e-12))
        largest = max(float(((chunk.z**2).sum(axis=2) * chunk.weights).sum(axis=0).max()) for chunk in scores)
        at = Evaluation(theta, V, b, score, noise, noise, expected.J, expected.M, 0.0, largest, (), ())
        return Estimate(
            at, T * inverse.T @ expected.gain @ score, S, P, J, 0.0, True,
            root_trace(np.linalg.solve(P, S)), float(np.trace(expected.M @ np.linalg.pinv(expected.J))) / d,
        )  # fmt: skip

    def _bound(self, scores: Sequence[_Scores], of_prior: Vector, noise: float) -> float:
        """The bound with which the posterior's variances are least, noise and what is lost by clipping together.

        Parameters
        ----------
        scores : sequence of _Scores
        of_prior : ndarray, shape (d, d)
            Its precision, in whitened coordinates.
        noise : float
            Standard deviation at a bound of 1.
        """
        units = sum(chunk.z.shape[1] for chunk in scores)
        stride = math.ceil(sum(chunk.z.size for chunk in scores) / _LOOKED_AT)
        some = [_Scores(chunk.z[:, ::stride], chunk.weights[:, ::stride]) for chunk in scores]
        reach = [chunk.reach() for chunk in some]
        scale = units / sum(chunk.z.shape[1] for chunk in some)

        def cost(log_b: float) -> float:
            b = math.exp(log_b)
            found = _expected(some, [each.centres(b) for each in reach], b, self._design.exact)
            S = found.noise(noise * b / math.sqrt(scale)) / scale
            J = scale * found.J
            known = J @ np.linalg.solve(J / self._tempering + scale**2 * S, J)
            return float(np.trace(np.linalg.inv(positive(known + of_prior))))

        longest = math.log(max(max(float(each.high.max()), float(-each.low.min())) for each in reach))
        coarse = longest - _OCTAVE * np.arange(_OCTAVES)
        best = coarse[int(np.argmin([cost(x) for x in coarse]))]
        near = best - _OCTAVE, best + _OCTAVE
        found = minimize_scalar(cost, bounds=near, method="bounded", options={"xatol": _CLOSE})
        return math.exp(found.x)
