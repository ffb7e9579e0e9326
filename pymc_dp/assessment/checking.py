"""Posterior predictive checks: clipped statistics of the people, and of people drawn from the model, with the same noise."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.simulator import SimulatorRV
from scipy import special

from pymc_dp.assessment.paid import OwnRecords, Payment, beside_draws
from pymc_dp.assessment.predictive import posterior_and_model
from pymc_dp.checks import whole
from pymc_dp.compat import fast_draws
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.batches import UnitChunks
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.outcomes import Outcomes
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.progress import doing
from pymc_dp.records.queries import Units, Vector
from pymc_dp.report.tables import Table
from pymc_dp.results import released

Statistic = Callable[[Any], float]

_OF_UNITS = 0.01  # of the budget, where their number is private
_UNITS_AT_ONCE = 1024


@dataclass(frozen=True, repr=False)
class PredictionChecks(Table):
    """Means of clipped statistics, observed and replicated, with noise of one size. Shows as a table.

    Parameters
    ----------
    names : tuple of str
        Of the statistics.
    observed : ndarray, shape (statistics,)
        Mean over the people.
    replicated : ndarray, shape (statistics, replicates)
        The same of each data set that was drawn from the model.
    noise_sd : ndarray, shape (statistics,)
        Standard deviation of the noise in each of all these.
    guarantee : Guarantee
        Of this release alone; the draws have their own.
    """

    title = "Statistics of the people, and of people drawn from the model"

    names: tuple[str, ...]
    observed: NDArray[np.float64]
    replicated: NDArray[np.float64]
    noise_sd: NDArray[np.float64]
    guarantee: Guarantee

    @property
    def mean(self) -> NDArray[np.float64]:
        """Of the replicated ones."""
        return np.asarray(self.replicated.mean(axis=1))

    @property
    def sd(self) -> NDArray[np.float64]:
        """Of the replicated ones, as another one would differ from their mean; the noise is in it."""
        J = self.replicated.shape[1]
        return np.asarray(self.replicated.std(axis=1, ddof=1) * math.sqrt(1 + 1 / J))

    @property
    def p(self) -> NDArray[np.float64]:
        """Posterior predictive p-values: how probable a replicated statistic is that exceeds the observed one.

        By a t distribution, as replicates are few. Near 0 or near 1 the model does not describe the people.
        """
        J = self.replicated.shape[1]
        return np.asarray(special.stdtr(J - 1, (self.mean - self.observed) / self.sd))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table as text."""
        rows: list[tuple[str, ...]] = [("", "observed", "replicated", "sd", "of which noise", "p")]
        columns = self.names, self.observed, self.mean, self.sd, self.noise_sd, self.p
        for name, *numbers, p in zip(*columns, strict=True):
            rows.append((name, *(f"{x:.4g}" for x in numbers), f"{p:.3f}"))
        return rows

    @property
    def statement(self) -> str:
        """How to read the table, and what is promised."""
        return (
            f"Means over all people, and over people drawn from the model in {self.replicated.shape[1]} replicated data "
            "sets, with noise of one size in all of them. p is the probability that a replicated one is larger: near "
            f"0 or 1 the model misses this statistic. {beside_draws(self.guarantee)}"
        )


