"""θ: what the free variables are to a sampler."""

import math
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace


class ParameterSpace:
    """The vectors θ of a model: its value variables (unconstrained scale), raveled and joined in order.

    Parameters
    ----------
    model : Model

    Attributes
    ----------
    shapes : mapping
        From the value variables' names, in order.
    start : ndarray, shape (d,)
        θ at the model's initial point.
    """

    def __init__(self, model: pm.Model):
        self.model = model
        point = model.initial_point(0)
        self.shapes = {v.name: np.shape(point[v.name]) for v in model.value_vars}
        self.start: NDArray[np.float64] = np.concatenate(
            [np.ravel(point[name]).astype(float) for name in self.shapes]
        )

    @property
    def d(self) -> int:
        """Length of θ."""
        return len(self.start)

    def join(self, outputs: list[Variable]) -> tuple[list[Variable], Variable]:
        """`outputs` as functions of one symbolic vector θ, and that vector."""
        theta = pt.vector("theta", shape=(self.d,))
        parts = {
            value: value.type.filter_variable(part.astype(value.type.dtype))
            for value, part in zip(self.model.value_vars, self._split(theta), strict=True)
        }
        return clone_replace(outputs, parts, rebuild_strict=False), theta

    def point(self, theta: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Values of the value variables at θ, by name."""
        return dict(zip(self.shapes, self._split(theta), strict=True))

    def _split(self, theta: Any) -> list[Any]:
        """θ, symbolic or not, cut into the value variables."""
        parts, start = [], 0
        for shape in self.shapes.values():
            stop = start + math.prod(shape)
            parts.append(theta[start:stop].reshape(shape))
            start = stop
        return parts

    @cached_property
    def labels(self) -> list[str]:
        """Names of the entries of θ: the variable, its labels, and how it was transformed.

        Labels of records are not among them: no free variable has one value per record.
        """
        model, labels = self.model, []
        for rv in model.free_RVs:
            name = model.rvs_to_values[rv].name
            shape, dims = self.shapes[name], model.named_vars_to_dims.get(rv.name, ())
            transform = name.removeprefix(rv.name).strip("_")
            coords = [model.coords.get(dim) for dim in dims] or [None] * len(shape)
            axes = [
                coord if coord is not None and len(coord) == size else range(size)
                for coord, size in zip(coords, shape, strict=False)
            ]
            for index in product(*axes):
                place = f"[{', '.join(map(str, index))}]" if index else ""
                labels.append(rv.name + place + (f" ({transform})" if transform else ""))
        return labels

    def largest(self, values: NDArray[np.float64], most: int = 3) -> str:
        """The entries with the largest values, and these, in words."""
        named = ", ".join(
            f"{self.labels[k]} by {values[k]:.1f}" for k in np.argsort(-values)[:most]
        )
        return named + (" and others" if self.d > most else "")
