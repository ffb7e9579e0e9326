r"""Sums over all tables of counts with a known total: value and gradient in one pass.

The cells of a multinomial table are independent but for their sum N. With the log-weights
:math:`c_{jk}` of k people in cell j, noise included,

.. math:: \log \sum_{k_1 + \dots + k_m = N} \exp \sum_j c_{j k_j}

is the logarithm of a coefficient of a product of polynomials, found by convolving one cell after
the other; its derivative by :math:`c_{jk}` is the probability of k people in cell j, from the
convolutions of the cells before and after. Cells are tilted by :math:`e^{\lambda k}` first, with λ such
that their means add up to N: this changes the sum by :math:`e^{\lambda N}` alone, and makes N the
middle of what is computed, whatever was released.
"""

import math
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

_NEGLIGIBLE = 1e-20  # of the largest term of a convolution
_TILTS = 200


@numba.njit(cache=True, error_model="numpy")
def _tilted(c, start, tilt, f):  # type: ignore[no-untyped-def]
    """Cells tilted and scaled into `f`; log of the scales, mean and variance of the sum."""
    cells, width = c.shape
    scales, mean, variance = 0.0, 0.0, 0.0
    for j in range(cells):
        top = -np.inf
        for w in range(width):
            top = max(top, c[j, w] + tilt * w)
        total, first, second = 0.0, 0.0, 0.0
        for w in range(width):
            f[j, w] = math.exp(c[j, w] + tilt * w - top)
            total += f[j, w]
            first += w * f[j, w]
            second += w * w * f[j, w]
        scales += top
        mean += start[j] + first / total
        variance += second / total - (first / total) ** 2
    return scales, mean, variance


@numba.njit(cache=True, error_model="numpy")
def _convolve(a, low, high, f, out):  # type: ignore[no-untyped-def]
    """One more cell: `out` over its largest term, the log of that, and where terms count."""
    width = len(f)
    out[:] = 0.0
    for i in range(low, high):
        for w in range(width):
            out[i + w] += a[i] * f[w]
    top = out.max()
    out /= top
    low, high = 0, len(out)
    while out[low] < _NEGLIGIBLE:
        low += 1
    while out[high - 1] < _NEGLIGIBLE:
        high -= 1
    return math.log(top), low, high


@numba.njit(cache=True, error_model="numpy")
def _tilt(c, start, total, f):  # type: ignore[no-untyped-def]
    """Tilt with which the means add up to N nearly, by Newton's method inside a bracket."""
    tilt, below, above = 0.0, -np.inf, np.inf
    for _ in range(_TILTS):
        _, mean, variance = _tilted(c, start, tilt, f)
        off = total - mean
        if abs(off) <= 0.1 * math.sqrt(variance) + 1e-9:
            break
        if off > 0:
            below = tilt
        else:
            above = tilt
        tilt += max(-1.0, min(1.0, off / max(variance, 1e-300)))
        if not below < tilt < above:
            tilt = (below + above) / 2
    return tilt


@numba.njit(cache=True, error_model="numpy")
def _convolutions(f):  # type: ignore[no-untyped-def]
    """Of the first 0, 1, ... cells, where their terms count, and the log of the scale of the last."""
    cells, width = f.shape
    sums = np.zeros((cells + 1, cells * (width - 1) + 1))
    low, high = np.zeros(cells + 1, np.int64), np.ones(cells + 1, np.int64)
    sums[0, 0] = 1.0
    scale = 0.0
    for j in range(cells):
        size = (j + 1) * (width - 1) + 1
        more, low[j + 1], high[j + 1] = _convolve(
            sums[j], low[j], high[j], f[j], sums[j + 1, :size]
        )
        scale += more
    return sums, low, high, scale


@numba.njit(cache=True, error_model="numpy")
def _possible(c, start, total):  # type: ignore[no-untyped-def]
    """Whether some table has this total."""
    least, most = 0.0, 0.0
    for j in range(len(c)):
        where = np.flatnonzero(c[j] > -np.inf)
        if len(where) == 0:
            return False
        least += start[j] + where[0]
        most += start[j] + where[-1]
    return least <= total <= most


@numba.njit(cache=True, error_model="numpy")
def convolved_sum(c, start, total):  # type: ignore[no-untyped-def]
    """Log of the sum over all tables, and the probabilities of each cell's counts.

    Parameters
    ----------
    c : ndarray, shape (tables, cells, width)
        Log-weights of ``start[j] + w`` people in cell j.
    start : ndarray, shape (tables, cells)
        The smallest counts.
    total : ndarray, shape (tables,)
        N.
    """
    tables, cells, width = c.shape
    log_sum = np.full(tables, -np.inf)
    probability = np.zeros(c.shape)
    f = np.empty((cells, width))
    for i in range(tables):
        if not _possible(c[i], start[i], total[i]):
            continue
        tilt = _tilt(c[i], start[i], total[i], f)
        tops, _, _ = _tilted(c[i], start[i], tilt, f)
        target = int(total[i] - start[i].sum())
        before, low_before, high_before, scale = _convolutions(f)
        after, low_after, high_after, _ = _convolutions(f[::-1])
        if not before[cells, target] > 0:
            continue
        log_sum[i] = math.log(before[cells, target]) + scale + tops - tilt * target
        for j in range(cells):
            k = cells - 1 - j
            for w in range(width):
                if f[j, w] == 0:
                    continue
                left = target - w
                first = max(low_before[j], left - high_after[k] + 1)
                last = min(high_before[j], left - low_after[k] + 1)
                pairs = 0.0
                for t in range(first, last):
                    pairs += before[j, t] * after[k, left - t]
                probability[i, j, w] = f[j, w] * pairs
            probability[i, j] /= probability[i, j].sum()
    return log_sum, probability


class ConvolvedSum(Op):
    """:func:`convolved_sum` in a graph."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        c, start, total = (pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(self, [c, start, total], [total.type(), c.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute both outputs."""
        outputs[0][0], outputs[1][0] = convolved_sum(*inputs)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """The probabilities are the derivatives by the log-weights."""
        by_c = cotangents[0][:, None, None] * outputs[1]
        return [by_c, *(pt.zeros_like(x) for x in inputs[1:])]

    L_op = pullback  # its name in PyTensor 2


@register_funcify_default_op_cache_key(ConvolvedSum)
def _(op: ConvolvedSum, **kwargs: Any) -> Any:
    return convolved_sum
