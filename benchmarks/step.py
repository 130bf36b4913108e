"""One SACR step of L learners, every lowering against the released code's: fl2fast bench step

Half of the rows are sure. The released code takes five forwards and three backwards, one client at
a time. Also: how near the step comes to the speed of a dense 3x3 convolution, and how many
operations are dispatched for it.
"""

import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import median_and_spread, write_record
from benchmarks.released import client_grads
from fl2fast.engine.auto import make_step
from fl2fast.engine.cores import Cores
from fl2fast.memory import keep_freed_memory
from fl2fast.methods import flfl
from fl2fast.models import find_model
from fl2fast.models.lowering import LOWERINGS
from fl2fast.models.network import Network
from fl2fast.profile import meter_step
from fl2fast.tune import interleave

CPU = torch.device("cpu")
SHAPE = (3, 32, 32)
CASES = [
    ("cnn", 1, 32),
    ("cnn", 10, 32),
    ("cnn", 100, 10),
    ("wrn-10-1", 1, 32),
    ("wrn-10-1", 10, 32),
    ("wrn-28-2", 10, 32),
]
SLOW = {("wrn-28-2", "vmap")}  # minutes a step on a CPU
STAGES = [(32, 32), (64, 16), (128, 8)]  # channels and side of wrn-28-2's convolutions


def released_step(model: str, lanes: int, batch: int) -> Callable[[], None]:
    """One client after another, each with a module and an optimiser of its own."""
    learners = [find_model(model)(10).train() for _ in range(lanes)]
    optimisers = [
        torch.optim.SGD(m.parameters(), 0.03, momentum=0.9, weight_decay=5e-4, nesterov=True)
        for m in learners
    ]
    x = torch.linspace(0, 50, batch * 3 * 32 * 32).sin().view(batch, *SHAPE)
    y, sure = torch.zeros(batch, dtype=torch.int64), torch.arange(batch) % 2 == 0

    def step() -> None:
        for learner, optimiser in zip(learners, optimisers, strict=True):
            client_grads(learner, x, x, y, sure, 0.1)
            torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            optimiser.step()

    return step


def stacked_step(model: str, lowering: str, lanes: int, batch: int) -> Callable[[], object]:
    client = flfl().client
    assert client is not None
    cores = Cores(Network.of(find_model(model)(10), lowering, torch.zeros(())))
    return make_step(cores, client, lanes, batch, SHAPE)


def flops_per_image(model: str) -> float:
    """2F + 3B; a backward costs two forwards, but the images need no gradient."""
    module, x = find_model(model)(10), torch.zeros(1, *SHAPE)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    first = next(m for m in module.modules() if isinstance(m, torch.nn.Conv2d))
    with FlopCounterMode(display=False) as stem, torch.no_grad():
        first(x)
    return 8.0 * counter.get_total_flops() - 3.0 * stem.get_total_flops()


def dense_convolution(
    channels: int, side: int, rows: int, layout: Any
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward and a backward of one 3x3 convolution with shared weights."""
    x = torch.ones(rows, channels, side, side).contiguous(memory_format=layout)
    weight, pad = torch.ones(channels, channels, 3, 3), [1, 1]
    wanted = [True, True, False]
    return (
        lambda: F.conv2d(x, weight, padding=1),
        lambda: torch.ops.aten.convolution_backward(
            x, x, weight, None, pad, pad, pad, False, [0, 0], 1, wanted
        ),
    )


def dense_gflops(rows: int, repeats: int) -> dict[str, dict[str, float]]:
    """At each stage's shape the best GFLOP/s, over memory formats: forward, and 2F + 3B."""
    found = {}
    for channels, side in STAGES:
        best = {"forward": float("inf"), "backward": float("inf")}
        for layout in (torch.contiguous_format, torch.channels_last):
            calls = dict(zip(best, dense_convolution(channels, side, rows, layout), strict=True))
            for name, seconds in interleave(calls, 2 * repeats, CPU).items():
                best[name] = min(best[name], statistics.median(seconds))
        forward, backward = best.values()
        gflop = 2 * 9 * rows * channels**2 * side**2 / 1e9
        found[f"{channels}x{side}x{side}"] = {
            "forward": gflop / forward,
            "2F + 3B": 8 * gflop / (2 * forward + 3 * backward),
        }
    return found


def ops_per_client_step(model: str, lowering: str, lanes: int) -> float:
    """What would be launched on a GPU: every dispatched operation that computes."""
    client = flfl().client
    assert client is not None
    network = Network.of(find_model(model)(10), lowering, torch.zeros(()))
    return len(meter_step(network, client, lanes, 8, SHAPE, "some").ops) / lanes


@click.command()
@click.option("--repeats", default=5, show_default=True)
@click.option("--only", help="One model, such as wrn-28-2.")
def main(repeats: int, only: str | None) -> None:
    keep_freed_memory()
    rows, about = [], {}
    for model, lanes, batch in CASES:
        if only not in (None, model):
            continue
        names = [n for n in LOWERINGS if (model, n) not in SLOW]
        calls = {n: stacked_step(model, n, lanes, batch) for n in names}
        seconds = interleave({"released": released_step(model, lanes, batch)} | calls, repeats, CPU)
        rates = {
            name: median_and_spread([lanes * batch / value for value in values])
            for name, values in seconds.items()
        }
        rows.append({"model": model, "lanes": lanes, "batch": batch, "images_per_second": rates})
        cells = "  ".join(f"{name} {rate['median']:,.0f}" for name, rate in rates.items())
        click.echo(f"{model} {lanes} x {batch}: {cells} images/s")
        if model == "wrn-28-2":
            best = max(rate["median"] for rate in rates.values())
            about["dense_gflops"] = dense_gflops(lanes * batch, repeats)
            about["step_gflops"] = best * flops_per_image(model) / 1e9
            click.echo(f"{about}")
    ways = {"one at a time": ("loop", 1), "stacked": ("grouped", 10)}
    pairs = product(("cnn", "wrn-10-1", "wrn-28-2"), ways.items())
    ops = {f"{model}, {name}": ops_per_client_step(model, *way) for model, (name, way) in pairs}
    click.echo(f"dispatched operations a client-step at K=10: {ops}")
    path = write_record("step", rows, repeats=repeats, ops_per_client_step=ops, **about)
    click.echo(f"recorded in {path}")


if __name__ == "__main__":
    main()
