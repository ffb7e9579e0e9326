"""CPU time of one DP-HMC and one DP-penalty iteration, beside the authors' code.

Run: ``python benchmarks/hmc_speed.py``. Their times were measured on a machine like ours, after
warm-up; they are not run here. The plain gradient of the summed log-likelihood, as PyMC compiles it,
is timed alternately in the same process.
"""

import math
import time

import numpy as np
from _report import write_report
from _thesis import banana

import pymc_dp as dp
from pymc_dp.privacy.clipping import add_clipped
from pymc_dp.privacy.noise import SecureNoise

N, L = 100_000, 25
# Authors' CPU milliseconds: (DP-HMC with L = 25, DP penalty).
AUTHORS = {"banana, d = 2": (51.0, 6.6), "Gaussian, d = 10": (302.0, 12.2)}
PROBLEMS = {
    "banana, d = 2": lambda: banana(N, 2, 20.0),
    "Gaussian, d = 10": lambda: banana(N, 10, 0.0),
}


def cpu_ms(call, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats * 1e3


def stepper(step, point):
    """A function that makes one iteration."""
    step.stop_tuning()
    state = {"point": point}

    def iterate() -> None:
        state["point"], _ = step.step(state["point"])

    return iterate


def where_time_goes(hmc, problem, repeats: int = 20) -> list[float]:
    """CPU ms an iteration spends in gradients, clipping and summing, noise, and the ratio."""
    theta = np.concatenate([np.ravel(v) for v in problem.model.initial_point().values()])
    chunks = list(hmc.compiled.gradients(theta))
    total = np.zeros(len(theta), dtype=np.int64)
    source = SecureNoise()
    per_gradient = [
        lambda: list(hmc.compiled.gradients(theta)),
        lambda: [add_clipped(chunk, 3.0, total) for chunk in chunks],
        lambda: source.discrete_gaussian(2.0**34, len(theta)),
    ]
    spent = [(L + 1) * min(cpu_ms(call, repeats) for _ in range(5)) for call in per_gradient]
    return [*spent, min(cpu_ms(lambda: hmc.compiled.likelihood(theta), repeats) for _ in range(5))]


def main() -> None:
    rounds, rows, breakdown = 11, [], []
    for name, make in PROBLEMS.items():
        problem = make()
        model, point = problem.model, problem.model.initial_point()
        common = {"noise_multiplier": 30.0, "clip": 3.0, "rng": 1, "model": model}
        hmc = dp.DPHMC(
            **common,
            gradient_multiplier=100.0,
            n_leapfrog=L,
            step_size=1e-4,
            max_drift=math.inf,
            chains=1,
            draws=3 * rounds + 3,
        )
        penalty = dp.DPPenalty(**common, scale=1e-3, chains=1, draws=12 * rounds + 12)
        likelihood_slope = model.compile_dlogp()
        calls = {
            "DPHMC": (stepper(hmc, point), 3, AUTHORS[name][0]),
            "DPPenalty": (stepper(penalty, point), 12, AUTHORS[name][1]),
            "plain gradient": (lambda f=likelihood_slope, p=point: f(p), 12, None),
        }
        times = {key: [] for key in calls}
        for call, repeats, _ in calls.values():
            cpu_ms(call, repeats)
        for _ in range(rounds):
            for key, (call, repeats, _) in calls.items():
                times[key].append(cpu_ms(call, repeats))
        plain = float(np.median(times["plain gradient"]))
        breakdown.append([name, *where_time_goes(hmc, problem), float(np.median(times["DPHMC"]))])
        for key in ("DPHMC", "DPPenalty"):
            ours, theirs = float(np.median(times[key])), calls[key][2]
            label = f"{key}, L = {L} ({hmc.compiled.gradients.method})" if key == "DPHMC" else key
            rows.append([name, label, ours, theirs, theirs / ours, ours / plain])
    write_report(
        "hmc_speed",
        "Speed of DPHMC and DPPenalty",
        f"n = {N:,}; CPU milliseconds of one iteration, medians of {rounds} alternating rounds. An "
        f"iteration of DPHMC makes {L + 1} noisy sums of clipped per-record gradients and one of "
        "log-likelihood ratios. Targets: 5 times (DP-HMC) and 3 times (penalty) under the authors' "
        "code. The last column is in units of one plain, unclipped gradient of the summed "
        "log-likelihood.",
        ["model", "step", "CPU ms", "authors' CPU ms", "times faster", "plain gradients"],
        rows,
    )
    write_report(
        "hmc_profile",
        "Where an iteration of DPHMC spends its time",
        f"CPU milliseconds per iteration, n = {N:,}, L = {L}: {L + 1} evaluations of all per-record "
        "gradients by the compiled model, clipping and summing them in integers, the discrete "
        "Gaussian noise of all releases, and one log-likelihood of all records; then the whole "
        "iteration. Best of five runs each, the whole iteration its median.",
        ["model", "gradients", "clip and sum", "noise", "log-likelihood", "whole iteration"],
        breakdown,
    )


if __name__ == "__main__":
    main()
