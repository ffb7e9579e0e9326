"""A whole posterior at δ = 0: one pure ε, spent in parts, and nothing Gaussian anywhere."""

import io
import json
import logging
import math
import re
from contextlib import redirect_stdout
from fractions import Fraction
from itertools import product

import numpy as np
import pymc as pm
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pymc_dp as dp
from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.exceptions import PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.federated import Owner
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian, L2Mechanism, Laplace, Pure
from pymc_dp.privacy.filter import PureFilter
from pymc_dp.privacy.histogram import counts_of, pure_noisy_counts
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import SecureNoise
from pymc_dp.privacy.noisy_sum import l2_noisy_total
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PureMeasurements, measurements_paid_by
from pymc_dp.records.queries import Information, Score
from pymc_dp.records.sums import LocalRecords
from pymc_dp.report.wording import how_to_check, in_plain_words
from pymc_dp.surrogate.normal.fit import fit_normal

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
RELATIONS = (SUBSTITUTE_ONE, ADD_OR_REMOVE)
QUIET = {"cores": 1, "progressbar": False}


def logistic(n=5000, d=2, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ np.linspace(-0.5, 1.0, d)))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        X, Y = pm.Data("X", x, dims=("unit", None)), pm.Data("Y", y.astype(int), dims="unit")
        pm.Bernoulli("y", logit_p=X @ beta, observed=Y, dims="unit")
    return model


def surrogate(model, epsilon=3.0, **settings):
    settings = {"draws": 50, "chains": 1, "delta": 0, "model": model, **FAST, **settings}
    return dp.DPSurrogate(epsilon=epsilon, **settings)


def measured(records, epsilon, noise, relation=SUBSTITUTE_ONE):
    whole = Pure(epsilon)
    return measurements_paid_by(Permit(0, 0, (whole,)), whole, Curator(records, noise, relation))


# -- the whole run ---------------------------------------------------------------------------------------


@pytest.fixture
def paid(monkeypatch):
    """Every part that is paid for, as the exact ε of it, while no Gaussian noise can be drawn."""
    parts, honest = [], PureFilter.permit

    def permit(self, share):
        z, permit = honest(self, share)
        parts.extend(permit.events)
        return z, permit

    def gaussian(self, scale, size, at=()):
        raise AssertionError("Gaussian noise at δ = 0")

    monkeypatch.setattr(PureFilter, "permit", permit)
    monkeypatch.setattr(SecureNoise, "discrete_gaussian", gaussian)
    return parts


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.name)
def test_a_posterior_is_returned_and_its_epsilon_is_charged_once(relation, paid):
    ledger = dp.PrivacyLedger(epsilon=3.0, delta=0, neighbours=relation.name)
    result = dp.sample(
        500, chains=2, model=logistic(), epsilon=3.0, delta=0, neighbours=relation.name, ledger=ledger,
        random_seed=1, **QUIET, **FAST,
    )  # fmt: skip
    attrs = root_attrs(result)
    assert (attrs["privacy_epsilon"], attrs["privacy_delta"]) == (3.0, 0.0)
    assert json.loads(attrs["privacy_events"]) == [{"kind": "pure", "epsilon": 3.0, "count": 1}]
    assert attrs["privacy_epsilon_substitute_one"] == 3.0 * (2 / relation.terms)
    assert attrs["privacy_valid"] == attrs["privacy_usable"] == 1
    assert "3-differentially private (pure: δ = 0)" in attrs["privacy_statement"]
    assert "gaussian" not in str(attrs).lower()
    assert ledger.events() == (Pure(3.0),)
    assert (ledger.spent(), ledger.remaining()) == (3.0, 0.0)
    assert all(isinstance(event, Pure) for event in paid)
    total = sum(Fraction(event.epsilon) * event.count for event in paid)
    assert 2.99 < total <= 3
    assert np.isfinite(groups_of(result)["posterior"]["beta"].values).all()
    assert set(groups_of(result)["sample_stats"]["delta"].values.ravel()) == {0.0}


