"""Gradients of the per-unit log-likelihoods, one vector per unit of privacy."""

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph

from pymc_dp.compat import pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.records import (
    RecordLikelihood,
    compile_without_checks,
    initial_theta,
    record_graph,
    strip_checks,
)

_TIMED_CALLS = 3
_CHUNK_BYTES = 2**20
"""Gradients of one chunk."""


class UnitGradients:
    r"""Per-unit gradients :math:`\nabla_\theta \ell_i(\theta)`, in chunks.

    Three ways lead there, and none is always fastest, so all are timed on one chunk when the object
    is built:

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
        graph, theta, rows = record_graph(model, roles)
        self._d = len(initial_theta(model))
        fitting = int(np.clip(_CHUNK_BYTES // (8 * self._d), 256, 65536))
        self._chunks, self._unit_starts = _chunks_of_whole_units(
            roles.unit_of_record, roles.n_records, min(likelihood.chunk_size, fitting)
        )
        builders = {"forward": _forward, "reverse": _reverse, "batched": _batched}
        candidates = {}
        for name in builders if method is None else [method]:
            try:
                inputs, output = builders[name](graph, theta, rows, self._axes, self._d)
                # Vectorising adds assertions on shapes, which are public and checked below.
                function = compile_without_checks(inputs, strip_checks(output), compile_kwargs)
                seconds = self._time(function, initial_theta(model))
            except Exception:  # noqa: BLE001  one way may fail where the other works
                continue
            candidates[name] = seconds, function
        if not candidates:
            raise UnsupportedModelError(
                f"The likelihood of {[rv.name for rv in model.observed_RVs]} has no gradient (a "
                "black-box operation, perhaps). Use a step that needs ratios only: DPPenalty."
            )
        self.method = min(candidates, key=lambda name: candidates[name][0])
        self._evaluate = candidates[self.method][1]

    def __call__(self, theta: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Gradients of one chunk of units after the other.

        Parameters
        ----------
        theta : ndarray, shape (d,)
            Unconstrained parameters.

        Yields
        ------
        ndarray, shape (units, d)
            May contain NaN and infinities: clip before use. Private.
        """
        for which, starts in zip(self._chunks, self._unit_starts, strict=True):
            gradients = self._rows_gradients(theta, self._likelihood.rows(which))
            if starts is not None:
                gradients = np.add.reduceat(gradients, starts, axis=0)
            yield gradients

    def _rows_gradients(
        self, theta: NDArray[np.float64], rows: list[NDArray[Any]]
    ) -> NDArray[np.float64]:
        return self._likelihood.shielded(
            lambda some: np.asarray(self._evaluate(theta, *some)), rows, (self._d,)
        )

    def _time(self, function: Any, theta: NDArray[np.float64]) -> float:
        rows = self._likelihood.rows(self._chunks[0])
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = np.asarray(function(theta, *rows))
            if first.shape != (rows[0].shape[self._axes[0]], self._d):
                raise ValueError("not one gradient per record")
            start = time.perf_counter()
            for _ in range(_TIMED_CALLS):
                function(theta, *rows)
        return time.perf_counter() - start


def _forward(
    graph: Variable, theta: Variable, rows: list[Variable], axes: list[int], d: int
) -> tuple[list[Variable], Variable]:
    direction = pt.vector("direction", shape=(d,))
    derivative = pushforward(rewrite_pregrad(graph), theta, direction)
    jacobian = vectorize_graph(derivative, {direction: pt.eye(d)})
    return [theta, *rows], jacobian.T


def _reverse(
    graph: Variable, theta: Variable, rows: list[Variable], axes: list[int], d: int
) -> tuple[list[Variable], Variable]:
    term, records, every = _one_record(graph, rows, axes)
    gradient = pytensor.grad(term, theta)
    return [theta, *rows], vectorize_graph(gradient, dict(zip(records, every, strict=True)))


def _batched(
    graph: Variable, theta: Variable, rows: list[Variable], axes: list[int], d: int
) -> tuple[list[Variable], Variable]:
    term, records, every = _one_record(graph, rows, axes)
    copies = pt.broadcast_to(theta, (every[0].shape[0], d))
    terms = vectorize_graph(term, {**dict(zip(records, every, strict=True)), theta: copies})
    return [theta, *rows], pytensor.grad(terms.sum(), copies)


def _one_record(
    graph: Variable, rows: list[Variable], axes: list[int]
) -> tuple[Variable, list[Variable], list[Variable]]:
    """Term of a single record, its slices of the data, and the rows with records as first axis."""
    records = [
        pt.tensor(dtype=r.type.dtype, shape=r.type.shape[:a] + r.type.shape[a + 1 :])
        for r, a in zip(rows, axes, strict=True)
    ]
    alone = {r: pt.expand_dims(one, a) for r, one, a in zip(rows, records, axes, strict=True)}
    (term,) = clone_replace([graph], alone, rebuild_strict=False)
    every = [pt.moveaxis(r, a, 0) for r, a in zip(rows, axes, strict=True)]
    return rewrite_pregrad(term).sum(), records, every


def _chunks_of_whole_units(
    unit_of_record: NDArray[np.int64] | None, n: int, chunk_size: int
) -> tuple[list[Any], list[Any]]:
    """Records of each chunk, and where its units start; a unit is never cut."""
    if unit_of_record is None:
        slices = [slice(start, min(start + chunk_size, n)) for start in range(0, n, chunk_size)]
        return slices, [None] * len(slices)
    order = np.argsort(unit_of_record, kind="stable")
    firsts = np.flatnonzero(np.diff(unit_of_record[order], prepend=-1))
    chunks, starts, begin = [], [], 0
    while begin < len(firsts):
        # The units that fit into a chunk; at least one, however many records it has.
        end = max(begin + 1, int(np.searchsorted(firsts, firsts[begin] + chunk_size)) - 1)
        if firsts[begin] + chunk_size >= n:
            end = len(firsts)
        stop = firsts[end] if end < len(firsts) else n
        chunks.append(order[firsts[begin] : stop])
        starts.append(firsts[begin:end] - firsts[begin])
        begin = end
    return chunks, starts
