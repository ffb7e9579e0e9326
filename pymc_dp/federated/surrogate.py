"""The joint likelihood of all owners as a normal approximation, from their noisy terms."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import clone_model

from pymc_dp.anchor.build import centred, checked, measured
from pymc_dp.anchor.looks import Looks
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.search import SearchLost, find_mode
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.anchor.verdict import NOT_ARRIVED, Verdict, judge
from pymc_dp.exceptions import PrivacyError
from pymc_dp.federated.agreement import Ask, Clipped, parameters_digest
from pymc_dp.federated.owners import Owners
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, inverse_root

_log = logging.getLogger("pymc.dp")

# Shares of units that are clipped in the last look: something may be missing, and worthless.
_CLIPPED_WARNING, _CLIPPED_REFUSAL = 0.0005, 0.1
_CHARGED = "What the owners have answered stays charged. Larger budgets, or priors that say more, would help."


@dataclass(frozen=True)
class Surrogate:
    r"""What the owners' answers say of the joint log-likelihood: an anchor. Nothing in it is private.

    With :math:`\theta = \theta_0 + W u`, released are a gradient :math:`\hat g` and a curvature J, with noise. In a
    normal model with that curvature :math:`\hat g \sim N(J u, J + S)`, with S the covariance of the noise in
    :math:`\hat g - J m` at the mode m that they predict, and that is the likelihood that :meth:`model` uses.

    Parameters
    ----------
    anchor : Anchor
    prior_gradient : ndarray, shape (d,)
        Of the prior at θ₀, in u.
    clipped, clipped_sd : float
        Share of all units whose gradient or Hessian was clipped, and the standard deviation of the noise in
        that number.
    parameters : int
        Which model's parameters these are.
    """

    anchor: Anchor
    prior_gradient: Vector
    clipped: float
    clipped_sd: float
    parameters: int

    @property
    def tilt(self) -> float:
        """How far noise has moved the posterior, in its standard deviations per parameter."""
        return self.anchor.tilt_in_sds

    @property
    def center(self) -> Vector:
        """Mode of the normal approximation of the posterior, shape (d,), in θ."""
        return self.anchor.to_theta(self.anchor.mean)

    @property
    def root(self) -> Vector:
        """R, shape (d, d): :attr:`center` + R e, e standard normal, is about the posterior."""
        return np.asarray(self.anchor.W @ inverse_root(self.anchor.precision))

    @property
    def clip(self) -> float:
        """How far one unit can move the log-likelihood per unit of distance in e, near θ₀."""
        least = float(np.linalg.eigvalsh(self.anchor.precision)[0])
        return 1.2 * self.anchor.gradient_clip / math.sqrt(least)

    def model(self, prior: pm.Model, *, noise_aware: bool = True) -> pm.Model:
        """A PyMC model with this likelihood, to be sampled like any other and at no cost.

        Parameters
        ----------
        prior : Model
            The coordinator's: the parameters and their prior, without observed variables.
        noise_aware : bool
            Account for the noise.

        Returns
        -------
        Model
            A copy of `prior`, with one more potential.
        """
        if parameters_digest(ParameterSpace(prior)) != self.parameters:
            raise PrivacyError("This model does not have the parameters of the surrogate.")
        anchor, model = self.anchor, clone_model(prior)
        # Noise may leave directions that the prior alone determines with negative information.
        values, vectors = np.linalg.eigh(anchor.curvature)
        J = (vectors * np.maximum(values, 0.0)) @ vectors.T
        S = anchor.noise_covariance if noise_aware else np.zeros_like(J)
        weight = np.linalg.pinv(J + S, hermitian=True)
        to_u = np.linalg.inv(anchor.W)
        with model:
            theta = pt.concatenate([pt.flatten(x) for x in _unconstrained(model, prior)])
            off = pt.dot(J, pt.dot(to_u, theta - anchor.theta0)) - anchor.gradient
            pm.Potential("owners", -0.5 * pt.dot(off, pt.dot(weight, off)))
        return model


def find_surrogate(
    ask: Ask, prior: pm.Model, *, on_progress: Callable[[str], None] = lambda _: None
) -> Surrogate:
    """Find and measure the joint likelihood's mode: an anchor, asked of owners.

    Parameters
    ----------
    ask : callable
        ``(kind, request) -> list of answers``: sends a request to every owner, see
        :meth:`Owner.answer <pymc_dp.federated.Owner.answer>`. For owners in this process
        ``lambda kind, request: [owner.answer(kind, request) for owner in owners]``.
    prior : Model
        The parameters and their prior, without observed variables.
    on_progress : callable, optional
        Told what is being done.

    Returns
    -------
    Surrogate

    Raises
    ------
    PrivacyError
        If an owner will not answer, gives something else than was asked for, or if the answers' noise
        leaves nothing to go by, or would clip more than a tenth of all units.

    Notes
    -----
    The steps of :func:`~pymc_dp.anchor.build.build_anchor` but for what a chain needs, all of them, clipping
    bounds too, functions of owners' answers. The sum of N answers has the noise of all of them: with equal
    multipliers √N times that of one trusted curator.
    """
    parameters, s = ParameterSpace(prior), SETTINGS
    owners, log_public = Owners(ask, parameters), PublicLogDensity(parameters)
    owners.require("surrogate")
    looks = Looks(owners)
    try:
        with np.errstate(all="ignore"):  # of released numbers; what is not finite is refused
            search = find_mode(looks, log_public, parameters.start, on_progress)
            on_progress("measuring the curvature, and choosing clipping bounds")
            # No chain makes good what the curvature is wrong by: it is measured, however noisy.
            anchor = replace(centred(looks, log_public, search), order=2)
            on_progress("measuring the gradient")
            anchor = measured(looks, log_public, anchor, 1 - owners.spent - s.clipped - s.check)
            anchor = checked(looks, log_public, anchor)
            on_progress("counting what is clipped")
            bounds = np.array([anchor.gradient_clip, anchor.hessian_clip])
            clipped, clipped_sd = owners.count_clipped(
                Clipped(anchor.theta0, anchor.W, bounds), 1 - owners.spent
            )
            verdict = judge(anchor, owners.n_units, parameters.largest)
    except SearchLost as lost:
        raise PrivacyError(f"{NOT_ARRIVED}: {lost}. {_CHARGED}") from None
    except (np.linalg.LinAlgError, OverflowError):
        raise PrivacyError(
            f"{NOT_ARRIVED}: its noisy equations have no solution. {_CHARGED}"
        ) from None
    surely = clipped - 2 * clipped_sd
    if surely > _CLIPPED_REFUSAL:
        verdict = Verdict(
            f"The owners' noise is so large that {clipped:.0%} of all units would have to be clipped, and the "
            "result would be wrong", []
        )  # fmt: skip
    if verdict.refusal:
        raise PrivacyError(f"{verdict.refusal}. {_CHARGED}")
    for warning in verdict.warnings:
        _log.warning("%s", warning)
    if surely > _CLIPPED_WARNING:
        _log.warning(
            "%.2g %% of all units were clipped: what only they tell is missing in the result. Larger "
            "budgets would help.",
            100 * clipped,
        )
    return Surrogate(
        anchor,
        prior_gradient=anchor.W.T @ log_public.gradient(anchor.theta0),
        clipped=clipped,
        clipped_sd=clipped_sd,
        parameters=parameters_digest(parameters),
    )


def _unconstrained(model: pm.Model, original: pm.Model) -> list[pt.TensorVariable]:
    """The free variables where PyMC samples them, in the order of θ: a copy may have another one."""
    points = {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        points[model.rvs_to_values[rv].name] = value
    return [points[value.name] for value in original.value_vars]
