"""A projection head on features, as columns of a learner's row, all lanes at once.

Shapes: L lanes, B rows, F features, H hidden. Columns: W1 [H, F], gain [H], shift [H], W2 [F, H],
bias [F]; a norm over the live rows stands after W1.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, relu

from fl2fast.models.network import Network


def head_init(net: Network, hidden: int, normal: Callable[[int], Tensor]) -> Tensor:
    features = net.num_features
    first = normal(hidden * features) * (2 / features) ** 0.5
    second = normal(features * hidden) * (1 / hidden) ** 0.5
    one, zero = torch.ones_like(first[:hidden]), torch.zeros_like(first[:features])
    return torch.cat((first, one, torch.zeros_like(one), second, zero))


def project(head_LP: Tensor, f_LBF: Tensor, row_LB: Tensor, hidden: int) -> Tensor:
    """W2 relu(norm(W1 f)) + bias: [L, B, F]."""
    features = f_LBF.shape[-1]
    sizes = [hidden * features, hidden, hidden, features * hidden, features]
    first, gain, shift, second, bias = head_LP.split(sizes, dim=-1)
    h_LBH = f_LBF @ first.unflatten(-1, (hidden, features)).mT
    row_LB1 = row_LB[..., None].to(h_LBH.dtype)
    num_L11 = row_LB1.sum(1, keepdim=True)
    mean_L1H = (h_LBH * row_LB1).sum(1, keepdim=True) / num_L11
    var_L1H = ((h_LBH - mean_L1H).square() * row_LB1).sum(1, keepdim=True) / num_L11
    h_LBH = (h_LBH - mean_L1H) * (var_L1H + 1e-5).rsqrt() * gain[:, None] + shift[:, None]
    return relu(h_LBH) @ second.unflatten(-1, (features, hidden)).mT + bias[:, None]


def apart(a_LBF: Tensor, b_LBF: Tensor) -> Tensor:
    """Negative cosine: [L, B]."""
    return -cosine_similarity(a_LBF, b_LBF, dim=-1)
