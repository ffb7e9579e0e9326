"""mmd, against its formula written out."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

RNG = np.random.default_rng(0)


def naive(x, y, rng):
    """Every pair in one matrix; the same pairs for the width."""
    pairs = x[rng.integers(len(x), size=500)] - y[rng.integers(len(y), size=500)]
    s = np.median(np.linalg.norm(pairs, axis=1))

    def k(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(axis=-1) / (2 * s**2))

    off = [k(z, z)[~np.eye(len(z), dtype=bool)].mean() for z in (x, y)]
    return np.sqrt(abs(sum(off) - 2 * k(x, y).mean()))


@pytest.mark.parametrize("d", [1, 3, 30])
@pytest.mark.parametrize("sizes", [(2, 3), (255, 256), (257, 600)])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_it_is_the_formula(d, sizes, shift):
    x, y = (RNG.normal(size=(n, d)) for n in sizes)
    y = y + shift
    # The square root of what is nearly 0 keeps half of the digits.
    assert dp.mmd(x, y, rng=5) == pytest.approx(naive(x, y, np.random.default_rng(5)), abs=1e-7)


@pytest.mark.parametrize("block", [1, 7, 100, 1000])
def test_blocks_do_not_matter(block, monkeypatch):
    x, y = RNG.normal(size=(100, 2)), RNG.normal(1, size=(90, 2))
    expected = dp.mmd(x, y)
    monkeypatch.setitem(dp.mmd.__globals__, "_BLOCK", block)
    assert dp.mmd(x, y) == pytest.approx(expected, rel=1e-12)


def test_zero_for_one_distribution_and_known_for_two():
    """Exact values for normals: E k = (1 + v/s²)^(-d/2) e^(-m²/2(s²+v)), v the variance of x - y."""
    squared = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 400, 2))
        value = dp.mmd(x, y, rng=seed)
        assert value < 0.12
        squared.append(value)
    assert np.mean(squared) < 0.04

    x, y = np.random.default_rng(1).normal(size=(2, 4000, 1))
    y = y + 1
    rng = np.random.default_rng(0)
    pairs = x[rng.integers(4000, size=500)] - y[rng.integers(4000, size=500)]
    s2 = np.median(np.abs(pairs)) ** 2
    exact = np.sqrt(2 * (1 + 2 / s2) ** -0.5 * (1 - np.exp(-1 / (2 * (s2 + 2)))))
    assert dp.mmd(x, y) == pytest.approx(exact, abs=0.03)


def test_shifts_rotations_and_units_do_not_matter():
    x, y = RNG.normal(size=(300, 3)), RNG.normal(0.3, size=(200, 3))
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    expected = dp.mmd(x, y)
    for change in (lambda z: z + 1e6, lambda z: z @ turn, lambda z: 1e-8 * z, lambda z: 1e8 * z):
        assert dp.mmd(change(x), change(y)) == pytest.approx(expected, rel=1e-6)
    assert dp.mmd(y, x) == pytest.approx(expected, rel=0.1)  # other pairs, other width


@pytest.mark.sweep
def test_ten_thousand_draws_need_no_large_matrix():
    import tracemalloc

    x, y = RNG.normal(size=(2, 10_000, 2))
    tracemalloc.start()
    dp.mmd(x, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_one_column_and_seeds():
    x, y = RNG.normal(size=(2, 50))
    assert dp.mmd(x, y) == dp.mmd(x[:, None], y[:, None]) == dp.mmd(x, y, rng=0)
    assert dp.mmd(x, y, rng=1) == dp.mmd(x, y, rng=np.random.default_rng(1)) != dp.mmd(x, y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((5, 2)), np.zeros((5, 3)), "columns"),
        (np.zeros((5, 2)), np.zeros((5, 2)), "same point"),
        (np.zeros((1, 2)), np.zeros((5, 2)), "`x` must have the shape"),
        (np.zeros((5, 2)), np.zeros((5, 2, 2)), "`y` must have the shape"),
        (np.ones((5, 1)), np.array([1.0, np.nan]), "`y` contains NaN"),
    ],
)
def test_what_cannot_be_compared(x, y, message):
    with pytest.raises(ValueError, match=message):
        dp.mmd(x, y)


def test_sampling_results(quiet):
    with pm.Model():
        pm.Normal("a", 0, 1, shape=(2, 2))
        b = pm.Normal("b", 0, 1)
        pm.Deterministic("c", 2 * b)
        settings = {"tune": 0, "chains": 2, **quiet, "compile_kwargs": {"mode": "FAST_COMPILE"}}
        one, two = (pm.sample(20, step=pm.Metropolis(), random_seed=s, **settings) for s in (1, 2))

    def columns(result, *names):
        posterior = result["posterior"]
        return np.column_stack([posterior[n].values.reshape(40, -1) for n in names])

    # Variables are stacked in the order that they have in the posterior.
    names = list(one["posterior"].data_vars)
    assert dp.mmd(one, two) == dp.mmd(columns(one, *names), columns(two, *names))
    assert dp.mmd(one, two, var_names=["b"]) == dp.mmd(columns(one, "b"), columns(two, "b"))
    assert dp.mmd(one, columns(two, "b"), var_names=["b"]) == dp.mmd(one, two, var_names=["b"])
    with pytest.raises(ValueError, match="has no \\['d'\\]"):
        dp.mmd(one, two, var_names=["d"])
