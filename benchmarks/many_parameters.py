"""Logistic regressions with many correlated covariates for their records, beside one release of the whole budget; and with a horseshoe prior.

python benchmarks/many_parameters.py
python benchmarks/many_parameters.py horseshoe
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import logging
import sys
import time

import numpy as np
import pymc as pm
from _regressions import Exact, another_run, model_of
from _report import write_report
from scipy.special import expit
from surrogate_limit import normal, one, row

import pymc_dp as dp
import pymc_dp.steps.normal
from pymc_dp.compat import summary

SEED, N, EPSILON, DELTA = 2_064, 200_000, 1.0, 1e-6
ROWS = [
    (2_000, 5, 10, 16), (2_000, 10, 10, 16), (25_000, 50, 10, 5), (N, 50, 10, 3), (N, 50, 100, 3), (N, 100, 10, 3), (N, 100, 100, 3),
    (N, 200, 10, 1), (N, 200, 100, 1),
]  # fmt: skip
"""Records, coefficients, condition number of the covariates' covariance, and runs."""
HORSESHOE = 100, 8
"""Coefficients, and those that matter."""


def made(rng, d, condition, n=N):
    """Coefficients, covariates and answers. Covariates are normal, with variances of about 1 and a random basis."""
    variances = np.geomspace(1, 1 / condition, d - 1)
    variances *= (d - 1) / variances.sum()
    basis, _ = np.linalg.qr(rng.normal(size=(d - 1, d - 1)))
    X = rng.normal(size=(n, d - 1)) @ (basis * np.sqrt(variances)) @ basis.T
    X, beta = np.column_stack([np.ones(n), X]), rng.normal(0, d**-0.5, d)
    return beta, X, (rng.random(n) < 1 / (1 + np.exp(-X @ beta))).astype(np.int64)


class ExactLogistic(Exact):
    """The same of a logistic regression, whose information needs no differences."""

    def __init__(self, step, start, X):
        self._X = X
        super().__init__(step, start)

    def _information(self, theta):
        p = expit(self._X @ theta)
        return self._X.T @ (self._X * (p * (1 - p))[:, None])


def main():
    logging.getLogger("pymc").setLevel(logging.ERROR)
    pymc_dp.steps.normal.draw = lambda *_: None
    rows = []
    for k, (n, d, condition, runs) in enumerate(ROWS):
        rng, found = np.random.default_rng([SEED, k]), []
        _, X, y = made(rng, d, condition, n)
        step = normal(EPSILON, model_of("bernoulli", 1.0, X, y), {"delta": DELTA})
        for r in range(runs):
            truth, X, y = made(rng, d, condition, n)
            run = another_run(step, r + 1, X, y)
            found.append(one(run, ExactLogistic(run, truth, X), truth, r))
            print(
                n, d, condition, np.sqrt(found[-1]["error"].mean()) / found[-1]["limit"], flush=True
            )
        whole = row("", EPSILON, runs, found)
        rows.append([n, d, condition, *whole[3:8], *whole[12:14], *whole[15:18]])
        report(rows)


def with_horseshoe(X, y):
    """As in PyMC's gallery, of eight coefficients that are not 0, about."""
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", HORSESHOE[1] / (HORSESHOE[0] - HORSESHOE[1]) * 2 / N**0.5)
        lam = pm.HalfCauchy("lam", 1, shape=HORSESHOE[0])
        z = pm.Normal("z", 0, 1, shape=HORSESHOE[0])
        beta = pm.Deterministic("beta", z * tau * lam)
        logit = pm.Normal("a", 0, 1) + pm.Data("X", X[:, 1:]) @ beta
        pm.Bernoulli("y", logit_p=logit, observed=pm.Data("Y", y))
    return model


def horseshoe():
    """Whether what matters is found, and covered."""
    d, many = HORSESHOE
    rng = np.random.default_rng([SEED, 99])
    _, X, _ = made(rng, d + 1, 10)
    truth = np.zeros(d)
    truth[:many] = rng.choice([-1, 1], many) * rng.uniform(0.05, 0.3, many)
    y = (rng.random(N) < 1 / (1 + np.exp(-X[:, 1:] @ truth))).astype(np.int64)
    start = time.process_time()
    found = dp.sample(
        1000, model=with_horseshoe(X, y), epsilon=EPSILON, delta=DELTA, chains=2, cores=1
    )
    draws = found.posterior["beta"].values.reshape(-1, d)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    inside, apart = (low <= truth) & (truth <= high), (low > 0) | (high < 0)
    row = [
        d, many, int(apart[:many].sum()), int(apart[many:].sum()), float(inside[:many].mean()), float(inside[many:].mean()),
        float(draws[:, :many].std(axis=0).mean()), float(draws[:, many:].std(axis=0).mean()),
        float(summary(found, var_names=["beta"])["ess_bulk"].astype(float).min()),
        time.process_time() - start,
    ]  # fmt: skip
    write_report(
        "horseshoe",
        "A horseshoe prior on many coefficients",
        f"Logistic regression of {N:,} records on {d} correlated normal covariates (condition number 10), {many} of them with coefficients of .05 "
        f"to .3 in size, the others 0; horseshoe prior, ε = {EPSILON:g}, one run. *Found* are coefficients whose 90 % interval does not hold 0.\n\n"
        "`python benchmarks/many_parameters.py horseshoe`",
        ["coefficients", "that matter", "found of these", "of the others", "covered: these", "the others", "sd: these", "the others",
         "least ESS", "CPU seconds"],
        [row],
    )  # fmt: skip


def report(rows):
    write_report(
        "many_parameters",
        "Many parameters without groups",
        "Logistic regressions with an intercept and correlated normal covariates, coefficients N(0, 1/d), priors N(0, 1); "
        f"ε = {EPSILON:g}, δ = {DELTA:g}, `DPSurrogate` without settings. *Condition* is the condition number of the covariates' covariance. "
        "*Limit*, *error* and the others as in [the table of easy models](surrogate_limit_200000_pymc6.md): root mean square errors of "
        "posterior means in exact posterior sds.",
        ["records", "coefficients", "condition", "runs", "usable", "limit", "error", "error / limit", "coverage", "standard error", "wider",
         "error / own sd", "CPU seconds"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    horseshoe() if sys.argv[1:] == ["horseshoe"] else main()