def test_with_next_to_no_noise_it_is_the_exact_posterior(paid):
    model = logistic()
    step = surrogate(model, epsilon=3000.0)
    found = step.release().posterior
    x, y = model["X"].get_value(), model["Y"].get_value()
    theta = np.zeros(2)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ theta))
        P = (x * (p * (1 - p))[:, None]).T @ x + np.eye(2)
        theta = theta + np.linalg.solve(P, x.T @ (y - p) - theta)
    sds = np.sqrt(np.diag(np.linalg.inv(P)))
    np.testing.assert_allclose(found.mean, theta, atol=0.1 * sds.min())
    np.testing.assert_allclose(np.sqrt(np.diag(found.covariance)), sds, rtol=0.05)


def test_noise_is_as_large_as_a_run_says():
    """Of a number whose posterior is known."""
    y = np.random.default_rng(5).normal(1.0, 1.0, size=3000)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 10), 1, observed=pm.Data("Y", y))
    records = LocalRecords(dp.compile(model, **FAST), 1, words=np.arange(4, dtype=np.uint64))
    prior, errors = PublicLogDensity(ParameterSpace(model), FAST["compile_kwargs"]), []
    for seed in range(60):
        found = fit_normal(measured(records, 1.0, dp.InsecureSeededNoise(seed)), prior, np.zeros(1))
        r = found.posterior
        added = r.privacy_shifts * np.sqrt(np.diag(np.linalg.inv(r.exact)))
        errors.append((r.mean - y.mean()) / added)
    # Of 60 normal errors the root mean square is within .78 and 1.22 but for one time in 50.
    assert 0.7 < np.sqrt(np.mean(np.square(errors))) < 1.25


def test_public_designs_have_pure_runs_too(paid):
    """With many parameters, as no information is asked for."""
    step = surrogate(logistic(2000, 8), public=["X"])
    found = step.release().posterior
    total = sum(Fraction(event.epsilon) * event.count for event in paid)
    assert 2.99 < total <= 3
    assert np.isfinite(found.mean).all()
    assert step.diagnostics.usable


def test_accounts_add_up_to_the_last_bit():
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=0)
    model = dp.compile(logistic(), **FAST)
    for _ in range(3):
        dp.DPSurrogate(epsilon=1 / 3, draws=1, chains=1, model=model, ledger=ledger).prepare()
    # Three times the float below 1/3 is below 1, and so it is said.
    assert ledger.spent() == 1.0
    assert 0 < ledger.remaining() < 1e-15
    with pytest.raises(PrivacyBudgetExceeded, match="Nothing was released"):
        dp.DPSurrogate(epsilon=1e-6, draws=1, chains=1, model=model, ledger=ledger).prepare()


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.integers(1, 5)), min_size=1, max_size=6))
def test_pure_epsilons_are_added_exactly_and_rounded_up(events):
    kinds = [Pure, lambda e, n: Laplace(1 / e, n), lambda e, n: L2Mechanism(1 / e, 3, n)]
    releases = [kinds[k % 3](e, n) for k, (e, n) in enumerate(events)]
    exact = sum(
        (Fraction(r.epsilon) if isinstance(r, Pure) else 1 / Fraction(r.noise_multiplier)) * r.count
        for r in releases
    )
    found = composed_epsilon(releases, 0.0)
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 2**52))
    assert composed_epsilon([*releases, Gaussian(1e6)], 0.0) == math.inf


