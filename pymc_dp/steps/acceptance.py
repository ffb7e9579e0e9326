"""The penalty test, and the noisy log-likelihood ratio that it is fed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.privacy.noisy_sum import is_usable_bound
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.queries import LogLikelihoodRatio, Units
from pymc_dp.records.sums import LocalRecords


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
    noise_sd: Callable[[float], float],
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
    noise_sd : callable
        ``bound ->`` σ, the standard deviation of the noise in a ratio that was released with it.

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
        noise_sd=noise_sd,
    )


def penalty_test(
    theta: Vector,
    proposal: Vector,
    *,
    log_u: float,
    bound: Callable[[Vector], float],
    noisy_ratio: Callable[[Vector, Vector], float],
    log_public: Callable[[Vector], float],
    noise_sd: Callable[[float], float],
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
    bound, noisy_ratio, log_public, noise_sd
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
    sigma = noise_sd(B)
    log_ratio = noisy_ratio(theta, proposal) + log_prior_ratio + kinetic_ratio
    log_alpha = log_ratio - sigma * sigma / 2  # a product may overflow to inf, a power raises
    accepted = log_u < log_alpha
    return (proposal if accepted else theta), PenaltyInfo(accepted, math.exp(min(0.0, log_alpha)))


def release_bound(bound: float, tempering: float, rate: float) -> float:
    r"""C, the bound on :math:`|h(r)|` for :math:`|r| \le B`: see :class:`NoisyRatio`."""
    x = tempering / rate * bound
    return x + (1 - rate) / 2 * x * x


def penalised(ratios: Vector, bound: float, tempering: float, rate: float) -> Vector:
    """Values of h of :class:`NoisyRatio` at clipped ratios. NaN stays, and adds nothing to a sum."""
    x = tempering / rate * np.clip(ratios, -bound, bound)
    return x - (1 - rate) / 2 * x * x


@dataclass(frozen=True, eq=False)
class PenalisedRatio:
    r""":math:`h(r_i)` of :class:`NoisyRatio`, for samples of the units.

    Parameters
    ----------
    ratio : LogLikelihoodRatio
    bound, tempering, rate : float
        B, T and q.
    """

    ratio: LogLikelihoodRatio
    bound: float
    tempering: float
    rate: float
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        for ratios in self.ratio.terms(records, units):
            yield penalised(ratios, self.bound, self.tempering, self.rate)


class NoisyRatio:
    r"""A noisy, tempered log-likelihood ratio, for a step that moves by it.

    Of all units it is :math:`T \big(\sum_i r_i + \mathcal N(0, (z \cdot \kappa B)^2)\big)` with
    :math:`r_i = \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta))`. **Sensitivity** κTB, with
    κ = 2 under substitute-one neighbours and 1 under add-or-remove; **guarantee**: one Gaussian event of multiplier z (see
    :meth:`Curator.sum <pymc_dp.records.curator.Curator.sum>`; Räisä, 2021, Theorem 3.2).

    Of a Poisson sample S of the units, it is less half the estimate's variance: with :math:`a = T/q`, the
    ratio :math:`T \sum_i r_i` has the unbiased estimate
    :math:`a \sum_{i \in S} r_i`, whose variance :math:`T^2 \frac{1-q}{q} \sum_i r_i^2` has the
    unbiased estimate :math:`(1-q)\, a^2 \sum_{i \in S} r_i^2`. What is released is

    .. math:: \sum_{i \in S} h(r_i) + \mathcal N(0, (z \cdot 2C)^2), \qquad
              h(r) = a r - \tfrac{1-q}{2} a^2 r^2,\quad
              |h(r)| \le C = a B + \tfrac{1-q}{2} a^2 B^2

    **Sensitivity** 2C under substitute-one neighbours if the unit is sampled: unlike in the thesis
    (Räisä, 2021, Lemma 3.4, for samples without replacement), each unit's part stands alone.
    **Guarantee**: one PoissonGaussian event.

    Parameters
    ----------
    curator : Curator
    noise_multiplier : float
        z.
    tempering : float
        T.
    rate : float
        q; 1 for all units.
    """

    def __init__(
        self, curator: Curator, noise_multiplier: float, tempering: float, rate: float = 1.0
    ):
        self._curator, self._z = curator, noise_multiplier
        self._tempering, self._rate = tempering, rate

    def release_bound(self, bound: float) -> float:
        """Largest part of a unit in what is released, when its own ratio is clipped to `bound`."""
        return release_bound(bound, self._tempering, self._rate)

    def noise_sd(self, released: float) -> float:
        """σ of a ratio in which a unit has at most `released`, its :meth:`release_bound`."""
        return self._curator.neighbours.noise_sd(released, self._z)

    def __call__(self, theta: Vector, proposal: Vector, bound: float, permit: Permit) -> float:
        """Release the ratio of `proposal` to `theta`, each unit's own clipped to `bound`."""
        ratio = LogLikelihoodRatio(theta, proposal)
        if self._rate == 1:
            total = self._curator.sum(ratio, bound=bound, noise_multiplier=self._z, permit=permit)
            return self._tempering * float(total)
        return float(
            self._curator.sum(
                PenalisedRatio(ratio, bound, self._tempering, self._rate),
                bound=self.release_bound(bound),
                noise_multiplier=self._z,
                permit=permit,
                sampling_rate=self._rate,
            )
        )


def acceptance_at_equal_density(sigma: float) -> float:
    r"""Probability :math:`2\Phi(-\sigma/2)` that the penalty test accepts a ratio of one.

    Ceperley and Dewing (1999), Eq. 20: what noise of standard deviation `sigma` leaves of the
    acceptance rate of a proposal between equally likely points.
    """
    return math.erfc(sigma / (2 * math.sqrt(2)))
