"""Hundreds of runs without what takes long in each and is not measured: NUTS on the law's density, and rehearsals."""

import logging
import warnings

import numpy as np

import pymc_dp.sampling
import pymc_dp.steps.normal


def normal_draws(generator):
    """Draws of the law's normal approximation in place of NUTS, which would be compiled for every run.

    `generator` is called for every run: one generator for all, or a fresh one.
    """

    def draw(surrogate, log_public, draws, chains, nuts_sampler):
        r = surrogate.posterior
        e = generator().normal(size=(chains, draws, len(r.mean)))
        return r.mean + e @ np.linalg.cholesky(r.covariance).T

    return draw


def quicken(seed):
    """For all runs of a script, and nothing is said while they run."""
    for name in ("pymc", "pymc_dp", "nutpie"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(seed)
    pymc_dp.steps.normal.draw = normal_draws(lambda: rng)
    pymc_dp.sampling._rehearse = lambda step, for_host: None
