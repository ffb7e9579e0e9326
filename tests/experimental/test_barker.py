"""DP Barker: the test's acceptance probabilities, the law of the draws, and the path from budget to batch."""

import math
from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_dp as dp
from pymc_dp.experimental.correction import logistic_correction
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.barker import noisy_batch_mean
from pymc_dp.privacy.calibration import calibrate_batch_size
from pymc_dp.privacy.events import BarkerBatch, times
from pymc_dp.privacy.plans import Permit

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}

# -- the test itself --------------------------------------------------------------------------------


def mean_acceptance(ratios, *, n0, b, log_prior_ratio=0.0, variance=2.0, repeats=1500, seed=0):
    """How often Barker's test accepts a move with these per-unit log ratios, and the standard error."""
    n, noise = len(ratios), dp.InsecureSeededNoise(seed)
    correction = logistic_correction(variance)
    found = np.array(
        [
            correction.probability_above(
                -log_prior_ratio
                - noisy_batch_mean(
                    lambda units: [ratios[units]],
                    units=n,
                    batch_size=b,
                    bound=math.sqrt(b) / n0,
                    variance=variance,
                    permit=Permit(0, i, (BarkerBatch(variance, b, n),)),
                    noise=noise,
                )
            )
            for i in range(repeats)
        ]
    )
    return found.mean(), found.std() / math.sqrt(repeats)


def unclipped_ratios(n, b, n0, target, spread, seed=1):
    """n ratios of two values each, whose tempered sum is `target` and whose s² is about `spread`²."""
    rng, bound = np.random.default_rng(seed), math.sqrt(b) / n0
    ratios = rng.permutation(np.resize([-spread * bound, spread * bound], n))
    ratios += target / n0 - ratios.mean()
    assert np.abs(ratios).max() < bound
    assert n0 / n * ratios.sum() == pytest.approx(target)
    return ratios


@pytest.mark.parametrize(("target", "variance"), [(-3.0, 2.0), (-1.0, 1.5), (0.5, 2.0), (2.0, 2.0)])
def test_small_batches_are_accepted_as_by_barker(target, variance):
    """At a batch's error as large as is allowed, or nearly, and with noise on."""
    n, b, n0 = 20_000, 400, 100
    ratios = unclipped_ratios(n, b, n0, target, 0.8)
    rate, error = mean_acceptance(ratios, n0=n0, b=b, variance=variance)
    allowed = logistic_correction(variance).cdf_error + b / n * 0.1
    assert abs(rate - expit(target)) < 4 * error + allowed


@pytest.mark.parametrize(("target", "share"), [(1.5, 0.5), (1.5, 1.0), (-1.5, 1.0)])
def test_large_batches_are_accepted_as_by_barker(target, share):
    """Where there is less or no error of sampling, there must be more noise instead."""
    n, n0 = 400, 50
    b = int(share * n)
    ratios = unclipped_ratios(n, b, n0, target, 0.85)
    rate, error = mean_acceptance(ratios, n0=n0, b=b)
    assert abs(rate - expit(target)) < 4 * error + logistic_correction(2.0).cdf_error + 1 / b


def test_public_ratio_enters_once():
    ratios = unclipped_ratios(20_000, 400, 100, 1.0, 0.5)
    rate, error = mean_acceptance(ratios, n0=100, b=400, log_prior_ratio=-2.0)
    assert abs(rate - expit(-1.0)) < 4 * error + 2e-3


def test_a_move_and_its_reverse_sum_to_one():
    """What Barker's test needs for detailed balance besides its shape."""
    ratios = unclipped_ratios(4000, 100, 40, 0.8, 0.6)
    there, error = mean_acceptance(ratios, n0=40, b=100, seed=1)
    back, other = mean_acceptance(-ratios, n0=40, b=100, seed=2)
    assert abs(there + back - 1) < 4 * math.hypot(error, other)


# -- the draws --------------------------------------------------------------------------------------

# A share of ones, on the log-odds scale: a unit's score is at most 1 in size, so that short moves are
# never clipped. The tempered posterior by quadrature.
N, ONES, T, PRIOR_SD = 16_000, 5600, 100 / 16_000, 0.3


@cache
def compiled_share():
    outcome = np.repeat([1, 0], [ONES, N - ONES])
    with pm.Model() as model:
        logit = pm.Normal("logit", 0, PRIOR_SD)
        pm.Bernoulli("y", logit_p=logit, observed=pm.Data("Y", outcome))
    return dp.compile(model, **FAST)


