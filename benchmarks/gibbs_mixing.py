"""Effective draws of PrivacyAwareGibbs per CPU second, on the two experiments of its paper.

python benchmarks/gibbs_mixing.py
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _released import LOG_LINEAR, REGRESSION, effective, log_linear, regression, released, run
from _report import write_report

from pymc_dp.gibbs.step import PrivacyAwareGibbs

EPSILONS = (0.1, 0.3, 1, 3, 10)


def measure(model, latents, names, draws, **kwargs):
    with model:
        step = PrivacyAwareGibbs(latents, **kwargs)
    idata, seconds = run(model, step, names, draws)
    ess = effective(idata, names)
    return idata, seconds, ess


def regression_rows():
    for epsilon in EPSILONS:
        model, latents = regression(epsilon, released(REGRESSION, epsilon))
        found = {}
        for interweave, draws in ((False, 20_000), (True, 4_000)):
            idata, seconds, ess = measure(model, latents, ["beta"], draws, interweave=interweave)
            beta = idata["posterior"]["beta"].values[0]
            per_second = ess.min() / draws / seconds
            found[interweave] = per_second
            stats = idata["sample_stats"]
            yield [
                epsilon,
                "interweaved" if interweave else "centred",
                1e3 * seconds,
                1e3 * ess.min() / draws,
                per_second,
                per_second / found[False],
                ", ".join(f"{m:.2f} ± {s / e**0.5:.2f}" for m, s, e in
                          zip(beta.mean(0), beta.std(0), ess, strict=True)),
                float(stats["record_accept_rate"].mean()),
                float(stats["record_accept_min"].min()),
                float(np.exp(-epsilon)),
            ]  # fmt: skip


def log_linear_rows():
    for epsilon in EPSILONS:
        model, latents = log_linear(epsilon, released(LOG_LINEAR, epsilon))
        draws = 4_000
        idata, seconds, ess = measure(model, latents, ["p", "q"], draws)
        p = idata["posterior"]["p"].values[0]
        stats = idata["sample_stats"]
        yield [
            epsilon,
            1e3 * seconds,
            1e3 * ess.min() / draws,
            ess.min() / draws / seconds,
            ", ".join(f"{m:.3f} ± {s / e**0.5:.3f}" for m, s, e in
                      zip(p.mean(0), p.std(0), ess, strict=False)),
            float(stats["record_accept_rate"].mean()),
            float(stats["record_accept_min"].min()),
            float(np.exp(-epsilon)),
        ]  # fmt: skip


def main():
    write_report(
        "gibbs_mixing_regression",
        "PrivacyAwareGibbs on the clamped regression: effective draws",
        "The clamped regression of Ju, Gong, Awan and Rao (2022): n = 100, nine released numbers, "
        "Laplace noise of scale 13/ε, their released values. One chain, one thread, tuning included, "
        "compilation not; 20,000 iterations centred (records, then β given the records by NUTS), 4,000 "
        "interweaved (the default). Effective draws are the smallest of the three coefficients'. "
        "Posterior means with their Monte Carlo standard errors. With so few effective draws the "
        "centred chain's own numbers are rough.",
        ["ε", "sampler", "CPU ms per iteration", "effective draws per 1,000", "per CPU s",
         "ratio to centred", "posterior means of β", "mean acceptance", "smallest", "e^-ε"],
        list(regression_rows()),
    )  # fmt: skip
    write_report(
        "gibbs_mixing_log_linear",
        "PrivacyAwareGibbs on the log-linear model: effective draws",
        "The naive Bayes log-linear model of Ju, Gong, Awan and Rao (2022): N = 100, 5 classes, 5 "
        "features of 3 levels, 75 released counts with Laplace noise of scale 10/ε, their released "
        "values. One chain of 4,000 iterations after 1,000 of tuning, one thread. Categorical records "
        "are not moved with θ, so there is no interweaving. Effective draws are the smallest over all "
        "55 probabilities. Posterior means of the class probabilities with their Monte Carlo "
        "standard errors.",
        ["ε", "CPU ms per iteration", "effective draws per 1,000", "per CPU s",
         "posterior means of p", "mean acceptance", "smallest", "e^-ε"],
        list(log_linear_rows()),
    )  # fmt: skip


if __name__ == "__main__":
    main()
