"""The normal surrogate: what answers say together, and what a run makes of them."""

import logging
import math
import warnings
from functools import partial
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import integrate, special, stats

import pymc_dp as dp
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import denoised, mean_if_positive, product_covariance
from pymc_dp.privacy.accounting import gaussian_mu
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import Gradient, Information, NormExceeds, Score
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.normal.evaluation import Evaluator
from pymc_dp.surrogate.normal.fit import fit_normal
from pymc_dp.surrogate.normal.law import Law, posterior_of

from ..modes import COMPILED

FAST = {"mode": "FAST_COMPILE"}
WORDS = np.arange(4, dtype=np.uint64)


def logistic(n=5000, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.2]))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y.astype(int)))
    return model


def normal(n=3000):
    """With a private covariate, or outcomes would be all that there is to ask about."""
    y = np.random.default_rng(5).normal(1.0, 1.0, size=n)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu * pm.Data("X", np.ones(n)), 1, observed=pm.Data("Y", y))
    return model


def records_of(model, mode=FAST):
    return LocalRecords(dp.compile(model, compile_kwargs=mode), 1, words=WORDS)


def measured(records, z=0.02, seed=1, neighbours=SUBSTITUTE_ONE):
    curator = Curator(records, dp.InsecureSeededNoise(seed), neighbours)
    return PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z))


def information_of(model, theta):
    """Of a logistic regression."""
    x = model["X"].get_value()
    p = special.expit(x @ theta)
    return (x * (p * (1 - p))[:, None]).T @ x


def mode_of(model, prior):
    """Of its posterior, by Newton's method, and the covariance there."""
    x, y = model["X"].get_value(), model["Y"].get_value()
    theta = np.zeros(x.shape[1])
    for _ in range(20):
        precision = information_of(model, theta) - prior.hessian(theta)
        slope = x.T @ (y - special.expit(x @ theta)) + prior.gradient(theta)
        theta = theta + np.linalg.solve(precision, slope)
    return theta, np.linalg.inv(precision)


def gaussian_prior(precision):
    """A prior of which everything is known, as the law sees it."""
    Λ = np.atleast_2d(precision)
    prior = lambda theta: -float(theta @ Λ @ theta) / 2  # noqa: E731
    return SimpleNamespace(
        __call__=prior, gradient=lambda theta: -Λ @ theta, hessian=lambda theta: -Λ
    )


# -- the law -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tilt", [0.1, 1.0, 5.0])
def test_the_law_is_the_posterior_given_the_release(tilt):
    """Parameters from the prior, data, noise: standardised, the truth is standard normal."""
    rng, d, runs = np.random.default_rng(0), 3, 400
    Λ = np.diag([0.5, 1.0, 4.0])
    R = rng.normal(size=(d, d))
    J = R @ R.T + np.eye(d)
    S = tilt**2 * (np.diag([1.0, 2.0, 0.5]) + 0.2)
    z = []
    for _ in range(runs):
        theta = rng.normal(size=d) / np.sqrt(np.diag(Λ))
        centre = 0.3 * rng.normal(size=d)
        beta = rng.multivariate_normal(J @ (theta - centre), J + S)
        r = posterior_of(Law(centre, beta, J, S), gaussian_prior(Λ), np.zeros(d))
        z.append(np.linalg.cholesky(r.precision).T @ (theta - r.mean))
    z = np.array(z)
    n = z.size
    assert abs(np.mean(z)) < 4 / np.sqrt(n)
    assert abs(np.mean(z**2) - 1) < 4 * np.sqrt(2 / n)


def symmetric(rng, d):
    """1 on the diagonal, √½ elsewhere."""
    N = rng.normal(size=(d, d))
    return (np.tril(N, -1) + np.tril(N, -1).T) / np.sqrt(2) + np.diag(np.diag(N))


def test_curvatures_noise_acts_on_a_vector_as_its_covariance_says():
    rng, d, sd = np.random.default_rng(5), 4, 0.7
    v = np.array([1.0, -2.0, 0.5, 0.0])
    drawn = []
    for _ in range(20_000):
        drawn.append(sd * symmetric(rng, d) @ v)
    np.testing.assert_allclose(
        np.cov(np.array(drawn).T), product_covariance(np.outer(v, v), sd), atol=0.12
    )


def test_a_matrix_cleared_of_noise_is_nearer_to_the_truth():
    rng, d = np.random.default_rng(6), 8
    off, raw, traces = [], [], []
    for sd in (0.05, 0.2, 0.4):
        for _ in range(50):
            truth = np.diag(rng.uniform(0.5, 1.5, d))
            noise = sd * symmetric(rng, d)
            found = denoised(truth + noise, sd)
            off.append(np.sum((found - truth) ** 2) / sd**2)
            raw.append(np.sum(noise**2) / sd**2)
            traces.append(np.trace(found) - np.trace(truth + noise))
    assert np.mean(off) < 0.8 * np.mean(raw)
    np.testing.assert_allclose(traces, 0, atol=1e-9)
    np.testing.assert_allclose(denoised(truth, 0.0), truth, atol=1e-12)


