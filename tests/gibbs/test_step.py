"""PrivacyAwareGibbs as a PyMC step."""

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import BlockedStep

from pymc_dp import UnsupportedModelError
from pymc_dp.compat import CHAIN_START, groups_of, root_attrs
from pymc_dp.gibbs.metadata import is_post_processing, stamp
from pymc_dp.gibbs.parameters import InterweavedNUTS, ParameterNUTS
from pymc_dp.gibbs.step import PrivacyAwareGibbs
from pymc_dp.gibbs.sweep import RecordSweep
from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.statistics import clamp, record_sum

FAST = {"mode": "FAST_COMPILE"}


@pytest.fixture
def model():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=30)
        LaplaceMechanism("s", clamp(x, -3, 3), epsilon=1, sensitivity=6, observed=20.0)
    return model


def kinds(step):
    return [type(method) for method in step.methods]


def start_chain(step, seed):
    lengths = (0, 5) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(seed), *lengths)


def test_parts_of_the_step(model):
    with model:
        assert kinds(PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)) == [
            RecordSweep,
            ParameterNUTS,
            InterweavedNUTS,
        ]
        plain = PrivacyAwareGibbs([model["x"]], interweave=False, compile_kwargs=FAST)
        assert kinds(plain) == [RecordSweep, ParameterNUTS]
        own = PrivacyAwareGibbs(model["x"], parameters=pm.Slice([model["mu"]]), compile_kwargs=FAST)
        assert kinds(own) == [RecordSweep, pm.Slice, InterweavedNUTS]
        assert {v.name for v in own.vars} == {"x", "mu"}


def test_parameter_step_does_not_evaluate_the_release(model):
    """The density that NUTS sees differs from the model's by the release's."""
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
    point = {"mu": np.array(0.4), "x": np.linspace(-4, 4, 30)}
    nuts = step.methods[1]
    for name, shared in nuts.shared.items():
        shared.set_value(point[name])
    found, slope = nuts._logp_dlogp_func._pytensor_function(np.array([0.4]))
    free = model.compile_logp(vars=model.free_RVs, mode="FAST_COMPILE")
    np.testing.assert_allclose(found, free(point))
    np.testing.assert_allclose(slope, [-0.4 / 4 + (point["x"] - 0.4).sum()])


def test_interweaved_target_is_prior_and_release(model):
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
    nuts = step.methods[2]
    z = np.linspace(-4, 4, 30)
    nuts.shared["x_noise"].set_value(z)

    def log_target(mu):
        T = np.clip(mu + z, -3, 3).sum()
        return -(mu**2) / 8 - abs(20 - T) / 6

    found = [nuts._logp_dlogp_func._pytensor_function(np.array([m]))[0] for m in (0.4, -1.0)]
    np.testing.assert_allclose(found[0] - found[1], log_target(0.4) - log_target(-1.0))


def test_interweaved_move_keeps_the_noise(model):
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
    start_chain(step, 0)
    point = {"mu": np.array(0.4), "x": np.linspace(-4, 4, 30)}
    moves = 0
    for _ in range(5):
        end, _ = step.methods[2].step(point)
        np.testing.assert_allclose(end["x"] - end["mu"], point["x"] - point["mu"])
        assert set(end) == {"mu", "x"}
        moves += end["mu"] != point["mu"]
        point = end
    assert moves > 0


def test_sampling_state_continues_the_chain(model):
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
    start_chain(step, 1)
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(3):
        point, _ = step.step(point)
    state = step.sampling_state
    first, _ = step.step(point)
    assert not np.array_equal(first["x"], point["x"])
    step.sampling_state = state
    again, _ = step.step(point)
    np.testing.assert_array_equal(first["x"], again["x"])
    np.testing.assert_array_equal(first["mu"], again["mu"])


def test_step_does_not_change_the_point_it_is_given(model):
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
    point = model.initial_point()
    copy = {name: value.copy() for name, value in point.items()}
    for _ in range(3):
        step.step(point)
    for name in point:
        np.testing.assert_array_equal(point[name], copy[name])


def test_a_pickled_step_is_seeded_like_the_original(model):
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    ends = []
    for s in (step, copy):
        start_chain(s, 7)
        ends.append(s.step(model.initial_point())[0])
    np.testing.assert_array_equal(ends[0]["x"], ends[1]["x"])
    np.testing.assert_array_equal(ends[0]["mu"], ends[1]["mu"])


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.process)])
def test_chains_are_reproducible_and_differ(model, cores, quiet):
    def run(seed):
        with model:
            step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
            return pm.sample(
                20, tune=20, chains=2, step=step, random_seed=seed, **{**quiet, "cores": cores}
            )

    one, two, other = run(1), run(1), run(2)
    x = one["posterior"]["x"].values
    np.testing.assert_array_equal(x, two["posterior"]["x"].values)
    assert not np.array_equal(x[0], x[1])
    assert not np.array_equal(x, other["posterior"]["x"].values)


