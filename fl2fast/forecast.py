"""What a run will cost, before it runs: operations, memory and time.

Operations and memory are counted on fake tensors. Seconds here come from timing the run's own steps
for a moment. Seconds on other devices are a roofline and nothing more: every op takes as long as its
arithmetic at EFFICIENCY times the published peak, or its traffic at EFFICIENCY times the published
bandwidth, or LAUNCH, whichever is longest. They have never been measured.

Shapes: L lanes, B rows of a batch, C, H, W of an image, P parameters.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fl2fast.data import streetdigits
from fl2fast.data.arrays import read_folder
from fl2fast.data.backends import choose, make_augment
from fl2fast.data.load import fit_images
from fl2fast.data.published import PUBLISHED
from fl2fast.data.views import draw_views
from fl2fast.engine.auto import one_step
from fl2fast.engine.batches import AUGMENT_ROWS, block_rows
from fl2fast.engine.cores import Cores
from fl2fast.engine.label import infer_rows
from fl2fast.errors import UsageError
from fl2fast.execute import choose_executions
from fl2fast.experiment import Experiment
from fl2fast.machine import device_name
from fl2fast.methods.method import Sureness
from fl2fast.models import check_module, in_channels
from fl2fast.models.execution import Execution
from fl2fast.models.network import Network, Stats
from fl2fast.profile import Meter, Op, meter_step, plain_network
from fl2fast.simulate import make_module
from fl2fast.tune import race

EFFICIENCY = 0.5  # of both roofs; what large convolutions reach, small ones stay below it
LAUNCH = 5e-6  # seconds: an op cannot be launched from Python much faster
TRIAL_FLOPS = 2e11  # a step is timed with as many lanes as this allows: seconds on a CPU
INDEX = 8  # bytes of a label


class Gpu(NamedTuple):
    """Published dense peaks, TFLOP/s by number format, 0 where there is none; GB/s; GiB."""

    float64: float
    fp32: float
    tf32: float
    bf16: float
    bandwidth: float
    memory: int


GPUS = {
    "T4": Gpu(0.25, 8.1, 0, 0, 320, 16),
    "V100": Gpu(7.8, 15.7, 0, 0, 900, 32),
    "A100": Gpu(9.7, 19.5, 156, 312, 2039, 80),
    "RTX3090": Gpu(0.56, 35.6, 35.6, 71, 936, 24),
    "L4": Gpu(0.47, 30.3, 60, 121, 300, 24),
    "RTX4090": Gpu(1.29, 82.6, 82.6, 165, 1008, 24),
    "L40S": Gpu(1.43, 91.6, 183, 362, 864, 48),
    "H100": Gpu(33.5, 66.9, 495, 989, 3350, 80),
    "B200": Gpu(37, 75, 1125, 2250, 7700, 180),
}


class Sizes(NamedTuple):
    train: int
    test: int
    image_shape: tuple[int, int, int]
    classes: int


def sizes_of(experiment: Experiment) -> Sizes:
    """The dataset's sizes, without downloading or drawing it; images as they are stored."""
    e = experiment
    if e.dataset == "streetdigits":
        train, test = e.train_size or streetdigits.TRAIN_SIZE, e.test_size or streetdigits.TEST_SIZE
        return Sizes(train, test, (3, 32, 32), 10)
    if e.dataset in PUBLISHED:
        whole = Sizes(*PUBLISHED[e.dataset][:4])
    else:
        arrays = read_folder(Path(e.dataset))
        images, tests = arrays.train_images, arrays.test_images
        whole = Sizes(len(images), len(tests), images.shape[1:], arrays.num_classes)  # type: ignore[arg-type]
    sizes = whole._replace(train=e.train_size or whole.train, test=e.test_size or whole.test)
    if sizes.train > whole.train or sizes.test > whole.test:
        raise UsageError(
            f"train_size and test_size are {sizes.train} and {sizes.test}, but {e.dataset} has "
            f"{whole.train} and {whole.test} images: choose fewer, or 0 for all"
        )
    return sizes


class Work(NamedTuple):
    """A phase: so many rows each time, so many times in a run; what one call of it costs."""

    rows: int
    times: int
    rows_a_call: int
    meter: Meter
    view: str | None  # which views of its rows are made
    call: Callable[[], object]  # the call itself, on made-up rows

    @property
    def flops(self) -> int:
        return self.meter.flops * self.rows // self.rows_a_call

    def seconds(self, a_call: float) -> float:
        return a_call * self.rows / self.rows_a_call


class Setting(NamedTuple):
    """An experiment with its networks, before any data is there."""

    experiment: Experiment
    sizes: Sizes
    clients: Cores
    server: Cores
    assume: Sureness

    @property
    def lanes(self) -> int:
        return self.experiment.seeds * self.experiment.cohort

    @property
    def client_rows(self) -> int:
        """Of an average client."""
        return (self.sizes.train - self.experiment.labels) // self.experiment.clients


def make_setting(
    experiment: Experiment,
    assume: Sureness = "some",
    *,
    here: bool = True,
    say: Callable[[str], object] = lambda sentence: None,
) -> Setting:
    """Resolve what is `auto`: by time, if seconds here are asked for, else as on a GPU."""
    e, sizes = experiment, sizes_of(experiment)
    if sizes.train - e.labels < e.clients:
        raise UsageError(
            f"{e.clients} clients cannot share {sizes.train - e.labels} unlabelled images: ask for "
            "fewer clients or labels"
        )
    module = make_module(e, sizes.classes, e.seed)
    channels = in_channels(module) or sizes.image_shape[0]
    like_image = fit_images(np.zeros((1, *sizes.image_shape), np.uint8), channels)
    sizes = sizes._replace(image_shape=like_image.shape[1:])
    check_module(module, e.model, sizes.image_shape, sizes.classes)
    like = torch.zeros((), dtype=e.torch_dtype, device=e.device)
    module = module.to(like)
    if here:
        lanes = _trial_lanes(e, module, sizes, like)
        resolved, clients, server = choose_executions(
            replace(e, chunk=min(e.chunk or lanes, lanes)), module, like, sizes.image_shape, say
        )
        e = replace(resolved, chunk=e.chunk)
    else:
        lowering = "grouped" if e.lowering == "auto" else e.lowering
        e = replace(e, lowering=lowering)
        clients = server = Execution(lowering, precision=e.precision)
    networks = (Network.of(module, execution, like) for execution in (clients, server))
    return Setting(e, sizes, *(Cores(network, e.chunk) for network in networks), assume)


def _trial_lanes(
    e: Experiment, module: torch.nn.Module, sizes: Sizes, like: torch.Tensor
) -> int:
    """As many lanes as a trial may take: a wide network must not cost minutes before it runs."""
    method, plain = e.make_method(), plain_network(Network.of(module, "loop", like))
    grads = method.client.grads if method.client else method.server_grads
    lane = meter_step(plain, grads, 1, e.batch_size, sizes.image_shape).flops
    fewest = torch.get_num_threads() if like.device.type == "cpu" else 1
    return min(max(int(TRIAL_FLOPS // lane), fewest), e.seeds * e.cohort)
