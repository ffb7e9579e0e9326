"""Scores less what the model expects of them, information, and the outcomes that both rest on."""

import json
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import expit
from scipy.stats import laplace

import pymc_dp as dp
from pymc_dp.privacy.clipping import RESOLUTION, in_silence
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.records.queries import Gradient, Information, NormExceeds, Score, sizes
from pymc_dp.records.sums import LocalRecords

FAST = {"mode": "FAST_COMPILE"}
N = 60


def logistic(x, y):
    beta = pm.Normal("beta", 0, 1, shape=2)
    pm.Bernoulli("y", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y))


def categorical(x, y):
    B = pm.Normal("B", 0, 1, shape=(2, 3))
    pm.Categorical("y", logit_p=pm.Data("X", x) @ B, observed=pm.Data("Y", y))


def poisson(x, y):
    beta = pm.Normal("beta", 0, 1, shape=2)
    pm.Poisson("y", pm.math.exp(pm.Data("X", x) @ beta), observed=pm.Data("Y", y))


def normal(x, y):
    beta, log_sd = pm.Normal("beta", 0, 1, shape=2), pm.Normal("log_sd", 0, 1)
    pm.Normal(
        "y", pm.Data("X", x) @ beta, pm.math.exp(log_sd), observed=pm.Data("Y", y.astype(float))
    )


def without_draws(x, y):
    """The law of `normal`, of which the model says nothing but its density."""
    beta, log_sd = pm.Normal("beta", 0, 1, shape=2), pm.Normal("log_sd", 0, 1)

    def logp(value, mu, sd):
        return -0.5 * ((value - mu) / sd) ** 2 - pt.log(sd)

    pm.CustomDist(
        "y", pm.Data("X", x) @ beta, pm.math.exp(log_sd), logp=logp,
        observed=pm.Data("Y", y.astype(float)),
    )  # fmt: skip


LAWS = {"logistic": logistic, "categorical": categorical, "poisson": poisson, "normal": normal,
        "without draws": without_draws}  # fmt: skip
VALUES = {"logistic": 2, "categorical": 3}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y = RNG.integers(2, size=N)


def model_of(law, x=X, y=Y):
    with pm.Model() as model:
        LAWS[law](x, y)
    return model


@cache
def compiled(law):
    return dp.compile(model_of(law), compile_kwargs=FAST)


def records_of(law, x=X, y=Y, words=0, first_unit=0):
    """Records of a model that is compiled once."""
    seeds = np.full(4, words, np.uint64)
    template = LocalRecords(compiled(law), 1, words=seeds)
    given = {"X": x, "Y": y}
    leaves = compiled(law).roles.record_data
    data = [np.asarray(given[leaf.name], leaf.values.dtype) for leaf in leaves]
    return template.of_data(data, first_unit=first_unit)


def terms(of, records):
    with in_silence():
        return np.concatenate(list(of.terms(records)))


def place(law, seed=1):
    """Somewhere near the start, and a frame that is not the identity."""
    rng, d = np.random.default_rng(seed), compiled(law).d
    return 0.5 * rng.normal(size=d), np.eye(d) + 0.3 * rng.normal(size=(d, d))


def outcomes(law, of, theta):
    """Of every possible outcome: units' probabilities at θ, and their terms."""
    found = []
    for value in range(VALUES[law]):
        records = records_of(law, y=np.full(N, value))
        (logs,) = records.log_likelihoods([theta])
        found.append((np.exp(logs), terms(of, records)))
    return [np.stack(part) for part in zip(*found, strict=True)]


# -- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.02, 0.5, 3.0])
@pytest.mark.parametrize("law", VALUES)
def test_the_mean_of_a_score_is_nought_whatever_is_clipped(law, bound):
    """By enumeration, unit by unit: where the model is right, clipping biases nothing."""
    theta, V = place(law)
    p, scores = outcomes(law, Score(theta, V, bound, 0.7), theta)
    np.testing.assert_allclose(p.sum(axis=0), 1)
    np.testing.assert_allclose(np.einsum("kn,knd->nd", p, scores), 0, atol=1e-12)
    assert np.abs(scores).max() > bound / 10


