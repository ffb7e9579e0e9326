"""Coverage of the model's own intervals and of sandwich ones, where the model is wrong in five ways, and where it is right.

python benchmarks/sandwich.py [data sets in a row]
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys

import numpy as np
import pymc as pm
import statsmodels.api as sm
from _quick import quicken
from _report import write_report

import pymc_dp as dp
from pymc_dp.compat import groups_of

SEED, N, DELTA, EPSILON, OF_SANDWICH = 2031, 40_000, 1e-6, 1.0, 0.3
LARGE = 2_000_000
VISITS = 5


def overdispersed(rng, n):
    x, y = rng.uniform(-1, 1, n), rng.gamma(2, 1 / 2, n)
    return x, rng.poisson(np.exp(1.5 + 0.5 * x) * y)


def poisson(rng, n):
    x = rng.uniform(-1, 1, n)
    return x, rng.poisson(np.exp(1.5 + 0.5 * x))


def heteroscedastic(rng, n):
    x = rng.normal(size=n)
    return x, 0.5 * x + np.abs(x) * rng.uniform(-1, 1, n)


def clustered(rng, n):
    """Everybody has five visits, and a level of their own."""
    x = np.repeat(rng.uniform(-1, 1, n // VISITS), VISITS)
    level = np.repeat(2 * rng.normal(size=n // VISITS), VISITS)
    return x, (rng.random(n) < 1 / (1 + np.exp(-(level + x)))).astype(float)


def top_coded(rng, n):
    """Half of the outcomes are not told but for being above 0."""
    x = rng.normal(size=n)
    return x, np.minimum(2 * x + 0.5 * rng.normal(size=n), 0.0)


def omitted_curve(rng, n):
    x = rng.normal(size=n)
    return x, 0.5 * x + 0.3 * x**2 + 0.5 * rng.normal(size=n)


DESIGNS = {
    "right: Poisson": (poisson, "poisson", 1),
    "overdispersed Poisson": (overdispersed, "poisson", 1),
    "heteroscedastic linear": (heteroscedastic, "normal", 1),
    f"clustered logistic, {VISITS} visits a person": (clustered, "logistic", VISITS),
    "top-coded outcome, normal": (top_coded, "normal", 1),
    "omitted curve, linear": (omitted_curve, "normal", 1),
}


def model_of(n, kind, rows):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        x, y = pm.Data("X", np.linspace(0, 1, n)), pm.Data("Y", np.ones(n))
        mu = b[0] + b[1] * x
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=mu, observed=y)
        elif kind == "poisson":
            pm.Poisson("y", pm.math.exp(mu), observed=y)
        else:
            pm.Normal("y", mu, pm.HalfNormal("sigma", 2), observed=y)
    return dp.compile(model, **({"unit": np.arange(n) // rows} if rows > 1 else {}))


def pseudo_true(draw, kind):
    """What the model comes nearest to: maximum likelihood of very many records."""
    x, y = draw(np.random.default_rng(SEED - 1), LARGE)
    X = sm.add_constant(x)
    if kind == "normal":
        fit = sm.OLS(y, X).fit()
        return {"b": fit.params, "sigma": np.sqrt(np.mean(fit.resid**2))}
    family = sm.families.Poisson() if kind == "poisson" else sm.families.Binomial()
    return {"b": sm.GLM(y, X, family=family).fit().params}


def inside(draws, truth):
    """Which 90 % intervals hold the truth."""
    found = []
    for name, value in truth.items():
        values = draws[name].values.reshape(-1, np.size(value))
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        found += list((low < value) & (value < high))
    return found


def cell(draw, kind, rows, repetitions, seed, n=N, epsilon=EPSILON, of_sandwich=OF_SANDWICH):
    rng, truth = np.random.default_rng(seed), pseudo_true(draw, kind)
    model = model_of(n, kind, rows)
    found = {"own": [], "sandwich": [], "misfit": [], "noise": [], "told": []}
    for _ in range(repetitions):
        data = dict(zip("XY", draw(rng, n), strict=True))
        for leaf in model.roles.record_data:
            leaf.values[...] = data[leaf.name]
        idata = dp.sample(
            model, draws=500, chains=2, epsilon=epsilon, delta=DELTA, step=dp.DPSurrogate, family="normal",
            cores=1, progressbar=False,
        )  # fmt: skip
        if not idata.attrs["privacy_usable"]:
            continue
        wide = dp.sandwich(idata, model, epsilon=of_sandwich, delta=DELTA)
        found["own"].append(inside(groups_of(idata)["posterior"], truth))
        found["sandwich"].append(inside(wide.draws, truth))
        found["misfit"].append(wide.misfit)
        found["noise"].append(wide.table["noise"])
        found["told"].append("too narrow; they" in wide.finding)
    return {name: np.array(values, float) for name, values in found.items()}


def main():
    quicken(SEED)
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    rows = []
    for k, (name, design) in enumerate(DESIGNS.items()):
        f = cell(*design, repetitions, SEED + k)
        for j, parameter in enumerate(("intercept", "slope", "sigma")[: f["own"].shape[1]]):
            means = [float(f[x][:, j].mean()) for x in ("own", "sandwich")]
            middle = [float(np.median(f[x][:, j])) for x in ("misfit", "noise")]
            rows.append([name, parameter, len(f["own"]), *means, *middle, float(f["told"].mean())])
            print(rows[-1], flush=True)
        report(repetitions, rows)


def report(repetitions, rows):
    """Write the page, after every design."""
    write_report(
        "sandwich",
        "Coverage where the model is wrong",
        f"90 % intervals of `DPSurrogate` at ε = {EPSILON:g} and those of `dp.sandwich` at ε = {OF_SANDWICH:g} beside it, of {N:,} records, "
        f"δ = {DELTA:g} ({repetitions} data sets a design, of which *used* had usable runs; draws of the law's normal approximation in place of "
        "NUTS). *Truth* is the pseudo-true value: what maximum likelihood gives of two million records. *Misfit* is the median of the sandwich's "
        "width over the model's, with the noise that was said to be in it, and *told* how often the statement calls intervals too narrow.",
        ["design", "parameter", "used", "coverage: the model's own", "coverage: sandwich", "misfit", "noise in it", "told"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
