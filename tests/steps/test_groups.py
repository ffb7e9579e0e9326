"""Models of many groups: what is cut, what is summed, what is learnt, and what it rests on."""

import functools
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_dp as dp
from pymc_dp.likelihood.shape import Shape
from pymc_dp.likelihood.simulated import Scores
from pymc_dp.linalg import as_matrix, shrink
from pymc_dp.privacy.clipping import RESOLUTION, Sparse, add_clipped, clipped_sum
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.group_information import (
    Coupling,
    GroupInformation,
    SharedInformation,
    Steepness,
)
from pymc_dp.records.grouped import Elsewhere, GroupScore, Preconditioner
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import expected
from pymc_dp.records.sums import LocalRecords
from pymc_dp.steps import hierarchical
from pymc_dp.steps.hierarchical import (
    HierarchicalFamily,
    attenuation,
    groups_are_normal,
    has_groups,
    law_model,
)
from pymc_dp.surrogate.hierarchical import fit
from pymc_dp.surrogate.hierarchical.bends import bends
from pymc_dp.surrogate.hierarchical.draws import LawModel
from pymc_dp.surrogate.hierarchical.evaluation import Curvature, Evaluator, Slope
from pymc_dp.surrogate.hierarchical.fit import SearchLost
from pymc_dp.surrogate.hierarchical.information import Information, informed
from pymc_dp.surrogate.hierarchical.law import Belief, GroupLaw
from pymc_dp.surrogate.hierarchical.pooling import pooled, scale_of_doubts
from pymc_dp.surrogate.hierarchical.seen import features_of
from pymc_dp.surrogate.hierarchical.shrinkage import (
    Sums,
    by_secants,
    shrunk_positive,
    shrunk_ratios,
    with_totals,
)
from pymc_dp.surrogate.hierarchical.structured import Structured

from ..marks import slow_but
from ..modes import COMPILED

FAST = {"mode": "FAST_COMPILE"}
N, M, P = 120, 7, 2
WORDS = np.arange(4, dtype=np.uint64)


@functools.cache
def data():
    rng = np.random.default_rng(1)
    return (
        rng.integers(M, size=N),
        rng.integers(5, size=N),
        rng.normal(size=(N, P)),
        rng.integers(2, size=N),
    )


def model_of(kind):
    k, j, x, y = data()
    with pm.Model() as model:
        mu, tau, beta = pm.Normal("mu"), pm.HalfNormal("tau"), pm.Normal("beta", shape=P)
        K, J, X = pm.Data("K", k), pm.Data("J", j), pm.Data("X", x)
        if kind == "centred":
            eta = X @ beta + pm.Normal("a", mu, tau, shape=M)[K]
        elif kind == "non-centred":
            eta = mu + tau * pm.Normal("z", shape=M)[K] + X @ beta
        elif kind == "deterministic":
            a = pm.Deterministic("a", mu + tau * pm.Normal("z", shape=M))
            eta = a[K] + X @ beta
        elif kind == "slopes":
            slope = pm.Normal("slope", 0, tau, shape=M)
            eta = X @ beta + pm.Normal("a", mu, tau, shape=M)[K] + slope[K] * X[:, 0]
        elif kind == "rows":
            eta = X @ beta + (pm.Normal("a", mu, tau, shape=(M, P))[K] * X).sum(axis=1)
        elif kind == "crossed":
            a, b = pm.Normal("a", 0, tau, shape=M), pm.Normal("b", 0, tau, shape=5)
            eta = mu + X @ beta + a[K] + b[J]
        elif kind == "alone":
            eta = pm.Normal("a", mu, tau, shape=M)[K]
        elif kind == "flat":
            eta = mu * tau + X @ beta
        elif kind in ("correlated", "white", "on its side"):
            chol = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))[0]
            if kind == "correlated":
                a = pm.MvNormal("a", [mu, 0], chol=chol, shape=(M, 2))
            elif kind == "white":
                a = pm.math.stack([mu, 0.0]) + pm.Normal("z", shape=(M, 2)) @ chol.T
            else:
                a = mu + (chol @ pm.Normal("z", shape=(2, M))).T
            eta = a[K, 0] + X @ beta + a[K, 1] * X[:, 0]
        elif kind == "pairs":
            a = pm.Normal("a", mu, tau, shape=M)
            eta = X @ beta + a[K] * a[J % M]
        elif kind == "columns":
            a = pm.Normal("a", 0, tau, shape=(M, 2))
            eta = mu + X @ beta + a[K, 0] - a[J % M, 0]
        elif kind == "games":
            z = pm.Normal("z", shape=M)
            eta = mu + X @ beta + tau * z[K] - tau * z[J % M]
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model


@functools.cache
def compiled(kind):
    return dp.compile(model_of(kind), compile_kwargs=FAST)


@functools.cache
def psi_function(kind):
    cut = compiled(kind).cut
    return pytensor.function([cut.graph.theta], cut.psi, mode="FAST_COMPILE")


@functools.cache
def records_of(kind):
    return LocalRecords(compiled(kind), local=True, words=WORDS)


def shape_of(kind):
    return compiled(kind).cut.shape


def some_theta(kind):
    space = compiled(kind).parameters
    return space.start + 0.3 * np.random.default_rng(2).normal(size=space.d)


def some_frame(kind):
    rng, cut = np.random.default_rng(3), compiled(kind).cut
    V = np.eye(cut.p) + 0.2 * rng.normal(size=(cut.p, cut.p))
    R = tuple(0.3 * rng.normal(size=(m, r, cut.p)) for m, r in cut.shapes)
    return Preconditioner(V, tuple(0.5 + rng.random(r) for _, r in cut.shapes), R)


def plain_frame(shape):
    """Scores as they are."""
    tables = shape.tables
    R = tuple(np.zeros((m, r, shape.p)) for m, r in tables)
    return Preconditioner(np.eye(shape.p), tuple(np.ones(r) for _, r in tables), R)


def dense(terms, dimension):
    """The vectors with all their zeros, of sparse terms."""
    chunks = []
    for chunk in terms:
        if isinstance(chunk, Sparse):
            full = np.zeros((len(chunk.values), dimension))
            np.put_along_axis(full, chunk.places, chunk.values, axis=1)
            chunk = full
        chunks.append(chunk)
    return np.concatenate(chunks)


CUT = {
    "centred": (P, [(M, 1)]),
    "non-centred": (P, [(M, 1)]),
    "deterministic": (P, [(M, 1)]),
    "slopes": (P - 1, [(M, 2)]),
    "rows": (0, [(M, 2)]),
    "crossed": (P, [(5, 1), (M, 1)]),
    "alone": (0, [(M, 1)]),
    "pairs": (P, [(M, 1)]),
    "columns": (P + 1, [(M, 1)]),
    "games": (P + 1, [(M, 1)]),
}


@pytest.mark.parametrize("kind", CUT)
def test_hyperparameters_are_in_no_term(kind):
    """Nor are common slopes of a covariate that has slopes of its own in every group: these are in the sum of both."""
    cut = compiled(kind).cut
    assert (cut.p, sorted(cut.shapes)) == CUT[kind]


@pytest.mark.parametrize(("most", "p"), [(None, 0), (3, 1)])
def test_a_slope_of_another_covariate_stays_apart(most, p):
    """One that is the same up to 3, as the whole numbers of most made-up records are."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        K, X = pm.Data("K", rng.integers(M, size=N)), pm.Data("X", rng.integers(9, size=N))
        of_groups = X if most is None else pm.math.minimum(X, most)
        eta = pm.Normal("beta") * X + pm.Normal("slope", shape=M)[K] * of_groups
        pm.Normal("y", eta, 1, observed=pm.Data("Y", rng.normal(size=N)))
    assert dp.compile(model, unit=0, compile_kwargs=FAST).cut.p == p


def test_no_cut_without_groups():
    assert compiled("flat").cut is None


def test_two_rows_of_one_table_have_places_of_their_own():
    """A record may be in the same row twice, too."""
    cut = compiled("pairs").cut
    assert (cut.shapes, cut.uses) == ([(M, 1)], [0, 0])
    of = GroupScore(some_theta("pairs"), some_frame("pairs"), shape_of("pairs"))
    for chunk in of.terms(records_of("pairs")):
        assert (np.diff(chunk.places, axis=1) > 0).all()


def test_units_of_several_records_are_not_cut():
    unit = np.arange(N) // 2
    assert dp.compile(model_of("centred"), unit=unit, compile_kwargs=FAST).cut is None


@pytest.mark.parametrize("kind", CUT)
def test_derivatives_are_those_of_the_whole_likelihood(kind):
    """By the chain rule, with ψ's own derivatives taken numerically."""
    theta, step = some_theta(kind), 1e-5
    of = GroupScore(theta, plain_frame(shape_of(kind)), shape_of(kind))
    local = dense(of.terms(records_of(kind)), of.dimension)

    def flat(at):
        return np.concatenate([np.ravel(part) for part in psi_function(kind)(at)])

    slopes = np.array([
        (flat(theta + step * e) - flat(theta - step * e)) / (2 * step) for e in np.eye(len(theta))
    ])  # fmt: skip
    whole = np.concatenate(list(compiled(kind).gradients(theta)))
    np.testing.assert_allclose(local @ slopes.T, whole, atol=1e-8)


def far_apart(shape, of_noise=1.0):
    """Places of rows, by privacy noise but for a part."""
    return tuple(np.tile([1.0, of_noise], (groups, 1)) for groups, _ in shape.tables)


