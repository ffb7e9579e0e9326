"""Nothing that leaves is a function of values, order, labels or numbers of private data, but through releases.

Each scenario is two data sets and a model of them; each entry point is run on both, the second time with the releases
of the first. Scenarios are what has told of records before: grids, missing values, labels, lags, lengths.
"""

import functools
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.compat import groups_of
from pymc_dp.federated import Owner

from .differential import Tape, assert_same, everything_that_leaves
from .marks import slow_but

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
N = 240
SCENARIOS = {}


@pytest.fixture(autouse=True)
def interpreted(request, few_moves):
    """As everything else here: what PyMC compiles for its own ends. Not where thousands of draws are made of it."""
    of_test = getattr(request.node, "callspec", None)
    if of_test is None or of_test.params.get("name") != "many_groups":
        request.getfixturevalue("interpret")


@pytest.fixture
def tells_nothing(monkeypatch, capfd):
    """Run something on several data sets: all that leaves has to be the same."""
    # Draws of a released law are made of released numbers; NUTS takes longer than all the rest.
    monkeypatch.setattr(
        "pymc_dp.surrogate.normal.draws.draws_of",
        lambda density, start, draws, chains, seed, sampler: (
            start + np.random.default_rng(seed).standard_normal((chains, draws, len(start)))
        ),
    )

    def check(run, *data, releases=True):
        tape, found = Tape(monkeypatch), []
        for one in data:
            found.append(everything_that_leaves(lambda: run(one), capfd))  # noqa: B023
            if one is data[0]:
                assert bool(tape.length) == releases, found[0]["error"]
            else:
                assert tape.ended()
            tape.rewind()
        for other in found[1:]:
            assert_same(found[0], other)
        return found[0]

    return check


# -- scenarios: a model of a data set, and two data sets of one size -------------------------------------


def scenario(builder):
    """Register a function ``(data) -> (model, unit)``, and two data sets as its defaults say."""
    SCENARIOS[builder.__name__] = builder
    return builder


def rng(k):
    return np.random.default_rng(k)


def ages(oldest):
    return np.append(np.tile(np.arange(20.0, 78.0), 5), [78.0, oldest])[-N:]


def outcome(k=0):
    return rng(k).normal(size=N)


@scenario
def a_public_grid(which):
    """Somebody is 79, the end of the grid, or nobody is."""
    age = ages([79.0, 45.0][which])
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Deterministic("curve", b * np.arange(20.0, 80.0))
    pm.Deterministic("symbolic", b * pt.arange(20.0, 80.0))
    pm.Normal("y", a + b * age / 50, 1, observed=outcome())


@scenario
def numbers_of_a_prior(which):
    """They are a part of one column, or of none."""
    x = np.arange(N) * 1.5 + [0.0, 0.25][which]
    b = pm.Normal("b", np.arange(30.0) * 1.5, 1.0, shape=30, initval=np.arange(30.0) * 1.5)
    pm.Normal("y", b.mean() * x, 300, observed=outcome())


@scenario
def a_missing_value(which):
    x = rng(1).normal(size=N)
    x[[7, 8]] = [np.nan, np.inf] if which else [1.0, 1.0]
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Normal("y", a + b * x, 1, observed=outcome())


@scenario
def a_column_of_zeros(which):
    x = np.zeros(N)
    x[5] = which
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Deterministic("fit", b * x)
    pm.Normal("y", a + b * x, 1, observed=outcome())


@scenario
def a_shifted_copy(which):
    """A column is the one before shifted by a record, but for one value."""
    x = rng(1).normal(size=N)
    before = np.roll(x, 1)
    before[9] += which
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Normal("y", a + b * (x - pm.Data("before", before)), 1, observed=outcome())


@scenario
def labels(which):
    """All different, or one person has two rows."""
    names = [f"name{which}{i}" for i in range(N)]
    names[3] = names[2] if which else names[3]
    pm.modelcontext(None).add_coord("person", names)
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    x = pm.Data("x", rng(1).normal(size=N), dims="person")
    pm.Deterministic("fit", a + b * x, dims="person")
    pm.Normal("y", a + b * x, 1, observed=outcome(), dims="person")


@scenario
def incomes(which):
    """So large that PyMC's own graph has -∞, or not."""
    income = np.exp((10 if which else 0) + rng(2).normal(size=N))
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Bernoulli(
        "y", logit_p=a + b * pm.Data("income", income), observed=rng(3).integers(2, size=N)
    )


