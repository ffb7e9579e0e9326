"""Exponential families: what is recognised, what is summed, how far a record can move it."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.basic import PoissonRV

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.exponential_family import families, statistics
from pymc_dp.exponential_family.families import Categories, Range
from pymc_dp.exponential_family.statistics import SufficientStatistics
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.roles import find_roles
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.kept_sum import KeptSum, direction
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit

from .zoo import likelihood_of

FAST = {"mode": "FAST_COMPILE"}
N = 40
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(3, size=N)
REALS = RNG.normal(1, 2, size=N)
WAITS = RNG.exponential(2, size=N)
YES = RNG.integers(2, size=N)
ITEMS = RNG.integers(2, size=(N, 3))
KINDS = RNG.integers(4, size=N)

FAMILIES = {}


def family(bounds=None, unit=None):
    def add(build):
        FAMILIES[build.__name__] = build, bounds, unit
        return build

    return add


@family()
def bernoulli():
    pm.Bernoulli("y", pm.Beta("p", 2, 3), observed=pm.Data("Y", YES))


@family()
def bernoulli_by_log_odds_of_floats():
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1), observed=pm.Data("Y", YES.astype(float)))


@family()
def binomial():
    pm.Binomial("y", 8, pm.Beta("p", 2, 3), observed=pm.Data("Y", np.minimum(COUNTS, 8)))


@family((0, 20))
def poisson():
    pm.Poisson("y", pm.Gamma("mu", 2, 1), observed=COUNTS)


@family((0.0, 30.0))
def exponential():
    pm.Exponential("y", pm.Gamma("rate", 2, 1), observed=pm.Data("Y", WAITS))


@family((1, 40))
def geometric():
    pm.Geometric("y", pm.Beta("p", 2, 2), observed=1 + COUNTS)


@family((-10, 10))
def normal_of_known_scale():
    pm.Normal("y", pm.Normal("mu", 0, 3), 2.0, observed=pm.Data("Y", REALS))


@family((990, 1012))
def normal_of_unknown_scale_far_from_zero():
    mu, sigma = pm.Normal("mu", 1000, 3), pm.HalfNormal("sigma", 3)
    pm.Normal("y", mu, sigma, observed=pm.Data("Y", 1000 + REALS))


@family((-10, 10))
def normal_of_known_mean():
    pm.Normal("y", 1.0, tau=pm.Gamma("tau", 2, 1), observed=REALS)


@family()
def categorical():
    pm.Categorical("y", pm.Dirichlet("p", np.ones(4)), observed=pm.Data("Y", KINDS))


@family()
def categorical_of_named_categories():
    model = pm.modelcontext(None)
    model.add_coords({"kind": list("abcd"), "person": np.arange(N)})
    p = pm.Dirichlet("p", np.ones(4), dims="kind")
    pm.Categorical("y", p, observed=pm.Data("Y", KINDS, dims="person"), dims="person")


@family()
def several_items():
    pm.Bernoulli("y", pm.Beta("p", 2, 3, shape=3), observed=pm.Data("Y", ITEMS))


@family((np.array([-9, -10, -11]), 12))
def a_range_for_each_column():
    Y = pm.Data("Y", REALS[:, None] + [0, 1, 2])
    pm.Normal("y", pm.Normal("mu", 0, 1, shape=3), pm.HalfNormal("s", 1), observed=Y)


@family(unit=1)
def records_on_the_second_axis():
    pm.Bernoulli("y", pm.Beta("p", 2, 3, shape=(3, 1)), observed=pm.Data("Y", ITEMS.T))


@family({"count": (0, 20), "size": (-10, 10)})
def two_observed_variables():
    a = pm.Normal("a", 0, 0.5)
    pm.Poisson("count", pm.math.exp(a), observed=pm.Data("C", COUNTS))
    pm.Normal("size", a, pm.HalfNormal("s", 1), observed=pm.Data("R", REALS))


@family((-10, 10))
@pytest.mark.filterwarnings("ignore::UserWarning")
def named_dimensions():
    import pymc.dims as pmd

    pm.modelcontext(None).add_coords({"person": np.arange(N)})
    Y = pmd.Data("Y", REALS, dims="person")
    pmd.Normal("y", pmd.Normal("mu", 0, 1), pmd.HalfNormal("s", 1), observed=Y)


def made(build, bounds=None, unit=None):
    with pm.Model() as model:
        build()
    roles = find_roles(model, unit)
    return model, roles, SufficientStatistics(ParameterSpace(model), roles, bounds, FAST)


@pytest.mark.filterwarnings("ignore:xtensor module")
@pytest.mark.parametrize("name", FAMILIES)
def test_ratios_are_those_of_the_model(name):
    """Sums of statistics against PyMC's log-likelihood of all records."""
    model, roles, family = made(*FAMILIES[name])
    log_likelihood = likelihood_of(model, roles, compile_kwargs=FAST)
    family.check(log_likelihood)
    S = np.concatenate(list(family.of_records()))
    assert S.shape == (N, family.size)
    assert np.abs(S).max() <= 1
    start = ParameterSpace(model).start
    rng = np.random.default_rng(1)

    def both(theta):
        natural, log_partition = family.natural(theta)
        return S.sum(axis=0) @ natural - N * log_partition, log_likelihood(theta).sum()

    before = both(start)
    for scale in (0.1, 0.5, 2.0):
        now = both(start + scale * rng.normal(size=start.size))
        assert now[0] - before[0] == pytest.approx(now[1] - before[1], rel=1e-9, abs=1e-9)


