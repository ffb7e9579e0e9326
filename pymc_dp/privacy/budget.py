"""What may be spent: ε and δ, under which relation, from which account, and with whose noise."""

import math
from dataclasses import dataclass
from functools import cached_property

from pymc_dp.checks import check_delta, check_epsilon
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours, neighbours_named
from pymc_dp.privacy.noise import NoiseSource, SecureNoise


@dataclass(frozen=True)
class Budget:
    """A budget as a user gives it, checked, and handed on whole.

    Parameters
    ----------
    epsilon : float, optional
        None if something else fixes what is spent.
    delta : float, optional
        Default: the ledger's, or 0.1 / units without one, if their number is public. 0 is a pure ε, with which nothing
        Gaussian can be released.
    neighbours : {"substitute-one", "add-or-remove"}
        What the guarantee is about.
    ledger : PrivacyLedger, optional
        Account of the data set.
    noise_source : NoiseSource, optional
        For tests only.

    Raises
    ------
    PrivacyConfigurationError
        If a setting is out of its range, or two contradict each other.
    """

    epsilon: float | None = None
    delta: float | None = None
    neighbours: str = SUBSTITUTE_ONE.name
    ledger: PrivacyLedger | None = None
    noise_source: NoiseSource | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", check_finite_epsilon(self.epsilon))
        if self.delta is not None:
            object.__setattr__(self, "delta", check_delta(self.delta, zero_allowed=True))
        relation = self.relation
        if self.ledger is None:
            return
        if not isinstance(self.ledger, PrivacyLedger):
            raise PrivacyConfigurationError(
                f"`ledger` must be a PrivacyLedger. Found {type(self.ledger).__name__}: "
                "PrivacyLedger(path) opens the account in a file."
            )
        if not self.secure:
            raise PrivacyConfigurationError(
                "A ledger accounts for real guarantees; a run with insecure noise has none. Leave "
                "`ledger` out, or `noise_source`."
            )
        self.ledger.check_neighbours(relation.name)

    @cached_property
    def relation(self) -> Neighbours:
        """Which data sets count as neighbours."""
        return neighbours_named(self.neighbours)

    @cached_property
    def noise(self) -> NoiseSource:
        """Where the noise comes from."""
        return SecureNoise() if self.noise_source is None else self.noise_source

    @property
    def secure(self) -> bool:
        """Whether a guarantee can rest on the noise."""
        return type(self.noise) is SecureNoise

    def delta_for(self, n_units: int) -> float:
        """δ for data of so many units.

        Raises
        ------
        PrivacyConfigurationError
            If its default would tell a private number of units.
        """
        if self.delta is not None:
            return self.delta
        if self.ledger is not None:
            return self.ledger.delta
        if not self.relation.public_size:
            raise PrivacyConfigurationError(
                f'With `neighbours="{self.relation.name}"` give `delta`, or a `ledger` that has one: the '
                "default 0.1 / units would tell the number of units, which is private then. Well below one "
                "in the size of the population that they are from is right, such as 1e-6."
            )
        return 0.1 / n_units

    def account(self, delta: float) -> PrivacyLedger:
        """The ledger, or one for this run alone, which refuses nothing."""
        return self.ledger or PrivacyLedger(
            epsilon=math.inf, delta=delta, neighbours=self.relation.name
        )


def refuse_pure(who: str, delta: float) -> None:
    """Refuse a pure ε for what is released with Gaussian noise, or by samples.

    Raises
    ------
    PrivacyConfigurationError
        If δ is 0. Nothing has been charged.
    """
    if delta == 0:
        raise PrivacyConfigurationError(
            f"{who} cannot be had at δ = 0: Gaussian noise has no ε then, however much there is of it. Give `delta`, well below "
            "one in the number of units, such as 1e-6 (beside a ledger of δ = 0, a ledger of its own). Of pure ε there is "
            '`DPSurrogate(family="normal", delta=0)` alone. Nothing was released and nothing was charged.'
        )


def check_finite_epsilon(epsilon: float) -> float:
    """ε as a float, if it is positive and finite."""
    number = check_epsilon(epsilon)
    if math.isinf(number):
        raise PrivacyConfigurationError(
            "`epsilon` must be finite. To debug without noise, say so: `noise_multiplier=0, "
            "noise_source=InsecureSeededNoise(seed)`."
        )
    return number
