r"""Integrate missing values out of a likelihood, record by record.

With covariates :math:`x_i` that have a model of their own and are missing in part, the new model has

.. math:: \ell_i(\theta) = \log \int p(y_i, x_i \mid z_i, \theta)\, dx_i^{\text{missing}}

in place of them. What is computed is the same for every record, whether it has a gap or not: a switch for each variable
takes what was seen where something was, and what it is integrated over otherwise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import conditional_logp
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import LogNormalRV

from pymc_dp.checks import whole
from pymc_dp.compat import (
    ancestors,
    graph_inputs,
    index_axes,
    io_toposort,
)
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compilation import strip_checks
from pymc_dp.likelihood.gaps import ObservedLaw, how_many, laws_of
from pymc_dp.likelihood.nodes import RecordData, quoting_nothing, values_of
from pymc_dp.likelihood.origins import Origins
from pymc_dp.likelihood.record_graph import rebuild_laws, sum_observed
from pymc_dp.likelihood.roles import Roles
from pymc_dp.likelihood.rows import repeated, with_rows
from pymc_dp.likelihood.without import without
from pymc_dp.quadrature import log_expectation, log_sum

_MOST_NODES = 500
"""Evaluations of a record's density for one of its likelihood: two normal variables and a binary one take 450."""


class _Template(NamedTuple):
    """Log-densities as functions of symbolic rows and parameters.

    Parameters
    ----------
    densities : list of Variable, shape (records,)
        One for each law.
    values : list of Variable
        What was observed of each.
    moments : list of list of Variable
        Mean and standard deviation of those that are integrated over and normal, on the normal scale.
    rows : list of Variable
        One for each leaf.
    effects : dict
        What records look up in parameters by what is no gap, each a function of rows and parameters; by stand-ins for them.
    parameters : list of Variable
        All free variables that stay, in the model's order.
    """

    densities: list[Variable]
    values: list[Variable]
    moments: list[list[Variable]]
    rows: list[Variable]
    effects: dict[Variable, Variable]
    parameters: list[Variable]


