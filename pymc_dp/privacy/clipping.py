"""Clipping to a norm bound and summation in fixed point.

A record's contribution is mapped to integers before it is summed, so that the sum is exact,
does not depend on the order of the records, and has the sensitivity it has on paper. Floating
point sums do not (Casacuberta, Shoham, Vadhan and Wagner, 2022).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray


def in_silence() -> np.errstate:
    """Around whatever reads records: a floating point warning, or error, would tell of the one that caused it.

    Every release draws its terms within it, so that what computes them need not think of it.
    """
    return np.errstate(all="ignore")


RESOLUTION = 2**26
"""Integer that stands for one clipping bound B: a unit adds at most this much to the sum."""

# Rounding in the computed norm of a d-vector is below (d + 2) 2^-53, 2^-36.9 at most, in the factor of a vector that
# is clipped below 2^-22 (single precision). Scaling down by this much keeps the norm of the integer
# vector under RESOLUTION for any d up to MAX_DIMENSION.
_SHRINK = 1.0 - 2.0**-36
_SHRINK_CLIPPED = 1.0 - 2.0**-21
MAX_DIMENSION = 2**16
MAX_LENGTH = 2**20
"""Numbers of a sum of which a unit adds to few, at most: every one of them gets its own noise."""


class Sparse(NamedTuple):
    """Vectors of many entries, of which every unit has a few.

    Parameters
    ----------
    values : ndarray, shape (units, nonzeros)
    places : ndarray of int64, shape (units, nonzeros)
        Where they are in the vector; increasing for every unit.
    """

    values: NDArray[np.float64]
    places: NDArray[np.int64]


# A vector longer than this many bounds goes a slower way: its square does not fit single precision.
_LONG = 1e15

# Vectors are clipped a tile at a time, so that the work stays in cache.
_TILE = 1024


# The scaled terms fit 32 bits, and integers may be added in any order: without any relaxed
# floating point the compiler can run these loops in vector registers.
@numba.njit(cache=True, error_model="numpy")
def _add_clipped_scalars(terms, bound, resolution, total):  # type: ignore[no-untyped-def]
    per_unit = resolution / bound
    for i in range(terms.shape[0]):
        scaled = terms[i] * per_unit
        scaled = scaled if scaled == scaled else 0.0
        # Clipping the scaled value, rather than the term, makes |integer| <= resolution hold
        # whatever the rounding of the product.
        total[0] += np.int32(min(max(scaled, -resolution), resolution))


@numba.njit(cache=True, error_model="numpy")
def _add_clipped_vectors(entries, bound, resolution, total):  # type: ignore[no-untyped-def]
    """Add the columns of `entries`, one tile after the other."""
    factor = np.empty(_TILE)
    for start in range(0, entries.shape[1], _TILE):
        stop = min(start + _TILE, entries.shape[1])
        _add_tile(entries, start, stop, bound, resolution, factor[: stop - start], total)


# A vector's integers depend on that vector alone, whichever branch its tile takes.
@numba.njit(cache=True, error_model="numpy")
def _add_tile(entries, start, stop, bound, resolution, factor, total):  # type: ignore[no-untyped-def]
    d, n = entries.shape[0], stop - start
    per_bound = 1.0 / bound
    unclipped = resolution * _SHRINK / bound
    clipped = resolution * _SHRINK_CLIPPED / bound
    factor[:] = 0.0
    for k in range(d):
        row = entries[k][start:stop]
        for i in range(n):
            relative = row[i] * per_bound
            factor[i] += relative * relative
    usual = short = True
    for i in range(n):
        usual &= factor[i] < _LONG**2  # false for NaN
        short &= factor[i] <= 1.0
    for i in range(n):
        squares = factor[i]
        inverse_norm = np.float32(1.0) / np.sqrt(np.float32(squares))
        scale = unclipped if squares <= 1.0 else clipped * inverse_norm
        factor[i] = scale if squares < _LONG**2 else 0.0
    for k in range(d):
        row = entries[k][start:stop]
        subtotal = np.int64(0)
        if short:
            for i in range(n):
                subtotal += np.int32(row[i] * unclipped)
        elif usual:
            for i in range(n):
                subtotal += np.int32(row[i] * factor[i])
        else:
            for i in range(n):
                if factor[i] != 0.0:
                    subtotal += np.int32(row[i] * factor[i])
        total[k] += subtotal
    if not usual:
        _add_long(entries[:, start:stop], bound, resolution * _SHRINK, factor, total)


@numba.njit(cache=True, error_model="numpy")
def _add_long(entries, bound, length, factor, total):  # type: ignore[no-untyped-def]
    """Add the columns of factor 0: very long ones, and none that are not finite."""
    d, n = entries.shape
    for i in range(n):
        if factor[i] != 0.0:
            continue
        largest = 0.0
        for k in range(d):
            size = abs(entries[k, i])
            largest = max(largest, size if size < np.inf else np.inf)
        if largest == np.inf:
            continue
        squares = 0.0
        for k in range(d):
            squares += (entries[k, i] / largest) ** 2
        scale = length / max(np.sqrt(squares), bound / largest)
        for k in range(d):
            total[k] += np.int64(entries[k, i] / largest * scale)


@numba.njit(cache=True, error_model="numpy")
def _add_clipped_sparse(values, places, bound, resolution, total):  # type: ignore[no-untyped-def]
    """Add every unit's integers, the same as :func:`_add_tile` makes of the vector with all its zeros."""
    n, d = values.shape
    per_bound = 1.0 / bound
    unclipped = resolution * _SHRINK / bound
    clipped = resolution * _SHRINK_CLIPPED / bound
    for i in range(n):
        squares, last, proper = 0.0, -1, True
        for k in range(d):
            relative = values[i, k] * per_bound
            squares += relative * relative
            # An entry in two parts would be longer than the norm says, and no index is checked below.
            proper &= last < places[i, k] < total.size
            last = places[i, k]
        if not proper:
            continue
        if squares < _LONG**2:
            inverse_norm = np.float32(1.0) / np.sqrt(np.float32(squares))
            scale = unclipped if squares <= 1.0 else clipped * inverse_norm
            for k in range(d):
                total[places[i, k]] += np.int32(values[i, k] * scale)
            continue
        largest = 0.0
        for k in range(d):
            size = abs(values[i, k])
            largest = max(largest, size if size < np.inf else np.inf)
        if largest == np.inf:
            continue
        squares = 0.0
        for k in range(d):
            squares += (values[i, k] / largest) ** 2
        scale = resolution * _SHRINK / max(np.sqrt(squares), bound / largest)
        for k in range(d):
            total[places[i, k]] += np.int64(values[i, k] / largest * scale)


