"""Helper agents: other clients' models that a client is compared with (FedMatch, Sec. 3.1).

Shapes: L lanes, N clients, H helpers, B rows, Y classes, P parameters, Q = P + Y: what a client
keeps is its psi and its embedding.
"""

import torch
from torch import Tensor

from fl2fast.methods.method import Visit
from fl2fast.models.network import Network


def embedding(net: Network, params_LP: Tensor, probe_CHW: Tensor) -> Tensor:
    """What a model is known by: its softmax on the probe, with the probe's own statistics."""
    x_LBCHW = probe_CHW.expand(len(params_LP), 1, *probe_CHW.shape)
    return net.forward(params_LP, x_LBCHW, None)[:, 0].softmax(-1)


def nearest(visit: Visit, width: int, num: int) -> tuple[Tensor, Tensor]:
    """The psi of the `num` nearest other clients, [L, H, P], and whether a lane has so many."""
    crowd = visit.crowd()
    known_LNY = crowd.kept_SNQ[..., width:][crowd.seed_L]  # not a copy of every psi for every lane
    far_LN = (known_LNY - visit.kept_LQ[:, None, width:]).square().sum(-1)
    client_N = torch.arange(far_LN.shape[1], device=far_LN.device)
    others_LN = crowd.seen_SN[crowd.seed_L] & (client_N != crowd.client_L[:, None])
    order_LN = torch.where(others_LN, far_LN, torch.inf).argsort(dim=-1, stable=True)
    chosen_LH = order_LN[:, :num]
    psi_LHP = crowd.kept_SNQ[crowd.seed_L[:, None], chosen_LH][..., :width]
    return psi_LHP, visit.seen_L & (others_LN.sum(-1) >= num)


def majority(answers: tuple[Tensor, ...]) -> Tensor:
    """The class that most argmaxes of logits_LBY name; of several the lowest: [L, B]."""
    classes_Y = torch.arange(answers[0].shape[-1], device=answers[0].device)
    votes_LBY = torch.stack([a.argmax(-1, keepdim=True) == classes_Y for a in answers]).sum(0)
    return (votes_LBY * len(classes_Y) - classes_Y).argmax(-1)
