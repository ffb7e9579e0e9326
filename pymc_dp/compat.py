"""Everything that differs between PyMC 5.28 (with ArviZ 0.x) and PyMC 6 (with ArviZ 1.x).

The only module that asks which line is installed; everything else calls it.
"""

import logging
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from types import FrameType
from typing import Any, NamedTuple

import pytensor
import xarray as xr
from pymc.distributions.multivariate import LKJCorrRV, _LKJCholeskyCovRV
from pymc.progress_bar import MCMCProgressBarManager
from pymc.step_methods.compound import BlockedStep, CompoundStep
from pytensor.tensor.subtensor import AdvancedSubtensor

try:
    from pytensor.tensor.subtensor import AdvancedSubtensor1
except ImportError:  # PyTensor 3 has one operation for both
    AdvancedSubtensor1 = AdvancedSubtensor

try:
    from pytensor.gradient import pushforward
except ImportError:  # PyTensor 2
    from pytensor.gradient import Rop as pushforward  # noqa: N813

try:
    from pytensor.graph.traversal import ancestors, graph_inputs, io_toposort
except ImportError:  # PyTensor 2
    from pytensor.graph.basic import ancestors, graph_inputs, io_toposort

# From ArviZ 1 on, pm.sample returns an xarray.DataTree.
# ArviZ 1.x takes longer to import than PyMC, which does without it until there are draws.
HAS_INFERENCE_DATA = version("arviz").startswith("0.")

__all__ = [
    "CHAIN_START",
    "COMPILES_LOOPS",
    "PACKED",
    "AdvancedSubtensor",
    "AdvancedSubtensor1",
    "SamplerCall",
    "ancestors",
    "enclosing_sampler",
    "fast_draws",
    "fast_gradients",
    "from_groups",
    "graph_inputs",
    "groups_of",
    "index_axes",
    "inner_graph",
    "io_toposort",
    "lower_named_dims",
    "make_progress_bar",
    "psis",
    "pushforward",
    "read_netcdf",
    "root_attrs",
    "steps_beside",
    "summary",
    "written",
]

COMPILES_LOOPS = not HAS_INFERENCE_DATA
"""Whether an operation for every record of a batch is compiled. PyMC 5 loops over them in Python."""

CHAIN_START = "setup_chain" if hasattr(BlockedStep, "setup_chain") else "set_rng"
"""Method the host calls on a step once per chain, right before the chain's first iteration."""


class SamplerCall(NamedTuple):
    """The running ``pm.sample`` as seen from a step."""

    tune: int
    draws: int
    chains: int
    in_processes: bool
    var_names: tuple[str, ...] | None


def enclosing_sampler() -> SamplerCall | None:
    """What ``pm.sample`` is about to do, if it is just making room for the draws.

    No line tells a step, and without it a run that does not match its plan is found out after draws
    have been paid for. Making room is the last thing that both do before chains, or the processes for
    them, start; they read a step's `stats_dtypes` there. An early warning only: where it returns
    None, the ledger and the tuning guard still hold.
    """
    frame = _caller("init_traces")
    here = {} if frame is None else frame.f_locals
    if frame is None or not {"tune", "expected_length", "chains"} <= set(here):
        return None
    tune, chains = int(here["tune"]), int(here["chains"])
    stored = here.get("trace_vars")
    cores = 1 if frame.f_back is None else frame.f_back.f_locals.get("cores", 1)
    return SamplerCall(
        tune=tune,
        draws=int(here["expected_length"]) - tune,
        chains=chains,
        in_processes=min(int(cores), chains) > 1,
        var_names=None if stored is None else tuple(str(v.name) for v in stored),
    )


def steps_beside(step: Any) -> list[Any]:
    """Other steps that `step` is just being put together with; they read `stats_dtypes`, too."""
    frame = _caller("__init__")
    here = {} if frame is None else frame.f_locals
    if not isinstance(here.get("self"), CompoundStep):
        return []
    return [other for other in here.get("methods", []) if other is not step]


def _caller(name: str) -> FrameType | None:
    """The function that asked whoever asks here, if it has this name."""
    frame = sys._getframe(3)
    if frame.f_code.co_name == "<listcomp>" and frame.f_back is not None:  # before Python 3.12
        frame = frame.f_back
    return frame if frame.f_code.co_name == name else None


def make_progress_bar(step: Any, keywords: Mapping[str, Any]) -> None:
    """Make what ``pm.sample`` shows with these keywords, and show nothing.

    Raises
    ------
    ImportError
        If something that it needs is not installed: PyMC 6 paints with matplotlib, and does not require it.
    """
    given = {k: v for k, v in keywords.items() if k in ("progressbar", "progressbar_theme")}
    chains = step.guarantee.chains
    MCMCProgressBarManager(step_method=step, chains=chains, draws=1, tune=0, **given)


def index_axes(node: Any) -> list[tuple[int, int]]:
    """Integer tensors that an indexing node reads by: their place among its inputs, and the axis."""
    if not isinstance(node.op, AdvancedSubtensor | AdvancedSubtensor1):
        return []
    entries = getattr(node.op, "idx_list", None)
    if entries is None:  # PyTensor 2 keeps slices among the inputs
        entries = range(len(node.inputs) - 1)
    return [
        (entry + 1, axis)
        for axis, entry in enumerate(entries)
        if isinstance(entry, int)
        and getattr(node.inputs[entry + 1].type, "dtype", "").startswith(("int", "uint"))
    ]


