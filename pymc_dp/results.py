"""From what ``pm.sample`` returns to what may be released."""

import json
import logging
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pymc_dp._version import __version__
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.exceptions import PrivacyError
from pymc_dp.gibbs.metadata import is_post_processing, stamp
from pymc_dp.privacy.events import from_json
from pymc_dp.steps.base import PrivateStep
from pymc_dp.steps.run import guarantee_of_run
from pymc_dp.steps.statistics import STATS

_log = logging.getLogger("pymc.dp")

_DRAWS = {"posterior": "sample_stats", "warmup_posterior": "warmup_sample_stats"}
# Attributes of PyMC's that say nothing about the data. Running time does, so it stays behind.
_SAFE_ATTRS = ("created_at", "creation_library", "creation_library_version", "creation_library_language",
               "inference_library", "inference_library_version", "arviz_version", "tuning_steps",
               "sample_dims")  # fmt: skip


def release(idata: Any, *, step: PrivateStep | None = None) -> Any:
    """Keep of a sampling result what is covered by the guarantee, and write the guarantee on it.

    Drops ``observed_data``, private ``constant_data``, every group or variable that the private
    step did not make, record labels, and running times; adds root attributes ``privacy_*`` and a
    ``privacy`` group. ``pymc_dp.sample`` has called it already; use it on the result of a plain
    ``pm.sample``. Releasing twice changes nothing. A chain that never moved is said to be one.

    Release before you predict: ``pm.sample_posterior_predictive`` puts the exact observed data into what it
    returns, and predicts for the people in the data. :func:`~pymc_dp.predict` takes public rows.

    A result of :class:`~pymc_dp.PrivacyAwareGibbs` was computed from statistics that are released
    already: nothing is dropped, and the attributes say what their release guarantees. Whatever else
    the model observes is taken as public.

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
    if is_post_processing(groups):
        return stamp(idata)
    carried = identify(groups)
    attrs = {k: v for k, v in root_attrs(idata).items() if k in _SAFE_ATTRS}
    attrs |= _promise(root_attrs(idata), carried, step)
    allowed, of_steps = json.loads(attrs["privacy_variables"]), covered_statistics(attrs)
    private_dims = set(json.loads(attrs["privacy_record_dims"]))
    found = {str(v) for s in _DRAWS.values() if s in groups for v in groups[s].data_vars}
    if strangers := sorted(found - of_steps):
        raise PrivacyError(
            f"Another step method took part in this run (its statistics: {strangers}). It read "
            "the data without noise, so the draws cannot be released. Use the private step alone."
        )

    kept: dict[str, xr.Dataset] = {}
    for draws, statistics in _DRAWS.items():
        if statistics in groups:
            kept[draws] = _only(groups[draws], allowed, private_dims)
            kept[statistics] = _only(groups[statistics], of_steps, private_dims)
    if "constant_data" in groups:
        constants = _only(groups["constant_data"], allowed, private_dims)
        if constants.data_vars:
            kept["constant_data"] = constants
    kept["privacy"] = _privacy_group(attrs)
    if still := still_chains(kept):
        _log.warning("%s", on_still_chains(still, kept["sample_stats"].sizes["chain"]))
    return from_groups(kept, attrs, like=idata)


def released(idata: Any, instead: str) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Root attributes and groups of a result of private draws that has been released.

    Parameters
    ----------
    idata : InferenceData or DataTree
    instead : str
        What to use where nothing is private.

    Raises
    ------
    PrivacyError
        If it has not been released, or nothing in it is private.
    """
    attrs, groups = root_attrs(idata), groups_of(idata)
    if "privacy_schema_version" not in attrs:
        raise PrivacyError(
            "These draws have not been released. Pass them through `pymc_dp.release(...)` first."
        )
    if is_post_processing(groups):
        raise PrivacyError(f"Nothing in this model is private: use `{instead}`.")
    return attrs, groups


def covered_statistics(attrs: Mapping[str, Any]) -> set[str]:
    """Names of the sampler statistics that a run may release: its step's own, and those of all steps."""
    return {*json.loads(attrs.get("privacy_statistics", "[]")), *STATS}


def not_covered(attrs: Mapping[str, Any], groups: Mapping[str, xr.Dataset]) -> list[str]:
    """What has been put into a released result since: groups, and variables of its own groups."""
    variables, statistics = json.loads(attrs["privacy_variables"]), covered_statistics(attrs)
    known = {"constant_data": variables, "privacy": list(_privacy_group(attrs).data_vars)}
    for draws, of_draws in _DRAWS.items():
        known |= {draws: variables, of_draws: statistics}
    found = [name for name in groups if name not in known]
    for name, covered in known.items():
        if name in groups:
            found += [
                f"{name}[{v!r}]" for v in map(str, groups[name].data_vars) if v not in covered
            ]
    return found


