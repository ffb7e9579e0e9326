"""Exact sums over the units: private whole numbers, the same wherever the records are."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.local import LocalGradients
from pymc_dp.likelihood.simulated import Scores, SimulatedScores
from pymc_dp.privacy.clipping import clipped_sum
from pymc_dp.privacy.histogram import counts_of
from pymc_dp.records.queries import Query, Units, Vector, sizes

_UNPREPARED = "The records were not prepared for this query."
_KEPT_BYTES = 2**27
"""What units' terms are computed from is kept between queries at a place while it fits in this; beyond, it is computed when needed."""


class RecordSums(Protocol):
    """Exact answers of the records. Private: nothing but a release may take them further.

    Whole numbers of disjoint parts of the units add up exactly, so that a sum does not depend on where the
    records are, nor on how they are divided up.
    """

    @property
    def n_units(self) -> int:
        """Number of units of privacy, public."""
        ...

    def total(self, of: Query, bound: float, units: Units | None = None) -> NDArray[np.int64]:
        """Sum of the terms' integer images: :func:`~pymc_dp.privacy.clipping.clipped_sum`.

        Parameters
        ----------
        of : Query
        bound : float
            Clipping bound in the Euclidean norm, public.
        units : ndarray of int64, optional
            A secret sample; default: all.
        """
        ...

    def counts(self, of: Query, bins_per_octave: int) -> NDArray[np.int64]:
        """How many units' terms have which size: :func:`~pymc_dp.privacy.histogram.counts_of`."""
        ...


class LastPoints:
    """Terms at the points that were asked for last, for the chain that comes back to them.

    Private: they never leave the process, and are left out of pickles.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Vector, Vector]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": []}

    def __call__(
        self, compute: Callable[[Vector], Vector], points: Sequence[Vector]
    ) -> list[Vector]:
        """`compute` at each of the points, or what it was when it was asked last."""
        found = []
        for point in points:
            terms = next((t for p, t in self._kept if np.array_equal(p, point)), None)
            found.append(compute(point) if terms is None else terms)
        self._kept = [(p.copy(), t) for p, t in zip(points, found, strict=True)]
        return found


class KeptChunks:
    """Chunks that were computed last, for whoever asks for the same ones next, while they fit into 128 MiB.

    Private, as what is in it: it never leaves the process, and is empty in pickles.
    """

    def __init__(self) -> None:
        self._latest: tuple[Vector, list[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_latest": None}

    def __call__(
        self, places: Vector, compute: Callable[[], Iterator[Any]], size: Callable[[Any], int]
    ) -> Iterator[Any]:
        """Chunks at some places: those that are kept, or computed ones, of so many bytes each."""
        if self._latest is not None and np.array_equal(self._latest[0], places):
            yield from self._latest[1]
            return
        self._latest = None
        kept: list[Any] = []
        room = _KEPT_BYTES
        for chunk in compute():
            room -= size(chunk)
            kept.append(chunk)
            if room < 0:
                kept.clear()
            yield chunk
        if room >= 0:
            self._latest = places.copy(), kept


class LocalRecords:
    """The records of this process: their sums, and for queries their terms.

    Parameters
    ----------
    compiled : CompiledModel
    derivatives : {0, 1}
        How many will be asked for; compiled now, so that what a model lacks is found before anything is paid.
    local : bool
        Whether they will be asked for in what a unit sees of θ, instead of all of it.
    words : ndarray of uint64, optional
        Secret random words, for the outcomes that scores are compared with; none will be asked for without.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        derivatives: int = 0,
        local: bool = False,
        words: NDArray[np.uint64] | None = None,
    ):
        self.likelihood = compiled.likelihood
        self._gradients: UnitGradients | LocalGradients | None = None
        self._simulated: SimulatedScores | None = None
        if local:
            self._gradients = compiled.local
        elif derivatives > 0:
            self._gradients = compiled.gradients
        if words is not None:
            self._simulated = compiled.local_simulated if local else compiled.simulated
        self._words = words
        self.first_unit = 0
        self.forget()

    def forget(self) -> None:
        """Drop what is kept between queries."""
        self._last = LastPoints()
        self._kept_scores = KeptChunks()
        self.held: Any = None
        """Whatever a query wants to find again. Private, not pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "held": None}

    def of_data(
        self,
        data: Sequence[NDArray[Any]],
        unit_of_record: NDArray[np.int64] | None = None,
        first_unit: int = 0,
    ) -> "LocalRecords":
        """The same functions for other records, of which the first unit has this number among all.

        Parameters
        ----------
        data, unit_of_record
            As in :meth:`RecordLikelihood.of_data <pymc_dp.likelihood.records.RecordLikelihood.of_data>`.
        first_unit : int
        """
        other = copy.copy(self)
        other.forget()
        other.likelihood, other.first_unit = (
            self.likelihood.of_data(data, unit_of_record),
            first_unit,
        )
        if self._gradients is not None:
            other._gradients = self._gradients.of(other.likelihood)
        if self._simulated is not None:
            other._simulated = self._simulated.of(other.likelihood, other._derivatives)
        return other

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self.likelihood.n_units

    def total(self, of: Query, bound: float, units: Units | None = None) -> NDArray[np.int64]:
        """See :class:`RecordSums`."""
        return clipped_sum(of.terms(self, units), bound, of.dimension)

    def counts(self, of: Query, bins_per_octave: int) -> NDArray[np.int64]:
        """See :class:`RecordSums`."""
        return counts_of(sizes(of, self), bins_per_octave)

    # -- terms, for queries -----------------------------------------------------------------------

    def log_likelihoods(self, points: Sequence[Vector], units: Units | None = None) -> list[Vector]:
        """See :class:`~pymc_dp.records.queries.UnitTerms`."""
        if units is not None:
            return [self.likelihood.of_units(point, units) for point in points]
        return self._last(self.likelihood, points)

    def gradients(self, theta: Vector, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.UnitTerms`."""
        if not isinstance(self._gradients, UnitGradients):
            raise RuntimeError(_UNPREPARED)
        return self._gradients(theta, units)

    def scores(self, theta: Vector, other: Vector | None = None) -> Iterator[Scores]:
        """See :class:`~pymc_dp.records.queries.UnitTerms`."""
        places = theta if other is None else np.concatenate([theta, other])
        return self._kept_scores(
            places,
            lambda: self._scores(theta, other),
            lambda chunk: sum(part.nbytes for part in chunk if isinstance(part, np.ndarray)),
        )

    def _scores(self, theta: Vector, other: Vector | None) -> Iterator[Scores]:
        if self._simulated is not None:
            yield from self._simulated(theta, self._own_words, other)
            return
        gradients = self._derivatives
        for chunk in gradients.chunks.all():
            rows = self.likelihood.rows(chunk.records)
            g = chunk.per_unit(gradients.of_rows(theta, rows))
            yield Scores(g, g[None], np.ones((1, len(g))), True, gradients.used_rows(rows))

    @property
    def _own_words(self) -> NDArray[np.uint64]:
        """Other ones for each shard, as the outcomes of different units must be independent."""
        if self._words is None:
            raise RuntimeError(_UNPREPARED)
        return np.append(self._words, np.uint64(self.first_unit))

    @property
    def _derivatives(self) -> UnitGradients | LocalGradients:
        if self._gradients is None:
            raise RuntimeError(_UNPREPARED)
        return self._gradients
