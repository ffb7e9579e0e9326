"""Both neighbouring relations: sensitivities to the last integer, costs, and accounts that keep them apart."""

import itertools
import math
import sqlite3

import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

import pymc_dp as dp
from pymc_dp.federated import Owner
from pymc_dp.privacy.accounting import gaussian_mu
from pymc_dp.privacy.clipping import MAX_DIMENSION, RESOLUTION, clipped_sum
from pymc_dp.privacy.events import BarkerBatch, Gaussian, PoissonGaussian
from pymc_dp.privacy.guarantee import at_most
from pymc_dp.privacy.histogram import counts_of, noisy_counts
from pymc_dp.privacy.kept_sum import KeptSum, direction
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE, SUBSTITUTE_ONE, neighbours_named
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.noisy_sum import noisy_sum
from pymc_dp.privacy.plans import Permit, RunPlan

BOTH = pytest.mark.parametrize("relation", [SUBSTITUTE_ONE, ADD_OR_REMOVE], ids=lambda r: r.name)
EVIL = [0.0, 1.0, -1.0, 1.0 - 1e-12, 1e-300, 1e300, -1e300, math.inf, -math.inf, math.nan]


def neighbours_of(data, others, relation):
    """All data sets next to `data`, with the units `others` to come."""
    for k in range(len(data)):
        rest = np.delete(data, k, axis=0)
        if relation is ADD_OR_REMOVE:
            yield rest
        else:
            yield from (np.concatenate([rest[:k], other[None], rest[k:]]) for other in others)
    if relation is ADD_OR_REMOVE:
        yield from (np.concatenate([data, other[None]]) for other in others)


@BOTH
@pytest.mark.parametrize("dimension", [None, 1, 3])
def test_a_sum_moves_by_its_sensitivity_at_most_and_that_is_reached(relation, dimension):
    rng, farthest = np.random.default_rng(0), 0.0
    for bound in (1.0, 0.37, 1e-150, 1e150):
        units = np.array(list(itertools.product(EVIL, repeat=dimension or 1)))
        with np.errstate(over="ignore"):
            others = bound * units[:: 1 if len(units) < 200 else 41]
        spread = bound * 10.0 ** rng.uniform(-3, 3, size=(6, 1))
        data = rng.normal(size=(6, dimension or 1)) * spread
        data[0] = bound * 2 / math.sqrt(dimension or 1)
        others = np.concatenate([others, -data[:1], data[:1]])

        def integers(some, bound=bound):
            return clipped_sum([some if dimension else some[:, 0]], bound, dimension)

        here = integers(data)
        for there in neighbours_of(data, others, relation):
            moved = float(np.linalg.norm((integers(there) - here).astype(float)))
            assert moved <= relation.of_sum(RESOLUTION)
            farthest = max(farthest, moved)
    assert farthest > relation.of_sum(RESOLUTION) * (1 - 1e-5)


@BOTH
def test_counts_move_by_their_sensitivity_at_most_and_that_is_reached(relation):
    rng = np.random.default_rng(1)
    data, others = rng.lognormal(sigma=3, size=(9, 1)), np.abs(np.array(EVIL))[:, None]

    def counts(some):
        return counts_of(iter([some[:, 0]]), 2)

    moved = [
        np.linalg.norm(counts(there) - counts(data))
        for there in neighbours_of(data, others, relation)
    ]
    assert max(moved) == pytest.approx(relation.of_counts)


