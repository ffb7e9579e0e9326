"""The compiled record likelihood against PyMC's own, and what it must never let out."""

import warnings
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.raise_op import Assert, CheckAndRaise

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.parameters import ParameterSpace

from .zoo import (
    FAST,
    NEEDS_DATA,
    N,
    build,
    checked,
    compiled,
    few_or,
    graph_of,
    own_terms,
    some_points,
    zoo_likelihood,
)

rng = np.random.default_rng(11)


# -- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few_or(pytest.mark.sweep))
def test_terms_are_the_models_own(name):
    model, likelihood = zoo_likelihood(name)
    terms = own_terms(model)
    for point, theta in some_points(model):
        assert_allclose(likelihood(theta), terms(point), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", few_or(pytest.mark.nightly, "mixture"))
def test_baked_in_arrays_give_the_same_terms_or_ask_for_data(name):
    try:
        model, likelihood = zoo_likelihood(name, shared=False)
    except UnsupportedModelError as error:
        assert name in NEEDS_DATA
        assert "make them `pm.Data`" in str(error)  # noqa: PT017
        return
    terms = own_terms(model)
    for point, theta in some_points(model):
        assert_allclose(likelihood(theta), terms(point), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", few_or(pytest.mark.nightly))
def test_terms_do_not_depend_on_the_chunk_size(name):
    model, likelihood = zoo_likelihood(name)
    default = likelihood.chunk_size
    for _, theta in some_points(model, 2):
        expected = likelihood(theta)
        for likelihood.chunk_size in (1, 7, N):
            assert_allclose(likelihood(theta), expected, rtol=1e-10)
        likelihood.chunk_size = default


@pytest.mark.parametrize("name", ["linear", "ordered", "varying_intercepts", "named_dims"])
def test_the_lines_own_compile_mode(name):
    model = build(name)
    likelihood = checked(model, compile_kwargs=None, chunk_size=25)
    terms = own_terms(model)
    for point, theta in some_points(model):
        assert_allclose(likelihood(theta), terms(point), rtol=1e-10, atol=1e-10)


def test_baked_in_arrays_in_the_lines_own_compile_mode():
    model = build("linear", shared=False)
    likelihood = checked(model, compile_kwargs=None)
    for point, theta in some_points(model, 2):
        assert_allclose(likelihood(theta), own_terms(model)(point), rtol=1e-10)


def two_by_time(times, people, by_name):
    """Records on axis 1."""
    dims = ("time", "patient") if by_name else None
    with pm.Model(
        coords={"time": range(times), "patient": range(people)} if by_name else None
    ) as m:
        x = pm.Data("x", rng.normal(size=(times, people)), dims=dims)
        level = pm.Normal("level", 0.0, 1.0, shape=times)
        slope = pm.Normal("slope", 0.0, 1.0)
        y = pm.Data("Y", rng.normal(size=(times, people)), dims=dims)
        pm.Normal("y", level[:, None] + slope * x, 1.0, observed=y, dims=dims)
    return m


@pytest.mark.parametrize("by_name", [True, False])
def test_records_on_another_axis(by_name):
    model = two_by_time(4, 50, by_name)
    likelihood = checked(model, unit="patient" if by_name else 1, chunk_size=7)
    assert likelihood.n_units == 50
    terms = own_terms(model, axis=1)
    for point, theta in some_points(model):
        assert_allclose(likelihood(theta), terms(point), rtol=1e-10)


@pytest.mark.parametrize("dims", [("time", "patient"), ("patient", "time")])
def test_records_on_another_axis_by_named_dimensions(dims):
    import pymc.dims as pmd

    sizes = {"time": 4, "patient": 50}
    with pm.Model(coords={d: range(k) for d, k in sizes.items()}) as model:
        level = pmd.Normal("level", 0.0, 1.0, dims="time")
        slope = pmd.Normal("slope", 0.0, 1.0)
        x = pmd.Data("x", rng.normal(size=50), dims=("patient",))
        values = rng.normal(size=[sizes[d] for d in dims])
        y = pmd.Data("Y", values, dims=dims)
        pmd.Normal("y", level + slope * x, 1.0, observed=y, dims=dims)
    likelihood = checked(model, unit="patient", chunk_size=7)
    terms = own_terms(model, axis=dims.index("patient"))
    for point, theta in some_points(model):
        assert_allclose(likelihood(theta), terms(point), rtol=1e-10)


@pytest.mark.parametrize("kind", ["numbers", "text", "object"])
def test_units_are_sums_of_their_records(kind):
    model = build("linear")
    codes = rng.integers(17, size=N)
    codes[:17] = np.arange(17)
    ids = {
        "numbers": 100 - codes,
        "text": np.array([f"person {c:02}" for c in codes]),
        "object": np.array([f"person {c:02}" for c in codes], dtype=object),
    }[kind]
    likelihood = checked(model, unit=ids, chunk_size=13)
    _, (_, theta) = some_points(model, 2)
    records = compiled(model)(theta)
    expected = [records[ids == one].sum() for one in dict.fromkeys(ids.tolist())]
    assert likelihood.n_units == 17
    assert_allclose(likelihood(theta), expected, rtol=1e-12)


# -- memory -----------------------------------------------------------------------------------------


def test_a_slice_of_records_copies_nothing():
    likelihood = zoo_likelihood("linear")[1]
    for part, leaf in zip(likelihood.rows(slice(5, 9)), likelihood.roles.record_data, strict=True):
        assert np.shares_memory(part, leaf.values)
        assert_array_equal(part, leaf.values[5:9])


def test_a_slice_of_records_on_another_axis_is_laid_out_like_any_other():
    likelihood = compiled(two_by_time(4, 50, True), unit="patient")
    for part, leaf in zip(likelihood.rows(slice(5, 9)), likelihood.roles.record_data, strict=True):
        assert part.flags.c_contiguous
        np.testing.assert_array_equal(part, leaf.values[:, 5:9])


def test_the_data_are_held_once():
    likelihood = zoo_likelihood("linear")[1]
    shared = {v.name: v.get_value(borrow=True) for v in zoo_likelihood("linear")[0].data_vars}
    for leaf in likelihood.roles.record_data:
        assert np.shares_memory(leaf.values, shared[leaf.name])


def test_large_data_are_chunked_by_default():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=pm.Data("Y", np.zeros(200_000)))
    likelihood = compiled(model)
    assert 512 <= likelihood.chunk_size <= 65_536
    assert likelihood(np.zeros(1)).shape == (200_000,)


# -- records do not see each other ------------------------------------------------------------------


def bad_rows(likelihood, name, value, where):
    """All records, with the data node `name` overwritten in the records `where`."""
    rows = likelihood.rows(slice(None))
    for k, leaf in enumerate(likelihood.roles.record_data):
        if leaf.name == name:
            rows[k] = rows[k].copy()
            rows[k][where] = value
    return rows


@pytest.mark.parametrize("mode", ["FAST_COMPILE", None])
def test_a_bad_scale_in_one_record_leaves_the_others_alone(mode):
    with pm.Model() as model:
        sd = pm.Data("sd", rng.uniform(1, 2, size=N))
        pm.Normal("y", pm.Normal("mu"), sd, observed=pm.Data("Y", rng.normal(size=N)))
    likelihood = checked(model, compile_kwargs={"mode": mode})
    theta = np.array([0.4])
    before = likelihood(theta)
    after = likelihood.evaluate_rows(theta, bad_rows(likelihood, "sd", -1.0, [3]))
    keep = np.arange(N) != 3
    assert np.isfinite(before).all()
    assert_array_equal(after[keep], before[keep])
    assert not np.isfinite(after[3])


@pytest.mark.parametrize(
    "name", ["logistic", "poisson", "negative_binomial", "student_t", "ordered", "weibull"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e300])
def test_a_bad_covariate_in_one_record_leaves_the_others_alone(name, value):
    model, likelihood = zoo_likelihood(name)
    _, (_, theta) = some_points(model, 2)
    with np.errstate(all="ignore"):
        before = likelihood.evaluate_rows(theta, likelihood.rows(slice(None)))
        after = likelihood.evaluate_rows(theta, bad_rows(likelihood, "X", value, [3, 8]))
    keep = ~np.isin(np.arange(N), [3, 8])
    assert np.isfinite(before).all()
    assert_array_equal(after[keep], before[keep])


@pytest.mark.parametrize("mode", ["FAST_COMPILE", None])
@pytest.mark.parametrize("name", ["negative_binomial", "student_t"])
def test_nothing_is_asserted_in_the_compiled_graph(name, mode):
    function = compiled(build(name), compile_kwargs={"mode": mode})._evaluate
    assert not [
        node for node in function.maker.fgraph.apply_nodes if isinstance(node.op, CheckAndRaise)
    ]


@pytest.mark.parametrize("mode", ["FAST_COMPILE", None])
@pytest.mark.parametrize("where", [5, 98765, -6, -98765])
def test_an_index_out_of_range_reads_nothing_that_is_not_its_own(mode, where):
    """Numba does not check indices: it would read whatever is in memory there."""
    likelihood = compiled(build("varying_intercepts"), compile_kwargs={"mode": mode})
    theta = np.linspace(-1, 1, 8)
    before = likelihood(theta)
    after = likelihood.evaluate_rows(theta, bad_rows(likelihood, "group", where, [3]))
    assert_array_equal(np.delete(after, 3), np.delete(before, 3))
    in_range = 4 if where > 0 else 0
    same = likelihood.evaluate_rows(theta, bad_rows(likelihood, "group", in_range, [3]))
    assert np.isnan(after[3]) or after[3] == same[3]


def test_an_assert_of_the_users_is_taken_out():
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=N))
        small = Assert("too large")(x, pt.all(x < 100))
        pm.Normal("y", small * pm.Normal("b"), 1.0, observed=pm.Data("Y", rng.normal(size=N)))
    likelihood = checked(model)
    theta = np.array([0.7])
    before = likelihood(theta)
    after = likelihood.evaluate_rows(theta, bad_rows(likelihood, "x", 1e3, [3]))
    assert np.isfinite(after).all()
    assert_array_equal(np.flatnonzero(after != before), [3])