# -- spreads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitude", [1e-170, 1.0, 1e150])
def test_spread_of_powers_is_that_of_a_fine_grid(magnitude):
    x = np.linspace(-1, 1, 4001)
    rng = np.random.default_rng(0)
    within = Range(np.array(2.0), np.array(5.0))
    for _ in range(200):
        g = magnitude * rng.normal(size=2) * 10.0 ** rng.uniform(-3, 0, size=2)
        for powers, S in (1, x[:, None]), (2, np.stack([x, x**2], axis=1)):
            found = S @ (g[:powers] / magnitude)
            spread = Range(within.lower, within.upper, powers).spread(g[:powers]) / magnitude
            assert np.ptp(found) <= spread * (1 + 1e-12)
            assert spread <= np.ptp(found) + 2e-7 * np.abs(g).max() / magnitude


@pytest.mark.parametrize(
    ("statistic", "values"),
    [
        (Range(np.float64(-3), np.float64(4), 1), np.linspace(-4, 5, 60_001)),
        (Range(np.float64(-3), np.float64(4), 2), np.linspace(-4, 5, 60_001)),
        (Categories(5), np.arange(5)),
    ],
    ids=["x", "x and its square", "categories"],
)
def test_extremes_are_those_of_all_values(statistic, values):
    rng = np.random.default_rng(4)
    S = statistic.of(values)
    for _ in range(50):
        g = rng.normal(size=S.shape[-1]) * 10.0 ** rng.uniform(-2, 2, size=S.shape[-1])
        low, high = statistic.extremes(g)
        found, size = S @ g, np.abs(g).sum()
        assert low <= found.min() + 1e-12 * size
        assert high >= found.max() - 1e-12 * size
        assert high - low == pytest.approx(np.ptp(found), abs=1e-7 * size)
        turned = statistic.extremes(-g)  # a move and its reverse have the same noise
        assert (-turned[1], -turned[0]) == (low, high)


def test_spread_of_categories_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    for size in (2, 5):
        g = rng.normal(size=size)
        S = Categories(size).of(np.arange(size))
        assert Categories(size).spread(g) == pytest.approx(np.ptp(S @ g), rel=1e-15)


@pytest.mark.parametrize("name", ["several_items", "two_observed_variables", "categorical"])
def test_spread_of_a_record_holds_for_all_pairs_of_records(name):
    _, _, family = made(*FAMILIES[name])
    S = np.concatenate(list(family.of_records()))
    rng = np.random.default_rng(0)
    for _ in range(50):
        g = rng.normal(size=family.size)
        assert np.ptp(S @ g) <= family.spread(g) * (1 + 1e-12)
        c = float(rng.normal())
        assert np.abs(S @ g - c).max() <= family.farthest(g, c) * (1 + 1e-12)
        assert family.farthest(-g, -c) == family.farthest(g, c)


def test_values_outside_the_range_count_as_its_ends():
    within = Range(np.array(-1.0), np.array(3.0), powers=2)
    S = within.of(np.array([-np.inf, -50.0, -1.0, 1.0, 3.0, 1e308, np.inf]))
    np.testing.assert_allclose(S[:, 0], [-1, -1, -1, 0, 1, 1, 1])
    np.testing.assert_array_equal(S[:, 1], S[:, 0] ** 2)
    np.testing.assert_array_equal(Categories(3).of(np.array([-4, 9])), [[1, 0, 0], [0, 0, 1]])


def test_statistics_come_in_chunks(monkeypatch):
    whole = np.concatenate(list(made(*FAMILIES["several_items"])[2].of_records()))
    monkeypatch.setattr(statistics, "_CHUNK", 7)
    parts = list(made(*FAMILIES["several_items"])[2].of_records())
    assert len(parts) == 6
    np.testing.assert_array_equal(np.concatenate(parts), whole)


# -- refusals ---------------------------------------------------------------------------------------

X = RNG.normal(size=N)


def regression():
    pm.Normal("y", pm.Normal("b", 0, 1) * pm.Data("X", X), 1, observed=REALS)


def groups():
    where = pm.Data("where", KINDS)
    pm.Bernoulli("y", pm.Beta("p", 1, 1, shape=4)[where], observed=YES)


def baked_offsets():
    pm.Poisson("y", pm.Gamma("mu", 1, 1) * np.arange(1, N + 1), observed=COUNTS)


def one_entry_per_record():
    pm.Bernoulli("y", pm.Beta("p", 1, 1) * np.full(7, 0.5), observed=YES[:7])


