"""The audit: its bound is one, honest steps pass, and broken twins of them are caught."""

import functools
import importlib
import itertools
import logging
import math
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.evidence.bounds import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    discriminant,
    lower_bound,
)
from pymc_dp.evidence.neighbours import replaced, without
from pymc_dp.evidence.runs import Run
from pymc_dp.federated import Owner
from pymc_dp.privacy.accounting import gaussian_epsilon, gaussian_mu_within
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.histogram import counts_of, noisy_counts
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE
from pymc_dp.privacy.noise import SecureNoise
from pymc_dp.privacy.noisy_sum import noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
# So high that an honest mechanism fails at one seed in ten thousand at most.
SURE = 0.9999
FAR = 1e3


@pytest.fixture(autouse=True)
def normal_draws(monkeypatch, few_moves):
    """Of the law's normal approximation, in place of NUTS: hundreds of runs would each compile it."""

    def draw(surrogate, log_public, draws, chains, nuts_sampler):
        r = surrogate.posterior
        e = np.random.default_rng(0).normal(size=(chains, draws, len(r.mean)))
        return r.mean + e @ np.linalg.cholesky(r.covariance).T

    monkeypatch.setattr("pymc_dp.steps.normal.draw", draw)


# -- the bound --------------------------------------------------------------------------------------


def test_clopper_pearson_by_hand():
    # Never and always: the equation (1 - p)^n = α is solved by hand.
    assert clopper_pearson_upper(0, 50, 0.05) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert clopper_pearson_lower(50, 50, 0.05) == pytest.approx(0.05 ** (1 / 50))
    assert clopper_pearson_upper(50, 50, 0.05) == 1
    assert clopper_pearson_lower(0, 50, 0.05) == 0
    # The textbook interval of 5 in 10 at 95 %, both sides.
    assert clopper_pearson_lower(5, 10, 0.025) == pytest.approx(0.18709, abs=1e-5)
    assert clopper_pearson_upper(5, 10, 0.025) == pytest.approx(0.81291, abs=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_bound_by_hand(sign):
    """Perfect separation: no wrong guess in 50, on either side."""
    alpha, delta = 0.05, 1e-3
    t = (alpha / 2) ** (1 / 50)
    scores = np.arange(100.0) % 7, 20 + np.arange(100.0) % 7
    found = lower_bound(*(sign * s for s in scores), delta=delta, confidence=1 - alpha)
    assert found.epsilon == pytest.approx(math.log((t - delta) / (1 - t)))
    assert (found.false_positive_rate, found.true_positive_rate) == (0, 1)


def test_one_rare_event_is_no_violation_of_delta():
    """What happens with probability δ in one data set and never in the other is allowed."""
    rng = np.random.default_rng(0)
    never, seldom = np.zeros(4000), (rng.random(4000) < 0.02).astype(float)
    assert lower_bound(never, seldom, delta=0.05).epsilon == 0
    assert lower_bound(never, seldom, delta=1e-6).epsilon > 1


def binary(rng, epsilon, size):
    """Randomised response: ε is attained, at every δ near 0."""
    truth = 1 / (1 + math.exp(-epsilon))
    return (rng.random(size) > truth) * 1.0, (rng.random(size) < truth) * 1.0


def normal(rng, epsilon, size):
    mu = gaussian_mu_within(epsilon, 0.05)
    return rng.normal(size=size), rng.normal(mu, size=size)


# Randomised response claims more than a Gaussian release of the same ε: no such bound is asked of it.
@pytest.mark.sweep
@pytest.mark.parametrize(("law", "gaussian"), [(binary, False), (normal, False), (normal, True)])
def test_bound_holds_as_often_as_stated(law, gaussian):
    rng, repeats, epsilon = np.random.default_rng(1), 400, 1.0
    delta = 1e-9 if law is binary else 0.05
    found = np.array(
        [
            lower_bound(
                *law(rng, epsilon, 600), delta=delta, confidence=0.8, gaussian=gaussian
            ).epsilon
            for _ in range(repeats)
        ]
    )
    # Three standard deviations of a binomial above the stated 20 %.
    assert np.mean(found > epsilon) < 0.2 + 3 * math.sqrt(0.2 * 0.8 / repeats)
    assert np.median(found) > 0.4 * epsilon


def test_scores_that_say_nothing_show_nothing():
    assert lower_bound(np.zeros(50), np.zeros(50), delta=1e-6).epsilon == 0
    rng = np.random.default_rng(2)
    same = rng.normal(size=(2, 5000))
    assert lower_bound(*same, delta=1e-6, confidence=SURE).epsilon < 0.1


@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_discriminant_finds_shifts_and_spreads(spread):
    rng = np.random.default_rng(3)

    def outputs(second):
        x = rng.normal(size=(500, 3)) @ np.array([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 1]])
        if second:
            x[:, 2] *= spread
            x[:, 1] += 0.5 if spread == 1 else 0.0
        return np.column_stack([np.exp(x), np.ones(500)])  # and a column that says nothing

    score = discriminant(outputs(False), outputs(True))
    a, b = score(outputs(False)), score(outputs(True))
    assert np.mean(a[:, None] < b) > 0.7
    assert np.all(discriminant(np.ones((9, 2)), np.ones((9, 2)))(np.ones((4, 2))) == 0)


