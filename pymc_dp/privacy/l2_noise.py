r"""Noise of the ℓ2 mechanism on whole numbers, drawn exactly: every decision is one of integers.

A vector with density :math:`\propto e^{-\lVert x \rVert / s}` in d dimensions is :math:`s \lVert M \rVert N`, with M
of d + 1 and N of d independent standard normal numbers (proof on the page of the ℓ2 mechanism). These are drawn to as
many binary digits as are needed (Karney, *Sampling exactly from the normal distribution*, 2016), and enclosures of the
product by integers are refined until the whole number next to each entry is certain.
"""

import math
from collections.abc import Callable
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from pymc_dp.privacy.subsampling import Words

_WORD = 64
# Digits after the point with which the first look at an entry is decided but for one time in 2^60 or so.
_SPARE = 2 * _WORD

Draw = Callable[[], int]


def l2_noise(scale: float, dimension: int, words: Words) -> NDArray[np.int64]:
    r"""Nearest whole numbers to a vector of density :math:`\propto e^{-\lVert x \rVert_2 / scale}`, exactly.

    What is released with it, an integer vector K plus these, is the rounding of K plus the vector itself, as K is
    whole: a function of the continuous mechanism's output, whose guarantee it has.

    Parameters
    ----------
    scale : float
        s > 0, a binary fraction like any float.
    dimension : int
        d.
    words : callable
        ``size ->`` fresh words of 64 secret uniform bits.

    Returns
    -------
    ndarray of int64, shape (dimension,)
        Modulo 2^64, so that no value is too large.
    """
    numbers = chain.from_iterable(words(_WORD).tolist() for _ in repeat(None))
    draw = numbers.__next__
    radius = [_HalfNormal(draw) for _ in range(dimension + 1)]
    entries = [_HalfNormal(draw) for _ in range(dimension)]
    signs = [1 if draw() & 1 else -1 for _ in range(dimension)]
    times, over = scale.as_integer_ratio()
    bits = max(0, math.frexp(scale)[1] + _SPARE)
    while True:
        low, high = (
            [
                _nearest(times * root * (entry.below(bits) + more), over << 2 * bits)
                for entry in entries
            ]
            for more, root in enumerate(_roots(radius, bits))
        )
        if low == high:
            break
        bits += _WORD
    signed = (sign * n for sign, n in zip(signs, low, strict=True))
    return np.array([n % 2**_WORD for n in signed], dtype=np.uint64).astype(np.int64)


def _roots(radius: "list[_HalfNormal]", bits: int) -> tuple[int, int]:
    """Whole numbers below and above 2^bits times the length of a vector."""
    below = [one.below(bits) for one in radius]
    return math.isqrt(sum(n * n for n in below)), 1 + math.isqrt(sum((n + 1) ** 2 for n in below))


def _nearest(above: int, below: int) -> int:
    return (2 * above + below) // (2 * below)


class _HalfNormal:
    """The absolute value of a standard normal number, known to some of its digits and drawn on when asked.

    Karney's Algorithm N: the whole part k is drawn with probability proportional to e^(-k²/2), the rest x from [0, 1],
    and both are kept with probability e^(-x (2k + x)/2).
    """

    def __init__(self, draw: Draw):
        self._draw = draw
        while True:
            self._whole = 0
            while _happens(_half, draw):
                self._whole += 1
            k = self._whole
            if not all(_happens(_half, draw) for _ in range(k * (k - 1))):
                continue
            self._digits, self._known = draw(), _WORD
            if all(_happens(self._exponent, draw) for _ in range(k + 1)):
                return

    def below(self, bits: int) -> int:
        """The number times 2^bits, rounded down; one more is above it."""
        while self._known < bits:
            self._refine()
        return (self._whole << bits) + (self._digits >> self._known - bits)

    def _refine(self) -> None:
        self._digits = self._digits << _WORD | self._draw()
        self._known += _WORD

    def _exponent(self, again: bool) -> tuple[int, int, int]:
        """Enclosure of x (2k + x) / (2k + 2), narrower if asked again: a (k+1)-th of the exponent, at most 1."""
        if again:
            self._refine()
        k, x, one = self._whole, self._digits, 1 << self._known
        low, high = (y * (2 * k * one + y) for y in (x, x + 1))
        return low, high, (2 * k + 2) * one * one


def _half(again: bool) -> tuple[int, int, int]:
    return 1, 1, 2


def _happens(exponent: Callable[[bool], tuple[int, int, int]], draw: Draw) -> bool:
    """True with probability e^(-γ), for γ in [0, 1].

    A series of events of probability γ/1, γ/2, … ends after an even number of them with that probability (Canonne,
    Kamath and Steinke, 2020, Algorithm 1).

    Parameters
    ----------
    exponent : callable
        ``again -> (low, high, over)``, with γ between low/over and high/over; narrower if it is asked again.
    draw : callable
        64 uniform bits.
    """
    k = 1
    while _is_below(exponent, k, draw):
        k += 1
    return k % 2 == 1


def _is_below(exponent: Callable[[bool], tuple[int, int, int]], k: int, draw: Draw) -> bool:
    """Whether a uniform number, drawn until that is certain, is below γ/k."""
    digits, known = draw(), _WORD
    low, high, over = exponent(False)
    while True:
        if (digits + 1) * k * over <= low << known:
            return True
        if digits * k * over >= high << known:
            return False
        digits, known = digits << _WORD | draw(), known + _WORD
        low, high, over = exponent(True)
