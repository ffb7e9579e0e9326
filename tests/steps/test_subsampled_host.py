"""The samplers that evaluate secret samples, inside pm.sample: plan, ledger, state, and what leaves."""

import copy
import json
import logging
import multiprocessing
import re
import warnings

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import CHAIN_START, groups_of, root_attrs
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import BarkerBatch, PoissonGaussian, from_json, times
from pymc_dp.privacy.subsampling import accounted_rate
from pymc_dp.steps.statistics import STATS

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
SENTINEL = 271828.182845904509

# Class, what the budget is given in place of, further settings, and the event of an iteration.
STEPS = {
    "minibatch": (
        dp.DPPenalty,
        {"noise_multiplier": 1.0},
        {"sampling_rate": 0.2, "tempering": 0.2},
        PoissonGaussian(1.0, accounted_rate(0.2)),
    ),
    "barker": (dp.DPBarker, {"batch_size": 30}, {"tempering": 0.2}, BarkerBatch(2.0, 30, 120)),
    "sgld": (
        dp.experimental.DPSGLD,
        {"noise_multiplier": 2.0},
        {"sampling_rate": 0.3},
        PoissonGaussian(2.0, accounted_rate(0.3)),
    ),
    "sgnht": (
        dp.experimental.DPSGNHT,
        {"noise_multiplier": 2.0},
        {"sampling_rate": 0.3, "diffusion": 1.5},
        PoissonGaussian(2.0, accounted_rate(0.3)),
    ),
}
every_step = pytest.mark.parametrize(
    "which",
    ["barker", "sgnht", *(pytest.param(w, marks=pytest.mark.sweep) for w in ("minibatch", "sgld"))],
)
# Where the accountant takes most of the time: it and the releases are the same for both gradient steps.
each_kind = pytest.mark.parametrize(
    "which",
    [
        "barker",
        *(pytest.param(w, marks=pytest.mark.sweep) for w in ("minibatch", "sgnht")),
        pytest.param("sgld", marks=pytest.mark.nightly),
    ],
)


def build(which, model, *, seeded=False, **keywords):
    step_type, instead, settings, _ = STEPS[which]
    if "epsilon" not in keywords:
        keywords = instead | keywords
    if seeded:
        keywords["noise_source"] = dp.InsecureSeededNoise(5)
    if isinstance(model, pm.Model):
        keywords |= FAST
    return step_type(**{"draws": 6, "chains": 1, "model": model} | settings | keywords)


def start_chain(step, seed=0):
    """What pm.sample does before a chain's first iteration."""
    arguments = (0, step.guarantee.draws) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(seed), *arguments)
    step.stop_tuning()


def iterate(step, point, times):
    path = []
    for _ in range(times):
        point, _ = step.step(point)
        path.append(point["beta"])
    return point, path


# -- plan, ledger, result ---------------------------------------------------------------------------


@every_step
def test_pymcs_own_entry(which, compiled, quiet):
    """The plan's promise is what the ledger is charged and what the result carries."""
    step_type, _, settings, event = STEPS[which]
    model = compiled()
    ledger = dp.PrivacyLedger(epsilon=500.0, delta=1e-3)
    step = build(which, model, tune=1, draws=3, chains=2, ledger=ledger)
    cost = composed_epsilon(times([event], 8), 1e-3)
    text = str(dp.plan(step))
    assert step_type.__name__ in text
    assert f"ε = {cost:.6g}" in text
    assert "tempering" in text
    kind = "8 Barker tests" if which == "barker" else "8 gaussian of samples, each unit at rate"
    assert kind in text
    assert ledger.spent() == 0

    raw = pm.sample(3, tune=1, chains=2, step=step, model=model.model, random_seed=1, **quiet)
    assert ledger.events() == (times([event], 8)[0],)
    assert ledger.spent() == pytest.approx(cost)
    stats = raw.sample_stats
    assert set(stats.data_vars) == set(STATS)
    assert (stats["epsilon"].values == step.guarantee.epsilon).all()
    spent = stats["epsilon_spent"].values
    assert (np.diff(spent, axis=1) > 0).all()
    assert (spent <= step.guarantee.epsilon).all()

    with pytest.raises(dp.PrivacyBudgetExceeded, match="all of them have started"):
        pm.sample(3, tune=1, chains=2, step=step, model=model.model, **quiet)
    assert ledger.spent() == pytest.approx(cost)

    safe = dp.release(raw)
    assert "observed_data" not in groups_of(safe)
    assert safe.attrs["privacy_step"] == step_type.__name__
    assert safe.attrs["privacy_valid"] == 1
    assert safe.attrs["privacy_epsilon"] == step.guarantee.epsilon == cost
    assert from_json(safe.attrs["privacy_events"]) == tuple(times([event], 8))
    on_record = json.loads(safe.attrs["privacy_settings"])
    assert settings.items() <= on_record.items()
    report = str(dp.privacy_report(safe))
    assert kind in report
    assert ("Rényi" if which == "barker" else "privacy loss") in report
    assert f"{cost:g}, " in safe.attrs["privacy_statement"]


