r"""Sums over a confidential count: value, slope and mean in one pass over the terms that count.

The law of a count k with the natural parameter η, such as :math:`\eta = \log\lambda` or
:math:`\eta = \operatorname{logit} p`, and all that was published of it are terms
:math:`\exp(c_k + k \eta)`, of which only η depends on the model's parameters. Their sum is wanted,

.. math:: \log p(s) = \log \sum_k \exp(c_k + k \eta) - A(\eta), \qquad \partial_\eta \log \sum_k = E[k \mid s].

Poisson and binomial counts have terms of one peak, as laws of noise are log-concave, and so are intervals
of them. The sum starts at the peak and ends where terms are negligible. Where the terms are smooth, a part
of them at equal distances is enough: the error of such a sum is that of a Fourier coefficient, which for
a normal shape of standard deviation σ and the distance h is :math:`2 e^{-2 \pi^2 \sigma^2 / h^2}`.
"""

import math
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

from pymc_dp.mechanisms.compiled import Kernel, contiguous

_NEGLIGIBLE = 1e-13  # of the largest term; terms fall at least geometrically from there
_REACH = 8.0  # standard deviations beyond which terms of a normal shape are negligible
# Distance of terms in their standard deviations: an error of 1e-15 of the sum.
_APART = 0.75
# Of polynomials in pieces: with 16 pieces binomial, Poisson and normal cells have errors of 1e-11.
DEGREE = 9


@numba.njit(cache=True, error_model="numpy")
def terms(c, ratio, count, eta, x, rough, apart, f):  # type: ignore[no-untyped-def]
    """Terms of one cell over the largest, written to `f` around its middle.

    Parameters
    ----------
    c, ratio : ndarray, shape (width,)
        Logs of the terms at η = 0, and each term over the one before, of which the first `count` are used.
    count : int
    eta, x : float
        And its exponential.
    rough : float
        What adds to the curvature of c the roughness of what is not seen at its peak: infinite if terms
        must not be left out.
    apart : float
        Distance of terms in standard deviations.
    f : ndarray
        Longer than 2 * width.

    Returns
    -------
    tuple
        Index of the peak, distance of terms, first and last term counted from the peak, and the sums of the
        terms, and of these times their place and its square.
    """
    low, high = 0, count - 1
    while low < high:
        k = (low + high) // 2
        if ratio[k + 1] * x > 1:
            low = k + 1
        else:
            high = k
    peak = low
    step, middle = 1, len(f) // 2
    if 0 < peak < count - 1 and rough < np.inf:
        curvature = 2 * c[peak] - c[peak - 1] - c[peak + 1]
        if curvature > 0:
            reach = _REACH / math.sqrt(curvature)
            if peak - reach >= 0 and peak + reach <= count - 1:
                step = max(1, int(apart / math.sqrt(curvature + rough)))
    f[middle] = 1.0
    total, first, second = 1.0, 0.0, 0.0
    start, last = 0, 0
    t, j = 1.0, 0.0
    for k in range(peak + step, count, step):
        t = t * (ratio[k] * x) if step == 1 else math.exp(c[k] - c[peak] + (k - peak) * eta)
        if not t > _NEGLIGIBLE:
            break
        j += 1.0
        last += 1
        f[middle + last] = t
        total += t
        first += j * t
        second += j * j * t
    t, j = 1.0, 0.0
    y = 1 / x
    for k in range(peak - step, -1, -step):
        t = t * (y / ratio[k + 1]) if step == 1 else math.exp(c[k] - c[peak] + (k - peak) * eta)
        if not t > _NEGLIGIBLE:
            break
        j -= 1.0
        start -= 1
        f[middle + start] = t
        total += t
        first += j * t
        second += j * j * t
    return peak, step, start, last, total, first, second


def _all_cells(  # type: ignore[no-untyped-def]
    x, size, c, ratio, start, count, rough, low, per, pieces, log_density, slope, cells, width,
    number, natural,
):  # fmt: skip
    """:func:`count_sum`, for Numba."""
    x, size = numba.carray(x, (cells,)), numba.carray(size, (cells,))
    start = numba.carray(start, (cells,))
    count, rough = numba.carray(count, (cells,)), numba.carray(rough, (cells,))
    low, per = numba.carray(low, (cells,)), numba.carray(per, (cells,))
    log_density, slope = numba.carray(log_density, (cells,)), numba.carray(slope, (cells,))
    c, ratio = numba.carray(c, (cells, width)), numba.carray(ratio, (cells, width))
    pieces = numba.carray(pieces, (cells, number, DEGREE + 1))
    f = np.empty(2 * width + 3)
    for i in range(cells):
        n, eta, by = size[i], x[i], 1.0
        if not natural:
            p = x[i]
            if n < np.inf:
                eta = math.log(p) - math.log1p(-p)
                by = 1 / (p * (1 - p))
            else:
                eta, by = math.log(p), 1 / p
        place = (eta - low[i]) * per[i]
        if 0 <= place < number:
            j = int(place)
            t = 2 * (place - j) - 1
            value, change = pieces[i, j, DEGREE], 0.0
            for q in range(DEGREE - 1, -1, -1):
                change = change * t + value
                value = value * t + pieces[i, j, q]
            log_density[i] = value
            slope[i] = 2 * per[i] * change * by
        elif -np.inf < eta < np.inf:
            # Logs of p and 1 - p; of a rate, and less the rate.
            log_p, log_q, mean = eta, 0.0, math.exp(eta)
            odds = mean
            if n < np.inf:
                rest = math.log1p(math.exp(-abs(eta)))
                log_p, log_q = min(eta, 0.0) - rest, min(-eta, 0.0) - rest
                mean = n * math.exp(log_p)
            peak, step, _, _, total, first, _ = terms(
                c[i], ratio[i], int(count[i]), eta, odds, rough[i], _APART, f
            )
            k = start[i] + peak
            log_density[i] = c[i, peak] + math.log(total * step) + k * log_p
            log_density[i] += (n - k) * log_q if n < np.inf else -mean
            slope[i] = (k + step * first / total - mean) * by


