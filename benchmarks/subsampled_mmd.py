"""MMD to the exact posterior of the samplers that evaluate a batch of the records per iteration.

Run: ``python benchmarks/subsampled_mmd.py [part ...] [repeats]`` with parts penalty, barker-flat,
barker-tempered, barker-default, rates, langevin-banana and langevin-gaussian; all of them by default.
Part ``tune`` prints what :data:`STEP_SIZES` was chosen from. Every run has fresh noise.
"""

import logging
import math
import sys
from functools import partial

import numpy as np
from _report import write_report
from _thesis import banana, random_gaussian, run

import pymc_dp as dp
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.calibration import _largest_count
from pymc_dp.privacy.events import BarkerBatch
from pymc_dp.privacy.rdp import published_barker_curve, rdp_count, without_replacement

EPSILONS = [1.0, 2.0, 4.0, 6.0]
N, TEMPERED_N, BARKER_BATCH, VARIANCE = 100_000, 1000, 1300, 2.0
MOST_BARKER_DRAWS = 12_000  # what this benchmark has time for; the budget pays for more at ε ≥ 4

# Räisä (2021): minibatch penalty's (τ, b, proposal sd, clip) and DP Barker's proposal sd, each followed
# by the MMD at ε = 1, 2, 4, 6 that the authors' own code reaches with them.
THESIS = {
    "flat": {
        "penalty": (0.7, 1000, 0.001, 1.0),
        "penalty MMD": [0.69, 0.65, 0.53, 0.38],
        "Barker": 0.0008,
        "Barker MMD": [0.67, 0.69, 0.62, 0.42],
    },
    "tempered": {
        "penalty": (1.5, 1000, 0.025, 4.0),
        "penalty MMD": [0.51, 0.40, 0.46, 0.30],
        "Barker": 0.12,
        "Barker MMD": [0.51, 0.33, 0.59, 0.38],
    },
}
# The same for DP penalty on all records, (τ, proposal sd, clip).
ALL_RECORDS = {
    "flat": ((0.1, 0.008, 2.0), [0.35, 0.29, 0.12, 0.12]),
    "tempered": ((0.2, 0.035, 5.0), [0.39, 0.38, 0.32, 0.26]),
}

# Räisä, Koskela and Honkela (2021): MMD at ε = 2, 4, 8, 15 of 4 chains together, and gradient clips.
PAPER_EPSILONS = [2.0, 4.0, 8.0, 15.0]
PAPER = {
    ("banana", "DPSGLD"): (0.2, [0.48, 0.35, 0.37, 0.39]),
    ("banana", "DPSGNHT"): (0.2, [0.45, 0.32, 0.30, 0.18]),
    ("10-d Gaussian", "DPSGLD"): (15.0, [0.41, 0.22, 0.14, 0.11]),
    ("10-d Gaussian", "DPSGNHT"): (12.0, [0.50, 0.40, 0.23, 0.18]),
}
PAPER_PROBLEMS = {
    "banana": partial(banana, 100_000, 2, 20.0, first_variances=(2000.0, 2500.0)),
    "10-d Gaussian": partial(random_gaussian, 100_000, 10, 15.0),
}
PAPER_CHAINS, PAPER_DRAWS, PAPER_RATE = 4, 5000, 0.01
# The largest steps to be taken: chosen by eye from `tune`, whose two runs each hardly tell neighbours apart.
STEP_SIZES = {
    ("banana", "DPSGLD"): 2e-4,
    ("banana", "DPSGNHT"): 4e-3,
    ("10-d Gaussian", "DPSGLD"): 1e-7,
    ("10-d Gaussian", "DPSGNHT"): 1e-4,
}


def problem_of(kind: str):
    tempering = TEMPERED_N / N if kind == "tempered" else 1.0
    return banana(N, 2, 20.0, tempering=tempering)


def cell(build, problem, rng, repeats: int) -> list:
    """What the tables show of some runs of fresh steps: acceptance, MMD, its range and CPU seconds."""
    runs = [run(build(), problem, rng) for _ in range(repeats)]
    values = sorted(r.mmd for r in runs)
    return [
        float(np.median([r.accepted for r in runs])),
        float(np.median(values)),
        f"{values[0]:.2f} to {values[-1]:.2f}",
        float(np.median([r.seconds for r in runs])),
    ]


def barker_counts(epsilon: float, delta: float) -> tuple[int, int]:
    """Iterations within the budget: by our accounting, and by Theorem 3.3 of the thesis."""
    ours = _largest_count(
        lambda k: composed_epsilon([BarkerBatch(VARIANCE, BARKER_BATCH, N, k)], delta), epsilon
    )
    curve = without_replacement(
        lambda alpha: published_barker_curve(alpha, BARKER_BATCH), BARKER_BATCH / N
    )
    return ours, rdp_count(curve, epsilon, delta)


