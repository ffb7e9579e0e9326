"""What the normal approximation of released sums costs: the check sees it, the correction mends it."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats

import pymc_dp as dp
from pymc_dp.compat import HAS_INFERENCE_DATA
from pymc_dp.mechanisms.correcting import Normal, log_density
from pymc_dp.statistics import clamp

from .marks import slow_but

FAST = {"mode": "FAST_COMPILE"}
GRID = np.linspace(0.001, 0.999, 999)


def result(**draws):
    """Draws as `pm.sample` would return them, two chains."""
    sets = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 1))), v.reshape(2, -1, *v.shape[1:]))
        for name, v in draws.items()
    }  # fmt: skip
    posterior = xr.Dataset(sets)
    stats_ = xr.Dataset({"lp": (("chain", "draw"), np.zeros((2, posterior.sizes["draw"])))})
    if HAS_INFERENCE_DATA:
        return az.InferenceData(posterior=posterior, sample_stats=stats_)
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats_})


def draws_on_grid(model, count, seed=0):
    """Posterior draws of p, by its density on a grid."""
    f = model.compile_logp(**FAST)
    logp = np.array([f({"p": np.asarray(x)}) for x in GRID])
    w = np.exp(logp - logp.max())
    return np.random.default_rng(seed).choice(GRID, size=count, p=w / w.sum())


def share(n, scale, s, mechanism=dp.DiscreteGaussianMechanism):
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        mechanism("s", pm.Bernoulli.dist(p), n=n, scale=scale, observed=s)
    return model


def test_a_large_count_is_fine():
    model = share(10_000, 20.0, 3000)
    with model:
        checks = dp.check_releases(result(p=draws_on_grid(model, 400)))
    assert checks.fine
    assert "fine" in str(checks)


def test_nor_is_a_rare_one_a_false_alarm():
    """The exact posterior's mean is 0.001 standard deviations away, and its 90 % interval the same."""
    model = share(1000, 1.0, 6)
    with model:
        checks = dp.check_releases(result(p=draws_on_grid(model, 4000)))
    assert checks.fine


def test_rare_cells_are_not():
    model = share(12, 0.4, 1.0, dp.GaussianMechanism)
    with model:
        (check,) = dp.check_releases(result(p=draws_on_grid(model, 4000)))
    assert not check.fine
    assert check.quadrature.nats < 1e-9  # nothing but sums over two values
    assert "total=" in check.verdict


def moved(exact, taken):
    """Shift of the mean on the grid, in standard deviations."""
    mean, other = (density @ GRID / density.sum() for density in (taken, exact))
    return abs(other - mean) / np.sqrt(taken @ (GRID - mean) ** 2 / taken.sum())


@pytest.mark.parametrize("law", slow_but("laplace")(["gaussian", "laplace"]))
@pytest.mark.parametrize(
    ("n", "scale", "s", "fine"),
    [(14, 0.48, -1.32, False), (17, 0.34, 1.70, False), (38, 0.75, 6.32, True)],
    ids=["far out", "no whole number", "cumulants say too much"],
)
def test_a_single_sum_is_judged_by_its_own_density(n, scale, s, fine, law):
    """By enumeration the mean moves by 0.40, 0.17 and 0.01 standard deviations with normal noise, else by 0.22, 0.19, 0.02."""
    mechanism = dp.GaussianMechanism if law == "gaussian" else dp.LaplaceMechanism
    noise = stats.norm if law == "gaussian" else stats.laplace
    model = share(n, scale, s, mechanism)
    f = model.compile_logp(**FAST)
    taken = np.exp([f({"p": np.asarray(x)}) for x in GRID])
    k = np.arange(n + 1)
    exact = stats.binom.pmf(k, n, GRID[:, None]) @ noise.pdf(s - k, scale=scale)
    with model:
        (check,) = dp.check_releases(result(p=draws_on_grid(model, 2000)))
    assert check.fine is fine
    assert abs(check.normality.shift - moved(exact, taken)) < 4 * check.normality.noise


