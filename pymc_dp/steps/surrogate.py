r"""DP surrogate: what stands for the likelihood is released once, and draws of it with the exact prior cost nothing.

The whole budget is one Gaussian release, spent in parts (:class:`~pymc_dp.privacy.filter.PrivacyFilter`), or, at δ = 0, one pure ε
(:class:`~pymc_dp.privacy.filter.PureFilter`): queries on the way to
where the posterior is, and there. What they say together, with the noise that is in it, is a surrogate of the
likelihood; that times the exact prior is the posterior given all that was released (noise-aware inference: Bernstein
and Sheldon, 2018; Alrawajfeh, Jälkö and Honkela, 2024). Draws of it are made before the first chain starts, and handed out.
"""

import logging
import math
import multiprocessing
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NoReturn, get_args

import numpy as np

from pymc_dp.checks import fraction
from pymc_dp.compat import SamplerCall
from pymc_dp.diagnostics import Diagnostics
from pymc_dp.exceptions import (
    LedgerError,
    NoSurrogateError,
    PrivacyConfigurationError,
    UnsupportedModelError,
)
from pymc_dp.interrupts import deferred
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Event, Pure
from pymc_dp.privacy.filter import LEAST_SHARE, part_of
from pymc_dp.privacy.guarantee import at_most
from pymc_dp.privacy.plans import Permit
from pymc_dp.progress import doing
from pymc_dp.records.measurements import PaidMeasurements, PureMeasurements, measurements_paid_by
from pymc_dp.records.shards import Shards
from pymc_dp.steps.base import PrivateStep
from pymc_dp.steps.family import Drawn, Family, price, stage
from pymc_dp.steps.hierarchical import HierarchicalFamily, groups_are_normal, has_groups
from pymc_dp.steps.normal import MOST_CURVED, AutomaticFamily, NormalFamily
from pymc_dp.steps.polynomial import PolynomialFamily
from pymc_dp.steps.run import remember
from pymc_dp.surrogate.normal.draws import sampler_at_hand
from pymc_dp.surrogate.normal.fit import least_pure_epsilon
from pymc_dp.surrogate.normal.read_part import can_be_summed

_log = logging.getLogger("pymc.dp")

_ROUNDING = 1e-6
"""Of shares that are added up to the whole budget."""

_OUTLOOK = (
    "outcomes alone are private, so that noise will move the posterior by about {:.2g} of its standard deviations (at the "
    "model's initial point; with private covariates {:.2g} or more)"
)

_FEW = 5
"""Parameters up to which a pure run is never refused: there a larger ε is all that there is to say, and the run says so itself."""

FamilyName = Literal["auto", "normal", "hierarchical", "polynomial"]


