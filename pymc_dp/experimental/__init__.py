"""Samplers that are biased, tempered, or here for replication: see the README beside this file."""

from pymc_dp.experimental.federated_penalty import FederatedPenalty
from pymc_dp.experimental.sgmcmc import DPSGLD, DPSGNHT

__all__ = ["DPSGLD", "DPSGNHT", "FederatedPenalty"]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
