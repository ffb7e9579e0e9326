"""Requests and answers through Flower: authenticated owners, numbers only.

Flower's own node runs the client code that the coordinator submits. An owner here does not: :func:`serve`
speaks the same protocol, with the same keys, but its answers come from an
:class:`~pymc_dp.federated.Owner` alone, and it never asks for the submitted code. It uses the part of Flower
that nodes are made of, which is why this package's ``federated`` extra holds Flower to one minor version.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.exceptions import LedgerError, PrivacyError
from pymc_dp.federated.agreement import Answer, Vector
from pymc_dp.federated.owner import Owner

try:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        pull_objects,
        push_object_contents_from_iterable,
    )
    from flwr.supernode.fleet_http_connection import http_request_response
except ImportError as error:
    raise ImportError(
        "Sending answers through Flower needs it: pip install 'pymc-dp[federated]'."
    ) from error

_log = logging.getLogger("pymc.dp")

# Polling is answered by the SuperLink too: asking more often than this slows down what is asked for.
_POLL_SECONDS = 0.1
_TYPE = "query."
# A coordinator that announces a request and does not send it must not stop an owner for ever.
_UPLOAD_SECONDS = 60.0
_ROWS = ".rows"


class FlowerOwners:
    """All owners behind a Flower grid, as the `ask` of a coordinator; for use in a ``ServerApp``.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        What Flower hands to the ``ServerApp``.
    owners : int
        How many owners take part. Waits until so many are connected; they are asked in this order ever after.
    timeout : float
        Seconds to wait for the owners, and for each round of answers.

    Raises
    ------
    PrivacyError
        If they do not connect or answer in time, or refuse.
    """

    def __init__(self, grid: Any, owners: int, *, timeout: float = 600.0):
        self._grid, self._timeout = grid, timeout
        end = time.monotonic() + timeout
        while len(nodes := sorted(grid.get_node_ids())) < owners:
            if time.monotonic() > end:
                raise PrivacyError(f"{len(nodes)} of {owners} owners are connected.")
            time.sleep(_POLL_SECONDS)
        self._nodes = nodes[:owners]

    def __call__(self, kind: str, request: Mapping[str, Vector]) -> list[Answer]:
        """Ask all owners, and wait for all of them."""
        grid = self._grid
        waiting = set(
            grid.push_messages(
                [Message(_pack(request), node, _TYPE + kind) for node in self._nodes]
            )
        )
        answers: dict[int, Answer] = {}
        end = time.monotonic() + self._timeout
        while waiting:
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                answers[reply.metadata.src_node_id] = self._read(reply)
            if time.monotonic() > end:
                raise PrivacyError(f"{len(waiting)} of {len(self._nodes)} owners did not answer.")
            time.sleep(_POLL_SECONDS)
        return [answers[node] for node in self._nodes]

    def _read(self, reply: Any) -> Answer:
        if reply.has_error():
            raise PrivacyError(f"An owner's connection failed: {reply.error.reason}")
        refusals = list(reply.content.config_records.values())
        if refusals:
            raise PrivacyError(f"An owner refuses: {refusals[0]['refusal']}")
        return _unpack(reply.content)


def serve(
    owner: Owner,
    superlink: str,
    *,
    root_certificates: str | os.PathLike[str],
    private_key: str | os.PathLike[str],
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Answer a coordinator's requests, one after the other, until stopped.

    Parameters
    ----------
    owner : Owner
    superlink : str
        Address of the coordinator's SuperLink, ``host:port``.
    root_certificates : path-like
        Certificates to know the SuperLink by, PEM.
    private_key : path-like
        The owner's key (NIST elliptic curve, OpenSSH format, no passphrase). The SuperLink must have its public
        half registered, and refuses all others.
    until : callable, optional
        Asked between requests whether to stop.

    Notes
    -----
    Every request, whoever may have made it, is answered by
    :meth:`Owner.answer <pymc_dp.federated.Owner.answer>` or refused. Refusals hold public text only. Run it
    in a process of its own: Flower ends the process if the SuperLink refuses the key.
    """
    key: Any = load_ssh_private_key(Path(private_key).read_bytes(), None)
    failure = None
    with http_request_response(
        superlink, False, Path(root_certificates).read_bytes(), (key, key.public_key())
    ) as connection:
        _, receive, send, _, _, pull, push, confirm = connection
        try:
            while not until():
                received = receive()
                if received is None:
                    time.sleep(_POLL_SECONDS)
                    continue
                head, tree = received
                request = _fetch(head, tree, pull, confirm)
                _send(_respond(owner, head.metadata.message_type, request), head, send, push)
        except Exception as error:  # noqa: BLE001 — Flower would log it and return as if all were well
            failure = error
    if failure is not None:
        raise failure


def _fetch(head: Any, tree: Any, pull: Any, confirm: Any) -> Any:
    """One request, or None if it does not come or cannot be read."""
    run, name = head.metadata.run_id, head.metadata.message_id
    try:
        contents = pull_objects(
            [t.object_id for t in iterate_object_tree(tree)], partial(pull, run),
            initial_backoff=_POLL_SECONDS, backoff_cap=1.0, max_time=_UPLOAD_SECONDS,
        )  # fmt: skip
        confirm(run, name)
        return inflate_object_from_contents(name, contents)
    except Exception:  # noqa: BLE001 — whoever sent it must not be able to stop an owner with it
        return None


def _respond(owner: Owner, message_type: str, request: Any) -> RecordDict:
    try:
        if not message_type.startswith(_TYPE) or request is None or not request.has_content():
            raise PrivacyError("This owner answers queries only.")
        return _pack(owner.answer(message_type.removeprefix(_TYPE), _unpack(request.content)))
    except PrivacyError as error:
        _log.warning("Refused: %s", error)
        # Where an owner keeps its ledger is nobody's business.
        text = "The ledger cannot be used." if isinstance(error, LedgerError) else str(error)
        return RecordDict({"refusal": ConfigRecord({"refusal": text})})


def _send(answer: RecordDict, head: Any, send: Any, push: Any) -> None:
    reply = Message(answer, reply_to=head)
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        # The last number is how long the answer took. Flower works without it.
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        push_object_contents_from_iterable(
            ((name, parts[name]) for name in wanted), partial(push, head.metadata.run_id, session)
        )


def _pack(values: Mapping[str, Vector]) -> RecordDict:
    """Numbers as Flower's record of numbers, which can hold nothing else; matrices row by row."""
    record: dict[str, Any] = {}
    for name, value in values.items():
        record[name] = np.ravel(value).tolist() if np.ndim(value) else float(value)
        if np.ndim(value) == 2:
            record[name + _ROWS] = len(value)
    return RecordDict({"numbers": MetricRecord(record)})


def _unpack(content: RecordDict) -> dict[str, Vector]:
    numbers = content.get("numbers")
    if set(content) != {"numbers"} or not isinstance(numbers, MetricRecord):
        raise PrivacyError("A message holds numbers, and nothing else.")
    values = {}
    for name in numbers:
        if not name.endswith(_ROWS):
            values[name] = np.array(numbers[name], dtype=np.float64)
            rows = numbers.get(name + _ROWS)
            if rows is not None:
                size = values[name].size
                if not isinstance(rows, int) or not 1 <= rows <= size or size % rows:
                    raise PrivacyError("A matrix consists of rows.")
                values[name] = values[name].reshape(rows, -1)
    return values
