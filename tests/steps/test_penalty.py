"""The DP penalty transition: exactness with noise on, and its limits."""

import math

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.steps.penalty import penalty_transition

from .exact import (
    POSTERIOR,
    assert_matches,
    compiled,
    log_public,
    noisy_total,
    spread_evenly,
    tempered,
    terms,
)


def run_from_posterior(z, assumed_z, starts=4000, transitions=8, b=40.0):
    """A perfect sample, moved by the kernel under test; independent of each other."""
    rng = np.random.default_rng(7)
    ends, accepted = spread_evenly(POSTERIOR, starts), 0

    def bound(move):
        return b * abs(move.item())

    for k in range(starts):
        theta = ends[k : k + 1]
        for _ in range(transitions):
            theta, info = penalty_transition(
                rng,
                theta,
                propose=lambda rng, theta: theta + 0.8 * rng.standard_normal(1),
                bound=bound,
                noisy_ratio=lambda theta, new: noisy_total(
                    rng, terms(new) - terms(theta), bound(new - theta), z
                ),
                log_public=log_public,
                noise_sd=lambda bound: SUBSTITUTE_ONE.noise_sd(bound, assumed_z),
            )
            accepted += info.accepted
        ends[k] = theta.item()
    return np.exp(ends), accepted / starts / transitions


def test_posterior_is_invariant_with_noise_on():
    draws, accepted = run_from_posterior(z=0.025, assumed_z=0.025)
    assert accepted > 0.2  # it moves
    assert stats.kstest(draws, POSTERIOR.cdf).pvalue > 1e-3


def test_a_wrong_penalty_is_caught():
    draws, _ = run_from_posterior(z=0.025, assumed_z=0.01)
    assert stats.kstest(draws, POSTERIOR.cdf).pvalue < 1e-6


def draws_of(draws, quiet, **settings):
    """Through PyMC: transforms, Jacobian, compiled terms, ledger and integer noise together."""
    step = dp.DPPenalty(
        noise_multiplier=0.025, clip=40.0, draws=draws, chains=2, model=compiled(), **settings
    )
    idata = pm.sample(draws, tune=0, chains=2, step=step, random_seed=5, model=step.model, **quiet)
    return idata.posterior["rate"].values


@pytest.mark.chain
def test_step_in_pymc_reaches_the_exact_posterior(quiet):
    sample = draws_of(2000, quiet, scale=1.0, noise_source=dp.InsecureSeededNoise(3))
    assert_matches(sample, POSTERIOR)


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [0.3, 0.8, 1.5])
def test_exact_posterior_long(scale, quiet):
    sample = draws_of(100_000, quiet, scale=scale, noise_source=dp.InsecureSeededNoise(3))
    assert_matches(sample, POSTERIOR)


def test_without_noise_and_clipping_it_is_plain_metropolis(logistic, quiet):
    """Same randomness, same path, draw by draw."""
    model = logistic()
    step = dp.DPPenalty(
        noise_multiplier=0,
        clip=1e4,
        scale=0.3,
        chains=1,
        draws=400,
        noise_source=dp.InsecureSeededNoise(0),
        model=model,
    )
    seed = np.random.default_rng(42)
    idata = pm.sample(400, tune=0, chains=1, step=step, random_seed=seed, model=model, **quiet)
    rng = np.random.default_rng(42).spawn(1)[0]
    rng.integers(2**30)  # PyMC draws the seed of the initial point from the chain's generator
    log_p = model.compile_logp()
    theta = model.initial_point()["beta"]
    path = []
    for _ in range(400):
        proposal = theta + 0.3 * rng.standard_normal(theta.size)
        log_u = math.log1p(-rng.random())
        if log_u < log_p({"beta": proposal}) - log_p({"beta": theta}):
            theta = proposal
        path.append(theta)
    np.testing.assert_array_equal(idata.posterior["beta"].values[0], np.array(path))
    assert np.isinf(idata.sample_stats["epsilon"].values).all()


