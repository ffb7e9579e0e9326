"""The one primitive every mechanism on the curator's side is made of."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.checks import check_rate
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.privacy.clipping import MAX_DIMENSION, MAX_LENGTH, RESOLUTION, clipped_sum
from pymc_dp.privacy.events import Event, Gaussian, L2Mechanism, PoissonGaussian, Pure
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE, Neighbours
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import Words, accounted_rate, poisson_sample

MAX_UNITS = 2**36
"""With fewer units than this the integer sum cannot overflow."""

_MAX_MULTIPLIER = 2.0**29  # of RESOLUTION, twice over: the noise then has room in 64 bits
_BOUND_RANGE = (1e-200, 1e200)


Address = tuple[int, ...]
Draw = Callable[[float, int, Address], NDArray[np.int64]]


def release(
    counted: Callable[[Address], NDArray[Any]],
    event: Event,
    scale: float,
    permit: Permit,
    noise: NoiseSource,
    draw: Draw | None = None,
) -> NDArray[Any]:
    """Whole numbers with noise: paid for first, then counted, then noised.

    Every release of a curator's goes through here. What it promises is what its caller proves of the numbers: that `event`
    covers noise of this kind and scale.

    Parameters
    ----------
    counted : callable
        ``address ->`` whole numbers computed from records, shape (k,). Called once, after the permit is
        taken; the address tells this release from all others.
    event : Event
        What it costs.
    scale : float
        Scale of the noise, of a Gaussian its standard deviation; 0 for none.
    permit : Permit
        Must still contain the event.
    noise : NoiseSource
    draw : callable, optional
        ``(scale, size, address) ->`` noise, a method of `noise`. Default: discrete Gaussian.

    Returns
    -------
    ndarray, shape (k,)

    Raises
    ------
    PrivacyBudgetExceeded
        If the permit does not cover this release; nothing has been counted then.
    """
    address = permit.take(event)
    numbers = counted(address)
    if scale == 0:
        return numbers
    return numbers + (draw or noise.discrete_gaussian)(scale, numbers.size, address)


def noisy_sum(
    terms: Iterable[NDArray[np.float64]],
    *,
    dimension: int | None = None,
    bound: float,
    noise_multiplier: float,
    permit: Permit,
    noise: NoiseSource,
    neighbours: Neighbours = SUBSTITUTE_ONE,
) -> NDArray[np.float64]:
    r"""Sum over units of clipped terms, plus discrete Gaussian noise.

    .. math:: \sum_i \operatorname{clip}_B(v_i) + \mathcal N(0, (z \cdot \kappa B)^2 I)

    **Neighbouring relation**: `neighbours`: substitute-one, at a public number of units (κ = 2), or
    add-or-remove (κ = 1). **Sensitivity**: κB in L2 norm (each unit's integer image has norm at most
    :data:`RESOLUTION`, and κ of them differ). **Guarantee**: one
    ``Gaussian(noise_multiplier)`` event; 1/z-GDP and 1/(2z²)-zCDP, by Theorem 4 (zCDP) and
    Theorem 7 (tail comparison) of Canonne, Kamath and Steinke (2020) for the discrete Gaussian.

    The noise is discrete Gaussian on the grid B / :data:`RESOLUTION` and the sum is exact on that
    grid, so the sensitivity holds on the machine and not only on paper. Truncation to the grid
    moves the sum by less than ``units * B / RESOLUTION``.

    Parameters
    ----------
    terms : iterable of ndarray
        Chunks of per-unit terms, each of shape (units,) or (units, dimension). Give an iterable
        that computes on demand: nothing is drawn from it before the permit is taken.
    dimension : int, optional
        Length of a unit's vector; leave out for scalars.
    bound : float
        Clipping bound B > 0. Must be public: a function of earlier releases and settings only.
    noise_multiplier : float
        z; 0 is allowed from an insecure noise source only.
    permit : Permit
        What the ledger handed out for this iteration. It must still contain this release.
    noise : NoiseSource
        Where the noise comes from.
    neighbours : Neighbours

    Returns
    -------
    ndarray, shape () or (dimension,)
        In the units of the terms.

    Raises
    ------
    PrivacyConfigurationError
        If the bound or the multiplier is out of range.
    PrivacyBudgetExceeded
        If the permit does not cover this release; no term has been computed then.
    """
    return noisy_total(
        (clipped_sum(every, bound, dimension) for every in [terms]),
        dimension=dimension,
        bound=bound,
        noise_multiplier=noise_multiplier,
        permit=permit,
        noise=noise,
        neighbours=neighbours,
    )


def noisy_total(
    parts: Iterable[NDArray[np.int64]],
    *,
    dimension: int | None = None,
    nonzeros: int | None = None,
    bound: float,
    noise_multiplier: float,
    permit: Permit,
    noise: NoiseSource,
    neighbours: Neighbours = SUBSTITUTE_ONE,
    acute: bool = False,
) -> NDArray[np.float64]:
    r"""The release of :func:`noisy_sum`, from sums that were clipped elsewhere.

    **Neighbouring relation**, **sensitivity**, **guarantee**: those of :func:`noisy_sum`, if each
    unit is in one part only. Integers are added exactly, so it is the same release to the last bit,
    however the units are divided up.

    Parameters
    ----------
    parts : iterable of ndarray of int64, shape (1,) or (dimension,)
        :func:`~pymc_dp.privacy.clipping.clipped_sum` of disjoint parts of the units, at this bound.
        Nothing is drawn from it before the permit is taken, and no noise before it ends.
    nonzeros : int, optional
        How many entries of its vector a unit may have, if they are :class:`sparse
        <pymc_dp.privacy.clipping.Sparse>`: of these the dimension may be larger.
    acute : bool
        Whether no two units' terms can have a negative inner product, as those of :math:`w w^\top`. The
        sensitivity is then √κ B in place of κB: :meth:`~pymc_dp.privacy.neighbours.Neighbours.of_acute_sum`.
    dimension, bound, noise_multiplier, permit, noise, neighbours
        As in :func:`noisy_sum`.

    Returns
    -------
    ndarray, shape () or (dimension,)

    Raises
    ------
    PrivacyConfigurationError, PrivacyBudgetExceeded
        As :func:`noisy_sum`.
    """
    _check(dimension, nonzeros, bound, noise_multiplier, noise)
    total = release(
        lambda _: sum(parts, start=np.zeros(dimension or 1, dtype=np.int64)),
        Gaussian(noise_multiplier),
        neighbours.noise_sd(RESOLUTION, noise_multiplier, acute),
        permit,
        noise,
    )
    return _in_units_of_terms(total, dimension, bound)


def l2_noisy_total(
    parts: Iterable[NDArray[np.int64]],
    *,
    dimension: int | None = None,
    bound: float,
    noise_multiplier: float,
    permit: Permit,
    noise: NoiseSource,
    neighbours: Neighbours = SUBSTITUTE_ONE,
    acute: bool = False,
    pure: bool = False,
) -> NDArray[np.float64]:
    r"""Sum over units of clipped terms, plus noise of the ℓ2 mechanism.

    .. math:: \sum_i \operatorname{clip}_B(v_i) + X, \qquad
              X \sim \text{density} \propto e^{-\lVert x \rVert_2 / (z \cdot \kappa B)}

    **Neighbouring relation** and **sensitivity**: those of :func:`noisy_total`, κB in L2 norm, √κ B if acute. **Guarantee**: one
    ``L2Mechanism(noise_multiplier, dimension)`` event; 1/z-DP, and (ε, δ)-DP with
    :func:`~pymc_dp.privacy.l2_mechanism.l2_delta` (Joseph, Kulesza and Yu, 2025; proved on the page of the ℓ2
    mechanism).

    What is released is the sum of integers plus X on their grid, rounded to the grid: a function of the continuous
    mechanism's output. So there is no allowance for a grid: see :func:`~pymc_dp.privacy.l2_noise.l2_noise`.

    Parameters
    ----------
    parts, dimension, bound, permit, noise, neighbours, acute
        As in :func:`noisy_total`.
    noise_multiplier : float
        z. The standard deviation of the noise in an entry is z · κB · √(d + 1).
    pure : bool
        Whether it is charged as one ``Pure(1 / noise_multiplier)`` event instead, which says less, and all that counts
        at δ = 0; of these the dimension may be larger.

    Returns
    -------
    ndarray, shape () or (dimension,)

    Raises
    ------
    PrivacyConfigurationError
        If the bound or the multiplier is out of range, or the dimension more than
        :data:`~pymc_dp.privacy.events.MAX_L2_DIMENSION` and it is not pure.
    PrivacyBudgetExceeded
        As :func:`noisy_sum`.
    """
    _check(dimension, None, bound, noise_multiplier, noise)
    total = release(
        lambda _: sum(parts, start=np.zeros(dimension or 1, dtype=np.int64)),
        Pure(1 / noise_multiplier) if pure else L2Mechanism(noise_multiplier, dimension or 1),
        neighbours.noise_sd(RESOLUTION, noise_multiplier, acute),
        permit,
        noise,
        noise.l2,
    )
    return _in_units_of_terms(total, dimension, bound)


def poisson_noisy_total(
    total_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    *,
    units: int,
    sampling_rate: float,
    dimension: int | None = None,
    bound: float,
    noise_multiplier: float,
    permit: Permit,
    noise: NoiseSource,
) -> NDArray[np.float64]:
    r"""Sum over a secret Poisson sample of the units of clipped terms, plus discrete Gaussian noise.

    .. math:: \sum_{i \in S} \operatorname{clip}_B(v_i) + \mathcal N(0, (z \cdot 2B)^2 I),
              \qquad P(i \in S) = q \text{ independently}

    **Neighbouring relation**: substitute-one, at a public number of units. **Sensitivity**: 2B in
    L2 norm if the unit is sampled, 0 if not. **Guarantee**: one
    ``PoissonGaussian(noise_multiplier, accounted_rate(sampling_rate))`` event (the pair of distributions
    that dominates is proved on the page on subsampled accounting; it composes by Theorem 10 of Zhu, Dong
    and Wang, 2022). The sample comes from `noise` and is known to nobody.

    Parameters
    ----------
    total_of : callable
        ``units ->`` the :func:`~pymc_dp.privacy.clipping.clipped_sum` of those units' terms at this bound;
        called once, after the permit is taken.
    units : int
        Public number of units.
    sampling_rate : float
        q.
    dimension, bound, noise_multiplier, permit, noise
        As in :func:`noisy_sum`.

    Returns
    -------
    ndarray, shape () or (dimension,)
        The noisy sum over the sample. Divide by q for an unbiased estimate of the whole sum.

    Raises
    ------
    PrivacyConfigurationError, PrivacyBudgetExceeded
        As :func:`noisy_sum`.
    """
    _check(dimension, None, bound, noise_multiplier, noise)
    check_rate("sampling_rate", sampling_rate)
    total = release(
        lambda address: total_of(
            poisson_sample(units, sampling_rate, secret_words(noise, address))
        ),
        PoissonGaussian(noise_multiplier, accounted_rate(sampling_rate)),
        SUBSTITUTE_ONE.noise_sd(RESOLUTION, noise_multiplier),
        permit,
        noise,
    )
    return _in_units_of_terms(total, dimension, bound)


def poisson_noisy_sum(
    terms_of: Callable[[NDArray[np.int64]], Iterable[NDArray[np.float64]]],
    *,
    dimension: int | None = None,
    bound: float,
    **release_of: Any,
) -> NDArray[np.float64]:
    """The release of :func:`poisson_noisy_total`, from the sampled units' terms.

    Parameters
    ----------
    terms_of : callable
        ``units ->`` chunks of those units' terms; called once, after the permit is taken.
    dimension, bound, units, sampling_rate, noise_multiplier, permit, noise
        As in :func:`poisson_noisy_total`.

    Returns
    -------
    ndarray, shape () or (dimension,)
    """
    return poisson_noisy_total(
        lambda units: clipped_sum(terms_of(units), bound, dimension),
        dimension=dimension,
        bound=bound,
        **release_of,
    )


def secret_words(noise: NoiseSource, address: Address) -> Words:
    """Uniform words from `noise`, different ones at every call."""
    calls = count()
    return lambda size: noise.words(size, (*address, next(calls)))


def _check(
    dimension: int | None,
    nonzeros: int | None,
    bound: float,
    noise_multiplier: float,
    noise: NoiseSource,
) -> None:
    check_bound(bound)
    most = MAX_DIMENSION if nonzeros is None else MAX_LENGTH
    if dimension is not None and not 1 <= dimension <= most:
        raise PrivacyConfigurationError(
            f"A release can have at most {most} dimensions. Found {dimension!r}."
        )
    check_multiplier(noise_multiplier, noise)


def _in_units_of_terms(
    total: NDArray[np.int64], dimension: int | None, bound: float
) -> NDArray[np.float64]:
    released = total * np.float64(bound / RESOLUTION)
    return released if dimension is not None else released.reshape(())


def is_usable_bound(bound: float) -> bool:
    """Whether :func:`noisy_sum` takes this clipping bound: positive, and far from overflow."""
    return _BOUND_RANGE[0] < bound < _BOUND_RANGE[1]


def check_bound(bound: float) -> None:
    """Refuse a bound that is not :func:`usable <is_usable_bound>`."""
    if not is_usable_bound(bound):
        raise PrivacyConfigurationError(
            f"The clipping bound must be positive and finite. Found {bound!r}."
        )


def check_multiplier(noise_multiplier: float, noise: NoiseSource) -> None:
    """Refuse a noise multiplier that the integer sum cannot hold, or that protects nothing."""
    if not 0 <= noise_multiplier < _MAX_MULTIPLIER or (noise_multiplier == 0 and noise.secure):
        raise PrivacyConfigurationError(
            "`noise_multiplier` must be positive and below "
            f"{_MAX_MULTIPLIER:.0e}. Found {noise_multiplier!r}: a larger `epsilon` "
            "needs less noise. Zero noise is for debugging only and needs "
            "`noise_source=InsecureSeededNoise(seed)`."
        )


def check_units(units: int) -> None:
    """Refuse more units than the integer sum can hold."""
    if units >= MAX_UNITS:
        raise PrivacyConfigurationError(
            f"At most {MAX_UNITS} units of privacy can be summed exactly. There are more."
        )
