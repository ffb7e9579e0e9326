"""Five years combined: the privacy shift beside one run on all, coverage, and how often a year that differs is found.

python benchmarks/combine.py [data sets in a cell]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import json
import math
import sys

import numpy as np
import pymc as pm
from _quick import quicken
from _report import write_report

import pymc_dp as dp
from pymc_dp.compat import groups_of

SEED, YEARS, DELTA = 2027, 5, 1e-6


def model_of(n, d, kind):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=d)
        mu = pm.Data("X", np.ones((n, d))) @ beta
        y = pm.Data("Y", np.ones(n))
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=mu, observed=y)
        else:
            pm.Poisson("y", pm.math.exp(mu), observed=y)
    return dp.compile(model)


def draw_data(rng, n, d, kind, beta):
    X = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
    mu = X @ beta
    if kind == "logistic":
        return X, (rng.random(n) < 1 / (1 + np.exp(-mu))).astype(float)
    return X, rng.poisson(np.exp(mu)).astype(float)


def run(model, data, epsilon):
    for leaf in model.roles.record_data:
        leaf.values[...] = dict(zip("XY", data, strict=True))[leaf.name]
    # With a ledger all noise is Gaussian, in the years as in one run on all.
    return dp.sample(
        model, draws=200, chains=2, epsilon=epsilon, delta=DELTA, step=dp.DPSurrogate, family="normal",
        cores=1, progressbar=False, ledger=dp.PrivacyLedger(epsilon=epsilon, delta=DELTA),
    )  # fmt: skip


def said(idata):
    return json.loads(idata.attrs["privacy_diagnostics"])


def inside(idata, truth):
    """Which 90 % intervals of beta hold the truth."""
    beta = groups_of(idata)["posterior"]["beta"].values.reshape(-1, len(truth))
    low, high = np.quantile(beta, [0.05, 0.95], axis=0)
    return (low < truth) & (truth < high)


CELLS = {
    "logistic, 3 parameters, 10,000 a year": ("logistic", 10_000, 3, [-0.5, 0.4, 0.0], (1.0, 3.0)),
    "Poisson, 4 parameters, 10,000 a year": ("poisson", 10_000, 4, [0.3, 0.2, -0.2, 0.0], (1.0,)),
}  # fmt: skip


def cell(kind, n, d, beta, epsilon, repetitions, seed):
    rng, beta = np.random.default_rng(seed), np.array(beta, float)
    model, of_all = model_of(n, d, kind), model_of(YEARS * n, d, kind)
    found = {name: [] for name in ("ratio", "fixed", "one", "random", "mixed fixed", "false", "one 3", "all 3", "one 6")}  # fmt: skip
    for _ in range(repetitions):
        data = [draw_data(rng, n, d, kind, beta) for _ in range(YEARS)]
        years = {str(k): run(model, one, epsilon) for k, one in enumerate(data)}
        one = run(of_all, [np.concatenate(x) for x in zip(*data, strict=True)], epsilon)
        if not all(r.attrs["privacy_usable"] for r in (one, *years.values())):
            continue
        both = dp.combine(years, model, disjoint=True, draws=200, chains=2)
        found["ratio"].append(said(both)["privacy_shift"] / said(one)["privacy_shift"])
        found["fixed"].append(inside(both, beta))
        found["one"].append(inside(one, beta))
        found["false"].append(said(both)["disagreement"] < 0.01)
        table = json.loads(both.attrs["privacy_combined"])["parameters"]
        sds = np.array([np.median([x[1] for x in table[f"beta[{i}]"]["groups"].values()]) for i in range(d)])  # fmt: skip
        for name, off in {"one 3": 3 * np.eye(d)[-1], "all 3": 3 * np.ones(d), "one 6": 6 * np.eye(d)[-1]}.items():  # fmt: skip
            years["0"] = run(model, draw_data(rng, n, d, kind, beta + off * sds), epsilon)
            if years["0"].attrs["privacy_usable"]:
                p = said(dp.combine(years, model, disjoint=True, draws=200, chains=2))
                found[name].append(p["disagreement"] < 0.01)
        years = {
            str(k): run(model, draw_data(rng, n, d, kind, beta + sds * rng.standard_normal(d)), epsilon)
            for k in range(YEARS)
        }  # fmt: skip
        if all(r.attrs["privacy_usable"] for r in years.values()):
            for name, effects in {"random": "random", "mixed fixed": "fixed"}.items():
                mean = dp.combine(years, model, disjoint=True, effects=effects, draws=200, chains=2)
                found[name].append(inside(mean, beta))
    return found


def main():
    quicken(SEED)
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    rows = []
    for k, (name, (*parts, epsilons)) in enumerate(CELLS.items()):
        for epsilon in epsilons:
            f = cell(*parts, epsilon, repetitions, SEED + k)
            shares = ("one", "fixed", "mixed fixed", "random", "false", "one 3", "all 3", "one 6")
            means = [float(np.mean(f[share])) for share in shares]
            rows.append([name, epsilon, len(f["ratio"]), float(np.median(f["ratio"])) / math.sqrt(YEARS), *means])  # fmt: skip
            print(rows[-1], flush=True)
    write_report(
        "combine",
        "Combining five years",
        f"`dp.combine` of five runs of `DPSurrogate` beside one run on all of the data, each at the ε of the row and δ = {DELTA:g} "
        f"({repetitions} data sets a row, of which *used* had only usable runs; draws of the normal approximation in place of NUTS). "
        "*Shift* is the median of the ratio of their privacy shifts, over √5: what separate noises cost should be 1. *Coverage* is of 90 % "
        "intervals of the coefficients: of one run on all, of five years combined, and, where every year has coefficients of its own that vary with "
        "a standard deviation of that of one year's law, of their mean by fixed and by random effects. *Disagreement* is how often a warning says so "
        "(two tests at .01): if the years do not differ; if one year's last coefficient is 3 of its law's sds off, if all its coefficients are, and if "
        "the last one is 6 off. An ideal test at .01 that knew which year and coefficient to look at would find 3 sds in one in 54 % of cases.",
        ["model", "ε", "used", "shift / √5", "coverage: one run", "combined", "varying: fixed", "varying: random",
         "disagreement: none", "one by 3", "all by 3", "one by 6"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
