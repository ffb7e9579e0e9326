"""The account: what a data set's privacy budget is and what has been spent of it.

Backed by SQLite because chains run in separate processes and analyses in separate scripts, and
because the host restores a step's state before every chain: a count kept in the step alone could
be wound back. What is released stays charged; only what a run that gave up has not released is given
back. No data, and no hash of data, are stored.
"""

import math
import os
import sqlite3

from pymc_dp.checks import check_delta, check_epsilon
from pymc_dp.exceptions import LedgerError, PrivacyBudgetExceeded, PrivacyConfigurationError
from pymc_dp.privacy.account_file import RESTORE, AccountFile, transaction
from pymc_dp.privacy.accounting import composed_epsilon, epsilon_that_fits
from pymc_dp.privacy.events import Event, Gaussian, from_json, to_json
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, neighbours_named
from pymc_dp.privacy.plans import Permit, RunPlan


class PrivacyLedger(AccountFile):
    """One privacy account per sensitive data set.

    Parameters
    ----------
    path : path-like, optional
        The account's file; created if missing. Without one, a private temporary file is used,
        which lives as long as the object that made it.
    epsilon, delta : float, optional
        The total budget. Required to open a new account; when the file exists they may be left
        out, and must agree with it if given. At δ = 0 only pure releases fit: Laplace, and of the ℓ2 mechanism.
    neighbours : {"substitute-one", "add-or-remove"}, optional
        What the budget is about, and with it every run: see :class:`~pymc_dp.steps.run.RunSettings`. Default:
        the file's, or "substitute-one" for a new account.

    Raises
    ------
    LedgerError
        If the file is damaged, not writable, not a ledger, or of a newer version.
    PrivacyConfigurationError
        If the budget is missing, out of range, or not the file's.

    Notes
    -----
    Reservation is atomic across processes (one SQLite transaction). A run's whole cost is
    reserved before its first release, and every iteration is counted in the file before data are
    read for it, so that a crash loses nothing and a restored state cannot release twice. The
    composition is adaptive: later runs may be chosen in the light of earlier results, as long as
    the total stays within (ε, δ) fixed beforehand (a privacy filter; Rogers, Roth, Ullman and
    Vadhan, 2016; for Gaussian releases Smith and Thakurta, 2022; at δ = 0 simple composition is one). For runs that
    sample units, or mix Laplace noise or that of the ℓ2 mechanism with other noise, no such theorem is known: fix their
    settings before the first of them.

    A file is created whole or not at all, and one of zero bytes (a full disk, a power cut) is refused:
    it may have held an account.

    Examples
    --------
    >>> ledger = PrivacyLedger(epsilon=4.0, delta=1e-6)
    >>> ledger.remaining()
    4.0
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        neighbours: str | None = None,
    ):
        super().__init__(path)
        relation = None if neighbours is None else neighbours_named(neighbours).name
        is_new = not self.path.exists()
        if is_new and (epsilon is None or delta is None):
            raise PrivacyConfigurationError(
                "A new ledger needs its total budget: PrivacyLedger(path, epsilon=..., delta=...)."
            )
        budget = (
            None if epsilon is None else check_epsilon(epsilon),
            None if delta is None else check_delta(delta, zero_allowed=True),
        )
        if is_new:
            self._create_file(*budget, relation or SUBSTITUTE_ONE.name)
        elif self.path.is_file() and self.path.stat().st_size == 0:
            raise LedgerError(
                f"{self.path} is empty. If it held an account, restore it from a backup: a budget whose "
                "spending is unknown must count as spent. If it never did, delete it."
            )
        with self._open() as db:
            self._check_format(db)
            self._write_ahead(db)
            account = self._account(db)
        if len(account) != 1:
            raise LedgerError(f"{self.path} is damaged: it has no budget. {RESTORE}")
        ((self.epsilon, self.delta, self.neighbours),) = account
        if budget[0] not in (None, self.epsilon) or budget[1] not in (None, self.delta):
            raise PrivacyConfigurationError(
                f"The ledger {self.path.name} has the budget ε = {self.epsilon:g}, "
                f"δ = {self.delta:g}, not the one given. Leave `epsilon` and `delta` out to open it."
            )
        if relation is not None:
            self.check_neighbours(relation)

    def __repr__(self) -> str:
        return (
            f"PrivacyLedger({str(self.path)!r}, epsilon={self.epsilon:g}, delta={self.delta:g}, "
            f"neighbours={self.neighbours!r})"
        )

    def check_neighbours(self, neighbours: str) -> None:
        """Refuse what is about other neighbours than the account.

        Parameters
        ----------
        neighbours : str
            Name of a run's relation.

        Raises
        ------
        PrivacyConfigurationError
            If it is. Nothing has been charged.
        """
        if neighbours != self.neighbours:
            raise PrivacyConfigurationError(
                f"This account is for {self.neighbours} neighbours, not {neighbours}: an ε of the one is no ε "
                f'of the other, and they do not add up. Give the run `neighbours="{self.neighbours}"`, or a '
                "ledger of its own, and count both when you say what all runs cost together. Nothing was "
                "released and nothing was charged."
            )

    # -- what a user asks -------------------------------------------------------------------

    def spent(self) -> float:
        """Reserved so far: ε at the account's δ, rounded up."""
        return composed_epsilon(self.events(), self.delta)

    def remaining(self) -> float:
        """Largest ε, at the account's δ, that another run may have.

        More than the budget's ε minus :meth:`spent`: releases compose better than their ε add up. It is
        what fits a run of Gaussian releases, or at δ = 0 of pure ones; rounded down.
        """
        return epsilon_that_fits(self.events(), self.epsilon, self.delta)

    def events(self) -> tuple[Event, ...]:
        """Every release reserved so far, in order."""
        return tuple(event for plan in self.runs() for event in plan.total)

    def runs(self) -> list[RunPlan]:
        """Every run reserved so far, in order."""
        with self._open() as db:
            return self._runs(db)

    # -- what a step does -------------------------------------------------------------------

    def reserve(self, *plans: RunPlan) -> None:
        """Charge whole runs, before any data are read. Doing it again costs nothing.

        Parameters
        ----------
        *plans : RunPlan
            All of them or none.

        Raises
        ------
        PrivacyBudgetExceeded
            If they do not fit; the account is as it was.
        PrivacyConfigurationError
            If they are about other neighbours than the account.
        """
        for plan in plans:
            self.check_neighbours(plan.neighbours)
        with self._open(durable=True) as db, transaction(db):
            earlier = self._runs(db)
            known = {plan.run for plan in earlier} & {plan.run for plan in plans}
            if known and not set(plans) <= set(earlier):
                raise LedgerError(
                    "The ledger holds another plan for this run. Build the step again."
                )
            if known:
                return
            events = [e for plan in earlier for e in plan.total]
            cost = composed_epsilon([*events, *(e for p in plans for e in p.total)], self.delta)
            if math.isinf(cost) and self.delta == 0 and math.isfinite(self.epsilon):
                raise PrivacyBudgetExceeded(
                    f"{plans[0].description} is not of pure ε, and this account has δ = 0: its releases have no ε then. Runs of "
                    "`delta=0` fit, or a ledger of its own. Nothing was released and nothing was charged."
                )
            if not cost <= self.epsilon:
                spent = composed_epsilon(events, self.delta)
                fits = epsilon_that_fits(events, self.epsilon, self.delta)
                raise PrivacyBudgetExceeded(
                    f"{plans[0].description} would bring the account to ε = {cost:.4g} at "
                    f"δ = {self.delta:g}; its budget is ε = {self.epsilon:g}, of which "
                    f"{spent:.4g} is spent. {what_fits(fits)} Nothing was released and nothing was charged."
                )
            for plan in plans:
                db.execute(
                    "INSERT INTO runs (run, description, events, chains, iterations) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (
                        plan.run,
                        plan.description,
                        to_json(plan.events),
                        plan.chains,
                        plan.iterations,
                    ),
                )

    def claim(self, plan: RunPlan) -> int:
        """Take the next free slot of a reserved run: one per chain. One that releases nothing is never used up.

        Parameters
        ----------
        plan : RunPlan
            As it was reserved.

        Returns
        -------
        int
            The slot.

        Raises
        ------
        PrivacyBudgetExceeded
            If every slot is taken.
        """
        with self._open(durable=True) as db, transaction(db):
            if plan not in self._runs(db):
                raise LedgerError(
                    "The ledger has not reserved this run, or with another plan. Build the step "
                    "again."
                )
            (taken,) = db.execute(
                "SELECT COUNT(*) FROM slots WHERE run = ?", (plan.run,)
            ).fetchone()
            if taken >= plan.chains and plan.events:
                raise PrivacyBudgetExceeded(
                    f"{plan.description} was planned and paid for {plan.chains} chain(s), and all "
                    "of them have started. A step serves one call of `pm.sample`: build a new one, "
                    "with `chains` set to the number you will run."
                )
            db.execute("INSERT INTO slots VALUES (?, ?, 0)", (plan.run, taken))
        return int(taken) % plan.chains

    def charge(self, plan: RunPlan, slot: int, used: int) -> Permit:
        """Count iteration number `used` of a slot, in the file; hand out its permit.

        Parameters
        ----------
        plan : RunPlan
            As it was reserved.
        slot : int
            From :meth:`claim`.
        used : int
            Iterations of the slot before this one.

        Returns
        -------
        Permit
            For the releases of one iteration.

        Raises
        ------
        PrivacyBudgetExceeded
            If the slot has run its planned number of iterations, or if the iteration has been
            counted already: a stored sampler state that was continued once cannot be again.
        """
        if used >= plan.iterations:
            raise PrivacyBudgetExceeded(
                f"{plan.description} was planned and paid for {plan.iterations} iterations per "
                "chain (tuning included), and they are used up. Plan more `draws` beforehand, or "
                "build a new step."
            )
        if not plan.events:
            return Permit(slot, used, ())
        with self._open() as db:
            counted = db.execute(
                "UPDATE slots SET used = used + 1 WHERE run = ? AND slot = ? AND used = ? AND EXISTS "
                "(SELECT 1 FROM runs WHERE run = slots.run AND events = ? AND iterations = ?)",
                (plan.run, slot, used, to_json(plan.events), plan.iterations),
            ).rowcount
        if counted != 1:
            raise PrivacyBudgetExceeded(
                "This sampler state has been continued before: what it paid for is released. "
                "Continue from the latest state, or build a new step."
            )
        return Permit(slot, used, plan.events)

    def settle(self, plan: RunPlan, released: tuple[Event, ...]) -> bool:
        """Close a run that is over, at what it has released; the rest is given back.

        A closed run hands out no more permits. Which run is closed, and at what, must be a function of
        releases: then it is a choice of later releases like any other, and a filter allows it. None is
        known for accounts with other than Gaussian releases, unless δ is 0 and so all are pure, and there nothing is given back.

        Parameters
        ----------
        plan : RunPlan
            As it was reserved.
        released : tuple of Event
            What the run has released in all. Nothing may be left out: nobody can check it here but for
            this, that a run of which no iteration is counted is the only one that may have released none,
            and, if anything can be given back, that it is not more than was reserved.

        Returns
        -------
        bool
            Whether the rest was given back.

        Raises
        ------
        LedgerError
            If the run was not reserved like this, or if `released` cannot be all, or is more.
        """
        with self._open(durable=True) as db, transaction(db):
            runs = self._runs(db)
            if plan not in runs:
                raise LedgerError("The ledger has not reserved this run, or with another plan.")
            (used,) = db.execute(
                "SELECT COALESCE(SUM(used), 0) FROM slots WHERE run = ?", (plan.run,)
            ).fetchone()
            filtered = self.delta == 0 or all(
                isinstance(e, Gaussian) for p in runs for e in p.events
            )
            reserved = composed_epsilon(plan.total, self.delta) if filtered else math.inf
            if (used and not released) or composed_epsilon(released, self.delta) > reserved:
                raise LedgerError(
                    "A run can only be settled at what it has released, and at no more than it has reserved."
                )
            if filtered:
                db.execute(
                    "UPDATE runs SET events = ?, chains = 1, iterations = 1 WHERE run = ?",
                    (to_json(released), plan.run),
                )
        return filtered

    def _runs(self, db: sqlite3.Connection) -> list[RunPlan]:
        rows = db.execute(
            "SELECT run, description, events, chains, iterations FROM runs ORDER BY rowid"
        )
        return [
            RunPlan(run, what, from_json(e), k, n, self.neighbours) for run, what, e, k, n in rows
        ]


def what_fits(epsilon: float) -> str:
    """What is left of an account, in a sentence. The number is rounded down, so that it does fit."""
    if epsilon == 0:
        return "Nothing more fits."
    digits = 3 - math.floor(math.log10(epsilon))
    return f"A run with `epsilon={math.floor(epsilon * 10**digits) / 10**digits:.{max(digits, 0)}f}` still fits."
