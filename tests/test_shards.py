"""Records on the workers of a cluster: the same draws as on one machine, and only sums travel."""

import os
import pickle
import signal
import time
from functools import partial

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.privacy.clipping import RESOLUTION, clipped_sum
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.noisy_sum import noisy_sum, noisy_total
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.queries import LogLikelihoodRatio
from pymc_dp.records.sharded import ShardedRecords
from pymc_dp.records.sums import LocalRecords

from .marks import slow_but

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.process

N, D, CHUNK = 3200, 3, 400
SENTINEL = 271828.182845904509


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def two_workers(request):
    """Those that a test has killed come back."""
    if "client" in request.fixturenames:
        request.getfixturevalue("client").wait_for_workers(2, timeout=60)


def records(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    y = (rng.random(N) < 1 / (1 + np.exp(-x.sum(axis=1)))).astype(np.int64)
    return x, y


def model_of(x, y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=x.shape[1])
        pm.Bernoulli("ill", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y))
    return model


def stand_in(n=7):
    rng = np.random.default_rng(9)
    return model_of(rng.normal(size=(n, D)), np.arange(n) % 2)


def loader(sizes, **more):
    """A function that needs nothing from this file, which workers cannot import."""
    x, y = records()
    stops = np.cumsum(sizes)
    arrays = {"X": x, "Y": y, **more}

    def load(k):
        return {name: a[stops[k] - sizes[k] : stops[k]] for name, a in arrays.items()}

    return load


def step_on(model, step=dp.DPPenalty, **keywords):
    settings = {
        "noise_multiplier": 30.0,
        "draws": 25,
        "chains": 2,
        "noise_source": dp.InsecureSeededNoise(3),
        "model": model,
        "chunk_size": CHUNK,
    } | keywords
    return step(**settings)


def run(step, quiet, **keywords):
    """Draws, and the acceptance rates: a function of the released sums down to the last bit."""
    raw = pm.sample(
        step.guarantee.draws, tune=0, chains=step.guarantee.chains, step=step, model=step.model,
        random_seed=4, **quiet, **keywords,
    )  # fmt: skip
    return raw.posterior["beta"].values, raw.sample_stats["accept_rate"].values


@pytest.fixture(scope="module")
def one_machine():
    step = step_on(model_of(*records()))
    return run(step, {"cores": 1, "progressbar": False, "compute_convergence_checks": False})


# -- the release ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [None, 4])
def test_parts_of_a_sum_give_the_same_release(dimension):
    rng = np.random.default_rng(0)
    terms = rng.standard_cauchy(size=(1000,) if dimension is None else (1000, dimension))
    settings = {"dimension": dimension, "bound": 1.7, "noise_multiplier": 2.0}

    def permit():
        return Permit(0, 0, (Gaussian(2.0),))

    noise = dp.InsecureSeededNoise(5)
    whole = noisy_sum([terms], **settings, permit=permit(), noise=noise)
    for cuts in ([500], [1, 2, 999], [0, 300]):
        parts = (clipped_sum([part], 1.7, dimension) for part in np.split(terms, cuts))
        np.testing.assert_array_equal(
            noisy_total(parts, **settings, permit=permit(), noise=noise), whole
        )


def test_no_part_is_asked_for_without_a_permit():
    def parts():
        pytest.fail("asked")
        yield

    permit = Permit(0, 0, (Gaussian(2.0),))
    with pytest.raises(dp.PrivacyBudgetExceeded):
        noisy_total(
            parts(), bound=1.0, noise_multiplier=1.0, permit=permit, noise=dp.InsecureSeededNoise(0)
        )


def test_no_noise_is_drawn_for_a_sum_that_fails():
    class Counted(dp.InsecureSeededNoise):
        def discrete_gaussian(self, scale, size, at=()):
            pytest.fail("drawn")

    def parts():
        yield np.array([RESOLUTION])
        raise dp.ShardError("gone")

    permit = Permit(0, 0, (Gaussian(2.0),))
    with pytest.raises(dp.ShardError):
        noisy_total(parts(), bound=1.0, noise_multiplier=2.0, permit=permit, noise=Counted(0))
    with pytest.raises(dp.PrivacyBudgetExceeded):  # and it is paid for all the same
        permit.take(Gaussian(2.0))


# -- the same as on one machine ---------------------------------------------------------------------


