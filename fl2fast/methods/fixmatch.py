"""FixMatch on clients: one fixed threshold, with and without SACR (the paper's Table 2).

Pseudo-labels y = argmax_c p(c) of the global model on a weak view; a row is accepted if
max_c p(c) >= `sure`, and trained towards y on a strong view.

  fixmatch       grad L_a(W), L_a the mean cross-entropy over a batch of accepted rows
  sacr-fixmatch  grad L_a(W) + grad L_cs(W*), where every accepted row is a sure one: L_p = L_a, and
                 the KL term speaks of the whole batch

The server fine-tunes on its labels and averages uniformly. Pretraining is as in (FL)^2: the paper
does not say, and rows of one table should differ in one thing.
"""

from fl2fast.methods.method import ClientPart, Method, ServerPart, Weight
from fl2fast.methods.parts import ce_grads, fixed_threshold, sacr_grads, uniform


def fixmatch(*, sure: float = 0.95) -> Method:
    """FixMatch + FedAvg: a fixed threshold and cross-entropy on strong views.

    Reference: Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and
    Confidence, NeurIPS 2020; as a row of Table 2 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    client = ClientPart(fixed_threshold(sure), ce_grads, uniform)
    return Method(ServerPart(ce_grads), client)


def sacr_fixmatch(
    *, rho: float = 0.1, sure: float = 0.95, perturbation: str = "asam", eta: Weight = 0.01
) -> Method:
    """SACR + FixMatch + FedAvg: a fixed threshold with sharpness-aware consistency.

    Reference: a row of Table 2 of (FL)^2, Lee et al., NeurIPS 2024.
    """
    grads = sacr_grads(rho, perturbation=perturbation, eta=eta)
    return Method(ServerPart(ce_grads), ClientPart(fixed_threshold(sure), grads, uniform))
