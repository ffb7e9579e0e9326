"""One Gaussian release, paid for in advance and spent in parts that are decided on the way."""

import math
import os
from threading import Lock
from typing import Any

from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.events import Event, Gaussian, L2Option
from pymc_dp.privacy.plans import Permit

# Parts of a privacy filter have iteration numbers beyond those of any chain: their noise must differ.
_FIRST = 2**40
_ROUNDING = 1e-9

LEAST_SHARE = 1e-6
"""A smaller part could be lost in the sum of floats, and be had for nothing; a million of these round by 1e-10."""


class PrivacyFilter:
    r"""Divides a paid-for Gaussian release among several, each chosen after seeing the earlier ones.

    With multipliers :math:`z_j` of the parts, :math:`\sum_j 1/z_j^2 \le 1/z^2` is kept at every
    moment, so that all parts together are :math:`1/z`-GDP although their number and their noise
    depend on what was released before: a filter (Smith and Thakurta, 2022, Theorem 1).

    With an `option`, what is left may be exchanged, once, for one release by the ℓ2 mechanism, as long as no more than
    the option's share is spent. That share is fixed before the first part, so that the parts up to it compose with
    whatever comes after (see the page of the ℓ2 mechanism); the parts beyond it and the exchange exclude each other.

    What is spent is kept in memory. So only the process that opened a privacy filter can spend from it, one part after
    the other: a forked copy would spend the same money again.

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
        events = (
            (Gaussian(noise_multiplier),) if option is None else option.events(noise_multiplier)
        )
        for event in events:
            self._slot, _, _ = permit.take(event)
        self._z, self._option = noise_multiplier, option
        self._parts = 0
        self._before_exchange: float | None = None
        self._process, self._one_at_a_time = os.getpid(), Lock()
        self.spent = 0.0
        """Share of the privacy filter that is gone, of :math:`1/z^2`."""

    def __copy__(self, *_: Any) -> Any:
        """Refused: a copy would spend the same money again."""
        raise TypeError("A privacy filter is spent once, and cannot be copied.")

    __deepcopy__ = __reduce__ = __copy__

    def close(self) -> tuple[Event, ...]:
        """Give out nothing more, and say what was, as the release that it amounts to: at least that of the least share."""
        with self._one_at_a_time:
            spent, self.spent = self.spent, math.inf
        if spent == math.inf:
            return ()
        exchanged: tuple[Event, ...] = ()
        if self._before_exchange is not None and self._option is not None:
            spent, exchanged = self._before_exchange, (self._option.release,)
        if exchanged and spent == 0:
            return exchanged
        return Gaussian(self._z / math.sqrt(min(max(spent, LEAST_SHARE), 1.0))), *exchanged

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
        self._check_process()
        with self._one_at_a_time:
            if not LEAST_SHARE <= share <= 1 - self.spent + _ROUNDING:
                raise PrivacyBudgetExceeded(
                    f"A share of {share:.3g} was asked for, but {1 - self.spent:.3g} of the run's "
                    "budget is left."
                )
            self.spent += share
            # The tolerance above must not let the parts add up to more than the whole.
            z = self.multiplier(share, count) * (1 + 2 * _ROUNDING)
            return z, self._next(Gaussian(z, count))

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
            return option.noise_multiplier, self._next(option.release)

    def _next(self, event: Event) -> Permit:
        self._parts += 1
        return Permit(self._slot, _FIRST + self._parts, (event,))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PrivacyBudgetExceeded(
                "The rest of this budget can only be spent in the process that has spent the beginning."
            )
