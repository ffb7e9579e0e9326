"""The facts of a released result, as text, HTML and JSON."""

import json
import math
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.exceptions import PrivacyConfigurationError, PrivacyError
from pymc_dp.gibbs.metadata import is_post_processing
from pymc_dp.privacy.events import from_json, to_json
from pymc_dp.privacy.guarantee import FALSE_ALARMS, at_most, describe
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, neighbours_named
from pymc_dp.report.facts import Facts
from pymc_dp.report.html import page
from pymc_dp.report.registry import registry_entry
from pymc_dp.report.tables import as_html, as_text
from pymc_dp.report.wording import account, recognised
from pymc_dp.results import identify, not_covered, on_still_chains, still_chains

REPORT_SCHEMA_VERSION = 2
_TITLE = "Privacy report"
_UNKNOWN = "not known here"


@dataclass(frozen=True)
class PrivacyReport(Facts):
    """A statement of what was released and what it guarantees.

    ``print`` shows it as text, notebooks show it as a table, and :meth:`save` files it.

    Parameters
    ----------
    statement : str
        The guarantee as a sentence.
    epsilon, delta : float
        The guarantee; infinite or NaN if there is none or none is known.
    valid : bool
        Whether it holds.
    unit : str
        What is protected.
    units : int, optional
        How many of them there are.
    relation : str
        Which data sets count as neighbours.
    epsilon_substitute_one : float
        ε when a unit is replaced; :attr:`epsilon` if that is the relation.
    algorithm : str
        What made the draws.
    noise : str
        Where the noise came from.
    accountant : str
        How releases were added up.
    releases : tuple of Event
        Every noisy number, or group of them, that was computed from the data.
    settings : mapping
        What was set: the algorithm's settings.
    diagnostics : mapping
        What the releases said of themselves, such as how far noise may have moved the draws.
    post_processing : bool
        Whether the draws were computed from statistics that are released already.
    software : mapping
        Names and versions.
    sampled : str, optional
        When, as an ISO 8601 time.
    variables : tuple of str
        What there are draws of.
    added : tuple of str
        Groups and variables that were put into the result after the release, and that nothing is known of.
    account : mapping, optional
        Of the ledger: ``budget``, ``spent`` and ``fits`` (all ε; the last what another run can have),
        ``delta`` and the number of ``runs``.
    remark : str
        What has to be known of the draws before they are used; empty if nothing.
    misfit : str
        What :func:`~pymc_dp.sandwich` found of the model, in plain words, and at which cost; empty if it was not asked.
    """

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and value, in order."""
        number = "public" if neighbours_named(self.relation).public_size else "private"
        rows = [
            ("Guarantee", f"ε = {self.epsilon:g}, δ = {self.delta:.3g}"),
            ("Valid", "yes" if self.valid else "NO: " + self._why_not),
            ("Unit of privacy", self.unit),
        ]
        if self.units is not None:
            rows.append(("Number of units", f"{self.units:,}"))
        rows += [
            ("Neighbouring data sets", f"{self.relation}, at a {number} number of units"),
            ("Algorithm", self.algorithm),
            ("Noise", self.noise),
            ("Accountant", self.accountant),
        ]
        if self.relation != SUBSTITUTE_ONE.name:
            guarantee = f"ε = {at_most(self.epsilon_substitute_one)}, δ = {self.delta:.3g}"
            rows.insert(2, (f"Under {SUBSTITUTE_ONE.name}", guarantee))
        if self.added:
            what = ", ".join(self.added)
            rows.insert(
                2,
                (
                    "Not covered",
                    f"{what}: added after the release. `pymc_dp.release(...)` drops it",
                ),
            )
        if self.remark:
            rows.insert(2, ("Beware", self.remark))
        if self.misfit:
            rows.append(("If the model is wrong", self.misfit))
        if self.account is not None:
            rows.append(("Account", account(self.account)))
        rows += [("Releases", f"{e.count:,} {describe(e)}") for e in self.releases]
        for kind, values in (("Setting", self.settings), ("Diagnostic", self.diagnostics)):
            rows += [
                (f"{kind} {name}", f"{value:.6g}" if isinstance(value, float) else str(value))
                for name, value in values.items()
            ]
        rows.append(("Draws of", ", ".join(self.variables)))
        if self.sampled is not None:
            rows.append(("Sampled", self.sampled[:16].replace("T", " ") + " UTC"))
        rows.append(("Software", ", ".join(f"{k} {v}" for k, v in self.software.items())))
        return rows

    @property
    def _why_not(self) -> str:
        return "the release declared no guarantee" if self.post_processing else "not private"

    def __str__(self) -> str:
        return as_text(_TITLE, self.rows) + "\n\n" + self.statement

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(_TITLE, self.rows) + f"<p>{escape(self.statement)}</p>"

    def to_html(self) -> str:
        """A page of its own, to file or to print: no scripts, fonts or pictures from elsewhere.

        Besides the facts it has the guarantee in plain words, what is covered and what is not, and
        how to check ε with somebody else's accountant.
        """
        return page(self, _TITLE, self.rows, self.to_json())

    def to_json(self) -> str:
        """All facts, for machines. Numbers that are not finite are null.

        ``releases`` is what :func:`~pymc_dp.privacy.accounting.composed_epsilon` turns into ε, in
        the format of the attribute ``privacy_events``.
        """
        power = recognised(self)
        facts = {
            "schema": "pymc-dp privacy report",
            "schema_version": REPORT_SCHEMA_VERSION,
            "statement": self.statement,
            "valid": self.valid,
            "epsilon": _finite(self.epsilon),
            "delta": _finite(self.delta),
            "relation": self.relation,
            "epsilon_substitute_one": _finite(self.epsilon_substitute_one),
            "unit": self.unit,
            "units": self.units,
            "algorithm": self.algorithm,
            "settings": {name: _finite(value) for name, value in self.settings.items()},
            "diagnostics": {name: _finite(value) for name, value in self.diagnostics.items()},
            "post_processing": self.post_processing,
            "noise": self.noise,
            "accountant": self.accountant,
            "releases": json.loads(to_json(self.releases)),
            "recognised": power and {"false_alarms": FALSE_ALARMS, "at_most": power},
            "sampled": self.sampled,
            "software": dict(self.software),
            "variables": list(self.variables),
            "added": list(self.added),
            "account": self.account and dict(self.account),
            "remark": self.remark,
            "misfit": self.misfit,
        }
        return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)

    def to_registry(self, **given: Any) -> str:
        """A draft of the entry for the public registry of deployments of differential privacy (arXiv:2509.13509).

        Parameters
        ----------
        **given
            Fields by the registry's names that only the deployer knows, such as ``name``, ``data_curators``,
            ``intended_use`` and ``publication_date``, or whose default does not fit: ``data_product_type``,
            ``model_name``, ``release_type``, ``access_type``, ``post_processing``, ``utility``, ``status``, ``tier``.

        Returns
        -------
        str
            JSON, with empty strings where there is something left to fill in.

        Raises
        ------
        PrivacyConfigurationError
            If there is no guarantee, if the registry has no such field, or if the run answers it.
        """
        entry = registry_entry(self, given)
        return json.dumps(entry, indent=2, ensure_ascii=False, allow_nan=False)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report to a file; its ending says how.

        Parameters
        ----------
        path : path
            Ending in ``.html`` (:meth:`to_html`), ``.json`` (:meth:`to_json`) or ``.txt``.

        Raises
        ------
        PrivacyConfigurationError
            If it ends otherwise.
        """
        path = Path(path)
        write = {".html": self.to_html, ".json": self.to_json, ".txt": self.__str__}
        if path.suffix.lower() not in write:
            raise PrivacyConfigurationError(
                f"`path` must end in .html, .json or .txt. Found {path.name!r}."
            )
        path.write_text(write[path.suffix.lower()]() + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def privacy_report(
    idata: Any, *, ledger: PrivacyLedger | None = None, sandwich: Any = None
) -> PrivacyReport:
    """What a released result guarantees, for people who have to answer for it.

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pymc_dp.sample`` or :func:`~pymc_dp.release`, or loaded from a file of one.
    ledger : PrivacyLedger, optional
        The account that the run was charged to. The report then says what all runs about these
        data cost together, as of now.
    sandwich : Sandwich, optional
        What :func:`~pymc_dp.sandwich` found of these draws: the report then says which intervals are too narrow.

    Returns
    -------
    PrivacyReport
        Prints as text; :meth:`~PrivacyReport.save` writes a page (HTML), text or JSON.

    Raises
    ------
    PrivacyError
        If `idata` has not been through :func:`~pymc_dp.release`.
    PrivacyConfigurationError
        If `ledger` has no such run, or `sandwich` is of another.
    """
    attrs, groups = root_attrs(idata), groups_of(idata)
    if "privacy_schema_version" not in attrs:
        raise PrivacyError(
            "This result carries no privacy statement. Pass it through `pymc_dp.release(...)` first."
        )
    post_processing = is_post_processing(groups)
    still = [] if post_processing else still_chains(groups)
    # Of a combined result those that it is made of.
    runs = set(json.loads(attrs.get("privacy_runs", "[]")))
    if not (runs or post_processing):
        runs = {f"{identify(groups).privacy_run:016x}"}
    if sandwich is not None and sandwich.run not in runs:
        raise PrivacyConfigurationError(
            "`sandwich` is of other draws. Give what `pymc_dp.sandwich` found of these."
        )
    host = groups["posterior"].attrs
    software = {"pymc-dp": str(attrs["pymc_dp_version"])}
    if "inference_library" in host:
        software[host["inference_library"]] = str(host.get("inference_library_version", ""))
    units = attrs.get("privacy_units")
    return PrivacyReport(
        statement=str(attrs["privacy_statement"]),
        epsilon=float(attrs["privacy_epsilon"]),
        delta=float(attrs["privacy_delta"]),
        valid=bool(attrs["privacy_valid"]),
        unit=str(attrs["privacy_unit"]),
        units=None if units is None else int(units),
        relation=str(attrs["privacy_relation"]),
        epsilon_substitute_one=float(
            attrs.get("privacy_epsilon_substitute_one", attrs["privacy_epsilon"])
        ),
        algorithm=str(attrs.get("privacy_step", _UNKNOWN)),
        noise=str(attrs["privacy_noise"]),
        accountant=str(attrs.get("privacy_accountant", _UNKNOWN)),
        releases=from_json(attrs["privacy_events"]),
        settings=json.loads(attrs.get("privacy_settings", "{}")),
        diagnostics=json.loads(attrs.get("privacy_diagnostics", "{}")),
        post_processing=post_processing,
        software=software,
        sampled=host.get("created_at"),
        variables=tuple(
            v
            for v in map(str, groups["posterior"].data_vars)
            if post_processing or v in json.loads(attrs["privacy_variables"])
        ),
        added=() if post_processing else tuple(not_covered(attrs, groups)),
        account=None if ledger is None else _account(ledger, runs),
        remark=on_still_chains(still, groups["sample_stats"].sizes["chain"]) if still else "",
        misfit="" if sandwich is None else f"{sandwich.finding} {sandwich.promise}",
    )


def _account(ledger: PrivacyLedger, runs: set[str]) -> dict[str, float]:
    """What all runs of a ledger cost, if one of `runs` is among them."""
    if not isinstance(ledger, PrivacyLedger):
        raise PrivacyConfigurationError(
            f"`ledger` must be a PrivacyLedger. Found {type(ledger).__name__}: "
            "PrivacyLedger(path) opens the account in a file."
        )
    # What prepares a run is charged under the run's name, too.
    charged = {plan.run.removesuffix("-first") for plan in ledger.runs()}
    if not runs & charged:
        raise PrivacyConfigurationError(
            "The ledger has no such run: these draws were not charged to it. Give the ledger that "
            "they were sampled with, or none."
        )
    return {
        "budget": ledger.epsilon,
        "spent": ledger.spent(),
        "fits": ledger.remaining(),
        "delta": ledger.delta,
        "runs": len(charged),
    }
