"""Iterations that a budget allows, by both accountants, with the parameters of Räisä (2021).

Run: ``python benchmarks/iterations_allowed.py``.
"""

from _report import write_report

import pymc_dp as dp

N, TAU, TAU_GRADIENT, LEAPFROG_STEPS, DELTA = 1e5, 0.1, 0.4, 10, 1e-6
EPSILONS = [1.0, 2.0, 4.0, 6.0]
# What the thesis' code reports for the flat banana (its Algorithm 2 and Theorems 3.1, 4.6).
EXPECTED = {
    ("DP penalty", "zcdp"): [34, 135, 507, 1079],
    ("DP penalty", "gaussian"): [56, 201, 702, 1431],
    ("DP-HMC", "zcdp"): [20, 80, 300, 639],
    ("DP-HMC", "gaussian"): [33, 119, 416, 848],
}


def main() -> None:
    gradients = {
        "DP penalty": {},
        "DP-HMC": {
            "gradient_multiplier": TAU_GRADIENT * N**0.5,
            "gradients_per_draw": LEAPFROG_STEPS + 1,
        },
    }
    rows = []
    for (sampler, accountant), expected in EXPECTED.items():
        allowed = [
            dp.max_releases(
                epsilon=epsilon,
                delta=DELTA,
                noise_multiplier=TAU * N**0.5,
                accountant=accountant,
                **gradients[sampler],
            )
            for epsilon in EPSILONS
        ]
        rows.append([sampler, accountant, *allowed, "yes" if allowed == expected else "NO"])
    write_report(
        "iterations_allowed",
        "Iterations a budget allows",
        f"n = {N:.0e}, τ = {TAU}, τ_g = {TAU_GRADIENT}, L = {LEAPFROG_STEPS}, δ = {DELTA:g}; the "
        "noise multiplier is τ√n. The last column says whether all four numbers are those of the "
        "thesis' own code.",
        ["sampler", "accountant", *(f"ε = {e:g}" for e in EPSILONS), "as published"],
        rows,
    )


if __name__ == "__main__":
    main()
