"""Finding and releasing an anchor."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pymc_dp.anchor.looks import Looks, balanced_bound
from pymc_dp.anchor.model import Anchor
from pymc_dp.anchor.residuals import Expansion, ResidualSizes
from pymc_dp.anchor.search import NewtonSearch, find_mode, prior_precision
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, floored, inverse_root, product_covariance
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.records.measurements import Measurements


def build_anchor(
    measure: Measurements,
    log_public: PublicLogDensity,
    start: Vector,
    *,
    tempering: float = 1.0,
    chain_multiplier: float,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Anchor:
    """Find and release an anchor for a chain.

    Parameters
    ----------
    measure : Measurements
        Asked for everything that is known of data, and spent afterwards.
    log_public : PublicLogDensity
    start : ndarray, shape (d,)
        Where the search begins; public.
    tempering : float
        T.
    chain_multiplier : float
        z of the chain's releases: decides, with the residuals' size, how long its moves can be.
    on_progress : callable, optional
        Told what is being done. Gets public text only.

    Returns
    -------
    Anchor

    Raises
    ------
    SearchLost
        If the mode was not found. What is left of the budget is unspent.
    LinAlgError
        If the noisy equations have no solution.

    Notes
    -----
    **Releases**, all under substitute-one neighbours, each of a function of one unit's record and of
    earlier releases: histograms (sensitivity √2), sums of clipped gradients (2C), sums of clipped
    Hessians as vectors of the same Frobenius norm (2C), and counts of clipped units as sums of ±1/2 (1).
    **Guarantee**: together one Gaussian release of the budget's multiplier.
    """
    s, looks = SETTINGS, Looks(measure, tempering)
    on_progress("searching for the mode")
    search = find_mode(looks, log_public, start, on_progress)
    on_progress("measuring the curvature, and choosing clipping bounds")
    anchor = centred(looks, log_public, search)
    sizes = measure.histogram(ResidualSizes(Expansion(anchor, tempering, measure.n_units)), s.sizes)
    on_progress("measuring the gradient")
    anchor = measured(looks, log_public, anchor, 1 - measure.spent - s.clipped - s.check)
    on_progress("checking the gradient at the mode that it predicts")
    anchor = checked(looks, log_public, anchor)
    on_progress("counting what is clipped")
    return _with_residuals_bound(measure, anchor, tempering, sizes, chain_multiplier)


def centred(looks: Looks, log_public: PublicLogDensity, search: NewtonSearch) -> Anchor:
    """An anchor of which nothing but its place, its coordinates and its clipping bounds is known."""
    s, measure = SETTINGS, looks.measure
    theta0, W, d = search.theta, search.W, len(search.theta)
    M, sd_A = looks.curvature(theta0, W, s.curvature, s.sizes)
    P = floored(M + prior_precision(log_public, theta0, W), max(0.25, 0.5 * sd_A * math.sqrt(d)))
    W = W @ inverse_root(P)
    L0 = prior_precision(log_public, theta0, W)

    gradient_sizes = looks.gradient_sizes(theta0, W, s.gradient_sizes)
    hessian_sizes = looks.hessian_sizes(theta0, W, s.sizes)
    z_hessian = measure.multiplier(0.13)
    C_H = max(
        1.05 * hessian_sizes.quantile(s.hessians_kept), balanced_bound(hessian_sizes, z_hessian)
    )
    hessian_noise = SUBSTITUTE_ONE.noise_sd(C_H, z_hessian) * math.sqrt(2 * d)
    return Anchor(
        theta0=theta0, W=W, order=2 if hessian_noise <= s.largest_hessian_noise else 1,
        gradient=np.zeros(d), curvature=np.eye(d) - L0,
        gradient_clip=balanced_bound(gradient_sizes, measure.multiplier(0.5)), hessian_clip=C_H,
        tilt=0.0, curvature_noise=sd_A, residual_clip=1.0, clipped_share=math.nan,
        clipped_share_sd=math.nan, sigma=math.nan, mean=np.zeros(d), precision=np.eye(d),
        prior_precision=L0, rounds=search.rounds, surprise=math.nan, still_to_go=np.zeros(d),
    )  # fmt: skip


def measured(looks: Looks, log_public: PublicLogDensity, anchor: Anchor, share: float) -> Anchor:
    """The anchor with its gradient and, at order 2, its curvature, which cost `share` together."""
    s, theta0, W = SETTINGS, anchor.theta0, anchor.W
    L0, curvature, sd_A = anchor.prior_precision, anchor.curvature, anchor.curvature_noise
    for_hessian = s.hessian_of_rest * share if anchor.order == 2 else 0.0
    for_gradient = (1 - s.hessian_of_rest) * share if anchor.order == 2 else share
    gradient, tilt = looks.gradient(theta0, W, anchor.gradient_clip, for_gradient)
    slope = W.T @ log_public.gradient(theta0)
    if anchor.order == 2:
        M, sd_A = looks.hessian(theta0, W, anchor.hessian_clip, for_hessian)
        curvature = floored(M + L0, 0.2) - L0
    precision = curvature + L0
    mean = np.asarray(np.linalg.solve(precision, gradient + slope), np.float64)
    return replace(
        anchor, gradient=gradient, curvature=curvature, tilt=tilt, curvature_noise=sd_A,
        mean=mean, precision=precision,
    )  # fmt: skip


def checked(looks: Looks, log_public: PublicLogDensity, anchor: Anchor) -> Anchor:
    """The anchor with its surprise: another gradient, where by the anchor it should be 0."""
    d, there = len(anchor.mean), anchor.to_theta(anchor.mean)
    slope, sd = looks.gradient(there, anchor.W, anchor.gradient_clip, SETTINGS.check)
    slope += anchor.W.T @ log_public.gradient(there)
    by_curvature = float(np.trace(product_covariance(anchor.mean, anchor.curvature_noise)))
    expected = math.sqrt(d * (sd**2 + anchor.tilt**2 + SETTINGS.harmless**2) + by_curvature)
    return replace(
        anchor,
        # At order 1 residuals make good whatever is wrong with the curvature.
        curvature_noise=anchor.curvature_noise if anchor.order == 2 else 0.0,
        surprise=float(np.linalg.norm(slope)) / expected,
        still_to_go=anchor.W @ np.linalg.solve(anchor.precision, slope),
    )


def _with_residuals_bound(
    measure: Measurements,
    anchor: Anchor,
    tempering: float,
    sizes: PrivateHistogram,
    chain_multiplier: float,
) -> Anchor:
    """With a bound for the residual ratios, and how many exceed it."""
    s, d = SETTINGS, len(anchor.mean)

    def counted(anchor: Anchor, share: float) -> Anchor:
        """How many units are clipped in a typical move."""
        marks = ResidualSizes(Expansion(anchor, tempering, measure.n_units), clipped=True)
        excess, sd = measure.sum(marks, 0.5, share)
        return replace(
            anchor, clipped_share=float(excess) / measure.n_units + 0.5,
            clipped_share_sd=sd / measure.n_units,
        )  # fmt: skip

    typical = math.sqrt(2 * d) * anchor.typical_distance**anchor.order
    per_c = SUBSTITUTE_ONE.noise_sd(typical, chain_multiplier)
    least = s.least_sigma / per_c if per_c > 0 else 0.0
    c = max(sizes.quantile(s.residuals_kept), least, 1e-12)
    anchor = counted(replace(anchor, residual_clip=c), s.clipped / 2)
    surely = anchor.clipped_share - 2 * anchor.clipped_share_sd
    if surely > s.tolerated and per_c > 0:
        anchor = replace(anchor, residual_clip=max(c, s.largest_sigma / per_c))
    anchor = counted(anchor, 1 - measure.spent)
    return replace(anchor, sigma=per_c * anchor.residual_clip)
