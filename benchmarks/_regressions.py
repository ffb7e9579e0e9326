"""Regressions, simulated and on real data, and what one release of the whole budget would make of them."""

import copy
import math
from dataclasses import replace

import numpy as np
import pymc as pm

from pymc_dp.linalg import floored, norms, power
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.records.queries import Gradient
from pymc_dp.surrogate.normal.law import Law, posterior_of

D, PRIOR_SD = 5, 0.5

_STEP = 1e-4
"""Of differences of gradients: parameters of these models are about 1."""


def design(rng, n):
    """An intercept and normal covariates, within ±3."""
    return np.column_stack([np.ones(n), np.clip(rng.standard_normal((n, D - 1)), -3, 3)])


def logistic(rng, n):
    """Coefficients, covariates and answers, all drawn from the model."""
    beta, X = rng.normal(0, PRIOR_SD, D), design(rng, n)
    return beta, X, (rng.random(n) < 1 / (1 + np.exp(-X @ beta))).astype(np.int64)


def poisson(rng, n):
    beta, X = rng.normal(0, PRIOR_SD, D), design(rng, n)
    return beta, X, rng.poisson(np.exp(X @ beta))


def linear(rng, n):
    """As above, and the logarithm of the unknown noise's standard deviation, which is that of the prior."""
    beta, sigma, X = rng.normal(0, PRIOR_SD, D), abs(rng.normal()), design(rng, n)
    return np.append(beta, np.log(sigma)), X, rng.normal(X @ beta, sigma)


def rare(rng, n):
    """Two per cent of positive outcomes, about; priors N(0, 2²)."""
    beta = rng.normal(0, 1, D) * np.array([0.3, 0.5, 0.5, 0.5, 0.5]) + np.array([-4, 0, 0, 0, 0])
    X = design(rng, n)
    return beta, X, (rng.random(n) < 1 / (1 + np.exp(-X @ beta))).astype(np.int64)


def category(rng, n, parts=(0.005, 0.001)):
    """Two categories of 0.5 and 0.1 per cent of the records; priors N(0, 2²)."""
    beta = rng.normal(0, 1, D) * np.array([0.5, 0.5, 0.5, 1, 1])
    kind = rng.choice(3, n, p=[1 - sum(parts), *parts])
    X = np.column_stack([design(rng, n)[:, :3], kind == 1, kind == 2]).astype(float)
    return beta, X, (rng.random(n) < 1 / (1 + np.exp(-X @ beta))).astype(np.int64)


SIMULATED = {
    "logistic": (logistic, "bernoulli", PRIOR_SD),
    "poisson": (poisson, "poisson", PRIOR_SD),
    "linear": (linear, "normal", PRIOR_SD),
    "rare outcome": (rare, "bernoulli", 2.0),
    "rare category": (category, "bernoulli", 2.0),
}


def mortgages():
    """Home ownership of 214,144 men, as in the demo."""
    from pymc_dp.demo import load

    return load()


def rand():
    """Any doctor visit on nine covariates of the RAND experiment, each scaled by a public range to ±1."""
    import statsmodels.api as sm

    data = sm.datasets.randhie.load_pandas().data
    y = (data.pop("mdvis").to_numpy() > 0).astype(np.int64)
    ranges = {
        "lncoins": (0, 5), "idp": (0, 1), "lpi": (0, 8), "fmde": (0, 9), "physlm": (0, 1),
        "disea": (0, 60), "hlthg": (0, 1), "hlthf": (0, 1), "hlthp": (0, 1),
    }  # fmt: skip
    columns = [
        2 * (data[k].to_numpy() - low) / (high - low) - 1 for k, (low, high) in ranges.items()
    ]
    return np.column_stack([np.ones(len(y)), *columns]), y


def earnings():
    """Earnings of 1978, in 10,000 dollars and top-coded, on age, schooling and three dummies."""
    from causaldata import cps_mixtape

    data = cps_mixtape.load_pandas().data
    columns = [(data["age"] - 35) / 20, (data["educ"] - 12) / 6]
    columns += [2.0 * data[k] - 1 for k in ("black", "hisp", "marr")]
    X = np.column_stack([np.ones(len(data)), *columns]).astype(float)
    return X, data["re78"].to_numpy(float) / 10_000


