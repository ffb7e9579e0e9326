r"""DP polynomial: a private polynomial of the log-likelihood, and draws of the posterior that it gives.

The whole budget is one Gaussian release, spent in parts (:class:`~pymc_dp.privacy.purse.Purse`): looks at tempered
posteriors, each of which says where the next is made, and a last one with what is left. That polynomial times the
exact prior is the posterior given all that was released, and draws of it cost nothing.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pymc_dp.anchor.build import prior_scales
from pymc_dp.checks import fraction
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.linalg import Vector
from pymc_dp.polynomial.basis import terms_of
from pymc_dp.polynomial.build import build_surrogate
from pymc_dp.polynomial.draws import draw, draw_prior
from pymc_dp.polynomial.ladder import Lost
from pymc_dp.polynomial.looks import check
from pymc_dp.polynomial.model import Found
from pymc_dp.polynomial.settings import SETTINGS
from pymc_dp.polynomial.verdict import LOST, judge
from pymc_dp.privacy.purse import Purse
from pymc_dp.progress import tell
from pymc_dp.records.measurements import Measurements, PaidMeasurements
from pymc_dp.records.shards import Shards
from pymc_dp.steps.at_once import AtOnce, Drawn
from pymc_dp.steps.run import RunSettings

_UNCHECKED = "Interrupted before it was asked what the polynomial misses: nothing is known of how far to trust the draws."


class DPPolynomial(AtOnce):
    r"""Differentially private sampling by a private polynomial of the log-likelihood, and the exact prior.

    No setting but the budget is needed. For posteriors of one to three parameters and any smooth shape: bananas,
    rings, several modes. Where a normal law will do, :class:`~pymc_dp.DPAnchored` is better, and takes many more
    parameters.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    tempering, shards
        As in :class:`~pymc_dp.DPPenalty`.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`. The cost does not depend on how many draws there are.
        Nothing is tuned, but tuning draws are dropped.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or has too many parameters.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: those of :func:`~pymc_dp.polynomial.build.build_surrogate` and of
    :func:`~pymc_dp.polynomial.looks.check`, before the first chain, one Gaussian event together. **Guarantee**:
    :math:`\mu = 1/z` in :func:`~pymc_dp.privacy.accounting.gaussian_delta`.

    A run that has spent always returns its draws. If they are not to be trusted, ``privacy_usable`` is 0 in the
    result's attributes and a warning says why. R-hat cannot see it: all chains share the polynomial.

    A unit whose log-likelihood is not finite at one of a design's points counts as 0 there.
    """

    name = "dp_polynomial"
    made = "polynomial", "build_surrogate"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        tempering: float = 1.0,
        shards: Shards | None = None,
        **run: Unpack[RunSettings],
    ):
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        super().__init__(vars, instead={}, shards=shards, **run)
        d = self.compiled.d
        if terms_of(d, 3) > SETTINGS.most_terms:
            raise UnsupportedModelError(
                f"DPPolynomial is for models of few parameters, and this one has {d}: a cubic polynomial of them has "
                f"{terms_of(d, 3)} terms, each with noise. Use DPAnchored, the default of `pymc_dp.sample`."
            )
        self.pays_at_once({"tempering": self._tempering})
        self._curator = self.curator()
        self.surrogate: Found | None = None

    def build_surrogate(self) -> Found | None:
        """Release the polynomial, once, and draw from it; all chains of the run share it.

        Returns
        -------
        Found

        Raises
        ------
        PrivacyBudgetExceeded
            If the run does not fit the ledger.
        """
        self._release_once()
        return self.surrogate

    def _compile(self) -> None:
        self._scales = first_scales(self.compiled)

    def _spend(self, measure: PaidMeasurements, purse: Purse) -> Drawn:
        drawn, self.surrogate = draw_polynomial(
            measure, self.compiled, self._scales, self._tempering, self.iterations, self.run.chains
        )
        return drawn


def first_scales(compiled: CompiledModel) -> Vector:
    """Sds of the first region: the prior's, but 1 at most. Compiles what the polynomial needs of the prior."""
    start = compiled.parameters.start
    compiled.log_public.many(start[None])
    return np.minimum(prior_scales(compiled.log_public, start), 1.0)


def draw_polynomial(
    measure: Measurements,
    compiled: CompiledModel,
    scales: Vector,
    tempering: float,
    draws: int,
    chains: int,
) -> tuple[Drawn, Found | None]:
    """Spend all that is left on a polynomial, and draw from it.

    Parameters
    ----------
    measure : Measurements
        Spent afterwards.
    compiled : CompiledModel
    scales : ndarray, shape (d,)
        :func:`first_scales`.
    tempering : float
        T.
    draws, chains : int

    Returns
    -------
    drawn : Drawn
    found : Found or None
        None if nothing could be made of what was released: then the draws are the prior's.
    """
    start, log_prior = compiled.parameters.start, compiled.log_public.many
    try:
        found, design = build_surrogate(
            measure, log_prior, start, scales, tempering=tempering, on_progress=_tell
        )
        _tell("drawing from what was released")
        try:
            drawn, plain = draw(found, log_prior, draws, chains)
        except KeyboardInterrupt:  # a matter of seconds, and nearly all is paid
            drawn, plain = draw(found, log_prior, draws, chains)
        fresh = plain[np.linspace(0, len(plain) - 1, SETTINGS.held_out).astype(int)]
        _tell("asking what was missed")
        try:
            verdict = judge(found, plain, *check(measure, design, fresh))
        except KeyboardInterrupt:
            return Drawn(drawn, {"usable": 0.0}, [_UNCHECKED]), found
        return Drawn(drawn, verdict.report(found), verdict.warnings), found
    except (Lost, np.linalg.LinAlgError, OverflowError):  # of released numbers
        of_prior = draw_prior(log_prior, start, scales, draws, chains)
        return Drawn(of_prior, {"usable": 0.0}, [LOST]), None


def _tell(what: str) -> None:
    tell(f"Polynomial: {what}")