def test_of_data_evaluates_other_records():
    model, (x, y) = model_of(*records()), records()
    theta = np.array([0.3, -1.0, 2.0])
    whole = dp.compile(model, chunk_size=CHUNK).likelihood
    small = stand_in()
    other = dp.compile(small, chunk_size=CHUNK).likelihood
    arrays = {"X": x[:800], "Y": y[:800].astype(np.int32)}
    moved = other.of_data([arrays[leaf.name] for leaf in other.roles.record_data])
    np.testing.assert_array_equal(moved(theta), whole(theta)[:800])
    assert other.n_units == 7
    assert moved.n_units == 800
    codes = np.arange(800) // 4
    by_unit = moved.of_data([leaf.values for leaf in moved.roles.record_data], codes)
    np.testing.assert_allclose(by_unit(theta), moved(theta).reshape(200, 4).sum(axis=1))
    np.testing.assert_array_equal(by_unit.of_units(theta, np.array([3, 199])).shape, (2,))


@pytest.mark.parametrize("sizes", [[N], [1600, 1600], [800] * 4, [400, 2400, 400]], ids=str)
def test_draws_are_those_of_one_machine(client, one_machine, quiet, sizes):
    shards = dp.Shards(client, loader(sizes), records=sizes)
    draws, rates = run(step_on(stand_in(), shards=shards), quiet)
    np.testing.assert_array_equal(draws, one_machine[0])
    np.testing.assert_array_equal(rates, one_machine[1])
    assert len(np.unique(rates)) > 20  # rates differ from iteration to iteration


