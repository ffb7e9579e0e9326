"""Mechanisms: what they add to a model, what they release, and what that costs."""

import functools
import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model
from scipy import stats

from pymc_dp import PrivacyBudgetExceeded, PrivacyConfigurationError, PrivacyLedger
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    RandomizedResponse,
    ReleasedStatistic,
)
from pymc_dp.mechanisms.distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    draw_discrete_gaussian,
    draw_discrete_laplace,
)
from pymc_dp.mechanisms.law import charged_multiplier
from pymc_dp.privacy.accounting import gaussian_delta, gaussian_epsilon
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Gaussian, Laplace, Pure
from pymc_dp.privacy.pld import laplace_delta, pure_delta
from pymc_dp.statistics import (
    clamp,
    record_sum,
    second_moments,
    second_moments_sensitivity,
    sum_sensitivity,
)

CONTINUOUS = [LaplaceMechanism, GaussianMechanism]
DISCRETE = [DiscreteLaplaceMechanism, DiscreteGaussianMechanism]


def delta_of(mechanism):
    return {"delta": 1e-6} if mechanism.family == "gaussian" else {}


def log_mass(values, scale, family):
    k = np.arange(-4000, 4001)
    shape = -np.abs(k) / scale if family == "laplace" else -(k**2) / (2 * scale**2)
    at = -np.abs(values) / scale if family == "laplace" else -(values**2) / (2 * scale**2)
    return at - np.log(np.exp(shape).sum())


# -- distributions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 0.99, 1.01, 2.0, 40.0])
@pytest.mark.parametrize(("dist", "family"), [(DiscreteLaplace, "laplace"), (DiscreteGaussian, "gaussian")])  # fmt: skip
def test_log_mass_is_that_of_its_definition(dist, family, scale):
    values = np.array([-7, -1, 0, 2, 30])
    found = pm.logp(dist.dist(3, scale), values + 3).eval(mode="FAST_COMPILE")
    np.testing.assert_allclose(found, log_mass(values, scale, family), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [0.6, 1.5, 7.3])
@pytest.mark.parametrize(("draw", "family"), [(draw_discrete_laplace, "laplace"), (draw_discrete_gaussian, "gaussian")])  # fmt: skip
def test_simulated_noise_has_its_law(draw, family, scale):
    draws = draw(np.random.default_rng(5), scale, (40_000,))
    assert chi_square_p(draws, scale, family) > 1e-4


def chi_square_p(draws, scale, family):
    half = int(np.quantile(np.abs(draws), 0.99)) + 1
    cells = np.arange(-half, half + 1)
    mass = np.exp(log_mass(cells, scale, family))
    counts = np.array([(draws == k).sum() for k in cells])
    rest = len(draws) - counts.sum()
    expected = np.append(mass, 1 - mass.sum()) * len(draws)
    keep = expected > 5
    observed = np.append(counts, rest)
    observed, expected = (np.append(v[keep], max(v[~keep].sum(), 0)) for v in (observed, expected))
    used = expected > 5
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return stats.chi2.sf(statistic, used.sum() - 1)


# -- in a model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "log_density"),
    [
        (LaplaceMechanism, lambda r: stats.laplace.logpdf(r, scale=2.0)),
        (GaussianMechanism, lambda r: stats.norm.logpdf(r, scale=2.0)),
        (DiscreteLaplaceMechanism, lambda r: log_mass(r, 2.0, "laplace")),
        (DiscreteGaussianMechanism, lambda r: log_mass(r, 2.0, "gaussian")),
    ],
)
def test_density_of_a_release_in_a_model(mechanism, log_density):
    observed = np.array([4, 9])
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=(12, 2))
        mechanism("s", x, scale=2.0, observed=observed)
    point = {"x": np.tile([[1, 0], [0, 1], [1, 1]], (4, 1))}
    expected = log_density(observed - point["x"].sum(0)).sum() + 24 * np.log(0.5)
    for copy in (model, clone_model(model)):
        found = copy.compile_logp(mode="FAST_COMPILE")(point)
        np.testing.assert_allclose(found, expected, rtol=1e-7)  # PyMC's 0.5 is a float32


