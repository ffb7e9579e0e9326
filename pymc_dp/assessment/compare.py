"""Several models of the same people: differences of expected log predictive density, from one private release."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_dp.assessment.paid import Payment, beside_draws
from pymc_dp.assessment.predictive import (
    Contrasts,
    PredictiveRecords,
    Squares,
    contrast_basis,
    optimism,
    posterior_and_model,
    unconstrained_draws,
)
from pymc_dp.assessment.same_units import refuse_other_units
from pymc_dp.assessment.tails import OF_LAST_COUNT, find_bound, longer
from pymc_dp.exceptions import PrivacyConfigurationError, refuses_from_outside
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.linalg import as_matrix
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.progress import doing
from pymc_dp.report.tables import Table
from pymc_dp.results import released

# Of the budget. Sizes and squares need a rough look only; all the rest is for the sums.
_OF_SIZES, _OF_SQUARES, _OF_UNITS = 0.1, 0.1, 0.01
_BINS_PER_OCTAVE = 2
_INTERVAL = 1.645  # 90 %


class Difference(NamedTuple):
    """How much better one model predicts than another, in nats for as many people as there are.

    Parameters
    ----------
    elpd : float
        The first's less the second's.
    se : float
        Its standard error: other people would have given another difference. Not below what the noise in its own
        estimate hides.
    noise_sd : float
        Standard deviation of the noise in it.
    clipped : float
        What clipping has taken from it at most, by the number of people whom it has met.
    """

    elpd: float
    se: float
    noise_sd: float
    clipped: float

    @property
    def sd(self) -> float:
        """All that is uncertain together; what was clipped counts like a standard deviation."""
        return math.hypot(self.se, self.noise_sd, self.clipped)

    @property
    def interval(self) -> tuple[float, float]:
        """Of 90 %."""
        return self.elpd - _INTERVAL * self.sd, self.elpd + _INTERVAL * self.sd


@dataclass(frozen=True, repr=False)
class Comparison(Table):
    """How well models predict, each beside the best. Shows as a table.

    Parameters
    ----------
    models : tuple of str
        Names, the best first.
    elpd : ndarray, shape (models,)
        Expected log predictive densities, in nats for all people together; only differences mean anything.
    covariance : ndarray, shape (models, models)
        Of the sampling error of these.
    noise_sd : float
        Standard deviation of the privacy noise in the difference of any two.
    optimism : ndarray, shape (models,)
        What has been taken off for densities being those of the people whom draws were made from.
    bound : float
        Norm to which a person's densities, less their mean over models, were clipped.
    clipped : float
        How many people's were, with noise.
    excess : float
        What that has taken from a difference at most, about.
    guarantee : Guarantee
        Of this release alone; the draws have their own.
    """

    title = "Expected log predictive densities"

    models: tuple[str, ...]
    elpd: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise_sd: float
    optimism: NDArray[np.float64]
    bound: float
    clipped: float
    excess: float
    guarantee: Guarantee

    def difference(self, one: str, other: str) -> Difference:
        """How much better `one` predicts than `other`.

        Parameters
        ----------
        one, other : str
            Names of models.

        Returns
        -------
        Difference
            Positive if `one` predicts better.

        Raises
        ------
        PrivacyConfigurationError
            If one of them was not compared.
        """
        unknown = [name for name in (one, other) if name not in self.models]
        if unknown:
            raise PrivacyConfigurationError(
                f"{unknown} were not compared. Compared were {self.models}."
            )
        i, j = self.models.index(one), self.models.index(other)
        u = np.zeros(len(self.models))
        u[i] += 1
        u[j] -= 1
        same = i == j
        return Difference(
            float(u @ self.elpd),
            math.sqrt(max(float(u @ self.covariance @ u), 0.0)),
            0.0 if same else self.noise_sd,
            0.0 if same else self.excess,
        )

    @property
    def table(self) -> pd.DataFrame:
        """A row for each model, the best first, with columns as in ArviZ's ``compare``.

        ``elpd_diff`` is how much worse it predicts than the best, ``dse`` the standard error of that, ``noise_sd`` the
        privacy noise in it, ``sd`` both and what was clipped, ``p`` the optimism taken off.
        """
        diffs = [self.difference(self.models[0], name) for name in self.models]
        return pd.DataFrame(
            {
                "rank": range(len(self.models)),
                "elpd_diff": [d.elpd for d in diffs],
                "dse": [d.se for d in diffs],
                "noise_sd": [d.noise_sd for d in diffs],
                "sd": [d.sd for d in diffs],
                "p": self.optimism,
            },
            index=list(self.models),
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table as text."""
        rows: list[tuple[str, ...]] = [
            ("", "worse by", "90 % interval", "people", "noise", "clipped", "p")
        ]
        for name, p in zip(self.models, self.optimism, strict=True):
            d = self.difference(self.models[0], name)
            cells = [f"{d.elpd:.1f}", "{:.1f} to {:.1f}".format(*d.interval)]
            cells += [f"{x:.1f}" for x in (d.se, d.noise_sd, d.clipped)]
            rows.append((name, *(cells if name != self.models[0] else [""] * 5), f"{p:.1f}"))
        return rows

    @property
    def statement(self) -> str:
        """How to read the table, and what is promised."""
        clipped = max(self.clipped, 0.0)
        return (
            "In nats for all people together. The interval counts that other people would have given another "
            f"difference, the noise, and what was clipped: about {clipped:.0f} people, at {self.bound:.3g}. {beside_draws(self.guarantee)}"
        )