def query(kind, part, bound=np.inf):
    """What is asked of the records, and if that is scores, the bound that they are clipped and centred with."""
    settings = some_theta(kind), some_frame(kind), shape_of(kind)
    if part == "scores":
        return GroupScore(*settings, bound)
    if part == "scores from two places":
        also = Elsewhere(settings[0] + 0.5, far_apart(settings[2]))
        return GroupScore(*settings, bound, other=also)
    if part == "steepness":
        return Steepness(query(kind, "scores from two places", bound))
    if part == "coupling":
        return Coupling(settings[0], settings[2])
    if part == "shared":
        rng = np.random.default_rng(9)
        features = tuple(rng.normal(size=(m, r, 3)) for m, r in settings[2].tables)
        return SharedInformation(*settings, features=features)
    return GroupInformation(*settings)


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "pairs", "games"])
def test_totals_are_sums_over_all_groups(kind):
    of = query(kind, "scores from two places")
    released = dense(of.terms(records_of(kind)), of.dimension).sum(axis=0)
    _, *tables = of.shape.parts(released[: of.shape.n])
    totals = np.concatenate([x.sum(axis=0) / np.sqrt(len(x)) for x in tables])
    np.testing.assert_allclose(released[of.shape.n :], totals, atol=1e-10)


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "pairs", "games"])
@pytest.mark.parametrize("common", [False, True])
def test_rows_are_clipped_first_and_totals_last(kind, common):
    """With a bound that no outcome's totals exceed these are whole, and so is φ's part if both together do not."""
    of, records = query(kind, "scores"), records_of(kind)
    frame = replace(of.preconditioner, scales=tuple(9 * x for x in of.preconditioner.scales))
    # With the same place as the other one, nothing is taken off for the distance.
    shape, here = of.shape, Elsewhere(of.theta, far_apart(of.shape))
    of = replace(of, preconditioner=frame, other=here)
    whole = np.concatenate([c.values for c in of.terms(records)])
    kept = [*range(shape.p if common else 0), *range(shape.q, shape.q + shape.r)]
    lengths = []
    for c in records.scores(of.theta):
        z = frame.applied(c.simulated, c.rows, shape)
        totals = np.zeros((*z.shape[:2], shape.r))
        for k, columns in zip(shape.uses, shape.columns, strict=True):
            first = sum(r for _, r in shape.tables[:k])
            at = slice(first, first + shape.tables[k][1])
            totals[..., at] += z[..., columns] / np.sqrt(shape.tables[k][0])
        lengths.append(np.linalg.norm(np.concatenate([z[..., : shape.q], totals], axis=2)[..., kept], axis=2).max())  # fmt: skip
    bound = 1.01 * np.sqrt(2) * max(lengths)
    found = np.concatenate([c.values for c in replace(of, bound=bound).terms(records)])
    assert (np.linalg.norm(whole, axis=1) > bound).any()
    np.testing.assert_allclose(found[:, kept], whole[:, kept], atol=1e-12)


def test_numbers_and_their_totals_are_made_consistent():
    """As the joint normal law of both has it, with errors that have something in common."""
    rng, n, r = np.random.default_rng(4), 12, 2
    v, W, A = rng.random(n) + 0.1, rng.normal(size=(n, 1)), np.kron(np.eye(r), np.ones((6, 1)))
    of_totals, x, totals = rng.random(r), rng.normal(size=n), rng.normal(size=r)
    got, U, M = with_totals(x, v, W, A, totals, of_totals)
    # By information, of a flat prior: that of numbers and that of sums add up.
    known = np.linalg.inv(np.diag(v) + W @ W.T)
    both = np.linalg.inv(known + A @ np.diag(1 / of_totals) @ A.T)
    np.testing.assert_allclose(np.diag(v) + U @ M @ U.T, both, atol=1e-12)
    np.testing.assert_allclose(got, both @ (known @ x + A @ (totals / of_totals)), atol=1e-12)


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "alone", "pairs", "games"])
def test_information_is_what_outcomes_are_expected_to_tell(kind):
    """Of Bernoulli outcomes p (1 - p) times the square of the linear predictor's slopes, summed where ψ has places for it."""
    p, records, of = compiled(kind).cut.p, records_of(kind), query(kind, "information")
    scores = query(kind, "scores")
    places = np.concatenate([c.places for c in scores.terms(records)])
    z = np.concatenate([np.asarray(c.observed) for c in records.scores(of.theta)])
    rows = [
        np.concatenate(r) for r in zip(*(c.rows for c in records.scores(of.theta)), strict=True)
    ]
    z = of.preconditioner.applied(z, rows, of.shape)
    y = data()[3]
    chance = np.exp(records.likelihood(of.theta))  # of what was observed
    slopes = z / np.where(y == 1, 1 - chance, chance - 1)[:, None]
    weight = chance * (1 - chance)
    whole = np.zeros((of.shape.n,) * 2)
    for x, w, at in zip(slopes, weight, places, strict=True):
        whole[np.ix_(at, at)] += w * np.outer(x, x)
    released = sum(c.sum(axis=0) for c in [dense(of.terms(records), of.dimension)])
    common, rows, cross = of.matrices(released)
    np.testing.assert_allclose(common, whole[:p, :p], atol=1e-10)
    start = p
    for (groups, r), blocks, between in zip(of.shape.tables, rows, cross, strict=True):
        for k in range(groups):
            here = slice(start, start + r)
            np.testing.assert_allclose(blocks[k], whole[here, here], atol=1e-10)
            np.testing.assert_allclose(between[k], whole[here, :p], atol=1e-10)
            start += r


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "games"])
def test_shared_information_is_of_all_rows_times_features(kind):
    """What a row couples with φ, times the row's features and summed over all of them, is there, too."""
    of, records, p = query(kind, "shared"), records_of(kind), compiled(kind).cut.p
    (packed,) = (c.sum(axis=0) for c in of.terms(records))
    widths = [r * 3 for r in (of.shape.tables[k][1] for k in of.shape.uses)]
    shared, starts = as_matrix(packed, p + sum(widths)), p + np.cumsum([0, *widths])
    inner = query(kind, "information")
    common, _, cross = inner.matrices(dense(inner.terms(records), inner.dimension).sum(axis=0))
    np.testing.assert_allclose(shared[:p, :p], common)
    for k, (between, f) in enumerate(zip(cross, of.features, strict=True)):
        expected = np.einsum("grp,grm->prm", between, f).reshape(p, -1)
        uses = [
            slice(a, b)
            for a, b, u in zip(starts, starts[1:], of.shape.uses, strict=False)
            if u == k
        ]
        np.testing.assert_allclose(sum(shared[:p, x] for x in uses), expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "pairs", "games"])
def test_steepness_is_what_clipping_leaves_of_squares_and_the_information(kind):
    of, scores, inner = (query(kind, part) for part in ("steepness", "scores", "information"))
    records, shape = records_of(kind), of.of.shape

    def asked(bound):
        one = replace(of, of=replace(scores, bound=bound))
        return np.concatenate(list(one.terms(records))).sum(axis=0).reshape(3, shape.r)

    whole = asked(np.inf)
    np.testing.assert_allclose(whole[0], whole[1])
    _, rows, _ = inner.matrices(dense(inner.terms(records), inner.dimension).sum(axis=0))
    diagonals = [np.einsum("grr->r", blocks) for blocks in rows]
    np.testing.assert_allclose(whole[2], np.concatenate(diagonals))
    z = np.concatenate([of.of.applied(c.observed, c) for c in records.scores(scores.theta)])
    z = z[:, : shape.q]
    bound = float(np.median(np.linalg.norm(z, axis=1)))
    kept = shrink(np.linalg.norm(z, axis=1), bound)
    sums, starts = np.zeros((2, shape.r)), np.cumsum([0, *(r for _, r in shape.tables)])
    for k, columns in zip(shape.uses, shape.columns, strict=True):
        at = slice(starts[k], starts[k + 1])
        sums[:, at] += np.stack([kept @ z[:, columns] ** 2, (z[:, columns] ** 2).sum(axis=0)])
    np.testing.assert_allclose(asked(bound)[0] / whole[0], sums[0] / sums[1])
    np.testing.assert_allclose(asked(bound)[1:], whole[1:])


@pytest.mark.parametrize("kind", ["centred", "crossed"])
def test_a_covariate_and_its_group_are_coupled_wholly(kind):
    """Both scores of a Bernoulli outcome are slopes of one linear predictor."""
    of = Coupling(some_theta(kind), shape_of(kind))
    (total,) = (c.sum(axis=0) for c in of.terms(records_of(kind)))
    np.testing.assert_allclose(total, N)


