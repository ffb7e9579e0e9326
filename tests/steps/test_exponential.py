"""The penalty algorithm for exponential families: exact with noise on, and blind to anything else."""

import math

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.compat import CHAIN_START, groups_of, root_attrs
from pymc_dp.exponential_family.statistics import SufficientStatistics
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.kept_sum import KeptSum, direction
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.plans import Permit
from pymc_dp.steps.exponential import exponential_transition

from .exact import assert_matches, spread_evenly

# Few records, so that posteriors are skewed: a symmetric target could not see a reversed sign.
ANSWERS = np.repeat([1, 0], [6, 24])
COUNTS = np.array([0, 2, 1, 5, 3, 1, 0, 2])
BETA = stats.beta(2 + ANSWERS.sum(), 3 + np.sum(1 - ANSWERS))
GAMMA = stats.gamma(2 + COUNTS.sum(), scale=1 / (1.5 + len(COUNTS)))


def beta_bernoulli(y=ANSWERS):
    with pm.Model() as model:
        pm.Bernoulli("y", pm.Beta("p", 2, 3), observed=pm.Data("Y", y))
    return model


def poisson_gamma(y=COUNTS):
    with pm.Model() as model:
        pm.Poisson("y", pm.Gamma("mu", 2, 1.5), observed=pm.Data("Y", y))
    return model


def normal(y):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 2), pm.HalfNormal("sigma", 2)
        pm.Normal("y", mu, sigma, observed=pm.Data("Y", y))
    return model


# -- the transition ---------------------------------------------------------------------------------


def run_from_posterior(z, assumed_z, starts=4000, transitions=8):
    """A perfect sample of the Poisson mean, moved by the kernel under test; independent of each other.

    θ is the log mean: φ = θ and A = exp θ. Counts are measured from 0 to 6.
    """
    rng = np.random.default_rng(7)
    total = (COUNTS / 3 - 1.0).sum()

    def release(along, rise):
        """As KeptSum.release, whose grid is bound / step, but for its rounding."""
        g = along.weights[0] * along.bound / along.step
        noise = SUBSTITUTE_ONE.noise_sd(along.bound, z) * rng.standard_normal()
        return g * total + noise - len(COUNTS) * rise

    ends, accepted = spread_evenly(GAMMA, starts), 0
    for k in range(starts):
        theta = ends[k : k + 1]
        for _ in range(transitions):
            theta, info = exponential_transition(
                rng,
                theta,
                propose=lambda rng, theta: theta + 0.5 * rng.standard_normal(1),
                natural=lambda theta: (3 * theta, math.exp(theta.item()) - 3 * theta.item()),
                along=lambda g, rise: direction(g, 2 * abs(g.item()), 1),
                release=release,
                log_public=lambda theta: 2 * theta.item() - 1.5 * math.exp(theta.item()),
                noise_sd=lambda bound: SUBSTITUTE_ONE.noise_sd(bound, assumed_z),
            )
            accepted += info.accepted
        ends[k] = theta.item()
    return np.exp(ends), accepted / starts / transitions


def test_posterior_is_invariant_with_noise_on():
    draws, accepted = run_from_posterior(z=0.5, assumed_z=0.5)
    assert accepted > 0.2  # it moves
    assert stats.kstest(draws, GAMMA.cdf).pvalue > 1e-3


def test_a_wrong_penalty_is_caught():
    draws, _ = run_from_posterior(z=0.5, assumed_z=0.2)
    assert stats.kstest(draws, GAMMA.cdf).pvalue < 1e-6


# -- exact posteriors through PyMC ------------------------------------------------------------------


def sampled(model, draws, quiet, **keywords):
    step = dp.DPExponentialFamily(
        draws=draws, chains=2, noise_source=dp.InsecureSeededNoise(3), model=model, **keywords
    )
    return pm.sample(draws, tune=0, chains=2, step=step, random_seed=5, model=model, **quiet)


LENGTHS = pytest.mark.parametrize("draws", [1500, pytest.param(20_000, marks=pytest.mark.nightly)])


@pytest.mark.chain
@LENGTHS
def test_beta_bernoulli_is_exact_with_noise_on(draws, quiet):
    idata = sampled(beta_bernoulli(), draws, quiet, noise_multiplier=1.5, scale=0.8)
    assert 0.1 < idata.sample_stats["accept_rate"].values.mean() < 0.6  # the noise is felt
    assert_matches(idata.posterior["p"].values, BETA)


