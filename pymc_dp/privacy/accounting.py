r"""From events to (ε, δ).

Gaussian releases compose in closed form; whatever else there is goes through dp-accounting.
Every number returned is rounded against us: a reported ε or δ is never below the true one.

Notation: :math:`z_j` noise multiplier of release j, :math:`\mu = (\sum_j z_j^{-2})^{1/2}` the
Gaussian-DP parameter, :math:`\rho = \mu^2/2` the zCDP parameter.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfc, erfcx

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.events import Event, Gaussian, Laplace

# A reported ε is pushed up by this much, so that neither our rounding nor the tolerance of any
# other accountant's root finder can make it look too small.
_RELATIVE_MARGIN = 1e-9
_ABSOLUTE_MARGIN = 1e-11

# Above this, mixed releases are added up (basic composition): the discretised privacy loss
# would not fit in memory.
_LARGE_EPSILON = 200.0


def check_epsilon(epsilon: float) -> float:
    """`epsilon` itself, if it is a positive number (infinity included)."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float | np.number):
        raise PrivacyConfigurationError(f"`epsilon` must be a number. Found {epsilon!r}.")
    if not epsilon > 0:
        raise PrivacyConfigurationError(f"`epsilon` must be positive. Found {epsilon!r}.")
    return float(epsilon)


def check_delta(delta: float) -> float:
    """`delta` itself, if it lies strictly between 0 and 1."""
    if isinstance(delta, bool) or not isinstance(delta, int | float | np.number):
        raise PrivacyConfigurationError(f"`delta` must be a number. Found {delta!r}.")
    if not 0 < delta < 1:
        raise PrivacyConfigurationError(
            f"`delta` must lie strictly between 0 and 1. Found {delta!r}."
        )
    return float(delta)


def gaussian_mu(events: Iterable[Gaussian]) -> float:
    r""":math:`\mu` of the composition of Gaussian `events` (Dong, Roth and Su, 2022)."""
    return math.hypot(
        *(
            math.sqrt(e.count) / e.noise_multiplier if e.noise_multiplier > 0 else math.inf
            for e in events
        )
    )


def gaussian_delta(epsilon: ArrayLike, mu: ArrayLike) -> Any:
    r"""δ at which a composition of Gaussian releases is (ε, δ)-DP: tight.

    .. math:: \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu)
              - e^{\varepsilon}\, \Phi(-\mu/2 - \varepsilon/\mu)

    Balle and Wang (2018), Theorem 8; Theorem 2.11, 3.2 and 4.7 of Räisä (2021) with their
    :math:`\mu` equal to :math:`\mu^2/2` here. The result is rounded up.

    Parameters
    ----------
    epsilon, mu : float or array
        ε ≥ 0 and μ ≥ 0, broadcast together.
    """
    epsilon, mu = np.asarray(epsilon, float), np.asarray(mu, float)
    with np.errstate(all="ignore"):
        a = (epsilon - mu**2 / 2) / (math.sqrt(2) * mu)
        b = (epsilon + mu**2 / 2) / (math.sqrt(2) * mu)
        # e^ε Φ(-√2 b) = e^(-a²) erfcx(b) / 2 because b² - a² = ε: no overflow, and for a > 0 the
        # common factor e^(-a²) comes out, so tiny δ keep their relative accuracy.
        tail, cut = np.exp(-(a**2)), erfcx(b)
        first = np.where(a > 0, tail * erfcx(np.maximum(a, 0.0)), erfc(a))
        second = tail * cut
        # ε - μ²/2 cancels, which leaves an error of an ulp of b in a.
        error = 2.0**-49 * (1 + b * (1 + abs(a))) * (first + second)
        delta = np.clip((first - second) / 2 + error, 0.0, 1.0)
        delta = np.where((a > 0) & np.isinf(a**2), 0.0, delta)  # where 0 · ∞ gave NaN
    delta = np.where(mu == 0, 0.0, np.where(np.isinf(mu), 1.0, delta))
    return delta[()]


