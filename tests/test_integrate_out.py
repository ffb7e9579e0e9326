"""Effects of persons, integrated out: the same likelihood as by brute force, and the same posterior as with them."""

import json

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.pytensorf import rewrite_pregrad
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.compat import ancestors, groups_of
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.quadrature import log_expectation
from pymc_dp.surrogate.normal.read_part import read_part

FAST = {"mode": "FAST_COMPILE"}
PEOPLE = 20
rng = np.random.default_rng(4)
counts = rng.integers(1, 6, size=PEOPLE)
who = rng.permutation(np.repeat(np.arange(PEOPLE), counts))
x = rng.normal(size=len(who))
age = rng.normal(size=PEOPLE)
passed = (rng.random(len(who)) < 0.6).astype(int)
score = 0.5 + rng.normal(size=PEOPLE)[who] + 0.3 * x + 0.5 * rng.normal(size=len(who))

POINT = {"mu": 0.3, "tau_log__": np.log(1.3), "b": 0.4}


def panel(outcome, effect=lambda tau, mu: pm.Normal("u", mu, tau, dims="person")):
    with pm.Model(coords={"person": range(PEOPLE)}) as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 2)
        b = pm.Normal("b", 0, 1)
        outcome(pm.Deterministic("eta", effect(tau, mu)[who] + b * x))
    return model


def logistic(eta):
    pm.Bernoulli("y", logit_p=eta, observed=passed)


def linear(eta):
    pm.Normal("y", eta, 0.5, observed=pm.Data("scores", score))


def non_centred(tau, mu):
    return pm.Deterministic("effect", mu + tau * pm.Normal("u", 0, 1, shape=PEOPLE))


def with_age(tau, mu):
    return pm.Normal("u", mu + 0.7 * pm.Data("age", age), tau, dims="person")


def terms(model, point=POINT):
    (found,) = model.compile_logp(vars=model.observed_RVs, sum=False, **FAST)(point)
    return found


def by_brute_force(density, means=0.3):
    """log ∫ N(u; mean, 1.3²) Π p(y | u + 0.4 x) du of every person, by adaptive quadrature."""

    def one(j):
        mine, mean = who == j, np.broadcast_to(means, PEOPLE)[j]

        def integrand(u):
            return stats.norm.pdf(u, mean, 1.3) * density(u + 0.4 * x[mine], mine).prod()

        return np.log(integrate.quad(integrand, -9, 10, epsabs=1e-14, limit=300)[0])

    return np.array([one(j) for j in range(PEOPLE)])


def bernoulli(eta, mine):
    p = 1 / (1 + np.exp(-eta))
    return np.where(passed[mine] == 1, p, 1 - p)


def normal(eta, mine):
    return stats.norm.pdf(score[mine], eta, 0.5)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (panel(logistic), lambda: by_brute_force(bernoulli)),
        (panel(linear), lambda: by_brute_force(normal)),
        (panel(logistic, non_centred), lambda: by_brute_force(bernoulli)),
        (panel(linear, with_age), lambda: by_brute_force(normal, 0.3 + 0.7 * age)),
    ],
    ids=["logistic", "linear", "non-centred", "with data of persons"],
)
def test_a_persons_log_likelihood_is_the_integral(model, expected):
    integrated = dp.integrate_out(model, "u")
    assert {rv.name for rv in integrated.free_RVs} == {"mu", "tau", "b"}
    assert integrated.deterministics == []
    assert_allclose(terms(integrated), expected(), atol=3e-5)


def test_more_points_are_more_exact():
    """A person with very many records, whose effect is known far better than the prior tells it."""
    n = 3_000
    y = rng.normal(0.8, 0.5, size=n)
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("tau", 2), shape=2)
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", u[np.repeat([0, 1], n // 2)] + b, 0.5, observed=y)
    point = {"tau_log__": 0.0, "b": 0.3}
    r = (y - 0.3).reshape(2, -1)
    m, s2 = n // 2, 0.25
    # The normal integral, in closed form.
    exact = (
        -m / 2 * np.log(2 * np.pi * s2) - 0.5 * np.log(1 + m / s2)
        - 0.5 * ((r**2).sum(axis=1) - r.sum(axis=1) ** 2 / (m + s2)) / s2
    )  # fmt: skip
    errors = [
        abs(terms(dp.integrate_out(model, "u", points=k), point) - exact).max() for k in (15, 60)
    ]
    assert errors[1] < 1e-5
    assert errors[1] < errors[0]


