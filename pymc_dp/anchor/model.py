"""The released anchor, and the private residuals that it leaves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.anchor.matrices import Vector, as_vectors, clip, norms, shrink
from pymc_dp.likelihood.curvature import DirectionalCurvature, UnitHessians
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.records import RecordLikelihood


@dataclass(frozen=True)
class Anchor:
    r"""A released second-order model of the log-likelihood. Nothing in it is private.

    Parameters
    ----------
    theta0 : ndarray, shape (d,)
        Where it is centred.
    W : ndarray, shape (d, d)
        Whitens the posterior, about.
    order : {1, 2}
        Whether units' own Hessians are part of their anchors. At order 1 a public share of the
        curvature, the same for every unit, stands in for them.
    gradient, curvature : ndarray
        Of the log-likelihood in u: :math:`\hat g` and, with its sign turned, :math:`\hat A`.
    gradient_clip, hessian_clip, correction_clip : float
        b, :math:`C_H`, and b′ of the second, closer look at the gradient (0: none was taken).
    first_theta0 : ndarray, shape (d,)
        Where the first look was taken.
    tilt : float
        :math:`s_g`: noise standard deviation of every entry of the gradient.
    residual_clip : float
        c in :math:`|h_i(u') - h_i(u)| \le c\,|u' - u| \max(|u|, |u'|)^{order}`.
    mean, precision : ndarray
        :math:`m_h`, P: of the normal approximation that the anchor and the prior make.
    prior_precision : ndarray
        :math:`W^\top \Lambda W`, Λ of the prior at θ₀.
    rounds : int
        Newton steps that found θ₀.
    saturated : bool
        Whether the last of them was as long as allowed: θ₀ may be far from the mode.
    """

    theta0: Vector
    W: Vector
    order: int
    gradient: Vector
    curvature: Vector
    gradient_clip: float
    hessian_clip: float
    correction_clip: float
    first_theta0: Vector
    tilt: float
    residual_clip: float
    mean: Vector
    precision: Vector
    prior_precision: Vector
    rounds: int
    saturated: bool

    def to_theta(self, u: Vector) -> Vector:
        """θ₀ + W u."""
        return self.theta0 + self.W @ u

    def log_ratio(self, u: Vector) -> float:
        """What the anchor says of log-likelihood(u) − log-likelihood(0)."""
        return float(self.gradient @ u - u @ self.curvature @ u / 2)

    def bound(self, u: Vector, new: Vector) -> float:
        """Clipping bound of a unit's residual ratio; the same in both directions."""
        far = max(float(np.linalg.norm(u)), float(np.linalg.norm(new)))
        return self.residual_clip * float(np.linalg.norm(new - u)) * far**self.order

    @property
    def noise_covariance(self) -> Vector:
        r"""What to add to the posterior's covariance, in u, for the anchor's own noise to be in it.

        With L₀ the prior's precision, J the data's and S the covariance of the gradient's noise, the
        posterior that knows of the noise has precision :math:`L_0 + J (J + S)^{-1} J`.
        """
        L0, P = self.prior_precision, self.precision
        J = P - L0
        S = self.tilt**2 * np.eye(len(P))
        aware = L0 + J @ np.linalg.solve(J + S, J)
        values, vectors = np.linalg.eigh(np.linalg.inv(aware) - np.linalg.inv(P))
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


class Expansion:
    """Units' log-likelihoods and their derivatives in the coordinates of an anchor. Private."""

    def __init__(self, model: Any, likelihood: RecordLikelihood, compile_kwargs: Any):
        self.likelihood = likelihood
        self._gradients = UnitGradients(model, likelihood, compile_kwargs=compile_kwargs)
        self._hessians = UnitHessians(model, likelihood, compile_kwargs=compile_kwargs)
        self._line = DirectionalCurvature(model, likelihood, compile_kwargs=compile_kwargs)

    def gradients(self, theta: Vector, W: Vector) -> Iterator[Vector]:
        r"""Chunks of :math:`W^\top \nabla\ell_i`."""
        with np.errstate(all="ignore"):
            for chunk in self._gradients(theta):
                yield chunk @ W

    def hessians(self, theta: Vector, W: Vector) -> Iterator[Vector]:
        r"""Chunks of :math:`W^\top \nabla^2\ell_i W` as vectors of the same Frobenius norm."""
        with np.errstate(all="ignore"):
            for chunk in self._hessians(theta):
                yield as_vectors(np.einsum("ji,njk,kl->nil", W, chunk, W, optimize=True))

    def curvature_along(self, theta: Vector, v: Vector) -> Vector:
        """Second derivative of every unit's term along v."""
        return self._line(theta, v)


class Residuals:
    r"""Units' residuals :math:`h_i(u)` of an anchor. Private: never leave the process, not pickled.

    Parameters
    ----------
    expansion : Expansion
    anchor : Anchor
    """

    def __init__(self, expansion: Expansion, anchor: Anchor):
        self._expansion, self._anchor = expansion, anchor
        self._kept: tuple[Vector, Vector, Vector | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __call__(self, u: Vector) -> Vector:
        """Residual of every unit, shape (units,). May contain NaN: clip before use."""
        a = self._anchor
        if self._kept is None:
            self._kept = self._prepare()
        at_zero, gradients, factors = self._kept
        with np.errstate(all="ignore"):
            h = self._expansion.likelihood(a.to_theta(u)) - at_zero - gradients @ u
            if factors is None:
                # A public share of the curvature, the same for all, added back by `log_ratio`.
                return h + (u @ a.curvature @ u) / (2 * len(h))
            return h - factors * self._expansion.curvature_along(a.theta0, a.W @ u) / 2

    def _prepare(self) -> tuple[Vector, Vector, Vector | None]:
        a, expansion = self._anchor, self._expansion
        gradients = clipped_gradients(expansion, a.first_theta0, a.W, a.gradient_clip)
        if a.correction_clip > 0:
            gradients += clip(
                np.concatenate(list(expansion.gradients(a.theta0, a.W))) - gradients,
                a.correction_clip,
            )
        factors = None
        if a.order == 2:
            factors = np.concatenate(
                [
                    shrink(norms(chunk), a.hessian_clip)
                    for chunk in expansion.hessians(a.theta0, a.W)
                ]
            )
        return expansion.likelihood(a.theta0), gradients, factors


def clipped_gradients(expansion: Expansion, theta: Vector, W: Vector, bound: float) -> Vector:
    """Every unit's gradient in u, clipped, shape (units, d)."""
    return np.concatenate([clip(chunk, bound) for chunk in expansion.gradients(theta, W)])