def test_a_scale_and_a_mean_are_not_coupled():
    """Their scores' product has mean 0; where outcomes are drawn, chance adds nothing on average."""
    rng, n = np.random.default_rng(3), 3000
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=5), pm.Normal("b")
        eta = a[pm.Data("K", rng.integers(5, size=n))] + b * pm.Data("X", rng.normal(size=n))
        pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=pm.Data("Y", rng.normal(size=n)))
    of = dp.compile(model, unit=0, compile_kwargs=FAST)
    records = LocalRecords(of, local=True, words=WORDS)
    query = Coupling(of.parameters.start, of.cut.shape)
    seen = np.concatenate(list(query.terms(records)))
    mean, se = seen.mean(axis=0), seen.std(axis=0) / np.sqrt(n)
    scale, slope = np.argsort(mean)
    assert abs(mean[scale]) < 3 * se[scale]
    assert mean[slope] > 0.5  # of eight outcomes, heavy tails take a part


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "pairs"])
@pytest.mark.parametrize("part", ["scores", "information"])
def test_sparse_sums_are_the_dense_ones(kind, part):
    of, records = query(kind, part), records_of(kind)
    full = dense(of.terms(records), of.dimension)
    for bound in (0.1, 1.0, 100.0):
        whole = clipped_sum([full], bound, of.dimension)
        np.testing.assert_array_equal(clipped_sum(of.terms(records), bound, of.dimension), whole)
        assert np.abs(whole).max() > 0


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1.0, 1e20, 1e200, np.inf, np.nan])
def test_sparse_integers_at_all_sizes(size):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 3)) * size
    places = np.sort(rng.permuted(np.tile(np.arange(9), (40, 1)), axis=1)[:, :3], axis=1)
    full = np.zeros((40, 9))
    np.put_along_axis(full, places, values, axis=1)
    one, other = np.zeros(9, np.int64), np.zeros(9, np.int64)
    with np.errstate(all="ignore"):
        add_clipped(Sparse(values, places), 1.0, one)
        add_clipped(full, 1.0, other)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("places", [[0, 0], [3, 1], [-1, 2], [1, 9]])
def test_places_that_repeat_or_are_none_add_nothing(places):
    total = np.zeros(9, np.int64)
    add_clipped(Sparse(np.ones((1, 2)), np.array([places])), 1.0, total)
    assert not total.any()


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "pairs"])
@pytest.mark.parametrize(
    "part",
    ["scores", "scores from two places", "information", "shared", "coupling", "steepness"],
)
def test_sensitivity(kind, part):
    """Whatever one record is replaced by, group included, the integer sum moves by κ R at most, and by √κ R that of an acute query."""
    of, records = query(kind, part, 0.02), records_of(kind)
    images = []
    for unit in range(0, N, 3):
        alone = [np.take(x, [unit], axis=0) for x in records.likelihood._data]
        images.append(records.of_data(alone).total(of, 0.02).astype(float))
    images = np.array(images)
    assert RESOLUTION / 4 < np.linalg.norm(images, axis=1).max() <= RESOLUTION
    apart = np.linalg.norm(images[:, None] - images[None], axis=2)
    # Truncation to whole numbers of R may turn two orthogonal terms a little.
    most = np.sqrt(2) * (1 + 1e-6) if getattr(of, "acute", False) else 2.0
    assert apart.max() <= most * RESOLUTION
    if part == "information":
        assert apart.max() > 1.2 * RESOLUTION
    np.testing.assert_array_equal(records.total(of, 0.02).shape, (of.dimension,))


class NormalGroups:
    """Records with a normal outcome, in groups of equal size, of σ = 1."""

    groups, each = 30, 8

    def __init__(self):
        n = self.groups * self.each
        with pm.Model() as model:
            sigma, a = pm.HalfNormal("sigma"), pm.Normal("a", 0, 1, shape=self.groups)
            k = pm.Data("K", np.repeat(np.arange(self.groups), self.each))
            pm.Normal("y", a[k], sigma, observed=pm.Data("Y", np.zeros(n)))
        of = dp.compile(model, compile_kwargs=FAST)
        self.records = LocalRecords(of, local=True, words=WORDS)
        self.outcome = next(leaf for leaf in of.roles.record_data if leaf.name == "Y")
        self.shape = Shape(1, ((self.groups, 1),), (0,))

    def draw(self, rng, means):
        """Other outcomes, and the mean of each group's."""
        self.outcome.values[...] = np.repeat(means, self.each) + rng.normal(size=self.groups * self.each)  # fmt: skip
        self.records.forget()
        return self.outcome.values.reshape(self.groups, self.each).mean(axis=1)

    def score_of_scale(self, means, also):
        """At log σ = 0 and these means, seen from elsewhere, too."""
        here = np.concatenate([[0.0], means])
        of = GroupScore(here, plain_frame(self.shape), self.shape, 50.0, 1.0, also)
        return dense(of.terms(self.records), of.dimension).sum(axis=0)[0]

    def elsewhere(self, means, of_noise=1.0):
        return Elsewhere(np.concatenate([[0.0], means]), far_apart(self.shape, of_noise))


@pytest.mark.parametrize("apart", [0.3, 1.5])
def test_scores_at_draws_are_unbiased_of_a_scale_too(apart):
    """Truth, place and other place are draws of one law of the groups' effects. Their distance adds to residuals: without the other
    place, the scale would seem larger than it is. Far places are no exception: no outcome counts for more than two."""
    rng, of = np.random.default_rng(5), NormalGroups()
    found = []
    for _ in range(100):
        truth, here, other = apart * rng.normal(size=(3, of.groups))
        of.draw(rng, truth)
        found.append([of.score_of_scale(here, also) for also in (None, of.elsewhere(other))])
    mean, se = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(100)
    assert mean[0] > 10 * se[0]
    assert abs(mean[1]) < 3 * se[1]


@pytest.mark.parametrize("noise", [0.0, 0.2, 3.0])
def test_of_distances_as_much_is_taken_off_as_privacy_noise_makes(noise):
    """Places are draws of what a noisy mean of each group tells, so they have its records' chance in common with them: without noise residuals are as long there as at the truth."""
    rng, of, apart = np.random.default_rng(6), NormalGroups(), 0.8
    sampling = 1 / of.each
    kept, of_noise = apart**2 / (apart**2 + sampling + noise), noise / (noise + sampling)
    found = []
    for _ in range(150):
        seen = of.draw(rng, apart * rng.normal(size=of.groups))
        mean = kept * (seen + np.sqrt(noise) * rng.normal(size=of.groups))
        here, other = mean + apart * np.sqrt(1 - kept) * rng.normal(size=(2, of.groups))
        found.append([of.score_of_scale(here, of.elsewhere(other, part)) for part in (of_noise, 1.0)])  # fmt: skip
    mean, se = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(150)
    assert abs(mean[0]) < 3 * se[0]
    if noise < 1:  # of more, next to all of the distance is noise
        assert mean[1] < -3 * se[1]


def some_structured(rng, positive=True):
    blocks = []
    for count, r in ((1, 2), (6, 1), (3, 2)):
        half = rng.normal(size=(count, r, r))
        blocks.append(half @ np.swapaxes(half, 1, 2) + 0.5 * np.eye(r))
    U, half = rng.normal(size=(14, 3)), rng.normal(size=(3, 3))
    return Structured(blocks, U, half @ half.T if positive else half + half.T)


def some_shear(rng):
    return np.vstack([np.zeros((2, 2)), rng.normal(size=(12, 2))])


def test_structured_matrices_are_the_dense_ones():
    rng = np.random.default_rng(4)
    A, B = some_structured(rng), some_structured(rng, positive=False)
    np.testing.assert_allclose(A.inverse.dense, np.linalg.inv(A.dense))
    np.testing.assert_allclose(A.combined(B).dense, A.dense + B.dense)
    np.testing.assert_allclose(A.diagonal, np.diag(A.dense))
    np.testing.assert_allclose(A.combined(B, -1.0).dense, A.dense - B.dense)
    np.testing.assert_allclose(A.between(B).dense, B.dense @ A.dense @ B.dense)
    R = some_shear(rng)
    T = np.eye(14) + R @ np.eye(14)[:2]
    np.testing.assert_allclose(B.sheared(R).dense, T.T @ B.dense @ T)
    np.testing.assert_allclose(A.spread(R), np.diag(T @ A.dense @ T.T))


def test_information_of_a_law():
    rng = np.random.default_rng(5)
    J = some_structured(rng)
    S = some_structured(rng)
    law = GroupLaw(np.zeros(14), rng.normal(size=14), J, S, some_shear(rng))
    T = np.eye(14) + law.R @ np.eye(14)[:2]
    kept = J.dense @ np.linalg.inv(J.dense + S.dense)
    np.testing.assert_allclose(law.K.dense, T.T @ kept @ J.dense @ T, atol=1e-10)
    np.testing.assert_allclose(law.k, T.T @ kept @ law.beta, atol=1e-10)


def of_normal_outcomes(sizes, unsure):
    """What is known of log σ and of groups' means, at σ = 1: information, and how sure all is."""
    m, n = len(sizes), float(sizes.sum())
    V = Preconditioner(np.eye(1), (np.ones(1),), (np.zeros((m, 1, 1)),))
    none, U, M = np.zeros((m + 1, 1)), np.zeros((m + 1, 0)), np.zeros((0, 0))
    J = Structured([np.full((1, 1, 1), 2 * n), sizes.reshape(m, 1, 1)], U, M)
    nothing = np.zeros((m, 1))
    of = Information(
        V, J, none, none, nothing, nothing, nothing, np.zeros(m), sd_common=0.0, drowned=False
    )
    return of, Structured([np.zeros((1, 1, 1)), unsure.reshape(m, 1, 1)], U, M)


def a_slope(m, of_scale=0.0, variance=0.0, of_common=True):
    """At the truth, with no noise in rows."""
    none = np.zeros(m + 1)
    gradient = np.concatenate([[of_scale], none[1:]])
    U, M = np.zeros((m, 0)), np.zeros((0, 0))
    return Slope(none, np.zeros((m + 1, 1)), gradient, np.full((1, 1), variance), none[1:], U, M, True, np.ones(1), np.full(1, np.inf), of_common)  # fmt: skip


def law_of(slopes, sizes, unsure, last=False, bends=(1.0,), **known):
    """What gradients say of normal outcomes, of which this is known."""
    information, covariance = of_normal_outcomes(sizes, unsure)
    information = information._replace(**known)
    m, n, none = len(sizes), float(sizes.sum()), np.zeros(len(sizes) + 1)
    believed = Belief.of(none, covariance, information.Q)
    return pooled(slopes, information, Shape(1, ((m, 1),), (0,)), n, none, believed, bends, last)


