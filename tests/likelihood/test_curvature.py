"""Second derivatives: those of the gradients."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import nbinom

from pymc_dp.likelihood.curvature import UnitHessians
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.likelihood.roles import find_roles

from .zoo import ZOO, build, graph_of, likelihood_of

FAST = {"mode": "FAST_COMPILE"}
# The rest of the zoo at night, and on PyMC 6: PyTensor 2 has no second derivative of some operations,
# and takes minutes over others.
QUICK = ("linear",)
OTHERS = sorted({*ZOO} - {*QUICK})
later = [pytest.mark.nightly, pytest.mark.skipif(pm.__version__ < "6", reason="PyTensor 2")]


def parts(model, unit=None):
    likelihood = likelihood_of(model, find_roles(model, unit), chunk_size=17, compile_kwargs=FAST)
    theta = ParameterSpace(model).start
    return likelihood, theta + 0.1 * np.random.default_rng(3).normal(size=len(theta))


def differences(gradient, theta, step=1e-5):
    return np.stack(
        [
            (gradient(theta + e) - gradient(theta - e)) / (2 * step)
            for e in step * np.eye(len(theta))
        ],
        axis=-1,
    )


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=later) for n in OTHERS)])
def test_hessians_are_the_derivatives_of_the_gradients(name):
    model = build(name)
    likelihood, theta = parts(model)
    hessians = np.concatenate(
        list(
            UnitHessians(graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST)(theta)
        )
    )
    gradients = UnitGradients(
        graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST, method="forward"
    )
    expected = differences(lambda t: np.concatenate(list(gradients(t))), theta)
    np.testing.assert_allclose(hessians, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(hessians, np.swapaxes(hessians, 1, 2), rtol=1e-9, atol=1e-9)


@pytest.mark.sweep
def test_a_units_records_are_added_up():
    ids = np.random.default_rng(0).integers(0, 13, size=60)
    model = build("linear")
    by_record, theta = parts(model)
    by_unit, _ = parts(model, ids)
    each = np.concatenate(
        list(UnitHessians(graph_of(model, by_record.roles), by_record, compile_kwargs=FAST)(theta))
    )
    expected = np.stack([each[ids == k].sum(axis=0) for k in dict.fromkeys(ids.tolist())])
    found = np.concatenate(
        list(UnitHessians(graph_of(model, by_unit.roles), by_unit, compile_kwargs=FAST)(theta))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_the_priors_hessian():
    model = build("linear")
    prior = PublicLogDensity(ParameterSpace(model), FAST)
    _, theta = parts(model)
    np.testing.assert_allclose(
        prior.hessian(theta), differences(prior.gradient, theta), rtol=1e-5, atol=1e-6
    )


def test_a_likelihood_that_is_linear_has_no_curvature():
    with pm.Model() as model:
        slope, level = pm.Normal("slope"), pm.Normal("level")
        pm.CustomDist(
            "y", slope, level, logp=lambda y, slope, level: slope * y + level,
            observed=pm.Data("Y", np.arange(20.0)),
        )  # fmt: skip
    likelihood, theta = parts(model)
    hessians = UnitHessians(graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST)
    assert not np.concatenate([*hessians(theta)]).any()


def test_what_cannot_be_derived_twice_is_differenced():
    """The distribution function of a negative binomial is a loop, whose derivative has none."""
    counts = np.array([1, 1, 2, 3, 5, 8])
    with pm.Model() as model:
        b, alpha = pm.Normal("b"), pm.Exponential("alpha", 1)
        stay = pm.NegativeBinomial.dist(mu=pm.math.exp(b), alpha=alpha)
        pm.Truncated("y", stay, lower=1, observed=pm.Data("Y", counts))
    likelihood, _ = parts(model)
    theta = np.array([0.3, 0.2])
    hessians = UnitHessians(graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST)
    expected = differences(
        lambda t: differences(lambda s: truncated_log_pmf(counts, *s), t, 1e-4), theta, 1e-4
    )
    found = np.concatenate([*hessians(theta)])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def truncated_log_pmf(y, b, log_alpha):
    alpha = np.exp(log_alpha)
    law = nbinom(alpha, alpha / (alpha + np.exp(b)))
    return law.logpmf(y) - np.log(law.sf(0))


@pytest.mark.nightly
def test_covariances_are_differentiated_twice_on_either_line():
    """Where PyTensor 2 loops, what is differentiated again is made smaller first."""
    rows = np.random.default_rng(5).normal(size=(12, 2))
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2), store_in_trace=False
        )
        pm.MvNormal("y", pm.Normal("mean", 0, 1, shape=2), chol=chol, observed=pm.Data("Y", rows))
    likelihood, theta = parts(model)
    graph = graph_of(model, likelihood.roles)
    hessians = np.concatenate([*UnitHessians(graph, likelihood, compile_kwargs=FAST)(theta)])
    gradients = UnitGradients(graph, likelihood, compile_kwargs=FAST, method="forward")
    expected = differences(lambda t: np.concatenate(list(gradients(t))), theta)
    np.testing.assert_allclose(hessians, expected, rtol=1e-5, atol=1e-6)
