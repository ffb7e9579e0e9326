"""What algorithms ask of the records: a term for every unit, to be clipped and summed, or to be counted."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.linalg import as_vectors, norms
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

    def hessians(self, theta: Vector) -> Iterable[Vector]:
        r"""Chunks of :math:`\nabla^2\ell_i`, shape (units, d, d). Not to be changed in place."""
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
    W : ndarray, shape (d, d), optional
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
        """D."""
        return len(self.theta)

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        for chunk in records.gradients(self.theta, units):
            yield chunk if self.W is None else chunk @ (self.tempering * self.W)


@dataclass(frozen=True, eq=False)
class Hessian:
    r""":math:`T\, W^\top \nabla^2 \ell_i(\theta)\, W` as a vector of the same Frobenius norm.

    Parameters
    ----------
    theta, W, tempering
        As in :class:`Gradient`.
    """

    theta: Vector
    W: Vector
    tempering: float = 1.0
    about = "curvature"

    @property
    def dimension(self) -> int:
        """D (d + 1) / 2."""
        return len(self.theta) * (len(self.theta) + 1) // 2

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`Query`."""
        if units is not None:
            raise NotImplementedError("Hessians are computed of all units.")
        for chunk in records.hessians(self.theta):
            yield as_vectors(self.W.T @ chunk @ (self.tempering * self.W))


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
