"""Comparisons of models: how often their intervals hold the true difference, and how often the better model wins.

python benchmarks/compare_models.py [data sets in a cell]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import logging
import math
import sys

import numpy as np
import pymc as pm
from _quick import normal_draws
from _regressions import earnings, rand
from _report import write_report

import pymc_dp as dp
import pymc_dp.steps.normal
from pymc_dp.assessment.predictive import PredictiveRecords, optimism, unconstrained_draws
from pymc_dp.compat import groups_of

SEED, N, HELD_OUT = 2027, 20_000, 60_000
EPSILONS = (0.1, 0.3, 1.0, 3.0)
OF_DRAWS = 1.0
DRAWS = {"family": "normal", "draws": 60, "chains": 2, "epsilon": OF_DRAWS, "cores": 1, "progressbar": False}  # fmt: skip


def of_covariates(columns, kind="bernoulli"):
    """A regression on some columns of X."""

    def build(X, y):
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=len(columns))
            mu = pm.Data("X", X)[:, columns] @ beta
            seen = pm.Data("Y", y)
            if kind == "bernoulli":
                pm.Bernoulli("y", logit_p=mu, observed=seen)
            elif kind == "poisson":
                pm.Poisson("y", pm.math.exp(mu), observed=seen)
            elif kind == "negative binomial":
                shape = pm.Gamma("shape", 2, 1)
                pm.NegativeBinomial("y", mu=pm.math.exp(mu), alpha=shape, observed=seen)
            elif kind == "normal":
                pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=seen)
            else:
                pm.StudentT("y", nu=4, mu=mu, sigma=pm.HalfNormal("sigma", 1), observed=seen)
        return model

    return build


def logistic(effect):
    """The last covariate has this effect, and a proxy of it none of its own."""

    def draw(rng, n):
        x = rng.standard_normal((n, 3))
        proxy = 0.9 * x[:, 2] + math.sqrt(1 - 0.81) * rng.standard_normal(n)
        p = 1 / (1 + np.exp(-(0.3 + 0.5 * x[:, 0] - 0.3 * x[:, 1] + effect * x[:, 2])))
        X = np.column_stack([np.ones(n), x, proxy])
        return X, (rng.random(n) < p).astype(np.int64)

    return draw


def counts(rng, n):
    x = rng.standard_normal((n, 2))
    mean = np.exp(0.2 + 0.3 * x[:, 0]) * rng.gamma(3, 1 / 3, n)
    return np.column_stack([np.ones(n), x]), rng.poisson(mean)


def heavy(rng, n):
    x = rng.standard_normal((n, 2))
    return np.column_stack([np.ones(n), x]), 0.2 * x[:, 0] + rng.standard_t(6, n)


def halves(load):
    """One half of real people, at random; the other half stands for the population."""
    X, y = load()

    def draw(rng, n):
        if n == N:
            draw.order = rng.permutation(len(y))
        half = len(y) // 2
        return (a[draw.order[:half] if n == N else draw.order[half : 2 * half]] for a in (X, y))

    return draw


FULL = of_covariates([0, 1, 2, 3])
RAND = list(range(10))
CELLS = {
    "one covariate more, no effect": (logistic(0.0), of_covariates([0, 1, 2]), FULL),
    "one covariate more, effect 0.04": (logistic(0.04), of_covariates([0, 1, 2]), FULL),
    "one covariate more, effect 0.08": (logistic(0.08), of_covariates([0, 1, 2]), FULL),
    "a covariate or its proxy, effect 0.2": (logistic(0.2), of_covariates([0, 1, 2, 4]), FULL),
    "Poisson or negative binomial": (counts, of_covariates([0, 1], "poisson"), of_covariates([0, 1], "negative binomial")),
    "normal or Student errors": (heavy, of_covariates([0, 1], "normal"), of_covariates([0, 1], "Student")),
    "RAND: without or with health": (halves(rand), of_covariates(RAND[:6]), of_covariates(RAND)),
    "earnings: normal or Student": (halves(earnings), of_covariates(range(6), "normal"), of_covariates(range(6), "Student")),
}  # fmt: skip


def in_sample(likelihood, thetas):
    """Log predictive densities, and WAIC's variances, of every unit."""
    l = np.array([likelihood(theta) for theta in thetas])  # noqa: E741
    return np.logaddexp.reduce(l, axis=0) - math.log(len(l)), l.var(axis=0, ddof=1)