def test_chance_in_rows_distances_is_in_the_law_of_a_scale():
    """Distances d of groups add n d² to a normal outcome's score in log σ. What is expected of that is taken off, its variance is not."""
    rng, m = np.random.default_rng(3), 40
    sizes, unsure = np.exp(rng.normal(3, 1, m)), 0.2 * np.exp(rng.normal(size=m))
    added = (rng.normal(size=(20_000, m)) ** 2 * unsure) @ sizes
    # The variance of 20,000 such sums is known to 2 %, one sd.
    law = law_of([a_slope(m)], sizes, unsure)
    np.testing.assert_allclose(law.S.blocks[0][0, 0, 0], added.var(), rtol=0.06)


@pytest.mark.parametrize("off", [1.0, 100.0])
def test_gradients_that_contradict_each_other_make_the_last_law_wider(off):
    """By χ² over its degrees of freedom, as Birge has it; never narrower, and not before the end."""
    sizes, unsure = np.full(10, 30.0), np.full(10, 1e-6)
    slopes = [a_slope(10, sign * off, 25.0) for sign in (-1, 0, 1)]
    before, after = (
        law_of(slopes, sizes, unsure, last).S.blocks[0][0, 0, 0] for last in (False, True)
    )
    np.testing.assert_allclose(before, 25 / 3, rtol=1e-3)
    np.testing.assert_allclose(after, before * max(1.0, 2 * off**2 / 25 / 2), rtol=1e-3)


def test_gradients_from_afar_tell_of_rows_only():
    sizes, unsure, noise = np.full(10, 30.0), np.full(10, 1e-2), np.full(10, 9.0)
    near, far = a_slope(10, 3.0, 25.0), a_slope(10, 1e3, 25.0, of_common=False)
    slopes = [slope._replace(variance=noise) for slope in (far, near)]
    one, both = (law_of(each, sizes, unsure, bends=(0.0,)) for each in (slopes[1:], slopes))
    np.testing.assert_allclose(both.beta, one.beta)
    np.testing.assert_allclose(both.S.blocks[0], one.S.blocks[0])
    np.testing.assert_allclose(both.S.blocks[1], one.S.blocks[1] / 2)


@pytest.mark.parametrize(("scale", "beyond"), [(2.0, 1.0), (0.6, 1.0), (1.0, 1e6)])
def test_rows_are_where_they_are_though_a_scale_is_far_off_or_scores_are_clipped(scale, beyond):
    """Of normal outcomes' means: where σ is taken for another, they are seen as flat or as steep as that has them; and what a bound takes of scores is made up for."""
    rng, of = np.random.default_rng(12), NormalGroups()
    truth = of.draw(rng, 2 * rng.normal(size=of.groups))
    z, shape, sizes = 1e-3, of.shape, np.full(of.groups, float(of.each))
    curator = Curator(of.records, InsecureSeededNoise(1))
    measure = PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z))
    here = np.concatenate([[np.log(scale)], truth + 0.3 * rng.normal(size=of.groups)])
    parts = [np.full((of.groups, 1), 1 / of.groups)]
    slope = Evaluator(measure, shape, sizes.sum(), 1.0).slope(
        here, here, plain_frame(shape), 0.1, 0.8, beyond, None, parts
    )
    law = law_of([slope], sizes, np.full(of.groups, 1e-3), bends=(0.0,))
    way = truth - here[1:]
    np.testing.assert_allclose(
        (law.beta[1:] / sizes - here[1:]) @ way / (way @ way), 1.0, atol=0.15
    )


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0, 4.0])
def test_how_large_doubts_are_is_seen_where_gradients_contradict_each_other(eta):
    """Each row's own mean is not known. Where noise hides them, doubts are what they were thought to be."""
    rng, rows, times = np.random.default_rng(4), 300, 4
    noise, doubts = (np.exp(rng.normal(size=(times, rows))) for _ in range(2))
    truth, errors = 10 * rng.normal(size=rows), rng.normal(size=(times, rows))
    seen = truth + errors * np.sqrt(noise + eta * doubts)
    # η is known to about √(2 / 900) of noise and doubts together, which are equally large; three of these.
    np.testing.assert_allclose(scale_of_doubts(seen, noise, doubts), eta, atol=0.15 * (1 + eta))
    hidden = truth + errors * np.sqrt(noise + 1e-4 * eta * doubts)
    np.testing.assert_allclose(scale_of_doubts(hidden, noise, 1e-4 * doubts), 1.0, atol=0.05)
    assert scale_of_doubts(seen[:1], noise[:1], doubts[:1]) == 1.0


def test_rows_that_are_seen_to_be_where_they_were_said_to_be_are_believed():
    """A far gradient's doubts are those of a law that may be wrong; where all gradients agree, they are not in the law."""
    rng, m = np.random.default_rng(5), 200
    sizes, unsure, noise = np.full(m, 30.0), np.full(m, 1.0), np.full(m, 9.0)
    agreeing, other = (
        [
            a_slope(m)._replace(variance=noise, gradient=np.concatenate([[0.0], sd * rng.normal(size=m)]))
            for _ in range(3)
        ]
        for sd in (3.0, 25.0)
    )  # fmt: skip
    sure, unsure_law = (law_of(slopes, sizes, unsure).S.blocks[1] for slopes in (agreeing, other))
    np.testing.assert_allclose(sure, 9.0 / 3, rtol=0.25)
    np.testing.assert_allclose(unsure_law, 25.0**2 / 3, rtol=0.25)


def test_gradients_at_several_places_tell_how_steep_it_is():
    """By the posterior of a row's information and its mean, on a grid."""
    rng, places, unsure = np.random.default_rng(8), np.array([0.0, 1.0, 1.5]), 0.1
    noise, gradients = np.array([2.0, 1.0, 0.5]), 8 - 5 * places + rng.normal(size=3)
    part, intercept = np.meshgrid(np.linspace(-1, 3, 1501), np.linspace(-20, 40, 1501))
    log_p = -((part - 1) ** 2) / unsure
    for x, g, v in zip(4 * places, gradients, noise, strict=True):
        log_p -= (g - intercept + part * x) ** 2 / v
    p = np.exp((log_p - log_p.max()) / 2)
    mean = np.sum(p * part) / p.sum()
    found = by_secants(gradients[:, None], 4 * places[:, None], noise[:, None], np.array([unsure]))
    np.testing.assert_allclose(found[0], mean, rtol=1e-4)
    np.testing.assert_allclose(found[1], np.sum(p * (part - mean) ** 2) / p.sum(), rtol=1e-3)


def test_rows_are_not_drawn_back_by_what_is_not_known_of_their_information():
    """Where more is told than was thought, the next place is too far out, and a step from there too short: the spread of rows is too small. Doubting all of what is thought of their information mends that, but not by errors
    that are longer than those of the step."""
    rng, m, cv = np.random.default_rng(9), 4000, 0.25
    thought, truth = np.full(m, 30.0), rng.normal(size=m)
    told = thought * (1 + cv * rng.normal(size=m))
    slopes, place = [], np.zeros(m)
    for _ in range(2):
        gradient = told * (truth - place) + 3 * rng.normal(size=m)
        here = np.concatenate([[0.0], place])
        slopes.append(a_slope(m)._replace(psi=here, gradient=np.concatenate([[0.0], gradient]), variance=np.full(m, 9.0)))  # fmt: skip
        place = place + gradient / thought
    law = law_of(slopes, thought, np.full(m, 0.1), bends=(0.0,), unsure_rows=(cv * thought) ** 2)
    off = law.beta[1:] / law.J.diagonal[1:] - truth
    step, se = (
        place - truth,
        np.sqrt(np.mean((truth * np.stack([off, place - truth])) ** 2, axis=1) / m),
    )
    assert abs(off @ truth / m) < 3 * se[0]
    assert step @ truth / m < -10 * se[1]
    assert np.mean(off**2) < np.mean(step**2)


def test_effects_tell_no_more_of_what_is_shared_than_without_noise():
    """R may be made of what effects are believed to be: then their prior draws φ to where R φ explains them, the more so the less is known of φ."""
    rng, m = np.random.default_rng(10), 100
    sizes, effects = np.full(m, 30.0), rng.normal(size=m)
    effects -= effects.mean()
    R = np.concatenate([[[0.0]], 0.2 * effects[:, None]])
    pulls = []
    for noise in (1e-3, 9.0):
        of_common = (2 * sizes.sum()) * noise
        slope = a_slope(m, 0.0, of_common)._replace(
            R=R, gradient=np.concatenate([[0.0], sizes * effects]), variance=np.full(m, 1.0)
        )
        law = law_of([slope], sizes, np.full(m, 1e-3), bends=(0.0,), Q=R, R=R)
        K = law.K.plus([np.zeros((1, 1, 1)), np.ones((m, 1, 1))])
        pulls.append(float((K.inverse @ law.k)[0]))
    assert pulls[0] > 1e-3  # the sd of φ without noise is 1.3e-2
    np.testing.assert_allclose(pulls[1], pulls[0], rtol=0.01)


def a_curvature(rng, sizes, places, levels, noise):
    """Information of rows at places, with noise."""
    m = len(sizes)
    V = Preconditioner(np.eye(1), (np.full(1, 0.5),), (np.zeros((m, 1, 1)),))
    rows = 0.25 * sizes * levels + noise * rng.normal(size=m)
    none = np.zeros((m, 1, 1))
    return Curvature(
        np.concatenate([[0.0], places]), V, none[0], [rows.reshape(m, 1, 1)], [none], none[0], (none,), {"rows": noise}
    )  # fmt: skip


