"""Which execution is the fastest here, for a run's own step.

Shapes: L lanes, B rows, P parameters, C, H, W of an image.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.local import train_lanes
from fl2fast.methods.method import (
    PLAIN,
    Batch,
    CentralPart,
    ClientPart,
    Labelled,
    Learner,
    Mixed,
    Part,
)
from fl2fast.models.execution import KERNELS, Execution
from fl2fast.models.lowering import LOWERINGS, check_lowering
from fl2fast.models.network import Network
from fl2fast.optim import SGD
from fl2fast.tune import Verdict, fastest, seconds_of

TRIAL_SECONDS = 2.0  # of a step that is timed, one learner at a time


class Trial(NamedTuple):
    """The step that is timed: all lanes, full batches, half of the rows sure."""

    module: nn.Module
    part: Part
    learner: Learner
    like: Tensor
    model: str
    lanes: int
    batch: int
    image_shape: tuple[int, ...]

    def race(self, what: str, candidates: Mapping[str, Execution]) -> Verdict:
        num_lanes = cache(self._affordable_lanes)

        def timed(execution: Execution) -> Callable[[], object]:
            check_lowering(self.module, execution.lowering, self.image_shape)
            step = self._step(execution, num_lanes())
            if execution.compiled:
                step()  # its first call is minutes of something else
            return step

        return fastest(
            what,
            {name: partial(timed, execution) for name, execution in candidates.items()},
            self.like.device,
            executions={name: repr(execution) for name, execution in candidates.items()},
            dtype=str(self.like.dtype),
            model=self.model,
            lanes=self.lanes,
            batch=self.batch,
            image=list(self.image_shape),
        )

    def _step(self, execution: Execution, lanes: int) -> Callable[[], object]:
        cores = Cores(Network.of(self.module, execution, self.like))
        return make_step(cores, self.part, lanes, self.batch, self.image_shape, self.learner)

    def _affordable_lanes(self) -> int:
        """All, unless their step takes long; but one for every thread."""
        one = self._step(Execution("loop"), 1)
        one()
        affordable = int(TRIAL_SECONDS / seconds_of(one, self.like.device))
        return min(self.lanes, max(affordable, torch.get_num_threads()))


def choose_lowering(
    trial: Trial, execution: Execution, title: str, say: Callable[[str], object]
) -> Execution:
    """The execution with the lowering that is fastest."""
    names = [n for n in LOWERINGS if not (n == "cores" and execution.compiled)]
    verdict = trial.race("lowering", {n: execution._replace(lowering=n) for n in names})
    say(f"{title} auto: {verdict}")
    return execution._replace(lowering=verdict.choice)


def choose_extras(
    trial: Trial, execution: Execution, asked: Mapping[str, str], say: Callable[[str], object]
) -> Execution:
    """On a GPU, each thing that is left to `auto` and makes the step faster; on a CPU none.

    There a compiled step is hardly faster and costs minutes, two cotangents at once are slower,
    and the kernels are for GPUs.
    """
    if trial.like.device.type != "cuda":
        return execution
    kernels = [
        ("kernels", lambda e, kernel=kernel: e._replace(kernels=e.kernels | {kernel}))
        for kernel in KERNELS
    ]
    extras: list[tuple[str, Callable[[Execution], Execution]]] = [
        ("compile", lambda e: e._replace(compiled=True)),
        *kernels,
        ("backward", lambda e: e._replace(shared_backward=True)),
    ]
    for field, change in extras:
        changed = change(execution)
        if asked[field] == "auto" and changed.possible:
            verdict = trial.race(field, {"without": execution, "with": changed})
            if verdict.choice == "with":
                say(f"{field} auto: {verdict}")
                execution = changed
    return execution


def make_step(
    cores: Cores,
    part: Part,
    lanes: int,
    batch: int,
    image_shape: tuple[int, ...],
    learner: Learner = PLAIN,
) -> Callable[[], Tensor]:
    """A step of every lane on made-up images, every other row sure; it returns params_LP moved."""
    like = cores.network.weights_P
    params_P = _made_up((cores.network.layout.width,), like) / 20
    row_P = learner.init(cores.network, params_P, lambda num: _made_up((num,), like))
    params_LP = row_P.expand(lanes, -1)
    buffer_LP = torch.zeros_like(params_LP)
    alone = cores.network.execution.alone
    groups = [(1, lane) for lane in range(lanes)] if alone else [(lanes, 0)]
    batches = [made_up_batch(part, *group, batch, image_shape, like) for group in groups]

    def step() -> Tensor:
        streams = [Stream(1, iter([own])) for own in batches]
        return train_lanes(cores, part, SGD(), 0.1, params_LP, buffer_LP, streams)[0]

    return step


def _made_up(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Numbers that are no constant and need no generator."""
    size = torch.Size(shape)
    return (
        torch.linspace(0, 50, size.numel(), dtype=like.dtype, device=like.device).sin().view(size)
    )


def made_up_batch(
    part: Part, num: int, first: int, rows: int, image_shape: tuple[int, ...], like: Tensor
) -> Batch:
    """All that the part's own batches hold."""

    def view(rows: int) -> Tensor:
        return _made_up((1, rows, *image_shape), like).expand(num, -1, -1, -1, -1)

    def label(rows: int) -> Tensor:
        return torch.zeros((num, rows), dtype=torch.int64, device=like.device)

    mixes = isinstance(part, ClientPart) and part.mix is not None
    share_L = torch.full((num,), 0.5, dtype=like.dtype, device=like.device)
    central = part.num_labelled if isinstance(part, CentralPart) else 0
    return Batch(
        lane_L=torch.arange(first, first + num, device=like.device),
        view_LBCHW=view(rows),
        y_LB=label(rows),
        row_LB=None,
        keep_LB=torch.ones((num, rows), dtype=torch.bool, device=like.device),
        sure_LB=(torch.arange(rows, device=like.device) % 2 == 0).expand(num, rows),
        sureness="some",
        more_views=tuple(view(rows) for _ in part.views[1:]),
        mixed=Mixed(view(rows), label(rows), share_L) if mixes else None,
        labelled=Labelled(view(central), label(central)) if central else None,
        round=torch.zeros((), dtype=torch.int64, device=like.device),
    )
