"""Checks of the numbers that users give: one rule for each kind, and errors that name the argument.

NumPy's numbers are numbers; a truth value is none, although Python says so. What is returned is a plain
``float`` or ``int``.
"""

import math
from typing import Any

import numpy as np

from pymc_dp.exceptions import PrivacyConfigurationError

MIN_RATE = 1e-7
"""Smallest rate that :func:`~pymc_dp.privacy.subsampling.poisson_sample` can draw exactly enough."""

_NUMBERS = int, float, np.integer, np.floating
# They pass for integers all the same.
_NO_NUMBERS = bool, np.timedelta64


def positive(name: str, value: Any, *, zero_allowed: bool = False) -> float:
    """`value` as a float, if it is positive and finite."""
    number = _as_float(value)
    if not (0 < number < math.inf or (zero_allowed and number == 0)):
        wanted = "finite number, zero or more" if zero_allowed else "positive number"
        raise PrivacyConfigurationError(f"`{name}` must be a {wanted}. Found {value!r}.")
    return number


def fraction(
    name: str, value: Any, *, zero_allowed: bool = False, one_allowed: bool = False
) -> float:
    """`value` as a float, if it lies between 0 and 1."""
    number = _as_float(value)
    if not (0 < number < 1 or (zero_allowed and number == 0) or (one_allowed and number == 1)):
        wanted = "between 0 and 1, both excluded"
        if zero_allowed or one_allowed:
            wanted = "0 or more, and below 1" if zero_allowed else "above 0 and at most 1"
        raise PrivacyConfigurationError(f"`{name}` must be a number {wanted}. Found {value!r}.")
    return number


def whole(name: str, value: Any, minimum: int) -> int:
    """`value` as an int, if it is a whole number of at least `minimum`."""
    if not is_whole(value, minimum):
        raise PrivacyConfigurationError(
            f"`{name}` must be a whole number, {minimum} or more. Found {value!r}."
        )
    return int(value)


def is_whole(value: Any, minimum: int) -> bool:
    """Whether `value` is a whole number of at least `minimum`."""
    return (
        isinstance(value, int | np.integer)
        and not isinstance(value, _NO_NUMBERS)
        and bool(value >= minimum)
    )


def check_epsilon(epsilon: Any) -> float:
    """`epsilon` as a float, if it is positive (infinity included)."""
    number = _as_float(epsilon)
    if not number > 0:
        raise PrivacyConfigurationError(f"`epsilon` must be a positive number. Found {epsilon!r}.")
    return number


def check_delta(delta: Any, *, zero_allowed: bool = False) -> float:
    """`delta` as a float, if it lies strictly between 0 and 1, or is 0 where pure privacy is meant by that."""
    return fraction("delta", delta, zero_allowed=zero_allowed)


def check_rate(name: str, rate: Any) -> float:
    """`rate` as a float, if it can be sampled with."""
    number = _as_float(rate)
    if not MIN_RATE <= number <= 1:
        raise PrivacyConfigurationError(
            f"`{name}` must be a number between {MIN_RATE:g} and 1. Found {rate!r}."
        )
    return number


def _as_float(value: Any) -> float:
    """`value` as a float; NaN, which is in no range, if it is not a number."""
    if isinstance(value, _NO_NUMBERS) or not isinstance(value, _NUMBERS):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats
        return math.inf if value > 0 else -math.inf
