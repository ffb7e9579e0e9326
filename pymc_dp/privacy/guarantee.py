"""What a run promises, as public data."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from scipy.special import ndtr, ndtri

from pymc_dp.privacy.accounting import composed_epsilon, gaussian_mu
from pymc_dp.privacy.events import (
    BarkerBatch,
    Event,
    Gaussian,
    GaussianOrL2,
    L2Mechanism,
    PoissonGaussian,
    Pure,
    to_json,
)
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, neighbours_named
from pymc_dp.privacy.plans import RunPlan

SCHEMA_VERSION = 2


def describe(event: Event) -> str:
    """What kind of release an event is, for people."""
    match event:
        case PoissonGaussian():
            return (
                f"gaussian of samples, each unit at rate {event.sampling_rate:.6g}, noise multiplier "
                f"{event.noise_multiplier:.6g}"
            )
        case Pure():
            return f"pure, ε = {event.epsilon:.6g} each"
        case BarkerBatch():
            return (
                f"Barker tests on batches of {event.batch_size:,} of {event.units:,} units, "
                f"variance {event.variance:.6g}"
            )
        case L2Mechanism():
            return f"ℓ2 mechanism in {event.dimension} dimensions, noise multiplier {event.noise_multiplier:.6g}"
        case GaussianOrL2():
            return (
                f"gaussian, noise multiplier {event.gaussian_multiplier:.6g}, or ℓ2 mechanism in {event.dimension} "
                f"dimensions, noise multiplier {event.l2_multiplier:.6g}"
            )
    return f"{type(event).__name__.lower()}, noise multiplier {event.noise_multiplier:.6g}"


def at_most(epsilon: float) -> str:
    """ε in four digits, rounded up: what is stated must hold."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit) * unit:.4g}"


def at_delta(epsilon: str, delta: float) -> str:
    """A cost in words: ε, as it is written, and δ."""
    return f"ε = {epsilon}, pure (δ = 0)" if delta == 0 else f"ε = {epsilon} at δ = {delta:.3g}"


def private(epsilon: str, delta: float) -> str:
    """What something is: (ε, δ)-differentially private, or ε-differentially private without exception."""
    parameters = f"{epsilon}" if delta == 0 else f"({epsilon}, {delta:.3g})"
    return f"{parameters}-differentially private" + (" (pure: δ = 0)" if delta == 0 else "")


FALSE_ALARMS = 0.05
"""Share of false alarms that an attacker of :func:`told_apart` puts up with."""
_TOLD_APART = 0.95
"""Of neighbours: with so few errors of either kind, nothing is hidden."""
_LARGE_DELTA = 1e-3
"""Where the number of units is private. Of fewer than a thousand hardly anything can be learnt."""


def told_apart(epsilon: float, delta: float, releases: Sequence[Event]) -> float:
    """Bound on how often an attacker tells two neighbours apart, at 5 % false alarms.

    For Gaussian releases alone it is the exact trade-off of the composition, otherwise that of (ε, δ).
    """
    # The larger of the two exponentials would overflow for an ε that somebody debugs with.
    bounds = [
        math.exp(min(epsilon, 50.0)) * FALSE_ALARMS + delta,
        1 - math.exp(-epsilon) * (1 - delta - FALSE_ALARMS),
    ]
    gaussians = [e for e in releases if isinstance(e, Gaussian)]
    if gaussians and len(gaussians) == len(releases):
        bounds.append(float(ndtr(ndtri(FALSE_ALARMS) + gaussian_mu(gaussians))))
    return min(1.0, *bounds)


def accountant_of(events: Iterable[Event], delta: float) -> str:
    """How :func:`~pymc_dp.privacy.accounting.composed_epsilon` adds such events up."""
    if delta == 0:
        return "simple composition of pure ε"
    kinds = {type(e) for e in events}
    if BarkerBatch in kinds:
        return "Rényi divergences, sampling without replacement"
    return "gaussian-dp, closed form" if kinds == {Gaussian} else "privacy loss distributions"


