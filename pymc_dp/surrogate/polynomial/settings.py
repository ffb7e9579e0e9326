"""The polynomial's constants, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PolynomialSettings:
    """Constants of the polynomial surrogate: nobody has to set them. Shares are of the budget, in μ².

    What no other part takes goes to the last evaluation. They were chosen on two bananas, a ring and a correlated
    Gaussian with two parameters.
    """

    degree: int = 4
    """Of the polynomial at first, and as long as it fits."""
    most_terms: int = 130
    """So many coefficients can be told from noise with some hundred thousand units."""
    most_degree: int = 8
    """A higher one takes more terms than that from two parameters on, and swings between its points."""
    points: float = 3.0
    """Design points for each term: with fewer, least squares pass noise of the projection on."""
    points_in_chart: float = 4.0
    """The same in coordinates that straighten the design, where nothing is known beyond it."""
    thinner: float = 1.0
    """Logarithm by which such coordinates must make the volume of a design smaller to be used: a ring they do not."""
    held_out: int = 12
    """Further points, at which the polynomial is compared with the log-likelihood."""
    walkers: int = 600
    """Draws that stand for a density while the next design is sought."""
    of_old: float = 1 / 3
    """Part of the last cloud that is added to this one's design, so that two surrogates can be compared."""

    histogram: float = 0.001
    """Share of each of the histograms of a round."""
    warm: float = 0.01
    """Share of a round's sum at least: noise in nats times √β is about the same in all rounds, so warm ones need
    no more."""
    warmest: float = 0.015
    """β from which on a round's share is what the noise at β = 1 asks for."""
    most_of_round: float = 0.13
    """Share of a round's sum at most."""
    stuck_share: float = 0.05
    """The same of one in a row that noise has stopped, while warm."""
    kept_for_last: float = 0.45
    """The rounds end when the last evaluation would get less than this."""
    last_histogram: float = 0.005
    """Share of each of the histograms per block before the last evaluation,"""
    moments: float = 0.03
    """of the second moments,"""
    bound_histogram: float = 0.02
    """of the histogram that sets the last bound; in quarter octaves, as half octaves raised it by 1.4,"""
    check: float = 0.03
    """and of what is asked afterwards."""
    of_check: float = 0.2
    """Part of that for its histogram."""
    rounds: int = 25
    """At most."""

    block_kept: float = 0.9
    """Quantile of a block's lengths that is its scale."""
    round_kept: float = 0.95
    """Quantile of all lengths that is the clipping bound of a round: what is clipped moves designs, not results."""
    negligible: float = 0.05
    """Blocks shorter than this, beside the longest, get no second moments: their noise costs little."""
    moments_widened: float = 1.3
    """Bound on the squares in units' second moments, in their mean as it is known before."""
    poor_moments: float = 0.5
    """Second moments are not asked for if their noise would exceed this part of the mean."""

    held: float = 0.02
    """β up to which the first region's density has a part in those of the rounds, less and less: without it, they
    wander off along the prior, where nothing is learnt."""
    noise: float = 1.0
    """Nats of noise over the cloud from which on cooling stops."""
    misfit: float = 2.0
    """The same of what held-out points say."""
    doubtful: tuple[float, float] = (2.5, 0.05)
    """And so it does if the noise at more than this part of the walkers has more than this variance."""
    border: tuple[float, float] = (0.6, 0.08)
    """And if more than this part of them have more than this leverage, of the most that is allowed."""
    spread: float = 1.6
    """Then the cloud is made so much wider."""
    hopeless: float = 3.0
    """Nats of noise at its own design's temperature from which on an evaluation is not followed: walkers would gather where
    noise has made a ridge. Nor is one that has the misfit above."""
    limit: float = 2.0
    """A surrogate is used up to so many times the leverage that 99 % of its design have,"""
    strict: float = 8.0
    """and where no polynomial fits up to this, about the most that a point of a design has itself;"""
    trusted: float = 4.0
    """times this while held-out points agree with it to"""
    agrees: float = 0.02
    """nats at the design's temperature: the next evaluation will tell."""
    unsure: float = 4.0
    """Variance of the noise from which on a density is lowered, by half of what it exceeds: where noise may have
    made what is seen, walkers would gather. All of it penalised, the cloud collapsed; none, it ran off."""
    warmer: float = 0.35
    """The next design's temperature, in that which was reached;"""
    flat: float = 0.6
    """the same when that is 1."""
    alike: float = 0.5
    """Effective part of the walkers that a step in temperature leaves."""
    steps: int = 8
    """Moves of all walkers after each such step,"""
    settle: tuple[int, int] = (40, 150)
    """and at the design's temperature, while warm and later."""
    own_noise: float = 0.1
    """β from which on every walker of a design has coefficients of its own, drawn from the noise: without, the
    last design was too narrow in some runs."""

    fine: float = 0.8
    """Nats of noise at β = 1 up to which a design may be the last,"""
    aim: float = 0.5
    """what a round's share aims at,"""
    spare: float = 0.25
    """and below which the next round gets half."""
    fits: float = 0.25
    """Nats of misfit up to which it may be."""
    cold: float = 0.2
    """β of a design that may be the last."""
    inside: tuple[float, float] = (0.5, 0.004)
    """And so it may if not more than this part of its walkers have more than this leverage, of the most that is
    allowed,"""
    within: float = 1.3
    """and if it lies within so many sds of the last one;"""
    still: tuple[float, float] = (0.03, 0.06)
    """or if not more than this part have, and it has moved by less than this, in sds,"""
    still_noise: float = 0.7
    """and this many times the noise in nats (up to 0.4)."""

    moving: float = 0.5
    """In sds: a last design that has moved by more, and does not lie inside the one before, has not arrived."""
    reached: float = 0.3
    """β below which a run has not arrived either."""

    draws: int = 2000
    """Walkers of the last density, at most; each with coefficients of its own."""
    moves: int = 200
    """Of each before its first draw,"""
    between: int = 25
    """and between draws."""

    around: float = 3.0
    """How much wider than a normal approximation the region is in which it is asked whether that will do."""
    curved: tuple[float, float] = (0.25, 2.0)
    """Nats, and times their noise, from which on it will not. With private covariates, eight of ten evaluations of a banana had .38 nats
    or more, at 2.6 times their noise or more; of 60 of regressions on 2,000 and 20,000 records none is above both. With (.06, 1.2), which
    finds another banana in ten, a beta-binomial regression with .19 nats got a polynomial, at its border, in place of a law that is right."""
    unclear: tuple[float, float] = (0.25, 4.0)
    """Nats of noise with which an evaluation that has seen nothing is made again, at so many times its share: without it a
    ring in six was missed at ε = 1."""
    leverage_warning: float = 0.5
    """The last draws' leverage over the limit, 99 % point, from which on they lean on the border of what was seen."""
    misfit_warning: float = 0.5
    """Nats that held-out points of the last draws miss, from which on their shape is not the posterior's."""
    noise_warning: float = 1.0
    """Nats of noise from which on the draws' spread is mostly that."""


SETTINGS = PolynomialSettings()
"""The ones in use."""