# -- bare mechanisms --------------------------------------------------------------------------------


def released_sum(z, dimension=None):
    """One noisy sum of records, as a mechanism."""
    noise = SecureNoise()

    def noisy_total(data, repetition):
        permit = Permit(0, repetition, (Gaussian(z),))
        return noisy_sum(
            iter([data]), dimension=dimension, bound=1.0, noise_multiplier=z, permit=permit, noise=noise
        )  # fmt: skip

    return noisy_total


def audited_sum(z, epsilon, delta, **keywords):
    return dp.audit(
        released_sum(z), np.r_[FAR, np.zeros(9)], canary=-FAR, epsilon=epsilon, delta=delta,
        gaussian=True, confidence=SURE, **keywords,
    )  # fmt: skip


def test_an_honest_noisy_sum_passes_and_comes_close():
    """One Gaussian release, whose cost is known exactly."""
    z = dp.calibrate_noise(epsilon=2.0, delta=0.05, releases=1)
    found = audited_sum(z, 2.0, 0.05, runs=8000)
    assert not found.violated
    assert found.bound.epsilon > 0.5 * 2.0
    assert found.gaussian_bound.epsilon > 0.6 * 2.0
    # At the δ of practice, only the whole trade-off curve comes close.
    small = audited_sum(
        dp.calibrate_noise(epsilon=4.0, delta=1e-6, releases=1), 4.0, 1e-6, runs=8000
    )
    assert not small.violated
    assert small.epsilon_lower > 0.5 * 4.0


def test_a_noisy_sum_with_too_little_noise_is_caught():
    z = dp.calibrate_noise(epsilon=1.0, delta=1e-3, releases=1)
    assert not audited_sum(z, 1.0, 1e-3, runs=1000).violated
    assert audited_sum(z / 3, 1.0, 1e-3, runs=1000).violated


@pytest.mark.parametrize("release", ["sum", "histogram"])
def test_when_a_unit_is_removed_honest_noise_passes_and_half_of_it_is_caught(release):
    z = dp.calibrate_noise(epsilon=2.0, delta=1e-3, releases=1)
    data, noise = np.r_[FAR, np.zeros(9)], SecureNoise()
    assert without(data).shape == (9,)

    def audited(part):
        def total(data, repetition):
            permit = Permit(0, repetition, (Gaussian(z * part),))
            given = {"noise_multiplier": z * part, "permit": permit, "noise": noise}
            given["neighbours"] = ADD_OR_REMOVE
            if release == "sum":
                return noisy_sum([data], bound=1.0, **given)
            counts = noisy_counts(lambda: counts_of([np.abs(data)], 1), **given)
            return counts[counts_of([np.array([FAR])], 1).argmax()]

        return dp.audit(
            total, data, without(data), epsilon=2.0, delta=1e-3, gaussian=True, confidence=SURE, runs=6000
        )  # fmt: skip

    honest = audited(1.0)
    assert not honest.violated
    assert honest.gaussian_bound.epsilon > 0.6 * 2.0
    assert audited(0.5).violated


