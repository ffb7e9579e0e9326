r"""DP Barker: random-walk moves on secret batches, accepted by Barker's test.

Heikkilä, Jälkö, Dikmen and Honkela (2019); Räisä (2021), section 3.3, Algorithm 3. Barker's test
accepts iff :math:`\lambda + V > 0` with V logistic. With a batch of b of n units drawn without
replacement, T the tempering multiplier and :math:`n_0 = T n`,

.. math::
    r_j &= \operatorname{clip}_{\sqrt b/n_0}(\ell_j(\theta') - \ell_j(\theta)), \qquad
    s^2 = \tfrac{n_0^2}{b} \big(1 - \tfrac bn\big) \operatorname{Var}_j(r_j) \le 1 \\
    \hat\lambda &= \tfrac{n_0}{b} \textstyle\sum_j r_j + \mathcal N(0, C - s^2)
        + \log p(\theta') - \log p(\theta) \\
    \text{accept} &\iff \hat\lambda + V_C > 0, \qquad
        \mathcal N(0, C) + V_C \approx \text{Logistic}(0, 1)

The batch's own error has about variance :math:`s^2`, so that error and noise are together about
N(0, C). (Algorithm 3 as printed leaves out the factors :math:`n_0/n` of both, and 1 − b/n, by which
a batch drawn without replacement varies less.) The sampler is
approximate in three ways: the batch's error is normal only for large b, :math:`V_C` is the best
there is (see :mod:`~pymc_dp.experimental.correction`), and ratios beyond :math:`\sqrt b/n_0` are clipped,
which without tempering are nearly all of them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import StepSizeState

from pymc_dp.checks import fraction, positive, whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.experimental.correction import logistic_correction
from pymc_dp.linalg import Vector
from pymc_dp.privacy.barker import noisy_batch_mean
from pymc_dp.privacy.calibration import calibrate_batch_size
from pymc_dp.privacy.events import BarkerBatch
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.base import PrivateStep, PrivateStepState
from pymc_dp.steps.scales import dual_averaging, proposal_factor

# Times the tempered number of units: with such a batch, the clip bound is three times the ratio of a
# record with a score of one at a move of the usual length.
_ENOUGH = 50


@dataclass_state
class DPBarkerState(PrivateStepState):
    """State of a :class:`DPBarker` chain."""

    adaptation: StepSizeState


class DPBarker(PrivateStep):
    r"""Differentially private sampling with batches and Barker's acceptance test. Approximate.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    batch_size : int, optional
        Instead of `epsilon`: b. More units in a batch clip less and cost more. From a budget it is the
        largest that is paid for, up to 50 T n, beyond which little is clipped anyway.
    variance : float
        C in (1, π²/3): of the batch's error and the noise together. More noise costs less; from
        about 2 on the correction is inaccurate (its error is in the metadata).
    scale : float or array, optional
        Of the Gaussian proposal, in unconstrained space: a standard deviation, d of them, or a
        d × d covariance. Default: :math:`2.4/\sqrt{d T n}`, or less where that would clip
        more than a few of the records if each carries about one unit of information.
    target_accept : float
        Acceptance rate that tuning steers the scale to. Barker's test accepts at most half.
    tempering : float
        T in (0, 1], multiplies the log-likelihood. At 1 clipping biases strongly: the clip bound is
        :math:`\sqrt b/(T n)`.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands.
    PrivacyConfigurationError
        If a setting is out of its range, or no batch size fits the budget.

    Notes
    -----
    **Releases**: per iteration one :func:`~pymc_dp.privacy.barker.noisy_batch_mean`, under
    substitute-one neighbours; add-or-remove is refused. **Guarantee**: k iterations in all cost k BarkerBatch events, in Rényi
    DP with sampling without replacement (Räisä, 2021, Theorem 3.3, with a tighter bound on the
    divergence within a batch).
    """

    name = "dp_barker"
    _state_class = DPBarkerState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        batch_size: int | None = None,
        variance: float = 2.0,
        scale: float | ArrayLike | None = None,
        target_accept: float = 0.25,
        tempering: float = 1.0,
        **run: Any,
    ):
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 2)
        self._target_accept = fraction("target_accept", target_accept)
        T = fraction("tempering", tempering, one_allowed=True)
        self._variance = positive("variance", variance)
        if not 1 < self._variance < math.pi**2 / 3:
            raise PrivacyConfigurationError(
                "`variance` must lie between 1, the most that a batch's error can have, and "
                f"π²/3 = {math.pi**2 / 3:.3f}, the logistic distribution's own. Found {variance!r}."
            )
        self._correction = logistic_correction(self._variance)
        super().__init__(vars, run, instead={"batch_size": batch_size})
        self.needs_public_size("a batch is a share of all units, of which it tells the number")
        n, d = self.roles.n_units, self.compiled.d
        if batch_size is not None and batch_size > n:
            raise PrivacyConfigurationError(
                f"`batch_size` is {batch_size}, but there are only {n} units."
            )
        self._proposal, own_scale = proposal_factor(scale, d)
        if self.run.epsilon is not None:
            batch_size = calibrate_batch_size(
                epsilon=self.run.epsilon,
                delta=self.run.delta,
                tests=self.run.chains * self.run.iterations,
                units=n,
                variance=self._variance,
                at_most=math.ceil(_ENOUGH * T * n),
            )
        self._b = int(batch_size or 0)
        self._bound = math.sqrt(self._b) / (T * n)
        self._first_scale: float = own_scale or min(
            2.4 / math.sqrt(d * T * n), self._bound / (2 * math.sqrt(d))
        )
        covariance = np.asarray(1.0 if scale is None else scale)
        self.pays(
            BarkerBatch(self._variance, self._b, n),
            settings={
                "batch_size": self._b,
                "variance": self._variance,
                "clip_bound": self._bound,
                "correction_cdf_error": self._correction.cdf_error,
                "scale": self._first_scale if covariance.ndim == 0 else str(covariance.tolist()),
                "tempering": T,
                "target_accept": self._target_accept,
            },
        )
        self._likelihood = self.compiled.likelihood
        self._start_chain()

    def _start_chain(self) -> None:
        self.adaptation = dual_averaging(self._first_scale, self._target_accept)

    def _noisy_ratio(self, theta: Vector, proposal: Vector, permit: Permit) -> float:
        def ratios(units: NDArray[np.int64]) -> Iterator[Vector]:
            yield self._likelihood.of_units(proposal, units) - self._likelihood.of_units(
                theta, units
            )

        return noisy_batch_mean(
            ratios,
            units=self.roles.n_units,
            batch_size=self._b,
            bound=self._bound,
            variance=self._variance,
            permit=permit,
            noise=self.run.noise,
        )

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        tuning = not self.tuning_over
        scale = float(self.adaptation.current(tuning))
        proposal = theta + scale * (self._proposal @ self.rng.standard_normal(theta.size))
        correction = self._correction.draw(self.rng)
        log_prior_ratio = self.log_public(proposal) - self.log_public(theta)
        accepted, accept_rate = False, 0.0
        if log_prior_ratio > -math.inf:  # decided on public numbers alone
            log_ratio = self._noisy_ratio(theta, proposal, permit) + log_prior_ratio
            accepted = log_ratio + correction > 0
            accept_rate = self._correction.probability_above(-log_ratio)
        if tuning:
            # A function of released numbers: it costs nothing beyond the iteration itself.
            self.adaptation.update(accept_rate, tuning)
        new = proposal if accepted else theta
        return new, {"accepted": accepted, "accept_rate": accept_rate, "scale": scale}
