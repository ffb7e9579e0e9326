"""What a mechanism is called with: checked before anything is built, with errors that name the cure."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.law import NoiseLaw
from pymc_dp.mechanisms.released import ReleasedStatistic


def check_road(
    name: str,
    statistic: Any,
    total: Any,
    keep_total: bool,
    n: Any,
    points: int | None,
    processed: dict[str, Any],
) -> None:
    """What was summed is said in one of three ways."""
    if (statistic is None) == (total is None):
        raise PrivacyConfigurationError(
            f"{name!r}: say what was released: a `statistic` of records, of one record with `n`, or the "
            "law of a confidential count as `total`."
        )
    if total is not None and n is not None:
        raise PrivacyConfigurationError(
            f"{name!r}: `n` goes with the `statistic` of one record. `total` is the law of the whole count."
        )
    if keep_total and total is None:
        raise PrivacyConfigurationError(f"{name!r}: `keep_total` goes with `total`.")
    if points is not None and n is None:
        raise PrivacyConfigurationError(f"{name!r}: `points` goes with `n`.")
    given = [key for key, value in processed.items() if value is not None]
    if given and total is None:
        raise PrivacyConfigurationError(
            f"{name!r}: `{given[0]}` goes with `total`. A sum over latent records that was cut off is "
            "`pm.Censored(name, pm.Normal.dist(dp.statistics.record_sum(statistic), scale), lower, upper, "
            "observed=...)`, with `PrivacyAwareGibbs`."
        )


def labelled(observed: Any, dims: Any) -> tuple[Any, Any]:
    """Numbers of a table of pandas; its named axes are dimensions if none are given, its labels their coordinates."""
    dims = (dims,) if isinstance(dims, str) else dims
    axes = getattr(observed, "axes", None)
    if axes is None or not hasattr(observed, "to_numpy"):
        return observed, dims
    model = pm.modelcontext(None)
    names = tuple(axis.name for axis in axes)
    if dims is None and all(isinstance(name, str) for name in names):
        dims = names
        model.add_coords(
            {d: list(axis) for d, axis in zip(dims, axes, strict=True) if d not in model.coords}
        )
    for d, axis in zip(dims or (), axes, strict=dims is not None):
        if d in model.coords and list(model.coords[d]) != list(axis):
            raise PrivacyConfigurationError(
                f"The rows or columns of `observed` along {d!r} are not in the order of the model's coordinate {d!r}. "
                f"Order the table: `observed.reindex(model.coords[{d!r}])`."
            )
    return observed.to_numpy(), dims


def checked_n(name: str, n: Any, released: ReleasedStatistic | None) -> Any:
    """`n` as a tensor, if it can be numbers of records."""
    tensor = pt.as_tensor(n)
    known = n.get_value() if hasattr(n, "get_value") else getattr(tensor, "data", None)
    if known is None:
        return tensor
    if (
        known.dtype.kind not in "iuf"
        or not (np.isfinite(known) & (known >= 1) & (known == np.rint(known))).all()
    ):
        raise PrivacyConfigurationError(
            f"{name!r}: `n` must be whole numbers of records, 1 or more. Found {known.tolist()!r}. Leave areas without "
            "records out."
        )
    if released is not None and known.ndim == 0 and known != released.n_records:
        raise PrivacyConfigurationError(
            f"{name!r}: `n` is {int(known):,}, but what was released is a sum over {released.n_records:,} records."
        )
    return tensor


def check_scale(name: str, law: NoiseLaw, shape: tuple[int, ...]) -> None:
    """One number, or one per entry."""
    if law.scale.shape not in ((), shape):
        raise PrivacyConfigurationError(
            f"{name!r}: `scale` has shape {law.scale.shape}, but what was released has shape "
            f"{shape}. Give one number, or one per entry."
        )


def check_observed(
    name: str, observed: Any, shape: tuple[int, ...], discrete: bool, what: str
) -> Any:
    """`observed` itself, if it is finite and has this shape."""
    shared = hasattr(observed, "get_value")
    if isinstance(observed, pytensor.graph.basic.Variable) and not shared:
        raise PrivacyConfigurationError(f"{name!r}: `observed` must be numbers, or a `pm.Data`.")
    array: NDArray[Any] = np.asarray(observed.get_value() if shared else observed)
    if np.ma.getmaskarray(observed if not shared else array).any():
        raise PrivacyConfigurationError(
            f"{name!r}: `observed` has masked entries. An entry of a sum that was not published is left out of the "
            "statistic; a cell of a table may be masked if it is a `total`."
        )
    if array.shape != shape:
        hint = (
            " If the statistic is that of one record, give their number `n`."
            if "over its" in what
            else ""
        )
        raise PrivacyConfigurationError(
            f"{name!r}: `observed` has shape {array.shape}, but {what} shape {shape}.{hint}"
        )
    if array.dtype.kind not in "iufb" or not np.isfinite(array).all():
        raise PrivacyConfigurationError(f"{name!r}: `observed` must be finite numbers.")
    if discrete and not np.array_equal(array, np.rint(array)):
        raise PrivacyConfigurationError(
            f"{name!r}: discrete noise leaves integers, but `observed` has others. Use the continuous "
            "mechanism, or check what was released."
        )
    return observed if shared else array.astype(np.int64 if discrete else np.float64)
