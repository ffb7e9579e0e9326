"""Hierarchical models of many groups: errors beside one release's, coverage of 90 % intervals, and time. Truths are from the prior.

python benchmarks/groups.py                                   # everything, on seeds of its own
python benchmarks/groups.py --only intercepts --groups 200 --epsilons 1 --replications 4 --seed 7
python benchmarks/groups.py --sizes                           # time and memory, each in a process of its own
"""

import argparse
import itertools
import logging
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import pymc as pm
from _groups import DRAWS, Groups
from _report import write_report

import pymc_dp as dp
import pymc_dp.steps.hierarchical as hierarchical

logging.getLogger("pymc").setLevel(logging.ERROR)  # here, as processes of their own import it, too
hierarchical.GROUPS_FROM = 10  # to measure it where it is not the default, too

N, P = 50_000, 3
KINDS = ("intercepts", "slopes", "correlated", "crossed", "games", "normal", "Poisson", "beta")
PLAN = [("intercepts", 12), ("intercepts", 1000), *((kind, m) for kind in KINDS for m in (50, 200))]
REPLICATIONS = {1000: 4}
"""Where it is not 8."""
COMMON, GROUPS, SPREADS = (
    ("beta", "mean", "width"), ("alpha", "slope", "other"), ("tau", "tau_2", "chol_cholesky-cov-packed__"),
)  # fmt: skip
HALF = {"Poisson": 0.5}
"""Slopes and spreads, in parts of those of other outcomes."""
OF_EFFECTS = {name: f"{name} without noise" for name in (*GROUPS, "tau", "tau_2")}
"""Truths whose coverage is mostly chance in the effects, or in what all effects share, and that of the run without noise."""
COVERED = [
    both
    for name in (*GROUPS, *COMMON, "tau", "tau_2")
    for both in (name, OF_EFFECTS.get(name))
    if both
]
SIZES, MANY = (50, 200, 1000, 5000), 200_000
"""Numbers of groups, and of records, for time and memory."""


