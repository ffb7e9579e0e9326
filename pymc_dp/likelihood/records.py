"""The compiled per-unit log-likelihood of a model.

The observed variables are rebuilt with symbolic record rows in place of the data *before* their
log-density is derived. So the graph does not know how many records there are: it can be called on
chunks (bounded memory) and on single records (the separability checks), and nothing that couples
records can have been folded into a constant.
"""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks
from pymc_dp.likelihood.made_up import made_up_rows
from pymc_dp.likelihood.nodes import WRAP_DATA, quoting_nothing
from pymc_dp.likelihood.record_graph import RecordGraph
from pymc_dp.likelihood.roles import Roles

_CHUNK_BYTES = 2**20
"""Data of one chunk: small enough for intermediate results to stay in cache."""


class RecordFunction:
    """Numbers of every record, as a compiled function of θ and of its rows.

    Parameters
    ----------
    output : Variable, shape (records,) or (records, k)
    theta : Variable, shape (d,)
    rows : sequence of Variable
        One per ``roles.record_data``.
    start : ndarray, shape (d,)
        θ at which its shape is looked at.
    roles : Roles
        That the graph was made with.
    what : str
        What messages call it.
    chunk_size : int, optional
        Records evaluated at once. Default: about 1 MiB of data.
    compile_kwargs : mapping, optional
        Passed to ``pytensor.function``; ``mode`` defaults to the installed line's own.

    Raises
    ------
    UnsupportedModelError
        If it does not have numbers for each record.
    """

    def __init__(
        self,
        output: Variable,
        theta: Variable,
        rows: Sequence[Variable],
        start: NDArray[np.float64],
        roles: Roles,
        what: str,
        *,
        chunk_size: int | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        self.roles, self.what = roles, what
        self._evaluate = compile_without_checks([theta, *rows], output, compile_kwargs)
        self._data = [leaf.values for leaf in roles.record_data]
        self.axes = [leaf.axis for leaf in roles.record_data]
        self.shape = output.type.shape[1:]
        self._refuse_fixed_length(start)
        bytes_per_record = max(1, sum(x.nbytes for x in self._data) // roles.n_records)
        self.chunk_size = chunk_size or int(np.clip(_CHUNK_BYTES // bytes_per_record, 512, 65536))
        self.chunks = UnitChunks(roles.unit_of_record, roles.n_records, self.chunk_size)

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self.roles.n_units

    def rows(self, which: slice | NDArray[np.int64]) -> list[NDArray[Any]]:
        """The data of some records, one array per data node.

        In C order, as the copies are with a stand-in for a record that raises: with another layout
        of the same numbers, matrix products differ in last bits, and would tell of that record.
        """
        return [
            np.ascontiguousarray(x[which] if axis == 0 else x[(slice(None),) * axis + (which,)])
            for x, axis in zip(self._data, self.axes, strict=True)
        ]

    def evaluate_rows(
        self, theta: NDArray[np.float64], rows: Sequence[NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Numbers of each record in `rows`; NaN for those that the compiled function fails on."""
        return self.shielded(
            lambda some: np.asarray(self._evaluate(theta, *some)), rows, self.shape
        )

    def shielded(
        self,
        evaluate: Callable[[Sequence[NDArray[Any]]], NDArray[np.float64]],
        rows: Sequence[NDArray[Any]],
        shape: tuple[int, ...],
    ) -> NDArray[np.float64]:
        """Evaluate `rows`, with NaN for the records that make it raise.

        An exception would tell that such a record is there. The others are evaluated where they
        are, next to a stand-in for it: last bits depend on the place in a chunk and on its length,
        and must not tell either.
        """
        # A floating point warning would tell that some record caused it.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return evaluate(rows)
            except Exception:  # noqa: BLE001  whatever a record provokes must not be seen outside
                pass
            n = rows[0].shape[self.axes[0]]
            everyone = np.arange(n)
            bad = self._raising(evaluate, rows, everyone)
            if 0 < len(bad) < n:
                stand_in = everyone.copy()
                stand_in[bad] = np.setdiff1d(everyone, bad)[0]
                with contextlib.suppress(Exception):
                    # In the layout that it comes in: products with another one may differ in last bits.
                    terms = np.array(evaluate(self._take(rows, stand_in)), order="K")
                    terms[bad] = np.nan
                    return terms
            elif not bad:  # raises for all together only: out of memory, perhaps
                halves = [self._take(rows, half) for half in np.array_split(everyone, 2)]
                return np.concatenate([self.shielded(evaluate, half, shape) for half in halves])
            return np.full((n, *shape), np.nan)

    def _raising(
        self, evaluate: Callable[..., Any], rows: Sequence[NDArray[Any]], which: NDArray[np.int64]
    ) -> list[int]:
        """The records of `which` that raise on their own, by bisection."""
        try:
            evaluate(self._take(rows, which))
        except Exception:  # noqa: BLE001
            if len(which) == 1:
                return [int(which[0])]
            halves = np.array_split(which, 2)
            return [i for half in halves for i in self._raising(evaluate, rows, half)]
        return []

    def _take(self, rows: Sequence[NDArray[Any]], which: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [np.take(x, which, axis=axis) for x, axis in zip(rows, self.axes, strict=True)]

    def _refuse_fixed_length(self, theta: NDArray[np.float64]) -> None:
        """The graph must take any number of records, or it has the data's own number built in."""
        rows = made_up_rows(self.roles.record_data, 2, np.random.default_rng(0))
        for n in (1, 2):
            with (
                np.errstate(all="ignore"),
                warnings.catch_warnings(),
                quoting_nothing(
                    f"{self.what} cannot be evaluated for {n} record(s) alone ({{error}}). "
                    f"{WRAP_DATA}"
                ),
            ):
                warnings.simplefilter("ignore")
                shape = np.shape(self._evaluate(theta, *self._take(rows, np.arange(n))))
            if shape != (n, *self.shape):
                raise UnsupportedModelError(
                    f"{self.what} does not have one term per record: for "
                    f"{n} record(s) it has shape {shape}. {WRAP_DATA}"
                )


class RecordLikelihood(RecordFunction):
    r"""Per-unit log-likelihoods :math:`\ell_i(\theta)` of all observed variables together.

    Parameters
    ----------
    graph : RecordGraph
    roles : Roles
        That the graph was made with.
    chunk_size, compile_kwargs
        As in :class:`RecordFunction`.

    Raises
    ------
    UnsupportedModelError
        If the log-likelihood does not split into records.

    Notes
    -----
    PyMC's parameter checks are taken over all records at once, so that one bad record would turn
    every record's term to -inf. Here they are taken record by record: a bad record's own term is
    -inf, and is clipped downstream.
    """

    def __init__(
        self,
        graph: RecordGraph,
        roles: Roles,
        *,
        chunk_size: int | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        super().__init__(
            graph.log_likelihood, graph.theta, graph.rows, graph.start, roles, "The log-likelihood",
            chunk_size=chunk_size, compile_kwargs=compile_kwargs,
        )  # fmt: skip

    def of_data(
        self,
        data: Sequence[NDArray[Any]],
        unit_of_record: NDArray[np.int64] | None = None,
    ) -> "RecordLikelihood":
        """The same compiled function for other records; holds none of its own any more.

        Parameters
        ----------
        data : sequence of ndarray
            One per ``roles.record_data``: any number of records, otherwise of the same shape and
            type.
        unit_of_record : ndarray of int64, optional
            0 to units - 1, each at least once. Default: every record is a unit.
        """
        n = data[0].shape[self.axes[0]]
        other = copy.copy(self)
        other.roles = replace(
            self.roles,
            n_records=n,
            unit_of_record=unit_of_record,
            n_units=n if unit_of_record is None else int(unit_of_record.max(initial=-1)) + 1,
            # The model's own node holds its own data.
            record_data=tuple(
                replace(leaf, variable=leaf.variable.type(), values=x)
                for leaf, x in zip(self.roles.record_data, data, strict=True)
            ),
        )
        other._data = list(data)
        other.chunks = self.chunks.of_records(other.roles)
        return other

    def __call__(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each unit.

        Parameters
        ----------
        theta : ndarray, shape (d,)
            Unconstrained parameters.

        Returns
        -------
        ndarray, shape (n_units,)
            May contain NaN and infinities: clip before use. Private.
        """
        n = self.roles.n_records
        per_record = np.empty(n)
        for start in range(0, n, self.chunk_size):
            stop = min(start + self.chunk_size, n)
            per_record[start:stop] = self.evaluate_rows(theta, self.rows(slice(start, stop)))
        if self.roles.unit_of_record is None:
            return per_record
        per_unit = np.zeros(self.roles.n_units)
        _sum_by_unit(per_record, self.roles.unit_of_record, per_unit)
        return per_unit

    def at(self, points: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Chunks of the units' log-likelihoods at some points, shape (units, points). Private."""
        for chunk in self.chunks.all():
            rows = self.rows(chunk.records)
            columns = [chunk.per_unit(self.evaluate_rows(point, rows)) for point in points]
            yield np.stack(columns, axis=1)

    def of_units(self, theta: NDArray[np.float64], units: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log-likelihood of some units, shape (len(units),); nothing else is evaluated."""
        terms = [
            chunk.per_unit(self.evaluate_rows(theta, self.rows(chunk.records)))
            for chunk in self.chunks.of(units)
        ]
        return np.concatenate(terms) if terms else np.empty(0)


@numba.njit(cache=True)
def _sum_by_unit(per_record, unit_of_record, per_unit):  # type: ignore[no-untyped-def]
    for i in range(per_record.shape[0]):
        per_unit[unit_of_record[i]] += per_record[i]
