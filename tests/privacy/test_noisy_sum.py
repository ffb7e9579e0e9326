"""The one primitive: what it returns, what it refuses and when it reads data."""

import math

import numpy as np
import pytest
from scipy import stats

from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.clipping import MAX_DIMENSION, RESOLUTION
from pymc_dp.privacy.events import Gaussian, Laplace
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise
from pymc_dp.privacy.noisy_sum import (
    MAX_UNITS,
    check_units,
    noisy_sum,
)
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.acceptance import acceptance_at_equal_density


class Recorder:
    """An iterable of chunks that knows whether anybody drew from it."""

    def __init__(self, *chunks):
        self.chunks, self.touched = chunks, False

    def __iter__(self):
        self.touched = True
        yield from self.chunks


def permit(z, count=1, iteration=0, slot=0):
    return Permit(slot, iteration, (Gaussian(z, count),))


def exact(terms, bound, dimension=None):
    """The clipped sum without noise."""
    return noisy_sum(
        [terms],
        dimension=dimension,
        bound=bound,
        noise_multiplier=0,
        permit=permit(0),
        noise=InsecureSeededNoise(0),
    )


# -- what it returns --------------------------------------------------------------------------


def test_without_noise_a_scalar_sum_is_the_clipped_sum_up_to_the_grid():
    terms = np.random.default_rng(0).standard_normal(5000)
    for bound in (0.3, 1.0, 50.0):
        total = exact(terms, bound)
        assert total.shape == ()
        wanted = math.fsum(np.clip(terms, -bound, bound))
        assert abs(total - wanted) < terms.size * bound / RESOLUTION


def test_without_noise_a_vector_sum_is_the_clipped_sum_up_to_the_grid():
    terms = np.random.default_rng(0).standard_normal((5000, 4))
    norms = np.linalg.norm(terms, axis=1, keepdims=True)
    for bound in (0.3, 2.0, 50.0):
        total = exact(terms, bound, dimension=4)
        assert total.shape == (4,)
        wanted = [math.fsum(column) for column in (terms * np.minimum(1, bound / norms)).T]
        # Vectors are shrunk by 2^-40 so that they never round up: 2^-14 of a grid step at most.
        assert np.max(np.abs(total - wanted)) < (1 + 2**-13) * len(terms) * bound / RESOLUTION


def residuals(noise, z, bound, dimension, repeats):
    """(released - exact) / (z 2B), which should be standard normal."""
    rng = np.random.default_rng(5)
    terms = rng.standard_normal(30 if dimension is None else (30, dimension))
    wanted = exact(terms, bound, dimension)
    released = [
        noisy_sum(
            [terms[:10], terms[10:]],
            dimension=dimension,
            bound=bound,
            noise_multiplier=z,
            permit=permit(z, iteration=i),
            noise=noise,
        )
        for i in range(repeats)
    ]
    return np.ravel(released - wanted) / (z * 2 * bound)


@pytest.mark.parametrize(
    ("noise", "dimension", "repeats"),
    [
        (InsecureSeededNoise(1), None, 4000),
        (InsecureSeededNoise(2), 3, 2000),
        (SecureNoise(), MAX_DIMENSION, 3),
    ],
)
@pytest.mark.parametrize(("z", "bound"), [(0.01, 3.0), (40.0, 1e-3)])
def test_the_noise_has_the_standard_deviation_that_is_paid_for(noise, dimension, repeats, z, bound):
    x = residuals(noise, z, bound, dimension, repeats)
    assert SUBSTITUTE_ONE.noise_sd(bound, z) == pytest.approx(z * 2 * bound, rel=1e-15)
    assert abs(x.sum() / math.sqrt(x.size)) < stats.norm.isf(1e-11)
    assert stats.chi2(x.size).ppf(1e-11) < np.sum(x**2) < stats.chi2(x.size).isf(1e-11)
    assert stats.kstest(x, "norm").pvalue > 1e-11


def test_coordinates_and_releases_get_independent_noise():
    x = residuals(InsecureSeededNoise(4), 1.0, 1.0, 2, 4000).reshape(-1, 2)
    pairs = (x[:, 0] * x[:, 1]).sum(), (x[1:, 0] * x[:-1, 0]).sum()
    assert np.all(np.abs(pairs) / math.sqrt(len(x)) < 5)


def test_two_releases_of_one_iteration_get_different_noise():
    both = permit(1.0, count=2)
    first, second = (
        noisy_sum([], bound=1.0, noise_multiplier=1.0, permit=both, noise=InsecureSeededNoise(0))
        for _ in range(2)
    )
    assert first != second


