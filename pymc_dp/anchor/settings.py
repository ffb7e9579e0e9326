"""The anchor's constants, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnchorSettings:
    """Constants of the anchored sampler: nobody has to set them. Shares are of the anchor's budget, in μ².

    What a part leaves over goes to the anchor's gradient and Hessian.
    """

    mode: float = 0.38
    """Share of all steps towards the mode, at most."""
    first_step: float = 0.012
    """Share of the first step: from afar, a rough direction will do."""
    smallest_step: float = 0.003
    """Share of a step in between, at least; it gets what the noise in the one before makes necessary."""
    largest_step: float = 0.04
    """Share of a step in between, at most."""
    last_step: float = 0.15
    """Share of the last step, which decides where the anchor is."""
    settled: float = 4.0
    """No step is the last while the curvature changes by a larger factor than this."""
    search_sizes: float = 0.007
    """Share of each histogram of the search, of which a step has two."""
    search_kept: float = 0.95
    """Quantile of their sizes up to which terms of the search are not clipped. Where 2 % of the records are
    positive outcomes, they are what is beyond a bound by balance alone, and the search ends elsewhere."""
    quadratic: float = 0.35
    """A record's log-likelihood looks quadratic over about this many times √n posterior standard
    deviations."""
    lost: float = 100.0
    """A search has diverged that is so many times as far from the mode as at first, or as a record's own
    scale √n if that is more. Searches that arrived, on six regressions on real data, unscaled covariates
    among them, were never twice as far; one that was left alone ended at 1e40."""

    curvature: float = 0.05
    """Share of the curvature that W is made of."""
    sizes: float = 0.025
    """Share of a histogram: of the sizes of Hessians (two), and of residuals."""
    gradient_sizes: float = 0.04
    """Share of the histogram of the gradients' sizes: their bound decides the noise that is left."""
    hessians_kept: float = 0.998
    """Quantile of their sizes up to which Hessians of the anchor are not clipped: what is clipped of them is
    for the chain to make good."""
    largest_hessian_noise: float = 0.8
    """A second-order anchor is worth it while the noise of its Hessian is below this at a typical point."""
    hessian_of_rest: float = 0.25
    """Of what is left for the anchor, the Hessian's part."""
    check: float = 0.04
    """Share of the gradient at the mode that the anchor predicts."""
    harmless: float = 0.3
    """A gradient this long there, in posterior standard deviations per parameter, the chain makes good."""

    clipped: float = 0.01
    """Share of counting how many residuals are clipped: half for a first bound, the rest for the last."""
    probes: int = 8
    """Public pairs of points at which residuals are sized; a unit is looked at in one of them."""
    residuals_kept: float = 0.99
    """Quantile of their sizes up to which residuals are not clipped."""
    least_sigma: float = 0.4
    """Where the noise in a log acceptance ratio would be less, the bound is widened: less is clipped."""
    largest_sigma: float = 1.0
    """Up to this noise the bound is widened where more than :attr:`tolerated` is still clipped."""
    tolerated: float = 0.005
    """Share of units whose residual may be clipped in a typical move."""

    autoregressive: float = 0.5
    """Part of the moves that leave the anchor's normal approximation invariant."""
    random_walk: float = 0.3
    """Part of the moves that are random walks of full length; the rest are short ones."""
    short: float = 0.4
    """Length of a short move, of either kind, beside a full one."""
    short_autoregressive: float = 0.15
    """Of the autoregressive moves, how many are short."""
    radius: float = 10.0
    """In typical distances: beyond, the anchor is no guide, and the target may not even be proper."""

    clipped_warning: float = 0.01
    """Share of clipped units from which draws are doubtful."""
    clipped_refusal: float = 0.10
    """Share of clipped units from which they are worthless."""
    surprise_warning: float = 3.0
    """By how many standard deviations an anchor may disagree with itself without a warning."""
    surprise_refusal: float = 5.0
    """From how many on it is refused."""


SETTINGS = AnchorSettings()
"""The ones in use."""
