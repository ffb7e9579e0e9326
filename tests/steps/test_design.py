"""Public designs: what is decided by declarations alone, what is asked, and that nothing else is read of outcomes."""

import functools
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import poisson

import pymc_dp as dp
from pymc_dp.likelihood.roles import find_roles
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.design import public_design
from pymc_dp.records.measurements import Curator, PaidMeasurements
from pymc_dp.records.queries import Deviation
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.normal.design import expected_shifts, fit_design
from pymc_dp.surrogate.normal.deviations import Asker
from pymc_dp.surrogate.normal.diagnosis import diagnose

FAST = {"mode": "FAST_COMPILE"}
N = 400
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(N), RNG.normal(size=N)])
TRUTH = np.array([0.5, -0.8])


def logistic(x, y):
    beta = pm.Normal("beta", 0, 1, shape=2)
    mean = pm.Data("X", x, dims=("unit", "column")) @ beta
    pm.Bernoulli("y", logit_p=mean, observed=pm.Data("Y", y, dims="unit"), dims="unit")


def counts(x, y):
    beta = pm.Normal("beta", 0, 2, shape=2)
    mean = pm.Data("X", x, dims=("unit", "column")) @ beta
    pm.Poisson("y", pm.math.exp(mean), observed=pm.Data("Y", y, dims="unit"), dims="unit")


def linear(x, y):
    beta, log_sd = pm.Normal("beta", 0, 1, shape=2), pm.Normal("log_sd", 0, 1)
    mean = pm.Data("X", x, dims=("unit", "column")) @ beta
    observed = pm.Data("Y", np.asarray(y, float), dims="unit")
    pm.Normal("y", mean, pm.math.exp(log_sd), observed=observed, dims="unit")


LAWS = {"logistic": logistic, "counts": counts, "linear": linear}


def model_of(law, x, y):
    with pm.Model() as model:
        LAWS[law](x, y)
    return model


def outcomes_of(law, x, rng, truth=TRUTH):
    if law == "logistic":
        return (rng.random(len(x)) < expit(x @ truth)).astype(int)
    return rng.poisson(np.exp(x @ truth)) if law == "counts" else rng.normal(x @ truth, 0.5)


@functools.cache
def compiled(law):
    y = outcomes_of(law, X, np.random.default_rng(1))
    return dp.compile(model_of(law, X, y), public=["X"], compile_kwargs=FAST)


def data_of(law, x, y):
    given = {"X": x, "Y": y}
    return [
        np.asarray(given[leaf.name], leaf.values.dtype) for leaf in compiled(law).roles.record_data
    ]


def records_of(law, x=X, y=None):
    y = outcomes_of(law, x, np.random.default_rng(1)) if y is None else y
    return LocalRecords(compiled(law), 1).of_data(data_of(law, x, y))


def design_of(law, x=X, y=None):
    return public_design(compiled(law), data_of(law, x, np.zeros(len(x)) if y is None else y))


def measured(records, z, seed=1):
    curator = Curator(records, InsecureSeededNoise(seed))
    return PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z))


def fitted(law, x, y, z, seed=1, **settings):
    c = compiled(law)
    measure = measured(records_of(law, x, y), z, seed)
    return fit_design(
        measure, c.log_public, c.parameters.start, design=design_of(law, x), **settings
    )


# -- what is taken for a public design: declarations alone -------------------------------------------


def of(build, public=(), unit=None, n=N):
    with pm.Model() as model:
        build(n)
    return find_roles(model, unit, public).public_design


def unit_data(name, values):
    return pm.Data(name, values, dims="unit")


def with_exposure(n):
    rate = unit_data("exposure", np.ones(n)) * pm.math.exp(
        pm.Normal("b", 0, 1) * unit_data("x", X[:n, 1])
    )
    pm.Poisson("y", rate, observed=unit_data("Y", np.ones(n, int)), dims="unit")


def with_arms(n):
    arm = pm.Normal("arm", 0, 1, shape=3)[unit_data("k", np.arange(n) % 3)]
    pm.Bernoulli("y", logit_p=arm, observed=unit_data("Y", np.ones(n, int)), dims="unit")


