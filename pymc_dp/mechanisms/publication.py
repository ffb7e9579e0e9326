"""What is done to noisy numbers before they are published, and what a published number then says."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyConfigurationError

Suppressed = Literal["missing"] | tuple[float, float]


@dataclass(frozen=True, eq=False)
class Publication:
    """Rounding, then the ends of a scale, then suppression of what is left.

    Parameters
    ----------
    step : float or None
        Multiples of it are published, halves upwards.
    lower, upper : float
        What is below or above is published as that.
    suppressed : tuple of float or None
        What would have been published between the two, ends included, is not.
    missing : ndarray of bool
        Cells that are not published whatever they are.
    """

    step: float | None
    lower: float
    upper: float
    suppressed: tuple[float, float] | None
    missing: NDArray[np.bool_]

    @property
    def plain(self) -> bool:
        """Whether what was published is the noisy number itself."""
        return (
            self.step is None
            and self.lower == -np.inf
            and self.upper == np.inf
            and self.suppressed is None
            and not self.missing.any()
        )

    @property
    def mark(self) -> float:
        """What stands in data for a suppressed number: an end of the interval."""
        low, high = self.suppressed or (0.0, 0.0)
        return low if np.isfinite(low) else high

    def interval(self, value: Any, discrete: bool) -> tuple[Any, Any]:
        """Noisy numbers that would have been published as `value`, ends included."""
        a = b = pt.as_tensor(value).astype("float64")
        if self.plain:
            return a, b
        if self.suppressed is not None:
            hidden = pt.ge(a, self.suppressed[0]) & pt.le(a, self.suppressed[1])
            a = pt.switch(hidden, self.suppressed[0], a)
            b = pt.switch(hidden, self.suppressed[1], b)
        below, above = pt.le(a, self.lower), pt.ge(b, self.upper)
        if self.step is not None:
            a, b = a - self.step / 2, b + self.step / 2
            if discrete:  # halves go upwards
                a, b = pt.ceil(a), pt.ceil(b) - 1
        a = pt.switch(below | self.missing, -np.inf, a)
        b = pt.switch(above | self.missing, np.inf, b)
        return a, b

    def apply(self, noisy: NDArray[Any]) -> NDArray[Any]:
        """What is published of noisy numbers; a cell that is missing is left."""
        x = noisy if self.step is None else np.floor(noisy / self.step + 0.5) * self.step
        x = np.clip(x, self.lower, self.upper)
        if self.suppressed is not None:
            low, high = self.suppressed
            x = np.where((x >= low) & (x <= high), self.mark, x)
        return np.where(self.missing, noisy, x)


def publication(
    name: str,
    observed: Any,
    *,
    rounded: float | None,
    lower: float | None,
    upper: float | None,
    suppressed: Any,
) -> tuple[Publication, Any]:
    """What was done to the numbers, and the numbers, a mark for those that are suppressed.

    Parameters
    ----------
    name : str
        Of the mechanism, for error messages.
    observed : array
        Masked, or NaN, where nothing was published.
    rounded, lower, upper, suppressed
        See :class:`~pymc_dp.LaplaceMechanism`.

    Raises
    ------
    PrivacyConfigurationError
        If a setting is impossible, or some number could not have been published so.
    """
    low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper
    for what, x in (("lower", lower), ("upper", upper), ("rounded", rounded)):
        if x is not None and not (np.isscalar(x) and np.isfinite(x)):
            raise PrivacyConfigurationError(f"{name!r}: `{what}` must be a number. Found {x!r}.")
    if not low < high or (rounded is not None and not rounded > 0):
        raise PrivacyConfigurationError(
            f"{name!r}: `lower` must be below `upper`, and `rounded`, the step of the rounding, positive."
        )
    shared = hasattr(observed, "get_value")
    array = observed.get_value() if shared else observed
    values = np.ma.asarray(array)
    if values.dtype.kind == "f":
        values = np.ma.masked_invalid(values) if np.isnan(values.data).any() else values
    hidden = np.ma.getmaskarray(values).copy()
    between = None if suppressed in (None, "missing") else _interval(name, suppressed)
    if hidden.any() and suppressed is None:
        raise PrivacyConfigurationError(
            f"{name!r}: {int(hidden.sum())} cells of `observed` are masked or NaN. Say why they were not "
            'published: `suppressed="missing"` if whatever they are, or `suppressed=(1, 9)` if '
            "because what would have been published was 1 to 9."
        )
    missing = hidden if suppressed == "missing" else np.zeros(hidden.shape, bool)
    found = Publication(rounded, low, high, between, missing)
    if found.plain:
        return found, observed if shared else values.data
    if shared:
        raise PrivacyConfigurationError(
            f"{name!r}: a `pm.Data` cannot be rounded, cut off or suppressed: what it says depends on its "
            "values when the model is built. Give numbers, and build the model anew for others."
        )
    seen = values.data[~hidden]
    wrong = (seen < low) | (seen > high)
    if rounded is not None:
        inside = (seen > low) & (seen < high)
        wrong |= inside & ~np.isclose(seen / rounded, np.rint(seen / rounded))
    if between is not None:
        wrong |= (seen >= between[0]) & (seen <= between[1])
    if wrong.any():
        raise PrivacyConfigurationError(
            f"{name!r}: {int(wrong.sum())} numbers of `observed` could not have been published so: "
            "`rounded`, `lower`, `upper` and `suppressed` say how. Mask what was suppressed."
        )
    return found, np.where(hidden, found.mark, values.data)


def _interval(name: str, suppressed: Any) -> tuple[float, float]:
    try:
        low, high = (float(x) for x in suppressed)
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not (low <= high and np.isfinite([low, high]).any()):
        raise PrivacyConfigurationError(
            f'{name!r}: `suppressed` must be "missing", or the smallest and the largest number that are not '
            f"published, such as (1, 9). Found {suppressed!r}."
        )
    return low, high
