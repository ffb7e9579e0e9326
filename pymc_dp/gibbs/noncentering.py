r"""Records as functions of θ and of noise whose law does not depend on θ.

A latent variable :math:`x_i \sim f(\cdot \mid \theta)` of a known family is written
:math:`x_i = x(\theta, z_i)`: :math:`\mu + \sigma z` for location-scale families, :math:`\sigma z` for
scale families, and so on. Latents of other families are left as they are.
"""

from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace

from pymc_dp.gibbs.structure import Structure, depends
from pymc_dp.mechanisms.families import FAMILIES


class Noncentering(NamedTuple):
    """The map between records and noise, as graphs.

    Attributes
    ----------
    moved : list
        Latent variables that move with θ.
    noise : list
        Symbolic z, one per moved latent.
    noise_of_records : list
        z as a function of the model's value variables.
    new_values : dict
        Value variable of each moved latent, as a function of θ's value variables and of z.
    """

    moved: list[Any]
    noise: list[Any]
    noise_of_records: list[Any]
    new_values: dict[Any, Any]


def noncenter(model: pm.Model, structure: Structure) -> Noncentering:
    """Write the latents that depend on θ, and whose family is known, with noise free of θ.

    A latent that depends on θ only through latents that are moved is moved too, so that noise
    further down the hierarchy stays fixed.
    """
    map_ = Noncentering([], [], [], {})
    for latent in structure.latents:
        op = latent.owner.op
        family = FAMILIES.get(type(op))
        if family is None:
            continue
        parameters = list(op.dist_params(latent.owner))
        moving = [depends(p, [*structure.parameters, *map_.moved]) for p in parameters]
        if not any(moving) or any(moving[i] for i in family.shapes):
            continue
        x, *now = model.replace_rvs_by_values([latent, *parameters])
        z = x.type(f"{latent.name}_noise")
        new = clone_replace(now, replace=map_.new_values, rebuild_strict=False)
        moved = family.record(z, *new)
        value = model.rvs_to_values[latent]
        transform = model.rvs_to_transforms[latent]
        if transform is not None:
            by_name = dict(zip(parameters, new, strict=True))
            moved = transform.forward(moved, *(by_name.get(i, i) for i in latent.owner.inputs))
        map_.moved.append(latent)
        map_.noise.append(z)
        map_.noise_of_records.append(family.noise(x, *now))
        map_.new_values[value] = pt.specify_shape(moved, value.type.shape).astype(value.dtype)
    return map_
