"""Averages over the private people: marginal effects, standardised risks, rates of subgroups, from one private release."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_dp.assessment.paid import Payment, beside_draws
from pymc_dp.assessment.predictive import posterior_and_model, theta_of
from pymc_dp.assessment.quantities import Average, Quantities
from pymc_dp.assessment.standing import Learnt, People, Standing, learn, look_roughly
from pymc_dp.exceptions import PrivacyConfigurationError, refuses_from_outside
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.linalg import Vector
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.progress import doing
from pymc_dp.report.tables import Table
from pymc_dp.results import released

_OF_UNITS = 0.01  # of the budget, where their number is private
_MOST_DRAWS, _FEWEST_DRAWS = 500, 50
"""A standard deviation of 500 draws is right to 3 %. Below 50 it would not be to 10 %."""
_REPLICATES = 20
"""Of every draw, in intervals: each with noise and people of its own."""


@dataclass(frozen=True, repr=False)
class Averages(Table):
    """Averages over people, joined to draws of the parameters. Shows as a table.

    Parameters
    ----------
    draws : Dataset
        A variable for each average, of dimensions (chain, draw): of some of the posterior's draws, with their labels, and
        with all that is uncertain. Differences and ratios of averages may be taken draw by draw.
    table : DataFrame
        A row for each average: ``mean``, ``sd`` and the 95 % interval from ``low`` to ``high``; and standard deviations that
        ``sd`` is made of: the privacy ``noise`` of this release, ``people``, as others would have given another average, and
        ``parameters``, with the privacy noise of the draws. Infinite where nothing stood out of the noise.
    over : str
        Over the ``"population"`` that people are a sample of, or these ``"people"``.
    guarantee : Guarantee
        Of this release alone; the draws have their own.
    """

    title = "Averages over the people"

    draws: xr.Dataset
    table: pd.DataFrame
    over: str
    guarantee: Guarantee

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table as text."""
        rows: list[tuple[str, ...]] = [
            ("", "mean", "sd", "95 % interval", "noise", "people", "parameters")
        ]
        for name, row in self.table.iterrows():
            interval = f"{row['low']:.4g} to {row['high']:.4g}"
            parts = (f"{row[k]:.2g}" for k in ("noise", "people", "parameters"))
            rows.append((str(name), f"{row['mean']:.4g}", f"{row['sd']:.2g}", interval, *parts))
        return rows

    @property
    def statement(self) -> str:
        """How to read the table, and what is promised."""
        unknown = ", ".join(map(str, self.table.index[~np.isfinite(self.table["sd"])]))
        lost = (
            f" Of {unknown} nothing stood out of the noise: more budget is needed."
            if unknown
            else ""
        )
        whom = {
            "population": "a population that the people are a sample of",
            "people": "these people",
        }
        return (
            f"Averages over {whom[self.over]}. The last columns are what sd is made of: noise of this release, other people, "
            f"and parameters, with the noise of their draws.{lost} {beside_draws(self.guarantee)}"
        )


