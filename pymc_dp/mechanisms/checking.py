"""Is a sum over records near enough to normal, and are there enough points? Judged at posterior draws."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy import special

from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.normal_sum import noisy_sum
from pymc_dp.mechanisms.sums import SumRelease, moments_graph, sum_releases

# Of a posterior standard deviation, and of the mass of a 90 % interval: far below what changes a conclusion.
_FINE, _FINE_MASS = 0.05, 0.02
# Nats. Weights that vary by so much move no mean by more, in standard deviations (Cauchy-Schwarz). Half of what
# matters, since the first terms alone may be too small: of 205 wrong models of the evidence's kind, the least had 0.069.
_TOO_LITTLE = _FINE / 2
# Frequencies in units of 1/sd. The step repeats the density after 25 sd, which leaves out less than 1e-4 of a skewed or
# Laplace tail. The last one is where normal noise leaves exp(-18), but not above 60, and that with Laplace noise: that a
# sum is whole shows at 2 pi, and is not seen if its sd is above 10, where it moves a mean by less than 0.05 of them.
_STEP, _LAST, _LAST_OF_ALL = 0.25, 6.0, 60.0
_DRAWS = 1000
MORE_POINTS = 16
_ROWS = 2**18  # of points times areas: tens of megabytes


@dataclass(frozen=True)
class Error:
    """What an approximation of the log-density does to a posterior.

    Parameters
    ----------
    nats : float
        Standard deviation over draws of the error of the log-density.
    shift : float
        The largest shift of a posterior mean, in posterior standard deviations.
    mass : float
        The largest change of the probability of a central 90 % interval of a parameter.
    noise : float
        Standard error of both: two of it are taken off before they are judged.
    """

    nats: float
    shift: float
    mass: float
    noise: float

    @property
    def fine(self) -> bool:
        """Whether neither a mean nor an interval is seen to move by what matters."""
        return (
            self.shift - 2 * self.noise <= _FINE
            and self.mass - 2 * _SPREAD * self.noise <= _FINE_MASS
        )


_SPREAD = 0.3
"""Standard deviation of being in a 90 % interval."""


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
        Of taking the sum as normal: its third and fourth cumulants and, where these could matter, :func:`beyond`.
    together : Error
        Of both.
    """

    names: tuple[str, ...]
    points: int
    quadrature: Error
    normality: Error
    together: Error

    @property
    def fine(self) -> bool:
        """Whether both errors together move no mean by 0.05 standard deviations, nor an interval by 2 %."""
        return self.together.fine

    @property
    def verdict(self) -> str:
        """What to do."""
        if self.fine:
            return "fine"
        if not self.quadrature.fine:
            return f"more points: `points={4 * self.points}`, or `correct_releases`"
        return "correct it: `correct_releases`; rare cells: `total=`"

    def __str__(self) -> str:
        rows = [("quadrature", self.quadrature), ("not normal", self.normality)]
        lines = [f"{', '.join(self.names)}: {self.verdict}"]
        lines += [
            f"  {what}: {error.nats:.3f} nats, moves a posterior mean by {error.shift:.3f} sd and the mass of a 90 % "
            f"interval by {error.mass:.3f}"
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

    For mechanisms with `n`. At a thousand posterior draws the log-density is computed again with
    16 times the points, and the third and fourth cumulants of the sum say how far from normal it is
    (Edgeworth terms). Where that could matter, the density of each entry is computed without the
    approximation, from its characteristic function: the terms see neither that a sum of few is a
    whole number nor what is far out. The draws, weighed by the error, show what it does to means
    and intervals. Counts given as `total` are exact and are not looked at.

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
        points, terms = [], []
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
            points.append((better - noisy_sum(X, w, n, *fixed, *right)[0]).sum())
            X_many = _put_right(X_many, w_many, *right_many)
            terms.append(cumulants(X_many, w_many, n, release.v + 2 * release.b**2, s).sum())
        quadrature, normality = np.array(points), np.array(terms)
        if normality.std() > _TOO_LITTLE:
            for i, (X, w, n, s, _, *right) in enumerate(moments(release, model, draws, few, 0)):
                X = _put_right(X, w, *right)
                normality[i] += beyond(X, w, n, s, release.v, release.b).sum()
        parameters = _parameters(draws, {z for r in releases_of(model) for z in r.latents})
        names = tuple(entry.name for entry in release.entries)
        errors = (_error(e, parameters) for e in (quadrature, normality, quadrature + normality))
        checks.append(ReleaseCheck(names, few, *errors))
    return checks


def cumulants(X: Any, w: Any, n: Any, D: Any, s: Any) -> NDArray[np.float64]:
    r"""First Edgeworth terms of the log-density of a sum, for every area.

    With :math:`P = (nV + D)^{-1}`, :math:`a = P(s - nm)`, and :math:`\kappa_3, \kappa_4` the cumulants of a record's
    statistic as multilinear forms, :math:`\tfrac{n}{6} (\kappa_3[a, a, a] - 3 \kappa_3[a, P]) + \tfrac{n}{24}
    (\kappa_4[a, a, a, a] - 6 \kappa_4[a, a, P] + 3 \kappa_4[P, P])`.
    """
    mean = np.einsum("ik,ikm->im", w, X)
    c = X - mean[:, None]
    V = np.einsum("ik,ikp,ikq->ipq", w, c, c)
    P = np.linalg.inv(n[:, None, None] * V + np.diag(D))
    a = np.einsum("ipq,iq->ip", P, s - n[:, None] * mean)
    along = np.einsum("ikp,ip->ik", c, a)
    length = np.einsum("ikp,ikp->ik", c @ P, c)
    third = (w * (along**3 - 3 * length * along)).sum(axis=1)
    Va, VP = np.einsum("ipq,iq->ip", V, a), V @ P
    aVa, trace = (a * Va).sum(axis=1), np.einsum("ipp->i", VP)
    aVPVa = np.einsum("ip,ipq,iq->i", Va, P, Va)
    squares = np.einsum("ipq,iqp->i", VP, VP)
    fourth = (w * (along**4 - 6 * along**2 * length + 3 * length**2)).sum(axis=1)
    fourth -= 3 * aVa**2 - 6 * (aVa * trace + 2 * aVPVa) + 3 * (trace**2 + 2 * squares)
    return np.asarray(n / 6 * third + n / 24 * fourth)


def beyond(X: Any, w: Any, n: Any, s: Any, v: Any, b: Any) -> NDArray[np.float64]:
    r"""What :func:`cumulants` leave out of each entry's own log-density, for every area.

    With :math:`\phi` a record's characteristic function and :math:`\psi` that of the noise, the density of an entry is
    :math:`\int \phi(t)^n \psi(t) e^{-its} dt / 2\pi`. The normal one is the same integral, so that what is cut off of
    both cancels. For a single entry nothing is left out; of several, the fifth cumulants and beyond that they share.
    """
    total = np.zeros(len(n))
    for j in np.flatnonzero(v + b > 0):  # what has no noise has no density if it is a count
        x, D = X[..., [j]], v[j] + 2 * b[j] ** 2
        mean = np.einsum("ik,ikm->im", w, x)
        c = x - mean[:, None]
        nV = n[:, None] * np.einsum("ik,ikm->im", w, c**2)
        sd = np.sqrt(nV + D)
        last = min(_LAST * sd.max() / math.sqrt(v[j]), _LAST_OF_ALL) if v[j] else _LAST_OF_ALL
        t = np.arange(0, last, _STEP) / sd
        # One area at a time, for the memory.
        phi = np.array([a @ np.exp(1j * x * u) for a, x, u in zip(w, c, t, strict=True)])
        r = s[:, [j]] - n[:, None] * mean
        psi = np.exp(-v[j] * t**2 / 2 - 1j * t * r) / (1 + b[j] ** 2 * t**2)
        psi[:, 0] /= 2
        exact, normal = (
            (f * psi).real.sum(axis=1) for f in (phi ** n[:, None], np.exp(-nV * t**2 / 2))
        )
        # Below, there is nothing but rounding, 8 sd from the mean.
        total += np.log(np.maximum(exact, 1e-13) / np.maximum(normal, 1e-13))
        total -= cumulants(x, w, n, np.array([D]), s[:, [j]])
    return total


def _put_right(X: Any, w: Any, shift: Any, factor: Any) -> NDArray[np.float64]:
    """Points with the mean and covariance that :func:`~pymc_dp.mechanisms.normal_sum.noisy_sum` uses."""
    mean = np.einsum("ik,ikm->im", w, X)[:, None]
    return np.asarray(mean + shift[:, None] + np.einsum("ikp,iqp->ikq", X - mean, factor))


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
    groups = groups_of(idata)
    if "posterior" not in groups:
        raise PrivacyConfigurationError(
            "The result has no posterior draws: it is judged where these are. Give what `pm.sample` returned."
        )
    posterior = groups["posterior"]
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
    # A thousand evaluations take less than the compilation that would make them faster.
    options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    evaluate = pm.compile(model.free_RVs, moments_graph(release, model, noise), **options)
    for i in range(len(next(iter(draws.values())))):
        yield [*evaluate(*(draws[rv.name][i] for rv in model.free_RVs)), *correction]


def _parameters(draws: dict[str, NDArray[Any]], latents: set[str]) -> NDArray[np.float64]:
    """Draws of the parameters side by side, shape (draws, d)."""
    flat = [v.reshape(len(v), -1) for name, v in draws.items() if name not in latents]
    return np.concatenate(flat, axis=1).astype(float)


def _error(log_ratio: NDArray[np.float64], parameters: NDArray[np.float64]) -> Error:
    """Of draws weighed by the ratio."""
    moving = parameters[:, parameters.std(axis=0) > 0]
    weight = special.softmax(log_ratio)
    z = (moving - moving.mean(axis=0)) / moving.std(axis=0)
    low, high = np.quantile(moving, [0.05, 0.95], axis=0)
    inside = (moving >= low) & (moving <= high)
    shift = np.abs(weight @ z).max(initial=0.0)
    mass = np.abs(weight @ inside - inside.mean(axis=0)).max(initial=0.0)
    noise = math.sqrt(np.sum((weight - 1 / len(weight)) ** 2))
    return Error(float(log_ratio.std()), float(shift), float(mass), noise)
