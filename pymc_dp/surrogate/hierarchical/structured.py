"""Symmetric matrices that are small blocks on the diagonal, and something of low rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector


@dataclass(frozen=True)
class Structured:
    r""":math:`B + U M U^\top`, B block-diagonal.

    Parameters
    ----------
    blocks : sequence of ndarray, shape (count, r, r)
        Of B, in order: `count` blocks of the same size r, then those of the next size.
    U : ndarray, shape (d, l)
    M : ndarray, shape (l, l)
        Symmetric.
    """

    blocks: Sequence[Vector]
    U: Vector
    M: Vector

    @classmethod
    def block_diagonal(cls, blocks: Sequence[Vector]) -> "Structured":
        """B alone."""
        d = sum(count * r for count, r, _ in map(np.shape, blocks))
        return cls(blocks, np.zeros((d, 0)), np.zeros((0, 0)))

    def parts(self, x: Vector) -> list[Vector]:
        """Shape (d, ...), cut into (count, r, ...)."""
        parts, start = [], 0
        for block in self.blocks:
            count, r, _ = block.shape
            parts.append(x[start : start + count * r].reshape(count, r, *x.shape[1:]))
            start += count * r
        return parts

    def of_blocks(self, x: Vector) -> Vector:
        """B x, for x of shape (d,) or (d, k)."""
        return np.concatenate([
            np.einsum("nij,nj...->ni...", block, part).reshape(part.shape[0] * part.shape[1], *x.shape[1:])
            for block, part in zip(self.blocks, self.parts(x), strict=True)
        ])  # fmt: skip

    def __matmul__(self, x: Vector) -> Vector:
        return self.of_blocks(x) + self.U @ (self.M @ (self.U.T @ x))

    @property
    def diagonal(self) -> Vector:
        """Shape (d,)."""
        own = [np.diagonal(block, axis1=1, axis2=2).ravel() for block in self.blocks]
        return np.asarray(np.concatenate(own) + np.einsum("dl,lk,dk->d", self.U, self.M, self.U))

    @property
    def own_blocks(self) -> list[Vector]:
        """What is on its diagonal, in blocks of the same sizes as B's."""
        low = zip(self.blocks, self.parts(self.U), strict=True)
        return [block + np.einsum("nil,lk,njk->nij", u, self.M, u) for block, u in low]

    @property
    def dense(self) -> Vector:
        """Shape (d, d)."""
        return self @ np.eye(len(self.U))

    def plus(self, blocks: Sequence[Vector], sign: float = 1.0) -> "Structured":
        """With blocks of the same sizes added to its own."""
        summed = [a + sign * b for a, b in zip(self.blocks, blocks, strict=True)]
        return Structured(summed, self.U, self.M)

    def between(self, S: "Structured") -> "Structured":
        """S self S, for a symmetric S whose blocks are of the same sizes."""
        own = [s @ b @ s for s, b in zip(S.blocks, self.blocks, strict=True)]
        X, none = self.of_blocks(S.U), np.zeros_like(S.M)
        M = np.block([[S.M @ (S.U.T @ X) @ S.M, S.M], [S.M, none]])
        of_blocks = Structured(own, np.hstack([S.U, S.of_blocks(X)]), M)
        return of_blocks.with_low_rank(S @ self.U, self.M)

    def sheared(self, R: Vector) -> "Structured":
        r""":math:`T^\top \text{self}\, T` for :math:`T(\varphi, \alpha) = (\varphi, \alpha + R\varphi)`, R of shape (d, p) with nothing in φ's rows."""
        d, p = R.shape
        P, BR, low, k = np.eye(d, p), self.of_blocks(R), self.U.copy(), len(self.M)
        low[:p] += R.T @ self.U
        M = np.zeros((k + 2 * p,) * 2)
        M[:k, :k], M[k : k + p, k : k + p] = self.M, R.T @ BR
        M[k : k + p, k + p :] = M[k + p :, k : k + p] = np.eye(p)
        return Structured(self.blocks, np.hstack([low, P, BR]), M)

    def spread(self, R: Vector) -> Vector:
        """The diagonal of T self Tᵀ, shape (d,): variances of what :meth:`sheared` is information of."""
        common = self @ np.eye(*R.shape)
        own = common[: R.shape[1]]
        of_both = 2 * np.einsum("dp,dp->d", R, common) + np.einsum("dp,pq,dq->d", R, own, R)
        return np.asarray(self.diagonal + of_both)

    def combined(self, other: "Structured", sign: float = 1.0) -> "Structured":
        """The sum of both, or their difference."""
        return self.plus(other.blocks, sign).with_low_rank(other.U, sign * other.M)

    def with_low_rank(self, U: Vector, M: Vector) -> "Structured":
        r"""With :math:`U M U^\top` added."""
        k, both = len(self.M), len(self.M) + len(M)
        of_both = np.zeros((both, both))
        of_both[:k, :k], of_both[k:, k:] = self.M, M
        return Structured(self.blocks, np.hstack([self.U, U]), of_both)

    @property
    def inverse(self) -> "Structured":
        """By Woodbury's formula, of the same form."""
        own = [np.asarray(np.linalg.inv(block), np.float64) for block in self.blocks]
        U = Structured(own, self.U, self.M).of_blocks(self.U)
        G = self.U.T @ U
        M = -self.M @ np.linalg.inv(np.eye(len(G)) + G @ self.M)
        return Structured(own, U, (M + M.T) / 2)
