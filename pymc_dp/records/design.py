"""What a model whose covariates are public says of its units before any outcome is read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.simulated import SECRET_WORDS
from pymc_dp.linalg import Vector
from pymc_dp.records.queries import UnitTerms
from pymc_dp.records.sums import LocalRecords

_REPLICATES = 4, 4
"""How often eight outcomes are drawn: to choose what is asked, and to expect its answer."""


@dataclass(frozen=True)
class PublicDesign:
    r"""Scores at outcomes that the model has for its units, whose covariates are public. Nothing in it is private.

    **Why it may be had for nothing.** It is built of records without outcomes: in the place of each there is a 0 before
    anything is computed, so that no value here can be a function of one. Everything else of a record was declared
    public, by name. Outcomes are drawn with words that anybody may know: that they are the same in every run helps to
    repeat it, and there is nothing that secret ones would protect.

    Parameters
    ----------
    chosen, expected : tuple of UnitTerms
        Records without outcomes, which draw outcomes of their own: two sets, independent of each other if outcomes are
        drawn.
    exact : bool
        Whether all values of an outcome are taken, each with its probability.
    """

    chosen: tuple[UnitTerms, ...]
    expected: tuple[UnitTerms, ...]
    exact: bool

    @property
    def n_units(self) -> int:
        """Number of units; public, as their covariates are."""
        return self.chosen[0].n_units


def scores_of(
    replicates: tuple[UnitTerms, ...], theta: Vector
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    r"""Chunks of scores :math:`\nabla\ell_i(\theta)` at outcomes of the model's, those of all replicates together.

    Yields
    ------
    scores : ndarray, shape (outcomes, units, d)
        One that is not finite is 0.
    weights : ndarray, shape (outcomes, units)
        Probabilities.
    """
    for chunks in zip(*(records.scores(theta) for records in replicates), strict=True):
        z = np.concatenate([chunk.simulated for chunk in chunks])
        weights = np.concatenate([chunk.weights for chunk in chunks]) / len(chunks)
        finite = np.isfinite(z).all(axis=2, keepdims=True) & np.isfinite(weights)[:, :, None]
        yield np.where(finite, z, 0.0), np.where(finite[:, :, 0], weights, 0.0)


def public_design(compiled: CompiledModel) -> PublicDesign | None:
    """What is public of a model's records, if all but outcomes is; None if not, or if outcomes cannot be drawn.

    Decided by what was declared, and by the model's graph.
    """
    roles = compiled.roles
    if not roles.public_design or compiled.simulated is None:
        return None
    rows = [np.zeros_like(x.values) if x.outcome else x.values for x in roles.record_data]
    exact = compiled.simulated.is_exact

    def replicates(first: int, many: int) -> tuple[UnitTerms, ...]:
        words = np.zeros((1 if exact else many, SECRET_WORDS), np.uint64)
        words[:, 0] = first + np.arange(len(words))
        return tuple(LocalRecords(compiled, 1, words=w).of_data(rows) for w in words)

    chosen = replicates(0, _REPLICATES[0])
    return PublicDesign(chosen, chosen if exact else replicates(*_REPLICATES), exact)
