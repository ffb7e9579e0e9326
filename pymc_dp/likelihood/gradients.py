"""Gradients of the per-unit log-likelihoods, one vector per unit of privacy."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph

from pymc_dp.compat import ancestors, pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.records import (
    RecordGraph,
    RecordLikelihood,
    initial_theta,
    record_graph,
)

_TIMED_CALLS = 12
_CHUNK_BYTES = 2**20
"""Gradients of one chunk."""


class UnitGradients:
    r"""Per-unit gradients :math:`\nabla_\theta \ell_i(\theta)`, in chunks.

    Three ways lead there, and none is always fastest, so all are timed when the object is built, on
    a chunk of zeros: the ways differ in last bits, so the records must not have a say in the choice:

    - *forward*: all d directional derivatives of the records' terms at once (Jacobian-vector
      products, vectorised over the unit vectors);
    - *reverse*: the gradient of one record's term, vectorised over the records; separable by
      construction;
    - *batched*: every record gets a copy of θ of its own, and one reverse pass gives the gradients
      in all of them.

    Parameters
    ----------
    model : Model
    likelihood : RecordLikelihood
        The same model's; supplies the data and the chunks.
    compile_kwargs : mapping, optional
        As for the likelihood.
    method : {"forward", "reverse", "batched"}, optional
        Default: the fastest one.

    Raises
    ------
    UnsupportedModelError
        If the likelihood has no gradient.
    """

    def __init__(
        self,
        model: pm.Model,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
        method: str | None = None,
    ):
        self._likelihood = likelihood
        roles = likelihood.roles
        self._axes = [leaf.axis for leaf in roles.record_data]
        self._d = len(initial_theta(model))
        fitting = int(np.clip(_CHUNK_BYTES // (8 * self._d), 256, 65536))
        self._chunks = UnitChunks(
            roles.unit_of_record, roles.n_records, min(likelihood.chunk_size, fitting)
        )
        ways = {
            "forward": (_forward, _transposed),
            "reverse": (_reverse, side_by_side),
            "batched": (_batched, side_by_side),
        }
        candidates = {}
        for name in ways if method is None else [method]:
            build, arrange = ways[name]
            # A new one each time: preparing a graph for differentiation changes it.
            graph = record_graph(model, roles)
            try:
                blocks = build(graph, self._axes, self._d)
                # Vectorising adds assertions on shapes, which are public and checked below.
                function = compile_without_checks(
                    [graph.theta, *graph.rows], [strip_checks(b) for b in blocks], compile_kwargs
                )
                seconds = self._time(function, arrange, initial_theta(model))
            except Exception:  # noqa: BLE001  one way may fail where the other works
                continue
            candidates[name] = seconds, function, arrange
        if not candidates:
            raise UnsupportedModelError(
                f"The likelihood of {[rv.name for rv in model.observed_RVs]} has no gradient (a "
                "black-box operation, perhaps). Use a step that needs ratios only: DPPenalty."
            )
        self.method = min(candidates, key=lambda name: candidates[name][0])
        _, self._function, self._arrange = candidates[self.method]

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
        for chunk in self._chunks.all() if units is None else self._chunks.of(units):
            rows = self._likelihood.rows(chunk.records)
            yield chunk.per_unit(self._rows_gradients(theta, rows))

    def _rows_gradients(
        self, theta: NDArray[np.float64], rows: list[NDArray[Any]]
    ) -> NDArray[np.float64]:
        return self._likelihood.shielded(
            lambda some: self._arrange(self._function(theta, *some)), rows, (self._d,)
        )

    def _time(
        self, function: Any, arrange: Callable[[Any], Any], theta: NDArray[np.float64]
    ) -> float:
        chunk = next(self._chunks.all())
        rows = [np.zeros_like(row) for row in self._likelihood.rows(chunk.records)]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = arrange(function(theta, *rows))
            if first.shape != (rows[0].shape[self._axes[0]], self._d):
                raise ValueError("not one gradient per record")
            seconds = []
            for _ in range(_TIMED_CALLS):
                start = time.perf_counter()
                arrange(function(theta, *rows))
                seconds.append(time.perf_counter() - start)
        return min(seconds)  # what else the machine was doing only adds


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


def _batched(graph: RecordGraph, axes: list[int], d: int) -> list[Variable]:
    one = one_record(graph, axes)
    terms, copies = one.with_values_of_its_own()
    gradients = gradients_of(terms.sum(), list(copies))
    return for_every_record(clone_replace(gradients, copies, rebuild_strict=False), one)


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

    def with_values_of_its_own(self) -> tuple[Variable, dict[Variable, Variable]]:
        """Every record's term as a function of a copy of θ's values, and what goes into the copies."""
        own = {
            alone: pt.tensor(dtype=value.type.dtype, shape=(None, *value.type.shape))
            for alone, value in self.all_values.items()
        }
        terms = vectorize_graph(self.term, self.all_records | own)
        copies = {
            own[alone]: pt.broadcast_to(value, (self.n_records, *value.shape))
            for alone, value in self.all_values.items()
        }
        return terms, copies


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
