"""What ε buys for a model, found out on made-up data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_dp.compat import summary
from pymc_dp.evidence.made_up_data import with_made_up_data
from pymc_dp.evidence.mmd import stacked
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
)
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.formulas import comes_of_formula, pymc_model
from pymc_dp.privacy.budget import check_finite_epsilon
from pymc_dp.privacy.neighbours import ADD_OR_REMOVE
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.progress import quiet_pymc
from pymc_dp.report.tables import Table
from pymc_dp.sampling import sample
from pymc_dp.steps.base import PrivateStep

_OWN = ("epsilon", "ledger", "noise_source", "noise_multiplier")
_OF_MODEL = ("unit", "chunk_size", "compile_kwargs")
_REFERENCE = {"draws": 1000, "tune": 1000, "chains": 2}
_INTERVAL = (0.05, 0.95)

MIXED = 1.05
"""R-hat above which chains have not mixed, as for ArviZ."""


@dataclass(frozen=True, repr=False)
class Tradeoff(Table):
    """Private posteriors of made-up data beside the one that needs no privacy. Shows as a table.

    Parameters
    ----------
    epsilons : tuple of float
        ε of each private run, increasing.
    labels : tuple of str
        Names of the parameters.
    mean, low, high : ndarray of shape (runs + 1, parameters)
        Posterior mean and ends of the 90 % interval, in posterior standard deviations from the mean
        of the non-private posterior. The last row is the non-private posterior itself; a run that the
        step gave up is NaN.
    r_hat : ndarray of shape (runs, parameters)
        Of the private runs; NaN where all chains stood still.
    """

    title = "What ε buys, on made-up data"

    epsilons: tuple[float, ...]
    labels: tuple[str, ...]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    r_hat: NDArray[np.float64]

    @property
    def mixed(self) -> NDArray[np.bool_]:
        """Whether R-hat is small enough, for each run and parameter; the last row is the non-private run."""
        return np.vstack([self.r_hat <= MIXED, np.full((1, len(self.labels)), True)])

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table: a row for each parameter, a column for each ε and one without privacy."""
        columns = [*(f"ε = {epsilon:g}" for epsilon in self.epsilons), "not private"]
        return [("", *columns)] + [
            (label, *(self._cell(run, parameter) for run in range(len(columns))))
            for parameter, label in enumerate(self.labels)
        ]

    def _cell(self, run: int, parameter: int) -> str:
        mean, low, high = (x[run, parameter] for x in (self.mean, self.low, self.high))
        if math.isnan(mean):
            return "no result"
        mark = "" if self.mixed[run, parameter] else "*"
        return f"{mean:+.2f} ({low:+.2f} to {high:+.2f}){mark}"

    @property
    def statement(self) -> str:
        """How to read the table."""
        text = (
            "Means and 90 % intervals, in standard deviations of the posterior without privacy from its "
            "mean: from about -1.6 to 1.6 is as good as it gets."
        )
        if (~self.mixed & np.isfinite(self.mean)).any():
            text += f" *: R-hat above {MIXED}, so the chains did not mix and the interval is not reliable."
        if np.isnan(self.mean).any():
            text += " No result: the step gave up for want of budget."
        return text


