"""Owners who do not trust each other: what they answer, what it costs them, and what it adds up to."""

import json
import logging
import math
import pickle
import sqlite3
from functools import cache

import numpy as np
import pymc as pm
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import minimize
from scipy.stats import chi2

import pymc_dp as dp
from pymc_dp.diagnostics import Diagnostics
from pymc_dp.experimental import FederatedPenalty
from pymc_dp.federated import Owner, Surrogate, find_surrogate
from pymc_dp.federated.agreement import parameters_digest
from pymc_dp.federated.owners import Owners
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.histogram import bin_counts
from pymc_dp.records.queries import Gradient, Information, Score
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.normal.diagnosis import diagnose
from pymc_dp.surrogate.normal.law import Law, posterior_of
from pymc_dp.surrogate.normal.model import NormalSurrogate

D = 2
KINDS = ("gradient_sizes", "information_sizes", "score", "information", "ratio")
FAST = {"mode": "FAST_COMPILE"}
THETA, W = np.array([0.3, -0.5]), np.array([[0.2, 0.05], [0.0, 0.3]])
AT = {"theta": THETA, "W": W, "share": np.array(0.1)}
REQUESTS = {
    "gradient_sizes": AT | {"bins_per_octave": np.array(1.0)},
    "information_sizes": AT | {"bins_per_octave": np.array(2.0), "score_bound": np.array(0.2)},
    "score": AT | {"bound": np.array(0.1)},
    "information": AT | {"bound": np.array(0.01), "score_bound": np.array(0.2)},
    "ratio": {"theta": THETA, "proposal": THETA + 0.1, "bound": np.array(0.08)},
}
SENTINEL = 271828.182845904509


class NoNoise(dp.InsecureSeededNoise):
    """To see what noise would be added to."""

    def discrete_gaussian(self, scale, size, at=()):
        return np.zeros(size, dtype=np.int64)


def prior():
    with pm.Model() as model:
        pm.Normal("beta", 0, 2, shape=D)
    return model


def records(k, n=150):
    rng = np.random.default_rng(k)
    x = rng.normal(size=(n, D))
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ [0.8, -0.6]))).astype(np.int64)


def model_of(x, y):
    model = prior()
    with model:
        pm.Bernoulli("ill", logit_p=pm.Data("X", x) @ model["beta"], observed=pm.Data("Y", y))
    return model


@cache
def compiled(x, y):
    """The model of records given as bytes, compiled once; not to be changed."""
    x = np.frombuffer(x).reshape(-1, D)
    return dp.compile(model_of(x, np.frombuffer(y, np.int64)), compile_kwargs=FAST)


def owner_of(x, y, **keywords):
    settings = {"epsilon": 2.0, "ratios": 3} | keywords
    return Owner(model=compiled(x.tobytes(), np.asarray(y, np.int64).tobytes()), **settings)


def used(owner):
    """Iterations counted in the ledger's file, by kind of request."""
    with sqlite3.connect(owner.ledger.path) as db:
        rows = db.execute("SELECT run, used FROM slots").fetchall()
    return {run.split("-", 1)[1]: count for run, count in rows}


def asking(owners):
    return lambda kind, request: [owner.answer(kind, request) for owner in owners]


# -- what an answer is ------------------------------------------------------------------------------


def exact_answers(x, y):
    """By NumPy, from the definitions."""
    p = 1 / (1 + np.exp(-x @ THETA))
    g = ((y - p)[:, None] * x) @ W

    def clipped(v, bound):
        return v * np.minimum(1, bound / np.linalg.norm(v, axis=1))[:, None]

    # At the outcomes 1 and 0, of which the model says how probable they are.
    ones, zeros = ((1 - p)[:, None] * x) @ W, (-p[:, None] * x) @ W

    def expected(of):
        return np.einsum("n,n...->n...", p, of(ones)) + np.einsum("n,n...->n...", 1 - p, of(zeros))

    def packed(bound):
        M = expected(lambda z: np.einsum("ni,nj->nij", clipped(z, bound), z))
        return np.stack([M[:, 0, 0], math.sqrt(2) * M[:, 1, 0], M[:, 1, 1]], axis=1)

    scores = clipped(g, 0.1) - expected(lambda z: clipped(z, 0.1))
    information = np.concatenate([packed(np.inf), packed(0.2)], axis=1)
    sizes = [np.linalg.norm(v, axis=1) for v in (g, information)]
    # Some are clipped, and some are not.
    assert 10 < np.sum(sizes[0] > 0.1) < len(x) - 10
    assert 10 < np.sum(sizes[1] > 0.01) < len(x) - 5

    def log_likelihood(theta):
        return y * (x @ theta) - np.logaddexp(0, x @ theta)

    ratios = log_likelihood(THETA + 0.1) - log_likelihood(THETA)
    return {
        "gradient_sizes": bin_counts(sizes[0], 1),
        "information_sizes": bin_counts(sizes[1], 2),
        "score": clipped(scores, 0.1).sum(axis=0),
        "information": clipped(information, 0.01).sum(axis=0),
        "ratio": np.clip(ratios, -0.08, 0.08).sum(),
    }


