"""The released anchor, and the private residuals that it leaves."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.anchor.matrices import (
    Vector,
    as_vectors,
    clip,
    norms,
    product_covariance,
    shrink,
    subtract_terms,
)
from pymc_dp.likelihood.compiled import CompiledModel

_KEPT_BYTES = 2**26
"""Units' Hessians are kept while they fit in this; beyond, they are computed when needed."""


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
    gradient_clip, hessian_clip : float
        b and :math:`C_H`.
    tilt : float
        :math:`s_g`: noise standard deviation of every entry of the gradient.
    curvature_noise : float
        :math:`s_A`: noise standard deviation of the curvature's diagonal; 0 at order 1, where residuals
        make good whatever is wrong with it.
    residual_clip : float
        c in :math:`|h_i(u') - h_i(u)| \le c\,|u' - u| \max(|u|, |u'|)^{order}`.
    clipped_share, clipped_share_sd : float
        Share of units whose residual ratio exceeds the bound in a typical move, and the standard
        deviation of the noise in it.
    sigma : float
        Standard deviation of the noise in a typical move's log acceptance ratio.
    mean, precision : ndarray
        :math:`m_h`, P: of the normal approximation that the anchor and the prior make.
    prior_precision : ndarray
        :math:`W^\top \Lambda W`, Λ of the prior at θ₀.
    rounds : int
        Newton steps that found θ₀.
    surprise : float
        Length of the log posterior's gradient at the anchor's own mode, where it should be 0, beside what
        noise explains: about 1 if all is well.
    still_to_go : ndarray, shape (d,)
        How far that gradient, noise and all, would move every parameter.
    """

    theta0: Vector
    W: Vector
    order: int
    gradient: Vector
    curvature: Vector
    gradient_clip: float
    hessian_clip: float
    tilt: float
    curvature_noise: float
    residual_clip: float
    clipped_share: float
    clipped_share_sd: float
    sigma: float
    mean: Vector
    precision: Vector
    prior_precision: Vector
    rounds: int
    surprise: float
    still_to_go: Vector

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

    def in_sds(self, moved: Vector) -> Vector:
        """Moves of θ, shape (d,) or (d, k), in posterior standard deviations of every parameter."""
        sds = np.sqrt(np.diag(self.W @ np.linalg.solve(self.precision, self.W.T)))
        return np.asarray((moved.T / sds).T)

    @property
    def tilts(self) -> Vector:
        """:attr:`tilt_in_sds` of every parameter of θ, shape (d,)."""
        moved = self.W @ np.linalg.solve(self.precision, np.linalg.cholesky(self.noise_covariance))
        return np.linalg.norm(self.in_sds(moved), axis=1)

    @property
    def typical_distance(self) -> float:
        """How far from the anchor's centre the posterior lies, in its standard deviations."""
        return 1.05 * math.sqrt(len(self.mean) + float(self.mean @ self.mean))

    @property
    def noise_covariance(self) -> Vector:
        """S, shape (d, d): of the noise in the gradient at :attr:`mean`, the curvature's included."""
        return self.tilt**2 * np.eye(len(self.mean)) + product_covariance(
            self.mean, self.curvature_noise
        )

    @property
    def tilt_in_sds(self) -> float:
        """How far the anchor's noise moves the posterior, in its standard deviations per parameter."""
        moved = np.linalg.solve(self.precision, self.noise_covariance)
        return math.sqrt(float(np.trace(moved)) / len(self.mean))

    def noise_aware(self) -> tuple[Vector, Vector]:
        r"""How a posterior that knows of the anchor's noise differs: shift of its mean, and covariance.

        Units' scores have covariance J, the data's precision, and :math:`\hat g` that of the noise,
        :attr:`noise_covariance` S, on top: :math:`\hat g \sim N(Ju, J + S)`. With the prior's
        precision L₀ and slope ρ the posterior has precision :math:`Q = L_0 + J(J+S)^{-1}J` and mean
        :math:`Q^{-1}(\rho + J(J+S)^{-1}\hat g)`, instead of :math:`P = L_0 + J` and
        :math:`P^{-1}(\rho + \hat g)`. Exact where likelihood and prior are normal and the curvature is
        known.

        Returns
        -------
        shift : ndarray, shape (d,)
            What to add to draws, in u.
        covariance : ndarray, shape (d, d)
            Of what to add besides: :math:`Q^{-1} - P^{-1}`.
        """
        L0, slope = self.prior_precision, self.precision @ self.mean - self.gradient
        # Noise may leave directions that the prior alone determines with negative information.
        values, vectors = np.linalg.eigh(self.precision - L0)
        J = (vectors * np.maximum(values, 0.0)) @ vectors.T
        kept = J @ np.linalg.pinv(J + self.noise_covariance, hermitian=True)
        Q, P = L0 + kept @ J, L0 + J
        shift = np.linalg.solve(Q, slope + kept @ self.gradient)
        shift -= np.linalg.solve(P, slope + self.gradient)
        values, vectors = np.linalg.eigh(np.linalg.inv(Q) - np.linalg.inv(P))
        return shift, np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


