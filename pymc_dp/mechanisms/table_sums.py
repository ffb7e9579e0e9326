r"""Sums over all tables of counts whose sum is known: value and means in one pass.

Cells that are independent but for their sum N have, with the log-weights :math:`c_{jk}` of k people in cell
j, all that was published of it included,

.. math:: \sum_{k_1 + \dots + k_m = N} \exp \sum_j (c_{j k_j} + k_j \eta_j)
          = \frac{1}{M} \sum_{t} e^{-iNt} \prod_j \phi_j(t), \qquad
          \phi_j(t) = \sum_k e^{c_{jk} + k \eta_j + i k t},

over M equally spaced t, if no two possible sums differ by a multiple of M. A sum that is not known but has
been published with noise is one more cell, of the counts -K, and N is 0. Cells are tilted by
:math:`e^{\lambda k}` first, with λ such that their means add up to N nearly: this changes the sum by
:math:`e^{\lambda N}` alone, and puts N in the middle of what is computed. There :math:`\prod_j \phi_j` is
nearly that of a normal law, so a dozen t are enough, whatever the counts are.
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
from pymc_dp.mechanisms.count_sums import terms

# Distance of a cell's terms in their standard deviations: frequencies beyond pi over it are left out, where
# a normal shape has 4e-14.
_APART = 0.4
_NEGLIGIBLE = 1e-12  # of the largest term of the sum over t
_DENSE = 1e-16  # of the largest term of a cell that may have any shape
_BLOCK = 16  # of t, for the processor's vector units
_CLOSE = 2.0  # standard deviations of the sum from N: e^-2 of the peak is left, of 1e-16
_TILTS = 200


@numba.njit(cache=True, error_model="numpy")
def _dense(c, count, eta, f):  # type: ignore[no-untyped-def]
    """As :func:`terms`, of any shape and none left out."""
    peak, middle = 0, len(f) // 2
    for k in range(1, count):
        if c[k] + k * eta > c[peak] + peak * eta:
            peak = k
    start, last = peak, peak
    total, first, second = 0.0, 0.0, 0.0
    for k in range(count):
        e = math.exp(c[k] - c[peak] + (k - peak) * eta)
        f[middle + k - peak] = e
        if e > _DENSE:
            start, last = min(start, k), max(last, k)
            total += e
            first += e * (k - peak)
            second += e * (k - peak) ** 2
    return peak, 1, start - peak, last - peak, total, first, second


@numba.njit(cache=True, error_model="numpy")
def _tilted(eta, c, ratio, start, count, rough, tilt, peaked, f, where, log_scale):  # type: ignore[no-untyped-def]
    """Every cell's terms; mean, variance and width of the sum."""
    mean, variance, width = 0.0, 0.0, 1.0
    log_scale[0] = 0.0
    for j in range(len(c)):
        x = eta[j] + tilt
        if peaked:
            found = terms(c[j], ratio[j], int(count[j]), x, math.exp(x), rough[j], _APART, f[j])
        else:
            found = _dense(c[j], int(count[j]), x, f[j])
        peak, step, low, high, total, first, second = found
        where[j, 0], where[j, 1], where[j, 2], where[j, 3] = peak, step, low, high
        place = first / total
        # Counts are weighed by their distance from the smallest.
        log_scale[0] += c[j, peak] + (peak * x if peak > 0 else 0.0) + math.log(step)
        mean += start[j] + peak + step * place
        variance += step * step * (second / total - place * place)
        width += step * (high - low)
    return mean, variance, width


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def _transform(f, low, high, zr, zi, out):  # type: ignore[no-untyped-def]
    """Of terms, and of terms times their place from `low`, at z: by Horner's rule."""
    middle = len(f) // 2
    for row in range(4):
        for q in range(_BLOCK):
            out[row, q] = 0.0
    pr, pi, dr, di = out[0], out[1], out[2], out[3]
    for k in range(middle + high, middle + low - 1, -1):
        x = f[k]
        for q in range(_BLOCK):
            a, b = dr[q], di[q]
            dr[q] = a * zr[q] - b * zi[q] + pr[q]
            di[q] = a * zi[q] + b * zr[q] + pi[q]
            a, b = pr[q], pi[q]
            pr[q] = a * zr[q] - b * zi[q] + x
            pi[q] = a * zi[q] + b * zr[q]
    for q in range(_BLOCK):
        a, b = dr[q], di[q]
        dr[q] = a * zr[q] - b * zi[q]
        di[q] = a * zi[q] + b * zr[q]


