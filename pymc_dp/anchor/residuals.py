r"""What pooled looks leave of the units' log-likelihoods: private residuals, and what is asked of them.

In coordinates :math:`\theta = \theta_r + W x`, unit i's anchor is a fixed linear function of its clipped terms in
all looks, of which weights :math:`w_t` and parts :math:`B_t` are public,

.. math::
    H_i = \sum_t w_t \tilde H_{i,t}, \qquad g_i = \sum_t B_t (\tilde g_{i,t} - H_i u_t), \qquad
    h_i(x) = \ell_i(\theta_r + Wx) - \ell_i(\theta_r) - g_i^\top W x - \tfrac12 (Wx)^\top H_i W x .

The looks have released the sums of the first two, with noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_dp.anchor.law import Pooled
from pymc_dp.linalg import Vector, as_matrix, as_vectors, clip, subtract_terms
from pymc_dp.records.questions import Gradient, Hessian, Units
from pymc_dp.records.sums import LastPoints, LocalRecords


@dataclass(frozen=True, eq=False)
class Expansion:
    r"""Around what residuals are: public, and small enough to travel.

    Parameters
    ----------
    pool : Pooled
        The looks, and how they are weighted.
    W : ndarray, shape (d, d)
        In coordinates x the posterior is about white.
    tempering : float
        T.
    """

    pool: Pooled
    W: Vector
    tempering: float = 1.0

    def to_theta(self, x: Vector) -> Vector:
        r""":math:`\theta_r + W x`."""
        return np.asarray(self.pool.law.centre + self.W @ x)

    @cached_property
    def inverse(self) -> Vector:
        """:math:`W^{-1}`."""
        return np.asarray(np.linalg.inv(self.W))

    def log_ratio(self, x: Vector) -> float:
        r""":math:`\hat\beta^\top u - \frac12 u^\top \hat A u`, u = Wx: what the looks say of the log-likelihood.

        With the curvature as it was released, so that with the residuals' sum the rest is noise of known law.
        """
        u = self.W @ x
        return float(self.beta @ u - u @ self.pool.curvature @ u / 2)

    @cached_property
    def beta(self) -> Vector:
        r""":math:`\hat\beta = \sum_t B_t (G_t + \hat A u_t)`."""
        pool = self.pool
        seen = [
            look.gradient + pool.curvature @ (look.theta - pool.law.centre) for look in pool.looks
        ]
        return np.asarray(np.einsum("tij,tj->i", pool.parts, np.array(seen)))

    @cached_property
    def key(self) -> bytes:
        """What units' terms depend on, to the last bit."""
        pool = self.pool
        arrays = [pool.law.centre, self.W, pool.weights, pool.parts]
        for look in pool.looks:
            bounds = [look.gradient_clip, look.hessian_clip, self.tempering]
            arrays += [look.theta, look.V, np.array(bounds)]
        return b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)


def reach(x: Vector, new: Vector) -> float:
    r""":math:`|x' - x| \max(|x|, |x'|, \sqrt d)^2`: how a third order's change grows with a move.

    The same in both directions, to the last bit. Not less than at a typical distance, as the looks were made
    about there.
    """
    far = max(float(x @ x), float(new @ new), float(len(x)))
    return float(np.linalg.norm(new - x)) * far