@pytest.mark.parametrize("value", [-3.0, -0.5, 0.0, 1.0, 8.0])
def test_means_of_positive_numbers_by_quadrature(value):
    def weighed(power):
        density = lambda x: x**power * stats.norm.pdf(x, value, 0.7)  # noqa: E731
        return integrate.quad(density, 0, value + 15, points=[max(value, 0.0)], epsabs=1e-14)[0]

    exact = weighed(1) / weighed(0)
    assert float(mean_if_positive(np.array([value]), 0.7)[0]) == pytest.approx(exact, rel=1e-6)


# -- a run -------------------------------------------------------------------------------------


def test_a_generous_budget_finds_the_mode_and_the_curvature():
    model = logistic()
    records, prior = records_of(model), PublicLogDensity(ParameterSpace(model), FAST)
    found = fit_normal(measured(records), prior, np.zeros(3)).posterior
    slope = sum(g.sum(axis=0) for g in records.gradients(found.mean)) + prior.gradient(found.mean)
    hessian = prior.hessian(found.mean) - information_of(model, found.mean)
    # How far Newton's method would still go, in posterior standard deviations.
    assert np.sqrt(slope @ np.linalg.solve(-hessian, slope)) < 0.3
    np.testing.assert_allclose(
        np.diag(found.covariance), np.diag(np.linalg.inv(-hessian)), rtol=0.1
    )
    assert found.privacy_shift < 0.2


def test_a_run_spends_its_filter_and_no_more():
    model = normal()
    measure = measured(records_of(model), z=0.5)
    fit_normal(measure, PublicLogDensity(ParameterSpace(model), FAST), np.zeros(1))
    assert measure.spent == pytest.approx(1, abs=1e-8)


def test_a_surrogate_is_a_function_of_releases_alone(monkeypatch, canned_totals):
    """Other data, the same released numbers: the same surrogate, to the last bit."""

    def released(dimension, bound, _):
        rng = np.random.default_rng(int(np.float64(bound).view(np.int64)) % 2**32)
        total = rng.normal(size=dimension or ()) * bound
        return total if dimension == 1 else np.abs(total)

    def counted(counts, *, noise_multiplier, permit, noise, neighbours):
        counts()
        permit.take(Gaussian(noise_multiplier))
        return 1000.0 * np.exp(-(((np.arange(180) - 106) / 4.0) ** 2))

    canned_totals(released)
    monkeypatch.setattr("pymc_dp.records.curator.noisy_counts", counted)
    surrogates = []
    for seed in (0, 1):
        y = np.random.default_rng(seed).gamma(2.0, 1.0 + 5 * seed, size=3000)
        with pm.Model() as model:
            log_rate = pm.Normal("log_rate", 0, 2)
            pm.Exponential("y", pm.math.exp(log_rate), observed=pm.Data("Y", y))
        prior = PublicLogDensity(ParameterSpace(model), FAST)
        surrogates.append(fit_normal(measured(records_of(model), z=2.0), prior, np.zeros(1)))
    assert repr(surrogates[0]) == repr(surrogates[1])
    assert surrogates[0].rounds > 1
    assert surrogates[0].posterior.law.beta != 0


# -- clipping, units, noise ---------------------------------------------------------------------


def unpacked(vector, d):
    """A symmetric matrix from a vector in which entries off the diagonal count twice."""
    i, j = np.tril_indices(d)
    M = np.zeros((d, d))
    M[i, j] = M[j, i] = vector / np.where(i == j, 1, np.sqrt(2))
    return M


@pytest.mark.parametrize("clipped", [0.1, 0.5, 0.95])
def test_hard_clipping_keeps_the_gradient(clipped):
    """In the mean over outcomes, five posterior sds off: what information keeps makes up for what is lost."""
    model = logistic(20_000)
    prior = PublicLogDensity(ParameterSpace(model), FAST)
    truth, covariance = mode_of(model, prior)
    x, V = model["X"].get_value(), np.linalg.cholesky(covariance)
    theta = truth + V @ [3.0, -3.0, 2.65]
    compiled = dp.compile(model, compile_kwargs=FAST)
    template = LocalRecords(compiled, 1, words=WORDS)
    ones, noughts = (
        template.of_data([
            x if leaf.name == "X" else np.full(len(x), y) for leaf in compiled.roles.record_data
        ])
        for y in (1, 0)
    )  # fmt: skip
    p = special.expit(x @ truth)[:, None]

    def mean(of):
        one, nought = (np.concatenate(list(of.terms(r))) for r in (ones, noughts))
        return p * one + (1 - p) * nought

    lengths = np.linalg.norm(np.concatenate(list(Gradient(theta, V).terms(ones))), axis=1)
    b = float(np.quantile(lengths, 1 - clipped))
    right, score = mean(Gradient(theta, V)).sum(axis=0), mean(Score(theta, V, b)).sum(axis=0)
    packed = np.concatenate(list(Information(theta, V, b).terms(ones))).sum(axis=0)
    J, K = (unpacked(half, 3) for half in np.split(packed, 2))
    off = np.linalg.norm(J @ np.linalg.solve(K, score) - right) / np.linalg.norm(right)
    assert off < 0.04
    assert np.linalg.norm(score - right) > (0.3 if clipped > 0.1 else 0.01) * np.linalg.norm(right)


