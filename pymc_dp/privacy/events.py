"""Frozen descriptions of releases.

An event holds what accounting needs and nothing else. Its noise multiplier already contains the
neighbouring relation: it is the noise divided by the sensitivity *under the relation promised*
(substitute-one), so that no accountant has to be told the relation. Its meaning never changes.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pymc_dp.exceptions import LedgerError, PrivacyConfigurationError


@dataclass(frozen=True)
class _Release:
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        z = self.noise_multiplier
        if isinstance(z, bool) or not isinstance(z, int | float) or not math.isfinite(z) or z < 0:
            raise PrivacyConfigurationError(
                f"`noise_multiplier` must be a finite number, zero or more. Found {z!r}."
            )
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise PrivacyConfigurationError(
                f"`count` must be a whole number, one or more. Found {self.count!r}."
            )


@dataclass(frozen=True)
class Gaussian(_Release):
    """`count` releases by the Gaussian mechanism (continuous or discrete).

    Parameters
    ----------
    noise_multiplier : float
        z = standard deviation of the noise / L2 sensitivity. 0 is no noise: an infinite ε.
    count : int
        How many such releases, each possibly chosen after seeing the earlier ones.
    """


@dataclass(frozen=True)
class Laplace(_Release):
    """`count` releases by the Laplace mechanism.

    Parameters
    ----------
    noise_multiplier : float
        Laplace scale / L1 sensitivity, that is 1/ε of one release. 0 is no noise.
    count : int
        How many such releases.
    """


Event = Gaussian | Laplace

# A closed list: a ledger file can never make the reader import or run anything.
_KINDS: dict[str, type[Gaussian] | type[Laplace]] = {"gaussian": Gaussian, "laplace": Laplace}


def times(events: Iterable[Event], repeats: int) -> tuple[Event, ...]:
    """`events`, composed `repeats` times over."""
    return tuple(type(e)(e.noise_multiplier, e.count * repeats) for e in events)


def to_json(events: Iterable[Event]) -> str:
    """Events as JSON text; :func:`from_json` is its inverse."""
    kind_of = {cls: kind for kind, cls in _KINDS.items()}
    return json.dumps([{"kind": kind_of[type(e)], **asdict(e)} for e in events])


def from_json(text: str) -> tuple[Event, ...]:
    """Events from JSON text.

    Raises
    ------
    LedgerError
        If the text is not a list of known events.
    """
    try:
        return tuple(
            _KINDS[item["kind"]](item["noise_multiplier"], item["count"])
            for item in json.loads(text)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"The ledger holds an event this version cannot read: {text!r}."
        ) from error
