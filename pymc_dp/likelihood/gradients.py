"""Gradients of the per-unit log-likelihoods, one vector per unit of privacy."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from pymc_dp.compat import (
    COMPILES_LOOPS,
    AdvancedSubtensor,
    AdvancedSubtensor1,
    ancestors,
    graph_inputs,
    index_axes,
    io_toposort,
    pushforward,
)
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.record_graph import RecordGraph
from pymc_dp.likelihood.records import RecordLikelihood

_FORWARD_UP_TO, _CHOOSING_UP_TO = 8, 16
"""Parameters, and where records choose among them; measured on PyMC 6 with models of 2 to 128 (``benchmarks/gradient_ways.py``). Of a test of 24 items
(two parameters each), persons integrated out, forward takes 16 times as long as reverse."""
_CHUNK_BYTES = 2**20
"""Gradients of one chunk."""


class UnitGradients:
    r"""Per-unit gradients :math:`\nabla_\theta \ell_i(\theta)`, in chunks.

    Two ways lead there, which differ in last bits:

    - *forward*: all d directional derivatives of the records' terms at once (Jacobian-vector
      products, vectorised over the unit vectors);
    - *reverse*: the gradient of one record's term, vectorised over the records; separable by
      construction.

    Which one is taken depends on the model's graph alone (see :func:`ways_to_gradients`), so that runs
    can be repeated; the other one stands in where it cannot be derived.

    Parameters
    ----------
    graph : RecordGraph
    likelihood : RecordLikelihood
        Of the same graph; supplies the data and the chunks.
    compile_kwargs : mapping, optional
        As for the likelihood.
    method : {"forward", "reverse"}, optional
        Default: the one that is likely to be faster.

    Raises
    ------
    UnsupportedModelError
        If the likelihood has no gradient.
    """

    def __init__(
        self,
        graph: RecordGraph,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
        method: str | None = None,
    ):
        self._likelihood = likelihood
        roles = likelihood.roles
        self._axes = [leaf.axis for leaf in roles.record_data]
        self.width = self._d = len(graph.start)
        fitting = int(np.clip(_CHUNK_BYTES // (8 * self._d), 256, 65536))
        self.chunks = UnitChunks(
            roles.unit_of_record, roles.n_records, min(likelihood.chunk_size, fitting)
        )
        ways = {"forward": (_forward, _transposed), "reverse": (_reverse, side_by_side)}
        self.method = ""
        names = list(ways_to_gradients(graph) if method is None else [method])
        for name in names:
            build, arrange = ways[name]
            own = graph.to_differentiate()
            try:
                blocks = build(own, self._axes, self._d)
                if names == ["reverse", "forward"] and not COMPILES_LOOPS and _keep_looping(blocks):
                    names.append(name)  # only if the other way cannot be derived
                    continue
                # Vectorising adds assertions on shapes, which are public and checked below.
                function = compile_without_checks(
                    [own.theta, *own.rows], [strip_checks(b) for b in blocks], compile_kwargs
                )
                self._check_shape(arrange, function, graph.start)
            except Exception:  # noqa: BLE001  one way may fail where the other works
                continue
            self.method, self._function, self._arrange = name, function, arrange
            if COMPILES_LOOPS or name == "forward":
                break
            if not batched_operations(function.maker.fgraph.apply_nodes):
                break
        if not self.method:
            raise UnsupportedModelError(
                f"The likelihood of {graph.observed} has no gradient (a black-box operation, "
                "perhaps). Use a step that needs ratios only: DPPenalty."
            )

    def of(self, likelihood: RecordLikelihood) -> "UnitGradients":
        """The same compiled functions for the records of another likelihood of the same graph."""
        other = copy.copy(self)
        other._likelihood = likelihood
        other.chunks = self.chunks.of_records(likelihood.roles)
        return other

    def __call__(
        self, theta: NDArray[np.float64], units: NDArray[np.int64] | None = None
    ) -> Iterator[NDArray[np.float64]]:
        """Gradients of one chunk of units after the other.

        Parameters
        ----------
        theta : ndarray, shape (d,)
            Unconstrained parameters.
        units : ndarray of int, optional
            Only these; nothing else is evaluated. Default: all.

        Yields
        ------
        ndarray, shape (units, d)
            May contain NaN and infinities: clip before use. Private.
        """
        for chunk in self.chunks.all() if units is None else self.chunks.of(units):
            rows = self._likelihood.rows(chunk.records)
            yield chunk.per_unit(self.of_rows(theta, rows))

    def of_rows(
        self, theta: NDArray[np.float64], rows: Sequence[NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Gradient of each record in `rows`; NaN where :meth:`evaluate` fails."""
        return self._likelihood.shielded(lambda some: self.evaluate(theta, some), rows, (self._d,))

    def evaluate(
        self, theta: NDArray[np.float64], rows: Sequence[NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Gradient of each record in `rows`; whatever a record provokes is raised."""
        return self._arrange(self._function(theta, *rows))

    def used_rows(self, rows: Sequence[NDArray[Any]]) -> Sequence[NDArray[np.int64]]:
        """Of tables, which rows each record uses: none, as gradients are in all parameters."""
        return ()

    def _check_shape(
        self, arrange: Callable[[Any], Any], function: Any, theta: NDArray[np.float64]
    ) -> None:
        rows = [np.zeros_like(row) for row in self._likelihood.rows(slice(0, 2))]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = arrange(function(theta, *rows))
        if found.shape != (rows[0].shape[self._axes[0]], self._d):
            raise ValueError("not one gradient per record")


def ways_to_gradients(graph: RecordGraph) -> tuple[str, str]:
    """Ways of :class:`UnitGradients`, the one that is likely to be faster first.

    On PyMC 5 the first is reverse, which :class:`UnitGradients` gives up if it loops in Python: before it is
    compiled, where that can be told. On PyMC 6 it is
    forward while parameters are few, up to more where records choose among them, as the reverse of an index writes record by record;
    and reverse where equations are solved.
    ``benchmarks/gradient_ways.py`` measures what the rule costs.
    """
    nodes = io_toposort(list(graph_inputs([graph.log_likelihood])), [graph.log_likelihood])
    d = len(graph.start)
    few = d <= _FORWARD_UP_TO and not batched_operations(nodes)
    chooses = d <= _CHOOSING_UP_TO and any(_chooses_parameters(node, graph) for node in nodes)
    if COMPILES_LOOPS and (few or chooses):
        return "forward", "reverse"
    return "reverse", "forward"


def batched_operations(nodes: Iterable[Any]) -> bool:
    """Whether anything but elementwise operations and products is done for each record: equations, an index."""
    return any(
        isinstance(node.op, Blockwise) and not isinstance(node.op.core_op, Dot) for node in nodes
    )


def _keep_looping(outputs: list[Variable]) -> bool:
    """Whether something is done for each record that PyTensor has no other form for."""
    loops = (AdvancedSubtensor, AdvancedSubtensor1, Join, Split)
    return any(
        isinstance(node.op, Blockwise) and isinstance(node.op.core_op, loops)
        for node in io_toposort(list(graph_inputs(outputs)), outputs)
    )


def _chooses_parameters(node: Any, graph: RecordGraph) -> bool:
    """Whether an index that depends on records reads from what depends on θ alone."""
    rows = set(graph.rows)
    return any(
        rows & set(ancestors([node.inputs[position]]))
        and graph.theta in (read := set(ancestors([node.inputs[0]])))
        and not rows & read
        for position, _ in index_axes(node)
    )


def _transposed(blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(blocks[0]).T


def side_by_side(blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Gradients in each value, shape (records, ...), as one array of shape (records, d).

    It is laid out one column after the other, which is how
    :func:`~pymc_dp.privacy.clipping.add_clipped` reads it.
    """
    n = len(blocks[0])
    columns = [np.reshape(block, (n, -1)).T for block in blocks]
    return np.concatenate(columns, out=np.empty((sum(map(len, columns)), n))).T


def _forward(graph: RecordGraph, axes: list[int], d: int) -> list[Variable]:
    direction = pt.vector("direction", shape=(d,))
    derivative = pushforward(rewrite_pregrad(graph.log_likelihood), graph.theta, direction)
    return [vectorize_graph(derivative, {direction: pt.eye(d)})]


def _reverse(graph: RecordGraph, axes: list[int], d: int) -> list[Variable]:
    one = one_record(graph, axes)
    gradients = gradients_of(one.term, one.values)
    batched = vectorize_graph(gradients, one.all_records | one.all_values)
    return for_every_record(batched, one)


def record_inputs(
    rows: list[Variable], axes: list[int]
) -> tuple[dict[Variable, Variable], dict[Variable, Variable]]:
    """Single records in place of rows, and rows with the records first in place of single records."""
    records = [
        pt.tensor(dtype=r.type.dtype, shape=r.type.shape[:a] + r.type.shape[a + 1 :])
        for r, a in zip(rows, axes, strict=True)
    ]
    alone = {r: pt.expand_dims(one, a) for r, one, a in zip(rows, records, axes, strict=True)}
    every = {one: pt.moveaxis(r, a, 0) for r, one, a in zip(rows, records, axes, strict=True)}
    return alone, every


class OneRecord(NamedTuple):
    """The term of a single record, and what stands in it for the record and for the values of θ."""

    term: Variable
    values: list[Variable]
    all_records: dict[Variable, Variable]
    all_values: dict[Variable, Variable]
    n_records: Variable


def one_record(graph: RecordGraph, axes: list[int]) -> OneRecord:
    """Cut a single record's term out of the graph of all."""
    alone, every = record_inputs(graph.rows, axes)
    for values in (graph.values, [graph.theta]):
        stand_ins = [value.type() for value in values]
        replacements = alone | dict(zip(values, stand_ins, strict=True))
        (term,) = clone_replace([graph.log_likelihood], replacements, rebuild_strict=False)
        if graph.theta not in ancestors([term]):  # with named dimensions θ has no plain parts
            break
    return OneRecord(
        rewrite_pregrad(term).sum(),
        stand_ins,
        every,
        dict(zip(stand_ins, values, strict=True)),
        graph.rows[0].shape[axes[0]],
    )


def gradients_of(output: Variable, values: list[Variable]) -> list[Variable]:
    """Gradients of a scalar; zero in the values that it does not depend on."""
    known = set(ancestors([output]))
    return [
        pytensor.grad(output, v, disconnected_inputs="ignore") if v in known else pt.zeros_like(v)
        for v in values
    ]


def for_every_record(gradients: list[Variable], one: OneRecord) -> list[Variable]:
    """One row per record, also where all records have the same."""
    return [
        pt.broadcast_to(g, (one.n_records, *g.shape)) if g.ndim == value.ndim else g
        for g, value in zip(gradients, one.values, strict=True)
    ]
