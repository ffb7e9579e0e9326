"""Sums of records in shards on the workers of a Dask cluster.

Each worker loads its own shards and answers with whole numbers. Noise is added once, by the process that
asked. The cluster is one curator's: everything between its machines is as private as the data.
"""

import time
import uuid
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from pymc_dp._version import __version__
from pymc_dp.exceptions import ShardError
from pymc_dp.records.queries import Query, Units
from pymc_dp.records.shards import Shards
from pymc_dp.records.sums import LocalRecords
from pymc_dp.records.worker import Answer, Program, answer

_PATROL = 5.0
"""Seconds between two looks at whether the cluster has any workers left."""


class ShardedRecords:
    """The records on the workers of a cluster: the sums of :class:`~pymc_dp.records.sums.LocalRecords`.

    One answer per group of shards. Groups are as many as there are workers when this is built; each has a
    worker where its records are. If it dies, Dask gives the request to another one, which loads them.

    Parameters
    ----------
    shards : Shards
    records : LocalRecords
        Of the model with its stand-in records, none of which travel.

    Raises
    ------
    ShardError
        If a shard cannot be loaded, or is not what was announced.
    """

    def __init__(self, shards: Shards, records: LocalRecords):
        self._shards, self._client = shards, shards.client
        stand_ins = records.likelihood.roles.record_data
        empty = [np.take(leaf.values, [], axis=leaf.axis) for leaf in stand_ins]
        self._label = uuid.uuid4().hex, __version__
        program = cloudpickle.dumps(
            Program(
                records.of_data(empty),
                shards.load,
                shards.records,
                shards.unit,
                shards.units,
            )
        )
        self._homes = sorted(self._client.nthreads())[: len(shards.records)]
        if not self._homes:
            raise ShardError(
                "The cluster has no workers. `client.wait_for_workers(n)` waits for n."
            )
        everyone = range(len(shards.records))
        self._groups = [tuple(everyone[g :: len(self._homes)]) for g in range(len(self._homes))]
        # A result that the scheduler can make again for a new worker, and is sent to each once.
        self._program = self._client.submit(bytes, program, key=f"program-{self._label[0]}")
        self._ask("ready")

    @property
    def n_units(self) -> int:
        """Number of units of privacy, of all shards."""
        return sum(self._shards.units)

    def total(self, of: Query, bound: float, units: Units | None = None) -> NDArray[np.int64]:
        """See :class:`~pymc_dp.records.sums.RecordSums`.

        Raises
        ------
        ShardError
            If the sum cannot be completed.
        """
        return self._ask("total", of, bound, units)

    def counts(self, of: Query, bins_per_octave: int) -> NDArray[np.int64]:
        """See :class:`~pymc_dp.records.sums.RecordSums`; raises as :meth:`total`."""
        return self._ask("counts", of, bins_per_octave)

    def _ask(self, method: str, *args: Any) -> NDArray[np.int64]:
        answers: list[Answer] | None
        try:
            answers = self._answers(method, args)
        except Exception:  # noqa: BLE001  may quote what a worker holds
            answers = None
        if answers is None:
            raise ShardError(
                "The workers did not answer: none are left, or each that was asked died (of too "
                "little memory, perhaps), or the scheduler is gone. Nothing was released of this "
                "iteration; what was charged to the ledger stays charged."
            )
        for _, _, failure in answers:
            if failure is not None:
                raise failure
        self._homes = [address for address, _, _ in answers]
        return sum((total for _, total, _ in answers[1:]), start=answers[0][1])

    def _answers(self, method: str, args: tuple[Any, ...]) -> list[Answer]:
        from distributed import wait

        futures = [
            self._client.submit(
                answer,
                self._program,
                self._label,
                group,
                method,
                args,
                workers=[home],
                allow_other_workers=True,
                pure=False,
            )
            for group, home in zip(self._groups, self._homes, strict=True)
        ]
        last_seen = time.monotonic()
        while True:
            try:
                wait(futures, timeout=min(_PATROL, self._shards.patience))
                answers: list[Answer] = self._client.gather(futures)
                return answers
            except TimeoutError:
                if self._client.nthreads():
                    last_seen = time.monotonic()
                elif time.monotonic() - last_seen >= self._shards.patience:
                    raise