def test_prior_predictive_draws_are_noisy_sums():
    with pm.Model():
        x = pm.Bernoulli("x", 0.5, shape=(12, 2))
        released = DiscreteGaussianMechanism("s", x, scale=2.0, observed=[4, 9])
        draws = pm.draw(released, 4000, random_seed=3)
    assert draws.dtype == np.int64
    sd = np.sqrt(12 / 4 + 4)
    assert np.abs(draws.mean(0) - 6).max() < 5 * sd / np.sqrt(4000)
    assert np.abs(draws.var(0) - sd**2).max() < 5 * sd**2 * np.sqrt(2 / 4000)


def test_gradient_passes_the_sum():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Laplace("s", record_sum(pt.stack([mu, 2 * mu])), 2.0, observed=5.0)
    gradient = model.compile_dlogp(mode="FAST_COMPILE")({"mu": np.array(0.5)})
    np.testing.assert_allclose(gradient, [-0.5 + 3 / 2])


def law(mechanism, **noise):
    with pm.Model():
        x = pm.Bernoulli("x", 0.5, shape=(5, 2))
        return mechanism("s", x, observed=[1, 2], **noise).owner, x


def scale_of(mechanism, **noise):
    node, _ = law(mechanism, **noise)
    return node.inputs[-1].eval(mode="FAST_COMPILE").item()


def test_scale_follows_from_the_budget():
    assert scale_of(LaplaceMechanism, epsilon=0.5, sensitivity=3) == 6
    assert scale_of(DiscreteLaplaceMechanism, epsilon=0.5, sensitivity=3) == 6
    for mechanism in (GaussianMechanism, DiscreteGaussianMechanism):
        sigma = scale_of(mechanism, epsilon=0.5, delta=1e-6, sensitivity=3)
        assert 0.5 - 1e-2 < gaussian_epsilon(3 / sigma, 1e-6) <= 0.5


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({}, "give one of `scale`"),
        ({"scale": 1.0, "epsilon": 1.0, "sensitivity": 1}, "give one of `scale`"),
        ({"epsilon": 1.0}, "needs `sensitivity`"),
        ({"epsilon": -1.0, "sensitivity": 1}, "`epsilon` must be a positive"),
        ({"epsilon": np.inf, "sensitivity": 1}, "infinite"),
        ({"epsilon": 1.0, "sensitivity": 0}, "`sensitivity` must be a positive"),
        ({"epsilon": 1.0, "sensitivity": 1, "delta": 1e-6}, "no `delta`"),
        ({"scale": 0.0}, "must be positive"),
        ({"scale": [1.0, -1.0]}, "must be positive"),
        ({"scale": [1.0, 1.0, 1.0]}, "has shape"),
        ({"scale": "wide"}, "known number"),
    ],
)
def test_bad_noise_is_refused(noise, message):
    with pytest.raises(PrivacyConfigurationError, match=message) as error:
        law(LaplaceMechanism, **noise)
    assert "'s'" in str(error.value)


def test_scale_cannot_be_a_parameter():
    with pm.Model():
        b = pm.HalfNormal("b")
        with pytest.raises(PrivacyConfigurationError, match="known number"):
            LaplaceMechanism("s", pm.Normal("x", shape=5), scale=b, observed=1.0)


def test_gaussian_budget_needs_a_delta():
    with pytest.raises(PrivacyConfigurationError, match="needs a `delta`"):
        law(GaussianMechanism, epsilon=1.0, sensitivity=1)


def test_narrow_discrete_gaussian_is_refused():
    with pytest.raises(PrivacyConfigurationError, match="of at least"):
        law(DiscreteGaussianMechanism, scale=0.4)


@pytest.mark.parametrize(
    ("mechanism", "observed", "message"),
    [
        (LaplaceMechanism, [1.0, 2.0, 3.0], "has shape"),
        (LaplaceMechanism, 1.0, "has shape"),
        (LaplaceMechanism, [1.0, np.nan], "finite"),
        (LaplaceMechanism, ["a", "b"], "finite"),
        (DiscreteLaplaceMechanism, [1.0, 2.5], "integers"),
        (DiscreteGaussianMechanism, [1.0, 2.5], "integers"),
    ],
)
def test_bad_observed_is_refused(mechanism, observed, message):
    with pm.Model():
        x = pm.Bernoulli("x", 0.5, shape=(5, 2))
        with pytest.raises(PrivacyConfigurationError, match=f"'s'.*{message}"):
            mechanism("s", x, scale=1.0, observed=observed)


