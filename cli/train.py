"""fl2fast train"""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from fl2fast.cli.options import (
    data_dir_option,
    experiment_options,
    fetch,
    out_option,
    read_flags,
    read_given,
)
from fl2fast.cli.paths import to_path
from fl2fast.cli.progress import progress
from fl2fast.errors import UsageError
from fl2fast.run_folder import check_folder, is_run
from fl2fast.train import resume, train

DIVERGED = 3  # exit code


@click.command("train", context_settings={"show_default": False})
@experiment_options(data_dir_option, out_option)
@click.option(
    "--resume",
    "run",
    metavar="RUN",
    help="Go on with a run that was stopped; auto: with the one in --out, if it is there.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved experiment and stop.")
def train_command(dry_run: bool, run: str | None, **flags: Any) -> int:
    """Train a federation and write its run folder.

    Flags win over --config, which wins over --preset (quick for streetdigits and folders, paper
    for the paper's datasets). Exit code 3: a seed has diverged.
    """
    old = None if run is None else _old_run(run, flags)
    if old is None:
        asked = read_flags(flags)
        if dry_run:
            click.echo(json.dumps(asdict(asked.experiment), indent=2))
            return 0
        if asked.out is not None:
            check_folder(asked.out)  # before a download
        fetch(asked)
        start = partial(train, asked.experiment, asked.out, asked.data_dir)
    else:
        if dry_run:
            raise UsageError("--dry-run cannot go with --resume, whose settings are in RUN")
        given = read_given(flags)
        start = partial(resume, old, given.settings, given.preset, given.data_dir)
    with progress() as show:
        summary = start(on_round=show, say=click.echo, warn=partial(click.echo, err=True))
    return report(summary)


def report(summary: dict[str, Any]) -> int:
    """Say how a run ended; its exit code."""
    for row in summary["seeds"]:
        last, best = row["test_accuracy_last"], row["test_accuracy_best"]
        click.echo(f"seed {row['seed']}: test accuracy {last:.2f} % (best {best:.2f} %)")
    for row in summary["diverged"]:
        click.echo(f"seed {row['seed']}: diverged in round {row['round']} ({row['where']})")
    click.echo(f"written to {summary['out']}")
    return DIVERGED if summary["diverged"] else 0


def _old_run(run: str, flags: dict[str, Any]) -> Path | None:
    """The run that --resume means; None: there is none yet, and it is to be started."""
    out = read_given(flags).out
    if run != "auto":
        if out is not None:
            raise UsageError("--out cannot go with --resume RUN, which goes on in RUN itself")
        return to_path(run)
    if out is None:
        raise UsageError("--resume auto needs --out: the run that is resumed if it is there")
    return out if is_run(out) else None
