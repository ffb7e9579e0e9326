"""Clipping bounds from noisy counts of sizes."""

import numpy as np
import pytest

from pymc_dp.privacy.histogram import PrivateHistogram, bin_counts
from pymc_dp.surrogate.normal.bounds import BINS_PER_OCTAVE, Tail, pooled

SD = 40.0
SMALL = 2.0**-8
"""Of sizes: in the frame in which they are counted, a unit's is about one over the root of their number."""


def counts_of(sizes):
    return bin_counts(np.asarray(sizes), BINS_PER_OCTAVE).astype(float)


def exact(number, sizes):
    """The size that so many exceed, and by how much they do, by sorting."""
    size = np.sort(sizes)[-number]
    return size, np.maximum(sizes / size - 1, 0).sum() / number


def size_exceeded_by(number, counts, sd):
    return Tail(counts, sd).exceeded_by(number)


def noisy(counts, seed, sd=SD):
    return counts + sd * np.random.default_rng(seed).standard_normal(len(counts))


@pytest.mark.parametrize("number", [30, 500, 10_000])
def test_without_noise_it_is_the_size_that_so_many_exceed(number):
    sizes = np.random.default_rng(0).lognormal(sigma=0.7, size=50_000) * SMALL
    size, excess = size_exceeded_by(number, counts_of(sizes), 0.0)
    right, beyond = exact(number, sizes)
    # Within a bin, a factor of √2 wide, sizes are taken to be spread evenly; the excess is of the size that is found.
    assert size == pytest.approx(right, rel=0.12)
    assert excess == pytest.approx(beyond, abs=0.12 * (1 + beyond) if number < 100 else 0.05)


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-3, 8.0])
def test_units_of_sizes_do_not_matter(scale):
    """By a power of two, all bins move along."""
    sizes = np.random.default_rng(1).lognormal(sigma=0.7, size=50_000) * SMALL
    size, excess = size_exceeded_by(500, counts_of(scale * sizes), 0.0)
    one, same = size_exceeded_by(500, counts_of(sizes), 0.0)
    assert (size, excess) == (pytest.approx(scale * one), pytest.approx(same))


def test_nobody_far_beyond_all_others_sets_a_bound():
    """A unit of size 1 moves the posterior by a standard deviation, alone: longer ones are clipped, however many."""
    sizes = np.where(np.arange(20_000) < 2_000, 300.0, SMALL)
    size, _ = size_exceeded_by(500, counts_of(sizes), 0.0)
    assert size < 3


def test_noise_alone_makes_no_long_tail():
    """Over 500 noises: next to none moves the bound by an octave, and most not by a bin."""
    sizes = np.random.default_rng(2).lognormal(sigma=0.5, size=20_000) * SMALL
    right, beyond = exact(600, sizes)
    found = np.array([size_exceeded_by(600, noisy(counts_of(sizes), s), SD) for s in range(500)])
    assert np.mean(found[:, 0] > 2 * right) <= 0.02
    assert np.mean(found[:, 0] < right / 2) == 0
    assert np.mean(np.abs(np.log2(found[:, 0] / right)) < 0.5) > 0.9
    assert np.median(found[:, 1]) == pytest.approx(beyond, rel=0.5)
    assert (found[:, 1] >= 0).all()
    assert (found[:, 1] <= 1).all()


def test_noise_in_a_thousand_histograms_makes_no_bound_that_ruins_a_sum():
    """Sizes are counted up to 2^30, and noise is the same in all bins."""
    sizes = np.random.default_rng(3).lognormal(sigma=0.5, size=20_000) * SMALL
    counts = counts_of(sizes)
    found = [size_exceeded_by(600, noisy(counts, s), SD)[0] for s in range(1000)]
    assert np.mean(np.array(found) > 100 * SMALL) < 0.005


@pytest.mark.parametrize("seed", range(10))
def test_a_group_beyond_a_gap_is_found(seed):
    """Records of two kinds only, as with binary covariates: most sizes are small, some 30 times larger."""
    sizes = np.where(np.arange(20_000) < 2_000, 0.3, 0.01)
    size, _ = size_exceeded_by(500, noisy(counts_of(sizes), seed), SD)
    assert 0.25 < size < 0.36  # the bin that it is in
    size, excess = size_exceeded_by(10_000, noisy(counts_of(sizes), seed), SD)
    assert 0.007 < size < 0.016
    assert excess == 1.0  # as much as can be said: a fifth of them are 30 times as long


