r"""Log-densities of published counts as polynomials in pieces: a sum over a count is one curve, worked out once.

All that was published of one cell, whose count is Poisson or binomial, has a log-density that depends on the
model's parameters by one number, the natural parameter η of the cell. It is analytic, and the nearest singular
points are about π from the real line. So polynomials over short pieces of η give it to rounding, at a
thirtieth of the time of the sum. They are fitted when the model is built and compared with the sum between
the points of the fit; a cell where they differ, and an η beyond the pieces, has its sum computed.
"""

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from pymc_dp.mechanisms.count_sums import DEGREE, count_sum

Array = NDArray[np.float64]

# Pieces are where the log-density is above its largest by this: 8 standard deviations, were it normal.
_NATS = 32.0
# As far as this from no, or all, expected counts: nearer, hardly a draw goes.
_LEAST = 1e-3
_NUMBERS = (16, 32, 64)  # of pieces: Laplace noise needs more than normal noise
_LARGEST = 2**24  # numbers in all: 128 MB
# Errors that are allowed: absolute, and of the largest number that goes into a sum.
_ERROR, _ROUNDING = 1e-10, 1e-15


def no_pieces(cells: int) -> tuple[Array, Array, Array]:
    """Of :func:`pieces_of`, if all sums are to be computed."""
    return np.zeros(cells), np.zeros(cells), np.zeros((cells, 0, DEGREE + 1))


def pieces_of(known: list[Array], log_g: Array) -> tuple[Array, Array, Array]:
    """Polynomials of the log-density of every cell in η.

    Parameters
    ----------
    known : list of ndarray
        What :func:`~pymc_dp.mechanisms.count_sums.count_sum` takes, from `size` to `rough`.
    log_g : ndarray, shape (cells, width)
        Log-probabilities of what was published, count by count.

    Returns
    -------
    low : ndarray, shape (cells,)
        Where the first piece begins; infinite if a cell has none.
    per : ndarray, shape (cells,)
        Pieces per unit of η.
    pieces : ndarray, shape (cells, number, DEGREE + 1)
        Coefficients of powers of the place within the piece, from -1 to 1.
    """
    cells = len(log_g)
    ends = _ends(known, log_g)
    none = no_pieces(cells)

    def direct(eta: Array) -> Array:
        return np.asarray(count_sum(eta, True, *known, *none)[0])

    nodes = chebyshev.chebpts1(DEGREE + 1)
    between = chebyshev.chebpts2(DEGREE + 2)[::2]  # where the error of a fit at `nodes` is largest
    fit = np.linalg.inv(np.vander(nodes, increasing=True)).T
    powers = np.vander(between, DEGREE + 1, increasing=True).T
    largest = np.abs(np.where(np.isfinite(known[1]), known[1], 0.0)).max(axis=1, initial=0.0)
    found = none
    for number in _NUMBERS:
        if cells * number * (DEGREE + 1) > _LARGEST:
            break
        wide = (ends[1] - ends[0]) / number
        places = ends[0] + wide * np.arange(number)[:, None]  # by number, cell

        def at(points: Array, places: Array = places, wide: Array = wide) -> Array:
            values = [[direct(low + wide * (t + 1) / 2) for t in points] for low in places]
            return np.moveaxis(np.array(values), -1, 0)

        with np.errstate(invalid="ignore"):  # impossible, or nobody is left to be counted
            pieces = at(nodes) @ fit
            error = np.abs(pieces @ powers - at(between)).max(axis=(1, 2))
        right = error <= _ERROR + _ROUNDING * largest  # not so if it is no number
        found = np.where(right, ends[0], np.inf), 1 / np.where(right, wide, 1.0), pieces
        if right.all():
            break
    return found


def _ends(known: list[Array], log_g: Array) -> Array:
    r"""Smallest and largest η of the pieces, shape (2, cells).

    The square root of a Poisson count has a standard deviation of at most about 1/2, and so has :math:`\sqrt n`
    times the angle whose squared sine is the share of a binomial one, whatever the parameter.
    """
    size, _, _, start, count, *_ = known
    width = log_g.shape[1]
    log_g = np.where(np.arange(width) < count[:, None], log_g, -np.inf)
    near = log_g >= log_g.max(axis=1, keepdims=True) - _NATS
    k = np.array([near.argmax(axis=1), width - 1 - near[:, ::-1].argmax(axis=1)]) + start
    reach = np.sqrt(_NATS / 2) * np.array([[-1.0], [1.0]])
    least = np.sqrt(_LEAST)
    with np.errstate(divide="ignore", invalid="ignore"):
        n = np.sqrt(np.where(np.isfinite(size), size, 1.0))
        angle = np.arcsin(np.minimum(np.sqrt(k) / n, 1.0)) + reach / n
        angle = np.clip(angle, least / n, np.pi / 2 - least / n)
        binomial = 2 * np.log(np.tan(angle))
        poisson = 2 * np.log(np.maximum(np.sqrt(k) + reach, least))
    return np.where(np.isfinite(size), binomial, poisson)
