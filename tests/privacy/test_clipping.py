"""Clipping and summation in integers, against exact arithmetic."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pymc_dp.privacy.clipping import MAX_DIMENSION, RESOLUTION, add_clipped

SWEEP = settings(max_examples=250, deadline=None, derandomize=True, database=None)
SUBNORMAL, HUGE = 5e-324, 1.7976931348623157e308
SPECIAL = [0.0, SUBNORMAL, 2.2e-308, 1e-170, 1e-140, 1e140, 1e170, HUGE, math.inf, math.nan]

bounds = st.floats(1e-199, 1e199) | st.sampled_from([1.0, 0.1, 2.0**-600, 2.0**600])


def near(bound):
    """Numbers on the scale of the bound, far off it, and not finite."""
    return (
        st.floats(-2, 2).map(lambda u: u * bound)
        | st.floats()
        | st.sampled_from(SPECIAL + [-x for x in SPECIAL])
    )


scalar_cases = bounds.flatmap(lambda B: st.tuples(st.just(B), near(B)))
vector_cases = bounds.flatmap(
    lambda B: st.tuples(st.just(B), st.lists(near(B), min_size=1, max_size=9))
)


def image(terms, bound):
    """What `add_clipped` adds, as Python integers."""
    terms = np.asarray(terms, dtype=np.float64)
    total = np.zeros(1 if terms.ndim == 1 else terms.shape[1], dtype=np.int64)
    add_clipped(terms, bound, total)
    return [int(k) for k in total]


def exact_scalar(v, bound):
    if math.isnan(v):
        return 0
    if math.isinf(v):
        return RESOLUTION if v > 0 else -RESOLUTION
    scaled = Fraction(v) * RESOLUTION / Fraction(bound)
    return math.trunc(min(max(scaled, -RESOLUTION), RESOLUTION))


def exact_vector(v, bound):
    if not all(map(math.isfinite, v)):
        return [0] * len(v)
    v, bound = [Fraction(x) for x in v], Fraction(bound)
    squares = max(sum(x * x for x in v), bound**2)
    magnitudes = [math.isqrt(math.floor((x * RESOLUTION) ** 2 / squares)) for x in v]
    return [k if x >= 0 else -k for x, k in zip(v, magnitudes, strict=True)]


# -- scalars ----------------------------------------------------------------------------------


@SWEEP
@given(
    st.integers(-600, 600).map(lambda k: 2.0**k).flatmap(lambda B: st.tuples(st.just(B), near(B)))
)
def test_scalars_equal_exact_arithmetic_when_the_bound_is_a_power_of_two(case):
    bound, v = case
    assert image([v], bound) == [exact_scalar(v, bound)]


@SWEEP
@given(scalar_cases)
def test_scalars_are_within_one_grid_step_of_exact_arithmetic(case):
    bound, v = case
    (k,) = image([v], bound)
    assert abs(k - exact_scalar(v, bound)) <= 1
    assert abs(k) <= RESOLUTION


@SWEEP
@given(scalar_cases)
def test_opposite_scalars_add_opposites(case):
    """The penalty test needs r(θ, θ') = -r(θ', θ) to survive clipping."""
    bound, v = case
    assert image([-v], bound) == [-k for k in image([v], bound)]


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (math.nan, 0),
        (math.inf, RESOLUTION),
        (-math.inf, -RESOLUTION),
        (HUGE, RESOLUTION),
        (-HUGE, -RESOLUTION),
        (0.3, RESOLUTION),
        (math.nextafter(0.3, 0), RESOLUTION - 1),
        (SUBNORMAL, 0),
        (-0.0, 0),
    ],
)
def test_what_one_scalar_adds(term, expected):
    assert image([term], 0.3) == [expected]


# -- vectors ----------------------------------------------------------------------------------


@SWEEP
@given(vector_cases)
@example((1.0, [1.0]))
@example((1.0, [2.0**26, 1.0]))  # its norm rounds down to 2^26
@example((1e-150, [1e-150, 1e-150]))
@example((1.0, [SUBNORMAL] * 4))
@example((1e199, [HUGE] * 9))
@example((1e-199, [HUGE] * 9))
@example((1e-199, [1e-199, -SUBNORMAL]))
def test_vectors_are_close_to_exact_arithmetic_and_never_too_long(case):
    """Within a grid step; those that are clipped are up to 2^-20 of their length shorter."""
    bound, v = case
    k = image([v], bound)
    short = math.hypot(*v) <= bound * (1 - 1e-12)
    tolerance = 1 if short else 1 + RESOLUTION * 2**-20
    assert all(abs(a - b) <= tolerance for a, b in zip(k, exact_vector(v, bound), strict=True))
    assert sum(x * x for x in k) <= RESOLUTION**2
    assert image([[-x for x in v]], bound) == [-x for x in k]


@SWEEP
@given(vector_cases, st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 8))
def test_a_vector_with_a_non_finite_entry_adds_zero(case, bad, where):
    bound, v = case
    v[where % len(v)] = bad
    assert image([v], bound) == [0] * len(v)


@pytest.mark.parametrize("d", [2, 17, MAX_DIMENSION])
def test_long_vectors_are_never_too_long(d):
    """Rounding in the norm grows with the dimension."""
    rng = np.random.default_rng(d)
    for v in (np.ones(d), rng.random(d), rng.standard_cauchy(d), 10.0 ** rng.uniform(-170, 150, d)):
        for bound in np.linalg.norm(v / v.max()) * v.max() * np.array([1.0, 1 / 3, 1e-9]):
            k = image([v], bound)
            assert RESOLUTION * (1 - 2**-20) - d <= math.isqrt(sum(x * x for x in k)) <= RESOLUTION


@pytest.mark.parametrize("d", [1, 3, 50])
def test_vectors_about_as_long_as_the_bound_are_never_too_long(d):
    """A little shorter, where nothing is clipped but numbers are rounded, and a little longer."""
    rng = np.random.default_rng(d)
    for k in range(3, 53):
        for length in (1 - 2.0**-k, 1 + 2.0**-k):
            v = rng.normal(size=d)
            v *= length / np.linalg.norm(v)
            assert sum(x * x for x in image([v], 1.0)) <= RESOLUTION**2


def test_single_precision_vectors_are_never_too_long():
    terms = 100 * np.random.default_rng(0).standard_normal((500, 1, 5)).astype(np.float32)
    for unit in terms:
        total = np.zeros(5, dtype=np.int64)
        add_clipped(unit, 1.0, total)
        assert sum(int(k) ** 2 for k in total) <= RESOLUTION**2


# -- sums -------------------------------------------------------------------------------------


def adversarial_terms(n, d=None):
    """Magnitudes from 1e-12 to 1e12 times the bound, both signs, NaN and infinities."""
    rng = np.random.default_rng(3)
    size = n if d is None else (n, d)
    terms = rng.choice([-1.0, 1.0], size) * 10 ** rng.uniform(-12, 12, size)
    terms[rng.random(size) < 0.01] = np.nan
    terms[rng.random(size) < 0.01] = -np.inf
    return terms


@pytest.mark.parametrize("d", [None, 3])
def test_the_sum_depends_neither_on_order_nor_on_chunks(d):
    terms = adversarial_terms(20_000, d)
    whole = image(terms, 1.7)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        assert image(rng.permutation(terms), 1.7) == whole
        total = np.zeros(len(whole), dtype=np.int64)
        for chunk in np.split(terms, np.sort(rng.integers(0, len(terms), 7))):
            add_clipped(chunk, 1.7, total)
        assert total.tolist() == whole


def test_more_units_than_a_block_are_summed_exactly():
    n = 2**20 + 5
    terms = np.full(n, 1 / 3)
    terms[::2] = 10.0
    assert image(terms, 1.0) == [math.ceil(n / 2) * RESOLUTION + n // 2 * exact_scalar(1 / 3, 1.0)]


def test_replacing_one_scalar_moves_the_sum_by_at_most_the_sensitivity():
    """Float sums of the same terms move by more than twice the bound."""
    candidates = [*SPECIAL, *(-x for x in SPECIAL), 0.1, -0.1, math.nextafter(0.1, 1), 0.05]
    others = adversarial_terms(1000)
    sums = [image(np.append(others, v), 0.1)[0] for v in candidates]
    moves = [abs(a - b) for a, b in product(sums, sums)]
    assert max(moves) == 2 * RESOLUTION


@SWEEP
@given(vector_cases, st.data())
def test_replacing_one_vector_moves_the_sum_by_at_most_the_sensitivity(case, data):
    bound, v = case
    w = data.draw(st.lists(near(bound), min_size=len(v), max_size=len(v)))
    others = bound * adversarial_terms(5, len(v))
    assume(np.isfinite(others).any())
    before, after = image([*others, v], bound), image([*others, w], bound)
    assert sum((a - b) ** 2 for a, b in zip(before, after, strict=True)) <= (2 * RESOLUTION) ** 2


def test_the_vector_sensitivity_is_nearly_attained():
    before, after = image([[3.0, 4.0]], 1.0), image([[-3.0, -4.0]], 1.0)
    assert math.dist(before, after) >= 2 * RESOLUTION * (1 - 2**-20) - 4
