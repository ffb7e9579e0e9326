"""Discrete Laplace and discrete Gaussian distributions for PyMC models."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.dist_math import check_parameters, normal_lcdf
from pytensor.tensor.random.op import RandomVariable


def draw_discrete_laplace(
    rng: np.random.Generator, scale: Any, size: tuple[int, ...]
) -> NDArray[np.int64]:
    r"""Integers with mass :math:`\propto e^{-|k|/b}`: a difference of two geometric variables."""
    with np.errstate(divide="ignore"):  # no noise where the scale is 0
        stop = -np.expm1(-1.0 / np.asarray(scale, float))
    return rng.geometric(stop, size=size) - rng.geometric(stop, size=size)


def draw_discrete_gaussian(
    rng: np.random.Generator, sigma: Any, size: tuple[int, ...]
) -> NDArray[np.int64]:
    r"""Integers with mass :math:`\propto e^{-k^2/2\sigma^2}`.

    Rejection from the discrete Laplace distribution, after Canonne, Kamath and Steinke (2020),
    Algorithm 3, in floating point: for simulating data, not for releasing them.
    """
    sigma = np.broadcast_to(np.asarray(sigma, float), size)
    t = np.floor(sigma) + 1
    draws = np.zeros(size, dtype=np.int64)
    waiting = sigma > 0
    while waiting.any():
        s, b = sigma[waiting], t[waiting]
        y = draw_discrete_laplace(rng, b, s.shape)
        accepted = rng.random(s.shape) < np.exp(-((np.abs(y) - s**2 / b) ** 2) / (2 * s**2))
        index = np.nonzero(waiting)
        draws[tuple(i[accepted] for i in index)] = y[accepted]
        waiting[tuple(i[accepted] for i in index)] = False
    return draws


def draw_noise(
    rng: np.random.Generator, family: str, discrete: bool, scale: Any, size: tuple[int, ...]
) -> NDArray[Any]:
    """Noise of a mechanism, for simulating releases; none where the scale is 0."""
    if family == "laplace":
        return draw_discrete_laplace(rng, scale, size) if discrete else rng.laplace(0, scale, size)
    return draw_discrete_gaussian(rng, scale, size) if discrete else rng.normal(0, scale, size)


class _DiscreteNoiseRV(RandomVariable):
    signature = "(),()->()"
    dtype = "int64"

    @classmethod
    def _add(cls, draw: Any, rng: Any, mu: Any, scale: Any, size: Any) -> Any:
        size = np.broadcast_shapes(np.shape(mu), np.shape(scale)) if size is None else tuple(size)
        return np.asarray(np.rint(mu).astype(np.int64) + draw(rng, scale, size))


class DiscreteLaplaceRV(_DiscreteNoiseRV):
    """An integer plus discrete Laplace noise."""

    name = "discrete_laplace"
    _print_name = ("DiscreteLaplace", "\\operatorname{DiscreteLaplace}")

    @classmethod
    def rng_fn(cls, rng: Any, mu: Any, scale: Any, size: Any) -> Any:
        """See :class:`DiscreteLaplace`."""
        return cls._add(draw_discrete_laplace, rng, mu, scale, size)


class DiscreteGaussianRV(_DiscreteNoiseRV):
    """An integer plus discrete Gaussian noise."""

    name = "discrete_gaussian"
    _print_name = ("DiscreteGaussian", "\\operatorname{DiscreteGaussian}")

    @classmethod
    def rng_fn(cls, rng: Any, mu: Any, scale: Any, size: Any) -> Any:
        """See :class:`DiscreteGaussian`."""
        return cls._add(draw_discrete_gaussian, rng, mu, scale, size)


class _DiscreteNoise(pm.Discrete):
    @classmethod
    def dist(cls, mu: Any, scale: Any, **kwargs: Any) -> Any:
        return super().dist([pt.as_tensor(mu), pt.as_tensor(scale).astype("float64")], **kwargs)

    @staticmethod
    def support_point(rv: Any, size: Any, mu: Any, scale: Any) -> Any:
        mu = pt.round(mu)
        return mu if size is None or getattr(size.type, "data", 0) is None else pt.full(size, mu)


class DiscreteLaplace(_DiscreteNoise):
    r"""Mass :math:`\tanh(1/2b)\, e^{-|k - \mu|/b}` at the integers k.

    Parameters
    ----------
    mu : tensor_like of int
    scale : tensor_like of float
        b > 0.
    """

    rv_op = DiscreteLaplaceRV()

    @staticmethod
    def logp(value: Any, mu: Any, scale: Any) -> Any:
        """Log-mass at `value`."""
        log_mass = pt.log(pt.tanh(0.5 / scale)) - pt.abs(value - mu) / scale
        return check_parameters(log_mass, scale > 0, msg="scale > 0")


class DiscreteGaussian(_DiscreteNoise):
    r"""Mass proportional to :math:`e^{-(k - \mu)^2/2\sigma^2}` at the integers k.

    Parameters
    ----------
    mu : tensor_like of int
    scale : tensor_like of float
        σ > 0; the standard deviation is slightly smaller.
    """

    rv_op = DiscreteGaussianRV()

    @staticmethod
    def logp(value: Any, mu: Any, scale: Any) -> Any:
        """Log-mass at `value`."""
        log_mass = -(((value - mu) / scale) ** 2) / 2 - _log_theta(scale)
        return check_parameters(log_mass, scale > 0, msg="scale > 0")


def _log_theta(scale: Any) -> Any:
    r""":math:`\log \sum_k e^{-k^2/2\sigma^2}`, by the one of its two series that converges fast."""
    direct = 1.0 + 2.0 * sum(pt.exp(-(k**2) / (2 * scale**2)) for k in range(1, 9))
    dual = 1.0 + 2.0 * sum(pt.exp(-2 * (np.pi * k * scale) ** 2) for k in range(1, 3))
    return pt.switch(
        scale < 1, pt.log(direct), pt.log(scale) + 0.5 * np.log(2 * np.pi) + pt.log(dual)
    )


def log_noise(
    family: str, discrete: bool, scale: NDArray[np.float64], low: Any, high: Any, point: bool
) -> Any:
    """Log of the noise's density at `low`, or of its mass from `low` to `high` where it has no density there.

    Parameters
    ----------
    family, discrete
        Of the noise.
    scale : ndarray
        Where it is 0, only 0 is possible.
    low, high : TensorVariable
        Whole numbers, or infinite, if the noise is discrete.
    point : bool
        Whether `high` is `low` everywhere.
    """
    kind = {
        ("laplace", False): pm.Laplace,
        ("gaussian", False): pm.Normal,
        ("laplace", True): DiscreteLaplace,
        ("gaussian", True): DiscreteGaussian,
    }[family, discrete]
    some = np.where(scale > 0, scale, 1.0)
    density = pm.logp(kind.dist(0, some), low)
    if point:
        log_g = density
    else:
        one = pt.eq(low, high)
        # In the tail that is nearer, where neither logarithm is near 0. All laws are symmetric.
        upper = low + high > 0
        low, high = pt.switch(upper, -high, low), pt.switch(upper, -low, high)
        log_cdf = _LOG_CDFS[family, discrete]
        beyond = log_cdf(low - 1 if discrete else low, some)
        within = log_cdf(high, some)
        log_g = within + pt.log1mexp(pt.minimum(beyond - within, 0.0))
        log_g = log_g if discrete else pt.switch(one, density, log_g)
    return pt.switch(scale > 0, log_g, pt.switch(pt.le(low, 0) & pt.ge(high, 0), 0.0, -np.inf))


def _log_laplace_cdf(x: Any, b: NDArray[np.float64]) -> Any:
    tail = np.log(0.5) - pt.abs(x) / b
    return pt.switch(x < 0, tail, pt.log1mexp(tail))


def _log_discrete_laplace_cdf(x: Any, b: NDArray[np.float64]) -> Any:
    below = pt.switch(x < 0, x, -x - 1)  # P(X <= x) = 1 - P(X <= -x - 1)
    tail = below / b - np.log1p(np.exp(-1 / b))
    return pt.switch(x < 0, tail, pt.log1mexp(tail))


def _log_normal_cdf(x: Any, sigma: NDArray[np.float64]) -> Any:
    return normal_lcdf(0.0, 1.0, pt.clip(x / sigma, -1e30, 1e30))  # infinity is not a number there


def _log_discrete_gaussian_cdf(x: Any, sigma: NDArray[np.float64]) -> Any:
    """From the sums of all masses up to 38 scales: beyond, e^-722 is nothing in double precision."""
    scales, which = np.unique(sigma, return_inverse=True)
    half = int(np.ceil(38 * scales.max())) + 1
    k = np.arange(-half, half + 1)
    log_mass = -((k / scales[:, None]) ** 2) / 2
    log_cdf = np.logaddexp.accumulate(log_mass, axis=1)
    log_cdf -= log_cdf[:, -1:]
    where = (
        pt.clip(pt.switch(pt.isinf(x), pt.sign(x) * half, x), -half, half).astype("int64") + half
    )
    found = pt.as_tensor(log_cdf)[np.reshape(which, sigma.shape), where]
    return pt.switch(pt.eq(x, -np.inf), -np.inf, found)


_LOG_CDFS = {
    ("laplace", False): _log_laplace_cdf,
    ("laplace", True): _log_discrete_laplace_cdf,
    ("gaussian", False): _log_normal_cdf,
    ("gaussian", True): _log_discrete_gaussian_cdf,
}
