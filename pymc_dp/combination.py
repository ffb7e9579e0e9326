"""Results of disjoint people as one: their laws multiplied, the prior counted once, at the cost of the dearest of them."""

import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from scipy.stats import norm

from pymc_dp._version import __version__
from pymc_dp.checks import whole
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.diagnostics import Note
from pymc_dp.exceptions import PrivacyConfigurationError, refuses_from_outside
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.draws import as_variables
from pymc_dp.linalg import Vector
from pymc_dp.privacy.accounting import composed_epsilon, gaussian_mu
from pymc_dp.privacy.events import Event, Gaussian, from_json, to_json
from pymc_dp.privacy.guarantee import SCHEMA_VERSION, accountant_of, at_most, private
from pymc_dp.privacy.neighbours import neighbours_named
from pymc_dp.results import identify, release
from pymc_dp.steps.normal import NormalFamily
from pymc_dp.surrogate.normal.draws import sampler_at_hand
from pymc_dp.surrogate.normal.law import Law
from pymc_dp.surrogate.normal.product import Agreement, agreement, product

_log = logging.getLogger("pymc.dp")

_SIGNIFICANT = 0.01
_TOLD = 6
"""Estimates that a warning names."""


class _Part(NamedTuple):
    """One of the results: its attributes and groups, the runs that it is made of, its law, what that is of and has cost."""

    attrs: dict[str, Any]
    groups: dict[str, xr.Dataset]
    runs: list[str]
    law: Law
    tempering: float
    events: tuple[Event, ...]


