r"""A chart that straightens a cloud of public points: a triangular map, fitted by regressions.

.. math:: u_k = \frac{\theta_{\pi(k)} - m_k(u_1, \dots, u_{k-1})}{s_k(u_1, \dots, u_{k-1})}

with m and log s sums of natural cubic splines, one of each earlier coordinate, and the order π of the parameters
in which the scales are smallest: a ridge is thin seen from the parameter that runs along it. Walkers move further in
these coordinates; and a likelihood that is no polynomial of the parameters may be one of them.
"""

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from pymc_dp.linalg import Vector

_KNOTS = np.array([0.005, 0.08, 0.22, 0.4, 0.6, 0.78, 0.92, 0.995])
"""Quantiles at which the splines of m change."""
_FEW_KNOTS = np.array([0.02, 0.3, 0.7, 0.98])
"""The same of log s."""
_ROUNDS = 4
"""Of weighted least squares."""
_LOG_OF_NORMAL = -0.635
"""Mean logarithm of the size of a standard normal number."""
_MOST = 3
"""Parameters, at most: a sum of functions of single coordinates says less and less of more of them."""


@dataclass(frozen=True)
class _Spline:
    """Sum of natural cubic splines of several coordinates.

    Parameters
    ----------
    knots : ndarray, shape (knots, coordinates)
    weights : ndarray
    """

    knots: Vector
    weights: Vector

    @classmethod
    def fitted(cls, u: Vector, y: Vector, quantiles: Vector, precision: Vector) -> "_Spline":
        """By weighted least squares."""
        knots = np.asarray(np.quantile(u, quantiles, axis=0) if u.shape[1] else np.empty((0, 0)))
        X = _columns(u, knots)
        A = (X * precision[:, None]).T @ X
        A += 1e-9 * np.trace(A) / len(A) * np.eye(len(A))
        weights = np.linalg.solve(A, X.T @ (precision * y))
        return cls(knots, np.asarray(weights, np.float64))

    def __call__(self, u: Vector) -> Vector:
        """Values, shape (points,)."""
        return np.asarray(_columns(u, self.knots) @ self.weights)


def _columns(u: Vector, knots: Vector) -> Vector:
    """A constant, and of every coordinate the natural cubic splines that are linear beyond the outermost knots."""
    parts = [np.ones((len(u), 1))]
    for j in range(u.shape[1]):
        at = knots[:, j]
        x = (u[:, j] - at[0]) / max(at[-1] - at[0], 1e-300)
        at = (at - at[0]) / max(at[-1] - at[0], 1e-300)
        cubes = np.maximum(x[:, None] - at, 0.0) ** 3
        d = (cubes[:, :-1] - cubes[:, -1:]) / np.maximum(1 - at[:-1], 1e-9)
        parts += [x[:, None], d[:, :-1] - d[:, -1:]]
    return np.hstack(parts)


@dataclass(frozen=True)
class _Stage:
    """One parameter, given the coordinates before it."""

    mean: _Spline
    log_scale: _Spline
    least: float
    most: float

    def __call__(self, u: Vector) -> tuple[Vector, Vector]:
        """M and log s."""
        return self.mean(u), np.clip(self.log_scale(u), self.least, self.most)


class Chart:
    """The map, and back.

    Parameters
    ----------
    cloud : ndarray, shape (points, d)
        To be straightened.
    """

    def __init__(self, cloud: Vector):
        d = cloud.shape[1]
        orders = list(permutations(range(d))) if 1 < d <= _MOST else [tuple(range(d))]
        charts = [_fitted(cloud[:, list(order)], d <= _MOST) for order in orders]
        best = int(np.argmin([score for _, score in charts]))
        self._order, (self._stages, log_volume) = list(orders[best]), charts[best]
        normal = np.linalg.slogdet(np.atleast_2d(np.cov(cloud.T)))[1] / 2
        self.gain = float(normal) - log_volume
        """By how much the logarithm of the cloud's volume is smaller in these coordinates than a normal law's."""

    def __call__(self, theta: Vector) -> tuple[Vector, Vector]:
        """Coordinates, shape (points, d), and the logarithm of dθ/du's determinant there."""
        u, log_det = np.empty_like(theta), np.zeros(len(theta))
        for k, stage in enumerate(self._stages):
            m, log_s = stage(u[:, :k])
            u[:, k] = (theta[:, self._order[k]] - m) * np.exp(-log_s)
            log_det += log_s
        return u, log_det

    def back(self, u: Vector) -> tuple[Vector, Vector]:
        """Parameters from coordinates, and the same logarithm."""
        theta, log_det = np.empty_like(u), np.zeros(len(u))
        for k, stage in enumerate(self._stages):
            m, log_s = stage(u[:, :k])
            theta[:, self._order[k]] = m + u[:, k] * np.exp(log_s)
            log_det += log_s
        return theta, log_det


def _fitted(theta: Vector, bends: bool) -> tuple[list[_Stage], float]:
    """The stages for parameters in this order, and the mean of the logarithms of their scales."""
    u, stages, score = np.empty((len(theta), 0)), [], 0.0
    for k in range(theta.shape[1]):
        y = theta[:, k]
        seen = u if bends else u[:, :0]
        spread = max(float(y.std()), 1e-300)
        log_s = np.full(len(y), math.log(spread))
        for _ in range(_ROUNDS if k and bends else 1):
            mean = _Spline.fitted(seen, y, _KNOTS, np.exp(2 * (log_s.min() - log_s)))
            off = np.log(np.abs(y - mean(seen)) + 1e-9 * spread) - _LOG_OF_NORMAL
            scale = _Spline.fitted(seen, off, _FEW_KNOTS, np.ones(len(y)))
            log_s = scale(seen)
        stage = _Stage(mean, scale, float(log_s.min()) - 1, float(log_s.max()) + 1)
        stages.append(stage)
        score += float(log_s.mean())
        u = np.column_stack([u, (y - mean(seen)) * np.exp(-log_s)])
    return stages, score
