"""Draws of the posterior given the released polynomial: they cost nothing, as nothing else is read."""

import math
import zlib

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.surrogate.polynomial.annealing import normal_region
from pymc_dp.surrogate.polynomial.ensemble import OfMany, Tempered, moved
from pymc_dp.surrogate.polynomial.model import Found, Lost
from pymc_dp.surrogate.polynomial.settings import SETTINGS


def draw(found: Found, log_prior: OfMany, draws: int, chains: int) -> tuple[Vector, Vector]:
    """Draws of prior times surrogate, every walker's with noise of its own; and some without.

    Parameters
    ----------
    found : Found
    log_prior : callable
        Of many points.
    draws, chains : int

    Returns
    -------
    draws : ndarray, shape (chains, draws, d)
        Of θ.
    plain : ndarray, shape (walkers, d)
        Without the spread that the noise adds: what a run is judged by.
    """
    s, surrogate, d = SETTINGS, found.surrogate, found.cloud.shape[1]
    chart = surrogate.basis.chart
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(surrogate.c).tobytes()))
    q, usable = surrogate.at(found.cloud)
    start = found.cloud[usable]
    if not len(start):
        raise Lost
    density = Tempered(log_prior, surrogate, 1.0, q[usable].mean(axis=0))
    plain = moved(start[rng.choice(len(start), s.walkers)], density, s.moves, rng, chart)
    walkers = max(min(draws * chains, s.draws), 2 * d + 4)
    noisy = density.with_noise(walkers, rng)
    theta = moved(start[rng.choice(len(start), walkers)], noisy, s.moves, rng, chart)
    taken = [theta]
    for _ in range(math.ceil(draws * chains / walkers) - 1):
        taken.append(theta := moved(theta, noisy, s.between, rng, chart))
    every = np.vstack(taken)[rng.permutation(walkers * len(taken))[: draws * chains]]
    return every.reshape(chains, draws, d), plain


def draw_prior(log_prior: OfMany, start: Vector, scales: Vector, draws: int, chains: int) -> Vector:
    """Walkers of the prior, from the first region on, shape (chains, draws, d): it need not be proper."""
    rng = np.random.default_rng(0)
    cloud = normal_region(start, np.diag(scales**2), 0.0, rng).cloud
    cloud = moved(cloud, lambda theta, _: log_prior(theta), SETTINGS.moves, rng)
    return cloud[rng.choice(len(cloud), draws * chains)].reshape(chains, draws, len(start))
