"""From a budget to a noise multiplier or a number of draws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfc, erfcx

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy import calibration
from pymc_dp.privacy.accounting import composed_epsilon, gaussian_epsilon, gaussian_mu_within
from pymc_dp.privacy.calibration import calibrate_batch_size, calibrate_noise, max_releases
from pymc_dp.privacy.events import BarkerBatch, Gaussian, PoissonGaussian
from pymc_dp.privacy.rdp import ORDERS, gaussian_curve, rdp_epsilon, without_replacement

SWEEP = settings(max_examples=150, deadline=None, derandomize=True, database=None)
deltas = st.floats(-12, -1).map(lambda x: 10**x)
epsilons = st.floats(-3, 7).map(lambda x: 10**x)


# -- noise for a number of releases ---------------------------------------------------------------


@pytest.mark.sweep
@SWEEP
@given(epsilons, deltas, st.integers(1, 10**6))
def test_calibrated_noise_never_overshoots_and_is_tight(epsilon, delta, draws):
    z = calibrate_noise(epsilon=epsilon, delta=delta, releases=draws)
    assert composed_epsilon([Gaussian(z, draws)], delta) <= epsilon
    assert composed_epsilon([Gaussian(z * (1 - 1e-6), draws)], delta) > epsilon


def test_calibration_does_not_creep(monkeypatch):
    """The last correction is a handful of evaluations, whatever the budget."""
    evaluations = []

    def counted(mu, delta):
        evaluations.append(mu)
        return gaussian_epsilon(mu, delta)

    monkeypatch.setattr(calibration, "gaussian_epsilon", counted)
    for epsilon in (1e-5, 0.01, 1.0):
        calibrate_noise(epsilon=epsilon, delta=1e-6, releases=10)
        assert len(evaluations) < 40
        evaluations.clear()


def test_an_infinite_budget_needs_no_noise():
    assert calibrate_noise(epsilon=math.inf, delta=1e-6, releases=10) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *({"epsilon": e} for e in (0, -1.0, math.nan, True, "1", None)),
        *({"delta": d} for d in (0, 1, -1e-6, math.nan, math.inf, True, "1", None)),
        *({"releases": n} for n in (0, -1, 1.0, math.nan, True, "1", None)),
        *({"sampling_rate": q} for q in (0, -0.1, 1.1, math.nan, True, "1", None)),
    ],
    ids=str,
)
def test_calibration_refuses_settings_out_of_range(wrong):
    (name,) = wrong
    with pytest.raises(PrivacyConfigurationError, match=f"`{name}`"):
        calibrate_noise(**{"epsilon": 1.0, "delta": 1e-6, "releases": 10, **wrong})


# -- releases for a noise multiplier --------------------------------------------------------------

N = 100_000  # records of the flat banana, τ = 0.1: z = τ √n


@pytest.mark.parametrize(
    ("accountant", "draws"), [("gaussian", [56, 201, 702, 1431]), ("zcdp", [34, 135, 507, 1079])]
)
def test_max_releases_of_the_penalty_algorithm_in_the_thesis(accountant, draws):
    z = 0.1 * math.sqrt(N)
    found = [
        max_releases(epsilon=e, delta=1e-6, noise_multiplier=z, accountant=accountant)
        for e in (1.0, 2.0, 4.0, 6.0)
    ]
    assert found == draws


@pytest.mark.parametrize(
    ("accountant", "draws"), [("gaussian", [33, 119, 416, 848]), ("zcdp", [20, 80, 300, 639])]
)
def test_max_releases_of_dp_hmc_in_the_thesis(accountant, draws):
    found = [
        max_releases(
            epsilon=e,
            delta=1e-6,
            noise_multiplier=0.1 * math.sqrt(N),
            gradient_multiplier=0.4 * math.sqrt(N),
            gradients_per_draw=11,
            accountant=accountant,
        )
        for e in (1.0, 2.0, 4.0, 6.0)
    ]
    assert found == draws


def algorithm_2(epsilon, delta, z):
    """Algorithm 2 of Räisä (2021), line by line; z = τ n^α."""

    def zcdp():
        rho = (math.sqrt(epsilon - math.log(delta)) - math.sqrt(-math.log(delta))) ** 2
        return 2 * z**2 * rho

    def adp(k):
        kmu = k / (2 * z**2)
        a, b = (epsilon - kmu) / (2 * math.sqrt(kmu)), (epsilon + kmu) / (2 * math.sqrt(kmu))
        return (erfc(a) - math.exp(-(a**2)) * erfcx(b)) / 2  # e^ε erfc(b), without overflow

    low = zcdp()
    high = max(low, 1)
    while adp(high) < delta:
        high = high * 2
    while math.floor(high) - math.floor(low) > 1:
        new = (high + low) / 2
        if adp(new) > delta:
            high = new
        else:
            low = new
    return math.floor(high) if adp(math.floor(high)) < delta else math.floor(low)


@SWEEP
@given(st.floats(0.05, 100), st.floats(-9, -2), st.floats(0.05, 500))
def test_max_releases_is_algorithm_2_of_the_thesis(epsilon, log_delta, z):
    delta = 10**log_delta
    found, wanted = (
        max_releases(epsilon=epsilon, delta=delta, noise_multiplier=z),
        algorithm_2(epsilon, delta, z),
    )
    if wanted < 10**5:
        assert found == wanted
    else:  # our ε is rounded up by 1e-9, which among millions of draws can cost one
        assert wanted * (1 - 1e-7) <= found <= wanted


@pytest.mark.sweep
@SWEEP
@given(st.floats(0.1, 1e3), deltas, st.floats(0.1, 500), st.floats(0.1, 500), st.integers(0, 30))
def test_max_releases_fit_the_budget_and_one_more_does_not(epsilon, delta, z, z_g, gradients):
    def cost(k):
        releases = (z, k), (z_g, k * gradients)
        return composed_epsilon([Gaussian(*r) for r in releases if r[1]], delta)

    settings = {"noise_multiplier": z}
    if gradients:
        settings |= {"gradient_multiplier": z_g, "gradients_per_draw": gradients}
    k = max_releases(epsilon=epsilon, delta=delta, **settings)
    assert cost(k) <= epsilon < cost(k + 1)
    zcdp = max_releases(epsilon=epsilon, delta=delta, **settings, accountant="zcdp")
    assert zcdp <= k


@SWEEP
@given(st.floats(0.1, 1e3), st.integers(1, 10**5))
def test_max_releases_inverts_calibration(epsilon, draws):
    z = calibrate_noise(epsilon=epsilon, delta=1e-6, releases=draws) * (1 + 1e-7)
    assert max_releases(epsilon=epsilon, delta=1e-6, noise_multiplier=z) == draws


def test_max_releases_fit_where_the_affordable_number_is_whole():
    """Rounding of μ brings such numbers to either side of a whole one."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        epsilon, delta, k = (
            10 ** rng.uniform(-3, 1),
            10 ** -rng.uniform(3, 10),
            int(rng.integers(2, 100)),
        )
        z = math.sqrt(k) / gaussian_mu_within(epsilon, delta)
        found = max_releases(epsilon=epsilon, delta=delta, noise_multiplier=z)
        assert composed_epsilon([Gaussian(z, found)], delta) <= epsilon
        assert found in (k, k - 1)