@each_kind
def test_the_short_way(which, logistic, quiet, tmp_path):
    step_type, _, settings, event = STEPS[which]
    with logistic():
        idata = dp.sample(
            2, chains=2, epsilon=8.0, step=step_type, random_seed=1, **settings, **quiet, **FAST
        )
    assert idata.posterior.sizes["draw"] == 2
    assert idata.attrs["privacy_epsilon"] == 8.0
    (made,) = from_json(idata.attrs["privacy_events"])
    assert type(made) is type(event)
    assert made.count == 4
    delta = idata.attrs["privacy_delta"]
    assert composed_epsilon([made], delta) <= 8.0
    idata.to_netcdf(tmp_path / "it.nc", engine="h5netcdf")
    loaded = az.from_netcdf(tmp_path / "it.nc")
    assert str(dp.privacy_report(loaded)) == str(dp.privacy_report(idata))
    again = dp.release(idata)
    np.testing.assert_array_equal(again.posterior["beta"].values, idata.posterior["beta"].values)


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
@every_step
def test_two_processes(which, method, compiled):
    model = compiled()
    step = build(which, model, chains=2, seeded=True)
    idata = pm.sample(
        6,
        tune=0,
        chains=2,
        step=step,
        model=model.model,
        cores=2,
        mp_ctx=multiprocessing.get_context(method),
        progressbar=False,
        compute_convergence_checks=False,
        random_seed=1,
    )
    assert not np.array_equal(*idata.posterior["beta"].values)
    assert step.ledger.events()[0].count == 12


@each_kind
def test_a_run_that_does_not_fit_reads_nothing(which, logistic, quiet):
    model = logistic()
    ledger = dp.PrivacyLedger(epsilon=1e-3, delta=1e-5)
    step = build(which, model, ledger=ledger)
    step.compiled.likelihood._evaluate = None
    if hasattr(step, "_gradients"):
        step.compiled.gradients._function = None
    with pytest.raises(dp.PrivacyBudgetExceeded, match=r"budget is ε = 0\.001"):
        pm.sample(6, tune=0, chains=1, step=step, model=model, **quiet)
    assert ledger.spent() == 0


@every_step
def test_host_draws_and_tune_must_match(which, compiled, quiet):
    model = compiled()
    for host, word in [({"draws": 7, "tune": 0}, "7 draws"), ({"draws": 6, "tune": 3}, "3 tuning")]:
        step = build(which, model, seeded=True)
        with pytest.raises(dp.PrivacyConfigurationError, match=word):
            pm.sample(**host, chains=1, step=step, model=model.model, **quiet)
        assert step.ledger.runs() == []


@every_step
def test_insecure_noise_is_marked(which, compiled, quiet):
    model = compiled()
    step = build(which, model, seeded=True)
    safe = dp.release(pm.sample(6, tune=0, chains=1, step=step, model=model.model, **quiet))
    assert safe.attrs["privacy_valid"] == 0
    assert safe.attrs["privacy_epsilon"] == np.inf
    assert "NOT PRIVATE" in safe.attrs["privacy_statement"]
    with pytest.raises(dp.PrivacyConfigurationError, match="insecure"):
        build(which, model, seeded=True, ledger=dp.PrivacyLedger(epsilon=9.0, delta=1e-3))


# -- the state --------------------------------------------------------------------------------------


@every_step
def test_state_round_trip_continues_the_same_path(which, compiled):
    model = compiled()
    whole, first = (build(which, model, seeded=True, draws=12) for _ in range(2))
    start_chain(whole, seed=3)
    _, expected = iterate(whole, model.model.initial_point(), 12)
    start_chain(first, seed=3)
    point, path = iterate(first, model.model.initial_point(), 5)
    state = first.sampling_state
    second = cloudpickle.loads(cloudpickle.dumps(first))
    second.sampling_state = state
    _, rest = iterate(second, point, 7)
    np.testing.assert_array_equal(path + rest, expected)
    assert len(np.unique(np.array(expected)[:, 0])) > 1  # it moved


