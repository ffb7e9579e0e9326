r"""A private polynomial of the log-likelihood, and draws of the posterior that it gives.

Every unit's log-likelihood at some public design points is projected, by public least squares, on polynomials
:math:`q_1, \dots, q_r` that are orthonormal over the design. The sum of these vectors, clipped and with noise,
is a surrogate :math:`S(\theta) = c \cdot q(\theta)` of the log-likelihood whose noise is known. Designs are draws
of earlier surrogates, tempered: the ladder begins where nothing is known and ends at the posterior. See
:func:`~pymc_dp.surrogate.polynomial.fit.fit_polynomial`. Everything in a :class:`~pymc_dp.surrogate.polynomial.model.Surrogate` is
released or public.
"""
