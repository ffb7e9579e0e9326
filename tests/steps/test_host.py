"""DPPenalty inside pm.sample: processes, states, slots, and runs that do not match the plan."""

import copy
import multiprocessing
from functools import partial

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import CHAIN_START, from_groups, groups_of, root_attrs
from pymc_dp.steps.guards import refuse_moved
from pymc_dp.steps.statistics import STATS


def start_chain(step, seed=0):
    """What pm.sample does before a chain's first iteration."""
    arguments = (0, step.guarantee.draws) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(seed), *arguments)
    step.stop_tuning()


@pytest.mark.process
@pytest.mark.parametrize(
    ("cores", "method"),
    [
        (1, "fork"),
        (2, "fork"),
        (2, "spawn"),
        pytest.param(2, "forkserver", marks=pytest.mark.nightly),
    ],
)
def test_two_chains_one_ledger(cores, method, compiled):
    """The sum is charged once; a third chain is refused before it reads data."""
    model = compiled()
    ledger = dp.PrivacyLedger(epsilon=2.0, delta=1e-5)
    step = dp.DPPenalty(epsilon=1.0, delta=1e-5, draws=15, chains=2, ledger=ledger, model=model)
    keywords = {
        "cores": cores,
        "mp_ctx": multiprocessing.get_context(method),
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    idata = pm.sample(15, tune=0, chains=2, step=step, model=model.model, random_seed=1, **keywords)
    assert idata.posterior.sizes["chain"] == 2
    first, second = idata.posterior["beta"].values
    assert not np.array_equal(first, second)
    assert 0.99 < ledger.spent() <= 1.0
    assert ledger.events()[0].count == 30
    before = ledger.spent()
    with pytest.raises(Exception, match="all of them have started"):
        pm.sample(15, tune=0, chains=2, step=step, model=model.model, **keywords)
    assert ledger.spent() == before


@pytest.mark.parametrize(("planned", "asked"), [(1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.process)])
def test_another_number_of_chains_is_refused_before_the_charge(
    planned, asked, cores, compiled, quiet
):
    model = compiled()
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    step = dp.DPPenalty(
        epsilon=1.0, delta=1e-5, chains=planned, draws=10, ledger=ledger, model=model
    )
    host = {**quiet, "cores": cores, "mp_ctx": "fork"}
    # PyMC does not wait for the processes of an earlier test to end.
    others = set(multiprocessing.active_children())
    with pytest.raises(
        dp.PrivacyConfigurationError, match=f"asked for {asked} chains.*built for {planned}"
    ):
        pm.sample(10, tune=0, chains=asked, step=step, model=model.model, **host)
    assert ledger.spent() == 0
    assert set(multiprocessing.active_children()) <= others
    pm.sample(10, tune=0, chains=planned, step=step, model=model.model, **host)  # nothing is lost
    assert ledger.spent() > 0.99


def test_the_number_of_chains_is_asked_for(compiled):
    with pytest.raises(TypeError, match="chains"):
        dp.DPPenalty(epsilon=1.0, draws=10, model=compiled())


def test_more_chains_than_planned_are_refused_without_the_early_warning(
    compiled, quiet, monkeypatch
):
    monkeypatch.setattr("pymc_dp.steps.base.enclosing_sampler", lambda: None)
    model = compiled()
    step = dp.DPPenalty(epsilon=1.0, chains=1, draws=10, model=model)
    with pytest.raises(dp.PrivacyBudgetExceeded, match=r"`chains`"):
        pm.sample(10, tune=0, chains=2, step=step, model=model.model, **quiet)


def test_floating_point_errors_that_a_user_has_raised_lose_no_run(compiled, quiet):
    """A trajectory that overflows, of released numbers only."""
    model = compiled()
    step = dp.DPHMC(epsilon=1.0, step_size=1e200, max_drift=np.inf, chains=1, draws=4, model=model)
    step.stop_tuning()
    point = model.model.initial_point()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for _ in range(4):
            point, _ = step.step(point)
    assert (point["beta"] == 0).all()


def test_stats_are_the_whitelist_and_epsilon_adds_up(compiled, quiet):
    model = compiled()
    step = dp.DPPenalty(epsilon=1.5, delta=1e-4, draws=20, chains=2, model=model)
    idata = pm.sample(20, tune=0, chains=2, step=step, model=model.model, **quiet)
    stats = idata.sample_stats
    assert set(stats.data_vars) == set(STATS)
    assert (stats["epsilon"].values == 1.5).all()
    assert (stats["delta"].values == 1e-4).all()
    spent = stats["epsilon_spent"].values
    assert (np.diff(spent, axis=1) > 0).all()
    assert (spent < 1.5).all()  # one chain's part of the run


def test_reserving_happens_before_data_are_read(logistic, quiet, fast, monkeypatch):
    """A run that does not fit is refused without a single likelihood evaluation."""
    model = logistic()
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    step = dp.DPPenalty(
        epsilon=3.0, delta=1e-5, chains=1, draws=10, ledger=ledger, model=model, **fast
    )
    monkeypatch.setattr(type(step.compiled.likelihood), "__call__", None)
    with pytest.raises(dp.PrivacyBudgetExceeded, match="budget is ε = 1"):
        pm.sample(10, tune=0, chains=1, step=step, model=model, **quiet)
    assert ledger.spent() == 0


def test_building_a_step_costs_nothing(compiled):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    step = dp.DPPenalty(epsilon=1.0, delta=1e-5, chains=1, draws=5, ledger=ledger, model=compiled())
    dp.plan(step)
    assert ledger.spent() == 0
    assert ledger.runs() == []


# -- the state ----------------------------------------------------------------------------------


def seeded_step(model, **keywords):
    settings = {
        "noise_multiplier": 1.0,
        "draws": 12,
        "chains": 1,
        "noise_source": dp.InsecureSeededNoise(5),
        "model": model,
    } | keywords
    return dp.DPPenalty(**settings)


def iterate(step, point, times):
    path = []
    for _ in range(times):
        point, _ = step.step(point)
        path.append(point["beta"])
    return point, path


def test_state_round_trip_continues_the_same_path(compiled):
    """state → another process' copy → continue: the draws of an uninterrupted run."""
    model = compiled()
    whole = seeded_step(model)
    start_chain(whole, seed=3)
    _, expected = iterate(whole, model.model.initial_point(), 12)

    first = seeded_step(model)
    start_chain(first, seed=3)
    point, path = iterate(first, model.model.initial_point(), 5)
    state = first.sampling_state
    carried = cloudpickle.dumps(first)
    terms = first.compiled.likelihood(np.ravel(point["beta"]))
    assert terms.tobytes() in cloudpickle.dumps(terms)
    assert terms.tobytes() not in carried  # kept, and private: they do not travel
    second = cloudpickle.loads(carried)
    second.sampling_state = state
    _, rest = iterate(second, point, 7)
    np.testing.assert_array_equal(path + rest, expected)


def test_a_state_cannot_be_continued_twice(compiled):
    model = compiled()
    step = seeded_step(model)
    start_chain(step)
    point, _ = iterate(step, model.model.initial_point(), 4)
    state = copy.deepcopy(step.sampling_state)
    iterate(step, point, 3)
    step.sampling_state = state
    with pytest.raises(dp.PrivacyBudgetExceeded, match="continued before"):
        step.step(point)


def test_two_copies_of_a_step_cannot_both_continue(compiled):
    model = compiled()
    step = seeded_step(model)
    start_chain(step)
    point, _ = iterate(step, model.model.initial_point(), 4)
    twin = cloudpickle.loads(cloudpickle.dumps(step))
    twin.step(point)
    with pytest.raises(dp.PrivacyBudgetExceeded, match="continued before"):
        step.step(point)


def test_a_state_of_another_run_or_allotment_is_refused(compiled):
    model = compiled()
    step, other = seeded_step(model), seeded_step(model, draws=500)
    start_chain(other)
    with pytest.raises(ValueError, match="frozen"):
        step.sampling_state = other.sampling_state
    forged = copy.deepcopy(step.sampling_state)
    forged.iterations = 10_000
    with pytest.raises(ValueError, match="iterations"):
        step.sampling_state = forged


def test_state_holds_no_terms(compiled):
    model = compiled()
    step = seeded_step(model)
    start_chain(step)
    iterate(step, model.model.initial_point(), 2)
    arrays = [v for v in vars(step.sampling_state).values() if isinstance(v, np.ndarray)]
    assert all(v.size == 2 for v in arrays)  # per parameter, not per record


def test_more_draws_than_planned_by_hand(compiled):
    model = compiled()
    step = seeded_step(model, draws=3)
    start_chain(step)
    point, _ = iterate(step, model.model.initial_point(), 3)
    with pytest.raises(dp.PrivacyBudgetExceeded, match="used up"):
        step.step(point)


# -- runs that do not match the plan ----------------------------------------------------------------


def test_host_draws_and_tune_must_match(compiled, quiet):
    """Refused before anything is charged, on both lines."""
    model = compiled()
    for host, word in [
        ({"draws": 11, "tune": 0}, "11 draws"),
        ({"draws": 10, "tune": 7}, "7 tuning"),
    ]:
        ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
        step = dp.DPPenalty(epsilon=1.0, delta=1e-5, chains=1, draws=10, ledger=ledger, model=model)
        with pytest.raises(dp.PrivacyConfigurationError, match=word):
            pm.sample(**host, chains=1, step=step, model=model.model, **quiet)
        assert ledger.spent() == 0


def test_tuning_guard_without_the_early_warning(logistic, quiet, fast, monkeypatch):
    """The guard that does not look at the host's frames stops the first iteration."""
    model = logistic()
    monkeypatch.setattr("pymc_dp.steps.base.enclosing_sampler", lambda: None)
    for planned, actual in [(0, 5), (5, 0), (5, 3)]:
        step = dp.DPPenalty(epsilon=1.0, chains=1, draws=10, tune=planned, model=model, **fast)
        monkeypatch.setattr(type(step.compiled.likelihood), "__call__", None)
        if min(planned, actual):
            monkeypatch.setattr(
                step,
                "_iterate",
                lambda theta, permit: (
                    theta,
                    dict.fromkeys(("accepted", "accept_rate", "scale"), 0.0),
                ),
            )
        with pytest.raises(dp.PrivacyConfigurationError, match="tuning iterations"):
            pm.sample(10, tune=actual, chains=1, step=step, model=model, **quiet)


def test_omitted_tune_is_safe(compiled, quiet):
    """PyMC 5 tunes 1000 iterations when `tune` is left out; PyMC 6 asks the step, which says 0."""
    model = compiled()
    step = dp.DPPenalty(epsilon=1.0, chains=1, draws=10, model=model)
    if CHAIN_START == "setup_chain":
        assert (
            pm.sample(10, chains=1, step=step, model=model.model, **quiet).posterior.sizes["draw"]
            == 10
        )
    else:
        with pytest.raises(dp.PrivacyConfigurationError, match="PyMC 5 runs 1000"):
            pm.sample(10, chains=1, step=step, model=model.model, **quiet)


def test_uncovered_variables_are_refused_by_name(fast):
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b, 1, observed=np.array([0.1, 0.2]))
    with pytest.raises(dp.UnsupportedModelError, match=r"\['b'\] are not covered"):
        dp.DPPenalty([a], epsilon=1.0, chains=1, draws=5, model=model, **fast)
    dp.DPPenalty([b, a], epsilon=1.0, chains=1, draws=5, model=model, **fast)


