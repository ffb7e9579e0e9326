"""How far to centre clipped scores: errors of one release at the exact mode, on simulated and on real data.

python benchmarks/centring.py

Whitening, bound and information are the exact ones, so that what differs is the centring alone. No privacy.
"""

import logging
import os
import warnings
from unittest import mock

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
from _ordinary import MODELS
from _regressions import REAL, SIMULATED, Exact, model_of
from _report import write_report

import pymc_dp as dp
from pymc_dp.linalg import as_matrix, norms, power
from pymc_dp.records import queries
from pymc_dp.records.queries import Gradient, Information, Score

EPSILONS, SEED, BEYOND = (0.3, 1.0, 3.0), 991, 6.0
ORDINARY = [
    "robust_student_t", "poisson_with_mu", "negative_binomial", "linear_with_mu", "gamma_regression", "tobit",
    "beta_regression", "ordered_logistic", "censored_weibull", "logistic_with_coords", "normal_mixture",
    "zero_inflated_poisson", "bambi_gaussian", "log_normal_with_varying_scale", "probit",
]  # fmt: skip
RULES = {
    "none": lambda clipped, exact: 0.0,
    "few values only": lambda clipped, exact: float(exact),
    "as it is": queries._centred,
    "all": lambda clipped, exact: 1.0,
}
COLUMNS = ["centred", *(f"ε = {e:g}: {what}" for e in EPSILONS for what in ("mean", "worst"))]


def compiled_model(name):
    if name in SIMULATED:
        make, likelihood, prior_sd = SIMULATED[name]
        truth, X, y = make(np.random.default_rng([SEED, sorted(SIMULATED).index(name)]), 20_000)
        return dp.compile(model_of(likelihood, prior_sd, X, y)), truth
    if name in REAL:
        load, likelihood, prior_sd = REAL[name]
        built = model_of(likelihood, prior_sd, *load())
    else:
        built = MODELS[name][0]()
    model, keywords = built if isinstance(built, tuple) else (built, {})
    return dp.compile(model, **keywords), None


def errors(name):
    """Error over the limit, of every rule at every ε, shape (rules, ε)."""
    compiled, truth = compiled_model(name)
    step = dp.DPSurrogate(
        family="normal",
        chains=1,
        draws=1,
        epsilon=1,
        model=compiled,
        noise_source=dp.InsecureSeededNoise(1),
    )
    records = step._curator._records
    exact = Exact(step, compiled.parameters.start if truth is None else truth)
    V, d, n = power(exact.P, -0.5), compiled.d, records.n_units
    z = np.concatenate(list(Gradient(exact.mode, V).terms(records)))
    sizes = np.sort(norms(z))
    found = []
    for epsilon in EPSILONS:
        sd = 2 * dp.DPSurrogate(
            family="normal", chains=1, draws=1, epsilon=epsilon, model=compiled, noise_source=dp.InsecureSeededNoise(1)
        ).run.multiplier_of_one()  # fmt: skip
        bounds = np.geomspace(sizes[n // 2] / 2, sizes[-1], 200)
        limit = min(np.hypot(sd * b, np.maximum(sizes - b, 0).sum() / d**0.5) for b in bounds)
        b = sizes[-1 - int(min(BEYOND * d**0.5 * sd / 2, n / 3))]
        both = sum(t.sum(axis=0) for t in Information(exact.mode, V, b).terms(records))
        information, kept = (np.trace(as_matrix(half, d)) for half in np.split(both, 2))
        column = []
        for rule in RULES.values():
            with mock.patch.object(queries, "_centred", rule):
                total = sum(t.sum(axis=0) for t in Score(exact.mode, V, b).terms(records))
            bias = np.linalg.norm(total - z.sum(axis=0)) / d**0.5
            column.append(np.hypot(sd * b, bias) * information / kept / limit)
        found.append(column)
    print(name, np.round(found, 2).tolist(), flush=True)
    return np.array(found).T


def main():
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    names = [*SIMULATED, *REAL, *ORDINARY]
    found = np.array([errors(name) for name in names])
    rows = [
        [rule, *(float(x) for e in range(len(EPSILONS)) for x in (np.exp(np.log(found[:, r, e]).mean()), found[:, r, e].max()))]
        for r, rule in enumerate(RULES)
    ]  # fmt: skip
    write_report(
        "centring",
        "How far to centre clipped scores",
        f"{len(names)} data sets: {', '.join(names)}. Error of one release of the whole budget at the exact mode, in which "
        "units are clipped at the default's bound and centred by what the model expects (not at all; where all outcomes are taken; "
        "there, and by draws of which another of the same unit is clipped, too; always), over that of one release of plain clipped scores with the best bound in "
        "hindsight: geometric mean, and worst data set. Noise, what clipping moves, and what it loses of the information are "
        "counted.\n\n`python benchmarks/centring.py`",
        COLUMNS, rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
