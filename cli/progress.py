"""A live line while a run trains; plain lines where there is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import rich.progress as bar
from rich.console import Console

from fl2fast.record import timing_row
from fl2fast.simulate import RoundReport


@contextmanager
def progress(rounds: int, title: str = "") -> Iterator[Callable[[RoundReport], None]]:
    """Yields the function to call after every round."""
    if not sys.stderr.isatty():
        yield _plain_lines(rounds, title)
        return
    columns = (
        bar.TextColumn(f"{title}round {{task.completed:.0f}}/{{task.total:.0f}}"),
        bar.BarColumn(bar_width=24),
        bar.TextColumn("ETA"),
        bar.TimeRemainingColumn(),
        bar.TextColumn("{task.fields[figures]}"),
    )
    live = bar.Progress(*columns, console=Console(stderr=True))
    task = live.add_task("rounds", total=rounds, figures="")

    def show(report: RoundReport) -> None:
        live.start()  # not before the first round: a refusal is to stand alone
        live.update(task, completed=report.round, figures=describe(report))

    try:
        yield show
    finally:
        live.stop()


def _plain_lines(rounds: int, title: str) -> Callable[[RoundReport], None]:
    started = time.perf_counter()

    def show(report: RoundReport) -> None:
        elapsed = time.perf_counter() - started
        eta = elapsed / report.round * (rounds - report.round)
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
