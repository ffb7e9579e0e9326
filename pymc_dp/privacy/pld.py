r"""Privacy loss distributions: many releases composed numerically, rounded up.

For releases whose worst case is a *symmetric pair* of output distributions (P, Q), one that a
reflection of the output swaps: Gaussian, Laplace, Poisson-sampled Gaussian, all under substitute-one.
The curve :math:`\delta(\varepsilon) = \sup_S P(S) - e^\varepsilon Q(S)` at ε ≥ 0 then says all there
is to know about a pair. It is replaced by its chords between grid points, which lie above it
(*connect the dots*: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, 2022), and the losses on the grid
are added up by FFT.

The FFT is exact up to rounding errors relative to the largest probability, whereas δ is about tiny
ones. So losses are tilted first, :math:`p(\ell) \to p(\ell) e^{\lambda \ell} / M(\lambda)`, with
the λ of the best Rényi bound, which moves the probability to where δ is decided. Errors are then relative
to δ itself. dp-accounting 0.6, which does not tilt, reports ε too low when δ is small and the releases
are many.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, optimize
from scipy.special import erfcx, ndtr

Vector = NDArray[np.float64]

# Grid step / standard deviation of the loss of one release (of the whole, for fewer than _MANY
# releases). The chords add a sixth of its square to the variance.
_STEP = 0.02
_MANY = 1000
_LARGEST_GRID = 2**18
_LARGEST_FFT = 2**21

_CUT = 1e-6  # share of δ that may be paid for losses beyond the grid
_ALIASED = 1e-12  # probability, of the tilted sum, that may lie outside the FFT's window
# Of the tilted probabilities, per release: some hundred times what an FFT of 2^21 points and its
# power round.
_ROUNDING = 2.0**-44


@dataclass(frozen=True)
class Pair:
    """`count` releases, each with the same symmetric worst case.

    Parameters
    ----------
    delta : callable
        δ of one release at an array of ε ≥ 0, never below the true one.
    deviation : float
        About the standard deviation of the loss of one release; only the grid depends on it.
    count : int
        How many.
    """

    delta: Callable[[ArrayLike], Any]
    deviation: float
    count: int


def laplace_delta(epsilon: ArrayLike, noise_multiplier: float) -> Any:
    r"""δ of one Laplace release: :math:`1 - e^{(\varepsilon - 1/z)/2}` for ε ≤ 1/z, else 0."""
    return np.maximum(-np.expm1((np.asarray(epsilon, float) - 1 / noise_multiplier) / 2), 0.0)


def pure_delta(epsilon: ArrayLike, total: float) -> Any:
    r"""δ of one ε₀-private release: :math:`(e^{\varepsilon_0} - e^\varepsilon)_+ / (1 + e^{\varepsilon_0})`.

    That of randomised response, which dominates every ε₀-private mechanism (Kairouz, Oh and
    Viswanath, 2015, Theorem 2.5).
    """
    gap = -np.expm1(np.minimum(np.asarray(epsilon, float) - total, 0.0))
    return gap / (1 + math.exp(-total))


def poisson_gaussian_delta(
    epsilon: ArrayLike, noise_multiplier: float, sampling_rate: float
) -> Any:
    r"""δ of one Gaussian release of a Poisson sample, under substitute-one. Rounded up.

    The worst pair is :math:`(1-q) N(0, s^2) + q N(\mp 1, s^2)` with s = 2z (see
    ``docs/subsampled_accounting.md``). With x the point where its log ratio is ε,
    :math:`t_j = (x + j)/s` and M Mills' ratio :math:`\Phi/\varphi`,

    .. math:: \delta(\varepsilon) = q\,\varphi(t_1)
              \big(M(t_1) - (1 - w) M(t_0) - w M(t_{-1})\big),
              \quad w = e^{\varepsilon + 2x/s^2},

    which keeps its relative accuracy in the tails.

    Parameters
    ----------
    epsilon : float or array
        ε ≥ 0.
    noise_multiplier, sampling_rate : float
        z > 0 and 0 < q < 1.
    """
    epsilon, q, s = np.asarray(epsilon, float), sampling_rate, 2 * noise_multiplier
    with np.errstate(all="ignore"):
        # sinh(-x/s² - ε/2) = (1-q)/q e^(1/2s²) sinh(ε/2), solved for x with the right side in logs.
        log_sinh = epsilon / 2 + np.log(-np.expm1(-epsilon)) + math.log1p(-q) - math.log(q)
        log_sinh += 0.5 / s / s
        angle = np.where(
            log_sinh < 300, np.arcsinh(np.exp(np.minimum(log_sinh, 300)) / 2), log_sinh
        )
        x = -(angle + epsilon / 2) * s * s
        first, log_odds = (x + 1) / s, 2 * x / s / s
        density = np.exp(-(first**2) / 2) / math.sqrt(2 * math.pi)
        w = np.exp(np.minimum(epsilon + log_odds, 0.0))
        below = (1 - w) * _mills(x / s) + w * _mills((x - 1) / s)
        mills = _mills(np.minimum(first, 0.0))
        delta = np.where(first < 0, density * (mills - below), ndtr(first) - density * below)
        # What the difference and the two exponentials round.
        delta += 2.0**-48 * np.where(first < 0, density * mills, 1.0)
        delta *= 1 + 2.0**-50 * (first**2 - log_odds)
    return np.clip(q * delta, 0.0, q)[()]


def poisson_gaussian_deviation(noise_multiplier: float, sampling_rate: float) -> float:
    """About the standard deviation of the loss of :func:`poisson_gaussian_delta`'s pair."""
    mu, q = 1 / noise_multiplier, sampling_rate
    linear = 2 * q * math.sqrt(math.sinh(min(mu * mu / 4, 700.0)))
    return min(linear, mu, math.sqrt(q) * mu * math.hypot(1, mu / 2))


