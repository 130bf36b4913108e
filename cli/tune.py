"""fl2fast tune"""

from contextlib import nullcontext
from typing import Any

import click

from fl2fast.cli.options import data_dir_option, experiment_options, fetch, read_flags
from fl2fast.simulate import build_world
from fl2fast.tune import anew

CHOSEN = ("lowering", "server_lowering", "compile", "backward", "kernels", "augment")


@click.command("tune", context_settings={"show_default": False})
@experiment_options(data_dir_option)
@click.option("--again", is_flag=True, help="Time anew what has been timed before.")
def tune_command(again: bool, **flags: Any) -> None:
    """Time ahead of a run what it would time at its start, and keep the verdicts.

    A verdict is made once for a device, its versions, and the run's model and shapes.
    """
    asked = read_flags(flags)
    fetch(asked)
    with anew() if again else nullcontext():
        chosen = build_world(asked.experiment, asked.data_dir, say=click.echo).experiment
    for name in CHOSEN:
        click.echo(f"{name.replace('_', ' ')}: {getattr(chosen, name)}")
