"""Scores of every unit at outcomes that the model itself draws for it, its covariates given. Rough: for experiments."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV

from pymc_dp.compat import lower_named_dims
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.compilation import keep_indices_in_range
from pymc_dp.likelihood.record_graph import rebuild_observed

DRAWN = 8
"""Outcomes of a law that is not of a few values; with 16 the same errors on ten models."""
MOST_VALUES = 12
"""Up to so many, all values of an outcome are taken, each with its probability."""


class SimulatedScores:
    """Scores at outcomes of the model, and their weights: all outcomes of few values, of others some that are drawn."""

    def __init__(self, compiled):
        model, self.likelihood, self.gradients = (
            compiled.model,
            compiled.likelihood,
            compiled.gradients,
        )
        roles = self.likelihood.roles
        self.leaves = [_leaf_of(model.rvs_to_values[rv], roles) for rv in model.observed_RVs]
        self.values = None
        if roles.unit_of_record is None and len(self.leaves) == 1:
            self.values = _few_values(model.observed_RVs[0])
        if self.values is not None:
            return
        length = pt.lscalar("n")
        rvs, _, free, rows = rebuild_observed(model, roles, length)
        drawn = [lower_named_dims(pt.as_tensor(v, allow_xtensor_conversion=True)) for v in rvs]
        drawn = [keep_indices_in_range(v, set(rows)) for v in drawn]
        constrained = dict(
            zip(free, model.replace_rvs_by_values(list(model.free_RVs)), strict=True)
        )
        drawn = clone_replace(drawn, constrained, rebuild_strict=False)
        drawn, theta = compiled.parameters.join(drawn)
        self.draw = pm.compile([theta, length, *rows], drawn, on_unused_input="ignore")

    def __call__(self, theta):
        """Chunks of scores, shape (outcomes, units, d), and weights, shape (outcomes, units)."""
        for chunk in self.gradients._chunks.all():
            rows = self.likelihood.rows(chunk.records)
            if self.values is None:
                scores = np.stack(
                    [chunk.per_unit(self._at_draws(theta, rows)) for _ in range(DRAWN)]
                )
                yield scores, np.full(scores.shape[:2], 1 / DRAWN)
                continue
            placed = [self._put([v], rows) for v in self.values]
            logs = np.stack([self.likelihood.evaluate_rows(theta, some) for some in placed])
            weights = np.exp(logs - logs.max(axis=0))
            scores = [self.gradients._rows_gradients(theta, some) for some in placed]
            yield np.stack(scores), weights / weights.sum(axis=0)

    def _at_draws(self, theta, rows):
        def at(some):
            drawn = self.draw(theta, some[0].shape[self.likelihood._axes[0]], *some)
            return self.gradients._arrange(self.gradients._function(theta, *self._put(drawn, some)))

        return self.likelihood.shielded(at, rows, (self.gradients._d,))

    def _put(self, outcomes, rows):
        placed = list(rows)
        for k, value in zip(self.leaves, outcomes, strict=True):
            value = np.asarray(value).astype(rows[k].dtype)
            whole = np.broadcast_to(value, rows[k].shape) if value.ndim == 0 else value
            placed[k] = np.ascontiguousarray(whole.reshape(rows[k].shape))
        return placed


def _leaf_of(node, roles):
    while node.owner is not None and len(node.owner.inputs) == 1:
        op = node.owner.op
        cast = isinstance(op, Elemwise) and type(op.scalar_op).__name__ == "Cast"
        if not (cast or isinstance(op, DimShuffle)):
            break
        node = node.owner.inputs[0]
    for k, leaf in enumerate(roles.record_data):
        if leaf.variable is node:
            return k
    raise UnsupportedModelError("An outcome is computed from data.")


def _few_values(rv):
    if isinstance(rv.owner.op, BernoulliRV):
        return [0, 1]
    if isinstance(rv.owner.op, CategoricalRV):
        try:
            many = int(rv.owner.inputs[-1].shape[-1].eval())
        except Exception:  # noqa: BLE001  # how many there are depends on something: drawn
            return None
        return list(range(many)) if many <= MOST_VALUES else None
    return None
