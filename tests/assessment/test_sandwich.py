"""Sandwich widths: what they are without noise, sensitivity, cost, what leaves, and what is refused."""

from html import escape

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.assessment.predictive import Squares
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.privacy.clipping import RESOLUTION, clipped_sum
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.records.queries import Gradient
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.normal.law import Law

FAST = {"mode": "FAST_COMPILE"}
RUN = {"step": dp.DPSurrogate, "family": "normal", "chains": 2, "cores": 1, "progressbar": False}
N = 10_000
MUCH = {"epsilon": 1e6, "delta": 1e-6}


@pytest.fixture(autouse=True)
def interpreted(interpret):
    """As everything else here: what PyMC compiles for its own ends."""


def records(wrong, n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    rate = np.exp(0.5 + 0.5 * x) * (rng.gamma(2, 1 / 2, n) if wrong else 1)
    return x, rng.poisson(rate)


def poisson(x, y, prior_sd=10):
    with pm.Model() as model:
        b = pm.Normal("b", 0, prior_sd, shape=2)
        pm.Deterministic("ratio", pm.math.exp(b[1]))
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * pm.Data("x", x)), observed=pm.Data("Y", y))
    return model


def sampled(model, **settings):
    """A run whose draws are of the law's normal approximation: NUTS would take longer than all the rest."""

    def normal(density, start, draws, chains, seed, sampler):
        return start + np.random.default_rng(seed).standard_normal((chains, draws, len(start)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_dp.surrogate.normal.draws.draws_of", normal)
        return dp.sample(2000, model=model, **(RUN | MUCH | settings))


def fitted(wrong, unit=None, **settings):
    model = dp.compile(poisson(*records(wrong)), unit=unit, compile_kwargs=FAST)
    return model, sampled(model, **settings)


@pytest.fixture(scope="module")
def wrong():
    """A Poisson model of overdispersed counts, and draws that hardly have noise in them."""
    return fitted(True)


@pytest.fixture(scope="module")
def noisy():
    """The same with noise that is about as large as the posterior."""
    return fitted(True, epsilon=2.0, delta=1e-5)


def by_hand(model, mean, unit=None):
    """Information and squares of scores of a Poisson regression."""
    x, y = (
        leaf.values for leaf in sorted(model.roles.record_data, key=lambda leaf: leaf.name != "x")
    )
    X = np.column_stack([np.ones(len(x)), x])
    mu = np.exp(X @ mean)
    scores = (y - mu)[:, None] * X
    if unit is not None:
        scores = np.array([scores[unit == k].sum(axis=0) for k in np.unique(unit)])
    return (X * mu[:, None]).T @ X, scores.T @ scores


def covariance(draws):
    return np.cov(draws["b"].values.reshape(-1, 2).T)


# -- what it is without noise -------------------------------------------------------------------------


def test_without_noise_it_is_hubers_sandwich(wrong):
    model, idata = wrong
    found = dp.sandwich(idata, model, **MUCH)
    J, M = by_hand(model, found.mean)
    expected = np.linalg.inv(J) @ M @ np.linalg.inv(J)
    # Of 4,000 draws an sd is known to 1/√8000; information is drawn, of 8 outcomes a record.
    np.testing.assert_allclose(np.sqrt(np.diag(expected)), found.sandwich_sd, rtol=0.06)
    np.testing.assert_allclose(np.diag(covariance(found.draws)), found.sandwich_sd**2, rtol=0.01)
    assert (found.misfit > 1.2).all()
    assert "too narrow; they have to be wider for b[" in found.statement


def test_a_right_model_keeps_its_draws():
    model, idata = fitted(False)
    found = dp.sandwich(idata, model, **MUCH)
    before = groups_of(idata)["posterior"]
    # M varies by about √(2/N) · √(kurtosis), J by its 8 outcomes.
    np.testing.assert_allclose(found.misfit, 1, atol=0.08)
    np.testing.assert_allclose(
        found.draws["b"].values.mean(axis=(0, 1)), before["b"].values.mean(axis=(0, 1)), atol=1e-9
    )
    np.testing.assert_allclose(found.draws["b"], before["b"], atol=0.1 * before["b"].std().item())
    assert found.finding.startswith("Nothing that was seen says")


def test_noise_in_the_draws_is_kept_and_not_scaled(noisy):
    """The covariance is Σ + Σ H'(M - J) H Σ: widths of what is noise stay."""
    model, idata = noisy
    found = dp.sandwich(idata, model, **MUCH)
    _, law = Law.from_json(root_attrs(idata)["privacy_law"])
    _, M = by_hand(model, found.mean)
    before = covariance(groups_of(idata)["posterior"])
    H = np.linalg.solve(law.J + law.S, law.J)
    expected = before + before @ H.T @ (M - law.J) @ H @ before
    np.testing.assert_allclose(
        covariance(found.draws), expected, rtol=0.02, atol=0.02 * expected.max()
    )


def test_several_records_of_a_unit_count_together():
    unit = np.repeat(np.arange(N // 4), 4)
    x, y = records(True)
    x, y = np.repeat(x[::4], 4), np.repeat(y[::4], 4)
    model = dp.compile(poisson(x, y), unit=unit, compile_kwargs=FAST)
    found = dp.sandwich(sampled(model), model, **MUCH)
    J, M = by_hand(model, found.mean, unit)
    expected = np.sqrt(np.diag(np.linalg.inv(J) @ M @ np.linalg.inv(J)))
    # Information is of drawn outcomes, by which an sd is off by .03 (six runs, and six of another version).
    np.testing.assert_allclose(found.sandwich_sd, expected, rtol=0.12)
    assert (found.misfit > 2).all()  # four copies of everybody


def test_draws_are_of_all_variables_on_their_own_scale(wrong):
    model, idata = wrong
    found = dp.sandwich(idata, model, **MUCH)
    assert set(found.draws.data_vars) == {"b", "ratio"}
    np.testing.assert_allclose(found.draws["ratio"], np.exp(found.draws["b"][..., 1]))
    assert "b[1]" in az.summary(found.draws).index
    assert list(found.table.index) == ["b[0]", "b[1]"]
    assert "misfit" in str(found)
    assert "<table>" in found._repr_html_()


def test_parameters_that_no_record_reads_are_carried_along():
    rng = np.random.default_rng(3)
    group = rng.integers(5, size=N)
    y = rng.normal(size=N) * (1 + 2 * (group == 2))
    with pm.Model() as built:
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", 0, tau, shape=5)
        pm.Normal("y", a[pm.Data("group", group)], 1.0, observed=pm.Data("Y", y))
    model = dp.compile(built, compile_kwargs=FAST)
    found = dp.sandwich(sampled(model, epsilon=20.0, delta=1e-5), model, **MUCH)
    misfit = dict(zip(found.parameters, found.misfit, strict=True))
    # Its residuals have three times the sd that the model says, where its prior is flat.
    assert misfit["a[2]"] == pytest.approx(3, rel=0.25)
    assert misfit["a[0]"] < 1.2
    assert 0.99 < misfit["tau (log)"] < 2
    assert (found.draws["tau"] > 0).all()


def test_scores_that_seem_small_leave_the_models_widths():
    """Outcomes have half of the sd that the model says, about."""
    x, y = records(False)
    mean = np.exp(0.5 + 0.5 * x)
    y = np.rint(mean + (y - mean) / 2)
    model = dp.compile(poisson(x, y), compile_kwargs=FAST)
    found = dp.sandwich(sampled(model), model, **MUCH)
    np.testing.assert_allclose(found.misfit, 1, atol=1e-6)
    assert (found.seen < 0.6).all()
    assert "Scores seem to vary less than the model says for b[0], b[1]" in found.finding


# -- sensitivity --------------------------------------------------------------------------------------


class Rows:
    """A query whose terms are given."""

    dimension = 2

    def terms(self, records, units=None):
        yield np.asarray(records, float)


SCORES = [[0, 0], [1e9, 0], [0, 1e9], [-1e9, 1e-3], [3, -4], [0.1, 0.1], [np.nan, 1], [np.inf, 0]]


@pytest.mark.parametrize("b", [0.01, 0.7, 30.0])
def test_no_unit_moves_the_squares_further_than_their_sensitivity(b):
    """Every pair of units, replaced and left out: by brute force."""
    of = Squares(Rows(), b)
    images = np.array([clipped_sum(of.terms([z]), b**2, of.dimension) for z in SCORES])
    furthest = np.linalg.norm(images[:, None] - images, axis=2).max()
    assert furthest <= SUBSTITUTE_ONE.of_acute_sum(RESOLUTION)
    assert furthest > 1.41 * RESOLUTION  # the bound is met: the test sees something
    assert np.linalg.norm(images, axis=1).max() <= ADD_OR_REMOVE.of_acute_sum(RESOLUTION)


def test_scores_in_some_directions_are_those_of_a_unit_alone(wrong):
    model, _ = wrong
    W = np.array([[0.1], [0.2]])
    of = Gradient(np.array([0.5, 0.5]), W)
    assert of.dimension == 1
    (terms,) = of.terms(LocalRecords(model, derivatives=1))
    x, y = (
        leaf.values for leaf in sorted(model.roles.record_data, key=lambda leaf: leaf.name != "x")
    )
    residual = y - np.exp(0.5 + 0.5 * x)
    np.testing.assert_allclose(terms[:, 0], residual * (0.1 + 0.2 * x), rtol=1e-9, atol=1e-9)


# -- cost, and what leaves ----------------------------------------------------------------------------


def test_it_costs_what_was_asked_for(noisy):
    model, idata = noisy
    ledger = dp.PrivacyLedger(epsilon=3.0, delta=1e-6)
    found = dp.sandwich(idata, model, epsilon=1.25, ledger=ledger)
    (plan,) = ledger.runs()
    assert ledger.spent() == pytest.approx(1.25, rel=1e-6)
    assert [type(event) for event in plan.events] == [Gaussian]
    assert "sandwich" in plan.description
    assert "(1.25, 1e-06)-differentially private" in found.statement
    assert "both costs add up" in found.statement


@pytest.mark.parametrize("neighbours", [SUBSTITUTE_ONE, ADD_OR_REMOVE])
def test_releases_stay_within_the_filter(noisy, neighbours, monkeypatch):
    taken, permit = [], PrivacyFilter.permit

    def noted(self, share, count=1):
        taken.append(share)
        return permit(self, share, count)

    monkeypatch.setattr(PrivacyFilter, "permit", noted)
    model, idata = noisy
    dp.sandwich(idata, model, epsilon=2.0, delta=1e-5, neighbours=neighbours.name)
    assert sum(taken) == pytest.approx(1, abs=1e-6)


def test_nothing_is_read_before_it_is_paid_for(noisy, monkeypatch):
    read, gradients = [], LocalRecords.gradients

    def noted(self, *args):
        read.append(1)
        return gradients(self, *args)

    monkeypatch.setattr(LocalRecords, "gradients", noted)
    model, idata = noisy
    ledger = dp.PrivacyLedger(epsilon=0.5, delta=1e-6)
    with pytest.raises(dp.PrivacyBudgetExceeded, match=r"sandwich .* Nothing was released"):
        dp.sandwich(idata, model, epsilon=0.6, ledger=ledger)
    assert not read
    assert not ledger.runs()
    dp.sandwich(idata, model, epsilon=0.4, ledger=ledger)
    assert read


def test_noise_that_is_insecure_is_said_to_be(noisy):
    model, idata = noisy
    found = dp.sandwich(idata, model, epsilon=1.0, noise_source=InsecureSeededNoise(1))
    assert "NOT PRIVATE" in str(found)


def test_a_report_says_what_was_found_and_what_it_cost(noisy, wrong):
    model, idata = noisy
    found = dp.sandwich(idata, model, epsilon=1.0, delta=1e-5)
    report = dp.privacy_report(idata, sandwich=found)
    assert found.finding in str(report)
    assert "(1, 1e-05)-differentially private" in report.misfit
    assert escape(found.finding) in report.to_html()
    assert dp.privacy_report(idata).misfit == ""
    with pytest.raises(dp.PrivacyConfigurationError, match="of other draws"):
        dp.privacy_report(wrong[1], sandwich=found)


# -- what is refused ------------------------------------------------------------------------------------


def refused(match, result, model, **settings):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(dp.PrivacyError, match=match):
        dp.sandwich(result, model, epsilon=0.5, ledger=ledger, **settings)
    assert not ledger.runs()


def test_results_that_have_no_law_of_these_people_are_refused_before_anything_is_spent(noisy):
    model, idata = noisy
    attrs, groups = root_attrs(idata), groups_of(idata)

    def with_attrs(**changed):
        return from_groups(groups, attrs | changed, like=idata)

    lawless = {k: v for k, v in attrs.items() if k != "privacy_law"}
    refused("has no normal law", from_groups(groups, lawless, like=idata), model)
    refused("have not been released", from_groups(groups, {}, like=idata), model)
    refused("not usable", with_attrs(privacy_usable=0), model)
    refused("combined from several", with_attrs(privacy_combined="{}"), model)
    refused("carry no guarantee", with_attrs(privacy_valid=0), model)
    refused("`unit` as it was given", with_attrs(privacy_unit="one clinic"), model)
    few = {
        name: group.isel(draw=slice(2), chain=slice(1))
        for name, group in groups.items()
        if "draw" in group.dims
    }
    refused("do not tell a covariance", from_groups({**groups, **few}, attrs, like=idata), model)
    x, y = records(True)
    with pm.Model() as other:
        a = pm.Normal("a", 0, 1, shape=2)
        pm.Poisson("y", pm.math.exp(a[0] + a[1] * x), observed=y)
    refused("has the parameters b", idata, other)


def test_a_model_whose_outcomes_cannot_be_drawn_is_refused():
    y = np.random.default_rng(4).normal(size=N)
    with pm.Model() as built:
        a = pm.Normal("a", 0, 1)
        pm.CustomDist("y", a, logp=lambda y, a: -((y - a) ** 2) / 2, observed=y)
    model = dp.compile(built, compile_kwargs=FAST)
    result = sampled(model, epsilon=5.0, delta=1e-5)
    refused("cannot be drawn by PyMC's own laws", result, model)
