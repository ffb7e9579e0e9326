"""Graded polynomials, orthonormal over a design."""

import math
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from pymc_dp.linalg import Vector, power
from pymc_dp.surrogate.polynomial.chart import Chart

Places = NDArray[np.int64]

_COLLINEAR = 1e-7
"""Monomials of which the earlier ones leave less than this, over the design, are left out."""


def exponents(d: int, degree: int) -> Places:
    """Of all monomials in d variables up to a degree, graded, the constant first; shape (terms, d)."""
    found = []
    for k in range(degree + 1):
        for factors in combinations_with_replacement(range(d), k):
            found.append([factors.count(j) for j in range(d)])
    return np.array(found, dtype=np.int64)


def terms_of(d: int, degree: int) -> int:
    """How many monomials there are besides the constant."""
    return math.comb(d + degree, d) - 1


class Basis:
    r"""Polynomials :math:`q_1, \dots, q_r` of mean 0 with :math:`\sum_k q_i(\theta_k) q_j(\theta_k) = K 1_{i=j}`.

    By QR of the monomials in coordinates in which the design is white, lower degrees first: the first d are
    linear, the next ones quadratic.

    Parameters
    ----------
    design : ndarray, shape (K, d)
        More points than terms.
    degree : int
    chart : Chart, optional
        Of its coordinates they are polynomials. Default: of the parameters.
    """

    def __init__(self, design: Vector, degree: int, chart: Chart | None = None):
        self.degree, self.chart = degree, chart
        design_in = design if chart is None else chart(design)[0]
        self._centre = design_in.mean(axis=0)
        spread = np.atleast_2d(np.cov(design_in.T))
        # Scaled first: parameters may differ by orders of magnitude.
        sds = np.sqrt(np.maximum(np.diag(spread), 1e-300))
        shape = spread / np.outer(sds, sds) + 1e-12 * np.eye(len(sds))
        self._whiten = power(shape, -0.5) / sds[:, None]
        self._exponents = exponents(design.shape[1], degree)
        monomials = self._monomials(design)
        Q, R = np.linalg.qr(monomials)
        new = np.abs(np.diag(R)) > _COLLINEAR * np.linalg.norm(monomials, axis=0)
        if not new.all():
            self._exponents = self._exponents[new]
            Q, R = np.linalg.qr(self._monomials(design))
        self._combine = np.linalg.inv(R)[:, 1:] * math.sqrt(len(design))
        self.projection: Vector = Q[:, 1:] / math.sqrt(len(design))
        """Shape (K, r): values at the design to least-squares coefficients."""
        self.degrees: Places = self._exponents.sum(axis=1)[1:]
        """Of every polynomial, shape (r,)."""

    def __len__(self) -> int:
        return len(self.degrees)

    def __call__(self, theta: Vector) -> Vector:
        """Values at some points, shape (points, d) to (points, r)."""
        return np.asarray(self._monomials(theta) @ self._combine)

    @cached_property
    def blocks(self) -> list[Places]:
        """Places of the polynomials of degree 1, of 2, of 3 and 4, and of higher ones."""
        group = np.digitize(self.degrees, [2, 3, 5])
        return [np.flatnonzero(group == k) for k in range(4) if np.any(group == k)]

    def _monomials(self, theta: Vector) -> Vector:
        u = theta if self.chart is None else self.chart(theta)[0]
        u = (u - self._centre) @ self._whiten
        powers = [np.ones_like(u)]
        for _ in range(self.degree):
            powers.append(powers[-1] * u)
        stacked = np.array(powers)
        values = stacked[self._exponents[:, 0], :, 0]
        for j in range(1, u.shape[1]):
            values = values * stacked[self._exponents[:, j], :, j]
        return np.asarray(values.T)


def leverage(q: Vector) -> Vector:
    r""":math:`|q(\theta)|^2 / r`, whose mean over the design is 1: how far a surrogate is from what it has seen."""
    return np.asarray(np.einsum("ij,ij->i", q, q) / q.shape[1])
