"""Rényi divergences: bounds never below what brute force finds, and the published ones reproduced."""

import math
from functools import partial
from itertools import combinations

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from pymc_dp.privacy.rdp import (
    ORDERS,
    barker_curve,
    gaussian_curve,
    published_barker_curve,
    rdp_count,
    rdp_epsilon,
    without_replacement,
)

SWEEP = settings(max_examples=100, deadline=None, derandomize=True, database=None)


# -- sampling without replacement -----------------------------------------------------------------


def theorem_9(curve, q, alpha):
    """The sum of Theorems 3.3 and 3.5 of Räisä (2021) as printed, in 60 digits."""
    with mpmath.workdps(60):
        q, prime = mpmath.mpf(q), lambda j: mpmath.mpf(float(curve(np.array([float(j)]))[0]))
        two = mpmath.e ** prime(2)
        total = 1 + q**2 * mpmath.binomial(alpha, 2) * min(4 * (two - 1), 2 * two)
        for j in range(3, alpha + 1):
            total += 2 * q**j * mpmath.binomial(alpha, j) * mpmath.e ** ((j - 1) * prime(j))
        return mpmath.log(total) / (alpha - 1)


@pytest.mark.parametrize(
    ("curve", "q"),
    [
        *(
            (partial(gaussian_curve, noise_multiplier=z), q)
            for z in (0.3, 5.0)
            for q in (1e-4, 0.3)
        ),
        (
            partial(gaussian_curve, noise_multiplier=1e-3),
            0.01,
        ),  # e^(j ε') far above the largest float
        (partial(published_barker_curve, batch_size=1300), 0.013),
        (partial(barker_curve, variance=2.0, batch_size=1300), 0.013),
    ],
)
def test_the_bound_is_the_printed_sum_rounded_up(curve, q):
    orders = np.array([2.0, 3.0, 10.0, 60.0, 256.0])
    bound, unsampled = without_replacement(curve, q, orders), curve(orders)
    for alpha, ours, whole in zip(orders, bound, unsampled, strict=True):
        wanted = min(float(theorem_9(curve, q, int(alpha))), whole)
        assert wanted <= ours <= wanted * (1 + 2e-9)


def test_large_orders_do_not_overflow_to_a_small_bound():
    for z in (1e-6, 1e-3, 1.0):
        curve = partial(gaussian_curve, noise_multiplier=z)
        bound = without_replacement(curve, 0.01)
        assert np.all(np.isfinite(bound))
        assert np.all(np.diff(bound) >= 0)
        # The last summand alone, which no bound on this divergence can avoid.
        assert bound[-1] >= curve(ORDERS[-1]) + math.log(0.01) * ORDERS[-1] / (ORDERS[-1] - 1)


def renyi(p, q, x, alpha):
    return math.log(integrate.trapezoid(q * (p / q) ** alpha, x)) / (alpha - 1)


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("z", [0.4, 1.0, 3.0])
def test_no_gaussian_release_of_a_batch_exceeds_the_bound(n, z):
    """Batches of 2 of n clipped scalars: the two output densities and their divergence, on a grid."""
    rng = np.random.default_rng(n)
    s = 2 * z  # B = 1
    x = np.linspace(-2 - 14 * s, 2 + 14 * s, 8001)
    orders = np.arange(2.0, 9.0)
    bound = without_replacement(partial(gaussian_curve, noise_multiplier=z), 2 / n, orders)
    tightest = 0.0
    for i in range(20):
        data = rng.choice([-1.0, 1.0], n) if i % 2 else rng.uniform(-1, 1, n)
        data[0] = 1.0
        other = np.append(-1.0, data[1:])
        p, q = (
            np.mean([stats.norm.pdf(x, sum(pair), s) for pair in combinations(d, 2)], axis=0)
            for d in (data, other)
        )
        for alpha, most in zip(orders, bound, strict=True):
            found = max(renyi(p, q, x, alpha), renyi(q, p, x, alpha))
            assert found <= most
            tightest = max(tightest, found / most)
    assert tightest > 0.1  # the divergences are of the bound's size, so the comparison is one


