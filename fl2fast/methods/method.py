"""The seam between the engine and a method: where the papers differ, and nothing else.

Shapes: L lanes, M rows of a client, B rows of a batch, Y classes, P parameters.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor

from fl2fast.models.network import Network

Sureness = Literal["none", "some", "all"]


class PseudoLabels(NamedTuple):
    """What a method makes of the clients' rows at the start of a round."""

    y_LM: Tensor  # int64
    keep_LM: Tensor  # bool: accepted, enters the loss
    sure_LM: Tensor | None = None  # bool: accepted with high confidence; None: no such notion
    tau_L: Tensor | None = None  # a lane's mean confidence, its learning status
    tau_LY: Tensor | None = None  # per-class thresholds


class Batch(NamedTuple):
    """One step's rows of the lanes that take it, all of one kind (see data.plan)."""

    lane_L: Tensor  # int64: which learners these are
    view_LBCHW: Tensor
    y_LB: Tensor
    row_LB: Tensor | None  # bool: live rows; None where every row is live
    keep_LB: Tensor  # bool: live and accepted
    sure_LB: Tensor  # bool: live, accepted and sure
    sureness: Sureness  # of every lane: no sure row, some, or all live rows sure


# The clients' rows, as the engine shows them to a method. `predict` runs the global model on one
# weak view of every row when, and only when, it is called: probs_LMY. `truth_LM` is None unless the
# method declares that it sees the truth.
LabelFn = Callable[[Callable[[], Tensor], Tensor, Tensor | None], PseudoLabels]
GradFn = Callable[[Network, Tensor, Batch], Tensor]  # params_LP -> grad_LP, one step
WeightFn = Callable[[PseudoLabels], Tensor]  # [L] >= 0; the engine normalises over each cohort


class ClientPart(NamedTuple):
    """What a method does on clients."""

    label: LabelFn
    grads: GradFn
    weight: WeightFn
    view: Literal["weak", "strong"] = "strong"
    batches: Literal["kept", "all"] = "kept"  # the rows that local batches are drawn from
    predicts: bool = True  # `label` asks the global model, whose statistics must be current
    sees_truth: bool = False


class Method(NamedTuple):
    """A bundle of pure functions. `client` None: only the server trains."""

    server_grads: GradFn
    client: ClientPart | None
