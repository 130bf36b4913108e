"""Replay a recorded round of (FL)^2 through the engine and measure how far each array is off.

The replay is one chain from the recorded initial state: only batches, rows and views come from the
trace; every weight, label and statistic is the engine's own.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.arrays import MOST_CLASSES
from fl2fast.data.plan import LaneBatch, Wave, make_streams
from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.local import train_lanes
from fl2fast.engine.server import aggregate, aggregation_weights, mean_moments
from fl2fast.errors import UsageError, brief
from fl2fast.experiment import DTYPES
from fl2fast.methods import METHODS
from fl2fast.methods.method import Batch, PseudoLabels
from fl2fast.models import find_model
from fl2fast.models.layout import Layout
from fl2fast.models.network import Network, Stats
from fl2fast.models.wrn import WideResNet
from fl2fast.optim import SGD
from fl2fast.trace import Trace

EXACT = 0.0
LARGEST = 1e30  # of a setting, either way
NUMBERS = ("rho", "eta", "tau_f", "lr", "momentum", "weight_decay", "clip")
NUMBERS += ("aggregate_momentum", "w_a", "w_cs")
# float32 rounding alone flips ReLU units, so that later weights are shown, not judged.
TOLERANCES: dict[str, dict[str, float | None]] = {
    "float64": {},
    "float32": {
        "sbn0": 1e-4,
        "probs": 1e-4,
        "tau": 1e-4,
        "tau_c": 1e-4,
        "beta": 1e-4,
        "step0/grads": 5e-2,
    },
}


class Check(NamedTuple):
    stage: str
    error: float  # max|a-b| / max|b|; the share of unequal entries for labels and masks
    tolerance: float | None  # None: shown, but only has to be finite

    @property
    def passed(self) -> bool:
        return bool(np.isfinite(self.error)) and (
            self.tolerance is None or self.error <= self.tolerance
        )


def verify(trace: Trace, lowering: str, dtype: str) -> list[Check]:
    """Replay the round; the largest error of every stage, in the order in which they happen."""
    worst: dict[str, float] = {}
    for stage, ours, recorded in _Replay(trace, lowering, DTYPES[dtype]).run():
        worst[stage] = max(worst.get(stage, 0.0), _error(ours, recorded))
    return [Check(stage, error, _tolerance(stage, dtype)) for stage, error in worst.items()]


def _tolerance(stage: str, dtype: str) -> float | None:
    if stage in ("y", "keep", "sure", "steps"):
        return EXACT
    return 1e-9 if dtype == "float64" else TOLERANCES["float32"].get(stage)


def _error(ours: Tensor, recorded: np.ndarray) -> float:
    a = ours.detach().cpu().numpy()
    if a.shape != recorded.shape:
        return float("inf")
    if recorded.dtype.kind in "bi":
        return float(np.mean(a != recorded)) if a.size else 0.0
    gap = np.abs(a.astype(np.float64) - recorded)
    if not np.isfinite(gap).all():
        return float("inf")
    return float(gap.max(initial=0.0)) / max(float(np.abs(recorded).max(initial=0.0)), 1e-300)


Triple = tuple[str, Tensor, np.ndarray]


class _Replay:
    def __init__(self, trace: Trace, lowering: str, dtype: torch.dtype) -> None:
        get = trace.setting
        if get("method") != "flfl" or get("model") != "wrn":
            raise UsageError(
                f"trace {str(trace.path)!r} is of {get('method')!r} with {get('model')!r}; only "
                "'flfl' with 'wrn' can be replayed"
            )
        for name in ("depth", "widen", "classes", "clients", "batch"):
            if type(get(name)) is not int or not 1 <= get(name) <= MOST_CLASSES:
                raise UsageError(
                    f"trace {str(trace.path)!r} has {name} {brief(get(name))} in its config, but "
                    f"it must be an integer from 1 to {MOST_CLASSES}: record it again"
                )
        for name in NUMBERS:
            if type(get(name)) not in (int, float) or not -LARGEST <= get(name) <= LARGEST:
                raise UsageError(
                    f"trace {str(trace.path)!r} has {name} {brief(get(name))} in its config, but "
                    "it must be a finite number: record it again"
                )
        if not isinstance(get("nesterov"), bool):
            raise UsageError(
                f"trace {str(trace.path)!r} has nesterov {brief(get('nesterov'))} in its config, "
                "but it must be true or false: record it again"
            )
        find_model(f"wrn-{get('depth')}-{get('widen')}")  # refuses a depth that is not 6n+4
        self.trace, self.dtype, self.num_clients = trace, dtype, get("clients")
        with torch.device("meta"):  # a network must not be made that the trace does not hold
            outline = WideResNet(get("depth"), get("widen"), get("classes"))
        trace.row("global0", Layout.of(dict(outline.named_parameters())))
        module = WideResNet(get("depth"), get("widen"), get("classes"))
        self.net = Network.of(module, lowering, torch.zeros((), dtype=dtype))
        self.image = trace.images("test/x").shape[1:]
        self.cores = Cores(self.net)
        method = METHODS["flfl"](
            **{name: float(get(name)) for name in ("rho", "eta", "w_a", "w_cs")},
            sure=float(get("tau_f")),
        )
        assert method.client is not None
        assert method.server is not None
        self.client, self.server = method.client, method.server
        self.sgd = SGD(
            momentum=float(get("momentum")),
            nesterov=get("nesterov"),
            weight_decay=float(get("weight_decay")),
            clip=float(get("clip")),
        )
        self.lr = float(get("lr"))
        self.batch_size, self.decay = get("batch"), float(get("aggregate_momentum"))

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.dtype)

    def views(self, name: str, num: int | None = None) -> Tensor:
        """Recorded images, of the trace's one size, as many as they must be."""
        array = self.trace.images(name)
        wanted = (len(array) if num is None else num, *self.image)
        return self.tensor(self.trace.shaped(name, wanted))

    def row(self, prefix: str) -> Tensor:
        return self.tensor(self.trace.row(prefix, self.net.layout))[None]

    def run(self) -> Iterator[Triple]:
        global0_SP = self.row("global0")
        stats0 = self._statistics(global0_SP[0])
        yield from self._compare_statistics("sbn0", stats0)

        labels, probs = self._label(global0_SP[0], stats0)
        yield from self._compare_labels(labels, probs)

        yield from self._compare_steps()
        yield from self._first_grads(global0_SP, labels)
        clients_LP, momentum_LP = self._train_clients(global0_SP, labels)
        for c in range(self.num_clients):
            yield from self._compare_tree("params1", clients_LP[c], f"client{c}/params1")
            yield from self._compare_tree("momentum1", momentum_LP[c], f"client{c}/momentum1")

        beta_SK = aggregation_weights(self.client.weight(labels)[None])
        yield "beta", beta_SK[0], self.trace["beta"]
        params_SP, buffer_SP = aggregate(
            global0_SP, self.row("aggregate_momentum0"), clients_LP[None], beta_SK, self.decay
        )
        yield from self._compare_tree("aggregated", params_SP[0])
        yield from self._compare_tree("aggregate_momentum1", buffer_SP[0])

        global1_SP, server_SP = train_lanes(
            self.cores,
            self.server,
            self.sgd,
            self.lr,
            params_SP,
            self.row("server_momentum0"),
            [Stream(0, self._server_batches())],
        )
        yield from self._compare_tree("global1", global1_SP[0])
        yield from self._compare_tree("server_momentum1", server_SP[0])
        stats1 = self._statistics(global1_SP[0])
        yield from self._compare_statistics("sbn1", stats1)
        logits = self.net.infer(global1_SP[0], stats1, self.views("test/x"))
        yield "test/logits", logits, self.trace["test/logits"]

    def _statistics(self, params_P: Tensor) -> Stats:
        num = self.trace.count("sbn_batch{}")
        batches = (self.views(f"sbn_batch{i}") for i in range(max(num, 1)))
        with torch.no_grad():
            return mean_moments([(self.net.moments(params_P, x), 1) for x in batches])

    def _label(self, params_P: Tensor, stats: Stats) -> tuple[PseudoLabels, list[Tensor]]:
        weak = [self.views(f"client{c}/weak") for c in range(self.num_clients)]
        probs = [self.net.infer(params_P, stats, x).softmax(-1) for x in weak]
        size_L = torch.tensor([len(p) for p in probs])
        live_LM = torch.arange(int(size_L.max())) < size_L[:, None]
        padded = torch.nn.utils.rnn.pad_sequence(probs, batch_first=True)
        return self.client.label(lambda: padded, live_LM, None), probs

    def _steps(self) -> list[list[LaneBatch]]:
        """Every client's recorded batches; the step number stands in the epoch's place."""
        return [
            [
                LaneBatch(t, self._rows(c, t))
                for t in range(self.trace.count(f"client{c}/step{{}}/rows"))
            ]
            for c in range(self.num_clients)
        ]

    def _rows(self, c: int, t: int) -> np.ndarray:
        name, num = f"client{c}/step{t}/rows", len(self.trace.images(f"client{c}/weak"))
        rows = self.trace.places(name, num)
        if len(rows) > self.batch_size:
            raise UsageError(
                f"trace {str(self.trace.path)!r} has {len(rows)} rows in {name!r}, but its batches "
                f"have {self.batch_size}: record it again"
            )
        return rows

    def _compare_steps(self) -> Iterator[Triple]:
        for c, own in enumerate(self._steps()):
            yield "steps", torch.tensor(len(own)), np.asarray(self.trace[f"client{c}/steps"])

    def _batch(self, wave: Wave, labels: PseudoLabels) -> Batch:
        lane, position = torch.from_numpy(wave.lane_G), torch.from_numpy(wave.position_GB)
        views = torch.zeros(*position.shape, *self.image, dtype=self.dtype)
        for g, (c, t) in enumerate(zip(wave.lane_G, wave.epoch_G, strict=True)):
            num = len(self._rows(c, t))
            views[g, :num] = self.views(f"client{c}/step{t}/strong", num)
        row = None if wave.row_GB is None else torch.from_numpy(wave.row_GB)
        keep = labels.keep_LM[lane[:, None], position]
        keep = keep if row is None else keep & row
        assert labels.sure_LM is not None
        sure = keep & labels.sure_LM[lane[:, None], position]
        y = labels.y_LM[lane[:, None], position]
        return Batch(lane, views, y, row, keep, sure, wave.sureness)

    def _streams(self, steps: list[list[LaneBatch]], labels: PseudoLabels) -> list[list[Wave]]:
        assert labels.sure_LM is not None
        sure_LM = labels.sure_LM.numpy()
        return make_streams(
            steps, sure_LM, batch_size=self.batch_size, alone=self.net.execution.alone
        )

    def _first_grads(self, params_SP: Tensor, labels: PseudoLabels) -> Iterator[Triple]:
        first = [own[:1] for own in self._steps()]
        for wave in chain.from_iterable(self._streams(first, labels)):
            batch = self._batch(wave, labels)
            grad_LP = self.client.grads(self.net, params_SP.repeat(len(wave.lane_G), 1), batch)
            for c, grad_P in zip(wave.lane_G, grad_LP, strict=True):
                yield from self._compare_tree("step0/grads", grad_P, f"client{c}/step0/grads")

    def _train_clients(self, params_SP: Tensor, labels: PseudoLabels) -> tuple[Tensor, Tensor]:
        buffers = [self.row(f"client{c}/momentum0") for c in range(self.num_clients)]
        return train_lanes(
            self.cores,
            self.client,
            self.sgd,
            self.lr,
            params_SP.repeat(self.num_clients, 1),
            torch.cat(buffers),
            [
                Stream(len(waves), (self._batch(wave, labels) for wave in waves))
                for waves in self._streams(self._steps(), labels)
            ],
        )

    def _server_batches(self) -> Iterator[Batch]:
        for t in range(self.trace.count("server/step{}/x")):
            y_B = self.trace.places(f"server/step{t}/y", self.trace.setting("classes"))
            y = torch.from_numpy(y_B)[None]
            x = self.views(f"server/step{t}/x", len(y_B))[None]
            all_rows = torch.ones_like(y, dtype=torch.bool)
            none = torch.zeros_like(all_rows)
            yield Batch(torch.tensor([0]), x, y, None, all_rows, none, "none")

    def _compare_tree(self, stage: str, ours_P: Tensor, prefix: str = "") -> Iterator[Triple]:
        recorded_P = torch.from_numpy(self.trace.row(prefix or stage, self.net.layout))
        recorded = self.net.layout.split(recorded_P)
        for name, ours in self.net.layout.split(ours_P).items():
            yield stage, ours, recorded[name].numpy()

    def _compare_statistics(self, stage: str, stats: Stats) -> Iterator[Triple]:
        for name in self.net.norms.names:
            for kind, flat in (("mean", stats.mean_Q), ("var", stats.var_Q)):
                yield stage, self.net.norms.split(flat)[name], self.trace[f"{stage}/{name}.{kind}"]

    def _compare_labels(self, labels: PseudoLabels, probs: list[Tensor]) -> Iterator[Triple]:
        assert labels.tau_L is not None
        assert labels.tau_LY is not None
        assert labels.sure_LM is not None
        for c, p in enumerate(probs):
            own = {
                "probs": p,
                "tau": labels.tau_L[c],
                "tau_c": labels.tau_LY[c],
                "y": labels.y_LM[c, : len(p)],
                "keep": labels.keep_LM[c, : len(p)],
            }
            for name, ours in own.items():
                yield name, ours, self.trace[f"client{c}/{name}"]
            # only accepted rows are trained on, so only there does being sure mean anything
            keep, sure = labels.keep_LM[c, : len(p)], labels.sure_LM[c, : len(p)]
            recorded = self.trace.shaped(f"client{c}/sure", tuple(keep.shape)).astype(bool)
            yield "sure", sure, recorded & keep.numpy()
