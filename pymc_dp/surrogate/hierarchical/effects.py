"""Effects of groups that are normal given the rest of a model's parameters, and their coordinates."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.basic import MvNormalRV, NormalRV

from pymc_dp.compat import ancestors, lower_named_dims
from pymc_dp.likelihood.parameters import ParameterSpace

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


def given(
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
    G, Λ = _times(B, R), _entries([precision[:, i, j] for i in range(r) for j in range(r)])
    Λ = Λ.reshape(r, r)
    away = _entries([centre[:, i] for i in range(r)]) - A - _times(B, m)
    linear = _times(G.T, _entries([pull[:, i] for i in range(r)]) + _times(Λ, away))
    P, L = np.eye(q) + _times(G.T, _times(Λ, G)), np.zeros((q, q), object)
    for i in range(q):
        for j in range(i + 1):
            rest = P[i, j] - _times(L[i, :j], L[j, :j])
            L[i, j] = pt.sqrt(rest) if i == j else rest / L[j, j]
    y, epsilon = np.zeros(q, object), np.zeros(q, object)
    for i in range(q):
        y[i] = (linear[i] - _times(L[i, :i], y[:i])) / L[i, i]
    for i in reversed(range(q)):
        white = y[i] + zeta[effects.inside[:, i]]
        epsilon[i] = (white - _times(L[i + 1 :, i], epsilon[i + 1 :])) / L[i, i]

    def each(v: Any) -> Variable:
        return pt.broadcast_to(v, (groups,))

    prior_sds = pt.stack([each(pt.sqrt(_times(row, row))) for row in G], axis=1)
    change = sum(
        (pt.sum(each(pt.log(pt.abs(R[i, i]))) - pt.log(L[i, i])) for i in range(q)), pt.zeros(())
    )
    return [each(v) for v in m + _times(R, epsilon)], prior_sds, change


def _entries(values: Sequence[Any]) -> Entries:
    # One by one: of a list of variables NumPy would look inside.
    entries = np.empty(len(values), object)
    for k, value in enumerate(values):
        entries[k] = value
    return entries


def _times(a: Entries, b: Entries) -> Any:
    """What ``a @ b`` is, without products with a number, which is 0: PyTensor 2 rewrites 0 / x without end."""
    found = np.zeros((*a.shape[:-1], *b.shape[1:]), object)
    for at in np.ndindex(found.shape):
        row, column = (a[at[0]], b[:, *at[1:]]) if a.ndim == 2 else (a, b[:, *at])
        for x, y in zip(row, column, strict=True):
            if isinstance(x, Variable) and isinstance(y, Variable):
                found[at] = found[at] + x * y
    return found[()]


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
    model, (groups, columns) = parameters.model, table.type.shape
    places = parameters.point(np.arange(parameters.d))
    A, none = _entries([table[:, i] for i in range(columns)]), np.zeros((columns, 0), object)
    effects = Effects([], np.zeros((groups, 0), np.int64), A, none, none[0], none[:0])
    for rv in reversed([rv for rv in model.free_RVs if rv not in taken]):
        inside = places[model.rvs_to_values[rv].name]
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
        slope, without, whole = np.array(rest[:q]), rest[q : q + len(laws)], rest[q + len(laws) :]
        affine = constant + np.einsum("jgr,gj->gr", slope, there[together])
        if not np.allclose(value, affine, rtol=1e-9, atol=1e-9) or not all(
            map(np.array_equal, without, whole)
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
    places = parameters.point(np.arange(parameters.d))
    below: list[int] = []
    diagonal: list[int] = []
    for rv, transform in parameters.model.rvs_to_transforms.items():
        if isinstance(transform, CholeskyCovPacked):
            packed = places[parameters.model.rvs_to_values[rv].name]
            for row in range(math.isqrt(2 * len(packed))):
                first = row * (row + 1) // 2
                below += list(packed[first : first + row])
                diagonal += [packed[first + row]] * row
    return np.array(below, np.int64), np.array(diagonal, np.int64)
