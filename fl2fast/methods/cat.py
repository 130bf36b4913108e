"""Client-specific adaptive thresholds without the rest of (FL)^2 (the paper's Table 2 and Fig. 4).

tau_k = mean confidence of client k, tau_k(c) = tau_k * pbar_k(c) / max_c' pbar_k(c'); a row is
accepted if its confidence reaches the threshold of its class. Weights are uniform; for Fig. 4 the
paper does not say, and its baseline is called CAT.

  cat           grad L_a(W) over accepted rows
  cat-sacr      + grad L_cs(W*), W* = W + eps(grad L_p(W)); L_p and KL over rows of high confidence
  cat-sacr-all  the same with L_p = L_a and KL over all accepted rows, wrong ones included
"""

from fl2fast.methods.method import ClientPart, LabelFn, Method, ServerPart, Weight
from fl2fast.methods.parts import (
    adaptive_threshold,
    ce_grads,
    sacr_grads,
    uniform,
    without_sureness,
)


def cat(*, strict: bool = False) -> Method:
    """CAT + FedAvg: adaptive thresholds, cross-entropy on strong views, uniform weights.

    Reference: a row of Table 2 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    label = without_sureness(adaptive_threshold(1.0, strict=strict))
    return Method(ServerPart(ce_grads), ClientPart(label, ce_grads, uniform))


def cat_sacr(
    *,
    rho: float = 0.1,
    sure: float = 0.95,
    perturbation: str = "asam",
    eta: Weight = 0.01,
    strict: bool = False,
) -> Method:
    """CAT + SACR + FedAvg: (FL)^2 with uniform weights.

    Reference: a row of Table 2 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    return _sacr(adaptive_threshold(sure, strict=strict), rho, perturbation, eta)


def cat_sacr_all(
    *, rho: float = 0.1, perturbation: str = "asam", eta: Weight = 0.01, strict: bool = False
) -> Method:
    """CAT + SACR on all accepted rows: the perturbation and KL also see doubtful labels.

    Reference: a curve of Fig. 4 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    return _sacr(adaptive_threshold(0.0, strict=strict), rho, perturbation, eta)


def _sacr(label: LabelFn, rho: float, perturbation: str, eta: float) -> Method:
    grads = sacr_grads(rho, perturbation=perturbation, eta=eta)
    return Method(ServerPart(ce_grads), ClientPart(label, grads, uniform))
