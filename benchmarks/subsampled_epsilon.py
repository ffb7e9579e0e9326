"""ε of subsampled releases beside other accountants, and DP Barker iterations beside the paper's.

Run: ``python benchmarks/subsampled_epsilon.py``. The Fourier accountant's values (Koskela, Jälkö and
Honkela, 2020) were computed with its authors' code; it is not run here.
"""

import time

import numpy as np
from _report import write_report
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from scipy.special import ndtr

from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Gaussian, PoissonGaussian
from pymc_dp.privacy.rdp import (
    ORDERS,
    barker_curve,
    gaussian_curve,
    published_barker_curve,
    rdp_count,
    rdp_epsilon,
    without_replacement,
)

DELTA = 1e-6
# (q, σ, number of releases): ε. Their σ is for means ±1, a total sensitivity of 2.
FOURIER = {
    (0.01, 1, 100): 1.1104,
    (0.01, 1, 1000): 3.2142,
    (0.01, 2, 100): 0.40215,
    (0.01, 2, 1000): 1.37449,
    (0.01, 2, 10_000): 4.90740,
    (0.01, 5, 100): 0.14919,
    (0.01, 5, 1000): 0.51031,
    (0.01, 5, 10_000): 1.76553,
    (0.001, 1, 1000): 0.27126,
    (0.001, 1, 10_000): 0.91043,
}
UNITS, BATCH, EPSILONS = 100_000, 1300, [1.0, 2.0, 4.0, 6.0]


def epsilons() -> None:
    composed_epsilon([PoissonGaussian(1.0, 0.5)], DELTA)  # imports and first calls
    rows = []
    for (q, sigma, count), fourier in FOURIER.items():
        z = sigma / 2
        start = time.perf_counter()
        ours = composed_epsilon([PoissonGaussian(z, q, count)], DELTA)
        seconds = time.perf_counter() - start
        rdp = without_replacement(lambda alpha, z=z: gaussian_curve(alpha, z), q)
        whole = composed_epsilon([Gaussian(z, count)], DELTA)
        by_rdp = rdp_epsilon(count * rdp, DELTA)
        cells = [q, z, count, f"{ours:.6g}", f"{fourier:.6g}", f"{ours / fourier - 1:+.1e}"]
        rows.append([*cells, by_rdp, whole, 1000 * seconds])
    write_report(
        "subsampled_epsilon",
        "ε of Gaussian releases of samples",
        f"Substitute-one, δ = {DELTA:g}; z is the noise's standard deviation divided by the "
        "sensitivity of the sum over all units. Our ε and the Fourier accountant's are for Poisson "
        "samples; Theorem 3.5 of Räisä (2021) is for samples without replacement at the same rate, with "
        "the conversion of Canonne, Kamath and Steinke (2020). The last but one column is ε without "
        "sampling.",
        ["q", "z", "releases", "ε", "Fourier", "difference", "Theorem 3.5", "all units", "ms"],
        rows,
    )


def sampled_delta(z: float, q: float, count: int, epsilon: float, tilt: float) -> tuple:
    """δ(ε) by importance sampling of tilted losses, and its standard error; no FFT.

    Outputs are put into 20,000 bins, which can only lower δ.
    """
    s = 2 * z
    edges = np.linspace(-1 - 8 * s, 1 + 8 * s, 20_001)

    def between(t: np.ndarray) -> np.ndarray:  # from whichever tail is nearer
        return np.where(t[1:] < 0, np.diff(ndtr(t)), -np.diff(ndtr(-t)))

    mass = (1 - q) * between(edges / s) + q * between((edges + 1) / s)
    loss = np.log(mass / mass[::-1])
    log_tilted = np.log(mass) + tilt * loss
    log_moment = np.logaddexp.reduce(log_tilted)
    tilted = np.exp(log_tilted - log_moment)
    sums = np.random.default_rng(0).multinomial(count, tilted / tilted.sum(), 4000) @ loss
    value = np.exp(count * log_moment - tilt * sums) * -np.expm1(np.minimum(epsilon - sums, 0))
    return value.mean(), value.std() / np.sqrt(value.size)


def small_deltas() -> None:
    z, q, rows = 0.5, 1e-3, []
    for count, delta, tilt in ((10**5, 1e-12, 10.7), (10**6, 1e-9, 2.97), (10**6, 1e-12, 3.4)):
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        release = dp_event.GaussianDpEvent(2 * z)
        theirs = accountant.compose(dp_event.PoissonSampledDpEvent(q, release), count)
        ours = composed_epsilon([PoissonGaussian(z, q, count)], delta)
        for name, epsilon in (("dp-accounting", theirs.get_epsilon(delta)), ("ours", ours)):
            true, error = sampled_delta(z, q, count, epsilon, tilt)
            rows.append([count, f"{delta:g}", name, f"{epsilon:.4f}", f"{true:.2e} ± {error:.0e}"])
    write_report(
        "small_delta",
        "ε at a small δ and many releases",
        f"q = {q}, z = {z}. The last column is δ at the reported ε, by importance sampling (a lower "
        "bound, with its standard error). Where it is above the δ asked for, ε is reported too low. "
        "dp-accounting's numbers depend on how its FFT rounds, and so on the version of SciPy.",
        ["releases", "δ", "accountant", "ε", "true δ there"],
        rows,
    )


def barker_iterations() -> None:
    def published(alpha: np.ndarray) -> np.ndarray:
        return published_barker_curve(alpha, BATCH)

    def ours(alpha: np.ndarray) -> np.ndarray:
        return barker_curve(alpha, 2.0, BATCH)

    rows = []
    for name, curve in (("Theorem 3.3", published), ("ours", ours)):
        rdp = without_replacement(curve, BATCH / UNITS)
        classic = [int(np.max((e + np.log(DELTA) / (ORDERS - 1)) / rdp)) for e in EPSILONS]
        rows.append([name, "classic", *classic])
        rows.append([name, "improved", *(rdp_count(rdp, e, DELTA) for e in EPSILONS)])
    write_report(
        "barker_iterations",
        "DP Barker iterations that a budget allows",
        f"n = {UNITS:,}, b = {BATCH}, variance 2, δ = {DELTA:g}, by the Rényi divergence of one batch: "
        "the constants of Heikkilä et al. (2019) as in Theorem 3.3 of Räisä (2021), and ours. Both with "
        "the conversion of the thesis' Theorem 2.5 and with that of Canonne, Kamath and Steinke (2020). "
        "The accountant uses the last row.",
        ["divergence of a batch", "conversion", *(f"ε = {e:g}" for e in EPSILONS)],
        rows,
    )


if __name__ == "__main__":
    epsilons()
    small_deltas()
    barker_iterations()
