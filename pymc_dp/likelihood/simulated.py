"""Scores of units at outcomes that the model itself has for them, their covariates given."""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.compat import ancestors, graph_inputs, io_toposort
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import Chunk
from pymc_dp.likelihood.compilation import interpreted
from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.local import LocalGradients
from pymc_dp.likelihood.made_up import made_up_rows
from pymc_dp.likelihood.outcomes import Outcomes, Rows
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.linalg import Vector

Words = NDArray[np.uint64]

CANNOT_BE_DRAWN = (
    "The model's outcomes cannot be drawn by PyMC's own laws (it has a `CustomDist`, perhaps, or bounds of "
    "`Censored` for each record)"
)
"""Why a model has no simulated scores, as far as can be told."""

OWN_LAW = "_drawn_by_pymc_dp"
"""Attribute of an operation's class that this package made for one law, of a graph whose inner laws are looked at, too."""
SECRET_WORDS = 4
"""Words that seed the outcomes: 256 bits, as long as any key."""
_DRAWN = 8
"""Outcomes per record of a law that has not a few values only. With 4 and 16 errors are 1.05 and 1.02 times
as large, with two noises (``benchmarks/surrogate_constants.py``)."""
_MOST_VALUES = 12
"""Categories up to which all of them are taken, each with its probability: more would cost more passes than draws do."""
_TRIED = 64
"""Made-up records until there is one that an outcome can be drawn for. Three quarters of their numbers are above 0: with six
that have to be, all fail in one model of three hundred thousand."""


class Scores(NamedTuple):
    """Of a chunk of units. Private.

    Parameters
    ----------
    observed : ndarray, shape (units, d)
        Gradients of their log-likelihoods.
    simulated : ndarray, shape (outcomes, units, d)
        The same at outcomes of the model's.
    weights : ndarray, shape (outcomes, units)
        Of these: probabilities, or equal, or so that sums are right on average.
    exact : bool
        Whether they are all outcomes that there are, and not draws.
    rows : list of ndarray of int64, shape (units,)
        If gradients are local, the row of every table that each unit uses.
    elsewhere : ndarray, shape (outcomes, units, d)
        If another place was given, the scores there of the same outcomes.
    shifted : ndarray, shape (outcomes, units)
        By how much weights differ there.
    """

    observed: Vector
    simulated: Vector
    weights: Vector
    exact: bool
    rows: Sequence[NDArray[np.int64]] = ()
    elsewhere: Vector | None = None
    shifted: Vector | None = None


