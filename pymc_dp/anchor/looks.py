"""How to look at a place: in which frame, and within which bounds."""

import math
from collections.abc import Sequence

import numpy as np

from pymc_dp.anchor.look import NOBODY, Choice, Group, Look
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.linalg import Vector, as_matrix, power
from pymc_dp.privacy.histogram import PrivateHistogram
from pymc_dp.records.measurements import Measurements
from pymc_dp.records.queries import Gradient, Hessian, NormExceeds, Query


class Looks:
    r"""Looks at the tempered log-likelihood, and what decides in which frame and within which bounds.

    Parameters
    ----------
    measure : Measurements
        Asked, and paid, for everything.
    n_units : float
        How many units there are, about: public, or released.
    scales : ndarray, shape (d,)
        The prior's, of every parameter: public.
    tempering : float
        T.

    Attributes
    ----------
    cheap, fine, few : float
        Shares of a histogram that looks roughly, or closely, and of a count of few units.
    poor : bool
        Whether even a rough histogram costs too much to look at many.
    """

    def __init__(
        self, measure: Measurements, n_units: float, scales: Vector, tempering: float = 1.0
    ):
        s, n = SETTINGS, n_units
        self.measure, self.n_units, self.scales, self._tempering = measure, n, scales, tempering
        whole = measure.count_sd(1.0)
        rough = (whole / (s.rough_count * n)) ** 2
        self.poor = rough > s.poor
        self.cheap = float(np.clip(rough, *s.cheap))
        self._longest, self._still = 0.0, list[tuple[float, float]]()
        self.fine = float(np.clip((whole / (s.fine_count * n)) ** 2, *s.fine))
        self.few = float(np.clip((whole / (s.few_count * n)) ** 2, *s.few))

    def gradient_sizes(self, theta: Vector, V: Vector, share: float, bins: int) -> PrivateHistogram:
        """Histogram of the norms of units' gradients, with so many bins per octave."""
        return self.measure.histogram(Gradient(theta, V, self._tempering), share, bins)

    def hessian_sizes(self, theta: Vector, V: Vector, share: float) -> PrivateHistogram:
        """Histogram of the Frobenius norms of units' Hessians."""
        return self.measure.histogram(Hessian(theta, V, self._tempering), share, 2)

    def bins_for(self, share: float) -> int:
        """How many bins per octave a histogram of this share can tell apart."""
        noise = self.measure.count_sd(share) / self.n_units
        return 4 if noise < 0.0015 else 2 if noise < 0.01 else 1

    def look(
        self,
        theta: Vector,
        chosen: Choice,
        for_gradient: float,
        for_hessian: float,
        kept: float,
        of_sizes: float = 0.0,
    ) -> Look:
        """Gradient and curvature at a place.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        chosen : Choice
            In which frame, and within which bounds.
        for_gradient, for_hessian : float
            Shares.
        kept : float
            Quantile of their sizes up to which Hessians are not clipped.
        of_sizes : float
            Share of the histogram of these; default: :attr:`cheap`.
        """
        V, b = chosen.V, chosen.b
        G, sd = self.measure.sum(Gradient(theta, V, self._tempering), b, for_gradient)
        sizes = self.hessian_sizes(theta, V, of_sizes or self.cheap)
        C = self.bound(sizes, for_hessian, kept, chosen.hessians)
        packed, sd_A = self.measure.sum(Hessian(theta, V, self._tempering), C, for_hessian)
        inverse = np.linalg.inv(V)
        A = -inverse.T @ as_matrix(packed, len(theta)) @ inverse
        return Look(theta, V, inverse.T @ G, A, sd, sd_A, b, C, chosen.excess, chosen.units)

    def bound(
        self,
        sizes: PrivateHistogram,
        share: float,
        kept: float = 0.0,
        group: Group = NOBODY,
    ) -> float:
        """Clipping bound of a sum: by balance, but not below a quantile of the sizes.

        The balance is in one direction, as the interval of a parameter sees it: what is clipped may all
        point there.

        Parameters
        ----------
        sizes : PrivateHistogram
        share : float
            What the sum will cost.
        kept : float
            The quantile.
        group : Group
            That the histogram does not show.
        """
        candidates = np.geomspace(sizes.quantile(0.5) / 2, max(sizes.largest, group.longest), 200)
        noise = self.measure.noise_sd(1.0, share)
        costs = [
            (noise * b) ** 2 + SETTINGS.bias * (sizes.excess(b) + group.excess(b)) ** 2
            for b in candidates
        ]
        b = float(candidates[int(np.argmin(costs))])
        return max(b, 1.05 * sizes.quantile(kept)) if kept else b

    def choose(
        self,
        theta: Vector,
        frames: Sequence[Vector],
        P: Vector | None,
        share: float,
        for_gradient: float,
        bins: int,
        kept: float = 0.0,
        for_count: float = 0.0,
    ) -> list[Choice]:
        r"""How to look in each of some frames; the one in which a gradient's noise hurts least comes first.

        By a histogram in each of them, and a count, from the second place on, of units that are still as long as
        the longest at the first, where rare outcomes look like all others.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        frames : sequence of ndarray of shape (d, d)
        P : ndarray, shape (d, d), optional
            The posterior's precision, as far as known.
        share : float
            Of each histogram.
        for_gradient : float
            Share of the gradient to come.
        bins : int
            Per octave.
        kept : float
            As in :meth:`bound`.
        for_count : float
            Share of a count; 0 for none.
        """
        still = (0.0, 1.0)
        if for_count > 0 and self._longest > 0:
            still = self._still_long(theta, for_count)
        found, seen = [], math.inf
        for V in frames:
            sizes = self.gradient_sizes(theta, V, share, bins)
            group = self._in(V, still, sizes)
            found.append(self._choice(V, sizes, group, P, for_gradient, kept))
            seen = min(seen, sizes.quantile(0.995) / self._size(V))
        self._longest = self._longest or seen
        return sorted(found, key=lambda choice: choice.loss)

    def _choice(
        self,
        V: Vector,
        sizes: PrivateHistogram,
        group: Group,
        P: Vector | None,
        for_gradient: float,
        kept: float,
    ) -> Choice:
        if group is NOBODY and P is not None:
            group = self._untold(V, sizes, P)
        b = self.bound(sizes, for_gradient, kept, group)
        noise = self.measure.noise_sd(b, for_gradient)
        loss = _loss(V, math.hypot(noise, sizes.excess(b) + group.excess(b)), P)
        return Choice(V, b, sizes, group, loss)

    def closely(
        self,
        theta: Vector,
        choices: Sequence[Choice],
        P: Vector,
        for_gradient: float,
        kept: float,
        for_count: float,
        of_hessians: float,
        finely: float = 0.0,
    ) -> tuple[Choice, PrivateHistogram]:
        """The best of some frames, now that units are counted there that are too few to be seen in a histogram.

        A small group clipped makes every step too long in the direction that these units alone speak of,
        and the interval there too wide. Their Hessians are all long, of their gradients some: these are as long as
        their information says.

        Parameters
        ----------
        theta : ndarray, shape (d,)
        choices : sequence of Choice
            The best one first, as far as known.
        P : ndarray, shape (d, d)
        for_gradient, for_count, of_hessians, finely : float
            Shares: of the gradient to come; of each count; of the histogram of Hessians; and of another one of
            the gradients, 0 for none.
        kept : float
            As in :meth:`bound`.

        Returns
        -------
        Choice
        PrivateHistogram
            Of the Hessians' sizes there.
        """
        s = SETTINGS
        rest: list[tuple[Choice, PrivateHistogram | None]] = [(one, None) for one in choices]
        while True:
            (V, _, sizes, group, *_), _ = rest.pop(0)
            gradients = Gradient(theta, V, self._tempering)
            if finely:
                sizes = self.gradient_sizes(theta, V, finely, self.bins_for(finely))
                length = s.well_beyond * self.bound(sizes, for_gradient, kept)
                group = self._beyond(gradients, length, sizes, for_count)
            of = Hessian(theta, V, self._tempering)
            hessian_sizes = self.hessian_sizes(theta, V, of_hessians)
            length = hessian_sizes.quantile(s.hessians_kept)
            hidden = self._beyond(of, length, hessian_sizes, for_count)
            by_hessians = _gradients_of(hidden.many, np.sqrt(hidden.lengths + hidden.rates))
            group = max(group, by_hessians, key=lambda g: g.excess(sizes.quantile(0.99)))
            seen = self._choice(V, sizes, group, P, for_gradient, kept)
            rest.append((seen._replace(hessians=hidden), hessian_sizes))
            rest.sort(key=lambda found: found[0].loss)
            best, hessians = rest[0]
            if hessians is not None:
                return best, hessians

    def _size(self, V: Vector) -> float:
        """How much longer a frame makes what is equally long in all of the prior's scales."""
        return float(np.linalg.norm(V / self.scales[:, None])) / math.sqrt(len(V))

    def _in(self, V: Vector, still: tuple[float, float], sizes: PrivateHistogram) -> Group:
        """Of the units that are still long, those that a histogram in this frame does not show."""
        many, sd = still
        length = self._as_at_first(V)
        hidden = many - sizes.beyond(length)
        return _gradients_of(hidden, length) if hidden >= SETTINGS.counted * sd else NOBODY

    def _as_at_first(self, V: Vector) -> float:
        """Half of what the longest gradient at the first place is in a frame."""
        return self._longest * self._size(V) / 2

    def _untold(self, V: Vector, sizes: PrivateHistogram, P: Vector) -> Group:
        r"""Units that must be there if a histogram shows too little: scores' squares add up to the information.

        Of rare outcomes, which noise may hide from a histogram and from counts, nothing is seen but that all others
        are sure of theirs. They are as long as units were at first.
        """
        J = V.T @ (P - np.diag(self.scales**-2.0)) @ V
        untold = float(np.trace(J)) - sizes.squares
        if untold < SETTINGS.untold * float(np.trace(J)):
            return NOBODY
        length = self._as_at_first(V)
        many = untold / length**2
        # They would be seen: the model, or its scale so far, claims too much. In rough histograms they are not.
        if many > sizes.most_hidden and not self.poor:
            return NOBODY
        return _gradients_of(many, length)

    def _still_long(self, theta: Vector, share: float) -> tuple[float, float]:
        """How many units' gradients are half as long as the longest at the first place, and the noise's sd.

        A mean over places: they are the same units at most of them.
        """
        D, s = np.diag(self.scales), SETTINGS
        of = NormExceeds(Gradient(theta, D, self._tempering), self._longest / 2)
        many, sd = self.measure.count(of, share)
        if many > s.rare * self.n_units:
            self._still.clear()
            return 0.0, sd
        self._still = [(many, sd), *self._still][: s.places]
        counts, sds = np.array(self._still).T
        weights = sds**-2
        return float(counts @ weights / weights.sum()), float(weights.sum() ** -0.5)

    def _beyond(self, of: Query, length: float, sizes: PrivateHistogram, share: float) -> Group:
        """Units longer than this that a histogram does not show: counted, and followed as far as there are any.

        A histogram spreads them over its bins, each with noise of its own; a count does not.
        """
        s = SETTINGS
        many, lengths, factor = list[float](), list[float](), s.further
        while len(many) < s.followed and self.measure.spent < s.looked_for:
            found, sd = self.measure.count(NormExceeds(of, length), share)
            hidden = found - (sizes.beyond(length) if not many else 0.0)
            if not many and (hidden < s.counted * sd or found > s.rare * self.n_units):
                break
            if hidden < s.counted * sd:  # the rest is not far
                factor = math.sqrt(factor)
                found, _ = self.measure.count(NormExceeds(of, length / factor), share)
                break
            many.append(min([hidden, *many]))
            lengths.append(length)
            length *= factor
        if not many:
            return NOBODY
        rates = np.array(lengths)
        rates[-1] *= (factor - 1) / math.log(max(many[-1] / max(found, sd), factor))
        return Group(-np.diff([*many, 0.0]), np.array(lengths), rates)


def _gradients_of(many: Vector | float, lengths: Vector | float) -> Group:
    """Units whose gradients are so long, and longer."""
    lengths = np.atleast_1d(lengths)
    return Group(np.atleast_1d(many), lengths, SETTINGS.group_rate * lengths)


def _loss(V: Vector, noise: float, P: Vector | None) -> float:
    """What noise of this size in all directions of a frame costs: mean of log(1 + variance added)."""
    if P is None:  # nothing is known yet: the volume
        return math.log(noise) - float(np.linalg.slogdet(V)[1]) / len(V)
    C, inverse = np.linalg.inv(P), np.linalg.inv(V)
    added = C @ (noise**2 * inverse.T @ inverse) @ C
    return float(np.mean(np.log1p(np.diag(added) / np.diag(C))))


def middle_frame(P: Vector, scales: Vector) -> Vector:
    r"""Half-way between white and the prior's scales D: :math:`W M^{-1/4}`, :math:`M = W^\top D^{-2} W`."""
    W = power(P, -0.5)
    M = W.T @ (W / scales[:, None] ** 2)
    return np.asarray(W @ power(M / np.trace(M), -0.25))
