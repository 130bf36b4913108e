"""fl2fast train"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fl2fast.cli.progress import file_progress, progress
from fl2fast.data.load import default_data_dir
from fl2fast.data.partition import PARTITION_NAMES
from fl2fast.data.prepare import get
from fl2fast.data.published import PUBLISHED
from fl2fast.experiment import PRESETS, experiment, read_config
from fl2fast.models import MODEL_NAMES
from fl2fast.record import check_folder
from fl2fast.train import train

NOT_SETTINGS = ("preset", "config", "dry_run", "data_dir", "out")


@click.command("train", context_settings={"show_default": False})
@click.option("--dataset", help="streetdigits (default), a published dataset, or a folder of .npy.")
@click.option("--labels", type=int, help="Labelled images on the server, balanced over classes.")
@click.option("--method", help="flfl (default), supervised or fedavg.")
@click.option("--model", help=MODEL_NAMES + ".")
@click.option("--partition", help=PARTITION_NAMES + ".")
@click.option("--clients", type=int, help="Clients in the federation.")
@click.option("--cohort", type=int, help="Clients selected each round.")
@click.option("--rounds", type=int, help="Communication rounds.")
@click.option("--epochs", type=int, help="Local epochs, of clients and server.")
@click.option("--server-epochs", type=int, help="Epochs of the server, if other than --epochs.")
@click.option("--batch-size", type=int, help="Rows of a client's batch.")
@click.option("--server-batch-size", type=int, help="Rows of a server's batch.")
@click.option("--pretrain", type=int, help="Server-training calls before round 1.")
@click.option("--lr", type=float, help="Learning rate of clients and server.")
@click.option("--rho", type=float, help="Radius of the SACR perturbation.")
@click.option("--schedule", help="cosine (default) or constant learning rate over rounds.")
@click.option("--seed", type=int, help="First seed (default 0).")
@click.option("--seeds", type=int, help="Number of seeds, trained stacked (default 1).")
@click.option("--device", help="cpu (default), cuda or cuda:N.")
@click.option("--dtype", help="float32 (default) or float64.")
@click.option("--lowering", help="grouped (default), vmap or loop.")
@click.option("--augment", help="torch or dali; auto (default): the faster one here.")
@click.option("--chunk", type=int, help="Lanes trained at once, to bound memory; 0 (default): all.")
@click.option("--eval-every", type=int, help="Rounds between tests; the last is always tested.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of prepared datasets.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder; new or empty.")
@click.option("--preset", help=" or ".join(PRESETS) + "; explicit flags win over it.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings.")
@click.option("--dry-run", is_flag=True, help="Print the resolved experiment and stop.")
def train_command(**flags: Any) -> None:
    """Train a federation and write its run folder.

    Flags win over --config, which wins over --preset (quick for streetdigits and folders, paper
    for the paper's datasets).
    """
    given = {} if flags["config"] is None else read_config(flags["config"])
    given |= {n: v for n, v in flags.items() if v is not None and n not in NOT_SETTINGS}
    preset, out, data_dir = (
        flags[name] or in_file
        for name, in_file in ((n, given.pop(n, None)) for n in ("preset", "out", "data_dir"))
    )
    made = experiment(preset, **given)
    if flags["dry_run"]:
        click.echo(json.dumps(asdict(made), indent=2))
        return
    if out is not None:
        check_folder(Path(out))  # before a download
    if made.dataset in PUBLISHED:
        with file_progress() as show_file:
            get(made.dataset, Path(data_dir or default_data_dir()), show_file)
    with progress(made.rounds) as show:
        summary = train(made, out, data_dir, show, say=click.echo)
    for row in summary["seeds"]:
        last, best = row["test_accuracy_last"], row["test_accuracy_best"]
        click.echo(f"seed {row['seed']}: test accuracy {last:.2f} % (best {best:.2f} %)")
    click.echo(f"written to {summary['out']}")