@BOTH
def test_a_kept_sum_moves_by_its_sensitivity_at_most_and_that_is_reached(relation):
    """Along awkward directions; under add-or-remove the records' own number is one of the statistics."""
    rng, farthest = np.random.default_rng(2), 0.0
    for _ in range(150):
        size = int(rng.integers(1, 5))
        g = rng.normal(size=size) * 10.0 ** rng.uniform(-6, 0, size=size)
        c = float(rng.normal() * 10.0 ** rng.uniform(-6, 2)) if relation is ADD_OR_REMOVE else 0.0
        reach = float(np.abs(g).sum()) + abs(c) if c else 2 * float(np.abs(g).sum())
        along = direction(np.append(g, -c), reach, 1, relation)

        def integer(records, along=along):
            vectors = np.column_stack([records, np.ones(len(records))])
            kept = KeptSum(lambda: [vectors], vectors.shape[1])
            permit, noise = Permit(0, 0, (Gaussian(0.0),)), InsecureSeededNoise(0)
            released = kept.release(along, noise_multiplier=0, permit=permit, noise=noise)
            return round(released / (along.bound / RESOLUTION))

        corner = np.sign(g) * (-np.sign(c) if c else 1.0)
        data = np.vstack([corner, rng.uniform(-1, 1, size=(4, size))])
        others = np.vstack([corner * (1 - 0.5 / RESOLUTION), -corner, rng.uniform(-1, 1, size)])
        here = integer(data)
        for there in neighbours_of(data, others, relation):
            moved = abs(integer(there) - here)
            assert moved <= relation.of_sum(RESOLUTION)
            farthest = max(farthest, moved)
    assert farthest > relation.of_sum(RESOLUTION) * (1 - 1e-6)


@BOTH
def test_noise_is_the_multiplier_times_the_sensitivity(relation):
    z, bound, d = 3.0, 0.7, 4000
    permit, noise = Permit(0, 0, (Gaussian(z, 2),)), InsecureSeededNoise(4)
    total = noisy_sum(
        [np.zeros((5, d))], dimension=d, bound=bound, noise_multiplier=z, permit=permit,
        noise=noise, neighbours=relation,
    )  # fmt: skip
    assert total.std() == pytest.approx(z * relation.of_sum(bound), rel=0.05)
    assert relation.noise_sd(bound, z) == z * relation.of_sum(bound)
    counts = noisy_counts(
        lambda: np.zeros(d, dtype=np.int64), noise_multiplier=z, permit=permit, noise=noise,
        neighbours=relation,
    )  # fmt: skip
    assert counts.std() == pytest.approx(relation.count_sd(z), rel=0.05)
    assert relation.count_sd(z) == z * math.sqrt(relation.terms)


# -- what it costs when a unit is replaced ---------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_both_costs_against_another_accountant(epsilon, compiled):
    step = dp.DPHMC(
        epsilon=epsilon,
        delta=1e-6,
        draws=20,
        chains=2,
        neighbours="add-or-remove",
        model=compiled(),
    )
    promised = step.guarantee
    mu = gaussian_mu(promised.total)
    # A sum with noise of standard deviation s clipped at B: B/s when a unit comes or goes, 2B/s when replaced.
    assert get_epsilon_gaussian(1 / mu, 1e-6) <= promised.epsilon * (1 + 1e-6)
    replaced = get_epsilon_gaussian(1 / (2 * mu), 1e-6)
    assert promised.epsilon_substitute_one == pytest.approx(replaced, rel=1e-5)
    assert promised.epsilon_substitute_one > promised.epsilon
    assert at_most(promised.epsilon_substitute_one) in promised.sentence


@pytest.mark.parametrize("epsilon", [1e-5, 0.99991, 1.0, 2.1231, 9.9999, 12345.6])
def test_a_stated_epsilon_is_rounded_up(epsilon):
    assert epsilon * (1 - 1e-12) <= float(at_most(epsilon)) <= epsilon * 1.0011
    assert at_most(math.inf) == "inf"


def test_a_run_under_substitution_states_nothing_of_the_other(compiled):
    promised = dp.DPPenalty(epsilon=1.0, draws=5, chains=1, model=compiled()).guarantee
    assert promised.epsilon_substitute_one == promised.epsilon == 1.0
    assert "add" not in promised.sentence


@pytest.mark.parametrize("event", [PoissonGaussian(2.0, 0.1), BarkerBatch(2.0, 10, 100)])
def test_releases_about_samples_are_not_proved(event):
    with pytest.raises(dp.PrivacyConfigurationError, match=type(event).__name__):
        ADD_OR_REMOVE.check([Gaussian(1.0), event])
    SUBSTITUTE_ONE.check([event])
    assert SUBSTITUTE_ONE.under_substitution([event]) == (event,)