class RaisesAbove(Op):
    """Passes its argument on, and raises, quoting it, if one is larger than 3."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if (inputs[0] > 3).any():
            raise ValueError(f"found {inputs[0].max()}")
        outputs[0][0] = inputs[0].copy()


def raising_model(n=N, order="C"):
    """Its terms are rounded, and differently at different places in a chunk."""
    X = np.asarray(rng.normal(size=(n, 12)), order=order)
    with pm.Model() as model:
        x = RaisesAbove()(pm.Data("x", rng.uniform(size=n)))
        mean = pt.tanh(pm.Data("X", X) @ pm.Normal("b", shape=12)) + x
        pm.StudentT("y", nu=3.0, mu=mean, observed=pm.Data("Y", rng.normal(size=n)))
    return model


def test_a_record_that_raises_is_nan_and_the_others_are_not():
    likelihood = compiled(raising_model())
    theta = np.linspace(-1, 1, 12)
    before = likelihood(theta)
    after = likelihood.evaluate_rows(theta, bad_rows(likelihood, "x", 98765.4321, [3, 40]))
    assert_array_equal(np.flatnonzero(np.isnan(after)), [3, 40])
    keep = np.isfinite(after)
    assert_allclose(after[keep], before[keep], rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["FAST_COMPILE", pytest.param(None, marks=pytest.mark.sweep)])
def test_a_record_that_raises_does_not_move_the_last_bit_of_another(mode, order):
    """Whatever the layout of the user's array; a DataFrame's is Fortran's."""
    model = raising_model(3000, order)
    likelihood = compiled(model, compile_kwargs={"mode": mode})
    theta = np.linspace(-1, 1, 12)
    before = likelihood(theta)
    data = [leaf.values.copy(order="K") for leaf in likelihood.roles.record_data]
    (x,) = [k for k, leaf in enumerate(likelihood.roles.record_data) if leaf.name == "x"]
    data[x][3] = 5.0
    after = likelihood.of_data(data)(theta)
    assert np.isnan(after[3])
    assert_array_equal(np.delete(after, 3), np.delete(before, 3))


