"""From what ``pm.sample`` returns to what may be released."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._version import __version__
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.events import from_json
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.steps.base import STATS, PrivateStep, guarantee_of_run
from pymc_dp.tables import as_html, as_text

_STATISTICS = ("sample_stats", "warmup_sample_stats")
_KEPT_GROUPS = ("posterior", "warmup_posterior", "constant_data", *_STATISTICS)
# Attributes of PyMC's that say nothing about the data. Running time does, so it stays behind.
_SAFE_ATTRS = ("created_at", "creation_library", "creation_library_version", "creation_library_language",
               "inference_library", "inference_library_version", "arviz_version", "tuning_steps",
               "sample_dims")  # fmt: skip


def release(idata: Any, *, step: PrivateStep | None = None) -> Any:
    """Keep of a sampling result what is covered by the guarantee, and write the guarantee on it.

    Drops ``observed_data``, private ``constant_data``, every group or variable that the private
    step did not make, record labels, and running times; adds root attributes ``privacy_*`` and a
    ``privacy`` group. ``pymc_dp.sample`` has called it already; use it on the result of a plain
    ``pm.sample``. Releasing twice changes nothing.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample(step=...)`` returned.
    step : PrivateStep, optional
        Only for a result that another process sampled and saved unreleased: a step built for the
        same model with the same settings, which tells what in the result is private.

    Returns
    -------
    InferenceData or DataTree
        A new object; the type of `idata`.

    Raises
    ------
    PrivacyError
        If the draws were not made by a private step alone, or the run is not known.
    """
    groups = groups_of(idata)
    run_id, epsilon, delta = _identify(groups)
    attrs = {k: v for k, v in root_attrs(idata).items() if k in _SAFE_ATTRS}
    attrs |= _promise(root_attrs(idata), guarantee_of_run(run_id), step, epsilon, delta)
    allowed = json.loads(attrs["privacy_variables"])

    kept: dict[str, xr.Dataset] = {}
    for name, group in groups.items():
        if name not in _KEPT_GROUPS:
            continue
        wanted = STATS if name in _STATISTICS else allowed
        if chosen := [v for v in group.data_vars if v in wanted]:
            kept[name] = _only(group, chosen)
    kept["privacy"] = _privacy_group(attrs)
    return from_groups(kept, attrs, like=idata)


def _identify(groups: Mapping[str, xr.Dataset]) -> tuple[int, float, float]:
    """Run number, ε and δ that the draws carry."""
    stats = groups.get("sample_stats")
    if stats is None or not {"privacy_run", "epsilon", "delta"} <= set(stats.data_vars):
        raise PrivacyError(
            "These draws were not made by a private step: they have no privacy statistics. Sample "
            "with `pymc_dp.sample(...)` or `pm.sample(step=pymc_dp.DPPenalty(...))`."
        )
    strangers = sorted(set(map(str, stats.data_vars)) - set(STATS))
    if strangers:
        raise PrivacyError(
            f"Another step method took part in this run (its statistics: {strangers}). It read the "
            "data without noise, so the draws cannot be released. Use the private step alone."
        )
    carried = [np.unique(stats[name].values) for name in ("privacy_run", "epsilon", "delta")]
    if any(len(values) != 1 for values in carried):
        raise PrivacyError(
            "These draws come from more than one run. Release each run's result on its own; what "
            "they cost together is in the ledger."
        )
    return int(carried[0][0]), float(carried[1][0]), float(carried[2][0])


def _promise(
    present: Mapping[str, Any],
    guarantee: Guarantee | None,
    step: PrivateStep | None,
    epsilon: float,
    delta: float,
) -> dict[str, Any]:
    """Attributes ``privacy_*``: of the run as it was planned, or as they are on the result."""
    if guarantee is not None:
        return guarantee.attrs(__version__)
    if "privacy_schema_version" in present:
        return {k: v for k, v in present.items() if k.startswith(("privacy_", "pymc_dp_"))}
    if step is None:
        raise PrivacyError(
            "The run that made these draws was planned in another process, so what may be kept of "
            "them is not known here. Build the step again, for the same model with the same "
            "settings, and pass it: `release(idata, step=step)`. (`pymc_dp.sample` releases in the "
            "process that samples.)"
        )
    if (step.guarantee.epsilon, step.guarantee.delta) != (epsilon, delta):
        raise PrivacyError(
            f"The draws carry ε = {epsilon:g} and δ = {delta:g}, the step given "
            f"ε = {step.guarantee.epsilon:g} and δ = {step.guarantee.delta:g}: it was not built "
            "with the settings of this run."
        )
    return step.guarantee.attrs(__version__)


def _only(group: xr.Dataset, variables: list[Any]) -> xr.Dataset:
    """Some variables, with the labels of their own dimensions only."""
    kept = group[variables]
    used = {dim for v in variables for dim in group[v].dims}
    kept = kept.drop_vars([name for name, c in kept.coords.items() if not set(c.dims) <= used])
    kept.attrs = {k: v for k, v in group.attrs.items() if k in _SAFE_ATTRS}
    return kept


def _privacy_group(attrs: Mapping[str, Any]) -> xr.Dataset:
    """The releases as a table, for programs; the attributes again, for people."""
    events = from_json(attrs["privacy_events"])
    return xr.Dataset(
        {
            "mechanism": ("release", np.array([type(e).__name__ for e in events], dtype=object)),
            "noise_multiplier": ("release", np.array([e.noise_multiplier for e in events], float)),
            "count": ("release", np.array([e.count for e in events], dtype=np.int64)),
        },
        attrs={k: v for k, v in attrs.items() if k.startswith(("privacy_", "pymc_dp_"))},
    )


@dataclass(frozen=True)
class PrivacyReport:
    """A statement of what was released and what it guarantees. Text, or HTML in notebooks."""

    statement: str
    rows: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return as_text("Privacy report", self.rows) + "\n\n" + self.statement

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html("Privacy report", self.rows) + f"<p>{self.statement}</p>"


def privacy_report(idata: Any) -> PrivacyReport:
    """What a released result guarantees, for people who have to answer for it.

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pymc_dp.sample`` or :func:`release`, or loaded from a file of one.

    Returns
    -------
    PrivacyReport

    Raises
    ------
    PrivacyError
        If `idata` has not been through :func:`release`.
    """
    attrs = root_attrs(idata)
    if "privacy_schema_version" not in attrs:
        raise PrivacyError(
            "This result carries no privacy statement. Pass it through `pymc_dp.release(...)` first."
        )
    settings = json.loads(attrs.get("privacy_settings", "{}"))
    rows = [
        ("Guarantee", f"ε = {attrs['privacy_epsilon']:g}, δ = {attrs['privacy_delta']:.3g}"),
        ("Valid", "yes" if attrs["privacy_valid"] else "NO: not private"),
        ("Unit of privacy", str(attrs["privacy_unit"])),
        ("Neighbouring data sets", f"{attrs['privacy_relation']}, at a public number of units"),
        ("Algorithm", str(attrs.get("privacy_step", "not known here"))),
        ("Noise", str(attrs["privacy_noise"])),
        ("Accountant", str(attrs.get("privacy_accountant", "not known here"))),
    ]
    rows += [
        (
            "Releases",
            f"{e.count:,} {type(e).__name__.lower()}, noise multiplier {e.noise_multiplier:.6g}",
        )
        for e in from_json(attrs["privacy_events"])
    ]
    rows += [
        (f"Setting {name}", f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in settings.items()
    ]
    rows.append(("Software", f"pymc-dp {attrs['pymc_dp_version']}"))
    return PrivacyReport(str(attrs["privacy_statement"]), tuple(rows))
