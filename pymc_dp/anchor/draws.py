"""Draws of a law times the prior, by any sampler: they cost nothing, as released numbers are all that is read."""

import logging
import zlib
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_dp.anchor.model import Anchor
from pymc_dp.compat import groups_of
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, power
from pymc_dp.progress import quiet_pymc

_log = logging.getLogger("pymc.dp")

_TUNE = 500
"""In coordinates in which the posterior is about white, little is left to be tuned."""


def draw(
    anchor: Anchor,
    log_public: PublicLogDensity,
    draws: int,
    chains: int,
    nuts_sampler: str = "pymc",
) -> Vector:
    """Draws of the prior times the law, by NUTS.

    If the sampler fails, the normal approximation's draws take their place, and that is said: what was paid for
    is not lost. If nothing was learnt, they do too: the prior need not be proper.

    Parameters
    ----------
    anchor : Anchor
        The law, and its normal approximation with the prior, in whose coordinates NUTS runs.
    log_public : PublicLogDensity
        The prior.
    draws, chains : int
    nuts_sampler : str
        As for ``pm.sample``.

    Returns
    -------
    ndarray, shape (chains, draws, d)
        Of θ.
    """
    posterior, law = anchor.posterior, anchor.posterior.law
    d, R = len(posterior.mean), power(posterior.covariance, 0.5)
    seed = zlib.crc32(law.k.tobytes() + law.K.tobytes())
    if not anchor.arrived:
        rng = np.random.default_rng(seed)
        return np.asarray(posterior.mean + rng.standard_normal((chains, draws, d)) @ R.T)
    try:
        with quiet_pymc(), pm.Model(model=None):  # not part of one that the user is in
            z = pm.Flat("z", shape=d, initval=np.zeros(d))
            theta = posterior.mean + pt.dot(R, z)
            pm.Potential("law", law.log_density(theta))
            pm.Potential("prior", log_public.at(theta))
            sampled: Any = pm.sample(
                draws, tune=_TUNE, chains=chains, cores=1, random_seed=seed, progressbar=False,
                nuts_sampler=nuts_sampler, compute_convergence_checks=False,
                **({"init": "adapt_diag"} if nuts_sampler == "pymc" else {}),
            )  # fmt: skip
        found = np.asarray(groups_of(sampled)["posterior"]["z"].values, np.float64)
    except (pm.exceptions.SamplingError, ValueError, FloatingPointError) as error:
        _log.warning(
            "NUTS could not draw from the released law (%s). The draws are of its normal approximation.",
            type(error).__name__,
        )
        found = np.random.default_rng(seed).standard_normal((chains, draws, d))
    return np.asarray(posterior.mean + found @ R.T)