class Expansion:
    """Units' tempered log-likelihoods and their derivatives in the coordinates of an anchor. Private.

    May overflow: to be drawn from by a release, which does so :func:`in silence
    <pymc_dp.privacy.clipping.in_silence>`.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        tempering: float = 1.0,
    ):
        self._likelihood, self._tempering = compiled.likelihood, tempering
        self.n_units = self._likelihood.n_units
        self._gradients, self._hessians = compiled.gradients, compiled.hessians
        d = compiled.d
        self.keeps_hessians = 8 * self.n_units * d * (d + 1) // 2 <= _KEPT_BYTES
        self._line = None if self.keeps_hessians else compiled.curvature
        self._latest: tuple[Vector, list[Vector]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}

    def log_likelihood(self, theta: Vector) -> Vector:
        r""":math:`T \ell_i`, shape (units,)."""
        values = self._likelihood(theta)
        if self._tempering != 1:
            values *= self._tempering
        return values

    def gradients(self, theta: Vector, W: Vector) -> Iterator[Vector]:
        r"""Chunks of :math:`T W^\top \nabla\ell_i`."""
        for chunk in self._gradients(theta):
            yield chunk @ (self._tempering * W)

    def hessians(self, theta: Vector, W: Vector) -> Iterator[Vector]:
        r"""Chunks of :math:`T W^\top \nabla^2\ell_i W` as vectors of the same Frobenius norm."""
        for chunk in self._hessian_chunks(theta):
            yield as_vectors(W.T @ chunk @ (self._tempering * W))

    def _hessian_chunks(self, theta: Vector) -> Iterable[Vector]:
        if not self.keeps_hessians:
            return self._hessians(theta)
        if self._latest is None or not np.array_equal(self._latest[0], theta):
            self._latest = theta.copy(), list(self._hessians(theta))
        return self._latest[1]

    def curvature_along(self, theta: Vector, v: Vector) -> Vector:
        """Second derivative of every unit's term along v, where Hessians are too many to keep."""
        if self._line is None:
            raise RuntimeError("Hessians are kept; take their products.")
        along = self._line(theta, v)
        return along if self._tempering == 1 else self._tempering * along


class Residuals:
    r"""Units' residuals :math:`h_i(u)` of an anchor. Private: never leave the process, not pickled.

    Units' terms of the anchor are kept, one column of numbers for each entry of their gradients and
    Hessians; in single precision, which is as fine as the grid that their sums are released on. Where
    the Hessians are too many to keep (64 MiB), second derivatives along the move are computed instead.

    Parameters
    ----------
    expansion : Expansion
    anchor : Anchor
    """

    def __init__(self, expansion: Expansion, anchor: Anchor):
        self._expansion, self._anchor = expansion, anchor
        self._kept: tuple[Vector, NDArray[np.float32], Vector | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __call__(self, u: Vector) -> Vector:
        """Residual of every unit, shape (units,). May contain NaN: clip before use."""
        a = self._anchor
        if self._kept is None:
            self._kept = self._prepare()
        at_zero, columns, factors = self._kept
        h, v = self._expansion.log_likelihood(a.to_theta(u)), u
        if a.order == 2 and factors is None:
            v = np.append(u, as_vectors(np.outer(u, u)) / 2)
        subtract_terms(h, at_zero, columns, v)
        if a.order == 1:
            # A public share of the curvature, the same for all, added back by `log_ratio`.
            h += (u @ a.curvature @ u) / (2 * len(h))
        elif factors is not None:
            along = self._expansion.curvature_along(a.theta0, a.W @ u)
            along *= factors
            h -= along
        return h

    def _prepare(self) -> tuple[Vector, NDArray[np.float32], Vector | None]:
        """Log-likelihoods at the anchor, gradients and Hessians, or half the factors that clip these."""
        a, expansion = self._anchor, self._expansion
        gradients = expansion.gradients(a.theta0, a.W)
        terms = [np.concatenate([clip(chunk, a.gradient_clip) for chunk in gradients])]
        factors = None
        if a.order == 2 and expansion.keeps_hessians:
            chunks = expansion.hessians(a.theta0, a.W)
            terms.append(np.concatenate([clip(chunk, a.hessian_clip) for chunk in chunks]))
        elif a.order == 2:
            sizes = map(norms, expansion.hessians(a.theta0, a.W))
            factors = np.concatenate([shrink(size, a.hessian_clip) / 2 for size in sizes])
        columns = np.ascontiguousarray(np.hstack(terms).T, dtype=np.float32)
        return expansion.log_likelihood(a.theta0), columns, factors
