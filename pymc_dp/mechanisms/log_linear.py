r"""Laws of people over the cells that their columns make, observed through noisy marginals.

With levels of J columns, :math:`c` a combination of them (a cell) and :math:`p(c)` its probability, the tables that were
released are

.. math:: s = A\,x + N(0, \sigma^2 I), \qquad x \sim \text{Multinomial}(n, p),

A the 0/1 matrix that sums cells to tables. The confidential counts x are integrated out as normal:
:math:`s \sim N\big(n A p,\; n A(\operatorname{diag} p - p p^\top)A^\top + \sigma^2 I\big)`, with the covariance at the log-linear
law that fits the tables best.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.marginals import ReleasedMarginals

_Floats = NDArray[np.float64]

PRIOR_SD = 2.0
"""Of every effect, in nats: cells that nobody is in have effects without end. Of 3,000 people at ε = 1, where many cells are below the
noise, half and twice as much make coverage .88 and .87 in place of .90, and with twice as much errors are 1.3 times as large and NUTS
takes several times as long (``benchmarks/release_once.py prior``)."""

_CHUNK = 20_000
"""Cells at a time, when cells are summed to a matrix of all counts: 500 counts take 80 MB."""

_LEAST_STEP, _MOST_STEPS = 1e-4, 100
"""A fit ends when a step is shorter than this, in posterior standard deviations. From nobody in particular it takes 8 to 15."""


class _Design(NamedTuple):
    """How effects make log-probabilities, and these make tables.

    Parameters
    ----------
    at : ndarray of int, shape (cells, tables)
        In which count of all tables a cell is, in each of them.
    effects : ndarray, shape (counts, effects)
        What every effect adds to the log-probability of the cells of a count. Each is told in one table.
    of : list of tuple of str
        The columns whose joint effect an effect is.
    """

    at: NDArray[np.int64]
    effects: _Floats
    of: list[tuple[str, ...]]

    def log_p(self, effects: Any) -> Any:
        """Of every cell, up to a constant, from what is added in every count: a tensor, or an array of shape (counts,)."""
        return effects[self.at].sum(axis=1)

    def tables_of(self, weights: _Floats) -> _Floats:
        """Sums of cells' weights, shape (counts,)."""
        spread = np.repeat(weights, self.at.shape[1])
        return np.bincount(self.at.ravel(), spread, len(self.effects)).astype(np.float64)


class Fit(NamedTuple):
    """The log-linear law that fits tables best.

    Parameters
    ----------
    design : _Design
        Of these tables.
    p : ndarray, shape (cells,)
        Probabilities.
    C : ndarray, shape (counts, counts)
        Covariance of the confidential counts at `p`. Times the effects, it is the derivative of their means.
    factor : ndarray, shape (counts, counts)
        Lower Cholesky factor of that of the noisy ones.
    """

    design: _Design
    p: _Floats
    C: _Floats
    factor: _Floats

    def slopes(self, effects: _Floats) -> _Floats:
        """Derivatives of the tables' means by effects, in standard deviations, shape (counts, effects)."""
        return np.asarray(solve_triangular(self.factor, self.C @ effects, lower=True))