def gaussian_epsilon(mu: ArrayLike, delta: float) -> Any:
    r"""Smallest ε at which a composition of Gaussian releases is (ε, δ)-DP, rounded up.

    Parameters
    ----------
    mu : float or array
        Gaussian-DP parameter(s), see :func:`gaussian_mu`.
    delta : float
        δ in (0, 1).

    Returns
    -------
    float or array
        ε, never below the exact value; 0 if (0, δ) already holds; inf for infinite μ.
    """
    delta = check_delta(delta)
    mu = np.asarray(mu, float)
    finite = np.where(np.isfinite(mu), mu, 0.0)
    rho = finite**2 / 2
    low = np.zeros_like(finite)
    high = rho + 2 * np.sqrt(rho * math.log(1 / delta))  # zCDP's bound: valid, and loose
    for _ in range(80):
        middle = (low + high) / 2
        enough = gaussian_delta(middle, finite) <= delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    at_zero = gaussian_delta(0.0, finite) <= delta
    epsilon = np.where(at_zero, 0.0, high * (1 + _RELATIVE_MARGIN) + _ABSOLUTE_MARGIN)
    return np.where(np.isfinite(mu), epsilon, math.inf)[()]


def gaussian_mu_within(epsilon: float, delta: float) -> float:
    r"""Largest :math:`\mu` that :func:`gaussian_epsilon` reports at or below `epsilon`."""
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    target = (epsilon - _ABSOLUTE_MARGIN) / (1 + _RELATIVE_MARGIN)
    low, high = 0.0, 1.0
    while gaussian_delta(max(target, 0.0), high) <= delta:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if gaussian_delta(max(target, 0.0), middle) <= delta:
            low = middle
        else:
            high = middle
    # The two bisections end within an ulp of each other; step below it.
    return low * (1 - 2.0**-48)


def zcdp_rho_within(epsilon: float, delta: float) -> float:
    r"""Largest ρ whose zCDP conversion is (ε, δ)-DP: :math:`(\sqrt{ε-\ln δ}-\sqrt{-\ln δ})^2`.

    Theorem 3.1 of Räisä (2021); looser than :func:`gaussian_epsilon`, kept to reproduce it.
    """
    epsilon, log_delta = check_epsilon(epsilon), math.log(check_delta(delta))
    return (math.sqrt(epsilon - log_delta) - math.sqrt(-log_delta)) ** 2


def composed_epsilon(events: Iterable[Event], delta: float) -> float:
    """ε at which the adaptive composition of `events` is (ε, δ)-DP, rounded up.

    Gaussian releases alone use :func:`gaussian_epsilon`. With others among them, the privacy loss
    distributions are composed by dp-accounting, whose discretisation rounds up too.

    Parameters
    ----------
    events : iterable of Event
        What has been, or will be, released; none at all costs 0.
    delta : float
        δ in (0, 1).
    """
    events = list(events)
    delta = check_delta(delta)
    unknown = {type(e).__name__ for e in events if not isinstance(e, Gaussian | Laplace)}
    if unknown:
        raise PrivacyConfigurationError(f"No accountant for releases of type {sorted(unknown)}.")
    gaussians = [e for e in events if isinstance(e, Gaussian)]
    others = [e for e in events if isinstance(e, Laplace)]
    mu = gaussian_mu(gaussians)
    if not others:
        return float(gaussian_epsilon(mu, delta))
    if math.isinf(mu) or any(e.noise_multiplier == 0 for e in others):
        return math.inf

    pure = math.fsum(e.count / e.noise_multiplier for e in others)
    simple = (float(gaussian_epsilon(mu, delta)) + pure) * (1 + _RELATIVE_MARGIN)
    if simple > _LARGE_EPSILON:
        return simple

    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant

    # The relation is already inside our multipliers. ADD_OR_REMOVE_ONE is the relation under
    # which dp-accounting leaves a multiplier as it is; REPLACE_ONE would double the sensitivity.
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    if mu > 0:
        accountant.compose(dp_event.GaussianDpEvent(1 / mu))
    for e in others:
        accountant.compose(dp_event.LaplaceDpEvent(e.noise_multiplier), e.count)
    return min(simple, float(accountant.get_epsilon(delta)) * (1 + _RELATIVE_MARGIN))


def spending_curve(events: tuple[Event, ...], iterations: int, delta: float) -> NDArray[np.float64]:
    """ε after 1, 2, …, `iterations` repetitions of `events`, each at `delta`.

    Laplace releases are added by basic composition.
    """
    k = np.arange(1, iterations + 1)
    mu = gaussian_mu(e for e in events if isinstance(e, Gaussian))
    others = [e for e in events if isinstance(e, Laplace)]
    pure = sum(e.count / e.noise_multiplier if e.noise_multiplier else math.inf for e in others)
    return np.asarray(gaussian_epsilon(mu * np.sqrt(k), delta)) + k * pure
