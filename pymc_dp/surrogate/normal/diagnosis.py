"""What the releases of a normal surrogate say of themselves."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pymc_dp.diagnostics import Diagnostics, Note
from pymc_dp.linalg import Vector
from pymc_dp.surrogate.normal.model import NormalSurrogate

_SURPRISE_TOLD, _SURPRISE_UNUSABLE = 3.0, 5.0
"""By how many standard deviations queries may contradict each other without a warning, and from how many on draws are of
no use."""
_LITTLE_LEARNT = 0.02
"""Of the prior's variance: a parameter that has kept more should not be far from its prior."""
_PULLED = 5.0
"""By how many sds it may be, or else its information was lost and not its gradient."""
_IMPROBABLE = 40.0
"""Nats that a parameter costs the prior: nine of its standard deviations. A search that noise had led there was
sure of it."""
_THE_PRIORS = 0.8
"""Of the prior's variance: a parameter that has kept more is said to be the prior's."""
_SHIFT_TOLD, _SHIFT_UNUSABLE = 1.0, 10.0
"""Above the first, intervals are mostly privacy noise, and that is said; if all parameters' privacy shifts are above the
second, nothing was learnt."""

NOT_ARRIVED = "The private search for the posterior's mode did not arrive"
_MORE = "It takes more records, a larger `epsilon`, fewer parameters, or priors that say more."


def diagnose(
    surrogate: NormalSurrogate,
    labels: list[str],
    largest: Callable[[Vector], str],
) -> Diagnostics:
    """Judge a normal surrogate by what it has released of itself.

    Parameters
    ----------
    surrogate : NormalSurrogate
    labels : list of str
        The parameters' names.
    largest : callable
        Names the parameters with the largest of d numbers, for people.
    """
    shifts = surrogate.posterior.privacy_shifts
    if not surrogate.arrived:
        off = np.abs(surrogate.off)
        where = f" (in posterior standard deviations, {largest(off)})" if off.any() else ""
        lost = Note(
            "lost",
            f"{NOT_ARRIVED}: its last query found something else than the ones before had predicted{where}, or is still on "
            f"the way. Do not use the draws. {_MORE} Covariates scaled by public constants to about 1 help too.",
        )
        return Diagnostics(consistency=surrogate.surprise, queries=surrogate.rounds, notes=(lost,))
    notes = []
    # Without other causes it is about 1 ± 1/√(2d), the spread of a χ distribution.
    excess = (surrogate.surprise - 1) * math.sqrt(2 * len(shifts))
    usable = excess <= _SURPRISE_UNUSABLE
    if excess > _SURPRISE_TOLD:
        notes.append(
            Note(
                "consistency",
                f"The last query contradicts the ones before: it is {surrogate.surprise:.1f} times as far "
                "from what they predict as noise explains, and would move, in posterior standard deviations, "
                f"{largest(np.abs(surrogate.off))}: these may be further off than their intervals say. A group of "
                "records that stands far out, or a strongly curved posterior, can cause this; a larger `epsilon` "
                "would help.",
            )
        )
    pulled = (surrogate.posterior.pulls > _PULLED) & (surrogate.unlearnt > _LITTLE_LEARNT)
    if pulled.any():
        usable, named = False, _named(labels, pulled)
        notes.append(
            Note(
                "prior_conflict",
                f"The releases contradict each other about {_listed(named)}: it is much further from its prior than the "
                "information that was seen could move it. A few records that alone tell of it, and that were clipped, "
                f"cause this; so does a prior that is far off. Do not use its draws. {_MORE}",
                named,
            )
        )
    improbable = surrogate.improbable > _IMPROBABLE
    if improbable.any():
        usable, named = False, _named(labels, improbable)
        notes.append(
            Note(
                "prior_conflict",
                f"The prior of {_listed(named)} puts next to nothing where the search ended: it was led astray by noise, or "
                f"the prior is wrong. Do not use the draws. {_MORE}",
                named,
            )
        )
    dominated = _named(labels, surrogate.unlearnt > _THE_PRIORS)
    if len(dominated) == len(labels) or float(shifts.min()) > _SHIFT_UNUSABLE:
        usable = False
        notes.append(
            Note(
                "prior_dominated",
                f"Nothing was learnt that stands out of the noise: the draws are about the prior's. {_MORE}",
            )
        )
    elif dominated:
        notes.append(
            Note(
                "prior_dominated",
                f"The draws of {_listed(dominated)} are the prior's: what the data say of "
                f"{'them' if len(dominated) > 1 else 'it'} is drowned in noise, as of a category with few records. "
                f"The others are not worse for it. {_MORE}",
                dominated,
            )
        )
    elif surrogate.privacy_shift > _SHIFT_TOLD:
        notes.append(
            Note(
                "privacy_shift",
                f"Noise moves the draws by {surrogate.privacy_shift:.1f} posterior standard deviations "
                f"({largest(shifts)}): these intervals are mostly privacy noise, and say so. A larger `epsilon`, or "
                "more records, would help.",
            )
        )
    return Diagnostics(
        usable=usable,
        privacy_shift=surrogate.privacy_shift,
        consistency=surrogate.surprise,
        prior_dominated=dominated,
        queries=surrogate.rounds,
        notes=tuple(notes),
    )


def _named(labels: list[str], which: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(labels[k] for k in np.flatnonzero(which))


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (
        f" and {len(names) - most} others" if len(names) > most else ""
    )
