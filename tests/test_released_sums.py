"""Sums over n records observed through noise: records integrated out by the central limit theorem."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import optimize, special, stats

from pymc_dp import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)
from pymc_dp.mechanisms.normal_sum import noisy_sum, normal_laplace
from pymc_dp.mechanisms.reference import nothing_to_correct
from pymc_dp.statistics import clamp

from .marks import slow_but

FAST = {"mode": "FAST_COMPILE"}
GRID = np.linspace(-6, 6, 601)


def free(name, **kwargs):
    return pm.Normal(name, 0, 2, default_transform=None, **kwargs)


def log_density(model, name="s", **point):
    f = model.compile_logp(vars=[model[name]], **FAST)
    start = model.initial_point()
    return f({**start, **{k: np.asarray(v, float) for k, v in point.items()}})


def mean_and_sd(log_posterior):
    w = np.exp(log_posterior - log_posterior.max())
    w /= w.sum()
    mean = w @ GRID
    return mean, np.sqrt(w @ (GRID - mean) ** 2)


# -- the density ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "s"), [("gaussian", 4.0), ("laplace", 12.5)])
def test_ten_clamped_records_against_the_law_of_their_sum(noise, s):
    """The exact law by Fourier; the second release is outside of what the sum can be."""
    n, scale, h = 10, 2.0, 1 / 400
    cells = np.arange(-1, 1 + h / 2, h)
    edges = (cells[:-1] + cells[1:]) / 2
    below = stats.norm.cdf(edges - GRID[:, None])
    mass = np.diff(np.hstack([np.zeros((len(GRID), 1)), below, np.ones((len(GRID), 1))]))
    size = n * (len(cells) - 1) + 1
    of_sum = np.fft.irfft(np.fft.rfft(mass, size) ** n, size)
    residual = s + n - h * np.arange(size)
    law = stats.norm if noise == "gaussian" else stats.laplace
    prior = stats.norm.logpdf(GRID, 0, 2)
    exact = np.log(np.maximum(of_sum @ law.pdf(residual, scale=scale), 1e-300)) + prior

    mechanism = GaussianMechanism if noise == "gaussian" else LaplaceMechanism
    with pm.Model() as model:
        mu = free("mu")
        mechanism("s", clamp(pm.Normal.dist(mu, 1), -1, 1), n=n, scale=scale, observed=s)
    f = model.compile_logp(**FAST)
    mean, sd = mean_and_sd(exact)
    found_mean, found_sd = mean_and_sd(np.array([f({"mu": x}) for x in GRID]))
    assert abs(found_mean - mean) < 0.02 * sd
    assert abs(found_sd / sd - 1) < 0.02


def test_normal_records_with_normal_noise_are_exact():
    cov = np.array([[2.0, 0.7], [0.7, 1.0]])
    with pm.Model() as model:
        mu = free("mu", shape=2)
        x = pm.MvNormal.dist(mu, cov)
        GaussianMechanism("s", x, n=300, scale=[3.0, 4.0], observed=[250.0, -100.0])
    found = log_density(model, mu=[0.7, -0.2])
    exact = stats.multivariate_normal([210, -60], 300 * cov + np.diag([9.0, 16.0]))
    np.testing.assert_allclose(found, exact.logpdf([250, -100]), rtol=1e-9)


def test_discrete_records_are_summed_over():
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.1, 0.6, 0.9])
    with pm.Model() as model:
        share = free("share", shape=3)
        kind = pm.Categorical.dist(p)
        yes = pm.Bernoulli.dist(share[kind])
        table = pt.stack([pt.eq(kind, i) * yes for i in range(3)])
        DiscreteGaussianMechanism("s", table, n=500, scale=3, observed=[12, 140, 131])
    m = p * q
    exact = stats.multivariate_normal(500 * m, 500 * (np.diag(m) - np.outer(m, m)) + 9 * np.eye(3))
    np.testing.assert_allclose(log_density(model, share=q), exact.logpdf([12, 140, 131]), rtol=1e-9)


def test_mixed_records():
    """A yes whose probability depends on a normal variable: P(yes) is a normal probability, too."""
    with pm.Model() as model:
        mu = free("mu")
        x = pm.Normal.dist(mu, 1)
        yes = pm.Bernoulli.dist(pm.math.invprobit(x))
        GaussianMechanism("s", yes, n=1000, scale=5.0, observed=700.0)
    p = special.ndtr(0.6 / np.sqrt(2))
    exact = stats.norm.logpdf(700, 1000 * p, np.sqrt(1000 * p * (1 - p) + 25))
    np.testing.assert_allclose(log_density(model, mu=0.6), exact, atol=1e-3)


@pytest.mark.parametrize("quantile", ["gamma", "beta"])
def test_records_known_by_their_quantiles(quantile):
    with pm.Model() as model:
        a = pm.HalfNormal("a", 1, default_transform=None)
        x = pm.Gamma.dist(2.5, 1 / a) if quantile == "gamma" else pm.Weibull.dist(2, a)
        GaussianMechanism("s", x, n=100, scale=1.0, observed=200.0)
    law = stats.gamma(2.5, scale=0.9) if quantile == "gamma" else stats.weibull_min(2, scale=0.9)
    exact = stats.norm.logpdf(200, 100 * law.mean(), np.sqrt(100 * law.var() + 1))
    np.testing.assert_allclose(log_density(model, a=0.9), exact, rtol=5e-3)


@pytest.mark.parametrize("mechanism", [GaussianMechanism, LaplaceMechanism])
def test_gradient_where_records_are_clamped(mechanism):
    with pm.Model() as model:
        mu, log_sd = free("mu"), free("log_sd")
        x = pm.Normal.dist(mu, pt.exp(log_sd))
        y = pm.Normal.dist(x - mu, 1)
        t = pt.stack([clamp(x, -1, 1), clamp(x, -1, 1) ** 2, clamp(y, -2, 2)])
        mechanism("s", t, n=50, scale=[1.0, 2.0, 3.0], observed=[20.0, 30.0, 1.0])
    f, df = model.compile_logp(**FAST), model.compile_dlogp(**FAST)
    rng = np.random.default_rng(3)
    point = {k: np.asarray(v) + rng.normal(0, 0.5, np.shape(v)) for k, v in model.initial_point().items()}  # fmt: skip
    flat = np.concatenate([np.ravel(v) for v in point.values()])

    def at(x):
        sizes = np.cumsum([np.size(v) for v in point.values()])[:-1]
        parts = zip(point.items(), np.split(x, sizes), strict=True)
        return {k: part.reshape(np.shape(v)) for (k, v), part in parts}

    step = 1e-6 * np.eye(len(flat))
    slopes = [(f(at(flat + h)) - f(at(flat - h))) / 2e-6 for h in step]
    np.testing.assert_allclose(df(at(flat)), slopes, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("v", [1e-9, 0.04, 1.0, 400.0])
def test_normal_plus_laplace(v):
    for r in (-30.0, -0.3, 0.0, 2.0, 80.0):
        logp, by_r, by_v = normal_laplace(r, v, 1.5)
        if v > 1:  # the Laplace density is the wide one's kink: integrate over it instead
            q = (np.arange(200_000) + 0.5) / 200_000
            exact = np.log(stats.norm.pdf(r - stats.laplace.ppf(q, scale=1.5), scale=v**0.5).mean())
        else:
            t = r - np.linspace(-12, 12, 400_001) * v**0.5
            exact = np.log((stats.norm.pdf(np.linspace(-12, 12, 400_001)) * stats.laplace.pdf(t, scale=1.5)).sum() * 24 / 400_000)  # fmt: skip
        if np.isfinite(exact) and exact > -60:
            np.testing.assert_allclose(logp, exact, rtol=1e-4, atol=1e-4)
        h = 1e-4 * max(1, v)
        up, down = normal_laplace(r + 1e-5, v, 1.5)[0], normal_laplace(r - 1e-5, v, 1.5)[0]
        np.testing.assert_allclose(by_r, (up - down) / 2e-5, rtol=1e-3, atol=1e-4)
        if v > h:
            up, down = normal_laplace(r, v + h, 1.5)[0], normal_laplace(r, v - h, 1.5)[0]
            np.testing.assert_allclose(by_v, (up - down) / 2 / h, rtol=1e-2, atol=1e-4)


def test_the_latent_of_laplace_noise_integrates_to_its_convolution():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 20, 2)).cumsum(axis=2)
    w, n, b, s = np.full((1, 20), 0.05), np.array([50.0]), np.array([3.0, 12.0]), np.array([[5.0, -30.0]])  # fmt: skip
    count = 40_000
    args = [np.repeat(x, count, axis=0) for x in (X, w, n)]
    z = rng.normal(size=(count, 2))
    right = nothing_to_correct((count,), 2)
    values = np.exp(noisy_sum(*args, np.zeros(2), b, np.repeat(s, count, axis=0), z, *right)[0])
    grid = np.linspace(-120, 120, 961)
    u = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    mean = X[0].mean(axis=0)
    total = stats.multivariate_normal(50 * mean, 50 * np.cov(X[0].T, bias=True))
    exact = (total.pdf(u) * stats.laplace.pdf(s[0] - u, scale=b).prod(axis=-1)).sum() / 16
    assert abs(values.mean() - exact) < 5 * values.std() / count**0.5
    assert values.std() / count**0.5 < 0.05 * exact


def test_discrete_noise_on_a_sum_is_continuous_noise_of_the_same_variance():
    k = np.arange(-200, 201)
    mass = np.exp(-np.abs(k) / 1.3)
    variance = (mass * k**2).sum() / mass.sum()
    with pm.Model() as model:
        p = free("p")
        DiscreteLaplaceMechanism("s", pm.Bernoulli.dist(p), n=10**6, scale=1.3, observed=300_400)
        LaplaceMechanism("t", pm.Bernoulli.dist(p), n=10**6, scale=(variance / 2) ** 0.5, observed=300_400)  # fmt: skip
    np.testing.assert_allclose(
        log_density(model, p=0.3), log_density(model, "t", p=0.3), rtol=1e-10
    )


def clamped_pair(n, points, s):
    """Released sums of n pairs of which one is a kinked function of two normal variables."""
    with pm.Model() as model:
        mu = free("mu", shape=2)
        x = pm.Normal.dist(mu[0], 1)
        y = pm.Normal.dist(mu[1] * x, 1)
        t = pt.stack([clamp(x, -1, 1), clamp(x, -1, 1) * clamp(y, -1, 2)])
        GaussianMechanism("s", t, n=n, scale=5.0, observed=s, points=points)
    return model


@pytest.mark.parametrize("n", slow_but(10**4)([10**4, 10**6, 10**8]))
def test_few_points_suffice_for_any_n(n):
    """Modes by few points and by many: at 10^8 records few that are not put right are 50 sds off."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(4_000_000, 2))
    x, y = 0.3 + z[:, 0], 0.5 * (0.3 + z[:, 0]) + z[:, 1]
    t = np.stack([np.clip(x, -1, 1), np.clip(x, -1, 1) * np.clip(y, -1, 2)])
    s = n * t.mean(axis=1) + np.sqrt(n) * np.linalg.cholesky(np.cov(t)) @ [0.8, -0.5]
    found = []
    for points in (256, 4096):
        model = clamped_pair(n, points, s)
        f, df = model.compile_logp(**FAST), model.compile_dlogp(**FAST)

        def loss(x, f=f, df=df):
            return -f({"mu": x}), -df({"mu": x})

        fit = optimize.minimize(loss, [0.3, 0.5], jac=True, method="BFGS")
        found.append(fit.x)
    sd = np.sqrt(np.diag(fit.hess_inv))
    assert np.abs(found[0] - found[1]).max() < 0.05 * sd.min()


