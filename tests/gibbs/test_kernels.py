"""The record sweep, beside a plain loop and its stationary law."""

from itertools import product

import numba
import numpy as np
import pytest

from pymc_dp.gibbs.kernels import make_sweep, sweep


def plain_sweep(T, t, t_new, waiting, log_g):
    accepted, probabilities, ratios = [], [], [0.0]
    for old, new, wait in zip(t, t_new, waiting, strict=True):
        ratio = log_g(T - old + new) - log_g(T)
        accepted.append(-wait < ratio)
        probabilities.append(min(1, np.exp(ratio)))
        ratios.append(ratio)
        if accepted[-1]:
            T = T - old + new
    return np.array(accepted), sum(probabilities), min(ratios), T


@pytest.fixture
def inputs():
    rng = np.random.default_rng(2)
    n, m = 40, 3
    t, t_new = rng.normal(size=(2, n, m))
    s = rng.normal(size=m)
    w1, w2 = np.array([1.5, 0.0, 0.7]), np.array([0.0, 2.0, 0.4])
    return t, t_new, rng.standard_exponential(n), s, w1, w2


def test_sweep_is_the_plain_loop(inputs):
    t, t_new, waiting, s, w1, w2 = inputs

    def log_g(T):
        return -(w1 * np.abs(s - T) + w2 * (s - T) ** 2).sum()

    T, accepted = t.sum(0), np.empty(len(t), bool)
    probability, smallest = sweep(T, t, t_new, waiting, s, w1, w2, accepted)
    expected = plain_sweep(t.sum(0), t, t_new, waiting, log_g)
    np.testing.assert_array_equal(accepted, expected[0])
    assert 0 < accepted.sum() < len(t)
    np.testing.assert_allclose([probability, smallest], expected[1:3])
    np.testing.assert_allclose(T, expected[3])
    np.testing.assert_allclose(T, np.where(accepted[:, None], t_new, t).sum(0))


@pytest.mark.sweep
def test_sweep_of_any_density_is_the_same(inputs):
    t, t_new, waiting, s, w1, w2 = inputs

    @numba.njit
    def log_g(T):
        return (np.array(-(w1 * np.abs(s - T) + w2 * (s - T) ** 2).sum()),)

    results = []
    for run in (lambda *a: make_sweep(log_g)(*a), lambda *a: sweep(*a[:4], s, w1, w2, a[4])):
        T, accepted = t.sum(0), np.empty(len(t), bool)
        results.append((*run(T, t, t_new, waiting, accepted), *T, *accepted))
    np.testing.assert_allclose(*results)


def test_records_of_zero_density_are_not_taken(inputs):
    t, t_new, waiting, s, w1, w2 = inputs
    t_new[:10] = np.inf
    t_new[10:20] = np.nan
    accepted = np.empty(len(t), bool)
    sweep(t.sum(0), t, t_new, waiting, s, w1, w2, accepted)
    assert not accepted[:20].any()
    assert accepted[20:].any()


def test_sweep_leaves_the_conditional_law_invariant():
    """Exact transition matrix of one sweep over three Bernoulli records."""
    p, b, s = 0.3, 1.2, np.array([2.6])
    weights = (np.array([1 / b]), np.zeros(1))
    states = np.array(list(product([0.0, 1.0], repeat=3)))
    prior = np.prod(np.where(states == 1, p, 1 - p), axis=1)
    target = prior * np.exp(-np.abs(s - states.sum(1)) / b)
    target /= target.sum()
    matrix = np.eye(8)
    for record in range(3):
        step = np.zeros((8, 8))
        for i, state in enumerate(states):
            for offer in (0.0, 1.0):
                offered = state.copy()
                offered[record] = offer
                j = int(offered @ [4, 2, 1])
                accepted = np.empty(1, bool)
                T = np.array([state.sum()])
                t, t_new = np.array([[state[record]]]), np.array([[offer]])
                probability, _ = sweep(T, t, t_new, np.ones(1), s, *weights, accepted)
                chance = p if offer == 1 else 1 - p
                step[i, j] += chance * probability
                step[i, i] += chance * (1 - probability)
        matrix = matrix @ step
    np.testing.assert_allclose(target @ matrix, target, rtol=1e-12)
    assert np.abs(prior @ matrix - prior).max() > 0.01


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_acceptance_of_pure_mechanisms(epsilon):
    """Proposition 3.1: at least e^-ε, and for opposite corners exactly that."""
    rng = np.random.default_rng(1)
    n, m = 200, 4
    t, t_new = rng.uniform(-1, 1, size=(2, n, m))
    t[0], t_new[0] = 1, -1
    s = np.full(m, 1e3)
    w1 = np.full(m, epsilon / (2 * m))
    _, smallest = sweep(t.sum(0), t, t_new, np.full(n, np.inf), s, w1, 0 * w1, np.empty(n, bool))
    np.testing.assert_allclose(smallest, -epsilon, rtol=1e-9)
