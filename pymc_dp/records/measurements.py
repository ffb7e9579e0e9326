"""From exact sums to releases: what is asked of the records, answered with noise."""

import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.events import Event, Gaussian, L2Option, Pure
from pymc_dp.privacy.filter import PrivacyFilter, PureFilter
from pymc_dp.privacy.histogram import PrivateHistogram, noisy_counts, pure_noisy_counts
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import (
    check_bound,
    l2_noisy_total,
    noisy_total,
    poisson_noisy_total,
)
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.queries import CentredIndicator, Query, UnitCount, Vector, is_acute
from pymc_dp.records.sums import RecordSums

_SIZES = "sizes"


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
        self, of: Query, bins_per_octave: int, *, noise_multiplier: float, permit: Permit
    ) -> NDArray[np.float64]:
        """Noisy counts of the units by the size of their terms, shape (bins,).

        **Sensitivity** √κ in L2 norm under the curator's neighbours; **guarantee**: one Gaussian event of
        :func:`~pymc_dp.privacy.histogram.noisy_counts`.
        """
        return noisy_counts(
            lambda: self._records.counts(of, bins_per_octave),
            noise_multiplier=noise_multiplier,
            permit=permit,
            noise=self._noise,
            neighbours=self.neighbours,
        )

    def pure_counts(
        self, of: Query, bins_per_octave: int, *, noise_multiplier: float, permit: Permit
    ) -> NDArray[np.float64]:
        """As :meth:`counts`, with Laplace noise.

        **Sensitivity** κ in L1 norm under the curator's neighbours; **guarantee**: one Pure event of
        :func:`~pymc_dp.privacy.histogram.pure_noisy_counts`.
        """
        return pure_noisy_counts(
            lambda: self._records.counts(of, bins_per_octave),
            noise_multiplier=noise_multiplier,
            permit=permit,
            noise=self._noise,
            neighbours=self.neighbours,
        )


class Measurements(Protocol):
    r"""Noisy answers, paid for by shares of one budget: of a curator, or of several owners.

    Shares are of :math:`\mu^2`, or of ε where the budget is pure. Algorithms that are written against this know of the records nothing but
    the answers.
    """

    @property
    def n_units(self) -> int:
        """Number of units of privacy, if it is public; otherwise :meth:`units` releases it."""
        ...

    @property
    def spent(self) -> float:
        """Share of the budget that is gone."""
        ...

    @property
    def pure(self) -> bool:
        """Whether the budget is ε at δ = 0, so that noise grows with the dimension, and doubles where a share is halved."""
        ...

    def multiplier(self, share: float, dimension: int = 1) -> float:
        """Standard deviation of the noise in an entry / sensitivity, of a sum of so many entries that costs `share`."""
        ...

    def share(self, multiplier: float, dimension: int = 1) -> float:
        """What a sum costs whose :meth:`multiplier` is this: more than 1 if it cannot be had."""
        ...

    def noise_sd(self, bound: float, share: float, dimension: int = 1) -> float:
        """Standard deviation of the noise in every entry of a :meth:`sum` of so many entries."""
        ...

    def count_sd(self, share: float) -> float:
        """Standard deviation of the noise in every bin of a :meth:`histogram`."""
        ...

    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        """Noisy sum of the units' clipped terms, and the noise's standard deviation in each entry."""
        ...

    def units(self, share: float) -> tuple[float, float]:
        """Number of units and the standard deviation of its noise: 0, and nothing is spent, if it is public."""
        ...

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """Noisy histogram of the sizes of the units' terms."""
        ...

    @property
    def before_last_sum(self) -> float:
        """Share that may still be spent before a :meth:`last_sum`: 0 if there can be none."""
        ...

    def last_multiplier(self, dimension: int) -> float:
        """Noise standard deviation in every entry / sensitivity of a :meth:`last_sum`."""
        ...

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        """Noisy sum for all that is left, and the noise's standard deviation in each entry."""
        ...


