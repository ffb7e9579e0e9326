"""The log-likelihood of symbolic record rows: derived from the model, to be compiled and differentiated."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.basic import conditional_logp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.compat import ancestors, lower_named_dims
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.compilation import (
    keep_indices_in_range,
    strip_checks,
)
from pymc_dp.likelihood.nodes import WRAP_DATA, RecordData, quoting_nothing
from pymc_dp.likelihood.origins import sizes_in
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.refusals import refuse_captured
from pymc_dp.likelihood.roles import Roles
from pymc_dp.likelihood.rows import with_rows


class RecordGraph(NamedTuple):
    """Symbolic per-record log-likelihood, with the data rows as inputs.

    Parameters
    ----------
    log_likelihood : Variable, shape (records,)
    theta : Variable, shape (d,)
        The joined value variables.
    values : list of Variable
        The value variables as the parts of θ that they are, in order.
    rows : list of Variable
        One input per ``roles.record_data``, of any number of records.
    start : ndarray, shape (d,)
        θ at the model's initial point.
    observed : list of str
        Names of the observed variables.
    """

    log_likelihood: Variable
    theta: Variable
    values: list[Variable]
    rows: list[Variable]
    start: NDArray[np.float64]
    observed: list[str]

    def to_differentiate(self) -> "RecordGraph":
        """A copy, as preparing a graph for differentiation changes it."""
        log_likelihood, *values = clone_replace([self.log_likelihood, *self.values], {})
        return self._replace(log_likelihood=log_likelihood, values=values)


class ObservedRows(NamedTuple):
    """The observed variables as functions of symbolic record rows, and of parameters.

    Parameters
    ----------
    rvs : list of Variable
        The random variables.
    values : list of Variable
        What was observed of them.
    parameters : list of Variable
        In place of the free variables, in the model's order.
    rows : list of Variable
        One input per ``roles.record_data``, of any number of records.
    """

    rvs: list[Variable]
    values: list[Variable]
    parameters: list[Variable]
    rows: list[Variable]


def rebuild_observed(model: pm.Model, roles: Roles, length: Variable | None = None) -> ObservedRows:
    """Put symbolic rows in place of the records, and `length` in place of their number."""
    return rebuild_laws(
        {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}, model, roles, length
    )


def rebuild_laws(
    laws: Mapping[Variable, Variable], model: pm.Model, roles: Roles, length: Variable | None = None
) -> ObservedRows:
    """The same for any random variables of a model's free ones, with what was observed of each."""
    k = len(laws)
    rebuilt, parameters, rows = rebuild([*laws, *laws.values()], model, roles, length)
    return ObservedRows(rebuilt[:k], rebuilt[k:], parameters, rows)


def rebuild(
    graphs: Sequence[Variable], model: pm.Model, roles: Roles, length: Variable | None = None
) -> tuple[list[Variable], list[Variable], list[Variable]]:
    """Any graphs of the model with symbolic rows, `length` and parameters: see :class:`ObservedRows` for the last two."""
    rows = [_row_input(leaf, f"rows_{k}") for k, leaf in enumerate(roles.record_data)]
    parameters = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    row_of = {_array_of(leaf): row for leaf, row in zip(roles.record_data, rows, strict=True)}
    replacements = {
        leaf.variable: like(leaf.variable, row_of[_array_of(leaf)]) for leaf in roles.record_data
    } | parameters
    if length is None:
        length = rows[0].shape[roles.record_data[0].axis]
    replacements |= _lengths(graphs, replacements, model, roles, length)
    rebuilt = with_rows(graphs, replacements, (roles.n_records, length))
    return rebuilt, list(parameters.values()), rows


def at_theta(
    graphs: Sequence[Variable],
    free: Sequence[Variable],
    rows: Sequence[Variable],
    parameters: ParameterSpace,
) -> tuple[list[Variable], list[Variable], Variable]:
    """Rebuilt graphs as functions of one symbolic vector θ and of rows, without checks that join records.

    Returns
    -------
    graphs, values : list of Variable
        The value variables are parts of θ.
    theta : Variable, shape (d,)
    """
    model = parameters.model
    constrained = model.replace_rvs_by_values(list(model.free_RVs))
    graphs = clone_replace(
        list(graphs), dict(zip(free, constrained, strict=True)), rebuild_strict=False
    )
    joined, theta = parameters.join([*graphs, *model.value_vars])
    lowered = lower_named_dims(joined)
    values = lowered[len(graphs) :]
    graphs = [
        keep_indices_in_range(strip_checks(g, records=set(rows)), set(rows))
        for g in lowered[: len(graphs)]
    ]
    return graphs, values, theta


