"""What may be asked of an owner, and answered: known to all sides."""

import hashlib
import json
from collections.abc import Callable, Mapping

import numpy as np

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.linalg import Vector
from pymc_dp.privacy.filter import LEAST_SHARE
from pymc_dp.privacy.noisy_sum import check_bound
from pymc_dp.records.queries import (
    Gradient,
    Information,
    LogLikelihoodRatio,
    Query,
    Score,
)

Answer = Mapping[str, Vector]
Ask = Callable[[str, Mapping[str, Vector]], list[Answer]]
"""Sends one request to all owners and collects their answers, in the same order every time."""

RATIO = "ratio"
SIZES = ("gradient_sizes", "information_sizes")
SUMS = ("score", "information")
MOST_BINS = 8
"""Bins per octave that a histogram may be asked for."""


def shapes_of(kind: str, d: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the numbers that a request consists of."""
    if kind == RATIO:
        return {"theta": (d,), "proposal": (d,), "bound": ()}
    at: dict[str, tuple[int, ...]] = {"theta": (d,), "W": (d, d), "share": ()}
    if kind.startswith("information"):
        at |= {"score_bound": ()}
    return at | ({"bins_per_octave": ()} if kind in SIZES else {"bound": ()})


def checked(kind: str, request: Mapping[str, Vector], d: int) -> dict[str, Vector]:
    """The request's numbers, as private copies of known shapes.

    Raises
    ------
    PrivacyConfigurationError
        If they are not what such a request consists of, or out of their range.
    """
    shapes, values = shapes_of(kind, d), {}
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
    for name in ("bound", "score_bound"):
        check_bound(float(values.get(name, 1.0)))
    if float(values.get("bins_per_octave", 1.0)) not in range(1, MOST_BINS + 1):
        raise PrivacyConfigurationError(f"`bins_per_octave` is 1 to {MOST_BINS}.")
    if not LEAST_SHARE <= float(values.get("share", 1.0)) <= 1:
        raise PrivacyConfigurationError(f"`share` must lie between {LEAST_SHARE:g} and 1.")
    return values


def query(kind: str, values: Mapping[str, Vector]) -> Query:
    """What a request asks of the owner's records."""
    if kind == RATIO:
        return LogLikelihoodRatio(values["theta"], values["proposal"])
    at = values["theta"], values["W"]
    if kind == "gradient_sizes":
        return Gradient(*at)
    if kind == "score":
        return Score(*at, float(values["bound"]))
    return Information(*at, float(values["score_bound"]))


def parameters_digest(parameters: ParameterSpace) -> int:
    """A number that tells models with other parameters, or in another order, apart. Public."""
    names = [[name, list(shape)] for name, shape in parameters.shapes.items()]
    digest = hashlib.sha256(json.dumps(names).encode()).digest()
    return int.from_bytes(digest[:6], "big")  # exact as a float