@refuses_from_outside
def compare(
    models: Mapping[str, tuple[pm.Model | CompiledModel, Any]],
    *,
    epsilon: float,
    delta: float | None = None,
    neighbours: str = SUBSTITUTE_ONE.name,
    unit: str | int | ArrayLike | None = None,
    public: Sequence[str] = (),
    ledger: PrivacyLedger | None = None,
    noise_source: NoiseSource | None = None,
) -> Comparison:
    r"""Compare models of the same people by their expected log predictive densities: one private release for all.

    For unit i and model m, :math:`v_{im} = \log \frac1S \sum_s p_m(y_i \mid \theta_s)`, with the released draws
    :math:`\theta_s`, is a function of the unit's records. Contrasts :math:`c_i` of the models are orthonormal
    coordinates of :math:`v_i` less its mean over models. Released are a histogram of :math:`\lVert c_i \rVert`,
    which chooses a bound B, the sum of the clipped :math:`c_i`, and that of their products, for a standard error.
    What densities gain by being those of the people whom the draws were made from is taken off, at no cost.

    **Neighbouring relation**: `neighbours`. **Sensitivity**: in L2 norm κB of the sum, √κ B² of the products, of which no
    two have a negative inner product (κ = 2 if a unit is replaced, 1 if it comes or goes), √κ of the histogram. **Guarantee**: (ε, δ)-DP,
    one Gaussian release divided up on the way by :class:`~pymc_dp.privacy.filter.PrivacyFilter` (Smith and
    Thakurta, 2022, Theorem 1), given the draws, which have guarantees of their own.

    Parameters
    ----------
    models : mapping
        From names to pairs of a model and released draws of it. All models observe the same values of the same
        people, in the same order: see to it, as nothing but the numbers of rows and of units is compared. A person
        who is another row elsewhere counts twice; y and log y cannot be compared (write the second as a
        ``pm.LogNormal`` of y).
    epsilon, delta : float
        Budget of the comparison, beside what the draws have cost. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    neighbours : {"substitute-one", "add-or-remove"}
        As in ``pymc_dp.sample``.
    unit, public
        As they were given to ``pymc_dp.sample``; of models that are compiled already, leave them out.
    ledger : PrivacyLedger, optional
        Account of the data set.
    noise_source : NoiseSource, optional
        For tests only.

    Returns
    -------
    Comparison

    Raises
    ------
    PrivacyError
        If draws have not been released.
    UnsupportedModelError, PrivacyConfigurationError
        If the models are not about the same units, or a setting is out of range. Nothing is spent.
    PrivacyBudgetExceeded
        If it does not fit the ledger. Nothing has been charged or read then.

    Notes
    -----
    A record that a model calls impossible counts against it as much as the bound allows. The densities
    are those of a mixture of 1,000 draws at most. With several records a unit, its density is that of all of
    them together, so that people are predicted, not records.

    Examples
    --------
    >>> found = compare({"linear": (a, draws_a), "curved": (b, draws_b)}, epsilon=0.5)   # doctest: +SKIP
    >>> found.difference("curved", "linear").interval                                    # doctest: +SKIP
    """
    if len(models) < 2:
        raise PrivacyConfigurationError("Give at least two models to compare.")
    drawn = {name: released(idata, "az.compare") for name, (_, idata) in models.items()}
    compiled = {
        name: compile_model(model, **_settings(model, unit, public))
        for name, (model, _) in models.items()
    }
    first = next(iter(compiled.values()))
    refuse_other_units(compiled)
    payment = Payment(
        "compare", first, epsilon=epsilon, delta=delta, neighbours=neighbours, ledger=ledger,
        noise_source=noise_source,
    )  # fmt: skip
    predicting, gains = [], []
    for name, one in compiled.items():
        payment.check(one)
        attrs, groups = drawn[name]
        posterior_and_model(one, attrs, name, payment.noise.secure)
        with doing(f"Compiling {name}"):
            theta = unconstrained_draws(one.parameters, groups["posterior"])
            predicting.append((one.likelihood, theta))
            gains.append(optimism(theta, one.log_public))
    with doing("Comparing predictions"), np.errstate(all="ignore"):
        return _compared(tuple(models), np.array(gains), PredictiveRecords(predicting), payment)


