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
from pymc_dp.linalg import as_matrix, as_vectors, shrink
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
        _of_all(units)
        shape = self.shape
        for of in records.scores(self.theta, self.other and self.other.theta):

            def applied(scores: Vector, of: Scores = of) -> Vector:
                z = self.tempering * self.preconditioner.applied(scores, of.rows, shape)
                return np.concatenate([z, self._of_totals(z)], axis=-1)

            values = applied(of.observed)
            if self.bound < math.inf:
                values = self._clipped(finite_scores(values[None]))[0]
                z = finite_scores(applied(of.simulated))
                for part, factor in self._factors(z):
                    values[:, part] -= expected(z[..., part], of, factor, wholly=True)
                if self.other and of.elsewhere is not None and of.shifted is not None:
                    there = finite_scores(applied(of.elsewhere))
                    apart = self._of_distance(z, there, of.weights, of.shifted)
                    values -= apart * self.other.of_noise(shape.uses, of.rows)[:, None]
            common = np.broadcast_to(np.arange(shape.p), (len(values), shape.p))
            rows = shape.places(of.rows, [r for _, r in shape.tables], shape.p)
            totals = np.broadcast_to(np.arange(shape.n, self.dimension), (len(values), self.totals))
            yield Sparse(values, np.hstack([common, *rows, totals]))

    def _of_totals(self, z: Vector) -> Vector:
        """What scores, shape (..., units, q), add to totals."""
        if not self.totals:
            return z[..., :0]
        parts = [np.zeros((*z.shape[:-1], r)) for _, r in self.shape.tables]
        for k, columns in zip(self.shape.uses, self.shape.columns, strict=True):
            parts[k] += z[..., columns] / math.sqrt(self.shape.tables[k][0])
        return np.concatenate(parts, axis=-1)

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

    def _clipped(self, z: Vector) -> Vector:
        clipped = np.empty_like(z)
        for part, factor in self._factors(z):
            clipped[..., part] = z[..., part] * factor[..., None]
        return clipped

    def _of_distance(self, here: Vector, there: Vector, weights: Vector, shifted: Vector) -> Vector:
        """What both places expect of each other's clipped scores, on average over the two, of shape (units, nonzeros)."""
        here, there = self._clipped(here), self._clipped(there)
        expected_there = np.einsum("kn,knd->nd", weights, there - here)
        return np.asarray(np.einsum("kn,knd->nd", shifted, here) + expected_there) / 2


@dataclass(frozen=True, eq=False)
class _Products:
    """What sums of products of units' scores have in common."""

    theta: Vector
    preconditioner: Preconditioner
    shape: Shape
    tempering: float = 1.0
    about = "curvature"
    acute = True

    def _products(self, records: UnitTerms, units: Units | None) -> Iterator[tuple[Scores, Vector]]:
        r""":math:`E[z z^\top]` / T of chunks of units, shape (units, q, q)."""
        _of_all(units)
        for of in records.scores(self.theta):
            z = self.preconditioner.applied(of.simulated, of.rows, self.shape)
            z = finite_scores(self.tempering * z)
            left, right = z.transpose(1, 2, 0), z.transpose(1, 0, 2)
            yield of, (left * (of.weights / self.tempering).T[:, None, :]) @ right


