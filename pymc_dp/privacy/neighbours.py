"""Which data sets count as neighbours, and how far one unit then moves what is released."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.clipping import MAX_DIMENSION, RESOLUTION
from pymc_dp.privacy.events import Event, Gaussian, GaussianOrL2, L2Mechanism, Pure

_TRUNCATED = 1 + math.sqrt(MAX_DIMENSION) / RESOLUTION + 2.0**-48
r"""Above :math:`\sqrt{1 + 2 \sqrt D / R + 2^{-48}}` for any D that a unit's term may have; the last part is for rounding."""


LAPLACE_TAIL = 1.7
"""Beyond 4 sds normal noise is in 6 cases of 100,000, Laplace noise beyond 4 · 1.7."""


@dataclass(frozen=True)
class Neighbours:
    r"""A neighbouring relation, and the sensitivities of sums and counts under it.

    Parameters
    ----------
    name : str
        As users write it.
    terms : int
        κ, how many terms of a sum over the units differ between neighbours at most: the old and the new one
        of a unit that is replaced, or that of the one unit that only one of them has.
    public_size : bool
        Whether neighbours have the same number of units, so that it may be told.
    """

    name: str
    terms: int
    public_size: bool

    def of_sum(self, bound: float) -> float:
        """L2 sensitivity κB of a sum of terms of norm `bound` at most, by the triangle inequality."""
        return self.terms * bound

    @property
    def of_counts(self) -> float:
        """L2 sensitivity √κ of counts in bins of which each unit is in one: κ bins change by 1."""
        return math.sqrt(self.terms)

    def of_acute_sum(self, bound: float) -> float:
        r"""L2 sensitivity :math:`\sqrt\kappa B` of a sum of terms of which no two have a negative inner product.

        :math:`|v - v'|^2 = |v|^2 + |v'|^2 - 2 v^\top v' \le 2 B^2`; and a hair more, for what is left of that
        when entries are :func:`truncated <pymc_dp.privacy.clipping.add_clipped>` to whole numbers of R: an
        inner product of two images is not below :math:`-2 R \sqrt D`, D the number of entries that a unit's term may have.
        """
        return math.sqrt(self.terms) * bound * _TRUNCATED

    def noise_sd(self, bound: float, noise_multiplier: float, acute: bool = False) -> float:
        """Standard deviation of the noise in a sum of terms clipped to `bound`: z times its sensitivity."""
        return noise_multiplier * (self.of_acute_sum(bound) if acute else self.of_sum(bound))

    def count_sd(self, noise_multiplier: float) -> float:
        """Standard deviation of the noise in each of the counts by bin: z times their sensitivity."""
        return noise_multiplier * self.of_counts

    def pure_count_sd(self, noise_multiplier: float) -> float:
        """The same of Laplace noise, of which the scale is z times the L1 sensitivity κ: as far as it can be taken for normal.

        It is that of the normal noise of which as little is beyond four of its standard deviations.
        """
        return LAPLACE_TAIL * math.sqrt(2) * noise_multiplier * self.terms

    def public_number(self, units: int) -> int:
        """`units`, the number of units, if it may be used.

        Raises
        ------
        PrivacyConfigurationError
            If it is private.
        """
        if not self.public_size:
            raise PrivacyConfigurationError(
                f'With `neighbours="{self.name}"` the number of units is private: what depends on it has '
                "to be released with noise."
            )
        return units

    def check(self, events: Iterable[Event]) -> None:
        """Refuse releases whose cost is not proved under this relation.

        Noise that is added to a sum knows nothing of neighbours but the sum's sensitivity. Samples and batches are
        proved under substitution alone: the pairs of distributions that dominate are others when a unit comes or goes.

        Raises
        ------
        PrivacyConfigurationError
        """
        known = Gaussian | L2Mechanism | GaussianOrL2 | Pure
        others = {type(e).__name__ for e in events if not isinstance(e, known)}
        if others and not self.public_size:
            raise PrivacyConfigurationError(
                f'`neighbours="{self.name}"` is for Gaussian, ℓ2 and pure releases about all units. Found '
                f"{', '.join(sorted(others))}. For samples of the units, use "
                f'`neighbours="{SUBSTITUTE_ONE.name}"`.'
            )

    def under_substitution(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Releases, with multipliers that hold when a unit is replaced.

        Replacing a unit is removing one and adding one, so that releases which are μ-Gaussian-DP together
        are 2μ-Gaussian-DP then (group privacy; Dong, Roth and Su, 2022), and what noise of the ℓ2 mechanism is
        added to moves twice as far; of pure ones ε doubles (the definition twice).

        Raises
        ------
        PrivacyConfigurationError
            If there are others, and that is not known.
        """
        events = tuple(events)
        self.check(events)
        return events if self.public_size else tuple(map(_with_half_the_noise, events))


def _with_half_the_noise(event: Event) -> Event:
    match event:
        case Gaussian() | L2Mechanism():
            return replace(event, noise_multiplier=event.noise_multiplier / 2)
        case GaussianOrL2(z, l2):
            return replace(event, gaussian_multiplier=z / 2, l2_multiplier=l2 / 2)
        case Pure():
            return replace(event, epsilon=2 * event.epsilon)
    raise TypeError(type(event).__name__)


SUBSTITUTE_ONE = Neighbours("substitute-one", 2, True)
ADD_OR_REMOVE = Neighbours("add-or-remove", 1, False)

_BY_NAME = {each.name: each for each in (SUBSTITUTE_ONE, ADD_OR_REMOVE)}


def neighbours_named(name: Any) -> Neighbours:
    """The relation of that name.

    Raises
    ------
    PrivacyConfigurationError
        If there is none.
    """
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise PrivacyConfigurationError(
            f"`neighbours` must be {' or '.join(map(repr, _BY_NAME))}. Found {name!r}."
        )
    return found
