"""How far privacy noise will move a posterior, before anything is paid: found out on made-up data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pymc_dp.checks import positive, whole
from pymc_dp.evidence.made_up_records import made_up_records
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.compiled import compile as compile_model
from pymc_dp.likelihood.roles import Roles
from pymc_dp.likelihood.simulated import SECRET_WORDS
from pymc_dp.likelihood.sizes import check_sizes
from pymc_dp.privacy.budget import Budget, check_finite_epsilon
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours, neighbours_named
from pymc_dp.privacy.noise import InsecureSeededNoise
from pymc_dp.privacy.plans import Permit
from pymc_dp.progress import quiet_pymc
from pymc_dp.records.curator import Curator
from pymc_dp.records.measurements import measurements_paid_by
from pymc_dp.records.sums import LocalRecords
from pymc_dp.report.tables import as_html, as_text
from pymc_dp.steps.family import price
from pymc_dp.steps.normal import NormalFamily

_CLOSE = 1.05
"""An ε is found when its shift is within this factor of the one wanted: noises differ by more."""
_SAME = 1.01
"""Two ε nearer than this factor are one."""
_STRIDE = 4.0
"""Factor between trials until the ε is between two of them."""
_TRIALS = 20
"""At most six to get it between two ε, then one for each halving in log ε down to :data:`_SAME`, and some to spare."""
_RANGE = 1e-3, 1e3
"""Of ε. Beyond, something else is wrong."""


@dataclass(frozen=True)
class ExpectedPrivacyShift:
    """What noise is to be expected of a run. Shows as a table.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    privacy_shift : float
        How far noise will move the posterior, in its standard deviations per parameter: the median of the runs. A run
        whose draws would not be usable counts as infinite.
    least, most : float
        Of the runs.
    usable : float
        Share of the runs whose draws would be usable.
    labels : tuple of str
        Names of the parameters that the likelihood reads.
    of_parameters : ndarray, shape (d,)
        The medians of each.
    """

    epsilon: float
    delta: float
    privacy_shift: float
    least: float
    most: float
    usable: float
    labels: tuple[str, ...]
    of_parameters: NDArray[np.float64]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and value, in order."""
        rows = [("Budget", f"ε = {self.epsilon:.3g}, δ = {self.delta:.3g}")]
        if self.usable < 1:
            rows.append(
                ("Usable", f"{self.usable:.0%} of the runs; the shift of the others is inf")
            )
        rows += [
            (
                "Privacy shift",
                f"{self.privacy_shift:.2g} posterior sds ({self.least:.2g} to {self.most:.2g})",
            ),
            (
                "Intervals",
                f"about {math.hypot(1, self.privacy_shift):.2g} times as wide as without privacy",
            ),
        ]
        return rows + [
            (label, f"{shift:.2g}")
            for label, shift in zip(self.labels, self.of_parameters, strict=True)
        ]

    def __str__(self) -> str:
        return as_text("Expected privacy shift, on made-up data", self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html("Expected privacy shift, on made-up data", self.rows)


def expected_privacy_shift(
    model: pm.Model | CompiledModel,
    *,
    epsilon: float | None = None,
    shift: float | None = None,
    delta: float | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    truth: Mapping[str, ArrayLike] | None = None,
    records: int | None = None,
    public: Sequence[str] = (),
    unit: Any = None,
    neighbours: str = SUBSTITUTE_ONE.name,
    runs: int = 5,
    random_seed: int = 0,
) -> ExpectedPrivacyShift:
    """How far noise will move a posterior at an ε, or which ε it takes for a privacy shift: costs no budget.

    Outcomes are drawn from the model itself, :class:`~pymc_dp.DPSurrogate` of the normal family asks them as it would ask real ones,
    with several noises, and says how far these may have moved it: in a run without a ledger, whose last query may be by the ℓ2
    mechanism. The real data are never looked at.

    Parameters
    ----------
    model : Model, CompiledModel or bambi.Model
        As for ``pymc_dp.sample``. Of its data only types and numbers of columns are used.
    epsilon, shift : float
        One of them: the budget, or the privacy shift that is wanted, in posterior standard deviations per parameter. An ε
        for a shift is found by bisection, in up to twenty trials with the same noises. If the shift jumps over what is
        wanted, as where runs begin to be usable, it is the least ε that is enough.
    delta : float, optional
        Default: 0.1 / made-up units. Under add-or-remove it has to be given, as for the run.
    data, truth, public
        As for :func:`~pymc_dp.tradeoff`: made-up covariates, parameters to draw outcomes with, and data that are
        public. Say what you expect by `truth`: a draw of a wide prior may be three times off.
    records : int, optional
        How many records to make up. Default: as many as `data` has rows, or, if their number is public, as the model.
    unit, neighbours
        As for ``pymc_dp.sample``.
    runs : int
        How many noises.
    random_seed : int
        Of the made-up data and the noises.

    Returns
    -------
    ExpectedPrivacyShift

    Raises
    ------
    UnsupportedModelError, PrivacyConfigurationError
        If some data cannot be replaced, or the model cannot be sampled privately; if no ε that gives that shift is
        found, with the shifts that were seen.
    """
    if (epsilon is None) == (shift is None):
        raise PrivacyConfigurationError("Give either `epsilon` or `shift`.")
    relation = neighbours_named(neighbours)
    with quiet_pymc():
        compiled = compile_model(model, public=public, unit=unit)
        check_sizes(compiled.model, compiled.roles, relation.public_size)
        n = _number(compiled.roles, data or {}, records, relation)
        rows = made_up_records(
            compiled, data=data or {}, truth=truth or {}, records=n, seed=random_seed
        )
        words = np.full(SECRET_WORDS, random_seed, dtype=np.uint64)
        records_of = LocalRecords(compiled, 1, words=words)
        made_up = records_of.of_data(rows, compiled.roles.unit_of_record)
        family = NormalFamily(compiled, 1.0, "pymc", relation.public_size, rows)
        family.compile()
    delta = Budget(delta=delta, neighbours=neighbours).delta_for(made_up.n_units)
    labels = tuple(family.read.labels)

    @cache
    def shifts(at: float) -> list[tuple[float, NDArray[np.float64]]]:
        """Of every run, over all parameters and of each. A search that is lost claims that noise has moved nothing."""
        found = []
        n_units = made_up.n_units if relation.public_size else None
        paid = price(family, epsilon=at, delta=delta, n_units=n_units)
        for run in range(runs):
            curator = Curator(made_up, InsecureSeededNoise(random_seed + run), relation)
            permit = Permit(run, 0, paid.events)
            measure = measurements_paid_by(permit, paid.whole, curator, paid.option)
            with np.errstate(all="ignore"):
                surrogate = family.search(measure)
            if family.diagnosed(surrogate).usable:
                found.append((surrogate.privacy_shift, surrogate.posterior.privacy_shifts))
            else:
                found.append((math.inf, np.full(len(labels), math.inf)))
        return found

    if epsilon is None:
        epsilon = find_epsilon(
            lambda at: float(np.median([shift for shift, _ in shifts(at)])),
            positive("shift", shift),
        )
    found = shifts(check_finite_epsilon(epsilon))
    all_of_them = [shift for shift, _ in found]
    return ExpectedPrivacyShift(
        epsilon=float(epsilon), delta=delta, privacy_shift=float(np.median(all_of_them)),
        least=min(all_of_them), most=max(all_of_them), usable=float(np.mean(np.isfinite(all_of_them))),
        labels=labels, of_parameters=np.median([each for _, each in found], axis=0),
    )  # fmt: skip


def _number(
    roles: Roles, data: Mapping[str, ArrayLike], records: int | None, relation: Neighbours
) -> int:
    """How many records to make up: a public number."""
    axes = {leaf.name: leaf.axis for leaf in roles.record_data}
    if unknown := sorted(set(data) - set(axes)):
        raise PrivacyConfigurationError(
            f"`data` names {unknown}, which the likelihood does not read. It reads {sorted(axes)}."
        )
    lengths = [np.shape(x)[axes[name]] for name, x in data.items() if np.ndim(x) > axes[name]]
    if records is not None:
        n = whole("records", records, 2)
    elif lengths:
        n = lengths[0]
    elif relation.public_size:
        n = roles.n_records
    else:
        raise PrivacyConfigurationError(
            f'With `neighbours="{relation.name}"` the number of records is private. Give another one: `records=...`.'
        )
    if roles.unit_of_record is not None and (not relation.public_size or n != roles.n_records):
        raise PrivacyConfigurationError(
            "Whose the made-up records are is taken from `unit`, so that there are as many as real ones and their number "
            "is public. Make a model of made-up data of another size in place of that."
        )
    return n


def find_epsilon(shift_at: Callable[[float], float], wanted: float) -> float:
    """The ε at which the shift is `wanted`: bisection in log ε, with the same noises at each.

    Where the shift jumps over what is wanted, the least ε that was seen to be enough.
    """
    seen: dict[float, float] = {}
    too_little, enough, epsilon = 0.0, math.inf, 1.0
    while len(seen) < _TRIALS:
        seen[epsilon] = found = shift_at(epsilon)
        if wanted / _CLOSE <= found <= wanted * _CLOSE:
            return epsilon
        if found > wanted:
            too_little = epsilon
        else:
            enough = epsilon
        if enough < too_little * _SAME:
            return enough
        if too_little == 0:
            epsilon /= _STRIDE
        elif enough == math.inf:
            epsilon *= _STRIDE
        else:
            epsilon = math.sqrt(too_little * enough)
        if not _RANGE[0] <= epsilon <= _RANGE[1]:
            break
    table = ", ".join(f"{at:.3g}: {seen[at]:.2g}" for at in sorted(seen))
    raise PrivacyConfigurationError(
        f"Not found in {len(seen)} trials: an ε at which the privacy shift is {wanted:g}. Shifts that were seen, by ε "
        f"(inf: not usable): {table}. "
        + (
            "A shift so large does not take an ε worth the name: ask for a smaller one."
            if too_little == 0
            else "It takes more records, fewer parameters, or priors that say more."
        )
    )
