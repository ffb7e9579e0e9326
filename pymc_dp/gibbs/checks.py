"""Checks of a model that are made before the first iteration."""

from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.gibbs.records import LatentRecords, Point, ReleaseDensity
from pymc_dp.gibbs.structure import Structure


def check_records(
    model: pm.Model, structure: Structure, records: LatentRecords, point: Point
) -> None:
    """Require record i's statistic and density to be functions of record i alone.

    Some records are replaced by others drawn from the model; the statistic and the log-density of
    every record must be bit for bit those of the record now in its place.

    Raises
    ------
    UnsupportedModelError
        If they are not: the sweep would not leave the posterior invariant.
    """
    t = [release.statistic for release in structure.releases]
    densities = model.logp(vars=structure.latents, sum=False)
    rows = pm.compile(
        list(model.value_vars),
        [*model.replace_rvs_by_values(t), *densities],
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    names = [f"statistic of {r.variable.name!r}" for r in structure.releases]
    names += [f"density of {rv.name!r}" for rv in structure.latents]
    inputs = [v.name for v in model.value_vars]

    def evaluate(at: dict[str, Any]) -> list[NDArray[Any]]:
        return list(rows(*(np.asarray(at[name]) for name in inputs)))

    one = {**point, **dict(zip(records.names, records.draw(point)[0], strict=True))}
    two = {**point, **dict(zip(records.names, records.draw(point)[0], strict=True))}
    at_one, at_two = evaluate(one), evaluate(two)
    rng = np.random.default_rng(0)
    masks: list[Any] = [rng.random(records.n) < 0.5 for _ in range(3)]
    masks += [np.arange(records.n) == i for i in rng.integers(records.n, size=3)]
    for mask in masks:
        mixed = dict(one)
        for name in records.names:
            mixed[name] = np.where(_column(mask, two[name]), two[name], one[name])
        for name, found, a, b in zip(names, evaluate(mixed), at_one, at_two, strict=True):
            per_record = np.shape(b)[:1] == np.shape(mask)
            if not per_record or not np.array_equal(
                found, np.where(_column(mask, b), b, a), equal_nan=True
            ):
                raise UnsupportedModelError(
                    f"The {name} is not a function of one record at a time: some records' values "
                    "change when other records do. The released statistic must be a sum of one term "
                    "per record, and the records independent given the parameters."
                )


def check_start(density: ReleaseDensity, t: NDArray[np.float64], names: list[str]) -> None:
    """Require a positive density of the released values where the chain starts.

    Raises
    ------
    UnsupportedModelError
        If it is zero or not a number.
    """
    if not density.is_finite(t.sum(axis=0)):
        raise UnsupportedModelError(
            f"The released values {names} have zero density at the start, or their statistic is not "
            "finite there. Start elsewhere (`initvals`), and check that the noise can be of any size "
            "and that the statistic is finite for every record."
        )


def _column(mask: NDArray[np.bool_], like: NDArray[Any]) -> NDArray[np.bool_]:
    """`mask` with axes of length one, to be broadcast against `like`."""
    return mask.reshape(mask.shape + (1,) * (np.ndim(like) - 1))