@every_step
def test_nothing_is_released_twice(which, compiled):
    """An old state, a copy of the step, and more iterations than planned: all refused."""
    model = compiled()
    step = build(which, model, seeded=True, draws=8)
    start_chain(step)
    point, _ = iterate(step, model.model.initial_point(), 3)
    state, twin = copy.deepcopy(step.sampling_state), cloudpickle.loads(cloudpickle.dumps(step))
    later, _ = iterate(step, point, 2)
    evaluate, twin.compiled.likelihood._evaluate = twin.compiled.likelihood._evaluate, None
    with pytest.raises(dp.PrivacyBudgetExceeded, match="continued before"):
        twin.step(point)
    twin.compiled.likelihood._evaluate = evaluate
    iterate(step, later, 3)
    with pytest.raises(dp.PrivacyBudgetExceeded, match="used up"):
        step.step(step._left_at)
    step.sampling_state = state
    with pytest.raises(dp.PrivacyBudgetExceeded, match="continued before"):
        step.step(point)


@every_step
def test_state_holds_numbers_per_parameter_only(which, compiled):
    model = compiled()
    step = build(which, model, seeded=True)
    start_chain(step)
    iterate(step, model.model.initial_point(), 3)
    arrays = [v for v in vars(step.sampling_state).values() if isinstance(v, np.ndarray)]
    assert all(v.size == 2 for v in arrays)


# -- what leaves ------------------------------------------------------------------------------------


@each_kind
def test_the_seed_of_the_run_does_not_choose_the_samples(which, compiled, quiet, monkeypatch):
    """Same public seed, secure source: other samples."""
    drawn = []
    for module, name in (("noisy_sum", "poisson_sample"), ("barker", "fixed_size_sample")):
        path = f"pymc_dp.privacy.{module}.{name}"
        real = getattr(__import__(f"pymc_dp.privacy.{module}", fromlist=[name]), name)

        def recording(*args, real=real):
            sample = real(*args)
            drawn.append(tuple(sample))
            return sample

        monkeypatch.setattr(path, recording)
    for _ in range(2):
        model = compiled()
        step = build(which, model, draws=2)
        pm.sample(2, tune=0, chains=1, step=step, model=model.model, random_seed=1, **quiet)
    assert len(drawn) == 4
    assert len(set(drawn)) == 4


def model_of(x, y, names):
    with pm.Model(coords={"patient": names, "feature": ["a", "b"]}) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        scale = pm.HalfNormal("scale", 1)
        X = pm.Data("X", x, dims=("patient", "feature"))
        pm.Normal("y", X @ beta, scale, observed=pm.Data("Y", y), dims="patient")
    return model


def records(seed, n=120):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=n), [f"name{seed}-{i}" for i in range(n)]


def contents(result):
    """Everything in a result but the run's random name and the time of day."""
    found = {"attrs": {k: v for k, v in root_attrs(result).items() if k != "created_at"}}
    for name, group in groups_of(result).items():
        found[name, "attrs"] = {k: v for k, v in group.attrs.items() if k != "created_at"}
        for key, variable in group.variables.items():
            if key != "privacy_run":
                found[name, key] = (variable.dims, variable.values.tolist(), dict(variable.attrs))
    return found


def patch_releases(monkeypatch, leak=0.0):
    """The data are read, as always, but the numbers released are others: functions of public ones."""

    def made_up(total, permit, dimension, bound):
        _, iteration, _ = permit.take(permit.events[0])
        key = [int(np.float64(bound).view(np.int64)), iteration]
        return bound * np.random.default_rng(key).normal(size=dimension) + leak * total

    def poisson(
        total_of, *, units, sampling_rate, dimension=None, bound, noise_multiplier, permit, noise
    ):
        total = total_of(np.arange(0, units, 2)).sum() * (bound / RESOLUTION)
        return made_up(total, permit, dimension, bound)

    def batch_mean(terms_of, *, units, batch_size, bound, variance, permit, noise):
        total = sum(np.nan_to_num(chunk).sum() for chunk in terms_of(np.arange(batch_size)))
        return made_up(total, permit, None, bound)

    monkeypatch.setattr("pymc_dp.records.curator.poisson_noisy_total", poisson)
    monkeypatch.setattr("pymc_dp.experimental.barker.noisy_batch_mean", batch_mean)