@pytest.mark.parametrize("link", ["log", "logit", "identity"])
def test_how_much_rows_information_changes_is_seen_in_it(link):
    """Of a Poisson outcome of mean λ it changes by its way, and i = λ: the bend is 1 / λ. Of a logit it is (1 - 2p)² / p (1 - p); of a normal outcome 0, whatever σ is."""
    rng, m = np.random.default_rng(8), 300
    sizes = np.exp(rng.normal(5, 0.5, m))
    middle = math.log(6) if link == "log" else 1.5
    seen = []
    for level in (1.0, 4.0, 2.0, 1.0):
        places = middle + 0.3 * rng.normal(size=m)
        p = 1 / (1 + np.exp(-places))
        levels = {"log": np.exp(places), "logit": p * (1 - p), "identity": np.full(m, level)}[link]
        seen.append(a_curvature(rng, sizes, places, levels, 0.03 * sizes.mean() * levels.mean()))
    mean = 4 * np.mean([o.rows[0] for o in seen], axis=0)
    U = np.zeros((m + 1, 0))
    J = Structured([np.ones((1, 1, 1)), mean], U, np.zeros((0, 0)))
    (found,) = bends(seen, J, Shape(1, ((m, 1),), (0,)), float(sizes.sum()))
    p = 1 / (1 + math.exp(-middle))
    wanted = {"log": 1 / 6, "logit": (1 - 2 * p) ** 2 / (p * (1 - p)), "identity": 0.0}[link]
    # Beside six pairs there is what was believed before, 1 with the weight of half a pair.
    np.testing.assert_allclose(found, (6 * wanted + 0.5) / 6.5, rtol=0.25, atol=0.01)
    hidden = [o._replace(sd={"rows": 1e5 * o.sd["rows"]}) for o in seen]
    np.testing.assert_allclose(bends(hidden, J, Shape(1, ((m, 1),), (0,)), float(sizes.sum())), 1.0, atol=0.05)  # fmt: skip


def test_noise_does_not_explain_away_what_all_records_share():
    """Where it did, coordinates were stretched for the little that seemed to be left, and the next query's noise was larger by that: searches went astray."""
    rng, m = np.random.default_rng(10), 30
    sizes, none = np.exp(rng.normal(4, 1, m)), np.zeros(m + 1)
    n, sd = float(sizes.sum()), 40.0
    V = Preconditioner(np.eye(1), (np.ones(1),), (np.zeros((m, 1, 1)),), n)
    features = features_of(*rng.normal(size=(2, m, 1)))
    shared = np.zeros((4, 4))
    shared[0, 0], shared[1:, 1:] = n, (features[:, 0].T * sizes) @ features[:, 0]
    least = []
    for _ in range(50):  # rows tell nothing of what all share; that is seen with noise
        seen = Curvature(
            none, V, np.full((1, 1), 4 * sd), [(sizes + sd * rng.normal(size=m)).reshape(m, 1, 1)],
            [sd * rng.normal(size=(m, 1, 1))], shared, (features,), dict.fromkeys(("common", "rows", "cross", "shared"), sd),
        )  # fmt: skip
        found = informed([seen], Shape(1, ((m, 1),), (0,)), none, np.ones(m + 1), [np.ones((1, 1))])
        least.append(found.J.blocks[0][0, 0, 0] / min(2 * found.sd_common, 4 * sd))
    assert min(least) > 0.999


def test_rows_that_did_not_move_show_no_bend():
    """Of a table with one row all moves are a matter of its level. It raised, and a paid run returned nothing."""
    rng, one = np.random.default_rng(8), np.full(1, 30.0)
    seen = [a_curvature(rng, one, np.full(1, at), np.ones(1), 2.0) for at in (0.1, 0.5, 0.5)]
    J = Structured([np.ones((1, 1, 1)), np.full((1, 1, 1), 30.0)], np.zeros((2, 0)), np.zeros((0, 0)))  # fmt: skip
    assert bends(seen, J, Shape(1, ((1, 1),), (0,)), 30.0) == [1.0]


def test_rows_whose_information_does_not_change_are_believed_from_afar():
    """Of a normal outcome a far gradient is right, and a row is known by it but for its noise."""
    sizes, unsure = np.full(10, 30.0), np.full(10, 4.0)
    slope = a_slope(10)._replace(variance=np.full(10, 9.0))
    bent, straight = (law_of([slope], sizes, unsure, bends=(x,)) for x in (1.0, 0.0))
    np.testing.assert_allclose(straight.S.blocks[1], 9.0)
    np.testing.assert_allclose(bent.S.blocks[1][:, 0, 0], 9.0 + 30**2 * 4.0 * 4.0 / 4)


def test_nothing_is_expected_of_scores_that_are_not_clipped():
    """Whatever outcomes count for: half of them are drawn at another place, and count for 1 on average only."""
    rng = np.random.default_rng(3)
    z, weights = rng.normal(size=(8, 5, 3)), rng.uniform(0, 2 / 8, size=(8, 5))
    of = Scores(z[0], z, weights, False, [], z, weights)
    sizes = np.linalg.norm(z, axis=2)
    np.testing.assert_allclose(expected(z, of, shrink(sizes, 1e3), wholly=True), 0.0, atol=1e-12)
    weights[:, 0] = 0  # of no probability here, all of them
    assert np.isfinite(expected(z, of, shrink(sizes, 0.5), wholly=True)).all()


def test_shifts_of_a_law_are_how_far_noise_moves_the_mean():
    """Of truths drawn from the prior: the mean with noise beside the mean without it."""
    rng = np.random.default_rng(5)
    J = some_structured(rng)
    S = some_structured(rng)
    noise, sds = S.dense, 0.3 + rng.random(14)
    truths = sds[:, None] * rng.normal(size=(14, 4000))
    exact = J.dense @ truths + np.linalg.cholesky(J.dense) @ rng.normal(size=(14, 4000))
    seen = exact + np.linalg.cholesky(noise) @ rng.normal(size=(14, 4000))
    law = GroupLaw(np.zeros(14), seen[:, 0], J, S, np.zeros((14, 2)))
    prior = np.diag(sds**-2.0)
    P, Q = np.linalg.inv(J.dense + prior), np.linalg.inv(law.K.dense + prior)
    kept = J.dense @ np.linalg.inv(J.dense + noise)
    moved = Q @ kept @ seen - P @ exact
    measured = np.sqrt((moved**2).mean(axis=1) / np.diag(P))
    # A root mean square of 4,000 is known to 1.1 %.
    np.testing.assert_allclose(law.privacy_shifts(sds), measured, rtol=0.06)


def test_shrinkage_is_better_than_what_was_seen_and_knows_how_good_it_is():
    rng = np.random.default_rng(6)
    t = np.exp(rng.normal(3, 0.8, 400))
    Z = np.ones((400, 1))
    seen = t + 15 * rng.normal(size=400)
    got, variance = shrunk_positive(seen, 15.0, Z)
    assert np.mean((got - t) ** 2) < 0.8 * np.mean((seen - t) ** 2)
    assert 0.6 < np.mean((got - t) ** 2) / variance.mean() < 1.6
    x = t * rng.normal(0.3, 0.4, 400)
    seen = x + 15 * rng.normal(size=400)
    got, variance, *_ = shrunk_ratios(seen, t, 15.0, Z, 1.0)
    assert np.mean((got - x) ** 2) < 0.8 * np.mean((seen - x) ** 2)
    assert 0.7 < np.mean((got - x) ** 2) / variance.mean() < 1.4


def test_what_noise_hides_is_not_taken_for_known():
    """Ratios whose spread is below the noise, of sizes that are not known either."""
    rng, ratios = np.random.default_rng(8), []
    for _ in range(20):
        t = np.exp(rng.normal(3, 0.8, 100))
        sizes, unsure = shrunk_positive(t + 15 * rng.normal(size=100), 15.0, np.ones((100, 1)))
        x = t * rng.normal(0.5, 0.3, 100)
        got, variance, *_ = shrunk_ratios(
            x + 40 * rng.normal(size=100), sizes, 40.0, np.ones((100, 1)), 1.0, unsure
        )
        ratios.append(np.mean((got - x) ** 2) / variance.mean())
    assert 0.7 < np.mean(ratios) < 1.4


def test_what_is_not_known_of_covariates_goes_with_effects_as_far_as_is_said():
    """Of covariates' means that have a slope in effects which are known with noise: what is left of both, multiplied and summed."""
    rng, groups, found = np.random.default_rng(11), 300, []
    for _ in range(60):
        t, effects = np.exp(rng.normal(3, 0.5, groups)), rng.normal(size=groups)
        believed = (
            effects + rng.normal(size=groups)
        ) / 2  # a posterior mean, with a variance of 1/2
        at = believed + rng.normal(size=groups) / np.sqrt(2)
        x = t * (0.4 * effects + 0.3 * rng.normal(size=groups))
        F = features_of(at[:, None], believed[:, None])[:, 0]
        sums = Sums(F, F.T @ x + 20 * rng.normal(size=3), np.full(3, 400.0))
        contrast = np.array([0, 1, -1]) / [1, believed.std(), (at - believed).std()]
        less = 1 + 0.5 / believed.var()
        seen = x + 15 * rng.normal(size=groups)
        got = shrunk_ratios(seen, t, 15.0, F, 1.0, 0.0, sums, contrast, less)
        left = (x - got.mean) @ (effects - believed)
        found.append((left, got.slope.sum() / 2, got.unsure.sum() / 2))
    left, said, unsure = np.array(found).T
    off = left - said
    se = off.std() / np.sqrt(len(off))
    assert left.mean() > 5 * se
    # The slope's prior, under which there is none, takes a part.
    assert abs(off.mean()) < 0.25 * left.mean() + 3 * se
    assert unsure.mean() > 0.5 * np.std(said)


