"""The four mechanisms: observed in a model, or released by a curator."""

from typing import Any, ClassVar

import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike

from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.mechanisms.arguments import (
    check_observed,
    check_road,
    check_scale,
    checked_n,
    labelled,
)
from pymc_dp.mechanisms.counts import observe_count
from pymc_dp.mechanisms.curator import release_sum
from pymc_dp.mechanisms.distributions import DiscreteGaussian, DiscreteLaplace
from pymc_dp.mechanisms.law import Family, NoiseLaw, noise_law
from pymc_dp.mechanisms.publication import Suppressed, publication
from pymc_dp.mechanisms.records import static_shape
from pymc_dp.mechanisms.released import ReleasedStatistic
from pymc_dp.mechanisms.sums import observe_sum
from pymc_dp.privacy.ledger import PrivacyLedger
from pymc_dp.statistics import record_sum


class _Mechanism:
    family: ClassVar[Family]
    discrete: ClassVar[bool] = False
    _distribution: ClassVar[Any]

    def __new__(
        cls,
        name: str,
        statistic: Any = None,
        *,
        observed: Any,
        total: Any = None,
        keep_total: bool = False,
        rounded: float | None = None,
        lower: float | None = None,
        upper: float | None = None,
        suppressed: Suppressed | None = None,
        n: Any = None,
        points: int | None = None,
        dims: Any = None,
        **noise: Any,
    ) -> Any:
        released = observed if isinstance(observed, ReleasedStatistic) else None
        if released is not None:
            law, observed = cls._law_of_release(name, released, noise), released.value
        else:
            zero = total is not None or n is not None
            law = noise_law(name, cls.family, cls.discrete, zero=zero, **noise)
        processed: dict[str, Any] = {
            "rounded": rounded,
            "lower": lower,
            "upper": upper,
            "suppressed": suppressed,
        }
        check_road(name, statistic, total, keep_total, n, points, processed)
        observed, dims = labelled(observed, dims)
        if total is not None:
            shape = static_shape(total)
            published, observed = publication(name, observed, **processed)
            check_scale(name, law, shape)
            observed = check_observed(name, observed, shape, cls.discrete, "`total` has")
            return observe_count(name, total, law=law, observed=observed, published=published, dims=dims,
                                 keep_total=keep_total)  # fmt: skip
        statistic = pt.as_tensor(statistic)
        if statistic.dtype == "bool":
            statistic = statistic.astype("int64")
        if cls.discrete and statistic.dtype not in pytensor.tensor.type.integer_dtypes:
            raise PrivacyConfigurationError(
                f"{name!r}: {law.name} noise needs a statistic of integers. Found dtype "
                f"{statistic.dtype}. Cast it with `.astype('int64')` if it is one."
            )
        shape = static_shape(statistic)
        if n is not None:
            n = checked_n(name, n, released)
            check_scale(name, law, shape[n.ndim :])
            observed = check_observed(
                name, observed, shape, cls.discrete, "the statistic of one record has"
            )
            return observe_sum(name, statistic, n=n, points=points, law=law, observed=observed,
                               dims=dims, bounds=released.bounds if released else None)  # fmt: skip
        if statistic.ndim < 1:
            raise PrivacyConfigurationError(
                f"{name!r}: `statistic` must have one row per record, shape (n, ...), and is summed "
                "over its first axis here. Found a scalar: do not sum it yourself. That of one record "
                "needs `n`."
            )
        if released is not None and shape[0] != released.n_records:
            raise PrivacyConfigurationError(
                f"{name!r}: the statistic has {shape[0]:,} rows, but what was released is a sum over "
                f"{released.n_records:,} records."
            )
        check_scale(name, law, shape[1:])
        kind = "the sum of the statistic over its first axis, the records, has"
        observed = check_observed(name, observed, shape[1:], cls.discrete, kind)
        total = record_sum(statistic, law=law)
        return cls._distribution(name, total, law.scale, observed=observed, dims=dims)

    @classmethod
    def _law_of_release(
        cls, name: str, released: ReleasedStatistic, noise: dict[str, Any]
    ) -> NoiseLaw:
        law = released.law
        if (law.family, law.discrete) != (cls.family, cls.discrete):
            raise PrivacyConfigurationError(
                f"{name!r}: the statistic was released with {law.name} noise, not by a "
                f"{cls.__name__}."
            )
        if any(argument is not None for argument in noise.values()):
            raise PrivacyConfigurationError(
                f"{name!r}: the released statistic knows its noise; leave out {', '.join(f'`{key}`' for key in noise)}."
            )
        return law

    @classmethod
    def release(
        cls,
        values: ArrayLike,
        *,
        bounds: tuple[ArrayLike, ArrayLike],
        epsilon: float | None = None,
        delta: float | None = None,
        scale: float | None = None,
        sensitivity: float | None = None,
        granularity: float | None = None,
        ledger: PrivacyLedger | None = None,
        description: str | None = None,
    ) -> ReleasedStatistic:
        r"""The curator's side: sum a per-record statistic and add exact noise.

        Every entry is clamped to `bounds` and rounded to a public grid, the rows are added as
        integers, and discrete noise is added on the grid by OpenDP, from the operating system's
        random numbers. So the guarantee holds on the machine and not only on paper.

        **Neighbouring relation**: substitute-one, at a public number of records. **Guarantee**:
        ε-DP for Laplace noise, (ε, δ)-DP for Gaussian noise. **Sensitivity**: `sensitivity` plus
        what rounding the entries of two records can add.

        Parameters
        ----------
        values : array, shape (n, ...)
            The statistic of every record. Not looked at before the ledger has been charged. NaN
            counts as the lower bound; with `sensitivity`, a row that has one counts as zeros (or the end
            of `bounds` that is nearest to zero).
        bounds : tuple
            Lower and upper end of every entry; numbers, or arrays of the shape of a row. They must
            be public: derive them from what a record could be, not from the data.
        epsilon, delta : float, optional
            Budget of this release; δ for Gaussian noise only.
        scale : float, optional
            Scale of the noise in place of `epsilon`. Gaussian noise needs `delta` all the same, to
            say which ε it amounts to.
        sensitivity : float, optional
            L1 (Laplace) or L2 (Gaussian) sensitivity of the sum, if it is smaller than that of
            independent entries in `bounds`. It is your claim; nothing checks it. It has to hold for any two
            rows as they are added, values outside `bounds` moved to their ends, and for a row of zeros.
        granularity : float, optional
            Step of the grid, a power of two. By default about scale/2^30, and 1 for discrete noise.
        ledger : PrivacyLedger, optional
            The data set's account.
        description : str, optional
            For the ledger.

        Returns
        -------
        ReleasedStatistic

        Raises
        ------
        PrivacyConfigurationError
            If a setting is missing or out of range. Nothing has been charged then.
        PrivacyBudgetExceeded
            If the ledger cannot pay for it; no data have been looked at.
        """
        return release_sum(
            cls.__name__,
            cls.family,
            cls.discrete,
            values,
            bounds=bounds,
            epsilon=epsilon,
            delta=delta,
            scale=scale,
            sensitivity=sensitivity,
            granularity=granularity,
            ledger=ledger,
            description=description,
        )


