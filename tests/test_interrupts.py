"""Ctrl-C at any moment of a run: what comes back, what is charged, what is said."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.interrupts import deferred
from pymc_dp.privacy.accounting import gaussian_mu
from pymc_dp.privacy.filter import PrivacyFilter

FAST = {"mode": "FAST_COMPILE"}
RUN = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 1, "compile_kwargs": FAST}


def model():
    x = np.random.default_rng(0).normal(size=5000)
    with pm.Model() as made:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=4)
        pm.Normal("y", a + b[0] * x, 1, observed=np.random.default_rng(1).normal(size=5000))
    return made


@pytest.fixture(autouse=True)
def usual_handler():
    """Python's own, also where a shell has started the tests in the background, which ignores SIGINT there."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


@pytest.fixture
def interrupted(monkeypatch):
    """Have SIGINT arrive when a function is called for the k-th time, before it does anything."""

    def at(name, k=1):
        owner, _, attribute = name.rpartition(".")
        target, calls = resolve(owner), []
        usual = getattr(target, attribute)

        def called(*args, **keywords):
            calls.append(1)
            if len(calls) == k:
                signal.raise_signal(signal.SIGINT)
            return usual(*args, **keywords)

        monkeypatch.setattr(target, attribute, called)
        return calls

    return at


def resolve(path):
    """A module, or something in one."""
    parts, found = path.split("."), None
    for k in range(len(parts), 0, -1):
        try:
            found = __import__(".".join(parts[:k]), fromlist=["x"])
        except ImportError:
            continue
        for part in parts[k:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


# Moment, function that is called then, how often before; what stays charged of ε = 1; whether draws come back.
BEFORE = [
    ("while the model is checked", "pymc_dp.likelihood.roles.find_outside_likelihood", 1),
    ("while functions are compiled", "pymc_dp.likelihood.gradients.UnitGradients.__init__", 1),
    ("in the rehearsal", "pymc_dp.sampling._diagnose", 1),
    ("while the run is charged", "pymc_dp.privacy.ledger.PrivacyLedger.reserve", 1),
]
SEARCH = [
    ("when it has been charged", "pymc_dp.privacy.ledger.PrivacyLedger.claim", 1),
    ("in the first query", "pymc_dp.records.curator.noisy_counts", 1),
    ("in a later query", "pymc_dp.records.curator.noisy_total", 3),
]
FINISHED = [
    ("when the law is known", "pymc_dp.steps.normal.diagnose", 1),
    ("while NUTS draws from it", "pymc_dp.surrogate.normal.draws.groups_of", 1),
    ("while draws are handed out", "pymc_dp.steps.base.PrivateStep._stats", 700),
    ("while the host makes its result", "pymc.to_inference_data", 3),
    ("while the result is released", "pymc_dp.sampling.release", 2),
    ("while it is judged", "pymc_dp.sampling.summary", 2),
]


def sample(ledger, **keywords):
    return dp.sample(500, model=model(), epsilon=1.0, ledger=ledger, **{**RUN, **keywords})


@pytest.fixture
def ledger():
    return dp.PrivacyLedger(epsilon=5.0, delta=1e-5)


@pytest.mark.parametrize(("moment", "function", "call"), BEFORE, ids=lambda v: str(v)[:30])
def test_before_anything_is_spent(moment, function, call, ledger, interrupted, caplog):
    interrupted(function, call)
    with pytest.raises(KeyboardInterrupt):
        sample(ledger)
    assert ledger.spent() == 0


@pytest.mark.parametrize(("moment", "function", "call"), SEARCH, ids=lambda v: str(v)[:30])
def test_in_the_search_what_was_not_released_is_given_back(
    moment, function, call, ledger, interrupted, caplog
):
    # The rehearsal claims nothing, and the ledger is the only one.
    interrupted(function, call)
    with caplog.at_level(logging.INFO, "pymc"), pytest.raises(KeyboardInterrupt):
        sample(ledger)
    assert 0 < ledger.spent() < 0.7
    assert "of 1 stays charged" in caplog.text
    assert len(ledger.runs()) == 2


@pytest.mark.parametrize(("moment", "function", "call"), FINISHED, ids=lambda v: str(v)[:30])
def test_a_finished_law_is_not_lost(moment, function, call, ledger, interrupted, caplog):
    calls = interrupted(function, call)
    with caplog.at_level(logging.INFO, "pymc"):
        idata = sample(ledger)
    assert len(calls) >= call
    assert (idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]) == (2, 500)
    assert idata.attrs["privacy_usable"] == 1
    assert abs(float(idata.posterior["a"].mean())) < 0.5
    assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
    if moment in ("when the law is known", "while NUTS draws from it"):
        assert "normal approximation" in caplog.text


@pytest.mark.parametrize("sampler", [dp.DPSurrogate, partial(dp.DPSurrogate, family="polynomial")])
def test_nor_that_of_a_polynomial(sampler, ledger, interrupted):
    with pm.Model() as one:
        pm.Normal("y", pm.Normal("a", 0, 1), 1, observed=np.random.default_rng(1).normal(size=5000))
    interrupted("pymc_dp.steps.polynomial.draw", 1)
    interrupted("pymc_dp.steps.normal.diagnose", 1)
    idata = dp.sample(50, model=one, epsilon=1.0, ledger=ledger, step=sampler, **RUN)
    assert idata.posterior.sizes["draw"] == 50


