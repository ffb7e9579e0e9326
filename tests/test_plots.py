"""Plots: what they show, and that they look at released results and made-up data only."""

import io
import json
import logging
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pytensor import shared

import pymc_dp as dp
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.evidence.made_up_data import with_made_up_data
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Gaussian, PoissonGaussian, to_json

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}


@pytest.fixture(autouse=True)
def pyplot(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.fixture(scope="module")
def run():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=rng.normal(size=80))
    usual = {
        "draws": 12,
        "tune": 4,
        "chains": 2,
        "epsilon": 1.5,
        "model": model,
        "step": dp.DPPenalty,
        "cores": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
        **FAST,
    }
    return lambda **settings: dp.sample(**{**usual, **settings})


@pytest.fixture(scope="module")
def released(run):
    return run()


def with_attrs(released, **attrs):
    changed = {f"privacy_{name}": value for name, value in attrs.items()}
    return from_groups(groups_of(released), {**root_attrs(released), **changed}, like=released)


def line(ax, label):
    return next(li for li in ax.lines if li.get_label() == label).get_xydata()


# -- plot_privacy -----------------------------------------------------------------------------------


def test_the_total_ends_at_the_runs_epsilon(released):
    ax = dp.plot_privacy(released)
    total = line(ax, "2 chains together")
    assert total[0].tolist() == [0, 0]
    assert total[-1] == pytest.approx([16, 1.5], rel=1e-6)
    assert (np.diff(total[:, 1]) > 0).all()
    assert line(ax, "budget, ε = 1.5")[0, 1] == 1.5


def test_a_chain_spends_what_its_statistics_say(released):
    ax = dp.plot_privacy(released)
    alone = line(ax, "each chain alone")
    spent = released["sample_stats"]["epsilon_spent"].values[0]
    assert alone[:, 0].tolist() == list(range(5, 17))
    np.testing.assert_array_equal(alone[:, 1], spent)
    # One chain that has come as far as two have together, at half the iterations, has spent as much.
    total = dict(line(ax, "2 chains together").tolist())
    assert spent[8 - 5] == pytest.approx(total[4], rel=1e-6)


def test_one_chain_is_drawn_once(run):
    ax = dp.plot_privacy(run(chains=1, tune=0))
    assert line(ax, "the chain")[-1] == pytest.approx([12, 1.5], rel=1e-6)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["the chain", "budget, ε = 1.5"]


def test_releases_before_the_first_iteration_come_first(released):
    events = (Gaussian(2.0, 1), Gaussian(40.0, 32), Gaussian(50.0, 96))
    epsilon = composed_epsilon(events, 1e-5)
    result = with_attrs(released, events=to_json(events), epsilon=epsilon, delta=1e-5)
    total = line(dp.plot_privacy(result), "2 chains together")
    assert total[0, 1] == pytest.approx(composed_epsilon(events[:1], 1e-5))
    assert total[-1, 1] == pytest.approx(epsilon)


def test_samples_are_added_up_by_their_own_accountant(released):
    events = (PoissonGaussian(2.0, 0.1, 32),)
    epsilon = composed_epsilon(events, 1e-5)
    result = with_attrs(released, events=to_json(events), epsilon=epsilon, delta=1e-5)
    assert line(dp.plot_privacy(result), "2 chains together")[-1, 1] == pytest.approx(epsilon)


def test_a_part_of_a_result_is_placed_where_it_was_drawn(released):
    part = {
        name: group.isel(draw=slice(6, None)) if "draw" in group.dims else group
        for name, group in groups_of(released).items()
    }
    ax = dp.plot_privacy(from_groups(part, root_attrs(released), like=released))
    assert line(ax, "each chain alone")[0, 0] == 11
    assert line(ax, "2 chains together")[-1] == pytest.approx([16, 1.5], rel=1e-6)


def test_it_draws_where_it_is_told(released, pyplot):
    figure, axes = pyplot.subplots(1, 2)
    assert dp.plot_privacy(released, ax=axes[1]) is axes[1]
    assert len(figure.axes) == 2
    assert not axes[0].lines


def test_without_a_guarantee_there_is_nothing_to_plot(run):
    with pytest.raises(dp.PrivacyError, match="insecure seeded"):
        dp.plot_privacy(run(noise_source=dp.InsecureSeededNoise(1)))


