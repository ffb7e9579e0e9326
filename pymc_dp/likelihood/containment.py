"""Private data may reach the observed likelihood, and nothing else."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NoReturn

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_expression
from pytensor.graph.basic import Variable

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.nodes import (
    RecordData,
    all_data_nodes,
    is_excerpt,
    name_by_shape,
    quoting_nothing,
    shape_constants,
    shapes_of_data,
    shared_variables,
    values_of,
)


def refuse_private_outside_likelihood(
    model: pm.Model,
    record_data: Sequence[RecordData],
    n: int,
    record_dims: frozenset[str],
    public: Sequence[str],
) -> list[str]:
    """Refuse; return the names of the arrays that priors and the like were allowed to use."""
    private = [leaf for leaf in record_data if leaf.private]
    taken_as_public: list[str] = []

    def private_source(graphs: Sequence[Variable], blockers: Sequence[Variable]) -> str | None:
        shapes = set(shape_constants(graphs, blockers))
        blockers = [*blockers, *shapes_of_data(graphs, blockers)]
        for shared in shared_variables(model, graphs, blockers):
            if shared.name not in public:
                return shared.name or "a shared variable"
        for node in all_data_nodes(graphs, blockers):
            if node in shapes:
                continue
            for leaf in private:
                if node is leaf.variable:
                    return leaf.name
            if node.name in public:
                continue
            values = values_of(node)
            dims = model.named_vars_to_dims.get(node.name, ())
            aligned = n in values.shape or bool(record_dims & set(dims))
            # A constant is a new node each time it is used, so it is known by its shape. A fill
            # value (zeros, ones) holds no data.
            filled = values.size > 0 and np.array_equal(
                values, np.broadcast_to(values.flat[0], values.shape)
            )
            name = node.name or name_by_shape(values, n)
            if is_excerpt(values, [leaf.values for leaf in private]) or (
                (aligned or values.size >= max(n, 2)) and not filled
            ):
                return name
            if values.size > 1 and not filled:
                taken_as_public.append(name)
        return None

    observed = set(model.observed_RVs)
    for what, graph, fix in _public_graphs(model):
        blockers = [rv for rv in model.free_RVs if rv is not graph]
        source = private_source([graph], blockers)
        if source is None and observed & set(ancestors([graph], blockers=blockers)):
            source = "an observed variable"
        if source is not None:
            raise UnsupportedModelError(f"{what} depends on private data ({source}). {fix}")
    return taken_as_public


def refuse_size_outside_likelihood(model: pm.Model, n: int, record_dims: frozenset[str]) -> None:
    """Refuse priors and the like that read n, the number of records, off the data, where it is private.

    Raises
    ------
    UnsupportedModelError
    """
    for det in model.deterministics:
        if record_dims & set(model.named_vars_to_dims.get(det.name, ())):
            _refuse_size(f"The Deterministic {det.name!r}")
    lengths = {model.dim_lengths[dim] for dim in record_dims if dim in model.dim_lengths}
    for what, graph, _ in _public_graphs(model):
        blockers = [rv for rv in model.free_RVs if rv is not graph]
        # Graphs of initial values hold copies, so that data are known by their size and lengths by their names.
        told = any(
            n in values_of(shape.owner.inputs[0]).shape
            for shape in shapes_of_data([graph], blockers)
        ) or any(
            v in lengths or v.name in record_dims for v in ancestors([graph], blockers=blockers)
        )
        if told:
            _refuse_size(what)


def _refuse_size(what: str) -> NoReturn:
    raise UnsupportedModelError(
        f"{what} depends on the number of records, which is private with "
        '`neighbours="add-or-remove"`. Give it a public number.'
    )


def _public_graphs(model: pm.Model) -> Iterator[tuple[str, Variable, str]]:
    """What is public of a model: a description, the graph, and what to do if data are in it."""
    stated = [
        (
            f"The prior of {rv.name!r}",
            rv,
            "Give it public hyperparameters; if the array is public, make it a `pm.Data` and name "
            "it in `public`.",
        )
        for rv in model.free_RVs
    ]
    stated += [
        (
            f"The Deterministic {det.name!r}",
            det,
            "Its values would be stored with the draws, without noise. Take it out of the model "
            "(some distributions add one: `compute_p=False`), and compute it from the released "
            "draws on data you may publish; if the array is public, make it a `pm.Data` and name it "
            "in `public`.",
        )
        for det in model.deterministics
    ]
    stated += [
        (
            f"The Potential {potential.name!r}",
            potential,
            "Write it as an observed distribution (`pm.CustomDist` with `logp=...`), so that it "
            "splits into records.",
        )
        for potential in model.potentials
    ]
    yield from chain(stated, _derived_graphs(model))


def _derived_graphs(model: pm.Model) -> Iterator[tuple[str, Variable, str]]:
    """What functions given to a `pm.CustomDist` or a transform show up in.

    To be looked at last: deriving a log-density may fold constants in the model's inner graphs.
    """
    with quoting_nothing(
        "PyMC cannot derive the model's log-density ({error}); it could not be sampled without "
        "privacy either."
    ):
        log_priors = model.logp(vars=model.free_RVs, sum=False)
    for rv, log_prior in zip(model.free_RVs, log_priors, strict=True):
        yield (
            f"The prior (or the transform) of {rv.name!r}",
            log_prior,
            "Give it public hyperparameters, and functions that capture no data.",
        )
    starts = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms={},
        initval_strategies=model.rvs_to_initial_values,
    )
    for rv, start in zip(model.free_RVs, starts, strict=True):
        yield f"The initial value of {rv.name!r}", start, "Start from a public value."
