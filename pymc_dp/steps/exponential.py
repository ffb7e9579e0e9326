r"""DP penalty for exponential families: the data enter through one kept sum of statistics.

Yıldırım and Ermiş (2019), section 3.3 and Algorithm 3. If
:math:`\log p(y_i \mid \theta) = \varphi(\theta)^\top S(y_i) - A(\theta) + h(y_i)`, then with
:math:`\theta'` proposed symmetrically and :math:`g = \varphi(\theta') - \varphi(\theta)`,

.. math::
    \hat\lambda &= g^\top \textstyle\sum_i S(y_i) + \mathcal N(0, \sigma^2)
        - n\,(A(\theta') - A(\theta)) + \log p(\theta') - \log p(\theta) \\
    \sigma &= z \max_{y, y'} |g^\top (S(y) - S(y'))| \\
    \text{accept} &\iff \log u < \hat\lambda - \sigma^2/2

Values are limited to a public range once, before they are summed, so that nothing is clipped in an
iteration, and the posterior of the limited values is invariant, noise and all. The algorithm in the
paper releases the vector of sums with :math:`\mathcal N(0, \xi I)`, and has
:math:`\sigma^2 = g^\top g\,\xi`; with one statistic the two are the same, with more this :math:`\sigma` is
smaller at the same cost.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import DualAverageAdaptation, StepSizeState
from scipy.optimize import brentq

from pymc_dp.checks import fraction
from pymc_dp.exponential_family.families import Bounds
from pymc_dp.exponential_family.statistics import SufficientStatistics
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.privacy.kept_sum import Direction, KeptSum, direction
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noise_sd
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.base import PrivateStep, PrivateStepState
from pymc_dp.steps.penalty import PenaltyInfo, penalty_test
from pymc_dp.steps.settings import Vector, proposal_factor

# The default scale aims at this noise in the log acceptance ratio: E min(1, e^X) is 0.42 then.
_SIGMA_OF_DEFAULT_SCALE = 1.6
_SMALLEST_SCALE = 1e-12
_HUGE = 1e6


def exponential_transition(
    rng: np.random.Generator,
    theta: Vector,
    *,
    propose: Callable[[np.random.Generator, Vector], Vector],
    natural: Callable[[Vector], tuple[Vector, float]],
    along: Callable[[Vector], Direction | None],
    release: Callable[[Direction], float],
    n_records: int,
    log_public: Callable[[Vector], float],
    noise_multiplier: float,
) -> tuple[Vector, PenaltyInfo]:
    """One transition of the DP penalty algorithm for an exponential family.

    Parameters
    ----------
    rng : Generator
        Public randomness: the proposal, then the uniform of the test.
    theta : ndarray, shape (d,)
        Current point.
    propose : callable
        ``(rng, theta) -> theta'``, symmetric.
    natural : callable
        ``theta -> (φ, A)``.
    along : callable
        ``φ' - φ ->`` its direction on the grid; None if there is none.
    release : callable
        ``direction ->`` the noisy sum of statistics along it. The only part that reads data.
    n_records : int
        n.
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
    (here, A), (there, A_new) = natural(theta), natural(proposal)
    with np.errstate(all="ignore"):
        g = along(there - here) if math.isfinite(A_new - A) else None

    def noisy_ratio(theta: Vector, proposal: Vector) -> float:
        return release(g) - n_records * (A_new - A) if g is not None else math.nan

    return penalty_test(
        theta,
        proposal,
        log_u=math.log1p(-rng.random()),
        bound=lambda _: 0.0 if g is None else g.bound,
        noisy_ratio=noisy_ratio,
        log_public=log_public,
        noise_multiplier=noise_multiplier,
    )


@dataclass_state
class DPExponentialFamilyState(PrivateStepState):
    """State of a :class:`DPExponentialFamily` chain."""

    adaptation: StepSizeState


