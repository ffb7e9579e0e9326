"""What a curator publishes: a noisy statistic and everything public about it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.law import Family, NoiseLaw


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Refuse a text that is not what it should be, whatever is wrong with it."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PrivacyConfigurationError(
            f"This text is not a {what} as `to_json` writes it."
        ) from error


@dataclass(frozen=True, eq=False)
class ReleasedStatistic:
    """A noisy sum over records, with its guarantee. Everything in it may be published.

    Give it to a mechanism as `observed`, and the model knows the noise.

    Parameters
    ----------
    value : ndarray
        The noisy sum; integers for discrete mechanisms.
    family : {"laplace", "gaussian"}
        Kind of noise.
    discrete : bool
        Whether value and noise are integers.
    scale : float
        b or σ of the noise.
    sensitivity : float
        Of the sum as it was computed, rounding to the grid included.
    epsilon : float
        ε of this release alone.
    delta : float
        δ of this release alone; 0 for Laplace noise.
    n_records : int
        Public number of records.
    granularity : float
        Distance of neighbouring values in the grid that records were rounded to.
    noise : str
        Where the noise came from.
    bounds : tuple of list, optional
        Lower and upper end of every entry of a record's statistic, flat; unknown for releases of older versions.
    """

    value: NDArray[Any]
    family: Family
    discrete: bool
    scale: float
    sensitivity: float
    epsilon: float
    delta: float
    n_records: int
    granularity: float
    noise: str
    bounds: tuple[list[float], list[float]] | None = None

    @property
    def law(self) -> NoiseLaw:
        """Law of the noise, as a model needs it."""
        return NoiseLaw(
            self.family,
            self.discrete,
            np.asarray(self.scale),
            self.sensitivity,
            self.epsilon,
            self.delta,
        )

    @property
    def statement(self) -> str:
        """The guarantee as a sentence."""
        bound = f"{self.epsilon:g}" if self.delta == 0 else f"({self.epsilon:g}, {self.delta:.3g})"
        return (
            f"This statistic is {bound}-differentially private with respect to replacing one record "
            f"among {self.n_records:,}: {self.law.name} noise of scale {self.scale:g}."
        )

    def to_json(self) -> str:
        """As JSON text, to hand over; :meth:`from_json` is the inverse."""
        return json.dumps({**asdict(self), "value": np.asarray(self.value).tolist()})

    @classmethod
    def from_json(cls, text: str) -> "ReleasedStatistic":
        """Read back what :meth:`to_json` wrote.

        Parameters
        ----------
        text : str
            From :meth:`to_json`.

        Returns
        -------
        ReleasedStatistic
            As it was.

        Raises
        ------
        PrivacyConfigurationError
            If the text is not such a record.
        """
        with reading("released statistic"):
            fields = json.loads(text)
            value = np.asarray(fields.pop("value"), np.int64 if fields["discrete"] else np.float64)
            if fields.get("bounds"):
                fields["bounds"] = tuple(fields["bounds"])
            return cls(value, **fields)
