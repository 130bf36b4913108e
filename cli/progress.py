"""A live line while a run trains or a file comes in; plain lines where there is no terminal."""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
import rich.progress as bar
from rich.console import Console

from fl2fast.data.prepare import Progress
from fl2fast.record import timing_row
from fl2fast.simulate import RoundReport


@contextmanager
def progress(title: str = "") -> Iterator[Callable[[RoundReport], None]]:
    """Yields the function to call after every round."""
    if not sys.stderr.isatty():
        yield _plain_lines(title)
        return
    columns = (
        bar.TextColumn(f"{title}round {{task.fields[place]}}"),
        bar.BarColumn(bar_width=24),
        bar.TextColumn("ETA"),
        bar.TimeRemainingColumn(),
        bar.TextColumn("{task.fields[figures]}"),
    )
    live = bar.Progress(*columns, console=Console(stderr=True))
    task = live.add_task("rounds", total=None, figures="", place="")

    def show(report: RoundReport) -> None:
        live.start()  # not before the first round: a refusal is to stand alone
        rounds = report.world.experiment.rounds
        place, figures = f"{report.round}/{rounds}", describe(report)
        live.update(task, total=rounds, completed=report.round, place=place, figures=figures)

    try:
        yield show
    finally:
        live.stop()


def _plain_lines(title: str) -> Callable[[RoundReport], None]:
    started, done = time.perf_counter(), itertools.count(1)

    def show(report: RoundReport) -> None:
        elapsed, rounds = time.perf_counter() - started, report.world.experiment.rounds
        eta = elapsed / next(done) * (rounds - report.round)
        with suppress(BrokenPipeError):  # a run does not end because nobody reads
            click.echo(f"{title}round {report.round}/{rounds}  ETA {eta:.0f} s  {describe(report)}")

    return show


def describe(report: RoundReport) -> str:
    """test 61.3 %  pseudo-labels 78.1 %  3,100 images/s, means over seeds."""
    rate = timing_row(report)["images_per_second"]
    parts = [
        _mean(report.metrics, "test_accuracy", "test"),
        _mean(report.metrics, "pseudo_label_accuracy", "pseudo-labels"),
        None if rate is None else f"{rate:,.0f} images/s",
    ]
    return "  ".join(part for part in parts if part)


def _mean(rows: list[dict[str, Any]], name: str, title: str) -> str | None:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{title} {sum(values) / len(values):.1f} %" if values else None


@contextmanager
def file_progress() -> Iterator[Progress]:
    """Yields the function that `fl2fast.data.prepare` calls with what it does."""
    if not sys.stderr.isatty():
        yield _line_per_step()
        return
    columns = (
        bar.TextColumn("{task.description}"),
        bar.BarColumn(bar_width=24),
        bar.DownloadColumn(),
        bar.TransferSpeedColumn(),
        bar.TimeRemainingColumn(),
    )
    with bar.Progress(*columns, console=Console(stderr=True), transient=True) as live:
        tasks: dict[str, bar.TaskID] = {}

        def show(title: str, done: int, total: int | None) -> None:
            if title not in tasks:
                tasks[title] = live.add_task(title, total=total)
            live.update(tasks[title], completed=done)

        yield show


def _line_per_step() -> Progress:
    shown: set[str] = set()

    def show(title: str, done: int, total: int | None) -> None:
        if title not in shown:
            shown.add(title)
            size = "" if total is None else f" ({total / 1e6:,.0f} MB)"
            click.echo(f"{title}{size}", err=True)

    return show
