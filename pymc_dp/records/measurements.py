"""From exact sums to releases: what is asked of the records, answered with noise."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.histogram import PrivateHistogram, count_sd, noisy_counts
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noise_sd, noisy_total, poisson_noisy_total
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.purse import Purse
from pymc_dp.records.questions import Centred, Question, Vector
from pymc_dp.records.sums import RecordSums


class Curator:
    """Whom the records are entrusted to: answers questions with noise, each paid for by a permit.

    Parameters
    ----------
    records : RecordSums
        Private. Nothing reads them but the releases here.
    noise : NoiseSource
    """

    def __init__(self, records: RecordSums, noise: NoiseSource):
        self._records, self._noise = records, noise

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self._records.n_units

    def sum(
        self,
        of: Question,
        *,
        bound: float,
        noise_multiplier: float,
        permit: Permit,
        sampling_rate: float = 1.0,
    ) -> Vector:
        """Noisy sum of the units' clipped terms, or of those of a secret Poisson sample.

        **Sensitivity** 2B in L2 norm under substitute-one neighbours. **Guarantee**: one Gaussian event of
        :func:`~pymc_dp.privacy.noisy_sum.noisy_total`, or PoissonGaussian event of
        :func:`~pymc_dp.privacy.noisy_sum.poisson_noisy_total`.

        Parameters
        ----------
        of : Question
            A function of earlier releases and settings.
        bound : float
            B, likewise.
        noise_multiplier : float
            z: the noise's standard deviation is z · 2B.
        permit : Permit
            Must still contain the release.
        sampling_rate : float
            Probability with which a unit is in the sample.

        Returns
        -------
        ndarray, shape () or (dimension,)

        Raises
        ------
        PrivacyBudgetExceeded
            If the permit does not cover it. No records have been read then.
        """
        if sampling_rate == 1:
            return noisy_total(
                # A generator: nothing is computed before it is drawn from, which the permit allows.
                (self._records.total(asked, bound) for asked in [of]),
                dimension=of.dimension,
                bound=bound,
                noise_multiplier=noise_multiplier,
                permit=permit,
                noise=self._noise,
            )
        return poisson_noisy_total(
            lambda units: self._records.total(of, bound, units),
            units=self.n_units,
            sampling_rate=sampling_rate,
            dimension=of.dimension,
            bound=bound,
            noise_multiplier=noise_multiplier,
            permit=permit,
            noise=self._noise,
        )

    def counts(
        self, of: Question, bins_per_octave: int, *, noise_multiplier: float, permit: Permit
    ) -> NDArray[np.float64]:
        """Noisy counts of the units by the size of their terms, shape (bins,).

        **Sensitivity** √2 in L2 norm under substitute-one neighbours; **guarantee**: one Gaussian event of
        :func:`~pymc_dp.privacy.histogram.noisy_counts`.
        """
        return noisy_counts(
            lambda: self._records.counts(of, bins_per_octave),
            noise_multiplier=noise_multiplier,
            permit=permit,
            noise=self._noise,
        )


class Measurements(Protocol):
    r"""Noisy answers, paid for by shares of one budget: of a curator, or of several owners.

    Shares are of :math:`\mu^2`. Algorithms that are written against this know of the records nothing but
    the answers.
    """

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        ...

    @property
    def spent(self) -> float:
        """Share of the budget that is gone."""
        ...

    def multiplier(self, share: float) -> float:
        """Noise standard deviation / sensitivity of a release that costs `share`."""
        ...

    def noise_sd(self, bound: float, share: float) -> float:
        """Standard deviation of the noise in every entry of a :meth:`sum`."""
        ...

    def count_sd(self, share: float) -> float:
        """Standard deviation of the noise in every bin of a :meth:`histogram`."""
        ...

    def sum(self, of: Question, bound: float, share: float) -> tuple[Vector, float]:
        """Noisy sum of the units' clipped terms, and the noise's standard deviation in each entry."""
        ...

    def count(self, of: Question, share: float) -> tuple[float, float]:
        """Noisy number of units that are marked with 1, the others with 0; and the noise's standard deviation."""
        ...

    def histogram(self, of: Question, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """Noisy histogram of the sizes of the units' terms."""
        ...


class PaidMeasurements:
    """What a curator answers for the content of a purse: one home of :class:`Measurements`.

    Parameters
    ----------
    curator : Curator
    purse : Purse
    """

    def __init__(self, curator: Curator, purse: Purse):
        self._curator, self._purse = curator, purse

    @property
    def n_units(self) -> int:
        """See :class:`Measurements`."""
        return self._curator.n_units

    @property
    def spent(self) -> float:
        """See :class:`Measurements`."""
        return self._purse.spent

    def multiplier(self, share: float) -> float:
        """See :class:`Measurements`."""
        return self._purse.multiplier(share)

    def noise_sd(self, bound: float, share: float) -> float:
        """See :class:`Measurements`."""
        return noise_sd(bound, self.multiplier(share))

    def count_sd(self, share: float) -> float:
        """See :class:`Measurements`."""
        return count_sd(self.multiplier(share))

    def sum(self, of: Question, bound: float, share: float) -> tuple[Vector, float]:
        """See :class:`Measurements`."""
        z, permit = self._purse.permit(share)
        released = self._curator.sum(of, bound=bound, noise_multiplier=z, permit=permit)
        return released, noise_sd(bound, z)

    def count(self, of: Question, share: float) -> tuple[float, float]:
        """See :class:`Measurements`."""
        excess, sd = self.sum(Centred(of), Centred.bound, share)
        return float(excess) + self.n_units / 2, sd

    def histogram(self, of: Question, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """See :class:`Measurements`."""
        z, permit = self._purse.permit(share)
        counts = self._curator.counts(of, bins_per_octave, noise_multiplier=z, permit=permit)
        return PrivateHistogram(counts, count_sd(z), bins_per_octave)
