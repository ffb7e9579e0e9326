r"""DP-HMC: Hamiltonian Monte Carlo with noisy gradients and a noisy acceptance test.

Räisä, Koskela and Honkela (2021); Räisä (2021), chapter 4, Algorithm 4. With momentum
:math:`p \sim \mathcal N(0, M)` and :math:`\tilde G(\theta) = T (\sum_i \operatorname{clip}_{b_g}
(\nabla\ell_i(\theta)) + \mathcal N(0, (z_g \cdot \kappa b_g)^2 I)) + \nabla\log p(\theta)`, drawn afresh
at each of the L + 1 points of a trajectory (κ = 2 under substitute-one neighbours, 1 under add-or-remove),

.. math::
    p \mathrel{+}= \tfrac{\eta}{2}\tilde G(\theta_0), \quad
    \theta_j = \theta_{j-1} + \eta M^{-1} p, \quad
    p \mathrel{+}= \eta\,\tilde G(\theta_j) \;\;(\text{half of it at } j = L),

and the move is accepted iff :math:`\log u < \hat\lambda + K(p_0) - K(p_L) - \sigma^2/2` with the
noisy clipped ratio :math:`\hat\lambda` and σ of :mod:`~pymc_dp.steps.penalty`, and
:math:`K(p) = p^\top M^{-1} p / 2`. (Algorithm 4 as printed lacks the η of the position update and
the logarithm of u; the noise standard deviations are 2 b σ′, which Theorem 4.7 prints as variances.)

The noise of a gradient depends on the position alone, so a trajectory run backwards meets the same
distribution of noise: the proposal is symmetric, and clipping the gradients only makes it worse at
proposing. The posterior is invariant when no *ratio* is clipped (Theorem 4.4).

For the same reason any function of :math:`\tilde G(\theta)` can take its place. Here it is shortened to
:math:`|\tilde G| \le c\sqrt d / L\eta`: far from the mode the gradients of n records, and always their
noise, would otherwise carry the momentum, and so the move, further than the noise of the ratio lets a
test accept.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pymc.step_methods.state import dataclass_state
from pymc.step_methods.step_sizes import StepSizeState

from pymc_dp.checks import fraction, positive, whole
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.linalg import Vector
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.plans import Permit
from pymc_dp.records.queries import Gradient
from pymc_dp.records.shards import Shards
from pymc_dp.steps.acceptance import NoisyRatio, PenaltyInfo, penalty_test
from pymc_dp.steps.base import PrivateStep, PrivateStepState
from pymc_dp.steps.scales import (
    SIGMA_OF_DEFAULTS,
    covariance_like,
    dual_averaging,
    lower_factor,
)

_DEFAULT_LEAPFROG = 8
# A trajectory may be carried by twice the momentum that it starts with. On six logistic regressions on
# real data this reached the posterior from the start in the fewest iterations, of 1, 2, 3, 4 and no limit.
_MAX_DRIFT = 2.0
# Half-width of the jitter of the step size, relative to it: enough to break up resonances.
_JITTER = 0.1


class Mass:
    """Kinetic energy of a Gaussian momentum.

    Parameters
    ----------
    mass : float or array
        M: a number, d of them, or a d × d positive definite matrix.
    d : int
        Number of parameters.
    """

    def __init__(self, mass: float | ArrayLike, d: int):
        if np.ndim(mass) == 0:
            array = np.full(d, positive("mass", mass))
        else:
            array = covariance_like("mass", mass, d)
        matrix = np.diag(array) if array.ndim == 1 else array
        self._factor = lower_factor(matrix)
        self._inverse = np.linalg.inv(matrix)

    def draw(self, rng: np.random.Generator) -> Vector:
        """Momentum from N(0, M)."""
        return self._factor @ rng.standard_normal(len(self._factor))

    def velocity(self, p: Vector) -> Vector:
        """M⁻¹p."""
        return self._inverse @ p

    def energy(self, p: Vector) -> float:
        """pᵀM⁻¹p / 2."""
        return float(p @ self._inverse @ p) / 2

    @property
    def typical_speed(self) -> float:
        """Root mean square of |M⁻¹p|."""
        return math.sqrt(float(np.trace(self._inverse)))

    def shortened(self, gradient: Vector, length: float) -> Vector:
        """The gradient, no longer than `length` in the metric M⁻¹."""
        size = math.sqrt(2 * self.energy(gradient))
        return gradient if size <= length else gradient * (length / size)


def leapfrog(
    theta: Vector,
    p: Vector,
    *,
    gradient: Callable[[Vector], Vector],
    mass: Mass,
    step_size: float,
    n_leapfrog: int,
) -> tuple[Vector, Vector]:
    """`n_leapfrog` steps of size η; `gradient` is called ``n_leapfrog + 1`` times.

    A trajectory that overflows is cut short and ends where it did.
    """
    half = step_size / 2
    p = p + half * gradient(theta)
    for j in range(1, n_leapfrog + 1):
        theta = theta + step_size * mass.velocity(p)
        if not np.isfinite(theta).all():
            return theta, p
        p = p + (half if j == n_leapfrog else step_size) * gradient(theta)
    return theta, p


def hmc_transition(
    rng: np.random.Generator,
    theta: Vector,
    *,
    gradient: Callable[[Vector], Vector],
    mass: Mass,
    step_size: float,
    n_leapfrog: int,
    bound: Callable[[Vector], float],
    noisy_ratio: Callable[[Vector, Vector], float],
    log_public: Callable[[Vector], float],
    noise_sd: Callable[[float], float],
) -> tuple[Vector, PenaltyInfo]:
    """One transition of DP-HMC.

    Parameters
    ----------
    rng : Generator
        Public randomness: the momentum, then the uniform of the test.
    theta : ndarray, shape (d,)
        Current point.
    gradient : callable
        ``theta ->`` noisy gradient of the log density, with fresh noise at each call.
    mass : Mass
        M.
    step_size : float
        η, the same for the whole trajectory.
    n_leapfrog : int
        L.
    bound, noisy_ratio, log_public, noise_sd
        As in :func:`~pymc_dp.steps.penalty.penalty_transition`.

    Returns
    -------
    theta : ndarray, shape (d,)
    info : PenaltyInfo
    """
    p = mass.draw(rng)
    log_u = math.log1p(-rng.random())
    with np.errstate(all="ignore"):  # an unstable trajectory is rejected below
        proposal, p_end = leapfrog(
            theta, p, gradient=gradient, mass=mass, step_size=step_size, n_leapfrog=n_leapfrog
        )
        kinetic_ratio = mass.energy(p) - mass.energy(p_end)
    return penalty_test(
        theta,
        proposal,
        log_u=log_u,
        bound=bound,
        noisy_ratio=noisy_ratio,
        log_public=log_public,
        noise_sd=noise_sd,
        kinetic_ratio=kinetic_ratio,
    )


@dataclass_state
class DPHMCState(PrivateStepState):
    """State of a :class:`DPHMC` chain. The jitter is a sequence fixed by its seed."""

    adaptation: StepSizeState
    jitter_seed: int


class DPHMC(PrivateStep):
    r"""Differentially private Hamiltonian Monte Carlo.

    Parameters
    ----------
    vars : list, optional
        All free variables, if given: a private step shares its chain with no other.
    gradient_share : float
        Part of the budget (of μ²) that gradients get, the acceptance test getting the rest.
    noise_multiplier, gradient_multiplier : float, optional
        Instead of `epsilon`: z of the ratio and of each gradient, noise standard deviation /
        sensitivity (the papers' τ and τ_g are z/√n).
    n_leapfrog : int, optional
        L, leapfrog steps of an iteration; each iteration releases L + 1 gradients. Default 8.
    path_length : float, optional
        Instead of `n_leapfrog`: L is this over `step_size`, rounded up.
    step_size : float, optional
        η in unconstrained space. Jittered by 10 % from iteration to iteration. Default:
        :math:`1/(L\sqrt{T n})`, right for records that each carry about one unit of information, as with
        covariates of about 1; or less where the ratio's noise would leave few moves accepted. Of the noise
        alone where n is private.
    max_drift : float
        c: how far the gradients of a trajectory may carry its momentum, in units of the momentum's own
        size. Infinity is the published algorithm.
    clip : float, optional
        b_l: a unit's log-likelihood ratio is clipped to b_l‖θ_L − θ_0‖. Default √d.
    gradient_clip : float, optional
        b_g: a unit's gradient is clipped to this Euclidean norm. Clipping many gradients costs
        acceptance, never exactness. Default: `clip`.
    mass : float or array
        M: a number, d of them, or a d × d matrix; best the posterior's inverse covariance as far
        as it is publicly known. Default 1.
    target_accept : float
        Acceptance rate that tuning steers η to, by dual averaging on the noisy test. L stays.
    tempering, shards
        As in :class:`~pymc_dp.DPPenalty`.
    draws, tune, chains, epsilon, delta, **run
        As in :class:`~pymc_dp.steps.run.RunSettings`; from the budget both noises are calibrated.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be sampled privately as it stands, or has no gradient.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    **Releases**: per iteration L + 1 noisy sums of the clipped gradients (sensitivity κb_g in L2
    norm) and one of the clipped log-likelihood ratios (sensitivity κB, B = b_l‖θ_L − θ_0‖), κ = 2 under
    substitute-one neighbours and 1 under add-or-remove. **Guarantee**: k iterations in all are (ε, δ)-DP with
    :math:`\mu^2 = k (1/z_l^2 + (L + 1)/z_g^2)` in
    :func:`~pymc_dp.privacy.accounting.gaussian_delta` (Räisä, 2021, Theorem 4.7).
    """

    name = "dp_hmc"
    _state_class = DPHMCState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        noise_multiplier: float | None = None,
        gradient_multiplier: float | None = None,
        gradient_share: float = 0.4,
        n_leapfrog: int | None = None,
        path_length: float | None = None,
        step_size: float | None = None,
        max_drift: float = _MAX_DRIFT,
        clip: float | None = None,
        gradient_clip: float | None = None,
        mass: float | ArrayLike = 1.0,
        target_accept: float = 0.6,
        tempering: float = 1.0,
        shards: Shards | None = None,
        **run: Any,
    ):
        if (noise_multiplier is None) != (gradient_multiplier is None):
            raise PrivacyConfigurationError(
                "`gradient_multiplier` and `noise_multiplier` come together: the noise of the "
                "gradients and of the acceptance test. Or give `epsilon`."
            )
        gradient_share = fraction("gradient_share", gradient_share)
        self._target_accept = fraction("target_accept", target_accept)
        self._tempering = fraction("tempering", tempering, one_allowed=True)
        self._L = _leapfrog_steps(n_leapfrog, path_length, step_size)
        self._max_drift = max_drift if max_drift == math.inf else positive("max_drift", max_drift)
        super().__init__(
            vars,
            run,
            instead={
                "noise_multiplier": noise_multiplier,
                "gradient_multiplier": gradient_multiplier,
            },
            shards=shards,
        )
        d = self._d = self.compiled.d
        self._clip = math.sqrt(d) if clip is None else positive("clip", clip)
        self._gradient_clip = (
            self._clip if gradient_clip is None else positive("gradient_clip", gradient_clip)
        )
        self._mass = Mass(mass, d)
        gradients = self._L + 1
        self._z = self.run.multiplier(noise_multiplier)
        self._z_gradient = float(gradient_multiplier or 0.0)
        if self.run.epsilon is not None:
            # μ² of one iteration, 1/z², is shared out between the test and the L + 1 gradients.
            # A hair more, so that the rounding of the shares cannot add up to more than the budget.
            z = self._z * (1 + 2.0**-40)
            self._z = z / math.sqrt(1 - gradient_share)
            self._z_gradient = z * math.sqrt(gradients / gradient_share)
        elif (self._z_gradient == 0) != (self._z == 0):
            raise PrivacyConfigurationError(
                "`gradient_multiplier` and `noise_multiplier` must both be positive."
            )
        self._first_step_size = (
            self._default_step_size() if step_size is None else positive("step_size", step_size)
        )
        self.pays(
            Gaussian(self._z),
            Gaussian(self._z_gradient, gradients),
            settings={
                "clip": self._clip,
                "gradient_clip": self._gradient_clip,
                "n_leapfrog": self._L,
                "step_size": self._first_step_size,
                "max_drift": self._max_drift,
                "mass": mass if isinstance(mass, int | float) else str(np.asarray(mass).tolist()),
                "tempering": self._tempering,
                "target_accept": self._target_accept,
                "gradient_share": gradient_share,
            },
        )
        self._curator = self.curator(derivatives=1)
        self._ratio = NoisyRatio(self._curator, self._z, self._tempering)
        self._start_chain()

    def _default_step_size(self) -> float:
        """From public numbers only: what n records are likely to allow, and what the noise does."""
        likely = 1 / math.sqrt(self._tempering * self.units_to_count_on)
        reach = self._tempering * self._clip * self._mass.typical_speed
        noise = self.run.neighbours.noise_sd(reach, self._z)
        allowed = SIGMA_OF_DEFAULTS / noise if noise > 0 else math.inf
        return min(likely, allowed) / self._L

    def _start_chain(self) -> None:
        self.adaptation = dual_averaging(self._first_step_size, self._target_accept)
        self.jitter_seed = int(self.rng.integers(2**31))
        self._jitter: tuple[int, Vector] | None = None

    def _jittered(self, step_size: float) -> float:
        if self._jitter is None or self._jitter[0] != self.jitter_seed:
            from scipy.stats.qmc import Halton  # which takes as long to import as PyMC

            sequence = Halton(1, scramble=True, rng=self.jitter_seed).random(self.iterations)
            self._jitter = self.jitter_seed, sequence[:, 0]
        return step_size * (1 + _JITTER * (2 * float(self._jitter[1][self.used - 1]) - 1))

    def _iterate(self, theta: Vector, permit: Permit) -> tuple[Vector, dict[str, Any]]:
        tuning = not self.tuning_over
        step_size = float(self.adaptation.current(tuning))
        longest = self._max_drift * math.sqrt(self._d) / (self._L * step_size)

        def gradient(theta: Vector) -> Vector:
            released = self._curator.sum(
                Gradient(theta),
                bound=self._gradient_clip,
                noise_multiplier=self._z_gradient,
                permit=permit,
            )
            slope = self._tempering * released + self.log_public.gradient(theta)
            return self._mass.shortened(slope, longest)

        def bound(move: Vector) -> float:
            return self._clip * float(np.linalg.norm(move))

        new, info = hmc_transition(
            self.rng,
            theta,
            gradient=gradient,
            mass=self._mass,
            step_size=self._jittered(step_size),
            n_leapfrog=self._L,
            bound=lambda move: self._ratio.release_bound(bound(move)),
            noisy_ratio=lambda theta, new: self._ratio(theta, new, bound(new - theta), permit),
            log_public=self.log_public,
            noise_sd=self._ratio.noise_sd,
        )
        if tuning:
            # A function of released numbers: it costs nothing beyond the iteration itself.
            self.adaptation.update(info.accept_rate, tuning)
        return new, {**info._asdict(), "scale": step_size}


def _leapfrog_steps(
    n_leapfrog: int | None, path_length: float | None, step_size: float | None
) -> int:
    if path_length is None:
        return whole("n_leapfrog", _DEFAULT_LEAPFROG if n_leapfrog is None else n_leapfrog, 1)
    if n_leapfrog is not None or step_size is None:
        raise PrivacyConfigurationError(
            "`path_length` sets the number of leapfrog steps together with `step_size`, which it "
            "needs, and in place of `n_leapfrog`."
        )
    return math.ceil(positive("path_length", path_length) / positive("step_size", step_size))
