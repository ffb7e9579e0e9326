"""The short way: plan, reserve, sample, release."""

import difflib
import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.compat import from_groups, groups_of, make_progress_bar, summary
from pymc_dp.diagnostics import NOT_USABLE
from pymc_dp.exceptions import NoSurrogateError, PrivacyConfigurationError, refuses_from_outside
from pymc_dp.interrupts import deferred
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.formulas import is_formula
from pymc_dp.likelihood.unit import effects_by_record
from pymc_dp.planning import plan
from pymc_dp.privacy.guarantee import at_most
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.progress import doing, hidden, no_advice_on_chains, quiet_pymc
from pymc_dp.results import release, still_chains
from pymc_dp.steps.base import PrivateStep
from pymc_dp.steps.exponential import DPExponentialFamily
from pymc_dp.steps.guards import check_initial_values
from pymc_dp.steps.hmc import DPHMC
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.surrogate import DPSurrogate

# A child of PyMC's own logger: messages appear where PyMC's do, and are silenced with them.
_log = logging.getLogger("pymc.dp")

# What makes no sense for a private run, and why.
_REFUSED = {
    "idata_kwargs": "it can put exact log-likelihoods and data into the result",
    "return_inferencedata": "the guarantee is written on the returned InferenceData",
    "nuts_sampler": "a private step does the sampling",
    "nuts": "a private step does the sampling",
    "nuts_sampler_kwargs": "a private step does the sampling",
    "init": "there is no data-driven initialisation; use `initvals`",
    "n_init": "there is no data-driven initialisation; use `initvals`",
    "jitter_max_retries": "there is no data-driven initialisation; use `initvals`",
    "target_accept": "it is a setting of NUTS",
    "trace": "draws are kept in memory until they are released",
    "backend": "give `compile_kwargs` instead",
}
# Below so many draws diagnostics say nothing; below so many effective ones, draws say little.
_ENOUGH_TO_JUDGE, _FEW_EFFECTIVE = 100, 100
_FREE = "ask the next run for more, `draws` cost nothing with this step."
_NOT_EXPLORED = (
    "the chains have not explored the posterior, and intervals are not to be trusted. More budget, fewer parameters or "
    "another `step` may help."
)

_DRAWS, _FEW_DRAWS = 1000, 400
_OF_MODEL = ("public", "chunk_size", "compile_kwargs")
_OWN = (
    "draws", "tune", "chains", "epsilon", "delta", "neighbours", "step", "ledger", "unit", "model",
)  # fmt: skip


