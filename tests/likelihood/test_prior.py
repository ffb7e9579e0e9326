"""The public part of the log-density."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity

from .zoo import FAST, build, few_or, some_points, zoo_likelihood


@pytest.mark.parametrize("name", few_or(pytest.mark.nightly))
def test_prior_and_likelihood_are_the_models_log_density(name):
    """Jacobians of the transforms included."""
    model, likelihood = zoo_likelihood(name)
    public = PublicLogDensity(ParameterSpace(model), FAST)
    whole = model.compile_logp(**FAST)
    for point, theta in some_points(model, 4):
        expected = whole(point)
        assert np.isfinite(expected)
        assert public(theta) + likelihood(theta).sum() == pytest.approx(expected, rel=1e-12)


def test_potentials_without_data_are_public():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Potential("push", -3.0 * mu**2)
        pm.Normal("y", mu, 1.0, observed=np.zeros(9))
    at = np.array([0.7])
    assert PublicLogDensity(ParameterSpace(model), FAST)(at) == pytest.approx(
        -0.5 * np.log(2 * np.pi) - 0.5 * 0.7**2 - 3 * 0.7**2, rel=1e-12
    )


def test_the_lines_own_compile_mode():
    model = build("linear")
    public, interpreted = (
        PublicLogDensity(ParameterSpace(model)),
        PublicLogDensity(ParameterSpace(model), FAST),
    )
    for _, theta in some_points(model):
        assert public(theta) == pytest.approx(interpreted(theta), rel=1e-12)


def test_outside_the_support_is_minus_infinity():
    """Here the scale of `b` is negative for half of all `a`: a check fails."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        b = pm.Normal("b", 0.0, a)
        pm.Normal("y", b, 1.0, observed=np.zeros(9))
    public = PublicLogDensity(ParameterSpace(model), FAST)
    assert np.isfinite(public(np.array([1.0, 0.2])))
    assert public(np.array([-1.0, 0.2])) == -np.inf


@pytest.mark.parametrize("extreme", [np.nan, np.inf, -np.inf, 1e200])
def test_no_theta_gives_nan(extreme):
    model = build("linear")
    public = PublicLogDensity(ParameterSpace(model), FAST)
    with np.errstate(all="ignore"):
        value = public(np.full(4, extreme))
    assert value == -np.inf


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["linear", "mv_normal", "ordered", "mixture", "named_dims"])
def test_gradient(name):
    model = build(name)
    public = PublicLogDensity(ParameterSpace(model), FAST)
    for _, theta in some_points(model):
        step = 1e-5 * np.eye(theta.size)
        slopes = [(public(theta + s) - public(theta - s)) / 2e-5 for s in step]
        assert_allclose(public.gradient(theta), slopes, rtol=1e-6, atol=1e-6)


class Square(Op):
    """Has no gradient."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] ** 2)


def test_a_potential_without_gradient_is_a_density_all_the_same():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Potential("push", -Square()(mu))
        pm.Normal("y", mu, 1.0, observed=np.zeros(9))
    assert np.isfinite(PublicLogDensity(ParameterSpace(model), FAST)(np.ones(1)))


def test_flat_and_linear_priors_have_no_curvature():
    with pm.Model() as model:
        slope = pm.Flat("slope", shape=2)
        pm.Potential("push", 3.0 * slope[0])
        pm.Normal("y", slope.sum(), 1.0, observed=np.zeros(9))
    public = PublicLogDensity(ParameterSpace(model), FAST)
    at = np.array([0.7, -0.2])
    assert_allclose(public.gradient(at), [3.0, 0.0])
    assert_allclose(public.hessian(at), np.zeros((2, 2)))
