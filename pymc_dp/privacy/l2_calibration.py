"""From a budget (ε, δ) to noise multipliers of the ℓ2 mechanism, alone or as an option of a Gaussian release."""

import math
from collections.abc import Callable
from functools import cache

from scipy import optimize

from pymc_dp.checks import check_delta, check_epsilon
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Event, L2Mechanism, L2Option

# Of δ, for the Gaussian releases if they are not exchanged. Half makes their noise 3 to 5 % larger and that of the ℓ2
# mechanism by 0.7 % at most (d = 1 to 10, ε = 0.3 to 3, shares of 0.1 and 0.2); nine tenths, 0.7 and up to 12 %.
_UNEXCHANGED = 0.5

# Of the logarithm of a multiplier: between looks for the one that is enough, and of what is found.
_STEP, _TOLERANCE = 0.3, 1e-7


def calibrate_l2(*, epsilon: float, delta: float, dimension: int) -> float:
    """Noise multiplier z with which one release by the ℓ2 mechanism costs at most (ε, δ).

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 ≤ δ < 1.
    dimension : int
        d, the length of the vector that is released.

    Returns
    -------
    float
        Scale of the noise / L2 sensitivity; the standard deviation of an entry is √(d + 1) times that. It is the
        smallest, to a relative 1e-6, with a reported ε that is not above `epsilon`.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range.

    Examples
    --------
    >>> round(calibrate_l2(epsilon=1.0, delta=1e-6, dimension=5), 3)
    0.986
    >>> round(calibrate_l2(epsilon=1.0, delta=0.0, dimension=5), 3)
    1.0
    """
    return _with_least_noise(lambda z: (L2Mechanism(z, dimension),), epsilon, delta)


def calibrate_with_l2(
    *, epsilon: float, delta: float, dimension: int, share: float
) -> tuple[float, float]:
    """Noise multipliers of a Gaussian release and of what may take the place of its rest, within (ε, δ).

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 < δ < 1.
    dimension : int
        d, the length of the vector that the ℓ2 mechanism releases.
    share : float
        How much of the Gaussian release, in shares of its 1/z², may be spent before that; 0 ≤ share < 1.

    Returns
    -------
    gaussian, l2 : float
        z of a Gaussian release, and of the :class:`~pymc_dp.privacy.events.L2Option` that goes with it. The ε reported for
        both together is never above `epsilon`.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range.

    Notes
    -----
    The Gaussian release alone gets half of δ, which it hardly feels.

    Examples
    --------
    >>> z, l2 = calibrate_with_l2(epsilon=1.0, delta=1e-6, dimension=5, share=0.1)
    >>> round(z, 2), round(l2, 2)
    (4.37, 1.19)
    """
    z = calibrate_noise(epsilon=epsilon, delta=_UNEXCHANGED * check_delta(delta), releases=1)
    return z, _with_least_noise(lambda l2: L2Option(l2, dimension, share).events(z), epsilon, delta)


def _with_least_noise(
    events: Callable[[float], tuple[Event, ...]], epsilon: float, delta: float
) -> float:
    """Smallest multiplier with which `events` are within (ε, δ), given that some is."""
    epsilon = check_epsilon(epsilon)
    if math.isinf(epsilon):
        return 0.0

    @cache
    def excess(log_z: float) -> float:
        # Nearly a straight line: few composed ε are enough.
        return math.log(max(composed_epsilon(events(math.exp(log_z)), delta) / epsilon, 1e-9))

    low = high = -math.log(epsilon)
    while excess(high) > 0:
        low, high = high, high + _STEP
    while excess(low) <= 0:
        low, high = low - _STEP, low
    log_z = optimize.brentq(excess, low, high, xtol=_TOLERANCE) + _TOLERANCE
    while excess(log_z) > 0:
        log_z += _TOLERANCE
    return math.exp(log_z)