def test_a_record_that_raises_does_not_show_in_the_layout_of_derivatives():
    """Products with the same numbers in another layout differ in last bits on some machines."""
    model = raising_model()
    likelihood, theta = compiled(model), np.linspace(-1, 1, 12)
    graph = graph_of(model, likelihood.roles)
    data = [leaf.values.copy() for leaf in likelihood.roles.record_data]
    (x,) = [k for k, leaf in enumerate(likelihood.roles.record_data) if leaf.name == "x"]
    data[x][3] = 5.0
    spoiled = likelihood.of_data(data)
    for derivatives in (
        partial(UnitGradients, method="forward"),
        partial(UnitGradients, method="reverse"),
    ):
        (before,) = derivatives(graph, likelihood, compile_kwargs=FAST)(theta)
        (after,) = derivatives(graph, spoiled, compile_kwargs=FAST)(theta)
        assert np.isnan(after[3]).all()
        assert after.strides == before.strides
        assert_array_equal(np.delete(after, 3, axis=0), np.delete(before, 3, axis=0))


def test_records_that_all_raise_are_all_nan():
    likelihood = compiled(raising_model())
    rows = bad_rows(likelihood, "x", 5.0, slice(None))
    assert np.isnan(likelihood.evaluate_rows(np.zeros(12), rows)).all()