def test_a_step_is_audited_with_a_unit_removed():
    y = {"Y": records(30)}
    keywords = {"step": dp.DPPenalty, "epsilon": 1.0, "delta": 0.1, "runs": 20, **FAST}
    found = dp.audit(waiting, y["Y"], without(y["Y"], 4), neighbours="add-or-remove", **keywords)
    assert not found.violated
    for other in (y["Y"], replaced(y["Y"], -FAR), without(y["Y"], [1, 2]), records(29, spread=1.0)):
        with pytest.raises(dp.PrivacyConfigurationError, match="without a unit"):
            dp.audit(waiting, y["Y"], other, neighbours="add-or-remove", **keywords)


def test_a_vector_is_guessed_by_all_of_its_entries():
    z = dp.calibrate_noise(epsilon=3.0, delta=0.05, releases=1)
    data = np.zeros((10, 4))
    data[0] = FAR
    found = dp.audit(
        released_sum(z, dimension=4), data, canary=np.full(4, -FAR), epsilon=3.0, delta=0.05,
        gaussian=True, confidence=SURE, runs=4000,
    )  # fmt: skip
    assert not found.violated
    assert found.epsilon_lower > 0.5 * 3.0


# -- steps ------------------------------------------------------------------------------------------


def waiting(y):
    """A mean of normal records; those far out are clipped at any bound."""
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1)
        pm.Normal("y", mean, 1, observed=pm.Data("Y", y))
    return model


def records(n, spread=0.0, seed=1):
    """One record far out among others; equal ones leave a secret sample no noise of its own."""
    y = spread * np.random.default_rng(seed).normal(size=n)
    y[0] = FAR
    return y


PEOPLE = np.repeat(np.arange(500), 2)
STEPS = {
    "penalty": (dp.DPPenalty, 60, {"scale": 0.7, "draws": 3}),
    "penalty, tuned": (dp.DPPenalty, 60, {"draws": 2, "tune": 2}),
    "minibatch": (dp.DPPenalty, 60, {"sampling_rate": 0.5, "scale": 0.3, "draws": 2}),
    "hmc": (dp.DPHMC, 60, {"n_leapfrog": 1, "step_size": 0.02, "gradient_share": 0.8}),
    "barker": (dp.DPBarker, 200, {"tempering": 0.05, "draws": 2}),
    "sgld": (dp.experimental.DPSGLD, 60, {"sampling_rate": 1.0, "draws": 2}),
    "sgld, sampled": (dp.experimental.DPSGLD, 60, {"sampling_rate": 0.5, "draws": 2}),
    "sgnht": (dp.experimental.DPSGNHT, 60, {"sampling_rate": 0.5, "draws": 2}),
    "exponential": (dp.DPExponentialFamily, 60, {"scale": 0.7, "draws": 3, "bounds": (-3, 3)}),
    "normal": (dp.DPSurrogate, 1000, {"family": "normal"}),
    "penalty, people": (dp.DPPenalty, 60, {"scale": 0.7, "draws": 3, "unit": PEOPLE[:60]}),
    "sgld, people": (
        dp.experimental.DPSGLD,
        60,
        {"sampling_rate": 0.5, "draws": 2, "unit": PEOPLE[:60]},
    ),
    "normal, people": (dp.DPSurrogate, 1000, {"family": "normal", "unit": PEOPLE}),
    "polynomial": (dp.DPSurrogate, 1000, {"family": "polynomial"}),
}
# Runs that take a second or so.
SLOW = ("normal", "normal, people", "polynomial")
# One number that shows one noisy ratio, and says more than a discriminant of all of them.
FIRST_RATIO = {"draws": 1, "statistic": lambda run: run.stats["accept_rate"][0]}


def audited(which, runs, epsilon=2.0, delta=0.01, **keywords):
    step, n, settings = STEPS[which]
    return dp.audit(
        waiting, records(n, spread=step is dp.DPSurrogate), canary=-FAR, step=step, epsilon=epsilon, delta=delta, runs=runs,
        **{"confidence": SURE, **settings, **keywords}, **FAST,
    )  # fmt: skip


