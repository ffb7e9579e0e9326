"""The joint likelihood of all owners as a normal approximation, from their noisy terms."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import clone_model

from pymc_dp.diagnostics import Diagnostics
from pymc_dp.exceptions import PrivacyError
from pymc_dp.federated.agreement import Ask, parameters_digest
from pymc_dp.federated.owners import Owners
from pymc_dp.likelihood.parameters import ParameterSpace
from pymc_dp.likelihood.prior import PublicLogDensity
from pymc_dp.linalg import Vector, inverse_root
from pymc_dp.surrogate.normal.diagnosis import diagnose
from pymc_dp.surrogate.normal.fit import fit_normal
from pymc_dp.surrogate.normal.model import NormalSurrogate
from pymc_dp.unconstrained import unconstrained

_log = logging.getLogger("pymc.dp")


@dataclass(frozen=True)
class Surrogate:
    r"""What the owners' answers say of the joint log-likelihood: a normal surrogate. Nothing in it is private.

    Its :class:`~pymc_dp.surrogate.normal.law.Law` is that of all answers together, their noise included, and that is the
    likelihood that :meth:`model` uses.

    Parameters
    ----------
    normal : NormalSurrogate
        The normal law that all answers together make of it.
    diagnostics : Diagnostics
        What the answers say of themselves; warnings have said it.
    parameters : int
        Which model's parameters these are.
    """

    normal: NormalSurrogate
    diagnostics: Diagnostics
    parameters: int

    @property
    def center(self) -> Vector:
        """Mode of the posterior, shape (d,), in θ."""
        return self.normal.posterior.mean

    @property
    def root(self) -> Vector:
        """R, shape (d, d): :attr:`center` + R e, e standard normal, is about the posterior."""
        return inverse_root(self.normal.posterior.precision)

    @property
    def clip(self) -> float:
        """How far one unit can move the log-likelihood per unit of distance in e, near :attr:`center`."""
        stretch = np.linalg.norm(np.linalg.solve(self.normal.V, self.root), 2)
        return 1.2 * self.normal.gradient_clip * float(stretch)

    def model(self, prior: pm.Model) -> pm.Model:
        """A PyMC model with this likelihood, to be sampled like any other and at no cost.

        Parameters
        ----------
        prior : Model
            The coordinator's: the parameters and their prior, without observed variables.

        Returns
        -------
        Model
            A copy of `prior`, with one more potential.
        """
        if parameters_digest(ParameterSpace(prior)) != self.parameters:
            raise PrivacyError("This model does not have the parameters of the surrogate.")
        model = clone_model(prior)
        with model:
            theta = pt.concatenate([pt.flatten(x) for x in _unconstrained(model, prior)])
            pm.Potential("owners", self.normal.posterior.law.log_density(theta))
        return model


def find_surrogate(
    ask: Ask, prior: pm.Model, *, on_progress: Callable[[str], None] = lambda _: None
) -> Surrogate:
    """Find and measure the joint likelihood's mode: a normal surrogate, asked of owners.

    What the owners have answered stays charged, so a surrogate is given whatever they have said: if it is of no
    use, it is marked so, and a warning says why.

    Parameters
    ----------
    ask : callable
        ``(kind, request) -> list of answers``: sends a request to every owner, see
        :meth:`Owner.answer <pymc_dp.federated.Owner.answer>`. For owners in this process
        ``lambda kind, request: [owner.answer(kind, request) for owner in owners]``.
    prior : Model
        The parameters and their prior, without observed variables.
    on_progress : callable, optional
        Told what is being done.

    Returns
    -------
    Surrogate

    Raises
    ------
    PrivacyError
        If an owner will not answer, or gives something else than was asked for.

    Notes
    -----
    The steps of :func:`~pymc_dp.surrogate.normal.fit.fit_normal`, all of them, clipping bounds too, functions of owners'
    answers. The sum of N answers has the noise of all of them: with equal multipliers √N times that of one
    trusted curator.
    """
    parameters = ParameterSpace(prior)
    owners, log_public = Owners(ask, parameters), PublicLogDensity(parameters)
    owners.require("surrogate")
    with np.errstate(all="ignore"):  # of released numbers
        normal = fit_normal(owners, log_public, parameters.start, on_progress=on_progress)
    diagnostics = diagnose(normal, parameters.labels, parameters.largest)
    for note in diagnostics.notes:
        _log.warning("%s", note.text)
    return Surrogate(normal, diagnostics, parameters_digest(parameters))


def _unconstrained(model: pm.Model, original: pm.Model) -> list[pt.TensorVariable]:
    """The free variables where PyMC samples them, in the order of θ: a copy may have another one."""
    points = {}
    for rv in model.free_RVs:
        points[model.rvs_to_values[rv].name] = unconstrained(rv, model.rvs_to_transforms[rv])
    return [points[value.name] for value in original.value_vars]
