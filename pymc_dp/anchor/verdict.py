"""Whether a released anchor is of use, and what a run that has one should be told."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import Vector

NOT_ARRIVED = "The private search for the posterior's mode did not arrive"


class Verdict(NamedTuple):
    """What to make of an anchor.

    Parameters
    ----------
    refusal : str
        Why it is of no use; empty if it is.
    warnings : list of str
        Why it may be of little.
    """

    refusal: str
    warnings: list[str]


def judge(anchor: Anchor, n_units: int, largest: Callable[[Vector], str]) -> Verdict:
    """Judge an anchor by what it has released of itself.

    Parameters
    ----------
    anchor : Anchor
    n_units : int
    largest : callable
        Names the parameters with the largest of d numbers, for people.
    """
    s = SETTINGS
    off, root_d = float(np.linalg.norm(anchor.mean)), math.sqrt(len(anchor.mean))
    by_noise = 4 * anchor.tilt * root_d
    clipped = anchor.clipped_share - 2 * anchor.clipped_share_sd
    # Without other causes the surprise is about 1 ± 1/√(2d), the spread of a χ distribution.
    surprise = (anchor.surprise - 1) * math.sqrt(2) * root_d
    further = largest(np.abs(anchor.in_sds(anchor.still_to_go)))
    if not off <= s.quadratic * math.sqrt(n_units) + by_noise:
        return Verdict(
            f"{NOT_ARRIVED}: by its own measurement it is {off:.0f} posterior sds away", []
        )
    if clipped > s.clipped_refusal:
        return Verdict(
            f"At least {clipped:.0%} of the records would be clipped, and the draws come from "
            "something other than the posterior (limit covariates to a public range, or "
            "transform them, so that no group of records stands far out)",
            [],
        )
    if surprise > s.surprise_refusal:
        return Verdict(
            f"The anchor contradicts itself: at its own mode the gradient is {anchor.surprise:.1f} "
            f"times as long as noise explains, and would move, in posterior sds, {further}. A small "
            "group of records that alone determines a parameter (a rare category) can cause this, or a "
            "strongly curved posterior",
            [],
        )
    warnings = []
    if surprise > s.surprise_warning:
        warnings.append(
            f"At the anchor's own mode the gradient is {anchor.surprise:.1f} times as long as noise "
            f"explains, and would move, in posterior standard deviations, {further}: these may be further "
            "off than their intervals say. A larger `epsilon`, or fewer parameters that few records "
            "determine, would help."
        )
    if clipped > s.clipped_warning:
        warnings.append(
            f"At least {100 * clipped:.1f} % of the records are clipped in a typical move: the draws may be "
            "off by more than the tilt says. Covariates in a public range, or a larger `epsilon`, would help."
        )
    if off > 4 * root_d + by_noise:
        warnings.append(
            f"The anchor is {off:.1f} posterior standard deviations from the mode "
            f"({largest(np.abs(anchor.in_sds(anchor.W @ anchor.mean)))}): draws may mix badly. "
            "A larger `epsilon`, or DPHMC, would help."
        )
    if anchor.tilt_in_sds > 1:
        warnings.append(
            f"The anchor's noise moves the draws by {anchor.tilt_in_sds:.1f} posterior standard deviations "
            f"({largest(anchor.tilts)}): these intervals are mostly privacy noise. A larger `epsilon`, or "
            "more records, would help."
        )
    if anchor.sigma > 4:
        warnings.append(
            "What the anchor does not explain needs noise of standard deviation "
            f"{anchor.sigma:.1f} in each log acceptance ratio: few moves will be accepted. A larger "
            "`epsilon`, fewer draws, or DPHMC, would help."
        )
    return Verdict("", warnings)


def report(anchor: Anchor) -> dict[str, float | str]:
    """What a result's metadata say of its anchor."""
    return {
        "tilt": anchor.tilt_in_sds,
        "order": anchor.order,
        "rounds": anchor.rounds,
        "distance_to_mode": float(np.linalg.norm(anchor.mean)),
        "surprise": anchor.surprise,
        "typical_noise_sd": anchor.sigma,
        "expected_acceptance": 2 * float(ndtr(-anchor.sigma / 2)),
        "clipped_share": anchor.clipped_share,
        "clipped_share_sd": anchor.clipped_share_sd,
    }
