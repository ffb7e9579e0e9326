"""DP-SGLD and DP-SGNHT: their discretised dynamics against closed forms, bias included."""

import math

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq

import pymc_dp as dp
from pymc_dp.experimental.sgmcmc import langevin_update, thermostat_update
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Gaussian, PoissonGaussian, times
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import accounted_rate

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
STEPS = [dp.experimental.DPSGLD, dp.experimental.DPSGNHT]

# -- the updates, on a quadratic ----------------------------------------------------------------------

PRECISION = 2.5


def langevin_variance(step_size, extra=0.0):
    """Stationary variance of θ ← (1 − ηλ/2) θ + N(0, η + extra)."""
    return (step_size + extra) / (1 - (1 - step_size * PRECISION / 2) ** 2)


def spread_after(step_size, gradient_noise, told, start, chains=100_000, steps=40):
    """Variance of many independent chains, one per coordinate, begun with variance `start`."""
    rng = np.random.default_rng(0)
    theta = math.sqrt(start) * rng.standard_normal(chains)
    for _ in range(steps):
        gradient = -PRECISION * theta + gradient_noise * rng.standard_normal(chains)
        theta = langevin_update(rng, theta, gradient, step_size=step_size, noise_sd=told)
    return theta.var()


@pytest.mark.parametrize("step_size", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_langevin_has_the_variance_of_its_recursion(step_size, share):
    """The privacy noise takes the place of injected noise: any share of it, the same chain."""
    noise = 2 * math.sqrt(share / step_size)
    exact = langevin_variance(step_size)
    assert exact == pytest.approx(1 / PRECISION / (1 - step_size * PRECISION / 4))
    chance = 5 * math.sqrt(2 / 100_000)
    assert spread_after(step_size, noise, noise, exact) == pytest.approx(exact, rel=chance)


def test_noise_that_langevin_is_not_told_of_widens_it_by_the_closed_form():
    """What the sampling of units does. Also: the test above would notice."""
    noise, step_size = 1.5, 0.4
    exact = langevin_variance(step_size, extra=(step_size / 2 * noise) ** 2)
    assert exact > 1.2 * langevin_variance(step_size)
    found = spread_after(step_size, noise, 0.0, exact)
    assert found == pytest.approx(exact, rel=5 * math.sqrt(2 / 100_000))


def test_more_noise_than_langevin_needs_is_not_made_worse():
    rng = np.random.default_rng(0)
    found = langevin_update(rng, np.zeros(3), np.ones(3), step_size=1.0, noise_sd=5.0)
    np.testing.assert_array_equal(found, 0.5 * np.ones(3))


def thermostat_closed_form(h, kick_variance):
    """Friction at which E p² = 1, and Var θ, of the linear recursion in (θ, p) at that friction."""

    def covariance(friction):
        p_row = np.array([-PRECISION * h, 1 - friction * h])
        recursion = np.array([[1, 0] + h * p_row, p_row])
        noise = kick_variance * np.array([[h * h, h], [h, 1]])
        return solve_discrete_lyapunov(recursion, noise)

    friction = brentq(lambda f: covariance(f)[1, 1] - 1, 0.02, 1 / h)
    return friction, covariance(friction)[0, 0]


@pytest.mark.parametrize(("h", "noise"), [(0.1, 0.0), (0.1, 4.0), (0.25, 2.0), (0.02, 10.0)])
def test_thermostat_finds_the_friction_and_the_width(h, noise):
    """With very many coordinates the friction hardly moves, and the recursion is linear."""
    d, diffusion = 5000, 1.0
    rng = np.random.default_rng(1)
    exact_friction, exact_variance = thermostat_closed_form(h, 2 * diffusion * h + (h * noise) ** 2)
    theta = math.sqrt(exact_variance) * rng.standard_normal(d)
    p, friction = rng.standard_normal(d), 1.3 * exact_friction
    frictions, variances, kinetic = [], [], []
    for k in range(1500):
        gradient = -PRECISION * theta + noise * rng.standard_normal(d)
        theta, p, friction = thermostat_update(
            rng, theta, p, friction, gradient, step_size=h, diffusion=diffusion, thermal_mass=1.0
        )
        if k > 500:
            frictions.append(friction)
            variances.append(theta.var())
            kinetic.append(p @ p / d)
    assert np.mean(kinetic) == pytest.approx(1, abs=0.01)
    assert np.mean(frictions) == pytest.approx(exact_friction, rel=0.02)
    assert np.mean(variances) == pytest.approx(exact_variance, rel=0.02)
    # To first order in h: friction A + hσ²/2, whatever the noise, and a variance too small by hξ/2.
    assert exact_friction == pytest.approx(diffusion + h * noise**2 / 2, rel=2 * h)
    assert exact_variance * PRECISION == pytest.approx(1 - h * exact_friction / 2, abs=h * h)


# -- the steps, on the mean of a normal ---------------------------------------------------------------

N, PRIOR_SD = 2000, 0.05
Y = np.random.default_rng(5).normal(0.1, 1.0, size=N)


def normal_model():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, PRIOR_SD)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", Y))
    return model


