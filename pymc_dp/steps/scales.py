"""How far moves go: proposal scales, their defaults and their tuning; and which variables move."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.step_sizes import DualAverageAdaptation
from pymc.util import get_value_vars_from_user_vars
from scipy.optimize import brentq

from pymc_dp.checks import positive
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.linalg import Vector

SIGMA_OF_DEFAULTS = 1.6
"""Default scales aim at this noise in the log acceptance ratio: E min(1, e^X) is 0.42 then."""

_SMALLEST_SCALE, _HUGE = 1e-12, 1e6


def default_scale(likely: float, noise_sd: Callable[[float], float]) -> float:
    """What n records are likely to allow, or what the noise does if that is less.

    Parameters
    ----------
    likely : float
        From the number of records.
    noise_sd : callable
        ``scale -> σ`` of a typical proposal, increasing; infinite where there is no such proposal.
    """
    if noise_sd(likely) <= SIGMA_OF_DEFAULTS:
        return likely

    def excess(log_scale: float) -> float:
        return min(noise_sd(math.exp(log_scale)), _HUGE) - SIGMA_OF_DEFAULTS

    if excess(math.log(_SMALLEST_SCALE)) > 0:
        return _SMALLEST_SCALE
    return math.exp(brentq(excess, math.log(_SMALLEST_SCALE), math.log(likely)))


def dual_averaging(first: float, target_accept: float) -> DualAverageAdaptation:
    """Tuning of a scale on the acceptance rate of noisy tests, with the constants of PyMC's own."""
    return DualAverageAdaptation(first, target_accept, gamma=0.05, k=0.75, t0=10)


def covariance_like(name: str, value: ArrayLike, d: int) -> Vector:
    """A positive d-vector, or a symmetric positive definite d × d matrix, checked."""
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((d,), (d, d)) or not np.isfinite(array).all():
        raise PrivacyConfigurationError(
            f"`{name}` must be finite, of shape ({d},) or ({d}, {d}) for this model's {d} "
            f"unconstrained parameters. Found shape {array.shape}."
        )
    if array.ndim == 1 and not (array > 0).all():
        raise PrivacyConfigurationError(f"`{name}` must be positive in every entry.")
    if array.ndim == 2 and not (np.allclose(array, array.T) and np.linalg.eigvalsh(array)[0] > 0):
        raise PrivacyConfigurationError(
            f"`{name}` as a matrix must be symmetric and positive definite."
        )
    return array


def lower_factor(matrix: Vector) -> Vector:
    """Lower Cholesky factor L, L Lᵀ = matrix."""
    return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)


def proposal_factor(scale: float | ArrayLike | None, d: int) -> tuple[Vector, float | None]:
    """Factor of the proposal's covariance, and the multiplier that tuning adapts."""
    if scale is None:
        return np.eye(d), None
    if np.ndim(scale) == 0:
        return np.eye(d), positive("scale", scale)
    array = covariance_like("scale", scale, d)
    return (np.diag(array) if array.ndim == 1 else lower_factor(array)), 1.0


def all_value_vars(model: pm.Model, vars: Sequence[Any] | None, blocked: bool) -> list[Any]:
    """Every value variable of the model, if `vars` leaves none out."""
    if not blocked:
        raise PrivacyConfigurationError(
            "`blocked=False` would make one step per variable and multiply the cost by their "
            "number. Leave it out."
        )
    everything = list(model.value_vars)
    if vars is not None:
        chosen = vars if isinstance(vars, Sequence) else [vars]
        covered = {v.name for v in get_value_vars_from_user_vars(list(chosen), model)}
        missing = [rv.name for rv in model.free_RVs if model.rvs_to_values[rv].name not in covered]
        if missing:
            raise UnsupportedModelError(
                f"The free variables {missing} are not covered by this step. PyMC would give them an "
                "ordinary step method, which reads the data without noise. Leave `vars` out: a "
                "private step updates all variables."
            )
    return everything
