r"""Log-density of a noisy sum of n independent records, the sum taken as normal.

With m and V the mean and covariance of one record's statistic, both weighted sums over nodes, and
noise of variances D,

.. math:: s \mid \theta \sim N(n m,\; C), \qquad C = n V + D, \qquad P = C^{-1}, \quad a = P (s - n m).

Laplace noise is integrated out exactly. One entry has a closed form. For several, let w be the
noise, and :math:`\bar w = D a`, :math:`\Sigma = D - D P D` its mean and covariance given s, were it
normal with the variances D. Written :math:`w = \bar w - \Sigma^{1/2} z` it is a priori independent
of θ, :math:`z \sim N(0, I)`, and

.. math:: p(s \mid \theta) = N(s; n m, C)
          \int N(z; 0, I) \prod_j \frac{\mathrm{Laplace}(w_j; b_j)}{N(w_j; 0, 2 b_j^2)} \, dz .

z becomes a variable of the model. Whichever of noise and sampling error is the larger, z hardly
depends on θ, so there is no funnel.
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

# Keeps the covariance of the noise given s regular in directions that the records do not vary in.
JITTER = 1e-12


@numba.njit(cache=True, error_model="numpy")
def _log_erfc(x):  # type: ignore[no-untyped-def]
    if x < 25:
        return math.log(math.erfc(x))
    y = 1 / (2 * x * x)  # from here on erfc underflows
    series = 1 - y * (1 - 3 * y * (1 - 5 * y * (1 - 7 * y)))
    return -x * x - math.log(x * math.sqrt(math.pi)) + math.log(series)


@numba.njit(cache=True, error_model="numpy")
def normal_laplace(r, v, b):  # type: ignore[no-untyped-def]
    """Log-density at r of N(0, v) plus Laplace noise of scale b, and its derivatives by r and v."""
    v = max(v, 1e-12 * b * b)
    root = math.sqrt(2 * v)
    left = -r / b + _log_erfc((v / b - r) / root)
    right = r / b + _log_erfc((v / b + r) / root)
    top = max(left, right)
    f_left, f_right = math.exp(left - top), math.exp(right - top)
    both = f_left + f_right
    logp = v / (2 * b * b) + top + math.log(both / (4 * b))
    normal = -r * r / (2 * v) - 0.5 * math.log(2 * math.pi * v)
    by_v = (1 - math.exp(normal - logp)) / (2 * b * b)  # the heat equation
    return logp, (f_right - f_left) / (both * b), by_v


# In any order: in the processor's vector units.
@numba.njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _dot(a, b, m):  # type: ignore[no-untyped-def]
    """Of the first m numbers."""
    x = 0.0
    for k in range(m):
        x += a[k] * b[k]
    return x


@numba.njit(cache=True, error_model="numpy")
def _cholesky(A, L, m):  # type: ignore[no-untyped-def]
    """Lower factor of A, of order m, and whether A is positive definite."""
    for i in range(m):
        for j in range(i + 1):
            x = A[i, j] - _dot(L[i], L[j], j)
            if i > j:
                L[i, j] = x / L[j, j]
            elif x > 0:
                L[i, i] = math.sqrt(x)
            else:
                return False
    return True


@numba.njit(cache=True, error_model="numpy")
def _inverse(L, R, m):  # type: ignore[no-untyped-def]
    """The transposed inverse of a lower triangular matrix."""
    for j in range(m):
        for i in range(j):
            R[j, i] = 0.0
        R[j, j] = 1 / L[j, j]
        for i in range(j + 1, m):
            R[j, i] = -_dot(L[i, j:], R[j, j:], i - j) / L[i, i]


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def _sandwich(A, B, out, T, rows, columns):  # type: ignore[no-untyped-def]
    """A B A', where A has so many rows and columns."""
    for i in range(rows):
        for j in range(columns):
            T[i, j] = 0.0
        for k in range(columns):
            for j in range(columns):
                T[i, j] += A[i, k] * B[k, j]
    for i in range(rows):
        for j in range(rows):
            out[i, j] = _dot(T[i], A[j], columns)


