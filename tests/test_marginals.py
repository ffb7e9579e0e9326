"""Marginals: what they cost, what a model makes of them, and what is made up from them."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import expit

import pymc_dp as dp
from pymc_dp.compat import groups_of

COLUMNS = {
    "smokes": ["no", "yes"],
    "region": ["north", "south", "west"],
    "age": pd.IntervalIndex.from_breaks([0, 30, 60, 90]),
}
CHEAP = {"epsilon": 2.0, "delta": 1e-6}
FAST = {"mode": "FAST_COMPILE"}


def people(n, seed=0):
    """Smoking depends on age, and age on the region."""
    rng = np.random.default_rng(seed)
    region = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    age = np.clip(rng.normal(40 + 8 * region, 15), 0, 90)
    smokes = rng.random(n) < expit(1 - age / 30)
    return {
        "smokes": np.where(smokes, "yes", "no"),
        "region": np.array(COLUMNS["region"])[region],
        "age": age,
    }


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(
        "pymc_dp.mechanisms.marginals.with_noise", lambda total, family, scale: total
    )


def flat(released):
    return np.concatenate([x.ravel() for x in released.counts])


# -- the release ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tables", [None, [("smokes", "region"), ("region", "age")], [tuple(COLUMNS)]])  # fmt: skip
def test_a_row_moves_the_counts_by_no_more_than_the_noise_is_for(without_noise, tables):
    values = {"smokes": ["no", "yes"], "region": COLUMNS["region"], "age": [10, 45, 80]}
    rows = list(product(*values.values()))
    counts = []
    for row in rows:
        frame = {name: [x, "other"] for name, x in zip(values, row, strict=True)}
        counts.append(flat(dp.release_marginals(frame, COLUMNS, tables=tables, **CHEAP)))
    farthest = max(np.linalg.norm(a - b) for a in counts for b in counts)
    k = len(tables or [0, 0, 0])
    assert farthest == pytest.approx(math.sqrt(2 * k))
    released = dp.release_marginals(frame, COLUMNS, tables=tables, **CHEAP)
    needed = farthest * dp.calibrate_noise(**CHEAP, releases=1)
    assert needed <= released.scale < needed * 1.01  # the noise is discrete


def test_the_account_has_what_was_asked_for():
    ledger = dp.PrivacyLedger(epsilon=3.0, delta=1e-6)
    dp.release_marginals(people(50), COLUMNS, ledger=ledger, **CHEAP)
    assert ledger.spent() == pytest.approx(2.0, abs=1e-4)
    assert ledger.spent() <= 2.0


def test_data_are_not_read_when_the_ledger_refuses():
    class Unread(list):
        def __iter__(self):
            raise AssertionError("read")

    frame = {name: Unread(x) for name, x in people(50).items()}
    ledger = dp.PrivacyLedger(epsilon=0.5, delta=1e-6)
    with pytest.raises(dp.PrivacyBudgetExceeded):
        dp.release_marginals(frame, COLUMNS, ledger=ledger, **CHEAP)


@pytest.mark.parametrize("closed", ["left", "right"])
def test_numbers_are_sorted_into_intervals_as_pandas_does_it(without_noise, closed):
    breaks = [0, 30, 60, 90]
    ages = np.append(np.random.default_rng(1).uniform(0.1, 89.9, 500), [30, 60, 30])
    columns = {**COLUMNS, "age": pd.IntervalIndex.from_breaks(breaks, closed=closed)}
    frame = {**people(len(ages)), "age": ages}
    released = dp.release_marginals(frame, columns, **CHEAP)
    cut = pd.cut(ages, breaks, right=closed == "right").codes
    expected = pd.crosstab(frame["region"], cut)
    assert released.table("region", "age").to_numpy().tolist() == expected.to_numpy().tolist()
    assert released.table("age", "region").to_numpy().tolist() == expected.T.to_numpy().tolist()


def test_values_that_are_none_of_the_levels_count_somewhere(without_noise):
    frame = {
        "smokes": [None, np.nan, ["a", "list"], "perhaps"],
        "region": ["west"] * 4,
        "age": [-5, 1000, None, "forty"],
    }
    released = dp.release_marginals(frame, COLUMNS, **CHEAP)
    assert released.table("smokes", "region").loc["no", "west"] == 4
    assert released.table("region", "age").loc["west"].tolist() == [3, 0, 1]


def test_noise_has_the_scale_that_is_told():
    released = dp.release_marginals(people(100), COLUMNS, epsilon=0.01, delta=1e-6)
    z = (flat(released) - 100 / 6) / released.scale
    assert stats.kstest(z, "norm").pvalue > 1e-5


def test_a_release_survives_being_written_down():
    released = dp.release_marginals(people(100), COLUMNS, **CHEAP)
    again = dp.ReleasedMarginals.from_json(released.to_json())
    assert again.to_json() == released.to_json()
    assert again.cells().equals(released.cells())
    assert "(2, 1e-06)-differentially private" in again.statement
    with pytest.raises(dp.PrivacyConfigurationError, match="not a release of marginals"):
        dp.ReleasedMarginals.from_json("{}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"columns": {**COLUMNS, "height": [1, 2]}}, "no column 'height'"),
        ({"columns": {"smokes": ["yes"], "region": ["north", "south"]}}, "categories of 'smokes'"),
        ({"columns": {"smokes": ["yes", "yes"], "region": ["a", "b"]}}, "categories of 'smokes'"),
        ({"columns": {**COLUMNS, "age": pd.IntervalIndex.from_tuples([(0, 1), (2, 3)])}}, "intervals of 'age'"),
        ({"columns": {**COLUMNS, "age": range(50_000)}}, "combinations"),
        ({"tables": [("smokes", "region")]}, "No table has 'age'"),
        ({"tables": [("smokes", "height")]}, "A table is of"),
        ({"tables": [tuple(COLUMNS), ("age", "smokes", "region")]}, "asked for twice"),
        ({"frame": {**people(5), "age": [1.0]}}, "one value for each person"),
        ({"frame": pd.DataFrame(people(5)).iloc[:, [0, 1, 2, 2]]}, "one value for each person"),
        ({"columns": {"smokes": [0, 1]}}, "two columns or more"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)  # fmt: skip
def test_a_release_that_cannot_be_is_refused_before_it_is_paid(changed, message):
    ledger = dp.PrivacyLedger(epsilon=3.0, delta=1e-6)
    given = {"frame": people(5), "columns": COLUMNS, **CHEAP, **changed}
    with pytest.raises(dp.PrivacyConfigurationError, match=message):
        dp.release_marginals(**given, ledger=ledger)
    assert ledger.spent() == 0


def test_some_columns_have_the_tables_of_these_alone():
    released = dp.release_marginals(people(100), COLUMNS, **CHEAP)
    part = released.only("age", "smokes")
    assert list(part.columns) == ["smokes", "age"]
    assert part.tables == [("smokes", "age")]
    assert part.table("smokes", "age").equals(released.table("smokes", "age"))
    with pytest.raises(dp.PrivacyConfigurationError, match="no column 'height'"):
        released.only("age", "height")


# -- models of it -----------------------------------------------------------------------------------


def indicators(cells, tables):
    """The matrix that sums cells to tables, from the cells' rows."""
    rows = []
    for table in tables:
        levels = [list(dict.fromkeys(cells[name])) for name in table]
        for combination in product(*levels):
            rows.append(np.all([cells[name] == x for name, x in zip(table, combination, strict=True)], axis=0))  # fmt: skip
    return np.array(rows, float)


