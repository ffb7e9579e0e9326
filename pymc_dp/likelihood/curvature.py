"""Second derivatives of the per-unit log-likelihoods."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.replace import clone_replace

from pymc_dp.compat import pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.gradients import (
    for_every_record,
    gradients_of,
    one_record,
    side_by_side,
)
from pymc_dp.likelihood.records import RecordLikelihood, initial_theta, record_graph

_CHUNK_BYTES = 2**22
"""Hessians of one chunk."""


class UnitHessians:
    r"""Per-unit Hessians :math:`\nabla^2_\theta \ell_i(\theta)`, in chunks.

    Parameters
    ----------
    model : Model
    likelihood : RecordLikelihood
        The same model's; supplies the data.
    compile_kwargs : mapping, optional
        As for the likelihood.

    Raises
    ------
    UnsupportedModelError
        If the likelihood has no second derivatives.
    """

    def __init__(
        self,
        model: pm.Model,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        self._likelihood = likelihood
        roles = likelihood.roles
        d = self._d = len(initial_theta(model))
        axes = [leaf.axis for leaf in roles.record_data]
        graph = record_graph(model, roles)
        direction = pt.vector("direction", shape=(d,))
        try:
            one = one_record(graph, axes)
            # With a copy of θ for every record, one reverse pass over the slopes along a direction
            # gives all records' products of Hessian and direction.
            terms, copies = one.with_values_of_its_own()
            parts = clone_replace(
                list(one.all_values.values()), {graph.theta: direction}, rebuild_strict=False
            )
            gradients = gradients_of(terms.sum(), list(copies))
            slopes = [(g * part).sum() for g, part in zip(gradients, parts, strict=True)]
            products = gradients_of(sum(slopes), list(copies))
            blocks = for_every_record(clone_replace(products, copies, rebuild_strict=False), one)
            self._function = compile_without_checks(
                [graph.theta, direction, *graph.rows], [strip_checks(b) for b in blocks],
                compile_kwargs,
            )  # fmt: skip
        except (NotImplementedError, TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"The likelihood of {[rv.name for rv in model.observed_RVs]} has no second "
                f"derivatives ({type(error).__name__}). Use a step that needs none: DPHMC or "
                "DPPenalty."
            ) from None
        fitting = int(np.clip(_CHUNK_BYTES // (8 * d * d), 64, likelihood.chunk_size))
        self._chunks = UnitChunks(roles.unit_of_record, roles.n_records, fitting)

    def __call__(self, theta: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Hessians of one chunk of units after the other.

        Yields
        ------
        ndarray, shape (units, d, d)
            May contain NaN and infinities: clip before use. Private.
        """
        for chunk in self._chunks.all():
            per_record = self._likelihood.shielded(
                lambda some: self._columns(theta, some),
                self._likelihood.rows(chunk.records),
                (self._d, self._d),
            )
            yield chunk.per_unit(per_record)

    def _columns(
        self, theta: NDArray[np.float64], rows: Sequence[NDArray[Any]]
    ) -> NDArray[np.float64]:
        columns = [side_by_side(self._function(theta, e, *rows)) for e in np.eye(self._d)]
        return np.stack(columns, axis=2)


class DirectionalCurvature:
    r"""Per-unit second derivatives along a line, :math:`v^\top \nabla^2 \ell_i(\theta)\, v`.

    Parameters
    ----------
    model, likelihood, compile_kwargs
        As for :class:`UnitHessians`.
    """

    def __init__(
        self,
        model: pm.Model,
        likelihood: RecordLikelihood,
        *,
        compile_kwargs: Mapping[str, Any] | None = None,
    ):
        self._likelihood = likelihood
        roles = likelihood.roles
        graph = record_graph(model, roles)
        d = len(initial_theta(model))
        v, t = pt.vector("v", shape=(d,)), pt.scalar("t")
        (moved,) = clone_replace(
            [rewrite_pregrad(graph.log_likelihood)],
            {graph.theta: graph.theta + t * v},
            rebuild_strict=False,
        )
        one = pt.ones(())
        first = pushforward(moved, t, one)
        second = pushforward(rewrite_pregrad(first), t, one)
        (at_zero,) = clone_replace([second], {t: pt.zeros(())}, rebuild_strict=False)
        self._function = compile_without_checks(
            [graph.theta, v, *graph.rows], strip_checks(at_zero), compile_kwargs
        )
        self._chunks = UnitChunks(roles.unit_of_record, roles.n_records, likelihood.chunk_size)

    def __call__(self, theta: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Second derivative of each unit's term at `theta` along `v`, shape (units,)."""
        terms = []
        for chunk in self._chunks.all():
            per_record = self._likelihood.shielded(
                lambda some: np.asarray(self._function(theta, v, *some)),
                self._likelihood.rows(chunk.records),
                (),
            )
            terms.append(chunk.per_unit(per_record))
        return np.concatenate(terms)