@pytest.mark.sweep
@SWEEP
@given(st.floats(0.2, 50), st.floats(-5, 0).map(lambda x: 10**x), st.floats(1.01, 3))
def test_more_noise_and_smaller_samples_cost_less(z, q, factor):
    bound = without_replacement(partial(gaussian_curve, noise_multiplier=z), q)
    noisier = without_replacement(partial(gaussian_curve, noise_multiplier=z * factor), q)
    fewer = without_replacement(partial(gaussian_curve, noise_multiplier=z), q / factor)
    assert np.all(noisier < bound)
    assert np.all(fewer <= bound)
    assert np.all(bound <= gaussian_curve(ORDERS, z) * (1 + 2e-9))


# -- the batch of a Barker test -------------------------------------------------------------------


def gaussian_divergence(alpha, mean, v1, v2):
    """Rényi divergence of N(mean, v1) from N(0, v2), in its closed form."""
    v = v2 + (alpha - 1) * (v2 - v1)
    if v <= 0:
        return math.inf
    shape = math.log(v2 / v1) / 2 + math.log(v2 / v) / (2 * (alpha - 1))
    return shape + alpha * mean**2 / (2 * v)


@pytest.mark.parametrize("alpha", [2, 3, 7])
@pytest.mark.parametrize(("mean", "v1", "v2"), [(0.5, 1.0, 1.1), (0.2, 1.1, 1.0), (1.0, 2.0, 2.0)])
def test_the_closed_form_is_the_integral(alpha, mean, v1, v2):
    x = np.linspace(-40, 40, 200_001)
    p, q = stats.norm.logpdf(x, mean, math.sqrt(v1)), stats.norm.logpdf(x, 0, math.sqrt(v2))
    integral = integrate.trapezoid(np.exp(alpha * p + (1 - alpha) * q), x)
    assert math.log(integral) / (alpha - 1) == pytest.approx(
        gaussian_divergence(alpha, mean, v1, v2), rel=1e-9
    )


def batches(b, rng):
    """A batch of terms in units of their bound, and what one of them is replaced by."""
    half = b // 2
    for y in (
        rng.uniform(-1, 1, b),
        rng.choice([-1.0, 1.0], b),
        np.full(b, -1.0),
        np.r_[np.ones(half), -np.ones(b - half)],
        np.r_[np.full(b - 3, rng.uniform(-1, 1)), rng.choice([-1.0, 1.0], 3)],
    ):
        for old, new in ((-1.0, 1.0), (1.0, -1.0), (0.0, 1.0), tuple(rng.uniform(-1, 1, 2))):
            before, after = y.copy(), y.copy()
            before[0], after[0] = old, new
            yield before, after


