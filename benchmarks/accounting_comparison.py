"""Iterations that a budget buys by the tight accountants and by the loose ones: section 6.1 of Räisä (2021).

Run: ``python benchmarks/accounting_comparison.py``. Takes some seconds; nothing is sampled.
"""

import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from _report import EVIDENCE, write_report
from iterations_allowed import DELTA, LEAPFROG_STEPS, TAU, TAU_GRADIENT, N

import pymc_dp as dp

PICTURE = EVIDENCE.parent / "pictures" / "accounting_comparison.png"
EPSILONS = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
# The flat banana's minibatch penalty: its noise's variance is τ times the squared sensitivity.
TAU_BATCH, BATCH = 0.7, 1000
SAMPLERS = {
    "DP penalty": ({"noise_multiplier": TAU * math.sqrt(N)}, "zcdp"),
    "minibatch DP penalty": (
        {"noise_multiplier": math.sqrt(TAU_BATCH), "sampling_rate": BATCH / N},
        "rdp",
    ),
    "DP-HMC": (
        {
            "noise_multiplier": TAU * math.sqrt(N),
            "gradient_multiplier": TAU_GRADIENT * math.sqrt(N),
            "gradients_per_draw": LEAPFROG_STEPS + 1,
        },
        "zcdp",
    ),
}
# What the accountants are called in the figure.
TIGHT, LOOSE = "tight (privacy losses)", {"zcdp": "zCDP", "rdp": "Rényi"}


def draw(counts: dict[str, list[tuple[float, int, int]]]) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharex=True, layout="constrained")
    for ax, (name, rows) in zip(axes, counts.items(), strict=True):
        epsilon, tight, loose = zip(*rows, strict=True)
        some = [k or math.nan for k in loose]  # a logarithmic axis has no zero
        ax.plot(epsilon, tight, "o-", color="C0", label=TIGHT)
        ax.plot(epsilon, some, "s--", color="C1", label=LOOSE[SAMPLERS[name][1]])
        ax.set(title=name, xlabel=f"ε, at δ = {DELTA:g}", yscale="log")
        ax.grid(alpha=0.3)
        ax.legend(loc="lower right", frameon=False)
    axes[0].set_ylabel("iterations")
    figure.savefig(PICTURE, dpi=100, facecolor="white")  # on white, whatever the page's theme is


def main() -> None:
    counts, table = {}, []
    for name, (settings, loose) in SAMPLERS.items():
        counts[name] = []
        for epsilon in EPSILONS:
            budget = {"epsilon": epsilon, "delta": DELTA, **settings}
            k, fewer = dp.max_releases(**budget), dp.max_releases(**budget, accountant=loose)
            counts[name].append((epsilon, k, fewer))
            gain = f"{k / fewer:.2f}" if fewer else "–"
            table.append([name, epsilon, k, LOOSE[loose], fewer, gain])
    draw(counts)
    write_report(
        "accounting_comparison",
        "Iterations by tight and by loose accounting",
        f"Flat banana of Räisä (2021): n = {N:,.0f}, δ = {DELTA:g}, τ = {TAU}, τ_g = {TAU_GRADIENT}, "
        f"L = {LEAPFROG_STEPS}; minibatch τ = {TAU_BATCH}, b = {BATCH}. Noise multipliers are τ√n and "
        "τ_g√n, and √τ for batches. *Tight*: Theorems 3.2 and 4.7, privacy loss distributions for "
        "batches (units entering independently at rate b/n). *Loose*: zCDP is Theorems 3.1 and 4.6; Rényi "
        "is Theorem 3.5 (batches without replacement) with the conversion of Canonne, Kamath and "
        "Steinke (2020).",
        ["sampler", "ε", "tight", "loose accountant", "loose", "tight / loose"],
        table,
    )


if __name__ == "__main__":
    main()