@refuses_from_outside
def combine(
    results: Mapping[str, Any],
    model: pm.Model | CompiledModel,
    *,
    disjoint: bool,
    effects: Literal["fixed", "random"] = "fixed",
    draws: int = 1000,
    chains: int = 4,
    nuts_sampler: str = "pymc",
) -> Any:
    r"""Combine results about different people, such as of years or sites, into one posterior, without reading data.

    Each result carries the normal law of the likelihood that its run released. Their product, times the prior of
    `model`, once, is the posterior given all of them; that can be combined with the next. Whether the results say the
    same is tested, and a warning names what does not.

    **Guarantee**: that of the dearest result, (max ε, max δ), if `disjoint`. Nothing is released here and no ledger is
    charged: all that is returned is a function of released results, the prior and settings (post-processing).
    **Neighbouring relation**: that of the results, within groups: one unit *of one group* is replaced by another, who is
    in which group being public, fixed beforehand, and no part of what is protected; under add-or-remove, one unit comes
    or goes, and its group may be a function of its own records. **Theorem**: parallel composition (McSherry, 2009, theorem 4).
    Data sets that differ in one unit of group j differ in what run j reads, and nowhere else. Given what was released
    before, run j is :math:`(\varepsilon_j, \delta_j)`-DP; what comes later is post-processing of that, and of other people's
    records, so later runs may look at earlier results.

    If units may be in several results, the costs add up: all releases are composed, at the largest δ. Budgets must have
    been fixed beforehand then.

    Parameters
    ----------
    results : mapping
        From names to released results of :class:`~pymc_dp.DPSurrogate`'s normal family, or of this function.
    model : Model, CompiledModel or bambi.Model
        The one that was sampled, with the records of any group, or made-up ones: they are not used. Its prior is.
    disjoint : bool
        Whether nobody is in two of the results. It is for you to know: it cannot be seen. If not, no record may be
        in two of them either, and a person's records must be independent given the parameters.
    effects : {"fixed", "random"}
        What the draws are of: parameters that all groups share, or the mean over groups that differ.
    draws, chains : int
        As in ``pymc_dp.sample``. They cost nothing.
    nuts_sampler : str
        As for ``pm.sample``.

    Returns
    -------
    InferenceData or DataTree
        Like ``pymc_dp.sample``'s. The attribute ``privacy_combined`` (JSON) has each group's estimates, fixed and random effects.

    Raises
    ------
    PrivacyError
        If a result has no usable normal law, of these parameters.
    PrivacyConfigurationError
        If the results are not about the same kind of units and neighbours, or a setting is out of range.

    Notes
    -----
    The test is Cochran's Q over all parameters, with covariances that count the noise, and the largest distance of a group
    from all, at a level of .01 each. Spreads between groups are DerSimonian and Laird's, for each parameter; with few groups
    they are uncertain, and intervals of random effects too short.

    References
    ----------
    F. McSherry. *Privacy integrated queries.* SIGMOD 2009.

    R. DerSimonian, N. Laird. *Meta-analysis in clinical trials.* Controlled Clinical Trials 7, 1986.

    Examples
    --------
    >>> both = combine({"2023": a, "2024": b}, model, disjoint=True)   # doctest: +SKIP
    >>> all_three = combine({"until 2024": both, "2025": c}, model, disjoint=True)   # doctest: +SKIP
    """
    draws, chains = whole("draws", draws, 1), whole("chains", chains, 1)
    if not isinstance(disjoint, bool) or effects not in ("fixed", "random"):
        raise PrivacyConfigurationError(
            f'`disjoint` must be True or False, and `effects` "fixed" or "random". Found {disjoint!r} and {effects!r}.'
        )
    if not isinstance(results, Mapping) or hasattr(results, "attrs") or len(results) < 2:
        raise PrivacyConfigurationError(
            "`results` must map names to two results or more, as {'2023': a, '2024': b}."
        )
    compiled = compile_model(model)
    labels = compiled.parameters.labels
    parts = {str(name): _part(name, result, labels) for name, result in results.items()}
    _check_same_kind(parts, disjoint)
    laws = {name: part.law for name, part in parts.items()}
    seen = agreement(list(laws.values()))
    between = np.zeros(len(labels))
    between[seen.read] = seen.between
    law = product(list(laws.values()), between**2 if effects == "random" else None)
    family = NormalFamily(compiled, 1.0, sampler_at_hand(nuts_sampler), units_known=False)
    found = family.of_law(law, draws, chains)
    far, note = _disagreement(laws, labels, between, seen.p_worst, effects)
    said = replace(
        found.diagnostics, consistency=None, queries=None, combined=len(parts), disagreeing=far,
        disagreement=seen.p_worst, notes=(*found.diagnostics.notes, *note),
    )  # fmt: skip
    for each in said.notes:
        _log.warning("%s", each.text)
    first = next(iter(parts.values()))
    settings = {
        "tempering": first.tempering, "disjoint": str(disjoint), "effects": effects, "results": ", ".join(parts),
    }  # fmt: skip
    attrs = _promise(parts, disjoint) | {
        "privacy_usable": int(said.usable),
        "privacy_settings": json.dumps(settings),
        "privacy_diagnostics": json.dumps(said.metadata({})),
        "privacy_combined": json.dumps(_table(seen, list(parts), labels)),
        **({"privacy_law": found.law} if effects == "fixed" else {}),
    }
    groups = {
        "posterior": as_variables(
            compiled, first.groups["posterior"], json.loads(attrs["privacy_variables"])
        )(found.draws),
        "sample_stats": _statistics(attrs, draws, chains),
    }
    return release(from_groups(groups, attrs, like=next(iter(results.values()))))


def _part(name: str, result: Any, labels: list[str]) -> _Part:
    """One of the results, if it can be multiplied."""
    attrs, groups = root_attrs(result), groups_of(result)
    law = Law.of_result(repr(name), attrs, labels)
    runs = json.loads(attrs.get("privacy_runs", "[]"))
    return _Part(
        attrs=attrs,
        groups=groups,
        runs=runs or [f"{identify(groups).privacy_run:016x}"],
        law=law,
        tempering=json.loads(attrs["privacy_settings"])["tempering"],
        events=from_json(attrs["privacy_events"]),
    )


