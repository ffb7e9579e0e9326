"""The normal surrogate: a noise-aware Laplace approximation of the likelihood, times the exact prior."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.diagnostics import Diagnostics, Note
from pymc_dp.likelihood.compilation import compiling
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.cut import Cut
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import LogPrior
from pymc_dp.likelihood.simulated import CANNOT_BE_DRAWN
from pymc_dp.linalg import Vector
from pymc_dp.records.design import PublicDesign, public_design
from pymc_dp.records.measurements import Measurements
from pymc_dp.steps.family import Drawn, say, stage
from pymc_dp.steps.polynomial import PolynomialFamily
from pymc_dp.surrogate.normal.conditional import ConditionalLaw
from pymc_dp.surrogate.normal.design import bend, expected_shifts, fit_design
from pymc_dp.surrogate.normal.diagnosis import diagnose
from pymc_dp.surrogate.normal.draws import draw, draw_normal
from pymc_dp.surrogate.normal.fit import fit_normal
from pymc_dp.surrogate.normal.law import Law, Posterior, posterior_of
from pymc_dp.surrogate.normal.model import NormalSurrogate
from pymc_dp.surrogate.normal.read_part import Entries, ReadPart, read_part
from pymc_dp.surrogate.polynomial.switch import curvature

_SEED = 1
"""Of the draws: they are computed from released numbers, and anybody may do it again."""
MOST_CURVED = 3
"""Parameters up to which a polynomial is better than a normal law where that is off."""
_ENOUGH = 0.5
"""Share of the budget that must be left for a polynomial to be thought of."""
_NARROWER = 1e2, 1e4
"""Where noise drowned what is known of a direction, the region is as wide as the prior, and nothing is seen in it: then it is
asked in regions of so much smaller variance. Without, three rings of 16 were taken for normal, and two of them called usable."""
_PATIENCE = 12
"""Queries of a search: towards a mode that is about normal it takes three to seven, along a bent valley a hundred. They cost up to .03 each: with 15, too
little was left for the polynomial of a ring whose prior is flat."""

_BENT = 1.0
"""Change of the precision over a posterior sd, in logarithms, from which on a normal law is left to a polynomial where covariates
are public: it can be known without asking. What no quadratic has of such a likelihood is .4 nats. With fewer, as of three arms with 45
positive outcomes in 3,000 (.3 to .7), polynomials were of no use at ε = .5 and 3, and normal laws were."""
_BEFORE, _BEFORE_OF_NOISE = 0.16, 16.0
"""Share that is kept for what comes before the last sum, and that of d/(n μ²), the square of a release's error in posterior sds
but for a factor: what a search takes (`benchmarks/surrogate_limit.py`)."""
_BEFORE_UNKNOWN = 0.06
"""The same where the number of units is private."""
_BEFORE_OF_DESIGN = 0.03
"""The same where covariates are public: three queries of .004, .008 and .016."""
_MOST_BEFORE, _MOST_LAST = 0.25, 8
"""Share, and dimension, from which on such a sum is no better than a Gaussian one of the rest: with .25 the ratio of their errors,
of all of the budget's, is .84 in four dimensions at ε = 1, and .9 in eight."""

_OBSERVED = Note(
    "model",
    f"{CANNOT_BE_DRAWN}, so how sharp the likelihood is "
    "was taken from the squares of its slopes. Where the model is wrong, intervals may be a quarter too narrow or too wide.",
)
_CUT_SHORT = Note(
    "interrupted",
    "The draws are of the posterior's normal approximation, as the run was interrupted.",
)


