"""release, privacy_report, plan, and saving."""

import json
import math
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.compat import from_groups, groups_of, read_netcdf, root_attrs
from pymc_dp.privacy.noise import SecureNoise

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}


@pytest.fixture(scope="module")
def raw(compiled, quiet):
    """A plain pm.sample result, with all that PyMC puts in; not to be changed."""
    step = dp.DPPenalty(epsilon=1.0, delta=1e-4, draws=12, chains=2, model=compiled())
    return pm.sample(12, tune=0, chains=2, step=step, model=step.model, **quiet)


def test_release_drops_what_is_private(raw):
    assert {"observed_data", "constant_data"} <= set(groups_of(raw))
    safe = groups_of(dp.release(raw))
    assert set(safe) == {"posterior", "sample_stats", "privacy"}
    assert all("patient" not in group.coords for group in safe.values())
    assert list(safe["posterior"].coords["feature"].values) == ["a", "b"]
    assert "sampling_time" not in safe["posterior"].attrs


def test_release_stamps_the_guarantee(raw):
    attrs = root_attrs(dp.release(raw))
    assert attrs["privacy_epsilon"] == 1.0
    assert attrs["privacy_delta"] == 1e-4
    assert attrs["privacy_unit"] == "one record of 'patient'"
    assert attrs["privacy_relation"] == "substitute-one"
    assert attrs["privacy_noise"] == "opendp discrete gaussian"
    assert attrs["privacy_valid"] == 1
    assert '"count": 24' in attrs["privacy_events"]
    assert all(isinstance(v, str | int | float | list) for v in attrs.values())


def same(a, b):
    left, right = groups_of(a), groups_of(b)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].identical(right[name]), name
    assert root_attrs(a) == root_attrs(b)


def test_release_is_idempotent_and_pure(raw):
    before = set(groups_of(raw))
    safe = dp.release(raw)
    same(dp.release(safe), safe)
    assert set(groups_of(raw)) == before
    assert type(safe) is type(raw)


def test_release_of_an_extended_result_drops_the_extension(raw):
    """Predictions are made from private covariates."""
    safe = dp.release(raw)
    groups = groups_of(safe)
    extended = from_groups(
        groups | {"posterior_predictive": groups["posterior"].rename(beta="y")},
        root_attrs(safe),
        like=safe,
    )
    same(dp.release(extended), safe)


def test_saving_and_loading_keeps_everything(raw, tmp_path):
    safe = dp.release(raw)
    safe.to_netcdf(tmp_path / "r.nc", engine="h5netcdf")
    loaded = read_netcdf(tmp_path / "r.nc")
    assert root_attrs(loaded)["privacy_statement"] == root_attrs(safe)["privacy_statement"]
    assert str(dp.privacy_report(loaded)) == str(dp.privacy_report(safe))
    for name, group in groups_of(safe).items():
        for variable in group.data_vars:
            np.testing.assert_array_equal(groups_of(loaded)[name][variable], group[variable])


def test_release_in_another_process(raw, compiled, tmp_path, monkeypatch):
    """A raw result that was saved unreleased needs the step, to know what is private in it."""
    expected = dp.release(raw)
    raw.to_netcdf(tmp_path / "raw.nc", engine="h5netcdf")
    loaded = read_netcdf(tmp_path / "raw.nc")
    step, other = [
        dp.DPPenalty(epsilon=e, delta=1e-4, draws=12, chains=2, model=compiled())
        for e in (1.0, 2.0)
    ]
    monkeypatch.setattr("pymc_dp.steps.run._guarantees", {})
    with pytest.raises(dp.PrivacyError, match="step=step"):
        dp.release(loaded)
    with pytest.raises(dp.PrivacyError, match="was not built with"):
        dp.release(loaded, step=other)
    safe = dp.release(loaded, step=step)
    assert set(groups_of(safe)) == {"posterior", "sample_stats", "privacy"}
    assert str(dp.privacy_report(safe)) == str(dp.privacy_report(expected))


def test_a_released_result_keeps_its_list_of_variables(raw, tmp_path, monkeypatch):
    """Whatever is added to it later, in any process, is not covered and goes."""
    safe = dp.release(raw)
    monkeypatch.setattr("pymc_dp.steps.run._guarantees", {})
    groups = groups_of(safe)
    posterior = groups["posterior"].assign(leak=groups["posterior"]["beta"] * 2)
    extended = from_groups(groups | {"posterior": posterior}, root_attrs(safe), like=safe)
    same(dp.release(extended), safe)


