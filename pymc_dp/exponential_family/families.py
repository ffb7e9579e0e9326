"""The families: what is summed of a value, natural parameters, and which of them a variable belongs to."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.utils import MissingInputError
from pytensor.tensor.random import basic as random

from pymc_dp.compat import ancestors, lower_named_dims
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.nodes import quoting_nothing
from pymc_dp.likelihood.origins import lengths_of_leaves
from pymc_dp.likelihood.roles import Roles

Vector = NDArray[np.float64]
Bounds = tuple[ArrayLike, ArrayLike]

PROBES = 7
"""Number of made-up values that a family is compared with the model at."""

INSTEAD = "Use DPSurrogate or DPPenalty, which look at every record."


# -- statistics of one value ------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Powers of a value that is limited to [lower, upper], counted from -1 to 1.

    Parameters
    ----------
    lower, upper : ndarray
        Of the shape of one record, or broadcast to it.
    powers : int
        1: S = x. 2: S = (x, x²).
    """

    lower: Vector
    upper: Vector
    powers: int = 1

    @property
    def middle(self) -> Vector:
        """Where x is 0."""
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> Vector:
        """How far from there x is 1."""
        return (self.upper - self.lower) / 2

    @property
    def size(self) -> int:
        """Length of S."""
        return self.powers

    def of(self, y: NDArray[Any]) -> Vector:
        """S, shape (*y.shape, powers)."""
        # Limited last: then S is a point of the curve, whatever the rounding before.
        x = np.clip((y - self.middle) / self.half, -1.0, 1.0)
        return np.stack([x**k for k in range(1, self.powers + 1)], axis=-1)

    def spread(self, g: Vector) -> Vector:
        r""":math:`\max g^\top S - \min g^\top S`; the last axis of `g` is that of S.

        Of :math:`g_1 x` it is :math:`2|g_1|`. If the vertex of :math:`g_1 x + g_2 x^2` lies inside,
        one extreme is there and the other at the end that is further from it.
        """
        a, b = np.abs(g[..., 0]), np.abs(g[..., 1]) if self.powers == 2 else np.zeros(g.shape[:-1])
        with np.errstate(all="ignore"):
            return np.where(a >= 2 * b, 2 * a, a + b + a * (a / (4 * b)))

    def extremes(self, g: Vector) -> tuple[Vector, Vector]:
        r""":math:`\min g^\top S` and :math:`\max g^\top S`; the last axis of `g` is that of S."""
        a, b = np.abs(g[..., 0]), g[..., 1] if self.powers == 2 else np.zeros(g.shape[:-1])
        with np.errstate(all="ignore"):
            vertex = np.where(a >= 2 * np.abs(b), b + a, -a * (a / (4 * b)))
        ends = b - a, b + a
        return np.minimum(ends[0], vertex), np.maximum(ends[1], vertex)

    def examples(self, dtype: str) -> NDArray[Any]:
        """Values from all over the range, shape (PROBES, *shape)."""
        values = np.linspace(self.lower, self.upper, PROBES)
        return np.maximum(np.floor(values), np.ceil(self.lower)) if dtype[0] in "iub" else values

    def __str__(self) -> str:
        return f"from {self.lower.tolist()} to {self.upper.tolist()}"


@dataclass(frozen=True)
class Categories:
    """Which of `size` categories a value is: S has a 1 there and 0 elsewhere."""

    size: int

    def of(self, y: NDArray[Any]) -> Vector:
        """S, shape (*y.shape, size)."""
        inside = np.clip(y, 0, self.size - 1)
        return (inside[..., None] == np.arange(self.size)).astype(np.float64)

    def spread(self, g: Vector) -> Vector:
        r""":math:`\max g^\top S - \min g^\top S`; the last axis of `g` is that of S."""
        return np.asarray(g.max(axis=-1) - g.min(axis=-1))

    def extremes(self, g: Vector) -> tuple[Vector, Vector]:
        r""":math:`\min g^\top S` and :math:`\max g^\top S`; the last axis of `g` is that of S."""
        return g.min(axis=-1), g.max(axis=-1)

    def examples(self, dtype: str) -> NDArray[Any]:
        """Categories, shape (PROBES,)."""
        return np.arange(PROBES) % self.size

    def __str__(self) -> str:
        return f"{self.size} categories"


# -- families ---------------------------------------------------------------------------------------


class Member(NamedTuple):
    """φ (last axis that of S) and A of one value, and its statistic."""

    natural: Variable
    log_partition: Variable
    statistic: Range | Categories


def _linear(natural: Variable, log_partition: Variable, within: Range) -> Member:
    """η y - A, in terms of x = (y - middle) / half."""
    return Member(
        (natural * within.half)[..., None], log_partition - natural * within.middle, within
    )


def _binomial(n: Variable, p: Variable) -> Member:
    try:
        trials = np.asarray(n.eval(), dtype=np.float64)
    except MissingInputError:
        raise UnsupportedModelError("The number of trials of a Binomial must be known.") from None
    natural, log_partition = pt.log(p) - pt.log1p(-p), -trials * pt.log1p(-p)
    return _linear(natural, log_partition, Range(np.zeros_like(trials), trials))


def _bernoulli(p: Variable) -> Member:
    return _binomial(pt.constant(1), p)


def _poisson(within: Range, mu: Variable) -> Member:
    return _linear(pt.log(mu), mu, within)


def _exponential(within: Range, scale: Variable) -> Member:
    return _linear(-1 / scale, pt.log(scale), within)