class Quadrature:
    def __init__(self, tempering):
        self.x = np.linspace(-6, 6, 200_001)
        log_p = (
            tempering * (ONES * self.x - N * np.logaddexp(0, self.x)) - (self.x / PRIOR_SD) ** 2 / 2
        )
        p = np.exp(log_p - log_p.max())
        self.p = p / p.sum()
        self.cdf_at_x = np.cumsum(self.p)

    def mean(self):
        return float(self.p @ self.x)

    def std(self):
        return math.sqrt(float(self.p @ (self.x - self.mean()) ** 2))

    def cdf(self, x):
        return np.interp(x, self.x, self.cdf_at_x)


def draw(draws, **settings):
    step = dp.DPBarker(
        **{"batch_size": 1000, "tempering": T, "scale": 0.17} | settings,
        draws=draws,
        chains=2,
        noise_source=dp.InsecureSeededNoise(3),
        model=compiled_share(),
    )
    return pm.sample(
        draws,
        tune=0,
        chains=2,
        step=step,
        random_seed=5,
        model=step.model,
        initvals={"logit": -0.6},
        cores=1,
        progressbar=False,
        compute_convergence_checks=False,
    )


@pytest.fixture(scope="module")
def drawn():
    return draw(1500)


def check(sample, exact, bias=0.0):
    import arviz as az

    ess = float(np.asarray(az.ess(sample)))
    assert ess > 200
    assert abs(sample.mean() - exact.mean()) < exact.std() * (5 / math.sqrt(ess) + bias)
    assert abs(sample.std() / exact.std() - 1) < 5 / math.sqrt(ess) + bias
    for q in (0.05, 0.5, 0.95):
        cut = np.interp(q, exact.cdf_at_x, exact.x)
        error = math.sqrt(q * (1 - q) / (ess / 2))
        assert abs(np.mean(sample < cut) - q) < 5 * error + bias


@pytest.mark.chain
def test_step_in_pymc_reaches_the_tempered_posterior(drawn):
    check(drawn.posterior["logit"].values, Quadrature(T))
    assert 0.3 < drawn.sample_stats["accept_rate"].values.mean() < 0.5


def test_what_happened_has_the_probability_that_the_statistic_says():
    """Given the released ratio, where the odds are against and where they are in favour.

    A small variance leaves the correction much to do.
    """
    stats = draw(300, variance=1.2).sample_stats
    rate, accepted = (stats[name].values.ravel() for name in ("accept_rate", "accepted"))
    for low, high in [(0, 1), (0.1, 0.4), (0.6, 0.9)]:
        inside = (low <= rate) & (rate <= high)
        assert inside.sum() > 50
        error = math.sqrt((rate * (1 - rate))[inside].mean() / inside.sum())
        assert abs((accepted - rate)[inside].mean()) < 4 * error


@pytest.mark.chain
def test_another_temperature_would_be_seen(drawn):
    for tempering in (T / 2, 2 * T):
        with pytest.raises(AssertionError):
            check(drawn.posterior["logit"].values, Quadrature(tempering))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("batch_size", "variance"), [(500, 2.0), (1000, 2.0), (1000, 1.2), (1000, 2.6)]
)
def test_tempered_posterior_long(batch_size, variance):
    sample = draw(15_000, batch_size=batch_size, variance=variance).posterior["logit"].values
    check(sample, Quadrature(T), bias=0.02)


# -- the step ---------------------------------------------------------------------------------------


