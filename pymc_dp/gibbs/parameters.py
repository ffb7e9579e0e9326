"""NUTS for the parameters θ, given the records or given the records' noise."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.core import ValueGradFunction
from pymc.step_methods.hmc.quadpotential import QuadPotentialFullAdapt
from pymc.util import get_random_generator
from pytensor.graph.replace import clone_replace

from pymc_dp.compat import ancestors
from pymc_dp.gibbs.noncentering import Noncentering
from pymc_dp.gibbs.records import Point
from pymc_dp.gibbs.structure import Structure

# Up to this many parameters the mass matrix is dense. Parameters of the records, such as an
# intercept and slopes, are strongly correlated given the records' noise.
_MAX_DENSE = 64

# The log-density that NUTS reports is not the model's.
_STATS = {k: v for k, v in pm.NUTS.stats_dtypes_shapes.items() if k != "model_logp"}


def log_density_given_records(model: pm.Model, structure: Structure) -> Any:
    r""":math:`\log p(\theta) + \log f(x \mid \theta)`, of the value variables.

    The release's density is left out where it does not depend on θ: it would cost as much as the
    rest.
    """
    released = [r.variable for r in structure.releases] if structure.centered else []
    observed = [rv for rv in model.observed_RVs if rv not in released]
    return model.logp(vars=[*model.free_RVs, *observed, *model.potentials])


def log_density_given_noise(
    model: pm.Model, structure: Structure, noncentering: Noncentering
) -> Any:
    r""":math:`\log p(\theta) + \log g(s, T(x(\theta, z)))`, of θ's value variables and of z.

    Latents that are not moved with θ keep their density :math:`f(x \mid \theta)`.
    """
    fixed = [rv for rv in structure.latents if rv not in noncentering.moved]
    terms = [*structure.parameters, *fixed, *model.observed_RVs, *model.potentials]
    (moved,) = clone_replace(
        [model.logp(vars=terms)], replace=noncentering.new_values, rebuild_strict=False
    )
    return moved


class ParameterNUTS(pm.NUTS):
    r"""Step 1 of Algorithm 1: θ given the records, :math:`p(\theta \mid x)`.

    Parameters
    ----------
    vars : sequence
        Value variables of the continuous parameters.
    structure : Structure
        Of the model.
    initial_point : mapping
        Any point of the model; its shapes count.
    **kwargs
        Passed to ``pm.NUTS``.
    """

    stats_dtypes_shapes = _STATS

    def __init__(self, vars: Sequence[Any], *, structure: Structure, initial_point: Point,
                 model: pm.Model | None = None, compile_kwargs: Mapping[str, Any] | None = None,
                 **kwargs: Any):  # fmt: skip
        model = pm.modelcontext(model)
        log_density = log_density_given_records(model, structure)
        others = {v: initial_point[v.name] for v in model.value_vars if v not in set(vars)}
        function = _with_gradient(log_density, vars, others, model, initial_point, compile_kwargs)
        super().__init__(vars, model=model, initial_point=dict(initial_point),
                         logp_dlogp_func=function, **_dense(vars, initial_point, kwargs))  # fmt: skip

    def step(self, point: Point) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One iteration of NUTS."""
        end, stats = super().step(dict(point))
        return dict(end), [_without_logp(s) for s in stats]


class InterweavedNUTS(pm.NUTS):
    r"""θ given each record's noise z, the records :math:`x = x(\theta, z)` moving along.

    Given z, the target is :math:`p(\theta)\, g(s, \sum_i t_i(x_i(\theta, z_i)))`: the records'
    density does not hold θ back. Alternating it with :class:`ParameterNUTS` is the
    ancillarity-sufficiency interweaving of Yu and Meng (2011).

    Parameters
    ----------
    vars : sequence
        Value variables of the continuous parameters.
    structure : Structure
        Of the model.
    noncentering : Noncentering
        The map between x and z.
    initial_point : mapping
        Any point of the model; its shapes count.
    **kwargs
        Passed to ``pm.NUTS``.
    """

    stats_dtypes_shapes = _STATS

    def __init__(self, vars: Sequence[Any], *, structure: Structure, noncentering: Noncentering,
                 initial_point: Point, model: pm.Model | None = None,
                 compile_kwargs: Mapping[str, Any] | None = None, **kwargs: Any):  # fmt: skip
        model = pm.modelcontext(model)
        self._noise_names = [z.name for z in noncentering.noise]
        self._moved_names = [v.name for v in noncentering.new_values]
        self._inputs = [v.name for v in model.value_vars]
        compiled = {"on_unused_input": "ignore", "trust_input": True, **(compile_kwargs or {})}
        inputs = list(model.value_vars)
        self._to_noise = pm.compile(inputs, noncentering.noise_of_records, **compiled)
        self._to_records = pm.compile(
            [*inputs, *noncentering.noise], list(noncentering.new_values.values()), **compiled
        )
        log_density = log_density_given_noise(model, structure, noncentering)
        z = self._to_noise(*(np.asarray(initial_point[name]) for name in self._inputs))
        others = {v: initial_point[v.name] for v in model.value_vars if v not in set(vars)}
        others |= dict(zip(noncentering.noise, z, strict=True))
        function = _with_gradient(log_density, vars, others, model, initial_point, compile_kwargs)
        super().__init__(vars, model=model, initial_point=dict(initial_point),
                         logp_dlogp_func=function, **_dense(vars, initial_point, kwargs))  # fmt: skip

    def step(self, point: Point) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One iteration of NUTS on θ; the records follow."""
        z = self._to_noise(*(point[name] for name in self._inputs))
        end, stats = super().step({**point, **dict(zip(self._noise_names, z, strict=True))})
        moved = self._to_records(*(end[name] for name in self._inputs), *z)
        new = {name: end[name] for name in point}
        new |= dict(zip(self._moved_names, moved, strict=True))
        return new, [_without_logp(s) for s in stats]


def _with_gradient(
    log_density: Any,
    vars: Sequence[Any],
    others: Mapping[Any, Any],
    model: pm.Model,
    initial_point: Point,
    compile_kwargs: Mapping[str, Any] | None,
) -> ValueGradFunction:
    """Log-density and gradient as a function of θ, the rest of the point being shared."""
    present = set(ancestors([log_density]))
    function = ValueGradFunction(
        [log_density],
        list(vars),
        {v: np.asarray(value) for v, value in others.items() if v in present},
        model=model,
        initial_point=dict(initial_point),
        ravel_inputs=True,
        **(compile_kwargs or {}),
    )
    function.set_extra_values({v.name: np.asarray(x) for v, x in others.items() if v in present})
    function.trust_input = True
    return function


def _dense(vars: Sequence[Any], point: Point, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of NUTS with a dense adapted mass matrix, unless they name one."""
    d = sum(np.size(point[v.name]) for v in vars)
    if d > _MAX_DENSE or {"potential", "scaling"} & set(kwargs):
        return kwargs
    rng = get_random_generator(kwargs.get("rng"), copy=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*experimental feature.*")
        potential = QuadPotentialFullAdapt(d, np.zeros(d), np.eye(d), 10, rng=rng.spawn(1)[0])
    return {**kwargs, "rng": rng, "potential": potential}


def _without_logp(stats: dict[str, Any]) -> dict[str, Any]:
    stats.pop("model_logp", None)
    return stats