def built(step_type, model=None, **settings):
    keywords = {
        "noise_multiplier": 0.5,
        "gradient_clip": 6.0,
        "sampling_rate": 0.2,
        "tempering": 0.25,
        "draws": 5000,
        "chains": 1,
        "noise_source": dp.InsecureSeededNoise(1),
        "rng": 2,
        "model": model or normal_model(),
    }
    step = step_type(**keywords | settings, **FAST)
    step.stop_tuning()
    return step


def chain(step, iterations, start, keep=0):
    point, path = {"mu": np.array(start)}, np.empty(iterations)
    for k in range(iterations):
        point, (stats,) = step.step(point)
        assert stats["accepted"]
        path[k] = point["mu"]
    return path[keep:]


def posterior(tempering):
    precision = tempering * N + PRIOR_SD**-2
    return tempering * Y.sum() / precision, precision


@pytest.mark.parametrize("step_type", STEPS)
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_the_noisy_gradient_is_unbiased_and_as_noisy_as_it_says(step_type, rate):
    step, theta, repeats = built(step_type, sampling_rate=rate), np.array([0.3]), 1500
    T, (event,) = 0.25, step.guarantee.events
    found = np.array(
        [step._noisy_gradient(theta, Permit(0, i, (event,)))[0] for i in range(repeats)]
    )
    exact = T * (Y - 0.3).sum() - 0.3 / PRIOR_SD**2
    sigma = T / rate * SUBSTITUTE_ONE.noise_sd(6.0, 0.5)
    assert step._sigma == step.guarantee.settings["gradient_noise_sd"] == pytest.approx(sigma)
    variance = sigma**2 + T**2 * (1 - rate) / rate * ((Y - 0.3) ** 2).sum()
    assert abs(found.mean() - exact) < 4 * math.sqrt(variance / repeats)
    assert found.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / repeats))


@pytest.mark.chain
def test_sgld_has_the_mean_of_the_posterior_and_the_variance_of_its_recursion():
    """Also how biased it is: with u = θ − m, where m is the posterior's mean,

    Var = [η + (η²/4) T² (1−q)/q Σ (y − m)²] / [1 − (1 − ηλ/2)² − (η²/4) T² (1−q)/q n].
    """
    T, q, iterations = 0.25, 0.2, 4000
    mean, precision = posterior(T)
    eta = 0.6 / precision
    z = 0.7 * 2 / math.sqrt(eta) * q / T / 12  # half of η is privacy noise
    step = built(dp.experimental.DPSGLD, step_size=eta, noise_multiplier=z)
    assert eta * step._sigma**2 / 4 == pytest.approx(0.49)
    path = chain(step, iterations, mean, keep=20)
    sampling = eta**2 / 4 * T**2 * (1 - q) / q
    variance = (eta + sampling * ((Y - mean) ** 2).sum()) / (
        1 - (1 - eta * precision / 2) ** 2 - sampling * N
    )
    assert variance * precision > 1.25  # a bias that can be told from none
    correlation = 1 - eta * precision / 2
    ess = len(path) * (1 - correlation) / (1 + correlation)
    ess_of_squares = len(path) * (1 - correlation**2) / (1 + correlation**2)
    assert abs(path.mean() - mean) < 4 * math.sqrt(variance / ess)
    assert path.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / ess_of_squares))


