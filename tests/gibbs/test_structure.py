"""Models that are taken, and models that are refused before sampling."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model

from pymc_dp import UnsupportedModelError
from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.gibbs.structure import find_structure
from pymc_dp.gibbs.sweep import guarantee
from pymc_dp.mechanisms import DiscreteLaplaceMechanism, GaussianMechanism, LaplaceMechanism
from pymc_dp.statistics import record_sum

FAST = {"mode": "FAST_COMPILE"}


def names(variables):
    return [v.name for v in variables]


def test_latents_parameters_and_releases():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=5)
        y = pm.Bernoulli("y", p=pm.math.invlogit(x), shape=5)
        LaplaceMechanism("s", x, epsilon=0.5, sensitivity=2, observed=1.0)
        DiscreteLaplaceMechanism("r", y, epsilon=0.25, sensitivity=1, observed=1)
        pm.Normal("public", mu, 1, observed=0.3)
    for m in (model, clone_model(model)):
        found = find_structure(m, [m["y"], m["x"]])
        assert names(found.latents) == ["x", "y"]
        assert names(found.parameters) == ["mu"]
        laws = {r.variable.name: r.law.name for r in found.releases}
        assert laws == {"s": "laplace", "r": "discrete laplace"}
        assert found.centered
        assert guarantee(found) == (0.75, 0.0)


def test_guarantee_of_gaussian_and_undeclared_releases():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=5)
        GaussianMechanism("s", x, epsilon=0.5, delta=1e-6, sensitivity=2, observed=1.0)
        assert guarantee(find_structure(model, [x])) == (0.5, 1e-6)
        LaplaceMechanism("r", x, scale=1.0, observed=1.0)
        assert np.isnan(guarantee(find_structure(model, [x]))).all()


def test_a_model_may_be_noncentered():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        z = pm.Normal("z", 0, 1, shape=5)
        LaplaceMechanism("s", mu + z, scale=1.0, observed=1.0)
        assert not find_structure(model, [z]).centered


def test_shape_is_no_dependence():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=5)
        pm.Normal("u", 0, 1, shape=x.shape)
        LaplaceMechanism("s", x, scale=1.0, observed=1.0)
        assert names(find_structure(model, [x]).parameters) == ["u"]


def refused(build, message):
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=5)
        latents = build(mu, x) or [x]
        with pytest.raises(UnsupportedModelError, match=message):
            PrivacyAwareGibbs(latents, compile_kwargs=FAST)


def release(t):
    LaplaceMechanism("s", t, scale=1.0, observed=np.zeros(t.type.shape[1:]))


def test_no_release():
    refused(lambda mu, x: None, r"No released statistic.*\['x'\]")


def test_statistic_that_is_no_sum_of_records():
    refused(lambda mu, x: release(x - x.mean()), "statistic of 's'.*one record at a time")
    refused(lambda mu, x: release(pt.sort(x)), "statistic of 's'.*one record at a time")
    refused(lambda mu, x: release(x * x[0]), "statistic of 's'.*one record at a time")


def test_plain_sum_is_not_recognised():
    def build(mu, x):
        pm.Laplace("s", x.sum(), 1, observed=0.0)

    refused(build, "'s' depends on the latent records otherwise")


def test_release_that_also_uses_records_elsewhere():
    def build(mu, x):
        pm.Laplace("s", record_sum(x) + x[0], 1, observed=0.0)

    refused(build, "'s' depends on the latent records otherwise")


def test_two_sums_in_one_release():
    def build(mu, x):
        pm.Laplace("s", record_sum(x) * record_sum(x**2), 1, observed=0.0)

    refused(build, "2 sums over records")


def test_latent_with_another_likelihood():
    def build(mu, x):
        release(x)
        pm.Normal("y", x, 1, observed=np.zeros(5))

    refused(build, "'y' depends on the latent records otherwise")


def test_latent_in_a_potential():
    def build(mu, x):
        release(x)
        pm.Potential("tilt", x[0])

    refused(build, "Potential 'tilt'")


def test_unlisted_variable_that_depends_on_records():
    def build(mu, x):
        release(pm.Normal("y", x, 1, shape=5))

    refused(build, "'y' depends on the latent records but")


def test_unknown_noise():
    def build(mu, x):
        pm.Laplace("s", record_sum(x), pt.exp(mu), observed=0.0)

    refused(build, r"noise of 's' depends on \['mu'\]")


def test_records_that_are_not_on_the_first_axis():
    def scalar(mu, x):
        y = pm.Normal("y", 0, 1)
        release((x + y)[:, None])
        return [x, y]

    def series(mu, x):
        walk = pm.MvNormal("walk", np.zeros(5), np.eye(5))
        release(walk)
        return [walk]

    refused(scalar, "Axis 0 of the latent variable 'y'")
    refused(series, "Axis 0 of the latent variable 'walk'")


def test_records_that_depend_on_each_other():
    def build(mu, x):
        y = pm.Normal("y", x.mean(), 1, shape=5)
        release(y)
        return [x, y]

    refused(build, "density of 'y'.*one record at a time")


def test_different_numbers_of_records():
    def build(mu, x):
        y = pm.Normal("y", 0, 1, shape=4)
        release(x)
        LaplaceMechanism("r", y, scale=1.0, observed=0.0)
        return [x, y]

    refused(build, "same number of records.*latent 'x': 5, latent 'y': 4")


def test_step_that_updates_records_is_refused():
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=5)
        release(x)
        with pytest.raises(UnsupportedModelError, match=r"updates the latent records \['x'\]"):
            PrivacyAwareGibbs([x], parameters=pm.Metropolis([x]), compile_kwargs=FAST)
        with pytest.raises(UnsupportedModelError, match="must be PyMC steps"):
            PrivacyAwareGibbs([x], parameters="nuts", compile_kwargs=FAST)


def test_observed_variables_are_no_latents():
    refused(lambda mu, x: [pm.Normal("o", 0, 1, observed=np.zeros(5))], "free variables.*'o'")
