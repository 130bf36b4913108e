"""Centralised semi-supervised learning, the ceiling that Fig. 1 of (FL)^2 shows.

One model sees 64 labelled and 448 unlabelled rows a step; labelled, weak and
strong views pass through it together and share their batch statistics.

  L = mean CE(f(x), y) + mean_u [max p >= tau_yhat] CE(f(strong u), yhat) + lambda_f L_f

yhat = argmax p, p the softmax on the weak view; both means are over all rows. FixMatch: tau = sure,
no L_f. FreeMatch: before every mask, with moving averages at `ema` that start at 1/Y,

  t <- mean_u max p,  q <- mean_u p,  g <- the histogram of yhat,  tau_c = t q_c / max_c' q_c'
  L_f = sum_c a_c log b_c,  a = norm(q / g),  b = norm(pbar / h)

pbar and h the mean softmax and the histogram of argmax of accepted strong rows. lambda_f is 0.001
in USB's configuration, 0.01 in TorchSSL's. `clip_time` bounds t by 0.95, as USB does for SVHN.

SGD decays only weights of two axes or more, does not clip, and its rate falls per step as
cos(7 pi t / 16 T). A moving average of the weights is tested, with statistics of its own (static
batch norm in place of the copied running ones). A row is [model | average | t | q | g].
"""

import torch
from torch import Tensor

from fl2fast.losses import cross_entropy_cotangent
from fl2fast.methods.method import (
    Batch,
    CentralPart,
    GradFn,
    Learner,
    Method,
    Share,
    Weight,
    protocol,
)
from fl2fast.methods.parts import live_rows, matrix_decay
from fl2fast.methods.self_adaptive import averaged, fairness_cotangent, fresh_state, thresholds
from fl2fast.models.network import Network


def central_grads(
    *, sure: float | None, ema: float, lambda_f: float, clip_time: bool, decay: float
) -> GradFn:
    """`sure` None: FreeMatch's thresholds, which the row holds."""

    def grads(net: Network, row_LP: Tensor, batch: Batch) -> Tensor:
        width = net.layout.width
        params_LP, state_LZ = row_LP[:, :width], row_LP[:, 2 * width :]
        assert batch.labelled is not None
        first, y_LR = batch.labelled
        live_LB = live_rows(batch)
        views = (first, *batch.more_views, batch.view_LBCHW)
        rows = None
        if batch.row_LB is not None:
            rows = torch.cat((torch.ones_like(y_LR, dtype=torch.bool), live_LB, live_LB), 1)
        logits, pull = net.pullback(params_LP, torch.cat(views, 1), rows)
        sizes = [y_LR.shape[1], *live_LB.shape[1:], *live_LB.shape[1:]]
        known_LRY, weak_LBY, strong_LBY = logits.split(sizes, dim=1)

        num_L = live_LB.sum(-1)
        probs_LBY = weak_LBY.softmax(-1)
        confidence_LB, y_LB = probs_LBY.max(-1)
        if sure is None:
            state_LZ = averaged(state_LZ, probs_LBY, y_LB, live_LB, ema, clip_time=clip_time)
            tau_LB = thresholds(state_LZ).gather(-1, y_LB)
        else:
            tau_LB = torch.full_like(confidence_LB, sure)
        keep_LB = live_LB & (confidence_LB >= tau_LB)
        strong = cross_entropy_cotangent(strong_LBY, y_LB, keep_LB, num_L)
        if sure is None:
            strong = strong + lambda_f * fairness_cotangent(strong_LBY, keep_LB, state_LZ)
        every_LR = torch.ones_like(y_LR, dtype=torch.bool)
        known = cross_entropy_cotangent(known_LRY, y_LR, every_LR, every_LR.sum(-1))
        grad = pull(torch.cat((known, torch.zeros_like(weak_LBY), strong), 1))
        grad = grad + matrix_decay(net, params_LP, decay)
        change = state_LZ - row_LP[:, 2 * width :]
        return torch.cat((grad, torch.zeros_like(grad), change), -1)

    return grads


def _central(sure: float | None, weights_ema: float, grads: GradFn) -> Method:
    def init(net: Network, params_P: Tensor, _: object) -> Tensor:
        state_Z = fresh_state(net.num_classes, params_P) if sure is None else params_P[:0]
        return torch.cat((params_P, params_P, state_Z))

    def model(net: Network, row_LP: Tensor) -> Tensor:
        return row_LP[..., net.layout.width : 2 * net.layout.width]

    def settle(net: Network, row_LP: Tensor) -> Tensor:
        width = net.layout.width
        params, average, state = row_LP.tensor_split((width, 2 * width), dim=-1)
        return torch.cat((params, weights_ema * average + (1 - weights_ema) * params, state), -1)

    def trained(net: Network, row_P: Tensor) -> Tensor:
        return torch.arange(len(row_P), device=row_P.device) < net.layout.width

    part = CentralPart(grads, trains=trained, settle=settle)
    return Method(None, None, central=part, learner=Learner(init, model))


@protocol(pretrain=0, clip=0.0, weight_decay=0.0)
def freematch(
    *,
    ema: Share = 0.999,
    weights_ema: Share = 0.999,
    lambda_f: Weight = 0.001,
    clip_time: bool = False,
    decay: Weight = 5e-4,
) -> Method:
    """FreeMatch, centralised: self-adaptive thresholds and fairness, all rows in one place.

    Reference: Wang et al., FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning, ICLR
    2023.
    """
    grads = central_grads(sure=None, ema=ema, lambda_f=lambda_f, clip_time=clip_time, decay=decay)
    return _central(None, weights_ema, grads)


@protocol(pretrain=0, clip=0.0, weight_decay=0.0)
def fixmatch_central(
    *, sure: float = 0.95, weights_ema: Share = 0.999, decay: Weight = 5e-4
) -> Method:
    """FixMatch, centralised: a fixed threshold, all rows in one place.

    Reference: Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and
    Confidence, NeurIPS 2020.
    """
    grads = central_grads(sure=sure, ema=0.0, lambda_f=0.0, clip_time=False, decay=decay)
    return _central(sure, weights_ema, grads)
