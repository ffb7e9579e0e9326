r"""Draws that are as wide as the records say, if the model is wrong: one private release of their scores' squares.

With :math:`\psi_i` unit i's score at the draws' mean, the law's :math:`\hat\beta` (:mod:`pymc_dp.surrogate.normal.law`) has the covariance
M + S, :math:`M = \sum_i \psi_i \psi_i^\top`, where a right model says J + S; S, the noise, stays what it is. The draws depend on
:math:`\hat\beta` through :math:`k = H^\top \hat\beta`, :math:`H = (J+S)^{-1} J`, by a factor :math:`\exp(\theta^\top k)` of their density.
So the derivative of their mean by k is their covariance Σ, and what the mean's covariance is too small by is
:math:`\Sigma H^\top (M - J) H \Sigma`. With :math:`\Sigma = R R^\top`, the draws should have the covariance

.. math:: R\, G R^\top, \qquad G = 1 + W^\top (M - J) W, \qquad W = H R,

that of the model if M = J, and :math:`J^{-1} M J^{-1}` without noise and prior: Huber's sandwich.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pymc_dp.assessment.paid import Payment
from pymc_dp.assessment.predictive import Squares, posterior_and_model, theta_of
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.draws import as_variables
from pymc_dp.likelihood.simulated import CANNOT_BE_DRAWN
from pymc_dp.linalg import Vector, as_matrix, positive, power
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.progress import doing
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import Gradient
from pymc_dp.records.sums import LocalRecords
from pymc_dp.report.tables import Table
from pymc_dp.results import identify, released
from pymc_dp.surrogate.normal.bounds import (
    BINS_PER_OCTAVE,
    Tail,
    number_beyond,
)
from pymc_dp.surrogate.normal.law import Law

_OF_SIZES, _OF_UNITS = 0.2, 0.01
"""Of the budget; the rest is for the squares."""
_BEYOND = 3.0
"""So many times d z units are clipped, z the noise's sd in the squares / sensitivity: in every direction noise is then √2 z b², and what
clipping takes, of scores that exceed their bound b by a quarter, about as much."""
_TOLD, _OFF = 3.0, 0.1
"""A parameter is named if its variance is further from the model's than so many sds of the noise, and this part of it: an error of 5 % in
a width is within that of the information, which the run has measured with noise too."""


@dataclass(frozen=True, repr=False)
class Sandwich(Table):
    """Draws with sandwich widths, and how much wider they are. Shows as a table.

    Parameters
    ----------
    parameters : tuple of str
        Names, on PyMC's unconstrained scale.
    mean, model_sd, sandwich_sd : ndarray, shape (parameters,)
        Of the draws, as the model has them, and with the widths that the records ask for.
    seen, seen_sd : ndarray, shape (parameters,)
        Variance of each over the model's, as it was measured, and the standard deviation of the noise in that. Where
        less than 1 was seen, the model's width is kept.
    bound : float
        To which units' scores were clipped, in coordinates in which the draws are white.
    draws : Dataset
        Of all variables, with sandwich widths.
    run : str
        Name of the run that made the draws, for its report.
    guarantee : Guarantee
        Of this release alone; the draws that it was made from have their own.
    """

    title = "Widths of the model's intervals, and of intervals that the records ask for"

    parameters: tuple[str, ...]
    mean: NDArray[np.float64]
    model_sd: NDArray[np.float64]
    sandwich_sd: NDArray[np.float64]
    seen: NDArray[np.float64]
    seen_sd: NDArray[np.float64]
    bound: float
    draws: xr.Dataset
    run: str
    guarantee: Guarantee

    @property
    def misfit(self) -> NDArray[np.float64]:
        """How many times wider intervals have to be than the model's, shape (parameters,): 1 if it is right."""
        return np.asarray(self.sandwich_sd / self.model_sd)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each parameter; ``noise`` is the standard deviation of the privacy noise in ``misfit``."""
        columns = {
            "mean": self.mean, "model_sd": self.model_sd, "sandwich_sd": self.sandwich_sd, "misfit": self.misfit,
            "noise": self.seen_sd / (2 * self.misfit),
        }  # fmt: skip
        return pd.DataFrame(columns, index=list(self.parameters))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table as text."""
        rows: list[tuple[str, ...]] = [("", "mean", "model's sd", "sandwich sd", "misfit", "noise")]
        for name, (mean, model, sandwich, misfit, noise) in zip(
            self.parameters, self.table.to_numpy(), strict=True
        ):
            sds = f"{model:.3g}", f"{sandwich:.3g}"
            rows.append((name, f"{mean:.4g}", *sds, f"{misfit:.2f}", f"{noise:.2f}"))
        return rows

    @property
    def finding(self) -> str:
        """In plain words, which of the model's intervals are too narrow."""
        off, hidden = self.seen - 1, _TOLD * self.seen_sd + _OFF
        wide, small = off > hidden, off < -hidden
        said = "Nothing that was seen says that the model's own intervals are too narrow."
        if wide.any():
            named = ", ".join(
                f"{self.parameters[k]} ({self.misfit[k]:.2g} times)"
                for k in np.argsort(-self.misfit)
                if wide[k]
            )
            said = (
                "The records vary more than the model says they do. Its own intervals are too narrow; they have to be wider for "
                f"{named}."
            )
        if small.any():
            named = ", ".join(np.array(self.parameters)[small])
            said += (
                f" Scores seem to vary less than the model says for {named}: because the records do, or because few units tell "
                "of it and were clipped. The model's widths are kept there."
            )
        return said

    @property
    def statement(self) -> str:
        """How to read the table, and what is promised."""
        return (
            f"{self.finding} Wider intervals do not make a wrong model right: they are of the parameters with which it comes "
            f"nearest to the records. {self.promise}"
        )

    @property
    def promise(self) -> str:
        """What it has cost."""
        if not self.guarantee.valid:
            return "NOT PRIVATE: the noise was insecure. Neither the table nor its draws must be released."
        return f"This is {self.guarantee.promise}, beside what the draws themselves cost: both costs add up."