@pytest.mark.parametrize(
    "which", ["penalty", *(pytest.param(w, marks=pytest.mark.sweep) for w in [*STEPS][1:])]
)
def test_every_step_passes(which):
    # A few of the slow ones show that the way is gone: they could not show a violation, nor could three times as many.
    found = audited(which, runs=20 if which in SLOW else 300)
    assert not found.violated
    assert found.epsilon == 2.0


@pytest.mark.nightly
@pytest.mark.parametrize("which", STEPS)
def test_every_step_passes_at_length(which):
    found = audited(which, runs=1000 if which in SLOW else 20_000)
    assert not found.violated
    if which.split(",")[0] not in (
        "normal",
        "polynomial",
        "barker",
        "hmc",
    ):  # what these release says little of one record
        assert found.epsilon_lower > 0.3 * found.epsilon


@pytest.mark.parametrize(
    "which",
    ["penalty", *(pytest.param(w, marks=pytest.mark.sweep) for w in ("sgld", "sgnht", "hmc"))],
)
def test_too_little_noise_is_caught(which, monkeypatch):
    honest = SecureNoise.discrete_gaussian
    monkeypatch.setattr(
        SecureNoise, "discrete_gaussian", lambda self, s, size, at=(): honest(self, s / 8, size, at)
    )
    assert audited(which, runs=600, epsilon=1.0, confidence=0.99).violated


@pytest.mark.sweep
@pytest.mark.parametrize("which", ["penalty", "exponential"])
def test_half_of_the_noise_is_caught(which, monkeypatch):
    """A factor of 2, as between two ways to count a sensitivity: the error that real libraries had."""
    honest = SecureNoise.discrete_gaussian
    monkeypatch.setattr(
        SecureNoise, "discrete_gaussian", lambda self, s, size, at=(): honest(self, s / 2, size, at)
    )
    assert audited(which, runs=3000, epsilon=1.0, confidence=0.99, **FIRST_RATIO).violated


def owner_of(y, answers):
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1)
        pm.Normal("y", mean, 1, observed=pm.Data("Y", y))
    # A budget that leaves each answer (1, 0.01).
    z = dp.calibrate_noise(epsilon=1.0, delta=0.01, releases=1)
    whole = float(gaussian_epsilon(math.sqrt(answers) / z, 0.01)) * (1 + 1e-6)
    return Owner(epsilon=whole, delta=0.01, ratios=answers, ratio_share=1, model=model, **FAST)


@pytest.mark.sweep
@pytest.mark.parametrize(("part", "caught"), [(1.0, False), (0.5, True)])
def test_an_owners_answers(part, caught, monkeypatch):
    """Each of them is a release of its own; with half of its noise it is caught."""
    honest = SecureNoise.discrete_gaussian
    monkeypatch.setattr(
        SecureNoise,
        "discrete_gaussian",
        lambda self, s, size, at=(): honest(self, s * part, size, at),
    )
    runs, y = 3000, records(60)
    owners = {one[0]: owner_of(one, runs) for one in (y, replaced(y, -FAR))}
    request = {"theta": np.zeros(1), "proposal": np.full(1, 0.7), "bound": np.asarray(0.7)}
    found = dp.audit(
        lambda data, repetition: owners[data[0]].answer("ratio", request)["ratio"], y, canary=-FAR,
        epsilon=1.0, delta=0.01, gaussian=True, confidence=0.99, runs=runs,
    )  # fmt: skip
    assert found.violated == caught


@pytest.mark.sweep
@pytest.mark.parametrize("which", ["penalty", "sgld"])
def test_a_record_that_is_not_clipped_is_caught(which, monkeypatch):
    def add(terms, bound, total):
        total += np.trunc(terms / bound * RESOLUTION).reshape(len(terms), -1).sum(0).astype(int)

    monkeypatch.setattr("pymc_dp.privacy.clipping.add_clipped", add)
    assert audited(which, runs=300).violated


@pytest.mark.sweep
def test_a_sample_that_is_not_one_is_caught(monkeypatch):
    """The claim counts on sampling, and every unit is always in it."""
    monkeypatch.setattr(
        "pymc_dp.privacy.noisy_sum.poisson_sample", lambda units, rate, words: np.arange(units)
    )
    assert audited("sgld, sampled", runs=600, sampling_rate=0.05, epsilon=1.0, delta=1e-3).violated


