"""What noisy numbers of many groups say of each: empirical Bayes, with the noise known."""

from typing import NamedTuple

import numpy as np

from pymc_dp.linalg import Vector

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_PLAIN = 5.0
"""In standard deviations of the noise: a positive number this large is taken as it is. The nodes of the
quadrature are too coarse there."""
_EXTREME = 0.2
"""What is expected of a group is no further from the mean of all than this factor; nor is its information, by secants, from what curvatures say.
With half and twice as much errors are within 5 % of these (`benchmarks/hierarchical_constants.py`)."""
_SURE = 1e-12
"""Variance of what is not in doubt: far below any that noise leaves, and not 0, which has no inverse."""
_CANDIDATES = np.geomspace(1e-3, 1.0, 40)
"""Spreads of ratios, in units of the most that is possible. Any is as likely as any other, per unit and not per factor: where
noise hides the spread, most of these would be next to none."""


def shrunk_positive(x: Vector, sd: float, Z: Vector) -> tuple[Vector, Vector]:
    r"""Positive numbers that were seen with noise: posterior means and variances.

    Under :math:`x_k = m_k r_k`, :math:`m_k = z_k^\top\gamma` by least squares, r log-normal with mean 1 and
    the spread that all of them have beyond the noise's. Their mean is that of what was seen.

    Parameters
    ----------
    x : ndarray, shape (groups,)
    sd : float
        Standard deviation of the noise in each.
    Z : ndarray, shape (groups, k)
        What they may depend on, 1 first.
    """
    overall = max(float(x.mean()), sd / np.sqrt(len(x)), 1e-300)
    fitted = Z @ np.linalg.lstsq(Z, x, rcond=None)[0]
    m = np.clip(fitted, _EXTREME * overall, overall / _EXTREME)
    variance = max((float(np.mean((x - m) ** 2)) - sd * sd) / float(np.mean(m * m)), 0.3**2)
    spread = np.sqrt(np.log1p(variance))
    values = m[:, None] * np.exp(-(spread**2) / 2 + spread * _NODES)
    log_likelihood = -(((x[:, None] - values) / max(sd, 1e-300)) ** 2) / 2
    weights = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True)) * _WEIGHTS
    weights /= weights.sum(axis=1, keepdims=True)
    first = (weights * values).sum(axis=1)
    second = np.maximum((weights * values**2).sum(axis=1) - first**2, 0.0)
    plain = np.clip((x / max(sd, 1e-300) - _PLAIN + 2) / 2, 0.0, 1.0)
    mean = plain * x + (1 - plain) * first
    # Numbers drawn together need not add up to what all of them are: that was seen best.
    return mean * (overall / mean.mean()), plain * sd * sd + (1 - plain) * second


def with_totals(
    x: Vector, variances: Vector, W: Vector, A: Vector, totals: Vector, of_totals: Vector
) -> tuple[Vector, Vector, Vector]:
    r"""Numbers that were seen with noise, and sums of them that were seen beside it: what both tell, by least squares.

    As counts and their totals are made consistent (Hay, Rastogi, Miklau and Suciu, *Boosting the accuracy of differentially private histograms through
    consistency*, VLDB 2010, §4), with errors that have something in common, too.

    Parameters
    ----------
    x : ndarray, shape (n,)
        Seen with errors of covariance :math:`C = \operatorname{diag}(v) + W W^\top`.
    variances : ndarray, shape (n,)
        v.
    W : ndarray, shape (n, l)
    A : ndarray, shape (n, r)
        Of :math:`A^\top x`, the sums.
    totals, of_totals : ndarray, shape (r,)
        Of the sums, as they were seen, and variances of independent errors in them.

    Returns
    -------
    x : ndarray, shape (n,)
    U : ndarray, shape (n, l + r)
    M : ndarray, shape (l + r, l + r)
        Errors now are of covariance :math:`\operatorname{diag}(v) + U M U^\top`.
    """
    CA = variances[:, None] * A + W @ (W.T @ A)
    of_seen = np.linalg.inv(A.T @ CA + np.diag(of_totals))
    k, both = W.shape[1], W.shape[1] + A.shape[1]
    M = np.zeros((both, both))
    M[:k, :k], M[k:, k:] = np.eye(k), -of_seen
    return x + CA @ (of_seen @ (totals - A.T @ x)), np.hstack([W, CA]), M


def by_secants(
    gradients: Vector, ways: Vector, variances: Vector, unsure: Vector
) -> tuple[Vector, Vector]:
    r"""Parts of their information, as curvatures say it, that rows have by gradients at several places: means and variances.

    The score of a row is :math:`g_t = s\, J\, (\alpha_* - \alpha_t)` with noise of variance :math:`1 / w_t` at the place :math:`\alpha_t`, and :math:`s \sim \mathcal N(1, u)`. With what
    :math:`s J \alpha_*` is integrated out under a flat prior, s is normal with the precision :math:`1 / u + \sum_t w_t (x_t - \bar x)^2` and the mean :math:`(1 / u - \sum_t w_t (x_t - \bar x)
    (g_t - \bar g))` over that, :math:`x_t = J \alpha_t`, and means by the weights w: gradients that differ by a way that is known tell how steep it is.

    Parameters
    ----------
    gradients, ways, variances : ndarray, shape (times, rows)
        g, x and 1 / w.
    unsure : ndarray, shape (rows,)
        u.

    Returns
    -------
    means, variances : ndarray, shape (rows,)

    Notes
    -----
    A regression whose intercept is not known and whose slope has a normal prior; docs/surrogate_proofs.md, "Secants", says why effects are too near to each other without.
    """
    w, prior = 1 / variances, 1 / (unsure + _SURE)
    away, differ = (x - (w * x).sum(axis=0) / w.sum(axis=0) for x in (ways, gradients))
    precision = prior + (w * away**2).sum(axis=0)
    parts = (prior - (w * away * differ).sum(axis=0)) / precision
    return np.clip(parts, _EXTREME, 1 / _EXTREME), 1 / precision


