r"""Compiled record sweeps: Algorithm 1, step 2, of Ju, Gong, Awan and Rao (2022).

Given θ, each record in turn is offered a value :math:`x_i^* \sim f(\cdot \mid \theta)` and takes it
with probability :math:`\min(1, g(s, T - t_i + t_i^*) / g(s, T))`, where :math:`T = \sum_i t_i` is kept
up to date. The cost is O(n m) for n records and m numbers released.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, error_model="numpy")
def sweep(T, t, t_new, waiting, s, w1, w2, accepted):  # type: ignore[no-untyped-def]
    r"""One sweep for :math:`\log g(s, T) = -\sum_j w_{1j} |s_j - T_j| + w_{2j} (s_j - T_j)^2`.

    Covers the Laplace (:math:`w_1 = 1/b`) and Gaussian (:math:`w_2 = 1/2\sigma^2`) mechanisms and
    their discrete twins, whose normalising constants do not depend on T.

    Parameters
    ----------
    T : ndarray, shape (m,)
        Sum of `t` over records; updated in place.
    t, t_new : ndarray, shape (n, m)
        Statistic of the current and of the offered records.
    waiting : ndarray, shape (n,)
        Standard exponential draws, minus the log of the uniform ones of the Metropolis test.
    s, w1, w2 : ndarray, shape (m,)
        Released values and weights.
    accepted : ndarray of bool, shape (n,)
        Filled in.

    Returns
    -------
    tuple of float
        Sum over records of the acceptance probability, and the smallest log ratio.
    """
    n, m = t.shape
    probability = 0.0
    smallest = 0.0
    for i in range(n):
        ratio = 0.0
        for j in range(m):
            before = s[j] - T[j]
            after = before - (t_new[i, j] - t[i, j])
            ratio -= w1[j] * (abs(after) - abs(before)) + w2[j] * (after * after - before * before)
        smallest = min(smallest, ratio)
        probability += 1.0 if ratio >= 0.0 else np.exp(ratio)
        accepted[i] = -waiting[i] < ratio
        if accepted[i]:
            for j in range(m):
                T[j] += t_new[i, j] - t[i, j]
    return probability, smallest


def make_sweep(log_g: Callable[[Any], Any]) -> Any:
    """A sweep for any density of the noise.

    Parameters
    ----------
    log_g : callable
        Compiled by numba: takes T, shape (m,), and returns a tuple of one array of one number.

    Returns
    -------
    callable
        Like :func:`sweep`, without `s`, `w1` and `w2`.
    """

    @numba.njit
    def sweep_any(T, t, t_new, waiting, accepted):  # type: ignore[no-untyped-def]
        n = t.shape[0]
        probability = 0.0
        smallest = 0.0
        current = log_g(T)[0].item()
        for i in range(n):
            T_new = T + (t_new[i] - t[i])
            offered = log_g(T_new)[0].item()
            ratio = offered - current
            smallest = min(smallest, ratio)
            probability += 1.0 if ratio >= 0.0 else np.exp(ratio)
            accepted[i] = -waiting[i] < ratio
            if accepted[i]:
                T[:] = T_new
                current = offered
        return probability, smallest

    return sweep_any
