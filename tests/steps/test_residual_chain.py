"""The chain on residuals of pooled looks: what its kernel leaves invariant, and what it asks of the records."""

import dataclasses
import math

import numpy as np
import pymc as pm
import pytest
from scipy import integrate

import pymc_dp as dp
from pymc_dp.anchor.law import pooled, posterior_of
from pymc_dp.anchor.look import Look
from pymc_dp.anchor.price import Price, divergence, price
from pymc_dp.anchor.residuals import (
    Clipped,
    Expansion,
    Residual,
    ResidualRatio,
    Residuals,
    ResidualSizes,
    reach,
)
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.exceptions import PrivacyBudgetExceeded
from pymc_dp.linalg import as_matrix, clip
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.purse import Purse
from pymc_dp.records.measurements import Curator, PaidMeasurements
from pymc_dp.records.questions import Gradient, Hessian
from pymc_dp.records.sums import LocalRecords
from pymc_dp.steps.anchored import DPAnchored
from pymc_dp.steps.residual_chain import Proposals, doubts, move, proposals_from, total_moves

from .exact import noisy_total

FAST = {"mode": "FAST_COMPILE"}
N = 400
Y = np.random.default_rng(0).gamma(2.0, 1.0, size=30)


def skewed(y=Y):
    """Exponential waiting times, log rate θ: the posterior is far from normal for so few records."""
    with pm.Model() as model:
        log_rate = pm.Normal("log_rate", 0, 2)
        pm.Exponential("y", pm.math.exp(log_rate), observed=pm.Data("Y", y))
    return model


def two_dimensional(y=Y):
    """Both parameters of gamma waiting times, on the log scale."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 2, shape=2)
        pm.Gamma("y", pm.math.exp(theta[0]), pm.math.exp(theta[1]), observed=pm.Data("Y", y))
    return model


def records_of(model):
    return LocalRecords(dp.compile(model, compile_kwargs=FAST), 2)


def log_likelihood(records, theta):
    return float(records.likelihood(np.asarray(theta)).sum())


def look_at(records, theta, V, b, C, noise, rng, tempering=1.0):
    """A look with noise of this size in it, and the noise."""
    d, place = len(theta), (theta, V, tempering)
    inverse = np.linalg.inv(V)
    g = sum(clip(rows, b).sum(axis=0) for rows in Gradient(*place).terms(records))
    H = sum(clip(rows, C).sum(axis=0) for rows in Hessian(*place).terms(records))
    xi, Xi = noise * rng.standard_normal(d), noise * rng.standard_normal((d, d))
    Xi = (Xi + Xi.T) / 2
    G = inverse.T @ g + xi
    A = -inverse.T @ as_matrix(H, d) @ inverse - Xi
    return Look(theta, V, G, A, 0.5, 0.3, b, C, 0.1), xi, Xi


def expansion_of(
    records, *, d=1, bounds=1e9, noise=0.7, tempering=1.0, shift=0.0, scale=0.2, V=0.3
):
    """Three looks, pooled, and the noise in what they say: ξ and Ξ of the proof, by its formula."""
    rng = np.random.default_rng(8)
    centre = np.array([0.75, 0.7])[-d:] + shift
    made = [
        look_at(records, centre + off * np.linspace(1, -0.6, d), V * (np.eye(d) + 0.2 * k), bounds, bounds,
                noise * s, rng, tempering)
        for k, (off, s) in enumerate([(0.3, 2.0), (-0.1, 1.0), (0.05, 0.5)])
    ]  # fmt: skip
    looks = [look for look, _, _ in made]
    pool = pooled(looks, centre, np.eye(d) / scale**2, records.n_units, np.full(d, 2.0))
    W = scale * (np.eye(d) + 0.1 * np.tri(d))
    Xi = sum(w * noisy for w, (_, _, noisy) in zip(pool.weights, made, strict=True))
    xi = sum(
        B @ (noisy - Xi @ (look.theta - centre))
        for B, (look, noisy, _) in zip(pool.parts, made, strict=True)
    )
    return Expansion(pool, W, tempering), xi, Xi


def test_the_parts_of_gradients_add_up_to_the_identity():
    expansion, _, _ = expansion_of(records_of(two_dimensional()), d=2)
    np.testing.assert_allclose(expansion.pool.parts.sum(axis=0), np.eye(2), atol=1e-12)
    assert expansion.pool.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("tempering", [1.0, 0.5])
@pytest.mark.parametrize("bounds", [1e9, 0.05])
@pytest.mark.parametrize(("model", "d"), [(skewed, 1), (two_dimensional, 2)])
def test_residuals_and_looks_add_up_to_the_log_likelihood_and_noise_of_known_law(
    model, d, bounds, tempering
):
    """Whatever is clipped out of a unit's part of the looks is in its residual."""
    records = records_of(model())
    expansion, xi, Xi = expansion_of(records, d=d, bounds=bounds, tempering=tempering)
    residuals, centre = Residuals(records, expansion), expansion.pool.law.centre
    for x in np.random.default_rng(2).normal(size=(4, d)):
        total = residuals(x).sum() + expansion.log_ratio(x)
        u = expansion.W @ x
        exact = log_likelihood(records, centre + u) - log_likelihood(records, centre)
        # Units' terms are kept in single precision.
        expected = tempering * exact + xi @ u + u @ Xi @ u / 2
        assert total == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("changed", ["shift", "scale", "bounds", "tempering", "V"])