def test_entries_of_a_table_are_judged_by_their_own_densities():
    """None in either of two cells, noise far below: the mean moves by 0.25 standard deviations, cumulants say 0.01."""
    n, scale, s = 14, 0.5, np.array([-1.2, -0.8])
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        cell = pm.Categorical.dist(pt.stack([p / 2, p / 2, 1 - p]))
        cells = pt.eq(cell, np.arange(2)).astype("int64")
        dp.GaussianMechanism("s", cells, n=n, scale=scale, observed=s)
        (check,) = dp.check_releases(result(p=draws_on_grid(model, 2000)))
    assert not check.fine


def clamped_lognormal(n, epsilon, s, points=None):
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        x = clamp(pm.LogNormal.dist(3 * p, 1.5), 0, 50)
        seen = pm.Data("seen", s)
        dp.LaplaceMechanism("s", x, n=n, scale=50 / epsilon, observed=seen, points=points)
    return model


def test_few_skewed_records_with_little_noise_are_not():
    model = clamped_lognormal(10, 40, 60.0)
    with model:
        (check,) = dp.check_releases(result(p=draws_on_grid(model, 4000)))
    assert not check.fine
    assert check.quadrature.fine
    assert not check.normality.fine


def test_too_few_points_are_seen():
    """Points that were put right for other data than those that the draws are of."""
    q = stats.norm.ppf((np.arange(10**5) + 0.5) / 10**5)
    first, second = (10**6 * np.clip(np.exp(3 * p + 1.5 * q), 0, 50).mean() for p in (0.2, 0.8))
    narrow = np.random.default_rng(0).normal(0.8, 0.0003, 100)
    verdicts = []
    for built_with, points in ((second, 64), (first, 64), (first, 4096)):
        model = clamped_lognormal(10**6, 1, built_with, points)
        model.set_data("seen", second)
        with model:
            (check,) = dp.check_releases(result(p=narrow))
        verdicts.append(check.verdict)
    assert verdicts[0] == "fine"
    assert "more points" in verdicts[1]
    assert verdicts[2] == "fine"


def test_particles_estimate_the_density_without_bias():
    """Twelve yes-no records and Laplace noise, enumerated."""
    n, p, scale, s = 12, 0.15, 0.6, 5.0
    k = np.arange(n + 1)
    exact = stats.binom.pmf(k, n, p) @ stats.laplace.pdf(s - k, scale=scale)
    ahead = Normal(np.array([p]), np.array([[p * (1 - p)]]), np.zeros(1), scale)
    rng = np.random.default_rng(1)

    def sums(particles, count, rng):
        return rng.binomial(count, p, size=(particles, 1)).astype(float)

    estimates = np.exp([log_density(np.array([s]), n, ahead, sums, 4, rng) for _ in range(3000)])
    assert abs(estimates.mean() - exact) < 5 * estimates.std() / 3000**0.5
    assert estimates.std() / 3000**0.5 < 0.05 * exact


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_correction_is_exact_where_the_sum_is_not_normal(kind):
    """A rare cell, whose exact posterior is known by enumeration."""
    n, scale, s = 20, 0.4, 1.0
    mechanism = dp.GaussianMechanism if kind == "gaussian" else dp.LaplaceMechanism
    noise = stats.norm if kind == "gaussian" else stats.laplace
    k = np.arange(n + 1)
    density = stats.binom.pmf(k, n, GRID[:, None]) @ noise.pdf(s - k, scale=scale)
    cumulative = np.cumsum(density / density.sum())
    model = share(n, scale, s, mechanism)
    draws = draws_on_grid(model, 3000)
    with model:
        corrected = dp.correct_releases(result(p=draws), random_seed=2)
    found = corrected["posterior"]["p"].values
    error = 0.5 / np.sqrt(3000 * corrected.attrs["release_ess_fraction"])
    wrong = [np.abs((x[..., None] <= GRID).mean((0, 1)) - cumulative).max()
             for x in (draws.reshape(2, -1), found)]  # fmt: skip
    assert wrong[0] > 5 * error
    assert wrong[1] < 4 * error
    assert corrected.attrs["release_pareto_k"] < 0.7
    assert corrected["sample_stats"]["release_log_weight"].shape == found.shape


