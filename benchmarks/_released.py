"""The two experiments of Ju, Gong, Awan and Rao (2022), and how to time a step on them."""

import json
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.step_methods.compound import BlockedStep
from scipy import special

from pymc_dp.compat import CHAIN_START
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.statistics import clamp, second_moments

SETTINGS = json.loads((Path(__file__).parent / "ju2022.json").read_text())
REGRESSION, LOG_LINEAR = SETTINGS["regression"], SETTINGS["log_linear"]


def released(experiment, epsilon):
    return np.array(experiment["released"][f"{epsilon:g}"])


def regression(epsilon, s, n=100):
    """Normal linear regression on two normal predictors, all clamped to [-10, 10]."""
    with pm.Model() as model:
        observed = pm.Data("released", s)
        beta = pm.Normal("beta", 0, REGRESSION["prior_sd"], shape=3)
        x = pm.MvNormal("x", np.array(REGRESSION["mean_x"]), np.eye(2), shape=(n, 2))
        y = pm.Normal("y", beta[0] + x @ beta[1:], REGRESSION["sigma2"] ** 0.5, shape=n)
        u = clamp(pt.stack([x[:, 0], x[:, 1], y], axis=1), -10, 10, rescale=True)
        LaplaceMechanism("s", second_moments(u), epsilon=epsilon,
                         sensitivity=REGRESSION["sensitivity"], observed=observed)  # fmt: skip
    return model, [x, y]


def log_linear(epsilon, s):
    """Naive Bayes classes of five three-level features; all class by level counts released."""
    n, classes, features, levels = (
        LOG_LINEAR[k] for k in ("records", "classes", "features", "levels")
    )
    with pm.Model() as model:
        observed = pm.Data("released", s)
        p = pm.Dirichlet("p", np.full(classes, 2.0))
        q = pm.Dirichlet("q", np.full((features, classes, levels), 2.0))
        y = pm.Categorical("y", p, shape=n)
        x = pm.Categorical("x", q.transpose(1, 0, 2)[y], shape=(n, features))
        cell = levels * y[:, None] + x
        count = pt.eq(cell[:, :, None], np.arange(classes * levels)).astype("float64")
        count = count.reshape((n, features, classes, levels))
        LaplaceMechanism("s", count, epsilon=epsilon, sensitivity=LOG_LINEAR["sensitivity"],
                         observed=observed)  # fmt: skip
    return model, [y, x]


class ConjugateRegression(BlockedStep):
    """β | x, y of :func:`regression`, drawn exactly: the update of the paper's own program."""

    stats_dtypes_shapes = {}  # noqa: RUF012 - as in PyMC

    def __init__(self, vars, *, model=None, blocked=True):
        self.vars = [pm.modelcontext(model).rvs_to_values[v] for v in vars]
        self.rng = np.random.default_rng(0)

    def step(self, point):
        X = np.column_stack([np.ones(len(point["y"])), point["x"]])
        precision = X.T @ X / REGRESSION["sigma2"] + np.eye(3) / REGRESSION["prior_sd"] ** 2
        factor = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, X.T @ point["y"] / REGRESSION["sigma2"])
        beta = mean + np.linalg.solve(factor.T, self.rng.standard_normal(3))
        return {**point, "beta": beta}, [{}]


def run(model, step, names, draws, tune=1000, seed=1):
    """Draws of some variables, and the CPU seconds per iteration; compilation is not timed."""
    quiet = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with model:
        pm.sample(5, tune=5, step=step, random_seed=seed, var_names=names, **quiet)
        start = time.process_time()
        idata = pm.sample(draws, tune=tune, step=step, random_seed=seed, var_names=names, **quiet)
        seconds = time.process_time() - start
    return idata, seconds / (draws + tune)


def effective(idata, names):
    """Effective draws for the mean of every entry, as one flat array."""
    values = [idata["posterior"][name].values for name in names]
    flat = [v.reshape(*v.shape[:2], -1) for v in values]
    return np.array(
        [
            float(np.asarray(az.ess(v[..., j], method="mean")))
            for v in flat
            for j in range(v.shape[2])
        ]
    )


def drive(model, step, name, draws, tune, seed):
    """Draws of one untransformed or simplex variable, without the overhead of ``pm.sample``."""
    lengths = (tune, draws) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(seed), *lengths)
    step.reset_tuning()
    variable = model[name]
    value = model.rvs_to_values[variable].name
    point, kept = model.initial_point(), []
    for i in range(tune + draws):
        if i == tune:
            step.stop_tuning()
        point, _ = step.step(point)
        if i >= tune:
            kept.append(point[value])
    kept = np.array(kept)
    if model.rvs_to_transforms[variable] is None:
        return kept
    logits = np.column_stack([kept, -kept.sum(axis=1)])
    return special.softmax(logits, axis=1)
