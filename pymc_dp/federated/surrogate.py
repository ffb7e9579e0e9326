"""The joint likelihood of all owners as a normal approximation, from their noisy terms."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import clone_model

from pymc_dp.anchor.build import balanced_bound
from pymc_dp.linalg import as_matrix, floored, inverse_root
from pymc_dp.anchor.search import QUADRATIC, NewtonSearch, SearchLost, prior_precision
from pymc_dp.exceptions import PrivacyError
from pymc_dp.federated.agreement import (
    BINS_PER_OCTAVE,
    Answer,
    Ask,
    Offers,
    Vector,
    parameters_digest,
    summed,
)
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.privacy.histogram import PrivateHistogram, count_of_bins, count_sd
from pymc_dp.privacy.noisy_sum import noise_sd

_log = logging.getLogger("pymc.dp")

# Shares of units that are clipped in the last look: something may be missing, and worthless.
_CLIPPED_WARNING, _CLIPPED_REFUSAL = 0.0005, 0.1


@dataclass(frozen=True)
class Surrogate:
    r"""What the owners' answers say of the joint log-likelihood. Nothing in it is private.

    With :math:`\theta = \theta_0 + W u`, released are a gradient :math:`\hat g` with noise of standard
    deviation s in every entry, and a curvature J. In a normal model with that curvature
    :math:`\hat g \sim N(J u, J + s^2 I)`, and that is the likelihood that :meth:`model` uses: it knows of the
    noise in the gradient, and not of that in J.

    Parameters
    ----------
    theta0 : ndarray, shape (d,)
        Where the owners were asked last.
    W : ndarray, shape (d, d)
        Whitens the posterior there, about.
    gradient : ndarray, shape (d,)
        :math:`\hat g`.
    curvature : ndarray, shape (d, d)
        J, positive semidefinite.
    prior_precision, prior_gradient : ndarray
        Of the prior at θ₀, in u.
    noise_sd : float
        s.
    gradient_clip : float
        Bound that units' gradients were clipped to, in u.
    clipped, clipped_sd : float
        Share of all units whose gradient or Hessian was clipped, and the standard deviation of the noise in
        that number.
    parameters : int
        Which model's parameters these are.
    """

    theta0: Vector
    W: Vector
    gradient: Vector
    curvature: Vector
    prior_precision: Vector
    prior_gradient: Vector
    noise_sd: float
    gradient_clip: float
    clipped: float
    clipped_sd: float
    parameters: int

    @property
    def tilt(self) -> float:
        """How far noise has moved the posterior, in its standard deviations per parameter."""
        P = self.curvature + self.prior_precision
        return self.noise_sd * math.sqrt(float(np.trace(np.linalg.inv(P))) / len(P))

    @property
    def center(self) -> Vector:
        """Mode of the normal approximation of the posterior, shape (d,), in θ."""
        P = self.curvature + self.prior_precision
        return self.theta0 + self.W @ np.linalg.solve(P, self.gradient + self.prior_gradient)

    @cached_property
    def root(self) -> Vector:
        """R, shape (d, d): :attr:`center` + R e, e standard normal, is about the posterior."""
        return self.W @ inverse_root(self.curvature + self.prior_precision)

    @property
    def clip(self) -> float:
        """How far one unit can move the log-likelihood per unit of distance in e, near θ₀."""
        P = self.curvature + self.prior_precision
        return 1.2 * self.gradient_clip / math.sqrt(float(np.linalg.eigvalsh(P)[0]))

    def model(self, prior: pm.Model, *, noise_aware: bool = True) -> pm.Model:
        """A PyMC model with this likelihood, to be sampled like any other and at no cost.

        Parameters
        ----------
        prior : Model
            The coordinator's: the parameters and their prior, without observed variables.
        noise_aware : bool
            Account for the noise in the gradient.

        Returns
        -------
        Model
            A copy of `prior`, with one more potential.
        """
        if parameters_digest(ParameterSpace(prior)) != self.parameters:
            raise PrivacyError("This model does not have the parameters of the surrogate.")
        J, model = self.curvature, clone_model(prior)
        S = self.noise_sd**2 * np.eye(len(J)) if noise_aware else np.zeros_like(J)
        weight = np.linalg.pinv(J + S, hermitian=True)
        to_u = np.linalg.inv(self.W)
        with model:
            theta = pt.concatenate([pt.flatten(x) for x in _unconstrained(model, prior)])
            off = pt.dot(J, pt.dot(to_u, theta - self.theta0)) - self.gradient
            pm.Potential("owners", -0.5 * pt.dot(off, pt.dot(weight, off)))
        return model


def find_surrogate(
    ask: Ask, prior: pm.Model, *, on_progress: Callable[[str], None] = lambda _: None
) -> Surrogate:
    """Find and measure the joint likelihood's mode, in two exchanges per round.

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
    Newton steps in a trust region, all of them, clipping bounds too, functions of owners' answers. The sum of
    N answers has the noise of all of them: with equal multipliers √N times that of one trusted curator.
    """
    return _Search(ask, prior, on_progress).run()


class _Search:
    def __init__(self, ask: Ask, prior: pm.Model, on_progress: Callable[[str], None]):
        self._ask, self._tell, self._parameters = ask, on_progress, ParameterSpace(prior)
        self._offers = Offers(ask, self._parameters)
        for kind in ("search_sizes", "search", "anchor_sizes", "anchor"):
            self._offers.require(kind)
        # A search that broke off has left fewer than were agreed.
        self._rounds = min(self._offers.count("search_sizes"), self._offers.count("search"))
        self._log_public = PublicLogDensity(self._parameters)
        self._n = self._offers.n_units

    def run(self) -> Surrogate:
        """See :func:`find_surrogate`."""
        search = NewtonSearch(self._parameters.start, self._n, self._log_public)
        try:
            with np.errstate(all="ignore"):  # of released numbers; what is not finite is refused
                for k in range(self._rounds):
                    (gradient, M), (sd, sd_M), _ = self._look("search", search.theta, search.W)
                    search.step(gradient, sd, M, sd_M)
                    self._tell(
                        f"round {k + 1} of {self._rounds}, about {search.length:.3g} sds away"
                    )
                return self._measure(search.theta, search.W)
        except SearchLost as lost:
            raise PrivacyError(
                f"The search for the mode did not arrive: {lost}. What the owners have answered stays "
                "charged. Larger budgets, or priors that say more, would help."
            ) from None
        except (np.linalg.LinAlgError, OverflowError):
            raise PrivacyError(
                "The owners' noisy answers lead nowhere: their equations have no solution. They stay "
                "charged. Larger budgets, or priors that say more, would help."
            ) from None

    def _measure(self, theta: Vector, W: Vector) -> Surrogate:
        d = len(theta)
        (gradient, M), (sd, _), answers = self._look("anchor", theta, W)
        clipped, clipped_sd = self._clipped(answers)
        L0 = prior_precision(self._log_public, theta, W)
        slope = W.T @ self._log_public.gradient(theta)
        values, vectors = np.linalg.eigh(M)
        if values[-1] <= 0:
            raise np.linalg.LinAlgError
        J = (vectors * np.maximum(values, 0.0)) @ vectors.T
        # What the last look is measured in: the posterior's own standard deviations.
        root = inverse_root(floored(J + L0, 1e-3))
        found = Surrogate(
            theta0=theta, W=W, gradient=gradient, curvature=J, prior_precision=floored(J + L0, 1e-3) - J,
            prior_gradient=slope, noise_sd=sd,
            gradient_clip=sd / noise_sd(1.0, self._offers.multiplier("anchor")),
            clipped=clipped, clipped_sd=clipped_sd, parameters=parameters_digest(self._parameters),
        )  # fmt: skip
        off = float(np.linalg.norm(root @ (gradient + slope)))
        if not off <= QUADRATIC * math.sqrt(self._n) + 4 * found.tilt * math.sqrt(d):
            raise PrivacyError(
                f"The search for the mode did not arrive: by its own measurement it is {off:.0f} posterior "
                "standard deviations away. What the owners have answered stays charged. Larger budgets, more "
                "rounds, or priors that say more, would help."
            )
        return found

    def _look(
        self, kind: str, theta: Vector, W: Vector
    ) -> tuple[tuple[Vector, Vector], list[float], list[Answer]]:
        """Gradient of the log-likelihood and minus its Hessian, the noise's sd in each, and all answers."""
        d, at = len(theta), {"theta": theta, "W": W}
        sizes, per_octave = self._ask(f"{kind}_sizes", at), BINS_PER_OCTAVE[f"{kind}_sizes"]
        lengths, bounds, sds = {"gradient": d, "hessian": d * (d + 1) // 2}, [], []
        for part, name in enumerate(lengths):
            histogram = PrivateHistogram(
                summed(sizes, f"{name}s", (count_of_bins(per_octave),)),
                count_sd(self._offers.multiplier(f"{kind}_sizes", part)),
                per_octave,
            )
            z = self._offers.multiplier(kind, part)
            bounds.append(balanced_bound(histogram, z))
            sds.append(noise_sd(bounds[-1], z))
        answers = self._ask(kind, {**at, "bounds": np.array(bounds)})
        gradient, packed = (summed(answers, name, (length,)) for name, length in lengths.items())
        return (gradient, -as_matrix(packed, d)), sds, answers

    def _clipped(self, answers: list[Answer]) -> tuple[float, float]:
        """Share of units whose gradient or Hessian was clipped, whichever is more, and its noise."""
        counts = summed(answers, "clipped", (2,)) + self._n / 2
        sd = noise_sd(math.sqrt(0.5), self._offers.multiplier("anchor", 2))
        share, share_sd = float(max(counts)) / self._n, sd / self._n
        surely = share - 2 * share_sd
        if surely > _CLIPPED_REFUSAL:
            raise PrivacyError(
                f"The owners' noise is so large that {share:.0%} of all units would have to be clipped, and "
                "the result would be wrong. What the owners have answered stays charged. Larger budgets "
                "would help."
            )
        if surely > _CLIPPED_WARNING:
            _log.warning(
                "%.2g %% of all units were clipped: what only they tell is missing in the result. Larger "
                "budgets would help.",
                100 * share,
            )
        return share, share_sd


def _unconstrained(model: pm.Model, original: pm.Model) -> list[pt.TensorVariable]:
    """The free variables where PyMC samples them, in the order of θ: a copy may have another one."""
    points = {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        points[model.rvs_to_values[rv].name] = value
    return [points[value.name] for value in original.value_vars]
