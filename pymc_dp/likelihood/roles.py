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
from pymc.data import MinibatchIndexRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.type import RandomType

from pymc_dp.compat import ancestors, graph_inputs
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError

# Below this many records, an axis of that length is as likely a coincidence as a latent variable
# per record.
_LATENT_MIN_RECORDS = 100


@dataclass(frozen=True)
class RecordData:
    """A data node with one slice per record.

    Parameters
    ----------
    variable : Variable
        The constant or shared variable in the model's graph.
    name : str
        What messages call it.
    values : ndarray
        Its values; not a copy.
    axis : int
        Its record axis.
    private : bool
        False if the user declared it public.
    """

    variable: Variable
    name: str
    values: NDArray[Any]
    axis: int
    private: bool


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
    _refuse_private_outside_likelihood(model, record_data, n, record_dims, public)
    codes, n_units = _unit_codes(unit, n)
    _refuse_latents_per_record(model, n, n_units, record_dims)
    for leaf in record_data:
        _refuse_non_finite(leaf)
    return Roles(
        n_records=n,
        unit=_unit_name(unit, record_dims),
        unit_of_record=codes,
        n_units=n_units,
        record_dims=record_dims,
        record_data=record_data,
        observed_axes=observed_axes,
        public_data=public_data,
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
                f"{rv.name!r} belongs to an observed variable with missing values, which PyMC "
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
        if var.owner is not None and isinstance(var.owner.op, MinibatchIndexRV):
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
    for rv in model.free_RVs:
        dims = model.named_vars_to_dims.get(rv.name, ())
        shape = model.initial_point(0)[model.rvs_to_values[rv].name].shape
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
    if isinstance(unit, int) and not isinstance(unit, bool):
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
    if _values(model.rvs_to_values[rv]).ndim <= axis:
        raise UnsupportedModelError(
            f"The observed variable {rv.name!r} has no axis {axis}, so it has no records. Give it "
            "one value (or row) per record."
        )
    return axis


def _count_records(model: pm.Model, axes: Iterable[int]) -> int:
    lengths = {
        rv.name: _values(model.rvs_to_values[rv]).shape[axis]
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
    return frozenset(found)


def _unit_codes(unit: Any, n: int) -> tuple[NDArray[np.int64] | None, int]:
    if unit is None or isinstance(unit, str | int):
        return None, n
    ids = np.asarray(unit)
    if ids.shape != (n,):
        raise PrivacyConfigurationError(
            f"`unit` as an array needs one identifier per record, shape ({n},). Found {ids.shape}."
        )
    if ids.dtype.kind not in "iuUSO":
        raise PrivacyConfigurationError(
            f"`unit` as an array holds integer or text identifiers. Found dtype {ids.dtype}."
        )
    labels, codes = np.unique(ids, return_inverse=True)
    return codes.astype(np.int64), len(labels)


def _unit_name(unit: Any, record_dims: frozenset[str]) -> str:
    if unit is not None and not isinstance(unit, str | int):
        return "all records with one identifier"
    return f"one {sorted(record_dims)[0]}" if len(record_dims) == 1 else "one record"


# -- data nodes -------------------------------------------------------------------------------------


def _values(variable: Variable) -> NDArray[Any]:
    """Values of a data node, or of the node that an observed value is a cast of."""
    if isinstance(variable, SharedVariable):
        return np.asarray(variable.get_value(borrow=True))
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    return np.asarray(variable.eval())


def data_nodes(outputs: Sequence[Variable], blockers: Sequence[Variable] = ()) -> list[Variable]:
    """Constants and shared variables with at least one axis that `outputs` depend on."""
    return [
        v
        for v in dict.fromkeys(graph_inputs(outputs, blockers=list(blockers)))
        if isinstance(v, SharedVariable | Constant)
        and not isinstance(v.type, RandomType)
        and getattr(v.type, "ndim", 0) > 0
    ]


def shape_constants(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> list[Constant]:
    """Whole-number constants that only say how large a random variable is."""
    found: dict[Constant, None] = {}
    for node in {v.owner for v in ancestors(graphs, blockers=blockers) if v.owner is not None}:
        size = node.op.size_param(node) if hasattr(node.op, "size_param") else None
        for c in ancestors([size], blockers=blockers) if size is not None else ():
            if isinstance(c, Constant) and getattr(c.type, "dtype", "") in ("int64", "int32"):
                found[c] = None
    return list(found)


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
    record_data, public_data = [], []
    graphs = [*model.observed_RVs, *observed_values]
    shapes = set(shape_constants(graphs, model.free_RVs))
    for node in data_nodes(graphs, blockers=model.free_RVs):
        if node in shapes:
            continue
        values = _values(node)
        if node in axis_of_value:
            axis, name = axis_of_value[node], node.name or name_of_value[node]
        else:
            name = node.name or f"a constant array of shape {values.shape}"
            found = _record_axis_of(model, node, values, n, record_dims, name)
            if found is None:
                if isinstance(node, SharedVariable) and node.name not in public:
                    raise UnsupportedModelError(
                        f"The `pm.Data` node {name!r}, of shape {values.shape}, has no record axis, "
                        f"so it could hold statistics of all records. If it holds nothing private, "
                        f"say so: `public=[{name!r}]`."
                    )
                if values.size >= n and values.size > 1 and node.name not in public:
                    _refuse_unaligned(name)
                if values.size > 1:
                    public_data.append(name)
                continue
            axis = found
        private = node.name not in public
        if not private:
            public_data.append(name)
        record_data.append(RecordData(node, name, values, axis, private))
    return tuple(record_data), tuple(public_data)


def _record_axis_of(
    model: pm.Model,
    node: Variable,
    values: NDArray[Any],
    n: int,
    record_dims: frozenset[str],
    name: str,
) -> int | None:
    dims = model.named_vars_to_dims.get(node.name)
    if dims and record_dims:
        shared = [i for i, d in enumerate(dims) if d in record_dims]
        return shared[0] if shared else None
    axes = [i for i, size in enumerate(values.shape) if size == n]
    if len(axes) > 1 and n > 1:
        raise UnsupportedModelError(
            f"{name} has more than one axis of length {n}, the number of records, so a record is not "
            "a slice of it (a matrix between records couples them). Give `dims=` to the data if one "
            "of the axes only happens to be as long."
        )
    return axes[0] if axes else None


def _refuse_unaligned(name: str) -> None:
    raise UnsupportedModelError(
        f"The likelihood depends on {name}, which is as large as the data but has no record axis. "
        "Reshape it to one slice per record; or, if it holds nothing private, make it a `pm.Data` "
        "and name it in `public`."
    )


def _refuse_non_finite(leaf: RecordData) -> None:
    if leaf.values.dtype.kind != "f":
        return
    rows = np.moveaxis(leaf.values, leaf.axis, 0)
    if not all(np.isfinite(rows[i : i + 65536]).all() for i in range(0, len(rows), 65536)):
        raise UnsupportedModelError(
            f"{leaf.name!r} contains NaN or infinite values. Drop those records, or replace the "
            "values by a public rule, before building the model."
        )


# -- where private data may not go ------------------------------------------------------------------


def _refuse_private_outside_likelihood(
    model: pm.Model,
    record_data: Sequence[RecordData],
    n: int,
    record_dims: frozenset[str],
    public: Sequence[str],
) -> None:
    private = [leaf for leaf in record_data if leaf.private]

    def private_source(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> str | None:
        shapes = set(shape_constants(graphs, blockers))
        for node in data_nodes(graphs, blockers):
            if node in shapes:
                continue
            for leaf in private:
                if node is leaf.variable:
                    return leaf.name
            if node.name in public:
                continue
            values = _values(node)
            dims = model.named_vars_to_dims.get(node.name, ())
            aligned = n in values.shape or bool(record_dims & set(dims))
            # A constant is a new node each time it is used, so it is known by its shape. A fill
            # value (zeros, ones) holds no data.
            filled = values.size > 0 and np.array_equal(
                values, np.broadcast_to(values.flat[0], values.shape)
            )
            copied = any(np.array_equal(values, leaf.values) for leaf in private)
            if copied or ((aligned or values.size >= max(n, 2)) and not filled):
                return node.name or f"a constant array of shape {values.shape}"
        return None

    observed = set(model.observed_RVs)
    checks = [
        (
            f"The prior of {rv.name!r}",
            rv,
            "Give it public hyperparameters; if the array is public, make it a `pm.Data` and name "
            "it in `public`.",
        )
        for rv in model.free_RVs
    ]
    checks += [
        (f"The initial value of {rv.name!r}", value, "Start from a public value.")
        for rv, value in model.rvs_to_initial_values.items()
        if isinstance(value, Variable)
    ]
    checks += [
        (
            f"The Deterministic {det.name!r}",
            det,
            "Its values would be stored with the draws, without noise. Take it out of the model "
            "(some distributions add one: `compute_p=False`), and compute it from the released "
            "draws on data you may publish.",
        )
        for det in model.deterministics
    ]
    checks += [
        (
            f"The Potential {potential.name!r}",
            potential,
            "Write it as an observed distribution (`pm.CustomDist` with `logp=...`), so that it "
            "splits into records.",
        )
        for potential in model.potentials
    ]
    for what, graph, fix in checks:
        blockers = [rv for rv in model.free_RVs if rv is not graph]
        source = private_source([graph], blockers)
        if source is None and observed & set(ancestors([graph], blockers=blockers)):
            source = "an observed variable"
        if source is not None:
            raise UnsupportedModelError(f"{what} depends on private data ({source}). {fix}")
