"""Pictures of what a run spent. They need Matplotlib."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.compat import groups_of
from pymc_dp.exceptions import PrivacyError
from pymc_dp.privacy.accounting import composed_epsilon
from pymc_dp.privacy.events import Event, Gaussian
from pymc_dp.report import privacy_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "0.5"  # legible on light and on dark backgrounds


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
