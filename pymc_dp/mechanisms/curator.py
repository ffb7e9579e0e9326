"""The curator's side: an exact noisy sum, paid for before data are looked at."""

import math
import secrets
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_dp.checks import positive
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.law import Family, NoiseLaw, charged_multiplier, noise_law
from pymc_dp.mechanisms.released import ReleasedStatistic
from pymc_dp.privacy.events import Event, Gaussian, Laplace, Pure
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.privacy.noise import SecureNoise
from pymc_dp.privacy.plans import RunPlan
from pymc_dp.statistics import sum_sensitivity

_STEPS_PER_SCALE = 2.0**30
_MAX_SUM = 2.0**61
# Widens the noise by one part in 10^8, so that the ε reported for it, which is rounded up, does
# not come out above the ε asked for.
MARGIN = 1 + 1e-8


def release_sum(
    name: str,
    family: Family,
    discrete: bool,
    values: ArrayLike,
    *,
    bounds: tuple[ArrayLike, ArrayLike],
    epsilon: float | None,
    delta: float | None,
    scale: float | None,
    sensitivity: float | None,
    granularity: float | None,
    ledger: PrivacyLedger | None,
    description: str | None,
) -> ReleasedStatistic:
    """See the mechanisms' ``release``."""
    records = np.asarray(values)
    _check_type(name, records, discrete)
    shape = records.shape[1:]
    lower, upper = _bounds_of_row(name, bounds, shape)
    # What is missing is a value in range: of one entry its lower end. Of a row whose entries belong together that
    # would be a row that no record has, so that all of it counts as zero.
    joint = sensitivity is not None
    instead = np.zeros(shape) if joint else lower
    if sensitivity is None:
        sensitivity = sum_sensitivity(lower, upper, norm=1 if family == "laplace" else 2)

    def law_at(claim: float) -> NoiseLaw:
        widened = claim if epsilon is None else claim * MARGIN
        return noise_law(
            name, family, discrete, scale=scale, epsilon=epsilon, delta=delta, sensitivity=widened
        )

    step = _grid_step(name, granularity, law_at(sensitivity), lower, upper)
    if not discrete:
        # Rounding moves every entry of the old and of the new record by half a step at most.
        entries = math.prod(shape)
        sensitivity += step * (1 + (entries if family == "laplace" else math.sqrt(entries)))
    law = law_at(sensitivity)
    if law.epsilon is None or law.delta is None:
        raise PrivacyConfigurationError(
            f"{name}: a release needs one `scale` for all entries and, for Gaussian noise, a `delta`."
        )
    noise_scale = float(law.scale)
    largest = len(records) * max(np.abs(lower).max(), np.abs(upper).max()) + 100 * noise_scale
    if largest > _MAX_SUM * step:
        raise PrivacyConfigurationError(
            f"{name}: the sum does not fit 64-bit integers at granularity {step:g}. Use a larger "
            "`granularity` or narrower `bounds`."
        )
    pay(ledger, name, description, _event(law, noise_scale / sensitivity, noise_scale / step))

    # From here on the data are read.
    clamped = np.clip(np.where(_missing(records, joint), instead, records), lower, upper)
    total = np.rint(clamped / step).astype(np.int64).sum(axis=0, dtype=np.int64)
    noisy = with_noise(total, family, noise_scale / step)
    return ReleasedStatistic(
        value=np.asarray(noisy if discrete else noisy * step),
        family=family,
        discrete=discrete,
        scale=noise_scale,
        sensitivity=sensitivity,
        epsilon=law.epsilon if epsilon is None else epsilon,
        delta=law.delta,
        n_records=len(records),
        granularity=step,
        noise=f"opendp discrete {family}",
        bounds=(lower.ravel().tolist(), upper.ravel().tolist()),
    )


def _missing(records: NDArray[Any], joint: bool) -> NDArray[np.bool_]:
    """Which entries are missing, or whose row has one that is."""
    missing = np.isnan(records)
    if joint:
        rows = missing.reshape(len(missing), -1).any(axis=1)
        missing |= rows.reshape(-1, *[1] * (records.ndim - 1))
    return missing