class LaplaceMechanism(_Mechanism):
    r"""A sum over records, observed through Laplace noise: :math:`s = \sum_i t_i(x_i) + L(b)`.

    Called inside a model it adds an ordinary observed variable. What was summed is said in one of
    three ways: by the `statistic` of latent records, of which
    :class:`~pymc_dp.PrivacyAwareGibbs` finds the structure; by the `statistic` of one record, made
    of ``.dist`` variables, and `n`; or by the law of a count, `total`. The last two leave no latent
    records, and NUTS samples the model. :meth:`release` is the curator's end.

    Parameters
    ----------
    name : str
        Of the variable.
    statistic : TensorVariable, shape (n, ...)
        Per-record statistic :math:`t_i(x_i)`; summed over its first axis here. With `n`, that of
        one record, shape (...), or of one record of every area, shape ``(*areas, ...)``.
    observed : array or ReleasedStatistic, shape (...)
        What was released. A :class:`ReleasedStatistic` brings its noise along.
    total : TensorVariable, shape (...)
        Law of the confidential count, such as ``count = pm.Binomial.dist(population, p)``, or
        ``pm.Multinomial.dist(population, p)`` for a table with a public total. Summed out exactly.
        Give **the same object** to every mechanism that has released it, and ``count.sum(axis=-1)`` to
        those that have released its margins, after the cells.
    keep_total : bool
        Whether to add the mean of the confidential count, given the parameters and this and earlier
        releases of it, as the deterministic ``{name}_total``.
    rounded : float, optional
        With `total`: the step to whose multiples noisy counts were rounded, halves upwards.
    lower, upper : float, optional
        With `total`: what noisy counts below or above were published as, such as ``lower=0``.
    suppressed : tuple or "missing", optional
        With `total`: why cells of `observed` are masked or NaN. ``(1, 9)``: because what would have been published was
        1 to 9; ``(-np.inf, 9)``: because it was 9 at most. "missing": whatever it was.
    n : int, array or TensorVariable, shape areas
        Number of records, if `statistic` is that of one. The sum is taken as normal: see
        :func:`~pymc_dp.check_releases`. It may be a parameter. Several mechanisms on the same
        record are taken as one release of them all.
    points : int, optional
        Number of points that stand for a record's continuous variables; by default 256, which are put
        right at the posterior's mode when the model is built.
    scale : float or array, optional
        b > 0, one for all entries or one per entry. With `n` or `total` it may be 0: a public
        total.
    variance, standard_error : float or array, optional
        In place of `scale`, of the noise.
    margin_of_error : tuple, optional
        In place of `scale`: the half width of a normal confidence interval and its level, ``(12, 0.9)``.
    epsilon, sensitivity : float, optional
        In place of `scale`: b is the L1 `sensitivity` of the sum divided by ε. With both `scale`
        and `sensitivity`, ε follows.
    dims : str or tuple, optional
        Named dimensions of the variable. By default the named axes of `observed`, if it is a table of pandas.

    Raises
    ------
    PrivacyConfigurationError
        If numbers are missing or out of range, or shapes do not match.

    References
    ----------
    Dwork, McSherry, Nissim and Smith, *Calibrating noise to sensitivity in private data analysis*,
    2006.
    """

    family = "laplace"
    _distribution = pm.Laplace


