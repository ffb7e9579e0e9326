"""Draws of released numbers' law, by any sampler: they cost nothing, as nothing else is read."""

import importlib.util
import logging
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from scipy.optimize import minimize

from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, power
from pymc_dp.progress import quiet_pymc
from pymc_dp.surrogate.normal.law import Law, Posterior
from pymc_dp.surrogate.normal.model import NormalSurrogate

_log = logging.getLogger("pymc.dp")

_TUNE = 500
"""In coordinates in which the posterior is about white, little is left to be tuned."""
_SAMPLERS = ("pymc", "nutpie", "numpyro", "blackjax")


def sampler_at_hand(name: str) -> str:
    """The name of a sampler of ``pm.sample`` that is installed, checked while nothing is spent yet.

    Raises
    ------
    PrivacyConfigurationError
        If there is none of that name, or if it is not installed.
    """
    if name not in _SAMPLERS:
        raise PrivacyConfigurationError(
            f"`nuts_sampler` must be one of {', '.join(map(repr, _SAMPLERS))}. Found {name!r}."
        )
    if importlib.util.find_spec(name) is None:
        raise PrivacyConfigurationError(
            f"`nuts_sampler={name!r}` needs the package {name}, which is not installed."
        )
    return name


def draw(
    surrogate: NormalSurrogate,
    log_public: PublicLogDensity,
    draws: int,
    chains: int,
    nuts_sampler: str = "pymc",
) -> Vector:
    """Draws of the prior times the law, by NUTS.

    Parameters
    ----------
    surrogate : NormalSurrogate
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
    posterior, law = surrogate.posterior, surrogate.posterior.law
    mean, R = posterior.mean, power(posterior.covariance, 0.5)
    slope, precision = R.T @ (law.k - law.K @ (mean - law.centre)), R.T @ law.K @ R
    # What was released is an input of the compiled function and no part of it, so that the next run finds it in PyTensor's
    # cache; and sums of products take a third of the time to compile that calls of BLAS take.
    of = [pytensor.shared(x, shape=x.shape) for x in (mean, R, slope, precision)]

    def log_density(z: Variable) -> Any:
        mean, R, slope, precision = of
        along = slope - pt.sum(precision * z, axis=1) / 2
        return pt.sum(along * z) + log_public.at(mean + pt.sum(R * z, axis=1))

    z = draws_of(log_density, np.zeros(len(mean)), draws, chains, _seed(law), nuts_sampler)
    return np.asarray(mean + z @ R.T)


def draw_normal(posterior: Posterior, draws: int, chains: int) -> Vector:
    """Draws of the posterior's normal approximation, shape (chains, draws, d)."""
    size = chains, draws, len(posterior.mean)
    z = np.random.default_rng(_seed(posterior.law)).standard_normal(size)
    return np.asarray(posterior.mean + z @ power(posterior.covariance, 0.5).T)


def _seed(law: Law) -> int:
    return zlib.crc32(law.k.tobytes() + law.K.tobytes())


def highest(density: Callable[[Vector], tuple[Any, Vector]], start: Vector) -> Vector:
    """Where a log-density is highest, from a start uphill.

    Parameters
    ----------
    density : callable
        Its value and slope at a vector.
    start : ndarray, shape (d,)

    Returns
    -------
    ndarray, shape (d,)
    """

    def minus(x: Vector) -> tuple[float, Vector]:
        value, slope = density(x)
        ok = np.isfinite(value) and np.isfinite(slope).all()
        return (-float(value), -slope) if ok else (1e300, np.zeros_like(x))

    found = minimize(minus, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x)


def draws_of(
    log_density: Callable[[Variable], Any],
    start: Vector,
    draws: int,
    chains: int,
    seed: int,
    nuts_sampler: str,
) -> Vector:
    """Draws by NUTS of a density in coordinates in which it is about white.

    If the sampler fails or is interrupted, standard normal draws about `start` take their place, and that is said:
    what was paid for is not lost.

    Parameters
    ----------
    log_density : callable
        Of a symbolic vector.
    start : ndarray, shape (d,)
        Its mode.
    draws, chains, seed : int
    nuts_sampler : str
        As for ``pm.sample``.

    Returns
    -------
    ndarray, shape (chains, draws, d)
    """
    size = (chains, draws, len(start))
    try:
        with quiet_pymc(), pm.Model(model=None):  # not part of one that the user is in
            z = pm.Flat("z", shape=len(start), initval=start)
            pm.Potential("law", log_density(z))
            sampled: Any = pm.sample(
                draws, tune=_TUNE, chains=chains, cores=1, random_seed=seed, progressbar=False,
                nuts_sampler=nuts_sampler, compute_convergence_checks=False,
                **({"init": "adapt_diag"} if nuts_sampler == "pymc" else {}),
            )  # fmt: skip
        found = np.asarray(groups_of(sampled)["posterior"]["z"].values, np.float64)
        if found.shape == size and np.isfinite(found).all():
            return found
        why = "draws that are not all there, or not finite"
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # whatever it is: what was paid for is not lost
        why = type(error).__name__
    _log.warning(
        "NUTS could not draw from the released law (%s). The draws are of its normal approximation.",
        why,
    )
    return np.asarray(start + np.random.default_rng(seed).standard_normal(size))
