"""The law of the noise in a release, and what it guarantees."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_dp.checks import check_delta, check_epsilon, positive
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
    scale: ArrayLike | None,
    epsilon: float | None,
    delta: float | None,
    sensitivity: float | None,
    zero: bool = False,
) -> NoiseLaw:
    """The noise law from a scale, or from a budget and a sensitivity.

    Parameters
    ----------
    name : str
        The release, for error messages.
    family, discrete
        See :class:`NoiseLaw`.
    scale, epsilon, delta, sensitivity
        Either `scale`, or `epsilon` and `sensitivity` (Gaussian noise: and `delta`). A `scale` with
        a `sensitivity` (Gaussian noise: and `delta`) tells the ε.
    zero : bool
        Whether entries may be without noise: public totals.

    Raises
    ------
    PrivacyConfigurationError
        If they are missing, contradictory or out of range.
    """
    if sensitivity is not None:
        sensitivity = _of(name, positive, "sensitivity", sensitivity)
    if delta is not None:
        delta = _of(name, check_delta, delta)
        if family == "laplace":
            raise PrivacyConfigurationError(
                f"{name!r}: Laplace noise has no `delta`; leave it out, or use Gaussian noise."
            )
    if (scale is None) == (epsilon is None):
        raise PrivacyConfigurationError(
            f"{name!r}: give either `scale`, the scale of the noise, or `epsilon` with "
            "`sensitivity`, from which the scale follows."
        )
    if epsilon is not None:
        epsilon = _of(name, check_epsilon, epsilon)
        if math.isinf(epsilon):
            raise PrivacyConfigurationError(
                f"{name!r}: an infinite `epsilon` means no noise, and then there is nothing to infer."
            )
        if sensitivity is None:
            raise PrivacyConfigurationError(
                f"{name!r}: `epsilon` needs `sensitivity`, the largest change of the statistic when "
                "one record is replaced (see `sum_sensitivity` and `second_moments_sensitivity` in `pymc_dp.statistics`)."
            )
        scale = sensitivity * noise_per_sensitivity(name, family, epsilon, delta)
        if family == "gaussian" and discrete:
            scale *= _discrete_gaussian_factor(scale)
    array = _scale(name, scale, zero)
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


def _scale(name: str, scale: Any, zero: bool) -> NDArray[np.float64]:
    try:
        array = np.asarray(scale, dtype=np.float64)
    except (TypeError, ValueError):
        raise PrivacyConfigurationError(
            f"{name!r}: `scale` must be a known number or array. Found {type(scale).__name__}: the "
            "noise of a release is public, not a parameter."
        ) from None
    if not (np.isfinite(array) & ((array > 0) | (zero & (array == 0)))).all():
        raise PrivacyConfigurationError(
            f"{name!r}: `scale` must be positive{' or 0' if zero else ''} and finite. Found {array.tolist()!r}."
        )
    return array
