"""Parts that methods are made of: thresholds, gradients of one step, aggregation weights.

Shapes: L lanes, M rows of a client, B rows of a batch, Y classes, P parameters.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fl2fast.kernels.asam import asam
from fl2fast.losses import (
    cross_entropy_cotangent,
    divergence_cotangent,
    reverse_divergence_cotangent,
)
from fl2fast.methods.method import Batch, GradFn, LabelFn, PseudoLabels
from fl2fast.models.network import Network


def adaptive_threshold(sure: float, *, strict: bool = False) -> LabelFn:
    """CAT: a client accepts a row whose confidence reaches its own threshold for that class.

    tau = mean_i max_c p_i(c), tau_c = tau * (pbar_c / max_c' pbar_c') with pbar the mean
    prediction, so that the best-learnt class gets tau itself ((FL)^2, Sec. 3.1; FreeMatch's
    self-adaptive threshold on one client's rows, without its moving average).
    """

    def label(predict: Callable[[], Tensor], row_LM: Tensor, _: Tensor | None) -> PseudoLabels:
        probs_LMY = predict()
        confidence_LM, y_LM = probs_LMY.max(-1)
        num_L = row_LM.sum(-1).to(probs_LMY.dtype)
        tau_L = (confidence_LM * row_LM).sum(-1) / num_L
        mean_LY = (probs_LMY * row_LM[..., None]).sum(1) / num_L[:, None]
        tau_LY = tau_L[:, None] * (mean_LY / mean_LY.amax(-1, keepdim=True))
        threshold_LM = tau_LY.gather(-1, y_LM)
        passes = confidence_LM > threshold_LM if strict else confidence_LM >= threshold_LM
        keep_LM = passes & row_LM
        return PseudoLabels(y_LM, keep_LM, keep_LM & (confidence_LM >= sure), tau_L, tau_LY)

    return label


def fixed_threshold(sure: float) -> LabelFn:
    """FixMatch: a row whose confidence reaches one number for all; every accepted row is sure."""

    def label(predict: Callable[[], Tensor], row_LM: Tensor, _: Tensor | None) -> PseudoLabels:
        confidence_LM, y_LM = predict().max(-1)
        keep_LM = row_LM & (confidence_LM >= sure)
        num_L = row_LM.sum(-1).to(confidence_LM.dtype)
        return PseudoLabels(y_LM, keep_LM, keep_LM, (confidence_LM * row_LM).sum(-1) / num_L)

    return label


def without_sureness(label: LabelFn) -> LabelFn:
    """For steps that treat all accepted rows alike: one kind of batch less to tell apart."""
    return lambda predict, row_LM, truth_LM: label(predict, row_LM, truth_LM)._replace(sure_LM=None)


def true_labels(_: Callable[[], Tensor], row_LM: Tensor, truth_LM: Tensor | None) -> PseudoLabels:
    """Every row with its true label: for upper bounds only."""
    assert truth_LM is not None, "a method that uses true labels must declare sees_truth"
    return PseudoLabels(truth_LM, row_LM)


def live_rows(batch: Batch) -> Tensor:
    """bool [L, B]."""
    return torch.ones_like(batch.keep_LB) if batch.row_LB is None else batch.row_LB


def num_live(batch: Batch) -> Tensor:
    """Live rows of each lane: [L]."""
    if batch.row_LB is None:
        return torch.full_like(batch.y_LB[:, 0], batch.y_LB.shape[1])
    return batch.row_LB.sum(-1)


def ce_grads(net: Network, params_LP: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy over the kept rows: 1F + 1B."""
    logits_LBY, pull = net.pullback(params_LP, batch.view_LBCHW, batch.row_LB)
    keep_LB = batch.keep_LB
    return pull(cross_entropy_cotangent(logits_LBY, batch.y_LB, keep_LB, keep_LB.sum(-1)))


def asam_perturbation(
    net: Network, params_LP: Tensor, grad_LP: Tensor, rho: float, eta: float
) -> Tensor:
    """eps = rho T^2 g / ||T g||, T = |w| + eta for weights and 1 for biases (ASAM, 2021)."""
    scale_LP = torch.where(net.weights_P > 0, params_LP.abs() + eta, 1.0)
    scaled_LP = scale_LP * grad_LP
    return rho * scale_LP * scaled_LP / (scaled_LP.norm(dim=-1, keepdim=True) + 1e-16)


def sam_perturbation(
    net: Network, params_LP: Tensor, grad_LP: Tensor, rho: float, eta: float
) -> Tensor:
    """eps = rho g / ||g||, the norm that the paper's equation shows (SAM, 2021)."""
    del net, params_LP, eta  # every parameter is scaled alike
    return rho * grad_LP / (grad_LP.norm(dim=-1, keepdim=True) + 1e-12)


PERTURBATIONS = {"asam": asam_perturbation, "sam": sam_perturbation}


def perturbed(
    net: Network, perturbation: str, params_LP: Tensor, grad_LP: Tensor, rho: float, eta: float
) -> Tensor:
    """W + eps."""
    if perturbation == "asam" and "asam" in net.execution.kernels:
        return asam(params_LP, grad_LP, net.weights_P, rho, eta)
    return params_LP + PERTURBATIONS[perturbation](net, params_LP, grad_LP, rho, eta)


DIVERGENCES = {"forward": divergence_cotangent, "reverse": reverse_divergence_cotangent}


def sacr_grads(
    rho: float,
    *,
    perturbation: str = "asam",
    eta: float = 0.01,
    divergence: str = "forward",
    consistency_rows: str = "sure",
    mean_over: str = "kept",
    w_a: float = 1.0,
    w_cs: float = 1.0,
) -> GradFn:
    """SACR: grad L_a(W) + grad L_cs(W*), W* = W + eps(grad L_p(W)) ((FL)^2, Sec. 3.2).

    L_p and L_a are the cross-entropy over the sure and over the kept rows, L_cs the mean over all
    live rows of KL(Q || Q*) on the sure rows. One forward at W serves L_p, L_a and the target Q:
    2F + 3B a row; 2F + 2B where every row is sure, since then L_p = L_a; 1F + 1B where none is,
    since then eps = 0 and L_cs = 0.
    """
    cotangent = DIVERGENCES[divergence]

    def grads(net: Network, params_LP: Tensor, batch: Batch) -> Tensor:
        view, row, y, sure_LB = batch.view_LBCHW, batch.row_LB, batch.y_LB, batch.sure_LB
        live_L = num_live(batch)
        kept_L = batch.keep_LB.sum(-1) if mean_over == "kept" else live_L

        logits_LBY, pull = net.pullback(params_LP, view, row)
        all_rows = cross_entropy_cotangent(logits_LBY, y, batch.keep_LB, kept_L)
        if batch.sureness == "none":
            return w_a * pull(all_rows)
        if batch.sureness == "all" and w_a > 0:
            grad_a = grad_p = w_a * pull(all_rows)  # eps does not see the factor w_a
        else:
            sure_rows = cross_entropy_cotangent(logits_LBY, y, sure_LB, sure_LB.sum(-1))
            grad_a, grad_p = net.pull_each(pull, (w_a * all_rows, sure_rows))

        moved_LP = perturbed(net, perturbation, params_LP, grad_p, rho, eta)
        moved_LBY, pull_moved = net.pullback(moved_LP, view, row)
        rows_LB = sure_LB if consistency_rows == "sure" else batch.keep_LB
        return grad_a + w_cs * pull_moved(cotangent(logits_LBY, moved_LBY, rows_LB, live_L))

    return grads


def matrix_decay(net: Network, params_LP: Tensor, decay: float) -> Tensor:
    """The gradient of decay/2 ||w||^2 over weights of two axes or more: no norm, no bias."""
    return decay * params_LP * net.layout.matrices(params_LP)


def weighted_where_kept(labels: PseudoLabels) -> Tensor:
    """Clients that accepted something weigh the same; the others nothing."""
    return labels.keep_LM.any(-1).to(torch.get_default_dtype())


def learning_status(labels: PseudoLabels) -> Tensor:
    """LSAA: a client weighs 1 - tau, more the less it has learnt ((FL)^2, Sec. 3.3)."""
    assert labels.tau_L is not None, "learning-status-aware aggregation needs a threshold"
    return 1.0 - labels.tau_L


def uniform(labels: PseudoLabels) -> Tensor:
    """Every selected client weighs the same."""
    return torch.ones_like(labels.keep_LM[:, 0], dtype=torch.get_default_dtype())


def num_rows(labels: PseudoLabels) -> Tensor:
    """FedAvg: a client weighs as many rows as it trains on."""
    return labels.keep_LM.sum(-1).to(torch.get_default_dtype())
