"""The private polynomial: what it asks, what it makes of the answers, and what it says of itself."""

import json
import logging
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.compat import groups_of, root_attrs
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.privacy.clipping import RESOLUTION, clipped_sum
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.records.queries import is_acute
from pymc_dp.records.sums import LocalRecords
from pymc_dp.surrogate.polynomial.basis import Basis, exponents, leverage, terms_of
from pymc_dp.surrogate.polynomial.chart import Chart
from pymc_dp.surrogate.polynomial.diagnosis import diagnose
from pymc_dp.surrogate.polynomial.draws import draw_prior
from pymc_dp.surrogate.polynomial.ensemble import Tempered, carried, moved
from pymc_dp.surrogate.polynomial.evaluation import Design, balanced, draw_design
from pymc_dp.surrogate.polynomial.model import Found, Lost, Surrogate
from pymc_dp.surrogate.polynomial.queries import Image, Projection, SecondMoments

from ..modes import COMPILED

FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
QUIET = {"cores": 1, "progressbar": False}


def banana(n=3_000, seed=0, a=3.0):
    """A banana whose exact posterior is at hand: (first, second + a first²) is normal."""
    x = np.array([0.0, 1.0]) + np.array([1.0, 0.5]) * np.random.default_rng(seed).normal(
        size=(n, 2)
    )
    with pm.Model() as model:
        first, second = pm.Normal("first", 0, 10), pm.Flat("second")
        pm.Normal("x", first, 1, observed=pm.Data("X", x[:, 0]))
        pm.Normal("y", second + a * first**2, 0.5, observed=pm.Data("Y", x[:, 1]))

    def exact(size, rng):
        precision = n + 1 / 100
        first = n * x[:, 0].mean() / precision + rng.normal(size=size) / math.sqrt(precision)
        second = x[:, 1].mean() + 0.5 * rng.normal(size=size) / math.sqrt(n) - a * first**2
        return np.column_stack([first, second])

    return model, exact


def ring(n=20_000, seed=0):
    r = np.random.default_rng(seed).normal(3, 1, size=n)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 10, shape=2, initval=np.array([0.0, 1.0]))
        pm.Normal("r", 0.1 * (theta**2).sum(), 1, observed=pm.Data("R", r))
    return model


# -- the basis, and what is asked -------------------------------------------------------------------


@pytest.mark.parametrize(("d", "degree"), [(1, 4), (2, 4), (3, 3)])
def test_polynomials_are_orthonormal_over_their_design_and_exact_beyond_it(d, degree):
    rng = np.random.default_rng(0)
    design = 5 + rng.normal(size=(200, d)) * 10.0 ** np.arange(d)
    basis = Basis(design, degree)
    q = basis(design)
    assert len(basis) == terms_of(d, degree)
    np.testing.assert_allclose(q.T @ q / 200, np.eye(len(basis)), atol=1e-8)
    np.testing.assert_allclose(q.mean(axis=0), 0, atol=1e-8)
    assert leverage(q).mean() == pytest.approx(1)
    powers = exponents(d, degree)
    weights = rng.normal(size=len(powers))

    def polynomial(x):
        z = (x - 5) / 10.0 ** np.arange(d)
        return np.prod(z[:, None, :] ** powers, axis=2) @ weights

    c = basis.projection.T @ polynomial(design)
    far = 5 + 3 * rng.normal(size=(50, d)) * 10.0 ** np.arange(d)
    change = polynomial(far) - polynomial(far[:1])
    np.testing.assert_allclose((basis(far) - basis(far[:1])) @ c, change, rtol=1e-6, atol=1e-6)


def test_collinear_designs_lose_terms_and_nothing_else():
    rng = np.random.default_rng(1)
    angle = rng.uniform(0, 2 * np.pi, 200)
    basis = Basis(np.column_stack([np.cos(angle), np.sin(angle)]), 4)
    assert len(basis) == 8  # cos and sin of the angle, up to four times it
    assert np.isfinite(basis(rng.normal(size=(5, 2)))).all()