_KERNEL = Kernel(_all_cells, arrays=12, numbers=4)
_by_name = _KERNEL.name


@numba.njit(cache=True)
def _count_sum(x, natural, size, c, ratio, start, count, rough, low, per, pieces):  # type: ignore[no-untyped-def]
    """:func:`count_sum`, which calls the kernel."""
    x, size, c, ratio = contiguous(x), contiguous(size), contiguous(c), contiguous(ratio)
    start, count, rough = contiguous(start), contiguous(count), contiguous(rough)
    low, per, pieces = contiguous(low), contiguous(per), contiguous(pieces)
    cells, width = c.shape
    log_density, slope = np.full(cells, np.nan), np.zeros(cells)
    _by_name(
        x.ctypes, size.ctypes, c.ctypes, ratio.ctypes, start.ctypes, count.ctypes, rough.ctypes, low.ctypes,
        per.ctypes, pieces.ctypes, log_density.ctypes, slope.ctypes, cells, width, pieces.shape[1], natural,
    )  # fmt: skip
    return log_density, slope


def count_sum(*arguments: Any) -> Any:
    """Log-density of what was published, and its derivative by x, for every cell.

    They are NaN and 0 where η is infinite or no number.

    Parameters
    ----------
    x : ndarray, shape (cells,)
        The natural parameters η; or probabilities of binomial counts, rates of Poisson counts.
    natural : bool
        Which of them.
    size : ndarray, shape (cells,)
        Of the populations; infinite for Poisson counts.
    c, ratio : ndarray, shape (cells, width)
        See :func:`terms`.
    start, count : ndarray, shape (cells,)
        The smallest count k, and how many there are.
    rough : ndarray, shape (cells,)
        See :func:`terms`.
    low, per, pieces : ndarray, shapes (cells,), (cells,) and (cells, number, DEGREE + 1)
        See :func:`~pymc_dp.mechanisms.count_pieces.pieces_of`; outside of them the sum is computed.
    """
    return _KERNEL.ready(_count_sum)(*arguments)


@numba.njit(cache=True, error_model="numpy")
def any_count_sum(k, c):  # type: ignore[no-untyped-def]
    """Log of the sum of exp(c), of any shape, and the mean of k with these weights, for every cell.

    Parameters
    ----------
    k, c : ndarray, shape (cells, width)
        Counts and logs of their terms.
    """
    cells, width = c.shape
    total, mean = np.full(cells, -np.inf), k[:, 0].copy()
    for i in range(cells):
        top = c[i].max()
        if top == -np.inf:
            continue
        f, fk = 0.0, 0.0
        for j in range(width):
            e = math.exp(c[i, j] - top)
            f += e
            fk += e * k[i, j]
        total[i] = top + math.log(f)
        mean[i] = fk / f
    return total, mean


class CountSum(Op):
    """:func:`count_sum` in a graph."""

    __props__ = ("natural",)

    def __init__(self, natural: bool):
        self.natural = natural

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        inputs = tuple(pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(self, list(inputs), [inputs[0].type() for _ in range(2)])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute the outputs."""
        outputs[0][0], outputs[1][0] = count_sum(inputs[0], self.natural, *inputs[1:])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """By x; nothing else is a parameter."""
        return [cotangents[0] * outputs[1], *(pt.zeros_like(x) for x in inputs[1:])]

    L_op = pullback  # its name in PyTensor 2


class AnyCountSum(Op):
    """:func:`any_count_sum` in a graph."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        k, c = (pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(self, [k, c], [c[:, 0].type(), c[:, 0].type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute both outputs."""
        outputs[0][0], outputs[1][0] = any_count_sum(*inputs)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """The terms' weights are the derivatives by their logs."""
        possible = outputs[0] > -np.inf
        weight = pt.exp(inputs[1] - pt.switch(possible, outputs[0], np.inf)[:, None])
        return [pt.zeros_like(inputs[0]), cotangents[0][:, None] * weight]

    L_op = pullback  # its name in PyTensor 2


@register_funcify_default_op_cache_key(CountSum)
def _(op: CountSum, **kwargs: Any) -> Any:
    natural, call = op.natural, _KERNEL.ready(_count_sum)

    @numba.njit
    def kernel(x, size, c, ratio, start, count, rough, low, per, pieces):  # type: ignore[no-untyped-def]
        return call(x, natural, size, c, ratio, start, count, rough, low, per, pieces)

    return kernel, _KERNEL.version


@register_funcify_default_op_cache_key(AnyCountSum)
def _(op: AnyCountSum, **kwargs: Any) -> Any:
    return any_count_sum
