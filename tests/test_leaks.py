"""What leaves is a function of noised releases and public inputs, and of nothing else."""

import functools
import logging
import re
import sys
import warnings
from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.likelihood.simulated import SimulatedScores
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.kept_sum import KeptSum
from pymc_dp.privacy.noise import SecureNoise
from pymc_dp.records import curator

from .differential import RELEASES

SENTINEL = 271828.182845904509
FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}


@pytest.fixture(autouse=True)
def interpreted(interpret, few_moves):
    """As everything else here: what PyMC compiles for its own ends."""


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


@pytest.mark.process
@pytest.mark.parametrize(
    ("step_type", "settings"),
    [(dp.DPPenalty, {}), (dp.DPHMC, {"n_leapfrog": 3, "gradient_multiplier": 4.0})],
    ids=["penalty", "hmc"],
)
def test_chains_in_processes_depend_on_data_through_releases_alone(
    step_type, settings, canned_totals, caplog, capfd
):
    """Two unrelated data sets, the same released numbers: the same output, to the last bit."""

    def released(dimension, bound, taken):
        _, iteration, index = taken
        # Not of the slot: which of two parallel chains claims the first one is a race.
        key = [int(np.float64(bound).view(np.int64)), iteration, index]
        return bound * np.random.default_rng(key).normal(size=dimension)

    canned_totals(released)

    def run(seed):
        model = model_of(*records(seed))
        step = step_type(
            noise_multiplier=2.0, tune=10, draws=25, chains=2, model=model, **settings, **FAST
        )
        return everything_that_leaves(step, 25, 10, caplog, capfd, cores=2, mp_ctx="fork")

    first, second = run(1), run(2)
    assert_same(first, second)
    draws = first["result"]["posterior", "beta"][1]
    assert len(np.unique(draws)) >= 4  # the made-up releases do move it


def everything_that_leaves(step, draws, tune, caplog, capfd, **keywords):
    """Of a run: the result, what is printed, logged and warned of, the plan, the report, the error."""
    caplog.clear()
    capfd.readouterr()
    found = {"result": {}, "error": "", "report": ""}
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO):
        warnings.simplefilter("always")
        try:
            raw = pm.sample(
                draws, tune=tune, chains=step.guarantee.chains, step=step, model=step.model,
                random_seed=3, progressbar=False, discard_tuned_samples=False, **keywords,
            )  # fmt: skip
            safe = dp.release(raw)
            found["result"] = contents(safe)
            # The time of day is no secret.
            found["report"] = re.sub(r"Sampled .*", "", str(dp.privacy_report(safe)))
        except dp.PrivacyError as error:
            found["error"] = repr(error)
    said = [str(w.message) for w in caught if "fork" not in str(w.message)]
    text = said + [record.getMessage() for record in caplog.records] + list(capfd.readouterr())
    # Running time is out of scope, and said so.
    text = [re.sub(r"took \d+ seconds?", "", re.sub(r"pid=\d+", "", t)) for t in text]
    return {**found, "text": text, "plan": str(dp.plan(step))}


def assert_same(first, second):
    assert first["result"].keys() == second["result"].keys()
    for key in first["result"]:
        np.testing.assert_equal(
            first["result"][key], second["result"][key], err_msg=str(key), strict=True
        )
    for key in ("error", "text", "plan", "report"):
        assert first[key] == second[key], key


@pytest.fixture
def replayed(monkeypatch):
    """Runs whose releases, from the second on, are those of the first. All read their data, as always."""
    tape = []
    reels = {"recording": True, "next": iter(())}

    def on_tape(release):
        def released(*args, **keywords):
            fresh = release(*args, **keywords)
            if reels["recording"]:
                tape.append(np.array(fresh))
                return fresh
            again = next(reels["next"])
            return float(again) if isinstance(fresh, float) else again

        return released

    for name, module in list(sys.modules.items()):
        for release in RELEASES if name.startswith("pymc_dp.") else ():
            if hasattr(module, release):
                monkeypatch.setattr(module, release, on_tape(getattr(module, release)))
    monkeypatch.setattr(KeptSum, "release", on_tape(KeptSum.release))
    # The name of a run is random, and seeds what is drawn from its surrogate.
    monkeypatch.setattr("pymc_dp.steps.run.secrets.randbits", lambda bits: 7)

    def rewind():
        assert tape
        reels["recording"], reels["next"] = False, iter(tape)

    return rewind


def plain(y, x):
    mu, log_sigma = pm.Normal("mu", 0, 10), pm.Normal("log_sigma", 0, 1)
    pm.Normal("y", mu + x[:, 0], pm.math.exp(log_sigma), observed=pm.Data("Y", y))


def poisson(y, x):
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Poisson("y", pm.math.exp(b[0] + b[1] * x[:, 0]), observed=pm.Data("Y", y))


def categorical(y, x):
    b = pm.Normal("b", 0, 1, shape=3)
    p = pm.math.softmax(
        pm.math.stack([b[0] * x[:, 0], b[1] + x[:, 0], b[2] * x[:, 1]], axis=1), axis=1
    )
    pm.Categorical("y", p, observed=pm.Data("Y", y))


