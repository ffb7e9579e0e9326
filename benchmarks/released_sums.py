"""Sums of n records by the central limit theorem: speed, cost against n, agreement, coverage.

python benchmarks/released_sums.py [speed] [cost] [roads] [coverage]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys
import time

import numpy as np
import nutpie
import pymc as pm
import pytensor.tensor as pt
from _released import REGRESSION, effective, regression, released, run
from _report import write_report
from pymc.blocking import DictToArrayBijection

import pymc_dp as dp
from pymc_dp.statistics import clamp, second_moments

TRUTH = np.array([-1.79, -2.89, -0.66])


def draw_release(n, rng, epsilon=1.0):
    """Nine clamped second moments of n made-up records, with Laplace noise."""
    total, left = np.zeros(9), n
    while left:  # in parts, for the memory
        k = min(left, 10**6)
        x = rng.normal(REGRESSION["mean_x"], 1, size=(k, 2))
        y = TRUTH[0] + x @ TRUTH[1:] + rng.normal(size=k) * REGRESSION["sigma2"] ** 0.5
        total += second_moments(clamp(np.column_stack([x, y]), -10, 10, rescale=True)).sum(axis=0)
        left -= k
    return total + rng.laplace(0, REGRESSION["sensitivity"] / epsilon, size=9)


def one_record(s, n, epsilon=1.0, points=None):
    """The regression of the paper, its records integrated out."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, REGRESSION["prior_sd"], shape=3)
        x = pm.MvNormal.dist(np.array(REGRESSION["mean_x"]), np.eye(2))
        y = pm.Normal.dist(beta[0] + x @ beta[1:], REGRESSION["sigma2"] ** 0.5)
        u = clamp(pt.stack([x[0], x[1], y])[None], -10, 10, rescale=True)
        dp.LaplaceMechanism("s", second_moments(u)[0], n=n, epsilon=epsilon, points=points,
                            sensitivity=REGRESSION["sensitivity"], observed=s)  # fmt: skip
    return model


def nutpie_draws(model, draws=1000, tune=500, seed=1, low_rank=True):
    """Draws, and CPU seconds without compilation."""
    compiled = nutpie.compile_pymc_model(model)
    start = time.process_time()
    matrix = {"low_rank_modified_mass_matrix": True} if low_rank else {}
    trace = nutpie.sample(compiled, draws=draws, tune=tune, chains=2, cores=1, seed=seed,
                          progress_bar=False, **matrix)  # fmt: skip
    return trace, time.process_time() - start


def summary(name, trace, seconds, extra=""):
    ess = effective(trace, ["beta"]).min()
    beta = trace["posterior"]["beta"]
    mean, sd = (np.asarray(f(("chain", "draw"))) for f in (beta.mean, beta.std))
    spell = lambda v: ", ".join(f"{x:.3f}" for x in v)  # noqa: E731
    return [name, f"{seconds:.1f}", f"{ess:.0f}", ess / seconds, spell(mean), spell(sd), extra]


def speed_rows():
    n = 10_000
    s = draw_release(n, np.random.default_rng(4))
    for low_rank in (True, False):
        trace, seconds = nutpie_draws(one_record(s, n), low_rank=low_rank)
        name = f"one record, nutpie, {'low-rank' if low_rank else 'diagonal'} mass matrix"
        yield summary(name, trace, seconds, said(trace, s, n))
    with one_record(s, n):
        start = time.process_time()
        trace = pm.sample(1000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)
    seconds = time.process_time() - start
    yield summary("one record, pm.sample as it is, compilation too", trace, seconds, said(trace, s, n))  # fmt: skip
    model, latents = regression(1, s, n=n)
    with model:
        step = dp.PrivacyAwareGibbs(latents)
    trace, each = run(model, step, ["beta"], draws=2500, tune=500)
    yield summary("n latent records, PrivacyAwareGibbs", trace, 3000 * each, f"{1e3 * each:.0f} ms per iteration")  # fmt: skip


def said(trace, s, n, epsilon=1.0):
    """What the check says, and divergences."""
    with one_record(s, n, epsilon):
        verdict = dp.check_releases(trace)[0].verdict
    return f"{verdict}; {int(trace['sample_stats']['diverging'].sum())} divergences"