@pytest.mark.parametrize("tables", [None, [("region", "age"), ("smokes", "age")]])
def test_the_likelihood_is_that_of_the_normal_sum(tables):
    """With the covariance at the law that the tables are of, if there is nearly no noise."""
    released = dp.release_marginals(people(20_000), COLUMNS, tables=tables, epsilon=50.0, delta=1e-6)  # fmt: skip
    cells = released.cells()
    A, s = indicators(cells, released.tables), flat(released)
    with pm.Model() as model:
        f = pm.Normal("f", shape=len(cells))
        dp.NoisyMarginals("tables", f, observed=released)
    logp = model.compile_logp(vars=[model["tables"]], **FAST)

    def independently(f, p):
        p_f = np.exp(f) / np.exp(f).sum()
        S = 20_000 * A @ (np.diag(p) - np.outer(p, p)) @ A.T + released.scale**2 * np.eye(len(A))
        return stats.multivariate_normal.logpdf(s, 20_000 * A @ p_f, S)

    frame = people(20_000)
    ages = np.array([15.0, 45.0, 75.0])[pd.cut(frame["age"], [-1, 30, 60, 91]).codes]
    seen = pd.DataFrame({**frame, "age": ages}).value_counts(normalize=True)
    p = np.array([seen.get(tuple(row), 0.0) for row in cells.itertuples(index=False)])
    first, second = np.log(p + 1e-4), np.log(p + 1e-4) + 0.02 * np.arange(len(p))
    ours = logp({"f": first}) - logp({"f": second})
    assert ours == pytest.approx(independently(first, p) - independently(second, p), rel=0.03)


@pytest.mark.chain
def test_a_model_by_nuts_has_the_coefficients_of_the_people():
    frame = people(100_000)
    released = dp.release_marginals(frame, COLUMNS, epsilon=20.0, delta=1e-6)
    part = released.only("smokes", "age")
    cells = part.cells()
    with pm.Model():
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        smokes = pm.Bernoulli.dist(logit_p=a + b * (cells["age"].to_numpy() - 45) / 30)
        logp = pm.logp(smokes, (cells["smokes"] == "yes").to_numpy().astype(int))
        dp.NoisyMarginals("tables", logp + dp.log_linear("ages", part, ["age"]), observed=part)
        idata = pm.sample(300, tune=300, chains=2, cores=1, random_seed=1, progressbar=False)
    draws = [groups_of(idata)["posterior"][name].values.ravel() for name in "ab"]
    # Maximum likelihood of the three ages' shares.
    counts = pd.crosstab(pd.cut(frame["age"], [-1, 30, 60, 91]), frame["smokes"])
    n, x, beta = counts.sum(axis=1).to_numpy(), np.array([-1.0, 0.0, 1.0]), np.zeros(2)
    X = np.column_stack([np.ones(3), x])
    for _ in range(20):
        p = expit(X @ beta)
        H = X.T @ (X * (n * p * (1 - p))[:, None])
        beta += np.linalg.solve(H, X.T @ (counts["yes"].to_numpy() - n * p))
    for values, exact, sd in zip(draws, beta, np.sqrt(np.diag(np.linalg.inv(H))), strict=True):
        assert abs(values.mean() - exact) < 0.5 * sd  # the tables' noise, and 200 effective draws
        assert 0.8 < values.std() / sd < 1.3


