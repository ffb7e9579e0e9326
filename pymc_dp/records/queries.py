"""What algorithms ask of the records: a term for every unit, to be clipped and summed, or to be counted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.simulated import Scores
from pymc_dp.linalg import clip, norms, norms_of_squares, shrink, squares
from pymc_dp.privacy.clipping import Sparse

Vector = NDArray[np.float64]
Units = NDArray[np.int64]


class UnitTerms(Protocol):
    """What a query can compute with, where the records are. Private."""

    @property
    def n_units(self) -> int:
        """How many units there are here."""
        ...

    def log_likelihoods(self, points: Sequence[Vector], units: Units | None = None) -> list[Vector]:
        r""":math:`\ell_i` at some points, each of shape (units,). Not to be changed in place."""
        ...

    def gradients(self, theta: Vector, units: Units | None = None) -> Iterator[Vector]:
        r"""Chunks of :math:`\nabla\ell_i`, shape (units, d)."""
        ...

    def scores(self, theta: Vector, other: Vector | None = None) -> Iterator[Scores]:
        r"""Chunks of :math:`\nabla\ell_i`, as observed and at outcomes of the model's. Not to be changed in place.

        Where these cannot be drawn, the observed ones stand for them. With another place, outcomes are looked at there, too.
        """
        ...


class Query(Protocol):
    """A term for every unit, which may depend on that unit's records and on public numbers only.

    Picklable: it travels to where the records are. It holds nothing of them.
    """

    @property
    def dimension(self) -> int | None:
        """Length of a unit's vector; None if it is a number."""
        ...

    # Any: a query may want more of them than most do.
    def terms(self, records: Any, units: Units | None = None) -> Iterator[Vector | Sparse]:
        """Chunks of the units' terms, shape (units,) or (units, dimension), or sparse; in the units' order.

        Private, and may overflow: to be drawn from :func:`in silence
        <pymc_dp.privacy.clipping.in_silence>`. With `units`, those only.
        """
        ...


def is_acute(of: Query) -> bool:
    """Whether no two terms that units can have have a negative inner product, as a query says of itself.

    It is a claim that a sensitivity rests on: to be proved where it is made.
    """
    return bool(getattr(of, "acute", False))


def sizes(of: Query, records: Any) -> Iterator[Vector]:
    """Chunks of the Euclidean norms of units' terms, by a query's own ``sizes`` if it has a faster way. Private."""
    if hasattr(of, "sizes"):
        yield from of.sizes(records)
        return
    for terms in of.terms(records):
        if isinstance(terms, Sparse):
            yield norms(terms.values)
        else:
            yield np.abs(terms) if terms.ndim == 1 else norms(terms)


@dataclass(frozen=True, eq=False)
class LogLikelihoodRatio:
    r""":math:`\ell_i(\theta') - \ell_i(\theta)`.

    Parameters
    ----------
    theta, proposal : ndarray, shape (d,)
        θ and θ′, unconstrained.
    """

    theta: Vector
    proposal: Vector
    dimension = None

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        now, new = records.log_likelihoods([self.theta, self.proposal], units)
        yield new - now


@dataclass(frozen=True, eq=False)
class Gradient:
    r""":math:`T\, W^\top \nabla \ell_i(\theta)`.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    W : ndarray, shape (d, k), optional
        Coordinates :math:`\theta + W u`. Default: those of θ.
    tempering : float
        T; with coordinates only.
    """

    theta: Vector
    W: Vector | None = None
    tempering: float = 1.0
    about = "gradients"

    @property
    def dimension(self) -> int:
        """K, or d without coordinates."""
        return len(self.theta) if self.W is None else self.W.shape[1]

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        for chunk in records.gradients(self.theta, units):
            yield chunk if self.W is None else chunk @ (self.tempering * self.W)