@refuses_from_outside
def average(
    idata: Any,
    model: pm.Model | CompiledModel,
    of: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    over: Literal["population", "people"] = "population",
    neighbours: str = SUBSTITUTE_ONE.name,
    unit: str | int | ArrayLike | None = None,
    public: Sequence[str] = (),
    ledger: PrivacyLedger | None = None,
    noise_source: NoiseSource | None = None,
) -> Averages:
    r"""Average functions of records and parameters over the private people: effects, standardised risks, rates of subgroups.

    With S released draws :math:`\theta_s`, :math:`F_{is}` is the mean of :math:`f(x, \theta_s)` over unit i's records. Its mean
    over draws :math:`m_i`, whatever the curvature of f, and :math:`F_{is} - m_i`, which joins averages to the draws, are
    functions of the unit's records. Released are clipped sums of both over the units, and of products of the :math:`m_i`,
    by which it is known what other people would have given. Rough sizes are released before, to centre, scale and clip by.

    **Neighbouring relation**: `neighbours`. **Sensitivity**: in L2 norm κ times what a unit's vector is clipped to (κ = 2 if
    a unit is replaced, 1 if it comes or goes); √κ of histograms. **Guarantee**: (ε, δ)-DP, one Gaussian release divided up
    on the way by :class:`~pymc_dp.privacy.filter.PrivacyFilter` (Smith and Thakurta, 2022, Theorem 1), given the draws,
    which have guarantees of their own.

    Parameters
    ----------
    idata : InferenceData or DataTree
        Released draws of `model`.
    model : Model or CompiledModel
        The one that was sampled, with its records.
    of : str, Variable, Average or mapping of these
        What to average, one or several by name: see :class:`Average`.
    epsilon, delta : float
        Budget of all averages together, beside what the draws have cost. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    over : {"population", "people"}
        Whether the people are a sample, and averages are those of the population that they are of.
    neighbours, unit, public
        As in ``pymc_dp.sample``.
    ledger : PrivacyLedger, optional
        Account of the data set.
    noise_source : NoiseSource, optional
        For tests only.

    Returns
    -------
    Averages

    Raises
    ------
    PrivacyError
        If `idata` has not been released.
    UnsupportedModelError, PrivacyConfigurationError
        If what is to be averaged is not a function of one record and of parameters, or a setting is out of range. Nothing
        is spent.
    PrivacyBudgetExceeded
        If it does not fit the ledger. Nothing has been charged or read then.

    Notes
    -----
    An effect is causal if the model is. A unit whose number cannot be computed counts as one in the middle. At
    most 500 draws are used, fewer for more than 16 numbers.

    References
    ----------
    J. Robins. *A new approach to causal inference in mortality studies.* Mathematical Modelling 7, 1986: the g-formula.

    J. Robins, A. Rotnitzky, L. P. Zhao. *Estimation of regression coefficients when some regressors are not always
    observed.* JASA 89, 1994: doubly robust averages.

    Examples
    --------
    >>> effect = Average("p", do={"treated": 1}, minus={"treated": 0})           # doctest: +SKIP
    >>> average(idata, model, {"effect": effect}, epsilon=0.2)                    # doctest: +SKIP
    """
    asked = _asked(of)
    if over not in ("population", "people"):
        raise PrivacyConfigurationError(f'`over` must be "population" or "people". Found {over!r}.')
    attrs, groups = released(idata, "pm.sample_posterior_predictive")
    compiled = compile_model(model, unit=unit, public=public)
    payment = Payment(
        "average", compiled, epsilon=epsilon, delta=delta, neighbours=neighbours, ledger=ledger,
        noise_source=noise_source,
    )  # fmt: skip
    posterior_and_model(compiled, attrs, "`idata`", payment.noise.secure)
    with doing("Compiling what is averaged"):
        quantities = Quantities(compiled, asked)
    posterior = _thinned(groups["posterior"], quantities.numbers)
    theta = theta_of(compiled.parameters, posterior)
    inside = np.isfinite(theta).all(axis=1)
    with doing("Averaging"), np.errstate(all="ignore"):
        found = _found(quantities, theta[inside], payment, over == "population")
    full = np.full((len(asked), len(theta)), np.nan)
    full[:, inside] = [one.draws for one in found]
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    draws = {
        name: (("chain", "draw"), x.reshape(shape)) for name, x in zip(asked, full, strict=True)
    }
    return Averages(
        xr.Dataset(draws, {axis: posterior[axis].values for axis in ("chain", "draw")}),
        pd.DataFrame([one.row for one in found], index=list(asked)),
        over,
        payment.guarantee,
    )


def _asked(of: Any) -> dict[str, Average]:
    """Averages by name."""
    if not isinstance(of, Mapping):
        what = of.of if isinstance(of, Average) else of
        of = {what if isinstance(what, str) else getattr(what, "name", None) or "average": of}
    if not of:
        raise PrivacyConfigurationError(
            "`of` says what to average: `'p'`, or `{'effect': Average('p', do={...}, minus={...})}`."
        )
    return {str(k): x if isinstance(x, Average) else Average(x) for k, x in of.items()}


