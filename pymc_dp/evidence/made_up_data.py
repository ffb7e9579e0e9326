"""A copy of a model that observes made-up data, and none of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.simulator import SimulatorRV
from pytensor.compile.sharedvalue import SharedVariable

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.likelihood.nodes import data_nodes
from pymc_dp.likelihood.origins import Origins, lengths_of_leaves, numbers_of_prior


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
    _refuse_baked_in(model, public)
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


def _refuse_baked_in(model: pm.Model, public: Sequence[str]) -> None:
    """Refuse arrays that are written into the model: they may hold records, and cannot be replaced."""
    origins = Origins(model, public)
    for v in _everything(model):
        others = [rv for rv in model.basic_RVs if rv is not v]
        numbers = numbers_of_prior(v) if v in model.free_RVs else []
        for name in origins.private([v], [*others, *numbers]):
            if name not in model.named_vars:
                raise UnsupportedModelError(
                    f"The model has an array written into it that may hold the records ({name}), and it cannot be "
                    "replaced. Make it a `pm.Data` and give made-up values for it: `data={'its name': ...}`."
                )


def _replacements(
    model: pm.Model, data: Mapping[str, ArrayLike], public: Sequence[str]
) -> dict[str, Any]:
    graphs = _everything(model)
    needed = set(ancestors(graphs, blockers=lengths_of_leaves(graphs)))
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