def _mills(t: Vector) -> Vector:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(-t / math.sqrt(2)))


def pld_epsilon(pairs: list[Pair], delta: float) -> float:
    """ε at which the adaptive composition of `pairs` is (ε, δ)-DP, never below the true one.

    Composition of dominating pairs: Zhu, Dong and Wang (2022), Theorem 10.
    """
    if sum(p.count * float(p.delta(0.0)) for p in pairs) <= delta:
        return 0.0
    count = sum(p.count for p in pairs)
    deviation = max(math.hypot(*(math.sqrt(p.count) * p.deviation for p in pairs)), 1e-100)
    cut = _CUT * delta / len(pairs)
    tops = [_where_below(p.delta, cut / p.count) for p in pairs]
    step = max(_STEP * deviation / math.sqrt(count + _MANY), max(tops) / _LARGEST_GRID)
    while True:
        losses = [_Loss.on_grid(p, top, step) for p, top in zip(pairs, tops, strict=True)]
        total = _Total(losses, step, delta, deviation)
        if total.width <= _LARGEST_FFT * step:
            return total.epsilon()
        step = 1.01 * total.width / _LARGEST_FFT


def _where_below(curve: Callable[[ArrayLike], Any], value: float) -> float:
    """About the smallest ε at which a falling `curve` is at most `value`; never less."""
    high = 2.0**-40
    while curve(high) > value:
        high *= 2
    low = high / 2
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > value else (low, middle)
    return high


def _log_sum_exp(x: Vector) -> float:
    largest = float(x.max())
    return largest + math.log(float(np.exp(x - largest).sum()))


@dataclass(frozen=True)
class _Loss:
    """`count` independent losses on the grid -m, …, m times the step; the rest of one is infinite."""

    value: Vector
    log_mass: Vector
    infinite: float
    count: int

    @classmethod
    def on_grid(cls, pair: Pair, top: float, step: float) -> "_Loss":
        """Connect the dots of δ at 0, step, …; symmetry gives the other half.

        Where two chords meet, their slopes in e^ε differ by the mass of Q there, and P has e^ε times
        that. At -ε the two are exchanged, and 0 has the rest.
        """
        m = max(1, math.ceil(top / step))
        epsilon = step * np.arange(m + 1)
        delta = np.asarray(pair.delta(epsilon), float)
        fall = np.append(-np.diff(delta), 0.0)
        mass = (fall[:-1] - math.exp(-step) * fall[1:]) / -math.expm1(-step)
        mass = np.maximum(mass, 0.0)
        mirrored = mass * np.exp(-epsilon[1:])
        rest = max(1 - delta[-1] - math.fsum(mass) - math.fsum(mirrored), 0.0)
        with np.errstate(divide="ignore"):
            log_mass = np.log(np.concatenate([mirrored[::-1], [rest], mass]))
        return cls(np.append(-epsilon[:0:-1], epsilon), log_mass, float(delta[-1]), pair.count)

    def log_moment(self, tilt: float) -> float:
        """Log of E e^(tilt · loss), for one of the losses; infinite ones left out."""
        return _log_sum_exp(self.log_mass + tilt * self.value)

    def tilted(self, tilt: float) -> Vector:
        """Probabilities on the grid, tilted and normalised."""
        log_mass = self.log_mass + tilt * self.value
        return np.asarray(np.exp(log_mass - _log_sum_exp(log_mass)))


