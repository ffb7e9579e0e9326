"""The last query of a normal surrogate: by the ℓ2 mechanism where a run has no other to share its account with."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.privacy.events import Gaussian, GaussianOrL2, L2Mechanism
from pymc_dp.records.curator import Curator

FAST = {"mode": "FAST_COMPILE"}


def regression(n=5_000, d=2, seed=5):
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=(n, d)), -3, 3)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        eta = pm.math.dot(pm.Data("X", x), beta)
        y = (rng.random(n) < 1 / (1 + np.exp(-x.sum(axis=1)))).astype(int)
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model


def step_of(model, epsilon=8.0, **keywords):
    given = {"family": "normal", "draws": 50, "chains": 1, "delta": 1e-5, "compile_kwargs": FAST}
    return dp.DPSurrogate(model=model, epsilon=epsilon, **(given | keywords))


@pytest.fixture
def asked(monkeypatch):
    """Sums that the curator was asked for, in order: their dimensions, and whether by the ℓ2 mechanism."""
    found = []
    for name in ("sum", "l2_sum"):
        whole = getattr(Curator, name)

        def noted(self, of, *, _name=name, _whole=whole, **keywords):
            found.append((_name, of.dimension))
            return _whole(self, of, **keywords)

        monkeypatch.setattr(Curator, name, noted)
    monkeypatch.setattr("pymc_dp.steps.normal.draw", lambda *_: np.zeros((1, 50, 2)))
    return found


def test_it_is_by_the_l2_mechanism_once_and_at_the_end(asked):
    step = step_of(regression(), noise_source=dp.InsecureSeededNoise(3))
    step.release()
    assert step.diagnostics.usable
    assert asked[-1] == ("l2_sum", 2)
    assert [name for name, _ in asked].count("l2_sum") == 1
    assert sum(v for k, v in step.guarantee.diagnostics.items() if k.startswith("spent_on_")) == (
        pytest.approx(1)
    )


def test_it_is_about_what_the_likelihood_reads_alone(asked, monkeypatch):
    """Of three levels and their spread, three numbers are released."""
    rng = np.random.default_rng(8)
    group = rng.integers(3, size=6_000)
    with pm.Model() as model:
        level = pm.Normal("level", 0, pm.HalfNormal("spread", 1), shape=3)
        y = rng.normal(np.array([-1.0, 0.0, 1.0])[group], 1.0)
        pm.Normal("y", level[pm.Data("group", group)], 1, observed=pm.Data("Y", y))
    step = step_of(model, noise_source=dp.InsecureSeededNoise(3), unit=0)
    step.release()
    assert step.diagnostics.usable
    assert asked[-1] == ("l2_sum", 3)


def test_a_search_that_is_lost_does_without(asked):
    step = step_of(regression(), epsilon=0.5, noise_source=dp.InsecureSeededNoise(3))
    step.release()
    assert {name for name, _ in asked} == {"sum"}


def test_what_it_costs_is_planned_and_no_more_than_was_asked_for():
    step = step_of(regression(), epsilon=3.0)
    first, choice = step.guarantee.once
    assert isinstance(first, Gaussian)
    assert isinstance(choice, GaussianOrL2)
    assert choice.dimension == 2
    assert 2.999 < step.guarantee.epsilon <= 3.0
    assert "ℓ2 mechanism" in str(dp.plan(step))


@pytest.mark.parametrize("neighbours", ["substitute-one", "add-or-remove"])
def test_an_account_with_room_for_other_runs_does_not_pay_for_it(neighbours):
    ledger = dp.PrivacyLedger(epsilon=8.0, delta=1e-5, neighbours=neighbours)
    step = step_of(regression(), epsilon=3.0, ledger=ledger, neighbours=neighbours)
    assert [type(event) for event in step.guarantee.once] == [Gaussian]
    assert "other runs of the account" in str(dp.plan(step))


def test_many_parameters_have_a_gaussian_one():
    step = step_of(regression(d=9))
    assert [type(event) for event in step.guarantee.once] == [Gaussian]
    assert "as good here" in str(dp.plan(step))


def test_its_noise_is_that_of_the_mechanism():
    """In a place where all sums are known: squares of what is off add up to the variance that is said."""
    from pymc_dp.privacy.events import L2Option
    from pymc_dp.privacy.filter import PrivacyFilter
    from pymc_dp.privacy.plans import Permit
    from pymc_dp.records.measurements import PaidMeasurements
    from pymc_dp.records.queries import Gradient
    from pymc_dp.records.sums import LocalRecords

    records = LocalRecords(dp.compile(regression(500), compile_kwargs=FAST), 1)
    of, option, off = Gradient(np.zeros(2)), L2Option(0.7, 2, 0.5), []
    exact = sum(chunk.sum(axis=0) for chunk in of.terms(records))
    for seed in range(400):
        events = option.events(1.0)
        privacy_filter = PrivacyFilter(Permit(0, seed, events), 1.0, option)
        measure = PaidMeasurements(Curator(records, dp.InsecureSeededNoise(seed)), privacy_filter)
        assert measure.before_last_sum == 0.5
        total, sd = measure.last_sum(of, 10.0)  # no gradient is longer
        off.append((total - exact) / sd)
        assert measure.before_last_sum == 0
        assert privacy_filter.close() == (L2Mechanism(0.7, 2),)
    assert sd == pytest.approx(2 * 10.0 * 0.7 * np.sqrt(3))
    # The fourth moment of a density of e^-|x| in two dimensions makes the spread of a square 1.8.
    squares = np.square(off)
    assert abs(squares.mean() - 1) < 5 * squares.std() / np.sqrt(squares.size)
