"""Run the tutorial notebooks from their sources; any error of a cell is an error here.

``NN_name.md`` is what is edited and reviewed; ``NN_name.ipynb`` has the same cells and their output. ::

    python notebooks/execute.py                 run all of them and write nothing
    python notebooks/execute.py --store 02 05   run two, and write their .ipynb

After editing: ``jupytext --pipe "ruff format -" notebooks/*.md``, then this with ``--store``.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
SOURCES = sorted(HERE.glob("[0-9][0-9]_*.md"))


def executed(source: Path) -> Any:
    """The notebook with its output, run in an empty folder of its own."""
    notebook = jupytext.read(source)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"  # jupytext's are random, and would change with every run
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
        ).execute()
    # What is left of the metadata must not depend on the machine that ran it.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Run the notebooks whose numbers are given, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", nargs="*", help="such as 02; all if left out")
    parser.add_argument("--store", action="store_true", help="write the .ipynb files")
    options = parser.parse_args()
    chosen = [s for s in SOURCES if not options.number or s.name[:2] in options.number]
    if not chosen:
        parser.error(f"no notebook {' '.join(options.number)}")
    with ThreadPoolExecutor(2) as two_kernels:
        for source, (notebook, seconds) in zip(chosen, two_kernels.map(timed, chosen), strict=True):
            if options.store:
                jupytext.write(notebook, source.with_suffix(".ipynb"))
            print(f"{source.name}: {seconds:.0f} s", flush=True)


def timed(source: Path) -> tuple[Any, float]:
    """The executed notebook, and how long it took."""
    start = time.perf_counter()
    return executed(source), time.perf_counter() - start


if __name__ == "__main__":
    main()
