"""Average treatment effects: coverage of 95 % intervals over simulated trials, and their width beside three others.

python benchmarks/average.py [trials in a cell]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import math
import sys

import numpy as np
import pymc as pm
from _quick import quicken
from _report import write_report
from scipy.special import expit

import pymc_dp as dp
import pymc_dp.assessment.averages as averages
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Gaussian

N, DELTA, SEED = 5_000, 1e-5, 4_100
OF_MODEL = {"g-formula": 0.9, "doubly robust": 0.5}
"""Share of μ² for the draws, the rest being for the average."""
CLIP = 0.1
"""Propensities of what noise is put on the output of are between this and 0.9, as is usual."""
A, B, TAU = -0.3, np.array([0.5, 0.3, -0.4]), 0.6
OUTCOMES = {"logistic": expit, "linear": lambda eta: eta}


def model_of(kind):
    with pm.Model() as model:
        X = pm.Data("X", np.ones((N, 3)), dims=("person", "covariate"))
        T = pm.Data("T", np.zeros(N, int), dims="person")
        Y = pm.Data("Y", np.zeros(N, int if kind == "logistic" else float), dims="person")
        alpha, gamma = pm.Normal("alpha", 0, 1), pm.Normal("gamma", 0, 1, shape=3)
        pm.Bernoulli("treated", logit_p=alpha + X @ gamma, observed=T, dims="person")
        a, b, tau = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=3), pm.Normal("tau", 0, 1)
        eta = a + X @ b + tau * T
        if kind == "logistic":
            mean = pm.Deterministic("mean", pm.math.invlogit(eta), dims="person")
            pm.Bernoulli("y", p=mean, observed=Y, dims="person")
        else:
            mean = pm.Deterministic("mean", eta, dims="person")
            pm.Normal("y", mean, pm.HalfNormal("sigma", 1), observed=Y, dims="person")
    return dp.compile(model)


def draw_data(rng, kind, gamma):
    X = np.clip(rng.standard_normal((N, 3)), -3, 3)
    T = (rng.random(N) < expit(X @ gamma)).astype(int)
    mean = OUTCOMES[kind](A + X @ B + TAU * T)
    y = (rng.random(N) < mean).astype(int) if kind == "logistic" else rng.normal(mean)
    return X, T, y


def truth_of(kind):
    X = np.clip(np.random.default_rng(1).standard_normal((2_000_000, 3)), -3, 3) @ B + A
    f = OUTCOMES[kind]
    return float((f(X + TAU) - f(X)).mean())


def fitted(D, y, kind):
    """Maximum likelihood, and its covariance."""
    if kind == "linear":
        H = np.linalg.inv(D.T @ D)
        beta = H @ D.T @ y
        return beta, H * np.var(y - D @ beta)
    beta = np.zeros(D.shape[1])
    for _ in range(25):
        p = expit(D @ beta)
        H = np.linalg.inv((D * (p * (1 - p))[:, None]).T @ D)
        beta = beta + H @ D.T @ (y - p)
    return beta, H


def without_privacy(X, T, y, kind):
    """Standard errors of the g-formula and of AIPW, and the influence values of the second."""
    one = np.ones(N)
    D = np.column_stack([one, X, T])
    beta, C = fitted(D, y, kind)
    arms = [np.column_stack([one, X, t * one]) for t in (1, 0)]
    f1, f0 = (OUTCOMES[kind](a @ beta) for a in arms)
    slopes = [
        a * ((f * (1 - f))[:, None] if kind == "logistic" else 1.0)
        for a, f in zip(arms, (f1, f0), strict=True)
    ]
    G = (slopes[0] - slopes[1]).mean(axis=0)
    e = np.clip(
        expit(np.column_stack([one, X]) @ fitted(np.column_stack([one, X]), T, "logistic")[0]),
        CLIP,
        1 - CLIP,
    )
    phi = f1 - f0 + T * (y - f1) / e - (1 - T) * (y - f0) / (1 - e)
    return math.sqrt(G @ C @ G + np.var(f1 - f0) / N), phi.std() / math.sqrt(N), phi


def output_perturbed(rng, phi, z):
    """Estimate and sd: half of μ² for the mean of clipped influence values, half for the mean of their squares."""
    bound = 1 + 1 / CLIP  # of outcomes and their means between 0 and 1
    phi, z = np.clip(phi, -bound, bound), z * math.sqrt(2)
    noise = z * 2 * bound / N
    mean = phi.mean() + noise * rng.standard_normal()
    second = (phi**2).mean() + z * bound**2 / N * rng.standard_normal()
    return mean, math.sqrt(max(second - mean**2, 0.0) / N + noise**2)


def ours(model, quantities, of, epsilon, share):
    """The table's row, for ε of the draws and the average together."""
    z = dp.calibrate_noise(epsilon=epsilon, delta=DELTA, releases=1)
    parts = [composed_epsilon((Gaussian(z / math.sqrt(s)),), DELTA) for s in (share, 1 - share)]
    ledger = dp.PrivacyLedger(epsilon=epsilon * 1.0001, delta=DELTA)
    idata = dp.sample(
        model, draws=500, chains=1, epsilon=parts[0], delta=DELTA, step=dp.DPSurrogate, family="normal",
        cores=1, progressbar=False, ledger=ledger, compute_convergence_checks=False,
    )  # fmt: skip
    averages.Quantities = lambda compiled, asked: quantities  # compiled once
    return dp.average(idata, model, of, epsilon=parts[1], ledger=ledger).table.iloc[0]


