"""Events: frozen, checked, and read from text through a closed list."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.exceptions import LedgerError, PrivacyConfigurationError
from pymc_dp.privacy.events import (
    MAX_L2_DIMENSION,
    BarkerBatch,
    Gaussian,
    GaussianOrL2,
    L2Mechanism,
    L2Option,
    Laplace,
    PoissonGaussian,
    from_json,
    times,
    to_json,
)

multipliers, counts = st.floats(0, 1e300), st.integers(1, 2**53)
dimensions = st.integers(1, MAX_L2_DIMENSION)
events = st.one_of(
    st.builds(Gaussian, multipliers, counts),
    st.builds(Laplace, multipliers, counts),
    st.builds(PoissonGaussian, multipliers, st.floats(1e-300, 1), counts),
    st.builds(
        lambda c, b, more, k: BarkerBatch(c, b, b + more, k),
        st.floats(1, 3.28, exclude_min=True),
        st.integers(2, 2**40),
        st.integers(0, 2**40),
        counts,
    ),
    st.builds(L2Mechanism, multipliers, dimensions, counts),
    st.builds(GaussianOrL2, multipliers, multipliers, dimensions, counts),
)
ONE_OF_EACH = (
    Gaussian(1.0),
    Laplace(1.0),
    PoissonGaussian(1.0, 0.5),
    BarkerBatch(2.0, 100, 1000),
    L2Mechanism(1.0, 5),
    GaussianOrL2(2.0, 1.0, 5),
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(events, max_size=5).map(tuple))
def test_events_survive_text_exactly(release):
    assert from_json(to_json(release)) == release


def test_text_of_each_kind_is_what_ledger_files_hold():
    """A file written by an earlier version must keep its meaning."""
    assert json.loads(to_json(ONE_OF_EACH)) == [
        {"kind": "gaussian", "noise_multiplier": 1.0, "count": 1},
        {"kind": "laplace", "noise_multiplier": 1.0, "count": 1},
        {"kind": "poisson_gaussian", "noise_multiplier": 1.0, "sampling_rate": 0.5, "count": 1},
        {"kind": "barker_batch", "variance": 2.0, "batch_size": 100, "units": 1000, "count": 1},
        {"kind": "l2_mechanism", "noise_multiplier": 1.0, "dimension": 5, "count": 1},
        {
            "kind": "gaussian_or_l2",
            "gaussian_multiplier": 2.0,
            "l2_multiplier": 1.0,
            "dimension": 5,
            "count": 1,
        },
    ]


@pytest.mark.parametrize(
    "kind", [Gaussian, Laplace, lambda z: PoissonGaussian(z, 0.5), lambda z: L2Mechanism(z, 5)]
)
@pytest.mark.parametrize(
    "bad", [-1.0, -5e-324, math.nan, math.inf, -math.inf, "1", None, 1j, [1.0]]
)
def test_a_multiplier_that_is_no_amount_of_noise_is_refused(kind, bad):
    """A NaN costs 0 in some accountants."""
    with pytest.raises(PrivacyConfigurationError, match="`noise_multiplier`"):
        kind(bad)


@pytest.mark.parametrize("bad", [0, -1, 1.5, 1.0, math.nan, True, "1", None])
def test_a_count_that_is_none_is_refused(bad):
    for event in ONE_OF_EACH:
        with pytest.raises(PrivacyConfigurationError, match="`count`"):
            dataclasses.replace(event, count=bad)


@pytest.mark.parametrize("bad", [0, -0.1, 1 + 2**-52, 2, math.nan, math.inf, True, "0.5", None])
def test_a_sampling_rate_that_is_no_probability_is_refused(bad):
    with pytest.raises(PrivacyConfigurationError, match="`sampling_rate`"):
        PoissonGaussian(1.0, bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", None])
def test_either_multiplier_of_a_choice_is_checked(bad):
    for name in ("gaussian_multiplier", "l2_multiplier"):
        with pytest.raises(PrivacyConfigurationError, match=f"`{name}`"):
            GaussianOrL2(
                **{"gaussian_multiplier": 1.0, "l2_multiplier": 1.0, "dimension": 5, name: bad}
            )


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "5", None, MAX_L2_DIMENSION + 1])
def test_a_dimension_that_the_cost_is_not_known_for_is_refused(bad):
    for make in (L2Mechanism, lambda z, d: GaussianOrL2(z, z, d), lambda z, d: L2Option(z, d, 0.1)):
        with pytest.raises(PrivacyConfigurationError, match="dimension"):
            make(1.0, bad)


@pytest.mark.parametrize("bad", [-0.1, 1, 1.5, math.nan, None])
def test_an_option_after_everything_is_none(bad):
    with pytest.raises(PrivacyConfigurationError, match="`share`"):
        L2Option(1.0, 5, bad)


def test_an_option_costs_the_part_before_it_and_the_choice():
    first, choice = L2Option(1.5, 5, 0.36).events(3.0)
    assert first.noise_multiplier == pytest.approx(5.0)
    assert choice.gaussian_multiplier == pytest.approx(3.75)
    assert choice == GaussianOrL2(choice.gaussian_multiplier, 1.5, 5)
    assert L2Option(1.5, 5, 0.0).events(3.0) == (GaussianOrL2(3.0, 1.5, 5),)


@pytest.mark.parametrize("bad", [1, 0.5, -2.0, math.pi**2 / 3, 4, math.nan, math.inf, "2", None])
def test_a_variance_that_leaves_no_noise_or_no_correction_is_refused(bad):
    with pytest.raises(PrivacyConfigurationError, match="`variance`"):
        BarkerBatch(bad, 100, 1000)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        *(((b, 1000), "batch_size") for b in (1, 0, -5, 10.0, math.nan, True, "10", None)),
        *(((100, n), "units") for n in (99, 0, -1000, 1000.0, math.inf, "1000", None)),
    ],
)
def test_a_batch_that_cannot_be_drawn_is_refused(sizes, name):
    with pytest.raises(PrivacyConfigurationError, match=f"`{name}`"):
        BarkerBatch(2.0, *sizes)


def test_a_truth_value_is_no_multiplier():
    with pytest.raises(PrivacyConfigurationError):
        Gaussian(True)


def test_events_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gaussian(1.0).noise_multiplier = 2.0


def test_kinds_are_told_apart():
    assert Gaussian(1.0) != Laplace(1.0)
    assert Gaussian(np.float64(1.0)) == Gaussian(1)


def test_times_multiplies_counts_and_nothing_else():
    assert times([Gaussian(2.0, 3), Laplace(1.0)], 5) == (Gaussian(2.0, 15), Laplace(1.0, 5))
    sampled = PoissonGaussian(2.0, 0.1, 3), BarkerBatch(1.5, 10, 40)
    assert times(sampled, 5) == (PoissonGaussian(2.0, 0.1, 15), BarkerBatch(1.5, 10, 40, 5))
    for none in (0, -1):
        with pytest.raises(PrivacyConfigurationError):
            times([Gaussian(2.0)], none)


GOOD = {"kind": "gaussian", "noise_multiplier": 1.0, "count": 1}
SAMPLED = {"kind": "poisson_gaussian", "noise_multiplier": 1.0, "sampling_rate": 0.5, "count": 1}
L2 = {"kind": "l2_mechanism", "noise_multiplier": 1.0, "dimension": 5, "count": 1}
CHOICE = {
    "kind": "gaussian_or_l2",
    "gaussian_multiplier": 2.0,
    "l2_multiplier": 1.0,
    "dimension": 5,
    "count": 1,
}
BATCH = {"kind": "barker_batch", "variance": 2.0, "batch_size": 10, "units": 40, "count": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "3",
        '"gaussian"',
        json.dumps(GOOD),
        *(
            json.dumps([{**GOOD, **change}])
            for change in (
                {"kind": "teleport"},
                {"kind": "os.system"},
                {"kind": None},
                {"kind": ["gaussian"]},
                {"noise_multiplier": -1.0},
                {"noise_multiplier": math.nan},
                {"noise_multiplier": math.inf},
                {"noise_multiplier": "1"},
                {"noise_multiplier": 10**400},
                {"sampling_rate": 0.5},
                {"comment": ""},
                {"count": 0},
                {"count": -3},
                {"count": 1.5},
                {"count": None},
            )
        ),
        *(
            json.dumps([{**SAMPLED, "sampling_rate": bad}])
            for bad in (0, -1, 1.5, math.nan, math.inf, "1", None, True)
        ),
        *(
            json.dumps([{**BATCH, **change}])
            for change in (
                {"variance": 1.0},
                {"variance": math.nan},
                {"batch_size": 1},
                {"batch_size": 41},
                {"units": 9},
                {"units": 40.0},
                {"noise_multiplier": 1.0},
            )
        ),
        *(
            json.dumps([{k: v for k, v in event.items() if k != gone}])
            for event in (GOOD, SAMPLED, BATCH, L2, CHOICE)
            for gone in event
        ),
        *(json.dumps([{**L2, "dimension": bad}]) for bad in (0, 33, 2.5, "5", None)),
        *(json.dumps([{**CHOICE, "l2_multiplier": bad}]) for bad in (-1, math.nan, "1", None)),
        json.dumps([GOOD, 7]),
    ],
)
def test_text_that_is_not_events_is_refused(text):
    with pytest.raises(LedgerError, match="cannot read"):
        from_json(text)