@pytest.mark.chain
@LENGTHS
def test_poisson_gamma_is_exact_with_noise_on(draws, quiet):
    idata = sampled(poisson_gamma(), draws, quiet, noise_multiplier=0.4, scale=0.5, bounds=(0, 6))
    assert 0.1 < idata.sample_stats["accept_rate"].values.mean() < 0.6
    assert_matches(idata.posterior["mu"].values, GAMMA)


@pytest.mark.chain
@LENGTHS
def test_the_target_is_the_posterior_of_the_limited_values(draws, quiet):
    """A range that cuts off a third of the records: another known posterior, hit as exactly."""
    limited = np.minimum(COUNTS, 2)
    exact = stats.gamma(2 + limited.sum(), scale=1 / (1.5 + len(COUNTS)))
    assert abs(exact.mean() - GAMMA.mean()) > exact.std() / 2
    idata = sampled(poisson_gamma(), draws, quiet, noise_multiplier=0.8, scale=0.5, bounds=(0, 2))
    assert_matches(idata.posterior["mu"].values, exact)


@pytest.mark.nightly
@pytest.mark.chain
def test_normal_with_unknown_scale_is_exact_with_noise_on(quiet):
    """Two statistics, whose noise is that of one direction: against quadrature."""
    y = np.array([-1.2, 0.3, 0.4, 2.9, 1.1, -0.2])
    idata = sampled(normal(y), 60_000, quiet, noise_multiplier=0.3, scale=0.4, bounds=(-3, 3))
    mu, sigma = np.meshgrid(np.linspace(-8, 8, 801), np.linspace(0.01, 9, 900), indexing="ij")
    log_p = stats.norm.logpdf(mu, 0, 2) + stats.halfnorm.logpdf(sigma, scale=2)
    log_p += stats.norm.logpdf(y[:, None, None], mu, sigma).sum(axis=0)
    weights = np.exp(log_p - log_p.max())
    for name, grid, axis in (("mu", mu, 1), ("sigma", sigma, 0)):
        mass = weights.sum(axis=axis)
        points = np.unique(grid)
        assert_matches(idata.posterior[name].values, _OnGrid(points, mass / mass.sum()))


class _OnGrid:
    """What `assert_matches` asks of a distribution, from masses on a fine grid."""

    def __init__(self, points, mass):
        self.points, self.mass = points, mass

    def moment(self, k):
        return float(np.sum(self.mass * (self.points - self.mean()) ** k))

    def mean(self):
        return float(np.sum(self.mass * self.points))

    def std(self):
        return math.sqrt(self.moment(2))

    def stats(self, moments):
        return self.moment(4) / self.moment(2) ** 2 - 3

    def ppf(self, q):
        step = self.points[1] - self.points[0]
        return float(np.interp(q, np.cumsum(self.mass), self.points + step / 2))


@pytest.mark.parametrize("neighbours", ["substitute-one", "add-or-remove"])
def test_without_noise_it_is_plain_metropolis(neighbours, quiet, fast):
    """Same randomness, same path, draw by draw; n is used, or one of the sums."""
    rng = np.random.default_rng(2)
    y = rng.normal(1, 2, size=50)
    model = normal(y)
    step = dp.DPExponentialFamily(
        noise_multiplier=0, scale=0.3, chains=1, draws=300, bounds=(-9, 9), noise_source=dp.InsecureSeededNoise(0),
        neighbours=neighbours, delta=1e-6, model=model, **fast,
    )  # fmt: skip
    seed = np.random.default_rng(42)
    idata = pm.sample(300, tune=0, chains=1, step=step, random_seed=seed, model=model, **quiet)
    rng = np.random.default_rng(42).spawn(1)[0]
    rng.integers(2**30)  # PyMC draws the seed of the initial point from the chain's generator
    log_p = model.compile_logp()
    names = [v.name for v in model.value_vars]
    theta = np.array([model.initial_point()[name] for name in names])
    path = []
    for _ in range(300):
        proposal = theta + 0.3 * rng.standard_normal(theta.size)
        log_u = math.log1p(-rng.random())
        points = [dict(zip(names, t, strict=True)) for t in (proposal, theta)]
        if log_u < log_p(points[0]) - log_p(points[1]):
            theta = proposal
        path.append(theta[0])
    assert len(set(path)) > 50
    np.testing.assert_array_equal(idata.posterior["mu"].values[0], path)
    assert np.isinf(idata.sample_stats["epsilon"].values).all()


# -- sensitivity ------------------------------------------------------------------------------------


