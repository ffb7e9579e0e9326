"""Records in shards on the workers of a Dask cluster.

Each worker loads its own shards and answers with the integer sums that
:func:`~pymc_dp.privacy.clipping.clipped_sum` makes of them. Noise is added once, by the process that
asked. The cluster is one curator's: everything between its machines is as private as the data.
"""

import os
import pickle
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_dp._version import __version__
from pymc_dp.exceptions import PrivacyConfigurationError, PrivacyError, ShardError
from pymc_dp.likelihood.records import RecordLikelihood
from pymc_dp.likelihood.roles import Roles, refuse_non_finite
from pymc_dp.likelihood.separability import check_records
from pymc_dp.likelihood.unit import numbered
from pymc_dp.privacy.clipping import clipped_sum

Vector = NDArray[np.float64]

_PATROL = 5.0
"""Seconds between two looks at whether the cluster has any workers left."""


class Shards:
    """Where the records are, if not in the model: in shards that Dask workers load themselves.

    The model is then built with a few made-up records in their place, of the same types and shapes.

    Parameters
    ----------
    client : distributed.Client
        Of a cluster that belongs to the curator, workers, scheduler and network. Workers need the
        same versions of everything as this process.
    load : callable
        ``k ->`` the arrays of shard k, by the names that they have in the model (of its ``pm.Data``,
        or of an observed variable that was given an array). Called on a worker, again on another one if
        that dies: it must give the same records each time.
    records : sequence of int
        Number of records in each shard. Public.
    unit : str, optional
        Which of the arrays that `load` gives holds an identifier per record, when a person owns
        several. All records of a person must be in one shard, or the guarantee is void.
    units : sequence of int, optional
        With `unit`: number of different identifiers in each shard. Public, and checked. If they add up
        to the number of people in the data, nobody is in two shards.
    patience : float
        Seconds that the cluster may be without any worker before the run ends.

    Raises
    ------
    PrivacyConfigurationError
        If an argument does not fit the others, or `distributed` is not installed.
    """

    def __init__(
        self,
        client: Any,
        load: Callable[[int], Mapping[str, ArrayLike]],
        *,
        records: Sequence[int],
        unit: str | None = None,
        units: Sequence[int] | None = None,
        patience: float = 60.0,
    ):
        try:
            from distributed import Client
        except ImportError:
            raise PrivacyConfigurationError(
                "Shards need Dask's `distributed`: pip install 'pymc-dp[shards]'."
            ) from None
        if not isinstance(client, Client) or client.asynchronous:
            raise PrivacyConfigurationError(
                "`client` must be a distributed.Client that is not asynchronous. Found "
                f"{type(client).__name__}."
            )
        if not callable(load):
            raise PrivacyConfigurationError(
                "`load` must be a function of a shard's number. It is called on the workers."
            )
        if (unit is None) != (units is None):
            raise PrivacyConfigurationError(
                "`unit` and `units` come together: which array holds the identifiers, and how many "
                "different ones each shard has."
            )
        self.client = client
        self.load = load
        self.records = _sizes("records", records)
        self.unit = unit
        self.units = self.records if units is None else _sizes("units", units)
        if len(self.units) != len(self.records):
            raise PrivacyConfigurationError(
                "`units` needs one number per shard, as `records` does."
            )
        self.patience = patience
        self._process = os.getpid()

    def __reduce__(self) -> Any:
        """Refused: a cluster serves one process."""
        self.refuse_parallel_chains()

    def refuse_other_process(self) -> None:
        """Refuse to serve a forked copy of the process that made this."""
        if os.getpid() != self._process:
            self.refuse_parallel_chains()

    def refuse_parallel_chains(self) -> None:
        """Refuse to serve several processes at once."""
        raise PrivacyConfigurationError(
            "With `shards` the chains run one after the other, each on all workers: give "
            "`pm.sample` the argument cores=1."
        )

    def roles(self, model: pm.Model, stand_in: Roles) -> Roles:
        """What `stand_in`, found in the model, says when the shards' records are in their place.

        Raises
        ------
        PrivacyConfigurationError
            If the records cannot be loaded by name, or units were given with the model.
        """
        if stand_in.unit_of_record is not None:
            raise PrivacyConfigurationError(
                "With shards the identifiers are loaded like the records: give their name and "
                "numbers to `Shards`, as `unit` and `units`, and leave out the step's `unit`."
            )
        unnamed = [leaf.name for leaf in stand_in.record_data if leaf.name not in model.named_vars]
        if unnamed:
            raise PrivacyConfigurationError(
                f"{unnamed} cannot be loaded in shards, for want of a name. Make it a `pm.Data`."
            )
        return replace(
            stand_in,
            n_records=sum(self.records),
            n_units=sum(self.units),
            unit=stand_in.unit if self.unit is None else "all records with one identifier",
        )

    def clipped_ratios(self, likelihood: RecordLikelihood, theta0: Vector) -> "ClippedRatios":
        """Have the shards loaded and checked on the workers, for sums of log-likelihood ratios."""
        return ClippedRatios(self, likelihood, theta0)


