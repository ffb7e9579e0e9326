r"""A noisy count as one observed variable, the confidential count summed out exactly.

A count whose law has the natural parameter η, such as :math:`\eta = \log\lambda` or
:math:`\eta = \operatorname{logit} p`, has :math:`p(k) = \exp(k \eta + h_k - A)`. With noise g,

.. math:: \log p(s) = \log \sum_k \exp(k \eta + c_k) - A, \qquad c_k = h_k + \log g(s - k),

whose derivative by η is :math:`E[k \mid s] - A'`: the value and the gradient are two sums over k.
Any other law goes the same way with :math:`\eta = A = 0` and :math:`h_k = \log p(k)`.
"""

import math
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.random import basic as rv
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.mechanisms.distributions import DiscreteGaussian, DiscreteLaplace, draw_noise
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.records import static_shape

# Noise beyond so many scales has less than 1e-16 of its mass, even weighed by e^(scale^2/8).
_WIDTH = {"gaussian": 12, "laplace": 40}
_MAX_TERMS = 2**25  # 256 MB
_NEGLIGIBLE = -40.0  # e^-40 is nothing beside 1


@numba.njit(cache=True, error_model="numpy")
def sum_out(eta, k0, c):  # type: ignore[no-untyped-def]
    """Log of the sum over k and the mean of k, for every cell.

    Parameters
    ----------
    eta : ndarray, shape (cells,)
        Natural parameter.
    k0 : ndarray, shape (cells,)
        First count.
    c : ndarray, shape (cells, width)
        Constants of the counts k0, k0 + 1, …; -inf for impossible ones.
    """
    cells, width = c.shape
    total, mean = np.empty(cells), np.empty(cells)
    for i in range(cells):
        top = -np.inf
        for j in range(width):
            top = max(top, j * eta[i] + c[i, j])
        f, fj = 0.0, 0.0
        for j in range(width):
            x = j * eta[i] + c[i, j] - top
            if x > _NEGLIGIBLE:
                e = math.exp(x)
                f += e
                fj += e * j
        total[i] = top + math.log(f) + k0[i] * eta[i]
        mean[i] = k0[i] + fj / f
    return total, mean


