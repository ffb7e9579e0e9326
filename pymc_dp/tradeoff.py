"""What ε buys for a model, found out on made-up data."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.simulator import SimulatorRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dp.compat import ancestors, summary
from pymc_dp.exceptions import (
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
)
from pymc_dp.likelihood.compiled import compile_model
from pymc_dp.likelihood.nodes import all_data_nodes, data_nodes, shapes_of_data
from pymc_dp.mmd import stacked
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.sampling import sample
from pymc_dp.steps.host import PrivateStep
from pymc_dp.steps.run import check_finite_epsilon

_OWN = ("epsilon", "ledger", "noise", "noise_multiplier")
_REFERENCE = {"draws": 1000, "tune": 1000, "chains": 2}
_INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class Tradeoff:
    """Private posteriors of made-up data beside the one that needs no privacy.

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
        Of the private runs.
    """

    epsilons: tuple[float, ...]
    labels: tuple[str, ...]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    r_hat: NDArray[np.float64]


def tradeoff(
    model: pm.Model,
    *,
    epsilons: Sequence[float],
    data: Mapping[str, ArrayLike],
    truth: Mapping[str, ArrayLike],
    var_names: Sequence[str] | None,
    step: type[PrivateStep] | None,
    draws: int,
    tune: int,
    chains: int,
    random_seed: int,
    public: Sequence[str],
    **keywords: Any,
) -> Tradeoff:
    """Sample made-up data at each ε and without privacy; see :func:`pymc_dp.plot_tradeoff`."""
    for name in _OWN:
        if name in keywords:
            raise TypeError(
                f"`{name}` has no place here: each of `epsilons` is tried on made-up data, with "
                "reproducible noise, and nothing is charged to any budget."
            )
    for epsilon in epsilons:
        check_finite_epsilon(epsilon)
    epsilons = sorted({float(e) for e in epsilons})
    if not epsilons:
        raise PrivacyConfigurationError("`epsilons` is empty. Give at least one.")
    names = [rv.name for rv in model.free_RVs] if var_names is None else list(var_names)
    compile_kwargs = keywords.get("compile_kwargs")
    settings: dict[str, Any] = {
        "random_seed": random_seed,
        "cores": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with _silence():
        fake = with_made_up_data(
            model, data=data, truth=truth, public=public, seed=random_seed,
            compile_kwargs=compile_kwargs,
        )  # fmt: skip
        of_model = {
            k: keywords.pop(k) for k in ("unit", "chunk_size", "compile_kwargs") if k in keywords
        }
        compiled = compile_model(fake, public=public, **of_model)
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
                    noise=InsecureSeededNoise(random_seed),
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


@contextmanager
def _silence() -> Iterator[None]:
    """Keep PyMC's and our own reports of runs that nobody is to take for real ones off the log."""
    log = logging.getLogger("pymc")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


# -- made-up data -----------------------------------------------------------------------------------


