"""Posteriors that are known exactly, by closed form, quadrature or enumeration."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)
from pymc_dp.statistics import clamp, record_sum

from ..modes import COMPILED

pytestmark = pytest.mark.chain

UNIT = np.linspace(0, 1, 4001)[1:-1]
BERNOULLI = {
    "laplace": (LaplaceMechanism, 8.7, 2.0, lambda r: -np.abs(r) / 2.0),
    "gaussian": (GaussianMechanism, 8.7, 1.5, lambda r: -(r**2) / 4.5),
    "discrete laplace": (DiscreteLaplaceMechanism, 9, 2.0, lambda r: -np.abs(r) / 2.0),
    "discrete gaussian": (DiscreteGaussianMechanism, 9, 1.5, lambda r: -(r**2) / 4.5),
}


def bernoulli_posterior(n, log_g):
    """Density on UNIT under a Beta(2, 3) prior: the sum of n records is enumerated."""
    k = np.arange(n + 1)
    return stats.binom.pmf(k, n, UNIT[:, None]) @ np.exp(log_g(k)) * stats.beta.pdf(UNIT, 2, 3)


@pytest.mark.parametrize(
    "case",
    [
        "laplace",
        "discrete gaussian",
        *(pytest.param(c, marks=pytest.mark.nightly) for c in ("gaussian", "discrete laplace")),
    ],
)
def test_bernoulli_records(case, draw_from, on_grid):
    mechanism, s, scale, log_g = BERNOULLI[case]
    with pm.Model():
        p = pm.Beta("p", 2, 3)
        x = pm.Bernoulli("x", p, shape=12)
        mechanism("s", x, scale=scale, observed=s)
        draws = draw_from("p", PrivacyAwareGibbs([x]))
    on_grid(draws, UNIT, bernoulli_posterior(12, lambda k: log_g(s - k)))


def test_noise_of_another_family(draw_from, on_grid):
    with pm.Model():
        p = pm.Beta("p", 2, 3)
        x = pm.Bernoulli("x", p, shape=12)
        pm.StudentT("s", nu=3, mu=record_sum(x), sigma=1.5, observed=8.7)
        draws = draw_from("p", PrivacyAwareGibbs([x]))
    on_grid(draws, UNIT, bernoulli_posterior(12, lambda k: stats.t.logpdf(8.7 - k, 3, scale=1.5)))


def normal_posterior(*, s, mean_per_mu, mean, variance, prior_sd=2.0):
    """Of μ ~ N(0, prior_sd²) given s ~ N(mean + mean_per_mu·μ, variance)."""
    precision = 1 / prior_sd**2 + mean_per_mu**2 / variance
    center = mean_per_mu * (s - mean) / variance / precision
    return stats.norm(center, precision**-0.5)


@pytest.mark.parametrize("interweave", [True, False])
def test_normal_mean(interweave, draw_from, against):
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=8)
        GaussianMechanism("s", x, scale=4.0, observed=11.0)
        draws = draw_from("mu", PrivacyAwareGibbs([x], interweave=interweave), draws=3000)
    exact = normal_posterior(s=11.0, mean_per_mu=8, mean=0, variance=8 + 16)
    against(draws, exact.ppf, exact.mean(), exact.std())


def test_records_written_noncentered_by_the_user(draw_from, against):
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        z = pm.Normal("z", 0, 1, shape=8)
        GaussianMechanism("s", mu + z, scale=4.0, observed=11.0)
        draws = draw_from("mu", PrivacyAwareGibbs([z]))
    exact = normal_posterior(s=11.0, mean_per_mu=8, mean=0, variance=8 + 16)
    against(draws, exact.ppf, exact.mean(), exact.std())


def test_two_latents_of_which_one_moves(draw_from, against):
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", 0.5, 1, shape=8)
        y = pm.Normal("y", mu - x, 1, shape=8)
        GaussianMechanism("s", y, scale=4.0, observed=11.0)
        draws = draw_from("mu", PrivacyAwareGibbs([x, y]))
    exact = normal_posterior(s=11.0, mean_per_mu=8, mean=-4, variance=16 + 16)
    against(draws, exact.ppf, exact.mean(), exact.std())


@pytest.mark.nightly  # minutes; each part of it has its own test here or in test_noncentering
def test_hierarchy_of_multivariate_records(draw_from, against):
    covariance = np.array([[1.0, 0.6], [0.6, 2.0]])
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        x = pm.MvNormal("x", pt.stack([mu, 1.0]), covariance, shape=(8, 2))
        y = pm.Normal("y", x.sum(axis=1), 1, shape=8)
        GaussianMechanism("s", y, scale=4.0, observed=11.0)
        draws = draw_from("mu", PrivacyAwareGibbs([x, y], compile_kwargs=COMPILED))
    exact = normal_posterior(
        s=11.0, mean_per_mu=8, mean=8, variance=8 * (covariance.sum() + 1) + 16
    )
    against(draws, exact.ppf, exact.mean(), exact.std())


def test_centered_latent_below_a_moved_one(draw_from, on_grid):
    """A Bernoulli record depends on a normal one: the first stays, the second moves with μ."""
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=6)
        y = pm.Bernoulli("y", p=pm.math.invprobit(x), shape=6)
        LaplaceMechanism("s", y, scale=1.0, observed=4.6)
        draws = draw_from("mu", PrivacyAwareGibbs([x, y]))
    grid = np.linspace(-9, 9, 4001)
    k = np.arange(7)
    share = stats.norm.cdf(grid / np.sqrt(2))[:, None]
    likelihood = stats.binom.pmf(k, 6, share) @ np.exp(-np.abs(4.6 - k))
    on_grid(draws, grid, likelihood * stats.norm.pdf(grid, 0, 2))


def test_clamped_normal_mean(draw_from, on_grid):
    n, s, b, h = 4, 1.3, 1.5, 1 / 400
    cells = np.arange(-1, 1 + h / 2, h)
    edges = (cells[:-1] + cells[1:]) / 2
    grid = np.linspace(-9, 9, 1201)
    below = stats.norm.cdf(edges - grid[:, None])
    mass = np.diff(np.hstack([np.zeros((len(grid), 1)), below, np.ones((len(grid), 1))]))
    size = n * (len(cells) - 1) + 1
    mass_of_sum = np.fft.irfft(np.fft.rfft(mass, size) ** n, size)
    sums = -n + h * np.arange(size)
    density = mass_of_sum @ np.exp(-np.abs(s - sums) / b) * stats.norm.pdf(grid, 0, 2)
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=n)
        LaplaceMechanism("s", clamp(x, -1, 1), epsilon=2 / b, sensitivity=2, observed=s)
        draws = draw_from("mu", PrivacyAwareGibbs([x]), draws=3000)
    on_grid(draws, grid, density)


def test_unknown_scale(draw_from, on_grid):
    """Σx² is σ² times a χ² variable; θ has a transform."""
    grid = np.linspace(0, 6, 2001)[1:]
    q = (np.arange(4000) + 0.5) / 4000
    total = grid[:, None] ** 2 * stats.chi2.ppf(q, 7)
    density = np.exp(-np.abs(20.0 - total) / 5).mean(axis=1) * np.exp(-(grid**2) / 2)
    with pm.Model():
        sigma = pm.HalfNormal("sigma", 1)
        x = pm.Normal("x", 0, sigma, shape=7)
        LaplaceMechanism("s", x**2, scale=5.0, observed=20.0)
        # The low end mixes slowly: half as many leave 120 to 360 effective draws of its quantile, by seed and library versions.
        step = PrivacyAwareGibbs([x], nuts={"target_accept": 0.9})
        draws = draw_from("sigma", step, draws=4000)
    on_grid(draws, grid, density)


def test_latents_with_a_transform(draw_from, on_grid):
    """A sum of exponential records has a Gamma law; PyMC keeps their logarithms."""
    grid = np.linspace(0, 8, 2001)[1:]
    q = (np.arange(4000) + 0.5) / 4000
    total = grid[:, None] * stats.gamma.ppf(q, 6)
    density = np.exp(-((9.0 - total) ** 2) / 2 / 3**2).mean(axis=1) * stats.gamma.pdf(grid, 2)
    with pm.Model():
        mean = pm.Gamma("mean", 2, 1)
        x = pm.Exponential("x", scale=mean, shape=6)
        GaussianMechanism("s", x, scale=3.0, observed=9.0)
        draws = draw_from("mean", PrivacyAwareGibbs([x]))
    on_grid(draws, grid, density)


@pytest.mark.slow
def test_log_linear_model(draw_from, against):
    """Five records of a class and two features, all 8⁵ data sets enumerated.

    Given the records the class probabilities are Dirichlet, so the posterior of the first one is
    a mixture of Beta distributions.
    """
    n, classes, features, levels, scale = 5, 2, 2, 2, 2.0
    rng = np.random.default_rng(4)
    s = rng.uniform(-1, 4, size=(features, classes * levels))

    cells = np.array(list(product(range(classes), range(levels), range(levels))))
    one_record = np.zeros((len(cells), features, classes * levels))
    for k in range(features):
        one_record[np.arange(len(cells)), k, cells[:, 0] * levels + cells[:, 1 + k]] = 1
    sets = np.array(list(product(range(len(cells)), repeat=n)))
    tables = one_record[sets].sum(axis=1)
    first = (cells[:, 0] == 0)[sets].sum(axis=1)
    log_weight = special.betaln(2 + first, 2 + n - first)
    counts = tables.reshape(len(sets), features, classes, levels)
    log_weight += special.betaln(2 + counts[..., 0], 2 + counts[..., 1]).sum(axis=(1, 2))
    log_weight -= np.abs(s - tables).sum(axis=(1, 2)) / scale
    weight = np.exp(log_weight - log_weight.max())
    weight = np.bincount(first, weight, n + 1) / weight.sum()
    mixture = [stats.beta(2 + k, 2 + n - k) for k in range(n + 1)]
    mean = sum(w * m.mean() for w, m in zip(weight, mixture, strict=True))
    second = sum(w * m.moment(2) for w, m in zip(weight, mixture, strict=True))
    cdf = sum(w * m.cdf(UNIT) for w, m in zip(weight, mixture, strict=True))

    with pm.Model():
        p = pm.Dirichlet("p", np.full(classes, 2.0))
        q = pm.Dirichlet("q", np.full((classes, features, levels), 2.0))
        y = pm.Categorical("y", p, shape=n)
        x = pm.Categorical("x", q[y], shape=(n, features))
        cell = pt.eq((y[:, None] * levels + x)[..., None], np.arange(classes * levels))
        LaplaceMechanism("s", cell, epsilon=4 / scale, sensitivity=4, observed=s)
        draws = draw_from("p", PrivacyAwareGibbs([x, y], compile_kwargs=COMPILED), draws=1500)[
            ..., 0
        ]
    against(draws, lambda level: np.interp(level, cdf, UNIT), mean, np.sqrt(second - mean**2))


def test_the_comparison_can_fail(on_grid):
    rng = np.random.default_rng(0)
    density = stats.beta.pdf(UNIT, 4, 3)
    on_grid(rng.beta(4, 3, size=(2, 4000)), UNIT, density)
    for wrong in (rng.beta(4.5, 3, size=(2, 4000)), rng.beta(3.2, 2.4, size=(2, 4000))):
        with pytest.raises(AssertionError, match="standard errors off"):
            on_grid(wrong, UNIT, density)
    with pytest.raises(AssertionError, match="say nothing"):
        on_grid(rng.beta(4, 3, size=(2, 50)), UNIT, density)