def _event(law: NoiseLaw, noise_multiplier: float, grid_scale: float) -> Event:
    r"""What a release with noise on a grid costs, `grid_scale` being its scale in the grid's steps.

    Discrete Laplace noise is as pure as the continuous one, but not dominated by it: a shift of one
    step is randomised response with :math:`\varepsilon = 1/b`. On a fine grid the Laplace release of
    the same total variation :math:`\tanh(1/2b)`, which dominates it, is hardly larger.
    """
    if law.family == "gaussian":
        return Gaussian(charged_multiplier(noise_multiplier, grid_scale))
    if law.discrete:
        return Pure(1 / noise_multiplier)
    shift = 1 / grid_scale
    return Laplace(noise_multiplier * shift / (-2 * math.log1p(-math.tanh(shift / 2))))


def pay(ledger: PrivacyLedger | None, name: str, description: str | None, event: Event) -> None:
    """Charge one release: a run of one chain and one iteration."""
    if ledger is None:
        return
    if not isinstance(ledger, PrivacyLedger):
        raise PrivacyConfigurationError(
            f"{name}: `ledger` must be a PrivacyLedger. Found {type(ledger).__name__}."
        )
    plan = RunPlan(
        run=f"{secrets.randbits(62):016x}",
        description=description or f"This release by {name}",
        events=(event,),
        chains=1,
        iterations=1,
    )
    ledger.reserve(plan)
    ledger.charge(plan, ledger.claim(plan), 0)


def _check_type(name: str, records: NDArray[Any], discrete: bool) -> None:
    """Refuse what is wrong with the array's type; its values are not looked at."""
    if records.ndim < 1 or records.size == 0:
        raise PrivacyConfigurationError(
            f"{name}: `values` must have one row per record, shape (n, ...). Found shape "
            f"{records.shape}."
        )
    if records.dtype.kind not in ("iub" if discrete else "iubf"):
        raise PrivacyConfigurationError(
            f"{name}: `values` must be {'integers' if discrete else 'numbers'}. Found dtype "
            f"{records.dtype}."
        )


def _bounds_of_row(
    name: str, bounds: tuple[ArrayLike, ArrayLike], shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    try:
        lower, upper = bounds
        return (
            np.broadcast_to(np.asarray(lower, np.float64), shape),
            np.broadcast_to(np.asarray(upper, np.float64), shape),
        )
    except (TypeError, ValueError):
        raise PrivacyConfigurationError(
            f"{name}: `bounds` must be a lower and an upper end, numbers or arrays of the shape of a "
            f"row, {shape}."
        ) from None


def _grid_step(
    name: str,
    granularity: float | None,
    law: NoiseLaw,
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> float:
    if law.discrete:
        whole = all(np.array_equal(b, np.rint(b)) for b in (lower, upper))
        if granularity not in (None, 1) or not whole:
            raise PrivacyConfigurationError(
                f"{name}: discrete noise lives on the integers: `bounds` must be whole numbers, and "
                "`granularity` left out."
            )
        return 1.0
    scale = float(law.scale.min())
    if granularity is None:
        return float(2.0 ** math.floor(math.log2(scale / _STEPS_PER_SCALE)))
    granularity = positive("granularity", granularity)
    if math.frexp(granularity)[0] != 0.5 or granularity > scale / 16:
        raise PrivacyConfigurationError(
            f"{name}: `granularity` must be a power of two, at most 1/16 of the noise scale. Found "
            f"{granularity!r}."
        )
    return granularity


def with_noise(total: NDArray[np.int64], family: Family, scale: float) -> NDArray[np.int64]:
    """A sum and exact noise of this scale on the integers: all that is released of it."""
    return total + _integer_noise(family, scale, total.size).reshape(total.shape)


def _integer_noise(family: Family, scale: float, size: int) -> NDArray[np.int64]:
    """Exact discrete noise of this scale on the integers."""
    if family == "gaussian":
        return SecureNoise().discrete_gaussian(scale, size)
    return np.asarray(_discrete_laplace(scale)([0] * size), dtype=np.int64)


@lru_cache(maxsize=64)
def _discrete_laplace(scale: float) -> Any:
    """OpenDP's discrete Laplace mechanism on vectors of integers, exact and from a CSPRNG."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T="i64")), opendp.l1_distance(T="i64")
    return opendp.m.make_laplace(*space, scale=scale)
