"""Hyperparameters that no record tells of: a law of what the likelihood reads, and the prior of all."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.compat import groups_of
from pymc_dp.likelihood.reading import Place
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.records.queries import Gradient, Information, NormExceeds, Score
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.normal.conditional import ConditionalLaw
from pymc_dp.surrogate.normal.law import Law, posterior_of
from pymc_dp.surrogate.normal.model import NormalSurrogate
from pymc_dp.surrogate.normal.read_part import OfPart, read_part

FAST = {"mode": "FAST_COMPILE"}
GROUPS = 8


def centred(n=8000, seed=1, hyper=lambda: pm.HalfNormal("tau", 1)):
    """A logistic regression with a level per group, written as people write it."""
    rng = np.random.default_rng(seed)
    x, g, level = rng.normal(size=n), rng.integers(GROUPS, size=n), rng.normal(0, 0.6, size=GROUPS)
    y = (rng.random(n) < special.expit(0.3 + 0.5 * x + level[g])).astype(int)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        tau = hyper()
        u = pm.Normal("u", 0, tau, shape=GROUPS)
        eta = a + b * pm.Data("X", x) + u[pm.Data("G", g)]
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model


def non_centred(n=8000, seed=1):
    """The same, with effects as they are written for NUTS."""
    rng = np.random.default_rng(seed)
    x, g, level = rng.normal(size=n), rng.integers(GROUPS, size=n), rng.normal(0, 0.6, size=GROUPS)
    y = (rng.random(n) < special.expit(0.3 + 0.5 * x + level[g])).astype(int)
    with pm.Model() as model:
        mu, b = pm.Normal("mu", 0, 2), pm.Normal("b", 0, 2)
        tau, z = pm.HalfNormal("tau", 1), pm.Normal("z", shape=GROUPS)
        u = pm.Deterministic("u", mu + tau * z)
        eta = u[pm.Data("G", g)] + b * pm.Data("X", x)
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model


COEFFICIENTS = 16


def shrunk(n=8000, seed=1):
    """A linear regression under a horseshoe, with four coefficients that are not 0."""
    rng = np.random.default_rng(seed)
    X, truth = rng.normal(size=(n, COEFFICIENTS)), np.zeros(COEFFICIENTS)
    truth[:4] = [0.5, -0.4, 0.3, -0.6]
    with pm.Model() as model:
        tau, lam = pm.HalfCauchy("tau", 0.05), pm.HalfCauchy("lam", 1, shape=COEFFICIENTS)
        z, sigma = pm.Normal("z", shape=COEFFICIENTS), pm.HalfNormal("sigma", 2)
        beta = pm.Deterministic("beta", tau * lam * z)
        y = X @ truth + rng.normal(size=n)
        pm.Normal("y", pm.Data("X", X) @ beta, sigma, observed=pm.Data("Y", y))
    return model, truth


def test_the_likelihood_reads_levels_and_not_their_spread():
    part = read_part(dp.compile(centred(200), compile_kwargs=FAST))
    assert part.labels == ["a", "b", *(f"u[{k}]" for k in range(GROUPS))]
    # τ integrated out: levels are independent and have mean 0, and the variance E τ² = 1, less its tail.
    covariance = np.linalg.inv(part.prior.precision)
    assert np.allclose(part.prior.mean, 0, atol=0.1)
    assert np.allclose(np.diag(covariance)[2:], 0.9, atol=0.15)
    assert np.allclose(np.diag(covariance)[:2], 4, rtol=0.1)


@pytest.mark.parametrize("hyper", [lambda: 1.0, lambda: pm.HalfFlat("tau", initval=1.0)])
def test_models_without_such_a_part(hyper):
    """All of θ is read; or the prior has no draws, so that no moments are known of it."""
    assert read_part(dp.compile(centred(200, hyper=hyper), compile_kwargs=FAST)) is None


@pytest.mark.parametrize("query", [Gradient, Score, Information])
def test_terms_are_those_of_the_entries_that_are_read(query):
    compiled = dp.compile(centred(50), compile_kwargs=FAST)
    records = LocalRecords(compiled, 1, words=np.zeros(4, np.uint64))
    part, bound = read_part(compiled), () if query is Gradient else (0.5,)
    read, W = part.of.read, np.eye(len(part.labels))
    theta = compiled.parameters.start.copy()
    theta[read] += np.random.default_rng(2).normal(0, 0.3, len(read))
    of_part = OfPart(query(theta[read], W, *bound), part.reading.place(theta[read]))
    found = np.concatenate(list(of_part.terms(records)))
    # What is not read does not matter: every record's slope in its direction is 0.
    for chunk in records.gradients(theta):
        assert (np.delete(chunk, read, axis=1) == 0).all()
    whole = np.concatenate(list(query(theta, np.eye(compiled.d), *bound).terms(records)))
    norms = [np.linalg.norm(x.reshape(50, -1), axis=1) for x in (found, whole)]
    np.testing.assert_allclose(*norms, rtol=1e-10)
    assert found.shape[1] == of_part.dimension
    longer = OfPart(NormExceeds(of_part.of, norms[0].mean()), of_part.at)
    marks = np.concatenate(list(longer.terms(records)))
    assert marks.sum() == (norms[0] > norms[0].mean()).sum()


def test_of_products_with_scales_the_likelihood_reads_the_products():
    part = read_part(dp.compile(non_centred(200), compile_kwargs=FAST))
    assert part.labels == ["b", *(f"(mu, tau, z)[{k}]" for k in range(GROUPS))]
    assert read_part(dp.compile(non_centred(200), compile_kwargs=FAST), entries_only=True) is None
    with shrunk()[0] as model:
        part = read_part(dp.compile(model, compile_kwargs=FAST))
    assert part.labels == ["sigma (log)", *(f"(tau, lam, z)[{k}]" for k in range(COEFFICIENTS))]


def test_beside_products_effects_whose_sum_is_zero_are_what_they_are_made_of():
    """Of seven numbers one follows from the others, so that not all values have a way back."""
    with pm.Model() as model:
        u = pm.HalfNormal("tau") * pm.Normal("z", shape=GROUPS)
        w = pm.ZeroSumNormal("w", pm.HalfNormal("sd"), shape=7)
        g, h = (pm.Data(f"G{k}", np.arange(70) % k) for k in (GROUPS, 7))
        pm.Normal("y", u[g] + w[h], 1, observed=pm.Data("Y", np.zeros(70)))
    compiled = dp.compile(model, compile_kwargs=FAST)
    part = read_part(compiled)
    made_of = [f"(tau, z)[{k}]" for k in range(GROUPS)] + [f"w[{k}] (zerosum)" for k in range(6)]
    assert sorted(part.labels) == sorted(made_of)
    assert ConditionalLaw(compiled, part).covers_funnels


def test_numbers_that_not_all_values_are_a_way_back_from_are_no_part():
    """A rate that is above 0 would be searched as if it could be anything."""
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=3), pm.Normal("b", shape=3)
        rate = pt.exp(a + b)[pm.Data("g", np.arange(60) % 3)]
        pm.Poisson("y", rate, observed=pm.Data("Y", np.ones(60, int)))
    assert read_part(dp.compile(model, compile_kwargs=FAST)) is None


def test_scores_in_what_is_read_are_slopes_of_the_log_likelihood_in_it():
    """By differences, and at whichever θ it is read."""
    compiled = dp.compile(non_centred(40), compile_kwargs=FAST)
    records, part = LocalRecords(compiled, 1, words=np.zeros(4, np.uint64)), read_part(compiled)
    rng, of = np.random.default_rng(1), part.reading
    psi = of.start + rng.normal(0, 0.5, len(of.start))
    query = OfPart(Gradient(psi), of.place(psi))
    found = np.concatenate(list(query.terms(records)))
    for k, e in enumerate(np.eye(len(psi))):
        up, down = records.log_likelihoods([of.place(psi + h * e).theta for h in (1e-5, -1e-5)])
        np.testing.assert_allclose(found[:, k], (up - down) / 2e-5, atol=1e-6)
    # Another τ and μ, and z that make the same numbers of them.
    theta = compiled.parameters.start.copy()
    mu, tau = 0.7, -0.4
    at = {label: k for k, label in enumerate(compiled.parameters.labels)}
    theta[[at["b"], at["mu"], at["tau (log)"]]] = psi[0], mu, tau
    theta[[at[f"z[{k}]"] for k in range(GROUPS)]] = (psi[1:] - mu) / np.exp(tau)
    np.testing.assert_allclose(of(theta), psi)
    D = of.derivative(theta)
    there = Place(theta, D.T @ np.linalg.inv(D @ D.T))
    again = np.concatenate(list(OfPart(Gradient(psi), there).terms(records)))
    np.testing.assert_allclose(again, found, rtol=1e-7, atol=1e-9)


WRITTEN = {
    "scaled": (lambda tau: tau * pm.Normal("u", shape=2), 2),
    "centred": (lambda tau: pm.Normal("u", 0, tau, shape=2), 2),
    "zero sum": (lambda tau: pm.ZeroSumNormal("u", tau, shape=3), 3),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_draws_given_hyperparameters_are_those_of_the_law_times_the_prior(written):
    """Of effects however they are written, with the integral over τ and them done on a grid: two numbers that are N(0, τ²)."""
    effects, columns = WRITTEN[written]
    with pm.Model() as model:
        tau, b = pm.HalfCauchy("tau", 0.5), pm.Normal("b", 1, 2)
        eta = b + pt.dot(pm.Data("X", np.ones((30, columns))), effects(tau))
        pm.Normal("y", eta, 1, observed=pm.Data("Y", np.zeros(30)))
    compiled = dp.compile(model, compile_kwargs=FAST)
    part = read_part(compiled)
    of = {"scaled": "(tau, u)[{}]", "centred": "u[{}]", "zero sum": "u[{}] (zerosum)"}[written]
    assert part.labels == ["b", of.format(0), of.format(1)]
    rng = np.random.default_rng(0)
    J, S = np.diag([4.0, 9.0, 25.0]), np.diag([1.0, 3.0, 5.0])
    J[0, 1] = J[1, 0] = 2.0
    law = Law(np.array([0.5, 0.2, 0.4]), rng.normal(0, 3, 3), J, S)
    conditional = ConditionalLaw(compiled, part)
    assert conditional.covers_funnels
    found = NormalSurrogate.known(posterior_of(law, part.prior, law.centre))
    conditional.judged(found)
    draws = conditional.sample(4000, 2, 1).reshape(8000, -1)
    at = {label: k for k, label in enumerate(compiled.parameters.labels)}
    log_tau = draws[:, at["tau (log)"]]
    psi = np.array([part.reading(theta) for theta in draws])
    # Given τ, ψ is normal before and after.
    grid = np.linspace(-12, 8, 4001)
    means, variances, weights = [], [], []
    for t in grid:
        prior = np.diag([0.25, *[np.exp(-2 * t)] * 2])
        C = np.linalg.inv(law.K + prior)
        linear = law.k + law.K @ law.centre + prior @ [1, 0, 0]
        m = C @ linear
        density = np.log(np.exp(t) / (1 + np.exp(2 * t) / 0.25))
        density += linear @ m / 2 + np.linalg.slogdet(C)[1] / 2 - 2 * t
        means.append(m), variances.append(np.diag(C)), weights.append(density)
    w = np.exp(np.array(weights) - max(weights))
    w /= w.sum()
    mean = w @ np.array(means)
    sd = np.sqrt(w @ (np.array(variances) + (np.array(means) - mean) ** 2))
    # 8,000 draws, of which some thousand are effective of τ.
    assert (np.abs(psi.mean(axis=0) - mean) < 0.1 * sd).all()
    np.testing.assert_allclose(psi.std(axis=0), sd, rtol=0.1)
    middle = w @ grid
    assert abs(log_tau.mean() - middle) < 0.15 * np.sqrt(w @ (grid - middle) ** 2)


TAILED = {
    "StudentT": (lambda tau: pm.StudentT("u", 4, mu=0.3, sigma=tau, shape=2), stats.t(4), (0.3, 0)),
    "of a normal mean": (
        lambda tau: pm.StudentT("u", 4, mu=pm.Normal("m", 0.3, 0.5), sigma=tau, shape=2), stats.t(4), (0.3, 0.5),
    ),
    "Logistic": (lambda tau: pm.Logistic("u", 0, tau, shape=2), stats.logistic, (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAILED)
def test_draws_of_effects_with_tails_are_those_of_the_law_times_the_prior(kind):
    """Of two of which one is known and one is not, with the integral over τ, their location and them done on a grid."""
    effects, standard, (location, sd_of_location) = TAILED[kind]
    with pm.Model() as model:
        tau, b = pm.HalfCauchy("tau", 0.5), pm.Normal("b", 1, 2)
        eta = b + pt.dot(pm.Data("X", np.ones((30, 2))), effects(tau))
        pm.Normal("y", eta, 1, observed=pm.Data("Y", np.zeros(30)))
    compiled = dp.compile(model, compile_kwargs=FAST)
    part = read_part(compiled)
    assert part.labels == ["b", "u[0]", "u[1]"]
    J, S = np.diag([4.0, 9.0, 50.0]), np.diag([1.0, 9.0, 5.0])
    law = Law(np.array([0.5, 0.0, 0.8]), np.array([1.0, 2.0, 3.0]), J, S)
    conditional = ConditionalLaw(compiled, part)
    assert conditional.covers_funnels
    conditional.judged(NormalSurrogate.known(posterior_of(law, part.prior, law.centre)))
    draws = conditional.sample(4000, 2, 1).reshape(8000, -1)
    at = {label: k for k, label in enumerate(compiled.parameters.labels)}
    # Of pairs of log τ and location, as far as either varies: the weight, and moments of both effects given them.
    spread = np.linspace(-4, 4, 41) if sd_of_location else np.zeros(1)
    log_tau, middle = (x.ravel() for x in np.meshgrid(np.linspace(-10, 6, 321), spread))
    log_weights = log_tau - np.log1p(np.exp(2 * log_tau) / 0.25) - middle**2 / 2
    middle = location + sd_of_location * middle
    z = standard.ppf((np.arange(2_000) + 0.5) / 2_000)
    moments = []
    for k in (1, 2):
        u = middle[:, None] + np.exp(log_tau)[:, None] * z
        v = u - law.centre[k]
        L = np.exp(law.k[k] * v - law.K[k, k] * v**2 / 2)
        log_weights = log_weights + np.log(L.mean(axis=1))
        moments.append([(u**m * L).mean(axis=1) / L.mean(axis=1) for m in (1, 2)])
    w = np.exp(log_weights - log_weights.max())
    w /= w.sum()
    for k, (first, second) in enumerate(moments):
        mean = w @ first
        sd = np.sqrt(w @ second - mean**2)
        # 8,000 draws, of which some thousand are effective.
        found = draws[:, at[f"u[{k}]"]]
        assert abs(found.mean() - mean) < 0.1 * sd
        np.testing.assert_allclose(found.std(), sd, rtol=0.1)
    for label, exact in {"tau (log)": log_tau, "m": middle}.items():
        if label in at:
            mean = w @ exact
            sd = np.sqrt(w @ (exact - mean) ** 2)
            assert abs(draws[:, at[label]].mean() - mean) < 0.15 * sd
            np.testing.assert_allclose(draws[:, at[label]].std(), sd, rtol=0.15)


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["groups", "coefficients"])
def test_draws_of_a_non_centred_model_are_the_exact_posterior_without_noise(kind):
    model = non_centred() if kind == "groups" else shrunk()[0]
    idata = dp.sample(1000, chains=2, epsilon=1e6, model=model, cores=1, progressbar=False,
                      noise_source=InsecureSeededNoise(1))  # fmt: skip
    assert idata.attrs["privacy_usable"] == 1
    with model:
        exact = pm.sample(1000, chains=2, cores=1, random_seed=1, progressbar=False, target_accept=0.95,
                          nuts_sampler="nutpie", compute_convergence_checks=False)  # fmt: skip
    found, right = (groups_of(result)["posterior"] for result in (idata, exact))
    for name in ("b", "u", "tau") if kind == "groups" else ("sigma", "beta", "tau"):
        values = [p[name].values.reshape(2000, -1) for p in (found, right)]
        if name == "tau":
            values = [np.log(x) for x in values]
        sd = values[1].std(axis=0)
        # 2,000 draws with an autocorrelation of some ten, in both; and the law is normal.
        assert (np.abs(values[0].mean(axis=0) - values[1].mean(axis=0)) < 0.35 * sd).all(), name
        assert (np.abs(values[0].std(axis=0) / sd - 1) < 0.25).all(), name


@pytest.mark.chain
def test_a_horseshoe_finds_what_matters():
    model, truth = shrunk()
    idata = dp.sample(500, chains=2, epsilon=3.0, delta=1e-6, model=model, cores=1, progressbar=False,
                      noise_source=InsecureSeededNoise(2))  # fmt: skip
    assert idata.attrs["privacy_usable"] == 1
    beta = groups_of(idata)["posterior"]["beta"].values.reshape(1000, -1)
    low, high = np.quantile(beta, [0.05, 0.95], axis=0)
    assert ((low > 0) | (high < 0))[truth != 0].all()
    # Intervals of coefficients that are 0 miss it less often than one in ten: all twelve hold it.
    assert ((low < 0) & (high > 0))[truth == 0].all()
    sd = beta.std(axis=0)
    assert (np.abs(beta.mean(axis=0) - truth) < 4 * sd).all()


def test_what_noise_has_drowned_is_told_from_what_the_prior_holds():
    """Of coefficients that are all held by a small τ: of the second, noise has left a hundredth of the information."""
    compiled = dp.compile(shrunk(200)[0], compile_kwargs=FAST)
    part = read_part(compiled)
    d = len(part.labels)
    J, S = 400 * np.eye(d), 4 * np.eye(d)
    S[2, 2] = 40_000
    law = Law(part.reading.start, np.zeros(d), J, S)
    found = NormalSurrogate.known(posterior_of(law, part.prior, law.centre))
    judged = ConditionalLaw(compiled, part).judged(found)
    held = np.diag(judged.posterior.covariance) * np.diag(judged.posterior.prior)
    assert (held[1:] > 0.8).all()
    assert judged.unlearnt[2] > 0.8
    assert (np.delete(judged.unlearnt, 2) < 0.8).all()


@pytest.mark.chain
@pytest.mark.parametrize("seed", [3, 4])
def test_a_search_for_shrunk_coefficients_that_noise_drowns_is_not_usable(seed):
    """Of most noises: two of twelve, seeds 1 and 9, are called usable."""
    model, _ = shrunk(n=600)
    idata = dp.sample(200, chains=2, epsilon=0.3, delta=1e-5, model=model, cores=1, progressbar=False,
                      noise_source=InsecureSeededNoise(seed))  # fmt: skip
    assert idata.attrs["privacy_usable"] == 0


@pytest.mark.chain
@pytest.mark.slow
def test_draws_of_a_centred_hierarchy_are_the_exact_posterior_without_noise():
    model = centred()
    idata = dp.sample(1500, chains=2, epsilon=1e6, model=model, cores=1, progressbar=False,
                      step=partial(dp.DPSurrogate, family="normal"), noise_source=InsecureSeededNoise(1))  # fmt: skip
    with model:
        exact = pm.sample(1500, chains=2, cores=1, random_seed=1, progressbar=False,
                          nuts_sampler="nutpie", compute_convergence_checks=False)  # fmt: skip
    found, right = (groups_of(result)["posterior"] for result in (idata, exact))
    for name in ("a", "b", "u", "tau"):
        values = [p[name].values.reshape(3000, -1) for p in (found, right)]
        sd = values[1].std(axis=0)
        # 3,000 draws with an autocorrelation of some ten, in both; and the law is normal.
        assert (np.abs(values[0].mean(axis=0) - values[1].mean(axis=0)) < 0.3 * sd).all(), name
        assert (np.abs(values[0].std(axis=0) / sd - 1) < 0.2).all(), name


@pytest.mark.chain
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_search_does_not_fall_down_the_funnel(seed):
    idata = dp.sample(300, chains=2, epsilon=1.0, model=centred(seed=seed), cores=1, progressbar=False,
                      step=partial(dp.DPSurrogate, family="normal"), noise_source=InsecureSeededNoise(seed))  # fmt: skip
    assert idata.attrs["privacy_usable"] == 1
    levels = groups_of(idata)["posterior"]["u"].values.reshape(600, -1)
    truth = np.random.default_rng(seed)
    truth.normal(size=8000), truth.integers(GROUPS, size=8000)
    truth = truth.normal(0, 0.6, size=GROUPS)
    assert (np.abs(levels.mean(axis=0) - truth) < 5 * levels.std(axis=0)).all()