def curved_clouds():
    rng = np.random.default_rng(2)
    t, z = rng.normal(size=(2, 600))
    yield np.column_stack([np.exp(-t) * (1 + 0.01 * z), t])
    yield np.column_stack([t, 0.1 * z - 20 * t**2])
    yield np.column_stack([t, 0.1 * z - 20 * t**2, rng.normal(size=600) + np.sin(t)])
    yield t[:, None]


@pytest.mark.parametrize("cloud", list(curved_clouds()), ids=["ridge", "banana", "three", "one"])
def test_charts_go_there_and_back_and_know_their_volume(cloud):
    chart = Chart(cloud)
    u, log_det = chart(cloud)
    back, again = chart.back(u)
    np.testing.assert_allclose(back, cloud, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_det, again)
    for point, expected in zip(u[:20], log_det[:20], strict=True):
        h = 1e-6
        J = [(chart.back((point + h * e)[None])[0] - chart.back((point - h * e)[None])[0])[0] / (2 * h)
             for e in np.eye(len(point))]  # fmt: skip
        assert np.linalg.slogdet(np.array(J))[1] == pytest.approx(expected, abs=1e-3)
    if cloud.shape[1] == 2:
        assert chart.gain > 1  # a thin ridge of any shape is a small volume
        assert np.abs(u.mean(axis=0)).max() < 0.1
        assert np.abs(np.log(u.std(axis=0))).max() < 0.3


def records_of(model):
    compiled = compile_model(model, **FAST)
    return compiled, LocalRecords(compiled)


