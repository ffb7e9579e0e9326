"""The line that says what is being done: there from the first second, where somebody looks, and only there."""

import io

import numpy as np
import pymc as pm
import pytest
from rich.console import Console

import pymc_dp as dp
from pymc_dp.progress import doing, hidden, tell


@pytest.fixture
def screen(monkeypatch):
    """What a terminal shows."""
    shown = io.StringIO()
    monkeypatch.setattr(
        "pymc_dp.progress.Console", lambda: Console(file=shown, force_terminal=True, width=80)
    )
    return shown


def test_the_line_says_what_is_done_and_goes_back(screen):
    with doing("outer"):
        with doing("inner"):
            tell("further")
        tell("again")
    text = screen.getvalue()
    assert "outer" in text
    assert "again" in text
    assert "0:00:0" in text


def test_nothing_is_shown_where_nobody_looks(screen, monkeypatch, caplog):
    with hidden(), doing("secretly"):
        pass
    monkeypatch.setattr("pymc_dp.progress.Console", lambda: Console(file=screen))
    with caplog.at_level("INFO", "pymc.dp"), doing("into a file"):
        tell("a stage")
    assert screen.getvalue() == ""
    assert "a stage" in caplog.text  # which is what a log is for


def test_an_error_ends_the_line(screen):
    with pytest.raises(ValueError, match="no"), doing("something"):
        raise ValueError("no")
    with doing("something else"):
        pass
    assert "something else" in screen.getvalue()


def test_a_run_shows_what_it_compiles_and_what_the_surrogate_does(screen):
    y = np.random.default_rng(0).normal(1, 1, size=2000)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 2), 1, observed=pm.Data("Y", y))
    step = dp.DPSurrogate(
        family="normal", epsilon=8.0, draws=2, chains=1, model=model, compile_kwargs={"mode": "FAST_COMPILE"},
        noise_source=dp.InsecureSeededNoise(1),
    )  # fmt: skip
    assert "Compiling the" in screen.getvalue()
    step.release()
    assert "Surrogate" in screen.getvalue()
    before = len(screen.getvalue())
    with hidden():
        dp.DPPenalty(
            epsilon=8.0, draws=2, chains=1, model=model, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    assert len(screen.getvalue()) == before


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_that_cannot_show_it_is_not_warned(monkeypatch, recwarn, widgets):
    monkeypatch.setattr(
        "pymc_dp.progress.Console", lambda: Console(file=io.StringIO(), force_jupyter=True)
    )
    monkeypatch.setattr("pymc_dp.progress.find_spec", lambda name: object() if widgets else None)
    with doing("something"):
        pass
    assert widgets or not recwarn.list