GRADIENTS = {
    "normal": {"step": partial(dp.DPSurrogate, family="normal"), "epsilon": 8.0},
    "normal, add-or-remove": {
        "step": partial(dp.DPSurrogate, family="normal"), "epsilon": 8.0, "neighbours": "add-or-remove", "delta": 1e-5,
    },
    "DPHMC": {"step": dp.DPHMC, "epsilon": 8.0, "n_leapfrog": 2},
    "DPHMC, add-or-remove": {
        "step": dp.DPHMC, "epsilon": 8.0, "n_leapfrog": 2, "neighbours": "add-or-remove", "delta": 1e-5,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("sizes", slow_but([1600, 1600])([[1600, 1600], [800] * 4]), ids=str)
def test_samplers_with_derivatives_draw_like_one_machine(client, quiet, name, sizes):
    """Anchors and gradients too: histograms, sums and counts of all workers are whole numbers."""
    settings = {
        "draws": 8,
        "chains": 1,
        "noise_source": dp.InsecureSeededNoise(3),
        "chunk_size": CHUNK,
    }
    make = GRADIENTS[name] | settings
    step = make.pop("step")
    alone = step(model=model_of(*records()), **make)
    shards = dp.Shards(client, loader(sizes), records=sizes)
    spread = step(model=stand_in(), shards=shards, **make)
    for ours, theirs in zip(run(spread, quiet), run(alone, quiet), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert spread.guarantee.neighbours == alone.guarantee.neighbours
    if "surrogate" in vars(alone):
        assert_same_law(spread.surrogate, alone.surrogate)


def assert_same_law(ours, theirs):
    """To the last bit: of all that was released for it, and of what clipped it."""
    for name in ("centre", "beta", "J", "S"):
        np.testing.assert_array_equal(*(getattr(a.posterior.law, name) for a in (ours, theirs)))
    assert np.abs(ours.posterior.law.beta).min() > 0
    assert (ours.surprise, ours.hessian_clip) == (theirs.surprise, theirs.hessian_clip)


def test_samples_of_units_are_those_of_one_machine(client, quiet):
    sizes, settings = (
        [1600, 1600],
        {"sampling_rate": 0.3, "tempering": 0.3, "draws": 10, "chains": 1},
    )
    shards = dp.Shards(client, loader(sizes), records=sizes)
    ours = run(step_on(stand_in(), shards=shards, **settings), quiet)
    theirs = run(step_on(model_of(*records()), **settings), quiet)
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6)


def test_another_record_changes_them(client, one_machine, quiet):
    """The comparison above would notice one record of one shard."""
    _, y = records()
    y[N - 1] = 1 - y[N - 1]
    shards = dp.Shards(client, loader([1600, 1600], Y=y), records=[1600, 1600])
    _, rates = run(step_on(stand_in(), shards=shards), quiet)
    assert not np.array_equal(rates, one_machine[1])

    def law(**keywords):
        settings = GRADIENTS["normal"] | {"draws": 8, "chains": 1, "chunk_size": CHUNK}
        step = settings.pop("step")(noise_source=dp.InsecureSeededNoise(3), **settings, **keywords)
        return step.release().posterior.law

    ours, theirs = law(model=stand_in(), shards=shards), law(model=model_of(*records()))
    assert not np.array_equal(ours.beta, theirs.beta)


def test_units_are_those_of_one_machine(client, quiet):
    people = np.random.default_rng(2).integers(50, size=N)
    people[1600:] += 1000  # nobody is in both shards
    settings = {"draws": 10, "chains": 1}
    alone = step_on(model_of(*records()), unit=people, **settings)
    sizes, units = [1600, 1600], [len(set(people[:1600])), len(set(people[1600:]))]
    shards = dp.Shards(
        client, loader(sizes, person=people), records=sizes, unit="person", units=units
    )
    step = step_on(stand_in(), shards=shards, **settings)
    assert (step.guarantee.n_units, step.guarantee.n_records) == (sum(units), N)
    assert step.guarantee.unit == alone.guarantee.unit
    for ours, theirs in zip(run(step, quiet), run(alone, quiet), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_guarantee_is_for_all_records(client):
    shards = dp.Shards(client, loader([1600, 1600]), records=[1600, 1600])
    common = {"noise_multiplier": None, "epsilon": 2.0, "noise_source": None}
    step, alone = (
        step_on(stand_in(), shards=shards, **common),
        step_on(model_of(*records()), **common),
    )
    ours, theirs = step.guarantee, alone.guarantee
    assert (ours.events, ours.delta, ours.n_units) == (theirs.events, theirs.delta, theirs.n_units)
    assert ours.settings == theirs.settings | {"shards": 2}


def test_sample_takes_shards(client):
    shards = dp.Shards(client, loader([1600, 1600]), records=[1600, 1600])
    keywords = {"step": dp.DPPenalty, "epsilon": 2.0, "shards": shards, "model": stand_in()}
    result = dp.sample(8, chains=2, progressbar=False, **keywords)
    assert result.posterior["beta"].shape == (2, 8, D)
    ledger = dp.PrivacyLedger(epsilon=2.0, delta=1e-5)
    with pytest.raises(dp.PrivacyConfigurationError, match="cores"):
        dp.sample(8, chains=2, cores=2, ledger=ledger, **keywords)
    assert ledger.spent() == 0


# -- what travels -----------------------------------------------------------------------------------


def test_only_integer_sums_come_back(client, quiet, monkeypatch):
    answers = []
    gather = client.gather
    monkeypatch.setattr(client, "gather", lambda f: answers.append(gather(f)) or answers[-1])
    shards = dp.Shards(client, loader([1600, 1600]), records=[1600, 1600])
    step = step_on(stand_in(), shards=shards, chains=1)
    run(step, quiet)
    assert len(answers) == 1 + 25
    addresses = set(client.nthreads())
    for address, total, failure in (part for answer in answers for part in answer):
        assert address in addresses
        assert total.dtype == np.int64
        assert total.shape == (1,)
        assert np.abs(total) <= 1600 * RESOLUTION
        assert failure is None


def test_the_models_own_records_stay_here():
    """Whatever a curator writes into the model: none of it is in what workers are sent."""
    x, y = records()
    x[:] = SENTINEL / 1e6
    model = model_of(x, y)
    sent = []

    class Cluster:
        def nthreads(self):
            return {"a": 1}

        def submit(self, function, *args, **keywords):
            sent.append(cloudpickle.dumps(args))
            raise RuntimeError

    compiled = dp.compile(model)
    local = LocalRecords(compiled, 1, words=np.zeros(4, np.uint64))
    # As after a step on one machine: what it has computed of these records stays here, too.
    of = LogLikelihoodRatio(np.zeros(D), np.ones(D))
    local.total(of, 1.0)
    [*local.scores(np.zeros(D))]
    shards = dp.Shards.__new__(dp.Shards)
    shards.client, shards.load, shards.unit = Cluster(), str, None
    shards.records = shards.units = (5,)
    with pytest.raises(RuntimeError):
        ShardedRecords(shards, local)
    assert len(sent[0]) > 1000
    assert np.float64(SENTINEL / 1e6).tobytes() not in sent[0]
    assert np.float64(SENTINEL / 1e6).tobytes() in pickle.dumps(x)


def test_a_worker_passes_nothing_on_but_refusals(monkeypatch):
    """Dask would write any other exception down, with its arguments."""
    from pymc_dp.records import worker

    class Here:
        address = "here"

    def broken(*_):
        raise KeyError(SENTINEL)

    monkeypatch.setattr("distributed.get_worker", Here)
    monkeypatch.setattr(worker._held, "shard", broken)
    address, _, failure = worker.answer(b"", ("x", dp.__version__), [0], "total", ())
    assert address == "here"
    assert isinstance(failure, dp.ShardError)
    assert "271828" not in repr(failure)
    assert failure.__cause__ is None


@pytest.mark.parametrize(
    ("broken", "error", "says"),
    [
        ("raises", dp.ShardError, r"load\(1\) failed"),
        ("missing", dp.ShardError, r"load\(1\) failed"),
        ("short", dp.ShardError, "'X' must be an array of float64 with the shape"),
        ("text", dp.ShardError, "'Y' must be an array"),
        ("people", dp.ShardError, "'person' must hold 1600 integer or text identifiers"),
    ],
)
def test_a_bad_shard_is_refused_without_a_word_about_it(client, broken, error, says):
    good = loader([1600, 1600], person=np.arange(N))
    sentinel = SENTINEL

    def load(k):
        import numpy as np

        arrays = {name: x.copy() for name, x in good(k).items()}
        if k == 0:
            return arrays
        arrays["X"][3, 1] = sentinel
        if broken == "raises":
            raise ValueError(arrays["X"][3, 1])
        if broken == "missing":
            del arrays["Y"]
        if broken == "short":
            arrays["X"] = arrays["X"][:-1]
        if broken == "text":
            arrays["Y"] = np.full(1600, str(sentinel))
        if broken == "people":
            arrays["person"][9] = arrays["person"][8]
        return arrays

    shards = dp.Shards(client, load, records=[1600, 1600], unit="person", units=[1600, 1600])
    with pytest.raises(error, match=says) as refusal:
        step_on(stand_in(), shards=shards)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None
    for text in (str(refusal.value), logs(client)):
        assert "271828" not in text


def logs(client):
    return str(client.get_worker_logs()) + str(client.get_scheduler_logs())


def test_the_logs_would_have_told(client):
    def load(k):
        raise ValueError(f"value {k}")

    with pytest.raises(ValueError, match="value 314159"):
        client.submit(load, 314159).result()
    assert "314159" in logs(client)


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"records": []}, "`records`"),
        ({"records": [10, 0]}, "`records`"),
        ({"records": [10, 2.5]}, "`records`"),
        ({"records": [10], "unit": "person"}, "come together"),
        ({"records": [10], "units": [5]}, "come together"),
        ({"records": [10, 10], "unit": "person", "units": [5]}, "per shard"),
        ({"records": [10], "load": "file"}, "`load`"),
        ({"records": [10], "client": None}, "`client`"),
    ],
)
def test_arguments_are_checked(client, arguments, says):
    settings = {"client": client, "load": loader([10])} | arguments
    with pytest.raises(dp.PrivacyConfigurationError, match=says):
        dp.Shards(**settings)


