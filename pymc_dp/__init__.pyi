"""Public names: what is imported from here is found in the module that it names, once it is used."""

from . import experimental, statistics
from ._version import __version__
from .assessment.averages import Averages, average
from .assessment.checking import PredictionChecks, check_predictions
from .assessment.compare import Comparison, Difference, compare
from .assessment.plots import plot_checks, plot_prior_posterior
from .assessment.quantities import Average
from .assessment.sandwich import Sandwich, sandwich
from .combination import combine
from .evidence.audit import audit
from .evidence.expected import ExpectedPrivacyShift, expected_privacy_shift
from .evidence.mmd import mmd
from .evidence.plots import plot_tradeoff
from .evidence.tradeoff import Tradeoff, tradeoff
from .exceptions import (
    LedgerError,
    NoSurrogateError,
    PrivacyBudgetExceeded,
    PrivacyConfigurationError,
    PrivacyError,
    ShardError,
    UnsupportedModelError,
)
from .experimental.barker import DPBarker
from .gibbs.step import PrivacyAwareGibbs
from .integration import integrate_out
from .likelihood.compiled import CompiledModel, compile
from .mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    RandomizedResponse,
    ReleasedStatistic,
    check_releases,
    correct_releases,
)
from .mechanisms.log_linear import NoisyMarginals, log_linear
from .mechanisms.marginals import ReleasedMarginals, release_marginals
from .mechanisms.synthetic import pool, synthetic_tables
from .missing import integrate_missing
from .planning import plan
from .prediction import predict
from .privacy.calibration import calibrate_batch_size, calibrate_noise, max_releases
from .privacy.ledger import PrivacyLedger
from .privacy.noise import InsecureSeededNoise
from .records.shards import Shards
from .report import PrivacyReport, privacy_report
from .report.plots import plot_privacy
from .results import release
from .sampling import sample
from .steps.exponential import DPExponentialFamily
from .steps.hmc import DPHMC
from .steps.penalty import DPPenalty
from .steps.surrogate import DPSurrogate

__all__ = [
    "DPHMC",
    "Average",
    "Averages",
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
    "NoisyMarginals",
    "PredictionChecks",
    "PrivacyAwareGibbs",
    "PrivacyBudgetExceeded",
    "PrivacyConfigurationError",
    "PrivacyError",
    "PrivacyLedger",
    "PrivacyReport",
    "RandomizedResponse",
    "ReleasedMarginals",
    "ReleasedStatistic",
    "Sandwich",
    "ShardError",
    "Shards",
    "Tradeoff",
    "UnsupportedModelError",
    "__version__",
    "audit",
    "average",
    "calibrate_batch_size",
    "calibrate_noise",
    "check_predictions",
    "check_releases",
    "combine",
    "compare",
    "compile",
    "correct_releases",
    "expected_privacy_shift",
    "experimental",
    "integrate_missing",
    "integrate_out",
    "log_linear",
    "max_releases",
    "mmd",
    "plan",
    "plot_checks",
    "plot_prior_posterior",
    "plot_privacy",
    "plot_tradeoff",
    "pool",
    "predict",
    "privacy_report",
    "release",
    "release_marginals",
    "sample",
    "sandwich",
    "statistics",
    "synthetic_tables",
    "tradeoff",
]
