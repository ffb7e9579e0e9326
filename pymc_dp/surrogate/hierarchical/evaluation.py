"""What a law of groups asks of the records at a place: noisy scores and information, and their sizes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.linalg import Vector, as_matrix
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.group_information import (
    Coupling,
    GroupInformation,
    SharedInformation,
    Steepness,
)
from pymc_dp.records.grouped import Elsewhere, GroupScore, Preconditioner
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Query
from pymc_dp.surrogate.hierarchical.shrinkage import with_totals
from pymc_dp.surrogate.normal.bounds import BINS_PER_OCTAVE, SHORTEST, Tail, number_beyond

_OF_SHARED = 0.3
"""Of the information's share, the part for what all rows have in common: a few numbers, which say how covariates hang together with effects. In a draft
of this, .1, .3 and .5 made no difference at ε = 3, of 160 schools' pupils, and .1 and .5 none at ε = 1 that 12 runs show."""
_OF_CLIPPED = 0.5
"""Part of what a bound of scores clips that may be biased: centring takes off the rest as far as the model is right."""

_OF_STEEPNESS = 0.02
"""Of a score's share, the part for how steep its sum is. With .01 and .03 errors are the same (three models at ε = 1 and 3, four runs each, on no page)."""
_LONGEST_SQUARE = 1.5
"""Times a bound of scores, squared: that of :class:`~pymc_dp.records.group_information.Steepness`. With four times as much, in a draft, information of 200 groups was known to a fifth only; half
and twice: `benchmarks/hierarchical_constants.py`, not run yet."""

_LEAST_KEPT = 0.2
"""What clipping leaves of a column's scores, at least: a guard. Half and twice: `benchmarks/hierarchical_constants.py`, not run yet."""


class Curvature(NamedTuple):
    """Information, with noise, in the coordinates of a preconditioner.

    Parameters
    ----------
    psi : ndarray, shape (n,)
        Where.
    preconditioner : Preconditioner
    common : ndarray, shape (p, p)
    rows : list of ndarray, shape (groups, r, r)
    cross : list of ndarray, shape (groups, r, p)
    shared : ndarray
        Of φ and of all columns of the rows that a unit uses, times features of the rows.
    features : tuple of ndarray, shape (groups, columns, m)
        Of every table, a constant first.
    sd : dict
        The noise's standard deviation, of each of these; on the diagonal, and √½ of it elsewhere, of
        symmetric ones.
    """

    psi: Vector
    preconditioner: Preconditioner
    common: Vector
    rows: list[Vector]
    cross: list[Vector]
    shared: Vector
    features: tuple[Vector, ...]
    sd: dict[str, float]


class Slope(NamedTuple):
    r"""A gradient with noise, and where.

    Parameters
    ----------
    psi : ndarray, shape (n,)
    R : ndarray, shape (n, p)
        What rows' scores were taken to tell of φ's.
    gradient : ndarray, shape (n,)
        In φ less that, and in rows.
    covariance : ndarray, shape (p, p)
        Of the noise in φ.
    variance : ndarray, shape (n - p,)
        Of the noise in rows, of which all is independent but what totals tell: covariances are the diagonal matrix of these + :math:`U M U^\top`.
    U : ndarray, shape (n - p, l)
    M : ndarray, shape (l, l)
    seen : bool
        Whether units' sizes stood out of the noise; if not, the bound means nothing, and the score says nothing.
    steepness, unsure_steepness : ndarray, shape (columns,)
        Information at the place in every column of every table, and the variance of its logarithm.
    of_common : bool
        Whether it tells of φ, too.
    """

    psi: Vector
    R: Vector
    gradient: Vector
    covariance: Vector
    variance: Vector
    U: Vector
    M: Vector
    seen: bool
    steepness: Vector
    unsure_steepness: Vector
    of_common: bool = True


def flat(R: Sequence[Vector], shape: Shape) -> Vector:
    """Parts of tables, shape (groups, columns, p), as a matrix of shape (n, p)."""
    return np.concatenate(
        [np.zeros((shape.p, shape.p)), *(r.reshape(r.shape[0] * r.shape[1], shape.p) for r in R)]
    )