def neighbours():
    """Models, settings, and data in which one unit has been replaced by the worst there is."""
    reals = np.random.default_rng(1).normal(size=30)
    visits = np.repeat(np.arange(10), 3)
    yield beta_bernoulli, {}, np.append(ANSWERS, 0), np.append(ANSWERS, 1)
    yield poisson_gamma, {"bounds": (0, 9)}, np.append(COUNTS, 0), np.append(COUNTS, 10**9)
    for new, old in [(50.0, -50.0), (0.3, 1e300)]:
        settings = {"bounds": (-3, 4)}
        yield normal, settings, np.append(reals, old), np.append(reals, new)
        yield (
            normal,
            {**settings, "unit": visits},
            np.append(reals[:27], [old] * 3),
            np.append(reals[:27], [new] * 3),
        )


def test_replacing_a_unit_moves_no_release_by_more_than_its_bound(fast):
    """Through the step: statistics, range, grid and units together, in all directions."""
    rng = np.random.default_rng(0)
    closest = 0.0
    for build, settings, before, after in neighbours():
        steps = [
            dp.DPExponentialFamily(
                noise_multiplier=1.0, chains=1, draws=1, model=build(y), **settings, **fast
            )
            for y in (before, after)
        ]
        d = len(steps[0]._proposal)
        for _ in range(60):
            here, there = 0.5 * rng.normal(size=(2, d))
            g = steps[0]._family.natural(there)[0] - steps[0]._family.natural(here)[0]
            along = steps[0]._along(g, 0.0)
            assert along == steps[1]._along(
                g, 0.0
            )  # what the noise is scaled to does not see the data
            exact = [
                step._sum.release(
                    along,
                    noise_multiplier=0,
                    permit=Permit(0, 0, (Gaussian(0.0),)),
                    noise=dp.InsecureSeededNoise(0),
                )
                for step in steps
            ]
            moved = abs(exact[0] - exact[1]) / (2 * along.bound)
            assert moved <= 1 + 2.0**-40
            closest = max(closest, moved)
    assert closest > 1 - 1e-6


def test_the_noise_of_one_statistic_is_that_of_the_paper(fast):
    """σ² = (φ(θ') - φ(θ))² ξ with ξ = (z ∇S)²; and never more with several."""
    step = dp.DPExponentialFamily(
        noise_multiplier=2.0, chains=1, draws=1, bounds=(0, 9), model=poisson_gamma(), **fast
    )
    move = step._family.natural(np.array([0.7]))[0] - step._family.natural(np.array([0.2]))[0]
    assert 2.0 * 2 * step._along(move, 0.0).bound == pytest.approx(0.5 * 2.0 * 9, rel=1e-7)
    family = dp.DPExponentialFamily(
        noise_multiplier=2.0, chains=1, draws=1, bounds=(-3, 4), model=normal(np.ones(5)), **fast
    )._family
    S = np.stack([x := np.linspace(-1, 1, 501), x**2], axis=1)
    nabla = np.linalg.norm(S[:, None] - S[None], axis=-1).max()
    rng = np.random.default_rng(0)
    ratios = [family.spread(g) / (np.linalg.norm(g) * nabla) for g in rng.normal(size=(300, 2))]
    assert max(ratios) <= 1 + 1e-12
    assert min(ratios) < 0.6


# -- privacy ----------------------------------------------------------------------------------------


def contents(result):
    """Everything in a result but the run's random name and the time of day."""
    found = {"attrs": {k: v for k, v in root_attrs(result).items() if k != "created_at"}}
    for name, group in groups_of(result).items():
        for key, variable in group.variables.items():
            if key != "privacy_run":
                found[name, key] = (variable.dims, variable.values.tolist(), dict(variable.attrs))
    return found


def test_output_depends_on_data_through_releases_alone(monkeypatch, quiet, fast):
    """Two unrelated data sets, the same released numbers: the same output, to the last bit."""
    read = []

    def released(self, along, *, noise_multiplier, permit, noise):
        read.append(self._sum())  # the real data are read, as always, but do not enter the release
        _, iteration, _ = permit.take(Gaussian(noise_multiplier))
        key = [int(np.float64(along.bound).view(np.int64)), iteration]
        return along.bound * np.random.default_rng(key).normal()

    monkeypatch.setattr(KeptSum, "release", released)

    def run(seed):
        model = normal(np.random.default_rng(seed).normal(seed, size=40))
        step = dp.DPExponentialFamily(
            noise_multiplier=5.0, bounds=(-2, 4), tune=10, draws=40, chains=2, model=model, **fast
        )
        raw = pm.sample(
            40, tune=10, chains=2, step=step, model=model, random_seed=3, **quiet,
            discard_tuned_samples=False,
        )  # fmt: skip
        return contents(dp.release(raw)), str(dp.plan(step))

    (first, plan), (second, other_plan) = run(1), run(2)
    assert read[0] != read[-1]
    assert plan == other_plan
    assert first.keys() == second.keys()
    assert len(np.unique(first["posterior", "mu"][1])) > 10
    for key in first:
        np.testing.assert_equal(first[key], second[key], err_msg=str(key))


