"""Made-up records, of the shapes and types of a model's: what checks look at in place of the real ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.likelihood.nodes import RecordData

_WHOLE = 4
"""Whole numbers are drawn from so many, from 0: classes, counts, groups. (Indices out of range are clipped.)"""


def made_up_rows(
    record_data: Sequence[RecordData], m: int, rng: np.random.Generator
) -> list[NDArray[Any]]:
    """Rows of `m` records that are not there, one array per data node.

    Of numbers with a fraction a quarter each are normal, positive, between 0 and 1, and of any size up to some
    thousands, by record: so some are in the support of any likelihood that is one number for each record.
    """
    return [_made_up(leaf, m, rng) for leaf in record_data]


def _made_up(leaf: RecordData, m: int, rng: np.random.Generator) -> NDArray[Any]:
    shape = [m, *np.delete(leaf.values.shape, leaf.axis)]
    if leaf.values.dtype.kind != "f":
        x = rng.integers(_WHOLE, size=shape)
    else:
        z = rng.normal(size=shape)
        kind = rng.integers(4, size=(m, *[1] * (len(shape) - 1)))
        x = np.choose(kind, [z, np.exp(z), rng.random(shape), z * 10 ** (3 * rng.random(shape))])
    return np.ascontiguousarray(np.moveaxis(x, 0, leaf.axis).astype(leaf.values.dtype))
