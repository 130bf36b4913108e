"""Whole rounds against the released code's way of running them: fl2fast bench round

Fashion-MNIST, the setting of benchmarks.fashion. Both sides start every round from the same global
model and momentum and train the same rows in the same batches; the baseline (benchmarks.released)
runs in a process of its own, with nothing of ours but the data. They take turns.
"""

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import torch

import fl2fast
from benchmarks.fashion import SETTINGS
from benchmarks.harness import write_record
from benchmarks.released import Released
from fl2fast.clock import Clock
from fl2fast.engine.round import run_round, warm_up
from fl2fast.evaluate import evaluate, label_figures
from fl2fast.experiment import Experiment
from fl2fast.memory import keep_freed_memory
from fl2fast.simulate import initial_state


def serve_released(made: Experiment, data_dir: Path | None, workers: int, pipe: Connection) -> None:
    """Run the rounds that come through the pipe, until None comes."""
    baseline = Released(fl2fast.build_world(made, data_dir), workers)
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        state, rows, round = asked
        cost = baseline.run_round(state, rows, round)
        pipe.send((cost.seconds, cost.num_trained, cost.accuracy))


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--workers", default=0, show_default=True, help="Of the baseline's data loaders.")
@click.option("--data-dir", type=click.Path(path_type=Path))
def main(rounds: int, workers: int, data_dir: Path | None) -> None:
    settings = SETTINGS | {"rounds": 20}
    here, there = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=serve_released,
        args=(fl2fast.experiment("paper", **settings, lowering="loop"), data_dir, workers, there),
    )
    child.start()
    here.recv()
    keep_freed_memory()  # as `fl2fast train` does
    world = fl2fast.build_world(fl2fast.experiment("paper", **settings), data_dir, click.echo)
    clock = Clock(world.device)
    federation = warm_up(world, initial_state(world), clock.phase).federation
    start_up = clock.read()
    rows: list[dict[str, Any]] = []
    for round in range(1, rounds + 1):
        here.send((federation.state, dict(federation.store.rows), round))
        released, num_released, accuracy_released = here.recv()
        started = time.perf_counter()
        federation, labels, _ = run_round(world, federation, clock.phase, tested=True)
        with clock.phase("evaluate"):
            (test,) = evaluate(world, federation.state)
            label_figures(world, labels)
        seconds = time.perf_counter() - started
        assert labels is not None
        rows.append(
            {
                "round": round,
                "fl2fast": clock.read() | {"total": seconds},
                "released": released | {"total": sum(released.values())},
                "rows": {"fl2fast": labels.num_trained, "released": num_released},
                "accuracy": {"fl2fast": test.accuracy, "released": accuracy_released},
                "ratio": sum(released.values()) / seconds,
            }
        )
        click.echo(rows[-1])
    here.send(None)
    child.join()
    ratio = statistics.median(row["ratio"] for row in rows)
    click.echo(f"{ratio:.1f}x less time a round than the released code's way")
    chosen = {k: getattr(world.experiment, k) for k in ("lowering", "server_lowering", "augment")}
    about = {"settings": settings | chosen, "workers": workers, "start_up": start_up}
    threads = torch.get_num_threads()
    click.echo(f"recorded in {write_record('round', rows, **about, threads=threads, ratio=ratio)}")


if __name__ == "__main__":
    main()
