"""Which lowering is the fastest here, for a run's own step.

Shapes: L lanes, B rows, P parameters, C, H, W of an image.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.local import train_lanes
from fl2fast.methods.method import Batch, GradFn
from fl2fast.models.lowering import LOWERINGS, check_lowering
from fl2fast.models.network import Network
from fl2fast.optim import SGD
from fl2fast.tune import Verdict, fastest


def choose_lowering(
    module: nn.Module,
    grads: GradFn,
    like: Tensor,
    *,
    name: str,
    lanes: int,
    batch: int,
    image_shape: tuple[int, ...],
) -> Verdict:
    """Time one step of all lanes, half of whose rows are sure, under every lowering."""

    def timed(lowering: str) -> Callable[[], object]:
        check_lowering(module, lowering, image_shape)
        cores = Cores(Network.of(module, lowering, like))
        return lambda: one_step(cores, grads, lanes, batch, image_shape)

    candidates = {lowering: partial(timed, lowering) for lowering in LOWERINGS}
    shapes = {"model": name, "lanes": lanes, "batch": batch, "image": list(image_shape)}
    return fastest("lowering", candidates, like.device, dtype=str(like.dtype), **shapes)


def one_step(
    cores: Cores, grads: GradFn, lanes: int, batch: int, image_shape: tuple[int, ...]
) -> Tensor:
    """A step of every lane on made-up images, every other row sure: the moved params_LP."""
    like = cores.network.weights_P
    numel = batch * torch.Size(image_shape).numel()
    view_BCHW = torch.linspace(0, 50, numel, dtype=like.dtype, device=like.device).sin()
    params_P = torch.linspace(-50, 50, cores.network.layout.width, dtype=like.dtype).sin() / 20
    params_LP = params_P.to(like.device).expand(lanes, -1)

    def batch_of(num: int, first: int) -> Batch:
        shape = (num, batch)
        every = torch.ones(shape, dtype=torch.bool, device=like.device)
        return Batch(
            lane_L=torch.arange(first, first + num, device=like.device),
            view_LBCHW=view_BCHW.view(1, batch, *image_shape).expand(num, -1, -1, -1, -1),
            y_LB=torch.zeros(shape, dtype=torch.int64, device=like.device),
            row_LB=None,
            keep_LB=every,
            sure_LB=(torch.arange(batch, device=like.device) % 2 == 0).expand(shape),
            sureness="some",
        )

    if cores.network.alone:
        streams = [Stream(1, iter([batch_of(1, lane)])) for lane in range(lanes)]
    else:
        streams = [Stream(1, iter([batch_of(lanes, 0)]))]
    return train_lanes(cores, grads, SGD(), 0.1, params_LP, torch.zeros_like(params_LP), streams)[0]