def test_residuals_are_those_of_the_expansion_that_is_asked_for(changed):
    """What is kept of one is not taken for another's, as in the runs of an audit."""
    other = {"shift": 0.1, "scale": 0.25, "bounds": 0.05, "tempering": 0.5, "V": 0.35}
    x, new = np.array([0.3]), np.array([-0.8])

    def ratios(records, **settings):
        expansion, _, _ = expansion_of(records, **({"bounds": 0.1} | settings))
        (terms,) = ResidualRatio(expansion, x, new).terms(records)
        return terms

    records, second = records_of(skewed()), {changed: other[changed]}
    before, after, again = ratios(records), ratios(records, **second), ratios(records)
    np.testing.assert_array_equal(after, ratios(records_of(skewed()), **second))
    np.testing.assert_array_equal(again, before)
    assert not np.array_equal(after, before)


def test_a_unit_changes_a_sum_by_no_more_than_its_sensitivity():
    """By brute force, with records far out: 2B, and half-marks by 1; what others contribute stays."""
    expansion, _, _ = expansion_of(records_of(skewed()), bounds=0.5)
    x, new, B = np.array([0.4]), np.array([-1.1]), 0.02
    pairs = np.random.default_rng(1).normal(size=(4, 2, 1))
    sizes = ResidualSizes(expansion, pairs)
    questions = [Residual(expansion, x), ResidualRatio(expansion, x, new)]
    totals, counts, marks = [], [], []
    for value in (1e-12, 0.1, 3.0, 80.0, 1e12, 1e300):
        y = Y.copy()
        y[7] = value
        records = records_of(skewed(y))
        totals.append([records.total(q, B)[0] for q in questions])
        counts.append(records.counts(sizes, 2))
        (beyond,) = Clipped(sizes, 0.001).terms(records)
        marks.append(beyond)
    moved = np.abs(np.array(totals)[:, None] - np.array(totals)[None])
    assert moved.max() <= 2 * RESOLUTION
    assert moved.max() > RESOLUTION  # the bound is used
    for a in counts:
        for b in counts:
            assert np.linalg.norm(a - b) <= math.sqrt(2)
    marks = np.array(marks)
    assert set(np.unique(marks)) <= {0.0, 1.0}
    assert (np.delete(marks, 7, axis=1) == np.delete(marks[0], 7)).all()


def test_a_moves_reach_is_the_same_in_both_directions():
    for x, new in np.random.default_rng(0).normal(size=(200, 2, 3)):
        assert reach(x, new) == reach(new, x) > 0


def test_the_proposals_ratio_is_that_of_their_densities():
    """x ~ φ and a move from it are exchangeable: E f(x, x') = E f(x', x), which a reversed sign would break."""
    rng = np.random.default_rng(3)
    law = Proposals(np.array([1.0]), np.array([[0.6]]))
    weight = {"moved": 0.0, "stayed": 0.0}
    for _ in range(20_000):
        x = np.array([3.0])
        new, log_ratio = law(rng, x)
        if log_ratio:  # autoregressive: φ(x) q(x, x') = φ(x') q(x', x)
            expected = ((new[0] - 1) ** 2 - (x[0] - 1) ** 2) / 2 / 0.36
            assert log_ratio == pytest.approx(expected)
            weight["moved"] += 1
        else:
            weight["stayed"] += 1
    assert 0.45 < weight["moved"] / 20_000 < 0.55


def tilted_cdf(expansion, xi, Xi):
    """Of the posterior times e^(ξu + Ξu²/2) in x, by quadrature."""
    grid = np.linspace(-6, 6, 4001)
    u = expansion.W[0, 0] * grid
    theta = expansion.pool.law.centre[0] + u
    log_p = len(Y) * theta - Y.sum() * np.exp(theta) - theta**2 / 8
    log_p += xi[0] * u + Xi[0, 0] * u**2 / 2
    cdf = integrate.cumulative_trapezoid(np.exp(log_p - log_p.max()), grid, initial=0)
    return grid, cdf / cdf[-1]


