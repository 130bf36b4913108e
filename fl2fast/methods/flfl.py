"""(FL)^2: Overcoming Few Labels in Federated Semi-Supervised Learning (Lee et al., NeurIPS 2024).

The options are the points where the paper's text and its released code disagree; the defaults
follow the code:

  perturbation      asam, as the text says and the code does; sam: the norm of the equation
  strict            an adaptive threshold must be exceeded (the equation) instead of reached (the
                    code); `sure` is always reached
  batches           kept: local batches hold accepted rows only; all: batches are drawn from every
                    row and the losses are divided by the batch size (the equation); a confident
                    row that the adaptive threshold rejects takes no part in either loss
  consistency_rows  sure: the KL term speaks of confident rows (text and code); kept: of all
                    accepted rows (the equation has no mask)
  divergence        forward: KL(Q || Q*) (code); reverse: KL(Q* || Q)
  aggregation       lsaa; uniform: 1/K each
"""

from fl2fast.methods.method import ClientPart, Method, ServerPart, Weight
from fl2fast.methods.parts import (
    adaptive_threshold,
    ce_grads,
    learning_status,
    sacr_grads,
    uniform,
)


def flfl(
    *,
    rho: float = 0.1,
    sure: float = 0.95,
    perturbation: str = "asam",
    eta: Weight = 0.01,
    strict: bool = False,
    batches: str = "kept",
    consistency_rows: str = "sure",
    divergence: str = "forward",
    aggregation: str = "lsaa",
    w_a: Weight = 1.0,
    w_cs: Weight = 1.0,
) -> Method:
    """(FL)^2: adaptive thresholds (CAT), sharpness-aware consistency (SACR), status-aware weights.

    CAT:  tau = mean_i max_c p_i(c), tau_c = tau pbar_c / max_c' pbar_c'; accept max_c p >= tau_c
    SACR: w_a grad L_a(W) + w_cs grad L_cs(W*), W* = W + rho T^2 g / ||T g||, g = grad L_p(W)
    LSAA: beta_k = (1 - tau_k) / sum_k' (1 - tau_k')

    Reference: Lee, Le, Shin and Lee, (FL)^2: Overcoming Few Labels in Federated Semi-Supervised
    Learning, NeurIPS 2024.
    """
    return Method(
        server=ServerPart(ce_grads),
        client=ClientPart(
            label=adaptive_threshold(sure, strict=strict),
            grads=sacr_grads(
                rho,
                perturbation=perturbation,
                eta=eta,
                divergence=divergence,
                consistency_rows=consistency_rows,
                mean_over="kept" if batches == "kept" else "live",
                w_a=w_a,
                w_cs=w_cs,
            ),
            weight=learning_status if aggregation == "lsaa" else uniform,
            batches=batches,  # type: ignore[arg-type]
        ),
    )