def _sizes(name: str, given: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(given)
    if not sizes or any(not isinstance(n, int | np.integer) or n < 1 for n in sizes):
        raise PrivacyConfigurationError(f"`{name}` must list one positive whole number per shard.")
    return tuple(int(n) for n in sizes)


class ClippedRatios:
    r"""Integer images of :math:`\sum_i \operatorname{clip}_B(\ell_i(\theta') - \ell_i(\theta))`.

    One per group of shards. Groups are as many as there are workers when this is built; each has a
    worker where its records are. If it dies, Dask gives the request to another one, which loads them.

    Parameters
    ----------
    shards : Shards
    likelihood : RecordLikelihood
        Of the model with its stand-in records, none of which travel.
    theta0 : ndarray, shape (d,)
        The checks probe around this point.

    Raises
    ------
    UnsupportedModelError
        If the records of a shard do not pass the checks of a step.
    ShardError
        If a shard cannot be loaded, or is not what was announced.
    """

    def __init__(self, shards: Shards, likelihood: RecordLikelihood, theta0: Vector):
        self._shards, self._client = shards, shards.client
        empty = [np.take(leaf.values, [], axis=leaf.axis) for leaf in likelihood.roles.record_data]
        self._label = uuid.uuid4().hex, __version__
        program = cloudpickle.dumps(
            _Program(
                likelihood.of_data(empty),
                theta0,
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

    def __call__(
        self, theta: Vector, proposal: Vector, bound: float
    ) -> Iterator[NDArray[np.int64]]:
        """Integer sums of disjoint parts of the units, in units of B / RESOLUTION. Private.

        Parameters
        ----------
        theta, proposal : ndarray, shape (d,)
            Unconstrained parameters.
        bound : float
            B.

        Yields
        ------
        ndarray of int64, shape (1,)

        Raises
        ------
        ShardError
            If the sum cannot be completed.
        """
        for total in self._ask("clipped_ratios", theta, proposal, bound):
            yield np.array([total], dtype=np.int64)

    def _ask(self, method: str, *args: Any) -> list[int]:
        answers: list[tuple[str, int, PrivacyError | None]] | None
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
        return [total for _, total, _ in answers]

    def _answers(
        self, method: str, args: tuple[Any, ...]
    ) -> list[tuple[str, int, PrivacyError | None]]:
        from distributed import wait

        futures = [
            self._client.submit(
                sum_shards,
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
                return self._client.gather(futures)
            except TimeoutError:
                if self._client.nthreads():
                    last_seen = time.monotonic()
                elif time.monotonic() - last_seen >= self._shards.patience:
                    raise


# -- on a worker ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Program:
    """What a worker needs to know, and nothing that it must not."""

    likelihood: RecordLikelihood
    theta0: Vector
    load: Callable[[int], Mapping[str, ArrayLike]]
    records: tuple[int, ...]
    unit: str | None
    units: tuple[int, ...]


class _Shard:
    """One shard's records, checked, and their terms at the last two points."""

    def __init__(self, program: _Program, k: int):
        roles = program.likelihood.roles
        arrays = _load(program, k)
        data = []
        for leaf in roles.record_data:
            x = np.asarray(arrays[leaf.name])
            shape = list(leaf.values.shape)
            shape[leaf.axis] = program.records[k]
            if x.shape != tuple(shape) or not np.can_cast(x.dtype, leaf.values.dtype, "same_kind"):
                raise ShardError(
                    f"Of shard {k}, {leaf.name!r} must be an array of {leaf.values.dtype} and of "
                    f"shape {tuple(shape)}, as announced to `Shards` and in the model. It is not."
                )
            data.append(x.astype(leaf.values.dtype, copy=False))
        codes = None
        if program.unit is not None:
            codes = _codes(
                program.unit, arrays[program.unit], program.records[k], program.units[k], k
            )
        self._likelihood = program.likelihood.of_data(data, codes)
        for leaf in self._likelihood.roles.record_data:
            refuse_non_finite(leaf)
        check_records(self._likelihood, program.theta0)
        self._kept: list[tuple[Vector, Vector]] = []

    def ready(self) -> int:
        """Tell that the shard is here."""
        return 0

    def clipped_ratios(self, theta: Vector, proposal: Vector, bound: float) -> int:
        """The integer sum of this shard's units."""
        self._kept = [(point, self._terms(point)) for point in (theta, proposal)]
        (_, now), (_, new) = self._kept
        return int(clipped_sum([new - now], bound)[0])

    def _terms(self, theta: Vector) -> Vector:
        for point, terms in self._kept:
            if np.array_equal(point, theta):
                return terms
        return self._likelihood(theta)


def _load(program: _Program, k: int) -> Mapping[str, ArrayLike]:
    names = {leaf.name for leaf in program.likelihood.roles.record_data}
    names |= set() if program.unit is None else {program.unit}
    try:
        arrays = program.load(k)
        if names <= set(arrays):
            return arrays
    except Exception:  # noqa: BLE001  may quote what it was loading
        pass
    raise ShardError(
        f"load({k}) failed on a worker, or did not return all of {sorted(names)}. Call it on a "
        "worker's machine to see why."
    )


def _codes(name: str, given: ArrayLike, records: int, units: int, k: int) -> NDArray[np.int64]:
    ids = np.asarray(given)
    if ids.shape == (records,) and ids.dtype.kind in "iuUS":
        codes, found = numbered(ids)
        if found == units:
            return codes
    raise ShardError(
        f"Of shard {k}, {name!r} must hold {records} integer or text identifiers, {units} of them "
        "different, as announced to `Shards`. It does not."
    )


class _Held:
    """The shards that this process holds. Those of one step only: a new one takes their place."""

    def __init__(self) -> None:
        self.label: tuple[str, str] | None = None
        self.program: _Program | None = None
        self.shards: dict[int, _Shard] = {}

    def shard(self, program: bytes, label: tuple[str, str], k: int) -> _Shard:
        """Shard k, loaded if it is not here yet."""
        if label != self.label or self.program is None:
            self.label, self.program, self.shards = label, _unpacked(program, label), {}
        if k not in self.shards:
            self.shards[k] = _Shard(self.program, k)
        return self.shards[k]


def _unpacked(program: bytes, label: tuple[str, str]) -> _Program:
    if label[1] == __version__:
        try:
            return pickle.loads(program)
        except Exception:  # noqa: BLE001
            pass
    raise ShardError(
        f"A worker cannot run the model. It needs pymc-dp {label[1]}, and the same versions of Python, "
        "PyMC and everything else that the model and `load` use."
    )


_held = _Held()
_one_at_a_time = Lock()


def sum_shards(
    program: bytes, label: tuple[str, str], shards: Sequence[int], method: str, args: Sequence[Any]
) -> tuple[str, int, PrivacyError | None]:
    """Runs on a worker: a sum over some shards.

    Never raises and never warns: Dask would write it down, with its arguments, and pass it on.

    Returns
    -------
    address : str
        The worker's, where the shards are now.
    total : int
    failure : PrivacyError or None
        To raise instead.
    """
    from distributed import get_worker

    address = get_worker().address
    with _one_at_a_time, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            total = sum(getattr(_held.shard(program, label, k), method)(*args) for k in shards)
            return address, total, None
        except PrivacyError as refusal:
            return address, 0, type(refusal)(*refusal.args)
        except Exception:  # noqa: BLE001
            return address, 0, ShardError("A worker could not sum its shards.")
