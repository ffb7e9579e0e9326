r"""Likelihoods that depend on the records through sums of statistics alone.

An observed variable belongs to an exponential family here if all records share its parameters, and

.. math:: \log p(y_i \mid \theta) = \varphi(\theta)^\top S(y_i) - A(\theta) + h(y_i)

Then n and :math:`\sum_i S(y_i)` are all that a sampler has to know of the data. Values are limited to a
public range, and measured from its middle in halves of its width, so that every entry of S lies in
[-1, 1].
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.utils import MissingInputError
from pytensor.scalar.basic import Cast
from pytensor.tensor.random import basic as random

from pymc_dp.compat import ancestors, lower_named_dims
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.nodes import RecordData, quoting_nothing, shapes_of_data
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.likelihood.roles import Roles

_Array = NDArray[np.float64]
Bounds = tuple[ArrayLike, ArrayLike]

_CHUNK = 65536
_PROBES = 7
_SPREADS = (0.1, 0.3, 1.0)


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

    lower: _Array
    upper: _Array
    powers: int = 1

    @property
    def middle(self) -> _Array:
        """Where x is 0."""
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> _Array:
        """How far from there x is 1."""
        return (self.upper - self.lower) / 2

    @property
    def size(self) -> int:
        """Length of S."""
        return self.powers

    def of(self, y: NDArray[Any]) -> _Array:
        """S, shape (*y.shape, powers)."""
        # Limited last: then S is a point of the curve, whatever the rounding before.
        x = np.clip((y - self.middle) / self.half, -1.0, 1.0)
        return np.stack([x**k for k in range(1, self.powers + 1)], axis=-1)

    def spread(self, g: _Array) -> _Array:
        r""":math:`\max g^\top S - \min g^\top S`; the last axis of `g` is that of S.

        Of :math:`g_1 x` it is :math:`2|g_1|`. If the vertex of :math:`g_1 x + g_2 x^2` lies inside,
        one extreme is there and the other at the end that is further from it.
        """
        a, b = np.abs(g[..., 0]), np.abs(g[..., 1]) if self.powers == 2 else np.zeros(g.shape[:-1])
        with np.errstate(all="ignore"):
            return np.where(a >= 2 * b, 2 * a, a + b + a * (a / (4 * b)))

    def examples(self, dtype: str) -> NDArray[Any]:
        """Values from all over the range, shape (_PROBES, *shape)."""
        values = np.linspace(self.lower, self.upper, _PROBES)
        return np.maximum(np.floor(values), np.ceil(self.lower)) if dtype[0] in "iub" else values

    def __str__(self) -> str:
        return f"from {self.lower.tolist()} to {self.upper.tolist()}"


@dataclass(frozen=True)
class Categories:
    """Which of `size` categories a value is: S has a 1 there and 0 elsewhere."""

    size: int

    def of(self, y: NDArray[Any]) -> _Array:
        """S, shape (*y.shape, size)."""
        inside = np.clip(y, 0, self.size - 1)
        return (inside[..., None] == np.arange(self.size)).astype(np.float64)

    def spread(self, g: _Array) -> _Array:
        r""":math:`\max g^\top S - \min g^\top S`; the last axis of `g` is that of S."""
        return np.asarray(g.max(axis=-1) - g.min(axis=-1))

    def examples(self, dtype: str) -> NDArray[Any]:
        """Categories, shape (_PROBES,)."""
        return np.arange(_PROBES) % self.size

    def __str__(self) -> str:
        return f"{self.size} categories"


# -- families ---------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """φ (last axis that of S) and A of one value, and its statistic."""

    natural: Variable
    log_partition: Variable
    statistic: Range | Categories


def _linear(natural: Variable, log_partition: Variable, within: Range) -> _Member:
    """η y - A, in terms of x = (y - middle) / half."""
    return _Member(
        (natural * within.half)[..., None], log_partition - natural * within.middle, within
    )


def _binomial(n: Variable, p: Variable) -> _Member:
    try:
        trials = np.asarray(n.eval(), dtype=np.float64)
    except MissingInputError:
        raise UnsupportedModelError("The number of trials of a Binomial must be known.") from None
    natural, log_partition = pt.log(p) - pt.log1p(-p), -trials * pt.log1p(-p)
    return _linear(natural, log_partition, Range(np.zeros_like(trials), trials))


def _bernoulli(p: Variable) -> _Member:
    return _binomial(pt.constant(1), p)


def _poisson(within: Range, mu: Variable) -> _Member:
    return _linear(pt.log(mu), mu, within)


def _exponential(within: Range, scale: Variable) -> _Member:
    return _linear(-1 / scale, pt.log(scale), within)


def _geometric(within: Range, p: Variable) -> _Member:
    return _linear(pt.log1p(-p), pt.log1p(-p) - pt.log(p), within)


def _normal(within: Range, mu: Variable, sigma: Variable) -> _Member:
    mean, sd = pt.broadcast_arrays((mu - within.middle) / within.half, sigma / within.half)
    natural = pt.stack([mean / sd**2, -1 / (2 * sd**2)], axis=-1)
    log_partition = mean**2 / (2 * sd**2) + pt.log(sd)
    return _Member(natural, log_partition, replace(within, powers=2))


def _categorical(length: int, p: Variable) -> _Member:
    return _Member(pt.log(p), pt.zeros(p.shape[:-1]), Categories(length))


# Of those that need a range of values, the support; others know theirs.
_UNBOUNDED: dict[type, tuple[Callable[..., _Member], float, float]] = {
    random.PoissonRV: (_poisson, 0.0, np.inf),
    random.ExponentialRV: (_exponential, 0.0, np.inf),
    random.GeometricRV: (_geometric, 1.0, np.inf),
    random.NormalRV: (_normal, -np.inf, np.inf),
}
_BOUNDED: dict[type, Callable[..., _Member]] = {
    random.BernoulliRV: _bernoulli,
    random.BinomialRV: _binomial,
    random.CategoricalRV: _categorical,
}
_NAMES = "Bernoulli, Binomial, Categorical, Exponential, Geometric, Normal and Poisson"


# -- the likelihood of a model ----------------------------------------------------------------------


class _Observed(NamedTuple):
    """One observed variable: where its values are, and what is summed of them."""

    name: str
    leaf: RecordData
    dtype: str
    shape: tuple[int, ...]
    statistic: Range | Categories

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.statistic.size

    def of(self, rows: NDArray[Any]) -> _Array:
        """S of some records, shape (records, size). `rows` has the records on its first axis."""
        return self.statistic.of(rows.astype(self.dtype)).reshape(len(rows), self.size)

    def examples(self) -> NDArray[Any]:
        """Made-up records, shape (_PROBES, *shape)."""
        values = self.statistic.examples(self.dtype)
        values = values.reshape(
            _PROBES, *np.ones(len(self.shape) + 1 - values.ndim, int), *values.shape[1:]
        )
        return np.broadcast_to(values, (_PROBES, *self.shape))


class SufficientStatistics:
    r"""A model's log-likelihood as :math:`\varphi(\theta)^\top \sum_i S(y_i) - n A(\theta)`, up to a constant.

    Observed variables, and the entries of a record that has several, are independent given the
    parameters, so that their statistics stand side by side in S.

    Parameters
    ----------
    parameters : ParameterSpace
        Of the model.
    roles : Roles
        See :func:`pymc_dp.likelihood.roles.find_roles`.
    bounds : pair or mapping
        Range (lower, upper) that values are limited to, for families with values of any size; each a
        number, or of the shape of a record. A mapping from names if there are several such variables.
    compile_kwargs : mapping, optional
        Passed to PyMC's ``compile``.

    Raises
    ------
    UnsupportedModelError
        If an observed variable is of no known family, or its parameters differ between records.
    PrivacyConfigurationError
        If a range is missing, superfluous or empty.
    """

    def __init__(
        self,
        parameters: ParameterSpace,
        roles: Roles,
        bounds: Bounds | Mapping[str, Bounds] | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        model = parameters.model
        self._n, self._start = roles.n_records, parameters.start
        observed = list(model.observed_RVs)
        pairs = _pairs_by_name(bounds, [rv.name for rv in observed if _op(rv) in _UNBOUNDED])
        self._observed: list[_Observed] = []
        natural, log_partition = [], []
        for rv, axis in zip(observed, roles.observed_axes, strict=True):
            leaf = _leaf(model, roles, rv)
            shape = leaf.values.shape[:axis] + leaf.values.shape[axis + 1 :]
            within = _range(rv, pairs[rv.name], shape) if rv.name in pairs else None
            member = _member(model, roles, rv, axis, len(shape) + 1, within)
            dtype = model.rvs_to_values[rv].type.dtype
            self._observed.append(_Observed(rv.name, leaf, dtype, shape, member.statistic))
            cells = (*shape, member.statistic.size)
            natural.append(pt.broadcast_to(member.natural, cells).flatten())
            log_partition.append(pt.broadcast_to(member.log_partition, shape).sum())
        (joined, total), theta = parameters.join([pt.concatenate(natural), sum(log_partition)])
        joined, total = lower_named_dims([joined, total])
        self._function = pm.compile([theta], [joined, total], **(compile_kwargs or {}))
        self._function.trust_input = True

    @property
    def size(self) -> int:
        """Length of S."""
        return sum(o.size for o in self._observed)

    def natural(self, theta: _Array) -> tuple[_Array, float]:
        """φ, shape (size,), and A at `theta`, shape (d,). Not finite outside the parameters' range."""
        with np.errstate(all="ignore"):
            natural, log_partition = self._function(theta)
        return np.asarray(natural), float(log_partition)

    def spread(self, g: _Array) -> float:
        r""":math:`\max |g^\top (S(y) - S(y'))|` over all values within the ranges.

        The entries of a record can each be at their extreme, so their spreads add up.
        """
        total, start = 0.0, 0
        for o in self._observed:
            part = g[start : start + o.size].reshape(-1, o.statistic.size)
            total += float(np.sum(o.statistic.spread(part.reshape(*o.shape, -1))))
            start += o.size
        return total

    def __str__(self) -> str:
        return "; ".join(f"{o.name} {o.statistic}" for o in self._observed)

    def of_records(self) -> Iterator[_Array]:
        """S of every record, in chunks of shape (records, size); entries in [-1, 1]. Private."""
        for start in range(0, self._n, _CHUNK):
            yield np.concatenate(
                [
                    o.of(np.moveaxis(o.leaf.values, o.leaf.axis, 0)[start : start + _CHUNK])
                    for o in self._observed
                ],
                axis=1,
            )

    def check(self, likelihood: RecordLikelihood) -> None:
        """Compare with the model's own log-likelihood, on made-up values.

        Raises
        ------
        UnsupportedModelError
            If the ratios between parameter values differ.
        """
        examples = {o.leaf.name: o.examples().astype(o.leaf.values.dtype) for o in self._observed}
        rows = [
            np.ascontiguousarray(np.moveaxis(examples[leaf.name], 0, leaf.axis))
            for leaf in likelihood.roles.record_data
        ]
        S = np.concatenate([o.of(examples[o.leaf.name]) for o in self._observed], axis=1)
        start = self._start
        rng = np.random.default_rng(20_260_102)

        def both(theta: _Array) -> tuple[_Array, _Array]:
            natural, log_partition = self.natural(theta)
            return S @ natural - log_partition, likelihood.evaluate_rows(theta, rows)

        at_start = both(start)
        if not np.isfinite(at_start).all():
            raise UnsupportedModelError(
                "The log-likelihood is infinite or undefined at the initial point. Give `initval` to "
                "the free variables, or a range that suits the distribution."
            )
        for spread in _SPREADS:
            with np.errstate(all="ignore"):
                now = both(start + spread * rng.normal(size=start.size))
                ours, theirs = now[0] - at_start[0], now[1] - at_start[1]
            if not np.isfinite(ours).all():
                continue  # no move goes there
            if not np.allclose(ours, theirs, rtol=1e-6, atol=1e-6 * (1 + np.abs(ours).max())):
                raise UnsupportedModelError(
                    "The log-likelihood is not that of the exponential family its distributions "
                    f"belong to. {_INSTEAD}"
                )


