r"""Evaluations at a model whose records each use one row of some tables, and the law that they leave.

A record's gradient in :math:`\psi = (\varphi, \alpha)` is :math:`(x_i, a_i)`, :math:`a_i` in the rows that
it uses. Its norm does not depend on which rows these are, nor on how many rows there are, and so neither
does the noise in every entry of the sum. Hyperparameters are in no record's term: their law is the prior's,
given ψ.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.records.grouped import Preconditioner
from pymc_dp.records.measurements import Measurements
from pymc_dp.surrogate.hierarchical.draws import LawModel, Mode
from pymc_dp.surrogate.hierarchical.evaluation import Curvature, Evaluator, Slope
from pymc_dp.surrogate.hierarchical.law import GroupLaw, Information, informed, pooled


class SearchLost(Exception):
    """A search ended far from where the groups are."""


@dataclass(frozen=True)
class GroupSettings:
    """Constants: nobody has to set them. Shares are of the whole budget, in μ²."""

    far: float = 0.006
    """Least share of an evaluation from afar: it sees the common parameters, and of the groups little but their mean."""
    all_from_afar: float = 0.2
    """Share from which on no more is spent on these."""
    far_most: int = 8
    """Evaluations from afar, at most."""
    near: tuple[float, ...] = (0.04, 0.08, 0.16, 0.28, 0.44)
    """Of what is left, the evaluations from nearby. Each is at a better place than the one before: what an evaluation
    says of a group is the less worth the further from it the group was thought to be."""
    arrived: float = 0.2
    """A move this long, in a record's own standard deviations, is from nearby."""
    trust: float = 1.0
    """Longest move, in the same."""
    nowhere: float = 30.0
    """No move is longer than this, in the same, but from noise."""
    lost: float = 0.35
    """Where the last move was longer than that, nothing was found."""
    curvature: float = 0.25
    """Of an evaluation, the Hessian's part."""
    rows: float = 0.5
    """Of that, the rows' part."""
    cross: float = 0.35
    """The part of what couples φ with rows: where groups differ in their covariates, slopes rest on it."""
    common: float = 0.15
    """φ's part."""
    tables: float = 0.05
    """What couples tables: a few numbers."""
    counts_fine: float = 0.002
    """A histogram's noise, per bin, as a part of the units, where the bound decides the noise that is left."""
    of_units: float = 1e-4
    """Share of the number of units, where that is private: it sets scales only."""
    counts_rough: float = 0.01
    """The same, of the others."""
    counts: tuple[float, float] = (2e-5, 0.004)
    """Range of the share of either."""
    kept: float = 0.99
    """Quantile up to which Hessians are not clipped."""
    kept_afar: float = 0.95
    """Quantile up to which gradients of an evaluation from afar are not clipped."""
    length: float = 0.998
    """Quantile that stands for a gradient's length in one part of ψ."""
    guesses: int = 3
    """How often the law's noise is computed anew at the law's own mode."""


SETTINGS = GroupSettings()
"""The ones in use."""


class GroupPosterior(NamedTuple):
    """What evaluations have found.

    Parameters
    ----------
    law : GroupLaw
    mode : Mode
        Of the law with the prior.
    privacy_shifts : ndarray, shape (n,)
        How far privacy noise moves every entry of ψ, in standard deviations.
    evaluations : int
    """

    law: GroupLaw
    mode: Mode
    privacy_shifts: Vector
    evaluations: int