def add_clipped(
    terms: NDArray[np.float64] | Sparse, bound: float, total: NDArray[np.int64]
) -> None:
    r"""Clip each unit's term to norm `bound` and add its integer image to `total`, in place.

    With :math:`R` = :data:`RESOLUTION`, unit :math:`i` adds
    :math:`\operatorname{trunc}(\operatorname{clip}_B(v_i)\, R / B)`, a vector of integers of norm
    at most :math:`R`; truncation is toward zero, so that :math:`-v_i` adds the opposite. NaN adds
    0; an infinite scalar is clipped to :math:`\pm B`; a vector with a non-finite entry adds 0.

    Parameters
    ----------
    terms : ndarray, shape (units,) or (units, d), or Sparse
        One scalar, or one vector of length d, per unit of privacy. Of a sparse vector, only what is not zero;
        its integers are the same. One with a place that is not increasing, or out of range, adds 0.
    bound : float
        Clipping bound B > 0 in the Euclidean norm.
    total : ndarray of int64, shape (1,) or (d,)
        Running sum, in units of B / R. Exact while fewer than 2^36 units are added.
    """
    if isinstance(terms, Sparse):
        values = np.ascontiguousarray(terms.values, np.float64)
        places = np.ascontiguousarray(terms.places, np.int64)
        if values.ndim != 2 or places.shape != values.shape or values.shape[1] > MAX_DIMENSION:
            raise ValueError("Every number of a sparse vector has one place.")
        _add_clipped_sparse(values, places, bound, float(RESOLUTION), total)
        return
    if terms.ndim not in (1, 2) or total.shape != (terms.shape[1:] or (1,)):
        raise ValueError("The terms do not have the dimension of the sum.")  # no index is checked
    if terms.ndim == 1:
        scalars = np.ascontiguousarray(terms, np.float64)
        _add_clipped_scalars(scalars, bound, float(RESOLUTION), total)
        return
    columns = np.ascontiguousarray(terms.T, np.float64)
    _add_clipped_vectors(columns, bound, float(RESOLUTION), total)


def clipped_sum(
    terms: Iterable[NDArray[np.float64] | Sparse], bound: float, dimension: int | None = None
) -> NDArray[np.int64]:
    """Integer images of the clipped terms of all chunks, added up: see :func:`add_clipped`.

    Parameters
    ----------
    terms : iterable of ndarray
        Chunks of per-unit terms, each of shape (units,) or (units, dimension), or sparse. What computes them may
        overflow: it is drawn on :func:`in_silence`.
    bound : float
        Clipping bound B > 0 in the Euclidean norm.
    dimension : int, optional
        Length of a unit's vector; leave out for scalars.

    Returns
    -------
    ndarray of int64, shape (1,) or (dimension,)
        In units of B / :data:`RESOLUTION`. Private.
    """
    total = np.zeros(dimension or 1, dtype=np.int64)
    with in_silence():
        for chunk in terms:
            add_clipped(chunk, bound, total)
    return total
