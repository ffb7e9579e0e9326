r"""Evaluations: noisy sums of units' coefficients on the polynomials of a design, and of what these miss.

Noise with covariance proportional to :math:`\Lambda^{1/2}`, :math:`\Lambda` the units' second moments, costs a
posterior least: of the noises that a weighting A and a clipping in norm give, it minimises the summed variance of
the coefficients, which is twice the divergence that they cause. In the rounds :math:`\Lambda` is a number for
each block of degrees, from histograms; in the last evaluation a noisy matrix.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymc_dp.linalg import Vector, as_matrix, power
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import Measurements
from pymc_dp.surrogate.polynomial.basis import Basis, Places, leverage, terms_of
from pymc_dp.surrogate.polynomial.chart import Chart
from pymc_dp.surrogate.polynomial.model import Lost, Surrogate
from pymc_dp.surrogate.polynomial.queries import Image, Projection, SecondMoments
from pymc_dp.surrogate.polynomial.settings import SETTINGS


@dataclass(frozen=True)
class Design:
    """Where an evaluation is made: public points, polynomials that are orthonormal over them, and held-out points.

    Parameters
    ----------
    points : ndarray, shape (K, d)
    held_out : ndarray, shape (H, d)
    basis : Basis
    tempering : float
        T.
    """

    points: Vector
    held_out: Vector
    basis: Basis
    tempering: float

    @property
    def image(self) -> Image:
        r"""A unit's coefficients :math:`c_i`, then its misfits :math:`e_i` at the held-out points, of mean 0."""
        K, H = len(self.points), len(self.held_out)
        Q = self.basis.projection
        M = np.zeros((K + H, len(self.basis) + H))
        M[:K, : len(self.basis)] = Q
        M[:K, len(self.basis) :] = -1 / K - Q @ self.basis(self.held_out).T
        M[K:, len(self.basis) :] = np.eye(H)
        M[:, len(self.basis) :] @= np.eye(H) - 1 / H
        return Image(np.vstack([self.points, self.held_out]), self.tempering * M)


def draw_design(
    clouds: Vector, degree: int, straight: bool, tempering: float, rng: np.random.Generator
) -> Design:
    """A design of some of the clouds' points, in coordinates that straighten them if that is asked for."""
    s, d = SETTINGS, clouds.shape[1]
    chart = Chart(clouds) if straight else None
    if chart is not None and chart.gain < s.thinner:
        chart = None
    each = s.points if chart is None else s.points_in_chart
    K = math.ceil(each * (terms_of(d, degree) + 1)) + 10
    picked = clouds[rng.choice(len(clouds), K + s.held_out, replace=False)]
    return Design(picked[:K], picked[K:], Basis(picked[:K], degree, chart), tempering)


def usable_up_to(basis: Basis, cloud: Vector) -> float:
    """Leverage to which a surrogate may be used, from that of the cloud of its design."""
    most = SETTINGS.limit * float(np.quantile(leverage(basis(cloud)), 0.99))
    return most if basis.chart is None else min(most, SETTINGS.strict)


def evaluate(
    measure: Measurements, design: Design, cloud: Vector, share: float
) -> tuple[Surrogate, float]:
    r"""A round's surrogate, and its misfit in nats.

    Parameters
    ----------
    measure : Measurements
    design : Design
    cloud : ndarray, shape (walkers, d)
        That it was drawn from.
    share : float
        Of the sum. Histograms cost :attr:`~pymc_dp.surrogate.polynomial.settings.PolynomialSettings.histogram` each.

    Notes
    -----
    **Releases**: a histogram of lengths for each block of degrees and one of all (sensitivity √κ each), and one
    sum of clipped vectors (κB).
    """
    s, image, r = SETTINGS, design.image, len(design.basis)
    parts = [*design.basis.blocks, np.arange(r, image.M.shape[1])]
    lengths = [
        measure.histogram(_part(image, part), s.histogram).quantile(s.block_kept) for part in parts
    ]
    weights = _weights(parts, lengths, 1e-7)
    weighted = Projection(image, np.diag(weights))
    B = 1.05 * measure.histogram(weighted, s.histogram).quantile(s.round_kept)
    total, sd = measure.sum(weighted, B, share)
    total, sds = total / weights, sd / weights
    surrogate = Surrogate(
        design.basis, total[:r], np.diag(sds[:r]), usable_up_to(design.basis, cloud)
    )
    e, free = total[r:] - total[r:].mean(), len(total) - r - 1
    seen = max(float(e @ e) / free - sds[r] ** 2, 0.0)
    # And half of what that is uncertain by.
    return surrogate, math.sqrt(seen + sds[r] ** 2 * math.sqrt(2 / free) / 2)