def off_target(bound, z=0.02, moves=15):
    """How far many short chains that start on target end from it, and how many of them moved."""
    expansion, xi, Xi = expansion_of(records_of(skewed()), noise=1.5)
    grid, cdf = tilted_cdf(expansion, xi, Xi)
    starts = np.interp((np.arange(N) + 0.5) / N, cdf, grid)
    residuals, rng = Residuals(records_of(skewed()), expansion), np.random.default_rng(1)
    propose = Proposals(np.array([0.2]), np.array([[1.1]]))

    def log_known(x):
        return expansion.log_ratio(x) - float(expansion.to_theta(x)[0]) ** 2 / 8

    ends = []
    for start in starts:
        x = np.array([start])
        for _ in range(moves):
            x, _, _ = move(
                rng, x, propose=propose, bound=bound, log_known=log_known,
                noise_sd=lambda B: 2 * z * B,
                noisy_ratio=lambda x, new, B: noisy_total(rng, residuals(new) - residuals(x), B, z),
            )  # fmt: skip
        ends.append(float(x[0]))
    places = np.sort(np.interp(ends, grid, cdf))
    # Starts are a perfect sample, so that the distance is smaller than that of independent draws.
    distance = np.abs(places - (np.arange(N) + 0.5) / N).max() * np.sqrt(N)
    return distance, np.mean(np.array(ends) != starts)


@pytest.mark.chain
def test_the_tilted_posterior_is_invariant():
    distance, moved = off_target(lambda x, new: 30.0 * reach(x, new))
    assert distance < 1.63
    assert moved > 0.5


@pytest.mark.chain
def test_an_asymmetric_bound_is_caught():
    distance, _ = off_target(lambda x, new: 60.0 * abs(float(new[0] - x[0])) * np.exp(2 * x[0]))
    assert distance > 1.63


def test_proposals_of_a_pilot_that_has_not_moved_still_propose():
    propose = proposals_from(np.zeros((2, 10, 3)))
    new, _ = propose(np.random.default_rng(0), np.zeros(3))
    assert np.isfinite(new).all()
    assert new.any()


def test_what_a_user_is_told_of_a_chain():
    fine = {"chain_clipped": 0.04, "chain_clipped_sd": 0.01, "chain_accepted": 0.5}
    assert doubts(fine) == doubts({}) == []
    (clipped,) = doubts(fine | {"chain_clipped": 0.06})
    assert "clip the residuals of 6.0%" in clipped
    (stopped,) = doubts(fine | {"chain_accepted": 0.03})
    assert "accepted 3.0%" in stopped


# -- through the step --------------------------------------------------------------------------------

MEASURED = np.random.default_rng(1).normal([0.0, 0.5], [3.0, 1.0], size=(2000, 2))


def curved(rows=MEASURED):
    """A bent normal: the posterior is a banana."""
    with pm.Model() as model:
        first = pm.Normal("first", 0, 1)
        second = pm.Normal("second", 0, 1)
        pm.Normal("y", second + 8 * first**2, 1, observed=pm.Data("Y", rows[:, 1]))
        pm.Normal("z", first, 3, observed=pm.Data("Z", rows[:, 0]))
    return model


def straight(n=4000):
    x = np.random.default_rng(2).normal(size=(n, 2))
    y = x @ [1.0, -0.5] + np.random.default_rng(3).normal(size=n)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 1, shape=2)
        pm.Normal("y", pm.Data("X", x) @ slopes, 1, observed=pm.Data("Y", y))
    return model


class Spending:
    """Every part that purses gave out."""

    def __init__(self, monkeypatch):
        self.parts = []
        given = Purse.permit

        def permit(purse, share, count=1):
            self.parts.append((share, count))
            return given(purse, share, count)

        monkeypatch.setattr(Purse, "permit", permit)


def built(model, monkeypatch, epsilon):
    """A step's anchor and draws, few of them, and what was paid for each part."""
    spending = Spending(monkeypatch)
    step = DPAnchored(
        draws=20, chains=2, epsilon=epsilon, model=model, compile_kwargs=FAST,
        noise_source=dp.InsecureSeededNoise(5),
    )  # fmt: skip
    anchor = step.build_anchor()
    return step, anchor, spending.parts


def test_a_straight_likelihood_has_no_chain_and_pays_next_to_nothing_for_the_question(monkeypatch):
    step, anchor, parts = built(straight(), monkeypatch, 8.0)
    assert anchor.correction is None
    assert "chain_share" not in step.guarantee.measured
    assert all(count == 1 for _, count in parts)
    assert sum(share for share, _ in parts) > 0.99


