"""One compiled model for many steps: the same draws, nothing compiled twice, nothing compiled too early."""

from functools import partial

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_dp as dp

FAST = {"mode": "FAST_COMPILE"}
N = 300
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 2)), RNG.integers(2, size=N)
PEOPLE = np.repeat(np.arange(N // 3), 3)


@pytest.fixture
def model():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=pm.Data("Y", Y))
    return model


@pytest.fixture
def no_compiler(monkeypatch):
    """Makes whatever compiles a function fail, from when it is called; but for initial points, which have no inputs."""
    function = pytensor.function

    def compiled(inputs, *args, **kwargs):
        assert not inputs, "compiled"
        return function(inputs, *args, **kwargs)

    return lambda: monkeypatch.setattr(pytensor, "function", compiled)


STEPS = [
    (dp.DPPenalty, {}),
    (dp.DPHMC, {"n_leapfrog": 2}),
    (dp.DPBarker, {"tempering": 0.1}),
    (dp.experimental.DPSGLD, {}),
    (partial(dp.DPSurrogate, family="normal"), {}),
]


def draws(step_type, settings, model, quiet, **run):
    step = step_type(
        draws=5, chains=1, epsilon=20.0, delta=1e-4, noise_source=dp.InsecureSeededNoise(1), model=model, **run,
        **settings,
    )  # fmt: skip
    raw = pm.sample(5, tune=0, chains=1, step=step, model=step.model, random_seed=1, **quiet)
    return raw["posterior"]["beta"].values


@pytest.mark.parametrize(
    "unit", [None, pytest.param(PEOPLE, marks=pytest.mark.sweep)], ids=["records", "people"]
)
@pytest.mark.parametrize(("step_type", "settings"), STEPS)
def test_steps_of_one_compiled_model_draw_what_steps_of_the_model_draw(
    step_type, settings, unit, model, quiet
):
    compiled = dp.compile(model, unit=unit, compile_kwargs=FAST)
    expected = draws(step_type, settings, model, quiet, unit=unit, compile_kwargs=FAST)
    for _ in range(2):
        np.testing.assert_array_equal(draws(step_type, settings, compiled, quiet), expected)


def test_a_second_step_compiles_nothing(model, no_compiler):
    compiled = dp.compile(model, compile_kwargs=FAST)
    run = {"draws": 10, "chains": 2, "model": compiled}
    for step_type, settings in STEPS:
        step_type(epsilon=8.0, **run, **settings)
    no_compiler()
    for step_type, settings in STEPS:
        step = step_type(epsilon=9.0, **run, **settings)
        assert "ε = 9" in str(dp.plan(step))


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": dp.DPPenalty, "clip": -1.0},
        {"step": dp.DPPenalty, "noise_source": dp.InsecureSeededNoise(0), "ledger": True},
        {"step": dp.DPHMC, "mass": [1.0, -1.0]},
        {"step": partial(dp.DPSurrogate, family="normal"), "tempering": 2.0},
        {"step": dp.DPBarker, "batch_size": N + 1},
        {"step": dp.experimental.DPSGLD, "step_size": 0.0},
        {"step": dp.DPPenalty, "chunk_size": 0},
        {"step": dp.DPPenalty, "epsilon": -1.0},
        {"step": dp.DPPenalty, "delta": 2.0},
    ],
    ids=lambda wrong: next(name for name in wrong if name != "step"),
)
def test_nothing_is_compiled_before_settings_are_checked(wrong, model, no_compiler):
    settings = {"epsilon": 1.0, "draws": 10, "chains": 1, "model": model, **wrong}
    if settings.get("ledger"):
        settings["ledger"] = dp.PrivacyLedger(epsilon=1.0, delta=1e-4)
    step_type = settings.pop("step")
    no_compiler()
    with pytest.raises(dp.PrivacyConfigurationError):
        step_type(**settings)


def test_what_is_known_at_once(model):
    compiled = dp.compile(model, unit=PEOPLE)
    assert (compiled.d, compiled.roles.n_units, compiled.roles.n_records) == (2, N // 3, N)
    assert repr(compiled) == "CompiledModel(2 parameters; unit: all records with one identifier)"
    with model:
        assert dp.compile().model is model
    assert dp.compile(compiled) is compiled


@pytest.mark.parametrize(
    "again", [{"unit": PEOPLE}, {"public": ["X"]}, {"chunk_size": 7}, {"compile_kwargs": FAST}]
)
def test_what_was_settled_when_it_was_compiled_cannot_be_given_again(again, model):
    compiled = dp.compile(model)
    with pytest.raises(dp.PrivacyConfigurationError, match=rf"`{next(iter(again))}` cannot be"):
        dp.DPPenalty(epsilon=1.0, draws=10, chains=1, model=compiled, **again)


def test_a_model_that_has_changed_is_refused(model, no_compiler):
    compiled = dp.compile(model)
    pm.set_data({"Y": 1 - Y}, model=model)
    no_compiler()
    with pytest.raises(dp.PrivacyConfigurationError, match=r"\['Y'\] were replaced"):
        dp.DPPenalty(epsilon=1.0, draws=10, chains=1, model=compiled)
    pm.set_data({"Y": Y}, model=model)
    with model:
        pm.Deterministic("mean", model["X"].mean())
    with pytest.raises(dp.UnsupportedModelError, match="mean"):
        dp.DPPenalty(epsilon=1.0, draws=10, chains=1, model=compiled)


def test_it_is_taken_wherever_a_model_is(model, quiet):
    compiled = dp.compile(model, compile_kwargs=FAST)
    idata = dp.sample(5, chains=1, epsilon=50.0, step=dp.DPPenalty, model=compiled, **quiet)
    assert idata.attrs["privacy_units"] == N
    new = dp.predict(idata, compiled, {"X": [[0.0, 1.0]]})
    assert new["predictions"]["y"].shape == (1, 5, 1)
    from pymc_dp.federated import Owner

    assert Owner(epsilon=1.0, model=compiled).n_units == N


@pytest.mark.parametrize(
    "take",
    [
        dp.compile,
        dp.tradeoff,
        lambda model: dp.expected_privacy_shift(model, epsilon=1.0),
        lambda model: dp.sample(10, model=model, epsilon=1.0),
    ],
)
def test_what_is_no_model_is_refused(take):
    with pytest.raises(dp.PrivacyConfigurationError, match=r"`model` must be .* Found str"):
        take("model")


def test_it_travels_with_a_step(model, quiet):
    compiled = dp.compile(model, compile_kwargs=FAST)
    step = dp.DPPenalty(epsilon=5.0, draws=5, chains=1, model=compiled)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    theta = compiled.parameters.start + 0.3
    np.testing.assert_array_equal(copy.compiled.likelihood(theta), compiled.likelihood(theta))
    assert copy.compiled.gradients.method == compiled.gradients.method


def test_the_way_to_the_gradients_is_a_function_of_the_model(model):
    ways = {dp.compile(model, compile_kwargs=FAST).gradients.method for _ in range(2)}
    assert len(ways) == 1
