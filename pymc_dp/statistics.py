r"""The analyst's tools: per-record statistics with a known sensitivity, and their sum.

The functions take NumPy arrays, for a curator who computes them from data, and tensors, for an
analyst who computes them from latent records, so that both ends use the same definition.
Sensitivities are for replacing one record at a public number of records.
"""

from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable

from pymc_dp.checks import whole
from pymc_dp.exceptions import PrivacyConfigurationError

__all__ = [
    "clamp",
    "record_sum",
    "second_moments",
    "second_moments_sensitivity",
    "sum_sensitivity",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class RecordSum(OpFromGraph):
    """Sum over axis 0 that says of itself that axis 0 holds the records.

    An ordinary sum cannot be told from other sums over a first axis (a log-sum-exp contains one).
    The compiler inlines it, so densities, gradients and draws are those of the plain sum.

    Attributes
    ----------
    law : NoiseLaw or None
        The noise that the sum is released with, if one of this package's mechanisms made it.
    """

    law: Any

    def __init__(self, inputs: Any, outputs: Any, *, law: Any = None, **kwargs: Any):
        self.law = law
        super().__init__(inputs, outputs, **{**kwargs, "inline": True})


def record_sum(statistic: Any, *, law: Any = None) -> Any:
    r"""Sum of a per-record statistic: :math:`\sum_i t_i(x_i)`.

    The mechanisms call it for you. Use it yourself to observe a record-additive statistic through
    a noise distribution of your own, such as ``pm.StudentT("s", 3, record_sum(t), 1, observed=s)``.

    Parameters
    ----------
    statistic : TensorVariable, shape (n, ...)
        Row i is a function of record i (and of public constants) alone.
    law : NoiseLaw, optional
        Set by the mechanisms.

    Returns
    -------
    TensorVariable, shape (...)
    """
    statistic = pt.as_tensor(statistic)
    records = statistic.type("records")
    return RecordSum([records], [records.sum(axis=0)], law=law)(statistic)


def clamp(x: Any, lower: ArrayLike, upper: ArrayLike, *, rescale: bool = False) -> Any:
    """Move values outside [lower, upper] to the nearer end, and missing ones to the lower end.

    A missing value so becomes one in range, before any function of several columns is formed of it.

    Parameters
    ----------
    x : array or tensor, shape (n, ...)
        One row per record.
    lower, upper : float or array
        Public bounds, broadcast against `x`.
    rescale : bool
        Also map [lower, upper] linearly to [-1, 1], as :func:`second_moments` expects.

    Returns
    -------
    array or tensor, shape of `x`

    Raises
    ------
    PrivacyConfigurationError
        If a lower bound is not below its upper bound.
    """
    a, b = _bounds(lower, upper)
    clipped = pt.clip(x, a, b) if isinstance(x, Variable) else np.clip(_present(x, a), a, b)
    return (clipped - a) * (2 / (b - a)) - 1 if rescale else clipped


def _present(x: Any, instead: ArrayLike) -> Any:
    """`x` with another value in place of NaN."""
    x = np.asarray(x)
    return np.where(np.isnan(x), instead, x) if x.dtype.kind == "f" else x


def sum_sensitivity(lower: ArrayLike, upper: ArrayLike, *, norm: Literal[1, 2] = 1) -> float:
    r"""Sensitivity of a sum of entries clamped to [lower, upper].

    The norm of the vector of ranges :math:`b_j - a_j`. It is attained: one record may move from one
    corner of the box to the opposite one.

    Parameters
    ----------
    lower, upper : float or array
        Public bounds of every entry.
    norm : {1, 2}
        1 for Laplace noise, 2 for Gaussian noise.

    Returns
    -------
    float
        When one record is replaced by any other.
    """
    a, b = _bounds(lower, upper)
    return float(np.linalg.norm(np.ravel(b - a), ord=_norm(norm)))


def second_moments(u: Any) -> Any:
    r"""Values, squares and products of clamped variables: enough for a linear regression.

    Parameters
    ----------
    u : array or tensor, shape (n, q)
        Entries in [-1, 1], for instance from :func:`clamp` with ``rescale=True``. In an array, what is outside is
        moved to the nearer end, and what is missing to -1: so that every row is one that a record can have, as
        :func:`second_moments_sensitivity` takes for granted.

    Returns
    -------
    array or tensor, shape (n, q + q(q + 1)/2)
        :math:`u_1, \dots, u_q` and then :math:`u_j u_k` for :math:`j \le k`, row by row.
    """
    q = u.type.shape[1] if isinstance(u, Variable) else np.shape(u)[1]
    if q is None:
        raise PrivacyConfigurationError(
            "`second_moments` needs a known number of columns. Stack them with "
            "`pt.stack([...], axis=1)`."
        )
    if not isinstance(u, Variable):
        u = clamp(u, -1.0, 1.0)
    first, second = np.triu_indices(q)
    products = u[:, first] * u[:, second]
    join = pt.concatenate if isinstance(u, Variable) else np.concatenate
    return join([u, products], axis=1)


def second_moments_sensitivity(q: int, *, norm: Literal[1, 2] = 1) -> float:
    r"""Sensitivity of the sum of :func:`second_moments` of q variables.

    In L1 norm :math:`q (q + 2)^2 / 2(q + 1)`, which is attained (proof in the documentation). With
    p predictors and a response, q = p + 1; Ju, Gong, Awan and Rao (2022) use the valid but looser
    :math:`p^2 + 3p + 3`: 13 for p = 2, where 9.375 is enough. In L2 norm
    :math:`\sqrt{(q + 1)^2 + q/2}`, an upper bound.

    Parameters
    ----------
    q : int
        Number of variables, each in [-1, 1].
    norm : {1, 2}
        1 for Laplace noise, 2 for Gaussian noise.

    Returns
    -------
    float
        When one record is replaced by any other.
    """
    q = whole("q", q, 1)
    if _norm(norm) == 1:
        return q * (q + 2) ** 2 / (2 * (q + 1))
    return float(np.sqrt((q + 1) ** 2 + q / 2))


def _bounds(lower: ArrayLike, upper: ArrayLike) -> tuple[Any, Any]:
    a, b = np.broadcast_arrays(np.asarray(lower, float), np.asarray(upper, float))
    if not (np.isfinite(a) & np.isfinite(b) & (a < b)).all():
        raise PrivacyConfigurationError("Each `lower` must be below its `upper`, and both finite.")
    return a, b


def _norm(norm: int) -> int:
    if norm not in (1, 2):
        raise PrivacyConfigurationError(f"`norm` must be 1 or 2. Found {norm!r}.")
    return norm
