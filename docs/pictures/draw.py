"""The pictures of the page on plots.

Run: ``python docs/pictures/draw.py``. Takes about a minute; data and noise of the trade-off are seeded,
the noise of the other pictures is not, so they come out slightly different every time.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pymc as pm

import pymc_dp as dp

HERE = Path(__file__).parent
QUIET = {"cores": 1, "progressbar": False, "compute_convergence_checks": False}


def trial(n: int) -> pm.Model:
    """The trial of the quickstart."""
    rng = np.random.default_rng(0)
    treated = rng.choice([-1.0, 1.0], size=n)
    recovered = (rng.random(n) < 1 / (1 + np.exp(-0.4 - 0.3 * treated))).astype(int)
    with pm.Model(coords={"term": ["intercept", "treated"]}) as model:
        beta = pm.Normal("beta", 0, 1, dims="term")
        X = pm.Data("X", np.column_stack([np.ones(n), treated]), dims=("patient", "term"))
        pm.Bernoulli("recovered", logit_p=X @ beta, observed=recovered, dims="patient")
    return model


def clinics(n: int) -> pm.Model:
    """Visits to twelve clinics, more spread out than the model says."""
    rng = np.random.default_rng(1)
    x, clinic = rng.normal(size=n), rng.integers(12, size=n)
    mean = np.exp(0.3 + 0.5 * x + rng.normal(0, 0.6, size=12)[clinic])
    visits = rng.poisson(mean * rng.gamma(2, 0.5, size=n))
    with pm.Model(coords={"clinic": list("ABCDEFGHIJKL")}) as model:
        slope = pm.Normal("slope", 0, 10)
        level = pm.Normal("level", 0, 1, dims="clinic")
        log_mean = level[pm.Data("at", clinic)] + slope * pm.Data("x", x)
        pm.Poisson("visits", pm.math.exp(log_mean), observed=pm.Data("y", visits))
    return model


def save(ax, name: str) -> None:
    """On white, whatever the page's theme is."""
    ax.figure.savefig(HERE / f"{name}.png", dpi=100, facecolor="white")


def main() -> None:
    """Draw them all."""
    n = 20_000
    model = trial(n)
    run = dp.sample(
        400, tune=100, chains=2, epsilon=4.0, step=dp.DPPenalty, clip=2**0.5, model=model, **QUIET
    )
    save(dp.plot_privacy(run), "privacy")

    save(
        dp.plot_privacy(dp.sample(400, chains=2, epsilon=4.0, model=model, **QUIET)),
        "privacy_surrogate",
    )
    compiled = dp.compile(clinics(20_000))
    visits = dp.sample(500, chains=2, epsilon=2.0, model=compiled, **QUIET)
    save(dp.plot_prior_posterior(visits, compiled)[0], "prior_posterior")
    statistics = {
        "no visit": (lambda y: (y == 0).mean(), (0, 1)),
        "above 5": (lambda y: (y > 5).mean(), (0, 1)),
        "visits": (lambda y: y.mean(), (0, 10)),
    }
    save(dp.plot_checks(dp.check_predictions(visits, compiled, statistics, epsilon=1.0)), "checks")

    made_up = np.column_stack([np.ones(n), np.resize([-1.0, 1.0], n)])
    settings = {"data": {"X": made_up}, "truth": {"beta": [0.4, 0.3]}}
    epsilons = (0.25, 0.5, 1.0, 2.0, 4.0)
    found = dp.tradeoff(model, epsilons=epsilons, draws=500, **settings)
    save(dp.plot_tradeoff(found), "tradeoff")
    penalty = dp.tradeoff(
        model, epsilons=epsilons, draws=2000, tune=500, step=dp.DPPenalty, clip=2**0.5,
        scale=0.05, **settings,
    )  # fmt: skip
    save(dp.plot_tradeoff(penalty), "tradeoff_penalty")


if __name__ == "__main__":
    main()