def test_a_start_where_everything_is_clamped_is_told():
    with pm.Model():
        x = clamp(pm.Normal.dist(pm.Normal("mu", 0, 50), 1), 60, 90)
        with pytest.warns(UserWarning, match="initvals={'mu': 7[45]"):
            GaussianMechanism("s", x, n=100, scale=10.0, observed=7500.0)


# -- several releases, areas, unknown n --------------------------------------------------------------


def two_tables(mu, n, mechanism=GaussianMechanism, together=False):
    x = pm.MvNormal.dist(mu, np.array([[1.0, 0.8], [0.8, 1.0]]))
    u = clamp(x, -2, 2)
    if together:
        return mechanism("s", u, n=n, scale=[2.0, 3.0], observed=[40.0, 55.0])
    mechanism("first", u[0], n=n, scale=2.0, observed=40.0)
    return mechanism("second", u[1], n=n, scale=3.0, observed=55.0)


def test_two_releases_of_the_same_records_are_one():
    with pm.Model() as model:
        two_tables(free("mu", shape=2), 100)
    with pm.Model() as stacked:
        two_tables(free("mu", shape=2), 100, together=True)
    with pm.Model() as strangers:
        mu = free("mu", shape=2)
        for i, (scale, s) in enumerate([(2.0, 40.0), (3.0, 55.0)]):
            x = clamp(pm.MvNormal.dist(mu, np.array([[1.0, 0.8], [0.8, 1.0]])), -2, 2)
            GaussianMechanism(f"s{i}", x[i], n=100, scale=scale, observed=s)
    at = {"mu": [0.4, 0.5]}
    joint = log_density(model, "first", **at) + log_density(model, "second", **at)
    apart = log_density(strangers, "s0", **at) + log_density(strangers, "s1", **at)
    # Points are put right where the mode is, which the first release alone puts elsewhere.
    np.testing.assert_allclose(joint, log_density(stacked, **at), atol=0.02)
    assert abs(joint - apart) > 0.1


