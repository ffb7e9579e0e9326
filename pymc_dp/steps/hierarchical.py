"""The hierarchical surrogate: a normal law of shared parameters and of many groups' effects, times the exact prior."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pymc_dp.diagnostics import Diagnostics, GroupDiagnostics, Note
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.likelihood.compilation import compiling
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.likelihood.made_up import made_up_rows
from pymc_dp.linalg import Vector
from pymc_dp.records.design import PublicDesign
from pymc_dp.records.measurements import Measurements
from pymc_dp.steps.family import Drawn, say, stage
from pymc_dp.surrogate.hierarchical.draws import LawModel, effects_of
from pymc_dp.surrogate.hierarchical.fit import (
    LOST,
    SETTINGS,
    GroupPosterior,
    SearchLost,
    fit_hierarchical,
)

GROUPS_FROM = 30
"""Parameters from which on a model with groups is looked at as one. With fewer, Hessians in all of them are
cheap, and nothing need be assumed of groups."""
MOST_COMMON = 60
"""Parameters that all records share, at most: their Hessian is as for a model without groups."""
MOST_REST = 90
"""Parameters that are not normal effects, at most: their law is found as that of a model without groups."""
_SEED = 1
"""Of the draws: they are computed from released numbers, and anybody may do it again."""
_MADE_UP, _PAIRS, _OUTCOMES = 256, 8, 8
"""Records, pairs of places, and outcomes of each record there, by which :func:`attenuation` is known: where it is 0, to a twentieth in models that were tried."""
_ATTENUATED = 0.25
"""Of what a score seems to tell, the part that it does not, at most. It is -.01 to .05 in all of groups' benchmark and six models of real data, at ε = 1 and 3, and of discriminations of a test whose
persons are groups .5 to .7 there and .3 to .4 at ε = 20 (three data sets): these are 10 exact sds off at ε = 1 and 3 (`benchmarks/item_response.py`). With half as much runs are judged alike, with twice
as much those of ε = 20 are not found."""
_PRIOR = 0.8
"""Of a group's prior variance, this much is left of one of which nothing was learnt."""


def has_groups(compiled: CompiledModel) -> bool:
    """Whether a model is one of many groups, of which every record is in one, in one of each kind, or in a pair.

    Decided by the graph alone, before anything is spent.
    """
    if compiled.d <= GROUPS_FROM or compiled.cut is None:
        return False
    cut = compiled.cut
    in_groups = sum(groups * columns for groups, columns in cut.shapes)
    return cut.p <= MOST_COMMON and in_groups > cut.p


def groups_are_normal(compiled: CompiledModel) -> bool:
    """Whether every table of a model that :func:`has_groups` has effects that are normal given the rest.

    Others, as of a sum of zero or along a path, are searched where all is highest together: under a scale of their own that is where it is 0.
    """
    if compiled.cut is None:
        return False
    with compiling():
        return all(effects.variables for effects in effects_of(compiled.parameters, compiled.cut))


def law_model(compiled: CompiledModel) -> LawModel:
    """The law's density of a model that :func:`has_groups`; compiles, and reads no records.

    Raises
    ------
    UnsupportedModelError
        If too many parameters are not normal effects.
    """
    cut = compiled.cut
    if cut is None:
        raise RuntimeError("The model has no groups.")
    with compiling():
        law = LawModel(compiled.parameters, cut)
    if law.n_rest > MOST_REST:
        raise UnsupportedModelError(
            f"Groups are sampled where their effects are normal given the rest, group by group, as in `pm.Normal('a', mu, tau, "
            f"dims='group')` or `pm.MvNormal('a', mu, chol=chol, dims=('group', 'effect'))`. Of the parameters, {law.n_rest} are not: effects "
            "along a path (`GaussianRandomWalk`), or of another law. Nothing was spent."
        )
    return law


