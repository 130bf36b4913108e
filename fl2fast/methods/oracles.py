"""What SACR could do if it knew which pseudo-labels are right (the paper's Fig. 4).

These two, and the upper bound `fedavg`, are the only methods that see clients' true labels, and
only to tell right pseudo-labels from wrong ones: every accepted row still trains towards its
pseudo-label.

  cat-sacr-correct  grad L_a(W) + grad L_cs(W*), with L_p and KL over accepted rows whose label is
                    right
  cat-sam           grad L_a(W) + grad L_c(W*), L_c the cross-entropy over those rows, and
                    W* = W + eps(grad L_c(W)); the paper's text can also be read as
                    `reading=replaced`: the right rows take their share of L_a at W* only
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from fl2fast.losses import cross_entropy_cotangent
from fl2fast.methods.method import (
    Batch,
    ClientPart,
    GradFn,
    LabelFn,
    Method,
    PseudoLabels,
    ServerPart,
    Weight,
)
from fl2fast.methods.parts import adaptive_threshold, ce_grads, perturbed, sacr_grads, uniform
from fl2fast.models.network import Network


def sure_where_right(*, strict: bool) -> LabelFn:
    """CAT's acceptance; the accepted rows whose label is true are called sure."""
    accept = adaptive_threshold(0.0, strict=strict)

    def label(
        predict: Callable[[], Tensor], row_LM: Tensor, truth_LM: Tensor | None
    ) -> PseudoLabels:
        assert truth_LM is not None, "an oracle must declare sees_truth"
        labels = accept(predict, row_LM, None)
        return labels._replace(sure_LM=labels.keep_LM & (labels.y_LM == truth_LM))

    return label


def sam_grads(rho: float, perturbation: str, eta: float, reading: str) -> GradFn:
    def grads(net: Network, params_LP: Tensor, batch: Batch) -> Tensor:
        view, row, y = batch.view_LBCHW, batch.row_LB, batch.y_LB
        keep_LB, right_LB = batch.keep_LB, batch.sure_LB
        num_L, num_right_L = keep_LB.sum(-1), right_LB.sum(-1)
        logits_LBY, pull = net.pullback(params_LP, view, row)
        plain_LB = keep_LB if reading == "added" else keep_LB & ~right_LB
        accepted = cross_entropy_cotangent(logits_LBY, y, plain_LB, num_L)
        if batch.sureness == "none":
            return pull(accepted)
        right = cross_entropy_cotangent(logits_LBY, y, right_LB, num_right_L)
        grad_a, grad_c = net.pull_each(pull, (accepted, right))
        moved_LP = perturbed(net, perturbation, params_LP, grad_c, rho, eta)
        moved_LBY, pull_moved = net.pullback(moved_LP, view, row)
        share_L = num_right_L if reading == "added" else num_L
        return grad_a + pull_moved(cross_entropy_cotangent(moved_LBY, y, right_LB, share_L))

    return grads


def cat_sacr_correct(
    *, rho: float = 0.1, perturbation: str = "asam", eta: Weight = 0.01, strict: bool = False
) -> Method:
    """CAT + SACR on right pseudo-labels only: an oracle, not a method one could deploy.

    Reference: a curve of Fig. 4 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    grads = sacr_grads(rho, perturbation=perturbation, eta=eta)
    client = ClientPart(sure_where_right(strict=strict), grads, uniform, sees_truth=True)
    return Method(ServerPart(ce_grads), client)


def cat_sam(
    *,
    rho: float = 0.1,
    perturbation: str = "asam",
    eta: Weight = 0.01,
    strict: bool = False,
    reading: Literal["added", "replaced"] = "added",
) -> Method:
    """CAT + SAM on right pseudo-labels: an oracle, not a method one could deploy.

    Reference: a curve of Fig. 4 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    grads = sam_grads(rho, perturbation, eta, reading)
    client = ClientPart(sure_where_right(strict=strict), grads, uniform, sees_truth=True)
    return Method(ServerPart(ce_grads), client)
