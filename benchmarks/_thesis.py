"""Models of Räisä (2021), Table 5.1, with exact posteriors, and the MMD of its section 5.5."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt


@dataclass(frozen=True)
class Problem:
    """A data set, its PyMC model and exact draws from the posterior."""

    model: pm.Model
    n: int
    truth: np.ndarray
    exact: Callable[[int, np.random.Generator], np.ndarray]
    names: list[str]


def banana(n: int, d: int, a: float, seed: int = 0) -> Problem:
    """Banana for a > 0, axis-parallel Gaussian for a = 0; variances 20, 2.5, then 1."""
    rng = np.random.default_rng(seed)
    variances = np.array([20.0, 2.5] + [1.0] * (d - 2))
    truth = np.array([0.0, 3.0] + [0.0] * (d - 2))
    mean = truth.copy()
    mean[1] += a * truth[0] ** 2
    x = mean + np.sqrt(variances) * rng.standard_normal((n, d))
    prior_sd = np.sqrt(1000.0)
    with pm.Model() as model:
        first = pm.Normal("first", 0, prior_sd)
        second = pm.Normal("second", -a * first**2, prior_sd)
        parts = [first, second + a * first**2]
        if d > 2:
            rest = pm.Normal("rest", 0, prior_sd, shape=d - 2)
            parts.append(rest)
        mu = pt.concatenate([pt.atleast_1d(part) for part in parts])
        pm.Normal("x", mu, np.sqrt(variances), observed=pm.Data("X", x))

    precision = n / variances + 1 / 1000
    center = n * x.mean(axis=0) / variances / precision

    def exact(size: int, rng: np.random.Generator) -> np.ndarray:
        z = center + rng.standard_normal((size, d)) / np.sqrt(precision)
        z[:, 1] -= a * z[:, 0] ** 2
        return z

    return Problem(model, n, truth, exact, [v.name for v in model.free_RVs])


def correlated_gaussian(n: int, seed: int = 0) -> Problem:
    """Two-dimensional Gaussian with correlation 0.999, prior standard deviation 100."""
    rng = np.random.default_rng(seed)
    covariance = np.array([[1.0, 0.999], [0.999, 1.0]])
    truth = np.array([0.0, 3.0])
    x = rng.multivariate_normal(truth, covariance, size=n)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 100, shape=2)
        # The bivariate normal as x1 and x2 given x1: the same term per record, without a solve.
        first, second = pm.Data("first", x[:, 0]), pm.Data("second", x[:, 1])
        pm.Normal("x1", theta[0], 1, observed=first)
        given = theta[1] + 0.999 * (first - theta[0])
        pm.Normal("x2", given, np.sqrt(1 - 0.999**2), observed=second)
    posterior = np.linalg.inv(n * np.linalg.inv(covariance) + np.eye(2) / 100**2)
    center = posterior @ (np.linalg.inv(covariance) @ x.sum(axis=0))

    def exact(size: int, rng: np.random.Generator) -> np.ndarray:
        return rng.multivariate_normal(center, posterior, size=size)

    return Problem(model, n, truth, exact, ["theta"])


def mmd(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> float:
    """Square root of the unbiased MMD² (in absolute value), Gaussian kernel.

    The kernel's width is the median distance of 500 pairs drawn with replacement.
    """
    pairs = x[rng.integers(len(x), size=500)] - y[rng.integers(len(y), size=500)]
    width = np.median(np.linalg.norm(pairs, axis=1))

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
        return np.exp(-squares / (2 * width**2))

    m, k = len(x), len(y)
    xx, yy = kernel(x, x), kernel(y, y)
    within = (xx.sum() - m) / (m * (m - 1)) + (yy.sum() - k) / (k * (k - 1))
    return float(np.sqrt(abs(within - 2 * kernel(x, y).mean())))
