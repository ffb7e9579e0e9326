"""Averages over people: what they are, sensitivity, cost, what leaves, what is refused."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_dp as dp
from pymc_dp.assessment.quantities import Quantities
from pymc_dp.assessment.standing import Deviations, People, Standing
from pymc_dp.compat import from_groups, groups_of, root_attrs
from pymc_dp.privacy.clipping import RESOLUTION
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise

FAST = {"mode": "FAST_COMPILE"}
N, S = 400, 60
EFFECT = {"do": {"T": 1}, "minus": {"T": 0}}
EXACT = {"epsilon": 1e7, "delta": 1e-6}


def people(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    t = (rng.random(n) < expit(x[:, 0])).astype(int)
    return x, t, (rng.random(n) < expit(x[:, 1] + t)).astype(int)


def trial(x, t, y, group=None):
    with pm.Model() as model:
        X, T = pm.Data("X", x, dims=("person", "k")), pm.Data("T", t, dims="person")
        g, b, tau = pm.Normal("g", 0, 1), pm.Normal("b", 0, 1, shape=2), pm.Normal("tau", 0, 1)
        pm.Bernoulli("treated", logit_p=g * X[:, 0], observed=T, dims="person")
        p = pm.Deterministic("p", pm.math.invlogit(X @ b + tau * T), dims="person")
        pm.Deterministic("coupled", p - p.mean(), dims="person")
        pm.Deterministic("odds", pm.math.exp(tau))
        pm.Bernoulli("y", p, observed=pm.Data("Y", y, dims="person"), dims="person")
        pm.Data("G", x[:, 0] > 0.5 if group is None else group, dims="person")
    return model


def parameters():
    rng = np.random.default_rng(5)
    return {
        "g": 1 + 0.1 * rng.normal(size=S),
        "b": [0, 1] + 0.1 * rng.normal(size=(S, 2)),
        "tau": 1 + 0.3 * rng.normal(size=S),
    }


@pytest.fixture(scope="module")
def fitted():
    """A trial, compiled, and a released result with draws that are known."""
    model = dp.compile(trial(*people()), compile_kwargs=FAST)
    idata = dp.sample(
        S // 2, chains=2, model=model, step=dp.DPPenalty, epsilon=5.0, cores=1, progressbar=False
    )
    groups = groups_of(idata)
    posterior = groups["posterior"].copy()
    for name, values in parameters().items():
        posterior[name] = posterior[name].copy(data=values.reshape(posterior[name].shape))
    return model, from_groups({**groups, "posterior": posterior}, root_attrs(idata), like=idata)


def by_hand():
    """Means p of everybody at every draw, treated, not treated and as they are; and what is observed."""
    (x, t, y), at = people(), parameters()
    eta = at["b"] @ x.T
    p1, p0 = expit(eta + at["tau"][:, None]), expit(eta)
    return x, t, y, p1, p0, np.where(t == 1, p1, p0), expit(at["g"][:, None] * x[:, 0])


def test_with_much_budget_averages_are_the_exact_ones(fitted):
    model, idata = fitted
    x, t, y, p1, p0, p, e = by_hand()
    of = {
        "risk": "p",
        "effect": dp.Average("p", **EFFECT),
        "treated": dp.Average("p", **EFFECT, among="T"),
        "group": dp.Average("p", among="G"),
        "square": model.model["p"] ** 2,
        "rate": "y",
        "robust": dp.Average("p", **EFFECT, outcome="y"),
        "robust among": dp.Average("p", **EFFECT, outcome="y", among="treated"),
    }
    found = dp.average(idata, model, of, **EXACT)
    m = {k: found.table["mean"][k] for k in of}
    G = x[:, 0] > 0.5
    phi = p1 - p0 + t * (y - p1) / e - (1 - t) * (y - p0) / (1 - e)
    weighed = t * (y - p0) - (1 - t) * e / (1 - e) * (y - p0)
    exact = {
        "risk": p.mean(), "effect": (p1 - p0).mean(), "treated": (p1 - p0)[:, t == 1].mean(),
        "group": p[:, G].mean(), "square": (p**2).mean(), "rate": y.mean(), "robust": phi.mean(),
        "robust among": weighed.mean() / t.mean(),
    }  # fmt: skip
    for name, value in exact.items():
        # Draws of what is uncertain: 20 replicates of 60.
        assert m[name] == pytest.approx(value, abs=4 * found.table["sd"][name] / np.sqrt(20 * S))
    # The parameters' part is exact: linear and quadratic functions can take any values at 60 draws of 4 parameters, nearly.
    effect = (p1 - p0).mean(axis=1)
    assert found.table["parameters"]["effect"] == pytest.approx(effect.std(), rel=0.01)
    assert found.table["people"]["rate"] == pytest.approx(y.std() / np.sqrt(N), rel=0.01)
    assert found.table["parameters"]["rate"] == 0
    assert (found.table["noise"] < 1e-3).all()
    alone = dp.average(idata, model, of["effect"], over="people", **EXACT)
    assert alone.table["people"].iloc[0] == 0
    drawn = alone.draws["p"]
    assert drawn.dims == ("chain", "draw")
    assert np.corrcoef(drawn.values.ravel(), effect)[0, 1] > 0.999


def test_units_of_several_records_count_once(fitted):
    x, t, y = people()
    unit = np.r_[np.zeros(N // 2, int), np.arange(1, N // 2 + 1)]
    model = dp.compile(trial(x, t, y), unit=unit, compile_kwargs=FAST)
    F = next(Quantities(model, {"p": dp.Average("y")}).at(np.zeros((2, model.d))))
    assert F.shape == (2, N // 2 + 1, 1)
    assert F[0, 0, 0] == pytest.approx(y[: N // 2].mean())
    np.testing.assert_allclose(F[0, 1:, 0], y[N // 2 :])


class _Known:
    """Numbers that are what they are, in place of a model's."""

    def __init__(self, F):
        self.F, self.n_units = np.asarray(F, float), np.shape(F)[1]

    def at(self, thetas):
        yield self.F


