"""Which nodes of a model hold records, and what they may touch.

A node is *private* unless it was declared public, by name, or is a part of what the model is written with
(:mod:`~pymc_dp.likelihood.origins`). Private nodes may reach the observed likelihood and nothing else. What a
model computes from data outside its graph cannot be seen here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.containment import find_outside_likelihood
from pymc_dp.likelihood.naming import UNNAMED
from pymc_dp.likelihood.nodes import RecordData, data_nodes, values_of
from pymc_dp.likelihood.origins import Origins, lengths_of_leaves
from pymc_dp.likelihood.refusals import (
    refuse_hidden,
    refuse_latents_per_record,
    refuse_unsupported_variables,
)
from pymc_dp.likelihood.unit import (
    DECLARED_UNIT,
    axis_of_observed,
    count_records,
    record_axis,
    record_dims_of,
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
        What was declared public, and the numbers that priors are written with: for the user to check.
    left_out : tuple of str
        Deterministics that depend on private data: no result may have them.
    unit_given : bool
        Whether it was said what a unit is.
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
    unit_given: bool = False

    @property
    def public_design(self) -> bool:
        """Whether outcomes alone are private: everything else that the likelihood reads was declared public.

        By declaration only. Each unit has one record: whose several records are, and how many, is nowhere declared.
        """
        return self.unit_of_record is None and all(
            leaf.private == leaf.outcome for leaf in self.record_data
        )


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
        Names of ``pm.Data`` nodes that hold nothing private; arrays without a name as messages call them.

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
    named = {v.name for v in model.data_vars}
    _refuse_unknown(x for x in public if x not in named and not x.startswith(UNNAMED))
    origins = Origins(model, public)
    axis, dim = record_axis(unit)
    observed_axes = tuple(axis_of_observed(model, rv, axis, dim) for rv in model.observed_RVs)
    n = count_records(model, observed_axes)
    record_dims = record_dims_of(model, observed_axes, dim)
    record_data = tuple(_record_data(model, origins, observed_axes, n, record_dims))
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
    left_out, elsewhere = find_outside_likelihood(model, origins)
    _refuse_unknown(x for x in public if x not in named and x not in origins.described)
    codes, n_units = unit_codes(unit, n)
    refuse_latents_per_record(model, record_dims)
    declared = getattr(model, DECLARED_UNIT, None) if unit is None else unit
    return Roles(
        n_records=n,
        unit=unit_name(declared, record_dims),
        unit_of_record=codes,
        n_units=n_units,
        record_dims=record_dims,
        record_data=record_data,
        observed_axes=observed_axes,
        public_data=tuple(dict.fromkeys([*public, *elsewhere])),
        left_out=tuple(left_out),
        unit_given=declared is not None,
    )


def _refuse_unknown(names: Iterable[str]) -> None:
    if unknown := list(names):
        raise PrivacyConfigurationError(
            f"`public` names {unknown}, which the model has no `pm.Data` for."
        )


def _record_data(
    model: pm.Model,
    origins: Origins,
    observed_axes: Sequence[int],
    n: int,
    record_dims: frozenset[str],
) -> Iterator[RecordData]:
    """The data of the likelihood that have a row per record; refuses private ones that have not."""
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    observed = {
        node: (axis, rv.name)
        for rv, value, axis in zip(model.observed_RVs, values, observed_axes, strict=True)
        for node in data_nodes([value])
    }
    graphs = [*model.observed_RVs, *values]
    # A series' own past is in its law: that is no outcome that the rest could be known without.
    lengths = lengths_of_leaves(model.observed_RVs, model.free_RVs)
    read = set(data_nodes(model.observed_RVs, [*model.free_RVs, *lengths]))
    for node, name in origins.leaves(graphs, model.free_RVs).items():
        if node in observed:
            axis, of = observed[node]
            outcome = node not in read
            private = not origins.is_declared(name)
            yield RecordData(node, node.name or of, values_of(node), axis, private, outcome)
        elif leaf := _leaf(model, origins, node, name, n, record_dims, "The likelihood"):
            yield leaf
    _refuse_hidden(model, origins, graphs, "The likelihood")


def with_data_of(
    roles: Roles, model: pm.Model, public: Sequence[str], graphs: Sequence[Variable], reader: str
) -> Roles:
    """The same roles, with the data that other graphs of the model read beside its likelihood's.

    Parameters
    ----------
    roles : Roles
    model : Model
    public : sequence of str
        As it was given to :func:`find_roles`.
    graphs : sequence of Variable
    reader : str
        What messages call them.

    Raises
    ------
    UnsupportedModelError
        If private data have no row per record.
    """
    origins, known = Origins(model, public), {leaf.variable for leaf in roles.record_data}
    found = [
        _leaf(model, origins, node, name, roles.n_records, roles.record_dims, reader)
        for node, name in origins.leaves(graphs, model.free_RVs).items()
        if node not in known
    ]
    _refuse_hidden(model, origins, graphs, reader)
    return replace(
        roles, record_data=(*roles.record_data, *(leaf for leaf in found if leaf is not None))
    )


def _leaf(
    model: pm.Model,
    origins: Origins,
    node: Any,
    name: str,
    n: int,
    record_dims: frozenset[str],
    reader: str,
) -> RecordData | None:
    """A leaf with a row per record; None if it is public and has none."""
    dims = model.named_vars_to_dims.get(node.name)
    if origins.is_declared(name):
        aligned = [k for k, d in enumerate(dims or ()) if d in record_dims]
        return RecordData(node, name, values_of(node), aligned[0], False) if aligned else None
    held = values_of(node)
    axis = _record_axis(name, held, dims, n, record_dims, reader)
    return RecordData(node, name, held, axis, True)


def _refuse_hidden(
    model: pm.Model, origins: Origins, graphs: Sequence[Variable], reader: str
) -> None:
    for name in origins.hidden(graphs, model.free_RVs).values():
        if not origins.is_declared(name):
            refuse_hidden(name, reader)


def _record_axis(
    name: str,
    values: NDArray[Any],
    dims: Sequence[str | None] | None,
    n: int,
    record_dims: frozenset[str],
    reader: str,
) -> int:
    """The axis of private data that records are along. That there is one is all that their shape says."""
    named = dims or (None,) * values.ndim
    axes = [i for i, d in enumerate(named) if d in record_dims]
    if not axes:
        axes = [
            i
            for i, (size, d) in enumerate(zip(values.shape, named, strict=True))
            if size == n and (d is None or not record_dims)
        ]
    if len(axes) == 1:
        return axes[0]
    if axes:
        raise UnsupportedModelError(
            f"{name} has more than one axis that is as long as there are records, so a record is not "
            "a slice of it (a matrix between records couples them). Give `dims=` to the data if one "
            "of the axes only happens to be as long."
        )
    raise UnsupportedModelError(
        f"{reader} reads {name if name.startswith(UNNAMED) else repr(name)}, of "
        + (f"dimensions {list(dims)}" if dims else f"shape {values.shape}")
        + ", which has no row per record. Data of people need one, along the dimension of the observed variable. What holds nobody's data (knots, "
        "constants, a price list) is declared with `public=[...]`, by the name that it has here; single numbers may also "
        "be written into the model."
    )
