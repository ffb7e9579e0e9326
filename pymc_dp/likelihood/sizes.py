"""What a model must not say of the number of units: refusals that depend on the neighbouring relation."""

from collections.abc import Sequence
from itertools import chain

import pymc as pm
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import Subtensor

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.containment import public_graphs
from pymc_dp.likelihood.origins import lengths_of_leaves
from pymc_dp.likelihood.refusals import refuse_latent
from pymc_dp.likelihood.roles import Roles
from pymc_dp.likelihood.unit import MANY


def check_sizes(model: pm.Model, roles: Roles, public_size: bool) -> None:
    """Refuse variables that are as many as units, if that number is public; what tells the number, if it is private.

    Raises
    ------
    UnsupportedModelError
    """
    if public_size:
        _refuse_latents(model, roles)
    else:
        _refuse_size(model, roles)


def _refuse_latents(model: pm.Model, roles: Roles) -> None:
    start = model.initial_point(0)
    for rv in model.free_RVs:
        shape = start[model.rvs_to_values[rv].name].shape
        if any(s >= MANY and s in (roles.n_records, roles.n_units) for s in shape):
            refuse_latent(rv.name)


def _refuse_size(model: pm.Model, roles: Roles) -> None:
    """Priors, initial values, Deterministics of a result: none may read how many records there are."""
    if aligned := [leaf.name for leaf in roles.record_data if not leaf.private]:
        raise UnsupportedModelError(
            f"{aligned[0]!r} is declared public and has a row per record, so that it tells how many there are, which "
            'is private with `neighbours="add-or-remove"`. Leave it out of `public`.'
        )
    lengths = [model.dim_lengths[dim] for dim in roles.record_dims if dim in model.dim_lengths]
    kept = [det for det in model.deterministics if det.name not in roles.left_out]
    stored = [(f"The Deterministic {det.name!r}", det, None, "") for det in kept]
    for what, graph, rv, _ in chain(stored, public_graphs(model)):
        blockers = [x for x in model.free_RVs if x is not rv]
        met = list(ancestors([graph], blockers=blockers))
        # Graphs of initial values hold copies, so that lengths are known by their names.
        told = any(v in lengths or v.name in roles.record_dims for v in met)
        dims = model.named_vars_to_dims.get(graph.name, ()) if rv is None else ()
        if told or roles.record_dims & set(dims) or _counts_records(graph, blockers, roles):
            raise UnsupportedModelError(
                f"{what} depends on the number of records, which is private with "
                '`neighbours="add-or-remove"`. Give it a public number.'
            )


def _counts_records(graph: Variable, blockers: Sequence[Variable], roles: Roles) -> bool:
    """Whether a graph reads off private data how many records there are; columns may be counted."""
    axes = {leaf.name: leaf.axis for leaf in roles.record_data}
    nodes = {v.owner for v in ancestors([graph], blockers=blockers) if v.owner is not None}
    for length in lengths_of_leaves([graph], blockers):
        leaf, op = length.owner.inputs[0], length.owner.op
        axis = axes.get(leaf.name)
        if axis is None and leaf.name in roles.public_data:
            continue
        if axis is None or (isinstance(op, Shape_i) and op.i == axis):
            return True
        if isinstance(op, Shape_i):
            continue
        for user in (node for node in nodes if length in node.inputs):
            at = [int(v.data) for v in user.inputs[1:] if isinstance(v, Constant)]
            if not isinstance(user.op, Subtensor) or len(at) != 1 or at[0] % leaf.type.ndim == axis:
                return True
    return False
