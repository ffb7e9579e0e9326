r"""Rényi differential privacy of releases on a batch drawn without replacement.

A curve maps integer orders α to ε'(α), a bound on the Rényi divergence :math:`D_\alpha` between the
outputs on two batches that differ in one unit; infinite where there is no bound. Sampling b of n units
turns it into a smaller curve ε(α) for the data set (:func:`without_replacement`). Curves of
several releases add up, and :func:`rdp_epsilon` reads (ε, δ) off the sum.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Vector = NDArray[np.float64]
Curve = Callable[[Vector], Vector]

ORDERS = np.unique(np.r_[2:257, np.geomspace(256, 4096, 60).astype(int)]).astype(np.float64)
"""The orders that are tried."""


def gaussian_curve(alpha: Vector, noise_multiplier: float) -> Vector:
    """ε'(α) = α / 2z²: Theorem 3.5 of Räisä (2021), with its τ = z²."""
    return alpha / 2 / noise_multiplier**2


def barker_curve(alpha: Vector, variance: float, batch_size: int) -> Vector:
    r"""ε'(α) of one Barker test on a batch of b units, noise and batch variance C together.

    With :math:`h = 4(b-1)/b^2`, how far one unit moves the batch's variance, :math:`v = C - 1`, the
    smallest noise variance, and :math:`c = 1 - (\alpha - 1) h / v`,

    .. math:: \varepsilon'(\alpha) = -\tfrac12 \ln(1 + h/v) - \frac{\ln c}{2(\alpha - 1)}
              + \frac{2 \alpha}{b v c},

    infinite where c ≤ 0. Derived in ``docs/subsampled_accounting.md``; it replaces the constants of
    Heikkilä et al. (2019), :func:`published_barker_curve`.
    """
    smallest = variance - 1
    x = 4 * (batch_size - 1) / batch_size**2 / smallest
    with np.errstate(all="ignore"):
        spare = 1 - (alpha - 1) * x
        shape = -np.log1p(-(alpha - 1) * x) / (2 * (alpha - 1)) - math.log1p(x) / 2
        shift = 2 * alpha / (batch_size * smallest * spare)
        return np.where(spare > 0, shape + shift, np.inf)


def published_barker_curve(alpha: Vector, batch_size: int) -> Vector:
    """ε'(α) of Theorem 3.3 of Räisä (2021), for C = 2 and α < b/5. To reproduce the papers."""
    b = batch_size
    with np.errstate(all="ignore"):
        room = b - 5 * alpha
        curve = 5 / (2 * b) + np.log(2 * b / room) / (2 * (alpha - 1)) + 2 * alpha / room
        return np.where(room > 0, curve, np.inf)


def without_replacement(curve: Curve, sampling_rate: float, orders: Vector = ORDERS) -> Vector:
    r"""ε(α) under substitute-one when the batch is drawn without replacement at rate q = b/n.

    .. math:: \varepsilon(\alpha) = \frac{1}{\alpha - 1} \ln\Big(1
              + q^2 \tbinom{\alpha}{2} \min\{4(e^{\varepsilon'(2)} - 1), 2 e^{\varepsilon'(2)}\}
              + 2 \sum_{j=3}^{\alpha} q^j \tbinom{\alpha}{j} e^{(j-1) \varepsilon'(j)}\Big)

    Wang, Balle and Kasiviswanathan (2019), Theorem 9, as in Theorems 3.3 and 3.5 of Räisä (2021);
    all in logarithms. Never above ε'(α), which holds too, as Rényi divergence is quasi-convex.

    Parameters
    ----------
    curve : callable
        ε' at an array of integer orders ≥ 2.
    sampling_rate : float
        q in (0, 1].
    orders : ndarray
        Integers ≥ 2.
    """
    batch = curve(orders)
    j = np.arange(2.0, orders[np.isfinite(batch)].max(initial=2.0) + 1)
    at_j = curve(j)
    with np.errstate(divide="ignore"):
        second = np.minimum(math.log(4) + np.log(-np.expm1(-at_j[0])), math.log(2)) + at_j[0]
    log_term = math.log(2) + (j - 1) * at_j
    log_term[0] = second
    log_term += j * math.log(sampling_rate) - gammaln(j + 1)
    sampled = np.full(orders.shape, np.inf)
    for i in np.flatnonzero(np.isfinite(batch)):
        alpha = orders[i]
        upto = j <= alpha
        log_sum = np.logaddexp.reduce(
            log_term[upto] + gammaln(alpha + 1) - gammaln(alpha - j[upto] + 1)
        )
        sampled[i] = np.logaddexp(0.0, log_sum) / (alpha - 1)
    # The log-factorials round: 1e-11 of the sum, at the largest order.
    return np.asarray(np.minimum(sampled, batch) * (1 + 1e-9))


def rdp_epsilon(rdp: Vector, delta: float, orders: Vector = ORDERS) -> float:
    r"""ε at which a mechanism with this Rényi curve is (ε, δ)-DP; infinite if no order is bounded.

    .. math:: \varepsilon = \min_\alpha\; \varepsilon(\alpha) + \ln(1 - 1/\alpha)
              - \frac{\ln(\alpha \delta)}{\alpha - 1}

    Canonne, Kamath and Steinke (2020), Proposition 12.
    """
    return max(0.0, float(np.min(rdp + _conversion(delta, orders))))


def rdp_count(rdp: Vector, epsilon: float, delta: float, orders: Vector = ORDERS) -> int:
    """Largest number of releases, each with this Rényi curve, that :func:`rdp_epsilon` lets through."""
    count = math.floor(np.max((epsilon - _conversion(delta, orders)) / np.maximum(rdp, 1e-300)))
    # The division rounds.
    while count > 0 and rdp_epsilon(count * rdp, delta, orders) > epsilon:
        count -= 1
    return max(count, 0)


def _conversion(delta: float, orders: Vector) -> Vector:
    return np.asarray(np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