@pytest.mark.parametrize("law", LAWS)
def test_a_score_that_is_not_clipped_is_the_gradient(law):
    """Also where outcomes are drawn: they add no noise to it."""
    theta, V = place(law)
    records = records_of(law)
    np.testing.assert_allclose(
        terms(Score(theta, V, 1e6, 0.7), records),
        terms(Gradient(theta, V, 0.7), records),
        atol=1e-12,
    )


def test_a_score_is_what_its_formula_says():
    theta, V = place("logistic")
    b, T, p = 0.3, 0.7, expit(X @ theta)

    def clipped(y):
        z = T * ((y - p)[:, None] * X) @ V
        return z * np.minimum(1, b / np.linalg.norm(z, axis=1))[:, None]

    expected = clipped(Y) - p[:, None] * clipped(1) - (1 - p)[:, None] * clipped(0)
    np.testing.assert_allclose(terms(Score(theta, V, b, T), records_of("logistic")), expected)


def test_one_draw_that_is_clipped_does_not_say_that_its_unit_is_clipped_often():
    """Of eight draws of a unit one is beyond the bound in seven, and nothing is centred by that one alone."""
    x, bound = np.tile([1.0, 0.0], (4000, 1)), 2.5
    law = stats.poisson(1)  # y - 1 is beyond the bound from 4 on, with probability .019
    moved = terms(
        Score(np.zeros(2), np.eye(2), bound), records_of("poisson", x, np.ones(4000, int))
    )
    y = np.arange(4, 30)
    expected = law.pmf(y) @ (y - 1 - bound)
    assert 0 < moved[:, 0].mean() < 0.3 * expected


def test_units_that_are_clipped_often_are_centred():
    """By eight draws each, and so by the model's expectation in the mean over many."""
    x, bound = np.tile([1.0, 0.0], (4000, 1)), 0.3
    law, y = stats.poisson(1), np.arange(30)
    moved = terms(
        Score(np.zeros(2), np.eye(2), bound), records_of("poisson", x, np.ones(4000, int))
    )
    expected = law.pmf(y) @ np.clip(y - 1, -bound, bound)
    assert abs(moved[:, 0].mean() + expected) < 5 * moved[:, 0].std() / np.sqrt(4000)


# Records that somebody makes up to be seen.
WILD = np.array(
    [[0, 0], [1, 0], [-1, 0], [1e3, 0], [-1e3, 1e3], [1e160, 1e160], [1e308, -1e308], [np.nan, 1], [np.inf, -np.inf],
     [1e-300, 0], [3, -4], [-3, 4]]
)  # fmt: skip


@pytest.mark.parametrize("neighbours", [SUBSTITUTE_ONE, ADD_OR_REMOVE], ids=lambda n: n.name)
@pytest.mark.parametrize("query", [Score, Information])
@pytest.mark.parametrize("law", ["logistic", "poisson", "without draws"])
def test_one_unit_moves_the_integers_that_noise_is_added_to_by_the_sensitivity(
    law, query, neighbours
):
    """By brute force over pairs of made-up records, each alone; the noise is for that much, and not much more."""
    theta, V = place(law)
    of, bound = query(theta, V, 0.4), 0.4
    x = np.concatenate([WILD, X[:8], 30 * X[:8]])
    images = np.stack(
        [
            records_of(law, np.array([row]), np.array([y])).total(of, bound)
            for row in x
            for y in (0, 1)
        ]
    )
    images = images * (bound / RESOLUTION)
    acute = query is Information
    sensitivity = neighbours.noise_sd(bound, 1.0, acute)
    if neighbours.public_size:
        apart = np.linalg.norm(images[:, None] - images[None], axis=2)
    else:
        apart = np.linalg.norm(images, axis=1)
    assert np.isfinite(images).all()
    assert 0.6 * sensitivity < apart.max() <= sensitivity


