r"""The chain on residuals: draws of the posterior itself, where a normal law of the likelihood is off.

With the :mod:`residuals <pymc_dp.anchor.residuals>` h_i of pooled looks, the log acceptance ratio of a move from x
to x′ is what the looks say, known exactly, plus a noisy sum of residuals,

.. math::
    r_i &= \operatorname{clip}_B(h_i(x') - h_i(x)), \qquad B = c\,|x' - x|\,\max(|x|, |x'|, \sqrt d)^2 \\
    \hat\lambda &= \textstyle\sum_i r_i + \mathcal N(0, \sigma^2)
        + \hat a(x') - \hat a(x) + \log p(x') - \log p(x) + \log\frac{q(x' \to x)}{q(x \to x')} \\
    \text{accept} &\iff \log v < \hat\lambda - \sigma^2/2, \qquad \sigma = z \cdot \kappa B

B is the same in both directions, so the penalty test (Ceperley and Dewing, 1999) leaves invariant, as long as no
residual is clipped, the posterior times :math:`e^{\xi^\top u + u^\top \Xi u/2}`: ξ and Ξ are the looks' own noise.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pymc_dp.anchor.law import Posterior, posterior_of
from pymc_dp.anchor.model import Correction
from pymc_dp.anchor.residuals import Clipped, ResidualRatio, ResidualSizes, reach
from pymc_dp.anchor.settings import SETTINGS
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector
from pymc_dp.privacy.purse import Purse
from pymc_dp.records.measurements import Curator, PaidMeasurements
from pymc_dp.steps.acceptance import PenaltyInfo, penalty_test


@dataclass(frozen=True)
class Proposals:
    """Moves of any length, half of them such that they leave a normal law invariant, half random walks.

    Parameters
    ----------
    mean : ndarray, shape (d,)
    root : ndarray, shape (d, d)
        Of its covariance.
    """

    mean: Vector
    root: Vector

    def __call__(self, rng: np.random.Generator, x: Vector) -> tuple[Vector, float]:
        """A move, and the log ratio of the densities of making it backwards and forwards.

        Its kind and its length r are drawn without looking at x.
        """
        r, e = 1 - rng.random(), rng.standard_normal(len(x))
        if rng.random() < 0.5:
            return x + 2.4 / math.sqrt(len(x)) * r * (self.root @ e), 0.0
        new = self.mean + math.sqrt(1 - r * r) * (x - self.mean) + r * (self.root @ e)
        return new, self._log_density(x) - self._log_density(new)

    def _log_density(self, x: Vector) -> float:
        y = np.linalg.solve(self.root, x - self.mean)
        return -float(y @ y) / 2


def move(
    rng: np.random.Generator,
    x: Vector,
    *,
    propose: Callable[[np.random.Generator, Vector], tuple[Vector, float]],
    bound: Callable[[Vector, Vector], float],
    noisy_ratio: Callable[[Vector, Vector, float], float],
    log_known: Callable[[Vector], float],
    noise_sd: Callable[[float], float],
) -> tuple[Vector, PenaltyInfo, float]:
    """One move of the chain.

    Parameters
    ----------
    rng : Generator
        Public randomness.
    x : ndarray, shape (d,)
    propose : callable
        :class:`Proposals`, or any with their log ratio.
    bound : callable
        ``(x, x') -> B``, the same in both directions.
    noisy_ratio : callable
        ``(x, x', B)`` -> the released sum of clipped residual ratios. The only part that reads data.
    log_known : callable
        ``x ->`` what is known of the target's logarithm.
    noise_sd : callable
        ``B ->`` σ, of the noise in a ratio that was released with it.

    Returns
    -------
    x : ndarray, shape (d,)
    info : PenaltyInfo
    sigma : float
        Of the noise in the log ratio.
    """
    new, log_proposals = propose(rng, x)
    B = bound(x, new)
    x, info = penalty_test(
        x,
        new,
        log_u=math.log1p(-rng.random()),
        bound=lambda _: B,
        noisy_ratio=lambda x, new: noisy_ratio(x, new, B),
        log_public=log_known,
        noise_sd=noise_sd,
        kinetic_ratio=log_proposals,
    )
    return x, info, noise_sd(B)


def corrected(
    curator: Curator,
    purse: Purse,
    correction: Correction,
    log_public: PublicLogDensity,
    draws: int,
    chains: int,
) -> tuple[Vector, dict[str, float]]:
    """Draws of the chain, with the spread that the looks' noise adds, and what it says of itself.

    Parameters
    ----------
    curator : Curator
    purse : Purse
        Pays for all moves, as one part of it.
    correction : Correction
    log_public : PublicLogDensity
        The prior.
    draws, chains : int
        Draws of each chain, and how many of these.

    Returns
    -------
    draws : ndarray, shape (chains, draws, d)
        Of θ.
    measured : dict of str to float
        Functions of releases.

    Notes
    -----
    **Releases**: per move a sum of clipped residual ratios (sensitivity κB), and one count of clipped units (1).
    **Guarantee**: K Gaussian events whose multiplier z is fixed, and paid for, before the first, and one more.
    """
    expansion, r, s = correction.expansion, correction.posterior, SETTINGS
    thin, d, centre = s.moves_per_draw, len(r.mean), r.law.centre
    share = min(correction.share, 1 - purse.spent)
    moves = total_moves(chains, draws)
    z, permit = purse.permit((1 - s.of_clipped) * share, moves)
    law = Proposals(
        expansion.inverse @ (r.mean - centre),
        expansion.inverse @ np.linalg.cholesky(r.covariance),
    )

    def bound(x: Vector, new: Vector) -> float:
        return correction.clip * reach(x, new)

    def noisy_ratio(x: Vector, new: Vector, B: float) -> float:
        of = ResidualRatio(expansion, x, new)
        return float(curator.sum(of, bound=B, noise_multiplier=z, permit=permit))

    def noise_sd(B: float) -> float:
        return curator.neighbours.noise_sd(B, z)

    def log_known(x: Vector) -> float:
        if np.linalg.norm(x - law.mean) > s.radius * math.sqrt(d):
            return -math.inf
        return expansion.log_ratio(x) + log_public(expansion.to_theta(x))

    rng = np.random.default_rng(zlib.crc32(r.law.k.tobytes() + r.law.K.tobytes()))
    accepted, sigmas = 0, list[float]()

    def run(x: Vector, propose: Proposals, moves: int) -> Vector:
        nonlocal accepted
        places = np.empty((moves, d))
        for k in range(moves):
            x, info, sigma = move(
                rng, x, propose=propose, bound=bound, noisy_ratio=noisy_ratio,
                log_known=log_known, noise_sd=noise_sd,
            )  # fmt: skip
            accepted += info.accepted
            sigmas.append(sigma)
            places[k] = x
        return places

    starts = law.mean + rng.standard_normal((chains, d)) @ law.root.T
    pilots = np.array([run(x, law, pilot_moves(draws)) for x in starts])
    propose = proposals_from(pilots)
    places = np.array([run(x, propose, draws * thin)[thin - 1 :: thin] for x in pilots[:, -1]])
    pairs = rng.permutation(places.reshape(-1, d))[: 2 * s.probes]
    clipped = Clipped(
        ResidualSizes(expansion, pairs[: len(pairs) // 2 * 2].reshape(-1, 2, d)), correction.clip
    )
    many, sd = PaidMeasurements(curator, purse).count(clipped, s.of_clipped * share)
    shift, spread = noise_aware(r, log_public)
    found = centre + shift + places @ expansion.W.T
    found += rng.standard_normal(found.shape) @ spread.T
    measured = {
        "chain_share": share,
        "chain_accepted": accepted / moves,
        "chain_sigma": float(np.median(sigmas)),
        "chain_clipped": many / correction.n_units,
        "chain_clipped_sd": sd / correction.n_units,
    }
    return found, measured


def doubts(measured: Mapping[str, float]) -> list[str]:
    """What a user should be told of a chain, if there was one."""
    s, warnings = SETTINGS, list[str]()
    if not measured:
        return warnings
    surely = measured["chain_clipped"] - 2 * measured["chain_clipped_sd"]
    if surely > s.clipped_warning:
        warnings.append(
            f"Some moves of the chain clip the residuals of {measured['chain_clipped']:.1%} of the units, so that draws are "
            "drawn towards the normal law that it should correct. A larger `epsilon`, or more records, help."
        )
    if measured["chain_accepted"] < s.accepted_warning:
        warnings.append(
            f"The chain has accepted {measured['chain_accepted']:.1%} of its moves: privacy noise stops it, or the "
            "posterior is curved too strongly. Fewer `draws`, a larger `epsilon`, or other coordinates for the "
            "parameters help."
        )
    return warnings


def proposals_from(pilots: Vector) -> Proposals:
    """Proposals for the chain, by the later halves of its pilots: a function of what was released.

    Parameters
    ----------
    pilots : ndarray, shape (chains, moves, d)
    """
    d = pilots.shape[-1]
    later = pilots[:, pilots.shape[1] // 2 :].reshape(-1, d)
    # In white coordinates: a pilot that has not moved still proposes something.
    covariance: Vector = np.cov(later.T).reshape(d, d) + 1e-3 * np.eye(d)
    return Proposals(np.asarray(later.mean(axis=0)), np.asarray(np.linalg.cholesky(covariance)))


def pilot_moves(draws: int) -> int:
    """Of one chain, before its proposals are fixed."""
    s = SETTINGS
    return max(math.ceil(s.pilot * s.moves_per_draw * draws), 2 * s.chain_dimensions)


def total_moves(chains: int, draws: int) -> int:
    """K, of all chains together."""
    return chains * (SETTINGS.moves_per_draw * draws + pilot_moves(draws))


def noise_aware(posterior: Posterior, log_public: PublicLogDensity) -> tuple[Vector, Vector]:
    r"""How the posterior given the looks differs from one that takes them for exact: shift, and root of a covariance.

    With the data's precision J and noise of covariance S the mean becomes that of
    :math:`\hat\beta \sim N(Ju, J + S)`, and as much is added to the covariance. Exact where likelihood and prior
    are normal and the curvature is known.
    """
    law = posterior.law
    plain = posterior_of(replace(law, S=np.zeros_like(law.S)), log_public, posterior.mean)
    values, vectors = np.linalg.eigh(posterior.covariance - plain.covariance)
    return posterior.mean - plain.mean, vectors * np.sqrt(np.maximum(values, 0.0))
