r"""DP anchored: moves along a released model of the posterior, corrected by the residuals' ratio.

With the :mod:`anchor <pymc_dp.anchor>` and its residuals h_i in hand, the log acceptance ratio of a
move from u to u′ is the anchor's, known exactly, plus a noisy sum of residuals,

.. math::
    r_i &= \operatorname{clip}_B(h_i(u') - h_i(u)), \qquad
        B = c\,|u' - u|\,\max(|u|, |u'|)^{o} \\
    \hat\lambda &= \textstyle\sum_i r_i + \mathcal N(0, (z \cdot 2B)^2)
        + \hat a(u') - \hat a(u) + \log p(u') - \log p(u) + \log\frac{q(u' \to u)}{q(u \to u')}
        \\
    \text{accept} &\iff \log v < \hat\lambda - \sigma^2/2, \qquad \sigma = z \cdot 2B

B is the same in both directions, so the penalty test (Ceperley and Dewing, 1999) leaves invariant,
as long as no residual is clipped, the posterior times :math:`e^{\xi^\top u + u^\top \Xi u/2}`: ξ
and Ξ are the anchor's own noise, of known law. Moves are autoregressive ones that leave the anchor's
normal approximation invariant, and random walks, at random.
"""

import logging
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from pymc.step_methods.state import dataclass_state

from pymc_dp.anchor.build import build_anchor
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.residuals import Expansion, ResidualRatio
from pymc_dp.anchor.search import SearchLost
from pymc_dp.anchor.settings import SETTINGS
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
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.purse import Purse
from pymc_dp.progress import doing, tell
from pymc_dp.records.measurements import Curator, PaidMeasurements
from pymc_dp.records.shards import Shards
from pymc_dp.steps.acceptance import PenaltyInfo, penalty_test
from pymc_dp.steps.grouped import draw_groups, has_groups, law_model
from pymc_dp.steps.host import PrivateStep, PrivateStepState
from pymc_dp.steps.run import RunSettings, remember
from pymc_dp.steps.statistics import STATS

_log = logging.getLogger("pymc.dp")


@dataclass_state
class DPAnchoredState(PrivateStepState):
    """State of a :class:`DPAnchored` chain: where it is in the anchor's coordinates."""

    u: np.ndarray


