"""Models that several test files share. Interpreted mode: compiling is not what they test."""

from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_dp as dp
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.noise import SecureNoise
from pymc_dp.surrogate.polynomial.settings import SETTINGS

FAST = {"mode": "FAST_COMPILE"}


def make_logistic(n: int = 120, d: int = 2, seed: int = 0) -> pm.Model:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (rng.random(n) < 1 / (1 + np.exp(-x.sum(axis=1)))).astype(np.int64)
    coords = {"patient": [f"p{seed}-{i}" for i in range(n)], "feature": list("abcdefgh"[:d])}
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", 0, 1, dims="feature")
        X = pm.Data("X", x, dims=("patient", "feature"))
        pm.Bernoulli("ill", logit_p=X @ beta, observed=y, dims="patient")
    return model


def _draw_the_same(monkeypatch):
    rng = np.random.default_rng(20261122)

    def discrete_gaussian(self, scale, size, at=()):
        return np.rint(scale * rng.standard_normal(size)).astype(np.int64)

    def discrete_laplace(self, scale, size, at=()):
        return np.rint(rng.laplace(0, scale, size)).astype(np.int64)

    def l2(self, scale, size, at=()):
        length = scale * np.sqrt(rng.chisquare(size + 1))
        return np.rint(length * rng.standard_normal(size)).astype(np.int64)

    def words(self, size, at=()):
        return rng.integers(2**64, size=size, dtype=np.uint64)

    monkeypatch.setattr(SecureNoise, "discrete_gaussian", discrete_gaussian)
    monkeypatch.setattr(SecureNoise, "discrete_laplace", discrete_laplace)
    monkeypatch.setattr(SecureNoise, "l2", l2)
    monkeypatch.setattr(SecureNoise, "words", words)


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    """The secure source draws the same in every run of a test, so that none fails by chance.

    Its own law, and that no seed reaches it, are tested in `privacy`, where this does not hold.
    """
    _draw_the_same(monkeypatch)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """What is made once for many tests is the same whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        _draw_the_same(patch)
        return (yield)


@pytest.fixture
def canned_totals(monkeypatch):
    """Totals over the units are paid for, go through the data, and then have nothing to do with them."""

    def install(total_of):
        """A function of the dimension, the bound and what the permit gave."""

        def total(parts, *, dimension=None, bound, noise_multiplier, permit, **others):
            for _ in parts:
                pass
            return total_of(dimension, bound, permit.take(Gaussian(noise_multiplier)))

        monkeypatch.setattr("pymc_dp.records.curator.noisy_total", total)

    return install


@pytest.fixture
def canned_releases(monkeypatch, canned_totals):
    """Totals and counts that have nothing to do with the units, and one number for every run."""
    canned_totals(lambda size, B, _: B * np.random.default_rng(size or 0).normal(size=size))

    def counts(counts, *, noise_multiplier, permit, noise, neighbours):
        size = len(counts())
        permit.take(Gaussian(noise_multiplier))
        return 100 * np.random.default_rng(5).random(size)

    monkeypatch.setattr("pymc_dp.records.curator.noisy_counts", counts)
    monkeypatch.setattr("pymc_dp.steps.run.secrets.randbits", lambda bits: 7)


@pytest.fixture(scope="session")
def logistic():
    return make_logistic


@cache
def compiled_logistic(n: int = 120, d: int = 2, seed: int = 0) -> dp.CompiledModel:
    return dp.compile(make_logistic(n, d, seed), compile_kwargs=FAST)


@pytest.fixture(scope="session")
def compiled():
    """The same, compiled once for all tests of a worker: neither it nor its model is to be changed."""
    return compiled_logistic


@pytest.fixture
def interpret():
    """What PyMC compiles for its own ends in each run anew (what a trace keeps, starting points) is interpreted too."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture
def few_moves(monkeypatch):
    """Walkers of a polynomial move less, where it does not matter how well they have mixed."""
    monkeypatch.setitem(vars(SETTINGS), "moves", 40)


@pytest.fixture(scope="session")
def fast():
    return {"compile_kwargs": FAST}


@pytest.fixture(scope="session")
def quiet():
    """Keywords of pm.sample for short silent runs."""
    return {"cores": 1, "progressbar": False, "compute_convergence_checks": False}


def pytest_collection_modifyitems(items):
    """Networks and clusters first: they are set up once for a file whose tests nobody steals from its end."""
    slow = ("test_federated_flower", "test_shards")
    items.sort(key=lambda item: item.module.__name__.rpartition(".")[2] not in slow)