def fit_hierarchical(
    measure: Measurements,
    model: LawModel,
    tempering: float = 1.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> GroupPosterior:
    """Find the law of ψ, and spend everything on it.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of data, and spent afterwards.
    model : LawModel
        Takes the law for draws.
    tempering : float
        T.
    on_progress : callable, optional
        Told what is being done. Gets public text only.

    Raises
    ------
    SearchLost
        If the last evaluation still moved far.
    LinAlgError
        If the noisy equations have no solution.

    Notes
    -----
    **Releases**, each of a function of one unit's record and of earlier releases: histograms, sums of clipped
    gradients in ψ, and sums of parts of clipped Hessians. **Guarantee**: together one Gaussian release of the
    budget's multiplier.
    """
    return _Run(measure, model, tempering).all(on_progress)


class _Run:
    def __init__(self, measure: Measurements, model: LawModel, tempering: float):
        s, shape = SETTINGS, model.shape
        n, sd = measure.units(s.of_units)
        self.n = n = max(n, sd, 1.0)
        self.measure, self.model, self.shape = measure, model, shape
        # As many histograms as an evaluation has take half of it, at most.
        many = 2 * (6 + sum(columns for _, columns in shape.tables))
        nearest = (1 - s.all_from_afar - s.near[0]) * s.near[0]
        self.rough = min(self._share_of_counts(s.counts_rough), nearest / many)
        self.far = max(s.far, many * self.rough)
        self.fine = min(self._share_of_counts(s.counts_fine), s.near[0] / 8)
        self.evaluator = Evaluator(measure, shape, tempering, self.rough)
        model.reset()
        self.mode = model.mode()
        self.root_n = math.sqrt(n)
        sds = model.common_sds
        self.preconditioner = Preconditioner(
            np.diag(sds), tuple(np.ones(r) for _, r in shape.tables)
        )
        self.prior = np.concatenate([sds, self.mode.prior_sds[shape.p :]])
        self.curvatures: list[Curvature] = []
        self.slopes: list[Slope] = []
        self.n_evaluations, self.held_back = 0, np.zeros(shape.n)
        self.rng = np.random.default_rng(0)  # public: where to evaluate
        self.variances = np.minimum(self.prior**2, 1e6)

    def _share_of_counts(self, part: float) -> float:
        """What a histogram with this noise costs."""
        at_one = self.measure.count_sd(1.0) / (part * self.n)
        return float(np.clip(at_one**2, *SETTINGS.counts))

    def all(self, on_progress: Callable[[str], None]) -> GroupPosterior:
        """Evaluate from afar, and then from nearby."""
        s, moved = SETTINGS, math.inf
        for k in range(s.far_most):
            if k >= 2 and (
                moved <= s.arrived * self.root_n or self.measure.spent > s.all_from_afar
            ):
                break
            self.curvatures, self.slopes = [], []
            moved = self.evaluate(self.far, self.rough, s.kept_afar)
            on_progress(f"query {self.n_evaluations} from afar")
        self.curvatures, self.slopes = [], []
        left = 1 - self.measure.spent
        for k, part in enumerate(s.near):
            last = k + 1 == len(s.near)
            moved = self.evaluate(1 - self.measure.spent if last else part * left, self.fine, 0.0)
            on_progress(f"query {self.n_evaluations}")
        if not moved <= s.lost * self.root_n:
            raise SearchLost(f"after {self.n_evaluations} queries it still moved far")
        return GroupPosterior(
            self.law, self.mode, self.law.privacy_shifts(self.prior), self.n_evaluations
        )

    def evaluate(self, share: float, counts: float, kept: float) -> float:
        """Evaluate where ψ may be, and think again: how far that has moved, in sds.

        ψ is drawn: at the mode groups would be less spread than they are, and what all records share would be
        measured as if they were. The Hessian is asked for at a draw of its own. Then the gradient's place and
        the truth may change places, given all releases before, and what curves the way between is 0 on average; with the
        curvature at one end of that way it is not.
        """
        s, shape, before = SETTINGS, self.shape, self.measure.spent
        psi, elsewhere = (drawn + self.held_back for drawn in self.model.drawn(self.rng, 2))
        at = shape.psi(psi)
        parts = {"rows": s.rows, "cross": s.cross, "common": s.common, "tables": s.tables}
        self.curvatures.append(
            self.evaluator.curvature(
                shape.psi(elsewhere), self.preconditioner, s.curvature * share, parts, s.kept
            )
        )
        information = informed(self.curvatures, shape)
        information = information._replace(V=self._within_prior(information.V))
        of_common, of_columns = self.evaluator.lengths(at, information.V, s.length)
        preconditioner = self._balanced(information, of_common, of_columns)
        rest = share - (self.measure.spent - before) - counts
        self.slopes.append(self.evaluator.slope(psi, at, preconditioner, rest, kept, counts))
        self.preconditioner = Preconditioner(
            information.V, tuple(1 / np.sqrt(w) for w in self._per_unit(information))
        )
        self.n_evaluations += 1
        return self._think(information)

    def _within_prior(self, V: Vector) -> Vector:
        """Coordinates of φ that are nowhere wider than the prior: where noise has hidden all information they would be."""
        sds = self.model.common_sds[:, None]
        left, sizes, right = np.linalg.svd(V / sds)
        return np.asarray(sds * ((left * np.minimum(sizes, 1.0)) @ right))

    def _per_unit(self, information: Information) -> list[Vector]:
        """Information of a record about the entries of its row, on average."""
        rows = self.shape.parts(information.J.diagonal)[1:]
        return [np.maximum(r.sum(axis=0) / self.n, 1e-12) for r in rows]

    def _balanced(
        self, information: Information, of_common: float, of_columns: list[Vector]
    ) -> Preconditioner:
        """Scales that divide noise among φ and tables, so that variances relative to posteriors' add up least.

        A part with gradients of length q and posterior variance c gets noise of variance proportional to
        q / √c.
        """
        rows = self.shape.parts(information.J.diagonal)[1:]
        priors = self.shape.parts(self.prior)[1:]
        variances = [
            np.mean(1 / (np.maximum(r, 0.0) + 1 / p**2 + 1e-300), axis=0)
            for r, p in zip(rows, priors, strict=True)
        ]
        total = of_common + sum(
            float(q @ np.sqrt(c)) for q, c in zip(of_columns, variances, strict=True)
        )
        scales = tuple(
            1 / np.sqrt(q / np.sqrt(c) * total) for q, c in zip(of_columns, variances, strict=True)
        )
        return Preconditioner(information.V / math.sqrt(of_common * total or 1.0), scales)

    def _think(self, information: Information) -> float:
        """The law of all evaluations that count, and its mode: as far away as it may be trusted."""
        s, shape, n = SETTINGS, self.shape, self.n
        psi = self.mode.psi + self.held_back
        mode, prior = psi, self.prior
        variances = self.variances
        for _ in range(s.guesses):
            law = pooled(self.slopes, information, shape, n, psi, mode, variances)
            self.model.put(law.centre, law.k, law.K)
            self.mode = self.model.mode()
            prior = np.concatenate([prior[: shape.p], self.mode.prior_sds[shape.p :]])
            mode, variances = self.mode.psi, law.variances(prior)
        self.law, self.prior, self.variances = law, prior, variances
        step = self.mode.psi - psi
        moved = math.sqrt(max(float(step @ (law.J @ step)), 0.0))
        if not moved < s.nowhere * self.root_n:
            raise SearchLost(f"query {self.n_evaluations} led nowhere")
        self.held_back = step * (min(1.0, s.trust * self.root_n / max(moved, 1e-300)) - 1)
        return moved
