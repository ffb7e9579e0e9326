"""CPU time per iteration of the steps that sample units: it grows with the batch, not with n.

Run: ``python benchmarks/batch_cost.py``. All steps are timed in one process, in alternating rounds.
"""

import numpy as np
from _models import logistic
from _report import write_report
from hmc_speed import cpu_ms, stepper

import pymc_dp as dp

# (units, expected batch).
SIZES = [
    (10_000, 1_000),
    (100_000, 1_000),
    (1_000_000, 1_000),
    (1_000_000, 100),
    (1_000_000, 10_000),
]
D, ROUNDS, REPEATS = 10, 21, 20
STEPS = ["DPPenalty", "DPBarker", "DPSGLD", "DPSGNHT"]


def build(name, model, n, batch):
    """A step with enough draws for the benchmark; its multiplier does not change its cost."""
    common = {"draws": (ROUNDS + 2) * REPEATS, "chains": 1, "rng": 1, "model": model}
    if name == "DPBarker":
        return dp.DPBarker(**common, batch_size=batch, tempering=1000 / n)
    common |= {"noise_multiplier": 1.0, "tempering": 1000 / n}
    step = dp.DPPenalty if name == "DPPenalty" else getattr(dp.experimental, name)
    return step(**common, sampling_rate=batch / n)


def main() -> None:
    models = {n: logistic(n, D) for n in sorted({n for n, _ in SIZES})}
    calls = {}
    for n, batch in SIZES:
        for name in STEPS:
            step = build(name, models[n], n, batch)
            calls[name, n, batch] = stepper(step, models[n].initial_point()), REPEATS
    for n, model in models.items():
        step = build("DPPenalty", model, n, n)
        calls["all", n, n] = stepper(step, model.initial_point()), 1
    times = {key: [] for key in calls}
    for call, repeats in calls.values():
        cpu_ms(call, 2 * repeats)
    for _ in range(ROUNDS):
        for key, (call, repeats) in calls.items():
            times[key].append(cpu_ms(call, repeats))
    median = {key: float(np.median(values)) for key, values in times.items()}

    rows = [
        [f"{n:,}", f"{batch:,}", *(median[name, n, batch] for name in STEPS), median["all", n, n]]
        for n, batch in SIZES
    ]
    least, most = min(models), max(models)
    with_n = max(median[s, most, 1000] / median[s, least, 1000] for s in STEPS)
    with_batch = min(median[s, most, 10_000] / median[s, most, 1000] for s in STEPS)
    all_units = median["all", most, most] / median["all", least, least]
    write_report(
        "batch_cost",
        "Cost of an iteration on a batch",
        f"Logistic regression, d = {D}; CPU milliseconds of one iteration, medians of {ROUNDS} rounds of "
        f"{REPEATS} iterations that alternate between all columns and rows. From n = {least:,} to "
        f"{most:,}, {most // least} times as many records, an iteration on a batch of 1,000 takes at "
        f"most {with_n:.2f} times as long, and one of DPPenalty on all units {all_units:.0f} times. "
        "From a batch of 1,000 to one of 10,000 it takes "
        f"{with_batch:.1f} times as long or longer; under 1,000, what does not depend on the data "
        "dominates: the entry in the ledger, the noise, the calls of compiled functions.",
        ["n", "batch", *STEPS, "DPPenalty, all units"],
        rows,
    )


if __name__ == "__main__":
    main()