@pytest.mark.parametrize("query", [Score, Information])
def test_units_terms_are_their_own(query):
    """Where all outcomes are taken, a sum is that of every unit's alone, to the last integer."""
    theta, V = place("logistic")
    x = np.concatenate([X[:6], WILD])
    y = np.arange(len(x)) % 2
    of = query(theta, V, 0.3)
    alone = [
        records_of("logistic", x[k : k + 1], y[k : k + 1]).total(of, 0.3) for k in range(len(x))
    ]
    np.testing.assert_array_equal(
        records_of("logistic", x, y).total(of, 0.3), np.sum(alone, axis=0)
    )


# -- information -------------------------------------------------------------------------------


def unpacked(vectors, d):
    """Symmetric matrices from vectors in which entries off the diagonal count twice."""
    i, j = np.tril_indices(d)
    M = np.zeros((len(vectors), d, d))
    M[:, i, j] = M[:, j, i] = vectors / np.where(i == j, 1, np.sqrt(2))
    return M


def halves(of, records):
    found, d = terms(of, records), len(of.theta)
    return [unpacked(half, d) for half in np.split(found, 2, axis=1)]


@pytest.mark.parametrize("tempering", [1.0, 0.3])
def test_information_of_a_logistic_regression(tempering):
    """Of a likelihood to the power T it is T times that, in the frame's coordinates."""
    theta, V = place("logistic")
    b, T = 0.3, tempering
    found, kept = halves(Information(theta, V, b, T), records_of("logistic"))
    p, xV = expit(X @ theta), X @ V
    outer = np.einsum("ni,nj->nij", xV, xV)
    np.testing.assert_allclose(found, T * (p * (1 - p))[:, None, None] * outer, atol=1e-14)
    # At the outcomes 1 and 0 scores have lengths T (1 - p) |xV| and T p |xV|.
    lengths = T * np.linalg.norm(xV, axis=1)
    part = p * (1 - p) ** 2 * np.minimum(1, b / (lengths * (1 - p)))
    part = part + (1 - p) * p**2 * np.minimum(1, b / (lengths * p))
    np.testing.assert_allclose(kept, T * part[:, None, None] * outer, atol=1e-14)
    norms = np.linalg.norm(terms(Information(theta, V, b, T), records_of("logistic")), axis=1)
    np.testing.assert_allclose(norms**2, np.sum(found**2, (1, 2)) + np.sum(kept**2, (1, 2)))


@pytest.mark.parametrize("kept", ["matrix", "diagonal", "nothing"])
@pytest.mark.parametrize("law", LAWS)
def test_sizes_are_lengths_of_terms(law, kept):
    """Of three outcomes of a model of six parameters they are found in another way than of sixteen of one of two."""
    theta, V = place(law)
    of, x = Information(theta, V, 0.3, 0.5, kept), np.concatenate([WILD, X])
    records = records_of(law, x, np.zeros(len(x), int))
    with in_silence():
        found = np.concatenate(list(sizes(of, records)))
    np.testing.assert_allclose(found, np.linalg.norm(terms(of, records), axis=1), rtol=1e-12)


