"""What the releases of a polynomial surrogate say of themselves."""

import numpy as np

from pymc_dp.diagnostics import Diagnostics, Note
from pymc_dp.linalg import Vector
from pymc_dp.surrogate.polynomial.basis import leverage
from pymc_dp.surrogate.polynomial.model import Found
from pymc_dp.surrogate.polynomial.settings import SETTINGS

_MORE = "More records, a larger `epsilon`, or priors that say more would help."

LOST = Diagnostics(
    family="polynomial",
    notes=(
        Note(
            "lost",
            "Nothing could be made of what was released: noise is too large for so few records. The draws are about the "
            f"prior's, and what was not spent is not charged. {_MORE}",
        ),
    ),
)
"""Of a run whose releases are of no use."""


def diagnose(found: Found, plain: Vector, misfit: float, misfit_noise: float) -> Diagnostics:
    """Judge a polynomial by draws that are made of it, and by what was asked of the records at some of these.

    Parameters
    ----------
    found : Found
    plain : ndarray, shape (walkers, d)
        Draws without the spread that noise adds.
    misfit, misfit_noise : float
        Nats that the polynomial misses at fresh draws, as far as noise lets it be seen, and that noise.
    """
    s, surrogate, notes = SETTINGS, found.surrogate, []
    q = surrogate.basis(plain)
    reach = float(np.quantile(leverage(q), 0.99)) / surrogate.limit
    noise = surrogate.noise_over(q)
    if not found.arrived or found.reached < s.reached:
        notes.append(
            Note(
                "reached",
                f"The way to the posterior did not end before the budget did (it reached {found.reached:.3g} of the "
                f"log-likelihood): the last query was made too far around it, or in another place. {_MORE}",
            )
        )
    if reach > s.leverage_warning:
        notes.append(
            Note(
                "leverage",
                f"The draws lean on the border of what was asked (leverage {reach:.2f}): there may be "
                f"more of the posterior beyond. {_MORE}",
            )
        )
    if misfit > s.misfit_warning:
        notes.append(
            Note(
                "misfit",
                f"The log-likelihood is not a polynomial where the posterior is: it is missed by {misfit:.2g} nats. "
                "Another parametrisation, in which it is smoother, may help.",
            )
        )
    if noise > s.noise_warning:
        notes.append(
            Note(
                "log_density_noise",
                f"Noise changes the log-density of the draws by {noise:.1f} nats: their spread is mostly privacy "
                f"noise, and says so. {_MORE}",
            )
        )
    return Diagnostics(
        usable=not notes,
        family="polynomial",
        privacy_shift=surrogate.shift_of(plain, q),
        log_density_noise=noise,
        queries=found.rounds,
        reached=found.reached,
        leverage=reach,
        misfit=misfit,
        misfit_noise=misfit_noise,
        beyond_quadratic=found.high,
        degree=found.degree,
        notes=tuple(notes),
    )
