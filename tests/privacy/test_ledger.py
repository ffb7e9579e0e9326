"""The account: nothing is spent twice, over budget, or lost."""

import copy
import gc
import math
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sqlite3
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pymc_dp.exceptions import LedgerError, PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.account_file import FORMAT_VERSION
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Gaussian, Laplace
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.plans import Permit, RunPlan

DELTA = 1e-6


def plan(run="run", *, epsilon=0.4, chains=2, iterations=5):
    """A run that costs `epsilon`."""
    z = calibrate_noise(epsilon=epsilon, delta=DELTA, releases=chains * iterations)
    return RunPlan(run, f"Run {run}", (Gaussian(z),), chains, iterations)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.ledger"


@pytest.fixture
def ledger(path):
    return PrivacyLedger(path, epsilon=1.0, delta=DELTA)


def rows(path):
    """Everything the file holds, read without the package."""
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql <> ''")]
        return {t: db.execute(f"SELECT * FROM {t}").fetchall() for t in sorted(tables)}


def into_main_file(path):
    """Move what SQLite keeps beside the file into it."""
    gc.collect()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


# -- the budget -----------------------------------------------------------------------------------


def test_a_new_account_is_empty(ledger):
    assert (ledger.epsilon, ledger.delta) == (1.0, DELTA)
    assert ledger.spent() == 0
    assert ledger.remaining() == pytest.approx(1.0, rel=1e-8)
    assert ledger.events() == ()


def test_what_is_reserved_is_spent_and_composes(ledger):
    first, second = plan("a", epsilon=0.4), plan("b", epsilon=0.6)
    ledger.reserve(first)
    assert ledger.spent() == composed_epsilon(first.total, DELTA)
    ledger.reserve(second)
    assert ledger.runs() == [first, second]
    assert ledger.events() == first.total + second.total
    assert ledger.spent() == composed_epsilon(first.total + second.total, DELTA)
    assert 0.6 < ledger.spent() < 1.0  # less than the sum of the two
    left = ledger.remaining()
    assert 1.0 - ledger.spent() < left  # more than the difference fits
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.reserve(plan("c", epsilon=left * 1.0001))
    ledger.reserve(plan("d", epsilon=left))
    assert ledger.remaining() < 1e-3


@pytest.mark.parametrize(
    ("epsilon", "chains", "iterations"), [(0.01, 1, 1), (0.3, 4, 1500), (1.0, 3, 17), (100.0, 2, 9)]
)
def test_a_calibrated_run_fits_its_own_budget_once(epsilon, chains, iterations):
    ledger = PrivacyLedger(epsilon=epsilon, delta=DELTA)
    ledger.reserve(plan("a", epsilon=epsilon, chains=chains, iterations=iterations))
    assert ledger.spent() <= epsilon
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.reserve(plan("b", epsilon=epsilon / 10))


def test_a_run_over_budget_is_refused_and_leaves_the_account_as_it_was(ledger, path):
    ledger.reserve(plan("a", epsilon=0.7))
    before = rows(path)
    with pytest.raises(
        PrivacyBudgetExceeded, match=r"budget is ε = 1, of which 0\.7 is spent"
    ) as refusal:
        ledger.reserve(plan("b", epsilon=0.9))
    assert rows(path) == before
    said = float(re.search(r"`epsilon=([\d.]+)` still fits", str(refusal.value))[1])
    assert said > 0.3  # more than 1 - 0.7
    ledger.reserve(plan("c", epsilon=said))


def test_a_run_without_noise_fits_only_an_account_without_limit(ledger):
    silent = RunPlan("a", "", (Gaussian(0.0),), 1, 1)
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.reserve(silent)
    free = PrivacyLedger(epsilon=math.inf, delta=0.5)
    free.reserve(silent)
    assert free.spent() == math.inf


def test_reserving_again_costs_nothing(ledger, path):
    for _ in range(3):
        ledger.reserve(plan(epsilon=0.9))
    assert len(rows(path)["runs"]) == 1
    PrivacyLedger(path).reserve(plan(epsilon=0.9))
    assert ledger.runs() == [plan(epsilon=0.9)]


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 6},
        {"chains": 3},
        {"events": (Gaussian(1e9),)},
        {"events": (Laplace(1e9),)},
        {"description": "another"},
    ],
    ids=str,
)
def test_a_reserved_run_cannot_change_its_plan(ledger, change):
    ledger.reserve(plan())
    with pytest.raises(LedgerError, match="another plan"):
        ledger.reserve(replace(plan(), **change))
    assert ledger.runs() == [plan()]


