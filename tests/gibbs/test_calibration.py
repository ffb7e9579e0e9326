"""Simulation-based calibration: with the truth from the prior, ranks are uniform."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_dp.compat import CHAIN_START
from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.statistics import clamp

N, SCALE = 20, 4.0


def simulate(rng):
    mu, sigma = rng.normal(), abs(rng.normal())
    u = np.clip(rng.normal(mu, sigma, size=N), -2, 2)
    return (mu, sigma), np.array([u.sum(), (u**2).sum()]) + rng.laplace(0, SCALE, size=2)


@pytest.mark.nightly
def test_ranks_are_uniform():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        x = pm.Normal("x", mu, sigma, shape=N)
        u = clamp(x, -2, 2)
        released = pm.Data("released", np.zeros(2))
        LaplaceMechanism("s", pt.stack([u, u**2], axis=1), scale=SCALE, observed=released)
        step = PrivacyAwareGibbs([x])
    rng = np.random.default_rng(11)
    kept, thin, tune, replications = 99, 8, 250, 120
    ranks = {"mu": [], "sigma": []}
    for replication in range(replications):
        truth, s = simulate(rng)
        model.set_data("released", s)
        point = model.initial_point()
        lengths = (tune, kept * thin) if CHAIN_START == "setup_chain" else ()
        getattr(step, CHAIN_START)(np.random.default_rng(replication), *lengths)
        step.reset_tuning()
        below = np.zeros(2)
        for i in range(tune + kept * thin):
            if i == tune:
                step.stop_tuning()
            point, _ = step.step(point)
            if i >= tune and (i - tune) % thin == thin - 1:
                below += (point["mu"] < truth[0], np.exp(point["sigma_log__"]) < truth[1])
        for name, rank in zip(ranks, below, strict=True):
            ranks[name].append(rank)
    for name, found in ranks.items():
        counts = np.histogram(found, bins=10, range=(0, kept + 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-3, f"{name}: {counts}"