def censored(n):
    law = pm.Exponential.dist(pm.math.exp(pm.Normal("b", 0, 1) * unit_data("x", X[:n, 1])))
    upper = unit_data("until", np.full(n, 2.0))
    pm.Censored("y", law, lower=None, upper=upper, observed=unit_data("Y", np.ones(n)), dims="unit")


def of_its_own_past(n):
    y = unit_data("Y", np.ones(n))
    pm.Normal("y", pm.Normal("b", 0, 1) * y, 1, observed=y, dims="unit")


def of_nothing(n):
    pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=unit_data("Y", np.ones(n)), dims="unit")


def written_in(n):
    """Covariates that are an array without a name: nobody declared them."""
    pm.Normal("y", pm.Normal("b", 0, 1) * X[:n, 1], 1, observed=np.ones(n))


def two_outcomes(n):
    b = pm.Normal("b", 0, 1)
    pm.Normal(
        "u", b * unit_data("x", X[:n, 1]), 1, observed=unit_data("U", np.ones(n)), dims="unit"
    )
    pm.Normal("v", b, 1, observed=unit_data("V", np.ones(n)), dims="unit")


@pytest.mark.parametrize(
    ("build", "public", "expected"),
    [
        (with_exposure, ["exposure", "x"], True),
        (with_exposure, ["x"], False),
        (with_exposure, ["exposure"], False),
        (with_exposure, [], False),
        (with_arms, ["k"], True),
        (with_arms, [], False),
        (censored, ["x", "until"], True),
        (censored, ["x"], False),
        (of_its_own_past, [], False),
        (of_nothing, [], True),
        (written_in, [], False),
        (two_outcomes, ["x"], True),
        (two_outcomes, ["x", "U"], False),
    ],
)
def test_everything_but_the_outcome_has_to_be_declared(build, public, expected):
    assert of(build, public) == expected


def test_people_with_several_rows_have_no_public_design():
    """How many rows somebody has, and which, is nowhere declared."""
    assert of(with_arms, ["k"], np.arange(N)) is False
    assert of(with_arms, ["k"], np.arange(N) // 2) is False


@pytest.mark.parametrize("column", [np.zeros(N), X[:, 1], np.full(N, 1e9)])
def test_values_decide_nothing(column):
    def build(n):
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * unit_data("x", column), 1, observed=unit_data("Y", column), dims="unit")

    assert of(build, ["x"])
    assert not of(build)


def test_nobody_has_a_public_design_whose_number_is_private(caplog):
    with pm.Model() as model:
        of_nothing(N)
    step = {"epsilon": 5.0, "delta": 1e-3, "draws": 5, "chains": 1, "model": dp.compile(model, compile_kwargs=FAST)}  # fmt: skip
    public = dp.DPSurrogate(family="normal", **step)
    private = dp.DPSurrogate(family="normal", neighbours="add-or-remove", **step)
    assert "Public design" in str(dp.plan(public))
    assert "Public design" not in str(dp.plan(private))
    with pytest.raises(dp.UnsupportedModelError, match="declared public and has a row per record"):
        dp.DPSurrogate(
            epsilon=5.0, delta=1e-3, draws=5, chains=1, neighbours="add-or-remove", model=compiled("logistic")
        )  # fmt: skip


# -- what is had for nothing: no function of outcomes ------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_what_is_expected_is_the_same_whatever_the_outcomes_are(law):
    c, found = compiled(law), []
    theta = np.full(c.d, 0.3)
    for y in (np.zeros(N), np.full(N, 7.0), np.random.default_rng(2).normal(size=N) * 1e6):
        design = design_of(law, X, y)
        chunks = design.scores(theta, [theta, -theta], 1, 4)
        found.append([np.concatenate([w[None], *z], axis=None) for w, z in chunks])
        found[-1].append(expected_shifts(design, c.log_public, theta, 0.1, 1.0))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_plan_is_the_same_whatever_the_outcomes_are():
    plans = []
    for seed in (1, 2):
        y = outcomes_of("logistic", X, np.random.default_rng(seed), TRUTH * seed)
        model = model_of("logistic", X, y)
        step = dp.DPSurrogate(
            epsilon=1.0, delta=1e-5, draws=5, chains=1, model=model, public=["X"], compile_kwargs=FAST
        )  # fmt: skip
        plans.append(str(dp.plan(step)))
    assert plans[0] == plans[1]
    assert "Public design" in plans[0]


