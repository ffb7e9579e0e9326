r"""From events to (ε, δ).

Gaussian releases compose in closed form. With others among them, privacy loss distributions are composed (:mod:`~pymc_dp.privacy.pld`); batches drawn without replacement go through
Rényi divergences (:mod:`~pymc_dp.privacy.rdp`). Every number returned is rounded against us: a
reported ε or δ is never below the true one.

Notation: :math:`z_j` noise multiplier of release j, :math:`\mu = (\sum_j z_j^{-2})^{1/2}` the
Gaussian-DP parameter, :math:`\rho = \mu^2/2` the zCDP parameter.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import erfc, erfcx

from pymc_dp.checks import check_delta, check_epsilon
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.events import (
    BarkerBatch,
    Event,
    Gaussian,
    GaussianOrL2,
    L2Mechanism,
    Laplace,
    PoissonGaussian,
    Pure,
    times,
)
from pymc_dp.privacy.l2_mechanism import l2_delta, l2_deviation
from pymc_dp.privacy.pld import (
    Pair,
    laplace_delta,
    pld_epsilon,
    poisson_gaussian_delta,
    poisson_gaussian_deviation,
    pure_delta,
)
from pymc_dp.privacy.rdp import ORDERS, barker_curve, rdp_epsilon, without_replacement

# A reported ε is pushed up by this much, so that neither our rounding nor the tolerance of any
# other accountant's root finder can make it look too small.
_RELATIVE_MARGIN = 1e-9
_ABSOLUTE_MARGIN = 1e-11

# Outside these ranges the formulas of privacy loss distributions overflow, and simpler bounds do: ε is
# beyond any use below the first range of multipliers, and next to nothing above it.
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-6, 1e9
_LEAST_DELTA = 1e-100

# Shares of δ for the Barker batches of a mixture; the rest of the releases get what is left.
_SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)

_CURVE_POINTS = 24

# What is left of a budget is 0 below this part of it, as a power of e.
_NEGLIGIBLE = 10.0


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
    r"""Largest :math:`\mu` that :func:`gaussian_epsilon` reports at or below `epsilon`, to a relative 1e-12.

    Safe as it stands: the margin of the reported ε is a thousand times as wide.
    """
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
    # A step below where the bisection ends.
    return low * (1 - 2.0**-48)


def zcdp_rho_within(epsilon: float, delta: float) -> float:
    r"""Largest ρ whose zCDP conversion is (ε, δ)-DP: :math:`(\sqrt{ε-\ln δ}-\sqrt{-\ln δ})^2`.

    Theorem 3.1 of Räisä (2021); looser than :func:`gaussian_epsilon`, kept to reproduce it.
    """
    epsilon, log_delta = check_epsilon(epsilon), math.log(check_delta(delta))
    return (math.sqrt(epsilon - log_delta) - math.sqrt(-log_delta)) ** 2


def composed_epsilon(events: Iterable[Event], delta: float) -> float:
    """ε at which the adaptive composition of `events` is (ε, δ)-DP, rounded up.

    Gaussian releases alone use :func:`gaussian_epsilon`. With Laplace, ℓ2 or Poisson-sampled Gaussian
    releases among them, privacy loss distributions are composed. Barker batches add up in Rényi
    divergence; they and the rest share δ. At δ = 0 the ε of pure releases add up, and others cost infinitely much.

    Parameters
    ----------
    events : iterable of Event
        What has been, or will be, released; none at all costs 0.
    delta : float
        δ in [0, 1). At 0 the ε of pure releases add up, and others have none.

    Notes
    -----
    Every bound that applies is computed and the smallest is reported. Sharing δ is valid although
    releases of both kinds may alternate, each chosen in the light of all earlier ones: concurrent
    composition of interactive mechanisms (Lyu, 2022; Vadhan and Zhang, 2022).
    """
    events = list(events)
    delta = check_delta(delta, zero_allowed=True)
    unknown = {type(e).__name__ for e in events if not isinstance(e, Event)}
    if unknown:
        raise PrivacyConfigurationError(f"No accountant for releases of type {sorted(unknown)}.")
    if delta == 0:
        return _least_above(_pure_total(events))
    events = _merged(events)
    batches = [e for e in events if isinstance(e, BarkerBatch)]
    others = [e for e in events if not isinstance(e, BarkerBatch)]
    if not batches:
        return _additive_noise_epsilon(others, delta)

    rdp = np.zeros(ORDERS.shape)
    for e in batches:
        curve = partial(barker_curve, variance=e.variance, batch_size=e.batch_size)
        rdp += e.count * without_replacement(curve, e.batch_size / e.units)
    if not others:
        return _rounded_up(rdp_epsilon(rdp, delta))
    bounds = [
        rdp_epsilon(rdp, share * delta) + _additive_noise_epsilon(others, (1 - share) * delta)
        for share in _SHARES
    ]
    gaussians = [e for e in others if isinstance(e, Gaussian)]
    if len(gaussians) == len(others):
        bounds.append(rdp_epsilon(rdp + ORDERS * gaussian_mu(gaussians) ** 2 / 2, delta))
    return _rounded_up(min(bounds))


def _pure_total(events: Iterable[Event]) -> Fraction | float:
    """Sum of the ε of pure releases, exact; infinite if there are others."""
    total = Fraction(0)
    for e in events:
        match e:
            case Pure():
                total += e.count * Fraction(e.epsilon)
            case Laplace() | L2Mechanism() if e.noise_multiplier > 0:
                total += e.count / Fraction(e.noise_multiplier)
            case _:
                return math.inf
    return total


def _least_above(number: Fraction | float) -> float:
    """The least float that is not below."""
    nearest = float(number)
    return nearest if nearest >= number else math.nextafter(nearest, math.inf)


def epsilon_that_fits(events: Iterable[Event], epsilon: float, delta: float) -> float:
    """Largest ε, at `delta`, of Gaussian releases that may follow `events` within (ε, δ); rounded down.

    At δ = 0 it is that of pure releases.

    Parameters
    ----------
    events : iterable of Event
        What has been released.
    epsilon, delta : float
        The budget of both together.
    """
    events = list(events)
    if math.isinf(epsilon) or not events:
        return epsilon
    if delta == 0:
        return max(-_least_above(_pure_total(events) - Fraction(epsilon)), 0.0)
    if not composed_epsilon(events, delta) < epsilon:
        return 0.0
    mu = gaussian_mu_within(epsilon, delta)
    gaussians = [e for e in events if isinstance(e, Gaussian)]
    if len(gaussians) == len(events):
        left = mu * mu - gaussian_mu(gaussians) ** 2
        mu = math.sqrt(max(left, 0.0))
    else:

        def excess(log_mu: float) -> float:
            return composed_epsilon([*events, Gaussian(math.exp(-log_mu))], delta) - epsilon

        least = math.log(mu) - _NEGLIGIBLE
        if excess(least) > 0:
            return 0.0
        mu = math.exp(brentq(excess, least, math.log(mu) + 1e-6, xtol=1e-6) - 2e-6)
    # A run's own ε, and that of all of them, are pushed up.
    return float(gaussian_epsilon(mu, delta)) * (1 - 4 * _RELATIVE_MARGIN)


def _merged(events: Iterable[Event]) -> list[Event]:
    """`events` with equal ones counted together, and no sampling where it does not matter."""
    counts: dict[Event, int] = {}
    for e in events:
        if isinstance(e, PoissonGaussian) and (
            e.sampling_rate == 1 or e.noise_multiplier > _LARGEST_MULTIPLIER
        ):
            e = Gaussian(e.noise_multiplier, e.count)
        one = replace(e, count=1)
        counts[one] = counts.get(one, 0) + e.count
    return [replace(one, count=count) for one, count in counts.items()]


def _additive_noise_epsilon(events: Sequence[Event], delta: float) -> float:
    bounds = [bound for e in events for bound in _gaussian_bound(e)]
    simple = float(gaussian_epsilon(gaussian_mu(bounds), delta))
    gaussians = [e for e in events if isinstance(e, Gaussian)]
    if len(gaussians) == len(events) or math.isinf(simple):
        return simple
    simple += _rounded_up(math.fsum(map(_pure_epsilon, events)))
    if delta < _LEAST_DELTA or math.isinf(simple):
        return simple
    least = min(
        *(e.noise_multiplier for e in bounds),
        *(e.count / pure for e in events if (pure := _pure_epsilon(e))),
        math.inf,
    )
    if least < _LEAST_MULTIPLIER:
        return simple
    pairs = [_pair(e) for e in events if not isinstance(e, Gaussian)]
    if gaussians:
        mu = gaussian_mu(gaussians)
        pairs.append(Pair(partial(gaussian_delta, mu=mu), mu, 1))
    return min(simple, _rounded_up(pld_epsilon(pairs, delta)))


def _gaussian_bound(event: Event) -> tuple[Gaussian, ...]:
    """What bounds a release together with its :func:`_pure_epsilon`, as if both had been released."""
    match event:
        case Gaussian():
            return (event,)
        case PoissonGaussian():
            return (Gaussian(event.noise_multiplier, event.count),)
        case GaussianOrL2():
            return (Gaussian(event.gaussian_multiplier, event.count),)
    return ()


def _pure_epsilon(event: Event) -> float:
    """ε of the pure part of releases, by basic composition; 0 if they have none."""
    match event:
        case Laplace() | L2Mechanism():
            return event.count / event.noise_multiplier if event.noise_multiplier else math.inf
        case GaussianOrL2():
            return event.count / event.l2_multiplier if event.l2_multiplier else math.inf
        case Pure():
            return event.count * event.epsilon
    return 0.0


def _pair(event: Event) -> Pair:
    """The worst case of a release with other than Gaussian noise."""
    match event:
        case Laplace(z, count):
            return Pair(partial(laplace_delta, noise_multiplier=z), 1 / z, count)
        case Pure(total, count):
            return Pair(partial(pure_delta, total=total), total, count)
        case PoissonGaussian(z, q, count):
            one = partial(poisson_gaussian_delta, noise_multiplier=z, sampling_rate=q)
            return Pair(one, poisson_gaussian_deviation(z, q), count)
        case L2Mechanism(z, d, count):
            return Pair(
                partial(l2_delta, noise_multiplier=z, dimension=d), l2_deviation(z, d), count
            )
        case GaussianOrL2(z, l2, d, count):

            def dearer(epsilon: ArrayLike) -> Any:
                return np.maximum(gaussian_delta(epsilon, 1 / z), l2_delta(epsilon, l2, d))

            return Pair(dearer, max(1 / z, l2_deviation(l2, d)), count)
    raise TypeError(type(event).__name__)


def _rounded_up(epsilon: float) -> float:
    return epsilon and epsilon * (1 + _RELATIVE_MARGIN) + _ABSOLUTE_MARGIN


def spending_curve(
    events: tuple[Event, ...], iterations: int, delta: float, once: tuple[Event, ...] = ()
) -> NDArray[np.float64]:
    """ε after `once` and 1, 2, …, `iterations` repetitions of `events`, each at `delta`.

    Laplace releases are added by basic composition. With sampled releases among them, the cost of
    some numbers of repetitions is computed, the last included, and stands for all numbers up to it.
    """
    k = np.arange(1, iterations + 1)
    if delta == 0 or not all(isinstance(e, Gaussian | Laplace) for e in (*once, *events)):
        some = np.geomspace(1, iterations, _CURVE_POINTS) if events else np.array([iterations])
        points = np.unique(some.round().astype(int))
        cost = np.array([composed_epsilon((*once, *times(events, int(n))), delta) for n in points])
        # What more repetitions cost at most, fewer do.
        cost = np.minimum.accumulate(cost[::-1])[::-1]
        return np.asarray(cost[np.searchsorted(points, k)])
    mu, first = (gaussian_mu(e for e in some if isinstance(e, Gaussian)) for some in (events, once))
    pure, at_first = (sum(map(_pure_epsilon, some)) for some in (events, once))
    total = np.hypot(first, mu * np.sqrt(k))
    return np.asarray(gaussian_epsilon(total, delta)) + at_first + k * pure
