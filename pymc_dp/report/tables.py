"""Tables as text and as HTML: labels in the first column, values in the others."""

from collections.abc import Sequence
from html import escape

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