def test_where_noise_hides_what_it_would_correct_nothing_is_asked(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr("pymc_dp.anchor.build.price", refuse)
    changed = dataclasses.replace(SETTINGS, chain_tilt=1e-3)
    monkeypatch.setattr("pymc_dp.anchor.build.SETTINGS", changed)
    _, anchor, parts = built(straight(), monkeypatch, 8.0)
    assert anchor.correction is None
    assert sum(share for share, _ in parts) == pytest.approx(1)


def paid(z):
    curator = Curator(records_of(skewed()), dp.InsecureSeededNoise(6))
    return PaidMeasurements(curator, Purse(Permit(0, 0, (Gaussian(z),)), z))


def test_how_far_a_law_is_off_is_half_the_variance_of_the_residuals_sums():
    """And what that and the chain cost follows from the bound; with little noise, by brute force."""
    z, moves = 1e-4, 5000
    expansion, _, _ = expansion_of(records_of(skewed()), noise=0.0)
    law = posterior_of(
        expansion.pool.law, dp.compile(skewed(), compile_kwargs=FAST).log_public, np.array([0.75])
    )
    measure = paid(z)
    asked = price(measure, expansion, law, moves, 0.01)
    off = divergence(measure, expansion, law, asked.clip)
    assert measure.spent < 0.01 + SETTINGS.most_for_sums
    residuals = Residuals(records_of(skewed()), expansion)
    sd = math.sqrt(law.covariance[0, 0]) / expansion.W[0, 0]
    mean = (law.mean - expansion.pool.law.centre) / expansion.W[0, 0]
    pairs = mean + sd * np.random.default_rng(1).standard_normal((2000, 2, 1))
    typical = np.median([reach(x, new) for x, new in pairs])
    assert asked.need == pytest.approx(moves * (2 * z * asked.clip * typical) ** 2, rel=0.5)
    places = mean + sd * np.random.default_rng(0).standard_normal((SETTINGS.sums, 1))
    sums = [residuals(x).sum() for x in places]
    assert off == pytest.approx(np.var(sums, ddof=1) / 2, rel=0.2, abs=0.02)
    assert math.isnan(divergence(paid(100.0), expansion, law, asked.clip))


def always(monkeypatch):
    """Whether it pays or not, there is a chain."""
    monkeypatch.setattr("pymc_dp.anchor.build.price", lambda *_: Price(0.5, 0.01))
    monkeypatch.setattr("pymc_dp.anchor.build.divergence", lambda *_: 1.0)


def test_the_chain_is_one_part_of_the_purse(monkeypatch):
    always(monkeypatch)
    step, anchor, parts = built(straight(), monkeypatch, 8.0)
    assert anchor.correction is not None
    K = total_moves(2, 20)
    assert [count for _, count in parts if count > 1] == [K]
    assert sum(share for share, _ in parts) == pytest.approx(1)
    assert step._draws.shape == (2, 20, 2)
    assert np.isfinite(step._draws).all()
    assert 0 < step.guarantee.measured["chain_accepted"] < 1


def test_moves_beyond_those_that_were_paid_for_are_refused(monkeypatch):
    """And none of them is made before all are paid for."""
    always(monkeypatch)
    monkeypatch.setattr("pymc_dp.steps.residual_chain.total_moves", lambda *_: 7)
    with pytest.raises(PrivacyBudgetExceeded):
        built(straight(), monkeypatch, 8.0)


def test_a_run_with_a_chain_is_a_function_of_releases_alone(monkeypatch, canned_totals):
    """Other data, the same released numbers: the same draws, to the last bit."""

    def released(dimension, bound, _):
        rng = np.random.default_rng(int(np.float64(bound).view(np.int64)) % 2**32)
        total = rng.normal(size=dimension) * bound
        if dimension == 3:  # Hessians of two parameters: curved enough to be taken for learnt
            total[[0, 2]] = -300 * bound
        return total

    def counted(counts, *, noise_multiplier, permit, **_):
        counts()
        permit.take(Gaussian(noise_multiplier))

    class Canned:
        def __init__(self, counts, sd, bins_per_octave):
            assert counts is None

        largest, squares = 4.0, 1e9

        def quantile(self, p):
            return 1.0 + p

        def excess(self, bound):
            return 10 / bound

        def beyond(self, size):
            return 1 / max(size, 1.0)

    canned_totals(released)
    monkeypatch.setattr("pymc_dp.records.measurements.noisy_counts", counted)
    monkeypatch.setattr("pymc_dp.records.measurements.PrivateHistogram", Canned)
    always(monkeypatch)
    changed = dataclasses.replace(SETTINGS, chain_tilt=math.inf, prior_warning=math.inf)
    monkeypatch.setattr("pymc_dp.anchor.build.SETTINGS", changed)
    draws = []
    for seed in (0, 1):
        rows = np.random.default_rng(seed).normal(seed, 1 + seed, size=(2000, 2))
        step, anchor, _ = built(curved(rows), monkeypatch, 30.0)
        assert anchor.correction is not None
        draws.append(step._draws)
    np.testing.assert_array_equal(*draws)
