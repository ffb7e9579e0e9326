r"""Draws of the law that evaluations leave: the exact prior, times a normal likelihood of ψ(θ), by any sampler.

.. math:: p(\theta \mid \text{evaluations}) \propto p(\theta)\,
    e^{-\frac12 u^\top K u + k^\top u}, \qquad u = \psi(\theta) - \psi_0

Everything here is public: released numbers and the model without its observed variables. Rows of tables that
are normal given the rest of θ, as groups given their mean and scale, are written with noise that is standard
normal given the rest *and* what the law says of that row alone: non-centred where it knows little of a group, centred
where it knows much, and in between for those in between. So there is no funnel in either direction.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace

from pymc_dp.compat import lower_named_dims
from pymc_dp.likelihood.compilation import interpreted
from pymc_dp.likelihood.cut import Cut
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.linalg import Vector, floored, inverse_root, positive
from pymc_dp.surrogate.hierarchical.effects import (
    Effects,
    below_diagonals,
    find_effects,
    given,
)
from pymc_dp.surrogate.hierarchical.structured import Structured
from pymc_dp.surrogate.normal.draws import draws_of, highest

_STEP = 1e-4
"""Of a numerical second derivative."""
_FLAT = 1e-6
"""A prior precision, and a variance, that stands for none."""


class Mode(NamedTuple):
    """Where the law's density is highest.

    Parameters
    ----------
    theta : ndarray, shape (d,)
    psi : ndarray, shape (n,)
    prior_sds : ndarray, shape (n,)
        Of the entries of ψ that are normal given the rest of θ, there; of the others at the start.
    """

    theta: Vector
    psi: Vector
    prior_sds: Vector


def effects_of(parameters: ParameterSpace, cut: Cut) -> list[Effects]:
    """Of every table the variables that are normal given the rest, none in two of them."""
    found: list[Effects] = []
    for table in cut.psi[1:]:
        taken = [v for effects in found for v in effects.variables]
        found.append(find_effects(parameters, cut.graph.theta, table, taken))
    return found


class LawModel:
    r"""The law's density in coordinates ζ that are about standard normal. Compiled once, for any numbers.

    Parameters
    ----------
    parameters : ParameterSpace
    cut : Cut
        What ψ is made of: φ, shape (p,), and tables, each of shape (groups, columns), one after the other, row by row.

    Attributes
    ----------
    shape : Shape
    common_sds : ndarray, shape (p,)
        Of φ, about, in the prior.
    table_names : list of str
        Free variables that each table is made of.
    n_rest : int
        How many entries of θ are not known to be normal given the rest.
    """

    def __init__(
        self,
        parameters: ParameterSpace,
        cut: Cut,
    ):
        self.parameters, d = parameters, parameters.d
        model, theta, psi = parameters.model, cut.graph.theta, cut.psi
        tables = [table.sources for table in cut.tables]
        density = model.logp(vars=[*model.free_RVs, *model.potentials], sum=True)
        (density,), at = parameters.join([density])
        self.shape = shape = cut.shape
        shapes = [(1, shape.p), *shape.tables]
        n = shape.n
        self._effects = effects_of(parameters, cut)
        self._psi = cut.psi_function()
        self._whitened = np.zeros(d, bool)
        for effects in self._effects:
            self._whitened[effects.inside] = True
        self.n_rest = d - int(self._whitened.sum())
        self._below, self._diagonal = below_diagonals(parameters)
        # Numbers in place of which others are put, of any shape: nothing is compiled twice.
        numbers = {
            "scale": np.ones(d), "origin": self._in_diagonals(parameters.start), "centre": np.zeros(n),
            "linear": np.zeros(n), "pull": np.zeros(n),
            "U": np.zeros((n, 1)), "M": np.zeros((1, 1)),
            "coupling": np.zeros((n, shape.p)), "common": np.zeros(shape.p),
        }  # fmt: skip
        for k, (groups, columns) in enumerate(shapes):
            numbers[f"block_{k}"] = numbers[f"own_{k}"] = np.zeros((groups, columns, columns))
        self._of_prior = numbers
        self._numbers = {
            name: pytensor.shared(x, name=name, shape=(None,) * x.ndim)
            for name, x in numbers.items()
        }
        of = self._numbers
        zeta = pt.vector("zeta", shape=(d,))
        point, jacobian, prior_sds = of["origin"] + of["scale"] * zeta, pt.zeros(()), []
        if len(self._below):
            diagonal = point[self._diagonal]
            point = point[self._below].set(point[self._below] * pt.exp(diagonal))
            jacobian += pt.sum(diagonal)
        (common,) = clone_replace([psi[0]], {theta: point}, rebuild_strict=False)
        if not self._is_apart(theta, psi[0]):
            common = of["common"]
        pull = of["pull"] - of["coupling"] @ (common - of["common"])
        start = shape.p
        for k, (effects, (groups, r)) in enumerate(zip(self._effects, shape.tables, strict=True)):
            places = slice(start, start := start + groups * r)
            at_row, of_law = of["centre"][places], pull[places]
            z, sds, change = given(
                effects, theta, point, zeta, at_row.reshape((groups, r)), of_law.reshape((groups, r)), of[f"own_{k + 1}"],
            )  # fmt: skip
            if len(z):
                point = point[effects.inside.T.ravel()].set(pt.concatenate(z))
            jacobian += change
            prior_sds.append(sds)
        density, *seen = clone_replace(
            [density, *psi], {theta: point, at: point}, rebuild_strict=False
        )
        u = pt.concatenate([part.ravel() for part in seen]) - of["centre"]
        low = of["U"].T @ u
        log_law = pt.dot(of["linear"], u) - pt.dot(low, of["M"] @ low) / 2
        start = 0
        for k, (groups, columns) in enumerate(shapes):
            rows = u[start : start + groups * columns].reshape((groups, columns))
            log_law -= ((of[f"block_{k}"] * rows[:, None, :]).sum(axis=2) * rows).sum() / 2
            start += groups * columns
        self._zeta, self._density = zeta, lower_named_dims(density) + jacobian + log_law
        (own,) = clone_replace([self._density])  # rewriting changes the graph
        own = rewrite_pregrad(own)
        # A search asks some thousand times. Only NUTS asks often enough to compile the density, with what it released.
        self._value = pm.compile([zeta], [own, pytensor.grad(own, zeta)], mode=interpreted())
        self._at = pm.compile([zeta], [point, u + of["centre"], *prior_sds], mode=interpreted())
        self.table_names = [
            ", ".join(
                rv.name
                for rv in model.free_RVs
                if rv in {*effects.variables, *_as_long(parameters, sources)}
            )
            for effects, sources in zip(self._effects, tables, strict=True)
        ]
        self._start = np.zeros(d)
        self._prior_sds = self._sds_at_start()
        self.common_sds = self._prior_sds[: shape.p]

    def _is_apart(self, theta: Variable, common: Variable) -> bool:
        """Whether φ does not depend on what is whitened."""
        function = pytensor.function([theta], common, mode="FAST_COMPILE", on_unused_input="ignore")
        here = self.parameters.start
        moved = here + self._whitened * np.random.default_rng(0).normal(size=len(here))
        return np.array_equal(function(here), function(moved))

    def _sds_at_start(self) -> Vector:
        """Of ψ at the start, to first order in the free variables that are not whitened."""
        variance, middle = np.zeros(self.shape.n), self._at(self._start)[1]
        for j in map(int, np.flatnonzero(~self._whitened)):
            curvature = self._curvatures(j)[j]
            moved = self._start.copy()
            moved[j] += _STEP
            slope = (self._at(moved)[1] - middle) / _STEP
            variance += slope**2 / (curvature if curvature > 0 else _FLAT)
        return np.sqrt(np.maximum(variance, _FLAT))

    def _in_diagonals(self, theta: Vector) -> Vector:
        """θ, with what is below a Cholesky matrix's diagonal in parts of the diagonal."""
        other = theta.copy()
        other[self._below] /= np.exp(theta[self._diagonal])
        return other

    def reset(self) -> None:
        """Forget all laws: what is left is the prior."""
        for name, x in self._of_prior.items():
            self._numbers[name].set_value(x)
        self._start = np.zeros(self.parameters.d)

    def put(self, centre: Vector, linear: Vector, K: Structured) -> None:
        r"""Take another law, of which the last mode is a first guess.

        Parameters
        ----------
        centre, linear : ndarray, shape (n,)
            :math:`\psi_0` and k.
        K : Structured
        """
        of, p = self._numbers, self.shape.p
        theta, psi, *_ = self._at(self._start)
        own, u = K.own_blocks, psi - centre
        # What the law says of a row if all others, but φ, are where they were last.
        pull = linear - K @ u + Structured.block_diagonal(own).of_blocks(u)
        new = {
            "centre": centre, "linear": linear, "U": K.U, "M": K.M, "pull": pull,
            "coupling": K @ np.eye(len(u), p), "common": psi[:p],
        }  # fmt: skip
        for name, x in new.items():
            of[name].set_value(x)
        for k, (block, row) in enumerate(zip(K.blocks, own, strict=True)):
            of[f"block_{k}"].set_value(block)
            of[f"own_{k}"].set_value(positive(row, 0.0))
        of["origin"].set_value(np.where(self._whitened, 0.0, self._in_diagonals(theta)))
        of["scale"].set_value(np.ones(len(theta)))
        self._start = np.zeros(len(theta))
        scale = np.ones(len(theta))
        for j in map(int, np.flatnonzero(~self._whitened)):
            curvature = self._curvatures(j)[j]
            scale[j] = min(1 / math.sqrt(curvature), 1.0) if curvature > 0 else 1.0
        of["scale"].set_value(scale)

    def _curvatures(self, j: int) -> Vector:
        """Minus the second derivatives in ζ_j and every entry of ζ."""
        return (self._slope(j, -_STEP) - self._slope(j, _STEP)) / (2 * _STEP)

    def _slope(self, j: int, step: float) -> Vector:
        moved = self._start.copy()
        moved[j] += step
        return np.asarray(self._value(moved)[1])

    def mode(self) -> Mode:
        """Where the density in ζ is highest.

        With groups in ζ, that is the mode of what the law says of the rest of θ without them, and the
        groups' mean there: not where τ is 0.
        """
        self._start = highest(self._value, self._start)
        theta, psi, *sds = self._at(self._start)
        of_rows = np.concatenate([np.ravel(sd) for sd in sds])
        prior_sds = np.where(of_rows > 0, of_rows, self._prior_sds[self.shape.p :])
        return Mode(theta, psi, np.concatenate([self.common_sds, prior_sds]))

    def drawn(
        self, rng: np.random.Generator, many: int, only_effects: bool = False
    ) -> list[Vector]:
        """θ as drawn from the law: the normal entries given the rest, and that by its curvature at the last mode, or at the mode itself.

        Hyperparameters at their mode would leave groups less spread than they are.
        """
        rest = np.flatnonzero(~self._whitened)
        H = np.reshape([self._curvatures(int(j))[rest] for j in rest], (len(rest), len(rest)))
        zetas = rng.standard_normal((many, len(self._start)))
        # Coordinates are scaled: a curvature below 1 is that of a prior that is wider than a step should be.
        root = inverse_root(floored((H + H.T) / 2, 1.0))
        zetas[:, rest] = self._start[rest] + (0.0 if only_effects else zetas[:, rest] @ root)
        return [np.asarray(self._at(zeta)[0]) for zeta in zetas]

    def psi_at(self, theta: Vector) -> Vector:
        """ψ, shape (n,)."""
        return np.concatenate([np.ravel(part) for part in self._psi(theta)])

    def sample(self, draws: int, chains: int, seed: int, nuts_sampler: str = "pymc") -> Vector:
        """Draws of θ, shape (chains, draws, d), by NUTS: of the law, exactly.

        Parameters
        ----------
        draws, chains, seed : int
        nuts_sampler : str
            As for ``pm.sample``.
        """

        def log_density(zeta: Variable) -> Any:
            # Cloned, ζ would be another.
            return graph_replace([self._density], {self._zeta: zeta})[0]

        zetas = draws_of(log_density, self._start, draws, chains, seed, nuts_sampler)
        flat = [self._at(zeta)[0] for zeta in zetas.reshape(-1, zetas.shape[-1])]
        return np.reshape(flat, zetas.shape)


def _as_long(parameters: ParameterSpace, sources: Sequence[Variable]) -> set[Variable]:
    model, shapes = parameters.model, {s.type.shape for s in sources}
    return {
        rv for rv in model.free_RVs if parameters.shapes[model.rvs_to_values[rv].name] in shapes
    }
