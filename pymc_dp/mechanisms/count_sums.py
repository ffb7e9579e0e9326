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

_NEGLIGIBLE = 1e-13  # of the largest term; terms fall at least geometrically from there
_REACH = 8.0  # standard deviations beyond which terms of a normal shape are negligible
# Distance of terms in their standard deviations: an error of 1e-15 of the sum.
_APART = 0.75


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


@numba.njit(cache=True, error_model="numpy")
def count_sum(p, size, c, ratio, start, count, rough, none, all_):  # type: ignore[no-untyped-def]
    """Log-density of what was published, its derivative by p, and the mean of the count, for every cell.

    Parameters
    ----------
    p : ndarray, shape (cells,)
        Probabilities of binomial counts, rates of Poisson counts.
    size : ndarray, shape (cells,)
        Of the populations; infinite for Poisson counts.
    c, ratio : ndarray, shape (cells, width)
        See :func:`terms`.
    start, count : ndarray, shape (cells,)
        The smallest count k, and how many there are.
    rough : ndarray, shape (cells,)
        See :func:`terms`.
    none, all_ : ndarray, shape (cells,)
        Log-probability of what was published if nobody, or everybody, is counted: all that is left of a
        structural zero (whose derivative is taken as 0, as it is no parameter), or of certainty.
    """
    cells, width = c.shape
    log_density, slope, mean = np.full(cells, np.nan), np.zeros(cells), np.zeros(cells)
    f = np.empty(2 * width + 3)
    for i in range(cells):
        n, log_rest = size[i], 0.0
        if p[i] == 0:
            log_density[i] = none[i]
            continue
        if p[i] == 1 and n < np.inf:
            log_density[i], mean[i] = all_[i], n
            continue
        if not p[i] > 0 or (p[i] > 1 and n < np.inf):
            continue
        eta, x = math.log(p[i]), p[i]
        if n < np.inf:
            log_rest = math.log1p(-p[i])
            eta -= log_rest
            x /= 1 - p[i]
        peak, step, _, _, total, first, _ = terms(
            c[i], ratio[i], int(count[i]), eta, x, rough[i], _APART, f
        )
        k = start[i] + peak
        mean[i] = k + step * first / total
        log_density[i] = c[i, peak] + math.log(total * step)
        if n < np.inf:
            log_density[i] += k * (eta + log_rest) + (n - k) * log_rest
            slope[i] = (mean[i] - n * p[i]) / (p[i] * (1 - p[i]))
        else:
            log_density[i] += k * eta - p[i]
            slope[i] = mean[i] / p[i] - 1
    return log_density, slope, mean


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

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        inputs = tuple(pt.as_tensor(x).astype("float64") for x in inputs)
        return Apply(self, list(inputs), [inputs[0].type() for _ in range(3)])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute the outputs."""
        for output, value in zip(outputs, count_sum(*inputs), strict=True):
            output[0] = value

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """By p; nothing else is a parameter."""
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
    return count_sum


@register_funcify_default_op_cache_key(AnyCountSum)
def _(op: AnyCountSum, **kwargs: Any) -> Any:
    return any_count_sum
