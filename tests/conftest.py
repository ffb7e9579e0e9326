"""Models that several test files share. Interpreted mode: compiling is not what they test."""

import numpy as np
import pymc as pm
import pytest

FAST = {"mode": "FAST_COMPILE"}


def make_logistic(n: int = 120, d: int = 2, seed: int = 0) -> pm.Model:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (rng.random(n) < 1 / (1 + np.exp(-x.sum(axis=1)))).astype(np.int64)
    coords = {"patient": [f"p{seed}-{i}" for i in range(n)], "feature": list("abcdefgh"[:d])}
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        X = pm.Data("X", x, dims=("patient", "feature"))
        pm.Bernoulli("ill", logit_p=X @ beta, observed=y, dims="patient")
    return model


@pytest.fixture
def logistic():
    return make_logistic


@pytest.fixture
def fast():
    return {"compile_kwargs": FAST}


@pytest.fixture
def quiet():
    """Keywords of pm.sample for short silent runs."""
    return {"cores": 1, "progressbar": False, "compute_convergence_checks": False}
