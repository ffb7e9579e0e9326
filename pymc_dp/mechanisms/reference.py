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
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """Moments of one record at one parameter.

    Parameters
    ----------
    theta : dict of str to ndarray
        Values of the model's free variables so far.
    mean, covariance : ndarray, shapes (areas, m) and (areas, m, m)
        Of one record's statistic there, by very many points; the areas flat.
    """

    theta: dict[str, NDArray[Any]]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    def correction(
        self, record: Record, model: pm.Model, noise: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Shift of the mean and lower triangular factor of the covariance that some points need.

        Parameters
        ----------
        record : Record
        model : Model
        noise : ndarray, shape (points, dimensions)
            The points.

        Returns
        -------
        tuple of ndarray
            Shapes (areas, m) and (areas, m, m).
        """
        mean, covariance = record_moments(record, model, self.theta, noise)
        right, wrong = _root(self.covariance, self.covariance), _root(covariance, self.covariance)
        return self.mean - mean, right @ np.linalg.inv(wrong)


def nothing_to_correct(
    areas: tuple[int, ...], m: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The shift and the factor of points that are right."""
    return np.zeros((*areas, m)), np.broadcast_to(np.eye(m), (*areas, m, m)).copy()


def find_reference(
    record: Record, n: Any, model: pm.Model, log_density: Any, start: Reference | None
) -> Reference:
    """The mode of what a record depends on, and a record's moments there.

    Parameters
    ----------
    record : Record
    n : TensorVariable
        Number of records.
    model : Model
        So far.
    log_density : TensorVariable
        Of the release, of the model's variables.
    start : Reference or None
        From the search with points that were not yet right. Without one the search begins at the
        better of PyMC's starting point and of some draws from the prior, and few points must do.
    """
    known, theta = _mode(model, log_density, start)
    many: float = _FEWEST
    if start is not None:
        records = pytensor.function(known, n, **_QUICK)
        largest = np.max(records(*theta.values()), initial=1.0)
        rows = math.prod(record.areas) * len(record.combinations)
        many = max(many, min(_MANY * math.sqrt(largest / _MANY_FOR), _ROWS_IN_ALL / rows))
    noise = record.points(2 ** math.ceil(math.log2(many)), seed=2)
    return Reference(theta, *record_moments(record, model, theta, noise))


def does_not_vary(record: Record, model: pm.Model) -> NDArray[np.bool_]:
    """Entries of the statistic that are the same at all points where PyMC starts, shape (areas, m)."""
    point = model.initial_point()
    restore = pytensor.function(
        model.value_vars, model.replace_rvs_by_values(model.free_RVs), **_QUICK
    )
    start = restore(*(np.asarray(point[v.name], dtype=v.dtype) for v in model.value_vars))
    theta = dict(zip((rv.name for rv in model.free_RVs), start, strict=True))
    covariance = record_moments(record, model, theta, record.points(FEW_POINTS))[1]
    return np.einsum("imm->im", covariance) == 0


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


def record_moments(
    record: Record, model: pm.Model, theta: dict[str, Any], noise: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and covariance of one record's statistic, by points, with one axis of areas.

    The points go through in parts, for the memory.
    """
    symbol = pt.matrix("noise", dtype="float64")
    X, w = record.at(symbol)
    areas, flat = math.prod(record.areas), len(record.areas)
    X, w = (x.reshape((areas, *(x.shape[i] for i in range(flat, x.ndim)))) for x in (X, w))
    inputs = [rv for rv in model.free_RVs if rv.name in theta]
    evaluate = pytensor.function([*inputs, symbol], [X, w], **_QUICK)
    values = [np.asarray(theta[rv.name], dtype=rv.dtype) for rv in inputs]
    each = max(8, _ROWS_AT_ONCE // (areas * len(record.combinations)))
    center: Any = None
    mass, first, second = 0.0, 0.0, 0.0
    for part in np.array_split(noise, math.ceil(len(noise) / each)):
        X_part, w_part = evaluate(*values, part)
        share = len(part) / len(noise)
        if center is None:
            center = np.einsum("ik,ikm->im", w_part, X_part)[:, None]
        c = X_part - center
        mass = mass + share * w_part.sum(axis=1)
        first = first + share * np.einsum("ik,ikm->im", w_part, c)
        second = second + share * c.swapaxes(1, 2) @ (w_part[..., None] * c)
    mean = first / np.asarray(mass)[:, None]
    covariance = second / np.asarray(mass)[:, None, None] - mean[:, :, None] * mean[:, None, :]
    return center[:, 0] + mean, covariance


def _root(covariance: Any, scale: Any) -> NDArray[np.float64]:
    """Lower triangular factors; singular directions are given the same small variance."""
    variances = np.einsum("imm->im", scale)
    small = _JITTER * np.where(variances > 0, variances, 1.0)
    return np.linalg.cholesky(covariance + small[:, :, None] * np.eye(covariance.shape[-1]))


def _mode(
    model: pm.Model, log_density: Any, start: Reference | None
) -> tuple[list[Any], dict[str, NDArray[Any]]]:
    """Free variables that the release depends on, and their values at the mode."""
    upstream = set(ancestors([log_density]))
    known = [rv for rv in model.free_RVs if rv in upstream]
    values = [model.rvs_to_values[rv] for rv in known]
    moving = [v for v in values if v.dtype.startswith("float")]
    (density,) = model.replace_rvs_by_values([log_density.sum()])
    if known:
        density = density + model.logp(vars=known)
    logp = pytensor.function(values, [density, *pytensor.grad(density, moving)], **_QUICK)
    restore = pytensor.function(values, model.replace_rvs_by_values(known), **_QUICK)
    inward = pytensor.function(known, _transformed(model, known, known), **_QUICK)
    if start is None:
        point = model.initial_point()
        starts = [[np.asarray(point[v.name], dtype=v.dtype) for v in values]]
        starts += _prior_draws(model, known)
    else:
        starts = [inward(*start.theta.values())]

    start_losses = [-float(logp(*x)[0]) for x in starts]
    best = starts[int(np.argmin(np.where(np.isnan(start_losses), np.inf, start_losses)))]
    moved = {v.name: x for v, x in zip(values, best, strict=True) if v in moving}
    flat = DictToArrayBijection.map(moved)
    rest = {v.name: x for v, x in zip(values, best, strict=True)}
    worst = max((x for x in start_losses if np.isfinite(x)), default=0.0)

    def at(x: NDArray[np.float64]) -> list[NDArray[Any]]:
        here = DictToArrayBijection.rmap(RaveledVars(x, flat.point_map_info), start_point=rest)
        return [here[v.name] for v in values]

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        with np.errstate(all="ignore"):
            value, *slopes = logp(*at(x))
        slope = np.concatenate([np.ravel(s) for s in slopes])
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return worst + 1, np.zeros(len(x))  # the line search turns back
        return -float(value), -slope

    found = flat.data
    if moving:
        options = {"maxiter": _ITERATIONS, "ftol": 0.0, "gtol": 0.0}
        found = optimize.minimize(loss, found, jac=True, method="L-BFGS-B", options=options).x
    return known, dict(zip((rv.name for rv in known), restore(*at(found)), strict=True))


def _transformed(model: pm.Model, known: list[Any], values: list[Any]) -> list[Any]:
    """Value variables as functions of values of the free variables."""
    outputs = []
    for rv, value in zip(known, values, strict=True):
        transform = model.rvs_to_transforms[rv]
        moved = value if transform is None else transform.forward(value, *rv.owner.inputs)
        outputs.append(moved.astype(model.rvs_to_values[rv].dtype))
    return outputs


def _prior_draws(model: pm.Model, known: list[Any]) -> list[list[Any]]:
    """Draws of value variables from the prior; none where it cannot be drawn from."""
    try:
        draw = pm.compile([], _transformed(model, known, known), random_seed=0, mode="FAST_COMPILE")
        return [draw() for _ in range(_PRIOR_DRAWS)]
    except NotImplementedError:  # `Flat` has no draws
        return []