def indexed(y, x):
    a = pm.Normal("a", 0, 1, shape=3)
    pm.Normal("y", a[pm.Data("G", y)], 1, observed=x[:, 0])


def rate_of(y, x):
    mu = pm.Normal("mu", 0, 1)
    pm.Normal("y", mu, 1, observed=pm.Data("Y", y))


HUGE = np.array([1e200, -1e200, 1e308, -1e308, 5e-324, -1e154, 1e154, 1.7e308])
WHOLE = np.array([-5, 2**62, -(2**62), 10**9, 3, 40, 0, 1])


def spoilt(values, with_):
    """With pairs of units' records that are far out, or impossible, or add up to ∞ − ∞."""
    values = values.copy()
    values[: len(with_)] = with_
    return values


N, PEOPLE = 240, np.repeat(np.arange(120), 2)
GENEROUS = {"epsilon": 20.0, "delta": 1e-3}
# Not by a budget: finding the noise of sampled releases takes a second.
SAMPLED = {"noise_multiplier": 0.5, "delta": 1e-3, "sampling_rate": 0.5}
SAMPLERS = {
    "penalty": (dp.DPPenalty, plain, GENEROUS),
    "minibatch": (dp.DPPenalty, plain, {**SAMPLED, "tempering": 0.1}),
    "hmc": (dp.DPHMC, plain, {**GENEROUS, "n_leapfrog": 2}),
    "barker": (dp.DPBarker, plain, {"batch_size": 30, "tempering": 0.1}),
    "sgld": (dp.experimental.DPSGLD, plain, SAMPLED),
    "sgnht": (dp.experimental.DPSGNHT, plain, GENEROUS),
    "surrogate": (partial(dp.DPSurrogate, family="normal"), plain, {"epsilon": 1e3, "delta": 1e-3}),
    "polynomial": (
        partial(dp.DPSurrogate, family="polynomial"),
        plain,
        {"epsilon": 1e3, "delta": 1e-3},
    ),
    "automatic": (dp.DPSurrogate, plain, {"epsilon": 1e3, "delta": 1e-3}),
    "exponential": (dp.DPExponentialFamily, rate_of, {**GENEROUS, "bounds": (-4, 4)}),
}
CASES = [(name, unit, HUGE, "warn") for name in SAMPLERS for unit in (None, PEOPLE)]
# Where numbers of several records are added up, for users who have floating point errors raised.
CASES += [(name, PEOPLE, HUGE, "raise") for name in ("surrogate", "polynomial", "penalty", "sgnht")]
CASES += [
    (name, None, (build, "out of range"), "warn")
    for name in ("penalty", "surrogate", "polynomial")
    for build in (poisson, categorical, indexed)
]


def always(which, unit, spoil, errors):
    """The few cases that are run on every save; the others share most of their code with these."""
    return (
        which in ("penalty", "hmc", "surrogate", "polynomial")
        and unit is PEOPLE
        and errors == "warn"
    )


CASES = [case if always(*case) else pytest.param(*case, marks=pytest.mark.sweep) for case in CASES]


def case_name(value):
    if value is None or value is PEOPLE or value is HUGE:
        return {id(None): "records", id(PEOPLE): "people", id(HUGE): "huge"}[id(value)]
    return value if isinstance(value, str) else value[0].__name__


@functools.cache
def compiled(build, of_people, is_spoilt):
    """Compiled once for all samplers of a worker; each data set by itself."""
    values = {poisson: WHOLE, categorical: WHOLE, indexed: WHOLE % 6 - 3}.get(build, HUGE)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, 2))
    y = rng.normal(size=N) if values is HUGE else rng.integers(3, size=N)
    with pm.Model() as model:
        build(spoilt(y, values) if is_spoilt else y, pm.Data("X", x) if build is not indexed else x)
    return dp.compile(model, unit=PEOPLE if of_people else None, **FAST)


@pytest.mark.parametrize(("which", "unit", "spoil", "errors"), CASES, ids=case_name)
def test_output_depends_on_data_through_releases_alone(
    which, unit, spoil, errors, replayed, caplog, capfd
):
    """Ordinary records, and records that overflow, with the same releases: the same output."""
    step_type, build, settings = SAMPLERS[which]
    build = build if spoil is HUGE else spoil[0]
    runs = []
    for is_spoilt in (False, True):
        step = step_type(
            draws=15, tune=5, chains=2, model=compiled(build, unit is PEOPLE, is_spoilt),
            noise_source=dp.InsecureSeededNoise(2), **settings,
        )  # fmt: skip
        with np.errstate(over=errors, invalid=errors, divide=errors):
            runs.append(everything_that_leaves(step, 15, 5, caplog, capfd, cores=1))
        replayed()
    assert_same(*runs)
    assert not runs[0]["error"]


@functools.cache
def of_size(build, n):
    """Data sets of two sizes, written into the model: such an array is called by its shape."""
    rng = np.random.default_rng(n)
    with pm.Model() as model:
        build(rng.normal(size=n), rng.normal(size=(n, 2)))
    return dp.compile(model, **FAST)


