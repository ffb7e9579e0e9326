"""Tables of made-up people that say what noisy marginals say, and what analyses of them amount to."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from pymc_dp.checks import fraction, whole
from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.log_linear import NoisyMarginals, log_linear
from pymc_dp.mechanisms.marginals import ReleasedMarginals

_CHAINS, _LEAST_DRAWS = 2, 250
"""A draw in ten of two chains of 250 is as good as independent: NUTS starts where the posterior is, in its own coordinates."""


def synthetic_tables(
    released: ReleasedMarginals, tables: int = 50, *, random_seed: Any = None, **sample: Any
) -> list[pd.DataFrame]:
    r"""Draw tables of made-up people from what released marginals say of the population. Costs no privacy.

    Each table is one draw of the population's law from its posterior, so that they differ by all that is not known: who
    was asked, and the noise. Analyse every one by the same method, in R or elsewhere, with the column
    ``weight`` for weights, and give the estimates to :func:`pool`.

    Parameters
    ----------
    released : ReleasedMarginals
        From :func:`release_marginals`.
    tables : int
        How many.
    random_seed : int, optional
        For reproducible tables.
    **sample
        For ``pm.sample``, which draws the laws.

    Returns
    -------
    list of DataFrame
        A row for every combination of levels, with a column ``weight``: how many of `released.n_records` people are
        expected to have it. Rows are people once they are drawn with these weights.

    Notes
    -----
    The law is log-linear with all effects that the tables tell of (:func:`log_linear`): with all pairs, the law of
    largest entropy with given pairs. What an analysis asks of more columns together is as that law has it, which is not
    learnt from anybody. The idea is that of NAPSU-MQ (Räisä, Jälkö, Kaski and Honkela, 2023).
    """
    tables = whole("tables", tables, 2)
    draws = max(_LEAST_DRAWS, -(-tables // _CHAINS))
    settings = {
        "tune": 300,
        "draws": draws,
        "chains": _CHAINS,
        "random_seed": random_seed,
        **sample,
    }
    with pm.Model():
        logp = log_linear("effects", released)
        pm.Deterministic("logp", logp)
        NoisyMarginals("tables", logp, observed=released)
        idata = pm.sample(**settings)
    logp = groups_of(idata)["posterior"]["logp"].values
    logp = logp.reshape(-1, logp.shape[-1])
    found, cells = [], released.cells()
    for k in np.linspace(0, len(logp) - 1, tables).round().astype(int):
        p = np.exp(logp[k] - logp[k].max())
        found.append(cells.assign(weight=released.n_records * p / p.sum()))
    return found


def pool(estimates: ArrayLike, level: float = 0.9) -> pd.DataFrame:
    r"""Make one estimate, and an interval, of those from each of several synthetic tables.

    Parameters
    ----------
    estimates : array_like or DataFrame, shape (tables,) or (tables, quantities)
        From the same analysis of every table, weighted. Standard errors of these analyses are not needed: weights
        are those of a whole population, which has none.
    level : float
        Of the interval.

    Returns
    -------
    DataFrame
        ``estimate``, ``standard_error``, ``low`` and ``high``, a row for each quantity.

    Raises
    ------
    PrivacyConfigurationError
        If there are fewer than two tables, or an estimate is not finite.

    Notes
    -----
    With m tables and B the variance between their estimates :math:`q_k`, the estimate is :math:`\bar q` with variance
    :math:`(1 + 1/m) B`, and the interval is that of Student's t with m - 1 degrees of freedom: tables are independent draws of
    the law, of which q is a function (Raghunathan, Reiter and Rubin, 2003, where the tables are as large as the population).
    """
    level = fraction("level", level)
    named = estimates if isinstance(estimates, pd.DataFrame) else None
    q = np.asarray(estimates, dtype=float)
    q = q[:, None] if q.ndim == 1 else q
    if q.ndim != 2 or len(q) < 2 or not np.isfinite(q).all():
        raise PrivacyConfigurationError(
            f"`estimates` must be finite, with a row for each of two or more tables. Found shape {q.shape}."
        )
    m = len(q)
    mean, error = q.mean(axis=0), np.sqrt((1 + 1 / m) * q.var(axis=0, ddof=1))
    half = student_t.ppf((1 + level) / 2, m - 1) * error
    return pd.DataFrame(
        {"estimate": mean, "standard_error": error, "low": mean - half, "high": mean + half},
        index=None if named is None else named.columns,
    )
