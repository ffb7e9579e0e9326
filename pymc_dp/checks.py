"""Checks of numbers that users give, with errors that name the argument."""

import math
from typing import Any

import numpy as np

from pymc_dp.exceptions import PrivacyConfigurationError


def positive(name: str, value: Any) -> float:
    """`value` as a float, if it is positive and finite."""
    if not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
        raise PrivacyConfigurationError(f"`{name}` must be a positive number. Found {value!r}.")
    return float(value)


def fraction(name: str, value: Any, *, one_allowed: bool = False) -> float:
    """`value` as a float, if it lies between 0 and 1."""
    inside = isinstance(value, int | float | np.number) and 0 < value < 1
    if not (inside or (one_allowed and value == 1)):
        raise PrivacyConfigurationError(
            f"`{name}` must lie between 0 and 1{'' if one_allowed else ', both excluded'}. "
            f"Found {value!r}."
        )
    return float(value)


def whole(name: str, value: Any, minimum: int) -> int:
    """`value` as an int, if it is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise PrivacyConfigurationError(
            f"`{name}` must be a whole number, {minimum} or more. Found {value!r}."
        )
    return int(value)
