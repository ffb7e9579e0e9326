"""The constants of the normal surrogate, each doubled and halved: what that does to errors and to coverage.

python benchmarks/surrogate_constants.py

On other seeds than every table. Same data and noise for each setting, so that a ratio of errors means something.
"""

import argparse
import logging
import os
from dataclasses import replace
from unittest import mock

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _regressions import SIMULATED, Exact, model_of
from _report import write_report

import pymc_dp as dp
from pymc_dp.likelihood import simulated
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import measurements_paid_by
from pymc_dp.surrogate.normal import bounds, estimates, evaluation, fit
from pymc_dp.surrogate.normal.diagnosis import diagnose

EPSILONS, N, SEED = (0.3, 1.0, 3.0), 20_000, 7_000_001
CONSTANTS = [
    (bounds, "_PLAIN"), (bounds, "_FALL"), (bounds, "_UNSEEN"), (bounds, "_LEAST_END"),
    (evaluation, "_BEYOND_INFORMATION"), (evaluation, "_OF_SCORES"), (evaluation, "_OF_MOST"),
    (evaluation, "_SEEN"), (evaluation, "_BESIDE"), (evaluation, "SHORTEST"),
    (estimates, "_CHANGE"), (estimates, "_RESOLVED"), (estimates, "_SPREAD"), (estimates, "_STANDS_OUT"), (estimates, "_DROWNED"), (estimates, "_LEAST"), (estimates, "_LEAST_KEPT"),
    (estimates, "_KEPT_SPREAD"), (estimates, "_HALF"), (estimates, "_LEAST_PART"), (estimates, "_PLAINLY"), (estimates, "_TRUST"),
    (fit, "_OF_UNITS"), (fit, "_SEARCH"), (fit, "_QUERY"), (fit, "_RECORDS_TOLD"),
    (fit, "_ON_THE_WAY.sizes"), (fit, "_ON_THE_WAY.information"), (fit, "_ON_THE_WAY.room"),
    (fit, "_ENDING"), (fit, "_LAST.sizes"), (fit, "_LAST.information"), (fit, "_LAST.room"),
    (fit, "_PREPARING"), (fit, "_ALIKE"), (fit, "_PREPARED.sizes"), (fit, "_PREPARED.information"), (fit, "_LAST_SUM.sizes"),
    (fit, "_RADIUS"), (fit, "_LEAST_RADIUS"), (fit, "_PRIOR_SDS"), (fit, "_NEAR"), (fit, "_KNOWN"),
    (simulated, "_DRAWN"),
]  # fmt: skip
ALONE = ("room",)
OF_ONE = "_OF_SCORES", "_SEARCH", "_PREPARING"
COLUMNS = [
    "constant",
    "is",
    "set to",
    "error, in parts of before",
    "worst model's",
    "inside",
    "usable",
]


def changed(module, name, factor):
    """The constant's value, that value times a factor, and what puts it there."""
    attribute, _, field = name.partition(".")
    value = getattr(module, attribute)
    if not field:
        other = tuple(factor * v for v in value) if isinstance(value, tuple) else factor * value
        other = int(other) if isinstance(value, int) else other
        other = min(other, 0.9) if name in OF_ONE else other
        return value, other, mock.patch.object(module, attribute, other)
    now = getattr(value, field)
    # What one part gains the scores lose, or what there is beside it.
    beside = "scores" if value.scores else "information"
    other = (
        factor * now if field in ALONE else min(factor * now, 0.9 * (now + getattr(value, beside)))
    )
    parts = {field: other}
    if field not in ALONE:
        parts[beside] = getattr(value, beside) + now - other
    return (
        getattr(value, field),
        other,
        mock.patch.object(module, attribute, replace(value, **parts)),
    )


class Bed:
    """A model, data of it, and the exact posterior."""

    def __init__(self, name, epsilon):
        make, likelihood, prior_sd = SIMULATED[name]
        truth, X, y = make(np.random.default_rng([SEED, sorted(SIMULATED).index(name)]), N)
        self.step = dp.DPSurrogate(
            family="normal", chains=1, draws=1, epsilon=epsilon, model=model_of(likelihood, prior_sd, X, y),
            noise_source=dp.InsecureSeededNoise(SEED),
        )  # fmt: skip
        self.exact = Exact(self.step, truth)

    def found(self, runs):
        """Mean squared errors in exact sds, parts of modes inside, and whether usable, of runs, shape (runs, 3)."""
        step, rows = self.step, []
        parameters = step.compiled.parameters
        for k in range(runs):
            curator = Curator(step._curator._records, dp.InsecureSeededNoise(SEED + k))
            permit = Permit(0, 0, step._price.events)
            measure = measurements_paid_by(permit, step._price.whole, curator, step._price.option)
            surrogate = fit.fit_normal(measure, step.log_public, parameters.start)
            p, said = (
                surrogate.posterior,
                diagnose(surrogate, parameters.labels, parameters.largest),
            )
            inside = np.abs(p.mean - self.exact.mode) < 1.645 * np.sqrt(np.diag(p.covariance))
            rows.append((np.mean(self.exact.error(p.mean) ** 2), inside.mean(), said.usable))
        return np.array(rows, float)


def all_of(beds, runs):
    """Root mean square errors by bed, the part inside, and the part of usable runs."""
    found = np.array([bed.found(runs) for bed in beds])
    return np.sqrt(found[..., 0].mean(axis=1)), found[..., 1].mean(), found[..., 2].mean()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, default=6)
    arguments.add_argument("--only", default="")
    asked = arguments.parse_args()
    logging.getLogger("pymc.dp").setLevel(logging.CRITICAL)
    beds = [Bed(name, epsilon) for name in SIMULATED for epsilon in EPSILONS]
    errors, inside, usable = all_of(beds, asked.runs)
    rows = [["as it is", "", "", 1.0, 1.0, inside, usable]]
    for module, name in CONSTANTS:
        if asked.only not in name:
            continue
        for factor in (0.5, 2.0):
            value, other, patch = changed(module, name, factor)
            with patch:
                now, inside, usable = all_of(beds, asked.runs)
            ratios = np.log(now / errors)
            label = f"{module.__name__.rpartition('.')[2]}.{name}"
            rows.append(
                [
                    label,
                    str(value),
                    str(other),
                    float(np.exp(ratios.mean())),
                    float(np.exp(ratios.max())),
                    inside,
                    usable,
                ]
            )
            print(*rows[-1], flush=True)
    if asked.only:
        return
    write_report(
        "surrogate_constants",
        "The constants of the normal surrogate, halved and doubled",
        f"{len(beds)} cells, each of a model and an ε, n = {N:,}; {asked.runs} noises each, the same for every setting. *Error*: "
        "root mean square in exact standard deviations, over that with the constants as they are: geometric mean over the "
        "cells, and the largest. *Inside*: exact modes in 90 % intervals. Of shares, what one part gains the scores lose.\n\n"
        f"`python benchmarks/surrogate_constants.py --runs {asked.runs}`",
        COLUMNS, rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