def _thinned(posterior: xr.Dataset, numbers: int) -> xr.Dataset:
    """Draws of each chain, evenly spaced, so many that all numbers at all of them fit into one sum."""
    most = min(_MOST_DRAWS, MAX_DIMENSION // numbers)
    if most < _FEWEST_DRAWS:
        raise PrivacyConfigurationError(
            f"`of` asks for {numbers} numbers of each record, and {MAX_DIMENSION // _FEWEST_DRAWS} fit into one release."
        )
    draws = posterior.sizes["draw"]
    many = min(draws, max(most // posterior.sizes["chain"], 1))
    return posterior.isel(draw=np.linspace(0, draws - 1, many).round().astype(int))


class _Found(NamedTuple):
    """Draws of an average, and its row of the table."""

    draws: Vector
    row: dict[str, float]


def _found(
    quantities: Quantities, theta: Vector, payment: Payment, population: bool
) -> list[_Found]:
    """All releases, and what follows from them."""
    places = quantities.places
    measure = payment.measure(People(quantities, theta))
    n = max(measure.units(_OF_UNITS)[0], 1.0)
    rough = look_roughly(sorted({p.f for p in places}), measure, n)
    unit, rows = np.eye(quantities.numbers), {}
    for p in places:
        c, s, by_size, _ = rough[p.f]
        if p.w is None or p.wf is None:
            rows[p.f] = unit[p.f] / s, c / s, by_size
        else:
            # Few count of a small group: f less a middle, so that how many hardly matters; and a weight, from -1 to 1.
            rows[p.wf] = (unit[p.wf] - c * unit[p.w]) / s, 0.0, by_size
            rows[p.w] = 2 * unit[p.w], 1.0, 1.0
    place = {number: k for k, number in enumerate(rows)}
    entries = Standing(*(np.array(x) for x in zip(*rows.values(), strict=True)))
    moving = ((entries.A != 0) & quantities.moves).any(axis=1)
    learnt = learn(entries, moving, theta, measure, n, population)
    rng = np.random.default_rng(payment.guarantee.run_id)
    u = learnt.replicates(_REPLICATES, rng)
    found = []
    for p in places:
        c, s, _, largest = rough[p.f]
        slope = np.zeros(entries.dimension)
        if p.w is None or p.wf is None:
            slope[place[p.f]] = s
            x = c + s * u[..., place[p.f]]
        else:
            k, w = place[p.wf], place[p.w]
            share = np.maximum((u[..., w] + 1) / 2, 1 / n)
            x = np.clip(c + s * u[..., k] / share, -largest, largest)
            mean = max((learnt.mean[w] + 1) / 2, 1 / n)
            slope[[k, w]] = s / mean, -s * learnt.mean[k] / mean**2 / 2
        found.append(_row(x, learnt, slope) if largest < np.inf else _nothing(x))
    return found


def _row(x: Vector, learnt: Learnt, slope: Vector) -> _Found:
    """Of replicates of an average, and its slope in what was released."""
    low, high = np.quantile(x, [0.025, 0.975])
    parameters = np.var(learnt.T @ slope) + (learnt.T_sd**2 @ slope**2).mean()
    row = {
        "mean": x.mean(), "sd": x.std(), "low": low, "high": high,
        "noise": learnt.noise_sd * np.linalg.norm(slope),
        "people": np.sqrt(slope @ learnt.people @ slope),
        "parameters": np.sqrt(parameters),
    }  # fmt: skip
    return _Found(x[0], {k: float(v) for k, v in row.items()})


def _nothing(x: Vector) -> _Found:
    row = dict.fromkeys(("sd", "high", "noise", "people", "parameters"), np.inf)
    return _Found(np.full(x.shape[1], np.nan), {"mean": np.nan, **row, "low": -np.inf})
