"""What a run that has released its polynomial should be told of it."""

from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector
from pymc_dp.polynomial.basis import leverage
from pymc_dp.polynomial.model import Found
from pymc_dp.polynomial.settings import SETTINGS

_MORE = "More records, a larger `epsilon`, or priors that say more would help."

LOST = (
    "Nothing could be made of what was released: noise is too large for so few records. The draws are about the "
    f"prior's, and what was not spent is not charged. {_MORE}"
)


@dataclass(frozen=True)
class Verdict:
    """The alarms. Functions of releases.

    Parameters
    ----------
    leverage : float
        The draws' leverage, 99 % point, over the most at which the polynomial may be used.
    arrived : bool
        Whether the last look was made where the posterior is, as far as could be told.
    reached : float
        β that the rounds have reached.
    misfit : float
        Nats that the polynomial misses at fresh draws, as far as noise lets it be seen.
    misfit_noise : float
        Its noise.
    high : float
        Nats of degree 3 and more: how far from normal the log-likelihood is.
    tilt : float
        Nats of noise over the draws.
    """

    leverage: float
    arrived: bool
    reached: float
    misfit: float
    misfit_noise: float
    high: float
    tilt: float

    @property
    def warnings(self) -> list[str]:
        """For people."""
        s, found = SETTINGS, []
        if not self.arrived or self.reached < s.reached:
            found.append(
                f"The way to the posterior did not end before the budget did (it reached {self.reached:.3g} of the "
                f"log-likelihood): the last look was made too far around it, or in another place. {_MORE}"
            )
        if self.leverage > s.leverage_warning:
            found.append(
                f"The draws lean on the border of what was looked at (leverage {self.leverage:.2f}): there may be "
                f"more of the posterior beyond. {_MORE}"
            )
        if self.misfit > s.misfit_warning:
            found.append(
                f"The log-likelihood is not a polynomial where the posterior is: it is missed by {self.misfit:.2g} nats. "
                "Another parametrisation, in which it is smoother, may help."
            )
        if self.tilt > s.tilt_warning:
            found.append(
                f"Noise changes the log-density of the draws by {self.tilt:.1f} nats: their spread is mostly privacy "
                f"noise, and says so. {_MORE}"
            )
        return found

    def report(self, found: Found) -> dict[str, float | str]:
        """For a result's metadata."""
        return {
            "usable": float(not self.warnings),
            "tilt": self.tilt,
            "reached": self.reached,
            "leverage": self.leverage,
            "misfit": self.misfit,
            "misfit_noise": self.misfit_noise,
            "high": self.high,
            "rounds": found.rounds,
            "degree": found.degree,
        }


def judge(found: Found, plain: Vector, misfit: float, misfit_noise: float) -> Verdict:
    """Judge a polynomial by draws that are made of it, and by what was asked of the records at some of these."""
    surrogate = found.surrogate
    q = surrogate.basis(plain)
    return Verdict(
        leverage=float(np.quantile(leverage(q), 0.99)) / surrogate.limit,
        arrived=found.arrived,
        reached=found.reached,
        misfit=misfit,
        misfit_noise=misfit_noise,
        high=found.high,
        tilt=surrogate.noise_over(q),
    )