class Grumbles(RaisesAbove):
    """Warns of what it is given, in both of the ways that NumPy does."""

    def perform(self, node, inputs, outputs):
        warnings.warn(f"found {inputs[0].max()}", stacklevel=1)
        outputs[0][0] = inputs[0] / np.zeros(1)


def test_evaluation_is_silent():
    with pm.Model() as model:
        x = Grumbles()(pm.Data("x", rng.uniform(size=N)))
        pm.Normal("y", x * pm.Normal("b"), observed=pm.Data("Y", rng.normal(size=N)))
    likelihood = compiled(model)
    rows = likelihood.rows(slice(None))
    with warnings.catch_warnings(record=True) as seen, np.errstate(all="warn"):
        warnings.simplefilter("always")
        likelihood._evaluate(np.ones(1), *rows)
        assert {w.category for w in seen} == {UserWarning, RuntimeWarning}
        seen.clear()
        likelihood.evaluate_rows(np.ones(1), rows)
        likelihood(np.ones(1))
        assert not seen
    with np.errstate(all="raise"):
        assert np.isinf(likelihood(np.ones(1))).all()


def test_building_is_silent():
    with pm.Model() as model:
        x = Grumbles()(pm.Data("x", rng.uniform(size=N)))
        pm.Normal("y", x * pm.Normal("b"), observed=pm.Data("Y", rng.normal(size=N)))
    with warnings.catch_warnings(record=True) as seen, np.errstate(all="warn"):
        warnings.simplefilter("always")
        compiled(model)
    assert not [w for w in seen if "found" in str(w.message)]


# -- graphs with the number of records built in -----------------------------------------------------


def fixed(name):
    x, y = rng.normal(size=N), rng.normal(size=N)
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0)
        if name == "reshape":
            mean = pt.as_tensor(x).reshape((N // 2, 2))[:, ::-1].ravel() * b
        elif name == "loop":
            mean = pt.stack([x[i] * b for i in range(N)])
        elif name == "arange":
            mean = b * pt.arange(N)
        pm.Normal("y", mean, 1.0, observed=y)
    return model


@pytest.mark.parametrize("name", ["reshape", "loop", "arange"])
def test_a_number_of_records_in_the_graph_is_refused(name):
    with pytest.raises(UnsupportedModelError, match=r"make them `pm\.Data`"):
        compiled(fixed(name))


def test_a_position_in_the_data_is_not_a_record():
    """Counting the rows of a chunk gives wrong numbers: chunks all start at zero."""
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=N))
        trend = pm.Normal("b", 0.0, 1.0) * pt.arange(x.shape[0])
        pm.Normal("y", x + trend, 1.0, observed=pm.Data("Y", rng.normal(size=N)))
    with pytest.raises(UnsupportedModelError, match="a record alone"):
        checked(model)


def test_a_shape_read_off_the_data_is_replaced():
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=N))
        mean = pm.Normal("b", 0.0, 1.0) * x
        pm.Normal("y", mean, 1.0, shape=x.shape[0], observed=rng.normal(size=N))
        pm.Normal("z", mean, 1.0, shape=N, observed=rng.normal(size=N))
    likelihood = checked(model, chunk_size=7)
    for point, theta in some_points(model, 2):
        assert_allclose(likelihood(theta), own_terms(model)(point), rtol=1e-10)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("shared", [True, False])
def test_very_few_records(n, shared):
    model = build("linear", shared, n)
    likelihood = checked(model)
    for point, theta in some_points(model, 2):
        assert_allclose(likelihood(theta), own_terms(model)(point), rtol=1e-10)
    assert likelihood(ParameterSpace(model).start).shape == (n,)
