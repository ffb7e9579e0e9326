"""What every private step has in common: its plan, its slot in the ledger, its public face."""

import math
import secrets
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import DictToArrayBijection, RaveledVars
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp.checks import check_delta, whole
from pymc_dp.compat import CHAIN_START, SamplerCall, enclosing_sampler, steps_beside
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compiled import CompiledModel, compile_model
from pymc_dp.privacy.accounting import spending_curve
from pymc_dp.privacy.events import Event, Gaussian, PoissonGaussian
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource, SecureNoise
from pymc_dp.privacy.noisy_sum import check_multiplier, check_units
from pymc_dp.privacy.plans import Permit
from pymc_dp.shards import Shards
from pymc_dp.steps.settings import all_value_vars, check_finite_epsilon

STATS: dict[str, tuple[Any, list[int]]] = {
    "accepted": (bool, []),
    "accept_rate": (np.float64, []),
    "epsilon": (np.float64, []),
    "delta": (np.float64, []),
    "epsilon_spent": (np.float64, []),
    "scale": (np.float64, []),
    "privacy_run": (np.int64, []),
    "privacy_plan": (np.int64, []),
}
"""Every sampler statistic that may leave. Each is a function of noised releases and settings."""

OWN_STATS = ("unadjusted",)
"""Statistics of one step alone, which may leave as well."""

# `pm.sample` offers no way to attach a promise to its result, so a draw carries the run's public
# number, and `release` finds here what the run promised.
_guarantees: dict[int, Guarantee] = {}
_steps: "weakref.WeakValueDictionary[int, PrivateStep]" = weakref.WeakValueDictionary()


def guarantee_of_run(run_id: int) -> Guarantee | None:
    """The promise of a run whose step was built in this process."""
    return _guarantees.get(run_id)


def step_of_run(run_id: int) -> "PrivateStep | None":
    """The step of a run, while it lives in this process."""
    return _steps.get(run_id)


def register_guarantee(guarantee: Guarantee) -> None:
    """Remember what a run promises, until its result is released."""
    _guarantees[guarantee.run_id] = guarantee


@dataclass_state
class PrivateStepState(StepMethodState):
    """State of a chain. Holds no data and nothing computed from them without noise.

    The frozen fields tie it to its run: it can be continued, once, and never for longer than was
    paid for.
    """

    run_id: int = field(metadata={"frozen": True})
    iterations: int = field(metadata={"frozen": True})
    slot: int
    used: int
    tuning_over: bool


class _AskedByHost:
    """Where a run is compared with its plan: what the host reads right before it starts chains."""

    def __get__(self, step: "PrivateStep | None", owner: Any = None) -> list[dict[str, type]]:
        if step is None:
            return []
        if strangers := steps_beside(step):
            step._refuse_steps(strangers)
        if (call := enclosing_sampler()) is not None:
            step._check_host(call)
            step.prepare()
        return step.__dict__["stats_dtypes"]

    def __set__(self, step: "PrivateStep", dtypes: list[dict[str, type]]) -> None:
        step.__dict__["stats_dtypes"] = dtypes


