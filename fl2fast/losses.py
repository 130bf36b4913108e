"""Losses per lane, and their gradients with respect to the logits in closed form.

Shapes: L lanes, B rows, Y classes. `rows_LB` selects the rows a loss speaks of; `num_L` is its
denominator. Lanes share nothing, so a cotangent of all lanes is the lanes' cotangents side by side.
"""

import torch
from torch import Tensor


def _row_weight(like_LBY: Tensor, rows_LB: Tensor, num_L: Tensor) -> Tensor:
    """1/num in the selected rows; cast first, since bool / int would be float32 whatever `like`."""
    return (rows_LB.to(like_LBY.dtype) / num_L.clamp(min=1)[:, None])[..., None]


def _one_hot(y_LB: Tensor, like_LBY: Tensor) -> Tensor:
    """1 at the label; torch's own reads the labels on the host to check them."""
    classes_Y = torch.arange(like_LBY.shape[-1], device=y_LB.device)
    return (y_LB[..., None] == classes_Y).to(like_LBY.dtype)


def cross_entropy(logits_LBY: Tensor, y_LB: Tensor, rows_LB: Tensor, num_L: Tensor) -> Tensor:
    """(1/num) sum over the rows of -log softmax(logits)[y]: [L]."""
    picked_LB = logits_LBY.log_softmax(-1).gather(-1, y_LB[..., None])[..., 0]
    return -(picked_LB * rows_LB).sum(-1) / num_L


def cross_entropy_cotangent(
    logits_LBY: Tensor, y_LB: Tensor, rows_LB: Tensor, num_L: Tensor
) -> Tensor:
    """d cross_entropy / d logits; zero, not 0/0, where a lane selects no row."""
    error_LBY = logits_LBY.softmax(-1) - _one_hot(y_LB, logits_LBY)
    return error_LBY * _row_weight(error_LBY, rows_LB, num_L)


def divergence(target_LBY: Tensor, moved_LBY: Tensor, rows_LB: Tensor, num_L: Tensor) -> Tensor:
    """(1/num) sum over the rows of KL(softmax(target) || softmax(moved)): [L]."""
    log_p, log_q = target_LBY.log_softmax(-1), moved_LBY.log_softmax(-1)
    kl_LB = (log_p.exp() * (log_p - log_q)).sum(-1)
    return (kl_LB * rows_LB).sum(-1) / num_L


def divergence_cotangent(
    target_LBY: Tensor, moved_LBY: Tensor, rows_LB: Tensor, num_L: Tensor
) -> Tensor:
    """d divergence / d moved, the target held fixed."""
    error_LBY = moved_LBY.softmax(-1) - target_LBY.softmax(-1)
    return error_LBY * _row_weight(error_LBY, rows_LB, num_L)


def reverse_divergence_cotangent(
    target_LBY: Tensor, moved_LBY: Tensor, rows_LB: Tensor, num_L: Tensor
) -> Tensor:
    """d KL(softmax(moved) || softmax(target)) / d moved, the target held fixed."""
    log_p, log_q = target_LBY.log_softmax(-1), moved_LBY.log_softmax(-1)
    gap_LBY, q_LBY = log_q - log_p, log_q.exp()
    error_LBY = q_LBY * (gap_LBY - (q_LBY * gap_LBY).sum(-1, keepdim=True))
    return error_LBY * _row_weight(error_LBY, rows_LB, num_L)
