"""Private data may reach the observed likelihood, and nothing else that a result is made from."""

from collections.abc import Iterator
from typing import Any

import pymc as pm
from pymc.distributions.distribution import support_point
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from pymc_dp.compat import ancestors, graph_inputs
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.nodes import quoting_nothing
from pymc_dp.likelihood.origins import Origins, has_functions, numbers_of_prior

_NUMBERS = "Write it with numbers, or make it a `pm.Data` that holds nobody's data and name it in `public`."


def find_outside_likelihood(model: pm.Model, origins: Origins) -> tuple[list[str], list[str]]:
    """Look for private data in everything but the likelihood, and refuse them where a release would show them.

    A Deterministic is a function of parameters and data that nothing but a result is made from, so one with
    private data in it is no danger to a result that does not have it.

    Returns
    -------
    left_out : list of str
        Deterministics that depend on private data.
    taken_as_public : list of str
        Descriptions of arrays that priors are written with.

    Raises
    ------
    UnsupportedModelError
        If a prior, a Potential, a transform or an initial value depends on private data.
    """
    observed, free = set(model.observed_RVs), model.free_RVs
    left_out = [
        det.name
        for det in model.deterministics
        if observed & set(ancestors([det], blockers=free)) or origins.private([det], free)
    ]
    taken_as_public = []
    for what, graph, rv, fix in public_graphs(model):
        blockers = [x for x in free if x is not rv]
        numbers = [] if rv is None else numbers_of_prior(rv)
        source = (
            ["an observed variable"]
            if observed & set(ancestors([graph], blockers=blockers))
            else origins.private([graph], [*blockers, *numbers])
        )
        if source:
            raise UnsupportedModelError(f"{what} depends on private data ({source[0]}). {fix}")
        if rv is graph and any(not all(c.type.broadcastable) for c in numbers):
            taken_as_public.append(f"the numbers in the prior of {rv.name!r}")
    return left_out, taken_as_public


def public_graphs(model: pm.Model) -> Iterator[tuple[str, Variable, Variable | None, str]]:
    """What is public of a model: a description, the graph, whose it is, and what to do if data are in it."""
    for rv in model.free_RVs:
        yield f"The prior of {rv.name!r}", rv, rv, f"Give it public hyperparameters. {_NUMBERS}"
    for potential in model.potentials:
        yield (
            f"The Potential {potential.name!r}",
            potential,
            None,
            "What a Potential reads is not protected, so it may read parameters only. Write a likelihood as an "
            "observed distribution (`pm.Censored` for censored values, `pm.CustomDist(..., logp=..., observed=...)` "
            "for any other), so that it splits into records.",
        )
    yield from _derived_graphs(model)


def _derived_graphs(model: pm.Model) -> Iterator[tuple[str, Variable, Variable | None, str]]:
    """What functions given to a `pm.CustomDist` or a transform show up in, and initial values.

    Densities, transforms and starts of PyMC's own have nothing in them but what a variable was given. To be looked
    at last: deriving a log-density may fold constants in the model's inner graphs.
    """
    written, functions = [], []
    for rv in model.free_RVs:
        start = model.rvs_to_initial_values[rv]
        others = [x for x in model.free_RVs if x is not rv]
        if isinstance(start, Variable) and not isinstance(start, Constant):
            written.append((rv, start))
        if has_functions(rv, others) or _captures(model.rvs_to_transforms[rv]):
            functions.append(rv)
    with quoting_nothing(
        "PyMC cannot derive the model's log-density ({error}); it could not be sampled without "
        "privacy either."
    ):
        log_priors = model.logp(vars=functions, sum=False) if functions else []
        written += [(rv, support_point(rv)) for rv in functions if has_functions(rv, ())]
    for rv, log_prior in zip(functions, log_priors, strict=True):
        yield (
            f"The prior (or the transform) of {rv.name!r}", log_prior, rv,
            "Give it public hyperparameters, and functions that capture no data.",
        )  # fmt: skip
    for rv, start in written:
        yield f"The initial value of {rv.name!r}", start, rv, "Start from a public value."


def _captures(transform: Any) -> bool:
    """Whether a function of the user's own is in a transform, or an expression of data."""
    pending = list(vars(transform).values()) if hasattr(transform, "__dict__") else []
    while pending:
        v = pending.pop()
        if isinstance(v, list | tuple):
            pending += v
        elif isinstance(v, Variable):
            if any(isinstance(x, SharedVariable) for x in graph_inputs([v])):
                return True
        elif callable(v) and hasattr(v, "__code__"):
            if not str(v.__module__).startswith("pymc."):
                return True
        elif type(v).__module__.startswith("pymc.") and hasattr(v, "__dict__"):
            pending += vars(v).values()
    return False
