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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.state import dataclass_state
from scipy.special import ndtr

from pymc_dp.anchor.build import build_anchor
from pymc_dp.anchor.model import Anchor, Expansion, Residuals
from pymc_dp.anchor.search import QUADRATIC, SearchLost
from pymc_dp.checks import fraction
from pymc_dp.exceptions import (
    NoAnchorError,
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
)
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.privacy.accounting import composed_epsilon, gaussian_epsilon
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noisy_sum
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.purse import Purse
from pymc_dp.steps.base import STATS, PrivateStep, PrivateStepState, register_guarantee
from pymc_dp.steps.penalty import PenaltyInfo, penalty_test
from pymc_dp.steps.settings import Vector

_log = logging.getLogger("pymc.dp")

# Autoregressive, random walk, short random walk.
_KERNELS = (0.5, 0.3, 0.2)
_SHORT = 0.4
_SHORT_AUTOREGRESSIVE = 0.15
# The anchor is no guide beyond this many typical distances, and the target may not even be proper.
_RADIUS = 10.0
# Shares of units that are clipped in a typical move: draws get doubtful, and worthless.
_CLIPPED_WARNING, _CLIPPED_REFUSAL = 0.01, 0.10
# Likewise how far the anchor disagrees with itself, in standard deviations.
_SURPRISE_WARNING, _SURPRISE_REFUSAL = 3.0, 5.0


_NOT_ARRIVED = "The private search for the posterior's mode did not arrive"