def test_answers_without_noise_are_the_clipped_sums():
    x, y = records(0)
    owner, exact = owner_of(x, y, noise_source=NoNoise(0)), exact_answers(x, y)
    for kind, request in REQUESTS.items():
        answer = owner.answer(kind, request)
        assert set(answer) == {kind}
        np.testing.assert_allclose(answer[kind], exact[kind], atol=len(x) / RESOLUTION)


def test_noise_is_what_the_offer_says():
    """Of the secure source, through some hundred answers of each kind of sum."""
    x, y = records(1, n=40)
    owner = owner_of(x, y, epsilon=30.0, ratios=200)
    offer, exact = owner.answer("offer", {}), exact_answers(x, y)
    root = math.sqrt(2)  # replacing a unit moves two counts, or an acute sum at a right angle
    sensitivity = {
        "gradient_sizes": root, "information_sizes": root, "score": 0.2, "information": root * 0.01, "ratio": 0.16,
    }  # fmt: skip
    for kind, request in REQUESTS.items():
        share = 0.0012
        z = offer["ratio"][1] if kind == "ratio" else offer["surrogate"][1] / math.sqrt(share)
        if kind != "ratio":
            request = request | {"share": np.array(share)}
        r = np.concatenate(
            [np.ravel(owner.answer(kind, request)[kind] - exact[kind]) for _ in range(120)]
        ) / (z * sensitivity[kind])
        low, high = chi2.ppf([1e-6, 1 - 1e-6], len(r))
        assert low < np.sum(r**2) < high, kind
        assert abs(r.mean()) < 5 / math.sqrt(len(r)), kind


def test_neighbours_differ_by_the_sensitivity_at_most():
    x, y = records(2)
    x[7], y[7] = 1e-3, 1
    x2, y2, moved = x.copy(), y.copy(), {}
    x2[7], y2[7] = (
        [4.0, -6.0],
        0,
    )  # score, information and ratio are clipped, and the ratio is positive
    one, other = (
        owner_of(*data, noise_source=dp.InsecureSeededNoise(4)) for data in ((x, y), (x2, y2))
    )
    for kind, request in REQUESTS.items():
        answers = one.answer(kind, request), other.answer(kind, request)
        moved[kind] = np.linalg.norm(answers[0][kind] - answers[1][kind])
    tiny = 1e-9
    assert moved["gradient_sizes"] == pytest.approx(math.sqrt(2), abs=tiny)
    assert moved["information_sizes"] == pytest.approx(math.sqrt(2), abs=tiny)
    assert 0.09 < moved["score"] <= 2 * 0.1 + tiny
    assert 0.009 < moved["information"] <= math.sqrt(2) * 0.01 + tiny
    assert 0.07 < moved["ratio"] <= 2 * 0.08 + tiny


# -- what it costs ----------------------------------------------------------------------------------


def exhaust(owner):
    """Ask for all that is left, in parts of many sizes, and then for more."""
    shares = [0.001, 0.25, 0.45]
    kinds = [kind for kind in KINDS if kind != "ratio"]
    for kind, share in zip(kinds, [*shares, 1 - sum(shares)], strict=True):
        owner.answer(kind, REQUESTS[kind] | {"share": np.array(share)})
    for kind in kinds:
        with pytest.raises(dp.PrivacyBudgetExceeded):
            owner.answer(kind, REQUESTS[kind] | {"share": np.array(1e-6)})
    for _ in range(int(owner.answer("offer", {})["ratio"][0])):
        owner.answer("ratio", REQUESTS["ratio"])
    with pytest.raises(dp.PrivacyBudgetExceeded, match="has given them"):
        owner.answer("ratio", REQUESTS["ratio"])
    assert owner.answer("offer", {})["surrogate"][0] == pytest.approx(0.0, abs=1e-8)