@pytest.mark.parametrize(("harder", "within"), [(1.0, 0.2), (0.3, 1.2)])
def test_a_run_that_clips_hard_finds_the_mode(harder, within, monkeypatch):
    """But for noise: scores that are clipped are another estimate, which is a little less efficient."""
    from pymc_dp.surrogate.normal.bounds import Tail

    def short(self, noise, most):
        size, clipped = honest(self, noise, most)
        return harder * size, clipped

    honest = Tail.balanced
    monkeypatch.setattr(Tail, "balanced", short)
    model = logistic(20_000)
    prior = PublicLogDensity(ParameterSpace(model), FAST)
    mode, covariance = mode_of(model, prior)
    found = fit_normal(measured(records_of(model), 1e-3), prior, np.zeros(3)).posterior
    off = np.linalg.solve(np.linalg.cholesky(covariance), found.mean - mode)
    assert np.linalg.norm(off) < within
    np.testing.assert_allclose(np.diag(found.covariance), np.diag(covariance), rtol=0.1)


@pytest.mark.slow
def test_few_records_that_alone_tell_of_a_parameter_are_found():
    """A category of one in a thousand, under a prior that says next to nothing: its interval is about as long as without noise."""
    rng, n, few = np.random.default_rng(5), 100_000, 100
    x = np.column_stack([np.ones(n), rng.normal(size=n), np.arange(n) < few]).astype(float)
    y = (rng.random(n) < special.expit(x @ [-0.3, 0.5, 0.8])).astype(int)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y))
    prior = PublicLogDensity(ParameterSpace(model), FAST)
    mode, covariance = mode_of(model, prior)
    sds = np.sqrt(np.diag(covariance))
    found = [fit_normal(measured(records_of(model), 0.6, s), prior, np.zeros(3)) for s in range(5)]
    wider = [np.sqrt(np.diag(f.posterior.covariance)) / sds for f in found]
    assert np.median(wider, axis=0).max() < 1.25
    for f, by in zip(found, wider, strict=True):
        assert f.arrived
        assert np.abs(f.posterior.mean - mode).max() < 3 * np.max(by * sds)


def test_what_is_noise_alone_is_not_taken_for_a_posterior():
    """Where counts of sizes are noise, the longest unit they show may be of no size at all, and a sum of such has no noise."""
    model = logistic(5_000)
    records, prior = records_of(model, COMPILED), PublicLogDensity(ParameterSpace(model), FAST)
    found = [fit_normal(measured(records, 200.0, s), prior, np.zeros(3)) for s in range(20)]
    said = [f.privacy_shift for f in found if f.arrived]
    assert len(said) > 5
    assert min(said) > 0.5


def test_where_noise_hides_most_of_the_information_what_is_left_of_it_is_used():
    """Ten coefficients and 2,000 records at ε = 1, about. With only directions that stand out of the noise, errors were 5.9 exact sds."""
    rng, d, n, squares, within = np.random.default_rng(12), 10, 2_000, [], []
    for seed in range(12):
        truth = rng.normal(size=d) / np.sqrt(d)
        x = rng.normal(size=(n, d)) * np.geomspace(1, 0.3, d)
        y = rng.random(n) < special.expit(x @ truth)
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=d)
            pm.Bernoulli("y", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y.astype(int)))
        prior = PublicLogDensity(ParameterSpace(model), FAST)
        mode, covariance = mode_of(model, prior)
        r = fit_normal(measured(records_of(model), 4.1, seed), prior, np.zeros(d)).posterior
        squares.append(np.mean((r.mean - mode) ** 2 / np.diag(covariance)))
        within.append(np.mean((r.mean - truth) ** 2 / np.diag(r.covariance)))
    assert np.sqrt(np.mean(squares)) < 3.5
    assert np.mean(within) < 1 + 4 * np.sqrt(2 / (d * len(within)))


