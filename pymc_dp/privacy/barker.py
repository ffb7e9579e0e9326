r"""The release of a private Barker test: a batch's mean, noised up to a fixed total variance."""

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.clipping import RESOLUTION, in_silence
from pymc_dp.privacy.events import BarkerBatch
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import check_bound, secret_words
from pymc_dp.privacy.plans import Permit
from pymc_dp.privacy.subsampling import fixed_size_sample


def noisy_batch_mean(
    terms_of: Callable[[NDArray[np.int64]], Iterable[NDArray[np.float64]]],
    *,
    units: int,
    batch_size: int,
    bound: float,
    variance: float,
    permit: Permit,
    noise: NoiseSource,
) -> float:
    r"""Release :math:`\sqrt b\, \bar x + \mathcal N(0, C - s^2)` of a secret batch of b units.

    Here :math:`x_j = \operatorname{clip}_B(v_j)/B \in [-1, 1]` for the units j of the batch, and
    :math:`s^2 = (1 - \tfrac bn)(\overline{x^2} - \bar x^2) \le 1` is about the variance that drawing a
    batch without replacement gives to :math:`\sqrt b\, \bar x`. Batch and noise together have
    variance C, about, whatever the data; at b = n there is noise only.

    **Neighbouring relation**: substitute-one, at a public number of units. **Sensitivity**: a unit of
    the batch moves the mean's term by at most :math:`2/\sqrt b` and :math:`s^2` by at most
    :math:`4(b-1)/b^2`. **Guarantee**: one ``BarkerBatch(C, b, n)`` event, whose Rényi divergence is
    that of two Gaussians of such means and variances (Heikkilä, Jälkö, Dikmen and Honkela, 2019;
    Räisä, 2021, Theorem 3.3, with a tighter bound; see the page on subsampled accounting), amplified
    by sampling without replacement (Wang, Balle and Kasiviswanathan, 2019, Theorem 9).

    The noise is discrete Gaussian on the grid :math:`1/(\sqrt b\,` :data:`RESOLUTION` ``)``.
    Its Rényi divergences differ from the continuous Gaussian's by a factor :math:`1 + e^{-s}` with s
    of the order of the squared scale (Poisson's summation formula), far below rounding.

    Parameters
    ----------
    terms_of : callable
        ``units ->`` chunks of those units' scalar terms; called once, after the permit is taken.
    units, batch_size : int
        n and b, public.
    bound : float
        Clipping bound B > 0, public.
    variance : float
        C > 1.
    permit, noise
        As in :func:`~pymc_dp.privacy.noisy_sum.noisy_sum`.

    Returns
    -------
    float
        In units of :math:`B/\sqrt b` per unit of the sum over the batch.

    Raises
    ------
    PrivacyConfigurationError
        If the bound is out of range.
    PrivacyBudgetExceeded
        If the permit does not cover this release; no term has been computed then.
    """
    check_bound(bound)
    address = permit.take(BarkerBatch(variance, batch_size, units))
    batch = fixed_size_sample(units, batch_size, secret_words(noise, address))
    total, squares = 0, 0.0
    with in_silence():
        for chunk in terms_of(batch):
            x = np.clip(np.nan_to_num(chunk / bound, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)
            total += int(np.trunc(x * RESOLUTION).astype(np.int64).sum())
            squares += float(np.square(np.trunc(x * RESOLUTION) / RESOLUTION).sum())
    mean = total / RESOLUTION / batch_size
    s2 = (1 - batch_size / units) * min(max(squares / batch_size - mean * mean, 0.0), 1.0)
    grid = 1 / (math.sqrt(batch_size) * RESOLUTION)
    fresh = noise.discrete_gaussian(math.sqrt(variance - s2) / grid, 1, address)
    return float(total + int(fresh[0])) * grid