# -- when it reads data -----------------------------------------------------------------------


def test_nothing_is_read_without_a_permit():
    spent = permit(2.0)
    spent.take(Gaussian(2.0))
    for refused in (spent, permit(1.0), Permit(0, 0, ()), Permit(0, 0, (Laplace(2.0),))):
        terms = Recorder(np.ones(3))
        with pytest.raises(PrivacyBudgetExceeded):
            noisy_sum(terms, bound=1.0, noise_multiplier=2.0, permit=refused, noise=SecureNoise())
        assert not terms.touched


def test_a_permit_is_used_up_before_anything_is_read():
    """A failure half-way must not leave a permit for a second look."""
    paid = permit(2.0)

    def terms():
        yield np.ones(3)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        noisy_sum(terms(), bound=1.0, noise_multiplier=2.0, permit=paid, noise=SecureNoise())
    with pytest.raises(PrivacyBudgetExceeded):
        paid.take(Gaussian(2.0))


def refused(terms, paid, **wrong):
    settings = {"bound": 1.0, "noise_multiplier": 2.0, "noise": SecureNoise(), **wrong}
    with pytest.raises(PrivacyConfigurationError):
        noisy_sum(terms, permit=paid, **settings)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"bound": b} for b in (0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300)),
        *({"noise_multiplier": z} for z in (0.0, -2.0, math.nan, math.inf, 1e30)),
        *({"dimension": d} for d in (0, -1, MAX_DIMENSION + 1)),
        {"noise_multiplier": -2.0, "noise": InsecureSeededNoise(0)},
    ],
)
def test_settings_out_of_range_are_refused_before_paying_or_reading(wrong):
    z = wrong.get("noise_multiplier", 2.0)
    terms = Recorder(np.ones(3))
    paid = permit(z) if 0 <= z < math.inf else permit(2.0)
    refused(terms, paid, **wrong)
    assert not terms.touched
    assert not paid._taken


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_terms_of_another_dimension_are_refused(shape):
    """Longer ones would be written past the end of the sum."""
    with pytest.raises(ValueError):
        exact(np.ones(shape), 1.0, dimension=3)


def test_sums_that_could_overflow_are_refused():
    with pytest.raises(PrivacyConfigurationError, match="units"):
        check_units(MAX_UNITS)
    check_units(MAX_UNITS - 1)
    assert (MAX_UNITS - 1) * RESOLUTION + 60 * 2**56 < 2**63  # the largest noise is 60 sd away


# -- the penalty test on a grid ---------------------------------------------------------------


def accept_probability(ratio, sigma, step):
    """E min(1, exp(λ + ξ - σ²/2)) for discrete Gaussian ξ on multiples of `step`, summed exactly."""
    k = np.arange(-math.ceil(14 * sigma / step), math.ceil(14 * sigma / step) + 1)
    xi = k * step
    mass = np.exp(-(xi**2) / (2 * sigma**2))
    return math.fsum(mass * np.exp(np.minimum(0, ratio + xi - sigma**2 / 2))) / math.fsum(mass)


def identity_gap(ratio, sigma, step):
    forward = accept_probability(ratio, sigma, step)
    return abs(forward - math.exp(ratio) * accept_probability(-ratio, sigma, step))


@pytest.mark.parametrize("sigma", [0.37, 1.1, 2.3])
def test_the_penalty_test_is_reversible_up_to_the_square_of_the_grid_step(sigma):
    """E min(1, e^(λ+ξ-σ²/2)) = e^λ E min(1, e^(-λ+ξ-σ²/2)) up to O(h²).

    The kink of min(1, ·) costs a sum on a grid of step h at most h²/12 times the density there
    (Euler and Maclaurin).
    """
    ratios = np.random.default_rng(0).uniform(-3, 3, 40) * sigma
    for m in range(2, 10):
        step = sigma / 2**m
        bound = step**2 / (12 * sigma * math.sqrt(2 * math.pi))
        gap = max(identity_gap(r, sigma, step) / (1 + math.exp(r)) for r in ratios)
        assert 0.05 * bound < gap <= bound
    # The package's grid, h = σ / (2 z R): at any z that anybody can use, far below a float's ulp.
    assert (1 / (2 * 0.01 * RESOLUTION)) ** 2 / 12 < 2**-43


@pytest.mark.parametrize("sigma", [0.1, 1.0, 3.0])
def test_acceptance_at_equal_density_is_that_of_the_penalty_test(sigma):
    assert acceptance_at_equal_density(sigma) == pytest.approx(
        accept_probability(0.0, sigma, sigma / 2**10), rel=1e-6
    )