def test_a_small_group_spread_over_bins_is_seen():
    """None of its bins stands out, all of them together do."""
    rng = np.random.default_rng(5)
    group = 2.0 ** rng.uniform(4, 6, size=480)
    sizes = np.concatenate([rng.uniform(0.5, 2.0, size=20_000), group]) * SMALL
    found = [size_exceeded_by(200, noisy(counts_of(sizes), s), SD)[0] for s in range(40)]
    assert np.mean(np.array(found) > 16 * SMALL) > 0.8


def test_units_without_size_say_nothing_of_the_others():
    """A covariate of 0 and 1: most units have no size at all."""
    sizes = np.random.default_rng(6).lognormal(sigma=0.5, size=2_000) * SMALL
    padded = np.concatenate([sizes, np.zeros(50_000)])
    assert size_exceeded_by(300, counts_of(padded), 10.0) == size_exceeded_by(
        300, counts_of(sizes), 10.0
    )


def test_histograms_of_the_same_sizes_are_pooled_by_their_noise():
    rng, sds = np.random.default_rng(7), (10.0, 30.0)
    counts = counts_of(rng.lognormal(size=1000))
    off, said = [], []
    for _ in range(200):
        both = [PrivateHistogram(counts + sd * rng.standard_normal(180), sd, 2) for sd in sds]
        mean, sd = pooled(both)
        off.append(mean - counts)
        said.append(sd)
    assert said[0] == pytest.approx((10.0**-2 + 30.0**-2) ** -0.5)
    assert np.std(off) == pytest.approx(said[0], rel=4 / np.sqrt(2 * 200 * 180))


FEW = np.random.default_rng(10).normal(0, 0.2, 200)
SIZES = {
    "light tail": np.random.default_rng(8).lognormal(sigma=0.4, size=50_000) * SMALL,
    "heavy tail": np.random.default_rng(8).lognormal(sigma=1.2, size=50_000) * SMALL,
    "a few that alone tell of a parameter": np.append(
        np.random.default_rng(9).lognormal(sigma=0.4, size=49_800) * SMALL, 0.7 * np.exp(FEW)
    ),
}


@pytest.mark.parametrize("noise", [10.0, 60.0, 300.0])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_balanced_bound_makes_noise_and_all_that_is_clipped_least(noise, sizes):
    """As by looking at all bounds, in posterior sds: units that are longer than coordinates expect know more than these."""
    bounds = np.geomspace(SMALL, sizes.max(), 2_000)
    there = np.array([np.sum(sizes[sizes > b] ** 2) for b in bounds])
    clipped = np.array([np.maximum(sizes - b, 0).sum() for b in bounds])
    clipped /= np.sqrt(np.maximum(there, 1))
    costs = (noise * bounds) ** 2 + clipped**2
    found, said = Tail(counts_of(sizes), 0.0).balanced(noise, 17_000)
    # Sizes within a bin, a factor of √2 wide, are taken to be spread evenly.
    assert np.interp(found, bounds, costs) < 1.08 * costs.min()
    if (
        sizes is not SIZES["a few that alone tell of a parameter"]
    ):  # taken to exceed it by no more than itself
        assert said == pytest.approx(np.interp(found, bounds, clipped), abs=0.25 * noise * found)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_what_units_seem_to_know_beyond_a_bound_is_added_up(sizes):
    for bound in np.quantile(sizes, [0.5, 0.9, 0.99]):
        exact = float(np.maximum(sizes - bound, 0) @ sizes)
        # Sizes within a bin, a factor of √2 wide, are its middle's.
        assert Tail(counts_of(sizes), 0.0).lost(bound) == pytest.approx(exact, rel=0.25)


def test_few_units_do_not_set_the_bound_of_all():
    """But for a tenth of their length and less, noise would be all that is known of the other parameters."""
    sizes = SIZES["a few that alone tell of a parameter"]
    assert Tail(counts_of(sizes), 0.0).balanced(20.0, 17_000)[0] < 0.5 * sizes[-200:].min()


def test_no_more_than_so_many_are_clipped():
    """However large the noise: a bound that clips nearly everybody tells next to nothing."""
    sizes = np.random.default_rng(9).lognormal(size=9_000) * SMALL
    found, _ = Tail(counts_of(sizes), 0.0).balanced(1e6, 3_000)
    assert np.sum(sizes > found) == pytest.approx(3_000, rel=0.1)
