"""One release, Gaussian or pure, paid for in advance and spent in parts that are decided on the way."""

import math
import os
from threading import Lock
from typing import Any

from pymc_dp.exceptions import PrivacyBudgetExceeded
from pymc_dp.privacy.events import Event, Gaussian, L2Mechanism, Pure
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
    """What is spent of a release that was paid for: never more than the whole, by nobody else.

    What is spent is kept in memory. So only the process that opened a filter can spend from it, one part after
    the other: a forked copy would spend the same money again.
    """

    def __init__(self, permit: Permit, whole: Gaussian | Pure):
        self._slot, _, _ = permit.take(whole)
        self._whole = whole
        self._parts = 0
        self._process, self._one_at_a_time = os.getpid(), Lock()
        self.spent = 0.0
        """Share of the filter that is gone."""

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
        return (part_of(self._whole, min(max(spent, LEAST_SHARE), 1.0)),)

    def _pay(self, share: float) -> int:
        """Take a share; the number of the iteration that it is for."""
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
            return _FIRST + self._parts


class PrivacyFilter(_Filter):
    r"""Divides a paid-for Gaussian release among several, each chosen after seeing the earlier ones.

    With multipliers :math:`z_j` of the parts, :math:`\sum_j 1/z_j^2 \le 1/z^2` is kept at every
    moment, so that all parts together are :math:`1/z`-GDP although their number and their noise
    depend on what was released before: a filter (Smith and Thakurta, 2022, Theorem 1). Shares are of :math:`1/z^2`.

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
        super().__init__(permit, Gaussian(noise_multiplier))
        self._z = noise_multiplier

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
        super().__init__(permit, Pure(epsilon))
        self._epsilon = epsilon

    def multiplier(self, share: float) -> float:
        """Noise multiplier z of a release that costs `share`: 1 / ε of that release."""
        return 1 / (self._epsilon * share)

    def permit(self, share: float, dimension: int | None = None) -> tuple[float, Permit]:
        """Pay for one release with `share` of ε: its multiplier, and a permit for it.

        Parameters
        ----------
        share : float
        dimension : int, optional
            Of a vector, for the ℓ2 mechanism. Without, the permit is for counts with discrete Laplace noise.

        Raises
        ------
        PrivacyBudgetExceeded
            As :meth:`PrivacyFilter.permit`.
        """
        part = self._pay(share)
        z = self.multiplier(share) * (1 + 2 * _ROUNDING)
        event = Pure(1 / z) if dimension is None else L2Mechanism(z, dimension)
        return z, Permit(self._slot, part, (event,))
