"""One data owner: answers requests for noised sums, and keeps its own account."""

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_dp.anchor.matrices import norms
from pymc_dp.anchor.model import Expansion
from pymc_dp.checks import check_delta, check_epsilon, fraction, whole
from pymc_dp.exceptions import (
    PrivacyBudgetExceeded,
    PrivacyConfigurationError,
    PrivacyError,
    UnsupportedModelError,
    refuses_from_outside,
)
from pymc_dp.federated.agreement import (
    BINS_PER_OCTAVE,
    Answer,
    Releases,
    Vector,
    divide,
    parameters_digest,
)
from pymc_dp.likelihood.compiled import CompiledModel, compile_model
from pymc_dp.privacy.calibration import calibrate_noise
from pymc_dp.privacy.clipping import MAX_DIMENSION
from pymc_dp.privacy.events import Event, times
from pymc_dp.privacy.histogram import noisy_counts
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import NoiseSource, SecureNoise
from pymc_dp.privacy.noisy_sum import check_bound, check_multiplier, check_units, noisy_sum
from pymc_dp.privacy.plans import Permit, RunPlan


class Owner:
    r"""A data owner's side: a model with its own records, a budget, and a closed list of answers.

    Building one charges its whole plan to its ledger. :meth:`answer` then takes numbers, and gives
    numbers. Noise, and how many answers there are, are the owner's: no request can change them.

    Parameters
    ----------
    epsilon, delta : float
        The owner's budget for everything that it will answer. `delta` defaults to the ledger's, or to
        0.1 / units without one.
    rounds : int
        Rounds of the search for a surrogate that are answered; 0 for none.
    ratios : int
        Iterations of a chain that are answered; 0 for none.
    ratio_share : float
        Part of the budget (of μ²) for the chain, if there are both.
    unit, public, ledger, noise, chunk_size, model, compile_kwargs
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
    **Releases**: for "search_sizes" and "anchor_sizes", two histograms of units' sizes (sensitivity √2, see
    :class:`~pymc_dp.privacy.histogram.PrivateHistogram`); for "search" and "anchor", a sum of clipped
    gradients and one of clipped Hessians (2C), and for "anchor" two counts of clipped units as sums of ±1/2
    (√2); for "ratio", a sum of clipped log-likelihood ratios (2B). Sums by
    :func:`~pymc_dp.privacy.noisy_sum.noisy_sum`. **Neighbouring relation**: substitute-one, within the
    owner's own units. **Guarantee**: (ε, δ) for the owner's units, against the coordinator and all other
    owners together, whatever they ask: each answer is a Gaussian release of fixed multiplier of a function of
    one unit's record and of the request (Dong, Roth and Su, 2022; Yıldırım, 2016, section 3.2.2).
    """

    @refuses_from_outside
    def __init__(
        self,
        *,
        epsilon: float,
        delta: float | None = None,
        rounds: int = 10,
        ratios: int = 0,
        ratio_share: float = 0.8,
        unit: str | int | ArrayLike | None = None,
        public: Sequence[str] = (),
        ledger: PrivacyLedger | None = None,
        noise: NoiseSource | None = None,
        chunk_size: int | None = None,
        model: pm.Model | CompiledModel | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        journal: str | os.PathLike[str] | None = None,
    ):
        rounds, ratios = whole("rounds", rounds, 0), whole("ratios", ratios, 0)
        if not rounds and not ratios:
            raise PrivacyConfigurationError("Nothing to answer: give `rounds`, `ratios`, or both.")
        ratio_share = fraction("ratio_share", ratio_share)
        if math.isinf(check_epsilon(epsilon)):
            raise PrivacyConfigurationError("`epsilon` must be finite.")
        self._noise: NoiseSource = SecureNoise() if noise is None else noise
        self._secure = type(self._noise) is SecureNoise
        if ledger is not None and not isinstance(ledger, PrivacyLedger):
            raise PrivacyConfigurationError(
                f"`ledger` must be a PrivacyLedger. Found {type(ledger).__name__}: "
                "PrivacyLedger(path) opens the account in a file."
            )
        if ledger is not None and not self._secure:
            raise PrivacyConfigurationError(
                "A ledger accounts for real guarantees; insecure noise has none."
            )
        compiled = compile_model(
            model, unit=unit, public=public, chunk_size=chunk_size, compile_kwargs=compile_kwargs
        )
        roles = compiled.roles
        check_units(roles.n_units)
        self.n_units, self._unit = roles.n_units, roles.unit
        self._d = compiled.d
        if rounds and self._d * (self._d + 1) // 2 > MAX_DIMENSION:
            raise UnsupportedModelError(
                f"A surrogate needs the Hessian in all {self._d} parameters, and these are too many. Use "
                "`rounds=0` and `ratios`."
            )
        self._likelihood = compiled.likelihood
        self._expansion = Expansion(compiled) if rounds else None
        self._parameters = parameters_digest(compiled.parameters)

        if delta is None:
            delta = 0.1 / roles.n_units if ledger is None else ledger.delta
        self.epsilon, self.delta = float(epsilon), check_delta(delta)
        z = calibrate_noise(epsilon=epsilon, delta=self.delta, releases=1)
        self._releases = divide(z, rounds, ratios, ratio_share)
        for releases in self._releases.values():
            for multiplier in releases.multipliers:
                check_multiplier(multiplier, self._noise)
        self._journal = None if journal is None else Path(journal)
        self._given = dict.fromkeys(self._releases, 0)

        self.ledger = ledger or PrivacyLedger(epsilon=math.inf, delta=self.delta)
        run = f"{secrets.randbits(62):016x}"
        self._plans = {
            kind: RunPlan(f"{run}-{kind}", "This owner's part", releases.events, 1, releases.count)
            for kind, releases in self._releases.items()
        }
        self.ledger.reserve(*self._plans.values())
        for plan in self._plans.values():
            self.ledger.claim(plan)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("An Owner holds private data and is not pickled.")

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release of the plan."""
        return tuple(e for r in self._releases.values() for e in times(r.events, r.count))

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
        kind : {"offer", "search_sizes", "search", "anchor_sizes", "anchor", "ratio"}
            An offer is free: the number of units, and of each kind how many answers are left, and their
            noise.
        request : mapping of str to ndarray
            For sizes: `theta` of shape (d,) and `W` of shape (d, d). For "search" and "anchor" `bounds`
            of shape (2,) too: clipping bounds of gradients and of Hessians. For "ratio": `theta` and
            `proposal` of shape (d,), and `bound` of shape ().

        Returns
        -------
        mapping of str to ndarray
            For sizes: `gradients` and `hessians`, noisy counts. For "search" and "anchor": `gradient` of
            shape (d,) and `hessian` of shape (d(d+1)/2,), and for "anchor" `clipped` of shape (2,): units
            with a clipped gradient, and with a clipped Hessian, minus half of all. For "ratio": `ratio`
            of shape ().

        Raises
        ------
        PrivacyConfigurationError
            If it is none of these, or not of these shapes, or not finite. Nothing is charged then.
        PrivacyBudgetExceeded
            If what this owner agreed to is used up. No data are read then.
        """
        if kind == "offer":
            return self._offer()
        releases = self._releases.get(kind)
        if releases is None:
            raise PrivacyConfigurationError(
                f"This owner answers {['offer', *self._releases]}, nothing else."
            )
        values = self._checked(kind, request)
        permit = self._charge(kind)
        compute: dict[str, Callable[..., Answer]] = {
            "search": self._terms,
            "anchor": self._counted_terms,
            "ratio": self._ratio,
        } | {k: partial(self._sizes, bins_per_octave=bins) for k, bins in BINS_PER_OCTAVE.items()}
        try:
            answer = compute[kind](values, releases, permit)
        except PrivacyError:
            raise
        except Exception:  # noqa: BLE001 — its text might quote data
            raise PrivacyError("The answer could not be computed. It stays charged.") from None
        self._write(kind, values, answer)
        return answer

    def _offer(self) -> Answer:
        offer = {"units": float(self.n_units), "parameters": float(self._parameters)}
        return {name: np.asarray(value) for name, value in offer.items()} | {
            kind: np.array([r.count - self._given[kind], *r.multipliers])
            for kind, r in self._releases.items()
        }

    def _checked(self, kind: str, request: Mapping[str, Vector]) -> dict[str, Vector]:
        """The request's numbers, as private copies of known shapes."""
        d = self._d
        shapes: dict[str, tuple[int, ...]] = {"theta": (d,), "W": (d, d)}
        if kind == "ratio":
            shapes = {"theta": (d,), "proposal": (d,), "bound": ()}
        elif kind in ("search", "anchor"):
            shapes["bounds"] = (2,)
        values = {}
        for name in shapes:
            value = request.get(name)
            if (
                set(request) != set(shapes)
                or not isinstance(value, np.ndarray | np.float64)
                or value.dtype != np.float64
                or value.shape != shapes[name]
                or not np.isfinite(value).all()
            ):
                raise PrivacyConfigurationError(
                    f"A {kind!r} request consists of finite float64 arrays of shapes {shapes}."
                )
            values[name] = np.array(value)
        for bound in np.ravel(values.get("bounds", values.get("bound", 1.0))):
            check_bound(float(bound))
        return values

    def _charge(self, kind: str) -> Permit:
        plan, used = self._plans[kind], self._given[kind]
        if used >= plan.iterations:
            raise PrivacyBudgetExceeded(
                f"This owner has agreed to {plan.iterations} answers of kind {kind!r}, and has given them."
            )
        self._given[kind] += 1
        permit = self.ledger.charge(plan, 0, used)
        # A reproducible source must not give two kinds of answers the same noise.
        return replace(permit, slot=list(self._plans).index(kind))

    def _sizes(
        self, at: dict[str, Vector], releases: Releases, permit: Permit, *, bins_per_octave: int
    ) -> Answer:
        expansion = self._of_surrogate()
        chunks: dict[str, Callable[..., Any]] = {
            "gradients": expansion.gradients,
            "hessians": expansion.hessians,
        }
        return {
            name: noisy_counts(
                map(norms, terms(at["theta"], at["W"])),
                bins_per_octave=bins_per_octave, noise_multiplier=z, permit=permit, noise=self._noise,
            )
            for (name, terms), z in zip(chunks.items(), releases.multipliers, strict=True)
        }  # fmt: skip

    def _terms(self, at: dict[str, Vector], releases: Releases, permit: Permit) -> Answer:
        expansion = self._of_surrogate()
        parts = {
            "gradient": (expansion.gradients, self._d),
            "hessian": (expansion.hessians, self._d * (self._d + 1) // 2),
        }
        return {
            name: noisy_sum(
                terms(at["theta"], at["W"]),
                dimension=size, bound=float(C), noise_multiplier=z, permit=permit, noise=self._noise,
            )
            for (name, (terms, size)), C, z in zip(
                parts.items(), at["bounds"], releases.multipliers[:2], strict=True
            )
        }  # fmt: skip

    def _counted_terms(self, at: dict[str, Vector], releases: Releases, permit: Permit) -> Answer:
        def marks() -> Any:
            expansion = self._of_surrogate()
            chunks = expansion.gradients, expansion.hessians
            sizes = [np.concatenate([*map(norms, f(at["theta"], at["W"]))]) for f in chunks]
            # ±1/2 rather than 0 and 1: half the sensitivity. What is not finite becomes 0, and counts.
            yield np.where(np.stack(sizes, axis=1) <= at["bounds"], -0.5, 0.5)

        answer = self._terms(at, releases, permit)
        clipped = noisy_sum(
            marks(), dimension=2, bound=math.sqrt(0.5), noise_multiplier=releases.multipliers[2],
            permit=permit, noise=self._noise,
        )  # fmt: skip
        return {**answer, "clipped": clipped}

    def _ratio(self, at: dict[str, Vector], releases: Releases, permit: Permit) -> Answer:
        def ratios() -> Any:
            before, after = self._likelihood(at["theta"]), self._likelihood(at["proposal"])
            yield after - before

        (z,) = releases.multipliers
        bound = float(at["bound"])
        ratio = noisy_sum(
            ratios(), bound=bound, noise_multiplier=z, permit=permit, noise=self._noise
        )
        return {"ratio": ratio}

    def _of_surrogate(self) -> Expansion:
        if self._expansion is None:
            raise RuntimeError("No rounds were agreed to.")
        return self._expansion

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
