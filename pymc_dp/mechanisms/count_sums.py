r"""Sums over a confidential count: value and gradient in one pass.

A count whose law has the natural parameter η, such as :math:`\eta = \log\lambda` or
:math:`\eta = \operatorname{logit} p`, has :math:`p(k) = \exp(k \eta + h_k - A)`. With noise g,

.. math:: \log p(s) = \log \sum_k \exp(k \eta + h_k + \log g(s - k)) - A,

and the derivative of the sum by η is :math:`E[k \mid s]`. Poisson and binomial counts have terms of
one peak, whose ratios are known: the sum starts at the peak and ends where terms are negligible.
"""

import math
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

_NEGLIGIBLE = 1e-18  # of the largest term; terms fall at least geometrically from there


@numba.njit(cache=True, error_model="numpy")
def _log_noise_ratio(r, scale, gaussian):  # type: ignore[no-untyped-def]
    """Of g(r - 1) / g(r): one count more leaves one less to the noise."""
    if gaussian:
        return (2 * r - 1) / (2 * scale * scale)
    return (abs(r) - abs(r - 1)) / scale


@numba.njit(cache=True, error_model="numpy")
def _log_count_ratio(k, size):  # type: ignore[no-untyped-def]
    """The next h less that of k; a Poisson count has infinite `size`."""
    return (math.log(size - k) if size < np.inf else 0.0) - math.log(k + 1)


@numba.njit(cache=True, error_model="numpy")
def _log_term(k, eta, s, size, scale, gaussian):  # type: ignore[no-untyped-def]
    """Log of a term, but for the constant of the noise."""
    h = -math.lgamma(k + 1)
    if size < np.inf:
        h += math.lgamma(size + 1) - math.lgamma(size - k + 1)
    if scale == 0:
        return k * eta + h
    r = (s - k) / scale
    return k * eta + h - (0.5 * r * r if gaussian else abs(r))


@numba.njit(cache=True, error_model="numpy")
def peaked_sum(eta, s, size, scale, gaussian):  # type: ignore[no-untyped-def]
    """Log of the sum over k and the mean of k, for every cell, of a Poisson or binomial count.

    Parameters
    ----------
    eta : ndarray, shape (cells,)
        Log of the rate, or of the odds.
    s : ndarray, shape (cells,)
        Noisy counts.
    size : ndarray, shape (cells,)
        Of the populations; infinite for Poisson counts.
    scale : ndarray, shape (cells,)
        Of the noise; 0 means none.
    gaussian : bool
        Or else Laplace.
    """
    cells = len(eta)
    total, mean = np.empty(cells), np.empty(cells)
    for i in range(cells):
        n, x, b = size[i], eta[i], scale[i]
        if b == 0:
            possible = 0 <= s[i] <= n and s[i] == round(s[i])
            total[i] = _log_term(s[i], x, s[i], n, b, gaussian) if possible else -np.inf
            mean[i] = s[i]
            continue
        # The peak lies between those of the count and of the noise.
        mode = math.exp(x) if n == np.inf else (n + 1) / (1 + math.exp(-x))
        nearest = min(max(s[i], 0.0), n)
        low, high = math.floor(min(mode, nearest)), min(math.ceil(max(mode, nearest)), n)
        while low < high:
            k = math.floor((low + high) / 2)
            if _log_count_ratio(k, n) + x + _log_noise_ratio(s[i] - k, b, gaussian) > 0:
                low = k + 1
            else:
                high = k
        peak = min(low, n)
        f, fk = 1.0, 0.0
        # The noise's part of the ratio of neighbours: from one to the next it changes by a constant
        # factor (Gaussian), or takes one of two values but where it passes s (Laplace).
        less = math.exp(-1 / (b * b)) if gaussian else 1.0
        for way in (1, -1):
            t, k = 1.0, peak
            near, far = math.exp(x + 1 / b), math.exp(x - 1 / b)
            e = math.exp(
                way * (x + _log_noise_ratio(s[i] - (peak if way > 0 else peak - 1), b, gaussian))
            )
            while (k < n) if way > 0 else (k > 0):
                at = k if way > 0 else k - 1
                if not gaussian:
                    r = s[i] - at
                    e = near if r >= 1 else far if r <= 0 else math.exp(x + (2 * r - 1) / b)
                    e = e if way > 0 else 1 / e
                room = n - at if n < np.inf else 1.0
                t *= e * (room / (at + 1) if way > 0 else (at + 1) / room)
                if not t > _NEGLIGIBLE:
                    break
                k += way
                f += t
                fk += t * (k - peak)
                e *= less
        total[i] = _log_term(peak, x, s[i], n, b, gaussian) + math.log(f)
        mean[i] = peak + fk / f
    return total, mean


@numba.njit(cache=True, error_model="numpy")
def table_sum(k, c):  # type: ignore[no-untyped-def]
    """Log of the sum of exp(c), and the mean of k with these weights, for every cell.

    Parameters
    ----------
    k, c : ndarray, shape (cells, width)
        Counts and logs of their terms.
    """
    cells, width = c.shape
    total, mean = np.empty(cells), np.empty(cells)
    for i in range(cells):
        top = c[i].max()
        f, fk = 0.0, 0.0
        for j in range(width):
            e = math.exp(c[i, j] - top)
            f += e
            fk += e * k[i, j]
        total[i] = top + math.log(f)
        mean[i] = fk / f
    return total, mean


class PeakedSum(Op):
    """:func:`peaked_sum` in a graph."""

    __props__ = ("gaussian",)

    def __init__(self, gaussian: bool):
        self.gaussian = gaussian

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        inputs = tuple(pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(self, list(inputs), [inputs[0].type(), inputs[0].type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute both outputs."""
        outputs[0][0], outputs[1][0] = peaked_sum(*inputs, self.gaussian)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """The mean is the derivative by η; nothing else is a parameter."""
        return [cotangents[0] * outputs[1], *(pt.zeros_like(x) for x in inputs[1:])]

    L_op = pullback  # its name in PyTensor 2


class TableSum(Op):
    """:func:`table_sum` in a graph."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        k, c = (pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(self, [k, c], [c[:, 0].type(), c[:, 0].type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute both outputs."""
        outputs[0][0], outputs[1][0] = table_sum(*inputs)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """The terms' weights are the derivatives by their logs."""
        weight = pt.exp(inputs[1] - outputs[0][:, None])
        return [pt.zeros_like(inputs[0]), cotangents[0][:, None] * weight]

    L_op = pullback  # its name in PyTensor 2


@register_funcify_default_op_cache_key(PeakedSum)
def _(op: PeakedSum, **kwargs: Any) -> Any:
    gaussian = op.gaussian

    @numba.njit
    def kernel(eta, s, size, scale):  # type: ignore[no-untyped-def]
        return peaked_sum(eta, s, size, scale, gaussian)

    return kernel


@register_funcify_default_op_cache_key(TableSum)
def _(op: TableSum, **kwargs: Any) -> Any:
    return table_sum