def cost_rows():
    for n in (10**2, 10**4, 10**6, 10**8):
        s = draw_release(n, np.random.default_rng(5))
        start = time.process_time()
        model = one_record(s, n)
        build = time.process_time() - start
        gradient = model.logp_dlogp_function(ravel_inputs=True)
        gradient.set_extra_values({})
        x = DictToArrayBijection.map(model.initial_point()).data
        gradient(x)
        start, calls = time.process_time(), 0
        while time.process_time() - start < 3:
            gradient(x)
            calls += 1
        microseconds = 1e6 * (time.process_time() - start) / calls
        trace, seconds = nutpie_draws(model, draws=2000)
        ess = effective(trace, ["beta"]).min()
        yield [f"{n:.0e}", build, microseconds, ess / seconds, said(trace, s, n)]


def roads_rows():
    # The exact sampler mixes the slower the larger ε is.
    for epsilon, draws in ((0.3, 12_000), (1, 12_000), (3, 30_000), (10, 60_000)):
        s = released(REGRESSION, epsilon)
        model, latents = regression(epsilon, s)
        with model:
            step = dp.PrivacyAwareGibbs(latents)
        exact, seconds = run(model, step, ["beta"], draws=draws, tune=2000)
        approximate, seconds_normal = nutpie_draws(one_record(s, 100, epsilon), draws=2000)
        said_of_it = said(approximate, s, 100, epsilon)
        with one_record(s, 100, epsilon):
            start = time.process_time()
            corrected = dp.correct_releases(approximate, random_seed=1)
            seconds_corrected = time.process_time() - start
        of_exact = exact["posterior"]["beta"].values.reshape(-1, 3)
        mean, sd = of_exact.mean(axis=0), of_exact.std(axis=0)
        for name, trace, cpu, more in (
            ("normal", approximate, seconds_normal, said_of_it),
            ("corrected", corrected, seconds_normal + seconds_corrected, f"k = {corrected.attrs['release_pareto_k']:.2f}"),
        ):  # fmt: skip
            beta = trace["posterior"]["beta"].values.reshape(-1, 3)
            ess, ess_exact = effective(trace, ["beta"]), effective(exact, ["beta"])
            off = (beta.mean(axis=0) - mean) / sd
            error = np.sqrt(1 / ess + 1 / ess_exact)
            yield [epsilon, name, ", ".join(f"{x:.3f}" for x in off), ", ".join(f"{x:.3f}" for x in error),
                   ", ".join(f"{x:.2f}" for x in beta.std(axis=0) / sd), ess.min() / cpu,
                   ess_exact.min() / ((2000 + draws) * seconds), more]  # fmt: skip


def two_tables(rng, data=None):
    """A yes-no question and its product with a second one, of the same 2,000 people."""
    p, q, n = rng.beta(2, 3), rng.beta(2, 2), 2000
    yes = rng.random(n) < p
    both = yes & (rng.random(n) < q)
    noise = dp.mechanisms.distributions.draw_discrete_gaussian(rng, 20.0, (2,))
    return {"p": p, "q": q}, {"table": yes.sum() + noise[0], "second": both.sum() + noise[1]}


def model_two_tables(data):
    with pm.Model() as model:
        p, q = pm.Beta("p", 2, 3), pm.Beta("q", 2, 2)
        yes, other = pm.Bernoulli.dist(p), pm.Bernoulli.dist(q)
        for name, t in (("table", yes), ("second", yes * other)):
            seen = pm.Data(f"{name}_data", data[name])
            dp.DiscreteGaussianMechanism(name, t, n=2000, scale=20, observed=seen)
    return model


def public_total(rng):
    """Two noisy cells and their public sum, of 400 people in three classes."""
    p = rng.dirichlet([2, 2, 2])
    counts = rng.multinomial(400, p)
    noise = dp.mechanisms.distributions.draw_discrete_gaussian(rng, 10.0, (2,))
    return {"p": p}, {"table": np.array([*(counts[:2] + noise), counts[:2].sum()])}


def model_public_total(data):
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.full(3, 2.0))
        kind = pm.Categorical.dist(p)
        t = pt.stack([pt.eq(kind, 0), pt.eq(kind, 1), pt.lt(kind, 2)]).astype("int64")
        seen = pm.Data("table_data", data["table"])
        dp.DiscreteGaussianMechanism("table", t, n=400, scale=[10, 10, 0], observed=seen)
    return model


