"""What one would use in place of pymc-dp for a regression, at the same (ε, δ): for made-up and public data only.

Neighbours differ in one record (substitute-one). Noise is NumPy's, and nothing is checked: these are for measuring errors.
"""

import pickle
import subprocess
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from _regressions import Exact

from pymc_dp.linalg import (
    as_matrix,
    clip,
    floored,
    mean_if_positive,
    power,
    product_covariance,
    symmetric,
)

_RIDGE_FAILS = 0.05
"""Chance that the ridge of AdaSSP is too small, as its author sets it."""
_SAMPLES = 400
"""Draws of the variational peer."""
_FARTHEST = 10.0
"""Of parameters from 0: nobody believes in more."""


@dataclass(eq=False)
class Regression:
    """A regression with intercept, what is public about it, and its exact posterior.

    Parameters
    ----------
    X, y : ndarray, shape (n, p) and (n,)
    likelihood : {"bernoulli", "normal"}
        A normal one has an unknown standard deviation σ, with prior HalfNormal(1); its logarithm is the last parameter.
    prior_sd : float
        Of coefficients.
    low, high : ndarray, shape (p,)
        Public ranges of the columns of X.
    outcomes : tuple of float
        A public range of y; what is outside is moved to it.
    longest : float
        Public bound on the length of (x, y) in one vector.
    exact : Exact
    """

    X: np.ndarray
    y: np.ndarray
    likelihood: str
    prior_sd: float
    low: np.ndarray
    high: np.ndarray
    outcomes: tuple[float, float]
    longest: float
    exact: Exact

    @property
    def row(self):
        """Length of the longest row of X that is possible."""
        return float(np.linalg.norm(np.maximum(np.abs(self.low), np.abs(self.high))))

    @cached_property
    def _kinds(self):
        """Identical records once, and how many there are of each."""
        rows, counts = np.unique(np.column_stack([self.X, self.y]), axis=0, return_counts=True)
        return rows[:, :-1], rows[:, -1], counts

    def slope(self, theta, bound=np.inf):
        """Gradient of the log-likelihood, every record's clipped, shape (d,)."""
        X, y, counts = self._kinds
        if self.likelihood == "bernoulli":
            rows = X * (y - 1 / (1 + np.exp(-X @ theta)))[:, None]
        else:
            residuals = (y - X @ theta[:-1]) * np.exp(-theta[-1])
            rows = np.column_stack(
                [X * (residuals * np.exp(-theta[-1]))[:, None], residuals**2 - 1]
            )
        return counts @ clip(rows, bound)

    def prior_slope(self, theta):
        """Gradient of the log-prior."""
        slope = -theta / self.prior_sd**2
        if self.likelihood == "normal":
            slope[-1] = 1 - np.exp(2 * theta[-1])
        return slope


@lru_cache(maxsize=64)  # two peers, and what they leave out, begin with the same
def _descent(data, mu, factor, rate, steps, seed):
    bound, rng = factor * data.row, np.random.default_rng(seed)
    noise = 2 * bound * np.sqrt(steps) / mu
    path, slopes = np.zeros((2, steps, len(data.exact.mode)))
    theta = path[0]
    for k in range(steps):
        path[k] = theta
        slopes[k] = data.slope(theta, bound) + noise * rng.standard_normal(len(theta))
        slopes[k] += data.prior_slope(theta)
        theta = np.clip(theta + rate / len(data.y) * slopes[k], -_FARTHEST, _FARTHEST)
    return path, slopes, noise


def descent(data, mu, setting, seed):
    """Noisy gradient steps on all records: points and gradients, shape (steps, d), and the noise's sd.

    A setting is a clipping bound in longest rows, a step length, steps, and the part of them, at the beginning, that is left out
    of the result. Subsampling would save time and no budget.
    """
    *how, left_out = setting
    path, slopes, noise = _descent(data, mu, *how, seed)
    first = int(left_out * len(path))
    return path[first:], slopes[first:], noise


def dp_sgd(data, epsilon, mu, setting, seed):
    """Mean of the path, and the exact posterior's own widths: a gift."""
    path, _, _ = descent(data, mu, setting, seed)
    return path.mean(axis=0), data.exact.sds


def dpvi(data, epsilon, mu, setting, seed):
    """Noise-aware variational inference, simplified: medians and 90 % intervals, from the path.

    After Jälkö, Prediger, Honkela and Kaski (2023): gradients are linear in the parameters, with noise of known size,
    so that what is known of information and mode is a linear regression's posterior.
    """
    path, slopes, noise = descent(data, mu, setting, seed)
    (steps, d), rng = path.shape, np.random.default_rng([1, *seed])
    # A priori the information is a multiple of the identity, give or take half of it.
    guess = len(data.y) * (0.15 if data.likelihood == "bernoulli" else 1.0)
    moved = path - path.mean(axis=0)
    precision = moved.T @ moved / noise**2 + np.eye(d) / (guess / 2) ** 2
    means = np.linalg.solve(precision, 4 * np.eye(d) / guess - moved.T @ slopes / noise**2)
    root, draws = np.linalg.inv(np.linalg.cholesky(precision)).T, []
    for _ in range(_SAMPLES):
        A = symmetric(means + root @ rng.standard_normal((d, d)))
        C = np.linalg.inv(floored(A, 1 / data.prior_sd**2))
        slope = slopes.mean(axis=0) + noise / np.sqrt(steps) * rng.standard_normal(d)
        draws.append(path.mean(axis=0) + C @ slope + power(C, 0.5) @ rng.standard_normal(d))
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    return middle, (high - low) / 3.29


def noisy_products(rows, bound, mu, rng):
    """Σ v vᵀ of clipped rows, with noise, and the noise's sd on the diagonal: √½ times that elsewhere.

    Two positive matrices of Frobenius norm C differ by √2 C at most.
    """
    d, rows = rows.shape[1], clip(rows, bound)
    noise = np.sqrt(2) * bound**2 / mu
    return rows.T @ rows + noise * as_matrix(rng.standard_normal(d * (d + 1) // 2), d), noise


def moments(data, epsilon, mu, setting, seed):
    """Noise-aware regression on noisy second moments, after Bernstein and Sheldon (2019), for many records."""
    n, (factor,), rng = len(data.y), setting, np.random.default_rng(seed)
    S, noise = noisy_products(np.column_stack([data.X, data.y]), factor * data.longest, mu, rng)
    H, h, prior = floored(S[:-1, :-1], noise), S[:-1, -1], 1 / data.prior_sd**2
    beta = np.linalg.solve(H + prior * np.eye(len(H)), h)
    for _ in range(5):
        # The noise in h - Hβ and in the squared residuals are one matrix, times this vector.
        v = np.append(-beta, 1.0)
        variance = mean_if_positive(np.array([v @ S @ v]) / n, noise * (v @ v) / n)[0]
        of_noise = product_covariance(np.outer(v, v), noise)[:-1, :-1]
        kept = np.linalg.solve(variance * H + of_noise, H).T
        covariance = np.linalg.inv(kept @ H + prior * np.eye(len(H)))
        beta = covariance @ kept @ h
    spread = 1 / (2 * n) + (noise * (v @ v) / (2 * n * variance)) ** 2
    sds = np.sqrt(np.append(np.diag(covariance), spread))
    return np.append(beta, np.log(variance) / 2), sds


def adassp(data, epsilon, mu, setting, seed):
    """Adaptive sufficient statistics perturbation (Wang, 2018), in Gaussian DP: three equal releases, a ridge."""
    rng = np.random.default_rng(seed)
    row, outcome = setting[0] * data.row, setting[1] * max(np.abs(data.outcomes))
    X, y, d, third = clip(data.X, row), np.clip(data.y, -outcome, outcome), data.X.shape[1], mu / np.sqrt(3)  # fmt: skip
    S, noise = noisy_products(X, row, third, rng)
    h = X.T @ y + 2 * row * outcome / third * rng.standard_normal(d)
    of_matrix = noise * np.sqrt(d * np.log(2 * d**2 / _RIDGE_FAILS))
    of_least = row**2 / third
    least = np.linalg.eigvalsh(X.T @ X)[0] + of_least * rng.standard_normal()
    least = max(least - of_least * np.sqrt(2 * np.log(6 / _RIDGE_FAILS)), 0)
    beta = np.linalg.solve(S + max(0, of_matrix - least) * np.eye(d), h)
    return np.append(beta, np.nan), np.full(d + 1, np.nan)


class Diffprivlib:
    """diffprivlib's regressions, in an interpreter of its own: it cannot be imported with the newest scikit-learn. Pure ε.

    Parameters
    ----------
    python : str
        The interpreter.
    """

    def __init__(self, python):
        script = Path(__file__).with_name("_diffprivlib.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, data, epsilon, mu, setting, seed):
        (factor,), number = setting, int(np.random.default_rng(seed).integers(2**31))
        if data.likelihood == "bernoulli":
            # Rows of length one, as the theorem has them.
            settings = {
                "epsilon": epsilon,
                "C": (data.prior_sd * factor * data.row) ** 2,
                "seed": number,
            }
            X, y = clip(data.X, factor * data.row) / (factor * data.row), data.y
        else:
            # Its own intercept comes from private means.
            X, y = data.X[:, 1:], data.y
            settings = {"epsilon": epsilon, "seed": number}
            for name, (low, high) in {
                "bounds_X": (data.low[1:], data.high[1:]), "bounds_y": data.outcomes,
            }.items():  # fmt: skip
                middle = (np.asarray(low) + high) / 2
                half = factor * (np.asarray(high) - low) / 2
                settings[name] = (middle - half, middle + half)
            X, y = np.clip(X, *settings["bounds_X"]), np.clip(y, *settings["bounds_y"])
        pickle.dump((data.likelihood, X, y, settings), self._process.stdin)
        self._process.stdin.flush()
        found = pickle.load(self._process.stdout)
        if data.likelihood == "bernoulli":
            found = found / (factor * data.row)
        beta = np.full(len(data.exact.mode), np.nan)
        beta[: len(found)] = found
        return beta, np.full(len(beta), np.nan)
