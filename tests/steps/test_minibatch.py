"""The minibatch penalty: what it releases, and how near its draws come to the posterior."""

import math
from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.compat import groups_of
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.clipping import clipped_sum
from pymc_dp.privacy.events import PoissonGaussian, times
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate
from pymc_dp.records import curator
from pymc_dp.records.curator import Curator
from pymc_dp.steps import acceptance
from pymc_dp.steps.acceptance import NoisyRatio, penalised, release_bound
from pymc_dp.steps.penalty import penalty_transition

from .exact import log_public, spread_evenly

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}

# Exponential data with a Gamma(2, 1) prior on the rate; θ is the log rate. No unit's score is longer
# than 10 near the posterior, so that nothing is clipped there.
N = 1000
Y = stats.expon(scale=0.5).ppf((np.arange(N) + 0.5) / N)


def tempered(tempering):
    return stats.gamma(2 + tempering * N, scale=1 / (1 + tempering * Y.sum()))


class Terms:
    """In place of a compiled likelihood. Remembers who was asked for."""

    n_units = N

    def __init__(self, y=Y):
        self.y, self.asked = y, []

    def __call__(self, theta):
        return theta[0] - self.y * np.exp(theta[0])

    def log_likelihoods(self, points, units):
        self.asked += [units] * len(points)
        return [self(theta)[units] for theta in points]

    def total(self, of, bound, units):
        return clipped_sum(of.terms(self, units), bound)


def minibatch(z, tempering, rate, noise=None, terms=None):
    noise = dp.InsecureSeededNoise(1) if noise is None else noise
    return NoisyRatio(Curator(terms or Terms(), noise), z, tempering, rate)


def permit(z, rate, iteration, chain=0):
    return Permit(chain, iteration, (PoissonGaussian(z, accounted_rate(rate)),))


# -- the penalised term ---------------------------------------------------------------------------


def log_mean_ratio(ratios, tempering, rate):
    """log E exp(Σ h) over all Poisson samples, exactly: units are independent."""
    h = penalised(ratios, np.inf, tempering, rate)
    return np.log1p(rate * np.expm1(h)).sum()


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("tempering", [1.0, 0.05])
def test_the_penalty_is_exact_to_second_order_and_its_third_is_as_documented(rate, tempering):
    """A penalty is right if E exp(released) is the exact ratio. What is left is cubic:

    −(1−q)(2−q) T³/(6q²) Σ r³. A wrong coefficient of r² would leave a square, and dominate.
    """
    r = np.random.default_rng(0).gamma(2.0, size=500) - 1.5
    leading = -(1 - rate) * (2 - rate) * tempering**3 / 6 / rate**2 * (r**3).sum()
    for size in (1e-2, 1e-3):
        step = size * rate / tempering
        left = log_mean_ratio(step * r, tempering, rate) - tempering * step * r.sum()
        assert left / step**3 == pytest.approx(leading, rel=10 * size)


@pytest.mark.parametrize("rate", [1e-3, 0.2, 0.999])
@pytest.mark.parametrize("reach", [1e-6, 0.1, 1.0, 40.0])
def test_bound_of_the_penalised_term(rate, reach):
    """|h| ≤ C over all ratios, infinite ones included; reached at the lower end."""
    tempering = 0.3
    bound = reach * rate / tempering
    ratios = np.append(bound * np.linspace(-3, 3, 100_001), [math.inf, -math.inf, 1e300])
    h = penalised(ratios, bound, tempering, rate)
    C = release_bound(bound, tempering, rate)
    assert np.abs(h).max() <= C * (1 + 1e-15)
    assert h.min() == pytest.approx(-C, rel=1e-12)
    assert np.isnan(penalised(np.array([math.nan]), bound, tempering, rate)).all()


def test_bound_without_sampling_is_the_tempered_bound():
    for rate in (1.0, 1 - 1e-12):
        assert release_bound(3.0, 0.2, rate) == pytest.approx(0.6, rel=1e-10)


