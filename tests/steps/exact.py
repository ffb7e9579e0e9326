"""A posterior that is known exactly, noisy sums of it in plain NumPy, and comparisons to Monte Carlo error.

Transitions are pure functions of a generator, a point and callables. What they leave invariant is tested
without a compiled model, a ledger and an integer sum, so that tens of thousands of them take a second;
what these add is tested in short runs through PyMC and by themselves.
"""

import math
from functools import cache

import numpy as np
import pymc as pm
from scipy import stats

import pymc_dp as dp
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE

# Exponential data with a Gamma(2, 1) prior on the rate; θ is the log rate, whose posterior is
# skewed: a symmetric target could not see a reversed sign.
Y = np.array([0.3, 2.5, 0.1, 1.9])


def tempered(tempering=1.0):
    """The posterior of the rate with the log-likelihood multiplied by T."""
    return stats.gamma(2 + tempering * len(Y), scale=1 / (1 + tempering * Y.sum()))


POSTERIOR = tempered()


def log_public(theta):
    return 2 * theta.item() - math.exp(theta.item())


def terms(theta):
    return theta - Y * np.exp(theta)


def term_gradients(theta):
    return 1 - Y * np.exp(theta)


@cache
def compiled():
    """The same in PyMC, compiled once; not to be changed."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Exponential("y", rate, observed=pm.Data("Y", Y))
    return dp.compile(model)


def noisy_total(rng, values, bound, z):
    """Clipped sum with the noise that it has on paper."""
    clipped = np.minimum(np.maximum(values, -bound), bound)
    return clipped.sum() + SUBSTITUTE_ONE.noise_sd(bound, z) * rng.standard_normal()


def spread_evenly(posterior, count):
    """A perfect sample: what an invariant transition leaves is as good as independent draws, or better."""
    return np.log(posterior.ppf((np.arange(count) + 0.5) / count))


def assert_matches(sample, exact, least_ess=200):
    """Mean, sd and quantiles within 5 Monte Carlo errors, gated on the effective sample size."""
    import arviz as az

    ess = float(np.asarray(az.ess(sample)))
    assert ess > least_ess
    pooled = sample.ravel()
    assert abs(pooled.mean() - exact.mean()) < 5 * exact.std() / math.sqrt(ess)
    kurtosis = float(exact.stats(moments="k"))
    sd_error = exact.std() * math.sqrt((kurtosis + 2) / 4 / (ess / 2))
    assert abs(pooled.std() - exact.std()) < 5 * sd_error
    for q in (0.05, 0.5, 0.95):
        error = math.sqrt(q * (1 - q) / (ess / 2))
        assert abs(np.mean(pooled < exact.ppf(q)) - q) < 5 * error
