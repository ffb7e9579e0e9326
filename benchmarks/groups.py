"""Hierarchical models of many groups: coverage of 90 % intervals, privacy shifts and time. Truths are from the prior.

python benchmarks/groups.py                                   # everything, on seeds of its own
python benchmarks/groups.py --only intercepts --groups 200 --epsilons 1 --replications 4 --seed 7
"""

import argparse
import logging
import math
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import pymc as pm
from _report import write_report

from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.steps.hierarchical import HierarchicalFamily
from pymc_dp.steps.surrogate import DPSurrogate

N, P, DRAWS = 50_000, 3, 500
PLAN = [
    ("intercepts", 50, 20), ("intercepts", 200, 20), ("intercepts", 500, 5),
    ("intercepts", 2000, 2), ("slopes", 50, 10), ("slopes", 200, 5), ("crossed", 50, 10),
    ("crossed", 200, 5),
]  # fmt: skip


def drawn(rng, kind, m):
    """Parameters from the prior, and records: groups of log-normal sizes, a covariate that varies with them."""
    truth = {"mean": rng.normal(), "tau": abs(rng.normal(0, 0.7)), "beta": rng.normal(0, 0.5, P)}
    truth["alpha"] = rng.normal(truth["mean"], truth["tau"], m)
    sizes = np.exp(rng.normal(size=m))
    k = rng.choice(m, N, p=sizes / sizes.sum())
    X = rng.normal(size=(N, P))
    X[:, 0] = 0.7 * X[:, 0] + 0.7 * rng.normal(size=m)[k]
    X = np.clip(X, -3, 3)
    eta, data = X @ truth["beta"] + truth["alpha"][k], {"k": k, "X": X}
    if kind == "slopes":
        truth["tau_2"] = abs(rng.normal(0, 0.5))
        truth["slope"] = rng.normal(0, truth["tau_2"], m)
        eta += truth["slope"][k] * X[:, 1]
    if kind == "crossed":
        truth["tau_2"] = abs(rng.normal(0, 0.7))
        truth["other"] = rng.normal(0, truth["tau_2"], m // 2)
        data["j"] = rng.integers(m // 2, size=N)
        eta += truth["other"][data["j"]]
    data["y"] = (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    return truth, data


def model_of(kind, m, data):
    with pm.Model() as model:
        at = {name: pm.Data(f"data_{name}", values) for name, values in data.items()}
        mean, tau = pm.Normal("mean", 0, 1), pm.HalfNormal("tau", 0.7)
        alpha, beta = pm.Normal("alpha", mean, tau, shape=m), pm.Normal("beta", 0, 0.5, shape=P)
        eta = at["X"] @ beta + alpha[at["k"]]
        if kind == "slopes":
            slope = pm.Normal("slope", 0, pm.HalfNormal("tau_2", 0.5), shape=m)
            eta += slope[at["k"]] * at["X"][:, 1]
        if kind == "crossed":
            other = pm.Normal("other", 0, pm.HalfNormal("tau_2", 0.7), shape=m // 2)
            eta += other[at["j"]]
        pm.Bernoulli("outcome", logit_p=eta, observed=at["y"])
    return model


class Experiment:
    """One model, compiled once: only for made-up data, as it skips the guards of a run."""

    def __init__(self, kind, m, seed):
        self.kind, self.m, self.seed = kind, m, seed
        _, data = drawn(np.random.default_rng(0), kind, m)
        self.model = model_of(kind, m, data)
        with self.model:
            self.step = DPSurrogate(family="hierarchical", draws=DRAWS, chains=1, epsilon=1.0)
        self.family = HierarchicalFamily(self.step.compiled, 1.0, "pymc")
        self.family.compile()

    def replication(self, number, epsilon):
        """Which of the truths were covered, what the run said, and seconds of CPU."""
        rng = np.random.default_rng([self.seed, self.m, number])
        truth, data = drawn(rng, self.kind, self.m)
        for leaf in self.step.roles.record_data:
            leaf.values[...] = data[leaf.name.removeprefix("data_")]
        self.step._curator._records.forget()
        with self.model:
            run = DPSurrogate(draws=DRAWS, chains=1, epsilon=epsilon, model=self.step.compiled).run
        z = run.multiplier_of_one()
        # A slot of its own, or two runs would have the same noise if that were seeded.
        privacy_filter = PrivacyFilter(Permit(number, 0, (Gaussian(z),)), z)
        measure, start = PaidMeasurements(self.step._curator, privacy_filter), time.process_time()
        found = self.family.draw(measure, DRAWS, 1)
        seconds = time.process_time() - start
        space, covered = self.step.compiled.parameters, {}
        points = [space.point(theta) for theta in found.draws[0]]
        for name, value in truth.items():
            if name.startswith("tau"):
                name_of_theta, value = f"{name}_log__", np.log(value)
            else:
                name_of_theta = name
            rows = np.array([point[name_of_theta] for point in points])
            low, high = np.quantile(rows, [0.05, 0.95], axis=0)
            covered[name] = float(np.mean((low <= value) & (value <= high)))
        return covered, found.diagnostics.metadata({}), seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    parser.add_argument("--groups", type=int)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--replications", type=int)
    parser.add_argument("--seed", type=int, default=2026)
    asked = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    rows = []
    for kind, m, replications in PLAN:
        if asked.only not in (None, kind) or asked.groups not in (None, m):
            continue
        experiment = Experiment(kind, m, asked.seed)
        for epsilon in asked.epsilons:
            results, refused = [], 0
            for number in range(asked.replications or replications):
                try:
                    results.append(experiment.replication(number, epsilon))
                except PrivacyError:
                    refused += 1
            rows.append(row_of(kind, m, epsilon, results, refused))
            print(rows[-1], flush=True)
    if (asked.only, asked.groups, asked.replications) == (None, None, None):
        write_report("groups", TITLE, TEXT, COLUMNS, rows)


def row_of(kind, m, epsilon, results, refused):
    covered = {
        name: np.mean([c[name] for c, _, _ in results])
        if results and name in results[0][0]
        else None
        for name in ("alpha", "slope", "other", "beta", "mean", "tau", "tau_2")
    }
    shifts = [
        np.median([found.get(name, math.nan) for _, found, _ in results])
        for name in (
            "privacy_shift",
            *(f"groups_0_privacy_shift{end}" for end in ("", "_largest", "_smallest")),
        )
    ]
    return [
        kind, m, epsilon, len(results), refused,
        *("" if c is None else round(float(c), 3) for c in covered.values()),
        *(round(float(t), 2) for t in shifts),
        round(float(np.median([s for *_, s in results])), 1),
    ]  # fmt: skip


TITLE = "Many groups: coverage, privacy shifts and time"
COLUMNS = [
    "model", "groups", "ε", "replications", "refused",
    "covered: groups", "varying slopes", "second factor", "common slopes", "mean", "τ", "τ₂",
    "privacy shift: common parameters", "groups, median", "largest quarter", "smallest quarter", "CPU s",
]  # fmt: skip
TEXT = f"""
Logistic regression on {P} covariates with varying intercepts, n = {N:,}; with varying slopes of one covariate;
and with a second, crossed factor of half as many groups. Groups have log-normal sizes, one covariate varies with
them. All parameters, hyperparameters included, are drawn from the prior: mean ~ N(0, 1), τ ~ HalfNormal(0.7), slopes ~
N(0, 0.5²). Coverage is of 90 % intervals, δ = 0.1 / n, substitute-one neighbours. The standard error of one parameter's
coverage is 0.07 with 20 replications, 0.13 with 5. Privacy shifts: how far noise moves a parameter, in standard
deviations of the posterior without noise. CPU seconds are of queries and {DRAWS} draws by NUTS (and 500 to
tune it), compiling NUTS included, on one core.

`python benchmarks/groups.py`
"""

if __name__ == "__main__":
    main()