def test_a_units_image_is_its_polynomial_and_does_not_depend_on_its_constant():
    model, _ = banana(n=50)
    _compiled, records = records_of(model)
    design = draw_design(
        np.random.default_rng(3).normal(size=(600, 2)), 4, False, 0.5, np.random.default_rng(4)
    )
    np.testing.assert_allclose(design.image.M.sum(axis=0), 0, atol=1e-10)
    (terms,) = Projection(design.image, np.eye(design.image.M.shape[1])).terms(records)
    r = len(design.basis)
    far = np.random.default_rng(5).normal(size=(2, 2))
    change = 0.5 * (records.likelihood(far[1]) - records.likelihood(far[0]))
    q = design.basis(far)
    np.testing.assert_allclose(terms[:, :r] @ (q[1] - q[0]), change, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(terms[:, r:], 0, atol=1e-8)  # quartics are not missed anywhere


def test_images_in_chunks_are_those_of_all_and_people_are_sums():
    model, _ = banana(n=60)
    people = np.repeat(np.arange(20), 3)
    points = np.array([[0.0, 0.0], [0.3, 0.3]])
    image = Image(points, np.array([[1.0, 2.0], [-1.0, -2.0]]))
    found = {}
    for size in (7, 1000):
        for unit in (None, people):
            compiled = compile_model(model, unit=unit, chunk_size=size, **FAST)
            chunks = list(Projection(image, np.eye(2)).terms(LocalRecords(compiled)))
            found[size, unit is None] = np.vstack(chunks)
    for alone in (True, False):
        np.testing.assert_allclose(found[7, alone], found[1000, alone])
    np.testing.assert_allclose(
        found[7, False], found[7, True].reshape(20, 3, 2).sum(axis=1), rtol=1e-9
    )


# -- the sensitivity of second moments --------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [SUBSTITUTE_ONE, ADD_OR_REMOVE])
def test_second_moments_move_by_less_than_a_sum_of_such_vectors(neighbours):
    """By brute force on the integers that noise is added to: orthogonal units come close to √2."""

    class Units:
        def __init__(self, w):
            self.w = w

        def terms(self, records, units=None):
            yield self.w

        dimension = 4

    rng = np.random.default_rng(6)
    w = np.vstack([np.eye(4), -np.eye(4), rng.normal(size=(40, 4)), 1e-3 * rng.normal(size=(20, 4)),
                   1e9 * rng.normal(size=(5, 4)), [[np.nan, 1, 0, 0], [np.inf, 0, 0, 0]]])  # fmt: skip
    length = 1.0
    images = np.array(
        [
            clipped_sum(SecondMoments(Units(one[None]), length).terms(None), length**2, 10)
            for one in w
        ]
    )
    asked = SecondMoments(Units(w), length)
    assert asked.dimension == 10
    assert is_acute(asked)
    assert not is_acute(Projection(Image(np.zeros((1, 2)), np.zeros((1, 1))), np.eye(1)))
    if neighbours is SUBSTITUTE_ONE:
        moves = np.linalg.norm((images[:, None] - images).astype(float), axis=2).max()
        assert moves > 1.41 * RESOLUTION
    else:
        moves = np.linalg.norm(images.astype(float), axis=1).max()
        assert moves > 0.99 * RESOLUTION
    assert (
        moves <= neighbours.of_acute_sum(RESOLUTION) <= neighbours.of_sum(RESOLUTION) * (1 + 1e-5)
    )
    assert (images[-2:] == 0).all()


def test_truncation_brings_two_units_further_apart_and_that_is_covered():
    """Orthogonal vectors whose images in whole numbers have a negative inner product: a pair found by search."""

    class One:
        dimension = 3

        def __init__(self, w):
            self.w = (1 - 1e-13) * np.array([w])

        def terms(self, records, units=None):
            yield self.w

    x, s2 = 0.9712742418511837, 33.999 / RESOLUTION
    u = np.sqrt([x, 1 - x])
    pair = [*u, 0.0], [math.sqrt(s2) * u[1], -math.sqrt(s2) * u[0], math.sqrt(1 - s2)]
    assert abs(np.dot(*pair)) < 1e-15
    one, other = (clipped_sum(SecondMoments(One(w), 1.0).terms(None), 1.0, 6) for w in pair)
    assert one @ other < 0
    moved = int(((one - other) ** 2).sum())
    assert 2 * RESOLUTION**2 < moved <= SUBSTITUTE_ONE.of_acute_sum(RESOLUTION) ** 2


def test_noise_of_second_moments_is_that_of_their_sensitivity():
    assert SUBSTITUTE_ONE.noise_sd(3.0, 2.0, acute=True) == pytest.approx(
        6 * math.sqrt(2), rel=1e-5
    )
    assert SUBSTITUTE_ONE.noise_sd(3.0, 2.0) == 12.0


# -- walkers ----------------------------------------------------------------------------------------


def test_moves_leave_a_banana_invariant_in_any_coordinates():
    rng = np.random.default_rng(7)
    z = rng.normal(size=(2000, 2))
    exact = np.column_stack([z[:, 0], 0.2 * z[:, 1] - 2 * z[:, 0] ** 2])

    def log_density(x, which):
        return -(x[:, 0] ** 2) / 2 - ((x[:, 1] + 2 * x[:, 0] ** 2) / 0.2) ** 2 / 2

    for chart in (None, Chart(exact[:600])):
        drawn = moved(exact, log_density, 60, rng, chart)
        assert np.mean(np.any(drawn != exact, axis=1)) > 0.95
        fresh = rng.normal(size=(2000, 2))
        fresh[:, 1] = 0.2 * fresh[:, 1] - 2 * fresh[:, 0] ** 2
        assert dp.mmd(drawn, fresh) < 0.06


def test_walkers_are_carried_from_one_density_to_another():
    rng = np.random.default_rng(8)
    start = rng.normal(size=(2000, 2))
    found = carried(
        start,
        lambda x: -(x**2).sum(axis=1) / 2,
        lambda x, _: -(((x - [2.0, 0.0]) / [0.3, 2.0]) ** 2).sum(axis=1) / 2,
        rng,
    )
    np.testing.assert_allclose(found.mean(axis=0), [2.0, 0.0], atol=0.2)
    np.testing.assert_allclose(found.std(axis=0), [0.3, 2.0], rtol=0.1)


def test_draws_are_as_wide_as_posterior_and_noise_together():
    """Where both are normal: noise in a linear coefficient moves the mean."""
    rng = np.random.default_rng(9)
    design = rng.normal(size=(400, 1))
    basis, noise = Basis(design, 2), np.diag([0.4, 0.0])
    u = np.linspace(-3, 3, 50)[:, None]
    c = np.linalg.lstsq(np.column_stack([np.ones(50), basis(u)]), -(u[:, 0] ** 2) / 2, rcond=None)[
        0
    ]
    surrogate = Surrogate(basis, c[1:], noise, 1e6)
    density = Tempered(lambda x: np.zeros(len(x)), surrogate, 1.0, np.zeros(2))
    noisy = density.with_noise(3000, rng)
    found = moved(rng.normal(size=(3000, 1)), noisy, 100, rng)
    slope = 0.4 / design.std()
    assert found.std() == pytest.approx(math.hypot(1, slope), rel=0.06)


def test_a_bound_balances_noise_and_what_is_clipped():
    counts = np.zeros(180)
    counts[120:128] = 1000.0
    sizes = PrivateHistogram(counts, 0.1, 2)
    cheap, dear = (balanced(sizes, lambda b, z=z: z * b) for z in (1e-3, 1e4))
    assert dear < 0.7 * sizes.quantile(0.5) < sizes.quantile(0.99) < cheap


# -- a run ------------------------------------------------------------------------------------------


def run(model, family="polynomial", **keywords):
    settings = {"draws": 500, "chains": 2, "noise_source": dp.InsecureSeededNoise(1), **FAST}
    step = dp.DPSurrogate(model=model, family=family, **(settings | keywords))
    step.prepare()
    return step, step.guarantee.diagnostics


def test_the_posterior_of_a_quartic_is_exact_where_noise_is_nothing():
    model, exact = banana()
    step, measured = run(model, epsilon=1e4)
    draws = step._draws.reshape(-1, 2)
    assert dp.mmd(draws, exact(1000, np.random.default_rng(0))) < 0.07
    assert measured["usable"] == 1
    assert measured["misfit"] < 1e-3


def test_the_whole_budget_is_one_release_and_is_spent():
    model, _ = banana(n=1000)
    step, _ = run(model, epsilon=3.0, delta=1e-4)
    (event,) = step.guarantee.total
    z = dp.calibrate_noise(epsilon=3.0, delta=1e-4, releases=1)
    assert event.noise_multiplier == pytest.approx(z, rel=1e-6)
    assert event.count == 1
    assert step.guarantee.budget == 3.0
    assert not step.guarantee.events  # draws cost nothing


def test_tempering_and_people_and_private_sizes(caplog):
    model, _ = banana(n=600)
    with caplog.at_level(logging.CRITICAL, "pymc.dp"):
        for settings in (
            {"tempering": 0.1},
            {"unit": np.repeat(np.arange(200), 3)},
            {"neighbours": "add-or-remove", "delta": 1e-4},
        ):
            step, measured = run(model, epsilon=5.0, draws=20, **settings)
            assert np.isfinite(step._draws).all()
            assert np.isfinite([v for v in measured.values() if not isinstance(v, str)]).all()


@pytest.mark.parametrize("n", [3, 40])
def test_next_to_no_budget_gives_draws_and_says_so(n, caplog):
    model, _ = banana(n=n)
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        step, measured = run(model, epsilon=0.01, delta=1e-4, draws=50)
    assert measured["usable"] == 0
    assert np.isfinite(step._draws).all()
    assert caplog.records


def test_where_nothing_can_be_made_of_releases_the_draws_are_the_priors(monkeypatch, caplog):
    def lost(*args, **keywords):
        raise Lost

    monkeypatch.setattr("pymc_dp.steps.polynomial.fit_polynomial", lost)
    model, _ = banana(n=100)
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        step, measured = run(model, epsilon=1.0, delta=1e-4, draws=50)
    assert (measured["usable"], measured["family"]) == (0.0, "polynomial")
    assert "privacy_shift" not in measured
    assert step._draws.shape == (2, 50, 2)
    assert "prior" in caplog.text


def test_draws_of_the_prior_are_its():
    draws = draw_prior(lambda x: -(x[:, 0] ** 2) / 8, np.ones(1), np.ones(1), 1000, 4)
    assert draws.shape == (4, 1000, 1)
    assert draws.std() == pytest.approx(2.0, rel=0.15)


def test_many_parameters_are_refused_before_anything_is_spent():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=9)
        pm.Normal("y", pm.Data("X", np.ones((30, 9))) @ beta, 1, observed=pm.Data("Y", np.ones(30)))
    with pytest.raises(dp.UnsupportedModelError, match="few parameters"):
        dp.DPSurrogate(family="polynomial", epsilon=1.0, draws=5, chains=1, model=model, **FAST)