def test_what_shards_cannot_do_is_refused(client):
    shards = dp.Shards(client, loader([1600, 1600]), records=[1600, 1600])
    for other in (dp.DPBarker, dp.DPExponentialFamily, dp.experimental.DPSGLD):
        with pytest.raises(TypeError, match="shards"):
            other(draws=1, chains=1, epsilon=1.0, model=stand_in(), shards=shards)
    with pytest.raises(dp.PrivacyConfigurationError, match="identifiers are loaded"):
        step_on(stand_in(), shards=shards, unit=np.arange(7))
    with pm.Model() as nameless:
        beta = pm.Normal("beta", shape=D)
        pm.Bernoulli("Y", logit_p=np.ones((7, D)) @ beta, observed=np.arange(7) % 2)
    with pytest.raises(dp.PrivacyConfigurationError, match="for want of a name"):
        step_on(nameless, shards=shards)


def test_shards_are_shards():
    with pytest.raises(dp.PrivacyConfigurationError, match=r"must be a pymc_dp\.Shards"):
        step_on(stand_in(), shards=object())


@pytest.mark.parametrize("copied", ["by pickle", "by fork"])
def test_parallel_chains_are_refused_before_they_cost_anything(client, copied):
    ledger = dp.PrivacyLedger(epsilon=2.0, delta=1e-5)
    shards = dp.Shards(client, loader([1600, 1600]), records=[1600, 1600])
    step = step_on(
        stand_in(),
        shards=shards,
        noise_multiplier=None,
        epsilon=1.0,
        noise_source=None,
        ledger=ledger,
    )
    if copied == "by fork":
        shards._process += 1  # as a child process would find it
    with pytest.raises(dp.PrivacyConfigurationError, match="cores=1"):
        pm.sample(
            25,
            tune=0,
            chains=2,
            cores=2 if copied == "by pickle" else 1,
            mp_ctx="spawn",
            step=step,
            model=step.model,
            progressbar=False,
        )
    assert ledger.spent() == 0