def test_sums_that_were_seen_beside_the_numbers_are_made_use_of():
    """As the exact posterior has them: of a normal law of numbers, their noise and the noise of their sums."""
    rng, groups = np.random.default_rng(12), 50
    t, F = np.exp(rng.normal(3, 0.3, groups)), rng.normal(size=(groups, 2))
    x = t * rng.normal(0.5, 0.3, groups)
    seen, sums = x + 30 * rng.normal(size=groups), Sums(F, F.T @ x + rng.normal(size=2), np.ones(2))
    with_sums, without = (
        shrunk_ratios(seen, t, 30.0, np.ones((groups, 1)), 1.0, 0.0, s).mean for s in (sums, None)
    )
    off, were = (np.abs(F.T @ (got - x)) for got in (with_sums, without))
    assert (off < 4).all()
    assert (were > 10 * off).any()


def test_sizes_add_up_to_what_was_seen():
    rng = np.random.default_rng(9)
    seen = np.exp(rng.normal(3, 1, 300)) + 20 * rng.normal(size=300)
    sizes, _ = shrunk_positive(seen, 20.0, np.ones((300, 1)))
    assert sizes.min() > 0
    np.testing.assert_allclose(sizes.sum(), seen.sum())


def test_places_are_as_spread_as_the_law():
    """Hyperparameters included: τ of a prior that nothing was learnt about."""
    model = law_model(compiled("centred"))
    model.reset()
    model.mode()
    thetas = model.drawn(np.random.default_rng(0), 200)
    taus = [model.psi_at(theta)[P:].std() for theta in thetas]
    assert np.std(np.log(taus)) > 0.5


# -- the law, and whole runs ------------------------------------------------------------------------


def grouped(n=6000, m=40, seed=0):
    rng = np.random.default_rng(seed)
    k, X = rng.integers(m, size=n), np.clip(rng.normal(size=(n, 2)), -3, 3)
    alpha = rng.normal(0.3, 0.6, m)
    eta = alpha[k] + X @ [0.5, -0.4]
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    return k, X, y, alpha


def grouped_model(k, X, y, m=40, centred=True):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        if centred:
            alpha = pm.Normal("alpha", mu, tau, shape=m)
        else:
            alpha = pm.Deterministic("alpha", mu + tau * pm.Normal("z", shape=m))
        beta = pm.Normal("beta", shape=2)
        eta = alpha[pm.Data("k", k)] + pm.Data("X", X) @ beta
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y))
    return model


CORRELATED = slow_but("white")(["correlated", "white", "on its side"])


@pytest.mark.parametrize("kind", CORRELATED)
def test_correlated_effects_are_normal_given_the_rest_however_they_are_written(kind):
    model = law_model(compiled(kind))
    assert model.shape.tables == ((M, 2),)
    assert model.n_rest == compiled(kind).d - 2 * M


@pytest.mark.parametrize("kind", ["centred", "slopes", "crossed", "pairs", *CORRELATED])
def test_density_in_its_own_coordinates_is_that_of_theta(kind):
    model, rng = law_model(compiled(kind)), np.random.default_rng(7)
    shape = model.shape
    blocks = [np.eye(shape.p)[None] * 30]
    blocks += [rng.uniform(0.1, 40, size=(g, 1, 1)) * np.eye(r) for g, r in shape.tables]
    U = rng.normal(size=(shape.n, 2))
    K, centre, k = (
        Structured(blocks, U, np.eye(2)),
        rng.normal(size=shape.n),
        rng.normal(size=shape.n),
    )
    model.put(centre, k, K)
    mode = model.mode()
    assert np.abs(model._value(model._start)[1]).max() < 1e-2

    def at(zeta):
        theta, psi = model._at(zeta)[:2]
        u = psi - centre
        return theta, compiled(kind).log_public(theta) + k @ u - u @ (K @ u) / 2

    d, step, differences = len(mode.theta), 1e-6, []
    for shift in (0.0, 0.5):
        zeta = model._start + shift * rng.normal(size=d)
        jacobian = [
            (at(zeta + step * e)[0] - at(zeta - step * e)[0]) / (2 * step) for e in np.eye(d)
        ]
        expected = at(zeta)[1] + np.linalg.slogdet(np.array(jacobian))[1]
        differences.append(float(model._value(zeta)[0]) - expected)
    assert abs(differences[0] - differences[1]) < 1e-5  # up to a constant


def test_has_groups_only_where_there_are_many():
    assert not has_groups(compiled("centred"))  # few parameters
    k, X, y, _ = grouped()
    assert has_groups(dp.compile(grouped_model(k, X, y), compile_kwargs=FAST))


@pytest.mark.parametrize(
    ("kind", "normal"), [("Normal", True), ("ZeroSumNormal", False), ("Walk", False)]
)
def test_effects_that_are_not_normal_one_by_one_are_no_groups(kind, normal):
    """Where all is highest together their scale is 0: a run of 51 states, whose effects add up to 0, ended with NaNs, paid for, and with nothing."""
    k, X, y, _ = grouped()
    groups = int(k.max()) + 1
    with pm.Model():
        tau = pm.HalfNormal("tau", 1)
        if kind == "Walk":
            first = pm.Normal.dist(0, 1)
            alpha = pm.GaussianRandomWalk("alpha", sigma=tau, init_dist=first, shape=groups)
        else:
            alpha = getattr(pm, kind)("alpha", sigma=tau, shape=groups)
        logit = alpha[k] + X @ pm.Normal("beta", 0, 1, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=logit, observed=y)
        step = dp.DPSurrogate(draws=50, chains=1, epsilon=3, delta=1e-6, compile_kwargs=FAST)
    assert has_groups(step.compiled)
    assert groups_are_normal(step.compiled) == normal
    if not normal:
        step.release()
        assert step.guarantee.diagnostics["family"] == "normal"


