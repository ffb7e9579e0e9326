r"""Importance weights that replace the normal approximation of a sum by the sum's own law.

Given a posterior draw of θ, a particle filter simulates the n records in blocks: particles draw the
next block from :math:`f(\cdot \mid \theta)`, are weighed by the normal approximation of the release
given what has been added up so far, and are resampled; at the end counts the noise alone. The
product of the mean weights estimates :math:`p(s \mid \theta)` without bias, whatever the
approximation, so weights proportional to it over the approximation are exact in expectation.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray

from pymc_dp.checks import whole
from pymc_dp.compat import from_groups, groups_of, psis, root_attrs
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.mechanisms.checking import moments, more_points, posterior_draws, releases_of
from pymc_dp.mechanisms.normal_sum import JITTER, normal_laplace
from pymc_dp.mechanisms.sums import SumRelease, moments_graph

# A block is what leaves this share of the records for later.
_LEFT = 0.35
# Beyond, simulating the records of every draw takes seconds, and the sum is normal.
MOST_SIMULATED = 100_000


class Normal(NamedTuple):
    """Normal approximation of a release given what has been added up, for one area and draw.

    Attributes
    ----------
    mean, covariance : ndarray, shapes (m,) and (m, m)
        Of one record's statistic.
    D : ndarray, shape (m,)
        Variances of the noise.
    b : float
        Scale of the Laplace noise if it is not among these: of a single entry.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    D: NDArray[np.float64]
    b: float

    def __call__(self, residual: NDArray[np.float64], n: float) -> NDArray[np.float64]:
        """Log-density where `residual`, shape (particles, m), is left for n records and the noise."""
        r = residual - n * self.mean
        C = n * self.covariance + np.diag(self.D)
        if self.b > 0:
            return np.array([normal_laplace(x, C[0, 0], self.b)[0] for x in r[:, 0]])
        L = np.linalg.cholesky(C)
        z = np.linalg.solve(L, r.T)
        return (
            -0.5 * (z**2).sum(axis=0)
            - np.log(np.diag(L)).sum()
            - 0.5 * len(L) * math.log(2 * math.pi)
        )