def tradeoff(
    model: pm.Model | CompiledModel,
    *,
    epsilons: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    data: Mapping[str, ArrayLike] | None = None,
    truth: Mapping[str, ArrayLike] | None = None,
    var_names: Sequence[str] | None = None,
    step: type[PrivateStep] | None = None,
    draws: int = 1000,
    tune: int = 0,
    chains: int = 2,
    random_seed: int = 0,
    public: Sequence[str] = (),
    **keywords: Any,
) -> Tradeoff:
    """What ε buys for a model, on made-up data: costs no budget and never looks at the real data.

    Outcomes are drawn from the model itself, and their posterior is sampled at each ε and without
    privacy. That takes minutes; :func:`~pymc_dp.plot_tradeoff` draws what was found.

    Parameters
    ----------
    model : Model or CompiledModel
        As for ``pymc_dp.sample``. Of its data only the sizes are used: every value is replaced before
        anything is computed, and a model in which that cannot be done is refused; so is one of bambi's.
    epsilons : sequence of float
        The budgets to compare.
    data : mapping, optional
        Made-up values for each ``pm.Data`` that the outcomes depend on, such as covariates, by name.
    truth : mapping, optional
        Parameters to draw the outcomes with, by name. Default: one draw of the prior.
    var_names : list of str, optional
        Variables to show. Default: all free variables.
    step, draws, tune, chains
        As in ``pymc_dp.sample``.
    random_seed : int
        Of the made-up data, the sampler and the noise: the result can be repeated.
    public : sequence of str
        Names of ``pm.Data`` that hold nothing private and keep their values.
    **keywords
        Of the step (``clip``, ``scale``, …) or of ``pm.sample``.

    Returns
    -------
    Tradeoff
        Prints as a table.

    Raises
    ------
    UnsupportedModelError, PrivacyConfigurationError
        If some data cannot be replaced or are not named, or the model cannot be sampled privately.

    Notes
    -----
    One data set is drawn, and one run made per ε, all with the same noise but for its size; another
    `random_seed` shows how much hangs on them. Whether the chains mixed is in ``r_hat``.

    Values that were computed from the data and written into the model as a prior or a scale are
    used as they are; nobody can tell them from public knowledge.
    """
    for name in _OWN:
        if name in keywords:
            raise TypeError(
                f"`{name}` has no place here: each of `epsilons` is tried on made-up data, with "
                "reproducible noise, and nothing is charged to any budget."
            )
    if keywords.get("neighbours") == ADD_OR_REMOVE.name:
        raise PrivacyConfigurationError(
            "There are as many made-up records as real ones, so that the result would tell their number, which "
            f'is private with `neighbours="{ADD_OR_REMOVE.name}"`. Use a model with a public number of records, '
            "and leave `neighbours` out."
        )
    for epsilon in epsilons:
        check_finite_epsilon(epsilon)
    epsilons = sorted({float(e) for e in epsilons})
    if not epsilons:
        raise PrivacyConfigurationError("`epsilons` is empty. Give at least one.")
    if isinstance(model, CompiledModel):
        # One that is compiled brings its unit and the like; they cannot be given twice.
        compile_model(model, public=public, **{k: keywords[k] for k in _OF_MODEL if k in keywords})
        of_model = model.settings
        model = model.model
    else:
        model = pymc_model(model)
        of_model = {k: keywords[k] for k in _OF_MODEL if k in keywords} | {"public": public}
    if comes_of_formula(model):
        raise UnsupportedModelError(
            "Bambi writes the table's columns into the model, where `tradeoff` cannot put made-up ones in their place. "
            "`pymc_dp.expected_privacy_shift` takes the model as it is; for a trade-off write it in PyMC, with each "
            "covariate a `pm.Data`."
        )
    public, compile_kwargs = of_model["public"], of_model.get("compile_kwargs")
    keywords = {k: value for k, value in keywords.items() if k not in _OF_MODEL}
    names = [rv.name for rv in model.free_RVs] if var_names is None else list(var_names)
    settings: dict[str, Any] = {
        "random_seed": random_seed,
        "cores": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with quiet_pymc():
        fake = with_made_up_data(
            model, data=data or {}, truth=truth or {}, public=public, seed=random_seed,
            compile_kwargs=compile_kwargs,
        )  # fmt: skip
        compiled = compile_model(fake, **of_model)
        runs: list[Any] = []
        for epsilon in epsilons:
            try:
                run = sample(
                    draws,
                    tune=tune,
                    chains=chains,
                    epsilon=epsilon,
                    step=step,
                    model=compiled,
                    noise_source=InsecureSeededNoise(random_seed),
                    **{**settings, **keywords},
                )
            except (UnsupportedModelError, PrivacyConfigurationError):
                raise
            except PrivacyError:  # this budget is too small for this step
                if epsilon == epsilons[-1] and all(r is None for r in runs):
                    raise
                run = None
            runs.append(run)
        reference = {"compile_kwargs": compile_kwargs} if compile_kwargs else {}
        exact = stacked(pm.sample(**_REFERENCE, **settings, **reference, model=fake), names)

    center, spread = exact.mean(axis=0), exact.std(axis=0)
    nothing = np.full((1, len(center)), np.nan)
    posteriors = [*(nothing if run is None else stacked(run, names) for run in runs), exact]
    relative = [(posterior - center) / spread for posterior in posteriors]
    with np.errstate(all="ignore"):  # chains that stood still
        tables = [None if run is None else summary(run, var_names=names) for run in runs]
    r_hat = [nothing[0] if t is None else t["r_hat"].to_numpy(float) for t in tables]
    low, high = np.swapaxes([np.quantile(r, _INTERVAL, axis=0) for r in relative], 0, 1)
    return Tradeoff(
        epsilons=tuple(epsilons),
        labels=next(tuple(map(str, t.index)) for t in tables if t is not None),
        mean=np.array([r.mean(axis=0) for r in relative]),
        low=low,
        high=high,
        r_hat=np.array(r_hat),
    )
