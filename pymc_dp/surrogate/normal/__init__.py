r"""The normal surrogate: a noisy second-order model of the log-likelihood, released once.

In coordinates :math:`\theta = \theta_0 + W u`, in which the posterior is about a standard normal,

.. math::
    \ell_i(\theta) - \ell_i(\theta_0) \approx \tilde g_i^\top u + \tfrac12 u^\top \tilde H_i u,

with the unit's score and Hessian at :math:`\theta_0`, *clipped*. Their sums are released, with noise. How
:math:`\theta_0`, W and all clipping bounds are found, privately, is in :func:`~pymc_dp.surrogate.normal.fit.fit_normal`.
Everything in a :class:`~pymc_dp.surrogate.normal.model.NormalSurrogate` is released or public.
"""
