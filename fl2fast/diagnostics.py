"""What a round's clients did, beyond its figures: who counted how much, which labels were wrong.

Shapes: K cohort, Y classes.
"""

from typing import Any

import numpy as np

from fl2fast.engine.round import LabelReport
from fl2fast.engine.world import World


def diagnose(world: World, report: LabelReport | None) -> list[dict[str, Any]]:
    """A row per seed, one entry a client of the cohort; nothing where no client takes part.

    `confusion` counts accepted pseudo-labels: a row for every true class, a column for every label.
    """
    if report is None:
        return []
    e, num_classes = world.experiment, world.num_classes
    waits = world.method.client is not None and world.method.client.waits
    rows = []
    for s, seed in enumerate(e.seed_list):
        own = slice(s * e.cohort, (s + 1) * e.cohort)
        keep, y = report.keep_LM[own], report.y_LM[own]
        true = world.truth_host[report.row_LM[own]]
        confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
        np.add.at(confusion, (true[keep], y[keep]), 1)
        rows.append(
            {
                "seed": seed,
                "clients": report.client_L[own].tolist(),
                "aggregation_weights": _shares(report.weight_L[own], waits),
                "status": _rounded(report.tau_L, own),
                "thresholds": _rounded(report.tau_LY, own),
                "accepted": keep.sum(1).tolist(),
                "confusion": confusion.tolist(),
            }
        )
    return rows


def _shares(weight_K: np.ndarray, waits: bool) -> list[float]:
    """As they enter the mean (see engine.server); all zero where there is no aggregation."""
    weight_K = weight_K.astype(np.float64)
    total = weight_K.sum()
    if total > 0:
        return (weight_K / total).round(6).tolist()
    return [0.0 if waits else round(1 / len(weight_K), 6)] * len(weight_K)


def _rounded(value_L: np.ndarray | None, own: slice) -> list[Any] | None:
    if value_L is None or not np.isfinite(value_L[own]).all():
        return None
    return value_L[own].astype(np.float64).round(6).tolist()
