"""A model of groups with any noise, and what one Gaussian release of the whole budget would leave of it."""

import math
import time

import numpy as np

from pymc_dp.linalg import inverse_root
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.curator import Curator
from pymc_dp.records.grouped import Preconditioner
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.steps.hierarchical import HierarchicalFamily
from pymc_dp.steps.surrogate import DPSurrogate
from pymc_dp.surrogate.hierarchical.fit import fit_hierarchical
from pymc_dp.surrogate.hierarchical.law import GroupLaw
from pymc_dp.surrogate.hierarchical.structured import Structured

DRAWS = 500


class Groups:
    """One model, compiled once: only for data that may be known, as it skips the guards of a run."""

    def __init__(self, compiled):
        self.step = DPSurrogate(
            family="hierarchical", draws=DRAWS, chains=1, epsilon=1.0, model=compiled
        )
        self.family = HierarchicalFamily(self.step.compiled, 1.0, "pymc")
        self.family.compile()

    def multiplier(self, epsilon):
        """Noise multiplier of one release of the whole budget."""
        step = DPSurrogate(draws=DRAWS, chains=1, epsilon=epsilon, model=self.step.compiled)
        return step.run.multiplier_of_one()

    def draw(self, z, slot):
        """What the family finds with this noise multiplier, and CPU seconds."""
        # A slot of its own, or two runs would have the same noise if that were seeded.
        privacy_filter = PrivacyFilter(Permit(slot, 0, (Gaussian(z),)), z)
        measure, start = PaidMeasurements(self.step._curator, privacy_filter), time.process_time()
        found = self.family.draw(measure, DRAWS, 1)
        return found, time.process_time() - start

    def fitted(self, z, noise):
        """The law that is found with this noise multiplier and this source of noise."""
        curator = Curator(self.step._curator._records, noise)
        measure = PaidMeasurements(curator, PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z))
        return fit_hierarchical(measure, self.family._law)

    def one_release(self, exact, z, rng):
        """Draws after one Gaussian release of the whole budget at the mode, information known, by the best of some bounds and scales.

        Of efficient scores, as the family's own.
        """
        law, model = exact.law, self.family._law
        shape, J, T = model.shape, law.J.dense, np.eye(model.shape.n)
        T[:, : shape.p] += law.R
        Ti = np.linalg.inv(T)
        prior = np.concatenate(
            [np.full(shape.p, 1e3), np.minimum(exact.mode.prior_sds[shape.p :], 1e3)]
        )
        C = np.linalg.inv(J + Ti.T @ np.diag(prior**-2.0) @ Ti)
        chunks = list(self.step._curator._records.scores(exact.mode.theta))
        scores = np.concatenate([c.observed for c in chunks])
        rows = [np.concatenate(r) for r in zip(*(c.rows for c in chunks), strict=True)]
        one = Preconditioner(
            np.eye(shape.p),
            tuple(np.ones(r) for _, r in shape.tables),
            tuple(shape.parts(law.R)[1:]),
        )
        scores = one.applied(scores, rows, shape)
        places = np.hstack(
            [
                np.broadcast_to(np.arange(shape.p), (len(scores), shape.p)),
                *shape.places(rows, [r for _, r in shape.tables], shape.p),
            ]
        )
        white = inverse_root(np.linalg.inv(C[: shape.p, : shape.p])) * math.sqrt(
            len(scores) / shape.p
        )
        best = math.inf, 0.0, C, law.beta
        # S is the same number in all rows: no products of whole matrices.
        A, sure = Ti @ C, np.einsum("ij,jk,ik->i", Ti, C, Ti, optimize=True)
        of_rows = np.sum(A[:, shape.p :] ** 2, axis=1)
        for scale in np.geomspace(0.1, 3, 8):
            V, back = scale * white, np.linalg.inv(scale * white)
            sizes = np.linalg.norm(
                np.hstack([scores[:, : shape.p] @ V, scores[:, shape.p :]]), axis=1
            )
            of_noise = np.sum((A[:, : shape.p] @ back.T) ** 2, axis=1) + of_rows
            for quantile in (0.9, 0.97, 0.99, 0.999, 1.0):
                b = np.quantile(sizes, quantile)
                sd = 2 * z * b
                lost = scores * (1 - np.minimum(1, b / np.maximum(sizes, 1e-300)))[:, None]
                bias = np.bincount(places.ravel(), lost.ravel(), shape.n)
                off = sd**2 * of_noise + (A @ bias) ** 2
                cost = sum(
                    float(np.mean(off[part] / sure[part]))
                    for part in (slice(shape.p), slice(shape.p, None))
                )
                if cost < best[0]:
                    best = cost, sd, back, bias
        _, sd, back, bias = best
        blocks = [sd**2 * (back.T @ back)[None]]
        blocks += [np.tile(sd**2 * np.eye(r), (g, 1, 1)) for g, r in shape.tables]
        noise = sd * rng.normal(size=shape.n)
        noise[: shape.p] = back.T @ noise[: shape.p]
        seen = law.beta - bias + noise
        S = Structured.block_diagonal(blocks)
        released = GroupLaw(law.centre, seen, law.J, S, law.R)
        model.put(released.centre, released.k, released.K)
        model.mode()
        return model.sample(DRAWS, 1, 1)
