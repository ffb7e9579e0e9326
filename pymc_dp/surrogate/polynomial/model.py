"""The released polynomial."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.linalg import Vector
from pymc_dp.surrogate.polynomial.basis import Basis, leverage


class Lost(Exception):
    """Nothing can be made of what was released. Public: a function of releases."""


@dataclass(frozen=True)
class Surrogate:
    r""":math:`S(\theta) = c \cdot q(\theta)`, the log-likelihood up to a constant. Nothing in it is private.

    Parameters
    ----------
    basis : Basis
        q.
    c : ndarray, shape (r,)
        Released: the truth plus normal noise.
    root : ndarray, shape (r, r)
        R; the noise has covariance :math:`R R^\top`.
    limit : float
        Leverage up to which it may be used.
    """

    basis: Basis
    c: Vector
    root: Vector
    limit: float

    @property
    def noise(self) -> float:
        """Nats: sd of what the noise adds to a log-density, over the design."""
        return float(np.linalg.norm(self.root))

    @property
    def high(self) -> float:
        """Nats, over the design, that are not quadratic: coefficients of degree 3 and more, less their noise."""
        high = self.basis.degrees > 2
        return float(np.sum(self.c[high] ** 2) - np.sum(self.root[high] ** 2))

    def at(self, theta: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        """Values of the polynomials at some points, and whether it may be used there."""
        with np.errstate(all="ignore"):
            q = self.basis(theta)
            usable = leverage(q) <= self.limit
        return np.where(usable[:, None], q, 0.0), usable

    def noise_over(self, q: Vector) -> float:
        """Nats of noise over some points, of which `q` are the values."""
        spread = np.atleast_2d(np.cov(q.T))
        return float(np.sqrt(max(np.trace(self.root.T @ spread @ self.root), 0.0)))

    def shift_of(self, theta: Vector, q: Vector) -> float:
        r"""How far noise may have moved the draws' mean: root mean square over parameters, in the draws' sds.

        To first order noise :math:`\xi \cdot q` in a log-density moves a mean by :math:`\operatorname{Cov}(\theta, q)\, \xi`.

        Parameters
        ----------
        theta : ndarray, shape (m, d)
            Draws without noise of their own.
        q : ndarray, shape (m, r)
            The basis there.
        """
        x = theta - theta.mean(axis=0)
        moved = x.T @ (q - q.mean(axis=0)) @ self.root / len(x)
        return float(np.sqrt(np.mean(np.sum(moved**2, axis=1) / np.maximum(x.var(axis=0), 1e-300))))


@dataclass(frozen=True)
class Found:
    """What a run has found out. Nothing in it is private.

    Parameters
    ----------
    surrogate : Surrogate
        Of the last evaluation.
    cloud : ndarray, shape (walkers, d)
        Of its design.
    reached : float
        β that the last round has reached.
    arrived : bool
        Whether the last design was where the posterior is, as far as could be told; or else the budget ran out.
    rounds : int
    high : float
        Nats of the last surrogate in degree 3 and higher, less noise.
    degree : int
        Of the polynomial.
    """

    surrogate: Surrogate
    cloud: Vector
    reached: float
    arrived: bool
    rounds: int
    high: float
    degree: int
