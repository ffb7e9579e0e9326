"""Releases of samples, and mixtures: against quadrature, exact sums and two other accountants."""

import math
from functools import partial

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as google
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats
from scipy.special import expit, ndtr

from pymc_dp.privacy import accounting
from pymc_dp.privacy.accounting import composed_epsilon, gaussian_delta, spending_curve
from pymc_dp.privacy.events import BarkerBatch, Gaussian, Laplace, PoissonGaussian, Pure, times
from pymc_dp.privacy.pld import Pair, laplace_delta, pld_epsilon, poisson_gaussian_delta
from pymc_dp.privacy.rdp import barker_curve, rdp_epsilon, without_replacement

SWEEP = settings(max_examples=15, deadline=None, derandomize=True, database=None)
rates = st.floats(-4, -0.01).map(lambda x: 10**x)
multipliers = st.floats(-0.5, 2).map(lambda x: 10**x)
deltas = st.floats(-12, -2).map(lambda x: 10**x)
counts = st.integers(1, 5000)
CLOSE = 1e-3  # what two discretisations of the same may differ by, relatively


def poisson(z, q, count=1):
    return PoissonGaussian(z, q, count)


# -- one Poisson-sampled release ------------------------------------------------------------------


def densities(x, z, q, shift=1.0):
    """The worst pair on a line, B = 1, and its mirror image."""
    s = 2 * z
    stay = (1 - q) * stats.norm.pdf(x, 0, s)
    return tuple(stay + q * stats.norm.pdf(x, mean, s) for mean in (shift, -shift))


@pytest.mark.parametrize("z", [0.3, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("q", [1e-3, 0.01, 0.3, 0.9])
def test_one_release_is_the_integral_of_what_exceeds(z, q):
    x = np.linspace(-1 - 12 * 2 * z, 1 + 12 * 2 * z, 1_000_001)
    p, r = densities(x, z, q)
    for epsilon in (0.0, 0.1 * q, q, 0.3, 1.0, 4.0):
        both = [
            integrate.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), x)
            for a, b in ((p, r), (r, p))
        ]
        assert both[0] == pytest.approx(both[1], rel=1e-9, abs=1e-300)
        ours = poisson_gaussian_delta(epsilon, z, q)
        assert ours == pytest.approx(both[0], rel=1e-6, abs=1e-14)


def test_one_release_is_never_below_the_closed_form():
    """60 digits, from e^-500 to 1, at all noise levels."""
    rng = np.random.default_rng(0)
    excess = []
    with mpmath.workdps(80):
        for _ in range(600):
            z, q = 10 ** rng.uniform(-2, 4), 10 ** rng.uniform(-7, -0.001)
            epsilon = 10 ** rng.uniform(-10, 3)
            s, rate, e = (mpmath.mpf(float(v)) for v in (2 * z, q, epsilon))
            right = (1 - rate) / rate * mpmath.exp(1 / (2 * s * s)) * mpmath.sinh(e / 2)
            x = -s * s * (mpmath.asinh(right) + e / 2)
            below = [mpmath.ncdf((x + j) / s) for j in (-1, 0, 1)]
            true = (1 - rate) * below[1] * (1 - mpmath.exp(e))
            true += rate * (below[2] - mpmath.exp(e) * below[0])
            if true > mpmath.mpf(10) ** -220:
                ours = mpmath.mpf(float(poisson_gaussian_delta(epsilon, z, q)))
                excess.append(float((ours - true) / true))
    assert len(excess) > 300
    assert min(excess) >= 0
    assert max(excess) < 1e-8


@pytest.mark.parametrize(("z", "q"), [(0.4, 0.2), (1.0, 0.05), (3.0, 0.5)])
def test_no_two_clipped_vectors_are_easier_to_tell_apart_than_opposite_ones(z, q):
    """The worst pair's theorem, by integration in the plane that the two vectors span."""
    rng = np.random.default_rng(1)
    s = 2 * z
    grid = np.linspace(-1 - 8 * s, 1 + 8 * s, 401)
    x, y = np.meshgrid(grid, grid)

    def density(v):
        center = np.exp(-(x**2 + y**2) / (2 * s * s))
        moved = np.exp(-((x - v[0]) ** 2 + (y - v[1]) ** 2) / (2 * s * s))
        return ((1 - q) * center + q * moved) / (2 * math.pi * s * s)

    def hockey_stick(v, w, epsilon):
        over = np.maximum(density(v) - math.exp(epsilon) * density(w), 0)
        return integrate.trapezoid(integrate.trapezoid(over, grid), grid)

    for epsilon in (0.0, q, 1.0):
        most = poisson_gaussian_delta(epsilon, z, q)
        assert hockey_stick((1, 0), (-1, 0), epsilon) == pytest.approx(most, rel=2e-3)
        for _ in range(25):
            angle = rng.uniform(0, 2 * math.pi)
            length, other = rng.choice([1.0, rng.uniform(0, 1)], 2)
            w = other * math.cos(angle), other * math.sin(angle)
            assert hockey_stick((length, 0), w, epsilon) <= most * (1 + 2e-3)


