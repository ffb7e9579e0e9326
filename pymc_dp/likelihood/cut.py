r"""What the likelihood sees of θ: a few common numbers, and for every record its own row of some tables.

In a hierarchical model :math:`\ell_i` depends on θ only through

.. math:: \psi(\theta) = (\varphi, \alpha), \qquad
    \ell_i(\theta) = \ell_i(\varphi, \alpha_{k(i)}),

α a table of a row per group of which record i uses one, or two, as a game does of two teams. Which rows is private; that it is
so many can be read from the graph, and is public. Hyperparameters are not in ψ: they are in no record's term.
"""

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.scalar.basic import Add
from pytensor.tensor.shape import Shape as ShapeOp
from pytensor.tensor.shape import Shape_i

from pymc_dp.compat import ancestors, graph_inputs, io_toposort
from pymc_dp.likelihood.compilation import rebuilt
from pymc_dp.likelihood.gathers import equal, gathers, reached, shared
from pymc_dp.likelihood.record_graph import RecordGraph
from pymc_dp.likelihood.shape import Shape


class Table(NamedTuple):
    """A table of which a record uses one row, or two.

    Parameters
    ----------
    indices : list of Variable, shape (records,)
        Of every use, the row of every record, as a function of the records.
    sources : list of Variable
        Of θ: what its columns are made of, each of shape (groups,) or (groups, columns).
    gathered : list of list of Variable
        Of every use, what the log-likelihood has in place of the sources: the rows of the records.
    groups, columns : int
    """

    indices: list[Variable]
    sources: list[Variable]
    gathered: list[list[Variable]]
    groups: int
    columns: int