@dataclass(frozen=True, eq=False)
class GroupInformation(_Products):
    r"""A unit's information :math:`E[z z^\top]` / T, z as in :class:`GroupScore`, where ψ has places for it.

    That is φ's block, those of the rows that it uses, and what couples φ with them. What couples rows with rows of other tables
    is left out: it would be in as many places as there are pairs of rows.

    Parameters
    ----------
    theta, preconditioner, shape, tempering
        As in :class:`GroupScore`.

    Notes
    -----
    As a vector: φ's :math:`p(p+1)/2` numbers, √T times for T rows that a unit uses; for every row of r numbers :math:`r(r+1)/2`; for
    every row r p. Those that stand for two entries of the matrix are √2 times as large. No two units' terms have a negative inner product:
    it is a mean, with weights that are not negative, of

    .. math:: T u^2 + \sum_{t, t'} [k_t = k'_{t'}] (v_{tt'}^2 + 2 u v_{tt'}), \qquad u = x^\top x',\ v_{tt'} = a_t^\top a'_{t'},

    over outcomes of both, with :math:`k_t` the rows that they use. These are T different ones, so that T pairs at most are alike, and that is
    at least the sum of their :math:`(u + v_{tt'})^2`.
    """

    @property
    def _each(self) -> tuple[list[int], list[int]]:
        p, columns = self.shape.p, [r for _, r in self.shape.tables]
        return [r * (r + 1) // 2 for r in columns], [r * p for r in columns]

    @property
    def dimension(self) -> int:
        """How many numbers there are."""
        p, each = self.shape.p, map(sum, zip(*self._each, strict=True))
        of_rows = sum(g * size for (g, _), size in zip(self.shape.tables, each, strict=True))
        return p * (p + 1) // 2 + of_rows

    @property
    def nonzeros(self) -> int:
        """How many numbers a unit has."""
        each = [a + b for a, b in zip(*self._each, strict=True)]
        return self.shape.p * (self.shape.p + 1) // 2 + sum(each[k] for k in self.shape.uses)

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Sparse]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        shape, p = self.shape, self.shape.p
        half, (of_rows, of_cross) = p * (p + 1) // 2, self._each
        after = half + sum(g * size for (g, _), size in zip(shape.tables, of_rows, strict=True))
        for of, K in self._products(records, units):
            weight = math.sqrt(len(shape.uses))
            values = [weight * as_vectors(K[:, :p, :p])]
            values += [as_vectors(K[:, c, c]) for c in shape.columns]
            values += [math.sqrt(2) * K[:, c, :p].reshape(len(K), -1) for c in shape.columns]
            places = [np.broadcast_to(np.arange(half), (len(K), half))]
            places += shape.places(of.rows, of_rows, half)
            places += shape.places(of.rows, of_cross, after)
            yield Sparse(np.hstack(values), np.hstack(places))

    def matrices(self, released: Vector) -> tuple[Vector, list[Vector], list[Vector]]:
        """A sum of terms as φ's block, the rows' blocks, shape (groups, r, r), and what couples, (groups, r, p)."""
        shape, p = self.shape, self.shape.p
        parts = [(1, p, p * (p + 1) // 2)]
        parts += [(g, r, r * (r + 1) // 2) for g, r in shape.tables]
        found, start = [], 0
        for groups, r, size in parts:
            packed = released[start : start + groups * size].reshape(groups, size)
            found.append(as_matrix(packed, r))
            start += groups * size
        cross = []
        for groups, r in shape.tables:
            size = groups * r * p
            cross.append(released[start : start + size].reshape(groups, r, p) / math.sqrt(2))
            start += size
        return found[0][0] / math.sqrt(len(shape.uses)), found[1:], cross


@dataclass(frozen=True, eq=False)
class SharedInformation(_Products):
    r"""The same of φ's numbers and of all rows' together, whichever rows they are, times features of these.

    Every number of a row's part is taken times each of m released numbers of its own. So it tells what couples tables, and
    sums over rows of what couples each with φ, without the noise that there is in each.

    Parameters
    ----------
    theta, preconditioner, shape, tempering
        As in :class:`GroupScore`.
    features : tuple of ndarray, shape (groups, columns, m)
        Of every table.

    Notes
    -----
    Positive semidefinite, so that no two units' terms have a negative inner product.
    """

    features: tuple[Vector, ...] = ()

    @property
    def dimension(self) -> int:
        """How many numbers there are."""
        r = self.shape.p + sum(math.prod(self.features[k].shape[1:]) for k in self.shape.uses)
        return r * (r + 1) // 2

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        shape, p = self.shape, self.shape.p
        for of, K in self._products(records, units):
            parts = [np.broadcast_to(np.eye(shape.q, p), (len(K), shape.q, p))]
            for k, rows, columns in zip(shape.uses, of.rows, shape.columns, strict=True):
                own = np.eye(shape.q)[:, columns]
                W = own[None, :, :, None] * self.features[k][rows][:, None]
                parts.append(W.reshape(len(K), shape.q, -1))
            W = np.concatenate(parts, axis=2)
            yield as_vectors(np.swapaxes(W, 1, 2) @ K @ W)


@dataclass(frozen=True, eq=False)
class Coupling:
    r"""Squared correlations of a unit's scores in φ with those in the rows that it uses: :math:`E[a x]^2 / (E[a^2] E[x^2])`.

    Of a scale and a mean they are 0, whatever the covariates are: outcomes alone decide. Where these are drawn, two different ones
    are multiplied, so that chance adds nothing on average.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    shape : Shape

    Notes
    -----
    Shape (columns of all tables, p), as a vector; of the rows of one table that a unit uses, the mean. All of these are between -1 and 1, so
    that a term is no longer than the root of their number.
    """

    theta: Vector
    shape: Shape
    about = "curvature"

    @property
    def dimension(self) -> int:
        """How many numbers there are."""
        return self.shape.r * self.shape.p

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        _of_all(units)
        shape, p = self.shape, self.shape.p
        for of in records.scores(self.theta):
            z = finite_scores(of.simulated)
            weights = of.weights[:, :, None]
            squares = np.sum(weights * z**2, axis=0)
            parts = [np.zeros((len(squares), r, p)) for _, r in shape.tables]
            for k, columns in zip(shape.uses, shape.columns, strict=True):
                a, x = z[..., columns, None], z[..., None, :p]
                both = np.einsum("on,onrp->nrp", of.weights, a * x) ** 2
                each = squares[:, columns, None] * squares[:, None, :p]
                if not of.exact:
                    own = np.einsum("on,onrp->nrp", of.weights**2, (a * x) ** 2)
                    both = (both - own) / (1 - 1 / len(z))
                c = np.divide(both, each, out=np.zeros_like(both), where=each > 0)
                parts[k] += np.clip(c, -1.0, 1.0) / shape.uses.count(k)
            yield np.concatenate([x.reshape(len(x), -1) for x in parts], axis=1)


def _of_all(units: Units | None) -> None:
    if units is not None:
        raise NotImplementedError("Groups are computed of all units.")
