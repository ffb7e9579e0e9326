"""Results of disjoint people multiplied: the algebra, what it promises, and what it finds to differ."""

import functools
import json
import math

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import from_groups, groups_of, read_netcdf, root_attrs
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import from_json
from pymc_dp.report.wording import recognised
from pymc_dp.surrogate.normal.draws import draw_normal
from pymc_dp.surrogate.normal.law import Law
from pymc_dp.surrogate.normal.product import agreement, product

from .differential import RELEASES, contents

N, D, DELTA = 2000, 3, 1e-5
TRUTH = np.array([0.5, -0.3, 0.2])
SCALE = 0.05
"""Of the prior: so tight that it shows how often it is counted."""


NORMAL = (
    "pymc_dp.steps.normal.draw",
    lambda found, prior, n, chains, sampler: draw_normal(found.posterior, n, chains),
)


@functools.cache
def compiled(n=N, scale=2.0):
    """A linear regression with private covariates, compiled once; its data are replaced run by run.

    Called without arguments it is another one, of made-up records.
    """
    with pm.Model(coords={"x": list("abc")}) as model:
        beta = pm.Normal("beta", 0, scale, dims="x")
        pm.Deterministic("odds", pm.math.exp(beta), dims="x")
        X, Y = pm.Data("X", np.ones((n, D))), pm.Data("Y", np.zeros(n))
        pm.Normal("y", X @ beta, 1, observed=Y)
    return dp.compile(model, compile_kwargs={"mode": "FAST_COMPILE"})


def data_of(seed, n=N, beta=TRUTH):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, D - 1))])
    return X, X @ beta + rng.normal(size=n)


def sample(
    data, epsilon=2.0, scale=2.0, relation="substitute-one", ledger=None, delta=DELTA, **settings
):
    """With a ledger all noise is Gaussian; `ledger=False` is none."""
    model = compiled(len(data[0]), scale)
    for leaf in model.roles.record_data:
        leaf.values[...] = dict(zip("XY", data, strict=True))[leaf.name]
    if ledger is None:
        ledger = dp.PrivacyLedger(epsilon=epsilon, delta=delta, neighbours=relation)
    settings = {"step": dp.DPSurrogate, "family": "normal"} | settings
    return dp.sample(
        model, draws=20, chains=1, epsilon=epsilon, delta=delta, neighbours=relation, ledger=ledger or None, cores=1,
        progressbar=False, **settings,
    )  # fmt: skip


@pytest.fixture
def no_nuts(monkeypatch):
    """Draws of the law's normal approximation, which for these models is all there is; and no rehearsals."""
    monkeypatch.setattr("pymc_dp.sampling._rehearse", lambda step, for_host: None)
    monkeypatch.setattr(*NORMAL)


@pytest.fixture(autouse=True)
def interpreted(interpret):
    """As everything else here."""


def combine(results, model=None, **settings):
    settings = {"disjoint": True, "draws": 1000, "chains": 2} | settings
    if not isinstance(results, dict):
        results = {f"year {k}": one for k, one in enumerate(results)}
    return dp.combine(results, compiled() if model is None else model, **settings)


def law_of(result):
    return Law.from_json(root_attrs(result)["privacy_law"])[1]


def said(result):
    return json.loads(root_attrs(result)["privacy_diagnostics"])


def table(result):
    return json.loads(root_attrs(result)["privacy_combined"])


def beta_of(result):
    return groups_of(result)["posterior"]["beta"].values.reshape(-1, D)


def changed(result, **attrs):
    return from_groups(groups_of(result), {**root_attrs(result), **attrs}, like=result)


def moved(result, by):
    """The result, with a law that is elsewhere."""
    law = law_of(result)
    law = Law(law.centre + by, law.beta, law.J, law.S)
    return changed(result, privacy_law=law.to_json([f"beta[{x}]" for x in "abc"]))


@pytest.fixture
def years(no_nuts):
    return [sample(data_of(k)) for k in range(5)]


# -- the algebra ----------------------------------------------------------------------------------------