def run_in_units(unit, seed, z=0.5):
    """With the first covariate, and so the prior of its coefficient, in other units."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5000, 3))
    y = (rng.random(5000) < special.expit(x @ [1.0, -0.5, 0.2])).astype(int)
    sds = np.array([1 / unit, 1.0, 1.0])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, sds, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("X", x / sds) @ beta, observed=pm.Data("Y", y))
    prior = PublicLogDensity(ParameterSpace(model), FAST)
    found = fit_normal(measured(records_of(model), z, seed), prior, np.zeros(3))
    r = found.posterior
    return r.mean / sds, r.covariance / np.outer(sds, sds), found.rounds


@pytest.mark.parametrize("unit", [2.0**20, 2.0**-10])
def test_a_run_does_not_depend_on_parameters_units(unit):
    """A covariate in grams or in tons, and the same noise: sizes are counted in bins of powers of two."""
    one, other = run_in_units(1.0, 1), run_in_units(unit, 1)
    sds = np.sqrt(np.diag(one[1]))
    np.testing.assert_allclose((other[0] - one[0]) / sds, 0, atol=1e-2)
    np.testing.assert_allclose((other[1] - one[1]) / np.outer(sds, sds), 0, atol=1e-2)
    assert one[2] == other[2]


def test_nor_on_units_between_those():
    """Then bounds are other ones, and only the result has to agree, within what noise does."""
    (one, covariance, _), (other, *_) = run_in_units(1.0, 1), run_in_units(1000.0, 1)
    L = np.linalg.cholesky(covariance)
    assert np.linalg.norm(np.linalg.solve(L, other - one)) < 4.0
    assert abs(other[0] - 1.0) < 5 * np.sqrt(covariance[0, 0])


def test_what_noise_is_said_to_do_it_does():
    """Errors of the mode over many noises, in the sds that are claimed for them."""
    model, runs = logistic(), 40
    records, prior = records_of(model), PublicLogDensity(ParameterSpace(model), FAST)
    mode, _ = mode_of(model, prior)
    squares, shifts = [], []
    for seed in range(runs):
        r = fit_normal(measured(records, 1.0, seed), prior, np.zeros(3)).posterior
        # What was released moves the mode by this much, and what the law keeps of the prior does not show here.
        C = np.linalg.inv(r.exact)
        off = r.mean - mode
        squares.append(off @ np.linalg.solve(C @ r.law.S @ C, off) / 3)
        shifts.append(r.privacy_shift)
    assert 0.05 < np.median(shifts) < 2
    assert 0.5 < np.mean(squares) < 1 + 4 * np.sqrt(2 / 3 / runs)


def few_tell(what, n=20_000, seed=11):
    """A category of 1.5 % for whom the outcome is nearly certain, or an outcome of 2 %."""
    rng = np.random.default_rng(seed)
    x, category = rng.normal(size=(n, 3)), what == "a category"
    if category:
        x[:, 2] = np.where(rng.random(n) < 0.015, 1.0, -1.0)
    truth, intercept = ([0.3, -0.5, 1.5], 1.5) if category else ([0.5, -0.5, 0.3], -4.4)
    y = rng.random(n) < 1 / (1 + np.exp(-intercept - x @ truth))
    with pm.Model() as model:
        a, beta = pm.Normal("a", 0, 2), pm.Normal("beta", 0, 2, shape=3)
        eta = a + pm.Data("X", x) @ beta
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y.astype(int)))
    return model


@pytest.mark.parametrize(("what", "epsilon"), [("a category", 3.0), ("an outcome", 0.3)])
def test_few_records_that_tell_all_are_not_lost(what, epsilon):
    """Where a histogram shows none of them, over many noises: errors in the sds that are claimed."""
    step = dp.DPSurrogate(
        family="normal", draws=1, chains=1, epsilon=epsilon, delta=1e-5, model=few_tell(what)
    )
    z = step._price.whole.noise_multiplier
    exact = fit_normal(measured(step._curator._records, 1e-3), step.log_public, np.zeros(4))
    errors = []
    for seed in range(8):
        r = fit_normal(
            measured(step._curator._records, z, seed), step.log_public, np.zeros(4)
        ).posterior
        errors.append((r.mean - exact.posterior.mean) / np.sqrt(np.diag(r.covariance)))
    # As independent normal errors would be, once in ten thousand; without counts the mean square is 20 and more.
    assert np.mean(np.square(errors)) < stats.chi2.ppf(1 - 1e-4, 8) / 8


def categories(n=5_000):
    """Twenty-two categories, of most of which few records tell, and three covariates of which all do; and the posterior's mean."""
    rng = np.random.default_rng(2)
    sizes = np.geomspace(1, 0.03, 10)
    job, year = rng.choice(10, size=n, p=sizes / sizes.sum()), rng.integers(12, size=n)
    x, woman = rng.normal(size=(n, 2)), rng.integers(2, size=n)
    X = np.column_stack([np.ones(n), np.eye(10)[job], np.eye(12)[year], x, woman])
    sds = np.repeat([2.0, 1.0, 0.5, 1.0], [1, 10, 12, 3])
    truth = np.r_[3.0, 0.4 * rng.normal(size=10), 0.1 * rng.normal(size=12), 0.3, -0.1, -0.4]
    y = rng.normal(X @ truth, 0.7)
    with pm.Model() as model:
        b = pm.Normal("b", 0, sds, shape=26)
        pm.Normal("y", pm.Data("X", X) @ b, 0.7, observed=pm.Data("Y", y))
    return model, np.linalg.solve(X.T @ X / 0.49 + np.diag(sds**-2), X.T @ y / 0.49)


