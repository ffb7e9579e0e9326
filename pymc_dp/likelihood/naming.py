"""What messages call an array that has no name: by what the model does with it."""

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Mul
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot

from pymc_dp.compat import AdvancedSubtensor, AdvancedSubtensor1, graph_inputs, io_toposort

# Operations between an array and the variable that it meets: casts, new axes, logarithms.
_MOST_STEPS = 12


UNNAMED = ("the array in `", "an array without a name")
"""How descriptions begin."""


def described(node: Variable, graphs: Sequence[Variable]) -> str:
    """What messages call an array without a name: "the array in ``X @ beta``".

    Its shape is not in it, as the number of records may be private.

    Parameters
    ----------
    node : Variable
    graphs : sequence of Variable
        That use it.
    """
    use = _use(node, graphs)
    return f"{UNNAMED[0]}{use}`" if use else UNNAMED[1]


def _use(node: Variable, graphs: Sequence[Variable]) -> str | None:
    """How the first named variable that an array meets is written with it."""
    nodes = list(io_toposort(list(graph_inputs(graphs)), list(graphs)))
    for _ in range(_MOST_STEPS):
        users = [user for user in nodes if node in user.inputs]
        for user in users:
            for place, other in enumerate(user.inputs):
                if other is not node and (name := _name_behind(other)) is not None:
                    return _written(user, user.inputs.index(node) > place, name)
        if not users:
            return None
        node = users[0].outputs[0]
    return None


def _name_behind(variable: Variable) -> str | None:
    """The name of a variable, seen through new axes and slices."""
    for _ in range(_MOST_STEPS):
        if variable.owner is None:
            return None
        if variable.name:
            return str(variable.name)
        # The result of a random variable is its second output; axes and slices have one.
        if not isinstance(variable.owner.op, DimShuffle) and "Subtensor" not in str(
            variable.owner.op
        ):
            return None
        variable = variable.owner.inputs[0]
    return None


def _written(user: Any, after: bool, name: str) -> str:
    op = user.op.core_op if isinstance(user.op, Blockwise) else user.op
    if isinstance(op, AdvancedSubtensor | AdvancedSubtensor1):
        return f"{name}[index]" if after else f"X[{name}]"
    if isinstance(op, Dot) or type(op).__name__ in ("Matmul", "BatchedDot"):
        return f"{name} @ X" if after else f"X @ {name}"
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Mul):
        return f"{name} * x"
    return f"{op.scalar_op.name or 'f'}({name}, x)" if isinstance(op, Elemwise) else f"f({name}, x)"
