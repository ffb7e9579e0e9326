"""What every family of surrogates has to keep, whatever is inside it: one class, three families, both relations."""

import functools
import logging

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.privacy.events import Gaussian
from pymc_dp.records.measurements import PaidMeasurements

from ..differential import Tape
from ..marks import slow_but

FAST = {"mode": "FAST_COMPILE"}
QUIET = {"cores": 1, "chains": 2, "progressbar": False}
RELATIONS = ["substitute-one", "add-or-remove"]
N, M = 5_000, 40


def normal(unit=1.0, drop=None, changed=False):
    """A logistic regression whose second covariate, and coefficient, are in units of our choice."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(N, 2))
    y = rng.random(N) < 1 / (1 + np.exp(0.4 - x @ [1.0, -0.5]))
    x, y = edited(drop, changed, x, y.astype(int))
    with pm.Model() as model:
        a, beta = pm.Normal("a", 0, 2), pm.Normal("beta", 0, [2, 2 / unit], shape=2)
        eta = a + pm.Data("X", x * [1, unit]) @ beta
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model, {"a": 1.0, "beta": np.array([1.0, unit])}


def hierarchical(unit=1.0, drop=None, changed=False):
    """Intercepts of forty groups, and a slope in units of our choice."""
    rng = np.random.default_rng(4)
    k, x = rng.integers(M, size=N), np.clip(rng.normal(size=N), -3, 3)
    alpha = rng.normal(0.3, 0.6, M)
    y = rng.normal(alpha[k] + 0.5 * x, 1.0)
    k, x, y = edited(drop, changed, k, x, y)
    with pm.Model() as model:
        mu, tau, beta = pm.Normal("mu"), pm.HalfNormal("tau"), pm.Normal("beta", 0, 1 / unit)
        alpha = pm.Normal("alpha", mu, tau, shape=M)
        eta = alpha[pm.Data("K", k)] + pm.Data("X", x * unit) * beta
        pm.Normal("y", eta, 1, observed=pm.Data("Y", y))
    return model, {"mu": 1.0, "beta": unit}


def polynomial(unit=1.0, drop=None, changed=False):
    """A banana whose first parameter is in units of our choice."""
    x = np.random.default_rng(0).normal([0.0, 1.0], [1.0, 0.5], size=(N, 2))
    (x,) = edited(drop, changed, x)
    with pm.Model() as model:
        first, second = pm.Normal("first", 0, 10 / unit), pm.Normal("second", 0, 10)
        pm.Normal("x", first * unit, 1, observed=pm.Data("X", x[:, 0]))
        pm.Normal("y", second + 3 * (first * unit) ** 2, 0.5, observed=pm.Data("Y", x[:, 1]))
    return model, {"first": unit, "second": 1.0}


FAMILIES = {"normal": normal, "hierarchical": hierarchical, "polynomial": polynomial}


def edited(drop, changed, *columns):
    """The data, or their neighbours: without a record, or with another one in its place."""
    if drop is not None:
        columns = [np.delete(c, drop, axis=0) for c in columns]
    if changed:
        columns = [np.concatenate([c[:1], c[:-1]]) for c in columns]
    return columns


@pytest.fixture
def no_chains(monkeypatch):
    """Draws of the released law are made of released numbers alone: where they do not matter, none of NUTS."""
    for family in ("normal", "hierarchical"):
        monkeypatch.setattr(
            f"pymc_dp.surrogate.{family}.draws.draws_of",
            lambda density, start, draws, chains, seed, sampler: (
                start + np.random.default_rng(seed).standard_normal((chains, draws, len(start)))
            ),
        )


@functools.lru_cache(maxsize=4)
def compiled_once(family, fast, **data):
    """The same for both relations, all budgets and all noises."""
    return dp.compile(FAMILIES[family](**data)[0], compile_kwargs=FAST if fast else None)


def run(
    family, neighbours="substitute-one", data=None, epsilon=3.0, seed=1, draws=200, compiled=None
):
    """A step that has released everything."""
    step = dp.DPSurrogate(
        model=compiled_once(family, compiled is FAST, **(data or {})), family=family, draws=draws, chains=2,
        epsilon=epsilon, delta=1e-5, neighbours=neighbours, noise_source=dp.InsecureSeededNoise(seed),
    )  # fmt: skip
    step.prepare()
    return step


def moments(step, scales):
    """Means and standard deviations of the parameters that all records share, in units of 1."""
    theta = step._draws.reshape(-1, step.compiled.d)
    points = [step.compiled.parameters.point(t) for t in theta]
    values = np.column_stack(
        [np.array([np.ravel(p[name]) * scale for p in points]) for name, scale in scales.items()]
    )
    return values.mean(axis=0), values.std(axis=0)


@functools.cache
def exact(family):
    """The same, of NUTS on the records themselves."""
    model, scales = FAMILIES[family]()
    with model:
        found = pm.sample(1000, tune=500, random_seed=1, **QUIET)["posterior"]
    values = np.column_stack(
        [(found[k].values.reshape(2000, -1) * scale) for k, scale in scales.items()]
    )
    return values.mean(axis=0), values.std(axis=0)


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("family", FAMILIES)
class TestFamily:
    def test_it_spends_its_budget_and_no_more(self, family, neighbours, no_chains):
        step = run(family, neighbours, compiled=FAST)
        events, option = step.guarantee.total, step._price.option
        z = dp.calibrate_noise(epsilon=3.0, delta=1e-5, releases=1)
        # With the option of a last query of another kind, each of the two ways has half of delta.
        least = z if option is None else dp.calibrate_noise(epsilon=3.0, delta=5e-6, releases=1)
        assert step._price.whole.noise_multiplier == pytest.approx(least, rel=1e-6)
        assert step._price.whole.noise_multiplier >= least
        assert events == (
            (Gaussian(step._price.whole.noise_multiplier),)
            if option is None
            else option.events(step._price.whole.noise_multiplier)
        )
        assert step.ledger.spent() == pytest.approx(3.0, rel=1e-5)

    def test_what_leaves_is_a_function_of_the_releases(
        self, family, neighbours, monkeypatch, no_chains
    ):
        other = {"changed": True} if neighbours == "substitute-one" else {"drop": 17}
        tape = Tape(monkeypatch)
        first = run(family, neighbours, draws=20, compiled=FAST)
        tape.rewind()
        second = run(family, neighbours, other, draws=20, compiled=FAST)
        assert tape.ended()
        assert np.array_equal(first._draws, second._draws)
        assert first.diagnostics == second.diagnostics

    def test_an_unusable_run_says_so_and_flatters_nobody(
        self, family, neighbours, caplog, no_chains
    ):
        with caplog.at_level(logging.WARNING, "pymc.dp"):
            step = run(family, neighbours, epsilon=0.01, draws=20, compiled=FAST)
        assert not step.diagnostics.usable
        assert step.diagnostics.privacy_shift is None
        assert np.isfinite(step._draws).all()
        assert caplog.records

    def test_noise_alone_does_not_look_like_a_posterior(self, family, neighbours, no_chains):
        """Its bounds may be anything, and with a short one a sum seems to have no noise."""
        for seed in range(4):
            step = run(family, neighbours, epsilon=0.02, seed=seed, draws=20, compiled=FAST)
            said = step.diagnostics
            assert not said.usable or said.privacy_shift > 0.5

    def test_an_error_of_the_programs_own_is_not_a_lost_search(
        self, family, neighbours, monkeypatch
    ):
        whole = PaidMeasurements.sum

        def short(*arguments):
            released, sd = whole(*arguments)
            return released[:-1], sd

        monkeypatch.setattr(PaidMeasurements, "sum", short)
        with pytest.raises((ValueError, IndexError)):
            run(family, neighbours, draws=20, compiled=FAST)


@pytest.mark.chain
@pytest.mark.parametrize("family", slow_but("normal", "polynomial")(FAMILIES))
def test_with_next_to_no_noise_it_is_the_posterior(family):
    _, scales = FAMILIES[family]()
    (mean, sd), (true, width) = (
        moments(run(family, epsilon=1e4), scales),
        exact(family),
    )
    # Monte Carlo errors of 400 and of 2,000 draws, with some curvature that no normal law has.
    np.testing.assert_allclose((mean - true) / width, 0, atol=0.35)
    np.testing.assert_allclose(sd / width, 1, atol=0.25)


@pytest.mark.chain
@pytest.mark.parametrize("family", slow_but("normal", "polynomial")(FAMILIES))
def test_units_of_parameters_do_not_matter(family):
    one, other = (
        moments(run(family, data={"unit": unit}, epsilon=100.0), FAMILIES[family](unit)[1])
        for unit in (1.0, 1e3)
    )  # fmt: skip
    # Bounds differ by what lies between two bins, and so does the noise: less than an sd at this budget.
    np.testing.assert_allclose((other[0] - one[0]) / one[1], 0, atol=0.5)
    np.testing.assert_allclose(other[1] / one[1], 1, atol=0.25)


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_as_large_as_is_said(family, neighbours):
    """Over many noises: the mean's error is `privacy_shift` posterior sds in every parameter, or less."""
    scales, (true, _), squares = FAMILIES[family]()[1], exact(family), []
    for seed in range(40):
        step = run(family, neighbours, epsilon=1.0, seed=seed)
        if step.diagnostics.usable:
            mean, sd = moments(step, scales)
            squares.append(((mean - true) / sd) ** 2)
    squares = np.array(squares)
    assert len(squares) >= 30
    # Draws are as wide as posterior and noise together: the squares of errors in their sds are below 1 on average.
    assert squares.mean() < stats.chi2.ppf(1 - 1e-4, len(squares)) / len(squares)
