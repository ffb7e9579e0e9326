"""What :class:`~pymc_dp.DPSurrogate` needs of a family of surrogates."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from pymc_dp.diagnostics import Diagnostics
from pymc_dp.linalg import Vector
from pymc_dp.progress import tell
from pymc_dp.records.measurements import Measurements


class Drawn(NamedTuple):
    """Draws of what was released, and what there is to say of it. Nothing in it is private.

    Parameters
    ----------
    draws : ndarray, shape (chains, draws, d)
        Of θ.
    diagnostics : Diagnostics
    law : str
        The normal law that the draws are of, as text, if it is one: what another result can be combined with.
    """

    draws: Vector
    diagnostics: Diagnostics
    law: str = ""


class Family(Protocol):
    """One way to put a surrogate in the likelihood's place: built for a model, used once."""

    asks: Mapping[str, Any]
    """What the curator has to have compiled, as :meth:`~pymc_dp.steps.base.PrivateStep.curator` takes it."""
    surrogate: Any
    """What was found; None before."""
    finish: Callable[[], Drawn] | None
    """Draws at once of what is known, once that is complete: for who interrupts then."""

    def last_sum(self, mu: float, n_units: int | None) -> tuple[int, float] | None:
        """Dimension of a last sum by the ℓ2 mechanism, and the share of the budget that is to come before it.

        Parameters
        ----------
        mu : float
            Of the budget, as one Gaussian release.
        n_units : int, optional
            None if their number is private.

        Returns
        -------
        tuple of int and float, optional
            None if there is no such sum, or if it does not pay.
        """

    def compile(self) -> None:
        """Whatever is still to be compiled, while nothing is spent."""

    def draw(self, measure: Measurements, draws: int, chains: int) -> Drawn:
        """Release what can be had for `measure`, and draw from it: an interrupt does not lose what is known."""


def stage(what: str) -> None:
    """Tell the person who waits what begins; public text only."""
    tell(f"Surrogate: {what}")


def say(what: str) -> None:
    """Tell who looks at the line how far it is; in a log it is a detail. Public text only."""
    tell(f"Surrogate: {what}", logging.DEBUG)