def test_max_releases_says_zero_when_one_is_too_many():
    assert max_releases(epsilon=1.0, delta=1e-6, noise_multiplier=0.5) == 0


HMC = {"gradient_multiplier": 40.0, "gradients_per_draw": 11}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        *(({"epsilon": e}, "epsilon") for e in (0, -1.0, math.nan, math.inf, True, "1")),
        *(({"delta": d}, "delta") for d in (0, 1, -1e-6, math.nan, math.inf, True, "1")),
        *(
            ({"noise_multiplier": z}, "noise_multiplier")
            for z in (0, -1.0, math.nan, math.inf, "1", None)
        ),
        *(
            ({**HMC, "gradient_multiplier": z}, "gradient_multiplier")
            for z in (0, -1.0, math.nan, math.inf, "1", None)
        ),
        ({"accountant": "rdp"}, "accountant"),
        ({"accountant": "zcdp", "sampling_rate": 0.1}, "accountant"),
        *(({"sampling_rate": q}, "sampling_rate") for q in (0, -0.1, 1.1, math.nan, True, "1")),
    ],
    ids=str,
)
def test_max_releases_refuses_settings_out_of_range(wrong, name):
    with pytest.raises(PrivacyConfigurationError, match=f"`{name}`"):
        max_releases(**{"epsilon": 1.0, "delta": 1e-6, "noise_multiplier": 10.0, **wrong})