def test_no_other_step_in_the_run(compiled, quiet):
    model = compiled()
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    step = dp.DPPenalty(epsilon=1.0, delta=1e-5, chains=1, draws=5, ledger=ledger, model=model)
    mixed = [step, pm.Slice(model=model.model)]
    with pytest.raises(dp.UnsupportedModelError, match="Slice"):
        pm.sample(5, tune=0, chains=1, step=mixed, model=model.model, **quiet)
    assert ledger.spent() == 0


@pytest.mark.parametrize("rows", [1, 2])
def test_an_effect_for_each_person_is_refused(rows, fast):
    """Also where a person has several rows, so that it is shorter than the data."""
    who = np.repeat(np.arange(120), rows)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 1, shape=120)
        pm.Normal("y", effect[who], 1, observed=np.zeros(len(who)))
    with pytest.raises(dp.UnsupportedModelError, match="'effect' has one value per record or unit"):
        dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model, unit=who, **fast)


def test_blocked_false_is_refused(compiled):
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b, 1, observed=np.array([0.1, 0.2]))
    with pytest.raises(dp.PrivacyConfigurationError, match="blocked"):
        dp.DPPenalty(epsilon=1.0, chains=1, draws=5, blocked=False, model=model)


def test_deterministic_added_later_is_refused(logistic, quiet, fast):
    model = logistic()
    step = dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model, **fast)
    with model:
        pm.Deterministic("p", model["X"] @ model["beta"])
    with pytest.raises(dp.UnsupportedModelError, match="'p'"):
        pm.sample(5, tune=0, chains=1, step=step, model=model, **quiet)