def test_draws_are_of_the_prior_once_and_the_product_of_laws(monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(*NORMAL)
        years = [sample(data_of(k, beta=TRUTH / 10), scale=SCALE) for k in range(3)]
    laws = [law_of(one) for one in years]
    K = sum(law.K for law in laws)
    precision = K + np.eye(D) / SCALE**2
    mean = np.linalg.solve(precision, sum(law.k + law.K @ law.centre for law in laws))
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    both = combine(years, compiled(scale=SCALE), draws=400)  # by NUTS
    drawn = beta_of(both)
    assert np.abs(drawn.mean(axis=0) - mean).max() < 0.2 * sd.min()
    np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=0.15)
    np.testing.assert_allclose(
        groups_of(both)["posterior"]["odds"].values.reshape(-1, D), np.exp(drawn)
    )
    # Its law is theirs, so that it can be combined again, and the order does not matter.
    np.testing.assert_allclose(law_of(both).K, K, rtol=1e-9)
    with monkeypatch.context() as m:
        m.setattr(*NORMAL)
        nested = {"x": combine(years[1:], compiled(scale=SCALE)), "y": years[0]}
        again = combine(nested, compiled(scale=SCALE))
    a, b = law_of(both), law_of(again)
    np.testing.assert_allclose(b.K, a.K, rtol=1e-9)
    np.testing.assert_allclose(b.k + b.K @ b.centre, a.k + a.K @ a.centre, rtol=1e-6)
    np.testing.assert_allclose(b.S, a.S, rtol=1e-6)


def test_next_to_no_noise_gives_the_posterior_of_all_records(no_nuts):
    data = [data_of(k) for k in range(5)]
    both = combine([sample(one, epsilon=1000.0) for one in data])
    X, y = (np.concatenate(x) for x in zip(*data, strict=True))
    precision = X.T @ X + np.eye(D) / 4
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    drawn = beta_of(both)
    assert np.all(np.abs(drawn.mean(axis=0) - np.linalg.solve(precision, X.T @ y)) < 0.25 * sd)
    np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=0.1)


