"""Logs of sums and of normal integrals of positive functions, as graphs of one shape for whatever data."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import UnaryScalarOp, same_out
from pytensor.tensor.elemwise import Elemwise

_PASSES = 3
"""Rounds of looking for the integrand. Each finds it if it is no narrower than half the spacing of the one before: with 15
points two find a twentieth of the normal's standard deviation to 5e-3, three to 1e-7, and no round's derivative is taken."""
_REACH = 5.0
"""Standard deviations on each side that points cover: beyond is less than a millionth of a normal integral."""


class _Held(UnaryScalarOp):
    """A number that is a constant when derivatives are taken.

    PyTensor's ``disconnected_grad`` is a view, and PyMC takes views away before it takes derivatives.
    """

    # NumPy's name of x -> x, by which modes that do not compile C know it.
    nfunc_spec = ("positive", 1, 1)

    def impl(self, x: Any) -> Any:
        return x

    def c_code(self, node: Any, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        return f"{outputs[0]} = {inputs[0]};"

    def connection_pattern(self, node: Any) -> list[list[bool]]:
        return [[False]]


_held = Elemwise(_Held(same_out, name="held"))


def log_expectation(
    log_f: Callable[[Sequence[Variable]], Variable], many: Variable, d: int, points: int
) -> Variable:
    r"""Log of :math:`\int f(z)\, N(z;\, 0, I)\, dz`, for many functions f at once.

    Evenly spaced points, around the mean of the integrand and as wide as it is: an integral of a smooth function that
    vanishes at both ends converges faster so than any power of the spacing (Trefethen and Weideman 2014). Mean and
    width are found by the same points, first as wide as the normal is. They are constants when derivatives are taken,
    as an integral does not depend on where its points are.

    Parameters
    ----------
    log_f : callable
        From the d coordinates of nodes, each of shape (many, nodes), to log f at them.
    many : Variable
        How many functions.
    d : int
        Dimensions of z; with 0 it is log f.
    points : int
        In each dimension.

    Returns
    -------
    Variable, shape (many,)
    """
    if not d:
        return log_f([])[:, 0]
    spacing = 2 * _REACH / (points - 1)
    # No array: it might be one of records.
    number = pt.arange(points**d)
    grid = [(number // points**j % points) * spacing - _REACH for j in range(d)]
    centres, widths = [pt.zeros((many, 1))] * d, [pt.ones((many, 1))] * d

    def nodes() -> list[Variable]:
        each = zip(centres, widths, grid, strict=True)
        return [_held(m + s * x) for m, s, x in each]

    def log_integrand(z: Sequence[Variable]) -> Variable:
        return log_f(z) - sum(0.5 * x**2 + 0.5 * np.log(2 * np.pi) for x in z)

    for _ in range(_PASSES):
        z = nodes()
        weight = pt.special.softmax(log_integrand(z), axis=1)
        centres = [(weight * x).sum(axis=1, keepdims=True) for x in z]
        variances = [
            (weight * (x - m) ** 2).sum(axis=1, keepdims=True)
            for x, m in zip(z, centres, strict=True)
        ]
        # Between two points nothing is known.
        widths = [
            pt.sqrt(pt.maximum(v, (s * spacing / 2) ** 2))
            for v, s in zip(variances, widths, strict=True)
        ]
    apart = [pt.log(_held(s[:, 0]) * spacing) for s in widths]
    return log_sum(log_integrand(nodes())) + sum(apart)


def log_sum(terms: Variable) -> Variable:
    """Log of the sum of exponentials over axis 1, without overflow in any mode of PyTensor."""
    top = _held(terms.max(axis=1))
    top = pt.switch(pt.isinf(top), 0.0, top)
    # As log(sum(exp)) PyTensor would put a sum of its own in its place, whose derivative takes twice as long to compile.
    return top + pt.log1p(pt.exp(terms - top[:, None]).sum(axis=1) - 1)
