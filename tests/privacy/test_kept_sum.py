"""The kept sum: its sensitivity to the last integer, its noise, and when it reads data."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.kept_sum import KeptSum, direction
from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise
from pymc_dp.privacy.plans import Permit


def permit(z, iteration=0):
    return Permit(0, iteration, (Gaussian(z),))


class Records:
    """Vectors that can be pickled, and know how often they were read."""

    def __init__(self, *chunks):
        self.chunks, self.reads = chunks, 0

    def __call__(self):
        self.reads += 1
        return iter(self.chunks)


def exact(vectors, along):
    return KeptSum(Records(vectors), vectors.shape[1]).release(
        along, noise_multiplier=0, permit=permit(0), noise=InsecureSeededNoise(0)
    )


def box_spread(g):
    return 2 * float(np.abs(g).sum())


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("magnitude", [1e-150, 1e-6, 1.0, 3e5, 1e150])
def test_without_noise_it_is_the_projected_sum(size, magnitude):
    rng = np.random.default_rng(size)
    vectors = rng.uniform(-1, 1, size=(400, size))
    for _ in range(20):
        g = magnitude * rng.normal(size=size) * 10.0 ** rng.uniform(-6, 0, size=size)
        along = direction(g, box_spread(g), 1)
        tolerance = (len(vectors) + 2) * np.abs(g).sum() / RESOLUTION
        assert abs(exact(vectors, along) - math.fsum(vectors @ g)) < tolerance


def test_both_directions_of_a_move_are_opposite_to_the_last_bit():
    rng = np.random.default_rng(0)
    vectors = rng.uniform(-1, 1, size=(200, 3))
    for _ in range(50):
        g = rng.normal(size=3)
        there, back = direction(g, box_spread(g), 1), direction(-g, box_spread(-g), 1)
        assert there.bound == back.bound
        assert exact(vectors, there) == -exact(vectors, back)


def released_integer(vectors, along):
    return round(exact(vectors, along) / (along.bound / RESOLUTION))


@pytest.mark.parametrize("records_per_unit", [1, 4])
def test_replacing_a_unit_moves_the_integer_by_at_most_two_resolutions(records_per_unit):
    """Brute force: worst corners, worst roundings, awkward directions; and the bound is attained."""
    rng = np.random.default_rng(3)
    m, closest = records_per_unit, 0.0
    for _ in range(400):
        size = int(rng.integers(1, 6))
        g = rng.normal(size=size) * 10.0 ** rng.uniform(-9, 0, size=size)
        along = direction(g, box_spread(g), m)
        others = rng.uniform(-1, 1, size=(5, size))
        worst = np.sign(g) * np.ones((m, size))
        # The second is a grid's width inside, where both roundings count.
        for new, old in [
            (worst, -worst),
            (worst * (1 - 0.5 / RESOLUTION), -worst),
            (rng.uniform(-1, 1, (m, size)), rng.uniform(-1, 1, (m, size))),
            (np.full((m, size), np.inf), np.full((m, size), np.nan)),
        ]:
            moved = abs(
                released_integer(np.vstack([others, new]), along)
                - released_integer(np.vstack([others, old]), along)
            )
            assert moved <= 2 * RESOLUTION
            closest = max(closest, moved / (2 * RESOLUTION))
    assert closest > 1 - 1e-6


def test_on_a_curve_the_rounding_of_a_records_statistics_is_paid_for():
    """S = (x, x²): its extremes along g fall between the grid's points, where rounding may add to them."""
    rng = np.random.default_rng(8)
    for _ in range(300):
        g = rng.normal(size=2) * [1.0, 3.0]
        a, b = np.abs(g)
        if a >= 2 * b:
            continue
        vertex = -g[0] / (2 * g[1])
        end = -1.0 if vertex > 0 else 1.0
        along = direction(g, a + b + a * a / (4 * b), 1)
        new, old = ([[x, x * x]] for x in (vertex, end))
        for _ in range(10):
            others = rng.uniform(-1, 1, size=(3, 2))
            moved = released_integer(np.vstack([others, new]), along)
            moved -= released_integer(np.vstack([others, old]), along)
            assert abs(moved) <= 2 * RESOLUTION


def test_an_understated_spread_is_noticed_by_the_check_above():
    g = np.array([1.0, 2.0])
    along = direction(g, box_spread(g) / 2, 1)
    moved = released_integer(np.ones((1, 2)), along) - released_integer(-np.ones((1, 2)), along)
    assert moved > 2 * RESOLUTION


@pytest.mark.parametrize(
    ("noise", "repeats"), [(InsecureSeededNoise(1), 6000), (SecureNoise(), 1500)]
)
@pytest.mark.parametrize("z", [0.02, 30.0])
def test_the_noise_has_the_standard_deviation_that_is_paid_for(noise, repeats, z):
    g = np.array([0.3, -0.01])
    along = direction(g, box_spread(g), 2)
    vectors = np.random.default_rng(5).uniform(-1, 1, size=(30, 2))
    kept = KeptSum(Records(vectors), 2)
    released = [
        kept.release(along, noise_multiplier=z, permit=permit(z, i), noise=noise)
        for i in range(repeats)
    ]
    x = (np.array(released) - exact(vectors, along)) / (z * 2 * along.bound)
    assert along.bound == pytest.approx(2 * 0.31, rel=1e-6)
    assert abs(x.sum() / math.sqrt(x.size)) < stats.norm.isf(1e-11)
    assert stats.chi2(x.size).ppf(1e-11) < np.sum(x**2) < stats.chi2(x.size).isf(1e-11)
    assert stats.kstest(x, "norm").pvalue > 1e-11


def test_records_are_read_once_and_only_after_the_permit_is_taken():
    records = Records(np.ones((3, 1)))
    kept = KeptSum(records, 1)
    along = direction(np.ones(1), 2.0, 1)
    noise = InsecureSeededNoise(0)
    paid = permit(1.0)
    for wrong in (permit(2.0), Permit(0, 0, ())):
        with pytest.raises(PrivacyBudgetExceeded):
            kept.release(along, noise_multiplier=1.0, permit=wrong, noise=noise)
    assert records.reads == 0
    kept.release(along, noise_multiplier=1.0, permit=paid, noise=noise)
    with pytest.raises(PrivacyBudgetExceeded):
        kept.release(along, noise_multiplier=1.0, permit=paid, noise=noise)
    kept.release(along, noise_multiplier=1.0, permit=permit(1.0, 1), noise=noise)
    assert records.reads == 1


def test_zero_noise_needs_an_insecure_source():
    kept = KeptSum(Records(np.ones((3, 1))), 1)
    along = direction(np.ones(1), 2.0, 1)
    with pytest.raises(PrivacyConfigurationError, match="noise_multiplier"):
        kept.release(along, noise_multiplier=0.0, permit=permit(0.0), noise=SecureNoise())


def test_the_sum_does_not_travel():
    kept = KeptSum(Records(np.full((3, 1), 0.123)), 1)
    along = direction(np.ones(1), 2.0, 1)
    kept.release(along, noise_multiplier=1.0, permit=permit(1.0), noise=InsecureSeededNoise(0))
    assert kept._total == [3 * round(0.123 * RESOLUTION)]
    assert pickle.loads(pickle.dumps(kept))._total is None
