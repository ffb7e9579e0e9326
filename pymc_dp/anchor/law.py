r"""What all looks say together: a normal law of the noise, and with the prior the posterior given what was released.

With J the log-likelihood's curvature and :math:`u^*` its mode seen from a place :math:`\theta_r`, every look t at
:math:`u_t` has measured the same vector :math:`\beta = J u^*`,

.. math:: G_t + J u_t = \beta + \xi_t + e_t, \qquad \xi_t \sim N(0, S_t),

with :math:`e_t` what the third derivatives add. Pooled, with :math:`S` the covariance of what noise is left,

.. math:: \hat\beta \sim N(J u, J + S) \quad \text{given } \theta = \theta_r + u,

J being the spread of the units' scores themselves, and that times the prior is the posterior given all
releases: exactly so where the likelihood is normal and J known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pymc_dp.anchor.look import Look
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, denoised, floored, mean_if_positive, positive, power

_STEPS = 60
"""Newton steps to a law's mode, at most: twelve are many."""


@dataclass(frozen=True)
class Law:
    r"""The law :math:`\hat\beta \sim N(J(\theta - \theta_r), J + S)` of released numbers. Nothing in it is private.

    Parameters
    ----------
    centre : ndarray, shape (d,)
        :math:`\theta_r`.
    beta : ndarray, shape (d,)
    J, S : ndarray, shape (d, d)
        Positive semidefinite.
    """

    centre: Vector
    beta: Vector
    J: Vector
    S: Vector

    @cached_property
    def kept(self) -> Vector:
        r""":math:`J (J+S)^{-1}`: what noise leaves of the information."""
        return np.asarray(self.J @ np.linalg.pinv(self.J + self.S, hermitian=True))

    @cached_property
    def K(self) -> Vector:  # noqa: N802
        r""":math:`J (J+S)^{-1} J`: the law's precision, as a likelihood of θ."""
        K = self.kept @ self.J
        return np.asarray((K + K.T) / 2)

    @cached_property
    def k(self) -> Vector:
        r""":math:`J (J+S)^{-1} \hat\beta`."""
        return np.asarray(self.kept @ self.beta)

    def log_density(self, theta: Any) -> Any:
        """Logarithm of the law's density as a function of θ, symbolic or not, up to a constant."""
        u = theta - self.centre
        return u @ self.k - u @ (self.K @ u) / 2


@dataclass(frozen=True)
class Posterior:
    """Normal approximation, about its mode, of a law times the prior.

    Parameters
    ----------
    law : Law
    mean, precision : ndarray
        Mode, shape (d,), and Q, minus the second derivative there.
    exact : ndarray, shape (d, d)
        P = J + Λ: what the precision would be without noise.
    prior : ndarray, shape (d, d)
        Λ, of the prior, at the mode.
    """

    law: Law
    mean: Vector
    precision: Vector
    exact: Vector
    prior: Vector

    @cached_property
    def covariance(self) -> Vector:
        """Of the posterior given what was released."""
        return np.asarray(np.linalg.inv(self.precision))

    @cached_property
    def _moved(self) -> tuple[Vector, Vector]:
        C = np.linalg.inv(self.exact)
        return np.asarray(C @ self.law.S @ C), np.asarray(C)

    @property
    def privacy_shifts(self) -> Vector:
        """How far noise moves every parameter, shape (d,), in sds of the posterior without noise."""
        moved, C = self._moved
        return np.sqrt(np.maximum(np.diag(moved), 0.0) / np.diag(C))

    @property
    def privacy_shift(self) -> float:
        """The same per parameter, in coordinates in which that posterior is white."""
        moved, _ = self._moved
        return float(np.sqrt(max(np.trace(self.exact @ moved), 0.0) / len(self.mean)))

    @property
    def of_prior(self) -> Vector:
        """Variance of every parameter over the prior's, shape (d,): near 1 nothing was learnt of it."""
        prior = np.diag(np.linalg.inv(floored(self.prior, 1e-12)))
        return np.asarray(np.diag(self.covariance) / prior)

    @property
    def pulls(self) -> Vector:
        r"""How far every parameter was pulled from the prior's mode, shape (d,), in sds of what the law explains.

        With prior :math:`N(0, \Lambda^{-1})` and the law true, the posterior's mean has covariance
        :math:`\Lambda^{-1} - Q^{-1}` over data sets: about 1, or 0 where nothing was learnt. Large is a law that
        contradicts itself, as when a group's gradients were seen and its information was clipped away.
        """
        prior = np.linalg.inv(floored(self.prior, 1e-12))
        moved = prior @ (self.law.k - self.law.K @ (self.mean - self.law.centre))
        explained = np.maximum(np.diag(prior - self.covariance), 1e-9 * np.diag(prior))
        return np.asarray(np.abs(moved) / np.sqrt(explained))


def posterior_of(
    law: Law, log_public: LogPrior, start: Vector, looks: "Pooled | None" = None
) -> Posterior:
    """Newton's way to the mode of a law times the prior.

    Parameters
    ----------
    law : Law
    log_public : LogPrior
        The prior.
    start : ndarray, shape (d,)
    looks : Pooled, optional
        Where the law is from: its S is then that of the curvature's noise at the mode.

    Returns
    -------
    Posterior
    """
    theta, before, C = start, start, np.zeros((len(start),) * 2)
    for step in range(_STEPS):
        if looks is not None:
            law = replace(law, S=looks.noise_at(theta - law.centre, C))
        slope = law.k - law.K @ (theta - law.centre) + log_public.gradient(theta)
        curvature = -log_public.hessian(theta)
        if step and not (np.isfinite(slope).all() and np.isfinite(curvature).all()):
            theta = before  # down a funnel of the prior, which has no mode
            break
        before, Λ = theta, curvature
        Q = floored(law.K + Λ, 1e-12)
        C = np.asarray(np.linalg.inv(Q))
        move = C @ slope
        length = math.sqrt(max(float(move @ Q @ move), 0.0))
        theta = theta + move * min(1.0, SETTINGS.careful / max(length, 1e-300))
        if length < 1e-4 and step > 2:
            break
    return Posterior(law, theta, Q, positive(law.J + Λ, 1e-12), Λ)