@refuses_from_outside
def integrate_missing(model: pm.Model, variables: Sequence[str], *, points: int = 15) -> pm.Model:
    r"""Integrate the missing values of variables out of the likelihood, record by record.

    Nobody is dropped, and there is no draw of what is missing. The model that is returned has the same posterior of
    the parameters as PyMC's imputation, under the same assumption: that whether a value is missing does not depend on
    the value itself, given what was observed (*missing at random*). It can be given to :func:`pymc_dp.sample`, to
    ``pm.sample``, or to anything else.

    Parameters
    ----------
    model : Model
        With observed variables of one value per record, of which some may be NaN or masked: as PyMC imputes them,
        ``pm.Normal("x", mu, sigma, observed=x)``. Those that others depend on must be ``pm.Normal``, ``pm.LogNormal``,
        ``pm.Bernoulli`` or ``pm.Categorical``; they may depend on each other. Stays as it is.
    variables : sequence of str
        Names of all that may have gaps. Public: a variable without a gap is treated like one with, so that nobody's gap
        can be told from the model.
    points : int
        Of the quadrature, for each normal variable, at least 5. By default enough for outcomes that say where a missing
        value is to a twentieth of its standard deviation.

    Returns
    -------
    Model
        With one observed variable, named as the last of `model`, and without Deterministics of data. Of each of
        `variables` it has two ``pm.Data``: ``x_values``, with a constant in gaps, and ``x_is_seen``, 1 or 0.

    Raises
    ------
    UnsupportedModelError
        If a variable with gaps has another law, or the model does not split by records.
    PrivacyConfigurationError
        If there is no such variable, if one that is not named has a gap, which the message tells, or if integrals would
        take more than 500 nodes.

    Notes
    -----
    Sums over the values of discrete variables, and for each of them the integral of
    :func:`~pymc_dp.quadrature.log_expectation` over the normal ones, whose nodes are around where a record's own integrand
    is. Where an outcome is missing, its term is left out.

    Nothing is released, and nothing is charged: it is a change of the model. Which values are missing is as private as
    what the others are: the data by record hold it, and the graph is the same whoever has a gap.

    Examples
    --------
    >>> with pm.Model() as smoking:                                    # doctest: +SKIP
    ...     a, b, c = (pm.Normal(name, 0, 2) for name in "abc")
    ...     weight = pm.Normal("weight", c * age, pm.HalfNormal("sd", 1), observed=weight_or_nan)
    ...     pm.Bernoulli("quit", logit_p=a + b * weight, observed=quit)
    >>> idata = sample(integrate_missing(smoking, ["weight"]), epsilon=1)   # doctest: +SKIP
    """
    points = whole("points", points, 5)
    if isinstance(variables, str):
        raise PrivacyConfigurationError(
            f"`variables` is a list of names. Found the text {variables!r}: write `[{variables!r}]`."
        )
    laws = laws_of(model, list(variables))
    normal = [law for law in laws if law.is_normal]
    sizes = {law.name: how_many(law) for law in laws if law.filled and not law.is_normal}
    nodes = math.prod(sizes.values()) * points ** len(normal)
    if nodes > _MOST_NODES:
        raise PrivacyConfigurationError(
            f"Integrating over {[law.name for law in laws if law.filled]} takes {nodes} nodes for each record, and at most "
            f"{_MOST_NODES} are supported. Give fewer `points`, or a model with fewer variables that may have gaps."
        )
    others = [
        rv for rv in model.free_RVs if rv.name not in {f"{law.name}_unobserved" for law in laws}
    ]
    _refuse_dependents(model, laws, others)
    n = len(next(law.seen for law in laws if law.seen is not None))
    dim = next((d for law in laws for d in _dims(model, law) if d), None)
    leaves, shared = _leaves(model, laws, n, dim)
    template = _template(model, laws, leaves, others, n)
    gaps = [law for law in laws if law.seen is not None]
    by_record = [leaf.values.ndim for leaf in leaves] + [1] * (len(gaps) - 1)
    common = [v.ndim for v in (*shared, *others)]

    def logp(seen: Variable, *given: Variable) -> Variable:
        k = len(by_record)
        seens = dict(zip([law.name for law in gaps], [seen, *given[len(leaves) : k]], strict=True))
        # A parameter that all share has been given an axis of length 1 for records.
        rest = [x[0] if x.ndim > ndim else x for x, ndim in zip(given[k:], common, strict=True)]
        known = dict(zip([*shared, *template.parameters], rest, strict=True))
        rows = dict(zip(template.rows, given[: len(leaves)], strict=True))
        return _log_integral(laws, template, rows, seens, known, sizes, points)

    gone = [rv for rv in (*model.free_RVs, *model.observed_RVs) if rv not in others]
    # Deterministics of data would need them.
    integrated = without(model, [*gone, *(leaf.variable for leaf in leaves)])
    dim = dim or "record"
    with integrated:
        if dim not in integrated.dim_lengths:
            integrated.add_coord(dim, range(n))
        data = []
        for leaf in leaves:
            axes = [dim, *(f"{leaf.name}_axis_{k}" for k in range(1, leaf.values.ndim))]
            data.append(pm.Data(leaf.name, leaf.values, dims=axes))
        first, *seens = (pm.Data(f"{law.name}_is_seen", law.seen, dims=dim) for law in gaps)
        kept = [integrated.named_vars.get(v.name, v) for v in (*shared, *others)]
        pm.CustomDist(
            laws[-1].name,
            *data,
            *seens,
            *kept,
            logp=logp,
            signature=_signature([*(k - 1 for k in by_record), *common]),
            observed=first,
            dims=dim,
        )
    return integrated


def _refuse_dependents(
    model: pm.Model, laws: Sequence[ObservedLaw], others: Sequence[Variable]
) -> None:
    """What is missing may reach the observed variables and nothing else that is a part of the density."""
    if model.potentials:
        raise UnsupportedModelError("`integrate_missing` takes models without a `pm.Potential`.")
    observed = {model[law.name] for law in laws}
    for rv in others:
        if observed & set(ancestors([rv])):
            raise UnsupportedModelError(
                f"The prior of {rv.name!r} depends on observed variables, so the integral is not one record's."
            )


def _dims(model: pm.Model, law: ObservedLaw) -> Sequence[str | None]:
    return model.named_vars_to_dims.get(law.name) or ()


def _leaves(
    model: pm.Model, laws: Sequence[ObservedLaw], n: int, dim: str | None
) -> tuple[list[RecordData], list[Variable]]:
    """Data with a row per record, and all others that the likelihood reads."""
    leaves, shared = [], []
    values = {law.value: law.name for law in laws}
    graphs = [law.rv for law in laws] + list(values)
    for k, node in enumerate(Origins(model, ()).leaves(graphs, model.free_RVs)):
        held, named = values_of(node), node in model.data_vars
        dims = model.named_vars_to_dims.get(node.name, ()) if named else ()
        if held.shape[:1] == (n,) and (not dims or dim is None or dims[0] == dim):
            name = f"{values[node]}_values" if node in values else f"records_{k}"
            leaves.append(RecordData(node, node.name if named else name, held, 0, True))
        else:
            shared.append(node)
    return leaves, shared


