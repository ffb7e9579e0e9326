"""Randomised response: every respondent adds noise to their own answer."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_dp.checks import check_epsilon
from pymc_dp.exceptions import PrivacyConfigurationError


class RandomizedResponse:
    r"""Answers that respondents have randomised themselves, as an observed variable of the model.

    Of k possible answers a respondent gives the true one with probability
    :math:`e^\varepsilon / (e^\varepsilon + k - 1)` and each other one with probability
    :math:`1 / (e^\varepsilon + k - 1)`. The true answer is summed out, so there is nothing latent
    and any sampler, NUTS included, will do:

    .. math:: P(\text{report } j) = \frac{1 + (e^\varepsilon - 1)\, p_j}{e^\varepsilon + k - 1}.

    Each report is ε-DP on its own, whoever collects it.

    Parameters
    ----------
    name : str
        Of the variable.
    p : tensor_like, shape (..., k)
        Probabilities of the true answers in the model; they sum to one over the last axis. For a
        yes-no question stack ``1 - p`` and ``p``.
    epsilon : float
        ε of one report.
    observed : array of int, shape (...)
        The reports, 0 to k - 1.
    dims : str or tuple, optional
        Named dimensions of the variable.

    Returns
    -------
    TensorVariable

    Raises
    ------
    PrivacyConfigurationError
        If ε is out of range, or a report is no answer.

    References
    ----------
    Warner, *Randomized response: a survey technique for eliminating evasive answer bias*, 1965.
    """

    def __new__(cls, name: str, p: Any, *, epsilon: float, observed: Any, dims: Any = None) -> Any:
        """Make the variable in the model whose context this is."""
        with np.errstate(over="ignore"):
            odds = np.exp(check_epsilon(epsilon))
        if not np.isfinite(odds):
            raise PrivacyConfigurationError(
                f"{name!r}: `epsilon` is so large that answers are not randomised. Use `pm.Categorical`."
            )
        p = pt.as_tensor(p)
        k = p.type.shape[-1] if p.ndim else None
        if k is None or k < 2:
            raise PrivacyConfigurationError(
                f"{name!r}: the last axis of `p` must have one entry per possible answer, two or more, "
                "and a known length."
            )
        reports = np.asarray(observed)
        if reports.dtype.kind not in "iub" or not np.isin(reports, np.arange(k)).all():
            raise PrivacyConfigurationError(
                f"{name!r}: `observed` must be integers from 0 to {k - 1}: one of the {k} answers."
            )
        return pm.Categorical(
            name, p=(1 + (odds - 1) * p) / (odds + k - 1), observed=reports.astype(int), dims=dims
        )
