"""Whom the records are entrusted to: exact sums go in, releases come out."""

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.histogram import noisy_counts, pure_noisy_counts
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import l2_noisy_total, noisy_total, poisson_noisy_total
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.queries import Query, Vector, is_acute
from pymc_dp.records.sums import RecordSums


class Curator:
    """Whom the records are entrusted to: answers queries with noise, each paid for by a permit.

    Parameters
    ----------
    records : RecordSums
        Private. Nothing reads them but the releases here.
    noise : NoiseSource
    neighbours : Neighbours
        What the releases are calibrated to.
    """

    def __init__(
        self,
        records: RecordSums,
        noise: NoiseSource,
        neighbours: Neighbours = SUBSTITUTE_ONE,
    ):
        self._records, self._noise, self.neighbours = records, noise, neighbours

    @property
    def n_units(self) -> int:
        """Number of units of privacy, if it is public.

        Raises
        ------
        PrivacyConfigurationError
            If it is not.
        """
        return self.neighbours.public_number(self._records.n_units)

    def sum(
        self,
        of: Query,
        *,
        bound: float,
        noise_multiplier: float,
        permit: Permit,
        sampling_rate: float = 1.0,
    ) -> Vector:
        """Noisy sum of the units' clipped terms, or of those of a secret Poisson sample.

        **Sensitivity** κB in L2 norm under the curator's neighbours (2B or B); √κ B if the query's terms are
        :func:`acute <pymc_dp.records.queries.is_acute>`. **Guarantee**: one Gaussian
        event of :func:`~pymc_dp.privacy.noisy_sum.noisy_total`, or, under substitute-one, PoissonGaussian
        event of :func:`~pymc_dp.privacy.noisy_sum.poisson_noisy_total`.

        Parameters
        ----------
        of : Query
            A function of earlier releases and settings.
        bound : float
            B, likewise.
        noise_multiplier : float
            z: the noise's standard deviation is z · κB.
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
        PrivacyConfigurationError
            If a sample is asked for under add-or-remove.
        """
        if sampling_rate == 1:
            return noisy_total(
                # A generator: nothing is computed before it is drawn from, which the permit allows.
                (self._records.total(asked, bound) for asked in [of]),
                dimension=of.dimension,
                nonzeros=getattr(of, "nonzeros", None),
                bound=bound,
                noise_multiplier=noise_multiplier,
                permit=permit,
                noise=self._noise,
                neighbours=self.neighbours,
                acute=is_acute(of),
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

    def l2_sum(
        self,
        of: Query,
        *,
        bound: float,
        noise_multiplier: float,
        permit: Permit,
        pure: bool = False,
    ) -> Vector:
        """Sum of the units' clipped terms with noise of the ℓ2 mechanism.

        **Sensitivity**: that of :meth:`sum`. **Guarantee**: one L2Mechanism event, or, if it is to be pure, Pure event of
        :func:`~pymc_dp.privacy.noisy_sum.l2_noisy_total`.

        Parameters
        ----------
        of, bound, permit
            As in :meth:`sum`.
        noise_multiplier : float
            z: the scale of the noise is z times the sensitivity, its standard deviation in an entry √(d + 1) times that.
        pure : bool
            See :func:`~pymc_dp.privacy.noisy_sum.l2_noisy_total`.

        Returns
        -------
        ndarray, shape () or (dimension,)

        Raises
        ------
        PrivacyBudgetExceeded
            If the permit does not cover it. No records have been read then.
        """
        return l2_noisy_total(
            (self._records.total(asked, bound) for asked in [of]),
            dimension=of.dimension,
            bound=bound,
            noise_multiplier=noise_multiplier,
            permit=permit,
            noise=self._noise,
            neighbours=self.neighbours,
            acute=is_acute(of),
            pure=pure,
        )

    def counts(
        self,
        of: Query,
        bins_per_octave: int,
        *,
        noise_multiplier: float,
        permit: Permit,
        pure: bool = False,
    ) -> NDArray[np.float64]:
        """Noisy counts of the units by the size of their terms, shape (bins,).

        **Sensitivity** √κ in L2 norm under the curator's neighbours; **guarantee**: one Gaussian event of
        :func:`~pymc_dp.privacy.histogram.noisy_counts`. If it is to be pure, Laplace noise, sensitivity κ in L1 norm and one Pure
        event of :func:`~pymc_dp.privacy.histogram.pure_noisy_counts`.
        """
        return (pure_noisy_counts if pure else noisy_counts)(
            lambda: self._records.counts(of, bins_per_octave),
            noise_multiplier=noise_multiplier,
            permit=permit,
            noise=self._noise,
            neighbours=self.neighbours,
        )