def test_shares_add_up_to_the_owners_release():
    """Whatever the parts: the multipliers that were used compose to that of the plan, by their own formula."""
    used_z = []

    class Watched(dp.InsecureSeededNoise):
        def discrete_gaussian(self, scale, size, at=()):
            used_z.append(scale)
            return super().discrete_gaussian(scale, size, at)

    owner = owner_of(*records(0), noise_source=Watched(0), ratios=0)
    z = owner.answer("offer", {})["surrogate"][1]
    for kind, share in {"score": 0.3, "information": 0.7}.items():
        owner.answer(kind, REQUESTS[kind] | {"share": np.array(share)})
    # A score that is replaced moves by two bounds, information by the root of two.
    moves = 2, math.sqrt(2)
    mu2 = sum((k * RESOLUTION / scale) ** 2 for k, scale in zip(moves, used_z, strict=True))
    assert 1 - 1e-5 < mu2 * z**2 <= 1


@pytest.mark.sweep
def test_each_owners_guarantee_from_its_own_ledger(tmp_path):
    """All that was ever counted in the file, composed by dp-accounting and by the closed form."""
    budgets = [(0.5, 1e-6), (2.0, 1e-5), (8.0, 1e-4)]
    for k, (epsilon, delta) in enumerate(budgets):
        ledger = dp.PrivacyLedger(tmp_path / f"{k}.ledger", epsilon=epsilon, delta=delta)
        owner = owner_of(*records(k), epsilon=epsilon, ledger=ledger, ratio_share=0.1 + 0.4 * k)
        assert f"({epsilon:g}, {delta:.3g})-differentially" in owner.statement
        exhaust(owner)
        counts = used(owner)
        mu2, accountant = 0.0, PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        for run in dp.PrivacyLedger(tmp_path / f"{k}.ledger").runs():
            count = counts[run.run.split("-", 1)[1]]
            assert count == run.iterations
            for event in run.events:
                event = dp_event.GaussianDpEvent(event.noise_multiplier)
                accountant.compose(dp_event.SelfComposedDpEvent(event, count))
                mu2 += count / event.noise_multiplier**2
        assert counts == {"surrogate": 1, "ratio": 3}
        assert 0.99 * epsilon < accountant.get_epsilon(delta) < 1.001 * epsilon
        assert 1 / math.sqrt(mu2) == pytest.approx(
            dp.calibrate_noise(epsilon=epsilon, delta=delta, releases=1), rel=1e-6
        )
        assert owner.ledger.spent() <= epsilon


def test_a_plan_that_does_not_fit_is_refused():
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-5)
    owner_of(*records(0), epsilon=0.6, ledger=ledger)
    spent = ledger.spent()
    with pytest.raises(dp.PrivacyBudgetExceeded):
        owner_of(*records(0), epsilon=0.9, ledger=ledger)
    assert ledger.spent() == spent
    with pytest.raises(dp.PrivacyConfigurationError, match="ledger"):
        owner_of(*records(0), ledger=ledger, noise_source=dp.InsecureSeededNoise(0))


def broken(kind):
    """Requests of that kind with one thing wrong."""
    good = REQUESTS[kind]
    for name, value in good.items():
        yield {k: v for k, v in good.items() if k != name}
        nan, inf = value.copy(), value.copy()
        nan[...], inf[...] = np.nan, np.inf
        for bad in (nan, inf, value.astype(np.float32), value.astype(object), value[None], value.tolist(),
                    "text", None, b"code"):  # fmt: skip
            yield good | {name: bad}
    for name, wrong in {
        "share": (0.0, -0.1, 1e-7, 1.1),
        "bins_per_octave": (0.0, 1.5, 9.0, -1.0),
    }.items():
        if name in good:
            yield from (good | {name: np.array(value)} for value in wrong)
    yield good | {"noise_multiplier": np.array(0.0)}
    yield good | {"more": np.zeros(3)}
    yield {}
    for name in {"bound", "score_bound"} & set(good):
        for factor in (0.0, -1.0, 1e-250, 1e250):
            yield good | {name: good[name] * factor}


def test_what_is_not_a_request_is_refused_before_anything_is_charged(tmp_path, monkeypatch):
    owner = owner_of(*records(0), journal=tmp_path / "log")

    def touched(*args):
        pytest.fail("data were read")

    monkeypatch.setattr(LocalRecords, "total", touched)
    monkeypatch.setattr(LocalRecords, "counts", touched)
    tried = 0
    for kind in KINDS:
        for request in broken(kind):
            with pytest.raises(dp.PrivacyConfigurationError):
                owner.answer(kind, request)
            tried += 1
    for kind in ("", "Gradient", "sizes", "noise", "__class__", "surrogate"):
        with pytest.raises(dp.PrivacyConfigurationError, match="nothing else"):
            owner.answer(kind, REQUESTS["score"])
    assert tried > 150
    assert set(used(owner).values()) == {0}
    assert not (tmp_path / "log").exists()