@pytest.mark.sweep
def test_a_surrogate_without_its_noise_is_caught(monkeypatch):
    """Only some of the releases lack noise: the histograms and the chain have theirs."""

    class Silent(SecureNoise):
        def discrete_gaussian(self, scale, size, at=()):
            return np.zeros(size, dtype=np.int64)

        def l2(self, scale, dimension, at=()):
            return np.zeros(dimension, dtype=np.int64)

    def quiet(honest):
        """The privacy filter's sums without noise, whose multipliers say that they have it."""

        def quiet_sum(self, *args):
            curator = self._curator
            self._curator = Curator(curator._records, Silent())
            try:
                return honest(self, *args)
            finally:
                self._curator = curator

        return quiet_sum

    for sums in ("sum", "last_sum"):
        monkeypatch.setattr(PaidMeasurements, sums, quiet(getattr(PaidMeasurements, sums)))
    first = {"statistic": lambda run: run.draws[0, 0]}
    assert audited("normal", runs=60, epsilon=1.0, confidence=0.99, **first).violated


# -- releases beside draws --------------------------------------------------------------------------


class Paid:
    """A budget for one release, whose public randomness is numbered."""

    def __init__(self, z, repetition):
        self.z, self.permit = z, Permit(0, repetition, (Gaussian(z),))
        self.guarantee, self.noise = SimpleNamespace(run_id=repetition), SecureNoise()

    def measure(self, people):
        return PaidMeasurements(Curator(people, self.noise), PrivacyFilter(self.permit, self.z))


def once(build):
    """The same, called once for every first argument: compiling is not what is audited."""
    kept = {}

    def built(first, *others, **keywords):
        if id(first) not in kept:
            kept[id(first)] = first, build(first, *others, **keywords)
        return kept[id(first)][1]

    return built


def trial(data):
    with pm.Model() as model:
        x, t = pm.Data("X", data["X"]), pm.Data("T", data["T"])
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Bernoulli("treated", 0.5, observed=t)
        mean = pm.Deterministic("mean", x * (b[0] * (1 - t) + b[1] * t))
        pm.Normal("y", mean, 1, observed=pm.Data("Y", data["Y"]))
    return dp.compile(model, **FAST)


def average(outcome):
    effect = dp.Average("mean", do={"T": 1}, minus={"T": 0}, outcome=outcome)
    return lambda idata, model, **budget: dp.average(idata, model, effect, **budget).table.iloc[0]


def squares(*given, **budget):
    found = dp.sandwich(*given, **budget)
    return np.r_[found.seen, found.seen_sd, found.bound]


def checks(*given, **budget):
    above = {"above": (lambda of: (of["y"] > -3).mean(), (0, 1))}
    found = dp.check_predictions(*given, above, replicates=2, **budget)
    return np.r_[found.observed, found.replicated[0]]


# The release, how many people, and the record in either data set: of squares, two at right angles.
BESIDE_DRAWS = {
    "averages": (average(None), 300, {"X": FAR}, {"X": -FAR}),
    "averages, doubly robust": (average("y"), 300, {"T": 1, "Y": FAR}, {"T": 1, "Y": -FAR}),
    "sandwich": (squares, 300, {"T": 0, "Y": FAR}, {"T": 1, "Y": FAR}),
    "checking": (checks, 40, {"T": 1, "X": FAR, "Y": FAR}, {"T": 1, "X": -FAR, "Y": -FAR}),
}
COMPILES = ("Quantities", "People", "LocalRecords", "as_variables", "theta_of", "Outcomes")