# -- many -----------------------------------------------------------------------------------------

# The Fourier accountant of Koskela et al. (2020), substitute relation, δ = 1e-6, as it prints; σ is
# for means ±1, that is 2z.
FOURIER = {
    (0.01, 1, 100): "1.1104",
    (0.01, 1, 1000): "3.2142",
    (0.01, 2, 100): ".40215",
    (0.01, 2, 1000): "1.37449",
    (0.01, 2, 10_000): "4.90740",
    (0.01, 5, 100): ".14919",
    (0.01, 5, 1000): ".51031",
    (0.01, 5, 10_000): "1.76553",
    (0.001, 1, 1000): ".27126",
    (0.001, 1, 10_000): ".91043",
}


@pytest.mark.parametrize(("setting", "printed"), FOURIER.items())
def test_epsilon_is_the_fourier_accountants(setting, printed):
    q, sigma, count = setting
    last_digit = 10.0 ** -len(printed.split(".")[1])
    ours = composed_epsilon([poisson(sigma / 2, q, count)], 1e-6)
    assert float(printed) - last_digit / 2 <= ours <= float(printed) * (1 + 1e-4) + last_digit / 2


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("z", "q", "epsilon"), [(0.5, 0.1, 1.0), (1.0, 0.5, 0.5), (0.4, 0.02, 2.0)]
)
def test_two_releases_are_the_integral_over_the_plane(z, q, epsilon):
    grid = np.linspace(-1 - 9 * 2 * z, 1 + 9 * 2 * z, 4001)
    p, r = densities(grid, z, q)
    over = np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(r, r), 0)
    delta = integrate.trapezoid(integrate.trapezoid(over, grid), grid)
    assert delta > 1e-9
    assert composed_epsilon([poisson(z, q, 2)], delta) == pytest.approx(epsilon, rel=1e-4)


def response(a):
    """Randomised response: loss ±a, so that the sum of many is a binomial."""
    return lambda epsilon: np.maximum(-np.expm1(np.asarray(epsilon) - a) * expit(a), 0.0)