def test_no_code_of_a_request_sees_data():
    """Arrays of a class of one's own: what is computed with them would be handed to it."""
    seen = []

    class Spy(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
            seen.extend(np.shape(x) for x in inputs)
            plain = getattr(ufunc, method)(*map(np.asarray, inputs), **keywords)
            return np.asarray(plain).view(Spy)

    owner = owner_of(*records(0))
    for kind, request in REQUESTS.items():
        owner.answer(kind, {name: value.view(Spy) for name, value in request.items()})
    assert {shape for shape in seen if shape} <= {(D,), (D, D)}


def test_kinds_that_were_not_agreed_to_are_refused():
    with pytest.raises(dp.PrivacyConfigurationError, match="nothing else"):
        owner_of(*records(0), ratios=0).answer("ratio", REQUESTS["ratio"])
    with pytest.raises(dp.PrivacyConfigurationError, match="nothing else"):
        owner_of(*records(0), ratio_share=1.0).answer("score", REQUESTS["score"])


@pytest.mark.parametrize("kind", KINDS)
def test_charged_before_data_are_read_and_errors_quote_nothing(kind, tmp_path, monkeypatch):
    owner = owner_of(*records(0), journal=tmp_path / "log")

    of = "ratio" if kind == "ratio" else "surrogate"

    def fails(*args):
        assert used(owner)[of] == 1
        raise ValueError(SENTINEL)

    monkeypatch.setattr(LocalRecords, "total", fails)
    monkeypatch.setattr(LocalRecords, "counts", fails)
    with pytest.raises(dp.PrivacyError) as failure:
        owner.answer(kind, REQUESTS[kind])
    shown = f"{failure.value}{failure.value.__cause__}{failure.value.__suppress_context__}"
    assert shown == "The answer could not be computed. It stays charged.NoneTrue"
    assert used(owner) == {"surrogate": 0, "ratio": 0} | {of: 1}
    assert owner.answer("offer", {})[of][0] == (2 if of == "ratio" else pytest.approx(0.9))
    assert not (tmp_path / "log").exists()


def test_no_data_are_read_when_the_ledger_will_not_count(monkeypatch):
    owner = owner_of(*records(0))

    def touched(*args):
        pytest.fail("data were read")

    def refuse(*args):
        raise dp.PrivacyBudgetExceeded("no")

    monkeypatch.setattr(LocalRecords, "total", touched)
    monkeypatch.setattr(owner.ledger, "charge", refuse)
    for kind in ("ratio", "score"):
        with pytest.raises(dp.PrivacyBudgetExceeded, match="no"):
            owner.answer(kind, REQUESTS[kind])


def test_a_copy_cannot_answer_again(monkeypatch):
    """As in a forked process: what one has counted, the other cannot use."""
    owner = owner_of(*records(0))
    owner.answer("ratio", REQUESTS["ratio"])
    owner._given["ratio"] = 0
    with pytest.raises(dp.PrivacyBudgetExceeded):
        owner.answer("ratio", REQUESTS["ratio"])
    owner.answer("score", REQUESTS["score"])
    monkeypatch.setattr("pymc_dp.privacy.filter.os.getpid", lambda: -1)
    with pytest.raises(dp.PrivacyBudgetExceeded, match="only be spent in the process"):
        owner.answer("score", REQUESTS["score"])
    with pytest.raises(TypeError, match="private data"):
        pickle.dumps(owner)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ratios": -1},
        {"ratios": 2.5},
        {"ratio_share": 0.0},
        {"ledger": "owner.ledger"},
        {"chunk_size": 0},
        {"ratio_share": 1.5},
        {"epsilon": math.inf},
        {"epsilon": 0.0},
        {"delta": 0.0},
    ],
    ids=str,
)
def test_settings_out_of_range(wrong):
    with pytest.raises(dp.PrivacyConfigurationError):
        owner_of(*records(0), **wrong)


def test_a_source_that_calls_itself_secure_is_not_believed():
    class Confident(dp.InsecureSeededNoise):
        secure = True

    owner = owner_of(*records(0), noise_source=Confident(0))
    assert "NOT PRIVATE" in owner.statement
    with pytest.raises(dp.PrivacyConfigurationError, match="insecure noise"):
        owner_of(
            *records(0), noise_source=Confident(0), ledger=dp.PrivacyLedger(epsilon=9, delta=1e-5)
        )


def test_insecure_noise_promises_nothing():
    assert "NOT PRIVATE" in owner_of(*records(0), noise_source=dp.InsecureSeededNoise(0)).statement


# -- what leaves ------------------------------------------------------------------------------------