@refuses_from_outside
def sandwich(
    result: Any,
    model: pm.Model | CompiledModel,
    *,
    epsilon: float,
    delta: float | None = None,
    neighbours: str = SUBSTITUTE_ONE.name,
    unit: str | int | ArrayLike | None = None,
    public: Sequence[str] = (),
    ledger: PrivacyLedger | None = None,
    noise_source: NoiseSource | None = None,
) -> Sandwich:
    r"""Widths that hold if the model is wrong, by one private release of the squares of units' scores.

    Intervals of a posterior suppose that the records vary as the model says. Where they are overdispersed, heteroscedastic or clustered
    they vary more, and the intervals are too narrow. With :math:`\psi_i` the score of all records of unit i together, at the
    draws' mean, :math:`M = \sum_i \psi_i \psi_i^\top` says how much more, and the draws are stretched about their mean
    accordingly; the part of their spread that is privacy noise stays as it is. Clustered records are counted
    right if a unit is a cluster.

    **Neighbouring relation**: `neighbours`. **Sensitivity**: in L2 norm :math:`\sqrt\kappa\, b^2` of the sum of :math:`z_i z_i^\top`,
    with :math:`z_i` the scores in public coordinates, clipped to length b, as no two of these have a negative inner product
    (κ = 2 if a unit is replaced, 1 if it comes or goes), and √κ of a histogram of their lengths, which chooses b. **Guarantee**: (ε, δ)-DP, one
    Gaussian release divided up on the way by :class:`~pymc_dp.privacy.filter.PrivacyFilter` (Smith and
    Thakurta, 2022, Theorem 1), given the draws, which have a guarantee of their own; costs add up.

    Parameters
    ----------
    result : InferenceData or DataTree
        Released draws of a normal surrogate: ``sample(..., step=pymc_dp.DPSurrogate, family="normal")``.
    model : Model, CompiledModel or bambi.Model
        The one that was sampled, with its records.
    epsilon, delta : float
        Budget of this release, beside what the draws have cost. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    neighbours : {"substitute-one", "add-or-remove"}
        As in ``pymc_dp.sample``.
    unit, public
        As they were given to ``pymc_dp.sample``; of a model that is compiled already, leave them out.
    ledger : PrivacyLedger, optional
        Account of the data set.
    noise_source : NoiseSource, optional
        For tests only.

    Returns
    -------
    Sandwich

    Raises
    ------
    PrivacyError
        If `result` has not been released, is not usable, is combined, or has no normal law of these parameters.
    UnsupportedModelError, PrivacyConfigurationError
        If the model's outcomes cannot be drawn, draws are too few or not inside the support, or a setting is out of
        range. Nothing is spent.
    PrivacyBudgetExceeded
        If it does not fit the ledger. Nothing has been charged or read then.

    Notes
    -----
    Intervals are never narrower than the model's: clipping alone can make scores look small. What clipping takes otherwise is added
    again, about. J is the model's expected information; where the model's mean is wrong and its link is not the canonical one, the
    curvature differs from it, and widths are approximate.

    References
    ----------
    P. J. Huber. *The behavior of maximum likelihood estimates under nonstandard conditions.* Fifth Berkeley Symposium, 1967.

    U. K. Müller. *Risk of Bayesian inference in misspecified models, and the sandwich covariance matrix.* Econometrica 81, 2013.

    Examples
    --------
    >>> idata = sample(model=model, epsilon=1.0, step=DPSurrogate, family="normal")   # doctest: +SKIP
    >>> found = sandwich(idata, model, epsilon=0.3)                                   # doctest: +SKIP
    >>> az.summary(found.draws)                                                       # doctest: +SKIP
    """
    attrs, groups = released(result, "statsmodels' robust covariances")
    if "privacy_combined" in attrs:
        raise PrivacyError(
            "`result` is combined from several. Take the sandwich of each, with its own records."
        )
    compiled = compile_model(model, unit=unit, public=public)
    law = Law.of_result("`result`", attrs, compiled.parameters.labels)
    payment = Payment(
        "sandwich", compiled, epsilon=epsilon, delta=delta, neighbours=neighbours, ledger=ledger,
        noise_source=noise_source,
    )  # fmt: skip
    posterior_and_model(compiled, attrs, "`result`", payment.noise.secure)
    if compiled.simulated is None:
        raise UnsupportedModelError(
            f"{CANNOT_BE_DRAWN}, so what scores would vary by "
            "if it were right is not known. Write it with PyMC's distributions."
        )
    with doing("Compiling the variables"):
        places = _Places(compiled, groups["posterior"], law)
        covered = json.loads(attrs["privacy_variables"])
        variables = as_variables(compiled, groups["posterior"], covered)
        records = LocalRecords(compiled, derivatives=1)
    scores = Gradient(places.mean, places.W, json.loads(attrs["privacy_settings"])["tempering"])
    with doing("Squares of scores"), np.errstate(all="ignore"):
        M, sd, bound = _squares(scores, payment.measure(records))
        more = M - places.W.T @ law.J @ places.W
        wider = np.eye(len(law.J)) + places.V @ positive(more, 0.0) @ places.V.T
        draws = variables(places.stretched(wider))
    share = places.V.T @ places.R.T / places.sd
    return Sandwich(
        parameters=tuple(compiled.parameters.labels),
        mean=places.mean,
        model_sd=places.sd,
        sandwich_sd=np.sqrt(np.diag(places.R @ wider @ places.R.T)),
        seen=1 + np.sum(share * (more @ share), axis=0),
        seen_sd=sd * np.sum(share**2, axis=0),
        bound=bound,
        draws=draws,
        run=f"{identify(groups).privacy_run:016x}",
        guarantee=payment.guarantee,
    )


