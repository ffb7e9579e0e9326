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
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from scipy.optimize import minimize

from pymc_dp.compat import ancestors, lower_named_dims
from pymc_dp.likelihood.compilation import interpreted
from pymc_dp.likelihood.cut import Cut
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.linalg import Vector, floored, inverse_root, positive
from pymc_dp.records.grouped import Shape
from pymc_dp.surrogate.hierarchical.structured import Structured
from pymc_dp.surrogate.normal.draws import draws_of

_STEP = 1e-4
"""Of a numerical second derivative."""
_FLAT = 1e-6
"""A prior precision, and a variance, that stands for none."""


Entries = NDArray[np.object_]
"""A small vector or matrix for every group: its entries, each a number or, for all groups at once, a vector."""


class Effects(NamedTuple):
    r"""Free variables z that a table's rows are affine in: :math:`A_k + B_k z_k`, :math:`z_k = m_k + R_k \varepsilon_k`.

    ε is standard normal given the rest of θ.

    Parameters
    ----------
    variables : list of Variable
    inside : ndarray of int, shape (groups, q)
        Where z is in θ.
    A, B, m, R : ndarray, shapes (columns,), (columns, q), (q,) and (q, q)
        R is triangular.
    """

    variables: list[Variable]
    inside: NDArray[np.int64]
    A: Entries
    B: Entries
    m: Entries
    R: Entries


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
        self.shape = shape = Shape(cut.p, tuple(cut.shapes))
        shapes = [(1, shape.p), *shape.tables]
        n = shape.n
        self._effects: list[Effects] = []
        for table in psi[1:]:
            taken = [v for effects in self._effects for v in effects.variables]
            self._effects.append(find_effects(parameters, theta, table, taken))
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
            z, sds, change = _given(
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
        pull = linear - K @ u + Structured(own, K.U[:, :0], K.M[:0, :0]).of_blocks(u)
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

        def minus(zeta: Vector) -> tuple[float, Vector]:
            value, slope = self._value(zeta)
            ok = np.isfinite(value) and np.isfinite(slope).all()
            return (-float(value), -slope) if ok else (1e300, np.zeros_like(zeta))

        found = minimize(minus, self._start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        self._start = np.asarray(found.x)
        theta, psi, *sds = self._at(self._start)
        of_rows = np.concatenate([np.ravel(sd) for sd in sds])
        prior_sds = np.where(of_rows > 0, of_rows, self._prior_sds[self.shape.p :])
        return Mode(theta, psi, np.concatenate([self.common_sds, prior_sds]))

    def drawn(self, rng: np.random.Generator, many: int) -> list[Vector]:
        """θ as drawn from the law: the normal entries given the rest, and that by its curvature at the last mode.

        Hyperparameters at their mode would leave groups less spread than they are.
        """
        rest = np.flatnonzero(~self._whitened)
        H = np.reshape([self._curvatures(int(j))[rest] for j in rest], (len(rest), len(rest)))
        zetas = rng.standard_normal((many, len(self._start)))
        # Coordinates are scaled: a curvature below 1 is that of a prior that is wider than a step should be.
        root = inverse_root(floored((H + H.T) / 2, 1.0))
        zetas[:, rest] = self._start[rest] + zetas[:, rest] @ root
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


def _given(
    effects: Effects, theta: Variable, point: Variable, zeta: Variable, centre: Variable, pull: Variable, precision: Variable,
) -> tuple[list[Variable], Variable, Variable]:  # fmt: skip
    r"""Effects given the rest of θ and what the law says of their rows; ζ is white.

    With :math:`G = B R` rows are :math:`A + B m + G\varepsilon`, and ε has the precision :math:`1 + G^\top \Lambda G = L L^\top`.

    Returns
    -------
    z : list of Variable, shape (groups,)
    prior_sds : Variable, shape (groups, columns)
        Of rows, 0 where they are made of none of these.
    change : Variable
        Logarithm of the determinant of z in ζ.
    """
    (groups, q), r = effects.inside.shape, len(effects.A)
    symbols = [v for M in effects[2:] for v in M.flat if isinstance(v, Variable)]
    moved = clone_replace(symbols, {theta: point}, rebuild_strict=False)
    here = dict(zip(symbols, moved, strict=True))
    A, B, m, R = (_entries([here.get(v, v) for v in M.flat]).reshape(M.shape) for M in effects[2:])
    G, Λ = B @ R, _entries([precision[:, i, j] for i in range(r) for j in range(r)]).reshape(r, r)
    away = _entries([centre[:, i] for i in range(r)]) - A - B @ m
    linear = G.T @ (_entries([pull[:, i] for i in range(r)]) + Λ @ away)
    P, L = np.eye(q) + G.T @ Λ @ G, np.zeros((q, q), object)
    for i in range(q):
        for j in range(i + 1):
            rest = P[i, j] - sum(L[i, :j] * L[j, :j])
            L[i, j] = pt.sqrt(rest) if i == j else rest / L[j, j]
    y, epsilon = np.zeros(q, object), np.zeros(q, object)
    for i in range(q):
        y[i] = (linear[i] - sum(L[i, :i] * y[:i])) / L[i, i]
    for i in reversed(range(q)):
        white = y[i] + zeta[effects.inside[:, i]]
        epsilon[i] = (white - sum(L[i + 1 :, i] * epsilon[i + 1 :])) / L[i, i]

    def each(v: Any) -> Variable:
        return pt.broadcast_to(v, (groups,))

    prior_sds = pt.stack([each(pt.sqrt(sum(row**2))) for row in G], axis=1)
    change = sum(
        (pt.sum(each(pt.log(pt.abs(R[i, i]))) - pt.log(L[i, i])) for i in range(q)), pt.zeros(())
    )
    return [each(v) for v in m + R @ epsilon], prior_sds, change


def _entries(values: Sequence[Any]) -> Entries:
    # One by one: of a list of variables NumPy would look inside.
    entries = np.empty(len(values), object)
    for k, value in enumerate(values):
        entries[k] = value
    return entries


def find_effects(
    parameters: ParameterSpace, theta: Variable, table: Variable, taken: Sequence[Variable]
) -> Effects:
    """The free variables that a table's rows are affine in, each in its own, and that are normal.

    Parameters
    ----------
    parameters : ParameterSpace
    theta : Variable
    table : Variable, shape (groups, columns)
        A function of it.
    taken : sequence of Variable
        Other tables' effects, of which there is one for each number.
    """
    model, start, places = parameters.model, 0, {}
    groups, columns = table.type.shape
    for rv in model.free_RVs:
        shape = parameters.shapes[model.rvs_to_values[rv].name]
        places[rv] = np.arange(start, start := start + math.prod(shape)).reshape(shape)
    A, none = _entries([table[:, i] for i in range(columns)]), np.zeros((columns, 0), object)
    effects = Effects([], np.zeros((groups, 0), np.int64), A, none, none[0], none[:0])
    for rv in reversed([rv for rv in model.free_RVs if rv not in taken]):
        inside = places[rv]
        on_its_side = inside.shape[:1] != (groups,)
        inside = inside.T if on_its_side else inside
        if inside.shape[:1] != (groups,) or inside.ndim > 2:
            continue
        inside = inside.reshape(groups, -1)
        law = _normal_law(parameters, theta, rv, inside, on_its_side)
        if law is not None:
            effects = _with(effects, parameters, theta, table, rv, inside, *law) or effects
    return effects


def _normal_law(
    parameters: ParameterSpace,
    theta: Variable,
    rv: Variable,
    inside: NDArray[np.int64],
    on_its_side: bool,
) -> tuple[Entries, Entries] | None:
    """Mean and root of the covariance of a variable's rows; None if it is not normal."""
    model, q, op = parameters.model, inside.shape[1], rv.owner.op
    alike = isinstance(op, MvNormalRV) and not on_its_side
    if not (isinstance(op, NormalRV) or alike) or model.rvs_to_transforms[rv] is not None:
        return None
    law = model.replace_rvs_by_values(list(op.dist_params(rv.owner)))
    law, at = parameters.join([*law])
    law = [lower_named_dims(v) for v in law]
    if at in ancestors(law):
        law = clone_replace(law, {at: theta}, rebuild_strict=False)
    mean, spread = law
    shape = parameters.shapes[model.rvs_to_values[rv].name]

    def columns(v: Variable) -> Entries:
        whole = pt.broadcast_to(v, shape)
        whole = (whole.T if on_its_side else whole).reshape(inside.shape)
        return _entries([whole[:, i] for i in range(q)])

    if isinstance(op, NormalRV):
        return columns(mean), np.diag(columns(spread))
    if math.prod(n or 0 for n in spread.type.shape) != q * q:  # one for all groups
        return None
    root, R = pt.linalg.cholesky(spread.reshape((q, q))), np.zeros((q, q), object)
    for i, j in zip(*np.tril_indices(q), strict=True):
        R[i, j] = root[int(i), int(j)]
    return columns(mean), R


def _with(
    effects: Effects, parameters: ParameterSpace, theta: Variable, table: Variable, rv: Variable,
    inside: NDArray[np.int64], m: Entries, R: Entries,
) -> Effects | None:  # fmt: skip
    """Effects with another variable; None if the table is not affine in both, or their laws depend on each other."""
    groups, r = table.type.shape
    together = np.column_stack([effects.inside, inside])
    q, more = together.shape[1], inside.shape[1]

    def at(theta_: Variable, vs: Sequence[Variable]) -> Any:
        return clone_replace(list(vs), {theta: theta_}, rebuild_strict=False)

    def moved(values: Any) -> Variable:
        return theta[together.T.ravel()].set(values)

    (A,) = at(moved(np.zeros(groups * q)), [table])
    slopes = [at(moved(np.repeat(np.eye(q)[j], groups)), [table])[0] - A for j in range(q)]
    both = np.zeros((q, q), object)
    both[: q - more, : q - more], both[q - more :, q - more :] = effects.R, R
    m = np.concatenate([effects.m, m])
    laws = [v for M in (m, both) for v in M.flat if isinstance(v, Variable)]
    check = pytensor.function(
        [theta],
        [table, A, *slopes, *at(moved(np.zeros(groups * q)), laws), *laws],
        mode="FAST_COMPILE",
    )
    rng, nonzero = np.random.default_rng(0), np.zeros((r, q), bool)
    for _ in range(2):
        there = parameters.start + rng.normal(size=parameters.d)
        value, constant, *rest = check(there)
        slope, apart, given = np.array(rest[:q]), rest[q : q + len(laws)], rest[q + len(laws) :]
        affine = constant + np.einsum("jgr,gj->gr", slope, there[together])
        if not np.allclose(value, affine, rtol=1e-9, atol=1e-9) or not all(
            map(np.array_equal, apart, given)
        ):
            return None
        nonzero |= (slope != 0).any(axis=1).T
    if not nonzero.any(axis=0).all():
        return None
    B = np.zeros((r, q), object)
    for i, j in np.argwhere(nonzero):
        B[i, j] = slopes[j][:, int(i)]
    constant = _entries([A[:, i] for i in range(r)])
    return Effects([*effects.variables, rv], together, constant, B, m, both)


def below_diagonals(parameters: ParameterSpace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in θ what is below Cholesky matrices' diagonals is, and the logarithm of the diagonal of its row.

    It is as narrow as that is small: the density is highest where a scale is 0, if it is not seen in parts of it.
    """
    model, start = parameters.model, 0
    below: list[int] = []
    diagonal: list[int] = []
    for rv in model.free_RVs:
        size = math.prod(parameters.shapes[model.rvs_to_values[rv].name])
        if isinstance(model.rvs_to_transforms[rv], CholeskyCovPacked):
            end = start
            for row in range(math.isqrt(2 * size)):
                end += row
                below += range(end - row, end)
                diagonal += [end] * row
                end += 1
        start += size
    return np.array(below, np.int64), np.array(diagonal, np.int64)


def _as_long(parameters: ParameterSpace, sources: Sequence[Variable]) -> set[Variable]:
    model, shapes = parameters.model, {s.type.shape for s in sources}
    return {
        rv for rv in model.free_RVs if parameters.shapes[model.rvs_to_values[rv].name] in shapes
    }