@pytest.mark.parametrize("bad", [-1, -11, 2.5, math.nan, math.inf, "1"])
def test_max_releases_refuses_a_number_of_gradients_that_is_none(bad):
    """A negative one would count as a refund and allow more draws than the budget pays for."""
    with pytest.raises(PrivacyConfigurationError, match="`gradients_per_draw`"):
        max_releases(
            epsilon=1.0,
            delta=1e-6,
            noise_multiplier=10.0,
            gradient_multiplier=40.0,
            gradients_per_draw=bad,
        )


def test_max_releases_refuses_gradients_of_an_unknown_number():
    """Counting no gradient where some were meant allows too many draws."""
    with pytest.raises(PrivacyConfigurationError, match="`gradients_per_draw`"):
        max_releases(epsilon=1.0, delta=1e-6, noise_multiplier=10.0, gradient_multiplier=40.0)


def test_more_budget_buys_more_draws():
    draws = [
        max_releases(epsilon=e, delta=1e-6, noise_multiplier=30.0)
        for e in np.geomspace(0.1, 1e3, 40)
    ]
    assert draws == sorted(draws)
    assert draws[-1] > 100 * draws[20]


# -- samples of the units -------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("epsilon", "delta", "draws", "q"),
    [
        (1.0, 1e-6, 1000, 0.01),
        (0.1, 1e-8, 300, 0.2),
        pytest.param(4.0, 1e-6, 50_000, 1e-3, marks=pytest.mark.nightly),
        (50.0, 1e-6, 2000, 0.1),
        (1000.0, 1e-6, 1000, 0.01),
        pytest.param(0.5, 1e-5, 1, 1e-3, marks=pytest.mark.nightly),
    ],
)
def test_noise_for_samples_never_overshoots_is_tight_and_inverted_by_max_releases(
    epsilon, delta, draws, q
):
    z = calibrate_noise(epsilon=epsilon, delta=delta, releases=draws, sampling_rate=q)
    assert composed_epsilon([PoissonGaussian(z, q, draws)], delta) <= epsilon
    assert composed_epsilon([PoissonGaussian(z * (1 - 1e-5), q, draws)], delta) > epsilon
    assert z < calibrate_noise(epsilon=epsilon, delta=delta, releases=draws)
    within = max_releases(epsilon=epsilon, delta=delta, noise_multiplier=z, sampling_rate=q)
    assert draws <= within <= draws * (1 + 1e-4)


@pytest.mark.sweep
def test_calibration_for_samples_takes_few_evaluations(monkeypatch):
    evaluations = []

    def counted(events, delta):
        evaluations.append(events)
        return composed_epsilon(events, delta)

    monkeypatch.setattr(calibration, "composed_epsilon", counted)
    z = calibrate_noise(epsilon=1.0, delta=1e-6, releases=1000, sampling_rate=0.01)
    assert len(evaluations) < 20
    evaluations.clear()
    max_releases(epsilon=1.0, delta=1e-6, noise_multiplier=z, sampling_rate=0.01)
    assert len(evaluations) < 30


@pytest.mark.sweep
def test_a_rate_of_one_is_all_units():
    for budget in ({"epsilon": 1.0, "delta": 1e-6}, {"epsilon": 20.0, "delta": 1e-9}):
        z = calibrate_noise(**budget, releases=100)
        assert calibrate_noise(**budget, releases=100, sampling_rate=1) == z
        nearly = calibrate_noise(**budget, releases=100, sampling_rate=1 - 1e-9)
        assert nearly == pytest.approx(z, rel=1e-4)
        assert max_releases(**budget, noise_multiplier=z, sampling_rate=1) == 100


def test_an_infinite_budget_needs_no_noise_for_samples_either():
    assert calibrate_noise(epsilon=math.inf, delta=1e-6, releases=10, sampling_rate=0.1) == 0


def test_where_delta_covers_the_sampling_hardly_any_noise_is_needed():
    """δ = 1e-3 is more than the probability 1e-5 that a unit is ever sampled."""
    z = calibrate_noise(epsilon=1.0, delta=1e-3, releases=10, sampling_rate=1e-6)
    assert 0 < z < 1e-3
    assert composed_epsilon([PoissonGaussian(z, 1e-6, 10)], 1e-3) <= 1.0