def unknown_number(rng):
    """A noisy count and a noisy clamped sum, of a Poisson number of people."""
    mu, n = rng.normal(0, 1), rng.poisson(rng.gamma(4, 75))
    u = np.clip(rng.normal(mu, 1, size=n), -2, 2)
    return {"mu": mu, "n": n}, {"table": np.array([n, u.sum()]) + rng.laplace(0, [5, 10])}


def model_unknown_number(data):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        rate = pm.Gamma("rate", 4, 1 / 75)
        # A Poisson number, continuous: its density at real numbers, to a constant.
        n = pm.Flat("n", transform=pm.distributions.transforms.log, initval=300.0)
        pm.Potential("poisson", n * pt.log(rate) - rate - pt.gammaln(n + 1))
        u = clamp(pm.Normal.dist(mu, 1), -2, 2)
        seen = pm.Data("table_data", data["table"])
        dp.LaplaceMechanism("table", pt.stack([1.0, u]), n=n, scale=[5.0, 10.0], observed=seen)
    return model


COVERAGE = {
    "two tables of the same people": (two_tables, model_two_tables),
    "public total": (public_total, model_public_total),
    "n unknown": (unknown_number, model_unknown_number),
}


def coverage_rows(sets=100):
    for case, (simulate, build) in COVERAGE.items():
        compiled, hits, diverged = None, {}, 0
        for i in range(sets):
            truth, data = simulate(np.random.default_rng([77, i]))
            if compiled is None:
                compiled = nutpie.compile_pymc_model(build(data))
            now = compiled.with_data(**{f"{k}_data": v for k, v in data.items()})
            trace = nutpie.sample(now, draws=500, tune=400, chains=2, cores=1, seed=i, progress_bar=False)  # fmt: skip
            diverged += int(trace["sample_stats"]["diverging"].sum())
            for name, value in truth.items():
                low, high = np.quantile(trace["posterior"][name].values, [0.05, 0.95], axis=(0, 1))
                hits.setdefault(name, []).append(np.mean((low <= value) & (value <= high)))
        for name, inside in hits.items():
            yield [case, name, float(np.mean(inside)), diverged]


def main():
    parts = sys.argv[1:] or ["speed", "cost", "roads", "coverage"]
    if "speed" in parts:
        write_report(
            "released_speed",
            "A regression from nine released sums of 10,000 records",
            "Laplace noise, ε = 1; one made-up release. All in one run, one thread; CPU seconds with tuning, without "
            "compilation unless said; the smallest effective sample size of the three coefficients. The last column has what "
            "`check_releases` says. The machine was busy, so compare inside the table.",
            ["how", "CPU s", "ESS", "ESS per CPU s", "means", "sds", "note"],
            list(speed_rows()),
        )  # fmt: skip
    if "cost" in parts:
        write_report(
            "released_cost",
            "Cost against the number of records",
            "The regression of released_speed, 256 points. CPU "
            "seconds to build the model (where the points are put right at the mode), CPU time of one gradient, effective "
            "draws of the worst coefficient per CPU second (nutpie, low-rank mass matrix, 2 chains of 500 + 2,000, tuning "
            "included, compilation not), and what `check_releases` says.",
            ["n", "build, CPU s", "CPU µs per gradient", "ESS per CPU s", "check"],
            list(cost_rows()),
        )
    if "roads" in parts:
        write_report(
            "released_roads",
            "One posterior by three roads",
            "The paper's releases of 100 records. Posterior means of the three coefficients, less those of 12,000 to 60,000 "
            "draws of `PrivacyAwareGibbs`, in posterior standard deviations, and the Monte Carlo error of that difference; "
            "posterior standard deviations over those of `PrivacyAwareGibbs`. `normal` has `n=100`, `corrected` is that "
            "after `correct_releases`.",
            ["ε", "road", "difference", "its error", "sd ratio", "ESS per CPU s", "ESS per CPU s, PrivacyAwareGibbs", "note"],
            list(roads_rows()),
        )  # fmt: skip
    if "coverage" in parts:
        write_report(
            "released_coverage",
            "Coverage with several releases, public totals and an unknown number of people",
            "Parameters and data drawn from the prior, 100 data sets each; shares of 90 % intervals that hold the truth "
            "(standard error 0.03). nutpie, 2 chains of 400 + 500 iterations.",
            ["case", "parameter", "coverage", "divergences"],
            list(coverage_rows()),
        )


if __name__ == "__main__":
    main()
