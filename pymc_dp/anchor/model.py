"""The released anchor."""

import math
from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector, product_covariance


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
