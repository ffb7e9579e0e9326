"""Finding and releasing an anchor."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pymc_dp.anchor.matrices import (
    Vector,
    as_matrix,
    floored,
    inverse_root,
    norms,
    product_covariance,
)
from pymc_dp.anchor.model import Anchor, Expansion, Residuals
from pymc_dp.anchor.search import QUADRATIC, NewtonSearch, SearchLost, prior_precision
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.privacy.noise import NoiseSource
from pymc_dp.privacy.noisy_sum import noise_sd, noisy_sum
from pymc_dp.privacy.purse import Purse

# Shares of the anchor's purse. What a part leaves over goes to the anchor's gradient and Hessian.
# At most _MODE for all steps towards the mode: _FIRST_STEP for the first, _LAST_STEP for the last, and
# for those between what the noise in the first makes necessary.
_MODE, _FIRST_STEP, _LAST_STEP = 0.38, 0.012, 0.15
_SMALLEST_STEP, _LARGEST_STEP = 0.003, 0.04
_SETTLED = 4.0  # Not while the curvature changes by more than this.
_CURVATURE = 0.05
_GRADIENT_SIZES, _HISTOGRAM, _SEARCH_HISTOGRAM = 0.04, 0.025, 0.007
_HESSIAN_OF_REST, _CHECK = 0.25, 0.04
# A gradient this long, in posterior standard deviations per parameter, the chain makes good.
_HARMLESS = 0.3
# Up to these quantiles of their sizes, terms of the search and Hessians of the anchor are not clipped.
_SEARCH_KEPT, _HESSIANS_KEPT = 0.95, 0.998

# A second-order anchor is worth it while the noise of its Hessian is below this at a typical point.
_LARGEST_HESSIAN_NOISE = 0.8
_PROBES = 8
# The noise in a log acceptance ratio. Where there would be less than the first, the bound is widened, so
# that less is clipped; up to the second, where still more than a tolerated share of units is clipped.
_LEAST_SIGMA, _LARGEST_SIGMA = 0.4, 1.0
_CLIPPED = 0.01
_TOLERATED = 0.005


def build_anchor(
    expansion: Expansion,
    log_public: PublicLogDensity,
    start: Vector,
    purse: Purse,
    noise: NoiseSource,
    *,
    chain_multiplier: float,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Anchor:
    """Find and release an anchor.

    Parameters
    ----------
    expansion : Expansion
        The only part that reads data.
    log_public : PublicLogDensity
    start : ndarray, shape (d,)
        Where the search begins; public.
    purse : Purse
        Pays for everything, and is empty afterwards.
    noise : NoiseSource
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
        If the mode was not found. What the purse has left is unspent.
    LinAlgError
        If the noisy equations have no solution.

    Notes
    -----
    **Releases**, all under substitute-one neighbours, each of a function of one unit's record and of
    earlier releases: histograms (sensitivity √2), sums of clipped gradients (2C), sums of clipped
    Hessians as vectors of the same Frobenius norm (2C), and counts of clipped units as sums of ±1/2 (1). **Guarantee**: together one Gaussian release
    of the purse's multiplier.
    """
    return _Builder(expansion, log_public, purse, noise, chain_multiplier, on_progress).build(start)


class _Builder:
    def __init__(
        self,
        expansion: Expansion,
        log_public: PublicLogDensity,
        purse: Purse,
        noise: NoiseSource,
        chain_multiplier: float,
        on_progress: Callable[[str], None],
    ):
        self._expansion, self._log_public = expansion, log_public
        self._purse, self._noise, self._tell = purse, noise, on_progress
        self._z_chain = chain_multiplier
        self._n = expansion.n_units

    def build(self, start: Vector) -> Anchor:
        """See :func:`build_anchor`."""
        d, tell = len(start), self._tell
        tell("searching for the mode")
        theta0, W, rounds = self._find_mode(start)
        tell("measuring the curvature")
        M, sd_A = self._noisy_curvature(theta0, W, _CURVATURE, _HISTOGRAM)
        P = floored(
            M + prior_precision(self._log_public, theta0, W), max(0.25, 0.5 * sd_A * math.sqrt(d))
        )
        W = W @ inverse_root(P)
        L0 = prior_precision(self._log_public, theta0, W)
        A = np.eye(d) - L0

        tell("choosing clipping bounds")
        sizes = self._histogram(map(norms, self._expansion.gradients(theta0, W)), _GRADIENT_SIZES)
        b = balanced_bound(sizes, self._purse.multiplier(0.5))
        hessian_sizes = self._histogram(map(norms, self._expansion.hessians(theta0, W)))
        C_H = max(
            1.05 * hessian_sizes.quantile(_HESSIANS_KEPT),
            balanced_bound(hessian_sizes, self._purse.multiplier(0.13)),
        )
        hessian_noise = noise_sd(C_H, self._purse.multiplier(0.13)) * math.sqrt(2 * d)
        order = 2 if hessian_noise <= _LARGEST_HESSIAN_NOISE else 1
        first = Anchor(
            theta0=theta0, W=W, order=order, gradient=np.zeros(d), curvature=A, gradient_clip=b,
            hessian_clip=C_H, tilt=0.0, curvature_noise=0.0, residual_clip=1.0, clipped_share=math.nan,
            clipped_share_sd=math.nan, sigma=math.nan, mean=np.zeros(d), precision=np.eye(d),
            prior_precision=L0, rounds=rounds, surprise=math.nan, still_to_go=np.zeros(d),
        )  # fmt: skip
        residuals = Residuals(self._expansion, first)
        residual_sizes = self._histogram(self._probe(first, residuals))

        tell("measuring the gradient")
        rest = 1 - self._purse.spent - _CLIPPED - _CHECK
        gradient, tilt = self._noisy_gradient(
            theta0, W, b, (1 - _HESSIAN_OF_REST) * rest if order == 2 else rest
        )
        prior_slope = W.T @ self._log_public.gradient(theta0)
        curvature = A
        if order == 2:
            M, sd_A = self._noisy_hessian(theta0, W, C_H, _HESSIAN_OF_REST * rest)
            curvature = floored(M + L0, 0.2) - L0
        precision = curvature + L0
        mean = np.asarray(np.linalg.solve(precision, gradient + prior_slope), np.float64)
        tell("checking the gradient at the mode that it predicts")
        there = theta0 + W @ mean
        slope, sd_slope = self._noisy_gradient(there, W, b, _CHECK)
        slope += W.T @ self._log_public.gradient(there)
        by_curvature = float(np.trace(product_covariance(mean, sd_A)))
        expected = math.sqrt(d * (sd_slope**2 + tilt**2 + _HARMLESS**2) + by_curvature)
        released = replace(
            first, gradient=gradient, curvature=curvature, tilt=tilt,
            curvature_noise=sd_A if order == 2 else 0.0, mean=mean, precision=precision,
            surprise=float(np.linalg.norm(slope)) / expected if expected > 0 else 0.0,
            still_to_go=W @ np.linalg.solve(precision, slope),
        )  # fmt: skip
        tell("counting what is clipped")
        return self._bound_residuals(released, residuals, residual_sizes)

    def _bound_residuals(
        self, anchor: Anchor, residuals: Residuals, sizes: PrivateHistogram
    ) -> Anchor:
        """With a bound for the residual ratios, and how many exceed it."""
        d = len(anchor.mean)
        typical = math.sqrt(2 * d) * anchor.typical_distance**anchor.order
        per_c = noise_sd(typical, self._z_chain)
        c = max(sizes.quantile(0.99), _LEAST_SIGMA / per_c if per_c > 0 else 0.0, 1e-12)
        anchor = self._count_clipped(replace(anchor, residual_clip=c), residuals, _CLIPPED / 2)
        surely = anchor.clipped_share - 2 * anchor.clipped_share_sd
        if surely > _TOLERATED and per_c > 0:
            anchor = replace(anchor, residual_clip=max(c, _LARGEST_SIGMA / per_c))
        anchor = self._count_clipped(anchor, residuals, 1 - self._purse.spent)
        return replace(anchor, sigma=per_c * anchor.residual_clip)

    def _count_clipped(self, anchor: Anchor, residuals: Residuals, share: float) -> Anchor:
        """How many units are clipped in a typical move."""
        z, permit = self._purse.permit(share)
        # ±1/2 rather than 0 and 1: half the sensitivity.
        marks = (np.where(sizes > 1, 0.5, -0.5) for sizes in self._probe(anchor, residuals))
        excess = noisy_sum(
            marks, bound=0.5, noise_multiplier=z, permit=permit, noise=self._noise
        )  # fmt: skip
        return replace(
            anchor, clipped_share=float(excess) / self._n + 0.5,
            clipped_share_sd=noise_sd(0.5, z) / self._n,
        )  # fmt: skip

    # -- the mode -----------------------------------------------------------------------------

    def _find_mode(self, theta: Vector) -> tuple[Vector, Vector, int]:
        """Private Newton steps within a trust region.

        Returns θ₀, W and the number of steps.
        """
        d, root_n, share = len(theta), math.sqrt(self._n), _FIRST_STEP
        search = NewtonSearch(theta, self._n, self._log_public)
        spent_before, last, looks = self._purse.spent, False, 2 * _SEARCH_HISTOGRAM
        while True:
            if last:
                share = min(_LAST_STEP, _MODE - (self._purse.spent - spent_before) - looks)
            search.step(*self._look(search.theta, search.W, share))
            length, travelled, error = search.length, search.travelled, search.error
            self._tell(f"step {search.rounds} towards the mode, about {length:.3g} sds away")
            if last:
                if length - travelled > 2 * QUADRATIC * root_n:
                    raise SearchLost(
                        f"it ended {length:.3g} posterior standard deviations away, and took "
                        f"{search.rounds} steps to get there"
                    )
                return search.theta, search.W, search.rounds
            # From afar a rough direction will do; nearby, the place is wanted to a fraction of an sd.
            left = length - travelled + 0.3 * travelled if math.isfinite(travelled) else length
            tolerable = max(0.7, 0.5 * left / math.sqrt(d))
            share = float(np.clip(share * (error / tolerable) ** 2, _SMALLEST_STEP, _LARGEST_STEP))
            close = min(2 * float(np.clip(error, 0.25, 1.0)) * math.sqrt(d), QUADRATIC * root_n)
            spent = self._purse.spent - spent_before
            nearly_used_up = spent + share + 2 * looks > _MODE - _LAST_STEP
            settled = search.rounds >= 3 and length < close and search.change < _SETTLED
            last = settled or nearly_used_up

    def _look(self, theta: Vector, W: Vector, share: float) -> tuple[Vector, float, Vector, float]:
        """Noisy gradient of the log-likelihood in u, minus its noisy Hessian, and the noise's sd in each."""
        sizes = self._histogram(
            map(norms, self._expansion.gradients(theta, W)), _SEARCH_HISTOGRAM, bins_per_octave=1
        )
        for_gradient = 0.65 * share
        # Where 2 % of the records are positive outcomes, these are what is beyond the quantile, and without
        # them the search ends in the wrong place. Clipped Hessians of a small group of records would make
        # every step too long in its direction.
        b = max(
            1.05 * sizes.quantile(_SEARCH_KEPT),
            balanced_bound(sizes, self._purse.multiplier(for_gradient)),
        )
        gradient, sd = self._noisy_gradient(theta, W, b, for_gradient)
        M, sd_M = self._noisy_curvature(theta, W, share - for_gradient, _SEARCH_HISTOGRAM)
        return gradient, sd, M, sd_M

    # -- releases -----------------------------------------------------------------------------

    def _histogram(
        self, sizes: Iterator[Vector], share: float = _HISTOGRAM, bins_per_octave: int = 2
    ) -> PrivateHistogram:
        z, permit = self._purse.permit(share)
        return PrivateHistogram(
            sizes, bins_per_octave=bins_per_octave, noise_multiplier=z, permit=permit,
            noise=self._noise,
        )  # fmt: skip

    def _noisy_vector(
        self, terms: Iterator[Vector], dimension: int, bound: float, share: float
    ) -> tuple[Vector, float]:
        z, permit = self._purse.permit(share)
        released = noisy_sum(
            terms, dimension=dimension, bound=bound, noise_multiplier=z, permit=permit,
            noise=self._noise,
        )  # fmt: skip
        return released, noise_sd(bound, z)

    def _noisy_gradient(
        self, theta: Vector, W: Vector, bound: float, share: float
    ) -> tuple[Vector, float]:
        return self._noisy_vector(self._expansion.gradients(theta, W), len(theta), bound, share)

    def _noisy_hessian(
        self, theta: Vector, W: Vector, bound: float, share: float
    ) -> tuple[Vector, float]:
        """Minus the Hessian of the log-likelihood, and the noise's sd on its diagonal."""
        d = len(theta)
        packed, sd = self._noisy_vector(
            self._expansion.hessians(theta, W), d * (d + 1) // 2, bound, share
        )
        return -as_matrix(packed, d), sd

    def _noisy_curvature(
        self, theta: Vector, W: Vector, share: float, histogram: float
    ) -> tuple[Vector, float]:
        """As :meth:`_noisy_hessian`, with a bound from a histogram of its own."""
        sizes = self._histogram(
            map(norms, self._expansion.hessians(theta, W)), histogram, bins_per_octave=1
        )
        # The quantile is interpolated within its bin, where all units may be; the balance takes its middle.
        C = max(
            1.05 * sizes.quantile(_SEARCH_KEPT),
            balanced_bound(sizes, self._purse.multiplier(share)),
        )
        return self._noisy_hessian(theta, W, C, share)

    # -- what the residuals are -----------------------------------------------------------------

    def _probe(self, anchor: Anchor, residuals: Residuals) -> Iterator[Vector]:
        """Units' residual ratios between public pairs of points, over the bound's shape."""
        rng = np.random.default_rng(0)  # public: where to look
        d, root = len(anchor.theta0), inverse_root(anchor.precision)
        sizes = np.empty(self._n)
        for k in range(_PROBES):
            u, new = anchor.mean + rng.standard_normal((2, d)) @ root
            ratios = residuals(new) - residuals(u)
            sizes[k::_PROBES] = np.abs(ratios[k::_PROBES]) / anchor.bound(u, new)
        yield sizes


def balanced_bound(sizes: PrivateHistogram, noise_multiplier: float) -> float:
    """The bound for a sum of vectors that balances the noise it costs against the bias of what it clips.

    In one direction, as the interval of a parameter sees it: what is clipped may all point there.

    Parameters
    ----------
    sizes : PrivateHistogram
        Of the units' vectors.
    noise_multiplier : float
        z of the sum that will be released with this bound.
    """
    candidates = np.geomspace(sizes.quantile(0.5) / 2, sizes.largest, 100)
    costs = [noise_sd(b, noise_multiplier) ** 2 + sizes.excess(b) ** 2 for b in candidates]
    return float(candidates[int(np.argmin(costs))])
