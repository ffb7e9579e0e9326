"""Which nodes of a model hold records, and what they may touch.

A node is *private* if it holds observed values, or data of the records' length that the observed
likelihood depends on. Private nodes may reach the observed likelihood and nothing else. What a
model computes from data outside its graph cannot be seen here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.containment import find_outside_likelihood
from pymc_dp.likelihood.naming import name_of_array
from pymc_dp.likelihood.nodes import (
    RecordData,
    data_nodes,
    inner_data_nodes,
    is_excerpt,
    only_limits,
    refuse_hidden,
    shape_constants,
    shared_variables,
    values_of,
)
from pymc_dp.likelihood.refusals import refuse_latents_per_record, refuse_unsupported_variables
from pymc_dp.likelihood.unit import (
    axis_of_observed,
    count_records,
    record_axis,
    record_dims_of,
    refuse_repeated_labels,
    unit_codes,
    unit_name,
)


@dataclass(frozen=True)
class Roles:
    """The private and public parts of a model.

    Parameters
    ----------
    n_records : int
        Length of the record axis.
    unit : str
        Name of the unit of privacy.
    unit_of_record : ndarray of int64, optional
        Unit that each record belongs to, 0 … n_units - 1; None if every record is a unit.
    n_units : int
        Number of units of privacy.
    record_dims : frozenset of str
        Dimension names whose labels are private.
    record_data : tuple of RecordData
        Every node with a record axis that the likelihood depends on.
    observed_axes : tuple of int
        Record axis of each observed variable.
    public_data : tuple of str
        Data nodes of the likelihood that are treated as public: for the user to check.
    left_out : tuple of str
        Deterministics that depend on private data: no result may have them.
    """

    n_records: int
    unit: str
    unit_of_record: NDArray[np.int64] | None
    n_units: int
    record_dims: frozenset[str]
    record_data: tuple[RecordData, ...]
    observed_axes: tuple[int, ...]
    public_data: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def find_roles(
    model: pm.Model, unit: str | int | ArrayLike | None = None, public: Sequence[str] = ()
) -> Roles:
    """Tell private nodes from public ones, and refuse models in which they mix.

    Parameters
    ----------
    model : Model
        With at least one observed variable; all of them share their records.
    unit : str, int or array, optional
        The unit of privacy: the name of the records' dimension, the number of their axis, or one
        identifier per record when a person owns several. Default: axis 0, each record a unit.
    public : sequence of str
        Names of ``pm.Data`` nodes that hold nothing private.

    Raises
    ------
    UnsupportedModelError
        If a private node reaches anything but the observed likelihood, or the model has parts
        that cannot be sampled privately. Names the variable and the way out.
    PrivacyConfigurationError
        If `unit` or `public` does not fit the model.
    """
    refuse_unsupported_variables(model)
    if isinstance(public, str):
        raise PrivacyConfigurationError(
            f"`public` is a list of names. Found the text {public!r}: write `public=[{public!r}]`."
        )
    unknown = [name for name in public if name not in {v.name for v in model.data_vars}]
    if unknown:
        raise PrivacyConfigurationError(
            f"`public` names {unknown}, which the model has no `pm.Data` for."
        )
    axis, dim = record_axis(unit)
    observed_axes = tuple(axis_of_observed(model, rv, axis, dim) for rv in model.observed_RVs)
    n = count_records(model, observed_axes)
    record_dims = record_dims_of(model, observed_axes, dim)
    record_data, public_data = _sort_data(model, observed_axes, n, record_dims, public)
    if not any(leaf.private for leaf in record_data):
        raise UnsupportedModelError(
            "Every data node of the likelihood was declared public: there is nothing to protect. "
            "Use an ordinary step method."
        )
    # The record axis may have several names, and its labels are private under each.
    record_dims |= {
        dims[leaf.axis]
        for leaf in record_data
        if leaf.private
        and (dims := model.named_vars_to_dims.get(leaf.variable.name))
        and dims[leaf.axis] is not None
    }
    left_out, elsewhere = find_outside_likelihood(model, record_data, n, record_dims, public)
    codes, n_units = unit_codes(unit, n)
    if codes is None:
        refuse_repeated_labels(model, record_dims)
    refuse_latents_per_record(model, n, n_units, record_dims)
    for leaf in record_data:
        refuse_non_finite(leaf)
    return Roles(
        n_records=n,
        unit=unit_name(unit, record_dims),
        unit_of_record=codes,
        n_units=n_units,
        record_dims=record_dims,
        record_data=record_data,
        observed_axes=observed_axes,
        public_data=tuple(dict.fromkeys([*public_data, *elsewhere])),
        left_out=tuple(left_out),
    )


# -- data nodes -------------------------------------------------------------------------------------


def _sort_data(
    model: pm.Model,
    observed_axes: Sequence[int],
    n: int,
    record_dims: frozenset[str],
    public: Sequence[str],
) -> tuple[tuple[RecordData, ...], tuple[str, ...]]:
    observed_values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    axis_of_value: dict[Variable, int] = {}
    name_of_value: dict[Variable, str] = {}
    for rv, value, axis in zip(model.observed_RVs, observed_values, observed_axes, strict=True):
        for node in data_nodes([value]):
            axis_of_value[node] = axis
            name_of_value[node] = rv.name
    record_data: list[RecordData] = []
    public_data: list[str] = []
    others: list[tuple[str, NDArray[Any]]] = []
    graphs = [*model.observed_RVs, *observed_values]
    shapes = set(shape_constants(graphs, model.free_RVs))
    for node in shared_variables(model, graphs, model.free_RVs):
        if node.type.ndim == 0 and node.name not in public:
            _refuse_without_record_axis(model, node, values_of(node), n, node.name)
    for node in data_nodes(graphs, blockers=model.free_RVs):
        if node in shapes:
            continue
        values = values_of(node)
        if node in axis_of_value:
            axis, name = axis_of_value[node], node.name or name_of_value[node]
        else:
            name = name_of_array(node, values, n, graphs)
            found = _record_axis_of(model, node, values, n, record_dims, name)
            if found is None:
                if isinstance(node, SharedVariable) and node.name not in public:
                    _refuse_without_record_axis(model, node, values, n, name)
                if node.name not in public:
                    others.append((name, values))
                if values.size > 1:
                    public_data.append(name)
                continue
            axis = found
        private = node.name not in public
        if not private:
            public_data.append(name)
        limit = node not in axis_of_value and only_limits(node, graphs)
        record_data.append(RecordData(node, name, values, axis, private, limit))
    held = [leaf.values for leaf in record_data]
    for name, values in others:
        if values.size >= max(n, 2) or is_excerpt(values, held):
            _refuse_unaligned(name)
    refuse_hidden(inner_data_nodes(graphs, model.free_RVs), n, held, public)
    return tuple(record_data), tuple(dict.fromkeys([*public_data, *public]))


def _record_axis_of(
    model: pm.Model,
    node: Variable,
    values: NDArray[Any],
    n: int,
    record_dims: frozenset[str],
    name: str,
) -> int | None:
    dims = model.named_vars_to_dims.get(node.name) or (None,) * values.ndim
    axes = [i for i, d in enumerate(dims) if d in record_dims]
    if not axes:
        axes = [
            i
            for i, (size, d) in enumerate(zip(values.shape, dims, strict=True))
            if size == n and (d is None or not record_dims)
        ]
    if len(axes) > 1 and n > 1:
        raise UnsupportedModelError(
            f"{name} has more than one axis that is as long as there are records, so a record is not "
            "a slice of it (a matrix between records couples them). Give `dims=` to the data if one "
            "of the axes only happens to be as long."
        )
    return axes[0] if axes else None


def _refuse_without_record_axis(
    model: pm.Model, node: Variable, values: NDArray[Any], n: int, name: str
) -> None:
    if n in values.shape:
        raise UnsupportedModelError(
            f"The `pm.Data` node {name!r} is as long as the data, but its dimensions "
            f"{list(model.named_vars_to_dims.get(node.name, ()))} are not the records'. Give it the "
            "dimension of the observed variable."
        )
    raise UnsupportedModelError(
        f"The `pm.Data` node {name!r}, of shape {values.shape}, has no record axis, so it could "
        "hold statistics of all records. If it holds nothing private, say so: "
        f"`public=[{node.name!r}]`."
        if node in model.data_vars
        else f"A shared variable{f' {node.name!r}' if node.name else ''} of shape {values.shape} has no "
        "record axis, so it could hold statistics of all records. If it holds nothing private, make it a `pm.Data` "
        "and name it in `public`."
    )


def _refuse_unaligned(name: str) -> None:
    raise UnsupportedModelError(
        f"The likelihood depends on {name}, which is as large as the data but has no record axis. "
        "Reshape it to one slice per record; or, if it holds nothing private, make it a `pm.Data` "
        "and name it in `public`."
    )


def refuse_non_finite(leaf: RecordData) -> None:
    """Refuse NaN, and infinite values that are no limits, without saying where they are."""
    if leaf.values.dtype.kind != "f":
        return
    rows = np.moveaxis(leaf.values, leaf.axis, 0)
    bad = np.isnan if leaf.limit else lambda x: ~np.isfinite(x)
    if any(bad(rows[i : i + 65536]).any() for i in range(0, len(rows), 65536)):
        raise UnsupportedModelError(
            f"{leaf.name!r} contains NaN or infinite values, and a record that has one has no likelihood. Drop "
            "such records before you build the model (`table = table.dropna()`), or put a public constant in "
            "place of what is missing (`np.nan_to_num(x, nan=0.0)`) and add a column that says where."
        )
