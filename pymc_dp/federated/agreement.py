"""What an owner will answer, how often, and with how much noise: fixed by the owner, known to all."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyError
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.privacy.events import Event, Gaussian

Vector = NDArray[np.float64]
Answer = Mapping[str, Vector]
Ask = Callable[[str, Mapping[str, Vector]], list[Answer]]
"""Sends one request to all owners and collects their answers, in the same order every time."""

# In the search groups of records have to be seen through more noise; in the last look bounds are wanted exactly.
BINS_PER_OCTAVE = {"search_sizes": 1, "anchor_sizes": 2}

# Shares of what the surrogate costs, of μ²: sizes and terms in the search, sizes and a count of what is
# clipped in the last look, whose terms get the rest. The bounds of the last look decide how much noise is in
# the result, and whose records count in it.
_SEARCH_SIZES, _SEARCH, _ANCHOR_SIZES, _CLIPPED = 0.12, 0.2, 0.06, 0.01
# Within a look, gradient and Hessian.
_SEARCH_GRADIENT, _ANCHOR_GRADIENT = 0.6, 0.75
# Shares are added up in floating point; together they must not exceed the whole.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Releases:
    """How often a kind of request is answered, and the noise of each part of an answer.

    Parameters
    ----------
    count : int
        Number of answers.
    multipliers : tuple of float
        z of each release that an answer is made of.
    """

    count: int
    multipliers: tuple[float, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The releases of one answer."""
        return tuple(Gaussian(z) for z in self.multipliers)


def divide(z: float, rounds: int, ratios: int, ratio_share: float) -> dict[str, Releases]:
    r"""Divide one Gaussian release of multiplier z among all that an owner will answer.

    m releases that get the share f of :math:`\mu^2 = 1/z^2` have the multiplier :math:`z\sqrt{m/f}` each.

    Parameters
    ----------
    z : float
        Multiplier of a single release that would cost the whole budget.
    rounds : int
        Rounds of the search for a surrogate; 0 for none.
    ratios : int
        Iterations of a chain; 0 for none.
    ratio_share : float
        The chain's share, if there are both.

    Returns
    -------
    dict of str to Releases
        By kind of request.
    """
    for_ratios = 0.0 if not ratios else ratio_share if rounds else 1.0
    kinds = {}

    def add(kind: str, count: int, *shares: float) -> None:
        kinds[kind] = Releases(
            count, tuple(z * _ROUNDING * math.sqrt(count / share) for share in shares)
        )

    if rounds:
        whole = 1 - for_ratios
        anchor = whole * (1 - _SEARCH_SIZES - _SEARCH - _ANCHOR_SIZES - _CLIPPED)
        add("search_sizes", rounds, *_parts(whole * _SEARCH_SIZES, 0.5))
        add("search", rounds, *_parts(whole * _SEARCH, _SEARCH_GRADIENT))
        add("anchor_sizes", 1, *_parts(whole * _ANCHOR_SIZES, 0.5))
        add("anchor", 1, *_parts(anchor, _ANCHOR_GRADIENT), whole * _CLIPPED)
    if ratios:
        add("ratio", ratios, for_ratios)
    return kinds


def _parts(share: float, first: float) -> tuple[float, float]:
    return share * first, share * (1 - first)


def parameters_digest(parameters: ParameterSpace) -> int:
    """A number that tells models with other parameters, or in another order, apart. Public."""
    names = [[name, list(shape)] for name, shape in parameters.shapes.items()]
    digest = hashlib.sha256(json.dumps(names).encode()).digest()
    return int.from_bytes(digest[:6], "big")  # exact as a float


class Offers:
    """What all owners offer: sizes, and multipliers by kind of request.

    Parameters
    ----------
    ask : callable
        See :data:`Ask`.
    parameters : ParameterSpace
        Of the coordinator's model.

    Raises
    ------
    PrivacyError
        If there is no owner, or one whose model has other parameters.
    """

    def __init__(self, ask: Ask, parameters: ParameterSpace):
        self._offers = ask("offer", {})
        if not self._offers:
            raise PrivacyError("No owner has answered.")
        ours = parameters_digest(parameters)
        for k, offer in enumerate(self._offers):
            if int(offer["parameters"]) != ours:
                raise PrivacyError(
                    f"The model of owner {k + 1} of {len(self._offers)} does not have the parameters "
                    "of the coordinator's: names, shapes and order must agree."
                )

    @property
    def n_units(self) -> int:
        """Units of all owners."""
        return sum(int(offer["units"]) for offer in self._offers)

    def count(self, kind: str) -> int:
        """How many such requests every owner will still answer."""
        return min(int(offer.get(kind, np.zeros(1))[0]) for offer in self._offers)

    def multiplier(self, kind: str, part: int = 0) -> float:
        r""":math:`\sqrt{\sum_j z_j^2}` over owners: the noise of the sum, which has all of theirs."""
        return math.sqrt(sum(float(offer[kind][1 + part]) ** 2 for offer in self._offers))

    def require(self, kind: str) -> None:
        """Refuse to begin what an owner will not take part in."""
        if not self.count(kind):
            raise PrivacyError(
                f"Some owner answers no {kind!r} requests, or no more: all owners have to be built with the "
                "same `rounds` and `ratios`."
            )


def summed(answers: list[Answer], name: str, shape: tuple[int, ...]) -> Vector:
    """Sum over owners of one part of their answers, each of which is checked."""
    total = np.zeros(shape)
    for k, answer in enumerate(answers):
        value: Any = answer.get(name)
        if value is None or np.shape(value) != shape or not np.isfinite(value).all():
            raise PrivacyError(
                f"Owner {k + 1} of {len(answers)} gave no {name!r} of finite numbers of shape {shape}."
            )
        total += value
    return total
