"""How much a row's information changes with where the row is: of a normal outcome not at all, of others as their links have it."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from pymc_dp.likelihood.shape import Shape
from pymc_dp.surrogate.hierarchical.evaluation import Curvature
from pymc_dp.surrogate.hierarchical.information import level_of
from pymc_dp.surrogate.hierarchical.structured import Structured

_BEFORE = 1.0, 0.5
"""The bend before anything was seen, and what that counts for, beside 1 of two curvatures without noise. It is about 1 of logistic regression with few or many
successes; .3 with as many as failures, .2 of Poisson counts of four, .02 to .1 of beta outcomes, and 0 of normal ones. With 1 for all of them, effects of 200 groups with
normal outcomes were not found where they are spread more than records: 90 % of errors of σ and τ were
below 38 posterior sds at ε = 3 and 28 at ε = 1, and with h below .8 and 14 (ten data sets, root mean square of both, with half-way guesses).
Half and twice of either: errors within 2 % of these (`benchmarks/hierarchical_constants.py`, where other noise alone moves them by 17 %)."""


def bends(
    curvatures: Sequence[Curvature], J: Structured, shape: Shape, n_units: float
) -> list[float]:
    r"""The bend h of every table: information changes by a part c of itself on a way v, :math:`c^2 = h \sum_e i_e v_e^2`.

    Here :math:`i_e` is a record's information about entry e. Two curvatures at different places show h, as :math:`y = \sum_k (J_k - J'_k)^2` less
    its noise, beside the x that this would be with h = 1; levels that all rows share are made alike. All pairs' y / x are averaged; one counts for
    :math:`x^2 / (x^2 + s^2)`, with s the sd of y's noise, so nothing where no row moved.

    Parameters
    ----------
    curvatures : sequence of Curvature
        All that were seen.
    J : Structured
        What is made of them.
    shape : Shape
    n_units : float
    """
    found = []
    for k, own in enumerate(shape.parts(J.diagonal)[1:]):
        own = np.maximum(own, 0.0)
        whole = np.maximum(own.sum(axis=0), 1e-300)
        seen = []
        for o in curvatures:
            squares = o.preconditioner.scales[k] ** 2
            rows = np.einsum("kcc->kc", o.rows[k]) / squares
            level = level_of(rows, whole)
            seen.append(
                (shape.parts(o.psi)[1 + k], rows / level, (o.sd["rows"] / squares / level) ** 2)
            )
        before, weight = _BEFORE
        above, below = before * weight, weight
        for (at, rows, one), (other, other_rows, other_one) in combinations(seen, 2):
            way, noise = at - other, one + other_one
            way = way - (own * way).sum(axis=0) / whole  # what all move by is a matter of levels
            x = float(((own**2).sum(axis=1) * (way**2 @ (whole / n_units))).sum())
            y = float(((rows - other_rows) ** 2 - noise).sum())
            precision = 1 / max(x**2 + 2 * len(own) * float(noise @ noise), 1e-300)
            above, below = above + precision * x * y, below + precision * x**2
        found.append(max(above / below, 0.0))
    return found
