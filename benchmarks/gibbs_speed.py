"""CPU time of PrivacyAwareGibbs: one sweep against n, and the paper's regression.

python benchmarks/gibbs_speed.py
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import time

import numpy as np
import pymc as pm
from _released import REGRESSION, ConjugateRegression, regression, released, run
from _report import write_report

from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.statistics import clamp

# CPU seconds of 10,000 iterations of the paper's public R program, and of 1,000 of dapper's, on the
# same data and a machine like the one of this table.
R_SECONDS, DAPPER_SECONDS = 124.0, 2.3


def per_call(function, seconds=2.0):
    function()
    calls, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        function()
        calls += 1
    return (time.process_time() - start) / calls


def sweep_rows():
    for n in (100, 1_000, 10_000, 100_000, 1_000_000):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 1)
            x = pm.Normal("x", mu, 1, shape=n)
            LaplaceMechanism("s", clamp(x, -3, 3), epsilon=1, sensitivity=6, observed=0.0)
            step = PrivacyAwareGibbs([x], parameters=pm.Slice([mu]), interweave=False)
            point = model.initial_point()
        sweep = step.methods[0]
        _, t_new, t = sweep.records.draw(point)
        waiting, accepted = np.random.default_rng(0).standard_exponential(n), np.empty(n, bool)
        whole = per_call(lambda s=sweep, p=point: s.step(p))
        kernel = per_call(lambda d=sweep.density, a=(t, t_new, waiting, accepted): d.sweep(*a), 0.5)
        yield [n, 1e3 * whole, 1e9 * whole / n, 1e9 * kernel / n]


def regression_rows():
    model, latents = regression(1, released(REGRESSION, 1))
    beta = model["beta"]
    with model:
        steps = {
            "sweep, exact β (as the R program)": PrivacyAwareGibbs(
                latents, parameters=ConjugateRegression([beta]), interweave=False
            ),
            "sweep, NUTS": PrivacyAwareGibbs(latents, interweave=False),
            "sweep, NUTS, interweaving (default)": PrivacyAwareGibbs(latents),
        }
    for name, step in steps.items():
        draws = 9_000 if "exact" in name else 4_000
        _, seconds = run(model, step, ["beta"], draws)
        yield [
            name,
            1e4 * seconds,
            R_SECONDS / (1e4 * seconds),
            10 * DAPPER_SECONDS / (1e4 * seconds),
        ]


def main():
    write_report(
        "gibbs_sweep",
        "One sweep of PrivacyAwareGibbs against the number of records",
        "One latent normal variable, one released clamped sum. CPU milliseconds of the whole record "
        "step, drawing the offers included, and nanoseconds per record of it and of the accept loop "
        "alone.",
        ["n", "CPU ms per sweep", "ns per record", "accept loop, ns per record"],
        list(sweep_rows()),
    )
    write_report(
        "gibbs_speed",
        "CPU time of 10,000 iterations on the clamped regression",
        "n = 100, ε = 1, one thread, tuning included, compilation not. The comparison is with "
        f"{R_SECONDS:g} CPU seconds per 10,000 iterations of the R program that accompanies Ju, Gong, "
        f"Awan and Rao (2022), and {DAPPER_SECONDS:g} per 1,000 of the R package dapper, measured "
        "beforehand on the same data and a machine of the same kind, not in the same run. The first row "
        "does the same work per iteration as they do; the others buy better mixing (see "
        "gibbs_mixing_regression).",
        ["sampler", "CPU s per 10,000", "R program / this", "dapper / this"],
        list(regression_rows()),
    )


if __name__ == "__main__":
    main()