@pytest.mark.chain
@pytest.mark.parametrize("draws", [2000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_tempering_multiplies_the_likelihood(draws, quiet):
    """With T = 1/2 the posterior of the exponential model has half the data's weight."""
    settings = {"tempering": 0.5, "noise_source": dp.InsecureSeededNoise(4)}
    assert_matches(draws_of(draws, quiet, scale=1.0, **settings), tempered(0.5))


@pytest.mark.parametrize(
    ("keywords", "factor"),
    [
        ({"scale": 0.2}, 0.2 * np.eye(2)),
        ({"scale": [0.1, 0.4]}, np.diag([0.1, 0.4])),
        ({"scale": [[0.04, 0.01], [0.01, 0.09]]}, None),
    ],
)
def test_proposal_covariance(keywords, factor, logistic, fast):
    """Proposals have the covariance that was asked for (flat target: everything is accepted)."""
    step = dp.DPPenalty(
        noise_multiplier=0,
        chains=1,
        draws=1,
        noise_source=dp.InsecureSeededNoise(0),
        model=logistic(),
        **keywords,
        **fast,
    )
    scale = step._first_scale
    covariance = scale**2 * step._proposal @ step._proposal.T
    expected = np.array(keywords["scale"]) if factor is None else factor @ factor.T
    np.testing.assert_allclose(covariance, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("metric", "length"),
    [
        (None, 5.0),
        ([4.0, 1.0], math.sqrt(4 * 9 + 16)),
        ([[2.0, 1.0], [1.0, 2.0]], math.sqrt(2 * 9 + 2 * 16 + 2 * 12)),
    ],
)
def test_metric_of_the_clip_bound(metric, length, logistic, fast):
    step = dp.DPPenalty(
        noise_multiplier=1.0, chains=1, draws=1, metric=metric, clip=2.0, model=logistic(), **fast
    )
    assert step._clip * np.linalg.norm(step._metric @ [3.0, 4.0]) == pytest.approx(2 * length)


@pytest.mark.chain
def test_tuning_steers_acceptance_from_released_numbers_only(logistic, quiet, fast):
    model = logistic(n=300)
    step = dp.DPPenalty(
        noise_multiplier=0.5,
        clip=3.0,
        scale=2.0,
        tune=400,
        chains=1,
        draws=600,
        target_accept=0.4,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **fast,
    )
    idata = pm.sample(600, tune=400, chains=1, step=step, random_seed=1, model=model, **quiet)
    accept = idata.sample_stats["accepted"].values.mean()
    scale = idata.sample_stats["scale"].values
    assert len(np.unique(scale)) == 1  # frozen once tuning is over
    assert scale[0, 0] < 1.0
    assert 0.25 < accept < 0.55


@pytest.mark.parametrize(
    "bad",
    [
        {"clip": 0.0},
        {"clip": math.nan},
        {"scale": -1.0},
        {"scale": [1.0]},
        {"scale": [[1.0, 2.0], [2.0, 1.0]]},
        {"metric": [1.0, -1.0]},
        {"metric": [[1.0, math.inf], [math.inf, 1.0]]},
        {"target_accept": 1.0},
        {"tempering": 0.0},
        {"tempering": 1.5},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": 0},
        {"noise_multiplier": -1.0},
        {"epsilon": 1.0},
        {"draws": 0},
        {"draws": 2.5},
        {"tune": -1},
        {"chains": 0},
        {"chunk_size": 0},
        {"delta": 1.0},
        {"delta": 0},
        {"blocked": False},
    ],
)
def test_bad_settings_are_refused_by_name(bad, logistic, fast):
    keywords = {
        "noise_multiplier": 1.0,
        "draws": 10,
        "chains": 1,
        "model": logistic(),
        **fast,
        **bad,
    }
    name = "epsilon" if "epsilon" in bad else next(iter(bad))
    with pytest.raises(dp.PrivacyConfigurationError, match=f"`{name}"):
        dp.DPPenalty(**keywords)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_epsilon(epsilon, logistic, fast):
    with pytest.raises(dp.PrivacyConfigurationError, match="`epsilon`"):
        dp.DPPenalty(epsilon=epsilon, chains=1, draws=10, model=logistic(), **fast)


def test_unknown_keywords_are_refused(logistic):
    with pytest.raises(TypeError, match="nosie"):
        dp.DPPenalty(epsilon=1.0, chains=1, draws=10, nosie=1, model=logistic())


def test_two_records(quiet, fast):
    """They are a data set like any other; δ defaults to 0.05."""
    with pm.Model():
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=np.array([0.3, 0.4]))
        idata = dp.sample(20, chains=1, epsilon=1.0, step=dp.DPPenalty, **quiet, **fast)
    assert idata.attrs["privacy_units"] == 2
    assert idata.attrs["privacy_delta"] == pytest.approx(0.05)


@pytest.mark.parametrize("scale", [1e150, 1e160, 1e190, 1e230, 1e300])
def test_moves_too_far_to_square_are_rejected(scale, logistic, quiet, fast, recwarn):
    """Whatever overflows on the way to the test: a rejection, not an error that loses the run."""
    model = logistic()
    step = dp.DPPenalty(epsilon=1.0, scale=scale, chains=1, draws=4, model=model, **fast)
    recwarn.clear()
    idata = pm.sample(4, tune=0, chains=1, step=step, model=model, **quiet)
    assert not idata.sample_stats["accepted"].values.any()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