@pytest.mark.parametrize("bound", [0.01, 0.5])
def test_sensitivity_of_what_is_released(bound):
    """Any unit, any data: at most 2C if it is sampled, nothing if it is not."""
    rate, tempering = 0.3, 0.5
    C = release_bound(bound, tempering, rate)
    worst, spread = [0.0, 1e-3, 0.3, 5.0, 1e200, 1e308], {}
    for unit in range(15):
        found = []
        for value in worst:
            y = np.linspace(0.1, 2, 15)
            y[unit] = value
            terms = Terms(y)
            terms.n_units = 15
            ratio = minibatch(0.0, tempering, rate, terms=terms)
            paid = permit(0.0, rate, iteration=4)
            found.append(ratio(np.array([0.2]), np.array([-0.3]), bound, paid))
        spread[unit] = max(found) - min(found)
    sampled = terms.asked[0]
    assert 0 < len(sampled) < 15
    assert all(spread[unit] == 0 for unit in set(range(15)) - set(sampled))
    assert max(spread.values()) <= 2 * C
    a = tempering / rate
    assert max(spread.values()) == pytest.approx(2 * a * bound, rel=1e-6)  # h(B) − h(−B)


def test_estimates_of_the_ratio_and_of_its_variance_are_unbiased():
    """Over samples, noise off: mean λ − v/2, spread v."""
    tempering, rate, repeats = 0.4, 0.2, 4000
    theta, new = np.array([0.6]), np.array([0.9])
    terms = Terms()
    r = terms(new) - terms(theta)
    bound = 0.8 * np.abs(r).max()
    clipped = np.clip(r, -bound, bound)
    v = tempering**2 * (1 - rate) / rate * (clipped**2).sum()
    ratio = minibatch(0.0, tempering, rate, terms=terms)
    found = np.array([ratio(theta, new, bound, permit(0.0, rate, i)) for i in range(repeats)])
    assert abs(found.mean() - (tempering * clipped.sum() - v / 2)) < 4 * found.std() / math.sqrt(
        repeats
    )
    h = penalised(r, bound, tempering, rate)
    exact = rate * (1 - rate) * (h**2).sum()
    assert found.var() == pytest.approx(exact, rel=4 * math.sqrt(2 / repeats))
    estimates = np.array(
        [
            (1 - rate) * (tempering / rate) ** 2 * (clipped[s] ** 2).sum()
            for s in terms.asked[::2][:repeats]
        ]
    )
    assert abs(estimates.mean() - v) < 4 * estimates.std() / math.sqrt(repeats)
    both = zip(terms.asked[::2], terms.asked[1::2], strict=True)
    assert all(np.array_equal(a, b) for a, b in both)  # both points on one sample


# -- the stationary law -----------------------------------------------------------------------------


def run_from_posterior(z, tempering, rate, scale, starts=2000, transitions=6, b=10.0):
    """A perfect sample, moved by the kernel under test; independent of each other."""
    rng, exact = np.random.default_rng(7), tempered(tempering)
    ends, accepted = spread_evenly(exact, starts), 0

    def bound(move):
        return b * abs(move.item())

    def ratio(theta, new):
        """The release of NoisyRatio, on paper."""
        y, B = Y[rng.random(N) < rate], bound(new - theta)
        ratios = new - theta - y * (np.exp(new) - np.exp(theta))
        noise = (
            SUBSTITUTE_ONE.noise_sd(release_bound(B, tempering, rate), z) * rng.standard_normal()
        )
        return acceptance.penalised(ratios, B, tempering, rate).sum() + noise

    for k in range(starts):
        theta = ends[k : k + 1]
        for _ in range(transitions):
            theta, info = penalty_transition(
                rng,
                theta,
                propose=lambda rng, theta: theta + scale * rng.standard_normal(1),
                bound=lambda move: release_bound(bound(move), tempering, rate),
                noisy_ratio=ratio,
                log_public=log_public,
                noise_sd=lambda bound: SUBSTITUTE_ONE.noise_sd(bound, z),
            )
            accepted += info.accepted
        ends[k] = theta.item()
    return np.exp(ends), accepted / starts / transitions


def test_tempered_posterior_is_kept_with_noise_on():
    """A typical move's sampling and noise variances are both near 0.8."""
    draws, accepted = run_from_posterior(z=0.45, tempering=0.1, rate=0.2, scale=0.15)
    assert accepted > 0.2
    assert stats.kstest(draws, tempered(0.1).cdf).pvalue > 1e-3


def test_sampling_without_its_penalty_is_caught(monkeypatch):
    def unpenalised(ratios, bound, tempering, rate):
        return tempering / rate * np.clip(ratios, -bound, bound)

    monkeypatch.setattr(acceptance, "penalised", unpenalised)
    draws, _ = run_from_posterior(z=0.1, tempering=0.1, rate=0.1, scale=0.3)
    assert stats.kstest(draws, tempered(0.1).cdf).pvalue < 1e-6