def test_predictive_draws_of_two_releases_belong_together():
    with pm.Model() as model:
        two_tables(pm.Normal("mu", 0, 1e-6, shape=2), 100)
    with model:
        prior = pm.sample_prior_predictive(4000, random_seed=1)["prior_predictive"]
    s = np.stack([prior["first"].values.ravel(), prior["second"].values.ravel()])
    clipped = np.clip(np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 10**6), -2, 2)  # fmt: skip
    expected = 100 * np.cov(clipped.T) + np.diag([4.0, 9.0])
    np.testing.assert_allclose(np.cov(s), expected, atol=5 * 110 * (2 / 4000) ** 0.5)
    assert np.abs(s.mean(axis=1)).max() < 5 * 11 / 4000**0.5


def test_areas_are_independent():
    n, s, mu = np.array([50, 5000]), np.array([[3.0, 40.0], [100.0, 4900.0]]), np.array([0.1, -0.2])

    def release(name, mu, n, s):
        x = pm.Normal.dist(mu, 1)
        u = clamp(x, -3, 3)
        LaplaceMechanism(name, pt.stack([u, u**2], axis=-1), n=n, scale=[4.0, 9.0], observed=s,
                         points=512)  # fmt: skip

    with pm.Model() as together:
        release("s", free("mu", shape=2), n, s)
    with pm.Model() as apart:
        each = free("mu", shape=2)
        for i in range(2):
            release(f"s{i}", each[i], int(n[i]), s[i])
    z = np.array([[0.3, -0.4], [1.0, 0.2]])
    whole = log_density(together, mu=mu, s_latent=z)
    parts = [log_density(apart, f"s{i}", mu=mu, s0_latent=z[0], s1_latent=z[1]) for i in range(2)]
    np.testing.assert_allclose(whole, sum(parts), atol=1e-3)  # modes are found to some digits


