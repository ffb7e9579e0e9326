"""What the switch costs where a normal law will do: the default beside a normal surrogate, on the same data and noise.

Run: ``python benchmarks/curved_switch.py``. Draws are of the law's normal approximation, which takes no time.
"""

import logging

import numpy as np
import pymc as pm
from _quick import normal_draws
from _report import write_report

import pymc_dp as dp
import pymc_dp.steps.normal

RUNS, SEED = 8, 9000
FAMILIES = ("normal", "auto")


def regression(n, rng, poisson=False):
    """Three coefficients of scaled covariates."""
    x = rng.normal(size=(n, 2))
    truth = np.array([0.3, 0.5, -0.4])
    eta = truth[0] + x @ truth[1:]
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2.5, shape=3)
        linear = b[0] + pm.Data("X", x) @ b[1:]
        if poisson:
            pm.Poisson("y", pm.math.exp(linear), observed=pm.Data("Y", rng.poisson(np.exp(eta))))
        else:
            y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
            pm.Bernoulli("y", logit_p=linear, observed=pm.Data("Y", y))
    return model


def mean_and_sd(n, rng):
    """Of a normal distribution."""
    y = rng.normal(2, 3, n)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mean", 0, 10), pm.HalfNormal("sd", 10), observed=pm.Data("Y", y))
    return model


MODELS = {
    "logistic, n = 2,000": lambda rng: regression(2_000, rng),
    "logistic, n = 20,000": lambda rng: regression(20_000, rng),
    "Poisson, n = 20,000": lambda rng: regression(20_000, rng, poisson=True),
    "mean and sd, n = 2,000": lambda rng: mean_and_sd(2_000, rng),
}


def run(family, compiled, epsilon, seed):
    """Mean of the draws, and what the run says of itself."""
    step = dp.DPSurrogate(
        family=family, draws=500, chains=4, epsilon=epsilon, model=compiled, delta=1e-6,
        noise_source=dp.InsecureSeededNoise(seed),
    )  # fmt: skip
    step.prepare()
    drawn = step._draws.reshape(-1, step.compiled.d)
    return drawn.mean(axis=0), drawn.std(axis=0), step.guarantee.diagnostics


def main():
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    pymc_dp.steps.normal.draw = normal_draws(lambda: np.random.default_rng(0))
    rows = []
    for name, build in MODELS.items():
        found = {}
        for k in range(RUNS):
            rng = np.random.default_rng([SEED, sorted(MODELS).index(name), k])
            compiled = dp.compile(build(rng))
            mean, sd, _ = run("normal", compiled, 1e6, k)
            for epsilon in (0.5, 1.0, 4.0):
                for family in FAMILIES:
                    found.setdefault((epsilon, family), []).append(
                        (mean, sd, *run(family, compiled, epsilon, k))
                    )
        for epsilon in (0.5, 1.0, 4.0):
            row = [name, epsilon, RUNS]
            for family in FAMILIES:
                runs = found[epsilon, family]
                errors = np.array([(m - mean) / sd for mean, sd, m, _, _ in runs])
                shifts = [said.get("privacy_shift", np.nan) for *_, said in runs]
                row += [
                    float(np.sqrt(np.mean(errors**2))),
                    float(np.median(np.abs(errors))),
                    float(np.median(shifts)),
                ]
            taken = [r[-1]["family"] == "polynomial" for r in found[epsilon, "auto"]]
            rows.append([*row, sum(taken)])
            print(*rows[-1], flush=True)
    write_report(
        "curved_switch",
        "The switch where a normal law will do: the default of dp.sample beside a normal surrogate",
        f"{RUNS} runs a row, each with fresh data and fresh noise; both samplers see the same data. δ = 1e-6. Errors of "
        "posterior means in sds of the posterior without privacy (root mean square and median over parameters and "
        "runs), and median privacy shift. *Polynomials*: in how many runs the default took one.",
        ["model", "ε", "runs", "normal: rms error", "median", "privacy shift", "default: rms error", "median", "privacy shift", "polynomials"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