class SumOut(Op):
    """:func:`sum_out` in a graph; the mean is the derivative of the log-sum by η."""

    __props__ = ()

    def make_node(self, eta: Any, k0: Any, c: Any) -> Apply:
        """One node; everything in double precision."""
        inputs = [pt.as_tensor(x).astype("float64") for x in (eta, k0, c)]
        return Apply(self, inputs, [inputs[0].type(), inputs[0].type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute both outputs."""
        outputs[0][0], outputs[1][0] = sum_out(*inputs)

    def infer_shape(self, fgraph: Any, node: Apply, shapes: Any) -> list[Any]:
        """One number per cell."""
        return [shapes[0], shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Cotangents of η and of the constants, which may depend on parameters; the mean has none."""
        eta, k0, c = inputs
        total, mean = outputs
        g = cotangents[0]
        k = k0[:, None] + pt.arange(c.shape[1])
        weight = pt.exp(k * eta[:, None] + c - total[:, None])
        return [g * mean, pt.zeros_like(k0), g[:, None] * weight]

    L_op = pullback  # its name in PyTensor 2


@register_funcify_default_op_cache_key(SumOut)
def _(op: SumOut, **kwargs: Any) -> Any:
    return sum_out


class NoisyCountRV(RandomVariable):
    """A count, which is itself a random variable, plus noise."""

    name = "noisy_count"
    signature = "(),()->()"
    _print_name = ("NoisyCount", "\\operatorname{NoisyCount}")
    __props__ = (*RandomVariable.__props__, "family")

    def __init__(self, family: str, **kwargs: Any):
        self.family = family
        super().__init__(**kwargs)

    def rng_fn(self, rng: Any, total: Any, scale: Any, size: Any) -> Any:
        """The count plus noise."""
        size = np.broadcast_shapes(total.shape, scale.shape) if size is None else tuple(size)
        noise = draw_noise(rng, self.family, self.dtype == "int64", scale, size)
        return np.asarray(total + noise).astype(self.dtype)


@_logprob.register(NoisyCountRV)
def _(op: NoisyCountRV, values: Any, rng: Any, size: Any, total: Any, scale: Any, **kwargs: Any) -> Any:
    return summed_out(total, values[0], op.family, op.dtype == "int64", scale.data)[0]


def summed_out(total: Any, value: Any, family: str, discrete: bool, scale: Any) -> tuple[Any, Any]:
    """Log-density of noisy counts, and the means of the confidential ones given these.

    Parameters
    ----------
    total : TensorVariable
        Random variable: the counts.
    value : TensorVariable
        What was released.
    family, discrete, scale
        Of the noise.

    Returns
    -------
    tuple of TensorVariable
        Both of the shape of `total`.
    """
    half = _half_width(family, scale)
    value = pt.as_tensor(value).astype("float64")
    k0 = pt.maximum(pt.round(value) - half, 0)
    k = k0[..., None] + np.arange(2 * half + 1)
    eta, A, h = _natural(total, k)
    c = h + _log_noise(value[..., None] - k, family, discrete, scale[..., None])
    eta = pt.broadcast_to(eta, value.shape)
    log_sum, mean = SumOut()(eta.ravel(), k0.ravel(), c.reshape((-1, 2 * half + 1)))
    return log_sum.reshape(value.shape) - A, mean.reshape(value.shape)


def observe_count(
    name: str, total: Any, *, law: NoiseLaw, observed: Any, dims: Any, keep_total: bool
) -> Any:
    """Add the observed variable to the model whose context this is.

    Parameters
    ----------
    name : str
    total : TensorVariable
        Unnamed random variable: the confidential counts.
    law : NoiseLaw
        Of the noise, whose scale may be 0.
    observed : array or shared variable
        Of the shape of `total`.
    dims
        As in PyMC.
    keep_total : bool
        Whether to add the mean of `total` given θ and the release as ``{name}_total``.

    Raises
    ------
    UnsupportedModelError
        If `total` is no random variable of counts.
    PrivacyConfigurationError
        If the noise is too wide to be summed over.
    """
    model = pm.modelcontext(None)
    op = getattr(total.owner, "op", None)
    univariate = getattr(op, "ndim_supp", None) == 0
    if not univariate or total in model.basic_RVs or not total.dtype.startswith(("int", "uint")):
        raise UnsupportedModelError(
            f"{name!r}: `total` must be an unnamed random variable of counts, such as "
            "`pm.Binomial.dist(population, p)`. The cells of a multinomial table are not independent: "
            "release them as the sum of an indicator of each cell of a `pm.Categorical.dist(p)`, with `n`, "
            "or take `pm.Poisson.dist` for each cell if the total is not public."
        )
    scale = np.broadcast_to(law.scale, static_shape(total))
    terms = scale.size * (2 * _half_width(law.family, scale) + 1)
    if terms > _MAX_TERMS:
        raise PrivacyConfigurationError(
            f"{name!r}: noise of scale {scale.max():g} in {scale.size:,} cells means sums of {terms:,} terms, "
            f"more than {_MAX_TERMS:,}. Take the counts as normal: the `statistic` of one record, with `n`."
        )
    rv_op = NoisyCountRV(law.family, dtype="int64" if law.discrete else "float64")
    rng = pytensor.shared(np.random.default_rng(), name=f"{name}_rng")
    variable = rv_op.make_node(rng, None, total, pt.constant(scale)).outputs[1]
    variable = model.register_rv(variable, name, observed=observed, dims=dims)
    if keep_total:
        value = model.rvs_to_values[variable]
        mean = summed_out(total, value, law.family, law.discrete, scale)[1]
        pm.Deterministic(f"{name}_total", mean, dims=dims)
    return variable


def _half_width(family: str, scale: Any) -> int:
    return math.ceil(_WIDTH[family] * float(np.max(scale))) + 1


def _natural(total: Any, k: Any) -> tuple[Any, Any, Any]:
    """η, A and h of the counts' law; h at the counts k, shape (..., width)."""
    op = total.owner.op
    parameters = op.dist_params(total.owner)
    possible = pt.constant(True)
    if isinstance(op, rv.BinomialRV | rv.BetaBinomialRV):
        size = parameters[0][..., None]
        possible = k <= size
        k = pt.minimum(k, size)
    if isinstance(op, rv.PoissonRV):
        (rate,) = parameters
        return pt.log(rate), rate, -pt.gammaln(k + 1)
    if isinstance(op, rv.BinomialRV):
        size, p = (x.astype("float64") for x in parameters)
        log_rest = pt.log1p(-p)
        h = _log_binomial(size[..., None], k)
        return pt.log(p) - log_rest, -size * log_rest, pt.switch(possible, h, -np.inf)
    x = total.type()
    (h,) = vectorize_graph([pm.logp(total, x)], {x: pt.moveaxis(k, -1, 0).astype(x.dtype)})
    nothing = pt.zeros(())
    return nothing, nothing, pt.switch(possible, pt.moveaxis(h, 0, -1), -np.inf)


def _log_binomial(n: Any, k: Any) -> Any:
    return pt.gammaln(n + 1) - pt.gammaln(k + 1) - pt.gammaln(n - k + 1)


def _log_noise(residual: Any, family: str, discrete: bool, scale: Any) -> Any:
    """Log-density of the noise; where its scale is 0, only 0 is possible."""
    law = {
        ("laplace", False): lambda b: pm.Laplace.dist(0, b),
        ("gaussian", False): lambda b: pm.Normal.dist(0, b),
        ("laplace", True): lambda b: DiscreteLaplace.dist(0, b),
        ("gaussian", True): lambda b: DiscreteGaussian.dist(0, b),
    }[family, discrete]
    density = pm.logp(law(np.where(scale > 0, scale, 1.0)), residual)
    return pt.switch(scale > 0, density, pt.switch(pt.eq(residual, 0), 0.0, -np.inf))
