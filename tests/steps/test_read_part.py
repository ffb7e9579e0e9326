"""Hyperparameters that no record tells of: a law of what the likelihood reads, and the prior of all."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
from scipy import special

import pymc_dp as dp
from pymc_dp.compat import groups_of
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.records.queries import Gradient, Information, NormExceeds, Score
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.normal.read_part import OfPart, read_part

FAST = {"mode": "FAST_COMPILE"}
GROUPS = 8


def centred(n=8000, seed=1, hyper=lambda: pm.HalfNormal("tau", 1)):
    """A logistic regression with a level per group, written as people write it."""
    rng = np.random.default_rng(seed)
    x, g, level = rng.normal(size=n), rng.integers(GROUPS, size=n), rng.normal(0, 0.6, size=GROUPS)
    y = (rng.random(n) < special.expit(0.3 + 0.5 * x + level[g])).astype(int)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        tau = hyper()
        u = pm.Normal("u", 0, tau, shape=GROUPS)
        eta = a + b * pm.Data("X", x) + u[pm.Data("G", g)]
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model


def test_the_likelihood_reads_levels_and_not_their_spread():
    part = read_part(dp.compile(centred(200), compile_kwargs=FAST))
    assert part.labels == ["a", "b", *(f"u[{k}]" for k in range(GROUPS))]
    # τ integrated out: levels are independent and have mean 0, and the variance E τ² = 1, less its tail.
    covariance = np.linalg.inv(part.prior.precision)
    assert np.allclose(part.prior.mean, 0, atol=0.1)
    assert np.allclose(np.diag(covariance)[2:], 0.9, atol=0.15)
    assert np.allclose(np.diag(covariance)[:2], 4, rtol=0.1)


@pytest.mark.parametrize("hyper", [lambda: 1.0, lambda: pm.HalfFlat("tau", initval=1.0)])
def test_models_without_such_a_part(hyper):
    """All of θ is read; or the prior has no draws, so that no moments are known of it."""
    assert read_part(dp.compile(centred(200, hyper=hyper), compile_kwargs=FAST)) is None


@pytest.mark.parametrize("query", [Gradient, Score, Information])
def test_terms_are_those_of_the_entries_that_are_read(query):
    compiled = dp.compile(centred(50), compile_kwargs=FAST)
    records = LocalRecords(compiled, 1, words=np.zeros(4, np.uint64))
    part, bound = read_part(compiled), () if query is Gradient else (0.5,)
    theta = compiled.parameters.start + np.random.default_rng(2).normal(0, 0.3, compiled.d)
    W = np.eye(len(part.read))
    of_part = OfPart(query(theta[part.read], W, *bound), part.read, compiled.parameters.start)
    found = np.concatenate(list(of_part.terms(records)))
    # What is not read does not matter: every record's slope in its direction is 0.
    for chunk in records.gradients(theta):
        assert (np.delete(chunk, part.read, axis=1) == 0).all()
    whole = np.concatenate(list(query(theta, np.eye(compiled.d), *bound).terms(records)))
    norms = [np.linalg.norm(x.reshape(50, -1), axis=1) for x in (found, whole)]
    np.testing.assert_allclose(*norms, rtol=1e-10)
    assert found.shape[1] == of_part.dimension
    longer = OfPart(NormExceeds(of_part.of, norms[0].mean()), part.read, compiled.parameters.start)
    marks = np.concatenate(list(longer.terms(records)))
    assert marks.sum() == (norms[0] > norms[0].mean()).sum()


@pytest.mark.chain
@pytest.mark.slow
def test_draws_of_a_centred_hierarchy_are_the_exact_posterior_without_noise():
    model = centred()
    idata = dp.sample(1500, chains=2, epsilon=1e6, model=model, cores=1, progressbar=False,
                      step=partial(dp.DPSurrogate, family="normal"), noise_source=InsecureSeededNoise(1))  # fmt: skip
    with model:
        exact = pm.sample(1500, chains=2, cores=1, random_seed=1, progressbar=False,
                          compute_convergence_checks=False)  # fmt: skip
    found, right = (groups_of(result)["posterior"] for result in (idata, exact))
    for name in ("a", "b", "u", "tau"):
        values = [p[name].values.reshape(3000, -1) for p in (found, right)]
        sd = values[1].std(axis=0)
        # 3,000 draws with an autocorrelation of some ten, in both; and the law is normal.
        assert (np.abs(values[0].mean(axis=0) - values[1].mean(axis=0)) < 0.3 * sd).all(), name
        assert (np.abs(values[0].std(axis=0) / sd - 1) < 0.2).all(), name


@pytest.mark.chain
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_search_does_not_fall_down_the_funnel(seed):
    idata = dp.sample(300, chains=2, epsilon=1.0, model=centred(seed=seed), cores=1, progressbar=False,
                      step=partial(dp.DPSurrogate, family="normal"), noise_source=InsecureSeededNoise(seed))  # fmt: skip
    assert idata.attrs["privacy_usable"] == 1
    levels = groups_of(idata)["posterior"]["u"].values.reshape(600, -1)
    truth = np.random.default_rng(seed)
    truth.normal(size=8000), truth.integers(GROUPS, size=8000)
    truth = truth.normal(0, 0.6, size=GROUPS)
    assert (np.abs(levels.mean(axis=0) - truth) < 5 * levels.std(axis=0)).all()
