"""Independent runs of one compiled step, for audits.

A step serves one run, and its ledger sees to that. An audit needs thousands of runs, of which it
releases none, and compiling takes longer than all of them.
"""

import copy
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Event
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.plans import RunPlan
from pymc_dp.steps.base import PrivateStep
from pymc_dp.steps.statistics import STATS

# Statistics that are the same in every run, or name it.
_CONSTANT = ("epsilon", "delta", "epsilon_spent", "privacy_run", "privacy_plan")


class Run(NamedTuple):
    """Everything that one run releases.

    Parameters
    ----------
    draws : ndarray, shape (iterations, d)
        Points in unconstrained space, tuning included. NaN if the run stopped before.
    stats : dict
        Sampler statistics that vary, each of shape (iterations, ...).
    settings, diagnostics : dict
        Of the metadata.
    stopped : str
        The message of a run that a step gave up; a message is an output too.
    """

    draws: Vector
    stats: dict[str, Vector]
    settings: Mapping[str, float | str]
    diagnostics: Mapping[str, float | str]
    stopped: str = ""

    @property
    def numbers(self) -> Vector:
        """All of it in one vector; texts are left out."""
        metadata: list[Any] = [*self.settings.values(), *self.diagnostics.values()]
        numbers = [value for value in metadata if isinstance(value, int | float)]
        parts = [self.draws, *self.stats.values(), np.array(numbers, dtype=np.float64)]
        return np.concatenate([part.ravel() for part in parts])


def alike(released: list[list[Run]]) -> list[list[Run]]:
    """The same runs, all with the same diagnostics: NaN, or no text, for what one does not say."""
    every = [run.diagnostics for runs in released for run in runs]
    nothing = {
        name: "" if isinstance(value, str) else math.nan
        for said in every
        for name, value in sorted(said.items())
    }
    return [
        [run._replace(diagnostics={**nothing, **run.diagnostics}) for run in runs]
        for runs in released
    ]


class _ScratchLedger(PrivacyLedger):
    """The ledger's own rules, in memory, for a run that is repeated.

    The account forgets between runs: an audit is about one, and spends nothing that was promised.
    """

    def __init__(self, delta: float, neighbours: str):
        self.path = Path(":memory:")
        self.epsilon, self.delta, self.neighbours = math.inf, delta, neighbours
        self._connection = sqlite3.connect(self.path, isolation_level=None)
        self._owner_pid = os.getpid()
        self._create(self._connection, self.epsilon, self.delta, self.neighbours)

    def settle(self, plan: RunPlan, released: tuple[Event, ...]) -> bool:
        """Keep the plan for the next run."""
        return True

    def forget(self) -> None:
        """Free all slots. What is reserved stays, so that its cost is worked out once."""
        with self._open() as db:
            db.execute("DELETE FROM slots")


def runs_of(step: PrivateStep, runs: int, seed: int) -> Iterator[Run]:
    """Independent runs of a step that was never started, and is not to be used afterwards.

    All have the same public seed. Each is an ordinary run, with the ledger's guards, on an account that
    has forgotten the one before.

    Parameters
    ----------
    step : PrivateStep
        Planned for one chain.
    runs : int
    seed : int
        Of what is public.

    Yields
    ------
    Run
    """
    account = _ScratchLedger(step.guarantee.delta, step.guarantee.neighbours)
    parameters = step.compiled.parameters
    start = parameters.point(parameters.start)
    for _ in range(runs):
        account.forget()
        # A copy for each, so that nothing of one run can reach the next.
        one = object.__new__(type(step))
        one.__dict__.update(vars(step))
        one.run = copy.copy(step.run)
        one.run.ledger = account
        try:
            yield _run(one, start, seed)
        except PrivacyError as error:
            if type(error) is not PrivacyError:  # a refusal, or a bug, and no release
                raise
            yield _stopped(step, start, str(error))


def _run(step: PrivateStep, start: dict[str, Any], seed: int) -> Run:
    """One chain, driven as the host does."""
    step._begin(np.random.default_rng(seed))
    point, draws, stats = start, [], []
    for iteration in range(step.iterations):
        if iteration == step.guarantee.tune:
            step.stop_tuning()
        point, (stat,) = step.step(point)
        draws.append(np.concatenate([np.ravel(point[v.name]) for v in step.vars]))
        stats.append({k: np.asarray(v, np.float64) for k, v in stat.items() if k not in _CONSTANT})
    columns = {name: np.array([stat[name] for stat in stats]) for name in stats[0]}
    return Run(np.array(draws), columns, step.guarantee.settings, step.guarantee.diagnostics)


def _stopped(step: PrivateStep, start: dict[str, Any], message: str) -> Run:
    d = sum(np.size(start[v.name]) for v in step.vars)
    missing = np.full(step.iterations, np.nan)
    stats = {name: missing for name in STATS if name not in _CONSTANT}
    return Run(
        np.outer(missing, np.ones(d)),
        stats,
        step.guarantee.settings,
        step.guarantee.diagnostics,
        message,
    )


def numbers_of(runs: list[Run]) -> list[Vector]:
    """Each run as a vector of one length. What a run that stopped did not release is NaN."""
    complete = [run.numbers for run in runs if not run.stopped]
    missing = np.full(len(complete[0]) if complete else 1, np.nan)
    rest = iter(complete)
    return [missing if run.stopped else next(rest) for run in runs]
