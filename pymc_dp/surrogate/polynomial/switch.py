"""Whether a normal law of the likelihood will do: asked of one evaluation around it."""

from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.records.measurements import Measurements
from pymc_dp.surrogate.polynomial.annealing import cooled, hopeless, normal_region
from pymc_dp.surrogate.polynomial.basis import Basis
from pymc_dp.surrogate.polynomial.ensemble import OfMany
from pymc_dp.surrogate.polynomial.evaluation import draw_design, evaluate
from pymc_dp.surrogate.polynomial.model import Lost
from pymc_dp.surrogate.polynomial.settings import SETTINGS


@dataclass(frozen=True)
class Curvature:
    """How far a tempered log-likelihood is from quadratic. Nothing in it is private.

    Parameters
    ----------
    nats : float
        Of it that no quadratic explains, over draws, without noise.
    noise : float
        Nats of noise in the same.
    """

    nats: float
    noise: float

    @property
    def is_seen(self) -> bool:
        """Whether a normal law is off, and noise alone would not say so."""
        least, times = SETTINGS.curved
        return self.nats > max(least, times * self.noise)


def curvature(
    measure: Measurements,
    log_prior: OfMany,
    mean: Vector,
    covariances: tuple[Vector, ...],
    tempering: float,
) -> Curvature:
    """Ask how far from quadratic the log-likelihood is around a normal approximation.

    Parameters
    ----------
    measure : Measurements
    log_prior : callable
        Of many points.
    mean : ndarray, shape (d,)
        Of the approximation.
    covariances : tuple of ndarray, shape (d, d)
        The evaluation is made in a region that is :attr:`~pymc_dp.surrogate.polynomial.settings.PolynomialSettings.around` times as
        wide as the first: a curve shows from further off, and noise in tempered nats is less there. If that evaluation
        tells nothing, one is made in the next; if noise leaves it open, a dearer one in the same.
    tempering : float
        T.

    Notes
    -----
    **Releases**: those of one or two :func:`evaluations <pymc_dp.surrogate.polynomial.evaluation.evaluate>` in each region.
    """
    s = SETTINGS
    unclear, times = s.unclear
    for covariance in covariances:
        found = _seen(measure, log_prior, mean, covariance, tempering, s.warm)
        if found is None:
            continue
        if found.noise > unclear and not found.is_seen:
            closer = _seen(measure, log_prior, mean, covariance, tempering, times * s.warm)
            return closer or found
        return found
    return Curvature(0.0, 0.0)


def _seen(
    measure: Measurements,
    log_prior: OfMany,
    mean: Vector,
    covariance: Vector,
    tempering: float,
    share: float,
) -> Curvature | None:
    """None if an evaluation tells nothing."""
    s, rng = SETTINGS, np.random.default_rng(0)
    region = normal_region(mean, s.around**2 * covariance, s.around**-2, rng)
    design = draw_design(region.cloud, s.degree, False, tempering, rng)
    surrogate, misfit = evaluate(measure, design, region.cloud, share)
    if hopeless(region, surrogate, misfit):
        return None
    try:
        found = cooled(region, surrogate, misfit, log_prior, region.log_density, rng)
    except Lost:
        return None
    q, usable = surrogate.at(found.cloud)
    known = Basis(found.cloud[usable], 2)(found.cloud[usable])
    q = q[usable] - q[usable].mean(axis=0)
    beyond = found.density.beta * (q - known @ (known.T @ q) / len(q))
    noise = float(np.sum((beyond @ surrogate.root) ** 2)) / len(q)
    nats = float(np.mean((beyond @ surrogate.c) ** 2)) - noise
    return Curvature(float(np.sqrt(max(nats, 0.0))), float(np.sqrt(noise)))