def test_parameters_in_units_that_differ_by_millions_and_hyperparameters(no_nuts):
    """What no record reads, τ, has the prior's law."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", 0, tau, shape=2)
        x = pm.Data("income", 1e6 * rng.normal(size=(4000, 2)))
        pm.Normal("y", x @ (a / 1e6), 1, observed=pm.Data("Y", rng.normal(size=4000)))
    run = {
        "step": dp.DPSurrogate,
        "family": "normal",
        "epsilon": 2.0,
        "draws": 20,
        "chains": 1,
        "progressbar": False,
    }
    both = combine([dp.sample(model, **run) for _ in range(2)], model)
    law = law_of(both)
    assert not law.K[0].any()
    assert law.K[1, 1] > 100
    assert list(table(both)["parameters"]) == ["a[0]", "a[1]"]
    assert root_attrs(both)["privacy_usable"] == 1


# -- what five years cost, cover and find ---------------------------------------------------------------


def test_the_shift_of_five_years_beside_that_of_one_run_on_all(no_nuts):
    ratios = []
    for k in range(6):
        data = [data_of(100 * k + j) for j in range(5)]
        one = sample([np.concatenate(x) for x in zip(*data, strict=True)])
        both = combine([sample(x) for x in data], draws=20, chains=1)
        ratios.append(said(both)["privacy_shift"] / said(one)["privacy_shift"])
    assert np.median(ratios) <= 1.15 * math.sqrt(5)
    assert np.mean(ratios) <= 1.15 * math.sqrt(5)


def test_intervals_cover(no_nuts):
    inside, disagree = [], []
    for k in range(40):
        both = combine([sample(data_of(1000 + 10 * k + j), epsilon=3.0) for j in range(2)])
        low, high = np.quantile(beta_of(both), [0.05, 0.95], axis=0)
        inside.append((low < TRUTH) & (high > TRUTH))
        disagree.append(said(both)["disagreement"] < 0.01)
    assert 0.82 < np.mean(inside) < 0.97
    assert sum(disagree) <= 2


def test_a_year_that_is_three_sds_off_is_found(years, caplog):
    """Really off, in what its people do, and not in its law."""
    assert said(combine(years))["disagreement"] > 0.01
    assert said(combine(years))["disagreeing"] == "none"
    sds = [[x[1] for x in p["groups"].values()] for p in table(combine(years))["parameters"].values()]  # fmt: skip
    caplog.clear()
    off = [*years[:4], sample(data_of(50, beta=TRUTH + 3 * np.median(sds, axis=1)))]
    found = combine(off)
    assert said(found)["disagreement"] < 0.01
    assert "of 'year 4'" in said(found)["disagreeing"]
    assert "The results disagree" in caplog.text
    assert 'effects="random"' in caplog.text


def test_what_stands_out_is_named(years):
    together = combine(years)
    sd = table(together)["parameters"]["beta[b]"]["groups"]["year 2"][1]
    off = [moved(one, [0, 6 * sd, 0]) if k == 2 else one for k, one in enumerate(years)]
    found = combine(off)
    assert said(found)["disagreeing"].startswith("beta[b] of 'year 2' by +")
    assert table(found)["p_largest"] < 0.01
    # Far off it pulls all together along, and yet is the only one to be named; of two, both are.
    off[2] = moved(years[2], [0, 30 * sd, 0])
    assert said(combine(off))["disagreeing"].count(" of ") == 1
    assert said(combine(off[2:4]))["disagreeing"].count("beta[b] of ") == 2
    assert root_attrs(found)["privacy_usable"] == 1


def test_random_effects_stand_beside_the_fixed_ones(years):
    spread = np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
    off = [moved(one, [0, s, 0]) for one, s in zip(years, spread, strict=True)]
    fixed, random = combine(off), combine(off, effects="random")
    b = table(fixed)["parameters"]["beta[b]"]
    assert abs(b["between_sd"] - spread.std(ddof=1)) < 0.1
    assert b["random"][1] > 5 * b["fixed"][1]
    # The draws are of these, as the prior is wide.
    for found, of in ((fixed, "fixed"), (random, "random")):
        np.testing.assert_allclose(
            beta_of(found)[:, 1].std(), table(random)["parameters"]["beta[b]"][of][1], rtol=0.1
        )
    assert "privacy_law" not in root_attrs(random)
    alike = combine(years)
    assert table(alike)["p"] > 0.01


# -- the guarantee ----------------------------------------------------------------------------------------


def test_disjoint_groups_cost_what_the_dearest_does(no_nuts):
    ledgers = [dp.PrivacyLedger(epsilon=5.0, delta=DELTA) for _ in range(3)]
    epsilons = (2.0, 3.0, 2.5)
    pairs = zip(epsilons, ledgers, strict=True)
    years = [sample(data_of(k), e, ledger=ledger) for k, (e, ledger) in enumerate(pairs)]
    before = [ledger.spent() for ledger in ledgers]
    both = combine(years)
    attrs = root_attrs(both)
    assert [ledger.spent() for ledger in ledgers] == before
    assert (attrs["privacy_epsilon"], attrs["privacy_delta"], attrs["privacy_units"]) == (3.0, DELTA, 3 * N)  # fmt: skip
    assert attrs["privacy_events"] == root_attrs(years[1])["privacy_events"]
    assert "disjoint groups" in attrs["privacy_statement"]
    assert "replacing one record within its group" in attrs["privacy_statement"]
    assert attrs["privacy_accountant"].endswith("(releases of 'year 1')")
    report = dp.privacy_report(both, ledger=ledgers[0])
    assert report.account["spent"] == before[0]
    assert report.epsilon == 3.0
    assert not report.added
    with pytest.raises(dp.PrivacyConfigurationError, match="no such run"):
        dp.privacy_report(both, ledger=dp.PrivacyLedger(epsilon=1.0, delta=1e-5))


def test_groups_that_share_people_add_up(no_nuts):
    years = [sample(data_of(k), 1.0) for k in range(2)]
    one = dp.PrivacyLedger(epsilon=5.0, delta=DELTA)
    for k in range(2):
        sample(data_of(k), 1.0, ledger=one)
    both = combine(years, disjoint=False)
    assert root_attrs(both)["privacy_epsilon"] == pytest.approx(one.spent(), rel=1e-3)
    assert dp.privacy_report(both).epsilon < 2
    assert "so that costs add up" in root_attrs(both)["privacy_statement"]
    assert "privacy_units" not in root_attrs(both)  # how many there are in all is not known
    disjoint = combine(years)
    with pytest.raises(
        dp.PrivacyConfigurationError, match="'again' and 'nested' hold the same run"
    ):
        combine({"nested": disjoint, "again": years[0]})
    with pytest.raises(dp.PrivacyConfigurationError, match="'nested' is combined already"):
        combine({"nested": disjoint, "new": sample(data_of(3))}, disjoint=False)


def test_mechanisms_of_several_kinds(no_nuts):
    """Gaussian noise, the ℓ2 mechanism and pure ε: what is stated of all holds for each."""
    years = {
        "l2": sample(data_of(0), 2.5, ledger=False),
        "gaussian": sample(data_of(1), 3.0, delta=1e-6),
        "pure": sample(data_of(2), 3.5, delta=0.0),
    }
    kinds = [root_attrs(year)["privacy_events"] for year in years.values()]
    for kind, events in zip(("gaussian_or_l2", "gaussian", "pure"), kinds, strict=True):
        assert f'"{kind}"' in events
    reports = [dp.privacy_report(year) for year in years.values()]
    both = dp.privacy_report(combine(years))
    assert (both.epsilon, both.delta) == (3.5, DELTA)
    assert recognised(both) >= max(map(recognised, reports))
    gaussian = dp.privacy_report(combine([years["gaussian"], sample(data_of(3), 1.0)]))
    assert (gaussian.epsilon, gaussian.delta) == (3.0, DELTA)
    assert recognised(gaussian) == pytest.approx(recognised(reports[1]))
    added = dp.privacy_report(combine(years, disjoint=False))
    assert added.releases == tuple(e for text in kinds for e in from_json(text))
    assert added.epsilon == composed_epsilon(added.releases, DELTA) > 3.5
    pure = [sample(data_of(k), e, delta=0.0) for k, e in enumerate((1.0, 2.0))]
    assert root_attrs(combine(pure))["privacy_statement"].startswith("These draws are 2-diff")
    added = dp.privacy_report(combine(pure, disjoint=False))
    assert (added.epsilon, added.delta) == (3.0, 0.0)


def test_the_report_says_whose_releases_it_lists(years):
    report = dp.privacy_report(combine(years))
    page = report.to_html()
    assert "Everything that left the data" not in page
    assert "What left the data of one group" in page
    assert "Check each in the report of its own result" in page
    assert "Who is in which of the groups" in page
    assert "any other of its group" in page
    assert "who is in which is public" in report.to_registry()
    added = dp.privacy_report(combine(years, disjoint=False)).to_html()
    assert "Everything that left the data" in added
    assert "dp_accounting" in added


def test_a_deterministic_that_reads_records_stays_out(years):
    """Under the name of one that the runs have released."""
    with pm.Model(coords={"x": list("abc")}) as model:
        beta = pm.Normal("beta", 0, 2, dims="x")
        X, Y = pm.Data("X", data_of(0)[0]), pm.Data("Y", data_of(0)[1])
        pm.Deterministic("odds", beta + X.mean(axis=0), dims="x")
        pm.Normal("y", X @ beta, 1, observed=Y)
    assert set(groups_of(combine(years, model))["posterior"].data_vars) == {"beta"}


def test_add_or_remove(no_nuts):
    years = [sample(data_of(k), e, relation="add-or-remove") for k, e in enumerate((1.0, 2.0))]
    attrs = root_attrs(combine(years))
    assert "privacy_units" not in attrs
    assert attrs["privacy_epsilon"] == 2.0
    assert attrs["privacy_epsilon_substitute_one"] == root_attrs(years[1])["privacy_epsilon_substitute_one"]  # fmt: skip
    with pytest.raises(dp.PrivacyConfigurationError, match="`neighbours`"):
        combine([years[0], sample(data_of(3))])


def test_what_is_combined_is_a_result_like_others(years, tmp_path):
    both = combine(years)
    assert type(both) is type(years[0])
    assert set(groups_of(both)) == {"posterior", "sample_stats", "privacy"}
    np.testing.assert_equal(contents(dp.release(both)), contents(both), strict=True)
    both.to_netcdf(tmp_path / "both.nc", engine="h5netcdf")
    loaded = read_netcdf(tmp_path / "both.nc")
    assert root_attrs(loaded)["privacy_law"] == root_attrs(both)["privacy_law"]
    assert str(dp.privacy_report(loaded)) == str(dp.privacy_report(both))
    more = combine({"until now": loaded, "new": sample(data_of(9))})
    assert root_attrs(more)["privacy_units"] == 6 * N
    assert json.loads(dp.privacy_report(both).to_json())["diagnostics"]["combined"] == 5
    new = dp.predict(both, compiled(), {"X": np.ones((2, D))}, random_seed=0)
    assert groups_of(new)["predictions"]["y"].sizes["chain"] == 2


def test_nothing_is_released_and_no_record_read(years, monkeypatch):
    """With other people's records, or none that are numbers, in the model, the same comes to the last bit."""
    first = contents(combine(years))
    for release in RELEASES:
        for module in ("records.curator", "privacy.noisy_sum", "privacy.histogram"):
            monkeypatch.setattr(f"pymc_dp.{module}.{release}", None, raising=False)
    for leaf in compiled().roles.record_data:
        leaf.values[...] = np.nan
    np.testing.assert_equal(contents(combine(years)), first, strict=True)


