"""One data owner: answers requests for noised sums, and keeps its own account."""

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_dp.checks import fraction, whole
from pymc_dp.exceptions import (
    PrivacyBudgetExceeded,
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.federated.agreement import (
    RATIO,
    SIZES,
    SUMS,
    Answer,
    checked,
    parameters_digest,
    query,
)
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.simulated import SECRET_WORDS
from pymc_dp.linalg import Vector
from pymc_dp.privacy.budget import Budget, check_finite_epsilon, refuse_pure
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_multiplier, check_units
from pymc_dp.privacy.plans import Permit, RunPlan
from pymc_dp.records.curator import Curator
from pymc_dp.records.sums import LocalRecords

_ROUNDING = 1 + 1e-9
"""Shares are added up in floating point; together they must not exceed the whole."""


class Owner:
    r"""A data owner's side: a model with its own records, a budget, and a closed list of answers.

    Building one charges its whole plan to its ledger. :meth:`answer` then takes numbers, and gives
    numbers. Noise, and how many answers there are, are the owner's: no request can change them.

    Parameters
    ----------
    epsilon, delta : float
        The owner's budget for everything that it will answer. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    ratios : int
        Iterations of a chain that are answered; 0 for none.
    ratio_share : float
        Part of the budget (of μ²) for these, if there are any; the rest is for a surrogate. 1 for none.
    unit, public, ledger, noise_source, chunk_size, model, compile_kwargs
        As in :class:`~pymc_dp.DPPenalty`. The model's prior is not used: it is the coordinator's, and
        counted once.
    journal : path-like, optional
        A file to which every request and its answer are appended, as one line of JSON, before the answer
        is given away: the owner's own record of all that has left.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be used privately as it stands.
    PrivacyConfigurationError
        If a setting is out of its range.
    PrivacyBudgetExceeded
        If the plan does not fit the ledger.

    Notes
    -----
    **Releases**: for "gradient_sizes" and "information_sizes" a histogram of units' sizes (sensitivity √2, see
    :func:`~pymc_dp.privacy.histogram.noisy_counts`); for "score" a sum of clipped terms (2B), for "information" of terms none
    of which have a negative inner product (√2 B); for "ratio" a sum of clipped log-likelihood ratios (2B). Sums by
    :meth:`Curator.sum <pymc_dp.records.curator.Curator.sum>`.
    **Neighbouring relation**: substitute-one, within the
    owner's own units. **Guarantee**: (ε, δ) for the owner's units, against the coordinator and all other
    owners together, whatever they ask: each answer is a Gaussian release of a function of one unit's record
    and of the request. That of a ratio has a fixed multiplier; the others' come out of one
    :class:`~pymc_dp.privacy.filter.PrivacyFilter`, a filter, by shares that the coordinator asks for (Smith and Thakurta,
    2022, Theorem 1; Yıldırım, 2016, section 3.2.2).
    """

    @refuses_from_outside
    def __init__(
        self,
        *,
        epsilon: float,
        delta: float | None = None,
        ratios: int = 0,
        ratio_share: float = 0.8,
        unit: str | int | ArrayLike | None = None,
        public: Sequence[str] = (),
        ledger: PrivacyLedger | None = None,
        noise_source: NoiseSource | None = None,
        chunk_size: int | None = None,
        model: pm.Model | CompiledModel | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        journal: str | os.PathLike[str] | None = None,
    ):
        ratios = whole("ratios", ratios, 0)
        ratio_share = fraction("ratio_share", ratio_share, one_allowed=True) if ratios else 0.0
        self.epsilon = check_finite_epsilon(epsilon)
        budget = Budget(self.epsilon, delta, ledger=ledger, noise_source=noise_source)
        self._noise, self._secure = budget.noise, budget.secure
        compiled = compile_model(
            model, unit=unit, public=public, chunk_size=chunk_size, compile_kwargs=compile_kwargs
        )
        roles = compiled.roles
        check_units(roles.n_units)
        self.n_units, self._unit = roles.n_units, roles.unit
        self._d = compiled.d
        surrogate = ratio_share < 1
        if surrogate and self._d * (self._d + 1) > MAX_DIMENSION:
            raise UnsupportedModelError(
                f"A surrogate needs the information in all {self._d} parameters, and these are too many. Use "
                "`ratios` and `ratio_share=1`."
            )
        words = self._noise.words(SECRET_WORDS, (0,)) if surrogate else None
        self._curator = Curator(LocalRecords(compiled, int(surrogate), words=words), self._noise)
        self._parameters = parameters_digest(compiled.parameters)

        self.delta = budget.delta_for(roles.n_units)
        refuse_pure("An owner", self.delta)
        z = calibrate_noise(epsilon=self.epsilon, delta=self.delta, releases=1)
        z *= _ROUNDING
        self._kinds = {
            **({"surrogate": 1} if surrogate else {}),
            **({RATIO: ratios} if ratios else {}),
        }
        shares = {"surrogate": 1 - ratio_share, RATIO: ratio_share}
        self._multipliers = {
            kind: z * math.sqrt(count / shares[kind]) for kind, count in self._kinds.items()
        }
        for multiplier in self._multipliers.values():
            check_multiplier(multiplier, self._noise)
        self._filter: PrivacyFilter | None = None
        self._journal = None if journal is None else Path(journal)
        self._given = dict.fromkeys(self._kinds, 0)

        self.ledger = budget.account(self.delta)
        run = f"{secrets.randbits(62):016x}"
        self._plans = {
            kind: RunPlan(
                f"{run}-{kind}", "This owner's part", (Gaussian(self._multipliers[kind]),), 1, count
            )
            for kind, count in self._kinds.items()
        }
        self.ledger.reserve(*self._plans.values())
        for plan in self._plans.values():
            self.ledger.claim(plan)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("An Owner holds private data and is not pickled.")

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release of the plan."""
        return tuple(event for plan in self._plans.values() for event in plan.total)

    @property
    def statement(self) -> str:
        """The promise, for a report."""
        if not self._secure:
            return "NOT PRIVATE: made with insecure noise. The answers carry no guarantee."
        return (
            f"Everything this owner answers is ({self.epsilon:g}, {self.delta:.3g})-differentially private "
            f"with respect to replacing {self._unit} among its {self.n_units:,}, against the coordinator and "
            "all other owners together."
        )

    @refuses_from_outside
    def answer(self, kind: str, request: Mapping[str, Vector]) -> Answer:
        """Answer one request, and charge for it before data are read.

        The same request again is another release, with fresh noise, and is charged again.

        Parameters
        ----------
        kind : {"offer", "gradient_sizes", "information_sizes", "score", "information", "ratio"}
            An offer is free: the number of units, and what is left for a surrogate (a share) and of ratios (their
            number), each with its noise multiplier.
        request : mapping of str to ndarray
            For all but ratios `theta` of shape (d,), `W` of shape (d, d), and `share` of shape (): the part of the
            surrogate's budget to spend on the answer. Then, of shape (), `bins_per_octave` for sizes, the clipping
            `bound` for sums, and for information, its sizes too, `score_bound`, that of the scores it is about. For "ratio":
            `theta` and `proposal` of shape (d,), and `bound` of shape ().

        Returns
        -------
        mapping of str to ndarray
            Under the name of the kind: noisy counts of all bins; a sum of shape (d,), for information (d(d+1),); of
            shape () a ratio.

        Raises
        ------
        PrivacyConfigurationError
            If it is none of these, or not of these shapes, or not finite. Nothing is charged then.
        PrivacyBudgetExceeded
            If what this owner agreed to is used up. No data are read then.
        """
        if kind == "offer":
            return self._offer()
        for_surrogate = [*SIZES, *SUMS] if "surrogate" in self._kinds else []
        answered = ["offer", *for_surrogate, *([RATIO] if RATIO in self._kinds else [])]
        if kind not in answered:
            raise PrivacyConfigurationError(f"This owner answers {answered}, nothing else.")
        values = checked(kind, request, self._d)
        z, permit = self._charge(kind, values)
        try:
            answer = {kind: self._answer(kind, values, z, permit)}
        except PrivacyError:
            raise
        except Exception:  # noqa: BLE001 — its text might quote data
            raise PrivacyError("The answer could not be computed. It stays charged.") from None
        self._write(kind, values, answer)
        return answer

    def _offer(self) -> Answer:
        offer = {"units": float(self.n_units), "parameters": float(self._parameters)}
        left = {kind: float(count - self._given[kind]) for kind, count in self._kinds.items()}
        if self._filter is not None:
            left["surrogate"] = max(0.0, 1 - self._filter.spent)
        return {name: np.asarray(value) for name, value in offer.items()} | {
            kind: np.array([left[kind], z]) for kind, z in self._multipliers.items()
        }

    def _charge(self, kind: str, values: Mapping[str, Vector]) -> tuple[float, Permit]:
        """Multiplier and permit of the answer, which is charged now."""
        if kind == RATIO:
            return self._multipliers[RATIO], self._count(RATIO)
        if self._filter is None:
            self._filter = PrivacyFilter(self._count("surrogate"), self._multipliers["surrogate"])
        share = float(values["share"])
        check_multiplier(self._filter.multiplier(share), self._noise)
        return self._filter.permit(share)

    def _count(self, of: str) -> Permit:
        """Count in the ledger's file that a plan is made use of."""
        plan, used = self._plans[of], self._given[of]
        if used >= plan.iterations:
            raise PrivacyBudgetExceeded(
                f"This owner has agreed to {plan.iterations} answers of kind {of!r}, and has given them."
            )
        self._given[of] += 1
        permit = self.ledger.charge(plan, 0, used)
        # A reproducible source must not give two kinds of answers the same noise.
        return replace(permit, slot=list(self._plans).index(of))

    def _answer(self, kind: str, values: Mapping[str, Vector], z: float, permit: Permit) -> Vector:
        of = query(kind, values)
        if kind in SIZES:
            bins = int(values["bins_per_octave"])
            return self._curator.counts(of, bins, noise_multiplier=z, permit=permit)
        bound = float(values["bound"])
        return self._curator.sum(of, bound=bound, noise_multiplier=z, permit=permit)

    def _write(self, kind: str, request: Answer, answer: Answer) -> None:
        if self._journal is None:
            return
        sides = {"request": request, "answer": answer}
        line = {"kind": kind} | {
            side: {name: np.asarray(value).tolist() for name, value in numbers.items()}
            for side, numbers in sides.items()
        }
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
