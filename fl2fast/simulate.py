"""From an experiment to a running federation: data -> partition -> rounds -> reports."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fl2fast import rng
from fl2fast.clock import Clock
from fl2fast.data.load import default_data_dir
from fl2fast.data.partition import split_rows
from fl2fast.dataset import num_classes, read_dataset
from fl2fast.diagnostics import diagnose
from fl2fast.engine import central
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
    num_trained: int  # images that clients, or a central learner, trained on, once per step
    state: ServerState
    diagnostics: list[dict[str, Any]]  # of rounds that are tested: a row per seed


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
    data = read_dataset(e, data_dir or default_data_dir(), say)
    classes = num_classes(data)
    splits = tuple(
        split_rows(data.train_labels, classes, e.labels, e.partition, e.clients, seed)
        for seed in e.seed_list
    )
    device = torch.device(e.device)
    like = torch.zeros((), dtype=e.torch_dtype, device=device)
    module = make_module(e, classes, e.seed, data.shape())
    channels = in_channels(module)
    shape = data.shape(channels)
    check_module(module, e.model, shape, classes)
    module = module.to(like)
    e, clients, server = choose_executions(e, module, like, shape, say)
    e, inputs = data.make_inputs(e, channels, like, say)
    return World(
        experiment=e,
        inputs=inputs,
        truth=torch.from_numpy(data.train_labels).to(device),
        truth_host=data.train_labels,
        test_labels=torch.from_numpy(data.test_labels).to(device),
        num_classes=classes,
        splits=splits,
        clients=Cores(Network.of(module, clients, like), e.chunk),
        server=Cores(Network.of(module, server, like), e.chunk),
        method=e.make_method(),
    )


def make_module(
    experiment: Experiment,
    num_classes: int,
    seed: int,
    input_shape: tuple[int, ...] = (3, 32, 32),
) -> torch.nn.Module:
    """The model as this seed initialises it."""
    factory = find_model(experiment.model, input_shape)
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


def initial_state(world: World) -> ServerState:
    """Freshly initialised global models; warm-up makes their first statistics."""
    rows, network = [], world.network
    for seed in world.experiment.seed_list:
        module = make_module(world.experiment, world.num_classes, seed, world.inputs.shape)
        params_P = network.layout.join(dict(module.named_parameters())).detach()
        draws = rng.generator(seed, "learner")

        def normal(num: int, draws: np.random.Generator = draws) -> torch.Tensor:
            return torch.from_numpy(draws.standard_normal(num)).to(network.weights_P)

        rows.append(world.method.learner.init(network, params_P.to(network.weights_P), normal))
    params_SP = torch.stack(rows)
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
            inside = [{"round": round, **row} for row in diagnose(world, labels)] if due else []
        rate, num_trained = e.learning_rate(round), 0 if labels is None else labels.num_trained
        if world.method.central is not None:
            rate = central.learning_rate(e, (round - 1) / e.rounds)  # of the round's first step
            num_trained = central.num_rows_of_a_round(world)
        metrics = [
            {
                "round": round,
                "seed": seed,
                "test_accuracy": accuracy,
                "test_loss": loss,
                **figure,
                "lr": rate,
            }
            for seed, (accuracy, loss), figure in zip(e.seed_list, tests, figures, strict=True)
        ]
        yield RoundReport(round, metrics, clock.read(), num_trained, state, inside)
