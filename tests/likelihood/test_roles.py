"""Which nodes are private, and every model that is refused for what it does with them."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
from numpy.testing import assert_array_equal
from pymc.distributions.transforms import Interval, ordered
from pytensor.compile.builders import OpFromGraph

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.roles import find_roles

from .zoo import build

N, D = 120, 3
SECRET = 98765.4321
rng = np.random.default_rng(5)
X = rng.normal(size=(N, D))
x = X[:, 0].copy()
y = rng.normal(size=N)
group = rng.integers(5, size=N)
X[2, 1] = x[2] = y[2] = SECRET
COORDS = {"person": range(N), "feature": range(D), "again": range(N)}

REFUSED, LEFT_OUT = [], []


def model_of(builder):
    with pm.Model(coords=COORDS) as model:
        builder()
    return model


def refused(*words, **arguments):
    """Register a model, the words its refusal must have, and the arguments of `find_roles`."""

    def register(builder):
        REFUSED.append(pytest.param(builder, words, arguments, id=builder.__name__))
        return builder

    return register


def left_out(name):
    """Register a model, and the Deterministic that no result may have."""

    def register(builder):
        LEFT_OUT.append(pytest.param(builder, name, id=builder.__name__))
        return builder

    return register


def observe(mean, name="y", values=y, **keywords):
    return pm.Normal(name, mean, 1.0, observed=pm.Data(name.upper(), values), **keywords)


# -- variables --------------------------------------------------------------------------------------


@refused("'clusters'", "discrete")
def discrete_variable():
    observe(pm.Poisson("clusters", 3.0))


@refused("no observed variables", "Potential")
def likelihood_as_potential():
    pm.Potential("ll", -0.5 * (y - pm.Normal("b")) ** 2)


@refused("no free variables")
def nothing_to_sample():
    observe(0.0)


@refused("'y' has", "missing values")
def missing_values():
    pm.Normal("y", pm.Normal("b"), 1.0, observed=np.where(y > 1, np.nan, y))


@refused("'y' has", "missing values")
def masked_values():
    pm.Normal("y", pm.Normal("b"), 1.0, observed=np.ma.masked_greater(y, 1))


@refused("'y' has", "missing values")
def missing_parts_of_vectors():
    pm.MvNormal("y", pm.Normal("b", shape=D), cov=np.eye(D), observed=np.where(X > 1, np.nan, X))


@refused("'y'", "total_size")
def total_size():
    observe(pm.Normal("b"), total_size=10 * N)


@refused("pm.Minibatch")
def minibatch():
    pm.Normal("y", pm.Normal("b"), 1.0, observed=pm.Minibatch(y, batch_size=10))


@refused("'y'", "total_size")
def minibatch_with_total_size():
    pm.Normal("y", pm.Normal("b"), 1.0, observed=pm.Minibatch(y, batch_size=10), total_size=N)


@refused("'effect'", "one value per record")
def latent_by_dimension():
    observe(pm.Normal("effect", dims="person"), dims="person")


# -- Deterministics ---------------------------------------------------------------------------------


@left_out("mean")
def deterministic_of_data():
    mean = pm.Deterministic("mean", pm.Data("X", X) @ pm.Normal("b", shape=D))
    observe(mean)


@left_out("mean")
def deterministic_of_an_array():
    observe(pm.Deterministic("mean", X @ pm.Normal("b", shape=D)))


@left_out("average")
def deterministic_of_a_statistic():
    data = pm.Data("X", X)
    b = pm.Normal("b", shape=D)
    pm.Deterministic("average", data.mean(axis=0) + b)
    observe(data @ b)


@left_out("fit")
def deterministic_of_an_observed_variable():
    pm.Deterministic("fit", 2 * observe(pm.Normal("b")))


@left_out("y_probs")
def deterministic_of_a_distributions_own():
    cuts = pm.Normal("cuts", np.arange(3.0), 1.0, transform=ordered, initval=np.arange(3.0))
    eta = pm.Normal("b") * pm.Data("x", x)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=pm.Data("Y", group % 4))


@left_out("copy")
def deterministic_of_most_of_an_array():
    b = pm.Normal("b")
    pm.Deterministic("copy", b + y[1:])
    observe(b)


@left_out("copy")
def deterministic_of_a_scan():
    b, values = pm.Normal("b"), pt.as_tensor(y)
    scaled = pytensor.scan(
        lambda i, b: values[i] * b, [pt.arange(N)], non_sequences=[b], return_updates=False
    )
    pm.Deterministic("copy", scaled)
    observe(b)


@left_out("copy")
def deterministic_of_an_inner_graph():
    b, inside = pm.Normal("b"), pt.dscalar()
    pm.Deterministic("copy", OpFromGraph([inside], [inside * pt.as_tensor(y)])(b))
    observe(b)


@left_out("sums")
def deterministic_of_a_sparse_matrix():
    sums = pytensor.sparse.sp_sum(pytensor.sparse.as_sparse(scipy.sparse.csr_matrix(X)), axis=0)
    b = pm.Normal("b", shape=D)
    pm.Deterministic("sums", sums * b)
    observe(b[0])


# -- Potentials -------------------------------------------------------------------------------------


@refused("Potential 'extra'", "(X)")
def potential_of_data():
    data = pm.Data("X", X)
    b = pm.Normal("b", shape=D)
    pm.Potential("extra", -((data @ b) ** 2).sum())
    observe(data @ b)


@refused("Potential 'extra'")
def potential_of_an_observed_variable():
    b = pm.Normal("b")
    pm.Potential("extra", -((observe(b) - b) ** 2).sum())


# -- priors -----------------------------------------------------------------------------------------


@refused("prior of 'b'", "(Y)")
def prior_of_data():
    data = pm.Data("Y", y)
    pm.Normal("y", pm.Normal("b", data.mean(), 1.0), 1.0, observed=data)


@refused("prior of 'b'", "an array without a name")
def prior_of_an_array():
    observe(pm.Normal("b", pt.as_tensor(y).mean(), 1.0))


@refused("prior of 'b'")
def prior_of_an_observed_variable():
    first = observe(pm.Normal("a"))
    observe(pm.Normal("b", first.mean(), 1.0), name="z")


@refused("prior of 'b'")
def prior_of_group_labels():
    labels = pt.as_tensor(group)
    b = pm.Normal("b", labels.mean(), 1.0, shape=(labels.max() + 1,))
    observe(b[pm.Data("group", group)])


@refused("'b'", "private data (Y)")
def prior_of_a_captured_data_node():
    data = pm.Data("Y", y)
    b = pm.CustomDist("b", 0.0, logp=lambda value, mu: -((value - data.mean()) ** 2))
    pm.Normal("y", b, 1.0, observed=data)


@refused("'b'", "private data")
def prior_of_a_captured_array():
    values = pt.as_tensor(y)
    observe(pm.CustomDist("b", 0.0, logp=lambda value, mu: -((value - values.mean()) ** 2)))


@refused("'b'", "private data")
def prior_of_an_array_captured_by_dist():
    values = pt.as_tensor(y)
    observe(
        pm.CustomDist(
            "b", 0.0, dist=lambda mu, size: pm.Normal.dist(mu + values.mean(), 1.0, size=size)
        )
    )


@refused("'scale'", "private data")
def transform_of_data():
    """It would be stored: the constrained value is a function of the largest value."""
    data = pm.Data("Y", y)
    bounds = Interval(bounds_fn=lambda *_: (data.min(), data.max()))
    pm.Normal("y", pm.Normal("b", pm.Normal("scale", transform=bounds), 1.0), 1.0, observed=data)


@refused("initial value of 'b'", "(Y)")
def initial_value_of_data():
    data = pm.Data("Y", y)
    pm.Normal("y", pm.Normal("b", initval=data.mean()), 1.0, observed=data)


@refused("initial value of 'b'", "(Y)")
def support_point_of_data():
    data = pm.Data("Y", y)
    b = pm.CustomDist(
        "b",
        0.0,
        logp=lambda value, mu: -((value - mu) ** 2),
        support_point=lambda rv, size, mu: data.mean(),
    )
    pm.Normal("y", b, 1.0, observed=data)


# -- records ----------------------------------------------------------------------------------------


@refused("['y', 'z']", "different numbers of records")
def observed_of_different_lengths():
    b = pm.Normal("b")
    observe(b)
    observe(b, name="z", values=y[1:])


@refused("'y'", "no axis 0")
def one_number_observed():
    pm.Normal("y", pm.Normal("b"), 1.0, observed=SECRET)


@refused("'y'", "no axis 3", unit=3)
def no_such_axis():
    observe(pm.Normal("b"))


@refused("nothing to learn")
def no_records():
    observe(pm.Normal("b"), values=y[:0])


@refused("nothing to learn")
def one_record():
    observe(pm.Normal("b"), values=y[:1])


@refused("'totals'", "no row per record", "`public=[...]`")
def data_without_a_record_axis():
    observe(pm.Normal("b", shape=D) @ pm.Data("totals", X.sum(axis=0)))


@refused("the array in `b @ X`", "no row per record")
def unnamed_shared_variable():
    observe(pm.Normal("b", shape=D) @ pytensor.shared(X.sum(axis=0)))


@refused("the array in `add(b, x)`", "no row per record")
def unnamed_shared_number():
    observe(pm.Normal("b", shape=D) + pytensor.shared(y.mean()))


@refused("reads 'm'", "no row per record")
def named_shared_number():
    observe(pm.Normal("b", shape=D) * pytensor.shared(y.mean(), name="m"))


@refused("prior of 'b'", "an array without a name")
def shared_number_in_a_prior():
    observe(pm.Normal("b", pytensor.shared(y.mean()), 1, shape=D))


@refused("prior of 'b'", "(m)")
def shared_array_in_a_prior():
    observe(pm.Normal("b", pytensor.shared(X.mean(axis=0), name="m"), 1, shape=D))


@refused("initial value of 'b'", "an array without a name")
def shared_number_in_an_initial_value():
    observe(pm.Normal("b", 0, 1, shape=D, initval=pytensor.shared(X.mean(axis=0))))


@refused("(360,)", "no row per record")
def array_of_another_shape():
    observe(pm.Normal("b") * pt.as_tensor(X.ravel()).mean())


@refused("(119,)")
def array_of_most_of_the_records():
    observe(pm.Normal("b") * pt.as_tensor(y[1:]).mean())


@refused("W has more than one axis that is as long as there are records")
def matrix_between_records():
    observe(pm.Normal("b") * (pm.Data("W", rng.normal(size=(N, N))) @ y))


@refused("different record dimensions", "again")
def observed_variables_with_different_record_dimensions():
    b = pm.Normal("b")
    weights = pm.Data("W", rng.normal(size=(N, N)), dims=("person", "again"))
    observe(b * weights.sum(axis=1), dims="person")
    observe(b, name="z", dims="again")


@refused("reads 'x'", "['again']", "along the dimension of the observed variable")
def records_under_another_dimension():
    observe(pm.Normal("b") * pm.Data("x", x, dims="again"), dims="person")


@refused("declared public", "nothing to protect", public=["Y", "x"])
def everything_is_public():
    observe(pm.Normal("b") * pm.Data("x", x, dims="person"), dims="person")


@refused("sparse")
def sparse_statistic_in_the_likelihood():
    sums = pytensor.sparse.sp_sum(pytensor.sparse.as_sparse(scipy.sparse.csr_matrix(X)), axis=0)
    observe((sums * pm.Normal("b", shape=D)).sum())


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
@pytest.mark.filterwarnings("ignore:total_size")
@pytest.mark.parametrize(("builder", "words", "arguments"), REFUSED)
def test_refused_by_name(builder, words, arguments):
    with pytest.raises(UnsupportedModelError) as refusal:
        find_roles(model_of(builder), **arguments)
    message = str(refusal.value)
    for word in words:
        assert word in message
    assert "98765" not in message


@pytest.mark.parametrize(("builder", "name"), LEFT_OUT)
def test_deterministics_of_private_data_are_left_out(builder, name):
    assert find_roles(model_of(builder)).left_out == (name,)


def test_deterministics_of_parameters_and_public_data_stay():
    def builder():
        b = pm.Normal("b", shape=D)
        pm.Deterministic("twice", 2 * b)
        pm.Deterministic("curve", b[0] * pm.Data("grid", np.linspace(0, 1, 2 * N)))
        mean = pm.Deterministic("mean", pm.Data("X", X) @ b)
        pm.Deterministic("average", mean.mean())
        observe(mean)

    assert set(find_roles(model_of(builder), public=["grid"]).left_out) == {"mean", "average"}


# -- named dimensions (pymc.dims) -------------------------------------------------------------------


def named(builder):
    import pymc.dims as pmd

    with pm.Model(coords=COORDS) as model:
        builder(pmd, pmd.Data("Y", y, dims=("person",)))
    return model


def named_prior(pmd, data):
    pmd.Normal("y", pmd.Normal("b", data.mean("person"), 1.0), 1.0, observed=data, dims="person")


def named_deterministic(pmd, data):
    b = pmd.Normal("b", 0.0, 1.0)
    pmd.Deterministic("b_fit", b * data)
    pmd.Normal("y", b, 1.0, observed=data, dims="person")


def named_latent(pmd, data):
    b = pmd.Normal("b", 0.0, 1.0, dims="person")
    pmd.Normal("y", b, 1.0, observed=data, dims="person")


def named_statistic(pmd, data):
    totals = pmd.Data("b_totals", X.sum(axis=0), dims=("feature",))
    b = pmd.Normal("b", 0.0, 1.0, dims="feature")
    pmd.Normal("y", (b * totals).sum("feature"), 1.0, observed=data, dims="person")


@pytest.mark.parametrize(
    ("builder", "reason"),
    [
        (named_prior, "private data"),
        (named_latent, "one value per record"),
        (named_statistic, "no row per record"),
    ],
)
def test_named_dimensions_are_refused_alike(builder, reason):
    with pytest.raises(UnsupportedModelError, match=rf"'b.*{reason}"):
        find_roles(named(builder))


def test_named_deterministics_are_left_out_alike():
    assert find_roles(named(named_deterministic)).left_out == ("b_fit",)


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"unit": "patient"}, ["unit='patient'", "'y'", "person"]),
        ({"unit": "feature"}, ["unit='feature'", "'y'"]),
        ({"unit": -1}, ["0 or more", "-1"]),
        ({"unit": np.arange(N - 1)}, ["one identifier per record"]),
        ({"unit": np.arange(N)[:, None]}, ["one identifier per record"]),
        ({"unit": 2.0}, ["one identifier per record"]),
        ({"unit": np.arange(N) + SECRET}, ["integer or text", "float64"]),
        ({"unit": x > 0}, ["integer or text", "bool"]),
        ({"public": ["Z", "Y"]}, ["Z", "pm.Data"]),
        ({"public": ["y"]}, ["y", "pm.Data"]),
        ({"unit": True}, ["`unit`"]),
        ({"public": "Y"}, ["['Y']"]),
    ],
)
def test_settings_that_do_not_fit(arguments, words):
    model = model_of(lambda: observe(pm.Normal("b"), dims="person"))
    with pytest.raises(PrivacyConfigurationError) as refusal:
        find_roles(model, **arguments)
    for word in words:
        assert word in str(refusal.value)
    assert "98765" not in str(refusal.value)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([7, 3, 7, 5]),
        ["g", "c", "g", "e"],
        np.array(["g", "c", "g", "e"], dtype=object),
        np.array([7, 3, 7, 5], dtype=object),
        np.array([b"g", b"c", b"g", b"e"]),
        np.array([7, 3, 7, 5], dtype=np.uint8),
        np.array([None, "c", None, 5], dtype=object),
        np.array(["g", "c", "g", "e"], dtype=np.dtypes.StringDType()),
    ],
)
def test_identifiers_of_units(ids):
    model = model_of(lambda: observe(pm.Normal("b"), values=y[:4]))
    roles = find_roles(model, unit=ids)
    assert roles.n_units == 3
    assert roles.n_records == 4
    # As they first appear: whatever else a person is called, nobody's place is another.
    assert_array_equal(roles.unit_of_record, [0, 1, 0, 2])
    assert roles.unit == "all records with one identifier"


@pytest.mark.parametrize(
    ("unit", "name"),
    [(None, "one record of 'visit'"), (0, "one record of 'visit'"), ("visit", "one visit")],
)
def test_labels_that_repeat_make_no_difference(unit, name):
    """Nobody's labels are looked at: a dimension is a unit if it is said that it is one."""
    for labels in (range(N), np.arange(N) // 3):
        with pm.Model(coords={"visit": labels}) as model:
            observe(pm.Normal("b"), dims="visit")
        roles = find_roles(model, unit)
        assert (roles.unit, roles.n_units, roles.unit_of_record) == (name, N, None)
        assert roles.unit_given == (unit is not None)


@pytest.mark.parametrize(
    ("dims", "unit"), [(None, "one record"), ("person", "one record of 'person'")]
)
def test_an_axis_without_a_name_names_no_unit(dims, unit):
    """A covariate may have a name for its columns only."""

    def builder():
        data = pm.Data("X", X, dims=(None, "feature"))
        observe(data @ pm.Normal("b", dims="feature"), dims=dims)

    roles = find_roles(model_of(builder))
    assert roles.unit == unit
    assert roles.record_dims == ({dims} if dims else set())


# -- what is found ----------------------------------------------------------------------------------


def names_and_axes(roles):
    return {leaf.name: leaf.axis for leaf in roles.record_data}


@pytest.mark.parametrize("unit", [None, "person", 0])
def test_records_by_dimension(unit):
    def builder():
        data = pm.Data("X", X, dims=("person", "feature"))
        observe(data @ pm.Normal("b", dims="feature"), dims="person")

    roles = find_roles(model_of(builder), unit)
    assert roles.n_records == roles.n_units == N
    assert roles.unit == ("one person" if unit == "person" else "one record of 'person'")
    assert roles.record_dims == {"person"}
    assert roles.unit_of_record is None
    assert names_and_axes(roles) == {"X": 0, "Y": 0}
    assert all(leaf.private for leaf in roles.record_data)
    assert roles.public_data == ()


def test_records_without_names():
    roles = find_roles(model_of(lambda: observe(x * pm.Normal("b"))))
    assert roles.unit == "one record"
    assert roles.record_dims == frozenset()
    assert names_and_axes(roles) == {"Y": 0, "the array in `b * x`": 0}


def test_records_on_another_axis():
    def builder():
        b = pm.Normal("b", shape=D) @ pm.Data("Xt", X.T)
        observe(b, values=np.stack([y, y]))

    roles = find_roles(model_of(builder), unit=1)
    assert find_roles(model_of(builder), unit=np.int64(1)).unit == roles.unit
    assert roles.n_records == N
    assert names_and_axes(roles) == {"Xt": 1, "Y": 1}
    assert roles.observed_axes == (1,)


def test_an_array_without_a_name_is_called_by_its_use():
    """The number of records may be private, and is not in it."""
    b, a = "b", "a"

    def builder():
        slopes, levels = pm.Normal(b, shape=D), pm.Normal(a, shape=5)
        observe(X @ slopes + levels[group] + pt.log(np.abs(x)), values=y)

    assert set(names_and_axes(find_roles(model_of(builder)))) == {
        "Y",
        "the array in `X @ b`",
        "the array in `a[index]`",
        "an array without a name",
    }


def test_values_are_those_of_the_data():
    model = model_of(lambda: observe(x * pm.Normal("b")))
    for leaf in find_roles(model).record_data:
        assert_array_equal(leaf.values, y if leaf.name == "Y" else x)


def test_public_data_are_listed():
    def builder():
        offsets = pm.Data("offsets", np.arange(5.0))[pm.Data("group", group)]
        scale = pm.Data("scale", np.full(N, 2.0), dims="person")
        weights = np.array([1.0, 2.0, 4.0])
        observe(offsets + scale * (pm.Normal("b", [0, 1, 2]) @ weights), dims="person")

    named = ["offsets", "scale", "the array in `b @ X`"]
    roles = find_roles(model_of(builder), public=named)
    assert roles.public_data == (*named, "the numbers in the prior of 'b'")
    assert {leaf.name for leaf in roles.record_data if leaf.private} == {"Y", "group"}
    assert {leaf.name for leaf in roles.record_data} == {"Y", "group", "scale"}


def test_an_array_without_a_name_is_declared_by_its_description():
    def builder():
        observe(pm.Normal("b", shape=3) @ np.array([1.0, 2.0, 4.0]))

    with pytest.raises(UnsupportedModelError, match=r"the array in `b @ X`, of shape .3,., which"):
        find_roles(model_of(builder))
    with pytest.raises(PrivacyConfigurationError, match="the array in `c @ X`"):
        find_roles(model_of(builder), public=["the array in `b @ X`", "the array in `c @ X`"])


def test_public_data_may_be_used_anywhere():
    def builder():
        grid = pm.Data("grid", np.linspace(0, 1, 2 * N))
        scale = pm.Data("scale", np.arange(1.0, N + 1), dims="person")
        b = pm.Normal("b", grid.mean(), scale.mean(), initval=grid.max())
        pm.Deterministic("curve", b * grid)
        pm.Potential("pull", -(b**2) * scale.sum())
        observe(b * scale, dims="person")

    assert find_roles(model_of(builder), public=["grid", "scale"]).left_out == ()


def test_numbers_of_a_prior_are_a_part_of_the_model():
    """They have its own shape. Anything else is private whatever is in it, zeros too."""

    def builder():
        b = pm.Normal(
            "b", np.zeros(N), np.arange(1, N + 1) * pm.HalfNormal("s"), initval=np.ones(N)
        )
        pm.Dirichlet("w", np.ones(3))
        pm.Gamma("g", mu=np.array([1.0, 2.0]), sigma=1)
        pm.MvNormal("m", np.zeros(2), np.eye(2))
        pm.Deterministic("b_twice", 2 * b * np.ones(N))
        observe(b.sum(), values=y[:50])

    roles = find_roles(model_of(builder))
    assert roles.left_out == ("b_twice",)
    assert roles.public_data == tuple(f"the numbers in the prior of '{v}'" for v in "bwgm")


def test_the_model_is_left_as_it_was():
    model = build("linear")
    before = model.point_logps(), [v.get_value() for v in model.data_vars]
    find_roles(model)
    after = model.point_logps(), [v.get_value() for v in model.data_vars]
    assert before[0] == after[0]
    for old, new in zip(before[1], after[1], strict=True):
        assert_array_equal(old, new)


# -- good models that must pass ---------------------------------------------------------------------


def shape_of_a_coefficient_vector():
    data = pm.Data("X", X)
    observe(data @ pm.Normal("b", shape=data.shape[1]))


def dimension_of_the_columns_only():
    data = pm.Data("X", X, dims=(None, "feature"))
    observe(data @ pm.Normal("b", dims="feature"), dims="person")


def hurdle():
    pm.HurdlePoisson("y", psi=0.5, mu=pm.Exponential("mu", 1.0), observed=pm.Data("Y", group))


def covariance_prior():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=D, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=D))
    pm.MvNormal("y", pm.ZeroSumNormal("mu", shape=D), chol=chol, observed=pm.Data("Y", X))


@pytest.mark.parametrize(
    "builder",
    [
        covariance_prior,
        shape_of_a_coefficient_vector,
        dimension_of_the_columns_only,
        hurdle,
    ],
)
def test_accepted(builder):
    assert find_roles(model_of(builder)).n_records == N
