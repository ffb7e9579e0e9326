"""Private data may reach the observed likelihood, and nothing else that a result is made from."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NoReturn

import pymc as pm
from pymc.initial_point import make_initial_point_expression
from pytensor.graph.basic import Variable

from pymc_dp.compat import ancestors
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.naming import is_filled, name_of_array
from pymc_dp.likelihood.nodes import (
    RecordData,
    all_data_nodes,
    is_excerpt,
    quoting_nothing,
    shape_constants,
    shapes_of_data,
    shared_variables,
    values_of,
)


def find_outside_likelihood(
    model: pm.Model,
    record_data: Sequence[RecordData],
    n: int,
    record_dims: frozenset[str],
    public: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Look for private data in everything but the likelihood, and refuse them where a release would show them.

    A Deterministic is a function of parameters and data that nothing but a result is made from, so one with
    private data in it is no danger to a result that does not have it.

    Returns
    -------
    left_out : list of str
        Deterministics that depend on private data, or may.
    taken_as_public : list of str
        Arrays that priors and the like were allowed to use.

    Raises
    ------
    UnsupportedModelError
        If a prior, a Potential, a transform or an initial value depends on private data.
    """
    left_out: list[str] = []
    taken_as_public: list[str] = []
    look = partial(_sources, model, record_data, n, record_dims, public)
    for det in model.deterministics:
        try:
            source, arrays = look(det, model.free_RVs)
        except UnsupportedModelError:  # data that cannot be looked at
            source, arrays = "data", []
        if source is not None:
            left_out.append(det.name)
        else:
            taken_as_public += arrays
    for what, graph, fix in _public_graphs(model):
        source, arrays = look(graph, [rv for rv in model.free_RVs if rv is not graph])
        if source is not None:
            raise UnsupportedModelError(f"{what} depends on private data ({source}). {fix}")
        taken_as_public += arrays
    return left_out, taken_as_public


def _sources(
    model: pm.Model,
    record_data: Sequence[RecordData],
    n: int,
    record_dims: frozenset[str],
    public: Sequence[str],
    graph: Variable,
    blockers: Sequence[Variable],
) -> tuple[str | None, list[str]]:
    """What private data a graph depends on, if any, and the arrays in it that pass for public ones."""
    if set(model.observed_RVs) & set(ancestors([graph], blockers=blockers)):
        return "an observed variable", []
    private = [leaf for leaf in record_data if leaf.private]
    shapes = set(shape_constants([graph], blockers))
    blockers = [*blockers, *shapes_of_data([graph], blockers)]
    for shared in shared_variables(model, [graph], blockers):
        if shared.name not in public:
            return shared.name or "a shared variable", []
    taken_as_public = []
    for node in all_data_nodes([graph], blockers):
        if node in shapes:
            continue
        for leaf in private:
            if node is leaf.variable:
                return leaf.name, []
        if node.name in public:
            continue
        values = values_of(node)
        dims = model.named_vars_to_dims.get(node.name, ())
        aligned = n in values.shape or bool(record_dims & set(dims))
        filled = is_filled(values)
        # A constant is a new node each time it is used, so it is known by its shape.
        name = name_of_array(node, values, n, [graph])
        if is_excerpt(values, [leaf.values for leaf in private]) or (
            (aligned or values.size >= max(n, 2)) and not filled
        ):
            return name, []
        if values.size > 1 and not filled:
            taken_as_public.append(name)
    return None, taken_as_public


def refuse_size_outside_likelihood(
    model: pm.Model, n: int, record_dims: frozenset[str], left_out: Collection[str]
) -> None:
    """Refuse priors and the like that read n, the number of records, off the data, where it is private.

    Nothing is said of the Deterministics that are `left_out` of the result.

    Raises
    ------
    UnsupportedModelError
    """
    kept = [det for det in model.deterministics if det.name not in left_out]
    for det in kept:
        if record_dims & set(model.named_vars_to_dims.get(det.name, ())):
            _refuse_size(f"The Deterministic {det.name!r}")
    lengths = {model.dim_lengths[dim] for dim in record_dims if dim in model.dim_lengths}
    stored = [(f"The Deterministic {det.name!r}", det, "") for det in kept]
    for what, graph, _ in chain(stored, _public_graphs(model)):
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
