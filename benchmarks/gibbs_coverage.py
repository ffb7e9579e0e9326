"""Coverage of the 90 % intervals of PrivacyAwareGibbs when the truth is drawn from the prior.

python benchmarks/gibbs_coverage.py                     # 100 replications
python benchmarks/gibbs_coverage.py --replications 20
python benchmarks/gibbs_coverage.py --minutes 15        # as many as fit
"""

import argparse
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import arviz as az
import numpy as np
from _released import LOG_LINEAR, REGRESSION, drive, log_linear, regression
from _report import write_report

from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.statistics import clamp, second_moments

# Draws per chain, by how slowly it mixes.
DRAWS = {
    ("regression", 0.3): 1_000,
    ("regression", 1): 1_000,
    ("regression", 3): 1_500,
    ("log-linear", 0.3): 5_000,
    ("log-linear", 1): 2_000,
    ("log-linear", 3): 1_000,
}
TUNE = 300


def simulate_regression(rng, epsilon):
    beta = rng.normal(0, REGRESSION["prior_sd"], size=3)
    x = rng.normal(REGRESSION["mean_x"], 1, size=(100, 2))
    y = rng.normal(beta[0] + x @ beta[1:], REGRESSION["sigma2"] ** 0.5)
    total = second_moments(clamp(np.column_stack([x, y]), -10, 10, rescale=True)).sum(axis=0)
    return beta, total + rng.laplace(0, REGRESSION["sensitivity"] / epsilon, size=total.shape)


def simulate_log_linear(rng, epsilon):
    n, classes, features, levels = (
        LOG_LINEAR[k] for k in ("records", "classes", "features", "levels")
    )
    p = rng.dirichlet(np.full(classes, 2.0))
    q = rng.dirichlet(np.full(levels, 2.0), size=(features, classes))
    y = rng.choice(classes, size=n, p=p)
    counts = np.zeros((features, classes, levels))
    for k in range(features):
        for i in y:
            counts[k, i, rng.choice(levels, p=q[k, i])] += 1
    return p, counts + rng.laplace(0, LOG_LINEAR["sensitivity"] / epsilon, size=counts.shape)


EXPERIMENTS = {
    "regression": (regression, simulate_regression, "beta"),
    "log-linear": (log_linear, simulate_log_linear, "p"),
}


def covered(model, step, name, draws, seed):
    """Ends of the 90 % intervals, and the smallest number of effective draws."""
    draws = drive(model, step, name, draws, TUNE, seed)
    ends = np.quantile(draws, [0.05, 0.95], axis=0)
    return ends, min(float(np.asarray(az.ess(column[None]))) for column in draws.T)


def replicate(experiments, replications, minutes=np.inf):
    """Which intervals covered, their lengths and the effective draws, of every experiment."""
    cases, start = {}, time.monotonic()
    for experiment, epsilon in experiments:
        build, simulate, name = EXPERIMENTS[experiment]
        rng = np.random.default_rng([2022, int(10 * epsilon)])
        model, latents = build(epsilon, simulate(rng, epsilon)[1])
        with model:
            step = PrivacyAwareGibbs(latents)
        cases[experiment, epsilon] = (model, step, simulate, name, rng, [], [], [])
    done = 0
    while done < replications and time.monotonic() - start < 60 * minutes:
        for case, (model, step, simulate, name, rng, hits, lengths, ess) in cases.items():
            truth, s = simulate(rng, case[1])
            model.set_data("released", s)
            (low, high), least = covered(model, step, name, DRAWS[case], done)
            hits.append((low <= truth) & (truth <= high))
            lengths.append(high - low)
            ess.append(least)
        done += 1
        print(f"{done} replications, {time.monotonic() - start:.0f} s", flush=True)
    return {case: found[-3:] for case, found in cases.items()}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--replications", type=int, default=100)
    arguments.add_argument("--minutes", type=float, default=np.inf)
    asked = arguments.parse_args()
    cases = replicate(DRAWS, asked.replications, asked.minutes)

    rows = []
    for (experiment, epsilon), (hits, lengths, ess) in cases.items():
        done = len(hits)
        share = np.mean(hits, axis=0)
        rows.append([
            experiment, epsilon, done, DRAWS[experiment, epsilon], float(np.mean(hits)),
            float(np.std(np.mean(hits, axis=1)) / done**0.5),
            ", ".join(f"{x:.2f}" for x in share),
            float(np.mean(lengths)), float(np.median(ess)), float(np.min(ess)),
        ])  # fmt: skip
    write_report(
        "gibbs_coverage",
        "Coverage of 90 % intervals of PrivacyAwareGibbs",
        "Both experiments of Ju, Gong, Awan and Rao (2022) with Laplace releases, n = 100. In every "
        "replication parameters are drawn from the prior, then records, then the release, so that the "
        "intervals of an exact sampler cover 90 % on average; the standard error is that of the "
        f"replications. One chain each, after {TUNE} iterations of tuning. Coverage over all "
        "parameters of interest (β, or the class probabilities) together and one by one; effective draws "
        "are of the worst parameter, median and smallest over replications.",
        ["experiment", "ε", "replications", "draws", "coverage", "standard error", "each", "mean length",
         "effective draws, median", "smallest"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
