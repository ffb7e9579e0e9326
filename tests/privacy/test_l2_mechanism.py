"""The ℓ2 mechanism: its cost against integrals of another form, its noise against its law, and what pays for it."""

import copy
import math
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy import l2_noise as sampler
from pymc_dp.privacy.accounting import (
    composed_epsilon,
    epsilon_that_fits,
    gaussian_delta,
    gaussian_mu,
    gaussian_mu_within,
    spending_curve,
)
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import (
    MAX_L2_DIMENSION,
    Gaussian,
    GaussianOrL2,
    L2Mechanism,
    L2Option,
    Laplace,
    Pure,
)
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.guarantee import describe
from pymc_dp.privacy.l2_calibration import calibrate_l2, calibrate_with_l2
from pymc_dp.privacy.l2_mechanism import l2_delta
from pymc_dp.privacy.l2_noise import l2_noise
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise, SecureNoise
from pymc_dp.privacy.noisy_sum import l2_noisy_total
from pymc_dp.privacy.plans import Permit, RunPlan
from pymc_dp.privacy.pld import laplace_delta
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements

DELTA = 5e-6
RARE = 1e-11  # for bounds on what nobody can seed


def seeded(seed):
    rng = np.random.default_rng(seed)
    return lambda size: rng.integers(2**64, size=size, dtype=np.uint64)


# -- the cost of one release ------------------------------------------------------------------------


def delta_by_shells(epsilon, z, d):
    """δ as P(S) - e^ε Q(S), shell by shell around each of the two centres: no Bessel function, no density of losses."""
    a, shape = 1 / mpmath.mpf(z), mpmath.mpf(d - 1) / 2
    c = mpmath.mpf(epsilon) / a

    def inside(cosine):
        """Share of the directions with at most this cosine to the shift."""
        x = min(max((1 + cosine) / 2, mpmath.mpf(0)), mpmath.mpf(1))
        return mpmath.betainc(shape, shape, 0, x, regularized=True)

    def mass(start, cosine):
        """Of the shells beyond `start`; the radius has a gamma distribution."""

        def shell(r):
            return r ** (d - 1) * mpmath.exp(-a * r) * inside(cosine(r))

        # Where the first directions leave, the share has a root in it.
        rest = [start + x / a for x in (0.2, 2, 10, 35, 80)]
        total = mpmath.quad(shell, [start, rest[0]])
        total += mpmath.quad(shell, rest, method="gauss-legendre")
        return total * a**d / mpmath.gamma(d)

    whole = mpmath.gammainc(d, 0, a * (1 - c) / 2, regularized=True)
    of_p = whole + mass((1 - c) / 2, lambda r: (1 - c * c) / (2 * r) - c)
    of_q = mass((1 + c) / 2, lambda r: -(1 - c * c) / (2 * r) - c)
    return of_p - mpmath.exp(epsilon) * of_q


@pytest.mark.sweep
@pytest.mark.parametrize("d", [2, 3, 4, 5, 8, 10])
def test_delta_is_that_of_an_independent_integral_and_never_below_it(d):
    """54 points in all."""
    excess = []
    with mpmath.workdps(20):
        for z, part in product((0.15, 1.0, 20.0), (0.0, 0.35, 0.8)):
            true = delta_by_shells(part / z, z, d)
            assert true > 0
            excess.append(float(l2_delta(part / z, z, d) / true - 1))
    assert 0 < min(excess) <= max(excess) < 2e-10


def density_of_angle(z, d):
    """Density of arccos(loss · z), as the page has it."""
    b, nu = 1 / (2 * mpmath.mpf(z)), mpmath.mpf(d) / 2 - 1
    first, second = (2 * nu + 1) / b * mpmath.besselk(nu + 1, b), mpmath.besselk(nu, b)
    factor = b * (b / 2) ** (nu + 1) / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(nu + 1.5))

    def density(angle):
        sine, cosine = mpmath.sin(angle), mpmath.cos(angle)
        return factor * mpmath.exp(b * cosine) * sine ** (2 * nu) * (first + sine**2 * second)

    return density


