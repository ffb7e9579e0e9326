"""Draws of θ as the variables of a result."""

from collections.abc import Callable, Container
from datetime import UTC, datetime

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_dp.compat import lower_named_dims
from pymc_dp.likelihood.compilation import interpreted
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.linalg import Vector


def as_variables(
    compiled: CompiledModel, like: xr.Dataset, covered: Container[str]
) -> Callable[[Vector], xr.Dataset]:
    """What turns draws of θ, shape (chains, draws, d), into the variables of a result. Compiles; reads no data.

    Parameters
    ----------
    compiled : CompiledModel
    like : Dataset
        A released posterior of the model, whose variables, dimensions and labels the draws get.
    covered : container of str
        Of its variables, those that its guarantee covers.

    Returns
    -------
    callable
        A draw at which a variable cannot be computed is not a number.
    """
    model = compiled.model
    known = {v.name for v in model.unobserved_RVs} - set(compiled.roles.left_out)
    names = [str(v) for v in like.data_vars if v in covered and v in known]
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    outputs, point = compiled.parameters.join(graphs)
    function = pm.compile(
        [point], [lower_named_dims(x) for x in outputs], mode=interpreted(), on_unused_input="ignore"
    )  # fmt: skip

    def at(theta: Vector) -> list[NDArray[np.generic]]:
        try:
            return list(function(theta))
        except Exception:  # noqa: BLE001  what was paid for is not lost
            return [np.full(like[name].shape[2:], np.nan) for name in names]

    def variables(theta: Vector) -> xr.Dataset:
        size = theta.shape[:2]
        found = [at(one) for one in theta.reshape(-1, theta.shape[2])]
        arrays = [np.stack(x) for x in zip(*found, strict=True)]
        shaped = {
            name: (like[name].dims, x.reshape(size + x.shape[1:]))
            for name, x in zip(names, arrays, strict=True)
        }
        axes = {"chain": np.arange(size[0]), "draw": np.arange(size[1])}
        labels = {name: c for name, c in like.coords.items() if name not in axes}
        now = datetime.now(UTC).isoformat()
        return xr.Dataset(shaped, {**labels, **axes}, {**like.attrs, "created_at": now})

    return variables
