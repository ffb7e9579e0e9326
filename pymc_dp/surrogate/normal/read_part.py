r"""The part of θ that the likelihood reads, where hyperparameters are the prior's own business.

In :math:`y_i \sim p(\beta, u_{g(i)})` with :math:`u \sim N(\mu, \tau^2)` no record tells of τ but through u. The law of
the likelihood is one of (β, u) alone, so nothing is asked in the direction of τ; and the mode that is searched for
is one of (β, u) under their own prior, τ integrated out. Under the joint prior there is none: its density has no
bound as τ and u go to 0 together, and a search falls down that funnel. Draws are of the law times the exact joint
prior.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.compat import ancestors
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.simulated import Scores
from pymc_dp.linalg import Vector
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Query, Units, UnitTerms, sizes
from pymc_dp.surrogate.normal.law import Law, Posterior
from pymc_dp.surrogate.normal.model import NormalSurrogate
from pymc_dp.unconstrained import unconstrained

_PRIOR_DRAWS = 4000
_TAIL = 0.01
"""Draws of a prior beyond these quantiles count as these: a heavy tail has no covariance."""


@dataclass(frozen=True, eq=False)
class _ReadTerms:
    """Units' terms as functions of the part that is read."""

    records: UnitTerms
    read: NDArray[np.int64]
    start: Vector

    @property
    def n_units(self) -> int:
        return self.records.n_units

    def whole(self, part: Vector) -> Vector:
        theta = self.start.copy()
        theta[self.read] = part
        return theta

    def log_likelihoods(self, points: Sequence[Vector], units: Units | None = None) -> list[Vector]:
        return self.records.log_likelihoods([self.whole(p) for p in points], units)

    def gradients(self, theta: Vector, units: Units | None = None) -> Iterator[Vector]:
        for chunk in self.records.gradients(self.whole(theta), units):
            yield chunk[:, self.read]

    def scores(self, theta: Vector) -> Iterator[Scores]:
        for of in self.records.scores(self.whole(theta)):
            read = of.simulated[:, :, self.read]
            yield of._replace(observed=of.observed[:, self.read], simulated=read)


@dataclass(frozen=True, eq=False)
class OfPart:
    """A query about the part of θ that is read.

    Parameters
    ----------
    of : Query
        With that part for θ.
    read : ndarray of int64
        Which entries of θ are.
    start : ndarray, shape (d,)
        The others' values, which do not matter.
    """

    of: Query
    read: NDArray[np.int64]
    start: Vector

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
        return self.of.terms(_ReadTerms(records, self.read, self.start), units)

    def sizes(self, records: UnitTerms) -> Iterator[Vector]:
        """See :func:`~pymc_dp.records.queries.sizes`."""
        return sizes(self.of, _ReadTerms(records, self.read, self.start))


class _MeasurementsOfPart:
    """:class:`~pymc_dp.records.measurements.Measurements`, asked about the part of θ that is read."""

    def __init__(self, measure: Measurements, read: NDArray[np.int64], start: Vector):
        self._measure, self._read, self._start = measure, read, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._measure, name)

    def sum(self, of: Query, bound: float, share: float) -> tuple[Vector, float]:
        return self._measure.sum(OfPart(of, self._read, self._start), bound, share)

    def last_sum(self, of: Query, bound: float) -> tuple[Vector, float]:
        return self._measure.last_sum(OfPart(of, self._read, self._start), bound)

    def histogram(self, of: Query, share: float, bins_per_octave: int = 2) -> PrivateHistogram:
        return self._measure.histogram(OfPart(of, self._read, self._start), share, bins_per_octave)


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
class ReadPart:
    """The entries of θ that the likelihood reads, and their prior. Public.

    Parameters
    ----------
    read : ndarray of int64
    start : ndarray, shape (d,)
        θ where PyMC starts.
    labels : list of str
        Names of the entries that are read.
    prior : NormalPrior
        Of these.
    scales : ndarray, shape (d,)
        The prior's standard deviations, of all of θ.
    """

    read: NDArray[np.int64]
    start: Vector
    labels: list[str]
    prior: NormalPrior
    scales: Vector

    def measurements(self, measure: Measurements) -> Measurements:
        """`measure`, of what is read."""
        return _MeasurementsOfPart(measure, self.read, self.start)

    def largest(self, values: Vector, most: int = 3) -> str:
        """The entries with the largest values, and these, in words."""
        named = [f"{self.labels[k]} by {values[k]:.1f}" for k in np.argsort(-values)[:most]]
        return ", ".join(named) + (" and others" if len(self.labels) > most else "")

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


def read_part(compiled: CompiledModel) -> ReadPart | None:
    """What the likelihood reads of θ; None if that is all of it, or if the prior cannot be drawn from."""
    model, parameters = compiled.model, compiled.parameters
    seen = set(ancestors(model.observed_RVs, blockers=model.free_RVs))
    of_value = {model.rvs_to_values[rv].name: rv for rv in model.free_RVs}
    mask = np.concatenate([
        np.full(int(np.prod(shape)), of_value[name] in seen)
        for name, shape in parameters.shapes.items()
    ])  # fmt: skip
    if mask.all() or not mask.any():
        return None
    draws = _prior_draws(model, list(parameters.shapes), of_value)
    if draws is None:
        return None
    low, high = np.quantile(draws, [_TAIL, 1 - _TAIL], axis=0)
    draws = np.clip(draws, low, high)
    scales = draws.std(axis=0)
    if not (np.isfinite(draws).all() and (scales > 0).all()):
        return None
    read = np.flatnonzero(mask)
    covariance = np.cov(draws[:, read].T).reshape(len(read), len(read))
    prior = NormalPrior(draws[:, read].mean(axis=0), np.asarray(np.linalg.inv(covariance)))
    labels = [parameters.labels[k] for k in read]
    return ReadPart(read, parameters.start, labels, prior, scales)


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
