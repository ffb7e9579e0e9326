"""A model without some of its variables."""

from collections.abc import Collection

import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable

from pymc_dp.compat import ancestors
from pymc_dp.likelihood.nodes import quoting_nothing


def without(model: pm.Model, gone: Collection[Variable]) -> pm.Model:
    """Copy a model, without some variables and without Deterministics of them.

    Raises
    ------
    UnsupportedModelError
        If PyMC cannot copy it.
    """
    gone = set(gone)
    gone |= {det for det in model.deterministics if gone & set(ancestors([det]))}
    with quoting_nothing(
        "PyMC cannot copy the model ({error}). Leave out `initval`; `dp.sample` takes `initvals=`."
    ):
        graph, memo = fgraph_from_model(model)
        copies = {memo[v] for v in gone if v in memo}
        for dim, length in model.dim_lengths.items():
            # A dimension must not keep the data from which its length was taken.
            if gone & set(ancestors([length])):
                graph._dim_lengths[dim] = pt.constant(int(length.eval()), name=dim, dtype="int64")
        for k in reversed(range(len(graph.outputs))):
            if graph.outputs[k] in copies:
                graph.remove_output(k)
        return model_from_fgraph(graph, mutate_fgraph=True)
