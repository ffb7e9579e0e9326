"""ε and δ against closed forms in high precision and against dp-accounting."""

import math
from functools import partial

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.checks import check_delta, check_epsilon
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.accounting import (
    composed_epsilon,
    epsilon_that_fits,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_mu_within,
    spending_curve,
    zcdp_rho_within,
)
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian, Laplace, PoissonGaussian, times

SWEEP = settings(max_examples=100, deadline=None, derandomize=True, database=None)
multipliers = st.floats(1e-3, 1e5)
deltas = st.floats(-12, -1).map(lambda x: 10**x)


def exact_delta(epsilon, mu):
    with mpmath.workdps(60):
        epsilon, mu = mpmath.mpf(float(epsilon)), mpmath.mpf(float(mu))
        below = mpmath.ncdf(mu / 2 - epsilon / mu)
        return below - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def pld_epsilon(delta, *events):
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(delta)


# -- δ of a Gaussian composition ------------------------------------------------------------------


def excess_of_delta(low, high):
    """Relative excess of the reported δ over the true one, from e^-200 to 1."""
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(1000):
        mu = 10 ** rng.uniform(low, high)
        epsilon = max(0.0, mu**2 / 2 + mu * rng.uniform(-5, 20))
        true = exact_delta(epsilon, mu)
        excess.append(float((mpmath.mpf(float(gaussian_delta(epsilon, mu))) - true) / true))
    return np.array(excess)


@pytest.mark.parametrize(
    ("low", "high", "tiny"),
    [
        (-4, -1, 1e-6),
        (-1, 1, 1e-9),
        (1, 2, 1e-10),
        (2, 5, 1e-8),
    ],
)
def test_delta_is_never_below_the_closed_form_and_hardly_above(low, high, tiny):
    excess = excess_of_delta(low, high)
    assert excess.min() >= 0
    assert excess.max() < tiny


def test_delta_at_the_ends():
    assert gaussian_delta(1.0, 0.0) == 0
    assert gaussian_delta(1.0, math.inf) == 1
    assert gaussian_delta([0.0, 1.0], [[1.0], [2.0]]).shape == (2, 2)


def test_delta_of_an_infinite_epsilon_is_not_nan():
    assert not np.isnan(gaussian_delta([math.inf, 1e200], 1.0)).any()


# -- ε of a Gaussian composition ------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # dp-accounting's own
def test_epsilon_agrees_with_dp_accounting_and_is_never_below():
    rng = np.random.default_rng(1)
    for _ in range(1100):
        mu, delta = 10 ** rng.uniform(-4, math.log10(30)), 10 ** rng.uniform(-12, -1)
        ours, theirs = gaussian_epsilon(mu, delta), get_epsilon_gaussian(1 / mu, delta)
        assert 0 <= ours - theirs < 1e-6


@pytest.mark.sweep
def test_epsilon_is_an_upper_bound_of_the_exact_one():
    """At every size, the debugging ones (ε = 1e9) included."""
    rng = np.random.default_rng(2)
    for _ in range(500):
        mu, delta = 10 ** rng.uniform(-4, 4.5), 10 ** rng.uniform(-15, -0.01)
        epsilon = gaussian_epsilon(mu, delta)
        assert exact_delta(epsilon, mu) <= delta
        if epsilon > 0:
            assert exact_delta(epsilon * (1 - 3e-9) - 3e-11, mu) > delta  # and tight


@pytest.mark.sweep
@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_epsilon_is_not_above_the_pld_accountants(mu, delta):
    pessimistic = pld_epsilon(delta, dp_event.GaussianDpEvent(1 / mu))
    assert gaussian_epsilon(mu, delta) <= pessimistic * (1 + 1e-8) + 1e-8


@pytest.mark.sweep
def test_epsilon_is_monotone():
    mu = np.geomspace(1e-3, 1e3, 200)
    for delta in (1e-9, 1e-3, 0.3):
        epsilon = gaussian_epsilon(mu, delta)
        assert np.all(np.diff(epsilon) >= 0)
        assert np.all(np.diff(epsilon[epsilon > 0]) > 0)
    for m in (0.1, 1.0, 30.0):
        assert np.all(np.diff([gaussian_epsilon(m, d) for d in np.geomspace(1e-12, 0.5, 100)]) <= 0)


def test_epsilon_at_the_ends():
    assert gaussian_epsilon(0.0, 1e-6) == 0
    assert gaussian_epsilon(math.inf, 1e-6) == math.inf
    assert gaussian_epsilon(1e-4, 0.1) == 0  # δ alone covers it
    assert gaussian_epsilon([0.0, 1.0, math.inf], 1e-6).tolist() == [
        0,
        gaussian_epsilon(1.0, 1e-6),
        math.inf,
    ]


def test_what_is_not_a_number_is_not_free():
    assert not gaussian_epsilon(math.nan, 1e-6) < math.inf