def correct_releases(
    idata: Any,
    model: pm.Model | None = None,
    *,
    particles: int = 16,
    random_seed: int | None = None,
) -> Any:
    r"""Posterior draws without the normal approximation of released sums, by importance resampling.

    For mechanisms with `n`. Every draw gets a weight, an estimate of the ratio of the exact density
    of the release to the approximate one, from records simulated in blocks (a particle filter);
    draws are then resampled. Exact in expectation for continuous noise. With more than 100,000
    records they are not simulated: the sum is normal, and only the error of the points is corrected.

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pm.sample`` of the model, with all its free variables.
    model : Model, optional
        By default that of the context.
    particles : int
        Simulations of all records per draw. More give weights that vary less.
    random_seed : int, optional
        Of the simulations and of the resampling.

    Returns
    -------
    InferenceData or DataTree
        The groups `posterior` and `sample_stats` resampled, with ``release_log_weight`` among the
        latter, and the root attributes ``release_pareto_k``, the k of Pareto-smoothed importance
        sampling (do not believe the result if it is above 0.7), and ``release_ess_fraction``, the
        effective share of the draws.

    Raises
    ------
    PrivacyConfigurationError
        If the model has no such release, or the result lacks a variable of it.
    UnsupportedModelError
        If n is no whole number.
    """
    model = pm.modelcontext(model)
    particles = whole("particles", particles, 1)
    rng = np.random.default_rng(random_seed)
    draws = posterior_draws(idata, model)
    log_weight = np.zeros(len(next(iter(draws.values()))))
    for release in releases_of(model):
        log_weight += _log_weights(release, model, draws, particles, rng)
    log_weight, k = psis(log_weight)
    weight = np.exp(log_weight)
    kept = _systematic(weight, rng)

    groups = groups_of(idata)
    chains, length = (groups["posterior"].sizes[d] for d in ("chain", "draw"))
    where = {name: xr.DataArray(x.reshape(chains, length), dims=("chain", "draw"))
             for name, x in (("chain", kept // length), ("draw", kept % length))}  # fmt: skip
    corrected = {
        name: group.isel(where).assign_coords(group.coords)
        for name, group in groups.items()
        if name in ("posterior", "sample_stats")
    }
    corrected["sample_stats"]["release_log_weight"] = (
        ("chain", "draw"),
        log_weight[kept].reshape(chains, length),
    )
    others = {n: group for n, group in groups.items() if n in ("observed_data", "constant_data")}
    attrs = {
        "release_pareto_k": k,
        "release_ess_fraction": float(1 / (weight**2).sum() / len(weight)),
    }
    return from_groups({**corrected, **others}, {**root_attrs(idata), **attrs}, like=idata)


def _log_weights(
    release: SumRelease,
    model: pm.Model,
    draws: dict[str, NDArray[Any]],
    particles: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Log of the estimated exact density over the approximate one, draw by draw."""
    simulate = _simulator(release, model)
    weights = []
    used = moments(release, model, draws, release.points, 0)
    many = moments(release, model, draws, more_points(release), 1)
    for i, ((X, w, n, s, z, *right), (X_better, w_better, _, _, _, *right_better)) in enumerate(
        zip(used, many, strict=True)
    ):
        theta = [draws[rv.name][i] for rv in model.free_RVs]
        total = 0.0
        for area in range(len(n)):
            if n[area] != round(n[area]):
                raise UnsupportedModelError(
                    f"Records of {release.entries[-1].name!r} cannot be simulated: n is no whole number. A "
                    "number of people that is a parameter can only be checked."
                )
            moments_used = _mean_and_covariance(X[area], w[area], *(x[area] for x in right))
            approximate = Normal(*moments_used, *_noise(release))
            if len(z[area]):
                e = _mixing(approximate, release, n[area], s[area], z[area], rng)
                approximate = approximate._replace(D=release.v + 2 * release.b**2 * e)
            mean, covariance = _mean_and_covariance(
                X_better[area], w_better[area], *(x[area] for x in right_better)
            )
            better = approximate._replace(mean=mean, covariance=covariance)
            total -= approximate(s[area][None], n[area])[0]
            if n[area] > MOST_SIMULATED:
                total += better(s[area][None], n[area])[0]
            else:
                sums = partial(simulate, theta, area)
                total += log_density(s[area], int(n[area]), better, sums, particles, rng)
        weights.append(total)
    return np.array(weights)


def log_density(
    s: NDArray[np.float64],
    n: int,
    ahead: Normal,
    sums: Callable[..., NDArray[np.float64]],
    particles: int,
    rng: np.random.Generator,
) -> float:
    """Logarithm of an unbiased estimate of the density of a release.

    Parameters
    ----------
    s : ndarray, shape (m,)
        What was released.
    n : int
        Number of records.
    ahead : Normal
        What particles are weighed by; at the end, without records, the law of the noise.
    sums : callable
        Sums of the statistic over so many new records, one per particle.
    particles : int
    rng : Generator
    """
    residual = np.repeat(s[None], particles, axis=0)
    before = ahead(residual, n)
    estimate, left = before[0], n
    while left:
        later = int(_LEFT * left) if left > 4 else 0
        residual = residual - sums(particles, left - later, rng)
        left = later
        now = ahead(residual, left)
        log_w = now - before
        top = log_w.max()
        if not np.isfinite(top):
            return -np.inf
        w = np.exp(log_w - top)
        estimate += top + math.log(w.mean())
        kept = _systematic(w / w.sum(), rng)
        residual, before = residual[kept], now[kept]
    return float(estimate)


def _simulator(release: SumRelease, model: pm.Model) -> Callable[..., NDArray[np.float64]]:
    """Sums over simulated records of one area, shape (particles, m)."""
    record = release.record
    noise, area = pt.matrix("noise", dtype="float64"), pt.lscalar("area")
    X, w, *_ = moments_graph(release, model, noise)
    statistics = pm.compile(
        [*model.free_RVs, noise, area], [X[area], w[area]], on_unused_input="ignore"
    )
    combinations = len(record.combinations)

    def sums(
        theta: list[Any], area: int, particles: int, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        if record.dimensions == 0:
            X, w = statistics(*theta, np.zeros((1, 0)), area)
            return rng.multinomial(count, w / w.sum(), size=particles) @ X
        rows = particles * count
        u = rng.uniform(np.finfo(float).tiny, 1, size=(rows, record.dimensions))
        X, w = statistics(*theta, record.noise(u), area)
        if combinations > 1:
            cumulative = np.cumsum(w.reshape(rows, combinations) * rows, axis=1)
            chosen = (rng.random((rows, 1)) > cumulative[:, :-1]).sum(axis=1)
            X = X.reshape(rows, combinations, -1)[np.arange(rows), chosen]
        return X.reshape(particles, count, -1).sum(axis=1)

    return sums


def _mean_and_covariance(
    X: Any, w: Any, shift: Any, F: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = w @ X
    centred = (X - mean) @ F.T
    return mean + shift, (w[:, None] * centred).T @ centred


def _noise(release: SumRelease) -> tuple[NDArray[np.float64], float]:
    """Variances of the noise; that of a single Laplace entry is left to its closed form."""
    v, b = release.v, release.b
    if (v + b == 0).any():
        raise UnsupportedModelError(
            f"{release.entries[-1].name!r}: an entry without noise cannot be simulated. It can only be checked."
        )
    return (v, float(b[0])) if len(b) == 1 and b[0] > 0 else (v + 2 * b**2, 0.0)


def _mixing(
    normal: Normal, release: SumRelease, n: float, s: Any, z: Any, rng: np.random.Generator
) -> NDArray[np.float64]:
    r"""Draws of e, Laplace noise being :math:`N(0, 2 b^2 e)` with :math:`e \sim \mathrm{Exp}(1)`.

    The latent z says what the noise w is (:mod:`~pymc_dp.mechanisms.normal_sum`); given w, 1/e is
    inverse Gaussian.
    """
    P = np.linalg.inv(n * normal.covariance + np.diag(normal.D))
    a = P @ (s - n * normal.mean)
    j = np.flatnonzero(release.b > 0)
    b = release.b[j]
    S = math.sqrt(2) * b
    M = np.eye(len(j)) * (1 + JITTER) - S[:, None] * P[np.ix_(j, j)] * S
    w = S * (S * a[j] - np.linalg.cholesky(M) @ z)
    e = np.ones(len(release.b))
    e[j] = 1 / rng.wald(2 * b / np.abs(w), 2.0)
    return e


def _systematic(weight: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Systematic resampling: indices in their order."""
    ticks = (np.arange(len(weight)) + rng.random()) / len(weight)
    return np.minimum(np.searchsorted(np.cumsum(weight), ticks), len(weight) - 1)
