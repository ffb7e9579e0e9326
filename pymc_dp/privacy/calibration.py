"""From a budget (ε, δ) to a noise multiplier, a number of releases or a batch size."""

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np
from scipy import optimize

from pymc_dp.checks import check_delta, check_epsilon, check_rate, positive, whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.accounting import (
    composed_epsilon,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_mu_within,
    zcdp_rho_within,
)
from pymc_dp.privacy.events import BarkerBatch, Gaussian, PoissonGaussian, times
from pymc_dp.privacy.rdp import ORDERS, gaussian_curve, rdp_count, without_replacement

_SMALLEST_BATCH = 10


def calibrate_noise(
    *, epsilon: float, delta: float, releases: int, sampling_rate: float = 1.0
) -> float:
    """Noise multiplier z with which `releases` Gaussian releases together cost at most (ε, δ).

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 < δ < 1.
    releases : int
        Their number. A chain that releases once per iteration needs every iteration of every chain, tuning
        included.
    sampling_rate : float
        q: every release is of a fresh, secret Poisson sample, which each unit enters with this
        probability. 1 is all units.

    Returns
    -------
    float
        Standard deviation of the noise / sensitivity, for each release. The sensitivity is that
        of the sum, 2B for terms clipped at B, at any sampling rate. The ε reported for it is never above
        `epsilon`.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range.

    Notes
    -----
    For all units, Theorem 2.11 of Räisä (2021), solved for the variance. The papers' τ is z/√n. For
    samples, found by evaluating the reported ε some ten times.

    Examples
    --------
    >>> round(calibrate_noise(epsilon=1.0, delta=1e-6, releases=1000), 1)
    133.6
    >>> round(calibrate_noise(epsilon=1.0, delta=1e-6, releases=1000, sampling_rate=0.01), 2)
    1.34
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    releases = whole("releases", releases, 1)
    q = check_rate("sampling_rate", sampling_rate)
    mu = gaussian_mu_within(epsilon, delta)
    if math.isinf(mu):
        return 0.0
    if mu == 0:
        raise PrivacyConfigurationError(
            f"`epsilon={epsilon:g}` at `delta={delta:g}` is less than can be accounted for, or made use of."
        )

    def cost(z: float) -> float:
        if q == 1:
            return float(gaussian_epsilon(gaussian_mu([Gaussian(z, releases)]), delta))
        return composed_epsilon([PoissonGaussian(z, q, releases)], delta)

    z = math.sqrt(releases) / mu
    if q < 1:
        z = _smallest_multiplier(cost, epsilon, 1.001 * z)
    step = 2.0**-52
    while cost(z) > epsilon:
        z, step = z * (1 + step), 2 * step
    return z


def _smallest_multiplier(cost: Callable[[float], float], epsilon: float, enough: float) -> float:
    """About the smallest multiplier within the budget, given one that is."""
    low = enough / 4
    while cost(low) <= epsilon:  # ends: without noise, no finite ε is reported
        low, enough = low / 4, low
    root = optimize.brentq(
        lambda log_z: cost(math.exp(log_z)) - epsilon, math.log(low), math.log(enough), xtol=1e-7
    )
    return math.exp(root + 1e-7)


def max_releases(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    gradient_multiplier: float | None = None,
    gradients_per_draw: int = 0,
    sampling_rate: float = 1.0,
    accountant: Literal["gaussian", "zcdp", "rdp"] = "gaussian",
) -> int:
    """Largest number of releases that (ε, δ) pays for, each with its gradients if there are any.

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 < δ < 1.
    noise_multiplier : float
        z of the release, such as the log-likelihood ratio of one iteration.
    gradient_multiplier : float, optional
        z of a gradient release.
    gradients_per_draw : int
        Gradient releases that come with each: L + 1 for L leapfrog steps.
    sampling_rate : float
        q: the release is of a fresh, secret sample of this share of the units.
        Gradients are of all units.
    accountant : {"gaussian", "zcdp", "rdp"}
        "gaussian", the tight bound: Theorems 3.2 and 4.7 of Räisä (2021) for all units, privacy loss
        distributions for Poisson samples. To reproduce the papers: "zcdp" for all units (3.1 and 4.6),
        and "rdp" for samples drawn without replacement, q = b/n (3.5).

    Returns
    -------
    int
        Iterations that can be run, all chains together, tuning included. 0 if not even one is affordable.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range.

    Notes
    -----
    For all units, the number of Algorithm 2 of Räisä (2021), reached through the largest affordable
    μ, as μ² is proportional to the number of releases; beyond ten million the safety margin of
    the reported ε may make it one smaller. For Poisson samples, the number is found by evaluating the
    reported ε some twenty times.

    Examples
    --------
    >>> max_releases(epsilon=4.0, delta=1e-6, noise_multiplier=0.1 * 1e5**0.5)
    702
    """
    gradients_per_draw = whole(
        "gradients_per_draw", gradients_per_draw, 0 if gradient_multiplier is None else 1
    )
    if gradients_per_draw and gradient_multiplier is None:
        raise PrivacyConfigurationError(
            "`gradients_per_draw` needs a `gradient_multiplier`: the noise multiplier of one "
            "gradient release."
        )
    z, q = (
        positive("noise_multiplier", noise_multiplier),
        check_rate("sampling_rate", sampling_rate),
    )
    gradients = []
    if gradient_multiplier is not None:
        z_gradient = positive("gradient_multiplier", gradient_multiplier)
        gradients.append(Gaussian(z_gradient, gradients_per_draw))
    accountants = ("gaussian", "zcdp") if q == 1 else ("gaussian", "rdp")
    if accountant not in accountants:
        raise PrivacyConfigurationError(
            f"`accountant` must be {accountants[0]!r} or {accountants[1]!r} at a sampling rate "
            f"{'of' if q == 1 else 'below'} 1. Found {accountant!r}."
        )
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    if math.isinf(epsilon):
        raise PrivacyConfigurationError(
            "`epsilon` must be finite here: any number of releases fits an infinite budget."
        )
    if accountant == "rdp":
        rdp = without_replacement(lambda alpha: gaussian_curve(alpha, z), q)
        return rdp_count(rdp + ORDERS * gaussian_mu(gradients) ** 2 / 2, epsilon, delta)
    if q == 1:
        return _max_releases_of_all([Gaussian(z), *gradients], epsilon, delta, accountant)

    @cache
    def cost(k: int) -> float:
        return composed_epsilon([PoissonGaussian(z, q, k), *times(gradients, k)], delta)

    return _largest_count(cost, epsilon)


def _max_releases_of_all(one: list[Gaussian], epsilon: float, delta: float, accountant: str) -> int:
    if accountant == "zcdp":
        affordable = 2 * zcdp_rho_within(epsilon, delta)
    else:
        affordable = gaussian_mu_within(epsilon, delta) ** 2
    count = math.floor(affordable / gaussian_mu(one) ** 2)
    if accountant == "zcdp":
        return count

    def fits(k: int) -> bool:
        releases = [Gaussian(e.noise_multiplier, e.count * k) for e in one]
        return bool(gaussian_epsilon(gaussian_mu(releases), delta) <= epsilon)

    # μ and the division round, to either side; the accountant has the last word.
    while count and not fits(count):
        count -= 1
    return count + fits(count + 1)


def _largest_count(cost: Callable[[int], float], epsilon: float) -> int:
    """Largest count whose rising `cost` is at most ε; 0 if there is none."""
    if cost(1) > epsilon:
        return 0
    low, high = 1, 4
    while cost(high) <= epsilon:
        low, high = high, 4 * high
    root = optimize.brentq(
        lambda log_k: cost(round(math.exp(log_k))) - epsilon,
        math.log(low),
        math.log(high),
        xtol=0.25 / high,
    )
    count = round(math.exp(root))
    while cost(count) > epsilon:
        count -= 1
    while cost(count + 1) <= epsilon:
        count += 1
    return count


def calibrate_batch_size(
    *,
    epsilon: float,
    delta: float,
    tests: int,
    units: int,
    variance: float = 2.0,
    at_most: int | None = None,
) -> int:
    """Largest batch with which `tests` private Barker tests cost at most (ε, δ).

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 < δ < 1.
    tests : int
        Their number: every iteration of every chain, tuning included.
    units : int
        n, from which each batch is drawn without replacement, in secret.
    variance : float
        C in (1, π²/3): variance of the noise and the batch together.
    at_most : int, optional
        Look at batches up to this size only. Default: all units.

    Returns
    -------
    int
        At least 10.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range, or if no batch is within the budget.

    Notes
    -----
    As the batch grows, the cost falls, because each of its units weighs less, then rises, because more
    of the units are in it, and falls again once sampling no longer helps and only the weight counts. Fifty
    sizes are tried, and the largest within the budget is refined upwards by bisection.

    Examples
    --------
    >>> calibrate_batch_size(epsilon=2.0, delta=1e-6, tests=10_000, units=100_000)
    1377
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    tests, units = whole("tests", tests, 1), whole("units", units, _SMALLEST_BATCH)

    @cache
    def cost(b: int) -> float:
        return composed_epsilon([BarkerBatch(variance, b, units, tests)], delta)

    most = (
        units if at_most is None else min(units, max(_SMALLEST_BATCH, whole("at_most", at_most, 1)))
    )
    sizes = np.unique(np.geomspace(_SMALLEST_BATCH, most, 50).round().astype(int)).tolist()
    within = [i for i, b in enumerate(sizes) if cost(b) <= epsilon]
    if not within:
        cheapest = min(sizes, key=cost)
        raise PrivacyConfigurationError(
            f"No batch of {_SMALLEST_BATCH} units or more is within the budget for {tests:,} tests: "
            f"the cheapest, of about {cheapest}, costs ε = {cost(cheapest):.3g}. Use a larger "
            "`epsilon`, fewer iterations or more data."
        )
    low = sizes[within[-1]]
    high = sizes[within[-1] + 1] if low < most else most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return int(low)