@pytest.mark.parametrize("law", VALUES)
def test_what_is_kept_is_how_the_mean_score_changes(law):
    """Minus its derivative by the place that is asked about, where outcomes are of another place, by differences."""
    theta, V = place(law)
    b, T, h = 0.3, 0.7, 1e-5
    p, _ = outcomes(law, Gradient(theta), theta)

    def mean(at):
        _, scores = outcomes(law, Score(at, V, b, T), theta)
        return np.einsum("kn,knd->nd", p, scores).sum(axis=0)

    slopes = np.stack([(mean(theta - h * v) - mean(theta + h * v)) / (2 * h) for v in V.T], axis=1)
    _, kept = halves(Information(theta, V, b, T), records_of(law))
    # Where a unit is clipped from, its score has a corner: of N units next to none is within h of it.
    np.testing.assert_allclose(slopes, kept.sum(axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("law", LAWS)
def test_no_two_units_informations_point_against_each_other(law):
    """What its smaller noise rests on; with drawn outcomes and records that are not numbers, too."""
    rng, (theta, V) = np.random.default_rng(3), place(law)
    x = np.concatenate([WILD, rng.standard_t(1, size=(80, 2))])
    found = terms(Information(theta, V, 0.3, 0.5), records_of(law, x, rng.integers(2, size=len(x))))
    lengths = np.linalg.norm(found, axis=1)
    counted = np.isfinite(lengths) & (lengths > 0)
    assert counted.sum() > 60
    directions = found[counted] / lengths[counted, None]
    assert (directions @ directions.T).min() > -1e-12
    eigenvalues = np.linalg.eigvalsh(
        np.concatenate([unpacked(half, len(theta)) for half in np.split(directions, 2, axis=1)])
    )
    assert eigenvalues.min() > -1e-12


@pytest.mark.parametrize("query", [Score, Information])
def test_scores_are_not_those_of_samples(query):
    """A sample of units would see the outcomes of others."""
    theta, V = place("logistic")
    with pytest.raises(NotImplementedError, match="all units"):
        list(query(theta, V, 1.0).terms(records_of("logistic"), np.arange(3)))


# -- simulated outcomes ------------------------------------------------------------------------


def fisher(law, x, theta):
    """Per unit, shape (n, d, d), by its formula."""
    outer = np.einsum("ni,nj->nij", x, x)
    if law == "poisson":
        return np.exp(x @ theta)[:, None, None] * outer
    J = np.zeros((len(x), 3, 3))
    J[:, :2, :2], J[:, 2, 2] = outer * np.exp(-2 * theta[2]), 2.0
    return J


@pytest.mark.parametrize("law", ["poisson", "normal"])
def test_drawn_outcomes_have_the_models_information(law):
    """The mean over 4,000 units, within what eight draws of each allow."""
    x = 0.5 * np.random.default_rng(4).normal(size=(4000, 2))
    theta, _ = place(law)
    found, _ = halves(
        Information(theta, np.eye(len(theta)), 1.0), records_of(law, x, np.zeros(len(x)))
    )
    off = found - fisher(law, x, theta)
    error = off.std(axis=0) / np.sqrt(len(x))
    assert (np.abs(off.mean(axis=0)) < 5 * error).all()
    scores = simulated(records_of(law, x, np.zeros(len(x))), theta).reshape(-1, len(theta))
    assert (np.abs(scores.mean(axis=0)) < 5 * scores.std(axis=0) / np.sqrt(len(scores))).all()


def simulated(records, theta):
    return np.concatenate([s.simulated for s in records.scores(theta)], axis=1)


def test_outcomes_are_the_same_whenever_theta_comes_back():
    theta, _ = place("poisson")
    records = records_of("poisson")
    before = simulated(records, theta)
    assert not np.array_equal(simulated(records, theta + 0.1), before)
    np.testing.assert_array_equal(simulated(records, theta), before)
    np.testing.assert_array_equal(simulated(records_of("poisson"), theta), before)


@pytest.mark.parametrize("other", [{"words": 1}, {"first_unit": N}])
def test_outcomes_are_other_ones_with_other_words_and_in_other_shards(other):
    theta, _ = place("poisson")
    one, two = (simulated(records_of("poisson", **some), theta) for some in ({}, other))
    assert (np.abs(one - two).max(axis=2) > 0).mean() > 0.5


@pytest.mark.parametrize("law", ["poisson", "normal", "logistic", "categorical"])
def test_a_units_outcomes_do_not_depend_on_what_was_observed(law):
    theta, _ = place(law)
    y = np.random.default_rng(6).integers(2, size=N)
    one, two = (simulated(records_of(law, y=values), theta) for values in (Y, y))
    np.testing.assert_array_equal(one, two)
    assert (y != Y).any()


def test_a_models_outcomes_leave_its_records_alone():
    theta, V = place("poisson")
    records = records_of("poisson")
    before, (logs,) = terms(Gradient(theta), records), records.log_likelihoods([theta])
    terms(Score(theta, V, 0.1), records)
    np.testing.assert_array_equal(terms(Gradient(theta), records), before)
    np.testing.assert_array_equal(records.likelihood(theta), logs)


def test_units_of_several_records():
    """A unit's score is the sum of its records', and so is its information on average."""
    rng, units = np.random.default_rng(7), 2000
    ids = rng.permutation(np.concatenate([np.arange(units), rng.integers(units, size=units)]))
    x, theta = rng.normal(size=(len(ids), 2)), np.array([0.5, -0.3])
    with pm.Model() as model:
        logistic(x, (rng.random(len(ids)) < 0.5).astype(int))
    records = LocalRecords(
        dp.compile(model, unit=ids, compile_kwargs=FAST), 1, words=np.zeros(4, np.uint64)
    )
    found, _ = halves(Information(theta, np.eye(2), 1.0), records)
    p = expit(x @ theta)
    each = (p * (1 - p))[:, None, None] * np.einsum("ni,nj->nij", x, x)
    assert len(found) == units
    # Of a unit, the mean of eight products of scores.
    error = found.std(axis=0) / np.sqrt(units)
    assert (np.abs(found.mean(axis=0) - each.sum(axis=0) / units) < 5 * error).all()
    np.testing.assert_allclose(
        terms(Score(theta, np.eye(2), 1e6), records), terms(Gradient(theta), records), atol=1e-12
    )
    sizes = terms(Score(theta, np.eye(2), 0.5), records)
    assert (np.abs(sizes.mean(axis=0)) < 0.5).all()


def test_records_with_several_outcomes_each():
    """A row of three Bernoullis has eight outcomes, and not two: information adds up over a row."""
    rng, n = np.random.default_rng(8), 3000
    x, theta = rng.uniform(0.5, 1.5, size=(n, 3)), np.array([0.4])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli(
            "y", logit_p=b * pm.Data("X", x), observed=pm.Data("Y", rng.integers(2, size=(n, 3)))
        )
    records = LocalRecords(
        dp.compile(model, unit=0, compile_kwargs=FAST), 1, words=np.zeros(4, np.uint64)
    )
    found, _ = halves(Information(theta, np.eye(1), 1.0), records)
    p = expit(x * theta)
    off = found[:, 0, 0] - (p * (1 - p) * x**2).sum(axis=1)
    assert abs(off.mean()) < 5 * off.std() / np.sqrt(n) + 1e-12
    scores = np.concatenate(
        [np.einsum("kn,knd->n", s.weights, s.simulated) for s in records.scores(theta)]
    )
    assert abs(scores.mean()) < 5 * scores.std() / np.sqrt(n) + 1e-12


def test_without_draws_the_observed_scores_stand_for_the_models():
    assert compiled("without draws").simulated is None
    theta, V = place("without draws")
    records = records_of("without draws")
    (g,) = records.gradients(theta)
    z = g @ V
    clipped = z * np.minimum(1, 0.5 / np.linalg.norm(z, axis=1))[:, None]
    np.testing.assert_allclose(terms(Score(theta, V, 0.5), records), clipped)
    found, kept = halves(Information(theta, V, 0.5), records)
    np.testing.assert_allclose(found, np.einsum("ni,nj->nij", z, z))
    np.testing.assert_allclose(kept, np.einsum("ni,nj->nij", clipped, z))


def every(mu, x):
    """Laws with parameters that are one number for all records, which only the size tells the number of."""
    y = np.abs(x[:, 0]) + 0.1
    numbers, counts = {"observed": y}, {"observed": np.round(2 * y)}
    rate = pm.math.exp(mu)
    return {
        "asymmetric Laplace": lambda: pm.AsymmetricLaplace("y", kappa=1.0, mu=mu, b=1.0, **numbers),
        "censored": lambda: pm.Censored("y", pm.Weibull.dist(2.0, rate), None, 1.5, **numbers),
        "hurdle": lambda: pm.HurdlePoisson("y", 0.3, rate, **counts),
        "mixture": lambda: pm.NormalMixture(
            "y", pt.stack([0.3 + 0 * mu, 0.7]), pt.stack([mu, mu + 1]), **numbers
        ),
        "ordered": lambda: pm.OrderedLogistic(
            "y", eta=mu * x[:, 1], cutpoints=pt.stack([mu, mu + 1]), observed=Y
        ),
        "Student": lambda: pm.StudentT("y", nu=4, mu=mu, **numbers),
        "truncated": lambda: pm.Truncated("y", pm.Normal.dist(mu), lower=0.0, **numbers),
        "Weibull": lambda: pm.Weibull("y", 2.0, rate, **numbers),
        "zero-inflated": lambda: pm.ZeroInflatedNegativeBinomial("y", 0.3, rate, 2.0, **counts),
    }


@pytest.mark.parametrize("name", every(0.0, X))
def test_laws_of_pymc_are_drawn_from(name):
    with pm.Model() as model:
        every(pm.Normal("mu"), X)[name]()
    compiled = dp.compile(model, compile_kwargs=FAST)
    assert compiled.simulated is not None
    records = LocalRecords(compiled, 1, words=np.zeros(4, np.uint64))
    (scores,) = records.scores(np.array([0.2]))
    assert np.isfinite(scores.simulated).all()
    assert np.ptp(scores.simulated) > 0


@pytest.mark.parametrize(
    "law",
    [
        {"random": lambda mu, rng=None, size=None: rng.normal(mu, size=size).cumsum()},
        {"dist": lambda mu, size: pt.cumsum(pm.Normal.dist(mu, size=size))},
    ],
    ids=["random", "dist"],
)
def test_others_code_does_not_draw(law):
    """It may let a record's outcome depend on other records, whatever the density says."""
    density = {"logp": lambda y, mu: -((y - mu) ** 2) / 2}
    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), **law, **density, observed=X[:, 0])
    assert dp.compile(model, compile_kwargs=FAST).simulated is None


