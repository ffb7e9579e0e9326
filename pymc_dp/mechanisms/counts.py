"""A noisy count as one observed variable, the confidential count summed out exactly."""

import math
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.multivariate import DirichletMultinomialRV
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.random import basic as rv
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.mechanisms.count_sums import PeakedSum, TableSum
from pymc_dp.mechanisms.distributions import DiscreteGaussian, DiscreteLaplace, draw_noise
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.records import static_shape
from pymc_dp.mechanisms.table_sums import ConvolvedSum

# Noise beyond so many scales has less than 1e-16 of its mass, even weighed by e^(scale^2/8).
_WIDTH = {"gaussian": 12, "laplace": 40}
_MAX_TERMS = 2**25  # 256 MB
_MAX_PRODUCTS = 2**28  # a second of convolutions per gradient


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


class NoisyTableRV(NoisyCountRV):
    """Cells of a table with a known total, which are one random variable, plus noise."""

    name = "noisy_table"
    signature = "(c),(c)->(c)"
    _print_name = ("NoisyTable", "\\operatorname{NoisyTable}")


@_logprob.register(NoisyCountRV)
def _(
    op: NoisyCountRV, values: Any, rng: Any, size: Any, total: Any, scale: Any, **kwargs: Any
) -> Any:
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
        Both of the shape of `total`; the first without the cells of a table with a known total.
    """
    s = pt.as_tensor(value).astype("float64")
    op = total.owner.op
    parameters = [x.astype("float64") for x in op.dist_params(total.owner)]
    if isinstance(op, rv.PoissonRV):
        (rate,) = parameters
        log_sum, mean = _peaked(family, pt.log(rate), s, np.inf, scale)
        log_density = log_sum - rate
    elif isinstance(op, rv.BinomialRV):
        size, p = parameters
        log_rest = pt.log1p(-p)
        log_sum, mean = _peaked(family, pt.log(p) - log_rest, s, size, scale)
        log_density = log_sum + size * log_rest
    elif _is_table(op):
        return _by_convolution(total, s, family, discrete, scale)
    else:
        return _by_table(total, s, family, discrete, scale)
    return log_density + _log_noise(pt.zeros(()), family, discrete, scale), mean


def _peaked(family: str, eta: Any, s: Any, size: Any, scale: Any) -> tuple[Any, Any]:
    """Log-sum, but for the constant of the noise, and mean, of the shape of s."""
    cells = [pt.broadcast_to(x, s.shape).ravel() for x in (eta, s, size, scale)]
    log_sum, mean = PeakedSum(family == "gaussian")(*cells)
    return log_sum.reshape(s.shape), mean.reshape(s.shape)


def _by_table(total: Any, s: Any, family: str, discrete: bool, scale: Any) -> tuple[Any, Any]:
    """Log-density and mean of a count of any law, from its log-mass at all counts near s."""
    half = _half_width(family, scale)
    k = pt.maximum(pt.round(s) - half, 0)[..., None] + np.arange(2 * half + 1)
    x, possible, counts = total.type(), pt.constant(True), k
    if isinstance(total.owner.op, rv.BetaBinomialRV):  # its log-mass is not a number beyond
        size = total.owner.op.dist_params(total.owner)[0][..., None]
        possible, counts = k <= size, pt.minimum(k, size)
    counts = pt.moveaxis(counts, -1, 0).astype(x.dtype)
    (log_mass,) = vectorize_graph([pm.logp(total, x)], {x: counts})
    c = pt.switch(possible, pt.moveaxis(log_mass, 0, -1), -np.inf)
    c = c + _log_noise(s[..., None] - k, family, discrete, scale[..., None])
    width = 2 * half + 1
    log_density, mean = TableSum()(k.reshape((-1, width)), c.reshape((-1, width)))
    return log_density.reshape(s.shape), mean.reshape(s.shape)


def _is_table(op: Any) -> bool:
    return isinstance(op, rv.MultinomialRV | DirichletMultinomialRV)


def _by_convolution(total: Any, s: Any, family: str, discrete: bool, scale: Any) -> tuple[Any, Any]:
    """Log-density and means of the cells of a multinomial or Dirichlet-multinomial table."""
    op = total.owner.op
    size, a = (x.astype("float64") for x in op.dist_params(total.owner))
    half = _half_width(family, scale)
    start = pt.maximum(pt.round(s) - half, 0)
    k = start[..., None] + np.arange(2 * half + 1)
    c = -pt.gammaln(k + 1) + _log_noise(s[..., None] - k, family, discrete, scale[..., None])
    if isinstance(op, rv.MultinomialRV):
        c = c + pt.switch(pt.eq(k, 0), 0.0, k * pt.log(a[..., None]))  # 0 log 0 is 0
        rest = pt.gammaln(size + 1)
    else:
        c = c + pt.gammaln(k + a[..., None]) - pt.gammaln(a[..., None])
        whole = a.sum(axis=-1)
        rest = pt.gammaln(size + 1) + pt.gammaln(whole) - pt.gammaln(size + whole)
    c = pt.switch(k <= size[..., None, None], c, -np.inf)
    tables = s.shape[:-1]
    cells, width = s.shape[-1], 2 * half + 1
    size = pt.broadcast_to(size, tables)
    log_sum, probability = ConvolvedSum()(
        pt.broadcast_to(c, k.shape).reshape((-1, cells, width)),
        start.reshape((-1, cells)),
        size.ravel(),
    )
    mean = (probability.reshape(k.shape) * k).sum(axis=-1)
    return log_sum.reshape(tables) + rest, mean


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
    table = _is_table(op)
    of_counts = (getattr(op, "ndim_supp", None) == 0 or table) and total.dtype.startswith(("int", "uint"))  # fmt: skip
    if not of_counts or total in model.basic_RVs:
        raise UnsupportedModelError(
            f"{name!r}: `total` must be an unnamed random variable of counts, such as "
            "`pm.Binomial.dist(population, p)`, or `pm.Multinomial.dist(population, p)` for a table with a "
            "public total."
        )
    scale = np.broadcast_to(law.scale, static_shape(total))
    width = 2 * _half_width(law.family, scale) + 1
    cells = scale.shape[-1] if table else 1
    too_many = scale.size * width > _MAX_TERMS and not isinstance(op, rv.PoissonRV | rv.BinomialRV)
    if too_many or (table and scale.size * cells * width**2 > _MAX_PRODUCTS):
        raise PrivacyConfigurationError(
            f"{name!r}: noise of scale {scale.max():g} in {scale.size:,} cells means sums that are too long "
            f"({width:,} counts in each cell). Take the counts as normal: the `statistic` of one record, with `n`."
        )
    kind = NoisyTableRV if table else NoisyCountRV
    rv_op = kind(law.family, dtype="int64" if law.discrete else "float64")
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