def numbers(thing):
    if isinstance(thing, dict):
        return np.concatenate([numbers(part) for part in thing.values()])
    return np.ravel(thing)


def test_the_journal_is_all_that_left_and_holds_no_exact_value(tmp_path):
    x, y = records(3)
    x[5] = SENTINEL / 1e5, -SENTINEL / 1e6
    owner = owner_of(x, y, journal=tmp_path / "log")
    twin = owner_of(x, y, noise_source=NoNoise(0))
    for kind, request in REQUESTS.items():
        answer, exact = owner.answer(kind, request), twin.answer(kind, request)
        line = json.loads((tmp_path / "log").read_text().splitlines()[-1])
        assert line["kind"] == kind
        for side, sent in {"request": request, "answer": answer}.items():
            assert line[side] == {name: value.tolist() for name, value in sent.items()}
        released, private = numbers(line["answer"]), numbers(exact)
        assert not np.isin(released, private).any()
        assert not np.isin(np.abs(released), np.abs([*x.ravel(), *x.sum(axis=0)])).any()
    assert len((tmp_path / "log").read_text().splitlines()) == len(REQUESTS)


def test_an_answer_that_cannot_be_written_down_is_not_given(tmp_path):
    owner = owner_of(*records(0), journal=tmp_path / "nowhere" / "log")
    with pytest.raises(FileNotFoundError):
        owner.answer("ratio", REQUESTS["ratio"])
    assert used(owner)["ratio"] == 1


# -- what it adds up to -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three():
    data = [records(k, n=1000) for k in range(3)]
    owners = [
        owner_of(*some, epsilon=1e4, ratios=0, noise_source=dp.InsecureSeededNoise(k))
        for k, some in enumerate(data)
    ]
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    return owners, x, y, find_surrogate(asking(owners), prior())


def pooled(x, y):
    """Mode and covariance of the posterior of all records."""
    mode = minimize(
        lambda b: np.sum(np.logaddexp(0, x @ b) - y * (x @ b)) + b @ b / 8, np.zeros(x.shape[1])
    ).x
    p = 1 / (1 + np.exp(-x @ mode))
    return mode, np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x + np.eye(x.shape[1]) / 4)


@pytest.mark.sweep
def test_surrogate_is_the_pooled_posterior_at_a_large_epsilon(three):
    _, x, y, found = three
    mode, covariance = pooled(x, y)
    sds = np.sqrt(np.diag(covariance))
    assert found.diagnostics.privacy_shift < 0.02
    # Its own noise, and what a second-order model leaves out.
    np.testing.assert_allclose(
        (found.center - mode) / sds, 0, atol=4 * found.diagnostics.privacy_shift + 0.02
    )
    np.testing.assert_allclose(
        found.root @ found.root.T / np.outer(sds, sds), covariance / np.outer(sds, sds), atol=0.03
    )
    assert found.diagnostics.usable
    assert not found.diagnostics.prior_dominated
    p = 1 / (1 + np.exp(-x @ found.center))
    steps = np.linalg.norm(((y - p)[:, None] * x) @ found.root, axis=1)
    assert np.mean(steps <= found.clip) > 0.99
    assert found.clip < 3 * steps.max()


@pytest.mark.chain
def test_surrogate_samples_like_the_pooled_model(three, quiet):
    _, x, y, found = three
    mode, covariance = pooled(x, y)
    idata = pm.sample(
        1000, tune=500, chains=1, model=found.model(prior()), random_seed=3, compile_kwargs=FAST, **quiet
    )  # fmt: skip
    draws = idata["posterior"]["beta"].values[0]
    batches = draws.reshape(20, 50, D).mean(axis=1)
    mcse = batches.std(axis=0, ddof=1) / math.sqrt(20)
    np.testing.assert_array_less(
        np.abs(draws.mean(axis=0) - mode),
        4.5 * mcse + (2 * found.diagnostics.privacy_shift + 0.02) * covariance.diagonal() ** 0.5,
    )


def test_surrogate_of_another_model_is_refused(three):
    with pm.Model() as other:
        pm.Normal("beta", 0, 2, shape=D + 1)
    with pytest.raises(dp.PrivacyError, match="does not have the parameters"):
        three[3].model(other)
    with pytest.raises(dp.PrivacyError, match="does not have the parameters"):
        find_surrogate(asking(three[0]), other)
    with pytest.raises(dp.PrivacyError, match="or no more"):  # they have spent all
        find_surrogate(asking(three[0]), prior())


