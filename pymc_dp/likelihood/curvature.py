"""Second derivatives of the per-unit log-likelihoods."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.replace import clone_replace, vectorize_graph

from pymc_dp.compat import pushforward
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compilation import compile_without_checks, strip_checks
from pymc_dp.likelihood.gradients import record_inputs
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
        graph = record_graph(model, roles)
        axes = [leaf.axis for leaf in roles.record_data]
        alone, every = record_inputs(graph.rows, axes)
        (term,) = clone_replace([graph.log_likelihood], alone, rebuild_strict=False)
        direction = pt.vector("direction", shape=(d,))
        try:
            slope = pytensor.grad(rewrite_pregrad(term).sum(), graph.theta)
            # One record's Hessian times each unit vector, and that for every record.
            product = pytensor.grad(slope @ direction, graph.theta, disconnected_inputs="ignore")
            hessian = vectorize_graph(product, {direction: pt.eye(d)})
            hessians = vectorize_graph(hessian, every)
            if hessians.ndim == 2:  # the same for every record
                hessians = pt.broadcast_to(hessians, (graph.rows[0].shape[axes[0]], d, d))
            self._function = compile_without_checks(
                [graph.theta, *graph.rows], strip_checks(hessians), compile_kwargs
            )
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
                lambda some: np.asarray(self._function(theta, *some)),
                self._likelihood.rows(chunk.records),
                (self._d, self._d),
            )
            yield chunk.per_unit(per_record)


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
