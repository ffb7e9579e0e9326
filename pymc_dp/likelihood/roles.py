"""Which nodes of a model hold records, and what they may touch.

A node is *private* if it holds observed values, or data of the records' length that the observed
likelihood depends on. Private nodes may reach the observed likelihood and nothing else. What a
model computes from data outside its graph cannot be seen here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.data import MinibatchIndexRV, MinibatchOp
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.containment import refuse_private_outside_likelihood
from pymc_dp.likelihood.nodes import (
    RecordData,
    data_nodes,
    inner_data_nodes,
    is_excerpt,
    refuse_hidden,
    shape_constants,
    shared_variables,
    values_of,
)

# Below this many records, an axis of that length is as likely a coincidence as a latent variable
# per record.
_LATENT_MIN_RECORDS = 100


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
    """

    n_records: int
    unit: str
    unit_of_record: NDArray[np.int64] | None
    n_units: int
    record_dims: frozenset[str]
    record_data: tuple[RecordData, ...]
    observed_axes: tuple[int, ...]
    public_data: tuple[str, ...]


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
    _refuse_unsupported_variables(model)
    if isinstance(public, str):
        raise PrivacyConfigurationError(
            f"`public` is a list of names. Found the text {public!r}: write `public=[{public!r}]`."
        )
    unknown = [name for name in public if name not in {v.name for v in model.data_vars}]
    if unknown:
        raise PrivacyConfigurationError(
            f"`public` names {unknown}, which the model has no `pm.Data` for."
        )
    axis, dim = _record_axis(unit)
    observed_axes = tuple(_axis_of_observed(model, rv, axis, dim) for rv in model.observed_RVs)
    n = _count_records(model, observed_axes)
    record_dims = _record_dims(model, observed_axes, dim)
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
    elsewhere = refuse_private_outside_likelihood(model, record_data, n, record_dims, public)
    codes, n_units = _unit_codes(unit, n)
    if codes is None:
        _refuse_repeated_labels(model, record_dims)
    _refuse_latents_per_record(model, n, n_units, record_dims)
    for leaf in record_data:
        refuse_non_finite(leaf)
    return Roles(
        n_records=n,
        unit=_unit_name(unit, record_dims),
        unit_of_record=codes,
        n_units=n_units,
        record_dims=record_dims,
        record_data=record_data,
        observed_axes=observed_axes,
        public_data=tuple(dict.fromkeys([*public_data, *elsewhere])),
    )


# -- the model's variables --------------------------------------------------------------------------


