"""What is known when a model is built, as data of the compiled function.

A constant is compiled in, so that every release would be compiled for itself, for half a minute. Held as data, one
compilation serves all releases of a shape, and PyTensor finds it in its cache.
"""

from itertools import count
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_dp.compat import graph_inputs

_NUMBERS = count()
"""Of what is held: nutpie takes shared variables by their names."""


def held(*outputs: Any) -> Any:
    """Tensors, those that are known already computed and held."""
    tensors = [pt.as_tensor(x) for x in outputs]
    if all(_is_known(v) for v in graph_inputs(tensors)):
        values = pytensor.function([], tensors, mode="FAST_COMPILE")()
        tensors = [
            pytensor.shared(np.asarray(x), name=f"held_{next(_NUMBERS)}", shape=np.shape(x))
            for x in values
        ]
        for x in tensors:
            x.tag.held = True
    return tensors if len(tensors) > 1 else tensors[0]


def is_held(x: Any) -> bool:
    """Whether it is one of these: its value does not change."""
    return hasattr(x.tag, "held")


def _is_known(x: Any) -> bool:
    return x.owner is not None or hasattr(x, "data") or is_held(x)
