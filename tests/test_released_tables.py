"""Tables as offices publish them: several times, with margins, rounded, cut off, suppressed; by enumeration."""

import itertools

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

from pymc_dp import PrivacyConfigurationError, ReleasedStatistic, UnsupportedModelError
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)
from pymc_dp.statistics import clamp

from .marks import slow_but

FAST = {"mode": "FAST_COMPILE"}
K = np.arange(400)
INTEGERS = np.arange(-3000, 3001)
MECHANISMS = {
    "laplace": LaplaceMechanism,
    "gaussian": GaussianMechanism,
    "discrete laplace": DiscreteLaplaceMechanism,
    "discrete gaussian": DiscreteGaussianMechanism,
}


def log_probability(noise, scale, low, high):
    """Of noise from `low` to `high`, or its log-density if these are one point."""
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    if noise.startswith("discrete"):
        shape = INTEGERS**2 / 2 / scale**2 if noise.endswith("gaussian") else abs(INTEGERS) / scale
        log_cdf = np.logaddexp.accumulate(-shape - special.logsumexp(-shape))
        upper = (high > 0) & (low > -high)  # the tail that is nearer
        low, high = np.where(upper, -high, low), np.where(upper, -low, high)
        end = INTEGERS[-1]
        below, within = (log_cdf[np.clip(x, -end, end).astype(int) + end] for x in (low - 1, high))
        below = np.where(low == -np.inf, -np.inf, below)
        return within + np.log1p(-np.exp(below - within))
    law = (stats.norm if noise == "gaussian" else stats.laplace)(scale=scale)
    with np.errstate(divide="ignore"):
        return np.where(low == high, law.logpdf(low), np.log(law.cdf(high) - law.cdf(low)))


def compiled(model, names):
    """Log-density of some observed variables, and its derivative, as functions of p."""
    density = model.logp(vars=[model[name] for name in names])
    slope = pm.pytensorf.gradient(density, model.value_vars)
    f = pm.compile(model.value_vars, [density, slope], **FAST)
    return lambda x: [float(np.ravel(out)[0]) for out in f(np.asarray(x))]


def agrees(model, names, exact, at=(0.05, 0.3, 0.8)):
    f = compiled(model, names)
    for x in at:
        found, slope = f(x)
        np.testing.assert_allclose(found, exact(x), rtol=1e-8, atol=1e-8)
        h = 1e-5
        by_difference = (exact(x + h) - exact(x - h)) / (2 * h)
        np.testing.assert_allclose(slope, by_difference, rtol=1e-4, atol=1e-4)


COUNTS = {
    "binomial": (lambda p: pm.Binomial.dist(60, p), lambda p: stats.binom.logpmf(K, 60, p)),
    "poisson": (lambda p: pm.Poisson.dist(50 * p), lambda p: stats.poisson.logpmf(K, 50 * p)),
    "negative binomial": (lambda p: pm.NegativeBinomial.dist(mu=30 * p, alpha=4.0),
                          lambda p: stats.nbinom.logpmf(K, 4, 4 / (4 + 30 * p))),
}  # fmt: skip


@pytest.mark.parametrize("law", slow_but("binomial")(COUNTS))
@pytest.mark.parametrize("noise", ["discrete gaussian", "laplace"])
def test_one_count_released_several_times_is_one_count(law, noise):
    """At two budgets, and by another office: the product of their densities, summed once."""
    build, log_mass = COUNTS[law]
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        count = build(p)
        MECHANISMS[noise]("a", total=count, scale=6.0, observed=17)
        MECHANISMS[noise]("b", total=count, scale=1.5, observed=11)
        GaussianMechanism("c", total=count, scale=3.0, observed=12.4)

    def exact(x):
        g = log_probability(noise, 6.0, 17 - K, 17 - K) + log_probability(
            noise, 1.5, 11 - K, 11 - K
        )
        return special.logsumexp(log_mass(x) + g + stats.norm.logpdf(12.4 - K, scale=3))

    agrees(model, "abc", exact)


def test_two_objects_are_two_counts_and_releases_at_odds_have_a_density():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        for name in "ab":
            GaussianMechanism(name, total=pm.Binomial.dist(60, p), scale=2.0, observed=20.0)
        one = pm.Binomial.dist(1000, p)
        GaussianMechanism("c", total=one, scale=2.0, observed=200.0)
        GaussianMechanism("d", total=one, scale=2.0, observed=330.0)
    a, _ = compiled(model, "a")(0.3)
    ab, _ = compiled(model, "ab")(0.3)
    assert ab == pytest.approx(2 * a)
    k = np.arange(1001)
    g = stats.norm.logpdf(200 - k, scale=2) + stats.norm.logpdf(330 - k, scale=2)
    exact = special.logsumexp(stats.binom.logpmf(k, 1000, 0.3) + g)
    assert compiled(model, "cd")(0.3)[0] == pytest.approx(exact, rel=1e-9)