@scenario
def an_index_out_of_range(which):
    group = rng(1).integers(3, size=N)
    group[5] = 98765 if which else 1
    a, b = pm.Normal("a", 0, 1, shape=3), pm.Normal("b", 0, 1)
    pm.Normal("y", a[group] + b, 1, observed=outcome())


@scenario
def impossible_outcomes(which):
    y = rng(3).poisson(2.0, size=N)
    y[:2] = [-5, 2**40] if which else [1, 1]
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Poisson("y", pm.math.exp(a + b * pm.Data("x", rng(1).normal(size=N))), observed=y)


@scenario
def everybody_else(which):
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    x = pm.Data("x", rng(10 + which).normal(size=N))
    pm.Potential("pull", -((a - b) ** 2) * pm.Data("weight", 2.0))
    pm.Normal("y", a + b * x, 1, observed=pm.Data("Y", outcome(20 + which)))


@scenario
def many_groups(which):
    a = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=40)
    group = rng(10 + which).integers(40, size=N)
    pm.Normal("y", a[group], pm.HalfNormal("sigma", 1), observed=outcome(20 + which))


@scenario
def an_effect_per_person(which):
    """Integrated out: everybody has three rows, or somebody has none."""
    who = np.repeat(np.arange(N // 3), 3)
    who[:3] = 1 if which else 0
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), shape=N // 3)
    pm.Normal("y", u[who] + pm.Normal("b", 0, 1), 1, observed=outcome())


# -- of which the model is asked for outcomes: it may have none for a record, or may not be able to draw any


def one_other(which, value, usual):
    """A column with one record's value far off, or not."""
    x = usual.copy()
    x[5] = value if which else usual[5]
    return x


@scenario
def a_rate_beyond_all_numbers(which):
    """A Poisson outcome of it cannot be drawn: NumPy raises."""
    x = pm.Data("x", one_other(which, 1e5, rng(1).normal(size=N)))
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Poisson("y", pm.math.exp(a + b * x), observed=rng(3).poisson(2.0, size=N))


@scenario
def a_chance_above_one(which):
    """Neither outcome of it is possible."""
    x = pm.Data("x", one_other(which, 7.0, rng(1).uniform(0.5, 0.9, size=N)))
    a = pm.Normal("a", 0, 1)
    pm.Bernoulli(
        "y", pm.math.sigmoid(a + pm.Normal("b", 0, 1)) * x, observed=rng(3).integers(2, size=N)
    )


@scenario
def a_spread_below_zero(which):
    x = pm.Data("x", one_other(which, -1.0, rng(1).uniform(0.5, 2, size=N)))
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Normal("y", a, pm.math.exp(b) * x, observed=outcome())


@scenario
def a_category_of_no_group(which):
    group = one_other(which, 98765, rng(1).integers(4, size=N))
    logits = pm.Normal("logits", 0, 1, shape=(4, 3))
    pm.Categorical("y", logit_p=logits[group], observed=rng(3).integers(3, size=N))


@scenario
def a_law_without_draws(which):
    """The model has a density for outcomes, and nothing that draws them."""
    x = pm.Data("x", one_other(which, 1e200, rng(1).normal(size=N)))
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.CustomDist(
        "y",
        a + b * x,
        logp=lambda y, mean: -((y - mean) ** 2) / 2,
        observed=pm.Data("Y", outcome()),
    )


@scenario
def outcomes_of_a_trial(which):
    """All that is not declared is different."""
    arm = pm.Data("arm", np.arange(N) % 3, dims="person")
    y = pm.Data("Y", rng(20 + which).integers(2, size=N), dims="person")
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1, shape=3)[arm], observed=y, dims="person")


@scenario
def counts_in_a_trial(which):
    """The same of outcomes of which some are drawn, with one that is out of all proportion."""
    x = pm.Data("x", rng(1).normal(size=N), dims="person")
    y = one_other(which, 2**40, rng(20 + which).poisson(2.0, size=N))
    mean = pm.math.exp(pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x)
    pm.Poisson("y", mean, observed=pm.Data("Y", y, dims="person"), dims="person")


