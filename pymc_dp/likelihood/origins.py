"""Where the numbers in a model's graph come from: what is public was declared so, by name, before data were read.

Every leaf of a graph has one of three origins:

- **declared**: a ``pm.Data``, or an array without a name that is described as in messages, listed in `public=`;
- **structural**: what a model is written with. A single number, a length, a random generator; an array that a prior
  takes elementwise, which so has the prior's own shape; where PyMC puts the entries of a packed matrix;
- **private**: everything else that has values.

No value and no length of an array is looked at, so that what follows from an origin (what is refused, what a result
has, what things are called) is the same whoever is in the data.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pymc as pm
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.simulator import SimulatorRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pymc_dp.compat import PACKED, ancestors, graph_inputs, written
from pymc_dp.likelihood.naming import described

_MAX_AXES = 8
"""Random variables with more axes than this are not expected, so a longer array is not a size."""


class Origins:
    """The origin of every leaf of a model's graphs.

    Parameters
    ----------
    model : Model
    public : sequence of str
        What was declared: names of ``pm.Data``, and descriptions of arrays without a name.
    """

    def __init__(self, model: pm.Model, public: Sequence[str]):
        self._model, self._public = model, frozenset(public)
        self._lengths = set(map(id, model.dim_lengths.values()))
        self.described: dict[str, None] = {}
        """Descriptions of all arrays without a name that were met, as `public=` takes them."""

    def is_declared(self, name: str) -> bool:
        """Whether a name, or a description, is in `public=`."""
        return name in self._public

    def leaves(
        self, graphs: Sequence[Variable], blockers: Sequence[Variable] = ()
    ) -> dict[Variable, str]:
        """All leaves of some graphs that are not structural, and what messages call them.

        Parameters
        ----------
        graphs : sequence of Variable
        blockers : sequence of Variable
            Where to stop: what is behind them does not count.
        """
        found: dict[Variable, str] = {}
        structural = _structural(graphs, blockers) | set(blockers)
        for v in dict.fromkeys(graph_inputs(graphs, blockers=list(blockers))):
            if v not in structural and self._holds_data(v):
                found[v] = self._called(v, graphs, found.values())
        return found

    def hidden(
        self, graphs: Sequence[Variable], blockers: Sequence[Variable] = ()
    ) -> dict[Variable, str]:
        """The leaves of the inner graphs of the user's operations: loops, functions."""
        found: dict[Variable, str] = {}
        pending = list(_inner_outputs(graphs, blockers))
        while pending:
            inner = pending.pop()
            for v, name in self.leaves(inner).items():
                found[v] = v.name or f"{name}, inside an operation"
            pending += _inner_outputs(inner, ())
        return found

    def private(self, graphs: Sequence[Variable], blockers: Sequence[Variable] = ()) -> list[str]:
        """What messages call the private leaves that some graphs depend on; their lengths do not count."""
        blockers = [*blockers, *lengths_of_leaves(graphs, blockers)]
        met = {**self.leaves(graphs, blockers), **self.hidden(graphs, blockers)}
        return [name for name in met.values() if not self.is_declared(name)]

    def _holds_data(self, v: Variable) -> bool:
        if isinstance(v.type, RandomType):
            return False
        if isinstance(v, SharedVariable):
            # Graphs of initial values hold copies, which keep their names.
            of_dim = self._model.dim_lengths.get(v.name)
            is_copy = isinstance(of_dim, SharedVariable) and v.type == of_dim.type
            return id(v) not in self._lengths and not is_copy
        shape = getattr(v.type, "shape", ())
        return isinstance(v, Constant) and (None in shape or math.prod(shape) > 1)

    def _called(self, v: Variable, graphs: Sequence[Variable], taken: Collection[str]) -> str:
        if v.name and not isinstance(v, Constant):
            return str(v.name)
        name = str(v.name) if v.name in self._public else described(v, graphs)
        same = sum(t == name or t.startswith(f"{name}, no. ") for t in taken)
        name += f", no. {same + 1}" if same else ""
        self.described.setdefault(name)
        return name


