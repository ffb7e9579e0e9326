r"""A model's likelihood through sums of statistics of the records alone.

An observed variable belongs to an exponential family here if all records share its parameters, and

.. math:: \log p(y_i \mid \theta) = \varphi(\theta)^\top S(y_i) - A(\theta) + h(y_i)

Then n and :math:`\sum_i S(y_i)` are all that a sampler has to know of the data. Values are limited to a
public range, and measured from its middle in halves of its width, so that every entry of S lies in
[-1, 1].
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Cast

from pymc_dp.compat import lower_named_dims
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.exponential_family.families import (
    INSTEAD,
    PROBES,
    WITH_RANGE,
    Bounds,
    Categories,
    Range,
    Vector,
    kind_of,
    member_of,
    range_of,
)
from pymc_dp.likelihood.nodes import RecordData
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.likelihood.roles import Roles

_CHUNK = 65536
_SPREADS = (0.1, 0.3, 1.0)


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

    def of(self, rows: NDArray[Any]) -> Vector:
        """S of some records, shape (records, size). `rows` has the records on its first axis."""
        return self.statistic.of(rows.astype(self.dtype)).reshape(len(rows), self.size)

    def examples(self) -> NDArray[Any]:
        """Made-up records, shape (PROBES, *shape)."""
        values = self.statistic.examples(self.dtype)
        values = values.reshape(
            PROBES, *np.ones(len(self.shape) + 1 - values.ndim, int), *values.shape[1:]
        )
        return np.broadcast_to(values, (PROBES, *self.shape))


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
        pairs = _pairs_by_name(bounds, [rv.name for rv in observed if kind_of(rv) in WITH_RANGE])
        self._observed: list[_Observed] = []
        natural, log_partition = [], []
        for rv, axis in zip(observed, roles.observed_axes, strict=True):
            leaf = _leaf(model, roles, rv)
            shape = leaf.values.shape[:axis] + leaf.values.shape[axis + 1 :]
            within = range_of(rv, pairs[rv.name], shape) if rv.name in pairs else None
            member = member_of(model, roles, rv, axis, len(shape) + 1, within)
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

    def natural(self, theta: Vector) -> tuple[Vector, float]:
        """φ, shape (size,), and A at `theta`, shape (d,). Not finite outside the parameters' range."""
        with np.errstate(all="ignore"):
            natural, log_partition = self._function(theta)
        return np.asarray(natural), float(log_partition)

    def spread(self, g: Vector) -> float:
        r""":math:`\max |g^\top (S(y) - S(y'))|` over all values within the ranges.

        The entries of a record can each be at their extreme, so their spreads add up.
        """
        return sum(float(np.sum(o.statistic.spread(part))) for o, part in self._parts(g))

    def farthest(self, g: Vector, c: float) -> float:
        r""":math:`\max |g^\top S(y) - c|` over all values within the ranges: what a record adds at most."""
        low = high = -c
        for o, part in self._parts(g):
            least, most = o.statistic.extremes(part)
            low, high = low + float(np.sum(least)), high + float(np.sum(most))
        return max(abs(low), abs(high))

    def _parts(self, g: Vector) -> Iterator[tuple[_Observed, Vector]]:
        """The entries of `g` by observed variable, each of the shape of its statistics."""
        start = 0
        for o in self._observed:
            yield o, g[start : start + o.size].reshape(*o.shape, o.statistic.size)
            start += o.size

    def __str__(self) -> str:
        return "; ".join(f"{o.name} {o.statistic}" for o in self._observed)

    def of_records(self) -> Iterator[Vector]:
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

        def both(theta: Vector) -> tuple[Vector, Vector]:
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
                    f"belong to. {INSTEAD}"
                )


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
