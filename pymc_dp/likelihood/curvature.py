"""Second derivatives of the per-unit log-likelihoods."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_dp.compat import COMPILES_LOOPS, graph_inputs, io_toposort, pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.gradients import batched_operations
from pymc_dp.likelihood.record_graph import RecordGraph
from pymc_dp.likelihood.records import RecordLikelihood

_CHUNK_BYTES = 2**22
"""Hessians of one chunk."""
_KNOWN_BYTES = 2**26
"""What is kept of second derivatives along a line, of all chunks; the rest is computed when needed."""


class UnitHessians:
    r"""Per-unit Hessians :math:`\nabla^2_\theta \ell_i(\theta)`, in chunks.

    Parameters
    ----------
    graph : RecordGraph
    likelihood : RecordLikelihood
        Of the same graph; supplies the data.
    compile_kwargs : mapping, optional
        As for the likelihood.

    Raises
    ------
    UnsupportedModelError
        If the likelihood has no second derivatives.
    """

    def __init__(
        self,
        graph: RecordGraph,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        self._likelihood = likelihood
        roles = likelihood.roles
        self._axis, d = roles.record_data[0].axis, len(graph.start)
        self._d = d
        graph = graph.to_differentiate()
        v, w = pt.vector("v", shape=(d,)), pt.vector("w", shape=(d,))
        try:
            # Forward twice: what is done for each record stays elementwise, and is not looped over.
            slope = pushforward(rewrite_pregrad(graph.log_likelihood), graph.theta, v)
            if not COMPILES_LOOPS and batched_operations(
                io_toposort(list(graph_inputs([slope])), [slope])
            ):
                # Where it loops, PyTensor 2 needs minutes if the graph is not made smaller first.
                slope = rewrite_graph(slope, include=("ShapeOpt", "canonicalize", "stabilize"))
            entry = pushforward(slope, graph.theta, w, disconnected_outputs="ignore")
            self._entry = compile_without_checks(
                [graph.theta, v, w, *graph.rows], strip_checks(entry), compile_kwargs
            )
        except (NotImplementedError, TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"The likelihood of {graph.observed} has no second "
                f"derivatives ({type(error).__name__}). Use a step that needs none: DPHMC or "
                "DPPenalty."
            ) from None
        fitting = int(np.clip(_CHUNK_BYTES // (8 * d * d), 64, likelihood.chunk_size))
        self._chunks = UnitChunks(roles.unit_of_record, roles.n_records, fitting)

    def of(self, likelihood: RecordLikelihood) -> "UnitHessians":
        """The same compiled functions for the records of another likelihood of the same graph."""
        other = copy.copy(self)
        other._likelihood = likelihood
        other._chunks = self._chunks.of_records(likelihood.roles)
        return other

    def __call__(self, theta: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Hessians of one chunk of units after the other.

        Yields
        ------
        ndarray, shape (units, d, d)
            May contain NaN and infinities: clip before use. Private.
        """
        for chunk in self._chunks.all():
            per_record = self._likelihood.shielded(
                lambda some: self._entries(theta, some),
                self._likelihood.rows(chunk.records),
                (self._d, self._d),
            )
            yield chunk.per_unit(per_record)

    def _entries(
        self, theta: NDArray[np.float64], rows: Sequence[NDArray[Any]]
    ) -> NDArray[np.float64]:
        """One entry of all records' Hessians after the other, shape (records, d, d)."""
        e, n = np.eye(self._d), rows[0].shape[self._axis]
        H = np.empty((self._d, self._d, n))
        for i, j in zip(*np.tril_indices(self._d), strict=True):
            H[i, j] = H[j, i] = self._entry(theta, e[i], e[j], *rows)
        return np.moveaxis(H, -1, 0)