class DPExponentialFamily(PrivateStep):
    r"""Differentially private random-walk Metropolis for models without covariates.

    For observed variables that are Bernoulli, Binomial, Categorical, Exponential, Geometric, Normal or
    Poisson, with parameters that all records share. An iteration takes the same time for any number of
    records. Anything else is refused when the step is built.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    draws, tune, chains : int
        The run's plan, the same numbers that ``pm.sample`` gets. Every iteration of every chain
        costs budget, tuning included.
    epsilon, delta : float, optional
        The budget of the whole run. `delta` defaults to the ledger's, or to 0.1 / units without one.
    noise_multiplier : float, optional
        In place of `epsilon`: z, which fixes the ε spent.
    bounds : pair or mapping, optional
        Public range (lower, upper) that observed values are limited to; needed for Exponential,
        Geometric, Normal and Poisson, whose values can have any size. With several such variables, a
        mapping from their names. A pair may hold arrays of the shape of one record. Noise is proportional
        to the width.
    scale : float or array, optional
        Proposal standard deviation, one per parameter, or covariance matrix, on the unconstrained
        scale. The default is computed from the noise at the initial point.
    target_accept : float
        Acceptance that tuning steers the scale to.
    unit, public, ledger, noise, chunk_size, model, compile_kwargs, rng, blocked
        As in :class:`~pymc_dp.DPPenalty`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or is of no such family.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: one :meth:`~pymc_dp.privacy.kept_sum.KeptSum.release` per iteration, of the sum of
    statistics along :math:`\varphi(\theta') - \varphi(\theta)`. **Sensitivity**: under substitute-one
    neighbours 2B = :math:`m \max_{y, y'} |g^\top(S(y) - S(y'))|` over the public range, with m the most
    records that a unit has. **Guarantee**: with k iterations in all, :math:`\mu^2 = k/z^2` in
    :func:`~pymc_dp.privacy.accounting.gaussian_delta` (Räisä, 2021, Theorem 3.2).

    The target is the posterior of the data with values outside the range moved to its ends; within
    the range, that of the data.

    Examples
    --------
    >>> with model:                                                    # doctest: +SKIP
    ...     idata = sample(1000, epsilon=1.0, step=DPExponentialFamily, bounds=(0, 30))
    """

    name = "dp_exponential_family"
    _state_class = DPExponentialFamilyState

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
        bounds: Bounds | Mapping[str, Bounds] | None = None,
        scale: float | ArrayLike | None = None,
        target_accept: float = 0.3,
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
        self._bounds, self._asked_scale, self._compile_kwargs = bounds, scale, compile_kwargs
        self._target_accept = fraction("target_accept", target_accept)
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

    def _configure(self, d: int) -> None:
        self._proposal, self._given_scale = proposal_factor(self._asked_scale, d)
        self._family = SufficientStatistics(
            self.compiled.parameters, self._roles, self._bounds, self._compile_kwargs
        )
        self._sum = KeptSum(self._family.of_records, self._family.size)
        codes = self._roles.unit_of_record
        self._records_per_unit = 1 if codes is None else int(np.bincount(codes).max())

    def _calibrate(
        self,
        epsilon: float | None,
        delta: float,
        noise_multiplier: float | None,
        iterations: int,
    ) -> tuple[Event, ...]:
        self._family.check(self.compiled.likelihood)
        if epsilon is not None:
            noise_multiplier = calibrate_noise(epsilon=epsilon, delta=delta, releases=iterations)
        self._z = float(noise_multiplier or 0.0)
        self._first_scale: float = self._given_scale or self._default_scale()
        return (Gaussian(self._z),)

    def _along(self, g: Vector) -> Direction | None:
        """The direction of a move; None if it is not one, or too long to measure."""
        spread = self._family.spread(g)
        if not (np.isfinite(g).all() and 0 < spread < math.inf):
            return None
        return direction(g, spread, self._records_per_unit)

    def _default_scale(self) -> float:
        """From public numbers only: what the noise allows, and what n records are likely to."""
        posterior = 2.4 / math.sqrt(len(self._proposal) * self._roles.n_records)
        if self._noise_sd_of_scale(posterior) <= _SIGMA_OF_DEFAULT_SCALE:
            return posterior

        def excess(log_scale: float) -> float:
            sigma = self._noise_sd_of_scale(math.exp(log_scale))
            return min(sigma, _HUGE) - _SIGMA_OF_DEFAULT_SCALE

        if excess(math.log(_SMALLEST_SCALE)) > 0:
            return _SMALLEST_SCALE
        return math.exp(brentq(excess, math.log(_SMALLEST_SCALE), math.log(posterior)))

    def _noise_sd_of_scale(self, scale: float) -> float:
        """σ of a typical proposal from the initial point: the root mean square of some."""
        start = self.compiled.parameters.start
        here, _ = self._family.natural(start)
        moves = np.random.default_rng(0).standard_normal((32, len(start))) @ self._proposal.T
        directions = [self._along(self._family.natural(start + scale * m)[0] - here) for m in moves]
        bounds = [math.inf if g is None else g.bound for g in directions]
        return noise_sd(math.sqrt(float(np.mean(np.square(bounds)))), self._z)

    def _settings(self) -> dict[str, float | str]:
        given = np.ndim(self._asked_scale) > 0 if self._asked_scale is not None else False
        asked = {"proposal": str(np.asarray(self._asked_scale).tolist())} if given else {}
        return {
            "bounds": str(self._family),
            "scale": self._first_scale,
            "target_accept": self._target_accept,
            "statistics": self._family.size,
            "records_per_unit": self._records_per_unit,
            "typical_noise_sd": self._noise_sd_of_scale(self._first_scale),
            **asked,
        }

    def _start_chain(self) -> None:
        self.adaptation = DualAverageAdaptation(
            self._first_scale, self._target_accept, gamma=0.05, k=0.75, t0=10
        )

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        tuning = not self.tuning_over
        scale = float(self.adaptation.current(tuning))
        new, info = exponential_transition(
            self.rng,
            theta,
            propose=lambda rng, theta: (
                theta + scale * (self._proposal @ rng.standard_normal(theta.size))
            ),
            natural=self._family.natural,
            along=self._along,
            release=lambda g: self._sum.release(
                g, noise_multiplier=self._z, permit=permit, noise=self._noise
            ),
            n_records=self._roles.n_records,
            log_public=self._log_public,
            noise_multiplier=self._z,
        )
        if tuning:
            # A function of released numbers: it costs nothing beyond the iteration itself.
            self.adaptation.update(info.accept_rate, tuning)
        return new, {**info._asdict(), "scale": scale}
