r"""DP anchored: a private normal law of the likelihood, found by a few releases, and draws of it with the prior.

The whole budget is one Gaussian release, spent in parts (:class:`~pymc_dp.privacy.purse.Purse`): looks on the way
to the posterior's mode, and near it, each a noisy gradient and Hessian. What they say together is a
:class:`~pymc_dp.anchor.law.Law` of known noise. That times the exact prior is the posterior given all that was
released, and draws of it cost nothing: they are made once, before the first chain starts, and handed out.
"""

import logging
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from pymc_dp.anchor.build import build_anchor
from pymc_dp.anchor.draws import draw
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.verdict import NOT_ARRIVED, judge, report
from pymc_dp.checks import fraction
from pymc_dp.exceptions import (
    NoAnchorError,
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
)
from pymc_dp.linalg import Vector
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.purse import Purse
from pymc_dp.progress import doing, tell
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.shards import Shards
from pymc_dp.records.sums import hessians_fit
from pymc_dp.steps.host import PrivateStep
from pymc_dp.steps.residual_chain import corrected, doubts, total_moves
from pymc_dp.steps.run import RunSettings, remember

_log = logging.getLogger("pymc.dp")


class DPAnchored(PrivateStep):
    r"""Differentially private sampling by a private normal law of the likelihood, and the exact prior.

    No setting but the budget is needed. For smooth posteriors with one mode and up to some ninety
    parameters; see the notes for what it cannot do.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    tempering, shards
        As in :class:`~pymc_dp.DPPenalty`.
    nuts_sampler : str
        Who draws from the released law: as for ``pm.sample``.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`. The cost does not depend on how many draws there are.
        Nothing is tuned, but tuning draws are dropped.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands; ``NoAnchorError`` if only this sampler
        cannot, for want of second derivatives or for too many parameters.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: those of :func:`~pymc_dp.anchor.build.build_anchor`, before the first chain, one Gaussian event
    together. **Guarantee**: :math:`\mu = 1/z` in :func:`~pymc_dp.privacy.accounting.gaussian_delta`.

    A run that has spent always returns its draws. If they are of no use, ``privacy_usable`` is 0 in the result's
    attributes, a warning says why, and what was not spent is not charged.

    The likelihood is taken as normal around its mode, with the curvature that was measured there; what noise has
    done to that is part of the draws' spread. `tilt`, in the metadata, says how far it may have moved them, in
    posterior standard deviations. R-hat cannot see it: all chains share the law.
    """

    name = "dp_anchored"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        tempering: float = 1.0,
        shards: Shards | None = None,
        nuts_sampler: str = "pymc",
        **run: Unpack[RunSettings],
    ):
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        self._nuts_sampler = nuts_sampler
        super().__init__(vars, instead={}, shards=shards, **run)
        d = self.compiled.d
        if d * (d + 1) // 2 > MAX_DIMENSION:
            raise NoAnchorError(
                f"DPAnchored needs the Hessian in all {d} parameters, and these are too many. If there is "
                "one for each person, integrate it out of the likelihood; a draw of it would be a release "
                "about that person."
            )
        # One release that costs the whole budget; a hair more, for the rounding of its division.
        self._z = self.run.multiplier_of_one() * (1 + 2.0**-40)
        self.pays(once=(Gaussian(self._z),), settings={"tempering": self._tempering})
        moves = total_moves(self.run.chains, self.iterations)
        self._moves = moves if hessians_fit(self.roles.n_units, d) else 0
        _ = self.compiled.likelihood  # what it lacks, other samplers miss too
        try:
            self._curator = self.curator(derivatives=2)
        except UnsupportedModelError as error:
            raise NoAnchorError(f"DPAnchored cannot be used: {error}") from None
        self.anchor: Anchor | None = None
        self._draws: Vector | None = None
        self._of_chain: dict[str, float] = {}

    def build_anchor(self) -> Anchor:
        """Release what the law is made of, once, and draw from it; all chains of the run share it.

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        if self.anchor is None:
            self.run.reserve()
            purse = Purse(self.run.charge_first(), self._z)
            try:
                # Floating point errors, if a user has them raised, would tell of records, or lose the run.
                with np.errstate(all="ignore"), doing("Anchor"):
                    self.anchor = build_anchor(
                        PaidMeasurements(self._curator, purse),
                        self.log_public,
                        self.compiled.parameters.start,
                        tempering=self._tempering,
                        moves=self._moves,
                        on_progress=lambda what: tell(f"Anchor: {what}"),
                    )
                    tell("Anchor: drawing from what was released")
                    self._draws = draw(
                        self.anchor.posterior,
                        self.log_public,
                        self.iterations,
                        self.run.chains,
                        self._nuts_sampler,
                    )
                    if self.anchor.correction is not None:
                        tell("Anchor: correcting the draws by a chain on residuals")
                        self._draws, self._of_chain = corrected(
                            self._curator,
                            purse,
                            self.anchor.correction,
                            self.log_public,
                            self.run.chains,
                            self.iterations,
                        )
            except (np.linalg.LinAlgError, OverflowError):  # of released numbers
                raise PrivacyError(self._give_up(purse)) from None
            self._judge(self.anchor, purse)
        return self.anchor

    def _judge(self, anchor: Anchor, purse: Purse) -> None:
        labels = self.compiled.parameters.labels
        verdict = judge(anchor, labels, self.compiled.parameters.largest)
        for warning in (*verdict.warnings, *(doubts(self._of_chain) if self._of_chain else ())):
            _log.warning("%s", warning)
        measured = report(anchor, labels, verdict.usable) | self._of_chain
        if purse.spent < 1 - 1e-6:
            self._settle(purse)
        self.run.guarantee = replace(self.guarantee, measured=measured)
        remember(self)

    def _settle(self, purse: Purse) -> tuple[float, bool]:
        """What was spent, as ε, and whether the rest was given back."""
        released = purse.close() or self.guarantee.once
        given_back = self.run.ledger.settle(self.guarantee.first_plan, released)
        return composed_epsilon(released, self.run.delta), given_back

    def _give_up(self, purse: Purse) -> str:
        spent, given_back = self._settle(purse)
        return (
            f"{NOT_ARRIVED}: its noisy equations have no solution. It has spent ε = {spent:.3g} "
            f"(δ = {self.run.delta:.3g}), and "
            + (
                "the rest is not charged."
                if given_back
                else "the ledger keeps the whole run as charged."
            )
        )

    def prepare(self) -> None:
        """Release the anchor."""
        self.build_anchor()

    def summary(self) -> list[str]:
        """See :class:`~pymc_dp.steps.host.PrivateStep`."""
        return [f"tilt {float(self.guarantee.measured['tilt']):.2f} posterior sds"]

    def _check_unchanged(self) -> None:
        if self.anchor is None and multiprocessing.parent_process() is not None:
            raise PrivacyConfigurationError(
                "The chains of a run share one anchor, which must exist before they start in processes "
                "of their own. Call `step.build_anchor()` before `pm.sample`, or use `pymc_dp.sample`, "
                "or `cores=1`. Nothing has been released or charged."
            )
        super()._check_unchanged()

    def _start_chain(self) -> None:
        self.build_anchor()

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        self.build_anchor()
        assert self._draws is not None
        drawn = self._draws[self.slot, permit.iteration]
        return drawn, {"accepted": True, "accept_rate": 1.0, "scale": math.nan}
