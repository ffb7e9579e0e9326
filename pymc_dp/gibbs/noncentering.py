r"""Records as functions of θ and of noise whose law does not depend on θ.

A latent variable :math:`x_i \sim f(\cdot \mid \theta)` of a known family is written
:math:`x_i = x(\theta, z_i)`: :math:`\mu + \sigma z` for location-scale families, :math:`\sigma z` for
scale families, and so on. Latents of other families are left as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random import basic as rv

from pymc_dp.gibbs.structure import Structure, depends


class Family(NamedTuple):
    """How the draws of a distribution are made of noise.

    Attributes
    ----------
    noise : callable
        z from x and the distribution's parameters.
    record : callable
        x from z and the distribution's parameters; for fixed parameters the inverse of `noise`.
    shapes : tuple of int
        Parameters on which the law of z depends; they must not depend on θ.
    """

    noise: Callable[..., Any]
    record: Callable[..., Any]
    shapes: tuple[int, ...] = ()


_LOCATION_SCALE = Family(lambda x, m, s: (x - m) / s, lambda z, m, s: m + s * z)
_SCALE = Family(lambda x, s: x / s, lambda z, s: s * z)
_SHAPE_SCALE = Family(lambda x, _, s: x / s, lambda z, _, s: s * z, shapes=(0,))
_LOG_NORMAL = Family(lambda x, m, s: (pt.log(x) - m) / s, lambda z, m, s: pt.exp(m + s * z))
_UNIFORM = Family(lambda x, a, b: (x - a) / (b - a), lambda z, a, b: a + (b - a) * z)
_STUDENT_T = Family(lambda x, _, m, s: (x - m) / s, lambda z, _, m, s: m + s * z, shapes=(0,))


def _whiten(x: Any, m: Any, covariance: Any) -> Any:
    centered = (x - m)[..., None]
    return pt.linalg.solve_triangular(
        pt.linalg.cholesky(covariance), centered, lower=True, b_ndim=2
    )[..., 0]


def _color(z: Any, m: Any, covariance: Any) -> Any:
    return m + (pt.linalg.cholesky(covariance) @ z[..., None])[..., 0]


FAMILIES: dict[type, Family] = {
    rv.NormalRV: _LOCATION_SCALE,
    rv.LaplaceRV: _LOCATION_SCALE,
    rv.LogisticRV: _LOCATION_SCALE,
    rv.GumbelRV: _LOCATION_SCALE,
    rv.CauchyRV: _LOCATION_SCALE,
    rv.HalfNormalRV: _LOCATION_SCALE,
    rv.StudentTRV: _STUDENT_T,
    rv.ExponentialRV: _SCALE,
    rv.GammaRV: _SHAPE_SCALE,
    rv.LogNormalRV: _LOG_NORMAL,
    rv.UniformRV: _UNIFORM,
    rv.MvNormalRV: Family(_whiten, _color),
}
"""Distributions whose records are moved with θ."""


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