COLUMNS = [
    *["ε", "draws", "affordable", "by theorem", "acceptance"],
    *["MMD", "range", "seconds", "thesis' code"],
]
HOW = (
    "MMD between the last half of one chain (at most 2,000 of its draws, evenly spaced) and 1,000 exact "
    "draws; exact against exact gives 0.015 to 0.025. Median and range of {repeats} runs with fresh "
    "noise. The last column is the median that the thesis' own code reached at that ε, with the "
    'iterations that its accounting allowed; neighbours within 0.1 do not rank. "Affordable" are the '
    'draws within (ε, δ) by our accounting, "by theorem" by the thesis\' Theorem {theorem} with our '
    "conversion to (ε, δ). Acceptance and CPU seconds of one run are medians."
)


def penalty_table(repeats: int) -> None:
    """DPPenalty on batches with the thesis' parameters."""
    rng, rows, delta = np.random.default_rng(2), [], 0.1 / N
    for kind, settings in THESIS.items():
        problem = problem_of(kind)
        tau, b, scale, clip = settings["penalty"]
        z, q = math.sqrt(tau), b / N
        for epsilon, theirs in zip(EPSILONS, settings["penalty MMD"], strict=True):
            budget = {"epsilon": epsilon, "delta": delta, "noise_multiplier": z, "sampling_rate": q}
            draws, by_theorem = (
                dp.max_releases(**budget),
                dp.max_releases(**budget, accountant="rdp"),
            )
            build = partial(
                dp.DPPenalty,
                noise_multiplier=z,
                delta=delta,
                draws=draws,
                scale=scale,
                clip=clip,
                tempering=problem.tempering,
                sampling_rate=q,
                model=problem.model,
            )
            counts = [epsilon, f"{draws:,}", f"{draws:,}", f"{by_theorem:,}"]
            rows.append([kind, *counts, *cell(build, problem, rng, repeats), theirs])
            print(rows[-1], flush=True)
    translated = ", ".join(
        f"{kind} (τ, b, proposal sd, clip) = {settings['penalty']}"
        for kind, settings in THESIS.items()
    )
    write_report(
        "subsampled_mmd_penalty",
        "DPPenalty on batches",
        f"Bananas, d = 2, n = {N:,}, δ = 0.1/n, T = {TEMPERED_N / N:g} if tempered. "
        f"{HOW.format(repeats=repeats, theorem='3.5')}\n\n"
        f"Parameters are the thesis', translated: {translated}. There the noise's variance is τ times the "
        "squared sensitivity, so z = √τ; q = b/n, units entering independently. Our sensitivity is the "
        "smaller one. As many draws as the budget pays for.",
        ["banana", *COLUMNS],
        rows,
    )


def barker_table(kind: str, proposal: str, repeats: int) -> None:
    """DPBarker with the thesis' batch, and with its proposal or the step's own."""
    problem, rng, rows, delta = problem_of(kind), np.random.default_rng(2), [], 0.1 / N
    build = partial(
        dp.DPBarker,
        delta=delta,
        batch_size=BARKER_BATCH,
        variance=VARIANCE,
        scale=THESIS[kind]["Barker"] if proposal == "thesis" else None,
        tempering=problem.tempering,
        model=problem.model,
    )
    scale = build(draws=1).guarantee.settings["scale"]
    for epsilon, theirs in zip(EPSILONS, THESIS[kind]["Barker MMD"], strict=True):
        affordable, by_theorem = barker_counts(epsilon, delta)
        draws = min(affordable, MOST_BARKER_DRAWS)
        counts = [epsilon, f"{draws:,}", f"{affordable:,}", f"{by_theorem:,}"]
        rows.append([*counts, *cell(partial(build, draws=draws), problem, rng, repeats), theirs])
        print(rows[-1], flush=True)
    own = {
        "thesis": "which is the thesis'",
        "default": "the step's default, small enough to clip few records that carry one unit of "
        "information",
    }
    write_report(
        f"subsampled_mmd_barker_{kind}_{proposal}",
        f"DPBarker on the {kind} banana, {proposal} proposal",
        f"d = 2, n = {N:,}, T = {problem.tempering:g}, δ = 0.1/n; batches of {BARKER_BATCH:,} as in the "
        f"thesis, C = {VARIANCE:g}, proposal sd {scale:.2g}, {own[proposal]}. "
        f"{HOW.format(repeats=repeats, theorem='3.3')} No more draws than the {MOST_BARKER_DRAWS:,} that "
        "this benchmark has time for: where more are affordable, the rest of the budget is not used.",
        COLUMNS,
        rows,
    )