def test_rows_that_are_people_need_no_index():
    """A Rasch model: a row of answers for every person."""
    answers = rng.integers(2, size=(60, 4))
    with pm.Model(coords={"person": range(60), "item": list("abcd")}) as wide:
        tau = pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", 0, tau, dims="person")
        difficulty = pm.Normal("difficulty", 0, 1, dims="item")
        pm.Bernoulli("right", logit_p=theta[:, None] - difficulty, observed=answers, dims=("person", "item"))  # fmt: skip
    person, item = np.indices(answers.shape).reshape(2, -1)
    with pm.Model() as long:
        tau = pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", 0, tau, shape=60)
        difficulty = pm.Normal("difficulty", 0, 1, shape=4)
        pm.Bernoulli("right", logit_p=theta[person] - difficulty[item], observed=answers.ravel())
    point = {"tau_log__": 0.2, "difficulty": np.array([0.5, -0.3, 0.1, 1.0])}
    found = [terms(dp.integrate_out(m, "theta"), point) for m in (wide, long)]
    assert_allclose(found[0], found[1], rtol=1e-10)


@pytest.mark.chain
@pytest.mark.slow
def test_the_posterior_is_that_of_the_model_with_its_effects():
    keywords = {
        "draws": 600,
        "tune": 600,
        "chains": 2,
        "cores": 1,
        "random_seed": 1,
        "progressbar": False,
    }
    with_effects, without = (
        groups_of(pm.sample(model=m, **keywords))["posterior"]
        for m in (panel(linear), dp.integrate_out(panel(linear), "person"))
    )
    for name in ("mu", "tau", "b"):
        a, b = with_effects[name].values.ravel(), without[name].values.ravel()
        # 1,200 draws each, an effective third of them at least: 4 standard errors of a difference.
        assert abs(a.mean() - b.mean()) < 4 * a.std() * np.sqrt(2 / 400)
        assert 0.75 < a.std() / b.std() < 1.33


def test_the_unit_is_a_person():
    compiled = dp.compile(dp.integrate_out(panel(logistic), "u"), compile_kwargs=FAST)
    assert compiled.roles.unit == "one person"
    assert compiled.roles.n_units == PEOPLE
    theta = compiled.parameters.start
    expected = terms(compiled.model, compiled.parameters.point(theta))
    assert_allclose(compiled.likelihood(theta), expected, rtol=1e-8)


# -- outcomes ---------------------------------------------------------------------------------------


def drawn(integrated, draws, **point):
    fixed = pm.do(integrated, point)
    return np.asarray(pm.draw(fixed["y"], draws, random_seed=3, mode="FAST_COMPILE"))


def test_outcomes_of_a_person_are_drawn_with_one_effect():
    """Of normal records: their means, and variances τ² + σ² of each and covariances τ² of two of one person, none of two persons."""
    integrated = dp.integrate_out(panel(linear, with_age), "u")
    y = drawn(integrated, 4_000, mu=0.3, tau=1.3, b=0.4)
    there = integrated["y_is_there"].get_value() > 0.5
    slots = np.cumsum(there, axis=1) - 1
    expected = np.zeros(there.shape)
    for j in range(PEOPLE):
        expected[j, there[j]] = 0.3 + 0.7 * age[j] + 0.4 * x[who == j][slots[j][there[j]]]
    off = (y - expected)[:, there]
    person = np.repeat(np.arange(PEOPLE), there.sum(axis=1))
    covariance = np.where(person[:, None] == person, 1.3**2, 0.0) + 0.25 * np.eye(len(person))
    v = np.diag(covariance)
    # Standard errors of means and of covariances; five of them, of some thousands of numbers.
    assert (abs(off.mean(axis=0)) < 5 * np.sqrt(v / len(off))).all()
    errors = np.sqrt((np.outer(v, v) + covariance**2) / len(off))
    assert (abs(np.cov(off.T) - covariance) < 5 * errors).all()


def in_rows(answers):
    people, items = answers.shape
    with pm.Model(coords={"person": range(people), "item": range(items)}) as model:
        ability, easy = (
            pm.Normal("ability", 0, 1, dims="person"),
            pm.Normal("easy", 0, 1.5, dims="item"),
        )
        pm.Bernoulli("y", logit_p=ability[:, None] + easy, observed=answers, dims=("person", "item"))  # fmt: skip
    return dp.integrate_out(model, "ability")


def by_index(answers):
    person, item = np.indices(answers.shape).reshape(2, -1)
    with pm.Model(coords={"person": range(len(answers))}) as model:
        ability = pm.Normal("ability", 0, 1, dims="person")
        easy, which = pm.Normal("easy", 0, 1.5, shape=answers.shape[1]), pm.Data("which", item)
        pm.Bernoulli("y", logit_p=ability[person] + easy[which], observed=answers.ravel())
    return dp.integrate_out(model, "ability")


