"""The run behind a step: its size, its budget, its account, and what it promises."""

import inspect
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_dp.checks import positive, whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.privacy.accounting import composed_epsilon, spending_curve
from pymc_dp.privacy.budget import Budget, refuse_pure
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import (
    Event,
    Gaussian,
    GaussianOrL2,
    L2Mechanism,
    PoissonGaussian,
)
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_multiplier
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every private step takes besides the settings of its algorithm.

    Parameters
    ----------
    draws, tune, chains : int
        The run's plan, the same numbers that ``pm.sample`` gets. Every iteration of every chain costs budget,
        tuning included; `tune` is 0 by default.
    epsilon, delta : float, optional
        The budget of the whole run, from which the noise is calibrated. `delta` defaults to the ledger's, or
        to 0.1 / units without one, if their number is public. 0, a pure ε, with :class:`~pymc_dp.DPSurrogate` only.
    neighbours : {"substitute-one", "add-or-remove"}
        What the guarantee is about: one unit replaced, the number of units being public, or one that is there
        or not. The second takes half the noise for the same ε, keeps the number private, and needs `delta`.
    unit, public, chunk_size, compile_kwargs
        As in :class:`~pymc_dp.CompiledModel`; settled already if `model` is one.
    ledger : PrivacyLedger, optional
        Account of the data set, shared by several analyses.
    noise_source : NoiseSource, optional
        For tests only: ``InsecureSeededNoise(seed)`` makes runs reproducible and void.
    model : Model or CompiledModel, optional
        Default: the one whose context the step is built in.
    rng : RandomGenerator, optional
        Public randomness; never drives the noise.
    blocked : bool
        Must be true.
    """

    # What a run costs stands first, what is about the model last: signatures have this order.
    draws: int
    tune: int = 0
    chains: int
    epsilon: float | None = None
    delta: float | None = None
    neighbours: str = SUBSTITUTE_ONE.name
    unit: str | int | ArrayLike | None = None
    public: Sequence[str] = ()
    ledger: PrivacyLedger | None = None
    noise_source: NoiseSource | None = None
    chunk_size: int | None = None
    model: pm.Model | CompiledModel | None = None
    compile_kwargs: Mapping[str, Any] | None = None
    rng: Any = None
    blocked: bool = True

    @classmethod
    def of(cls, step: str, given: Mapping[str, Any]) -> "RunSettings":
        """The settings among a step's keywords: all that are left when the algorithm has taken its own.

        Parameters
        ----------
        step : str
            Its name, for messages.
        given : mapping
            Keywords and values.

        Returns
        -------
        RunSettings
            Unchecked.

        Raises
        ------
        TypeError
            If one is missing or unknown.
        """
        known = inspect.signature(cls).parameters
        for name in given:
            if name not in known:
                raise TypeError(f"{step}() got an unexpected keyword argument {name!r}")
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in given:
                raise TypeError(f"{step}() missing 1 required keyword-only argument: {name!r}")
        return cls(**given)

    @property
    def budget(self) -> Budget:
        """What may be spent."""
        return Budget(self.epsilon, self.delta, self.neighbours, self.ledger, self.noise_source)


def whole_signature(step: type) -> inspect.Signature:
    """A step's signature with :class:`RunSettings` in place of ``**run``, for ``help`` and editors.

    If a step is built on another algorithm, ``**run`` stands for the settings of that, too.
    """
    own = inspect.signature(vars(step)["__init__"]).parameters.values()
    found = {p.name: p for p in own if p.kind is not p.VAR_KEYWORD and p.name != "self"}
    parent = getattr(step.__mro__[1], "__signature__", inspect.signature(RunSettings))
    ours = list(inspect.signature(RunSettings).parameters)
    for name, p in parent.parameters.items():
        found.setdefault(name, p.replace(kind=p.KEYWORD_ONLY))
    first, last = ours[:6], ours[6:]
    order = {name: k - len(first) for k, name in enumerate(first)} | dict.fromkeys(last, 1)
    return inspect.Signature(sorted(found.values(), key=lambda p: (p.kind, order.get(p.name, 0))))


class Run:
    """Size, budget and account of one run: what it releases is charged here, and promised here.

    Nothing of it depends on data. A step says what it releases by :meth:`pays`.

    Parameters
    ----------
    step : str
        The algorithm's name.
    instead : mapping
        What fixes the cost in place of `epsilon`, by name; empty if nothing can.
    budget : Budget
    draws, tune, chains
        As in :class:`RunSettings`.

    Raises
    ------
    PrivacyConfigurationError
        If a setting is out of its range, or the budget and what stands for it contradict each other.
    """

    guarantee: Guarantee

    def __init__(
        self,
        step: str,
        instead: Mapping[str, Any],
        budget: Budget,
        *,
        draws: int = 1,
        tune: int = 0,
        chains: int = 1,
    ):
        self.step, self.budget = step, budget
        self.epsilon, self.neighbours, self.noise = budget.epsilon, budget.relation, budget.noise
        self.draws = whole("draws", draws, 1)
        self.tune = whole("tune", tune, 0)
        self.chains = whole("chains", chains, 1)
        self._check_budget(budget.epsilon, instead)
        self.run_id, self._settled = secrets.randbits(62), False

    def _check_budget(self, epsilon: float | None, instead: Mapping[str, Any]) -> None:
        if not instead and epsilon is None:
            raise PrivacyConfigurationError(
                f"{self.step} needs a budget: `epsilon`, and `delta` if not 0.1 / units."
            )
        for name, value in instead.items():
            if (epsilon is None) == (value is None):
                raise PrivacyConfigurationError(
                    "Give either a budget (`epsilon`, and `delta` if not 0.1 / units) or a "
                    f"`{name}`, which then fixes the ε that is spent."
                )
            if value is not None and name.endswith("multiplier"):
                self._check_multiplier(name, value)

    def _check_multiplier(self, name: str, z: Any) -> None:
        """Refuse a multiplier that is none, or that protects nothing."""
        if positive(name, z, zero_allowed=True) == 0 and self.noise.secure:
            raise PrivacyConfigurationError(
                f"`{name}=0` releases the data as they are. To debug without noise, "
                "say so: add `noise_source=InsecureSeededNoise(seed)`; the result will carry no "
                "guarantee."
            )

    def open_account(self, n_units: int, *, pure: bool = False) -> None:
        """Settle δ, and whose ledger is charged.

        Parameters
        ----------
        n_units : int
        pure : bool
            Whether δ may be 0.

        Raises
        ------
        PrivacyConfigurationError
            If δ is 0 and may not, or if its default would tell a private number of units.
        """
        self.delta = self.budget.delta_for(n_units)
        if not pure:
            refuse_pure(self.step, self.delta)
        self.ledger = self.budget.account(self.delta)

    @property
    def iterations(self) -> int:
        """Iterations of one chain, tuning included."""
        return self.tune + self.draws

    def multiplier(self, given: float | None = None, sampling_rate: float = 1.0) -> float:
        """Noise multiplier z of one Gaussian release per iteration, for all of the budget.

        Parameters
        ----------
        given : float, optional
            z, if there is no budget.
        sampling_rate : float
            Of the units, if the release is about a secret sample.
        """
        if self.epsilon is None:
            return float(given or 0.0)
        return calibrate_noise(
            epsilon=self.epsilon, delta=self.delta, releases=self.chains * self.iterations,
            sampling_rate=accounted_rate(sampling_rate),
        )  # fmt: skip

    def multiplier_of_one(self) -> float:
        """Noise multiplier of a single Gaussian release that costs the whole budget."""
        epsilon = math.inf if self.epsilon is None else self.epsilon
        return calibrate_noise(epsilon=epsilon, delta=self.delta, releases=1)

    def pays(self, *events: Event, once: tuple[Event, ...] = (), **what: Any) -> None:
        """Fix what the run releases, and so what it promises.

        Parameters
        ----------
        *events : Event
            Releases of one iteration.
        once : tuple of Event
            Releases before the first, for all chains together.
        **what
            The rest of the :class:`~pymc_dp.privacy.guarantee.Guarantee`.

        Raises
        ------
        PrivacyConfigurationError
            If the noise of a release is out of range, or its cost not known for these neighbours.
        """
        self.neighbours.check((*once, *events))
        for event in (*once, *events):
            match event:
                case Gaussian() | PoissonGaussian() | L2Mechanism():
                    check_multiplier(event.noise_multiplier, self.noise)
                case GaussianOrL2(z, l2):
                    check_multiplier(z, self.noise)
                    check_multiplier(l2, self.noise)
        self.guarantee = Guarantee(
            run_id=self.run_id, step=self.step, events=events, once=once, draws=self.draws,
            tune=self.tune, chains=self.chains, budget=self.epsilon, delta=self.delta,
            noise=self.noise.name if self.delta else self.noise.pure_name, secure=self.budget.secure, neighbours=self.neighbours.name, **what,
        )  # fmt: skip
        self.spent: NDArray[np.float64] = (
            spending_curve(events, self.iterations, self.delta, once)
            if self.guarantee.valid
            else np.full(self.iterations, math.inf)
        )

    # -- the account --------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Charge the whole run to the ledger; again and again costs nothing more."""
        if not self._settled:
            self.ledger.reserve(*self.guarantee.plans)

    def claim(self) -> int:
        """Take a chain's slot."""
        return self.ledger.claim(self.guarantee.run_plan)

    def charge(self, slot: int, used: int) -> Permit:
        """Count an iteration of a slot, and get its permit."""
        return self.ledger.charge(self.guarantee.run_plan, slot, used)

    def charge_first(self) -> Permit:
        """Count what is released before the first iteration, and get its permit."""
        first = self.guarantee.first_plan
        return self.ledger.charge(first, self.ledger.claim(first), 0)

    def settle_first(self, released: tuple[Event, ...]) -> bool:
        """Close what comes before the first iteration, at what it has released: the rest is given back, if it can be.

        What the run promises stays as it was planned: it is an upper bound.
        """
        self._settled = True
        return self.ledger.settle(self.guarantee.first_plan, released)

    def cost(self, events: tuple[Event, ...]) -> float:
        """ε of some releases at the run's δ; infinite without noise."""
        return composed_epsilon(events, self.delta) if self.guarantee.valid else math.inf


# `pm.sample` offers no way to attach a promise to its result, so a draw carries the run's public
# number, and `release` finds here what the run promised.
_guarantees: dict[int, Guarantee] = {}


def remember(step: Any) -> None:
    """Keep what a run promises, until its result is released."""
    _guarantees[step.run.run_id] = step.run.guarantee


def guarantee_of_run(run_id: int) -> Guarantee | None:
    """The promise of a run whose step was built in this process."""
    return _guarantees.get(run_id)