class NormalFamily:
    """A normal law of the likelihood, in the parameters that it reads.

    Parameters
    ----------
    compiled : CompiledModel
    tempering : float
        T.
    nuts_sampler : str
        Who draws from law times prior.
    units_known : bool
        Whether the units are in the model, and their number is public, so that a public design can be looked at.
    rows : list of ndarray, optional
        Made-up records in place of the model's, which are not looked at then.
    """

    asks: Mapping[str, Any] = {"derivatives": 1, "scores": True}

    def __init__(
        self,
        compiled: CompiledModel,
        tempering: float,
        nuts_sampler: str,
        units_known: bool,
        rows: list[NDArray[Any]] | None = None,
    ):
        self._compiled, self._tempering, self._nuts_sampler = compiled, tempering, nuts_sampler
        self._units_known, self._rows = units_known, rows
        self.surrogate: Any = None
        self.finish: Callable[[], Drawn] | None = None

    @cached_property
    def _part(self) -> ReadPart | None:
        return read_part(self._compiled)

    @cached_property
    def _conditional(self) -> ConditionalLaw | None:
        """What draws, if the likelihood reads a part of θ only, or other numbers, and the rest decides how these lie."""
        if self._part is None:
            return None
        with compiling():
            law = ConditionalLaw(self._compiled, self._part)
        return law if law.covers_funnels or isinstance(self._part.of, Cut) else None

    def last_sum(self, mu: float, n_units: int | None) -> tuple[int, float] | None:
        """See :class:`~pymc_dp.steps.family.Family`."""
        d = self.d
        if self._units_known and self._compiled.roles.public_design:
            return (d, _BEFORE_OF_DESIGN) if d <= _MOST_LAST else None
        share = _BEFORE + (_BEFORE_OF_NOISE * d / (mu**2 * n_units) if n_units else _BEFORE_UNKNOWN)
        return (d, share) if d <= _MOST_LAST and share <= _MOST_BEFORE else None

    @cached_property
    def _design(self) -> PublicDesign | None:
        whole = public_design(self._compiled, self._rows) if self._units_known else None
        return whole if whole is None or self._part is None else whole.of_part(self._part.reading)

    @property
    def d(self) -> int:
        """How many numbers the likelihood reads."""
        return self._compiled.d if self._part is None else len(self._part.labels)

    @property
    def read(self) -> ParameterSpace | ReadPart:
        """What names the parameters that the likelihood reads."""
        return self._compiled.parameters if self._part is None else self._part

    def diagnosed(self, found: NormalSurrogate) -> Diagnostics:
        """What a search says of itself, by the names of what was searched."""
        return diagnose(found, list(self.read.labels), self.read.largest)

    @property
    def _prior(self) -> tuple[LogPrior, Vector]:
        """Of what the likelihood reads, and its initial point."""
        if self._part is None:
            return self._compiled.log_public, self._compiled.parameters.start
        return self._part.prior, self._part.reading.start

    def compile(self) -> None:
        """See :class:`~pymc_dp.steps.family.Family`."""
        _ = self._part, self._design, self._conditional

    def expected_shifts(self, noise: float) -> tuple[float, float] | None:
        """At the initial point: see :func:`~pymc_dp.surrogate.normal.design.expected_shifts`; None without a public design."""
        if self._design is None:
            return None
        return expected_shifts(self._design, *self._prior, noise, self._tempering)

    def draw(self, measure: Measurements, draws: int, chains: int) -> Drawn:
        """See :class:`~pymc_dp.steps.family.Family`."""
        return self.fitted(measure, draws, chains)

    def fitted(
        self,
        measure: Measurements,
        draws: int,
        chains: int,
        watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
    ) -> Drawn:
        """Draws of the law that all of the budget buys, while `watch` looks on; it may raise."""
        found = self.search(measure, watch, say)
        observed = () if self._compiled.simulated is not None else (_OBSERVED,)
        return self._drawn(found, draws, chains, observed)

    def search(
        self,
        measure: Measurements,
        watch: Callable[[int, Posterior | None], None] = lambda rounds, posterior: None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> NormalSurrogate:
        """What all of the budget buys, in the parameters that the likelihood reads; nothing is drawn."""
        prior, start = self._prior
        if self._part is not None:
            measure = self._part.measurements(measure)
        fit = fit_normal if self._design is None else partial(fit_design, design=self._design)
        return fit(
            measure, prior, start, tempering=self._tempering, watch=watch, on_progress=on_progress
        )

    def of_law(self, law: Law, draws: int, chains: int) -> Drawn:
        """Draws of a law that is released already, times the prior. Asks nothing."""
        of = None if self._part is None else self._part.of
        of_read = of.of(law) if isinstance(of, Entries) else law
        found = NormalSurrogate.known(posterior_of(of_read, self._prior[0], of_read.centre))
        return self._drawn(found, draws, chains)

    def _drawn(
        self, found: NormalSurrogate, draws: int, chains: int, notes: tuple[Note, ...] = ()
    ) -> Drawn:
        compiled, of = self._compiled, None if self._part is None else self._part.of
        whole = of.whole(found) if isinstance(of, Entries) else found
        law = whole.posterior.law
        text = "" if isinstance(of, Cut) else law.to_json(compiled.parameters.labels)
        at_once = partial(draw_normal, whole.posterior, draws, chains)
        sample = partial(draw, whole, compiled.log_public, draws, chains, self._nuts_sampler)
        if self._conditional is not None:
            found = self._conditional.judged(found)
            at_once = partial(self._conditional.approximated, draws, chains, _SEED)
            sample = partial(self._conditional.sample, draws, chains, _SEED, self._nuts_sampler)
        self.surrogate = found if isinstance(of, Cut) else whole

        def judged(*more: Note) -> Diagnostics:
            said = self.diagnosed(found)
            return replace(said, notes=(*said.notes, *notes, *more))

        self.finish = lambda: Drawn(at_once(), judged(_CUT_SHORT), text)
        diagnostics = judged()
        stage("compiling what was released, and drawing from it: no data are read any more")
        drawn = sample() if found.arrived else at_once()  # the prior need not be proper
        return Drawn(drawn, diagnostics, text)


class _Curved(Exception):
    """A normal law will not do. A function of releases."""


class AutomaticFamily(NormalFamily):
    """A normal law, or a polynomial where a released number says that a normal law will not do.

    Once the search has arrived, one query of the polynomial's kind says how far the log-likelihood is from quadratic
    (:func:`~pymc_dp.surrogate.polynomial.switch.curvature`). If that stands out of its noise, the rest of the budget goes to a
    polynomial. A search that does not arrive soon is taken for one along a curve, too.
    """

    @cached_property
    def _part(self) -> ReadPart | None:
        # A polynomial is of θ, and has any smooth shape.
        return read_part(self._compiled, entries_only=True)

    def compile(self) -> None:
        """See :class:`~pymc_dp.steps.family.Family`."""
        super().compile()
        self._polynomial = PolynomialFamily(self._compiled, self._tempering)
        self._polynomial.compile()

    def draw(self, measure: Measurements, draws: int, chains: int) -> Drawn:
        """See :class:`~pymc_dp.steps.family.Family`."""
        nats: float | None = None

        def watch(rounds: int, posterior: Posterior | None) -> None:
            nonlocal nats
            if self._part is not None or measure.spent > 1 - _ENOUGH:
                return
            if posterior is None:
                if rounds >= _PATIENCE:
                    raise _Curved
                return
            if self._design is not None:
                if bend(self._design, self._prior[0], posterior, self._tempering) > _BENT:
                    raise _Curved
                return
            exact = np.asarray(np.linalg.inv(posterior.exact))
            known = posterior.covariance, exact, *(exact / k for k in _NARROWER)
            log_prior = self._compiled.log_public.many
            seen = curvature(measure, log_prior, posterior.mean, known, self._tempering)
            nats = seen.nats
            if seen.is_seen:
                raise _Curved

        try:
            drawn = self.fitted(measure, draws, chains, watch)
        except _Curved:
            drawn = self._polynomial.draw(measure, draws, chains)
            self.surrogate = self._polynomial.surrogate
        return drawn._replace(diagnostics=replace(drawn.diagnostics, curvature=nats))
