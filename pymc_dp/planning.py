"""A step's releases and their cost, before anything runs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import times
from pymc_dp.privacy.guarantee import Guarantee, at_delta, at_most, describe
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.report.tables import as_html, as_text
from pymc_dp.steps.acceptance import acceptance_at_equal_density
from pymc_dp.steps.base import PrivateStep


@dataclass(frozen=True)
class Plan:
    """What a run will release and cost. Shows as text, and as a table in notebooks.

    Parameters
    ----------
    guarantee : Guarantee
        What the run will promise.
    ledger : PrivacyLedger
        The account it will be charged to.
    left_out : tuple of str
        Deterministics that the result will not have, because private data are in them.
    outlook : callable
        Says what can be said of the run before it is paid for, or nothing; asked when rows are read, as it takes passes over
        public data.
    unit_given : bool
        Whether it was said what a unit is.
    """

    guarantee: Guarantee
    ledger: PrivacyLedger
    left_out: tuple[str, ...] = ()
    outlook: Callable[[], str] = str
    unit_given: bool = False

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and value, in order."""
        g, outlook = self.guarantee, self.outlook()
        iterations = g.chains * g.iterations
        many = "" if g.n_units is None else f", {g.n_units:,} of them"
        rows = [
            ("Protects", f"{g.unit}{many} ({g.neighbours} neighbours)" + self._of_people),
            *(("Caution", caution) for caution in g.cautions),
            ("Step", g.step),
            ("Private data", ", ".join(g.private_data)),
            ("Treated as public", ", ".join(g.public_data) or "nothing in the likelihood"),
            *([("Public design", outlook)] if outlook else []),
            *([("Left out of the result", ", ".join(self.left_out))] if self.left_out else []),
            (
                "Chains",
                f"{g.chains} × ({g.tune} tuning + {g.draws} draws) = {iterations:,} iterations",
            ),
        ]
        for event in g.once:
            rows.append(("Releases, first", describe(event) + ", divided up on the way"))
        for event in g.events:
            rows.append(("Releases", f"{event.count * iterations:,} {describe(event)}"))
        rows.append(("Cost of the run", at_delta(f"{g.epsilon:.6g}", g.delta)))
        rows.append(("In words", g.in_words))
        if g.neighbours != SUBSTITUTE_ONE.name:
            of_both = at_delta(at_most(g.epsilon_substitute_one), g.delta)
            rows.append((f"Under {SUBSTITUTE_ONE.name}", of_both))
        if g.events and not g.once:  # a draw that rests on a preparation costs that, too
            rows.append(("Cost of one draw alone", self._cost_of_one()))
        rows.append(("Noise", g.noise_name + ("" if g.valid else "  (NO GUARANTEE)")))
        typical = g.settings.get("typical_noise_sd")
        if isinstance(typical, float):
            rows.append(
                (
                    "Typical proposal" + (" before tuning" if g.tune else ""),
                    f"noise sd {typical:.3g} in the log acceptance ratio; at most "
                    f"{acceptance_at_equal_density(typical):.0%} accepted between equals",
                )
            )
        rows.append(
            (
                "Settings",
                ", ".join(
                    f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
                    for name, value in g.settings.items()
                ),
            )
        )
        if math.isfinite(self.ledger.epsilon):
            rows.append(
                (
                    "Ledger",
                    f"ε = {self.ledger.spent():.4g} spent of {self.ledger.epsilon:g} at "
                    f"δ = {self.ledger.delta:.3g}; another run can have ε = {self.ledger.remaining():.4g}",
                )
            )
        return rows

    @property
    def short(self) -> str:
        """The lines that whoever starts a run is to read."""
        rows = dict(replace(self, outlook=str).rows)
        lines = [
            f"Protects: {rows['Protects']}.",
            f"Private: {rows['Private data']}. Treated as public: {rows['Treated as public']}.",
            f"Costs {rows['Cost of the run']}. {rows['In words']}",
        ]
        return "\n".join([*lines, *([f"Ledger: {rows['Ledger']}."] if "Ledger" in rows else [])])

    @property
    def _of_people(self) -> str:
        """What a row is not, unless it was said what it is."""
        if self.unit_given or not self.guarantee.unit.startswith("one record"):
            return ""
        return "; a person with several rows is not protected (`unit=` says whose rows are whose)"

    def _cost_of_one(self) -> str:
        g = self.guarantee
        if not g.valid:
            return "ε = inf"
        return f"ε = {composed_epsilon(times(g.events, 1), g.delta):.3g} at the same δ"

    def __str__(self) -> str:
        return as_text("Privacy plan", self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html("Privacy plan", self.rows)


def plan(step: PrivateStep) -> Plan:
    """What a step will release and what it will cost. Free: nothing is charged, and nothing private is read.

    Parameters
    ----------
    step : PrivateStep
        A built step, such as ``DPPenalty(...)``.

    Returns
    -------
    Plan

    Raises
    ------
    PrivacyConfigurationError
        If `step` is not a private step.
    """
    if not isinstance(step, PrivateStep):
        raise PrivacyConfigurationError(
            f"`plan` takes a private step that has been built. Found {type(step).__name__}. Build the step of your "
            "model: `plan(DPSurrogate(epsilon=1.0, draws=1000, chains=4, model=model))`."
        )
    return Plan(
        step.guarantee, step.ledger, step.roles.left_out, step.outlook, step.roles.unit_given
    )
