r"""What there is to ask where covariates are public: the score's sum, and nothing else.

A unit's term is :math:`\psi_i = \operatorname{clip}_b(z_i - c_i)`, with :math:`z_i = V^\top \nabla\ell_i(\theta)`. The place, V, b
and the centres :math:`c_i` are public, and so is all that the model expects at any place: the mean of the sum, its
covariance Q, and how its mean moves with the parameters, :math:`M = \sum_i E[\psi_i z_i^\top]`. As the mean is taken off, nothing
is biased by clipping, and b is as short as the noise wants it.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, positive, shrink, symmetric
from pymc_dp.records.design import PublicDesign, scores_of
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Deviation
from pymc_dp.surrogate.normal.estimates import Estimate, root_trace, whitening
from pymc_dp.surrogate.normal.evaluation import Evaluation

_LOOKED_AT = 2**24
"""Numbers of simulated scores that a bound is chosen by, at most: of more units, every second one, or third."""
_OCTAVE, _OCTAVES = math.log(2.0), 12
"""Bounds that are tried, from the longest score down: costs are flat below, and have more than one minimum."""
_CLOSE = 0.02
"""Of log b, which is where costs are flat."""
_IMPOSSIBLE = 1e-9
"""Outcomes that are less probable have no say in where a unit's are centred."""

_Chunk = tuple[Vector, Vector]


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

    def gain(self) -> Vector:
        r""":math:`J M^{-1}`: what makes of the sum a gradient."""
        return np.asarray(self.J @ np.linalg.pinv(self.M, rcond=1e-9))

    def noise(self, sd: float) -> Vector:
        """What the gradient is off by, beyond what outcomes are by chance: noise, and what clipping has lost."""
        gain = self.gain()
        total = symmetric(gain @ (self.Q + sd**2 * np.eye(len(self.Q))) @ gain.T)
        return positive(total - self.J)


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
        """Ask at a place, with the frame and the bound that are best there.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        share : float
        prior : LogPrior
        """
        T, d = self._tempering, len(theta)
        known = list(scores_of(self._design.chosen, theta))
        J = _information(known)
        Λ = -prior.hessian(theta)
        V = whitening(positive(T * J + Λ, 1e-12))
        some = _some_of([(z @ V, w) for z, w in known])
        scale = self._design.n_units / sum(w.shape[1] for _, w in some)
        of_prior, one = V.T @ Λ @ V, self._measure.noise_sd(1.0, share)

        def cost(log_b: float) -> float:
            b = math.exp(log_b)
            found = self._expected(some, _centres(some, b), b, scale)
            S = found.noise(one * b)
            known_of = found.J @ np.linalg.solve(found.J / T + S, found.J)
            return float(np.trace(np.linalg.inv(positive(known_of + of_prior))))

        longest = math.log(max(float(np.linalg.norm(z, axis=2).max()) for z, _ in some))
        coarse = longest - _OCTAVE * np.arange(_OCTAVES)
        best = coarse[int(np.argmin([cost(x) for x in coarse]))]
        near = best - _OCTAVE, best + _OCTAVE
        b = math.exp(minimize_scalar(cost, bounds=near, method="bounded", options={"xatol": _CLOSE}).x)
        whitened = [(z @ V, w) for z, w in known]
        centres = _centres(whitened, b)
        if not self._design.exact:  # centres are functions of what was drawn
            whitened = [(z @ V, w) for z, w in scores_of(self._design.expected, theta)]
        expected = self._expected(whitened, centres, b, 1.0)
        total, noise = self._measure.sum(Deviation(theta, V, np.concatenate(centres)), b, share)
        score, inverse, gain = total - expected.mean, np.linalg.inv(V), expected.gain()
        S = T**2 * inverse.T @ expected.noise(noise) @ inverse
        J = T * symmetric(inverse.T @ expected.J @ inverse)
        P = symmetric(positive(J + Λ, 1e-12))
        largest = max(float((w * (z**2).sum(axis=2)).sum(axis=0).max()) for z, w in whitened)
        at = Evaluation(
            theta, V, b, score, noise, noise, expected.J, expected.M, 0.0, largest, (), ()
        )
        return Estimate(
            at, T * inverse.T @ gain @ score, symmetric(S), P, J, 0.0, True,
            root_trace(np.linalg.solve(P, S)), float(np.trace(expected.M @ np.linalg.pinv(expected.J))) / d,
        )  # fmt: skip

    def _expected(
        self, scores: list[_Chunk], centres: list[Vector], b: float, scale: float
    ) -> _Expected:
        d = scores[0][0].shape[2]
        J, M, Q, mean, of_score = (np.zeros(s) for s in ((d, d), (d, d), (d, d), d, d))
        for (z, w), c in zip(scores, centres, strict=True):
            deviation = z - c
            psi = shrink(np.linalg.norm(deviation, axis=2), b)[:, :, None] * deviation
            weighted, of_unit = w[:, :, None] * psi, np.einsum("kn,knd->nd", w, psi)
            J += np.einsum("knd,kne->de", w[:, :, None] * z, z)
            M += np.einsum("knd,kne->de", weighted, z)
            Q += np.einsum("knd,kne->de", weighted, psi) - of_unit.T @ of_unit
            mean += of_unit.sum(axis=0)
            of_score += np.einsum("kn,knd->d", w, z)
        if not self._design.exact:
            outcomes = scores[0][1].shape[0]
            Q *= outcomes / (outcomes - 1)
            # Of scores the mean is known: what outcomes have missed it by, the clipped ones have in part, too.
            mean -= M @ np.linalg.pinv(J, rcond=1e-9) @ of_score
            Q += positive(Q - M @ np.linalg.pinv(J, rcond=1e-9) @ M.T, 0.0) / outcomes
        return _Expected(scale * J, scale * mean, scale * M, scale * Q)


def _information(scores: list[_Chunk]) -> Vector:
    return symmetric(sum(np.einsum("knd,kne->de", w[:, :, None] * z, z) for z, w in scores))


def _some_of(scores: list[_Chunk]) -> list[_Chunk]:
    stride = math.ceil(sum(z.size for z, _ in scores) / _LOOKED_AT)
    return [(z[:, ::stride], w[:, ::stride]) for z, w in scores]


def _centres(scores: list[_Chunk], b: float) -> list[Vector]:
    """Where a ball of radius b is to be for each unit, so that no room in it is empty.

    Along the longest of a unit's scores: about 0, unless it reaches beyond all of them on one side.
    """
    found = []
    for z, w in scores:
        sizes = np.where(w > _IMPOSSIBLE, np.linalg.norm(z, axis=2), 0.0)
        k = sizes.argmax(axis=0)
        axis = z[k, np.arange(len(k))] / np.maximum(sizes.max(axis=0), 1e-300)[:, None]
        along = np.where(w > _IMPOSSIBLE, np.einsum("knd,nd->kn", z, axis), 0.0)
        low, high = along.min(axis=0), along.max(axis=0)
        wide = high - low > 2 * b
        shift = np.where(wide, np.clip(0.0, low + b, np.maximum(high - b, low + b)), (low + high) / 2)
        found.append(shift[:, None] * axis)
    return found