@dataclass(frozen=True, eq=False)
class Score:
    r"""Clipped score, less what the model expects of it: :math:`\operatorname{clip}_b(z_i) - E[\operatorname{clip}_b(z_i)]`.

    Here :math:`z = T\, V^\top \nabla\ell(\theta)`, and the expectation is that of outcomes given the unit's covariates. As
    :math:`E[z] = 0`, it is the covariance of z with the factor that clips it: what is not clipped adds no noise to it.

    Where outcomes are drawn, a clipped draw counts if another draw of its unit is clipped, too. What is expected of a unit that
    its covariates make long, whatever its outcome, is a matter of the model's middle, which the data have shaped. What is
    expected of one that a rare outcome alone makes long is a matter of the model's tail; where that is wrong, centring leads further
    astray than clipping does. With a bound that clips many of all units there is no such choice.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    V : ndarray, shape (d, d)
        The whitening matrix.
    bound : float
        b.
    tempering : float
        T.
    wholly : bool
        Whether all of what is expected is taken off, whoever is clipped.
    """

    theta: Vector
    V: Vector
    bound: float
    tempering: float = 1.0
    wholly: bool = False
    about = "gradients"

    @property
    def dimension(self) -> int:
        """D."""
        return len(self.theta)

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        W = _of_all(units, self.tempering * self.V)
        for of in records.scores(self.theta):
            z = finite_scores(of.simulated @ W)
            factor = shrink(np.linalg.norm(z, axis=2), self.bound)
            yield clip(of.observed @ W, self.bound) - expected(z, of, factor, self.wholly)


@dataclass(frozen=True, eq=False)
class Deviation:
    r""":math:`V^\top \nabla\ell_i(\theta) - c_i`: a unit's score, from a point that is public for each unit.

    That is one whose covariates are public; its outcome alone is private then.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    V : ndarray, shape (d, d)
        The whitening matrix.
    centres : ndarray, shape (units, d)
        :math:`c_i`, in the units' order.
    """

    theta: Vector
    V: Vector
    centres: Vector
    about = "gradients"

    @property
    def dimension(self) -> int:
        """D."""
        return len(self.theta)

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        W, upto = _of_all(units, self.V), 0
        for chunk in records.gradients(self.theta):
            yield chunk @ W - self.centres[upto : (upto := upto + len(chunk))]


_SLICE, _LEAST_SLICE = 2**17, 300
"""Numbers of units' information that are computed at a time, 1 MB, but of so many units at least, for what a slice costs by itself. All
units of a chunk at a time take two to four times as long for 3 to 100 parameters, slices of 100 units up to ten times, of 3."""