def test_statistics_and_metadata(model, quiet):
    with model:
        step = PrivacyAwareGibbs([model["x"]], compile_kwargs=FAST)
        idata = pm.sample(30, tune=30, chains=1, step=[step], random_seed=1, **quiet)
    stats = idata["sample_stats"]
    assert (stats["release_epsilon"].values == 1).all()
    assert (stats["release_delta"].values == 0).all()
    assert (stats["record_accept_min"].values >= np.exp(-1) * (1 - 1e-9)).all()
    assert ((stats["record_accept_rate"].values > np.exp(-1)) & (stats["record_accept_rate"].values <= 1)).all()  # fmt: skip
    assert is_post_processing(groups_of(idata))
    attrs = root_attrs(stamp(idata))
    assert attrs["privacy_epsilon"] == 1
    assert attrs["privacy_valid"] == 1
    assert "no further privacy cost" in attrs["privacy_statement"]
    assert "(1, 0)" in attrs["privacy_statement"]
    assert "x" in groups_of(stamp(idata))["posterior"]


def test_undeclared_guarantee_is_said_to_be_so(quiet):
    with pm.Model():
        x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=4)
        LaplaceMechanism("s", x, scale=2.0, observed=1.0)
        step = PrivacyAwareGibbs([x], compile_kwargs=FAST)
        idata = pm.sample(5, tune=5, chains=1, step=step, random_seed=1, **quiet)
    attrs = root_attrs(stamp(idata))
    assert attrs["privacy_valid"] == 0
    assert "not declared" in attrs["privacy_statement"]


def test_other_draws_are_no_post_processing(quiet):
    with pm.Model():
        pm.Normal("mu", 0, 1)
        idata = pm.sample(5, tune=5, chains=1, step=pm.Metropolis(), **quiet)
    assert not is_post_processing(groups_of(idata))


def test_too_small_a_sensitivity_is_found_while_sampling(quiet):
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=30)
        LaplaceMechanism("s", x, epsilon=1, sensitivity=0.5, observed=20.0)  # no clamp
        step = PrivacyAwareGibbs([x], compile_kwargs=FAST)
        with pytest.raises(UnsupportedModelError, match=r"\['s'\].*more than the declared"):
            pm.sample(20, tune=20, chains=1, step=step, random_seed=1, **quiet)


def test_start_of_zero_density_is_refused():
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=4)
        total = record_sum(x)
        pm.Uniform("s", total - 1, total + 1, observed=100.0)
        step = PrivacyAwareGibbs([x], compile_kwargs=FAST)
        with pytest.raises(UnsupportedModelError, match=r"\['s'\] have zero density"):
            step.step(model.initial_point())


def test_statistic_that_is_not_finite_at_the_start_is_refused():
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=4)
        LaplaceMechanism("s", pm.math.log(x), scale=1.0, observed=1.0)
        step = PrivacyAwareGibbs([x], compile_kwargs=FAST)
        with pytest.raises(UnsupportedModelError, match=r"not.*finite"):
            step.step(model.initial_point())


def test_discrete_parameters_get_a_step_from_pymc(quiet):
    with pm.Model():
        which = pm.Bernoulli("which", 0.5)
        mu = pm.Normal("mu", 2 * which, 1)
        x = pm.Normal("x", mu, 1, shape=4)
        GaussianMechanism("s", x, scale=2.0, observed=9.0)
        step = PrivacyAwareGibbs([x], compile_kwargs=FAST)
        idata = pm.sample(200, tune=50, chains=1, step=step, random_seed=1, **quiet)
    assert {0, 1} == set(np.unique(idata["posterior"]["which"].values))


@pytest.mark.chain
def test_released_values_may_be_replaced(quiet):
    """One step serves many releases of the same design, as in a simulation study."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        x = pm.Normal("x", mu, 1, shape=30)
        s = pm.Data("released", np.array(0.0))
        GaussianMechanism("s", x, scale=1.0, observed=s)
        step = PrivacyAwareGibbs([x], compile_kwargs=FAST)
        means = []
        for value in (-60.0, 90.0):
            model.set_data("released", np.array(value))
            idata = pm.sample(200, tune=200, chains=1, step=step, random_seed=1, **quiet)
            means.append(float(idata["posterior"]["mu"].mean()))
    np.testing.assert_allclose(means, [-2, 3], atol=0.5)


class ConjugateMean(BlockedStep):
    """μ | x of a normal mean with variance 1 under a N(0, 4) prior."""

    stats_dtypes_shapes = {}  # noqa: RUF012 - as in PyMC

    def __init__(self, vars, *, model=None, blocked=True):
        self.vars = [pm.modelcontext(model).rvs_to_values[v] for v in vars]
        self.rng = np.random.default_rng(0)

    def step(self, point):
        precision = 1 / 4 + point["x"].size
        mean = point["x"].sum() / precision
        return {**point, "mu": np.array(self.rng.normal(mean, precision**-0.5))}, [{}]


@pytest.mark.chain
def test_conjugate_step_of_ones_own(draw_from, against):
    from scipy import stats

    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=8)
        GaussianMechanism("s", x, scale=2.0, observed=11.0)
        step = PrivacyAwareGibbs([x], parameters=ConjugateMean([mu]), interweave=False, model=model)
        draws = draw_from("mu", step, draws=6000)
    precision = 1 / 4 + 64 / 12
    exact = stats.norm(8 * 11 / 12 / precision, precision**-0.5)
    against(draws, exact.ppf, exact.mean(), exact.std())
