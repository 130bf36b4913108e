"""Learning curves: test accuracy and the pseudo-label diagnostics of the paper's Fig. 3."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

PANELS = (
    ("test_accuracy", "test accuracy (%)"),
    ("pseudo_label_accuracy", "pseudo-label accuracy (%)"),
    ("label_ratio", "label ratio (%)"),
    ("correct_ratio", "correct label ratio (%)"),
    ("wrong_ratio", "wrong label ratio (%)"),
    ("cw_ratio", "correct / wrong"),
)


def draw_curves(
    runs: dict[str, list[dict[str, Any]]],
    path: Path,
    panels: Sequence[tuple[str, str]] = PANELS,
) -> None:
    """Mean over seeds, one line a run, with a band from the lowest to the highest seed."""
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(3.5 * columns, 2.8 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, (name, title) in zip(axes.flat, panels, strict=True):
        for colour, (label, rows) in enumerate(runs.items()):
            _draw(axis, rows, name, label, f"C{colour}")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("round", fontsize=9)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=9, frameon=False)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axis: Any, rows: list[dict[str, Any]], name: str, label: str, colour: str) -> None:
    by_round: dict[int, list[float]] = {}
    for row in rows:
        if row[name] is not None:
            by_round.setdefault(row["round"], []).append(row[name])
    rounds = np.array(list(by_round))
    values = list(by_round.values())
    means = np.array([np.mean(v) for v in values])
    axis.plot(rounds, means, color=colour, label=label, linewidth=1.8)
    if rounds.size:
        lowest, highest = [min(v) for v in values], [max(v) for v in values]
        axis.fill_between(rounds, lowest, highest, color=colour, alpha=0.15, linewidth=0)
