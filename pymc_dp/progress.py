"""A line that says what is being done while it is done, where somebody looks; like PyMC's progress bars.

Texts are functions of releases and public inputs, like everything that is shown.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_log = logging.getLogger("pymc.dp")


class _Line:
    """The line, if there is one; one per process."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.task = TaskID(0)
        self.hidden = False

    def show(self, what: str) -> str:
        """Show a text, and return the one before."""
        if self.progress is None:
            return ""
        before = str(self.progress.tasks[self.task].description)
        self.progress.update(self.task, description=what)
        return before


_line = _Line()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Show `what` while the block runs, with the time since the line appeared.

    Within another block it takes that one's place until it ends. Nothing is shown where nobody looks: if the
    output is no terminal and no notebook, or within :func:`hidden`.
    """
    if _line.progress is not None:
        before = _line.show(what)
        try:
            yield
        finally:
            _line.show(before)
        return
    console = Console()
    # Without them rich warns in a notebook, and shows nothing.
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    if _line.hidden or not (console.is_terminal or in_notebook):
        yield
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        _line.progress, _line.task = progress, progress.add_task(what, total=None)
        try:
            yield
        finally:
            _line.progress = None


def tell(what: str, level: int = logging.INFO) -> None:
    """Say how far it is: on the line if there is one, in the log at `level` if not."""
    if _line.progress is None:
        _log.log(level, "%s", what)
    else:
        _line.show(what)


@contextmanager
def hidden(whether: bool = True) -> Iterator[None]:
    """Show no line within the block, as for ``progressbar=False``."""
    before, _line.hidden = _line.hidden, whether or _line.hidden
    try:
        yield
    finally:
        _line.hidden = before


@contextmanager
def no_advice_on_chains(whether: bool = True) -> Iterator[None]:
    """Keep PyMC from asking for longer chains within the block: draws that are independent need none."""

    def keep(record: logging.LogRecord) -> bool:
        return "samples per chain" not in record.getMessage()

    log = logging.getLogger("pymc.sampling.mcmc")
    if whether:
        log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


@contextmanager
def quiet_pymc() -> Iterator[None]:
    """Keep PyMC's and our own reports off the log within the block: of runs that are not what was asked for."""
    log = logging.getLogger("pymc")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