# -- alarms -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good():
    """A polynomial that has arrived, and points where the posterior is."""
    model, exact = banana(n=800)
    step, _ = run(model, epsilon=1e3, draws=10)
    return step.surrogate, exact(2000, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, None),
        ({"arrived": False}, "reached"),
        ({"reached": 0.1}, "reached"),
        ({"misfit": 2.0}, "misfit"),
        ({"noise": 3.0}, "log_density_noise"),
        ({"limit": 0.01}, "leverage"),
    ],
)
def test_each_alarm_is_said(good, changed, kind):
    found, points = good
    changed = {"misfit": 0.0, "noise": 0.1, "limit": 1e3, "arrived": True, "reached": 1.0} | changed
    misfit, noise, limit = (changed.pop(name) for name in ("misfit", "noise", "limit"))
    now = found.surrogate.noise_over(found.surrogate.basis(points))
    surrogate = replace(found.surrogate, root=found.surrogate.root * noise / now, limit=limit)
    said = diagnose(replace(found, surrogate=surrogate, **changed), points, misfit, 0.1)
    assert [note.kind for note in said.notes] == ([] if kind is None else [kind])
    assert said.usable == (kind is None)
    assert (said.privacy_shift is None) == (kind is not None)


def test_the_shift_is_what_noise_does_to_a_mean():
    """To first order: means of draws that are weighed by the exponential of the noise."""
    model, exact = banana(n=800)
    step, _ = run(model, epsilon=1e3, draws=10)
    surrogate, points = step.surrogate.surrogate, exact(4000, np.random.default_rng(0))
    surrogate = replace(surrogate, root=0.1 * surrogate.root / surrogate.noise)
    q = surrogate.basis(points)
    moved = []
    for noise in np.random.default_rng(1).normal(size=(400, surrogate.root.shape[1])):
        weights = np.exp(q @ (surrogate.root @ noise))
        moved.append(np.average(points, axis=0, weights=weights) - points.mean(axis=0))
    seen = np.sqrt(np.mean(np.square(moved) / points.var(axis=0)))
    # A root mean square of 400 noises is known to 4 %; the second order is worth about a tenth of .1.
    assert surrogate.shift_of(points, q) == pytest.approx(seen, rel=0.15)