def _all_tables(  # type: ignore[no-untyped-def]
    eta, c, ratio, start, count, rough, total, log_sum, mean, probability, tables, cells, width,
    peaked,
):  # fmt: skip
    """:func:`table_sum`, for Numba."""
    eta, count = numba.carray(eta, (tables, cells)), numba.carray(count, (tables, cells))
    start, rough = numba.carray(start, (tables, cells)), numba.carray(rough, (tables, cells))
    mean, total = numba.carray(mean, (tables, cells)), numba.carray(total, (tables,))
    log_sum, c = numba.carray(log_sum, (tables,)), numba.carray(c, (tables, cells, width))
    ratio = numba.carray(ratio, (tables, cells, width if peaked else 1))
    probability = numba.carray(probability, (tables, cells, 1 if peaked else width))
    f = np.empty((cells, 2 * width + 3))
    where = np.empty((cells, 4), np.int64)
    log_scale = np.empty(1)
    phi = np.empty((cells, 4, _BLOCK))
    before, after = np.empty((cells + 1, 2, _BLOCK)), np.empty((cells + 1, 2, _BLOCK))
    zr, zi = np.empty(_BLOCK), np.empty(_BLOCK)
    weight, other = np.empty((2, _BLOCK)), np.empty((2, _BLOCK))
    place = np.empty(cells)
    for i in range(tables):
        target, most = total[i], 0.0
        log_sum[i] = -np.inf
        for j in range(cells):
            target -= start[i, j]
            most += count[i, j] - 1
            mean[i, j] = start[i, j]
            place[j] = 0.0
        if not 0 <= target <= most:
            continue
        tilt, below, above = 0.0, -np.inf, np.inf
        for _ in range(_TILTS):
            found = _tilted(eta[i], c[i], ratio[i], start[i], count[i], rough[i], tilt, peaked,
                            f, where, log_scale)  # fmt: skip
            average, variance, spread = found
            off = total[i] - average
            if not abs(off) > _CLOSE * math.sqrt(variance) + 1e-9:
                break
            if off > 0:
                below = tilt
            else:
                above = tilt
            tilt += max(-1.0, min(1.0, off / max(variance, 1e-300)))
            if not below < tilt < above:
                tilt = (below + above) / 2
        # The sums that count lie within some standard deviations; a skewed law with a small one needs more.
        points = int(min(spread, 8 + math.ceil(9.5 * math.sqrt(variance)))) | 1
        longest = 1
        left = target
        for j in range(cells):
            longest = max(longest, where[j, 1])
            left -= where[j, 0] + where[j, 1] * where[j, 2]
        half = min(points // 2, int(points / (2 * longest)))
        value, largest, block = 0.0, 0.0, 0
        angle = 2 * math.pi / points
        while block <= half:
            for q in range(_BLOCK):
                t = angle * (block + q)
                # A frequency stands for its negative, too.
                share = 0.0 if block + q > half else 1.0 if block + q == 0 else 2.0
                weight[0, q] = share * math.cos(left * t)
                weight[1, q] = -share * math.sin(left * t)
            for q in range(_BLOCK):
                before[0, 0, q] = after[cells, 0, q] = 1.0
                before[0, 1, q] = after[cells, 1, q] = 0.0
            step = 0
            for j in range(cells):
                if where[j, 1] != step:
                    step = where[j, 1]
                    for q in range(_BLOCK):
                        zr[q] = math.cos(angle * (block + q) * step)
                        zi[q] = math.sin(angle * (block + q) * step)
                _transform(f[j], where[j, 2], where[j, 3], zr, zi, phi[j])
                for q in range(_BLOCK):
                    a, b = before[j, 0, q], before[j, 1, q]
                    before[j + 1, 0, q] = a * phi[j, 0, q] - b * phi[j, 1, q]
                    before[j + 1, 1, q] = a * phi[j, 1, q] + b * phi[j, 0, q]
            for j in range(cells - 1, -1, -1):
                for q in range(_BLOCK):
                    a, b = after[j + 1, 0, q], after[j + 1, 1, q]
                    after[j, 0, q] = a * phi[j, 0, q] - b * phi[j, 1, q]
                    after[j, 1, q] = a * phi[j, 1, q] + b * phi[j, 0, q]
            rest = 0.0
            for q in range(_BLOCK):
                a, b = before[cells, 0, q], before[cells, 1, q]
                value += a * weight[0, q] - b * weight[1, q]
                if q >= _BLOCK - 3 and block + q <= half:
                    rest = max(rest, abs(a) + abs(b))
            largest = max(largest, abs(before[cells, 0, 0]))
            for j in range(cells):
                for q in range(_BLOCK):
                    a, b = before[j, 0, q], before[j, 1, q]
                    u, v = after[j + 1, 0, q], after[j + 1, 1, q]
                    x, y = a * u - b * v, a * v + b * u
                    other[0, q] = x * weight[0, q] - y * weight[1, q]
                    other[1, q] = x * weight[1, q] + y * weight[0, q]
                    place[j] += other[0, q] * phi[j, 2, q] - other[1, q] * phi[j, 3, q]
                if not peaked:
                    _add_probabilities(f[j], where[j], other, angle, block, probability[i, j])
            block += _BLOCK
            if rest <= _NEGLIGIBLE * largest:
                break
        if not value > 0:
            continue
        log_sum[i] = log_scale[0] + math.log(value / points) - tilt * target
        for j in range(cells):
            peak, step, low = where[j, 0], where[j, 1], where[j, 2]
            mean[i, j] = start[i, j] + peak + step * (low + place[j] / value)
            if not peaked:
                for k in range(width):
                    probability[i, j, k] /= value


@numba.njit(cache=True, error_model="numpy")
def _add_probabilities(f, where, other, angle, block, probability):  # type: ignore[no-untyped-def]
    """What these t add to the probabilities of a cell's counts."""
    peak, _, low, high = where
    middle = len(f) // 2
    for k in range(low, high + 1):
        x = 0.0
        for q in range(_BLOCK):
            t = angle * (block + q) * (k - low)
            x += other[0, q] * math.cos(t) - other[1, q] * math.sin(t)
        probability[peak + k] += f[middle + k] * x


_KERNEL = Kernel(_all_tables, arrays=10, numbers=4)
_by_name = _KERNEL.name


@numba.njit(cache=True)
def _table_sum(eta, c, ratio, start, count, rough, total, peaked):  # type: ignore[no-untyped-def]
    """:func:`table_sum`, which calls the kernel."""
    eta, c, ratio, start = contiguous(eta), contiguous(c), contiguous(ratio), contiguous(start)
    count, rough, total = contiguous(count), contiguous(rough), contiguous(total)
    tables, cells, width = c.shape
    log_sum, mean = np.empty(tables), np.empty((tables, cells))
    probability = np.zeros((tables, cells, 1 if peaked else width))
    _by_name(
        eta.ctypes, c.ctypes, ratio.ctypes, start.ctypes, count.ctypes, rough.ctypes, total.ctypes,
        log_sum.ctypes, mean.ctypes, probability.ctypes, tables, cells, width, peaked,
    )  # fmt: skip
    return log_sum, mean, probability


def table_sum(*arguments: Any) -> Any:
    """Log of the sum over all tables, and the mean of every cell or the probabilities of its counts.

    Parameters
    ----------
    eta : ndarray, shape (tables, cells)
        Multiplies the count less `start`.
    c, ratio : ndarray, shape (tables, cells, width)
        See :func:`terms`; `ratio` is not read if terms may have any shape.
    start, count, rough : ndarray, shape (tables, cells)
        The smallest counts, how many there are, and :func:`terms`.
    total : ndarray, shape (tables,)
        N.
    peaked : bool
        Whether the terms of a cell have one peak and do not depend on parameters but by η. If not, the last
        output is probabilities, shape (tables, cells, width), and else has one number per cell.
    """
    return _KERNEL.ready(_table_sum)(*arguments)


class TableSum(Op):
    """:func:`table_sum` in a graph."""

    __props__ = ("peaked",)

    def __init__(self, peaked: bool):
        self.peaked = peaked

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        inputs = tuple(pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(
            self, list(inputs), [inputs[-1].type(), inputs[0].type(), pt.tensor3(dtype="float64")]
        )

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute the outputs."""
        for output, value in zip(outputs, table_sum(*inputs, self.peaked), strict=True):
            output[0] = value

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """The means are the derivatives by η, the probabilities those by the log-weights."""
        nothing = [pt.zeros_like(x) for x in inputs[1:]]
        by_sum = cotangents[0][:, None]
        if self.peaked:
            return [by_sum * (outputs[1] - inputs[3]), *nothing]
        return [pt.zeros_like(inputs[0]), by_sum[:, :, None] * outputs[2], *nothing[1:]]

    L_op = pullback  # its name in PyTensor 2


@register_funcify_default_op_cache_key(TableSum)
def _(op: TableSum, **kwargs: Any) -> Any:
    peaked, call = op.peaked, _KERNEL.ready(_table_sum)

    @numba.njit
    def kernel(eta, c, ratio, start, count, rough, total):  # type: ignore[no-untyped-def]
        return call(eta, c, ratio, start, count, rough, total, peaked)

    return kernel, _KERNEL.version
