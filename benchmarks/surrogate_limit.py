"""The normal surrogate beside one release of the whole budget at the true mode, and its coverage.

python benchmarks/surrogate_limit.py                          # simulated data, n = 20,000
python benchmarks/surrogate_limit.py --n 200000 --replications 10
python benchmarks/surrogate_limit.py --real
python benchmarks/surrogate_limit.py --pure --models logistic poisson linear   # δ = 0
python benchmarks/surrogate_limit.py --public                 # covariates declared public; the limit is with private ones
"""

import argparse
import logging
import math
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _regressions import REAL, SIMULATED, Exact, another_run, model_of
from _report import write_report

import pymc_dp.steps.normal
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.steps.surrogate import DPSurrogate

EPSILONS = (0.3, 1, 3)
COLUMNS = [
    "model", "ε", "runs", "returned", "usable", "limit", "error", "error / limit: root mean square", "median", "90 %",
    "privacy shift / limit: median", "90 %", "coverage", "standard error", "exact", "wider", "error / own sd", "seconds",
]  # fmt: skip


def noise_of(step):
    """Standard deviation of an entry's noise / bound, of one release of the whole budget: under substitution."""
    if step.run.delta == 0:
        return 2 * math.sqrt(step.compiled.d + 1) / step.run.epsilon
    return 2 * step.run.multiplier_of_one()


def gaussian_noise(step):
    """The same of a Gaussian one of its ε at δ = 0.1 / units."""
    delta = 0.1 / step.roles.n_units
    return 2 * calibrate_noise(epsilon=step.run.epsilon, delta=delta, releases=1)


def one(step, exact, truth, rng_limit):
    """What a run has found, beside the exact posterior."""
    start = time.process_time()
    p = step.release().posterior
    seconds = time.process_time() - start
    sds = np.sqrt(np.diag(p.covariance))
    inside = np.abs(p.mean - (exact.mode if truth is None else truth)) < 1.645 * sds
    added = p.privacy_shifts * np.sqrt(np.diag(np.linalg.inv(p.exact)))
    return {
        "limit": exact.limit(noise_of(step), rng_limit), "gaussian": exact.limit(gaussian_noise(step), rng_limit),
        "error": np.square(exact.error(p.mean)), "shift": p.privacy_shift, "inside": inside.mean(),
        "exact": np.nan if truth is None else np.mean(np.abs(exact.mode - truth) < 1.645 * exact.sds),
        "wider": np.mean(sds / exact.sds), "own": np.mean(((p.mean - exact.mode) / added) ** 2),
        "usable": float(step.diagnostics.usable), "seconds": seconds,
    }  # fmt: skip


def row(name, epsilon, asked, found):
    """One row of the table."""
    get = {key: np.array([f[key] for f in found]) for key in found[0] if key != "error"}
    errors = np.array([f["error"].mean() for f in found])
    limit, ratios = np.sqrt(np.mean(get["limit"] ** 2)), get["shift"] / get["limit"]
    error, covered, each = float(np.sqrt(np.mean(errors))), get["inside"], np.sqrt(errors) / limit
    return [
        name, epsilon, asked, len(found), int(get["usable"].sum()), float(limit), error,
        float(error / limit), float(np.median(each)), float(np.quantile(each, 0.9)), float(np.median(ratios)),
        float(np.quantile(ratios, 0.9)), float(covered.mean()),
        float(covered.std() / len(covered) ** 0.5), float(np.mean(get["exact"])),
        float(np.median(get["wider"])), float(np.sqrt(np.mean(get["own"]))), float(np.median(get["seconds"])),
        float(error / np.sqrt(np.mean(get["gaussian"] ** 2))),
    ]  # fmt: skip


def normal(epsilon, model, budget):
    return DPSurrogate(family="normal", chains=1, draws=1, epsilon=epsilon, model=model, **budget)


