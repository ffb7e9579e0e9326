"""Clipping to a norm bound and summation in fixed point.

A record's contribution is mapped to integers before it is summed, so that the sum is exact,
does not depend on the order of the records, and has the sensitivity it has on paper. Floating
point sums do not (Casacuberta, Shoham, Vadhan and Wagner, 2022).
"""

import numba
import numpy as np
from numpy.typing import NDArray

RESOLUTION = 2**26
"""Integer that stands for one clipping bound B: a unit adds at most this much to the sum."""

# Rounding in the computed norm of a d-vector is below (d + 2) 2^-53; scaling down by this much
# keeps the norm of the integer vector under RESOLUTION for any d up to MAX_DIMENSION.
_SHRINK = 1.0 - 2.0**-40
MAX_DIMENSION = 2**12


# Sums of fewer than 2^27 such integers are exact in float64, in any order: reassociation, which
# lets the loop run in vector registers, cannot change them.
_BLOCK = 2**20


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _add_clipped_scalars(terms, bound, resolution, total):  # type: ignore[no-untyped-def]
    per_unit = resolution / bound
    for start in range(0, terms.shape[0], _BLOCK):
        subtotal = 0.0
        for i in range(start, min(start + _BLOCK, terms.shape[0])):
            scaled = terms[i] * per_unit
            scaled = scaled if scaled == scaled else 0.0
            # Clipping the scaled value, rather than the term, makes |integer| <= resolution hold
            # whatever the rounding of the product.
            subtotal += np.trunc(min(max(scaled, -resolution), resolution))
        total[0] += np.int64(subtotal)


@numba.njit(cache=True, error_model="numpy")
def _add_clipped_vectors(terms, bound, resolution, shrink, total):  # type: ignore[no-untyped-def]
    n, d = terms.shape
    for i in range(n):
        unit = 1.0
        squares = 0.0
        for k in range(d):
            squares += terms[i, k] * terms[i, k]
        if not 1e-280 < squares < 1e280:
            # Too large or too small to square, or not finite: measure in units of the largest.
            unit = 0.0
            for k in range(d):
                unit = max(unit, abs(terms[i, k]))
                if not abs(terms[i, k]) < np.inf:
                    unit = np.inf
            if unit == 0.0 or unit == np.inf:
                continue
            squares = 0.0
            for k in range(d):
                squares += (terms[i, k] / unit) ** 2
        factor = shrink * resolution / max(np.sqrt(squares), bound / unit)
        for k in range(d):
            total[k] += np.int64(terms[i, k] / unit * factor)


def add_clipped(terms: NDArray[np.float64], bound: float, total: NDArray[np.int64]) -> None:
    r"""Clip each unit's term to norm `bound` and add its integer image to `total`, in place.

    With :math:`R` = :data:`RESOLUTION`, unit :math:`i` adds
    :math:`\operatorname{trunc}(\operatorname{clip}_B(v_i)\, R / B)`, a vector of integers of norm
    at most :math:`R`; truncation is toward zero, so that :math:`-v_i` adds the opposite. NaN adds
    0; an infinite scalar is clipped to :math:`\pm B`; a vector with a non-finite entry adds 0.

    Parameters
    ----------
    terms : ndarray, shape (units,) or (units, d)
        One scalar, or one vector of length d, per unit of privacy.
    bound : float
        Clipping bound B > 0 in the Euclidean norm.
    total : ndarray of int64, shape (1,) or (d,)
        Running sum, in units of B / R. Exact while fewer than 2^36 units are added.
    """
    if terms.ndim == 1:
        _add_clipped_scalars(terms, bound, float(RESOLUTION), total)
    else:
        _add_clipped_vectors(terms, bound, float(RESOLUTION), _SHRINK, total)