@pytest.mark.parametrize("which", ["penalty", "hmc", "sgld", "sgnht", "exponential"])
def test_under_add_or_remove_nothing_tells_how_many_units_there_are(
    which, monkeypatch, caplog, capfd, canned_totals
):
    """Data sets of two sizes, and the same released numbers: the same output, down to the last bit."""
    step_type, build, settings = SAMPLERS[which]
    settings = {k: v for k, v in settings.items() if k not in ("sampling_rate", "n_leapfrog")}
    settings |= {"step_size": 1e-3} if "sg" in which else {}

    def made_up(size, taken):
        _, iteration, index = taken
        return np.random.default_rng([iteration, index]).normal(size=size)

    def kept(self, along, *, noise_multiplier, permit, noise):
        self._projected(along)
        return along.bound * float(made_up(None, permit.take(Gaussian(noise_multiplier))))

    canned_totals(lambda size, bound, taken: bound * made_up(size, taken))
    monkeypatch.setattr(KeptSum, "release", kept)
    monkeypatch.setattr("pymc_dp.steps.run.secrets.randbits", lambda bits: 7)
    runs, sizes = [], (1607, 2789)
    for n in sizes:
        keywords = {"draws": 15, "tune": 5, "chains": 2, "model": of_size(build, n), **settings}
        step = step_type(neighbours="add-or-remove", **keywords)
        found = everything_that_leaves(step, 15, 5, caplog, capfd, cores=1)
        found["promise"] = [repr(step.guarantee), repr(step.compiled), repr(step.ledger.runs())]
        assert occurrences(found, [str(n), f"{n:,}"]) == []
        runs.append(found)
    assert_same(*runs)
    assert runs[0]["promise"] == runs[1]["promise"]
    draws = runs[0]["result"]["posterior", "mu"][1]
    assert len(np.unique(draws)) > 1  # the made-up releases do move it


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
    step = dp.DPPenalty(epsilon=1.0, chains=1, draws=2, model=model, **FAST)
    assert occurrences(str(dp.plan(step)) + repr(step.sampling_state), sought) == []


@pytest.mark.parametrize(
    "spoil",
    [
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
        dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model, **FAST)
    error = refused.value
    assert "271828" not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_non_finite_terms_are_clipped_and_silent(recwarn):
    """Records whose terms overflow or are NaN somewhere neither raise nor warn."""
    x, y, names = records(5)
    y[3] = 1e200  # its squared error overflows: a log-likelihood of -inf
    model = model_of(x, y, names)
    step = dp.DPPenalty(noise_multiplier=1.0, chains=1, draws=10, model=model, **FAST)
    step.stop_tuning()
    point = model.initial_point()
    recwarn.clear()
    for _ in range(10):
        point, (stats,) = step.step(point)
        assert np.isfinite(stats["accept_rate"])
    assert len(recwarn) == 0


@pytest.mark.parametrize("build", [poisson, plain])
def test_outcomes_of_the_models_are_seeded_by_the_noise_source_and_by_nothing_else(
    build, monkeypatch
):
    """Neither by `random_seed` nor by NumPy's global state, nor by records."""
    given, used, released = [], [], []
    secret = {"words": None}

    def words(self, size, at=()):
        given.append(np.full(size, secret["words"], np.uint64))
        return given[-1]

    honest = SimulatedScores.__call__

    def scores(self, theta, words, other=None):
        used.append(words)
        return honest(self, theta, words, other)

    def kept(release):
        def on_record(*args, **keywords):
            released.append(np.array(release(*args, **keywords)))
            return released[-1]

        return on_record

    monkeypatch.setattr(SecureNoise, "words", words)
    monkeypatch.setattr(SimulatedScores, "__call__", scores)
    # Sums without noise: whatever else is random would show in them.
    monkeypatch.setattr(
        SecureNoise, "discrete_gaussian", lambda self, s, size, at=(): np.zeros(size, np.int64)
    )
    monkeypatch.setattr(SecureNoise, "l2", lambda self, s, size, at=(): np.zeros(size, np.int64))
    for release in ("noisy_total", "noisy_counts"):
        name = f"pymc_dp.records.curator.{release}"
        monkeypatch.setattr(name, kept(getattr(curator, release)))

    def run(with_words, seed, is_spoilt=False):
        given.clear(), used.clear(), released.clear()
        secret["words"] = with_words
        np.random.seed(seed)
        dp.sample(
            5, chains=1, step=dp.DPSurrogate, family="normal", model=compiled(build, False, is_spoilt), epsilon=1e3,
            delta=1e-3, cores=1, random_seed=seed, progressbar=False,
        )  # fmt: skip
        assert len(given) == 1
        assert len(used) > 2
        for one in used:  # and the number of the first unit, of which there is one for every shard
            np.testing.assert_array_equal(one, [*given[0], 0])
        return [x.tolist() for x in released]

    once = run(1, seed=1)
    assert run(1, seed=2) == once
    assert run(2, seed=1) != once
    run(1, seed=1, is_spoilt=True)


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