def test_interrupt_keeps_draws_and_refunds_nothing(compiled, quiet):
    model = compiled()
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    step = dp.DPPenalty(epsilon=1.0, delta=1e-5, chains=1, draws=50, ledger=ledger, model=model)

    def interrupt(trace, draw):
        if draw.draw_idx == 7:
            raise KeyboardInterrupt

    idata = pm.sample(
        50, tune=0, chains=1, step=step, model=model.model, callback=interrupt, **quiet
    )
    safe = dp.release(idata)
    assert safe.posterior.sizes["draw"] == 8
    assert safe.attrs["privacy_epsilon"] == 1.0
    assert ledger.spent() > 0.99


def test_pymc_never_picks_the_step_itself(compiled):
    model = compiled()
    assert dp.DPPenalty.competence(model.model.value_vars[0], True) == 0


def test_progress_bar_shows_acceptance_and_spending(compiled):
    """The columns the host draws, filled from what an iteration reports."""
    model = compiled()
    step = seeded_step(model)
    start_chain(step)
    columns, fields = step._progressbar_config(n_chains=2)
    assert [c.get_table_column().header for c in columns] == ["Acceptance", "ε spent"]
    _, (stats,) = step.step(model.model.initial_point())
    (update,) = step._make_progressbar_update_functions()
    shown = update(stats)
    assert shown.keys() - {"failing"} == fields.keys()
    assert shown["epsilon_spent"] == stats["epsilon_spent"]
    assert shown["accept_rate"] == stats["accept_rate"]