@pytest.mark.parametrize(("part", "caught"), [(1.0, False), (1 / 8, True)])
@pytest.mark.parametrize(
    "which",
    ["sandwich", *(pytest.param(w, marks=pytest.mark.sweep) for w in BESIDE_DRAWS if w != "sandwich")],
)  # fmt: skip
def test_what_is_released_beside_draws(which, part, caught, monkeypatch):
    """Both data sets get the same draws, which are public. With an eighth of the noise they are told apart."""
    release, n, one, other = BESIDE_DRAWS[which]
    rng, budget = np.random.default_rng(1), {"epsilon": 1.0, "delta": 0.01}
    x, t = 1 + 0.3 * rng.normal(size=n), np.arange(n) % 2
    people = {"X": x, "T": t, "Y": x * (1 + t) + rng.normal(size=n)}
    idata = dp.sample(
        50, model=trial(people), chains=1, epsilon=50.0, delta=0.01, step=dp.DPSurrogate, family="normal",
        cores=1, progressbar=False,
    )  # fmt: skip
    module = importlib.import_module(f"pymc_dp.assessment.{which.split(',')[0]}")
    for name in set(COMPILES) & set(vars(module)):
        monkeypatch.setattr(module, name, once(getattr(module, name)))
    honest, z = SecureNoise.discrete_gaussian, dp.calibrate_noise(**budget, releases=1)
    monkeypatch.setattr(
        SecureNoise,
        "discrete_gaussian",
        lambda self, s, size, at=(): honest(self, s * part, size, at),
    )
    model_of, number = once(trial), itertools.count()
    monkeypatch.setattr(module, "Payment", lambda *of, **settings: Paid(z, next(number)))
    found = dp.audit(
        lambda data, repetition: release(idata, model_of(data), **budget), replaced(people, one),
        canary=other, **budget, gaussian=True, runs=200, confidence=0.99 if caught else SURE,
    )  # fmt: skip
    assert found.violated == caught


# -- around the runs --------------------------------------------------------------------------------


def test_a_step_is_built_once_for_each_data_set(monkeypatch):
    built = []
    honest = dp.DPPenalty.__init__

    @functools.wraps(honest)
    def init(self, *args, **keywords):
        built.append(self)
        honest(self, *args, **keywords)

    monkeypatch.setattr(dp.DPPenalty, "__init__", init)
    audited("penalty", runs=20)
    assert len(built) == 2


def test_runs_repeat_nothing_but_public_randomness():
    """The public seed is the same, so the first proposal is; the noise differs."""
    seen = []

    def keep(run):
        seen.append(run)
        return run.stats["accept_rate"][0]

    audited("penalty", runs=20, statistic=keep, scale=0.05, draws=4, tune=2)
    assert all(isinstance(run, Run) for run in seen)
    assert {run.draws.shape for run in seen} == {(6, 1)}
    assert len({run.stats["scale"][0] for run in seen}) == 1
    assert len({tuple(run.stats["accept_rate"]) for run in seen}) == len(seen)
    moved = {run.draws[0, 0] for run in seen}
    assert len(moved) <= 2  # to the proposal, or nowhere


@pytest.mark.sweep
@pytest.mark.parametrize("always", [False, True])
def test_a_run_that_a_step_gives_up_is_an_output(always, monkeypatch):
    honest = dp.DPPenalty._iterate

    def leaky(self, theta, permit):
        if always or (
            self.compiled.likelihood(theta)[0] < 0 and self.model["Y"].get_value()[0] == FAR
        ):
            raise dp.PrivacyError("This step gave up.")
        return honest(self, theta, permit)

    monkeypatch.setattr(dp.DPPenalty, "_iterate", leaky)
    if always:
        with pytest.raises(dp.PrivacyError, match="Every run stopped: This step gave up"):
            audited("penalty", runs=20)
        return
    assert audited("penalty", runs=300).violated
    assert audited("penalty", runs=300, statistic=lambda run: len(run.stopped)).violated


def test_a_refusal_is_not_an_output(monkeypatch):
    def refuse(self, theta, permit):
        raise dp.PrivacyBudgetExceeded("no")

    monkeypatch.setattr(dp.DPPenalty, "_iterate", refuse)
    with pytest.raises(dp.PrivacyBudgetExceeded):
        audited("penalty", runs=20)


def test_a_model_keeps_its_data():
    y = records(30)
    model = waiting(y)
    found = dp.audit(
        model, canary={"Y": -FAR}, step=dp.DPPenalty, epsilon=1.0, delta=0.1, runs=20, **FAST
    )
    assert found.runs == 20
    np.testing.assert_array_equal(model["Y"].get_value(), y)
    assert "DPPenalty" in found.subject


