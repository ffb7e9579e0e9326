"""What a step says of each iteration: statistics that may leave, and what the progress bar shows of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.progress import TextColumn
from rich.table import Column

STATS: dict[str, tuple[Any, list[int]]] = {
    "accepted": (bool, []),
    "accept_rate": (np.float64, []),
    "epsilon": (np.float64, []),
    "delta": (np.float64, []),
    "epsilon_spent": (np.float64, []),
    "scale": (np.float64, []),
    "privacy_run": (np.int64, []),
    "privacy_plan": (np.int64, []),
}
"""Statistics of every step that may leave. Each is a function of noised releases and settings."""


def progress_columns(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
    """Columns of PyMC's progress bar, and what they show at first."""
    columns = [
        TextColumn("{task.fields[accept_rate]:0.2f}", table_column=Column("Acceptance", ratio=1)),
        TextColumn("{task.fields[epsilon_spent]:0.3f}", table_column=Column("ε spent", ratio=1)),
    ]
    return columns, {"accept_rate": [0.0] * n_chains, "epsilon_spent": [0.0] * n_chains}


def progress_updates() -> tuple[Any, ...]:
    """What the progress bar makes of an iteration's statistics."""

    def update(stats: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "accept_rate": stats["accept_rate"],
            "epsilon_spent": stats["epsilon_spent"],
            "failing": False,
        }

    return (update,)
