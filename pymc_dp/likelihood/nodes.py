"""Data in a model's graph, and errors that quote nothing of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Cast
from pytensor.tensor.random.type import RandomType

from pymc_dp.compat import graph_inputs
from pymc_dp.exceptions import PrivacyError, UnsupportedModelError

WRAP_DATA = (
    "If arrays of records are written into the model directly, make them `pm.Data` (observed values "
    "included: `observed=pm.Data('y_data', y)`), so that the model does not depend on their number. Public data "
    "with a row per record need the dimension of the observed variable."
)


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
    outcome : bool
        Whether it is what was observed, and nothing else: no other record's and no parameter of its own law reads it.
    """

    variable: Variable = field(repr=False)
    name: str
    values: NDArray[Any] = field(repr=False)
    axis: int
    private: bool
    outcome: bool = False


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
