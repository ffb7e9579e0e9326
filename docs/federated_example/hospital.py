"""The model that all owners and the coordinator agree on, and made-up data for each owner."""

import numpy as np
import pymc as pm


def prior():
    """Parameters and their prior: all that the coordinator has."""
    with pm.Model(coords={"term": ["intercept", "age", "dose"]}) as model:
        pm.Normal("beta", 0, 2, dims="term")
    return model


def with_records(X, y):
    """An owner's model: the same, with the likelihood of its own records."""
    model = prior()
    model.add_coord("patient", length=len(y))
    with model:
        covariates = pm.Data("X", X, dims=("patient", "term"))
        pm.Bernoulli("ill", logit_p=covariates @ model["beta"], observed=y, dims="patient")
    return model


def records(k, n=3000):
    """Patients of hospital `k`: its own age structure and size."""
    rng = np.random.default_rng(k)
    X = np.column_stack([np.ones(n), rng.normal(0.3 * k, 1, n), rng.normal(size=n)])
    ill = rng.random(n) < 1 / (1 + np.exp(-X @ [-0.5, 0.8, -0.6]))
    return X, ill.astype(int)
