"""What noisy numbers of many groups say of each: empirical Bayes, with the noise known."""

import numpy as np

from pymc_dp.linalg import Vector

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_PLAIN = 5.0
"""In standard deviations of the noise: a positive number this large is taken as it is. The nodes of the
quadrature are too coarse there."""
_EXTREME = 0.2
"""What is expected of a group is no further from the mean of all than this factor."""
_CANDIDATES = np.geomspace(1e-3, 10.0, 60)
"""Spreads of ratios, in units of their common size. Any is as likely as any other, per unit and not per factor: where
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


def shrunk_ratios(
    x: Vector, t: Vector, sd: float, Z: Vector, unsure: Vector | float = 0.0
) -> tuple[Vector, Vector]:
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
        What ratios may depend on.
    unsure : ndarray, shape (groups,), optional
        Variances of the sizes: what is expected of a number is as unsure as the size that it is expected of.
    """
    noise, unit = sd * sd, float(np.sqrt(np.mean(t**2)))
    spreads = (_CANDIDATES * max(np.abs(x).mean() / unit, sd / unit)) ** 2
    found = []
    for V in spreads:
        total = t**2 * V + noise + 1e-300
        X = Z * (t / total)[:, None]
        C = np.linalg.pinv(X.T @ (Z * t[:, None]), hermitian=True)
        ratio = Z @ (C @ (X.T @ x))
        common, kept = t * ratio, noise / total  # what noise leaves of what is expected
        fit = -float((np.log(total) + (x - common) ** 2 / total).sum()) / 2
        doubt = t**2 * np.einsum("ki,ij,kj->k", Z, C, Z) + ratio**2 * unsure
        found.append((fit, x + kept * (common - x), t**2 * V * kept + kept**2 * doubt))
    fits = np.array([fit for fit, _, _ in found])
    weights = _CANDIDATES * np.exp(fits - fits.max())
    weights /= weights.sum()
    means, variances = (np.array([one[k] for one in found]) for k in (1, 2))
    mean = weights @ means
    return mean, weights @ (variances + (means - mean) ** 2)
