"""Queries of groups' information: few numbers per unit, in many places."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.likelihood.simulated import Scores
from pymc_dp.linalg import as_matrix, as_vectors
from pymc_dp.privacy.clipping import Sparse
from pymc_dp.records.grouped import GroupScore, Preconditioner, of_all
from pymc_dp.records.queries import Units, UnitTerms, Vector, finite_scores

_OBSERVED = 0.25
"""Times which observed squares are asked for beside expected ones: tails of outcomes make them so many times as long, and one bound is for both. Half and twice as
much: `benchmarks/hierarchical_constants.py`, not run yet."""


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
        of_all(units)
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
        of_all(units)
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


@dataclass(frozen=True, eq=False)
class Steepness:
    r"""How steep a sum of clipped scores is: of every column of every table :math:`z \operatorname{clip}_b(z)`, :math:`z^2`, and :math:`E[z^2]`.

    Scores in rows change by their information on a way; and clipped ones by as much less of it as what is clipped of :math:`z^2`. Where what all records share is far
    off, a place's information is not the law's; and which scores are long depends on covariates, so that one column loses more than another.

    Parameters
    ----------
    of : GroupScore
        Of which scores, and how they are clipped.

    Notes
    -----
    Shape (3, columns), as a vector; the first two are multiplied by the same number. None of these is negative, so that no two units' terms have a negative inner product.
    """

    of: GroupScore
    about = "curvature"
    acute = True

    @property
    def dimension(self) -> int:
        """How many numbers there are."""
        return 3 * self.of.shape.r

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        of_all(units)
        of, shape = self.of, self.of.shape
        for chunk in of.scores(records):
            z = finite_scores(of.applied(chunk.observed, chunk)[None])
            left, squares = (z * np.stack([of.clipped(z), z]))[:, 0]
            simulated = finite_scores(of.applied(chunk.simulated, chunk))
            information = np.einsum("kn,knd->nd", chunk.weights, simulated**2) / of.tempering
            each = (_OBSERVED * left, _OBSERVED * squares, information)
            yield np.concatenate([shape.by_columns(x) for x in each], axis=1)
