"""Where people stand at released draws: noisy means of what is asked of them, and of what these depend on the draw by."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_dp.assessment.paid import OwnRecords
from pymc_dp.assessment.predictive import Squares
from pymc_dp.assessment.quantities import Quantities
from pymc_dp.linalg import Vector, as_matrix, mean_if_positive
from pymc_dp.privacy.clipping import in_silence
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import Units
from pymc_dp.records.sums import KeptChunks

# Of the budget. What is left of it, about two thirds, is for the sum of where people stand.
_OF_SIZES, _OF_MOMENTS, _OF_LENGTHS = 0.06, 0.04, 0.06
_OF_SQUARES, _OF_SPREADS, _OF_DRAWS = 0.06, 0.03, 0.08
_MOST = 0.9
"""Share of the units whose numbers are not clipped for a rough mean and variance: what is rare says little of these."""
_RANK = 1e-8
"""Singular values beside the largest that are rounding."""


class People(OwnRecords):
    """Units' numbers at released draws, as their means and what they vary by."""

    def __init__(self, quantities: Quantities, theta: Vector):
        self._quantities, self._theta = quantities, theta
        self._kept = KeptChunks()

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self._quantities.n_units

    def _numbers(self) -> Iterator[Vector]:
        """Chunks of shape (draws, units, numbers)."""
        return self._kept(self._theta, lambda: self._quantities.at(self._theta), lambda F: F.nbytes)

    @cached_property
    def means(self) -> Vector:
        """Over draws, shape (units, numbers). Private."""
        with in_silence():
            return np.concatenate([F.mean(axis=0) for F in self._numbers()])

    def deviations(self, of: Vector) -> Iterator[Vector]:
        """Of combinations of the numbers, at every draw from its mean: chunks of shape (units, draws × combinations)."""
        for F in self._numbers():
            d = (F - F.mean(axis=0)) @ of.T
            yield _finite(d.transpose(1, 0, 2).reshape(d.shape[1], -1))


def _finite(x: Vector) -> Vector:
    """0, the middle, in place of what could not be computed."""
    return np.where(np.isfinite(x), x, 0.0)


