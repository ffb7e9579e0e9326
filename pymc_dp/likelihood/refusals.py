"""Variables that no private step can sample, or that no host may store."""

from collections.abc import Collection, Sequence
from typing import NoReturn

import pymc as pm
from pymc.data import MinibatchIndexRV, MinibatchOp
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.nodes import WRAP_DATA
from pymc_dp.likelihood.origins import Origins, has_functions


def refuse_unsupported_variables(model: pm.Model) -> None:
    """Refuse variables that cannot be split into records, or moved in continuous space."""
    if not model.free_RVs:
        raise UnsupportedModelError("The model has no free variables: there is nothing to sample.")
    if not model.observed_RVs:
        raise UnsupportedModelError(
            "The model has no observed variables. A likelihood given as a `pm.Potential` cannot be "
            "split into records: write it as a distribution with `observed=...`, or as a "
            "`pm.CustomDist` with `logp=...`."
        )
    names = {rv.name for rv in model.observed_RVs}
    for rv in (*model.free_RVs, *model.observed_RVs):
        # PyMC splits "y" into "y_observed" and "y_unobserved".
        half = rv.name.removesuffix("_unobserved") + "_observed"
        if isinstance(rv.owner.op, PartialObservedRV) or (half != rv.name and half in names):
            raise UnsupportedModelError(
                f"{rv.name.removesuffix('_unobserved').removesuffix('_observed')!r} has missing values, which PyMC "
                "imputes as free variables, one per record. `pymc_dp.integrate_missing(model, [...])`, with the names of "
                "all variables that may have some, takes them out of the model and drops nobody."
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModelError(
                f"{rv.name!r} has a `total_size`: its log-likelihood is scaled up from a "
                "minibatch. Remove `total_size` and give the whole data; chunking keeps memory "
                "bounded."
            )
    for var in ancestors([*model.observed_RVs, *map(model.rvs_to_values.get, model.observed_RVs)]):
        if var.owner is not None and isinstance(var.owner.op, MinibatchIndexRV | MinibatchOp):
            raise UnsupportedModelError(
                "The model reads its data through `pm.Minibatch`. Give the whole arrays, as "
                "`pm.Data`; chunking keeps memory bounded."
            )
    discrete = [v.name for v in model.discrete_value_vars]
    if discrete:
        raise UnsupportedModelError(
            f"The free variables {discrete} are discrete; private steps move in continuous space. "
            "Sum them out of the likelihood (`pm.Mixture`, or marginalisation in pymc-extras)."
        )


def refuse_latents_per_record(model: pm.Model, record_dims: frozenset[str]) -> None:
    """Refuse free variables along the records' dimension."""
    for rv in model.free_RVs:
        if record_dims & set(model.named_vars_to_dims.get(rv.name, ())):
            refuse_latent(rv.name)


def refuse_latent(name: str) -> NoReturn:
    """Refuse a free variable that would tell of each record."""
    raise UnsupportedModelError(
        f"The free variable {name!r} has one value per record or unit. A draw of it is "
        "a release about each person, and the noise would drown it. If it is normal, "
        f"`pymc_dp.integrate_out(model, {name!r})` takes it out of the model; or let groups of "
        "records share it."
    )


def refuse_hidden(name: str, reader: str = "The likelihood") -> NoReturn:
    """Refuse data that no record rows can take the place of."""
    raise UnsupportedModelError(
        f"{reader} reads {name} in a way that does not let it be split into records (for example captured "
        "by the function of a `pm.CustomDist`, or declared with `dims` that are not the records'). Pass it to "
        f"the distribution as a parameter. {WRAP_DATA}"
    )


def refuse_captured(model: pm.Model, graphs: Sequence[Variable], public: Sequence[str]) -> None:
    """Refuse data that a function of the user's own has brought into what is computed of the records."""
    if any(has_functions(rv, model.free_RVs) for rv in model.observed_RVs):
        for name in Origins(model, public).private(graphs):
            refuse_hidden(name)


def refuse_to_store(
    model: pm.Model, left_out: Collection[str], var_names: Collection[str] | None
) -> None:
    """Refuse a host that would keep, and judge by their values, Deterministics of private data.

    Parameters
    ----------
    model : Model
    left_out : collection of str
        What no result may have.
    var_names : collection of str, optional
        What the host keeps. Default: all.

    Raises
    ------
    UnsupportedModelError
    """
    variables = [v.name for v in model.unobserved_RVs]
    if set(left_out) & set(variables if var_names is None else var_names):
        public = [name for name in variables if name not in left_out]
        raise UnsupportedModelError(
            f"The Deterministics {list(left_out)} depend on private data, and `pm.sample` would store them without "
            f"noise. `pymc_dp.sample` leaves them out; with `pm.sample`, add `var_names={public}`. Nothing has "
            "been charged."
        )