def test_nothing_is_asked_but_sums_of_deviations(monkeypatch):
    asked = []
    sum_of = PaidMeasurements.sum
    monkeypatch.setattr(
        PaidMeasurements, "sum", lambda self, of, *a: asked.append(of) or sum_of(self, of, *a)
    )
    y = outcomes_of("logistic", X, np.random.default_rng(1))
    measure = measured(records_of("logistic", X, y), 0.1)
    c = compiled("logistic")
    fit_design(measure, c.log_public, c.parameters.start, design=design_of("logistic"))
    assert {type(of) for of in asked} == {Deviation}
    assert set(measure.spent_on) == {"gradients"}
    assert measure.spent == pytest.approx(1)


# -- the sensitivity ---------------------------------------------------------------------------------

WORST = {
    "logistic": [0, 1],
    "counts": [0, 1, 10**6],
    "linear": [0.0, 3.0, -1e300, np.inf, -np.inf, np.nan],
}


@pytest.mark.parametrize("bound", [0.01, 0.5, 20.0])
@pytest.mark.parametrize("law", LAWS)
def test_an_outcome_moves_the_sum_by_twice_the_bound_at_most(law, bound):
    """By brute force: every one of some units, with the worst outcomes there are, wherever it is centred."""
    c, rng = compiled(law), np.random.default_rng(3)
    theta, V = 0.5 * rng.normal(size=c.d), np.eye(c.d) + 0.3 * rng.normal(size=(c.d, c.d))
    of = Deviation(theta, V, rng.normal(size=(N, c.d)))
    y, largest = outcomes_of(law, X, rng), 0.0
    for i in range(0, N, 40):
        totals = []
        for worst in WORST[law]:
            changed = np.array(y)
            changed[i] = worst
            totals.append(records_of(law, X, changed).total(of, bound))
        for a in totals:
            for b in totals:
                largest = max(largest, float(np.linalg.norm((a - b).astype(float))))
    assert largest <= 2 * RESOLUTION
    # Centred so, two outcomes may be on both sides of the ball.
    if bound == 0.01:
        assert largest > RESOLUTION


def test_of_two_outcomes_the_whole_ball_is_used():
    """Unclipped, 0 and 1 are as far apart as the bound allows: that is what a public centre gains."""
    design, c = design_of("logistic"), compiled("logistic")
    asked = []
    measure = SimpleNamespace(
        noise_sd=lambda bound, share, dimension: 1e-6 * bound,
        spent=0.0,
        before_last_sum=0.0,
        sum=lambda of, bound, share: asked.append((of, bound)) or (np.zeros(2), 1e-6),
    )
    with pytest.raises(RuntimeError):
        fit_design(measure, c.log_public, c.parameters.start, design=design, watch=stop)
    of, bound = asked[0]
    lengths = []
    for value in (0, 1):
        terms = np.concatenate(list(of.terms(records_of("logistic", X, np.full(N, value)))))
        lengths.append(np.linalg.norm(terms, axis=1))
    np.testing.assert_allclose(*lengths)
    # With next to no noise nothing is clipped, and nothing is longer than it has to be.
    assert np.max(lengths) == pytest.approx(bound, rel=0.05)


def stop(rounds, posterior):
    raise RuntimeError


# -- what answers say --------------------------------------------------------------------------------


def mean_of(law, x, truth, theta, V, centres, bound):
    """Of the sum of clipped deviations at θ, by going through the outcomes that there are at the truth."""
    total, d = 0.0, len(theta)
    values = range(2) if law == "logistic" else range(200)
    for value in values:
        eta = x @ truth
        of_two = law == "logistic"
        p = expit(eta if value else -eta) if of_two else poisson.pmf(value, np.exp(eta))
        here = expit(x @ theta) if of_two else np.exp(x @ theta)
        z = ((value - here)[:, None] * x) @ V - centres
        sizes = np.linalg.norm(z, axis=1)
        total = total + (p * np.minimum(1, bound / np.maximum(sizes, 1e-300))) @ z
    return np.reshape(total, d)


