"""PrivacyAwareGibbs: θ given the records, records given θ and the release, and both interweaved."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm
from pymc.step_methods.compound import BlockedStep, CompoundStep
from pymc.util import get_random_generator

from pymc_dp.compat import fast_gradients
from pymc_dp.exceptions import UnsupportedModelError
from pymc_dp.gibbs.noncentering import noncenter
from pymc_dp.gibbs.parameters import InterweavedNUTS, ParameterNUTS
from pymc_dp.gibbs.structure import find_structure
from pymc_dp.gibbs.sweep import RecordSweep


class PrivacyAwareGibbs(CompoundStep):
    r"""Exact inference from released statistics: draws from :math:`p(\theta, x \mid s)`.

    For a model of confidential records x with parameters θ, of which only noisy sums s over
    records are observed (through :class:`~pymc_dp.LaplaceMechanism` and the like, or any
    distribution around :func:`~pymc_dp.statistics.record_sum`). One iteration:

    1. *Records*: each in turn is offered a draw from :math:`f(\cdot \mid \theta)`, and takes it
       with the probability that the release's density implies (Algorithm 1 of Ju, Gong, Awan and
       Rao, 2022). One compiled pass, O(n).
    2. *Parameters*: NUTS on :math:`p(\theta) f(x \mid \theta)`, or the step that you give.
    3. *Both*: NUTS on θ with each record's noise held fixed, so that the records move along
       (interweaving; Yu and Meng, 2011). Without it the chain mixes slowly where the release is
       noisy, because θ and the records hold each other back.

    The draws cost no privacy: they are computed from released values.

    Parameters
    ----------
    vars : sequence
        The latent variables: one value (or row) per record along axis 0.
    parameters : step or sequence of steps, optional
        What updates θ given the records, in place of NUTS: any PyMC step of the same model, or a
        conjugate step of your own. Leave discrete parameters out, and PyMC picks a step for them.
    interweave : bool
        Whether to make move 3. It needs latents of a location-scale, scale or multivariate normal
        family (list in the documentation); others are left out of it.
    compile_kwargs : mapping, optional
        Passed to PyMC's ``compile``.
    nuts : mapping, optional
        Passed to ``pm.NUTS`` in both places, such as ``{"target_accept": 0.9}``.
    model, rng
        As for every PyMC step.

    Raises
    ------
    UnsupportedModelError
        If the released statistic is not a sum over records, or the latents are otherwise observed.

    Examples
    --------
    >>> with pm.Model():  # doctest: +SKIP
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=100)
    ...     t = dp.statistics.clamp(x, -3, 3)
    ...     dp.LaplaceMechanism("s", t, epsilon=1.0, sensitivity=6, observed=12.3)
    ...     idata = pm.sample(step=dp.PrivacyAwareGibbs([x]), var_names=["mu"])
    """

    def __init__(
        self,
        vars: Sequence[Any],
        *,
        parameters: BlockedStep | CompoundStep | Sequence[Any] | None = None,
        interweave: bool = True,
        compile_kwargs: Mapping[str, Any] | None = None,
        nuts: Mapping[str, Any] | None = None,
        model: pm.Model | None = None,
        rng: Any = None,
    ):
        model = pm.modelcontext(model)
        structure = find_structure(model, vars if isinstance(vars, Sequence) else [vars])
        theta = [
            model.rvs_to_values[rv] for rv in structure.parameters if rv.dtype.startswith("float")
        ]
        rngs = get_random_generator(rng).spawn(3)
        common: dict[str, Any] = {
            "model": model,
            "structure": structure,
            "initial_point": model.initial_point(),
            "compile_kwargs": compile_kwargs,
        }
        latents = [model.rvs_to_values[rv] for rv in structure.latents]
        sweep = RecordSweep(latents, rng=rngs[0], **common)
        methods: list[Any] = [sweep]
        common["compile_kwargs"] = {**fast_gradients(sweep.records.n), **(compile_kwargs or {})}
        if parameters is not None:
            given = parameters if isinstance(parameters, Sequence) else [parameters]
            methods += _check_steps(given, latents)
        elif theta:
            methods.append(ParameterNUTS(theta, rng=rngs[1], **common, **(nuts or {})))
        noncentering = noncenter(model, structure)
        if interweave and theta and noncentering.moved:
            methods.append(
                InterweavedNUTS(
                    theta, noncentering=noncentering, rng=rngs[2], **common, **(nuts or {})
                )
            )
        super().__init__(methods)


def _check_steps(steps: Sequence[Any], latents: list[Any]) -> list[Any]:
    for step in steps:
        if not isinstance(step, BlockedStep | CompoundStep):
            raise UnsupportedModelError(
                f"`parameters` must be PyMC steps. Found {type(step).__name__}."
            )
        shared = [v.name for v in step.vars if v in latents]
        if shared:
            raise UnsupportedModelError(
                f"{type(step).__name__} updates the latent records {shared}, which is what "
                "PrivacyAwareGibbs is for. Give it the parameters only."
            )
    return list(steps)
