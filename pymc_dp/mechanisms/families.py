r"""Distributions whose draws are functions of their parameters and of noise of a fixed law.

A variable :math:`x \sim f(\cdot \mid \theta)` of a known family is written
:math:`x = x(\theta, z)`: :math:`\mu + \sigma z` for location-scale families, :math:`\sigma z` for
scale families, and so on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random import basic as rv
from scipy import special


class Family(NamedTuple):
    """How the draws of a distribution are made of noise.

    Attributes
    ----------
    noise : callable
        z from x and the distribution's parameters.
    record : callable
        x from z and the distribution's parameters; for fixed parameters the inverse of `noise`.
    quantile : callable
        Quantile of z at a probability, given the parameters that `shapes` names.
    shapes : tuple of int
        Parameters on which the law of z depends; they must not depend on θ.
    """

    noise: Callable[..., Any]
    record: Callable[..., Any]
    quantile: Callable[..., Any]
    shapes: tuple[int, ...] = ()


def _location_scale(quantile: Callable[..., Any]) -> Family:
    return Family(lambda x, m, s: (x - m) / s, lambda z, m, s: m + s * z, quantile)


def _whiten(x: Any, m: Any, covariance: Any) -> Any:
    centered = (x - m)[..., None]
    return pt.linalg.solve_triangular(
        pt.linalg.cholesky(covariance), centered, lower=True, b_ndim=2
    )[..., 0]


def _color(z: Any, m: Any, covariance: Any) -> Any:
    return m + (pt.linalg.cholesky(covariance) @ z[..., None])[..., 0]


FAMILIES: dict[type, Family] = {
    rv.NormalRV: _location_scale(special.ndtri),
    rv.LaplaceRV: _location_scale(lambda u: np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))),
    rv.LogisticRV: _location_scale(special.logit),
    rv.GumbelRV: _location_scale(lambda u: -np.log(-np.log(u))),
    rv.CauchyRV: _location_scale(lambda u: np.tan(np.pi * (u - 0.5))),
    rv.HalfNormalRV: _location_scale(lambda u: special.ndtri((1 + u) / 2)),
    rv.StudentTRV: Family(
        lambda x, _, m, s: (x - m) / s,
        lambda z, _, m, s: m + s * z,
        lambda u, nu: special.stdtrit(nu, u),
        shapes=(0,),
    ),
    rv.ExponentialRV: Family(lambda x, s: x / s, lambda z, s: s * z, lambda u: -np.log1p(-u)),
    rv.GammaRV: Family(
        lambda x, _, s: x / s,
        lambda z, _, s: s * z,
        lambda u, alpha: special.gammaincinv(alpha, u),
        shapes=(0,),
    ),
    rv.LogNormalRV: Family(
        lambda x, m, s: (pt.log(x) - m) / s, lambda z, m, s: pt.exp(m + s * z), special.ndtri
    ),
    rv.UniformRV: Family(
        lambda x, a, b: (x - a) / (b - a), lambda z, a, b: a + (b - a) * z, lambda u: u
    ),
    rv.MvNormalRV: Family(_whiten, _color, special.ndtri),
}
"""Distributions whose records are moved with θ, and summed over by points of z."""