class DPAnchored(PrivateStep):
    r"""Differentially private sampling around a private second-order model of the posterior.

    No setting but the budget is needed. For smooth posteriors with one mode and up to some thirty
    global parameters; see the notes for what it cannot do.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    anchor_share : float
        Part of the budget (of μ²) that the anchor gets, the chains getting the rest.
    noise_aware : bool
        Spread the draws by what the anchor's own noise adds to the uncertainty, so that intervals
        cover as they should. Otherwise they are draws from a posterior around a slightly wrong
        place.
    tempering, shards
        As in :class:`~pymc_dp.DPPenalty`.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`. The anchor is part of what the budget pays; nothing is
        tuned, but tuning draws are dropped.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands; ``NoAnchorError`` if only this sampler
        cannot, for want of second derivatives or for too many parameters.
    PrivacyConfigurationError
        If a setting is out of its range.
    PrivacyError
        While sampling, if the private search for the mode did not arrive, if the anchor contradicts itself,
        or if too many units would be clipped. What it has cost until then is spent, and no more.

    Notes
    -----
    **Releases**: before the first chain, those of :func:`~pymc_dp.anchor.build.build_anchor`, one Gaussian
    event together; per iteration one :func:`~pymc_dp.privacy.noisy_sum.noisy_sum` of clipped
    residual ratios (sensitivity 2B under substitute-one neighbours). **Guarantee**: with k iterations
    in all, :math:`\mu^2 = 1/z_A^2 + k/z^2` in
    :func:`~pymc_dp.privacy.accounting.gaussian_delta`.

    All chains share the anchor, so R-hat cannot see its noise: `tilt`, in the metadata, says how far
    it may have moved the draws, in posterior standard deviations.
    """

    name = "dp_anchored"
    own_stats = ("unadjusted",)
    _state_class = DPAnchoredState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        anchor_share: float = 0.98,
        noise_aware: bool = True,
        tempering: float = 1.0,
        shards: Shards | None = None,
        **run: Unpack[RunSettings],
    ):
        anchor_share = fraction("anchor_share", anchor_share)
        self._noise_aware = bool(noise_aware)
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        super().__init__(vars, instead={}, shards=shards, **run)
        d = self.compiled.d
        self.u = np.zeros(d)
        self.anchor: Anchor | None = None
        self._drawn: Vector | None = None
        self.stats_dtypes_shapes = {
            **STATS,
            "unadjusted": (np.dtype((np.float64, self.u.shape)), list(self.u.shape)),
        }
        # The host reads both.
        self.stats_dtypes = [{k: dtype for k, (dtype, _) in self.stats_dtypes_shapes.items()}]
        self._grouped = has_groups(self.compiled)
        if self._grouped:
            self._z_anchor = self.run.multiplier_of_one() * (1 + 2.0**-40)
            self.pays(once=(Gaussian(self._z_anchor),), settings={"tempering": self._tempering})
            self._curator = self._differentiable(lambda: self.curator(local=True))
            return
        if d * (d + 1) // 2 > MAX_DIMENSION:
            raise NoAnchorError(
                f"DPAnchored needs the Hessian in all {d} parameters, and these are too many. If there is "
                "one for each person, integrate it out of the likelihood; a draw of it would be a release "
                "about that person."
            )
        # One release that costs the whole budget; a hair more, for the rounding of its division.
        z = self.run.multiplier_of_one() * (1 + 2.0**-40)
        self._z_anchor = z / math.sqrt(anchor_share)
        self._z = z * math.sqrt(self.run.chains * self.iterations / (1 - anchor_share))
        self.pays(
            Gaussian(self._z),
            once=(Gaussian(self._z_anchor),),
            settings={
                "anchor_share": anchor_share,
                "noise_aware": str(self._noise_aware),
                "tempering": self._tempering,
            },
        )
        self._curator = self._differentiable(lambda: self.curator(derivatives=2))

    def _differentiable(self, curator: Callable[[], Curator]) -> Curator:
        _ = self.compiled.likelihood  # what it lacks, other samplers miss too
        try:
            return curator()
        except UnsupportedModelError as error:
            raise NoAnchorError(f"DPAnchored cannot be used: {error}") from None

    # -- the anchor ---------------------------------------------------------------------------

    def build_anchor(self) -> Anchor:
        """Release the anchor, once; all chains of the run share it.

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        if self.anchor is None:
            self.run.reserve()
            purse, why = Purse(self.run.charge_first(), self._z_anchor), ""
            try:
                # Floating point errors, if a user has them raised, would tell of records, or lose the run.
                with np.errstate(all="ignore"), doing("Anchor"):
                    anchor = build_anchor(
                        PaidMeasurements(self._curator, purse),
                        self.log_public,
                        self.compiled.parameters.start,
                        tempering=self._tempering,
                        chain_multiplier=self._z,
                        on_progress=lambda what: tell(f"Anchor: {what}"),
                    )
                    verdict = judge(anchor, self.roles.n_units, self.compiled.parameters.largest)
                    why = verdict.refusal
                    if not why:
                        self._prepare_moves(anchor)
            except SearchLost as lost:
                why = f"{NOT_ARRIVED}: {lost}"
            except (np.linalg.LinAlgError, OverflowError):  # of released numbers
                why = f"{NOT_ARRIVED}: its noisy equations have no solution"
            if why:
                raise PrivacyError(self._give_up(why, purse.close() or self.guarantee.once))
            for warning in verdict.warnings:
                _log.warning("%s", warning)
            self._expansion = Expansion(anchor, self._tempering, self.roles.n_units)
            self.run.guarantee = replace(self.guarantee, measured=report(anchor))
            remember(self)
            self.anchor = anchor
        return self.anchor

    def prepare(self) -> None:
        """Release the anchor, or the law of groups."""
        if self._grouped:
            self.draw_groups()
        else:
            self.build_anchor()

    def draw_groups(self) -> Vector:
        """Release the law of a model with many groups, once, and draw from it for all chains.

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        if self._drawn is None:
            law, why = law_model(self.compiled), ""  # compiled before anything is paid for
            self.run.reserve()
            purse = Purse(self.run.charge_first(), self._z_anchor)
            try:
                with np.errstate(all="ignore"), doing("Groups"):
                    found = draw_groups(
                        PaidMeasurements(self._curator, purse), law, tempering=self._tempering,
                        draws=self.iterations, chains=self.run.chains, seed=self.run_id % 2**32,
                        on_progress=lambda what: tell(f"Groups: {what}"),
                    )  # fmt: skip
            except SearchLost as lost:
                why = f"{NOT_ARRIVED}: {lost}"
            except (np.linalg.LinAlgError, OverflowError):  # of released numbers
                why = f"{NOT_ARRIVED}: its noisy equations have no solution"
            if why:
                raise PrivacyError(self._give_up(why, purse.close() or self.guarantee.once))
            for warning in found.warnings:
                _log.warning("%s", warning)
            self.run.guarantee = replace(self.guarantee, measured=found.measured)
            remember(self)
            self._drawn = found.draws
        return self._drawn

    def _prepare_moves(self, anchor: Anchor) -> None:
        self._root = np.linalg.cholesky(np.linalg.inv(anchor.precision))
        kappa = min(1.0, (2 / anchor.sigma) ** 2) if anchor.sigma > 0 else 1.0
        self._r = math.sqrt(1 - (1 - kappa) ** 2)
        self._radius = SETTINGS.radius * anchor.typical_distance
        self._shift, covariance = anchor.noise_aware()
        values, vectors = np.linalg.eigh(covariance)
        self._spread = vectors * np.sqrt(np.maximum(values, 0.0))

    def _give_up(self, why: str, released: tuple[Event, ...]) -> str:
        """Settle the account, and say what it cost."""
        given_back = self.run.settle(released)
        spent = composed_epsilon(released, self.run.delta)
        return (
            f"{why}. The anchor has spent ε = {spent:.3g} (δ = {self.run.delta:.3g}); no draw was made, and "
            + (
                "the rest is not charged"
                if given_back
                else "the ledger keeps the whole run as charged"
            )
            + ". It takes more records, a larger `epsilon`, or fewer parameters. Priors that say more help "
            "too, and covariates scaled by public constants to about 1, so that the posterior is near the "
            "start."
        )

    def summary(self) -> list[str]:
        """See :class:`~pymc_dp.steps.host.PrivateStep`."""
        a = self.guarantee.measured
        if self._grouped:
            return [f"tilt {a['tilt']:.2f} posterior sds"] if "tilt" in a else []
        share = min(max(float(a["clipped_share"]), 0.0), 1.0)
        return [
            f"with nothing but privacy noise {a['expected_acceptance']:.2f}",
            f"tilt {a['tilt']:.2f} posterior sds",
            f"clipped {100 * share:.1f} ± {100 * float(a['clipped_share_sd']):.1f} %",
        ]

    def derived_groups(self, groups: Mapping[str, Any]) -> dict[str, Any]:
        """The chain's own draws, and as many of the surrogate: the anchor's normal approximation."""
        anchor, posterior = self.anchor, groups["posterior"]
        if anchor is None or "unadjusted" not in groups["sample_stats"]:
            return {}
        unadjusted = groups["sample_stats"]["unadjusted"].values
        rng = np.random.default_rng(self.run_id)
        e, spread = rng.standard_normal((2, *unadjusted.shape))
        u = anchor.mean + e @ self._root.T
        if self._noise_aware:
            u += self._shift + spread @ self._spread.T
        return {
            "unadjusted_posterior": self._as_variables(unadjusted, posterior),
            "surrogate_posterior": self._as_variables(anchor.theta0 + u @ anchor.W.T, posterior),
        }

    def _as_variables(self, thetas: Vector, posterior: Any) -> Any:
        """Points in unconstrained space as a dataset like that of the draws."""
        outputs = [v for v in self.model.unobserved_value_vars if v.name in posterior]
        function = self.model.compile_fn(
            outputs, point_fn=True, on_unused_input="ignore", mode="FAST_COMPILE"
        )
        rows = [
            function(self.compiled.parameters.point(theta))
            for theta in thetas.reshape(-1, thetas.shape[-1])
        ]
        result = posterior.copy()
        for output, values in zip(outputs, zip(*rows, strict=True), strict=True):
            like = posterior[output.name]
            result[output.name] = (like.dims, np.reshape(values, like.shape))
        return result

    # -- the chain ----------------------------------------------------------------------------

    def _check_unchanged(self) -> None:
        if (
            self.anchor is None
            and self._drawn is None
            and multiprocessing.parent_process() is not None
        ):
            raise PrivacyConfigurationError(
                "The chains of a run share one anchor, which must exist before they start in processes "
                "of their own. Call `step.build_anchor()` before `pm.sample`, or use `pymc_dp.sample`, "
                "or `cores=1`. Nothing has been released or charged."
            )
        super()._check_unchanged()

    def _start_chain(self) -> None:
        if self._grouped:
            self.draw_groups()
            return
        anchor = self.build_anchor()
        # A little inside of the anchor's approximation: its tails may not be the posterior's.
        self.u = anchor.mean + 0.8 * self._root @ self.rng.standard_normal(len(anchor.mean))

    def _propose(self, u: Vector, anchor: Anchor) -> tuple[Vector, float]:
        """A move, and the log ratio of the densities of making it backwards and forwards."""
        rng, m, s = self.rng, anchor.mean, SETTINGS
        kernels = (s.autoregressive, s.random_walk, 1 - s.autoregressive - s.random_walk)
        kernel = rng.choice(3, p=kernels)
        e = self._root @ rng.standard_normal(len(u))
        if kernel > 0:
            return u + 2.4 / math.sqrt(len(u)) * (s.short if kernel == 2 else 1.0) * e, 0.0
        r = self._r * (s.short if rng.random() < s.short_autoregressive else 1.0)
        new = m + math.sqrt(1 - r * r) * (u - m) + r * e

        def log_normal(x: Vector) -> float:
            return -float((x - m) @ anchor.precision @ (x - m)) / 2

        return new, log_normal(u) - log_normal(new)

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        if self._grouped:
            draw = self.draw_groups()[self.slot, self.used - 1]
            return draw, {"accepted": True, "accept_rate": 1.0, "scale": 1.0, "unadjusted": draw}
        anchor = self.build_anchor()
        info = self._move(anchor, permit)
        raw = anchor.to_theta(self.u)
        spread = self._shift + self._spread @ self.rng.standard_normal(len(raw))
        draw = anchor.to_theta(self.u + spread) if self._noise_aware else raw
        return draw, {**info._asdict(), "scale": self._r, "unadjusted": raw}

    def _move(self, anchor: Anchor, permit: Permit) -> PenaltyInfo:
        proposal, log_proposals = self._propose(self.u, anchor)
        B = anchor.bound(self.u, proposal)

        def noisy_ratio(u: Vector, new: Vector) -> float:
            of = ResidualRatio(self._expansion, u, new)
            return float(self._curator.sum(of, bound=B, noise_multiplier=self._z, permit=permit))

        def log_known(u: Vector) -> float:
            if np.linalg.norm(u) > self._radius:
                return -math.inf
            return anchor.log_ratio(u) + self.log_public(anchor.to_theta(u))

        self.u, info = penalty_test(
            self.u,
            proposal,
            log_u=math.log1p(-self.rng.random()),
            bound=lambda _: B,
            noisy_ratio=noisy_ratio,
            log_public=log_known,
            noise_multiplier=self._z,
            kinetic_ratio=log_proposals,
        )
        return info