def test_observed_must_be_known():
    with pm.Model():
        x = pm.Normal("x", shape=5)
        with pytest.raises(PrivacyConfigurationError, match="must be numbers"):
            LaplaceMechanism("s", x, scale=1.0, observed=pt.scalar("later"))


def test_bad_statistic_is_refused():
    with pm.Model():
        x = pm.Normal("x", shape=5)
        with pytest.raises(PrivacyConfigurationError, match="one row per record"):
            LaplaceMechanism("s", x.sum(), scale=1.0, observed=1.0)
        with pytest.raises(PrivacyConfigurationError, match="integers"):
            DiscreteLaplaceMechanism("s", x, scale=1.0, observed=1)


def test_shape_may_depend_on_data():
    with pm.Model():
        size = pm.Data("size", np.zeros((7, 2)))
        x = pm.Normal("x", 0, 1, shape=size.shape)
        LaplaceMechanism("s", x, scale=1.0, observed=[0.0, 0.0])
        with pytest.raises(PrivacyConfigurationError, match="has shape"):
            LaplaceMechanism("r", x, scale=1.0, observed=[0.0])


# -- statistics -------------------------------------------------------------------------------------


def test_clamp_is_the_same_at_both_ends():
    x = np.array([[-9.0, 0.5], [3.0, 7.0]])
    np.testing.assert_array_equal(clamp(x, [-1, 0], [1, 5]), [[-1, 0.5], [1, 5]])
    np.testing.assert_allclose(clamp(x, [-1, 0], [1, 5], rescale=True), [[-1, -0.8], [1, 1]])
    for rescale in (False, True):
        graph = clamp(pt.as_tensor(x), [-1, 0], [1, 5], rescale=rescale)
        here = clamp(x, [-1, 0], [1, 5], rescale=rescale)
        np.testing.assert_array_equal(graph.eval(mode="FAST_COMPILE"), here)
    u = clamp(x, -10, 10, rescale=True)
    np.testing.assert_array_equal(
        second_moments(pt.as_tensor(u)).eval(mode="FAST_COMPILE"), second_moments(u)
    )


def test_second_moments_in_their_order():
    moments = second_moments(np.array([[0.5, -1.0], [2.0, np.nan]]))
    np.testing.assert_array_equal(moments, [[0.5, -1, 0.25, -0.5, 1], [1, -1, 1, -1, 1]])


def test_sum_sensitivity_is_the_norm_of_the_ranges():
    assert sum_sensitivity(-1, 1) == 2
    assert sum_sensitivity([0, 0], [3, 4]) == 7
    assert sum_sensitivity([0, 0], [3, 4], norm=2) == 5


@pytest.mark.parametrize("q", [1, 2, 3, 6])
def test_sensitivity_of_second_moments(q):
    def distance(u, v, norm):
        return np.linalg.norm(second_moments(u) - second_moments(v), ord=norm, axis=1)

    rng = np.random.default_rng(q)
    u, v = rng.uniform(-1, 1, size=(2, 20_000, q))
    u, v = (np.concatenate([w, np.sign(w)]) for w in (u, v))
    for norm in (1, 2):
        assert distance(u, v, norm).max() <= second_moments_sensitivity(q, norm=norm)
    worst = distance(np.ones((1, q)), np.full((1, q), -1 / (q + 1)), 1)
    np.testing.assert_allclose(worst, second_moments_sensitivity(q))


def test_sensitivity_beside_the_papers():
    assert second_moments_sensitivity(3) == 9.375
    for p in range(1, 9):
        assert second_moments_sensitivity(p + 1) < p**2 + 3 * p + 3


