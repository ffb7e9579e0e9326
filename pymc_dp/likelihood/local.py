"""Gradients of units' log-likelihoods in what each of them sees: common numbers, and its rows of tables."""

import copy
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

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
from pymc_dp.likelihood.cut import Cut, merged, rows_of
from pymc_dp.likelihood.made_up import made_up_rows
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.linalg import Vector

_CHUNK_BYTES = 2**21
"""Derivatives of one chunk."""
_MADE_UP, _TOLD = 200, 20
"""Made-up records, and how many of their derivatives have to be numbers, and not 0."""
_NOT_DERIVED = (NotImplementedError, MethodNotDefined, TypeError, ValueError)
"""What PyTensor raises for want of a derivative."""


class LocalGradients:
    r"""Gradients of :math:`\ell_i(\varphi, \alpha_{k(i)})` in φ and in the rows :math:`\alpha_{k(i)}`: q numbers a unit.

    They are derivatives in a shift of φ and of the rows that were gathered, which is the same for all
    records: no index is differentiated. Otherwise as :class:`~pymc_dp.likelihood.gradients.UnitGradients`, whose place they take in scores.

    Parameters
    ----------
    cut : Cut
    likelihood : RecordLikelihood
        Of the same graph; supplies the data. Every record is a unit.
    compile_kwargs : mapping, optional
        As for the likelihood.

    Attributes
    ----------
    width : int
        q.
    chunks : UnitChunks

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
        self._likelihood, self._shape = likelihood, cut.shape
        uses = cut.uses
        self._groups, self._columns = [cut.shapes[k][0] for k in uses], cut.shape.columns
        self._pairs = [(i, j) for i, j in combinations(range(len(uses)), 2) if uses[i] == uses[j]]
        self.width = q = cut.shape.q
        common = pt.vector("common", shape=(cut.p,))
        gathered: list[Variable] = []
        replacements: dict[Variable, Variable] = {}
        shift, start = pt.vector("shift", shape=(q,)), 0
        for stand_in in cut.common:
            replacements[stand_in] = _part(common + shift[: cut.p], start, stand_in)
            start += int(np.prod(stand_in.type.shape))
        for stand_ins in (used for table in cut.tables for used in table.gathered):
            columns = sum(int(np.prod(v.type.shape[1:])) for v in stand_ins)
            rows = pt.matrix(f"gathered_{len(gathered)}", shape=(None, columns))
            moved, column = rows + shift[start : start + columns], 0
            for stand_in in stand_ins:
                shape = stand_in.type.shape[1:]
                size = int(np.prod(shape))
                part = moved[:, column : column + size]
                replacements[stand_in] = part[:, 0] if not shape else part.reshape((-1, *shape))
                column += size
            gathered.append(rows)
            start += columns
        self._index = compile_without_checks(
            list(cut.graph.rows),
            [index for table in cut.tables for index in table.indices],
            {"mode": "FAST_COMPILE"},
        )
        self._psi = cut.psi_function()
        self._seen: tuple[Vector, list[Vector]] | None = None
        try:
            (moved,) = clone_replace([cut.log_likelihood], replacements, rebuild_strict=False)
            v = pt.vector("v", shape=(q,))
            slope = pushforward(rewrite_pregrad(moved), shift, v)
            (slope,) = clone_replace([slope], {shift: pt.zeros(q)}, rebuild_strict=False)
            gradient = vectorize_graph(slope, {v: pt.eye(q)})
            self._gradient = compile_without_checks(
                [common, *gathered, *cut.graph.rows], strip_checks(gradient), compile_kwargs
            )
        except _NOT_DERIVED as error:
            raise UnsupportedModelError(
                f"The likelihood of {cut.graph.observed} cannot be differentiated ({type(error).__name__})."
            ) from None
        fitting = int(np.clip(_CHUNK_BYTES // (8 * q), 256, 65536))
        self.chunks = UnitChunks(
            None, likelihood.roles.n_records, min(fitting, likelihood.chunk_size)
        )

    def of(self, likelihood: RecordLikelihood) -> "LocalGradients":
        """The same compiled functions for the records of another likelihood of the same graph."""
        other = copy.copy(self)
        other._likelihood = likelihood
        other.chunks = self.chunks.of_records(likelihood.roles)
        return other

    def of_rows(self, theta: Vector, rows: Sequence[NDArray[Any]]) -> Vector:
        """Gradient of each record in `rows`; NaN where :meth:`evaluate` fails."""
        return self._likelihood.shielded(
            lambda some: self.evaluate(theta, some), rows, (self.width,)
        )

    def evaluate(self, theta: Vector, rows: Sequence[NDArray[Any]]) -> Vector:
        """Gradient of each record in `rows`; whatever a record provokes is raised."""
        common, *tables = self._psi_at(theta)
        used = self._in_range(np.array(self._index(*rows), np.float64))
        gathered = [
            tables[k][rows_used] for k, rows_used in zip(self._shape.uses, used, strict=True)
        ]
        found = np.asarray(self._gradient(common, *gathered, *rows)).T
        for i, j in self._pairs:
            *_, same, swapped = _in_order(used[i], used[j], self._groups[i])
            a, b = found[:, self._columns[i]], found[:, self._columns[j]]
            a, b = np.where(same, a + b, a), np.where(same, 0.0, b)
            found[:, self._columns[i]] = np.where(swapped, b, a)
            found[:, self._columns[j]] = np.where(swapped, a, b)
        return found

    def used_rows(self, rows: Sequence[NDArray[Any]]) -> Sequence[NDArray[np.int64]]:
        """Of every use of a table, the row that each record uses, in any case one that there is. Private.

        Two rows of one table are in order, and different. What a record that uses one twice does with it is all in that one.
        """
        found = self._likelihood.shielded(
            lambda some: np.array(self._index(*some), np.float64).T, rows, (len(self._groups),)
        )
        used = self._in_range(np.nan_to_num(found).T)
        for i, j in self._pairs:
            used[i], used[j], *_ = _in_order(used[i], used[j], self._groups[i])
        return used

    def _in_range(self, indices: Vector) -> list[NDArray[np.int64]]:
        return [rows_of(index, groups) for index, groups in zip(indices, self._groups, strict=True)]

    def _psi_at(self, theta: Vector) -> list[Vector]:
        if self._seen is None or not np.array_equal(self._seen[0], theta):
            self._seen = theta.copy(), self._psi(theta)
        return self._seen[1]


def with_slopes_in_tables(cut: Cut, likelihood: RecordLikelihood, start: Vector) -> Cut:
    """The same, without common numbers that records see in a sum with an effect only: ``b * x + slope[k] * x``.

    Derivatives in both are equal then, which is looked at with made-up records. Apart, a score would have each of them twice, and next to
    nothing of the information on the first is not the second's.
    """
    gradients = LocalGradients(cut, likelihood, compile_kwargs={"mode": "FAST_COMPILE"})
    rng, found = np.random.default_rng(0), []
    data, batches = likelihood.roles.record_data, []
    for k in range(-1, len(data)):
        rows = made_up_rows(data, _MADE_UP, rng)
        if k >= 0:  # whole numbers are few there: of a sum that ends at 3 nothing would be seen
            rows[k] = rows[k] * 1000
        batches.append(gradients.of_rows(start + rng.normal(size=len(start)) / 2, rows))
    slopes = np.concatenate(batches)
    slopes = slopes[np.isfinite(slopes).all(axis=1)]
    places = [(k, c) for k in cut.uses for c in range(cut.shapes[k][1])]
    for j in range(cut.p):
        for place, of_effect in zip(places, slopes[:, cut.p :].T, strict=True):
            told = np.count_nonzero(of_effect) >= _TOLD and cut.uses.count(place[0]) == 1
            if told and np.allclose(slopes[:, j], of_effect, rtol=1e-9, atol=0):
                found.append((j, *place))
                break
    return merged(cut, found) if found else cut


def _part(vector: Variable, start: int, like: Variable) -> Variable:
    shape = like.type.shape
    return vector[start : start + int(np.prod(shape))].reshape(shape)


def _in_order(
    first: NDArray[np.int64], second: NDArray[np.int64], groups: int
) -> tuple[NDArray[Any], ...]:
    """Of two rows of a table, the lower and the higher; whether they were the same one, and whether the second is the lower."""
    same = first == second
    second = np.where(same, np.where(first + 1 < groups, first + 1, first - 1), second)
    swapped = first > second
    return np.minimum(first, second), np.maximum(first, second), same[:, None], swapped[:, None]