@pytest.mark.parametrize("law", ["logistic", "counts"])
def test_the_mean_of_a_sum_is_known_wherever_the_parameters_are(law):
    """By enumeration; of counts outcomes are drawn, and what chance leaves open is in the covariance."""
    c, draws = compiled(law), 64
    asker = Asker(design_of(law), c.log_public, 1.0)
    asked = asker.question(np.array([-0.4, 0.3]), 0.2)
    found = asker.expected(TRUTH, [asked], draws)
    exact = mean_of(law, X, TRUTH, asked.theta, asked.V, asked.centres, asked.bound)
    lost = found.Q - found.M @ np.linalg.solve(found.J, found.M.T)
    chance = np.sqrt(np.diag(lost) / draws) if law == "counts" else 1e-9 * np.ones(2)
    np.testing.assert_array_less(np.abs(found.mean - exact), 4 * chance)


def mode_of(law, x, y, prior):
    """Of the posterior, and its standard deviations there."""
    records, d = records_of(law, x, y), compiled(law).d

    def slope(theta):
        return sum(g.sum(axis=0) for g in records.gradients(theta)) + prior.gradient(theta)

    def loss(theta):
        return -float(records.log_likelihoods([theta])[0].sum() + prior(theta))

    mode = minimize(loss, np.zeros(d), jac=lambda theta: -slope(theta), method="BFGS").x
    H = np.array([(slope(mode + e) - slope(mode - e)) / 2e-4 for e in 1e-4 * np.eye(d)])
    return mode, np.sqrt(np.diag(np.linalg.inv(-H)))


@pytest.mark.parametrize(
    ("law", "tolerance"), [("logistic", 0.03), ("counts", 0.5), ("linear", 0.5)]
)
def test_without_noise_it_is_the_posterior(law, tolerance):
    """Where outcomes are drawn, up to three times what sixteen of them leave open: √½ / 4 sds."""
    c = compiled(law)
    y = outcomes_of(law, X, np.random.default_rng(4))
    surrogate = fitted(law, X, y, 1e-3)
    mode, sds = mode_of(law, X, y, c.log_public)
    np.testing.assert_allclose(surrogate.posterior.mean, mode, atol=tolerance * sds.min())
    np.testing.assert_allclose(np.sqrt(np.diag(surrogate.posterior.covariance)), sds, rtol=0.1)
    assert surrogate.privacy_shift < 0.05
    assert surrogate.arrived


@pytest.mark.parametrize("truth", [(4.0, 0.0), (-1.0, 1.5), (2.0, -1.2)])
def test_a_start_that_is_hundreds_of_sds_off_costs_next_to_nothing(truth):
    y = outcomes_of("counts", X, np.random.default_rng(5), np.array(truth))
    surrogate = fitted("counts", X, y, 0.05)
    mode, _ = mode_of("counts", X, y, compiled("counts").log_public)
    posterior = surrogate.posterior
    off = (posterior.mean - mode) / np.sqrt(np.diag(np.linalg.inv(posterior.exact)))
    assert surrogate.arrived
    assert surrogate.rounds <= 5  # an eighth of the budget
    assert np.abs(off).max() < 5 * max(float(posterior.privacy_shifts.max()), 0.2)


@pytest.mark.parametrize(("law", "z"), [("logistic", 1.0), ("logistic", 0.2), ("counts", 0.5)])
def test_intervals_cover_the_truth(law, z, monkeypatch):
    """90 % of those of some data sets, of parameters from the prior, within three standard errors."""
    monkeypatch.setattr("pymc_dp.surrogate.normal.design._HARMLESS", 0.0)
    rng, inside, surprises = np.random.default_rng(6), [], []
    for k in range(30 if law == "logistic" else 12):
        truth = rng.normal(0, 1 if law == "logistic" else 0.7, size=2)
        y = outcomes_of(law, X, rng, truth)
        surrogate = fitted(law, X, y, z, seed=k)
        r = surrogate.posterior
        inside.append(np.abs(r.mean - truth) < 1.645 * np.sqrt(np.diag(r.covariance)))
        surprises.append(surrogate.surprise**2)
    assert abs(np.mean(inside) - 0.9) < 3 * np.sqrt(0.09 / np.size(inside))
    # Where nothing is allowed beside chance: a χ² with d degrees, over d.
    assert abs(np.mean(surprises) - 1) < 4 * np.sqrt(1 / len(surprises))