def test_data_replaced_later_are_refused(logistic, quiet, fast):
    model = logistic()
    step = dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model, **fast)
    model.set_data("X", np.zeros((120, 2)))
    with pytest.raises(dp.PrivacyConfigurationError, match=r"\['X'\] were replaced"):
        pm.sample(5, tune=0, chains=1, step=step, model=model, **quiet)


def test_single_precision_is_refused(fast):
    import pytensor

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.array([0.1, 0.2]))
    with (
        pytensor.config.change_flags(floatX="float32"),
        pytest.raises(dp.PrivacyConfigurationError, match="floatX"),
    ):
        dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model, **fast)


def test_another_step_that_moves_the_chain_is_noticed(compiled):
    """Without a look at the host: the chain is not where the private step left it."""
    model = compiled()
    step = seeded_step(model)
    start_chain(step)
    point, _ = iterate(step, model.model.initial_point(), 2)
    with pytest.raises(dp.UnsupportedModelError, match="else moves this chain"):
        step.step({"beta": point["beta"] + 1e-9})
    with pytest.raises(dp.UnsupportedModelError, match="else moves this chain"):
        step.step({**point, "stranger": np.zeros(2)})


# -- nothing is spent by the way ----------------------------------------------------------------------


def test_reading_an_attribute_spends_nothing(compiled):
    """Whatever the functions are called that read it: a debugger, a test, somebody's own `init_traces`."""
    import reprlib

    model = compiled()
    ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-5)
    steps = [
        kind(epsilon=1.0, delta=1e-5, draws=10, chains=2, ledger=ledger, model=model)
        for kind in (dp.DPPenalty, partial(dp.DPSurrogate, family="normal"), dp.DPHMC)
    ]

    def init_traces(step, tune=0, expected_length=10, chains=2, cores=1, trace_vars=None):
        return step.stats_dtypes

    for step in steps:
        assert init_traces(step)
        for name in dir(step):
            getattr(step, name, None)
        reprlib.repr(step)
        str(step)
        cloudpickle.dumps(step)
        copy.copy(step)
        dp.plan(step)
        with step.rehearsing():
            start_chain(step)
            point, (stats,) = step.step(model.model.initial_point())
            assert set(stats) == set(STATS)
            np.testing.assert_equal(point, model.model.initial_point())
            step.stop_tuning()
        assert not step.tuning_over
    assert ledger.spent() == 0
    assert ledger.runs() == []


def test_statistics_of_one_step_are_no_others(compiled, quiet):
    """A subclass declares what it may release for itself."""

    class Talkative(dp.DPPenalty):
        own_stats = ("raw_log_likelihood",)

    model = compiled()
    step = dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model)
    raw = pm.sample(5, tune=0, chains=1, step=step, model=model.model, **quiet)
    groups = groups_of(raw)
    stats = groups["sample_stats"].assign(raw_log_likelihood=groups["sample_stats"]["scale"] * 0)
    tampered = from_groups({**groups, "sample_stats": stats}, root_attrs(raw), like=raw)
    with pytest.raises(dp.PrivacyError, match="raw_log_likelihood"):
        dp.release(tampered)
    assert "raw_log_likelihood" not in dp.release(raw).sample_stats


def test_a_coupled_model_is_refused_by_a_step(fast):
    with pm.Model() as model:
        x = pm.Data("x", np.random.default_rng(0).normal(size=50))
        pm.Normal("y", pm.Normal("b") * (x - x.mean()), 1, observed=np.zeros(50))
    for kind in (
        dp.DPPenalty,
        partial(dp.DPSurrogate, family="normal"),
        partial(dp.DPSurrogate, family="polynomial"),
    ):
        with pytest.raises(dp.UnsupportedModelError, match="depends on other records"):
            kind(epsilon=1.0, chains=1, draws=5, model=model, **fast)


def test_a_chain_at_what_is_not_a_number_has_not_moved():
    """Draws that overflowed are paid for, too; another step that leaves from there still has moved the chain."""
    at = {"a": np.array([np.nan, 1.0]), "k": np.array(3)}
    refuse_moved(copy.deepcopy(at), at.keys(), at)
    for other in (np.array([0.0, 1.0]), np.array([np.nan, 2.0])):
        with pytest.raises(dp.UnsupportedModelError, match="Something else moves this chain"):
            refuse_moved({**at, "a": other}, at.keys(), at)
