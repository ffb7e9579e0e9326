"""From a budget (ε, δ) to a noise multiplier, or to a number of draws."""

import math
from typing import Literal

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.accounting import (
    gaussian_epsilon,
    gaussian_mu,
    gaussian_mu_within,
    zcdp_rho_within,
)
from pymc_dp.privacy.events import Gaussian


def _check_multiplier(name: str, value: float) -> float:
    if isinstance(value, bool) or not (
        isinstance(value, int | float) and math.isfinite(value) and value > 0
    ):
        raise PrivacyConfigurationError(f"`{name}` must be a positive number. Found {value!r}.")
    return float(value)


def calibrate_noise(*, epsilon: float, delta: float, draws: int) -> float:
    """Noise multiplier z such that `draws` Gaussian releases cost at most (ε, δ).

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 < δ < 1.
    draws : int
        Number of releases: every iteration of every chain, tuning included.

    Returns
    -------
    float
        Standard deviation of the noise / sensitivity, for each release. The ε reported for it is
        never above `epsilon`.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range.

    Notes
    -----
    Theorem 2.11 of Räisä (2021), solved for the variance. The papers' τ is z/√n.

    Examples
    --------
    >>> round(calibrate_noise(epsilon=1.0, delta=1e-6, draws=1000), 1)
    133.6
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise PrivacyConfigurationError(
            f"`draws` must be a whole number, one or more. Found {draws!r}."
        )
    mu = gaussian_mu_within(epsilon, delta)
    if math.isinf(mu):
        return 0.0
    z = math.sqrt(draws) / mu
    step = 2.0**-52
    while gaussian_epsilon(gaussian_mu([Gaussian(z, draws)]), delta) > epsilon:
        z, step = z * (1 + step), 2 * step
    return z


def max_draws(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    gradient_multiplier: float | None = None,
    gradients_per_draw: int = 0,
    accountant: Literal["gaussian", "zcdp"] = "gaussian",
) -> int:
    """Largest number of draws that (ε, δ) pays for.

    Parameters
    ----------
    epsilon, delta : float
        The budget; ε > 0, 0 < δ < 1.
    noise_multiplier : float
        z of the log-likelihood ratio, released once per draw.
    gradient_multiplier : float, optional
        z of a gradient release.
    gradients_per_draw : int
        Gradient releases per draw: L + 1 for L leapfrog steps.
    accountant : {"gaussian", "zcdp"}
        The tight bound (Theorems 3.2 and 4.7 of Räisä, 2021), or zCDP's (3.1 and 4.6).

    Returns
    -------
    int
        All chains together, tuning included. 0 if not even one is affordable.

    Raises
    ------
    PrivacyConfigurationError
        If a number is out of its range.

    Notes
    -----
    The number of Algorithm 2 of Räisä (2021), reached through the largest affordable μ, as μ² is
    proportional to the number of draws; beyond ten million draws the safety margin of the reported
    ε may make it one smaller.

    Examples
    --------
    >>> max_draws(epsilon=4.0, delta=1e-6, noise_multiplier=0.1 * 1e5**0.5)
    702
    """
    counted = isinstance(gradients_per_draw, int) and not isinstance(gradients_per_draw, bool)
    if not counted or gradients_per_draw < (0 if gradient_multiplier is None else 1):
        raise PrivacyConfigurationError(
            "`gradients_per_draw` must be a whole number, one or more if there is a "
            f"`gradient_multiplier`. Found {gradients_per_draw!r}."
        )
    if gradients_per_draw and gradient_multiplier is None:
        raise PrivacyConfigurationError(
            "`gradients_per_draw` needs a `gradient_multiplier`: the noise multiplier of one "
            "gradient release."
        )
    one_draw = [Gaussian(_check_multiplier("noise_multiplier", noise_multiplier))]
    if gradient_multiplier is not None:
        z = _check_multiplier("gradient_multiplier", gradient_multiplier)
        one_draw.append(Gaussian(z, gradients_per_draw))
    if accountant == "gaussian":
        affordable = gaussian_mu_within(epsilon, delta) ** 2
    elif accountant == "zcdp":
        affordable = 2 * zcdp_rho_within(epsilon, delta)
    else:
        raise PrivacyConfigurationError(
            f"`accountant` must be 'gaussian' or 'zcdp'. Found {accountant!r}."
        )
    if math.isinf(affordable):
        raise PrivacyConfigurationError(
            "`epsilon` must be finite here: any number of draws fits an infinite budget."
        )
    draws = math.floor(affordable / gaussian_mu(one_draw) ** 2)
    if accountant == "gaussian":
        # The division rounds; the accountant has the last word.
        more = [Gaussian(e.noise_multiplier, e.count * (draws + 1)) for e in one_draw]
        draws += bool(gaussian_epsilon(gaussian_mu(more), delta) <= epsilon)
    return draws
