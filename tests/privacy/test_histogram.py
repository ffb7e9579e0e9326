"""Histograms: counts, noise, quantiles."""

import numpy as np
import pytest
from scipy import stats

from pymc_dp.exceptions import PrivacyBudgetExceeded
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.histogram import (
    PrivateHistogram,
    bin_counts,
    counts_of,
    noisy_counts,
)
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit


def histogram(sizes, z=0.0, seed=0, permit=None, per_octave=2):
    counts = noisy_counts(
        lambda: counts_of(iter(sizes), per_octave),
        noise_multiplier=z,
        permit=permit or Permit(0, 0, (Gaussian(z),)),
        noise=InsecureSeededNoise(seed),
    )
    return PrivateHistogram(counts, SUBSTITUTE_ONE.count_sd(z), per_octave)


def test_quantiles_without_noise():
    sizes = np.random.default_rng(0).lognormal(size=200_000)
    h = histogram([sizes[:50_000], sizes[50_000:]], per_octave=8)
    for p in (0.05, 0.5, 0.95, 0.99):
        assert h.quantile(p) == pytest.approx(np.quantile(sizes, p), rel=0.02)
    bound = float(np.quantile(sizes, 0.9))
    assert h.excess(bound) == pytest.approx(np.maximum(sizes - bound, 0).sum(), rel=0.05)
    kept = sizes @ np.minimum(sizes, bound) / (sizes @ sizes)
    assert h.kept(bound) == pytest.approx(kept, rel=0.02)


def test_with_noise_quantiles_are_close_and_far_bins_are_left_out():
    sizes = np.random.default_rng(1).lognormal(size=50_000)
    found = [histogram([sizes], z=20.0, seed=s).quantile(0.95) for s in range(20)]
    assert np.median(found) == pytest.approx(np.quantile(sizes, 0.95), rel=0.1)
    assert max(found) < 2 * np.quantile(sizes, 0.95)


def test_groups_of_sizes_beyond_a_gap_are_seen_and_noise_is_not():
    """Records of a few kinds only, as with binary covariates: most sizes are small, some 30 times larger."""
    sizes = np.where(np.arange(20_000) < 2_000, 3.0, 0.1)
    for seed in range(20):
        h = histogram([sizes], z=20.0, seed=seed)
        assert h.quantile(0.5) == pytest.approx(0.1, rel=0.5)
        assert 3.0 < h.largest < 9.0
        assert h.excess(0.2) == pytest.approx(2_000 * 2.8, rel=0.3)


def test_a_small_group_spread_over_bins_is_seen():
    """None of its bins stands out, all of them together do."""
    rng = np.random.default_rng(5)
    seen = []
    for seed in range(20):
        group = 2.0 ** rng.uniform(1, 4, size=300)
        sizes = np.concatenate([rng.uniform(0.5, 2.0, size=20_000), group])
        seen.append(histogram([sizes], z=18.0, seed=seed).largest)
    assert np.mean(np.array(seen) >= 8) > 0.4  # bin by bin it was 0.05
    assert np.mean(np.array(seen) >= 4) > 0.8
    assert max(seen) < 64


def test_a_substituted_unit_moves_the_counts_by_root_two_at_most():
    rng = np.random.default_rng(2)
    odd = [0.0, np.nan, np.inf, -np.inf, -1.0, 1e300, 1e-300, 2.0**30, 2.0**-60]
    sizes = np.concatenate([rng.lognormal(size=50), odd])
    before = bin_counts(sizes, 2)
    assert before.sum() == len(sizes)
    for k in range(len(sizes)):
        for new in (rng.lognormal(sigma=5), *odd):
            other = sizes.copy()
            other[k] = new
            assert np.linalg.norm(bin_counts(other, 2) - before) <= np.sqrt(2) + 1e-12


def test_the_noise_has_the_stated_size():
    """z times √2, the most that one unit moves the counts by: a χ² test that a factor of 0.98 fails."""
    z, sizes = 5.0, np.full(1000, 1.0)
    noisy = [
        noisy_counts(
            lambda: counts_of(iter([sizes]), 2), noise_multiplier=z, permit=Permit(0, 0, (Gaussian(z),)),
            noise=InsecureSeededNoise(s),
        )
        for s in range(100)
    ]  # fmt: skip
    squares = ((np.array(noisy) - bin_counts(sizes, 2)) / (z * np.sqrt(2))) ** 2
    assert 0.001 < stats.chi2.cdf(squares.sum(), squares.size) < 0.999


def test_one_lucky_window_seldom_carries_the_bound_further_out():
    """With a tail followed at 2 sds instead of 3 it were 19 of these 400 noises, by up to four octaves."""
    sizes = np.random.default_rng(6).lognormal(sigma=0.5, size=20_000)
    ends = np.array([histogram([sizes], z=40.0, seed=s).largest for s in range(400)])
    assert np.mean(ends > 2 * np.median(ends)) <= 0.01
    assert np.mean(ends > np.median(ends)) <= 0.02


def test_noise_alone_puts_no_bin_far_out():
    """At 4.5 sds it were about 12 of these 40,000 histograms, each with a bound that ruins what it is for."""
    sd, rng = 40.0, np.random.default_rng(7)
    counts = np.zeros(180)
    counts[120] = 20_000
    lone = sum(
        PrivateHistogram(counts + sd * rng.standard_normal(180), sd, 2).largest > 2.0**20
        for _ in range(40_000)
    )
    assert lone <= 1
    counts[170] = 8 * sd  # and what is surely there is kept
    assert PrivateHistogram(counts, sd, 2).largest > 2.0**20


@pytest.mark.parametrize("per_octave", [1, 2, 4])
def test_edges_are_those_of_the_counts(per_octave):
    """What is read off released counts directly has the right sizes for them."""
    edges = PrivateHistogram.edges(per_octave)
    sizes = np.random.default_rng(8).lognormal(sigma=3.0, size=1000)
    h = histogram([sizes], per_octave=per_octave)
    np.testing.assert_array_equal(h.released, np.histogram(sizes, edges)[0])
    assert len(edges) == len(h.released) + 1
    assert h.sd == 0


def test_nothing_is_read_before_the_permit_is_taken():
    def sizes():
        raise AssertionError("read")
        yield

    with pytest.raises(PrivacyBudgetExceeded):
        histogram(sizes(), z=2.0, permit=Permit(0, 0, (Gaussian(1.0),)))


def test_units_without_size_do_not_hide_the_others():
    """A covariate of 0 and 1: most units have no size at all, and the others stand out of the noise, but not far."""
    sizes = np.where(np.arange(2_000) < 560, 0.25, 0.0)
    for seed in range(20):
        h = histogram([sizes], z=60.0, seed=seed)
        assert 0.15 < h.quantile(0.99) < 0.6
    assert histogram([np.zeros(2_000)], z=70.0).quantile(0.99) < 1e-12