PUBLISHED = {
    "cut off below": ({"lower": 0}, 0, (-np.inf, 0)),
    "cut off below, above it": ({"lower": 0}, 7, (7, 7)),
    "top-coded": ({"upper": 12}, 12, (12, np.inf)),
    "rounded to 5": ({"rounded": 5}, 15, (13, 17)),
    "rounded to 10": ({"rounded": 10}, 20, (15, 24)),
    "rounded and cut off": ({"rounded": 5, "lower": 0}, 0, (-np.inf, 2)),
    "suppressed": ({"suppressed": (1, 9)}, np.ma.masked, (1, 9)),
    "suppressed below": ({"suppressed": (-np.inf, 9), "rounded": 5}, np.ma.masked, (-np.inf, 11)),
    "missing": ({"suppressed": "missing"}, np.ma.masked, (-np.inf, np.inf)),
}


@pytest.mark.parametrize("law", slow_but("poisson")(COUNTS))
@pytest.mark.parametrize("noise", slow_but("discrete gaussian", "laplace")(MECHANISMS))
def test_a_published_number_is_the_interval_of_noisy_ones_it_stands_for(law, noise):
    build, log_mass = COUNTS[law]
    exact = []
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        for i, (how, value, (low, high)) in enumerate(PUBLISHED.values()):
            if not noise.startswith("discrete") and "rounded" in how:
                half = how["rounded"] / 2
                low = value - half if np.isfinite(low) else low
                high = (9 if value is np.ma.masked else value) + half
            observed = np.ma.masked_all((), int) if value is np.ma.masked else np.ma.asarray(value)
            MECHANISMS[noise](f"s{i}", total=build(p), scale=2.5, observed=observed, **how)
            exact.append(log_probability(noise, 2.5, low - K, high - K))
    density = model.compile_logp(vars=model.observed_RVs, sum=False, **FAST)
    slope = model.compile_dlogp(**FAST)
    every = lambda x: special.logsumexp(log_mass(x) + np.array(exact), axis=1)  # noqa: E731
    for x in (0.05, 0.5):
        # PyMC's own negative binomial is right to 1e-9.
        np.testing.assert_allclose(density({"p": np.asarray(x)}), every(x), rtol=1e-7, atol=1e-8)
        by_difference = (every(x + 1e-5).sum() - every(x - 1e-5).sum()) / 2e-5
        np.testing.assert_allclose(slope({"p": np.asarray(x)}), by_difference, rtol=1e-4, atol=1e-3)


def test_a_suppressed_count_without_noise():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        DiscreteLaplaceMechanism(
            "s", total=pm.Binomial.dist([60, 60], p), scale=0, suppressed=(1, 9),
            observed=np.ma.array([0, 30], mask=[True, False]),
        )  # fmt: skip

    def exact(x):
        few = stats.binom.cdf(9, 60, x) - stats.binom.cdf(0, 60, x)
        return np.log(few) + stats.binom.logpmf(30, 60, x)

    agrees(model, "s", exact)


@pytest.mark.parametrize("noise", MECHANISMS)
def test_structural_zeros_and_certainty_leave_the_noise_alone(noise):
    """And their gradients are numbers; far from what was published, too."""
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        share = p * np.array([1.0, 0.0, 0.0]) + np.array([0.0, 0.0, 1.0])
        MECHANISMS[noise]("s", total=pm.Binomial.dist(100, share), scale=2.5, observed=[30, 2, 98])
        MECHANISMS[noise]("t", total=pm.Poisson.dist(share[:2]), scale=2.5, observed=[1, 60])
    k = np.arange(101)

    def exact(x):
        g = lambda r: log_probability(noise, 2.5, r, r)  # noqa: E731
        first = special.logsumexp(stats.binom.logpmf(k, 100, x) + g(30 - k))
        rate = special.logsumexp(stats.poisson.logpmf(k, x) + g(1 - k))
        return first + g(2) + g(-2) + rate + g(60)

    agrees(model, "st", exact)