class _Total:
    """The sum of all losses, as seen through a tilt."""

    def __init__(self, losses: list[_Loss], step: float, delta: float, deviation: float):
        self.losses, self.step, self.delta = losses, step, delta
        self.count = sum(loss.count for loss in losses)
        self.infinite = -math.expm1(math.fsum(x.count * math.log1p(-x.infinite) for x in losses))
        log_delta = math.log(delta - self.infinite)

        def bound(log_tilt: float) -> float:
            # The largest value of the integrand of `excess`, below, is λ^λ / (1 + λ)^(1 + λ).
            tilt = math.exp(log_tilt)
            largest = -math.log1p(tilt) - tilt * math.log1p(1 / tilt)
            return (self._log_moment(tilt) + largest - log_delta) / tilt

        around = -math.log(deviation)
        best = optimize.minimize_scalar(
            bound, bounds=(around - 3, around + 12), method="bounded", options={"xatol": 0.02}
        )
        self.tilt, self.bound = math.exp(best.x), float(best.fun)
        self.scale = self._log_moment(self.tilt)

        mean, variance = 0.0, 0.0
        for loss in losses:
            p = loss.tilted(self.tilt)
            center = float(p @ loss.value)
            mean += loss.count * center
            variance += loss.count * float(p @ (loss.value - center) ** 2)
        # Chernoff bounds of the tilted sum, valid at any second tilt.
        room = -math.log(_ALIASED)
        tilts = math.sqrt(2 * room / variance) * 2.0 ** np.arange(-5, 3)
        above, below = (
            min(
                (self._log_moment(self.tilt + sign * t) - self.scale - sign * t * mean + room) / t
                for t in tilts
            )
            for sign in (1, -1)
        )
        self.low = mean - below
        self.width = above + below

    def _log_moment(self, tilt: float) -> float:
        return math.fsum(loss.count * loss.log_moment(tilt) for loss in self.losses)

    def epsilon(self) -> float:
        """Smallest ε with δ(ε) ≤ δ, from above."""
        value, mass = self._tilted()
        spare = 2 * _ALIASED + _ROUNDING * self.count
        log_delta = math.log((1 - _CUT) * self.delta - self.infinite)

        def excess(epsilon: float) -> float:
            # δ(ε) = M e^(-λε) E (1 - e^(ε - L))₊ e^(-λ(L - ε)) under the tilted law of L.
            first = np.searchsorted(value, epsilon)
            over = value[first:] - epsilon
            seen = mass[first:] @ (np.exp(-self.tilt * over) * -np.expm1(-over))
            return self.scale - self.tilt * epsilon + math.log(max(seen, 0.0) + spare) - log_delta

        if excess(0.0) <= 0:
            return 0.0
        if excess(self.bound) >= 0:
            return self.bound
        tolerance = 2.0**-36 * self.bound
        epsilon = float(optimize.brentq(excess, 0.0, self.bound, xtol=tolerance))
        while excess(epsilon) > 0:
            epsilon += tolerance
        return min(epsilon, self.bound)

    def _tilted(self) -> tuple[Vector, Vector]:
        """Values of the sum in the window and their tilted probabilities."""
        n = fft.next_fast_len(math.ceil(self.width / self.step) + 2, real=True)
        spectrum: Any = 1.0
        for loss in self.losses:
            p = loss.tilted(self.tilt)
            # Index k of the grid at k modulo n: sums come out modulo n as well.
            wrapped = np.bincount((np.arange(p.size) - p.size // 2) % n, weights=p, minlength=n)
            spectrum = spectrum * fft.rfft(wrapped) ** loss.count
        first = math.floor(self.low / self.step)
        mass = np.roll(fft.irfft(spectrum, n), -(first % n))
        return self.step * (first + np.arange(n)), mass