@pytest.mark.parametrize("name", ["add or remove", "", None, 1, ["add-or-remove"]])
def test_other_names_are_refused(name):
    with pytest.raises(dp.PrivacyConfigurationError, match="'substitute-one' or 'add-or-remove'"):
        neighbours_named(name)


def test_a_private_number_cannot_be_used():
    assert SUBSTITUTE_ONE.public_number(7919) == 7919
    with pytest.raises(dp.PrivacyConfigurationError, match="private") as refusal:
        ADD_OR_REMOVE.public_number(7919)
    assert "7919" not in str(refusal.value)


# -- accounts ----------------------------------------------------------------------------------------


def plan_of(relation, run="run"):
    return RunPlan(run, "A run", (Gaussian(30.0),), 1, 4, relation.name)


@BOTH
def test_an_account_is_of_one_relation(relation, tmp_path):
    path = tmp_path / "one.ledger"
    dp.PrivacyLedger(path, epsilon=1.0, delta=1e-6, neighbours=relation.name)
    ledger = dp.PrivacyLedger(path)
    assert ledger.neighbours == relation.name
    assert relation.name in repr(ledger)
    mine, other = (
        plan_of(relation),
        plan_of(SUBSTITUTE_ONE if relation is ADD_OR_REMOVE else ADD_OR_REMOVE, "other"),
    )
    with pytest.raises(dp.PrivacyConfigurationError, match="nothing was charged"):
        ledger.reserve(mine, other)
    assert ledger.spent() == 0
    ledger.reserve(mine)
    assert ledger.runs() == [mine]
    assert ledger.claim(mine) == 0
    ledger.charge(mine, 0, 0)
    with pytest.raises(dp.PrivacyConfigurationError, match=f"for {relation.name} neighbours"):
        dp.PrivacyLedger(path, neighbours=other.neighbours)


def test_a_new_account_is_about_substitution():
    assert dp.PrivacyLedger(epsilon=1.0, delta=1e-6).neighbours == "substitute-one"


def test_an_account_of_the_first_format_is_about_substitution(tmp_path):
    path = tmp_path / "old.ledger"
    dp.PrivacyLedger(path, epsilon=1.0, delta=1e-6)
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE account DROP COLUMN neighbours")
        db.execute("PRAGMA user_version = 1")
    db.close()
    ledger = dp.PrivacyLedger(path)
    assert (ledger.epsilon, ledger.delta, ledger.neighbours) == (1.0, 1e-6, "substitute-one")
    ledger.reserve(plan_of(SUBSTITUTE_ONE))
    with pytest.raises(dp.PrivacyConfigurationError, match="ledger of its own"):
        ledger.reserve(plan_of(ADD_OR_REMOVE, "other"))


def test_a_run_of_the_other_kind_is_refused_before_it_is_charged(compiled):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(dp.PrivacyConfigurationError, match='neighbours="substitute-one"'):
        dp.DPPenalty(
            epsilon=0.5, draws=5, chains=1, ledger=ledger, neighbours="add-or-remove",
            model=compiled(),
        )  # fmt: skip
    assert ledger.spent() == 0


def test_an_owner_takes_no_account_of_the_other_kind(logistic):
    ledger = dp.PrivacyLedger(epsilon=1.0, delta=1e-6, neighbours="add-or-remove")
    with pytest.raises(dp.PrivacyConfigurationError, match="add-or-remove"):
        Owner(epsilon=0.5, ledger=ledger, ratios=3, ratio_share=1, model=logistic())
    assert ledger.spent() == 0


def test_an_acute_sum_has_room_for_the_truncation_of_the_longest_terms():
    """An inner product of two images is not below -2 R √D, whatever D may be: the first step of the proof of second moments."""
    needed = math.sqrt(2 * (1 + 2 * math.sqrt(MAX_DIMENSION) / RESOLUTION))
    assert SUBSTITUTE_ONE.of_acute_sum(1.0) >= needed