def _refuse_unsupported_variables(model: pm.Model) -> None:
    if not model.free_RVs:
        raise UnsupportedModelError("The model has no free variables: there is nothing to sample.")
    if not model.observed_RVs:
        raise UnsupportedModelError(
            "The model has no observed variables. A likelihood given as a `pm.Potential` cannot be "
            "split into records: write it as a distribution with `observed=...`, or as a "
            "`pm.CustomDist` with `logp=...`."
        )
    names = {rv.name for rv in model.observed_RVs}
    for rv in (*model.free_RVs, *model.observed_RVs):
        # PyMC splits "y" into "y_observed" and "y_unobserved".
        half = rv.name.removesuffix("_unobserved") + "_observed"
        if isinstance(rv.owner.op, PartialObservedRV) or (half != rv.name and half in names):
            raise UnsupportedModelError(
                f"{rv.name.removesuffix('_unobserved').removesuffix('_observed')!r} has missing values, which PyMC "
                "imputes as free variables, one per record. Drop the incomplete records, or model "
                "the missingness with a public rule."
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModelError(
                f"{rv.name!r} has a `total_size`: its log-likelihood is scaled up from a "
                "minibatch. Remove `total_size` and give the whole data; chunking keeps memory "
                "bounded."
            )
    for var in ancestors([*model.observed_RVs, *map(model.rvs_to_values.get, model.observed_RVs)]):
        if var.owner is not None and isinstance(var.owner.op, MinibatchIndexRV | MinibatchOp):
            raise UnsupportedModelError(
                "The model reads its data through `pm.Minibatch`. Give the whole arrays, as "
                "`pm.Data`; chunking keeps memory bounded."
            )
    discrete = [v.name for v in model.discrete_value_vars]
    if discrete:
        raise UnsupportedModelError(
            f"The free variables {discrete} are discrete; private steps move in continuous space. "
            "Sum them out of the likelihood (`pm.Mixture`, or marginalisation in pymc-extras)."
        )


def _refuse_latents_per_record(
    model: pm.Model, n: int, n_units: int, record_dims: frozenset[str]
) -> None:
    start = model.initial_point(0)
    for rv in model.free_RVs:
        dims = model.named_vars_to_dims.get(rv.name, ())
        shape = start[model.rvs_to_values[rv].name].shape
        if record_dims & set(dims) or any(
            size >= _LATENT_MIN_RECORDS and size in (n, n_units) for size in shape
        ):
            raise UnsupportedModelError(
                f"The free variable {rv.name!r} has one value per record or unit. A draw of it is "
                "a release about each person, and the noise would drown it: integrate it out of "
                "the likelihood, or let groups of records share it."
            )


# -- the record axis --------------------------------------------------------------------------------


def _record_axis(unit: Any) -> tuple[int, str | None]:
    """Axis number (0 unless given) and dimension name of the records."""
    if isinstance(unit, str):
        return 0, unit
    if isinstance(unit, bool):
        raise PrivacyConfigurationError("`unit` must be a dimension, an axis or identifiers.")
    if isinstance(unit, int):
        if unit < 0:
            raise PrivacyConfigurationError(f"`unit` as an axis must be 0 or more. Found {unit}.")
        return unit, None
    return 0, None


def _axis_of_observed(model: pm.Model, rv: Variable, axis: int, dim: str | None) -> int:
    dims = model.named_vars_to_dims.get(rv.name, ())
    if dim is not None:
        if dim not in dims:
            raise PrivacyConfigurationError(
                f"`unit={dim!r}` is not a dimension of the observed variable {rv.name!r}, which has "
                f"{list(dims)}. Give `dims=` to {rv.name!r}, or `unit` the number of its record axis."
            )
        axis = dims.index(dim)
    if values_of(model.rvs_to_values[rv]).ndim <= axis:
        raise UnsupportedModelError(
            f"The observed variable {rv.name!r} has no axis {axis}, so it has no records. Give it "
            "one value (or row) per record."
        )
    return axis


def _count_records(model: pm.Model, axes: Iterable[int]) -> int:
    lengths = {
        rv.name: values_of(model.rvs_to_values[rv]).shape[axis]
        for rv, axis in zip(model.observed_RVs, axes, strict=True)
    }
    if len(set(lengths.values())) != 1:
        raise UnsupportedModelError(
            f"The observed variables have different numbers of records: {lengths}. They must share "
            "their records; sample models with separate data sets separately, on one ledger."
        )
    (n,) = set(lengths.values())
    if n == 0:
        raise UnsupportedModelError("The observed variables are empty: there are no records.")
    return int(n)


def _record_dims(model: pm.Model, axes: Iterable[int], dim: str | None) -> frozenset[str]:
    found = {dim} if dim is not None else set()
    for rv, axis in zip(model.observed_RVs, axes, strict=True):
        dims = model.named_vars_to_dims.get(rv.name)
        if dims and dims[axis] is not None:
            found.add(dims[axis])
    if dim is None and len(found) > 1:
        raise UnsupportedModelError(
            f"The observed variables have different record dimensions: {sorted(found)}. If their "
            "records belong to the same people, in the same order, give them one dimension; if not, "
            "sample the models separately, on one ledger."
        )
    return frozenset(found)


def _unit_codes(unit: Any, n: int) -> tuple[NDArray[np.int64] | None, int]:
    if unit is None or isinstance(unit, str | int):
        return None, n
    ids = np.asarray(unit)
    if ids.shape != (n,):
        raise PrivacyConfigurationError(
            f"`unit` as an array needs one identifier per record, shape ({n},). Found {ids.shape}."
        )
    if ids.dtype.kind in "OT" and all(isinstance(x, str) for x in ids):
        ids = np.array([str(x) for x in ids])
    elif ids.dtype.kind == "O" and all(isinstance(x, int | np.integer) for x in ids):
        ids = ids.astype(np.int64)
    if ids.dtype.kind in "OT":
        raise PrivacyConfigurationError(
            "`unit` as an array holds integer or text identifiers. Some are missing, or of another "
            "type."
        )
    if ids.dtype.kind not in "iuUS":
        raise PrivacyConfigurationError(
            f"`unit` as an array holds integer or text identifiers. Found dtype {ids.dtype}."
        )
    return numbered(ids)


def numbered(ids: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Number identifiers as they first appear, and count them.

    In the order of the identifiers themselves, one person's would move the place of all others.
    """
    labels, first, codes = np.unique(ids, return_index=True, return_inverse=True)
    place = np.empty(len(labels), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(labels))
    return place[codes], len(labels)


def _refuse_repeated_labels(model: pm.Model, record_dims: frozenset[str]) -> None:
    """Records with one label are one unit's, and would be counted as several."""
    for dim in sorted(record_dims):
        labels = model.coords.get(dim)
        if labels is not None and len(set(labels)) < len(labels):
            raise PrivacyConfigurationError(
                f"Labels of the dimension {dim!r} repeat, so one {dim} seems to have several records, "
                "and each record would be protected on its own only. If they are identifiers, pass them "
                "as `unit=` too (an array); if not, leave them out of `coords`."
            )


def _unit_name(unit: Any, record_dims: frozenset[str]) -> str:
    if unit is not None and not isinstance(unit, str | int):
        return "all records with one identifier"
    return f"one {sorted(record_dims)[0]}" if len(record_dims) == 1 else "one record"


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
            name = node.name or f"a constant array of shape {values.shape}"
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
        record_data.append(RecordData(node, name, values, axis, private))
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
            f"{name} has more than one axis of length {n}, the number of records, so a record is not "
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
    """Refuse NaN and infinite values, without saying where they are."""
    if leaf.values.dtype.kind != "f":
        return
    rows = np.moveaxis(leaf.values, leaf.axis, 0)
    if not all(np.isfinite(rows[i : i + 65536]).all() for i in range(0, len(rows), 65536)):
        raise UnsupportedModelError(
            f"{leaf.name!r} contains NaN or infinite values. Drop those records, or replace the "
            "values by a public rule, before building the model."
        )
