"""The run behind a step: its size, its budget, its account, and what it promises."""

import inspect
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Required, TypedDict

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_dp.checks import check_delta, check_epsilon, positive, whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.privacy.accounting import composed_epsilon, spending_curve
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Event, Gaussian, PoissonGaussian
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, neighbours_named
from pymc_dp.privacy.noise import NoiseSource, SecureNoise
from pymc_dp.privacy.noisy_sum import check_multiplier
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate


class RunSettings(TypedDict, total=False):
    """What every private step takes besides the settings of its algorithm.

    Parameters
    ----------
    draws, tune, chains : int
        The run's plan, the same numbers that ``pm.sample`` gets. Every iteration of every chain costs budget,
        tuning included; `tune` is 0 by default.
    epsilon, delta : float, optional
        The budget of the whole run, from which the noise is calibrated. `delta` defaults to the ledger's, or
        to 0.1 / units without one, if their number is public.
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

    draws: Required[int]
    tune: int
    chains: Required[int]
    epsilon: float | None
    delta: float | None
    neighbours: str
    unit: str | int | ArrayLike | None
    public: Sequence[str]
    ledger: PrivacyLedger | None
    noise_source: NoiseSource | None
    chunk_size: int | None
    model: pm.Model | CompiledModel | None
    compile_kwargs: Mapping[str, Any] | None
    rng: Any
    blocked: bool


_DEFAULTS: dict[str, Any] = dict.fromkeys(RunSettings.__annotations__) | {
    "tune": 0, "public": (), "blocked": True, "neighbours": SUBSTITUTE_ONE.name,
}  # fmt: skip
_FIRST = ("draws", "tune", "chains", "epsilon", "delta", "neighbours")


_REQUIRED = tuple(sorted(RunSettings.__required_keys__))


def with_settings(step: Any) -> Callable[..., None]:
    """The ``__init__`` of a step, with all settings of the run in its signature, and no others accepted.

    ``help``, ``inspect.signature`` and editors see them in place of ``**run``, which stands for
    :class:`RunSettings` and, if a step is built on another algorithm, for the settings of that.
    """
    init = vars(step)["__init__"]
    own = inspect.signature(init)
    found = {name: p for name, p in own.parameters.items() if p.kind is not p.VAR_KEYWORD}
    if len(found) < len(own.parameters):
        for name, hint in RunSettings.__annotations__.items():
            default = inspect.Parameter.empty if name in _REQUIRED else _DEFAULTS[name]
            kind = inspect.Parameter.KEYWORD_ONLY
            found[name] = inspect.Parameter(name, kind, default=default, annotation=hint)
        parent = getattr(step.__mro__[1].__init__, "__signature__", inspect.Signature())
        found |= {name: p for name, p in parent.parameters.items() if name not in found}
    # What a run costs stands first, what is about the model last.
    order = {name: k - len(_FIRST) for k, name in enumerate(_FIRST)}
    order |= {name: 1 for name in _DEFAULTS if name not in _FIRST}
    parameters = sorted(found.values(), key=lambda p: (p.kind, order.get(p.name, 0)))
    step.__signature__ = own.replace(parameters=parameters[1:])
    accepted = {p.name for p in parameters}

    @wraps(init)
    def checked(self: Any, *args: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in accepted:
                what = type(self).__name__
                raise TypeError(f"{what}() got an unexpected keyword argument {name!r}")
        init(self, *args, **keywords)

    checked.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return checked


def checked_settings(step: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run, with the defaults of those that are not given.

    Raises
    ------
    TypeError
        If one is missing.
    """
    for name in _REQUIRED:
        if name not in given:
            raise TypeError(f"{step}() missing 1 required keyword-only argument: {name!r}")
    return _DEFAULTS | dict(given)


class Run:
    """Size, budget and account of one run: what it releases is charged here, and promised here.

    Nothing of it depends on data. A step says what it releases by :meth:`pays`.

    Parameters
    ----------
    step : str
        The algorithm's name.
    instead : mapping
        What fixes the cost in place of `epsilon`, by name; empty if nothing can.
    draws, tune, chains, epsilon, neighbours, ledger, noise_source
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
        *,
        draws: int,
        tune: int,
        chains: int,
        epsilon: float | None,
        neighbours: str,
        ledger: PrivacyLedger | None,
        noise_source: NoiseSource | None,
    ):
        self.step = step
        self.neighbours = neighbours_named(neighbours)
        self.draws = whole("draws", draws, 1)
        self.tune = whole("tune", tune, 0)
        self.chains = whole("chains", chains, 1)
        self.noise: NoiseSource = SecureNoise() if noise_source is None else noise_source
        self.secure = type(self.noise) is SecureNoise
        self._check_budget(epsilon, instead)
        self.epsilon = None if epsilon is None else check_finite_epsilon(epsilon)
        if ledger is not None and not isinstance(ledger, PrivacyLedger):
            raise PrivacyConfigurationError(
                f"`ledger` must be a PrivacyLedger. Found {type(ledger).__name__}: "
                "PrivacyLedger(path) opens the account in a file."
            )
        if ledger is not None and not self.secure:
            raise PrivacyConfigurationError(
                "A ledger accounts for real guarantees; a run with insecure noise has none. Leave "
                "`ledger` out, or `noise_source`."
            )
        if ledger is not None:
            ledger.check_neighbours(self.neighbours.name)
        self._given_ledger = ledger
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

    def open_account(self, delta: float | None, n_units: int) -> None:
        """Settle δ, and whose ledger is charged."""
        ledger = self._given_ledger
        if delta is None and ledger is None and not self.neighbours.public_size:
            raise PrivacyConfigurationError(
                f'With `neighbours="{self.neighbours.name}"` give `delta`, or a `ledger` that has one: the '
                "default 0.1 / units would tell the number of units, which is private then. Well below one "
                "in the size of the population that they are from is right, such as 1e-6."
            )
        if delta is None:
            delta = 0.1 / n_units if ledger is None else ledger.delta
        self.delta = check_delta(delta)
        self.ledger = ledger or PrivacyLedger(
            epsilon=math.inf, delta=self.delta, neighbours=self.neighbours.name
        )

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
            if isinstance(event, Gaussian | PoissonGaussian):
                check_multiplier(event.noise_multiplier, self.noise)
        self.guarantee = Guarantee(
            run_id=self.run_id, step=self.step, events=events, once=once, draws=self.draws,
            tune=self.tune, chains=self.chains, budget=self.epsilon, delta=self.delta,
            noise=self.noise.name, secure=self.secure, neighbours=self.neighbours.name, **what,
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


def check_finite_epsilon(epsilon: float) -> float:
    """ε as a float, if it is positive and finite."""
    number = check_epsilon(epsilon)
    if math.isinf(number):
        raise PrivacyConfigurationError(
            "`epsilon` must be finite. To debug without noise, say so: `noise_multiplier=0, "
            "noise_source=InsecureSeededNoise(seed)`."
        )
    return number


# `pm.sample` offers no way to attach a promise to its result, so a draw carries the run's public
# number, and `release` finds here what the run promised.
_guarantees: dict[int, Guarantee] = {}


def remember(step: Any) -> None:
    """Keep what a run promises, until its result is released."""
    _guarantees[step.run.run_id] = step.run.guarantee


def guarantee_of_run(run_id: int) -> Guarantee | None:
    """The promise of a run whose step was built in this process."""
    return _guarantees.get(run_id)
