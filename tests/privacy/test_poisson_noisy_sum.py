"""Noisy sums over secret samples: sensitivity, permit, order of events, and the noise."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from pymc_dp.checks import MIN_RATE
from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.clipping import MAX_DIMENSION, RESOLUTION
from pymc_dp.privacy.events import Gaussian, PoissonGaussian
from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise
from pymc_dp.privacy.noisy_sum import poisson_noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate

Q, Z = 0.3, 1.5


def permit(z=Z, rate=Q, count=1, iteration=0):
    return Permit(0, iteration, (PoissonGaussian(z, accounted_rate(rate), count),))


class Source(InsecureSeededNoise):
    """A seeded source that remembers whether anybody drew from it."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.touched = False

    def discrete_gaussian(self, scale, size, at=()):
        self.touched = True
        return super().discrete_gaussian(scale, size, at)

    def words(self, size, at=()):
        self.touched = True
        return super().words(size, at)


class Terms:
    """Per-unit terms that remember which units were asked for, in how many calls."""

    def __init__(self, values):
        self.values, self.asked = np.asarray(values, float), []

    def __call__(self, units):
        self.asked.append(units)
        for some in np.array_split(units, 2):
            yield self.values[some]


def released(terms, *, z=Z, rate=Q, iteration=0, source=None, **settings):
    keywords = {"units": len(terms.values), "bound": 1.0} | settings
    return poisson_noisy_sum(
        terms,
        sampling_rate=rate,
        noise_multiplier=z,
        permit=permit(z, rate, iteration=iteration),
        noise=source or Source(),
        **keywords,
    )


# -- sensitivity ------------------------------------------------------------------------------------

WORST = [0.0, 1.0, -1.0, 0.3, 7.0, -1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("bound", [1.0, 0.1, 3e7])
def test_one_unit_moves_the_sum_by_two_bounds_if_it_is_sampled_and_not_at_all_if_not(bound):
    """The same address gives the same sample: what is left is the unit's own doing."""
    rng = np.random.default_rng(0)
    others = bound * rng.normal(size=12)
    largest = 0.0
    for iteration in range(4):
        probe = Terms(others)
        released(probe, z=0.0, iteration=iteration, bound=bound)
        (sample,) = probe.asked
        for unit in range(12):
            found = []
            for value in WORST:
                values = others.copy()
                values[unit] = bound * value
                found.append(
                    float(released(Terms(values), z=0.0, iteration=iteration, bound=bound))
                )
            spread = max(found) - min(found)
            if unit in sample:
                largest = max(largest, spread)
            else:
                assert spread == 0
    assert 0 < largest <= 2 * bound * (1 + 1e-9)  # sums of floats are printed with rounding
    assert largest == pytest.approx(2 * bound, rel=1e-9)


def test_vectors_move_the_sum_by_two_bounds_in_norm():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(6, 3))
    vectors = [np.array(v, float) for v in product([0, 1, -1, 1e9, -math.inf, math.nan], repeat=3)]
    probe = Terms(values)
    released(probe, z=0.0, dimension=3, bound=0.7)
    unit = probe.asked[0][0]
    found = []
    for vector in vectors:
        values[unit] = vector
        found.append(released(Terms(values), z=0.0, dimension=3, bound=0.7))
    found = np.array(found)
    spread = np.linalg.norm(found[:, None] - found[None], axis=2).max()
    assert spread == pytest.approx(1.4, rel=1e-5)
    assert spread <= 1.4 * (1 + 1e-12)


# -- the permit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "paid",
    [
        (),
        (Gaussian(Z),),
        (PoissonGaussian(Z, Q),),  # the rate itself: a little less than what is charged
        (PoissonGaussian(Z, accounted_rate(Q / 2)),),
        (PoissonGaussian(Z, 1.0),),
        (PoissonGaussian(2 * Z, accounted_rate(Q)),),
    ],
)
def test_only_this_very_event_pays(paid):
    terms, source = Terms(np.ones(50)), Source()
    with pytest.raises(PrivacyBudgetExceeded):
        poisson_noisy_sum(
            terms,
            units=50,
            sampling_rate=Q,
            bound=1.0,
            noise_multiplier=Z,
            permit=Permit(0, 0, paid),
            noise=source,
        )
    assert not terms.asked
    assert not source.touched


def test_a_permit_is_used_up_by_one_release():
    paid = permit()
    keywords = {
        "units": 50,
        "sampling_rate": Q,
        "bound": 1.0,
        "noise_multiplier": Z,
        "permit": paid,
    }
    poisson_noisy_sum(Terms(np.ones(50)), noise=Source(), **keywords)
    again, source = Terms(np.ones(50)), Source()
    with pytest.raises(PrivacyBudgetExceeded):
        poisson_noisy_sum(again, noise=source, **keywords)
    assert not again.asked
    assert not source.touched