class DirectionalCurvature:
    r"""Per-unit second derivatives along a line, :math:`v^\top \nabla^2 \ell_i(\theta)\, v`.

    Parameters
    ----------
    graph, likelihood, compile_kwargs
        As for :class:`UnitHessians`.
    """

    def __init__(
        self,
        graph: RecordGraph,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        self._likelihood = likelihood
        roles = likelihood.roles
        graph = graph.to_differentiate()
        d = len(graph.start)
        v, t = pt.vector("v", shape=(d,)), pt.scalar("t")
        (moved,) = clone_replace(
            [rewrite_pregrad(graph.log_likelihood)],
            {graph.theta: graph.theta + t * v},
            rebuild_strict=False,
        )
        one = pt.ones(())
        first = pushforward(moved, t, one)
        second = pushforward(first, t, one, disconnected_outputs="ignore")
        (at_zero,) = clone_replace([second], {t: pt.zeros(())}, rebuild_strict=False)
        # θ is the same for many v: what depends on it alone is kept. Without known shapes, PyTensor 2 merges
        # slices into ever longer expressions of lengths, and does not end.
        whole = rewrite_graph(
            strip_checks(at_zero), include=("ShapeOpt", "canonicalize", "stabilize", "specialize")
        )
        known = frontier(whole, graph.theta, v)
        stand_ins = [part.type() for part in known]
        (rest,) = clone_replace([whole], dict(zip(known, stand_ins, strict=True)))
        try:
            self._along = compile_without_checks([v, *stand_ins, *graph.rows], rest, compile_kwargs)
        except UnsupportedModelError:
            # Parts may assert that their shapes agree, which the whole knows. θ is all that is kept then.
            known = [graph.theta]
            self._along = compile_without_checks(
                [v, graph.theta, *graph.rows], whole, compile_kwargs
            )
        self._at = compile_without_checks([graph.theta, *graph.rows], known, compile_kwargs)
        self._theta: NDArray[np.float64] | None = None
        self._known: dict[int, list[NDArray[Any]]] = {}
        self._chunks = UnitChunks(roles.unit_of_record, roles.n_records, likelihood.chunk_size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_theta": None, "_known": {}}

    def of(self, likelihood: RecordLikelihood) -> "DirectionalCurvature":
        """The same compiled functions for the records of another likelihood of the same graph."""
        other = copy.copy(self)
        other._likelihood = likelihood
        other._chunks = self._chunks.of_records(likelihood.roles)
        other._theta, other._known = None, {}
        return other

    def __call__(self, theta: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Second derivative of each unit's term at `theta` along `v`, shape (units,)."""
        if self._theta is None or not np.array_equal(self._theta, theta):
            self._theta, self._known = theta.copy(), {}
        terms = []
        for k, chunk in enumerate(self._chunks.all()):
            rows = self._likelihood.rows(chunk.records)

            def evaluate(
                some: Sequence[NDArray[Any]], k: int = k, rows: Sequence[NDArray[Any]] = rows
            ) -> NDArray[np.float64]:
                known = self._known.get(k) if some is rows else None
                if known is None:
                    known = self._at(theta, *some)
                    if some is rows and self._bytes_kept + _bytes(known) <= _KNOWN_BYTES:
                        self._known[k] = known
                return np.asarray(self._along(v, *known, *some))

            terms.append(chunk.per_unit(self._likelihood.shielded(evaluate, rows, ())))
        return np.concatenate(terms)

    @property
    def _bytes_kept(self) -> int:
        return sum(map(_bytes, self._known.values()))


def frontier(output: Variable, known: Variable, unknown: Variable) -> list[Variable]:
    """What a graph of both computes from `known` without `unknown`, and then uses with it."""
    nodes = list(io_toposort(list(graph_inputs([output])), [output]))
    of_known, of_unknown = {known}, {unknown}
    for node in nodes:
        for reached in (of_known, of_unknown):
            if reached.intersection(node.inputs):
                reached.update(node.outputs)
    used = [v for node in nodes if of_unknown.intersection(node.outputs) for v in node.inputs]
    used = used if output in of_unknown else [output]
    return list(dict.fromkeys(v for v in used if v in of_known and v not in of_unknown))


def _bytes(arrays: Sequence[NDArray[Any]]) -> int:
    return sum(np.asarray(array).nbytes for array in arrays)
