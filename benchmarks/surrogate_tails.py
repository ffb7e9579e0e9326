"""How many units a bound should clip: errors and honesty of right and of wrong models.

python benchmarks/surrogate_tails.py [runs in a row]

On other seeds than the tables of the default. Wrong models are those of `ordinary_models.py` whose records the model does not expect.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import contextlib
import logging
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
from _ordinary import MODELS
from _regressions import SIMULATED, Exact, another_run, model_of
from _report import write_report
from scipy.stats import norm
from surrogate_limit import normal

import pymc_dp as dp
import pymc_dp.steps.normal
from pymc_dp.surrogate.normal import evaluation, fit

SEED, N, EPSILONS = 21, 20_000, (1.0, 3.0)
RIGHT = ("linear", "poisson", "logistic", "rare outcome")
WRONG = (
    "beta_regression", "exponential_survival_as_poisson", "poisson_with_offset", "robust_student_t", "two_scores", "tobit",
    "negative_binomial", "censored_weibull",
)  # fmt: skip
SETTINGS = (
    (2.0, 0.1, 1.0),
    (2.0, 0.1, 0.0),
    (2.0, 0.1, 2.0),
    (6.0, 0.05, 1.0),
    (4.0, 0.1, 1.0),
    (1.0, 0.1, 1.0),
)
"""Units beyond a bound, in √d z, the sizes' part of a share, and the least number of units beyond, in a count's noise."""


@contextlib.contextmanager
def put(beyond, sizes, shown):
    """Have the settings with these."""
    last = replace(fit._LAST, beyond=beyond, sizes=sizes, scores=0.88 - sizes)
    new = {"_LAST": last} | {
        name: replace(getattr(fit, name), beyond=beyond) for name in ("_PREPARED", "_LAST_SUM")
    }
    with mock.patch.multiple(fit, **new), mock.patch.object(evaluation, "_SHOWN", shown):
        yield


def results(run, exact):
    """Errors in exact and in own sds, and the exact posterior's mass in 90 % intervals, each parameter's."""
    p = run.release().posterior
    sds, off = np.sqrt(np.diag(p.covariance)), p.mean - exact.mode
    high, low = ((off + side * 1.645 * sds) / exact.sds for side in (1, -1))
    return off / exact.sds, off / sds, norm.cdf(high) - norm.cdf(low)


def of_simulated(name, epsilon, runs):
    make, likelihood, prior_sd = SIMULATED[name]
    rng = np.random.default_rng([SEED, int(10 * epsilon)])
    _, X, y = make(rng, N)
    step = normal(epsilon, model_of(likelihood, prior_sd, X, y), {"delta": None})
    for k in range(runs):
        truth, X, y = make(rng, N)
        run = another_run(step, k + 1, X, y)
        yield results(run, Exact(run, truth))


def of_ordinary(name, epsilon, runs):
    built = MODELS[name][0]()
    model, keywords = built if isinstance(built, tuple) else (built, {})
    compiled = dp.compile(model, **keywords)
    there = normal(3000.0, compiled, {"delta": 0.1})
    exact = Exact(there, there.release().posterior.mean)
    for _ in range(runs):
        yield results(normal(epsilon, compiled, {"delta": None}), exact)


def summary(found):
    """Median run's errors, and mean mass inside."""
    squares = [[np.mean(error**2), np.mean(own**2)] for error, own, _ in found]
    return [*np.sqrt(np.median(squares, axis=0)), np.mean([inside for *_, inside in found])]


def main():
    logging.disable(logging.WARNING)
    pymc_dp.steps.normal.draw = lambda *_: None
    runs, rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10, []
    for setting in SETTINGS:
        for kind, names, of in (("right", RIGHT, of_simulated), ("wrong", WRONG, of_ordinary)):
            for epsilon in EPSILONS:
                with put(*setting):
                    found = [summary(list(of(name, epsilon, runs))) for name in names]
                found = np.array(found)
                rows.append([
                    *setting, kind, epsilon, float(np.exp(np.log(found[:, 0]).mean())), float(found[:, 1].mean()),
                    float(found[:, 2].mean()), float(found[:, 2].min()),
                ])  # fmt: skip
                print(*rows[-1], flush=True)
    report(rows, runs)


def report(rows, runs):
    write_report(
        "surrogate_tails",
        "How many units a bound should clip",
        f"Settings of the last queries of the normal surrogate. *Units beyond* times √d z are longer than a bound of scores, z the noise's sd in "
        f"the sum / sensitivity, but at least as many as so many sds of a count's noise (*least*); *sizes* is the histograms' part of a share. *Right* models are simulated ({', '.join(RIGHT)}; n = {N:,}), *wrong* "
        f"ones real data that they do not expect ({', '.join(WRONG)}), as in [the table of ordinary models](ordinary_models_pymc6.md). "
        f"{runs} runs each. *Error*: geometric mean over models of the median run's root mean square error of posterior means, in exact posterior "
        "sds; *in own sds* the same in those reported. *Inside*: the exact posterior's mass in 90 % intervals, and the worst model's.",
        ["units beyond", "sizes", "least", "models", "ε", "error", "in own sds", "inside", "worst"],
        rows,
    )


if __name__ == "__main__":
    main()