def test_what_an_interrupt_has_not_spent_is_given_back(monkeypatch, caplog):
    ledger = dp.PrivacyLedger(epsilon=5.0, delta=0)
    calls, honest = [], PureMeasurements.sum

    def interrupted(self, *of):
        calls.append(of)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return honest(self, *of)

    monkeypatch.setattr(PureMeasurements, "sum", interrupted)
    step = surrogate(logistic(), ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        step.release()
    (left,) = ledger.events()
    assert isinstance(left, Pure)
    assert 0 < ledger.spent() == left.epsilon < 1.5
    assert ledger.remaining() == pytest.approx(5.0 - left.epsilon)


def test_a_plan_and_a_report_say_so_in_words():
    step = surrogate(logistic(), epsilon=1.0)
    plan = str(dp.plan(step))
    assert "ε = 1, pure (δ = 0)" in plan
    assert "pure, ε = 1 each, divided up on the way" in plan
    assert "at most 2.719 times as likely as it would be" in " ".join(plan.split())
    result = dp.sample(
        20, chains=1, model=logistic(), epsilon=1.0, delta=0, random_seed=1, **QUIET, **FAST
    )
    report = dp.privacy_report(result)
    assert "without exception (δ = 0)" in " ".join(in_plain_words(report))
    assert "simple composition of pure ε" in str(report)
    assert SecureNoise.pure_name in str(report)
    assert '"Pure DP"' in report.to_registry()
    program, printed = how_to_check(report)[1], io.StringIO()
    with redirect_stdout(printed):
        exec(program, {})
    assert float(printed.getvalue()) == 1.0


def test_expected_shift_is_that_of_a_pure_run():
    """More noise where less is asked for, and about as much as a run's."""
    model, data = (
        dp.compile(logistic(), **FAST),
        {"X": np.random.default_rng(7).normal(size=(5000, 2))},
    )
    little, much = (
        dp.expected_privacy_shift(model, epsilon=e, delta=0, runs=3, data=data).privacy_shift
        for e in (3, 1)
    )
    assert 2 < much / little < 6
    step = surrogate(logistic(), epsilon=3.0)
    step.release()
    assert 0.4 < step.diagnostics.privacy_shift / little < 2.5


# -- refusals: before anything is spent -------------------------------------------------------------------

GAUSSIAN = {
    "penalty": lambda **run: dp.DPPenalty(**run),
    "hmc": lambda **run: dp.DPHMC(**run),
    "exponential": lambda **run: dp.DPExponentialFamily(**run),
    "barker": lambda **run: dp.DPBarker(**run),
    "sgld": lambda **run: dp.experimental.DPSGLD(step_size=1e-3, **run),
}


@pytest.mark.parametrize("name", GAUSSIAN)
@pytest.mark.parametrize("said", ["by the run", "by the ledger"])
def test_steps_of_gaussian_noise_refuse(name, said):
    account = dp.PrivacyLedger(epsilon=5.0, delta=0)
    given = {"delta": 0} if said == "by the run" else {"ledger": account}
    y = np.random.default_rng(0).normal(size=200)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=y)
    with pytest.raises(PrivacyConfigurationError, match=r"δ = 0: Gaussian noise.*Give `delta`"):
        GAUSSIAN[name](draws=5, chains=1, epsilon=1.0, model=model, **given, **FAST)
    assert account.events() == ()


def test_what_asks_the_data_beside_a_sampler_refuses():
    y = np.random.default_rng(0).normal(size=200)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=pm.Data("Y", y))
    draws = dp.sample(
        20, chains=1, model=model, epsilon=5.0, delta=1e-3, random_seed=1, **QUIET, **FAST
    )
    asks = [
        lambda: dp.compare({"a": (model, draws), "b": (model, draws)}, epsilon=1.0, delta=0),
        lambda: dp.average(draws, model, "y", epsilon=1.0, delta=0),
        lambda: dp.check_predictions(
            draws, model, {"mean": (np.mean, (-1, 1))}, epsilon=1.0, delta=0
        ),
        lambda: Owner(epsilon=1.0, delta=0, model=model, **FAST),
    ]
    for ask in asks:
        with pytest.raises(PrivacyConfigurationError, match="δ = 0"):
            ask()


def groups():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=40)
        pm.Normal("y", a[rng.integers(40, size=400)], 1, observed=rng.normal(size=400))
    return model


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        (logistic, {"family": "polynomial"}, 'no surrogate for `family="polynomial"`'),
        (groups, {"unit": 0}, "no surrogate for groups"),
        (lambda: logistic(200, 20), {}, "With 20 of them"),
    ],
    ids=["polynomial", "groups", "many parameters"],
)
def test_models_that_noise_would_drown_are_refused(model, settings, says):
    account = dp.PrivacyLedger(epsilon=5.0, delta=0)
    with pytest.raises(dp.UnsupportedModelError, match=says) as refused:
        surrogate(model(), ledger=account, **settings)
    assert "`delta`" in str(refused.value)
    assert account.events() == ()