ITERATION = "pymc_dp.steps.penalty.DPPenalty._iterate"


@pytest.mark.parametrize(
    ("call", "left"), [(120, (1, 120)), (500 + 300, (2, 300)), (500 + 120, (1, 500))]
)
def test_a_chain_ends_with_its_iteration_and_no_other_begins(
    call, left, ledger, interrupted, caplog
):
    calls = interrupted(ITERATION, call)
    with caplog.at_level(logging.INFO, "pymc"):
        idata = sample(ledger, step=dp.DPPenalty)
    assert len(calls) == call
    assert (idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]) == left
    assert "the run ends with this iteration" in caplog.text
    assert f"of 2 chains of 500 draws there are {left[0]} of {left[1]}" in caplog.text
    assert ledger.spent() == pytest.approx(1.0, abs=1e-6)


def test_a_callback_may_interrupt_too(ledger, caplog):
    """As PyMC says it can; PyMC itself would go on with the second chain."""

    def stop(trace, draw):
        if draw.chain == 0 and draw.draw_idx == 30:
            raise KeyboardInterrupt

    with caplog.at_level(logging.INFO, "pymc"):
        idata = sample(ledger, step=dp.DPPenalty, callback=stop)
    assert (idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]) == (1, 31)
    assert "ended early" in caplog.text


def test_nothing_to_return_is_said(ledger, interrupted, caplog):
    interrupted("pymc_dp.privacy.ledger.PrivacyLedger.claim", 1)
    with caplog.at_level(logging.INFO, "pymc"), pytest.raises(KeyboardInterrupt):
        sample(ledger, step=dp.DPPenalty)
    assert "nothing to return. The whole run stays charged, ε = 1" in caplog.text


def test_an_error_of_the_account_keeps_the_draws_before_it(ledger, monkeypatch, caplog):
    charge, calls = dp.PrivacyLedger.charge, []

    def full(self, *args):
        calls.append(1)
        if len(calls) == 300:
            raise dp.exceptions.LedgerError("The disk is full.")
        return charge(self, *args)

    monkeypatch.setattr(dp.PrivacyLedger, "charge", full)
    with caplog.at_level(logging.INFO, "pymc"):
        idata = sample(ledger, step=dp.DPPenalty)
    assert (idata.posterior.sizes["chain"], idata.posterior.sizes["draw"]) == (1, 299)
    assert "The disk is full." in caplog.text


def test_an_error_in_the_search_gives_back_what_was_not_released(ledger, monkeypatch, caplog):
    """And no more than that: what stays on the account is the shares that were asked for."""
    paid, permit = [], PrivacyFilter.permit

    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("pymc_dp.records.curator.noisy_total", broken)
    monkeypatch.setattr(
        PrivacyFilter, "permit", lambda *asked: paid.append(asked[1]) or permit(*asked)
    )
    with caplog.at_level(logging.INFO, "pymc"), pytest.raises(ZeroDivisionError):
        sample(ledger)
    assert len(paid) > 1
    whole = dp.calibrate_noise(epsilon=1.0, delta=ledger.delta, releases=1)
    assert gaussian_mu(ledger.events()) ** 2 == pytest.approx(sum(paid) / whole**2, rel=1e-6)
    assert 0 < ledger.spent() < 0.7
    assert "ZeroDivisionError ended the run" in caplog.text


def test_the_second_interrupt_is_not_deferred():
    asked = []

    def twice():
        with deferred(lambda: asked.append(1)):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert asked == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("interrupts", [0, 1])
def test_afterwards_ctrl_c_is_what_it_was(interrupts):
    asked = []
    with deferred(lambda: asked.append(1)):
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
    assert len(asked) == interrupts
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_other_handlers_are_left_alone():
    def inside():
        with deferred(lambda: None):
            found.append(signal.getsignal(signal.SIGINT))

    found = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        inside()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert found == [signal.default_int_handler, signal.SIG_IGN]


SCRIPT = """
import logging, sys
import numpy as np, pymc as pm, pymc_dp as dp

logging.getLogger("pymc").setLevel(logging.INFO)
x = np.random.default_rng(0).normal(size=2000)
with pm.Model() as model:
    a = pm.Normal("a", 0, 1)
    pm.Normal("y", a, 1, observed=x)
ledger = dp.PrivacyLedger(epsilon=5.0, delta=1e-5)

def tell(trace, draw):
    if draw.draw_idx == 200:
        print("NOW", flush=True)

try:
    idata = dp.sample(
        200_000, chains=2, cores=2, mp_ctx="fork", model=model, epsilon=1.0, ledger=ledger, callback=tell,
        step=dp.DPPenalty, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"},
    )
    print("RETURNED", idata.posterior.sizes["chain"], idata.posterior.sizes["draw"])
finally:
    print("SPENT", round(ledger.spent(), 3))
"""


@pytest.mark.process
def test_chains_in_processes_end_together():
    """As in a terminal, where all processes get the signal."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as run:  # fmt: skip
        assert any(line.startswith("NOW") for line in run.stdout)
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=120)
    assert "SPENT 1.0" in out
    assert "RETURNED" in out, err
    returned = next(line for line in out.splitlines() if line.startswith("RETURNED"))
    _, chains, draws = returned.split()
    assert int(chains) >= 1
    assert 100 < int(draws) < 200_000
    assert "ended early" in err
