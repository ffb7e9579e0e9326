"""What a run that has released its looks should be told of them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import Vector

NOT_ARRIVED = "The private search for the posterior's mode did not arrive"
_MORE = "It takes more records, a larger `epsilon`, fewer parameters, or priors that say more."


class Verdict(NamedTuple):
    """What to make of an anchor.

    Parameters
    ----------
    usable : bool
        Whether the draws say anything that the prior does not.
    warnings : list of str
    """

    usable: bool
    warnings: list[str]


def judge(
    anchor: Anchor,
    labels: list[str],
    largest: Callable[[Vector], str],
    unspent: str = "is not charged",
) -> Verdict:
    """Judge an anchor by what it has released of itself.

    Parameters
    ----------
    anchor : Anchor
    labels : list of str
        The parameters' names.
    largest : callable
        Names the parameters with the largest of d numbers, for people.
    unspent : str
        What becomes of the budget that a lost search has not spent.
    """
    s, tilts = SETTINGS, anchor.posterior.tilts
    if not anchor.arrived:
        return Verdict(
            False,
            [
                f"{NOT_ARRIVED}: it diverged. The draws are the prior's, and what was not spent {unspent}. "
                f"{_MORE} Covariates scaled by public constants to about 1 help too."
            ],
        )
    warnings = []
    # Without other causes the surprise is about 1 ± 1/√(2d), the spread of a χ distribution.
    surprise = (anchor.surprise - 1) * math.sqrt(2 * len(tilts))
    usable = surprise <= s.surprise_unusable
    if surprise > s.surprise_warning:
        warnings.append(
            f"The last look contradicts the ones before: its gradient is {anchor.surprise:.1f} times as far "
            "from what they predict as noise explains, and would move, in posterior standard deviations, "
            f"{largest(np.abs(anchor.off))}: these may be further off than their intervals say. A group of "
            "records that stands far out, or a strongly curved posterior, can cause this; a larger `epsilon` "
            "would help."
        )
    pulled = (anchor.posterior.pulls > s.pulled) & (anchor.unlearnt > s.little_learnt)
    if pulled.any():
        usable = False
        named = _listed([labels[k] for k in np.flatnonzero(pulled)])
        warnings.append(
            f"The releases contradict each other about {named}: it is much further from its prior than the "
            "information that was seen could move it. A few records that alone tell of it, and that were clipped, "
            f"cause this; so does a prior that is far off. Do not use its draws. {_MORE}"
        )
    improbable = anchor.improbable > s.improbable
    if improbable.any():
        usable = False
        named = _listed([labels[k] for k in np.flatnonzero(improbable)])
        warnings.append(
            f"The prior of {named} puts next to nothing where the search ended: it was led astray by noise, or the prior "
            f"is wrong. Do not use the draws. {_MORE}"
        )
    of_prior = of_the_prior(anchor, labels)
    if len(of_prior) == len(labels) or float(tilts.min()) > s.tilt_unusable:
        usable = False
        warnings.append(
            f"Nothing was learnt that stands out of the noise: the draws are about the prior's. {_MORE}"
        )
    elif of_prior:
        warnings.append(
            f"The draws of {_listed(of_prior)} are the prior's: what the data say of "
            f"{'them' if len(of_prior) > 1 else 'it'} is drowned in noise, as of a category with few records. "
            f"The others are not worse for it. {_MORE}"
        )
    elif anchor.tilt > s.tilt_warning:
        warnings.append(
            f"Noise moves the draws by {anchor.tilt:.1f} posterior standard deviations "
            f"({largest(tilts)}): these intervals are mostly privacy noise, and say so. A larger `epsilon`, or "
            "more records, would help."
        )
    return Verdict(usable, warnings)


def of_the_prior(anchor: Anchor, labels: list[str]) -> list[str]:
    """Names of the parameters of which next to nothing was learnt."""
    if not anchor.arrived:
        return labels
    return [labels[k] for k in np.flatnonzero(anchor.unlearnt > SETTINGS.prior_warning)]


def _listed(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (
        f" and {len(names) - most} others" if len(names) > most else ""
    )


def report(anchor: Anchor, labels: list[str], usable: bool) -> dict[str, float | str]:
    """What a result's metadata say of its anchor."""
    return {
        "usable": float(usable),
        "tilt": anchor.tilt,
        "surprise": anchor.surprise,
        "rounds": anchor.rounds,
        "of_the_prior": ", ".join(of_the_prior(anchor, labels)) if anchor.arrived else "all",
    }
