"""The anchor's constants, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnchorSettings:
    """Constants of the normal surrogate: nobody has to set them. Shares are of the budget, in μ².

    What no other part takes goes to the last two looks, half each.
    """

    search: float = 0.4
    """Share from which on the way to the mode is broken off."""
    first_step: tuple[float, float] = (5e-4, 0.01)
    """Range of the share of its first step: from afar, a rough direction will do."""
    step: tuple[float, float] = (3e-4, 0.03)
    """Range of the share of any other; it gets what the noise in the one before makes necessary."""
    gradient_of_step: float = 0.7
    """The gradient's part of these; the Hessian gets the rest."""
    settled: float = 6.0
    """The search is not over while the curvature changes by a larger factor than this."""
    search_kept: float = 0.95
    """Quantile of their sizes up to which gradients of the search are not clipped. Where 2 % of the records are
    positive outcomes, they are what is beyond a bound by balance alone, and the search ends elsewhere."""
    hessians_of_search: float = 0.99
    """The same of its Hessians: a small group's clipped ones make every step too long in its direction."""
    prior_sds: float = 2.0
    """No step is longer than this, in the prior's standard deviations of any parameter: towards small scales
    a Newton step is many times too long, and the way back takes as many steps."""
    quadratic: float = 0.35
    """A record's log-likelihood looks quadratic over about this many times √n posterior standard
    deviations."""
    lost: float = 100.0
    """A search has diverged that is so many times as far from the mode as at first, or as a record's own
    scale √n if that is more. Searches that arrived, on six regressions on real data, unscaled covariates
    among them, were never twice as far; one that was left alone ended at 1e40."""

    of_units: float = 1e-4
    """Share of the number of units, where that is private: it sets scales only."""
    rough_count: float = 0.004
    """Noise in a bin of a rough histogram, in parts of all units."""
    fine_count: float = 0.002
    """The same of a fine one, which sets the final bounds."""
    cheap: tuple[float, float] = (2e-5, 0.0025)
    """Range of the share of a rough histogram."""
    fine: tuple[float, float] = (0.006, 0.015)
    """Range of the share of a fine one."""
    poor: float = 0.01
    """If a rough histogram would cost more than this, there are fewer of them, rougher ones."""
    few_count: float = 0.003
    """The same of a count of long gradients or Hessians on the way."""
    few: tuple[float, float] = (1e-4, 0.002)
    """Range of the share of one."""
    final_count: float = 0.005
    """Share of one near the mode, where the final bounds are chosen."""
    places: int = 3
    """Over so many of them counts of units that stay long are averaged."""
    counted: float = 3.0
    """In sds of its noise: by how many units a count must exceed what a histogram shows to be believed."""
    well_beyond: float = 1.5
    """In clipping bounds: the length from which units are counted that a histogram may not show."""
    further: float = 4.0
    """Factor between the lengths beyond which such units are counted, while there are any,"""
    followed: int = 5
    """so often at most."""
    looked_for: float = 0.8
    """Share of the budget from which on no such units are looked for: the last looks come first."""
    group_rate: float = 0.5
    """Rate at which the gradients of a group become fewer, in the length at which they begin."""
    untold: float = 0.6
    """Part of the information that the sizes of gradients must leave open for units to be taken to be hidden."""
    rare: float = 0.05
    """A group of more units than this is seen in a histogram."""

    first_look: tuple[float, float] = (0.01, 0.08)
    """Range of the share of the first look's gradient: about one posterior sd is close enough."""
    hessian_of_first: float = 0.15
    """The first look's Hessian, in shares of its gradient."""
    near_kept: float = 0.99
    """Quantile of their sizes up to which gradients of the first look are not clipped."""
    hessians_kept: float = 0.998
    """Quantile of their sizes up to which Hessians of looks are not clipped."""
    hessian_part: tuple[float, float] = (0.002, 0.25)
    """Range of the Hessian's part of the last two looks."""
    least_believed: float = 0.1
    """On the way, a direction keeps at least this part of the curvature that it had."""
    most_believed: float = 0.5
    """And not more than this, however noisy."""
    quadratic_change: float = 2.0
    """Curvature changes by about √(2/n) of itself over a posterior sd: half as much again as in a regression's
    scale, where it changes most."""
    prior_change: float = 30.0
    """And by √30 of itself over a prior sd, falling off as its square: what a log scale does."""
    bias: float = 1 / 3
    """Weight of what is clipped beside the noise's variance, in choosing a bound: half-way, on a logarithmic
    scale, between all of it in one parameter's direction and in any."""
    pooled_share: float = 0.4
    """The first look's bound is chosen as if it cost this much: what all looks clip adds up, noise does not."""
    careful: float = 5.0
    """Longest Newton step to a law's mode, in its sds: the prior may be anything but quadratic."""

    surprise_warning: float = 3.0
    """By how many standard deviations looks may contradict each other without a warning."""
    surprise_unusable: float = 5.0
    """From how many on the draws are marked as of no use."""
    little_learnt: float = 0.02
    """Of the prior's variance: a parameter that has kept more should not be far from its prior."""
    pulled: float = 5.0
    """By how many sds it may be, or else its information was lost and not its gradient."""
    improbable: float = 40.0
    """Nats that a parameter costs the prior: nine of its standard deviations. A search that noise had led there was
    sure of it."""
    prior_warning: float = 0.8
    """Of the prior's variance: a parameter that has kept more is said to be the prior's."""
    shift_warning: float = 1.0
    """Above, intervals are mostly privacy noise, and that is said."""
    shift_unusable: float = 10.0
    """If all parameters' privacy shifts are above, nothing was learnt."""


SETTINGS = AnchorSettings()
"""The ones in use."""
