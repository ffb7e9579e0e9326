r"""DP penalty: random-walk Metropolis on noisy log-likelihood ratios.

Yıldırım and Ermiş (2019); Räisä (2021), sections 3.1 and 3.2; the penalty itself is Ceperley and
Dewing's (1999). With :math:`\theta'` proposed symmetrically and :math:`T` the tempering multiplier,

.. math::
    r_i &= \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta)),
        \qquad B = b\,\lVert\theta' - \theta\rVert_M \\
    \hat\lambda &= T \big(\textstyle\sum_i r_i + \mathcal N(0, (z \cdot 2B)^2)\big)
        + \log p(\theta') - \log p(\theta), \qquad \sigma = T z \cdot 2B \\
    \text{accept} &\iff \log u < \hat\lambda - \sigma^2/2

The posterior is invariant, noise and all, when no ratio is clipped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.step_methods.state import dataclass_state

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.privacy.ledger import Permit, PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noise_sd, noisy_sum
from pymc_dp.steps.base import PrivateStep, PrivateStepState

# The default scale aims at this noise in the log acceptance ratio: E min(1, e^X) is 0.42 then.
_SIGMA_OF_DEFAULT_SCALE = 1.6

Vector = NDArray[np.float64]


class PenaltyInfo(NamedTuple):
    """What one transition reveals: functions of the noisy ratio and of public numbers."""

    accepted: bool
    accept_rate: float


def penalty_transition(
    rng: np.random.Generator,
    theta: Vector,
    *,
    propose: Callable[[np.random.Generator, Vector], Vector],
    bound: Callable[[Vector], float],
    noisy_ratio: Callable[[Vector, Vector, float], float],
    log_public: Callable[[Vector], float],
    noise_multiplier: float,
    tempering: float = 1.0,
) -> tuple[Vector, PenaltyInfo]:
    """One transition of the DP penalty algorithm.

    Parameters
    ----------
    rng : Generator
        Public randomness: the proposal, then the uniform of the test.
    theta : ndarray, shape (d,)
        Current point.
    propose : callable
        ``(rng, theta) -> theta'``, symmetric.
    bound : callable
        ``theta' - theta -> B``; even, so that both directions of a move get the same noise.
    noisy_ratio : callable
        ``(theta, theta', B) -> `` released sum of clipped log-likelihood ratios. The only part
        that reads data.
    log_public : callable
        ``theta ->`` log prior with Jacobian.
    noise_multiplier, tempering : float
        z and T.

    Returns
    -------
    theta : ndarray, shape (d,)
    info : PenaltyInfo
    """
    proposal = propose(rng, theta)
    log_u = math.log1p(-rng.random())
    B = bound(proposal - theta)
    log_prior_ratio = log_public(proposal) - log_public(theta)
    # Decided on public numbers alone: an impossible point, or one too far or too near to tell.
    if not (log_prior_ratio > -math.inf and 0 < B < math.inf):
        return theta, PenaltyInfo(False, 0.0)
    sigma = tempering * noise_sd(B, noise_multiplier)
    log_ratio = tempering * noisy_ratio(theta, proposal, B) + log_prior_ratio
    log_alpha = log_ratio - sigma**2 / 2
    accepted = log_u < log_alpha
    return (proposal if accepted else theta), PenaltyInfo(accepted, math.exp(min(0.0, log_alpha)))


@dataclass_state
class DPPenaltyState(PrivateStepState):
    """State of a :class:`DPPenalty` chain."""

    log_scale: float


class DPPenalty(PrivateStep):
    r"""Differentially private random-walk Metropolis with the penalty test.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    draws, tune, chains : int
        The run's plan, the same numbers that ``pm.sample`` gets. Every iteration of every chain
        costs budget, tuning included; `tune` is 0 by default.
    epsilon, delta : float, optional
        The budget of the whole run, from which the noise is calibrated. `delta` defaults to
        0.1 / units.
    noise_multiplier : float, optional
        Instead of `epsilon`: z, the noise's standard deviation / sensitivity (the papers' τ is
        z/√n).
    clip : float, optional
        b: a unit's log-likelihood ratio is clipped to b times the distance moved, in the metric.
        Choose it near the largest norm of a unit's score; noise grows in proportion. Default √d.
    metric : array, optional
        M of the clip bound's distance: d weights, or a d × d positive definite matrix.
        Default: Euclidean.
    scale : float or array, optional
        Of the Gaussian proposal, in unconstrained space: a standard deviation, d of them, or a
        d × d covariance. Default: whichever is smaller of what the noise allows and
        :math:`2.4/\sqrt{d n}`.
    target_accept : float
        Acceptance rate that tuning steers the scale to.
    tempering : float, optional
        T in (0, 1], multiplies the log-likelihood (n0/n in the papers). Default 1.
    unit : str, int or array, optional
        Unit of privacy: the records' dimension, their axis, or an identifier per record when a
        person owns several. Default: each record.
    public : sequence of str
        ``pm.Data`` nodes of the likelihood that hold nothing private.
    ledger : PrivacyLedger, optional
        Account of the data set, shared by several analyses.
    noise : NoiseSource, optional
        For tests only: ``InsecureSeededNoise(seed)`` makes runs reproducible and void.
    chunk_size : int, optional
        Records evaluated at once.
    model : Model, optional
    compile_kwargs : mapping, optional
        Passed to PyTensor.
    rng : RandomGenerator, optional
        Public randomness; never drives the noise.
    blocked : bool
        Must be true.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: per iteration one :func:`~pymc_dp.privacy.noisy_sum.noisy_sum` of the clipped
    log-likelihood ratios. **Sensitivity**: 2B under substitute-one neighbours, B = b‖θ′−θ‖.
    **Guarantee**: k iterations in all are (ε, δ)-DP with μ² = k/z² in
    :func:`~pymc_dp.privacy.accounting.gaussian_delta` (Räisä, 2021, Theorem 3.2).

    Acceptance between equally likely points is 2Φ(−σ/2) with σ = 2zTb‖θ′−θ‖: smaller steps are
    accepted more often but go less far. About 0.3 is a good compromise.

    Examples
    --------
    >>> with model:                                                    # doctest: +SKIP
    ...     step = DPPenalty(epsilon=2.0, draws=1000, chains=4)
    ...     idata = release(pm.sample(1000, tune=0, chains=4, step=step))
    """

    name = "dp_penalty"
    _state_class = DPPenaltyState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        draws: int,
        tune: int = 0,
        chains: int = 1,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        clip: float | None = None,
        metric: ArrayLike | None = None,
        scale: float | ArrayLike | None = None,
        target_accept: float = 0.3,
        tempering: float | None = None,
        unit: str | int | ArrayLike | None = None,
        public: Sequence[str] = (),
        ledger: PrivacyLedger | None = None,
        noise: NoiseSource | None = None,
        chunk_size: int | None = None,
        model: pm.Model | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        rng: Any = None,
        blocked: bool = True,
    ):
        model = pm.modelcontext(model)
        d = sum(int(np.prod(x.shape)) for x in model.initial_point(0).values())
        self._clip = _positive("clip", math.sqrt(max(d, 1)) if clip is None else clip)
        self._metric = _metric_factor(metric, d)
        self._target_accept = _fraction("target_accept", target_accept)
        self._tempering = 1.0 if tempering is None else _fraction("tempering", tempering, one=True)
        self._scale = scale
        self._proposal, self._given_scale = _proposal_factor(scale, d)
        super().__init__(
            vars,
            draws=draws,
            tune=tune,
            chains=chains,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            unit=unit,
            public=public,
            ledger=ledger,
            noise=noise,
            chunk_size=chunk_size,
            model=model,
            compile_kwargs=compile_kwargs,
            rng=rng,
            blocked=blocked,
        )
        self._start_chain()

    def _calibrate(
        self,
        epsilon: float | None,
        delta: float,
        noise_multiplier: float | None,
        iterations: int,
    ) -> tuple[Event, ...]:
        if epsilon is not None:
            noise_multiplier = calibrate_noise(epsilon=epsilon, delta=delta, draws=iterations)
        self._z = float(noise_multiplier or 0.0)
        self._first_scale = self._given_scale or self._default_scale()
        return (Gaussian(self._z),)

    def _default_scale(self) -> float:
        """From public numbers only: what the noise allows, and what n records are likely to."""
        d = self._metric.shape[0]
        posterior = 2.4 / math.sqrt(d * self._tempering * self._roles.n_units)
        moved = math.sqrt(float(np.sum(self._metric**2)))  # E‖D‖²_M of a unit proposal, rooted
        noise = self._tempering * noise_sd(self._clip * moved, self._z)
        return min(posterior, _SIGMA_OF_DEFAULT_SCALE / noise) if noise > 0 else posterior

    def _settings(self) -> dict[str, float | str]:
        return {
            "clip": self._clip,
            "scale": self._first_scale
            if self._scale is None
            else str(np.asarray(self._scale).tolist()),
            "tempering": self._tempering,
            "target_accept": self._target_accept,
            "noise_multiplier": self._z,
            "typical_noise_sd": self._tempering
            * noise_sd(
                self._clip
                * self._first_scale
                * float(np.linalg.norm(self._metric @ self._proposal)),
                self._z,
            ),
        }

    def _start_chain(self) -> None:
        self.log_scale = math.log(self._first_scale)
        self._cache: tuple[Vector, Vector] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Terms of single units stay in the process that computed them.
        return {**self.__dict__, "_cache": None}

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        scale = math.exp(self.log_scale)
        proposed_terms: list[Vector] = []

        def propose(rng: np.random.Generator, theta: Vector) -> Vector:
            return theta + scale * (self._proposal @ rng.standard_normal(theta.size))

        def noisy_ratio(theta: Vector, proposal: Vector, B: float) -> float:
            def ratios() -> Any:
                current = self._terms_at(theta)
                proposed_terms.append(self._likelihood(proposal))
                with np.errstate(all="ignore"):
                    yield proposed_terms[0] - current

            return float(
                noisy_sum(
                    ratios(), bound=B, noise_multiplier=self._z, permit=permit, noise=self._noise
                )
            )

        new, info = penalty_transition(
            self.rng,
            theta,
            propose=propose,
            bound=lambda move: self._clip * float(np.linalg.norm(self._metric @ move)),
            noisy_ratio=noisy_ratio,
            log_public=self._log_public,
            noise_multiplier=self._z,
            tempering=self._tempering,
        )
        if info.accepted:
            self._cache = new, proposed_terms[0]
        if not self.tuning_over:
            # Robbins-Monro on a function of released numbers: costs nothing beyond the iteration.
            self.log_scale += (info.accept_rate - self._target_accept) / self.used**0.6
        return new, {**info._asdict(), "scale": scale}

    def _terms_at(self, theta: Vector) -> Vector:
        """Per-unit log-likelihoods of the current point, which the previous iteration mostly has."""
        if self._cache is None or not np.array_equal(theta, self._cache[0]):
            self._cache = theta.copy(), self._likelihood(theta)
        return self._cache[1]


def _positive(name: str, value: float) -> float:
    if not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
        raise PrivacyConfigurationError(f"`{name}` must be a positive number. Found {value!r}.")
    return float(value)


def _fraction(name: str, value: float, one: bool = False) -> float:
    if not (isinstance(value, int | float | np.number) and (0 < value < 1 or (one and value == 1))):
        raise PrivacyConfigurationError(
            f"`{name}` must lie between 0 and 1{'' if one else ', both excluded'}. Found {value!r}."
        )
    return float(value)


def _matrix_factor(name: str, value: Vector) -> Vector:
    """Upper Cholesky factor R, RᵀR = value."""
    try:
        if not np.allclose(value, value.T):
            raise np.linalg.LinAlgError
        factor = np.asarray(np.linalg.cholesky(value).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        raise PrivacyConfigurationError(
            f"`{name}` as a matrix must be symmetric and positive definite."
        ) from None
    return factor


def _checked_array(name: str, value: ArrayLike, d: int) -> NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((d,), (d, d)) or not np.isfinite(array).all():
        raise PrivacyConfigurationError(
            f"`{name}` must be finite, of shape ({d},) or ({d}, {d}) for this model's {d} "
            f"unconstrained parameters. Found shape {array.shape}."
        )
    if array.ndim == 1 and not (array > 0).all():
        raise PrivacyConfigurationError(f"`{name}` must be positive in every entry.")
    return array


def _metric_factor(metric: ArrayLike | None, d: int) -> NDArray[np.float64]:
    """R with ‖x‖_M = ‖R x‖."""
    if metric is None:
        return np.eye(d)
    array = _checked_array("metric", metric, d)
    return np.diag(np.sqrt(array)) if array.ndim == 1 else _matrix_factor("metric", array)


def _proposal_factor(
    scale: float | ArrayLike | None, d: int
) -> tuple[NDArray[np.float64], float | None]:
    """Factor of the proposal's covariance, and the multiplier that tuning adapts."""
    if scale is None:
        return np.eye(d), None
    if np.ndim(scale) == 0:
        return np.eye(d), _positive("scale", float(np.asarray(scale)))
    array = _checked_array("scale", scale, d)
    return (np.diag(array) if array.ndim == 1 else _matrix_factor("scale", array).T), 1.0
