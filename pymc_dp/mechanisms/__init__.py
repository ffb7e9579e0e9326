"""Noisy statistics: released by a curator, observed in an analyst's model."""

from pymc_dp.mechanisms.observed import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)
from pymc_dp.mechanisms.record_sum import record_sum
from pymc_dp.mechanisms.released import ReleasedStatistic
from pymc_dp.mechanisms.responses import randomized_response
from pymc_dp.mechanisms.statistics import (
    clamp,
    second_moments,
    second_moments_sensitivity,
    sum_sensitivity,
)

__all__ = [
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "ReleasedStatistic",
    "clamp",
    "randomized_response",
    "record_sum",
    "second_moments",
    "second_moments_sensitivity",
    "sum_sensitivity",
]
