"""The seam between the engine and a method: where the papers differ, and nothing else.

Shapes: S seeds, N clients, L lanes, M rows of a client, B rows of a batch, R labelled rows of a
batch, Y classes, P columns of a learner's row, Q columns that a client keeps.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from torch import Tensor

from fl2fast.models.network import Network

Sureness = Literal["none", "some", "all"]
View = Literal["weak", "strong", "clean"]


class PseudoLabels(NamedTuple):
    """What a method makes of the clients' rows at the start of a round."""

    y_LM: Tensor  # int64
    keep_LM: Tensor  # bool: accepted, enters the loss
    sure_LM: Tensor | None = None  # bool: accepted with high confidence; None: no such notion
    tau_L: Tensor | None = None  # a lane's mean confidence, its learning status
    tau_LY: Tensor | None = None  # per-class thresholds


class Mixed(NamedTuple):
    """A partner for every row of a batch, and how much of itself a row keeps."""

    view_LBCHW: Tensor  # a weak view
    y_LB: Tensor
    share_L: Tensor  # of the row itself, one number a batch


class Labelled(NamedTuple):
    """Labelled rows that go along with a batch of unlabelled ones; all are live."""

    view_LRCHW: Tensor
    y_LR: Tensor


class Batch(NamedTuple):
    """One step's rows of the lanes that take it, all of one kind (see data.plan)."""

    lane_L: Tensor  # int64: which learners these are
    view_LBCHW: Tensor  # the first of the views that the part asks for
    y_LB: Tensor
    row_LB: Tensor | None  # bool: live rows; None where every row is live
    keep_LB: Tensor  # bool: live and accepted
    sure_LB: Tensor  # bool: live, accepted and sure
    sureness: Sureness  # of every lane: no sure row, some, or all live rows sure
    more_views: tuple[Tensor, ...] = ()  # the others, in their order
    mixed: Mixed | None = None
    labelled: Labelled | None = None
    round: Tensor | None = None  # a number, 0 before the first round
    lr: Tensor | None = None  # a number; None: the round's learning rate


# The clients' rows, as the engine shows them to a method. `predict` runs the global model on one
# weak view of every row when, and only when, it is called: probs_LMY. `truth_LM` is None unless the
# method declares that it sees the truth.
LabelFn = Callable[[Callable[[], Tensor], Tensor, Tensor | None], PseudoLabels]
GradFn = Callable[[Network, Tensor, Batch], Tensor]  # row_LP -> grad_LP, one step
SettleFn = Callable[[Network, Tensor], Tensor]  # row_LP after a step -> row_LP, such as an average
ColumnsFn = Callable[[Network, Tensor], Tensor]  # row_P -> bool [P]: some of a row's columns
WeightFn = Callable[[PseudoLabels], Tensor]  # [L] >= 0; the engine normalises over each cohort


def _same(_: Network, row_LP: Tensor) -> Tensor:
    return row_LP


class Learner(NamedTuple):
    """How a learner's row relates to its network's parameters; by default it is just them.

    A row may be wider: two summands, a moving average, a counter. `normal(n)` draws n standard
    normal numbers that belong to the seed.
    """

    init: Callable[[Network, Tensor, Callable[[int], Tensor]], Tensor] = (
        lambda net, params_P, normal: params_P
    )
    model: Callable[[Network, Tensor], Tensor] = _same  # the network that labels and is tested


PLAIN = Learner()


class Crowd(NamedTuple):
    """Every client's keepings, and which of them the lanes are."""

    kept_SNQ: Tensor  # zero where a client is new
    seen_SN: Tensor  # bool
    seed_L: Tensor  # int64: number of the seed
    client_L: Tensor  # int64


class Visit(NamedTuple):
    """The clients of a round as they meet the global model, again or for the first time."""

    global_LP: Tensor
    kept_LQ: Tensor  # zero where a client is new
    seen_L: Tensor  # bool
    round: int
    crowd: Callable[[], Crowd]


class Memory(NamedTuple):
    """What a client keeps between its rounds, and the row it starts a round with.

    `keep` also gets one fixed noise image, the same for all, by whose answer models can be
    compared. `start` may append columns that live for the round only; no step trains them.
    """

    keep: Callable[[Network, Tensor, Tensor], Tensor]  # row_LP, probe_CHW -> kept_LQ
    start: Callable[[Network, Visit], Tensor]  # -> row_LP


class Mix(NamedTuple):
    """Partners of a batch's rows, drawn uniformly with replacement from a client's own rows."""

    beta: float  # the share is Beta(beta, beta)
    # of all rows, anew at every use; or of the kept ones, as many as they are, once a round
    partners: Literal["all", "kept"]


class ServerPart(NamedTuple):
    """What a method does with the server's labels."""

    grads: GradFn
    views: tuple[View, ...] = ("weak",)
    trains: ColumnsFn | None = None  # the columns that SGD moves; None: all
    settle: SettleFn | None = None
    mix: None = None


class ClientPart(NamedTuple):
    """What a method does on clients.

    Columns that SGD does not move are state: a step adds to them what `grads` puts there.
    """

    label: LabelFn
    grads: GradFn
    weight: WeightFn
    views: tuple[View, ...] = ("strong",)
    batches: Literal["kept", "all"] = "kept"  # the rows that local batches are drawn from
    predicts: bool = True  # `label` asks the global model, whose statistics must be current
    sees_truth: bool = False
    mix: Mix | None = None
    trains: ColumnsFn | None = None  # the columns that SGD moves; None: all
    settle: SettleFn | None = None
    shares: ColumnsFn | None = None  # the columns that are averaged; None: all
    memory: Memory | None = None
    report: Callable[[Network, Tensor, Tensor], Tensor] | None = None  # start_LP, row_LP -> sent
    waits: bool = False  # a seed none of whose clients has a weight skips its aggregation


class CentralPart(NamedTuple):
    """Training on labelled and unlabelled rows together, in one place, instead of a federation."""

    grads: GradFn
    num_labelled: int = 64  # rows of a batch
    num_unlabelled: int = 448
    views: tuple[View, ...] = ("strong", "weak")  # of the unlabelled rows
    trains: ColumnsFn | None = None
    settle: SettleFn | None = None
    mix: None = None


Part = ServerPart | ClientPart | CentralPart


class Method(NamedTuple):
    """A bundle of pure functions. `client` None: only the server trains."""

    server: ServerPart | None
    client: ClientPart | None
    central: CentralPart | None = None
    learner: Learner = PLAIN

    @property
    def main(self) -> Part:
        """The part that does most of the work."""
        part = self.client or self.central or self.server
        assert part is not None, "a method trains something"
        return part


class Limits(NamedTuple):
    """The values that a number may have; None: no limit."""

    low: float
    high: float | None = None

    def __str__(self) -> str:
        most = f"from {self.low:g} to {self.high}"
        return f"at least {self.low:g}" if self.high is None else most


# Of a method's options: `beta: Positive = 0.75`. A number without limits must be finite.
Count = Annotated[int, Limits(1, 65_536)]
Weight = Annotated[float, Limits(0)]
Positive = Annotated[float, Limits(1e-3)]
Share = Annotated[float, Limits(0, 1)]

Factory = TypeVar("Factory", bound=Callable[..., Method])


def protocol(**defaults: Any) -> Callable[[Factory], Factory]:
    """A method's own settings, which win over a preset's and yield to the user's."""

    def attach(make: Factory) -> Factory:
        make.protocol = defaults  # type: ignore[attr-defined]
        return make

    return attach