@pytest.mark.chain
def test_sgld_with_small_steps_and_all_units_comes_near_the_posterior():
    mean, precision = posterior(0.25)
    step = built(
        dp.experimental.DPSGLD, step_size=0.3 / precision, sampling_rate=1.0, noise_multiplier=0.1
    )
    path = chain(step, 4000, mean, keep=20)
    correlation = 1 - 0.15
    ess = len(path) * (1 - correlation) / (1 + correlation)
    assert abs(path.mean() - mean) < 4 / math.sqrt(ess * precision)
    assert path.var() * precision == pytest.approx(1 / (1 - 0.3 / 4), rel=5 / math.sqrt(ess))


@pytest.mark.chain
def test_sgnht_absorbs_the_noise_of_samples():
    """SGLD at the same noise is far too wide; the thermostat is not."""
    import arviz as az

    mean, precision = posterior(0.25)
    q = 0.05
    h = 0.15 / math.sqrt(precision)
    step = built(
        dp.experimental.DPSGNHT,
        step_size=h,
        sampling_rate=q,
        noise_multiplier=0.2,
        diffusion=2.0,
        draws=7000,
    )
    path = chain(step, 7000, mean, keep=500)
    ess = float(np.asarray(az.ess(path.reshape(2, -1))))
    assert ess > 150
    assert abs(path.mean() - mean) * math.sqrt(precision) < 5 / math.sqrt(ess)
    assert path.std() * math.sqrt(precision) == pytest.approx(1, abs=5 / math.sqrt(ess) + 0.05)
    noise = step._sigma**2 + 0.25**2 * (1 - q) / q * ((Y - mean) ** 2).sum()
    assert step._step_size * noise / 2 > 2 * step._diffusion  # most friction is for that noise
    assert step.friction > step._diffusion + step._step_size * step._sigma**2 / 2


@pytest.mark.chain
def test_the_friction_adapts_on_a_narrow_posterior():
    """At a tenth of the posterior's width and the default diffusion, to the error of samples that it is not told of.

    The friction must rise in a number of steps that does not grow with the precision of the posterior.
    """
    n, q = 20_000, 0.02
    data = np.resize([-1.0, 1.0], n)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", data))
    step = built(
        dp.experimental.DPSGNHT, model, sampling_rate=q, noise_multiplier=0.01, tempering=1.0,
        step_size=0.1 / math.sqrt(n),
    )  # fmt: skip
    error = step._step_size * math.sqrt(n * (1 - q) / q)
    assert 0.6 < error < 0.8  # of the momentum, in a step
    point, kinetic = {"mu": np.array(0.0)}, []
    for _ in range(3000):
        point, _ = step.step(point)
        kinetic.append(step.momentum[0] ** 2)
    # Independent within about five steps, and E p⁴ is about 3.
    assert np.mean(kinetic[1000:]) == pytest.approx(1, abs=5 * math.sqrt(2 / 400))


# -- what they do around that -------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("step_type", STEPS)
def test_events_and_cost(step_type, logistic):
    step = built(step_type, logistic(), draws=2, chains=2, noise_source=None, noise_multiplier=1.5)
    assert step.guarantee.events == (PoissonGaussian(1.5, accounted_rate(0.2)),)
    assert step.guarantee.epsilon == composed_epsilon(
        times(step.guarantee.events, 4), step.guarantee.delta
    )
    whole = built(step_type, logistic(), draws=2, noise_source=None, sampling_rate=1)
    assert whole.guarantee.events == (Gaussian(0.5),)


@pytest.mark.sweep
@pytest.mark.parametrize("step_type", [dp.experimental.DPSGLD])
def test_the_budget_is_kept(step_type, logistic):
    step = step_type(
        epsilon=1.0, delta=1e-4, sampling_rate=0.1, chains=1, draws=3, model=logistic(), **FAST
    )
    spent = composed_epsilon(times(step.guarantee.events, 3), 1e-4)
    assert 0.99 < spent <= 1.0


