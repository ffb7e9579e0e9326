"""Where records read rows of tables of parameters: the gathers in a log-likelihood's graph."""

from collections.abc import Collection
from typing import Any

from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.scalar.basic import Add, Clip, Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape as ShapeOp
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import Subtensor

from pymc_dp.compat import ancestors, graph_inputs, index_axes, io_toposort


def reached(output: Variable, starts: Collection[Variable]) -> set[Variable]:
    """What is computed from `starts`; a length tells nothing of values."""
    found = set(starts)
    for node in io_toposort(list(graph_inputs([output])), [output]):
        if found.intersection(node.inputs) and not isinstance(node.op, ShapeOp | Shape_i):
            found.update(node.outputs)
    return found


def gathers(
    output: Variable, theta: Variable, rows: set[Variable]
) -> tuple[dict[Variable, tuple[Variable, Variable]], dict[Variable, Variable]]:
    """Rows that records read from what depends on θ alone: the table and the index of each, and where to cut it off.

    What is done to them with numbers that all records share is done to the table instead:
    ``mu + tau * z[k]`` reads ``(mu + tau * z)[k]``. Cut off they are before what no other parameter has a part in,
    where the likelihood is closer to normal: of ``sigmoid(mu + tau * z[k])`` that is the same.
    """
    rowwise, of_theta = reached(output, rows), reached(output, {theta})
    read: dict[Variable, tuple[Variable, Variable]] = {}
    early: dict[Variable, Variable] = {}
    nodes = list(io_toposort(list(graph_inputs([output])), [output]))
    found = {node.outputs[0]: _gather(node, rows, rowwise, of_theta) for node in nodes}
    first = {out: gather for out, gather in found.items() if gather is not None}
    twice = _read_twice(list(first.values()))
    for node in nodes:
        out = node.outputs[0]
        if out in first:
            read[out], early[out] = first[out], out
        elif isinstance(node.op, Elemwise) and any(v in read for v in node.inputs):
            indices = [read[v][1] for v in node.inputs if v in read]
            if _adds_parameters(node, read, of_theta) and any(
                v in twice for u in node.inputs if u in read for v in ancestors([read[u][0]])
            ):
                continue  # the same is added to one of two only, and then these are two tables
            if all(v in read or shared(v, rowwise) for v in node.inputs) and equal_computations(
                indices, [indices[0]] * len(indices)
            ):
                table = node.clone_with_new_inputs(
                    [read[v][0] if v in read else v for v in node.inputs], strict=False
                ).outputs[0]
                if None not in table.type.shape and table.dtype == "float64":
                    read[out] = table, indices[0]
                    before = {early[v] for v in node.inputs if v in read}
                    alone = len(before) == 1 and not any(
                        v in of_theta for v in node.inputs if v not in read
                    )
                    early[out] = before.pop() if alone else out
    return read, early


def _read_twice(found: list[tuple[Variable, Variable]]) -> set[Variable]:
    """Sources that are read with two indices."""
    return {a for a, i in found for b, j in found if equal(a, b) and not equal(i, j)}


def _adds_parameters(node: Any, read: Collection[Variable], of_theta: Collection[Variable]) -> bool:
    added = isinstance(node.op.scalar_op, Add | Sub)
    return added and any(v in of_theta and v not in read for v in node.inputs)


def shared(v: Variable, rowwise: Collection[Variable]) -> bool:
    """Whether all records have it alike, as one number or as one row."""
    return v not in rowwise and (v.type.ndim == 0 or v.type.broadcastable[0])


def _gather(
    node: Any,
    rows: Collection[Variable],
    rowwise: Collection[Variable],
    of_theta: Collection[Variable],
) -> tuple[Variable, Variable] | None:
    axes = index_axes(node)
    if not axes:
        return None
    table = source = node.inputs[0]
    others = [v for k, v in enumerate(node.inputs) if k and k not in dict(axes)]
    fixed = [(place, axis) for place, axis in axes if _is_constant(node.inputs[place])]
    if len(axes) == 2 and len(fixed) == 1 and table.type.ndim == 2:
        # A column of a table, or a row of one on its side.
        place, axis = fixed[0]
        source = table[(slice(None),) * axis + (node.inputs[place],)]
        axes = [(other, 0) for other, _ in axes if other != place]
    if len(axes) != 1 or axes[0][1] != 0:
        return None
    index = node.inputs[axes[0][0]]
    whole = all(isinstance(v, Constant) and v.data == slice(None) for v in others)
    usable = (
        whole
        and index.type.ndim == 1
        and node.outputs[0].type.ndim == source.type.ndim
        and None not in source.type.shape
        and source.type.dtype == "float64"
    )
    if not usable or table in rowwise or table not in of_theta:
        return None
    if index in of_theta or not _one_each(index, rows, rowwise):
        return None
    return source, _unclipped(index)


def equal(a: Variable, b: Variable) -> bool:
    """Whether two graphs are the same computation."""
    return bool(equal_computations([a], [b]))


def _one_each(v: Variable, rows: Collection[Variable], rowwise: Collection[Variable]) -> bool:
    """Whether `v` has one entry per record, made of that record's own data, along its first axis.

    Records that are persons, whose answers a reshaped index reads, see many rows of a table each.
    """
    node = v.owner
    if v in rows or node is None:
        return v in rows
    if isinstance(node.op, Elemwise):
        parts = [u for u in node.inputs if not shared(u, rowwise)]
    elif isinstance(node.op, DimShuffle):
        parts = node.inputs if node.op.new_order[:1] == (0,) else []
    elif isinstance(node.op, Subtensor):
        parts = node.inputs[:1] if node.op.idx_list[0] == slice(None) else []
    else:  # of a table that is no record's, as of districts' regions
        axes = index_axes(node)
        alone = len(axes) == 1 == len(node.inputs) - 1 and node.inputs[0] not in rowwise
        parts = [node.inputs[1]] if alone else []
    return bool(parts) and all(_one_each(u, rows, rowwise) for u in parts)


def _is_constant(v: Variable) -> bool:
    """Whether it is one number that the model's own code has."""
    return v.type.ndim == 0 and all(isinstance(x, Constant) for x in graph_inputs([v]))


def _unclipped(index: Variable) -> Variable:
    """The index itself, of one that :func:`keep_indices_in_range` has clipped: :func:`rows_of` does it too."""
    clip = index.owner.inputs[0] if index.owner is not None else None
    if clip is not None and isinstance(
        getattr(getattr(clip.owner, "op", None), "scalar_op", None), Clip
    ):
        return clip.owner.inputs[0]
    if isinstance(getattr(getattr(index.owner, "op", None), "scalar_op", None), Clip):
        return index.owner.inputs[0]
    return index
