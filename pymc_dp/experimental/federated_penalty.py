r"""The penalty algorithm among owners who do not trust each other (Yıldırım, 2016, Algorithm 2).

.. math::
    \hat d_j &= \textstyle\sum_{i \in j} \operatorname{clip}_B\big(\ell_i(\theta') - \ell_i(\theta)\big)
        + \mathcal N(0, (2 B z_j)^2), \qquad B = b\,|R^{-1}(\theta' - \theta)| \\
    \text{accept} &\iff \log v < \textstyle\sum_j \hat d_j + \log p(\theta') - \log p(\theta)
        - \tfrac12 \sum_j (2 B z_j)^2

Owner j adds its own noise, and nobody else sees what it was added to. The test subtracts half of the summed
variance, so the posterior of all owners' records is invariant as long as no ratio is clipped; what N noises
cost is acceptance.
"""

import math
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.blocking import RaveledVars
from pymc.step_methods.arraystep import ArrayStep
from pymc.step_methods.compound import Competence

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.federated.agreement import RATIO, Ask
from pymc_dp.federated.owners import Owners
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.privacy.neighbours import SUBSTITUTE_ONE
from pymc_dp.steps.acceptance import penalty_test

_STATS: dict[str, tuple[Any, list[int]]] = {
    "accepted": (bool, []),
    "accept_rate": (np.float64, []),
}
# Random-walk Metropolis does best at 2.4/√d, and when noise limits it, with this much noise in a ratio.
_OPTIMAL, _OPTIMAL_SIGMA = 2.4, 2.4


class FederatedPenalty(ArrayStep):
    r"""Random-walk Metropolis on the sum of owners' noisy log-likelihood ratios.

    One exchange with all owners per iteration, tuning included. To be given to ``pm.sample`` with the
    coordinator's own model, which holds the prior and no data, and with ``cores=1``.

    Parameters
    ----------
    ask : callable
        As in :func:`~pymc_dp.federated.find_surrogate`.
    clip : float
        b: a unit's log-likelihood ratio is clipped to b times the distance moved, :math:`|R^{-1} D|`.
    root : array, shape (d, d), optional
        R: proposals are :math:`\theta + s R e` with a standard normal e. Public: from the prior, or from a
        :class:`~pymc_dp.federated.Surrogate`. Default: the identity.
    scale : float, optional
        s. Default: :math:`2.4/\sqrt d`, or less where the owners' noise is large.
    model : Model, optional
        The coordinator's.
    rng : optional
        As in PyMC's steps. Drives proposals and tests only; noise is the owners'.

    Raises
    ------
    PrivacyError
        If owners have other parameters, or agreed to no ratios; while sampling, if they refuse: there are no
        more iterations than they agreed to.
    PrivacyConfigurationError
        If a setting is out of its range.

    Notes
    -----
    The coordinator learns and promises nothing by itself: what leaves an owner is that owner's
    :class:`~pymc_dp.federated.Owner` to protect, and all else is computed from that.
    """

    name = "federated_penalty"
    default_blocked = True
    default_tune_steps = 0
    stats_dtypes_shapes = _STATS

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Leave the choice of variables to ``__init__``; the host would clone a step per variable."""
        return super().__new__(cls, **{**kwargs, "vars": None})

    def __init__(
        self,
        ask: Ask,
        *,
        clip: float,
        root: ArrayLike | None = None,
        scale: float | None = None,
        model: pm.Model | None = None,
        rng: Any = None,
    ):
        model = pm.modelcontext(model)
        parameters = ParameterSpace(model)
        d = parameters.d
        self._root = np.eye(d) if root is None else np.asarray(root, dtype=np.float64)
        if self._root.shape != (d, d) or not np.isfinite(self._root).all():
            raise PrivacyConfigurationError(f"`root` must be finite, of shape ({d}, {d}).")
        for name, value in (("clip", clip), ("scale", 1.0 if scale is None else scale)):
            if not 0 < value < math.inf:
                raise PrivacyConfigurationError(f"`{name}` must be positive. Found {value!r}.")
        self._owners = Owners(ask, parameters)
        self._owners.require(RATIO)
        self._clip, self._z = clip, self._owners.ratio_multiplier
        widest = _OPTIMAL_SIGMA / self._noise_sd(clip)
        self.scale = min(_OPTIMAL, widest) / math.sqrt(d) if scale is None else scale
        self._log_public = PublicLogDensity(parameters)
        super().__init__(list(model.value_vars), [], rng=rng)
        # PyMC 5 reads this one.
        self.stats_dtypes = [{name: dtype for name, (dtype, _) in _STATS.items()}]

    def _noise_sd(self, bound: float) -> float:
        """Of all owners' noise together, in a ratio of which each unit has at most `bound`."""
        return SUBSTITUTE_ONE.noise_sd(bound, self._z)

    def astep(self, apoint: RaveledVars, *args: Any) -> tuple[RaveledVars, list[dict[str, Any]]]:
        """One iteration."""
        theta = np.asarray(apoint.data, dtype=np.float64)
        e = self.scale * self.rng.standard_normal(len(theta))
        bound = self._clip * float(np.linalg.norm(e))

        theta, info = penalty_test(
            theta,
            theta + self._root @ e,
            log_u=math.log1p(-self.rng.random()),
            bound=lambda _: bound,
            noisy_ratio=lambda theta, proposal: self._owners.ratio(theta, proposal, bound),
            log_public=self._log_public,
            noise_sd=self._noise_sd,
        )
        return RaveledVars(theta, apoint.point_map_info), [info._asdict()]

    @staticmethod
    def competence(var: Any, has_grad: bool = False) -> Competence:
        """Never picked by PyMC on its own: owners' answers are theirs to spend."""
        return Competence.INCOMPATIBLE
