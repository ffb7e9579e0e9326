"""Predictions for public rows: their law, their shape, and that nothing private is in them."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.compat import from_groups, groups_of, read_netcdf, root_attrs

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
SENTINEL = 271828.182845904509
RUN = {"step": dp.DPPenalty, "chains": 2, "epsilon": 1.0, "cores": 1, "progressbar": False, **FAST}
N = 90


def records(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, 2)), rng.integers(3, size=N), rng.normal(size=N)


def grouped(x, g, y):
    coords = {"patient": [f"Ms {i}" for i in range(N)], "feature": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        level = pm.Normal("level", 0, 1, shape=3)
        X = pm.Data("X", x, dims=("patient", "feature"))
        mean = X @ beta + level[pm.Data("G", g, dims="patient")]
        pm.Normal("y", mean, 0.1, observed=pm.Data("Y", y), dims="patient")
    return model


@pytest.fixture(scope="module")
def released():
    model = grouped(*records())
    return model, dp.sample(40, model=model, **RUN)


def test_outcomes_have_the_law_of_the_model_at_each_draw(released):
    model, idata = released
    x, g = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 0.0]]), [2, 0, 1]
    found = dp.predict(idata, model, {"X": x, "G": g}, random_seed=4)
    y = found.predictions["y"]
    assert y.dims == ("chain", "draw", "patient")
    posterior = idata.posterior
    mean = posterior["beta"].values @ x.T + posterior["level"].values[..., g]
    assert stats.kstest(((y.values - mean) / 0.1).ravel(), "norm").pvalue > 1e-3
    again = dp.predict(idata, model, {"X": x, "G": g}, random_seed=4)
    np.testing.assert_array_equal(again.predictions["y"], y)
    constants = found.predictions_constant_data
    assert constants["X"].dims == ("patient", "feature")
    assert constants["feature"].values.tolist() == ["a", "b"]
    assert constants["patient"].values.tolist() == [0, 1, 2]


def test_it_has_the_guarantee_of_the_draws_and_nothing_private(released, tmp_path):
    """Other records, the same draws and rows: the same predictions, to the last bit."""
    model, idata = released
    x, g, y = records(1)
    x[5], y[7] = SENTINEL, SENTINEL
    other = grouped(x, g, y)
    rows = {"X": np.ones((4, 2)), "G": [0, 1, 2, 0], "Y": "outcomes are ignored"}
    predicted = [dp.predict(idata, m, rows, random_seed=1) for m in (model, other)]
    first, second = map(groups_of, predicted)
    assert first.keys() == second.keys() == {"predictions", "predictions_constant_data"}
    for name in first:
        assert first[name].identical(second[name])
    attrs = root_attrs(predicted[0])
    assert attrs["privacy_epsilon"] == 1.0
    assert attrs["privacy_statement"] == idata.attrs["privacy_statement"]
    predicted[0].to_netcdf(tmp_path / "p.nc", engine="h5netcdf")
    assert groups_of(read_netcdf(tmp_path / "p.nc"))["predictions"].equals(first["predictions"])
    assert b"Ms 3" not in (tmp_path / "p.nc").read_bytes()


def test_as_many_rows_as_people_do_not_get_their_names(released):
    model, idata = released
    found = dp.predict(idata, model, {"X": np.ones((N, 2)), "G": np.zeros(N, int)})
    for group in groups_of(found).values():
        assert group["patient"].values.tolist() == list(range(N))


def test_rows_of_public_data_are_asked_for_too():
    with pm.Model(coords={"person": range(N)}) as model:
        offset = pm.Data("offset", np.linspace(0, 1, N), dims="person")
        pm.Normal("y", pm.Normal("mu") + offset, 1, observed=np.zeros(N), dims="person")
        idata = dp.sample(5, public=["offset"], **RUN)
    with pytest.raises(dp.PrivacyConfigurationError, match="`new_data` needs 'offset'"):
        dp.predict(idata, model, 3, public=["offset"])
    rows = dp.predict(idata, model, {"offset": [1.0, 2.0]}, public=["offset"])
    assert rows.predictions["y"].shape[-1] == 2


def test_rows_of_a_data_frame_keep_their_labels():
    import pandas as pd

    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        age = pm.Data("age", np.linspace(0, 1, N))
        pm.Poisson("visits", pm.math.exp(slope * age), observed=np.ones(N, dtype=int))
        idata = dp.sample(10, **RUN)
    people = pd.DataFrame({"age": [0.2, 0.9], "other": ["x", "y"]}, index=["young", "old"])
    visits = dp.predict(idata, model, people).predictions["visits"]
    assert visits.dims[-1] == "row"
    assert visits["row"].values.tolist() == ["young", "old"]
    assert visits.dtype.kind == "i"


@pytest.mark.sweep
@pytest.mark.parametrize("rows", [1, 4])
def test_outcomes_are_not_asked_for(rows, quiet):
    """Without named dimensions the outcomes' shape is that of the observed values, of any axes."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, 2)), rng.normal(size=(N, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        level = pm.Normal("level", 0, 1, shape=3)
        pm.Normal("y", (pm.Data("X", x) @ beta)[:, None] + level, 0.1, observed=pm.Data("Y", y))
        pm.Poisson("z", pm.math.exp(beta[0]), observed=pm.Data("Z", np.ones(N, int)))
        idata = dp.sample(2, chains=1, epsilon=50.0, step=dp.DPPenalty, **quiet)
    new = dp.predict(idata, model, {"X": np.ones((rows, 2))}, random_seed=0)["predictions"]
    draws = idata["posterior"]
    mean = draws["beta"].sum("beta_dim_0").values[..., None] + draws["level"].values
    assert new["y"].shape == (1, 2, rows, 3)
    assert new["z"].shape == (1, 2, rows)
    np.testing.assert_allclose(new["y"], mean[:, :, None, :] + np.zeros((rows, 1)), atol=0.6)


