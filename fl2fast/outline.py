"""An experiment before its data is there: the sizes of its dataset, and its networks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fl2fast.data import streetdigits
from fl2fast.data.arrays import read_folder
from fl2fast.data.load import fit_images
from fl2fast.data.published import PUBLISHED
from fl2fast.data.settings import TEXTS
from fl2fast.engine.cores import Cores
from fl2fast.errors import UsageError
from fl2fast.execute import batch_rows, choose_executions
from fl2fast.experiment import Experiment
from fl2fast.models import check_module, in_channels
from fl2fast.models.execution import Execution
from fl2fast.models.network import Network
from fl2fast.profile import meter_step, plain_network
from fl2fast.simulate import make_module

TRIAL_FLOPS = 2e11  # a step is timed with as many lanes as this allows: seconds on a CPU


class Sizes(NamedTuple):
    train: int
    test: int
    image_shape: tuple[int, int, int]
    classes: int


def sizes_of(experiment: Experiment) -> Sizes:
    """The dataset's sizes, without downloading or drawing it; images as they are stored."""
    e = experiment
    if e.dataset in TEXTS:
        raise UsageError(
            f"{e.dataset} cannot be forecast without its texts; a linear model on ready features "
            "trains in seconds: use fl2fast train"
        )
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


class Outline(NamedTuple):
    """An experiment with its networks, before any data is there."""

    experiment: Experiment
    sizes: Sizes
    clients: Cores
    server: Cores
    trial_lanes: int

    @property
    def lanes(self) -> int:
        return self.experiment.seeds * self.experiment.cohort

    @property
    def client_rows(self) -> int:
        """Of an average client."""
        return (self.sizes.train - self.experiment.labels) // self.experiment.clients


def make_outline(
    experiment: Experiment,
    *,
    here: bool = True,
    say: Callable[[str], object] = lambda sentence: None,
) -> Outline:
    """Resolve what is `auto`: by time, if seconds here are asked for, else as a GPU would."""
    e, sizes = experiment, sizes_of(experiment)
    if sizes.train - e.labels < e.clients:
        raise UsageError(
            f"{e.clients} clients cannot share {sizes.train - e.labels} unlabelled images: ask for "
            "fewer clients or labels"
        )
    module = make_module(e, sizes.classes, e.seed)
    channels = in_channels(module) or sizes.image_shape[0]
    like_image = fit_images(np.zeros((1, *sizes.image_shape), np.uint8), channels)
    sizes = sizes._replace(image_shape=like_image.shape[1:])  # type: ignore[arg-type]
    check_module(module, e.model, sizes.image_shape, sizes.classes)
    like = torch.zeros((), dtype=e.torch_dtype, device=e.device)
    module = module.to(like)
    lanes = _trial_lanes(e, module, sizes, like)
    if here:
        resolved, clients, server = choose_executions(
            replace(e, chunk=lanes), module, like, sizes.image_shape, say
        )
        e = replace(resolved, chunk=e.chunk)
    else:
        e = replace(e, lowering=stacked(e) if e.lowering == "auto" else e.lowering)
        clients = server = Execution(e.lowering, precision=e.precision)
    own, server_own = (
        Cores(Network.of(module, execution, like), e.chunk) for execution in (clients, server)
    )
    return Outline(e, sizes, own, server_own, lanes)


def _trial_lanes(e: Experiment, module: nn.Module, sizes: Sizes, like: Tensor) -> int:
    """As many lanes as may be timed: a wide network must not cost minutes before it runs."""
    method, plain = e.make_method(), plain_network(Network.of(module, "loop", like))
    rows = batch_rows(e, method.main)
    lane = meter_step(plain, method.main, 1, rows, sizes.image_shape, learner=method.learner)
    most = min(e.chunk or e.seeds * e.cohort, e.seeds * e.cohort)
    fewest = torch.get_num_threads() if like.device.type == "cpu" else 1
    return min(max(int(TRIAL_FLOPS // lane.flops), fewest), most)


def stacked(e: Experiment) -> str:
    """How lanes run on a GPU; a user's own layers may have no grouped form."""
    return "vmap" if ".py:" in e.model else "grouped"
