"""Coverage of DPAnchored's 90 % intervals when the truth is drawn from the prior.

python benchmarks/anchored_coverage.py                  # 100 replications
python benchmarks/anchored_coverage.py --replications 20 --minutes 10
"""

import argparse
import copy
import logging
import math
import os
import time
from dataclasses import replace

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import arviz as az
import numpy as np
import pymc as pm
from _report import write_report

from pymc_dp.compat import CHAIN_START
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.steps.anchored import DPAnchored

N, D, DRAWS = 20_000, 5, 2000
EPSILONS = (0.3, 1, 3)
PRIOR_SD = 0.5


def logistic(rng):
    """Coefficients, covariates with an intercept, and answers."""
    beta, X = rng.normal(0, PRIOR_SD, D), design(rng)
    return beta, X, (rng.random(N) < 1 / (1 + np.exp(-X @ beta))).astype(np.int64)


def poisson(rng):
    beta, X = rng.normal(0, PRIOR_SD, D), design(rng)
    return beta, X, rng.poisson(np.exp(X @ beta))


def linear(rng):
    """As above, and the logarithm of the unknown noise's standard deviation."""
    beta, sigma, X = rng.normal(0, PRIOR_SD, D), abs(rng.normal()), design(rng)
    return np.append(beta, np.log(sigma)), X, rng.normal(X @ beta, sigma)


def design(rng):
    return np.column_stack([np.ones(N), rng.standard_normal((N, D - 1))])


def model_of(name, X, y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=D)
        mu = pm.Data("X", X) @ beta
        observed = pm.Data("Y", y)
        if name == "logistic":
            pm.Bernoulli("y", logit_p=mu, observed=observed)
        elif name == "poisson":
            pm.Poisson("y", pm.math.exp(mu), observed=observed)
        else:
            pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=observed)
    return model


EXPERIMENTS = {"logistic": logistic, "poisson": poisson, "linear": linear}


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


def unconstrained_draws(run, seed):
    """One chain in unconstrained space; noise-aware, and as the chain ran."""
    run.prepare()
    lengths = (0, DRAWS) if CHAIN_START == "setup_chain" else ()
    getattr(run, CHAIN_START)(np.random.default_rng(seed), *lengths)
    run.stop_tuning()
    point = run.model.initial_point()
    aware, raw, accepted = [], [], []
    for _ in range(DRAWS):
        point, (stats,) = run.step(point)
        aware.append(np.concatenate([np.ravel(point[v.name]) for v in run.vars]))
        raw.append(stats["unadjusted"])
        accepted.append(stats["accept_rate"])
    return np.array(aware), np.array(raw), float(np.mean(accepted))


def replicate(cases, replications, minutes=np.inf):
    """Of every case: covered (noise-aware and not), lengths, effective draws, tilts, refusals."""
    found, start = {}, time.monotonic()
    for name, epsilon in cases:
        rng = np.random.default_rng([6, int(10 * epsilon), sorted(EXPERIMENTS).index(name)])
        _, X, y = EXPERIMENTS[name](rng)
        step = DPAnchored(chains=1, draws=DRAWS, epsilon=epsilon, model=model_of(name, X, y))
        found[name, epsilon] = (step, rng, [], [])
    done = 0
    while done < replications and time.monotonic() - start < 60 * minutes:
        for (name, _), (step, rng, results, refused) in found.items():
            truth, X, y = EXPERIMENTS[name](rng)
            run = another_run(step, done + 1, X, y)
            try:
                aware, raw, accepted = unconstrained_draws(run, done)
            except PrivacyError:
                refused.append(done)
                continue
            ess = min(float(np.asarray(az.ess(column[None]))) for column in raw.T)
            low, high = np.quantile(aware, [0.05, 0.95], axis=0)
            low_raw, high_raw = np.quantile(raw, [0.05, 0.95], axis=0)
            results.append({
                "aware": (low <= truth) & (truth <= high),
                "raw": (low_raw <= truth) & (truth <= high_raw),
                "wider": np.mean((high - low) / (high_raw - low_raw)),
                "ess": ess, "tilt": run.guarantee.measured["tilt"], "accepted": accepted,
            })  # fmt: skip
        done += 1
        print(f"{done} replications, {time.monotonic() - start:.0f} s", flush=True)
    return {case: (results, refused) for case, (_, _, results, refused) in found.items()}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--replications", type=int, default=100)
    arguments.add_argument("--minutes", type=float, default=np.inf)
    asked = arguments.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    cases = [(name, epsilon) for name in EXPERIMENTS for epsilon in EPSILONS]
    rows = []
    for (name, epsilon), (results, refused) in replicate(
        cases, asked.replications, asked.minutes
    ).items():
        enough = [r["aware"].mean() for r in results if r["ess"] >= 100]
        aware = np.array([r["aware"].mean() for r in results])
        rows.append([
            name, epsilon, len(results) + len(refused), len(refused),
            float(aware.mean()), float(aware.std() / len(aware) ** 0.5),
            float(np.mean([r["raw"] for r in results])),
            *(float(np.median([r[key] for r in results])) for key in ("wider", "tilt", "ess", "accepted")),
            len(enough), float(np.mean(enough)) if enough else "",
        ])  # fmt: skip
    write_report(
        "anchored_coverage",
        "Coverage of DPAnchored's 90 % intervals",
        f"n = {N:,} records, {D} coefficients with N(0, {PRIOR_SD}²) priors (the linear model's unknown "
        f"σ has a half-normal one), one chain of {DRAWS} draws, δ = 0.1/n, nothing tuned. In every "
        "replication parameters are drawn from the prior, then data, so that exact intervals cover 90 % "
        "on average; the standard error is that of the replications. *Refused*: the step refused; the "
        "columns to the right are of the others. *Not aware*: the chain's own draws, without the anchor's "
        "noise. *Wider* (than the chain's own intervals), *tilt* (in posterior standard deviations), "
        "effective draws and acceptance are medians. The last two columns: how many runs had 100 effective "
        "draws or more, below which `dp.sample` warns, and the coverage of those.",
        ["model", "ε", "replications", "refused", "coverage", "standard error", "not aware", "wider",
         "tilt", "effective draws", "accepted", "ESS ≥ 100", "their coverage"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
