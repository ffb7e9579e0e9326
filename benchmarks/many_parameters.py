"""Logistic regressions with many correlated covariates for their records, beside one release of the whole budget; and with a horseshoe prior.

python benchmarks/many_parameters.py
python benchmarks/many_parameters.py horseshoe
python benchmarks/many_parameters.py constants     # of laws of what the likelihood reads, halved and doubled, on other seeds
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import logging
import sys
import time
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pymc as pm
from _regressions import Exact, another_run, model_of
from _report import write_report
from scipy.special import expit
from surrogate_limit import normal, one, row

import pymc_dp as dp
import pymc_dp.steps.normal
from pymc_dp.compat import summary
from pymc_dp.surrogate.normal import conditional, estimates, read_part

SEED, N, EPSILON, DELTA = 2_064, 200_000, 1.0, 1e-6
ROWS = [
    (2_000, 5, 10, 16), (2_000, 10, 10, 16), (25_000, 50, 10, 8), (N, 50, 10, 6), (N, 50, 100, 6), (N, 100, 10, 4), (N, 100, 100, 4),
    (N, 200, 10, 2), (N, 200, 100, 2),
]  # fmt: skip
"""Records, coefficients, condition number of the covariates' covariance, and runs."""
HORSESHOE = 100, 8
"""Coefficients, and those that matter."""
SMALLER, SMALLER_N, SMALLER_SEED, REPEATS = (20, 5), 20_000, 7_000_004, 3
"""The same for constants, and runs at each ε."""
CONSTANTS = [
    (estimates, "_SPREAD"), (estimates, "_STANDS_OUT"), (read_part, "_TAIL"), (read_part, "_WIDEST"), (read_part, "_LEAST_APART"), (read_part, "_TRIED"),
    (conditional, "_SEEN"), (conditional, "_APART"),
]  # fmt: skip


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


def with_horseshoe(X, y, many):
    """As in PyMC's gallery, of so many coefficients that are not 0, about."""
    n, d = len(y), X.shape[1] - 1
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", many / (d - many) * 2 / n**0.5)
        lam = pm.HalfCauchy("lam", 1, shape=d)
        z = pm.Normal("z", 0, 1, shape=d)
        beta = pm.Deterministic("beta", z * tau * lam)
        logit = pm.Normal("a", 0, 1) + pm.Data("X", X[:, 1:]) @ beta
        pm.Bernoulli("y", logit_p=logit, observed=pm.Data("Y", y))
    return model


def few_that_matter(rng, d, many, n):
    """The same of coefficients of which few are not 0."""
    _, X, _ = made(rng, d + 1, 10, n)
    truth = np.zeros(d)
    truth[:many] = rng.choice([-1, 1], many) * rng.uniform(0.05, 0.3, many)
    y = (rng.random(n) < 1 / (1 + np.exp(-X[:, 1:] @ truth))).astype(np.int64)
    return truth, X, y


def constants():
    """What halving and doubling does to coefficients under a horseshoe: the same data and noises for every setting."""
    d, many = SMALLER
    data = [
        few_that_matter(np.random.default_rng([SMALLER_SEED, k]), d, many, SMALLER_N)
        for k in range(REPEATS)
    ]
    plan = [("as it is", "", "", nullcontext(), 0), ("other noise", "", "", nullcontext(), 100)]
    for module, name in CONSTANTS:
        value, label = getattr(module, name), f"{module.__name__.rpartition('.')[2]}.{name}"
        for other in (type(value)(value / 2), 2 * value):
            plan.append((label, str(value), str(other), mock.patch.object(module, name, other), 0))
    rows, before = [], None
    for label, value, other, patch, seed in plan:
        with patch:
            found = np.array(
                [
                    [of_coefficients(*one, epsilon, seed + k) for k, one in enumerate(data)]
                    for epsilon in (1.0, 3.0)
                ]
            )
        errors, means = np.sqrt(found[..., 0].mean(axis=1)), found[..., 1:].mean(axis=(0, 1))
        before = errors if before is None else before
        rows.append([label, value, other, *map(float, [*(errors / before), *means])])
        print(*rows[-1], flush=True)
    write_report(
        "read_constants",
        "The constants of laws of what the likelihood reads, halved and doubled",
        f"A horseshoe as in [the table of a hundred](horseshoe_pymc6.md), of {d} coefficients of which {many} matter, {SMALLER_N:,} records, {REPEATS} data sets at ε of 1 "
        "and 3, with the same noises for every setting but the second, which shows what chance does. *Error*: root mean square of posterior means' distances from the truth, in parts of the first "
        "row's. Coverage is of the truth in 90 % intervals.\n\n`python benchmarks/many_parameters.py constants`",
        ["constant", "is", "set to", "error at ε = 1", "at ε = 3", "covered: those that matter", "the others", "usable"],
        rows,
    )  # fmt: skip


def of_coefficients(truth, X, y, epsilon, seed):
    """Mean square of errors, coverage of what matters and of the rest, and whether the run is usable."""
    found = dp.sample(
        500, model=with_horseshoe(X, y, SMALLER[1]), epsilon=epsilon, delta=DELTA, chains=1, cores=1,
        noise_source=dp.InsecureSeededNoise(seed), progressbar=False,
    )  # fmt: skip
    draws = found.posterior["beta"].values.reshape(-1, len(truth))
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    inside, off = (low <= truth) & (truth <= high), draws.mean(axis=0) - truth
    return (
        np.mean(off**2),
        inside[: SMALLER[1]].mean(),
        inside[SMALLER[1] :].mean(),
        float(found.attrs["privacy_usable"]),
    )


def horseshoe():
    """Whether what matters is found, and covered."""
    d, many = HORSESHOE
    truth, X, y = few_that_matter(np.random.default_rng([SEED, 99]), d, many, N)
    start = time.process_time()
    found = dp.sample(
        1000, model=with_horseshoe(X, y, many), epsilon=EPSILON, delta=DELTA, chains=2, cores=1
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
    {"horseshoe": horseshoe, "constants": constants}.get(" ".join(sys.argv[1:]), main)()