def response_delta(epsilon, a, count):
    flips = np.arange(count + 1)
    loss = a * (2.0 * flips - count)
    log_p = stats.binom.logpmf(flips, count, expit(a))
    return math.fsum(np.exp(log_p) * -np.expm1(np.minimum(epsilon - loss, 0.0)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("a", "count"), [(1.0, 1), (1.0, 7), (0.3, 100), (0.02, 10_000), (1e-3, 1_000_000)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12, 1e-30])
def test_composition_is_exact_down_to_the_smallest_delta(a, count, delta):
    """A million releases at δ = 1e-30: rounding of the largest probabilities must not drown it."""
    ours = pld_epsilon([Pair(response(a), a, count)], delta)
    assert response_delta(ours, a, count) <= delta < response_delta(ours * (1 - CLOSE), a, count)


def test_composition_of_different_losses_is_exact():
    """Two kinds of randomised response: a double sum."""
    (a, m), (b, n) = (0.05, 400), (0.4, 5)
    i, j = np.arange(m + 1)[:, None], np.arange(n + 1)
    loss = a * (2 * i - m) + b * (2 * j - n)
    mass = stats.binom.pmf(i, m, expit(a)) * stats.binom.pmf(j, n, expit(b))
    for delta in (1e-4, 1e-9):
        ours = pld_epsilon([Pair(response(a), a, m), Pair(response(b), b, n)], delta)

        def exact(epsilon):
            return np.sum(mass * -np.expm1(np.minimum(epsilon - loss, 0.0)))

        assert exact(ours) <= delta < exact(ours * (1 - 1e-3))


def google_epsilon(delta, *parts):
    """dp-accounting's ε of (PLD, count) pairs; REPLACE_ONE, in which it takes sd / clip."""
    total = google.identity()
    for pld, count in parts:
        total = total.compose(pld.self_compose(count))
    return total.get_epsilon_for_delta(delta)


def google_poisson(z, q):
    return google.from_gaussian_mechanism(
        2 * z, sampling_prob=q, neighboring_relation=NeighboringRelation.REPLACE_ONE
    )


@pytest.mark.sweep
@pytest.mark.parametrize(("z", "q", "count"), [(0.5, 0.2, 5), (1.0, 0.01, 300), (4.0, 0.5, 40)])
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_epsilon_is_dp_accountings(z, q, count, delta):
    theirs = google_epsilon(delta, (google_poisson(z, q), count))
    assert composed_epsilon([poisson(z, q, count)], delta) == pytest.approx(theirs, rel=CLOSE)


@pytest.mark.sweep
def test_all_three_kinds_compose_to_what_dp_accounting_says():
    events = [poisson(0.8, 0.1, 20), Laplace(10.0, 5), Gaussian(3.0, 2), poisson(2.0, 0.5, 3)]
    theirs = google_epsilon(
        1e-6,
        (google_poisson(0.8, 0.1), 20),
        (google.from_laplace_mechanism(10.0), 5),  # symmetric: the relation is in the multiplier
        (google.from_gaussian_mechanism(3.0), 2),
        (google_poisson(2.0, 0.5), 3),
    )
    assert composed_epsilon(events, 1e-6) == pytest.approx(theirs, rel=CLOSE)


@pytest.mark.parametrize("delta", [1e-9, 1e-4])
def test_gaussian_and_laplace_have_their_closed_forms(delta):
    for mu in (0.01, 1.0, 30.0):
        ours = pld_epsilon([Pair(partial(gaussian_delta, mu=mu), mu, 1)], delta)
        assert gaussian_delta(ours, mu) <= delta < gaussian_delta(ours * (1 - 1e-5), mu)
    ours = pld_epsilon([Pair(partial(laplace_delta, noise_multiplier=2.0), 0.5, 1)], 0.01)
    assert ours == pytest.approx(0.5 + 2 * math.log1p(-0.01), rel=1e-3)


def binned_delta(z, q, count, epsilon, tilt, draws=400):
    """Estimate of δ(ε) when only the bin of an output is seen, and its standard error.

    Seeing less lowers δ, so this is a lower bound; importance sampling, without any FFT.
    """
    s = 2 * z
    edges = np.linspace(-1 - 8 * s, 1 + 8 * s, 20_001)

    def between(t):  # from whichever tail is nearer
        return np.where(t[1:] < 0, np.diff(ndtr(t)), -np.diff(ndtr(-t)))

    mass = (1 - q) * between(edges / s) + q * between((edges + 1) / s)
    loss = np.log(mass / mass[::-1])
    log_tilted = np.log(mass) + tilt * loss
    log_moment = np.logaddexp.reduce(log_tilted)
    tilted = np.exp(log_tilted - log_moment)
    sums = np.random.default_rng(0).multinomial(count, tilted / tilted.sum(), draws) @ loss
    value = np.exp(count * log_moment - tilt * sums) * -np.expm1(np.minimum(epsilon - sums, 0))
    return value.mean(), value.std() / math.sqrt(draws)


@pytest.mark.sweep
@pytest.mark.parametrize(("count", "tilt"), [(100_000, 10.7), (1_000_000, 3.4)])
def test_small_delta_and_many_releases_are_not_under_reported(count, tilt):
    """Where the rounding of an FFT is of the size of δ: benchmarks/subsampled_epsilon.py."""
    ours = composed_epsilon([poisson(0.5, 1e-3, count)], 1e-12)
    low, error = binned_delta(0.5, 1e-3, count, ours, tilt)
    assert low - 5 * error < 1e-12 < 1.1 * (low + 5 * error)


# -- the algebra of composition -------------------------------------------------------------------


@pytest.mark.sweep
@SWEEP
@given(multipliers, rates, counts, deltas, st.floats(1.05, 4))
def test_epsilon_is_monotone(z, q, count, delta, factor):
    cost = composed_epsilon([poisson(z, q, count)], delta)
    margin = 1 + CLOSE
    assert composed_epsilon([poisson(z * factor, q, count)], delta) <= cost * margin
    assert composed_epsilon([poisson(z, q / factor, count)], delta) <= cost * margin
    assert composed_epsilon([poisson(z, q, math.ceil(count * factor))], delta) * margin >= cost
    assert composed_epsilon([poisson(z, q, count)], delta * factor) <= cost * margin
    assert cost <= composed_epsilon([Gaussian(z, count)], delta) * (1 + 2e-9)


@pytest.mark.sweep
@SWEEP
@given(multipliers, counts, deltas)
def test_a_sample_of_everybody_is_no_sample(z, count, delta):
    whole = composed_epsilon([Gaussian(z, count)], delta)
    assert composed_epsilon([poisson(z, 1.0, count)], delta) == whole
    nearly = composed_epsilon([poisson(z, 1 - 1e-9, count)], delta)
    assert nearly == pytest.approx(whole, rel=CLOSE, abs=1e-9)


mixtures = st.lists(
    st.one_of(
        st.builds(poisson, multipliers, rates, st.integers(1, 100)),
        st.builds(Gaussian, st.floats(1, 50), st.integers(1, 50)),
        st.builds(Laplace, st.floats(2, 100), st.integers(1, 10)),
        st.builds(
            BarkerBatch,
            st.floats(1.5, 3),
            st.integers(100, 2000),
            st.just(100_000),
            st.integers(1, 500),
        ),
    ),
    min_size=2,
    max_size=4,
)


@pytest.mark.sweep
@settings(SWEEP, max_examples=12)
@given(mixtures, deltas)
def test_the_order_and_the_bookkeeping_do_not_matter(events, delta):
    total = composed_epsilon(events, delta)
    assert composed_epsilon(events[::-1], delta) == pytest.approx(total, rel=1e-8)
    assert composed_epsilon([*times(events, 2), *events], delta) == pytest.approx(
        composed_epsilon(times(events, 3), delta), rel=1e-8
    )
    assert composed_epsilon(events[1:], delta) <= total * (1 + CLOSE)
    assert total <= sum(composed_epsilon([e], delta / len(events)) for e in events) * (1 + CLOSE)


@pytest.mark.sweep
def test_mixing_with_barker_batches_is_within_basic_composition():
    batches = BarkerBatch(2.0, 1300, 100_000, 1000)
    alone = composed_epsilon([batches], 1e-6)
    for other in (Gaussian(30.0, 50), poisson(1.0, 0.01, 500), Laplace(5.0)):
        total = composed_epsilon([batches, other], 1e-6)
        halves = [composed_epsilon([e], 5e-7) for e in (batches, other)]
        assert alone < total <= sum(halves) * (1 + 1e-8)
    for other in (Gaussian(1.0), poisson(0.5, 0.5), Laplace(0.1)):
        assert composed_epsilon([BarkerBatch(2.0, 1300, 100_000), other], 1e-6) > (
            composed_epsilon([other], 1e-6)
        )
    together = composed_epsilon([batches, Gaussian(30.0, 50)], 1e-6)
    assert together < 0.9 * sum(composed_epsilon([e], 5e-7) for e in (batches, Gaussian(30.0, 50)))


@pytest.mark.parametrize("b", [200, 1300, 5000, 20_000])
def test_batches_add_up_in_renyi_divergence(b):
    rdp = without_replacement(partial(barker_curve, variance=2.5, batch_size=b), b / 20_000)
    ours = composed_epsilon([BarkerBatch(2.5, b, 20_000, 70)], 1e-6)
    assert ours == pytest.approx(rdp_epsilon(70 * rdp, 1e-6), rel=1e-8)
    # Two sizes: neither the mean of the costs nor one of them.
    other = without_replacement(partial(barker_curve, variance=2.0, batch_size=300), 300 / 20_000)
    both = [BarkerBatch(2.5, b, 20_000, 70), BarkerBatch(2.0, 300, 20_000, 9)]
    wanted = rdp_epsilon(70 * rdp + 9 * other, 1e-6)
    assert composed_epsilon(both, 1e-6) == pytest.approx(wanted, rel=1e-8)


def test_batches_and_the_rest_share_delta(monkeypatch):
    spent = {"rdp_epsilon": [], "_additive_noise_epsilon": []}
    for name, log in spent.items():
        original = getattr(accounting, name)

        def logged(what, delta, original=original, log=log):
            log.append(delta)
            return original(what, delta)

        monkeypatch.setattr(accounting, name, logged)
    composed_epsilon([BarkerBatch(2.0, 1300, 100_000), Laplace(5.0)], 1e-6)
    batches, rest = (np.array(log) for log in spent.values())
    assert len(batches) == len(rest) > 3
    assert np.all(batches + rest <= 1e-6 * (1 + 1e-12))
    assert min(batches.min(), rest.min()) > 0


def test_no_noise_costs_everything_whatever_the_sample():
    for events in (
        [poisson(0.0, 0.01)],
        [poisson(1.0, 0.01), Gaussian(0)],
        [poisson(0.0, 1e-9), Laplace(1.0)],
        [poisson(1.0, 1e-9), Laplace(0.0)],
        [BarkerBatch(2.0, 1300, 10_000), Gaussian(0)],
        [BarkerBatch(2.0, 1300, 10_000), poisson(0.0, 0.5)],
    ):
        assert composed_epsilon(events, 1e-6) == math.inf


def test_a_batch_too_small_for_its_theorem_has_no_guarantee():
    assert composed_epsilon([BarkerBatch(2.0, 2, 100_000)], 1e-6) == math.inf
    assert composed_epsilon([BarkerBatch(1.001, 1000, 100_000)], 1e-6) == math.inf


@pytest.mark.sweep
@pytest.mark.parametrize(
    "events",
    [
        [poisson(0.01, 0.5, 10)],  # ε ~ 1e4
        [poisson(1e-5, 1e-3, 1000)],
        [poisson(1e-8, 0.1)],
        [poisson(0.05, 0.9, 1000), Laplace(1e-3)],
        [poisson(0.3, 1e-3, 100_000)],
        [poisson(2.0, 1e-7, 10**8)],
        [poisson(1e8, 0.5, 10**9)],
        [poisson(1e200, 0.5, 10**9)],
        [poisson(2.0, 1e-300, 10**6)],
        [BarkerBatch(2.0, 10**9, 10**9)],
        [BarkerBatch(2.0, 100, 10**9, 10**9)],
    ],
    ids=str,
)
@pytest.mark.parametrize("delta", [0.5, 1e-9, 1e-300])
def test_extremes_have_a_cost(events, delta):
    assert 0 <= composed_epsilon(events, delta) < math.inf


# -- the spending of a run ------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    "events",
    [
        (poisson(1.0, 0.01),),
        (BarkerBatch(2.0, 1300, 100_000),),
        (poisson(1.0, 0.02), Gaussian(300.0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("iterations", [1, 5, 400])
def test_the_spending_curve_is_an_upper_bound_that_ends_at_the_cost(events, iterations):
    curve = spending_curve(events, iterations, 1e-6)
    assert curve.shape == (iterations,)
    assert np.all(np.diff(curve) >= 0)
    assert curve[-1] == composed_epsilon(times(events, iterations), 1e-6)
    for k in {1, min(3, iterations), max(1, iterations // 3)}:
        true = composed_epsilon(times(events, k), 1e-6)
        assert true * (1 - CLOSE) <= curve[k - 1] <= composed_epsilon(times(events, 2 * k), 1e-6)


def test_pure_releases_are_randomised_responses():
    """Against the exact binomial sum of k randomised responses, and the pure bound."""
    epsilon, count, delta = 0.1, 400, 1e-6
    p = 1 / (1 + math.exp(-epsilon))
    wins = np.arange(count + 1)
    loss = epsilon * (2 * wins - count)
    mass = stats.binom.pmf(wins, count, p)

    def exact_delta(e):
        return mass @ np.maximum(-np.expm1(e - loss), 0.0)

    found = composed_epsilon([Pure(epsilon, count)], delta)
    exact = optimize.brentq(lambda e: exact_delta(e) - delta, 0.0, epsilon * count)
    assert exact <= found <= 1.01 * exact
    assert composed_epsilon([Pure(1.0)], 1e-9) == pytest.approx(1.0, rel=1e-6)
    assert composed_epsilon([Pure(1.0), Gaussian(5.0)], 1e-6) > composed_epsilon([Pure(1.0)], 1e-6)
    assert composed_epsilon([Pure(30.0, 100)], 1e-6) <= 3000 * (1 + 1e-6)
