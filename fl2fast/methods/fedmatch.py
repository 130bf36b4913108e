"""FedMatch: inter-client consistency and disjoint learning (Jeong et al., ICLR 2021).

theta = sigma + psi, where weights of two axes or more have a psi; norms and biases belong to sigma
(an assumption: the original has neither). The server learns sigma by lambda_s CE on labels; clients
learn psi on a batch's confident rows C = {max_c p(c) >= confidence}, p the local model on x itself:

  lambda_i/H sum_h mean_C KL(p_h || p) + lambda_a mean_C CE(f(strong x), yhat)
  + lambda_l1 sum |psi| + lambda_l2 sum (sigma - psi)^2

yhat is the majority of the argmax of the local model and its H helpers (a tie: the lowest class).
Helpers are the psi of the H clients nearest to the receiver, on top of its own sigma; a client is
known by its softmax on one fixed noise image after it last trained. They are sent every
`helper_every` rounds, to clients seen before; without them there is no KL and yhat is the local
argmax. A psi at most `sparse` in size does not act in tests, a change at most `sparse` is not sent.

A row is [sigma | psi], in helper rounds [sigma | psi | H helpers' psi | whether there are any].
The optimiser is the (FL)^2 protocol's, as in its Table 1; FedMatch's own is SGD at 1e-3 without
momentum, clipping or decay. The labels that a round reports are the global model's: figures only.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fl2fast.losses import cross_entropy_cotangent, divergence_cotangent
from fl2fast.methods.helpers import embedding, majority, nearest
from fl2fast.methods.method import (
    Batch,
    ClientPart,
    Count,
    GradFn,
    Learner,
    Memory,
    Method,
    ServerPart,
    Share,
    Visit,
    Weight,
)
from fl2fast.methods.parts import ce_grads, fixed_threshold, live_rows, uniform, without_sureness
from fl2fast.models.network import Network


class Lambdas(NamedTuple):
    s: float
    i: float
    a: float
    l1: float
    l2: float


def server_grads(lambdas: Lambdas) -> GradFn:
    def grads(net: Network, row_LP: Tensor, batch: Batch) -> Tensor:
        sigma, psi = row_LP.split(net.layout.width, dim=-1)
        grad = lambdas.s * ce_grads(net, sigma + psi, batch)
        return torch.cat((grad, torch.zeros_like(psi)), -1)

    return grads


def client_grads(lambdas: Lambdas, confidence: float) -> GradFn:
    def grads(net: Network, row_LP: Tensor, batch: Batch) -> Tensor:
        (clean,), row = batch.more_views, batch.row_LB
        sigma, psi, *others = row_LP.split(net.layout.width, dim=-1)
        local_LBY, pull_local = net.pullback(sigma + psi, clean, row)
        strong_LBY, pull_strong = net.pullback(sigma + psi, batch.view_LBCHW, row)
        sure_LB = live_rows(batch) & (local_LBY.softmax(-1).amax(-1) >= confidence)
        num_L, y_LB = sure_LB.sum(-1), local_LBY.argmax(-1)
        grad = lambdas.l1 * psi.sign() - 2 * lambdas.l2 * (sigma - psi)
        if others:
            *psi_H, has_L1 = others
            answers = [net.forward(sigma + own, clean, row) for own in psi_H]
            apart = [divergence_cotangent(a, local_LBY, sure_LB, num_L) for a in answers]
            grad = grad + has_L1 * pull_local(lambdas.i / len(apart) * torch.stack(apart).sum(0))
            y_LB = torch.where(has_L1 > 0, majority((local_LBY, *answers)), y_LB)
        towards = cross_entropy_cotangent(strong_LBY, y_LB, sure_LB, num_L)
        grad = (grad + lambdas.a * pull_strong(towards)) * net.layout.matrices(psi)
        return torch.cat((torch.zeros_like(sigma), grad, *map(torch.zeros_like, others)), -1)

    return grads


def psi_columns(net: Network, row_P: Tensor) -> Tensor:
    columns_P = torch.zeros_like(row_P, dtype=torch.bool)
    columns_P[net.layout.width : 2 * net.layout.width] = net.layout.matrices(row_P)
    return columns_P


def sigma_columns(net: Network, row_P: Tensor) -> Tensor:
    return torch.arange(len(row_P), device=row_P.device) < net.layout.width


def fedmatch(
    *,
    confidence: Share = 0.75,
    helpers: Count = 2,
    helper_every: Count = 10,
    psi_factor: float = 0.2,
    lambda_s: Weight = 10.0,
    lambda_i: Weight = 1e-2,
    lambda_a: Weight = 1e-2,
    lambda_l1: Weight = 1e-5,
    lambda_l2: Weight = 10.0,
    sparse: Weight = 1e-5,
) -> Method:
    """FedMatch: helpers, and disjoint learning of two summands of the weights.

    Reference: Jeong, Yoon, Yang, Hwang, Federated Semi-Supervised Learning with Inter-Client
    Consistency & Disjoint Learning, ICLR 2021.
    """

    def init(net: Network, sigma_P: Tensor, _: object) -> Tensor:
        return torch.cat((sigma_P, psi_factor * sigma_P * net.layout.matrices(sigma_P)))

    def model(net: Network, row_LP: Tensor) -> Tensor:
        sigma, psi = row_LP.split(net.layout.width, dim=-1)
        return sigma + torch.where(psi.abs() > sparse, psi, 0.0)

    def keep(net: Network, row_LP: Tensor, probe_CHW: Tensor) -> Tensor:
        psi = row_LP[:, net.layout.width :]
        return torch.cat((psi, embedding(net, model(net, row_LP), probe_CHW)), -1)

    def start(net: Network, visit: Visit) -> Tensor:
        if visit.round % helper_every:
            return visit.global_LP
        psi_LHP, has_L = nearest(visit, net.layout.width, helpers)
        return torch.cat((visit.global_LP, psi_LHP.flatten(1), has_L[:, None]), -1)

    def report(net: Network, start_LP: Tensor, row_LP: Tensor) -> Tensor:
        return torch.where((row_LP - start_LP).abs() > sparse, row_LP, start_LP)

    lambdas = Lambdas(lambda_s, lambda_i, lambda_a, lambda_l1, lambda_l2)
    client = ClientPart(
        without_sureness(fixed_threshold(confidence)),
        client_grads(lambdas, confidence),
        uniform,
        views=("strong", "clean"),
        batches="all",
        trains=psi_columns,
        shares=psi_columns,
        memory=Memory(keep, start),
        report=report,
    )
    server = ServerPart(server_grads(lambdas), trains=sigma_columns)
    return Method(server, client, learner=Learner(init, model))
