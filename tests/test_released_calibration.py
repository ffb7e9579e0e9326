"""Simulation-based calibration: with the truth from the prior, its rank in the posterior is uniform."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_dp.mechanisms import DiscreteGaussianMechanism, LaplaceMechanism
from pymc_dp.mechanisms.distributions import draw_discrete_gaussian
from pymc_dp.mechanisms.statistics import clamp

REPLICATIONS = 300


def check_uniform(model, grid, simulate):
    """Posterior probabilities below the truth, on a grid of the one parameter `x`."""
    density = model.compile_logp()
    ranks = []
    for i in range(REPLICATIONS):
        truth, released = simulate(np.random.default_rng([5, i]))
        model.set_data("released", released)
        logp = np.array([density({"x": np.asarray(x)}) for x in grid])
        weight = np.exp(logp - logp.max())
        cumulative = np.cumsum(weight) - weight / 2
        ranks.append(np.interp(truth, grid, cumulative / weight.sum()))
    counts = np.histogram(ranks, bins=10, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3, counts


@pytest.mark.nightly
def test_counts():
    population = np.array([8, 20, 60, 150])
    with pm.Model() as model:
        x = pm.Beta("x", 2, 8, default_transform=None)
        released = pm.Data("released", np.zeros(4, int))
        counts = pm.Binomial.dist(population, x)
        DiscreteGaussianMechanism("s", total=counts, scale=3, observed=released)

    def simulate(rng):
        p = rng.beta(2, 8)
        return p, rng.binomial(population, p) + draw_discrete_gaussian(rng, 3.0, (4,))

    check_uniform(model, np.linspace(0.001, 0.999, 400), simulate)


@pytest.mark.nightly
def test_sums():
    n = 60
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        released = pm.Data("released", 0.0)
        LaplaceMechanism("s", clamp(pm.Normal.dist(x, 1), -2, 2), n=n, scale=4.0, observed=released)

    def simulate(rng):
        mu = rng.normal()
        return mu, np.clip(rng.normal(mu, 1, size=n), -2, 2).sum() + rng.laplace(0, 4)

    check_uniform(model, np.linspace(-4.5, 4.5, 300), simulate)