@SWEEP
@given(st.floats(-3, 6).map(lambda x: 10**x), deltas)
def test_the_largest_mu_within_a_budget_is_within_it_and_the_largest(epsilon, delta):
    mu = gaussian_mu_within(epsilon, delta)
    assert gaussian_epsilon(mu, delta) <= epsilon * (1 + 1e-11)  # two bisections
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu * (1 + 1e-5)) > delta


@SWEEP
@given(st.floats(1e-3, 1e3), deltas)
def test_zcdp_is_sound_but_looser_than_the_closed_form(epsilon, delta):
    rho = zcdp_rho_within(epsilon, delta)
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) == pytest.approx(epsilon, rel=1e-9)
    assert math.sqrt(2 * rho) < gaussian_mu_within(epsilon, delta)


@pytest.mark.sweep
@pytest.mark.parametrize("z", [1e-4, 1e-3, 0.01])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_epsilon_covers_the_discrete_gaussian_on_our_grid(z, delta):
    """What is released is discrete noise; accounting is for continuous noise.

    δ of the discrete one (Canonne, Kamath and Steinke, 2020, Theorem 7), summed over the integers.
    """
    epsilon = gaussian_epsilon(1 / z, delta)
    sensitivity = 2 * RESOLUTION
    scale = z * sensitivity
    crossing = epsilon * scale**2 / sensitivity - sensitivity / 2  # where the loss exceeds ε
    k = np.arange(math.ceil(crossing), math.ceil(crossing + 9 * scale))
    log_mass = -((k / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))
    beyond = np.maximum((k - crossing) * sensitivity / scale**2, 0)
    assert np.sum(np.exp(log_mass) * -np.expm1(-beyond)) <= delta


# -- composition ----------------------------------------------------------------------------------


@pytest.mark.sweep
@SWEEP
@given(multipliers, st.integers(1, 1000), deltas)
def test_a_count_of_k_is_k_releases(z, k, delta):
    once = gaussian_mu([Gaussian(z)])
    assert gaussian_mu([Gaussian(z, k)]) == pytest.approx(math.sqrt(k) * once, rel=1e-14)
    together = composed_epsilon([Gaussian(z, k)], delta)
    assert composed_epsilon([Gaussian(z)] * k, delta) == pytest.approx(together, rel=1e-11)
    assert composed_epsilon(times([Gaussian(z)], k), delta) == together


@pytest.mark.sweep
@SWEEP
@given(st.lists(st.tuples(multipliers, st.integers(1, 50)), min_size=1, max_size=4), deltas)
def test_order_does_not_matter_and_more_costs_more(plan, delta):
    events = [Gaussian(z, k) for z, k in plan]
    total = composed_epsilon(events, delta)
    assert composed_epsilon(events[::-1], delta) == pytest.approx(total, rel=1e-11)
    assert composed_epsilon(events[1:], delta) <= total
    assert composed_epsilon([*events, Gaussian(1.0)], delta) > total
    assert composed_epsilon([Gaussian(e.noise_multiplier / 2, e.count) for e in events], delta) >= (
        total
    )


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    assert composed_epsilon([], 1e-6) == 0
    for silent in (Gaussian(0), Laplace(0)):
        assert composed_epsilon([Gaussian(5.0), silent], 1e-6) == math.inf


@pytest.mark.parametrize("epsilon", [50.0, 1000.0, 1e6])
def test_large_epsilons_work(epsilon):
    mu = gaussian_mu_within(epsilon, 1e-6)
    assert composed_epsilon([Gaussian(1 / mu)], 1e-6) == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize(
    ("events", "mu"),
    [
        ([Gaussian(1e-200)], 1e200),
        ([Gaussian(1e200)], 1e-200),
        ([Gaussian(1e-154)] * 4, 2e154),
    ],
)
def test_extreme_multipliers_have_a_mu(events, mu):
    assert gaussian_mu(events) == pytest.approx(mu)


@SWEEP
@given(st.floats(0.5, 1e3), st.integers(1, 200), deltas)
def test_the_spending_curve_rises_to_the_cost_of_the_run(z, iterations, delta):
    events = (Gaussian(z), Gaussian(3 * z, 4))
    curve = spending_curve(events, iterations, delta)
    assert curve.shape == (iterations,)
    assert curve[-1] == pytest.approx(composed_epsilon(times(events, iterations), delta), rel=1e-11)
    assert np.all(np.diff(curve) >= 0)


def test_the_spending_curve_is_never_below_the_cost():
    events = (Gaussian(5.0), Laplace(5.0))
    assert spending_curve(events, 3, 1e-6)[-1] >= composed_epsilon(times(events, 3), 1e-6)


# -- other releases -------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "k"), [(1.0, 1), (5.0, 3), (20.0, 400)])
@pytest.mark.parametrize("delta", [1e-9, 1e-4])
def test_laplace_alone_costs_no_more_than_basic_composition(b, k, delta):
    assert composed_epsilon([Laplace(b, k)], delta) <= k / b * (1 + 1e-8)


