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
from fl2fast.methods.method import Batch, GradFn
from fl2fast.models.execution import KERNELS, Execution
from fl2fast.models.lowering import LOWERINGS, check_lowering
from fl2fast.models.network import Network
from fl2fast.optim import SGD
from fl2fast.tune import Verdict, fastest, seconds_of

TRIAL_SECONDS = 2.0  # of a step that is timed, one learner at a time


class Trial(NamedTuple):
    """The step that is timed: all lanes, full batches, half of the rows sure."""

    module: nn.Module
    grads: GradFn
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
        return make_step(cores, self.grads, lanes, self.batch, self.image_shape)

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
    cores: Cores, grads: GradFn, lanes: int, batch: int, image_shape: tuple[int, ...]
) -> Callable[[], Tensor]:
    """A step of every lane on made-up images, every other row sure; it returns params_LP moved."""
    like = cores.network.weights_P
    numel = batch * torch.Size(image_shape).numel()
    view_BCHW = torch.linspace(0, 50, numel, dtype=like.dtype, device=like.device).sin()
    params_P = torch.linspace(-50, 50, cores.network.layout.width, dtype=like.dtype).sin() / 20
    params_LP = params_P.to(like.device).expand(lanes, -1)
    buffer_LP = torch.zeros_like(params_LP)

    def batch_of(num: int, first: int) -> Batch:
        shape = (num, batch)
        return Batch(
            lane_L=torch.arange(first, first + num, device=like.device),
            view_LBCHW=view_BCHW.view(1, batch, *image_shape).expand(num, -1, -1, -1, -1),
            y_LB=torch.zeros(shape, dtype=torch.int64, device=like.device),
            row_LB=None,
            keep_LB=torch.ones(shape, dtype=torch.bool, device=like.device),
            sure_LB=(torch.arange(batch, device=like.device) % 2 == 0).expand(shape),
            sureness="some",
        )

    alone = cores.network.execution.alone
    batches = [batch_of(1, lane) for lane in range(lanes)] if alone else [batch_of(lanes, 0)]

    def step() -> Tensor:
        streams = [Stream(1, iter([own])) for own in batches]
        return train_lanes(cores, grads, SGD(), 0.1, params_LP, buffer_LP, streams)[0]

    return step
