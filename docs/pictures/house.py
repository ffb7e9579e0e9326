"""The picture of the package: its parts, and what they import. From the code itself.

Run: ``python docs/pictures/house.py``. ``tests/test_architecture.py`` says when that is due.
"""

import ast
import json
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = Path(find_spec("pymc_dp").origin).parent
# What nearly everything imports, and what hands names on or shows how it is used.
LEFT_OUT = {"__init__", "_version", "exceptions", "compat", "checks", "progress", "linalg", "unconstrained", "command_line", "demo", "statistics"}  # fmt: skip


def arrows() -> dict[str, list[str]]:
    """For every part of the package, the parts that it imports."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        imported = (
            node.module
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
        )
        others = {m.split(".")[1] for m in imported if m.startswith("pymc_dp.")}
        found.setdefault(part, set()).update(others - {part})
    return {p: sorted(found[p] - LEFT_OUT) for p in sorted(found) if p not in LEFT_OUT}


def floors(needs: dict[str, list[str]]) -> dict[str, int]:
    """A part stands one floor above the highest that it imports."""
    floor: dict[str, int] = {}
    for part in TopologicalSorter(needs).static_order():
        floor[part] = 1 + max((floor[other] for other in needs[part]), default=-1)
    return floor


def direct(needs: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Arrows that no chain of others implies."""

    def above(part: str) -> set[str]:
        return {part}.union(*(above(other) for other in needs[part]))

    return [
        (part, other)
        for part, others in needs.items()
        for other in others
        if not any(other in above(via) for via in others if via != other)
    ]


def draw() -> None:
    """Write house.svg."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    needs = arrows()
    floor = floors(needs)
    place = {}
    for level in range(max(floor.values()) + 1):
        here = [part for part in needs if floor[part] == level]
        place |= {part: (k - (len(here) - 1) / 2, level) for k, part in enumerate(here)}
    figure, ax = plt.subplots(figsize=(8, 6))
    for part, other in direct(needs):
        ax.annotate(
            "", place[other], place[part],
            arrowprops={
                "arrowstyle": "-|>", "color": "0.6", "shrinkA": 12, "shrinkB": 20,
                "connectionstyle": "arc3,rad=0.12",
            },
        )  # fmt: skip
    for part, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.4", "facecolor": "#eaf2f8", "edgecolor": "0.4"}
        ax.text(x, y, part, ha="center", va="center", bbox=box, fontsize=10)
    width = max(abs(x) for x, _ in place.values()) + 0.8
    ax.set(xlim=(-width, width), ylim=(-0.5, max(floor.values()) + 0.5))
    ax.axis("off")
    plt.rcParams["svg.hashsalt"] = "house"
    figure.savefig(
        HERE / "house.svg", bbox_inches="tight",
        metadata={"Date": None, "Description": json.dumps(needs)},
    )  # fmt: skip


if __name__ == "__main__":
    draw()
