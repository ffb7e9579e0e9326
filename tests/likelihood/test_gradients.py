"""Per-unit gradients: the same numbers whichever way, and the right ones."""

import numpy as np
import pymc as pm
import pytest

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.roles import find_roles

from .zoo import build, few_or, graph_of, likelihood_of

FAST = {"mode": "FAST_COMPILE"}
METHODS = ("forward", "reverse")


def parts(model, unit=None, chunk_size=17):
    roles = find_roles(model, unit)
    likelihood = likelihood_of(model, roles, chunk_size=chunk_size, compile_kwargs=FAST)
    theta = ParameterSpace(model).start + 0.1 * np.random.default_rng(3).normal(
        size=len(ParameterSpace(model).start)
    )
    return likelihood, theta


def gradients(model, likelihood, theta, method):
    unit_gradients = UnitGradients(
        graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST, method=method
    )
    return np.concatenate(list(unit_gradients(theta)))


def by_differences(likelihood, theta, step=1e-5):
    """Central differences of the per-unit log-likelihood, shape (units, d)."""
    moves = step * np.eye(len(theta))
    return np.stack(
        [(likelihood(theta + m) - likelihood(theta - m)) / (2 * step) for m in moves], axis=1
    )


@pytest.mark.parametrize("name", few_or(pytest.mark.nightly))
def test_every_way_gives_each_records_own_gradient(name):
    """One record at a time, in chunks, and by differences of the log-likelihood."""
    model = build(name)
    likelihood, theta = parts(model)
    found = {method: gradients(model, likelihood, theta, method) for method in METHODS}
    alone = likelihood_of(model, likelihood.roles, chunk_size=1, compile_kwargs=FAST)
    one_at_a_time = gradients(model, alone, theta, "forward")
    for values in found.values():
        np.testing.assert_allclose(values, one_at_a_time, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        one_at_a_time, by_differences(likelihood, theta), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        *(
            pytest.param(n, marks=pytest.mark.sweep)
            for n in ("varying_intercepts", "several", "ordered")
        ),
    ],
)
def test_gradients_add_up_to_the_models(name):
    model = build(name)
    likelihood, theta = parts(model)
    total = gradients(model, likelihood, theta, "reverse").sum(axis=0)
    log_likelihood = model.compile_dlogp(mode="FAST_COMPILE")
    from pymc.blocking import DictToArrayBijection, RaveledVars

    from pymc_dp.likelihood.prior import PublicLogDensity

    start = model.initial_point(0)
    info = DictToArrayBijection.map({v.name: start[v.name] for v in model.value_vars})
    point = DictToArrayBijection.rmap(RaveledVars(theta, info.point_map_info))
    prior = PublicLogDensity(ParameterSpace(model), FAST).gradient(theta)
    np.testing.assert_allclose(total + prior, log_likelihood(point), rtol=1e-10, atol=1e-10)


@pytest.mark.sweep
@pytest.mark.parametrize("chunk_size", [1, 7, 60])
@pytest.mark.parametrize("method", METHODS)
def test_units_with_several_records(chunk_size, method):
    """A unit's records are added before anything is clipped, and never cut by a chunk."""
    ids = np.random.default_rng(0).integers(0, 13, size=60)
    model = build("linear")
    likelihood, theta = parts(model, unit=ids, chunk_size=chunk_size)
    whole, _ = parts(model)
    per_record = gradients(model, whole, theta, "forward")
    expected = np.stack([per_record[ids == k].sum(axis=0) for k in dict.fromkeys(ids.tolist())])
    np.testing.assert_allclose(
        gradients(model, likelihood, theta, method), expected, rtol=1e-9, atol=1e-9
    )


def test_records_on_another_axis():
    rng = np.random.default_rng(1)
    with pm.Model(coords={"time": range(4), "patient": range(30)}) as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal(
            "y",
            mu,
            sigma,
            observed=pm.Data("Y", rng.normal(size=(4, 30)), dims=("time", "patient")),
            dims=("time", "patient"),
        )
    likelihood, theta = parts(model, unit="patient")
    expected = by_differences(likelihood, theta)
    assert expected.shape == (30, 2)
    for method in METHODS:
        np.testing.assert_allclose(
            gradients(model, likelihood, theta, method), expected, rtol=1e-5, atol=1e-6
        )


def test_a_way_that_cannot_be_derived_leaves_the_other(monkeypatch):
    from pymc_dp.likelihood import gradients as module

    def none(*args):
        raise NotImplementedError

    model = build("logistic")
    likelihood, theta = parts(model)
    first, second = module.ways_to_gradients(graph_of(model, likelihood.roles))
    expected = gradients(model, likelihood, theta, second)
    monkeypatch.setattr(module, f"_{first}", none)
    np.testing.assert_allclose(gradients(model, likelihood, theta, None), expected)
    monkeypatch.setattr(module, f"_{second}", none)
    with pytest.raises(UnsupportedModelError, match=r"\['y'\] has no gradient"):
        gradients(model, likelihood, theta, None)


@pytest.mark.parametrize("name", ["linear", "varying_intercepts", "student_t"])
@pytest.mark.parametrize("method", METHODS)
def test_a_record_that_overflows_keeps_to_itself(name, method):
    """Its gradient is whatever it is; the others' do not move by a bit."""
    model = build(name)
    likelihood, theta = parts(model)
    unit_gradients = UnitGradients(
        graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST, method=method
    )
    rows = likelihood.rows(slice(0, 9))
    before = unit_gradients.of_rows(theta, rows)
    spoiled = [x.copy() for x in rows]
    for x in spoiled:
        if x.dtype.kind == "f":
            x[4] = np.nan
    after = unit_gradients.of_rows(theta, spoiled)
    others = np.arange(9) != 4
    np.testing.assert_array_equal(after[others], before[others])
    assert not np.isfinite(after[4]).all()
