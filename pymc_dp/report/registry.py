"""An entry for the public registry of deployments of differential privacy.

Nanayakkara, Ghazi and Vadhan, *Practitioners' perspectives on a differential privacy deployment registry*,
arXiv:2509.13509, in the form of the registry's own files: ``schemas/deployments-schema.yaml`` of
github.com/opendp/deployments-registry-data, at its commit 057e5d8. The files are YAML, of which JSON is a part.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.guarantee import FALSE_ALARMS, at_most, describe
from pymc_dp.privacy.neighbours import neighbours_named
from pymc_dp.report.facts import Facts
from pymc_dp.report.wording import account, in_groups, meaning, recognised, what_left

_SECTIONS: dict[str, tuple[str, ...]] = {
    "basic": (
        "name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region",
        "data_product_sector", "publication_date",
    ),
    "dp_variant": ("variant_name", "data_domain", "unprotected_quantities"),
    "privacy_loss": (
        "privacy_unit", "privacy_unit_details", "number_of_privacy_units", "privacy_parameters",
        "privacy_parameters_details",
    ),
    "deployment_model": (
        "model_name", "model_name_details", "trust_assumptions", "actors", "release_type", "release_type_details",
        "data_source_type", "data_source_type_details", "access_type", "access_type_details",
    ),
    "implementation": (
        "preprocessing_and_hyperparameter_tuning", "mechanisms", "composition", "post_processing", "justification",
        "utility", "additional_information",
    ),
    "administrative": ("evidence_sources", "status", "registry_authors", "tier"),
}  # fmt: skip
"""Names of the registry. No two sections share one, so that a name alone says where it belongs."""

# Left out if nobody fills them: an empty one would be of the wrong type, or says nothing.
_OPTIONAL = {
    "number_of_privacy_units", "model_name_details", "release_type_details", "data_source_type_details",
    "access_type_details", "utility", "evidence_sources",
}  # fmt: skip


def registry_entry(report: Facts, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a run knows of its deployment, under the registry's names, and what the deployer gives.

    Parameters
    ----------
    report : Facts
        Of a result with a guarantee.
    given : mapping
        Values by the registry's names: what only the deployer knows, and what is guessed here.

    Returns
    -------
    dict
        Empty strings stand where the deployer has to fill in.

    Raises
    ------
    PrivacyConfigurationError
        If there is no guarantee, if the registry has no such name, or if it is one that the run answers.
    """
    if not report.valid:
        raise PrivacyConfigurationError(
            "This result carries no guarantee that could be registered."
        )
    known = _known(report)
    names = {"url_slug", *(name for section in _SECTIONS.values() for name in section)}
    if unknown := sorted(set(given) - names):
        raise PrivacyConfigurationError(
            f"The registry has no field {', '.join(unknown)}. Its fields are: {', '.join(sorted(names))}."
        )
    if answered := sorted(set(given) & set(known)):
        raise PrivacyConfigurationError(f"The run itself says the fields {', '.join(answered)}.")
    values = {**_guessed(report), **given, **known}
    slug = re.sub(r"[^a-z0-9]+", "-", str(values.get("name", "")).lower()).strip("-")
    return {
        "url_slug": values.get("url_slug", slug),
        "deployment": {
            section: {
                name: values.get(name, "")
                for name in of
                if values.get(name, "") != "" or name not in _OPTIONAL
            }
            for section, of in _SECTIONS.items()
        },
    }


def _known(report: Facts) -> dict[str, Any]:
    """What follows from the run, and is nobody's to say otherwise."""
    public_size = neighbours_named(report.relation).public_size
    parameters = {"epsilon": report.epsilon, "delta": report.delta}
    if public_size:
        adjacent = f"Two data sets with the same, public number of units, of which one differs: {report.unit}, replaced by any other."
        if in_groups(report):
            adjacent += " Both are of one group: who is in which is public."
    else:
        adjacent = (
            f"Two data sets of which one has a unit more, {report.unit}; how many there are is private. When a unit is "
            f"replaced, ε = {at_most(report.epsilon_substitute_one)} at the same δ."
        )
    power = recognised(report)
    assert power is not None  # noqa: S101  (the report is valid)
    known: dict[str, Any] = {
        "variant_name": "Approximate DP" if report.delta > 0 else "Pure DP",
        "privacy_unit": report.unit,
        "privacy_unit_details": adjacent,
        "privacy_parameters": parameters if report.delta > 0 else {"epsilon": report.epsilon},
        "privacy_parameters_details": (
            "Somebody who knows everything else, and accepts "
            f"{100 * FALSE_ALARMS:g} % false alarms, tells two such data sets apart in at most "
            f"{math.ceil(100 * power - 1e-9)} % of cases."
        ),
        "additional_information": report.statement,
    }
    if report.units is not None:
        known["number_of_privacy_units"] = report.units
    if report.post_processing:  # others have released the statistics, and know how
        return known
    software = ", ".join(f"{name} {version}" for name, version in report.software.items())
    size = "and number of units, " if public_size else ""
    clear = f"The number of units{'' if report.units is None else f', {report.units:,}'}, and how many records each has. "
    known |= {
        "data_domain": f"Data sets of the same columns, {size}with any values in the records.",
        "unprotected_quantities": (clear if public_size else "")
        + "The model, and data that it declares public."
        + (f" Added after the release: {', '.join(report.added)}." if report.added else ""),
        "trust_assumptions": (
            "Whoever holds the records draws the sample, and is trusted with both. Nobody else is: they may know all other "
            "records, the model and the software, and have any computer."
        ),
        "mechanisms": "\n".join(
            [f"- {event.count:,} × {describe(event)}" for event in report.releases]
            + [f"- {what_left(report)}"] * in_groups(report)
            + [
                f"- Noise: {report.noise}. Algorithm: {report.algorithm}. Software: {software}.",
                "- Nothing is done about how long it takes: no guarantee covers that.",
            ]
        ),
        "composition": f"{report.accountant}, of every release of all chains, tuning included.",
    }
    return known


def _guessed(report: Facts) -> dict[str, Any]:
    """What is so for most runs of this package, and for the deployer to correct."""
    variables = ", ".join(report.variables)
    utility = [
        f"{name} = {f'{value:.4g}' if isinstance(value, float) else value}"
        + (f" ({said})" if (said := meaning(name)) else "")
        for name, value in report.diagnostics.items()
        if not name.startswith("spent_on_")
    ]
    return {
        "data_curators": [{"data_curator_name": "", "data_curator_type": ""}],
        # Of the registry's kinds the nearest to draws of a statistical model's parameters.
        "data_product_type": "Machine learning model",
        "model_name": "" if report.post_processing else "Central",
        "release_type": "One release",
        "release_type_details": "" if report.account is None else account(report.account),
        "access_type": "Non-interactive",
        "post_processing": f"Posterior draws of {variables} are computed from what was released and from what is public.",
        "utility": "\n".join([*([report.remark] if report.remark else []), *utility]),
        "status": "Draft",
        "registry_authors": [""],
        "tier": 2,
    }
