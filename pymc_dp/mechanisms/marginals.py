r"""Tables of counts over pairs of columns, released once, of which many models can be made.

The curator's side. What an analyst makes of them is in :mod:`pymc_dp.mechanisms.log_linear` and
:mod:`pymc_dp.mechanisms.synthetic`.
"""

import json
import math
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyConfigurationError, refuses_from_outside
from pymc_dp.mechanisms.curator import MARGIN, pay, with_noise
from pymc_dp.mechanisms.law import charged_multiplier, noise_law
from pymc_dp.mechanisms.released import reading
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.ledger import PrivacyLedger

MOST_CELLS = 100_000
"""Of all combinations of levels. A law of them is fitted and drawn cell by cell: 12,000 cells of eight columns take a
second to fit, and half a millisecond a gradient; both grow in proportion."""

_Columns = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class ReleasedMarginals:
    """Noisy tables of counts, with their guarantee. Everything in it may be published.

    Parameters
    ----------
    columns : dict of str to list
        Levels of every column: categories, or the middle of every interval.
    tables : list of tuple of str
        The columns that are counted together.
    counts : list of ndarray of int
        Noisy number of people in every cell of each table, an axis for each of its columns.
    scale : float
        σ of the noise in every count.
    epsilon, delta : float
        Of all tables together.
    n_records : int
        Public number of people.
    """

    columns: _Columns
    tables: list[tuple[str, ...]]
    counts: list[NDArray[np.int64]]
    scale: float
    epsilon: float
    delta: float
    n_records: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of levels of every column."""
        return tuple(len(levels) for levels in self.columns.values())

    @property
    def statement(self) -> str:
        """The guarantee as a sentence."""
        return (
            f"These {len(self.tables)} tables are together ({self.epsilon:g}, {self.delta:.3g})-differentially private with "
            f"respect to replacing one record among {self.n_records:,}: discrete Gaussian noise of scale {self.scale:.4g} in "
            "every count."
        )

    def cells(self) -> pd.DataFrame:
        """Make one row for every combination of levels, whether anybody has it or not.

        Returns
        -------
        DataFrame
            With the columns' levels, the last column's changing fastest.
        """
        index = pd.MultiIndex.from_product(self.columns.values(), names=self.columns)
        return index.to_frame(index=False)

    def table(self, *columns: str) -> pd.DataFrame:
        """Show the noisy counts of one table.

        Parameters
        ----------
        *columns : str
            Two of which a table was released, rows and columns of what is shown.

        Returns
        -------
        DataFrame

        Raises
        ------
        PrivacyConfigurationError
            If there is no such table.
        """
        for table, counts in zip(self.tables, self.counts, strict=True):
            if len(columns) == 2 and set(table) == set(columns):
                rows, across = (self.columns[name] for name in table)
                shown = pd.DataFrame(
                    counts,
                    index=pd.Index(rows, name=table[0]),
                    columns=pd.Index(across, name=table[1]),
                )
                return shown if table == columns else shown.T
        raise PrivacyConfigurationError(
            f"No table of {list(columns)} was released. There are {self.tables}."
        )

    def only(self, *columns: str) -> "ReleasedMarginals":
        """Keep some columns, and the tables of these alone: what a model of them needs.

        Parameters
        ----------
        *columns : str
            Two or more.

        Returns
        -------
        ReleasedMarginals
            Of the same guarantee, which all tables have together.

        Raises
        ------
        PrivacyConfigurationError
            If there is no such column, or one is in no table with the others.
        """
        unknown = [name for name in columns if name not in self.columns]
        if unknown:
            raise PrivacyConfigurationError(
                f"There is no column {unknown[0]!r}. There are {list(self.columns)}."
            )
        kept = [k for k, table in enumerate(self.tables) if set(table) <= set(columns)]
        tables = _tables(list(columns), [self.tables[k] for k in kept])
        levels = {name: x for name, x in self.columns.items() if name in columns}
        return replace(self, columns=levels, tables=tables, counts=[self.counts[k] for k in kept])

    def to_json(self) -> str:
        """As JSON text, to hand over; :meth:`from_json` is the inverse."""
        return json.dumps({**asdict(self), "counts": [x.tolist() for x in self.counts]})

    @classmethod
    def from_json(cls, text: str) -> "ReleasedMarginals":
        """Read back what :meth:`to_json` wrote.

        Parameters
        ----------
        text : str
            From :meth:`to_json`.

        Returns
        -------
        ReleasedMarginals
            As it was.

        Raises
        ------
        PrivacyConfigurationError
            If the text is not such a release.
        """
        with reading("release of marginals"):
            fields = json.loads(text)
            fields["counts"] = [np.asarray(x, np.int64) for x in fields["counts"]]
            fields["tables"] = [tuple(table) for table in fields["tables"]]
            return cls(**fields)


@refuses_from_outside
def release_marginals(
    frame: Mapping[str, Any],
    columns: Mapping[str, Any],
    *,
    epsilon: float,
    delta: float,
    tables: Iterable[Sequence[str]] | None = None,
    ledger: PrivacyLedger | None = None,
    description: str | None = None,
) -> ReleasedMarginals:
    r"""Release noisy counts of all pairs of columns, of which analysts can make any model of these columns.

    Parameters
    ----------
    frame : mapping of str to array_like, shape (n,)
        The private data, such as a DataFrame: a row for each person.
    columns : mapping of str to sequence
        Those to release. For each its categories, or a ``pandas.IntervalIndex`` of neighbouring intervals that numbers are
        sorted into. Public: say them from what a column *can* be. A value that is missing or not among them
        counts as the first category, a number beyond the intervals as in the nearest one.
    epsilon, delta : float
        Of all tables together.
    tables : iterable of sequence of str, optional
        Columns that are counted together, two or more; all pairs by default. What no table holds cannot be
        learnt: for an interaction of two columns in a model of a third, ask for the table of the three.
    ledger : PrivacyLedger, optional
        That pays.
    description : str, optional
        For the ledger.

    Returns
    -------
    ReleasedMarginals

    Raises
    ------
    PrivacyConfigurationError
        If a column is not in `frame`, in no table or without levels, or if there are more than 100,000 combinations of
        levels. Nothing is spent then.
    PrivacyBudgetExceeded
        If `ledger` has not enough left.

    Notes
    -----
    *Neighbours*: data in which one person's row is replaced; the number of people is public. *Sensitivity*: a row is in one
    cell of each of K tables, so replacing it lowers one count and raises another by one in each, an :math:`\ell_2`
    distance of at most :math:`\sqrt{2K}`. *Source*: discrete Gaussian mechanism, Canonne, Kamath and Steinke (2020), with noise
    that is at least as wide as calibrated for the Gaussian mechanism of Balle and Wang (2018).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from pymc_dp import release_marginals
    >>> rng = np.random.default_rng(1)
    >>> people = {"smokes": rng.integers(0, 2, 5000), "age": rng.uniform(18, 90, 5000)}
    >>> ages = pd.IntervalIndex.from_breaks([18, 35, 50, 65, 90])
    >>> released = release_marginals(people, {"smokes": [0, 1], "age": ages}, epsilon=1, delta=1e-6)
    >>> released.table("smokes", "age").shape
    (2, 4)
    """
    coders, levels = {}, {}
    for name, said in columns.items():
        coders[name], levels[name] = _coder(name, said)
    chosen = _tables(list(levels), tables)
    cells = math.prod(len(x) for x in levels.values())
    if cells > MOST_CELLS:
        raise PrivacyConfigurationError(
            f"The levels of `columns` have {cells:,} combinations, and at most {MOST_CELLS:,} are supported. Join levels, "
            "or release fewer columns."
        )
    missing = [name for name in levels if name not in frame]
    if missing:
        raise PrivacyConfigurationError(f"`frame` has no column {missing[0]!r}.")
    # A column that is there twice is a table, of the same length.
    sizes = {name: getattr(frame[name], "shape", (len(frame[name]),)) for name in levels}
    ((n, *more), *others) = set(sizes.values())
    if more or others or n == 0:
        raise PrivacyConfigurationError(
            f"Columns of `frame` must have one value for each person. Found shapes {sizes}."
        )
    sensitivity = math.sqrt(2 * len(chosen))
    law = noise_law(
        "release_marginals", "gaussian", True,
        epsilon=epsilon, delta=delta, sensitivity=sensitivity * MARGIN,
    )  # fmt: skip
    scale = float(law.scale)
    event = Gaussian(charged_multiplier(scale / sensitivity, scale))
    pay(ledger, "release_marginals", description, event)

    # From here on the data are read.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a value is masked, say
        codes = {
            name: np.fromiter((coder(value) for value in frame[name]), np.int64, n)
            for name, coder in coders.items()
        }
    counts = []
    for table in chosen:
        shape = tuple(len(levels[name]) for name in table)
        cell = np.ravel_multi_index(tuple(codes[name] for name in table), shape)
        total = np.bincount(cell, minlength=math.prod(shape))
        counts.append(with_noise(total, "gaussian", scale).reshape(shape))
    return ReleasedMarginals(levels, chosen, counts, scale, float(epsilon), float(delta), n)


def _coder(name: str, said: Any) -> tuple[Callable[[Any], int], list[Any]]:
    """What finds the level of a value, whatever the value is; and the levels."""
    if isinstance(said, pd.IntervalIndex):
        breaks = np.append(said.left, said.right[-1:]).astype(float)
        if (
            len(said) < 2
            or not (np.diff(breaks) > 0).all()
            or (said.right[:-1] != said.left[1:]).any()
        ):
            raise PrivacyConfigurationError(
                f"The intervals of {name!r} must be two or more, each beginning where the last one ends."
            )  # fmt: skip
        inner, find = breaks[1:-1].tolist(), bisect_left if said.closed == "right" else bisect_right

        def of_number(value: Any) -> int:
            try:
                number = float(value)
            except Exception:  # noqa: BLE001 (a value that is no number must not show)
                return 0
            return 0 if math.isnan(number) else find(inner, number)

        return of_number, ((breaks[:-1] + breaks[1:]) / 2).tolist()
    levels = [x.item() if isinstance(x, np.generic) else x for x in said]
    codes = {level: k for k, level in enumerate(levels)}
    if (
        len(codes) < 2
        or len(codes) != len(levels)
        or not all(isinstance(x, str | int | float) for x in levels)
    ):
        raise PrivacyConfigurationError(
            f"The categories of {name!r} must be two or more different texts or numbers. Found {levels!r}."
        )  # fmt: skip

    def of_category(value: Any) -> int:
        try:
            return codes.get(value, 0)
        except Exception:  # noqa: BLE001 (nor one that cannot be compared)
            return 0

    return of_category, levels


def _tables(columns: list[str], tables: Iterable[Sequence[str]] | None) -> list[tuple[str, ...]]:
    chosen = list(combinations(columns, 2) if tables is None else map(tuple, tables))
    if not chosen:
        raise PrivacyConfigurationError("A table is of two columns or more, and there is none.")
    for table in chosen:
        if len(table) < 2 or len(set(table)) != len(table) or not set(table) <= set(columns):
            raise PrivacyConfigurationError(
                f"A table is of two or more different ones of {columns}. Found {table!r}."
            )
    alone = [name for name in columns if not any(name in table for table in chosen)]
    if alone or len({frozenset(table) for table in chosen}) != len(chosen):
        raise PrivacyConfigurationError(
            f"No table has {alone[0]!r}." if alone else "A table is asked for twice."
        )
    return chosen
