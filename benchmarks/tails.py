"""How far off parameters are where outcomes have longer tails than the model's, and by what a run says of itself.

python benchmarks/tails.py    # 20 CPU minutes
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import logging

import numpy as np
import pymc as pm
from _report import write_report

import pymc_dp as dp

N, RUNS, CELLS = 20_000, 4, 40
EPSILONS = 1.0, 3.0


def of_tails(df):
    """Normal outcomes, as the model has it, of Student's t."""

    def outcome(eta, at, rng):
        pm.Normal(
            "y", eta, pm.HalfNormal("sigma", 2), observed=pm.Data("Y", at + 0.8 * rng.standard_t(df, len(at)))
        )  # fmt: skip

    return outcome


def varying(sd, law):
    """Counts whose logarithmic rates vary by this sd."""

    def outcome(eta, at, rng):
        y = rng.poisson(np.exp(at - sd**2 / 2 + sd * rng.normal(size=len(at))))
        law(pm.math.exp(eta), pm.Data("Y", y))

    return outcome


def poisson(rate, y):
    """Counts that vary no more than that."""
    pm.Poisson("y", rate, observed=y)


def negative_binomial(rate, y):
    """Counts whose rates are gamma."""
    pm.NegativeBinomial("y", mu=rate, alpha=pm.HalfNormal("alpha", 2), observed=y)


OUTCOMES = {
    "t, 3 degrees of freedom, as normal": of_tails(3),
    "t, 5, as normal": of_tails(5),
    "t, 30, as normal": of_tails(30),
    "Poisson, rates vary (sd 1), as Poisson": varying(1.0, poisson),
    "Poisson, as Poisson": varying(0.0, poisson),
    "Poisson, rates vary (sd 1.5), as negative binomial": varying(1.5, negative_binomial),
}


def model_of(outcome, cells, rng):
    """An intercept, or one of each of many cells, and three slopes."""
    X, cell = rng.normal(size=(N, 3)), rng.integers(max(cells, 1), size=N)
    levels = rng.normal(0, 0.3, size=max(cells, 1))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        u = pm.Normal("u", 0, 1, shape=cells)[pm.Data("cell", cell)] if cells else pm.Normal("u")
        outcome(u + pm.Data("X", X) @ b, levels[cell] + X @ [0.3, -0.2, 0.5], rng)
    return model


def found(compiled, epsilon, seed):
    """A law's means and sds, and whether its run calls it usable."""
    noise = dp.InsecureSeededNoise(seed)
    step = dp.DPSurrogate(
        model=compiled, epsilon=epsilon, family="normal", chains=1, draws=10, noise_source=noise
    )
    posterior = step.release().posterior
    return posterior.mean, np.sqrt(np.diag(posterior.covariance)), step.diagnostics.usable


def main():
    logging.getLogger("pymc.dp").setLevel(logging.ERROR)
    rows = []
    for k, (name, outcome) in enumerate(OUTCOMES.items()):
        for cells in (0, CELLS):
            compiled = dp.compile(model_of(outcome, cells, np.random.default_rng([24, k, cells])))
            exact, sds, _ = found(compiled, 1e6, 0)
            labels = compiled.parameters.labels
            scale = [j for j, label in enumerate(labels) if label.startswith(("sigma", "alpha"))]
            rest = np.setdiff1d(np.arange(len(labels)), scale)
            for epsilon in EPSILONS:
                runs = [found(compiled, epsilon, seed + 1) for seed in range(RUNS)]
                own = np.array([(mean - exact) / sd for mean, sd, _ in runs])
                off = np.array([(mean - exact) / sds for mean, *_ in runs])
                rms = [np.sqrt(np.mean(x[:, rest] ** 2)) for x in (off, own)]
                of_scale = [float(np.median(x[:, scale])) if scale else "" for x in (off, own)]
                inside = float(np.mean(np.abs(own) < 1.645))
                usable = sum(bool(u) for *_, u in runs)
                rows.append([name, len(labels), epsilon, RUNS, usable, *of_scale, *rms, inside])
                print(rows[-1], flush=True)
    text = f"""
Regressions of {N:,} records on three covariates, with an intercept or one in each of {CELLS} cells, by `DPSurrogate(family="normal")`, δ = 0.1 / n. Posterior means less those of a
run at ε = 10⁶ on the same data, in sds of that run (*exact*) and in reported ones (*own*): the median of log σ or log α, the root mean square of all other parameters, and the share of
all that is inside of 90 % intervals. A run clips scores: where outcomes' tails are not the model's, that takes more one way than centring by the model gives back, and as tails are few records,
counts with noise do not show them. So a run does not know of it: it is called usable, and its σ or α is too sure.

`python benchmarks/tails.py`
"""
    write_report(
        "tails", "Outcomes whose tails are not the model's", text,
        ["outcomes", "parameters", "ε", "runs", "usable", "log σ or log α: exact sds", "own sds", "others: exact sds, rms", "own sds, rms", "inside 90 %"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
