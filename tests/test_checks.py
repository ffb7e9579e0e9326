"""One rule for every number that a user gives: NumPy's are numbers, truth values are not."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.checks import (
    MIN_RATE,
    check_delta,
    check_epsilon,
    check_rate,
    fraction,
    is_whole,
    positive,
    whole,
)
from pymc_dp.evidence.bounds import lower_bound
from pymc_dp.privacy.events import BarkerBatch, Gaussian, PoissonGaussian, Pure, from_json, to_json

NO_NUMBERS = [
    True, False, np.True_, np.False_, None, "1", b"1", [0.5], (0.5,), {}, np.array([0.5]),
    np.array(0.5), 1j, np.complex64(0.5), math.nan, np.float32(math.nan), Fraction(1, 2),
    np.timedelta64(1, "s"), np.datetime64("2020-01-01"),
]  # fmt: skip
FLOATS = (float, np.float16, np.float32, np.float64, np.longdouble)
INTS = (int, np.int8, np.int32, np.int64, np.uint8, np.uint64)

# Check, values in range, values out of range.
RULES = {
    "positive": (
        partial(positive, "it"),
        [1, 0.5, 1e300, 5e-324],
        [0, -1, -0.5, math.inf, -math.inf, 10**400],
    ),
    "positive or zero": (
        partial(positive, "it", zero_allowed=True),
        [0, 0.0, 1, 0.5],
        [-1, -5e-324, math.inf, 10**400],
    ),
    "fraction": (partial(fraction, "it"), [0.5, 1 - 2**-53, 5e-324], [0, 1, 1.5, -0.5, math.inf]),
    "fraction or one": (partial(fraction, "it", one_allowed=True), [0.5, 1], [0, 1.5, -1, 10**400]),
    "rate": (partial(check_rate, "it"), [MIN_RATE, 0.5, 1], [0, MIN_RATE / 2, 1.5, math.inf]),
    "whole": (partial(whole, "it", minimum=1), [1, 100, 10**400], [0, -1, 1.0, 0.5, math.inf]),
    "epsilon": (check_epsilon, [0.5, 1, 100, math.inf, 10**400], [0, -1, -math.inf, -(10**400)]),
    "delta": (check_delta, [0.5, 1e-12], [0, 1, 1.5, -0.5, math.inf]),
}
NAMES = {"epsilon": "`epsilon`", "delta": "`delta`"}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_no_number_or_out_of_range_is_refused_by_name(rule):
    check, _, outside = RULES[rule]
    for value in [*NO_NUMBERS, *outside]:
        with pytest.raises(dp.PrivacyConfigurationError, match=NAMES.get(rule, "`it`")) as refusal:
            check(value)
        assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("rule", RULES)
def test_numbers_in_range_come_back_plain(rule):
    check, inside, _ = RULES[rule]
    kind = int if rule == "whole" else float
    for value in inside:
        assert type(check(value)) is kind
        assert check(value) == (value if kind is int or abs(value) < 1e308 else math.inf)


@pytest.mark.parametrize("kind", [*FLOATS, *INTS], ids=lambda kind: kind.__name__)
def test_every_kind_of_number_is_one(kind):
    if kind in INTS:
        assert type(whole("it", kind(7), 1)) is int
        assert positive("it", kind(7)) == check_epsilon(kind(7)) == 7.0
        assert check_rate("it", kind(1)) == fraction("it", kind(1), one_allowed=True) == 1.0
        assert is_whole(kind(7), 7) is True
        assert is_whole(kind(7), 8) is False
    else:
        for check in (positive, fraction, check_rate):
            assert type(check("it", kind(0.5))) is float
            assert check("it", kind(0.5)) == 0.5
        assert check_epsilon(kind(0.5)) == check_delta(kind(0.5)) == 0.5
        assert is_whole(kind(7), 1) is False


# -- where users give them --------------------------------------------------------------------------

BUDGET = {"epsilon": 2.0, "delta": 2.0**-20}
ROWS = np.zeros((50, 2))


def law(**settings):
    with pm.Model() as model:
        dp.GaussianMechanism("s", ROWS, **settings, observed=np.zeros(2))
    return model["s"].owner.inputs[-1].eval().tolist()


def response(**settings):
    with pm.Model() as model:
        dp.RandomizedResponse("r", [0.25, 0.75], **settings, observed=[0])
    return model["r"].owner.inputs[-1].eval().tolist()


def released(**settings):
    return dp.LaplaceMechanism.release(np.zeros(9), bounds=(0, 1), **settings).granularity


def bound(**settings):
    return lower_bound(np.arange(50.0), np.arange(50.0) + 9, **settings)


def account(**settings):
    ledger = dp.PrivacyLedger(**settings)
    return ledger.epsilon, ledger.delta


ENTRANCES = [
    (dp.calibrate_noise, {**BUDGET, "releases": 100, "sampling_rate": 0.5}),
    (dp.max_releases, {**BUDGET, "noise_multiplier": 64.0, "gradient_multiplier": 128.0,
                       "gradients_per_draw": 2}),
    (dp.max_releases, {**BUDGET, "noise_multiplier": 8.0, "sampling_rate": 0.25}),
    (dp.calibrate_batch_size, {**BUDGET, "tests": 100, "units": 1000, "variance": 2.0, "at_most": 500}),
    (dp.statistics.second_moments_sensitivity, {"q": 3}),
    (law, {**BUDGET, "sensitivity": 4.0}),
    (response, {"epsilon": 1.0}),
    (released, {"epsilon": 1.0, "granularity": 2.0**-6}),
    (bound, {"delta": 2.0**-20, "confidence": 0.75, "choose": 0.5}),
    (account, BUDGET),
    (Gaussian, {"noise_multiplier": 2.0, "count": 3}),
    (Pure, {"epsilon": 2.0, "count": 3}),
    (PoissonGaussian, {"noise_multiplier": 2.0, "sampling_rate": 0.5, "count": 3}),
    (BarkerBatch, {"variance": 2.0, "batch_size": 20, "units": 100, "count": 3}),
]  # fmt: skip
TABLE = [
    pytest.param(function, settings, name, id=f"{function.__name__}, {name}")
    for function, settings in ENTRANCES
    for name in settings
]


@pytest.mark.parametrize(("function", "settings", "name"), TABLE)
def test_numpy_numbers_are_numbers_everywhere(function, settings, name):
    value = settings[name]
    kinds = (np.int64, np.uint16) if isinstance(value, int) else (np.float32, np.float64)
    for kind in kinds:
        assert function(**{**settings, name: kind(value)}) == function(**settings)


@pytest.mark.parametrize(("function", "settings", "name"), TABLE)
def test_truth_values_are_numbers_nowhere(function, settings, name):
    for value in (True, np.True_):
        with pytest.raises(dp.PrivacyConfigurationError, match=f"`{name}`"):
            function(**{**settings, name: value})


@pytest.mark.parametrize("name", ["draws", "tune", "chains", "clip", "epsilon", "delta"])
def test_a_truth_value_is_no_setting_of_a_step(name):
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(20))
        settings = {"draws": 10, "tune": 0, "chains": 1, "epsilon": 1.0, "clip": 1.0}
        with pytest.raises(dp.PrivacyConfigurationError, match=f"`{name}`"):
            dp.DPPenalty(**{**settings, name: True})


def test_a_budget_in_single_precision_is_not_overshot():
    """NumPy compares a float with a float32 in the precision of the latter."""
    epsilon = np.float32(0.1)
    z = dp.calibrate_noise(epsilon=epsilon, delta=1e-6, releases=100)
    assert z == dp.calibrate_noise(epsilon=float(epsilon), delta=1e-6, releases=100)


def test_events_of_numpy_numbers_are_written_and_read():
    event = Gaussian(np.float32(2.5), np.int64(3))
    assert repr(event) == "Gaussian(noise_multiplier=2.5, count=3)"
    assert from_json(to_json([event])) == (event,)