class _Paid(ABC):
    """What the two kinds of budget have in common."""

    pure: bool

    def __init__(self, curator: Curator, privacy_filter: PrivacyFilter | PureFilter):
        self._curator, self._paid_from = curator, privacy_filter
        self.spent_on: dict[str, float] = {}
        """Shares of the budget by what they were spent on: what sums are about, or sizes, by histograms and counts."""

    @property
    def n_units(self) -> int:
        """See :class:`Measurements`."""
        return self._curator.n_units

    @property
    def spent(self) -> float:
        """See :class:`Measurements`."""
        return self._paid_from.spent

    def close(self) -> tuple[Event, ...]:
        """See :meth:`~pymc_dp.privacy.filter.PrivacyFilter.close`."""
        return self._paid_from.close()

    @abstractmethod
    def multiplier(self, share: float, dimension: int = 1) -> float:
        """See :class:`Measurements`."""

    @abstractmethod
    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        """See :class:`Measurements`."""

    def noise_sd(self, bound: float, share: float, dimension: int = 1) -> float:
        """See :class:`Measurements`."""
        return self._curator.neighbours.noise_sd(bound, self.multiplier(share, dimension))

    def count(self, of: Query, share: float) -> tuple[float, float]:
        """Noisy number of units that are marked with 1, the others with 0; and the noise's standard deviation.

        **Sensitivity** 1 under both relations: of marks of ±1/2 if a unit is replaced, for which the number of
        units has to be public; of marks of 0 and 1 if one comes or goes. **Guarantee**: that of :meth:`sum`.
        """
        if self._curator.neighbours.public_size:
            excess, sd = self.sum(CentredIndicator(of), CentredIndicator.bound, share)
            return float(excess) + self.n_units / 2, sd
        total, sd = self.sum(of, 1.0, share)
        return float(total), sd

    def units(self, share: float) -> tuple[float, float]:
        """See :class:`Measurements`.

        **Sensitivity** 1 under add-or-remove, of a sum with a term of 1 for every unit. **Guarantee**: that of
        :meth:`sum`.
        """
        if self._curator.neighbours.public_size:
            return float(self.n_units), 0.0
        return self.count(UnitCount(), share)

    def _note(self, what: str, share: float) -> None:
        self.spent_on[what] = self.spent_on.get(what, 0.0) + share


class PaidMeasurements(_Paid):
    """What a curator answers for the content of a privacy filter: one home of :class:`Measurements`.

    Parameters
    ----------
    curator : Curator
    privacy_filter : PrivacyFilter
    """

    pure = False

    def __init__(self, curator: Curator, privacy_filter: PrivacyFilter):
        super().__init__(curator, privacy_filter)
        self._filter = privacy_filter

    def multiplier(self, share: float, dimension: int = 1) -> float:
        """See :class:`Measurements`: the same for all dimensions."""
        return self._filter.multiplier(share)

    def share(self, multiplier: float, dimension: int = 1) -> float:
        """See :class:`Measurements`."""
        return (self._filter.multiplier(1.0) / multiplier) ** 2

    def count_sd(self, share: float) -> float:
        """See :class:`Measurements`."""
        return self._curator.neighbours.count_sd(self._filter.multiplier(share))

    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        """See :class:`Measurements`."""
        z, permit = self._filter.permit(share)
        self._note(getattr(of, "about", _SIZES), share)
        released = self._curator.sum(of, bound=bound, noise_multiplier=z, permit=permit)
        return released, self._curator.neighbours.noise_sd(bound, z, is_acute(of))

    @property
    def before_last_sum(self) -> float:
        """See :class:`Measurements`."""
        option = self._filter.option
        return 0.0 if option is None else option.share - self.spent

    def last_multiplier(self, dimension: int) -> float:
        """See :class:`Measurements`."""
        option = self._filter.option
        return math.inf if option is None else option.noise_multiplier * math.sqrt(dimension + 1)

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        """Sum of the units' clipped terms by the ℓ2 mechanism, and the noise's standard deviation in each entry.

        All that is left goes for it: :meth:`~pymc_dp.privacy.filter.PrivacyFilter.exchange`. **Guarantee**: that of
        :meth:`Curator.l2_sum`.

        Raises
        ------
        PrivacyBudgetExceeded
            If it is no longer to be had.
        PrivacyConfigurationError
            If the bound is of no use, or the option is for another dimension. Nothing is spent then.
        """
        check_bound(bound)
        dimension, before = of.dimension or 1, self.spent
        sd = self._curator.neighbours.noise_sd(bound, self.last_multiplier(dimension), is_acute(of))
        z, permit = self._filter.exchange(dimension)
        self._note(getattr(of, "about", _SIZES), 1 - before)
        return self._curator.l2_sum(of, bound=bound, noise_multiplier=z, permit=permit), sd

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """See :class:`Measurements`."""
        z, permit = self._filter.permit(share)
        self._note(_SIZES, share)
        counts = self._curator.counts(of, bins_per_octave, noise_multiplier=z, permit=permit)
        return PrivateHistogram(counts, self._curator.neighbours.count_sd(z), bins_per_octave)