def test_tempering_makes_intervals_wider():
    y = outcomes_of("logistic", X, np.random.default_rng(4))
    warm, cold = (fitted("logistic", X, y, 1e-3, tempering=T).posterior for T in (0.25, 1.0))
    ratio = np.sqrt(np.diag(warm.covariance) / np.diag(cold.covariance))
    np.testing.assert_allclose(ratio, 2, rtol=0.1)
    np.testing.assert_allclose(warm.mean, cold.mean, atol=0.05)


def test_what_a_model_expects_of_noise_is_what_a_run_says():
    """The number in the plan, at the mode, beside that of runs; and noise hurts less than with private covariates."""
    c, z = compiled("logistic"), 0.5
    y = outcomes_of("logistic", X, np.random.default_rng(4))
    surrogate = fitted("logistic", X, y, z)
    public, private = expected_shifts(
        design_of("logistic"), c.log_public, surrogate.posterior.mean, 2 * z, 1.0
    )
    assert surrogate.privacy_shift == pytest.approx(public, rel=0.1)
    assert public < 0.75 * private


def test_answers_that_contradict_each_other_are_told():
    """The last one is as from other people: twenty of its sds off."""
    y = outcomes_of("logistic", X, np.random.default_rng(4))
    c, measure = compiled("logistic"), measured(records_of("logistic", X, y), 0.2)
    honest, calls = measure.sum, []

    def sum_of(of, bound, share):
        total, sd = honest(of, bound, share)
        calls.append(share)
        return total + (0 if share < 0.5 else 20 * np.hypot(sd, bound * np.sqrt(N))), sd

    measure.sum = sum_of
    found = fit_design(measure, c.log_public, c.parameters.start, design=design_of("logistic"))
    assert len(calls) > 1
    assert not diagnose(found, c.parameters.labels, c.parameters.largest).usable


def parabola(x, y):
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    mean = a + b**2 + 0 * pm.Data("x", x, dims="unit")
    pm.Normal("y", mean, 1.0, observed=pm.Data("Y", y, dims="unit"), dims="unit")


@pytest.mark.parametrize(("build", "family"), [(logistic, "normal"), (parabola, "polynomial")])
def test_what_shape_a_likelihood_has_is_known_without_asking(build, family, few_moves):
    rng = np.random.default_rng(4)
    straight = build is logistic
    with pm.Model() as model:
        build(
            X if straight else X[:, 1],
            outcomes_of("logistic", X, rng) if straight else rng.normal(1, 1, N),
        )
    step = dp.DPSurrogate(
        epsilon=20.0, delta=1e-5, draws=20, chains=1, model=model, public=["X" if straight else "x"], compile_kwargs=FAST
    )  # fmt: skip
    step.release()
    assert step.diagnostics.family == family
    if straight:
        spent = [name for name in step.guarantee.diagnostics if name.startswith("spent_on")]
        assert spent == ["spent_on_gradients"]


def test_hyperparameters_are_the_priors_own_business():
    """With a public design too: nothing is asked of what the likelihood does not read."""
    rng = np.random.default_rng(7)
    k = rng.integers(6, size=N)
    y = rng.normal(np.linspace(-1, 1, 6)[k], 1.0)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, tau, shape=6)
        pm.Normal("y", u[unit_data("k", k)], 1, observed=unit_data("Y", y), dims="unit")
    step = dp.DPSurrogate(
        epsilon=50.0, delta=1e-5, draws=20, chains=1, model=model, public=["k"], family="normal", compile_kwargs=FAST
    )  # fmt: skip
    surrogate = step.release()
    assert surrogate.arrived
    means = np.array([y[k == g].mean() for g in range(6)])
    assert np.corrcoef(surrogate.posterior.mean[-6:], means)[0, 1] > 0.95


def test_no_outcome_is_held_by_what_is_public():
    """Not a byte of the column, wherever it may be kept; of the covariates all are there."""
    y = np.random.default_rng(8).normal(size=N)
    in_model = compiled("linear").model["Y"].get_value()
    for design in (design_of("linear", X, y), public_design(compiled("linear"))):
        held = cloudpickle.dumps(design)
        assert y.tobytes() not in held
        assert in_model.tobytes() not in held
        assert X.tobytes() in held
