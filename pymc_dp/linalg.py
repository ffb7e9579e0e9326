"""Rows of vectors, symmetric matrices, and linear terms of many units at once."""

import math

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Vector = NDArray[np.float64]


def norms(vectors: Vector) -> Vector:
    """Euclidean norm of each row."""
    return np.asarray(np.linalg.norm(vectors, axis=1))


def shrink(norms: Vector, bound: float | Vector) -> Vector:
    """Factors that clip vectors of these norms, to one bound or each to its own; 0 for what is not finite."""
    return np.where(np.isfinite(norms), np.minimum(1.0, bound / np.maximum(norms, 1e-300)), 0.0)


def clip(vectors: Vector, bound: float) -> Vector:
    """Rows clipped to a norm; those that are not finite become 0."""
    factors = shrink(norms(vectors), bound)[:, None]
    return np.where(factors > 0, vectors, 0.0) * factors


def as_vectors(matrices: Vector) -> Vector:
    """Symmetric matrices as vectors of the same norm: off-diagonal entries count twice."""
    d = matrices.shape[-1]
    i, j = np.tril_indices(d)
    return np.asarray(matrices[..., i, j] * np.where(i == j, 1.0, math.sqrt(2)))


def squares(z: Vector, weights: Vector | None = None, out: Vector | None = None) -> Vector:
    r""":func:`as_vectors` of :math:`\sum_k w_k z_k z_k^\top`, shape (units, d (d + 1) / 2), of z of shape (k, units, d).

    Column by column, as matrices of units are 25 times as slow to make (d = 100).
    """
    d, right = z.shape[2], np.ascontiguousarray(z.transpose(0, 2, 1))
    left = right if weights is None else right * weights[:, None, :]
    packed = np.empty((d * (d + 1) // 2, z.shape[1])) if out is None else out.T
    start = 0
    for j in range(d):
        row = packed[start : start + j + 1]
        np.einsum("kn,kin->in", left[:, j], right[:, : j + 1], out=row)
        row[:j] *= math.sqrt(2)
        start += j + 1
    return packed.T


def norms_of_squares(z: Vector, weights: Vector) -> Vector:
    r"""Norms of :func:`squares`, shape (units,): the square of one is :math:`\sum_{kl} w_k w_l (z_k^\top z_l)^2`."""
    roots = (z * np.sqrt(weights)[:, :, None]).transpose(1, 0, 2)
    return np.asarray(np.linalg.norm(roots @ roots.transpose(0, 2, 1), axis=(1, 2)))


def as_matrix(vectors: Vector, d: int) -> Vector:
    """The inverse of :func:`as_vectors`, of one vector or of many."""
    i, j = np.tril_indices(d)
    matrices = np.zeros((*vectors.shape[:-1], d, d))
    matrices[..., i, j] = matrices[..., j, i] = vectors / np.where(i == j, 1.0, math.sqrt(2))
    return matrices


def symmetric(matrix: Vector) -> Vector:
    """The symmetric part, of what rounding has made asymmetric."""
    return np.asarray((matrix + matrix.T) / 2)


def floored(matrix: Vector, least: float) -> Vector:
    """Positive definite, with eigenvalues as they are in size, but `least` at least."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(np.abs(values), least)) @ vectors.T)


def inverse_root(matrix: Vector) -> Vector:
    """The symmetric R with R matrix R the identity."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def power(matrix: Vector, p: float) -> Vector:
    """The symmetric p-th power of a positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values**p) @ vectors.T)


def positive(matrix: Vector, least: float = 1e-9) -> Vector:
    """Symmetric, with negative eigenvalues taken for `least`; of one matrix or of many, shape (..., d, d)."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(
        (vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    )


def denoised(matrix: Vector, sd: float) -> Vector:
    r"""What to believe of a symmetric matrix seen with noise: its eigenvectors, eigenvalues drawn together.

    Noise drives eigenvalues apart, and turns eigenvectors into each other. The estimator that keeps the
    eigenvectors and is best in mean square has :math:`\lambda_i - s^2 \sum_j \operatorname{Re}
    (\lambda_i - \lambda_j - i\eta)^{-1}` (Bun, Bouchaud and Potters, 2017, for additive Gaussian noise), its trace
    is that of the matrix.

    Parameters
    ----------
    matrix : ndarray, shape (d, d)
    sd : float
        s, of the noise on the diagonal; √½ times that elsewhere.
    """
    values, vectors = np.linalg.eigh(matrix)
    gaps = values[:, None] - values
    # Eigenvalues that are closer than the noise are not told apart.
    drift = sd**2 * (gaps / (gaps**2 + sd**2 + 1e-300)).sum(axis=1)
    return np.asarray((vectors * (values - drift)) @ vectors.T)


def mean_if_positive(values: Vector, sd: float) -> Vector:
    """Means of positive numbers that were seen with noise, nothing else being known of them."""
    if not sd > 0:
        return np.maximum(values, 1e-9)
    z = values / sd
    # Mills' ratio, by its asymptote where both of its parts underflow.
    ratio = np.exp(-(z**2) / 2 - log_ndtr(z)) / math.sqrt(2 * math.pi)
    return np.maximum(values + sd * ratio, 1e-9)


def product_covariance(vv: Vector, sd: float) -> Vector:
    r"""Covariance of Ξv, Ξ symmetric noise with `sd` on its diagonal and √½ times that elsewhere.

    Parameters
    ----------
    vv : ndarray, shape (d, d)
        :math:`v v^\top`, or its mean if v is uncertain.
    sd : float
    """
    return np.asarray(sd**2 / 2 * (np.trace(vv) * np.eye(len(vv)) + vv))


@numba.njit(cache=True, error_model="numpy")
def subtract_terms(  # type: ignore[no-untyped-def]
    values, at_zero, columns, v
):
    """Take at_zero + Σ_k columns[k] v[k] from `values`, in place; shapes (n,), (n,), (p, n), (p,).

    Block by block, so that every block stays in the cache through all of its columns.
    """
    p = len(v)
    for start in range(0, len(values), 2048):
        # Slices and numbers of their own: indexed by `start + i` and k, they would not be vectorised.
        some = slice(start, start + 2048)
        block, zero = values[some], at_zero[some]
        for i in range(block.size):
            block[i] -= zero[i]
        for k in range(0, p - 3, 4):  # four at a time: a block is read and written less often
            a, b, c, d = (
                columns[k, some],
                columns[k + 1, some],
                columns[k + 2, some],
                columns[k + 3, some],
            )
            va, vb, vc, vd = v[k], v[k + 1], v[k + 2], v[k + 3]
            for i in range(block.size):
                block[i] -= a[i] * va + b[i] * vb + c[i] * vc + d[i] * vd
        for k in range(p - p % 4, p):
            a, va = columns[k, some], v[k]
            for i in range(block.size):
                block[i] -= a[i] * va
