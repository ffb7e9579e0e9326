"""What clipping log-likelihood ratios does to a posterior, without any noise: section 6.2 of Räisä (2021).

Run: ``python benchmarks/clipping_bias.py [chains]``. Takes some four minutes. Random-walk Metropolis and
HMC with the package's own transitions and its clipped sum at noise multiplier zero, which an insecure noise
source alone allows. The share of clipped ratios is counted here and nowhere in the package: it is a
statistic of the data.
"""

import os
import sys
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from _report import EVIDENCE, write_report
from _thesis import banana

import pymc_dp as dp
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.noisy_sum import noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.hmc import Mass, hmc_transition
from pymc_dp.steps.penalty import penalty_transition

PICTURE = EVIDENCE.parent / "pictures" / "clipping_bias.png"
NO_NOISE = dp.InsecureSeededNoise(0)
# Draws of a chain, as in the thesis; the last half counts.
DRAWS = {"RWMH": 3000, "HMC": 500}
# In posterior standard deviations: the random walk's usual scale, √d times; a trajectory of about π/2.
WALK, STEP_SIZE, LEAPFROG_STEPS = 2.4, 0.3, 5
EXACT_SAMPLES = 10


class Banana:
    """The flat banana: Gaussian records with mean m(θ) = (θ₁, θ₂ + aθ₁², θ₃, …)."""

    curvature = 20.0

    def __init__(self, n: int, d: int):
        problem = banana(n, d, self.curvature)
        x = problem.model["X"].get_value()
        self.variances = np.array([20.0, 2.5] + [1.0] * (d - 2))
        self.weighted = np.asfortranarray(x / self.variances)
        precision = n / self.variances + 1 / 1000
        self.center = x.sum(axis=0) / self.variances / precision
        self.precision, self.truth, self.exact = precision, problem.truth, problem.exact
        self.sd = 1 / np.sqrt(precision)

    def straight(self, theta):
        """m(θ), which is Gaussian in the posterior; of one θ or of a row each."""
        m = np.array(theta)
        m[..., 1] += self.curvature * m[..., 0] ** 2
        return m

    def ratios(self, theta, new):
        """Every record's log-likelihood at `new`, less that at `theta`."""
        m, m_new = self.straight(theta), self.straight(new)
        return self.weighted @ (m_new - m) - ((m_new**2 - m**2) / self.variances).sum() / 2

    def log_prior(self, theta):
        """Up to a constant."""
        return -(self.straight(theta) ** 2).sum() / 2000

    def gradient(self, theta):
        """Of the log posterior, from all records together."""
        slope = self.precision * (self.center - self.straight(theta))
        slope[0] += 2 * self.curvature * theta[0] * slope[1]
        return slope


class Exponential:
    """Waiting times with unknown log rate θ; rate ~ Exponential(1). Scores 1 − y e^θ are skewed."""

    def __init__(self, n: int):
        self.y = np.random.default_rng(0).exponential(size=n)
        self.shape, self.rate = n + 1, 1 + self.y.sum()
        self.truth, self.center = np.zeros(1), np.log([self.shape / self.rate])
        self.sd = np.array([self.shape**-0.5])

    def exact(self, size, rng):
        """Draws of the posterior, (size, 1)."""
        return np.log(rng.gamma(self.shape, 1 / self.rate, size=(size, 1)))

    def straight(self, theta):
        """As it is: the posterior of the log rate is as good as Gaussian."""
        return theta

    def ratios(self, theta, new):
        """Every record's log-likelihood at `new`, less that at `theta`."""
        return (new[0] - theta[0]) - self.y * (np.exp(new[0]) - np.exp(theta[0]))

    def log_prior(self, theta):
        """Up to a constant."""
        return theta[0] - np.exp(theta[0])

    def gradient(self, theta):
        """Of the log posterior, from all records together."""
        return self.shape - self.rate * np.exp(theta)


# Each with its clip bounds b.
TARGETS = {
    "flat banana, d = 2": (lambda: Banana(100_000, 2), [0.05, 0.1, 0.2, 0.4, 0.8, 2.0]),
    "flat banana, d = 10": (lambda: Banana(200_000, 10), [0.1, 0.3, 0.6, 0.9, 1.3, 3.0]),
    "exponential, d = 1": (lambda: Exponential(100_000), [2.0, 3.0, 4.0, 6.0, 8.0, 10.0]),
}


