"""Counts observed through noise: summed out exactly, as an ordinary variable of the model."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

from pymc_dp import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)

FAST = {"mode": "FAST_COMPILE"}
SCALE = 2.5
POPULATION = np.array([20, 50, 7])
NOISY = np.array([-3, 22, 9])
INTEGERS = np.arange(-400, 401)
NOISES = {
    "laplace": (LaplaceMechanism, lambda r: stats.laplace.logpdf(r, scale=SCALE)),
    "gaussian": (GaussianMechanism, lambda r: stats.norm.logpdf(r, scale=SCALE)),
    "discrete laplace": (
        DiscreteLaplaceMechanism,
        lambda r: -np.abs(r) / SCALE - special.logsumexp(-np.abs(INTEGERS) / SCALE),
    ),
    "discrete gaussian": (
        DiscreteGaussianMechanism,
        lambda r: -(r**2) / 2 / SCALE**2 - special.logsumexp(-(INTEGERS**2) / 2 / SCALE**2),
    ),
}
LAWS = {
    "binomial": (
        lambda p: pm.Binomial.dist(POPULATION, p),
        lambda k, p: stats.binom.logpmf(k, POPULATION[:, None], p),
    ),
    "poisson": (
        lambda p: pm.Poisson.dist(30 * p, shape=3),
        lambda k, p: stats.poisson.logpmf(k, 30 * p),
    ),
    "negative binomial": (
        lambda p: pm.NegativeBinomial.dist(mu=30 * p, alpha=3 * p, shape=3),
        lambda k, p: stats.nbinom.logpmf(k, 3 * p, 1 / 11),
    ),
    "beta-binomial": (
        lambda p: pm.BetaBinomial.dist(alpha=3 * p, beta=2 + p, n=POPULATION),
        lambda k, p: stats.betabinom.logpmf(k, POPULATION[:, None], 3 * p, 2 + p),
    ),
    "zero-inflated": (
        lambda p: pm.ZeroInflatedPoisson.dist(psi=p, mu=12 * p, shape=3),
        lambda k, p: np.where(k == 0, np.log1p(p * np.expm1(-12 * p)),
                              np.log(p) + stats.poisson.logpmf(k, 12 * p)),
    ),
}  # fmt: skip


CASES = [(law, "discrete gaussian") for law in LAWS] + [("binomial", noise) for noise in NOISES]
REST = [(law, noise) for law in LAWS for noise in NOISES if (law, noise) not in CASES]


@pytest.mark.parametrize(
    ("law", "noise"),
    [*dict.fromkeys(CASES), *(pytest.param(*c, marks=pytest.mark.nightly) for c in REST)],
)
def test_density_gradient_and_mean_are_those_of_the_sum_over_all_counts(law, noise):
    build, log_mass = LAWS[law]
    mechanism, log_noise = NOISES[noise]
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        mechanism("s", total=build(p), scale=SCALE, observed=NOISY, keep_total=True)
    outputs = [
        *model.logp(vars=[model["s"]], sum=False),
        *model.replace_rvs_by_values([model["s_total"]]),
    ]
    density = pm.compile(model.value_vars, outputs, **FAST)
    gradient = model.compile_dlogp(**FAST)
    k = np.arange(800)

    def exact(x):
        terms = log_mass(k, x) + log_noise(NOISY[:, None] - k)
        log_sum = special.logsumexp(terms, axis=1)
        return log_sum, (np.exp(terms - log_sum[:, None]) * k).sum(axis=1)

    for x in (0.02, 0.3, 0.9):
        found, mean = density(np.asarray(x))
        expected, expected_mean = exact(x)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(mean, expected_mean, rtol=1e-9, atol=1e-9)
        slope = (exact(x + 1e-6)[0].sum() - exact(x - 1e-6)[0].sum()) / 2e-6
        np.testing.assert_allclose(gradient({"p": np.asarray(x)}), slope, rtol=1e-5, atol=1e-5)


TABLES = {
    "multinomial": (
        lambda p: pm.Multinomial.dist(7, pt.stack([p, 0.7 * (1 - p), 0.3 * (1 - p)])),
        lambda k, p: stats.multinomial.logpmf(k, 7, [p, 0.7 * (1 - p), 0.3 * (1 - p)]),
    ),
    "dirichlet-multinomial": (
        lambda p: pm.DirichletMultinomial.dist(7, pt.stack([3 * p, 1.0, 2.0])),
        lambda k, p: stats.dirichlet_multinomial.logpmf(k, [3 * p, 1.0, 2.0], 7),
    ),
}


@pytest.mark.parametrize("noise", ["discrete gaussian", "laplace"])
@pytest.mark.parametrize("law", TABLES)
@pytest.mark.parametrize("s", [[3, -2, 5], pytest.param([12, 9, -8], marks=pytest.mark.slow)])
def test_a_table_with_a_public_total_is_summed_over_all_tables(law, noise, s):
    build, log_mass = TABLES[law]
    mechanism, log_noise = NOISES[noise]
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        mechanism("s", total=build(p), scale=SCALE, observed=s, keep_total=True)
    outputs = [
        *model.logp(vars=[model["s"]], sum=False),
        *model.replace_rvs_by_values([model["s_total"]]),
    ]
    density, gradient = pm.compile(model.value_vars, outputs, **FAST), model.compile_dlogp(**FAST)
    tables = np.array([(i, j, 7 - i - j) for i in range(8) for j in range(8 - i)])

    def exact(x):
        terms = log_mass(tables, x) + log_noise(np.array(s) - tables).sum(axis=1)
        log_sum = special.logsumexp(terms)
        return log_sum, np.exp(terms - log_sum) @ tables

    for x in (0.02, 0.3, 0.9):
        found, mean = density(np.asarray(x))
        expected, expected_mean = exact(x)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        np.testing.assert_allclose(mean, expected_mean, rtol=1e-9, atol=1e-9)
        slope = (exact(x + 1e-6)[0] - exact(x - 1e-6)[0]) / 2e-6
        np.testing.assert_allclose(gradient({"p": np.asarray(x)}), slope, rtol=1e-5, atol=1e-5)


def test_tables_of_several_areas_and_their_predictive_draws():
    """Areas are independent; every drawn table, noise aside, has its area's total."""
    size, noisy = np.array([30, 2000]), np.array([[9, 14, 4], [700, 350, 960]])
    share = np.array([[0.3, 0.5, 0.2], [0.35, 0.2, 0.45]])
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3), shape=(2, 3), default_transform=None)
        total = pm.Multinomial.dist(size, p)
        DiscreteGaussianMechanism("s", total=total, scale=[[3] * 3, [9] * 3], observed=noisy)
    f = model.compile_logp(vars=[model["s"]], sum=False, **FAST)
    (both,) = f({"p": share})
    for i in range(2):
        with pm.Model() as alone:
            q = pm.Dirichlet("q", np.ones(3), default_transform=None)
            DiscreteGaussianMechanism(
                "s", total=pm.Multinomial.dist(size[i], q), scale=[3, 9][i], observed=noisy[i]
            )
        g = alone.compile_logp(vars=[alone["s"]], **FAST)
        np.testing.assert_allclose(both[i], g({"q": share[i]}), rtol=1e-10)
    with pm.do(model, {"p": share}) as fixed:
        draws = pm.draw(fixed["s"], 3000, random_seed=1)
    sums = draws.sum(axis=-1) - size
    sd = np.sqrt(3) * np.array([3, 9])
    assert np.abs(sums.mean(axis=0)).max() < 5 * sd.max() / 3000**0.5
    assert np.abs(sums.std(axis=0) / sd - 1).max() < 5 / 6000**0.5


