"""Models that benchmarks share."""

import numpy as np
import pymc as pm


def logistic(n: int, d: int, seed: int = 0) -> pm.Model:
    """Logistic regression on n records and d standard normal covariates."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    beta = rng.normal(size=d) / np.sqrt(d)
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ beta))).astype(np.int64)
    with pm.Model() as model:
        b = pm.Normal("beta", 0, 1, shape=d)
        pm.Bernoulli("y", logit_p=pm.Data("X", x) @ b, observed=pm.Data("Y", y))
    return model