@pytest.mark.parametrize("noise", ["discrete gaussian", "laplace"])
@pytest.mark.parametrize("law", ["multinomial", "dirichlet-multinomial"])
def test_a_table_with_a_public_total_twice_with_suppressed_cells(law, noise):
    tables = np.array([(i, j, 9 - i - j) for i in range(10) for j in range(10 - i)])
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        if law == "multinomial":
            table = pm.Multinomial.dist(9, pt.stack([p, 0.7 * (1 - p), 0.3 * (1 - p)]))
        else:
            table = pm.DirichletMultinomial.dist(9, pt.stack([3 * p, 1.0, 2.0]))
        mechanism = MECHANISMS[noise]
        mechanism("a", total=table, scale=1.5, observed=[4, 1, 3])
        mechanism("b", total=table, scale=2.5, suppressed=(1, 2), lower=0,
                  observed=np.ma.array([0, 7, 5], mask=[0, 1, 0]))  # fmt: skip
        mechanism(
            "c",
            total=table,
            scale=1.0,
            suppressed="missing",
            observed=np.ma.array([0, 3, 5], mask=[1, 0, 0]),
        )

    def exact(x):
        if law == "multinomial":
            log_mass = stats.multinomial.logpmf(tables, 9, [x, 0.7 * (1 - x), 0.3 * (1 - x)])
        else:
            log_mass = stats.dirichlet_multinomial.logpmf(tables, [3 * x, 1.0, 2.0], 9)
        i, j, k = tables.T
        g = log_probability(
            noise, 1.5, np.array([4, 1, 3]) - tables, np.array([4, 1, 3]) - tables
        ).sum(axis=1)
        g = (
            g
            + log_probability(noise, 2.5, -np.inf - i, 0 - i)
            + log_probability(noise, 2.5, 1 - j, 2 - j)
        )
        g = g + log_probability(noise, 2.5, 5 - k, 5 - k)
        g = (
            g
            + log_probability(noise, 1.0, 3 - j, 3 - j)
            + log_probability(noise, 1.0, 5 - k, 5 - k)
        )
        return special.logsumexp(log_mass + g)

    agrees(model, "abc", exact)


CELLS = {
    "poisson": (lambda p: pm.Poisson.dist(pt.stack([5 * p, 8.0, 2 - p])),
                lambda k, p: stats.poisson.logpmf(k, [5 * p, 8.0, 2 - p])),
    "binomial": (lambda p: pm.Binomial.dist([12, 20, 9], pt.stack([p, 0.3, 1 - p])),
                 lambda k, p: stats.binom.logpmf(k, [12, 20, 9], [p, 0.3, 1 - p])),
    "negative binomial": (lambda p: pm.NegativeBinomial.dist(mu=pt.stack([5 * p, 4.0, 2.0]), alpha=3.0),
                          lambda k, p: stats.nbinom.logpmf(k, 3, 3 / (3 + np.array([5 * p, 4.0, 2.0])))),
}  # fmt: skip


@pytest.mark.parametrize("noise", ["discrete gaussian", "laplace"])
@pytest.mark.parametrize("law", slow_but("poisson", "binomial")(CELLS))
def test_margins_beside_cells_are_sums_of_the_same_counts(law, noise):
    """The second area's margin is released twice, and one of its cells not at all."""
    build, log_mass = CELLS[law]
    cells, margin, again = np.array([3, 7, 1]), 14, 11
    mechanism = MECHANISMS[noise]
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        counts = build(p)
        mechanism(
            "cells",
            total=counts,
            scale=1.5,
            suppressed="missing",
            observed=np.ma.array(cells, mask=[0, 0, 1]),
        )
        mechanism("margin", total=counts.sum(axis=-1), scale=1.0, observed=margin, keep_total=True)
        mechanism("again", total=counts.sum(axis=-1), scale=2.0, observed=again, lower=0)
    tables = np.array(list(itertools.product(range(28), range(28), range(28))))
    total = tables.sum(axis=1)
    seen = log_probability(noise, 1.5, (cells - tables)[:, :2], (cells - tables)[:, :2]).sum(axis=1)
    of_margin = log_probability(noise, 1.0, margin - total, margin - total)
    of_again = log_probability(noise, 2.0, again - total, again - total)

    def exact(x):
        return special.logsumexp(log_mass(tables, x).sum(axis=1) + seen + of_margin + of_again)

    agrees(model, ["cells", "margin", "again"], exact)
    (mean,) = model.replace_rvs_by_values([model["margin_total"]])
    found = pm.compile(model.value_vars, mean, **FAST)(np.asarray(0.3))
    weight = special.softmax(log_mass(tables, 0.3).sum(axis=1) + seen + of_margin)
    np.testing.assert_allclose(found, weight @ total, rtol=1e-8)