class PrivateStep(BlockedStep):
    """Base of the private steps. A subclass says what an iteration releases and makes it.

    Building a step compiles the model and checks it; it releases nothing and costs nothing. The
    run is charged to the ledger at its first chain's start, and each iteration is counted there
    before data are read for it.
    """

    default_blocked = True
    default_tune_steps = 0
    stats_dtypes = _AskedByHost()
    stats_dtypes_shapes = STATS
    once: tuple[Event, ...] = ()
    _state_class = PrivateStepState

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Leave the choice of variables to ``__init__``; the host would clone a step per variable."""
        return super().__new__(cls, **{**kwargs, "vars": None})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = refuses_from_outside(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        vars: Sequence[Any] | None,
        *,
        draws: int,
        tune: int,
        chains: int,
        epsilon: float | None,
        delta: float | None,
        noise_multiplier: float | None,
        unit: str | int | ArrayLike | None,
        public: Sequence[str],
        ledger: PrivacyLedger | None,
        noise: NoiseSource | None,
        chunk_size: int | None,
        model: pm.Model | CompiledModel | None,
        compile_kwargs: Mapping[str, Any] | None,
        rng: Any,
        blocked: bool,
        shards: Shards | None = None,
    ):
        draws, tune, chains = (
            whole("draws", draws, 1),
            whole("tune", tune, 0),
            whole("chains", chains, 1),
        )
        self._noise: NoiseSource = SecureNoise() if noise is None else noise
        self._check_budget(epsilon, noise_multiplier)
        if shards is not None and not isinstance(shards, Shards):
            raise PrivacyConfigurationError(
                f"`shards` must be a pymc_dp.Shards. Found {type(shards).__name__}."
            )
        self.compiled = compile_model(
            model, unit=unit, public=public, chunk_size=chunk_size, compile_kwargs=compile_kwargs
        )
        self.model, self._shards, in_model = self.compiled.model, shards, self.compiled.roles
        self._roles = in_model if shards is None else shards.roles(self.model, in_model)
        check_units(self._roles.n_units)
        self.vars = all_value_vars(self.model, vars, blocked)
        if ledger is not None and not isinstance(ledger, PrivacyLedger):
            raise PrivacyConfigurationError(
                f"`ledger` must be a PrivacyLedger. Found {type(ledger).__name__}: "
                "PrivacyLedger(path) opens the account in a file."
            )
        if delta is None:
            delta = 0.1 / self._roles.n_units if ledger is None else ledger.delta
        self._delta = check_delta(delta)
        self._configure(self.compiled.d)
        self.events = self._calibrate(
            epsilon, self._delta, noise_multiplier, chains * (tune + draws)
        )
        for event in (*self.once, *self.events):
            if isinstance(event, Gaussian | PoissonGaussian):
                check_multiplier(event.noise_multiplier, self._noise)
        self.run_id = secrets.randbits(62)
        self.iterations = tune + draws
        self.guarantee = Guarantee(
            run_id=self.run_id,
            step=type(self).__name__,
            events=self.events,
            draws=draws,
            tune=tune,
            chains=chains,
            budget=epsilon,
            delta=self._delta,
            unit=self._roles.unit,
            n_units=self._roles.n_units,
            n_records=self._roles.n_records,
            noise=self._noise.name,
            secure=type(self._noise) is SecureNoise,
            settings=self._settings(),
            variables=self._releasable_names(),
            private_data=tuple(leaf.name for leaf in self._roles.record_data if leaf.private),
            public_data=self._roles.public_data,
            record_dims=tuple(sorted(self._roles.record_dims)),
            once=self.once,
        )
        register_guarantee(self.guarantee)
        _steps[self.run_id] = self
        if ledger is not None and not self.guarantee.secure:
            raise PrivacyConfigurationError(
                "A ledger accounts for real guarantees; a run with insecure noise has none. Leave "
                "`ledger` out, or `noise`."
            )
        self.ledger = ledger or PrivacyLedger(epsilon=math.inf, delta=self._delta)
        self._likelihood, self._log_public = self.compiled.likelihood, self.compiled.log_public
        self._spent = (
            spending_curve(self.events, self.iterations, self._delta)
            if self.guarantee.valid
            else np.full(self.iterations, math.inf)
        )
        self.rng = get_random_generator(rng)
        self.slot, self.used, self.tuning_over = -1, 0, False
        self._left_at: dict[str, NDArray[Any]] | None = None

    def _releasable_names(self) -> tuple[str, ...]:
        """Parameters, public deterministics, and public constants without a label per record."""
        aligned = {leaf.name for leaf in self._roles.record_data}
        constants = [name for name in self._roles.public_data if name not in aligned]
        parameters = [v.name for v in (*self.model.unobserved_RVs, *self.model.value_vars)]
        return (*parameters, *constants)

    # -- what a subclass provides -------------------------------------------------------------

    def _check_budget(self, epsilon: float | None, noise_multiplier: float | None) -> None:
        """Refuse a budget and a multiplier that contradict each other, or protect nothing."""
        if (epsilon is None) == (noise_multiplier is None):
            raise PrivacyConfigurationError(
                "Give either a budget (`epsilon`, and `delta` if not 0.1 / units) or a "
                "`noise_multiplier`, which then fixes the ε that is spent."
            )
        if epsilon is not None:
            check_finite_epsilon(epsilon)
        if noise_multiplier is not None:
            z = noise_multiplier
            if not (isinstance(z, int | float) and math.isfinite(z) and z >= 0):
                raise PrivacyConfigurationError(
                    f"`noise_multiplier` must be a positive number. Found {z!r}."
                )
            if z == 0 and self._noise.secure:
                raise PrivacyConfigurationError(
                    "`noise_multiplier=0` releases the data as they are. To debug without noise, "
                    "say so: add `noise=InsecureSeededNoise(seed)`; the result will carry no "
                    "guarantee."
                )

    @abstractmethod
    def _configure(self, d: int) -> None:
        """Check the settings that depend on the number of unconstrained parameters."""

    @abstractmethod
    def _calibrate(
        self,
        epsilon: float | None,
        delta: float,
        noise_multiplier: float | None,
        iterations: int,
    ) -> tuple[Event, ...]:
        """Releases of one iteration, from the budget or from the multipliers."""

    @abstractmethod
    def _settings(self) -> dict[str, float | str]:
        """Settings to put on record in the metadata."""

    @abstractmethod
    def _iterate(
        self, theta: NDArray[np.float64], permit: Permit
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """One transition, and its own part of :data:`STATS`."""

    def _start_chain(self) -> None:
        """Forget the previous chain."""

    def derived_groups(self, groups: Mapping[str, Any]) -> dict[str, Any]:
        """More groups for a released result, from what is released in it."""
        return {}

    # -- the chain ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do what all chains share, before they start in processes of their own."""
        self.reserve()

    def reserve(self) -> None:
        """Charge the whole run to the ledger; again and again costs nothing more."""
        self.ledger.reserve(*self.guarantee.plans)

    def _begin(self, rng: Any) -> None:
        self.rng = get_random_generator(rng, copy=False)
        self._check_unchanged()
        self.reserve()
        self.slot = self.ledger.claim(self.guarantee.run_plan)
        self.used, self.tuning_over, self._left_at = 0, False, None
        self._start_chain()

    def stop_tuning(self) -> None:
        """Called by the host when tuning ends; before the first iteration if there is none."""
        self.tuning_over = True

    def step(self, point: dict[str, NDArray[Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One iteration.

        Raises
        ------
        PrivacyBudgetExceeded
            If it is not part of what was paid for. No data are read then.
        """
        start = DictToArrayBijection.map({v.name: point[v.name] for v in self.vars})
        self._check_phase()
        self._check_point(point)
        if self.slot < 0:
            self.reserve()
            self.slot = self.ledger.claim(self.guarantee.run_plan)
        permit = self.ledger.charge(self.guarantee.run_plan, self.slot, self.used)
        self.used += 1
        # A user who has floating point errors raised would lose the run to one in released numbers.
        with np.errstate(all="ignore"):
            theta, info = self._iterate(np.asarray(start.data, dtype=np.float64), permit)
        stats = {
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "epsilon_spent": self._spent[self.used - 1],
            "privacy_run": self.run_id,
            "privacy_plan": self.guarantee.fingerprint,
            **info,
        }
        end = DictToArrayBijection.rmap(RaveledVars(theta, start.point_map_info))
        self._left_at = {name: np.array(value) for name, value in end.items()}
        return end, [stats]

    @property
    def sampling_state(self) -> Any:
        """State of the chain, to be continued once."""
        return super().sampling_state

    @sampling_state.setter
    def sampling_state(self, state: Any) -> None:
        BlockedStep.sampling_state.fset(self, state)
        self._left_at = None

    def _check_point(self, point: dict[str, NDArray[Any]]) -> None:
        """A chain that moves between our iterations is moved by a step that is not ours."""
        left_at = self._left_at
        if set(point) != {v.name for v in self.vars} or (
            left_at is not None
            and any(not np.array_equal(point[name], left_at[name]) for name in left_at)
        ):
            raise UnsupportedModelError(
                "Something else moves this chain besides the private step: another step method, "
                "which would read the data without noise. Give `step=` this one step only."
            )

    def _check_unchanged(self) -> None:
        """Refuse a model that is no longer the one that was checked, before anything is paid for."""
        if self._shards is not None:
            self._shards.refuse_other_process()
        self.compiled.check_unchanged()

    def _check_host(self, call: SamplerCall) -> None:
        """Refuse a run that does not match the plan, before anything is paid for."""
        self._check_unchanged()
        if self._shards is not None and call.in_processes:
            self._shards.refuse_parallel_chains()
        planned = self.guarantee
        if call.chains != planned.chains:
            raise PrivacyConfigurationError(
                f"`pm.sample` was asked for {call.chains} chains, but the step was built for "
                f"{planned.chains}, and its noise is calibrated to that. Give both the same number. "
                "Nothing has been charged."
            )
        if call.tune != planned.tune:
            self._refuse_tune(f"{call.tune}")
        if call.draws > planned.draws:
            raise PrivacyConfigurationError(
                f"`pm.sample` was asked for {call.draws} draws, but the step was built for "
                f"{planned.draws}, and its noise is calibrated to that. Give both the same number. "
                "Nothing has been charged."
            )

    def _refuse_steps(self, strangers: Sequence[Any]) -> None:
        raise UnsupportedModelError(
            f"{type(self).__name__} updates all variables, but the run has other steps too "
            f"({[type(s).__name__ for s in strangers]}), which would read the data without noise. Give "
            "`step=` this one step only."
        )

    def _check_phase(self) -> None:
        if self.tuning_over != (self.used >= self.guarantee.tune):
            self._refuse_tune("fewer" if self.tuning_over else "more")

    def _refuse_tune(self, found: str) -> None:
        raise PrivacyConfigurationError(
            f"The step was built for tune={self.guarantee.tune}, but the run has {found} tuning "
            "iterations. Each of them is a release and costs budget: give `pm.sample` and the step "
            "the same `tune` (PyMC 5 runs 1000 unless told otherwise)."
        )

    @staticmethod
    def competence(var: Any, has_grad: bool = False) -> Competence:
        """Never picked by PyMC on its own: spending budget is a decision."""
        return Competence.INCOMPATIBLE

    # -- progress bar -------------------------------------------------------------------------

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        columns = [
            TextColumn(
                "{task.fields[accept_rate]:0.2f}", table_column=Column("Acceptance", ratio=1)
            ),
            TextColumn(
                "{task.fields[epsilon_spent]:0.3f}", table_column=Column("ε spent", ratio=1)
            ),
        ]
        return columns, {"accept_rate": [0.0] * n_chains, "epsilon_spent": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any, ...]:
        def update(stats: Mapping[str, Any]) -> dict[str, Any]:
            return {
                "accept_rate": stats["accept_rate"],
                "epsilon_spent": stats["epsilon_spent"],
                "failing": False,
            }

        return (update,)


def _on_chain_start_with_length(self: PrivateStep, rng: Any, tune: int, draws: int) -> None:
    """PyMC 6 calls this once per chain."""
    self._begin(rng)


def _on_chain_start(self: PrivateStep, rng: Any) -> None:
    """PyMC 5 calls this once per chain."""
    self._begin(rng)


setattr(
    PrivateStep,
    CHAIN_START,
    _on_chain_start_with_length if CHAIN_START == "setup_chain" else _on_chain_start,
)