@refuses_from_outside
def check_predictions(
    idata: Any,
    model: pm.Model | CompiledModel,
    statistics: Mapping[str, tuple[Statistic, tuple[float, float]]],
    *,
    epsilon: float,
    delta: float | None = None,
    neighbours: str = SUBSTITUTE_ONE.name,
    unit: str | int | ArrayLike | None = None,
    public: Sequence[str] = (),
    replicates: int = 10,
    ledger: PrivacyLedger | None = None,
    noise_source: NoiseSource | None = None,
) -> PredictionChecks:
    r"""Posterior predictive checks, private: statistics of the people beside those of people drawn from the model.

    A statistic is a number for every unit, from its outcomes alone, clipped to a public range. For each of J
    draws of the posterior, outcomes of all units are drawn from the model, at their own covariates. One release
    gives the K means over units of the observed statistics, and those of the J replicated data sets: all
    have the same clipping and independent noise of the same size, so that under the model they are exchangeable.

    **Neighbouring relation**: `neighbours`. **Sensitivity**: :math:`\kappa \sqrt{K (J + 1)}` in L2 norm, in half
    ranges (κ = 2 if a unit is replaced, 1 if it comes or goes): each of a unit's K (J + 1) numbers lies in
    [-1, 1], and its replicated outcomes are a function of its records and of random words of its own.
    **Guarantee**: (ε, δ)-DP, one Gaussian release, given the draws, which have guarantees of their own.

    Parameters
    ----------
    idata : InferenceData or DataTree
        Released draws of `model`.
    model : Model or CompiledModel
        The one that was sampled, with its records.
    statistics : mapping
        From names to a function and its range: the function takes one unit's outcomes, an array with a row for
        each of its records (a dictionary of these by name, if several variables are observed), and gives a
        number; the range ``(low, high)`` is where that is clipped to. Both are public: choose them without looking
        at the data.
    epsilon, delta : float
        Budget of the checks, beside what the draws have cost. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    neighbours, unit, public
        As in ``pymc_dp.sample``.
    replicates : int
        J. More say better how much statistics vary, and put more noise on all: its standard deviation grows with
        :math:`\sqrt{J + 1}`.
    ledger : PrivacyLedger, optional
        Account of the data set.
    noise_source : NoiseSource, optional
        For tests only.

    Returns
    -------
    PredictionChecks
        :func:`~pymc_dp.plot_checks` draws them.

    Raises
    ------
    PrivacyError
        If `idata` has not been released.
    UnsupportedModelError, PrivacyConfigurationError
        If the model's outcomes cannot be drawn, a statistic fails on outcomes of zeros, or a setting is out of
        range. Nothing is spent.
    PrivacyBudgetExceeded
        If it does not fit the ledger. Nothing has been charged or read then.

    Notes
    -----
    A unit's statistic that cannot be computed counts as the middle of its range. People are drawn one by one, so
    that no one's random numbers depend on another's records: about 10 s for 20,000 of them.

    Examples
    --------
    >>> check_predictions(                                             # doctest: +SKIP
    ...     idata, model, {"never ill": (lambda y: (y == 0).mean(), (0, 1))}, epsilon=0.5
    ... )
    """
    attrs, groups = released(idata, "pm.sample_posterior_predictive")
    compiled = compile_model(model, unit=unit, public=public)
    replicates = whole("replicates", replicates, 2)
    checked = {name: _Checked(name, *given) for name, given in _pairs(statistics).items()}
    size = len(checked) * (replicates + 1)
    if size > MAX_DIMENSION:
        raise PrivacyConfigurationError(
            f"`statistics` times `replicates` + 1 can be at most {MAX_DIMENSION:,} for one release. Found {size:,}."
        )
    payment = Payment(
        "check_predictions", compiled, epsilon=epsilon, delta=delta, neighbours=neighbours,
        ledger=ledger, noise_source=noise_source,
    )  # fmt: skip
    posterior_and_model(compiled, attrs, "`idata`", payment.noise.secure)
    _refuse_functions(compiled.model)
    with doing("Compiling the outcomes"):
        outcomes = Outcomes(
            compiled.model, compiled.roles, **fast_draws(compiled.model.observed_RVs)
        )
        points = list(outcomes.points(groups["posterior"]))
        some = np.linspace(0, len(points) - 1, replicates).round().astype(int)
        _ = compiled.likelihood  # with its checks that records are independent
        records = _Replications(
            compiled, outcomes, [points[k] for k in some], list(checked.values()), payment.noise
        )
        records.try_on_zeros()
    measure = payment.measure(records)
    n, _ = measure.units(_OF_UNITS)
    bound = math.sqrt(size)
    with doing("Drawing people from the model"), np.errstate(all="ignore"):
        total, sd = measure.sum(_Standing(size), bound, 1 - measure.spent)
    means = total.reshape(len(checked), replicates + 1) / max(n, 1.0)
    middle, half = (
        np.array([getattr(c, what) for c in checked.values()]) for what in ("middle", "half")
    )
    means = middle[:, None] + half[:, None] * means
    return PredictionChecks(
        names=tuple(checked), observed=means[:, 0], replicated=means[:, 1:],
        noise_sd=half * sd / max(n, 1.0), guarantee=payment.guarantee,
    )  # fmt: skip


class _Checked:
    """A statistic on its range's own scale, from -1 to 1."""

    def __init__(self, name: str, function: Statistic, between: tuple[float, float]):
        low, high = (float(end) for end in between)
        if not callable(function) or not (-math.inf < low < high < math.inf):
            raise PrivacyConfigurationError(
                f"The statistic {name!r} needs a function of a unit's outcomes and a finite range, low before high: "
                f"{{{name!r}: (lambda y: y.mean(), (0, 1))}}."
            )
        self.name, self.function = name, function
        self.middle, self.half = (low + high) / 2, (high - low) / 2

    def __call__(self, outcomes: Any) -> float:
        # An array of one number, such as `y > 2` of one record, is a number.
        number = (np.asarray(self.function(outcomes), float).item() - self.middle) / self.half
        return min(max(number, -1.0), 1.0) if number == number else 0.0