@cache
def compiled():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Exponential("y", rate, observed=pm.Data("Y", Y))
    return dp.compile(model)


def check_moments(sample, exact, bias=(0.0, 0.0)):
    """Mean and sd within 5 Monte Carlo errors, gated on the effective sample size."""
    import arviz as az

    ess = float(np.asarray(az.ess(sample)))
    assert ess > 200
    pooled = sample.ravel()
    assert abs(pooled.mean() - exact.mean()) < exact.std() * (5 / math.sqrt(ess) + bias[0])
    kurtosis = float(exact.stats(moments="k"))
    sd_error = math.sqrt((kurtosis + 2) / 4 / (ess / 2))
    assert abs(pooled.std() / exact.std() - 1) < 5 * sd_error + bias[1]


def through_pymc(draws, quiet, **settings):
    step = dp.DPPenalty(
        **{"clip": 10.0, "noise_multiplier": 0.2, "tempering": 0.1} | settings,
        draws=draws,
        chains=2,
        noise_source=dp.InsecureSeededNoise(3),
        model=compiled(),
    )
    idata = pm.sample(draws, tune=0, chains=2, step=step, random_seed=5, model=step.model, **quiet)
    return idata.posterior["rate"].values


@pytest.mark.chain
@pytest.mark.parametrize("update", ["joint", "guided"])
def test_step_in_pymc_reaches_the_tempered_posterior(update, quiet):
    """Through PyMC: transforms, Jacobian, compiled terms, samples and noise together."""
    sample = through_pymc(1500, quiet, sampling_rate=0.2, scale=0.15, update=update)
    check_moments(sample, tempered(0.1))


@pytest.mark.nightly
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2, 0.5])
def test_tempered_posterior_long(rate, quiet):
    sample = through_pymc(30_000, quiet, sampling_rate=rate, scale=0.2)
    check_moments(sample, tempered(0.1), bias=(0.02, 0.02))


@pytest.mark.nightly
@pytest.mark.parametrize(("rate", "most"), [(0.1, 0.30), (0.04, 0.35), (0.02, 0.35)])
def test_bias_is_as_documented(rate, most):
    """One long chain: the mean is off by about |γ| v √(T/q) / √(qn) times a tenth to a quarter."""
    import arviz as az

    tempering, iterations = 0.1, 60_000
    scale = math.sqrt(rate / (1 - rate) / N) / tempering  # v = 1
    rng, exact = np.random.default_rng(3), tempered(tempering)
    ratio = minibatch(0.03, tempering, rate)
    theta, path = np.log([exact.mean()]), np.empty(iterations)
    for t in range(iterations):
        paid = permit(0.03, rate, t)
        theta, _ = penalty_transition(
            rng,
            theta,
            propose=lambda rng, theta: theta + scale * rng.standard_normal(1),
            bound=lambda move: ratio.release_bound(10 * abs(float(move[0]))),
            noisy_ratio=lambda theta, new, paid=paid: ratio(
                theta, new, 10 * abs(float(new[0] - theta[0])), paid
            ),
            log_public=log_public,
            noise_sd=lambda bound: SUBSTITUTE_ONE.noise_sd(bound, 0.03),
        )
        path[t] = math.exp(theta[0])
    ess = float(np.asarray(az.ess(path.reshape(4, -1))))
    error = (path.mean() - exact.mean()) / exact.std()
    skewness = 2.0  # of the scores 1 - λy, up to sign
    rule = skewness * math.sqrt(tempering / rate) / math.sqrt(rate * N)
    chance = 4 / math.sqrt(ess)
    assert 0.05 * rule - chance < error < most * rule + chance
    assert error > chance / 2  # there is a bias, and this chain can tell


# -- the step -----------------------------------------------------------------------------------------