def test_bad_statistics_settings_are_refused():
    for call in (
        lambda: clamp(np.zeros(3), 1, 0),
        lambda: sum_sensitivity(0, np.inf),
        lambda: sum_sensitivity(0, 1, norm=3),
        lambda: second_moments_sensitivity(0),
        lambda: second_moments(pt.matrix()),
    ):
        with pytest.raises(PrivacyConfigurationError):
            call()


# -- randomised response ----------------------------------------------------------------------------


def test_randomised_response_sums_the_truth_out():
    p, epsilon = np.array([0.2, 0.5, 0.3]), 0.7
    truth = np.exp(epsilon) / (np.exp(epsilon) + 2)
    keep = np.where(np.eye(3, dtype=bool), truth, (1 - truth) / 2)
    with pm.Model() as model:
        RandomizedResponse("r", pt.as_tensor(p), epsilon=epsilon, observed=[0, 1, 2, 2])
    expected = np.log((p @ keep)[[0, 1, 2, 2]]).sum()
    np.testing.assert_allclose(model.compile_logp(mode="FAST_COMPILE")({}), expected)


@pytest.mark.parametrize(
    ("p", "epsilon", "observed", "message"),
    [
        (np.array([0.5, 0.5]), 1.0, [0, 2], "from 0 to 1"),
        (np.array([0.5, 0.5]), 1.0, [0.5], "from 0 to 1"),
        (np.array([1.0]), 1.0, [0], "last axis"),
        (np.array([0.5, 0.5]), 1e4, [0], "not randomised"),
        (np.array([0.5, 0.5]), 0.0, [0], "positive"),
    ],
)
def test_bad_randomised_response_is_refused(p, epsilon, observed, message):
    with pm.Model(), pytest.raises(PrivacyConfigurationError, match=message):
        RandomizedResponse("r", pt.as_tensor(p), epsilon=epsilon, observed=observed)


# -- the curator's side -----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", CONTINUOUS + DISCRETE)
def test_released_noise_has_its_law(mechanism):
    values = np.tile([[1], [0], [1]], 4000)
    released = mechanism.release(values, bounds=(0, 1), scale=3.0, **delta_of(mechanism))
    noise = (released.value - 2) / 3.0
    if mechanism.discrete:
        assert chi_square_p(released.value - 2, 3.0, mechanism.family) > 1e-6
    else:
        dist = stats.laplace if mechanism.family == "laplace" else stats.norm
        assert stats.kstest(noise, dist.cdf).pvalue > 1e-6
        assert np.array_equal(released.value, np.rint(released.value / released.granularity)
                              * released.granularity)  # fmt: skip


@pytest.mark.parametrize("mechanism", CONTINUOUS + DISCRETE)
def test_release_costs_no_more_than_asked(mechanism):
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-6)
    released = mechanism.release(
        np.ones((40, 3), int), bounds=(0, 1), epsilon=1.0, ledger=ledger, **delta_of(mechanism)
    )
    assert released.epsilon == 1.0
    assert released.n_records == 40
    (event,) = ledger.events()
    kinds = {LaplaceMechanism: Laplace, DiscreteLaplaceMechanism: Pure}
    assert isinstance(event, kinds.get(mechanism, Gaussian))
    assert 0.99 < ledger.spent() <= 1.0


def test_sums_are_exact_and_clamped():
    values = np.array([[5.0, np.nan], [-5.0, 0.25], [0.5, np.inf]])
    released = LaplaceMechanism.release(values, bounds=([-1, 0], [1, 2]), scale=1e-8)
    np.testing.assert_allclose(released.value, [0.5, 2.25], atol=1e-7)
    # What is missing is a value in range, though 0 be none.
    for end in (3.0, -5.0):
        gap = LaplaceMechanism.release([np.nan], bounds=(end, end + 1), scale=1e-8)
        np.testing.assert_allclose(gap.value, end, atol=1e-6)


