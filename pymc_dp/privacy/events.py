"""Frozen descriptions of releases.

An event holds what accounting needs and nothing else. Its noise multiplier already contains the
neighbouring relation: it is the noise divided by the sensitivity *under the relation promised*, so that no
accountant has to be told the relation. Events of one relation only may be added up: an account is of one.
The meaning of an event never changes.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pymc_dp.checks import fraction, positive, whole
from pymc_dp.exceptions import LedgerError, PrivacyConfigurationError


def _keep(event: Any, name: str, check: Callable[..., float], **limits: Any) -> None:
    """Check a field, and hold it as a plain number: JSON and reports know no other."""
    object.__setattr__(event, name, check(name, getattr(event, name), **limits))


@dataclass(frozen=True)
class _Release:
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", positive, zero_allowed=True)
        _keep(self, "count", whole, minimum=1)


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


@dataclass(frozen=True)
class Pure:
    """`count` releases, each ε-differentially private, whatever the mechanism.

    Parameters
    ----------
    epsilon : float
        ε of one release.
    count : int
        How many such releases.
    """

    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        _keep(self, "epsilon", positive)
        _keep(self, "count", whole, minimum=1)


@dataclass(frozen=True)
class PoissonGaussian:
    """`count` Gaussian releases of a sum over a secret Poisson sample of the units.

    Each unit enters independently with probability `sampling_rate`. What is released is the sum of
    the sampled units' vectors, clipped to L2 norm B, plus Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        z = standard deviation of the noise / 2B, as for :class:`Gaussian`: 2B is how far a
        substitution moves the sum if the unit is sampled.
    sampling_rate : float
        q in (0, 1]; 1 is :class:`Gaussian`.
    count : int
        How many such releases, each with a fresh sample.
    """

    noise_multiplier: float
    sampling_rate: float
    count: int = 1

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", positive, zero_allowed=True)
        _keep(self, "sampling_rate", fraction, one_allowed=True)
        _keep(self, "count", whole, minimum=1)


@dataclass(frozen=True)
class BarkerBatch:
    r"""`count` private Barker tests, each on a secret batch drawn without replacement.

    A test adds :math:`N(0, C - s^2)` to the mean of the batch's terms, where :math:`s^2 \in [0, 1]`
    is the batch's own variance: how much noise there is depends on the data, so there is no noise
    multiplier.

    Parameters
    ----------
    variance : float
        C in (1, π²/3): the variance of noise and batch together.
    batch_size, units : int
        b of n units are drawn, 2 ≤ b ≤ n.
    count : int
        How many tests, each with a fresh batch.
    """

    variance: float
    batch_size: int
    units: int
    count: int = 1

    def __post_init__(self) -> None:
        _keep(self, "variance", positive)
        if not 1 < self.variance < math.pi**2 / 3:
            raise PrivacyConfigurationError(
                f"`variance` must lie between 1 and π²/3. Found {self.variance!r}."
            )
        _keep(self, "batch_size", whole, minimum=2)
        _keep(self, "units", whole, minimum=self.batch_size)
        _keep(self, "count", whole, minimum=1)


MAX_L2_DIMENSION = 32
"""Of the ℓ2 mechanism: so far its cost is computed to ten digits, and its noise is some 9 % smaller than Gaussian."""


def _keep_dimension(event: Any) -> None:
    _keep(event, "dimension", whole, minimum=1)
    if event.dimension > MAX_L2_DIMENSION:
        raise PrivacyConfigurationError(
            f"The ℓ2 mechanism is for at most {MAX_L2_DIMENSION} dimensions. Found {event.dimension!r}."
        )


@dataclass(frozen=True)
class L2Mechanism:
    r"""`count` releases of a vector by the ℓ2 mechanism: noise of density :math:`\propto e^{-\lVert x \rVert_2 / s}`.

    One release is 1/z-differentially private, and better than that says at any δ > 0:
    :func:`~pymc_dp.privacy.l2_mechanism.l2_delta`.

    Parameters
    ----------
    noise_multiplier : float
        z = s / L2 sensitivity; the standard deviation of an entry is s√(d + 1). 0 is no noise.
    dimension : int
        d, the length of the vector.
    count : int
        How many such releases.
    """

    noise_multiplier: float
    dimension: int
    count: int = 1

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", positive, zero_allowed=True)
        _keep_dimension(self)
        _keep(self, "count", whole, minimum=1)


@dataclass(frozen=True)
class GaussianOrL2:
    """Gaussian releases that amount to one, or one release by the ℓ2 mechanism: which, earlier releases decide.

    It costs at every ε what the dearer of the two does there.

    Parameters
    ----------
    gaussian_multiplier : float
        z of the :class:`Gaussian` release that the Gaussian ones amount to at most.
    l2_multiplier : float
        z of the :class:`L2Mechanism`.
    dimension : int
        Its d.
    count : int
        How many such choices.
    """

    gaussian_multiplier: float
    l2_multiplier: float
    dimension: int
    count: int = 1

    def __post_init__(self) -> None:
        _keep(self, "gaussian_multiplier", positive, zero_allowed=True)
        _keep(self, "l2_multiplier", positive, zero_allowed=True)
        _keep_dimension(self)
        _keep(self, "count", whole, minimum=1)


@dataclass(frozen=True)
class L2Option:
    """The right to one release by the ℓ2 mechanism in place of what is left of a Gaussian one, while most of it is.

    Parameters
    ----------
    noise_multiplier : float
        z of the ℓ2 mechanism.
    dimension : int
        Its d.
    share : float
        How much of the Gaussian release, in shares of its 1/z², may be gone before; below 1.
    """

    noise_multiplier: float
    dimension: int
    share: float

    def __post_init__(self) -> None:
        _keep(self, "share", fraction, zero_allowed=True)
        L2Mechanism(self.noise_multiplier, self.dimension)

    @property
    def release(self) -> L2Mechanism:
        """The release that it is the right to."""
        return L2Mechanism(self.noise_multiplier, self.dimension)

    def events(self, gaussian_multiplier: float) -> "tuple[Event, ...]":
        """What a Gaussian release with this option costs: its first part, and the choice after it."""
        z = gaussian_multiplier
        choice = GaussianOrL2(z / math.sqrt(1 - self.share), self.noise_multiplier, self.dimension)
        return (Gaussian(z / math.sqrt(self.share)), choice) if self.share else (choice,)


Event = Gaussian | Laplace | Pure | PoissonGaussian | BarkerBatch | L2Mechanism | GaussianOrL2

# A closed list: a ledger file can never make the reader import or run anything.
_KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "pure": Pure,
    "poisson_gaussian": PoissonGaussian,
    "barker_batch": BarkerBatch,
    "l2_mechanism": L2Mechanism,
    "gaussian_or_l2": GaussianOrL2,
}


def times(events: Iterable[Event], repeats: int) -> tuple[Event, ...]:
    """`events`, composed `repeats` times over."""
    return tuple(replace(e, count=e.count * repeats) for e in events)


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
        return tuple(_read(**item) for item in json.loads(text))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(
            f"The ledger holds an event this version cannot read: {text!r}."
        ) from error


def _read(*, kind: str, **values: Any) -> Event:
    cls = _KINDS[kind]
    # A field left out must not fall back to its default: that would be a release less.
    return cls(**{field.name: values.pop(field.name) for field in fields(cls)}, **values)