def chain(target, sampler, b, rng):
    """Last half of a chain without noise; the shares of clipped ratios and accepted moves in it."""
    clipped, accepted = [], []

    def bound(move):
        return b * float(np.linalg.norm(move))

    def ratio(theta, new):
        terms, B = target.ratios(theta, new), bound(new - theta)
        clipped.append(np.mean(np.abs(terms) > B))
        permit = Permit(0, len(clipped), (Gaussian(0.0),))
        return float(
            noisy_sum([terms], bound=B, noise_multiplier=0.0, permit=permit, noise=NO_NOISE)
        )

    test = {
        "bound": bound,
        "noisy_ratio": ratio,
        "log_public": target.log_prior,
        "noise_sd": lambda bound: 0.0,
    }
    d, draws = len(target.sd), DRAWS[sampler]
    mass, scale = Mass(1 / target.sd**2, d), WALK / np.sqrt(d) * target.sd
    theta = target.truth + target.sd.mean() * rng.standard_normal(d)
    path = np.empty((draws, d))
    for k in range(draws):
        if sampler == "RWMH":
            theta, info = penalty_transition(
                rng, theta, propose=lambda rng, x: x + scale * rng.standard_normal(d), **test
            )
        else:
            eta = STEP_SIZE * rng.uniform(0.9, 1.1)
            theta, info = hmc_transition(
                rng, theta, gradient=target.gradient, mass=mass, step_size=eta,
                n_leapfrog=LEAPFROG_STEPS, **test,
            )  # fmt: skip
        path[k] = theta
        accepted.append(info.accepted)
    half = slice(draws // 2, None)
    return path[half], float(np.mean(clipped[half])), float(np.mean(accepted[half]))


def measure(name, target, bounds, chains):
    """A row for each sampler and clip bound, and the MMDs of exact samples to the reference."""
    rng, rows = np.random.default_rng(1), []
    reference = target.exact(1000, rng)
    floor = [dp.mmd(target.exact(1000, rng), reference) for _ in range(EXACT_SAMPLES)]
    for sampler in DRAWS:
        for b in bounds:
            start = time.perf_counter()
            runs = [chain(target, sampler, b, rng) for _ in range(chains)]
            paths, clipped, accepted = zip(*runs, strict=True)
            z = np.concatenate([target.straight(path) - target.center for path in paths])
            row = {
                "model": name,
                "sampler": sampler,
                "b": b,
                "clipped": float(np.mean(clipped)),
                "accepted": float(np.mean(accepted)),
                "MMD": [dp.mmd(path, reference) for path in paths],
                "shift": float(np.abs(z.mean(axis=0) / target.sd).max()),
                "width": float(np.mean(z.std(axis=0) / target.sd)),
            }
            rows.append(row)
            print(row, f"{time.perf_counter() - start:.1f} s", flush=True)
    return rows, floor


def draw(results):
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True, layout="constrained")
    for ax, (name, (rows, floor)) in zip(axes, results.items(), strict=True):
        for color, marker, sampler in (("C0", "o", "RWMH"), ("C1", "s", "HMC")):
            mine = [row for row in rows if row["sampler"] == sampler]
            share = [row["clipped"] for row in mine]
            for x, row in zip(share, mine, strict=True):
                ax.plot([x] * len(row["MMD"]), row["MMD"], marker, color=color, alpha=0.35, mew=0)
            medians = [np.median(row["MMD"]) for row in mine]
            ax.plot(share, medians, marker + "-", color=color, label=sampler)
        ax.axhspan(min(floor), max(floor), color="0.5", alpha=0.4, lw=0, label="exact draws")
        ax.set(title=name, xlabel="share of ratios clipped")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("MMD to the exact posterior")
    axes[0].legend(frameon=False)
    axes[2].set_xscale("log")
    figure.savefig(PICTURE, dpi=100, facecolor="white")  # on white, whatever the page's theme is


def main() -> None:
    chains = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    results = {
        name: measure(name, build(), bounds, chains) for name, (build, bounds) in TARGETS.items()
    }
    draw(results)
    floors = "; ".join(
        f"{name} {min(floor):.3f} to {max(floor):.3f}" for name, (_, floor) in results.items()
    )
    table = [
        [
            row["model"], row["sampler"], row["b"], row["clipped"], row["accepted"],
            float(np.median(row["MMD"])), " ".join(f"{x:.3f}" for x in sorted(row["MMD"])),
            row["shift"], row["width"], (1 - row["clipped"]) ** -0.5,
        ]
        for rows, _ in results.values()
        for row in rows
    ]  # fmt: skip
    write_report(
        "clipping_bias",
        "The effect of clipping, without noise",
        f"Flat bananas of Räisä (2021), n = 100,000 and 200,000, and 100,000 exponential waiting times. "
        f"{chains} chains of {DRAWS['RWMH']} (RWMH) or {DRAWS['HMC']} (HMC) iterations, of which the last "
        "half counts, from starts near the truth; no noise, and no gradient is clipped. *Clipped*: share "
        "of the units' log-likelihood ratios, over all proposals. *MMD* to 1,000 exact draws, median "
        f"and chains; {EXACT_SAMPLES} other exact samples have: {floors}. *Shift* and *width*, of all "
        "chains together, where the posterior is Gaussian (a banana straightened): error of the mean in "
        "exact posterior sds, in the worst coordinate, and sd over exact sd, on average. The last column is "
        "1/√(1 − clipped). Chains that accept hardly anything are as wide and as far off as their starts.",
        [
            "model", "sampler", "b", "clipped", "accepted", "MMD", "chains", "shift", "width",
            "1/√(1−clipped)",
        ],
        table,
    )  # fmt: skip


if __name__ == "__main__":
    main()
