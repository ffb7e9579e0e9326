"""DP-HMC: reversibility, exactness with noise on, and what it releases."""

import math
from collections import Counter

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.privacy import noisy_sum
from pymc_dp.privacy.accounting import gaussian_epsilon
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.steps.hmc import Mass, hmc_transition, leapfrog

from .exact import (
    POSTERIOR,
    assert_matches,
    compiled,
    log_public,
    noisy_total,
    spread_evenly,
    term_gradients,
    terms,
)

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}


@pytest.mark.parametrize("mass", [2.0, [0.5, 1.0, 4.0], np.eye(3) + 0.3])
def test_leapfrog_is_reversible_with_frozen_noise(mass):
    """Backwards through the same positions with the same noise: back to the start."""
    rng = np.random.default_rng(0)
    L = 7
    noise = rng.normal(size=(L + 1, 3))

    def gradient(draws):
        remaining = iter(draws)
        return lambda theta: -(theta**3) + next(remaining)

    kinetic = Mass(mass, 3)
    theta, p = rng.normal(size=3), rng.normal(size=3)
    settings = {"mass": kinetic, "step_size": 0.1, "n_leapfrog": L}
    there, p_there = leapfrog(theta, p, gradient=gradient(noise), **settings)
    back, p_back = leapfrog(there, -p_there, gradient=gradient(noise[::-1]), **settings)
    np.testing.assert_allclose(back, theta, atol=1e-12)
    np.testing.assert_allclose(-p_back, p, atol=1e-12)


@pytest.mark.parametrize("mass", [2.0, [0.5, 1.0, 4.0], np.eye(3) + 0.3])
def test_momentum_has_the_mass_as_covariance(mass):
    kinetic = Mass(mass, 3)
    rng = np.random.default_rng(1)
    draws = np.array([kinetic.draw(rng) for _ in range(20_000)])
    # 2K is chi-square with d degrees of freedom.
    twice_energy = [2 * kinetic.energy(p) for p in draws[:4000]]
    assert stats.kstest(twice_energy, stats.chi2(3).cdf).pvalue > 1e-3
    matrix = np.diag(np.broadcast_to(mass, 3)) if np.ndim(mass) < 2 else np.asarray(mass)
    np.testing.assert_allclose(kinetic.velocity(matrix @ [1.0, 2.0, 3.0]), [1, 2, 3])


def run_from_posterior(z, assumed_z, gradient_clip, longest=math.inf, starts=2000, step_size=0.25):
    """A perfect sample moved by DP-HMC; independent of each other."""
    rng, mass = np.random.default_rng(7), Mass(1.0, 1)
    L, transitions, b, z_g = 3, 5, 40.0, 0.02
    ends, accepted = spread_evenly(POSTERIOR, starts), 0

    def gradient(theta):
        released = noisy_total(rng, term_gradients(theta), gradient_clip, z_g)
        return mass.shortened(released + 2 - np.exp(theta), longest)

    def bound(move):
        return b * abs(move.item())

    for k in range(starts):
        theta = ends[k : k + 1]
        for _ in range(transitions):
            theta, info = hmc_transition(
                rng,
                theta,
                gradient=gradient,
                mass=mass,
                step_size=step_size,
                n_leapfrog=L,
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


@pytest.mark.parametrize(
    ("gradient_clip", "longest"), [(40.0, math.inf), (0.4, math.inf), (40.0, 0.8)]
)
def test_posterior_is_invariant_with_noise_on(gradient_clip, longest):
    """Also when most gradients are clipped, or their noisy sum is shortened: they only propose."""
    draws, accepted = run_from_posterior(0.025, 0.025, gradient_clip, longest)
    assert accepted > 0.2
    assert stats.kstest(draws, POSTERIOR.cdf).pvalue > 1e-3


@pytest.mark.chain
def test_its_defaults_move_on_real_data(quiet):
    """Defaults throughout, covariates scaled by public constants, ε = 4: it used to stand still.

    16,000 people of the Current Population Survey (causaldata's `cps_mixtape`).
    """
    people = pytest.importorskip("causaldata").cps_mixtape.load_pandas().data
    columns = [
        np.ones(len(people)),
        (people["age"] - 40) / 10,
        (people["educ"] - 12) / 3,
        people["black"],
    ]
    x, y = np.column_stack(columns), people["marr"].to_numpy(int)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=4)
        pm.Bernoulli("married", logit_p=pm.Data("X", x) @ beta, observed=pm.Data("Y", y))
    step = dp.DPHMC(
        epsilon=4.0, draws=400, chains=1, model=model, noise_source=dp.InsecureSeededNoise(1)
    )
    raw = pm.sample(400, tune=0, chains=1, step=step, model=model, random_seed=1, **quiet)
    accepted = raw.sample_stats["accepted"].values[0]
    assert accepted[:100].mean() > 0.2
    assert accepted[-100:].mean() > 0.2
    theta = np.zeros(4)
    for _ in range(20):  # the mode
        p = 1 / (1 + np.exp(-x @ theta))
        H = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(4) / 4
        theta += np.linalg.solve(H, x.T @ (y - p) - theta / 4)
    sds = np.sqrt(np.diag(np.linalg.inv(H)))
    start, end = theta / sds, (raw.posterior["beta"].values[0, -100:].mean(axis=0) - theta) / sds
    assert np.linalg.norm(end) < 0.5 * np.linalg.norm(start)


