"""30 % missing at random in two covariates: bias and coverage of values integrated out, beside complete cases and constants.

python benchmarks/missing.py [data sets in a cell]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys

import numpy as np
import pymc as pm
from _quick import quicken
from _report import write_report

import pymc_dp as dp
from pymc_dp.compat import groups_of

SEED, N, DELTA, DRAWS = 2031, 20_000, 1e-6, 400
TRUTH = {"a": -0.3, "b": 0.6, "c": -0.5, "d": 0.3}
"""Of the outcome: intercept, and coefficients of x (normal), s (binary) and z (seen)."""
GAPS = {"logistic": -0.84, "linear": -0.72}
"""So that 30 % of x and 30 % of s are missing."""


def draw_data(rng, n, kind):
    """With gaps in x and s that depend on z and y, which are seen."""
    z = rng.normal(size=n)
    x = 0.5 * z + rng.normal(size=n)
    s = (rng.random(n) < 1 / (1 + np.exp(-(0.2 + 0.5 * x)))).astype(float)
    eta = TRUTH["a"] + TRUTH["b"] * x + TRUTH["c"] * s + TRUTH["d"] * z
    if kind == "logistic":
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
        more = 1.5 * (y - 0.5)
    else:
        y = eta + rng.normal(size=n)
        more = 0.7 * y
    gap = 1 / (1 + np.exp(-(GAPS[kind] + more + 0.5 * z)))
    x[rng.random(n) < gap] = np.nan
    s[rng.random(n) < gap] = np.nan
    return z, x, s, y


def model_of(z, x, s, y, kind, covariates):
    """With a model of the covariates, or without."""
    with pm.Model() as model:
        a, b, c, d = (pm.Normal(name, 0, 2) for name in "abcd")
        z = pm.Data("z", z)
        if covariates:
            slopes = pm.Normal("slopes", 0, 2, shape=4)
            x = pm.Normal("x", slopes[0] + slopes[1] * z, pm.HalfNormal("sd", 2), observed=x)
            s = pm.Bernoulli("s", logit_p=slopes[2] + slopes[3] * x, observed=s)
        else:
            x, s = pm.Data("x", x), pm.Data("s", s)
        eta = a + b * x + c * s + d * z
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=eta, observed=y)
        else:
            pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=y)
    return dp.compile(dp.integrate_missing(model, ["x", "s"]) if covariates else model)


def filled(z, x, s, y):
    """What the integrated model reads."""
    there_x, there_s = ~np.isnan(x), ~np.isnan(s)
    return {
        "z": z, "y_values": y, "x_values": np.where(there_x, x, 0.5), "s_values": np.where(there_s, s, 1),
        "x_is_seen": there_x, "s_is_seen": there_s,
    }  # fmt: skip


def run(model, data, epsilon):
    # With a ledger all noise is Gaussian, whatever the model.
    for leaf in model.roles.record_data:
        leaf.values[...] = data[leaf.name]
    return dp.sample(
        model, draws=DRAWS, chains=1, epsilon=epsilon, delta=DELTA, step=dp.DPSurrogate, family="normal",
        cores=1, progressbar=False, ledger=dp.PrivacyLedger(epsilon=epsilon, delta=DELTA),
    )  # fmt: skip


def errors(idata):
    """Of a usable run, the posterior means' errors in posterior sds, and which 90 % intervals hold the truth."""
    if not idata.attrs["privacy_usable"]:
        return None
    posterior = groups_of(idata)["posterior"]
    draws = np.stack([posterior[name].values.ravel() for name in TRUTH], axis=1)
    truth = np.array(list(TRUTH.values()))
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return (
        (draws.mean(axis=0) - truth) / draws.std(axis=0),
        (low < truth) & (truth < high),
        draws.std(axis=0),
    )


def cell(kind, epsilons, repetitions, seed, after=lambda found: None):
    rng = np.random.default_rng(seed)
    first = draw_data(rng, N, kind)
    integrated = model_of(*first, kind, True)
    z, x, s, y = first
    constants = model_of(z, np.nan_to_num(x), np.nan_to_num(s), y, kind, False)
    found = {(way, e): [] for e in epsilons for way in ("integrated", "constants", "complete")}
    for _ in range(repetitions):
        z, x, s, y = draw_data(rng, N, kind)
        there = ~np.isnan(x) & ~np.isnan(s)
        # Constants from outside the data: the means that x and s have in the population.
        filled_in = {
            "z": z,
            "x": np.where(np.isnan(x), 0.0, x),
            "s": np.where(np.isnan(s), 0.55, s),
            "y": y,
        }
        complete = model_of(z[there], x[there], s[there], y[there], kind, False)
        for e in epsilons:
            runs = {"integrated": run(integrated, filled(z, x, s, y), e), "constants": run(constants, filled_in, e),
                    "complete": run(complete, {leaf.name: leaf.values.copy() for leaf in complete.roles.record_data}, e)}  # fmt: skip
            for way, idata in runs.items():
                found[way, e].append(errors(idata))
        after(found)
    return found


def main():
    quicken(SEED)
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    report({kind: cell(kind, (1.0, 3.0), repetitions, SEED + k) for k, kind in enumerate(GAPS)})


def report(cells):
    rows = []
    for kind, found in cells.items():
        for (way, epsilon), runs in found.items():
            used = [r for r in runs if r is not None]
            bias, inside, sds = (np.mean([r[i] for r in used], axis=0) for i in range(3))
            rows.append(
                [
                    kind,
                    epsilon,
                    way,
                    len(runs),
                    len(used),
                    *map(float, bias),
                    *map(float, inside),
                    float(sds[1]),
                ]
            )
    repetitions = min(row[3] for row in rows)
    write_report(
        "missing",
        "Missing values in two covariates",
        f"{N:,} records, a normal covariate x and a binary s that depends on it, each missing in 30 % of records: more often where the "
        "outcome y and a third covariate z, which are seen, are high. *Integrated* is `dp.integrate_missing`, *complete* drops records with a gap "
        "(the number that stays is then public), *constants* puts the population's means in gaps. "
        f"`DPSurrogate` at the ε of the row and δ = {DELTA:g}; of the *data sets* of a row *used* had usable runs; draws of the normal "
        "approximation in place of NUTS. *Bias* is the mean error of posterior means in posterior standard deviations, *coverage* is of 90 % "
        "intervals, of the intercept a and the coefficients b of x, c of s, d of z. "
        f"The standard error of a bias is {1 / repetitions**0.5:.2f}, that of a coverage of .9 {(0.09 / repetitions) ** 0.5:.2f}.",
        ["outcome", "ε", "way", "data sets", "used", *(f"bias {p}" for p in TRUTH), *(f"coverage {p}" for p in TRUTH), "sd of b"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
