"""Models written as formulas, with bambi: the PyMC model in them, and what bambi takes from the data on the way.

Nothing is imported of bambi; a model of it is known by what it has.
"""

import re
from typing import Any, NoReturn

import pymc as pm

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError

_RECORDS = "__obs__"
"""What bambi calls the records' dimension, in every model that it builds."""
_STATEFUL = ("bs", "center", "hsgp", "poly", "scale", "standardize")
"""Functions of a formula that keep a mean, a standard deviation, quantiles or the like of a column."""
_SCALED = {"gaussian": "sigma", "t": "sigma", "vonmises": "kappa"}
"""Parameters for whose default prior bambi uses the outcome's standard deviation, by family."""
_READ = "_formula_read"
"""Attribute of a built model of which the formula has been looked at."""


def is_formula(model: Any) -> bool:
    """Whether something is a bambi model."""
    return all(hasattr(model, name) for name in ("backend", "formula", "family", "build"))


def comes_of_formula(model: pm.Model) -> bool:
    """Whether a PyMC model is the one in a bambi model that was looked at."""
    return hasattr(model, _READ)


def pymc_model(model: Any) -> Any:
    """The PyMC model of a bambi model, built if it is not yet; a PyMC model, or None, is returned as it is.

    Raises
    ------
    UnsupportedModelError
        If statistics of the data are in it: means of columns, scales of default priors, knots.
    PrivacyConfigurationError
        If it is something else.
    """
    if model is None or isinstance(model, pm.Model):
        return model
    if not is_formula(model):
        raise PrivacyConfigurationError(
            "`model` must be a PyMC model, a bambi model, or what `pymc_dp.compile` returns. Found "
            f"{type(model).__name__}."
        )
    formula = model.formula
    texts = [formula.main, *formula.additionals]
    used = [name for name in _STATEFUL if any(re.search(rf"\b{name}\s*\(", t) for t in texts)]
    if used:
        raise UnsupportedModelError(
            f"The formula has {', '.join(f'`{name}(...)`' for name in used)}, computed with statistics of all "
            "records (means, standard deviations, quantiles), which no noise covers. Add a column to the table "
            "that is computed with public constants, and use its name: `data['age10'] = (data['age'] - 50) / 10`."
        )
    # Its name from bambi 0.21 on, and before.
    components = model.parameters if hasattr(model, "parameters") else model.components
    with_terms = [c for c in components.values() if getattr(c, "terms", None)]
    if model.center_predictors and any(c.intercept_term and c.common_terms for c in with_terms):
        _refuse_centred("bambi")
    scaled = [
        name
        for name, term in components[model.family.likelihood.parent].terms.items()
        if getattr(getattr(term, "prior", None), "auto_scale", False)
    ]
    own = _SCALED.get(model.family.name)
    if own in components and getattr(getattr(components[own], "prior", 0), "auto_scale", False):
        scaled.append(own)
    if model.auto_scale and scaled:
        _refuse_scaled(", ".join(map(repr, scaled)))
    if not model.built:
        model.build()
    setattr(model.backend.model, _READ, True)
    return model.backend.model


def refuse_built(model: pm.Model) -> None:
    """Refuse a PyMC model that bambi has built, given without the formula that says what is in it.

    Raises
    ------
    UnsupportedModelError
    """
    if _RECORDS in model.coords and not comes_of_formula(model):
        raise UnsupportedModelError(
            "The model was built by bambi, which centres predictors and scales priors with statistics of the data "
            "unless told not to. Give the bambi model itself, which says so, in place of its `backend.model`."
        )


def _refuse_centred(who: str) -> NoReturn:
    raise UnsupportedModelError(
        f"Columns of the model are less their own mean, as {who} centres predictors by default, and a mean of all "
        "records is a statistic that no noise covers. Write `bmb.Model(..., center_predictors=False)`; "
        "subtract public constants in the table if you like."
    )


def _refuse_scaled(names: str) -> NoReturn:
    raise UnsupportedModelError(
        f"The default priors of {names} are scaled by bambi with standard deviations of the data, statistics that no "
        "noise covers. Give priors of your own: `bmb.Model(..., priors={'Intercept': bmb.Prior('Normal', mu=0, "
        "sigma=5), 'common': bmb.Prior('Normal', mu=0, sigma=1), 'sigma': bmb.Prior('HalfNormal', sigma=5)})`."
    )
