"""Records as functions of θ and of noise."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.gibbs.noncentering import FAMILIES, noncenter
from pymc_dp.gibbs.structure import find_structure
from pymc_dp.mechanisms import LaplaceMechanism

COVARIANCE = np.array([[1.0, 0.5], [0.5, 2.0]])
MOVED = {
    "normal": lambda a: pm.Normal("x", a, pt.exp(a), shape=6),
    "laplace": lambda a: pm.Laplace("x", a, pt.exp(a), shape=6),
    "logistic": lambda a: pm.Logistic("x", a, pt.exp(a), shape=6),
    "gumbel": lambda a: pm.Gumbel("x", a, pt.exp(a), shape=6),
    "cauchy": lambda a: pm.Cauchy("x", a, pt.exp(a), shape=6),
    "half-normal": lambda a: pm.HalfNormal("x", pt.exp(a), shape=6),
    "student t": lambda a: pm.StudentT("x", nu=5, mu=a, sigma=pt.exp(a), shape=6),
    "exponential": lambda a: pm.Exponential("x", pt.exp(a), shape=6),
    "gamma": lambda a: pm.Gamma("x", 2.5, pt.exp(a), shape=6),
    "log-normal": lambda a: pm.LogNormal("x", a, pt.exp(a), shape=6),
    "uniform": lambda a: pm.Uniform("x", a, a + pt.exp(a), shape=6),
    "multivariate normal": lambda a: pm.MvNormal(
        "x", pt.stack([a, 1.0]), COVARIANCE * pt.exp(a), shape=(6, 2)
    ),
}


def map_of(model, latents):
    found = noncenter(model, find_structure(model, latents))
    inputs = list(model.value_vars)
    keywords = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    to_noise = pm.compile(inputs, found.noise_of_records, **keywords)
    to_records = pm.compile([*inputs, *found.noise], list(found.new_values.values()), **keywords)
    return found, to_noise, to_records


def test_every_family_is_tested():
    assert len(MOVED) == len(FAMILIES)


def value_at(model, a):
    """A draw of x given a, on the scale that PyMC keeps."""
    variable = pm.do(model, {"a": a})["x"]
    drawn = pm.draw(variable, random_seed=3)
    transform = model.rvs_to_transforms[model["x"]]
    if transform is None:
        return drawn
    return transform.forward(drawn, *variable.owner.inputs).eval(mode="FAST_COMPILE")


@pytest.mark.parametrize("case", MOVED)
def test_noise_does_not_depend_on_the_parameters(case):
    """Draws with the same seed at two values of θ have the same noise, and map to each other."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        x = MOVED[case](a)
        LaplaceMechanism("s", x, scale=1.0, observed=np.zeros(x.type.shape[1:]))
    found, to_noise, to_records = map_of(model, [x])
    assert [v.name for v in found.moved] == ["x"]
    assert model.value_vars[0].name == "a"
    one, two = value_at(model, 0.3), value_at(model, -0.8)
    (noise,) = to_noise(np.array(0.3), one)
    assert np.std(noise) > 0.1
    np.testing.assert_allclose(to_noise(np.array(-0.8), two)[0], noise, rtol=1e-6)
    np.testing.assert_allclose(to_records(np.array(-0.8), one, noise)[0], two, rtol=1e-6)


def moved(build):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        latents = build(a)
        LaplaceMechanism("s", latents[-1], scale=1.0, observed=0.0)
    return [v.name for v in noncenter(model, find_structure(model, latents)).moved]


def test_latents_free_of_parameters_stay():
    assert moved(lambda a: [pm.Normal("x", 0, 1, shape=4)]) == []


def test_latents_of_other_families_stay():
    assert moved(lambda a: [pm.Bernoulli("x", logit_p=a, shape=4)]) == []
    assert moved(lambda a: [pm.Beta("x", pt.exp(a), 1, shape=4)]) == []


def test_latents_whose_shape_moves_stay():
    assert moved(lambda a: [pm.Gamma("x", pt.exp(a), 1, shape=4)]) == []
    assert moved(lambda a: [pm.StudentT("x", nu=pt.exp(a), mu=0, sigma=1, shape=4)]) == []


def test_latents_below_moved_ones_move():
    def hierarchy(a):
        x = pm.Normal("x", a, 1, shape=4)
        return [x, pm.Normal("y", x, 1, shape=4)]

    assert moved(hierarchy) == ["x", "y"]
