r"""A normal law of the likelihood, measured with noise, and with the prior the posterior given what was released.

With J the information and :math:`\theta_r + u^*` the mode of the log-likelihood, what is known of its gradient at
:math:`\theta_r` is :math:`\hat\beta = J u^* + \xi`, :math:`\xi \sim N(0, S)`, so that

.. math:: \hat\beta \sim N(J u, J + S) \quad \text{given } \theta = \theta_r + u,

J being the spread of the units' scores themselves, and that times the prior is the posterior given the release: exactly
so where the likelihood is normal and J known.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.linalg import Vector, floored, positive

_STEPS = 60
"""Newton steps to a law's mode, at most: twelve are many."""
_LONGEST = 5.0
"""Of such a step, in the law's sds: the prior may be anything but quadratic."""
_AGAIN = (
    '`sample(..., step=pymc_dp.DPSurrogate, family="normal")` gives one, for another budget; other families, steps and '
    "random effects do not."
)


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

    def to_json(self, parameters: Sequence[str]) -> str:
        """The law as text, with the names of its parameters."""
        numbers = {name: getattr(self, name).tolist() for name in ("centre", "beta", "J", "S")}
        return json.dumps({"parameters": list(parameters), **numbers})

    @classmethod
    def from_json(cls, text: str) -> tuple[list[str], "Law"]:
        """The inverse of :meth:`to_json`: names and law."""
        said = json.loads(text)
        parameters = said.pop("parameters")
        return parameters, cls(**{name: np.array(x) for name, x in said.items()})

    @classmethod
    def of_result(cls, name: str, attrs: Mapping[str, Any], parameters: Sequence[str]) -> "Law":
        """The law that a released result carries.

        Parameters
        ----------
        name : str
            Of the result, for messages.
        attrs : mapping
            The result's attributes.
        parameters : sequence of str
            Names that the law has to be of.

        Raises
        ------
        PrivacyError
            If there is none, if the result is not usable, or if the parameters are others.
        """
        if "privacy_law" not in attrs:
            why = "has not been released. Pass it through `pymc_dp.release(...)`."
            if "privacy_schema_version" in attrs:
                said = {
                    k: json.loads(attrs.get(f"privacy_{k}", "{}"))
                    for k in ("diagnostics", "settings")
                }
                of = said["diagnostics"].get("family"), said["settings"].get("effects")
                kind = ", ".join(filter(None, (attrs.get("privacy_step"), *of)))
                why = f"has no normal law of its likelihood: it is of {kind}. {_AGAIN}"
            raise PrivacyError(f"{name} {why}")
        if not attrs["privacy_usable"]:
            raise PrivacyError(f"{name} said of itself that it is not usable. Leave it out.")
        found, law = cls.from_json(attrs["privacy_law"])
        if found != list(parameters):
            raise PrivacyError(
                f"{name} has the parameters {', '.join(found)}; the model has {', '.join(parameters)}. Names, labels, "
                "transforms and order must be the same: give the model that was sampled."
            )
        return law


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
    prior_variances : ndarray, shape (d,), optional
        Beside which it is told what was learnt of an entry. Default: those of Λ.
    """

    law: Law
    mean: Vector
    precision: Vector
    exact: Vector
    prior: Vector
    prior_variances: Vector | None = None

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
        prior = self.prior_variances
        if prior is None:
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


def posterior_of(law: Law, log_public: LogPrior, start: Vector) -> Posterior:
    """Newton's way to the mode of a law times the prior.

    Parameters
    ----------
    law : Law
    log_public : LogPrior
        The prior.
    start : ndarray, shape (d,)

    Returns
    -------
    Posterior
    """
    theta, before = start, start
    for step in range(_STEPS):
        slope = law.k - law.K @ (theta - law.centre) + log_public.gradient(theta)
        curvature = -log_public.hessian(theta)
        if step and not (np.isfinite(slope).all() and np.isfinite(curvature).all()):
            theta = before  # down a funnel of the prior, which has no mode
            break
        before, Λ = theta, curvature
        Q = floored(law.K + Λ, 1e-12)
        move = np.linalg.solve(Q, slope)
        length = math.sqrt(max(float(move @ Q @ move), 0.0))
        theta = theta + move * min(1.0, _LONGEST / max(length, 1e-300))
        if length < 1e-4 and step > 2:
            break
    return Posterior(law, theta, Q, positive(law.J + Λ, 1e-12), Λ)