@pytest.mark.parametrize(
    ("neighbours", "seed"), [(SUBSTITUTE_ONE, 0), (SUBSTITUTE_ONE, 2), (ADD_OR_REMOVE, 0)]
)
def test_categories_that_no_histogram_shows_do_not_spoil_the_rest(neighbours, seed):
    """In the prior's units, what is known best is six or more of its own sds off; noise is as with 15,000 records at ε = 1."""
    model, mean = categories()
    records, prior = records_of(model, COMPILED), PublicLogDensity(ParameterSpace(model), FAST)
    measure = measured(records, 1.25 if neighbours is SUBSTITUTE_ONE else 2.5, seed, neighbours)
    r = fit_normal(measure, prior, np.zeros(26)).posterior
    assert np.abs((r.mean - mean) / np.sqrt(np.diag(r.covariance))).max() < 4


def cells(n, rng, outcome):
    """Forty cells of a few records each, and three covariates of which all tell."""
    cell, X = rng.integers(40, size=n), rng.normal(size=(n, 3)) * [1.0, 3.0, 0.3]
    level = rng.normal(0, 0.3, size=40)
    eta = level[cell] + X @ [0.3, 0.1, 0.5]
    with pm.Model() as model:
        u, b = pm.Normal("u", 0, 1, shape=40), pm.Normal("b", 0, 1, shape=3)
        outcome(u[pm.Data("cell", cell)] + pm.Data("X", X) @ b, eta)
    return model


def test_where_noise_hides_every_parameter_all_of_them_have_a_unit():
    """Together units are seen: in the prior's units a search of forty-three numbers begins up to a hundred times too far away."""
    rng, n = np.random.default_rng(12), 6_000

    def counted(eta, at):
        pm.Poisson("y", pm.math.exp(eta), observed=pm.Data("Y", rng.poisson(np.exp(at))))

    records = records_of(cells(n, rng, counted), COMPILED)
    for seed in range(3):
        found = Evaluator(measured(records, 4.0, seed), n, 1.0).squares(np.zeros(43), 0.01)
        assert (found > 30).all()


def test_where_counts_show_that_units_are_longer_than_the_model_says_less_of_them_is_clipped():
    """Counts that vary more than Poisson's: what is clipped moves all cells one way, by 2.6 of their own sds if it may be as long as all noise."""
    rng, n = np.random.default_rng(13), 8_000

    def varying(eta, at):
        y = rng.poisson(np.exp(at + rng.normal(size=n)))
        pm.Poisson("y", pm.math.exp(eta), observed=pm.Data("Y", y))

    model = cells(n, rng, varying)
    records, prior = records_of(model, COMPILED), PublicLogDensity(ParameterSpace(model), FAST)
    exact = fit_normal(measured(records, 1e-3, 1), prior, np.zeros(43)).posterior.mean
    off = []
    for seed in range(3):
        r = fit_normal(measured(records, 2.0, seed), prior, np.zeros(43)).posterior
        off.append((r.mean - exact) / np.sqrt(np.diag(r.covariance)))
    assert np.sqrt(np.mean(np.square(off))) < 2.2


def test_a_scale_among_many_numbers_is_as_sure_as_it_says():
    """Answers from where σ is too large all lead too little far in log σ, and are doubted in that alone, not by a forty-fourth of it."""
    rng, n = np.random.default_rng(14), 10_000

    def noisy(eta, at):
        pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=pm.Data("Y", rng.normal(at, 0.8)))

    model = cells(n, rng, noisy)
    records, prior = records_of(model, COMPILED), PublicLogDensity(ParameterSpace(model), FAST)
    start = ParameterSpace(model).start
    exact = fit_normal(measured(records, 1e-3, 1), prior, start).posterior.mean
    off = []
    for seed in range(3):
        r = fit_normal(measured(records, 1.0, seed), prior, start).posterior
        off.append((r.mean - exact)[-1] / np.sqrt(r.covariance[-1, -1]))
    assert abs(np.mean(off)) < 3 / np.sqrt(3)


