"""One release, Gaussian or pure, paid for in advance and spent in parts that are decided on the way."""

import math
import os
from threading import Lock
from typing import Any

from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.events import Event, Gaussian, L2Option, Pure
from pymc_dp.privacy.plans import Permit

# Parts of a privacy filter have iteration numbers beyond those of any chain: their noise must differ.
_FIRST = 2**40
_ROUNDING = 1e-9

LEAST_SHARE = 1e-6
"""A smaller part could be lost in the sum of floats, and be had for nothing; a million of these round by 1e-10."""


def part_of(whole: Gaussian | Pure, share: float) -> Gaussian | Pure:
    """What a share of a release amounts to: of :math:`1/z^2`, or of ε."""
    if isinstance(whole, Pure):
        return Pure(whole.epsilon * share)
    return Gaussian(whole.noise_multiplier / math.sqrt(share))


class _Filter:
    """Parts of a whole that are taken one after the other, in one process, and never more than all of it.

    What is spent is kept in memory. So only the process that opened a privacy filter can spend from it, one part after
    the other: a forked copy would spend the same money again.
    """

    def __init__(self, permit: Permit, whole: Gaussian | Pure, events: tuple[Event, ...]):
        for event in events:
            self._slot, _, _ = permit.take(event)
        self._whole = whole
        self._parts = 0
        self._process, self._one_at_a_time = os.getpid(), Lock()
        self.spent = 0.0
        """Share of the privacy filter that is gone."""

    def __copy__(self, *_: Any) -> Any:
        """Refused: a copy would spend the same money again."""
        raise TypeError("A privacy filter is spent once, and cannot be copied.")

    __deepcopy__ = __reduce__ = __copy__

    def close(self) -> tuple[Event, ...]:
        """Give out nothing more, and say what was, as the release that it amounts to: at least that of the least share."""
        with self._one_at_a_time:
            spent, self.spent = self.spent, math.inf
        return () if spent == math.inf else self._released(spent)

    def _released(self, spent: float) -> tuple[Event, ...]:
        return (part_of(self._whole, min(max(spent, LEAST_SHARE), 1.0)),)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PrivacyBudgetExceeded(
                "The rest of this budget can only be spent in the process that has spent the beginning."
            )

    def _pay(self, share: float) -> int:
        """Take a share: the number of the iteration that its permit is for."""
        self._check_process()
        with self._one_at_a_time:
            if not LEAST_SHARE <= share <= 1 - self.spent + _ROUNDING:
                raise PrivacyBudgetExceeded(
                    f"A share of {share:.3g} was asked for, but {1 - self.spent:.3g} of the run's "
                    "budget is left."
                )
            self.spent += share
            return self._next()

    def _next(self) -> int:
        self._parts += 1
        return _FIRST + self._parts