@pytest.mark.chain
def test_a_law_of_all_cells_is_the_posterior_of_their_shares():
    """Of one table of two columns the law is saturated: beside importance sampling of its four cells."""
    counts = np.array([[5200, 900], [300, 40]])
    released = dp.ReleasedMarginals(
        {"a": [0, 1], "b": [0, 1]}, [("a", "b")], [counts], 30.0, 1.0, 1e-6, 6440
    )
    tables = dp.synthetic_tables(released, 500, random_seed=1, progressbar=False, draws=1000)
    assert [len(tables), len(tables[0])] == [500, 4]
    shares = np.array([table["weight"] for table in tables]) / 6440
    assert shares.sum(axis=1) == pytest.approx(np.ones(500))
    # Flat in the simplex where the counts say much; the smallest one is about the noise.
    rng = np.random.default_rng(1)
    p = rng.dirichlet(counts.ravel() / 4 + 1, size=200_000)
    variance = 6440 * p * (1 - p) + 30.0**2
    w = -0.5 * ((6440 * p - counts.ravel()) ** 2 / variance).sum(axis=1)
    w -= stats.dirichlet(counts.ravel() / 4 + 1).logpdf(p.T)
    w = np.exp(w - w.max())
    exact = w @ p / w.sum()
    sd = np.sqrt(w @ (p - exact) ** 2 / w.sum())
    # Covariances between cells and the prior, which are left out here, are worth a part of an sd.
    assert np.abs((shares.mean(axis=0) - exact) / sd)[:3].max() < 0.4
    assert np.abs(shares.std(axis=0) / sd - 1)[:3].max() < 0.25


@pytest.mark.chain
def test_an_interaction_needs_the_table_of_three():
    rng = np.random.default_rng(2)
    x, z = rng.integers(0, 2, (2, 200_000))
    y = rng.random(200_000) < expit(-1 + 2.0 * x * z)
    columns = {name: [0, 1] for name in "xzy"}

    def interaction(tables):
        released = dp.release_marginals(
            {"x": x, "z": z, "y": y.astype(int)}, columns, tables=tables, epsilon=5.0, delta=1e-6
        )
        w = dp.synthetic_tables(released, 20, random_seed=1, progressbar=False)
        p = np.array([table["weight"].to_numpy().reshape(2, 2, 2) for table in w])
        logit = np.log(p[..., 1] / p[..., 0])
        return logit[:, 1, 1] - logit[:, 1, 0] - logit[:, 0, 1] + logit[:, 0, 0]

    assert interaction([tuple("xzy")]).mean() == pytest.approx(2.0, abs=0.12)
    assert np.abs(interaction(None)).max() < 1e-6


def test_pooled_estimates_are_students_interval_of_the_tables():
    q = np.random.default_rng(1).normal([1.0, -2.0], [0.1, 0.5], size=(20, 2))
    table = dp.pool(pd.DataFrame(q, columns=["a", "b"]), level=0.95)
    for name, column in zip("ab", q.T, strict=True):
        # The next draw of the law is where a normal sample's next value is.
        low, high = stats.t(19, column.mean(), column.std(ddof=1) * math.sqrt(21 / 20)).interval(0.95)  # fmt: skip
        assert table.loc[name, ["low", "high"]].tolist() == pytest.approx([low, high])
    assert len(dp.pool(q[:, 0])) == 1
    for wrong in (q[:1], np.array([[1.0], [np.nan]])):
        with pytest.raises(dp.PrivacyConfigurationError, match="`estimates` must be finite"):
            dp.pool(wrong)


def test_what_no_model_can_be_of_is_refused():
    released = dp.release_marginals(people(100), COLUMNS, **CHEAP)
    with pm.Model():
        with pytest.raises(dp.PrivacyConfigurationError, match="18 rows"):
            dp.NoisyMarginals("tables", pt.zeros(17), observed=released)
        with pytest.raises(dp.PrivacyConfigurationError, match="what `release_marginals` returns"):
            dp.NoisyMarginals("tables", pt.zeros(18), observed=released.counts)
        with pytest.raises(dp.PrivacyConfigurationError, match="`columns` must be some of"):
            dp.log_linear("law", released, ["height"])