@dataclass(frozen=True, eq=False)
class _Size:
    """How large one of the numbers is."""

    place: int
    dimension = None

    def terms(self, records: People, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        yield records.means[:, self.place]


@dataclass(frozen=True, eq=False)
class _Moments:
    """Some numbers, clipped to sizes that they are divided by, and their squares: of norm √(2 sizes) at most."""

    places: list[int]
    sizes: Vector

    @property
    def dimension(self) -> int:
        """Two of each."""
        return 2 * len(self.places)

    def terms(self, records: People, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        x = np.clip(_finite(records.means[:, self.places] / self.sizes), -1.0, 1.0)
        yield np.concatenate([x, x**2], axis=1)


@dataclass(frozen=True, eq=False)
class Standing:
    """Where units stand: :math:`u_i = A m_i - b`, with m their numbers' means over draws.

    Parameters
    ----------
    A : ndarray, shape (entries, numbers)
    b : ndarray, shape (entries,)
    by_draw : ndarray, shape (entries,)
        What :class:`Deviations` are multiplied by, to be of like size.
    """

    A: Vector
    b: Vector
    by_draw: Vector

    @property
    def dimension(self) -> int:
        """Entries."""
        return len(self.A)

    def terms(self, records: People, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        yield _finite(records.means @ self.A.T - self.b)


@dataclass(frozen=True, eq=False)
class Deviations:
    """How combinations of units' numbers depend on the draw: :math:`A (F_{is} - m_i)`, draw after draw.

    Parameters
    ----------
    A : ndarray, shape (entries, numbers)
    draws : int
    """

    A: Vector
    draws: int

    @property
    def dimension(self) -> int:
        """Draws times entries."""
        return self.draws * len(self.A)

    def terms(self, records: People, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        return records.deviations(self.A)


class Rough(NamedTuple):
    """What is roughly known of a number: enough to centre and scale it.

    Parameters
    ----------
    centre, scale : float
        Its mean and standard deviation over people, about.
    by_size : float
        The scale, by the size that most do not exceed.
    largest : float
        Hardly any is larger in size. Infinite, as is the scale, if none stood out of the noise.
    """

    centre: float
    scale: float
    by_size: float
    largest: float


def look_roughly(places: list[int], measure: PaidMeasurements, n: float) -> dict[int, Rough]:
    r"""Release rough sizes, means and variances of J numbers.

    **Sensitivity**: √κ of every histogram, :math:`\kappa \sqrt{2J}` in L2 norm of sums of clipped numbers and their squares.

    Parameters
    ----------
    places : list of int
        Of the numbers.
    measure : PaidMeasurements
    n : float
        How many units there are.
    """
    sizes = [measure.histogram(_Size(k), _OF_SIZES / len(places), 1) for k in places]
    size = np.array([h.quantile(_MOST) for h in sizes])
    total, sd = measure.sum(_Moments(places, size), math.sqrt(2 * len(size)), _OF_MOMENTS)
    first, second = np.clip(total.reshape(2, -1) / n, -1.0, 1.0)
    uncertain = sd / n * np.sqrt(1 + 4 * first**2)
    found = {}
    for k, h, unit, mean, square, error in zip(
        places, sizes, size, first, second, uncertain, strict=True
    ):
        spread = math.sqrt(mean_if_positive(square - mean**2, error))
        seen = Rough(unit * mean, unit * spread, spread, h.largest)
        found[k] = seen if h.seen else Rough(0.0, math.inf, 1.0, math.inf)
    return found


@dataclass(frozen=True, eq=False)
class Learnt:
    """What was released of entries u, as means over people.

    Parameters
    ----------
    mean : ndarray, shape (entries,)
    noise_sd : float
        Of the noise in each of these, and of what was clipped.
    people : ndarray, shape (entries, entries)
        Covariance of the means of as many other people.
    T : ndarray, shape (draws, entries)
        What the means depend on the draw by.
    T_sd : ndarray, shape (draws, entries)
        What of that is not known.
    """

    mean: Vector
    noise_sd: float
    people: Vector
    T: Vector
    T_sd: Vector

    def replicates(self, many: int, rng: np.random.Generator) -> Vector:
        """The entries of every draw, with all that is uncertain, shape (many, draws, entries)."""
        size = (many, *self.T.shape)
        values, vectors = np.linalg.eigh(self.people)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        people = rng.standard_normal(size) @ root.T
        own = rng.standard_normal(size) * np.hypot(self.noise_sd, self.T_sd)
        return np.asarray(self.mean + self.T + people + own)


def learn(
    entries: Standing,
    moving: NDArray[np.bool_],
    theta: Vector,
    measure: PaidMeasurements,
    n: float,
    population: bool,
) -> Learnt:
    r"""Release sums of where units stand, of products of that, and of what it depends on the draw by.

    **Sensitivity**: in L2 norm κB of the first, :math:`\sqrt\kappa B^2` of the second, κ times a bound of their own of the third; √κ of two
    histograms that bounds are chosen from.

    Parameters
    ----------
    entries : Standing
    moving : ndarray of bool, shape (entries,)
        Which depend on the draw.
    theta : ndarray, shape (draws, d)
    measure : PaidMeasurements
    n : float
        Number of units.
    population : bool
        Whether products are asked for.
    """
    E, S = entries.dimension, len(theta)
    kept = (_OF_SQUARES if population else 0.0) + (_OF_SPREADS + _OF_DRAWS if moving.any() else 0.0)
    lengths = measure.histogram(entries, _OF_LENGTHS)
    rest = 1 - measure.spent - kept
    B = _bound(lengths, measure.noise_sd(1.0, rest), 4 * math.sqrt(E))
    total, sd = measure.sum(entries, B, rest)
    mean, excess = total / n, lengths.excess(B) if lengths.seen else 0.0
    people = np.zeros((E, E))
    if population:
        packed, squares_sd = measure.sum(Squares(entries, B), B**2, _OF_SQUARES)
        # Not less than it could be.
        second = as_matrix(packed, E) / n - np.outer(mean, mean)
        values, vectors = np.linalg.eigh(second)
        people = (vectors * mean_if_positive(values, squares_sd / n)) @ vectors.T / n
    T, T_sd = np.zeros((S, E)), np.zeros((S, E))
    if moving.any():
        factor = entries.by_draw[moving]
        of = Deviations(factor[:, None] * entries.A[moving], S)
        spreads = measure.histogram(of, _OF_SPREADS)
        unit = measure.noise_sd(1.0, 1 - measure.spent)
        b = _bound(spreads, unit, math.sqrt(S * moving.sum()))
        packed, T_noise = measure.sum(of, b, 1 - measure.spent)
        packed = packed.reshape(S, -1) / (n * factor)
        T[:, moving], T_sd[:, moving] = _smoothed(packed, T_noise / (n * factor), theta)
    return Learnt(mean, math.hypot(sd, excess) / n, people, T, T_sd)


def _bound(sizes: PrivateHistogram, noise: float, unseen: float) -> float:
    """By balance of noise and of what is clipped; where nothing was seen, a given one."""
    if not sizes.seen:
        return unseen
    return sizes.balanced(noise, np.geomspace(sizes.quantile(0.5), sizes.largest, 200))


def _smoothed(T: Vector, sd: Vector, theta: Vector) -> tuple[Vector, Vector]:
    r"""What to believe of means at draws that were seen with noise, and its standard deviation, both (draws, entries).

    :math:`T = T_1 + T_2`, a linear function of θ and a quadratic one that is orthogonal to it, of :math:`r_1` and
    :math:`r_2` dimensions. Each is taken for normal with the size that it has beyond that of its noise,
    :math:`|T_j|^2 - r_j \sigma^2`; so draws vary as they would without noise, however long θ is.
    """
    mean, variance = np.zeros_like(T), np.zeros_like(T)
    for U in _bases(theta):
        part, r = U @ (U.T @ T), U.shape[1]
        beyond = (part**2).sum(axis=0) - r * sd**2
        uncertain = sd * np.sqrt(2 * r * sd**2 + 4 * np.maximum(beyond, 0.0))
        size = np.array([mean_if_positive(x, u) for x, u in zip(beyond, uncertain, strict=True)])
        rho = size / (size + r * sd**2)
        mean += rho * part
        variance += rho * sd**2 * (U**2).sum(axis=1)[:, None]
    return mean, np.sqrt(variance)


def _bases(theta: Vector) -> list[Vector]:
    """Orthonormal bases of linear and of quadratic functions at draws, both of mean 0 and shape (draws, dimensions)."""
    S, d = theta.shape
    z = (theta - theta.mean(axis=0)) / np.maximum(theta.std(axis=0), 1e-300)
    linear = _span(z)
    if linear.shape[1] >= S - 1:
        return [linear]
    i, j = np.triu_indices(d)
    # Beyond so many, quadratic functions can take any values at the draws.
    further = z[:, i] * z[:, j] if len(i) < S else np.eye(S)
    further = further - further.mean(axis=0)
    return [linear, _span(further - linear @ (linear.T @ further))]


def _span(columns: Vector) -> Vector:
    U, d, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(U[:, d > _RANK * d.max(initial=0.0)])