def _settings(model: Any, unit: Any, public: Sequence[str]) -> dict[str, Any]:
    """Of those that are not compiled, each has its part of the public data."""
    if isinstance(model, CompiledModel):
        return {"unit": unit, "public": public}
    data = {v.name for v in pm.modelcontext(model).data_vars}
    return {"unit": unit, "public": [name for name in public if name in data]}


def _compared(
    names: tuple[str, ...], gains: NDArray[np.float64], records: PredictiveRecords, payment: Payment
) -> Comparison:
    """All releases, and what follows from them."""
    H = contrast_basis(len(names))
    contrasts, measure = Contrasts(H), payment.measure(records)
    n, _ = measure.units(_OF_UNITS)
    sizes = measure.histogram(contrasts, _OF_SIZES, _BINS_PER_OCTAVE)
    B = find_bound(contrasts, sizes, measure, _OF_SQUARES)
    clipped, excess = longer(contrasts, B, measure, OF_LAST_COUNT)
    total, noise_sd = measure.sum(contrasts, B, 1 - measure.spent - _OF_SQUARES)
    packed, squares_sd = measure.sum(Squares(contrasts, B), B**2, 1 - measure.spent)
    products = as_matrix(packed, len(H)) - np.outer(total, total) / max(n, 1.0)
    # Not less than it could be: the noise in it counts for one standard deviation of its own.
    values, vectors = np.linalg.eigh(products)
    covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T + squares_sd * np.eye(len(H))
    elpd = H.T @ total - gains
    order = np.argsort(-elpd, kind="stable")
    return Comparison(
        models=tuple(names[k] for k in order),
        elpd=(elpd - elpd.max())[order],
        covariance=(H.T @ covariance @ H)[np.ix_(order, order)],
        # Of two columns of an orthonormal basis, the difference is √2 long.
        noise_sd=math.sqrt(2) * noise_sd,
        optimism=gains[order],
        bound=B,
        clipped=clipped,
        excess=math.sqrt(2) * excess,
        guarantee=payment.guarantee,
    )