def record_graph(parameters: ParameterSpace, roles: Roles) -> RecordGraph:
    """Derive the log-likelihood of symbolic record rows."""
    model = parameters.model
    names = [rv.name for rv in model.observed_RVs]
    with quoting_nothing(
        f"The per-record log-likelihood of {names} could not be derived ({{error}}). {WRAP_DATA}"
    ):
        rvs, values, free, rows = rebuild_observed(model, roles)
        log_densities = conditional_logp(dict(zip(rvs, values, strict=True)))
        total = sum_observed([log_densities[v] for v in values], names, roles.observed_axes)
        (total,), parts, theta = at_theta([total], free, rows, parameters)
    if any(v.owner and isinstance(v.owner.op, RandomVariable) for v in ancestors([total])):
        raise UnsupportedModelError(
            f"The log-likelihood of {names} depends on random variables that are not part of the model (`.dist(...)` "
            "makes such). Give them a name in the model, or sum them out."
        )
    refuse_captured(model, [total], roles.public_data)
    return RecordGraph(total, theta, parts, rows, parameters.start, names)


def _array_of(leaf: RecordData) -> tuple[int, int]:
    """The same for an array that is written into the model twice, such as an index.

    By identity, as equal values may be chance; and only if nobody can give it other values.
    """
    fixed = isinstance(leaf.variable, Constant)
    return id(leaf.values if fixed else leaf.variable), leaf.axis


def _row_input(leaf: RecordData, name: str) -> Variable:
    shape = [None if axis == leaf.axis else size for axis, size in enumerate(leaf.values.shape)]
    return pt.tensor(name, dtype=leaf.variable.type.dtype, shape=tuple(shape))


def like(node: Variable, row: Variable) -> Variable:
    """`row`, with named dimensions if `node` has them."""
    if not hasattr(node.type, "dims"):
        return row
    from pytensor.xtensor import as_xtensor

    return as_xtensor(row, dims=node.type.dims)


def _lengths(
    graphs: Sequence[Variable],
    replaced: Mapping[Variable, Variable],
    model: pm.Model,
    roles: Roles,
    length: Variable,
) -> dict[Variable, Variable]:
    """Replacements for every place where the number of records is written down as a shape."""
    n, found = roles.n_records, {}
    for dim in roles.record_dims:
        if isinstance(model.dim_lengths.get(dim), Variable):
            found[model.dim_lengths[dim]] = length.astype("int64")
    blockers = [*replaced, *found]
    for c in sizes_in(graphs, blockers):
        if c.type.ndim == 1 and n in c.data:
            axis = int(np.flatnonzero(c.data == n)[0])
            entries = [length if k == axis else pt.constant(s) for k, s in enumerate(c.data)]
            found[c] = pt.stack([pt.cast(e, c.type.dtype) for e in entries])
        elif c.type.ndim == 0 and c.data == n:
            found[c] = length.astype(c.type.dtype)
    return found


def sum_observed(
    log_densities: Sequence[Variable], names: Sequence[str], axes: Sequence[int]
) -> Variable:
    """Add up observed variables, and the other axes of each, into one term per record."""
    terms = []
    for log_density, name, axis in zip(log_densities, names, axes, strict=True):
        term = pt.as_tensor(log_density, allow_xtensor_conversion=True)
        if term.ndim <= axis:
            raise UnsupportedModelError(
                f"The log-likelihood of {name!r} is one number for all records together, so its "
                "records are not independent given the parameters (Gaussian processes, random "
                "walks and other time series are like that). Write it as a distribution with one "
                "term per record."
            )
        others = [k for k in range(term.ndim) if k != axis]
        terms.append(term.sum(axis=others) if others else term)
    return sum(terms[1:], start=terms[0])