@dataclass(frozen=True)
class Pooled:
    """Looks weighted into one, seen from a place.

    Parameters
    ----------
    law : Law
        Its S is of the gradients' noise alone.
    looks : sequence of Look
    weights : ndarray
        Of their curvatures.
    at : ndarray, shape (d,)
        Where, seen from the place, the curvature's noise does not matter: the gradients' mean place.
    """

    law: Law
    looks: Sequence[Look]
    weights: Vector
    at: Vector

    def noise_at(self, u: Vector, C: Vector | float = 0.0) -> Vector:
        """S for a mode at u, known up to covariance C: the noise of the curvature included."""
        v = u - self.at
        vv = np.outer(v, v) + C
        terms = zip(self.weights, self.looks, strict=True)
        return self.law.S + sum(w * w * look.curvature_covariance(vv) for w, look in terms)


def pooled(
    looks: Sequence[Look],
    place: Vector,
    P: Vector,
    n_units: float,
    scales: Vector,
    least: Callable[[Vector, float], float] | None = None,
    prior: Vector | None = None,
) -> Pooled:
    r"""Pool looks.

    Parameters
    ----------
    looks : sequence of Look
    place : ndarray, shape (d,)
        :math:`\theta_r`.
    P : ndarray, shape (d, d)
        The posterior's precision, as far as known: its sds measure distances.
    n_units : float
        How many units, about: curvature changes over √n posterior sds.
    scales : ndarray, shape (d,)
        The prior's: it also changes over these.
    least : callable, optional
        ``(precision, sd) ->`` the least eigenvalue that a precision may have which was measured with this
        noise, in coordinates in which P is the identity; to decide where to look next. Default: noise is
        never taken for information.
    prior : ndarray, shape (d, d), optional
        Λ at the place; with `least`.
    """
    s, d, W, root = SETTINGS, len(place), power(P, -0.5), power(P, 0.5)
    far = np.array([np.linalg.norm(root @ (look.theta - place)) for look in looks])
    of_prior = np.array([np.max(np.abs(look.theta - place) / scales) for look in looks])
    # A group's curvature changes as fast as if there were no others.
    units = min(n_units, looks[-1].units)
    change = s.quadratic_change * far**2 / units + s.prior_change * of_prior**4
    noise = np.array([look.curvature_sd_in(W) for look in looks])
    weights = 1 / (noise**2 + change)
    weights /= weights.sum()
    A = np.sum([w * look.curvature for w, look in zip(weights, looks, strict=True)], axis=0)
    if least is None or prior is None:
        J = _surely(A, looks, weights)
    else:
        precision = W @ (A + prior) @ W
        sd = float(np.linalg.norm(weights * noise))
        precision = floored(denoised(precision, sd), least(precision, sd))
        J = root @ positive(precision - W @ prior @ W) @ root

    information, rhs, at = np.zeros((d, d)), np.zeros(d), np.zeros(d)
    noise_part, clipped_part = np.zeros((d, d)), np.zeros((d, d))
    for look, off in zip(looks, change * far**2 / 4, strict=True):
        u, noisy = look.theta - place, look.covariance + off * P
        Q = np.linalg.inv(noisy + look.clipped @ look.clipped.T)
        information += Q
        rhs += Q @ (look.gradient + J @ u)
        at += Q @ (P @ u)
        noise_part += Q @ noisy @ Q
        clipped_part += Q @ look.clipped  # the same units are clipped in all looks: it adds up
    inverse = np.linalg.inv(information)
    R = inverse @ clipped_part
    S = inverse @ noise_part @ inverse + R @ R.T
    law = Law(place, inverse @ rhs, J, S)
    # Parts are of gradients, which P makes of moves.
    centre = np.asarray(np.linalg.solve(P, inverse @ at))
    return Pooled(law, looks, weights, centre)


def far_away(precision: Vector, sd: float) -> float:
    """Least eigenvalue on the way to the mode: what noise may have made of nothing, so that steps are short."""
    d = len(precision)
    return max(sd * math.sqrt(d), 0.002 * float(np.trace(precision)) / d, 1e-8)


def nearby(precision: Vector, sd: float) -> float:
    """The same near the mode: rather some of the curvature that it had before than none."""
    s = SETTINGS
    return float(np.clip(sd * math.sqrt(2 * len(precision)), s.least_believed, s.most_believed))


def _surely(A: Vector, looks: Sequence[Look], weights: Vector) -> Vector:
    """Curvature for the law, in the last look's frame, in which its noise is the same in all directions.

    Of what the noise leaves of its eigenvalues, the means given that no eigenvalue is negative.
    With a floor for what is drowned in noise, the intervals of rare categories were a third as wide as exact
    ones; with nothing for it, what was known of other parameters was lost.
    """
    V, inverse = looks[-1].V, looks[-1].inverse
    sds = [
        w * look.curvature_sd * np.linalg.norm(look.inverse @ V) ** 2 / len(V)
        for w, look in zip(weights, looks, strict=True)
    ]
    sd = float(np.linalg.norm(sds))
    values, vectors = np.linalg.eigh(denoised(V.T @ A @ V, sd))
    J = (vectors * mean_if_positive(values, sd)) @ vectors.T
    return np.asarray(inverse.T @ J @ inverse)