class DPSurrogate(PrivateStep):
    r"""Differentially private sampling by a released surrogate of the likelihood, and the exact prior.

    No setting but the budget is needed. For smooth posteriors of one mode and up to 255 numbers that the
    likelihood reads, of hierarchical models with many groups, and of any smooth shape up to three parameters.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    family : {"auto", "normal", "hierarchical", "polynomial"}
        What stands for the likelihood. ``"normal"``: a normal law with a dense information matrix (a noise-aware Laplace
        approximation). ``"hierarchical"``: one whose information is sparse, for models of many groups.
        ``"polynomial"``: for curved posteriors, of a few parameters. ``"auto"``: hierarchical where the model has many
        groups; up to three parameters normal or polynomial, as a released number says; else normal.
        At δ = 0 it is always normal.
    tempering, shards
        As in :class:`~pymc_dp.DPPenalty`.
    nuts_sampler : str
        Who draws from a normal or hierarchical surrogate: as for ``pm.sample``; it must be installed.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`. The cost does not depend on how many draws there are.
        Nothing is tuned, but tuning draws are dropped.

    Attributes
    ----------
    surrogate
        What was released; None before, and where nothing could be made of it.
    diagnostics : Diagnostics
        What the releases say of themselves; None before.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, has too many parameters, or not the shape that the
        family is for; ``NoSurrogateError`` if its likelihood cannot be differentiated, so that other steps can sample it and
        this cannot.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**, all before the first chain, one Gaussian event together: normal, those of
    :func:`~pymc_dp.surrogate.normal.fit.fit_normal`, or, if outcomes alone are private,
    :func:`~pymc_dp.surrogate.normal.design.fit_design`; hierarchical, of
    :func:`~pymc_dp.surrogate.hierarchical.fit.fit_hierarchical`; polynomial, of
    :func:`~pymc_dp.surrogate.polynomial.fit.fit_polynomial` and
    :func:`~pymc_dp.surrogate.polynomial.evaluation.check`; auto, up to three parameters,
    :func:`~pymc_dp.surrogate.polynomial.switch.curvature` besides, and which of the two it is is decided by releases that
    are paid for. **Guarantee**: :math:`\mu = 1/z` in :func:`~pymc_dp.privacy.accounting.gaussian_delta`. Without a ledger the last
    query of a normal surrogate may be one ``L2Mechanism`` in place of the rest (:class:`~pymc_dp.privacy.events.GaussianOrL2`): the plan
    says so, and its ε is of both. With ``delta=0`` those of
    a normal surrogate are one ``Pure(epsilon)`` event together, by simple composition: sums with the noise of the ℓ2 mechanism
    (:func:`~pymc_dp.privacy.noisy_sum.l2_noisy_total`), histograms with Laplace noise
    (:func:`~pymc_dp.privacy.histogram.pure_noisy_counts`).

    A run that has spent always returns its draws. If they are of no use, ``privacy_usable`` is 0 in the result's
    attributes, a warning says why, and what was not spent is not charged.

    What noise has done to the surrogate is part of the draws' spread. ``privacy_shift``, in the metadata, says how
    far it may have moved them, in posterior standard deviations. R-hat cannot see it: all chains share the surrogate.
    """

    name = "dp_surrogate"
    can_be_pure = True

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        family: FamilyName = "auto",
        tempering: float = 1.0,
        shards: Shards | None = None,
        nuts_sampler: str = "pymc",
        **run: Any,
    ):
        if family not in get_args(FamilyName):
            raise PrivacyConfigurationError(
                f"`family` must be one of {', '.join(map(repr, get_args(FamilyName)))}. Found {family!r}."
            )
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        self._nuts_sampler = sampler_at_hand(nuts_sampler)
        super().__init__(vars, run, instead={}, shards=shards)
        self._family = self._family_of(family)
        self._price = price(
            self._family, epsilon=self.run.epsilon, delta=self.run.delta, ledger=self.run.budget.ledger is not None,
            n_units=self.roles.n_units if self.run.neighbours.public_size else None,
        )  # fmt: skip
        settings: dict[str, float | str] = {
            "tempering": self._tempering, "family": family, "last_query": self._price.last_query,
        }  # fmt: skip
        self.pays(once=self._price.events, settings=settings)
        self.diagnostics: Diagnostics | None = None
        self._draws: Any = None
        self._built_in = os.getpid()
        _ = self.compiled.likelihood  # what it lacks, other samplers miss too
        try:
            self._curator = self.curator(**self._family.asks)
        except UnsupportedModelError as error:
            # Nothing else has a way at δ = 0.
            refusal = UnsupportedModelError if self.run.delta == 0 else NoSurrogateError
            raise refusal(f"DPSurrogate cannot be used: {error}") from None

    def _family_of(self, name: FamilyName) -> Family:
        """What `family` means for this model: decided by the graph alone."""
        compiled, d = self.compiled, self.compiled.d
        settings = compiled, self._tempering, self._nuts_sampler
        units_known = self._shards is None and self.run.neighbours.public_size
        if self.run.delta == 0:
            # Of a public design information is public, and all that is asked is a sum of d numbers.
            self._check_pure(name, few=units_known and compiled.roles.public_design)
            return NormalFamily(*settings, units_known)
        if name == "polynomial":
            return PolynomialFamily(compiled, self._tempering)
        if name == "auto" and has_groups(compiled):
            # Where effects of a table are not normal, all parameters' information is better, if they are not too many for it.
            few = can_be_summed(d)
            name = "normal" if few and not groups_are_normal(compiled) else "hierarchical"
        if name == "hierarchical":
            if not has_groups(compiled):
                raise UnsupportedModelError(
                    '`family="hierarchical"` is for models of more than thirty parameters, most of them effects of groups '
                    "that the likelihood reads as `a[group]`, and this is not one. Leave `family` out."
                )
            return HierarchicalFamily(*settings)
        few = name == "auto" and d <= MOST_CURVED
        family = (AutomaticFamily if few else NormalFamily)(*settings, units_known)
        if not can_be_summed(family.d):
            raise UnsupportedModelError(
                f"A normal surrogate needs the information in all {family.d} numbers that the likelihood reads, and these are too many for it. If they are of "
                "groups, write `pm.Normal('a', mu, tau, dims='group')`, read as `a[group]`, one array for each effect; if "
                "there is one for each person, see `pymc_dp.integrate_out`. `step=pymc_dp.DPHMC` takes any number of them, "
                "but needs very many records for each."
            )
        return family

    def _check_pure(self, name: FamilyName, few: bool) -> None:
        """Refuse what there is no way to at δ = 0, or, unless few numbers are asked, what noise would drown.

        A function of public numbers.
        """
        d, n, relation, epsilon = (
            self.compiled.d,
            self.roles.n_units,
            self.run.neighbours,
            self.run.epsilon,
        )
        if name in ("hierarchical", "polynomial") or has_groups(self.compiled):
            what = "groups" if has_groups(self.compiled) else f'`family="{name}"`'
            raise UnsupportedModelError(
                f"At δ = 0 there is no surrogate for {what}: it asks for vectors of hundreds of numbers, and the noise of a pure ε grows "
                "with their number. Give `delta`, well below one in the number of units"
                + ("." if has_groups(self.compiled) else ", or leave `family` out.")
            )
        if few or d <= _FEW or epsilon is None or not relation.public_size:
            return
        least = least_pure_epsilon(d, n, relation.terms)
        if epsilon < least:
            raise UnsupportedModelError(
                f"At δ = 0 noise grows with the number of parameters. With {d} of them and {n:,} units, ε = {epsilon:g} would leave "
                f"next to nothing known of how sure they are: it takes ε = {at_most(least)}, or {math.ceil(n * least / epsilon):,} "
                "units, or fewer parameters. Or give `delta`, well below one in the number of units: Gaussian noise does not grow."
            )

    @property
    def surrogate(self) -> Any:
        """What was released; None before."""
        return self._family.surrogate

    def release(self) -> Any:
        """Release the surrogate, once, and draw from it; all chains of the run share it.

        Returns
        -------
        Any
            :attr:`surrogate`.

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        self._release_once()
        return self.surrogate

    def _release_once(self) -> None:
        """Spend the budget, unless that is done; all chains of the run share what it buys."""
        if self._draws is not None:
            return
        self._family.compile()
        measure = self._charged()
        try:
            # Floating point errors, if a user has them raised, would tell of records, or lose the run.
            with np.errstate(all="ignore"), doing("Surrogate"):
                stage("asking the records, which is what the budget is spent on")
                found = self._family.draw(measure, self.iterations, self.run.chains)
        except BaseException as failure:
            if self._family.finish is None or not isinstance(failure, KeyboardInterrupt):
                self._give_back(measure.close(), type(failure).__name__)
                raise
            _log.warning("Interrupted. All is released and paid for: drawing what takes no time.")
            found = self._family.finish()
        with deferred(lambda: None):
            self._keep(found, measure)

    def _keep(self, found: Drawn, measure: PaidMeasurements | PureMeasurements) -> None:
        """Close the account, and say what there is to say."""
        if 0 < measure.spent < 1 - _ROUNDING:  # a search that was lost
            self.run.settle_first(measure.close())
        for note in found.diagnostics.notes:
            _log.warning("%s", note.text)
        said = found.diagnostics.metadata(measure.spent_on)
        self.run.guarantee = replace(self.guarantee, diagnostics=said, law=found.law)
        remember(self)
        self.diagnostics, self._draws = found.diagnostics, found.draws

    def _charged(self) -> PaidMeasurements | PureMeasurements:
        try:
            self.run.reserve()
            return measurements_paid_by(
                self.run.charge_first(), self._price.whole, self._curator, self._price.option
            )
        except KeyboardInterrupt:
            with suppress(LedgerError):  # it had not been reserved yet
                self._give_back((part_of(self._price.whole, LEAST_SHARE),), "An interrupt")
            raise

    def _give_back(self, spent: tuple[Event, ...], why: str) -> None:
        """Close a run that ended before anything could be drawn, and say what it has cost."""
        returned = self.run.settle_first(spent)
        cost = self.run.cost(spent) if returned else self.guarantee.epsilon
        _log.error(
            "%s ended the run before there was anything to draw from. ε = %s of %g stays charged for what was "
            "released until then, and nothing is returned. Build a new step to begin again.",
            why, at_most(cost), self.guarantee.epsilon,
        )  # fmt: skip

    def outlook(self) -> str:
        """See :class:`~pymc_dp.steps.base.PrivateStep`."""
        family = self._family
        d, whole, option = self.compiled.d, self._price.whole, self._price.option
        if option is not None:
            z = option.noise_multiplier * math.sqrt(option.dimension + 1)
        else:
            z = (
                math.sqrt(d + 1) / whole.epsilon
                if isinstance(whole, Pure)
                else whole.noise_multiplier
            )
        noise = self.run.neighbours.noise_sd(1.0, z)
        shifts = family.expected_shifts(noise) if isinstance(family, NormalFamily) else None
        return "" if shifts is None else _OUTLOOK.format(*shifts)

    def prepare(self) -> None:
        """Release what all chains share."""
        self._release_once()

    def summary(self) -> list[str]:
        """See :class:`~pymc_dp.steps.base.PrivateStep`."""
        return [] if self.diagnostics is None else [self.diagnostics.summary]

    def check_host(self, call: SamplerCall) -> None:
        """See :class:`~pymc_dp.steps.base.PrivateStep`."""
        if self._draws is None and call.in_processes:
            self._refuse_processes()
        super().check_host(call)

    def _check_unchanged(self) -> None:
        elsewhere = multiprocessing.parent_process() is not None and os.getpid() != self._built_in
        if self._draws is None and elsewhere:
            self._refuse_processes()
        super()._check_unchanged()

    def _refuse_processes(self) -> NoReturn:
        raise PrivacyConfigurationError(
            "The chains of a run share one surrogate, which must exist before they start in processes "
            "of their own. Call `step.release()` before `pm.sample`, or use `pymc_dp.sample`, "
            "or `cores=1`. Nothing has been released or charged."
        )

    def _start_chain(self) -> None:
        self._release_once()

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        self._release_once()
        drawn = self._draws[self.slot, permit.iteration]
        return drawn, {"accepted": True, "accept_rate": 1.0, "scale": math.nan}
