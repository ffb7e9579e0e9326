"""Walking a model's graph for the nodes that hold data, and looking at what they hold."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i

from pymc_dp.compat import ancestors, graph_inputs
from pymc_dp.exceptions import PrivacyError, UnsupportedModelError
from pymc_dp.likelihood.naming import shape_of

WRAP_DATA = (
    "If arrays of records are written into the model directly, make them `pm.Data` (observed values "
    "included: `observed=pm.Data('y_data', y)`), so that the model does not depend on their number."
)

# Fewer values than this may agree with the data by chance.
_MIN_DISTINCT = 20

# Random variables with more axes than this are not expected.
_MAX_AXES = 8


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
    limit : bool
        Whether it is nothing but the limits of a censored variable, where infinity means that there is none.
    """

    variable: Variable = field(repr=False)
    name: str
    values: NDArray[Any] = field(repr=False)
    axis: int
    private: bool
    limit: bool = False


@contextmanager
def quoting_nothing(message: str) -> Iterator[None]:
    """Turn any error into an :class:`UnsupportedModelError` that carries nothing of it but its type.

    PyTensor's errors quote inputs. Nothing is chained: a context is an output too.

    Parameters
    ----------
    message : str
        With ``{error}`` where the type goes.
    """
    failure = None
    try:
        yield
    except PrivacyError:
        raise
    except Exception as error:  # noqa: BLE001
        failure = type(error).__name__
    if failure is not None:
        raise UnsupportedModelError(message.format(error=failure))


def values_of(variable: Variable) -> NDArray[Any]:
    """Values of a data node, or of the node that an observed value is a cast of."""
    if isinstance(variable, SharedVariable):
        values = np.asarray(variable.get_value(borrow=True))
    elif isinstance(variable, Constant):
        values = np.asarray(variable.data)
    elif isinstance(getattr(variable.owner.op, "scalar_op", None), Cast):
        # Not compiled for that; and silently, as a warning would tell of a record.
        with np.errstate(all="ignore"):
            values = values_of(variable.owner.inputs[0]).astype(variable.type.dtype)
    else:
        values = np.asarray(variable.eval())
    if values.ndim != variable.type.ndim:
        raise UnsupportedModelError(
            f"{variable.name or 'A constant matrix'} is not a dense array (sparse matrices are not "
            "supported), so it cannot be split into records. Give it as a NumPy array."
        )
    return values


def data_nodes(outputs: Sequence[Variable], blockers: Sequence[Variable] = ()) -> list[Variable]:
    """Constants and shared variables with at least one axis that `outputs` depend on."""
    return [
        v
        for v in dict.fromkeys(graph_inputs(outputs, blockers=list(blockers)))
        if isinstance(v, SharedVariable | Constant)
        and not isinstance(v.type, RandomType)
        and getattr(v.type, "ndim", 0) > 0
    ]


def shared_variables(
    model: pm.Model, outputs: Sequence[Variable], blockers: Sequence[Variable] = ()
) -> list[SharedVariable]:
    """Shared variables that `outputs` depend on and that can hold data.

    That is all but random generators and the lengths of dimensions: a single number may be the mean
    of all records, whoever made the variable.
    """

    def is_length(v: SharedVariable) -> bool:
        # Graphs of initial values hold copies, so it is known by its name and its value.
        length = model.dim_lengths.get(v.name)
        return (
            isinstance(length, SharedVariable | Constant)
            and v.type.ndim == 0
            and v.get_value() == values_of(length)
        )

    return [
        v
        for v in dict.fromkeys(graph_inputs(outputs, blockers=list(blockers)))
        if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType) and not is_length(v)
    ]


def all_data_nodes(
    outputs: Sequence[Variable], blockers: Sequence[Variable] = ()
) -> list[Variable]:
    """Data nodes of graphs and of the inner graphs of their operations (scans, closures)."""
    return data_nodes(outputs, blockers) + inner_data_nodes(outputs, blockers)


def inner_data_nodes(
    outputs: Sequence[Variable], blockers: Sequence[Variable] = ()
) -> list[Variable]:
    """Data nodes of the inner graphs of operations (closures, scans)."""
    found: list[Variable] = []
    pending = _inner_outputs(outputs, blockers)
    while pending:
        inner = pending.pop()
        found += data_nodes(inner)
        pending += _inner_outputs(inner)
    return found