@pytest.mark.parametrize(("public", "drawn"), [([], False), (["end"], True)])
def test_ends_that_records_bring_along_are_no_part_of_the_law(public, drawn):
    """Who died has none, and would be drawn lives beyond the study: half of the information of that law is not in the data."""
    life = np.random.default_rng(0).weibull(1.5, N)
    dead = life < 1
    with pm.Model(coords={"unit": range(N)}) as model:
        a = pm.Normal("a", 0, 1)
        law = pm.Weibull.dist(alpha=1.5, beta=pm.math.exp(a))
        end = pm.Data("end", np.where(dead, np.inf, 1.0), dims="unit")
        pm.Censored("y", law, None, end, observed=np.minimum(life, 1), dims="unit")
    of_records = dp.compile(model, compile_kwargs=FAST, public=public)
    assert (of_records.simulated is not None) == drawn
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        law = pm.Weibull.dist(alpha=1.5, beta=pm.math.exp(a))
        pm.Censored("y", law, lower=None, upper=1.0, observed=np.minimum(life, 1))
    assert dp.compile(model, compile_kwargs=FAST).simulated is not None


def test_lengths_of_all_queries_can_be_counted():
    theta, V = place("logistic")
    for of in (Gradient(theta, V), Score(theta, V, 0.3), Information(theta, V, 0.3)):
        records = records_of("logistic", np.concatenate([X, WILD]), np.zeros(N + len(WILD)))
        with in_silence():
            sizes = np.linalg.norm(terms(of, records), axis=1)
            middle = float(np.nanmedian(sizes))
        marks = terms(NormExceeds(of, middle), records)
        assert marks.sum() == np.sum(sizes[np.isfinite(sizes)] > middle)


