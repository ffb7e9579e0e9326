"""The privacy shift that is expected on made-up data is the one that comes out on others."""

import logging
import math
import re
from functools import cache

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.evidence.expected import find_epsilon

from .marks import slow_but

N = 20_000
FAST = {"mode": "FAST_COMPILE"}


def design(seed):
    rng = np.random.default_rng(seed)
    return np.column_stack([np.ones(N), np.clip(rng.normal(size=(N, 3)), -3, 3)])


def regression(X, y, likelihood):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.5, shape=4)
        eta, observed = pm.Data("X", X) @ beta, pm.Data("Y", y)
        if likelihood == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, observed=observed)
        else:
            pm.Normal("y", eta, pm.HalfNormal("sigma", 1), observed=observed)
    return model


def outcomes(X, likelihood):
    rng = np.random.default_rng(9)
    eta = X @ [0.2, -0.4, 0.3, 0.5]
    if likelihood == "bernoulli":
        return (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(int)
    return rng.normal(eta, 0.8)


@cache
def without_data():
    """The model alone, compiled once: what is expected depends on no data."""
    model = regression(np.zeros((N, 4)), np.zeros(N, dtype=int), "bernoulli")
    return dp.compile(model)


@pytest.mark.parametrize("likelihood", slow_but("bernoulli")(["bernoulli", "normal"]))
def test_the_privacy_shift_of_a_run_is_within_half_as_much_again(likelihood, monkeypatch):
    """The median of five runs: single ones may be half as much again off, by what their queries cost."""
    # Of a run's law nothing is drawn: NUTS takes longer than all the rest.
    monkeypatch.setattr(
        "pymc_dp.steps.normal.draw",
        lambda surrogate, prior, draws, chains, sampler: np.zeros((chains, draws, 1)),
    )
    X = design(8)
    model = dp.compile(regression(X, outcomes(X, likelihood), likelihood), compile_kwargs=FAST)
    expected = dp.expected_privacy_shift(model, epsilon=1.0, data={"X": design(1)}, runs=5)
    shift = np.median([
        dp.DPSurrogate(
            family="normal", draws=1, chains=1, epsilon=1.0, model=model,
            noise_source=dp.InsecureSeededNoise(seed),
        ).release().privacy_shift
        for seed in range(5)
    ])  # fmt: skip
    assert shift / 1.5 < expected.privacy_shift < 1.5 * shift
    assert expected.least <= expected.privacy_shift <= expected.most
    assert f"{expected.privacy_shift:.2g}" in str(expected)


def test_an_epsilon_is_found_for_a_shift():
    model = without_data()
    found = dp.expected_privacy_shift(model, shift=0.3, data={"X": design(1)}, runs=3)
    assert 0.28 < found.privacy_shift < 0.32
    assert 0.5 < found.epsilon < 5
    again = dp.expected_privacy_shift(model, epsilon=found.epsilon, data={"X": design(1)}, runs=3)
    assert again.privacy_shift == pytest.approx(found.privacy_shift)


def test_the_real_data_do_not_enter(caplog):
    """Other data of the same size: the same answer, to the last bit, and nothing in the log."""
    said = []
    with caplog.at_level(logging.INFO, "pymc"):
        for seed in (2, 3):
            X = design(seed)
            model = regression(X, outcomes(X, "bernoulli"), "bernoulli")
            said.append(
                str(dp.expected_privacy_shift(model, epsilon=2.0, data={"X": design(1)}, runs=1))
            )
    assert said[0] == said[1]
    assert not caplog.records


def test_a_compiled_model_gives_the_same():
    model = without_data()
    asked = {"epsilon": 1.0, "data": {"X": design(1)}, "runs": 1}
    said = str(dp.expected_privacy_shift(model.model, **asked))
    assert str(dp.expected_privacy_shift(model, **asked)) == said


def test_it_is_priced_as_the_run_is(monkeypatch):
    """The last query is by the ℓ2 mechanism, and of what the likelihood reads: three levels, and not their spread."""
    with pm.Model() as model:
        level = pm.Normal("level", 0, pm.HalfNormal("spread", 1), shape=3)
        pm.Normal("y", level[pm.Data("group", np.zeros(N, dtype=int))], 1, observed=pm.Data("Y", np.zeros(N)))  # fmt: skip
    compiled = dp.compile(model, compile_kwargs=FAST)
    asked = {"data": {"group": np.arange(N) % 3}, "truth": {"level": [0.5, 0.0, -1.0]}, "runs": 3}
    found = dp.expected_privacy_shift(compiled, epsilon=1.0, **asked)
    assert found.labels == ("level[0]", "level[1]", "level[2]")
    monkeypatch.setattr("pymc_dp.steps.normal.NormalFamily.last_sum", lambda *_: None)
    gaussian = dp.expected_privacy_shift(compiled, epsilon=1.0, **asked)
    assert found.privacy_shift < 0.85 * gaussian.privacy_shift


def test_what_was_seen_is_said_where_no_epsilon_is_found():
    model = without_data()
    with pytest.raises(dp.PrivacyConfigurationError) as refusal:
        dp.expected_privacy_shift(model, shift=1e-5, data={"X": design(1)}, runs=1)
    said = str(refusal.value)
    assert re.match(r"Not found in \d+ trials", said)
    assert "by ε" in said
    assert "It takes more records" in said


def test_a_run_that_is_not_usable_does_not_count_as_a_good_one():
    """A lost search has moved nothing, by its own account."""
    model = without_data()
    found = dp.expected_privacy_shift(model, epsilon=0.002, data={"X": design(1)}, runs=3)
    assert found.usable == 0
    assert found.privacy_shift == np.inf
    assert "0% of the runs" in str(found)


@pytest.mark.parametrize(
    ("shift_at", "epsilon"),
    [
        (lambda e: 1 / e, 2.0),
        (lambda e: 0.02 / e**2, 0.2),
        (lambda e: 90 / e, 180.0),
        (lambda e: math.inf if e < 0.3 else 0.1 / e, 0.3),  # over what is wanted in a jump
        (lambda e: 1 / e * (1.3 if int(7 * e) % 2 else 0.8), 2.0),  # not monotone
    ],
)
def test_the_epsilon_that_exists_is_found(shift_at, epsilon):
    found = find_epsilon(shift_at, 0.5)
    assert epsilon / 1.4 < found < 1.4 * epsilon
    assert shift_at(found) < 0.5 * 1.05


@pytest.mark.parametrize("asked", [{}, {"epsilon": 1.0, "shift": 0.3}, {"shift": -1.0}])
def test_what_cannot_be_asked(asked):
    model = without_data()
    with pytest.raises(dp.PrivacyConfigurationError):
        dp.expected_privacy_shift(model, data={"X": design(1)}, **asked)


def drawn_by_a_function(b):
    pm.CustomDist(
        "z", b, dist=lambda b, size: pm.Normal.dist(b, 1, size=size), observed=np.zeros(N)
    )


def told_by_a_prior(b):
    pm.Normal("c", 0, 1 / pm.modelcontext(None)["Y"].shape[0])


@pytest.mark.parametrize(
    ("spoil", "given", "words"),
    [
        (lambda b: None, {}, r"'X', whose values are not looked at.*`data="),
        (drawn_by_a_function, {"data": {"X": np.zeros((N, 4))}}, "'z' is drawn by a function of yours"),
        (
            told_by_a_prior,
            {"data": {"X": np.zeros((N, 4))}, "delta": 1e-6, "neighbours": "add-or-remove"},
            "number of records, which is private",
        ),
    ],
)  # fmt: skip
def test_what_would_take_more_than_made_up_data_is_refused(spoil, given, words):
    model = regression(design(2), np.zeros(N), "normal")
    with model:
        spoil(model["beta"][0])
    with pytest.raises(dp.PrivacyError, match=words):
        dp.expected_privacy_shift(model, epsilon=1.0, **given)