def test_the_run_is_charged_before_data_are_read(monkeypatch, tmp_path, quiet, fast):
    ledger = dp.PrivacyLedger(tmp_path / "account.ledger", epsilon=1.0, delta=1e-5)
    spent = []
    read = SufficientStatistics.of_records
    monkeypatch.setattr(
        SufficientStatistics,
        "of_records",
        lambda self: (spent.append(ledger.spent()), read(self))[1],
    )
    with beta_bernoulli():
        idata = dp.sample(
            30, tune=10, chains=2, epsilon=0.8, step=dp.DPExponentialFamily, ledger=ledger,
            **quiet, **fast,
        )  # fmt: skip
        assert spent == [pytest.approx(0.8, rel=1e-6)]  # once, for both chains, and afterwards
        assert idata.attrs["privacy_epsilon"] == pytest.approx(0.8, rel=1e-6)
        assert idata.attrs["privacy_delta"] == 1e-5
        assert int(groups_of(idata)["privacy"]["count"].sum()) == 2 * (30 + 10)
        assert "observed_data" not in groups_of(idata)
        with pytest.raises(dp.PrivacyBudgetExceeded):
            dp.sample(
                30,
                chains=2,
                epsilon=0.8,
                step=dp.DPExponentialFamily,
                ledger=ledger,
                **quiet,
                **fast,
            )
    assert len(spent) == 1
    assert ledger.spent() == pytest.approx(0.8, rel=1e-6)


def started(step):
    lengths = (0, step.iterations) if CHAIN_START == "setup_chain" else ()
    getattr(step, CHAIN_START)(np.random.default_rng(1), *lengths)
    step.stop_tuning()
    return step, step.model.initial_point()


def test_one_release_per_iteration_and_none_beyond_the_plan(fast):
    step = dp.DPExponentialFamily(epsilon=1.0, chains=1, draws=3, model=beta_bernoulli(), **fast)
    assert step.guarantee.events == (Gaussian(step._z),)
    step, point = started(step)
    for _ in range(3):
        point, _ = step.step(point)
    with pytest.raises(dp.PrivacyBudgetExceeded):
        step.step(point)


def test_the_kept_sum_does_not_travel(fast):
    step = dp.DPExponentialFamily(epsilon=1.0, chains=1, draws=3, model=beta_bernoulli(), **fast)
    step, point = started(step)
    step.step(point)
    assert step._sum._total == [(6 - 24) * RESOLUTION, 30 * RESOLUTION]
    assert cloudpickle.loads(cloudpickle.dumps(step._sum))._total is None


def test_a_stored_state_cannot_release_again(fast):
    step = dp.DPExponentialFamily(epsilon=1.0, chains=1, draws=20, model=beta_bernoulli(), **fast)
    step, point = started(step)
    for _ in range(5):
        point, _ = step.step(point)
    stored = step.sampling_state
    assert stored.used == 5
    step.step(point)
    step.sampling_state = stored
    with pytest.raises(dp.PrivacyBudgetExceeded):
        step.step(point)


@pytest.mark.process
def test_chains_in_processes_of_their_own(fast):
    with beta_bernoulli() as model:
        idata = dp.sample(
            15, chains=2, epsilon=1.0, step=dp.DPExponentialFamily, cores=2, mp_ctx="fork",
            progressbar=False, compute_convergence_checks=False, model=model, **fast,
        )  # fmt: skip
    assert idata.posterior["p"].shape == (2, 15)
    assert int(groups_of(idata)["privacy"]["count"].sum()) == 30