class HierarchicalFamily:
    """A normal law whose information is sparse: parameters that all records share, and groups' effects.

    Parameters
    ----------
    compiled : CompiledModel
        For which :func:`has_groups`.
    tempering : float
        T.
    nuts_sampler : str
        Who draws from law times prior.
    """

    asks: Mapping[str, Any] = {"local": True, "scores": True}

    def __init__(self, compiled: CompiledModel, tempering: float, nuts_sampler: str):
        self._compiled, self._tempering, self._nuts_sampler = compiled, tempering, nuts_sampler
        self.surrogate: GroupPosterior | None = None
        self.finish: Callable[[], Drawn] | None = None

    def last_sum(self, mu: float, n_units: int | None) -> None:
        """See :class:`~pymc_dp.steps.family.Family`: there is none."""

    def compile(self) -> None:
        """See :class:`~pymc_dp.steps.family.Family`."""
        self._law = law_model(self._compiled)

    def draw(self, measure: Measurements, draws: int, chains: int) -> Drawn:
        """See :class:`~pymc_dp.steps.family.Family`. Where the search is lost, the draws are the prior's."""
        law = self._law
        try:
            self.surrogate = fit_hierarchical(measure, law, self._tempering, say)
            if (_prior_parts(self.surrogate) > _PRIOR).all():
                raise SearchLost("next to nothing was learnt of any parameter")
            diagnostics = _judged(self.surrogate, law, attenuation(self._compiled, law))
        except LOST as lost:
            law.reset()
            self.surrogate = None
            diagnostics = _lost(lost)
        stage("drawing from what was released")
        drawn = law.sample(draws, chains, _SEED, nuts_sampler=self._nuts_sampler)
        return Drawn(drawn, diagnostics)


def _lost(why: Exception) -> Diagnostics:
    said = why if isinstance(why, SearchLost) else "next to nothing was learnt"
    text = (
        f"The private search for groups did not arrive: {said}. The draws are the prior's, and what was not spent "
        "is not charged. It takes more records, a larger `epsilon`, or priors that say more."
    )
    return Diagnostics(family="hierarchical", prior_dominated=("all",), notes=(Note("lost", text),))


def attenuation(compiled: CompiledModel, law: LawModel) -> Vector:
    r"""Part of what a unit's scores z seem to tell of each of its numbers that they do not, as groups are not known.

    At a place θ they tell of parameters θ' by :math:`E_\theta[z(\theta) z(\theta')]`, for which a law of θ takes
    :math:`E_\theta[z(\theta)^2]`. Of covariates times residuals both are one; where an effect multiplies a parameter it is what two draws of
    the effect have in common, as of a regressor with errors (Fuller, *Measurement error models*, 1987).

    Parameters
    ----------
    compiled : CompiledModel
    law : LawModel
        Of which θ and θ' are draws.

    Returns
    -------
    ndarray, shape (q,)
        Medians over made-up records: a function of released numbers and of the model. Below 0 by chance.
    """
    of, rng = compiled.local, np.random.default_rng(_SEED)
    if of is None or compiled.local_simulated is None:
        return np.zeros(0)
    rows = made_up_rows(compiled.roles.record_data, _MADE_UP, rng)
    for k, x in enumerate(rows):  # of all groups, not of the first few
        others = of.used_rows([*rows[:k], np.zeros_like(x), *rows[k + 1 :]])
        for use, was, there in zip(law.shape.uses, of.used_rows(rows), others, strict=True):
            if x.dtype.kind in "iu" and (was != there).any():
                rows[k] = rng.integers(law.shape.tables[use][0], size=x.shape).astype(x.dtype)
    made_up = compiled.likelihood.of_data(rows)
    design = PublicDesign(compiled.local_simulated.of(made_up, of.of(made_up)), _MADE_UP)
    both, own = np.zeros((_MADE_UP, of.width)), np.zeros((_MADE_UP, of.width))
    with np.errstate(all="ignore"):
        for k in range(_PAIRS):
            places = law.drawn(rng, 2)
            chunks = list(design.scores(places[0], places, k, _OUTCOMES))
            weights = np.concatenate([w for w, _ in chunks], axis=1)
            here, there = (np.concatenate([z[j] for _, z in chunks], axis=1) for j in (0, 1))
            both += np.einsum("kn,knd,knd->nd", weights, here, there)
            own += np.einsum("kn,knd,knd->nd", weights, here, here)
        lost = 1 - both / own
    return np.array([np.median(x[np.isfinite(x)]) if np.isfinite(x).any() else 0.0 for x in lost.T])


