"""The file that an account is kept in: SQLite, made whole or not at all, one connection per process."""

import os
import secrets
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pymc_dp.exceptions import LedgerError
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE

FORMAT_VERSION = 2
"""2 has `account.neighbours`. Files of 1 are about substitution, and are read as they are."""

_APPLICATION_ID = 0x70796470  # "pydp" in ASCII: how SQLite files say whose they are
_BUSY_SECONDS = 60.0
RESTORE = "Restore it from a backup: a budget whose spending is unknown must count as spent."

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
CREATE TABLE account (epsilon REAL NOT NULL, delta REAL NOT NULL, neighbours TEXT NOT NULL);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, description TEXT NOT NULL, events TEXT NOT NULL,
    chains INTEGER NOT NULL, iterations INTEGER NOT NULL,
    reserved_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE slots (
    run TEXT NOT NULL, slot INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (run, slot)
);
"""

# SQLite forbids using a connection in a forked child, closing included: a child parks here what it
# inherited, and opens its own.
_inherited: list[sqlite3.Connection] = []


class AccountFile:
    """A file with a budget, the runs that were charged to it, and the slots of their chains.

    Parameters
    ----------
    path : path-like, optional
        Without one, a private temporary file, which lives as long as the object that made it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None):
        self._connection: sqlite3.Connection | None = None
        self._owner_pid = 0
        if path is None:
            directory = tempfile.mkdtemp(prefix="pymc_dp_")
            self.path = Path(directory) / "account.ledger"
            weakref.finalize(self, _remove_temporary, self.path, os.getpid())
        else:
            self.path = Path(path).absolute()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "_owner_pid": 0}

    @contextmanager
    def _open(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """The process' own connection; every SQLite complaint becomes a :class:`LedgerError`.

        `durable` writes survive a power cut; the others, a crash of the process. An iteration's
        count is of the second kind, as its cost has been reserved durably before.
        """
        with _complaining(self.path):
            if self._connection is None or self._owner_pid != os.getpid():
                self._connection = sqlite3.connect(
                    self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._owner_pid = os.getpid()
                weakref.finalize(self, _close, self._connection, self._owner_pid)
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            yield self._connection
            if durable:
                # Into the file itself, so that a copy of it alone knows what is spent.
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _create_file(self, epsilon: float | None, delta: float | None, neighbours: str) -> None:
        """Make the file under another name, and link it into place: whole, and only if nobody was first."""
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        with _complaining(self.path):
            try:
                with closing(sqlite3.connect(draft, isolation_level=None)) as db:
                    self._create(db, epsilon, delta, neighbours)
                with suppress(FileExistsError):
                    _publish(draft, self.path)
            finally:
                draft.unlink(missing_ok=True)

    @staticmethod
    def _create(
        db: sqlite3.Connection, epsilon: float | None, delta: float | None, neighbours: str
    ) -> None:
        db.execute("BEGIN EXCLUSIVE")
        for statement in _SCHEMA.strip().split(";\n"):
            db.execute(statement)
        db.execute("INSERT INTO account VALUES (?, ?, ?)", (epsilon, delta, neighbours))
        db.execute("COMMIT")

    @staticmethod
    def _account(db: sqlite3.Connection) -> list[tuple[float, float, str]]:
        """ε, δ and the name of the relation that they are about: one row, if the file is whole."""
        (version,) = db.execute("PRAGMA user_version").fetchone()
        neighbours = f"'{SUBSTITUTE_ONE.name}'" if version < 2 else "neighbours"
        return db.execute(f"SELECT epsilon, delta, {neighbours} FROM account").fetchall()

    def _check_format(self, db: sqlite3.Connection) -> None:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise LedgerError(f"{self.path} is a database, but not a privacy ledger.")
        if version > FORMAT_VERSION:
            raise LedgerError(
                f"{self.path} was written by a newer pymc-dp (format {version}; this one reads "
                f"{FORMAT_VERSION}). Upgrade pymc-dp."
            )
        if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise LedgerError(f"{self.path} is damaged. {RESTORE}")

    @staticmethod
    def _write_ahead(db: sqlite3.Connection) -> None:
        """Make counting an iteration cheap. It is a property of the file, set once."""
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # Busy (another process is setting it) or read-only: safe without, only slower.
            with suppress(sqlite3.OperationalError):
                db.execute("PRAGMA journal_mode = WAL")


@contextmanager
def _complaining(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say of a file into a :class:`LedgerError`."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(
            f"The ledger {path} cannot be used: {error}. If its folder does not exist, make "
            "it; if the file is read-only, make it writable; if it is damaged, restore it from a "
            "backup, as a budget whose spending is unknown must count as spent."
        ) from error


def _publish(draft: Path, path: Path) -> None:
    """Give a file its name in one go.

    Raises
    ------
    FileExistsError
        If there is one of that name.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; a copy that is cut is refused later
        with path.open("xb") as file:
            file.write(draft.read_bytes())
            os.fsync(file.fileno())
    with suppress(OSError):  # not every system lets a folder be flushed
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of the block's statements or none."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _close(connection: sqlite3.Connection, pid: int) -> None:
    """Close a connection in the process that opened it."""
    if os.getpid() == pid:
        connection.close()
    else:
        _inherited.append(connection)


def _remove_temporary(path: Path, pid: int) -> None:
    """Delete a temporary account and its folder, in the process that made it."""
    if os.getpid() != pid:
        return
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if path.parent.exists() and not any(path.parent.iterdir()):
        path.parent.rmdir()