def post_processed(released):
    posterior = groups_of(released)["posterior"]
    like = posterior["mu"]
    stats = posterior.drop_vars("mu").assign(release_epsilon=like * 0 + 1, release_delta=like * 0)
    return dp.release(
        from_groups({"posterior": posterior, "sample_stats": stats}, {}, like=released)
    )


def test_post_processing_costs_nothing(released):
    with pytest.raises(dp.PrivacyError, match="cost nothing"):
        dp.plot_privacy(post_processed(released))


def test_raw_results_are_refused(released):
    attrs = {k: v for k, v in root_attrs(released).items() if not k.startswith("privacy")}
    raw = from_groups(groups_of(released), attrs, like=released)
    with pytest.raises(dp.PrivacyError, match="release"):
        dp.plot_privacy(raw)


def test_matplotlib_is_asked_for_when_it_is_missing(released, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pymc-dp\[plots\]"):
        dp.plot_privacy(released)


@pytest.mark.parametrize(
    ("measured", "shares"),
    [
        ({"sizes": 0.2, "gradients": 0.5, "curvature": 0.3}, [20, 50, 30]),
        (
            {"sizes": 0.2, "gradients": 0.4, "curvature": 0.3, "log_likelihood": 0.1},
            [20, 40, 30, 10],
        ),
        ({"sizes": 0.05, "gradients": 0.15}, [5, 15, 80]),  # lost: the rest was given back
    ],
)
def test_what_was_spent_before_the_first_draw_is_shown_by_what_it_was_spent_on(
    released, measured, shares
):
    text = json.dumps({f"spent_on_{part}": share for part, share in measured.items()})
    ax = dp.plot_privacy(with_attrs(released, diagnostics=text))
    bars = sorted(ax.patches, key=lambda bar: -bar.get_y())
    assert [bar.get_width() for bar in bars] == pytest.approx(shares)
    assert "ε = 1.5" in ax.get_xlabel()
    assert "not spent" in "".join(t.get_text() for t in ax.get_yticklabels()) or sum(
        measured.values()
    ) == pytest.approx(1)


def test_a_surrogates_run_says_on_what_it_was_spent(run):
    idata = run(step=partial(dp.DPSurrogate, family="normal"), tune=0)
    found = json.loads(root_attrs(idata)["privacy_diagnostics"])
    spent = {k: v for k, v in found.items() if k.startswith("spent_on_")}
    assert set(spent) == {
        "spent_on_gradients"
    }  # of a model without covariates nothing else is asked
    total = sum(spent.values())
    assert 0 < total <= 1 + 1e-6
    assert len(dp.plot_privacy(idata).patches) >= len(spent)


# -- plot_prior_posterior ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hierarchy():
    """A vector with labels, a matrix, scalars, a flat prior; draws that say where they are."""
    with pm.Model(coords={"clinic": ["north", "south"], "term": list("abc")}) as model:
        pm.Normal("slope", 0, 10)
        pm.Normal("level", 1, 2, dims="clinic")
        pm.Normal("table", 0, 1, dims=("clinic", "term"))
        flat = pm.Flat("flat")
        pm.Normal("y", flat, 1, observed=np.zeros(5))
    rng = np.random.default_rng(0)
    draws = {
        "slope": 3 + 0.1 * rng.normal(size=(2, 500)),
        "level": [5.0, 1.0] + rng.normal(size=(2, 500, 2)) * [0.2, 2.0],
        "table": rng.normal(size=(2, 500, 2, 3)),
        "flat": rng.normal(size=(2, 500)),
    }
    dims = {"level": ["clinic"], "table": ["clinic", "term"]}
    posterior = xr.Dataset(
        {k: (("chain", "draw", *dims.get(k, ())), v) for k, v in draws.items()},
        coords={"clinic": ["north", "south"], "term": list("abc")},
    )
    return model, posterior


def test_prior_and_posterior_of_every_entry(hierarchy, released):
    model, posterior = hierarchy
    panels = dp.plot_prior_posterior(
        from_groups({"posterior": posterior}, {}, like=released), model
    )
    assert panels.shape == (4,)
    slope, _, table, flat = panels
    labels = [[t.get_text() for t in ax.get_yticklabels()] for ax in panels]
    assert labels[0] == ["slope"]
    assert labels[1] == ["north", "south"]
    assert labels[2] == ["north, a", "north, b", "north, c", "south, a", "south, b", "south, c"]
    before, after = slope.collections
    assert after.get_segments()[0][:, 0] == pytest.approx([3 - 0.1645, 3 + 0.1645], abs=0.03)
    # Quantiles of 2,000 prior draws: se of about 0.5.
    assert before.get_segments()[0][:, 0] == pytest.approx([-16.45, 16.45], abs=2)
    assert slope.get_xlim()[1] < 4  # the prior is cut off, the posterior can be read
    said = [[t.get_text() for t in ax.texts] for ax in panels]
    assert float(said[0][0].removesuffix(" %")) == pytest.approx(1, abs=0.1)
    assert float(said[1][0].removesuffix(" %")) == pytest.approx(10, abs=1)
    assert float(said[1][1].removesuffix(" %")) == pytest.approx(100, abs=8)
    assert len(table.texts) == 6
    assert len(flat.collections) == 1  # no prior to draw
    assert not flat.texts


def test_it_looks_at_no_data(hierarchy, released):
    """Other records, other observed values: the same picture."""
    model, posterior = hierarchy
    idata = from_groups({"posterior": posterior}, {}, like=released)
    with pm.Model(coords=model.coords) as other:
        pm.Normal("slope", 0, 10)
        flat = pm.Flat("flat")
        pm.Normal("y", flat, 1, observed=np.full(50, 777.0))
    one, two = (
        dp.plot_prior_posterior(idata, m, var_names=["slope", "flat"]) for m in (model, other)
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.get_xlim(), b.get_xlim())
        for left, right in zip(a.collections, b.collections, strict=True):
            np.testing.assert_array_equal(left.get_segments(), right.get_segments())


def test_many_entries_are_drawn_without_labels(released):
    with pm.Model() as model:
        pm.Normal("b", 0, 1, shape=80)
        pm.Normal("y", model["b"].sum(), 1, observed=np.zeros(3))
    draws = np.random.default_rng(0).normal(size=(1, 50, 80))
    posterior = xr.Dataset({"b": (("chain", "draw", "b_dim_0"), draws)})
    (ax,) = dp.plot_prior_posterior(from_groups({"posterior": posterior}, {}, like=released), model)
    assert [len(c.get_segments()) for c in ax.collections] == [80, 80]
    assert len(ax.get_yticks()) == 0


def test_names_that_are_none_are_refused(hierarchy, released):
    model, posterior = hierarchy
    idata = from_groups({"posterior": posterior}, {}, like=released)
    for names in (["y"], ["nothing"], []):
        with pytest.raises(dp.PrivacyConfigurationError, match="Free variables are"):
            dp.plot_prior_posterior(idata, model, var_names=names)


# -- plot_checks --------------------------------------------------------------------------------------


def test_checks_are_drawn_in_standard_deviations_of_the_replicates():
    replicated = np.array([[1.0, 2.0, 3.0], [10.0, 10.0, 13.0]])
    checks = dp.PredictionChecks(
        ("zeros", "mean"), np.array([5.0, 11.0]), replicated, np.array([0.1, 0.2]), None
    )
    ax = dp.plot_checks(checks)
    observed = line(ax, "observed")
    sd = replicated.std(axis=1, ddof=1) * np.sqrt(4 / 3)
    np.testing.assert_allclose(observed[:, 0], [(5 - 2) / sd[0], 0])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["zeros", "mean"]
    assert [t.get_text() for t in ax.texts] == [f"p = {p:.3f}" for p in checks.p]
    with pytest.raises(dp.PrivacyConfigurationError, match="Found dict"):
        dp.plot_checks({})


# -- tradeoff ---------------------------------------------------------------------------------------

N = 60
MADE_UP = {"X": np.random.default_rng(7).normal(size=(N, 2))}


def model_of(x, y, *, wrapped=True, prior_sd=1.0):
    with pm.Model(
        coords={"term": ["a", "b"], "patient": [f"p{i}-{v}" for i, v in enumerate(y)]}
    ) as model:
        beta = pm.Normal("beta", 0, prior_sd, dims="term")
        X = pm.Data("X", x, dims=("patient", "term"))
        observed = pm.Data("y_data", y, dims="patient") if wrapped else y
        pm.Bernoulli("ill", logit_p=X @ beta, observed=observed, dims="patient")
    return model


def real(seed, **settings):
    rng = np.random.default_rng(seed)
    return model_of(1e3 * rng.normal(size=(N, 2)), rng.integers(2, size=N), **settings)


SMALL = {
    "draws": 15,
    "tune": 5,
    "epsilons": (8.0, 1.0),
    "data": MADE_UP,
    "step": dp.DPPenalty,
    **FAST,
}


@pytest.fixture
def short(monkeypatch):
    """The non-private posterior from a few draws: how good it is is not what is tested."""
    for name, value in {"draws": 60, "tune": 60}.items():
        monkeypatch.setitem(dp.tradeoff.__globals__["_REFERENCE"], name, value)


def numbers(found):
    return np.array([found.mean, found.low, found.high])


@pytest.fixture
def small(short):
    return lambda model, **more: dp.tradeoff(model, **{**SMALL, "random_seed": 3, **more})


@pytest.mark.sweep
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_real_data_make_no_difference(wrapped, small):
    """Other covariates, other outcomes, other labels: the same plot to the last bit."""
    one, two = (small(real(seed, wrapped=wrapped)) for seed in (1, 2))
    np.testing.assert_array_equal(numbers(one), numbers(two))
    assert not np.array_equal(numbers(one), numbers(small(real(1), random_seed=4)))


@pytest.mark.sweep
def test_a_compiled_model_is_taken_with_what_it_was_compiled_with(small):
    compiled = dp.compile(real(1), unit="patient", **FAST)
    settings = {k: v for k, v in SMALL.items() if k not in FAST} | {"random_seed": 3}
    np.testing.assert_array_equal(
        numbers(dp.tradeoff(compiled, **settings)), numbers(small(real(1), unit="patient"))
    )
    with pytest.raises(dp.PrivacyConfigurationError, match="compiled already, so `unit` cannot"):
        dp.tradeoff(compiled, **settings, unit="patient")


def test_no_real_value_is_in_the_model_that_is_sampled():
    for wrapped in (True, False):
        model = model_of(np.full((N, 2), 777.0), np.ones(N, int), wrapped=wrapped)
        copy = with_made_up_data(model, data=MADE_UP, truth={"beta": [0, 0]}, public=(), seed=1)
        held = {v.name: v.get_value() for v in copy.data_vars}
        np.testing.assert_array_equal(held["X"], MADE_UP["X"])
        outcome = copy.rvs_to_values[copy["ill"]].eval()
        assert 0 < outcome.mean() < 1
        assert all(777.0 not in values for values in held.values())
        assert tuple(copy.named_vars_to_dims["ill"]) == ("patient",)
        # The model itself stays as it is.
        assert (model["X"].get_value() == 777.0).all()
        assert (model.rvs_to_values[model["ill"]].eval() == 1).all()


def test_outcomes_come_from_the_truth_or_from_the_prior():
    def share(**settings):
        copy = with_made_up_data(
            real(1), data={"X": np.ones((N, 2))}, public=(), **{"truth": {}, "seed": 1, **settings}
        )
        return copy.rvs_to_values[copy["ill"]].eval().mean()

    assert share(truth={"beta": [20, 20]}) == 1
    assert share(truth={"beta": [-20, -20]}) == 0
    assert len({share(seed=seed) for seed in range(6)}) > 2


def test_how_many_records_there_are_may_come_from_the_observed_data():
    """Sizes are public; the values behind them are replaced all the same."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Poisson("calls", rate, observed=pm.Data("seen", np.full(N, 777)))
    copy = with_made_up_data(model, data={}, truth={"rate": 3.0}, public=(), seed=0)
    made_up = copy["seen"].get_value()
    assert made_up.shape == (N,)
    assert 2 < made_up.mean() < 4


def test_several_outcomes_are_drawn_together():
    """From one draw of the prior, not one each."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1000)
        for name in ("y", "z"):
            pm.Normal(name, mu, 1, observed=np.zeros(N))
    copy = with_made_up_data(model, data={}, truth={}, public=(), seed=0)
    y, z = (copy.rvs_to_values[copy[name]].eval() for name in ("y", "z"))
    assert abs(y.mean()) > 10
    assert y.mean() == pytest.approx(z.mean(), abs=1)
    assert not np.array_equal(y, z)


@pytest.mark.sweep
def test_more_epsilon_is_nearer_to_the_non_private_posterior(small):
    found = small(
        real(1), epsilons=(0.01, 1e4), draws=300, truth={"beta": [0.5, -0.5]}, random_seed=0
    )
    assert found.epsilons == (0.01, 1e4)
    assert found.labels == ("beta[a]", "beta[b]")
    np.testing.assert_allclose(found.mean[-1], 0, atol=1e-9)
    np.testing.assert_allclose(found.high[-1], 1.645, atol=0.5)
    np.testing.assert_allclose(found.low[-1], -1.645, atol=0.5)
    nothing, much = found.high[:2] - found.low[:2]
    assert (nothing < 1).all()  # stuck: hardly a proposal is accepted
    assert (much > 1.5).all()
    assert (found.r_hat[1] < 1.3).all()


@pytest.mark.sweep
def test_it_costs_nothing_and_keeps_quiet(small, caplog):
    with caplog.at_level(logging.INFO):
        small(real(1))
    assert "private" not in caplog.text
    for name in ("ledger", "noise_source", "epsilon"):
        with pytest.raises(TypeError, match=f"`{name}` has no place here"):
            dp.tradeoff(real(1), **SMALL, **{name: 1})


def test_data_that_are_not_replaced_are_refused():
    with pytest.raises(dp.PrivacyConfigurationError, match=r"`pm.Data` 'X'.*\(60, 2\)"):
        dp.tradeoff(real(1), **{**SMALL, "data": {}})
    with pytest.raises(dp.PrivacyConfigurationError, match="must have its shape"):
        dp.tradeoff(real(1), **{**SMALL, "data": {"X": np.zeros((N, 3))}})
    with pytest.raises(dp.PrivacyConfigurationError, match=r"\['Z'\].*no `pm.Data`"):
        dp.tradeoff(real(1), **{**SMALL, "data": {"Z": 1}})
    with pytest.raises(dp.PrivacyConfigurationError, match=r"\['b'\].*no free variables"):
        dp.tradeoff(real(1), truth={"b": 1}, **SMALL)
    with pytest.raises(dp.PrivacyConfigurationError, match="`epsilons` is empty"):
        dp.tradeoff(real(1), **{**SMALL, "epsilons": ()})


@pytest.mark.parametrize("place", ["mean", "index", "shared", "potential", "dist", "logp"])
def test_records_written_into_the_model_are_refused(place):
    """Nothing can take their place, so they would be read."""
    x = np.linspace(0, 1, N)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3)
        mean = {"mean": a[0] * x, "index": a[np.zeros(N, int)], "shared": a[0] * shared(x)}
        if place == "dist":
            pm.CustomDist(
                "y", a[0], dist=lambda a, size: pm.Normal.dist(a * x, 1), observed=np.zeros(N)
            )
        elif place == "logp":
            pm.CustomDist(
                "y",
                a[0],
                dist=lambda a, size: pm.Normal.dist(a, 1, size=size),
                logp=lambda y, a: -((y - a * x) ** 2),
                observed=np.zeros(N),
            )
        else:
            pm.Normal("y", mean.get(place, a[0]), 1, observed=np.zeros(N))
        if place == "potential":
            pm.Potential("fit", (a[0] * x).sum())
    with pytest.raises(dp.UnsupportedModelError, match=r"written into it|captured"):
        dp.tradeoff(model, **FAST)