def test_a_likelihood_that_is_no_polynomial_is_seen(caplog):
    """A cusp at 0, of few records: whatever the draws, an alarm."""
    y = 3 + np.random.default_rng(0).normal(size=1500)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 5, shape=2, initval=np.array([0.0, 1.0]))
        pm.Normal("y", pm.math.sqrt((theta**2).sum()), 1, observed=pm.Data("Y", y))
    with caplog.at_level(logging.CRITICAL, "pymc.dp"):
        _, measured = run(model, epsilon=1.0, delta=1e-5, draws=50)
    assert measured["usable"] == 0


def test_the_report_has_the_alarms(caplog):
    model, _ = banana(n=500)
    with model, caplog.at_level(logging.CRITICAL):
        idata = dp.sample(
            50,
            chains=2,
            epsilon=8.0,
            step=partial(dp.DPSurrogate, family="polynomial"),
            **QUIET,
            **FAST,
        )
    report = str(dp.privacy_report(idata))
    for name in ("leverage", "reached", "misfit", "beyond_quadratic", "log_density_noise"):
        assert f"Diagnostic {name}" in report


# -- the switch -------------------------------------------------------------------------------------


def test_a_ring_is_left_to_the_polynomial_and_a_regression_to_the_normal_surrogate(caplog):
    with caplog.at_level(logging.CRITICAL, "pymc.dp"):
        _, curved = run(ring(), "auto", epsilon=4.0, draws=50, compile_kwargs=COMPILED)
        rng = np.random.default_rng(1)
        x = rng.normal(size=5000)
        with pm.Model() as model:
            a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
            y = rng.random(5000) < 1 / (1 + np.exp(-x))
            pm.Bernoulli("y", logit_p=a + b * pm.Data("X", x), observed=pm.Data("Y", y.astype(int)))
        _, straight = run(model, "auto", epsilon=16.0, draws=50, compile_kwargs=COMPILED)
    assert curved["family"] == "polynomial"
    assert curved.get("curvature", np.inf) > 0.25  # or the search has led along the ring
    assert straight["family"] == "normal"
    assert straight["curvature"] < 0.1


