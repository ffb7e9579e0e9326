"""Chunks of whole units, and likelihoods and gradients of some units only."""

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.roles import find_roles

from .zoo import build, graph_of, likelihood_of

FAST = {"mode": "FAST_COMPILE"}
SWEEP = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def unit_ids(lengths, seed):
    """Units with these numbers of records, all mixed up."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(lengths)), lengths))


def records_of(chunk, n):
    return np.arange(n)[chunk.records]


# -- chunks -----------------------------------------------------------------------------------------


def check_chunks(chunks, ids, units, size):
    """Units `units`, in that order, each with all of its records, and no chunk larger than it must be."""
    met, n = [], len(ids)
    for chunk in chunks:
        records = records_of(chunk, n)
        starts = np.arange(len(records)) if chunk.starts is None else chunk.starts
        assert starts[0] == 0
        parts = np.split(records, starts[1:])
        owners = [set(ids[part]) for part in parts]
        assert all(len(owner) == 1 for owner in owners)
        for part, owner in zip(parts, owners, strict=True):
            assert sorted(part) == np.flatnonzero(ids == min(owner)).tolist()
        met += [min(owner) for owner in owners]
        assert len(records) <= size or len(parts) == 1
        # per_unit adds up what belongs together.
        values = np.random.default_rng(0).normal(size=(len(records), 2))
        expected = [values[np.isin(records, part)].sum(axis=0) for part in parts]
        np.testing.assert_allclose(chunk.per_unit(values), expected, rtol=1e-12)
        np.testing.assert_allclose(chunk.per_unit(values[:, 0]), np.array(expected)[:, 0])
    assert met == list(units)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    size=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@SWEEP
def test_every_unit_once_and_never_cut(lengths, size, seed):
    ids = unit_ids(lengths, seed)
    chunks = UnitChunks(ids, len(ids), size)
    check_chunks(list(chunks.all()), ids, range(len(lengths)), size)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    size=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@SWEEP
def test_some_units_in_the_order_asked_for(lengths, size, seed):
    ids, rng = unit_ids(lengths, seed), np.random.default_rng(seed)
    some = rng.permutation(len(lengths))[: rng.integers(0, len(lengths) + 1)]
    chunks = UnitChunks(ids, len(ids), size)
    check_chunks(list(chunks.of(some)), ids, some, size)


@given(n=st.integers(1, 50), size=st.integers(1, 60), seed=st.integers(0, 99))
@SWEEP
def test_records_that_are_units(n, size, seed):
    rng, chunks = np.random.default_rng(seed), UnitChunks(None, n, size)
    check_chunks(list(chunks.all()), np.arange(n), range(n), size)
    some = rng.permutation(n)[: rng.integers(0, n + 1)]
    check_chunks(list(chunks.of(some)), np.arange(n), some, size)


def test_chunks_are_as_full_as_they_can_be():
    ids = np.repeat(np.arange(6), [2, 2, 3, 9, 1, 4])
    sizes = [len(chunk.records) for chunk in UnitChunks(ids, len(ids), 5).all()]
    assert sizes == [4, 3, 9, 5]


def test_nobody_is_no_chunk():
    for ids in (None, np.arange(5) % 2):
        assert list(UnitChunks(ids, 5, 3).of(np.empty(0, np.int64))) == []


# -- what is evaluated ------------------------------------------------------------------------------

MODELS = ["linear", "logistic", "varying_intercepts", "student_t"]


def on_another_axis():
    rng = np.random.default_rng(1)
    with pm.Model(coords={"time": range(4), "patient": range(30)}) as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        dims = ("time", "patient")
        y = pm.Data("Y", rng.normal(size=(4, 30)), dims=dims)
        pm.Normal("y", mu, sigma, observed=y, dims=dims)
    return model, "patient"


CASES = [(name, kind) for name in MODELS for kind in ("records", "persons")]


def make(name, kind, chunk_size):
    model, unit = on_another_axis() if name == "another axis" else (build(name), None)
    if kind == "persons":
        n = find_roles(model, None).n_records
        # Of very different sizes, and numbered with gaps.
        weights = 1 / np.arange(1, 14)
        unit = 7 * np.random.default_rng(0).choice(13, size=n, p=weights / weights.sum())
    roles = find_roles(model, unit)
    likelihood = likelihood_of(model, roles, chunk_size=chunk_size, compile_kwargs=FAST)
    theta = ParameterSpace(model).start
    return model, likelihood, theta + 0.1 * np.random.default_rng(3).normal(size=len(theta))


def samples(units):
    rng = np.random.default_rng(4)
    yield np.arange(units)
    yield np.empty(0, np.int64)
    yield np.array([units - 1])
    for share in (0.2, 0.6):
        yield np.flatnonzero(rng.random(units) < share)


@pytest.mark.sweep
@pytest.mark.parametrize("chunk_size", [5, 10_000])
@pytest.mark.parametrize(("name", "kind"), [*CASES, ("another axis", "patient")])
def test_likelihoods_of_some_units_are_theirs_among_all(name, kind, chunk_size):
    _, likelihood, theta = make(name, kind, chunk_size)
    everyone = likelihood(theta)
    assert everyone.shape == (likelihood.n_units,)
    for some in samples(likelihood.n_units):
        found = likelihood.of_units(theta, some)
        assert found.shape == some.shape
        np.testing.assert_allclose(found, everyone[some], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("method", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("linear", "persons"), ("varying_intercepts", "records"), ("another axis", "patient")],
)
def test_gradients_of_some_units_are_theirs_among_all(name, kind, method):
    model, likelihood, theta = make(name, kind, 7)
    gradients = UnitGradients(
        graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST, method=method
    )
    everyone = np.concatenate(list(gradients(theta)))
    assert len(everyone) == likelihood.n_units
    for some in samples(likelihood.n_units):
        found = list(gradients(theta, some))
        if len(some) == 0:
            assert found == []
            continue
        np.testing.assert_allclose(np.concatenate(found), everyone[some], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["records", "persons"])
def test_nobody_else_is_evaluated(kind):
    model, likelihood, theta = make("linear", kind, 6)
    gradients = UnitGradients(
        graph_of(model, likelihood.roles), likelihood, compile_kwargs=FAST, method="reverse"
    )
    seen = []
    rows = likelihood.rows
    likelihood.rows = lambda which: seen.append(np.arange(60)[which]) or rows(which)
    some = np.array([0, 3, 4, 11])
    ids = likelihood.roles.unit_of_record
    theirs = some if ids is None else np.flatnonzero(np.isin(ids, some))
    for evaluate in (
        lambda: likelihood.of_units(theta, some),
        lambda: list(gradients(theta, some)),
    ):
        seen.clear()
        evaluate()
        assert sorted(np.concatenate(seen)) == theirs.tolist()


def test_one_bad_record_in_a_sample_keeps_to_itself():
    """Its own term is whatever it is; the others' are bit-identical to what they were."""
    data = np.random.default_rng(0).normal(size=30)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=pm.Data("Y", data))
    likelihood = likelihood_of(model, find_roles(model, None), compile_kwargs=FAST)
    some = np.arange(0, 30, 2)
    before = likelihood.of_units(np.array([0.3]), some)
    for value in (np.nan, np.inf, 1e200):
        spoiled = data.copy()
        spoiled[8] = value
        likelihood._data = [spoiled]
        after = likelihood.of_units(np.array([0.3]), some)
        np.testing.assert_array_equal(after[some != 8], before[some != 8])
        assert not np.isfinite(after[some == 8]).any() or abs(value) == 1e200