def test_functions_that_draw_are_refused():
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        pm.CustomDist(
            "y",
            a,
            logp=lambda y, a: -((y - a) ** 2),
            random=lambda a, rng, size: np.linspace(0, 1, N),
            observed=np.zeros(N),
        )
    with pytest.raises(dp.UnsupportedModelError, match=r"'y' is drawn by a function of yours"):
        dp.tradeoff(model)


def test_models_that_cannot_be_copied_or_have_no_outcome():
    with pm.Model() as model:
        pm.Normal("s", 0, 1, initval=1.0)
        with pytest.raises(dp.UnsupportedModelError, match="no observed variables"):
            dp.tradeoff(model)
        pm.Normal("y", model["s"], 1, observed=np.zeros(N))
        with pytest.raises(dp.UnsupportedModelError, match=r"\['s'\] have an `initval`"):
            dp.tradeoff(model)


def test_public_data_keep_their_values():
    with pm.Model() as model:
        knots = pm.Data("knots", np.array([10.0, 20.0]))
        a = pm.Normal("a", 0, 1, shape=2)
        pm.Normal("y", (a * knots).sum(), 1, observed=np.zeros(N))
    copy = with_made_up_data(model, data={}, truth={}, public=["knots"], seed=0)
    assert copy["knots"].get_value().tolist() == [10.0, 20.0]


