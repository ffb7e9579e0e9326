"""Tables as offices publish them: coverage beside what ignores it, speed, and what is said of wrong models.

python benchmarks/released_tables.py [coverage] [speed] [checks] [cold]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import json
import subprocess
import sys
import tempfile
import time

import arviz as az
import numpy as np
import nutpie
import pymc as pm
import pytensor.tensor as pt
from _report import write_report
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.mechanisms.distributions import draw_discrete_gaussian

REPLICATIONS = 100
AREAS = 60
SHARES = np.linspace(-7, 3, 101)


def noise(rng, scale, shape):
    return draw_discrete_gaussian(rng, scale, shape)


def two_epsilons(rng, k):
    """One table of counts at two budgets."""
    a, b = k + noise(rng, 3.0, k.shape), k + noise(rng, 4.0, k.shape)

    def right(count, again):
        dp.DiscreteGaussianMechanism("a", total=count, scale=3.0, observed=a)
        dp.DiscreteGaussianMechanism("b", total=count, scale=4.0, observed=b)

    def wrong(count, again):  # two tables of different people
        dp.DiscreteGaussianMechanism("a", total=count, scale=3.0, observed=a)
        dp.DiscreteGaussianMechanism("b", total=again(), scale=4.0, observed=b)

    return right, wrong


def margins(rng, k):
    """Cells, and the sums of six at a time."""
    k = k.reshape(-1, 6)
    cells, sums = k + noise(rng, 3.0, k.shape), k.sum(axis=1) + noise(rng, 2.0, (len(k),))

    def right(count, again):
        dp.DiscreteGaussianMechanism("cells", total=count, scale=3.0, observed=cells)
        dp.DiscreteGaussianMechanism("sums", total=count.sum(axis=-1), scale=2.0, observed=sums)

    def wrong(count, again):  # sums of other people, normal
        dp.DiscreteGaussianMechanism("cells", total=count, scale=3.0, observed=cells)
        size, p = count.owner.op.dist_params(count.owner)
        mean, variance = (size * p).sum(axis=-1), (size * p * (1 - p)).sum(axis=-1)
        pm.Normal("sums", mean, pm.math.sqrt(variance + 4.0), observed=sums)

    return right, wrong


def suppressed(rng, k):
    """What would be 4 or less is not published."""
    s = k + noise(rng, 2.0, k.shape)
    hidden = s <= 4

    def right(count, again):
        dp.DiscreteGaussianMechanism("s", total=count, scale=2.0, suppressed=(-np.inf, 4),
                                     observed=np.ma.array(s, mask=hidden))  # fmt: skip

    def wrong(count, again):  # as if they were missing whatever they are
        dp.DiscreteGaussianMechanism("s", total=count, scale=2.0, suppressed="missing",
                                     observed=np.ma.array(s, mask=hidden))  # fmt: skip

    return right, wrong


def rounded(rng, k):
    """Rounded to 10, and nothing below 0."""
    s = np.maximum(np.floor((k + noise(rng, 2.0, k.shape)) / 10 + 0.5) * 10, 0).astype(int)

    def right(count, again):
        dp.DiscreteGaussianMechanism("s", total=count, scale=2.0, rounded=10, lower=0, observed=s)

    def wrong(count, again):
        dp.DiscreteGaussianMechanism("s", total=count, scale=2.0, observed=s)

    return right, wrong


CASES = {
    "one table at two budgets": (two_epsilons, "two tables", 0.5, (20, 60)),
    "margins beside cells": (margins, "other people's margins", 0.3, (20, 60)),
    "suppressed below 5": (suppressed, "missing", 0.1, (20, 120)),
    "rounded to 10, cut off at 0": (rounded, "taken as they are", 0.1, (20, 120)),
}


def one_share(how, population, shape):
    """One share of all areas; the density of the logit on a grid, by the model's own log-density."""
    with pm.Model() as model:
        x = pm.Normal("x", -1.5, 1.5)
        law = lambda: pm.Binomial.dist(population.reshape(shape), pm.math.sigmoid(x), shape=shape)  # noqa: E731
        how(law(), law)
    f = model.compile_logp(mode="FAST_COMPILE")  # some hundred evaluations do not pay for more
    log_density = np.array([float(f({"x": np.asarray(v)})) for v in SHARES])
    # Finer where the mass is.
    middle = SHARES[log_density.argmax()]
    fine = np.linspace(middle - 1.0, middle + 1.0, 161)
    log_density = np.array([float(f({"x": np.asarray(v)})) for v in fine])
    weight = np.exp(log_density - log_density.max())
    return fine, weight / weight.sum()