_INSTEAD = "Use DPAnchored or DPPenalty, which look at every record."


def _op(rv: Variable) -> type:
    """The distribution of a variable; with named dimensions, that of its core."""
    op = rv.owner.op
    return type(getattr(op, "core_op", op))


def _pairs_by_name(
    bounds: Bounds | Mapping[str, Bounds] | None, unbounded: Sequence[str]
) -> Mapping[str, Bounds]:
    if bounds is None:
        bounds = {}
    elif not isinstance(bounds, Mapping):
        bounds = dict.fromkeys(unbounded, bounds) if len(unbounded) == 1 else {"all": bounds}
    if set(bounds) == set(unbounded):
        return bounds
    if not unbounded:
        raise PrivacyConfigurationError(
            "`bounds` is for families with values of any size. Leave it out: the distributions of this "
            "model say what values are possible."
        )
    wanted = "a pair" if len(unbounded) == 1 else f"a pair for each of {list(unbounded)}"
    raise PrivacyConfigurationError(
        f"`bounds` must give the range of the observed values of {list(unbounded)}, which can have any "
        f"size: {wanted}, (lower, upper). A range is public: what a value could be, never the smallest "
        f"and largest that there are. Found {bounds!r}."
    )


def _range(rv: Variable, pair: Bounds, shape: tuple[int, ...]) -> Range:
    """The range of a variable's values, for records of this shape."""
    _, least, most = _UNBOUNDED[_op(rv)]
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


