r"""The polynomial surrogate: a private polynomial of the log-likelihood, times the exact prior.

Queries at tempered posteriors, each of which says where the next is made, and a last one with what is left
(:mod:`pymc_dp.surrogate.polynomial`). That polynomial times the exact prior is the posterior given all that was released.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pymc_dp.diagnostics import Diagnostics, Note
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.records.measurements import Measurements
from pymc_dp.steps.family import Drawn, say, stage
from pymc_dp.surrogate.normal.fit import prior_scales
from pymc_dp.surrogate.polynomial.basis import terms_of
from pymc_dp.surrogate.polynomial.diagnosis import LOST, diagnose
from pymc_dp.surrogate.polynomial.draws import draw, draw_prior
from pymc_dp.surrogate.polynomial.evaluation import check
from pymc_dp.surrogate.polynomial.fit import fit_polynomial
from pymc_dp.surrogate.polynomial.model import Found, Lost
from pymc_dp.surrogate.polynomial.settings import SETTINGS

_UNCHECKED = Diagnostics(
    family="polynomial",
    notes=(
        Note(
            "interrupted",
            "Interrupted before it was asked what the polynomial misses: nothing is known of how far to trust the draws.",
        ),
    ),
)


class PolynomialFamily:
    """A polynomial of the log-likelihood in all parameters.

    Parameters
    ----------
    compiled : CompiledModel
    tempering : float
        T.

    Raises
    ------
    UnsupportedModelError
        If it has too many parameters.
    """

    asks: Mapping[str, Any] = {}

    def __init__(self, compiled: CompiledModel, tempering: float):
        if terms_of(compiled.d, 3) > SETTINGS.most_terms:
            raise UnsupportedModelError(
                f'`family="polynomial"` is for models of few parameters, and this one has {compiled.d}: a cubic polynomial of '
                f"them has {terms_of(compiled.d, 3)} terms, each with noise. Leave `family` out."
            )
        self._compiled, self._tempering = compiled, tempering
        self.surrogate: Found | None = None
        self.finish: Callable[[], Drawn] | None = None

    def last_sum(self, mu: float, n_units: int | None) -> None:
        """See :class:`~pymc_dp.steps.family.Family`: there is none."""

    def compile(self) -> None:
        """See :class:`~pymc_dp.steps.family.Family`."""
        start, log_prior = self._compiled.parameters.start, self._compiled.log_public
        log_prior.many(start[None])
        # The first region has the prior's sds, but 1 at most.
        self._scales = np.minimum(prior_scales(log_prior, start), 1.0)

    def draw(self, measure: Measurements, draws: int, chains: int) -> Drawn:
        """See :class:`~pymc_dp.steps.family.Family`. Where nothing can be made of the releases, the draws are the prior's."""
        start, log_prior = self._compiled.parameters.start, self._compiled.log_public.many
        try:
            found, design = fit_polynomial(
                measure, log_prior, start, self._scales, tempering=self._tempering, on_progress=say
            )
            self.surrogate = found
            stage("drawing from what was released")
            try:
                drawn, plain = draw(found, log_prior, draws, chains)
            except KeyboardInterrupt:  # a matter of seconds, and nearly all is paid
                drawn, plain = draw(found, log_prior, draws, chains)
            fresh = plain[np.linspace(0, len(plain) - 1, SETTINGS.held_out).astype(int)]
            say("asking what was missed")
            try:
                return Drawn(drawn, diagnose(found, plain, *check(measure, design, fresh)))
            except KeyboardInterrupt:
                return Drawn(drawn, _UNCHECKED)
        except (Lost, np.linalg.LinAlgError, OverflowError):  # of released numbers
            self.surrogate = None
            return Drawn(draw_prior(log_prior, start, self._scales, draws, chains), LOST)