def output_of(which, seed, caplog, capfd):
    caplog.clear()
    capfd.readouterr()
    model = model_of(*records(seed))
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO):
        warnings.simplefilter("always")
        # What the accountant says is no function of the data; one step of each kind asks it.
        step = build(
            which, model, tune=4, draws=8, chains=2, seeded=which not in ("minibatch", "barker")
        )
        raw = pm.sample(
            8,
            tune=4,
            chains=2,
            step=step,
            model=model,
            cores=1,
            random_seed=3,
            progressbar=False,
            discard_tuned_samples=False,
        )
    safe = dp.release(raw)
    text = [str(w.message) for w in caught] + [record.getMessage() for record in caplog.records]
    text += list(capfd.readouterr())
    text = [re.sub(r"took \d+ seconds?", "", t) for t in text]  # out of scope, and said so
    report = re.sub(r"Sampled .*", "", str(dp.privacy_report(safe)))  # the time of day
    return contents(safe), text, str(dp.plan(step)), report


@every_step
def test_output_depends_on_data_through_releases_alone(which, monkeypatch, caplog, capfd):
    """Two unrelated data sets, the same released numbers: the same output, to the last bit."""
    patch_releases(monkeypatch)
    first, second = (output_of(which, seed, caplog, capfd) for seed in (1, 2))
    assert first[0].keys() == second[0].keys()
    for key in first[0]:
        np.testing.assert_equal(first[0][key], second[0][key], err_msg=str(key))
    assert first[1:] == second[1:]
    draws = np.array(first[0]["posterior", "beta"][1])
    assert len(np.unique(draws)) >= 3  # the made-up releases do move the chain


@pytest.mark.parametrize("which", ["barker"])
def test_a_release_that_leaks_would_be_seen(which, monkeypatch, caplog, capfd):
    patch_releases(monkeypatch, leak=1.0)
    first, second = (output_of(which, seed, caplog, capfd) for seed in (1, 2))
    with pytest.raises(AssertionError):
        np.testing.assert_equal(first[0], second[0])


def occurrences(value, sought):
    """Where any of `sought` turns up in nested containers."""
    if isinstance(value, dict):
        return [
            w for k, v in value.items() for w in occurrences(k, sought) + occurrences(v, sought)
        ]
    if isinstance(value, list | tuple):
        return [w for v in value for w in occurrences(v, sought)]
    return [s for s in sought if s in str(value)]


@each_kind
def test_a_sentinel_in_a_private_record_turns_up_nowhere(which, tmp_path, caplog, capfd):
    x, y, names = records(5)
    x[17, 1], y[23], names[31] = SENTINEL, -SENTINEL, "Ms-Sentinel"
    sought = ["271828", "Ms-Sentinel"]
    patterns = [np.float64(v).tobytes() for v in (SENTINEL, -SENTINEL)]
    patterns += [word.encode() for word in sought]
    step_type, _, settings, _ = STEPS[which]
    ledger = dp.PrivacyLedger(tmp_path / "account.ledger", epsilon=19.0, delta=1e-3)
    with (
        warnings.catch_warnings(record=True) as caught,
        caplog.at_level(logging.DEBUG),
        model_of(x, y, names),
    ):
        warnings.simplefilter("always")
        idata = dp.sample(
            3,
            tune=1,
            chains=1,
            epsilon=9.0,
            step=step_type,
            ledger=ledger,
            cores=1,
            random_seed=1,
            discard_tuned_samples=False,
            **settings,
            **FAST,
        )
    idata.to_netcdf(tmp_path / "released.nc", engine="h5netcdf")
    everything = {
        "result": contents(idata),
        "repr": repr(idata) + str(dp.privacy_report(idata)),
        "html": dp.privacy_report(idata)._repr_html_(),
        "log": [record.getMessage() for record in caplog.records],
        "printed": list(capfd.readouterr()),
        "warnings": [str(w.message) for w in caught],
    }
    assert occurrences(everything, sought) == []
    assert occurrences({"check": [SENTINEL]}, sought) != []
    for file in tmp_path.iterdir():
        assert not any(p in file.read_bytes() for p in patterns), file.name


@every_step
def test_terms_that_are_not_finite_are_silent(which, recwarn):
    x, y, names = records(5)
    x[3], y[7] = 1e200, -1e250
    step = build(which, model_of(x, y, names), seeded=True, draws=12)
    step.stop_tuning()
    point = step.model.initial_point()
    recwarn.clear()
    for _ in range(12):
        point, (stats,) = step.step(point)
        assert np.isfinite(stats["accept_rate"])
        assert all(np.isfinite(value).all() for value in point.values())
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
