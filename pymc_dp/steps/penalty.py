r"""DP penalty: random-walk Metropolis on noisy log-likelihood ratios.

Yıldırım and Ermiş (2019); Räisä (2021), sections 3.1 and 3.2; the penalty itself is Ceperley and
Dewing's (1999). With :math:`\theta'` proposed symmetrically and :math:`T` the tempering multiplier,

.. math::
    r_i &= \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta)),
        \qquad B = b\,\lVert\theta' - \theta\rVert_M \\
    \hat\lambda &= T \big(\textstyle\sum_i r_i + \mathcal N(0, (z \cdot \kappa B)^2)\big)
        + \log p(\theta') - \log p(\theta), \qquad \sigma = T z \cdot \kappa B \\
    \text{accept} &\iff \log u < \hat\lambda - \sigma^2/2

with κ = 2 under substitute-one neighbours, and 1 under add-or-remove. The posterior is invariant, noise and all, when no ratio is clipped. Moving one coordinate at a time
makes B, and with it the noise, smaller; the guided walk (Gustafson, 1998) also keeps a direction per
coordinate that turns round on rejection.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import StepSizeState

from pymc_dp.checks import check_rate, fraction, positive
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Gaussian, PoissonGaussian
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate
from pymc_dp.records.shards import Shards
from pymc_dp.steps.acceptance import NoisyRatio, penalty_transition, release_bound
from pymc_dp.steps.base import PrivateStep, PrivateStepState
from pymc_dp.steps.scales import (
    covariance_like,
    default_scale,
    dual_averaging,
    lower_factor,
    proposal_factor,
)

_UPDATES = ("joint", "one-component", "guided")


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
        :math:`2.4/\sqrt{d n}`; of the noise alone where n is private.
    update : {"joint", "one-component", "guided"}
        Move all coordinates together, or a random one at a time, the latter freely or in that
        coordinate's current direction, which turns round on rejection.
    target_accept : float
        Acceptance rate that tuning steers the scale to, by dual averaging on the noisy test.
    tempering : float, optional
        T in (0, 1], multiplies the log-likelihood (n0/n in the papers). Default 1.
    sampling_rate : float, optional
        q in (0, 1]: evaluate, in every iteration, a secret sample that each unit enters with this
        probability. Saves time with many records, but is approximate, and useful with tempering only:
        see the notes. For substitute-one neighbours. Default 1: every unit.
    shards : Shards, optional
        Where the records are, if the model holds made-up ones in their place.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: per iteration one :func:`~pymc_dp.privacy.noisy_sum.noisy_sum` of the clipped
    log-likelihood ratios. **Sensitivity**: κB, κ = 2 under substitute-one neighbours and 1 under
    add-or-remove, B = b‖θ′−θ‖.
    **Guarantee**: k iterations in all are (ε, δ)-DP with μ² = k/z² in
    :func:`~pymc_dp.privacy.accounting.gaussian_delta` (Räisä, 2021, Theorem 3.2).

    With ``sampling_rate`` below 1 the release is that of :class:`~pymc_dp.steps.acceptance.NoisyRatio`
    (Räisä, 2021, section 3.4), one PoissonGaussian event per iteration. The penalty then also corrects
    for the sampling, as if its error were normal and its variance known: a bias that is small while
    that variance, about :math:`(T^2 (1-q)/q) \sum_i r_i^2`, is below one. As it grows with n at
    T = 1, moves would have to shrink to nothing: temper, T ≲ q.

    Acceptance between equally likely points is 2Φ(−σ/2) with σ = κzTb‖θ′−θ‖: smaller steps are
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
        noise_multiplier: float | None = None,
        clip: float | None = None,
        metric: ArrayLike | None = None,
        scale: float | ArrayLike | None = None,
        update: Literal["joint", "one-component", "guided"] = "joint",
        target_accept: float = 0.3,
        tempering: float = 1.0,
        sampling_rate: float = 1.0,
        shards: Shards | None = None,
        **run: Any,
    ):
        if update not in _UPDATES:
            raise PrivacyConfigurationError(
                f"`update` must be one of {', '.join(map(repr, _UPDATES))}. Found {update!r}."
            )
        self._update = update
        self._target_accept = fraction("target_accept", target_accept)
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        self._rate = check_rate("sampling_rate", sampling_rate)
        super().__init__(vars, run, instead={"noise_multiplier": noise_multiplier}, shards=shards)
        d = self.compiled.d
        self._clip = math.sqrt(d) if clip is None else positive("clip", clip)
        self._metric = _metric_factor(metric, d)
        self._proposal, given_scale = proposal_factor(scale, d)
        if update != "joint" and np.count_nonzero(self._proposal) > d:
            raise PrivacyConfigurationError(
                f"`scale` must be one number or d of them for update={update!r}."
            )
        self._z = self.run.multiplier(noise_multiplier, self._rate)
        moved_together = d if update == "joint" else 1
        likely = 2.4 / math.sqrt(moved_together * self._tempering * self.units_to_count_on)
        self._first_scale = given_scale or default_scale(likely, self._noise_sd_of_scale)
        arrays = {
            name: str(np.asarray(value).tolist())
            for name, value in (("metric", metric), ("scale", scale))
            if np.ndim(value) > 0  # type: ignore[arg-type]
        }
        self.pays(
            Gaussian(self._z)
            if self._rate == 1
            else PoissonGaussian(self._z, accounted_rate(self._rate)),
            settings={
                "clip": self._clip,
                "metric": "Euclidean",
                "scale": self._first_scale,
                "update": update,
                "tempering": self._tempering,
                "sampling_rate": self._rate,
                "target_accept": self._target_accept,
                "typical_noise_sd": self._noise_sd_of_scale(self._first_scale),
                **arrays,
            },
        )
        self._ratio = NoisyRatio(self.curator(), self._z, self._tempering, self._rate)
        self._start_chain()

    def _noise_sd_of_scale(self, scale: float) -> float:
        """σ of a typical proposal: at the root mean square distance.

        Sampling units adds to it as much as records with scores of about one would.
        """
        moved = scale * float(np.linalg.norm(self._metric @ self._proposal))
        if self._update != "joint":
            moved /= math.sqrt(len(self._proposal))
        T, q, n = self._tempering, self._rate, self.units_to_count_on
        C = release_bound(self._clip * moved, T, q)
        sigma = self.run.neighbours.noise_sd(C, self._z)
        return math.hypot(sigma, T * moved * math.sqrt(n * (1 - q) / q))

    def _start_chain(self) -> None:
        self.adaptation = dual_averaging(self._first_scale, self._target_accept)
        self.directions = np.ones(len(self._proposal))

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
            log_public=self.log_public,
            noise_sd=self._ratio.noise_sd,
        )
        if self._update == "guided" and not info.accepted:
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