@scenario
def a_gap(which):
    """The only one of a column and one of others in another, or none and another value."""
    x, s = rng(1).normal(size=N), rng(2).integers(2, size=N).astype(float)
    x[5], s[[5, 9]] = [np.nan, 40.0][which], [np.nan, [np.nan, 1.0][which]]
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    with warnings.catch_warnings():
        # PyMC says which variables have gaps to whoever writes the model; docs/models.md says so.
        warnings.simplefilter("ignore")
        x = pm.Normal("x", a, 1, observed=x)
        s = pm.Bernoulli("s", 0.4, observed=s)
    pm.Normal("y", a + b * x + s, 1, observed=outcome())


@scenario
def answers_of_a_test(which):
    """The same of persons whose effect is integrated out, and who answered all."""
    answers = rng(20 + which).integers(2, size=(N, 3))
    logits = pm.Normal("u", 0, 1, shape=N)[:, None] + pm.Normal("easy", 0, 1, shape=3)
    pm.Bernoulli("y", logit_p=logits, observed=pm.Data("Y", answers))


OUTCOMES = {
    "a_rate_beyond_all_numbers": True,
    "a_chance_above_one": True,
    "a_spread_below_zero": True,
    "a_category_of_no_group": True,
    "a_law_without_draws": False,
}
"""Whether the surrogate compares them with outcomes of the model's."""

TRIALS = {"outcomes_of_a_trial": ["arm"], "counts_in_a_trial": ["x"], "answers_of_a_test": []}
PUBLIC = {"everybody_else": ["weight"], **TRIALS}


def built(name, which):
    with pm.Model() as model:
        SCENARIOS[name](which)
    if name == "a_gap":
        return dp.integrate_missing(model, ["x", "s"], points=5)
    of_persons = name in ("an_effect_per_person", "answers_of_a_test")
    return dp.integrate_out(model, "u") if of_persons else model