def test_a_wrong_penalty_is_caught():
    # A coarse trajectory: where energy is all but conserved, the test hardly matters.
    draws, _ = run_from_posterior(0.02, 1e-6, 40.0, step_size=0.6)
    assert stats.kstest(draws, POSTERIOR.cdf).pvalue < 1e-6


@pytest.mark.chain
@pytest.mark.parametrize("draws", [800, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_step_in_pymc_reaches_the_exact_posterior(draws, quiet):
    step = dp.DPHMC(
        noise_multiplier=0.02,
        gradient_multiplier=0.02,
        clip=40.0,
        gradient_clip=40.0,
        step_size=0.25,
        n_leapfrog=4,
        draws=draws,
        chains=2,
        noise_source=dp.InsecureSeededNoise(3),
        model=compiled(),
    )
    idata = pm.sample(draws, tune=0, chains=2, step=step, random_seed=5, model=step.model, **quiet)
    assert_matches(idata.posterior["rate"].values, POSTERIOR)


def test_without_noise_it_is_plain_hmc(logistic, quiet):
    """Same randomness, same path, step by step."""
    model = logistic(n=60)
    step = dp.DPHMC(
        noise_multiplier=0,
        gradient_multiplier=0,
        clip=1e3,
        gradient_clip=1e3,
        step_size=0.15,
        max_drift=math.inf,
        n_leapfrog=5,
        mass=[1.0, 2.0],
        chains=1,
        draws=60,
        noise_source=dp.InsecureSeededNoise(0),
        model=model,
        **FAST,
    )
    generator = np.random.default_rng(42)
    idata = pm.sample(60, tune=0, chains=1, step=step, random_seed=generator, model=model, **quiet)
    log_p = model.compile_logp(mode="FAST_COMPILE")
    slope = model.compile_dlogp(mode="FAST_COMPILE")
    rng = np.random.default_rng(42).spawn(1)[0]
    rng.integers(2**30)  # PyMC's draw for the initial point
    from scipy.stats.qmc import Halton

    jitter = Halton(1, scramble=True, rng=int(rng.integers(2**31))).random(60)[:, 0]
    theta, mass, path = model.initial_point()["beta"], np.array([1.0, 2.0]), []
    for i in range(60):
        eta = 0.15 * (0.9 + 0.2 * jitter[i])
        p0 = np.sqrt(mass) * rng.standard_normal(2)
        log_u = math.log1p(-rng.random())
        new, p = theta, p0 + eta / 2 * slope({"beta": theta})
        for j in range(5):
            new = new + eta * p / mass
            p = p + (eta if j < 4 else eta / 2) * slope({"beta": new})
        energy = (p0**2 / mass).sum() / 2 - (p**2 / mass).sum() / 2
        if log_u < log_p({"beta": new}) - log_p({"beta": theta}) + energy:
            theta = new
        path.append(theta)
    # The fixed-point grid of a clipping bound of 1000 rounds gradients at 1e-5.
    np.testing.assert_allclose(idata.posterior["beta"].values[0], path, atol=2e-3)
    assert idata.sample_stats["accepted"].values.mean() > 0.5


def test_every_release_is_counted(logistic, monkeypatch, quiet):
    """L + 1 gradients and one ratio an iteration, no more and no fewer, all paid for."""
    model, L, draws = logistic(), 4, 6
    seen = Counter()

    def counting(parts, *, noise_multiplier, **keywords):
        seen[noise_multiplier] += 1
        return noisy_sum.noisy_total(parts, noise_multiplier=noise_multiplier, **keywords)

    monkeypatch.setattr("pymc_dp.records.curator.noisy_total", counting)
    step = dp.DPHMC(
        epsilon=2.0, delta=1e-5, n_leapfrog=L, chains=1, draws=draws, model=model, **FAST
    )
    pm.sample(draws, tune=0, chains=1, step=step, model=model, **quiet)
    ratio, gradient = step.guarantee.events
    assert seen[gradient.noise_multiplier] == draws * (L + 1)
    assert seen[ratio.noise_multiplier] == draws
    assert gradient.count == L + 1
    assert step.ledger.events() == (
        Gaussian(ratio.noise_multiplier, draws),
        Gaussian(gradient.noise_multiplier, draws * (L + 1)),
    )


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_budget_is_split_as_documented(share, logistic):
    L, draws = 6, 40
    step = dp.DPHMC(
        epsilon=2.0,
        delta=1e-5,
        n_leapfrog=L,
        chains=1,
        draws=draws,
        gradient_share=share,
        model=logistic(),
        **FAST,
    )
    ratio, gradient = step.guarantee.events
    mu2_ratio = draws / ratio.noise_multiplier**2
    mu2_gradient = draws * (L + 1) / gradient.noise_multiplier**2
    assert mu2_gradient / (mu2_ratio + mu2_gradient) == pytest.approx(share)
    spent = gaussian_epsilon(math.sqrt(mu2_ratio + mu2_gradient), 1e-5)
    assert 2.0 - 1e-6 < spent <= 2.0


def test_overflowing_trajectories_are_rejected(logistic, quiet, recwarn):
    model = logistic()
    step = dp.DPHMC(epsilon=1.0, step_size=1e200, chains=1, draws=5, model=model, **FAST)
    recwarn.clear()
    idata = pm.sample(5, tune=0, chains=1, step=step, model=model, **quiet)
    assert not idata.sample_stats["accepted"].values.any()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_path_length(logistic):
    step = dp.DPHMC(
        epsilon=1.0, path_length=1.0, step_size=0.3, chains=1, draws=2, model=logistic(), **FAST
    )
    assert step.guarantee.events[1].count == 5  # four steps


@pytest.mark.chain
def test_tuning_steers_the_step_size(logistic, quiet):
    model = logistic(n=400)
    step = dp.DPHMC(
        noise_multiplier=0.3,
        gradient_multiplier=0.3,
        clip=3.0,
        gradient_clip=3.0,
        step_size=1.0,
        n_leapfrog=3,
        tune=150,
        chains=1,
        draws=150,
        noise_source=dp.InsecureSeededNoise(1),
        model=model,
        **FAST,
    )
    idata = pm.sample(150, tune=150, chains=1, step=step, random_seed=2, model=model, **quiet)
    assert idata.sample_stats["scale"].values[0, 0] < 0.6
    assert 0.4 < idata.sample_stats["accept_rate"].values.mean() < 0.85


def test_state_round_trip(logistic):
    import cloudpickle

    def build():
        return dp.DPHMC(
            noise_multiplier=1.0,
            gradient_multiplier=1.0,
            chains=1,
            draws=8,
            noise_source=dp.InsecureSeededNoise(5),
            rng=3,
            model=model,
            **FAST,
        )

    def iterate(step, point, times):
        path = []
        for _ in range(times):
            point, _ = step.step(point)
            path.append(point["beta"])
        return point, path

    model = logistic()
    whole, first = build(), build()
    whole.stop_tuning()
    first.stop_tuning()
    _, expected = iterate(whole, model.initial_point(), 8)
    point, path = iterate(first, model.initial_point(), 3)
    state, second = first.sampling_state, cloudpickle.loads(cloudpickle.dumps(first))
    second.sampling_state = state
    _, rest = iterate(second, point, 5)
    np.testing.assert_array_equal(path + rest, expected)


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.process)])
def test_short_way(cores, logistic):
    with logistic():
        idata = dp.sample(
            8,
            chains=2,
            epsilon=1.0,
            step=dp.DPHMC,
            n_leapfrog=2,
            cores=cores,
            mp_ctx="fork",
            progressbar=False,
            compute_convergence_checks=False,
            **FAST,
        )
    assert idata.attrs["privacy_step"] == "DPHMC"
    assert idata.attrs["privacy_epsilon"] == 1.0