@pytest.mark.parametrize("d", [2, 5, 13, MAX_L2_DIMENSION])
def test_delta_is_never_below_the_true_one_in_the_tails(d):
    """Down to 1e-54; the quadrature of the reference wants twice as many digits as that has zeros."""
    # With next to no noise in many dimensions the bound on our quadrature is felt; nowhere else.
    for z, tolerance in ((0.025, 2e-3), (0.1, 2e-10), (1e6, 2e-10)):
        with mpmath.workdps(100):
            density = density_of_angle(z, d)
            for part in (1e-5, 0.7, 0.999):
                epsilon = part / z

                def over(angle, z=z, epsilon=epsilon, density=density):
                    loss = mpmath.cos(angle) / mpmath.mpf(z)
                    return density(angle) * -mpmath.expm1(epsilon - loss)

                true = mpmath.quad(over, [0, mpmath.acos(epsilon * mpmath.mpf(z))])
                assert 0 < l2_delta(epsilon, z, d) / true - 1 < tolerance


def test_it_is_the_laplace_mechanism_in_one_dimension():
    epsilon = np.linspace(0, 3, 50)
    assert np.array_equal(l2_delta(epsilon, 0.5, 1), laplace_delta(epsilon, 0.5))
    one, laplace = composed_epsilon([L2Mechanism(0.7, 1, 3)], DELTA), [Laplace(0.7, 3)]
    assert one == pytest.approx(composed_epsilon(laplace, DELTA), rel=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, MAX_L2_DIMENSION),
    st.floats(-8, 8).map(math.exp),
    st.floats(0, 1),
    st.floats(1, 3),
)
def test_more_noise_or_a_shorter_shift_never_costs_more(d, z, part, times):
    """A shift by a part of the sensitivity is the whole one at a larger multiplier."""
    epsilon = part / z
    less = l2_delta(epsilon, z * times, d)
    assert 0 <= less <= l2_delta(epsilon, z, d) * (1 + 1e-9)


@pytest.mark.parametrize("d", [1, 2, 5, 32])
def test_its_loss_is_bounded(d):
    for z in (0.004, 0.3, 1.0, 50.0, 1e9, 1e18):
        limit = (1 + 1e-12) / z
        assert l2_delta(limit, z, d) <= 0 < l2_delta(0.9 / z, z, d) < 1
        every = l2_delta(np.linspace(0, limit, 5001), z, d)
        assert np.all(np.diff(every) <= 0)
        assert composed_epsilon([L2Mechanism(z, d)], DELTA) <= limit * (1 + 2e-9) + 1e-10
    assert l2_delta([0.0, 0.1], 1.0, d).shape == (2,)


# -- composition ------------------------------------------------------------------------------------


def at_any(curve, epsilon):
    """A curve of a symmetric pair, at negative ε as well."""
    delta = curve(np.abs(epsilon))
    return np.where(epsilon >= 0, delta, -np.expm1(epsilon) + np.exp(epsilon) * delta)


def after_gaussian(curve, mu, epsilon):
    """δ of a Gaussian release and then another: the second's, at what the first one's loss leaves, on average."""
    x = np.linspace(-12, 12, 200_001)
    weight = stats.norm.pdf(x) * (x[1] - x[0])
    return float(weight @ at_any(curve, epsilon - mu * mu / 2 - mu * x))


EITHER = GaussianOrL2(4.0, 1.2, 5)


def curve_of(event):
    if isinstance(event, L2Mechanism):
        return lambda e: l2_delta(e, event.noise_multiplier, event.dimension)
    return lambda e: np.maximum(
        gaussian_delta(e, 1 / event.gaussian_multiplier),
        l2_delta(e, event.l2_multiplier, event.dimension),
    )


@pytest.mark.parametrize(
    "last", [L2Mechanism(0.8, 2), L2Mechanism(3.0, 10), EITHER, GaussianOrL2(0.9, 0.4, 1)], ids=str
)
@pytest.mark.parametrize(("z", "delta"), [(12.0, 5e-6), (2.0, 1e-9)])
def test_after_gaussian_releases_it_costs_what_an_integral_says(last, z, delta):
    epsilon = composed_epsilon([Gaussian(2 * z, 4), last], delta)
    assert after_gaussian(curve_of(last), 1 / z, epsilon) <= delta * (1 + 1e-9)
    assert after_gaussian(curve_of(last), 1 / z, epsilon * (1 - 1e-4)) > delta


