r"""DP penalty: random-walk Metropolis on noisy log-likelihood ratios.

Yıldırım and Ermiş (2019); Räisä (2021), sections 3.1 and 3.2; the penalty itself is Ceperley and
Dewing's (1999). With :math:`\theta'` proposed symmetrically and :math:`T` the tempering multiplier,

.. math::
    r_i &= \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta)),
        \qquad B = b\,\lVert\theta' - \theta\rVert_M \\
    \hat\lambda &= T \big(\textstyle\sum_i r_i + \mathcal N(0, (z \cdot 2B)^2)\big)
        + \log p(\theta') - \log p(\theta), \qquad \sigma = T z \cdot 2B \\
    \text{accept} &\iff \log u < \hat\lambda - \sigma^2/2

The posterior is invariant, noise and all, when no ratio is clipped. Moving one coordinate at a time
makes B, and with it the noise, smaller; the guided walk (Gustafson, 1998) also keeps a direction per
coordinate that turns round on rejection.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import DualAverageAdaptation, StepSizeState
from scipy.optimize import brentq

from pymc_dp.checks import check_rate, fraction, positive
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Event, Gaussian, PoissonGaussian
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import is_usable_bound, noise_sd
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate
from pymc_dp.shards import Shards
from pymc_dp.steps.base import PrivateStep, PrivateStepState
from pymc_dp.steps.ratio import MinibatchRatio, NoisyRatio, Ratio, ShardedRatio, release_bound
from pymc_dp.steps.settings import Vector, covariance_like, lower_factor, proposal_factor

# The default scale aims at this noise in the log acceptance ratio: E min(1, e^X) is 0.42 then.
_SIGMA_OF_DEFAULT_SCALE = 1.6

_UPDATES = ("joint", "one-component", "guided")


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
    noisy_ratio: Callable[[Vector, Vector], float],
    log_public: Callable[[Vector], float],
    noise_multiplier: float,
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
        ``theta' - theta ->`` bound on a unit's part of the released ratio, T times B; even, so that
        both directions of a move get the same noise.
    noisy_ratio : callable
        ``(theta, theta') -> float``: the released, tempered log-likelihood ratio. The only part that
        reads data.
    log_public : callable
        ``theta ->`` log prior with Jacobian.
    noise_multiplier : float
        z.

    Returns
    -------
    theta : ndarray, shape (d,)
    info : PenaltyInfo
    """
    proposal = propose(rng, theta)
    return penalty_test(
        theta,
        proposal,
        log_u=math.log1p(-rng.random()),
        bound=bound,
        noisy_ratio=noisy_ratio,
        log_public=log_public,
        noise_multiplier=noise_multiplier,
    )


def penalty_test(
    theta: Vector,
    proposal: Vector,
    *,
    log_u: float,
    bound: Callable[[Vector], float],
    noisy_ratio: Callable[[Vector, Vector], float],
    log_public: Callable[[Vector], float],
    noise_multiplier: float,
    kinetic_ratio: float = 0.0,
) -> tuple[Vector, PenaltyInfo]:
    r"""Accept iff :math:`\log u < \hat\lambda + K(p) - K(p') - \sigma^2/2`.

    Ceperley and Dewing (1999); Räisä (2021), section 3.1 and, with momenta, Theorem 4.4.

    Parameters
    ----------
    theta, proposal : ndarray, shape (d,)
        Current and proposed point.
    log_u : float
        Logarithm of the test's uniform.
    bound, noisy_ratio, log_public, noise_multiplier
        As in :func:`penalty_transition`.
    kinetic_ratio : float
        K(p) − K(p′), for proposals that carry a momentum.

    Returns
    -------
    theta : ndarray, shape (d,)
    info : PenaltyInfo
    """
    with np.errstate(all="ignore"):  # what overflows is rejected
        B = bound(proposal - theta)
    # Decided on public numbers alone: an impossible point, or one too far or too near to tell.
    if not (math.isfinite(kinetic_ratio) and is_usable_bound(B)):
        return theta, PenaltyInfo(False, 0.0)
    log_prior_ratio = log_public(proposal) - log_public(theta)
    if not log_prior_ratio > -math.inf:
        return theta, PenaltyInfo(False, 0.0)
    sigma = noise_sd(B, noise_multiplier)
    log_ratio = noisy_ratio(theta, proposal) + log_prior_ratio + kinetic_ratio
    log_alpha = log_ratio - sigma * sigma / 2  # a product may overflow to inf, a power raises
    accepted = log_u < log_alpha
    return (proposal if accepted else theta), PenaltyInfo(accepted, math.exp(min(0.0, log_alpha)))


