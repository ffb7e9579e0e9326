"""DPAnchored for hierarchical models: looks at groups, and draws of the law that they leave."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.anchor.group_draws import LawModel
from pymc_dp.anchor.group_looks import Shape
from pymc_dp.anchor.groups import GroupPosterior, SearchLost, look_at_groups
from pymc_dp.likelihood.compiled import CompiledModel
from pymc_dp.records.measurements import Measurements
from pymc_dp.steps.at_once import Drawn

GROUPS_FROM = 30
"""Parameters from which on a model with groups is looked at as one. With fewer, Hessians in all of them are
cheap, and nothing need be assumed of groups."""
MOST_COMMON = 60
"""Parameters that all records share, at most: their Hessian is as for a model without groups."""
_SEED = 1
"""Of the draws: they are computed from released numbers, and anybody may do it again."""
_PRIOR = 0.8
"""Of a group's prior variance, this much is left of one of which nothing was learnt."""


def has_groups(compiled: CompiledModel) -> bool:
    """Whether a model is one of many groups, of which every record is in one or in one of each kind.

    Decided by the graph alone, before anything is spent.
    """
    if compiled.d <= GROUPS_FROM or compiled.cut is None:
        return False
    cut = compiled.cut
    in_groups = sum(groups * columns for groups, columns in cut.shapes)
    return cut.p <= MOST_COMMON and in_groups > cut.p


def law_model(compiled: CompiledModel) -> LawModel:
    """The law's density of a model that :func:`has_groups`; compiles, and reads no records."""
    cut = compiled.cut
    if cut is None:
        raise RuntimeError("The model has no groups.")
    return LawModel(
        compiled.parameters,
        cut.graph.theta,
        cut.psi,
        [table.sources for table in cut.tables],
        Shape(cut.p, tuple(cut.shapes)),
    )


def draw_groups(
    measure: Measurements,
    law: LawModel,
    *,
    tempering: float,
    draws: int,
    chains: int,
    nuts_sampler: str,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Drawn:
    """Spend everything on looks, and draw from the law that they leave.

    Parameters
    ----------
    measure : Measurements
        Spent afterwards.
    law : LawModel
    tempering : float
        T.
    draws, chains : int
        Of the law. More of them cost nothing.
    nuts_sampler : str
        As for ``pm.sample``.
    on_progress : callable, optional
        Gets public text only.

    """
    warnings = []
    try:
        found = look_at_groups(measure, law, tempering, on_progress)
        measured, warnings = _measured(found, law), _warnings(found, law)
    # Of released numbers: ValueError is NumPy's LinAlgError too.
    except (SearchLost, OverflowError, ValueError) as lost:
        law.reset()
        measured = {"usable": 0.0, "of_the_prior": "all"}
        why = f": {lost}" if isinstance(lost, SearchLost) else ""
        warnings.append(
            f"The private search for groups did not arrive{why}. The draws are the prior's, and what was not spent "
            "is not charged. It takes more records, a larger `epsilon`, or priors that say more."
        )
    on_progress("drawing from what was released")
    return Drawn(law.sample(draws, chains, _SEED, nuts_sampler=nuts_sampler), measured, warnings)


def _measured(found: GroupPosterior, law: LawModel) -> dict[str, float | str]:
    """Tilts in groups, from the least to the most disturbed quarter."""
    measured: dict[str, float | str] = {"usable": 1.0, "looks": found.looks}
    common, *tables = law.shape.parts(found.tilts)
    if len(common):
        measured["tilt"] = math.sqrt(float(np.mean(common**2)))
    for k, (table, information) in enumerate(
        zip(tables, law.shape.parts(found.law.J.diagonal)[1:], strict=True)
    ):
        by_size = table[np.argsort(information[:, 0])]
        quarter = max(len(table) // 4, 1)
        name = f"groups_{k}"
        measured[f"{name}"] = len(table)
        measured[f"tilt_{name}"] = float(np.median(table))
        measured[f"tilt_{name}_largest"] = float(np.median(by_size[-quarter:]))
        measured[f"tilt_{name}_smallest"] = float(np.median(by_size[:quarter]))
    return measured


def _warnings(found: GroupPosterior, law: LawModel) -> list[str]:
    warnings = []
    kept = 1 / (1 + found.law.K.diagonal * found.mode.prior_sds**2)
    for k, (table, names) in enumerate(
        zip(law.shape.parts(kept)[1:], law.table_names, strict=True)
    ):
        unknown = int((table > _PRIOR).all(axis=1).sum())
        if unknown:
            warnings.append(
                f"Of {unknown} of the {len(table)} groups of {names or f'table {k}'} next to nothing was learnt: their "
                "draws are what the other groups say of any group. A larger `epsilon`, or more records in "
                "each, would help."
            )
    unknown = int((law.shape.parts(kept)[0] > _PRIOR).sum())
    if unknown:
        warnings.append(
            f"Of {unknown} of the {law.shape.p} numbers that all records share next to nothing was learnt: their draws are "
            "the prior's. A larger `epsilon`, or more records, would help."
        )
    common = law.shape.parts(found.tilts)[0]
    if len(common) and float(np.mean(common**2)) > 1:
        warnings.append(
            f"Privacy noise moves the parameters that all records share by "
            f"{math.sqrt(float(np.mean(common**2))):.1f} posterior standard deviations: their intervals are mostly "
            "privacy noise. A larger `epsilon`, or more records, would help."
        )
    return warnings