@pytest.mark.sweep
def test_surrogate_with_noise_is_as_far_off_as_its_privacy_shift_says():
    """Four runs of three owners: z-scores of all centers, noise included, are standard normal."""
    data = [records(k, n=1000) for k in range(3)]
    mode, covariance = pooled(*(np.concatenate(parts) for parts in zip(*data, strict=True)))
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T
    squares, shifts = [], []
    for seed in range(4):
        owners = [
            owner_of(*some, epsilon=4.0, ratios=0, noise_source=dp.InsecureSeededNoise(100 * seed + k))
            for k, some in enumerate(data)
        ]  # fmt: skip
        found = find_surrogate(asking(owners), prior())
        squares.append(
            np.sum((root @ (found.center - mode) / found.diagnostics.privacy_shift) ** 2)
        )
        shifts.append(found.diagnostics.privacy_shift)
    assert 0.1 < np.mean(shifts) < 1
    # The noise in the curvature matters where the gradient is not 0: about a tenth more.
    assert chi2.ppf(1e-4, 4 * D) < np.sum(squares) < 1.3 * chi2.ppf(1 - 1e-4, 4 * D)


def rare_records(k, share, n):
    rng = np.random.default_rng(20 + k)
    x = np.column_stack([rng.normal(size=n), rng.random(n) < share])
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ [0.6, 1.0]))).astype(np.int64)


@pytest.mark.sweep
@pytest.mark.parametrize("epsilon", [1000.0, 20.0, 4.0])
def test_a_rare_covariate_is_right_or_said_to_be_the_priors(epsilon, caplog):
    """Of 0.5 % of the records, whose gradients stand apart: such surrogates were 20 sds off, and did not say so."""
    data = [rare_records(k, 0.005, 6000) for k in range(3)]
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    assert 70 < x[:, 1].sum() < 110
    mode, _ = pooled(x, y)
    for seed in range(3):
        owners = [
            owner_of(*some, epsilon=epsilon, ratios=0, noise_source=dp.InsecureSeededNoise(9 * seed + k))
            for k, some in enumerate(data)
        ]  # fmt: skip
        with caplog.at_level(logging.WARNING, "pymc.dp"):
            found = find_surrogate(asking(owners), prior())
        z = (found.center - mode) / np.sqrt(np.diag(found.root @ found.root.T))
        assert abs(z[0]) < 3.5
        if found.diagnostics.usable and not found.diagnostics.prior_dominated:
            assert abs(z[1]) < 3.5
        else:
            assert "beta[1]" in caplog.text
        caplog.clear()


def falsified(owner, wrong):
    """Answers of this owner, with `wrong` done to them: ``(kind, share, answer) -> answer``."""

    def ask(kind, request):
        answer = dict(owner.answer(kind, request))
        if kind in answer:
            answer[kind] = wrong(kind, float(request.get("share", 0.0)), answer[kind])
        return [answer]

    return ask


def test_a_lost_search_says_so(caplog, monkeypatch):
    owner = owner_of(*records(0, n=1000), ratios=0)
    # Cut short while it is far away.
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "pymc.dp"):
        patched.setattr("pymc_dp.surrogate.normal.fit._SEARCH", 0.0)
        patched.setattr("pymc_dp.surrogate.normal.fit._ENDING", ())
        found = find_surrogate(asking([owner]), prior())
    assert not found.diagnostics.usable
    assert "did not arrive" in caplog.text
    with pytest.raises(dp.PrivacyError, match="or no more"):
        find_surrogate(asking([owner]), prior())


def test_equations_without_a_solution_give_the_prior(monkeypatch, caplog):
    def fails(*args):
        raise np.linalg.LinAlgError

    monkeypatch.setattr("pymc_dp.surrogate.normal.fit.pooled_gradient", fails)
    owner = owner_of(*records(0), ratios=0)
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        found = find_surrogate(asking([owner]), prior())
    assert not found.diagnostics.usable
    assert "did not arrive" in caplog.text
    assert owner.answer("offer", {})["surrogate"][0] > 0.5
    np.testing.assert_allclose(found.center, 0, atol=1e-9)
    np.testing.assert_allclose(found.root, 2 * np.eye(D), atol=1e-9)
    density, of_prior = (m.compile_logp(**FAST) for m in (found.model(prior()), prior()))
    for at in ([0.0, 0.0], [1.0, -2.0]):
        point = {"beta": np.array(at)}
        assert density(point) == pytest.approx(of_prior(point))
    with pytest.raises(dp.PrivacyConfigurationError, match="clip"):  # nothing to go by
        FederatedPenalty(asking([owner_of(*records(0))]), clip=found.clip, model=prior())