@pytest.mark.sweep
@pytest.mark.parametrize("step_type", STEPS)
def test_only_sampled_records_are_evaluated_and_all_at_rate_one(step_type, logistic):
    for rate, expected in ((0.1, 40), (1.0, 400)):
        step, sizes = built(step_type, logistic(n=400), sampling_rate=rate), []
        function = step.compiled.gradients._function
        step.compiled.gradients._function = lambda theta, *rows, f=function, s=sizes: (
            s.append(len(rows[0])) or f(theta, *rows)
        )
        point = step.model.initial_point()
        for _ in range(20):
            point, _ = step.step(point)
        assert len(sizes) == 20
        assert abs(np.mean(sizes) - expected) <= 5 * math.sqrt(expected * (1 - rate) / 20)


def bounded_model():
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1, default_transform=None)
        pm.Normal("y", p, 1, observed=np.linspace(-1, 2, 40))
    return model


@pytest.mark.parametrize("step_type", STEPS)
def test_moves_out_of_the_support_stay_and_later_ones_may_move(step_type):
    step = built(
        step_type,
        bounded_model(),
        step_size=0.3,
        noise_multiplier=0.0,
        sampling_rate=1.0,
        tempering=0.02,
    )
    point, accepted = {"p": np.array(0.5)}, []
    for _ in range(200):
        new, (stats,) = step.step(point)
        assert 0 <= new["p"] <= 1
        assert stats["accepted"] or new["p"] == point["p"]
        assert stats["accept_rate"] == stats["accepted"]
        accepted.append(stats["accepted"])
        point = new
    assert 20 < sum(accepted) < 195


def test_a_new_momentum_after_a_move_that_stayed():
    step = built(
        dp.experimental.DPSGNHT,
        bounded_model(),
        step_size=0.3,
        noise_multiplier=0.0,
        sampling_rate=1.0,
    )
    point = {"p": np.array(0.5)}
    step.momentum = np.array([1e3])
    point, (stats,) = step.step(point)
    assert not stats["accepted"]
    assert abs(step.momentum[0]) < 10


@pytest.mark.parametrize("step_size", [1e3, 1e155, 1e300])
def test_a_move_that_overflows_does_not_spoil_the_thermostat(step_size, logistic, recwarn):
    """One impossible move must not leave a friction that freezes the chain for good."""
    step = built(
        dp.experimental.DPSGNHT,
        logistic(),
        step_size=step_size,
        noise_multiplier=0.0,
        sampling_rate=1.0,
    )
    recwarn.clear()
    point = step.model.initial_point()
    for _ in range(5):
        point, _ = step.step(point)
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
    assert np.isfinite(step.friction)
    assert np.isfinite(step.momentum).all()


@pytest.mark.parametrize("step_size", [1e155, 1e300])
def test_langevin_moves_that_overflow_stay(step_size, logistic, recwarn):
    step = built(dp.experimental.DPSGLD, logistic(), step_size=step_size, noise_multiplier=0.0)
    recwarn.clear()
    point = start = step.model.initial_point()
    for _ in range(5):
        point, (stats,) = step.step(point)
        assert not stats["accepted"]
    np.testing.assert_array_equal(point["beta"], start["beta"])
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


@pytest.mark.parametrize("step_type", STEPS)
@pytest.mark.parametrize("n", [1000, 100_000])
def test_default_step_size_leaves_room_for_the_error_of_samples(step_type, n):
    """Of n records with gradients of about one, sampled at the default rate, without tempering.

    The error of the sampled gradient then is T √(n (1−q)/q). In Langevin dynamics it may not add
    more variance than the dynamics has; in the thermostat a step of it may not exceed the momentum.
    """
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", np.resize([-1.0, 1.0], n)))
    step = step_type(
        noise_multiplier=0.3,
        chains=1,
        draws=1000,
        noise_source=dp.InsecureSeededNoise(0),
        model=model,
        **FAST,
    )
    q, step_size = step._rate, step._step_size
    error = math.sqrt(n * (1 - q) / q)
    if step_type is dp.experimental.DPSGLD:
        assert (step_size / 2 * error) ** 2 < 1.01 * step_size
    else:
        assert step_size * error < 1.01


