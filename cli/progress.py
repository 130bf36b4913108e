"""A live line while a run trains; plain lines where there is no terminal."""

import sys
import time
from typing import Any

import click
import rich.progress as bar
from rich.console import Console

from fl2fast.record import images_per_second
from fl2fast.simulate import RoundReport


class Progress:
    def __init__(self, rounds: int, title: str = "") -> None:
        self.rounds, self.title, self.started = rounds, title, time.perf_counter()
        self.live: bar.Progress | None = None
        if sys.stderr.isatty():
            self.live = bar.Progress(
                bar.TextColumn(f"{title}round {{task.completed:.0f}}/{{task.total:.0f}}"),
                bar.BarColumn(bar_width=24),
                bar.TextColumn("ETA"),
                bar.TimeRemainingColumn(),
                bar.TextColumn("{task.fields[figures]}"),
                console=Console(stderr=True),
            )
            self.task = self.live.add_task("rounds", total=rounds, figures="")

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, report: RoundReport) -> None:
        figures = describe(report)
        if self.live is not None:
            self.live.update(self.task, completed=report.round, figures=figures)
            return
        elapsed = time.perf_counter() - self.started
        eta = elapsed / report.round * (self.rounds - report.round)
        click.echo(f"{self.title}round {report.round}/{self.rounds}  ETA {eta:.0f} s  {figures}")


def describe(report: RoundReport) -> str:
    """test 61.3 %  pseudo-labels 78.1 %  3,100 images/s, means over seeds."""
    rate = images_per_second([report])
    parts = [
        _mean(report.metrics, "test_accuracy", "test"),
        _mean(report.metrics, "pseudo_label_accuracy", "pseudo-labels"),
        None if rate is None else f"{rate:,.0f} images/s",
    ]
    return "  ".join(part for part in parts if part)


def _mean(rows: list[dict[str, Any]], name: str, title: str) -> str | None:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{title} {sum(values) / len(values):.1f} %" if values else None