def test_units_of_several_records_get_more_noise(fast):
    """As much as the one with the most records needs."""
    person = np.repeat(np.arange(10), [5, 1] + 8 * [3])
    one, several = (
        dp.DPExponentialFamily(
            noise_multiplier=1.0,
            chains=1,
            draws=1,
            scale=0.1,
            unit=unit,
            model=beta_bernoulli(),
            **fast,
        )
        for unit in (None, person)
    )
    assert several.guarantee.n_units == 10
    g = np.array([0.3])
    assert several._along(g, 0.0).bound == pytest.approx(5 * one._along(g, 0.0).bound, rel=1e-7)


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.chain
def test_tuning_steers_acceptance_from_released_numbers_only(quiet, fast):
    model = beta_bernoulli(np.repeat([0, 1], 300))
    step = dp.DPExponentialFamily(
        noise_multiplier=3.0, scale=5.0, tune=400, chains=1, draws=500, target_accept=0.4,
        noise_source=dp.InsecureSeededNoise(1), model=model, **fast,
    )  # fmt: skip
    idata = pm.sample(500, tune=400, chains=1, step=step, random_seed=1, model=model, **quiet)
    scale = idata.sample_stats["scale"].values
    assert len(np.unique(scale)) == 1  # frozen once tuning is over
    assert scale[0, 0] < 2.0
    assert abs(idata.sample_stats["accept_rate"].values.mean() - 0.4) < 0.15


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e3])
def test_default_scale_respects_the_noise(epsilon, fast):
    step = dp.DPExponentialFamily(
        epsilon=epsilon, chains=1, draws=500, model=beta_bernoulli(), **fast
    )
    assert 0 < step._first_scale <= 2.4 / math.sqrt(30) * (1 + 1e-12)
    assert step._noise_sd_of_scale(step._first_scale) <= 1.6 * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1e5, 1e150, 1e300])
def test_moves_too_far_to_measure_are_rejected(scale, quiet, fast, recwarn):
    model = poisson_gamma()
    step = dp.DPExponentialFamily(
        epsilon=1.0, scale=scale, chains=1, draws=6, bounds=(0, 9), model=model, **fast
    )
    recwarn.clear()
    idata = pm.sample(6, tune=0, chains=1, step=step, model=model, **quiet)
    assert not idata.sample_stats["accepted"].values.any()
    assert (idata.sample_stats["accept_rate"].values == 0).all()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


@pytest.mark.parametrize(
    "bad",
    [
        {"scale": -1.0},
        {"scale": [1.0, 2.0]},
        {"target_accept": 1.0},
        {"bounds": (0, 1)},
        {"noise_multiplier": 0},
        {"epsilon": 1.0},
        {"draws": 0},
    ],
)
def test_bad_settings_are_refused_by_name(bad, fast):
    keywords = {
        "noise_multiplier": 1.0,
        "draws": 10,
        "chains": 1,
        "model": beta_bernoulli(),
        **fast,
        **bad,
    }
    with pytest.raises(dp.PrivacyConfigurationError, match=f"`{next(iter(bad))}"):
        dp.DPExponentialFamily(**keywords)


def test_a_regression_is_refused_before_anything_is_spent(logistic, tmp_path):
    ledger = dp.PrivacyLedger(tmp_path / "account.ledger", epsilon=1.0, delta=1e-5)
    with logistic(), pytest.raises(dp.UnsupportedModelError, match=r"'ill' depend on .*'X'"):
        dp.sample(10, epsilon=0.5, step=dp.DPExponentialFamily, ledger=ledger)
    assert ledger.spent() == 0


def test_the_settings_on_record_tell_runs_apart(fast):
    steps = [
        dp.DPExponentialFamily(
            noise_multiplier=1.0,
            chains=1,
            draws=5,
            scale=0.1,
            bounds=bounds,
            model=poisson_gamma(),
            **fast,
        )
        for bounds in ((0, 9), (0, 9.0000000001))
    ]
    assert steps[0].guarantee.settings["bounds"] == "y from 0.0 to 9.0"
    assert steps[0].guarantee.fingerprint != steps[1].guarantee.fingerprint


@pytest.mark.parametrize(("here", "there"), [(100.0, 110.0), (500.0, 550.0), (2.0, 1.0)])
def test_where_n_is_private_a_release_is_bounded_by_the_farthest_value(here, there, monkeypatch):
    """Brute force: a record that comes adds y log(λ'/λ) - λ' + λ to the sum, for any y in the range."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Poisson("y", rate, observed=pm.Data("Y", np.arange(20) % 4))
    step = dp.DPExponentialFamily(
        epsilon=1.0, delta=1e-5, neighbours="add-or-remove", draws=1, chains=1, bounds=(0, 30), model=model,
        compile_kwargs={"mode": "FAST_COMPILE"},
    )  # fmt: skip
    asked = []

    class Normal:
        def standard_normal(self, size):
            return np.full(size, math.log(there / here) / step._first_scale)

        def random(self):
            return 0.5

    release = KeptSum.release
    monkeypatch.setattr(
        KeptSum, "release",
        lambda self, along, **k: asked.append(along.bound) or release(self, along, **k),
    )  # fmt: skip
    step.rng = Normal()
    step.stop_tuning()
    step.step({"rate_log__": np.array(math.log(here))})
    y = np.arange(31)
    terms = y * math.log(there / here) - there + here
    assert asked == [pytest.approx(np.abs(terms).max(), rel=1e-6)]