def test_two_releases_cost_what_an_integral_says():
    z, d = 0.8, 3
    epsilon = composed_epsilon([L2Mechanism(z, d, 2)], DELTA)
    nodes, weights = special.roots_legendre(300)
    angles, density = math.pi * (1 + nodes) / 2, density_of_angle(z, d)
    mass = math.pi / 2 * weights * [float(density(angle)) for angle in angles]
    assert mass.sum() == pytest.approx(1, rel=1e-9)

    def delta(epsilon):
        return mass @ at_any(lambda e: l2_delta(e, z, d), epsilon - np.cos(angles) / z)

    assert delta(epsilon) <= DELTA * (1 + 1e-4)
    assert delta(epsilon * (1 - 1e-3)) > DELTA


def test_a_choice_costs_at_least_what_either_does_and_less_than_both():
    delta = 1e-6
    for e in (GaussianOrL2(1.0, 0.4, 3), GaussianOrL2(9.0, 0.4, 3), GaussianOrL2(1.0, 8.0, 3)):
        gaussian, l2 = Gaussian(e.gaussian_multiplier), L2Mechanism(e.l2_multiplier, e.dimension)
        either = max(composed_epsilon([one], delta) for one in (gaussian, l2))
        assert either <= composed_epsilon([e], delta) * (1 + 1e-6)
        assert composed_epsilon([e], delta) < composed_epsilon([gaussian, l2], delta)


def test_pure_releases_add_up_at_delta_zero_and_others_cost_infinitely_much():
    pure = [Laplace(2.0, 3), Pure(0.25), L2Mechanism(4.0, 7, 2)]
    assert 2.25 <= composed_epsilon(pure, 0.0) < 2.25 * (1 + 1e-8)
    assert composed_epsilon([], 0.0) == 0
    for other in (Gaussian(1e9), GaussianOrL2(1e9, 4.0, 7)):
        assert composed_epsilon([*pure, other], 0.0) == math.inf
    assert spending_curve((L2Mechanism(4.0, 7),), 4, 0.0)[-1] == pytest.approx(1.0)
    np.testing.assert_array_equal(
        spending_curve((), 4, 0.0, tuple(pure)), [composed_epsilon(pure, 0.0)] * 4
    )
    left = epsilon_that_fits(pure, 3.0, 0.0)
    assert composed_epsilon([*pure, Pure(left)], 0.0) <= 3.0 < 2.25 + left + 1e-7
    assert epsilon_that_fits(pure, 2.0, 0.0) == 0


def test_without_noise_nothing_is_promised():
    for event in (L2Mechanism(0.0, 3), GaussianOrL2(0.0, 1.0, 3), GaussianOrL2(1.0, 0.0, 3)):
        assert composed_epsilon([event, Gaussian(1.0)], DELTA) == math.inf


def test_an_account_of_pure_privacy_takes_pure_releases_only():
    ledger = PrivacyLedger(epsilon=1.0, delta=0.0)
    ledger.reserve(RunPlan("a", "A run", (L2Mechanism(2.0, 5),), 1, 1))
    assert ledger.spent() == pytest.approx(0.5)
    assert ledger.remaining() == pytest.approx(0.5)
    for event in (Gaussian(1e6), L2Mechanism(1.9, 5)):
        with pytest.raises(PrivacyBudgetExceeded):
            ledger.reserve(RunPlan("b", "A run", (event,), 1, 1))


def test_what_a_run_with_it_has_not_released_is_not_given_back():
    """No filter is known of that kind; and what was released never counts as too much."""
    ledger, option = PrivacyLedger(epsilon=3.0, delta=DELTA), L2Option(1.5, 5, 0.1)
    plan = RunPlan("a", "A run", option.events(4.0), 1, 1)
    ledger.reserve(plan)
    money = PrivacyFilter(ledger.charge(plan, ledger.claim(plan), 0), 4.0, option)
    money.permit(0.05)
    money.exchange(5)
    assert not ledger.settle(plan, money.close())
    assert ledger.events() == plan.total


# -- calibration ------------------------------------------------------------------------------------