class Evaluator:
    """Noisy score and information of the tempered log-likelihood in ψ.

    Parameters
    ----------
    measure : Measurements
        Asked, and paid, for everything.
    shape : Shape
    n_units : float
        About.
    tempering : float
        T.
    """

    def __init__(self, measure: Measurements, shape: Shape, n_units: float, tempering: float):
        self.measure, self.shape, self._n, self._tempering = measure, shape, n_units, tempering

    def coupling(self, theta: Vector, share: float) -> list[Vector]:
        """How nearly scores in φ and in rows are one and the same, root mean square, between 0 and 1, shape (columns, p) of every table."""
        p = self.shape.p
        of = Coupling(theta, self.shape)
        if not of.dimension:
            return [np.zeros((r, p)) for _, r in self.shape.tables]
        released, sd = self.measure.sum(of, math.sqrt(of.dimension), share)
        seen = np.sqrt(np.clip(np.maximum(released, sd) / self._n, 0.0, 1.0))
        ends = np.cumsum([r * p for _, r in self.shape.tables])
        return [x.reshape(-1, p) for x in np.split(seen, ends[:-1])]

    def curvature(
        self, theta: Vector, psi: Vector, preconditioner: Preconditioner, counts: float, share: float, beyond: float,
        features: tuple[Vector, ...],
    ) -> Curvature:  # fmt: skip
        """Information at θ, where ψ is this, for `share`; its bound by a histogram, for `counts`."""
        shape, T = self.shape, self._tempering
        of = GroupInformation(theta, preconditioner, shape, tempering=T)
        for_shared = _OF_SHARED * share
        bound, *_ = self._bound(of, counts, share - for_shared, beyond)
        released, sd = self.measure.sum(of, bound, share - for_shared)
        common, rows, cross = of.matrices(released)
        whole = SharedInformation(theta, preconditioner, shape, tempering=T, features=features)
        longer = max(float(np.mean(np.sum(f**2, axis=2))) for f in features)
        packed, sd_shared = self.measure.sum(whole, longer * bound, for_shared)
        widths = [math.prod(features[k].shape[1:]) for k in shape.uses]
        shared = as_matrix(packed, shape.p + sum(widths))
        sds = {
            "common": sd / math.sqrt(len(shape.uses)), "rows": sd, "cross": sd / math.sqrt(2), "shared": sd_shared,
        }  # fmt: skip
        return Curvature(psi, preconditioner, common, rows, cross, shared, features, sds)

    def slope(
        self, theta: Vector, psi: Vector, preconditioner: Preconditioner, counts: float, share: float, beyond: float,
        other: Elsewhere | None, parts: Sequence[Vector],
    ) -> Slope:  # fmt: skip
        """Score at θ, where ψ is this, for `share`; its bound by a histogram, for `counts`.

        If another place is given, it is seen from there, too, and totals tell what all rows of a table add up to. Clipped scores tell less of where the mode is than
        their information says, and are made longer by that: rows', by what is seen of every column as far as that is beyond noise, and where there are no totals φ's, as if all
        directions lost alike. What was clipped may point one way: each of the units clipped has one row only, so rows have `parts` of it, shape (groups, columns) of every table.
        """
        shape = self.shape
        of = GroupScore(theta, preconditioner, shape, math.inf, self._tempering, other)
        b, beyond_it, sizes = self._bound(of, counts, share, beyond)
        b = max(b, SHORTEST / math.sqrt(self._n))  # units are about 1/√n long, as scales have it
        of, usually = replace(of, bound=b), sizes.kept(b)
        of_columns, steepness, unsure = self._steepness(of, usually, _OF_STEEPNESS * share)
        released, sd = self.measure.sum(of, b, (1 - _OF_STEEPNESS) * share)
        kept, clipped, p, n = (
            shape.in_columns @ of_columns,
            _OF_CLIPPED * beyond_it * b,
            shape.p,
            shape.n,
        )
        kept_of_common = 1.0 if of.totals else usually
        scales, part = preconditioner.of_rows(shape), np.concatenate([np.ravel(x) for x in parts])
        of_clipped, A = clipped * part / (kept * scales), shape.in_columns[:, : of.totals]
        variance = (sd / (kept * scales)) ** 2 + of_clipped**2
        longer = np.sqrt(A.sum(axis=0)) / np.concatenate(preconditioner.scales)[: of.totals]
        rows, U, M = with_totals(
            released[p:n] / (kept * scales),
            variance,
            A * of_clipped[:, None],
            A,
            longer * released[n:],
            (longer * sd) ** 2,
        )
        back, R = np.linalg.inv(kept_of_common * preconditioner.V), flat(preconditioner.R, shape)
        gradient = np.concatenate([back.T @ released[:p], rows])
        covariance = (sd**2 + clipped**2 / n) * back.T @ back
        return Slope(psi, R, gradient, covariance, variance, U, M, sizes.seen, steepness, unsure)

    def _steepness(
        self, of: GroupScore, usually: float, share: float
    ) -> tuple[Vector, Vector, Vector]:
        """What clipping leaves of every column's scores, their information there, and the variance of its logarithm, shape (columns,).

        All scores together keep a part `usually`: a column may lose as much more or less than that, before it is seen, as all lose.
        """
        released, sd = self.measure.sum(Steepness(of), _LONGEST_SQUARE * of.bound**2, share)
        left, squares, information = np.maximum(released, sd).reshape(3, self.shape.r)
        doubt, noise = (1 - usually) ** 2, 2 * (sd / squares) ** 2
        kept = usually + (left / squares - usually) * doubt / (doubt + noise)
        scales = np.concatenate(of.preconditioner.scales)
        return np.clip(kept, _LEAST_KEPT, 1.0), information / scales**2, (sd / information) ** 2

    def _bound(
        self, of: Query, counts: float, share: float, beyond: float
    ) -> tuple[float, float, PrivateHistogram]:
        """A bound, how long all that it clips is together, over the bound and if it points one way, and the sizes that were counted."""
        sizes = self.measure.histogram(of, counts, BINS_PER_OCTAVE)
        number = number_beyond(beyond, self.shape.n, self.measure.multiplier(share), self._n)
        bound, excess = Tail(sizes.released, sizes.sd).exceeded_by(number)
        return bound, number * excess, sizes
