"""What a model whose covariates are public says of its units before any outcome is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.reading import Reading
from pymc_dp.likelihood.simulated import SECRET_WORDS, SimulatedScores
from pymc_dp.linalg import Vector
from pymc_dp.records.queries import finite_scores


@dataclass(frozen=True)
class PublicDesign:
    r"""Scores at outcomes that the model has for its units, whose covariates are public. Nothing in it is private.

    **Why it may be had for nothing.** It is made of records without outcomes: in the place of each there is a 0 before
    anything is computed, so that no value here can be a function of one. Everything else of a record was declared
    public, by name. Outcomes are drawn with words that anybody may know: that they are the same in every run lets it be
    repeated, and there is nothing that secret ones would protect.

    Parameters
    ----------
    simulated : SimulatedScores
        Of records without outcomes.
    n_units : int
        How many there are; public, as their covariates are.
    reading : Reading, optional
        What is asked about of θ. Default: all of it.
    """

    simulated: SimulatedScores
    n_units: int
    reading: Reading | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all values of an outcome are taken, each with its probability, and none is drawn."""
        return self.simulated.is_exact

    def of_part(self, reading: Reading) -> "PublicDesign":
        """The same about what the likelihood reads of θ."""
        return replace(self, reading=reading)

    def scores(
        self, theta: Vector, places: Sequence[Vector], stream: int, draws: int
    ) -> Iterator[tuple[Vector, list[Vector]]]:
        r"""Chunks of scores :math:`\nabla\ell_i` at some places, of outcomes that the model has at θ.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        places : sequence of ndarray, shape (d,)
        stream : int
            Outcomes of different streams are independent.
        draws : int
            How many outcomes of each unit are drawn, if they are.

        Yields
        ------
        weights : ndarray, shape (outcomes, units)
            Probabilities.
        scores : list of ndarray, shape (outcomes, units, d)
            One that is not finite is 0.
        """
        words = np.array([stream, *[0] * (SECRET_WORDS - 1)], np.uint64)
        if self.reading is not None:
            theta, at = self.reading.place(theta).theta, [self.reading.place(p) for p in places]
            places = [place.theta for place in at]
        for weights, scores in self.simulated.elsewhere(theta, places, words, draws):
            weights = np.where(np.isfinite(weights), weights, 0.0)
            if self.reading is not None:
                scores = [z @ place.inverse for z, place in zip(scores, at, strict=True)]
            yield weights, [finite_scores(z) for z in scores]


def public_design(
    compiled: CompiledModel, data: Sequence[NDArray[Any]] | None = None
) -> PublicDesign | None:
    """What is public of a model's records, if all but outcomes is; None if not, or if outcomes cannot be drawn.

    Decided by what was declared, and by the model's graph.

    Parameters
    ----------
    compiled : CompiledModel
    data : sequence of ndarray, optional
        Other records, one array per ``roles.record_data``. Default: the model's.
    """
    leaves = compiled.roles.record_data
    simulated = compiled.simulated if compiled.roles.public_design else None
    if simulated is None:
        return None
    rows = [leaf.values for leaf in leaves] if data is None else data
    rows = [np.zeros_like(x) if leaf.outcome else x for x, leaf in zip(rows, leaves, strict=True)]
    without = compiled.likelihood.of_data(rows)
    simulated = simulated.of(without, compiled.gradients.of(without))
    return PublicDesign(simulated, without.n_units)
