"""Differentially private Bayesian inference with PyMC."""

from pymc_dp._version import __version__
from pymc_dp.exceptions import (
    LedgerError,
    PrivacyBudgetExceeded,
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
)
from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    ReleasedStatistic,
    clamp,
    randomized_response,
    record_sum,
    second_moments,
    second_moments_sensitivity,
    sum_sensitivity,
)
from pymc_dp.plan import plan
from pymc_dp.privacy.calibration import calibrate_batch_size, calibrate_noise, max_draws
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.results import privacy_report, release
from pymc_dp.sampling import sample
from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.hmc import DPHMC
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.sgmcmc import DPSGLD, DPSGNHT

__all__ = [
    "DPHMC",
    "DPSGLD",
    "DPSGNHT",
    "DPBarker",
    "DPPenalty",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "GaussianMechanism",
    "InsecureSeededNoise",
    "LaplaceMechanism",
    "LedgerError",
    "PrivacyAwareGibbs",
    "PrivacyBudgetExceeded",
    "PrivacyConfigurationError",
    "PrivacyError",
    "PrivacyLedger",
    "ReleasedStatistic",
    "UnsupportedModelError",
    "__version__",
    "calibrate_batch_size",
    "calibrate_noise",
    "clamp",
    "max_draws",
    "plan",
    "privacy_report",
    "randomized_response",
    "record_sum",
    "release",
    "sample",
    "second_moments",
    "second_moments_sensitivity",
    "sum_sensitivity",
]
