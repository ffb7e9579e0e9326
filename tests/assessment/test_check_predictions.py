"""Posterior predictive checks: what a unit contributes, cost, what leaves, and what they see."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.assessment.checking import PredictionChecks
from pymc_dp.likelihood.outcomes import Outcomes
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.records.curator import Curator

FAST = {"mode": "FAST_COMPILE"}
RUN = {"step": dp.DPPenalty, "chains": 2, "cores": 1, "progressbar": False}
N = 150
MEAN = {"mean": (lambda y: y.mean(), (-3, 3)), "positive": (lambda y: (y > 0).mean(), (0, 1))}


def records(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return x, 0.5 * x + rng.normal(size=n)


def regression(x, y):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * pm.Data("X", x), 1, observed=pm.Data("Y", y))
    return model


@pytest.fixture(scope="module")
def fitted():
    model = dp.compile(regression(*records()), compile_kwargs=FAST)
    return model, dp.sample(40, model=model, epsilon=5.0, **RUN)


@pytest.fixture
def asked(monkeypatch):
    """The records that a curator was given, and what he was asked for."""
    seen = []
    honest = Curator.sum

    def noted(self, of, **keywords):
        seen.append((self._records, of, keywords["bound"]))
        return honest(self, of, **keywords)

    monkeypatch.setattr(Curator, "sum", noted)
    return seen


def check(fitted, statistics=MEAN, **keywords):
    model, idata = fitted
    return dp.check_predictions(
        idata, model, statistics, **{"epsilon": 1.0, "delta": 1e-5, **keywords}
    )


# -- what it says -------------------------------------------------------------------------------------


def test_with_much_budget_the_observed_means_are_exact(fitted):
    found = check(fitted, epsilon=1e7)
    _, y = records()
    np.testing.assert_allclose(found.observed, [y.clip(-3, 3).mean(), (y > 0).mean()], atol=1e-3)
    assert found.replicated.shape == (2, 10)
    assert (found.noise_sd < 1e-3).all()
    # One replicated mean of 150 people has an sd of about 0.1.
    assert abs(found.mean[0] - y.mean()) < 0.4
    assert 0.05 < found.sd[0] < 0.25


def test_replicated_people_have_the_law_of_the_model_at_their_own_covariates(fitted, asked):
    """A statistic of one side of the covariates' range cannot be had; each unit's standing can."""
    check(fitted, {"y": (lambda y: y[0], (-10, 10))}, replicates=100)
    records_, of, _ = asked[0]
    standing = np.concatenate(list(of.terms(records_))) * 10
    x, y = records()
    np.testing.assert_allclose(standing[:, 0], y)
    b = fitted[1]["posterior"]["b"].values.ravel()
    # Residuals of 100 draws at each of 150 covariates: mean within 4.5 standard errors, variance 1.
    error = standing[:, 1:].mean(axis=1) - b.mean() * x
    assert np.abs(error).max() < 4.5 / np.sqrt(100)
    assert standing[:, 1:].var(axis=1).mean() == pytest.approx(1, abs=0.1)


@pytest.mark.sweep
def test_a_model_that_is_wrong_is_found_out_and_a_right_one_is_not():
    rng, n = np.random.default_rng(1), 1000
    statistics = {"zeros": (lambda y: (y == 0).mean(), (0, 1))}
    found = {}
    for name, spread in (("right", 1e6), ("wrong", 1.0)):
        y = rng.poisson(2 * rng.gamma(spread, 1 / spread, n))
        with pm.Model() as model:
            pm.Poisson("y", pm.Gamma("rate", 2, 1), observed=pm.Data("Y", y))
        compiled = dp.compile(model, compile_kwargs=FAST)
        idata = dp.sample(100, model=compiled, epsilon=5.0, **RUN)
        # Draws of the exact posterior in place of a short chain's.
        idata["posterior"]["rate"].values[...] = rng.gamma(2 + y.sum(), 1 / (1 + n), (2, 100))
        found[name] = dp.check_predictions(idata, compiled, statistics, epsilon=2.0).p[0]
    assert found["wrong"] < 1e-3
    assert 0.01 < found["right"] < 0.99


@pytest.mark.sweep
def test_under_the_model_p_values_are_spread_evenly():
    """Observed people are drawn as replicated ones are: at a fixed parameter, uniform p."""
    rng, ps = np.random.default_rng(5), []
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1e-6)
        pm.Normal("y", b, 1, observed=pm.Data("Y", rng.normal(size=25)))
    compiled = dp.compile(model, compile_kwargs=FAST)
    idata = dp.sample(20, model=compiled, epsilon=5.0, **RUN)
    for _ in range(60):
        (leaf,) = compiled.roles.record_data
        leaf.values[...] = rng.normal(size=25)
        ps.append(check((compiled, idata), {"m": (lambda y: y.mean(), (-3, 3))}, epsilon=5.0).p[0])
    # Kolmogorov's distance of 60 uniform numbers exceeds 0.21 once in a hundred times.
    assert np.abs(np.sort(ps) - (np.arange(60) + 0.5) / 60).max() < 0.21


def test_a_unit_with_several_records_is_one_and_several_outcomes_come_by_name():
    rng = np.random.default_rng(0)
    y, z = rng.normal(size=(2, 60))
    with pm.Model() as model:
        m = pm.Normal("m", 0, 1)
        pm.Normal("y", m, 1, observed=pm.Data("Y", y))
        pm.Normal("z", m, 1, observed=pm.Data("Z", z))
    people = np.repeat(np.arange(20), 3)
    compiled = dp.compile(model, unit=people, compile_kwargs=FAST)
    idata = dp.sample(10, model=compiled, epsilon=5.0, **RUN)
    both = {"both": (lambda o: o["y"].sum() * (o["z"].shape == (3,)), (-50, 50))}
    # On one record of zeros the statistic is 0, so that is no refusal.
    found = check((compiled, idata), both, epsilon=1e7, replicates=2)
    assert found.observed[0] == pytest.approx(y.sum() / 20, abs=0.01)


# -- sensitivity --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -1e308])
def test_no_unit_adds_more_than_its_bound_and_none_changes_another(fitted, asked, spoilt):
    noise = InsecureSeededNoise(3)
    check(fitted, noise_source=noise)
    x, y = records()
    x[7], y[7] = 1e200, spoilt if np.isfinite(spoilt) else y[7]
    changed = dp.compile(regression(x, y), compile_kwargs=FAST)
    failing = {
        name: (lambda y, f=f: f(y) if abs(y).max() < 1e100 else spoilt, r)
        for name, (f, r) in MEAN.items()
    }
    check((changed, fitted[1]), failing, noise_source=noise)
    (one, of, bound), (other, _, _) = asked
    before, after = (np.concatenate(list(of.terms(r))) for r in (one, other))
    for standing in (before, after):
        assert np.isfinite(standing).all()
        assert (np.linalg.norm(standing, axis=1) <= bound).all()
    others = np.arange(N) != 7
    np.testing.assert_array_equal(before[others], after[others])
    assert not np.array_equal(before[7], after[7])
    moved = np.linalg.norm(one.total(of, bound) - other.total(of, bound))
    assert moved <= SUBSTITUTE_ONE.of_sum(RESOLUTION)
    assert bound == np.sqrt(of.dimension)


def test_statistics_that_raise_count_as_the_middle(fitted, asked):
    def fails(y):
        if y.any():
            raise RuntimeError("about this record")
        return 0.0

    found = check(fitted, {"fails": (fails, (2, 4))}, epsilon=1e7)
    assert found.observed[0] == pytest.approx(3, abs=1e-3)


# -- cost, and what leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [SUBSTITUTE_ONE, ADD_OR_REMOVE])
def test_it_costs_what_was_asked_for(fitted, neighbours):
    ledger = dp.PrivacyLedger(epsilon=2.0, delta=1e-5, neighbours=neighbours.name)
    found = check(fitted, epsilon=0.75, ledger=ledger, neighbours=neighbours.name, replicates=3)
    assert ledger.spent() == pytest.approx(0.75, rel=1e-6)
    assert "(0.75, 1e-05)-differentially private" in str(found)


def test_nothing_is_read_before_it_is_paid_for(fitted, monkeypatch):
    read = []
    monkeypatch.setattr(
        "pymc_dp.assessment.checking._Replications.standings",
        lambda self: read.append(1) or iter([]),
    )
    ledger = dp.PrivacyLedger(epsilon=0.5, delta=1e-5)
    with pytest.raises(dp.PrivacyBudgetExceeded, match="Nothing was released"):
        check(fitted, epsilon=0.6, ledger=ledger)
    assert not read
    check(fitted, epsilon=0.4, ledger=ledger)
    assert read


def test_the_table_is_a_function_of_releases_alone(fitted, canned_totals):
    canned_totals(lambda size, B, _: B * np.random.default_rng(size).normal(size=size))
    x, y = records(4)
    x[:2], y[:2] = 1e308, -1e308
    other = dp.compile(regression(x, y), compile_kwargs=FAST)
    with np.errstate(all="raise"):
        tables = [str(check(pair, replicates=2)) for pair in (fitted, (other, fitted[1]))]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        ({}, "takes a function"),
        ({"m": lambda y: 1.0}, "takes a function"),
        ({"m": (1.0, (0, 1))}, "needs a function"),
        ({"m": (lambda y: 0.0, (1, 1))}, "low before high"),
        ({"m": (lambda y: 0.0, (0, np.inf))}, "finite range"),
        ({"m": (lambda y: y.nothing, (0, 1))}, "'m' fails on one record.*AttributeError"),
        ({"m": (lambda y: y, (0, 1))}, None),
    ],
)
def test_what_cannot_be_computed_is_refused_before_anything_is_spent(fitted, statistics, said):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    if said is None:  # an array of one number is a number
        assert isinstance(check(fitted, statistics, ledger=ledger, replicates=2), PredictionChecks)
        return
    with pytest.raises(dp.PrivacyConfigurationError, match=said):
        check(fitted, statistics, ledger=ledger)
    assert not ledger.runs()


def test_outcomes_that_a_function_draws_are_refused():
    """It may have captured records."""
    with pm.Model() as model:
        m = pm.Normal("m", 0, 1)
        pm.CustomDist(
            "y", m, logp=lambda y, m: -((y - m) ** 2),
            random=lambda m, rng=None, size=None: rng.normal(m, 1, size), observed=np.arange(9.0),
        )  # fmt: skip
    idata = dp.sample(10, model=model, epsilon=5.0, **RUN)
    with pytest.raises(dp.UnsupportedModelError, match="drawn by a function of yours"):
        dp.check_predictions(idata, model, MEAN, epsilon=1.0)


def test_an_index_out_of_range_is_the_nearest(asked):
    """An error would make others count as the middle, and numba would read what lies beside the array."""

    def grouped(index):
        group = np.arange(N) % 3
        group[7] = index
        with pm.Model() as model:
            a = pm.Normal("a", 0, 1, shape=3)
            pm.Normal("y", a[pm.Data("group", group)], 1, observed=pm.Data("Y", records()[1]))
        return dp.compile(model, compile_kwargs=FAST)

    idata = dp.sample(10, model=grouped(2), epsilon=5.0, **RUN)
    asked.clear()
    for index in (2, 98765):
        check((grouped(index), idata), noise_source=InsecureSeededNoise(3))
    one, other = (np.concatenate(list(of.terms(records_))) for records_, of, _ in asked)
    np.testing.assert_array_equal(one, other)


def test_outcomes_that_cannot_be_drawn_count_as_the_middle(fitted, monkeypatch):
    """An exception would tell of the person whose covariates make it."""
    model, idata = fitted
    draw = Outcomes.draw

    def fails(self, point, n, rows):
        if float(rows[0].ravel()[0]) > 0:
            raise ValueError("about this record")
        return draw(self, point, n, rows)

    monkeypatch.setattr(Outcomes, "draw", fails)
    asked = {"mean": (lambda y: y.mean(), (-100, 300))}
    found = dp.check_predictions(idata, model, asked, epsilon=1e4, delta=1e-5, replicates=2)
    assert np.isfinite(found.replicated).all()
    assert (found.replicated > 20).all()  # about half of them are at 100, the middle


@pytest.mark.parametrize("where", ["prior", "start"])
def test_a_prior_that_reads_a_private_number_of_units_is_refused(fitted, where):
    _, idata = fitted
    _, y = records()
    with pm.Model() as model:
        Y = pm.Data("Y", y)
        if where == "prior":
            pm.Normal("z", 0, 1 / Y.shape[0])
        else:
            pm.Normal("z", 0, 1, initval=1 / Y.shape[0])
        pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=Y)
    with pytest.raises(dp.UnsupportedModelError, match="number of records, which is private"):
        dp.check_predictions(
            idata, model, {"mean": (lambda y: y.mean(), (0, 1))}, epsilon=1.0, delta=1e-5,
            neighbours="add-or-remove",
        )  # fmt: skip