def _template(
    model: pm.Model,
    laws: Sequence[ObservedLaw],
    leaves: Sequence[RecordData],
    others: Sequence[Variable],
    n: int,
) -> _Template:
    names = [law.name for law in laws]
    dims = {d for law in laws for d in _dims(model, law)[:1] if d is not None}
    roles = Roles(
        n_records=n,
        unit="",
        unit_of_record=None,
        n_units=n,
        record_dims=frozenset(dims),
        record_data=tuple(leaves),
        observed_axes=(0,) * len(laws),
        public_data=(),
    )
    with quoting_nothing(f"The log-likelihood of {names} could not be derived ({{error}})."):
        rvs, values, parameters, rows = rebuild_laws(
            {law.rv: law.value for law in laws}, model, roles
        )
        found = conditional_logp(dict(zip(rvs, values, strict=True)))
        densities = [
            # Outside a parameter's domain a record has density 0; PyMC would refuse all of them.
            strip_checks(sum_observed([found[v]], [name], [0]), records=set(rows))
            for v, name in zip(values, names, strict=True)
        ]
        observed = dict(zip(rvs, values, strict=True))
        moments = [
            with_rows(rv.owner.op.dist_params(rv.owner), observed) if law.is_normal else []
            for law, rv in zip(laws, rvs, strict=True)
        ]
    kept = [p for rv, p in zip(model.free_RVs, parameters, strict=True) if rv in others]
    gaps = {v for law, v in zip(laws, values, strict=True) if law.filled}
    effects = _looked_up([*densities, *(v for pair in moments for v in pair)], set(rows), gaps)
    stand_ins = {v: v.type() for v in effects}
    densities = with_rows(densities, stand_ins)
    moments = [with_rows(pair, stand_ins) for pair in moments]
    return _Template(
        densities, values, moments, rows, {new: v for v, new in stand_ins.items()}, kept
    )


def _looked_up(
    outputs: Sequence[Variable], rows: set[Variable], gaps: set[Variable]
) -> list[Variable]:
    """Effects of groups, ``effect[group]``: once for a record and not for every node, as who is in which group shows then."""
    found = []
    for node in io_toposort(list(graph_inputs(outputs)), list(outputs)):
        axes = index_axes(node)
        if len(axes) != 1 or axes[0][1] != 0 or node.inputs[axes[0][0]].ndim != 1:
            continue
        index, above = set(ancestors([node.inputs[axes[0][0]]])), set(ancestors([node.inputs[0]]))
        if index & rows and not index & gaps and not above & rows:
            found.append(node.outputs[0])
    return found


def _log_integral(
    laws: Sequence[ObservedLaw],
    template: _Template,
    rows: Mapping[Variable, Variable],
    seens: Mapping[str, Variable],
    known: Mapping[Variable, Variable],
    sizes: Mapping[str, int],
    points: int,
) -> Variable:
    """Log of the integral, shape (records,)."""
    n = next(iter(seens.values())).shape[0]
    ways = math.prod(sizes.values())
    looked_up = with_rows(list(template.effects.values()), {**known, **rows})
    rows = {**rows, **dict(zip(template.effects, looked_up, strict=True))}
    normal = [law.name for law in laws if law.is_normal]

    def log_f(z: Sequence[Variable]) -> Variable:
        """Of shape (records · ways, nodes): a row of the records for every node of every way to fill discrete gaps."""
        nodes = z[0].shape[1] if z else 1

        def spread(v: Variable) -> Variable:
            return repeated(v, (n, ways * nodes), 1)

        here = {**known, **{row: spread(v) for row, v in rows.items()}}
        seen = {name: spread(v) > 0.5 for name, v in seens.items()}
        way = pt.broadcast_to(pt.arange(ways)[:, None], (n, ways, nodes)).ravel()
        stride = 1
        for law, value, moments in zip(laws, template.values, template.moments, strict=True):
            if not law.filled:
                continue
            if law.is_normal:
                mean, deviation = with_rows(moments, here)
                x = mean + deviation * z[normal.index(law.name)].ravel()
                x = pt.exp(x) if isinstance(law.rv.owner.op, LogNormalRV) else x
            else:
                x = way // stride % sizes[law.name]
                stride *= sizes[law.name]
            here[value] = pt.switch(seen[law.name], here[value], x).astype(value.type.dtype)
        total: Variable = pt.zeros(())
        for law, term in zip(laws, with_rows(template.densities, here), strict=True):
            if law.name in sizes:
                # All ways have what was seen.
                term -= pt.switch(seen[law.name], np.log(sizes[law.name]), 0.0)
            elif law.seen is not None:
                # Of a gap the nodes are the law; without one, an outcome has none.
                term = pt.switch(seen[law.name], term, 0.0)
            total += term
        return total.reshape((n * ways, nodes))

    each = log_expectation(log_f, n * ways, len(normal), points)
    return log_sum(each.reshape((n, ways)))


def _signature(ndims: Sequence[int]) -> str:
    """Of the observed variable: the axes of every input besides that of records."""
    inputs = [f"({','.join(f'a{k}_{i}' for i in range(ndim))})" for k, ndim in enumerate(ndims)]
    return ",".join(inputs) + "->()"
