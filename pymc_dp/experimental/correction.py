"""The correction distribution of the Barker acceptance test."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import linprog
from scipy.special import expit, ndtr

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.linalg import Vector

LOGISTIC_VARIANCE = math.pi**2 / 3

# Below this variance the atoms receive normal noise that makes up the difference: the fit is
# already exact to the solver's tolerance here, and narrower normals would need a denser grid.
SMALLEST_FITTED = 0.5

# Atoms go as far as the logistic tail is felt: it holds 2e-9 beyond 20. The spacing, of atoms and
# of fitted points, is a fourteenth of the narrowest standard deviation or less; a finer one
# improves the error by less than a hundredth.
REACH = 20.0
SPACING = 0.05

# The error is checked from 0 to where both tails are below rounding.
CHECKED_REACH = 40.0
CHECKED_SPACING = 2.0**-10


@dataclass(frozen=True, eq=False)
class LogisticCorrection:
    r"""A distribution V, symmetric about 0, such that N(0, C) + V is nearly Logistic(0, 1).

    V takes the values `atoms` with the probabilities `weights`; if C is below 1/2, an independent
    N(0, `spread`) is added.

    **What the error means.** Let a test accept when :math:`\lambda + N(0, C) + V > 0`, and let
    e be `cdf_error`. It accepts with a probability within e of Barker's
    :math:`1 / (1 + e^{-\lambda})`. The probabilities a(λ), a(−λ) of a move and its reverse sum
    to 1 exactly, V being symmetric, so detailed balance holds up to
    :math:`a(\lambda) / a(-\lambda) = e^\lambda (1 + O(e / \min\{a(\lambda), a(-\lambda)\}))`:
    the ratio can be quite wrong for :math:`|\lambda| > \log(1/e)` only, where the less likely
    direction is accepted with a probability of at most 2e. If k steps of the exact chain bring any
    two starts within a total variation of 1/2, the stationary distribution is within 2ke of the
    target.

    Attributes
    ----------
    variance : float
        C.
    atoms, weights : numpy.ndarray
        Ascending, and symmetric to the bit. Read-only.
    spread : float
        max(0, 1/2 − C).
    cdf_error : float
        Upper bound of the largest difference of the two distribution functions.
    """

    variance: float
    atoms: Vector
    weights: Vector
    spread: float
    cdf_error: float

    def draw(self, rng: np.random.Generator) -> float:
        """One draw of V."""
        atom = rng.choice(self.atoms, p=self.weights)
        return float(atom if self.spread == 0 else rng.normal(atom, math.sqrt(self.spread)))

    def probability_above(self, x: float) -> float:
        """P(V > x)."""
        above = (
            self.atoms > x if self.spread == 0 else ndtr((self.atoms - x) / math.sqrt(self.spread))
        )
        return float(self.weights @ above)


def logistic_correction(variance: float) -> LogisticCorrection:
    r"""The correction for normal noise of a given variance, computed once per variance.

    The atoms' weights minimise the largest difference between the two distribution functions on
    a grid: a linear program, whose solution is a probability distribution by construction. (The
    correction is the idea of Seita et al., 2017; Heikkilä et al., 2019, fit a normal mixture.)

    No V makes the error 0, since no normal is a component of the logistic. The least error of any
    V grows with C: below 2e-7 up to C = 1, 3e-5 at 1.5, 6e-4 at 2 and 4e-3 at 2.5. From about
    2.9 on the best V is 0, that is, no correction, and the error is that of the normal itself,
    0.01 to 0.023. No C is refused for its error: read `cdf_error`.

    Parameters
    ----------
    variance : float
        C, above 0 and below π²/3, the logistic's variance.

    Returns
    -------
    LogisticCorrection

    References
    ----------
    Heikkilä, Jälkö, Dikmen and Honkela (2019), Differentially private Markov chain Monte Carlo.
    Räisä (2021), Differentially private Metropolis–Hastings algorithms, section 3.3.
    Seita, Pan, Chen and Canny (2017), An efficient minibatch acceptance test for
    Metropolis–Hastings.
    """
    number = isinstance(variance, int | float | np.integer | np.floating)
    number = number and not isinstance(variance, bool)
    if not (number and 0 < variance < LOGISTIC_VARIANCE):
        raise PrivacyConfigurationError(
            "The variance of the noise in a Barker test must be a number above 0 and below "
            f"π²/3 = {LOGISTIC_VARIANCE:.4f}, the variance of the logistic distribution that the "
            f"noise is corrected to. Found {variance!r}."
        )
    return _correction(float(variance))


@lru_cache
def _correction(variance: float) -> LogisticCorrection:
    fitted = max(variance, SMALLEST_FITTED)
    atoms, weights = _fit(math.sqrt(fitted))
    for array in (atoms, weights):
        array.flags.writeable = False
    error = _cdf_error(atoms, weights, math.sqrt(fitted))
    return LogisticCorrection(variance, atoms, weights, fitted - variance, error)


def _fit(sd: float) -> tuple[Vector, Vector]:
    """Atoms and weights that minimise the error on the grid."""
    half = SPACING * np.arange(round(REACH / SPACING) + 1)
    # Points lie half-way between atoms: the error at 0 is 0 by symmetry.
    x = half + SPACING / 2
    pairs = (ndtr((x[:, None] - half) / sd) + ndtr((x[:, None] + half) / sd)) / 2
    slack = np.ones((len(x), 1))
    solved = linprog(
        np.append(np.zeros(len(half)), 1.0),
        A_ub=np.block([[pairs, -slack], [-pairs, -slack]]),
        b_ub=np.append(expit(x), -expit(x)),
        A_eq=np.append(np.ones(len(half)), 0.0)[None],
        b_eq=[1.0],
        method="highs-ds",
    )
    if not solved.success:
        raise PrivacyConfigurationError(
            f"No correction was found for a noise variance of {sd**2:g}: {solved.message}"
        )
    weight = np.maximum(solved.x[:-1], 0.0)
    atoms = np.append(-half[:0:-1], half)
    weights = np.concatenate([weight[:0:-1] / 2, weight[:1], weight[1:] / 2])
    used = weights > 0
    return atoms[used], weights[used] / weights.sum()


def _cdf_error(atoms: Vector, weights: Vector, sd: float) -> float:
    """Upper bound of sup abs(F − L), F of N(0, sd²) + atoms and L of the logistic."""
    x = np.arange(0.0, CHECKED_REACH + CHECKED_SPACING, CHECKED_SPACING)
    fitted = sum(w * ndtr((x - a) / sd) for a, w in zip(atoms, weights, strict=True))
    # Between points h apart a function exceeds its chord by at most h²/8 times its largest second
    # derivative: here that of L, and that of a normal distribution function, mixtures of which
    # cannot exceed it.
    curvature = 1 / (6 * math.sqrt(3)) + 1 / (math.sqrt(2 * math.pi * math.e) * sd**2)
    between = CHECKED_SPACING**2 / 8 * curvature
    # Past the last point both lie between their values there and 1.
    tail = 1 - min(fitted[-1], expit(x[-1]))
    return float(max(np.abs(fitted - expit(x)).max() + between, tail))
