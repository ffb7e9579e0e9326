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


@numba.njit(cache=True, error_model="numpy")
def _cholesky(A):  # type: ignore[no-untyped-def]
    """Lower factor of A, and whether A is positive definite."""
    m = len(A)
    L = np.zeros((m, m))
    for i in range(m):
        for j in range(i + 1):
            x = A[i, j]
            for q in range(j):
                x -= L[i, q] * L[j, q]
            if i > j:
                L[i, j] = x / L[j, j]
            elif x > 0:
                L[i, i] = math.sqrt(x)
            else:
                return L, False
    return L, True


@numba.njit(cache=True, error_model="numpy")
def _inverse(L):  # type: ignore[no-untyped-def]
    """Of a lower triangular matrix."""
    m = len(L)
    R = np.zeros((m, m))
    for j in range(m):
        R[j, j] = 1 / L[j, j]
        for i in range(j + 1, m):
            x = 0.0
            for q in range(j, i):
                x -= L[i, q] * R[q, j]
            R[i, j] = x / L[i, i]
    return R


@numba.njit(cache=True, error_model="numpy")
def _laplace_terms(P, a, b, z, C_bar, r_bar, z_bar):  # type: ignore[no-untyped-def]
    """Log of the product under the integral; its derivatives are added to `C_bar` and `r_bar`."""
    j = np.flatnonzero(b > 0)
    q = len(j)
    S = math.sqrt(2) * b[j]
    P_j = np.ascontiguousarray(P[:, j])
    M = np.eye(q) * (1 + JITTER)
    for i in range(q):
        for k in range(q):
            M[i, k] -= S[i] * P_j[j[i], k] * S[k]
    L, positive = _cholesky(M)
    if not positive:
        return -np.inf
    w = S * (S * a[j] - L @ z)
    logp = (0.25 * w**2 / b[j] ** 2 - np.abs(w) / b[j]).sum() + 0.5 * q * math.log(math.pi)
    w_bar = 0.5 * w / b[j] ** 2 - np.sign(w) / b[j]
    z_bar[:] = -L.T @ (S * w_bar)
    # Back through the Cholesky factor.
    L_bar = np.tril(-np.outer(S * w_bar, z))
    inner = np.tril(L.T @ L_bar)
    for i in range(q):
        inner[i, i] *= 0.5
    R = _inverse(L)
    M_bar = R.T @ inner @ R
    PS = P_j * S
    y = P_j @ (S**2 * w_bar)
    r_bar += y
    C_bar += 0.5 * PS @ (M_bar + M_bar.T) @ PS.T - 0.5 * (np.outer(y, a) + np.outer(a, y))
    return logp


@numba.njit(cache=True, error_model="numpy")
def noisy_sum(X, w, n, v, b, s, z, shift, factor):  # type: ignore[no-untyped-def]
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
    areas, K, m = X.shape
    logp, n_bar = np.empty(areas), np.zeros(areas)
    X_bar, w_bar, z_bar = np.zeros((areas, K, m)), np.zeros((areas, K)), np.zeros(z.shape)
    for i in range(areas):
        if not n[i] >= 0:
            logp[i] = -np.inf
            continue
        x = np.ascontiguousarray(X[i])
        mean = np.zeros(m)
        for k in range(K):
            for p in range(m):
                mean[p] += w[i, k] * x[k, p]
        centred = x - mean
        weighed = np.empty((K, m))
        for k in range(K):
            for p in range(m):
                weighed[k, p] = w[i, k] * centred[k, p]
        F = np.ascontiguousarray(factor[i])
        V = F @ (centred.T @ weighed) @ F.T
        right = mean + shift[i]
        r = s[i] - n[i] * right
        if m == 1 and b[0] > 0 and z.shape[1] == 0:
            logp[i], by_r, by_v = normal_laplace(r[0], n[i] * V[0, 0] + v[0], b[0])
            r_bar, C_bar = np.array([by_r]), np.array([[by_v]])
        else:
            C = n[i] * V
            for p in range(m):
                C[p, p] += v[p] + 2 * b[p] ** 2
            L, positive = _cholesky(C)
            if not positive:
                logp[i] = -np.inf
                continue
            R = _inverse(L)
            P = R.T @ R
            a = P @ r
            logp[i] = -0.5 * (a * r).sum() - 0.5 * m * math.log(2 * math.pi)
            for p in range(m):
                logp[i] -= math.log(L[p, p])
            r_bar = -a
            C_bar = 0.5 * (np.outer(a, a) - P)
            if z.shape[1] > 0:
                logp[i] += _laplace_terms(P, a, b, z[i], C_bar, r_bar, z_bar[i])
        n_bar[i] = (C_bar * V).sum() - (r_bar * right).sum()
        by_V = centred @ (F.T @ C_bar @ F)
        for k in range(K):
            for p in range(m):
                X_bar[i, k, p] = w[i, k] * n[i] * (2 * by_V[k, p] - r_bar[p])
                w_bar[i, k] += n[i] * (by_V[k, p] * centred[k, p] - r_bar[p] * x[k, p])
    return logp, X_bar, w_bar, n_bar, z_bar


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
    return noisy_sum
