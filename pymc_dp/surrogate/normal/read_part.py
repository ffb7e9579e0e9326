r"""The part of θ that the likelihood reads, where hyperparameters are the prior's own business.

In :math:`y_i \sim p(\beta, u_{g(i)})` with :math:`u \sim N(\mu, \tau^2)` no record tells of τ but through u. The law of
the likelihood is one of (β, u) alone, so nothing is asked in the direction of τ; and the mode that is searched for
is one of (β, u) under their own prior, τ integrated out. Under the joint prior there is none: its density has no
bound as τ and u go to 0 together, and a search falls down that funnel. Draws are of the law times the exact joint
prior.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pymc_dp.compat import ancestors
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.cut import Cut
from pymc_dp.likelihood.reading import Place, Reading
from pymc_dp.likelihood.simulated import Scores
from pymc_dp.linalg import Vector, floored
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Query, Root, Units, UnitTerms, sizes
from pymc_dp.surrogate.normal.law import Law, Posterior
from pymc_dp.surrogate.normal.model import NormalSurrogate
from pymc_dp.unconstrained import unconstrained

_PRIOR_DRAWS = 4000
_TAIL = 0.01
"""Draws of a prior beyond these quantiles count as these: a heavy tail has no covariance. This and what follows, half and twice: errors of a
horseshoe's coefficients within about 1 % of these (`benchmarks/many_parameters.py constants`)."""
_WIDEST = 3.5
"""Standard deviations that the furthest of so many normal draws is away, about. What is read may have any tail, as coefficients under a horseshoe
have one in which all lie that matter: a search must be able to go there."""
_LEAST_APART = 1e-6
"""Of correlations' eigenvalues: numbers of which one follows from the others have no precision together."""
_TRIED = 8
"""Draws of that for which a way back to θ is looked for."""


@dataclass(frozen=True, eq=False)
class _ReadTerms:
    """Units' terms at a place, as of what is read there."""

    records: UnitTerms
    at: Place

    @property
    def n_units(self) -> int:
        return self.records.n_units

    def gradients(self, _: Vector, units: Units | None = None) -> Iterator[Vector]:
        for chunk in self.records.gradients(self.at.theta, units):
            yield chunk @ self.at.inverse

    def scores(self, _: Vector) -> Iterator[Scores]:
        for of in self.records.scores(self.at.theta):
            observed, simulated = (z @ self.at.inverse for z in (of.observed, of.simulated))
            yield of._replace(observed=observed, simulated=simulated)


@dataclass(frozen=True, eq=False)
class OfPart:
    """A query about what is read of θ.

    Parameters
    ----------
    of : Query
        With that for θ; of gradients or scores there.
    at : Place
        Where it is that.
    """

    of: Query
    at: Place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.of, name)

    @property
    def dimension(self) -> int | None:
        """Of the query."""
        return self.of.dimension

    def terms(self, records: UnitTerms, units: Units | None = None) -> Iterator[Any]:
        """See :class:`~pymc_dp.records.queries.Query`."""
        return self.of.terms(_ReadTerms(records, self.at), units)

    def sizes(self, records: UnitTerms) -> Iterator[Vector]:
        """See :func:`~pymc_dp.records.queries.sizes`."""
        return sizes(self.of, _ReadTerms(records, self.at))


class _MeasurementsOfPart:
    """:class:`~pymc_dp.records.measurements.Measurements`, asked about what is read of θ."""

    def __init__(self, measure: Measurements, reading: Reading):
        self._measure, self._reading = measure, reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._measure, name)

    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        return self._measure.sum(self._of(of), bound, share)

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        return self._measure.last_sum(self._of(of), bound)

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        return self._measure.histogram(self._of(of), share, bins_per_octave)

    def _of(self, of: Query) -> OfPart:
        asked: Any = of.of if isinstance(of, Root) else of
        return OfPart(of, self._reading.place(asked.theta))


