"""One record as unnamed random variables, and its statistic at points that stand for all records."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.random import basic as rv
from pytensor.tensor.random.op import RandomVariable
from scipy import special

from pymc_dp.compat import ancestors, graph_inputs
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.mechanisms.families import FAMILIES, Family
from pymc_dp.mechanisms.holding import held

# Sums over the values of discrete variables have as many terms; beyond, memory is what ends first.
_MAX_COMBINATIONS = 2**16


# What a few points get wrong is put right by :mod:`~pymc_dp.mechanisms.reference`, so that as many do
# for any n. They err by 0.0024 standard deviations of one record in three dimensions: by 0.04 of the sum
# of the largest number that is left as it is.
FEW_POINTS, FEW_RECORDS = 256, 300


class Variable(NamedTuple):
    """One random variable of a record.

    Attributes
    ----------
    rv : TensorVariable
    core : tuple of int
        Its shape without the areas.
    has_areas : bool
        Whether the areas are its first axes.
    values : ndarray or None
        All its values, if it is discrete.
    family : Family or None
        How it is made of noise, if it is continuous; None if it is known by its quantiles.
    constants : tuple of ndarray
        What the law of the noise depends on.
    """

    rv: Any
    core: tuple[int, ...]
    has_areas: bool
    values: NDArray[Any] | None
    family: Family | None
    constants: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of its entries."""
        return math.prod(self.core)


