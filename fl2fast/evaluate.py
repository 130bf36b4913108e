"""Test accuracy and loss, and the pseudo-label figures of the paper's Fig. 3."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl2fast.engine.label import infer_rows
from fl2fast.engine.round import LabelReport
from fl2fast.engine.world import ServerState, World
from fl2fast.models.network import Network


class Test(NamedTuple):
    """A seed's global model on the test set."""

    accuracy: float  # percent
    loss: float | None  # mean cross-entropy; None: it is not finite
    classes: int  # that are predicted at all


@torch.no_grad()
def evaluate(world: World, state: ServerState) -> list[Test]:
    """Every seed's test."""
    num, step, models_S = len(world.test_labels), infer_rows(world.device), world.models(state)

    def test(network: Network, part: tuple[int, int]) -> Tensor:
        """Correct answers, summed cross-entropy, and whether each class is ever predicted."""
        s, start = part
        x, y = world.inputs.test(start, start + step), world.test_labels[start : start + step]
        logits = network.infer(models_S[s], state.stats_S[s], x)
        answers, loss = logits.argmax(-1), cross_entropy(logits, y, reduction="sum")
        named_Y = logits.new_zeros(logits.shape[-1]).index_fill(0, answers, 1.0)
        sums = torch.stack(((answers == y).sum().double(), loss.double()))
        return torch.cat((sums, named_Y.double()))

    seeds = range(len(state.stats_S))
    parts = [(s, start) for s in seeds for start in range(0, num, step)]
    sums = torch.stack(world.clients.map(test, parts)).unflatten(0, (len(seeds), -1)).sum(1)
    return [
        Test(100.0 * correct / num, _finite(loss / num), sum(count > 0 for count in named))
        for correct, loss, *named in sums.tolist()
    ]


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
