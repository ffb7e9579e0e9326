"""Events: frozen, checked, and read from text through a closed list."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.exceptions import LedgerError, PrivacyConfigurationError
from pymc_dp.privacy.events import Gaussian, Laplace, from_json, times, to_json

events = st.builds(
    lambda kind, z, k: kind(z, k),
    st.sampled_from([Gaussian, Laplace]),
    st.floats(0, 1e300),
    st.integers(1, 2**53),
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(events, max_size=5).map(tuple))
def test_events_survive_text_exactly(release):
    assert from_json(to_json(release)) == release


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize(
    "bad", [-1.0, -5e-324, math.nan, math.inf, -math.inf, "1", None, 1j, [1.0]]
)
def test_a_multiplier_that_is_no_amount_of_noise_is_refused(kind, bad):
    """A NaN costs 0 in some accountants."""
    with pytest.raises(PrivacyConfigurationError, match="`noise_multiplier`"):
        kind(bad)


@pytest.mark.parametrize("bad", [0, -1, 1.5, 1.0, math.nan, True, "1", None])
def test_a_count_that_is_none_is_refused(bad):
    with pytest.raises(PrivacyConfigurationError, match="`count`"):
        Gaussian(1.0, bad)


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
    for none in (0, -1):
        with pytest.raises(PrivacyConfigurationError):
            times([Gaussian(2.0)], none)


GOOD = {"kind": "gaussian", "noise_multiplier": 1.0, "count": 1}


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
                {"count": 0},
                {"count": -3},
                {"count": 1.5},
                {"count": None},
            )
        ),
        *(json.dumps([{k: v for k, v in GOOD.items() if k != gone}]) for gone in GOOD),
        json.dumps([GOOD, 7]),
    ],
)
def test_text_that_is_not_events_is_refused(text):
    with pytest.raises(LedgerError, match="cannot read"):
        from_json(text)
