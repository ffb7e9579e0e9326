"""Polynomials in pieces against the sums they stand for, and kernels that are called by their names."""

import os
import subprocess
import sys

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from pytensor.graph.traversal import ancestors
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.mechanisms.count_pieces import no_pieces
from pymc_dp.mechanisms.count_sums import CountSum, count_sum

MECHANISMS = {
    "gaussian": dp.GaussianMechanism,
    "laplace": dp.LaplaceMechanism,
    "discrete gaussian": dp.DiscreteGaussianMechanism,
    "discrete laplace": dp.DiscreteLaplaceMechanism,
}
RELEASED = np.array([-9, 0, 3, 17, 60, 130])


def kernel_of(law, noise, **published):
    """What the kernel is given."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=RELEASED.size)
        total = (
            pm.Binomial.dist(120, pm.math.sigmoid(x))
            if law == "binomial"
            else pm.Poisson.dist(pm.math.exp(x))
        )
        s = np.maximum(RELEASED // 10 * 10, 0) if published else RELEASED
        MECHANISMS[noise]("s", total=total, scale=3, observed=s, **published)
    nodes = [v.owner for v in ancestors([model.logp()]) if v.owner is not None]
    (node,) = {node for node in nodes if isinstance(node.op, CountSum)}
    return [x.get_value() for x in node.inputs[1:]]


@pytest.mark.sweep
@pytest.mark.parametrize("noise", MECHANISMS)
@pytest.mark.parametrize("law", ["binomial", "poisson"])
@pytest.mark.parametrize("published", [{}, {"rounded": 10, "lower": 0}])
def test_pieces_are_the_sum(law, noise, published):
    *known, low, per, pieces = kernel_of(law, noise, **published)
    assert np.isfinite(low).mean() > 0.5  # else nothing is tried
    ends = low + pieces.shape[1] / per
    for share in np.linspace(-0.1, 1.1, 241):  # beyond the ends too, where they are sums themselves
        eta = np.where(np.isfinite(low), low + share * (ends - low), 5 * share)
        value, slope = count_sum(eta, True, *known, low, per, pieces)
        exact, exact_slope = count_sum(eta, True, *known, *no_pieces(eta.size))
        np.testing.assert_allclose(value, exact, rtol=1e-12, atol=2e-10)
        np.testing.assert_allclose(slope, exact_slope, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("law", ["binomial", "poisson"])
def test_the_natural_parameter_is_the_mean_parameter_and_edges_are_said(law):
    known = kernel_of(law, "laplace")
    eta = np.array([-40.0, -3.0, -1.0, 0.5, 2.0, 4.0])
    mean = special.expit(eta) if law == "binomial" else np.exp(eta)
    by = mean * (1 - mean) if law == "binomial" else mean
    value, slope = count_sum(eta, True, *known)
    again, by_mean = count_sum(mean, False, *known)
    np.testing.assert_allclose(again, value, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(by_mean * by, slope, rtol=1e-7, atol=1e-7)
    for nowhere in (np.nan, np.inf, -np.inf):
        value, slope = count_sum(np.full(RELEASED.size, nowhere), True, *known)
        assert np.isnan(value).all()
        assert (slope == 0).all()


def test_certain_counts_and_impossible_parameters():
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        p = pm.math.sigmoid(x)
        dp.LaplaceMechanism("s", total=pm.Binomial.dist(20, p), scale=3, observed=np.array([4, 4]))
        q = pm.Flat("q")
        dp.LaplaceMechanism("t", total=pm.Binomial.dist(20, q), scale=3, observed=4)
    terms = model.compile_logp(sum=False)

    def log_density(x, q):
        point = {"x": np.array(x), "q": np.array(q)}
        *_, s, t = terms(point)
        return [*s, t]

    noise = stats.laplace(scale=3).logpdf
    np.testing.assert_allclose(log_density([-np.inf, np.inf], 0.0), noise([4, 16, 4]))
    np.testing.assert_allclose(log_density([-800.0, 800.0], 1.0), noise([4, 16, 16]))
    assert np.isnan(log_density([np.nan, 0.0], -0.1)).tolist() == [True, False, True]
    assert np.isfinite(
        model.compile_dlogp()({"x": np.array([-np.inf, 800.0]), "q": np.array(0.0)})
    ).all()


AGAIN = """
import sys
import cloudpickle
import numpy as np
f, g = cloudpickle.loads(open(sys.argv[1], "rb").read())
if g is None:  # the model itself: compiled code is in the caches, or is put there
    f = f.compile_logp(mode="NUMBA")
print(float(f({"x": np.zeros(3), "mu": np.zeros(())})))
"""


@pytest.mark.process
@pytest.mark.slow
def test_fresh_processes_call_kernels_that_others_compiled(tmp_path):
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        s = np.array([10, 20, 30])
        dp.LaplaceMechanism(
            "s", total=pm.Binomial.dist(50, pm.math.sigmoid(x)), scale=4, observed=s
        )
        mu = pm.Normal("mu")
        dp.GaussianMechanism("t", pm.Normal.dist(mu).clip(-3, 3), n=100, scale=2, observed=30.0)
        p = pm.math.softmax(x)
        dp.GaussianMechanism("u", total=pm.Multinomial.dist(60, p), scale=4, observed=s)
    f = model.compile_logp(mode="NUMBA")
    expected = float(f({"x": np.zeros(3), "mu": np.zeros(())}))
    path = tmp_path / "pickled"
    caches = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTENSOR_FLAGS": f"base_compiledir={tmp_path}"}
    # Twice the model: what is compiled first, and then found; and the compiled function.
    for given in ((model, None), (model, None), (f, "compiled")):
        path.write_bytes(cloudpickle.dumps(given))
        run = subprocess.run([sys.executable, "-c", AGAIN, str(path)], env=os.environ | caches,
                             capture_output=True, text=True, check=False)  # fmt: skip
        assert run.returncode == 0, run.stderr
        assert float(run.stdout) == pytest.approx(expected, rel=1e-12)
