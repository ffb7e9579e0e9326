"""Where the numbers of a model come from, as it was written: no value and no length decides."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.origins import Origins, numbers_of_prior
from pymc_dp.likelihood.roles import find_roles

N = 60
rng = np.random.default_rng(0)
x, y, counts = rng.normal(size=N), rng.normal(size=N), rng.poisson(3.0, size=N)


def private(graph, model, public=()):
    return Origins(model, public).private([graph], model.free_RVs)


STRUCTURAL = {
    "a number": lambda b: b[0] * 2.5,
    "an array of one number": lambda b: pt.concatenate([[0.0], b]),
    "a range": lambda b: b[0] * pt.arange(20.0, 80.0),
    "a grid": lambda b: b[0] * pt.linspace(0.0, 1.0, 7),
    "a matrix of ones and zeros": lambda b: pt.eye(3) @ b,
    "a shape": lambda b: pt.tile(b, 2).reshape((3, 2)),
    "a part": lambda b: b[::-1][:2] + b[1],
    "a size": lambda b: b * pm.Normal.dist(0, 1, size=(2, 3)),
}
PRIVATE = {
    "an array": lambda b: b * np.arange(3.0),
    "a row of ones": lambda b: b * np.ones(3),
    "a list": lambda b: b * [1, 2, 3],
    "its mean": lambda b: b * pt.as_tensor(y).mean(),
    "an index": lambda b: b[np.array([0, 1, 1])],
    "what is counted": lambda b: pt.zeros(3)[np.array([0, 1])].inc(b[0]),
    "a shared number": lambda b: b * pytensor.shared(3.0),
    "where a parameter is written": lambda b: pt.zeros(3)[np.array([0, 1])].set(b[:2]),
    "where data say": lambda b: pt.zeros(3)[pytensor.shared(np.arange(2), name="array")].set(b[:2]),
    "where a packed matrix is not": lambda b: pt.zeros(9)[
        pytensor.shared(np.arange(3), name="array")
    ].set(
        pm.LKJCholeskyCov(
            "w", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2), compute_corr=False
        )
    ),
    "a number called like a dimension": lambda b: b * pytensor.shared(2.5, name="array"),
    "where a number is written": lambda b: b * pt.zeros(3)[np.array([0, 1])].set(1.0),
    "inside a loop": lambda b: pytensor.map(
        lambda z: z * pt.as_tensor(y).mean(), [b], return_updates=False
    ),
    "inside a loop in a loop": lambda b: pytensor.map(
        lambda z: pytensor.map(
            lambda w: w * pt.as_tensor(y).mean(), [pt.stack([z, z])], return_updates=False
        ),
        [b],
        return_updates=False,
    ),
    "a shape that data say": lambda b: pt.tile(b, 2).reshape(
        pytensor.shared(np.array([3, 2]), name="array"), ndim=2
    ),
    "an array in another shape": lambda b: b[0] * pt.as_tensor(x[:6]).reshape((2, 3)),
    "how many are positive": lambda b: b * pt.nonzero(pt.as_tensor(y) > 0)[0].shape[0],
    "what is called like a dimension": lambda b: b * pytensor.shared(x[:3], name="array"),
}


@pytest.mark.parametrize("name", STRUCTURAL)
def test_what_a_model_is_written_with(name):
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        assert private(STRUCTURAL[name](b), model) == []


@pytest.mark.parametrize("name", PRIVATE)
def test_what_may_be_of_people(name):
    with pm.Model(coords={"array": range(3)}) as model:
        b = pm.Normal("b", shape=3)
        (found,) = private(PRIVATE[name](b), model)
    assert "array" in found


def test_an_array_that_is_declared_public_is_not_its_like():
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        both = b * np.arange(3.0) + b * x[:3]
        found = private(both, model)
        assert found == ["the array in `b * x`", "the array in `b * x`, no. 2"]
        assert private(both, model, public=found[:1]) == found[1:]


def test_lengths_of_data_are_no_data():
    with pm.Model() as model:
        b, data = pm.Normal("b"), pm.Data("x", x)
        assert private(b * data.shape[0], model) == []
        assert private(b * data[0], model) == ["x"]
        assert private(b * data[0], model, public=["x"]) == []


@pytest.mark.parametrize(
    "builder",
    [
        lambda: pm.Dirichlet("w", np.ones(3)),
        lambda: pm.Normal("w", [-1, 0, 1], transform=ordered, initval=[-1, 0, 1], shape=3),
        lambda: pm.Gamma("w", mu=np.ones(3), sigma=2),
        lambda: pm.Normal("w", 0, pm.HalfNormal("tau", 1) * np.array([1.0, 2.0])),
        lambda: pm.MvNormal("w", np.zeros(2), np.eye(2)),
        lambda: pm.Truncated("w", pm.Normal.dist(np.arange(3.0)), lower=-1),
        lambda: pm.LKJCholeskyCov("w", n=3, eta=2.0, sd_dist=pm.Exponential.dist([1.0, 2.0, 3.0])),
        lambda: pm.ZeroSumNormal("w", shape=(3, 4)),
    ],
)
def test_priors_as_tutorials_write_them(builder):
    with pm.Model() as model:
        builder()
        pm.Normal("y", pm.Normal("b"), 1, observed=y)
    assert find_roles(model).left_out == ()


def test_correlations_of_effects_stay_in_a_result():
    """PyMC lays out their factor with arrays of its own."""
    with pm.Model() as model:
        sds = pm.Exponential.dist(1.0, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=sds)
        z = pm.Normal("z", shape=(5, 2))
        effects = pm.Deterministic("effects", z @ chol.T)
        pm.Normal("y", effects[rng.integers(5, size=N), 0] * x, 1, observed=y)
    assert {"chol_corr", "chol_stds", "effects"} <= {d.name for d in model.deterministics}
    assert find_roles(model).left_out == ()


def test_who_is_written_to_is_not_told():
    """Beside a layout of PyMC's own: positions of a user's may be who is ill."""
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Deterministic("ill", pt.zeros(N)[np.flatnonzero(counts > 3)].set(b))
        pm.Deterministic("named", pt.zeros(N)[pm.Data("who", np.flatnonzero(counts > 3))].set(b))
        pm.Normal("y", b, 1, observed=y)
    assert find_roles(model).left_out == ("ill", "named")


def test_a_statistic_in_a_prior_is_no_number_of_it():
    with pm.Model():
        b = pm.Normal("b", pt.as_tensor(y).mean(), 1)
        c = pm.Normal("c", np.zeros((2, 3)) @ np.ones(3) + np.arange(2.0), 1)
    assert numbers_of_prior(b) == []
    assert len(numbers_of_prior(c)) == 1


DISTRIBUTIONS = {
    "mixture": lambda mu: pm.NormalMixture(
        "y", pm.Dirichlet("w", np.ones(2)), [mu, mu + 1], 1.0, observed=y
    ),
    "censored": lambda mu: pm.Censored("y", pm.Normal.dist(mu, x**2 + 1), -1, 1, observed=y),
    "limits": lambda mu: pm.Censored("y", pm.Normal.dist(mu, 1), x - 9, x + 9, observed=y),
    "truncated": lambda mu: pm.Truncated("y", pm.Normal.dist(mu, x**2 + 1), lower=-9, observed=y),
    "zero-inflated": lambda mu: pm.ZeroInflatedPoisson("y", 0.5, pt.exp(mu * x), observed=counts),
    "hurdle": lambda mu: pm.HurdlePoisson("y", 0.5, pt.exp(mu * x), observed=counts),
    "skewed": lambda mu: pm.SkewNormal("y", mu=mu * x, sigma=1, alpha=1, observed=y),
    "interval": lambda mu: pm.Uniform("y", mu - 9 - x**2, 9 + x**2, observed=y),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_arrays_given_to_distributions_of_several_parts_are_records(name):
    """None of them hides in the inner graphs that PyMC writes itself, and that are not looked into."""
    with pm.Model() as model:
        DISTRIBUTIONS[name](pm.Normal("mu"))
    roles = find_roles(model)
    arrays = [leaf for leaf in roles.record_data if leaf.name != "y"]
    assert all(leaf.private for leaf in roles.record_data)
    assert len(arrays) == {"mixture": 0, "limits": 2, "interval": 2}.get(name, 1)


def test_a_likelihood_with_a_potential_for_the_censored_is_refused():
    """Their times are written into the model, and are as private as all others."""
    times, event = rng.weibull(1.5, size=N) + 0.1, rng.random(N) < 0.7

    def model_of(potential):
        with pm.Model() as model:
            alpha, beta = pm.HalfNormal("alpha", 2), pm.HalfNormal("beta", 2)
            pm.Weibull("y", alpha, beta, observed=times[event])
            potential(alpha, beta, times[~event])
        return model

    def as_array(alpha, beta, censored):
        pm.Potential("censored", -((censored / beta) ** alpha))

    def as_data(alpha, beta, censored):
        pm.Potential("censored", -((pm.Data("times", censored) / beta) ** alpha))

    for potential in (as_array, as_data):
        with pytest.raises(
            UnsupportedModelError, match=r"Potential 'censored'.*pm.Censored"
        ) as found:
            find_roles(model_of(potential))
        assert "public=" not in str(found.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b * pm.Data("totals", x[:5]).sum(),
        lambda b: b * x[:5].sum() + (b * x[:5]).mean(),
        lambda b: b * pytensor.shared(3.0),
    ],
)
def test_no_refusal_says_that_data_of_people_should_be_declared_public(spoil):
    with pm.Model() as model:
        pm.Normal("y", spoil(pm.Normal("b")), 1, observed=y)
    with pytest.raises(UnsupportedModelError) as refusal:
        find_roles(model)
    message = str(refusal.value)
    assert "Data of people need one" in message
    assert "public=['" not in message


def test_the_same_array_is_the_same_wherever_it_is():
    """Filled with one value, as long as the data, a copy of them, or none of it."""
    outcomes = set()
    for values in (np.ones(N), x.copy(), x[:30], np.arange(N - 1.0), np.zeros(5)):
        with pm.Model() as model:
            b = pm.Normal("b")
            pm.Deterministic("d", b * values)
            pm.Normal("y", b * x, 1, observed=y)
        roles = find_roles(model)
        outcomes.add((roles.left_out, roles.public_data, tuple(r.name for r in roles.record_data)))
    assert len(outcomes) == 1