@dataclass(frozen=True, eq=False)
class Residual:
    r""":math:`h_i(x)`.

    Parameters
    ----------
    expansion : Expansion
    x : ndarray, shape (d,)
    """

    expansion: Expansion
    x: Vector
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.questions.Question`."""
        yield from residuals_of(records, self.expansion, units).at([self.x])


@dataclass(frozen=True, eq=False)
class ResidualRatio:
    r""":math:`h_i(x') - h_i(x)`.

    Parameters
    ----------
    expansion : Expansion
    x, new : ndarray, shape (d,)
    """

    expansion: Expansion
    x: Vector
    new: Vector
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.questions.Question`."""
        now, new = residuals_of(records, self.expansion, units).at([self.x, self.new])
        yield new - now


@dataclass(frozen=True, eq=False)
class ResidualSizes:
    """Largest size of a unit's residual ratios over :func:`reach`, between some public pairs of points.

    Parameters
    ----------
    expansion : Expansion
    pairs : ndarray, shape (pairs, 2, d)
        All are every unit's: which it has must not depend on how many others there are.
    """

    expansion: Expansion
    pairs: Vector
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.questions.Question`."""
        residuals = residuals_of(records, self.expansion, units)
        sizes = np.zeros(records.n_units)
        for x, new in self.pairs:
            sizes = np.maximum(sizes, np.abs(residuals(new) - residuals(x)) / reach(x, new))
        yield sizes


@dataclass(frozen=True, eq=False)
class Clipped:
    """Whether a unit's residual ratio is clipped in any of some moves: 1 or 0.

    Parameters
    ----------
    sizes : ResidualSizes
    clip : float
        c.
    """

    sizes: ResidualSizes
    clip: float
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.questions.Question`. What is not a number is clipped, to 0."""
        for sizes in self.sizes.terms(records, units):
            yield np.where(sizes <= self.clip, 0.0, 1.0)


def residuals_of(
    records: LocalRecords, expansion: Expansion, units: Units | None = None
) -> "Residuals":
    """The residuals of these records, which are kept for the next question."""
    if units is not None:
        raise NotImplementedError("Residuals are computed of all units.")
    kept = records.held
    if not (isinstance(kept, Residuals) and kept.expansion.key == expansion.key):
        kept = records.held = Residuals(records, expansion)
    return kept


class Residuals:
    r"""Units' residuals :math:`h_i(x)`. Private: never leave the process, not pickled.

    Units' terms are kept, one column of numbers for each entry of :math:`g_i` and :math:`H_i`, in single
    precision, which is as fine as the grid that their sums are released on.

    Parameters
    ----------
    records : LocalRecords
    expansion : Expansion
    """

    def __init__(self, records: LocalRecords, expansion: Expansion):
        self._records, self.expansion = records, expansion
        self._columns = np.ascontiguousarray(_terms(records, expansion).T, dtype=np.float32)
        self._at_zero = self._log_likelihood(expansion.pool.law.centre)
        self._last = LastPoints()

    def at(self, points: Sequence[Vector]) -> list[Vector]:
        """Residuals at some points, kept for the next time. Not to be changed in place."""
        return self._last(self, points)

    def __call__(self, x: Vector) -> Vector:
        """Residual of every unit, shape (units,). May contain NaN: clip before use."""
        h = self._log_likelihood(self.expansion.to_theta(x))
        v = np.append(x, as_vectors(np.outer(x, x)) / 2)
        subtract_terms(h, self._at_zero, self._columns, v)
        return h

    def _log_likelihood(self, theta: Vector) -> Vector:
        """Tempered, and new: it may be changed in place."""
        values = self._records.likelihood(theta)
        if self.expansion.tempering != 1:
            values *= self.expansion.tempering
        return values


def _terms(records: LocalRecords, expansion: Expansion) -> NDArray[np.float64]:
    r"""Units' :math:`W^\top g_i` and :math:`W^\top H_i W` as vectors, shape (units, d + d(d+1)/2)."""
    pool, W, T = expansion.pool, expansion.W, expansion.tempering
    d = len(W)
    p = d * (d + 1) // 2
    basis = [as_matrix(e, d) for e in np.eye(p)]
    g, H = np.zeros((records.n_units, d)), np.zeros((records.n_units, p))
    for look, w, B in zip(pool.looks, pool.weights, pool.parts, strict=True):
        at = look.theta, look.V, T
        X = look.inverse @ W
        L = w * np.array([as_vectors(X.T @ E @ X) for E in basis])
        start = 0
        for chunk in Hessian(*at).terms(records):
            H[start : start + len(chunk)] += clip(chunk, look.hessian_clip) @ L
            start += len(chunk)
        M, start = look.inverse @ B.T @ W, 0
        for chunk in Gradient(*at).terms(records):
            g[start : start + len(chunk)] += clip(chunk, look.gradient_clip) @ M
            start += len(chunk)
    for look, B in zip(pool.looks, pool.parts, strict=True):
        v = expansion.inverse @ (look.theta - pool.law.centre)
        g -= H @ np.array([E @ v for E in basis]) @ (expansion.inverse @ B.T @ W)
    return np.hstack([g, H])
