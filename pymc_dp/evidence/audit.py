"""Audits: a lower bound on ε, from telling the outputs on two neighbouring data sets apart.

A failed audit refutes a claim; a passed one proves nothing. What the bound is made of is in
:mod:`pymc_dp.evidence.bounds`.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_dp.checks import check_delta, check_epsilon, fraction, whole
from pymc_dp.evidence.bounds import Bound, discriminant, lower_bound
from pymc_dp.evidence.neighbours import check_neighbours, data_of, data_restored, replaced
from pymc_dp.evidence.runs import alike, numbers_of, runs_of
from pymc_dp.exceptions import PrivacyConfigurationError, PrivacyError, refuses_from_outside
from pymc_dp.likelihood.roles import find_roles
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.report.tables import Table
from pymc_dp.steps.base import PrivateStep

# Of the runs on each data set. The rest tests.
_FIT, _CHOOSE = 0.25, 0.25
_LEAST_RUNS = 20

_HUGE = float(np.finfo(np.float64).max)

_REFUSED = {
    "ledger": "an audit is for synthetic or public data, and is charged to no account",
    "noise_source": "a claim rests on the secure noise only",
    "chains": "each run is one chain",
    "model": "the model is the first argument",
}


@dataclass(frozen=True, repr=False)
class Audit(Table):
    """What an audit found. Text, or HTML in notebooks.

    Parameters
    ----------
    subject : str
        What was audited.
    epsilon, delta : float
        The claim.
    bound : Bound
        On ε, from the definition of differential privacy alone.
    gaussian_bound : Bound, optional
        On ε, if the claim is one of Gaussian differential privacy.
    confidence : float
        Of both bounds together.
    runs : int
        On each data set.
    """

    title = "Privacy audit"

    subject: str
    epsilon: float
    delta: float
    bound: Bound
    gaussian_bound: Bound | None
    confidence: float
    runs: int

    @property
    def epsilon_lower(self) -> float:
        """The larger of the lower bounds on ε."""
        return max(b.epsilon for b in (self.bound, self.gaussian_bound) if b is not None)

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return self.epsilon_lower > self.epsilon

    @property
    def statement(self) -> str:
        """The finding in a sentence or two."""
        found = f"At {self.confidence:.4g} confidence, ε is at least {self.epsilon_lower:.3g}"
        if self.violated:
            return f"VIOLATED: the claim of ε = {self.epsilon:g} is false. {found}."
        return (
            f"Not refuted. {found}; {self.epsilon:g} was claimed. This proves nothing: another pair of "
            "data sets, or a better guess, may show more."
        )

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and value, in order."""

        def shown(b: Bound) -> str:
            f, t = b.false_positive_rate, b.true_positive_rate
            return f"ε ≥ {b.epsilon:.4g} (false positives {f:.2%}, true positives {t:.2%})"

        rows = [
            ("Audited", self.subject),
            ("Claim", f"ε = {self.epsilon:.6g} at δ = {self.delta:.3g}"),
            ("Runs", f"{self.runs:,} on each of two neighbouring data sets"),
            ("Confidence", f"{self.confidence:.4g}"),
            ("Lower bound", shown(self.bound)),
        ]
        if self.gaussian_bound is not None:
            rows.append(("Lower bound, Gaussian", shown(self.gaussian_bound)))
        return [*rows, ("Verdict", "VIOLATED" if self.violated else "not refuted")]