# -- chains and iterations ------------------------------------------------------------------------


def test_each_chain_claims_a_slot_and_no_more_chains_than_planned(ledger):
    ledger.reserve(plan(chains=3))
    assert [ledger.claim(plan(chains=3)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(PrivacyBudgetExceeded, match="3 chain"):
        ledger.claim(plan(chains=3))


def test_an_iteration_is_handed_out_once(ledger):
    p = plan(iterations=3)
    ledger.reserve(p)
    slot = ledger.claim(p)
    assert ledger.charge(p, slot, 0) == Permit(slot, 0, p.events)
    assert ledger.charge(p, slot, 1).iteration == 1
    for stale in (0, 1, -1):  # a state that was wound back
        with pytest.raises(PrivacyBudgetExceeded, match="continued before"):
            ledger.charge(p, slot, stale)
    ledger.charge(p, slot, 2)
    for beyond in (3, 100):
        with pytest.raises(PrivacyBudgetExceeded, match="3 iterations"):
            ledger.charge(p, slot, beyond)


def test_an_iteration_cannot_be_skipped_to_or_charged_to_nobody(ledger, path):
    p = plan(iterations=3)
    ledger.reserve(p)
    slot = ledger.claim(p)
    before = rows(path)
    for wrong in ((slot, 1), (slot + 1, 0)):
        with pytest.raises(PrivacyBudgetExceeded):
            ledger.charge(p, *wrong)
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.charge(replace(p, run="unheard of"), slot, 0)
    assert rows(path) == before


def test_chains_are_counted_apart(ledger):
    p = plan(chains=2, iterations=2)
    ledger.reserve(p)
    a, b = ledger.claim(p), ledger.claim(p)
    order = [(a, 0), (b, 0), (b, 1), (a, 1)]
    assert [(q.slot, q.iteration) for q in (ledger.charge(p, *at) for at in order)] == order


def test_a_run_that_was_not_reserved_gets_no_slot(ledger):
    with pytest.raises((LedgerError, PrivacyBudgetExceeded)):
        ledger.claim(plan())


@pytest.mark.parametrize(
    "change", [{"iterations": 100}, {"chains": 100}, {"events": (Gaussian(1e-3),)}], ids=str
)
def test_a_plan_that_is_not_the_reserved_one_gets_no_slot(ledger, change):
    ledger.reserve(plan())
    with pytest.raises((LedgerError, PrivacyBudgetExceeded)):
        ledger.claim(replace(plan(), **change))


def test_a_state_cannot_be_continued_with_a_larger_allotment(ledger):
    p = plan(iterations=1)
    ledger.reserve(p)
    ledger.charge(p, ledger.claim(p), 0)
    with pytest.raises((LedgerError, PrivacyBudgetExceeded)):
        ledger.charge(replace(p, iterations=100), 0, 1)


def test_a_permit_covers_each_of_its_releases_once():
    permit = Permit(2, 7, (Gaussian(1.0), Gaussian(3.0, 2), Gaussian(1.0), Laplace(5.0)))
    taken = [permit.take(Gaussian(z)) for z in (3.0, 1.0, 3.0, 1.0)]
    assert taken == [(2, 7, 0), (2, 7, 1), (2, 7, 2), (2, 7, 3)]  # four addresses, four noises
    for z in (1.0, 3.0, 5.0, 0.5):
        with pytest.raises(PrivacyBudgetExceeded):
            permit.take(Gaussian(z))


# -- one file, many readers -----------------------------------------------------------------------


def test_two_open_ledgers_on_one_path_are_one_account(ledger, path):
    other = PrivacyLedger(path)
    ledger.reserve(plan("a", epsilon=0.7))
    assert other.runs() == [plan("a", epsilon=0.7)]
    with pytest.raises(PrivacyBudgetExceeded):
        other.reserve(plan("b", epsilon=0.9))
    other.claim(plan("a", epsilon=0.7))
    assert ledger.claim(plan("a", epsilon=0.7)) == 1


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_a_ledger_is_the_same_account(ledger, duplicate):
    p = plan(iterations=2)
    ledger.reserve(p)
    slot = ledger.claim(p)
    other = duplicate(ledger)
    other.charge(p, slot, 0)
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.charge(p, slot, 0)
    assert other._connection is not ledger._connection
    assert (other.path, other.epsilon, other.delta) == (ledger.path, ledger.epsilon, ledger.delta)


@pytest.mark.parametrize("relative", ["study.ledger", "./deeper/../study.ledger"])
def test_a_relative_path_stays_where_it_was(ledger, path, relative, monkeypatch):
    (path.parent / "deeper").mkdir()
    monkeypatch.chdir(path.parent)
    here = PrivacyLedger(relative)
    monkeypatch.chdir("/")
    pickle.loads(pickle.dumps(here)).reserve(plan())
    assert ledger.runs() == [plan()]


def test_a_forked_child_does_not_use_the_connection_it_inherited(ledger, in_fork):
    ledger.reserve(plan("a"))
    inherited = ledger._connection

    def child():
        ledger.reserve(plan("b"))
        return ledger._connection is inherited, ledger.claim(plan("a"))

    assert in_fork(child) == (False, 0)
    assert ledger.claim(plan("a")) == 1
    assert len(ledger.runs()) == 2


def outcomes(futures):
    """How many calls succeeded; anything but a refusal is an error."""
    won = 0
    for future in futures:
        try:
            future.result()
            won += 1
        except PrivacyBudgetExceeded:
            pass
    return won


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_processes_that_race_for_the_last_of_a_budget_do_not_overspend(ledger, path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    p = plan("claimed", epsilon=0.1, chains=3)
    ledger.reserve(p)
    rivals = [plan(f"rival {i}", epsilon=0.5) for i in range(8)]
    fit = max(k for k in range(9) if _cost([p, *rivals[:k]]) <= ledger.epsilon)
    assert 1 < fit < 6
    # Whoever writes first has to wait until all of them are at it.
    gate = sqlite3.connect(path, isolation_level=None)
    context = multiprocessing.get_context(method)
    workers = 4 if method == "fork" else 2  # a spawned one imports everything anew
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        assert all(pool.map(os.path.exists, [path] * 8))  # workers are up
        gate.execute("BEGIN IMMEDIATE")
        reservations = [pool.submit(ledger.reserve, rival) for rival in rivals]
        claims = [pool.submit(ledger.claim, p) for _ in range(8)]
        threading.Event().wait(0.3)
        gate.execute("COMMIT")
        assert outcomes(reservations) == fit
        assert outcomes(claims) == 3
        charges = [pool.submit(ledger.charge, p, 0, 0) for _ in range(8)]
        assert outcomes(charges) == 1
    gate.close()
    assert ledger.spent() <= ledger.epsilon
    assert len(ledger.runs()) == 1 + fit


def _cost(plans):
    return composed_epsilon([e for p in plans for e in p.total], DELTA)


# -- crashes --------------------------------------------------------------------------------------


def test_what_was_reserved_survives_a_kill(path, in_fork):
    p = plan(epsilon=0.9)

    def child():
        ledger = PrivacyLedger(path, epsilon=1.0, delta=DELTA)
        ledger.reserve(p)
        ledger.charge(p, ledger.claim(p), 0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(child) == "killed by signal 9"
    ledger = PrivacyLedger(path)
    assert ledger.runs() == [p]
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.reserve(plan("b", epsilon=0.9))
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.charge(p, 0, 0)
    assert ledger.claim(p) == 1


def test_a_kill_in_the_middle_of_a_reservation_leaves_a_usable_account(
    ledger, in_fork, monkeypatch
):
    from pymc_dp.privacy import ledger as module

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def child():
        monkeypatch.setattr(module, "composed_epsilon", die)
        ledger.reserve(plan())

    assert in_fork(child) == "killed by signal 9"
    assert ledger.runs() == []
    ledger.reserve(plan())


def test_a_copy_of_the_file_holds_what_was_reserved(ledger, path):
    """A backup, or a move after a crash, must not bring budget back."""
    into_main_file(path)
    ledger.reserve(plan())
    shutil.copy(path, path.with_name("backup.ledger"))
    assert PrivacyLedger(path.with_name("backup.ledger")).runs() == [plan()]


# -- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"epsilon": 1.0}, {"delta": DELTA}], ids=str)
def test_a_new_account_needs_a_budget(path, given):
    with pytest.raises(PrivacyConfigurationError, match="total budget"):
        PrivacyLedger(path, **given)
    assert not path.exists()


@pytest.mark.parametrize(
    "budget",
    [
        *({"epsilon": e, "delta": DELTA} for e in (0, -1.0, math.nan, True, "1")),
        *({"epsilon": 1.0, "delta": d} for d in (1.0, -1e-6, math.nan, math.inf, True, "1")),
    ],
    ids=str,
)
def test_a_budget_out_of_range_opens_no_account(path, budget):
    with pytest.raises(PrivacyConfigurationError):
        PrivacyLedger(path, **budget)
    assert not path.exists()


def test_an_account_can_be_opened_again_with_its_own_budget_only(ledger, path):
    ledger.reserve(plan())
    for same in ({}, {"epsilon": 1}, {"delta": DELTA}, {"epsilon": 1.0, "delta": DELTA}):
        assert PrivacyLedger(path, **same).runs() == [plan()]
    for other in ({"epsilon": 2.0}, {"delta": 1e-5}, {"epsilon": 0.5, "delta": DELTA}):
        with pytest.raises(PrivacyConfigurationError, match="has the budget ε = 1"):
            PrivacyLedger(path, **other)
    assert (PrivacyLedger(path).epsilon, PrivacyLedger(path).delta) == (1.0, DELTA)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_that_create_one_account_together_all_get_it(tmp_path):
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        for i in range(40):
            path = tmp_path / f"{i}.ledger"
            tasks = [pool.submit(_open_and_close, path) for _ in range(4)]
            assert [t.result() for t in tasks] == [1.0] * 4
    assert len(list(tmp_path.glob(".*"))) == 0  # no drafts are left


def _open_and_close(path):
    return round(PrivacyLedger(path, epsilon=1.0, delta=DELTA).remaining(), 6)


def test_a_creation_that_was_interrupted_can_be_done_again(path, in_fork, monkeypatch):
    monkeypatch.setattr(PrivacyLedger, "_create", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert in_fork(lambda: _open_and_close(path)) == "killed by signal 9"
    monkeypatch.undo()
    assert _open_and_close(path) == 1.0


def test_a_creation_that_was_interrupted_leaves_no_account(path, in_fork, monkeypatch):
    """Killed right before the file gets its name: there is none, rather than an empty one."""
    monkeypatch.setattr("os.link", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert in_fork(lambda: _open_and_close(path)) == "killed by signal 9"
    assert not path.exists()


@pytest.mark.parametrize("budget", [{}, {"epsilon": 1.0, "delta": DELTA}])
def test_an_account_that_was_cut_to_nothing_is_no_new_one(ledger, path, budget):
    ledger.reserve(plan("a", epsilon=0.73))
    into_main_file(path)
    path.write_bytes(b"")
    for beside in path.parent.glob(path.name + "-*"):
        beside.unlink()
    with pytest.raises(LedgerError, match=r"is empty.*restore it"):
        PrivacyLedger(path, **budget)
    assert path.read_bytes() == b""


def test_where_files_cannot_be_linked_an_account_is_copied_into_place(path, monkeypatch):
    def no_links(*_):
        raise OSError("Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    made = PrivacyLedger(path, epsilon=1.0, delta=DELTA)
    made.reserve(plan("a"))
    assert PrivacyLedger(path).runs() == [plan("a")]
    assert list(path.parent.glob(".*")) == []


# -- runs that give up ------------------------------------------------------------------------------


def test_a_run_that_gave_up_gets_back_what_it_has_not_released(ledger):
    first, chain = plan("a-first", epsilon=0.6, chains=1, iterations=1), plan("a", epsilon=0.3)
    ledger.reserve(first, chain)
    ledger.charge(first, ledger.claim(first), 0)
    (event,) = first.events
    part = (Gaussian(event.noise_multiplier * 2),)  # a quarter of μ²
    assert ledger.settle(first, part)
    assert ledger.settle(chain, ())
    assert ledger.events() == part
    assert ledger.spent() == composed_epsilon(part, DELTA)
    for closed in (first, chain):
        with pytest.raises(LedgerError):
            ledger.claim(closed)
        with pytest.raises(LedgerError, match="another plan"):
            ledger.reserve(closed)
    with pytest.raises(PrivacyBudgetExceeded):
        ledger.charge(chain, 0, 0)


def test_a_run_cannot_be_settled_below_what_it_has_released(ledger):
    run = plan("a", epsilon=0.4)
    with pytest.raises(LedgerError, match="not reserved"):
        ledger.settle(run, ())
    ledger.reserve(run)
    ledger.charge(run, ledger.claim(run), 0)
    for released in ((), (*run.total, Gaussian(1.0))):
        with pytest.raises(LedgerError, match="only be settled"):
            ledger.settle(run, released)
    assert ledger.events() == run.total


def test_nothing_is_given_back_where_no_filter_is_known(ledger):
    """A choice in the light of releases, on an account with Laplace noise."""
    pure = RunPlan("p", "", (Laplace(10.0),), 1, 1)
    run = plan("a", epsilon=0.4)
    ledger.reserve(pure)
    ledger.reserve(run)
    before = ledger.events()
    assert not ledger.settle(run, ())
    assert ledger.events() == before


def with_budget_and_without(path):
    """A file that cannot be used must not be replaced by a fresh account either."""
    for budget in ({}, {"epsilon": 1.0, "delta": DELTA}):
        with pytest.raises(LedgerError) as refusal:
            PrivacyLedger(path, **budget)
    return str(refusal.value)


def test_a_text_file_is_no_ledger(path):
    path.write_text("ε = 1, δ = 1e-6\n" * 100)
    before = path.read_bytes()
    assert path.name in with_budget_and_without(path)
    assert path.read_bytes() == before


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LedgerError, match="folder does not exist"):
        PrivacyLedger(tmp_path / "nowhere" / "a.ledger", epsilon=1.0, delta=DELTA)


def foreign(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs (run, description, events, chains, iterations)")
        db.execute("CREATE TABLE account (epsilon, delta)")
        db.execute("INSERT INTO account VALUES (1.0, 1e-6)")
    db.close()


def test_another_programs_database_is_no_ledger(path):
    foreign(path)
    before = rows(path)
    assert "not a privacy ledger" in with_budget_and_without(path)
    assert rows(path) == before


def test_another_programs_database_is_left_alone(path):
    foreign(path)
    before = path.read_bytes()
    with_budget_and_without(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(ledger, path):
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    db.close()
    assert "Upgrade pymc-dp" in with_budget_and_without(path)


@pytest.mark.parametrize("damage", ["overwritten", "cut", "header"])
def test_a_damaged_file_is_refused(ledger, path, damage):
    for i in range(3):
        ledger.reserve(replace(plan(f"run {i}", epsilon=0.1), description="long" * 2000))
    del ledger
    into_main_file(path)
    content = path.read_bytes()
    page = 4096
    assert len(content) > 4 * page
    broken = {
        "overwritten": content[:page] + b"\xa5" * (2 * page) + content[3 * page :],
        "cut": content[: 2 * page + 100],
        "header": b"\0" * 100 + content[100:],
    }
    path.with_name("broken.ledger").write_bytes(broken[damage])
    message = with_budget_and_without(path.with_name("broken.ledger"))
    assert "damaged" in message or "not a privacy ledger" in message
    path.with_name("whole.ledger").write_bytes(content)
    assert len(PrivacyLedger(path.with_name("whole.ledger")).runs()) == 3


@pytest.mark.parametrize(
    "events",
    ['[{"kind": "teleport", "noise_multiplier": 1.0, "count": 1}]', "[{}]", "", "not json"],
)
def test_a_release_of_an_unknown_kind_is_never_taken_for_free(ledger, path, events):
    ledger.reserve(plan())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET events = ?", (events,))
    db.close()
    for ask in (
        ledger.spent,
        ledger.remaining,
        ledger.runs,
        lambda: ledger.reserve(plan("b", epsilon=0.01)),
    ):
        with pytest.raises(LedgerError, match="cannot read"):
            ask()


def test_an_account_without_its_budget_is_refused(ledger, path):
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM account")
    db.close()
    with_budget_and_without(path)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs users")
@pytest.mark.parametrize("folder", [0o777, 0o555], ids=oct)
def test_a_read_only_file_is_refused(in_fork, folder):
    with tempfile.TemporaryDirectory() as name:  # pytest's own is closed to other users
        path = Path(name) / "study.ledger"
        PrivacyLedger(path, epsilon=1.0, delta=DELTA).reserve(plan("a"))
        into_main_file(path)
        for extra in ("-wal", "-shm"):
            path.with_name(path.name + extra).unlink(missing_ok=True)
        path.chmod(0o444)
        path.parent.chmod(folder)

        def child():
            if os.getuid() == 0:  # root may write anything
                os.setuid(65534)
            return path.stat().st_size, PrivacyLedger(path).reserve(plan("b", epsilon=0.01))

        refusal = in_fork(child)
        path.parent.chmod(0o700)
        if isinstance(refusal, PermissionError):
            pytest.skip("another user cannot reach the temporary directory")
        assert isinstance(refusal, LedgerError)
        assert "read-only" in str(refusal)
        assert [run[0] for run in rows(path)["runs"]] == ["a"]


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(LedgerError, match="nowhere"):
        PrivacyLedger(tmp_path / "nowhere" / "study.ledger", epsilon=1.0, delta=DELTA)


def test_an_account_whose_file_vanished_grants_nothing(ledger, path):
    ledger.reserve(plan("a", epsilon=0.9))
    stored = pickle.dumps(ledger)
    del ledger
    gc.collect()
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    again = pickle.loads(stored)
    for ask in (again.runs, lambda: again.reserve(plan("b")), lambda: again.claim(plan("a"))):
        with pytest.raises(LedgerError):
            ask()


# -- temporary accounts and the file's contents ---------------------------------------------------


def test_a_temporary_account_goes_with_the_object_that_made_it(in_fork):
    ledger = PrivacyLedger(epsilon=1.0, delta=DELTA)
    ledger.reserve(plan())
    path = ledger.path
    assert path.parent.stat().st_mode & 0o077 == 0  # nobody else can look
    visitor = pickle.loads(pickle.dumps(ledger))
    assert visitor.runs() == [plan()]
    del visitor

    def child():
        nonlocal ledger
        del ledger

    assert in_fork(child) is None
    gc.collect()
    assert path.exists()
    del ledger, child
    gc.collect()
    assert not path.parent.exists()


def test_an_account_that_is_put_away_is_one_file(path):
    """What SQLite keeps beside the file is merged into it, so the file can be moved."""
    ledger = PrivacyLedger(path, epsilon=1.0, delta=DELTA)
    ledger.reserve(plan())
    connection = ledger._connection
    del ledger
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_temporary_accounts_are_separate():
    a, b = (PrivacyLedger(epsilon=1.0, delta=DELTA) for _ in range(2))
    a.reserve(plan())
    assert b.runs() == []


def test_the_file_holds_the_documented_columns_and_nothing_else(ledger, path):
    p = plan(chains=1, iterations=2)
    ledger.reserve(p)
    ledger.charge(p, ledger.claim(p), 0)
    with sqlite3.connect(path) as db:
        kinds = db.execute("SELECT type, name, tbl_name FROM sqlite_master").fetchall()
        columns = {
            table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            for kind, table, _ in kinds
            if kind == "table"
        }
    db.close()
    assert columns == {
        "account": ["epsilon", "delta", "neighbours"],
        "runs": ["run", "description", "events", "chains", "iterations", "reserved_at"],
        "slots": ["run", "slot", "used"],
    }
    assert {kind for kind, _, _ in kinds} <= {"table", "index"}
    content = rows(path)
    assert content["account"] == [(1.0, DELTA, "substitute-one")]
    assert content["slots"] == [("run", 0, 1)]
    ((*run, when),) = content["runs"]
    z = p.events[0].noise_multiplier
    text = f'[{{"kind": "gaussian", "noise_multiplier": {z!r}, "count": 1}}]'
    assert run == ["run", "Run run", text, 1, 2]
    assert len(when) == len("2025-01-01 00:00:00")