# -- refusals ---------------------------------------------------------------------------------------------


def test_results_without_a_usable_law_are_refused_by_name(years):
    good = years[0]
    without = {k: v for k, v in root_attrs(good).items() if k != "privacy_law"}
    bare = from_groups(groups_of(good), without, like=good)
    curved = changed(bare, privacy_diagnostics='{"family": "polynomial"}')
    cases = {
        "polynomial": curved,
        "random": combine(years, effects="random"),
        "not usable": changed(good, privacy_usable=0),
        "has not been released": from_groups(groups_of(good), {}, like=good),
    }
    for match, bad in cases.items():
        with pytest.raises(dp.PrivacyError, match=f"'bad'.* {match}"):
            combine({"good": good, "bad": bad})


def test_a_group_that_tells_nothing_of_a_parameter():
    """As a site without a category: its law is flat there, and the others' word stands."""
    some, none = np.diag([4.0, 9.0]), np.diag([4.0, 0.0])
    laws = [Law(np.zeros(2), J @ [0.5, m], J, J / 2) for J, m in ((some, 1.0), (none, 7.0))]
    law, seen = product(laws), agreement(laws)
    np.testing.assert_allclose(law.K, laws[0].K + laws[1].K, rtol=1e-6)
    np.testing.assert_allclose(seen.fixed[0], [0.5, 1.0], rtol=1e-6)
    assert not seen.between.any()
    assert seen.p_worst > 0.5
    # Nothing but the mean over groups is less sure, where they may differ.
    apart = product(laws, np.array([1.0, 0.0]))
    np.testing.assert_allclose(apart.K[1, 1], law.K[1, 1], rtol=1e-6)
    np.testing.assert_allclose(
        apart.K[0, 0], sum(1 / (1 + 1 / one.K[0, 0]) for one in laws), rtol=1e-6
    )


