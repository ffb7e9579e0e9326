r"""Queries about units that each use a row or two of some tables: few numbers per unit, in many places.

With a unit's score :math:`(x_i, a_i)` in φ and in the rows that it uses, ψ's vector has :math:`a_i` in
the places of these rows and 0 in all others. So its norm is that of the few numbers, whichever rows they
are, and it is :class:`clipped and summed <pymc_dp.privacy.clipping.Sparse>` without the zeros.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.shape import Shape
from pymc_dp.likelihood.simulated import Scores
from pymc_dp.linalg import shrink
from pymc_dp.privacy.clipping import Sparse
from pymc_dp.records.queries import Units, UnitTerms, Vector, expected, finite_scores

_OF_TOTALS = 0.5
"""Of a bound's square, the part for totals, and for what all records share; rows have the rest, and what those leave. With a
quarter and three quarters errors in what all share are 1.17 and .97 times as large (`benchmarks/hierarchical_constants.py`, where other noise alone makes 1.16 and 1.18)."""


@dataclass(frozen=True, eq=False)
class Preconditioner:
    r"""Coordinates of a unit's numbers: a matrix for φ, a scale for each column of each table, and what rows explain of φ's score.

    Parameters
    ----------
    V : ndarray, shape (p, p)
        Scores in φ are :math:`V^\top (x_i - R_k^\top a_i)`.
    scales : tuple of ndarray, shape (columns,)
        Scores in rows are multiplied by these.
    R : tuple of ndarray, shape (groups, columns, p)
        Of every table: what the score in a row is thought to tell of that in φ. They are released numbers, and a unit's
        efficient score is a function of these and of its own records.
    of_common : float
        Information of φ in any direction of these coordinates, as it was known when they were chosen.
    """

    V: Vector
    scales: tuple[Vector, ...]
    R: tuple[Vector, ...]
    of_common: float = math.inf

    def stretched(self, times: float) -> "Preconditioner":
        """With φ's coordinates this many times as long."""
        return replace(self, V=times * self.V, of_common=times**2 * self.of_common)

    def of_rows(self, shape: Shape) -> Vector:
        """Scales of all numbers of all rows, shape (n - p,)."""
        tables = zip(self.scales, shape.tables, strict=True)
        return np.concatenate([np.tile(scales, groups) for scales, (groups, _) in tables])

    def applied(self, scores: Vector, rows: Sequence[NDArray[np.int64]], shape: Shape) -> Vector:
        """Scores of units, shape (..., units, q), in these coordinates."""
        p = shape.p
        z = np.array(scores, np.float64)
        for k, row, columns in zip(shape.uses, rows, shape.columns, strict=True):
            z[..., :p] -= np.einsum("...nr,nrp->...np", z[..., columns], self.R[k][row])
            z[..., columns] *= self.scales[k]
        z[..., :p] = z[..., :p] @ self.V
        return z


class Elsewhere(NamedTuple):
    """Another place, and how far it is from a first one of which it is independent.

    Parameters
    ----------
    theta : ndarray, shape (d,)
        θ'.
    distances : tuple of ndarray, shape (groups, 2)
        Of every table: expected squared distances of a row's two places, in any unit, and how much of that privacy noise makes.
    """

    theta: Vector
    distances: tuple[Vector, ...]

    def of_noise(self, uses: Sequence[int], rows: Sequence[NDArray[np.int64]]) -> Vector:
        """The part of units' distances that privacy noise makes, shape (units,), of the tables and rows that they use."""
        used = zip(uses, rows, strict=True)
        whole, of_noise = np.sum([self.distances[k][row] for k, row in used], axis=0).T
        return np.asarray(of_noise / np.maximum(whole, 1e-300))