def test_a_unit_of_several_records_may_be_replaced():
    y, person = records(30), np.repeat(np.arange(10), 3)
    found = dp.audit(
        waiting, y, canary=np.full(3, -FAR), record=[0, 1, 2], unit=person, step=dp.DPPenalty,
        epsilon=1.0, delta=0.1, runs=20, **FAST,
    )  # fmt: skip
    assert not found.violated


@pytest.mark.sweep
def test_the_log_stays_quiet(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        audited("normal", runs=20)
    assert not caplog.records
    assert not logging.getLogger("pymc.dp").disabled


def test_the_report_says_what_was_found():
    found = audited_sum(
        dp.calibrate_noise(epsilon=2.0, delta=0.05, releases=1), 2.0, 0.05, runs=100
    )
    for text in (str(found), repr(found), found._repr_html_()):
        for word in ("noisy_total", "100 on each", "0.9999", "not refuted", "proves nothing"):
            assert word in text
    broken = audited_sum(0.01, 2.0, 0.05, runs=400)
    assert broken.violated
    assert "VIOLATED" in str(broken)
    assert broken.epsilon_lower == max(broken.bound.epsilon, broken.gaussian_bound.epsilon)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"ledger": dp.PrivacyLedger(epsilon=1.0, delta=0.1)}, "`ledger`.*synthetic"),
        ({"noise_source": dp.InsecureSeededNoise(1)}, "`noise_source`.*secure"),
        ({"chains": 2}, "`chains`"),
        ({"model": None}, "`model`"),
        ({"runs": 5}, "`runs`"),
        ({"confidence": 1.0}, "`confidence`"),
        ({"canary": None}, "`neighbour` or"),
        ({"neighbour": records(30)}, "`neighbour` or"),
        ({"canary": [1.0, 2.0]}, "`canary` replaces"),
        ({"canary": "far"}, "`canary` replaces"),
        ({"canary": FAR}, "differ in 0 units"),
        ({"canary": None, "neighbour": records(30, spread=1.0)}, "differ in 29 units"),
        ({"canary": None, "neighbour": records(31)}, "different numbers of records"),
        ({"step": None}, "needs `step`"),
        ({"step": "penalty"}, "`step` is a class"),
    ],
)
def test_refusals(changed, match):
    keywords = {"step": dp.DPPenalty, "canary": -FAR, "epsilon": 1.0, "delta": 0.1, **FAST}
    with pytest.raises(dp.PrivacyConfigurationError, match=match):
        dp.audit(waiting, records(30), **{**keywords, **changed})


def test_refusals_of_mechanisms():
    zeros, claim = np.zeros(5), {"epsilon": 1.0, "delta": 0.1}
    with pytest.raises(dp.PrivacyConfigurationError, match="`epsilon` and `delta`"):
        dp.audit(lambda d, k: 0.0, zeros, canary=1.0, epsilon=1.0)
    with pytest.raises(dp.PrivacyConfigurationError, match="different lengths"):
        dp.audit(lambda d, k: np.zeros(k % 2 + 1), zeros, canary=1.0, **claim)
    for wrong in ({"choose": 1.5}, {"confidence": 0.0}, {"delta": -0.1}):
        with pytest.raises(dp.PrivacyConfigurationError):
            lower_bound(zeros, zeros, **{"delta": 0.1, **wrong})
    with pytest.raises(dp.PrivacyConfigurationError, match="finite"):
        lower_bound(zeros, np.full(5, np.nan), delta=0.1)


def test_a_canary_replaces_one_row_of_a_copy():
    data = {"X": np.zeros((4, 2)), "Y": np.zeros(4, dtype=np.int64)}
    new = replaced(data, {"X": [1.0, 2.0], "Y": 1}, 3)
    assert new["X"][3].tolist() == [1, 2]
    assert new["Y"].dtype == np.int64
    assert data["X"].sum() == data["Y"].sum() == 0
    for wrong in ({"Z": 1}, {"Y": 0.5}, 1.0):
        with pytest.raises(dp.PrivacyConfigurationError, match="`canary`"):
            replaced(data, wrong, 3)
