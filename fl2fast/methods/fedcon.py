"""FedCon: contrastive consistency of two networks (Long et al., 2021).

A client trains its encoder f and a head h on two weak views, without labels:

  1/2 D(h(f(x1)), t(x2)) + 1/2 D(h(f(x2)), t(x1)),  D the negative cosine, t a slow encoder

t <- ema t + (1 - ema) f after every step, and no gradient enters it. Head and t stay with the
client; at its first visit t is the encoder that it received. The server averages encoders; the
classifier is its own, and it trains both on two weak views of its labels, z and s being the logits
of the model and of its slow copy:

  1/2 [CE(z1, y) + CE(z2, y)] + r/2 mean [KL(s2 || z1) + KL(s1 || z2)]
  r = exp(-5 (1 - min(round, 100)/100)^2)

The authors' code never uses its slow copies and keeps heads by batch number; this is what the paper
means. Encoder, static batch norm and optimiser are the (FL)^2 protocol's; the head is F -> hidden
(norm, ReLU) -> F for F features, `hidden` smaller than there (12,288). The labels that a round
reports are the global model's: figures only. A row is [model | slow copy | head | t].
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fl2fast.losses import cross_entropy_cotangent, divergence_cotangent
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
)
from fl2fast.methods.parts import fixed_threshold, live_rows, num_live, uniform, without_sureness
from fl2fast.methods.projection import apart, head_init, project
from fl2fast.models.network import Network


class Row(NamedTuple):
    model: Tensor
    copy: Tensor  # slow; the server's
    head: Tensor
    slow: Tensor  # encoder, the client's

    @staticmethod
    def of(net: Network, row_LP: Tensor) -> "Row":
        width = net.layout.width
        sizes = [width, width, row_LP.shape[-1] - 3 * width, width]
        return Row(*row_LP.split(sizes, dim=-1))

    def join(self) -> Tensor:
        return torch.cat(self, -1)


def client_grads(hidden: int) -> GradFn:
    def grads(net: Network, row_LP: Tensor, batch: Batch) -> Tensor:
        views, live_LB = (batch.view_LBCHW, *batch.more_views), live_rows(batch)

        def encode(params_LP: Tensor) -> list[Tensor]:
            return [net.encoder.forward(params_LP, view, batch.row_LB) for view in views]

        t1, t2 = encode(Row.of(net, row_LP).slow)

        def loss(row_LP: Tensor) -> Tensor:
            own = Row.of(net, row_LP)
            h1, h2 = (project(own.head, f, live_LB, hidden) for f in encode(own.model))
            both_LB = 0.5 * apart(h1, t2) + 0.5 * apart(h2, t1)
            return ((both_LB * live_LB).sum(-1) / num_live(batch)).sum()

        return torch.func.grad(loss)(row_LP)

    return grads


def server_grads(net: Network, row_LP: Tensor, batch: Batch) -> Tensor:
    own, num_L = Row.of(net, row_LP), num_live(batch)
    x1, (x2,), rows = batch.view_LBCHW, batch.more_views, batch.row_LB
    assert batch.round is not None
    ramp = torch.exp(-5 * (1 - batch.round.to(row_LP).clamp(max=100) / 100) ** 2)
    grad = torch.zeros_like(own.model)
    for view, other in ((x1, x2), (x2, x1)):
        z, pull = net.pullback(own.model, view, rows)
        s = net.forward(own.copy, other, rows)
        towards = cross_entropy_cotangent(z, batch.y_LB, batch.keep_LB, num_L)
        calm = divergence_cotangent(s, z, batch.keep_LB, num_L)
        grad = grad + pull(0.5 * towards + 0.5 * ramp * calm)
    return Row(grad, *map(torch.zeros_like, own[1:])).join()


def keep(net: Network, row_LP: Tensor, _: Tensor) -> Tensor:
    return row_LP[:, 2 * net.layout.width :]  # head and slow encoder


def start(net: Network, visit: Visit) -> Tensor:
    own, seen_L1 = Row.of(net, visit.global_LP), visit.seen_L[:, None]
    head, slow = visit.kept_LQ.split([own.head.shape[-1], net.layout.width], dim=-1)
    fresh = Row(own.model, own.copy, own.head, own.model)
    kept = Row(own.model, own.copy, head, slow)
    return torch.where(seen_L1, kept.join(), fresh.join())


def columns(net: Network, row_P: Tensor, *names: str) -> Tensor:
    """Some fields of a row; `encoder` is the model without its classifier."""
    own = Row.of(net, torch.zeros_like(row_P, dtype=torch.bool))
    rest_P = net.layout.mask(f"{net.classifier}.", row_P) == 0
    chosen = {name: torch.ones_like(getattr(own, name)) for name in names if name != "encoder"}
    if "encoder" in names:
        chosen["model"] = rest_P
    return own._replace(**chosen).join()


def fedcon(*, ema: Share = 0.999, hidden: Count = 512, sure: float = 0.95) -> Method:
    """FedCon: clients learn an encoder by contrast, the server a classifier on top of it.

    Reference: Long, Che, Wang, Ye, Luo, Wu, Xiao, Ma, FedCon: A Contrastive Framework for Federated
    Semi-Supervised Learning, 2021.
    """

    def init(net: Network, params_P: Tensor, normal: Callable[[int], Tensor]) -> Tensor:
        return Row(params_P, params_P, head_init(net, hidden, normal), params_P).join()

    def settle_client(net: Network, row_LP: Tensor) -> Tensor:
        own = Row.of(net, row_LP)
        return own._replace(slow=ema * own.slow + (1 - ema) * own.model).join()

    def settle_server(net: Network, row_LP: Tensor) -> Tensor:
        own = Row.of(net, row_LP)
        return own._replace(copy=ema * own.copy + (1 - ema) * own.model).join()

    client = ClientPart(
        without_sureness(fixed_threshold(sure)),
        client_grads(hidden),
        uniform,
        views=("weak", "weak"),
        batches="all",
        trains=lambda net, row_P: columns(net, row_P, "encoder", "head"),
        shares=lambda net, row_P: columns(net, row_P, "encoder"),
        memory=Memory(keep, start),
        settle=settle_client,
    )
    server = ServerPart(
        server_grads,
        views=("weak", "weak"),
        trains=lambda net, row_P: columns(net, row_P, "model"),
        settle=settle_server,
    )
    return Method(server, client, learner=Learner(init, lambda net, row: Row.of(net, row).model))