@pytest.mark.parametrize("once", [True, False])
def test_a_search_whose_numbers_leave_their_range_begins_again_or_gives_back_what_is_left(
    monkeypatch, once
):
    k, X, y, _ = grouped()
    with grouped_model(k, X, y):
        step = dp.DPSurrogate(
            draws=50, chains=1, epsilon=8.0, delta=1e-6, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
    drawn, times = LawModel.drawn, iter(range(1000))

    def out_of_range(self, rng, many, only_effects=False):
        theta = drawn(self, rng, many, only_effects)
        k = next(times)
        return [x / 0.0 for x in theta] if k == 2 or (k > 2 and not once) else theta

    monkeypatch.setattr(LawModel, "drawn", out_of_range)
    with np.errstate(all="ignore"):
        step.release()
    said = step.guarantee.diagnostics
    spent = sum(share for what, share in said.items() if what.startswith("spent_on"))
    assert said["usable"] == once
    assert (spent > 0.999) == once
    assert spent > fit.SETTINGS.again
    if once:  # two places, and then two from afar and all from nearby
        assert said["queries"] >= 2 + 2 + len(fit.SETTINGS.near)


@functools.cache
def released(centred):
    k, X, y, alpha = grouped()
    model = grouped_model(k, X, y, centred=centred)
    with model:
        step = dp.DPSurrogate(
            draws=300, chains=2, epsilon=8.0, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
        return (
            step,
            dp.release(pm.sample(300, tune=0, chains=2, step=step, cores=1, progressbar=False)),
            alpha,
        )


def test_if_nuts_fails_draws_are_about_the_laws_mode(monkeypatch):
    """Beside NUTS of the same law: what was paid for is not lost."""

    def broken(*arguments, **keywords):
        raise RuntimeError("no")

    step, _, _ = released(True)
    monkeypatch.setattr("pymc_dp.surrogate.normal.draws.pm.sample", broken)
    k, X, y, _ = grouped()
    with grouped_model(k, X, y, centred=True):
        failed = dp.DPSurrogate(
            draws=300, chains=2, epsilon=8.0, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
    failed.release()
    ours, theirs = (one._draws.reshape(-1, one.compiled.d) for one in (failed, step))
    # The same law: of any parameter's sd a half is more than skewness and 600 draws explain.
    assert np.max(np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) / theirs.std(axis=0)) < 0.5


@pytest.mark.parametrize("centred", [True, False])
def test_a_run_finds_groups_and_hyperparameters(centred):
    step, idata, alpha = released(centred)
    posterior = {
        name: idata["posterior"][name].values.reshape(600, -1) for name in ("alpha", "beta", "tau")
    }
    off = (posterior["alpha"].mean(0) - alpha) / posterior["alpha"].std(0)
    assert np.sqrt(np.mean(off**2)) < 1.4
    assert np.corrcoef(posterior["alpha"].mean(0), alpha)[0, 1] > 0.9
    assert (np.abs(posterior["beta"].mean(0) - [0.5, -0.4]) < 4 * posterior["beta"].std(0)).all()
    assert abs(posterior["tau"].mean() - 0.6) < 4 * posterior["tau"].std()
    assert 0 < step.guarantee.diagnostics["groups_0_privacy_shift"] < 3
    assert step.guarantee.diagnostics["groups_0_number"] == 40


def test_effects_of_groups_and_nothing_else():
    """What no parameter has a part in, here the inverse link, is no table of its own; φ is empty."""
    rng = np.random.default_rng(1)
    k, alpha = rng.integers(40, size=20_000), rng.normal(0.3, 0.6, 40)
    y = rng.random(20_000) < 1 / (1 + np.exp(-alpha[k]))
    with pm.Model():
        level = pm.Normal("level", pm.Normal("mu"), pm.HalfNormal("tau"), shape=40)
        pm.Bernoulli("y", logit_p=level[pm.Data("k", k)], observed=pm.Data("Y", y.astype(int)))
        step = dp.DPSurrogate(
            draws=200, chains=1, epsilon=4.0, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
    step.release()
    assert step.diagnostics.usable
    assert 0.1 < step.diagnostics.privacy_shift < 3
    found = np.array([step.compiled.parameters.point(t)["level"] for t in step._draws[0]])
    # Forty squares of about normal errors in their own sds: above two once in ten thousand.
    assert np.mean(((found.mean(axis=0) - alpha) / found.std(axis=0)) ** 2) < 2


def test_the_way_the_model_is_written_does_not_matter():
    one, other = (released(centred)[1]["posterior"] for centred in (True, False))
    for name in ("alpha", "beta", "mu", "tau"):
        a, b = (x[name].values.reshape(600, -1) for x in (one, other))
        se = np.sqrt((a.var(0) + b.var(0)) / 150)
        assert (np.abs(a.mean(0) - b.mean(0)) < 5 * se).all()


def test_all_is_paid_for_at_once():
    step, _, _ = released(True)
    (event,) = step.guarantee.once
    assert event.noise_multiplier >= step.run.multiplier_of_one()
    assert step.guarantee.events == ()


def test_without_noise_the_law_is_the_posterior():
    """Against NUTS on the data: means within Monte Carlo error and a little curvature."""
    k, X, y, _ = grouped()
    model = grouped_model(k, X, y)
    compiled_ = dp.compile(model, compile_kwargs=FAST)
    noise = InsecureSeededNoise(1)
    z = 1e-4
    privacy_filter = PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z)
    measure = PaidMeasurements(
        Curator(LocalRecords(compiled_, local=True, words=WORDS), noise), privacy_filter
    )
    family = HierarchicalFamily(compiled_, 1.0, "pymc")
    family.compile()
    found = family.draw(measure, draws=1500, chains=1)
    with model:
        # Of 400 draws the sd of one group in 40 is off by a quarter itself.
        exact = pm.sample(2000, tune=400, chains=1, cores=1, progressbar=False, random_seed=1)
    points = [compiled_.parameters.point(theta) for theta in found.draws[0]]
    for name, own in (("alpha", "alpha"), ("beta", "beta"), ("mu", "mu")):
        ours = np.array([np.ravel(point[own]) for point in points])
        theirs = exact["posterior"][name].values.reshape(2000, -1)
        assert (np.abs(ours.mean(0) - theirs.mean(0)) < 0.45 * theirs.std(0)).all()
        assert (np.abs(np.log(ours.std(0) / theirs.std(0))) < 0.25).all()


@pytest.mark.parametrize("mean", slow_but(1.7)([1.7, -1.4]))
def test_crossed_factors_are_found_from_afar_with_next_to_no_noise(mean):
    """Noise hid that rows went to and fro on the way: without it, next to none of these searches arrived."""
    rng, n, m = np.random.default_rng(0), 20_000, 50
    alpha, other = rng.normal(mean, 0.7, m), rng.normal(0, 0.3, m // 2)
    beta, sizes = np.array([0.3, -0.7, 0.6]), np.exp(rng.normal(size=m))
    k, j = rng.choice(m, n, p=sizes / sizes.sum()), rng.integers(m // 2, size=n)
    X = rng.normal(size=(n, 3))
    X[:, 0] = 0.7 * X[:, 0] + 0.7 * rng.normal(size=m)[k]
    eta = X @ beta + alpha[k] + other[j]
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("tau", 0.7), shape=m)
        b = pm.Normal("b", 0, pm.HalfNormal("tau_b", 0.7), shape=m // 2)
        level = a[pm.Data("k", k)] + b[pm.Data("j", j)]
        logit = level + pm.Data("X", X) @ pm.Normal("beta", 0, 0.5, shape=3)
        pm.Bernoulli("y", logit_p=logit, observed=pm.Data("Y", y))
    of, z = dp.compile(model, compile_kwargs=COMPILED), 0.02
    privacy_filter = PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z)
    curator = Curator(LocalRecords(of, local=True, words=WORDS), InsecureSeededNoise(1))
    found = fit.fit_hierarchical(PaidMeasurements(curator, privacy_filter), law_model(of))
    sds = np.sqrt(found.law.covariance(found.mode.prior_sds).diagonal)
    assert (np.abs(found.mode.psi[:3] - beta) < 4 * sds[:3]).all()
    # No record's term changes with all of one factor more and all of the other less: of that the prior alone knows.
    up, down = np.zeros((2, len(found.mode.psi)))
    first, _ = of.cut.shape.tables
    up[3 : 3 + first[0]], down[3 + first[0] :] = 1, 1
    K = found.law.K
    assert (up - down) @ (K @ (up - down)) < 1
    assert up @ (K @ up) > 1000


def test_queries_are_functions_of_releases_only(monkeypatch):
    """With one record replaced and the releases held fixed, the same is asked in the same order."""
    k, X, y, _ = grouped(n=2000)
    asked = []

    class Recorded:
        """Answers from a tape that was made with the first data."""

        tape: ClassVar[list] = []

        def __init__(self, measure, play):
            self._measure, self._play, self._next = measure, play, 0

        def __getattr__(self, name):
            return getattr(self._measure, name)

        def _answer(self, key, compute):
            if not self._play:
                self.tape.append((key, compute()))
                return self.tape[-1][1]
            expected, answer = self.tape[self._next]
            self._next += 1
            assert expected == key
            compute()  # it is paid for all the same
            return answer

        def sum(self, of, bound, share):
            inner = getattr(of, "of", of)
            key = (type(of).__name__, bound, share, inner.theta.tobytes())
            if hasattr(inner, "preconditioner"):
                key += tuple(x.tobytes() for x in (inner.preconditioner.V, *inner.preconditioner.R))
            key += tuple(x.tobytes() for x in getattr(of, "features", ()))
            return self._answer(key, lambda: self._measure.sum(of, bound, share))

        def histogram(self, of, share, bins_per_octave=2):
            key = (type(of).__name__, share, of.theta.tobytes())
            return self._answer(key, lambda: self._measure.histogram(of, share, bins_per_octave))

    draws = []
    for play in (False, True):
        if play:
            k, X, y = k.copy(), X.copy(), y.copy()
            k[0], X[0], y[0] = (k[0] + 1) % 40, -X[0], 1 - y[0]
        compiled_ = dp.compile(grouped_model(k, X, y), compile_kwargs=FAST)
        privacy_filter = PrivacyFilter(Permit(0, 0, (Gaussian(0.5),)), 0.5)
        records = LocalRecords(compiled_, local=True, words=WORDS)
        measure = Recorded(
            PaidMeasurements(Curator(records, InsecureSeededNoise(2)), privacy_filter), play
        )
        family = HierarchicalFamily(compiled_, 1.0, "pymc")
        family.compile()
        found = family.draw(measure, draws=20, chains=1)
        draws.append(found.draws)
        asked.append(len(measure.tape))
    assert asked[0] == asked[1] > 20
    np.testing.assert_array_equal(*draws)


@pytest.mark.parametrize(("epsilon", "usable"), [(0.05, 0), (0.5, 1)])
def test_next_to_nothing_learnt_is_said(caplog, epsilon, usable):
    """Of anything: then the run is lost; or of groups, which are named."""
    k, X, y, _ = grouped(n=3000)
    with grouped_model(k, X, y):
        step = dp.DPSurrogate(
            draws=10, chains=1, epsilon=epsilon, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(5),
        )  # fmt: skip
    with caplog.at_level("WARNING", logger="pymc.dp"):
        step.release()
    assert step.guarantee.diagnostics["usable"] == usable
    assert "next to nothing was learnt" in caplog.text
    assert ("alpha" in caplog.text) == bool(usable)


@pytest.mark.parametrize("doubt", [None, 0.5])
def test_where_what_all_share_is_doubted_by_half_a_records_sd_a_run_is_not_usable(
    monkeypatch, caplog, doubt
):
    """A normal law is of nearby. Of φ's sds the doubt is what they make of a record's log-likelihood; what was learnt is given back all the same."""
    k, X, y, _ = grouped()
    fitted = []

    def doubted(*args):
        found = fit.fit_hierarchical(*args)
        fitted.append(found if doubt is None else found._replace(doubt=doubt))
        return fitted[-1]

    monkeypatch.setattr(hierarchical, "fit_hierarchical", doubted)
    with grouped_model(k, X, y):
        step = dp.DPSurrogate(
            draws=10, chains=1, epsilon=8.0, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
    with caplog.at_level("WARNING", logger="pymc.dp"):
        step.release()
    assert step.diagnostics.usable == (doubt is None)
    assert ("too little was learnt" in caplog.text) == (doubt is not None)
    (found,) = fitted
    if doubt is None:
        sds = np.sqrt(found.law.covariance(found.mode.prior_sds).diagonal[: X.shape[1]])
        # A Bernoulli record's information is a quarter of its covariate's square, at most.
        assert 0.3 < found.doubt / np.linalg.norm(sds * X.std(axis=0) / 2) < 1.1


def test_a_query_that_leads_nowhere_returns_the_prior(monkeypatch, caplog):
    k, X, y, _ = grouped(n=400)
    with grouped_model(k, X, y):
        step = dp.DPSurrogate(draws=10, chains=1, epsilon=1.0, compile_kwargs=FAST)

    def lost(self, information, last):
        raise SearchLost("evaluation 1 led nowhere")

    monkeypatch.setattr(fit._Run, "_think", lost)
    with caplog.at_level("WARNING", logger="pymc.dp"):
        step.release()
    assert "evaluation 1 led nowhere" in caplog.text
    assert step.guarantee.diagnostics["usable"] == 0


def test_a_law_of_no_variance_returns_the_prior(monkeypatch, caplog):
    """Noisy information may be that of no law: a run that was paid for returns all the same."""
    k, X, y, _ = grouped()
    with grouped_model(k, X, y):
        step = dp.DPSurrogate(draws=10, chains=1, epsilon=3.0, compile_kwargs=FAST)
    covariance = GroupLaw.covariance

    def negative(self, prior_sds):
        found = covariance(self, prior_sds)
        return Structured([-found.blocks[0], *found.blocks[1:]], found.U, found.M)

    monkeypatch.setattr(GroupLaw, "covariance", negative)
    with caplog.at_level("WARNING", logger="pymc.dp"):
        step.release()
    assert "led nowhere" in caplog.text
    assert step.guarantee.diagnostics["usable"] == 0


def a_test():
    """Of 12 items, with two numbers each, and persons as groups."""
    rng = np.random.default_rng(9)
    person, item = np.indices((400, 12)).reshape(2, -1)
    with pm.Model() as model:
        ability = pm.Normal("ability", 0, 1, shape=400)
        a, b = pm.LogNormal("a", 0, 0.5, shape=12), pm.Normal("b", 0, 1, shape=12)
        logit = a[item] * (ability[person] - b[item])
        pm.Bernoulli("right", logit_p=logit, observed=rng.integers(2, size=len(item)))
    return model


def lost_in_the_prior(model):
    compiled = dp.compile(model, unit=0, compile_kwargs=FAST)
    law = law_model(compiled)
    law.reset()
    law.mode()
    return attenuation(compiled, law)


@pytest.mark.parametrize("kind", ["normal", "poisson", "beta"])
def test_what_effects_are_added_to_is_learnt_though_they_are_not_known(kind):
    """Exactly so of covariates times residuals; a beta outcome's scores depend on its mean in another way, too."""
    k, _, X, _ = data()
    with pm.Model() as model:
        effect = pm.Normal("alpha", 0, 1, shape=40)[k] + X @ pm.Normal("beta", 0, 1, shape=P)
        if kind == "normal":
            pm.Normal("y", effect, 1.0, observed=np.zeros(N))
        elif kind == "poisson":
            pm.Poisson("y", pm.math.exp(effect), observed=np.zeros(N, int))
        else:
            pm.Beta("y", mu=pm.math.sigmoid(effect), nu=7.0, observed=np.full(N, 0.5))
    lost = lost_in_the_prior(model)
    assert (np.abs(lost) < 0.2).all()  # 64 outcomes of a record, at 8 pairs of places


def test_what_effects_multiply_is_not_learnt_where_they_are_not_known():
    """Of log a the score is a (α - b) times a residual, and two draws of α - b from the prior have nothing in common; those of a do."""
    lost = lost_in_the_prior(a_test())
    assert len(lost) == 3
    assert (
        abs(lost.max() - 1) < 0.5
    )  # 8 pairs of places: the median record's mean of as many products
    assert np.sort(lost)[1] < 0.25


def test_a_run_of_which_effects_multiply_what_is_wanted_is_not_usable(caplog):
    found = dp.sample(50, model=a_test(), unit=0, epsilon=5, chains=1, cores=1, progressbar=False)  # fmt: skip
    assert not found.attrs["privacy_usable"]
    assert "integrate_out" in caplog.text


def test_an_index_that_is_written_twice_is_one_table():
    """By identity: two arrays that only happen to agree are two, or the graph would tell of records."""
    rng = np.random.default_rng(0)
    k, x, y = rng.integers(8, size=200), rng.normal(size=200), rng.normal(size=200)

    def shapes(first, second):
        with pm.Model() as model:
            a, b = pm.Normal("a", 0, 1, shape=8), pm.Normal("b", 0, 1, shape=8)
            pm.Normal("y", a[first] + b[second] * x, 1, observed=y)
        return dp.compile(model).cut.shapes

    assert shapes(k, k) == [(8, 2)]
    assert shapes(k, k.copy()) == [(8, 1), (8, 1)]


def test_a_column_that_is_read_by_its_number_is_one_of_the_table():
    rng = np.random.default_rng(0)
    k, x, y = rng.integers(8, size=200), rng.normal(size=200), rng.normal(size=200)

    def shapes(shape, predictor):
        with pm.Model() as model:
            pm.Normal("y", predictor(pm.Normal("a", 0, 1, shape=shape)), 1, observed=y)
        return dp.compile(model).cut.shapes

    assert shapes((8, 2), lambda a: a[k, 0] + a[k, 1] * x) == [(8, 2)]
    assert shapes((2, 8), lambda a: a[0, k] + a[1, k] * x) == [(8, 2)]


def test_effects_that_are_not_normal_are_refused_before_anything_is_spent(tmp_path):
    rng = np.random.default_rng(0)
    ledger = dp.PrivacyLedger(tmp_path / "account.db", epsilon=5.0, delta=1e-5)
    with pm.Model():
        a = pm.StudentT("a", nu=4, shape=300)  # too many for a law without groups
        eta = a[pm.Data("K", rng.integers(300, size=900))] + pm.Normal("b")
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", rng.integers(2, size=900)))
        step = dp.DPSurrogate(
            draws=10, chains=1, epsilon=1.0, unit=0, ledger=ledger, compile_kwargs=FAST
        )
    with pytest.raises(dp.UnsupportedModelError, match="normal given"):
        step.release()
    assert ledger.spent() == 0


def correlated():
    """Of 40 groups of 500 each, true effects and a run; their intercepts and slopes correlate by .8."""
    rng = np.random.default_rng(4)
    k, x = rng.integers(40, size=20_000), np.clip(rng.normal(size=20_000), -3, 3)
    effects = rng.multivariate_normal([0.3, -0.2], [[0.36, 0.24], [0.24, 0.25]], 40)
    y = rng.random(len(k)) < 1 / (1 + np.exp(-effects[k, 0] - effects[k, 1] * x))
    with pm.Model():
        chol, *_ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2), compute_corr=True
        )
        a = pm.MvNormal("a", pm.Normal("mean", shape=2), chol=chol, shape=(40, 2))
        K = pm.Data("K", k)
        eta = a[K, 0] + a[K, 1] * pm.Data("X", x)
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("Y", y.astype(int)))
        step = dp.DPSurrogate(
            draws=300, chains=2, epsilon=8.0, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
        step.release()
    points = [step.compiled.parameters.point(t) for t in step._draws.reshape(600, -1)]
    return step, effects, np.array([p["a"] for p in points])


def test_a_run_finds_correlated_effects():
    step, effects, a = correlated()
    assert step.diagnostics.usable
    off = (a.mean(axis=0) - effects) / a.std(axis=0)
    # Eighty squares of about normal errors in their own sds: above 1.5 once in ten thousand.
    assert np.mean(off**2) < 1.5
    between = [np.corrcoef(one.T)[0, 1] for one in a]
    assert abs(np.mean(between) - np.corrcoef(effects.T)[0, 1]) < 4 * np.std(between)
    assert np.mean(between) > 0.5


def test_a_run_of_games_finds_differences():
    """Of 40 teams of known spread, beside the exact posterior by Newton's method."""
    rng, m, n = np.random.default_rng(5), 40, 20_000
    a, home = rng.normal(size=m), rng.integers(m, size=n)
    away = (home + rng.integers(1, m, n)) % m
    y = (rng.random(n) < 1 / (1 + np.exp(a[away] - a[home]))).astype(int)
    with pm.Model():
        skill = pm.Normal("a", 0, 1, shape=m)
        pm.Bernoulli(
            "y",
            logit_p=skill[pm.Data("H", home)] - skill[pm.Data("A", away)],
            observed=pm.Data("Y", y),
        )
        step = dp.DPSurrogate(
            draws=300, chains=2, epsilon=20.0, unit=0, compile_kwargs=FAST,
            noise_source=InsecureSeededNoise(3),
        )  # fmt: skip
        step.release()
    X = np.eye(m)[home] - np.eye(m)[away]
    exact = np.zeros(m)
    for _ in range(10):
        p = 1 / (1 + np.exp(-X @ exact))
        precision = (X.T * (p * (1 - p))) @ X + np.eye(m)
        exact += np.linalg.solve(precision, X.T @ (y - p) - exact)
    centred = np.eye(m) - 1 / m
    sds = np.sqrt(np.diag(centred @ np.linalg.inv(precision) @ centred))
    draws = np.array([step.compiled.parameters.point(t)["a"] for t in step._draws.reshape(600, -1)])
    apart = draws @ centred
    # Root mean squares over 40 teams: noise is a part of a posterior sd at this budget.
    assert np.sqrt(np.mean(((apart.mean(axis=0) - centred @ exact) / sds) ** 2)) < 0.5
    assert 0.9 < np.mean(apart.std(axis=0) / sds) < 1.2
