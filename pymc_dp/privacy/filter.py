"""One Gaussian release, paid for in advance and spent in parts that are decided on the way."""

import math
import os
from threading import Lock
from typing import Any

from pymc_dp.exceptions import PrivacyBudgetExceeded
from pymc_dp.privacy.events import Event, Gaussian
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

    What is spent is kept in memory. So only the process that opened a privacy filter can spend from it, one part after
    the other: a forked copy would spend the same money again.

    Parameters
    ----------
    permit : Permit
        Covers one ``Gaussian(noise_multiplier)``, which is used up here.
    noise_multiplier : float
        z.

    Raises
    ------
    PrivacyBudgetExceeded
        If the permit does not cover it.
    """

    def __init__(self, permit: Permit, noise_multiplier: float):
        self._slot, _, _ = permit.take(Gaussian(noise_multiplier))
        self._z = noise_multiplier
        self._parts = 0
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
        return (Gaussian(self._z / math.sqrt(min(max(spent, LEAST_SHARE), 1.0))),)

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
        if os.getpid() != self._process:
            raise PrivacyBudgetExceeded(
                "The rest of this budget can only be spent in the process that has spent the beginning."
            )
        with self._one_at_a_time:
            if not LEAST_SHARE <= share <= 1 - self.spent + _ROUNDING:
                raise PrivacyBudgetExceeded(
                    f"A share of {share:.3g} was asked for, but {1 - self.spent:.3g} of the run's "
                    "budget is left."
                )
            self.spent += share
            self._parts += 1
            part = self._parts
        # The tolerance above must not let the parts add up to more than the whole.
        z = self.multiplier(share, count) * (1 + 2 * _ROUNDING)
        return z, Permit(self._slot, _FIRST + part, (Gaussian(z, count),))