def test_counts_without_noise_are_observed_themselves():
    """Invariants: scale 0, alone or beside noisy cells."""
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        DiscreteGaussianMechanism(
            "s", total=pm.Binomial.dist(POPULATION, p), scale=[0, 2.5, 0], observed=[3, 22, 7]
        )
        DiscreteLaplaceMechanism(
            "t", total=pm.NegativeBinomial.dist(mu=9 * p, alpha=2 * p), scale=0, observed=4
        )
    s, t = model.compile_logp(sum=False, vars=[model["s"], model["t"]], **FAST)(
        {"p": np.asarray(0.3)}
    )
    exact = stats.binom.logpmf([3, 7], [20, 7], 0.3)
    np.testing.assert_allclose(s[[0, 2]], exact, rtol=1e-12)
    np.testing.assert_allclose(t, stats.nbinom.logpmf(4, 0.6, 0.6 / 3.3), rtol=1e-10)
    draws = pm.draw(model["s"], 20, random_seed=1)
    assert (draws[:, 0] >= 0).all()
    assert (draws[:, 2] <= 7).all()


def test_impossible_counts_have_no_density():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        DiscreteLaplaceMechanism("s", total=pm.Binomial.dist(3, p), scale=0, observed=4)
    assert model.compile_logp(vars=[model["s"]], **FAST)({"p": np.asarray(0.3)}) == -np.inf


