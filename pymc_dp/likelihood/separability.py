"""Checks that the log-likelihood is a sum over records, each term a function of that record.

All guarantees rest on it, so it is checked when a step is built, on the data themselves. Only
whether the checks pass leaves; a failure costs nothing, as nothing has been released. They cannot
see what was computed from the data before or outside the model.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
from numpy.typing import NDArray

from pymc_dp.compat import lower_named_dims
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.compilation import strip_checks
from pymc_dp.likelihood.nodes import quoting_nothing
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.record_graph import sum_observed
from pymc_dp.likelihood.records import RecordLikelihood

_PROBED_RECORDS = 256
_SPREADS = (0.0, 0.3, 0.3, 1.0, 1.0, 3.0, 3.0)
"""Standard deviation of the probed points around the initial one."""
_MAX_LAG = 2
_MIN_DISTINCT_FOR_LAGS = 20


def check_separability(parameters: ParameterSpace, likelihood: RecordLikelihood) -> None:
    """Refuse a likelihood whose terms are not functions of one record each.

    Three checks, each of which catches what the others cannot:

    1. *Row probe*: overwrite some records (with other records, NaN, infinities, noise, extremes);
       the terms of all others must stay the same to the last bit.
    2. *One record at a time*: terms of records evaluated alone must equal the model's own.
    3. *Lagged copies*: a data column that is another one shifted by a row puts one record's value
       into its neighbour's term, where no computation can see it.

    Raises
    ------
    UnsupportedModelError
        If a check fails.
    """
    points, sample = check_records(likelihood, parameters.start)
    # A floating point warning would tell that some record caused it.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with quoting_nothing(
            "The model's own log-likelihood cannot be derived or evaluated ({error}). Look for "
            "indices out of range, singular matrices, and random variables that are not part of the "
            "model."
        ):
            _compare_with_model(parameters, likelihood, points[:2], sample[:16])


def check_records(
    likelihood: RecordLikelihood, theta0: NDArray[np.float64]
) -> tuple[list[NDArray[np.float64]], NDArray[np.int64]]:
    """The row probe and the search for lagged copies of :func:`check_separability`.

    They need no model, only the compiled function and its records.

    Parameters
    ----------
    likelihood : RecordLikelihood
    theta0 : ndarray, shape (d,)
        Probed around this point.

    Returns
    -------
    points : list of ndarray, shape (d,)
        What was probed.
    sample : ndarray of int64
        The records that were.

    Raises
    ------
    UnsupportedModelError
        If a check fails.
    """
    rng = np.random.default_rng(20_260_101)
    points = [theta0 + spread * rng.normal(size=theta0.size) for spread in _SPREADS]
    n = likelihood.roles.n_records
    sample = np.sort(rng.choice(n, size=min(n, _PROBED_RECORDS), replace=False))
    # A floating point warning would tell that some record caused it.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if n > 1:
            _probe_rows(likelihood, points, sample, rng)
            _refuse_lagged_copies(likelihood)
    return points, sample


def _same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return np.array_equal(a, b, equal_nan=True)


_COUPLED = (
    "The log-likelihood term of a record depends on other records too ({how}), so replacing one "
    "person would change more than one term and no noise would be calibrated to that. Look for means, "
    "standard deviations, maxima, ranks, cumulative sums or lags computed inside the model: compute "
    "them from public knowledge, or make them parameters."
)


def _probe_rows(
    likelihood: RecordLikelihood,
    points: Sequence[NDArray[np.float64]],
    sample: NDArray[np.int64],
    rng: np.random.Generator,
) -> None:
    rows = likelihood.rows(sample)
    axes = [leaf.axis for leaf in likelihood.roles.record_data]
    m = len(sample)
    finite = False
    for theta, kind in zip(
        points, ("copy", "nan", "copy", "noise", "infinite", "extreme", "shift"), strict=True
    ):
        before = likelihood.evaluate_rows(theta, rows)
        if before.shape != (m,):
            raise UnsupportedModelError(_COUPLED.format(how="its number of terms is not theirs"))
        hit = np.zeros(m, dtype=bool)
        hit[
            rng.choice(m, size=max(1, min(m - 1, m // 2 if kind == "copy" else 5)), replace=False)
        ] = True
        changed = [
            _overwrite(x, axis, np.flatnonzero(hit), kind, rng)
            for x, axis in zip(rows, axes, strict=True)
        ]
        after = likelihood.evaluate_rows(theta, changed)
        if not _same(before[~hit], after[~hit]):
            raise UnsupportedModelError(_COUPLED.format(how="changing some records moved others"))
        finite |= bool(np.isfinite(before[~hit]).any())
    if not finite:
        raise UnsupportedModelError(
            "The log-likelihood of every record is infinite or undefined around the initial point, "
            "so it cannot be checked. Give `initval` to the free variables."
        )


def _overwrite(
    x: NDArray[Any], axis: int, hit: NDArray[np.int64], kind: str, rng: np.random.Generator
) -> NDArray[Any]:
    """A copy of `x` with the records `hit` replaced. Whole numbers stay in their domain."""
    x = np.moveaxis(x.copy(), axis, 0)
    if kind == "shift" and x.dtype.kind in "iub" and x.size and (x == x.flat[0]).all():
        # No record differs, but one that is not there yet may.
        x[hit] = ~x[hit] if x.dtype.kind == "b" else x[hit] + 1
    elif x.dtype.kind != "f" or kind == "copy":
        x[hit] = x[rng.integers(len(x), size=len(hit))]
        if kind == "extreme":
            size = x.reshape(len(x), -1).astype(float).sum(axis=1)
            x[hit] = x[np.argmax(size) if rng.random() < 0.5 else np.argmin(size)]
    elif kind == "nan":
        x[hit] = np.nan
    elif kind in ("noise", "shift"):
        x[hit] += rng.normal(size=x[hit].shape) * (2 * x.std() + 1e-9)
    elif kind == "infinite":
        big = np.finfo(x.dtype).max / 10
        x[hit] = rng.choice([np.inf, -np.inf, big, -big], size=x[hit].shape)
    else:
        x[hit] = 10 * np.abs(x).max()
    return np.ascontiguousarray(np.moveaxis(x, 0, axis))


def _compare_with_model(
    parameters: ParameterSpace,
    likelihood: RecordLikelihood,
    points: Sequence[NDArray[np.float64]],
    sample: NDArray[np.int64],
) -> None:
    observed = parameters.model.observed_RVs
    whole = sum_observed(
        parameters.model.logp(vars=observed, sum=False),
        [rv.name for rv in observed],
        likelihood.roles.observed_axes,
    )
    (whole,), theta = parameters.join([whole])
    # Interpreted, not compiled: it is called a few times only.
    evaluate = pytensor.function(
        [theta],
        strip_checks(lower_named_dims(whole)),
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    for point in points:
        expected = np.asarray(evaluate(point))[sample]
        alone = np.concatenate(
            [likelihood.evaluate_rows(point, likelihood.rows(np.array([i]))) for i in sample]
        )
        # Where a parameter is invalid, the model's own check would speak for all records at once.
        valid = ~np.isneginf(alone)
        if not np.allclose(alone[valid], expected[valid], rtol=1e-6, atol=1e-9, equal_nan=True):
            raise UnsupportedModelError(
                _COUPLED.format(how="a record alone does not have the term it has among the others")
            )


def _refuse_lagged_copies(likelihood: RecordLikelihood) -> None:
    columns = []
    for leaf in likelihood.roles.record_data:
        if not leaf.private or leaf.values.dtype.kind not in "fiu":
            continue
        table = np.moveaxis(leaf.values, leaf.axis, 0).reshape(likelihood.roles.n_records, -1)
        columns += [
            (leaf.name, table[:, k])
            for k in range(table.shape[1])
            # Columns with few values, such as dummies, agree with their shifts by chance.
            if len(np.unique(table[:1000, k])) >= _MIN_DISTINCT_FOR_LAGS
        ]
    for name, column in columns:
        for other_name, other in columns:
            for lag in range(1, _MAX_LAG + 1):
                if np.array_equal(column[lag:], other[:-lag]):
                    raise UnsupportedModelError(
                        f"{other_name!r} is a copy of {name!r} shifted by {lag} record(s), so one "
                        "person's value enters several records' terms. Make each person's whole "
                        "series one record: one row of a two-dimensional observed variable."
                    )