def test_a_permit_is_used_up_before_anything_is_read():
    paid = permit()

    def failing(units):
        raise RuntimeError
        yield

    with pytest.raises(RuntimeError):
        poisson_noisy_sum(
            failing,
            units=50,
            sampling_rate=Q,
            bound=1.0,
            noise_multiplier=Z,
            permit=paid,
            noise=Source(),
        )
    with pytest.raises(PrivacyBudgetExceeded):
        paid.take(PoissonGaussian(Z, accounted_rate(Q)))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"bound": b} for b in (0.0, -1.0, math.nan, math.inf)),
        *({"sampling_rate": q} for q in (0.0, -0.1, 1.5, math.nan, MIN_RATE / 2, True)),
        *({"dimension": d} for d in (0, MAX_DIMENSION + 1)),
        *({"noise_multiplier": z} for z in (0.0, -1.0, math.nan, 1e30)),
    ],
)
def test_settings_out_of_range_are_refused_before_paying_or_reading(wrong):
    terms, paid = Terms(np.ones(50)), permit()
    settings = {"sampling_rate": Q, "bound": 1.0, "noise_multiplier": Z, **wrong}
    with pytest.raises(PrivacyConfigurationError):
        poisson_noisy_sum(terms, units=50, permit=paid, noise=SecureNoise(), **settings)
    assert not terms.asked
    assert not paid._taken


# -- what it returns --------------------------------------------------------------------------------


def test_units_are_asked_for_once():
    terms = Terms(np.ones(200))
    released(terms)
    (sample,) = terms.asked
    assert (np.diff(sample) > 0).all()
    assert 30 < len(sample) < 90


def test_an_empty_sample_is_noise_alone():
    terms = Terms(np.ones(1))
    rate = MIN_RATE
    values = [float(released(terms, rate=rate, iteration=i)) for i in range(50)]
    assert all(len(sample) == 0 for sample in terms.asked)
    assert len(set(values)) == 50
    assert released(Terms(np.ones((1, 2))), rate=rate, dimension=2).shape == (2,)


@pytest.mark.parametrize("dimension", [None, 2])
@pytest.mark.parametrize(("z", "bound"), [(0.05, 3.0), (20.0, 1e-3)])
def test_the_noise_has_the_standard_deviation_that_is_paid_for(z, bound, dimension):
    """Around the exact sum over the very sample that was drawn."""
    rng, repeats = np.random.default_rng(2), 3000
    terms = Terms(bound / 4 * rng.normal(size=(40, *([dimension] if dimension else []))))
    residuals = []
    for i in range(repeats):
        found = released(terms, z=z, bound=bound, dimension=dimension, iteration=i)
        x = terms.values[terms.asked[-1]]
        norm = np.abs(x) if dimension is None else np.linalg.norm(x, axis=1, keepdims=True)
        exact = (x * np.minimum(1, bound / np.maximum(norm, 1e-300))).sum(axis=0)
        residuals.append((found - exact) / (z * 2 * bound))
    x = np.ravel(residuals)
    assert np.abs(40 / RESOLUTION / z / 2) < 1e-4  # the grid does not matter here
    assert abs(x.sum()) / math.sqrt(x.size) < 4
    assert stats.chi2(x.size).ppf(1e-4) < (x**2).sum() < stats.chi2(x.size).isf(1e-4)
    assert stats.kstest(x, "norm").pvalue > 1e-4


def test_divided_by_the_rate_it_estimates_the_whole_sum():
    rng, repeats = np.random.default_rng(3), 4000
    terms = Terms(rng.normal(1.0, 1.0, size=60))
    clipped = np.clip(terms.values, -1, 1)
    found = np.array([released(terms, z=0.5, iteration=i) for i in range(repeats)]) / Q
    variance = (1 - Q) / Q * (clipped**2).sum() + (0.5 * 2 / Q) ** 2
    assert abs(found.mean() - clipped.sum()) < 4 * math.sqrt(variance / repeats)
    assert found.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / repeats))


def test_at_rate_one_it_is_everybody():
    terms = Terms(np.linspace(-1, 1, 30))
    assert released(terms, z=0.0, rate=1.0) == pytest.approx(0.0, abs=30 / RESOLUTION)
    np.testing.assert_array_equal(terms.asked[0], np.arange(30))


def test_the_sample_is_as_secret_as_the_noise():
    """The same public address and a secure source: another sample each time."""
    samples = set()
    for _ in range(3):
        terms = Terms(np.ones(200))
        released(terms, source=SecureNoise())
        samples.add(tuple(terms.asked[0]))
    assert len(samples) == 3