@refuses_from_outside
def audit(
    subject: pm.Model | Callable[..., Any],
    data: Any = None,
    neighbour: Any = None,
    *,
    canary: Any = None,
    record: int | ArrayLike = 0,
    step: type[PrivateStep] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    draws: int = 1,
    tune: int = 0,
    runs: int = 1000,
    confidence: float = 0.95,
    statistic: Callable[[Any], float] | None = None,
    gaussian: bool = False,
    random_seed: int = 0,
    **settings: Any,
) -> Audit:
    r"""Bound ε from below by telling two neighbouring data sets apart. For synthetic or public data.

    Runs a private step, or any other mechanism, many times on each of two data sets, learns to guess
    from one half of the outputs which data set they come from, and counts right and wrong guesses on
    the other half.

    Parameters
    ----------
    subject : Model or callable
        A model whose records are all in ``pm.Data``; or ``data -> Model``; or, without `step`, a
        mechanism ``(data, repetition) -> number or vector`` with noise of its own.
    data : mapping, array or other
        The first data set. Default for a model: its own, as a mapping of ``pm.Data`` names to values.
    neighbour : as `data`
        The second one, which differs in one unit; with ``neighbours="add-or-remove"`` it is the first without
        one, or the other way round: :func:`~pymc_dp.evidence.neighbours.without` makes it.
    canary : mapping, array or number, optional
        Instead of `neighbour`: the row that replaces `record` in `data`, for each array that changes.
    record : int or array of int
        Row, or rows of one unit, that `canary` replaces.
    step : type, optional
        The algorithm, such as :class:`~pymc_dp.DPPenalty`.
    epsilon, delta : float
        The claim. `delta` defaults to 0.1 / units for a step.
    draws, tune : int
        Of each run, which is one chain.
    runs : int
        Runs on each data set.
    confidence : float
        Probability of reporting no more than the true ε.
    statistic : callable, optional
        What to guess by: ``run -> number``, with everything released in ``draws``, ``stats``,
        ``settings``, ``diagnostics`` and ``stopped``; for a mechanism, ``output -> number``. Default: a quadratic discriminant of all of
        it, fitted to a quarter of the runs.
    gaussian : bool
        For a mechanism: whether the claim is one of Gaussian differential privacy. Of a step it is
        known.
    random_seed : int
        Public seed, the same for all runs: an adversary knows it. The noise is never seeded.
    **settings
        Of the step.

    Returns
    -------
    Audit
        With ``epsilon_lower``, ``epsilon``, and ``violated``.

    Raises
    ------
    PrivacyConfigurationError
        If the data sets are not neighbours, or a setting is out of range.

    Warnings
    --------
    The report compares exact data sets over many runs, so it is not private and no account is charged.
    Never audit on records that need protection.

    Notes
    -----
    A bound that is below the claim proves nothing, and one above it refutes the claim. Related: Jagielski,
    Ullman and Oprea (2020); Nasr et al. (2023); Steinke, Nasr and Jagielski (2023), who audit in a
    single run at the price of a weaker bound.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng()
    >>> def laplace(data, repetition):
    ...     return data.sum() + rng.laplace(scale=1.0)
    >>> audit(laplace, np.zeros(9), canary=1.0, epsilon=1.0, delta=1e-6).violated
    False
    """
    runs = whole("runs", runs, _LEAST_RUNS)
    confidence = fraction("confidence", confidence)
    for name in set(settings) & set(_REFUSED):
        raise PrivacyConfigurationError(
            f"`{name}` cannot be used in an audit: {_REFUSED[name]}. Leave it out."
        )
    if data is None and isinstance(subject, pm.Model):
        data = data_of(subject)
    if (neighbour is None) == (canary is None):
        raise PrivacyConfigurationError(
            "Give the second data set, either as `neighbour` or as the `canary` that replaces `record`."
        )
    pair = data, replaced(data, canary, record) if neighbour is None else neighbour

    released: list[list[Any]]
    if step is None:
        name = getattr(subject, "__name__", type(subject).__name__)
        claim = _claim_of_mechanism(subject, epsilon, delta, settings)
        released = [[_as_vector(subject(one, k)) for k in range(runs)] for one in pair]
        numbers = [*released[0], *released[1]]
    else:
        plan = {"draws": draws, "tune": tune, "epsilon": epsilon, "delta": delta, **settings}
        guarantee, released = _audited_runs(subject, pair, step, plan, runs, random_seed)
        name = f"{guarantee.step}, {draws} draws" + (f", {tune} tuning" if tune else "")
        claim = guarantee.epsilon, guarantee.delta
        gaussian = all(isinstance(e, Gaussian) for e in guarantee.total)
        numbers = numbers_of([*released[0], *released[1]])
    if statistic is not None:
        numbers = [_as_vector(float(statistic(x))) for some in released for x in some]

    scores, choose = _scores(*np.split(_stacked(numbers), 2))
    # Two bounds are right together if each errs half as often.
    each = 1 - (1 - confidence) / 2 if gaussian else confidence
    bound = partial(lower_bound, *scores, delta=claim[1], confidence=each, choose=choose)
    return Audit(
        subject=name,
        epsilon=claim[0],
        delta=claim[1],
        bound=bound(),
        gaussian_bound=bound(gaussian=True) if gaussian else None,
        confidence=confidence,
        runs=runs,
    )


