"""From an experiment to a running federation: data -> partition -> rounds -> reports."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fl2fast import rng
from fl2fast.clock import Clock
from fl2fast.data.backends import choose, make_augment
from fl2fast.data.load import default_data_dir, fit_images, load
from fl2fast.data.partition import split_rows
from fl2fast.engine.batches import block_rows
from fl2fast.engine.cores import Cores
from fl2fast.engine.round import run_round, warm_up
from fl2fast.engine.world import ClientStore, ServerState, World
from fl2fast.errors import UsageError
from fl2fast.evaluate import evaluate, label_figures
from fl2fast.execute import choose_executions
from fl2fast.experiment import Experiment, check
from fl2fast.models import check_module, find_model, in_channels
from fl2fast.models.network import Network
from fl2fast.precision import set_precision


class RoundReport(NamedTuple):
    """One finished round: a row of figures per seed, and where its time went."""

    round: int
    metrics: list[dict[str, Any]]
    seconds: dict[str, float]
    num_trained: int  # images that clients trained on, counted once per step
    state: ServerState


def build_world(
    experiment: Experiment,
    data_dir: Path | None = None,
    say: Callable[[str], object] = lambda sentence: None,
) -> World:
    """Load the data, deal it out and lower the network; every refusal happens here.

    The world's experiment has every `auto` resolved; `say` is told what was chosen.
    """
    e = experiment
    check(e)
    arrays = load(e.dataset, data_dir or default_data_dir(), e.train_size, e.test_size, e.data_seed)
    num_classes = arrays.num_classes
    splits = tuple(
        split_rows(arrays.train_labels, num_classes, e.labels, e.partition, e.clients, seed)
        for seed in e.seed_list
    )
    module = make_module(e, num_classes, e.seed)
    channels = in_channels(module) or arrays.train_images.shape[1]
    train_images = fit_images(arrays.train_images, channels)
    test_images = fit_images(arrays.test_images, channels)
    check_module(module, e.model, train_images.shape[1:], num_classes)
    device, shape = torch.device(e.device), train_images.shape[1:]
    like = torch.zeros((), dtype=e.torch_dtype, device=device)
    mean, std = (_per_channel(values, channels, like) for values in (e.mean, e.std))
    module = module.to(like)
    e, clients, server = choose_executions(e, module, like, shape, say)
    if e.augment == "auto":
        verdict = choose(shape, block_rows(e), device)
        say(f"augment auto: {verdict}")
        e = replace(e, augment=verdict.choice)
    return World(
        experiment=e,
        images=torch.tensor(train_images, device=device),  # a copy: the file may go away
        truth=torch.from_numpy(arrays.train_labels).to(device),
        truth_host=arrays.train_labels,
        test_images=torch.tensor(test_images, device=device),
        test_labels=torch.from_numpy(arrays.test_labels).to(device),
        num_classes=num_classes,
        splits=splits,
        clients=Cores(Network.of(module, clients, like), e.chunk),
        server=Cores(Network.of(module, server, like), e.chunk),
        method=e.make_method(),
        augment=make_augment(e.augment, flip=e.flip, crop=e.crop, shape=shape, device=device),
        mean=mean,
        std=std,
    )


def make_module(experiment: Experiment, num_classes: int, seed: int) -> torch.nn.Module:
    """The model as this seed initialises it."""
    factory = find_model(experiment.model)
    with rng.torch_seeded(seed, "init"):
        try:
            module = factory(num_classes)
        except Exception as error:  # the user's own factory: whatever it raises is the news
            raise UsageError(
                f"model {experiment.model!r} cannot be made for {num_classes} classes: {error}"
            ) from error
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__name__
        raise UsageError(f"model {experiment.model!r} returned {kind}, not an nn.Module")
    return module


def _per_channel(values: tuple[float, ...], channels: int, like: torch.Tensor) -> torch.Tensor:
    """One value per channel; a grey model takes the mean of a colour row."""
    if len(values) != channels and 1 not in (len(values), channels):
        raise UsageError(
            f"mean and std have {len(values)} values, but the images have {channels} channels: "
            f"give {channels}"
        )
    tensor = torch.tensor(values, dtype=torch.float64)
    return (tensor if len(values) == channels else tensor.mean().expand(channels)).to(like)


def initial_state(world: World) -> ServerState:
    """Freshly initialised global models; warm-up makes their first statistics."""
    rows = []
    for seed in world.experiment.seed_list:
        module = make_module(world.experiment, world.num_classes, seed)
        rows.append(world.network.layout.join(dict(module.named_parameters())).detach())
    params_SP = torch.stack(rows).to(world.network.weights_P)
    zeros = torch.zeros_like(params_SP)
    return ServerState(params_SP, zeros, zeros.clone(), ())


def simulate(world: World) -> Iterator[RoundReport]:
    """Fold the rounds; yields after each, so that the caller records, draws or stops.

    Round 1's seconds include the warm-up, as phase `pretrain` and one more `recalibrate`.
    """
    set_precision(world.experiment.precision)
    e, store, clock = world.experiment, ClientStore(), Clock(world.device)
    state = warm_up(world, initial_state(world), clock.phase)
    for round in range(1, e.rounds + 1):
        due = round % e.eval_every == 0 or round == e.rounds
        state, labels = run_round(world, state, store, round, clock.phase, tested=due)
        with clock.phase("evaluate"):
            tests = evaluate(world, state) if due else [(None, None)] * e.seeds
            figures = label_figures(world, labels)
        metrics = [
            {
                "round": round,
                "seed": seed,
                "test_accuracy": accuracy,
                "test_loss": loss,
                **figure,
                "lr": e.learning_rate(round),
            }
            for seed, (accuracy, loss), figure in zip(e.seed_list, tests, figures, strict=True)
        ]
        num_trained = 0 if labels is None else labels.num_trained
        yield RoundReport(round, metrics, clock.read(), num_trained, state)
