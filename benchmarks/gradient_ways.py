"""What the rule for the way to units' gradients costs: its choice beside the other way.

Run: ``python benchmarks/gradient_ways.py``.
"""

import time

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _report import write_report

import pymc_dp as dp
from pymc_dp.likelihood.gradients import UnitGradients

N = 20_000
RNG = np.random.default_rng(7)


def rows(*shape):
    return RNG.normal(size=(N, *shape))


def logistic(d):
    beta = pm.Normal("beta", 0, 1, shape=d)
    pm.Bernoulli("y", logit_p=pm.Data("X", rows(d)) @ beta, observed=RNG.integers(2, size=N))


def linear(d):
    beta, scale = pm.Normal("beta", 0, 1, shape=d), pm.HalfNormal("scale", 1)
    pm.Normal("y", pm.Data("X", rows(d)) @ beta, sigma=scale, observed=pm.Data("Y", rows()))


def student_t(d):
    beta, scale = pm.Normal("beta", 0, 1, shape=d), pm.HalfNormal("scale", 1)
    pm.StudentT(
        "y", nu=4, mu=pm.Data("X", rows(d)) @ beta, sigma=scale, observed=pm.Data("Y", rows())
    )


def negative_binomial(d):
    beta, alpha = pm.Normal("beta", 0, 1, shape=d), pm.HalfNormal("alpha", 1)
    rate = pm.math.exp(pm.Data("X", rows(d)) @ beta)
    pm.NegativeBinomial("y", mu=rate, alpha=alpha, observed=pm.Data("Y", RNG.poisson(2, size=N)))


def regions(k):
    effect, slopes = pm.Normal("effect", 0, 1, shape=k), pm.Normal("slopes", 0, 1, shape=8)
    where = pm.Data("where", RNG.integers(k, size=N))
    log_rate = effect[where] + pm.Data("X", rows(8)) @ slopes
    pm.Poisson("y", pm.math.exp(log_rate), observed=pm.Data("Y", RNG.poisson(1, size=N)))


def banana(d):
    theta = pm.Normal("theta", 0, 10, shape=d)
    mean = pt.set_subtensor(theta[1], theta[1] + 20 * theta[0] ** 2)
    pm.Normal("y", mean, 1, observed=pm.Data("Y", rows(d)))


def multivariate(d):
    mean = pm.Normal("mean", 0, 1, shape=d)
    pm.MvNormal("y", mean, cov=pm.Data("cov", np.eye(d) + 0.5), observed=pm.Data("Y", rows(d)))


def covariance(d):
    mean = pm.Normal("mean", 0, 1, shape=d)
    chol, *_ = pm.LKJCholeskyCov(
        "chol", n=d, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=d), compute_corr=True, store_in_trace=False
    )  # fmt: skip
    pm.MvNormal("y", mean, chol=chol, observed=pm.Data("Y", rows(d)))


def mixture(d):
    weights, means = pm.Dirichlet("weights", np.ones(d)), pm.Normal("means", 0, 3, shape=d)
    pm.NormalMixture("y", weights, means, 1.0, observed=pm.Data("Y", rows()))


def categorical(k):
    slopes = pm.Normal("slopes", 0, 1, shape=(3, k))
    pm.Categorical(
        "y", logit_p=pm.Data("X", rows(3)) @ slopes, observed=pm.Data("Y", RNG.integers(k, size=N))
    )


def ordered(k):
    slopes = pm.Normal("slopes", 0, 1, shape=3)
    cuts = pm.Normal(
        "cuts", 0, 2, shape=k - 1, transform=pm.distributions.transforms.ordered,
        initval=np.linspace(-1, 1, k - 1),
    )  # fmt: skip
    eta, levels = pm.Data("X", rows(3)) @ slopes, pm.Data("Y", RNG.integers(k, size=N))
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, compute_p=False, observed=levels)


CASES = [
    (logistic, 2), (logistic, 10), (logistic, 20), (logistic, 60), (linear, 8), (student_t, 4),
    (negative_binomial, 5), (regions, 6), (regions, 20), (regions, 60), (regions, 120), (banana, 2), (banana, 10), (banana, 30),
    (multivariate, 2), (multivariate, 10), (covariance, 3), (mixture, 2), (mixture, 5),
    (categorical, 4), (ordered, 4),
]  # fmt: skip


def seconds(gradients, theta) -> float:
    """Of one pass over all units; the best of some, as what else the machine does only adds."""
    best = np.inf
    for _ in range(4):
        began = time.perf_counter()
        for _ in gradients(theta):
            pass
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    table = []
    for build, size in CASES:
        with pm.Model() as model:
            build(size)
        compiled = dp.compile(model, public=[v for v in model.named_vars if v == "cov"])
        theta = compiled.parameters.start + 0.1
        chosen = compiled.gradients.method
        times = {}
        for way in ("forward", "reverse"):
            gradients = UnitGradients(compiled._graph, compiled.likelihood, method=way)
            times[way] = 1e3 * seconds(gradients, theta)
        ratio = times[chosen] / min(times.values())
        table.append([f"{build.__name__}, {size}", compiled.d, times["forward"], times["reverse"], chosen, ratio])  # fmt: skip
        print(*table[-1], flush=True)
    worst = max(row[-1] for row in table)
    missed = max(max(row[2:4]) / min(row[2:4]) for row in table)
    write_report(
        "gradient_ways",
        "Two ways to the gradients of every unit, and the rule that chooses",
        f"Milliseconds of one pass over {N:,} records. The rule looks at the model's graph, never at the clock "
        f"(`ways_to_gradients` in `likelihood/gradients.py`). Its choice took at most **{worst:.1f}** times as long as the "
        f"better way; the worse way takes up to {missed:.0f} times as long.",
        ["model, size", "parameters", "forward, ms", "reverse, ms", "chosen", "times the better way"],
        table,
    )  # fmt: skip


if __name__ == "__main__":
    main()