def test_few_parameters_are_what_the_switch_is_for(caplog):
    y = np.random.default_rng(2).normal(size=(400, 4))
    for d, switches in ((1, True), (4, False)):
        with pm.Model(), caplog.at_level(logging.CRITICAL):
            # With a private covariate: of public ones it is known without asking.
            mean = pm.Normal("mean", 0, 1, shape=d) + pm.Data("X", np.zeros((400, 1)))
            pm.Normal("y", mean, 1, observed=pm.Data("Y", y[:, :d]))
            idata = dp.sample(20, chains=1, epsilon=8.0, **QUIET, **FAST)
        said = json.loads(idata.attrs["privacy_diagnostics"])
        assert (said["family"], "curvature" in said) == ("normal", switches)


def test_what_a_run_found_is_at_hand():
    model, _ = banana(n=800)
    step = dp.DPSurrogate(
        family="polynomial",
        model=model,
        epsilon=50.0,
        draws=10,
        chains=1,
        noise_source=dp.InsecureSeededNoise(3),
        **FAST,
    )
    found = step.release()
    assert isinstance(found, Found)
    assert found is step.release()
    assert isinstance(
        Design(np.zeros((1, 2)), np.zeros((1, 2)), found.surrogate.basis, 1.0), Design
    )


def test_a_ring_with_a_flat_prior_is_found():
    """At its start a ring has no slope along itself: where the prior is flat, noise alone led there, to 10^5."""
    r = np.random.default_rng(0).normal(3, 1, size=20_000)

    def logp(r, theta):
        return -1e-5 * ((theta**2).sum() - r**2) ** 2

    with pm.Model() as model:
        theta = pm.Flat("theta", shape=2, initval=np.array([0.0, 1.0]))
        pm.CustomDist("r", theta, logp=logp, observed=pm.Data("R", r))
    compiled = dp.compile(model, **FAST)
    usable = []
    for seed in range(4):
        result = dp.sample(
            200, chains=2, epsilon=2.0, delta=1e-6, model=compiled, noise_source=dp.InsecureSeededNoise(seed),
            **QUIET,
        )  # fmt: skip
        usable.append(root_attrs(result)["privacy_usable"])
        drawn = groups_of(result)["posterior"]["theta"].values
        # The radius's square is N(10, 1.6²), and privacy noise moves it by about as much.
        assert abs((drawn**2).sum(axis=-1).mean() - 10) < 5
    # One run in twelve leans on its border and says so, and rounding decides which.
    assert sum(usable) >= 2