def test_information_that_noise_makes_most_units_lose_is_made_up_for():
    """Where units' information varies, by more than what the one in the middle loses: the posterior is not wider for it."""
    rng, n = np.random.default_rng(15), 10_000

    def counted(eta, at):
        pm.Poisson("y", pm.math.exp(eta), observed=pm.Data("Y", rng.poisson(np.exp(at))))

    model = cells(n, rng, counted)
    records, prior = records_of(model, COMPILED), PublicLogDensity(ParameterSpace(model), FAST)
    exact, *found = (
        np.diag(np.linalg.inv(fit_normal(measured(records, z, 1), prior, np.zeros(43)).posterior.exact))
        for z in (1e-3, 2.0, 2.1)
    )  # fmt: skip
    assert np.median(np.sqrt(found / exact)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("neighbours", [SUBSTITUTE_ONE, ADD_OR_REMOVE])
def test_counts_of_long_gradients_have_sensitivity_one(neighbours):
    """By brute force on the integers that noise is added to: a unit replaced, or one that goes."""
    x = np.array([0.1, 5.0, -7.0, np.nan, 3.0])
    counts = []
    for rows in (x, np.array([9.0, *x[1:]]), x[1:]):
        records = SimpleNamespace(
            n_units=len(rows),
            gradients=lambda theta, units, rows=rows: iter([rows[:, None]]),
        )
        total = sum(chunk.sum() for chunk in NormExceeds(Gradient(np.zeros(1)), 2.0).terms(records))
        counts.append(total)
    assert counts == [3, 4, 3]
    assert neighbours.noise_sd(0.5 if neighbours.public_size else 1.0, 1.0) == 1.0


def test_in_pymc(quiet):
    """The whole run is within its budget, and draws are those of the law."""
    ledger = dp.PrivacyLedger(epsilon=8.0, delta=1e-5)
    idata = dp.sample(
        400, chains=2, epsilon=8.0, delta=1e-5, model=normal(4000), ledger=ledger,
        cores=1, random_seed=1, progressbar=False, compile_kwargs=FAST,
    )  # fmt: skip
    assert 7.9 < ledger.spent() <= 8.0
    assert idata.attrs["privacy_epsilon"] == 8.0
    assert idata.attrs["privacy_usable"] == 1
    assert float(idata.sample_stats["epsilon_spent"].max()) <= 8.0
    assert "privacy_shift" in idata.attrs["privacy_diagnostics"]
    assert "privacy_shift" not in idata.attrs["privacy_settings"]
    draws = idata.posterior["mu"].values
    assert draws.shape == (2, 400)
    assert len(np.unique(draws)) > 700


def test_draws_are_those_of_the_law_and_of_any_sampler():
    """Means and sds against the normal approximation, which is exact here."""
    for sampler in ("pymc", "nutpie"):
        if sampler == "nutpie":
            pytest.importorskip("nutpie")
        step = dp.DPSurrogate(
            family="normal", draws=1000, chains=2, epsilon=3.0, model=logistic(), compile_kwargs=FAST,
            nuts_sampler=sampler, noise_source=InsecureSeededNoise(1),
        )  # fmt: skip
        r = step.release().posterior
        sds = np.sqrt(np.diag(r.covariance))
        drawn = step._draws.reshape(-1, 3)
        # Twice what 2,000 independent draws would need, for what they depend on each other.
        assert np.all(np.abs(drawn.mean(axis=0) - r.mean) < 8 * sds / np.sqrt(2000))
        np.testing.assert_allclose(drawn.std(axis=0), sds, rtol=0.1)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, ImportError])
def test_a_sampler_that_fails_loses_nothing(error, monkeypatch, caplog):
    def broken(*arguments, **keywords):
        raise error("no")

    monkeypatch.setattr("pymc_dp.surrogate.normal.draws.pm.sample", broken)
    step = dp.DPSurrogate(
        family="normal", draws=500, chains=1, epsilon=8.0, model=normal(), compile_kwargs=FAST
    )
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        r = step.release().posterior
    assert "normal approximation" in caplog.text
    assert abs(step._draws.mean() - r.mean[0]) < 5 * np.sqrt(r.covariance[0, 0] / 500)


def test_a_sampler_that_is_not_there_is_refused_before_anything_is_spent(monkeypatch):
    with pytest.raises(dp.PrivacyConfigurationError, match="'pymc', 'nutpie'"):
        dp.DPSurrogate(
            family="normal", draws=10, chains=1, epsilon=1.0, model=normal(), nuts_sampler="stan"
        )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(dp.PrivacyConfigurationError, match="package blackjax, which is not"):
        dp.DPSurrogate(
            family="normal",
            draws=10,
            chains=1,
            epsilon=1.0,
            model=normal(),
            nuts_sampler="blackjax",
        )


