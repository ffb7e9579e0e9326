"""A budget of its own, paid before data are read and divided up on the way."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.sizes import check_sizes
from pymc_dp.privacy.budget import Budget
from pymc_dp.privacy.clipping import clipped_sum
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.guarantee import Guarantee
from pymc_dp.privacy.histogram import counts_of
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_units
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import PaidMeasurements
from pymc_dp.records.queries import Query, Units, sizes
from pymc_dp.records.sums import RecordSums
from pymc_dp.steps.run import Run


def beside_draws(guarantee: Guarantee) -> str:
    """What is promised of a table that was made from draws, beside what these have cost."""
    if guarantee.valid:
        return f"The table is {guarantee.promise}, beside what the draws themselves cost."
    return "NOT PRIVATE: the noise was insecure. The table must not be released."


class OwnRecords:
    """The records of this process, asked for terms of a kind of their own: exact sums and counts of these."""

    @property
    @abstractmethod
    def n_units(self) -> int:
        """Number of units of privacy."""

    def total(self, of: Query, bound: float, units: Units | None = None) -> NDArray[np.int64]:
        """See :class:`~pymc_dp.records.sums.RecordSums`."""
        return clipped_sum(of.terms(self, units), bound, of.dimension)

    def counts(self, of: Query, bins_per_octave: int) -> NDArray[np.int64]:
        """See :class:`~pymc_dp.records.sums.RecordSums`."""
        return counts_of(sizes(of, self), bins_per_octave)


class Payment:
    """One Gaussian release of the whole budget. Nothing is charged, and no data are read, before :meth:`measure`.

    Parameters
    ----------
    what : str
        Who asks, for messages and for the account.
    compiled : CompiledModel
        Of the data that the releases are about.
    epsilon, delta, neighbours, ledger, noise_source
        As in :class:`~pymc_dp.steps.run.RunSettings`.
    """

    def __init__(
        self,
        what: str,
        compiled: CompiledModel,
        *,
        epsilon: float,
        delta: float | None,
        neighbours: str,
        ledger: PrivacyLedger | None,
        noise_source: NoiseSource | None,
    ):
        roles = compiled.roles
        self._run = run = Run(what, {}, Budget(epsilon, delta, neighbours, ledger, noise_source))
        check_units(roles.n_units)
        self.check(compiled)
        run.open_account(roles.n_units)
        self._z = run.multiplier_of_one()
        tells_size = run.neighbours.public_size
        run.pays(
            Gaussian(self._z),
            unit=roles.unit,
            n_units=roles.n_units if tells_size else None,
            n_records=roles.n_records if tells_size else None,
        )

    def check(self, compiled: CompiledModel) -> None:
        """Refuse a model whose prior tells the number of units, if that is private.

        Raises
        ------
        UnsupportedModelError
        """
        check_sizes(compiled.model, compiled.roles, self._run.neighbours.public_size)

    @property
    def guarantee(self) -> Guarantee:
        """What is promised of everything that is measured."""
        return self._run.guarantee

    @property
    def noise(self) -> NoiseSource:
        """Where the noise comes from."""
        return self._run.noise

    def measure(self, records: RecordSums) -> PaidMeasurements:
        """Charge the account, and let these records be asked, for shares of the whole.

        Raises
        ------
        PrivacyBudgetExceeded
            If it does not fit the account. Nothing has been read then.
        """
        run = self._run
        run.reserve()
        permit = run.charge(run.claim(), 0)
        return PaidMeasurements(
            Curator(records, run.noise, run.neighbours), PrivacyFilter(permit, self._z)
        )
