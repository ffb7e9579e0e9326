"""The default: DPAnchored, or DPPolynomial where a released number says that a normal law will not do."""

import numpy as np

from pymc_dp.anchor.law import Posterior
from pymc_dp.polynomial.switch import curvature
from pymc_dp.privacy.purse import Purse
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.steps.anchored import DPAnchored
from pymc_dp.steps.at_once import Drawn
from pymc_dp.steps.polynomial import draw_polynomial, first_scales

MOST_PARAMETERS = 3
"""For which a polynomial is better than a normal law where that is off."""
_ENOUGH = 0.5
"""Share of the budget that must be left for a polynomial to be thought of."""
_PATIENCE = 15
"""Looks of a search: towards a mode that is about normal it takes three to seven, along a bent valley a hundred."""


class _Curved(Exception):
    """A normal law will not do. A function of releases."""


class DPAutomatic(DPAnchored):
    r"""What :func:`pymc_dp.sample` takes for a model of one to three parameters, if no `step` is given.

    It begins as :class:`~pymc_dp.DPAnchored`. Once its search has arrived, one look of
    :class:`~pymc_dp.DPPolynomial` around the normal approximation says how far the log-likelihood is from quadratic:
    `curvature` in the metadata, in nats. If that stands out of its noise, the rest of the budget goes to a
    polynomial; else DPAnchored goes on. A search that does not arrive soon is taken for one along a curve, too, without
    `curvature`. `sampler` in the metadata says which it was.

    Parameters
    ----------
    vars, tempering, shards, nuts_sampler, draws, tune, chains, epsilon, delta, **run
        As for :class:`~pymc_dp.DPAnchored`.

    Notes
    -----
    **Releases**: those of :func:`~pymc_dp.anchor.build.build_anchor` up to its first look near the mode, of
    :func:`~pymc_dp.polynomial.switch.curvature`, and then those of one of the two, one Gaussian event together.
    **Guarantee**: :math:`\mu = 1/z` in :func:`~pymc_dp.privacy.accounting.gaussian_delta`: which it is, is decided
    by releases that are paid for.
    """

    name = "dp_automatic"

    def _compile(self) -> None:
        super()._compile()
        self._scales = first_scales(self.compiled)

    def _spend(self, measure: PaidMeasurements, purse: Purse) -> Drawn:
        measured: dict[str, float | str] = {}

        def watch(rounds: int, posterior: Posterior | None) -> None:
            if measure.spent > 1 - _ENOUGH:
                return
            if posterior is None:
                if rounds >= _PATIENCE:
                    raise _Curved
                return
            known = posterior.covariance, np.asarray(np.linalg.inv(posterior.exact))
            seen = curvature(measure, self.log_public.many, posterior.mean, known, self._tempering)
            measured["curvature"] = seen.nats
            if seen.is_seen:
                raise _Curved

        try:
            drawn = self._anchored(measure, purse, watch)
            measured["sampler"] = "DPAnchored"
        except _Curved:
            drawn, _ = draw_polynomial(
                measure, self.compiled, self._scales, self._tempering, self.iterations, self.run.chains
            )  # fmt: skip
            measured["sampler"] = "DPPolynomial"
        return Drawn(drawn.draws, {**drawn.measured, **measured}, drawn.warnings)
