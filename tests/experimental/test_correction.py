"""The Barker correction: a probability distribution, and as close to the logistic as it says."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.experimental.correction import LOGISTIC_VARIANCE, logistic_correction

VARIANCES = [0.01, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.2, math.nextafter(LOGISTIC_VARIANCE, 0)]


def difference(correction, x):
    """CDF of N(0, C) + V less that of the logistic, by scipy.stats."""
    sd = math.sqrt(correction.variance + correction.spread)
    terms = correction.weights * stats.norm.cdf(x[:, None], correction.atoms, sd)
    return terms.sum(axis=1) - stats.logistic.cdf(x)


@pytest.mark.parametrize("variance", VARIANCES)
def test_is_a_symmetric_distribution(variance):
    correction = logistic_correction(variance)
    assert (correction.weights > 0).all()
    assert correction.weights.sum() == pytest.approx(1, abs=1e-14)
    assert (np.diff(correction.atoms) > 0).all()
    np.testing.assert_array_equal(correction.atoms, -correction.atoms[::-1])
    np.testing.assert_array_equal(correction.weights, correction.weights[::-1])


@pytest.mark.parametrize("variance", VARIANCES)
def test_error_is_a_bound_and_a_sharp_one(variance):
    correction = logistic_correction(variance)
    x = np.append(np.random.default_rng(1).uniform(-30, 30, 20_000), np.linspace(-200, 200, 401))
    largest = np.abs(difference(correction, x)).max()
    assert largest <= correction.cdf_error <= 1.001 * largest + 1e-7


# The least error of any V at C = 1.5, 2 and 2.5, from benchmarks/barker_correction.py; above
# C = 2.9 it is that of N(0, C) itself.
@pytest.mark.parametrize(
    ("variance", "most"),
    [(0.01, 2e-7), (0.5, 2e-7), (1.0, 2e-7), (1.5, 2.75e-5), (2.0, 5.89e-4), (2.5, 3.54e-3)],
)
def test_error_is_near_the_least_possible(variance, most):
    assert logistic_correction(variance).cdf_error < most


def test_no_correction_at_the_upper_end():
    correction = logistic_correction(3.2)
    np.testing.assert_array_equal(correction.atoms, [0.0])
    assert correction.draw(np.random.default_rng(1)) == 0


def test_error_grows_with_the_variance():
    errors = [logistic_correction(variance).cdf_error for variance in VARIANCES]
    assert (np.diff(errors) > -2e-7).all()


def test_small_variances_are_made_up_to_one_half():
    correction = logistic_correction(0.125)
    assert correction.spread == 0.375
    np.testing.assert_array_equal(correction.atoms, logistic_correction(0.5).atoms)


@pytest.mark.parametrize("variance", [0.1, 1.0, 2.0])
def test_draws_and_noise_add_up_to_a_logistic(variance):
    correction, rng, count = logistic_correction(variance), np.random.default_rng(7), 20_000
    draws = np.array([correction.draw(rng) for _ in range(count)])
    total = draws + rng.normal(0, math.sqrt(variance), count)
    # Dvoretzky–Kiefer–Wolfowitz, one in a million.
    chance = math.sqrt(math.log(2e6) / (2 * count))
    assert stats.kstest(total, "logistic").statistic < correction.cdf_error + chance


def test_draws_depend_on_the_generator_alone():
    correction = logistic_correction(2.0)
    first, second = (
        [correction.draw(rng) for _ in range(50)]
        for rng in (np.random.default_rng(3), np.random.default_rng(3))
    )
    assert first == second
    assert set(first) <= set(correction.atoms)


def test_acceptance_is_symmetric():
    x = np.linspace(0, 40, 1001)
    correction = logistic_correction(2.0)
    np.testing.assert_allclose(difference(correction, x), -difference(correction, -x), atol=1e-15)


def test_computed_once_and_read_only():
    correction = logistic_correction(2.0)
    assert logistic_correction(2) is correction
    assert logistic_correction(np.float64(2)) is correction
    with pytest.raises(ValueError, match="read-only"):
        correction.weights[0] = 1
    assert pickle.loads(pickle.dumps(correction)).cdf_error == correction.cdf_error


@pytest.mark.parametrize(
    "variance",
    [
        0,
        -1.0,
        math.nan,
        math.inf,
        LOGISTIC_VARIANCE,
        4,
        True,
        np.True_,
        "2",
        None,
        [2.0],
        1j,
        np.complex128(2),
    ],
)
def test_refuses(variance):
    with pytest.raises(PrivacyConfigurationError, match="below π²/3 = 3"):
        logistic_correction(variance)