TWO_EACH = np.repeat(np.arange(N // 2), 2)
UNITS = {"rows": None, "people": TWO_EACH}


@functools.cache
def compiled(name, which, kind="rows"):
    """Compiled once for all tests of a worker, with whatever it compiles when it is first asked for."""
    unit, public = UNITS[kind], PUBLIC.get(name, ())
    return dp.compile(built(name, which), unit=unit, public=public, **FAST)


GENEROUS = {"epsilon": 20.0, "delta": 1e-3}
SAMPLERS = {
    "penalty": (dp.DPPenalty, GENEROUS),
    "hmc": (dp.DPHMC, {**GENEROUS, "n_leapfrog": 2}),
    "surrogate": (partial(dp.DPSurrogate, family="normal"), {"epsilon": 1e3, "delta": 1e-3}),
    "automatic": (None, {"epsilon": 1e3, "delta": 1e-3}),
    "polynomial": (partial(dp.DPSurrogate, family="polynomial"), {"epsilon": 1e3, "delta": 1e-3}),
    "pure": (None, {"epsilon": 1e3, "delta": 0.0}),
    "barker": (dp.DPBarker, {"epsilon": None, "batch_size": 30, "tempering": 0.1}),
    "sgld": (dp.experimental.DPSGLD, {**GENEROUS, "step_size": 1e-3}),
}
RELATIONS = ("substitute-one", "add-or-remove")


def sampled(which, name, relation="substitute-one", kind="rows", sampler="penalty"):
    """The whole way of `dp.sample`, its plan, its report, and its account.

    From the model as PyMC has it for the simplest of the samplers, for the others from what is compiled once.
    """
    step, settings = SAMPLERS[sampler]
    of_model = {"model": compiled(name, which, kind)}
    if sampler == "penalty" and relation == RELATIONS[0]:
        of_model = {
            "model": built(name, which),
            "unit": UNITS[kind],
            "public": PUBLIC.get(name, ()),
            **FAST,
        }
    account = {"epsilon": 1e4, "delta": settings.get("delta", 1e-3)}
    ledger = dp.PrivacyLedger(**account, neighbours=relation)
    settings = {k: v for k, v in settings.items() if k != "epsilon"} | {
        "epsilon": settings["epsilon"] or 1.0
    }
    if settings.pop("batch_size", None):
        settings = {"batch_size": 30, "tempering": 0.1}
        built_step = step(
            draws=6,
            chains=1,
            **settings,
            **of_model,
        )
        raw = pm.sample(
            6, tune=0, chains=1, step=built_step, model=built_step.model, cores=1, random_seed=1,
            progressbar=False, compute_convergence_checks=False,
            var_names=[v.name for v in built_step.model.unobserved_RVs if v.name not in built_step.roles.left_out],
        )  # fmt: skip
        result = dp.release(raw)
        return [result, str(dp.privacy_report(result)), built_step]
    result = dp.sample(
        6, chains=2, neighbours=relation, ledger=ledger, step=step, random_seed=1, cores=1, progressbar=False,
        **settings, **of_model,
    )  # fmt: skip
    return [result, str(dp.privacy_report(result, ledger=ledger)), ledger]


def cases():
    """Every scenario with two samplers and both relations; every sampler with some scenarios."""
    for name in SCENARIOS:
        dear = name in ("many_groups", "an_effect_per_person", "a_gap", "numbers_of_a_prior")
        for sampler in SAMPLERS:
            if dear and sampler in ("polynomial", "barker", "sgld", "automatic", "pure"):
                continue
            if name in OUTCOMES and sampler not in ("surrogate", "pure"):
                continue
            for relation in RELATIONS:
                if name in TRIALS and (
                    relation != "substitute-one" or sampler not in ("surrogate", "pure")
                ):
                    continue  # who took part is public
                if sampler == "barker" and relation != "substitute-one":
                    continue
                most = sampler in ("penalty", "surrogate", "pure")
                some = name in ("a_public_grid", "a_missing_value", "everybody_else")
                marks = () if most or some else (pytest.mark.nightly,)
                yield pytest.param(name, sampler, relation, marks=(*marks, pytest.mark.sweep))


@pytest.mark.parametrize(("name", "sampler", "relation"), list(cases()))
def test_a_sample_tells_nothing(name, sampler, relation, tells_nothing):
    found = tells_nothing(lambda k: sampled(k, name, relation, "rows", sampler), 0, 1)
    assert not found["error"]


@pytest.mark.parametrize("sampler", ["penalty", "hmc", "surrogate", "polynomial"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "name", slow_but("incomes")(["a_missing_value", "everybody_else", "incomes"])
)
def test_a_sample_of_people_with_several_rows_tells_nothing(name, relation, sampler, tells_nothing):
    found = tells_nothing(lambda k: sampled(k, name, relation, "people", sampler), 0, 1)
    assert not found["error"]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_sample_of_people_with_several_outcomes_tells_nothing(name, relation, tells_nothing):
    """Here all are drawn: those of several records are too many to go through."""
    found = tells_nothing(lambda k: sampled(k, name, relation, "people", "surrogate"), 0, 1)
    assert not found["error"]


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("name", OUTCOMES)
def test_whether_outcomes_are_drawn_does_not_depend_on_data(name, kind):
    found = [compiled(name, which, kind).simulated for which in (0, 1)]
    assert [one is not None for one in found] == [OUTCOMES[name]] * 2
    if OUTCOMES[name]:
        assert found[0]._values == found[1]._values


# Exposures, known standard errors: made-up records of the same kind may be below 0, and draws of these fail.
@pytest.mark.parametrize(
    "law",
    [
        lambda mean, x: pm.Poisson("y", x * pm.math.exp(mean), observed=np.ones(N, int)),
        lambda mean, x: pm.Normal("y", mean, x, observed=outcome()),
        lambda mean, x: pm.NegativeBinomial(
            "y", mu=x * pm.math.exp(mean), alpha=x, observed=np.ones(N, int)
        ),
    ],
    ids=["poisson", "normal", "negative binomial"],
)
def test_outcomes_that_not_every_made_up_record_has_are_drawn(law):
    with pm.Model() as model:
        x = rng(1).uniform(0.5, 2, size=N)
        law(pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * rng(2).normal(size=N), x)
    assert dp.compile(model, **FAST).simulated is not None


# -- what is no sampler ----------------------------------------------------------------------------------

BUDGET = {"epsilon": 5.0, "delta": 1e-3}


@functools.cache
def draws_of(kind):
    """Released draws, which are public here, of a model with rows or people as units; of how many, they do not tell."""
    return dp.sample(
        6, chains=2, model=built("everybody_else", 0), public=["weight"], unit=UNITS[kind], step=dp.DPPenalty,
        neighbours="add-or-remove", random_seed=1, cores=1, progressbar=False, **BUDGET, **FAST,
    )  # fmt: skip


BOTH = [
    (name, relation, kind)
    for name in ("everybody_else", "a_missing_value")
    for relation in RELATIONS
    for kind in UNITS
]


@pytest.mark.parametrize(("name", "relation", "kind"), BOTH)
def test_a_comparison_tells_nothing(name, relation, kind, tells_nothing):
    given = draws_of(kind)

    def run(which):
        ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3, neighbours=relation)
        pair = {k: (compiled(name, which, kind), given) for k in ("one", "two")}
        return [dp.compare(pair, neighbours=relation, ledger=ledger, epsilon=5.0), ledger]

    assert not tells_nothing(run, 0, 1)["error"]


STATISTICS = {
    "mean": (lambda y: y.mean(), (-1, 1)),
    "inverse": (lambda y: 1 / y[0], (-1, 1)),
    "fails": (lambda y: 1 / int(y[0] < 2), (-1, 1)),
}


@pytest.mark.parametrize(("name", "relation", "kind"), BOTH)
def test_a_check_of_predictions_tells_nothing(name, relation, kind, tells_nothing):
    given = draws_of(kind)

    def run(which):
        ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3, neighbours=relation)
        model = compiled(name, which, kind)
        table = dp.check_predictions(
            given, model, STATISTICS, neighbours=relation, ledger=ledger, replicates=2, epsilon=5.0
        )
        return [table, ledger]

    assert not tells_nothing(run, 0, 1)["error"]


@pytest.mark.parametrize(("name", "relation", "kind"), BOTH)
def test_an_average_tells_nothing(name, relation, kind, tells_nothing):
    given = draws_of(kind)

    def run(which):
        ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3, neighbours=relation)
        model = compiled(name, which, kind)
        y = model.model["y"]
        of = {
            "y": "y",
            "size": abs(y - 1 / model.model["b"]),
            "some": dp.Average(1 / y, among=y > 0.5),
        }
        table = dp.average(given, model, of, neighbours=relation, ledger=ledger, epsilon=5.0)
        return [table, table.draws.to_array().values, ledger]

    assert not tells_nothing(run, 0, 1)["error"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_is_combined_tells_nothing(relation, tells_nothing):
    """Two samples of a data set and what they are together; nothing is released for that."""

    def run(which):
        one = compiled("everybody_else", which, "rows")
        settings = {"family": "normal", "neighbours": relation, "cores": 1, "progressbar": False}
        years = [
            dp.sample(6, model=one, step=dp.DPSurrogate, **BUDGET, **settings) for _ in range(2)
        ]
        years[1].attrs["privacy_runs"] = '["another"]'  # the tape gives both one name
        both = dp.combine(dict(zip("ab", years, strict=True)), one, disjoint=True, draws=6)
        return [*years, both, str(dp.privacy_report(both))]

    assert not tells_nothing(run, 0, 1)["error"]


@functools.cache
def normal_draws_of(kind, relation):
    """Released draws of a normal surrogate, which are public here."""
    return dp.sample(
        40, chains=2, model=compiled("everybody_else", 0, kind), step=dp.DPSurrogate, family="normal",
        neighbours=relation, random_seed=1, cores=1, progressbar=False, epsilon=50.0, delta=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "relation", "kind"), BOTH)
