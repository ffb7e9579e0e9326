"""What the polynomial asks of the records: linear images of log-likelihoods at public points."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp.linalg import Vector, clip, squares
from pymc_dp.records.queries import Units
from pymc_dp.records.sums import LocalRecords

_KEPT_BYTES = 2**27
"""Images are kept between the queries of a round while they fit in this; beyond, they are computed again."""


@dataclass(frozen=True, eq=False)
class Image:
    r""":math:`M^\top (\ell_i(\theta_1), \dots, \ell_i(\theta_K))`.

    Parameters
    ----------
    points : ndarray, shape (K, d)
    M : ndarray, shape (K, m)
        Columns add up to 0: a unit's own constant does not matter.
    """

    points: Vector
    M: Vector

    @cached_property
    def key(self) -> bytes:
        """What units' images depend on, to the last bit."""
        return np.ascontiguousarray(self.points).tobytes() + np.ascontiguousarray(self.M).tobytes()

    def chunks(self, records: LocalRecords) -> Iterator[Vector]:
        """Of all units, shape (units, m), kept for the next query. Private; not to be changed in place."""
        if isinstance(records.held, tuple) and records.held[0] == self.key:
            yield from records.held[1]
            return
        keeps = 8 * records.n_units * self.M.shape[1] <= _KEPT_BYTES
        kept = []
        for values in records.likelihood.at(self.points):
            image = values @ self.M
            if keeps:
                kept.append(image)
            yield image
        if keeps:
            records.held = self.key, kept


@dataclass(frozen=True, eq=False)
class Projection:
    r""":math:`A^\top` times a unit's image: its polynomial's coefficients, weighted or some of them.

    Parameters
    ----------
    image : Image
    A : ndarray, shape (m, k)
    """

    image: Image
    A: Vector
    about = "log_likelihood"

    @property
    def dimension(self) -> int:
        """K."""
        return int(self.A.shape[1])

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. A unit that is not finite at a point is not finite."""
        if units is not None:
            raise NotImplementedError("Images are computed of all units.")
        for image in self.image.chunks(records):
            yield image @ self.A


@dataclass(frozen=True, eq=False)
class SecondMoments:
    r""":math:`w_i w_i^\top` as a vector of the same Frobenius norm, :math:`w_i` a projection clipped to `length`.

    Any two have an inner product :math:`(w_i^\top w_j)^2 \ge 0`, so that replacing one by another moves a sum by
    :math:`\sqrt 2\, \text{length}^2` at most.

    Parameters
    ----------
    of : Projection
    length : float
        Public.
    """

    of: Projection
    length: float
    about = "log_likelihood"
    acute = True

    @property
    def dimension(self) -> int:
        """K (k + 1) / 2."""
        return self.of.dimension * (self.of.dimension + 1) // 2

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        for w in self.of.terms(records, units):
            w = clip(w, self.length)
            yield squares(w[None])