def log_linear(
    name: str,
    released: ReleasedMarginals,
    columns: Sequence[str] | None = None,
) -> Any:
    r"""Make the log-linear law of some columns: all effects that tables of them tell of, each a parameter.

    Parameters
    ----------
    name : str
        Of the parameters' vector.
    released : ReleasedMarginals
        The tables.
    columns : sequence of str, optional
        Those that the law is of, for instance the covariates of a regression; all by default.

    Returns
    -------
    TensorVariable, shape (cells,)
        Log-probabilities up to a constant, for the rows of :meth:`ReleasedMarginals.cells`. Add to it what a model says of
        the other columns given these.

    Raises
    ------
    PrivacyConfigurationError
        If there is no such column.

    Notes
    -----
    :math:`\log p(c) = \sum_t u_t(c)` with a term for every table and every part of one, in orthonormal contrasts of the
    levels, each :math:`N(0, 2^2)` a priori. What is sampled is
    :math:`\xi = V^{-1}(\lambda - \hat\lambda)`, where :math:`\hat\lambda` and :math:`V V^\top` are about the posterior's mean
    and covariance, so that NUTS takes some ten steps a draw.
    """
    asked = list(released.columns) if columns is None else list(columns)
    unknown = [c for c in asked if c not in released.columns]
    if unknown or not asked:
        raise PrivacyConfigurationError(
            f"{name!r}: `columns` must be some of {list(released.columns)}. Found {columns!r}."
        )
    fit = fitted(released)
    design, p, n = fit.design, fit.p, released.n_records
    E = design.effects[:, [set(of) <= set(asked) for of in design.of]]
    of_prior = np.eye(E.shape[1]) / PRIOR_SD**2
    # Nearest to what the fit says of these columns, given which the others stay as they are.
    log_margin = p * np.log(_margin(p, released, asked))
    covaried = design.tables_of(log_margin) - design.tables_of(p) * log_margin.sum()
    centre = np.linalg.solve(E.T @ fit.C @ E + of_prior, n * E.T @ covaried)
    WJ = fit.slopes(E)
    V = np.linalg.cholesky(np.linalg.inv(WJ.T @ WJ + of_prior))
    inverse = solve_triangular(V, np.eye(len(V)), lower=True)
    xi = pm.MvNormal(
        name, mu=-inverse @ centre, chol=PRIOR_SD * inverse, shape=len(V), initval=np.zeros(len(V))
    )
    return design.log_p(pt.dot(E, centre + pt.dot(V, xi)))


def NoisyMarginals(name: str, logp: Any, *, observed: ReleasedMarginals) -> Any:  # noqa: N802
    r"""Observe released tables in a model of their columns. The analyst's; nothing here costs privacy.

    Parameters
    ----------
    name : str
        Of the observed variable.
    logp : tensor_like, shape (cells,)
        Log-probability of a person's being in the cell, up to a constant, for the rows of :meth:`ReleasedMarginals.cells`. Usually
        a :func:`log_linear` law of the covariates and, added to it, the log-probability of the outcome's level
        given them, by ``pm.logp``.
    observed : ReleasedMarginals
        What the curator released.

    Returns
    -------
    TensorVariable, shape (counts,)
        All counts in the order of the tables.

    Raises
    ------
    PrivacyConfigurationError
        If `logp` has another shape.

    Notes
    -----
    Confidential counts are integrated out as normal, with a covariance from the best log-linear law (see the module).

    Examples
    --------
    >>> cells = released.cells()                                      # doctest: +SKIP
    >>> with pm.Model():                                              # doctest: +SKIP
    ...     a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
    ...     smokes = pm.Bernoulli.dist(logit_p=a + b * (cells["age"].to_numpy() - 50) / 10)
    ...     logp = pm.logp(smokes, cells["smokes"].to_numpy())
    ...     NoisyMarginals("tables", logp + log_linear("people", released, ["age"]), observed=released)
    ...     idata = pm.sample()
    """
    if not isinstance(observed, ReleasedMarginals):
        raise PrivacyConfigurationError(
            f"{name!r}: `observed` is what `release_marginals` returns. Found {type(observed).__name__}."
        )
    fit = fitted(observed)
    design = fit.design
    logp = pt.as_tensor_variable(logp)
    if logp.ndim != 1 or logp.type.shape[0] not in (None, len(fit.p)):
        raise PrivacyConfigurationError(
            f"{name!r}: `logp` must have one entry for each of the {len(fit.p):,} rows of `cells()`. Found a tensor of shape "
            f"{logp.type.shape}."
        )
    probability = pt.special.softmax(logp)
    counts = pt.zeros(len(design.effects))[design.at]
    each = pt.broadcast_to(probability[:, None], design.at.shape)
    return pm.MvNormal(
        name,
        mu=observed.n_records * pt.inc_subtensor(counts, each),
        chol=fit.factor,
        observed=np.concatenate([x.ravel() for x in observed.counts]).astype(float),
    )