# -- workers that die -------------------------------------------------------------------------------


def kill_a_worker_during(client, monkeypatch, iteration):
    """SIGKILL to a worker that has just been asked for a sum."""
    processes = client.run(os.getpid)
    submit, asked = client.submit, []

    def and_kill(function, *args, **keywords):
        future = submit(function, *args, **keywords)
        asked.append(keywords.get("workers"))
        if len(asked) == 1 + 2 + 2 * iteration:  # the program, two answers that all is ready
            os.kill(processes[keywords["workers"][0]], signal.SIGKILL)
        return future

    monkeypatch.setattr(client, "submit", and_kill)


def test_a_worker_that_dies_changes_nothing(client, one_machine, quiet, monkeypatch):
    calls = []

    class Counted(dp.InsecureSeededNoise):
        def discrete_gaussian(self, scale, size, at=()):
            calls.append(at)
            return super().discrete_gaussian(scale, size, at)

    kill_a_worker_during(client, monkeypatch, iteration=12)
    shards = dp.Shards(client, loader([1600, 1600]), records=[1600, 1600])
    before = set(client.nthreads())
    draws, rates = run(step_on(stand_in(), shards=shards, noise_source=Counted(3)), quiet)
    client.wait_for_workers(2, timeout=60)
    assert set(client.nthreads()) != before  # one of them did die
    np.testing.assert_array_equal(draws, one_machine[0])
    np.testing.assert_array_equal(rates, one_machine[1])
    assert len(calls) == len(set(calls)) == 2 * 25  # noise was drawn once for each release


def test_a_run_that_cannot_go_on_ends_within_its_budget(client, quiet, monkeypatch, tmp_path):
    """A shard whose reloading kills the worker, as one that is too large for it would."""
    good, marker = loader([1600, 1600]), tmp_path / "loaded once"

    def load(k):
        import os

        if k == 1:
            if marker.exists():
                os._exit(1)
            marker.touch()
        return good(k)

    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    # Asked second is the second group: shard 1.
    kill_a_worker_during(client, monkeypatch, iteration=12)
    step = step_on(
        stand_in(),
        shards=dp.Shards(client, load, records=[1600, 1600]),
        noise_multiplier=None,
        epsilon=1.0,
        noise_source=None,
        ledger=ledger,
    )
    step.stop_tuning()
    point = step.model.initial_point()
    for _ in range(11):
        point, _ = step.step(point)
    with pytest.raises(dp.ShardError, match="stays charged") as refusal:
        step.step(point)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None
    assert 0 < ledger.spent() <= 1.0
    assert step.used == 12  # the one that failed is counted
    with pytest.raises(dp.PrivacyBudgetExceeded):
        run(step_on(model_of(*records()), noise_multiplier=None, epsilon=0.5, noise_source=None,
                    ledger=ledger), quiet)  # fmt: skip


def test_a_cluster_without_workers_is_given_up():
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        sizes = [1600, 1600]
        shards = dp.Shards(client, loader(sizes), records=sizes, patience=0.5)
        step = step_on(stand_in(), shards=shards)
        step.stop_tuning()
        point, _ = step.step(step.model.initial_point())
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        with pytest.raises(dp.ShardError, match="none are left"):
            step.step(point)
        with pytest.raises(dp.ShardError, match="no workers"):
            step_on(stand_in(), shards=shards)
