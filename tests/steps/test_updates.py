"""One-component and guided updates of DPPenalty."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp

from .exact import assert_matches

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}

# Two independent skewed marginals: exponential data with a Gamma prior on each rate.
Y = np.array([[0.3, 1.2], [2.5, 0.4], [0.1, 0.2], [1.9, 0.9]])
POSTERIORS = [stats.gamma(2 + len(Y), scale=1 / (1 + y.sum())) for y in Y.T]


@cache
def compiled():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1, shape=2)
        pm.Exponential("y", rate, observed=pm.Data("Y", Y))
    return dp.compile(model)


@pytest.mark.chain
@pytest.mark.parametrize("draws", [2500, pytest.param(12_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("update", ["one-component", "guided"])
def test_posterior_is_exact_with_noise_on(update, draws, quiet):
    step = dp.DPPenalty(
        noise_multiplier=0.02,
        clip=40.0,
        scale=0.8,
        update=update,
        draws=draws,
        chains=2,
        noise_source=dp.InsecureSeededNoise(2),
        model=compiled(),
    )
    idata = pm.sample(draws, tune=0, chains=2, step=step, random_seed=9, model=step.model, **quiet)
    for k, exact in enumerate(POSTERIORS):
        assert_matches(idata.posterior["rate"].values[:, :, k], exact)


@pytest.mark.parametrize("update", ["one-component", "guided"])
def test_one_coordinate_moves_at_a_time(update, logistic, quiet):
    model = logistic(d=4)
    step = dp.DPPenalty(
        noise_multiplier=0.3,
        update=update,
        chains=1,
        draws=200,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    idata = pm.sample(200, tune=0, chains=1, step=step, random_seed=1, model=model, **quiet)
    moved = (np.diff(idata.posterior["beta"].values[0], axis=0) != 0).sum(axis=1)
    assert moved.max() == 1
    assert moved.sum() > 20


def test_guided_walk_keeps_its_direction_until_rejected(logistic):
    model = logistic(d=3)
    step = dp.DPPenalty(
        noise_multiplier=0.3,
        update="guided",
        chains=1,
        draws=300,
        noise_source=dp.InsecureSeededNoise(1),
        rng=1,
        model=model,
        **FAST,
    )
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(300):
        before, directions = point["beta"], step.directions.copy()
        point, (stats_,) = step.step(point)
        move = point["beta"] - before
        if stats_["accepted"]:
            (j,) = np.flatnonzero(move)
            assert np.sign(move[j]) == directions[j]
            np.testing.assert_array_equal(step.directions, directions)
        else:
            assert (step.directions != directions).sum() == 1


def test_noise_of_a_single_coordinate_is_smaller(logistic):
    """The point of it: a shorter move has a smaller clip bound."""
    sigma = {
        update: dp.DPPenalty(
            noise_multiplier=5.0,
            update=update,
            scale=0.1,
            chains=1,
            draws=2,
            model=logistic(d=4),
            **FAST,
        ).guarantee.settings["typical_noise_sd"]
        for update in ("joint", "guided")
    }
    assert sigma["joint"] == pytest.approx(2 * sigma["guided"])


def test_bad_update(logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match="`update` must be one of"):
        dp.DPPenalty(epsilon=1.0, chains=1, draws=2, update="gibbs", model=logistic(), **FAST)
    with pytest.raises(dp.PrivacyConfigurationError, match="`scale`"):
        dp.DPPenalty(
            epsilon=1.0,
            chains=1,
            draws=2,
            update="guided",
            scale=np.eye(2) + 0.1,
            model=logistic(),
            **FAST,
        )
