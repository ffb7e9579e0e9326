"""The sum over records, marked so that a sampler can find it in a model's graph."""

from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph

from pymc_dp.mechanisms.law import NoiseLaw


class RecordSum(OpFromGraph):
    """Sum over axis 0 that says of itself that axis 0 holds the records.

    An ordinary sum cannot be told from other sums over a first axis (a log-sum-exp contains one).
    The compiler inlines it, so densities, gradients and draws are those of the plain sum.

    Attributes
    ----------
    law : NoiseLaw or None
        The noise that the sum is released with, if one of this package's mechanisms made it.
    """

    law: NoiseLaw | None

    def __init__(self, inputs: Any, outputs: Any, *, law: NoiseLaw | None = None, **kwargs: Any):
        self.law = law
        super().__init__(inputs, outputs, **{**kwargs, "inline": True})


def record_sum(statistic: Any, *, law: NoiseLaw | None = None) -> Any:
    r"""Sum of a per-record statistic: :math:`\sum_i t_i(x_i)`.

    The mechanisms call it for you. Use it yourself to observe a record-additive statistic through
    a noise distribution of your own, such as ``pm.StudentT("s", 3, record_sum(t), 1, observed=s)``.

    Parameters
    ----------
    statistic : TensorVariable, shape (n, ...)
        Row i is a function of record i (and of public constants) alone.
    law : NoiseLaw, optional
        Set by the mechanisms.

    Returns
    -------
    TensorVariable, shape (...)
    """
    statistic = pt.as_tensor(statistic)
    records = statistic.type("records")
    return RecordSum([records], [records.sum(axis=0)], law=law)(statistic)
