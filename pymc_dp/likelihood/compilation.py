"""From a graph of record terms to a compiled function that tells nothing but its values.

PyMC's graphs check parameters over all records at once, and may index out of range because of one
record; both would couple records or raise. What is rewritten here is the same for every data set.
"""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.vm import VMLinker
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import TrueDiv
from pytensor.tensor.basic import MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape

from pymc_dp.compat import COMPILES_LOOPS, ancestors, graph_inputs, index_axes, io_toposort
from pymc_dp.exceptions import UnsupportedModelError

# Just before PyTensor fuses elementwise operations into loops; earlier, it would undo the rewrite.
_BEFORE_FUSION = 48.9


def interpreted() -> Mode:
    """Rewritten like a compiled function, and then run by NumPy, one operation after the other.

    A graph of some twenty operations takes 0.1 ms in place of 5 µs, but is there at once, where compiling it takes a second
    (Python 3.13, PyMC 6): for what is asked for fewer than some ten thousand times.
    """
    rewrites = get_mode("FAST_RUN").provided_optimizer.excluding("fusion", "BlasOpt")
    return Mode(VMLinker(use_cloop=False, c_thunks=False), rewrites)


@contextmanager
def compiling() -> Iterator[None]:
    """Derive and compile a quarter faster: without collecting garbage, and without stack traces of variables.

    Graphs are many small objects that refer to each other, and hardly any of them is garbage before the
    function is there; looking for it takes a fifth of the time. Traces would tell where a variable was made,
    in messages that are not shown.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        with pytensor.config.change_flags(traceback__limit=0):
            yield
    finally:
        if collected:
            gc.enable()


@node_rewriter([Elemwise])
def _divide_once(fgraph: Any, node: Any) -> list[Variable] | None:
    """``x / s`` with one s for many x: multiply by 1/s. Divisions are what a loop waits for."""
    if not isinstance(node.op.scalar_op, TrueDiv):
        return None
    x, s = node.inputs
    out = node.outputs[0].type
    shared = any(
        one and not many for one, many in zip(s.type.broadcastable, out.broadcastable, strict=True)
    )
    if not shared or s.type.dtype != out.dtype:
        return None
    reciprocal = pt.constant(1 / s.data) if isinstance(s, Constant) else pt.reciprocal(s)
    return [pt.mul(x, reciprocal)]


def strip_checks(output: Variable, records: Collection[Variable] = ()) -> Variable:
    """Replace parameter checks by a log-density of -inf, record by record.

    PyMC's checks are taken over all records together. With `records` (the inputs that hold rows),
    a condition on the parameters alone stays as it is, for all; one that involves rows is applied
    to each record on its own. Without, checks are dropped. Static-shape assertions always are.
    """

    def rule(node: Any, inputs: list[Variable]) -> Variable | None:
        if isinstance(node.op, SpecifyShape):
            return inputs[0]
        if not isinstance(node.op, CheckAndRaise):
            return None
        value, *conditions = inputs
        if not (records and isinstance(node.op, CheckParameterValue)):
            return value
        for condition in (part for c in conditions for part in _unreduced(c)):
            if not set(records) & set(ancestors([condition])):
                condition = pt.all(condition)
            elif condition.ndim == 0:
                continue  # taken over all records in a way that cannot be undone
            elif condition.ndim > value.ndim:
                condition = condition.all(axis=tuple(range(value.ndim, condition.ndim)))
            value = pt.switch(condition, value, -np.inf)
        return value

    return rebuilt(output, rule)


def _unreduced(condition: Variable) -> list[Variable]:
    """The elementwise conditions behind ``all([all(a), all(b), …])``."""
    node = condition.owner
    if node is not None and isinstance(node.op, MakeVector):
        return [part for v in node.inputs for part in _unreduced(v)]
    if node is not None and isinstance(node.op, All | ScalarFromTensor):
        return _unreduced(node.inputs[0])
    return [condition]


def keep_indices_in_range(output: Variable, records: Collection[Variable]) -> Variable:
    """Clip every index that depends on record rows into its axis.

    An index out of range would raise, or read memory that belongs to nobody, because of one record.
    """

    def rule(node: Any, inputs: list[Variable]) -> Variable | None:
        changed = list(inputs)
        for position, axis in index_axes(node):
            index = inputs[position]
            if set(records) & set(ancestors([index])):
                length = inputs[0].shape[axis]
                changed[position] = pt.clip(index, -length, length - 1).astype(index.type.dtype)
        if all(new is old for new, old in zip(changed, inputs, strict=True)):
            return None
        return node.clone_with_new_inputs(changed, strict=False).outputs[0]

    return rebuilt(output, rule)


def indices_by_rows(
    outputs: Sequence[Variable], records: Collection[Variable]
) -> list[tuple[Variable, Variable]]:
    """The indices that depend on record rows, and how long each one's axis is."""
    nodes = io_toposort(list(graph_inputs(outputs)), list(outputs))
    return [
        (node.inputs[position], node.inputs[0].shape[axis])
        for node in nodes
        for position, axis in index_axes(node)
        if set(records) & set(ancestors([node.inputs[position]]))
    ]


def rebuilt(output: Variable, rule: Callable[[Any, list[Variable]], Variable | None]) -> Variable:
    """Rebuild a graph, with `rule(node, new inputs)` in place of a node where it is not None."""
    memo: dict[Variable, Variable] = {}
    for node in io_toposort(list(graph_inputs([output])), [output]):
        inputs = [memo.get(v, v) for v in node.inputs]
        replacement = rule(node, inputs)
        if replacement is not None:
            memo[node.outputs[0]] = replacement
        elif any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            again = node.clone_with_new_inputs(inputs, strict=False)
            memo.update(zip(node.outputs, again.outputs, strict=True))
    return memo.get(output, output)


def compile_without_checks(
    inputs: list[Variable],
    outputs: Variable | list[Variable],
    compile_kwargs: Mapping[str, Any] | None,
) -> Any:
    """Compile a function of θ and record rows without parameter checks.

    Raises
    ------
    UnsupportedModelError
        If an assertion about the data would survive.
    """
    keywords = dict(compile_kwargs or {})
    mode = get_mode(keywords.pop("mode", None))
    if COMPILES_LOOPS:
        # It derives shapes all over a graph to find out that a slice takes all there is, which is a view.
        mode = mode.excluding("local_useless_subtensor")
    without_checks = Mode(
        linker=mode.linker,
        optimizer=mode.provided_optimizer.including("local_remove_check_parameter"),
    ).register((in2out(_divide_once, name="divide_once"), _BEFORE_FUSION))
    function = pytensor.function(
        inputs, outputs, mode=without_checks, on_unused_input="ignore", **keywords
    )
    fgraph = function.maker.fgraph
    shapes = [v for v in fgraph.variables if v.owner and isinstance(v.owner.op, Shape | Shape_i)]
    for node in fgraph.apply_nodes:
        # PyTensor adds assertions on shapes of its own, and shapes are public.
        if isinstance(node.op, CheckAndRaise) and set(fgraph.inputs[1:]) & set(
            ancestors(node.inputs[1:], blockers=shapes)
        ):
            raise UnsupportedModelError(
                "The compiled likelihood still asserts something about the data, and a failing "
                "assertion would tell about them. Remove `Assert` operations from the model."
            )
    function.trust_input = True
    return function