@pytest.mark.parametrize(
    ("model", "public", "expected"),
    [
        (in_rows, [], True),
        (by_index, [], False),
        (by_index, ["which"], False),
        (by_index, ["which", "y_is_there"], True),
    ],
)
def test_outcomes_alone_are_private_where_all_else_is_public(model, public, expected):
    compiled = dp.compile(model(rng.integers(2, size=(30, 4))), public=public, compile_kwargs=FAST)
    assert compiled.simulated is not None
    assert compiled.roles.public_design == expected


@pytest.mark.slow
def test_a_test_is_as_sure_as_one_release_of_all_answers():
    """Of 400 persons and 6 items, all of whom answered all: the information costs nothing."""
    draws = np.random.default_rng(8)
    easy = draws.normal(size=6)
    p = 1 / (1 + np.exp(-draws.normal(size=(400, 1)) - easy))
    model = in_rows((draws.random(p.shape) < p).astype(int))
    found = dp.sample(200, model=model, epsilon=10, chains=1, cores=1, progressbar=False)
    said = json.loads(found.attrs["privacy_diagnostics"])
    assert said["usable"]
    assert said["spent_on_gradients"] == 1
    b = found.posterior["easy"].values[0]
    off = (b.mean(axis=0) - easy) / b.std(axis=0)
    assert np.sqrt(np.mean(off**2)) < 1 + 3 / np.sqrt(2 * 6)


def no_law_for_two():
    u = pm.Normal("u", pm.Normal("mean"), dims="person")
    pm.Bernoulli("passed", logit_p=u[who], observed=passed)
    pm.Normal("y", u[who], 1, observed=score)


def ends_of_records():
    u = pm.Normal("u", pm.Normal("mean"), dims="person")
    law = pm.Weibull.dist(alpha=1.5, beta=pm.math.exp(u[who]))
    end = pm.Data("end", np.where(passed == 1, np.inf, 9.0))
    pm.Censored("y", law, None, end, observed=np.abs(score))


@pytest.mark.parametrize("builder", [no_law_for_two, ends_of_records])
def test_outcomes_that_are_not_drawn(builder):
    integrated = dp.integrate_out(model_with(builder), "u")
    assert dp.compile(integrated, compile_kwargs=FAST).simulated is None
    with pytest.raises(AssertionError, match="not drawn"):
        pm.draw(integrated.observed_RVs[0], mode="FAST_COMPILE")


# -- refused ----------------------------------------------------------------------------------------


def model_with(builder):
    with pm.Model(coords={"person": range(PEOPLE)}) as model:
        builder()
    return model


def not_normal():
    u = pm.StudentT("u", nu=4, dims="person")
    pm.Normal("y", u[who], 1, observed=score)


def two_effects():
    u, slope = pm.Normal("u", dims="person"), pm.Normal("slope", dims="person")
    pm.Normal("y", u[who] + slope[who] * x, 1, observed=score)


def no_index():
    u = pm.Normal("u", dims="person")
    pm.Normal("y", u.mean(), 1, observed=score)


def read_together():
    u = pm.Normal("u", dims="person")
    pm.Normal("y", (u - u.mean())[who], 1, observed=score)


def two_persons_in_a_record():
    u = pm.Normal("u", dims="person")
    pm.Normal("y", u[who] - u[who[::-1]], 1, observed=score)


def in_another_prior():
    u = pm.Normal("u", dims="person")
    pm.Normal("y", pm.Normal("b", u[0]) + u[who], 1, observed=score)


def two_outcomes():
    u = pm.Normal("u", dims="person")
    pm.Normal("y", u[who], 1, observed=score)
    pm.Normal("z", pm.Normal("b"), 1, observed=score)


def an_index_for_an_outcome():
    index = pm.Data("index", who)
    pm.Normal("y", pm.Normal("u", dims="person")[index], 1, observed=index)


def a_potential():
    pm.Normal("y", pm.Normal("u", dims="person")[who], 1, observed=score)
    pm.Potential("more", -(pm.Normal("b") ** 4))


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (a_potential, ["pm.Potential"]),
        (an_index_for_an_outcome, ["'y'", "index of persons"]),
        (not_normal, ["'u'", "pm.Normal"]),
        (two_effects, ["'slope'", "person"]),
        (no_index, ["u[person]"]),
        (read_together, ["u[person]"]),
        (two_persons_in_a_record, ["two arrays"]),
        (in_another_prior, ["'b'"]),
        (two_outcomes, ["'z'", "ledger"]),
    ],
)
def test_what_does_not_split_by_persons_is_refused(builder, words):
    with pytest.raises(UnsupportedModelError) as refusal:
        dp.integrate_out(model_with(builder), "u")
    assert all(word in str(refusal.value) for word in words)


def test_names_that_are_not_there():
    with pytest.raises(PrivacyConfigurationError, match=r"'theta'.*'mu'"):
        dp.integrate_out(panel(logistic), "theta")


