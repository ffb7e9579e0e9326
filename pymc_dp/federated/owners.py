"""All owners together, as a coordinator sees them: noisy sums, whose noise has the variance of all of theirs."""

import math
from typing import Any

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.federated.agreement import RATIO, Answer, Ask, parameters_digest
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.linalg import Vector
from pymc_dp.privacy.filter import LEAST_SHARE
from pymc_dp.privacy.histogram import PrivateHistogram, count_of_bins
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.records.queries import Gradient, Query, Score, is_acute


class Owners:
    r"""The owners' answers added up: one home of :class:`~pymc_dp.records.measurements.Measurements`.

    A share is of what every owner has left for a surrogate when this is made. Owners of multipliers
    :math:`z_j` answer together with noise like that of one of :math:`\sqrt{\sum_j z_j^2}`.

    Parameters
    ----------
    ask : callable
        See :data:`~pymc_dp.federated.agreement.Ask`.
    parameters : ParameterSpace
        Of the coordinator's model.

    Raises
    ------
    PrivacyError
        If there is no owner, or one whose model has other parameters.
    """

    pure = False

    def __init__(self, ask: Ask, parameters: ParameterSpace):
        self._ask, self._offers = ask, ask("offer", {})
        if not self._offers:
            raise PrivacyError("No owner has answered.")
        ours = parameters_digest(parameters)
        for k, offer in enumerate(self._offers):
            if int(offer["parameters"]) != ours:
                raise PrivacyError(
                    f"The model of owner {k + 1} of {len(self._offers)} does not have the parameters "
                    "of the coordinator's: names, shapes and order must agree."
                )
        self._left, self._spent = self._least("surrogate"), 0.0

    def _least(self, kind: str) -> float:
        """What the owner with the least has left of its answers of a kind."""
        return min(float(offer.get(kind, np.zeros(2))[0]) for offer in self._offers)

    def _multiplier(self, kind: str) -> float:
        return math.sqrt(sum(float(offer[kind][1]) ** 2 for offer in self._offers))

    def require(self, kind: str) -> None:
        """Refuse to begin what an owner will not take part in."""
        if not self._least(kind) > LEAST_SHARE:
            raise PrivacyError(
                f"Some owner takes no part in a {kind}, or no more: see `ratios` and `ratio_share` "
                "of `Owner`."
            )

    @property
    def n_units(self) -> int:
        """Units of all owners."""
        return sum(int(offer["units"]) for offer in self._offers)

    @property
    def spent(self) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        return self._spent

    def multiplier(self, share: float, dimension: int = 1) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        return self._multiplier("surrogate") / math.sqrt(self._left * share)

    def share(self, multiplier: float, dimension: int = 1) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        return (self.multiplier(1.0) / multiplier) ** 2

    def noise_sd(self, bound: float, share: float, dimension: int = 1) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        return SUBSTITUTE_ONE.noise_sd(bound, self.multiplier(share, dimension))

    def count_sd(self, share: float) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        return SUBSTITUTE_ONE.count_sd(self.multiplier(share))

    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        kind, numbers = _asked(of)
        numbers["bound"] = np.asarray(float(bound))
        shape = () if of.dimension is None else (of.dimension,)
        sd = SUBSTITUTE_ONE.noise_sd(bound, self.multiplier(share), is_acute(of))
        return self._paid(kind, numbers, share, shape), sd

    def units(self, share: float) -> tuple[float, float]:
        """See :class:`~pymc_dp.records.measurements.Measurements`: owners tell their numbers."""
        return float(self.n_units), 0.0

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        kind, numbers = _asked(of)
        numbers["bins_per_octave"] = np.asarray(float(bins_per_octave))
        counts = self._paid(f"{kind}_sizes", numbers, share, (count_of_bins(bins_per_octave),))
        return PrivateHistogram(counts, self.count_sd(share), bins_per_octave)

    @property
    def before_last_sum(self) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`: noises of several owners add up to a normal one only."""
        return 0.0

    def last_noise_sd(self, bound: float, dimension: int, acute: bool = False) -> float:
        """See :class:`~pymc_dp.records.measurements.Measurements`."""
        return math.inf

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        """See :class:`~pymc_dp.records.measurements.Measurements`: refused."""
        raise PrivacyError("Owners give no sum with other than Gaussian noise.")

    def _paid(
        self, kind: str, numbers: dict[str, Vector], share: float, shape: tuple[int, ...]
    ) -> Vector:
        """Sum of all owners' answers, each of which takes this share of what that owner has left."""
        self._spent += share
        request = numbers | {"share": np.asarray(share * self._left)}
        return summed(self._ask(kind, request), kind, shape)

    def ratio(self, theta: Vector, proposal: Vector, bound: float) -> float:
        """Noisy log-likelihood ratio of all owners' records."""
        request = {"theta": theta, "proposal": proposal, "bound": np.asarray(bound)}
        return float(summed(self._ask(RATIO, request), RATIO, ()))

    @property
    def ratio_multiplier(self) -> float:
        """Noise multiplier of :meth:`ratio`."""
        return self._multiplier(RATIO)


def _asked(of: Query) -> tuple[str, dict[str, Vector]]:
    """What owners call a query, and its numbers but for the sum's bound."""
    at: Any = of
    if isinstance(of, Gradient):
        return "gradient", {"theta": np.asarray(at.theta), "W": np.asarray(at.W)}
    numbers = {"theta": np.asarray(at.theta), "W": np.asarray(at.V)}
    if isinstance(of, Score):
        return "score", numbers
    return "information", numbers | {"score_bound": np.asarray(float(at.bound))}


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