@dataclass(frozen=True)
class Guarantee:
    """The promise of one run and everything needed to check it. All of it is public.

    Parameters
    ----------
    run_id : int
        Public random name of the run.
    step : str
        The algorithm.
    events : tuple of Event
        Releases of one iteration.
    draws, tune, chains : int
        The run's size; every iteration of every chain is a release.
    budget : float, optional
        ε asked for. The composed ε is never above it.
    delta : float
        δ.
    unit : str
        The unit of privacy.
    n_units, n_records : int, optional
        Sizes, if they are public.
    noise : str
        Name of the noise source.
    secure : bool
        Whether a guarantee can rest on the noise.
    settings : mapping
        The step's settings, for the record.
    variables : tuple of str
        What the result may contain: parameters, public constants.
    statistics : tuple of str
        What its sampler statistics may contain.
    private_data, public_data, record_dims : tuple of str
        Names only.
    once : tuple of Event
        Releases before the first iteration, for all chains together.
    diagnostics : mapping
        What these releases said of themselves, for the record. No part of the promise.
    law : str
        What they say of the likelihood, for :func:`~pymc_dp.combine`; empty if it is no normal law. No part of it either.
    neighbours : str
        Name of the neighbouring relation.
    """

    run_id: int
    step: str
    events: tuple[Event, ...]
    draws: int
    tune: int
    chains: int
    budget: float | None
    delta: float
    unit: str
    n_units: int | None
    n_records: int | None
    noise: str
    secure: bool
    settings: Mapping[str, float | str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    private_data: tuple[str, ...] = ()
    public_data: tuple[str, ...] = ()
    record_dims: tuple[str, ...] = ()
    once: tuple[Event, ...] = ()
    diagnostics: Mapping[str, float | str] = field(default_factory=dict)
    law: str = ""
    neighbours: str = SUBSTITUTE_ONE.name

    @property
    def iterations(self) -> int:
        """Iterations of one chain, tuning included."""
        return self.tune + self.draws

    @cached_property
    def epsilon(self) -> float:
        """ε of the whole run at :attr:`delta`; infinite if the noise carries no guarantee."""
        if not self.secure:
            return math.inf
        if self.budget is not None:
            return self.budget
        return composed_epsilon(self.total, self.delta)

    @cached_property
    def epsilon_substitute_one(self) -> float:
        """ε of the whole run at :attr:`delta` when a unit is replaced, whatever the relation of the run.

        The other way round nothing is stated: a run under substitution tells how many units there are.
        """
        relation = neighbours_named(self.neighbours)
        if relation.public_size or not self.secure:
            return self.epsilon
        return composed_epsilon(relation.under_substitution(self.total), self.delta)

    @property
    def total(self) -> tuple[Event, ...]:
        """Every release of the run."""
        return (*self.once, *self.run_plan.total)

    @property
    def valid(self) -> bool:
        """Whether there is a promise at all."""
        return self.secure and math.isfinite(self.epsilon)

    @cached_property
    def run_plan(self) -> RunPlan:
        """What the ledger is asked for."""
        return RunPlan(
            run=f"{self.run_id:016x}",
            description=f"This run of {self.step}",
            events=self.events,
            chains=self.chains,
            iterations=self.iterations,
            neighbours=self.neighbours,
        )

    @cached_property
    def first_plan(self) -> RunPlan:
        """What the ledger is asked for, for the releases before the first iteration."""
        return RunPlan(
            run=f"{self.run_id:016x}-first",
            description=f"The preparation of this run of {self.step}",
            events=self.once,
            chains=1,
            iterations=1,
            neighbours=self.neighbours,
        )

    @property
    def plans(self) -> tuple[RunPlan, ...]:
        """Everything the ledger is asked for."""
        return (self.first_plan, self.run_plan) if self.once else (self.run_plan,)

    @cached_property
    def fingerprint(self) -> int:
        """A number that tells apart runs that promise different things. Public, like all of this."""
        said = ("run_id", "diagnostics", "law")
        promise = {k: v for k, v in asdict(self).items() if k not in said}
        digest = hashlib.sha256(json.dumps(promise, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2

    @property
    def noise_name(self) -> str:
        """Name of the noise source, or "none" when the multiplier is 0."""
        # Nothing else of an event can be 0.
        silent = any(0 in asdict(e).values() for e in self.total)
        return "none" if silent else self.noise

    @property
    def sentence(self) -> str:
        """The promise, for a report."""
        if not self.valid:
            return (
                f"NOT PRIVATE: these draws were made with noise source {self.noise_name!r}, "
                "or without a finite budget. They carry no guarantee and must not be released."
            )
        return f"These draws are {self.promise}: {self._releases} together."

    @property
    def in_words(self) -> str:
        """What ε and δ promise, for who has never heard of them: the definition, and what it means for an attacker."""
        if not self.valid:
            return "No promise: the noise is not one that a guarantee can rest on, or there is no budget."
        noticed = told_apart(self.epsilon, self.delta, self.total)
        if noticed >= _TOLD_APART:
            return "Next to nothing is promised."
        changed = (
            "replaced" if neighbours_named(self.neighbours).public_size else "added or left out"
        )
        plus = "" if self.delta == 0 else f", plus {self.delta:.3g},"
        return (
            f"Whatever comes out is at most {at_most(math.exp(min(self.epsilon, 700.0)))} times as likely{plus} as it "
            f"would be if {self.unit} were {changed}; who knows everything else notices that in at most {math.ceil(100 * noticed)} % "
            f"of cases, with {100 * FALSE_ALARMS:g} % false alarms."
        )

    @property
    def cautions(self) -> list[str]:
        """Why the promise is next to none, if it is: for who plans a run."""
        if not self.valid:
            return []
        found, power = [], told_apart(self.epsilon, self.delta, self.total)
        if power >= _TOLD_APART:
            found.append(
                f"{at_delta(f'{self.epsilon:g}', self.delta)} protects next to nothing: who knows everything else tells two "
                f"versions of {self.unit} apart in up to {100 * power:.0f} % of cases, with {100 * FALSE_ALARMS:g} % false alarms."
            )
        if self.delta * (self.n_units or 1 / _LARGE_DELTA) >= 1:
            many = "any data set of use" if self.n_units is None else f"{self.n_units:,} units"
            found.append(
                f"δ = {self.delta:.3g} is too large for {many}: it allows that some units are published outright. "
                "Well below one in their number is right."
            )
        return found

    @property
    def promise(self) -> str:
        """What whatever the run gives is, in words."""
        if self.n_units is None:
            about = (
                f"adding or removing {self.unit}, of which it is not told how many there are, and "
                f"{private(at_most(self.epsilon_substitute_one), self.delta)} with respect to replacing one"
            )
        else:
            about = f"replacing {self.unit} among {self.n_units:,}"
        return f"{private(f'{self.epsilon:g}', self.delta)} with respect to {about}"

    @property
    def _releases(self) -> str:
        if not self.events:
            return "all of them, however many, and what the run says of itself,"
        first = "the preparation and " if self.once else ""
        many = f"{self.chains * self.iterations:,} iterations ({self.chains} chain(s), tuning included)"
        return f"{first}all {many}"

    def attrs(self, version: str) -> dict[str, str | float | int]:
        """Root attributes of a result: numbers and text only, so that every format keeps them."""
        sizes = {} if self.n_units is None else {"privacy_units": self.n_units}
        return {
            "privacy_epsilon": self.epsilon,
            "privacy_epsilon_substitute_one": self.epsilon_substitute_one,
            "privacy_delta": self.delta,
            "privacy_relation": self.neighbours,
            "privacy_unit": self.unit,
            **sizes,
            "privacy_accountant": accountant_of(self.total, self.delta),
            "privacy_noise": self.noise_name,
            "privacy_valid": int(self.valid),
            "privacy_usable": int(self.diagnostics.get("usable", 1)),
            "privacy_events": to_json(self.total),
            "privacy_step": self.step,
            "privacy_settings": json.dumps(dict(self.settings)),
            "privacy_diagnostics": json.dumps(dict(self.diagnostics)),
            **({"privacy_law": self.law} if self.law else {}),
            "privacy_statement": self.sentence,
            "privacy_variables": json.dumps(self.variables),
            "privacy_statistics": json.dumps(self.statistics),
            "privacy_record_dims": json.dumps(self.record_dims),
            "privacy_schema_version": SCHEMA_VERSION,
            "pymc_dp_version": version,
        }
