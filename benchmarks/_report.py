"""Where benchmark tables go: Markdown for people and JSON for programs, under docs/evidence/."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

EVIDENCE = Path(__file__).resolve().parent.parent / "docs" / "evidence"


def write_report(name: str, title: str, text: str, columns: list[str], rows: list[list]) -> None:
    """Write ``docs/evidence/{name}_pymc{major}.md`` and ``.json``, and print the table."""
    setting = f"PyMC {version('pymc')}, PyTensor {version('pytensor')}, Python {platform.python_version()}"
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    table = "\n".join(
        "| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *cells]
    )
    page = f"# {title}\n\n{text.strip()}\n\n{setting}\n\n{table}\n"
    stem = f"{name}_pymc{version('pymc').split('.')[0]}"
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    (EVIDENCE / f"{stem}.md").write_text(page)
    record = {"title": title, "setting": setting, "columns": columns, "rows": rows}
    (EVIDENCE / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(page)
