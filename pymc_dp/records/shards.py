"""Where the records are, if not in the model."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymc as pm
from numpy.typing import ArrayLike

from pymc_dp.checks import is_whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.roles import Roles


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

        Parameters
        ----------
        model : Model
            Of stand-in records.
        stand_in : Roles
            What is private and what is public in it.

        Returns
        -------
        Roles
            Of all records.

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


def _sizes(name: str, given: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(given)
    if not sizes or not all(is_whole(n, 1) for n in sizes):
        raise PrivacyConfigurationError(f"`{name}` must list one positive whole number per shard.")
    return tuple(int(n) for n in sizes)