@dataclass(frozen=True, eq=False)
class NormalPrior:
    """A normal law with the moments of a prior, as a public log-density.

    Parameters
    ----------
    mean : ndarray, shape (d,)
    precision : ndarray, shape (d, d)
    """

    mean: Vector
    precision: Vector

    def __call__(self, theta: Vector) -> float:
        """Log-density, but for a constant."""
        u = theta - self.mean
        return float(-0.5 * u @ self.precision @ u)

    def gradient(self, theta: Vector) -> Vector:
        """Shape (d,)."""
        return -self.precision @ (theta - self.mean)

    def hessian(self, theta: Vector) -> Vector:
        """Shape (d, d)."""
        return -self.precision


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of θ, if what the likelihood reads is that. Public.

    Parameters
    ----------
    read : ndarray of int64
    start : ndarray, shape (d,)
        θ where PyMC starts.
    scales : ndarray, shape (d,)
        The prior's standard deviations, of all of θ.
    """

    read: NDArray[np.int64]
    start: Vector
    scales: Vector

    def of(self, law: Law) -> Law:
        """A law of θ, as one of what is read."""
        r, square = self.read, np.ix_(self.read, self.read)
        return Law(law.centre[r], law.beta[r], law.J[square], law.S[square])

    def whole(self, surrogate: NormalSurrogate) -> NormalSurrogate:
        """The surrogate in all of θ: its law says nothing of what is not read."""
        r, law = surrogate.posterior, surrogate.posterior.law
        rest = np.diag(self.scales**-2.0)
        rest[self.read] = rest[:, self.read] = 0.0

        def vector(part: Vector, of: Vector) -> Vector:
            out = of.copy()
            out[self.read] = part
            return out

        def matrix(part: Vector, of: Vector) -> Vector:
            out = of.copy()
            out[np.ix_(self.read, self.read)] = part
            return out

        zero, nothing = np.zeros(len(self.start)), np.zeros((len(self.start),) * 2)
        posterior = Posterior(
            Law(vector(law.centre, self.start), vector(law.beta, zero), matrix(law.J, nothing),
                matrix(law.S, nothing)),
            vector(r.mean, self.start),
            matrix(r.precision, rest),
            matrix(r.exact, rest),
            matrix(r.prior, rest),
        )  # fmt: skip
        return replace(surrogate, posterior=posterior)


@dataclass(frozen=True, eq=False)
class ReadPart:
    """What the likelihood reads of θ, and its prior, about. Public.

    Parameters
    ----------
    reading : Reading
    labels : list of str
        Names of the numbers that are read.
    prior : NormalPrior
        Of these.
    of : Entries or Cut
        What they are: entries of θ, or what the log-likelihood was cut at.
    """

    reading: Reading
    labels: list[str]
    prior: NormalPrior
    of: Entries | Cut

    def measurements(self, measure: Measurements) -> Measurements:
        """`measure`, of what is read."""
        return _MeasurementsOfPart(measure, self.reading)

    def largest(self, values: Vector, most: int = 3) -> str:
        """The numbers with the largest values, and these, in words."""
        named = [f"{self.labels[k]} by {values[k]:.1f}" for k in np.argsort(-values)[:most]]
        return ", ".join(named) + (" and others" if len(self.labels) > most else "")


def can_be_summed(d: int) -> bool:
    """Whether the information in so many numbers, and what scores keep of it, are one vector that can be clipped and summed."""
    return d * (d + 1) <= MAX_DIMENSION


def read_part(compiled: CompiledModel, entries_only: bool = False) -> ReadPart | None:
    """What the likelihood reads of θ; None if that is all of it, or if the prior cannot be drawn from.

    Entries of θ, unless it reads fewer numbers that are not affine in them.

    Parameters
    ----------
    compiled : CompiledModel
    entries_only : bool
        Whether nothing else is thought of.
    """
    model, parameters = compiled.model, compiled.parameters
    seen = set(ancestors(model.observed_RVs, blockers=model.free_RVs))
    of_value = {model.rvs_to_values[rv].name: rv for rv in model.free_RVs}
    mask = np.concatenate([
        np.full(int(np.prod(shape)), of_value[name] in seen)
        for name, shape in parameters.shapes.items()
    ])  # fmt: skip
    cut = None if entries_only else compiled.read
    # Of effects whose sum is 0 one number of every column follows from the others.
    possible = cut is not None and can_be_summed(cut.shape.n - cut.shape.r)
    numbers = _curved(compiled, int(mask.sum())) if possible else None
    if numbers is None and (mask.all() or not mask.any()):
        return None
    draws = _prior_draws(model, list(parameters.shapes), of_value)
    if draws is None:
        return None
    part = None if numbers is None else _of_numbers(compiled, *numbers, draws)
    return part or (None if mask.all() else _of_entries(compiled, np.flatnonzero(mask), draws))


def _of_entries(compiled: CompiledModel, read: NDArray[np.int64], draws: Vector) -> ReadPart | None:
    draws = _clipped(draws)
    scales = draws.std(axis=0)
    if not (np.isfinite(draws).all() and (scales > 0).all()):
        return None
    covariance = np.cov(draws[:, read].T).reshape(len(read), len(read))
    prior = NormalPrior(draws[:, read].mean(axis=0), np.asarray(np.linalg.inv(covariance)))
    start, theta = compiled.parameters.start, pt.vector("theta", shape=(compiled.d,))
    reading = Reading(theta, [theta[read]], start)
    labels = [compiled.parameters.labels[k] for k in read]
    return ReadPart(reading, labels, prior, Entries(read, start, scales))


def _clipped(draws: Vector) -> Vector:
    return np.clip(draws, *np.quantile(draws, [_TAIL, 1 - _TAIL], axis=0))


def _curved(compiled: CompiledModel, most: int) -> tuple[Cut, Reading] | None:
    """What all records read, if it is fewer numbers than entries of θ and not affine in these: then a law of that is nearer to normal than one of θ."""
    cut, reading = compiled.read, compiled.reading
    if cut is None or reading is None:
        return None
    rng, start = np.random.default_rng(0), compiled.parameters.start
    theta, parts = cut.graph.theta, cut.psi
    first = reading.derivative(start + rng.normal(size=len(start)))
    # Numbers of which one follows from the others, as effects whose sum is 0, have no way back; what they are made of has.
    for k, part in enumerate(cut.shape.parts(first)):
        D = part.reshape(-1, len(start))
        read = np.flatnonzero((D != 0).any(axis=0))
        if len(read) < len(D) and len(read) == np.linalg.matrix_rank(D):
            parts[k] = theta[read]
            reading = Reading(theta, parts, start)
    if len(reading.start) >= most:
        return None
    first, second = (reading.derivative(start + rng.normal(size=len(start))) for _ in range(2))
    return None if np.allclose(first, second, rtol=1e-9, atol=0) else (cut, reading)


def _of_numbers(
    compiled: CompiledModel, cut: Cut, reading: Reading, draws: Vector
) -> ReadPart | None:
    psi = reading.many(draws)
    mean = np.median(psi, axis=0)
    sds = np.abs(psi - mean).max(axis=0) / _WIDEST
    if not (np.isfinite(psi).all() and (sds > 0).all()):
        return None
    together = np.corrcoef(_clipped(psi).T).reshape(len(mean), len(mean))
    precision = np.linalg.inv(floored(together, _LEAST_APART)) / np.outer(sds, sds)
    rng = np.random.default_rng(0)
    try:  # a way back is needed wherever a search may go
        for _ in range(_TRIED):
            if not np.isfinite(
                reading.place(mean + sds * rng.normal(size=len(mean))).inverse
            ).all():
                return None
    except np.linalg.LinAlgError:
        return None
    labels = _labels(
        compiled, reading.derivative(compiled.parameters.start + rng.normal(size=compiled.d))
    )
    return ReadPart(reading, labels, NormalPrior(mean, precision), cut)


def _labels(compiled: CompiledModel, slopes: Vector) -> list[str]:
    """Names of what is read: those of entries of θ, or what they are computed from, by the derivative in these, shape (p, d)."""
    parameters, model = compiled.parameters, compiled.model
    of_value = {model.rvs_to_values[rv].name: rv.name for rv in model.free_RVs}
    places = {of_value[k]: v for k, v in parameters.point(np.arange(compiled.d)).items()}
    labels = []
    for j, row in enumerate(slopes != 0):
        found = {name: at[row[at]] for name, at in places.items() if row[at].any()}
        if row.sum() == 1 and (slopes[j] == 1).any():
            labels.append(parameters.labels[int(row.argmax())])
            continue
        own = [
            parameters.labels[int(at[0])].partition("[")[2].partition("]")[0]
            for name, at in found.items()
            if len(at) == 1 < places[name].size
        ]
        labels.append(f"({', '.join(found)})[{max(own, key=len) if own else j}]")
    return labels


def _prior_draws(model: pm.Model, names: list[str], of_value: dict[str, Any]) -> Vector | None:
    """Draws of θ from the prior, shape (draws, d)."""
    outputs = []
    for name in names:
        rv = of_value[name]
        outputs.append(unconstrained(rv, model.rvs_to_transforms[rv]))
    try:
        found = pm.draw(outputs, draws=_PRIOR_DRAWS, random_seed=0, mode="FAST_COMPILE")
    except Exception:  # noqa: BLE001  # a prior without draws, or with its own that fail: no data in it
        return None
    return np.concatenate([np.reshape(x, (_PRIOR_DRAWS, -1)) for x in found], axis=1)