class PureMeasurements(_Paid):
    """What a curator answers for a budget of ε at δ = 0: sums by the ℓ2 mechanism, counts with Laplace noise.

    Parameters
    ----------
    curator : Curator
    privacy_filter : PureFilter
    """

    pure = True

    def __init__(self, curator: Curator, privacy_filter: PureFilter):
        super().__init__(curator, privacy_filter)
        self._filter = privacy_filter

    def multiplier(self, share: float, dimension: int = 1) -> float:
        """See :class:`Measurements`: √(D + 1) / ε, as the variance of an entry is D + 1 times the squared scale."""
        return self._filter.multiplier(share) * math.sqrt(dimension + 1)

    def share(self, multiplier: float, dimension: int = 1) -> float:
        """See :class:`Measurements`."""
        return self.multiplier(1.0, dimension) / multiplier

    def count_sd(self, share: float) -> float:
        """See :class:`Measurements`."""
        return self._curator.neighbours.pure_count_sd(self._filter.multiplier(share))

    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        """See :class:`Measurements`."""
        z, permit = self._filter.permit(share)
        self._note(getattr(of, "about", _SIZES), share)
        released = self._curator.l2_sum(
            of, bound=bound, noise_multiplier=z, permit=permit, pure=True
        )
        scale = self._curator.neighbours.noise_sd(bound, z, is_acute(of))
        return released, scale * math.sqrt((of.dimension or 1) + 1)

    @property
    def before_last_sum(self) -> float:
        """See :class:`Measurements`: none differs from the others."""
        return 0.0

    def last_multiplier(self, dimension: int) -> float:
        """See :class:`Measurements`."""
        return math.inf

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        """See :class:`Measurements`: an ordinary one."""
        return self.sum(of, bound, 1 - self.spent)

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """See :class:`Measurements`."""
        z, permit = self._filter.permit(share)
        self._note(_SIZES, share)
        counts = self._curator.pure_counts(of, bins_per_octave, noise_multiplier=z, permit=permit)
        return PrivateHistogram(counts, self._curator.neighbours.pure_count_sd(z), bins_per_octave)


def measurements_paid_by(
    permit: Permit, whole: Gaussian | Pure, curator: Curator, option: L2Option | None = None
) -> PaidMeasurements | PureMeasurements:
    """What a curator answers for one release, which is used up by it: Gaussian, or pure.

    Parameters
    ----------
    permit : Permit
        Covers `whole`, with the option.
    whole : Gaussian or Pure
    curator : Curator
    option : L2Option, optional
        What the rest of a Gaussian release may be exchanged for.
    """
    if isinstance(whole, Pure):
        return PureMeasurements(curator, PureFilter(permit, whole.epsilon))
    return PaidMeasurements(curator, PrivacyFilter(permit, whole.noise_multiplier, option))