class _Places:
    r"""Where the draws are: their mean, a root R of their covariance, and the coordinates W V in which scores are asked.

    V are the directions of :math:`W = H R` that the law tells of at all: what it says nothing of is the prior's.
    """

    def __init__(self, compiled: CompiledModel, posterior: xr.Dataset, law: Law):
        size = posterior.sizes["chain"], posterior.sizes["draw"]
        self._theta = theta_of(compiled.parameters, posterior, np.arange(math.prod(size)))
        self._size = size
        if not np.isfinite(self._theta).all():
            raise PrivacyConfigurationError(
                "Some draws are at the edge of their support, where no interval of theirs can be made wider. Use another prior, or "
                "another scale."
            )
        self.mean, self.sd = self._theta.mean(axis=0), self._theta.std(axis=0)
        d = len(self.mean)
        white = (self._theta - self.mean) / np.maximum(self.sd, 1e-300)
        # Their rounding is no direction.
        if np.linalg.matrix_rank(white, tol=1e-6 * math.sqrt(len(white))) < d:
            raise PrivacyConfigurationError(
                f"The {len(white)} draws do not tell a covariance of {d} parameters. Sample more; further ones cost nothing in the same run."
            )
        self._root = power(white.T @ white / len(white), 0.5)
        self.R = self.sd[:, None] * self._root
        W = law.kept.T @ self.R
        _, scales, directions = np.linalg.svd(W / self.sd[:, None])
        self.V = directions[scales >= 1e-6 * scales[0]].T
        self.W = W @ self.V

    def stretched(self, wider: Vector) -> Vector:
        """Draws about the same mean with the covariance R `wider` Rᵀ, shape (chains, draws, d)."""
        z = np.linalg.solve(self.R, (self._theta - self.mean).T)
        moved = self.mean + (self.R @ power(wider, 0.5) @ z).T
        return np.asarray(moved.reshape(*self._size, -1))


def _squares(scores: Gradient, measure: PaidMeasurements) -> tuple[Vector, float, float]:
    """Sum of zzᵀ of the scores, the sd of the noise on its diagonal (√½ of that elsewhere), and the bound that they were clipped to.

    What clipping took is added again, as if its tail were exponential, in the directions of the rest.
    """
    r = scores.dimension
    n, _ = measure.units(_OF_UNITS)
    sizes = measure.histogram(scores, _OF_SIZES, BINS_PER_OCTAVE)
    z = measure.multiplier(1 - measure.spent)
    number = number_beyond(_BEYOND * math.sqrt(r), r, z, max(n, 1.0))
    b, excess = Tail(sizes.released, sizes.sd).exceeded_by(number)
    packed, sd = measure.sum(Squares(scores, b), b**2, 1 - measure.spent)
    clipped = as_matrix(packed, r)
    lost = number * b**2 * 2 * excess * (1 + excess)
    return clipped * (1 + lost / max(float(np.trace(clipped)), r * sd)), sd, b
