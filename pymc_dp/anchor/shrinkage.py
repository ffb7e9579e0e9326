"""What noisy numbers of many groups say of each: empirical Bayes, with the noise known."""

import numpy as np

from pymc_dp.linalg import Vector

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_PLAIN = 5.0
"""In standard deviations of the noise: a positive number this large is taken as it is. The nodes of the
quadrature are too coarse there."""
_CANDIDATES = np.concatenate([[0.0], np.geomspace(1e-4, 10.0, 60)])
"""Spreads of ratios, in units of their common size."""


def shrunk_positive(x: Vector, sd: float) -> tuple[Vector, Vector]:
    """Positive numbers that were seen with noise: posterior means and variances.

    Under a log-normal law with the moments of all of them, less the noise's.

    Parameters
    ----------
    x : ndarray, shape (groups,)
    sd : float
        Standard deviation of the noise in each.
    """
    mean = max(float(x.mean()), sd / np.sqrt(len(x)), 1e-300)
    variance = max(float(x.var()) - sd * sd, (0.3 * mean) ** 2)
    spread = np.sqrt(np.log1p(variance / mean**2))
    values = np.exp(np.log(mean) - spread**2 / 2 + spread * _NODES)
    log_likelihood = -(((x[:, None] - values) / max(sd, 1e-300)) ** 2) / 2
    weights = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True)) * _WEIGHTS
    weights /= weights.sum(axis=1, keepdims=True)
    first = weights @ values
    second = np.maximum(weights @ values**2 - first**2, 0.0)
    plain = np.clip((x / max(sd, 1e-300) - _PLAIN + 2) / 2, 0.0, 1.0)
    return plain * x + (1 - plain) * first, plain * sd * sd + (1 - plain) * second


def shrunk_ratios(x: Vector, t: Vector, sd: float, Z: Vector) -> tuple[Vector, Vector]:
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
    """
    noise, unit = sd * sd, float(np.sqrt(np.mean(t**2)))
    spreads = (_CANDIDATES * max(np.abs(x).mean() / unit, sd / unit)) ** 2
    found = []
    for V in spreads:
        total = t**2 * V + noise + 1e-300
        X = Z * (t / total)[:, None]
        gamma = np.linalg.lstsq(X.T @ (Z * t[:, None]), X.T @ x, rcond=None)[0]
        common = t * (Z @ gamma)
        fit = -float((np.log(total) + (x - common) ** 2 / total).sum()) / 2
        found.append((fit, common + t**2 * V / total * (x - common), t**2 * V * noise / total))
    weights = np.exp(np.array([fit for fit, _, _ in found]) - max(fit for fit, _, _ in found))
    weights /= weights.sum()
    means, variances = (np.array([one[k] for one in found]) for k in (1, 2))
    mean = weights @ means
    return mean, weights @ (variances + (means - mean) ** 2)