def _check_same_kind(parts: Mapping[str, _Part], disjoint: bool) -> None:
    """Refuse results that no one guarantee or likelihood is of, and runs that would count twice."""

    def kind(part: _Part) -> dict[str, Any]:
        of = part.attrs
        return {
            "unit": of["privacy_unit"],
            "neighbours": of["privacy_relation"],
            "tempering": part.tempering,
        }

    holder: dict[str, str] = {}
    first, one = next(iter(parts.items()))
    for name, part in parts.items():
        if twice := [run for run in part.runs if run in holder]:
            raise PrivacyConfigurationError(
                f"{name!r} and {holder[twice[0]]!r} hold the same run: its people would count twice. Leave one of them out."
            )
        holder |= dict.fromkeys(part.runs, name)
        if len(part.runs) > 1 and not disjoint:
            raise PrivacyConfigurationError(
                f"{name!r} is combined already. Where units may be shared, give its own results in its place, all at once."
            )
        if differs := [f"`{x}`" for x, value in kind(part).items() if value != kind(one)[x]]:
            raise PrivacyConfigurationError(
                f"{first!r} and {name!r} differ in {' and '.join(differs)}, and no one guarantee or likelihood is of both. "
                "Combine results that were sampled with the same."
            )


def _promise(parts: Mapping[str, _Part], disjoint: bool) -> dict[str, Any]:
    """The guarantee of all together, as attributes."""
    attrs = [part.attrs for part in parts.values()]
    name, shown = max(parts.items(), key=lambda item: _power(item[1]))
    unit, relation = attrs[0]["privacy_unit"], neighbours_named(attrs[0]["privacy_relation"])
    void = [a["privacy_statement"] for a in attrs if not a["privacy_valid"]]
    epsilon, replaced, delta = (
        max(float(a[f"privacy_{x}"]) for a in attrs)
        for x in ("epsilon", "epsilon_substitute_one", "delta")
    )
    events, how = shown.events, f"parallel composition of disjoint groups (releases of {name!r})"
    if not disjoint:
        events = tuple(e for part in parts.values() for e in part.events)
        how = accountant_of(events, delta)
        if not void:
            epsilon = composed_epsilon(events, delta)
            replaced = composed_epsilon(relation.under_substitution(events), delta)
    where = "within its group" if disjoint else "wherever it is"
    changed = f"replacing {unit} {where}"
    if not relation.public_size:
        changed = f"adding or removing {unit}, and {private(at_most(replaced), delta)} with respect to {changed}"
    runs = [run for part in parts.values() for run in part.runs]
    why = (
        "disjoint groups, so that nobody bears the cost of more than one of them"
        if disjoint
        else "groups that may share units, so that costs add up"
    )
    # Who is in two groups would be counted twice.
    sized = disjoint and all("privacy_units" in a for a in attrs)
    units = {"privacy_units": sum(int(a["privacy_units"]) for a in attrs)} if sized else {}
    return {
        "privacy_epsilon": epsilon,
        "privacy_epsilon_substitute_one": replaced,
        "privacy_delta": delta,
        "privacy_relation": relation.name,
        "privacy_unit": unit,
        **units,
        "privacy_accountant": how,
        "privacy_noise": ", ".join(sorted({a["privacy_noise"] for a in attrs})),
        "privacy_valid": int(not void),
        "privacy_events": to_json(events),
        "privacy_step": f"combine, of {len(runs)} results",
        "privacy_statement": void[0] if void else (
            f"These draws are {private(at_most(epsilon), delta)} with respect to {changed}: they combine {len(runs)} results of {why}."
        ),
        "privacy_variables": attrs[0]["privacy_variables"],
        "privacy_statistics": "[]",
        "privacy_record_dims": json.dumps(sorted({x for a in attrs for x in json.loads(a["privacy_record_dims"])})),
        "privacy_runs": json.dumps(runs),
        "privacy_schema_version": SCHEMA_VERSION,
        "pymc_dp_version": __version__,
    }  # fmt: skip


