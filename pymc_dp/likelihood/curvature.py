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
from pytensor.graph.utils import MethodNotDefined

from pymc_dp.compat import COMPILES_LOOPS, graph_inputs, io_toposort, pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.gradients import batched_operations
from pymc_dp.likelihood.record_graph import RecordGraph
from pymc_dp.likelihood.records import RecordLikelihood

_CHUNK_BYTES = 2**22
"""Hessians of one chunk."""
_STEP = 1e-4
"""Of differences. Its square is what they err by; derivatives that are series themselves err by less over it."""
NOT_DERIVED = (NotImplementedError, MethodNotDefined, TypeError, ValueError)
"""What PyTensor raises for want of a derivative."""


def second_derivative(slope: Variable, x: Variable, w: Variable) -> Variable:
    """Of a first derivative at x, the derivative along w: by differences where it cannot be derived.

    Parameters
    ----------
    slope, x, w : TensorVariable
        `x` and `w` are vectors.
    """
    try:
        return pushforward(slope, x, w, disconnected_outputs="ignore")
    except NOT_DERIVED:
        ahead, behind = (clone_replace([slope], {x: x + h * w})[0] for h in (_STEP, -_STEP))
        return (ahead - behind) / (2 * _STEP)


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
        If the likelihood has no first derivatives forward.
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
            entry = second_derivative(slope, graph.theta, w)
            self._entry = compile_without_checks(
                [graph.theta, v, w, *graph.rows], strip_checks(entry), compile_kwargs
            )
        except NOT_DERIVED as error:
            raise UnsupportedModelError(
                f"The likelihood of {graph.observed} cannot be differentiated ({type(error).__name__}). Use a "
                "step that does not need that: DPPenalty."
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