def test_release_refuses_draws_of_other_steps(logistic, quiet):
    model = logistic()
    idata = pm.sample(5, tune=5, chains=1, step=pm.Metropolis(model=model), model=model, **quiet)
    with pytest.raises(dp.PrivacyError, match="not made by a private step"):
        dp.release(idata)
    with pytest.raises(dp.PrivacyError, match="release"):
        dp.privacy_report(idata)


def test_release_refuses_foreign_statistics(raw):
    """Another step's statistics mean that it read the data too."""
    groups = groups_of(raw)
    stats = groups["sample_stats"]
    mixed = from_groups(
        groups | {"sample_stats": stats.assign(scaling=stats["scale"])}, root_attrs(raw), like=raw
    )
    with pytest.raises(dp.PrivacyError, match="scaling"):
        dp.release(mixed)


def test_release_refuses_draws_of_two_runs(raw):
    groups = groups_of(raw)
    stats = groups["sample_stats"].copy(deep=True)
    stats["privacy_run"][0] += 1
    merged = from_groups(groups | {"sample_stats": stats}, root_attrs(raw), like=raw)
    with pytest.raises(dp.PrivacyError, match="more than one run"):
        dp.release(merged)


@pytest.mark.parametrize(
    "other",
    [
        {"variables": ("mu", "another")},
        {"statistics": ()},
        {"public_data": ("X",)},
        {"private_data": ()},
        {"record_dims": ()},
        {"settings": {"clip": 2.0}},
        {"unit": "one visit"},
        {"neighbours": "add-or-remove"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_a_run_may_release_is_in_its_fingerprint(other, compiled):
    promised = dp.DPPenalty(epsilon=1.0, draws=5, chains=1, model=compiled()).guarantee
    assert replace(promised, **other).fingerprint != promised.fingerprint
    later = replace(promised, run_id=1, diagnostics={"privacy_shift": 1.0})
    assert later.fingerprint == promised.fingerprint


def test_release_refuses_draws_beside_statistics_of_others(raw):
    groups = groups_of(raw)
    fewer = groups["posterior"].isel(draw=slice(1, None))
    mixed = from_groups(groups | {"posterior": fewer}, root_attrs(raw), like=raw)
    with pytest.raises(dp.PrivacyError, match="do not belong together"):
        dp.release(mixed)


def test_public_constants_are_kept(quiet):
    with pm.Model() as model:
        knots = pm.Data("knots", np.array([0.0, 1.0, 2.0]))
        a = pm.Normal("a", 0, 1, shape=3)
        pm.Normal("y", (a * knots).sum(), 1, observed=np.linspace(-1, 1, 30))
        idata = dp.sample(
            10, chains=1, epsilon=1.0, public=["knots"], step=dp.DPPenalty, **quiet, **FAST
        )
    assert list(groups_of(idata)["constant_data"].data_vars) == ["knots"]
    assert model["knots"] is knots


@pytest.mark.parametrize("multiplier", [0, 5.0])
def test_insecure_runs_say_so_everywhere(multiplier, logistic, quiet):
    model = logistic()
    step = dp.DPPenalty(
        noise_multiplier=multiplier,
        chains=1,
        draws=8,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    assert "NO GUARANTEE" in str(dp.plan(step))
    safe = dp.release(pm.sample(8, tune=0, chains=1, step=step, model=model, **quiet))
    attrs = root_attrs(safe)
    assert attrs["privacy_valid"] == 0
    assert math.isinf(attrs["privacy_epsilon"])
    assert attrs["privacy_noise"] == ("insecure seeded" if multiplier else "none")
    assert "NOT PRIVATE" in str(dp.privacy_report(safe))
    assert np.isinf(safe.sample_stats["epsilon"].values).all()
    with pytest.raises(dp.PrivacyConfigurationError, match="ledger"):
        dp.DPPenalty(
            noise_multiplier=1.0,
            chains=1,
            draws=8,
            noise_source=dp.InsecureSeededNoise(1),
            ledger=dp.PrivacyLedger(epsilon=1.0, delta=1e-5),
            model=model,
            **FAST,
        )


def test_plan_shows_cost_and_ledger(logistic):
    ledger = dp.PrivacyLedger(epsilon=3.0, delta=1e-5)
    step = dp.DPPenalty(
        epsilon=1.0, delta=1e-5, draws=10, tune=5, chains=2, ledger=ledger, model=logistic(), **FAST
    )
    plan = dp.plan(step)
    text, html = str(plan), plan._repr_html_()
    ledger_row = "ε = 0 spent of 3 at δ = 1e-05; another run can have ε = 3"
    for part in ["ε = 1 at δ = 1e-05", "30 gaussian", "2 × (5 tuning + 10 draws)", ledger_row]:
        assert part in text
        assert part in html
    assert "<table>" in html
    with pytest.raises(dp.PrivacyConfigurationError, match="private step"):
        dp.plan(object())


def test_multiplier_instead_of_budget_reports_what_it_costs(logistic):
    step = dp.DPPenalty(
        noise_multiplier=10.0, draws=50, chains=2, delta=1e-5, model=logistic(), **FAST
    )
    again = dp.calibrate_noise(epsilon=step.guarantee.epsilon, delta=1e-5, releases=100)
    assert again == pytest.approx(10.0, rel=1e-6)


def test_foreign_warmup_draws_are_refused(raw):
    """Draws without the private step's statistics do not ride along."""
    groups = groups_of(raw)
    stats = groups["sample_stats"].drop_vars("privacy_plan")
    extended = from_groups(
        groups | {"warmup_posterior": groups["posterior"], "warmup_sample_stats": stats},
        root_attrs(raw),
        like=raw,
    )
    with pytest.raises(dp.PrivacyError, match="not made by a private step"):
        dp.release(extended)


@pytest.mark.parametrize("dims", ["patient", None])
def test_labels_of_records_never_leave(dims, quiet):
    """Also where what is public has the record dimension, and where only a covariate says its name."""
    with pm.Model(coords={"patient": [f"Mrs. {i}" for i in range(40)]}):
        mu = pm.Normal("mu", 0, 1)
        pm.Deterministic("repeated", mu * pt.ones(40), dims="patient")
        x = pm.Data("x", np.linspace(0, 1, 40), dims="patient")
        pm.Normal("y", mu * x, 1, observed=np.linspace(-1, 1, 40), dims=dims)
        idata = dp.sample(6, chains=1, epsilon=1.0, step=dp.DPPenalty, **quiet, **FAST)
    assert "repeated" in idata.posterior
    assert "Mrs." not in repr(groups_of(idata))
    assert all("patient" not in g.coords for g in groups_of(idata).values())


def with_a_mean_per_record():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 2))
    with pm.Model(coords={"patient": range(300)}) as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Deterministic("odds", pm.math.exp(beta))
        mean = pm.Deterministic("mean", X @ beta, dims="patient")
        pm.Deterministic("average", mean.mean())
        pm.Normal("y", mean, 1, observed=X @ [0.5, -0.5] + rng.normal(size=300), dims="patient")
    return model


def test_deterministics_of_data_do_not_enter_a_result(quiet, caplog):
    """The way that tutorials write a mean: nothing per record is kept, and it is said so."""
    model = with_a_mean_per_record()
    with caplog.at_level("INFO", "pymc.dp"):
        idata = dp.sample(6, chains=1, epsilon=1.0, model=model, step=dp.DPPenalty, **quiet, **FAST)
    assert set(idata.posterior.data_vars) == {"beta", "odds"}
    assert not {"mean", "average"} & set(json.loads(idata.attrs["privacy_variables"]))
    assert all(300 not in v.shape for g in groups_of(idata).values() for v in g.variables.values())
    (said,) = [r.getMessage() for r in caplog.records if "Left out" in r.getMessage()][-1:]
    assert "mean, average" in said
    step = dp.DPPenalty(chains=1, draws=6, epsilon=1.0, model=model, **FAST)
    assert dict(dp.plan(step).rows)["Left out of the result"] == "mean, average"
    asked = dp.sample(
        6, chains=1, epsilon=1.0, model=model, step=dp.DPPenalty, var_names=["odds", "mean"], **quiet, **FAST
    )  # fmt: skip
    assert set(asked.posterior.data_vars) == {"odds"}


def test_pymc_may_not_compute_them_either(quiet):
    """It would judge their convergence, exactly, where somebody can read it."""
    model = with_a_mean_per_record()
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    keywords = dict(epsilon=0.5, delta=1e-5, chains=1, draws=6, model=model, ledger=ledger, **FAST)
    for names in (None, ["beta", "mean"]):
        step = dp.DPPenalty(**keywords)
        with pytest.raises(dp.UnsupportedModelError, match=r"var_names=\['beta', 'odds'\]"):
            pm.sample(6, tune=0, chains=1, step=step, model=model, var_names=names, **quiet)
    assert ledger.spent() == 0
    kept = dict(tune=0, chains=1, model=model, var_names=["beta", "odds"], **quiet)
    released = dp.release(pm.sample(6, step=dp.DPPenalty(**keywords), **kept))
    assert set(released.posterior.data_vars) == {"beta", "odds"}


def test_names_that_the_model_has_not_are_refused_before_anything_is_spent(quiet):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    with pytest.raises(dp.PrivacyConfigurationError, match=r"'bet'.*'beta'"):
        dp.sample(6, epsilon=0.5, model=with_a_mean_per_record(), ledger=ledger, var_names=["bet"], **quiet)  # fmt: skip
    assert ledger.spent() == 0


def test_invalid_parameters_are_impossible_not_free(quiet):
    """A free scale may propose negative values; such points have density zero, as in PyMC."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        s = pm.Normal("s", 0, 2, initval=1.0)
        pm.Normal("y", 0, s, observed=rng.normal(size=200))
        step = dp.DPPenalty(
            noise_multiplier=0,
            clip=200.0,
            scale=1.0,
            chains=1,
            draws=600,
            noise_source=dp.InsecureSeededNoise(1),
            **FAST,
        )
        idata = pm.sample(600, tune=0, chains=1, step=step, random_seed=1, **quiet)
    assert (idata.posterior["s"].values > 0).all()
    assert model.free_RVs


class ConfidentNoise(dp.InsecureSeededNoise):
    """A source that merely calls itself secure."""

    secure = True


class TrustedName(SecureNoise):
    """Its draws could be anything: it may have been changed."""


@pytest.mark.parametrize("noise", [ConfidentNoise(3), TrustedName()])
def test_a_source_that_calls_itself_secure_is_not_believed(noise, logistic, quiet):
    with logistic():
        idata = dp.sample(
            5, chains=1, epsilon=1.0, noise_source=noise, step=dp.DPPenalty, **quiet, **FAST
        )
    assert idata.attrs["privacy_valid"] == 0
    assert idata.attrs["privacy_epsilon"] == np.inf
    assert "NOT PRIVATE" in idata.attrs["privacy_statement"]
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    with logistic(), pytest.raises(dp.PrivacyConfigurationError, match="insecure noise"):
        dp.sample(
            5, chains=1, epsilon=1.0, noise_source=noise, ledger=ledger, step=dp.DPPenalty, **FAST
        )


@pytest.mark.parametrize(("chains", "said"), [(1, "The chain never moved"), (2, "None of the 2")])
def test_a_chain_that_never_moved_is_said_to_be_one(chains, said, logistic, quiet, caplog):
    """By `release` after plain `pm.sample`, by `sample`, and by the report; its effective draws are 0."""
    model, still = logistic(), {"scale": 1e6}
    step = dp.DPPenalty(epsilon=1.0, draws=5, chains=chains, model=model, **still, **FAST)
    raw = pm.sample(5, tune=0, chains=chains, step=step, model=model, **quiet)
    with caplog.at_level("WARNING", logger="pymc.dp"):
        safe = dp.release(raw)
    assert said in caplog.text
    report = dp.privacy_report(safe)
    for text in (str(report), report.to_html(), report.to_json()):
        assert said in text
    caplog.clear()
    with caplog.at_level("INFO", logger="pymc.dp"), model:
        dp.sample(120, chains=chains, epsilon=1.0, step=dp.DPPenalty, **still, **quiet, **FAST)
    assert said in caplog.text
    assert "effective draws at least 0" in caplog.text
    assert "Only 0 effective draws of beta[" in caplog.text


def test_of_several_chains_those_that_never_moved_are_named(raw, caplog):
    groups = {name: group.copy(deep=True) for name, group in groups_of(raw).items()}
    groups["sample_stats"]["accepted"].values[0] = True
    groups["sample_stats"]["accepted"].values[1] = False
    with caplog.at_level("WARNING", logger="pymc.dp"):
        dp.release(from_groups(groups, root_attrs(raw), like=raw))
    assert "Of 2 chains, number 1 never moved" in caplog.text


def test_predictions_for_the_people_in_the_data_are_not_released(raw, logistic):
    safe = dp.release(raw)
    with logistic():
        predicted = pm.sample_posterior_predictive(
            safe, progressbar=False, compile_kwargs=FAST["compile_kwargs"]
        )
    assert "observed_data" in groups_of(predicted)  # exact, which is why
    with pytest.raises(dp.PrivacyError, match=r"exact data they carry.*`pymc_dp.predict`"):
        dp.release(predicted)