# Standard deviation / that of Gaussian noise, at ε = 0.3, 1 and 3 and δ = 5e-6, found by sampling radii and angles.
ALONE = {
    1: (0.400, 0.364, 0.328),
    2: (0.489, 0.446, 0.401),
    3: (0.561, 0.513, 0.463),
    5: (0.666, 0.616, 0.561),
    10: (0.799, 0.758, 0.708),
}
AFTER = {  # a share of μ² is spent on Gaussian releases before; the ratio is to a Gaussian last one
    (3, 0.05): (0.62, 0.57, 0.52),
    (3, 0.3): (0.76, 0.72, 0.66),
    (5, 0.1): (0.73, 0.69, 0.64),
    (5, 0.43): (0.86, 0.83, 0.79),
    (10, 0.2): (0.86, 0.83, 0.79),
}
BUDGETS = (0.3, 1.0, 3.0)


@pytest.mark.parametrize("d", ALONE)
def test_alone_its_noise_is_as_small_as_the_table_says(d):
    for epsilon, wanted in zip(BUDGETS, ALONE[d], strict=True):
        z = calibrate_l2(epsilon=epsilon, delta=DELTA, dimension=d)
        gaussian = 1 / gaussian_mu_within(epsilon, DELTA)
        assert math.sqrt(d + 1) * z / gaussian == pytest.approx(wanted, rel=5e-3)


@pytest.mark.sweep
@pytest.mark.parametrize(("d", "share"), AFTER)
def test_after_a_search_its_noise_is_as_small_as_the_table_says(d, share):
    """With a choice of the two at the end, and the table without one: that costs less than 3 % of either's noise."""
    for epsilon, wanted in zip(BUDGETS, AFTER[d, share], strict=True):
        z, l2 = calibrate_with_l2(epsilon=epsilon, delta=DELTA, dimension=d, share=share)
        rest = 1 / (gaussian_mu_within(epsilon, DELTA) * math.sqrt(1 - share))
        assert math.sqrt(d + 1) * l2 / rest == pytest.approx(wanted, rel=0.03)
        assert z * gaussian_mu_within(epsilon, DELTA) < 1.05


@pytest.mark.sweep
@pytest.mark.parametrize("epsilon", [0.02, 0.7, 9.0])
@pytest.mark.parametrize(
    ("d", "share", "delta"), [(1, 0.0, 1e-3), (4, 0.15, 1e-6), (32, 0.8, 1e-9)]
)
def test_calibrated_noise_never_overshoots_and_is_tight(epsilon, d, share, delta):
    z, l2 = calibrate_with_l2(epsilon=epsilon, delta=delta, dimension=d, share=share)
    cost = composed_epsilon(L2Option(l2, d, share).events(z), delta)
    assert epsilon * (1 - 1e-5) < cost <= epsilon
    # Either end is within it.
    spent = Gaussian(z / math.sqrt(share or 1e-9))
    assert composed_epsilon([Gaussian(z)], delta) <= epsilon
    assert composed_epsilon([spent, L2Mechanism(l2, d)], delta) <= epsilon
    for at in (delta, 0.0):
        alone = calibrate_l2(epsilon=epsilon, delta=at, dimension=d)
        assert epsilon * (1 - 1e-5) < composed_epsilon([L2Mechanism(alone, d)], at) <= epsilon
    assert calibrate_l2(epsilon=epsilon, delta=0.0, dimension=d) >= 1 / epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        *({"dimension": d} for d in (0, MAX_L2_DIMENSION + 1, 2.0, None)),
        *({"share": f} for f in (-0.1, 1.0, math.nan, None)),
        *({"delta": x} for x in (0.0, 1.0, -1e-6)),
        {"epsilon": 0.0},
    ],
    ids=str,
)
def test_what_cannot_be_calibrated_is_refused(wrong):
    asked = {"epsilon": 1.0, "delta": 1e-6, "dimension": 3, "share": 0.1, **wrong}
    with pytest.raises(PrivacyConfigurationError, match=f"`{min(wrong)}`|dimensions"):
        calibrate_with_l2(**asked)


# -- the noise --------------------------------------------------------------------------------------


def cell_masses(scale, d, edge):
    """Probabilities of whole numbers up to ±edge in every entry, by integration of the density over their cells."""
    # Cells are cut at the whole numbers, so that the tip of the density is at corners.
    nodes, weights = special.roots_legendre(24)
    cuts = np.arange(-edge - 0.5, edge + 0.51, 0.5)
    x = ((cuts[1:] + cuts[:-1])[:, None] / 2 + nodes / 4).ravel()
    w = np.tile(weights / 4, len(cuts) - 1)
    squares = sum(np.meshgrid(*[x**2] * d, indexing="ij"))
    mass = np.exp(-np.sqrt(squares) / scale)
    for axis in range(d):
        shape = [1] * d
        shape[axis] = -1
        mass = mass * w.reshape(shape)
        mass = np.add.reduceat(mass, np.arange(0, x.size, 2 * nodes.size), axis=axis)
    surface = 2 * math.pi ** (d / 2) / math.gamma(d / 2)
    return mass / (surface * math.gamma(d) * scale**d)


