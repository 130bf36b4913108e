"""SemiFL: Semi-Supervised Federated Learning with Alternate Training (Diao et al., NeurIPS 2022).

A client that receives the global model labels its rows once, by argmax on a weak view, and accepts
those with confidence >= `sure`. A batch of accepted rows (x, y), each with a partner (x', y') from
the client's own rows, and one lambda ~ Beta(beta, beta) give

  L = CE(f(strong x), y) + lambda CE(f(m), y) + (1 - lambda) CE(f(m), y')
  m = lambda weak(x) + (1 - lambda) weak(x')

all means over the batch, the strong and the mixed rows normalised apart (2F + 2B). Then the server
averages and fine-tunes: alternate training. No pretraining; batches of ten.

  partners   all: drawn at every use from all of a client's rows, whatever their confidence (the
             SemiFL code); kept: from the accepted ones, once a round (the (FL)^2 pipeline)
  idle       excluded: a client without an accepted row does not vote, and if none has any there is
             no aggregation at all (the SemiFL code); kept: it votes for the model it was given
             (the (FL)^2 pipeline)
  mix_loss   off for text, as in the (FL)^2 paper's AG News rows

Views, constants and static batch norm are those of the (FL)^2 pipeline, which the paper's rows
share; the settings constants="semifl", strong_views="semifl", sbn_order="shuffled" and
sbn_unlabelled_batch=250 are SemiFL's own.
"""

from typing import Literal

from torch import Tensor

from fl2fast.losses import cross_entropy_cotangent
from fl2fast.methods.method import (
    Batch,
    ClientPart,
    Method,
    Mix,
    Positive,
    ServerPart,
    protocol,
)
from fl2fast.methods.parts import ce_grads, fixed_threshold, uniform, weighted_where_kept
from fl2fast.models.network import Network


def fix_and_mix_grads(net: Network, params_LP: Tensor, batch: Batch) -> Tensor:
    mixed = batch.mixed
    assert mixed is not None, "the part must ask for partners"
    (weak_LBCHW,) = batch.more_views
    keep_LB, num_L = batch.keep_LB, batch.keep_LB.sum(-1)
    share_L = mixed.share_L[:, None, None, None, None]
    mix_LBCHW = share_L * weak_LBCHW + (1 - share_L) * mixed.view_LBCHW

    fix_LBY, pull_fix = net.pullback(params_LP, batch.view_LBCHW, batch.row_LB)
    mix_LBY, pull_mix = net.pullback(params_LP, mix_LBCHW, batch.row_LB)
    share_L11 = mixed.share_L[:, None, None]
    towards_own, towards_partner = (
        cross_entropy_cotangent(mix_LBY, y_LB, keep_LB, num_L) for y_LB in (batch.y_LB, mixed.y_LB)
    )
    fix = cross_entropy_cotangent(fix_LBY, batch.y_LB, keep_LB, num_L)
    return pull_fix(fix) + pull_mix(share_L11 * towards_own + (1 - share_L11) * towards_partner)


@protocol(batch_size=10, pretrain=0)
def semifl(
    *,
    sure: float = 0.95,
    beta: Positive = 0.75,
    mix_loss: bool = True,
    partners: Literal["all", "kept"] = "all",
    idle: Literal["excluded", "kept"] = "excluded",
) -> Method:
    """SemiFL: global pseudo-labels, a fixed threshold, and a mix loss beside the fix loss.

    Reference: Diao, Ding, Tarokh, SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients
    with Alternate Training, NeurIPS 2022.
    """
    client = ClientPart(
        fixed_threshold(sure),
        fix_and_mix_grads if mix_loss else ce_grads,
        weighted_where_kept if idle == "excluded" else uniform,
        views=("strong", "weak") if mix_loss else ("strong",),
        mix=Mix(beta, partners) if mix_loss else None,
        waits=idle == "excluded",
    )
    return Method(ServerPart(ce_grads), client)