@numba.njit(cache=True, error_model="numpy")
def _laplace_terms(P, a, b, z, C_bar, r_bar, z_bar, m, q, room, sides):  # type: ignore[no-untyped-def]
    """Log of the product under the integral; its derivatives are added to `C_bar` and `r_bar`."""
    M, L, R, T, PS = room[0], room[1], room[2], room[3], room[4]
    S, y, weighed = sides[0], sides[1], sides[2]
    i = 0
    for p in range(m):
        if b[p] > 0:
            S[i] = p  # for now
            i += 1
    for i in range(q):
        for p in range(m):
            PS[p, i] = P[p, int(S[i])] * math.sqrt(2) * b[int(S[i])]
    for i in range(q):
        at = int(S[i])
        for k in range(q):
            M[i, k] = -math.sqrt(2) * b[at] * PS[at, k]
        M[i, i] += 1 + JITTER
    if not _cholesky(M, L, q):
        return -np.inf
    logp = 0.5 * q * math.log(math.pi)
    for i in range(q):
        at = int(S[i])
        scale = b[at]
        w = math.sqrt(2) * scale * a[at]
        for k in range(i + 1):
            w -= L[i, k] * z[k]
        w *= math.sqrt(2) * scale
        logp += 0.25 * w * w / scale**2 - abs(w) / scale
        sign = 1.0 if w > 0 else -1.0 if w < 0 else 0.0
        weighed[i] = math.sqrt(2) * scale * (0.5 * w / scale**2 - sign / scale)
    for k in range(q):
        z_bar[k] = 0.0
        for i in range(k, q):
            z_bar[k] -= L[i, k] * weighed[i]
    # Back through the Cholesky factor: the lower triangle of L' L_bar is an outer product.
    _inverse(L, R, q)
    for i in range(q):
        for k in range(q):
            L[i, k] = 0.0 if k > i else z_bar[i] * z[k] * (0.5 if k == i else 1.0)
    _sandwich(R, L, M, T, q, q)
    for i in range(q):
        for k in range(i + 1):
            M[i, k] = M[k, i] = 0.5 * (M[i, k] + M[k, i])
    _sandwich(PS, M, R, T, m, q)
    for p in range(m):
        y[p] = 0.0
        for i in range(q):
            y[p] += PS[p, i] * weighed[i]
    for p in range(m):
        r_bar[p] += y[p]
        for i in range(m):
            C_bar[p, i] += R[p, i] - 0.5 * (y[p] * a[i] + a[p] * y[i])
    return logp


def _normal_sum(  # type: ignore[no-untyped-def]
    X, w, n, v, b, s, z, shift, factor, logp, X_bar, w_bar, n_bar, z_bar, areas, K, m, q,
):  # fmt: skip
    """:func:`noisy_sum`, for Numba: loops, which are compiled in a tenth of the time of arrays' arithmetic."""
    X, X_bar = numba.carray(X, (areas, K, m)), numba.carray(X_bar, (areas, K, m))
    w, w_bar = numba.carray(w, (areas, K)), numba.carray(w_bar, (areas, K))
    n, n_bar = numba.carray(n, (areas,)), numba.carray(n_bar, (areas,))
    z, z_bar = numba.carray(z, (areas, q)), numba.carray(z_bar, (areas, q))
    s, shift = numba.carray(s, (areas, m)), numba.carray(shift, (areas, m))
    v, b, logp = numba.carray(v, (m,)), numba.carray(b, (m,)), numba.carray(logp, (areas,))
    factor = numba.carray(factor, (areas, m, m))
    room, sides = np.empty((12, m, m)), np.empty((9, m))
    V, C, C_bar, L, P, R, T = room[5], room[6], room[7], room[8], room[9], room[10], room[11]
    mean, right, r, a = sides[3], sides[4], sides[5], sides[6]
    r_bar, by_V = sides[7], sides[8]
    for i in range(areas):
        logp[i] = -np.inf
        if not n[i] >= 0:
            continue
        for p in range(m):
            mean[p] = 0.0
            for j in range(m):
                C[p, j] = 0.0
        for k in range(K):
            for p in range(m):
                mean[p] += w[i, k] * X[i, k, p]
        for k in range(K):
            for p in range(m):
                x = w[i, k] * (X[i, k, p] - mean[p])
                for j in range(m):
                    C[p, j] += x * (X[i, k, j] - mean[j])
        _sandwich(factor[i], C, V, T, m, m)
        for p in range(m):
            right[p] = mean[p] + shift[i, p]
            r[p] = s[i, p] - n[i] * right[p]
        if m == 1 and b[0] > 0 and q == 0:
            logp[i], r_bar[0], C_bar[0, 0] = normal_laplace(r[0], n[i] * V[0, 0] + v[0], b[0])
        else:
            for p in range(m):
                for j in range(m):
                    C[p, j] = n[i] * V[p, j]
                C[p, p] += v[p] + 2 * b[p] ** 2
            if not _cholesky(C, L, m):
                continue
            _inverse(L, R, m)
            density = -0.5 * m * math.log(2 * math.pi)
            for p in range(m):
                a[p] = 0.0
                for j in range(m):
                    P[p, j] = _dot(R[p], R[j], m)
                    a[p] += P[p, j] * r[j]
                density -= 0.5 * a[p] * r[p] + math.log(L[p, p])
            for p in range(m):
                r_bar[p] = -a[p]
                for j in range(m):
                    C_bar[p, j] = 0.5 * (a[p] * a[j] - P[p, j])
            if q > 0:
                density += _laplace_terms(P, a, b, z[i], C_bar, r_bar, z_bar[i], m, q, room, sides)
            logp[i] = density
        for p in range(m):
            n_bar[i] -= r_bar[p] * right[p]
            for j in range(m):
                n_bar[i] += C_bar[p, j] * V[p, j]
                L[p, j] = factor[i, j, p]
        _sandwich(L, C_bar, P, T, m, m)
        for k in range(K):
            for p in range(m):
                by_V[p] = 0.0
            for j in range(m):
                x = X[i, k, j] - mean[j]
                for p in range(m):
                    by_V[p] += x * P[j, p]
            for p in range(m):
                X_bar[i, k, p] = w[i, k] * n[i] * (2 * by_V[p] - r_bar[p])
                w_bar[i, k] += n[i] * (by_V[p] * (X[i, k, p] - mean[p]) - r_bar[p] * X[i, k, p])


