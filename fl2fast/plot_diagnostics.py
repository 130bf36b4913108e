"""Pictures of a run's inside: thresholds, weights, wrong labels, and who holds what.

Shapes: N clients, Y classes.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def draw_diagnostics(rows: list[dict[str, Any]], path: Path) -> None:
    """Of the first seed: per-class thresholds, aggregation weights, confusion in the last round."""
    rows = [row for row in rows if row["seed"] == rows[0]["seed"]]
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    thresholds, weights, confusion = figure.subplots(1, 3)
    _draw_thresholds(thresholds, rows)
    _draw_weights(weights, rows)
    _draw_confusion(confusion, np.array(rows[-1]["confusion"]), rows[-1]["round"])
    figure.savefig(path, dpi=130)


def _draw_thresholds(axis: Any, rows: list[dict[str, Any]]) -> None:
    axis.set_title("thresholds per class, mean of the cohort", fontsize=10)
    axis.set_xlabel("round", fontsize=9)
    given = [row for row in rows if row["thresholds"] is not None]
    if not given:
        axis.text(0.5, 0.5, "none: this method has no per-class threshold", ha="center", fontsize=8)
        axis.set_axis_off()
        return
    mean_RY = np.array([np.mean(row["thresholds"], axis=0) for row in given])
    rounds = [row["round"] for row in given]
    for c, values in enumerate(mean_RY.T):
        label = str(c) if mean_RY.shape[1] <= 10 else None
        axis.plot(rounds, values, color=f"C{c % 10}", linewidth=1.2, label=label)
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    if mean_RY.shape[1] <= 10:
        axis.legend(fontsize=7, frameon=False, ncols=5)


def _draw_weights(axis: Any, rows: list[dict[str, Any]]) -> None:
    axis.set_title("aggregation weights of the cohort", fontsize=10)
    axis.set_xlabel("round", fontsize=9)
    for row in rows:
        weights = row["aggregation_weights"]
        axis.plot([row["round"]] * len(weights), weights, ".", color="C0", alpha=0.5, markersize=4)
    axis.axhline(1 / len(rows[0]["aggregation_weights"]), color="black", linewidth=0.8)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def _draw_confusion(axis: Any, confusion_YY: np.ndarray, round: int) -> None:
    axis.set_title(f"accepted pseudo-labels, round {round}", fontsize=10)
    axis.set_xlabel("pseudo-label", fontsize=9)
    axis.set_ylabel("true class", fontsize=9)
    share_YY = confusion_YY / np.maximum(confusion_YY.sum(1, keepdims=True), 1)
    axis.imshow(share_YY, cmap="Blues", vmin=0, vmax=1)
    if len(confusion_YY) <= 10:
        for (true, label), count in np.ndenumerate(confusion_YY):
            colour = "white" if share_YY[true, label] > 0.5 else "black"
            axis.text(label, true, str(count), ha="center", va="center", fontsize=6, color=colour)


def draw_partition(classes_NY: np.ndarray, path: Path) -> None:
    """How many images of every class each client holds: area by number."""
    num_clients, num_classes = classes_NY.shape
    figure = Figure(figsize=(max(5.0, 0.12 * num_clients + 2), 3.6), layout="constrained")
    axis = figure.subplots()
    client, label = np.indices(classes_NY.shape)
    area = 80 * classes_NY / max(classes_NY.max(), 1)
    axis.scatter(client.ravel(), label.ravel(), s=area.ravel(), c=label.ravel() % 10, cmap="tab10")
    axis.set_xlabel("client", fontsize=9)
    axis.set_ylabel("class", fontsize=9)
    axis.set_xlim(-1, num_clients)
    axis.set_ylim(-1, num_classes)
    axis.set_title(f"images of a class per client, at most {classes_NY.max():,}", fontsize=10)
    figure.savefig(path, dpi=130)