EXTREME = [[0, 0], [1e9, -1e9], [-1e9, 1e9], [np.nan, 1], [np.inf, 0], [0.3, -0.2], [1e300, 1e300]]


@pytest.mark.parametrize("bound", [0.01, 1.0, 50.0])
def test_no_unit_moves_a_sum_further_than_its_sensitivity(bound):
    """Every pair of units, replaced and left out: by brute force."""
    A = np.array([[1.0, 0.5], [0.0, 2.0]])
    for of in (Standing(A, np.array([0.1, -0.2]), np.ones(2)), Deviations(A, 3)):
        images = []
        for u in EXTREME:
            F = np.array([u, [0.0, 0.0], [-1.0, 2.0]])[:, None, :]
            images.append(People(_Known(F), np.zeros((3, 1))).total(of, bound))
        images = np.array(images)
        apart = np.linalg.norm(images[:, None] - images, axis=2).max()
        assert apart <= SUBSTITUTE_ONE.of_sum(RESOLUTION)
        assert np.linalg.norm(images, axis=1).max() <= ADD_OR_REMOVE.of_sum(RESOLUTION)


def test_one_persons_records_change_no_other_number():
    x, t, y = people()
    before = dp.compile(trial(x, t, y), compile_kwargs=FAST)
    x2, t2, y2 = x.copy(), t.copy(), y.copy()
    x2[7], t2[7], y2[7] = np.inf, 1 - t[7], 1 - y[7]
    after = dp.compile(trial(x2, t2, y2, group=x[:, 0] > 0.5), compile_kwargs=FAST)
    of = {"a": dp.Average("p", **EFFECT, outcome="y", among="G")}
    theta = np.random.default_rng(0).normal(size=(3, before.d))
    one, other = (next(Quantities(m, of).at(theta)) for m in (before, after))
    kept = np.arange(N) != 7
    np.testing.assert_array_equal(one[:, kept], other[:, kept])
    assert not np.array_equal(one[:, 7], other[:, 7])