def _geometric(within: Range, p: Variable) -> Member:
    return _linear(pt.log1p(-p), pt.log1p(-p) - pt.log(p), within)


def _normal(within: Range, mu: Variable, sigma: Variable) -> Member:
    mean, sd = pt.broadcast_arrays((mu - within.middle) / within.half, sigma / within.half)
    natural = pt.stack([mean / sd**2, -1 / (2 * sd**2)], axis=-1)
    log_partition = mean**2 / (2 * sd**2) + pt.log(sd)
    return Member(natural, log_partition, replace(within, powers=2))


def _categorical(length: int, p: Variable) -> Member:
    return Member(pt.log(p), pt.zeros(p.shape[:-1]), Categories(length))


# Of those that need a range of values, the support; others know theirs.
WITH_RANGE: dict[type, tuple[Callable[..., Member], float, float]] = {
    random.PoissonRV: (_poisson, 0.0, np.inf),
    random.ExponentialRV: (_exponential, 0.0, np.inf),
    random.GeometricRV: (_geometric, 1.0, np.inf),
    random.NormalRV: (_normal, -np.inf, np.inf),
}
_WITHOUT_RANGE: dict[type, Callable[..., Member]] = {
    random.BernoulliRV: _bernoulli,
    random.BinomialRV: _binomial,
    random.CategoricalRV: _categorical,
}
_NAMES = "Bernoulli, Binomial, Categorical, Exponential, Geometric, Normal and Poisson"


# -- the family of a variable ------------------------------------------------------------------------


def kind_of(rv: Variable) -> type:
    """The distribution of a variable; with named dimensions, that of its core."""
    op = rv.owner.op
    return type(getattr(op, "core_op", op))


def range_of(rv: Variable, pair: Bounds, shape: tuple[int, ...]) -> Range:
    """The range of a variable's values, for records of this shape."""
    _, least, most = WITH_RANGE[kind_of(rv)]
    with np.errstate(all="ignore"):
        try:
            lower, upper = (np.broadcast_to(np.asarray(end, dtype=float), shape) for end in pair)
            usable = np.isfinite(upper - lower).all() and (lower < upper).all()
            usable = usable and (lower >= least).all() and (upper <= most).all()
        except (TypeError, ValueError):
            usable = False
    if not usable:
        raise PrivacyConfigurationError(
            f"`bounds` of {rv.name!r} must be (lower, upper), finite, lower < upper, within "
            f"[{least:g}, {most:g}]; numbers, or of the shape {shape} of a record. Found {pair!r}."
        )
    return Range(lower, upper)


def member_of(
    model: pm.Model,
    roles: Roles,
    rv: Variable,
    axis: int,
    ndim: int,
    within: Range | None,
) -> Member:
    """The family that an observed variable belongs to, its parameters those of one record."""
    kind = kind_of(rv)
    if kind not in WITH_RANGE and kind not in _WITHOUT_RANGE:
        raise UnsupportedModelError(
            f"{rv.name!r} ({kind.__name__.removesuffix('RV')}) is none of the exponential families known "
            f"here: {_NAMES}. {INSTEAD}"
        )
    free = list(model.free_RVs)
    blockers = [*free, *lengths_of_leaves([rv], free)]
    per_record = [leaf.variable for leaf in roles.record_data] + list(model.observed_RVs)
    reads = set(ancestors(rv.owner.inputs, blockers=blockers)) & set(per_record)
    if reads:
        names = sorted(str(v.name or "an array of records") for v in reads)
        raise UnsupportedModelError(
            f"The parameters of {rv.name!r} depend on {names}, so they differ between records and no sum "
            f"of statistics says all about them. {INSTEAD}"
        )
    with quoting_nothing(f"The parameters of {rv.name!r} could not be derived ({{error}})."):
        stand_ins = {v: v.type(name=v.name) for v in free}
        (plain,) = clone_replace([rv], stand_ins, rebuild_strict=False)
        plain = lower_named_dims(pt.as_tensor(plain, allow_xtensor_conversion=True))
        node = plain.owner
        parameters = node.op.dist_params(node)
        constrained = dict(zip(stand_ins.values(), model.replace_rvs_by_values(free), strict=True))
        parameters = clone_replace(parameters, constrained, rebuild_strict=False)
    parameters = [
        _of_one_record(p, rv, axis - (ndim + core - p.type.ndim))
        for p, core in zip(parameters, node.op.ndims_params, strict=True)
    ]
    if within is not None:
        return WITH_RANGE[kind][0](within, *parameters)
    if kind is random.CategoricalRV:
        parameters.insert(0, _length(model, parameters[0]))
    return _WITHOUT_RANGE[kind](*parameters)


def _length(model: pm.Model, p: Variable) -> int:
    """Of the last axis; a dimension's length is not written into the graph."""
    function = model.compile_fn(
        p.shape[-1], inputs=model.value_vars, on_unused_input="ignore", mode="FAST_COMPILE"
    )
    return int(function(model.initial_point(0)))


def _of_one_record(parameter: Variable, rv: Variable, position: int) -> Variable:
    """A parameter without its record axis, if it has one: it must be the same along it."""
    if position < 0:
        return parameter
    if not parameter.type.broadcastable[position]:
        raise UnsupportedModelError(
            f"A parameter of {rv.name!r} has one entry per record. If they are all the same, give it "
            f"without the record axis. {INSTEAD}"
        )
    return parameter[(slice(None),) * position + (0,)]
