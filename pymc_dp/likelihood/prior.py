"""The compiled public part of a model: everything in the log-density that is not likelihood."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph

from pymc_dp.compat import lower_named_dims
from pymc_dp.likelihood.compilation import compiling, interpreted
from pymc_dp.likelihood.parameters import ParameterSpace


class LogPrior(Protocol):
    """A public log-density of θ with its derivatives."""

    def __call__(self, theta: NDArray[np.float64]) -> float:
        """Log-density at `theta`, shape (d,), up to a constant; -inf outside the support."""
        ...

    def gradient(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shape (d,)."""
        ...

    def hessian(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shape (d, d)."""
        ...


class PublicLogDensity:
    """Log prior, Jacobian of the transforms and potentials, as a function of θ.

    Parameters
    ----------
    parameters : ParameterSpace
        Of a model already cleared by :func:`pymc_dp.likelihood.roles.find_roles`: none of these parts
        depends on private data.
    compile_kwargs : mapping, optional
        Passed to PyMC's ``compile``.
    """

    def __init__(self, parameters: ParameterSpace, compile_kwargs: Mapping[str, Any] | None = None):
        model = parameters.model
        terms = model.logp(vars=[*model.free_RVs, *model.potentials], sum=True)
        (terms,), theta = parameters.join([terms])
        terms = lower_named_dims(terms)
        self._function = pm.compile([theta], terms, **(compile_kwargs or {}))
        self._function.trust_input = True
        self._graph, self._theta, self._compile_kwargs = terms, theta, compile_kwargs or {}

    def __call__(self, theta: NDArray[np.float64]) -> float:
        """Log-density at `theta`, shape (d,); -inf outside the support, and for NaN."""
        value = float(self._function(theta))
        return value if value == value else -np.inf

    @cached_property
    @compiling()
    def _of_many(self) -> Any:
        points = pt.matrix("points", shape=(None, self._theta.type.shape[0]))
        graph = vectorize_graph(self._graph, {self._theta: points})
        function = pm.compile([points], graph, on_unused_input="ignore", **self._compile_kwargs)
        function.trust_input = True
        return function

    def many(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-density at many points, shape (points, d) to (points,); -inf where :meth:`__call__` is."""
        values = np.broadcast_to(self._of_many(points), len(points))
        return np.where(np.isnan(values), -np.inf, values)

    def at(self, theta: Variable) -> Variable:
        """Log-density at a symbolic `theta`, shape (d,)."""
        like = self._theta.type.filter_variable(theta)
        (density,) = graph_replace([self._graph], {self._theta: like})
        return density

    @property
    def _seldom(self) -> dict[str, Any]:
        """How derivatives are compiled: compared with a pass over the records, their time is nothing."""
        return {"mode": interpreted(), **self._compile_kwargs}

    @cached_property
    def _slope(self) -> Variable:
        graph = rewrite_pregrad(self._graph)
        return pytensor.grad(graph, self._theta, disconnected_inputs="ignore")

    @cached_property
    @compiling()
    def _gradient(self) -> Any:
        function = pm.compile([self._theta], self._slope, **self._seldom)
        function.trust_input = True
        return function

    def gradient(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Gradient at `theta`, shape (d,)."""
        return np.asarray(self._gradient(theta))

    @cached_property
    @compiling()
    def _hessian_product(self) -> Any:
        v = pt.vector("v", shape=self._theta.type.shape)
        product = pytensor.grad(self._slope @ v, self._theta, disconnected_inputs="ignore")
        function = pm.compile([self._theta, v], product, on_unused_input="ignore", **self._seldom)
        function.trust_input = True
        return function

    def hessian(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Hessian at `theta`, shape (d, d)."""
        return np.array([self._hessian_product(theta, v) for v in np.eye(len(theta))])
