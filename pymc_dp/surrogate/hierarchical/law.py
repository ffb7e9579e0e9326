r"""What all evaluations of groups say together: :math:`\hat\beta \sim N(J(\tilde\psi - \tilde\psi_0),\, J + S)`.

Here :math:`\tilde\psi = (\varphi, \alpha + R\varphi)`: the score in φ, rows given, is that of a unit less what its rows' score tells of
it, and noise in rows is none in φ. J has a block for φ, a small block for every row, and what couples tables.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.surrogate.hierarchical.structured import Structured


@dataclass(frozen=True)
class GroupLaw:
    r""":math:`\hat\beta \sim N(J(\tilde\psi - \tilde\psi_0), J + S)`, of which S is block-diagonal but for what totals tell.

    Parameters
    ----------
    centre, beta : ndarray, shape (n,)
        :math:`\psi_0` and :math:`\hat\beta`.
    J : Structured
    S : Structured
        Blocks are of the sizes of J's.
    R : ndarray, shape (n, p)
        Of :math:`\tilde\psi`; 0 in φ's rows.
    """

    centre: Vector
    beta: Vector
    J: Structured
    S: Structured
    R: Vector

    @cached_property
    def _inverse(self) -> Structured:
        """Of J + S."""
        return self.J.combined(self.S).inverse

    @cached_property
    def K(self) -> Structured:  # noqa: N802
        r"""The information about ψ: of ψ̃ it is :math:`J (J + S)^{-1} J = J - S + S (J + S)^{-1} S`."""
        known = self.J.combined(self.S, -1.0).combined(self._inverse.between(self.S))
        return known.sheared(self.R)

    @cached_property
    def k(self) -> Vector:
        r""":math:`J (J + S)^{-1} \hat\beta`, in ψ."""
        k = np.array(self.beta - self.S @ (self._inverse @ self.beta))
        k[: self.R.shape[1]] += self.R.T @ k
        return k

    def privacy_shifts(self, prior_sds: Vector) -> Vector:
        """How far noise moves every entry of ψ, in posterior standard deviations without it, shape (n,).

        A posterior that knows of its noise is wider by the variance of what noise moves the mean by. Where nothing is to be learnt of an entry
        beside its prior, noise does not move it.
        """
        exact = (
            self.J.sheared(self.R).plus(diagonal_blocks(self.J, prior_sds**-2.0)).inverse.diagonal
        )
        noisy = self.covariance(prior_sds).diagonal
        return np.asarray(np.sqrt(np.maximum(noisy / exact - 1, 0.0)))

    def covariance(self, prior_sds: Vector) -> Structured:
        """Posterior covariance of ψ, given how wide the prior is there."""
        return self.K.plus(diagonal_blocks(self.J, prior_sds**-2.0)).inverse


class Belief(NamedTuple):
    """Where ψ is thought to be, and how sure that is.

    Parameters
    ----------
    mode : ndarray, shape (n,)
    variances : ndarray, shape (n,)
        Of ψ̃.
    of_rows : ndarray, shape (n - p,)
        Of α.
    """

    mode: Vector
    variances: Vector
    of_rows: Vector

    @classmethod
    def of(cls, mode: Vector, covariance: Structured, R: Vector) -> "Belief":
        """By the covariance of ψ."""
        return cls(mode, covariance.spread(R), covariance.diagonal[R.shape[1] :])

    def half_way(self, other: "Belief") -> "Belief":
        """Between two."""
        return Belief(*((x + y) / 2 for x, y in zip(self, other, strict=True)))


def diagonal_blocks(like: Structured, values: Vector) -> list[Vector]:
    """A diagonal matrix as blocks of the same sizes as another's."""
    parts = like.parts(values)
    return [part[..., None] * np.eye(part.shape[1]) for part in parts]