def still_chains(groups: Mapping[str, xr.Dataset]) -> list[int]:
    """Numbers of the chains that accepted no move."""
    moved = groups["sample_stats"]["accepted"].any("draw")
    return [int(k) for k in moved["chain"].values[~moved.values]]


def on_still_chains(still: list[int], chains: int) -> str:
    """What is to be said of chains that never moved."""
    if chains == 1:
        what = "The chain never moved"
    elif len(still) == chains:
        what = f"None of the {chains} chains ever moved"
    else:
        what = f"Of {chains} chains, number {', '.join(map(str, still))} never moved"
    return (
        f"{what}: no proposal was accepted, and the draws are the place where sampling started. Nothing is "
        "learnt from them. Smaller moves (`scale`, `step_size`), covariates scaled "
        "by public constants to about 1, a larger `epsilon` or the default sampler would help."
    )


class Carried(NamedTuple):
    """What the draws themselves say of their run."""

    privacy_run: int
    privacy_plan: int
    epsilon: float
    delta: float


def identify(groups: Mapping[str, xr.Dataset]) -> Carried:
    """The one run that all draws come from.

    Raises
    ------
    PrivacyError
        If there is none, or more than one.
    """
    if "posterior" not in groups or "sample_stats" not in groups:
        predicted = {"posterior_predictive", "predictions"} & set(groups)
        raise PrivacyError(
            "This result has no posterior draws with sampler statistics."
            + (
                " Predictions of `pm.sample_posterior_predictive` cannot be released: they are made for the "
                "people in the data, whose exact data they carry. `pymc_dp.predict` makes them for public "
                "rows, from released draws."
                if predicted
                else ""
            )
        )
    runs = set()
    for draws, statistics in _DRAWS.items():
        if statistics not in groups:
            continue
        stats = groups[statistics]
        if not set(Carried._fields) <= set(stats.data_vars):
            raise PrivacyError(
                "These draws were not made by a private step: they have no privacy statistics. "
                "Sample with `pymc_dp.sample(...)` or `pm.sample(step=pymc_dp.DPPenalty(...))`."
            )
        sizes = [{d: g.sizes.get(d) for d in ("chain", "draw")} for g in (stats, groups[draws])]
        if sizes[0] != sizes[1]:
            raise PrivacyError(
                f"The groups {draws!r} and {statistics!r} have different numbers of draws: they do "
                "not belong together."
            )
        runs.add(tuple(tuple(np.unique(stats[name].values).tolist()) for name in Carried._fields))
    found = runs.pop()
    if runs or any(len(values) != 1 for values in found):
        raise PrivacyError(
            "These draws come from more than one run. Release each run's result on its own; what "
            "they cost together is in the ledger."
        )
    return Carried(*(values[0] for values in found))


def _promise(
    present: Mapping[str, Any], carried: Carried, step: PrivateStep | None
) -> dict[str, Any]:
    """Attributes ``privacy_*``: of the run as it was planned, or as they are on the result."""
    guarantee = guarantee_of_run(carried.privacy_run)
    if guarantee is None and "privacy_schema_version" in present:
        return {k: v for k, v in present.items() if k.startswith(("privacy_", "pymc_dp_"))}
    if guarantee is None:
        if step is None:
            raise PrivacyError(
                "The run that made these draws was planned in another process, so what may be kept "
                "of them is not known here. Build the step again, for the same model with the same "
                "settings, and pass it: `release(idata, step=step)`. (`pymc_dp.sample` releases in "
                "the process that samples.)"
            )
        guarantee = step.guarantee
    if guarantee.fingerprint != carried.privacy_plan:
        raise PrivacyError(
            "The step was not built with the model and the settings of the run that made these "
            "draws, so its guarantee is not theirs."
        )
    return guarantee.attrs(__version__)


def _only(group: xr.Dataset, names: Container[str], private_dims: set[str]) -> xr.Dataset:
    """Some variables, with the labels of their own public dimensions only."""
    kept = group[[v for v in group.data_vars if v in names]]
    used = {dim for v in kept.data_vars.values() for dim in v.dims} - private_dims
    kept = kept.drop_vars([name for name in kept.coords if name not in used])
    for variable in kept.variables.values():
        variable.attrs = {}
    kept.attrs = {k: v for k, v in group.attrs.items() if k in _SAFE_ATTRS}
    return kept


def _privacy_group(attrs: Mapping[str, Any]) -> xr.Dataset:
    """The releases as a table, for programs; the attributes again, for people."""
    events = from_json(attrs["privacy_events"])
    multipliers = np.array([getattr(e, "noise_multiplier", np.nan) for e in events], float)
    return xr.Dataset(
        {
            "mechanism": ("release", np.array([type(e).__name__ for e in events], dtype=object)),
            "noise_multiplier": ("release", multipliers),
            "count": ("release", np.array([e.count for e in events], dtype=np.int64)),
        },
        attrs={k: v for k, v in attrs.items() if k.startswith(("privacy_", "pymc_dp_"))},
    )