def coverage():
    rows = []
    for name, (publish, ignoring, rate, (low, high)) in CASES.items():
        for which, label in ((0, "as it was"), (1, ignoring)):
            inside, off = [], []
            for i in range(REPLICATIONS):
                rng = np.random.default_rng([i, 3])
                truth = rng.normal(special.logit(rate), 0.2)
                population = rng.integers(low, high, size=AREAS)
                k = rng.binomial(population, special.expit(truth))
                shape = (AREAS // 6, 6) if publish is margins else (AREAS,)
                at, weight = one_share(publish(rng, k)[which], population, shape)
                below = np.interp(truth, at, np.cumsum(weight) - weight / 2)
                inside.append(0.05 <= below <= 0.95)
                mean = weight @ at
                off.append((mean - truth) / np.sqrt(weight @ (at - mean) ** 2))
            rows.append(
                [name, label, float(np.mean(inside)), float(np.mean(off)), float(np.std(off))]
            )
            print(rows[-1], flush=True)
    write_report(
        "released_tables_coverage",
        "Coverage of tables as offices publish them",
        f"{AREAS} areas with one share, discrete Gaussian noise; {REPLICATIONS} data sets each. Share of 90 % intervals of the "
        "logit that hold the truth (standard error 0.03), and mean and standard deviation of (posterior mean - truth) / "
        "posterior sd, of the model's own density on a grid: no sampler comes between. Every table beside the analysis that "
        "ignores how it was published.",
        ["published", "analysed as", "coverage of 90 %", "mean z", "sd of z"],
        rows,
    )


def sampled(model, names):
    """Effective draws of the worst parameter per CPU second, tuning included, compilation not; and CPU us a gradient."""
    compiled = nutpie.compile_pymc_model(model)
    start = time.process_time()
    trace = nutpie.sample(
        compiled, draws=600, tune=400, chains=2, cores=1, seed=1, progress_bar=False
    )
    seconds = time.process_time() - start
    steps = sum(float(g.n_steps.sum()) for g in (trace.sample_stats, trace.warmup_sample_stats))
    worst = min(float(np.min(az.ess(trace, var_names=[x], method="mean")[x])) for x in names)
    return worst / seconds, 1e6 * seconds / steps


def gradient_of(model):
    """CPU us of one gradient."""
    f = model.logp_dlogp_function(ravel_inputs=True)
    f.set_extra_values({})
    x = (
        np.zeros(f.size)
        if hasattr(f, "size")
        else np.zeros(sum(v.size for v in model.initial_point().values()))
    )
    f(x)
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        for _ in range(200):
            f(x)
        best = min(best, (time.process_time() - start) / 200)
    return 1e6 * best


def areas_of_cells(rng, cells, law):
    """300 areas, a table of `cells` in each; rates of cells differ between areas."""
    population = (
        rng.integers(60, 600, size=(300, 1)) if cells > 1 else rng.integers(20, 200, size=(300, 1))
    )
    base = np.array([0.3, 0.25, 0.2, 0.12, 0.08, 0.05])[:cells] if cells > 1 else np.array([0.08])
    share = special.expit(special.logit(base) + 0.4 * rng.normal(size=(300, cells)))
    k = rng.binomial(population, share)
    s = k + noise(rng, 4.0, k.shape)
    with pm.Model() as model:
        mu = pm.Normal("mu", -2, 1.5, shape=cells)
        tau = pm.HalfNormal("tau", 1)
        if cells > 1:  # so much is known of each that the natural parameters mix better
            p = pm.math.sigmoid(pm.Normal("x", mu, tau, shape=(300, cells)))
        else:
            p = pm.math.sigmoid(mu + tau * pm.Normal("u", 0, 1, shape=(300, cells)))
        if law == "exact":
            total = pm.Binomial.dist(population, p)
            dp.DiscreteGaussianMechanism("s", total=total, scale=4, observed=s)
        else:
            z = pm.Normal("z", 0, 1, shape=(300, cells))
            count = population * p + pm.math.sqrt(population * p * (1 - p)) * z
            pm.Normal("s", count, 4, observed=s)
    return model


def one_table(rng, cells, people, scale, road):
    """A table with a public total, its cells summed out or taken as normal."""
    p0 = rng.dirichlet(np.full(cells, 3.0))
    s = rng.multinomial(people, p0) + noise(rng, scale, (cells,))
    with pm.Model() as model:
        p = pm.math.softmax(pm.Normal("x", 0, 1, shape=cells))
        if road == "total":
            dp.DiscreteGaussianMechanism(
                "s", total=pm.Multinomial.dist(people, p), scale=scale, observed=s
            )
        else:
            who = pt.eq(pm.Categorical.dist(p), np.arange(cells)).astype("int64")
            dp.DiscreteGaussianMechanism("s", who, n=people, scale=scale, observed=s)
    return model


def speed():
    rows = []
    for cells in (1, 6):
        for law in ("exact", "hand-written normal"):
            found = sampled(areas_of_cells(np.random.default_rng(1), cells, law), ["mu", "tau"])
            rows.append([f"300 areas of {cells}", law, *found])
            print(rows[-1], flush=True)
    for cells, people, scale in [
        (10, 1000, 20.0),
        (16, 3000, 12.0),
        (16, 3000, 5.0),
        (50, 5000, 10.0),
    ]:
        us = {road: gradient_of(one_table(np.random.default_rng(1), cells, people, scale, road))
              for road in ("total", "n")}  # fmt: skip
        for road in us:
            rows.append(
                [
                    f"{cells} cells of {people:,}, scale {scale:g}",
                    f"`{road}=`, {us[road] / us['n']:.2f}",
                    "",
                    us[road],
                ]
            )
        print(rows[-2:], flush=True)
    write_report(
        "released_tables_speed",
        "Speed of tables of counts",
        "Above, counts of small areas (discrete Gaussian noise of scale 4): summed out, or the model that one writes by hand, "
        "latent normal counts and normal noise. nutpie, 2 chains of 400 + 600, effective draws of the worst of the "
        "hyperparameters per CPU second, tuning included, compilation not. Below, one multinomial table with a public total: "
        "summed out by `total=`, or taken as normal by `n=`, and the time relative to `n=`. CPU microseconds of one gradient.",
        ["table", "model", "ESS per CPU s", "CPU us per gradient"],
        rows,
    )


def a_sum(rng):
    """A sum of clipped records, with noise."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        dp.GaussianMechanism("s", pm.Normal.dist(mu, 1).clip(-3, 3), n=100, scale=2, observed=30.0)
    return model


def without_noise(rng):
    """What PyMC needs for counts that are known."""
    population = rng.integers(60, 600, size=(300, 1))
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", -2, 1.5, shape=6), pm.HalfNormal("tau", 1)
        p = pm.math.sigmoid(pm.Normal("x", mu, tau, shape=(300, 6)))
        pm.Binomial("s", population, p, observed=rng.binomial(population, 0.1, size=(300, 6)))
    return model


FIRST = {
    "300 areas of 6, counts known: PyMC alone": without_noise,
    "300 areas of 6": lambda rng: areas_of_cells(rng, 6, "exact"),
    "16 cells with a public total": lambda rng: one_table(rng, 16, 3000, 5.0, "total"),
    "one sum of 100 records": a_sum,
}


def first(name):
    """Seconds and CPU seconds to build a model and have a log-density; with the gradient; and the log-density."""
    times = [time.perf_counter(), time.process_time()]
    model = FIRST[name](np.random.default_rng(1))
    value = model.compile_logp()(model.initial_point())
    times += [time.perf_counter(), time.process_time()]
    f = model.logp_dlogp_function(ravel_inputs=True)
    f.set_extra_values({})
    f(pm.blocking.DictToArrayBijection.map(model.initial_point()))
    times += [time.perf_counter(), time.process_time()]
    print(json.dumps([times[i] - times[i % 2] for i in range(2, 6)] + [float(value)]))


def cold():
    rows = []
    for name in FIRST:
        with tempfile.TemporaryDirectory() as caches:
            environment = os.environ | {
                "NUMBA_CACHE_DIR": f"{caches}/numba",
                "PYTENSOR_FLAGS": f"base_compiledir={caches}",
            }
            command = [sys.executable, __file__, "first", name]
            for when in ("cold", "again"):
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                )
                found = json.loads(done.stdout.splitlines()[-1])
                rows.append([name, when, *found[:4]])
                print(rows[-1], flush=True)
    write_report(
        "released_tables_cold",
        "Time to a first log-density",
        "From a model's first line, imports excluded, to its log-density, and then to its gradient: in a fresh process with "
        "empty caches of compiled code, and in another one with what the first left there. The machine was busy with other "
        "work, so CPU seconds say more than seconds; compilers of C that PyTensor starts on PyMC 5 are not in them.",
        ["model", "caches", "s", "CPU s", "s, gradient too", "CPU s, gradient too"],
        rows,
    )


P = np.linspace(5e-4, 1 - 5e-4, 4000)


def checks():
    """What `check_releases` says of normal sums of Bernoulli records, beside the exact posterior."""
    found = {"right": [], "wrong": []}
    rng = np.random.default_rng(8)  # not a seed on which the check was chosen
    while len(found["right"]) < 200 or len(found["wrong"]) < 50:
        few = len(found["right"]) >= 200  # the rest of the wrong ones are looked for where they are
        n = int(np.exp(rng.uniform(np.log(8), np.log(60 if few else 3000))))
        scale = float(np.exp(rng.uniform(np.log(0.3), np.log(1 if few else 20))))
        k = rng.binomial(n, min(rng.beta(0.6, 3) if few else rng.beta(1, 3), 0.99))
        s = k + scale * rng.normal()
        counts = np.arange(n + 1)
        exact = np.exp(stats.norm.logpdf(s, counts, scale)) @ stats.binom.pmf(counts[:, None], n, P)
        taken = stats.norm.pdf(s, n * P, np.sqrt(n * P * (1 - P) + scale**2))
        exact, taken = exact / exact.sum(), taken / taken.sum()
        mean, sd = taken @ P, np.sqrt(taken @ P**2 - (taken @ P) ** 2)
        shift = abs(exact @ P - mean) / sd
        inside = (np.cumsum(taken) > 0.05) & (np.cumsum(taken) < 0.95)
        mass = abs(exact[inside].sum() - taken[inside].sum())
        kind = ("right" if shift < 0.03 and mass < 0.012
                else "wrong" if shift > 0.1 or mass > 0.04 else None)  # fmt: skip
        if kind is None or len(found[kind]) >= (200 if kind == "right" else 50):
            continue
        with pm.Model() as model:
            p = pm.Uniform("p", 0, 1)
            dp.GaussianMechanism("s", pm.Bernoulli.dist(p), n=n, scale=scale, observed=s)
        draws = rng.choice(P, 4000, p=taken)
        check = dp.check_releases(az.from_dict({"posterior": {"p": draws[None]}}), model)
        found[kind].append(check.fine)
        print(kind, n, scale, shift, mass, check.fine, flush=True)
    write_report(
        "released_tables_checks",
        "What `check_releases` says of right and of wrong models",
        "Sums of n Bernoulli records with normal noise, taken as normal; n and noise drawn at random, the exact posterior by "
        "enumeration. Right: it moves the mean by less than 0.03 posterior standard deviations and the mass of the 90 % "
        "interval by less than 0.012. Wrong: by more than 0.1, or 0.04. None of these models was seen while the check was "
        "chosen.",
        ["models", "number", "fine, says the check"],
        [[kind, len(said), int(np.sum(said))] for kind, said in found.items()],
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["first"]:
        first(sys.argv[2])
    else:
        parts = {"coverage": coverage, "speed": speed, "checks": checks, "cold": cold}
        for part in sys.argv[1:] or parts:
            parts[part]()
