"""The release behind a private Barker test: its law, its sensitivities, and who pays."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.barker import noisy_batch_mean
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import BarkerBatch, Gaussian
from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.rdp import barker_curve

MANY = 10**6  # units, of which a batch is a vanishing share


class Silent:
    """Adds no noise, and remembers the scale it was asked for. Samples as it is told, or at random."""

    name, secure = "silent", False

    def __init__(self, batch=None):
        self.batch, self.scales, self.touched = batch, [], False
        self.rng = np.random.default_rng(0)

    def discrete_gaussian(self, scale, size, at=()):
        self.scales.append(scale)
        return np.zeros(size, dtype=np.int64)

    def words(self, size, at=()):
        self.touched = True
        return self.rng.integers(2**64, size=size, dtype=np.uint64)


def paid(variance, b, n, iteration=0):
    return Permit(0, iteration, (BarkerBatch(variance, b, n),))


def moments(batch, variance=2.0, bound=1.0, units=MANY):
    """Mean and variance of what is released when the batch has these terms."""
    b, noise = len(batch), Silent()
    mean = noisy_batch_mean(
        lambda units: [np.array(batch, float)],
        units=units,
        batch_size=b,
        bound=bound,
        variance=variance,
        permit=paid(variance, b, units),
        noise=noise,
    )
    return mean, (noise.scales[0] / RESOLUTION) ** 2 / b


# -- one batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [2, 5, 300])
@pytest.mark.parametrize("bound", [1.0, 0.02, 400.0])
def test_batch_mean_and_noise_variance(b, bound):
    terms = bound * np.random.default_rng(b).normal(0, 0.5, size=b)
    x = np.clip(terms / bound, -1, 1)
    mean, variance = moments(terms, 1.7, bound)
    assert mean == pytest.approx(math.sqrt(b) * x.mean(), abs=math.sqrt(b) / RESOLUTION)
    assert variance == pytest.approx(1.7 - x.var(), rel=2e-4)  # b of MANY: next to no share


def test_what_is_not_finite_is_clipped():
    batch = [math.nan, math.inf, -math.inf, 1e308, -1e308, 0.25]
    mean, variance = moments(batch, bound=0.5)
    x = np.array([0, 1, -1, 1, -1, 0.5])
    assert mean == pytest.approx(math.sqrt(6) * x.mean(), abs=1e-6)
    assert variance == pytest.approx(2 - x.var(), rel=1e-4)
    assert moments([1e300, -1e300], bound=1e-150) == pytest.approx((0, 1.0), abs=1e-5)


def test_only_nan_is_no_information():
    assert moments([math.nan] * 4) == pytest.approx((0.0, 2.0))


def test_terms_may_come_in_chunks():
    terms = np.random.default_rng(1).normal(size=40)
    keywords = {"units": MANY, "batch_size": 40, "bound": 2.0, "variance": 2.0}
    whole, parts = Silent(), Silent()
    one = noisy_batch_mean(lambda u: [terms], permit=paid(2.0, 40, MANY), noise=whole, **keywords)
    several = noisy_batch_mean(
        lambda u: iter([terms[:7], terms[7:]]), permit=paid(2.0, 40, MANY), noise=parts, **keywords
    )
    assert one == several
    assert whole.scales == pytest.approx(parts.scales)


@pytest.mark.parametrize("b", [2, 3, 4, 6])
def test_one_unit_of_the_batch_moves_mean_and_variance_as_claimed(b):
    """All batches of extreme and middling terms; both bounds are reached and never exceeded."""
    values = (-1.0, 0.0, 1.0) if b > 4 else (-1.0, -0.4, 0.0, 0.7, 1.0, math.nan)
    mean_moves, variance_moves = [], []
    for others in combinations(sorted(values * (b - 1), key=str), b - 1):
        found = np.array([moments([*others, value]) for value in values])
        mean_moves.append(np.ptp(found[:, 0]))
        variance_moves.append(np.ptp(found[:, 1]))
        if len(mean_moves) > 400:
            break
    for value in (-1.0, 1.0):
        found = np.array([moments([value] * (b - 1) + [x]) for x in (-1.0, 1.0)])
        mean_moves.append(np.ptp(found[:, 0]))
        variance_moves.append(np.ptp(found[:, 1]))
    assert max(mean_moves) <= 2 / math.sqrt(b) * (1 + 1e-12)
    assert max(mean_moves) == pytest.approx(2 / math.sqrt(b), rel=1e-12)
    assert max(variance_moves) <= 4 * (b - 1) / b**2 * (1 + 1e-9)
    assert max(variance_moves) == pytest.approx(4 * (b - 1) / b**2, rel=1e-4)


@pytest.mark.parametrize("variance", [1.2, 2.0, 3.2])
def test_what_is_charged_bounds_the_divergence_of_what_is_released(variance):
    """Rényi divergence of two normals, from the means and variances of actual releases."""
    b = 60
    orders = np.array([2.0, 3, 5, 8, 12])
    orders = orders[np.isfinite(barker_curve(orders, variance, b))]
    assert len(orders) >= 2
    rng, values = np.random.default_rng(2), (-1.0, -0.3, 0.0, 0.6, 1.0)
    batches = [np.sign(rng.normal(size=b - 1)), *(np.full(b - 1, v) for v in values)]
    batches += [rng.uniform(-1, 1, b - 1), np.append(np.full(b - 2, -1.0), 1.0)]
    charged, worst = barker_curve(orders, variance, b), np.zeros(len(orders))
    for others in batches:
        laws = [moments([*others, v], variance) for v in values]
        for (m, v), (m2, v2) in product(laws, laws):
            mixed = (1 - orders) * v + orders * v2
            assert (mixed > 0).all()
            divergence = orders * (m - m2) ** 2 / (2 * mixed) - (
                np.log(mixed) - (1 - orders) * np.log(v) - orders * np.log(v2)
            ) / (2 * (orders - 1))
            assert (divergence <= charged * (1 + 1e-9)).all()
            worst = np.maximum(worst, divergence)
    # Not vacuous: the largest moves of mean and of variance do not quite go together.
    assert (worst > 0.15 * charged).all()


# -- over batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "b"), [(10, 2), (10, 5), (10, 9), (9, 9), (14, 4)])
def test_batch_and_noise_have_variance_c_together(n, b):
    """Exactly, over all batches, for terms of variance 1: to within 1/b, whatever share b of n is.

    A batch drawn without replacement errs by a factor 1 − b/n less than the variance of its terms
    says, and not at all if it is everybody.
    """
    rng, C = np.random.default_rng(n), 2.0
    x = rng.permutation(np.append(np.ones(n // 2), -np.ones(n - n // 2)))
    laws = np.array([moments(x[list(batch)], C, units=n) for batch in combinations(range(n), b)])
    total = laws[:, 0].var() + laws[:, 1].mean()
    assert laws[:, 0].mean() == pytest.approx(math.sqrt(b) * x.mean(), abs=1e-6)
    assert abs(total - C) < 1.2 / b * (1 - b / n) + 1e-6


@pytest.mark.sweep
@pytest.mark.parametrize(("n", "b", "C"), [(3000, 60, 2.0), (3000, 60, 1.1), (40, 2, 3.0)])
def test_the_law_of_the_release(n, b, C):
    """Through the sampler: mean, variance and, where it must be, the normal shape."""
    rng, repeats = np.random.default_rng(3), 6000
    x = np.clip(rng.normal(0.2, 0.5, size=n), -1, 1)
    noise = InsecureSeededNoise(1)
    found = np.array(
        [
            noisy_batch_mean(
                lambda units: [3.0 * x[units]],
                units=n,
                batch_size=b,
                bound=3.0,
                variance=C,
                permit=paid(C, b, n, i),
                noise=noise,
            )
            for i in range(repeats)
        ]
    )
    assert abs(found.mean() - math.sqrt(b) * x.mean()) < 4 * math.sqrt(C / repeats)
    # Beyond chance: 1/b of the terms' variance, and b/n of it (see the test above).
    assert abs(found.var() - C) < 4 * C * math.sqrt(2 / repeats) + x.var() * (1 / b + b / n)
    standard = (found - math.sqrt(b) * x.mean()) / math.sqrt(C)
    assert stats.kstest(standard, "norm").pvalue > 1e-4


def test_noise_is_normal_for_a_given_batch():
    repeats, b = 4000, 5
    x = np.array([1.0, 1.0, -1.0, -1.0, 0.5])
    noise = InsecureSeededNoise(2)
    found = np.array(
        [
            noisy_batch_mean(
                lambda units: [x],
                units=MANY,
                batch_size=b,
                bound=1.0,
                variance=1.5,
                permit=paid(1.5, b, MANY, i),
                noise=noise,
            )
            for i in range(repeats)
        ]
    )
    standard = (found - math.sqrt(b) * x.mean()) / math.sqrt(1.5 - x.var())
    assert stats.kstest(standard, "norm").pvalue > 1e-4


# -- who pays ---------------------------------------------------------------------------------------


class Untouched:
    def __call__(self, units):
        raise AssertionError("data were read")


@pytest.mark.parametrize(
    "events",
    [
        (),
        (Gaussian(1.0),),
        (BarkerBatch(2.0, 11, 100),),
        (BarkerBatch(2.0, 10, 101),),
        (BarkerBatch(2.1, 10, 100),),
    ],
)
def test_only_this_very_event_pays(events):
    noise = Silent()
    with pytest.raises(PrivacyBudgetExceeded):
        noisy_batch_mean(
            Untouched(),
            units=100,
            batch_size=10,
            bound=1.0,
            variance=2.0,
            permit=Permit(0, 0, events),
            noise=noise,
        )
    assert not noise.touched
    assert not noise.scales


def test_a_permit_is_used_up_before_anything_is_read():
    permit = paid(2.0, 10, 100)
    for error in (AssertionError, PrivacyBudgetExceeded):
        with pytest.raises(error):
            noisy_batch_mean(
                Untouched(),
                units=100,
                batch_size=10,
                bound=1.0,
                variance=2.0,
                permit=permit,
                noise=Silent(),
            )


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_bounds_out_of_range_are_refused_before_paying_or_reading(bound):
    permit = paid(2.0, 10, 100)
    with pytest.raises(PrivacyConfigurationError, match="bound"):
        noisy_batch_mean(
            Untouched(),
            units=100,
            batch_size=10,
            bound=bound,
            variance=2.0,
            permit=permit,
            noise=SecureNoise(),
        )
    assert not permit._taken


def test_the_batch_is_exactly_that_many_different_units():
    seen = []
    for source in (SecureNoise(), SecureNoise()):
        noisy_batch_mean(
            lambda units: seen.append(units) or [np.zeros(len(units))],
            units=100,
            batch_size=10,
            bound=1.0,
            variance=2.0,
            permit=paid(2.0, 10, 100),
            noise=source,
        )
    assert all(len(np.unique(units)) == 10 and units.max() < 100 for units in seen)
    assert tuple(seen[0]) != tuple(seen[1])