_KERNEL = Kernel(_normal_sum, arrays=14, numbers=4)
_by_name = _KERNEL.name


@numba.njit(cache=True)
def _noisy_sum(X, w, n, v, b, s, z, shift, factor):  # type: ignore[no-untyped-def]
    """:func:`noisy_sum`, which calls the kernel."""
    X, w, n, v, b = contiguous(X), contiguous(w), contiguous(n), contiguous(v), contiguous(b)
    s, z, shift, factor = contiguous(s), contiguous(z), contiguous(shift), contiguous(factor)
    areas, K, m = X.shape
    logp, n_bar, w_bar = np.zeros(areas), np.zeros(areas), np.zeros((areas, K))
    X_bar, z_bar = np.zeros((areas, K, m)), np.zeros((areas, z.shape[1]))
    _by_name(
        X.ctypes, w.ctypes, n.ctypes, v.ctypes, b.ctypes, s.ctypes, z.ctypes, shift.ctypes,
        factor.ctypes, logp.ctypes, X_bar.ctypes, w_bar.ctypes, n_bar.ctypes, z_bar.ctypes,
        areas, K, m, z.shape[1],
    )  # fmt: skip
    return logp, X_bar, w_bar, n_bar, z_bar


def noisy_sum(*arguments: Any) -> Any:
    """Log-density and its derivatives by X, w, n and z, for every area: two passes over the nodes.

    Parameters
    ----------
    X : ndarray, shape (areas, K, m)
        One record's statistic at the nodes.
    w : ndarray, shape (areas, K)
        Weights of the nodes; they sum to one.
    n : ndarray, shape (areas,)
        Number of records.
    v : ndarray, shape (m,)
        Variances of the normal noise, 0 where there is none.
    b : ndarray, shape (m,)
        Scales of the Laplace noise, 0 where there is none.
    s : ndarray, shape (areas, m)
        Released sums.
    z : ndarray, shape (areas, q)
        One entry for each Laplace noise; q = 0 with Laplace noise needs m = 1.
    shift, factor : ndarray, shapes (areas, m) and (areas, m, m)
        What puts the nodes' mean and covariance right: ``mean + shift`` and ``F @ V @ F.T``
        (:mod:`~pymc_dp.mechanisms.reference`).

    Returns
    -------
    tuple of ndarray
        Log-density, shape (areas,), -inf where C is singular; derivatives by X, w, n and z.
    """
    return _KERNEL.ready(_noisy_sum)(*arguments)


class NoisySum(Op):
    """:func:`noisy_sum` in a graph; its inputs and outputs."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """One node; everything in double precision."""
        inputs = tuple(pt.as_tensor(x).astype("float64") for x in inputs)
        X, w, n, _, _, _, z, *_ = inputs
        return Apply(self, list(inputs), [n.type(), X.type(), w.type(), n.type(), z.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute the outputs in place."""
        for output, value in zip(outputs, noisy_sum(*inputs), strict=True):
            output[0] = value

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Cotangents of the inputs; nothing is differentiated twice, and released values not at all."""
        _, X_bar, w_bar, n_bar, z_bar = outputs
        c = cotangents[0]
        nothing = [pt.zeros_like(x) for x in inputs]
        return [
            c[:, None, None] * X_bar,
            c[:, None] * w_bar,
            c * n_bar,
            *nothing[3:6],
            c[:, None] * z_bar,
            *nothing[7:],
        ]

    L_op = pullback  # its name in PyTensor 2


@register_funcify_default_op_cache_key(NoisySum)
def _(op: NoisySum, **kwargs: Any) -> Any:
    return _KERNEL.ready(_noisy_sum), _KERNEL.version