class SimulatedScores:
    r"""Scores :math:`\nabla\ell_i(\theta)` at outcomes :math:`y \sim p(\cdot \mid x_i, \theta)`.

    They have mean 0, and their covariance is the Fisher information. Outcomes of few values are all taken, others are
    drawn: by a generator that is seeded with secret words and θ, so that they are the same whenever θ comes back.

    A unit's outcomes are a function of its covariates and of random numbers that are independent of all records, as no
    other unit gets them. So queries may use them: given the random numbers, a term is a function of the unit's own
    records, and a guarantee that holds given any values of what is independent of the data holds.

    Parameters
    ----------
    parameters : ParameterSpace
    likelihood : RecordLikelihood
    gradients : UnitGradients or LocalGradients
    compile_kwargs : mapping, optional
        As for the likelihood.

    Raises
    ------
    UnsupportedModelError
        If the model's outcomes cannot be drawn, or are drawn by code that is not PyMC's own.
    Exception
        Of any kind, if drawing made-up ones fails.
    """

    def __init__(
        self,
        parameters: ParameterSpace,
        likelihood: RecordLikelihood,
        gradients: UnitGradients | LocalGradients,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        model, roles = parameters.model, likelihood.roles
        _refuse_foreign_laws(list(model.observed_RVs))
        private = [leaf.variable for leaf in roles.record_data if leaf.private]
        if has_ends_of_records(model.observed_RVs, private):
            raise UnsupportedModelError("Records have bounds of their own.")
        self._likelihood, self._gradients = likelihood, gradients
        self._values = None
        if roles.unit_of_record is None and len(model.observed_RVs) == 1:
            self._values = _few_values(model.observed_RVs[0])
        # Where all values are taken, an outcome is drawn once, by the check.
        seldom = {} if self._values is None else {"mode": interpreted()}
        self._outcomes = Outcomes(model, roles, 0, **{**seldom, **(compile_kwargs or {})})
        joined, theta = parameters.join(model.replace_rvs_by_values(list(model.free_RVs)))
        self._point = pm.compile([theta], joined, mode="FAST_COMPILE", on_unused_input="ignore")
        self._check(parameters.start)

    @property
    def is_exact(self) -> bool:
        """Whether all outcomes are taken, and none is drawn."""
        return self._values is not None

    def _check(self, theta: Vector) -> None:
        """Draw made-up outcomes, of one record at least that the model's laws take: as with an exposure above 0.

        It is there twice, so that shapes are those of several.
        """
        rng, data = np.random.default_rng(0), self._likelihood.roles.record_data
        with np.errstate(all="ignore"):
            for left in reversed(range(_TRIED)):
                made = made_up_rows(data, 1, rng)
                twice = [np.repeat(x, 2, leaf.axis) for x, leaf in zip(made, data, strict=True)]
                try:
                    self._draw(theta, twice)
                except Exception:
                    if not left:
                        raise
                else:
                    return

    def of(
        self, likelihood: RecordLikelihood, gradients: UnitGradients | LocalGradients
    ) -> "SimulatedScores":
        """The same compiled functions for the records of another likelihood of the same graph."""
        other = copy.copy(self)
        other._likelihood, other._gradients = likelihood, gradients
        return other

    def __call__(
        self, theta: Vector, words: Words, other: Vector | None = None
    ) -> Iterator[Scores]:
        """Of one chunk of units after the other.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        words : ndarray of uint64
            Secret, and independent of the records.
        other : ndarray, shape (d,), optional
            Another place at which the same outcomes are looked at; each unit has one record then.
        """
        self._seed(theta, words)
        for chunk in self._gradients.chunks.all():
            rows = self._likelihood.rows(chunk.records)
            observed = chunk.per_unit(self._gradients.of_rows(theta, rows))
            used, elsewhere, shifted = self._gradients.used_rows(rows), None, None
            if other is None:
                weights, (simulated,) = self._at(theta, [theta], chunk, rows, _DRAWN)
            else:
                weights, simulated, elsewhere, shifted = self._at_both(theta, other, chunk, rows)
            yield Scores(observed, simulated, weights, self.is_exact, used, elsewhere, shifted)

    def elsewhere(
        self, theta: Vector, places: Sequence[Vector], words: Words, draws: int
    ) -> Iterator[tuple[Vector, list[Vector]]]:
        """Of outcomes at θ, the scores at other places; observed ones are not read.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        places : sequence of ndarray, shape (d,)
        words : ndarray of uint64
        draws : int
            How many outcomes of a unit are drawn, if not all values are taken.

        Yields
        ------
        weights : ndarray, shape (outcomes, units)
        scores : list of ndarray, shape (outcomes, units, d)
            One at each place.
        """
        self._seed(theta, words)
        for chunk in self._gradients.chunks.all():
            rows = self._likelihood.rows(chunk.records)
            yield self._at(theta, places, chunk, rows, draws)

    def _seed(self, theta: Vector, words: Words) -> None:
        self._outcomes.seed(np.concatenate([words, np.asarray(theta, np.float64).view(np.uint64)]))

    def _at(
        self, theta: Vector, places: Sequence[Vector], chunk: Chunk, rows: Rows, draws: int
    ) -> tuple[Vector, list[Vector]]:
        """Of one chunk: see :meth:`elsewhere`."""
        if self._values is None:
            drawn = [chunk.per_unit(self._at_draw(theta, places, rows)) for _ in range(draws)]
            weights = np.full((draws, len(drawn[0])), 1 / draws)
            return weights, np.split(np.stack(drawn), len(places), axis=2)
        placed = self._with_every_value(rows)
        scores = [
            np.stack([self._gradients.of_rows(place, some) for some in placed]) for place in places
        ]
        return self._probabilities(theta, placed), scores

    def _with_every_value(self, rows: Rows) -> list[Rows]:
        return [self._outcomes.put([value], rows) for value in self._values or ()]

    def _probabilities(self, theta: Vector, placed: Sequence[Rows]) -> Vector:
        """Of all outcomes, shape (outcomes, units)."""
        logs = np.stack([self._likelihood.evaluate_rows(theta, some) for some in placed])
        weights = np.exp(logs - logs.max(axis=0))
        return np.asarray(weights / weights.sum(axis=0))

    def _at_both(
        self, theta: Vector, other: Vector, chunk: Chunk, rows: Rows
    ) -> tuple[Vector, Vector, Vector, Vector]:
        r"""Of outcomes: weights at θ, scores at both places, and by how much weights differ at the other one.

        Outcomes are drawn half at either place, as one of both, and weighted by their probability at each place in that mixture's
        (:math:`p_\theta / \tfrac12 (p_\theta + p_{\theta'}) = 1 - \tanh \tfrac12 (\log p_{\theta'} - \log p_\theta)`: the balance heuristic of
        Veach and Guibas, SIGGRAPH 1995): no outcome counts for more than two, however far apart the places are.
        """
        if self._values is not None:
            weights, (here, there) = self._at(theta, [theta, other], chunk, rows, _DRAWN)
            elsewhere = self._probabilities(other, self._with_every_value(rows))
            return weights, here, there, elsewhere - weights
        q = self._gradients.width

        def seen(some: Rows, at: Vector) -> Vector:
            drawn = self._draw(at, some)
            here, there = (self._likelihood.evaluate_rows(p, drawn) for p in (theta, other))
            scores = [self._gradients.evaluate(p, drawn) for p in (theta, other)]
            return np.column_stack([*scores, there - here])

        drawn = np.stack([
            self._likelihood.shielded(partial(seen, at=at), rows, (2 * q + 1,))
            for at in (theta, other)
            for _ in range(_DRAWN // 2)
        ])  # fmt: skip
        tilt = np.tanh(np.nan_to_num(drawn[:, :, -1]) / 2)
        return (1 - tilt) / _DRAWN, drawn[:, :, :q], drawn[:, :, q : 2 * q], 2 * tilt / _DRAWN

    def _at_draw(self, theta: Vector, places: Sequence[Vector], rows: Rows) -> Vector:
        """Scores at one draw of outcomes, those at all places side by side."""

        def scores(some: Rows) -> Vector:
            drawn = self._draw(theta, some)
            return np.concatenate([self._gradients.evaluate(p, drawn) for p in places], axis=1)

        return self._likelihood.shielded(scores, rows, (len(places) * self._gradients.width,))

    def _draw(self, theta: Vector, rows: Rows) -> list[NDArray[Any]]:
        n = rows[0].shape[self._likelihood.axes[0]]
        return self._outcomes.in_place(self._point(theta), n, rows)


def _refuse_foreign_laws(outcomes: list[Variable]) -> None:
    """Refuse code of others that draws: nobody knows whether a record's outcome depends on other records there.

    Laws of PyMC's own draw each entry by its own parameters, which the log-likelihood depends on, too, and that is
    checked to be a function of a record alone.
    """
    for node in io_toposort(list(graph_inputs(outcomes)), outcomes):
        op: Any = node.op
        known = hasattr(op, OWN_LAW) or type(op).__module__.startswith(("pymc.", "pytensor."))
        if isinstance(op, RandomVariable | SymbolicRandomVariable) and not known:
            raise UnsupportedModelError(f"{type(op).__name__} draws by code that is not PyMC's.")
        inner = getattr(op, "fgraph", None)
        if inner is not None:
            _refuse_foreign_laws(list(inner.outputs))


def has_ends_of_records(outcomes: Sequence[Variable], rows: Collection[Variable]) -> bool:
    """Whether records bring bounds of censoring along: they are part of the outcome as a rule.

    Who died has no bound, as nobody knows when he would have been lost; he would be drawn lives beyond the end of the study then, and a
    Weibull model of lives has twice the information that its data have.
    """
    bounds = [
        v
        for node in io_toposort(list(graph_inputs(outcomes)), outcomes)
        if isinstance(node.op, CensoredRV)
        for v in node.inputs[1:3]
    ]
    return not set(rows).isdisjoint(ancestors(bounds))


def _few_values(rv: Variable) -> list[int] | None:
    """All values of a record's outcome; None if they are many, or not known."""
    op: Any = rv.owner.op
    if rv.type.ndim > 1:  # several entries a record: their combinations are many
        return None
    if isinstance(op, BernoulliRV):
        return [0, 1]
    if isinstance(op, CategoricalRV):
        # By its type: what computes it would look at data.
        many = rv.owner.inputs[-1].type.shape[-1]
        return list(range(many)) if many is not None and many <= _MOST_VALUES else None
    return None
