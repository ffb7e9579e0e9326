"""What leaves is a function of noised releases and public inputs, and of nothing else."""

import logging
import re
import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.privacy.events import Gaussian

SENTINEL = 271828.182845904509
FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}


def model_of(x, y, names):
    with pm.Model(coords={"patient": names, "feature": ["a", "b"]}) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        scale = pm.HalfNormal("scale", 1)
        X = pm.Data("X", x, dims=("patient", "feature"))
        pm.Normal("y", X @ beta, scale, observed=pm.Data("Y", y), dims="patient")
    return model


def records(seed, n=60):
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


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("step_type", "settings"),
    [(dp.DPPenalty, {}), (dp.DPHMC, {"n_leapfrog": 3, "gradient_multiplier": 4.0})],
    ids=["penalty", "hmc"],
)
def test_output_depends_on_data_through_releases_alone(
    step_type, settings, cores, monkeypatch, caplog, capfd
):
    """Two unrelated data sets, the same released numbers: the same output, to the last bit."""

    def released(terms, *, dimension=None, bound, noise_multiplier, permit, noise):
        for _ in terms:  # the real data are read, as always, but do not enter the release
            pass
        _, iteration, index = permit.take(Gaussian(noise_multiplier))
        # Not of the slot: which of two parallel chains claims the first one is a race.
        key = [int(np.float64(bound).view(np.int64)), iteration, index]
        return bound * np.random.default_rng(key).normal(size=dimension)

    monkeypatch.setattr("pymc_dp.steps.ratio.noisy_sum", released)
    monkeypatch.setattr("pymc_dp.steps.hmc.noisy_sum", released)

    def run(seed):
        caplog.clear()
        capfd.readouterr()
        model = model_of(*records(seed))
        with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO):
            warnings.simplefilter("always")
            step = step_type(
                noise_multiplier=2.0, tune=10, draws=25, chains=2, model=model, **settings, **FAST
            )
            raw = pm.sample(
                25,
                tune=10,
                chains=2,
                step=step,
                model=model,
                cores=cores,
                mp_ctx="fork",
                random_seed=3,
                progressbar=False,
                discard_tuned_samples=False,
            )
        safe = dp.release(raw)
        said = [str(w.message) for w in caught if "fork" not in str(w.message)]
        text = said + [record.getMessage() for record in caplog.records] + list(capfd.readouterr())
        # Running time is out of scope, and said so.
        text = [re.sub(r"took \d+ seconds?", "", re.sub(r"pid=\d+", "", t)) for t in text]
        report = re.sub(r"Sampled .*", "", str(dp.privacy_report(safe)))  # the time of day
        return contents(safe), text, str(dp.plan(step)), report

    first, second = run(1), run(2)
    assert first[0].keys() == second[0].keys()
    for key in first[0]:
        np.testing.assert_equal(first[0][key], second[0][key], err_msg=str(key))
    assert first[1:] == second[1:]
    assert len(np.unique(first[0]["posterior", "beta"][1])) >= 4  # the made-up releases do move it


def occurrences(value, sought):
    """Where `sought` (a number's texts, or a label) turns up in nested containers."""
    if isinstance(value, dict):
        return [
            w for k, v in value.items() for w in occurrences(k, sought) + occurrences(v, sought)
        ]
    if isinstance(value, list | tuple):
        return [w for v in value for w in occurrences(v, sought)]
    return [s for s in sought if s in str(value)]


def test_a_sentinel_in_a_private_record_turns_up_nowhere(tmp_path, caplog, capfd):
    x, y, names = records(5)
    x[17, 1] = SENTINEL
    y[23] = -SENTINEL
    names[31] = "Ms-Sentinel"
    sought = ["271828", "Ms-Sentinel"]
    patterns = [np.float64(v).tobytes() for v in (SENTINEL, -SENTINEL)] + [
        b"271828",
        b"Ms-Sentinel",
    ]
    ledger = dp.PrivacyLedger(tmp_path / "account.ledger", epsilon=9.0, delta=1e-4)
    model = model_of(x, y, names)
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG), model:
        warnings.simplefilter("always")
        idata = dp.sample(
            30,
            tune=5,
            chains=2,
            epsilon=5.0,
            ledger=ledger,
            cores=1,
            random_seed=1,
            discard_tuned_samples=False,
            step=dp.DPPenalty,
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
    assert occurrences({"check": [SENTINEL]}, sought) != []  # the search can find something
    for file in tmp_path.iterdir():
        assert not any(p in file.read_bytes() for p in patterns), file.name
    step = dp.DPPenalty(epsilon=1.0, draws=2, model=model, **FAST)
    assert occurrences(str(dp.plan(step)) + repr(step.sampling_state), sought) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m, x: pm.Deterministic("p", m["X"] @ m["beta"]),
        lambda m, x: pm.Potential("q", (m["X"] @ m["beta"]).sum()),
        lambda m, x: pm.Normal("z", m["X"].mean(), 1),
        lambda m, x: pm.Normal("z", 0, 1, initval=m["X"].mean()),
        lambda m, x: pm.Normal("w", m["X"].std() * m["beta"][0], 1, observed=x[:, 0]),
        lambda m, x: pm.Normal(
            "w", x[:, 0] * m["beta"][0], 1, observed=np.where(x[:, 1] > 9, np.nan, 0)
        ),
        lambda m, x: pm.CustomDist(
            "w", m["beta"], logp=lambda v, b: -((v - x @ b) ** 2), observed=x[:, 0]
        ),
    ],
)
def test_refusals_quote_no_value(spoil):
    x, y, names = records(5)
    x[17, 1] = SENTINEL
    model = model_of(x, y, names)
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoil(model, x)
    with pytest.raises(dp.UnsupportedModelError) as refused:
        dp.DPPenalty(epsilon=1.0, draws=5, model=model, **FAST)
    error = refused.value
    assert "271828" not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_non_finite_terms_are_clipped_and_silent(recwarn):
    """Records whose terms overflow or are NaN somewhere neither raise nor warn."""
    x, y, names = records(5)
    y[3] = 1e200  # its squared error overflows: a log-likelihood of -inf
    model = model_of(x, y, names)
    step = dp.DPPenalty(noise_multiplier=1.0, draws=10, model=model, **FAST)
    step.stop_tuning()
    point = model.initial_point()
    recwarn.clear()
    for _ in range(10):
        point, (stats,) = step.step(point)
        assert np.isfinite(stats["accept_rate"])
    assert len(recwarn) == 0


def test_the_seed_of_the_run_does_not_drive_the_noise(logistic, quiet):
    """Same public seed, secure noise: different releases."""
    rates = []
    for _ in range(2):
        with logistic():
            idata = dp.sample(
                20, chains=1, epsilon=1.0, step=dp.DPPenalty, random_seed=1, **quiet, **FAST
            )
        rates.append(idata.sample_stats["accept_rate"].values)
    assert not np.array_equal(*rates)
