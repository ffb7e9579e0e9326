r"""Noisy score and information at a place, in coordinates in which the posterior is about white.

The *whitening matrix* V is invertible and public: in its coordinates a unit's score is :math:`V^\top \nabla\ell_i`, clipped in norm
there, so that noise is the same in all of its directions. White, :math:`V V^\top = P^{-1}` with P the posterior's precision,
it hurts all parameters alike.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pymc_dp.linalg import Vector, as_matrix
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Gradient, Information, Query, Root, Score
from pymc_dp.surrogate.normal.bounds import (
    BINS_PER_OCTAVE,
    SHORTEST,
    Tail,
    number_beyond,
    pooled,
)

_BEYOND_INFORMATION = 1.0
"""So many times √d z units have more information than its bound, z the noise's sd in the sum / sensitivity: all that is clipped of them
points in one direction."""
_OF_MOST = 12.0
"""So many times the information of the unit in the middle, and no more of any unit's, is made up for where noise makes the bound short. Of counts whose rates vary by 60 %, in 43 numbers, posteriors are 1.18 times as wide as exact ones,
noise aside, if only that unit is made up for, and about as wide with this. Real data whose coordinates noise hides, of 3 noises each: with 4 errors at ε = 3 are 1.6 (visits to doctors) and 1.4 times as large (students' days);
without any limit at ε = 1 students' days have reported sds of .4 to .9 exact ones, and are 2.2 of these off."""
_OF_SCORES = 0.6
"""Of a share for sizes, the part for those of scores; the rest is for those of information."""
_WIDE = 4
"""Octaves of information that a bin holds at a pure ε. With half octaves, of 20,000 records at ε = .3 nothing was seen."""
_SEEN = 5.5
"""In sds of the noise, the window of bins that is seen. Of 160 bins, five widths and ten parameters noise alone makes at most one run
in six thousand see one, with 4.75 one in 120, by adding probabilities up: one of twelve did, and said that it knew a parameter to a thousandth of
its sd. With 3.5 for single bins it was one in four, and a parameter in units 2^20 times off was lost."""
_BESIDE, _NEARBY = 3.0, 8
"""Bins so near to it are counted in if they stand out by this."""
_WINDOWS = (1, 2, 4, 8, 16)
_WIDE_WINDOWS = (1, 2)
"""Of wide bins, and one beside them: eight are 32 octaves, where one run in 400 took noise for units 2^20 times as large."""
_WITHOUT_SIZE = 20
"""First bins, of sizes below 2^-50: parameters that no record tells of."""


_ONE_WAY = 3.0
"""In sds of the noise in one direction, what clipping may take there, if all of it points one way, where counts show that units are longer than the model
says; where they do not, √d of them. Of wages in 46 numbers what is clipped lowers log α by 4.8 of its own sds at ε = 1 without, by 2.6 with this; of counts of
visits in 44, all are off by 1.5 and .9 (4 and 5 noises). With twice and half as much errors in visits are .98 and .69 of those without, with this .82; but with half as much 3 of 5 runs of
students' days in 30 numbers are not usable at ε = 3, all with this. Of 50 right coefficients errors are the same (6 runs): next to nothing is lost in them."""


_USUAL_CLIPPED = 3.0
"""Where sizes are not asked for: of a bound of c√(d/n), which is c root mean squares of scores in whitened coordinates, the error
is about so many posterior sds over c³, as of an estimate that uses its data less well. The bound makes that and noise, which is as c,
least in squares: then it is the noise over √3."""
USUAL_INFORMATION = 4.0
"""Its bound then, in parts of d/n, which is the mean."""


@dataclass(frozen=True)
class Parts:
    """How a share is divided: sizes, scores, information.

    `room` is noise in the information, times √d, that needs not be less: its bound is as long as that allows, for units
    that are so few that counts do not show them.
    """

    sizes: float
    scores: float
    information: float
    room: float
    kept: Literal["matrix", "diagonal", "nothing"] = "matrix"


@dataclass(frozen=True)
class Evaluation:
    r"""Answers of the records at a place, in whitened coordinates. Nothing in it is private.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    V : ndarray, shape (d, d)
    bound : float
        b, of scores.
    score : ndarray, shape (d,)
        Sum of :class:`~pymc_dp.records.queries.Score`.
    noise, sd : float
        Standard deviation of the noise in each entry of it, and that with what clipping may have taken.
    information, kept : ndarray, shape (d, d)
        Sums of :class:`~pymc_dp.records.queries.Information`.
    kept_is_diagonal : bool
        Whether the diagonal of the latter is all that was asked for.
    information_sd : float
        Of the noise on the diagonals; √½ of it elsewhere.
    largest : float
        Information of a unit, beyond which there are next to none.
    information_clip : float
        C, that units' information was clipped to.
    sizes, sizes_of_information : tuple of PrivateHistogram
        What bounds were chosen by.
    saturated : bool
        Whether units' information is so much longer than a bound that was not chosen by sizes that its sum says little of it.
    """

    theta: Vector
    V: Vector
    bound: float
    score: Vector
    noise: float
    sd: float
    information: Vector
    kept: Vector | None
    kept_is_diagonal: bool
    information_sd: float
    largest: float
    information_clip: float
    sizes: tuple[PrivateHistogram, ...]
    sizes_of_information: tuple[PrivateHistogram, ...]
    saturated: bool


class Evaluator:
    """What all queries of a run have in common.

    Parameters
    ----------
    measure : Measurements
    n_units : float
        About.
    tempering : float
        T.
    """

    def __init__(self, measure: Measurements, n_units: float, tempering: float):
        self.measure, self.n_units, self._tempering = measure, n_units, tempering

    def at(
        self,
        theta: Vector,
        V: Vector,
        share: float,
        parts: Parts,
        before: Evaluation | None = None,
        least: tuple[float, float] = (0.0, 0.0),
        by_last_sum: bool = False,
    ) -> Evaluation:
        """Ask for everything at a place.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        V : ndarray, shape (d, d)
        share : float
        parts : Parts
        before : Evaluation, optional
            Of a place so near that sizes are about the same: its histograms are counted in.
        least : tuple of float
            Bounds that scores and units' information need at least.
        by_last_sum : bool
            Ask for scores at the end, for all that the share leaves.
        """
        d, T, measure = len(theta), self._tempering, self.measure
        usual, ways = math.sqrt(d / self.n_units), float(d)
        of_sizes = share * parts.sizes
        for_scores, for_information = share * parts.scores, share * parts.information

        sizes = self._counted(
            Gradient(theta, V, T), _OF_SCORES * of_sizes, before.sizes if before else None
        )
        if sizes:
            sd = (
                measure.last_noise_sd(1.0, d)
                if by_last_sum
                else measure.noise_sd(1.0, for_scores, d)
            )
            lengths, most = Tail(*pooled(sizes)), self.n_units / 3
            b, clipped = lengths.balanced(math.sqrt(ways) * sd, most)
            if before:  # coordinates are about white
                ways = max(min(d, _ONE_WAY**2), d / max(1.0, lengths.lost(b)))
                b, clipped = lengths.balanced(math.sqrt(ways) * sd, most)
            b = max(b, least[0], SHORTEST * usual)
        else:
            b = (
                usual
                * (3 * _USUAL_CLIPPED**2 / (usual * measure.noise_sd(1.0, for_scores, d)) ** 2)
                ** 0.125
            )
        if not by_last_sum:
            score, noise = measure.sum(Score(theta, V, b, T, not sizes), b, for_scores)
        of = Information(theta, V, b, T, parts.kept)
        sizes_of_information = self._counted(
            of, (1 - _OF_SCORES) * of_sizes, before.sizes_of_information if before else None
        )
        D = of.dimension
        if sizes:
            number = number_beyond(
                _BEYOND_INFORMATION, d, measure.multiplier(for_information, D), self.n_units
            )
            tail = Tail(*pooled(sizes_of_information))
            largest, _ = tail.exceeded_by(number)
        else:
            largest = USUAL_INFORMATION * usual**2
        # Wider, noise would drown all directions but one; clipped, the next coordinates show more of it.
        for_one = 1 / (math.sqrt(d) * measure.noise_sd(1.0, for_information, D))
        C = min(max(largest, least[1], parts.room * for_one), math.sqrt(2) * for_one)
        packed, information_sd = measure.sum(of, C, for_information)
        if sizes:
            # What noise makes most units lose is not lost, as counts show it; what few lose, who alone may tell of a parameter, is.
            usually, _ = tail.exceeded_by(self.n_units / 2)
            of_most, left = tail.clipped_to(min(largest, _OF_MOST * usually)), tail.clipped_to(C)
            scale = max(1.0, of_most / left) if left > 0 else 1.0
            packed, information_sd = scale * packed, scale * information_sd
        half, rest = np.split(packed, [d * (d + 1) // 2])
        information, kept = as_matrix(half, d), None
        if parts.kept == "matrix":
            kept = as_matrix(rest, d)
        elif parts.kept == "diagonal":
            kept = np.diag(rest)
        if by_last_sum:
            score, noise = measure.last_sum(Score(theta, V, b, T), b)
        off = clipped / math.sqrt(ways) if sizes else noise / math.sqrt(3)
        return Evaluation(
            theta, V, b, score, noise, math.hypot(noise, off), information, kept,
            parts.kept == "diagonal", information_sd, largest, C, sizes,
            sizes_of_information, not sizes and float(np.trace(information)) > self.n_units * C / 2,
        )  # fmt: skip

    def _counted(
        self, of: Query, share: float, before: tuple[PrivateHistogram, ...] | None
    ) -> tuple[PrivateHistogram, ...]:
        """Counts of sizes: those of before, and fresh ones if there is a share for them."""
        fresh = (self.measure.histogram(of, share, BINS_PER_OCTAVE),) if share else ()
        return (*(before or ()), *fresh)

    def squares(self, theta: Vector, share: float) -> Vector:
        """Sums of the squares of units' scores in every parameter, shape (d,); 0 where nothing stands out of the noise.

        By a histogram for each: what units parameters are in, before anything else is known. At a pure ε of the squares that the
        model expects, which are the information, in bins that are wide: counts are dear, and what they say is scaled soon.

        Of a category few units tell, and noise hides them. One more histogram, of scores in all such parameters together and of as large a share as all others have, says what they
        have in the mean: of 44 numbers and 6,127 people at ε = 1 one of a smaller share saw nothing in 2 of 3 runs. With the prior's units, in which the posterior is many times narrower, these scores alone would make the length
        of a unit's: of 32 categories and three covariates at ε = 1 the covariates were six to eight of their own sds off.
        """
        d = len(theta)
        found = np.array([self._square(theta, e, share / d) for e in np.eye(d)])
        unseen = found == 0
        if unseen.any() and not self.measure.pure:
            found[unseen] = self._square(theta, unseen, share) / unseen.sum()
        return found

    def _square(self, theta: Vector, which: Vector, share: float) -> float:
        """Sum of the squares of units' scores in some parameters together; 0 where nothing stands out of the noise."""
        V, T, pure = np.diag(which).astype(float), self._tempering, self.measure.pure
        of: Query = Gradient(theta, V, T)
        if pure:
            of = Root(Information(theta, V, math.inf, T, "nothing"), _WIDE)
        per_octave, power = (1, _WIDE / 2) if pure else (BINS_PER_OCTAVE, 1.0)
        windows, nearby = (_WIDE_WINDOWS, 1) if pure else (_WINDOWS, _NEARBY)
        edges = PrivateHistogram.edges(per_octave)
        histogram = self.measure.histogram(of, share, per_octave)
        counts, sizes = histogram.released, (edges[:-1] * edges[1:]) ** power
        seen = _seen(counts, histogram.sd, windows, nearby)
        return max(float(counts[seen] @ sizes[seen]), 0.0)


def _seen(counts: Vector, sd: float, windows: tuple[int, ...], nearby: int) -> Vector:
    """Which bins hold units: the window that stands out most, and what stands out beside it; none if none does."""
    counts = counts.copy()
    counts[:_WITHOUT_SIZE] = 0
    upto, best = np.concatenate([[0.0], np.cumsum(counts)]), _SEEN
    seen, places = np.zeros(len(counts), dtype=bool), np.arange(len(counts))
    for width in windows:
        z = (upto[width:] - upto[:-width]) / (sd * math.sqrt(width))
        k = int(np.argmax(z))
        if z[k] > best:
            best = float(z[k])
            beside = (places >= k - nearby) & (places < k + width + nearby)
            seen = (beside & (counts > _BESIDE * sd)) | ((places >= k) & (places < k + width))
    return np.asarray(seen)
