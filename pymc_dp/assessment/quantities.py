"""What is averaged: numbers of every record as functions of parameters, with data set to what they are not."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.compilation import compiling
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.nodes import WRAP_DATA, data_nodes, quoting_nothing
from pymc_dp.likelihood.record_graph import at_theta, like, rebuild
from pymc_dp.likelihood.records import RecordFunction
from pymc_dp.likelihood.refusals import refuse_captured
from pymc_dp.likelihood.roles import with_data_of
from pymc_dp.likelihood.rows import with_rows
from pymc_dp.likelihood.separability import check_separability
from pymc_dp.linalg import Vector

_AT_ONCE = 2**22
"""Numbers of some units at all draws that are held together: 32 MiB."""


@dataclass(frozen=True)
class Average:
    r"""A number of every record, and whom to average it over.

    Parameters
    ----------
    of : str or Variable
        A variable of the model with one number per record, by name, such as the probability of an outcome; or an
        expression of the model's variables. An observed variable stands for what was observed.
    do : mapping, optional
        Names of data or observed variables, and what to set them to for everybody, as in ``pm.do``: numbers, or
        expressions of the model's variables.
    minus : mapping, optional
        The same of another intervention, whose number is taken off record by record; ``{}`` is none.
    among : str or Variable, optional
        Whom: 1 for records that count, 0 for the others, or a weight between. Default: everybody.
    outcome : str, optional
        The observed variable that `of` is the mean of, for a *doubly robust* average: to `of` under an intervention a on
        one observed variable t is added :math:`1[t = a]\,(y - f_a) / P(t = a)`, the probability being the model's.
    """

    of: Any
    do: Mapping[str, Any] | None = None
    minus: Mapping[str, Any] | None = None
    among: Any = None
    outcome: str | None = None


class Places(NamedTuple):
    """Where the numbers of an average are among all.

    Parameters
    ----------
    f : int
        The number itself.
    wf, w : int, optional
        Times the weight, and the weight; None if everybody counts.
    """

    f: int
    wf: int | None
    w: int | None


class Quantities:
    """Numbers of every unit at released draws: means over its records.

    Parameters
    ----------
    compiled : CompiledModel
    averages : mapping of Average

    Attributes
    ----------
    places : list of Places
        Of each average.
    moves : ndarray of bool, shape (numbers,)
        Which numbers depend on parameters.

    Raises
    ------
    UnsupportedModelError
        If a number of a record depends on other records, or on variables that are neither parameters nor observed.
    PrivacyConfigurationError
        If an average asks for what the model does not have.
    """

    def __init__(self, compiled: CompiledModel, averages: Mapping[str, Average]):
        self._compiled, model = compiled, compiled.model
        found: dict[Hashable, Variable] = {}

        def place(key: Hashable, graph: Variable) -> int:
            found.setdefault(key, graph)
            return list(found).index(key)

        self.places = []
        with compiling():
            for name, one in averages.items():
                of = _key(one.of), _key(one.do), _key(one.minus), one.outcome
                f, wf, w = _graphs(model, name, one)
                weighted = (
                    (None, None)
                    if one.among is None
                    else (place((of, _key(one.among)), wf), place(_key(one.among), w))
                )
                self.places.append(Places(place(of, f), *weighted))
            values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
            graphs, free = with_rows(list(found.values()), values), set(model.free_RVs)
            self.moves = np.array([bool(free & set(ancestors([g]))) for g in graphs])
            self._function = _compiled(compiled, graphs)
        check_separability(compiled.parameters, self._function)

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self._function.n_units

    @property
    def numbers(self) -> int:
        """How many there are of every unit."""
        return len(self.moves)

    def at(self, thetas: Vector) -> Iterator[Vector]:
        """Chunks of the units' numbers at some θ, shape (θs, units, numbers). Private, and may not be finite."""
        f = self._function
        chunks = f.chunks.cut_to(max(_AT_ONCE // (len(thetas) * self.numbers), 1))
        for chunk in chunks.all():
            rows = f.rows(chunk.records)
            sums = np.stack([chunk.per_unit(f.evaluate_rows(theta, rows)) for theta in thetas])
            yield sums / chunk.per_unit(np.ones(rows[0].shape[f.axes[0]]))[:, None]


def _key(asked: Any) -> Hashable:
    """The same for what was asked for twice."""
    if isinstance(asked, Mapping):
        return tuple((name, _key(value)) for name, value in asked.items())
    return asked if isinstance(asked, str | int | float | None) else id(asked)


def _graphs(model: pm.Model, name: str, one: Average) -> tuple[Variable, Variable, Variable]:
    """F, w f and w of an average."""
    arms = [(1.0, one.do or {})] + ([(-1.0, one.minus)] if one.minus is not None else [])
    of, w = _number(model, one.of), pt.constant(1.0)
    if one.among is not None:
        w = _number(model, one.among)
        w = pt.switch(pt.isnan(w), 0.0, pt.clip(w, 0.0, 1.0))
    f = _sum(sign * _set(model, of, settings, name) for sign, settings in arms)
    if one.outcome is None:
        # Where nobody counts, f need not be defined.
        return f, pt.switch(pt.gt(w, 0), w * f, 0.0), w
    y, corrections, weights = _number(model, one.outcome), [], []
    for sign, settings in arms:
        t, value = _treatment(model, settings, name)
        with quoting_nothing(f"The probability of {t.name!r} could not be derived ({{error}})."):
            p = pt.exp(_tensor(pm.logp(t, like(t, pt.zeros_like(_tensor(t)) + value))))
        residual = (y - _set(model, of, settings, name)) / p
        corrections.append(sign * pt.switch(pt.eq(_tensor(t), value), residual, 0.0))
        weights.append(p * _set(model, w, settings))
    correction = _sum(corrections)
    of_treatment = {t, *_observed(model, t)} & set(ancestors([w]))
    expected = _sum(weights) if of_treatment else w
    return f + correction, w * f + expected * correction, w


def _sum(terms: Any) -> Variable:
    first, *others = terms
    return sum(others, start=first)


def _tensor(graph: Any) -> Variable:
    return pt.as_tensor(graph, allow_xtensor_conversion=True)


def _number(model: pm.Model, asked: Any) -> Variable:
    if isinstance(asked, str):
        asked = _named(model, asked)
    if not isinstance(asked, Variable) or _tensor(asked).ndim != 1:
        raise PrivacyConfigurationError(
            f"An average is of one number per record: a variable of the model with the records' dimension alone, such as "
            f"`model['p']`, or a column of it. Found {asked}."
        )
    return _tensor(asked).astype("float64")


def _named(model: pm.Model, name: str) -> Variable:
    if name not in model.named_vars:
        raise PrivacyConfigurationError(
            f"The model has no variable {name!r}. It has {', '.join(model.named_vars)}."
        )
    return model[name]


def _observed(model: pm.Model, rv: Variable) -> list[Variable]:
    """The data that a variable was observed in."""
    return data_nodes([model.rvs_to_values[rv]])


def _set(model: pm.Model, graph: Variable, settings: Mapping[str, Any], name: str = "") -> Variable:
    """A graph with variables set to values: the random variable and its data alike, whichever of them is named."""
    for what, value in settings.items():
        node = _named(model, what)
        pairs = [(rv, data) for rv in model.observed_RVs for data in _observed(model, rv)]
        alike = {node} | {x for pair in pairs if node in pair for x in pair}
        if name and not alike & set(ancestors([graph])):
            raise PrivacyConfigurationError(f"{name!r} sets {what!r}, which it does not depend on.")
        swaps = {
            x: like(x, (pt.zeros_like(_tensor(x)) + value).astype(x.type.dtype)) for x in alike
        }
        (graph,) = with_rows([graph], swaps)
    return graph


def _treatment(model: pm.Model, settings: Mapping[str, Any], name: str) -> tuple[Variable, Any]:
    """The observed variable that an intervention sets, and the value."""
    if len(settings) == 1:
        ((what, value),) = settings.items()
        node = _named(model, what)
        for rv in model.observed_RVs:
            if node in (rv, *_observed(model, rv)) and rv.type.dtype.startswith(("int", "bool")):
                return rv, value
    raise PrivacyConfigurationError(
        f"{name!r} has an `outcome`, so its `do` and `minus` set one observed variable with a discrete law in the model: "
        "`pm.Bernoulli('treated', p, observed=...)`, with p the probability that was drawn by, if it was."
    )


def _compiled(compiled: CompiledModel, graphs: list[Variable]) -> RecordFunction:
    """All numbers of a record, as one function of θ and of rows."""
    model, settings, what = compiled.model, compiled.settings, "The `of`"
    roles = with_data_of(compiled.roles, model, settings["public"], graphs, what)
    with quoting_nothing(f"{what} could not be split into records ({{error}}). {WRAP_DATA}"):
        rebuilt, free, rows = rebuild(graphs, model, roles)
        rebuilt, _, theta = at_theta(rebuilt, free, rows, compiled.parameters)
        output = pt.stack(rebuilt, axis=1)
    if any(isinstance(v.type, RandomType) for v in ancestors([output])):
        raise UnsupportedModelError(
            f"{what} depends on random variables that are neither parameters nor observed under `do`, such as an outcome "
            "that would have been. Average its mean: give it a name as `pm.Deterministic`."
        )
    refuse_captured(model, [output], roles.public_data)
    return RecordFunction(
        output,
        theta,
        rows,
        compiled.parameters.start,
        roles,
        what,
        compile_kwargs=settings["compile_kwargs"],
    )
