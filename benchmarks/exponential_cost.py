"""DPExponentialFamily: cost beside the number of records, and exactness with noise on.

Run: ``python benchmarks/exponential_cost.py``. About 5 minutes.
"""

import gc
import logging
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import arviz as az
import numpy as np
import pymc as pm
from _report import write_report
from scipy import stats

import pymc_dp as dp
from pymc_dp.compat import CHAIN_START

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
PENALTY_UP_TO = 1_000_000
BLOCK, BLOCKS = 50, 40
MEAN, SHARE, BOUNDS = 3.0, 0.3, (0, 20)


def poisson_gamma(n):
    """Counts with a conjugate prior, and the posterior of their mean, counts limited to the range."""
    y = np.random.default_rng(n).poisson(MEAN, size=n)
    with pm.Model() as model:
        pm.Poisson("y", pm.Gamma("mean", 2, 0.5, initval=MEAN), observed=pm.Data("Y", y))
    total = int(np.minimum(y, BOUNDS[1]).sum())
    return model, "mean", stats.gamma(2 + total, scale=1 / (0.5 + n))


def beta_bernoulli(n):
    """Yes and no with a conjugate prior, and the posterior of the share of yes."""
    y = (np.random.default_rng(n).random(n) < SHARE).astype(np.int64)
    with pm.Model() as model:
        pm.Bernoulli("y", pm.Beta("share", 1, 1), observed=pm.Data("Y", y))
    return model, "share", stats.beta(1 + y.sum(), 1 + n - y.sum())


def started(step):
    lengths = (0, step.iterations) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(1), *lengths)
    step.stop_tuning()
    return step, step.model.initial_point()


def block(step, point, iterations=BLOCK):
    """CPU milliseconds per iteration of one block, and where it ends."""
    start = time.process_time()
    for _ in range(iterations):
        point, _ = step.step(point)
    return 1e3 * (time.process_time() - start) / iterations, point


def cost():
    draws = BLOCK * (BLOCKS + 1) + 1
    warm = poisson_gamma(1000)[0]
    step, point = started(
        dp.DPExponentialFamily(chains=1, draws=1, epsilon=1.0, bounds=BOUNDS, model=warm)
    )
    step.step(point)  # what is loaded once belongs to no size
    chains, rows, other = [], [], []
    for n in SIZES:
        model = poisson_gamma(n)[0]
        start = time.process_time()
        step, point = started(
            dp.DPExponentialFamily(chains=1, draws=draws, epsilon=1.0, bounds=BOUNDS, model=model)
        )
        built = time.process_time() - start
        first, point = block(step, point, 1)
        chains.append((step, point))
        rows.append([n, built, first / 1e3])
        if n <= PENALTY_UP_TO:
            other.append(
                started(dp.DPPenalty(chains=1, draws=draws, epsilon=1.0, clip=20.0, model=model))
            )
    times = np.empty((BLOCKS + 1, len(SIZES)))
    other_times = np.empty((BLOCKS + 1, len(other)))
    for b in range(BLOCKS + 1):  # in turn, so that a busy machine is busy for all
        for k, (step, point) in enumerate(chains):
            times[b, k], point = block(step, point)
            chains[k] = step, point
        for k, (step, point) in enumerate(other):
            other_times[b, k], point = block(step, point, 5)
            other[k] = step, point
    ours, theirs = np.median(times[1:], axis=0), np.median(other_times[1:], axis=0)
    ratio = np.median(times[1:] / times[1:, :1], axis=0)
    for k, row in enumerate(rows):
        row += [float(ours[k]), float(ratio[k]), float(theirs[k]) if k < len(theirs) else "—"]
    write_report(
        "exponential_cost",
        "Cost of DPExponentialFamily beside the number of records",
        f"Poisson counts with a Gamma prior, one thread. *Built*: CPU seconds until the step has checked "
        f"the model; *summed*: of the first iteration, which makes the sum. Then CPU milliseconds per "
        f"iteration, median of {BLOCKS} blocks of {BLOCK}, all sizes in turn in one process; the ratio is "
        f"that to n = {SIZES[0]:,}, of blocks side by side. From n = {SIZES[0]:,} to {SIZES[-1]:,} an "
        f"iteration takes **{ratio[-1]:.2f}** times as long. DPPenalty reads every record every time.",
        ["n", "built s", "summed s", "ms per iteration", "ratio", "DPPenalty ms"],
        rows,
    )


def exactness():
    rows = []
    for build, n, epsilon in [
        (beta_bernoulli, 100_000, 2.0),
        (beta_bernoulli, 1_000_000, 1.0),
        (poisson_gamma, 1_000_000, 2.0),
        (poisson_gamma, 10_000_000, 1.0),
    ]:
        model, name, exact = build(n)
        bounds = {"bounds": BOUNDS} if build is poisson_gamma else {}
        step = dp.DPExponentialFamily(
            draws=4000, tune=1000, chains=2, epsilon=epsilon, model=model, **bounds
        )
        raw = pm.sample(
            4000, tune=1000, chains=2, step=step, model=model, cores=1, random_seed=1,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
        safe = dp.release(raw)
        draws = safe["posterior"][name].values
        effective = float(np.asarray(az.ess(draws)))
        mu = 1 / dp.calibrate_noise(epsilon=epsilon, delta=step.guarantee.delta, releases=1)
        width = 1 if build is beta_bernoulli else BOUNDS[1] - BOUNDS[0]
        variance = SHARE * (1 - SHARE) if build is beta_bernoulli else MEAN
        rows.append([
            build.__name__, n, epsilon, float(step.guarantee.delta), effective,
            float(safe["sample_stats"]["accept_rate"].mean()),
            float((draws.mean() - exact.mean()) / (exact.std() / np.sqrt(effective))),
            float(draws.std() / exact.std()),
            float((width / mu) ** 2 / (n * variance)),
        ])  # fmt: skip
        print(rows[-1], flush=True)
        del model, step, raw
        gc.collect()
    worst = max(abs(row[6]) for row in rows)
    write_report(
        "exponential_exact",
        "Exactness of DPExponentialFamily with noise on",
        "Conjugate models, whose posteriors are known. Two chains of 1,000 tuning iterations and 4,000 draws, "
        "secure noise. *Error*: of the mean, in Monte Carlo standard errors; the largest is "
        f"**{worst:.1f}** (target: below 5). *One release*: by how much the posterior variance would grow if the whole "
        "budget were spent on one noisy sum instead; see "
        "[when to use it](../exponential_families.md#one-release-is-usually-better).",
        ["model", "n", "ε", "δ", "effective draws", "acceptance", "error", "sd / exact sd", "one release"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    logging.getLogger("pymc").setLevel(logging.ERROR)
    cost()
    exactness()
