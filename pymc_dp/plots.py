"""Pictures of what a run spent and clipped, and of what a budget buys. They need Matplotlib."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from scipy.stats import norm

from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.report import privacy_report
from pymc_dp.steps.host import PrivateStep
from pymc_dp.tradeoff import Tradeoff, tradeoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = "0.5"  # legible on light and on dark backgrounds
_MIXED = 1.05  # R-hat above which ArviZ warns
_MOST_IN_LEGEND = 10
_FAR = 30.0  # standard deviations beyond which a linear axis shows nothing else


def plot_privacy(idata: Any, *, ax: "Axes | None" = None) -> "Axes":
    """ε spent in the course of a run: by each chain, by all together, and the budget.

    Parameters
    ----------
    idata : InferenceData or DataTree
        From ``pymc_dp.sample`` or :func:`~pymc_dp.release`. Nothing but the released result is used.
    ax : matplotlib Axes, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    PrivacyError
        If `idata` is not released, or carries no guarantee.

    Notes
    -----
    Chains compose: the total lies below the sum of what the chains spend alone. An interrupted run
    has spent what was planned, so the total ends at the run's ε all the same.
    """
    report = privacy_report(idata)
    if report.post_processing:
        raise PrivacyError(
            "These draws were computed from released statistics and cost nothing. What the release "
            "cost is in `privacy_report(idata)`."
        )
    if not report.valid:
        raise PrivacyError(
            f"This run carries no guarantee (noise: {report.noise}), so there is no spending to plot."
        )
    groups = groups_of(idata)
    posterior, stats = groups["posterior"], groups["sample_stats"]
    tune = int(posterior.attrs.get("tuning_steps", 0))
    chains = stats.sizes["chain"]
    drawn = tune + stats["draw"].values + 1
    iterations = int(drawn[-1])

    ax = _axes(ax, (7.0, 4.0))
    k = _points(report.releases, iterations)
    total = [
        composed_epsilon(_up_to(report.releases, i, iterations, chains), report.delta) for i in k
    ]
    together = f"{chains} chains together" if chains > 1 else "the chain"
    ax.plot(k, total, color="C0", linewidth=2.2, label=together)
    if chains > 1:
        alone = stats["epsilon_spent"].transpose("draw", "chain").values
        lines = ax.plot(drawn, alone, color="C1", linewidth=1.5)
        lines[0].set_label("each chain alone")
    ax.axhline(
        report.epsilon, color=_GREY, linestyle="--", linewidth=1.2,
        label=f"budget, ε = {report.epsilon:g}",
    )  # fmt: skip
    if tune:
        ax.axvspan(0, tune, color=_GREY, alpha=0.15, linewidth=0, label="tuning")
    ax.set(
        xlabel="iteration of each chain",
        ylabel=f"ε spent, at δ = {report.delta:.2g}",
        xlim=(0, iterations),
        ylim=(0, 1.08 * max(report.epsilon, *total)),
    )
    ax.legend(loc="lower right", frameon=False)
    return ax


def _points(releases: Sequence[Event], iterations: int) -> list[int]:
    """Iterations to compute ε at: even in ε, which grows with the root; few where it takes long."""
    many = 100 if all(isinstance(e, Gaussian) for e in releases) else 12
    return [int(i) for i in np.unique(np.ceil(iterations * np.linspace(0, 1, many) ** 2))]


def _up_to(releases: Sequence[Event], iteration: int, iterations: int, chains: int) -> list[Event]:
    """What has been released when each chain has come that far.

    Every iteration has the same releases. Those that are fewer than all iterations came before them.
    """
    done = []
    for e in releases:
        repeated = e.count >= iterations * chains
        count = math.ceil(e.count * iteration / iterations) if repeated else e.count
        if count:
            done.append(replace(e, count=count))
    return done


def plot_clipping(idata: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Noisy share of the units that were clipped, with its 95 % interval.

    Parameters
    ----------
    idata : InferenceData or DataTree, or dict of names and them
        Released results of a step that released the share, such as ``DPAnchored``. Several results are
        drawn below one another.
    ax : matplotlib Axes, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    PrivacyError
        If a result is not released, or has no such share.

    Notes
    -----
    How many units are clipped is a statistic of the data and private like any other. What is drawn
    is what was released with noise, and paid for, during the run; no exact count is ever computed for
    a plot. The noise can put a small share below 0.
    """
    if not isinstance(idata, dict):
        idata = {privacy_report(idata).algorithm: idata}
    shares = {name: _clipped_share(result) for name, result in idata.items()}

    ax = _axes(ax, (7.0, 1.4 + 0.45 * len(shares)))
    z = norm.ppf(0.975)
    for row, (share, sd) in enumerate(shares.values()):
        ax.plot([share - z * sd, share + z * sd], [row, row], color="C0", linewidth=2)
        ax.plot(share, row, "o", color="C0")
    ends = [end for share, sd in shares.values() for end in (share - z * sd, share + z * sd)]
    ax.axvline(0, color=_GREY, linewidth=1)
    ax.set(
        yticks=range(len(shares)),
        yticklabels=list(shares),
        ylim=(len(shares) - 0.4, -0.6),
        xlim=(min(-0.002, 1.1 * min(ends)), max(0.01, 1.1 * max(ends))),
        xlabel="units clipped in a typical move (noisy; 95 % interval of the noise)",
    )
    from matplotlib.ticker import PercentFormatter

    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    return ax


