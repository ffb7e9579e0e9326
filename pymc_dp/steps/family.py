"""What :class:`~pymc_dp.DPSurrogate` needs of a family of surrogates."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from pymc_dp.diagnostics import Diagnostics
from pymc_dp.linalg import Vector
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.events import Event, Gaussian, L2Option, Pure
from pymc_dp.privacy.l2_calibration import calibrate_with_l2
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


class Price(NamedTuple):
    """What a run of a family pays.

    Parameters
    ----------
    whole : Gaussian or Pure
        The one release that all others are parts of.
    option : L2Option, optional
        What the rest of it may be exchanged for.
    last_query : str
        This in words.
    """

    whole: Gaussian | Pure
    option: L2Option | None
    last_query: str

    @property
    def events(self) -> tuple[Event, ...]:
        """What is promised, and charged."""
        if self.option is None or isinstance(self.whole, Pure):
            return (self.whole,)
        return self.option.events(self.whole.noise_multiplier)


def price(
    family: Family,
    *,
    epsilon: float | None,
    delta: float,
    n_units: int | None,
    ledger: bool = False,
) -> Price:
    """What a budget buys a family.

    An exchange costs other runs of an account more than the Gaussian rest would: two such runs of ε = 1 on five
    parameters cost 1.88 together, and two Gaussian ones 1.46. And an account of Gaussian releases alone can be given
    back what a lost search has not spent. So it is for a run without a ledger.

    Parameters
    ----------
    family : Family
    epsilon : float, optional
        None if there is no limit.
    delta : float
    n_units : int, optional
        None if their number is private.
    ledger : bool
        Whether other runs are paid from the same account.

    Returns
    -------
    Price
    """
    if delta == 0 and epsilon is not None:
        return Price(Pure(epsilon), None, "ℓ2 mechanism, as all others")
    # A hair more noise than one release of the budget needs, for the rounding of its division.
    hair = 1 + 2.0**-40
    z = calibrate_noise(epsilon=math.inf if epsilon is None else epsilon, delta=delta, releases=1)
    wanted = family.last_sum(1 / z, n_units) if z > 0 else None
    if wanted is None or epsilon is None:
        return Price(Gaussian(z * hair), None, "Gaussian, which is as good here")
    if ledger:
        words = "Gaussian, as other runs of the account would pay for another"
        return Price(Gaussian(z * hair), None, words)
    dimension, share = wanted
    z, of_l2 = calibrate_with_l2(epsilon=epsilon, delta=delta, dimension=dimension, share=share)
    words = f"ℓ2 mechanism, if the search takes less than {share:.2g} of the budget"
    return Price(Gaussian(z * hair), L2Option(of_l2, dimension, share), words)


def stage(what: str) -> None:
    """Tell the person who waits what begins; public text only."""
    tell(f"Surrogate: {what}")


def say(what: str) -> None:
    """Tell who looks at the line how far it is; in a log it is a detail. Public text only."""
    tell(f"Surrogate: {what}", logging.DEBUG)
