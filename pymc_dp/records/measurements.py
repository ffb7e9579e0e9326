"""What is asked of the records, answered with noise and paid for by shares of one budget."""

import math
from abc import ABC, abstractmethod
from typing import Protocol

from pymc_dp.privacy.events import Event, Gaussian, L2Option, Pure
from pymc_dp.privacy.filter import PrivacyFilter, PureFilter
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.privacy.noisy_sum import check_bound
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.queries import CentredIndicator, Query, UnitCount, Vector, is_acute

_SIZES = "sizes"


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

    def last_noise_sd(self, bound: float, dimension: int, acute: bool = False) -> float:
        """Standard deviation of the noise in each entry of a :meth:`last_sum`."""
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

    def last_noise_sd(self, bound: float, dimension: int, acute: bool = False) -> float:
        """See :class:`Measurements`."""
        option = self._filter.option
        if option is None:
            return math.inf
        z = option.noise_multiplier * math.sqrt(dimension + 1)
        return self._curator.neighbours.noise_sd(bound, z, acute)

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
        sd = self.last_noise_sd(bound, dimension, is_acute(of))
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

    def last_noise_sd(self, bound: float, dimension: int, acute: bool = False) -> float:
        """See :class:`Measurements`."""
        return math.inf

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        """See :class:`Measurements`: an ordinary one."""
        return self.sum(of, bound, 1 - self.spent)

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """See :class:`Measurements`."""
        z, permit = self._filter.permit(share)
        self._note(_SIZES, share)
        counts = self._curator.counts(
            of, bins_per_octave, noise_multiplier=z, permit=permit, pure=True
        )
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
