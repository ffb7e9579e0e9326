r"""What the likelihood reads of θ, where these are other numbers: :math:`\ell_i(\theta) = \ell_i(\psi(\theta))`.

Of ``z * tau * lam`` it reads the products. So near the mode it is normal in these, and nowhere in θ.
"""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_dp.likelihood.compilation import interpreted
from pymc_dp.linalg import Vector

_STEPS = 20
"""Newton steps to a θ that has some ψ, at most: where ψ is linear in some entries of θ, as of effects, it takes one."""
_CLOSE = 1e-8
"""As parts of ψ, or of 1."""


class Place(NamedTuple):
    r"""A θ, and how scores in ψ follow from those there.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    inverse : ndarray, shape (d, p)
        :math:`D^\top (D D^\top)^{-1}`, with D the derivative of ψ: as :math:`\nabla_\theta \ell = D^\top \nabla_\psi \ell`, a score
        in θ times this is the one in ψ, whichever θ with that ψ it is taken at.
    """

    theta: Vector
    inverse: Vector


class Reading:
    r"""ψ(θ), of length p, and a way back.

    Parameters
    ----------
    theta : Variable, shape (d,)
    psi : list of Variable
        Functions of it, that make up ψ together.
    start : ndarray, shape (d,)
        Where the way back begins.

    Attributes
    ----------
    theta, psi : Variable, shapes (d,) and (p,)
    start : ndarray, shape (p,)
        ψ there.
    """

    def __init__(self, theta: Variable, psi: list[Variable], start: Vector):
        whole = pt.concatenate([part.ravel() for part in psi])
        v = pt.vector("v")
        slope = pytensor.grad(pt.sum(whole * v), theta, disconnected_inputs="ignore")
        settings = {"mode": interpreted(), "on_unused_input": "ignore"}
        self._psi = pytensor.function([theta], whole, **settings)
        self._slope = pytensor.function([theta, v], slope, **settings)
        self.theta, self.psi, self._from = theta, whole, start
        self.start: Vector = self(start)
        self._last: tuple[bytes, Place] | None = None

    def __call__(self, theta: Vector) -> Vector:
        """ψ, shape (p,)."""
        return np.asarray(self._psi(theta))

    def many(self, thetas: Vector) -> Vector:
        """ψ at many θ, shape (points, d) to (points, p)."""
        points = pt.matrix("points", shape=(None, len(self._from)))
        whole = vectorize_graph(self.psi, {self.theta: points})
        return np.asarray(pytensor.function([points], whole, mode=interpreted())(thetas))

    def derivative(self, theta: Vector) -> Vector:
        """D, shape (p, d)."""
        return np.array([self._slope(theta, e) for e in np.eye(len(self.start))])

    def place(self, psi: Vector) -> Place:
        """A θ with this ψ; the same whenever it is asked for.

        Raises
        ------
        LinAlgError
            If none is found.
        """
        if self._last is None or self._last[0] != psi.tobytes():
            self._last = psi.tobytes(), self._found(psi)
        return self._last[1]

    def _found(self, psi: Vector) -> Place:
        theta = self._from.copy()
        for _ in range(_STEPS):
            off = psi - self(theta)
            D = self.derivative(theta)
            inverse = D.T @ np.linalg.inv(D @ D.T)
            if (np.abs(off) <= _CLOSE * (1 + np.abs(psi))).all():
                return Place(theta, inverse)
            theta = theta + inverse @ off
        raise np.linalg.LinAlgError(
            "No parameters were found of which the likelihood reads these numbers."
        )