def _claim_of_mechanism(
    subject: Any, epsilon: float | None, delta: float | None, settings: dict[str, Any]
) -> tuple[float, float]:
    if isinstance(subject, pm.Model) or settings:
        raise PrivacyConfigurationError(
            "An audit of a model needs `step`, such as `step=DPPenalty`; without it the first argument "
            f"is a mechanism, which has no settings. Found {sorted(settings)}."
        )
    if epsilon is None or delta is None:
        raise PrivacyConfigurationError(
            "An audit of a mechanism needs its claim: `epsilon` and `delta`."
        )
    return check_epsilon(epsilon), check_delta(delta, zero_allowed=True)


def _audited_runs(
    subject: Any,
    pair: tuple[Any, Any],
    step: type[PrivateStep],
    plan: dict[str, Any],
    runs: int,
    seed: int,
) -> tuple[Guarantee, list[list[Any]]]:
    """The claim, and the runs on both data sets. The step is built, and compiled, once for each."""
    if not (isinstance(step, type) and issubclass(step, PrivateStep)):
        raise PrivacyConfigurationError(
            "`step` is a class, such as `step=DPPenalty`; its settings are further keywords."
        )

    def model_of(one: Any) -> pm.Model:
        if not isinstance(subject, pm.Model):
            return subject(one)
        pm.set_data(dict(one), model=subject)
        return subject

    released: list[list[Any]] = []
    make: Callable[..., PrivateStep] = step
    with data_restored(subject), _quiet():
        first, second = (
            find_roles(model_of(one), plan.get("unit"), plan.get("public", ())) for one in pair
        )
        check_neighbours(first, second, plan.get("neighbours", SUBSTITUTE_ONE.name))
        for one in pair:
            built = make(chains=1, model=model_of(one), **plan)
            released.append(list(runs_of(built, runs, seed)))
    if all(run.stopped for some in released for run in some):
        raise PrivacyError(f"Every run stopped: {released[0][0].stopped}")
    return built.guarantee, alike(released)


def _as_vector(output: Any) -> Vector:
    return np.atleast_1d(np.asarray(output, dtype=np.float64)).ravel()


def _stacked(outputs: list[Vector]) -> Vector:
    """One row per output, of finite numbers: what is not a number counts as the smallest."""
    if len({len(x) for x in outputs}) != 1:
        raise PrivacyConfigurationError(
            "The outputs have different lengths. Return vectors of one length, or give a `statistic`."
        )
    return np.nan_to_num(np.array(outputs), nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)


def _scores(x0: Vector, x1: Vector) -> tuple[tuple[Vector, Vector], float]:
    """Scores of the runs that nothing was fitted to, and the part of them that may choose."""
    if x0.shape[1] == 1:
        return (x0[:, 0], x1[:, 0]), _FIT + _CHOOSE
    fit = int(_FIT * len(x0))
    score = discriminant(x0[:fit], x1[:fit])
    return (score(x0[fit:]), score(x1[fit:])), _CHOOSE / (1 - _FIT)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what each of the many runs would log."""
    log = logging.getLogger("pymc.dp")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