@dataclass(frozen=True, eq=False)
class Information:
    r"""A unit's information :math:`E[z z^\top]` / T, and what its clipped score keeps of it, as one vector.

    The second is :math:`E[\operatorname{clip}_b(z) z^\top]` / T, z as in :class:`Score`: minus the derivative of the mean
    clipped score by where the model's parameters are.

    Parameters
    ----------
    theta, V, bound, tempering
        As in :class:`Score`.
    kept : {"matrix", "diagonal", "nothing"}
        What is asked for of the second.

    Notes
    -----
    Both are positive semidefinite, so that no two units' terms have a negative inner product.
    """

    theta: Vector
    V: Vector
    bound: float
    tempering: float = 1.0
    kept: Literal["matrix", "diagonal", "nothing"] = "matrix"
    about = "curvature"
    acute = True

    @property
    def dimension(self) -> int:
        """Length of both together, d (d + 1) if all is asked for."""
        d = len(self.theta)
        half = d * (d + 1) // 2
        return half + {"matrix": half, "diagonal": d, "nothing": 0}[self.kept]

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        for part in self._parts(records, units):
            yield self._packed(*part)

    def sizes(self, records: UnitTerms) -> Iterator[Vector]:
        """See :func:`sizes`. Where outcomes are fewer than parameters, by their inner products."""
        for z, weights, kept in self._parts(records, None):
            if self.kept == "diagonal" or len(z) >= z.shape[2]:
                yield norms(self._packed(z, weights, kept))
                continue
            whole = norms_of_squares(z, weights)
            yield np.hypot(whole, norms_of_squares(z, kept)) if self.kept == "matrix" else whole

    def _packed(self, z: Vector, weights: Vector, kept: Vector) -> Vector:
        half = len(self.theta) * (len(self.theta) + 1) // 2
        both = np.empty((self.dimension, z.shape[1])).T
        squares(z, weights, out=both[:, :half])
        if self.kept == "matrix":
            squares(z, kept, out=both[:, half:])
        if self.kept == "diagonal":
            both[:, half:] = np.einsum("kn,knd->nd", kept, z**2)
        return both

    def _parts(
        self, records: UnitTerms, units: Units | None
    ) -> Iterator[tuple[Vector, Vector, Vector]]:
        """Of slices of units: z, its weights, and those of what is kept."""
        W = _of_all(units, self.tempering * self.V)
        size = max(_LEAST_SLICE, _SLICE // self.dimension)
        for of in records.scores(self.theta):
            z = finite_scores(of.simulated @ W)
            weights = of.weights / self.tempering
            kept = weights * shrink(np.linalg.norm(z, axis=2), self.bound)
            for start in range(0, z.shape[1], size):
                few = slice(start, start + size)
                yield z[:, few], weights[:, few], kept[:, few]


def expected(z: Vector, of: Scores, factor: Vector, wholly: bool = False) -> Vector:
    """What the model expects of units' clipped scores, shape (units, d): see :class:`Score`.

    Parameters
    ----------
    z : ndarray, shape (outcomes, units, d)
        Finite scores at outcomes of the model's, in the coordinates in which they are clipped.
    of : Scores
        Whose they are.
    factor : ndarray, shape (outcomes, units)
        What clips them.
    wholly : bool
    """
    kappa = 1.0 if wholly else _centred(factor < 1, of.exact)
    # Weights of outcomes that are drawn at two places add up to 1 on average only; what is not clipped is expected to be 0 all the same.
    mean = (of.weights * factor).sum(axis=0) / np.maximum(of.weights.sum(axis=0), 1e-300)
    return np.asarray(np.einsum("kn,knd->nd", kappa * of.weights * (factor - mean), z))


def _centred(clipped: NDArray[np.bool_], exact: bool) -> NDArray[np.bool_]:
    """Which outcomes of which units are centred by, shape (outcomes, units).

    On 23 data sets at ε = .3, 1 and 3, errors at the mode are in the mean .90, .91 and .97 times those of one release with the
    best bound, 1.31 at worst. Centred by all draws they are .90, .96 and 1.06, 2.59 at worst; not centred .95, .99 and 1.00, and
    up to 3 times as large where some records alone tell of a parameter (`benchmarks/centring.py`).
    """
    return np.asarray(np.logical_or(exact, clipped.sum(axis=0) > clipped))


def _of_all(units: Units | None, W: Vector) -> Vector:
    if units is not None:
        raise NotImplementedError("Scores are compared with the model's for all units.")
    return W


def finite_scores(z: Vector) -> Vector:
    """Scores of which none is in part."""
    return np.where(np.isfinite(z).all(axis=2, keepdims=True), z, 0.0)


@dataclass(frozen=True, eq=False)
class NormExceeds:
    """Whether a unit's term is longer than a length: 1 or 0.

    Parameters
    ----------
    of : Query
        Whose terms are vectors.
    length : float
    """

    of: Query
    length: float
    dimension = None

    def terms(self, records: Any, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`. What is not finite is not counted."""
        for chunk in self.of.terms(records, units):
            sizes = norms(np.asarray(chunk))
            yield (np.isfinite(sizes) & (sizes > self.length)).astype(float)


@dataclass(frozen=True, eq=False)
class Root:
    """Root of a term's length, so that bins of its sizes are as many times as wide.

    Parameters
    ----------
    of : Query
        Whose terms are vectors.
    order : int
        4 is the fourth root.
    """

    of: Query
    order: int
    dimension = None

    def terms(self, records: Any, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        for chunk in self.of.terms(records, units):
            yield norms(np.asarray(chunk)) ** (1 / self.order)


@dataclass(frozen=True, eq=False)
class CentredIndicator:
    """Marks of 0 and 1 as −1/2 and 1/2: half the norm, so half of what replacing a unit changes.

    Parameters
    ----------
    of : Query
        Whose terms are marks.
    """

    of: Query
    dimension = None
    bound = 0.5
    """Norm of every term: a sum of them has sensitivity 1."""

    def terms(self, records: Any, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        for chunk in self.of.terms(records, units):
            yield np.asarray(chunk, np.float64) - 0.5


class UnitCount:
    """A mark of 1 for every unit: its sum is their number."""

    dimension = None

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        yield np.ones(records.n_units if units is None else len(units))