# -- runs --------------------------------------------------------------------------------------


CORNERS = {
    "laplace": lambda mu, s, y: pm.Laplace("y", mu, s, observed=y),
    "quantile": lambda mu, s, y: pm.AsymmetricLaplace("y", mu=mu, q=0.5, b=0.5 / s, observed=y),
}


def regression(law, n):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, 2))
    y = x @ [1.0, -0.5] + laplace.rvs(scale=0.7, size=n, random_state=rng)
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 2)
        law(pm.Data("X", x) @ b, s, pm.Data("Y", y))
    return model, x, y


def test_laws_with_corners_have_information():
    """Of absolute residuals, which have no second derivative: 1/s² in a location, 1 in the logarithm of the scale."""
    model, x, y = regression(CORNERS["laplace"], 4000)
    records = LocalRecords(dp.compile(model, compile_kwargs=FAST), 1, words=np.zeros(4, np.uint64))
    found, _ = halves(Information(np.array([1.0, -0.5, np.log(0.7)]), np.eye(3), 1.0), records)
    expected = np.zeros((len(x), 3, 3))
    expected[:, :2, :2], expected[:, 2, 2] = np.einsum("ni,nj->nij", x, x) / 0.7**2, 1.0
    off = found - expected
    # In the location every draw's square is the same.
    assert (np.abs(off.mean(axis=0)) < 5 * off.std(axis=0) / np.sqrt(len(y)) + 1e-9).all()