class Sums(NamedTuple):
    r"""Sums of the numbers of all groups, seen with noise of their own: :math:`\text{seen} = F^\top x + \text{noise}`.

    Parameters
    ----------
    F : ndarray, shape (groups, m)
    seen, variances : ndarray, shape (m,)
    """

    F: Vector
    seen: Vector
    variances: Vector


class Ratios(NamedTuple):
    """Posterior means and variances of numbers, shape (groups,), and how they hang together with what they depend on.

    Parameters
    ----------
    mean, variance : ndarray, shape (groups,)
    noise : ndarray, shape (groups,)
        Covariance of the mean with the noise.
    slope, unsure : ndarray, shape (groups,)
        Change of what is not known yet of a number along the contrast, and its standard deviation, in all groups one and the same.
    """

    mean: Vector
    variance: Vector
    noise: Vector
    slope: Vector
    unsure: Vector


def shrunk_ratios(
    x: Vector, t: Vector, sd: float, Z: Vector, most: float, unsure: Vector | float = 0.0,
    sums: Sums | None = None, contrast: Vector | None = None, less: float = 1.0,
) -> Ratios:  # fmt: skip
    r"""Numbers :math:`x_k = t_k \rho_k` that were seen with noise: posterior means and variances.

    Under :math:`\rho_k \sim \mathcal N(z_k^\top \gamma, V)`, averaged over V as far as it is likely: moments would
    let the few largest groups decide, and the most likely V, which may be 0, would make all of this sure.

    Parameters
    ----------
    x : ndarray, shape (groups,)
    t : ndarray, shape (groups,)
        Sizes of the groups, positive.
    sd : float
        Standard deviation of the noise in each.
    Z : ndarray, shape (groups, k)
        What ratios may depend on, 1 first, the other columns with mean 0 and variance 1.
    most : float
        Root mean square of ratios, at most.
    unsure : ndarray, shape (groups,), optional
        Variances of the sizes: what is expected of a number is as unsure as the size that it is expected of.
    sums : Sums, optional
        Seen beside the numbers. Noise of many groups adds up in sums of these, and is none in what was summed before.
    contrast : ndarray, shape (k,), optional
        Of γ, whose effect is wanted.
    less : float, optional
        Prior precision of the second coefficient, beside that of the others.
    """
    groups, k = Z.shape
    F, noise = (np.zeros((groups, 0)) if sums is None else sums.F), sd * sd + 1e-300
    of_sums = np.zeros((0, 0)) if sums is None else np.diag(sums.variances)
    h = np.zeros(k) if contrast is None else contrast
    ridge, found = np.ones(k), []
    ridge[1:2] = less
    # What was seen of both, and its noise: (1 - F G Fᵀ) times what it is in each.
    G = np.linalg.inv(F.T @ F + of_sums / noise) if F.shape[1] else of_sums
    if sums is not None:
        x = x + F @ (G @ (sums.seen - F.T @ x))
    for V in (_CANDIDATES * most) ** 2:
        ridge[0] = V / most**2
        total = t**2 * V + noise
        kept = noise / total  # what noise leaves of what is expected
        left = np.asarray(of_sums, np.float64)
        if F.shape[1]:
            left = np.asarray(np.linalg.inv(of_sums / noise + (F * (1 - kept)[:, None]).T @ F))

        def weighted(v: Vector, kept: Vector = kept, left: Vector = left) -> Vector:
            """By the inverse of the covariance, times the noise."""
            own = v * (kept if v.ndim == 1 else kept[:, None])
            return own + (F * kept[:, None]) @ (left @ (F.T @ own))

        X = Z * t[:, None]
        C = np.linalg.inv(X.T @ weighted(X) / noise + np.diag(ridge / V))
        gamma = C @ (X.T @ weighted(x)) / noise
        common = X @ gamma
        off = weighted(x - common)
        fit = (
            -float(np.log(total).sum() + (x - common) @ off / noise + gamma @ (ridge * gamma) / V)
            / 2
        )
        fit += (
            np.linalg.slogdet(left)[1] + np.linalg.slogdet(C)[1] + float(np.log(ridge / V).sum())
        ) / 2
        doubt = np.einsum("ki,ij,kj->k", X, C, X) + (Z @ gamma) ** 2 * unsure
        slope = kept * t
        found.append((
            fit, x - off + F @ (G @ (F.T @ off)), t**2 * V * kept + kept**2 * doubt,
            float(h @ gamma) * slope, float(h @ C @ h) * slope**2, noise * (1 - kept),
        ))  # fmt: skip
    fits = np.array([fit for fit, *_ in found])
    weights = _CANDIDATES * np.exp(fits - fits.max())
    weights /= weights.sum()
    means, variances, slopes, doubts, noises = (
        np.array([one[k] for one in found]) for k in range(1, 6)
    )
    mean, slope = weights @ means, weights @ slopes
    return Ratios(
        mean,
        weights @ (variances + (means - mean) ** 2),
        weights @ noises,
        slope,
        np.sqrt(weights @ (doubts + (slopes - slope) ** 2)),
    )
