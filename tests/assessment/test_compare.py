"""Comparisons of models: sensitivity, cost, what leaves, and what they say."""

import math

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.assessment.predictive import (
    Contrasts,
    PredictiveRecords,
    Squares,
    contrast_basis,
    optimism,
    unconstrained_draws,
)
from pymc_dp.assessment.tails import find_bound
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.histogram import PrivateHistogram, counts_of
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import NormExceeds, is_acute

FAST = {"mode": "FAST_COMPILE"}
RUN = {"step": dp.DPPenalty, "chains": 2, "cores": 1, "progressbar": False}
N = 400


def records(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, x @ [0.5, 0.0] + rng.normal(size=n)


def regression(x, y, k):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=k)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", pm.Data("X", x)[:, :k] @ b, sigma, observed=pm.Data("Y", y))
    return model


def draws_like(idata, **arrays):
    """The released result with other draws: what is compared is a function of the draws, whatever they are."""
    groups = groups_of(idata)
    posterior = groups["posterior"].copy()
    for name, values in arrays.items():
        posterior[name] = posterior[name].copy(data=values.reshape(posterior[name].shape))
    return from_groups({**groups, "posterior": posterior}, root_attrs(idata), like=idata)


@pytest.fixture(scope="module")
def pair():
    """Two models of the same people, compiled, and released draws."""
    x, y = records()
    found = {}
    for k in (1, 2):
        model = dp.compile(regression(x, y, k), compile_kwargs=FAST)
        idata = dp.sample(30, model=model, epsilon=5.0, **RUN)
        rng = np.random.default_rng(k)
        found[f"k{k}"] = (
            model,
            draws_like(
                idata,
                b=np.eye(2)[0, :k] / 2 + 0.05 * rng.normal(size=(60, k)),
                sigma=1 + 0.02 * rng.normal(size=60),
            ),
        )
    return found


def by_hand(pair):
    """Log predictive densities in SciPy."""
    x, y = records()
    columns = []
    for k, (_, idata) in enumerate(pair.values(), start=1):
        posterior = groups_of(idata)["posterior"]
        b, sigma = posterior["b"].values.reshape(-1, k), posterior["sigma"].values.ravel()
        log = stats.norm.logpdf(y, b @ x[:, :k].T, sigma[:, None])
        columns.append(np.logaddexp.reduce(log, axis=0) - math.log(len(b)))
    return np.column_stack(columns)


def prepared(pair):
    return PredictiveRecords(
        [
            (model.likelihood, unconstrained_draws(model.parameters, groups_of(idata)["posterior"]))
            for model, idata in pair.values()
        ]
    )


# -- one number per unit and model --------------------------------------------------------------------


def test_densities_are_those_of_the_mixture_of_draws(pair):
    np.testing.assert_allclose(prepared(pair).densities, by_hand(pair), rtol=1e-9)


def test_with_much_budget_the_difference_is_the_exact_one(pair):
    found = dp.compare(pair, epsilon=1e7, delta=1e-6)
    d = np.diff(by_hand(pair))[:, 0]
    gains = [
        optimism(unconstrained_draws(m.parameters, groups_of(i)["posterior"]), m.log_public)
        for m, i in pair.values()
    ]
    one = found.difference("k2", "k1")
    assert one.elpd == pytest.approx(d.sum() - gains[1] + gains[0], abs=0.02)
    assert one.se == pytest.approx(d.std() * math.sqrt(N), rel=0.05)
    assert one.noise_sd < 0.01
    again = found.difference("k1", "k2")
    assert (again.elpd, again.sd) == (-one.elpd, one.sd)
    assert found.table["elpd_diff"].iloc[0] == 0
    assert list(found.table.index) == list(found.models)