@pytest.mark.parametrize(("d", "scale"), [(1, 0.75), (1, 2.5), (2, 0.5), (2, 1.0)])
def test_on_the_lattice_it_has_the_probabilities_of_its_cells(d, scale):
    n, edge = 20_000, round(4 * scale * d)
    words = seeded(1)
    drawn = np.array([l2_noise(scale, d, words) for _ in range(n)])
    mass = cell_masses(scale, d, edge)
    if d == 1:  # in closed form
        assert mass[edge] == pytest.approx(-math.expm1(-0.5 / scale), rel=1e-9)
    counts = np.zeros_like(mass)
    within = np.all(np.abs(drawn) <= edge, axis=1)
    np.add.at(counts, tuple(drawn[within].T + edge), 1)
    seen = n * mass > 8
    wanted = np.append(n * mass[seen], n * (1 - mass[seen].sum()))
    assert stats.chisquare(np.append(counts[seen], n - counts[seen].sum()), wanted).pvalue > 1e-3


@pytest.mark.parametrize("d", [1, 3, 10, 20])
def test_far_from_the_lattice_radius_and_directions_are_independent_and_as_they_should_be(d):
    scale, words = 2.0**27, seeded(2)
    x = np.array([l2_noise(scale, d, words) for _ in range(3000 // d + 500)]) / scale
    radius = np.linalg.norm(x, axis=1)
    assert stats.kstest(radius, stats.gamma(d).cdf).pvalue > 1e-3
    if d == 1:
        assert abs(np.sign(x).sum()) < 4 * math.sqrt(len(x))
        return
    cosines = x / radius[:, None]
    shape = (d - 1) / 2
    law = stats.beta(shape, shape, loc=-1, scale=2)
    for entry in (0, d - 1):
        assert stats.kstest(cosines[:, entry], law.cdf).pvalue > 1e-3
    assert stats.spearmanr(radius, np.abs(cosines[:, 0])).pvalue > 1e-3
    assert stats.spearmanr(cosines[:, 0], cosines[:, -1]).pvalue > 1e-3


def test_it_does_not_matter_when_an_entry_is_decided(monkeypatch):
    """Enclosures that are coarse at first, so that most are refined, give the same law."""
    monkeypatch.setattr(sampler, "_SPARE", -20)
    scale, words = 2.0**20, seeded(3)
    x = np.array([l2_noise(scale, 3, words) for _ in range(2000)]) / scale
    assert stats.kstest(np.linalg.norm(x, axis=1), stats.gamma(3).cdf).pvalue > 1e-3
    small = np.array([l2_noise(0.75, 1, words)[0] for _ in range(5000)])
    zero = -math.expm1(-0.5 / 0.75)
    assert abs((small == 0).sum() - 5000 * zero) < 4 * math.sqrt(5000 * zero * (1 - zero))


def test_chances_that_the_first_digits_leave_open_are_decided_by_further_ones():
    """A uniform number that agrees with e's exponent in its first word; one half is 0.1000… in binary."""
    half = 2**63
    for further, happens in (([0, 0], False), ([0, 5], False)):
        words = iter([half, *further, 0])
        assert sampler._is_below(sampler._half, 1, words.__next__) is happens
    # 0.0111…1 and more is below a half, however long: the next word cannot change it.
    assert sampler._is_below(sampler._half, 1, iter([half - 1]).__next__)
    # A third is 0.0101…: 64 digits of it are open, and the next word decides.
    third = int("01" * 32, 2)

    def exponent(again):
        return 1, 1, 3

    assert sampler._is_below(exponent, 1, iter([third, third - 1]).__next__)
    assert not sampler._is_below(exponent, 1, iter([third, third + 1]).__next__)


@pytest.mark.parametrize("source", [SecureNoise(), InsecureSeededNoise(1)])
@pytest.mark.parametrize(("d", "scale"), [(1, 2.0**27), (5, 1e6 / 3), (MAX_L2_DIMENSION, 2.0**50)])
def test_the_sources_have_the_moments_that_they_claim(source, d, scale):
    n = 1500
    x = np.array([source.l2(scale, d, (0, 0, i)) for i in range(n)]) / scale
    radius = np.linalg.norm(x, axis=1)  # a sum of n·d exponential numbers in all
    assert stats.gamma(n * d).ppf(RARE) < radius.sum() < stats.gamma(n * d).isf(RARE)
    signs = stats.binom(n * d, 0.5)
    assert signs.ppf(RARE) < (x > 0).sum() < signs.isf(RARE)


def test_secure_noise_is_fresh_in_every_process_and_deaf_to_seeds(in_fork):
    draws = []
    for _ in range(2):
        np.random.seed(0)
        draws.append(SecureNoise().l2(2.0**27, 5).tolist())
    draws += [in_fork(lambda: SecureNoise().l2(2.0**27, 5).tolist()) for _ in range(2)]
    assert len(set(map(tuple, draws))) == 4


def test_the_largest_noise_does_not_overflow():
    """It comes modulo 2^64, which is a function of the release like any other."""
    drawn = SecureNoise().l2(2.0**200, 3)
    assert drawn.dtype == np.int64
    assert drawn.shape == (3,)


@pytest.mark.parametrize(("scale", "d"), [(2.0, 1), (1.5, 2), (0.8, 2)])
def test_on_the_lattice_no_probability_grows_by_more_than_the_pure_epsilon(scale, d):
    """Every shift up to length 2, every outcome: log ratio at most |shift| / scale, and nearly that somewhere."""
    edge = 9
    log_mass = np.log(cell_masses(scale, d, edge))
    largest = 0.0
    for shift in product(range(-2, 3), repeat=d):
        if not 0 < np.linalg.norm(shift) <= 2:
            continue
        inner = tuple(slice(2, -2) for _ in range(d))
        moved = tuple(slice(2 - s, -2 - s) for s in shift)
        ratio = np.abs(
            log_mass[inner]
            - np.pad(log_mass, 2)[
                tuple(slice(m.start + 2, m.start + 2 + log_mass[inner].shape[0]) for m in moved)
            ]
        ).max()
        assert ratio <= np.linalg.norm(shift) / scale * (1 + 1e-9)
        largest = max(largest, ratio * scale / np.linalg.norm(shift))
    assert largest > 0.9


# -- what the release gives away --------------------------------------------------------------------


def released(total, z, d, noise, relation=SUBSTITUTE_ONE, bound=1.0):
    return l2_noisy_total(
        [np.asarray(total)],
        dimension=d,
        bound=bound,
        noise_multiplier=z,
        permit=Permit(0, 0, (L2Mechanism(z, d or 1),)),
        noise=noise,
        neighbours=relation,
    )


class Quieter:
    """A source with less noise than is asked for."""

    secure = True

    def __init__(self, times, seed):
        self.times, self.words = times, seeded(seed)

    def l2(self, scale, size, at):
        return l2_noise(scale / self.times, size, self.words)


@pytest.mark.parametrize(("relation", "moved"), [(SUBSTITUTE_ONE, 2.0), (ADD_OR_REMOVE, 1.0)])
def test_the_best_attack_gains_what_is_charged_and_more_if_the_noise_is_too_small(relation, moved):
    """Which of two neighbours it was, by which centre is nearer, and by how much: the log-likelihood ratio."""
    z, d, n = 0.4, 2, 3000
    other = np.array([moved * RESOLUTION, 0]).astype(np.int64)
    excess = {}
    for times in (1.0, 1.2):
        noise = Quieter(times, 4)
        looks = [
            np.array([released(total, z, d, noise, relation) for _ in range(n)]) / moved
            for total in (np.zeros(d, np.int64), other)
        ]
        loss = [(np.linalg.norm(x - [1, 0], axis=1) - np.linalg.norm(x, axis=1)) / z for x in looks]
        gains = []
        for epsilon in (0.0, 0.8, 1.6):
            p, q = ((each >= epsilon).mean() for each in loss)
            error = math.sqrt((p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)) / n)
            gains.append((p - math.exp(epsilon) * q - l2_delta(epsilon, z, d)) / error)
        excess[times] = max(gains)
    assert excess[1.0] < 3 < 4 < excess[1.2]


def test_without_noise_it_is_the_sum_and_with_noise_as_spread_as_is_said():
    total = np.array([RESOLUTION, -RESOLUTION // 2, 0])
    exact = released(total, 0, 3, InsecureSeededNoise(0), bound=2.0)
    assert exact == pytest.approx([2.0, -1.0, 0.0])
    assert released(total[:1], 0, None, InsecureSeededNoise(0)).shape == ()
    for relation in (SUBSTITUTE_ONE, ADD_OR_REMOVE):
        noise = Quieter(1.0, 5)
        x = np.array([released(total, 3.0, 3, noise, relation, 2.0) for _ in range(1000)]) - exact
        radius = np.linalg.norm(x, axis=1) / (3.0 * relation.of_sum(2.0))
        assert stats.kstest(radius, stats.gamma(3).cdf).pvalue > 1e-3


def test_it_is_paid_for_before_anything_is_read():
    def parts():
        raise AssertionError
        yield

    settings_of = {"dimension": 3, "bound": 1.0, "noise_multiplier": 2.0, "noise": SecureNoise()}
    for refused in (
        Permit(0, 0, ()),
        Permit(0, 0, (Gaussian(2.0),)),
        Permit(0, 0, (L2Mechanism(2.0, 4),)),
        Permit(0, 0, (L2Mechanism(1.9, 3),)),
    ):
        with pytest.raises(PrivacyBudgetExceeded):
            l2_noisy_total(parts(), permit=refused, **settings_of)
    paid = Permit(0, 0, (L2Mechanism(2.0, 3),))
    with pytest.raises(AssertionError):
        l2_noisy_total(parts(), permit=paid, **settings_of)
    with pytest.raises(PrivacyBudgetExceeded):
        paid.take(L2Mechanism(2.0, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"bound": 0.0},
        {"bound": math.nan},
        {"noise_multiplier": 0},
        {"noise_multiplier": 2.0**29},
        {"dimension": 0},
        {"dimension": MAX_L2_DIMENSION + 1},
    ],
    ids=str,
)
def test_a_release_that_cannot_be_is_refused_before_it_is_paid_for(wrong):
    paid = Permit(0, 0, (L2Mechanism(2.0, 3),))
    asked = {"dimension": 3, "bound": 1.0, "noise_multiplier": 2.0, "noise": SecureNoise(), **wrong}
    with pytest.raises(PrivacyConfigurationError):
        l2_noisy_total([], permit=paid, **asked)
    assert paid.take(L2Mechanism(2.0, 3))


# -- the option of a privacy filter ------------------------------------------------------------------

Z, OPTION = 4.0, L2Option(1.3, 5, 0.2)


def with_option(option=OPTION):
    return PrivacyFilter(Permit(0, 0, option.events(Z)), Z, option)


def test_it_can_be_taken_once_and_then_nothing_else():
    money = with_option()
    parts = [event for share in (0.15, 0.05) for event in money.permit(share)[1].events]
    assert money.option == OPTION
    z, permit = money.exchange(5)
    assert z == OPTION.noise_multiplier
    assert permit.events == (OPTION.release,)
    assert gaussian_mu(parts) <= math.sqrt(OPTION.share) / Z
    assert money.spent == 1
    assert money.option is None
    for spend in (lambda: money.exchange(5), lambda: money.permit(1e-3)):
        with pytest.raises(PrivacyBudgetExceeded):
            spend()
    before, last = money.close()
    assert last == OPTION.release
    assert (
        gaussian_mu(parts) <= gaussian_mu([before]) == pytest.approx(gaussian_mu(parts), rel=1e-6)
    )
    assert money.close() == ()


def test_beyond_its_share_it_is_gone_and_the_rest_is_gaussian():
    money = with_option()
    parts = list(money.permit(0.2 + 1e-6)[1].events)
    assert money.option is None
    with pytest.raises(PrivacyBudgetExceeded, match="cannot be exchanged"):
        money.exchange(5)
    parts += money.permit(0.8 - 1e-6)[1].events
    assert gaussian_mu(parts) <= 1 / Z
    (whole,) = money.close()
    assert gaussian_mu([whole]) == pytest.approx(1 / Z)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(1e-6, 0.5), max_size=8), st.integers(0, 8), st.floats(0, 0.9))
def test_whatever_is_asked_for_what_is_given_out_is_within_what_was_charged(shares, when, allowed):
    option = L2Option(1.3, 5, allowed)
    money, before, after, exchanged = with_option(option), [], [], False
    for i, share in enumerate([*shares, None]):
        try:
            if i == when or share is None:
                exchanged |= bool(money.exchange(5))
            else:
                spent = before if money.spent + share <= allowed else after
                spent += money.permit(share)[1].events
        except PrivacyBudgetExceeded:
            pass
    assert gaussian_mu(before + after) <= 1 / Z
    if exchanged:
        assert gaussian_mu(before + after) <= math.sqrt(allowed) / Z
        assert money.spent == 1


def test_at_a_share_of_nothing_it_is_had_first_or_never():
    first, never = with_option(L2Option(1.3, 5, 0.0)), with_option(L2Option(1.3, 5, 0.0))
    first.exchange(5)
    assert first.close() == (OPTION.release,)
    never.permit(1e-6)
    with pytest.raises(PrivacyBudgetExceeded):
        never.exchange(5)


def test_there_is_none_without_one_and_none_for_another_dimension():
    plain = PrivacyFilter(Permit(0, 0, (Gaussian(Z),)), Z)
    assert plain.option is None
    with pytest.raises(PrivacyBudgetExceeded):
        plain.exchange(5)
    money = with_option()
    with pytest.raises(PrivacyConfigurationError, match="5 numbers"):
        money.exchange(4)
    assert money.spent == 0
    assert money.exchange(5)


def test_it_has_to_be_in_the_permit():
    events = OPTION.events(Z)
    for lacking in ((Gaussian(Z),), events[:1], events[1:]):
        with pytest.raises(PrivacyBudgetExceeded):
            PrivacyFilter(Permit(0, 0, lacking), Z, OPTION)


def test_copies_and_forks_cannot_take_it(in_fork):
    money = with_option()
    assert isinstance(in_fork(lambda: money.exchange(5)), PrivacyBudgetExceeded)
    with pytest.raises(TypeError):
        copy.copy(money)
    assert money.exchange(5)


class Total:
    """Records of which only one sum is asked."""

    n_units = 10

    def __init__(self):
        self.read = 0

    def total(self, of, bound):
        self.read += 1
        return np.array([RESOLUTION, 0, 0, 0, 0])


class Five:
    dimension, about = 5, "scores"


def test_the_last_sum_is_paid_for_by_all_that_is_left():
    records, money = Total(), with_option()
    measure = PaidMeasurements(Curator(records, InsecureSeededNoise(3)), money)
    for bound in (0.0, math.nan):
        with pytest.raises(PrivacyConfigurationError):
            measure.last_sum(Five(), bound)
    assert records.read == 0
    assert measure.spent == 0
    measure.sum(Five(), 2.0, 0.2)
    total, sd = measure.last_sum(Five(), 2.0)
    assert sd == pytest.approx(1.3 * 4.0 * math.sqrt(6))
    assert (
        np.linalg.norm(total - [2.0, 0, 0, 0, 0]) < 20 * 1.3 * 4.0
    )  # a gamma of shape 5: e^-20 · 20⁴
    assert measure.spent_on == {"scores": pytest.approx(1.0)}
    with pytest.raises(PrivacyBudgetExceeded):
        measure.last_sum(Five(), 2.0)
    assert records.read == 2


# -- under other neighbours, and in words --------------------------------------------------------------


def test_it_is_proved_when_a_unit_comes_or_goes_and_replacing_one_moves_a_sum_twice_as_far():
    events = Gaussian(4.0, 3), L2Mechanism(2.0, 5), GaussianOrL2(4.0, 2.0, 5, 2)
    ADD_OR_REMOVE.check(events)
    twice = Gaussian(2.0, 3), L2Mechanism(1.0, 5), GaussianOrL2(2.0, 1.0, 5, 2)
    assert ADD_OR_REMOVE.under_substitution(events) == twice
    assert SUBSTITUTE_ONE.under_substitution(events) == events


def test_events_say_what_they_are():
    assert "ℓ2" in describe(L2Mechanism(2.0, 5))
    assert "5 dimensions" in describe(L2Mechanism(2.0, 5))
    assert all(number in describe(GaussianOrL2(4.25, 1.75, 7)) for number in ("4.25", "1.75", "7"))
