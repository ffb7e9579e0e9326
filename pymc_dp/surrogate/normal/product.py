r"""Normal laws of disjoint people, multiplied, and whether they say the same. All of it is computed from released numbers.

Law j says of θ that its mode :math:`m_j \sim N(\theta, K_j^{-1})`, noise included. Independent ones multiply: precisions
:math:`K_j` and slopes add up, as owners' sums do. Where each group has parameters of its own, :math:`\theta_j \sim N(\theta, D)`,
they are laws of their mean θ with covariances :math:`K_j^{-1} + D`: random effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from pymc_dp.linalg import Vector, positive, symmetric
from pymc_dp.surrogate.normal.law import Law

_LEAST = 1e-9
"""Of a parameter's information: a direction with less is one that nothing is known of."""


def product(laws: Sequence[Law], spread: Vector | None = None) -> Law:
    """The law of all together, about the first one's place.

    Its noise is the S for which :math:`J (J + S)^{-1} J` is the sum of the precisions K, with the sum J of the information.

    Parameters
    ----------
    laws : sequence of Law
        Of the same parameters, and of independent people.
    spread : ndarray, shape (d,), optional
        Variances between groups: the law is of the mean over groups then.
    """
    centre, d = laws[0].centre, len(laws[0].centre)
    D = np.zeros(d) if spread is None else spread

    def wider(precision: Vector, of: Vector) -> Vector:
        return np.asarray(np.linalg.solve(np.eye(d) + precision * D, of))

    J = symmetric(np.sum([wider(law.J, law.J) for law in laws], axis=0))
    K = symmetric(np.sum([wider(law.K, law.K) for law in laws], axis=0))
    slopes = [wider(law.K, law.k + law.K @ (law.centre - centre)) for law in laws]
    # In units in which the information on each parameter is 1; it is 0 where the likelihood does not read one.
    unit = np.sqrt(np.where(np.diag(J) > 0, np.diag(J), 1.0))
    J_, K_ = J / np.outer(unit, unit), K / np.outer(unit, unit)
    gain = J_ @ np.linalg.inv(positive(K_, _LEAST))
    S = positive(symmetric(gain @ J_) - J_, 0.0)
    return Law(centre, unit * (gain @ (sum(slopes) / unit)), J, S * np.outer(unit, unit))


@dataclass(frozen=True)
class Agreement:
    """What independent groups say of every parameter that the likelihood reads, and whether it is the same.

    Parameters
    ----------
    read : ndarray of int64, shape (p,)
        Which parameters.
    estimates, sds : ndarray, shape (groups, p)
        Each group's own, without a prior, noise included.
    z : ndarray, shape (groups, p)
        Each group's distance from all together, in its standard deviations.
    fixed, random : tuple of ndarray, each of shape (p,)
        Mean and sd of all together, if they are the same, and of their mean, if they are not.
    between : ndarray, shape (p,)
        Standard deviation between groups, by the method of moments (DerSimonian and Laird, 1986).
    p : float
        Of Cochran's Q for all parameters at once.
    p_largest : float
        Of the largest z, for as many as there are (Bonferroni).
    """

    read: NDArray[np.int64]
    estimates: Vector
    sds: Vector
    z: Vector
    fixed: tuple[Vector, Vector]
    random: tuple[Vector, Vector]
    between: Vector
    p: float
    p_largest: float

    @property
    def p_worst(self) -> float:
        """The smaller of both."""
        return min(self.p, self.p_largest)


def agreement(laws: Sequence[Law]) -> Agreement:
    """Compare what laws say.

    Parameters
    ----------
    laws : sequence of Law
        Two or more, of independent people.
    """
    total = np.sum([law.K for law in laws], axis=0)
    read = np.flatnonzero(np.diag(total) > 0)
    square, unit, centre = np.ix_(read, read), np.diag(total)[read] ** -0.5, laws[0].centre[read]
    K = np.array([positive(np.outer(unit, unit) * law.K[square], _LEAST) for law in laws])
    V = np.linalg.inv(K)
    x = np.array([
        (law.centre[read] - centre) / unit + v @ (unit * law.k[read])
        for law, v in zip(laws, V, strict=True)
    ])  # fmt: skip
    mean, covariance = _pooled(K, x)
    off, variances = x - mean, np.diagonal(V, axis1=1, axis2=2)
    z = off / np.sqrt(np.maximum(variances - np.diag(covariance), 1e-6 * variances))
    w = 1 / variances
    Q = (w * (x - (w * x).sum(axis=0) / w.sum(axis=0)) ** 2).sum(axis=0)
    between = np.maximum(Q - (len(laws) - 1), 0.0) / (w.sum(0) - (w**2).sum(0) / w.sum(0))
    of_mean, of_random = _pooled(np.linalg.inv(V + np.diag(between)), x)

    def told(mean: Vector, covariance: Vector) -> tuple[Vector, Vector]:
        return centre + unit * mean, unit * np.sqrt(np.diag(covariance))

    return Agreement(
        read, centre + unit * x, unit * np.sqrt(variances), z,
        told(mean, covariance), told(of_mean, of_random), unit * np.sqrt(between),
        p=float(chi2.sf(np.einsum("gi,gij,gj->", off, K, off), (len(laws) - 1) * len(read))),
        p_largest=float(min(1.0, 2 * z.size * norm.sf(np.abs(z).max()))),
    )  # fmt: skip


def _pooled(precisions: Vector, x: Vector) -> tuple[Vector, Vector]:
    """Mean and covariance of independent normal measurements of one vector."""
    covariance = np.linalg.inv(precisions.sum(axis=0))
    return covariance @ np.einsum("gij,gj->i", precisions, x), covariance