def repeated_parameter():
    pm.Bernoulli("y", pt.repeat(pm.Beta("p", 1, 1), N), observed=YES)


def heavy_tails():
    pm.StudentT("y", 4, pm.Normal("mu", 0, 1), sigma=1, observed=REALS)


def covariate_observed():
    a = pm.Normal("a", 0, 1)
    first = pm.Bernoulli("y1", logit_p=a, observed=YES)
    pm.Bernoulli("y2", logit_p=a + first, observed=YES[::-1])


def computed_values():
    pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=pt.log(pm.Data("Y", WAITS)))


def trials_by_record():
    pm.Binomial(
        "y", pm.Data("trials", 8 + KINDS), pm.Beta("p", 1, 1), observed=np.minimum(COUNTS, 8)
    )


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (regression, "'y' depend on .*'X'"),
        (groups, "'y' depend on .*'where'"),
        (baked_offsets, "'y' depend on"),
        (one_entry_per_record, "'y'"),
        (repeated_parameter, "'y' has one entry per record"),
        (heavy_tails, "'y' .StudentT. is none of the exponential families"),
        (covariate_observed, "'y2' depend on .*'y1'"),
        (trials_by_record, "'y' depend on .*'trials'"),
    ],
)
def test_what_is_no_exponential_family_is_refused_by_name(build, found):
    bounds = (-10, 10) if build is regression else (0, 20) if build is baked_offsets else None
    with pytest.raises(UnsupportedModelError, match=found) as refusal:
        made(build, bounds)
    assert "DPSurrogate or DPPenalty" in str(refusal.value)


def test_values_computed_in_the_model_are_refused():
    with pytest.raises(UnsupportedModelError, match="'y'"):
        made(computed_values, (-5, 5))


@pytest.mark.parametrize(
    ("name", "bounds", "found"),
    [
        ("poisson", None, r"\['y'\], which can have any size: a pair"),
        ("poisson", (-1, 4), "within"),
        ("poisson", (3, 3), "lower < upper"),
        ("poisson", (0, np.inf), "finite"),
        ("poisson", (0, 1, 2), "(lower, upper)"),
        ("poisson", 5, "(lower, upper)"),
        ("exponential", (0, np.nan), "finite"),
        ("normal_of_known_scale", (-1e308, 1e308), "finite"),
        ("a_range_for_each_column", ([0, 0], 1), "shape"),
        ("bernoulli", (0, 1), "Leave it out"),
        ("two_observed_variables", (0, 1), "a pair for each of"),
        ("two_observed_variables", {"count": (0, 9)}, "a pair for each of"),
    ],
)
def test_a_range_that_does_not_fit_is_refused(name, bounds, found):
    with pytest.raises(PrivacyConfigurationError, match=found):
        made(FAMILIES[name][0], bounds)


def test_a_wrong_family_is_noticed_before_anything_is_read(monkeypatch):
    """The comparison with the model's own log-likelihood, on made-up values."""
    right, *support = families.WITH_RANGE[PoissonRV]

    def wrong(within, mu):
        return right(within, mu)._replace(log_partition=right(within, mu).log_partition * 1.001)

    monkeypatch.setitem(families.WITH_RANGE, PoissonRV, (wrong, *support))
    model, roles, family = made(*FAMILIES["poisson"])
    with pytest.raises(UnsupportedModelError, match="not that of the exponential family"):
        family.check(likelihood_of(model, roles, compile_kwargs=FAST))


def test_parameters_outside_their_range_are_not_held_against_a_model():
    def straying():
        pm.Poisson("y", pm.Normal("mu", 0, 1, initval=0.5), observed=COUNTS)

    model, roles, family = made(straying, (0, 20))
    family.check(likelihood_of(model, roles, compile_kwargs=FAST))
    assert not np.isfinite(family.natural(np.array([-1.0]))[0]).all()


def test_no_warning_tells_of_an_extreme_record(recwarn):
    """Overflow in a division, and in a cast to whole numbers."""

    def extreme():
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=np.append(REALS, 1e308))
        counts = np.append(COUNTS, 1e300)
        pm.Poisson("z", pm.Gamma("rate", 2, 1), observed=pm.Data("Z", counts))

    _, _, family = made(extreme, {"y": (-0.1, 0.1), "z": (0, 9)})
    recwarn.clear()
    silent = Permit(0, 0, (Gaussian(0.0, 2),))
    kept = KeptSum(family.of_records, family.size)
    for k in (0, 2):
        along = direction(np.eye(family.size)[k], 2.0, 1)
        kept.release(along, noise_multiplier=0.0, permit=silent, noise=InsecureSeededNoise(0))
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_an_impossible_start_is_refused():
    def far():
        pm.Poisson("y", pm.Normal("mu", 0, 1, initval=-1.0), observed=COUNTS)

    model, roles, family = made(far, (0, 20))
    with pytest.raises(UnsupportedModelError, match="initial point"):
        family.check(likelihood_of(model, roles, compile_kwargs=FAST))
