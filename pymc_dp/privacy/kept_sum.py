"""A sum over records that is made once and released many times, along a new direction each time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.clipping import RESOLUTION, in_silence
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_bound, check_multiplier, release
from pymc_dp.privacy.plans import Permit

_MANTISSA = 53


@dataclass(frozen=True)
class Direction:
    r"""A direction g in whole numbers, on a grid on which its sensitivity is exact.

    Parameters
    ----------
    weights : tuple of int
        :math:`w_j`, g in units of :math:`2^e`; the largest has 53 bits.
    step : int
        :math:`q`: the projected sum :math:`\sum_j w_j T_j` is divided by it, so that a unit moves the
        quotient by at most κ :data:`~pymc_dp.privacy.clipping.RESOLUTION`.
    bound : float
        B = :math:`q\,2^e`: a κ-th of what a unit moves the released number by, at most. The noise has
        standard deviation :math:`z \cdot \kappa B`.
    neighbours : Neighbours
        That of which this holds, with its κ.
    """

    weights: tuple[int, ...]
    step: int
    bound: float
    neighbours: Neighbours = SUBSTITUTE_ONE


def direction(
    g: NDArray[np.float64],
    spread: float,
    records_per_unit: int,
    neighbours: Neighbours = SUBSTITUTE_ONE,
) -> Direction:
    r"""The direction `g`, on its grid.

    With R = :data:`~pymc_dp.privacy.clipping.RESOLUTION`, a record whose vector is v adds
    :math:`t = \operatorname{rint}(R v)` to the sum. Replacing v by v′ moves :math:`\sum_j w_j t_j` by
    at most :math:`R\,|g^\top(v - v')| / 2^e`, and by what is rounded: :math:`\sum_j |w_j|` for the two
    t, and far less than that again for w, v and `spread`, which have 50 bits or more. So
    :math:`\Delta = \lceil R \cdot \text{spread} / 2^e \rceil + 2 \sum_j |w_j|` bounds it, and mΔ for
    a unit of m records. Truncation to multiples of :math:`q = \lceil m\Delta / \kappa R \rceil` turns a
    difference of at most κRq into one of at most κR. Adding a record is replacing v′ = 0. Everything here is even or odd in g: both
    directions of a move have the same grid.

    Parameters
    ----------
    g : ndarray, shape (d,)
        Finite, and not 0.
    spread : float
        What :math:`|g^\top (v - v')|` is at most, for any two vectors that a record can have; under
        add-or-remove :math:`|g^\top v|`.
    records_per_unit : int
        m, the most that a unit has. Public.
    neighbours : Neighbours

    Returns
    -------
    Direction
    """
    exponent = math.frexp(float(np.abs(g).max()))[1] - _MANTISSA
    weights = tuple(round(math.ldexp(x, -exponent)) for x in g.tolist())
    one_record = math.ceil(RESOLUTION * math.ldexp(spread, -exponent)) + 2 * sum(map(abs, weights))
    step = -(-records_per_unit * one_record // int(neighbours.of_sum(RESOLUTION)))
    return Direction(weights, step, math.ldexp(step, exponent), neighbours)


class KeptSum:
    r"""Sum of the records' vectors in whole numbers, made when it is first paid for, then kept.

    Released along a direction g, each time with fresh noise, it is

    .. math:: \textstyle\sum_i g^\top v_i + \mathcal N(0, (z \cdot \kappa B)^2)

    at a cost that does not depend on the number of records. **Neighbouring relation**: the direction's;
    numbers of records of a unit are public. **Sensitivity**: κB, by :func:`direction`. **Guarantee**: one ``Gaussian(noise_multiplier)`` event per release, as in
    :func:`~pymc_dp.privacy.noisy_sum.noisy_sum` (Canonne, Kamath and Steinke, 2020, Theorems 4 and 7).

    The sum is private: it never leaves the process, and is left out of pickles.

    Parameters
    ----------
    vectors : callable
        ``() ->`` chunks of records' vectors, shape (records, d), entries in [-1, 1]; what is outside is
        clipped, NaN counts as 0. Called once, after the first permit is taken.
    size : int
        d.
    """

    def __init__(self, vectors: Callable[[], Iterable[NDArray[np.float64]]], size: int):
        self._vectors, self._size = vectors, size
        self._total: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_total": None}

    def release(
        self,
        along: Direction,
        *,
        noise_multiplier: float,
        permit: Permit,
        noise: NoiseSource,
    ) -> float:
        """The sum along a direction, with noise.

        Parameters
        ----------
        along : Direction
            Must be a function of earlier releases and settings only.
        noise_multiplier : float
            z; 0 is allowed from an insecure noise source only.
        permit : Permit
            Must still contain this release.
        noise : NoiseSource

        Raises
        ------
        PrivacyConfigurationError
            If the bound or the multiplier is out of range.
        PrivacyBudgetExceeded
            If the permit does not cover this release; no data have been read for it then.
        """
        check_bound(along.bound)
        check_multiplier(noise_multiplier, noise)
        (quotient,) = release(
            lambda _: self._projected(along),
            Gaussian(noise_multiplier),
            along.neighbours.noise_sd(RESOLUTION, noise_multiplier),
            permit,
            noise,
        )
        return float(quotient * (along.bound / RESOLUTION))

    def _projected(self, along: Direction) -> NDArray[Any]:
        """The sum along a direction on its grid: of Python's own integers, which have any size."""
        if self._total is None:
            self._total = self._sum()
        projected = sum(w * t for w, t in zip(along.weights, self._total, strict=True))
        return np.array([abs(projected) // along.step * (1 if projected > 0 else -1)], dtype=object)

    def _sum(self) -> list[int]:
        """Exact: whole numbers of at most RESOLUTION each, fewer than 2^36 of them."""
        total = np.zeros(self._size, dtype=np.int64)
        with in_silence():
            for chunk in self._vectors():
                inside = np.clip(np.nan_to_num(chunk, nan=0.0), -1.0, 1.0)
                total += np.rint(RESOLUTION * inside).astype(np.int64).sum(axis=0)
        return [int(t) for t in total]
