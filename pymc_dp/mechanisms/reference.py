r"""What a few points get wrong, put right at one parameter: the cost of a release does not grow with n.

Few points know the mean m and the covariance V of a record to within errors :math:`e(\theta)`, and
those of a sum of n records count :math:`\sqrt n` times as much, in its standard deviations. But the
more records, the narrower the posterior; so it suffices to know :math:`e(\theta_0)` at one parameter
in its middle, from very many points:

.. math:: m'(\theta) = m(\theta) - e(\theta_0), \qquad V'(\theta) = F\, V(\theta)\, F^\top
          \quad \text{with} \quad F\, V(\theta_0)\, F^\top = V_\infty(\theta_0),\; F \text{ lower triangular.}

What is left is :math:`e(\theta) - e(\theta_0)`, proportional to :math:`\theta - \theta_0`: as many standard
deviations of the sum, whatever n is. θ₀ is the mode of the parameters that the record depends on,
given the release. Where θ₀ is far from the posterior, errors are at most twice what they were, and
:func:`~pymc_dp.check_releases` sees them.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import DictToArrayBijection, RaveledVars
from scipy import optimize

from pymc_dp.compat import ancestors
from pymc_dp.mechanisms.records import FEW_POINTS, Record
from pymc_dp.unconstrained import unconstrained

# So many points err by some 5e-5 standard deviations of one record in three dimensions: by 0.05 of a
# sum of 10^6. The error falls nearly as their inverse.
_MANY, _MANY_FOR = 2**18, 1e6
_FEWEST = 2**14
_ROWS_IN_ALL = 2**22  # of points times areas times combinations: seconds
_ROWS_AT_ONCE = 2**15
_PRIOR_DRAWS = 16
_ITERATIONS = 300
# Relative to a variance: what keeps the factor of a singular covariance finite.
_JITTER = 1e-9
_QUICK: dict[str, Any] = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}

Correction = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Shift of the mean and lower triangular factor of the covariance that some points need."""


def nothing_to_correct(areas: tuple[int, ...], m: int) -> Correction:
    """The shift and the factor of points that are right."""
    return np.zeros((*areas, m)), np.broadcast_to(np.eye(m), (*areas, m, m)).copy()


