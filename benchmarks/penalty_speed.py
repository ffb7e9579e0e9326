"""Time of one DPPenalty iteration, as a ratio to one evaluation of the per-record log-likelihood.

Run: ``python benchmarks/penalty_speed.py``. Both sides are timed alternately in this process.
"""

import time

import numpy as np
import pymc as pm
from _models import logistic
from _report import write_report

import pymc_dp as dp


def seconds(call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(n: int, d: int) -> tuple[float, float]:
    """Seconds of one iteration and of one plain evaluation: medians of alternating runs."""
    rounds, repeats = 15, max(3, 1_000_000 // n)
    model = logistic(n, d)
    step = dp.DPPenalty(
        noise_multiplier=100.0, chains=1, draws=(rounds + 1) * repeats, clip=4.0, rng=1, model=model
    )
    step.stop_tuning()
    point = model.initial_point()
    (terms,) = model.logp(vars=model.observed_RVs, sum=False)
    evaluate = pm.compile(model.value_vars, terms)
    beta = point["beta"] + 0.1

    state = {"point": point}

    def iterate() -> None:
        state["point"], _ = step.step(state["point"])

    def plain() -> None:
        evaluate(beta)

    seconds(iterate, repeats), seconds(plain, repeats)
    pairs = [(seconds(iterate, repeats), seconds(plain, repeats)) for _ in range(rounds)]
    iteration, evaluation = np.median(pairs, axis=0)
    return float(iteration), float(evaluation)


def main() -> None:
    sizes = [10_000, 30_000, 100_000, 300_000, 1_000_000]
    rows, times = [], []
    for n in sizes:
        iteration, evaluation = measure(n, 10)
        times.append(iteration)
        rows.append([n, iteration * 1e3, evaluation * 1e3, iteration / evaluation])
    slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    ratio = next(row[3] for row in rows if row[0] == 100_000)
    write_report(
        "penalty_speed",
        "Speed of DPPenalty",
        f"Logistic regression, d = 10. One iteration of `DPPenalty` (proposal, per-record "
        f"log-likelihood, clipping, exact sum, discrete Gaussian noise, ledger, test) beside one "
        f"evaluation of the per-record log-likelihood that PyMC compiles for the same model.\n\n"
        f"At n = 100,000 the ratio is **{ratio:.2f}** (target: at most 1.5). The slope of log time "
        f"on log n from 1e4 to 1e6 is **{slope:.2f}** (1 is linear).",
        ["n", "iteration, ms", "plain evaluation, ms", "ratio"],
        rows,
    )


if __name__ == "__main__":
    main()