def test_a_model_is_not_a_tradeoff():
    with pytest.raises(dp.PrivacyConfigurationError, match=r"`pymc_dp.tradeoff\(model, ...\)` has"):
        dp.plot_tradeoff(real(1))


def test_the_table_of_a_tradeoff():
    mean = np.array([[np.nan, np.nan], [0.5, -1.25], [0.0, 0.0]])
    found = dp.Tradeoff(
        (1.0, 2.0), ("a", "b"), mean, mean - 2, mean + 2, np.array([[np.nan] * 2, [1.01, 1.2]])
    )
    first, _, head, a, b, _, statement = str(found).splitlines()
    assert first == "What ε buys, on made-up data"
    assert head.split("  ")[-1] == "not private"
    assert a.split() == [
        "a",
        "no",
        "result",
        "+0.50",
        "(-1.50",
        "to",
        "+2.50)",
        "+0.00",
        "(-2.00",
        "to",
        "+2.00)",
    ]
    assert b.split() == [
        "b",
        "no",
        "result",
        "-1.25",
        "(-3.25",
        "to",
        "+0.75)*",
        "+0.00",
        "(-2.00",
        "to",
        "+2.00)",
    ]
    assert "*: R-hat above 1.05" in statement
    assert "gave up" in statement
    good = replace(found, epsilons=(2.0,), mean=mean[1:], r_hat=np.array([[1.01, 1.02]]))
    assert "R-hat" not in good.statement
    assert "gave up" not in good.statement
    assert found._repr_html_().count("<td") == 9