def _power(part: _Part) -> tuple[bool, float]:
    """Orders groups so that what :func:`~pymc_dp.privacy.guarantee.told_apart` says of the last one holds for all.

    Gaussian releases are ordered by μ, at every δ; beside others no more than (ε, δ) is said, and that is of all.
    """
    gaussians = [e for e in part.events if isinstance(e, Gaussian)]
    if len(gaussians) == len(part.events):
        return False, gaussian_mu(gaussians)
    return True, float(part.attrs["privacy_epsilon"])


def _disagreement(
    laws: Mapping[str, Law], labels: list[str], between: Vector, p: float, effects: str
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """What stands out, and a remark on it if that is more than chance: the group farthest off, and so on with the rest."""
    told, spreads, left = [], {}, dict(laws)
    while len(left) > 1 and (seen := agreement(list(left.values()))).p_worst < _SIGNIFICANT:
        far, names = np.abs(seen.z), list(left)
        bound = min(norm.isf(_SIGNIFICANT / 2 / far.size), far.max())
        # Of two nobody knows which one is off.
        for g in [int(far.max(axis=1).argmax())] if len(left) > 2 else [0, 1]:
            del left[names[g]]
            for i in np.flatnonzero(far[g] >= bound):
                k = seen.read[i]
                spreads[labels[k]] = f"{between[k]:.2g}"
                told.append(f"{labels[k]} of {names[g]!r} by {seen.z[g, i]:+.1f} sds")
    if not told:
        return (), ()
    more = f" and {len(told) - _TOLD} others" if len(told) > _TOLD else ""
    apart = f"sds between groups are {', '.join(map(' '.join, spreads.items()))}."
    todo = {
        "fixed": "These draws take the groups for one and are too sure. Look at them one by one; leave out what is of another "
        f'population; or give `effects="random"`, draws of the mean over groups, of which the {apart}',
        "random": f"These draws are of the mean over groups, of which the {apart}",
    }
    text = (
        f"The results disagree more than sampling and noise explain (p = {p:.1g}): "
        f"{', '.join(told[:_TOLD])}{more}. {todo[effects]}"
    )
    return tuple(told), (Note("disagreement", text, tuple(spreads)),)


def _table(seen: Agreement, names: list[str], labels: list[str]) -> dict[str, Any]:
    """Every parameter's estimates, on PyMC's unconstrained scale and without the prior: [mean, sd]."""
    parameters = {
        labels[k]: {
            "fixed": [seen.fixed[0][i], seen.fixed[1][i]],
            "random": [seen.random[0][i], seen.random[1][i]],
            "between_sd": seen.between[i],
            "groups": {
                name: [seen.estimates[g, i], seen.sds[g, i], seen.z[g, i]]
                for g, name in enumerate(names)
            },
        }
        for i, k in enumerate(seen.read)
    }
    return {"p": seen.p, "p_largest": seen.p_largest, "parameters": parameters}


def _statistics(attrs: Mapping[str, Any], draws: int, chains: int) -> xr.Dataset:
    """What a run's own statistics would be: nothing was rejected, and all is paid for."""
    runs, of_all = attrs["privacy_runs"], attrs["privacy_epsilon"]
    values = {
        "accepted": True, "accept_rate": 1.0, "epsilon": of_all, "delta": attrs["privacy_delta"], "epsilon_spent": of_all,
        "scale": np.nan, "privacy_run": zlib.crc32(runs.encode()), "privacy_plan": 0,
    }  # fmt: skip
    full = {name: (("chain", "draw"), np.full((chains, draws), x)) for name, x in values.items()}
    return xr.Dataset(full, {"chain": np.arange(chains), "draw": np.arange(draws)})