def test_a_sandwich_tells_nothing(name, relation, kind, tells_nothing):
    given = normal_draws_of(kind, relation)

    def run(which):
        ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3, neighbours=relation)
        model = compiled(name, which, kind)
        found = dp.sandwich(given, model, neighbours=relation, ledger=ledger, epsilon=5.0)
        return [found, *(x.values for x in found.draws.data_vars.values()), ledger]

    assert not tells_nothing(run, 0, 1)["error"]


def test_a_prediction_tells_nothing(tells_nothing):
    given = draws_of("rows")

    def run(which):
        return dp.predict(
            given, compiled("everybody_else", which), {"x": [0.0, 1.0]}, random_seed=1
        )

    assert not tells_nothing(run, 0, 1, releases=False)["error"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_is_expected_of_a_run_tells_nothing(relation, tells_nothing):
    def run(which):
        return dp.expected_privacy_shift(
            compiled("everybody_else", which), data={"x": np.linspace(-1, 1, 400)}, runs=1,
            neighbours=relation, **BUDGET,
        )  # fmt: skip

    assert not tells_nothing(run, 0, 1)["error"]


def test_a_trade_off_tells_nothing(tells_nothing, monkeypatch):
    # Of the posterior without privacy, which is of made-up data.
    few = {"draws": 50, "tune": 50, "chains": 2}
    monkeypatch.setattr("pymc_dp.evidence.tradeoff._REFERENCE", few)

    def run(which):
        return dp.tradeoff(
            built("everybody_else", which), epsilons=[1.0], data={"x": np.linspace(-1, 1, N)}, public=["weight"],
            step=dp.DPPenalty, draws=8, chains=2, delta=1e-3, **FAST,
        )  # fmt: skip

    assert not tells_nothing(run, 0, 1)["error"]


MECHANISMS = ("Laplace", "Gaussian", "DiscreteLaplace", "DiscreteGaussian")


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_released_sum_tells_nothing(mechanism, joint, tells_nothing):
    discrete = "Discrete" in mechanism
    first = rng(1).integers(0, 2, size=(50, 5))
    other = first * 10**9 - 7 if discrete else np.where(first > 0, np.nan, 1e300)

    def run(values):
        ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3)
        budget = {"epsilon": 1.0} | ({"delta": 1e-3} if "Gaussian" in mechanism else {})
        released = getattr(dp, f"{mechanism}Mechanism").release(
            values,
            bounds=(-1, 1),
            ledger=ledger,
            **budget,
            **({"sensitivity": 3.0} if joint else {}),
        )
        return [released, ledger]

    assert not tells_nothing(run, first, other)["error"]