@dataclass_state
class DPPenaltyState(PrivateStepState):
    """State of a :class:`DPPenalty` chain."""

    adaptation: StepSizeState
    directions: np.ndarray


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
        the ledger's, or to 0.1 / units without one.
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
    update : {"joint", "one-component", "guided"}
        Move all coordinates together, or a random one at a time, the latter freely or in that
        coordinate's current direction, which turns round on rejection.
    target_accept : float
        Acceptance rate that tuning steers the scale to, by dual averaging on the noisy test.
    tempering : float, optional
        T in (0, 1], multiplies the log-likelihood (n0/n in the papers). Default 1.
    batch_rate : float, optional
        q in (0, 1]: evaluate, in every iteration, a secret sample that each unit enters with this
        probability. Saves time with many records, but is approximate, and useful with tempering only:
        see the notes. Default 1: every unit.
    shards : Shards, optional
        Where the records are, if the model holds made-up ones in their place.
    unit, public, chunk_size, compile_kwargs
        As in :class:`~pymc_dp.CompiledModel`; settled already if `model` is one.
    ledger : PrivacyLedger, optional
        Account of the data set, shared by several analyses.
    noise : NoiseSource, optional
        For tests only: ``InsecureSeededNoise(seed)`` makes runs reproducible and void.
    model : Model or CompiledModel, optional
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

    With ``batch_rate`` below 1 the release is that of :class:`~pymc_dp.steps.ratio.MinibatchRatio`
    (Räisä, 2021, section 3.4), one PoissonGaussian event per iteration. The penalty then also corrects
    for the sampling, as if its error were normal and its variance known: a bias that is small while
    that variance, about :math:`(T^2 (1-q)/q) \sum_i r_i^2`, is below one. As it grows with n at
    T = 1, moves would have to shrink to nothing: temper, T ≲ q.

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
        chains: int,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        clip: float | None = None,
        metric: ArrayLike | None = None,
        scale: float | ArrayLike | None = None,
        update: Literal["joint", "one-component", "guided"] = "joint",
        target_accept: float = 0.3,
        tempering: float | None = None,
        batch_rate: float = 1.0,
        shards: Shards | None = None,
        unit: str | int | ArrayLike | None = None,
        public: Sequence[str] = (),
        ledger: PrivacyLedger | None = None,
        noise: NoiseSource | None = None,
        chunk_size: int | None = None,
        model: pm.Model | CompiledModel | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        rng: Any = None,
        blocked: bool = True,
    ):
        if update not in _UPDATES:
            raise PrivacyConfigurationError(
                f"`update` must be one of {', '.join(map(repr, _UPDATES))}. Found {update!r}."
            )
        self._update = update
        self._given: dict[str, Any] = {"clip": clip, "metric": metric, "scale": scale}
        self._target_accept = fraction("target_accept", target_accept)
        self._tempering = (
            1.0 if tempering is None else fraction("tempering", tempering, one_allowed=True)
        )
        self._rate = check_rate("batch_rate", batch_rate)
        if shards is not None and self._rate != 1:
            raise PrivacyConfigurationError(
                "Samples of units cannot be drawn across shards: leave `batch_rate` out."
            )
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
            shards=shards,
        )
        self._ratio = self._build_ratio()
        self._start_chain()

    def _configure(self, d: int) -> None:
        clip, metric, scale = self._given["clip"], self._given["metric"], self._given["scale"]
        self._clip = math.sqrt(d) if clip is None else positive("clip", clip)
        self._metric = _metric_factor(metric, d)
        self._proposal, self._given_scale = proposal_factor(scale, d)
        if self._update != "joint" and np.count_nonzero(self._proposal) > d:
            raise PrivacyConfigurationError(
                f"`scale` must be one number or d of them for update={self._update!r}."
            )

    def _calibrate(
        self,
        epsilon: float | None,
        delta: float,
        noise_multiplier: float | None,
        iterations: int,
    ) -> tuple[Event, ...]:
        rate = accounted_rate(self._rate)
        if epsilon is not None:
            noise_multiplier = calibrate_noise(
                epsilon=epsilon, delta=delta, releases=iterations, sampling_rate=rate
            )
        self._z = float(noise_multiplier or 0.0)
        self._first_scale: float = self._given_scale or self._default_scale()
        return (Gaussian(self._z) if self._rate == 1 else PoissonGaussian(self._z, rate),)

    def _build_ratio(self) -> Ratio:
        if self._shards is not None:
            clipped_sums = self._shards.clipped_ratios(
                self._likelihood, self.compiled.parameters.start
            )
            return ShardedRatio(clipped_sums, self._noise, self._z, self._tempering)
        common = self._likelihood, self._noise, self._z, self._tempering
        return NoisyRatio(*common) if self._rate == 1 else MinibatchRatio(*common, self._rate)

    def _default_scale(self) -> float:
        """From public numbers only: what the noise allows, and what n records are likely to."""
        moved_together = len(self._proposal) if self._update == "joint" else 1
        posterior = 2.4 / math.sqrt(moved_together * self._tempering * self._roles.n_units)
        if self._noise_sd_of_scale(posterior) <= _SIGMA_OF_DEFAULT_SCALE:
            return posterior
        return float(
            brentq(
                lambda scale: self._noise_sd_of_scale(scale) - _SIGMA_OF_DEFAULT_SCALE, 0, posterior
            )
        )

    def _noise_sd_of_scale(self, scale: float) -> float:
        """σ of a typical proposal: at the root mean square distance.

        Sampling units adds to it as much as records with scores of about one would.
        """
        moved = scale * float(np.linalg.norm(self._metric @ self._proposal))
        if self._update != "joint":
            moved /= math.sqrt(len(self._proposal))
        T, q, n = self._tempering, self._rate, self._roles.n_units
        C = release_bound(self._clip * moved, T, q)
        return math.hypot(noise_sd(C, self._z), T * moved * math.sqrt(n * (1 - q) / q))

    def _settings(self) -> dict[str, float | str]:
        arrays = {
            name: str(np.asarray(self._given[name]).tolist())
            for name in ("metric", "scale")
            if np.ndim(self._given[name]) > 0
        }
        return {
            "clip": self._clip,
            "metric": "Euclidean",
            "scale": self._first_scale,
            "update": self._update,
            "tempering": self._tempering,
            "batch_rate": self._rate,
            "target_accept": self._target_accept,
            "typical_noise_sd": self._noise_sd_of_scale(self._first_scale),
            **arrays,
            **({} if self._shards is None else {"shards": len(self._shards.records)}),
        }

    def _start_chain(self) -> None:
        self.adaptation = DualAverageAdaptation(
            self._first_scale, self._target_accept, gamma=0.05, k=0.75, t0=10
        )
        self.directions = np.ones(len(self._proposal))
        self._ratio.forget()

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        tuning = not self.tuning_over
        scale = float(self.adaptation.current(tuning))
        d = theta.size
        coordinate = None if self._update == "joint" else int(self.rng.integers(d))

        def propose(rng: np.random.Generator, theta: Vector) -> Vector:
            if coordinate is None:
                return theta + scale * (self._proposal @ rng.standard_normal(d))
            proposal = theta.copy()
            move = scale * self._proposal[coordinate, coordinate] * rng.standard_normal()
            if self._update == "guided":
                move = self.directions[coordinate] * abs(move)
            proposal[coordinate] += move
            return proposal

        def bound(move: Vector) -> float:
            return self._clip * float(np.linalg.norm(self._metric @ move))

        new, info = penalty_transition(
            self.rng,
            theta,
            propose=propose,
            bound=lambda move: self._ratio.release_bound(bound(move)),
            noisy_ratio=lambda theta, new: self._ratio(theta, new, bound(new - theta), permit),
            log_public=self._log_public,
            noise_multiplier=self._z,
        )
        if info.accepted:
            self._ratio.move()
        elif self._update == "guided":
            self.directions[coordinate] *= -1
        if tuning:
            # A function of released numbers: it costs nothing beyond the iteration itself.
            self.adaptation.update(info.accept_rate, tuning)
        return new, {**info._asdict(), "scale": scale}


def _metric_factor(metric: ArrayLike | None, d: int) -> Vector:
    """R with ‖x‖_M = ‖R x‖."""
    if metric is None:
        return np.eye(d)
    array = covariance_like("metric", metric, d)
    return np.diag(np.sqrt(array)) if array.ndim == 1 else lower_factor(array).T
