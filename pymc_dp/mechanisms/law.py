"""The law of the noise in a release, and what it guarantees."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from pymc_dp.checks import check_delta, check_epsilon, fraction, positive
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.accounting import gaussian_epsilon
from pymc_dp.privacy.calibration import calibrate_noise

Family = Literal["laplace", "gaussian"]

MIN_DISCRETE_GAUSSIAN_SCALE = 0.5
"""Below it the discrete Gaussian differs so much from the Gaussian that it is not accounted for."""


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    r"""Independent noise of one scale in every entry of a sum over records.

    Parameters
    ----------
    family : {"laplace", "gaussian"}
        Density proportional to :math:`e^{-|k|/b}`, or to :math:`e^{-k^2/2\sigma^2}`.
    discrete : bool
        Noise on the integers, or on the real line.
    scale : ndarray
        b or σ; of the statistic's shape, or one number for all entries.
    sensitivity : float or None
        How far the sum can move when one record is replaced, in L1 norm for Laplace noise and in
        L2 norm for Gaussian noise. None if not declared.
    epsilon, delta : float or None
        The guarantee of the release; None if it does not follow from what was declared. δ is 0
        for Laplace noise.
    """

    family: Family
    discrete: bool
    scale: NDArray[np.float64]
    sensitivity: float | None
    epsilon: float | None
    delta: float | None

    @property
    def name(self) -> str:
        """Such as "discrete laplace"."""
        return f"discrete {self.family}" if self.discrete else self.family


def noise_law(
    name: str,
    family: Family,
    discrete: bool,
    *,
    delta: float | None = None,
    sensitivity: float | None = None,
    zero: bool = False,
    **said: Any,
) -> NoiseLaw:
    """The noise law from what was said of its size, or from a budget and a sensitivity.

    Parameters
    ----------
    name : str
        The release, for error messages.
    family, discrete
        See :class:`NoiseLaw`.
    delta, sensitivity : float, optional
    zero : bool
        Whether entries may be without noise: public totals.
    **said
        One of `scale`, `variance`, `standard_error`, `margin_of_error`, or one of `epsilon`, `rho` and `mu` with
        `sensitivity` (Gaussian noise of an ε: and `delta`). A scale with a `sensitivity` (Gaussian noise:
        and `delta`) tells the ε.

    Raises
    ------
    PrivacyConfigurationError
        If they are missing, contradictory, unknown or out of range.
    """
    said = {key: value for key, value in said.items() if value is not None or key not in _SAID}
    for key in said:
        if key not in _SAID:
            instead = _HINTS.get(key) or next(iter(get_close_matches(key, _SAID)), None)
            hint = f" Did you mean `{instead}`?" if instead else ""
            raise PrivacyConfigurationError(
                f"{name!r}: there is no argument `{key}`.{hint} The noise is said by one of {_listed(_SAID)}."
            )
    if sensitivity is not None:
        sensitivity = _of(name, positive, "sensitivity", sensitivity)
    if delta is not None:
        delta = _of(name, check_delta, delta)
        if family == "laplace":
            raise PrivacyConfigurationError(
                f"{name!r}: Laplace noise has no `delta`; leave it out, or use Gaussian noise."
            )
    if len(said) != 1:
        raise PrivacyConfigurationError(
            f"{name!r}: give one of {_listed(_SAID)}: how large the noise is, or with `sensitivity` the budget "
            f"from which it follows. Found {_listed(said) if said else 'none'}."
        )
    ((key, value),) = said.items()
    epsilon = _of(name, check_epsilon, value) if key == "epsilon" else None
    if key in _BUDGETS:
        value = _scale_of_budget(name, family, discrete, key, value, delta, sensitivity)
    elif key != "scale":
        value = _scale_of_spread(name, family, discrete, key, value)
    array = _scale(name, key, value, zero)
    if epsilon is None and sensitivity is not None and array.ndim == 0 and array > 0:
        z = float(array) / sensitivity
        if family == "laplace":
            epsilon = 1 / z
        elif delta is not None:
            charged = charged_multiplier(z, array) if discrete else z
            epsilon = float(gaussian_epsilon(1 / charged, delta))
    if (
        discrete
        and family == "gaussian"
        and ((array > 0) & (array < MIN_DISCRETE_GAUSSIAN_SCALE)).any()
    ):
        raise PrivacyConfigurationError(
            f"{name!r}: discrete Gaussian noise needs a `scale` of at least "
            f"{MIN_DISCRETE_GAUSSIAN_SCALE}. Found {float(array.min()):g}. Use discrete Laplace noise."
        )
    return NoiseLaw(
        family, discrete, array, sensitivity, epsilon, 0.0 if family == "laplace" else delta
    )


_BUDGETS = ("epsilon", "rho", "mu")
_SAID = ("scale", "variance", "standard_error", "margin_of_error", *_BUDGETS)
_HINTS = {"sigma": "scale", "b": "scale", "sd": "standard_error", "std": "standard_error",
          "se": "standard_error", "moe": "margin_of_error", "var": "variance"}  # fmt: skip


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _scale_of_budget(
    name: str,
    family: Family,
    discrete: bool,
    key: str,
    budget: Any,
    delta: float | None,
    sensitivity: float | None,
) -> float:
    """Scale of the noise that a budget buys at a sensitivity."""
    if key == "epsilon":
        budget = _of(name, check_epsilon, budget)
        if math.isinf(budget):
            raise PrivacyConfigurationError(
                f"{name!r}: an infinite `epsilon` means no noise, and then there is nothing to infer."
            )
    else:
        budget = _of(name, positive, key, budget)
        if family == "laplace":
            raise PrivacyConfigurationError(
                f"{name!r}: `{key}` is a budget of Gaussian noise. Laplace noise has an `epsilon`."
            )
    if sensitivity is None:
        raise PrivacyConfigurationError(
            f"{name!r}: `{key}` needs `sensitivity`, the largest change of the statistic when "
            "one record is replaced (see `sum_sensitivity` and `second_moments_sensitivity` in `pymc_dp.statistics`)."
        )
    if key == "rho":  # of discrete noise, too
        return sensitivity / math.sqrt(2 * budget)
    if key == "mu":
        scale = sensitivity / budget
    else:
        scale = sensitivity * noise_per_sensitivity(name, family, budget, delta)
    return scale * _discrete_gaussian_factor(scale) if family == "gaussian" and discrete else scale


def _scale_of_spread(name: str, family: Family, discrete: bool, key: str, spread: Any) -> Any:
    """Scale of noise that has this variance, standard error or margin of error."""
    if key == "margin_of_error":
        if not (isinstance(spread, tuple) and len(spread) == 2):
            raise PrivacyConfigurationError(
                f"{name!r}: `margin_of_error` is the margin and its level, such as (12, 0.9) at the 90 % of the "
                f"United States Census Bureau. Found {spread!r}."
            )
        spread, level = spread
        level = _of(name, fraction, "level of `margin_of_error`", level)
        spread = _numbers(name, key, spread) / ndtri((1 + level) / 2)
    spread = _numbers(name, key, spread)
    with np.errstate(invalid="ignore", divide="ignore"):
        sd = np.sqrt(spread) if key == "variance" else spread
        if family == "laplace":
            return 0.5 / np.arcsinh(math.sqrt(0.5) / sd) if discrete else sd / math.sqrt(2)
    if discrete and ((sd > 0) & (sd < 1)).any():
        raise PrivacyConfigurationError(
            f"{name!r}: discrete Gaussian noise with a standard deviation below 1 has another `scale`. Say the `scale`."
        )
    return sd


def noise_per_sensitivity(name: str, family: Family, epsilon: float, delta: float | None) -> float:
    """Noise multiplier that makes one release (ε, δ)-DP: 1/ε for Laplace noise."""
    if family == "laplace":
        return 1 / epsilon
    if delta is None:
        raise PrivacyConfigurationError(f"{name!r}: Gaussian noise needs a `delta` with `epsilon`.")
    return calibrate_noise(epsilon=epsilon, delta=delta, releases=1)


def charged_multiplier(noise_multiplier: float, grid_scale: ArrayLike) -> float:
    r"""Multiplier of Gaussian noise that is at least as revealing as discrete Gaussian noise.

    Noise on a grid reveals more than noise on the line, by a factor that vanishes as the noise gets
    wide compared with the grid: discrete Gaussian noise is dominated by Gaussian noise with a
    multiplier smaller by :math:`1 + 1/16\sigma^2`, σ in steps of the grid, for
    :math:`\sigma \ge 0.5` (found numerically, and tested).

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise / sensitivity.
    grid_scale : float
        Standard deviation of the noise in steps of its grid.
    """
    return noise_multiplier / _discrete_gaussian_factor(float(np.min(grid_scale)))


def _discrete_gaussian_factor(scale: float) -> float:
    return 1 + 1 / (16 * scale**2)


def _of(name: str, check: Callable[..., float], *arguments: Any) -> float:
    """What a check returns; a refusal says of which release."""
    try:
        return check(*arguments)
    except PrivacyConfigurationError as error:
        raise PrivacyConfigurationError(f"{name!r}: {error}") from None


def _numbers(name: str, key: str, x: Any) -> NDArray[np.float64]:
    if hasattr(x, "get_value"):
        raise PrivacyConfigurationError(
            f"{name!r}: `{key}` cannot be a `pm.Data`: how far sums go is settled when the model is built. Give numbers, "
            "and build the model anew for a table with other noise."
        )
    try:
        if np.asarray(x).dtype.kind not in "iuf":
            raise TypeError
        return np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise PrivacyConfigurationError(
            f"{name!r}: `{key}` must be a known number or array. Found {type(x).__name__}: the "
            "noise of a release is public, not a parameter."
        ) from None


def _scale(name: str, key: str, scale: Any, zero: bool) -> NDArray[np.float64]:
    array = _numbers(name, key, scale)
    if not (np.isfinite(array) & ((array > 0) | (zero & (array == 0)))).all():
        raise PrivacyConfigurationError(
            f"{name!r}: `{key}` must be positive{' or 0' if zero else ''} and finite. Found {array.tolist()!r}."
        )
    return array
