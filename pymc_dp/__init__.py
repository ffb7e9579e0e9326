"""Differentially private Bayesian inference with PyMC."""

from pymc_dp import experimental, statistics
from pymc_dp._version import __version__
from pymc_dp.assessment.checking import PredictionChecks, check_predictions
from pymc_dp.assessment.compare import Comparison, Difference, compare
from pymc_dp.assessment.plots import plot_checks, plot_prior_posterior
from pymc_dp.evidence.audit import audit
from pymc_dp.evidence.expected import ExpectedPrivacyShift, expected_privacy_shift
from pymc_dp.evidence.mmd import mmd
from pymc_dp.evidence.plots import plot_tradeoff
from pymc_dp.evidence.tradeoff import Tradeoff, tradeoff
from pymc_dp.exceptions import (
    LedgerError,
    NoSurrogateError,
    PrivacyBudgetExceeded,
    PrivacyConfigurationError,
    PrivacyError,
    ShardError,
    UnsupportedModelError,
)
from pymc_dp.experimental.barker import DPBarker
from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.integration import integrate_out
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile_model as compile
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    RandomizedResponse,
    ReleasedStatistic,
    check_releases,
    correct_releases,
)
from pymc_dp.planning import plan
from pymc_dp.prediction import predict
from pymc_dp.privacy.calibration import calibrate_batch_size, calibrate_noise, max_releases
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.records.shards import Shards
from pymc_dp.report import PrivacyReport, privacy_report
from pymc_dp.report.plots import plot_privacy
from pymc_dp.results import release
from pymc_dp.sampling import sample
from pymc_dp.steps.exponential import DPExponentialFamily
from pymc_dp.steps.hmc import DPHMC
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.surrogate import DPSurrogate

__all__ = [
    "DPHMC",
    "Comparison",
    "CompiledModel",
    "DPBarker",
    "DPExponentialFamily",
    "DPPenalty",
    "DPSurrogate",
    "Difference",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "ExpectedPrivacyShift",
    "GaussianMechanism",
    "InsecureSeededNoise",
    "LaplaceMechanism",
    "LedgerError",
    "NoSurrogateError",
    "PredictionChecks",
    "PrivacyAwareGibbs",
    "PrivacyBudgetExceeded",
    "PrivacyConfigurationError",
    "PrivacyError",
    "PrivacyLedger",
    "PrivacyReport",
    "RandomizedResponse",
    "ReleasedStatistic",
    "ShardError",
    "Shards",
    "Tradeoff",
    "UnsupportedModelError",
    "__version__",
    "audit",
    "calibrate_batch_size",
    "calibrate_noise",
    "check_predictions",
    "check_releases",
    "compare",
    "compile",
    "correct_releases",
    "expected_privacy_shift",
    "experimental",
    "integrate_out",
    "max_releases",
    "mmd",
    "plan",
    "plot_checks",
    "plot_prior_posterior",
    "plot_privacy",
    "plot_tradeoff",
    "predict",
    "privacy_report",
    "release",
    "sample",
    "statistics",
    "tradeoff",
]


def __dir__() -> list[str]:
    """Public names only: modules that were imported on the way stand beside them."""
    return sorted(__all__)
