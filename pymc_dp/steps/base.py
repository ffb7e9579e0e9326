"""What every private step has in common: PyMC's protocol on both lines, and its guards."""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import DictToArrayBijection, RaveledVars
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator

from pymc_dp.compat import CHAIN_START, SamplerCall, enclosing_sampler, steps_beside
from pymc_dp.exceptions import (
    LedgerError,
    PrivacyConfigurationError,
    ShardError,
    refuses_from_outside,
)
from pymc_dp.interrupts import left_to_the_parent
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.likelihood.refusals import refuse_to_store
from pymc_dp.likelihood.simulated import SECRET_WORDS
from pymc_dp.likelihood.sizes import check_sizes
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Event
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noisy_sum import check_units
from pymc_dp.privacy.plans import Permit
from pymc_dp.progress import hidden
from pymc_dp.records.curator import Curator
from pymc_dp.records.sharded import ShardedRecords
from pymc_dp.records.shards import Shards
from pymc_dp.records.sums import LocalRecords, RecordSums
from pymc_dp.steps import guards
from pymc_dp.steps.run import Run, RunSettings, remember, whole_signature
from pymc_dp.steps.scales import all_value_vars
from pymc_dp.steps.statistics import STATS, progress_columns, progress_updates

# A child of PyMC's own logger: messages appear where PyMC's do, and are silenced with them.
_log = logging.getLogger("pymc.dp")


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
    """Where a run is compared with its plan: what the host reads right before it starts chains. Nothing is spent."""

    def __get__(self, step: "PrivateStep | None", owner: Any = None) -> list[dict[str, type]]:
        if step is None:
            return []
        if strangers := steps_beside(step):
            guards.refuse_steps(type(step).__name__, strangers)
        if not step._rehearsed and (call := enclosing_sampler()) is not None:
            step.check_host(call)
        return step.__dict__["stats_dtypes"]

    def __set__(self, step: "PrivateStep", dtypes: list[dict[str, type]]) -> None:
        step.__dict__["stats_dtypes"] = dtypes