def simulated(name, epsilon, n, replications, seed, budget):
    """Fresh data, and fresh noise, in every run."""
    make, likelihood, prior_sd = SIMULATED[name]
    rng = np.random.default_rng([seed, int(10 * epsilon), n, sorted(SIMULATED).index(name)])
    _, X, y = make(rng, n)
    step = normal(epsilon, model_of(likelihood, prior_sd, X, y), budget)
    found = []
    for k in range(replications):
        truth, X, y = make(rng, n)
        run = another_run(step, k + 1, X, y)
        try:
            found.append(one(run, Exact(run, truth), truth, k))
        except (PrivacyError, np.linalg.LinAlgError) as error:  # a run that did not return: counted
            print(f"{name}, ε = {epsilon}, run {k}: {type(error).__name__}: {error}")
    return row(name, epsilon, replications, found)


def on_real_data(name, epsilon, runs, budget):
    """The same data, and fresh noise, in every run."""
    load, likelihood, prior_sd = REAL[name]
    X, y = load()
    step = normal(epsilon, model_of(likelihood, prior_sd, X, y), budget)
    exact = Exact(step, step.compiled.parameters.start)
    return row(
        name,
        epsilon,
        runs,
        [one(another_run(step, k + 1, X, y), exact, None, k) for k in range(runs)],
    )


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--replications", type=int, default=100)
    arguments.add_argument("--n", type=int, default=20_000)
    arguments.add_argument("--real", action="store_true")
    arguments.add_argument("--pure", action="store_true")
    arguments.add_argument("--public", action="store_true")
    arguments.add_argument("--models", nargs="*")
    arguments.add_argument("--seed", type=int, default=2026)
    asked = arguments.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    # The draws are those of the law, which is at hand.
    pymc_dp.steps.normal.draw = lambda *_: None
    rows = []
    budget = {"delta": 0.0 if asked.pure else None, "public": ["X"] if asked.public else []}
    for name in asked.models or (REAL if asked.real else SIMULATED):
        for epsilon in EPSILONS:
            if asked.real:
                rows.append(on_real_data(name, epsilon, asked.replications, budget))
            else:
                rows.append(
                    simulated(name, epsilon, asked.n, asked.replications, asked.seed, budget)
                )
            print(*[f"{x:.3g}" if isinstance(x, float) else x for x in rows[-1]], flush=True)
    pure = asked.pure
    where = "real data" if asked.real else f"simulated data, n = {asked.n:,}"
    where += ", public covariates" if asked.public else ""
    write_report(
        ("surrogate_limit_real" if asked.real else f"surrogate_limit_{asked.n}")
        + ("_public" if asked.public else "") + pure * "_pure",
        f"The normal surrogate beside one release of the whole budget{pure * ' at δ = 0'}: {where}",
        f"Nothing tuned; δ = {'0' if pure else '0.1/n'}; substitute-one neighbours. *Limit*: root mean square error of the posterior "
        f"mean, in exact posterior sds of every parameter, after one {'release by the ℓ2 mechanism' if pure else 'Gaussian release'} "
        "of the whole budget's gradient at the true mode, with the best clipping bound for the exact sizes, and curvature known"
        + ("; of private covariates, though those of the run are public" if asked.public else "")
        + ". *Error*: the same of the "
        "run, over all runs, those that are said to be of no use included; and *median* and worst tenth of the single runs' "
        "errors over the limit. (A single run's error differs from its root mean square by chance: the worst tenth of "
        "the limit's own is 1.4.) *Privacy shift*: what the run says of its error. *Coverage* of 90 % intervals, of the true parameters where they "
        "were drawn from the prior, of the exact posterior means on real data; *exact*: that of the posterior without "
        "privacy. *Wider*: than its intervals. *Error / own sd*: root mean square of the error over what the run "
        "says that noise has added; 1 is right. *Seconds*: of CPU, from a compiled model to the law. "
        "The means and intervals are of the law's normal approximation, of which draws are made by NUTS.\n\n"
        f"`python benchmarks/surrogate_limit.py{' --public' if asked.public else ''}{pure * ' --pure'}"
        f"{' --real' if asked.real else f' --n {asked.n} --seed {asked.seed}'} --replications {asked.replications}"
        + (f" --models {' '.join(asked.models)}`" if asked.models else "`"),
        [*COLUMNS, "error / limit of Gaussian noise at δ = 0.1/n"] if pure else COLUMNS,
        rows if pure else [row[:-1] for row in rows],
    )  # fmt: skip


if __name__ == "__main__":
    main()
