"""Refusals of a host that does not do what a step was planned for."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Number
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pymc_dp.compat import SamplerCall
from pymc_dp.exceptions import PrivacyConfigurationError, UnsupportedModelError
from pymc_dp.privacy.guarantee import Guarantee


def refuse_other_size(planned: Guarantee, call: SamplerCall) -> None:
    """Refuse another number of chains or tuning iterations, and more draws, than were planned."""
    if call.chains != planned.chains:
        _refuse_size(f"{call.chains} chains", planned.chains)
    if call.tune != planned.tune:
        refuse_tune(planned.tune, f"{call.tune}")
    if call.draws > planned.draws:
        _refuse_size(f"{call.draws} draws", planned.draws)


def _refuse_size(asked: str, planned: int) -> NoReturn:
    raise PrivacyConfigurationError(
        f"`pm.sample` was asked for {asked}, but the step was built for {planned}, and its noise is calibrated to "
        "that. Give both the same number. Nothing has been charged."
    )


def refuse_tune(planned: int, found: str) -> NoReturn:
    """Refuse another number of tuning iterations."""
    raise PrivacyConfigurationError(
        f"The step was built for tune={planned}, but the run has {found} tuning "
        "iterations. Each of them is a release and costs budget: give `pm.sample` and the step "
        "the same `tune` (PyMC 5 runs 1000 unless told otherwise)."
    )


def refuse_steps(step: str, strangers: Sequence[Any]) -> NoReturn:
    """Refuse other steps beside a private one."""
    raise UnsupportedModelError(
        f"{step} updates all variables, but the run has other steps too "
        f"({[type(s).__name__ for s in strangers]}), which would read the data without noise. Give "
        "`step=` this one step only."
    )


def refuse_moved(
    point: Mapping[str, NDArray[Any]],
    names: Collection[str],
    left_at: Mapping[str, NDArray[Any]] | None,
) -> None:
    """Refuse a chain that moves between our iterations: a step that is not ours moves it."""
    if set(point) != set(names) or (
        left_at is not None
        and any(not np.array_equal(point[name], left_at[name], equal_nan=True) for name in left_at)
    ):
        raise UnsupportedModelError(
            "Something else moves this chain besides the private step: another step method, "
            "which would read the data without noise. Give `step=` this one step only."
        )


def check_initial_values(given: Any) -> None:
    """Refuse initial values that the data may be in: whatever is not plain, finite numbers.

    Texts are PyMC's names of strategies that depend on the prior alone.
    """
    for point in given if isinstance(given, Sequence) and not isinstance(given, str) else [given]:
        if point is None:
            continue
        if not isinstance(point, Mapping):
            raise PrivacyConfigurationError(
                "`initvals` is a mapping of names to numbers, or one for each chain. Found "
                f"{type(point).__name__}."
            )
        for name, value in point.items():
            if isinstance(value, str):
                continue
            numbers = isinstance(value, Number | np.ndarray | list | tuple)
            array = np.asarray(value) if numbers else np.empty(0, dtype=object)
            if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                raise PrivacyConfigurationError(
                    f"`initvals` of {name!r} must be plain, finite numbers. An expression may hold "
                    "private data, and the first draw would show them."
                )
