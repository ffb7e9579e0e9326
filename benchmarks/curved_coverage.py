"""Coverage of the draws of polynomial surrogates, over data sets and noises, on three curved models.

Run: ``python benchmarks/curved_coverage.py [runs]``. The true parameters are drawn, so that intervals of an exact
posterior cover as often as they say. The noise is made by a sampler of the same law that needs no time.
"""

import logging
import sys
import time

import numpy as np
import pymc as pm
from _report import write_report

import pymc_dp as dp

LEVEL = 0.9
SEED = 7000


def banana(n, rng, a=20.0):
    """A banana like the papers', with a prior that its parameters are drawn from."""
    first = 0.05 * rng.normal()
    second = rng.normal() - a * first**2
    x = np.array([first, second + a * first**2]) + np.sqrt([20.0, 2.5]) * rng.normal(size=(n, 2))
    with pm.Model() as model:
        one = pm.Normal("one", 0, 0.05)
        two = pm.Normal("two", -a * one**2, 1)
        pm.Normal("x", one, np.sqrt(20.0), observed=pm.Data("X", x[:, 0]))
        pm.Normal("y", two + a * one**2, np.sqrt(2.5), observed=pm.Data("Y", x[:, 1]))
    return model, {"one": first, "two": second}


def ring(n, rng):
    """A ring: y ~ N(θ₁² + θ₂², 3²)."""
    theta = rng.normal(size=2)
    y = theta @ theta + 3 * rng.normal(size=n)
    with pm.Model() as model:
        one, two = pm.Normal("one", 0, 1), pm.Normal("two", 0, 1)
        pm.Normal("y", one**2 + two**2, 3, observed=pm.Data("Y", y))
    return model, {"one": theta[0], "two": theta[1]}


def product(n, rng):
    """Two factors of which only the product is known: y ~ N(θ₁ θ₂, 1)."""
    theta = rng.normal(size=2)
    y = theta[0] * theta[1] + rng.normal(size=n)
    with pm.Model() as model:
        one, two = pm.Normal("one", 0, 1), pm.Normal("two", 0, 1)
        pm.Normal("y", one * two, 1, observed=pm.Data("Y", y))
    return model, {"one": theta[0], "two": theta[1]}


# A function of both that is known best, as well as each.
MODELS = {
    "banana": (banana, 50_000, lambda one, two: two + 20 * one**2),
    "ring": (ring, 20_000, lambda one, two: one**2 + two**2),
    "product": (product, 20_000, lambda one, two: one * two),
}


def one_run(name, epsilon, k):
    """Whether the intervals of a run cover one, two and what is known best; and what it says of itself."""
    build, n, best = MODELS[name]
    rng = np.random.default_rng([SEED, sorted(MODELS).index(name), k])
    model, truth = build(n, rng)
    step = dp.DPSurrogate(
        family="polynomial", draws=500, chains=4, epsilon=epsilon, model=model,
        noise_source=dp.InsecureSeededNoise(k),
    )  # fmt: skip
    step.prepare()
    drawn = step._draws.reshape(-1, 2).T
    inside = []
    for values, true in [
        (drawn[0], truth["one"]),
        (drawn[1], truth["two"]),
        (best(*drawn), best(truth["one"], truth["two"])),
    ]:
        low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        inside.append(low <= true <= high)
    return inside, step.guarantee.diagnostics


def main():
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    runs, rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100, []
    for name in MODELS:
        for epsilon in (1.0, 4.0):
            began = time.process_time()
            found = [one_run(name, epsilon, k) for k in range(runs)]
            inside = np.array([f[0] for f in found])
            usable = np.array([f[1]["usable"] for f in found]) > 0
            of_usable = inside[usable].mean(axis=0) if usable.any() else np.full(3, np.nan)
            rows.append(
                [name, epsilon, runs, *inside.mean(axis=0), int(usable.sum()), *of_usable,
                 float(np.median([f[1].get("log_density_noise", np.nan) for f in found])),
                 (time.process_time() - began) / runs]
            )  # fmt: skip
            print(*rows[-1], flush=True)
    write_report(
        "curved_coverage",
        "Strongly curved posteriors: coverage of the draws of polynomial surrogates",
        f"Central {LEVEL:.0%} intervals of both parameters, and of what the data know best (the second coordinate of the "
        "banana, the squared radius, the product). True parameters from the prior, fresh data and fresh noise in every "
        "run; δ = 0.1/n. With "
        f"{runs} runs a share of 0.9 has a standard error of {np.sqrt(0.09 / runs):.3f}. *Usable*: runs that do not say "
        "of themselves that they are not to be trusted, and coverage of these alone.",
        ["model", "ε", "runs", "first", "second", "best known", "usable", "first", "second", "best known", "log-density noise", "seconds"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
