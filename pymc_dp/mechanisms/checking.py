"""Is a sum over records near enough to normal, and are there enough points? Judged at posterior draws."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.normal_sum import noisy_sum
from pymc_dp.mechanisms.sums import SumRelease, moments_graph, sum_releases

# Of a posterior standard deviation: far below what changes a conclusion, or a coverage of 90 %.
_FINE = 0.05
# An error of a log-density with this standard deviation moves 4 % of the mass: the mean may stay where
# it is and the shape change.
_FINE_NATS = 0.1
_DRAWS = 400
MORE_POINTS = 16
_ROWS = 2**18  # of points times areas: tens of megabytes


@dataclass(frozen=True)
class Error:
    """What an approximation of the log-density does to a posterior.

    Parameters
    ----------
    nats : float
        Standard deviation over draws of the error of the log-density. No parameter's posterior mean
        is off by more standard deviations than that, to first order.
    shift : float
        The largest first-order shift of a posterior mean, in posterior standard deviations.
    bound : float
        The smaller of `nats`, and of `shift` with two of its Monte Carlo errors.
    """

    nats: float
    shift: float
    bound: float


@dataclass(frozen=True)
class ReleaseCheck:
    """What :func:`check_releases` found out about one release; printed, a few lines.

    Parameters
    ----------
    names : tuple of str
        Observed variables: all those of the same records.
    points : int
        Per area.
    quadrature : Error
        Of the points.
    normality : Error
        Of taking the sum as normal: its third cumulant.
    """

    names: tuple[str, ...]
    points: int
    quadrature: Error
    normality: Error

    @property
    def fine(self) -> bool:
        """Whether both errors together are below 0.05 posterior standard deviations and 0.1 nats."""
        errors = self.quadrature, self.normality
        return (
            math.hypot(*(e.bound for e in errors)) <= _FINE
            and math.hypot(*(e.nats for e in errors)) <= _FINE_NATS
        )

    @property
    def verdict(self) -> str:
        """What to do."""
        if self.fine:
            return "fine"
        if self.quadrature.bound > _FINE or self.quadrature.nats > _FINE_NATS:
            return f"more points: `points={4 * self.points}`, or `correct_releases`"
        return "correct it: `correct_releases`; rare cells: `total=`"

    def __str__(self) -> str:
        rows = [("quadrature", self.quadrature), ("not normal", self.normality)]
        lines = [f"{', '.join(self.names)}: {self.verdict}"]
        lines += [
            f"  {what}: {error.nats:.3f} nats, moves a posterior mean by {error.shift:.3f} sd (at most {error.bound:.3f})"
            for what, error in rows
        ]
        return "\n".join(lines)


class ReleaseChecks(list[ReleaseCheck]):
    """One :class:`ReleaseCheck` for each set of records."""

    @property
    def fine(self) -> bool:
        """Whether all are."""
        return all(check.fine for check in self)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def check_releases(idata: Any, model: pm.Model | None = None) -> ReleaseChecks:
    """Errors of the normal approximation of released sums, in posterior standard deviations.

    For mechanisms with `n`. At some hundred posterior draws the log-density is computed again with
    16 times the points, and the third cumulant of the sum says how far from normal it is (the first
    Edgeworth term). Counts given as `total` are exact and are not looked at.

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pm.sample`` of the model, with all its free variables.
    model : Model, optional
        By default that of the context.

    Returns
    -------
    ReleaseChecks
        A list with one entry per set of records; printed, it says "fine" or what to do.

    Raises
    ------
    PrivacyConfigurationError
        If the model has no such release, or the result lacks a variable of it.
    """
    model = pm.modelcontext(model)
    draws = thinned(posterior_draws(idata, model), _DRAWS)
    checks = ReleaseChecks()
    for release in releases_of(model):
        quadrature, third = [], []
        few = release.points
        many = more_points(release)
        pairs = zip(
            moments(release, model, draws, few, 0),
            moments(release, model, draws, many, 1),
            strict=True,
        )
        for (X, w, n, s, z, *right), (X_many, w_many, _, _, _, *right_many) in pairs:
            fixed = (release.v, release.b, s, z)
            better = noisy_sum(X_many, w_many, n, *fixed, *right_many)[0]
            quadrature.append((better - noisy_sum(X, w, n, *fixed, *right)[0]).sum())
            third.append(third_cumulant(X_many, w_many, n, release.v + 2 * release.b**2, s).sum())
        parameters = _parameters(draws, {z for r in releases_of(model) for z in r.latents})
        names = tuple(entry.name for entry in release.entries)
        errors = (_error(np.array(e), parameters) for e in (quadrature, third))
        checks.append(ReleaseCheck(names, few, *errors))
    return checks


def third_cumulant(X: Any, w: Any, n: Any, D: Any, s: Any) -> NDArray[np.float64]:
    r"""First Edgeworth term of the log-density of a sum, for every area.

    With :math:`P = (nV + D)^{-1}`, :math:`a = P(s - nm)` and c a record's statistic less its mean,
    :math:`\tfrac{n}{6} E[(c^\top a)^3 - 3\, (c^\top P c)(c^\top a)]`.
    """
    mean = np.einsum("ik,ikm->im", w, X)
    c = X - mean[:, None]
    V = np.einsum("ik,ikp,ikq->ipq", w, c, c)
    P = np.linalg.inv(n[:, None, None] * V + np.diag(D))
    a = np.einsum("ipq,iq->ip", P, s - n[:, None] * mean)
    along = np.einsum("ikp,ip->ik", c, a)
    length = np.einsum("ikp,ikp->ik", c @ P, c)
    return n / 6 * (w * (along**3 - 3 * length * along)).sum(axis=1)


def releases_of(model: pm.Model) -> list[SumRelease]:
    """The model's released sums over records that are integrated out.

    Raises
    ------
    PrivacyConfigurationError
        If there is none.
    """
    found = sum_releases(model)
    if not found:
        raise PrivacyConfigurationError(
            "The model has no mechanism with `n`. Nothing else is approximated."
        )
    return found


def more_points(release: SumRelease) -> int:
    """Points that are much better than those of the release."""
    areas = math.prod(release.record.areas) * len(release.record.combinations)
    return max(2 * release.points, min(MORE_POINTS * release.points, _ROWS // areas))


def posterior_draws(idata: Any, model: pm.Model) -> dict[str, NDArray[Any]]:
    """Draws of the model's free variables, chains one after the other.

    Raises
    ------
    PrivacyConfigurationError
        If one is missing.
    """
    posterior = groups_of(idata)["posterior"]
    missing = [rv.name for rv in model.free_RVs if rv.name not in posterior]
    if missing:
        raise PrivacyConfigurationError(
            f"The posterior lacks {missing}. Sample without `var_names`: every free variable is needed."
        )
    return {
        rv.name: posterior[rv.name].values.reshape(-1, *posterior[rv.name].shape[2:])
        for rv in model.free_RVs
    }


def thinned(draws: dict[str, NDArray[Any]], count: int) -> dict[str, NDArray[Any]]:
    """At most so many draws, equally spaced."""
    total = len(next(iter(draws.values())))
    keep = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int))
    return {name: values[keep] for name, values in draws.items()}


def moments(
    release: SumRelease, model: pm.Model, draws: dict[str, NDArray[Any]], count: int, seed: int
) -> Iterator[list[NDArray[np.float64]]]:
    """X, w, n, s, z and correction of :func:`~pymc_dp.mechanisms.normal_sum.noisy_sum`, draw by draw."""
    noise = release.record.points(count, seed)
    correction = release.correction_of(noise)
    evaluate = pm.compile(
        model.free_RVs, moments_graph(release, model, noise), on_unused_input="ignore"
    )
    for i in range(len(next(iter(draws.values())))):
        yield [*evaluate(*(draws[rv.name][i] for rv in model.free_RVs)), *correction]


def _parameters(draws: dict[str, NDArray[Any]], latents: set[str]) -> NDArray[np.float64]:
    """Draws of the parameters side by side, shape (draws, d)."""
    flat = [v.reshape(len(v), -1) for name, v in draws.items() if name not in latents]
    return np.concatenate(flat, axis=1).astype(float)


def _error(log_ratio: NDArray[np.float64], parameters: NDArray[np.float64]) -> Error:
    nats = float(log_ratio.std())
    spread = parameters.std(axis=0)
    moving = parameters[:, spread > 0]
    covariance = (log_ratio - log_ratio.mean()) @ (moving - moving.mean(axis=0)) / len(log_ratio)
    shift = float(np.abs(covariance / moving.std(axis=0)).max(initial=0.0))
    return Error(nats, shift, min(nats, shift + 2 * nats / math.sqrt(len(log_ratio))))