def test_only_the_batch_is_evaluated(logistic):
    model, sizes = logistic(n=400), []
    step = dp.DPBarker(
        batch_size=25,
        chains=1,
        draws=10,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    evaluate = step.compiled.likelihood._evaluate
    step.compiled.likelihood._evaluate = lambda theta, *rows: (
        sizes.append(len(rows[0])) or evaluate(theta, *rows)
    )
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(10):
        point, _ = step.step(point)
    assert sizes == [25] * 20


def test_the_budget_buys_a_batch(logistic):
    """The largest one that it pays for; a larger one would cost more."""
    n, draws = 3000, 4000
    step = dp.DPBarker(
        epsilon=4.0, delta=1e-5, draws=draws // 2, chains=2, model=logistic(n=n), **FAST
    )
    (event,) = step.guarantee.events
    b = event.batch_size
    assert event == BarkerBatch(2.0, b, n)
    assert 10 < b < n
    assert b == calibrate_batch_size(epsilon=4.0, delta=1e-5, tests=draws, units=n)
    assert composed_epsilon(times([event], draws), 1e-5) <= 4.0
    assert composed_epsilon([BarkerBatch(2.0, b + 1, n, draws)], 1e-5) > 4.0
    assert step.guarantee.epsilon == 4.0
    assert step.guarantee.settings["batch_size"] == b


def test_a_batch_size_fixes_the_cost(logistic):
    step = dp.DPBarker(
        batch_size=40, variance=1.7, draws=5, chains=2, delta=1e-3, model=logistic(n=900), **FAST
    )
    event = BarkerBatch(1.7, 40, 900)
    assert step.guarantee.events == (event,)
    assert step.guarantee.epsilon == composed_epsilon(times([event], 10), 1e-3)


def test_settings_on_record(logistic):
    step = dp.DPBarker(
        batch_size=50, tempering=0.25, variance=1.8, chains=1, draws=5, model=logistic(), **FAST
    )
    settings = step.guarantee.settings
    assert settings["correction_cdf_error"] == logistic_correction(1.8).cdf_error > 0
    assert settings["clip_bound"] == pytest.approx(math.sqrt(50) / (0.25 * 120))
    assert settings["variance"] == 1.8
    assert settings["tempering"] == 0.25
    assert settings["scale"] <= settings["clip_bound"] / 2 / math.sqrt(2) * (1 + 1e-12)


@pytest.mark.parametrize(
    "bad",
    [
        {"variance": 1.0},
        {"variance": 0.5},
        {"variance": math.pi**2 / 3},
        {"variance": 4.0},
        {"variance": math.nan},
        {"variance": "2"},
        {"batch_size": 1},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"batch_size": 121},
        {"scale": -1.0},
        {"scale": [1.0]},
        {"target_accept": 1.0},
        {"tempering": 0.0},
        {"tempering": 1.5},
        {"draws": 0},
        {"delta": 1.0},
        {"blocked": False},
    ],
)
def test_bad_settings_are_refused_by_name(bad, logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match=f"`{next(iter(bad))}"):
        dp.DPBarker(
            **{"batch_size": 20, "draws": 5, "chains": 1, "model": logistic(), **FAST, **bad}
        )


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_epsilon(epsilon, logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match="`epsilon`"):
        dp.DPBarker(epsilon=epsilon, chains=1, draws=10, model=logistic(), **FAST)


def test_either_a_budget_or_a_batch_size(logistic):
    for both in ({}, {"epsilon": 1.0, "batch_size": 20}):
        with pytest.raises(dp.PrivacyConfigurationError, match="either a budget"):
            dp.DPBarker(chains=1, draws=5, model=logistic(), **both, **FAST)
    with pytest.raises(TypeError, match="noise_multiplier"):
        dp.DPBarker(chains=1, draws=5, noise_multiplier=1.0, model=logistic(), **FAST)


def test_a_budget_that_no_batch_fits_is_refused_with_the_cheapest(logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match=r"No batch .* costs ε"):
        dp.DPBarker(epsilon=0.1, chains=1, draws=1000, model=logistic(), **FAST)


@pytest.mark.chain
def test_tuning_steers_acceptance_from_released_numbers_only(logistic, quiet):
    model = logistic(n=2000)
    step = dp.DPBarker(
        batch_size=500,
        tempering=0.02,
        scale=5.0,
        tune=300,
        chains=1,
        draws=300,
        target_accept=0.3,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    idata = pm.sample(300, tune=300, chains=1, step=step, random_seed=1, model=model, **quiet)
    scale = idata.sample_stats["scale"].values
    assert len(np.unique(scale)) == 1  # frozen once tuning is over
    assert scale[0, 0] < 2.0
    assert 0.2 < idata.sample_stats["accept_rate"].values.mean() < 0.4


@pytest.mark.parametrize("scale", [1e10, 1e155, 1e200, 1e300])
def test_moves_too_far_are_rejected(scale, logistic, recwarn):
    step = dp.DPBarker(
        batch_size=20,
        scale=scale,
        chains=1,
        draws=4,
        noise_source=dp.InsecureSeededNoise(0),
        model=logistic(),
        **FAST,
    )
    step.stop_tuning()
    recwarn.clear()
    point = step.model.initial_point()
    for _ in range(4):
        point, (info,) = step.step(point)
        assert not info["accepted"]
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_a_point_without_prior_mass_is_rejected_without_a_look_at_data():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        pm.Normal("y", p, 1, observed=np.linspace(0, 1, 40))
    step = dp.DPBarker(
        batch_size=20,
        scale=1e9,
        chains=1,
        draws=3,
        noise_source=dp.InsecureSeededNoise(0),
        model=model,
        **FAST,
    )
    step.compiled.likelihood._evaluate = None
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(3):
        point, (info,) = step.step(point)
        assert not info["accepted"]
        assert info["accept_rate"] == 0
