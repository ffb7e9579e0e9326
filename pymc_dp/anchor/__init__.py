r"""The private anchor: a noisy second-order model of the log-likelihood, released once.

In coordinates :math:`\theta = \theta_0 + W u`, in which the posterior is about a standard normal,
unit i's log-likelihood is split into its anchor and a residual,

.. math::
    \ell_i(\theta) - \ell_i(\theta_0) = \tilde g_i^\top u + \tfrac12 u^\top \tilde H_i u + h_i(u),

with the unit's score and Hessian at :math:`\theta_0`, *clipped*. The sums of the first two parts are
released, with noise, before the chain starts; the chain pays for the residuals' sum only, which is
small near :math:`\theta_0`. How :math:`\theta_0`, W and all clipping bounds are found, privately, is
in :func:`~pymc_dp.anchor.build.build_anchor`. Everything in an :class:`Anchor` is released or public.
"""
