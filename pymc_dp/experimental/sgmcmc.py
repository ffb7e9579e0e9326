r"""DP-SGLD and DP-SGNHT: stochastic-gradient samplers without an acceptance test. Biased.

Wang, Fienberg and Smola (2015); Li, Chen, Liu and Carin (2019); compared with in Räisä, Koskela and
Honkela (2021). Both move along a noisy gradient of a secret Poisson sample S of the units,

.. math::
    \tilde g = \tfrac Tq \Big(\sum_{i \in S} \operatorname{clip}_{b_g}(\nabla\ell_i(\theta))
        + \mathcal N(0, (z \cdot \kappa b_g)^2 I)\Big) + \nabla\log p(\theta),
    \qquad \sigma_g = \tfrac Tq\, z \cdot \kappa b_g

(κ = 2 under substitute-one neighbours; 1 under add-or-remove, where only q = 1 is allowed).

**Langevin dynamics** (SGLD; Welling and Teh, 2011), step size η: the drift is η/2 and the noise
variance η, of which the noise already in the gradient is a part,

.. math:: \theta \leftarrow \theta + \tfrac\eta2 \tilde g
          + \mathcal N\big(0, \eta - \tfrac{\eta^2}{4} \sigma_g^2\big)

**Nosé-Hoover thermostat** (SGNHT; Ding et al., 2014), step size h, diffusion A: the friction ξ finds
the level at which the momentum has the right temperature, whatever the noise of the gradient; its
thermal mass Q = 100 h² lets it adapt within as many steps as θ needs,

.. math::
    p \leftarrow p - \xi p h + \tilde g h + \mathcal N(0, 2 A h), \quad
    \theta \leftarrow \theta + p h, \quad
    \xi \leftarrow \xi + (p^\top p / d - 1)\, h / Q

Neither has the posterior as its limit: a fixed step size, clipped gradients and the sampling's own
noise (in SGLD) all leave a bias that no number of draws removes. They are here for comparison.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.step_methods.state import dataclass_state

from pymc_dp.checks import check_rate, fraction, positive
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Gaussian, PoissonGaussian
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate
from pymc_dp.records.queries import Gradient
from pymc_dp.steps.base import PrivateStep, PrivateStepState

_DEFAULT_BATCH = 1000
# Per iteration: how far the mean moves towards the mode (SGLD), and the friction (SGNHT), for records
# that carry about one unit of information each.
_DEFAULT_PULL = 0.1


def langevin_update(
    rng: np.random.Generator, theta: Vector, gradient: Vector, *, step_size: float, noise_sd: float
) -> Vector:
    """One step of SGLD; `noise_sd` is the noise that `gradient` has for privacy."""
    left = max(0.0, step_size - (step_size / 2 * noise_sd) ** 2)
    return theta + step_size / 2 * gradient + math.sqrt(left) * rng.standard_normal(theta.size)


def thermostat_update(
    rng: np.random.Generator,
    theta: Vector,
    p: Vector,
    friction: float,
    gradient: Vector,
    *,
    step_size: float,
    diffusion: float,
    thermal_mass: float,
) -> tuple[Vector, Vector, float]:
    """One step of SGNHT: θ, p and ξ."""
    h = step_size
    kick = math.sqrt(2 * diffusion * h) * rng.standard_normal(theta.size)
    p = p - friction * h * p + h * gradient + kick
    heat = float(p @ p) / theta.size - 1
    return theta + h * p, p, friction + h * heat / thermal_mass


class _StochasticGradientStep(PrivateStep):
    """What both have in common: one noisy gradient per iteration, and every move accepted."""

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        noise_multiplier: float | None = None,
        gradient_clip: float | None = None,
        step_size: float | None = None,
        sampling_rate: float | None = None,
        tempering: float = 1.0,
        **run: Any,
    ):
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        super().__init__(vars, run, instead={"noise_multiplier": noise_multiplier})
        d, n = self.compiled.d, self.units_to_count_on
        self._d = d
        if step_size is None:
            self.needs_public_size(
                "give `step_size`, as its default is a function of the number of units"
            )
        self._clip = (
            math.sqrt(d) if gradient_clip is None else positive("gradient_clip", gradient_clip)
        )
        self._rate = (
            min(1.0, _DEFAULT_BATCH / n)
            if sampling_rate is None
            else check_rate("sampling_rate", sampling_rate)
        )
        self._z = self.run.multiplier(noise_multiplier, self._rate)
        noise = self.run.neighbours.noise_sd(self._clip, self._z)
        self._sigma = self._tempering / self._rate * noise
        self._step_size = (
            self._default_step_size() if step_size is None else positive("step_size", step_size)
        )
        self._check_step_size()
        self.pays(
            Gaussian(self._z)
            if self._rate == 1
            else PoissonGaussian(self._z, accounted_rate(self._rate)),
            settings=self._settings(),
        )
        self._curator = self.curator(derivatives=1)
        self._start_chain()

    def _check_step_size(self) -> None:
        """Refuse one that the noise leaves no room for."""

    @abstractmethod
    def _default_step_size(self) -> float:
        """From public numbers: what the privacy noise leaves room for."""

    @abstractmethod
    def _move(self, theta: Vector, gradient: Vector) -> Vector:
        """The next point, which may be outside the support."""

    def _settle(self, moved: bool) -> None:
        """Say whether the next point was taken."""

    def _total_noise_sd(self) -> float:
        """Of the gradient: privacy noise, and what samples of records with scores of about one add."""
        T, q, n = self._tempering, self._rate, self.units_to_count_on
        return math.hypot(self._sigma, T * math.sqrt(n * (1 - q) / q))

    def _settings(self) -> dict[str, float | str]:
        return {
            "gradient_clip": self._clip,
            "step_size": self._step_size,
            "sampling_rate": self._rate,
            "tempering": self._tempering,
            "gradient_noise_sd": self._sigma,
        }

    def _noisy_gradient(self, theta: Vector, permit: Permit) -> Vector:
        released = self._curator.sum(
            Gradient(theta),
            bound=self._clip,
            noise_multiplier=self._z,
            permit=permit,
            sampling_rate=self._rate,
        )
        return self._tempering / self._rate * released + self.log_public.gradient(theta)

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        gradient = self._noisy_gradient(theta, permit)
        with np.errstate(all="ignore"):
            new = self._move(theta, gradient)
        inside = bool(np.isfinite(new).all()) and self.log_public(new) > -math.inf
        self._settle(inside)  # decided on the release and public numbers
        stats = {"accepted": inside, "accept_rate": float(inside), "scale": self._step_size}
        return (new if inside else theta), stats


class DPSGLD(_StochasticGradientStep):
    r"""Differentially private stochastic gradient Langevin dynamics. Biased: a comparator.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    noise_multiplier : float, optional
        Instead of `epsilon`: z, the noise's standard deviation / sensitivity.
    gradient_clip : float, optional
        b_g: a unit's gradient is clipped to this Euclidean norm, which biases the draws if it happens
        often. Default √d.
    sampling_rate : float, optional
        q in (0, 1]: probability with which a unit enters an iteration's secret sample. Default:
        1000 units, or all; all where their number is private.
    step_size : float, optional
        η. Default: 0.2/(T n), or less where the gradient's noise would exceed half of the noise
        that Langevin dynamics needs.
    tempering
        As in :class:`~pymc_dp.DPPenalty`.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or has no gradient.
    PrivacyConfigurationError
        If a setting is out of its range, or the privacy noise exceeds what the dynamics needs.

    Notes
    -----
    **Releases**: per iteration one :func:`~pymc_dp.privacy.noisy_sum.poisson_noisy_sum` of the
    clipped gradients. **Sensitivity**: 2 b_g in L2 norm under substitute-one neighbours, for a unit
    that is sampled; b_g under add-or-remove, at q = 1 only. **Guarantee**: k PoissonGaussian events
    (Gaussian ones at q = 1).
    """

    name = "dp_sgld"

    def _default_step_size(self) -> float:
        pull = 2 * _DEFAULT_PULL / (self._tempering * self.units_to_count_on)
        noise = self._total_noise_sd()
        return min(pull, 2 / noise**2) if noise > 0 else pull

    def _check_step_size(self) -> None:
        if self._step_size * self._sigma**2 > 4:
            raise PrivacyConfigurationError(
                f"At `step_size` = {self._step_size:g} the privacy noise alone exceeds the noise of "
                f"Langevin dynamics: at most {4 / self._sigma**2:g} is possible here. Take a "
                "smaller one, or a larger `epsilon` or `sampling_rate`."
            )

    def _move(self, theta: Vector, gradient: Vector) -> Vector:
        return langevin_update(
            self.rng, theta, gradient, step_size=self._step_size, noise_sd=self._sigma
        )


@dataclass_state
class DPSGNHTState(PrivateStepState):
    """State of a :class:`DPSGNHT` chain: momentum and friction are functions of released gradients."""

    momentum: np.ndarray
    friction: float


class DPSGNHT(_StochasticGradientStep):
    r"""Differentially private stochastic gradient Nosé-Hoover thermostat. Biased: a comparator.

    Parameters
    ----------
    step_size : float, optional
        h. Default: :math:`0.1/\sqrt{T n}`, or less where the gradient's noise in one step would
        exceed half the momentum's own size.
    diffusion : float, optional
        A. Default 0.1/h.
    vars, noise_multiplier, gradient_clip, sampling_rate, tempering
        As in :class:`DPSGLD`.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or has no gradient.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    Releases, sensitivity and guarantee are those of :class:`~pymc_dp.experimental.DPSGLD`.
    """

    name = "dp_sgnht"
    _state_class = DPSGNHTState

    def __init__(
        self, vars: Sequence[Any] | None = None, *, diffusion: float | None = None, **settings: Any
    ):
        self._given_diffusion = None if diffusion is None else positive("diffusion", diffusion)
        super().__init__(vars, **settings)

    def _default_step_size(self) -> float:
        pull = _DEFAULT_PULL / math.sqrt(self._tempering * self.units_to_count_on)
        noise = self._total_noise_sd()
        return min(pull, 0.5 / noise) if noise > 0 else pull

    @property
    def _diffusion(self) -> float:
        return self._given_diffusion or _DEFAULT_PULL / self._step_size

    def _settings(self) -> dict[str, float | str]:
        return {**super()._settings(), "diffusion": self._diffusion}

    def _start_chain(self) -> None:
        self.momentum = self.rng.standard_normal(self._d)
        # Where the friction is in equilibrium with the noise that is known.
        self.friction = self._diffusion + self._step_size * self._sigma**2 / 2

    def _move(self, theta: Vector, gradient: Vector) -> Vector:
        relative = self._step_size / _DEFAULT_PULL
        new, momentum, friction = thermostat_update(
            self.rng,
            theta,
            self.momentum,
            self.friction,
            gradient,
            step_size=self._step_size,
            diffusion=self._diffusion,
            thermal_mass=relative * relative,
        )
        self._next = momentum, friction
        return new

    def _settle(self, moved: bool) -> None:
        momentum, friction = self._next
        if moved and math.isfinite(friction):
            self.momentum, self.friction = momentum, friction
        else:
            self.momentum = self.rng.standard_normal(self._d)