def test_draws_of_one_count_agree_and_are_published_as_the_data():
    with pm.Model() as model:
        rate = np.array([[40.0, 3.0], [5.0, 60.0]])
        counts = pm.Poisson.dist(rate)
        DiscreteLaplaceMechanism("cells", total=counts, scale=0.01, observed=[[40, 3], [5, 60]])
        DiscreteLaplaceMechanism(
            "margins", total=counts.sum(axis=-1), scale=0.01, observed=[40, 60]
        )
        hidden = np.ma.array([[40, 0], [0, 50]], mask=[[0, 1], [1, 0]])
        DiscreteLaplaceMechanism("coarse", total=counts, scale=0.01, observed=hidden, rounded=10, upper=50,
                                 suppressed=(-np.inf, 5))  # fmt: skip
    cells, margins, coarse = pm.draw(
        [model["cells"], model["margins"], model["coarse"]], 300, random_seed=1
    )
    np.testing.assert_array_equal(cells.sum(axis=-1), margins)
    expected = np.minimum(np.floor(cells / 10 + 0.5) * 10, 50)
    np.testing.assert_array_equal(coarse, np.where(expected <= 5, 5, expected))
    assert abs(cells.mean(axis=0) - rate).max() < 5 * 60**0.5 / 300**0.5


def test_a_table_of_pandas_brings_its_coordinates():
    table = pd.DataFrame(
        [[3, 4, 9], [6, 1, 2]], index=pd.Index(["north", "south"], name="region"),
        columns=pd.Index(["young", "middle", "old"], name="age"),
    )  # fmt: skip
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        total = pm.Binomial.dist(20, p, shape=(2, 3))
        DiscreteGaussianMechanism("s", total=total, scale=2, observed=table)
    assert model.named_vars_to_dims["s"] == ("region", "age")
    assert list(model.coords["age"]) == ["young", "middle", "old"]
    with model, pytest.raises(PrivacyConfigurationError, match="reindex"):
        DiscreteGaussianMechanism(
            "t", total=total, scale=2, observed=table[["old", "young", "middle"]]
        )


SCALES = [
    (GaussianMechanism, {"variance": 9.0}, 3.0),
    (GaussianMechanism, {"standard_error": [3.0, 2.0]}, [3.0, 2.0]),
    (GaussianMechanism, {"margin_of_error": (4.934559, 0.9)}, 3.0),
    (GaussianMechanism, {"rho": 0.5, "sensitivity": 2.0}, 2.0),
    (GaussianMechanism, {"mu": 0.5, "sensitivity": 2.0}, 4.0),
    (DiscreteGaussianMechanism, {"rho": 0.5, "sensitivity": 2.0}, 2.0),
    (LaplaceMechanism, {"variance": 18.0}, 3.0),
    (LaplaceMechanism, {"epsilon": 0.5, "sensitivity": 2.0}, 4.0),
    (DiscreteLaplaceMechanism, {"variance": 0.5 / np.sinh(1 / 6) ** 2}, 3.0),
]


@pytest.mark.parametrize(("mechanism", "said", "scale"), SCALES)
def test_the_noise_is_said_as_offices_say_it(mechanism, said, scale):
    densities = []
    for noise in (said, {"scale": scale}):
        with pm.Model() as model:
            p = pm.Uniform("p", 0, 1, default_transform=None)
            mechanism("s", total=pm.Binomial.dist(20, p, shape=2), observed=[3, 9], **noise)
        densities.append(compiled(model, "s")(0.3)[0])
    assert densities[0] == pytest.approx(densities[1], rel=1e-6)


def table_with(mask=(0, 0, 1)):
    return np.ma.array([3, 4, 500], mask=mask)


