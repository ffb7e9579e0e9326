"""Noisy log-likelihood ratios: the releases behind every penalty test."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noisy_sum, noisy_total, poisson_noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.settings import Vector


class Ratio(Protocol):
    """A noisy, tempered log-likelihood ratio, for a step that moves by it."""

    def release_bound(self, bound: float) -> float:
        """Largest term of a unit in the released sum, when its own ratio is clipped to `bound`."""
        ...

    def __call__(self, theta: Vector, proposal: Vector, bound: float, permit: Permit) -> float:
        """Release the ratio of `proposal` to `theta`, each unit's own clipped to `bound`."""
        ...

    def move(self) -> None:
        """Say that the proposal of the latest release was accepted."""
        ...

    def forget(self) -> None:
        """Start another chain."""
        ...


def release_bound(bound: float, tempering: float, rate: float) -> float:
    r"""C, the bound on :math:`|h(r)|` for :math:`|r| \le B`: see :class:`MinibatchRatio`."""
    x = tempering / rate * bound
    return x + (1 - rate) / 2 * x * x


def _penalised(ratios: Vector, bound: float, tempering: float, rate: float) -> Vector:
    """Values of h at clipped ratios. NaN stays, and adds nothing to a sum."""
    x = tempering / rate * np.clip(ratios, -bound, bound)
    return x - (1 - rate) / 2 * x * x


class NoisyRatio:
    r"""Releases :math:`T \sum_i \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta))` and noise.

    **Sensitivity** 2TB under substitute-one neighbours; **guarantee**: one Gaussian event of
    multiplier z (see :func:`~pymc_dp.privacy.noisy_sum.noisy_sum`; Räisä, 2021, Theorem 3.2).

    The terms of the current point are kept between iterations, which halves the work; they are
    private, never leave the process, and are left out of pickles.

    Parameters
    ----------
    likelihood : RecordLikelihood
    noise : NoiseSource
    noise_multiplier : float
        z.
    tempering : float
        T.
    """

    def __init__(
        self,
        likelihood: RecordLikelihood,
        noise: NoiseSource,
        noise_multiplier: float,
        tempering: float,
    ):
        self._likelihood = likelihood
        self._noise = noise
        self._z = noise_multiplier
        self._tempering = tempering
        self.forget()

    def forget(self) -> None:
        """Drop the kept terms."""
        self._current: tuple[Vector, Vector] | None = None
        self._proposed: tuple[Vector, Vector] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_current": None, "_proposed": None}

    def release_bound(self, bound: float) -> float:
        """See :class:`Ratio`: T times the bound."""
        return release_bound(bound, self._tempering, 1.0)

    def __call__(self, theta: Vector, proposal: Vector, bound: float, permit: Permit) -> float:
        """See :class:`Ratio`."""
        released = noisy_sum(
            self._ratios(theta, proposal),
            bound=bound,
            noise_multiplier=self._z,
            permit=permit,
            noise=self._noise,
        )
        return self._tempering * float(released)

    def move(self) -> None:
        """See :class:`Ratio`."""
        self._current = self._proposed

    def _ratios(self, theta: Vector, proposal: Vector) -> Iterator[Vector]:
        if self._current is None or not np.array_equal(theta, self._current[0]):
            self._current = theta.copy(), self._likelihood(theta)
        self._proposed = proposal.copy(), self._likelihood(proposal)
        yield self._proposed[1] - self._current[1]


class ShardedRatio:
    r"""The release of :class:`NoisyRatio`, from integer sums that workers make of their shards.

    **Sensitivity** and **guarantee** are those of :class:`NoisyRatio` (see
    :func:`~pymc_dp.privacy.noisy_sum.noisy_total`).

    Parameters
    ----------
    clipped_sums : callable
        ``(theta, theta', B) ->`` :func:`~pymc_dp.privacy.clipping.clipped_sum` of the ratios of each
        shard's units. Asks the workers when it is iterated over, not before.
    noise, noise_multiplier, tempering
        As in :class:`NoisyRatio`.
    """

    def __init__(
        self,
        clipped_sums: Callable[[Vector, Vector, float], Iterable[NDArray[np.int64]]],
        noise: NoiseSource,
        noise_multiplier: float,
        tempering: float,
    ):
        self._clipped_sums = clipped_sums
        self._noise = noise
        self._z = noise_multiplier
        self._tempering = tempering

    def forget(self) -> None:
        """Workers keep the terms of the last two points, and find them again by the point."""

    def move(self) -> None:
        """See :meth:`forget`."""

    def release_bound(self, bound: float) -> float:
        """See :class:`Ratio`: T times the bound."""
        return release_bound(bound, self._tempering, 1.0)

    def __call__(self, theta: Vector, proposal: Vector, bound: float, permit: Permit) -> float:
        """See :class:`Ratio`."""
        released = noisy_total(
            self._clipped_sums(theta, proposal, bound),
            bound=bound,
            noise_multiplier=self._z,
            permit=permit,
            noise=self._noise,
        )
        return self._tempering * float(released)


class MinibatchRatio:
    r"""Releases a ratio estimated from a Poisson sample S, less half the estimate's variance.

    With :math:`r_i = \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta))` and
    :math:`a = T/q`, the ratio :math:`T \sum_i r_i` has the unbiased estimate
    :math:`a \sum_{i \in S} r_i`, whose variance :math:`T^2 \frac{1-q}{q} \sum_i r_i^2` has the
    unbiased estimate :math:`(1-q)\, a^2 \sum_{i \in S} r_i^2`. What is released is

    .. math:: \sum_{i \in S} h(r_i) + \mathcal N(0, (z \cdot 2C)^2), \qquad
              h(r) = a r - \tfrac{1-q}{2} a^2 r^2,\quad
              |h(r)| \le C = a B + \tfrac{1-q}{2} a^2 B^2

    **Sensitivity** 2C under substitute-one neighbours if the unit is sampled: unlike in the thesis
    (Räisä, 2021, Lemma 3.4, for samples without replacement), each unit's part stands alone.
    **Guarantee**: one PoissonGaussian event (see
    :func:`~pymc_dp.privacy.noisy_sum.poisson_noisy_sum`).

    Parameters
    ----------
    likelihood, noise, noise_multiplier, tempering
        As in :class:`NoisyRatio`.
    rate : float
        q < 1.
    """

    def __init__(
        self,
        likelihood: RecordLikelihood,
        noise: NoiseSource,
        noise_multiplier: float,
        tempering: float,
        rate: float,
    ):
        self._likelihood = likelihood
        self._noise = noise
        self._z = noise_multiplier
        self._tempering = tempering
        self._rate = rate

    def forget(self) -> None:
        """Nothing is kept: the next sample is another one."""

    def move(self) -> None:
        """See :meth:`forget`."""

    def release_bound(self, bound: float) -> float:
        """C."""
        return release_bound(bound, self._tempering, self._rate)

    def __call__(self, theta: Vector, proposal: Vector, bound: float, permit: Permit) -> float:
        """See :class:`Ratio`."""

        def parts(units: NDArray[np.int64]) -> Iterator[Vector]:
            ratios = self._likelihood.of_units(proposal, units)
            ratios -= self._likelihood.of_units(theta, units)
            yield _penalised(ratios, bound, self._tempering, self._rate)

        released = poisson_noisy_sum(
            parts,
            units=self._likelihood.n_units,
            sampling_rate=self._rate,
            bound=self.release_bound(bound),
            noise_multiplier=self._z,
            permit=permit,
            noise=self._noise,
        )
        return float(released)
