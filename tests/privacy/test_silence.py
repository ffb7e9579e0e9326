"""Every release draws its terms in silence: what one unit's term provokes is seen nowhere."""

import warnings

import numpy as np
import pytest

from pymc_dp.privacy.barker import noisy_batch_mean
from pymc_dp.privacy.events import BarkerBatch, Gaussian, PoissonGaussian
from pymc_dp.privacy.histogram import counts_of, noisy_counts
from pymc_dp.privacy.kept_sum import KeptSum, direction
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.noisy_sum import noisy_sum, poisson_noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate

NOISE = InsecureSeededNoise(0)
FAR = np.array([1e308, -1e308, 1e200, 5e-324, 1.0])


def overflowing():
    """Terms of units that overflow, are NaN, and underflow while they are computed."""
    yield np.add.reduceat(np.concatenate([FAR * 1e300, -FAR * 1e300]), [0, 3, 5])
    yield FAR * FAR / (FAR - FAR)


def sums(permit=None):
    noisy_sum(overflowing(), bound=1.0, noise_multiplier=1.0, permit=permit, noise=NOISE)


def samples(permit=None):
    poisson_noisy_sum(
        lambda units: overflowing(), units=10, sampling_rate=0.5, bound=1.0, noise_multiplier=1.0,
        permit=permit, noise=NOISE,
    )  # fmt: skip


def batches(permit=None):
    noisy_batch_mean(
        lambda units: overflowing(), units=10, batch_size=5, bound=1.0, variance=2.0, permit=permit,
        noise=NOISE,
    )  # fmt: skip


def histograms(permit=None):
    noisy_counts(
        lambda: counts_of(overflowing(), 2), noise_multiplier=1.0, permit=permit, noise=NOISE
    )


def kept_sums(permit=None):
    kept = KeptSum(lambda: (chunk[:, None] for chunk in overflowing()), 1)
    kept.release(direction(np.ones(1), 2.0, 1), noise_multiplier=1.0, permit=permit, noise=NOISE)


@pytest.mark.parametrize("errors", ["warn", "raise"])
@pytest.mark.parametrize(
    ("release", "event"),
    [
        (sums, Gaussian(1.0)),
        (samples, PoissonGaussian(1.0, accounted_rate(0.5))),
        (batches, BarkerBatch(2.0, 5, 10)),
        (histograms, Gaussian(1.0)),
        (kept_sums, Gaussian(1.0)),
    ],
)
def test_no_warning_and_no_error_tells_of_a_unit(release, event, errors):
    with (
        np.errstate(over=errors, invalid=errors, divide=errors, under=errors),
        warnings.catch_warnings(),
    ):
        state = np.geterr()
        warnings.simplefilter("error")
        release(Permit(0, 0, (event,)))
        assert np.geterr() == state