def with_made_up_data(
    model: pm.Model,
    *,
    data: Mapping[str, ArrayLike],
    truth: Mapping[str, ArrayLike],
    public: Sequence[str],
    seed: int,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> pm.Model:
    """A copy of a model that observes what the model itself predicts.

    Of the data that `model` holds, nothing but the sizes is used: every ``pm.Data`` of the copy is
    replaced before anything is computed, observed values are drawn from the model, and arrays of
    the records' length that cannot be replaced are refused.

    Parameters
    ----------
    model : Model
        Stays as it is.
    data : mapping
        Made-up values of the ``pm.Data`` that the outcomes depend on.
    truth : mapping
        Values of parameters that the outcomes are drawn with; the others come from their priors.
    public : sequence of str
        ``pm.Data`` that hold nothing private and keep their values.
    seed : int
        Of the draw.
    compile_kwargs : mapping, optional
        For compiling the draw.

    Returns
    -------
    Model

    Raises
    ------
    UnsupportedModelError, PrivacyConfigurationError
        If some data cannot be replaced, or are not named.
    """
    _check_names(model, data, truth)
    _refuse_functions(model)
    n = _observed_length(model)
    _refuse_baked_in(_everything(model), n, model.data_vars)
    copy = _intervene(model, _replacements(model, data, public))
    shapes = {v.name: v.get_value(borrow=True).shape for v in copy.data_vars}
    source = _intervene(copy, truth)
    outcomes = [rv.name for rv in model.observed_RVs]
    values = pm.draw(
        [source[name] for name in outcomes], random_seed=seed, **dict(compile_kwargs or {})
    )
    for name, value in zip(outcomes, values, strict=True):
        nodes = [v.name for v in data_nodes([model.rvs_to_values[model[name]]])]
        # Observed values in a pm.Data stay in one: some likelihoods cannot be taken apart otherwise.
        if len(nodes) == 1 and shapes.get(nodes[0]) == np.shape(value):
            copy = _intervene(copy, {nodes[0]: value})
        else:
            copy = pm.observe(copy, {name: value})
    # A density may be a function of its own, apart from what draws are made by.
    made_up = data_nodes([copy.rvs_to_values[copy[name]] for name in outcomes])
    _refuse_baked_in([copy.logp()], n, [*copy.data_vars, *made_up])
    return copy


def _check_names(model: pm.Model, data: Mapping[str, Any], truth: Mapping[str, Any]) -> None:
    if not model.observed_RVs:
        raise UnsupportedModelError(
            "The model has no observed variables, so it is not known which are the outcomes. Give "
            "them `observed=...`; the values are not looked at, only their shape."
        )
    for given, known, what in (
        (data, model.data_vars, "`data` names {}, which the model has no `pm.Data` for"),
        (truth, model.free_RVs, "`truth` names {}, which are no free variables of the model"),
    ):
        unknown = sorted(set(given) - {v.name for v in known})
        if unknown:
            raise PrivacyConfigurationError(
                what.format(unknown) + f". It has {sorted(v.name for v in known)}."
            )
    started = [rv.name for rv, value in model.rvs_to_initial_values.items() if value is not None]
    if started:
        raise UnsupportedModelError(
            f"{started} have an `initval`, and PyMC cannot copy a model that has one. Leave it out, "
            "and pass `initvals=` instead."
        )


def _refuse_functions(model: pm.Model) -> None:
    for rv in model.basic_RVs:
        if isinstance(rv.owner.op, CustomDistRV | SimulatorRV):
            raise UnsupportedModelError(
                f"{rv.name!r} is drawn by a function of yours, which may have captured data that "
                "nobody can see and replace. Write it as `pm.CustomDist` with `dist=`."
            )


def _refuse_baked_in(graphs: Sequence[Variable], n: int, known: Collection[Variable]) -> None:
    """Refuse graphs with an array of the records' length in them, apart from those known."""
    for node in all_data_nodes(graphs):
        held = _held(node)
        if node in known or held.size <= 1:
            continue
        if n in held.shape or held.size >= n:
            raise UnsupportedModelError(
                f"The model has an array of shape {held.shape} written into it that may hold "
                "the records, and it cannot be replaced. Make it a `pm.Data` and give made-up values "
                "for it: `data={'its name': ...}`."
            )


def _observed_length(model: pm.Model) -> int:
    """Number of records, as nearly as shapes tell: the longest axis of an observed value."""
    nodes = data_nodes([model.rvs_to_values[rv] for rv in model.observed_RVs])
    return max((length for node in nodes for length in _held(node).shape), default=1)


def _replacements(
    model: pm.Model, data: Mapping[str, ArrayLike], public: Sequence[str]
) -> dict[str, Any]:
    graphs = _everything(model)
    needed = set(ancestors(graphs, blockers=shapes_of_data(graphs, [])))
    found: dict[str, Any] = {}
    for v in model.data_vars:
        shape = _held(v).shape
        if v.name in data:
            found[v.name] = np.asarray(data[v.name])
            if found[v.name].shape != shape:
                raise PrivacyConfigurationError(
                    f"The made-up values of {v.name!r} must have its shape, {shape}. Found "
                    f"{found[v.name].shape}."
                )
        elif v not in needed:
            found[v.name] = np.zeros(shape)
        elif v.name not in public:
            raise PrivacyConfigurationError(
                f"The outcomes depend on the `pm.Data` {v.name!r}, whose values are not looked at. Give "
                f"made-up ones of shape {shape}: `data={{{v.name!r}: ...}}`; or, if they hold "
                f"nothing private, `public=[{v.name!r}]`."
            )
    return found


def _everything(model: pm.Model) -> list[Any]:
    """All that the model computes, which is not the same as what it observes."""
    return [*model.basic_RVs, *model.potentials, *model.deterministics]


def _held(node: Any) -> NDArray[Any]:
    """The array in a data node, for its shape."""
    held = node.get_value(borrow=True) if isinstance(node, SharedVariable) else node.data
    return np.asarray(held)


def _intervene(model: pm.Model, values: Mapping[str, Any]) -> pm.Model:
    if not values:
        return model
    return pm.do(
        model, {name: np.asarray(value, model[name].dtype) for name, value in values.items()}
    )