def _leaf(model: pm.Model, roles: Roles, rv: Variable) -> RecordData:
    """The data node that a variable observes, perhaps with a cast."""
    value = model.rvs_to_values[rv]
    while value.owner is not None and isinstance(getattr(value.owner.op, "scalar_op", None), Cast):
        (value,) = value.owner.inputs
    for leaf in roles.record_data:
        if leaf.variable is value:
            return leaf
    raise UnsupportedModelError(
        f"The observed values of {rv.name!r} are computed in the model. Compute them before, one record "
        "at a time, and observe the result."
    )


def _member(
    model: pm.Model,
    roles: Roles,
    rv: Variable,
    axis: int,
    ndim: int,
    within: Range | None,
) -> _Member:
    """The family that an observed variable belongs to, its parameters those of one record."""
    kind = _op(rv)
    if kind not in _UNBOUNDED and kind not in _BOUNDED:
        raise UnsupportedModelError(
            f"{rv.name!r} ({kind.__name__.removesuffix('RV')}) is none of the exponential families known "
            f"here: {_NAMES}. {_INSTEAD}"
        )
    free = list(model.free_RVs)
    blockers = [*free, *shapes_of_data([rv], free)]
    per_record = [leaf.variable for leaf in roles.record_data] + list(model.observed_RVs)
    reads = set(ancestors(rv.owner.inputs, blockers=blockers)) & set(per_record)
    if reads:
        names = sorted(str(v.name or "an array of records") for v in reads)
        raise UnsupportedModelError(
            f"The parameters of {rv.name!r} depend on {names}, so they differ between records and no sum "
            f"of statistics says all about them. {_INSTEAD}"
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
        return _UNBOUNDED[kind][0](within, *parameters)
    if kind is random.CategoricalRV:
        parameters.insert(0, _length(model, parameters[0]))
    return _BOUNDED[kind](*parameters)


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
            f"without the record axis. {_INSTEAD}"
        )
    return parameter[(slice(None),) * position + (0,)]