@dataclass(frozen=True, eq=False)
class GroupScore:
    r"""Clipped score :math:`z = T\,(V^\top (x_i - R_k^\top a_i),\ s\, a_i)`, less what the model expects of it.

    What is expected is as of :class:`~pymc_dp.records.queries.Score`. With rows' part taken off, noise in rows is none in φ.

    From nearby it is asked at a place θ at which the model is not right yet, if only as groups are not known: residuals are as much larger, and of a
    normal outcome's σ that makes too much. What two places θ, θ' expect of each other's scores, without what changes its sign if they
    change places,

    .. math:: \tfrac12 \bigl((E_{\theta'} - E_\theta)[\operatorname{clip}_b(z(\theta))] + E_\theta[\operatorname{clip}_b(z(\theta')) -
        \operatorname{clip}_b(z(\theta))]\bigr)

    is taken off, too, as far as the distance is made by privacy noise: place and outcomes have the rest of it in common. Outcomes are drawn at both places, and count for each by their
    probabilities.

    Then z has totals, too, :math:`s\, a_i / \sqrt m`, which are summed over all m groups of a table: along them these move alike. They are clipped last, and rows first: of
    totals w, φ's part u and rows' part v there are left :math:`\tilde w = \operatorname{clip}(w)` to :math:`b / \sqrt 2`, u clipped to what that leaves of :math:`b / \sqrt 2`, and v to what both
    leave of b. What is clipped of rows is spread over all groups, and totals tell what it adds up to; of what all records share it adds up, and where outcomes' tails are not the
    model's, centring does not give it back. From afar all is clipped alike, as φ's part, which is long there, would leave rows nothing.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    preconditioner : Preconditioner
    shape : Shape
    bound : float
        b; infinite where sizes are asked for.
    tempering : float
        T.
    other : Elsewhere, optional
        Default: none, as from afar: nothing is taken off for the distance, and there are no totals.
    """

    theta: Vector
    preconditioner: Preconditioner
    shape: Shape
    bound: float = math.inf
    tempering: float = 1.0
    other: Elsewhere | None = None
    about = "gradients"

    @property
    def dimension(self) -> int:
        """Length of ψ, and totals."""
        return self.shape.n + self.totals

    @property
    def nonzeros(self) -> int:
        """How many numbers a unit has."""
        return self.shape.q + self.totals

    @property
    def totals(self) -> int:
        """How many there are."""
        return 0 if self.other is None else self.shape.r

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Sparse]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        of_all(units)
        shape = self.shape
        for of in self.scores(records):
            values = self.applied(of.observed, of)
            if self.bound < math.inf:
                values = self.clipped(finite_scores(values[None]))[0]
                z = finite_scores(self.applied(of.simulated, of))
                for part, factor in self._factors(z):
                    values[:, part] -= expected(z[..., part], of, factor, wholly=True)
                if self.other and of.elsewhere is not None and of.shifted is not None:
                    there = finite_scores(self.applied(of.elsewhere, of))
                    apart = self._of_distance(z, there, of.weights, of.shifted)
                    values -= apart * self.other.of_noise(shape.uses, of.rows)[:, None]
            common = np.broadcast_to(np.arange(shape.p), (len(values), shape.p))
            rows = shape.places(of.rows, [r for _, r in shape.tables], shape.p)
            totals = np.broadcast_to(np.arange(shape.n, self.dimension), (len(values), self.totals))
            yield Sparse(values, np.hstack([common, *rows, totals]))

    def scores(self, records: UnitTerms) -> Iterator[Scores]:
        """Of chunks of units, at both places: whoever asks for the same ones next finds them kept."""
        return records.scores(self.theta, self.other and self.other.theta)

    def applied(self, scores: Vector, of: Scores) -> Vector:
        """Scores, shape (..., units, q), in the coordinates in which they are clipped, and what they add to totals."""
        z = self.tempering * self.preconditioner.applied(scores, of.rows, self.shape)
        return np.concatenate([z, self._of_totals(z)], axis=-1)

    def _of_totals(self, z: Vector) -> Vector:
        """What scores, shape (..., units, q), add to totals."""
        if not self.totals:
            return z[..., :0]
        groups, columns = np.transpose(self.shape.tables)
        return np.asarray(self.shape.by_columns(z) / np.sqrt(np.repeat(groups, columns)))

    def _factors(self, z: Vector) -> Iterator[tuple[slice, Vector]]:
        """What clips every part of scores, shape (..., units), the first of all to be kept first."""
        p, q = self.shape.p, self.shape.q
        left, whole = np.zeros(z.shape[:-1]), self.bound**2
        in_order = (
            (slice(q, None), _OF_TOTALS * whole),
            (slice(p), 0.0),
            (slice(p, q), (1 - _OF_TOTALS) * whole),
        )
        for part, more in in_order if self.totals else ((slice(None), whole),):
            left += more
            sizes = np.linalg.norm(z[..., part], axis=-1)
            factor = shrink(sizes, np.sqrt(left))
            left = np.maximum(left - (factor * sizes) ** 2, 0.0)
            yield part, factor

    def clipped(self, z: Vector) -> Vector:
        """Such scores, clipped."""
        clipped = np.empty_like(z)
        for part, factor in self._factors(z):
            clipped[..., part] = z[..., part] * factor[..., None]
        return clipped

    def _of_distance(self, here: Vector, there: Vector, weights: Vector, shifted: Vector) -> Vector:
        """What both places expect of each other's clipped scores, on average over the two, of shape (units, nonzeros)."""
        here, there = self.clipped(here), self.clipped(there)
        expected_there = np.einsum("kn,knd->nd", weights, there - here)
        return np.asarray(np.einsum("kn,knd->nd", shifted, here) + expected_there) / 2


def of_all(units: Units | None) -> None:
    """Refuse a part of the units."""
    if units is not None:
        raise NotImplementedError("Groups are computed of all units.")
