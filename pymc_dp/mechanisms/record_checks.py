"""Whether a statistic is that of one record, of one area, and as it was released."""

import math
import warnings
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy import special

from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.records import Record, substitute

# A record's statistic is computed for so many drawn records, to see whether it can be what was released.
_PROBES = 256
# Noise so much smaller than the range of one record's statistic guarantees nothing: an epsilon of 100.
_NO_PRIVACY = 100
# One record seldom has so many entries; as many as there are records means that it is all of them.
_MANY_RECORDS = 20


def check_areas(name: str, record: Record, model: pm.Model) -> None:
    """Require the statistic of one area to be a function of that area's variables alone.

    Two records are drawn, and some areas take their variables from the second: their statistic must
    be that of the second, and of the others that of the first.

    Raises
    ------
    UnsupportedModelError
        If it is not: axes that are no areas have been taken for them.
    """
    areas = math.prod(record.areas)
    if areas < 2 or not any(v.has_areas for v in record.variables):
        return
    mask = (np.arange(areas) % 2 == 0).reshape(record.areas)
    rvs = [v.rv for v in record.variables]
    symbols = [x.type() for x in rvs]
    statistic = substitute([record.statistic], dict(zip(rvs, symbols, strict=True)))
    options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    draw = pm.compile(model.value_vars, model.replace_rvs_by_values(rvs), **options)
    evaluate = pm.compile(
        [*model.value_vars, *symbols], model.replace_rvs_by_values(statistic), **options
    )
    # Not the start itself: where coefficients are 0 nothing depends on anything.
    rng, start = np.random.default_rng(0), model.initial_point()
    theta = [start[v.name] + rng.uniform(0.1, 1) * v.type.dtype.startswith("float")
             for v in model.value_vars]  # fmt: skip
    first, second = draw(*theta), draw(*theta)
    mask = (np.arange(areas) % 2 == 0).reshape(record.areas)
    mixed = [
        np.where(mask.reshape(mask.shape + (1,) * len(v.core)), b, a) if v.has_areas else a
        for v, a, b in zip(record.variables, first, second, strict=True)
    ]
    # What does not belong to an area is the first record's in all of them.
    second = [b if v.has_areas else a
              for v, a, b in zip(record.variables, first, second, strict=True)]  # fmt: skip
    t_first, t_second, t_mixed = (evaluate(*theta, *values)[0] for values in (first, second, mixed))
    if not np.array_equal(t_mixed, np.where(mask[..., None], t_second, t_first), equal_nan=True):
        raise UnsupportedModelError(
            f"{name!r}: the statistic of one area depends on variables of another. The first axes of "
            f"`n`, of the statistic and of the record's variables with shape {record.areas} + ... are "
            "the areas. If an axis of a variable is something else, give that variable another shape."
        )


def check_statistic(
    name: str, record: Record, model: pm.Model, known: Any, own: int, law: NoiseLaw, bounds: Any
) -> None:
    """Require the last `own` entries of the statistic to be those of one record, as it was released.

    Raises
    ------
    PrivacyConfigurationError
        If the record is all n of them, or its statistic leaves the bounds it was released with.

    Warns
    -----
    UserWarning
        If the statistic was cut off elsewhere, or the noise is that of a mean.
    """
    people = int(known) if known is not None and known.ndim == 0 else 0
    if people >= _MANY_RECORDS and any(people in v.core for v in record.variables):
        raise PrivacyConfigurationError(
            f"{name!r}: with `n`, write the statistic of one record. Found a record of {people:,} entries, as many as "
            "there are records: give its variables no `shape`, and do not sum."
        )
    X = _probe(record, model)[..., -own:].reshape(-1, own)
    low, high = X.min(axis=0), X.max(axis=0)
    scale = np.broadcast_to(law.scale, law.scale.shape or (own,)).ravel()
    if people > 1 and ((scale > 0) & (high - low > _NO_PRIVACY * scale)).any():
        warnings.warn(
            f"{name!r}: the noise is so small, compared with what one record adds to the sum, that it would guarantee "
            f"nothing. Was a mean released? Then write `statistic / n`.",
            stacklevel=2,
        )
    if bounds is None:
        return
    lower, upper = (np.asarray(b, float) for b in bounds)
    if lower.shape != (own,):
        return
    slack = 1e-9 * (upper - lower)
    if (low < lower - slack).any() or (high > upper + slack).any():
        raise PrivacyConfigurationError(
            f"{name!r}: the statistic takes values outside the bounds that it was released with, {bounds[0]} to "
            f"{bounds[1]}. Clamp it as the curator did: `pymc_dp.statistics.clamp(x, lower, upper)`."
        )
    ends = [(low, lower), (high, upper)]
    for end, bound in ends:
        piled = (end == X).sum(axis=0) > 1
        inside = (end > lower + slack) & (end < upper - slack)
        several = np.array([len(np.unique(column)) for column in X.T]) > len(record.combinations)
        if (piled & inside & several).any():
            warnings.warn(
                f"{name!r}: the statistic is cut off at {end.tolist()}, but what was released at {bound.tolist()}. "
                "Clamp it with the same bounds.",
                stacklevel=2,
            )


def _probe(record: Record, model: pm.Model) -> NDArray[np.float64]:
    """The statistic of records drawn at PyMC's starting point, a twentieth of them a hundred times as wide."""
    u = np.random.default_rng(0).random((_PROBES, record.dimensions))
    if record.dimensions:
        u[:: _PROBES // 12] = special.ndtr(8 * (u[:: _PROBES // 12] - 0.5) * 2)
        noise = record.noise(np.clip(u, 1e-15, 1 - 1e-15))
    else:
        noise = np.zeros((1, 0))
    (X,) = model.replace_rvs_by_values([record.at(noise)[0]])
    options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    point = model.initial_point()
    found = pm.compile(model.value_vars, X, **options)(*(point[v.name] for v in model.value_vars))
    return np.asarray(found)
