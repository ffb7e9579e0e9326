"""The noisy log-likelihood ratio: the release behind every penalty test."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.privacy.ledger import Permit
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noisy_sum
from pymc_dp.steps.settings import Vector


class NoisyRatio:
    r"""Releases :math:`\sum_i \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta))` plus noise.

    **Sensitivity** 2B under substitute-one neighbours; **guarantee**: one Gaussian event of
    multiplier z (see :func:`~pymc_dp.privacy.noisy_sum.noisy_sum`; Räisä, 2021, Theorem 3.2).

    The terms of the current point are kept between iterations, which halves the work; they are
    private, never leave the process, and are left out of pickles.

    Parameters
    ----------
    likelihood : RecordLikelihood
    noise : NoiseSource
    noise_multiplier : float
        z.
    """

    def __init__(self, likelihood: RecordLikelihood, noise: NoiseSource, noise_multiplier: float):
        self._likelihood = likelihood
        self._noise = noise
        self._z = noise_multiplier
        self.forget()

    def forget(self) -> None:
        """Drop the kept terms."""
        self._current: tuple[Vector, Vector] | None = None
        self._proposed: tuple[Vector, Vector] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_current": None, "_proposed": None}

    def __call__(self, theta: Vector, proposal: Vector, bound: float, permit: Permit) -> float:
        """Release the ratio of `proposal` to `theta`, each term clipped to `bound`."""
        released = noisy_sum(
            self._ratios(theta, proposal),
            bound=bound,
            noise_multiplier=self._z,
            permit=permit,
            noise=self._noise,
        )
        return float(released)

    def move(self) -> None:
        """Say that the proposal of the latest release was accepted."""
        self._current = self._proposed

    def _ratios(self, theta: Vector, proposal: Vector) -> Iterator[Vector]:
        if self._current is None or not np.array_equal(theta, self._current[0]):
            self._current = theta.copy(), self._likelihood(theta)
        self._proposed = proposal.copy(), self._likelihood(proposal)
        with np.errstate(all="ignore"):
            yield self._proposed[1] - self._current[1]
