"""Data of a model by person, where each person has an effect of their own."""

from typing import Any, NamedTuple, NoReturn

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from pymc_dp.compat import ancestors, index_axes
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.cut import rows_of
from pymc_dp.likelihood.nodes import RecordData, data_nodes, values_of
from pymc_dp.likelihood.unit import count_records


class Panel(NamedTuple):
    """A model's data, by person.

    Parameters
    ----------
    slots : ndarray of int64, shape (people, most records of one)
        Which record is where; of those that a person has not, the first of theirs.
    there : ndarray, shape (people, most records of one)
        1 where there is one.
    of_records, of_people : list of RecordData
        Data with a row per record, and with a row per person.
    person : RecordData, optional
        The person of every record; None if each record is a person.
    """

    slots: NDArray[np.int64]
    there: NDArray[np.float64]
    of_records: list[RecordData]
    of_people: list[RecordData]
    person: RecordData | None

    @property
    def leaves(self) -> list[RecordData]:
        """All data but the index: what the new model reads."""
        return [*self.of_records, *self.of_people]

    def values(self, leaf: RecordData) -> NDArray[Any]:
        """What the new model reads of a data node: a row per person, of zeros for one who has no record at all."""
        if leaf not in self.of_records:
            return leaf.values
        values = leaf.values[self.slots]
        values[~self.there.any(axis=1)] = 0
        return values


def panel_of(model: pm.Model, u: Variable) -> Panel:
    """Sort a model's data by person.

    Parameters
    ----------
    model : Model
    u : Variable
        The effect: one value per person.

    Raises
    ------
    UnsupportedModelError
        If the likelihood does not read the effect by person.
    """
    graphs = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs)]
    n = count_records(model, [0] * len(model.observed_RVs))
    people = int(np.shape(model.initial_point(0)[model.rvs_to_values[u].name])[0])
    index = _index_of(model, u)
    if index is None and n != people:
        raise UnsupportedModelError(
            f"The likelihood does not read {u.name!r} by person: it takes an array with the person of every record, "
            f"`{u.name}[person]`, of numbers from 0; or one row per person in every observed variable."
        )
    of_prior = data_nodes(u.owner.op.dist_params(u.owner), blockers=model.free_RVs)
    of_records: list[RecordData] = []
    of_people: list[RecordData] = []
    for k, node in enumerate(dict.fromkeys([*data_nodes(graphs, model.free_RVs), *of_prior])):
        if node is index:
            continue
        values = values_of(node)
        named = node.name in model.named_vars and node in model.data_vars
        leaf = RecordData(node, node.name if named else f"records_{k}", values, 0, True)
        if index is not None and values.shape[0] == n:
            of_records.append(leaf)
        elif values.shape[0] == people:
            of_people.append(leaf)
    for rv in model.free_RVs:
        if rv is not u and people in np.shape(model.initial_point(0)[model.rvs_to_values[rv].name]):
            _refuse_second(rv, u)
    if index is None:
        slots, there = np.arange(n)[:, None], np.ones((n, 1))
        return Panel(slots, there, of_records, of_people, None)
    # As everywhere, an index out of range is the nearest.
    slots, there = _by_person(rows_of(values_of(index), people), people)
    return Panel(
        slots, there, of_records, of_people, RecordData(index, "index", values_of(index), 0, True)
    )


def _refuse_second(rv: Variable, u: Variable) -> NoReturn:
    raise UnsupportedModelError(
        f"{rv.name!r} has one value per person too, and only one effect can be integrated out. Let groups of people "
        f"share {rv.name!r}, or leave it out."
    )


def _by_person(
    who: NDArray[np.int64], people: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Numbers of each person's records, in order, and which of them are there."""
    counts = np.bincount(who, minlength=people)
    order = np.argsort(who, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.arange(counts.max())
    there = place < counts[:, None]
    slots = order[np.minimum(starts[:, None] + np.where(there, place, 0), len(who) - 1)]
    return slots, there.astype(float)


def _index_of(model: pm.Model, u: Variable) -> Variable | None:
    """The data node by which records read the effect, if there is one."""
    found: dict[Variable, None] = {}
    blockers = [rv for rv in model.free_RVs if rv is not u]
    for node in {v.owner for v in ancestors(model.observed_RVs, blockers=blockers) if v.owner}:
        for place, axis in index_axes(node):
            between = _between(node.inputs[0], u)
            if between is None:
                continue
            arrays = data_nodes([node.inputs[place]])
            if len(arrays) != 1 or axis != 0 or not between:
                raise UnsupportedModelError(
                    f"{u.name!r} reaches the likelihood in a way that does not split by persons. Write "
                    f"`{u.name}[person]`, with an array of the person of every record, and compute the rest from that."
                )
            found[arrays[0]] = None
    if len({id(values_of(a)) for a in found}) > 1:
        raise UnsupportedModelError(
            f"{u.name!r} is read by two arrays. Read it by one, a `pm.Data`, so that a record is one person's."
        )
    return next(iter(found), None)


def _between(v: Variable, u: Variable) -> bool | None:
    """Whether a variable is the effect after elementwise operations alone; None if it is not of the effect."""
    if v is u:
        return True
    if v.owner is None or u not in ancestors([v]):
        return None
    elementwise = isinstance(v.owner.op, Elemwise | DimShuffle | ViewOp)
    return elementwise and all(_between(x, u) is not False for x in v.owner.inputs)
