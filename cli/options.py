"""The flags that describe an experiment, for every command that takes one."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from fl2fast.cli.paths import PATH, to_path
from fl2fast.cli.progress import file_progress
from fl2fast.data.load import default_data_dir
from fl2fast.data.partition import PARTITION_NAMES
from fl2fast.data.prepare import get
from fl2fast.data.published import PUBLISHED
from fl2fast.experiment import PRESETS, Experiment, experiment, read_config, read_options
from fl2fast.models import MODEL_NAMES

Command = TypeVar("Command", bound=Callable[..., Any])

SETTINGS = (
    click.option(
        "--dataset", help="streetdigits (default), a published dataset, or a folder of .npy."
    ),
    click.option(
        "--labels", type=int, help="Labelled images on the server, balanced over classes."
    ),
    click.option(
        "--method", help="flfl (default), another of `fl2fast list methods`, or file.py:factory."
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the method's own (see fl2fast show METHOD); may be given again.",
    ),
    click.option("--model", help=MODEL_NAMES + "."),
    click.option("--partition", help=PARTITION_NAMES + "."),
    click.option("--clients", type=int, help="Clients in the federation."),
    click.option("--cohort", type=int, help="Clients selected each round."),
    click.option("--rounds", type=int, help="Communication rounds."),
    click.option("--epochs", type=int, help="Local epochs, of clients and server."),
    click.option("--server-epochs", type=int, help="Epochs of the server, if other than --epochs."),
    click.option("--batch-size", type=int, help="Rows of a client's batch."),
    click.option("--server-batch-size", type=int, help="Rows of a server's batch."),
    click.option("--pretrain", type=int, help="Server-training calls before round 1."),
    click.option("--lr", type=float, help="Learning rate of clients and server."),
    click.option("--rho", type=float, help="Radius of the SACR perturbation."),
    click.option("--schedule", help="cosine (default) or constant learning rate over rounds."),
    click.option("--seed", type=int, help="First seed (default 0)."),
    click.option("--seeds", type=int, help="Number of seeds, trained stacked (default 1)."),
    click.option("--device", help="cpu (default), cuda or cuda:N."),
    click.option("--dtype", help="float32 (default) or float64."),
    click.option(
        "--lowering", help="cores, grouped, vmap or loop; auto (default): the fastest one here."
    ),
    click.option("--compile", help="on or off; auto (default): on a GPU, where it is faster."),
    click.option("--precision", help="fp32 (default), tf32 or bf16."),
    click.option("--augment", help="torch or dali; auto (default): the faster one here."),
    click.option(
        "--chunk", type=int, help="Lanes trained at once, to bound memory; 0 (default): all."
    ),
    click.option("--encoder", help="Of text: a Hugging Face name, a folder, or a package."),
    click.option("--eval-every", type=int, help="Rounds between tests; the last is always tested."),
)
SOURCES = (
    click.option("--preset", help=" or ".join(PRESETS) + "; explicit flags win over it."),
    click.option("--config", type=PATH, help="TOML file of settings."),
)
data_dir_option = click.option("--data-dir", type=PATH, help="Folder of prepared datasets.")
out_option = click.option("--out", type=PATH, help="Run folder; new or empty.")


class Given(NamedTuple):
    """What the user says, and nothing else."""

    settings: dict[str, Any]
    preset: str | None
    out: Path | None
    data_dir: Path | None


class Asked(NamedTuple):
    """What the flags and the files behind them say."""

    experiment: Experiment
    out: Path | None
    data_dir: Path | None


def experiment_options(*paths: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Every flag of an experiment; `paths` are the command's own, and stand before the presets."""

    def decorate(command: Command) -> Command:
        for option in reversed((*SETTINGS, *paths, *SOURCES)):
            command = option(command)
        return command

    return decorate


def read_given(flags: dict[str, Any]) -> Given:
    """Flags win over --config."""
    given = {} if flags["config"] is None else read_config(flags["config"])
    settings = {field.name for field in fields(Experiment)}
    given |= {n: v for n, v in flags.items() if v is not None and n in settings and n != "options"}
    in_file = given.get("options", {})
    if flags["options"] and isinstance(in_file, dict):  # else it is refused as it is
        given["options"] = in_file | read_options(flags["options"])
    preset, out, data_dir = (
        flags.get(name) or in_file
        for name, in_file in ((n, given.pop(n, None)) for n in ("preset", "out", "data_dir"))
    )
    out, data_dir = (to_path(str(path)) if path else None for path in (out, data_dir))
    return Given(given, preset, out, data_dir)


def read_flags(flags: dict[str, Any]) -> Asked:
    """What the user says wins over --preset."""
    given = read_given(flags)
    return Asked(experiment(given.preset, **given.settings), given.out, given.data_dir)


def fetch(asked: Asked) -> None:
    """Download a published dataset that is not here yet."""
    if asked.experiment.dataset in PUBLISHED:
        with file_progress() as show_file:
            get(asked.experiment.dataset, asked.data_dir or default_data_dir(), show_file)