def _clipped_share(idata: Any) -> tuple[float, float]:
    report = privacy_report(idata)
    if report.post_processing:
        raise PrivacyError(
            "These draws were computed from released statistics: nothing was clipped for them. The "
            "bounds of the statistics are those that the model clamps to."
        )
    share, sd = (report.settings.get(name) for name in ("clipped_share", "clipped_share_sd"))
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (share, sd)):
        raise PrivacyError(
            f"{report.algorithm} did not release how many units were clipped, and without a release "
            "that number stays private. Choose `clip` from public facts so that nothing can be "
            "clipped (the documentation has a table of bounds), try it out on made-up data with "
            "`plot_tradeoff`, or use `DPAnchored`, which releases a noisy share."
        )
    return float(share), float(sd)  # type: ignore[arg-type]


def plot_tradeoff(
    model: pm.Model,
    *,
    epsilons: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    data: Mapping[str, ArrayLike] | None = None,
    truth: Mapping[str, ArrayLike] | None = None,
    var_names: Sequence[str] | None = None,
    step: type[PrivateStep] | None = None,
    draws: int = 1000,
    tune: int = 0,
    chains: int = 2,
    random_seed: int = 0,
    public: Sequence[str] = (),
    ax: "Axes | None" = None,
    **keywords: Any,
) -> "Axes":
    """What ε buys for a model, on made-up data: costs no budget and never looks at the real data.

    Outcomes are drawn from the model itself, and their posterior is sampled at each ε and without
    privacy. The plot shows means and 90 % intervals in standard deviations of the non-private
    posterior, so an interval from -1.6 to 1.6 is as good as it gets.

    Parameters
    ----------
    model : Model
        As for ``pymc_dp.sample``. Of its data only the sizes are used: every value is replaced before
        anything is computed, and a model in which that cannot be done is refused.
    epsilons : sequence of float
        The budgets to compare.
    data : mapping, optional
        Made-up values for each ``pm.Data`` that the outcomes depend on, such as covariates, by name.
    truth : mapping, optional
        Parameters to draw the outcomes with, by name. Default: one draw of the prior.
    var_names : list of str, optional
        Variables to show. Default: all free variables.
    step, draws, tune, chains
        As in ``pymc_dp.sample``.
    random_seed : int
        Of the made-up data, the sampler and the noise: a plot can be repeated.
    public : sequence of str
        Names of ``pm.Data`` that hold nothing private and keep their values.
    ax : matplotlib Axes, optional
        Where to draw. Default: a new figure.
    **keywords
        Of the step (``clip``, ``scale``, …) or of ``pm.sample``.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    UnsupportedModelError, PrivacyConfigurationError
        If some data cannot be replaced or are not named, or the model cannot be sampled privately.

    Notes
    -----
    Open markers have R-hat above 1.05: the chains did not mix, and their interval is not to be
    trusted. Where the step gave up for want of budget, there is no result. One data set is drawn and one
    run per ε, all with the same noise but for its size; another `random_seed` shows how much hangs on
    them.

    Values that were computed from the data and written into the model as a prior or a scale are
    used as they are; nobody can tell them from public knowledge.
    """
    ax = _axes(ax, (8.0, 4.2))
    found = tradeoff(
        model,
        epsilons=epsilons,
        data=data or {},
        truth=truth or {},
        var_names=var_names,
        step=step,
        draws=draws,
        tune=tune,
        chains=chains,
        random_seed=random_seed,
        public=public,
        **keywords,
    )
    return _draw_tradeoff(found, ax)


def _draw_tradeoff(found: Tradeoff, ax: "Axes") -> "Axes":
    columns, parameters = found.mean.shape
    # R-hat is NaN where all chains stood still.
    mixed = np.vstack([found.r_hat <= _MIXED, np.full((1, parameters), True)])
    offsets = (np.arange(parameters) - (parameters - 1) / 2) * 0.6 / max(parameters, 3)
    few = parameters <= _MOST_IN_LEGEND
    ax.axhspan(
        float(np.mean(found.low[-1])), float(np.mean(found.high[-1])),
        color=_GREY, alpha=0.15, linewidth=0,
    )  # fmt: skip
    for j, label in enumerate(found.labels):
        color = f"C{j}" if few else "C0"
        x = np.arange(columns) + offsets[j]
        ax.vlines(x, found.low[:, j], found.high[:, j], color=color, linewidth=2 if few else 1)
        for good in (True, False):
            at = mixed[:, j] == good
            ax.plot(
                x[at], found.mean[at, j], "o", color=color, markersize=6 if few else 3,
                markerfacecolor=color if good else ax.get_facecolor(),
                label=label if good and few else None,
            )  # fmt: skip
    if (~mixed & np.isfinite(found.mean)).any():
        ax.plot(
            [], [], "o", color=_GREY, markerfacecolor=ax.get_facecolor(),
            label=f"R-hat above {_MIXED}:\nnot reliable",
        )  # fmt: skip
    ax.axvline(columns - 1.5, color=_GREY, linewidth=1)
    ax.set(
        xticks=range(columns),
        xticklabels=[*(f"{e:g}" for e in found.epsilons), "not private"],
        xlim=(-0.6, columns - 0.4),
        xlabel="ε",
        ylabel="difference from the non-private mean,\nin posterior standard deviations",
    )
    for column in np.flatnonzero(np.isnan(found.mean[:, 0])).tolist():
        ax.text(column, 0, "no result", color=_GREY, ha="center", va="center", rotation=90)
    if np.nanmax(np.abs([found.low, found.high])) > _FAR:
        ax.set_yscale("symlog", linthresh=_FAR / 10)
        ax.yaxis.set_major_formatter("{x:g}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def _axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                "Plots need Matplotlib: pip install 'pymc-dp[plots]', or pip install matplotlib."
            ) from error
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    return ax