REAL = {
    "mortgages": (mortgages, "bernoulli", 1.0),
    "RAND, any visit": (rand, "bernoulli", 1.0),
    "earnings": (earnings, "normal", 1.0),
}


def model_of(likelihood, prior_sd, X, y):
    """The regression as a tutorial writes it."""
    with pm.Model(coords={"covariate": range(X.shape[1])}) as model:
        beta = pm.Normal("beta", 0, prior_sd, dims="covariate")
        mu = pm.Data("X", X, dims=("unit", "covariate")) @ beta
        observed = pm.Data("Y", y, dims="unit")
        if likelihood == "bernoulli":
            pm.Bernoulli("y", logit_p=mu, observed=observed, dims="unit")
        elif likelihood == "poisson":
            pm.Poisson("y", pm.math.exp(mu), observed=observed, dims="unit")
        else:
            pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=observed, dims="unit")
    return model


def another_run(step, number, X, y):
    """A run of its own on other data, without compiling again. Not for real data: skips guards."""
    for leaf in step.roles.record_data:
        leaf.values[...] = {"X": X, "Y": y}[leaf.name]
    step._curator._records.forget()
    run = copy.copy(step)
    run.run, run.run_id = copy.copy(step.run), number
    run.run.guarantee = replace(step.guarantee, run_id=number)
    run.run.ledger = PrivacyLedger(epsilon=math.inf, delta=step.run.delta)
    return run


class Exact:
    """The posterior without privacy, about its mode, and the limit.

    Parameters
    ----------
    step : DPSurrogate
        On the data.
    start : ndarray, shape (d,)
        Near the mode.
    """

    def __init__(self, step, start):
        self._records, self._log_public = step._curator._records, step.log_public
        theta, n = np.array(start, float), self._records.n_units
        for _ in range(100):
            gradient = sum(g.sum(axis=0) for g in self._records.gradients(theta))
            P = self._information(theta) - self._log_public.hessian(theta)
            slope = gradient + self._log_public.gradient(theta)
            move = np.linalg.solve(floored(P, 1e-6), slope)
            length = math.sqrt(move @ floored(P, 1e-6) @ move)
            theta = theta + move * min(1.0, 0.3 * math.sqrt(n) / max(length, 1e-300))
            if length < 1e-6:
                break
        self.mode, self.P = theta, P
        self.sds = np.sqrt(np.diag(np.linalg.inv(P)))

    def _information(self, theta):
        steps = _STEP * np.eye(len(theta))
        slopes = [
            [sum(g.sum(axis=0) for g in self._records.gradients(theta + e)) for e in (h, -h)]
            for h in steps
        ]
        H = np.array([(behind - ahead) / (2 * _STEP) for ahead, behind in slopes])
        return (H + H.T) / 2

    def error(self, mean):
        """Of a posterior mean, in exact sds, each parameter's."""
        return (mean - self.mode) / self.sds

    def limit(self, sensitivity, seed, noises=20):
        """Root mean square of these after one release of the whole budget at the mode, with the best bound.

        Parameters
        ----------
        sensitivity : float
            Of a sum, over its clipping bound, times the noise multiplier.
        """
        W, root = power(self.P, -0.5), power(self.P, 0.5)
        rows = np.concatenate(list(Gradient(self.mode, W).terms(self._records)))
        sizes, rng = norms(rows), np.random.default_rng(seed)
        ordered = np.sort(sizes)
        bounds = np.geomspace(ordered[len(ordered) // 2] / 2, ordered[-1], 300)
        costs = [(sensitivity * b) ** 2 + np.maximum(ordered - b, 0).sum() ** 2 for b in bounds]
        b = bounds[int(np.argmin(costs))]
        total = (rows * np.minimum(1, b / np.maximum(sizes, 1e-300))[:, None]).sum(axis=0)
        J, S = self._information(self.mode), (sensitivity * b) ** 2 * root @ root
        errors = []
        for _ in range(noises):
            noisy = total + sensitivity * b * rng.standard_normal(len(total))
            r = posterior_of(Law(self.mode, root @ noisy, J, S), self._log_public, self.mode)
            errors.append(self.error(r.mean))
        return float(np.sqrt(np.mean(np.square(errors))))
