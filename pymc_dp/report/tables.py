"""Tables as text and as HTML: labels in the first column, values in the others."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import ClassVar

Rows = Sequence[tuple[str, ...]]


def as_text(title: str, rows: Rows) -> str:
    """A title and aligned rows."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [title, "-" * len(title)]
    lines += [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def as_html(title: str, rows: Rows) -> str:
    """The same as an HTML table."""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(label)}</th>'
        + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for label, *cells in rows
    )
    return f"<table><caption><b>{escape(title)}</b></caption><tbody>{body}</tbody></table>"


class Table(ABC):
    """What shows as a table with words below it, as text and in a notebook.

    Attributes
    ----------
    title : str
        Of the kind of table.
    """

    title: ClassVar[str]

    @property
    @abstractmethod
    def rows(self) -> Rows:
        """The table as text."""

    @property
    @abstractmethod
    def statement(self) -> str:
        """How to read the table."""

    def __str__(self) -> str:
        return as_text(self.title, self.rows) + "\n\n" + self.statement

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self.title, self.rows) + f"<p>{self.statement}</p>"
