r"""Log predictive densities of units under released draws: one number per unit and model.

The draws are public. So :math:`\log \frac1S \sum_s p(y_i \mid \theta_s)` is a function of unit i's records, as a
log-likelihood is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph.replace import clone_replace

from pymc_dp.assessment.paid import OwnRecords
from pymc_dp.compat import lower_named_dims
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.outcomes import draws_of
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.linalg import clip, squares
from pymc_dp.privacy.clipping import in_silence
from pymc_dp.records.queries import Query, Units, Vector
from pymc_dp.unconstrained import unconstrained

_MOST_DRAWS = 1000
"""So many, evenly spaced, say what a posterior predicts: the densities are those of the mixture of these."""

_IMPOSSIBLE = 1e6
"""Nats by which a record counts that a model calls impossible, or cannot evaluate. It is clipped."""


def unconstrained_draws(parameters: ParameterSpace, posterior: xr.Dataset) -> Vector:
    """θ of at most 1,000 draws, evenly spaced, shape (draws, d).

    Parameters
    ----------
    parameters : ParameterSpace
    posterior : Dataset
        Of dimensions (chain, draw, ...).

    Raises
    ------
    PrivacyConfigurationError
        As :func:`theta_of`.
    """
    many = posterior.sizes["chain"] * posterior.sizes["draw"]
    some = np.unique(np.linspace(0, many - 1, min(many, _MOST_DRAWS)).round().astype(int))
    found = theta_of(parameters, posterior, some)
    return found[np.isfinite(found).all(axis=1)]


def theta_of(parameters: ParameterSpace, posterior: xr.Dataset, some: Any = slice(None)) -> Vector:
    """θ of draws, or of some of them, shape (some, d): not finite at the edge of the support.

    Parameters
    ----------
    parameters : ParameterSpace
    posterior : Dataset
        Of dimensions (chain, draw, ...).
    some : slice or ndarray of int64, optional
        Their places, chain after chain.

    Raises
    ------
    PrivacyConfigurationError
        If a free variable is missing or has another shape, or no draw is inside the support.
    """
    model = parameters.model
    given = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    rv_of = {value: rv for rv, value in model.rvs_to_values.items()}
    parts = []
    for rv in (rv_of[value] for value in model.value_vars):
        moved = unconstrained(rv, model.rvs_to_transforms[rv])
        part = pt.as_tensor(moved, allow_xtensor_conversion=True)
        parts.append(part.ravel().astype("float64"))
    (theta,) = clone_replace([pt.concatenate(parts)], given, rebuild_strict=False)
    function = pytensor.function(
        list(given.values()),
        lower_named_dims(theta),
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    draws = draws_of(posterior, [rv.name for rv in given])
    columns = [np.asarray(draws[rv.name], rv.type.dtype)[some] for rv in given]
    try:
        with np.errstate(all="ignore"):  # of draws at the edge of their support
            found = np.array([function(*one) for one in zip(*columns, strict=True)])
    except (TypeError, ValueError):
        raise PrivacyConfigurationError(
            "The draws of `idata` do not have the shapes of the model's parameters. Are they of this model?"
        ) from None
    if not np.isfinite(found).all(axis=1).any():
        raise PrivacyConfigurationError(
            "The draws of `idata` are not inside the support of the model's parameters. Are they of this model?"
        )
    return found


def optimism(theta: Vector, log_public: PublicLogDensity) -> float:
    r"""By how many nats these draws describe the people whom they were made from better than others.

    .. math:: p = d + \frac1S \sum_s (\theta_s - \bar\theta)^\top \nabla \log \pi(\theta_s)

    The prior's log-density is the draws', less what the likelihood, or a noisy law in its place, has said; so by
    Stein's identity p is :math:`\operatorname{tr}(C \Lambda)`, with C the draws' covariance and Λ the precision
    of what was said. Of normal draws it is the trace of what a unit's score is multiplied with to move their
    mean, summed over units if the model is right: what in-sample densities gain. Noise that the draws know of
    makes C larger and Λ smaller.

    Parameters
    ----------
    theta : ndarray, shape (draws, d)
        Draws on the scale of `log_public`.
    log_public : PublicLogDensity

    Returns
    -------
    float
        From 0, of draws of the prior, to d. A function of released draws and the prior: costs nothing.
    """
    slopes = np.array([log_public.gradient(each) for each in theta])
    d = theta.shape[1]
    p = d + float(np.sum((theta - theta.mean(axis=0)) * slopes) / len(theta))
    return min(max(p, 0.0), float(d))


class PredictiveRecords(OwnRecords):
    """The records of this process, as several models predict them: exact sums of their terms.

    Parameters
    ----------
    models : sequence of (RecordLikelihood, ndarray)
        Log-likelihoods of the same units, and θ of the draws of each, shape (draws, d).
    """

    def __init__(self, models: Sequence[tuple[RecordLikelihood, Vector]]):
        self._models = models

    @property
    def n_units(self) -> int:
        """Number of units of privacy."""
        return self._models[0][0].n_units

    @cached_property
    def densities(self) -> Vector:
        """Log predictive density of every unit under every model, shape (units, models). Private."""
        with in_silence():
            return np.column_stack([_densities(*model) for model in self._models])


def _densities(likelihood: RecordLikelihood, thetas: Vector) -> Vector:
    total = np.full(likelihood.n_units, -np.inf)
    for theta in thetas:
        np.logaddexp(
            total,
            np.nan_to_num(likelihood(theta), nan=-np.inf, posinf=np.inf, neginf=-np.inf),
            out=total,
        )
    return np.clip(total - np.log(len(thetas)), -_IMPOSSIBLE, _IMPOSSIBLE)


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Differences of the models' log predictive densities, in orthonormal coordinates that favour none.

    Parameters
    ----------
    basis : ndarray, shape (models - 1, models)
        Orthonormal rows that add up to 0.
    """

    basis: Vector

    @property
    def dimension(self) -> int:
        """Models less one."""
        return len(self.basis)

    def terms(self, records: PredictiveRecords, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        yield records.densities @ self.basis.T


@dataclass(frozen=True, eq=False)
class Squares:
    r"""Products :math:`v v^\top` of the entries of a unit's clipped vector, as a vector: its norm is the square of theirs.

    Parameters
    ----------
    of : Query
        Whose terms are vectors.
    bound : float
        That they are clipped to.

    Notes
    -----
    No two units' terms have a negative inner product: it is :math:`(v^\top v')^2`.
    """

    of: Query
    bound: float
    acute = True

    @property
    def dimension(self) -> int:
        """K (k + 1) / 2 of vectors of k entries."""
        k = self.of.dimension or 1
        return k * (k + 1) // 2

    def terms(self, records: Any, units: Units | None = None) -> Iterator[Vector]:
        """See :class:`~pymc_dp.records.queries.Query`. All units."""
        for chunk in self.of.terms(records):
            clipped = clip(np.asarray(chunk), self.bound)
            yield squares(clipped[None])


def contrast_basis(models: int) -> Vector:
    """Orthonormal rows that add up to 0, shape (models - 1, models) (Helmert)."""
    rows = np.tril(np.ones((models, models)), -1)[1:]
    rows[np.arange(models - 1), np.arange(1, models)] = -np.arange(1, models)
    return np.asarray(rows / np.linalg.norm(rows, axis=1)[:, None])


def posterior_and_model(
    compiled: CompiledModel, attrs: Mapping[str, Any], name: str, secure: bool
) -> None:
    """Refuse draws that are not private, or of other units than the model's.

    Raises
    ------
    PrivacyConfigurationError
    """
    roles = compiled.roles
    if secure and not attrs.get("privacy_valid"):
        raise PrivacyConfigurationError(
            f"The draws of {name} carry no guarantee, and what they tell would be released with the result. "
            "Sample them with noise that is secure."
        )
    if (
        attrs.get("privacy_unit") != roles.unit
        or attrs.get("privacy_units", roles.n_units) != roles.n_units
    ):
        raise PrivacyConfigurationError(
            f"The draws of {name} protect {attrs.get('privacy_unit')}. In the model given with them it is "
            f"{roles.unit}, or their number of units is another. Give the model that was sampled, and `unit` as it was given to `sample`."
        )