class Odd:
    """Whatever it is compared with, read as or printed for, it fails, and says what it holds."""

    def __init__(self, value):
        self.value = value

    def _fails(self, *_):
        raise RuntimeError(f"a secret: {self.value}")

    __hash__ = __eq__ = __float__ = __repr__ = _fails


@pytest.mark.parametrize("tables", [None, [("smokes", "age", "region")]])
def test_released_marginals_tell_nothing(tables, tells_nothing):
    columns = {
        "smokes": [0, 1],
        "region": ["north", "south", "west"],
        "age": pd.IntervalIndex.from_breaks([0, 30, 60, 90]),
    }
    n = 40
    first = {
        "smokes": rng(1).integers(0, 2, n),
        "region": rng(2).choice(columns["region"], n),
        "age": rng(3).uniform(0, 90, n),
    }
    other = {
        "smokes": np.where(first["smokes"] > 0, np.nan, -7.0),
        "region": [None, [1], Odd(3), "nowhere", *first["region"][4:]],
        # The last two are read with a warning.
        "age": ["no number", Odd(4), np.inf, -np.inf, *first["age"][6:], np.ma.masked, np.ones(1)],
    }

    def run(values):
        ledger = dp.PrivacyLedger(epsilon=9.0, delta=1e-3)
        released = dp.release_marginals(
            values, columns, tables=tables, ledger=ledger, epsilon=1.0, delta=1e-3
        )
        return [released.statement, released.to_json(), ledger]

    assert not tells_nothing(run, first, other)["error"]


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize(
    "name", ["everybody_else", "a_missing_value", "incomes", "a_law_without_draws"]
)
def test_an_owner_tells_nothing(name, kind, tells_nothing):
    at = {"theta": np.zeros(2), "W": np.eye(2), "share": np.array(0.1)}
    requests = {
        "offer": {},
        "gradient_sizes": at | {"bins_per_octave": np.array(1.0)},
        "score": at | {"bound": np.array(0.1)},
        "information_sizes": at | {"bins_per_octave": np.array(2.0), "score_bound": np.array(0.1)},
        "information": at | {"bound": np.array(0.1), "score_bound": np.array(0.1)},
        "ratio": {"theta": np.zeros(2), "proposal": np.full(2, 0.1), "bound": np.array(0.1)},
    }

    def run(which):
        owner = Owner(model=compiled(name, which, kind), ratios=2, **BUDGET)
        answers = [owner.answer(kind, request) for kind, request in requests.items()]
        return [answers, owner.statement, owner.ledger]

    assert not tells_nothing(run, 0, 1)["error"]


def test_data_that_were_replaced_are_refused_whatever_they_are(tells_nothing):
    def run(which):
        model = built("everybody_else", 0)
        step = dp.DPPenalty(draws=5, chains=1, model=model, public=["weight"], **BUDGET, **FAST)
        values = model["x"].get_value().copy()
        model["x"].set_value(values if which else values[::-1])
        step.prepare()
        pm.sample(5, tune=0, chains=1, step=step, model=model, cores=1, progressbar=False)

    assert "replaced" in tells_nothing(run, 0, 1, releases=False)["error"]


