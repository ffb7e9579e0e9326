"""Checks of step settings: numbers, symmetric positive definite matrices, variables."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.util import get_value_vars_from_user_vars

from pymc_dp.checks import check_epsilon, positive
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError

Vector = NDArray[np.float64]


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


def check_finite_epsilon(epsilon: float) -> None:
    """Refuse an ε that is not a positive, finite number."""
    check_epsilon(epsilon)
    if math.isinf(epsilon):
        raise PrivacyConfigurationError(
            "`epsilon` must be finite. To debug without noise, say so: `noise_multiplier=0, "
            "noise=InsecureSeededNoise(seed)`."
        )


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
