"""Noisy statistics: released by a curator, observed in an analyst's model."""

from pymc_dp.mechanisms.checking import check_releases
from pymc_dp.mechanisms.correcting import correct_releases
from pymc_dp.mechanisms.observed import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)
from pymc_dp.mechanisms.released import ReleasedStatistic
from pymc_dp.mechanisms.responses import RandomizedResponse

__all__ = [
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "RandomizedResponse",
    "ReleasedStatistic",
    "check_releases",
    "correct_releases",
]