class GaussianMechanism(_Mechanism):
    r"""A sum over records, observed through Gaussian noise: :math:`s = \sum_i t_i(x_i) + N(0, \sigma^2)`.

    Parameters
    ----------
    name, statistic, observed, total, keep_total, rounded, lower, upper, suppressed, n, points, dims
        See :class:`LaplaceMechanism`.
    scale, variance, standard_error, margin_of_error
        See :class:`LaplaceMechanism`; the scale is σ.
    epsilon, delta, sensitivity : float, optional
        In place of `scale`: σ is the smallest that makes the release (ε, δ)-DP at this L2
        `sensitivity`. With `scale`, `sensitivity` and `delta`, ε follows.
    rho, mu : float, optional
        In place of `epsilon` and `delta`: the budget as zero-concentrated (ρ) or Gaussian (µ) differential privacy.

    Raises
    ------
    PrivacyConfigurationError
        If numbers are missing or out of range, or shapes do not match.

    References
    ----------
    Balle and Wang, *Improving the Gaussian mechanism for differential privacy*, 2018.
    """

    family = "gaussian"
    _distribution = pm.Normal


class DiscreteLaplaceMechanism(_Mechanism):
    r"""A sum of integers, observed through discrete Laplace noise.

    Also known as the geometric mechanism: mass proportional to :math:`e^{-|k|/b}` at the integers.

    Parameters
    ----------
    name, scale, variance, standard_error, margin_of_error, epsilon, sensitivity, dims
        See :class:`LaplaceMechanism`.
    statistic : TensorVariable of int or bool
        See :class:`LaplaceMechanism`.
    observed : array of int or ReleasedStatistic, shape (...)
        What was released.
    total, keep_total, rounded, lower, upper, suppressed, n, points
        See :class:`LaplaceMechanism`.

    Raises
    ------
    PrivacyConfigurationError
        If numbers are missing or out of range, shapes do not match, or something is no integer.

    References
    ----------
    Ghosh, Roughgarden and Sundararajan, *Universally utility-maximizing privacy mechanisms*, 2009.
    """

    family = "laplace"
    discrete = True
    _distribution = DiscreteLaplace


class DiscreteGaussianMechanism(_Mechanism):
    r"""A sum of integers, observed through discrete Gaussian noise.

    Mass proportional to :math:`e^{-k^2/2\sigma^2}` at the integers, as in the releases of the 2020
    census of the United States.

    Parameters
    ----------
    name, scale, variance, standard_error, margin_of_error, epsilon, delta, rho, mu, sensitivity, dims
        See :class:`GaussianMechanism`.
    statistic : TensorVariable of int or bool
        See :class:`LaplaceMechanism`.
    observed : array of int or ReleasedStatistic, shape (...)
        What was released.
    total, keep_total, rounded, lower, upper, suppressed, n, points
        See :class:`LaplaceMechanism`.

    Raises
    ------
    PrivacyConfigurationError
        If numbers are missing or out of range, shapes do not match, or something is no integer.

    References
    ----------
    Canonne, Kamath and Steinke, *The discrete Gaussian for differential privacy*, 2020.
    """

    family = "gaussian"
    discrete = True
    _distribution = DiscreteGaussian
