"""Coverage and speed of small-area estimation from a noisy table of 1,000 areas.

python benchmarks/small_areas.py [data sets]
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

from pymc_dp.mechanisms import DiscreteGaussianMechanism
from pymc_dp.mechanisms.distributions import draw_discrete_gaussian

AREAS = 1000
CASES = {"8 %, noise sd 5": (0.08, 5.0, 0.5), "2 %, noise sd 2": (0.02, 2.0, 0.5)}
DRAWS, TUNE = 400, 400


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
        pm.Data("population", population, dims="area")
        mu = pm.Normal("mu", -2.5, 1.5)
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, 1, dims="area")
        share = pm.Deterministic("share", pm.math.sigmoid(mu + tau * u), dims="area")
        size = model["population"]
        if naive:
            seen = np.clip(noisy, 0, population)
            pm.Binomial("cells", size, share, observed=pm.Data("table", seen), dims="area")
        else:
            counts = pm.Binomial.dist(size, share)
            DiscreteGaussianMechanism("cells", total=counts, scale=sigma,
                                      observed=pm.Data("table", noisy), dims="area")  # fmt: skip
    return model


def sets_of(case, sets, first=0):
    """Hits, divergences and effective draws per CPU second, exact and naive."""
    rate, sigma, tau = CASES[case]
    compiled = {}
    for i in range(first, first + sets):
        rng = np.random.default_rng([i, int(100 * rate)])
        population, mu, share, noisy = simulate(rng, rate, sigma, tau)
        for naive in (False, True):
            seen = np.clip(noisy, 0, population) if naive else noisy
            if naive not in compiled:
                model = model_of(population, noisy, sigma, naive)
                compiled[naive] = nutpie.compile_pymc_model(model)
            data = compiled[naive].with_data(population=population, table=seen)
            start = time.process_time()
            trace = nutpie.sample(data, draws=DRAWS, tune=TUNE, chains=2, cores=1, seed=i,
                                  progress_bar=False)  # fmt: skip
            seconds = time.process_time() - start
            posterior = trace["posterior"]
            inside = {}
            for name, truth in (("mu", mu), ("tau", tau), ("share", share)):
                low, high = np.quantile(posterior[name].values, [0.05, 0.95], axis=(0, 1))
                inside[name] = np.mean((low <= truth) & (truth <= high))
            bias = float(posterior["tau"].mean()) - tau
            ess = effective(trace, ["mu", "tau"]).min()
            diverged = int(trace["sample_stats"]["diverging"].sum())
            yield naive, [*inside.values(), bias, ess / seconds, diverged]


def main():
    sets = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    rows = []
    for case in CASES:
        found = list(sets_of(case, sets))
        for naive in (False, True):
            values = np.array([v for which, v in found if which == naive])
            rows.append([case, "naive" if naive else "exact", *values.mean(axis=0)[:4],
                         float(np.median(values[:, 4])), int(values[:, 5].sum())])  # fmt: skip
            print(rows[-1], flush=True)
    write_report(
        "small_areas",
        "Coverage of small-area estimates from a noisy table",
        f"{AREAS} areas of 20 to 120 people, shares logit-normal with sd 0.5, one table with discrete "
        f"Gaussian noise; {sets} data sets, drawn anew each time. Shares of 90 % intervals that hold the truth; "
        "standard error for μ and τ "
        f"{np.sqrt(0.09 / sets):.2f}, for areas some 0.002. `exact` observes the table through "
        "`DiscreteGaussianMechanism(total=...)`, `naive` clips it to what is possible and takes it as counts. "
        f"nutpie, 2 chains of {TUNE} + {DRAWS} iterations; the smaller of the effective sample sizes of μ and "
        "τ per CPU second, tuning included, compilation not, median over data sets.",
        ["table", "analysis", "μ", "τ", "areas", "bias of τ", "ESS per CPU second", "divergences"],
        rows,
    )


if __name__ == "__main__":
    main()
