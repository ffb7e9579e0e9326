"""What several files of this folder share."""

import os
import pickle
import warnings

import pytest


def _in_fork(task):
    """Result of `task` in a forked child of this process; its exception, if it raises one."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork + threads
        pid = os.fork()
    if pid == 0:
        try:
            answer = task()
        except BaseException as error:
            answer = error
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return pickle.loads(answer)


@pytest.fixture
def in_fork():
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    return _in_fork


@pytest.fixture(autouse=True)
def repeatable():
    """Here the secure source is itself: bounds on what it draws fail with probability below 1e-9."""