# -- somebody comes or goes --------------------------------------------------------------------------------


FEW = 30
"""As many units as there are entries in arrays that are public."""
WIDE = 120
"""As many as there would have to be for a parameter to be taken for one per unit."""


def coming(n, people=False):
    """A model of n units that has whatever else has their number, or would have it."""
    rows = 2 * n if people else n
    with pm.Model(coords={"person": [f"name{i}" for i in range(rows)]}) as model:
        grid = pm.Data("grid", np.linspace(0, 1, FEW))
        weights = pm.Data("weights", np.ones(3))
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", np.zeros(3), 1.0, shape=3)
        pm.Dirichlet("w", np.ones(FEW))
        pm.Deterministic("curve", b[0] * grid)
        pm.Deterministic("unnamed", b[0] * np.ones(FEW))
        pm.Deterministic("fit", pm.Data("X", rng(1).normal(size=(rows, 3))) @ b, dims="person")
        x = rng(2).normal(size=rows)
        mean = a * x + model["X"] @ (b * weights)
        pm.Normal("y", mean, 1, observed=rng(3).normal(size=rows), dims="person")
    return model


CAME = {"public": ["grid", "weights"], "neighbours": "add-or-remove"}


def pairs_of(n, people):
    return {"unit": np.repeat([f"id{i}" for i in range(n)], 2)} if people else {}


@functools.cache
def compiled_coming(n, people=False):
    return dp.compile(coming(n, people), public=CAME["public"], **pairs_of(n, people), **FAST)


@pytest.mark.parametrize("people", [False, True], ids=["rows", "people"])
@pytest.mark.parametrize(
    "sampler", slow_but("penalty", "surrogate")(["penalty", "hmc", "surrogate", "sgld"])
)
def test_a_sample_does_not_tell_who_comes_or_goes(sampler, people, tells_nothing):
    step, settings = SAMPLERS[sampler]

    def run(n):
        of_model = {"model": compiled_coming(n, people), "neighbours": CAME["neighbours"]}
        if sampler == "penalty":
            of_model = {"model": coming(n, people), **pairs_of(n, people), **CAME, **FAST}
        ledger = dp.PrivacyLedger(epsilon=1e4, delta=1e-3, neighbours="add-or-remove")
        result = dp.sample(
            6, chains=2, ledger=ledger, step=step, random_seed=1, cores=1, progressbar=False,
            **settings, **of_model,
        )  # fmt: skip
        assert {"curve", "w"} <= set(groups_of(result)["posterior"])
        return [result, dp.privacy_report(result, ledger=ledger), ledger]

    assert not tells_nothing(run, FEW, FEW + 1, FEW - 1)["error"]


def rate(n):
    with pm.Model() as model:
        pm.Poisson("y", pm.Gamma("rate", 2, 1), observed=rng(1).poisson(2, size=n))
    return model


@pytest.mark.parametrize("sampler", ["automatic", "polynomial", "exponential"])
def test_a_sample_of_one_parameter_does_not_tell_who_comes_or_goes(sampler, tells_nothing):
    step, settings = SAMPLERS.get(
        sampler, (dp.DPExponentialFamily, {**GENEROUS, "bounds": (0, 20)})
    )

    def run(n):
        ledger = dp.PrivacyLedger(epsilon=1e4, delta=1e-3, neighbours="add-or-remove")
        result = dp.sample(
            6, chains=2, model=rate(n), ledger=ledger, step=step, random_seed=1, cores=1, progressbar=False,
            neighbours="add-or-remove", **settings, **FAST,
        )  # fmt: skip
        return [result, dp.privacy_report(result, ledger=ledger), ledger]

    assert not tells_nothing(run, N, N + 1)["error"]


def test_a_sandwich_does_not_tell_who_comes_or_goes(tells_nothing):
    of = {"neighbours": "add-or-remove", "delta": 1e-3}
    given = dp.sample(
        40, chains=2, model=drawn("poisson", N), step=dp.DPSurrogate, family="normal", random_seed=1, cores=1,
        progressbar=False, epsilon=1e4, **of, **FAST,
    )  # fmt: skip

    def run(n):
        found = dp.sandwich(given, dp.compile(drawn("poisson", n), **FAST), epsilon=5.0, **of)
        return [found, found.draws["b"].values]

    assert not tells_nothing(run, N, N + 1)["error"]