def _judged(found: GroupPosterior, law: LawModel, attenuated: Vector) -> Diagnostics:
    """Shifts of groups, from the least to the most disturbed quarter, and of what all records share."""
    common, *tables = law.shape.parts(found.privacy_shifts)
    shared = common if len(common) else found.privacy_shifts
    groups = []
    informations = law.shape.parts(found.law.J.diagonal)[1:]
    for table, information in zip(tables, informations, strict=True):
        by_size = table[np.argsort(information[:, 0])]
        quarter = max(len(table) // 4, 1)
        groups.append(
            GroupDiagnostics(
                number=len(table),
                privacy_shift=float(np.median(table)),
                privacy_shift_largest=float(np.median(by_size[-quarter:])),
                privacy_shift_smallest=float(np.median(by_size[:quarter])),
            )
        )
    notes, unseen = _notes(found, law), int((attenuated > _ATTENUATED).sum())
    if unseen:
        notes.insert(0, Note("model", _MULTIPLIED.format(unseen, len(attenuated))))
    arrived = found.doubt <= SETTINGS.lost
    if not arrived:
        notes.insert(0, Note("lost", _DOUBTED.format(found.doubt)))
    return Diagnostics(
        usable=arrived and not unseen,
        family="hierarchical",
        privacy_shift=math.sqrt(float(np.mean(shared**2))),
        queries=found.evaluations,
        groups=tuple(groups),
        notes=tuple(notes),
    )


_DOUBTED = (
    "Of what all records share too little was learnt: by the draws' own intervals a record's log-likelihood may be off by {:.2f} nats, which is too far "
    "for a normal law. It takes more records, a larger `epsilon`, or priors that say more."
)
_MULTIPLIED = (
    "Of {} of the {} numbers that a record reads, effects of groups decide what it tells, as abilities do of a test's discriminations, and noise "
    "hides the effects: their draws are wrong. If each group is a person, `pymc_dp.integrate_out` takes the effects out; "
    "otherwise it takes more records in each, or a larger `epsilon`."
)


def _prior_parts(found: GroupPosterior) -> Vector:
    """Of the prior's variance of every entry of ψ, the part that is left, shape (n,)."""
    return 1 / (1 + np.maximum(found.law.K.diagonal, 0.0) * found.mode.prior_sds**2)


def _notes(found: GroupPosterior, law: LawModel) -> list[Note]:
    notes = []
    kept = _prior_parts(found)
    for k, (table, names) in enumerate(
        zip(law.shape.parts(kept)[1:], law.table_names, strict=True)
    ):
        unknown = int((table > _PRIOR).all(axis=1).sum())
        if unknown:
            notes.append(
                Note(
                    "prior_dominated",
                    f"Of {unknown} of the {len(table)} groups of {names or f'table {k}'} next to nothing was learnt: their "
                    "draws are what the other groups say of any group. A larger `epsilon`, or more records in "
                    "each, would help; if each is a person, `pymc_dp.integrate_out` tells more of all others.",
                )
            )
    unknown = int((law.shape.parts(kept)[0] > _PRIOR).sum())
    if unknown:
        notes.append(
            Note(
                "prior_dominated",
                f"Of {unknown} of the {law.shape.p} numbers that all records share next to nothing was learnt: their draws are "
                "the prior's. A larger `epsilon`, or more records, would help.",
            )
        )
    common = law.shape.parts(found.privacy_shifts)[0]
    if len(common) and float(np.mean(common**2)) > 1:
        notes.append(
            Note(
                "privacy_shift",
                f"Privacy noise moves the parameters that all records share by "
                f"{math.sqrt(float(np.mean(common**2))):.1f} posterior standard deviations: their intervals are mostly "
                "privacy noise. A larger `epsilon`, or more records, would help.",
            )
        )
    return notes