def test_number_of_records_may_be_a_parameter():
    def release(n):
        x = clamp(pm.Normal.dist(0.5, 1), -2, 2)
        GaussianMechanism("s", pt.stack([1.0, x]), n=n, scale=3.0, observed=[103.0, 40.0], points=512)  # fmt: skip

    with pm.Model() as unknown:
        release(pm.Gamma("n", 2, 0.01, default_transform=None))
    with pm.Model() as known:
        release(110)
    # Points are put right where n is no constant.
    np.testing.assert_allclose(log_density(unknown, n=110), log_density(known), atol=1e-3)
    gradient = unknown.compile_dlogp(vars=[unknown["n"]], **FAST)
    slope = gradient({"n": np.asarray(110.0)})
    f = unknown.compile_logp(**FAST)
    np.testing.assert_allclose(slope, (f({"n": 110.001}) - f({"n": 109.999})) / 0.002, rtol=1e-5)


def test_public_totals():
    """A table with a public margin: cells in which the margin is 0 noise."""
    with pm.Model() as model:
        p = free("p")
        yes = pm.Bernoulli.dist(p)
        old = pm.Bernoulli.dist(0.3)
        t = pt.stack([yes * old, yes])
        DiscreteGaussianMechanism("s", t, n=200, scale=[4, 0], observed=[30, 90])
    m = np.array([0.12, 0.4])
    V = np.array([[0.12 * 0.88, 0.12 * 0.6], [0.12 * 0.6, 0.24]])
    exact = stats.multivariate_normal(200 * m, 200 * V + np.diag([16, 0]))
    np.testing.assert_allclose(log_density(model, p=0.4), exact.logpdf([30, 90]), rtol=1e-9)