@pytest.mark.parametrize("variance", [1.3, 2.0, 3.2])
@pytest.mark.parametrize("b", [20, 50, 400])
def test_no_batch_of_a_barker_test_exceeds_the_bound(b, variance):
    rng = np.random.default_rng(b)
    orders = np.unique(np.geomspace(2, max(b // 4, 2), 8).round())
    bound = barker_curve(orders, variance, b)
    tightest = np.zeros(orders.shape)
    for _ in range(20):
        for before, after in batches(b, rng):
            # Terms r_j = y_j √b / n0, scaled by n0 / b; their variance is that of y.
            mean = (before.sum() - after.sum()) / math.sqrt(b)
            v1, v2 = variance - before.var(), variance - after.var()
            assert abs(v1 - v2) <= 4 * (b - 1) / b**2 * (1 + 1e-12)
            found = np.array([gaussian_divergence(alpha, mean, v1, v2) for alpha in orders])
            assert np.all(found <= bound)
            tightest = np.maximum(tightest, found / bound)
    assert tightest[0] > 0.2  # of the bound's size


@pytest.mark.parametrize("b", [20, 1300])
def test_the_bound_is_the_largest_over_variances_and_shifts(b):
    """Numerical maximisation over all (v1, v2) at the largest shift of the mean."""
    h, smallest = 4 * (b - 1) / b**2, 1.0
    for alpha in (2.0, 3.0, b / 8):
        v2 = np.linspace(smallest, smallest + 1, 400)[:, None]
        v1 = np.clip(v2 + np.linspace(-h, h, 401), smallest, None)
        v = v2 + (alpha - 1) * (v2 - v1)
        shape = np.log(v2 / v1) / 2 + np.log(v2 / v) / (2 * (alpha - 1))
        found = np.max(shape + alpha * (4 / b) / (2 * v))
        (bound,) = barker_curve(np.array([alpha]), 2.0, b)
        assert found <= bound * (1 + 1e-12)
        assert found == pytest.approx(bound, rel=1e-9)  # attained: the bound is sharp in this sense


def test_the_bound_ends_where_the_divergence_does():
    b = 100
    last = 1 + b**2 / (4 * (b - 1))  # (α - 1) h = v
    inside, outside = np.array([math.ceil(last) - 1.0]), np.array([math.floor(last) + 1.0])
    assert np.isfinite(barker_curve(inside, 2.0, b)).all()
    assert np.isinf(barker_curve(outside, 2.0, b)).all()
    assert np.isinf(published_barker_curve(np.array([20.0]), b)).all()  # α < b/5


@pytest.mark.parametrize("b", [50, 1300, 10_000])
def test_our_bound_is_below_the_published_one(b):
    published = published_barker_curve(ORDERS, b)
    defined = np.isfinite(published)
    assert np.all(barker_curve(ORDERS[defined], 2.0, b) < published[defined])


def test_the_published_constants():
    """Theorem 3.3 at b = 1300, by hand."""
    by_hand = 5 / 2600 + math.log(2600 / 1280) / 6 + 8 / 1280
    assert published_barker_curve(np.array([4.0]), 1300) == pytest.approx(by_hand, rel=1e-15)


# -- from Rényi to (ε, δ) -------------------------------------------------------------------------


@SWEEP
@given(st.floats(-6, 3).map(lambda x: 10**x), st.floats(-12, -1).map(lambda x: 10**x))
def test_the_conversion_is_dp_accountings(rho, delta):
    theirs, _ = compute_epsilon(ORDERS, rho * ORDERS, delta)
    if theirs > 0:  # they have a second bound, which only ever says 0
        assert rdp_epsilon(rho * ORDERS, delta) == pytest.approx(theirs, rel=1e-12)


@SWEEP
@given(st.floats(0.05, 20), st.floats(-9, -2).map(lambda x: 10**x))
def test_the_conversion_is_sound(mu, delta):
    """δ of the Gaussian mechanism at the ε that its Rényi curve is converted to."""
    epsilon = rdp_epsilon(mu**2 / 2 * ORDERS, delta)
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert exact <= delta


def test_infinite_divergences_are_never_a_guarantee():
    unbounded = np.full(ORDERS.shape, np.inf)
    assert rdp_epsilon(unbounded, 1e-6) == math.inf
    partly = np.where(ORDERS <= 3, ORDERS, np.inf)
    assert rdp_epsilon(partly, 1e-6) < math.inf
    nothing = without_replacement(partial(barker_curve, variance=2.0, batch_size=2), 0.1)
    assert np.all(nothing == np.inf)
    assert rdp_count(unbounded, 100.0, 1e-6) == 0


@SWEEP
@given(
    st.floats(0.3, 30),
    st.floats(-4, 0).map(lambda x: 10**x),
    st.floats(0.1, 50),
    st.floats(-9, -3).map(lambda x: 10**x),
)
def test_the_largest_count_is_within_and_one_more_is_not(z, q, epsilon, delta):
    rdp = without_replacement(partial(gaussian_curve, noise_multiplier=z), q)
    count = rdp_count(rdp, epsilon, delta)
    assert count == 0 or rdp_epsilon(count * rdp, delta) <= epsilon
    assert rdp_epsilon((count + 1) * rdp, delta) > epsilon * (1 - 1e-12)