def panel_of(people):
    y = np.arange(len(people)) + 1.0
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=5)
        pm.Normal("y", u[people] + pm.Normal("b") * y, 1, observed=y)
    return dp.integrate_out(model, "u")


@pytest.mark.parametrize("counts", [(3, 3, 3, 3, 3), (3, 2, 0, 4, 6)])
def test_people_without_records_hold_nobody_elses(counts):
    integrated = panel_of(np.repeat(np.arange(5), counts))
    for held in integrated.data_vars:
        assert (held.get_value()[np.array(counts) == 0] == 0).all()
    assert dp.compile(integrated).roles.unit == "one person"


def test_there_is_one_graph_whether_somebody_has_fewer_records_or_not():
    graphs = []
    for counts in ((3, 3, 3, 3, 3), (3, 2, 0, 3, 3)):
        integrated = panel_of(np.repeat(np.arange(5), counts))
        term = integrated.logp(vars=integrated.observed_RVs, sum=False)
        graphs.append(str(pytensor.dprint(term, file="str", id_type="")))
    assert graphs[0] == graphs[1]


def test_an_index_of_nobody_is_the_nearest_person():
    """An error would tell of the row that it is in."""

    def of(people):
        with pm.Model() as model:
            u = pm.Normal("u", 0, 1, shape=5)
            pm.Normal("y", u[people] + pm.Normal("b"), 1, observed=np.arange(15.0))
        return [v.get_value() for v in dp.integrate_out(model, "u").data_vars]

    people = np.repeat(np.arange(5), 3)
    nobody, nearest = people.copy(), people.copy()
    nobody[[0, 4]], nearest[[0, 4]] = [98765, -98765], [4, 0]
    for found, expected in zip(of(nobody), of(nearest), strict=True):
        assert_array_equal(found, expected)


def answered(people, items, draws):
    """Two numbers an item, which every person reads: the model of a test, its true easiness."""
    slopes, easy = np.exp(0.3 * draws.normal(size=items)), draws.normal(size=items)
    person, item = np.indices((people, items)).reshape(2, -1)
    logits = slopes[item] * draws.normal(size=people)[person] + easy[item]
    answers = (draws.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(int)
    with pm.Model(coords={"person": range(people)}) as test:
        ability = pm.Normal("ability", 0, 1, dims="person")
        a, b = pm.LogNormal("a", 0, 0.5, shape=items), pm.Normal("b", 0, 1.5, shape=items)
        pm.Bernoulli("y", logit_p=a[item] * ability[person] + b[item], observed=answers)
    return dp.integrate_out(test, "ability"), easy


def test_items_that_each_person_answers_are_no_groups_of_persons():
    model, _ = answered(30, 16, np.random.default_rng(11))
    assert dp.compile(model).cut is None


def test_what_no_record_reads_is_no_input_of_a_persons_law():
    """Scales of other groups' effects are the prior's own business: searched for with the effects, both would go to 0 together."""
    school = np.arange(len(who)) % 4
    with pm.Model(coords={"person": range(PEOPLE)}) as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        level = pm.Normal("level", 0, pm.HalfNormal("apart"), shape=4)
        eta = pm.Normal("u", mu, tau, dims="person")[who] + level[school]
        pm.Normal("y", eta, 0.5, observed=score)
    compiled = dp.compile(dp.integrate_out(model, "u"), compile_kwargs=FAST)
    levels = [f"level[{k}]" for k in range(4)]
    assert sorted(read_part(compiled).labels) == sorted(["mu", "tau (log)", *levels])
    assert "apart (log)" in compiled.parameters.labels


@pytest.mark.slow
def test_a_test_of_many_items_can_be_sampled():
    model, easy = answered(2_000, 16, np.random.default_rng(11))
    found = dp.sample(200, model=model, epsilon=20, chains=1, cores=1, progressbar=False)
    assert found.attrs["privacy_usable"]
    b = found.posterior["b"].values[0]
    off = (b.mean(axis=0) - easy) / b.std(axis=0)
    assert np.sqrt(np.mean(off**2)) < 1 + 3 / np.sqrt(2 * 16)


def test_no_derivative_is_taken_of_the_search_for_points():
    """It would be as large as the search, three times over, and twice as slow to compile."""
    shift, widths = pt.scalar("shift"), pt.vector("widths")

    def log_f(z):
        return -pt.log1p(pt.exp(-widths[:, None] * (shift + z[0])))

    value = rewrite_pregrad(log_expectation(log_f, widths.shape[0], 1, 15).sum())
    slope = pytensor.grad(value, shift)
    assert operations(slope) < 1.5 * operations(value)


def operations(of):
    return len({v.owner for v in ancestors([of])} - {None})