class PrivateStep(BlockedStep):
    """Base of the private steps: an algorithm adds what an iteration releases, and makes it.

    A subclass takes its own settings, and ``**run``, the :class:`~pymc_dp.steps.run.RunSettings`. Its
    ``__init__`` passes these on, says by :meth:`pays` what the run releases, and asks by :meth:`curator` for
    whom it will ask about the records. Nothing is compiled before that. Building a step releases nothing and
    costs nothing. The run is charged to the ledger at its first chain's start, and each iteration is counted
    there before data are read for it.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given.
    run : mapping
        The keywords that are left when the algorithm has taken its own: :class:`~pymc_dp.steps.run.RunSettings`.
    instead : mapping
        What fixes the cost in place of `epsilon`, by name.
    shards : Shards, optional
        Where the records are, if the model holds made-up ones in their place.
    """

    default_blocked = True
    default_tune_steps = 0
    stats_dtypes = _AskedByHost()
    stats_dtypes_shapes = STATS
    own_stats: ClassVar[tuple[str, ...]] = ()
    """Statistics besides :data:`STATS` that a step declares to be functions of releases and settings: its own alone."""
    can_be_pure: ClassVar[bool] = False  # whether it has a way at δ = 0
    _state_class = PrivateStepState

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Leave the choice of variables to ``__init__``; the host would clone a step per variable."""
        return super().__new__(cls, **{**kwargs, "vars": None})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__signature__ = whole_signature(cls)
            cls.__init__ = refuses_from_outside(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        vars: Sequence[Any] | None,
        run: Mapping[str, Any],
        *,
        instead: Mapping[str, Any],
        shards: Shards | None = None,
    ):
        settings = RunSettings.of(type(self).__name__, run)
        self.run = Run(
            type(self).__name__, instead, settings.budget,
            draws=settings.draws, tune=settings.tune, chains=settings.chains,
        )  # fmt: skip
        if shards is not None and not isinstance(shards, Shards):
            raise PrivacyConfigurationError(
                f"`shards` must be a pymc_dp.Shards. Found {type(shards).__name__}."
            )
        self.compiled = compile_model(
            settings.model, unit=settings.unit, public=settings.public,
            chunk_size=settings.chunk_size, compile_kwargs=settings.compile_kwargs,
        )  # fmt: skip
        self.model, self._shards, in_model = self.compiled.model, shards, self.compiled.roles
        self.roles = in_model if shards is None else shards.roles(self.model, in_model)
        check_units(self.roles.n_units)
        check_sizes(self.model, in_model, self.run.neighbours.public_size)
        self.vars = all_value_vars(self.model, vars, settings.blocked)
        self.run.open_account(self.roles.n_units, pure=self.can_be_pure)
        self.run_id, self.iterations = self.run.run_id, self.run.iterations
        self.rng = get_random_generator(settings.rng)
        self.slot, self.used, self.tuning_over = -1, 0, False
        self._left_at: dict[str, NDArray[Any]] | None = None
        self._rehearsed = self._in_chain = self._has_draws = False
        self.was_interrupted = False
        """Set from outside, it ends the run before the next iteration."""

    # -- for a subclass ------------------------------------------------------------------------

    def pays(
        self,
        *events: Event,
        once: tuple[Event, ...] = (),
        settings: Mapping[str, float | str],
    ) -> None:
        """Fix the run's plan. Last of what is decided without compiling anything.

        Parameters
        ----------
        *events : Event
            Releases of one iteration.
        once : tuple of Event
            Releases before the first iteration, for all chains together.
        settings : mapping
            To put on record in the metadata: functions of what the user has set, and of public numbers.
        """
        roles = self.roles
        shards = {} if self._shards is None else {"shards": len(self._shards.records)}
        tells_size = self.run.neighbours.public_size
        self.run.pays(
            *events,
            once=once,
            unit=roles.unit,
            n_units=roles.n_units if tells_size else None,
            n_records=roles.n_records if tells_size else None,
            settings={**settings, **shards},
            variables=self._releasable_names(),
            statistics=(*STATS, *self.own_stats),
            private_data=tuple(leaf.name for leaf in roles.record_data if leaf.private),
            public_data=roles.public_data,
            record_dims=tuple(sorted(roles.record_dims)),
        )
        remember(self)

    def curator(self, derivatives: int = 0, local: bool = False, scores: bool = False) -> Curator:
        """Whom to ask about the records, wherever they are. Compiles what that takes.

        Parameters
        ----------
        derivatives : {0, 1}
            Of the log-likelihood, how many will be asked for.
        local : bool
            Whether derivatives in what a unit sees of θ will be.
        scores : bool
            Whether scores will be compared with those at outcomes of the model's.
        """
        words = self.run.noise.words(SECRET_WORDS, (0,)) if scores else None
        records: RecordSums = (held := LocalRecords(self.compiled, derivatives, local, words))
        if self._shards is not None:
            records = ShardedRecords(self._shards, held)
        return Curator(records, self.run.noise, self.run.neighbours)

    def needs_public_size(self, why: str) -> None:
        """Refuse a run under neighbours for which the number of units is private.

        Raises
        ------
        PrivacyConfigurationError
        """
        if not self.run.neighbours.public_size:
            raise PrivacyConfigurationError(
                f'{type(self).__name__} cannot be used with `neighbours="{self.run.neighbours.name}"`: {why}.'
            )

    @property
    def units_to_count_on(self) -> int:
        """Number of units that defaults may reckon with: one, if the true number is private."""
        return self.roles.n_units if self.run.neighbours.public_size else 1

    @property
    def log_public(self) -> PublicLogDensity:
        """Log prior with Jacobian."""
        return self.compiled.log_public

    def _releasable_names(self) -> tuple[str, ...]:
        """Parameters, Deterministics of these alone, and public constants without a label per record."""
        aligned = {leaf.name for leaf in self.roles.record_data}
        constants = [name for name in self.roles.public_data if name not in aligned]
        variables = [v.name for v in (*self.model.unobserved_RVs, *self.model.value_vars)]
        return (*(name for name in variables if name not in self.roles.left_out), *constants)

    @abstractmethod
    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        """One transition, and its own part of :data:`STATS`."""

    def _start_chain(self) -> None:
        """Forget the previous chain."""

    def summary(self) -> list[str]:
        """What there is to say of a run beside its acceptance rate: functions of what it released."""
        return []

    def outlook(self) -> str:
        """What can be said of a run before it is paid for: a function of settings and of what is public."""
        return ""

    # -- what a run is to its users ------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """What the run promises."""
        return self.run.guarantee

    @property
    def ledger(self) -> PrivacyLedger:
        """The account that it is charged to."""
        return self.run.ledger

    # -- the chain ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Charge the run, and do what all chains share, before they start. Nothing else does that but a chain's start."""
        self.run.reserve()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Within the block chains stand still: nothing is charged, and no data are read."""
        state, self._rehearsed = self.sampling_state, True
        try:
            yield
        finally:
            self._rehearsed, self.sampling_state = False, state

    def _begin(self, rng: Any) -> None:
        left_to_the_parent()
        if self._rehearsed:
            return
        # PyMC goes on with the next chain where one was interrupted. Who interrupts wants the run to end.
        self.was_interrupted |= self._in_chain
        self._in_chain = True
        self._end_if_asked()
        self.rng = get_random_generator(rng, copy=False)
        self._check_unchanged()
        self.run.reserve()
        self.slot = self.run.claim()
        self.used, self.tuning_over, self._left_at = 0, False, None
        with hidden():
            self._start_chain()

    def _end_if_asked(self) -> None:
        """End a run that was interrupted, unless its draws are there and cost nothing."""
        if self.was_interrupted and self.guarantee.events:
            raise KeyboardInterrupt

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
        if self._rehearsed:
            return dict(point), [self._stats(dict.fromkeys(self.stats_dtypes_shapes, 0.0))]
        self._end_if_asked()
        start = DictToArrayBijection.map({v.name: point[v.name] for v in self.vars})
        self._check_iteration(point)
        if self.slot < 0:
            self.run.reserve()
            self.slot = self.run.claim()
        try:
            permit = self.run.charge(self.slot, self.used)
            self.used += 1
            # A user who has floating point errors raised would lose the run to one in released numbers.
            with np.errstate(all="ignore"):
                theta, info = self._iterate(np.asarray(start.data, dtype=np.float64), permit)
        except (LedgerError, ShardError) as failure:
            if not (self._has_draws and self._in_chain):
                raise
            # The host keeps what it has if it is interrupted, and nothing after any other error.
            _log.error("The run ends here, with the draws that there are. %s", failure)
            raise KeyboardInterrupt from None
        end = DictToArrayBijection.rmap(RaveledVars(theta, start.point_map_info))
        self._left_at = {name: np.array(value) for name, value in end.items()}
        self._in_chain &= self.used < self.iterations
        self._has_draws = True
        return end, [self._stats(info)]

    def _stats(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **info,
            "epsilon": self.guarantee.epsilon,
            "delta": self.run.delta,
            "epsilon_spent": self.run.spent[self.used - 1],
            "privacy_run": self.run_id,
            "privacy_plan": self.guarantee.fingerprint,
        }

    @property
    def sampling_state(self) -> Any:
        """State of the chain, to be continued once."""
        return super().sampling_state

    @sampling_state.setter
    def sampling_state(self, state: Any) -> None:
        BlockedStep.sampling_state.fset(self, state)
        self._left_at = None

    def check_host(self, call: SamplerCall) -> None:
        """Refuse a run that does not match the plan, before anything is paid for."""
        self._in_chain = self.was_interrupted = False
        self._check_unchanged()
        if self._shards is not None and call.in_processes:
            self._shards.refuse_parallel_chains()
        guards.refuse_other_size(self.guarantee, call)
        refuse_to_store(self.model, self.roles.left_out, call.var_names)

    def _check_unchanged(self) -> None:
        """Refuse a model that is no longer the one that was checked, before anything is paid for."""
        if self._shards is not None:
            self._shards.refuse_other_process()
        self.compiled.check_unchanged()

    def _check_iteration(self, point: dict[str, NDArray[Any]]) -> None:
        guards.refuse_moved(point, {v.name for v in self.vars}, self._left_at)
        if self.tuning_over != (self.used >= self.guarantee.tune):
            guards.refuse_tune(self.guarantee.tune, "fewer" if self.tuning_over else "more")

    @staticmethod
    def competence(var: Any, has_grad: bool = False) -> Competence:
        """Never picked by PyMC on its own: spending budget is a decision."""
        return Competence.INCOMPATIBLE

    _progressbar_config = staticmethod(progress_columns)
    _make_progressbar_update_functions = staticmethod(progress_updates)


def _on_chain_start(self: PrivateStep, rng: Any, *length: int) -> None:
    """PyMC calls this once per chain: 5 with a generator, 6 with the chain's length, too."""
    self._begin(rng)


setattr(PrivateStep, CHAIN_START, _on_chain_start)
