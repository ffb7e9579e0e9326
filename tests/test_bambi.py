"""Models of bambi: sampled as they are, predicted from by bambi, and refused where statistics of the data are in them."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import pymc_dp as dp
from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.formulas import pymc_model

bmb = pytest.importorskip("bambi")

N = 1_500
FAST = {"mode": "FAST_COMPILE"}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(8)
    x, ward = rng.normal(50, 10, size=N), rng.integers(40, size=N)
    level = 1 + 0.4 * (x - 50) / 10 + 0.5 * rng.normal(size=40)[ward]
    return pd.DataFrame(
        {
            "x": x,
            "decades": (x - 50) / 10,
            "ward": [f"w{k}" for k in ward],
            "stay": level + rng.normal(size=N),
            "ill": (rng.random(N) < 1 / (1 + np.exp(1 - level))).astype(int),
            "visits": rng.poisson(np.exp(0.3 * level)),
            "grade": pd.Categorical.from_codes(np.clip(np.round(level), 0, 2).astype(int), ["a", "b", "c"], ordered=True),
        }
    )  # fmt: skip


def priors(**more):
    return {
        "Intercept": bmb.Prior("Normal", mu=0, sigma=3),
        "common": bmb.Prior("Normal", mu=0, sigma=1),
        "group_specific": bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfNormal", sigma=1)),
        **more,
    }


def of_families(table):
    sigma = bmb.Prior("HalfNormal", sigma=2)
    for formula, family, own in (
        ("stay ~ decades + (1 | ward)", "gaussian", {"sigma": sigma}),
        ("stay ~ decades + (decades | ward)", "gaussian", {"sigma": sigma}),
        ("stay ~ decades", "t", {"sigma": sigma}),
        ("ill ~ decades + (1 | ward)", "bernoulli", {}),
        ("visits ~ decades + (1 | ward)", "poisson", {}),
        ("visits ~ decades", "negativebinomial", {}),
        ("grade ~ decades", "cumulative", {}),
        ("grade ~ decades", "categorical", {}),
    ):
        yield bmb.Model(
            formula, table, family=family, priors=priors(**own), center_predictors=False
        )


def test_common_families_can_be_sampled_both_ways(table):
    for model in of_families(table):
        compiled = dp.compile(model, compile_kwargs=FAST)
        assert compiled.roles.n_units == N
        assert compiled.roles.unit == "one record"
        assert model.family.likelihood.parent not in compiled.roles.public_data
        kept = {v.name for v in compiled.model.unobserved_RVs} - set(compiled.roles.left_out)
        assert not kept & {"mu", "p"}  # a value per record
        theta = compiled.parameters.start
        inner = dp.compile(model.backend.model, compile_kwargs=FAST)
        assert_allclose(compiled.likelihood(theta), inner.likelihood(theta))


@pytest.mark.chain
@pytest.mark.slow
def test_a_result_can_be_predicted_from_by_bambi(table):
    model = bmb.Model(
        "ill ~ decades + (1 | ward)", table, family="bernoulli", priors=priors(), center_predictors=False
    )  # fmt: skip
    idata = dp.sample(model, epsilon=4.0, chains=2, cores=1, progressbar=False)
    groups = groups_of(idata)
    sizes = {name: v.sizes for name, v in groups["posterior"].data_vars.items()}
    assert "p" not in sizes
    assert all(N not in s.values() for s in sizes.values())
    new = pd.DataFrame({"decades": [-1.0, 0.0, 1.0], "ward": ["w0", "w1", "w1"]})
    predicted = groups_of(model.predict(idata, data=new, inplace=False))["posterior"]["p"]
    assert predicted.sizes["__obs__"] == 3
    draws = groups["posterior"]
    effect = draws["1|ward"].sel(ward__factor_dim="w1")
    eta = draws["Intercept"] + draws["decades"] * 1.0 + effect
    assert_allclose(predicted.isel(__obs__=2), 1 / (1 + np.exp(-eta)), rtol=1e-6)


def test_the_model_may_come_first_but_not_twice(table):
    model = bmb.Model("visits ~ decades", table, family="poisson", priors=priors(), center_predictors=False)  # fmt: skip
    with pytest.raises(PrivacyConfigurationError, match="twice"):
        dp.sample(model, epsilon=1.0, model=model)


def test_what_bambi_does_itself_is_said_to_be_its_own(table):
    """Neither advice to write `pm.Data` where the user writes formulas, nor an error of Python's."""
    model = bmb.Model("visits ~ decades", table, family="poisson", priors=priors(), center_predictors=False)  # fmt: skip
    idata = dp.sample(
        model, draws=20, chains=1, epsilon=50.0, progressbar=False, compile_kwargs=FAST
    )
    assert groups_of(idata)["posterior"].sizes["draw"] == 20
    for given in (model, dp.compile(model)):
        with pytest.raises(
            UnsupportedModelError, match=r"`model.predict\(idata, data=new_table, kind"
        ):
            dp.predict(idata, given, table.head(3))
        with pytest.raises(UnsupportedModelError, match="takes the model as it is"):
            dp.tradeoff(given)
        with pytest.raises(PrivacyConfigurationError, match=r"`plan\(DPSurrogate\(.*model=model"):
            dp.plan(given)
    with pytest.raises(PrivacyConfigurationError, match="Give made-up ones"):
        dp.expected_privacy_shift(model, epsilon=1.0)


DEFAULTS = {}
CENTRED = {"priors": "given"}
SCALED = {"center_predictors": False}


@pytest.mark.parametrize(
    ("formula", "keywords", "word"),
    [
        ("stay ~ x", DEFAULTS, "center_predictors=False"),
        ("stay ~ x", CENTRED, "center_predictors=False"),
        ("stay ~ x", SCALED, "priors={"),
        ("ill ~ x + (1 | ward)", {**SCALED, "family": "bernoulli"}, "priors={"),
        ("stay ~ scale(x)", {**CENTRED, "center_predictors": False}, None),
        ("stay ~ x", {**CENTRED, "center_predictors": False}, ""),
    ],
)
def test_statistics_that_bambi_takes_from_the_data_are_refused(table, formula, keywords, word):
    """By its formula and settings. The PyMC model that it has built does not tell."""
    keywords = dict(keywords)
    if keywords.get("priors") == "given":
        keywords["priors"] = priors(sigma=bmb.Prior("HalfNormal", sigma=2))
    model = bmb.Model(formula, table, **keywords)
    if word == "":
        dp.compile(model)
        dp.compile(model.backend.model)
        return
    with pytest.raises(UnsupportedModelError) as refusal:
        dp.compile(model)
    assert (word or "statistic") in str(refusal.value)
    model.build()
    with pytest.raises(UnsupportedModelError, match="Give the bambi model itself"):
        dp.compile(model.backend.model)


def test_splines_and_processes_of_the_data_are_refused(table):
    for term in ("bs(x, df=4)", "poly(x, 2)", "center(x)"):
        model = bmb.Model(f"stay ~ {term}", table, center_predictors=False)
        with pytest.raises(UnsupportedModelError, match="public constants"):
            pymc_model(model)


def test_anything_else_stays_what_it_is():
    assert pymc_model(None) is None