class Cut(NamedTuple):
    """The likelihood's view of θ.

    Parameters
    ----------
    graph : RecordGraph
        That was cut.
    log_likelihood : Variable, shape (records,)
        Of `common`, of the tables' gathered rows, and of the records.
    common : list of Variable
        Inputs in place of `common_sources`.
    common_sources : list of Variable
        What all records use, as functions of θ.
    tables : list of Table
    p : int
        Length of φ.
    """

    graph: RecordGraph
    log_likelihood: Variable
    common: list[Variable]
    common_sources: list[Variable]
    tables: list[Table]
    p: int

    @property
    def psi(self) -> list[Variable]:
        """φ of shape (p,), and the tables, each of shape (groups, columns), as functions of θ."""
        common = [v.ravel() for v in self.common_sources]
        return [
            pt.concatenate(common) if common else pt.zeros(0),
            *(pt.concatenate(list(map(_as_table, t.sources)), axis=1) for t in self.tables),
        ]

    def psi_function(self) -> Callable[[NDArray[np.float64]], list[NDArray[np.float64]]]:
        """From θ to φ and the tables, compiled."""
        return pytensor.function([self.graph.theta], self.psi, mode="FAST_COMPILE")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Groups and columns of every table."""
        return [(table.groups, table.columns) for table in self.tables]

    @property
    def uses(self) -> list[int]:
        """The table of every row that a record uses."""
        return [k for k, table in enumerate(self.tables) for _ in table.indices]

    @property
    def shape(self) -> Shape:
        """That of ψ."""
        return Shape(self.p, tuple(self.shapes), tuple(self.uses))


def find_cut(graph: RecordGraph) -> Cut | None:
    """Cut the log-likelihood's graph where it chooses among parameters.

    Returns
    -------
    Cut or None
        None if a table is used in another way too.
    """
    rows = set(graph.rows)
    log_likelihood = _terms_apart(graph.log_likelihood, graph.theta, rows)
    found, early = gathers(log_likelihood, graph.theta, rows)
    used = {
        v
        for node in io_toposort(list(graph_inputs([log_likelihood])), [log_likelihood])
        if node.outputs[0] not in found
        for v in node.inputs
    }
    found = {early[v]: found[early[v]] for v in found if v in used}
    tables: list[Table] = []
    stand_ins: dict[Variable, Variable] = {}
    for gathered, (source, index) in found.items():
        groups, columns = int(source.type.shape[0]), math.prod(source.type.shape[1:])
        for k, t in enumerate(tables):
            if t.groups == groups and equal(t.indices[0], index):
                (rows_used,) = t.gathered
                known = [v for v, s in zip(rows_used, t.sources, strict=True) if equal(s, source)]
                stand_ins[gathered] = known[0] if known else gathered.type()
                if not known:
                    t.sources.append(source)
                    rows_used.append(stand_ins[gathered])
                    tables[k] = t._replace(columns=t.columns + columns)
                break
        else:
            stand_ins[gathered] = gathered.type()
            tables.append(Table([index], [source], [[stand_ins[gathered]]], groups, columns))
    tables = _paired(tables)
    rest, *values = clone_replace([log_likelihood, *graph.values], stand_ins, rebuild_strict=False)
    sources = _common(rest, graph.theta, values, rows | set(stand_ins.values()))
    inputs = {v: v.type() for v in sources}
    (rest,) = clone_replace([rest], inputs, rebuild_strict=False)
    if graph.theta in ancestors([rest]):
        return None
    sizes = [_size(v) for v in sources]
    return Cut(graph, rest, list(inputs.values()), sources, tables, sum(sizes))


def merged(cut: Cut, pairs: Collection[tuple[int, int, int]]) -> Cut:
    """The same likelihood, of tables to which entries of φ have been added that it reads in their sum only.

    Parameters
    ----------
    cut : Cut
    pairs : collection of (int, int, int)
        An entry of φ, and the table and the column that it is added to.
    """
    kept = [j for j in range(cut.p) if j not in {j for j, *_ in pairs}]
    phi, *whole = cut.psi
    common, stand_ins, tables, start = pt.vector("phi", shape=(len(kept),)), {}, [], 0
    full = pt.zeros(cut.p)[kept].set(common) if kept else pt.zeros(cut.p)
    for v in cut.common:
        stand_ins[v] = full[start : start + _size(v)].reshape(v.type.shape)
        start += _size(v)
    for k, (table, source) in enumerate(zip(cut.tables, whole, strict=True)):
        for j, _, column in (pair for pair in pairs if pair[1] == k):
            source = source[:, column].set(source[:, column] + phi[j])
        used = [pt.matrix(f"rows_{k}", shape=(None, table.columns)) for _ in table.indices]
        for rows, parts in zip(used, table.gathered, strict=True):
            start = 0
            for v in parts:
                width = math.prod(v.type.shape[1:])
                stand_ins[v] = rows[:, start : start + width].reshape((-1, *v.type.shape[1:]))
                start += width
        tables.append(table._replace(sources=[source], gathered=[[rows] for rows in used]))
    (rest,) = clone_replace([cut.log_likelihood], stand_ins, rebuild_strict=False)
    sources = [phi[kept]] if kept else []
    return Cut(cut.graph, rest, [common] if kept else [], sources, tables, len(kept))


def _paired(tables: list[Table]) -> list[Table]:
    """With one table in place of two of the same sources: apart, each would be seen with noise of its own."""
    paired: list[Table] = []
    for table in tables:
        for k, first in enumerate(paired):
            found = [
                [
                    v
                    for v, s in zip(table.gathered[0], table.sources, strict=True)
                    if equal(s, source)
                ]
                for source in first.sources
            ]
            alike = len(table.sources) == len(found) and all(map(len, found))
            if alike and table.groups == first.groups > 1 and len(first.indices) == 1:
                paired[k] = first._replace(
                    indices=first.indices + table.indices,
                    gathered=[*first.gathered, [same[0] for same in found]],
                )
                break
        else:
            paired.append(table)
    return paired


def rows_of(index: NDArray[np.float64], groups: int) -> NDArray[np.int64]:
    """Row numbers from whole numbers that may be negative, or out of range: then the nearest."""
    index = np.clip(index, -groups, groups - 1).astype(np.int64)
    return np.where(index < 0, index + groups, index)


def _as_table(source: Variable) -> Variable:
    return source[:, None] if source.type.ndim == 1 else source.reshape((source.type.shape[0], -1))


def _size(v: Variable) -> int:
    return math.prod(v.type.shape)


def _terms_apart(output: Variable, theta: Variable, rows: set[Variable]) -> Variable:
    """In sums, add what all records share to a table that they read from: it is a number less in φ."""
    (read, _), rowwise = gathers(output, theta, rows), reached(output, rows)

    def rule(node: Any, inputs: list[Variable]) -> Variable | None:
        if not isinstance(getattr(node.op, "scalar_op", None), Add):
            return None
        added = [new for v, new in zip(node.inputs, inputs, strict=True) if shared(v, rowwise)]
        tables = [new for v, new in zip(node.inputs, inputs, strict=True) if v in read]
        rest = [v for v in inputs if v not in added and v not in tables[:1]]
        if not added or not tables or not rest:
            return None
        return pt.add(pt.add(*added, tables[0]), *rest)

    return rebuilt(output, rule)


def _common(
    output: Variable, theta: Variable, free: list[Variable], varying: set[Variable]
) -> list[Variable]:
    """Where to cut off what all records use: at the free variables, or later where that is narrower.

    Before transforms, the likelihood is closer to normal; behind ``tau * z``, there is no τ.
    """
    nodes = list(io_toposort(list(graph_inputs([output])), [output]))
    rowwise = reached(output, varying)
    of_theta = reached(output, {theta})
    used = [
        v
        for node in nodes
        if rowwise.intersection(node.outputs) and not isinstance(node.op, ShapeOp | Shape_i)
        for v in node.inputs
    ]
    edge = list(dict.fromkeys(v for v in used if v in of_theta and v not in rowwise))
    behind = {v: [x for x in free if x in set(ancestors([v]))] for v in edge}
    first_of = {v: xs[0] if len(xs) == 1 and _no_longer(xs, [v]) else v for v, xs in behind.items()}
    edge = list(dict.fromkeys(first_of[v] for v in edge))
    behind |= {x: [x] for x in edge if x not in behind}
    parts: list[Variable] = []
    while edge:  # those that share free variables are cut together
        together, values = [edge.pop()], set()
        values.update(behind[together[0]])
        while joined := [v for v in edge if values.intersection(behind[v])]:
            together += joined
            edge = [v for v in edge if v not in joined]
            values.update(*(behind[v] for v in joined))
        first = [x for x in free if x in values]
        parts += first if _no_longer(first, together) else together
    return parts


def _no_longer(first: list[Variable], then: list[Variable]) -> bool:
    numbers = all(None not in v.type.shape and v.dtype == "float64" for v in then)
    return not numbers or sum(map(_size, first)) <= sum(map(_size, then))
