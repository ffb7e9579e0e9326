"""Steps that spend their whole budget before the first chain, and hand out draws of what was released."""

import logging
import math
import multiprocessing
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from pymc_dp.compat import SamplerCall
from pymc_dp.exceptions import LedgerError, PrivacyConfigurationError
from pymc_dp.interrupts import deferred
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.privacy.guarantee import at_most
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.purse import LEAST_SHARE, Purse
from pymc_dp.progress import doing
from pymc_dp.records.measurements import Curator, PaidMeasurements
from pymc_dp.steps.host import PrivateStep
from pymc_dp.steps.run import remember

_log = logging.getLogger("pymc.dp")

_ROUNDING = 1e-6
"""Of shares that are added up to the whole budget."""


class Drawn(NamedTuple):
    """Draws of what was released, and what there is to say of it. Nothing in it is private.

    Parameters
    ----------
    draws : ndarray, shape (chains, draws, d)
        Of θ.
    measured : dict
        For the metadata.
    warnings : list of str
        For people.
    """

    draws: Vector
    measured: dict[str, float | str]
    warnings: list[str]


class AtOnce(PrivateStep):
    """Base of the steps whose budget is one Gaussian release, divided up before the first chain.

    A subclass calls :meth:`pays_at_once`, sets the curator, and says in :meth:`_spend` what is released and drawn.
    """

    made: ClassVar[tuple[str, str]]
    """What all chains share, and the method that makes it."""
    _curator: Curator

    def pays_at_once(self, settings: Mapping[str, float | str]) -> None:
        """Fix the plan: one release that costs the whole budget."""
        # A hair more noise than that, for the rounding of its division.
        self._z = self.run.multiplier_of_one() * (1 + 2.0**-40)
        self.pays(once=(Gaussian(self._z),), settings=settings)
        self._draws: Any = None
        self._built_in = os.getpid()
        self._finish: Callable[[], Drawn] | None = None
        """Draws at once of what is known, once that is complete: for who interrupts then."""

    def _compile(self) -> None:
        """Whatever is still to be compiled, while nothing is spent."""

    @abstractmethod
    def _spend(self, measure: PaidMeasurements, purse: Purse) -> Drawn:
        """Release what can be had for the content of a purse, and draw from it: an interrupt does not lose what is known."""

    def _release_once(self) -> None:
        """Spend the budget, unless that is done; all chains of the run share what it buys."""
        if self._draws is not None:
            return
        self._compile()
        purse = self._charged()
        measure = PaidMeasurements(self._curator, purse)
        try:
            # Floating point errors, if a user has them raised, would tell of records, or lose the run.
            with np.errstate(all="ignore"), doing(self.made[0].capitalize()):
                found = self._spend(measure, purse)
        except BaseException as failure:
            if self._finish is None or not isinstance(failure, KeyboardInterrupt):
                self._give_back(purse.close(), type(failure).__name__)
                raise
            _log.warning("Interrupted. All is released and paid for: drawing what takes no time.")
            found = self._finish()
        with deferred(lambda: None):
            self._keep(found, measure, purse)

    def _keep(self, found: Drawn, measure: PaidMeasurements, purse: Purse) -> None:
        """Close the account, and say what there is to say."""
        spent = {f"spent_on_{what}": share for what, share in measure.spent_on.items()}
        if (rest := purse.spent - sum(spent.values())) > _ROUNDING:
            spent["spent_on_chain"] = rest
        # A search that was lost, or a chain that was not needed.
        if 0 < purse.spent < 1 - _ROUNDING:
            self.run.settle_first(purse.close())
        for warning in found.warnings:
            _log.warning("%s", warning)
        self.run.guarantee = replace(self.guarantee, measured={**found.measured, **spent})
        remember(self)
        self._draws = found.draws

    def _charged(self) -> Purse:
        try:
            self.run.reserve()
            return Purse(self.run.charge_first(), self._z)
        except KeyboardInterrupt:
            with suppress(LedgerError):  # it had not been reserved yet
                self._give_back((Gaussian(self._z / math.sqrt(LEAST_SHARE)),), "An interrupt")
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

    def prepare(self) -> None:
        """Release what all chains share."""
        self._release_once()

    def summary(self) -> list[str]:
        """See :class:`~pymc_dp.steps.host.PrivateStep`."""
        tilt = self.guarantee.measured.get("tilt")
        return [] if tilt is None else [f"tilt {float(tilt):.2f} posterior sds"]

    def check_host(self, call: SamplerCall) -> None:
        """See :class:`~pymc_dp.steps.host.PrivateStep`."""
        if self._draws is None and call.in_processes:
            self._refuse_processes()
        super().check_host(call)

    def _check_unchanged(self) -> None:
        elsewhere = multiprocessing.parent_process() is not None and os.getpid() != self._built_in
        if self._draws is None and elsewhere:
            self._refuse_processes()
        super()._check_unchanged()

    def _refuse_processes(self) -> NoReturn:
        what, method = self.made
        raise PrivacyConfigurationError(
            f"The chains of a run share one {what}, which must exist before they start in processes "
            f"of their own. Call `step.{method}()` before `pm.sample`, or use `pymc_dp.sample`, "
            "or `cores=1`. Nothing has been released or charged."
        )

    def _start_chain(self) -> None:
        self._release_once()

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        self._release_once()
        drawn = self._draws[self.slot, permit.iteration]
        return drawn, {"accepted": True, "accept_rate": 1.0, "scale": math.nan}