def written(node: Any) -> tuple[Any, list[Any]]:
    """What a node writes into an array, and the tensors that say where; the value there is lost."""
    sets = getattr(node.op, "set_instead_of_inc", False) and "Advanced" in type(node.op).__name__
    return (node.inputs[1], list(node.inputs[2:])) if sets else (None, [])


PACKED = _LKJCholeskyCovRV, LKJCorrRV
"""Random matrices of which PyMC draws the entries as a vector, to be put in their places."""


def inner_graph(op: Any) -> Any:
    """The inner graph of an ``OpFromGraph``, to be built upon. PyTensor 3 keeps it frozen."""
    return op.fgraph.unfreeze() if hasattr(op.fgraph, "unfreeze") else op.fgraph


def lower_named_dims(graph: Any) -> Any:
    """Rewrite a graph that uses named dimensions (``pymc.dims``) to plain tensors."""
    if "pytensor.xtensor" not in sys.modules:
        return graph
    from pytensor.graph.rewriting.utils import rewrite_graph

    return rewrite_graph(graph, include=("lower_xtensor",))


# -- random draws -----------------------------------------------------------------------------------


def fast_draws(variables: Any) -> dict[str, Any]:
    """Keywords of ``pm.compile`` with which these random variables are drawn fastest.

    Categorical draws are many times faster compiled by numba. Otherwise the C compiler, where
    there is one, makes faster multivariate normal draws and starts in a fraction of the time.
    """
    categorical = any(type(rv.owner.op).__name__ == "CategoricalRV" for rv in variables)
    if categorical or not pytensor.config.cxx:
        return {"mode": "NUMBA"}
    return {"mode": "CVM"}


# Below, a chain is over before numba has compiled its gradient.
_MANY_RECORDS = 1000


def fast_gradients(records: int) -> dict[str, Any]:
    """Keywords of ``pm.compile`` for a gradient that goes through so many records very often.

    Numba's code is two to three times as fast as that of the C compiler, which PyMC 5 uses by itself.
    """
    return {"mode": "NUMBA"} if records >= _MANY_RECORDS else {}


# -- results: arviz.InferenceData on one line, xarray.DataTree on the other -------------------------


def groups_of(result: Any) -> dict[str, xr.Dataset]:
    """The groups of a sampling result, as datasets.

    Raises
    ------
    TypeError
        If `result` is not what ``pm.sample`` returns on this line.
    """
    if isinstance(result, xr.DataTree):
        return {name: node.to_dataset() for name, node in result.children.items()}
    if HAS_INFERENCE_DATA:
        import arviz as az

        if isinstance(result, az.InferenceData):
            return {name: result[name] for name in result.groups()}
    raise TypeError(
        f"Expected what `pm.sample` returns (InferenceData or DataTree). Found {type(result)}."
    )


def root_attrs(result: Any) -> dict[str, Any]:
    """Attributes of a sampling result as a whole."""
    return dict(result.attrs)


def from_groups(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any], like: Any) -> Any:
    """A sampling result of the type of `like`, from its groups and root attributes."""
    if isinstance(like, xr.DataTree):
        tree = xr.DataTree.from_dict(dict(groups), name=like.name)
        tree.attrs.update(attrs)
        return tree
    with warnings.catch_warnings():
        # ArviZ 0.x warns of group names outside its schema; `privacy` is ours.
        warnings.filterwarnings("ignore", message=".*not defined in the InferenceData scheme.*")
        return type(like)(attrs=dict(attrs), **groups)


def read_netcdf(path: Any) -> Any:
    """A saved sampling result, as the type that this line's ``pm.sample`` returns."""
    if HAS_INFERENCE_DATA:
        import arviz as az

        return az.InferenceData.from_netcdf(path)
    return xr.open_datatree(path, engine="h5netcdf")


def psis(log_weights: Any) -> tuple[Any, float]:
    """Pareto-smoothed log-weights that sum to one, and the k of the fitted tail."""
    import arviz as az

    if HAS_INFERENCE_DATA:
        smoothed, k = az.psislw(log_weights)
        return smoothed, float(k)
    smoothed, k = xr.DataArray(-log_weights, dims="draw").azstats.psislw(dim="draw")
    return smoothed.values, float(k)


def summary(result: Any, **keywords: Any) -> Any:
    """ArviZ's table of posterior means, intervals and diagnostics, with numbers in it.

    ArviZ 0.x rounds to decimals, ArviZ 1.x formats to text; small standard deviations are what a
    private posterior is about, so neither is wanted; nor is what it logs of a single chain.
    """
    if HAS_INFERENCE_DATA:
        import arviz as stats
    else:  # without matplotlib, which importing ArviZ 1.x as a whole takes along
        import arviz_stats as stats

    log = logging.getLogger("arviz" if HAS_INFERENCE_DATA else "arviz_stats")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return stats.summary(result, round_to="none", **keywords)
    finally:
        log.setLevel(level)