def drawn(rng, kind, m, n=N):
    """Parameters from the prior, and records: groups of log-normal sizes, a covariate that varies with them."""
    half = HALF.get(kind, 1)
    truth = {
        "mean": rng.normal(), "tau": abs(rng.normal(0, 0.7 * half)), "beta": rng.normal(0, 0.5 * half, P),
    }  # fmt: skip
    truth["alpha"] = rng.normal(truth["mean"], truth["tau"], m)
    sizes = np.exp(rng.normal(size=m))
    k = rng.choice(m, n, p=sizes / sizes.sum())
    X = rng.normal(size=(n, P))
    X[:, 0] = 0.7 * X[:, 0] + 0.7 * rng.normal(size=m)[k]
    X = np.clip(X, -3, 3)
    eta, data = X @ truth["beta"] + truth["alpha"][k], {"k": k, "X": X}
    if kind == "slopes":
        truth["tau_2"] = abs(rng.normal(0, 0.5))
        truth["slope"] = rng.normal(0, truth["tau_2"], m)
        eta += truth["slope"][k] * X[:, 1]
    if kind == "correlated":
        sds, rho = abs(rng.normal(0, 0.7, 2)), 2 * rng.beta(2, 2) - 1
        root = sds[:, None] * [[1, 0], [rho, math.sqrt(1 - rho**2)]]
        truth["alpha"] = [truth["mean"], 0] + rng.normal(size=(m, 2)) @ root.T
        del truth["tau"]
        eta = X @ truth["beta"] + truth["alpha"][k, 0] + truth["alpha"][k, 1] * X[:, 1]
    if kind == "crossed":
        truth["tau_2"] = abs(rng.normal(0, 0.7))
        truth["other"] = rng.normal(0, truth["tau_2"], m // 2)
        data["j"] = rng.integers(m // 2, size=n)
        eta += truth["other"][data["j"]]
    if kind == "games":
        truth["alpha"] = rng.normal(0, truth["tau"], m)
        data["j"] = (k + rng.integers(1, m, n)) % m
        eta = X @ truth["beta"] + truth["mean"] + truth["alpha"][k] - truth["alpha"][data["j"]]
    p = 1 / (1 + np.exp(-eta))
    if kind == "normal":
        truth["width"] = math.exp(0.5 * rng.normal())
        data["y"] = eta + truth["width"] * rng.normal(size=n)
    elif kind == "Poisson":
        data["y"] = rng.poisson(np.exp(eta))
    elif kind == "beta":
        truth["width"] = 7 * math.exp(0.5 * rng.normal())
        y = rng.beta(p * truth["width"], (1 - p) * truth["width"])
        # As near to 0 and 1 as numbers can be: cut further in, they are another model's.
        data["y"] = np.clip(y, 1e-300, 1 - 2.0**-53)
    else:
        data["y"] = (rng.random(n) < p).astype(np.int64)
    return truth, data


def model_of(kind, m, data):
    with pm.Model() as model:
        at = {name: pm.Data(f"data_{name}", values) for name, values in data.items()}
        half = HALF.get(kind, 1)
        mean, beta = pm.Normal("mean", 0, 1), pm.Normal("beta", 0, 0.5 * half, shape=P)
        eta = at["X"] @ beta
        if kind == "correlated":
            sds = pm.HalfNormal.dist(0.7, shape=2)
            chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sds)
            alpha = pm.MvNormal("alpha", pm.math.stack([mean, 0]), chol=chol, shape=(m, 2))
            eta += alpha[at["k"], 0] + alpha[at["k"], 1] * at["X"][:, 1]
        elif kind == "games":
            alpha = pm.Normal("alpha", 0, pm.HalfNormal("tau", 0.7), shape=m)
            eta += mean + alpha[at["k"]] - alpha[at["j"]]
        else:
            tau = pm.HalfNormal("tau", 0.7 * half)
            eta += pm.Normal("alpha", mean, tau, shape=m)[at["k"]]
        if kind == "slopes":
            slope = pm.Normal("slope", 0, pm.HalfNormal("tau_2", 0.5), shape=m)
            eta += slope[at["k"]] * at["X"][:, 1]
        if kind == "crossed":
            other = pm.Normal("other", 0, pm.HalfNormal("tau_2", 0.7), shape=m // 2)
            eta += other[at["j"]]
        if kind == "normal":
            pm.Normal("outcome", eta, pm.LogNormal("width", 0, 0.5), observed=at["y"])
        elif kind == "Poisson":
            pm.Poisson("outcome", pm.math.exp(eta), observed=at["y"])
        elif kind == "beta":
            width = pm.LogNormal("width", math.log(7), 0.5)
            pm.Beta("outcome", mu=pm.math.sigmoid(eta), nu=width, observed=at["y"])
        else:
            pm.Bernoulli("outcome", logit_p=eta, observed=at["y"])
    return model


class Experiment(Groups):
    """A model, and data sets for it."""

    def __init__(self, kind, m, seed, n=N):
        self.kind, self.m, self.seed, self.n = kind, m, seed, n
        _, data = drawn(np.random.default_rng(0), kind, m, n)
        super().__init__(dp.compile(model_of(kind, m, data)))

    def take(self, number):
        """Another data set, and what is true of it."""
        # A seed for each kind: with one for all, they would have the same effects, and so cover τ or miss it together.
        seed = [self.seed, KINDS.index(self.kind), self.m, number]
        truth, data = drawn(np.random.default_rng(seed), self.kind, self.m, self.n)
        for leaf in self.step.roles.record_data:
            leaf.values[...] = data[leaf.name.removeprefix("data_")]
        self.step._curator._records.forget()
        return truth

    def replications(self, number, epsilons):
        """For every ε: which of the truths were covered, errors and one release's in sds of the exact posterior, what was said, and CPU."""
        truth = self.take(number)
        exact, _ = self.draw(0.02, 10 * number)
        surrogate, rng = self.family.surrogate, np.random.default_rng([self.seed, number])
        if surrogate is None:  # nothing to compare with
            return
        middle, sds = exact.draws[0].mean(axis=0), exact.draws[0].std(axis=0)
        space = self.step.compiled.parameters
        inside = {
            name.removesuffix("_log__"): np.ravel(at).astype(int)
            for name, at in space.point(np.arange(len(sds), dtype=float)).items()
        }

        def covers(draws, name):
            value = np.log(truth[name]) if name.startswith(("tau", "width")) else truth[name]
            low, high = np.quantile(draws[0][:, inside[name]], [0.05, 0.95], axis=0)
            return float(np.mean((low <= np.ravel(value)) & (np.ravel(value) <= high)))

        def errors(draws, names):
            off = ((draws[0].mean(axis=0) - middle) / sds) ** 2
            return np.mean(np.concatenate([off[inside[name]] for name in names if name in inside]))

        for k, epsilon in enumerate(epsilons):
            z = self.multiplier(epsilon)
            one = self.one_release(surrogate, z, rng)
            found, seconds = self.draw(z, 10 * number + 1 + k)
            covered = {name: covers(found.draws, name) for name in truth}
            for name in OF_EFFECTS.keys() & truth.keys():
                covered[OF_EFFECTS[name]] = covers(exact.draws, name)
            squares = [
                (errors(found.draws, names), errors(one, names))
                for names in (COMMON, GROUPS, SPREADS)
            ]
            yield epsilon, covered, squares, found.diagnostics, seconds


def measured(m, seed):
    """Everything from the model to the draws, as a user runs it."""
    truth, data = drawn(np.random.default_rng([seed, m]), "intercepts", m, MANY)
    model, start = model_of("intercepts", m, data), time.process_time()
    posterior = dp.sample(
        DRAWS, model=model, unit=0, epsilon=1.0, chains=2, cores=1, progressbar=False
    ).posterior
    seconds, peak = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    covered = {}
    for name in ("alpha", "beta", "tau"):
        low, high = np.quantile(posterior[name].values, [0.05, 0.95], axis=(0, 1))
        covered[name] = float(np.mean((low <= truth[name]) & (truth[name] <= high)))
    return [m, seconds, peak / 1024, *covered.values()]


def by_size(seed):
    """Time, memory and coverage by the number of groups."""
    rows = []
    for m in SIZES:
        found = []
        for k in range(3):
            command = [sys.executable, __file__, "--one", str(m), "--seed", str(seed + k)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append([float(x) for x in done.stdout.split("ROW ")[1].split()])
        rows.append([m, *(round(float(x), 3) for x in np.mean(found, axis=0)[1:])])
        print(rows[-1], flush=True)
    write_report(
        "groups_sizes",
        "Time and memory by the number of groups",
        f"Logistic regression with varying intercepts as in [the table of groups](groups_pymc6.md), n = {MANY:,}, ε = 1, as a user runs it, "
        f"compilation and 2 × {DRAWS} draws by NUTS included; mean of three data sets. Coverage is of the truth in 90 % intervals.\n\n"
        "`python benchmarks/groups.py --sizes`",
        ["groups", "CPU s", "MiB", "covered: groups", "slopes", "τ"],
        rows,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only")
    parser.add_argument("--groups", type=int)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--replications", type=int)
    parser.add_argument("--seed", type=int, default=2081)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    if asked.one:
        print("ROW", *measured(asked.one, asked.seed))
        return
    if asked.sizes:
        by_size(asked.seed)
        return
    plan = [
        (kind, m, asked.replications or REPLICATIONS.get(m, 8), asked.epsilons, asked.seed)
        for kind, m in PLAN
        if asked.only in (None, kind) and asked.groups in (None, m)
    ]
    rows = []
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(rows_of, plan):
            rows += found
            for row in found:
                print(row, flush=True)
    if (asked.only, asked.groups, asked.replications) == (None, None, None):
        write_report("groups", TITLE, TEXT + "\n" + of_all_kinds(rows), COLUMNS, rows)


def of_all_kinds(rows):
    """What all kinds say together: one cell's eight runs tell little."""
    said = [
        "Geometric means over kinds, ± their standard errors by how kinds differ, of errors (rms) in parts of one release's:\n"
    ]
    places = [k for k, column in enumerate(COLUMNS) if column == "rms"]
    for m, epsilon in itertools.product((50, 200), (1.0, 3.0)):
        logs = np.log([[r[k] for k in places] for r in rows if r[1:3] == [m, epsilon]])
        means, ses = np.exp(logs.mean(axis=0)), logs.std(axis=0, ddof=1) / math.sqrt(len(logs))
        each = zip(("common", "groups", "spreads"), means, means * ses, strict=True)
        parts = ", ".join(f"{what} {mean:.2f} ± {se:.2f}" for what, mean, se in each)
        said.append(f"- {m} groups, ε = {epsilon:g}: {parts}")
    said.append("\nCovered, and without noise on the same data, means over rows by their runs:\n")
    for epsilon in (1.0, 3.0):
        parts = []
        for what, column in (("groups", "covered: groups"), ("τ", "τ")):
            k = COLUMNS.index(column)
            found = [r for r in rows if r[2] == epsilon and r[k] != ""]
            runs, both = [r[3] for r in found], [r[k : k + 2] for r in found]
            with_noise, without = np.average(both, axis=0, weights=runs)
            parts.append(f"{what} {with_noise:.2f} and {without:.2f} of {sum(runs)} runs")
        said.append(f"- ε = {epsilon:g}: {', '.join(parts)}")
    return "\n".join(said) + "\n"


def rows_of(part):
    """A model's rows, one for every ε."""
    kind, m, replications, epsilons, seed = part
    experiment = Experiment(kind, m, seed)
    results = [r for k in range(replications) for r in experiment.replications(k, epsilons)]
    return [row_of(kind, m, e, [r[1:] for r in results if r[0] == e]) for e in epsilons]


def row_of(kind, m, epsilon, results):
    covered = {
        name: np.mean([c[name] for c, *_ in results]) if name in results[0][0] else None
        for name in COVERED
    }
    each = np.sqrt([squares for _, squares, _, _ in results])  # runs, parts, ours and one release's
    middle, rare = np.quantile(each, [0.5, 0.9], axis=0)
    rms = np.sqrt(np.mean(each**2, axis=0))
    usable = [found for _, _, found, _ in results if found.usable]
    shifts = [
        [found.privacy_shift for found in usable],
        [found.groups[0].privacy_shift for found in usable],
    ]
    return [
        kind, m, epsilon, len(results), len(usable),
        *(round(float(x), 2) for x in middle[:, 0]),
        *(round(float(ours / one), 2) for part in zip(middle, rare, rms, strict=True) for ours, one in part),
        *("" if c is None else round(float(c), 3) for c in covered.values()),
        *(round(float(np.median(s)), 2) if s else "" for s in shifts),
        round(float(np.median([s for *_, s in results])), 1),
    ]  # fmt: skip


TITLE = "Many groups: errors, coverage and time"
COLUMNS = [
    "model", "groups", "ε", "replications", "usable", "error, median: common", "groups", "spreads",
    "error / one release's: common, median", "90 %", "rms", "groups, median", "90 %", "rms", "spreads, median", "90 %", "rms",
    "covered: groups", "without noise", "varying slopes", "without noise", "second factor", "without noise",
    "common slopes", "mean", "width", "τ", "without noise", "τ₂", "without noise",
    "privacy shift: common", "groups, median", "CPU s",
]  # fmt: skip
TEXT = f"""
Logistic regression on {P} covariates with varying intercepts, n = {N:,}; with varying slopes of one covariate;
with such slopes whose effects correlate with the intercepts (LKJ prior, η = 2, of both *groups* in the table, the Cholesky matrix being the
*spreads*); with a second, crossed factor of half as many groups; and of games, of two players each; and with intercepts and another outcome: normal,
Poisson, or beta, with a *width* (log σ ~ N(0, 0.5²), log ν ~ N(log 7, 0.5²); of Poisson outcomes spreads and slopes are half as large, or rates
would be up to thousands). Groups have log-normal sizes, one covariate varies with
them. All parameters, hyperparameters included, are drawn from the prior: mean ~ N(0, 1), τ ~ HalfNormal(0.7), slopes ~
N(0, 0.5²). Coverage is of the truth in 90 % intervals, δ = 0.1 / n, substitute-one neighbours. The standard error of one
parameter's coverage is 0.11 with 8 replications, 0.15 with 4; that of a τ is mostly chance in the effects that were drawn, and effects are off together
by what all of them share (of games, and of two factors, only differences are seen): so beside both there is that of the run without noise on the same data. *Error* of a run: root mean square of the posterior mean's distance from
that of the same run with next to no noise (z = 0.02), in its standard deviations. *One release's*: the same after one Gaussian release of the whole
budget at that mode, of efficient scores, with all information known, and the best of 40 bounds and scales. Of both, runs' medians, their 90 % quantiles (of eight runs, about
the largest) and their root mean squares are compared; one run can decide the last. Data sets on which the run without noise is lost are left out. CPU seconds are of queries and {DRAWS}
draws by NUTS (and 500 to tune it), compiling NUTS included, on one core. Settings were chosen on other seeds.

`python benchmarks/groups.py --workers 2`
"""

if __name__ == "__main__":
    main()