def test_it_costs_what_was_asked_for_and_reads_nothing_before(fitted, monkeypatch):
    model, idata = fitted
    read, at = [], Quantities.at
    monkeypatch.setattr(Quantities, "at", lambda self, x: read.append(1) or at(self, x))
    ledger = dp.PrivacyLedger(epsilon=0.5, delta=1e-6)
    with pytest.raises(dp.PrivacyBudgetExceeded, match=r"average .* Nothing was released"):
        dp.average(idata, model, "p", epsilon=0.6, ledger=ledger)
    assert not read
    assert not ledger.runs()
    found = dp.average(idata, model, "p", epsilon=0.4, ledger=ledger)
    (plan,) = ledger.runs()
    assert "average" in plan.description
    assert read
    assert ledger.spent() == pytest.approx(0.4, rel=1e-6)
    assert "(0.4, 1e-06)-differentially private" in found.statement


@pytest.mark.parametrize("neighbours", ["substitute-one", "add-or-remove"])
@pytest.mark.parametrize("over", ["population", "people"])
def test_releases_stay_within_the_filter(fitted, neighbours, over, monkeypatch):
    taken, permit = [], PrivacyFilter.permit
    monkeypatch.setattr(
        PrivacyFilter, "permit", lambda self, share, count=1: taken.append(share) or permit(self, share, count)
    )  # fmt: skip
    model, idata = fitted
    of = {"a": "p", "b": dp.Average("p", **EFFECT, among="G"), "c": "y"}
    dp.average(idata, model, of, epsilon=2.0, delta=1e-5, neighbours=neighbours, over=over)
    assert sum(taken) == pytest.approx(1, abs=1e-6)


def test_the_table_is_a_function_of_releases_alone(fitted, canned_releases):
    model, idata = fitted
    x, t, y = people(9)
    x[:3] = [[1e308], [np.inf], [-np.inf]]
    other = dp.compile(trial(x, t, y), compile_kwargs=FAST)
    of = {"a": "p", "b": dp.Average("p", **EFFECT, among="G", outcome="y")}
    with np.errstate(all="raise"):
        one, two = (dp.average(idata, m, of, epsilon=1.0, delta=1e-5) for m in (model, other))
    assert str(one) == str(two)
    np.testing.assert_array_equal(one.draws.to_array(), two.draws.to_array())


def test_few_people_and_little_budget_give_wide_intervals(fitted):
    model, idata = fitted
    few = dp.average(
        idata, model, dp.Average("p", among=model.model["X"][:, 0] > 2.2), epsilon=5.0, delta=1e-5
    )
    assert few.table["high"].iloc[0] - few.table["low"].iloc[0] > 0.5
    lost = dp.average(idata, model, "p", epsilon=0.01, delta=1e-5)
    assert lost.table["high"].iloc[0] == np.inf
    assert "nothing stood out" in str(lost)
    assert np.isnan(lost.draws["p"]).all()


REFUSED = {
    "no variable 'nobody'": "nobody",
    "one number per record": "odds",
    "depends on other records": "coupled",
    "which it does not depend on": dp.Average("p", do={"Y": 1}),
    "discrete law in the model": dp.Average("p", do={"X": 1}, outcome="y"),
    "neither parameters nor observed": dp.Average("y", do={"T": 1}),
    "says what to average": {},
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_cannot_be_averaged_is_refused_before_anything_is_spent(fitted, match):
    model, idata = fitted
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(dp.PrivacyError, match=match):
        dp.average(idata, model, REFUSED[match], epsilon=0.5, ledger=ledger)
    assert not ledger.runs()


def test_draws_of_others_and_wrong_settings_are_refused(fitted):
    model, idata = fitted
    attrs, groups = root_attrs(idata), groups_of(idata)
    for changed, match in (
        ({}, "have not been released"),
        ({**attrs, "privacy_valid": 0}, "carry no guarantee"),
        ({**attrs, "privacy_unit": "one clinic"}, "`unit` as it was given"),
    ):
        with pytest.raises(dp.PrivacyError, match=match):
            dp.average(from_groups(groups, changed, like=idata), model, "p", epsilon=1.0)
    with pytest.raises(dp.PrivacyConfigurationError, match="`over` must be"):
        dp.average(idata, model, "p", over="everybody", epsilon=1.0)


def test_noise_that_is_insecure_is_said_to_be(fitted):
    model, idata = fitted
    found = dp.average(idata, model, "p", epsilon=1.0, noise_source=InsecureSeededNoise(1))
    assert "NOT PRIVATE" in str(found)
    assert "NOT PRIVATE" in found._repr_html_()
