"""What a result computed from released statistics says of its privacy."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._version import __version__
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.privacy.guarantee import SCHEMA_VERSION
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE

_STATS = ("release_epsilon", "release_delta")


def is_post_processing(groups: Mapping[str, xr.Dataset]) -> bool:
    """Whether these draws were made from released statistics by ``PrivacyAwareGibbs``."""
    stats = groups.get("sample_stats")
    # A private step's draws are never taken for post-processing, whatever else ran beside it.
    return (
        stats is not None
        and set(_STATS) <= set(stats.data_vars)
        and "privacy_run" not in stats.data_vars
    )


def stamp(idata: Any) -> Any:
    """Write on a result the guarantee of the released statistics it was computed from.

    Nothing is dropped: draws, latent records and released values are all functions of what has
    been published.

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pm.sample`` with a ``PrivacyAwareGibbs`` step.

    Returns
    -------
    InferenceData or DataTree
        A new object with the root attributes ``privacy_*``.
    """
    groups = groups_of(idata)
    stats = groups["sample_stats"]
    epsilon, delta = (float(np.max(stats[name].values)) for name in _STATS)
    known = math.isfinite(epsilon) and math.isfinite(delta)
    if known:
        of_release = f"({epsilon:g}, {delta:.3g})-differentially private"
        statement = (
            f"These draws are post-processing of statistics whose release was {of_release} with "
            "respect to replacing one record. They have no further privacy cost."
        )
    else:
        statement = (
            "These draws are post-processing of released statistics and have no further privacy cost. "
            "The guarantee of the release was not declared in the model."
        )
    attrs = {
        "privacy_epsilon": epsilon,
        "privacy_delta": delta,
        "privacy_relation": SUBSTITUTE_ONE.name,
        "privacy_unit": "one record",
        "privacy_accountant": "basic composition of the declared releases",
        "privacy_noise": "that of the release",
        "privacy_valid": int(known),
        "privacy_events": json.dumps([]),
        "privacy_step": "PrivacyAwareGibbs",
        "privacy_statement": statement,
        "privacy_schema_version": SCHEMA_VERSION,
        "pymc_dp_version": __version__,
    }
    return from_groups(groups, {**root_attrs(idata), **attrs}, like=idata)