@refuses_from_outside
def sample(
    first: Any = None,
    /,
    *,
    draws: int | None = None,
    tune: int = 0,
    chains: int = 4,
    epsilon: float,
    delta: float | None = None,
    neighbours: str = SUBSTITUTE_ONE.name,
    step: type[PrivateStep] | partial[PrivateStep] | None = None,
    ledger: PrivacyLedger | None = None,
    unit: Any = None,
    model: pm.Model | CompiledModel | None = None,
    **keywords: Any,
) -> Any:
    """Posterior draws whose release is (ε, δ)-differentially private.

    Builds the step (checking the model), charges the whole run to the ledger, calls
    ``pm.sample``, and passes the result through :func:`pymc_dp.release`. What it says of convergence takes the place of
    PyMC's own remarks; the last line says whether the draws are usable, and if not, why and what would help.

    Parameters
    ----------
    first : int or model, optional
        The number of draws, as in ``pm.sample(1000)``, or the model: ``sample(model, draws=500, epsilon=1)``. Each can be
        given by name as well, but not twice.
    draws, tune, chains : int
        As in ``pm.sample``, but `tune` is 0 by default: every iteration costs budget. 1000 draws by default.
    epsilon, delta : float
        Budget of the whole run, all chains together. `delta` defaults to the
        ledger's, or to 0.1 / units without one, if their number is public.
    neighbours : {"substitute-one", "add-or-remove"}
        What the guarantee is about, as in :class:`~pymc_dp.steps.run.RunSettings`: one unit replaced, or one that
        is there or not. The second keeps the number of units private, and needs `delta`.
    step : type or partial, optional
        The algorithm: the class of a step, or a ``functools.partial`` of it with some of its settings. Default:
        :class:`~pymc_dp.DPSurrogate`, which needs no setting but the budget; for a likelihood that it cannot
        differentiate :class:`~pymc_dp.DPHMC`.
    ledger : PrivacyLedger, optional
        Account of the data set, shared by several analyses.
    unit : str, int or array, optional
        Unit of privacy: the records' dimension, their axis, or an identifier per record when a
        person owns several. Default: each record.
    model : Model, CompiledModel or bambi.Model, optional
        Default: the one whose context this is called in.
    **keywords
        Of the step (``clip``, ``scale``, …) or of ``pm.sample`` (``cores``, ``random_seed``,
        ``initvals``, ``progressbar``, …). Anything else is an error, and so are initial values that are
        not plain numbers: an expression of the data would be the first draw.

    Returns
    -------
    InferenceData or DataTree
        What the installed PyMC returns, without anything private, with root attributes
        ``privacy_*`` and a group ``privacy``.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands.
    PrivacyConfigurationError, TypeError
        If a setting is out of range or unknown.
    PrivacyBudgetExceeded
        If the run does not fit the ledger. Nothing has been charged or read then.

    Examples
    --------
    >>> with model:                                                    # doctest: +SKIP
    ...     idata = sample(1000, chains=4, epsilon=2.0)
    >>> idata.attrs["privacy_epsilon"]                                 # doctest: +SKIP
    2.0
    """
    draws, model = _draws_and_model(first, draws, model)
    chosen: Any = step
    if isinstance(step, partial) and not step.args:
        chosen, keywords = step.func, {**step.keywords, **keywords}
    if step is not None and not (isinstance(chosen, type) and issubclass(chosen, PrivateStep)):
        raise PrivacyConfigurationError(
            "`step` takes the class of a private step, such as `step=pymc_dp.DPPenalty`, or a partial of it; "
            "its settings can also be further keywords of `sample`. To use a step you built yourself: "
            "`release(pm.sample(..., step=step))`."
        )
    for_step, for_host = _split_keywords(chosen or DPSurrogate, keywords)
    check_initial_values(for_host.get("initvals"))
    for_host.setdefault("compute_convergence_checks", False)
    _log.info("Checking and compiling the model. Nothing is spent on that.")
    of_model = {name: for_step.pop(name) for name in _OF_MODEL if name in for_step}
    quietly = for_host.get("progressbar", True) is False
    with hidden(quietly), doing("Checking the model"):
        common = {
            "draws": draws, "tune": tune, "chains": chains, "epsilon": epsilon, "delta": delta,
            "neighbours": neighbours, "ledger": ledger, "model": compile_model(model, unit=unit, **of_model), **for_step,
        }  # fmt: skip
        built = _default_step(common) if chosen is None else chosen(**common)
    _ask_for_unit(built)
    _log.info(plan(built).short)
    for caution in built.guarantee.cautions:
        _log.warning("%s", caution)
    for_host["var_names"] = _without_left_out(built, for_host.get("var_names"))
    if for_step.get("shards") is not None and for_host.setdefault("cores", 1) != 1:
        raise PrivacyConfigurationError(
            "With `shards` the chains run one after the other, each on all workers: leave `cores` out."
        )
    if isinstance(built, DPSurrogate):
        for_host["cores"] = 1  # draws that are there need no processes
        if built.guarantee.chains * built.guarantee.draws < _FEW_DRAWS:
            _log.info(
                "These are few draws. With %s more of them cost nothing: `draws=1000`.",
                type(built).__name__,
            )
    _rehearse(built, for_host)
    with hidden(quietly):
        built.prepare()
    found = _sampled(built, for_host)
    with deferred(lambda: None):
        safe = release(found)
        _log.info(built.guarantee.sentence)
        _diagnose(safe, built)
    return safe


