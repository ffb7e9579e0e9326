"""Log-likelihoods with corners: found without data, and sampled by what stands in for their curvature."""

import json

import numpy as np
import pymc as pm
import pytest
from scipy.stats import laplace

import pymc_dp as dp
from pymc_dp.likelihood.corners import ScoreProducts
from pymc_dp.likelihood.curvature import UnitHessians

FAST = {"mode": "FAST_COMPILE"}
LAWS = {
    "laplace": lambda mu, s, y: pm.Laplace("y", mu, s, observed=y),
    "quantile": lambda mu, s, y: pm.AsymmetricLaplace("y", mu=mu, q=0.2, b=s, observed=y),
    "normal": lambda mu, s, y: pm.Normal("y", mu, s, observed=y),
    "student": lambda mu, s, y: pm.StudentT("y", nu=4, mu=mu, sigma=s, observed=y),
    "linear": lambda mu, s, y: pm.CustomDist(
        "y", mu, s, logp=lambda y, mu, s: mu * y + s, observed=y
    ),
    "exponential": lambda mu, s, y: pm.Exponential("y", s, observed=y**2),
}


def regression(law, n=400):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, 2))
    y = x @ [1.0, -0.5] + laplace.rvs(scale=0.7, size=n, random_state=rng)
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 2)
        LAWS[law](pm.Data("X", x) @ b, s, pm.Data("Y", y))
    return model, x, y


@pytest.mark.parametrize("law", LAWS)
def test_corners_are_found(law):
    model, *_ = regression(law)
    hessians = dp.compile(model, compile_kwargs=FAST).hessians
    assert isinstance(hessians, ScoreProducts if law in ("laplace", "quantile") else UnitHessians)


def test_what_stands_in_is_the_information():
    """Of a right model, nearly: 1/s² in a location, 1 in the logarithm of the scale."""
    model, x, y = regression("laplace", n=20_000)
    compiled = dp.compile(model, compile_kwargs=FAST)
    found = -sum(h.sum(axis=0) for h in compiled.hessians(np.array([1.0, -0.5, np.log(0.7)])))
    expected = np.zeros((3, 3))
    expected[:2, :2], expected[2, 2] = x.T @ x / 0.7**2, len(y)
    # Of log s, the mean of (|r|/s - 1)^2, whose standard deviation is that of (e - 1)^2, sqrt(8), over sqrt(n).
    np.testing.assert_allclose(found, expected, atol=5 * 8**0.5 * len(y) ** 0.5)


@pytest.mark.chain
def test_a_regression_with_absolute_residuals(quiet):
    model, _, y = regression("laplace", n=4000)
    idata = dp.sample(
        model, epsilon=4.0, delta=1e-5, chains=2, random_seed=1, **quiet,
        noise_source=dp.InsecureSeededNoise(1), compile_kwargs=FAST,
    )  # fmt: skip
    assert idata.attrs["privacy_usable"] == 1
    b = idata.posterior["b"].values.reshape(-1, 2)
    sampling = 0.7 / np.sqrt(len(y))  # the standard deviation that the true law has without noise
    shift = shift_of(idata)
    assert shift < 1
    assert np.abs(b.mean(axis=0) - [1.0, -0.5]).max() < 5 * sampling * np.hypot(1, shift)
    assert (b.std(axis=0) > 0.7 * sampling).all()
    assert (b.std(axis=0) < 2 * sampling * np.hypot(1, shift)).all()


def shift_of(idata):

    return json.loads(idata.attrs["privacy_diagnostics"])["privacy_shift"]