def test_langevin_refuses_a_step_that_the_privacy_noise_overfills(logistic):
    model = logistic()
    settings = {"noise_multiplier": 2.0, "sampling_rate": 0.5, "gradient_clip": 1.0}
    sigma = 2 * SUBSTITUTE_ONE.noise_sd(1.0, 2.0)
    limit = 4 / sigma**2
    step = dp.experimental.DPSGLD(
        chains=1, draws=1, step_size=limit * 0.999, model=model, **settings, **FAST
    )
    assert step._step_size * step._sigma**2 < 4
    with pytest.raises(dp.PrivacyConfigurationError, match="`step_size`"):
        dp.experimental.DPSGLD(
            chains=1, draws=1, step_size=limit * 1.001, model=model, **settings, **FAST
        )
    default = dp.experimental.DPSGLD(chains=1, draws=1, model=model, **settings, **FAST)
    assert default._step_size * default._sigma**2 <= 2 * (1 + 1e-12)


@pytest.mark.parametrize("step_type", STEPS)
@pytest.mark.parametrize(
    "bad",
    [
        {"step_size": 0.0},
        {"step_size": -1.0},
        {"step_size": math.nan},
        {"gradient_clip": 0.0},
        {"gradient_clip": math.inf},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"sampling_rate": True},
        {"tempering": 0.0},
        {"tempering": 2.0},
        {"noise_multiplier": 0},
        {"noise_multiplier": math.nan},
        {"epsilon": 1.0},
        {"draws": 0},
        {"delta": 1.0},
        {"blocked": False},
    ],
)
def test_bad_settings_are_refused_by_name(step_type, bad, logistic):
    keywords = {
        "noise_multiplier": 1.0,
        "draws": 10,
        "chains": 1,
        "model": logistic(),
        **FAST,
        **bad,
    }
    name = "epsilon" if "epsilon" in bad else next(iter(bad))
    with pytest.raises(dp.PrivacyConfigurationError, match=f"`{name}"):
        step_type(**keywords)


@pytest.mark.parametrize("diffusion", [0.0, -1.0, math.nan, "1"])
def test_bad_diffusion(diffusion, logistic):
    with pytest.raises(dp.PrivacyConfigurationError, match="`diffusion`"):
        dp.experimental.DPSGNHT(
            noise_multiplier=1.0, diffusion=diffusion, chains=1, draws=5, model=logistic(), **FAST
        )


@pytest.mark.parametrize("step_type", STEPS)
def test_unknown_keywords_are_refused(step_type, logistic):
    with pytest.raises(TypeError, match="nosie"):
        step_type(epsilon=1.0, chains=1, draws=10, nosie=1, model=logistic())


def test_momentum_and_friction_are_part_of_the_state(logistic):
    """state → another process' copy → continue: the draws of an uninterrupted run."""
    model = logistic()
    whole, first = (
        built(dp.experimental.DPSGNHT, model, step_size=0.05, draws=12) for _ in range(2)
    )

    def iterate(step, point, times):
        path = []
        for _ in range(times):
            point, _ = step.step(point)
            path.append(point["beta"])
        return point, path

    _, expected = iterate(whole, model.initial_point(), 12)
    point, path = iterate(first, model.initial_point(), 5)
    state = first.sampling_state
    assert state.friction == first.friction
    np.testing.assert_array_equal(state.momentum, first.momentum)
    second = cloudpickle.loads(cloudpickle.dumps(first))
    second.momentum, second.friction = np.full(2, 9.0), 9.0
    second.sampling_state = state
    _, rest = iterate(second, point, 7)
    np.testing.assert_array_equal(path + rest, expected)


def test_every_chain_begins_with_a_momentum_of_its_own(logistic, quiet):
    model = logistic()
    step = built(dp.experimental.DPSGNHT, model, draws=3, chains=2)
    momenta = []
    start = step._start_chain
    step._start_chain = lambda: (start(), momenta.append(step.momentum))
    pm.sample(3, tune=0, chains=2, step=step, model=model, random_seed=1, **quiet)
    assert len(momenta) == 2
    assert not np.array_equal(*momenta)


@pytest.mark.parametrize(
    "step_type", [dp.DPPenalty, dp.DPBarker, dp.experimental.DPSGLD, dp.experimental.DPSGNHT]
)
def test_docstrings_are_filled_in(step_type):
    assert "{_" not in step_type.__doc__
    assert "{{" not in step_type.__doc__