def test_a_search_that_is_cut_short_is_said_to_be_of_no_use(monkeypatch, caplog):
    """All of its budget is spent, and draws are of what was found."""
    monkeypatch.setattr("pymc_dp.surrogate.normal.fit._SEARCH", 0.0)
    monkeypatch.setattr("pymc_dp.surrogate.normal.fit._ENDING", ())
    ledger = dp.PrivacyLedger(epsilon=8.0, delta=1e-5)
    step = dp.DPSurrogate(
        family="normal", draws=50, chains=1, epsilon=8.0, delta=1e-5, model=normal(), ledger=ledger, compile_kwargs=FAST
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        assert not step.release().arrived
    assert "did not arrive" in caplog.text
    assert step.guarantee.diagnostics["usable"] == 0
    assert 7.9 < ledger.spent() <= 8.0
    assert np.isfinite(step._draws).all()


@pytest.mark.parametrize("part", ["estimate", "pooled_gradient", "posterior_of"])
def test_noisy_equations_without_a_solution_return_the_prior_and_give_back_the_rest(
    part, monkeypatch, caplog
):
    def unsolvable(*arguments, **keywords):
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(f"pymc_dp.surrogate.normal.fit.{part}", unsolvable)
    ledger = dp.PrivacyLedger(epsilon=8.0, delta=1e-5)
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=2000, epsilon=8.0, delta=1e-5, model=normal(), ledger=ledger, compile_kwargs=FAST
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        assert not step.release().arrived
    assert "did not arrive" in caplog.text
    assert step.guarantee.diagnostics["usable"] == 0
    # What is settled is the sum of the shares that were asked for, and no less.
    shares = sum(v for k, v in step.guarantee.diagnostics.items() if k.startswith("spent_on_"))
    assert 0 < shares < 0.5
    assert gaussian_mu(ledger.events()) ** 2 == pytest.approx(
        shares / step._price.whole.noise_multiplier**2, rel=1e-6
    )
    assert 0 < ledger.spent() < 4.0
    prior = step._draws[0, :, 0]
    assert abs(prior.std() / 10 - 1) < 0.1
    assert abs(prior.mean()) < 1


def test_a_rare_category_is_the_priors_and_the_others_are_not_worse(caplog):
    """Twenty of 20,000 records: nothing can be said of it at this ε, and that is said."""
    rng, n = np.random.default_rng(4), 20_000
    x = np.column_stack([np.ones(n), rng.normal(size=n), np.arange(n) < 20])
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ [0.2, 0.5, 2.0]))).astype(int)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y))
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=5, epsilon=1.0, model=model, compile_kwargs=FAST,
        noise_source=InsecureSeededNoise(2),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        r = step.release().posterior
    sds = np.sqrt(np.diag(r.covariance))
    assert "beta[2]" in caplog.text
    assert sds[2] > 0.8
    assert np.all(sds[:2] < 0.05)
    assert np.all(np.abs(r.mean[:2] - [0.2, 0.5]) < 4 * sds[:2])


def test_a_group_of_records_that_stands_out_is_not_clipped_away():
    """A rare binary covariate: four kinds of records, and four lengths of gradients with nothing between."""
    rng = np.random.default_rng(4)
    x = rng.random(20_000) < 0.1
    y = (rng.random(20_000) < 1 / (1 + np.exp(1.5 - 2.0 * x))).astype(int)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * pm.Data("x", 1.0 * x), observed=pm.Data("Y", y))
    rates = [y[~x].mean(), y[x].mean()]
    near = [np.log(r / (1 - r)) for r in rates]  # the likelihood's mode; the prior's pull is small
    mode = np.array([near[0], near[1] - near[0]])
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=10, epsilon=4.0, model=model, compile_kwargs=FAST,
        noise_source=InsecureSeededNoise(3),
    )  # fmt: skip
    r = step.release().posterior
    off = r.mean - mode
    assert np.sqrt(off @ r.precision @ off / 2) < 4 * r.privacy_shift + 0.2


def test_with_a_private_number_of_units_none_is_told():
    # At an ε of 8 the tests' noise makes the noisy information 2789.05, by chance: its sd is 55.
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=5, epsilon=7.0, delta=1e-5, model=normal(2789), compile_kwargs=FAST,
        neighbours="add-or-remove",
    )  # fmt: skip
    step.release()
    told = repr(step.guarantee) + step.guarantee.sentence
    assert "2789" not in told
    assert "2,789" not in told
    assert step.guarantee.diagnostics["usable"] == 1


@pytest.mark.sweep
def test_flat_priors_are_found_like_others():
    """Where no prior holds the search, the data alone must."""
    rng = np.random.default_rng(0)
    x, n = rng.normal(size=20_000), 20_000
    y = 0.4 + 0.3 * x + rng.normal(size=n)
    with pm.Model() as model:
        level, slope = pm.Flat("level"), pm.Flat("slope")
        pm.Normal("y", level + slope * pm.Data("x", x), 1.0, observed=pm.Data("Y", y))
    step = dp.DPSurrogate(
        family="normal",
        epsilon=2.0,
        draws=100,
        chains=1,
        model=model,
        noise_source=dp.InsecureSeededNoise(3),
    )
    r = step.release().posterior
    exact = np.linalg.lstsq(np.column_stack([np.ones(n), x]), y, rcond=None)[0]
    off = (r.mean - exact) * math.sqrt(n)  # each sd is 1/√n
    assert np.linalg.norm(off) < 4 * r.privacy_shift * math.sqrt(2)


