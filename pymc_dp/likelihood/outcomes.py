"""Outcomes of symbolic record rows: drawn at a point of the posterior, or as they were observed."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.random.type import RandomType

from pymc_dp.compat import lower_named_dims
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compilation import indices_by_rows, keep_indices_in_range
from pymc_dp.likelihood.nodes import data_nodes, quoting_nothing
from pymc_dp.likelihood.record_graph import rebuild_observed
from pymc_dp.likelihood.refusals import refuse_captured
from pymc_dp.likelihood.roles import Roles

Rows = Sequence[NDArray[Any]]


class Outcomes:
    """The observed variables of a model as functions of parameters and record rows, compiled.

    Parameters
    ----------
    model : Model
    roles : Roles
    random_seed : int or Generator, optional
    **compile_kwargs
        Passed to PyMC's ``compile``.
    """

    def __init__(
        self, model: pm.Model, roles: Roles, random_seed: Any = None, **compile_kwargs: Any
    ):
        self.names = [rv.name for rv in model.observed_RVs]
        self._free = [rv.name for rv in model.free_RVs]
        length = pt.lscalar("n")
        with quoting_nothing(f"Predictions of {self.names} could not be compiled ({{error}})."):
            rvs, values, parameters, inputs = rebuild_observed(model, roles, length)
            tensors = [
                lower_named_dims(pt.as_tensor(v, allow_xtensor_conversion=True))
                for v in (*rvs, *values)
            ]
            drawn, self._values = tensors[: len(rvs)], tensors[len(rvs) :]
            # Beyond the end of an array compiled code reads whatever lies beside it.
            outcomes = [keep_indices_in_range(v, set(inputs)) for v in drawn]
            # What outcomes are drawn by need not be what their density is.
            refuse_captured(model, outcomes, roles.public_data)
            self._draw = pm.compile(
                [*parameters, length, *inputs],
                outcomes,
                random_seed=random_seed,
                on_unused_input="ignore",
                **compile_kwargs,
            )
        of_node = {
            node: k
            for k, rv in enumerate(model.observed_RVs)
            for node in data_nodes([model.rvs_to_values[rv]])
        }
        self._outcome_of_leaf = [of_node.get(leaf.variable) for leaf in roles.record_data]
        self._inputs = [length, *inputs]
        self._indices, self._parameters = indices_by_rows(drawn, inputs), parameters
        self._generators = [v for v in self._draw.get_shared() if isinstance(v.type, RandomType)]

    @cached_property
    def _observed(self) -> Any:
        return pm.compile(self._inputs, self._values, on_unused_input="ignore", mode="FAST_COMPILE")

    def refuse_out_of_range(self, point: Sequence[NDArray[Any]], n: int, rows: Rows) -> None:
        """Refuse public rows with an index that there is no such entry for.

        Raises
        ------
        PrivacyConfigurationError
        """
        if not self._indices:
            return
        told = [v for index, length in self._indices for v in (index.min(), index.max(), length)]
        function = pm.compile(
            [*self._parameters, *self._inputs], told, on_unused_input="ignore", mode="FAST_COMPILE"
        )
        for low, high, length in np.reshape(function(*point, n, *rows), (-1, 3)):
            if low < -length or high >= length:
                wrong = low if low < -length else high
                raise PrivacyConfigurationError(
                    f"`new_data` has the index {wrong:.0f}, where the model has {length:.0f} entries, from 0 to "
                    f"{length - 1:.0f}."
                )

    def points(self, posterior: xr.Dataset) -> Iterator[tuple[NDArray[Any], ...]]:
        """Draws of the free variables, one after the other.

        Raises
        ------
        PrivacyConfigurationError
            If some are missing.
        """
        columns = draws_of(posterior, self._free).values()
        return iter(zip(*columns, strict=True))

    def seed(self, words: NDArray[np.uint64]) -> None:
        """Let the next draws depend on these words, and on nothing that was drawn before."""
        for k, variable in enumerate(self._generators):
            bits = np.random.PCG64([k, *map(int, words)])
            variable.set_value(np.random.Generator(bits), borrow=True)

    def draw(self, point: Sequence[NDArray[Any]], n: int, rows: Rows) -> list[NDArray[Any]]:
        """One draw of every outcome for `n` records, given parameters and rows."""
        return list(self._draw(*point, n, *rows))

    def in_place(self, point: Sequence[NDArray[Any]], n: int, rows: Rows) -> list[NDArray[Any]]:
        """The same rows, with outcomes that are drawn in the place of those that are in them."""
        return self.put(self.draw(point, n, rows), rows)

    def put(self, outcomes: Sequence[ArrayLike], rows: Rows) -> list[NDArray[Any]]:
        """Rows with other outcomes, each an array of all records' or one value for all of them."""
        return [
            x if k is None else _shaped_like(x, np.asarray(outcomes[k]))
            for k, x in zip(self._outcome_of_leaf, rows, strict=True)
        ]

    def observed(self, n: int, rows: Rows) -> list[NDArray[Any]]:
        """What was observed in these rows. Private."""
        return list(self._observed(n, *rows))


def _shaped_like(x: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim == 0:
        return np.full_like(x, values)
    return np.ascontiguousarray(values.astype(x.dtype).reshape(x.shape))


def draws_of(posterior: xr.Dataset, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Draws of all chains in a row, for each of some variables.

    Raises
    ------
    PrivacyConfigurationError
        If some are missing.
    """
    missing = [name for name in names if name not in posterior]
    if missing:
        raise PrivacyConfigurationError(
            f"`idata` has no draws of {missing}, which predictions need. Is it of this model?"
        )
    many = posterior.sizes["chain"] * posterior.sizes["draw"]
    return {
        name: posterior[name].values.reshape(many, *posterior[name].shape[2:]) for name in names
    }
