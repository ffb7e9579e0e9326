"""Derivatives of units' log-likelihoods in what each of them sees: common numbers, and its rows of tables."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.utils import MethodNotDefined

from pymc_dp.compat import pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.cut import Cut, rows_of
from pymc_dp.likelihood.records import RecordLikelihood

_CHUNK_BYTES = 2**21
"""Derivatives of one chunk."""

_STEP = 1e-4
"""Of differences. Its square is what they err by; derivatives that are series themselves err by less over it."""
_NOT_DERIVED = (NotImplementedError, MethodNotDefined, TypeError, ValueError)
"""What PyTensor raises for want of a derivative."""


Vector = NDArray[np.float64]


class Psi(NamedTuple):
    """Numbers in place of ψ.

    Parameters
    ----------
    common : ndarray, shape (p,)
    tables : list of ndarray, shape (groups, columns)
    """

    common: Vector
    tables: list[Vector]


class Local(NamedTuple):
    """Something of a chunk of units, in each one's own coordinates.

    Parameters
    ----------
    values : ndarray, shape (units, q) or (units, q, q)
        φ first, then the columns of every table, q numbers together. May contain NaN and infinities.
        Private.
    rows : list of ndarray of int64, shape (units,)
        Of every table, the row that each unit uses. Private.
    """

    values: Vector
    rows: list[NDArray[np.int64]]


class LocalDerivatives:
    r"""Gradients and Hessians of :math:`\ell_i(\varphi, \alpha_{k(i)})` in φ and :math:`\alpha_{k(i)}`.

    They are derivatives in a shift of φ and of the rows that were gathered, which is the same for all
    records: no index is differentiated.

    Parameters
    ----------
    cut : Cut
    likelihood : RecordLikelihood
        Of the same graph; supplies the data. Every record is a unit.
    compile_kwargs : mapping, optional
        As for the likelihood.

    Raises
    ------
    UnsupportedModelError
        If the likelihood has no first derivatives forward.
    """

    def __init__(
        self,
        cut: Cut,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        self._likelihood = likelihood
        self.p, self.shapes = cut.p, cut.shapes
        self.q = cut.p + sum(columns for _, columns in cut.shapes)
        common, gathered = pt.vector("common", shape=(self.p,)), []
        replacements: dict[Variable, Variable] = {}
        shift = pt.vector("shift", shape=(self.q,))
        start = 0
        for stand_in in cut.common:
            replacements[stand_in] = _part(common + shift[: self.p], start, stand_in)
            start += int(np.prod(stand_in.type.shape))
        for k, table in enumerate(cut.tables):
            rows = pt.matrix(f"gathered_{k}", shape=(None, table.columns))
            moved, column = rows + shift[start : start + table.columns], 0
            for stand_in in table.gathered:
                shape = stand_in.type.shape[1:]
                size = int(np.prod(shape))
                part = moved[:, column : column + size]
                replacements[stand_in] = part[:, 0] if not shape else part.reshape((-1, *shape))
                column += size
            gathered.append(rows)
            start += table.columns
        inputs = [common, *gathered, *cut.graph.rows]
        self._index = compile_without_checks(
            list(cut.graph.rows), [t.index for t in cut.tables], {"mode": "FAST_COMPILE"}
        )
        try:
            (moved,) = clone_replace([cut.log_likelihood], replacements, rebuild_strict=False)
            v, w = pt.vector("v", shape=(self.q,)), pt.vector("w", shape=(self.q,))
            slope = pushforward(rewrite_pregrad(moved), shift, v)
            entry = _second_derivative(slope, shift, w)
            unmoved = {shift: pt.zeros(self.q)}
            slope, entry = clone_replace([slope, entry], unmoved, rebuild_strict=False)
            gradient = vectorize_graph(slope, {v: pt.eye(self.q)})
            self._gradient, self._entry = (
                compile_without_checks([*extra, *inputs], strip_checks(output), compile_kwargs)
                for extra, output in (([], gradient), ([v, w], entry))
            )
        except _NOT_DERIVED as error:
            raise UnsupportedModelError(
                f"The likelihood of {cut.graph.observed} cannot be differentiated ({type(error).__name__})."
            ) from None
        fitting = int(np.clip(_CHUNK_BYTES // (8 * self.q), 256, 65536))
        self._chunks = UnitChunks(
            None, likelihood.roles.n_records, min(fitting, likelihood.chunk_size)
        )

    def of(self, likelihood: RecordLikelihood) -> "LocalDerivatives":
        """The same compiled functions for the records of another likelihood of the same graph."""
        other = copy.copy(self)
        other._likelihood = likelihood
        other._chunks = self._chunks.of_records(likelihood.roles)
        return other

    def gradients(self, psi: Psi) -> Iterator[Local]:
        """Gradients of one chunk of units after the other, shape (units, q)."""
        return self._chunked(psi, lambda *given: self._gradient(*given).T, (self.q,))

    def hessians(self, psi: Psi) -> Iterator[Local]:
        """Hessians, shape (units, q, q)."""
        return self._chunked(psi, self._entries, (self.q, self.q))

    def _chunked(self, psi: Psi, evaluate: Any, shape: tuple[int, ...]) -> Iterator[Local]:
        of = self._likelihood

        def compute(some: Sequence[NDArray[Any]]) -> Vector:
            tables = [table[k] for table, k in zip(psi.tables, self._rows(some), strict=True)]
            return np.asarray(evaluate(psi.common, *tables, *some))

        for chunk in self._chunks.all():
            records = of.rows(chunk.records)
            yield Local(of.shielded(compute, records, shape), self._rows(records))

    def _rows(self, records: Sequence[NDArray[Any]]) -> list[NDArray[np.int64]]:
        found = self._likelihood.shielded(
            lambda some: np.array(self._index(*some), np.float64).T, records, (len(self.shapes),)
        )
        return [
            rows_of(np.nan_to_num(index), groups)
            for index, (groups, _) in zip(found.T, self.shapes, strict=True)
        ]

    def _entries(self, *given: Any) -> Vector:
        e = np.eye(self.q)
        H = np.zeros((self.q, self.q, len(given[1])))
        for i, j in zip(*np.tril_indices(self.q), strict=True):
            H[i, j] = H[j, i] = self._entry(e[i], e[j], *given)
        return np.moveaxis(H, -1, 0)


def _part(vector: Variable, start: int, like: Variable) -> Variable:
    shape = like.type.shape
    return vector[start : start + int(np.prod(shape))].reshape(shape)


def _second_derivative(slope: Variable, x: Variable, w: Variable) -> Variable:
    """Of a first derivative at x, the derivative along w: by differences where it cannot be derived.

    Parameters
    ----------
    slope, x, w : TensorVariable
        `x` and `w` are vectors.
    """
    try:
        return pushforward(slope, x, w, disconnected_outputs="ignore")
    except _NOT_DERIVED:
        ahead, behind = (clone_replace([slope], {x: x + h * w})[0] for h in (_STEP, -_STEP))
        return (ahead - behind) / (2 * _STEP)