def cell(draw, *builds, repetitions, seed):
    """For each data set and ε: estimate, its sds, truth and the truth's own error; and the non-private errors."""
    rng = np.random.default_rng(seed)
    X, y = draw(rng, N)
    models = [dp.compile(build(X.copy(), y.copy())) for build in builds]
    found = {epsilon: [] for epsilon in EPSILONS}
    errors = []
    for _ in range(repetitions):
        X, y = draw(rng, N)
        for model in models:
            for leaf in model.roles.record_data:
                leaf.values[...] = {"X": X, "Y": y}[leaf.name]
        draws = [dp.sample(model=model, **DRAWS) for model in models]
        thetas = [
            unconstrained_draws(model.parameters, groups_of(idata)["posterior"])
            for model, idata in zip(models, draws, strict=True)
        ]
        new_X, new_y = draw(rng, HELD_OUT)
        others = [
            m.likelihood.of_data(
                [
                    {"X": new_X, "Y": new_y}[leaf.name].astype(leaf.values.dtype)
                    for leaf in m.roles.record_data
                ]
            )
            for m in models
        ]
        d = np.diff(PredictiveRecords(list(zip(others, thetas, strict=True))).densities)[:, 0]
        truth, of_truth = len(y) * d.mean(), len(y) * d.std() / math.sqrt(len(d))
        pairs = [in_sample(m.likelihood, t) for m, t in zip(models, thetas, strict=True)]
        gain, variance = np.diff(pairs, axis=0)[0].sum(axis=1)
        p = np.diff([optimism(t, m.log_public) for m, t in zip(models, thetas, strict=True)])[0]
        errors.append([gain - truth, gain - p - truth, gain - variance - truth])
        for epsilon in EPSILONS:
            both = {name: (m, i) for name, m, i in zip("ab", models, draws, strict=True)}
            one = dp.compare(both, epsilon=epsilon).difference("b", "a")
            found[epsilon].append([one.elpd, one.se, one.noise_sd, one.clipped, truth, of_truth])
    return {epsilon: np.array(f) for epsilon, f in found.items()}, np.array(errors)


def main():
    logging.getLogger("pymc").setLevel(logging.ERROR)
    pymc_dp.steps.normal.draw = normal_draws(lambda: np.random.default_rng(0))
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    rows, bias = [], []
    for k, (name, parts) in enumerate(CELLS.items()):
        found, errors = cell(*parts, repetitions=repetitions, seed=SEED + k)
        off = [
            f"{m:+.1f} ± {s / math.sqrt(len(errors)):.1f}"
            for m, s in zip(errors.mean(0), errors.std(0), strict=True)
        ]
        for epsilon, (elpd, se, noise, clipped, truth, of_truth) in (
            (e, f.T) for e, f in found.items()
        ):
            sd = np.sqrt(se**2 + noise**2 + clipped**2 + of_truth**2)
            z = (elpd - truth) / sd
            right = np.mean(np.sign(elpd) == np.sign(truth))
            sure = np.abs(elpd) > 1.645 * np.sqrt(se**2 + noise**2 + clipped**2)
            wrong = np.mean(sure & (np.sign(elpd) != np.sign(truth)))
            rows.append([name, epsilon, *map(float, (np.median(truth), np.median(se), np.median(noise), np.median(clipped),
                         np.mean(elpd - truth), np.mean(np.abs(z) < 1.645), right, np.mean(sure), wrong))])  # fmt: skip
        bias.append(f"| {name} | " + " | ".join(off) + " |")
        table = "\n".join(
            ["| comparison | in-sample | less p | WAIC |", "| --- | --- | --- | --- |", *bias]
        )
        # After every cell: they take minutes each.
        write_report(
            "compare_models",
            "Comparing models privately",
            f"`dp.compare` of two models of {N:,} people ({repetitions} data sets in a cell; of real data, random halves), with "
            f"120 draws of a normal surrogate (of its posterior's normal approximation, in place of NUTS) at ε = {OF_DRAWS:g} each, δ = 0.1 / n, and the comparison at the ε of the row. Differences are the second "
            f"model's elpd less the first's, in nats for all people. *True* is the median of what {HELD_OUT:,} other people (of real data, the other half) say of "
            f"the same draws. *Coverage* is how often the 90 % interval, with the truth's own error in it, holds it; *right* how often "
            f"the better model comes first; *sure* how often the interval leaves 0 out, and *sure and wrong* how often on the wrong side.\n\n"
            f"Without noise, the mean error of the in-sample difference, of it less the optimism p that is taken off, and of WAIC's "
            f"penalty in its place:\n\n{table}",
            ["comparison", "ε", "true", "se", "noise", "clipped", "mean error", "coverage", "right", "sure", "sure and wrong"],
            rows,
        )  # fmt: skip


if __name__ == "__main__":
    main()