@pytest.mark.chain
@pytest.mark.parametrize("law", CORNERS)
def test_a_regression_with_absolute_residuals(law, quiet):
    model, _, y = regression(CORNERS[law], 4000)
    idata = dp.sample(
        model, epsilon=4.0, delta=1e-5, chains=2, random_seed=1, **quiet,
        noise_source=dp.InsecureSeededNoise(1), compile_kwargs=FAST,
    )  # fmt: skip
    assert idata.attrs["privacy_usable"] == 1
    b = idata.posterior["b"].values.reshape(-1, 2)
    sampling = 0.7 / np.sqrt(len(y))  # the standard deviation that the true law has without noise
    shift = json.loads(idata.attrs["privacy_diagnostics"])["privacy_shift"]
    assert shift < 1
    assert np.abs(b.mean(axis=0) - [1.0, -0.5]).max() < 5 * sampling * np.hypot(1, shift)
    assert (b.std(axis=0) > 0.7 * sampling).all()
    assert (b.std(axis=0) < 2 * sampling * np.hypot(1, shift)).all()


def test_a_model_that_cannot_draw_its_outcomes_is_sampled_and_that_is_said(caplog):
    rng = np.random.default_rng(9)
    x = rng.normal(size=(4000, 2))
    y = x @ [0.5, -0.2] + rng.normal(size=4000)
    with pm.Model() as model:
        without_draws(x, y)
    step = dp.DPSurrogate(
        family="normal", chains=1, draws=5, epsilon=4.0, delta=1e-5, model=model, compile_kwargs=FAST,
        noise_source=dp.InsecureSeededNoise(1),
    )  # fmt: skip
    with caplog.at_level("WARNING", logger="pymc.dp"):
        r = step.release().posterior
    assert "cannot be drawn by PyMC's own laws" in caplog.text
    off = (r.mean - [0.5, -0.2, 0.0]) / np.sqrt(np.diag(r.covariance))
    assert np.abs(off).max() < 4.5
