"""Secret samples: their distribution, exactly where it can be had, and where their randomness is from."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, count

import numpy as np
import pytest
from scipy import stats

from pymc_dp.checks import MIN_RATE, check_rate
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise
from pymc_dp.privacy.noisy_sum import secret_words
from pymc_dp.privacy.subsampling import (
    accounted_rate,
    fixed_size_sample,
    poisson_sample,
)

RARE = 1e-4  # seeds are fixed: a test that passes once passes always
LARGEST = 2**64 - 1


def stream(seed):
    rng = np.random.default_rng(seed)
    return lambda size: rng.integers(2**64, size=size, dtype=np.uint64)


def indicators(draw, units, repeats):
    """Who was in, shape (repeats, units); each sample checked for order and range."""
    found = np.zeros((repeats, units))
    for row in found:
        sample = draw()
        assert sample.dtype == np.int64
        assert (np.diff(sample) > 0).all()
        assert len(sample) == 0 or 0 <= sample[0] <= sample[-1] < units
        row[sample] = 1
    return found


def two_sided(statistic, degrees):
    distribution = stats.chi2(degrees)
    return distribution.ppf(RARE) < statistic < distribution.isf(RARE)


# -- each unit on its own ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.02, 0.2, 1 / 3, 0.5, 0.9, 0.999])
def test_units_enter_at_the_rate_and_independently(rate):
    units, repeats, words = 40, 6000, stream(1)
    inside = indicators(lambda: poisson_sample(units, rate, words), units, repeats)
    standard = (inside - rate) / math.sqrt(rate * (1 - rate))
    assert two_sided((standard.sum(axis=0) ** 2 / repeats).sum(), units)
    # Sums of products of two: independent units, and with unit variance, so nearly chi-square.
    products = (standard.T @ standard)[np.triu_indices(units, 1)] / math.sqrt(repeats)
    assert abs(products.mean() * math.sqrt(len(products))) < 4
    if rate * (1 - rate) * repeats > 500:
        assert two_sided((products**2).sum(), len(products))


@pytest.mark.parametrize(("units", "rate"), [(1, 0.3), (7, 0.5), (60, 0.1), (300, 0.01), (30, 0.9)])
def test_sizes_are_binomial(units, rate):
    words, repeats = stream(2), 6000
    sizes = np.array([len(poisson_sample(units, rate, words)) for _ in range(repeats)])
    mass = stats.binom(units, rate).pmf(np.arange(units + 1)) * repeats
    cells = np.flatnonzero(mass > 20)
    low, high = cells[0], cells[-1]
    expected = np.bincount(np.clip(np.arange(units + 1), low, high) - low, weights=mass)
    observed = np.bincount(np.clip(sizes, low, high) - low, minlength=len(expected))
    assert stats.chisquare(observed, expected * repeats / expected.sum()).pvalue > RARE


@pytest.mark.parametrize("rate", [0.04, 0.3, 0.7])
def test_gaps_are_geometric_past_the_length_at_which_they_are_cut(rate):
    words, units = stream(3), 400_000
    gaps = np.diff(poisson_sample(units, rate, words))
    longest = int(stats.geom(rate).isf(30 / len(gaps)))
    assert longest > 3 / rate  # several cuts long
    mass = stats.geom(rate).pmf(np.arange(1, longest))
    expected = len(gaps) * np.append(mass, 1 - mass.sum())
    observed = np.bincount(np.minimum(gaps, longest), minlength=longest + 1)[1:]
    assert stats.chisquare(observed, expected).pvalue > RARE
    # One gap says nothing about the next.
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) * math.sqrt(len(gaps)) < 4


def first_unit(rate, numerator):
    """Whom the uniform number `numerator` / 2^53 picks, all further ones being as large as can be."""
    words = iter([np.uint64(numerator << 11)])

    def supply(size):
        return np.array([next(words, np.uint64(LARGEST)) for _ in range(size)], dtype=np.uint64)

    sample = poisson_sample(math.ceil(1 / rate), rate, supply)
    return int(sample[0]) if len(sample) else math.inf


def numerators_below(rate, unit):
    """How many of the 2^53 uniform numbers pick a unit before `unit`."""
    low, high = 0, 2**53
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if first_unit(rate, middle) >= unit else (middle + 1, high)
    return low


@pytest.mark.parametrize("rate", [MIN_RATE, 1e-5, 0.003, 0.1, 1 / 3, 0.5, 0.75, 1 - 2e-6, 1 - 1e-9])
def test_the_accounted_rate_covers_what_floating_point_makes_of_the_rate(rate):
    """Exactly: of the uniform numbers that reach a unit, the share that picks it."""
    longest = math.ceil(1 / rate)
    for unit in sorted({0, 1, longest // 3, longest - 2, longest - 1} & set(range(longest))):
        before, until = numerators_below(rate, unit), numerators_below(rate, unit + 1)
        share = Fraction(until - before, 2**53 - before)
        q = Fraction(rate)  # close to 1, few numbers are left past the first unit
        assert abs(share / q - 1) < Fraction(1, 2**48) / q / (1 - q)
        assert share <= Fraction(accounted_rate(rate))


@pytest.mark.parametrize("rate", [MIN_RATE, 0.1, 0.5])
def test_a_number_past_the_cut_picks_nobody(rate):
    assert numerators_below(rate, math.ceil(1 / rate)) < 2**53
    assert first_unit(rate, 2**53 - 1) == math.inf


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.4])
def test_a_sample_goes_on_where_the_words_ran_out(rate):
    """Zeros pick every unit, until all words are used up; then more are asked for. Nobody is skipped."""
    asked = []
    sample = poisson_sample(
        3000, rate, lambda size: asked.append(size) or np.zeros(size, dtype=np.uint64)
    )
    np.testing.assert_array_equal(sample, np.arange(3000))
    assert len(asked) > 1


def test_a_sample_goes_on_after_a_cut_at_the_end_of_the_words():
    """The last word of the first supply skips as many units as a gap may be long."""
    asked = []

    def words(size):
        asked.append(size)
        supply = np.zeros(size, dtype=np.uint64)
        if len(asked) == 1:
            supply[-1] = LARGEST
        return supply

    sample = poisson_sample(2000, 0.25, words)
    skipped = asked[0] - 1 + np.arange(4)
    np.testing.assert_array_equal(sample, np.setdiff1d(np.arange(2000), skipped))


def test_accounted_rate():
    for rate in np.geomspace(MIN_RATE, 1, 50):
        assert rate < accounted_rate(rate) <= rate * (1 + 2e-6) or accounted_rate(rate) == 1
        assert accounted_rate(rate) <= 1
    assert accounted_rate(1.0) == 1.0


def test_rate_one_is_everybody_and_asks_for_no_randomness():
    np.testing.assert_array_equal(poisson_sample(5, 1.0, None), np.arange(5))


def test_a_tiny_rate_takes_time_for_the_sample_only():
    asked = []
    words = stream(4)
    sample = poisson_sample(2**36, MIN_RATE, lambda size: asked.append(size) or words(size))
    expected = 2**36 * MIN_RATE
    assert abs(len(sample) - expected) < 5 * math.sqrt(expected)
    assert stats.kstest(sample / 2**36, "uniform").pvalue > RARE
    assert sum(asked) < 3 * expected


@pytest.mark.parametrize("rate", [0, -0.1, 1.001, math.nan, math.inf, 1e-8, "0.5", None, True])
def test_rates_out_of_range_are_refused_by_name(rate):
    with pytest.raises(PrivacyConfigurationError, match="`sampling_rate`"):
        check_rate("sampling_rate", rate)


@pytest.mark.parametrize("rate", [1, 0.5, MIN_RATE, np.float64(0.25)])
def test_rates_in_range(rate):
    assert check_rate("rate", rate) == rate
    assert type(check_rate("rate", rate)) is float


# -- a fixed number of them -------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "size"), [(6, 3), (7, 1), (5, 4), (8, 2)])
def test_every_subset_is_equally_likely(units, size):
    words, subsets = stream(5), list(combinations(range(units), size))
    repeats = 300 * len(subsets)
    seen = Counter(tuple(fixed_size_sample(units, size, words).tolist()) for _ in range(repeats))
    assert set(seen) <= set(subsets)
    assert stats.chisquare([seen[s] for s in subsets]).pvalue > RARE


def test_inclusion_in_large_samples():
    units, size, repeats, words = 50, 20, 4000, stream(6)
    inside = indicators(lambda: fixed_size_sample(units, size, words), units, repeats)
    assert (inside.sum(axis=1) == size).all()
    share = size / units
    standard = (inside - share) / math.sqrt(share * (1 - share))
    # They add up to a constant, so 49 degrees of freedom, of a little larger size.
    assert two_sided((standard.sum(axis=0) ** 2).sum() / repeats * (units - 1) / units, units - 1)
    pairs = (inside.T @ inside)[np.triu_indices(units, 1)] / repeats
    exact = share * (size - 1) / (units - 1)
    assert abs(pairs.mean() - exact) < 1e-12
    assert np.abs(pairs - exact).max() < 5 * math.sqrt(exact / repeats)


def test_words_past_the_last_whole_multiple_are_thrown_away():
    """What is left of 2^64 would favour small numbers."""
    units = 3 << 61  # 2^64 is two and two thirds of it
    limit = 2 * units - 1
    supply = iter([limit + 1, LARGEST, limit, 5, units + 5, 7, 7, units])

    def words(size):
        fresh = [next(supply, LARGEST) for _ in range(size)]
        return np.array(fresh, dtype=np.uint64)

    np.testing.assert_array_equal(fixed_size_sample(units, 4, words), [0, 5, 7, units - 1])


@pytest.mark.parametrize("units", [1, 2, 64, 1000])
def test_all_of_them_and_one_of_them(units):
    words = stream(7)
    np.testing.assert_array_equal(fixed_size_sample(units, units, words), np.arange(units))
    assert len(fixed_size_sample(units, 1, words)) == 1


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_a_large_share_does_not_ask_for_words_over_and_over(share):
    """Collecting the last missing units by luck takes log n times as many as there are."""
    asked, words, units = [], stream(8), 20_000
    fixed_size_sample(units, int(share * units), lambda size: asked.append(size) or words(size))
    assert sum(asked) < 3 * units


# -- where the randomness is from -------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw", [lambda w: poisson_sample(500, 0.1, w), lambda w: fixed_size_sample(500, 50, w)]
)
def test_a_seeded_sample_is_a_function_of_seed_and_address(draw):
    def at(seed, *address):
        return tuple(draw(secret_words(InsecureSeededNoise(seed), address)))

    assert at(1, 0, 3, 0) == at(1, 0, 3, 0)
    different = {at(1, 0, 3, 0), at(2, 0, 3, 0), at(1, 1, 3, 0), at(1, 0, 4, 0), at(1, 0, 3, 1)}
    assert len(different) == 5


@pytest.mark.parametrize(
    "draw", [lambda w: poisson_sample(500, 0.1, w), lambda w: fixed_size_sample(500, 50, w)]
)
def test_a_secure_sample_is_fresh_each_time_and_deaf_to_seeds(draw):
    samples = set()
    for _ in range(3):
        np.random.seed(0)
        samples.add(tuple(draw(secret_words(SecureNoise(), (0, 0, 0)))))
    assert len(samples) == 3


def test_secure_words_are_uniform():
    words = SecureNoise().words(200_000)
    assert words.dtype == np.uint64
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(axis=0, dtype=np.int64)
    rare = 1e-11  # it cannot be seeded
    assert (np.abs(bits - 1e5) < stats.norm.isf(rare) * math.sqrt(5e4)).all()
    assert len(np.unique(words)) == len(words)


def test_forked_children_draw_different_words(in_fork):
    children = [in_fork(lambda: SecureNoise().words(4).tolist()) for _ in range(2)]
    assert children[0] != children[1]


class Recorder(InsecureSeededNoise):
    """A source that remembers what it was asked for; its first words are all zero."""

    def __init__(self, seed):
        super().__init__(seed)
        self.addresses, self.given = [], []

    def words(self, size, at=()):
        self.addresses.append(at)
        fresh = super().words(size, at) if len(self.addresses) > 1 else np.zeros(size, np.uint64)
        self.given.append(fresh)
        return fresh


@pytest.mark.parametrize(
    "draw", [lambda w: poisson_sample(5000, 0.05, w), lambda w: fixed_size_sample(5000, 200, w)]
)
def test_words_that_run_out_are_not_used_again(draw):
    """All-zero words pick the same unit, or the next one, again and again: more are needed."""
    noise = Recorder(9)
    draw(secret_words(noise, (2, 7, 1)))
    assert len(noise.addresses) > 1
    assert len(set(noise.addresses)) == len(noise.addresses)
    assert all(at[:3] == (2, 7, 1) for at in noise.addresses)
    assert len({tuple(fresh) for fresh in noise.given}) == len(noise.given)


def test_samples_and_noise_share_no_randomness():
    """At the same address: the uniform numbers behind the noise would correlate with it, or with its size."""
    source, repeats = InsecureSeededNoise(10), 3000
    at = [(0, i, 0) for i in range(repeats)]
    noise = np.array([source.discrete_gaussian(2.0**27, 1, a)[0] / 2**27 for a in at])
    words = np.array([stats.norm.ppf((int(source.words(1, a)[0]) + 0.5) / 2**64) for a in at])
    for z in (noise, stats.norm.ppf(2 * stats.norm.cdf(np.abs(noise)) - 1)):
        assert abs((z * words).sum()) / math.sqrt(repeats) < 4
    assert not np.isin(
        source.words(50, (0, 0, 0, 0)),
        np.random.default_rng([10, 0, 0, 0]).integers(2**64, size=200, dtype=np.uint64),
    ).any()


def test_successive_calls_of_the_words_of_a_release_differ():
    words, calls = secret_words(InsecureSeededNoise(1), (0, 0, 0)), count()
    seen = {tuple(words(8)) for _ in range(20) if next(calls) < 20}
    assert len(seen) == 20