REFUSALS = {
    "masked without a reason": ({"observed": table_with()}, "Say why they were not published"),
    "nan without a reason": ({"observed": [3.0, 4.0, np.nan]}, "Say why they were not published"),
    "a number that would be suppressed": ({"observed": [3, 40, 50], "suppressed": (1, 9)}, "could not have been"),
    "not rounded": ({"observed": [5, 10, 13], "rounded": 5}, "could not have been published"),
    "below the lower end": ({"observed": [5, 10, -1], "lower": 0}, "could not have been published"),
    "ends the wrong way round": ({"observed": [5, 5, 5], "lower": 6, "upper": 5}, "must be below"),
    "an interval the wrong way round": ({"observed": table_with(), "suppressed": (9, 1)}, "such as \\(1, 9\\)"),
    "a name that is not one": ({"observed": [1, 2, 3], "scale": None, "sigma": 2}, "Did you mean `scale`"),
    "a standard deviation": ({"observed": [1, 2, 3], "scale": None, "sd": 2}, "Did you mean `standard_error`"),
    "two sizes": ({"observed": [1, 2, 3], "variance": 4}, "Found `scale`, `variance`"),
    "a margin without its level": ({"observed": [1, 2, 3], "scale": None, "margin_of_error": 12}, "and its level"),
    "a scale that is text": ({"observed": [1, 2, 3], "scale": "2"}, "must be a known number"),
    "the wrong shape": ({"observed": [1, 2]}, "`total` has shape \\(3,\\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_cure(case):
    arguments, message = REFUSALS[case]
    with pm.Model():
        p = pm.Beta("p", 2, 2)
        total = pm.Binomial.dist(50, p, shape=3)
        with pytest.raises(PrivacyConfigurationError, match=message):
            DiscreteGaussianMechanism("s", total=total, **{"scale": 2, **arguments})


def test_refusals_of_laplace_noise_and_of_data_that_are_swapped():
    with pm.Model() as model:
        total = pm.Binomial.dist(50, pm.Beta("p", 2, 2), shape=3)
        data = pm.Data("data", np.array([1, 2, 3]))
        scales = pm.Data("scales", np.array([1.0, 2, 3]))
        for arguments, message in [
            ({"rho": 1.0, "sensitivity": 1}, "budget of Gaussian noise"),
            ({"mu": 1.0, "sensitivity": 1}, "budget of Gaussian noise"),
            ({"scale": scales}, "build the model anew"),
            ({"scale": 2, "observed": data, "lower": 0}, "build the model anew"),
        ]:
            with pytest.raises(PrivacyConfigurationError, match=message):
                LaplaceMechanism("s", **{"total": total, "observed": [1, 2, 3], **arguments})
    assert model.observed_RVs == []


def test_sums_that_cannot_be_summed_out_are_refused():
    with pm.Model():
        p = pm.Beta("p", 2, 2)
        counts = pm.Poisson.dist(9 * p, shape=(2, 3))
        table = pm.Multinomial.dist(9, pt.stack([p, 1 - p]))
        for total, observed, message in [
            (counts.sum(axis=-1), [3, 4], "Release the cells first"),
            (counts.sum(axis=0), [3, 4, 5], "only those over the last axis"),
            (table.sum(axis=-1), 9, "only those over the last axis"),
            (counts[:, 1:], [[3, 4]] * 2, "mask `observed`"),
            (counts[0] + counts[1], [3, 4, 5], "no function of it"),
        ]:
            with pytest.raises(UnsupportedModelError, match=message):
                DiscreteGaussianMechanism("s", total=total, scale=2, observed=observed)
        DiscreteGaussianMechanism("cells", total=counts, scale=2, observed=np.ones((2, 3), int))
        margin = counts.sum(axis=-1)
        with pytest.raises(PrivacyConfigurationError, match="does not bound counts"):
            DiscreteGaussianMechanism(
                "s", total=margin, scale=2, observed=[9, 9], upper=9, keep_total=True
            )


@pytest.fixture(scope="module")
def released():
    """The sum of 800 records that the curator has clamped to [-2, 2]."""
    hours = np.random.default_rng(0).normal(size=800)
    return LaplaceMechanism.release(hours, bounds=(-2, 2), epsilon=1.0)


def observe_one_record(released, statistic, **how):
    """A mechanism on a record that is normal with mean mu."""
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        LaplaceMechanism("s", statistic(mu), observed=released, **how)


@pytest.mark.parametrize("n", [-100, 0, np.nan, np.inf, 100.5, [10, 0]])
def test_a_number_of_records_is_whole_and_positive(n):
    areas = np.shape(n)
    with pytest.raises(PrivacyConfigurationError, match="whole numbers of records, 1 or more"):
        observe_one_record(
            np.full(areas, 50.0),
            lambda mu: clamp(pm.Normal.dist(mu, 1, shape=areas), -2, 2),
            n=n,
            scale=4.0,
        )


def test_a_release_knows_its_records_and_its_bounds(released):
    again = ReleasedStatistic.from_json(released.to_json())
    assert again.bounds == ([-2.0], [2.0])
    one = lambda mu: clamp(pm.Normal.dist(mu, 1), -2, 2)  # noqa: E731
    observe_one_record(again, one, n=800)
    with pytest.raises(PrivacyConfigurationError, match="a sum over 800 records"):
        observe_one_record(again, one, n=8000)
    with pytest.raises(PrivacyConfigurationError, match="a sum over 800 records"):
        observe_one_record(again, lambda mu: clamp(pm.Normal("x", mu, 1, shape=100), -2, 2))
    for wrong in (lambda mu: pm.Normal.dist(mu, 1), lambda mu: clamp(pm.Normal.dist(mu, 1), -3, 3)):
        with pytest.raises(PrivacyConfigurationError, match="Clamp it as the curator did"):
            observe_one_record(again, wrong, n=800)
    with pytest.warns(UserWarning, match="Clamp it with the same bounds"):
        observe_one_record(again, lambda mu: clamp(pm.Normal.dist(mu, 1), -1, 1), n=800)


def test_a_statistic_that_was_summed_already_is_refused_and_a_mean_is_suspected():
    every = lambda mu: clamp(pm.Normal.dist(mu, 1, shape=100), -2, 2).sum()  # noqa: E731
    with pytest.raises(PrivacyConfigurationError, match="do not sum"):
        observe_one_record(50.0, every, n=100, scale=4.0)
    with pytest.warns(UserWarning, match="statistic / n"):
        observe_one_record(0.3, lambda mu: clamp(pm.Normal.dist(mu, 1), -2, 2), n=1000, scale=0.004)


@pytest.mark.parametrize(
    "law",
    [
        lambda x: pm.Beta.dist(x, 2),
        lambda x: pm.Gamma.dist(x, 2),
        lambda x: pm.InverseGamma.dist(x, 2),
    ],
)
@pytest.mark.filterwarnings("ignore:RandomVariables")
def test_a_record_without_smooth_quantiles_is_refused(law):
    with pytest.raises(UnsupportedModelError, match="if its shape is known"):
        observe_one_record(5.0, lambda mu: clamp(law(pt.exp(mu)), 0, 1), n=100, scale=4.0)


def test_a_release_far_beyond_the_population_has_a_density():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        total = pm.BetaBinomial.dist(alpha=3 * p, beta=1.0, n=10)
        GaussianMechanism("s", total=total, scale=1.0, observed=500.0)
        LaplaceMechanism("t", total=pm.Truncated.dist(pm.Poisson.dist(9 * p), lower=1, upper=30), scale=2.0,
                         observed=12.0)  # fmt: skip
    k = np.arange(11)

    def exact(x):
        far = special.logsumexp(
            stats.betabinom.logpmf(k, 10, 3 * x, 1.0) + stats.norm.logpdf(500 - k)
        )
        some = np.arange(1, 31)
        law = stats.poisson.logpmf(some, 9 * x)
        near = special.logsumexp(
            law + stats.laplace.logpdf(12 - some, scale=2)
        ) - special.logsumexp(law)
        return far + near

    agrees(model, "st", exact)


def test_shapes_come_from_parameters_with_transforms():
    """And a table and its population may be data that are replaced."""
    with pm.Model() as model:
        share = pm.Beta("share", 2, 2, shape=3)
        size, seen = pm.Data("size", [20, 30, 40]), pm.Data("seen", [7, 9, 30])
        DiscreteGaussianMechanism("s", total=pm.Binomial.dist(size, share), scale=2, observed=seen)
        DiscreteGaussianMechanism(
            "t", total=pm.Binomial.dist(60, share), scale=2, observed=[7, 9, 30]
        )
    density = model.compile_logp(vars=[model["s"]], sum=False, **FAST)
    k = np.arange(100)[:, None]

    def exact(size, seen):
        g = log_probability("discrete gaussian", 2.0, seen - k, seen - k)
        return special.logsumexp(stats.binom.logpmf(k, size, 0.5) + g, axis=0)

    at = {"share_logodds__": np.zeros(3)}
    for size, seen in (([20, 30, 40], [7, 9, 30]), ([25, 60, 10], [-4, 31, 12])):
        model.set_data("size", size)
        model.set_data("seen", seen)
        np.testing.assert_allclose(density(at)[0], exact(np.array(size), np.array(seen)), rtol=1e-9)
    assert np.isfinite(model.compile_logp(vars=[model["t"]], **FAST)(at))