@pytest.mark.sweep
def test_the_plot_shows_every_run(pyplot, short):
    figure, given = pyplot.subplots()
    found = dp.tradeoff(real(1), truth={"beta": [0.5, 0.5]}, **SMALL)
    ax = dp.plot_tradeoff(found, ax=given)
    assert ax is given
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "8", "not private"]
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels[:2] == ["beta[a]", "beta[b]"]
    figure.savefig(io.BytesIO())


@pytest.mark.sweep
def test_a_run_that_gave_up_is_shown_as_such(small, monkeypatch):
    """Some steps find out that the budget is too small only when it is spent."""
    original = dp.tradeoff.__globals__["sample"]

    def sample(*args, epsilon, **keywords):
        if epsilon < limit:
            raise dp.PrivacyError("too little")
        return original(*args, epsilon=epsilon, **keywords)

    monkeypatch.setitem(dp.tradeoff.__globals__, "sample", sample)
    limit = 2
    found = small(real(1))
    assert np.isnan(numbers(found)[:, 0]).all()
    assert np.isfinite(numbers(found)[:, 1:]).all()
    found = replace(found, r_hat=np.array([[np.nan, np.nan], [1.0, 1.0]]))
    ax = dp.plot_tradeoff(found)
    assert [(t.get_text(), t.get_position()[0]) for t in ax.texts] == [("no result", 0)]
    assert len(ax.get_legend().get_texts()) == 2  # what is not there is not called unreliable
    limit = 100
    with pytest.raises(dp.PrivacyError, match="too little"):
        small(real(1))


def test_many_parameters_and_wild_runs():
    d = 14
    zero, ends = np.zeros((3, d)), np.array([[200.0], [3.0], [1.6]]) * np.ones((1, d))
    names = tuple(f"b[{i}]" for i in range(d))
    ax = dp.plot_tradeoff(dp.Tradeoff((1.0, 2.0), names, zero, -ends, ends, np.full((2, d), 1.2)))
    assert ax.get_yscale() == "symlog"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "R-hat above 1.05:\nnot reliable"
    ]
