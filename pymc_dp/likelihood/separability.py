"""Checks that the log-likelihood is a sum over records, each term a function of that record.

All guarantees rest on it, so it is checked when a step is built, on made-up records: whether a model passes is a
function of the model, and tells nothing of the data. The checks cannot see what was computed from the data before or
outside the model.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.made_up import made_up_rows
from pymc_dp.likelihood.outcomes import Outcomes
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.records import RecordFunction

_RECORDS = 256
"""So many are made up: half of the others changed at once show in a mean, five in 256 in a count."""
_ALONE = 16
_SEED = 20_260_101
_SPREADS = (0.0, 0.3, 1.0, 1.0, 3.0, 3.0)
"""Standard deviation of the probed points around the initial one."""
_KINDS = ("copy", "nan", "noise", "infinite", "extreme")
"""What records are overwritten with, all at every point: of some, nothing may be finite there."""

Rows = list[NDArray[Any]]


def check_separability(parameters: ParameterSpace, likelihood: RecordFunction) -> None:
    """Refuse a likelihood whose terms are not functions of one record each.

    Two checks on made-up records, each of which catches what the other cannot:

    1. *Row probe*: overwrite some records (with other records, NaN, infinities, noise, extremes);
       the terms of all others must stay the same to the last bit.
    2. *One record at a time*: terms of records evaluated alone must equal those among others, so that
       they do not depend on the place either.

    Raises
    ------
    UnsupportedModelError
        If a check fails.
    """
    rng = np.random.default_rng(_SEED)
    points = [parameters.start + s * rng.normal(size=parameters.d) for s in _SPREADS]
    # A floating point warning would tell of the package's insides only, but looks as if it told of a record.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = made_up_rows(likelihood.roles.record_data, _RECORDS, rng)
        if not any(np.isfinite(likelihood.evaluate_rows(point, rows)).any() for point in points):
            rows = _with_outcomes(parameters.model, likelihood, rows)
        _probe_rows(likelihood, points, rows, rng)
        _compare_alone(likelihood, points[:2], rows)


def _with_outcomes(model: pm.Model, likelihood: RecordFunction, rows: Rows) -> Rows:
    """The same made-up records, with outcomes that the model itself predicts for them, if it can."""
    roles = likelihood.roles
    try:
        outcomes = Outcomes(model, roles, _SEED, mode="FAST_COMPILE")
        point = pm.draw(model.free_RVs, random_seed=_SEED, mode="FAST_COMPILE")
        return outcomes.in_place(point, _RECORDS, rows)
    except Exception:  # noqa: BLE001  a model without draws; the made-up ones have to do
        return rows


def _same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return np.array_equal(a, b, equal_nan=True)


_COUPLED = (
    "{what} term of a record depends on other records too ({how}), so replacing one "
    "person would change more than one term and no noise would be calibrated to that. Look for means, "
    "standard deviations, maxima, ranks, cumulative sums or lags computed inside the model: compute "
    "them from public knowledge, or make them parameters."
)


def _probe_rows(
    likelihood: RecordFunction,
    points: Sequence[NDArray[np.float64]],
    rows: Rows,
    rng: np.random.Generator,
) -> None:
    axes = [leaf.axis for leaf in likelihood.roles.record_data]
    known = [likelihood.evaluate_rows(theta, rows) for theta in points]
    for kind in _KINDS:
        hit = np.zeros(_RECORDS, dtype=bool)
        hit[rng.choice(_RECORDS, size=_RECORDS // 2 if kind == "copy" else 5, replace=False)] = True
        changed = [
            _overwrite(x, axis, np.flatnonzero(hit), kind, rng)
            for x, axis in zip(rows, axes, strict=True)
        ]
        for theta, before in zip(points, known, strict=True):
            after = likelihood.evaluate_rows(theta, changed)
            if not _same(before[~hit], after[~hit]):
                raise UnsupportedModelError(
                    _COUPLED.format(what=likelihood.what, how="changing some records moved others")
                )
    if not np.isfinite(known).any(axis=(0, 1)).all():
        raise UnsupportedModelError(
            f"{likelihood.what} of made-up records is infinite or undefined wherever it was tried, "
            "so it cannot be checked. Give `initval` to the free variables; give a `pm.CustomDist` a `random` "
            "or a `dist`, by which outcomes can be made up."
        )


def _overwrite(
    x: NDArray[Any], axis: int, hit: NDArray[np.int64], kind: str, rng: np.random.Generator
) -> NDArray[Any]:
    """A copy of `x` with the records `hit` replaced. Whole numbers stay in their domain."""
    x = np.moveaxis(x.copy(), axis, 0)
    if x.dtype.kind != "f" or kind == "copy":
        x[hit] = x[rng.integers(len(x), size=len(hit))]
        if kind == "extreme":
            size = x.reshape(len(x), -1).astype(float).sum(axis=1)
            x[hit] = x[np.argmax(size) if rng.random() < 0.5 else np.argmin(size)]
    elif kind == "nan":
        x[hit] = np.nan
    elif kind == "noise":
        x[hit] += rng.normal(size=x[hit].shape) * (2 * x.std() + 1e-9)
    elif kind == "infinite":
        big = np.finfo(x.dtype).max / 10
        x[hit] = rng.choice([np.inf, -np.inf, big, -big], size=x[hit].shape)
    else:
        x[hit] = 10 * np.abs(x).max()
    return np.ascontiguousarray(np.moveaxis(x, 0, axis))


def _compare_alone(
    likelihood: RecordFunction, points: Sequence[NDArray[np.float64]], rows: Rows
) -> None:
    axes = [leaf.axis for leaf in likelihood.roles.record_data]
    for point in points:
        together = likelihood.evaluate_rows(point, rows)[-_ALONE:]
        alone = [
            likelihood.evaluate_rows(
                point, [np.take(x, [i], axis=a) for x, a in zip(rows, axes, strict=True)]
            )
            for i in range(_RECORDS - _ALONE, _RECORDS)
        ]
        if not np.allclose(np.concatenate(alone), together, rtol=1e-6, atol=1e-9, equal_nan=True):
            raise UnsupportedModelError(
                _COUPLED.format(
                    what=likelihood.what,
                    how="a record alone does not have the term it has among others",
                )
            )
