"""Ctrl-C that waits for a place where nothing is lost."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred(ask: Callable[[], None]) -> Iterator[None]:
    """Within the block the first interrupt calls `ask`; a second one is raised at once.

    In other threads than the main one, and where somebody else handles the signal, nothing is changed.

    Parameters
    ----------
    ask : callable
        Tells whoever works to end soon.
    """
    usual = signal.getsignal(signal.SIGINT)
    if (
        threading.current_thread() is not threading.main_thread()
        or usual is not signal.default_int_handler
    ):
        yield
        return

    def handle(*_: Any) -> None:
        signal.signal(signal.SIGINT, usual)
        ask()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def left_to_the_parent() -> None:
    """In a chain's own process, leave Ctrl-C to the process that started it.

    A terminal sends the signal to all of them. A chain that ends before its parent has noticed looks like one that has
    crashed, and PyMC gives no draws back then; the parent asks each chain to end as soon as it is interrupted itself.
    """
    if (
        multiprocessing.current_process().daemon
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