class _OfNoUse(Exception):
    """Why an anchor is of no use."""


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
    draws, tune, chains : int
        The run's plan, the same numbers that ``pm.sample`` gets. Every iteration of every chain
        costs budget, tuning included; nothing is tuned, but its draws are dropped.
    epsilon, delta : float, optional
        The budget of the whole run, the anchor included. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    anchor_share : float
        Part of the budget (of μ²) that the anchor gets, the chains getting the rest.
    noise_aware : bool
        Spread the draws by what the anchor's own noise adds to the uncertainty, so that intervals
        cover as they should. Otherwise they are draws from a posterior around a slightly wrong
        place.
    tempering : float, optional
        T: the posterior's log-likelihood is multiplied by it. Default 1.
    unit, public, ledger, noise, chunk_size, model, compile_kwargs, rng, blocked
        As in :class:`~pymc_dp.DPPenalty`.

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
    _state_class = DPAnchoredState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        draws: int,
        tune: int = 0,
        chains: int,
        epsilon: float | None = None,
        delta: float | None = None,
        anchor_share: float = 0.98,
        noise_aware: bool = True,
        tempering: float | None = None,
        unit: str | int | ArrayLike | None = None,
        public: Sequence[str] = (),
        ledger: PrivacyLedger | None = None,
        noise: NoiseSource | None = None,
        chunk_size: int | None = None,
        model: pm.Model | CompiledModel | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        rng: Any = None,
        blocked: bool = True,
    ):
        self._anchor_share = fraction("anchor_share", anchor_share)
        self._noise_aware = bool(noise_aware)
        self._tempering = (
            1.0 if tempering is None else fraction("tempering", tempering, one_allowed=True)
        )
        self.anchor: Anchor | None = None
        self._current: tuple[Vector, Vector] | None = None
        super().__init__(
            vars,
            draws=draws,
            tune=tune,
            chains=chains,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=None,
            unit=unit,
            public=public,
            ledger=ledger,
            noise=noise,
            chunk_size=chunk_size,
            model=model,
            compile_kwargs=compile_kwargs,
            rng=rng,
            blocked=blocked,
        )
        try:
            self._expansion = Expansion(self.compiled, self._tempering)
        except UnsupportedModelError as error:
            raise NoAnchorError(f"DPAnchored cannot be used: {error}") from None
        if self.guarantee.valid:
            k = np.arange(1, self.iterations + 1)
            mu = np.hypot(1 / self._z_anchor, np.sqrt(k) / self._z)
            self._spent = np.asarray(gaussian_epsilon(mu, self._delta))
        self.u = np.zeros(self.compiled.d)
        self.stats_dtypes_shapes = {
            **STATS,
            "unadjusted": (np.dtype((np.float64, self.u.shape)), list(self.u.shape)),
        }
        # The host reads both.
        self.stats_dtypes = [{k: dtype for k, (dtype, _) in self.stats_dtypes_shapes.items()}]

    def _check_budget(self, epsilon: float | None, noise_multiplier: float | None) -> None:
        if epsilon is None:
            raise PrivacyConfigurationError(
                "DPAnchored needs a budget: `epsilon`, and `delta` if not 0.1 / units."
            )
        super()._check_budget(epsilon, noise_multiplier)

    def _configure(self, d: int) -> None:
        if d * (d + 1) // 2 > MAX_DIMENSION:
            raise NoAnchorError(
                f"DPAnchored needs the Hessian in all {d} parameters, and these are too many. If there is "
                "one for each person, integrate it out of the likelihood; a draw of it would be a release "
                "about that person."
            )

    def _calibrate(
        self,
        epsilon: float | None,
        delta: float,
        noise_multiplier: float | None,
        iterations: int,
    ) -> tuple[Event, ...]:
        # One release that costs the whole budget; a hair more, for the rounding of its division.
        z = calibrate_noise(epsilon=epsilon or math.inf, delta=delta, releases=1) * (1 + 2.0**-40)
        self._z_anchor = z / math.sqrt(self._anchor_share)
        self._z = z * math.sqrt(iterations / (1 - self._anchor_share))
        self.once = (Gaussian(self._z_anchor),)
        return (Gaussian(self._z),)

    def _settings(self) -> dict[str, float | str]:
        return {
            "anchor_share": self._anchor_share,
            "noise_aware": str(self._noise_aware),
            "tempering": self._tempering,
        }

    # -- the anchor ---------------------------------------------------------------------------

    def build_anchor(self) -> Anchor:
        """Release the anchor, once; all chains of the run share it.

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        if self.anchor is None:
            self.reserve()
            first = self.guarantee.first_plan
            purse = Purse(self.ledger.charge(first, self.ledger.claim(first), 0), self._z_anchor)
            try:
                # Floating point errors, if a user has them raised, would tell of records, or lose the run.
                with np.errstate(all="ignore"):
                    anchor = build_anchor(
                        self._expansion,
                        self._log_public,
                        self.compiled.parameters.start,
                        purse,
                        self._noise,
                        chain_multiplier=self._z,
                        on_progress=lambda what: _log.info("Anchor: %s", what),
                    )
                    self._check(anchor)
                    self._prepare_moves(anchor)
            except SearchLost as lost:
                why = f"{_NOT_ARRIVED}: {lost}"
            except _OfNoUse as refusal:
                why = str(refusal)
            except (np.linalg.LinAlgError, OverflowError):  # of released numbers
                why = f"{_NOT_ARRIVED}: its noisy equations have no solution"
            else:
                why = ""
            if why:
                raise PrivacyError(self._give_up(why, purse.close() or self.once))
            self._residuals = Residuals(self._expansion, anchor)
            self.guarantee = replace(self.guarantee, measured=self._report(anchor))
            register_guarantee(self.guarantee)
            self.anchor = anchor
        return self.anchor

    def prepare(self) -> None:
        """Release the anchor."""
        self.build_anchor()

    def _prepare_moves(self, anchor: Anchor) -> None:
        self._root = np.linalg.cholesky(np.linalg.inv(anchor.precision))
        kappa = min(1.0, (2 / anchor.sigma) ** 2) if anchor.sigma > 0 else 1.0
        self._r = math.sqrt(1 - (1 - kappa) ** 2)
        self._radius = _RADIUS * anchor.typical_distance
        self._shift, covariance = anchor.noise_aware()
        values, vectors = np.linalg.eigh(covariance)
        self._spread = vectors * np.sqrt(np.maximum(values, 0.0))

    def _check(self, anchor: Anchor) -> None:
        """Refuse an anchor that is of no use; warn of one that is of little."""
        off, root_d = float(np.linalg.norm(anchor.mean)), math.sqrt(len(anchor.mean))
        by_noise = 4 * anchor.tilt * root_d
        largest = self.compiled.parameters.largest
        if not off <= QUADRATIC * math.sqrt(self._roles.n_units) + by_noise:
            raise _OfNoUse(
                f"{_NOT_ARRIVED}: by its own measurement it is {off:.0f} posterior sds away"
            )
        clipped = anchor.clipped_share - 2 * anchor.clipped_share_sd
        if clipped > _CLIPPED_REFUSAL:
            raise _OfNoUse(
                f"At least {clipped:.0%} of the records would be clipped, and the draws come from "
                "something other than the posterior (limit covariates to a public range, or "
                "transform them, so that no group of records stands far out)"
            )
        # Without other causes the surprise is about 1 ± 1/√(2d), the spread of a χ distribution.
        surprise = (anchor.surprise - 1) * math.sqrt(2) * root_d
        further = largest(np.abs(anchor.in_sds(anchor.still_to_go)))
        if surprise > _SURPRISE_REFUSAL:
            raise _OfNoUse(
                f"The anchor contradicts itself: at its own mode the gradient is {anchor.surprise:.1f} "
                f"times as long as noise explains, and would move, in posterior sds, {further}. A small "
                "group of records that alone determines a parameter (a rare category) can cause this, or a "
                "strongly curved posterior"
            )
        if surprise > _SURPRISE_WARNING:
            _log.warning(
                "At the anchor's own mode the gradient is %.1f times as long as noise explains, and would "
                "move, in posterior standard deviations, %s: these may be further off than their intervals "
                "say. A larger `epsilon`, or fewer parameters that few records determine, would help.",
                anchor.surprise,
                further,
            )
        if clipped > _CLIPPED_WARNING:
            _log.warning(
                "At least %.1f %% of the records are clipped in a typical move: the draws may be off by "
                "more than the tilt says. Covariates in a public range, or a larger `epsilon`, would help.",
                100 * clipped,
            )
        if off > 4 * root_d + by_noise:
            _log.warning(
                "The anchor is %.1f posterior standard deviations from the mode (%s): draws may mix badly. "
                "A larger `epsilon`, or DPHMC, would help.",
                off,
                largest(np.abs(anchor.in_sds(anchor.W @ anchor.mean))),
            )
        if anchor.tilt_in_sds > 1:
            _log.warning(
                "The anchor's noise moves the draws by %.1f posterior standard deviations (%s): these "
                "intervals are mostly privacy noise. A larger `epsilon`, or more records, would help.",
                anchor.tilt_in_sds,
                largest(anchor.tilts),
            )
        if anchor.sigma > 4:
            _log.warning(
                "What the anchor does not explain needs noise of standard deviation %.1f in each log "
                "acceptance ratio: few moves will be accepted. A larger `epsilon`, fewer draws, or "
                "DPHMC, would help.",
                anchor.sigma,
            )

    def _give_up(self, why: str, released: tuple[Event, ...]) -> str:
        """Settle the account, and say what it cost."""
        plans = zip(self.guarantee.plans, (released, ()), strict=True)
        given_back = all(self.ledger.settle(plan, events) for plan, events in plans)
        spent = composed_epsilon(released, self._delta)
        return (
            f"{why}. The anchor has spent ε = {spent:.3g} (δ = {self._delta:.3g}); no draw was made, and "
            + (
                "the rest is not charged"
                if given_back
                else "the ledger keeps the whole run as charged"
            )
            + ". It takes more records, a larger `epsilon`, or fewer parameters. Priors that say more help "
            "too, and covariates scaled by public constants to about 1, so that the posterior is near the "
            "start."
        )

    def _report(self, anchor: Anchor) -> dict[str, float | str]:
        return {
            "tilt": anchor.tilt_in_sds,
            "order": anchor.order,
            "rounds": anchor.rounds,
            "distance_to_mode": float(np.linalg.norm(anchor.mean)),
            "surprise": anchor.surprise,
            "typical_noise_sd": anchor.sigma,
            "expected_acceptance": 2 * float(ndtr(-anchor.sigma / 2)),
            "clipped_share": anchor.clipped_share,
            "clipped_share_sd": anchor.clipped_share_sd,
        }

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
        if self.anchor is None and multiprocessing.parent_process() is not None:
            raise PrivacyConfigurationError(
                "The chains of a run share one anchor, which must exist before they start in processes "
                "of their own. Call `step.build_anchor()` before `pm.sample`, or use `pymc_dp.sample`, "
                "or `cores=1`. Nothing has been released or charged."
            )
        super()._check_unchanged()

    def _start_chain(self) -> None:
        anchor = self.build_anchor()
        self.u = anchor.mean + 0.8 * self._root @ self.rng.standard_normal(len(anchor.mean))
        self._current = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_current": None}

    def _propose(self, u: Vector, anchor: Anchor) -> tuple[Vector, float]:
        """A move, and the log ratio of the densities of making it backwards and forwards."""
        rng, m = self.rng, anchor.mean
        kernel = rng.choice(3, p=_KERNELS)
        e = self._root @ rng.standard_normal(len(u))
        if kernel > 0:
            return u + 2.4 / math.sqrt(len(u)) * (_SHORT if kernel == 2 else 1.0) * e, 0.0
        r = self._r * (_SHORT if rng.random() < _SHORT_AUTOREGRESSIVE else 1.0)
        new = m + math.sqrt(1 - r * r) * (u - m) + r * e

        def log_normal(x: Vector) -> float:
            return -float((x - m) @ anchor.precision @ (x - m)) / 2

        return new, log_normal(u) - log_normal(new)

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        anchor = self.build_anchor()
        info = self._move(anchor, permit)
        raw = anchor.to_theta(self.u)
        spread = self._shift + self._spread @ self.rng.standard_normal(len(raw))
        draw = anchor.to_theta(self.u + spread) if self._noise_aware else raw
        return draw, {**info._asdict(), "scale": self._r, "unadjusted": raw}

    def _move(self, anchor: Anchor, permit: Permit) -> PenaltyInfo:
        proposal, log_proposals = self._propose(self.u, anchor)
        proposed: list[Vector] = []

        def ratios() -> Iterator[Vector]:
            if self._current is None or not np.array_equal(self._current[0], self.u):
                self._current = self.u.copy(), self._residuals(self.u)
            proposed.append(self._residuals(proposal))
            yield proposed[0] - self._current[1]

        def noisy_ratio(u: Vector, new: Vector) -> float:
            return float(
                noisy_sum(
                    ratios(), bound=B, noise_multiplier=self._z, permit=permit, noise=self._noise
                )
            )

        def log_known(u: Vector) -> float:
            if np.linalg.norm(u) > self._radius:
                return -math.inf
            return anchor.log_ratio(u) + self._log_public(anchor.to_theta(u))

        B = anchor.bound(self.u, proposal)
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
        if info.accepted:
            self._current = self.u.copy(), proposed[0]
        return info