def drawn(law, n):
    with pm.Model() as model:
        x = pm.Data("x", rng(1).normal(size=n))
        mean = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x
        y = rng(2).integers(2, size=n)
        if law == "poisson":
            pm.Poisson("y", pm.math.exp(mean), observed=y)
        elif law == "bernoulli":
            pm.Bernoulli("y", logit_p=mean, observed=y)
        else:
            pm.CustomDist("y", mean, logp=lambda y, mean: -((y - mean) ** 2) / 2, observed=1.0 * y)
    return model


@pytest.mark.parametrize("law", ["poisson", "bernoulli", "without draws"])
def test_outcomes_of_the_models_do_not_tell_who_comes_or_goes(law, tells_nothing):
    step, settings = SAMPLERS["surrogate"]

    def run(n):
        ledger = dp.PrivacyLedger(epsilon=1e4, delta=1e-3, neighbours="add-or-remove")
        result = dp.sample(
            6, chains=2, model=drawn(law, n), ledger=ledger, step=step, random_seed=1, cores=1, progressbar=False,
            neighbours="add-or-remove", **settings, **FAST,
        )  # fmt: skip
        return [result, dp.privacy_report(result, ledger=ledger), ledger]

    assert not tells_nothing(run, N, N + 1)["error"]


def wide(n):
    """Of parameters as many as there are units, or not."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=WIDE)
        pm.Normal("y", b.sum() * rng(1).normal(size=n), 1, observed=rng(2).normal(size=n))
    return model


@pytest.mark.parametrize("epsilon", [1.0, 1e5], ids=["noise limits moves", "noise does not"])
@pytest.mark.parametrize("step", [dp.DPPenalty, dp.DPHMC])
def test_no_default_and_no_refusal_tells_who_comes_or_goes(step, epsilon, tells_nothing):
    def run(n):
        return step(
            epsilon=epsilon, delta=1e-3, draws=5, chains=1, model=wide(n), neighbours="add-or-remove",
            rng=np.random.default_rng(1), **FAST,
        )  # fmt: skip

    assert not tells_nothing(run, WIDE, WIDE + 1, releases=False)["error"]


def test_nothing_else_tells_who_comes_or_goes(tells_nothing):
    """Plans, expectations, comparisons, checks, predictions."""
    of = {"step": dp.DPPenalty, "random_seed": 1, "cores": 1, "progressbar": False}
    given = dp.sample(6, chains=2, model=coming(FEW), **of, **BUDGET, **CAME, **FAST)

    def run(n):
        model = compiled_coming(n)
        neighbours = {"neighbours": "add-or-remove"}
        steps = [
            step(
                draws=5, chains=2, model=model, rng=np.random.default_rng(1), **neighbours, **BUDGET
            )
            for step in (dp.DPPenalty, partial(dp.DPSurrogate, family="normal"), dp.DPHMC)
        ]
        expected = dp.expected_privacy_shift(
            model, records=400, runs=1, **neighbours, **BUDGET,
            data={x.name: np.zeros((400, *x.values.shape[1:])) for x in model.roles.record_data if x.name != "y"},
        )  # fmt: skip
        return [
            *steps, *map(dp.plan, steps), expected,
            dp.compare(dict.fromkeys("ab", (model, given)), **neighbours, **BUDGET),
            dp.check_predictions(given, model, {"mean": STATISTICS["mean"]}, replicates=2, **neighbours, **BUDGET),
            dp.average(given, model, "y", **neighbours, **BUDGET),
        ]  # fmt: skip

    assert not tells_nothing(run, FEW, FEW + 1)["error"]


def test_defaults_that_would_tell_the_number_are_asked_for():
    model = coming(FEW)
    with pytest.raises(dp.PrivacyConfigurationError, match="number of records is private"):
        dp.expected_privacy_shift(model, epsilon=1.0, delta=1e-3, **CAME)
    with pytest.raises(dp.PrivacyConfigurationError, match="give `delta`"):
        dp.expected_privacy_shift(rate(N), epsilon=1.0, records=100, neighbours="add-or-remove")
    of_people = {"unit": TWO_EACH, "records": N, "neighbours": "add-or-remove"}
    with pytest.raises(dp.PrivacyConfigurationError, match="is taken from `unit`"):
        dp.expected_privacy_shift(rate(N), **of_people, **BUDGET)
    with pytest.raises(dp.PrivacyConfigurationError, match="tell their number"):
        dp.tradeoff(model, **CAME)