def test_an_answer_that_contradicts_the_others_is_no_use(caplog):
    """The last score lies: what is spent is spent, and the surrogate says what it is worth."""
    owner = owner_of(*records(0, n=1000), epsilon=1e3, ratios=0)

    def wrong(kind, share, answer):
        lies = kind == "score" and share > 0.2
        return answer + 100 * np.abs(answer).max() if lies else answer

    with caplog.at_level(logging.WARNING, "pymc.dp"):
        found = find_surrogate(falsified(owner, wrong), prior())
    assert not found.diagnostics.usable
    assert "found something else than the ones before had predicted" in caplog.text
    assert owner.answer("offer", {})["surrogate"][0] == pytest.approx(0.0, abs=1e-8)


def test_a_group_whose_information_was_clipped_is_not_passed_off_as_known():
    """Seen by its scores and not by its information: far from the prior, for no reason that was seen."""

    def judged(J):
        parameters = ParameterSpace(prior())
        law = Law(np.zeros(D), np.array([16.0, 200.0]), np.diag([J, 400.0]), np.diag([0.04, 4.0]))
        posterior = posterior_of(law, PublicLogDensity(parameters), parameters.start)
        surrogate = NormalSurrogate(
            posterior, np.eye(D), 1.0, 1.0, 1.0, np.zeros(D), np.zeros(D), 1, True
        )
        return diagnose(surrogate, parameters.labels, parameters.largest)

    known, lost = judged(20.0), judged(0.1)
    assert known.usable
    assert known.notes == ()
    assert not lost.usable
    assert "contradict each other about beta[0]: it is much further" in lost.notes[0].text


def test_the_likelihood_of_a_surrogate_is_its_law():
    """Of parameters with transforms and shapes, where PyMC samples them."""
    with pm.Model() as model:
        pm.HalfNormal("scale", 2.0)
        pm.Normal("beta", 0, 2, shape=2)
    parameters = ParameterSpace(model)
    rng = np.random.default_rng(0)
    J, S = (A @ A.T for A in rng.normal(size=(2, 3, 3)))
    law = Law(rng.normal(size=3), rng.normal(size=3), J, S)
    posterior = posterior_of(law, PublicLogDensity(parameters), parameters.start)
    surrogate = NormalSurrogate(
        posterior, np.eye(3), 1.0, 1.0, 1.0, np.zeros(3), np.zeros(3), 1, True
    )
    found = Surrogate(surrogate, Diagnostics(usable=True), parameters_digest(parameters))
    ours, without = found.model(model).compile_logp(**FAST), model.compile_logp(**FAST)
    more = []
    for theta in rng.normal(size=(4, 3)):
        point = parameters.point(theta)
        # log N(β̂; J u, J + S), up to a constant, by its own formula
        off = law.beta - J @ (theta - law.centre)
        more.append(ours(point) - without(point) + off @ np.linalg.solve(J + S, off) / 2)
    np.testing.assert_allclose(more, more[0])


def test_owners_measure_what_one_curator_does():
    """Sums and histograms of all, and the noise that is said to be in them."""
    x, y = records(0, n=450)
    of_all = owner_of(x, y, noise_source=NoNoise(0))
    owners = [owner_of(x[k::3], y[k::3], noise_source=NoNoise(0)) for k in range(3)]
    one, three = (Owners(asking(some), ParameterSpace(prior())) for some in ([of_all], owners))
    at = {"share": 0.01}
    for measure in (one, three):
        assert measure.noise_sd(0.5, 0.005) == pytest.approx(measure.multiplier(0.005))
        assert measure.count_sd(0.005) == pytest.approx(math.sqrt(2) * measure.multiplier(0.005))
        assert measure.units(0.01) == (450.0, 0.0)
        assert measure.spent == 0.0
    tiny, exact = 450 / RESOLUTION, exact_answers(x, y)
    information = Information(THETA, W, 0.2)
    for of, kind, bound, moves in (
        (Score(THETA, W, 0.1), "score", 0.1, 2),
        (information, "information", 0.01, math.sqrt(2)),
    ):
        (theirs, sd), (ours, of_three) = (m.sum(of, bound, **at) for m in (one, three))
        np.testing.assert_allclose(ours, theirs, atol=tiny)
        np.testing.assert_allclose(ours, exact[kind], atol=tiny)
        assert sd == pytest.approx(moves * bound * one.multiplier(0.01), rel=1e-5)
        assert of_three == pytest.approx(moves * bound * three.multiplier(0.01), rel=1e-5)
        assert of_three > 1.5 * sd
    for of, kind, bins in (
        (Gradient(THETA, W), "gradient_sizes", 1),
        (information, "information_sizes", 2),
    ):
        for measure in (one, three):
            np.testing.assert_array_equal(
                measure.histogram(of, **at, bins_per_octave=bins).released, exact[kind]
            )
            assert measure.spent <= 0.04 + 1e-12