@pytest.mark.parametrize("b", [0.2, 1.0, 10.0])
def test_one_laplace_release_has_its_exact_cost(b):
    exact = 1 / b + 2 * math.log1p(-1e-3)  # δ(ε) = 1 - exp((ε - 1/b) / 2)
    assert exact <= composed_epsilon([Laplace(b)], 1e-3) <= exact + 1e-4


def test_laplace_is_pure_dp_at_any_delta():
    assert composed_epsilon([Laplace(5.0, 3)], 1e-15) <= 3 / 5.0 * (1 + 1e-8)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "events",
    [
        [Gaussian(5.0, 100), Laplace(10.0, 20)],
        [Laplace(2.0), Gaussian(1.0), Gaussian(3.0), Laplace(4.0, 3)],
    ],
)
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_mixtures_compose(events, delta):
    """Between the parts and basic composition, and equal to dp-accounting's event by event."""
    gaussians = [e for e in events if isinstance(e, Gaussian)]
    pure = sum(e.count / e.noise_multiplier for e in events if isinstance(e, Laplace))
    total = composed_epsilon(events, delta)
    alone = composed_epsilon(gaussians, delta)
    assert alone < total <= alone + pure + 1e-3
    kinds = {Gaussian: dp_event.GaussianDpEvent, Laplace: dp_event.LaplaceDpEvent}
    theirs = pld_epsilon(
        delta,
        *(
            dp_event.SelfComposedDpEvent(kinds[type(e)](e.noise_multiplier), e.count)
            for e in events
        ),
    )
    assert total == pytest.approx(theirs, rel=2e-3)


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, -math.inf, True, "1", None, [1.0], 1j])
def test_an_epsilon_that_is_no_budget_is_refused(bad):
    for ask in (check_epsilon, lambda e: gaussian_mu_within(e, 1e-6)):
        with pytest.raises(PrivacyConfigurationError, match="`epsilon`"):
            ask(bad)


@pytest.mark.parametrize(
    "bad", [0, 1, 1.0, -1e-6, 2.0, math.nan, math.inf, -math.inf, True, "1e-6", None, [1e-6]]
)
def test_a_delta_that_is_no_probability_is_refused(bad):
    closed_forms = check_delta, partial(gaussian_epsilon, 1.0), partial(zcdp_rho_within, 1.0)
    compositions = (
        lambda d: composed_epsilon([Laplace(1.0)], d),
        lambda d: spending_curve((Gaussian(1.0),), 3, d),
    )
    for ask in (*closed_forms, *(() if bad == 0 else compositions)):
        with pytest.raises(PrivacyConfigurationError, match="`delta`"):
            ask(bad)


def test_an_infinite_budget_is_a_budget():
    assert check_epsilon(math.inf) == gaussian_mu_within(math.inf, 1e-6) == math.inf


def test_numpy_numbers_are_numbers():
    assert check_epsilon(np.float32(0.5)) == 0.5
    assert check_delta(np.float64(1e-6)) == 1e-6


# -- what is left of a budget ---------------------------------------------------------------------


def run_of(epsilon, delta):
    return Gaussian(calibrate_noise(epsilon=epsilon, delta=delta, releases=1))


@pytest.mark.sweep
@SWEEP
@given(st.floats(0.01, 30), st.floats(0.01, 0.999), deltas)
def test_what_fits_does_and_is_all_that_does(budget, part, delta):
    spent = [run_of(part * budget, delta)]
    fits = epsilon_that_fits(spent, budget, delta)
    assert fits <= budget
    if fits > 0:
        assert composed_epsilon([*spent, run_of(fits, delta)], delta) <= budget
        assert composed_epsilon([*spent, run_of(fits * 1.001, delta)], delta) > budget


def test_more_fits_than_the_difference():
    """By the rule of Gaussian differential privacy, in high precision: μ² adds up."""
    left = epsilon_that_fits([run_of(2.0, 1e-6)], 2.5, 1e-6)
    mu = math.sqrt(gaussian_mu_within(2.5, 1e-6) ** 2 - gaussian_mu_within(2.0, 1e-6) ** 2)
    assert float(exact_delta(left, mu)) == pytest.approx(1e-6, rel=1e-4)
    assert left > 1.3


@pytest.mark.sweep
@pytest.mark.parametrize("event", [PoissonGaussian(1.0, 0.01, 500), Laplace(4.0, 2)])
def test_what_fits_besides_other_releases(event):
    budget = 2 * composed_epsilon([event], 1e-6)
    fits = epsilon_that_fits([event], budget, 1e-6)
    assert budget * 0.999 < composed_epsilon([event, run_of(fits, 1e-6)], 1e-6) <= budget


def test_nothing_fits_an_account_that_is_used_up():
    assert epsilon_that_fits([run_of(1.0, 1e-6)], 1.0, 1e-6) < 1e-2
    assert epsilon_that_fits([run_of(1.1, 1e-6)], 1.0, 1e-6) == 0
    assert epsilon_that_fits([Laplace(1.0)], 1.0, 1e-6) < 1e-2
