"""What a run will release, and what one iteration of it may."""

from dataclasses import dataclass, field, replace

from pymc_dp.exceptions import PrivacyBudgetExceeded
from pymc_dp.privacy.events import Event, times
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE


@dataclass(frozen=True)
class RunPlan:
    """What one run will release, fixed before it starts.

    Parameters
    ----------
    run : str
        Public random name of the run.
    description : str
        For people: which step, on what.
    events : tuple of Event
        The releases of one iteration.
    chains : int
        Number of chains, each of which claims one slot.
    iterations : int
        Iterations of one chain, tuning included.
    neighbours : str
        Name of the relation that the events' multipliers are for.
    """

    run: str
    description: str
    events: tuple[Event, ...]
    chains: int
    iterations: int
    neighbours: str = SUBSTITUTE_ONE.name

    @property
    def total(self) -> tuple[Event, ...]:
        """Every release of the run."""
        return times(self.events, self.chains * self.iterations)


@dataclass
class Permit:
    """The paid-for releases of one iteration. Each can be taken once.

    Parameters
    ----------
    slot, iteration : int
        Public address of the iteration in its run.
    events : tuple of Event
        The releases that were charged.
    """

    slot: int
    iteration: int
    events: tuple[Event, ...]
    _left: dict[Event, int] = field(init=False, repr=False, compare=False)
    _taken: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._left = {}
        for e in self.events:
            one = replace(e, count=1)
            self._left[one] = self._left.get(one, 0) + e.count

    def take(self, release: Event) -> tuple[int, int, int]:
        """Use up one release of this kind and noise (of count 1); return its address.

        Raises
        ------
        PrivacyBudgetExceeded
            If no such release is left in the permit.
        """
        left = self._left.get(release, 0)
        if left < 1:
            raise PrivacyBudgetExceeded(
                f"The release {release} is not, or no longer, part of what this iteration has "
                "paid for."
            )
        self._left[release] = left - 1
        self._taken += 1
        return self.slot, self.iteration, self._taken - 1
