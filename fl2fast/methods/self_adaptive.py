"""FreeMatch's moving averages, thresholds and fairness term (Wang et al., ICLR 2023).

Shapes: L lanes, B rows, Y classes, Z = 1 + 2Y columns of state: t, q [Y], g [Y].
"""

import torch
from torch import Tensor


def fresh_state(num_classes: int, like: Tensor) -> Tensor:
    """Everything at 1/Y: [Z]."""
    return like.new_full((1 + 2 * num_classes,), 1 / num_classes)


def averaged(
    state_LZ: Tensor,
    probs_LBY: Tensor,
    y_LB: Tensor,
    live_LB: Tensor,
    ema: float,
    *,
    clip_time: bool,
) -> Tensor:
    """The state after a batch: mean confidence, mean prediction, histogram of the labels."""
    live_LB1 = live_LB[..., None].to(probs_LBY.dtype)
    num_L1 = live_LB1.sum(1)
    chosen_LBY = (y_LB[..., None] == torch.arange(probs_LBY.shape[-1], device=y_LB.device)).to(
        probs_LBY.dtype
    )
    seen_LBZ = torch.cat((probs_LBY.amax(-1, keepdim=True), probs_LBY, chosen_LBY), -1)
    made_LZ = ema * state_LZ + (1 - ema) * (seen_LBZ * live_LB1).sum(1) / num_L1
    if clip_time:
        made_LZ = torch.cat((made_LZ[:, :1].clamp(max=0.95), made_LZ[:, 1:]), -1)
    return made_LZ


def split_state(state_LZ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t [L, 1], q [L, Y], g [L, Y]."""
    num_classes = state_LZ.shape[-1] // 2
    t_L1, q_LY, g_LY = state_LZ.split([1, num_classes, num_classes], dim=-1)
    return t_L1, q_LY, g_LY


def thresholds(state_LZ: Tensor) -> Tensor:
    """t q_c / max q: [L, Y]."""
    t_L1, q_LY, _ = split_state(state_LZ)
    return t_L1 * q_LY / q_LY.amax(-1, keepdim=True)


def fairness(strong_LBY: Tensor, keep_LB: Tensor, state_LZ: Tensor) -> Tensor:
    """L_f = sum_c a_c log(b_c + 1e-12) over the accepted rows; 0 where a lane has none: [L]."""
    _, q_LY, g_LY = split_state(state_LZ)
    probs_LBY, keep_LB1 = strong_LBY.softmax(-1), keep_LB[..., None].to(strong_LBY.dtype)
    num_L1 = keep_LB1.sum(1).clamp(min=1)
    classes_Y = torch.arange(strong_LBY.shape[-1], device=strong_LBY.device)
    chosen_LBY = (strong_LBY.argmax(-1, keepdim=True) == classes_Y).to(strong_LBY.dtype)
    pbar_LY = (probs_LBY * keep_LB1).sum(1) / num_L1
    h_LY = (chosen_LBY * keep_LB1).sum(1) / num_L1
    a_LY, b_LY = _shares(q_LY, g_LY), _shares(pbar_LY, h_LY)
    return torch.where(keep_LB.any(-1), (a_LY * (b_LY + 1e-12).log()).sum(-1), 0.0)


def _shares(mean_LY: Tensor, histogram_LY: Tensor) -> Tensor:
    """mean / histogram, 1/0 taken as 0, scaled to sum one."""
    inverse = torch.where(histogram_LY > 0, 1 / histogram_LY.clamp(min=1e-12), 0.0)
    ratio_LY = mean_LY * inverse
    return ratio_LY / (ratio_LY.sum(-1, keepdim=True) + 1e-12)


def fairness_cotangent(strong_LBY: Tensor, keep_LB: Tensor, state_LZ: Tensor) -> Tensor:
    """d fairness / d logits; histograms and averages held fixed."""
    return torch.func.grad(lambda logits: fairness(logits, keep_LB, state_LZ).sum())(strong_LBY)
