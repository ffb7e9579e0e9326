"""Runs under add-or-remove: what is asked for, what is refused, and what a run says of itself."""

import json
import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.guarantee import at_most
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import Gradient
from pymc_dp.records.sums import LocalRecords

FAST = {"mode": "FAST_COMPILE"}
AROUND = {"neighbours": "add-or-remove", "delta": 1e-6}
STEPS = {
    "penalty": (dp.DPPenalty, {}),
    "guided": (dp.DPPenalty, {"update": "guided"}),
    "hmc": (dp.DPHMC, {"n_leapfrog": 2}),
    "sgld": (dp.experimental.DPSGLD, {"step_size": 1e-4}),
    "sgnht": (dp.experimental.DPSGNHT, {"step_size": 1e-2}),
    "exponential": (dp.DPExponentialFamily, {"bounds": (-4, 4)}),
}


def normal(n=40, **more):
    y = np.random.default_rng(n).normal(size=n)
    with pm.Model(**more) as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", y))
    return model


@pytest.mark.parametrize("which", STEPS)
def test_every_step_that_can_runs(which, quiet):
    step, settings = STEPS[which]
    with normal():
        idata = dp.sample(
            15, chains=2, epsilon=2.0, step=step, compile_kwargs=FAST, **AROUND, **settings, **quiet
        )
    attrs = idata.attrs
    assert attrs["privacy_relation"] == "add-or-remove"
    assert attrs["privacy_valid"] == 1
    assert "privacy_units" not in attrs
    assert attrs["privacy_epsilon"] == 2.0 < attrs["privacy_epsilon_substitute_one"] < 8.0
    assert "adding or removing one record" in attrs["privacy_statement"]
    report = dp.privacy_report(idata)
    for text in (str(report), report.to_html()):
        assert "private number of units" in text
        assert at_most(report.epsilon_substitute_one) in text
    assert json.loads(report.to_json())["units"] is None


def test_the_noise_is_half_as_large_and_so_is_the_penalty(quiet):
    """Same multiplier, same noise: the chain's σ follows the noise that is there."""
    sds = {}
    for relation in (SUBSTITUTE_ONE, ADD_OR_REMOVE):
        step = dp.DPPenalty(
            noise_multiplier=3.0, scale=0.1, draws=3, chains=1, delta=1e-6, model=normal(),
            neighbours=relation.name, noise_source=InsecureSeededNoise(1), compile_kwargs=FAST,
        )  # fmt: skip
        sds[relation] = step._ratio.noise_sd(1.0), step.guarantee.settings["typical_noise_sd"]
    for one, two in zip(sds[ADD_OR_REMOVE], sds[SUBSTITUTE_ONE], strict=True):
        assert one == two / 2


@pytest.mark.parametrize(
    ("step", "settings", "says"),
    [
        (dp.DPPenalty, {"delta": None}, "give `delta`"),
        (dp.DPPenalty, {"sampling_rate": 0.5, "tempering": 0.1}, "PoissonGaussian"),
        (dp.DPBarker, {"batch_size": 10, "epsilon": None}, "DPBarker cannot"),
        (dp.experimental.DPSGLD, {}, "give `step_size`"),
        (dp.experimental.DPSGLD, {"step_size": 1e-6, "sampling_rate": 0.5}, "PoissonGaussian"),
        (dp.DPExponentialFamily, {"unit": np.arange(40) // 2, "bounds": (0, 1)}, "several records"),
        (dp.DPPenalty, {"neighbours": "add"}, "'substitute-one' or 'add-or-remove'"),
    ],
)
def test_what_is_not_proved_or_would_tell_the_number_is_refused(step, settings, says):
    given = {"epsilon": 1.0, "draws": 2, "chains": 1, **AROUND, **settings}
    with pytest.raises(dp.PrivacyConfigurationError, match=says) as refusal:
        step(model=normal(), compile_kwargs=FAST, **given)
    assert "40" not in str(refusal.value)


def test_a_trade_off_would_tell_the_number():
    with pytest.raises(dp.PrivacyConfigurationError, match="tell their number"):
        dp.tradeoff(normal(), **AROUND)


def shape_in_prior(model):
    pm.Normal("z", 0, model["Y"].shape[0])


def shape_in_deterministic(model):
    pm.Deterministic("n", model["mu"] * model["Y"].shape[0])


def shape_in_potential(model):
    pm.Potential("p", -(model["mu"] ** 2) / model["Y"].shape[0])


def shape_in_start(model):
    pm.Normal("z", 0, 1, initval=1 / model["Y"].shape[0])


def shape_from_its_end(model):
    pm.Normal("z", 0, model["Y"].shape[-1])


def shape_of_others(model):
    """Of people too, though the likelihood does not read them."""
    pm.Normal("z", 0, pm.Data("Z", np.zeros((3, 40))).shape[1])


@pytest.mark.parametrize(
    "spoil",
    [
        shape_in_prior,
        shape_in_deterministic,
        shape_in_potential,
        shape_in_start,
        shape_from_its_end,
        shape_of_others,
    ],
)
def test_the_number_of_records_may_not_reach_what_is_public(spoil):
    model = normal()
    with model:
        spoil(model)
    settings = {"epsilon": 1.0, "draws": 2, "chains": 1, "model": model, "compile_kwargs": FAST}
    dp.DPPenalty(**settings)
    with pytest.raises(dp.UnsupportedModelError, match="number of records, which is private"):
        dp.DPPenalty(**settings, **AROUND)


def length_of_dimension(model):
    pm.Normal("z", 0, model.dim_lengths["person"])


def labels_of_records(model):
    pm.Deterministic("w", model["mu"] * pt.ones(40), dims="person")


def start_of_dimension(model):
    pm.Normal("z", 0, 1, initval=1 / model.dim_lengths["person"])


@pytest.mark.parametrize("spoil", [length_of_dimension, labels_of_records, start_of_dimension])
def test_nor_by_their_dimension(spoil):
    with pm.Model(coords={"person": range(40)}) as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 40), dims="person")
        spoil(model)
    with pytest.raises(dp.UnsupportedModelError, match="number of records, which is private"):
        dp.DPPenalty(epsilon=1.0, draws=2, chains=1, model=model, compile_kwargs=FAST, **AROUND)


