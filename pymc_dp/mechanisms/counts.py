"""Noisy counts as observed variables, the confidential counts summed out exactly."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.abstract import ValuedRV, _logprob
from pytensor.graph.basic import equal_computations
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.mechanisms.count_densities import (
    CountRelease,
    is_table,
    summed_out,
    tied,
    widths_of,
)
from pymc_dp.mechanisms.distributions import draw_noise
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.publication import Publication
from pymc_dp.mechanisms.records import static_shape

_MAX_TERMS = 2**25  # 256 MB


class NoisyCountRV(RandomVariable):
    """What was published of a count, given what was published of it before."""

    name = "noisy_count"
    _print_name = ("NoisyCount", "\\operatorname{NoisyCount}")
    __props__ = (*RandomVariable.__props__, "releases")

    def __init__(self, releases: tuple[CountRelease, ...], **kwargs: Any):
        self.releases = releases
        super().__init__(**kwargs)

    def rng_fn(self, rng: Any, total: Any, *earlier: Any) -> Any:
        """The count plus noise, published."""
        own = self.releases[-1]
        total = total.sum(axis=-1) if own.margin else total
        shape = np.broadcast_shapes(np.shape(total), own.scale.shape)
        noise = draw_noise(rng, own.law.family, own.law.discrete, own.scale, shape)
        return np.asarray(own.published.apply(total + noise)).astype(self.dtype)


@_logprob.register(NoisyCountRV)
def _(
    op: NoisyCountRV, values: Any, rng: Any, size: Any, total: Any, *earlier: Any, **kwargs: Any
) -> Any:
    # PyMC gives observed variables together with their values.
    seen = [x.owner.inputs[1] if isinstance(x.owner.op, ValuedRV) else x for x in earlier]
    log_density = summed_out(total, op.releases, [*seen, values[0]])[0]
    if earlier:
        before = summed_out(total, op.releases[:-1], seen)[0]
        # A margin ties cells that were independent.
        log_density = log_density - (
            before.sum(axis=-1) if before.ndim > log_density.ndim else before
        )
    return log_density


def observe_count(
    name: str,
    total: Any,
    *,
    law: NoiseLaw,
    observed: Any,
    published: Publication,
    dims: Any,
    keep_total: bool,
) -> Any:
    """Add the observed variable to the model whose context this is.

    Parameters
    ----------
    name : str
    total : TensorVariable
        Unnamed random variable: the confidential counts; or its sum over the last axis.
    law : NoiseLaw
        Of the noise, whose scale may be 0.
    observed : array or shared variable
        Of the shape of `total`.
    published : Publication
    dims
        As in PyMC.
    keep_total : bool
        Whether to add the mean of `total` given θ, this and earlier releases of it, as ``{name}_total``.

    Raises
    ------
    UnsupportedModelError
        If `total` is no random variable of counts.
    PrivacyConfigurationError
        If the noise is too wide to be summed over.
    """
    model = pm.modelcontext(None)
    count, margin = _count_of(name, total, model)
    before = [x for x in model.observed_RVs
              if isinstance(x.owner.op, NoisyCountRV) and _is_same(x.owner.inputs[2], count)]  # fmt: skip
    if margin and not before:
        raise UnsupportedModelError(
            f"{name!r}: `total` is a sum of counts of which nothing has been released. Release the cells first; or, "
            "if only their sum was published, give the law of the sum itself."
        )
    scale = np.broadcast_to(law.scale, static_shape(total))
    own = CountRelease(name, law, scale, published, margin)
    releases = (*(before[-1].owner.op.releases if before else ()), own)
    count = before[-1].owner.inputs[2] if before else count
    _check_size(name, count, releases)
    cell = "c" if tied(count, releases) else ""
    parts = ["" if release.margin else cell for release in releases]
    signature = ",".join(f"({x})" for x in [cell, *parts[:-1]]) + f"->({parts[-1]})"
    op = NoisyCountRV(releases, signature=signature, dtype="int64" if law.discrete else "float64")
    rng = pytensor.shared(np.random.default_rng(), name=f"{name}_rng")
    variable = op.make_node(rng, None, count, *before).outputs[1]
    variable = model.register_rv(variable, name, observed=observed, dims=dims)
    if keep_total:
        values = [model.rvs_to_values[x] for x in (*before, variable)]
        mean = summed_out(count, releases, values)[1]
        pm.Deterministic(f"{name}_total", mean.sum(axis=-1) if margin else mean, dims=dims)
    return variable


def _count_of(name: str, total: Any, model: pm.Model) -> tuple[Any, bool]:
    """The random variable of counts, and whether `total` is its sum over the last axis."""
    op = getattr(total.owner, "op", None)
    count, margin = total, False
    if isinstance(op, CAReduce) and isinstance(op.scalar_op, Add):
        (count,) = total.owner.inputs
        margin = op.axis == (count.ndim - 1,)
        if not margin or is_table(getattr(count.owner, "op", None)):
            raise UnsupportedModelError(
                f"{name!r}: of sums of counts only those over the last axis, of independent counts, can be summed out. "
                "Put the cells that are added up there (and what has no margin on axes before). For several margins of "
                "one table write the `statistic` of one record, with `n`."
            )
        op = getattr(count.owner, "op", None)
    of_counts = (getattr(op, "ndim_supp", None) == 0 or is_table(op)) and count.dtype.startswith(
        ("int", "uint")
    )
    if not of_counts or count in model.basic_RVs:
        raise UnsupportedModelError(
            f"{name!r}: `total` must be an unnamed random variable of counts, such as "
            "`pm.Binomial.dist(population, p)`, or `pm.Multinomial.dist(population, p)` for a table with a "
            "public total, as it is: no part and no function of it but the sum over its last axis. For cells that were "
            "not published mask `observed`; for other sums write the `statistic` of one record, with `n`."
        )
    return count, margin


def _is_same(x: Any, count: Any) -> bool:
    """One random variable, not two of the same law: they share their generator."""
    return x is count or (
        x.owner.inputs[0] is count.owner.inputs[0] and equal_computations([x], [count])
    )


def _check_size(name: str, count: Any, releases: tuple[CountRelease, ...]) -> None:
    """Refuse sums that memory cannot hold."""
    op = count.owner.op
    scale = releases[-1].scale
    width = 2 * widths_of(op)[releases[-1].law.family] * float(scale.max(initial=0))
    if scale.size * width > _MAX_TERMS:
        raise PrivacyConfigurationError(
            f"{name!r}: noise of scale {scale.max():g} in {scale.size:,} cells means sums that are too long "
            f"({width:,.0f} counts in each cell). Take the counts as normal: the `statistic` of one record, with `n`."
        )