@dataclass(frozen=True, eq=False)
class Record:
    """A statistic of one record, made of unnamed random variables.

    Parameters
    ----------
    statistic : TensorVariable, shape (*areas, m)
        Of one record of every area.
    areas : tuple of int
        Shape of the areas; () if there is one.
    variables : tuple of Variable
        Parents first.
    """

    statistic: Any
    areas: tuple[int, ...]
    variables: tuple[Variable, ...]

    @cached_property
    def continuous(self) -> list[Variable]:
        """Variables that are functions of points."""
        return [v for v in self.variables if v.values is None]

    @cached_property
    def combinations(self) -> NDArray[np.int64]:
        """All values of the discrete variables side by side, one row each."""
        values = [v.values for v in self.variables if v.values is not None for _ in range(v.size)]
        if math.prod(len(v) for v in values) > _MAX_COMBINATIONS:
            raise UnsupportedModelError(
                f"The discrete variables of the record have more than {_MAX_COMBINATIONS:,} combinations of "
                "values. Release them in several mechanisms, or use `PrivacyAwareGibbs`."
            )
        grid = np.meshgrid(*values, indexing="ij")
        return np.stack([g.ravel() for g in grid], axis=1) if grid else np.zeros((1, 0), np.int64)

    @property
    def dimensions(self) -> int:
        """Of the points."""
        return sum(v.size for v in self.continuous)

    def points(self, count: int, seed: int = 0) -> NDArray[np.float64]:
        """Noise of the continuous variables at points of equal weight, shape (points, dimensions).

        Midpoints in one dimension; scrambled Sobol' points beyond, those of normal variables with
        the mean and covariance of their law.
        """
        d = self.dimensions
        if d == 0:
            return np.zeros((1, 0))
        if d == 1:
            return self.noise((np.arange(count) + 0.5)[:, None] / count)
        from scipy.stats import qmc  # which takes as long to import as PyMC

        u = qmc.Sobol(d, rng=np.random.default_rng(seed)).random(count)
        z = self.noise(np.clip(u, 1e-12, 1 - 1e-12))
        normal = np.repeat([v.family is not None and v.family.quantile is special.ndtri
                            for v in self.continuous], [v.size for v in self.continuous])  # fmt: skip
        if normal.any():
            centred = z[:, normal] - z[:, normal].mean(axis=0)
            root = np.linalg.cholesky(centred.T @ centred / count)
            z[:, normal] = np.linalg.solve(root, centred.T).T
        return z

    def noise(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Noise of the continuous variables at probabilities u, shape (K, dimensions)."""
        parts, start = [], 0
        for v in self.continuous:
            part = u[:, start : start + v.size].reshape(len(u), *v.core)
            start += v.size
            if v.family is not None:
                part = v.family.quantile(part, *v.constants)
            parts.append(part.reshape(len(u), -1))
        return np.concatenate(parts, axis=1) if parts else u

    def at(self, noise: Any) -> tuple[Any, Any]:
        """The statistic at points and all combinations of discrete values, and what they weigh.

        Parameters
        ----------
        noise : tensor_like, shape (points, dimensions)
            From :meth:`points`, or a symbolic one.

        Returns
        -------
        statistic : TensorVariable, shape (*areas, K, m)
            K is the number of points times that of combinations.
        weight : TensorVariable, shape (*areas, K)
            They sum to one.
        """
        noise, mesh = pt.as_tensor(noise), self.combinations
        every_point, every_value = held(
            pt.repeat(noise, len(mesh), axis=0), pt.tile(pt.constant(mesh), (noise.shape[0], 1))
        )
        K = every_point.shape[0]
        replaced: dict[Any, Any] = {}
        given: dict[Any, Any] = {}
        log_weight = pt.zeros(self.areas)
        start = {True: 0, False: 0}
        for v in self.variables:
            symbol = v.rv.type()
            if v.values is not None:
                density = substitute([pm.logp(v.rv, symbol)], replaced)[0]
                extra = density.ndim - (len(self.areas) if v.has_areas else 0)
                log_weight = log_weight + density.sum(axis=tuple(range(-extra, 0)))
                replaced[v.rv] = symbol
            elif v.family is None:
                replaced[v.rv] = substitute([pm.icdf(v.rv, symbol)], replaced)[0]
            else:
                parameters = substitute(v.rv.owner.op.dist_params(v.rv.owner), replaced)
                replaced[v.rv] = v.family.record(symbol, *parameters)
            discrete = v.values is not None
            source = every_value if discrete else every_point
            block = source[:, start[discrete] : start[discrete] + v.size]
            start[discrete] += v.size
            areas = self.areas if v.has_areas else ()
            block = block.reshape((K, *(1 for _ in areas), *v.core))
            given[symbol] = pt.broadcast_to(block, (K, *areas, *v.core)).astype(symbol.dtype)
        (statistic,) = substitute([self.statistic], replaced)
        statistic, log_weight = vectorize_graph([statistic, log_weight], replace=given)
        log_weight = pt.broadcast_to(log_weight, (K, *self.areas))
        weight = pt.exp(log_weight) / noise.shape[0]
        return pt.moveaxis(statistic, 0, -2), pt.moveaxis(weight, 0, -1)


def record_of(name: str, statistic: Any, areas: tuple[int, ...], model: pm.Model) -> Record:
    """The record that a statistic is made of.

    Parameters
    ----------
    name : str
        Of the mechanism, for error messages.
    statistic : TensorVariable, shape (*areas, m)
    areas : tuple of int
    model : Model
        Its named variables are no part of the record.

    Raises
    ------
    UnsupportedModelError
        If there is no unnamed random variable, or one that can neither be written with noise nor
        summed over.
    """
    variables = tuple(
        _variable(name, v, areas) for v in random_variables(statistic, set(model.basic_RVs))
    )
    if not variables:
        raise UnsupportedModelError(
            f"{name!r}: with `n`, the statistic is that of one record and is made of unnamed random "
            "variables such as `pm.Normal.dist(mu, 1)`. Found none. Leave `n` out if records are "
            "variables of the model."
        )
    return Record(statistic, areas, variables)


def random_variables(statistic: Any, named: set[Any]) -> list[Any]:
    """Unnamed random variables that a statistic is made of, parents first."""
    seen: set[Any] = set()
    found = []

    def visit(v: Any) -> None:
        if v in seen or v in named or v.owner is None:
            return
        seen.add(v)
        for parent in v.owner.inputs:
            visit(parent)
        if isinstance(v.owner.op, RandomVariable | SymbolicRandomVariable):
            found.append(v)

    visit(statistic)
    return found


def _variable(name: str, x: Any, areas: tuple[int, ...]) -> Variable:
    shape = static_shape(x)
    has_areas = bool(areas) and shape[: len(areas)] == areas
    core = shape[len(areas) :] if has_areas else shape
    op = x.owner.op
    parameters = list(op.dist_params(x.owner))
    if isinstance(op, rv.BernoulliRV):
        return Variable(x, core, has_areas, np.arange(2), None, ())
    if isinstance(op, rv.CategoricalRV):
        categories = int(parameters[0].shape[-1].eval(mode="FAST_COMPILE"))
        return Variable(x, core, has_areas, np.arange(categories), None, ())
    if isinstance(op, rv.BinomialRV) and (trials := _constant(parameters[0])) is not None:
        return Variable(x, core, has_areas, np.arange(int(trials.max()) + 1), None, ())
    family = FAMILIES.get(type(op))
    if family is not None:
        constants = tuple(_constant(parameters[i]) for i in family.shapes)
        if all(c is not None for c in constants):
            return Variable(x, core, has_areas, None, family, constants)
    if x.dtype.startswith("float") and _has_smooth_quantiles(x, parameters):
        return Variable(x, core, has_areas, None, None, ())
    kind = type(op).__name__.removesuffix("RV")
    raise UnsupportedModelError(
        f"{name!r}: a record with a {kind} variable can be neither written as a function of noise nor "
        "summed over. Continuous variables need a quantile function with a derivative by their parameters (a `Gamma`, `Beta` "
        "or `StudentT` has one if its shape is known), discrete ones few values (`Bernoulli`, `Categorical`, a `Binomial` with known "
        "trials). Counts that are released themselves go in as `total`."
    )


def _has_smooth_quantiles(x: Any, parameters: list[Any]) -> bool:
    """Whether PyMC has a quantile function of this law, in its parameters alone and with derivatives by them."""
    moving = [v for v in parameters if v.dtype.startswith("float") and _constant(v) is None]
    try:
        quantile = pm.icdf(x, x.type())
        pt.grad(quantile.sum(), moving, disconnected_inputs="ignore")
    except (NotImplementedError, NullTypeGradError):
        return False
    random = [
        v for v in ancestors([quantile]) if v.owner and isinstance(v.owner.op, RandomVariable)
    ]
    return set(random) <= set(ancestors(parameters))


def static_shape(x: Any) -> tuple[int, ...]:
    """Shape of a tensor as numbers."""
    shape = x.type.shape
    return tuple(int(k) for k in (x.shape.eval(mode="FAST_COMPILE") if None in shape else shape))


def _constant(x: Any) -> NDArray[Any] | None:
    """Value of a tensor that depends on no variable."""
    if any(v.owner is None and not hasattr(v, "data") for v in graph_inputs([x])):
        return None
    return np.asarray(x.eval(mode="FAST_COMPILE"))


def substitute(outputs: Any, replace: dict[Any, Any]) -> list[Any]:
    """Outputs with some variables replaced; nothing else is copied, so that θ stays θ.

    PyTensor's own `clone_replace` copies random variables, and `graph_replace` refuses nested
    replacements in PyTensor 2.
    """
    done = dict(replace)

    def rebuilt(v: Any) -> Any:
        if v not in done:
            done[v] = v
            if v.owner is not None:
                inputs = [rebuilt(i) for i in v.owner.inputs]
                if any(new is not old for new, old in zip(inputs, v.owner.inputs, strict=True)):
                    node = v.owner.clone_with_new_inputs(inputs, strict=False)
                    done[v] = node.outputs[v.owner.outputs.index(v)]
        return done[v]

    return [rebuilt(v) for v in outputs]