def test_nor_by_public_data_with_a_row_for_each():
    with pm.Model(coords={"person": range(40)}) as model:
        w = pm.Data("w", np.linspace(1, 2, 40), dims="person")
        pm.Normal("y", pm.Normal("mu") * w, 1, observed=np.linspace(-1, 1, 40), dims="person")
    settings = {"epsilon": 1.0, "draws": 2, "chains": 1, "model": model, "public": ["w"]}
    dp.DPPenalty(compile_kwargs=FAST, **settings)
    with pytest.raises(dp.UnsupportedModelError, match="'w' is declared public and has a row per"):
        dp.DPPenalty(compile_kwargs=FAST, **settings, **AROUND)


# -- for algorithms that have one privacy filter ---------------------------------------------------------------


def measurements(relation, compiled, z=0.5):
    curator = Curator(LocalRecords(compiled, 1), InsecureSeededNoise(3), relation)
    return PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z))


def test_the_number_of_units_is_released_or_public(compiled):
    model = compiled()
    public, private = (measurements(r, model) for r in (SUBSTITUTE_ONE, ADD_OR_REMOVE))
    assert public.units(0.1) == (120.0, 0.0)
    assert (public.spent, public.n_units) == (0.0, 120)
    with pytest.raises(dp.PrivacyConfigurationError, match="private"):
        _ = private.n_units
    value, sd = private.units(0.25)
    assert sd == pytest.approx(private.multiplier(0.25)) == pytest.approx(1.0)
    assert 0 < abs(value - 120) < 5 * sd
    assert private.spent == 0.25


class Long:
    """Marks of units with a positive first entry of their gradient."""

    dimension = None

    def __init__(self, theta):
        self.theta = theta

    def terms(self, records, units=None):
        for chunk in Gradient(self.theta).terms(records, units):
            yield (chunk[:, 0] > 0).astype(float)


def test_sums_and_counts_say_their_own_noise(compiled):
    model = compiled()
    theta = np.zeros(model.d)
    exact = sum(marks.sum() for marks in Long(theta).terms(LocalRecords(model, 1)))
    for relation in (SUBSTITUTE_ONE, ADD_OR_REMOVE):
        measure = measurements(relation, model)
        z = measure.multiplier(0.2)
        _, sd = measure.sum(Gradient(theta), 0.7, 0.2)
        assert sd == pytest.approx(relation.terms * 0.7 * z)
        assert measure.noise_sd(0.7, 0.2) == pytest.approx(sd)
        assert measure.count_sd(0.2) == pytest.approx(math.sqrt(relation.terms) * z)
        count, sd = measure.count(Long(theta), 0.2)
        assert sd == pytest.approx(z)
        assert 0 < abs(count - exact) < 5 * sd
        with pytest.raises(dp.PrivacyBudgetExceeded):
            measure.count(Long(theta), 0.7)


@pytest.mark.parametrize("n", [37, 64, 1001])
def test_the_others_stay_where_they_are_when_a_unit_is_removed(n, logistic):
    """Real terms, evaluated at other places then: the whole sum moves by one bound at most."""
    rng, bound = np.random.default_rng(n), 0.3
    model = logistic(n)
    whole = dp.compile(model, compile_kwargs=FAST)
    records = LocalRecords(whole, 1)
    data = [leaf.values for leaf in whole.roles.record_data]
    for unit in rng.choice(n, size=5, replace=False):
        rest = records.of_data([np.delete(values, unit, axis=0) for values in data])
        for theta in rng.normal(size=(3, whole.d)):
            moved = records.total(Gradient(theta), bound) - rest.total(Gradient(theta), bound)
            assert np.linalg.norm(moved) <= ADD_OR_REMOVE.of_sum(2**26)