@pytest.mark.parametrize("wrong", [None, np.nan, "shape"], ids=str)
def test_an_answer_that_is_none_is_refused(wrong):
    owner = owner_of(*records(0), noise_source=NoNoise(0))

    def ask(kind, request):
        answer = dict(owner.answer(kind, request))
        if kind == "score":
            g = answer.pop("score")
            if wrong is not None:
                answer["score"] = np.ones(D + 1) if wrong == "shape" else g * wrong
        return [answer]

    with pytest.raises(dp.PrivacyError, match="Owner 1 of 1 gave no 'score'"):
        find_surrogate(ask, prior())


def test_the_noise_of_the_sum_is_that_of_all_owners():
    owners = [owner_of(*records(k), epsilon=e) for k, e in enumerate([0.5, 1.0, 4.0])]
    together = Owners(asking(owners), ParameterSpace(prior()))
    for kind, multiplier in {
        "ratio": together.ratio_multiplier,
        "surrogate": together.multiplier(0.25) / 2,
    }.items():
        zs = [owner.answer("offer", {})[kind][1] for owner in owners]
        assert multiplier == pytest.approx(math.sqrt(sum(z**2 for z in zs)))
    assert together.n_units == 450
    with pytest.raises(dp.PrivacyError, match="No owner"):
        Owners(lambda kind, request: [], ParameterSpace(prior()))


# -- a chain ----------------------------------------------------------------------------------------


def skewed_prior():
    with pm.Model() as model:
        pm.Gumbel("a", 0.5, 1.5)
    return model


@pytest.mark.chain
@pytest.mark.parametrize("iterations", [2400, pytest.param(8000, marks=pytest.mark.nightly)])
def test_the_pooled_posterior_is_invariant_with_noise_on(iterations, quiet):
    """Ratios are at most |θ' − θ|, so nothing is clipped; the posterior is skewed, and known by summation."""
    y = np.array([1, 1, 1, 0, 1, 1, 1, 1, 1])
    owners = []
    for part in np.split(y, 3):
        model = skewed_prior()
        with model:
            pm.Bernoulli("y", logit_p=model["a"] * pm.Data("x", np.ones(3)), observed=part)
        owners.append(
            Owner(
                epsilon=12.0 * iterations,
                ratios=iterations,
                ratio_share=1,
                model=model,
                compile_kwargs=FAST,
            )
        )
    a = np.linspace(-6, 25, 20001)
    z = (a - 0.5) / 1.5
    density = np.exp(y.sum() * a - len(y) * np.logaddexp(0, a) - z - np.exp(-z))
    density /= density.sum()
    mean = density @ a
    skewness = density @ (a - mean) ** 3 / (density @ (a - mean) ** 2) ** 1.5
    assert skewness > 0.5

    coordinator = skewed_prior()
    step = FederatedPenalty(asking(owners), clip=1.0, scale=3.0, model=coordinator)
    assert 1 < 2 * 3.0 * step._z < 3  # noise that would matter if it were not corrected for
    idata = pm.sample(
        iterations, tune=0, chains=1, step=step, model=coordinator, random_seed=5,
        initvals={"a": mean}, **quiet,
    )  # fmt: skip
    draws = idata["posterior"]["a"].values[0]
    for f in (lambda a: a, lambda a: a**2, lambda a: a > mean, lambda a: np.exp(-a)):
        batches = f(draws).reshape(20, -1).mean(axis=1)
        assert abs(batches.mean() - density @ f(a)) < 4.5 * batches.std(ddof=1) / math.sqrt(20)
    with pytest.raises(dp.PrivacyBudgetExceeded):
        pm.sample(1, tune=0, chains=1, step=step, model=coordinator, **quiet)


def test_a_chain_needs_owners_who_agreed_to_it():
    owner = owner_of(*records(0), ratios=0)
    with pytest.raises(dp.PrivacyError, match="takes no part in a ratio"):
        FederatedPenalty(asking([owner]), clip=1.0, model=prior())
    owner = owner_of(*records(0))
    for wrong in ({"clip": 0.0}, {"clip": 1.0, "scale": -1.0}, {"clip": 1.0, "root": np.eye(3)}):
        with pytest.raises(dp.PrivacyConfigurationError):
            FederatedPenalty(asking([owner]), model=prior(), **wrong)
    with pytest.raises(dp.PrivacyError, match="does not have the parameters"):
        FederatedPenalty(asking([owner]), clip=1.0, model=skewed_prior())
