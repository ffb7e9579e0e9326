"""The compiled records of a model: fresh draws given θ, and the released statistic of each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace

from pymc_dp.compat import fast_draws
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.gibbs.kernels import make_sweep, sweep
from pymc_dp.gibbs.structure import Structure
from pymc_dp.unconstrained import unconstrained

Point = Mapping[str, NDArray[Any]]


class LatentRecords:
    r"""Draws :math:`x^* \sim f(\cdot \mid \theta)`, and the statistics t(x*) and t(x).

    One compiled function for all latent variables, whatever their transforms and however they
    depend on each other.

    Parameters
    ----------
    model : Model
    structure : Structure
    point : mapping
        Any point of the model; its shapes count.
    compile_kwargs : mapping, optional
        Passed to PyMC's ``compile``.

    Attributes
    ----------
    names : list of str
        Value variables of the latents.
    n, m : int
        Number of records, and of released numbers.
    """

    def __init__(
        self,
        model: pm.Model,
        structure: Structure,
        point: Point,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        latents = structure.latents
        values = [model.rvs_to_values[rv] for rv in latents]
        self.names: list[str] = [v.name for v in values]
        self._inputs = [v.name for v in model.value_vars]
        t = _as_matrix([release.statistic for release in structure.releases])

        parameters = dict(
            zip(
                structure.parameters, model.replace_rvs_by_values(structure.parameters), strict=True
            )
        )
        *draws, t_new = clone_replace([*latents, t], replace=parameters)
        new_values = []
        for rv, value, draw in zip(latents, values, draws, strict=True):
            moved = unconstrained(draw, model.rvs_to_transforms[rv])
            new_values.append(moved.astype(value.dtype))
        (t_now,) = model.replace_rvs_by_values([t])
        self._forward = pm.compile(
            list(model.value_vars),
            [*new_values, t_new, t_now],
            on_unused_input="ignore",
            trust_input=True,
            **{**fast_draws(latents), **(compile_kwargs or {})},
        )
        self._generators = [
            shared
            for shared in self._forward.get_shared()
            if isinstance(shared.get_value(borrow=True), np.random.Generator)
        ]
        new, t_new, _ = self.draw(point)
        self.n, self.m = t_new.shape
        for name, value in zip(self.names, new, strict=True):
            if value.shape != np.shape(point[name]) or value.shape[:1] != (self.n,):
                raise UnsupportedModelError(
                    f"The latent variable of {name!r} has shape {value.shape}, but the released "
                    f"statistic has {self.n} records. Axis 0 of both must be the records."
                )

    def draw(
        self, point: Point
    ) -> tuple[list[NDArray[Any]], NDArray[np.float64], NDArray[np.float64]]:
        """Offered values of the latents, their statistic and the current one, shape (n, m) each."""
        *new, t_new, t_now = self._forward(*(np.asarray(point[name]) for name in self._inputs))
        return new, np.ascontiguousarray(t_new), np.ascontiguousarray(t_now)

    @property
    def generators(self) -> list[Any]:
        """States of the random generators inside the compiled function."""
        return [g.get_value().bit_generator.state for g in self._generators]

    @generators.setter
    def generators(self, states: list[Any]) -> None:
        for shared, state in zip(self._generators, states, strict=True):
            generator = shared.get_value()
            generator.bit_generator.state = state
            shared.set_value(generator)

    def seed(self, rng: np.random.Generator) -> None:
        """Replace the random generators inside the compiled function."""
        for shared, spawned in zip(self._generators, rng.spawn(len(self._generators)), strict=True):
            shared.set_value(spawned)


class ReleaseDensity:
    r"""The released values and :math:`\log g(s, T)`, ready for a sweep.

    Parameters
    ----------
    model : Model
    structure : Structure
    """

    def __init__(self, model: pm.Model, structure: Structure):
        self._observed = [model.rvs_to_values[r.variable] for r in structure.releases]
        self._laws = [r.law for r in structure.releases]
        self._any_sweep: Any = None
        self._log_g: Any = None
        if any(law is None for law in self._laws):
            self._log_g = _log_density_of_sums(model, structure)
        else:
            sizes = [int(np.size(_number(v))) for v in self._observed]
            weights = [
                np.broadcast_to(1 / law.scale if law.family == "laplace" else 0.5 / law.scale**2,
                                np.shape(_number(v))).ravel()
                for law, v in zip(self._laws, self._observed, strict=True)
            ]  # fmt: skip
            laplace = np.repeat([law.family == "laplace" for law in self._laws], sizes)
            w = np.concatenate(weights)
            self._w1, self._w2 = np.where(laplace, w, 0.0), np.where(laplace, 0.0, w)
        self.read_observed()

    def read_observed(self) -> None:
        """Take the released values anew; they may be a ``pm.Data`` that was replaced."""
        self._s = np.concatenate([np.ravel(_number(v)).astype(float) for v in self._observed])

    def is_finite(self, T: NDArray[np.float64]) -> bool:
        """Whether the release has a positive density given the sum `T`."""
        if self._log_g is None:
            return bool(np.isfinite(T).all())
        return bool(np.isfinite(self._log_g(T)))

    def sweep(
        self,
        t: NDArray[np.float64],
        t_new: NDArray[np.float64],
        waiting: NDArray[np.float64],
        accepted: NDArray[np.bool_],
    ) -> tuple[float, float]:
        """One sweep over records: see :func:`pymc_dp.gibbs.kernels.sweep`."""
        T = t.sum(axis=0)
        if self._log_g is None:
            return sweep(T, t, t_new, waiting, self._s, self._w1, self._w2, accepted)
        if self._any_sweep is None:
            self._any_sweep = make_sweep(self._log_g.vm.jit_fn)
        return self._any_sweep(T, t, t_new, waiting, accepted)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_any_sweep": None}


def _as_matrix(statistics: list[Any]) -> Any:
    """Statistics side by side, shape (n, m)."""
    flat = [t.reshape((t.shape[0], -1)).astype("float64") for t in statistics]
    return pt.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]


def _log_density_of_sums(model: pm.Model, structure: Structure) -> Any:
    """Log-density of the released values as a function of the sums T, compiled by numba."""
    shapes = [np.shape(_number(model.rvs_to_values[r.variable])) for r in structure.releases]
    sums = [_sum_shape(r, shape) for r, shape in zip(structure.releases, shapes, strict=True)]
    T = pt.vector("T", shape=(sum(int(np.prod(shape)) for shape in sums),))
    terms, start = [], 0
    for release, shape in zip(structure.releases, sums, strict=True):
        stop = start + int(np.prod(shape))
        piece = T[start:stop].reshape(shape).astype(release.total.dtype)
        (variable,) = clone_replace([release.variable], replace={release.total: piece})
        value = pt.constant(_number(model.rvs_to_values[release.variable]))
        terms.append(pm.logp(variable, value).sum())
        start = stop
    return pm.compile([T], sum(terms[1:], terms[0]), mode="NUMBA")


def _sum_shape(release: Any, observed: tuple[int, ...]) -> tuple[int, ...]:
    shape = release.total.type.shape
    if None in shape:
        shape = tuple(release.statistic.shape[1:].eval(mode="FAST_COMPILE"))
    return tuple(int(size) for size in shape)


def _number(value: Any) -> NDArray[Any]:
    """An observed value, which is a constant or a shared variable."""
    shared = hasattr(value, "get_value")
    return np.asarray(value.get_value() if shared else value.eval(mode="FAST_COMPILE"))