def test_it_is_an_ordinary_variable():
    with pm.Model(coords={"what": ["first", "second"]}) as model:
        mu = pm.Normal("mu", 0, 1)
        x = clamp(pm.Normal.dist(mu, 1), -1, 1)
        LaplaceMechanism("s", pt.stack([x, x**2]), n=40, scale=3.0, observed=[4.0, 20.0], dims="what")  # fmt: skip
    assert model.named_vars_to_dims["s"] == ("what",)
    assert pm.model_graph.ModelGraph(model).make_compute_graph()["s"] == {"mu", "s_latent"}
    with pm.do(model, {"mu": 0.0}) as fixed:
        draws = pm.draw(fixed["s"], 4000, random_seed=2)
    clipped = np.clip(stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000), -1, 1)
    sd = np.sqrt([40 * clipped.var() + 18, 40 * (clipped**2).var() + 18])
    assert np.abs(draws.mean(axis=0) - [0, 40 * (clipped**2).mean()]).max() < 5 * sd.max() / 4000**0.5  # fmt: skip
    assert np.abs(draws.std(axis=0) / sd - 1).max() < 0.1
    again = cloudpickle.loads(cloudpickle.dumps(model))
    assert log_density(again, mu=0.3) == log_density(model, mu=0.3)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "arguments", "error", "message"),
    [
        (lambda mu: mu**2, {}, UnsupportedModelError, "made of unnamed random"),
        (lambda mu: pm.Poisson.dist(mu**2), {}, UnsupportedModelError, "Poisson variable"),
        (lambda mu: pm.VonMises.dist(mu, 1), {}, UnsupportedModelError, "VonMises variable"),
        (lambda mu: pm.Normal.dist(mu, 1), {"n": [5, 6]}, PrivacyConfigurationError, "must begin"),
        (lambda mu: pm.Normal.dist(mu, 1), {"points": 0}, PrivacyConfigurationError, "points"),
        (lambda mu: pm.Normal.dist(mu, 1), {"observed": [1.0]}, PrivacyConfigurationError, "shape"),
        (lambda mu: pm.Normal.dist(mu, 1), {"total": 1}, PrivacyConfigurationError, "say what"),
    ],
)  # fmt: skip
def test_refusals(statistic, arguments, error, message):
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        with pytest.raises(error, match=message):
            GaussianMechanism("s", statistic(mu), **{"n": 5, "scale": 1.0, "observed": 1.0, **arguments})  # fmt: skip


def test_covariates_are_not_taken_for_areas():
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=(3, 3))
        x = pm.Normal.dist(0, 1, shape=3)  # three covariates, where n has three areas
        with pytest.raises(UnsupportedModelError, match="depends on variables of another"):
            GaussianMechanism("s", beta @ x, n=[5, 6, 7], scale=1.0, observed=np.ones(3))


def test_the_same_people_have_one_number():
    with pm.Model():
        x = pm.Normal.dist(pm.Normal("mu", 0, 1), 1)
        GaussianMechanism("s", x, n=5, scale=1.0, observed=1.0)
        with pytest.raises(PrivacyConfigurationError, match="must have the same `n`"):
            GaussianMechanism("t", x**2, n=6, scale=1.0, observed=1.0)


def test_whole_noise_needs_whole_statistics():
    with pm.Model():
        x = pm.Normal.dist(pm.Normal("mu", 0, 1), 1)
        with pytest.raises(PrivacyConfigurationError, match="statistic of integers"):
            DiscreteGaussianMechanism("s", x, n=5, scale=1.0, observed=1)