def rates_table(repeats: int) -> None:
    """DPPenalty on all records and on batches, at the same ε and number of draws."""
    rng, rows = np.random.default_rng(3), []
    delta, draws = 0.1 / N, 3000
    for kind, rates in [("tempered", [1.0, 0.1, 0.01, 0.003]), ("flat", [1.0, 0.3, 0.1, 0.01])]:
        problem = problem_of(kind)
        (_, scale, clip), _ = ALL_RECORDS[kind]
        for epsilon in (1.0, 4.0):
            for q in rates:
                build = partial(
                    dp.DPPenalty,
                    epsilon=epsilon,
                    delta=delta,
                    draws=draws,
                    scale=scale,
                    clip=clip,
                    tempering=problem.tempering,
                    sampling_rate=q,
                    model=problem.model,
                )
                guarantee = build().guarantee
                z = guarantee.events[0].noise_multiplier
                sds = move_noise(problem, scale, clip, z, q)
                shown = cell(build, problem, rng, repeats)
                rows.append([kind, epsilon, q, z, *sds, *shown])
                print(rows[-1], flush=True)
    write_report(
        "subsampled_mmd_rates",
        "When batches help DPPenalty",
        f"DPPenalty on all records (q = 1) and on batches, at the same ε and {draws:,} draws each, ε "
        "deciding the noise; proposal and clip are the thesis' for all records, bananas with d = 2 and n = "
        f"{N:,}, T = {TEMPERED_N / N:g} if tempered. The two columns σ are standard deviations in the log "
        "acceptance ratio of a move of typical length from the truth: of the noise for privacy, and of "
        "the sampling of units, computed from the data. Acceptance, MMD and CPU seconds of one run are "
        f"medians of {repeats} runs.\n\n"
        "Sampling buys no privacy: at a given ε and number of draws z falls in proportion to q at best, "
        "and the estimated ratio is scaled up by 1/q, so that the noise for privacy is never less than with "
        "all records. On top of it comes the sampling's own variance, about (T²(1 - q)/q) Σ r². Only "
        "with tempering, T ≲ q, is that small; without it, moves are refused. What sampling buys is time, "
        "and only where all records take long: on these models, which are quick to evaluate, a batch of "
        "1,000 takes about as long as all 100,000, and larger batches take longer, because their rows are "
        "gathered from all over memory and both points are evaluated (see the cost of an iteration on "
        "a batch for a model where it pays).",
        [
            *["banana", "ε", "q", "z", "σ, privacy", "σ, sampling", "acceptance"],
            *["MMD", "range", "seconds"],
        ],
        rows,
    )


def move_noise(problem, scale: float, clip: float, z: float, q: float) -> tuple[float, float]:
    """Standard deviations of the privacy noise and of the sampling error, for a typical move."""
    T, d = problem.tempering, len(problem.truth)
    x = problem.model["X"].get_value()
    length = scale * math.sqrt(d)
    a = T / q * clip * length
    privacy = z * 2 * (a + (1 - q) / 2 * a * a)
    # At the truth (θ1 = 0) the scores are (x - mean) / variance; a move has `scale` in each direction.
    variances = x.var(axis=0)
    squares = (scale**2 / variances**2 * (x - x.mean(axis=0)) ** 2).sum()
    return privacy, T * math.sqrt((1 - q) / q * squares)


def paper_step(sampler: str, name: str, problem, epsilon: float | None, step_size: float, **more):
    """DPSGLD or DPSGNHT; without ε, no noise for privacy either."""
    clip, _ = PAPER[name, sampler]
    budget = (
        {"noise_multiplier": 0.0, "noise_source": dp.InsecureSeededNoise(more.pop("seed"))}
        if epsilon is None
        else {"epsilon": epsilon, "delta": 0.1 / problem.n}
    )
    return getattr(dp.experimental, sampler)(
        **budget,
        draws=PAPER_DRAWS,
        chains=PAPER_CHAINS,
        gradient_clip=clip,
        sampling_rate=PAPER_RATE,
        step_size=step_size,
        model=problem.model,
        **more,
    )