def _pairs(statistics: Any) -> dict[str, tuple[Any, Any]]:
    try:
        found = {
            str(name): (function, tuple(between))
            for name, (function, between) in statistics.items()
        }
        if found and all(len(between) == 2 for _, between in found.values()):
            return found
    except (AttributeError, TypeError, ValueError):
        pass
    raise PrivacyConfigurationError(
        "`statistics` takes a function of a unit's outcomes and a range for each name: "
        "{'mean': (lambda y: y.mean(), (0, 1))}."
    )


def _refuse_functions(model: pm.Model) -> None:
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, CustomDistRV | SimulatorRV):
            raise UnsupportedModelError(
                f"{rv.name!r} is drawn by a function of yours, which may have captured records. Write it as "
                "`pm.CustomDist` with `dist=`."
            )


@dataclass(frozen=True)
class _Standing:
    """Where a unit's statistics stand in their ranges, observed and in every replicate."""

    dimension: int

    def terms(self, records: "_Replications", units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        return records.standings()


class _Replications(OwnRecords):
    """Units' outcomes, and outcomes drawn for them."""

    def __init__(
        self,
        compiled: CompiledModel,
        outcomes: Outcomes,
        points: Sequence[tuple[NDArray[Any], ...]],
        statistics: Sequence[_Checked],
        noise: NoiseSource,
    ):
        self._likelihood, self._roles = compiled.likelihood, compiled.roles
        self._outcomes, self._points, self._statistics = outcomes, points, statistics
        self._noise = noise

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self._roles.n_units

    def try_on_zeros(self) -> None:
        """Refuse statistics that cannot take outcomes at all. Reads no data but their type and shape."""
        zeros = [
            np.zeros_like(
                leaf.values,
                shape=tuple(1 if k == leaf.axis else s for k, s in enumerate(leaf.values.shape)),
            )
            for leaf in self._roles.record_data
        ]
        outcomes = self._named(self._outcomes.observed(1, zeros))
        for statistic in self._statistics:
            try:
                statistic(outcomes)
            except Exception as error:  # noqa: BLE001  it is the user's
                raise PrivacyConfigurationError(
                    f"The statistic {statistic.name!r} fails on one record with outcomes of zero "
                    f"({type(error).__name__}: {error}). It takes an array with a row for each record of a unit, and "
                    "gives a number."
                ) from None

    def standings(self) -> Iterator[Vector]:
        """Of the units in their order, chunks of shape (units, statistics × (replicates + 1)). Private."""
        n = self.n_units
        words = self._noise.words(2 * n, (0, 0, 0)).reshape(n, 2)
        one_by_one = UnitChunks(self._roles.unit_of_record, self._roles.n_records, 1).all()
        chunk = np.empty((min(n, _UNITS_AT_ONCE), len(self._statistics), len(self._points) + 1))
        filled = 0
        for unit, one in enumerate(one_by_one):
            chunk[filled] = self._of_unit(self._likelihood.rows(one.records), words[unit])
            filled += 1
            if filled == len(chunk) or unit == n - 1:
                yield chunk[:filled].reshape(filled, -1)
                filled = 0

    def _of_unit(self, rows: Sequence[NDArray[Any]], words: NDArray[np.uint64]) -> Vector:
        leaf = self._roles.record_data[0]
        m = rows[0].shape[leaf.axis]
        self._outcomes.seed(words)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns = [self._standing(partial(self._outcomes.observed, m, rows))]
            for point in self._points:
                columns.append(self._standing(partial(self._outcomes.draw, point, m, rows)))
        return np.column_stack(columns)

    def _standing(self, outcomes: Callable[[], list[NDArray[Any]]]) -> Vector:
        """Of all statistics; 0 for what fails, as an exception would tell of the unit."""
        standing = np.zeros(len(self._statistics))
        try:
            named = self._named(outcomes())
        except Exception:  # noqa: BLE001  whatever a record provokes must not be seen outside
            return standing
        for k, statistic in enumerate(self._statistics):
            try:
                standing[k] = statistic(named)
            except Exception:  # noqa: BLE001
                continue
        return standing

    def _named(self, outcomes: Sequence[NDArray[Any]]) -> Any:
        """By name, or the only one; records along the first axis."""
        arrays = [
            np.moveaxis(np.asarray(values), axis, 0)
            for values, axis in zip(outcomes, self._roles.observed_axes, strict=True)
        ]
        return (
            arrays[0] if len(arrays) == 1 else dict(zip(self._outcomes.names, arrays, strict=True))
        )
