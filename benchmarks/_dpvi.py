"""Noise-aware variational inference for a model of groups, simplified: a peer of the hierarchical surrogate. For public data only.

After Jälkö, Prediger, Honkela and Kaski (2023). The law is normal and independent over θ, the unconstrained parameters. A step releases
the sum of all records' clipped scores in θ. Such a score is thousands of numbers, of which all but those of shared parameters and of the
record's own groups are 0. Noise is NumPy's, and nothing is checked.
"""

import math
from functools import cached_property
from itertools import product

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.replace import vectorize_graph

from pymc_dp.compat import pushforward
from pymc_dp.likelihood.compilation import compiling
from pymc_dp.linalg import clip
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.unconstrained import unconstrained

GRID = list(product((0.3, 1.0, 3.0, 10.0), (0.01, 0.03), (200, 800)))
"""Clipping bounds, Adam's step lengths, and numbers of steps."""
UNTUNED, LEFT_OUT = (3.0, 0.03, 800), 0.5
"""One of them, and how much of the path, at its beginning, is not made use of."""
_FIRST_SCALE, _SCALES, _PRIOR_DRAWS = 0.1, (1e-4, 3.0), 1000


class Peer:
    """A compiled model with a cut, to which the peer is to be applied."""

    def __init__(self, compiled):
        self._compiled, self._local, cut = compiled, compiled.local, compiled.cut
        self._shape, theta = cut.shape, cut.graph.theta
        psi = pt.concatenate([part.ravel() for part in cut.psi])
        v, w = pt.vector("v", shape=(cut.shape.n,)), pt.vector("w", shape=(compiled.d,))
        with compiling():
            back = pytensor.grad(psi @ v, theta, disconnected_inputs="ignore")
            self._back = pytensor.function([theta, v], back, on_unused_input="ignore")
            at = np.random.default_rng(0).normal(compiled.parameters.start, 0.1)
            self._find_owners(np.array([self._back(at, row) for row in np.eye(cut.shape.n)]) != 0)
            shared = pt.as_tensor(np.eye(len(at))[self._shared])
            along = vectorize_graph(pushforward(rewrite_pregrad(psi), theta, w), {w: shared})
            self._along = pytensor.function([theta], along, on_unused_input="ignore")

    def _find_owners(self, uses):
        """Find the entries of θ that one row of one table depends on, by group: all others are shared."""
        first, *tables = self._shape.parts(np.arange(self._shape.n))
        by_group = [uses[table].any(axis=1) for table in tables]
        alone = (np.vstack(by_group).sum(axis=0) == 1) & ~uses[first].any(axis=0)
        self._shared = np.flatnonzero(~alone)
        # Of a hyperparameter of effects that are centred, everybody knows that the score is 0.
        self._seen = uses.any(axis=0)
        self._own = [np.nonzero(used & alone)[1].reshape(len(used), -1) for used in by_group]
        numbers = np.arange(len(uses))
        self._columns = [[np.isin(numbers, c).astype(float) for c in t.T] for t in tables]

    @cached_property
    def _chunks(self):
        """Records, and the rows that they use; these do not depend on θ."""
        rows, chunks = self._compiled.likelihood.rows, self._local.chunks.all()
        return [(r, self._local.used_rows(r)) for r in (rows(chunk.records) for chunk in chunks)]

    @cached_property
    def _prior(self):
        """Means and standard deviations of θ in the prior, entry by entry."""
        model = self._compiled.model
        free = [unconstrained(rv, model.rvs_to_transforms[rv]) for rv in model.free_RVs]
        drawn = [x.reshape(_PRIOR_DRAWS, -1) for x in pm.draw(free, _PRIOR_DRAWS, random_seed=0)]
        return np.hstack(drawn).mean(axis=0), np.hstack(drawn).std(axis=0)

    def _sum(self, theta, bound):
        """Sum of scores in θ, every record's clipped."""
        shape, p, total = self._shape, self._shape.p, np.zeros(len(theta))
        first, *tables = zip(*map(shape.parts, self._along(theta)), strict=True)
        tables = [np.moveaxis(t, 0, -1) for t in tables]
        own = [
            np.stack([self._back(theta, v)[entries] for v in columns], axis=1)
            for entries, columns in zip(self._own, self._columns, strict=True)
        ]
        for records, rows in self._chunks:
            scores = self._local.of_rows(theta, records)
            parts = [scores[:, :p] @ np.array(first).T]
            for k, row, columns in zip(shape.uses, rows, shape.columns, strict=True):
                of_row = scores[:, None, columns]
                parts[0] = parts[0] + (of_row @ tables[k][row])[:, 0]
                parts.append((of_row @ own[k][row])[:, 0])
            places = [np.broadcast_to(self._shared, parts[0].shape)]
            places += [self._own[k][row] for k, row in zip(shape.uses, rows, strict=True)]
            kept = clip(np.hstack(parts), bound)
            total += np.bincount(np.hstack(places).ravel(), kept.ravel(), len(total))
        return total

    def _descent(self, epsilon, setting, seed):
        """Noisy gradient steps on all records: points, gradients' two parts, the law's scales at the end, and the noise's sd."""
        (bound, rate, steps), rng = setting, np.random.default_rng(seed)
        delta, start = 0.1 / self._compiled.roles.n_units, self._compiled.parameters.start
        noise = 2 * bound * calibrate_noise(epsilon=epsilon, delta=delta, releases=steps)
        d, prior = len(start), self._compiled.log_public.gradient
        at = np.concatenate([start, np.full(d, math.log(_FIRST_SCALE))])
        first, second = np.zeros((2, 2 * d))
        theta, slopes, priors, scales = np.zeros((4, steps, d))
        for k in range(steps):
            scales[k], eta = np.exp(at[d:]), rng.standard_normal(d)
            theta[k] = at[:d] + scales[k] * eta
            priors[k], slopes[k] = prior(theta[k]), self._sum(theta[k], bound)
            slopes[k] += noise * rng.standard_normal(d) * self._seen
            slope = slopes[k] + priors[k]
            slope = np.concatenate([slope, slope * scales[k] * eta + 1])
            first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
            size = np.sqrt(second / (1 - 0.999 ** (k + 1))) + 1e-12
            at = at + rate * first / (1 - 0.9 ** (k + 1)) / size
            at[d:] = np.clip(at[d:], *np.log(_SCALES))
        last = slice(int(LEFT_OUT * steps), None)
        at_end = np.exp(np.log(scales[last]).mean(axis=0))
        return theta[last], slopes[last], priors[last], at_end, noise

    def draws(self, epsilon, setting, seed, number):
        """Draw θ from the noise-aware law, shape (number, d).

        Coordinate by coordinate, the likelihood's gradients are linear in the parameter, with noise of known size: what is known of
        information is a linear regression's posterior, and their mean is one release about the mode. That times the prior, normal along
        the path or at least that of the parameter alone, is the law.
        """
        theta, slopes, priors, scales, noise = self._descent(epsilon, setting, seed)
        middle, normal = theta.mean(axis=0), np.random.default_rng([1, *seed]).standard_normal
        moved, (alone, sds) = theta - theta.mean(axis=0), self._prior
        squares = (moved**2).sum(axis=0)
        of_prior = -(moved * priors).sum(axis=0) / squares
        wide = of_prior < sds**-2.0
        of_prior = np.where(wide, sds**-2.0, of_prior)
        pull = np.where(wide, (alone - middle) / sds**2, priors.mean(axis=0))
        # A priori the information is what the law's own scale says, give or take half of it.
        guessed = (scales**-2.0 / 2) ** -2.0
        precision = squares / noise**2 + guessed
        mean = np.maximum(scales**-2.0 - of_prior, 0) * guessed
        mean = (mean - (moved * slopes).sum(axis=0) / noise**2) / precision
        J = mean + normal((number, len(mean))) / np.sqrt(precision)
        J = np.maximum(J, 0) * self._seen
        part = J / (J + noise**2 / len(theta))
        posterior = part * J + of_prior
        centre = middle + (part * slopes.mean(axis=0) + pull) / posterior
        return centre + normal(J.shape) / np.sqrt(posterior)
