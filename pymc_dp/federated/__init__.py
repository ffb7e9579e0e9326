r"""Data owners who do not trust each other: noised sums only, one ledger each.

Every owner holds an ordinary PyMC model of its own records and answers a closed list of requests, all of
them numbers, with sums that it has clipped and noised itself (:class:`Owner`). A coordinator, who has no
data, adds the answers up: in a few dozen rounds to a normal approximation of the joint likelihood
(:func:`find_surrogate`), or in every iteration of a chain to a noisy log-likelihood ratio
(:class:`~pymc_dp.experimental.FederatedPenalty`, Algorithm 2 of Yıldırım, 2016). How answers travel is a function's business:
one process needs none, and :mod:`pymc_dp.federated.flower` sends them through Flower.
"""

from pymc_dp.federated.owner import Owner
from pymc_dp.federated.surrogate import Surrogate, find_surrogate

__all__ = ["Owner", "Surrogate", "find_surrogate"]


def __dir__() -> list[str]:
    return sorted(__all__)
