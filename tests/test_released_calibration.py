"""Simulation-based calibration: with the truth from the prior, its rank in the posterior is uniform."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

from pymc_dp.mechanisms import DiscreteGaussianMechanism, LaplaceMechanism
from pymc_dp.mechanisms.distributions import draw_discrete_gaussian
from pymc_dp.statistics import clamp

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


@pytest.mark.nightly
def test_a_table_with_a_public_total():
    """Genotypes of 40 people by the share of one allele."""
    with pm.Model() as model:
        x = pm.Beta("x", 2, 2, default_transform=None)
        released = pm.Data("released", np.zeros(3, int))
        total = pm.Multinomial.dist(40, pt.stack([x**2, 2 * x * (1 - x), (1 - x) ** 2]))
        DiscreteGaussianMechanism("s", total=total, scale=4, observed=released)

    def simulate(rng):
        p = rng.beta(2, 2)
        counts = rng.multinomial(40, [p**2, 2 * p * (1 - p), (1 - p) ** 2])
        return p, counts + draw_discrete_gaussian(rng, 4.0, (3,))

    check_uniform(model, np.linspace(0.001, 0.999, 400), simulate)


def check_ranks(model, simulate, kept=99):
    """Ranks of the truth among draws of nutpie; `simulate` returns the truth and what is released."""
    nutpie = pytest.importorskip("nutpie")
    compiled = nutpie.compile_pymc_model(model)
    ranks = {}
    for i in range(120):
        truth, released = simulate(np.random.default_rng([7, i]))
        draws = nutpie.sample(
            compiled.with_data(released=released),
            draws=1500,
            tune=500,
            chains=1,
            cores=1,
            seed=i,
            progress_bar=False,
            target_accept=0.95,
        )["posterior"]
        for name, value in truth.items():
            thinned = draws[name].values.reshape(1500, -1)[:: 1500 // kept][:kept]
            below = (thinned < np.ravel(value)).sum(axis=0)
            for j, rank in enumerate(below):
                ranks.setdefault(f"{name}[{j}]", []).append(rank)
    for name, found in ranks.items():
        counts = np.histogram(found, bins=10, range=(0, kept + 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-3, (name, counts)


@pytest.mark.nightly
def test_a_hierarchy_of_counts():
    population = np.arange(20, 120, 8)
    with pm.Model() as model:
        mu = pm.Normal("mu", -1, 1)
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, 1, shape=len(population))
        released = pm.Data("released", np.zeros(len(population), int))
        counts = pm.Binomial.dist(population, pm.math.sigmoid(mu + tau * u))
        DiscreteGaussianMechanism("s", total=counts, scale=3, observed=released)

    def simulate(rng):
        mu, tau = rng.normal(-1, 1), abs(rng.normal())
        share = special.expit(rng.normal(mu, tau, size=len(population)))
        noise = draw_discrete_gaussian(rng, 3.0, (len(population),))
        return {"mu": mu, "tau": tau}, rng.binomial(population, share) + noise

    check_ranks(model, simulate)


@pytest.mark.nightly
def test_areas_with_two_sums_and_latent_noise():
    """Laplace noise in two entries of three areas, 400 people each."""
    n = np.full(3, 400)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=3)
        sigma = pm.LogNormal("sigma", 0, 0.5)
        released = pm.Data("released", np.tile([0.0, 300.0], (3, 1)))
        u = clamp(pm.Normal.dist(mu, sigma), -2, 2)
        LaplaceMechanism("s", pt.stack([u, u**2], axis=-1), n=n, scale=[10.0, 20.0], observed=released)  # fmt: skip

    def simulate(rng):
        mu, sigma = rng.normal(size=3), np.exp(0.5 * rng.normal())
        u = np.clip(rng.normal(mu, sigma, size=(400, 3)), -2, 2)
        sums = np.stack([u.sum(axis=0), (u**2).sum(axis=0)], axis=1)
        return {"mu": mu, "sigma": sigma}, sums + rng.laplace(0, [10, 20], size=(3, 2))

    check_ranks(model, simulate)
