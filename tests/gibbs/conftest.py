"""Comparison of draws with exact posteriors, to Monte Carlo error."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

MIN_ESS = 150
QUANTILES = (0.05, 0.5, 0.95)


def effective(draws):
    return float(np.asarray(az.ess(draws)))


def check_mean(draws, expected, what):
    """Mean of draws, shape (chains, draws), within 5 standard errors."""
    ess = effective(draws)
    assert ess > MIN_ESS, f"{what}: {ess:.0f} effective draws say nothing"
    error = (draws.mean() - expected) / (draws.std() / np.sqrt(ess))
    assert abs(error) < 5, f"{what}: {error:.1f} standard errors off"


def check_against(draws, cdf, mean, sd):
    """Mean, standard deviation and the 5, 50 and 95 % quantiles of an exact posterior.

    `cdf` maps a probability to the exact quantile.
    """
    check_mean(draws, mean, "mean")
    check_mean((draws - mean) ** 2, sd**2, "variance")
    for q in QUANTILES:
        check_mean((draws <= cdf(q)).astype(float), q, f"{q:.0%} quantile")


def check_on_grid(draws, grid, density):
    """Against a density on an equally spaced grid, not necessarily normalised."""
    weight = density / density.sum()
    mean = (grid * weight).sum()
    sd = np.sqrt(((grid - mean) ** 2 * weight).sum())
    cumulative = np.cumsum(weight)
    check_against(draws, lambda q: np.interp(q, cumulative, grid), mean, sd)


@pytest.fixture
def against():
    return check_against


@pytest.fixture
def on_grid():
    return check_on_grid


@pytest.fixture(
    params=[pytest.param(2, id="short"), pytest.param(1, id="long", marks=pytest.mark.nightly)]
)
def draw_from(request):
    """Draws of one parameter, shape (chains, draws), half as many as are asked for in short chains."""

    def draw_from(name, step, *, draws=2000, tune=400, chains=2, seed=1):
        idata = pm.sample(
            draws // request.param,
            tune=tune,
            chains=chains,
            cores=1,
            step=step,
            random_seed=seed,
            var_names=[name],
            progressbar=False,
            compute_convergence_checks=False,
        )
        return idata["posterior"][name].values

    return draw_from