def has_functions(rv: Variable, blockers: Sequence[Variable]) -> bool:
    """Whether a function of the user's own says how probable a variable is, or how it is drawn."""
    own = CustomDistRV, CustomSymbolicDistRV, SimulatorRV
    nodes = {v.owner for v in ancestors([rv], blockers=list(blockers)) if v.owner is not None}
    return any(isinstance(node.op, own) for node in nodes)


def lengths_of_leaves(
    graphs: Sequence[Variable], blockers: Sequence[Variable] = ()
) -> list[Variable]:
    """Lengths that are read off data: how many there are, and not what they are."""
    return [
        v
        for v in ancestors(graphs, blockers=list(blockers))
        if v.owner is not None
        and isinstance(v.owner.op, Shape | Shape_i)
        and v.owner.inputs[0].owner is None
    ]


def sizes_in(graphs: Sequence[Variable], blockers: Sequence[Variable] = ()) -> list[Constant]:
    """Whole-number constants that only say how large a random variable is."""
    found: dict[Constant, None] = {}
    for node in _nodes(graphs, blockers):
        size = _size_of(node)
        for c in ancestors([size], blockers=list(blockers)) if size is not None else ():
            if (
                isinstance(c, Constant)
                and getattr(c.type, "dtype", "") in ("int64", "int32")
                and math.prod(c.type.shape) <= _MAX_AXES
            ):
                found[c] = None
    return list(found)


def numbers_of_prior(rv: Variable) -> list[Constant]:
    """The arrays that the parameters of a variable are computed of elementwise, which have its own shape."""
    found, pending = [], [v for v in rv.owner.inputs if _distribution(rv.owner)]
    while pending:
        v = pending.pop()
        if isinstance(v, Constant) and getattr(v.type, "ndim", 0) > 0:
            found.append(v)
        elif v.owner is None:
            continue
        elif isinstance(v.owner.op, Elemwise | DimShuffle | SpecifyShape) or _distribution(v.owner):
            pending += v.owner.inputs
    return found


def _structural(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> set[Variable]:
    found: set[Variable] = set(sizes_in(graphs, blockers))
    for node in _nodes(graphs, blockers):
        if isinstance(node.op, Reshape) and isinstance(node.inputs[1], Constant):
            found.add(node.inputs[1])
        value, positions = written(node)
        # PyMC lays out the factor of a covariance matrix so; other positions may be those of people.
        if value is not None and value.owner is not None and isinstance(value.owner.op, PACKED):
            found.update(v for v in positions if isinstance(v, Constant))
    return found


def _nodes(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> list[Any]:
    met = ancestors(list(graphs), blockers=list(blockers))
    stop = set(blockers)
    return list(dict.fromkeys(v.owner for v in met if v.owner is not None and v not in stop))


def _distribution(node: Any) -> bool:
    return isinstance(node.op, RandomVariable | SymbolicRandomVariable)


def _size_of(node: Any) -> Variable | None:
    """What a random variable was told of its size."""
    # A truncated one has the inputs of the distribution that it truncates.
    if isinstance(getattr(node.op, "base_rv_op", None), RandomVariable):
        return node.inputs[1]
    if hasattr(node.op, "size_param") and getattr(node.op, "extended_signature", "") is not None:
        return node.op.size_param(node)
    return None


def _inner_outputs(
    graphs: Sequence[Variable], blockers: Sequence[Variable]
) -> Iterator[list[Variable]]:
    """Of the inner graphs, but for those that PyMC writes itself: nothing of a user's is in them."""
    for node in _nodes(graphs, blockers):
        of_pymc = isinstance(node.op, SymbolicRandomVariable)
        if hasattr(node.op, "fgraph") and (
            not of_pymc or isinstance(node.op, CustomSymbolicDistRV)
        ):
            yield list(node.op.fgraph.outputs)