def test_units_of_several_records_are_predicted_as_one():
    x, y = records()
    people = np.repeat(np.arange(N // 2), 2)
    model = compile_model(regression(x, y, 2), unit=people, compile_kwargs=FAST)
    thetas = np.random.default_rng(0).normal(size=(5, 3)) / 5
    found = PredictiveRecords([(model.likelihood, thetas)]).densities[:, 0]
    log = stats.norm.logpdf(y, thetas[:, :2] @ x.T, np.exp(thetas[:, 2:]))
    together = log.reshape(5, -1, 2).sum(axis=2)
    np.testing.assert_allclose(found, np.logaddexp.reduce(together, axis=0) - math.log(5))


@pytest.mark.parametrize("models", [2, 3, 6])
def test_contrasts_are_orthonormal_and_favour_no_model(models):
    H = contrast_basis(models)
    np.testing.assert_allclose(H @ H.T, np.eye(models - 1), atol=1e-12)
    np.testing.assert_allclose(H.sum(axis=1), 0, atol=1e-12)


# -- optimism -----------------------------------------------------------------------------------------


def normal_law(prior_sd):
    with pm.Model() as model:
        pm.Normal("b", 0, prior_sd, shape=3)
        pm.Normal("y", model["b"].sum(), 1, observed=np.zeros(5))
    return compile_model(model, compile_kwargs=FAST).log_public


def test_optimism_is_the_number_of_parameters_that_the_likelihood_has_told():
    rng, prior = np.random.default_rng(3), normal_law(1.0)
    told = rng.normal(0.3, 0.05, size=(4000, 3))
    assert optimism(told, prior) == pytest.approx(3 * (1 - 0.05**2), abs=0.02)
    half = rng.normal(0, math.sqrt(0.5), size=(4000, 3))
    assert optimism(half, prior) == pytest.approx(1.5, abs=0.1)
    nothing = rng.normal(0, 1, size=(4000, 3))
    # Mean of 3 squares over 4,000 draws: sd √(6 / 4000).
    assert optimism(nothing, prior) == pytest.approx(0, abs=0.15)


def test_optimism_is_what_densities_gain_in_sample():
    """Draws that know of their noise: the gain is p, not WAIC's penalty, which the noise inflates."""
    rng, n, d, t = np.random.default_rng(4), 300, 3, 2.0
    gained, penalties = [], []
    for _ in range(400):
        X, y = rng.normal(size=(n, d)), rng.normal(size=n)
        J = np.linalg.inv(X.T @ X)
        root = np.linalg.cholesky(J)
        mean = J @ X.T @ y + t * root @ rng.normal(size=d)
        C = (1 + t**2) * J  # of a flat prior
        spread = np.einsum("ij,jk,ik->i", X, C, X)
        inside = stats.norm.logpdf(y, X @ mean, np.sqrt(1 + spread)) - stats.norm.logpdf(y)
        # New outcomes at the same covariates, exactly.
        off = 1 + (X @ mean) ** 2
        outside = -0.5 * np.log(1 + spread) - 0.5 * off / (1 + spread) + 0.5
        gained.append(inside.sum() - outside.sum())
        residual = y - X @ mean
        penalties.append(np.sum(spread * residual**2 + spread**2 / 2))
    sd = np.std(gained) / math.sqrt(len(gained))
    p = optimism(mean + rng.normal(size=(2000, d)) @ np.linalg.cholesky(C).T, normal_law(1e3))
    assert p == pytest.approx(d, abs=0.01)
    assert np.mean(gained) == pytest.approx(p, abs=4 * sd)
    assert np.mean(penalties) > 3 * p  # d (1 + t²), and more for the noise in the mean


# -- sensitivity --------------------------------------------------------------------------------------


def units_of(densities):
    """Records that are known by their densities."""
    found = PredictiveRecords([])
    found.__dict__["densities"] = np.asarray(densities, float)
    return found


EXTREME = [[0, 0, 0], [1e6, -1e6, 0], [-1e6, 1e6, 1e6], [3, -4, 1e-3], [0.1, 0.1, 0.1], [-1e6] * 3,
           [1e6, 1e6, -1e6], [0.5, -0.5, 0]]  # fmt: skip


@pytest.mark.parametrize("B", [0.01, 0.7, 30.0])
def test_no_unit_moves_a_sum_further_than_its_sensitivity(B):
    """Every pair of units, replaced and left out: by brute force."""
    H = contrast_basis(3)
    for of, bound in ((Contrasts(H), B), (Squares(Contrasts(H), B), B**2)):
        images = np.array([units_of([u]).total(of, bound) for u in EXTREME])
        furthest = np.linalg.norm(images[:, None] - images, axis=2).max()
        assert furthest <= SUBSTITUTE_ONE.noise_sd(RESOLUTION, 1.0, is_acute(of))
        assert np.linalg.norm(images, axis=1).max() <= ADD_OR_REMOVE.of_sum(RESOLUTION)
        # The bound is met: the test sees something.
        assert furthest > (1.3 if is_acute(of) else 1.9) * RESOLUTION
        whole = units_of(EXTREME).total(of, bound)
        np.testing.assert_array_equal(whole, images.sum(axis=0))
    marks = [units_of([u]).total(NormExceeds(Contrasts(H), B), 1.0)[0] for u in EXTREME]
    assert {0, RESOLUTION} == set(map(int, marks))


def test_one_persons_records_change_no_other_density(pair):
    before = prepared(pair).densities
    x, y = records()
    x[7], y[7] = 1e200, -1e300
    models = [regression(x, y, k) for k in (1, 2)]
    changed = {
        name: (dp.compile(m, compile_kwargs=FAST), idata)
        for m, (name, (_, idata)) in zip(models, pair.items(), strict=True)
    }
    after = prepared(changed).densities
    others = np.arange(N) != 7
    np.testing.assert_array_equal(after[others], before[others])
    assert np.isfinite(after).all()
    assert not np.array_equal(after[7], before[7])


# -- cost, and what leaves ----------------------------------------------------------------------------


def test_it_costs_what_was_asked_for(pair):
    ledger = dp.PrivacyLedger(epsilon=3.0, delta=1e-6)
    found = dp.compare(pair, epsilon=1.25, ledger=ledger)
    (plan,) = ledger.runs()
    assert ledger.spent() == pytest.approx(1.25, rel=1e-6)
    assert found.guarantee.epsilon == 1.25
    assert found.guarantee.delta == 1e-6
    assert "(1.25, 1e-06)-differentially private" in found.statement
    assert "compare" in plan.description


@pytest.mark.parametrize("neighbours", [SUBSTITUTE_ONE, ADD_OR_REMOVE])
def test_releases_stay_within_the_filter(pair, neighbours, monkeypatch):
    taken = []
    permit = PrivacyFilter.permit

    def noted(self, share, count=1):
        taken.append(share)
        return permit(self, share, count)

    monkeypatch.setattr(PrivacyFilter, "permit", noted)
    dp.compare(pair, epsilon=2.0, delta=1e-5, neighbours=neighbours.name)
    assert sum(taken) == pytest.approx(1, abs=1e-6)


def test_nothing_is_read_before_it_is_paid_for(pair, monkeypatch):
    read = []
    monkeypatch.setattr(
        "pymc_dp.assessment.predictive._densities",
        lambda likelihood, thetas: read.append(1) or np.zeros(likelihood.n_units),
    )
    ledger = dp.PrivacyLedger(epsilon=0.5, delta=1e-6)
    with pytest.raises(dp.PrivacyBudgetExceeded, match=r"compare .* Nothing was released"):
        dp.compare(pair, epsilon=0.6, ledger=ledger)
    assert not read
    assert not ledger.runs()
    dp.compare(pair, epsilon=0.4, ledger=ledger)
    assert len(read) == 2


def everything(found):
    return str(found), repr(found.table.to_numpy().tolist()), found.guarantee.sentence


def test_the_table_is_a_function_of_releases_alone(pair, canned_releases):
    """Other people, some of them impossible, and the same released numbers: the same table."""
    x, y = records(9)
    y[:4] = 1e308, -1e308, 1e200, 5e-324
    other = {
        name: (dp.compile(regression(x, y, k), compile_kwargs=FAST), pair[name][1])
        for name, k in (("k1", 1), ("k2", 2))
    }
    with np.errstate(all="raise"):
        tables = [everything(dp.compare(p, epsilon=1.0, delta=1e-5)) for p in (pair, other)]
    assert tables[0] == tables[1]


def test_noise_that_is_insecure_is_said_to_be(pair):
    found = dp.compare(pair, epsilon=1.0, noise_source=InsecureSeededNoise(1))
    assert "NOT PRIVATE" in str(found)
    assert "NOT PRIVATE" in found._repr_html_()


# -- the same people ----------------------------------------------------------------------------------


def refused(pair, model, match, **keywords):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(dp.PrivacyError, match=match):
        dp.compare({**pair, "k2": (model, pair["k2"][1])}, epsilon=1.0, ledger=ledger, **keywords)
    assert not ledger.runs()


def test_other_people_are_refused_before_anything_is_spent(pair):
    x, y = records()
    refused(pair, regression(x[:-1], y[:-1], 2), "different numbers of records or of units")
    people = np.repeat(np.arange(N // 2), 2)
    compiled = dp.compile(regression(x, y, 2), unit=people, compile_kwargs=FAST)
    refused(pair, compiled, "different numbers of records or of units")


def test_other_owners_of_the_same_records_are_refused(pair):
    x, y = records()
    one, other = (
        (dp.compile(regression(x, y, 2), unit=unit, compile_kwargs=FAST), pair["k2"][1])
        for unit in (np.repeat(np.arange(N // 2), 2), np.tile(np.arange(N // 2), 2))
    )
    with pytest.raises(dp.PrivacyConfigurationError, match="belong to other people"):
        dp.compare({"one": one, "other": other}, epsilon=1.0)


def test_whether_values_are_the_same_is_not_looked_at(pair):
    """A refusal would tell of a person whose values differ between two versions of a column."""
    x, y = records()
    clipped = regression(x, np.minimum(y, 2.0), 2), pair["k2"][1]
    assert dp.compare({**pair, "k2": clipped}, epsilon=1.0).models


@pytest.mark.parametrize("which", ["k1", "k2"])
def test_a_prior_that_reads_a_private_number_of_units_is_refused(pair, which):
    x, y = records()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=int(which[1]))
        X, Y = pm.Data("X", x), pm.Data("Y", y)
        pm.Normal("y", X[:, : len(which) - 1] @ b[:1], 1 / Y.shape[0], observed=Y)
        pm.Normal("z", 0, 1 / Y.shape[0])
    with pytest.raises(dp.UnsupportedModelError, match="number of records, which is private"):
        dp.compare(
            {**pair, which: (model, pair[which][1])},
            epsilon=1.0, delta=1e-5, neighbours="add-or-remove",
        )  # fmt: skip


def test_draws_that_are_not_released_or_not_of_the_model_are_refused(pair):
    model, idata = pair["k2"]
    attrs, groups = root_attrs(idata), groups_of(idata)

    def with_draws(changed_attrs, changed_groups=groups):
        changed = from_groups(changed_groups, changed_attrs, like=idata)
        return {**pair, "k2": (model, changed)}

    for given, match in (
        (with_draws({}), "have not been released"),
        (with_draws({**attrs, "privacy_valid": 0}), "carry no guarantee"),
        (with_draws({**attrs, "privacy_unit": "one clinic"}), "`unit` as it was given"),
        (with_draws({**attrs, "privacy_units": 7}), "number of units"),
        ({**pair, "k2": (model, pair["k1"][1])}, "do not have the shapes"),
        ({"k1": pair["k1"]}, "at least two models"),
    ):
        ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-6)
        with pytest.raises(dp.PrivacyError, match=match):
            dp.compare(given, epsilon=1.0, ledger=ledger)
        assert not ledger.runs()


# -- what it says ---------------------------------------------------------------------------------------


def measure_of(densities, z, seed):
    curator = Curator(units_of(densities), InsecureSeededNoise(seed))
    return PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z))


@pytest.fixture
def units(monkeypatch):
    monkeypatch.setattr(PredictiveRecords, "n_units", property(lambda self: len(self.densities)))


def test_a_bound_follows_a_tail_that_no_bin_shows(units):
    """2.5 % of the units, spread over five octaves, decide: balanced on the histogram alone, the bound cuts most of it."""
    rng, n = np.random.default_rng(0), 20_000
    d = rng.normal(0, 0.1, n)
    tail = 0.25 * (1 - rng.random(500)) ** (-1 / 1.2)
    d[:500] = np.minimum(tail, 15)
    of, z = Contrasts(contrast_basis(2)), 4.0
    densities = np.column_stack([d, np.zeros(n)])
    bounds = []
    for seed in range(10):
        measure = measure_of(densities, z, seed)
        sizes = measure.histogram(of, 0.1, 2)
        assert isinstance(sizes, PrivateHistogram)
        bounds.append(find_bound(of, sizes, measure, 0.1))
        assert measure.spent < 0.5
    assert np.median(bounds) > 1.0
    light = np.column_stack([rng.normal(0, 0.1, n), np.zeros(n)])
    for seed in range(5):
        measure = measure_of(light, z, seed)
        assert find_bound(of, measure.histogram(of, 0.1, 2), measure, 0.1) < 1.0


def test_sizes_of_contrasts_do_not_depend_on_their_coordinates(units):
    densities = np.random.default_rng(2).normal(size=(300, 4))
    H = contrast_basis(4)
    Q, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    counts = [counts_of([np.linalg.norm(densities @ basis.T, axis=1)], 2) for basis in (H, Q @ H)]
    np.testing.assert_array_equal(*counts)


@pytest.mark.sweep
def test_intervals_hold_the_difference_and_the_better_model_is_found(units):
    """Draws at fixed places: the truth is known exactly, and people are made anew each time."""
    from pymc_dp.assessment.compare import _compared

    class Paid:
        guarantee = None

        def __init__(self, seed):
            self.seed = seed

        def measure(self, records):
            curator = Curator(records, InsecureSeededNoise(self.seed))
            return PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(4.0),)), 4.0))

    rng, n, held, right = np.random.default_rng(8), 5_000, [], []
    truth = n * 0.5 * (0.1**2)  # of N(0.1, 1) seen as itself or as N(0, 1)
    for seed in range(100):
        y = rng.normal(0.1, 1, n)
        v = np.column_stack([stats.norm.logpdf(y), stats.norm.logpdf(y, 0.1)])
        one = _compared(("a", "b"), np.zeros(2), units_of(v), Paid(seed)).difference("b", "a")
        low, high = one.interval
        held.append(low < truth < high)
        right.append(one.elpd > 0)
    # 90 % less three binomial standard deviations; conservative, as what is clipped counts.
    assert np.mean(held) > 0.9 - 3 * math.sqrt(0.09 / 100)
    assert np.mean(right) > 0.9
