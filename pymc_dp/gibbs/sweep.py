"""The record sweep as a PyMC step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp.compat import CHAIN_START
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.gibbs.checks import check_records, check_start
from pymc_dp.gibbs.records import LatentRecords, Point, ReleaseDensity
from pymc_dp.gibbs.structure import Structure

# Rounding of the running sums may move a log ratio by this much beyond its bound.
_SLACK = 1e-6


@dataclass_state
class RecordSweepState(StepMethodState):
    """State of a chain: the generators of the proposals."""

    generators: list[Any]


class RecordSweep(BlockedStep):
    r"""Offer every latent record a fresh value given θ; accept by the release's density.

    Step 2 of Algorithm 1 of Ju, Gong, Awan and Rao (2022): for i = 1, …, n draw
    :math:`x_i^* \sim f(\cdot \mid \theta)` and accept with probability
    :math:`\min(1, g(s, T - t_i + t_i^*) / g(s, T))`. It leaves p(x | θ, s) invariant.

    Parameters
    ----------
    vars : sequence
        The latent variables.
    structure : Structure
        Of the model.
    initial_point : mapping
        Any point of the model; its shapes count.
    compile_kwargs : mapping, optional
        Passed to PyMC's ``compile``.
    model, rng, blocked
        As for every PyMC step.
    """

    name = "record_sweep"
    default_blocked = True
    stats_dtypes_shapes: dict[str, tuple[Any, list[int]]] = {  # noqa: RUF012 - as in PyMC
        "record_accept_rate": (np.float64, []),
        "record_accept_min": (np.float64, []),
        "release_epsilon": (np.float64, []),
        "release_delta": (np.float64, []),
    }
    _state_class = RecordSweepState

    def __init__(
        self,
        vars: Sequence[Any],
        *,
        structure: Structure,
        initial_point: Point,
        compile_kwargs: Mapping[str, Any] | None = None,
        model: pm.Model | None = None,
        rng: Any = None,
        blocked: bool = True,
    ):
        model = pm.modelcontext(model)
        self.vars = list(vars)
        self.release_names = [r.variable.name for r in structure.releases]
        self.records = LatentRecords(model, structure, initial_point, compile_kwargs)
        self.density = ReleaseDensity(model, structure)
        check_records(model, structure, self.records, initial_point)
        self.epsilon, self.delta = guarantee(structure)
        # For pure mechanisms no record can change the density by more than e^ε: Proposition 3.1.
        self._bound = self.epsilon if self.delta == 0 else math.inf
        self.tune = True
        self._begin(rng)

    @property
    def generators(self) -> list[Any]:
        """Random generators of the proposals, for :attr:`sampling_state`."""
        return self.records.generators

    @generators.setter
    def generators(self, states: list[Any]) -> None:
        self.records.generators = states

    def _begin(self, rng: Any, tune: int = 0, draws: int = 0) -> None:
        """Start a chain; PyMC 5 gives the generator alone, PyMC 6 the lengths too."""
        self.rng = get_random_generator(rng, copy=False)
        self.records.seed(self.rng)
        self.density.read_observed()
        self._started = False

    def step(self, point: Point) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One sweep.

        Raises
        ------
        UnsupportedModelError
            If the statistic moves by more than its declared sensitivity, or if the chain starts
            where the release has zero density.
        """
        new, t_new, t = self.records.draw(point)
        if not self._started:
            check_start(self.density, t, self.release_names)
            self._started = True
        n = self.records.n
        accepted = np.empty(n, dtype=np.bool_)
        probability, smallest = self.density.sweep(
            t, t_new, self.rng.standard_exponential(n), accepted
        )
        if smallest < -self._bound * (1 + _SLACK) - _SLACK:
            raise UnsupportedModelError(
                f"A record changes the statistic of {self.release_names} by more than the declared "
                "sensitivity. Either the model's statistic is not the released one (is a clamp "
                "missing?), or `sensitivity` is too small and the release is less private than stated."
            )
        kept = ~accepted
        end = dict(point)
        for name, value in zip(self.records.names, new, strict=True):
            value[kept] = point[name][kept]
            end[name] = value
        stats = {
            "record_accept_rate": probability / n,
            "record_accept_min": math.exp(smallest),
            "release_epsilon": self.epsilon,
            "release_delta": self.delta,
        }
        return end, [stats]

    @staticmethod
    def competence(var: Any, has_grad: bool = False) -> Competence:
        """Never picked by PyMC on its own."""
        return Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        column = TextColumn(
            "{task.fields[record_accept_rate]:0.2f}", table_column=Column("Records moved", ratio=1)
        )
        return [column], {"record_accept_rate": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any, ...]:
        def update(stats: Mapping[str, Any]) -> dict[str, Any]:
            return {"record_accept_rate": stats["record_accept_rate"], "failing": False}

        return (update,)


setattr(RecordSweep, CHAIN_START, RecordSweep._begin)


def guarantee(structure: Structure) -> tuple[float, float]:
    """(ε, δ) of the released statistics together, by basic composition; NaN where not declared."""
    laws = [release.law for release in structure.releases]
    if any(law is None or law.epsilon is None or law.delta is None for law in laws):
        return math.nan, math.nan
    return math.fsum(law.epsilon for law in laws), math.fsum(law.delta for law in laws)
