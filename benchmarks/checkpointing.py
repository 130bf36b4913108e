"""What a checkpoint every round costs: python -m benchmarks.checkpointing [--repeats N]

The quick preset with and without checkpoints, run after run in turn, as `fl2fast train` does it:
recording included. Rounds of one number compute the same in every run, so each is compared with its
like: the overhead is the median over rounds of the ratio of medians over repeats. A checkpoint is
written while the next round trains, so its cost shows in the rounds after it.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click

import fl2fast
from benchmarks.harness import write_record
from fl2fast.memory import keep_freed_memory
from fl2fast.simulate import RoundReport


def round_seconds(settings: dict[str, Any], every: int) -> list[float]:
    """Of every round but the first, which has the warm-up; from one round's end to the next's."""
    ends: list[float] = []

    def note(_: RoundReport) -> None:
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as scratch:
        made = fl2fast.experiment(**settings, checkpoint_every=every)
        fl2fast.train(made, Path(scratch) / "run", on_round=note)
    return [after - before for before, after in itertools.pairwise(ends)]


@click.command()
@click.option("--repeats", default=7, show_default=True)
@click.option("--rounds", default=12, show_default=True)
@click.option("--seeds", default=1, show_default=True)
def main(repeats: int, rounds: int, seeds: int) -> None:
    keep_freed_memory()
    settings: dict[str, Any] = {"preset": "quick", "labels": 60, "seeds": seeds, "rounds": rounds}
    seconds: dict[int, list[list[float]]] = {0: [], 1: []}
    round_seconds({**settings, "rounds": 2}, 0)  # draws the dataset, times the lowerings
    for repeat in range(repeats):
        for every in (0, 1) if repeat % 2 else (1, 0):
            seconds[every].append(round_seconds(settings, every))
    plain, kept = (
        [statistics.median(of_round) for of_round in zip(*seconds[every], strict=True)]
        for every in (0, 1)
    )
    ratios = [with_it / without for with_it, without in zip(kept, plain, strict=True)]
    overhead = 100 * (statistics.median(ratios) - 1)
    total = 100 * (sum(kept) / sum(plain) - 1)
    click.echo(f"a round takes {statistics.median(plain):.3f} s without checkpoints")
    click.echo(f"a checkpoint every round adds {overhead:.1f} % (median), {total:.1f} % (sum)")
    rows = [
        {"round": number, "without": a, "with": b}
        for number, (a, b) in enumerate(zip(plain, kept, strict=True), start=2)
    ]
    about = {"settings": settings, "repeats": repeats, "percent": overhead, "percent_of_sum": total}
    click.echo(f"recorded in {write_record('checkpointing', rows, **about)}")


if __name__ == "__main__":
    main()