def test_rate_one_is_the_plain_sampler_to_the_last_bit(logistic, quiet):
    found = []
    for more in ({}, {"sampling_rate": 1}, {"sampling_rate": 1.0}):
        model = logistic()
        step = dp.DPPenalty(
            noise_multiplier=1.0,
            tune=5,
            chains=1,
            draws=40,
            noise_source=dp.InsecureSeededNoise(1),
            model=model,
            **more,
            **FAST,
        )
        idata = pm.sample(40, tune=5, chains=1, step=step, random_seed=1, model=model, **quiet)
        groups = groups_of(idata)
        kept = {"posterior": ["beta"], "sample_stats": ["accept_rate", "scale", "privacy_plan"]}
        found.append([groups[g][name].values for g, names in kept.items() for name in names])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_only_sampled_records_are_evaluated(logistic, quiet):
    model, sizes = logistic(n=400), []
    step = dp.DPPenalty(
        noise_multiplier=1.0,
        sampling_rate=0.1,
        tempering=0.1,
        chains=1,
        draws=30,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    evaluate = step.compiled.likelihood._evaluate
    step.compiled.likelihood._evaluate = lambda theta, *rows: (
        sizes.append(len(rows[0])) or evaluate(theta, *rows)
    )
    pm.sample(30, tune=0, chains=1, step=step, random_seed=1, model=model, **quiet)
    assert len(sizes) == 60  # two points an iteration
    assert sizes[::2] == sizes[1::2]
    assert abs(np.mean(sizes) - 40) < 5 * math.sqrt(40 / 30)
    assert len(set(sizes)) > 5


def test_the_test_subtracts_the_noise_that_was_added(logistic, monkeypatch):
    """The bound that the noise is calibrated to is the one whose noise the penalty is for."""
    added, subtracted = [], []
    release, sd = curator.poisson_noisy_total, acceptance.NoisyRatio.noise_sd
    monkeypatch.setattr(
        curator,
        "poisson_noisy_total",
        lambda terms, **keywords: (
            added.append(SUBSTITUTE_ONE.noise_sd(keywords["bound"], keywords["noise_multiplier"]))
            or release(terms, **keywords)
        ),
    )
    monkeypatch.setattr(
        acceptance.NoisyRatio,
        "noise_sd",
        lambda *args: subtracted.append(sd(*args)) or sd(*args),
    )
    step = dp.DPPenalty(
        noise_multiplier=1.5,
        sampling_rate=0.2,
        tempering=0.3,
        chains=1,
        draws=10,
        noise_source=dp.InsecureSeededNoise(1),
        model=logistic(),
        **FAST,
    )
    step.stop_tuning()
    subtracted.clear()
    point = step.model.initial_point()
    for _ in range(10):
        point, _ = step.step(point)
    assert added == subtracted
    assert len(set(added)) == 10


def test_events_and_settings(logistic):
    step = dp.DPPenalty(
        noise_multiplier=2.0,
        sampling_rate=0.25,
        tempering=0.5,
        draws=2,
        chains=3,
        model=logistic(),
        **FAST,
    )
    assert step.guarantee.events == (PoissonGaussian(2.0, accounted_rate(0.25)),)
    assert step.guarantee.settings["sampling_rate"] == 0.25
    assert step.guarantee.epsilon == composed_epsilon(
        times(step.guarantee.events, 6), step.guarantee.delta
    )


@pytest.mark.sweep
def test_the_budget_buys_less_noise_for_samples(logistic):
    """And never costs more than it."""
    plain, sampled = (
        dp.DPPenalty(
            epsilon=1.0, delta=1e-4, sampling_rate=rate, chains=1, draws=3, model=logistic(), **FAST
        ).guarantee.events[0]
        for rate in (1.0, 0.1)
    )
    assert sampled.noise_multiplier < 0.4 * plain.noise_multiplier
    spent = composed_epsilon(times([sampled], 3), 1e-4)
    assert 0.99 < spent <= 1.0


def test_default_scale_knows_of_the_sampling(logistic):
    """Without tempering the sample's own error would be huge at the usual scale."""
    scales = {
        rate: dp.DPPenalty(
            noise_multiplier=1e-3,
            sampling_rate=rate,
            chains=1,
            draws=2,
            noise_source=dp.InsecureSeededNoise(0),
            model=logistic(n=4000),
            **FAST,
        )._first_scale
        for rate in (1.0, 0.01)
    }
    sampling_sd = scales[0.01] * math.sqrt(2) * math.sqrt(4000 * 0.99 / 0.01)
    assert scales[0.01] < scales[1.0] / 5
    assert sampling_sd < 1.61


@pytest.mark.parametrize("rate", [0, 0.0, -0.5, 1.5, math.nan, 1e-9, True, "half", None])
def test_bad_rates_are_refused_by_name(rate, logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match="`sampling_rate`"):
        dp.DPPenalty(epsilon=1.0, chains=1, draws=5, sampling_rate=rate, model=logistic(), **FAST)


@pytest.mark.parametrize("scale", [1e80, 1e155, 1e200, 1e300])
def test_moves_too_far_to_square_are_rejected(scale, logistic, recwarn):
    step = dp.DPPenalty(
        noise_multiplier=1.0,
        sampling_rate=0.5,
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