def test_what_a_refusal_says_would_do_does():
    model = dp.compile(logistic(2000, 8), **FAST)
    with pytest.raises(dp.UnsupportedModelError, match="it takes ε = ") as refused:
        dp.DPSurrogate(draws=1, chains=1, epsilon=1.0, delta=0, model=model)
    enough = float(re.search("takes ε = ([0-9.]+),", str(refused.value)).group(1))
    assert 1 < enough < 10
    dp.DPSurrogate(draws=1, chains=1, epsilon=enough, delta=0, model=model)
    dp.DPSurrogate(draws=1, chains=1, epsilon=1.0, delta=1e-5, model=model)


def test_a_run_that_is_not_pure_does_not_fit_an_account_that_is():
    account = dp.PrivacyLedger(epsilon=5.0, delta=0)
    step = surrogate(logistic(), delta=1e-5, ledger=account)
    with pytest.raises(PrivacyBudgetExceeded, match="not of pure ε, and this account has δ = 0"):
        step.prepare()
    assert account.events() == ()


def test_a_pure_run_is_charged_to_an_account_of_both_kinds():
    account = dp.PrivacyLedger(epsilon=5.0, delta=1e-5)
    surrogate(logistic(), epsilon=1.0, ledger=account).prepare()
    assert account.events() == (Pure(1.0),)
    assert account.spent() == pytest.approx(1.0, abs=1e-3)


# -- its parts --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-4, 0.9), max_size=30), st.floats(0.01, 100))
def test_parts_add_up_to_the_whole_at_most(shares, epsilon):
    money, parts = PureFilter(Permit(0, 0, (Pure(epsilon),)), epsilon), []
    for share in shares:
        try:
            z, permit = money.permit(share)
        except PrivacyBudgetExceeded:
            continue
        assert permit.events == (Pure(1 / z),)
        parts += permit.events
    assert sum(Fraction(event.epsilon) for event in parts) <= Fraction(epsilon)
    (closed,) = money.close()
    assert closed.epsilon <= epsilon
    with pytest.raises(PrivacyBudgetExceeded):
        money.permit(1e-3)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.name)
def test_counts_change_by_the_sensitivity_at_most_and_masses_by_e_to_the_epsilon(relation):
    """Laplace noise on the lattice, by enumeration: a unit moves or leaves, and ε holds for what is released."""
    sizes, z, scales = np.array([0.3, 0.3, 5.0]), 2.5, []

    class Watched(SecureNoise):
        def discrete_laplace(self, scale, size, at=()):
            scales.append(scale)
            return np.zeros(size, np.int64)

    def released(data):
        return pure_noisy_counts(
            lambda: counts_of([data], 1), noise_multiplier=z, permit=Permit(0, 0, (Pure(1 / z),)),
            noise=Watched(), neighbours=relation,
        )  # fmt: skip

    other = sizes[:2] if relation is ADD_OR_REMOVE else np.array([0.3, 0.3, 70.0])
    one, two = released(sizes), released(other)
    apart = one - two
    assert np.abs(apart).sum() == relation.terms
    grid, most = np.arange(-12, 13), 0.0
    for changes in product(grid, repeat=int((apart != 0).sum())):
        logs = -np.abs(np.array([changes, np.array(changes) - apart[apart != 0]])) / scales[0]
        most = max(most, float(np.diff(logs.sum(axis=1))[0]), -float(np.diff(logs.sum(axis=1))[0]))
    assert most == pytest.approx(1 / z, rel=1e-12)
    assert most <= 1 / z * (1 + 1e-12)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("kept", ["matrix", "diagonal", "nothing"])