def test_correction_with_the_latents_of_laplace_noise():
    """Records that are normal: the weights have nothing to correct, whatever the latents are."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2)
        x = pm.MvNormal.dist(mu, np.array([[1.0, 0.5], [0.5, 2.0]]))
        dp.LaplaceMechanism("s", x, n=40, scale=[3.0, 30.0], observed=[20.0, -10.0])
    rng = np.random.default_rng(3)
    draws = {"mu": rng.normal([0.5, -0.2], 0.4, size=(300, 2)), "s_latent": rng.normal(size=(300, 2))}  # fmt: skip
    with model:
        corrected = dp.correct_releases(result(**draws), particles=64, random_seed=1)
    assert corrected.attrs["release_ess_fraction"] > 0.8


@pytest.mark.parametrize("road", ["check_releases", "correct_releases"])
def test_refusals(road):
    call = getattr(dp, road)
    with share(10, 1.0, 3), pytest.raises(dp.PrivacyConfigurationError, match="lacks"):
        call(result(q=np.ones(10)))
    empty = xr.Dataset()
    prior = (
        az.InferenceData(prior=empty)
        if HAS_INFERENCE_DATA
        else xr.DataTree.from_dict({"prior": empty})
    )
    with share(10, 1.0, 3), pytest.raises(dp.PrivacyConfigurationError, match="no posterior draws"):
        call(prior)
    with pm.Model():
        pm.Normal("p", 0, 1)
        with pytest.raises(dp.PrivacyConfigurationError, match="no mechanism with `n`"):
            call(result(p=np.ones(10)))


def test_a_number_of_people_that_varies_cannot_be_simulated():
    with pm.Model():
        n = pm.Gamma("n", 2, 0.01)
        x = clamp(pm.Normal.dist(0, 1), -1, 1)
        dp.GaussianMechanism("s", pt.stack([1.0, x]), n=n, scale=3.0, observed=[9.0, 1.0])
        with pytest.raises(dp.UnsupportedModelError, match="no whole number"):
            dp.correct_releases(result(n=np.full(10, 9.5)))


@pytest.mark.chain
@pytest.mark.slow
def test_nutpie_samples_counts_and_sums():
    """A table of counts and a sum with latent noise in one model, against PyMC's own sampler."""
    pytest.importorskip("nutpie")
    with pm.Model():
        mu = pm.Normal("mu", -1, 1)
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, 1, shape=6)
        counts = pm.Binomial.dist(50, pm.math.sigmoid(mu + tau * u))
        dp.DiscreteGaussianMechanism(
            "cells", total=counts, scale=3, observed=[9, 14, 30, 22, 4, 17]
        )
        x = clamp(pm.Normal.dist(mu, 1), -3, 3)
        dp.LaplaceMechanism("sums", pt.stack([x, x**2]), n=30, scale=10.0, observed=[-20.0, 60.0])
        found = {}
        for sampler in ("nutpie", "pymc"):
            idata = pm.sample(800, tune=500, chains=2, cores=1, random_seed=1, progressbar=False,
                              compute_convergence_checks=False, nuts_sampler=sampler,
                              target_accept=0.9)  # fmt: skip
            found[sampler] = idata["posterior"]
    for name in ("mu", "tau"):
        values = [found[sampler][name].values for sampler in ("nutpie", "pymc")]
        ess = [float(np.asarray(az.ess(v))) for v in values]
        assert min(ess) > 300
        error = values[0].std() * np.sqrt(1 / ess[0] + 1 / ess[1])
        assert abs(values[0].mean() - values[1].mean()) < 5 * error
