"""Two-column tables as text and as HTML."""

from collections.abc import Sequence
from html import escape

Rows = Sequence[tuple[str, str]]


def as_text(title: str, rows: Rows) -> str:
    """A title and aligned rows."""
    width = max(len(label) for label, _ in rows)
    lines = [title, "-" * len(title)]
    lines += [f"{label:<{width}}  {value}" for label, value in rows]
    return "\n".join(lines)


def as_html(title: str, rows: Rows) -> str:
    """The same as an HTML table."""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(label)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for label, value in rows
    )
    return f"<table><caption><b>{escape(title)}</b></caption><tbody>{body}</tbody></table>"
