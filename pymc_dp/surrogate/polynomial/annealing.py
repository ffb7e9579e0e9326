"""One rung of the ladder: from an evaluation at a region to a colder density, and to the region of the next evaluation."""

from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.surrogate.polynomial.basis import leverage
from pymc_dp.surrogate.polynomial.chart import Chart
from pymc_dp.surrogate.polynomial.ensemble import (
    OfMany,
    Tempered,
    carried,
    largest_step,
    moved,
    resampled,
)
from pymc_dp.surrogate.polynomial.model import Lost, Surrogate
from pymc_dp.surrogate.polynomial.settings import SETTINGS


@dataclass(frozen=True)
class Region:
    """Where a design is drawn from: walkers, and the density that they are draws of.

    Parameters
    ----------
    cloud : ndarray, shape (walkers, d)
    log_density : callable
        Of many points.
    beta : float
        Its temperature.
    """

    cloud: Vector
    log_density: OfMany
    beta: float


@dataclass(frozen=True)
class Cooled:
    """How cold an evaluation lets a density become.

    Parameters
    ----------
    beta : float
        So cold.
    density : Tempered
        That for the next design, warmer than that.
    cloud : ndarray, shape (walkers, d)
        Draws of it.
    stopped : {"", "noise", "misfit", "border"}
        By what, if β is not 1.
    """

    beta: float
    density: Tempered
    cloud: Vector
    stopped: str


def gaussian(mean: Vector, covariance: Vector) -> OfMany:
    """Its log-density, up to a constant."""
    precision = np.linalg.pinv(covariance, hermitian=True)

    def log_density(theta: Vector) -> Vector:
        off = theta - mean
        return np.asarray(-np.einsum("ij,ij->i", off @ precision, off) / 2)

    return log_density


def normal_region(
    mean: Vector, covariance: Vector, beta: float, rng: np.random.Generator
) -> Region:
    """A region of a normal law."""
    root = np.linalg.cholesky(covariance)
    cloud = mean + rng.standard_normal((SETTINGS.walkers, len(mean))) @ root.T
    return Region(cloud, gaussian(mean, covariance), beta)


def wider(theta: Vector, beta: float, factor: float, rng: np.random.Generator) -> Region:
    """A normal region around some walkers, wider than they lie, in coordinates that straighten them."""
    chart = Chart(theta)
    u = chart(theta)[0]
    mean, covariance = u.mean(axis=0), factor**2 * np.atleast_2d(np.cov(u.T))
    normal = gaussian(mean, covariance)

    def log_density(x: Vector) -> Vector:
        straight, log_det = chart(x)
        return normal(straight) - log_det

    u = rng.multivariate_normal(mean, covariance, size=len(u))
    return Region(chart.back(u)[0], log_density, beta)


def hopeless(region: Region, surrogate: Surrogate, misfit: float) -> bool:
    """Whether an evaluation is not to be followed, even at its own design's temperature."""
    s = SETTINGS
    return region.beta * max(surrogate.noise / s.hopeless, misfit / s.misfit) > 1


def cooled(
    region: Region,
    surrogate: Surrogate,
    misfit: float,
    log_prior: OfMany,
    first: OfMany | None,
    rng: np.random.Generator,
) -> Cooled:
    """How cold a surrogate lets a density become, and that density at the next design's temperature.

    Parameters
    ----------
    region : Region
        Of its design.
    surrogate : Surrogate
    misfit : float
        In nats.
    log_prior, first : callable
        As in :class:`~pymc_dp.surrogate.polynomial.ensemble.Tempered`.
    rng : Generator
        Public.

    Raises
    ------
    Lost
        If the surrogate may be used nowhere.
    """
    s, chart = SETTINGS, surrogate.basis.chart
    theta = region.cloud[surrogate.at(region.cloud)[1]]
    if not len(theta):
        raise Lost
    theta = theta[rng.choice(len(theta), s.walkers)]
    density = Tempered(log_prior, surrogate, 0.0, np.zeros(len(surrogate.c)), first)
    density = density.at_temperature(region.beta, region.cloud)
    theta = carried(theta, region.log_density, density, rng, chart)
    beta, way, stopped = region.beta, [(density, theta)], ""
    while beta < 1 and not stopped:
        values = surrogate.at(theta)[0] @ surrogate.c
        step = largest_step(values, 1 - beta)
        colder = density.at_temperature(min(beta + step, 1.0), theta)
        there = moved(resampled(theta, step * values, rng), colder, s.steps, rng, chart)
        stopped = _stops(colder, there, misfit) or ("noise" if step <= 1e-12 * beta else "")
        if not stopped:
            beta, density, theta = colder.beta, colder, there
            way.append((density, theta))
    wanted = beta if stopped == "border" else beta * (s.flat if beta >= 1 else s.warmer)
    density, theta = _nearest(way, wanted)
    if wanted != density.beta and wanted > region.beta * 0.999:
        values = surrogate.at(theta)[0] @ surrogate.c
        theta = resampled(theta, (wanted - density.beta) * values, rng)
        density = density.at_temperature(wanted, theta)
    return Cooled(beta, density, theta, stopped)


def _stops(density: Tempered, theta: Vector, misfit: float) -> str:
    """What keeps a density from being believed, if anything."""
    s, surrogate, beta = SETTINGS, density.surrogate, density.beta
    q, _ = surrogate.at(theta)
    variance, most = s.doubtful
    doubtful = beta**2 * density.at_temperature(beta, theta).variance(q) > variance
    if beta * surrogate.noise_over(q) > s.noise or np.mean(doubtful) > most:
        return "noise"
    if beta * misfit > s.misfit:
        return "misfit"
    near, most = s.border
    return "border" if np.mean(leverage(q) > near * surrogate.limit) > most else ""


def _nearest(way: list[tuple[Tempered, Vector]], wanted: float) -> tuple[Tempered, Vector]:
    """Of the densities on the way that with the nearest temperature."""
    betas = np.array([max(density.beta, 1e-300) for density, _ in way])
    return way[int(np.argmin(np.abs(np.log(betas / max(wanted, 1e-300)))))]


def settled(found: Cooled, rng: np.random.Generator) -> Region:
    """Where the next design is drawn from, if it is not to be wider: walkers after more moves."""
    s, density = SETTINGS, found.density
    warm, late = s.settle
    of_walkers = (
        density.with_noise(len(found.cloud), rng) if density.beta >= s.own_noise else density
    )
    moves = warm if density.beta < s.cold else late
    theta = moved(found.cloud, of_walkers, moves, rng, density.surrogate.basis.chart)

    def log_density(x: Vector) -> Vector:
        return np.maximum(density(x, np.arange(len(x))), -1e9)

    return Region(theta, log_density, density.beta)