def test_without_covariates_it_takes_a_number_of_rows():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=np.zeros(N))
        idata = dp.sample(10, **RUN)
    assert dp.predict(idata, model, 7).predictions["y"].shape == (2, 10, 7)
    for wrong in ({}, 0, True, 2.5):
        with pytest.raises(dp.PrivacyConfigurationError, match="number of rows"):
            dp.predict(idata, model, wrong)


def test_a_row_axis_that_is_not_the_first():
    rng = np.random.default_rng(0)
    with pm.Model(coords={"time": range(4), "person": range(N)}) as model:
        mu = pm.Normal("mu", 0, 1, dims="time")
        x = pm.Data("x", rng.normal(size=(4, N)), dims=("time", "person"))
        pm.Normal(
            "y", mu[:, None] * x, 1, observed=rng.normal(size=(4, N)), dims=("time", "person")
        )
        idata = dp.sample(10, unit="person", **RUN)
    found = dp.predict(idata, model, {"x": np.ones((4, 6))}, unit="person").predictions["y"]
    assert found.dims == ("chain", "draw", "time", "person")
    assert found.shape == (2, 10, 4, 6)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"X": np.ones((2, 2))}, r"needs 'G', an array of int\d+ of shape \(rows\)"),
        ({"X": np.ones((2, 3)), "G": [0, 1]}, r"'X'.*\(rows, 2\).*Found float64 of shape \(2, 3\)"),
        ({"X": np.ones(2), "G": [0, 1]}, "'X'"),
        ({"X": np.ones((2, 2)), "G": [0.5, 1]}, "'G'.*Found float64"),
        ({"X": np.ones((2, 2)), "G": [0]}, "different numbers of rows"),
        (5, "needs"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, said, released):
    model, idata = released
    with pytest.raises(dp.PrivacyConfigurationError, match=said):
        dp.predict(idata, model, rows)


def test_only_released_draws_of_the_model_are_taken(released):
    model, idata = released
    groups, rows = groups_of(idata), {"X": np.ones((2, 2)), "G": [0, 1]}
    with pytest.raises(dp.PrivacyError, match="have not been released"):
        dp.predict(from_groups(groups, {}, like=idata), model, rows)
    less = {**groups, "posterior": groups["posterior"].drop_vars("level")}
    with pytest.raises(dp.PrivacyConfigurationError, match=r"no draws of \['level'\]"):
        dp.predict(from_groups(less, root_attrs(idata), like=idata), model, rows)


def test_rows_without_a_name_are_asked_for():
    x, _, y = records()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", pm.math.dot(x, beta), 1, observed=y)
        idata = dp.sample(10, **RUN)
    with pytest.raises(dp.UnsupportedModelError, match=r"Make it a `pm.Data`"):
        dp.predict(idata, model, {"x": x[:3]})


@pytest.mark.parametrize("index", [99, 3, -4])
def test_an_index_of_no_group_is_refused(released, index):
    """Compiled code would read what lies beside the array."""
    model, idata = released
    rows = {"X": [[1.0, 2.0], [0.0, 0.0]], "G": [0, index]}
    with pytest.raises(dp.PrivacyConfigurationError, match=f"index {index}, where the model has 3"):
        dp.predict(idata, model, rows)
    assert dp.predict(idata, model, {**rows, "G": [-3, 2]})