def _draws_and_model(first: Any, draws: Any, model: Any) -> tuple[Any, Any]:
    """What was asked for, whichever of the two came first."""
    if isinstance(first, pm.Model | CompiledModel) or is_formula(first):
        if model is not None:
            raise PrivacyConfigurationError(
                "The model is given twice: first, and as `model`. Leave one of them out."
            )
        model = first
    elif first is not None:
        if draws is not None:
            raise PrivacyConfigurationError(
                "The number of draws is given twice: first, and as `draws`. Leave one of them out."
            )
        draws = first
    return (_DRAWS if draws is None else draws), model


def _rehearse(step: PrivateStep, for_host: dict[str, Any]) -> None:
    """Let whatever can fail without any data fail now: imports, processes, arguments of the host, the way back.

    The whole way is gone with chains that stand still, and nothing is charged. A progress bar that cannot be shown
    is left out.
    """
    try:
        make_progress_bar(step, for_host)
    except ImportError as missing:
        for_host["progressbar"] = False
        _log.warning("No progress bar is shown: %s.", missing)
    still = {**for_host, "random_seed": 0, "callback": None, "progressbar": False}
    with step.rehearsing(), quiet_pymc(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pm.sample(
            _ENOUGH_TO_JUDGE, tune=0, chains=step.guarantee.chains, step=step, model=step.model, **still
        )  # fmt: skip
        with np.errstate(all="ignore"):
            _diagnose(release(found), step)


def _sampled(step: PrivateStep, for_host: Mapping[str, Any]) -> Any:
    """What the host returns; what an interrupt has left, if anything."""
    plan = step.guarantee
    free = isinstance(step, DPSurrogate)
    go = partial(
        pm.sample, plan.draws, tune=plan.tune, chains=plan.chains, step=step, model=step.model, **for_host
    )  # fmt: skip

    def end() -> None:
        step.was_interrupted = True
        _log.warning(
            "Interrupted: %s. Once more, and it ends at once.",
            "handing out the draws, which are all paid for"
            if free
            else "the run ends with this iteration",
        )

    in_processes = for_host.get("cores") != 1 and plan.chains > 1
    try:
        with no_advice_on_chains(free), nullcontext() if in_processes else deferred(end):
            try:
                found = go()
            except Exception as failure:
                if not free:
                    raise
                _log.warning(
                    "%s while draws were handed out, which are paid for: once more, and plainly.",
                    type(failure).__name__,
                )
                found = go(progressbar=False, callback=None)
    except (KeyboardInterrupt, ValueError) as ended:
        # PyMC has no result of chains without draws, and says so by a ValueError.
        if isinstance(ended, ValueError) and not step.was_interrupted:
            raise
        _log.error(
            "Interrupted: there is nothing to return. The whole run stays charged, ε = %s.",
            at_most(plan.epsilon),
        )
        raise KeyboardInterrupt from None
    sizes = groups_of(found)["posterior"].sizes
    if (sizes["chain"], sizes["draw"]) != (plan.chains, plan.draws):
        _log.warning(
            "The run ended early: of %s chains of %s draws there are %s of %s (chains are cut to one length, and "
            "those left out with which there would be fewer draws in all). The whole run stays charged.",
            plan.chains, plan.draws, sizes["chain"], sizes["draw"],
        )  # fmt: skip
    return found


def _ask_for_unit(step: PrivateStep) -> None:
    """Refuse to guess whose the rows are, where a model has an effect for each of many."""
    if step.roles.unit_given:
        return
    found = effects_by_record(step.model, step.roles)
    if found is not None:
        name, levels = found
        raise PrivacyConfigurationError(
            f"The likelihood reads {name!r}, of {levels} values, by an index: rows with one index may be one person's, "
            "and each row would be protected on its own only. Say what is protected: `unit=` and the array of "
            "identifiers, one per row, if a person has several rows; `unit=0` if every row is somebody else's. If "
            f"{name!r} is of persons, `pymc_dp.integrate_out(model, {name!r})` makes one record of each."
        )


def _default_step(keywords: dict[str, Any]) -> PrivateStep:
    """DPSurrogate, or DPHMC where there can be none. Nothing is spent on finding out."""
    try:
        return DPSurrogate(**keywords)
    except NoSurrogateError as error:
        unknown = sorted(set(keywords) - _parameters(DPHMC))
        if unknown:
            raise
        _log.warning("%s Using DPHMC instead; nothing has been spent on this.", error)
        return DPHMC(**keywords)


def _without_left_out(step: PrivateStep, asked: Sequence[str] | None) -> list[str]:
    """What ``pm.sample`` is to keep: all that was asked for, but what depends on private data."""
    left_out = step.roles.left_out
    known = [v.name for v in step.model.unobserved_RVs]
    names = known if asked is None else list(asked)
    if unknown := [name for name in names if name not in known]:
        raise PrivacyConfigurationError(
            f"`var_names` has {unknown}, which the model does not. It has {known}."
        )
    missed = [name for name in names if name in left_out]
    if missed:
        _log.info(
            "Left out of the result, because private data are in them: %s. For rows that you may publish, compute "
            "them from the released draws; `pymc_dp.predict` draws outcomes.",
            ", ".join(missed),
        )
    return [name for name in names if name not in left_out]


def _diagnose(safe: Any, step: PrivateStep) -> None:
    """Say whether the draws are usable: a function of released draws, statistics and settings."""
    groups, free = groups_of(safe), isinstance(step, DPSurrogate)
    statistics = groups["sample_stats"]
    found = [] if free else [f"acceptance {float(statistics['accept_rate'].mean()):.2f}"]
    said, more = (step.summary() or ["usable"])[0], ""
    if statistics.sizes["draw"] >= _ENOUGH_TO_JUDGE:
        table = summary(from_groups({"posterior": groups["posterior"]}, {}, like=safe)).astype(
            float
        )
        effective = table["ess_bulk"].copy()
        if len(still_chains(groups)) == statistics.sizes["chain"]:
            effective[:] = 0.0  # ArviZ counts every draw of a constant
        found.append(f"effective draws at least {effective.min():.0f}")
        if statistics.sizes["chain"] > 1:
            found.append(f"R-hat at most {table['r_hat'].max():.2f}")
        if effective.min() < _FEW_EFFECTIVE:
            more = f" Only {effective.min():.0f} effective draws of {effective.idxmin()}: "
            more += _FREE if free else _NOT_EXPLORED
            said = said if free else NOT_USABLE
    elif not free:
        said = f"not known to be usable, as {statistics.sizes['draw']} draws are too few to tell"
    level = logging.WARNING if more or said.startswith(NOT_USABLE) else logging.INFO
    shown = "" if free and said.startswith(NOT_USABLE) else ", ".join(["", *found]) + "."
    _log.log(level, "%s: %s%s%s", type(step).__name__, said, shown, more)


def _split_keywords(
    step_type: type[PrivateStep], keywords: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords of the step, and those of ``pm.sample``."""
    of_step = _parameters(step_type) - {"self", "vars", *_OWN}
    of_host = set(inspect.signature(pm.sample).parameters) - {"kwargs", *_OWN, *_REFUSED}
    for name in keywords:
        if name in of_step or name in of_host:
            continue
        if name in _REFUSED and name not in of_step:
            reason = _REFUSED[name]
            raise TypeError(
                f"`{name}` cannot be used in a private run" + (f": {reason}." if reason else ".")
            )
        elsewhere = [
            t.__name__ for t in (DPPenalty, DPHMC, DPExponentialFamily) if name in _parameters(t)
        ]
        if elsewhere and name not in _OWN:
            raise TypeError(
                f"{step_type.__name__} has no setting `{name}`, but {' and '.join(elsewhere)} has: "
                f"add `step=pymc_dp.{elsewhere[0]}`, or leave `{name}` out."
            )
        close = difflib.get_close_matches(name, sorted(of_step | of_host | set(_OWN)), n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        raise TypeError(
            f"Neither {step_type.__name__} nor `pm.sample` has a keyword `{name}`.{hint}"
        )
    for_step = {k: v for k, v in keywords.items() if k in of_step}
    for_host = {k: v for k, v in keywords.items() if k in of_host and k not in of_step}
    return for_step, for_host


def _parameters(step_type: type) -> set[str]:
    return set(inspect.signature(step_type).parameters)
