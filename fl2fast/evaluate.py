"""Test accuracy and loss, and the pseudo-label figures of the paper's Fig. 3."""

import math

import torch
from torch.nn.functional import cross_entropy

from fl2fast.data.augment import normalise
from fl2fast.engine.label import INFER_ROWS
from fl2fast.engine.round import LabelReport
from fl2fast.engine.world import ServerState, World


@torch.no_grad()
def evaluate(world: World, state: ServerState) -> list[tuple[float, float | None]]:
    """(accuracy in percent, mean cross-entropy) of every seed's global model on the test set."""
    results = []
    for params_P, stats in zip(state.params_SP, state.stats_S, strict=True):
        correct = torch.zeros((), dtype=torch.int64, device=world.device)
        loss = torch.zeros((), dtype=torch.float64, device=world.device)
        batches = zip(
            world.test_images.split(INFER_ROWS), world.test_labels.split(INFER_ROWS), strict=True
        )
        for images, y in batches:
            x = normalise(images, world.mean, world.std)
            logits = world.network.infer(params_P, stats, x)
            correct += (logits.argmax(-1) == y).sum()
            loss += cross_entropy(logits, y, reduction="sum")
        num = len(world.test_labels)
        results.append((100.0 * int(correct) / num, _finite(float(loss) / num)))
    return results


def _finite(value: float) -> float | None:
    """A diverged model has no loss; JSON has no NaN."""
    return value if math.isfinite(value) else None


LABEL_FIGURES = (
    "label_ratio",
    "pseudo_label_accuracy",
    "correct_ratio",
    "wrong_ratio",
    "cw_ratio",
    "tau_mean",
)


def label_figures(world: World, report: LabelReport | None) -> list[dict[str, float | None]]:
    """Counts pooled over each seed's cohort, then divided once; None where nothing is defined."""
    e = world.experiment
    client = world.method.client
    if report is None or client is None or not client.predicts:
        return [dict.fromkeys(LABEL_FIGURES) for _ in range(e.seeds)]
    right_LM = report.keep_LM & (report.y_LM == world.truth_host[report.row_LM])
    figures = []
    for s in range(e.seeds):
        own = slice(s * e.cohort, (s + 1) * e.cohort)
        total, kept, right = (
            int(mask[own].sum()) for mask in (report.live_LM, report.keep_LM, right_LM)
        )
        tau = None if report.tau_L is None else _finite(float(report.tau_L[own].mean(dtype=float)))
        values = (
            100.0 * kept / total,
            100.0 * right / kept if kept else None,
            100.0 * right / total,
            100.0 * (kept - right) / total,
            right / (kept - right) if kept > right else None,
            tau,
        )
        figures.append(dict(zip(LABEL_FIGURES, values, strict=True)))
    return figures