@pytest.mark.sweep
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (3.0, 0.1)])
def test_max_releases_with_samples_and_gradients_fit_and_one_more_does_not(z, q):
    settings = {"gradient_multiplier": 200.0, "gradients_per_draw": 3, "sampling_rate": q}
    k = max_releases(epsilon=2.0, delta=1e-6, noise_multiplier=z, **settings)
    assert k > 10

    def cost(k):
        return composed_epsilon([PoissonGaussian(z, q, k), Gaussian(200.0, 3 * k)], 1e-6)

    assert cost(k) <= 2.0 < cost(k + 1)
    del settings["gradient_multiplier"], settings["gradients_per_draw"]
    assert max_releases(epsilon=2.0, delta=1e-6, noise_multiplier=z, **settings) > k


def test_max_releases_of_samples_says_zero_when_one_is_too_many():
    assert max_releases(epsilon=0.1, delta=1e-6, noise_multiplier=0.1, sampling_rate=0.5) == 0


@pytest.mark.sweep
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.5, 1e-3), (5.0, 0.3)])
def test_max_releases_by_theorem_3_5_of_the_thesis(z, q):
    settings = {"epsilon": 4.0, "delta": 1e-6, "noise_multiplier": z, "sampling_rate": q}
    k = max_releases(**settings, accountant="rdp")
    rdp = without_replacement(lambda alpha: gaussian_curve(alpha, z), q)
    assert rdp_epsilon(k * rdp, 1e-6) <= 4.0 < rdp_epsilon((k + 1) * rdp, 1e-6)
    assert k < max_releases(**settings)
    fewer = max_releases(
        **settings, accountant="rdp", gradient_multiplier=50.0, gradients_per_draw=2
    )
    with_gradients = rdp + 2 * gaussian_curve(ORDERS, 50.0)
    assert rdp_epsilon(fewer * with_gradients, 1e-6) <= 4.0
    assert rdp_epsilon((fewer + 1) * with_gradients, 1e-6) > 4.0


# -- batches of a Barker test ---------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("variance", [1.5, 2.0, 3.0])
def test_the_batch_fits_and_one_unit_more_does_not(epsilon, variance):
    draws, units = 1_000_000, 1_000_000
    b = calibrate_batch_size(
        epsilon=epsilon, delta=1e-7, tests=draws, units=units, variance=variance
    )
    for size, fits in ((b, True), (b + 1, False)):
        cost = composed_epsilon([BarkerBatch(variance, size, units, draws)], 1e-7)
        assert (cost <= epsilon) is fits


def test_the_batch_grows_with_the_budget_up_to_everybody():
    sizes = [
        calibrate_batch_size(epsilon=e, delta=1e-6, tests=10_000, units=100_000)
        for e in (1.0, 2.0, 3.0, 100.0)
    ]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 100_000


def test_a_budget_for_no_batch_is_refused_with_its_reason():
    with pytest.raises(PrivacyConfigurationError, match="No batch of 10 units or more") as refusal:
        calibrate_batch_size(epsilon=0.01, delta=1e-6, tests=10**6, units=10_000)
    assert "fewer iterations" in str(refusal.value)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"epsilon": e} for e in (0, -1.0, math.nan, True, "1", None)),
        *({"delta": d} for d in (0, 1, math.nan, True, "1", None)),
        *({"tests": n} for n in (0, 1.0, True, "1", None)),
        *({"units": n} for n in (0, 9, 1e5, True, "1", None)),
        *({"variance": c} for c in (1.0, 4.0, math.nan, "2", None)),
    ],
    ids=str,
)
def test_batch_calibration_refuses_settings_out_of_range(wrong):
    (name,) = wrong
    with pytest.raises(PrivacyConfigurationError, match=f"`{name}`"):
        calibrate_batch_size(**{"epsilon": 1.0, "delta": 1e-6, "tests": 10, "units": 1000, **wrong})


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-12, 1e-15), (1e-14, 1e-300)])
def test_a_budget_that_rounds_to_nothing_is_refused_by_name(epsilon, delta):
    with pytest.raises(PrivacyConfigurationError, match=r"`epsilon=1e-1[24]`"):
        calibrate_noise(epsilon=epsilon, delta=delta, releases=1)
