"""What an anchor leaves of the units' log-likelihoods: private residuals, and what is asked of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import (
    Vector,
    as_vectors,
    clip,
    inverse_root,
    norms,
    shrink,
    subtract_terms,
)
from pymc_dp.records.questions import Gradient, Hessian, Units
from pymc_dp.records.sums import LastPoints, LocalRecords


@dataclass(frozen=True, eq=False)
class Expansion:
    r"""Around what, and of how many units, residuals are: public, and small enough to travel.

    Parameters
    ----------
    anchor : Anchor
    tempering : float
        T.
    n_units : int
        Of all processes together: at order 1 each has this part of the anchor's curvature.
    """

    anchor: Anchor
    tempering: float
    n_units: int

    def is_like(self, other: "Expansion") -> bool:
        """Whether the residuals of both are the same."""
        return self is other or all(
            np.array_equal(mine, its)
            for mine, its in zip(self._numbers, other._numbers, strict=True)
        )

    @property
    def _numbers(self) -> list[Any]:
        a = self.anchor
        shared = a.curvature if a.order == 1 else 0.0
        return [a.theta0, a.W, a.order, a.gradient_clip, a.hessian_clip, self.tempering, shared]


@dataclass(frozen=True, eq=False)
class ResidualRatio:
    r""":math:`h_i(u') - h_i(u)`.

    Parameters
    ----------
    expansion : Expansion
    u, new : ndarray, shape (d,)
    """

    expansion: Expansion
    u: Vector
    new: Vector
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.questions.Question`."""
        now, new = residuals_of(records, self.expansion, units).at([self.u, self.new])
        yield new - now


@dataclass(frozen=True, eq=False)
class ResidualSizes:
    """Units' residual ratios between public pairs of points, over the bound that they get.

    Parameters
    ----------
    expansion : Expansion
    clipped : bool
        Whether ratios are beyond the bound, as 1/2 or −1/2, in place of the sizes. Rather than 0 and 1: half
        the sensitivity.
    """

    expansion: Expansion
    clipped: bool = False
    dimension = None

    def terms(self, records: LocalRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.questions.Question`."""
        residuals, anchor = residuals_of(records, self.expansion, units), self.expansion.anchor
        rng = np.random.default_rng(0)  # public: where to look
        d, root = len(anchor.theta0), inverse_root(anchor.precision)
        sizes = np.empty(records.n_units)
        for k in range(SETTINGS.probes):
            u, new = anchor.mean + rng.standard_normal((2, d)) @ root
            ratios = residuals(new) - residuals(u)
            some = slice((k - records.first_unit) % SETTINGS.probes, None, SETTINGS.probes)
            sizes[some] = np.abs(ratios[some]) / anchor.bound(u, new)
        yield np.where(sizes > 1, 0.5, -0.5) if self.clipped else sizes


def residuals_of(
    records: LocalRecords, expansion: Expansion, units: Units | None = None
) -> "Residuals":
    """The residuals of these records, which are kept for the next question."""
    if units is not None:
        raise NotImplementedError("Residuals are computed of all units.")
    kept = records.held
    if not (isinstance(kept, Residuals) and kept.expansion.is_like(expansion)):
        kept = records.held = Residuals(records, expansion)
    return kept


class Residuals:
    r"""Units' residuals :math:`h_i(u)` of an anchor. Private: never leave the process, not pickled.

    Units' terms of the anchor are kept, one column of numbers for each entry of their gradients and
    Hessians; in single precision, which is as fine as the grid that their sums are released on. Where
    the Hessians are too many to keep (64 MiB), second derivatives along the move are computed instead.

    Parameters
    ----------
    records : LocalRecords
    expansion : Expansion
    """

    def __init__(self, records: LocalRecords, expansion: Expansion):
        self._records, self.expansion = records, expansion
        self._kept: tuple[Vector, NDArray[np.float32], Vector | None] | None = None
        self._last = LastPoints()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def at(self, points: Sequence[Vector]) -> list[Vector]:
        """Residuals at some points, kept for the next time. Not to be changed in place."""
        return self._last(self, points)

    def __call__(self, u: Vector) -> Vector:
        """Residual of every unit, shape (units,). May contain NaN: clip before use."""
        a, n = self.expansion.anchor, self.expansion.n_units
        if self._kept is None:
            self._kept = self._prepare()
        at_zero, columns, factors = self._kept
        h, v = self._log_likelihood(a.to_theta(u)), u
        if a.order == 2 and factors is None:
            v = np.append(u, as_vectors(np.outer(u, u)) / 2)
        subtract_terms(h, at_zero, columns, v)
        if a.order == 1:
            # A public share of the curvature, the same for all, added back by `log_ratio`.
            h += (u @ a.curvature @ u) / (2 * n)
        elif factors is not None:
            along = self._records.curvature_along(a.theta0, a.W @ u)
            if self.expansion.tempering != 1:
                along = along * self.expansion.tempering
            along *= factors
            h -= along
        return h

    def _log_likelihood(self, theta: Vector) -> Vector:
        """Tempered, and new: it may be changed in place."""
        values = self._records.likelihood(theta)
        if self.expansion.tempering != 1:
            values *= self.expansion.tempering
        return values

    def _prepare(self) -> tuple[Vector, NDArray[np.float32], Vector | None]:
        """Log-likelihoods at the anchor, gradients and Hessians, or half the factors that clip these."""
        a, records = self.expansion.anchor, self._records
        at = a.theta0, a.W, self.expansion.tempering
        gradients = Gradient(*at).terms(records)
        terms = [np.concatenate([clip(chunk, a.gradient_clip) for chunk in gradients])]
        factors = None
        if a.order == 2 and records.keeps_hessians:
            chunks = Hessian(*at).terms(records)
            terms.append(np.concatenate([clip(chunk, a.hessian_clip) for chunk in chunks]))
        elif a.order == 2:
            sizes = map(norms, Hessian(*at).terms(records))
            factors = np.concatenate([shrink(size, a.hessian_clip) / 2 for size in sizes])
        columns = np.ascontiguousarray(np.hstack(terms).T, dtype=np.float32)
        return self._log_likelihood(a.theta0), columns, factors