@lru_cache(maxsize=8)  # releases compare by identity
def fitted(released: ReleasedMarginals) -> Fit:
    """Fit the log-linear law with all effects that the tables tell of, by Fisher scoring.

    Parameters
    ----------
    released : ReleasedMarginals

    Returns
    -------
    Fit
    """
    design = _design(released)
    E, n = design.effects, released.n_records
    s = np.concatenate([x.ravel() for x in released.counts]).astype(float)
    effects, of_prior = np.zeros(E.shape[1]), np.eye(E.shape[1]) / PRIOR_SD**2
    for _ in range(_MOST_STEPS):
        fit = _at(E @ effects, design, released)
        WJ = fit.slopes(E)
        r = solve_triangular(fit.factor, s - n * design.tables_of(fit.p), lower=True)
        H = WJ.T @ WJ + of_prior
        step = cho_solve((cholesky(H, lower=True), True), WJ.T @ r - of_prior @ effects)
        # Where the law is far from the data no effect moves by more than a nat.
        step *= min(1.0, 1 / np.abs(step).max())
        effects += step
        if np.sqrt(step @ H @ step) < _LEAST_STEP:
            break
    return fit


def _design(released: ReleasedMarginals) -> _Design:
    columns = list(released.columns)
    at = np.indices(released.shape).reshape(len(columns), -1)
    sizes = [x.size for x in released.counts]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    index, effects, of = [], [], []
    told: set[frozenset[str]] = set()
    for table, offset, counts in zip(released.tables, offsets, released.counts, strict=False):
        levels = [at[columns.index(name)] for name in table]
        index.append(offset + np.ravel_multi_index(tuple(levels), counts.shape))
        inside = np.indices(counts.shape).reshape(len(table), -1)
        for size in range(1, len(table) + 1):
            for axes in combinations(range(len(table)), size):
                names = tuple(table[k] for k in axes)
                if frozenset(names) in told:
                    continue
                told.add(frozenset(names))
                block = np.ones((counts.size, 1))
                for k in axes:
                    level = _contrasts(counts.shape[k])[inside[k]]
                    block = (block[:, :, None] * level[:, None, :]).reshape(counts.size, -1)
                padded = np.zeros((offsets[-1], block.shape[1]))
                padded[offset : offset + counts.size] = block
                effects.append(padded)
                of += [names] * block.shape[1]
    return _Design(np.column_stack(index), np.concatenate(effects, axis=1), of)


def _contrasts(levels: int) -> _Floats:
    """Orthonormal contrasts of a column's levels, shape (levels, levels - 1)."""
    q, _ = np.linalg.qr(np.column_stack([np.ones(levels), np.eye(levels)[:, :-1]]))
    return q[:, 1:]


def _at(added: _Floats, design: _Design, released: ReleasedMarginals) -> Fit:
    """The law of which `added` is what its effects add in every count."""
    log_p = design.log_p(added)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    counts, mean = len(design.effects), design.tables_of(p)
    C = -np.outer(mean, mean)
    for start in range(0, len(p), _CHUNK):
        part = slice(start, start + _CHUNK)
        A = np.zeros((len(design.at[part]), counts))
        np.put_along_axis(A, design.at[part], 1.0, axis=1)
        C += A.T @ (A * p[part, None])
    C *= released.n_records
    return Fit(design, p, C, cholesky(C + np.eye(counts) * released.scale**2, lower=True))


def _margin(p: _Floats, released: ReleasedMarginals, columns: Sequence[str]) -> _Floats:
    """Probabilities of the levels of some columns, at every cell."""
    gone = tuple(k for k, name in enumerate(released.columns) if name not in columns)
    margin = p.reshape(released.shape).sum(axis=gone, keepdims=True)
    return np.broadcast_to(margin, released.shape).ravel()
