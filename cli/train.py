"""fl2fast train"""

import json
from dataclasses import asdict
from typing import Any

import click

from fl2fast.cli.options import data_dir_option, experiment_options, fetch, out_option, read_flags
from fl2fast.cli.progress import progress
from fl2fast.record import check_folder
from fl2fast.train import train


@click.command("train", context_settings={"show_default": False})
@experiment_options(data_dir_option, out_option)
@click.option("--dry-run", is_flag=True, help="Print the resolved experiment and stop.")
def train_command(dry_run: bool, **flags: Any) -> None:
    """Train a federation and write its run folder.

    Flags win over --config, which wins over --preset (quick for streetdigits and folders, paper
    for the paper's datasets).
    """
    asked = read_flags(flags)
    if dry_run:
        click.echo(json.dumps(asdict(asked.experiment), indent=2))
        return
    if asked.out is not None:
        check_folder(asked.out)  # before a download
    fetch(asked)
    with progress(asked.experiment.rounds) as show:
        summary = train(asked.experiment, asked.out, asked.data_dir, show, say=click.echo)
    for row in summary["seeds"]:
        last, best = row["test_accuracy_last"], row["test_accuracy_best"]
        click.echo(f"seed {row['seed']}: test accuracy {last:.2f} % (best {best:.2f} %)")
    click.echo(f"written to {summary['out']}")
