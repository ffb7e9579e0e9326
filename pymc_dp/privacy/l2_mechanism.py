r"""What one release by the ℓ2 mechanism costs: its δ at every ε, rounded up.

Noise in d dimensions has a density proportional to :math:`e^{-a \lVert x \rVert}`, with a = 1/z in units of the
L2 sensitivity (Joseph, Kulesza and Yu, 2025). The proofs are on the page of the ℓ2 mechanism.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, kve, roots_jacobi

from pymc_dp.privacy.pld import laplace_delta, pure_delta

Vector = NDArray[np.float64]

# With so many nodes the bound on the error is below 1e-14 of δ up to 1/z = 30 in 10 dimensions, and 20 in 32.
_NODES = 32
_ELLIPSE = 4.0
# Bessel functions, nodes and powers were seen to be wrong by 1e-13 together: some six hundred times that.
_ROUNDING = 2.0**-34
_UNDERFLOW = 1e-290
# Many ε are worked off in parts, so that a part stays in cache.
_TOGETHER = 2**12


def l2_delta(epsilon: ArrayLike, noise_multiplier: float, dimension: int) -> Any:
    r"""δ of one release by the ℓ2 mechanism, never below the true one.

    The worst pair is a shift by the whole sensitivity. Its loss is :math:`a\tau`,
    :math:`\tau \in [-1, 1]`, with density, for :math:`d \ge 2`, b = a/2 and :math:`\nu = d/2 - 1`,

    .. math:: \frac{b\,(b/2)^{\nu+1}}{\sqrt\pi\,\Gamma(\nu + 3/2)}\; e^{b \tau} (1-\tau^2)^{\nu-1/2}
              \Big(\tfrac{2\nu+1}{b} K_{\nu+1}(b) + (1-\tau^2) K_\nu(b)\Big),

    and :math:`\delta(\varepsilon) = E (1 - e^{\varepsilon - a\tau})_+`. With :math:`\tau = 1 - 2q` this is an
    integral over :math:`0 < q < q_1 = (1 - \varepsilon/a)/2` of :math:`q^{\nu-1/2} (q_1 - q)` times a function that
    is positive and analytic around: by Gauss-Jacobi quadrature, to a relative error with a bound, which is added.

    Parameters
    ----------
    epsilon : float or array
        ε ≥ 0.
    noise_multiplier : float
        z > 0.
    dimension : int
        d.
    """
    if dimension == 1:
        return laplace_delta(epsilon, noise_multiplier)
    epsilon = np.asarray(epsilon, float)
    a = (1 + 2.0**-50) / noise_multiplier
    with np.errstate(all="ignore"):
        parts = [
            _quadrature(part, a, dimension)
            for part in np.split(epsilon.ravel(), range(_TOGETHER, epsilon.size, _TOGETHER))
        ]
        delta = np.concatenate(parts).reshape(epsilon.shape) * _inflation(a / 2, dimension)
        delta += _UNDERFLOW
    # What every 1/z-private mechanism keeps, and where the quadrature is no number, alone.
    pure = pure_delta(epsilon, a)
    return np.where(delta < pure, delta, pure)[()]


def l2_deviation(noise_multiplier: float, dimension: int) -> float:
    """About the standard deviation of the loss of :func:`l2_delta`'s pair."""
    return 1 / (noise_multiplier * math.sqrt(dimension))


def _quadrature(epsilon: Vector, a: float, dimension: int) -> Vector:
    b, nu = a / 2, dimension / 2 - 1
    # e^b times the two Bessel functions; e^(-a q) below is short of e^(bτ) by as much.
    first, second = (2 * nu + 1) / b * kve(nu + 1, b), kve(nu, b)
    end = np.maximum((a - epsilon) / a, 0.0)[:, None] / 2
    nodes, weights = _rule(nu)
    q = end * nodes
    gap = 2 * a * end * (1 - nodes)  # of the loss and ε
    smooth = (1 - q) ** (nu - 0.5) * (1 + 4 * q * (1 - q) * (second / first))
    smooth *= np.exp(-a * q) * np.where(gap > 0, -np.expm1(-gap) / gap, 1.0)
    log_factor = (nu + 3) * math.log(b) + (nu + 1) * math.log(2) + np.log(first)
    log_factor -= gammaln(nu + 1.5) + math.log(math.pi) / 2
    return np.asarray((smooth @ weights) * np.exp(log_factor + (nu + 1.5) * np.log(end[:, 0])))


@cache
def _rule(nu: float) -> tuple[Vector, Vector]:
    r"""Gauss-Jacobi nodes and weights of :math:`u^{\nu-1/2} (1-u)` on [0, 1]."""
    nodes, weights = roots_jacobi(_NODES, 1.0, nu - 0.5)
    return (1 + nodes) / 2, weights / 2 ** (nu + 1.5)


def _inflation(b: float, dimension: int) -> float:
    r"""What the quadrature has to be multiplied by, so that it is not below the integral.

    A rule of n positive weights that is exact up to the degree 2n - 1 is wrong by no more than
    :math:`4 M \varrho^{1-2n}/(\varrho - 1)` times the whole weight, if the integrand is at most M on Bernstein's
    ellipse of the parameter ϱ (Trefethen, *Approximation Theory and Approximation Practice*, 2013, Theorem 8.2).
    Its ratio to the least value on the interval is bounded here at ε = 0, where it is largest.
    """
    power, axis = (dimension - 3) / 2, (_ELLIPSE + 1 / _ELLIPSE) / 2
    # Bounds on |q|, and on how far q is left of 0 or right of q₁.
    largest, beyond = (1 + axis) / 4, (axis - 1) / 4
    growth = 4 * largest * (1 + largest) * b  # of the second Bessel term, as K_ν < K_{ν+1}
    log_ratio = (
        max(power * math.log1p(largest), power * math.log1p(-largest))
        + max(power, 0.0) * math.log(2)
        + math.log1p(growth)
        + 6 * b * beyond
        + b
        + math.log(2 * b / -math.expm1(-2 * b))
    )
    log_error = log_ratio + math.log(4 / (_ELLIPSE - 1)) + (1 - 2 * _NODES) * math.log(_ELLIPSE)
    return (1 + _ROUNDING) / (1 - math.exp(log_error)) if log_error < -1 else math.inf