def test_sums_have_noise_of_their_sensitivity(relation, kept):
    model = dp.compile(logistic(300), compile_kwargs=FAST["compile_kwargs"])
    scales = []

    class Watched(SecureNoise):
        def l2(self, scale, size, at=()):
            scales.append((scale, size))
            return np.zeros(size, np.int64)

    records = LocalRecords(model, 1, words=np.arange(4, dtype=np.uint64))
    measure = measured(records, 2.0, Watched(), relation)
    theta = np.array([0.1, -0.2])
    of = Information(theta, np.eye(2), 1.0, kept=kept)
    length = {"matrix": 6, "diagonal": 5, "nothing": 3}[kept]
    _, sd = measure.sum(of, 0.5, 0.25)
    _, of_score = measure.sum(Score(theta, np.eye(2), 1.0), 0.5, 0.25)
    ratio = math.sqrt(relation.terms) * (1 + 2.0**-18 + 2.0**-48)
    assert of.dimension == length == scales[0][1]
    assert scales[0][0] == pytest.approx(ratio * RESOLUTION / 0.5, rel=1e-8)
    assert sd == pytest.approx(ratio * 0.5 / 0.5 * math.sqrt(length + 1), rel=1e-6)
    assert scales[1] == (pytest.approx(relation.terms * RESOLUTION / 0.5, rel=1e-8), 2)
    assert of_score == pytest.approx(relation.terms * math.sqrt(3), rel=1e-6)
    assert measure.noise_sd(0.5, 0.25, 2) == pytest.approx(of_score, rel=1e-6)
    assert measure.share(measure.multiplier(0.125, 7), 7) == pytest.approx(0.125)


@pytest.mark.parametrize("kept", ["matrix", "diagonal"])
def test_information_in_part_is_part_of_the_whole(kept):
    records = LocalRecords(
        dp.compile(logistic(300, 3), **FAST), 1, words=np.arange(4, dtype=np.uint64)
    )
    theta, V = np.array([0.1, -0.2, 0.3]), np.diag([1.0, 2.0, 0.5])
    whole, part = (
        np.concatenate(list(Information(theta, V, 0.4, kept=k).terms(records)))
        for k in ("matrix", kept)
    )
    i, j = np.tril_indices(3)
    columns = np.r_[0:6, 6 + (np.flatnonzero(i == j) if kept == "diagonal" else np.arange(6))]
    np.testing.assert_allclose(part, whole[:, columns], rtol=1e-12)
    # What the sensitivity of an acute sum rests on.
    assert (part @ part.T >= -1e-12).all()


class Scales(SecureNoise):
    """Keeps the scales that it is asked for, and adds nothing."""

    def __init__(self):
        self.asked = []

    def l2(self, scale, size, at=()):
        self.asked.append(scale)
        return np.zeros(size, np.int64)


def test_a_history_of_choices_has_no_more_than_epsilon():
    """Two releases, the second dearer if the first was large: outcomes on the lattice, by enumeration.

    In one dimension the noise of the ℓ2 mechanism is Laplace's, rounded: its masses are known.
    """
    epsilon, noise = 0.8, Scales()

    def log_mass(x, scale):
        if x == 0:
            return math.log(-math.expm1(-0.5 / scale))
        return math.log(math.sinh(0.5 / scale)) - abs(x) / scale

    def log_probability(total, outcomes):
        money, log = PureFilter(Permit(0, 0, (Pure(epsilon),)), epsilon), 0.0
        for k, outcome in enumerate(outcomes):
            z, permit = money.permit(0.4 if k == 0 else (0.6 if outcomes[0] > 0 else 0.1))
            l2_noisy_total(
                [np.array([total])],
                bound=1.0,
                noise_multiplier=z,
                permit=permit,
                noise=noise,
                pure=True,
            )
            log += log_mass(outcome - total, noise.asked[-1])
        return log

    # Of one unit whose term is 1, or -1.
    places = [
        -3 * RESOLUTION,
        -RESOLUTION - 1,
        -RESOLUTION,
        0,
        1,
        RESOLUTION,
        RESOLUTION + 1,
        2**28,
    ]
    worst = max(
        abs(log_probability(RESOLUTION, pair) - log_probability(-RESOLUTION, pair))
        for pair in product(places, places)
    )
    assert 0.79 < worst <= epsilon


def test_the_noise_of_a_lost_search_is_no_secret(caplog):
    """With hardly any budget the run returns, says that it is of no use, and the account is right."""
    relation = ADD_OR_REMOVE.name  # so that it is not known that the records are too few
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=0, neighbours=relation)
    step = surrogate(logistic(200), epsilon=0.01, ledger=ledger, neighbours=relation)
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        step.release()
    assert step.guarantee.diagnostics["usable"] == 0
    assert 0 < ledger.spent() <= 0.01
