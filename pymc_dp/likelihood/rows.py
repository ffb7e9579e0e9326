"""Put arrays of any number of rows in place of a graph's data, and forget how many there were.

What PyMC builds of plain arrays knows their length: in the types of variables, in the inner graphs of its own
random variables (mixtures, censored and truncated ones), and where a model fills an array. All of it is built
again here, from the types that the rows have.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import Alloc

from pymc_dp.compat import graph_inputs, inner_graph, io_toposort


def with_rows(
    outputs: Sequence[Variable],
    replacements: Mapping[Variable, Variable],
    length: tuple[int, Variable] | None = None,
) -> list[Variable]:
    """Rebuild `outputs` with other variables, of other static shapes, in place of some.

    Parameters
    ----------
    outputs : sequence of Variable
    replacements : mapping
    length : tuple of int and Variable, optional
        A number of records, and what to write where arrays of that length are filled.
    """
    memo = dict(replacements)
    blockers = list(replacements)
    inputs = [*blockers, *graph_inputs(outputs, blockers=blockers)]
    for node in io_toposort(list(dict.fromkeys(inputs)), list(outputs)):
        given = [memo.get(v, v) for v in node.inputs]
        if length is not None and isinstance(node.op, Alloc):
            n, symbolic = length
            given[1:] = [
                symbolic if isinstance(v, Constant) and v.data == n else v for v in given[1:]
            ]
        if all(new is old for new, old in zip(given, node.inputs, strict=True)):
            continue
        for old, new in zip(node.outputs, _made_again(node, given), strict=True):
            new.name = old.name
            memo.setdefault(old, new)
    return [memo.get(v, v) for v in outputs]


def _made_again(node: Any, inputs: list[Variable]) -> list[Variable]:
    op = node.op
    # What an inner graph gives may be of a known length, by a size that is now another.
    fits = not isinstance(op, OpFromGraph) or (
        all(known.is_super(new.type) for known, new in zip(op.input_types, inputs, strict=False))
        and all(n is None for v in node.outputs for n in getattr(v.type, "shape", ()))
    )
    if fits:
        return list(op.make_node(*inputs).outputs)
    if hasattr(op, "build_inner_graph"):  # it knows how to make itself for other inputs
        made = op(*inputs, return_list=True)
        return list(made)
    inner, inside = inner_graph(op), [v.type() for v in inputs]
    computed = with_rows(inner.outputs, dict(zip(inner.inputs, inside, strict=True)))
    relaxed = copy.copy(op)
    OpFromGraph.__init__(relaxed, inside, computed, inline=op.is_inline, name=op.name)
    return list(relaxed.make_node(*inputs).outputs)


def repeated(values: Variable, shape: Sequence[Variable | int], *new: int) -> Variable:
    """Repeat rows along new axes, and make all of them the rows of one array.

    Parameters
    ----------
    values : Variable
        With axes that `shape` has, but for the new ones, and then any others.
    shape : sequence of Variable or int
        Of the first axes, with the new ones.
    *new : int
        Which axes of these are new.

    Returns
    -------
    Variable, shape (product of `shape`, ...)
    """
    expanded = pt.expand_dims(values, new)
    rest = [expanded.shape[k] for k in range(len(shape), expanded.ndim)]
    return pt.broadcast_to(expanded, (*shape, *rest)).reshape((-1, *rest))
