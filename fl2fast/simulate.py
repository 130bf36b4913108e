"""From an experiment to a running federation: data -> partition -> rounds -> reports."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
from fl2fast.engine.round import Outcome, run_round, warm_up
from fl2fast.engine.world import Federation, ServerState, World
from fl2fast.errors import UsageError
from fl2fast.evaluate import LABEL_FIGURES, Test, evaluate, label_figures
from fl2fast.execute import choose_executions
from fl2fast.experiment import Experiment, check
from fl2fast.guards import Diverged, Event, divergences, freeze, with_room
from fl2fast.models import check_module, find_model, in_channels
from fl2fast.models.network import Network
from fl2fast.precision import set_precision

Row = TypeVar("Row")

METRIC_NAMES = (
    *("round", "seed", "test_accuracy", "test_loss", "predicted_classes"),
    *LABEL_FIGURES,
    "lr",
)


class RoundReport(NamedTuple):
    """One finished round: a row of figures per seed, and where its time went."""

    round: int
    metrics: list[dict[str, Any]]
    seconds: dict[str, float]
    num_trained: int  # images that clients, or a central learner, trained on, once per step
    world: World  # as it ran: memory may have bounded its lanes
    federation: Federation
    diagnostics: list[dict[str, Any]]  # of rounds that are tested: a row per seed
    events: list[Event]

    @property
    def state(self) -> ServerState:
        return self.federation.state


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
        except (Exception, SystemExit) as error:  # the user's own: whatever it raises is the news
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


def simulate(world: World, start: Federation | None = None) -> Iterator[RoundReport]:
    """Fold the rounds; yields after each, so that the caller records, draws or stops.

    Begins after `start`, or with the warm-up, whose seconds count as round 1's (phase `pretrain`
    and one more `recalibrate`). A seed that diverges is frozen; `Diverged` if none is left.
    """
    set_precision(world.experiment.precision)
    clock, events = Clock(world.device), list[Event]()
    federation = start
    if federation is None:
        world, outcome = with_room(
            world, 0, lambda w: warm_up(w, initial_state(w), clock.phase), events.append
        )
        federation = _guarded(world, None, outcome, [None] * world.experiment.seeds, events)
    for round in range(federation.round + 1, world.experiment.rounds + 1):
        before = federation
        world, (outcome, tests) = with_room(
            world, round, lambda w, b=before: _tested_round(w, b, clock), events.append
        )
        federation = _guarded(world, before, outcome, tests, events)
        with clock.phase("evaluate"):
            metrics = _metrics(world, federation, outcome, tests)
            due = world.experiment.is_due(round, world.experiment.eval_every)
            inside = _diagnostics(world, federation, outcome) if due else []
        trained = _num_trained(world, outcome)
        yield RoundReport(round, metrics, clock.read(), trained, world, federation, inside, events)
        events = []


def _tested_round(
    world: World, before: Federation, clock: Clock
) -> tuple[Outcome, list[Test | None]]:
    due = world.experiment.is_due(before.round + 1, world.experiment.eval_every)
    outcome = run_round(world, before, clock.phase, tested=due)
    with clock.phase("evaluate"):
        tests = evaluate(world, outcome.federation.state) if due else [None] * len(world.splits)
    return outcome, list(tests)


def _guarded(
    world: World,
    before: Federation | None,
    outcome: Outcome,
    tests: Sequence[Test | None],
    events: list[Event],
) -> Federation:
    found = divergences(world, outcome, tests)
    events += [Event(one.round, "diverged", f"{one}; it is frozen from here on") for one in found]
    federation = freeze(world, before, outcome.federation, found)
    if len(federation.diverged) == world.experiment.seeds:
        raise Diverged(federation.diverged, events)
    return federation


def _running(world: World, federation: Federation, rows: Iterable[Row]) -> Iterator[Row]:
    """Those of one row per seed whose seeds are not frozen."""
    seeds = world.experiment.seed_list
    return (r for seed, r in zip(seeds, rows, strict=True) if seed not in federation.frozen)


def _metrics(
    world: World, federation: Federation, outcome: Outcome, tests: Sequence[Test | None]
) -> list[dict[str, Any]]:
    e, round = world.experiment, federation.round
    rate = e.learning_rate(round)
    if world.method.central is not None:
        rate = central.learning_rate(e, (round - 1) / e.rounds)  # of the round's first step
    rows = [
        {
            "round": round,
            "seed": seed,
            "test_accuracy": None if test is None else test.accuracy,
            "test_loss": None if test is None else test.loss,
            "predicted_classes": None if test is None else test.classes,
            **figure,
            "lr": rate,
        }
        for seed, test, figure in zip(
            e.seed_list, tests, label_figures(world, outcome.labels), strict=True
        )
    ]
    return list(_running(world, federation, rows))


def _diagnostics(world: World, federation: Federation, outcome: Outcome) -> list[dict[str, Any]]:
    rows = diagnose(world, outcome.labels)
    rows = _running(world, federation, rows) if rows else rows
    return [{"round": federation.round, **row} for row in rows]


def _num_trained(world: World, outcome: Outcome) -> int:
    if world.method.central is not None:
        return central.num_rows_of_a_round(world)
    return 0 if outcome.labels is None else outcome.labels.num_trained
