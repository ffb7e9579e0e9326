"""The picture of a trade-off. It needs Matplotlib."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_dp.evidence.tradeoff import MIXED, Tradeoff
from pymc_dp.exceptions import PrivacyConfigurationError
from pymc_dp.report.plots import GREY, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_IN_LEGEND = 10
_FAR = 30.0  # standard deviations beyond which a linear axis shows nothing else


def plot_tradeoff(tradeoff: Tradeoff, *, ax: "Axes | None" = None) -> "Axes":
    """Posterior means and 90 % intervals at each ε, beside those of the posterior without privacy.

    In standard deviations of the non-private posterior, so an interval from -1.6 to 1.6 is as good as
    it gets. Open markers have R-hat above 1.05: the chains did not mix, and their interval is not to be
    trusted. Where the step gave up for want of budget, there is no result.

    Parameters
    ----------
    tradeoff : Tradeoff
        From :func:`~pymc_dp.tradeoff`.
    ax : matplotlib Axes, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    PrivacyConfigurationError
        If there is nothing computed to draw.
    """
    if not isinstance(tradeoff, Tradeoff):
        raise PrivacyConfigurationError(
            "`tradeoff` must be what `pymc_dp.tradeoff(model, ...)` has computed. Found "
            f"{type(tradeoff).__name__}."
        )
    ax = axes(ax, (8.0, 4.2))
    columns, parameters = tradeoff.mean.shape
    offsets = (np.arange(parameters) - (parameters - 1) / 2) * 0.6 / max(parameters, 3)
    few = parameters <= _MOST_IN_LEGEND
    ax.axhspan(
        float(np.mean(tradeoff.low[-1])), float(np.mean(tradeoff.high[-1])),
        color=GREY, alpha=0.15, linewidth=0,
    )  # fmt: skip
    for j, label in enumerate(tradeoff.labels):
        color = f"C{j}" if few else "C0"
        x = np.arange(columns) + offsets[j]
        ax.vlines(
            x, tradeoff.low[:, j], tradeoff.high[:, j], color=color, linewidth=2 if few else 1
        )
        for good in (True, False):
            at = tradeoff.mixed[:, j] == good
            ax.plot(
                x[at], tradeoff.mean[at, j], "o", color=color, markersize=6 if few else 3,
                markerfacecolor=color if good else ax.get_facecolor(),
                label=label if good and few else None,
            )  # fmt: skip
    if (~tradeoff.mixed & np.isfinite(tradeoff.mean)).any():
        ax.plot(
            [], [], "o", color=GREY, markerfacecolor=ax.get_facecolor(),
            label=f"R-hat above {MIXED}:\nnot reliable",
        )  # fmt: skip
    ax.axvline(columns - 1.5, color=GREY, linewidth=1)
    ax.set(
        xticks=range(columns),
        xticklabels=[*(f"{e:g}" for e in tradeoff.epsilons), "not private"],
        xlim=(-0.6, columns - 0.4),
        xlabel="ε",
        ylabel="difference from the non-private mean,\nin posterior standard deviations",
    )
    for column in np.flatnonzero(np.isnan(tradeoff.mean[:, 0])).tolist():
        ax.text(column, 0, "no result", color=GREY, ha="center", va="center", rotation=90)
    if np.nanmax(np.abs([tradeoff.low, tradeoff.high])) > _FAR:
        ax.set_yscale("symlog", linthresh=_FAR / 10)
        ax.yaxis.set_major_formatter("{x:g}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax
