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

Under add-or-remove neighbours n is private, and so it is a statistic like the others: what is released is
:math:`\sum_i (g^\top S(y_i) - A(\theta') + A(\theta))`, with
:math:`\sigma = z \max_y |g^\top S(y) - A(\theta') + A(\theta)|`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import StepSizeState

from pymc_dp.checks import fraction
from pymc_dp.exponential_family.families import Bounds
from pymc_dp.exponential_family.statistics import SufficientStatistics
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.kept_sum import Direction, KeptSum, direction
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.acceptance import PenaltyInfo, penalty_test
from pymc_dp.steps.base import PrivateStep, PrivateStepState
from pymc_dp.steps.scales import default_scale, dual_averaging, proposal_factor


def exponential_transition(
    rng: np.random.Generator,
    theta: Vector,
    *,
    propose: Callable[[np.random.Generator, Vector], Vector],
    natural: Callable[[Vector], tuple[Vector, float]],
    along: Callable[[Vector, float], Direction | None],
    release: Callable[[Direction, float], float],
    log_public: Callable[[Vector], float],
    noise_sd: Callable[[float], float],
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
        ``(φ' - φ, A' - A) ->`` their direction on the grid; None if there is none.
    release : callable
        ``(direction, A' - A) ->`` the noisy log-likelihood ratio. The only part that reads data.
    log_public : callable
        ``theta ->`` log prior with Jacobian.
    noise_sd : callable
        ``bound ->`` σ of a release along a direction with that bound.

    Returns
    -------
    theta : ndarray, shape (d,)
    info : PenaltyInfo
    """
    proposal = propose(rng, theta)
    (here, A), (there, A_new) = natural(theta), natural(proposal)
    with np.errstate(all="ignore"):
        g = along(there - here, A_new - A) if math.isfinite(A_new - A) else None

    def noisy_ratio(theta: Vector, proposal: Vector) -> float:
        return release(g, A_new - A) if g is not None else math.nan

    return penalty_test(
        theta,
        proposal,
        log_u=math.log1p(-rng.random()),
        bound=lambda _: 0.0 if g is None else g.bound,
        noisy_ratio=noisy_ratio,
        log_public=log_public,
        noise_sd=noise_sd,
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
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or is of no such family.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: one :meth:`~pymc_dp.privacy.kept_sum.KeptSum.release` per iteration, of the sum of
    statistics along :math:`g = \varphi(\theta') - \varphi(\theta)`. **Sensitivity**: under substitute-one
    neighbours 2B = :math:`m \max_{y, y'} |g^\top(S(y) - S(y'))|` over the public range, with m the most
    records that a unit has; under add-or-remove, where every record has to be a unit, B =
    :math:`\max_y |g^\top S(y) - A(\theta') + A(\theta)|`. **Guarantee**: with k iterations in all, :math:`\mu^2 = k/z^2` in
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
        noise_multiplier: float | None = None,
        bounds: Bounds | Mapping[str, Bounds] | None = None,
        scale: float | ArrayLike | None = None,
        target_accept: float = 0.3,
        **run: Any,
    ):
        self._target_accept = fraction("target_accept", target_accept)
        super().__init__(vars, run, instead={"noise_multiplier": noise_multiplier})
        self._proposal, given_scale = proposal_factor(scale, self.compiled.d)
        if self.roles.unit_of_record is not None:
            self.needs_public_size(
                "a unit of several records tells by their number that it is there"
            )
        self._public_n = self.run.neighbours.public_size
        self._family = SufficientStatistics(
            self.compiled.parameters, self.roles, bounds, run.get("compile_kwargs")
        )
        self._sum = KeptSum(self._vectors, self._family.size + 1)
        codes = self.roles.unit_of_record
        self._records_per_unit = 1 if codes is None else int(np.bincount(codes).max())
        self._z = self.run.multiplier(noise_multiplier)
        likely = 2.4 / math.sqrt(self.compiled.d * (self.roles.n_records if self._public_n else 1))
        self._first_scale = given_scale or default_scale(likely, self._noise_sd_of_scale)
        asked = (
            {"proposal": str(np.asarray(scale).tolist())}
            if scale is not None and np.ndim(scale) > 0
            else {}
        )
        self.pays(
            Gaussian(self._z),
            settings={
                "bounds": str(self._family),
                "scale": self._first_scale,
                "target_accept": self._target_accept,
                "statistics": self._family.size,
                "records_per_unit": self._records_per_unit,
                "typical_noise_sd": self._noise_sd_of_scale(self._first_scale),
                **asked,
            },
        )
        self._family.check(self.compiled.likelihood)
        self._start_chain()

    def _vectors(self) -> Iterator[Vector]:
        """S of every record, and a 1 for the record itself. Private."""
        for chunk in self._family.of_records():
            yield np.column_stack([chunk, np.ones(len(chunk))])

    def _along(self, g: Vector, rise: float) -> Direction | None:
        """The direction of a move by which A rises so much; None if it is not one, or too long to measure."""
        spread = self._family.spread(g) if self._public_n else self._family.farthest(g, rise)
        if not (np.isfinite(g).all() and 0 < spread < math.inf):
            return None
        weights = np.append(g, 0.0 if self._public_n else -rise)
        return direction(weights, spread, self._records_per_unit, self.run.neighbours)

    def _ratio(self, along: Direction, rise: float, permit: Permit) -> float:
        """The noisy log-likelihood ratio of a move."""
        released = self._sum.release(
            along, noise_multiplier=self._z, permit=permit, noise=self.run.noise
        )
        # Where n is private, the last entry of the direction has it in the release.
        return released - self.roles.n_records * rise if self._public_n else released

    def _noise_sd_of_scale(self, scale: float) -> float:
        """σ of a typical proposal from the initial point: the root mean square of some."""
        start = self.compiled.parameters.start
        here, A = self._family.natural(start)
        moves = np.random.default_rng(0).standard_normal((32, len(start))) @ self._proposal.T
        there = [self._family.natural(start + scale * m) for m in moves]
        with np.errstate(all="ignore"):
            directions = [self._along(new - here, A_new - A) for new, A_new in there]
        bounds = [math.inf if g is None else g.bound for g in directions]
        typical = math.sqrt(float(np.mean(np.square(bounds))))
        return self.run.neighbours.noise_sd(typical, self._z)

    def _start_chain(self) -> None:
        self.adaptation = dual_averaging(self._first_scale, self._target_accept)

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
            release=lambda along, rise: self._ratio(along, rise, permit),
            log_public=self.log_public,
            noise_sd=lambda bound: self.run.neighbours.noise_sd(bound, self._z),
        )
        if tuning:
            # A function of released numbers: it costs nothing beyond the iteration itself.
            self.adaptation.update(info.accept_rate, tuning)
        return new, {**info._asdict(), "scale": scale}
