"""Log-likelihoods with corners: of the absolute value of a residual, of quantiles. They have no curvature to see."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.gradients import UnitGradients
from pymc_dp.likelihood.records import RecordLikelihood

CORNERS = (
    "The log-likelihood has corners, as that of absolute residuals has, and no curvature between them: how sharp it is "
    "was taken from the squares of its slopes, as if the model were right. Where it is not, all intervals may be a "
    "quarter too narrow or too wide, and their centres off. `pm.StudentT` has no corners."
)
"""For people."""
_MADE_UP = 16
"""Records."""
_SPREAD = 3.0
"""Of their values: wide of the residual 0, where a corner is."""
_NEARBY, _FAR = 1e-3, 100.0
"""Moves of a parameter that a smooth likelihood's score is changed by, and one that passes corners."""
_MOST = 0.8
"""Share of made-up records: the others may have their corner between."""
_CHUNK_BYTES = 2**22
"""Products of one chunk."""


class ScoreProducts:
    r"""Minus the outer products of units' scores, :math:`-\nabla\ell_i \nabla\ell_i^\top`, in place of Hessians.

    Where the model is right their expectations are the same (the second Bartlett identity), and with corners, at which
    all curvature is, the Hessian is 0 wherever it is asked for.

    Parameters
    ----------
    gradients : UnitGradients
    """

    def __init__(self, gradients: UnitGradients):
        self._gradients = gradients

    def of(self, likelihood: RecordLikelihood) -> "ScoreProducts":
        """The same compiled functions for the records of another likelihood of the same graph."""
        return ScoreProducts(self._gradients.of(likelihood))

    def __call__(self, theta: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """Of one chunk of units after the other.

        Yields
        ------
        ndarray, shape (units, d, d)
            May contain NaN and infinities: clip before use. Private.
        """
        some = max(_CHUNK_BYTES // (8 * len(theta) ** 2), 64)
        for chunk in self._gradients(theta):
            for start in range(0, len(chunk), some):
                g = chunk[start : start + some]
                yield -g[:, :, None] * g[:, None, :]


def has_corners(gradients: UnitGradients, likelihood: RecordLikelihood, start: Any) -> bool:
    """Whether scores change with some parameter in jumps only.

    Asked of made-up records: a function of the model, and of its data's shapes and types.

    Parameters
    ----------
    gradients : UnitGradients
    likelihood : RecordLikelihood
        Of the same graph.
    start : ndarray, shape (d,)
    """
    rng, data = np.random.default_rng(0), []
    for leaf in likelihood.roles.record_data:
        shape = list(leaf.values.shape)
        shape[leaf.axis] = _MADE_UP
        real = np.issubdtype(leaf.values.dtype, np.floating)
        x = rng.normal(scale=_SPREAD, size=shape) if real else np.zeros(shape)
        data.append(x.astype(leaf.values.dtype))
    of_made_up = gradients.of(likelihood.of_data(data))

    def scores(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate(list(of_made_up(theta)))

    at_start = scores(start)
    for k, e in enumerate(np.eye(len(start))):
        here = at_start[:, k]
        ahead, *far = (scores(start + move * e)[:, k] for move in (_NEARBY, _FAR, -_FAR))
        told = np.isfinite(here) & (here != 0)
        still = np.isclose(ahead, here, rtol=1e-9, atol=0.0)[told]
        jumps = any(not np.allclose(x[told], here[told], rtol=1e-9, atol=0.0) for x in far)
        if told.any() and still.mean() >= _MOST and jumps:
            return True
    return False
