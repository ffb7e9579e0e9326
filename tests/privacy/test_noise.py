"""Noise sources. The secure one cannot be seeded: its bounds fail with probability < 1e-9."""

import random
from itertools import product

import numpy as np
import pytest
from scipy import stats

from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise

RARE = 1e-11


@pytest.mark.parametrize("scale", [25.0, 2.0**27, 1e6 / 3, 2.0**55])
def test_secure_noise_has_the_mean_and_the_variance_it_claims(scale):
    x = SecureNoise().discrete_gaussian(scale, 20_000).astype(float) / scale
    assert abs(x.sum() / np.sqrt(x.size)) < stats.norm.isf(RARE)
    low, high = stats.chi2(x.size).ppf(RARE), stats.chi2(x.size).isf(RARE)
    assert low < np.sum(x**2) < high


@pytest.mark.parametrize("scale", [0.7, 1.5])
def test_secure_noise_has_the_probabilities_of_the_discrete_gaussian(scale):
    n, edge = 20_000, round(2.5 * scale)
    x = np.clip(SecureNoise().discrete_gaussian(scale, n), -edge, edge)
    k = np.arange(-40, 41)
    mass = np.exp(-(k**2) / (2 * scale**2))
    cells = np.bincount(np.clip(k, -edge, edge) + edge, weights=mass / mass.sum())
    assert n * cells.min() > 50
    counts = np.bincount(x + edge, minlength=2 * edge + 1)
    assert stats.chisquare(counts, n * cells).pvalue > RARE


def test_secure_noise_is_fresh_each_time_and_deaf_to_seeds():
    draws = []
    for _ in range(2):
        np.random.seed(0)
        random.seed(0)
        draws.append(SecureNoise().discrete_gaussian(2.0**27, 16, (0, 0, 0)).tolist())
    assert draws[0] != draws[1]


def test_forked_children_draw_different_noise(in_fork):
    noise = SecureNoise()
    noise.discrete_gaussian(2.0**27, 16)  # whatever state it keeps is there before the fork
    children = [in_fork(lambda: noise.discrete_gaussian(2.0**27, 16).tolist()) for _ in range(2)]
    own = noise.discrete_gaussian(2.0**27, 16).tolist()
    assert children[0] != children[1]
    assert own not in children


def test_seeded_noise_is_a_function_of_seed_and_address():
    draw = InsecureSeededNoise(1).discrete_gaussian
    addresses = list(product(range(4), range(4), range(3)))
    noise = {at: tuple(draw(2.0**27, 8, at)) for at in addresses}
    assert len(set(noise.values())) == len(addresses)
    assert all(tuple(draw(2.0**27, 8, at)) == noise[at] for at in reversed(addresses))
    assert tuple(InsecureSeededNoise(2).discrete_gaussian(2.0**27, 8, (0, 0, 0))) not in set(
        noise.values()
    )


def test_only_the_unseeded_source_calls_itself_secure():
    assert SecureNoise().secure
    assert not InsecureSeededNoise(1).secure
    assert SecureNoise().name != InsecureSeededNoise(1).name