def cell(kind, gamma, epsilon, trials, seed):
    rng, truth, model = np.random.default_rng(seed), truth_of(kind), model_of(kind)
    effect = {"do": {"T": 1}, "minus": {"T": 0}}
    of = {
        "g-formula": dp.Average("mean", **effect),
        "doubly robust": dp.Average("mean", **effect, outcome="y"),
    }
    quantities = {name: QUANTITIES(model, {name: x}) for name, x in of.items()}
    z, found = (
        dp.calibrate_noise(epsilon=epsilon, delta=DELTA, releases=1),
        {name: [] for name in (*of, "plain", "output")},
    )
    for _ in range(trials):
        data = draw_data(rng, kind, gamma)
        for leaf in model.roles.record_data:
            leaf.values[...] = dict(zip("XTY", data, strict=True))[leaf.name]
        g, aipw, phi = without_privacy(*data, kind)
        found["plain"].append((2 * 1.96 * g, 2 * 1.96 * aipw))
        if kind == "logistic":
            mean, sd = output_perturbed(rng, phi, z)
            found["output"].append((abs(mean - truth) < 1.96 * sd, 2 * 1.96 * sd))
        for name, x in of.items():
            row = ours(model, quantities[name], {name: x}, epsilon, OF_MODEL[name])
            found[name].append((row["low"] < truth < row["high"], row["high"] - row["low"]))
    plain = np.median(found["plain"], axis=0)
    output = (
        [
            float(np.mean([x[0] for x in found["output"]])),
            float(np.median([x[1] for x in found["output"]])),
        ]
        if found["output"]
        else ["", ""]
    )
    rows = []
    for name, non_private in zip(of, plain, strict=True):
        covered, width = (np.array(x) for x in zip(*found[name], strict=True))
        rows.append([
            kind, "confounded" if np.any(gamma) else "randomised", epsilon, name, float(covered.mean()),
            float(np.median(width)), float(np.median(width) / non_private), *output,
        ])  # fmt: skip
        print(rows[-1], flush=True)
    return rows


QUANTITIES = averages.Quantities
CONFOUNDED = np.array([0.5, -0.4, 0.3])


def main():
    quicken(SEED)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    first = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    rows = []
    designs = [("logistic", 0 * CONFOUNDED), ("logistic", CONFOUNDED), ("linear", CONFOUNDED)]
    for k, (kind, gamma) in enumerate(designs):
        for epsilon in (1.0, 3.0):
            rows += cell(kind, gamma, epsilon, trials, first + k)
            if first == SEED:  # settings are chosen on other seeds, which write nothing
                report(trials, rows)


def report(trials, rows):
    write_report(
        "average",
        "Average treatment effects",
        f"`dp.average` on {trials} simulated trials a row, of {N:,} people with three covariates. ε is that of the draws and the "
        f"average together, at δ = {DELTA:g}, with {OF_MODEL['g-formula']:.0%} of μ² for the draws for the g-formula and "
        f"{OF_MODEL['doubly robust']:.0%} for doubly robust averages (draws of the normal approximation in place of NUTS). "
        "*Coverage* is of 95 % intervals, of the population's effect; a Monte Carlo standard error of it is "
        f"{math.sqrt(0.95 * 0.05 / trials):.3f} at .95. *Width* is the median. *Times non-private* is beside the same "
        "estimator without privacy: maximum likelihood, delta method. The last two columns are AIPW with output perturbation, after "
        "the steps that the abstract of PrivATE names (Schröder, Hartenstein and Feuerriegel, arXiv:2505.21641); its text and code "
        "were not at hand, so this is a construction of ours that favours it: nuisances without noise and at no cost, "
        f"propensities from {CLIP} to {1 - CLIP}, so that influence values are at most {1 + 1 / CLIP:g}, half of μ² "
        "for the noisy mean of these and half for that of their squares, both by the exact Gaussian mechanism, and intervals of both "
        "uncertainties.",
        ["outcome", "design", "ε", "average", "coverage", "width", "times non-private", "output perturbed: coverage", "width"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
