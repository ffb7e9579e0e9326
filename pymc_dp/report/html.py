"""The report as a page of its own."""

from collections.abc import Iterable, Sequence
from html import escape

from pymc_dp.privacy.guarantee import describe
from pymc_dp.report.facts import Facts
from pymc_dp.report.wording import (
    covered,
    how_to_check,
    in_plain_words,
    meaning,
    not_covered,
    what_left,
)

_SETTING, _MEASURED = "Setting ", "Diagnostic "
_STYLE = """
:root { color-scheme: light dark; --text: #1d2733; --muted: #5b6876; --page: #ffffff;
        --line: #d5dbe2; --tint: #f3f6f9; --good: #1a7f4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e9ee; --muted: #a3afbb; --page: #14191f; --line: #37424d;
          --tint: #1d242c; --good: #58c48c; --bad: #ff8a80; } }
@media print { :root { --text: #000; --page: #fff; --tint: #fff; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
       max-width: 46rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .8rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; break-after: avoid; }
.statement { border-left: .35rem solid var(--good); background: var(--tint);
             padding: .9rem 1.1rem; font-size: 1.08rem; overflow-wrap: anywhere; }
.void { border-color: var(--bad); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0;
         border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 600; width: 38%; color: var(--muted); }
tr { break-inside: avoid; }
li { margin: .35rem 0; }
pre { background: var(--tint); padding: .9rem 1.1rem; font-size: .85rem; white-space: pre-wrap;
      overflow-wrap: anywhere; }
details summary { cursor: pointer; color: var(--muted); }
"""


def page(report: Facts, title: str, rows: Sequence[tuple[str, str]], machine_readable: str) -> str:
    """A self-contained HTML page.

    Parameters
    ----------
    report : Facts
    title : str
        Of the page.
    rows : sequence of (str, str)
        The facts, each with its label.
    machine_readable : str
        The same in JSON, to go with it.
    """
    facts = [row for row in rows if not row[0].startswith(("Releases", _SETTING, _MEASURED))]
    explanation, program = how_to_check(report)
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="statement{"" if report.valid else " void"}">{escape(report.statement)}</p>',
        "<h2>In plain words</h2>",
        *(f"<p>{escape(text)}</p>" for text in in_plain_words(report)),
        "<h2>The facts</h2>",
        _table(facts),
    ]
    if report.releases:
        sections += [
            "<h2>Releases</h2>",
            f"<p>{what_left(report)} A noise multiplier is "
            "the noise's size divided by how far one unit can move what is released: larger "
            "is more private.</p>",
            _table(
                ("once" if e.count == 1 else f"{e.count:,} times", describe(e))
                for e in report.releases
            ),
        ]
    for heading, items in [
        ("What is covered", covered(report)),
        ("What is not covered", not_covered(report)),
    ]:
        if items:
            sections += [f"<h2>{heading}</h2>", _list(items)]
    sections += ["<h2>How to check it</h2>", f"<p>{escape(explanation)}</p>"]
    if program:
        sections.append(f"<pre>{escape(program)}</pre>")
    for heading, kind in [("Settings", _SETTING), ("What the run released of itself", _MEASURED)]:
        if explained := _explained(rows, kind):
            sections += [f"<h2>{heading}</h2>", _table(explained)]
    sections += [
        "<h2>For machines</h2>",
        f"<details><summary>The same in JSON</summary><pre>{escape(machine_readable)}</pre></details>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>"
    )


def _explained(rows: Sequence[tuple[str, str]], kind: str) -> list[tuple[str, str]]:
    """The rows of one kind, with what their names mean where that has to be said."""
    found = [(label.removeprefix(kind), value) for label, value in rows if label.startswith(kind)]
    return [
        (name, f"{value} ({said})" if (said := meaning(name)) else value) for name, value in found
    ]


def _table(rows: Iterable[tuple[str, str]]) -> str:
    body = "\n".join(
        f'<tr><th scope="row">{escape(label)}</th><td>{escape(value)}</td></tr>'
        for label, value in rows
    )
    return f"<table><tbody>\n{body}\n</tbody></table>"


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"
