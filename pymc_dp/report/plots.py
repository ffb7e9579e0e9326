"""Pictures of what a run spent. They need Matplotlib."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.compat import groups_of
from pymc_dp.diagnostics import SPENT_ON
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.report import PrivacyReport, privacy_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT = 0.005
"""A smaller share that was not spent is rounding."""

GREY = "0.5"  # legible on light and on dark backgrounds


def plot_privacy(idata: Any, *, ax: "Axes | None" = None) -> "Axes":
    r"""Where a run's budget went: ε spent in its course, by each chain and by all together; or on what.

    :class:`~pymc_dp.DPSurrogate` spends everything before the first draw. Of its runs the picture shows on what, in
    percent of :math:`\mu^2`, which adds up.

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
    if spent := _spent_before_the_first(report.diagnostics):
        return _plot_shares(axes(ax, (7.0, 2.6)), report, spent)
    groups = groups_of(idata)
    posterior, stats = groups["posterior"], groups["sample_stats"]
    tune = int(posterior.attrs.get("tuning_steps", 0))
    chains = stats.sizes["chain"]
    drawn = tune + stats["draw"].values + 1
    iterations = int(drawn[-1])

    ax = axes(ax, (7.0, 4.0))
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
        report.epsilon, color=GREY, linestyle="--", linewidth=1.2,
        label=f"budget, ε = {report.epsilon:g}",
    )  # fmt: skip
    if tune:
        ax.axvspan(0, tune, color=GREY, alpha=0.15, linewidth=0, label="tuning")
    ax.set(
        xlabel="iteration of each chain",
        ylabel=f"ε spent, at δ = {report.delta:.2g}",
        xlim=(0, iterations),
        ylim=(0, 1.08 * max(report.epsilon, *total)),
    )
    ax.legend(loc="lower right", frameon=False)
    return ax


def _spent_before_the_first(diagnostics: Mapping[str, Any]) -> dict[str, float]:
    """Shares by what they were spent on, if a run says so."""
    keys = {part: f"spent_on_{part}" for part in SPENT_ON}
    return {part: float(diagnostics[key]) for part, key in keys.items() if key in diagnostics}


def _plot_shares(ax: "Axes", report: PrivacyReport, spent: Mapping[str, float]) -> "Axes":
    shares = {SPENT_ON[part]: share for part, share in spent.items()}
    left = 1 - sum(shares.values())
    if left > _LEFT:
        shares["not spent:\nthe search was lost"] = left
    places = np.arange(len(shares))[::-1]
    percent = 100 * np.array(list(shares.values()))
    colors = [GREY if label.startswith("not") else "C0" for label in shares]
    ax.barh(places, percent, color=colors, height=0.6)
    for place, value in zip(places, percent, strict=True):
        ax.annotate(
            f"{value:.0f} %", (value, place), (4, 0), textcoords="offset points", va="center"
        )
    ax.set(
        yticks=places,
        xlim=(0, 1.12 * percent.max()),
        xlabel=f"share of the budget, ε = {report.epsilon:g} at δ = {report.delta:.2g};\n"
        "all before the first draw, and draws cost nothing",
    )
    ax.set_yticklabels(shares)
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


def axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """`ax`, or those of a new figure of this size in inches."""
    if ax is None:
        ax = pyplot().subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def pyplot() -> Any:
    """Matplotlib's, if it is installed."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Plots need Matplotlib: pip install 'pymc-dp[plots]', or pip install matplotlib."
        ) from error
    return plt
