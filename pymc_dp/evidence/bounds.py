r"""Telling two laws apart from samples of them, and what that shows of ε.

If an output is (ε, δ)-differentially private, then for every event E, with P and Q its laws under two
neighbouring data sets, :math:`P(E) \le e^\varepsilon Q(E) + \delta`. So a guess of which of the two an
output comes from that is right with probability t (true positives) under the second, and wrong with
probability f (false positives) under the first, shows

.. math::
    \varepsilon \ge \max\Big(\ln\frac{t - \delta}{f},\; \ln\frac{1 - f - \delta}{1 - t}\Big)

(Kairouz, Oh and Viswanath, 2015). Counting right and wrong guesses over many runs bounds t and f at a
stated confidence, and so ε from below (Jagielski, Ullman and Oprea, 2020; Nasr et al., 2023). A claim
that is a composition of Gaussian releases says more: for some μ,
:math:`\Phi^{-1}(t) - \Phi^{-1}(f) \le \mu` at every threshold (Dong, Roth and Su, 2022), which is a
sharper test of the same claim.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from pymc_dp.checks import check_delta, fraction
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.accounting import gaussian_epsilon

Vector = NDArray[np.float64]

# Variance added to every normal score: a column that one data set leaves constant has none.
_RIDGE = 0.05


@dataclass(frozen=True)
class Bound:
    """What counting guesses shows.

    Parameters
    ----------
    epsilon : float
        Lower confidence bound on ε; 0 if nothing was shown.
    false_positive_rate, true_positive_rate : float
        Of the guess "second data set", as observed in the runs that test.
    """

    epsilon: float
    false_positive_rate: float
    true_positive_rate: float


def lower_bound(
    scores0: ArrayLike,
    scores1: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    choose: float = 0.5,
    gaussian: bool = False,
) -> Bound:
    """Lower confidence bound on ε from independent scores of outputs on two neighbouring data sets.

    Parameters
    ----------
    scores0, scores1 : array of float
        One number per run on the first and on the second data set, in the order of the runs. Whatever
        the scores were fitted to must not be among these runs.
    delta : float
        δ of the claim.
    confidence : float
        Probability with which the bound holds, whatever the scores.
    choose : float
        Part of the runs, the first ones, that choose the threshold and the side of it that speaks for
        the second data set. The other runs test.
    gaussian : bool
        Whether the claim is one of Gaussian differential privacy: bound μ, and convert it.

    Returns
    -------
    Bound

    Notes
    -----
    Both error rates get a one-sided Clopper-Pearson bound, each at half of 1 − `confidence`, so that
    they hold together; both directions of the definition need the same two.
    """
    delta = check_delta(delta, zero_allowed=not gaussian)
    alpha = 1 - fraction("confidence", confidence)
    choose = fraction("choose", choose)
    x0, x1 = _checked_scores(scores0), _checked_scores(scores1)
    k0, k1 = (max(1, int(choose * len(x))) for x in (x0, x1))
    shown = partial(_shown, delta=delta, alpha=alpha, gaussian=gaussian)

    best: tuple[float, float, float] = -math.inf, 1.0, math.inf
    for sign in (1.0, -1.0):
        a, b = np.sort(sign * x0[:k0]), np.sort(sign * x1[:k1])
        values = np.unique(np.concatenate([a, b]))
        thresholds = values[:-1] / 2 + values[1:] / 2 if len(values) > 1 else values
        above = shown(_above(a, thresholds), len(a), _above(b, thresholds), len(b))
        i = int(np.argmax(above))
        best = max(best, (float(above[i]), sign, float(thresholds[i])))
    _, sign, threshold = best

    false = int(np.sum(sign * x0[k0:] > threshold))
    true = int(np.sum(sign * x1[k1:] > threshold))
    n0, n1 = len(x0) - k0, len(x1) - k1
    found = max(0.0, float(shown(np.array([false]), n0, np.array([true]), n1)[0]))
    epsilon = float(gaussian_epsilon(found, delta)) if gaussian else found
    return Bound(epsilon, false / n0, true / n1)


def _checked_scores(scores: ArrayLike) -> Vector:
    x = np.asarray(scores, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise PrivacyConfigurationError(
            "`scores0` and `scores1` hold one finite number per run, of two runs at least. "
            f"Found shape {x.shape}."
        )
    return x


def _above(x: Vector, thresholds: Vector) -> NDArray[np.int64]:
    return len(x) - np.searchsorted(x, thresholds, side="right")


def _shown(
    false: NDArray[np.int64], n0: int, true: NDArray[np.int64], n1: int,
    *, delta: float, alpha: float, gaussian: bool,
) -> Vector:  # fmt: skip
    """ε, or μ, that so many false and true positives show, with probability 1 − α of being right."""
    f, t = clopper_pearson_upper(false, n0, alpha / 2), clopper_pearson_lower(true, n1, alpha / 2)
    if gaussian:
        return np.asarray(ndtri(t) - ndtri(f))
    with np.errstate(divide="ignore"):
        positives = np.log(np.maximum(t - delta, 0.0) / f)
        negatives = np.log(np.maximum(1 - f - delta, 0.0) / (1 - t))
    return np.maximum(positives, negatives)


def clopper_pearson_upper(k: ArrayLike, n: int, alpha: float) -> Vector:
    """Upper bound of a probability that came true `k` times of `n`; wrong with probability α."""
    k = np.asarray(k, dtype=np.float64)
    return np.where(k < n, betaincinv(k + 1, np.maximum(n - k, 0.5), 1 - alpha), 1.0)


def clopper_pearson_lower(k: ArrayLike, n: int, alpha: float) -> Vector:
    """Lower bound of a probability that came true `k` times of `n`; wrong with probability α."""
    return 1 - clopper_pearson_upper(n - np.asarray(k, dtype=np.float64), n, alpha)


# -- the guess --------------------------------------------------------------------------------------


def discriminant(first: Vector, second: Vector) -> Callable[[Vector], Vector]:
    """Score of outputs, fitted to some of either data set: the log ratio of two normal densities.

    Columns are replaced by normal scores of their ranks, which no monotone transformation changes, and
    each data set's covariance is shrunk half way to their mean.

    Parameters
    ----------
    first, second : ndarray, shape (runs, columns)

    Returns
    -------
    callable
        ``outputs -> scores``, larger where the second data set is likelier.
    """
    pooled = np.sort(np.vstack([first, second]), axis=0)
    varying = pooled[0] < pooled[-1]
    if not varying.any():
        return lambda x: np.zeros(len(x))
    pooled = pooled[:, varying]
    m, d = pooled.shape

    def normal_scores(x: Vector) -> Vector:
        columns = zip(pooled.T, x[:, varying].T, strict=True)
        ranks = [np.searchsorted(p, c, "left") + np.searchsorted(p, c, "right") for p, c in columns]
        return np.asarray(ndtri((np.array(ranks).T + 1) / (2 * m + 2)))

    groups = [normal_scores(first), normal_scores(second)]
    covariances = [np.cov(z, rowvar=False).reshape(d, d) + _RIDGE * np.eye(d) for z in groups]
    laws: list[tuple[Vector, Vector, float]] = []
    for z, covariance in zip(groups, covariances, strict=True):
        shrunk = covariance / 2 + sum(covariances) / 4
        laws.append(
            (
                z.mean(axis=0),
                np.asarray(np.linalg.inv(shrunk), np.float64),
                float(np.linalg.slogdet(shrunk)[1]),
            )
        )

    def log_density(z: Vector, mean: Vector, precision: Vector, log_volume: float) -> Vector:
        return -(np.einsum("ij,jk,ik->i", z - mean, precision, z - mean) + log_volume) / 2

    def score(x: Vector) -> Vector:
        z = normal_scores(x)
        return log_density(z, *laws[1]) - log_density(z, *laws[0])

    return score