def _part(image: Image, columns: Places) -> Projection:
    return Projection(image, np.eye(image.M.shape[1])[:, columns])


def _weights(parts: list[Places], lengths: list[float], least: float) -> Vector:
    r""":math:`\lambda^{-1/4}` for every coefficient, λ the mean square of those in its block."""
    longest = max(lengths)
    weights = np.empty(sum(len(part) for part in parts))
    for part, length in zip(parts, lengths, strict=True):
        weights[part] = (max(length, least * longest) ** 2 / len(part)) ** -0.25
    return weights


def evaluate_last(
    measure: Measurements, design: Design, cloud: Vector, n_units: float, kept: float
) -> Surrogate:
    """The surrogate that draws are made of, from all that is left but a share that is kept.

    Notes
    -----
    **Releases**: histograms of lengths (sensitivity √κ each), the units' second moments (√κ C²), and one sum of
    clipped vectors (κB).
    """
    s, image, blocks, r = SETTINGS, design.image, design.basis.blocks, len(design.basis)
    lengths = [
        measure.histogram(_part(image, part), s.last_histogram).quantile(0.8) for part in blocks
    ]
    A = np.diag(_weights(blocks, lengths, 1e-4))
    longest = max(lengths)
    seen = [b for b, n in zip(blocks, lengths, strict=True) if n >= s.negligible * longest]
    _weigh(measure, image, A, np.concatenate(seen), n_units)
    weighted = Projection(image, np.vstack([A, np.zeros((len(design.held_out), r))]))
    sizes = measure.histogram(weighted, s.bound_histogram, 4)
    if not sizes.seen:  # a bound of no size: a sum without noise, and without anything else
        raise Lost
    share = 1 - measure.spent - kept
    B = balanced(sizes, lambda b: measure.noise_sd(b, share))
    total, sd = measure.sum(weighted, B, share)
    back = np.linalg.inv(A)
    root = np.asarray(sd * back.T)
    return Surrogate(design.basis, back.T @ total, root, usable_up_to(design.basis, cloud))


def _weigh(measure: Measurements, image: Image, A: Vector, seen: Places, n_units: float) -> None:
    r"""Put :math:`\Lambda^{-1/4}` of some coefficients into A, if their second moments can be told from noise."""
    s, k = SETTINGS, len(seen)
    scales = np.diag(A)[seen] ** 2  # λ^-1/2
    length = math.sqrt(s.moments_widened * k)
    M = np.zeros((image.M.shape[1], k))
    M[seen] = np.diag(scales)
    of = SecondMoments(Projection(image, M), length)
    sd = measure.noise_sd(length**2, s.moments)
    if 2 * math.sqrt(k) * sd > s.poor_moments * n_units or of.dimension > 2**11:
        return
    total, sd = measure.sum(of, length**2, s.moments)
    # The largest eigenvalue of the noise alone is √(2k) sd.
    least = 2 * math.sqrt(k) * sd / n_units
    values, vectors = np.linalg.eigh(as_matrix(total / n_units, k))
    moments = (vectors * np.maximum(values, least)) @ vectors.T / np.outer(scales, scales)
    moments = (moments + moments.T) / 2 + 1e-12 * np.trace(moments) * np.eye(k)
    A[np.ix_(seen, seen)] = power(moments, -0.25)


def balanced(sizes: PrivateHistogram, noise_sd: Callable[[float], float]) -> float:
    """The bound at which noise and what is clipped are least together, in squares."""
    bounds = np.geomspace(sizes.quantile(0.5) / 2, 2 * sizes.largest, 120)
    return sizes.balanced(noise_sd(1.0), bounds)


def check(measure: Measurements, design: Design, theta: Vector) -> tuple[float, float]:
    """Nats that a surrogate misses at fresh points, and the sd of the noise in each; spends all that is left.

    Notes
    -----
    **Releases**: one histogram (sensitivity √κ), one sum of clipped vectors (κB).
    """
    s = SETTINGS
    asked = Design(design.points, theta, design.basis, design.tempering).image
    r, m = len(design.basis), asked.M.shape[1]
    misfits = _part(Image(asked.points, asked.M), np.arange(r, m))
    sizes = measure.histogram(misfits, s.of_check * s.check)
    left = 1 - measure.spent
    B = balanced(sizes, lambda b: measure.noise_sd(b, left))
    total, sd = measure.sum(misfits, B, left)
    e = total - total.mean()
    return math.sqrt(max(float(e @ e) / (m - r - 1) - sd**2, 0.0)), sd
