"""Coverage and speed of small-area estimation from a noisy table of 1,000 areas.

python benchmarks/small_areas.py [data sets] [runs of NUTS]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys
import time

import numpy as np
import nutpie
import pymc as pm
from _released import effective
from _report import write_report
from scipy import special, stats

from pymc_dp.mechanisms import DiscreteGaussianMechanism
from pymc_dp.mechanisms.distributions import draw_discrete_gaussian

AREAS = 1000
CASES = {"8 %, noise sd 5": (0.08, 5.0, 0.5), "2 %, noise sd 2": (0.02, 2.0, 0.5)}
DRAWS, TUNE = 400, 400
LOGIT = np.linspace(-9, 4, 400)
COARSE = np.linspace(-5.5, -1, 41), np.linspace(0.02, 1.8, 31)


def simulate(rng, rate, sigma, tau):
    """Public sizes, true shares and the published noisy table."""
    population = rng.integers(20, 121, size=AREAS)
    mu = np.log(rate / (1 - rate))
    share = 1 / (1 + np.exp(-rng.normal(mu, tau, size=AREAS)))
    noise = draw_discrete_gaussian(rng, sigma, (AREAS,))
    return population, mu, share, rng.binomial(population, share) + noise


def model_of(population, noisy, sigma, naive):
    """Shares that vary between areas; the table observed through its noise, or taken as counts."""
    with pm.Model(coords={"area": np.arange(AREAS)}) as model:
        mu = pm.Normal("mu", -2.5, 1.5)
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, 1, dims="area")
        share = pm.Deterministic("share", pm.math.sigmoid(mu + tau * u), dims="area")
        if naive:
            seen = np.clip(noisy, 0, population)
            pm.Binomial("cells", population, share, observed=seen, dims="area")
        else:
            counts = pm.Binomial.dist(population, share)
            DiscreteGaussianMechanism(
                "cells", total=counts, scale=sigma, observed=noisy, dims="area"
            )
    return model


def log_likelihood(population, noisy, sigma, naive):
    """Of every area at every logit of the grid: by the package's sum over counts, or as a count."""
    if naive:
        seen = np.clip(noisy, 0, population)[:, None]
        return stats.binom.logpmf(seen, population[:, None], special.expit(LOGIT))
    model = model_of(population, noisy, sigma, naive)
    density = model.compile_logp(vars=[model["cells"]], sum=False)
    same = {"tau_log__": np.asarray(-50.0), "u": np.zeros(AREAS)}  # all areas have the share of mu
    return np.stack([density({"mu": np.asarray(x), **same})[0] for x in LOGIT], axis=1)


def grid(likelihood, mu, tau):
    """Posterior of (μ, τ) on a grid, areas integrated, and the areas' densities of the logit."""
    m, t = (x.ravel() for x in np.meshgrid(mu, tau, indexing="ij"))
    density = stats.norm.pdf(LOGIT, m[:, None], t[:, None])
    density /= density.sum(axis=1, keepdims=True)
    evidence = likelihood @ density.T  # areas by (μ, τ)
    log_post = np.log(evidence).sum(axis=0) + stats.norm.logpdf(m, -2.5, 1.5) - t**2 / 2
    post = np.exp(log_post - log_post.max())
    post /= post.sum()
    return post.reshape(len(mu), len(tau)), likelihood * ((post / evidence) @ density)


def around(values, weight):
    """A fine grid where the weight is."""
    mean = weight @ values
    sd = np.sqrt(weight @ (values - mean) ** 2 + (values[1] - values[0]) ** 2)
    fine = np.linspace(mean - 4 * sd, mean + 4 * sd, 41)
    return fine[(fine > values[0] / 2)] if values[0] > 0 else fine


def covered(case, i, naive):
    """Whether 90 % intervals hold μ, τ and the areas' shares, and the error of τ: without MCMC."""
    rate, sigma, tau = CASES[case]
    rng = np.random.default_rng([i, int(100 * rate)])
    population, mu, share, noisy = simulate(rng, rate, sigma, tau)
    log_l = log_likelihood(population, noisy, sigma, naive)
    likelihood = np.exp(log_l - log_l.max(axis=1, keepdims=True))
    at = COARSE
    for _ in range(2):
        table, _ = grid(likelihood, *at)
        at = around(at[0], table.sum(axis=1)), around(at[1], table.sum(axis=0))
    table, area = grid(likelihood, *at)
    below = np.cumsum(area, axis=1) - area / 2
    below /= area.sum(axis=1, keepdims=True)
    truth = special.logit(share)
    inside = np.array([np.interp(x, LOGIT, b) for x, b in zip(truth, below, strict=True)])

    def holds(values, weight, x):
        return 0.05 <= np.interp(x, values, np.cumsum(weight) - weight / 2) <= 0.95

    of_mu, of_tau = table.sum(axis=1), table.sum(axis=0)
    return [holds(at[0], of_mu, mu), holds(at[1], of_tau, tau),
            np.mean((inside >= 0.05) & (inside <= 0.95)), of_tau @ at[1] - tau]  # fmt: skip


def nuts(case, i, naive, compiled):
    """Effective draws of μ and τ per CPU second, the smaller; divergences; coverage of the areas."""
    rate, sigma, tau = CASES[case]
    population, _, _, noisy = simulate(np.random.default_rng([1000 + i, int(100 * rate)]), rate, sigma, tau)  # fmt: skip
    if not compiled:
        compiled.append(nutpie.compile_pymc_model(model_of(population, noisy, sigma, naive)))
    seen = np.clip(noisy, 0, population) if naive else noisy
    data = compiled[0].with_data(population=population, table=seen)
    start = time.process_time()
    trace = nutpie.sample(data, draws=DRAWS, tune=TUNE, chains=2, cores=1, seed=i, progress_bar=False)  # fmt: skip
    seconds = time.process_time() - start
    return effective(trace, ["mu", "tau"]).min() / seconds, int(trace["sample_stats"]["diverging"].sum())  # fmt: skip


def main():
    sets = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    rows = []
    for case in CASES:
        for naive in (False, True):
            found = np.array([covered(case, i, naive) for i in range(sets)])
            compiled = []
            speed = np.array([nuts(case, i, naive, compiled) for i in range(runs)])
            rows.append([case, "naive" if naive else "exact", *map(float, found.mean(axis=0)),
                         float(np.median(speed[:, 0])), int(speed[:, 1].sum())])  # fmt: skip
            print(rows[-1], flush=True)
    write_report(
        "small_areas",
        "Coverage of small-area estimates from a noisy table",
        f"{AREAS} areas of 20 to 120 people, shares logit-normal with sd 0.5, one table with discrete "
        f"Gaussian noise. `exact` observes the table through `DiscreteGaussianMechanism(total=...)`, `naive` clips it "
        f"to what is possible and takes it as counts. Shares of 90 % intervals that hold the truth in {sets} data "
        f"sets, of the posterior itself: μ and τ on a grid, areas integrated, with the mechanism's own sum over counts "
        f"(standard error for μ and τ {np.sqrt(0.09 / sets):.2f}, for areas some 0.002). Speed on {runs} other data "
        f"sets: nutpie, 2 chains of {TUNE} + {DRAWS} iterations of all {AREAS + 2} parameters; the smaller of the "
        "effective sample sizes of μ and τ per CPU second, tuning included, compilation not, median.",
        ["table", "analysis", "μ", "τ", "areas", "bias of τ", "ESS per CPU second", "divergences"],
        rows,
    )


if __name__ == "__main__":
    main()