class RecordMoments:
    """Mean and covariance of one record's statistic, by points, with one axis of areas.

    Parameters
    ----------
    record : Record
    model : Model
        So far.
    """

    def __init__(self, record: Record, model: pm.Model):
        self._record, self._model = record, model

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_compiled"}

    @cached_property
    def _compiled(self) -> tuple[list[Any], Any]:
        record, symbol = self._record, pt.matrix("noise", dtype="float64")
        areas, axes = math.prod(record.areas), len(record.areas)
        outputs = [
            x.reshape((areas, *(x.shape[i] for i in range(axes, x.ndim))))
            for x in record.at(symbol)
        ]
        read = set(ancestors(outputs))
        known = [rv for rv in self._model.free_RVs if rv in read]
        return known, pytensor.function([*known, symbol], outputs, **_QUICK)

    @property
    def rows(self) -> int:
        """Of a point."""
        return math.prod(self._record.areas) * len(self._record.combinations)

    def points(self, count: float, seed: int = 0) -> NDArray[np.float64]:
        """At least so many."""
        return self._record.points(2 ** math.ceil(math.log2(count)), seed)

    def __call__(
        self, theta: dict[str, NDArray[Any]], noise: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """At a parameter, by points of shape (points, dimensions); they go through in parts, for the memory."""
        known, evaluate = self._compiled
        values = [np.asarray(theta[rv.name], dtype=rv.dtype) for rv in known]
        each = max(8, _ROWS_AT_ONCE // self.rows)
        center: Any = None
        mass, first, second = 0.0, 0.0, 0.0
        for part in np.array_split(noise, math.ceil(len(noise) / each)):
            X, w = evaluate(*values, part)
            share = len(part) / len(noise)
            if center is None:
                center = np.einsum("ik,ikm->im", w, X)[:, None]
            c = X - center
            mass = mass + share * w.sum(axis=1)
            first = first + share * np.einsum("ik,ikm->im", w, c)
            second = second + share * c.swapaxes(1, 2) @ (w[..., None] * c)
        mean = first / np.asarray(mass)[:, None]
        covariance = second / np.asarray(mass)[:, None, None] - mean[:, :, None] * mean[:, None, :]
        return center[:, 0] + mean, covariance

    def still_at_start(self) -> NDArray[np.bool_]:
        """Entries of the statistic that are the same at all points where PyMC starts, shape (areas, m)."""
        model, point = self._model, self._model.initial_point()
        restore = pytensor.function(
            model.value_vars, model.replace_rvs_by_values(model.free_RVs), **_QUICK
        )
        start = restore(*(np.asarray(point[v.name], dtype=v.dtype) for v in model.value_vars))
        theta = dict(zip((rv.name for rv in model.free_RVs), start, strict=True))
        return np.einsum("imm->im", self(theta, self.points(FEW_POINTS))[1]) == 0


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """Moments of one record at one parameter.

    Parameters
    ----------
    moments : RecordMoments
    theta : dict of str to ndarray
        Values of the free variables that the release depends on.
    mean, covariance : ndarray, shapes (areas, m) and (areas, m, m)
        Of one record's statistic there, by very many points; the areas flat.
    """

    moments: RecordMoments
    theta: dict[str, NDArray[Any]]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    def correction(self, noise: NDArray[np.float64]) -> Correction:
        """What some points need, of shape (points, dimensions); shapes (areas, m) and (areas, m, m)."""
        mean, covariance = self.moments(self.theta, noise)
        right, wrong = _root(self.covariance, self.covariance), _root(covariance, self.covariance)
        return self.mean - mean, right @ np.linalg.inv(wrong)


def find_reference(
    moments: RecordMoments,
    noise: NDArray[np.float64],
    n: Any,
    model: pm.Model,
    log_density: Callable[[Any, Any], Any],
    nothing: Correction,
) -> Reference:
    """The mode of what a record depends on, and a record's moments there.

    Parameters
    ----------
    moments : RecordMoments
    noise : ndarray, shape (points, dimensions)
        The points of the release.
    n : TensorVariable
        Number of records.
    model : Model
        So far.
    log_density : callable
        Of the release, as a function of the model's variables, given shift and factor.
    nothing : tuple of ndarray
        The shift and the factor of points that are right, with one axis of areas.
    """
    shift, factor = pt.matrix("shift", dtype="float64"), pt.tensor3("factor", dtype="float64")
    mode = _Mode(model, log_density(shift, factor), [shift, factor])
    reference: Any = None
    # The mode is only as good as the points that it was found with: first those that are not yet right.
    for final in (False, True):
        correction = reference.correction(noise) if final else nothing
        theta = mode.search(*correction)
        many: float = _FEWEST
        if final:
            records = pytensor.function(mode.known, n, **_QUICK)
            largest = np.max(records(*theta.values()), initial=1.0)
            wanted = _MANY * math.sqrt(largest / _MANY_FOR)
            many = max(many, min(wanted, _ROWS_IN_ALL / moments.rows))
        reference = Reference(moments, theta, *moments(theta, moments.points(many, seed=2)))
    return reference


def warn_of_start(name: str, still: NDArray[np.bool_], reference: Reference) -> None:
    """Tell that PyMC's starting point shows a chain no slope, if it does so elsewhere.

    Warns
    -----
    UserWarning
        If entries that do not vary at the start, all records being clamped, do so at the reference.
    """
    moving = np.einsum("imm->im", reference.covariance) > 0
    if (still & moving).any():
        entries = np.flatnonzero((still & moving).any(axis=0)).tolist()
        better = {k: np.round(v, 3).tolist() for k, v in reference.theta.items() if v.size < 10}
        warnings.warn(
            f"{name!r}: at PyMC's starting point every record is clamped in entries {entries} of the "
            f"statistic, so a chain sees no slope there. Start it elsewhere: `pm.sample(initvals={better})`.",
            stacklevel=2,
        )


def _root(covariance: Any, scale: Any) -> NDArray[np.float64]:
    """Lower triangular factors; singular directions are given the same small variance."""
    variances = np.einsum("imm->im", scale)
    small = _JITTER * np.where(variances > 0, variances, 1.0)
    return np.linalg.cholesky(covariance + small[:, :, None] * np.eye(covariance.shape[-1]))


class _Mode:
    """Free variables that a release depends on, and their values at the mode.

    The search begins at the better of PyMC's starting point and of some draws from the prior, and goes on where
    it ended.
    """

    def __init__(self, model: pm.Model, log_density: Any, given: list[Any]):
        upstream = set(ancestors([log_density]))
        self.known = [rv for rv in model.free_RVs if rv in upstream]
        values = [model.rvs_to_values[rv] for rv in self.known]
        self._moving = [v.dtype.startswith("float") for v in values]
        (density,) = model.replace_rvs_by_values([log_density.sum()])
        if self.known:
            density = density + model.logp(vars=self.known)
        moving = [v for v, m in zip(values, self._moving, strict=True) if m]
        outputs = [density, *pytensor.grad(density, moving)]
        self._logp = pytensor.function([*given, *values], outputs, **_QUICK)
        self._restore = pytensor.function(values, model.replace_rvs_by_values(self.known), **_QUICK)
        self._names = [v.name for v in values]
        point = model.initial_point()
        self._starts = [[np.asarray(point[v.name], dtype=v.dtype) for v in values]]
        self._starts += _prior_draws(model, self.known)

    def search(self, *given: Any) -> dict[str, NDArray[Any]]:
        """By name, from the best start."""
        losses = np.array([-float(self._logp(*given, *x)[0]) for x in self._starts])
        losses[np.isnan(losses)] = np.inf
        best = dict(zip(self._names, self._starts[int(np.argmin(losses))], strict=True))
        moved = {name: best[name] for name, m in zip(self._names, self._moving, strict=True) if m}
        flat = DictToArrayBijection.map(moved)
        worst = max(losses[np.isfinite(losses)], default=0.0)

        def at(x: NDArray[np.float64]) -> list[NDArray[Any]]:
            here = DictToArrayBijection.rmap(RaveledVars(x, flat.point_map_info), start_point=best)
            return [here[name] for name in self._names]

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            with np.errstate(all="ignore"):
                value, *slopes = self._logp(*given, *at(x))
            slope = np.concatenate([np.ravel(s) for s in slopes])
            if not (np.isfinite(value) and np.isfinite(slope).all()):
                return worst + 1, np.zeros(len(x))  # the line search turns back
            return -float(value), -slope

        found = flat.data
        if moved:
            options = {"maxiter": _ITERATIONS, "ftol": 0.0, "gtol": 0.0}
            found = optimize.minimize(loss, found, jac=True, method="L-BFGS-B", options=options).x
        self._starts = [at(found)]
        return dict(zip((rv.name for rv in self.known), self._restore(*at(found)), strict=True))


def _prior_draws(model: pm.Model, known: list[Any]) -> list[list[Any]]:
    """Draws of value variables from the prior; none where it cannot be drawn from."""
    outputs = [
        unconstrained(rv, model.rvs_to_transforms[rv]).astype(model.rvs_to_values[rv].dtype)
        for rv in known
    ]
    try:
        draw = pm.compile([], outputs, random_seed=0, mode="FAST_COMPILE")
        return [draw() for _ in range(_PRIOR_DRAWS)]
    except NotImplementedError:  # `Flat` has no draws
        return []