def _inner_outputs(
    outputs: Sequence[Variable], blockers: Sequence[Variable] = ()
) -> list[list[Variable]]:
    nodes = {v.owner for v in ancestors(outputs, blockers=blockers) if v not in set(blockers)}
    return [
        list(node.op.fgraph.outputs) for node in nodes if hasattr(getattr(node, "op", 0), "fgraph")
    ]


def shapes_of_data(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> list[Variable]:
    """Lengths read off data nodes: how many records and columns there are is public."""
    return [
        v
        for v in ancestors(graphs, blockers=blockers)
        if v.owner is not None
        and isinstance(v.owner.op, Shape | Shape_i)
        and isinstance(v.owner.inputs[0], SharedVariable | Constant)
    ]


def shape_constants(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> list[Constant]:
    """Whole-number constants that only say how large a random variable is."""
    found: dict[Constant, None] = {}
    for node in {v.owner for v in ancestors(graphs, blockers=blockers) if v.owner is not None}:
        size = _size_of(node)
        for c in ancestors([size], blockers=blockers) if size is not None else ():
            # One entry per axis, so a longer array is data that a size was computed from.
            if (
                isinstance(c, Constant)
                and getattr(c.type, "dtype", "") in ("int64", "int32")
                and c.data.size <= _MAX_AXES
            ):
                found[c] = None
    return list(found)


def _size_of(node: Any) -> Variable | None:
    """What a random variable was told of its size."""
    # A truncated one has the inputs of the distribution that it truncates.
    if isinstance(getattr(node.op, "base_rv_op", None), RandomVariable):
        return node.inputs[1]
    if hasattr(node.op, "size_param") and getattr(node.op, "extended_signature", "") is not None:
        return node.op.size_param(node)
    return None


def only_limits(node: Variable, graphs: Sequence[Variable]) -> bool:
    """Whether a data node is used for the limits of censored variables alone.

    A record's value is compared with them, and they enter no arithmetic.
    """
    users: dict[Variable, list[tuple[Any, int]]] = {}
    for user in {v.owner for v in ancestors(graphs) if v.owner is not None}:
        for place, v in enumerate(user.inputs):
            users.setdefault(v, []).append((user, place))
    pending, found = [node], False
    while pending:
        for user, place in users.get(pending.pop(), []):
            if isinstance(user.op, CensoredRV) and place > 0:
                found = True
            elif isinstance(user.op, DimShuffle | ViewOp):
                pending += user.outputs
            elif not isinstance(user.op, Shape | Shape_i):
                return False
    return found


def is_excerpt(values: NDArray[Any], held: Sequence[NDArray[Any]]) -> bool:
    """Whether an array is a copy, a part or a rearrangement of one of the arrays `held`.

    Judged by its values, so a part must have many, and not whole numbers.
    """
    if any(np.array_equal(values, array) for array in held):
        return True
    if values.dtype.kind != "f" or len(distinct := np.unique(values)) < _MIN_DISTINCT:
        return False
    return any(array.dtype.kind == "f" and np.isin(distinct, array).all() for array in held)


def refuse_hidden(
    nodes: Iterable[Variable], n: int, held: Sequence[NDArray[Any]], public: Collection[str]
) -> None:
    """Refuse data nodes that may hold records and that no record rows can take the place of.

    Raises
    ------
    UnsupportedModelError
    """
    for node in nodes:
        values = values_of(node)
        if node.name in public or values.size <= 1:
            continue
        if (
            isinstance(node, SharedVariable)
            or is_excerpt(values, held)
            or (values.size >= n and (n in values.shape or values.dtype.kind == "f"))
        ):
            raise UnsupportedModelError(
                f"An array of shape {shape_of(values, n)} is written into the likelihood in a way that does "
                "not let it be split into records (for example captured by the function of a "
                "`pm.CustomDist`, or declared with `dims` that are not the records'). Pass it to "
                f"the distribution as a parameter. {WRAP_DATA}"
            )