def test_wide_noise_on_a_large_count():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        GaussianMechanism("s", total=pm.Binomial.dist(10**6, p), scale=5000.0, observed=305_000.0)
    found = model.compile_logp(vars=[model["s"]], **FAST)({"p": np.asarray(0.3)})
    variance = 5000.0**2 + 10**6 * 0.21
    np.testing.assert_allclose(found, stats.norm.logpdf(5000, scale=variance**0.5), rtol=1e-5)


def test_released_table_can_be_replaced():
    with pm.Model() as model:
        table = pm.Data("table", NOISY)
        p = pm.Uniform("p", 0, 1, default_transform=None)
        counts = pm.Binomial.dist(POPULATION, p)
        DiscreteGaussianMechanism("s", total=counts, scale=SCALE, observed=table)
    density = model.compile_logp(vars=[model["s"]], **FAST)
    before = density({"p": np.asarray(0.3)})
    model.set_data("table", NOISY + 1)
    assert density({"p": np.asarray(0.3)}) != before
    model.set_data("table", NOISY)
    assert density({"p": np.asarray(0.3)}) == before


def test_it_is_an_ordinary_variable():
    coords = {"area": ["a", "b", "c"]}
    with pm.Model(coords=coords) as model:
        p = pm.Beta("p", 2, 2, dims="area")
        DiscreteGaussianMechanism(
            "s", total=pm.Binomial.dist(POPULATION, p), scale=5, observed=NOISY, dims="area"
        )
    assert model.named_vars_to_dims["s"] == ("area",)
    assert pm.model_graph.ModelGraph(model).make_compute_graph()["s"] == {"p"}
    with pm.do(model, {"p": np.full(3, 0.2)}) as fixed:
        draws = pm.draw(fixed["s"], 4000, random_seed=2)
    sd = np.sqrt(POPULATION * 0.16 + 25)
    assert draws.dtype == np.int64
    assert np.abs(draws.mean(axis=0) - 0.2 * POPULATION).max() < 5 * sd.max() / 4000**0.5
    assert np.abs(draws.std(axis=0) / sd - 1).max() < 5 / 8000**0.5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, PrivacyConfigurationError, "say what was released"),
        ({"total": "named"}, UnsupportedModelError, "unnamed random variable"),
        (
            {"total": "multinomial", "scale": 1e6},
            PrivacyConfigurationError,
            "sums that are too long",
        ),
        ({"total": "normal"}, UnsupportedModelError, "of counts"),
        ({"total": "binomial", "n": 7}, PrivacyConfigurationError, "`n` goes with"),
        ({"total": "binomial", "points": 7}, PrivacyConfigurationError, "`points` goes with"),
        ({"total": "binomial", "scale": -1}, PrivacyConfigurationError, "positive or 0"),
        ({"total": "binomial", "scale": [1, 2]}, PrivacyConfigurationError, "`scale` has shape"),
        ({"total": "beta-binomial", "scale": 1e6}, PrivacyConfigurationError, "sums that are"),
    ],
)
def test_refusals(arguments, error, message):
    with pm.Model():
        p = pm.Beta("p", 2, 2)
        totals = {
            "named": pm.Binomial("count", 5, p, shape=3),
            "multinomial": pm.Multinomial.dist(9, pt.stack([p, 1 - p, 0.0])),
            "normal": pm.Normal.dist(p, 1, shape=3),
            "binomial": pm.Binomial.dist(POPULATION, p),
            "beta-binomial": pm.BetaBinomial.dist(alpha=p, beta=2, n=POPULATION),
        }
        if "total" in arguments:
            arguments = {**arguments, "total": totals[arguments["total"]]}
        with pytest.raises(error, match=message):
            DiscreteLaplaceMechanism("s", observed=NOISY, **{"scale": 2, **arguments})