@pytest.mark.parametrize("mechanism", [LaplaceMechanism, GaussianMechanism])
def test_ledger_is_charged_before_data_are_read(mechanism, monkeypatch):
    """Everything that looks at a value goes through one of these, and none is called for a refused release."""
    looked = []
    for function in ("isnan", "clip", "where", "rint"):
        usual = getattr(np, function)
        monkeypatch.setattr(
            f"pymc_dp.mechanisms.curator.np.{function}",
            lambda x, *a, _usual=usual, **k: looked.append(np.shape(x)) or _usual(x, *a, **k),
        )
    budget = {} if mechanism is LaplaceMechanism else {"delta": 1e-6}
    ledger = PrivacyLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(PrivacyBudgetExceeded):
        mechanism.release(np.zeros((3, 2)), bounds=(0, 1), epsilon=2.0, ledger=ledger, **budget)
    assert (3, 2) not in looked
    assert ledger.spent() == 0
    mechanism.release(np.zeros((3, 2)), bounds=(0, 1), epsilon=0.5, ledger=ledger, **budget)
    assert (3, 2) in looked


class NoNoise:
    """In place of the noise of a release, to see what it would be added to."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(
            "pymc_dp.mechanisms.curator.with_noise", lambda total, family, scale: total
        )
        # It is that of hundreds of releases of one budget.
        monkeypatch.setattr(
            "pymc_dp.mechanisms.law.calibrate_noise", functools.cache(calibrate_noise)
        )

    def moved(self, mechanism, rows, other, **keywords):
        """By how much another row moves the sum."""
        base = rng_of(0).uniform(-1, 1, size=(2, rows.shape[1]))
        sums = [
            mechanism.release(np.vstack([base, one]), epsilon=1.0, **keywords).value
            for one in (rows, other)
        ]
        return sums[0] - sums[1]


def rng_of(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("q", [1, 2, 3])
def test_second_moments_of_rows_with_missing_values_keep_their_sensitivity(q, norm, monkeypatch):
    """Hill climbing over pairs of records, any entry of which may be missing, as a curator computes them."""
    no_noise, rng = NoNoise(monkeypatch), rng_of(q)
    mechanism = LaplaceMechanism if norm == 1 else GaussianMechanism
    stated = second_moments_sensitivity(q, norm=norm)
    ends = [-1.0] * q + [-1.0 if j != k else 0.0 for j, k in zip(*np.triu_indices(q), strict=True)]
    keywords = {"bounds": (ends, 1), "sensitivity": stated}
    keywords |= {} if norm == 1 else {"delta": 1e-6}

    def of(record):
        return second_moments(clamp(record, -2.0, 2.0, rescale=True))

    def far(pair, raw):
        compute = second_moments if raw else of
        rows = [compute(record) for record in pair]
        return np.linalg.norm(no_noise.moved(mechanism, *rows, **keywords).ravel(), norm)

    def neighbour(pair):
        new = pair.copy()
        entry = tuple(rng.integers(s) for s in new.shape)
        new[entry] = rng.choice([np.nan, -np.inf, np.inf, -2.0, 2.0, 0.0, rng.uniform(-3, 3)])
        return new

    worst = 0.0
    for raw in (False, True):
        for start in range(4):
            pair = rng.uniform(-2, 2, size=(2, 1, q))
            if start == 0:
                pair[0] = np.nan
            best = far(pair, raw)
            for _ in range(120):
                new = neighbour(pair)
                if (moved := far(new, raw)) >= best:
                    pair, best = new, moved
            worst = max(worst, best)
    assert 0.8 * stated < worst <= stated * (1 + 1e-6)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    ("rows", "claims"),
    [(np.eye(4), (2, math.sqrt(2))), (np.array([[1.0, 1.0], [1.0, -1.0]]), (2, 2))],
    ids=["one-hot", "an intercept and a sign"],
)
def test_a_row_with_a_missing_value_is_no_further_than_was_claimed(rows, claims, norm, monkeypatch):
    """A claim that holds for such rows and for zeros, not for one of lower ends, or one with zeros in it."""
    no_noise = NoNoise(monkeypatch)
    mechanism = LaplaceMechanism if norm == 1 else GaussianMechanism
    stated = claims[norm - 1]
    keywords = {"bounds": (-1, 1), "sensitivity": stated} | ({} if norm == 1 else {"delta": 1e-6})
    for one in rows:
        for gaps in ([0], [1], [0, 1], [-1]):
            other = rows[-1].copy()
            other[gaps] = np.nan
            moved = no_noise.moved(mechanism, one[None], other[None], **keywords)
            assert np.linalg.norm(moved.ravel(), norm) <= stated * (1 + 1e-6)


@pytest.mark.parametrize("norm", [1, 2])
def test_what_is_left_of_a_row_with_a_gap_counts_for_nothing(norm, monkeypatch):
    """(1, 0) is no number and its square: it is further from (-1, 1) than any of these is."""
    mechanism = LaplaceMechanism if norm == 1 else GaussianMechanism
    stated = second_moments_sensitivity(1, norm=norm)
    keywords = {"bounds": ([-1, 0], 1), "sensitivity": stated} | delta_of(mechanism)
    rows = np.array([[1.0, np.nan]]), np.array([[-1.0, 1.0]])
    moved = NoNoise(monkeypatch).moved(mechanism, *rows, **keywords)
    assert np.linalg.norm(moved, norm) <= stated * (1 + 1e-6)


def test_a_missing_value_is_the_lower_end_of_its_column():
    x = np.array([[np.nan, 5.0], [1.0, np.nan]])
    np.testing.assert_array_equal(clamp(x, [0, 1], [2, 3]), [[0, 3], [1, 1]])
    np.testing.assert_array_equal(clamp(x, [0, 1], [2, 3], rescale=True), [[-1, 1], [0, -1]])


def test_rounding_is_part_of_the_sensitivity():
    released = LaplaceMechanism.release(
        np.zeros((3, 2)), bounds=(0, 1), epsilon=1.0, granularity=0.125
    )
    # Two entries that may each round away from each other, and one step for the arithmetic.
    assert released.sensitivity == 2 + 3 * 0.125
    np.testing.assert_allclose(released.scale, released.sensitivity, rtol=1e-7)


def test_a_smaller_joint_sensitivity_can_be_declared():
    u = np.zeros((3, 2))
    released = LaplaceMechanism.release(
        second_moments(u), bounds=([-1, -1, 0, -1, 0], 1), epsilon=1.0,
        sensitivity=second_moments_sensitivity(2),
    )  # fmt: skip
    np.testing.assert_allclose(released.scale, second_moments_sensitivity(2), rtol=1e-6)


@pytest.mark.parametrize(
    ("mechanism", "values", "settings", "message"),
    [
        (LaplaceMechanism, 1.0, {}, "one row per record"),
        (LaplaceMechanism, np.zeros((0, 2)), {}, "one row per record"),
        (LaplaceMechanism, ["a"], {}, "must be numbers"),
        (DiscreteLaplaceMechanism, [0.5, 1.0], {}, "must be integers"),
        (DiscreteLaplaceMechanism, [0, 1], {"bounds": (0, 1.5)}, "whole numbers"),
        (LaplaceMechanism, [0.0], {"bounds": ([0, 0], 1)}, "`bounds` must be"),
        (LaplaceMechanism, [0.0], {"bounds": (1, 0)}, "below its `upper`"),
        (LaplaceMechanism, [0.0], {"bounds": 3}, "`bounds` must be"),
        (LaplaceMechanism, [0.0], {"granularity": 0.1}, "power of two"),
        (LaplaceMechanism, [0.0], {"granularity": 1.0}, "at most 1/16"),
        (LaplaceMechanism, [0.0], {"scale": 1.0}, "give one of `scale`"),
        (LaplaceMechanism, [0.0], {"bounds": (0, 1e9), "granularity": 2.0**-60}, "64-bit"),
        (LaplaceMechanism, np.zeros(1000), {"granularity": 2.0**-55}, "64-bit"),
        (LaplaceMechanism, [0.0], {"ledger": 1.0}, "PrivacyLedger"),
        (GaussianMechanism, [0.0], {}, "needs a `delta`"),
        (GaussianMechanism, [0.0], {"epsilon": None, "scale": 1.0}, "a `delta`"),
    ],
)
def test_bad_release_is_refused(mechanism, values, settings, message):
    with pytest.raises(PrivacyConfigurationError, match=message):
        mechanism.release(values, **{"bounds": (0, 1), "epsilon": 1.0, **settings})


@pytest.mark.parametrize("mechanism", CONTINUOUS + DISCRETE)
def test_release_travels_as_text_into_a_model(mechanism):
    released = mechanism.release(
        np.ones((40, 3), int), bounds=(0, 1), epsilon=1.0, **delta_of(mechanism)
    )
    arrived = ReleasedStatistic.from_json(released.to_json())
    np.testing.assert_array_equal(arrived.value, released.value)
    assert arrived.value.dtype == released.value.dtype
    assert "1" in arrived.statement
    with pm.Model():
        x = pm.Bernoulli("x", 0.5, shape=(40, 3))
        variable = mechanism("s", x, observed=arrived)
        assert variable.owner.inputs[-1].eval(mode="FAST_COMPILE") == released.scale
        other = GaussianMechanism if mechanism.family == "laplace" else LaplaceMechanism
        with pytest.raises(PrivacyConfigurationError, match="was released with"):
            other("r", x, observed=arrived)
        with pytest.raises(PrivacyConfigurationError, match="knows its noise"):
            mechanism("r", x, observed=arrived, scale=1.0)


def test_text_that_is_no_release_is_refused():
    for text in ("", "[]", '{"value": 1}'):
        with pytest.raises(PrivacyConfigurationError, match="not a released statistic"):
            ReleasedStatistic.from_json(text)


# -- accounting -------------------------------------------------------------------------------------


def delta_of_shift(family, scale, shift, epsilon):
    """Exact δ(ε) of discrete noise when the sum moves by a whole number of steps."""
    half = int(40 * scale) + 60 + 5 * shift
    mass = np.exp(log_mass(np.arange(-half, half + 1), scale, family))
    moved = np.append(np.zeros(shift), mass[:-shift])
    return np.maximum(mass - np.exp(epsilon)[:, None] * moved, 0).sum(axis=1)


@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 2.0, 5.0, 20.0])
def test_discrete_noise_is_charged_enough(scale, shift):
    mu = 1 / charged_multiplier(scale / shift, scale)
    epsilon = np.linspace(0, mu**2 / 2 + 6 * mu, 200)
    exact = delta_of_shift("gaussian", scale, shift, epsilon)
    assert (gaussian_delta(epsilon, mu) >= exact - 1e-14).all()

    epsilon = np.linspace(0, shift / scale, 200)
    exact = delta_of_shift("laplace", scale, shift, epsilon)
    assert (pure_delta(epsilon, shift / scale) >= exact - 1e-12).all()


@pytest.mark.parametrize("mechanism", CONTINUOUS + DISCRETE)
def test_the_account_is_charged_for_noise_on_its_grid(mechanism):
    """The coarsest grid there may be: exact δ of a shift by the sensitivity, against that of the event."""
    ledger = PrivacyLedger(epsilon=math.inf, delta=1e-6)
    grid = {} if mechanism.discrete else {"granularity": 1 / 16}
    released = mechanism.release(
        [0, 1, 1], bounds=(0, 1), scale=1.0, ledger=ledger, **grid, **delta_of(mechanism)
    )
    (event,) = ledger.events()
    epsilon = np.linspace(0, 6, 300)
    if isinstance(event, Pure):
        charged = pure_delta(epsilon, event.epsilon)
    elif isinstance(event, Laplace):
        charged = laplace_delta(epsilon, event.noise_multiplier)
    else:
        charged = gaussian_delta(epsilon, 1 / event.noise_multiplier)
    step = released.granularity
    exact = delta_of_shift(
        mechanism.family, released.scale / step, round(released.sensitivity / step), epsilon
    )
    assert (charged >= exact - 1e-12).all()


def test_the_continuous_charge_would_not_be_enough():
    epsilon = np.array([0.1])
    assert gaussian_delta(epsilon, 1.0) < delta_of_shift("gaussian", 1.0, 1, epsilon)
    assert 1 - np.exp((0.1 - 1.0) / 2) < delta_of_shift("laplace", 1.0, 1, epsilon)


def test_fine_grids_are_charged_like_the_line():
    np.testing.assert_allclose(charged_multiplier(3.0, 2.0**30), 3.0, rtol=1e-9)
