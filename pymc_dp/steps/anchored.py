r"""DP anchored: a private normal law of the likelihood, found by a few releases, and draws of it with the prior.

The whole budget is one Gaussian release, spent in parts (:class:`~pymc_dp.privacy.purse.Purse`): looks on the way
to the posterior's mode, and near it, each a noisy gradient and Hessian. What they say together is a
:class:`~pymc_dp.anchor.law.Law` of known noise. That times the exact prior is the posterior given all that was
released, and draws of it cost nothing: they are made once, before the first chain starts, and handed out. Where the
looks say that a normal law is off, a chain on what it leaves out is paid for instead
(:mod:`pymc_dp.steps.residual_chain`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from pymc_dp.anchor.build import build_anchor
from pymc_dp.anchor.draws import draw, draw_normal, sampler_at_hand
from pymc_dp.anchor.law import Posterior
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.part import ReadPart, read_part
from pymc_dp.anchor.verdict import judge, report
from pymc_dp.checks import fraction
from pymc_dp.exceptions import (
    NoAnchorError,
    UnsupportedModelError,
)
from pymc_dp.likelihood.corners import CORNERS, ScoreProducts
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.purse import Purse
from pymc_dp.progress import tell
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.shards import Shards
from pymc_dp.steps.at_once import AtOnce, Drawn
from pymc_dp.steps.grouped import draw_groups, has_groups, law_model
from pymc_dp.steps.residual_chain import corrected, doubts, total_moves
from pymc_dp.steps.run import RunSettings

_CUT_SHORT = "The draws are of the posterior's normal approximation, as the run was interrupted."


class DPAnchored(AtOnce):
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
        Who draws from the released law: as for ``pm.sample``; it must be installed.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`. The cost does not depend on how many draws there are.
        Nothing is tuned, but tuning draws are dropped.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or has too many parameters; ``NoAnchorError`` if
        its likelihood cannot be differentiated, so that others can sample it and this cannot.
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
    made = "anchor", "build_anchor"

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
        self._nuts_sampler = sampler_at_hand(nuts_sampler)
        super().__init__(vars, instead={}, shards=shards, **run)
        d, self._grouped = self.compiled.d, has_groups(self.compiled)
        if not self._grouped and d * (d + 1) // 2 > MAX_DIMENSION:
            raise UnsupportedModelError(
                f"DPAnchored needs the Hessian in all {d} parameters, and these are too many for it. If they are of groups, "
                "write `pm.Normal('a', mu, tau, dims='group')`, read as `a[group]`, one array for each effect; if there is "
                "one for each person, see `pymc_dp.integrate_out`. `step=pymc_dp.DPHMC` takes any number of them, but needs "
                "very many records for each."
            )
        self.pays_at_once({"tempering": self._tempering})
        _ = self.compiled.likelihood  # what it lacks, other samplers miss too
        asked = {"local": True} if self._grouped else {"derivatives": 2}
        try:
            self._curator = self.curator(**asked)
        except UnsupportedModelError as error:
            raise NoAnchorError(f"DPAnchored cannot be used: {error}") from None
        self.anchor: Anchor | None = None

    def build_anchor(self) -> Anchor | None:
        """Release what the law is made of, once, and draw from it; all chains of the run share it.

        Returns
        -------
        Anchor or None
            None for a model of many groups.

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        self._release_once()
        return self.anchor

    def _compile(self) -> None:
        self._law = law_model(self.compiled) if self._grouped else None
        self._part = None if self._grouped else read_part(self.compiled)

    def _spend(self, measure: PaidMeasurements, purse: Purse) -> Drawn:
        if self._law is not None:
            return draw_groups(
                measure, self._law, tempering=self._tempering, draws=self.iterations,
                chains=self.run.chains, nuts_sampler=self._nuts_sampler, on_progress=_tell,
            )  # fmt: skip
        return self._of_part(measure, self._part) if self._part else self._anchored(measure, purse)

    @property
    def _corners(self) -> list[str]:
        return [CORNERS] if isinstance(self.compiled.hessians, ScoreProducts) else []

    def _of_part(self, measure: PaidMeasurements, part: ReadPart) -> Drawn:
        """Draws of an anchor of what the likelihood reads, and the prior of all."""
        found = build_anchor(
            part.measurements(measure), part.prior, part.start[part.read], tempering=self._tempering,
            on_progress=_tell,
        )  # fmt: skip
        self.anchor = part.whole(found)
        self._finish = partial(self._normal, self.anchor, found, part.labels, part.largest)
        verdict = judge(found, part.labels, part.largest)
        measured = report(found, part.labels, verdict.usable)
        _tell("compiling what was released, and drawing from it: no data are read any more")
        drawn = draw(self.anchor, self.log_public, self.iterations, self.run.chains, self._nuts_sampler)  # fmt: skip
        return Drawn(drawn, measured, verdict.warnings + self._corners)

    def _anchored(
        self,
        measure: PaidMeasurements,
        purse: Purse,
        watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
    ) -> Drawn:
        """Draws of an anchor."""
        parameters = self.compiled.parameters
        self.anchor = anchor = build_anchor(
            measure,
            self.log_public,
            parameters.start,
            tempering=self._tempering,
            moves=total_moves(self.run.chains, self.iterations),
            watch=watch,
            on_progress=_tell,
        )
        self._finish = partial(self._normal, anchor, anchor, parameters.labels, parameters.largest)
        verdict = judge(anchor, parameters.labels, parameters.largest)
        measured = report(anchor, parameters.labels, verdict.usable)
        size = self.iterations, self.run.chains
        if anchor.correction is None:
            _tell("compiling what was released, and drawing from it: no data are read any more")
            drawn = draw(anchor, self.log_public, *size, self._nuts_sampler)
            return Drawn(drawn, measured, verdict.warnings + self._corners)
        _tell("a normal law is off: drawing by a chain on residuals")
        drawn, of_chain = corrected(self._curator, purse, anchor.correction, self.log_public, *size)
        return Drawn(drawn, {**measured, **of_chain}, verdict.warnings + doubts(of_chain))

    def _normal(self, anchor: Anchor, found: Anchor, labels: Any, largest: Any) -> Drawn:
        """Draws of the normal approximation."""
        verdict = judge(found, labels, largest)
        drawn = draw_normal(anchor.posterior, self.iterations, self.run.chains)
        measured = report(found, labels, verdict.usable)
        return Drawn(drawn, measured, [*verdict.warnings, *self._corners, _CUT_SHORT])


def _tell(what: str) -> None:
    tell(f"Anchor: {what}")
