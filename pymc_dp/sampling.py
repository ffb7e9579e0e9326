"""The short way: plan, reserve, sample, release."""

import difflib
import inspect
import logging
from typing import Any

import pymc as pm

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.plan import plan
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.results import release
from pymc_dp.steps.base import PrivateStep
from pymc_dp.steps.penalty import DPPenalty

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
    "target_accept": "",
    "trace": "draws are kept in memory until they are released",
    "backend": "give `compile_kwargs` instead",
}
_OWN = ("draws", "tune", "chains", "epsilon", "delta", "step", "ledger", "unit", "model")


def sample(
    draws: int = 1000,
    *,
    tune: int = 0,
    chains: int = 4,
    epsilon: float,
    delta: float | None = None,
    step: type[PrivateStep] | None = None,
    ledger: PrivacyLedger | None = None,
    unit: Any = None,
    model: pm.Model | None = None,
    **keywords: Any,
) -> Any:
    """Posterior draws whose release is (ε, δ)-differentially private.

    Builds the step (checking the model), charges the whole run to the ledger, calls
    ``pm.sample``, and passes the result through :func:`pymc_dp.release`.

    Parameters
    ----------
    draws, tune, chains : int
        As in ``pm.sample``, but `tune` is 0 by default: every iteration costs budget.
    epsilon, delta : float
        Budget of the whole run, all chains together. `delta` defaults to the
        ledger's, or to 0.1 / units without one.
    step : type, optional
        The algorithm, default :class:`~pymc_dp.DPPenalty`.
    ledger : PrivacyLedger, optional
        Account of the data set, shared by several analyses.
    unit : str, int or array, optional
        Unit of privacy: the records' dimension, their axis, or an identifier per record when a
        person owns several. Default: each record.
    model : Model, optional
        Default: the one whose context this is called in.
    **keywords
        Of the step (``clip``, ``scale``, …) or of ``pm.sample`` (``cores``, ``random_seed``,
        ``initvals``, ``progressbar``, …). Anything else is an error.

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
    step_type = DPPenalty if step is None else step
    if not (isinstance(step_type, type) and issubclass(step_type, PrivateStep)):
        raise PrivacyConfigurationError(
            "`step` is a class here, such as `step=DPPenalty`; its settings are further keywords. "
            "To use a step you built yourself: `release(pm.sample(..., step=step))`."
        )
    model = pm.modelcontext(model)
    for_step, for_host = _split_keywords(step_type, keywords)
    built = step_type(
        draws=draws,
        tune=tune,
        chains=chains,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        unit=unit,
        model=model,
        **for_step,
    )
    _log.info(str(plan(built)))
    built.reserve()
    idata = pm.sample(draws, tune=tune, chains=chains, step=built, model=model, **for_host)
    safe = release(idata)
    _log.info(built.guarantee.sentence)
    return safe


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
        close = difflib.get_close_matches(name, sorted(of_step | of_host | set(_OWN)), n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        raise TypeError(
            f"Neither {step_type.__name__} nor `pm.sample` has a keyword `{name}`.{hint}"
        )
    for_step = {k: v for k, v in keywords.items() if k in of_step}
    for_host = {k: v for k, v in keywords.items() if k in of_host and k not in of_step}
    return for_step, for_host


def _parameters(step_type: type) -> set[str]:
    """Parameters of a class' ``__init__``, and of its parent's if it passes keywords on."""
    found: set[str] = set()
    for cls in step_type.__mro__:
        own = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        found |= {name for name, p in own.items() if p.kind is not p.VAR_KEYWORD}
        if all(p.kind is not p.VAR_KEYWORD for p in own.values()):
            break
    return found