def public_step_size(sampler: str, name: str, problem, epsilon: float) -> tuple[float, float]:
    """Step size and gradient noise: the tuned step, or less where the privacy noise asks for it.

    The same rules as the steps' own defaults: at most half of the Langevin noise is for privacy, and a
    step's noise is at most half of the momentum's own size.
    """
    clip, largest = PAPER[name, sampler][0], STEP_SIZES[name, sampler]
    z = dp.calibrate_noise(
        epsilon=epsilon,
        delta=0.1 / problem.n,
        releases=PAPER_CHAINS * PAPER_DRAWS,
        sampling_rate=PAPER_RATE,
    )
    sigma = z * 2 * clip / PAPER_RATE
    return min(largest, 2 / sigma**2 if sampler == "DPSGLD" else 0.5 / sigma), sigma


def langevin_table(name: str, repeats: int) -> None:
    """DPSGLD and DPSGNHT on a model of the DP-HMC paper."""
    rng, rows, problem = np.random.default_rng(4), [], PAPER_PROBLEMS[name]()
    for sampler in ("DPSGLD", "DPSGNHT"):
        clip, published = PAPER[name, sampler]
        for epsilon, theirs in zip(PAPER_EPSILONS, published, strict=True):
            step_size, sigma = public_step_size(sampler, name, problem, epsilon)
            build = partial(paper_step, sampler, name, problem, epsilon, step_size)
            shown = cell(build, problem, rng, repeats)[1:]
            rows.append([sampler, epsilon, clip, step_size, sigma, *shown, theirs])
            print(rows[-1], flush=True)
    covariance = ""
    if name != "banana":
        values = np.linalg.eigvalsh(np.cov(problem.exact(100_000, rng).T)) * problem.n
        covariance = (
            " Our random covariance is another than theirs; its eigenvalues go from "
            f"{values[0]:.2g} to {values[-1]:.2g}."
        )
    write_report(
        f"subsampled_mmd_langevin_{name.split()[-1].lower()}",
        f"Stochastic gradients: the DP-HMC paper's {name}",
        f"n = {problem.n:,}, δ = 0.1/n; {PAPER_CHAINS} chains of {PAPER_DRAWS:,} draws share ε, which decides "
        "the noise; their last halves together (at most 2,000 draws, evenly spaced) against 1,000 exact "
        f"ones. Median and range of {repeats} runs; CPU seconds of one run. The last column is the paper's "
        f"own median of 10 runs.{covariance}\n\n"
        "Expected batches of 1,000 and gradient clips as in the paper's code. Step sizes are ours: tuned "
        "without noise for privacy on synthetic data of the same model with another seed, and smaller "
        "where the steps' own rule asks for it: half of the Langevin noise, or half of the momentum's "
        "size, may be for privacy. So both are public. The gradient noise is that of the privacy alone. "
        "(For its noise, the paper's code takes twice the drift of Langevin dynamics.) Both samplers are "
        "biased comparators.",
        [
            *["sampler", "ε", "clip", "step size", "gradient noise sd"],
            *["MMD", "range", "seconds", "paper"],
        ],
        rows,
    )


def tune() -> None:
    """MMD by step size, without noise for privacy, on synthetic data of another seed."""
    grids = {
        ("banana", "DPSGLD"): [3e-5, 1e-4, 2e-4, 4e-4],
        ("banana", "DPSGNHT"): [1e-3, 4e-3, 1e-2, 2e-2],
        ("10-d Gaussian", "DPSGLD"): [1e-8, 3e-8, 1e-7, 2e-7],
        ("10-d Gaussian", "DPSGNHT"): [3e-5, 1e-4, 2e-4, 4e-4],
    }
    rng = np.random.default_rng(5)
    for (name, sampler), grid in grids.items():
        problem = PAPER_PROBLEMS[name](seed=1)
        for step_size in grid:
            runs = []
            for seed in range(2):
                step = paper_step(sampler, name, problem, None, step_size, seed=seed)
                runs.append(f"{run(step, problem, rng).mmd:.3f}")
            print(name, sampler, step_size, *runs, flush=True)


def main() -> None:
    logging.getLogger("pymc").setLevel(logging.ERROR)
    arguments = sys.argv[1:]
    repeats = int(arguments.pop()) if arguments and arguments[-1].isdigit() else 3
    parts = {
        "penalty": penalty_table,
        "barker-flat": partial(barker_table, "flat", "thesis"),
        "barker-tempered": partial(barker_table, "tempered", "thesis"),
        "barker-default": partial(barker_table, "tempered", "default"),
        "rates": rates_table,
        "langevin-banana": partial(langevin_table, "banana"),
        "langevin-gaussian": partial(langevin_table, "10-d Gaussian"),
    }
    for part in arguments or parts:
        tune() if part == "tune" else parts[part](repeats)


if __name__ == "__main__":
    main()
