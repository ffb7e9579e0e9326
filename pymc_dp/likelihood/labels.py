"""What messages call the entries of θ."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pymc as pm
from numpy.typing import NDArray


def parameter_labels(model: pm.Model) -> list[str]:
    """Names of the entries of θ, in order: the variable, its labels, and how it was transformed.

    Labels of records are not among them: no free variable has one value per record.
    """
    point, labels = model.initial_point(0), []
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv]
        shape, dims = point[value.name].shape, model.named_vars_to_dims.get(rv.name, ())
        transform = value.name.removeprefix(rv.name).strip("_")
        coords = [model.coords.get(dim) for dim in dims] or [None] * len(shape)
        axes = [
            coord if coord is not None and len(coord) == size else range(size)
            for coord, size in zip(coords, shape, strict=False)
        ]
        for index in product(*axes):
            place = f"[{', '.join(map(str, index))}]" if index else ""
            labels.append(rv.name + place + (f" ({transform})" if transform else ""))
    return labels


def largest(labels: Sequence[str], values: NDArray[np.float64], most: int = 3) -> str:
    """The entries with the largest values, and these, in words."""
    order = np.argsort(-values)[:most]
    named = ", ".join(f"{labels[k]} by {values[k]:.1f}" for k in order)
    return named + (" and others" if len(labels) > most else "")
