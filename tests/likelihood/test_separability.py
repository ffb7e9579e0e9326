"""Models whose terms are not functions of one record each are refused; the others are not."""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.parameters import ParameterSpace

from .zoo import N, as_it_is, checked, compiled, few_or, zoo_likelihood

SECRET = 98765.4321
COUPLED = {}


def coupled(builder):
    COUPLED[builder.__name__] = builder
    return builder


def build(builder, shared=True, n=N):
    with pm.Model() as model:
        builder(pm.Data if shared else as_it_is, np.random.default_rng(3), n)
    return model


def observe(mean, data, rng, n):
    pm.Normal("y", mean, 1.0, observed=data("Y", rng.normal(size=n)))


# -- no false alarms --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few_or(pytest.mark.sweep))
def test_the_zoo_passes(name):
    zoo_likelihood(name)


# -- coupled inside the graph -----------------------------------------------------------------------


@coupled
def centred(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * (x - x.mean()), data, rng, n)


@coupled
def standardised(data, rng, n):
    X = pt.as_tensor(data("X", rng.normal(size=(n, 3))))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    observe(X @ pm.Normal("b", shape=3), data, rng, n)


@coupled
def standard_deviation_as_scale(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    pm.Normal("y", pm.Normal("b") * x, x.std(), observed=data("Y", rng.normal(size=n)))


@coupled
def divided_by_the_largest(data, rng, n):
    x = pt.as_tensor(data("x", rng.uniform(size=n)))
    observe(pm.Normal("b") * x / x.max(), data, rng, n)


@coupled
def divided_by_the_largest_count(data, rng, n):
    x = pt.as_tensor(data("x", rng.poisson(20.0, size=n)))
    observe(pm.Normal("b") * x / x.max(), data, rng, n)


@coupled
def ranks(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * pt.argsort(pt.argsort(x)), data, rng, n)


@coupled
def sorted_values(data, rng, n):
    observe(pm.Normal("b") * pt.sort(pt.as_tensor(data("x", rng.normal(size=n)))), data, rng, n)


@coupled
def cumulative_sum(data, rng, n):
    observe(pm.Normal("b") * pt.cumsum(data("x", rng.normal(size=n))), data, rng, n)


@coupled
def lagged_covariate(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * pt.roll(x, 1), data, rng, n)


@coupled
def lagged_observed(data, rng, n):
    y = data("Y", rng.normal(size=n))
    lagged = pt.concatenate([np.zeros(1), pt.as_tensor(y)[:-1]])
    pm.Normal("y", pm.Normal("b") * lagged, 1.0, observed=y)


@coupled
def distance_to_the_first_record(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * (x - x[0]), data, rng, n)


@coupled
def distance_to_the_tenth_record(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * (x - x[10]), data, rng, n)


@coupled
def spatial_lag(data, rng, n):
    W = data("W", rng.random(size=(n, n)))
    observe(pm.Normal("b") * pt.dot(W, data("x", rng.normal(size=n))), data, rng, n)


@coupled
def neighbours_by_index(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * x[data("next", (np.arange(n) + 1) % n)], data, rng, n)


@coupled
def group_means(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    group = pt.as_tensor(data("group", rng.integers(4, size=n)))
    member = pt.eq(group[:, None], pt.arange(4))
    means = (member * x[:, None]).sum(axis=0) / (1 + member.sum(axis=0))
    observe(pm.Normal("b") * means[group], data, rng, n)


@coupled
def weights_from_group_sizes(data, rng, n):
    group = pt.as_tensor(data("group", rng.integers(4, size=n)))
    sizes = pt.bincount(group, minlength=4)
    observe(pm.Normal("b") * sizes[group], data, rng, n)


@coupled
def softmax_over_records(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.math.softmax(pm.Normal("b") * x), data, rng, n)


@coupled
def pairs_of_records(data, rng, n):
    """A column against a row: every record meets every other."""
    b = pm.Normal("b") * pt.as_tensor(data("x", rng.normal(size=n)))
    pm.Normal("y", b, 1.0, observed=data("Y", rng.normal(size=(n, 1))))


@coupled
def mean_of_the_observed(data, rng, n):
    y = data("Y", rng.normal(size=n))
    pm.Normal("y", pm.Normal("b") * pt.as_tensor(y).mean(), 1.0, observed=y)


@coupled
def mean_of_another_observed_variable(data, rng, n):
    y = pm.Normal("y", pm.Normal("a"), 1.0, observed=data("Y", rng.normal(size=n)))
    pm.Normal("z", pm.Normal("b") * y.mean(), 1.0, observed=data("Z", rng.normal(size=n)))


@coupled
def mean_inside_a_custom_distribution(data, rng, n):
    pm.CustomDist(
        "y",
        pm.Normal("b"),
        logp=lambda value, b: -0.5 * (value - b * value.mean()) ** 2,
        observed=data("Y", rng.normal(size=n)),
    )


@coupled
def mean_without_influence_yet(data, rng, n):
    """Zero times the mean, at and around the initial point."""
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pt.maximum(pm.Normal("b") - 5.0, 0.0) * x.mean(), data, rng, n)


@coupled
def any_record_flagged(data, rng, n):
    flag = pt.as_tensor(data("flag", (np.arange(n) == n // 2).astype(int)))
    observe(pm.Normal("b") * pt.any(flag > 0), data, rng, n)


@coupled
def a_millionth_of_a_share(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * (x + 1e-6 * pt.mean(x > 0)), data, rng, n)


@coupled
def share_of_the_missing(data, rng, n):
    """Which no other value moves, however large."""
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * pt.mean(pt.isnan(x)), data, rng, n)


@coupled
def any_infinite_value(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    observe(pm.Normal("b") * pt.any(pt.isinf(x)), data, rng, n)


@coupled
def scan_over_records(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    sums = pytensor.scan(
        lambda one, total: 0.5 * total + one,
        [x],
        outputs_info=[pt.zeros((), dtype=x.dtype)],
        return_updates=False,
    )
    observe(pm.Normal("b") * sums, data, rng, n)


@coupled
def gaussian_process(data, rng, n):
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("ls")))
    x, y = data("x", rng.normal(size=(n, 1))), data("Y", rng.normal(size=n))
    gp.marginal_likelihood("y", X=x, y=y, sigma=0.1)


@coupled
def autoregression(data, rng, n):
    rho = pm.Normal("rho")
    start = pm.Normal.dist(0.0, 1.0)
    pm.AR("y", rho=[rho], sigma=1.0, init_dist=start, observed=data("Y", rng.normal(size=n)))


@coupled
def random_walk(data, rng, n):
    start = pm.Normal.dist(0.0, 1.0)
    drift = pm.Normal("drift")
    pm.GaussianRandomWalk(
        "y", mu=drift, sigma=1.0, init_dist=start, observed=data("Y", rng.normal(size=n))
    )


@coupled
def vector_over_records(data, rng, n):
    chol = pt.eye(n) * pm.HalfNormal("sigma")
    pm.MvNormal("y", np.zeros(n), chol=chol, observed=data("Y", rng.normal(size=n)))


@pytest.mark.parametrize(
    "shared", [True, pytest.param(False, marks=pytest.mark.sweep)], ids=["data", "arrays"]
)
@pytest.mark.parametrize("name", COUPLED)
def test_coupled_records_are_refused(name, shared):
    with pytest.raises(UnsupportedModelError):
        checked(build(COUPLED[name], shared))


@pytest.mark.parametrize(
    "name",
    ["standardised", "ranks", "group_means", "mean_of_the_observed", "mean_without_influence_yet"],
)
def test_coupling_is_what_the_message_says(name):
    with pytest.raises(UnsupportedModelError, match="depends on other records too"):
        checked(build(COUPLED[name]))


@pytest.mark.parametrize("name", ["gaussian_process", "autoregression", "random_walk"])
def test_a_joint_density_is_named(name):
    with pytest.raises(UnsupportedModelError, match="'y' is one number for all records"):
        checked(build(COUPLED[name]))


@pytest.mark.parametrize("name", ["standardised", "neighbours_by_index", "any_record_flagged"])
def test_coupled_records_are_refused_in_the_lines_own_compile_mode(name):
    with pytest.raises(UnsupportedModelError):
        checked(build(COUPLED[name]), compile_kwargs=None)


@pytest.mark.parametrize("n", [2, 3, 5, 11, 300, 1000])
def test_coupling_is_found_at_any_size(n):
    with pytest.raises(UnsupportedModelError, match="depends on other records too"):
        checked(build(centred, n=n))


class MinusMean(Op):
    """Couples its records where no graph shows it."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] - inputs[0].mean()


def test_a_black_box_that_couples_is_refused():
    def builder(data, rng, n):
        x = MinusMean()(data("x", rng.normal(size=n)))
        observe(pm.Normal("b") * x, data, rng, n)

    with pytest.raises(UnsupportedModelError, match="depends on other records too"):
        checked(build(builder))


def coupling_of_equal_flags(data, rng, n):
    """No record is flagged; one that is would move all terms."""
    flag = pt.as_tensor(data("flag", np.zeros(n, dtype=int)))
    observe(pm.Normal("b") * flag.sum(), data, rng, n)


def coupling_where_nothing_is_possible(data, rng, n):
    """All terms are -inf around the initial point, so that changes do not show."""
    x = pt.as_tensor(data("x", rng.uniform(size=n)))
    width = 1e-6 * pm.HalfNormal("b") * x.max()
    pm.Uniform("y", 0.0, width, observed=data("Y", 1 + rng.uniform(size=n)))


def coupling_far_from_the_initial_point(data, rng, n):
    x = pt.as_tensor(data("x", rng.normal(size=n)))
    b = pm.Normal("b", shape=9)
    observe(pt.switch(pt.any(b > 1.5), x.mean(), 0.0) + b.sum(), data, rng, n)


@pytest.mark.parametrize(
    "builder",
    [
        coupling_of_equal_flags,
        coupling_where_nothing_is_possible,
        coupling_far_from_the_initial_point,
    ],
)
def test_coupling_that_does_not_show_in_the_data(builder):
    with pytest.raises(UnsupportedModelError):
        checked(build(builder))


# -- arrays that a function captures ----------------------------------------------------------------


def captured_by_logp(data, rng, n):
    x = data("x", rng.normal(size=n))
    pm.CustomDist(
        "y",
        pm.Normal("b"),
        logp=lambda value, b: -0.5 * (value - b * pt.as_tensor(x)) ** 2,
        observed=data("Y", rng.normal(size=n)),
    )


def statistic_captured_by_logp(data, rng, n):
    x = data("x", rng.normal(size=n))
    pm.CustomDist(
        "y",
        pm.Normal("b"),
        logp=lambda value, b: -0.5 * (value - b * pt.as_tensor(x).mean()) ** 2,
        observed=data("Y", rng.normal(size=n)),
    )


def statistic_of_a_part_captured_by_logp(data, rng, n):
    X = rng.normal(size=(n, 2))
    pm.CustomDist(
        "y",
        pm.Normal("b"),
        logp=lambda value, b: -0.5 * (value - b * pt.as_tensor(X[1:]).mean()) ** 2,
        observed=data("Y", rng.normal(size=n)),
    )


def statistics_node_captured_by_logp(data, rng, n):
    totals = pm.Data("totals", rng.normal(size=3))
    pm.CustomDist(
        "y",
        pm.Normal("b"),
        logp=lambda value, b: -0.5 * (value - b * totals.sum()) ** 2,
        observed=data("Y", rng.normal(size=n)),
    )


def statistic_captured_by_dist(data, rng, n):
    x = pt.as_tensor(rng.normal(size=n))
    pm.CustomDist(
        "y",
        pm.Normal("b"),
        dist=lambda b, size: pm.Normal.dist(b * x.mean(), 1.0, size=size),
        observed=data("Y", rng.normal(size=n)),
    )


@pytest.mark.parametrize("shared", [True, False], ids=["data", "arrays"])
@pytest.mark.parametrize(
    "builder",
    [
        captured_by_logp,
        statistic_captured_by_logp,
        statistic_of_a_part_captured_by_logp,
        statistics_node_captured_by_logp,
        statistic_captured_by_dist,
    ],
)
def test_captured_data_are_refused(builder, shared):
    with pytest.raises(UnsupportedModelError, match="captured"):
        checked(build(builder, shared))


def test_declared_public_data_may_be_captured():
    checked(build(statistics_node_captured_by_logp), public=["totals"])


# -- what leaves is a refusal and nothing else ------------------------------------------------------


def index_out_of_range(rng, n):
    group = rng.integers(5, size=n)
    group[n // 2] = 98765
    return pm.Normal("a", shape=5)[pm.Data("group", group)]


def singular_matrix(rng, n):
    S = np.tile(np.eye(2), (n, 1, 1)) * SECRET
    S[n // 2] = 0.0
    return pm.Normal("b") * pt.linalg.inv(pm.Data("S", S))[:, 0, 0]


def missing_value(rng, n):
    return pm.Normal("b") * np.where(np.arange(n) == n // 2, np.nan, 1.0)


def infinite_value(rng, n):
    return pm.Normal("b") * np.where(np.arange(n) == n // 2, np.inf, 1.0)


def incomes_in_dollars(rng, n):
    return pm.Normal("b") * pm.Data("income", np.exp(10 + rng.normal(size=n)))


@pytest.mark.parametrize(
    "mean",
    [
        index_out_of_range,
        singular_matrix,
        missing_value,
        infinite_value,
        incomes_in_dollars,
    ],
)
def test_no_value_of_a_record_is_refused(mean):
    """That would tell of it. A term that cannot be computed is clipped."""

    def builder(data, rng, n):
        observe(mean(rng, n), data, rng, n)

    checked(build(builder))


def test_a_raw_column_is_not_refused_where_pymc_has_minus_infinity():
    """Its own graph of a logistic regression has, far out, before it is rewritten to be stable."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Data("income", rng.lognormal(10, 1, size=2000))
        pm.Bernoulli(
            "y", logit_p=pm.Normal("a") + pm.Normal("b") * x, observed=rng.integers(2, size=2000)
        )
    checked(model)


def test_a_variable_of_no_model_is_refused():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") + pm.Normal.dist(SECRET, 1.0), 1.0, observed=np.zeros(N))
    with pytest.raises(UnsupportedModelError, match="not part of the model"):
        checked(model)


def test_public_rows_need_the_dimension_of_the_records():
    """Whether they are as long as the data is not looked at: the likelihood cannot be computed for one record."""

    def model(dims):
        with pm.Model(coords={"person": range(N)}) as model:
            x = pm.Data("x", np.ones(N), dims=dims)
            observe(pm.Normal("b") * x, pm.Data, np.random.default_rng(0), N)
        return model

    with pytest.raises(UnsupportedModelError, match="need the dimension of the observed variable"):
        checked(model(None), public=["x"])


@pytest.mark.parametrize("name", ["centred", "ranks", "lagged_observed", "random_walk"])
def test_a_refusal_quotes_no_data(name):
    model = build(COUPLED[name])
    for node in model.data_vars:
        values = node.get_value()
        values[7] = SECRET
        node.set_value(values)
    with pytest.raises(UnsupportedModelError) as refusal:
        checked(model)
    assert "98765" not in str(refusal.value)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_checks_are_silent(dtype):
    rng = np.random.default_rng(6)
    with pm.Model() as model:
        x = pt.as_tensor(rng.normal(size=N).astype(dtype))
        pm.Normal("y", pt.exp(100 * pm.Normal("b") * x), 1.0, observed=rng.normal(size=N))
    likelihood = compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        from pymc_dp.likelihood.separability import check_separability

        check_separability(ParameterSpace(model), likelihood)


def test_the_checks_leave_the_data_as_they_were():
    model, likelihood = zoo_likelihood("linear")
    before = [leaf.values.copy() for leaf in likelihood.roles.record_data]
    checked(model)
    for old, leaf in zip(before, likelihood.roles.record_data, strict=True):
        np.testing.assert_array_equal(old, leaf.values)


# -- blind spots ------------------------------------------------------------------------------------


class Holds(Op):
    """Multiplies by the mean of data that it keeps to itself."""

    def __init__(self, values):
        self.values = values

    def make_node(self, b):
        return Apply(self, [pt.as_tensor(b)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] * self.values.mean())


def computed_outside(b, y):
    return b * y.mean()


def kept_by_an_operation(b, y):
    return Holds(y)(b)


def a_record_as_a_constant(b, y):
    return b * pt.as_tensor(y[:1]).mean()


def the_record_before_as_a_column(b, y):
    return b * pm.Data("before", np.roll(y, 1))


@pytest.mark.parametrize(
    "mean",
    [
        computed_outside,
        kept_by_an_operation,
        a_record_as_a_constant,
        the_record_before_as_a_column,
    ],
)
def test_what_the_checks_cannot_see(mean):
    """These leak, and pass. When one is caught, take it off the list in the documentation."""
    y = np.random.default_rng(8).normal(size=N)
    with pm.Model() as model:
        pm.Normal("y", mean(pm.Normal("b"), y), 1.0, observed=pm.Data("Y", y))
    checked(model)