def test_other_steps_and_families_leave_no_law(no_nuts, few_moves):
    penalty = dp.sample(
        compiled(), draws=5, chains=1, epsilon=1.0, step=dp.DPPenalty, cores=1, progressbar=False
    )
    with pytest.raises(dp.PrivacyError, match=r"DPPenalty.*another budget"):
        combine({"a": sample(data_of(0)), "b": penalty})
    curved = sample(data_of(0), family="polynomial")
    with pytest.raises(dp.PrivacyError, match="polynomial"):
        combine({"a": sample(data_of(0)), "b": curved})


def test_settings_that_do_not_fit_are_refused(years):
    a, b = years[:2]
    with pytest.raises(TypeError, match="disjoint"):
        dp.combine({"a": a, "b": b}, compiled())
    for settings in ({"disjoint": 1}, {"effects": "mixed"}, {"draws": 0}, {"nuts_sampler": "no"}):
        with pytest.raises(dp.PrivacyConfigurationError):
            combine([a, b], **settings)
    for results in ({"a": a}, a, {}):
        with pytest.raises(dp.PrivacyConfigurationError, match="two results or more"):
            dp.combine(results, compiled(), disjoint=True)
    with pytest.raises(dp.PrivacyConfigurationError, match="'b' and 'a' hold the same run"):  # fmt: skip
        combine({"a": a, "b": a})
    with pytest.raises(dp.PrivacyConfigurationError, match="tempering"):
        combine([a, sample(data_of(3), tempering=0.5)])
    with pm.Model(coords={"x": list("abd")}) as other:
        beta = pm.Normal("beta", 0, 1, dims="x")
        pm.Normal("y", pm.Data("X", np.ones((9, D))) @ beta, 1, observed=pm.Data("Y", np.ones(9)))
    with pytest.raises(dp.PrivacyError, match=r"beta\[c\]; the model has .*beta\[d\]"):
        combine([a, b], other)


def test_runs_without_a_guarantee_are_combined_to_one_without(no_nuts):
    years = [sample(data_of(0))]
    run = {"draws": 20, "chains": 1, "epsilon": 4.0, "step": dp.DPSurrogate, "family": "normal"}
    insecure = {"noise_source": dp.InsecureSeededNoise(1), "progressbar": False}
    years += [dp.sample(compiled(N, 2.0), **run, **insecure)]  # of the same data
    both = combine(years)
    assert root_attrs(both)["privacy_valid"] == 0
    assert math.isinf(root_attrs(both)["privacy_epsilon"])
    assert root_attrs(both)["privacy_statement"].startswith("NOT PRIVATE")
    again = root_attrs(combine({"both": both, "valid": sample(data_of(2))}))
    assert (again["privacy_valid"], again["privacy_statement"][:3]) == (0, "NOT")
    apart = root_attrs(combine(years, disjoint=False))
    assert (apart["privacy_valid"], apart["privacy_epsilon"]) == (0, math.inf)