class PrivacyFilter(_Filter):
    r"""Divides a paid-for Gaussian release among several, each chosen after seeing the earlier ones.

    With multipliers :math:`z_j` of the parts, :math:`\sum_j 1/z_j^2 \le 1/z^2` is kept at every
    moment, so that all parts together are :math:`1/z`-GDP although their number and their noise
    depend on what was released before: a filter (Smith and Thakurta, 2022, Theorem 1). Shares are of :math:`1/z^2`.

    With an `option`, what is left may be exchanged, once, for one release by the ℓ2 mechanism, as long as no more than
    the option's share is spent. That share is fixed before the first part, so that the parts up to it compose with
    whatever comes after (see the page of the ℓ2 mechanism); the parts beyond it and the exchange exclude each other.

    Parameters
    ----------
    permit : Permit
        Covers one ``Gaussian(noise_multiplier)``, or the option's :meth:`~pymc_dp.privacy.events.L2Option.events`,
        which are used up here.
    noise_multiplier : float
        z.
    option : L2Option, optional

    Raises
    ------
    PrivacyBudgetExceeded
        If the permit does not cover it.
    """

    def __init__(self, permit: Permit, noise_multiplier: float, option: L2Option | None = None):
        whole = Gaussian(noise_multiplier)
        super().__init__(
            permit, whole, (whole,) if option is None else option.events(noise_multiplier)
        )
        self._z, self._option = noise_multiplier, option
        self._before_exchange: float | None = None

    def _released(self, spent: float) -> tuple[Event, ...]:
        if self._before_exchange is None or self._option is None:
            return super()._released(spent)
        before = self._before_exchange
        return (*(super()._released(before) if before else ()), self._option.release)

    def multiplier(self, share: float, count: int = 1) -> float:
        """Noise multiplier of `count` releases that cost `share` of the privacy filter together."""
        return self._z * math.sqrt(count / share) if self._z > 0 else 0.0

    def permit(self, share: float, count: int = 1) -> tuple[float, Permit]:
        """Pay for `count` releases with `share` of the privacy filter: their multiplier and permit.

        Raises
        ------
        PrivacyBudgetExceeded
            If that much is not left, if it is less than :data:`LEAST_SHARE`, or if this is a copy of the
            privacy filter in another process.
        """
        part = self._pay(share)
        # The tolerance for what is left must not let the parts add up to more than the whole.
        z = self.multiplier(share, count) * (1 + 2 * _ROUNDING)
        return z, Permit(self._slot, part, (Gaussian(z, count),))

    @property
    def option(self) -> L2Option | None:
        """What may be had for the rest, if it still may."""
        option = self._option
        # Every part has a hair more noise than its share says: see above.
        within = option is not None and self.spent <= option.share * (1 + _ROUNDING)
        return option if within and self._before_exchange is None else None

    def exchange(self, dimension: int) -> tuple[float, Permit]:
        """Pay for the one release by the ℓ2 mechanism with all that is left: its multiplier and permit.

        Parameters
        ----------
        dimension : int
            Of what is to be released.

        Raises
        ------
        PrivacyBudgetExceeded
            If there is no such option or no longer, or if this is a copy of the privacy filter in another process.
        PrivacyConfigurationError
            If it is for another dimension. Nothing is spent then.
        """
        self._check_process()
        with self._one_at_a_time:
            option = self.option
            if option is None:
                raise PrivacyBudgetExceeded(
                    "The rest of this budget cannot be exchanged for a release by the ℓ2 mechanism: it never could, it has "
                    "been, or too much of it is spent."
                )
            if dimension != option.dimension:
                raise PrivacyConfigurationError(
                    f"The rest of this budget is for a release of {option.dimension} numbers. Found {dimension!r}."
                )
            self._before_exchange, self.spent = self.spent, 1.0
            part = self._next()
        return option.noise_multiplier, Permit(self._slot, part, (option.release,))


class PureFilter(_Filter):
    r"""Divides a paid-for ε among several releases, each pure, and chosen after seeing the earlier ones.

    With :math:`\varepsilon_j` of the parts, :math:`\sum_j \varepsilon_j \le \varepsilon` is kept at every moment, so that
    all parts together are ε-differentially private although their number and their noise depend on what was released before:
    simple composition is a filter (Rogers, Roth, Ullman and Vadhan, 2016). Shares are of ε.

    Parameters
    ----------
    permit : Permit
        Covers one ``Pure(epsilon)``, which is used up here.
    epsilon : float
        ε.

    Raises
    ------
    PrivacyBudgetExceeded
        If the permit does not cover it.
    """

    def __init__(self, permit: Permit, epsilon: float):
        whole = Pure(epsilon)
        super().__init__(permit, whole, (whole,))
        self._epsilon = epsilon

    def multiplier(self, share: float) -> float:
        """Noise multiplier z of a release that costs `share`: 1 / ε of that release."""
        return 1 / (self._epsilon * share)

    def permit(self, share: float) -> tuple[float, Permit]:
        """Pay for one release with `share` of ε: its multiplier z, and a permit for ``Pure(1 / z)``.

        Raises
        ------
        PrivacyBudgetExceeded
            As :meth:`PrivacyFilter.permit`.
        """
        part = self._pay(share)
        # As there.
        z = self.multiplier(share) * (1 + 2 * _ROUNDING)
        return z, Permit(self._slot, part, (Pure(1 / z),))