@pytest.mark.parametrize("errors", ["warn", "raise"])
def test_a_record_that_overflows_tells_nothing(errors):
    """And the state of numpy is left alone."""
    y = np.random.default_rng(0).normal(size=400)
    for planted in (0, 1):
        y[:planted] = 1.3e154
        with pm.Model() as model:
            mu, log_sigma = pm.Normal("mu", 0, 10), pm.Normal("log_sigma", 0, 1)
            pm.Normal("y", mu, pm.math.exp(log_sigma), observed=pm.Data("Y", y))
        step = dp.DPSurrogate(
            family="normal", chains=1, draws=3, epsilon=200.0, model=model, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(0),
        )  # fmt: skip
        with np.errstate(over=errors, invalid=errors, divide=errors), warnings.catch_warnings():
            warnings.filterwarnings("error", category=RuntimeWarning)
            state = np.geterr()
            step.release()
            assert np.geterr() == state


def test_chains_in_processes_of_their_own_need_the_surrogate_first(monkeypatch):
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=5, epsilon=5.0, model=normal(), compile_kwargs=FAST
    )
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(dp.PrivacyConfigurationError, match=r"step\.release"):
        step._begin(np.random.default_rng(0))
    assert step.ledger.spent() == 0


@pytest.mark.process
def test_pymcs_own_entry_takes_processes_once_the_surrogate_is_there(quiet):
    step = dp.DPSurrogate(
        family="normal", draws=10, chains=2, epsilon=8.0, model=normal(), compile_kwargs=FAST
    )
    host = {**quiet, "cores": 2, "mp_ctx": "fork"}
    with pytest.raises(dp.PrivacyConfigurationError, match=r"step\.release"):
        pm.sample(10, tune=0, chains=2, step=step, model=step.model, **host)
    assert step.ledger.spent() == 0
    step.release()
    raw = pm.sample(10, tune=0, chains=2, step=step, model=step.model, **host)
    released = dp.release(raw)
    assert released.attrs["privacy_epsilon"] == 8.0
    assert "privacy_shift" in released.attrs["privacy_diagnostics"]
    draws = released.posterior["mu"].values
    np.testing.assert_array_equal(np.sort(draws, axis=0), np.sort(step._draws[:, :, 0], axis=0))


def test_another_process_releases_with_a_step_built_again(tmp_path):
    """What a run measured is not part of the promise that the two have to share."""
    from pymc_dp.steps import run

    settings = {"chains": 1, "draws": 20, "epsilon": 5.0, "compile_kwargs": FAST}
    model = normal()
    step = dp.DPSurrogate(family="normal", model=model, **settings)
    raw = pm.sample(
        20, tune=0, chains=1, cores=1, step=step, model=model, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    run._guarantees.pop(step.run_id)
    again = dp.DPSurrogate(family="normal", model=model, **settings)
    assert dp.release(raw, step=again).attrs["privacy_epsilon"] == 5.0


def test_private_terms_do_not_travel():
    """What a step keeps of its records, besides the model's own data, is left out of pickles."""
    step = dp.DPSurrogate(
        family="normal", draws=5, chains=1, epsilon=50.0, model=normal(), compile_kwargs=FAST,
        noise_source=InsecureSeededNoise(1),
    )  # fmt: skip
    step.release()
    (scores,) = step._curator._records._kept_scores._latest[1]
    assert scores.observed.tobytes() in cloudpickle.dumps(scores)
    sent = cloudpickle.dumps(step)
    assert scores.observed.tobytes() not in sent
    assert scores.simulated.tobytes() not in sent


@pytest.mark.sweep
def test_as_many_parameters_as_the_page_says_are_sampled():
    rng, n, d = np.random.default_rng(0), 400, 90
    x = rng.normal(size=(n, d))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=d)
        pm.Normal("y", pm.Data("X", x) @ b, 1, observed=pm.Data("Y", rng.normal(size=n)))
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=5, epsilon=4.0, model=model, compile_kwargs=FAST
    )
    step.release()
    assert step._draws.shape == (1, 5, d)


def test_more_parameters_than_the_page_says_are_refused():
    with pm.Model() as too_many:
        b = pm.Normal("b", 0, 1, shape=256)
        pm.Normal("y", b.sum(), 1, observed=pm.Data("Y", [0.0, 1.0, 2.0]))
    with pytest.raises(dp.UnsupportedModelError, match="all 256 numbers that the likelihood reads"):
        dp.DPSurrogate(family="normal", chains=1, draws=5, epsilon=1.0, model=too_many)


def test_where_the_prior_puts_nothing_is_told(quiet, caplog):
    """Twenty prior standard deviations away: noise may have led the search there, or the prior is wrong."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 0.1)
        y = 2 + np.random.default_rng(0).normal(size=20_000)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", y))
    with caplog.at_level("WARNING", logger="pymc.dp"):
        idata = dp.sample(
            model=model,
            draws=50,
            step=partial(dp.DPSurrogate, family="normal"),
            epsilon=4.0,
            chains=1,
            **quiet,
            compile_kwargs=FAST,
        )
    assert idata.attrs["privacy_usable"] == 0
    assert "The prior of mu puts next to nothing" in caplog.text