@pytest.mark.parametrize(
    "bad",
    [
        {"gradient_share": 1.0},
        {"n_leapfrog": 0},
        {"step_size": -1.0},
        {"gradient_clip": math.nan},
        {"mass": -1.0},
        {"mass": [[1.0, 2.0], [2.0, 1.0]]},
        {"path_length": 1.0},
        {"gradient_multiplier": 1.0},
        {"target_accept": 0.0},
    ],
)
def test_bad_settings_are_refused_by_name(bad, logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match=f"`{next(iter(bad))}"):
        dp.DPHMC(**{"epsilon": 1.0, "draws": 5, "chains": 1, "model": logistic(), **FAST, **bad})


def test_a_likelihood_without_gradient_is_refused():
    import pytensor.tensor as pt
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op

    class BlackBox(Op):
        def make_node(self, x, mu):
            return Apply(self, [pt.as_tensor(x), pt.as_tensor(mu)], [pt.dvector()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = -((inputs[0] - inputs[1]) ** 2)

    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.CustomDist("y", mu, logp=lambda v, m: BlackBox()(v, m), observed=np.linspace(0, 1, 20))
    dp.DPPenalty(epsilon=1.0, chains=1, draws=5, model=model, **FAST)
    with pytest.raises(dp.UnsupportedModelError, match="DPPenalty"):
        dp.DPHMC(epsilon=1.0, chains=1, draws=5, model=model, **FAST)
