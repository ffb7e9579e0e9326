"""Missing values, integrated out: the same likelihood as by brute force, and the posterior of PyMC's own imputation."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, special, stats

import pymc_dp as dp
from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError

from .marks import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:.*will be automatically imputed")
FAST = {"mode": "FAST_COMPILE"}
N = 30
rng = np.random.default_rng(4)
z = rng.normal(size=N)
x = 0.5 * z + rng.normal(size=N)
s = (rng.random(N) < special.expit(0.5 * x)).astype(float)
passed = (rng.random(N) < special.expit(0.3 + 0.8 * x - s)).astype(int)
score = 0.3 + 0.8 * x - s + 0.3 * rng.normal(size=N)
x_gaps, s_gaps = np.where(rng.random(N) < 0.4, np.nan, x), np.where(rng.random(N) < 0.4, np.nan, s)
assert len({(a, b) for a, b in zip(np.isnan(x_gaps), np.isnan(s_gaps), strict=True)}) == 4

POINT = {"a": 0.2, "b": 0.7, "c": -0.4, "d": 0.6, "e": 0.3, "sd_log__": np.log(1.2)}


def logistic(eta, observed=passed):
    pm.Bernoulli("y", logit_p=eta, observed=observed)


def linear(eta):
    pm.Normal("y", eta, 0.2, observed=score)


def chain(outcome, x=x_gaps, s=s_gaps):
    """The binary covariate depends on the normal one."""
    with pm.Model() as model:
        a, b, c, d, e = (pm.Normal(name, 0, 1) for name in "abcde")
        x = pm.Normal("x", d * pm.Data("z", z), pm.HalfNormal("sd", 1), observed=x)
        s = pm.Bernoulli("s", logit_p=e * x, observed=s)
        outcome(pm.Deterministic("eta", a + b * x + c * s))
    return model


def terms(model, point=POINT):
    (found,) = model.compile_logp(vars=model.observed_RVs, sum=False, **FAST)(point)
    return found


def by_brute_force(density):
    """log Σ_s ∫ p(x) p(s | x) p(y | x, s) dx of every record, over what it has not."""

    def one(i):
        def joint(x):
            p = special.expit(0.3 * x)
            ways = [0, 1] if np.isnan(s_gaps[i]) else [s_gaps[i]]
            each = [(p if w else 1 - p) * density(i, 0.2 + 0.7 * x - 0.4 * w) for w in ways]
            return stats.norm.pdf(x, 0.6 * z[i], 1.2) * sum(each)

        if not np.isnan(x_gaps[i]):
            return np.log(joint(x_gaps[i]))
        return np.log(integrate.quad(joint, -12, 12, epsabs=1e-14, limit=500)[0])

    return [one(i) for i in range(N)]


@pytest.mark.parametrize(
    ("outcome", "density"),
    [
        (logistic, lambda i, eta: special.expit(eta if passed[i] else -eta)),
        (linear, lambda i, eta: stats.norm.pdf(score[i], eta, 0.2)),
    ],
    ids=["logistic", "sharp"],
)
def test_a_records_log_likelihood_is_the_integral(outcome, density):
    integrated = dp.integrate_missing(chain(outcome), ["x", "s"])
    assert {rv.name for rv in integrated.free_RVs} == {"a", "b", "c", "d", "e", "sd"}
    assert integrated.deterministics == []
    assert_allclose(terms(integrated), by_brute_force(density), atol=1e-6)


def test_two_normal_ones_in_closed_form():
    """Of which one depends on the other, and on a log scale; the outcome is left out where it is missing."""
    w = x + 0.5 * rng.normal(size=N)
    w[::4] = np.nan
    y = score.copy()
    y[:3] = np.nan
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        u = pm.Normal("x", 0.0, 1.0, observed=x_gaps)
        v = pm.LogNormal("w", u, 0.5, observed=np.exp(w))
        pm.Normal("y", b + 0.5 * u - 0.8 * pm.math.log(v), 0.7, observed=y)
    found = terms(dp.integrate_missing(model, ["x", "w", "y"]), {"b": 0.1})
    # (x, w, y) is linear in three standard normals.
    to = np.array([[1, 0, 0], [1, 0.5, 0], [0.5 - 0.8, -0.8 * 0.5, 0.7]])
    mean, cov = np.array([0, 0, 0.1]), to @ to.T
    rows = np.column_stack([x_gaps, w, y])
    for value, row in zip(found, rows, strict=True):
        there = ~np.isnan(row)
        law = stats.multivariate_normal(mean[there], cov[np.ix_(there, there)])
        jacobian = -row[1] if there[1] else 0.0
        expected = law.logpdf(row[there]) + jacobian if there.any() else 0.0
        assert abs(value - expected) < 2e-5


def test_categories_are_summed():
    group = rng.integers(3, size=N)
    gaps = np.ma.masked_array(group, mask=rng.random(N) < 0.4)
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        level = pm.Normal("level", 0, 1, shape=3)
        g = pm.Categorical("g", p=p, observed=gaps)
        pm.Normal("y", level[g], 0.5, observed=score)
    found = terms(
        dp.integrate_missing(model, ["g"]),
        {"p_simplex__": np.zeros(2), "level": np.array([-1.0, 0.5, 2.0])},
    )
    each = stats.norm.logpdf(score[:, None], [-1.0, 0.5, 2.0], 0.5) - np.log(3)
    expected = np.where(gaps.mask, special.logsumexp(each, axis=1), each[np.arange(N), group])
    assert_allclose(found, expected, rtol=1e-8)


def test_groups_of_records_share_effects():
    ward = np.arange(N) % 3
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 1, shape=3)
        u = pm.Normal("x", effect[pm.Data("ward", ward)], 1, observed=x_gaps)
        pm.Normal("y", effect[pm.Data("again", ward)] + u, 0.5, observed=score)
    compiled = dp.compile(dp.integrate_missing(model, ["x"]), compile_kwargs=FAST)
    theta = np.array([0.3, -0.2, 0.1])
    gradients = compiled.gradients.of_rows(theta, compiled.likelihood.rows(slice(None)))
    for k in range(3):
        e = 1e-5 * np.eye(3)[k]
        slope = (compiled.likelihood(theta + e) - compiled.likelihood(theta - e)) / 2e-5
        assert_allclose(np.asarray(gradients)[:, k], slope, atol=1e-6)
        assert_allclose(slope[ward != k], 0, atol=1e-6)


@pytest.mark.chain
@pytest.mark.slow
def test_the_posterior_is_that_of_pymcs_imputation():
    keywords = {
        "draws": 800, "tune": 800, "chains": 2, "cores": 1, "random_seed": 1, "progressbar": False,
    }  # fmt: skip

    def model():
        with pm.Model() as model:
            a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
            u = pm.Normal("x", 0.0, pm.HalfNormal("sd", 1), observed=x_gaps)
            logistic(a + b * u)
        return model

    imputed, integrated = (
        groups_of(pm.sample(model=m, **keywords))["posterior"]
        for m in (model(), dp.integrate_missing(model(), ["x"]))
    )
    for name in ("a", "b", "sd"):
        one, two = imputed[name].values.ravel(), integrated[name].values.ravel()
        # 1,600 draws each, an effective quarter of them at least: 4 standard errors of a difference.
        assert abs(one.mean() - two.mean()) < 4 * one.std() * np.sqrt(2 / 400)
        assert 0.75 < one.std() / two.std() < 1.33


# -- who has a gap --------------------------------------------------------------------------------------

NOBODY, ALL = np.zeros(N, bool), np.ones(N, bool)
ONE = np.arange(N) == 7


MASKS = {"nobody": NOBODY, "one": ONE, "others": ~ONE, "all": ALL}


def graph_of(x, s):
    integrated = dp.integrate_missing(chain(logistic, x, s), ["x", "s"])
    term = integrated.logp(vars=integrated.observed_RVs, sum=False)
    called = [(v.name, v.type, v.get_value().shape) for v in integrated.data_vars]
    return str(pytensor.dprint(term, file="str", id_type="")), called


@pytest.fixture(scope="module")
def graph_of_some_gaps():
    return graph_of(x_gaps, s_gaps)


@pytest.mark.parametrize("who", slow_but("nobody", "one")(MASKS))
def test_there_is_one_graph_whoever_has_a_gap(who, graph_of_some_gaps):
    mask = MASKS[who]
    found = graph_of(np.where(mask, np.nan, x), np.ma.masked_array(s, mask=mask))
    assert found == graph_of_some_gaps


def test_data_of_others_do_not_change_with_a_gap():
    with_gap, without = (
        {v.name: v.get_value() for v in dp.integrate_missing(chain(logistic, u), ["x", "s"]).data_vars}
        for u in (x_gaps, np.where(np.arange(N) == 3, 0.25 if np.isnan(x_gaps[3]) else np.nan, x_gaps))
    )  # fmt: skip
    for name, held in with_gap.items():
        changed = np.flatnonzero(held != without[name])
        assert set(changed) <= {3}
        assert np.isfinite(held).all()
    assert (with_gap["x_is_seen"] != without["x_is_seen"]).any()


def test_what_others_see_does_not_depend_on_who_is_missing():
    """Their terms are the same to the last bit, with one gap and with other values around them."""
    compiled = dp.compile(dp.integrate_missing(chain(logistic), ["x", "s"]), compile_kwargs=FAST)
    theta, rows = compiled.parameters.start + 0.1, compiled.likelihood.rows(slice(None))
    before = compiled.likelihood.evaluate_rows(theta, rows)
    for leaf, column in zip(compiled.roles.record_data, rows, strict=True):
        column[3] = 1 - column[3] if leaf.name.endswith("is_seen") else column[3]
    after = compiled.likelihood.evaluate_rows(theta, rows)
    assert before[3] != after[3]
    assert np.array_equal(np.delete(before, 3), np.delete(after, 3))


def test_a_model_as_pymc_imputes_it_is_refused_without_telling_of_anybody():
    with pytest.raises(UnsupportedModelError, match="integrate_missing") as refusal:
        dp.compile(chain(logistic))
    text = str(refusal.value)
    assert not any(ch.isdigit() for ch in text)


# -- refused ----------------------------------------------------------------------------------------


def model_with(builder):
    with pm.Model() as model:
        builder()
    return model


def another_law():
    u = pm.Gamma("x", 1, 1, observed=np.abs(x_gaps))
    pm.Normal("y", pm.Normal("b") * u, 1, observed=score)


def several_columns():
    u = pm.Normal("x", pm.Normal("b"), 1, observed=np.column_stack([x_gaps, s_gaps]))
    pm.Normal("y", u.sum(axis=1), 1, observed=score)


def in_a_prior():
    u = pm.Normal("x", 0, 1, observed=x_gaps)
    pm.Normal("y", pm.Normal("b", u[0]) + u, 1, observed=score)


def a_potential():
    u = pm.Normal("x", pm.Normal("b"), 1, observed=x_gaps)
    pm.Potential("more", -(u**2).sum())
    pm.Normal("y", u, 1, observed=score)


@pytest.mark.parametrize(
    ("builder", "word"),
    [(another_law, "pm.Bernoulli"), (several_columns, "column"), (in_a_prior, "'b'"), (a_potential, "Potential")],
)  # fmt: skip
def test_what_cannot_be_integrated_is_refused(builder, word):
    with pytest.raises(UnsupportedModelError, match=word):
        dp.integrate_missing(model_with(builder), ["x"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"variables": ["x", "age"]}, r"'age'.*'x'"),
        ({"variables": ["x"]}, r"\['s'\]"),
        ({"variables": "x"}, r"\['x'\]"),
        ({"variables": []}, "observed variables"),
        ({"variables": ["x", "s"], "points": 400}, "800 nodes"),
    ],
)
def test_what_is_named(arguments, words):
    with pytest.raises(PrivacyConfigurationError, match=words):
        dp.integrate_missing(chain(logistic), **arguments)


def test_the_default_sampler_runs_on_it():
    """Without noise, so that the posterior is that of the likelihood."""
    big = np.random.default_rng(9)
    n = 4_000
    v = big.normal(size=n)
    y = 0.5 + v + big.normal(size=n)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        u = pm.Normal(
            "x", 0.0, 1.0, observed=np.where(big.random(n) < special.expit(y - 1), np.nan, v)
        )
        pm.Normal("y", a + b * u, 1.0, observed=y)
    integrated = dp.integrate_missing(model, ["x"])
    idata = dp.sample(
        model=integrated, draws=300, chains=1, epsilon=1e3, delta=1e-6, cores=1, progressbar=False, random_seed=1
    )  # fmt: skip
    for name, truth in (("a", 0.5), ("b", 1.0)):
        draws = groups_of(idata)["posterior"][name].values
        assert abs(draws.mean() - truth) < 4 * draws.std()
        assert draws.std() < 0.05
