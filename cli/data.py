"""fl2fast data: list, get, show and import datasets"""

import os
from pathlib import Path

import click

from fl2fast.cli.paths import PATH
from fl2fast.cli.progress import file_progress
from fl2fast.data import agnews
from fl2fast.data.load import default_data_dir, fit_images, load
from fl2fast.data.prepare import get, import_files
from fl2fast.data.published import PUBLISHED
from fl2fast.data.settings import CIFAR10, SETTINGS
from fl2fast.errors import UsageError
from fl2fast.gallery import draw_gallery
from fl2fast.rng import MAX_SEED

data_dir_option = click.option(
    "--data-dir",
    type=PATH,
    help="Folder of prepared datasets (default: FL2FAST_DATA, else the cache folder).",
)


@click.group("data")
def data_command() -> None:
    """List, get, show and import datasets."""


@data_command.command("list")
@data_dir_option
def list_command(data_dir: Path | None) -> None:
    """Show the known datasets and which of them are here."""
    data_dir = data_dir or default_data_dir()
    click.echo(f"{'name':<15}{'images':>18}{'size':>10}{'classes':>9}  state")
    click.echo(
        f"{'streetdigits':<15}{'any':>18}{'3x32x32':>10}{10:>9}  embedded, drawn from a seed"
    )
    for name, entry in PUBLISHED.items():
        folder = data_dir / name
        state = f"get: {entry.megabytes} MB to download"
        if os.path.isdir(folder):
            state = f"in {folder}"
        elif entry.packaged is not None and entry.packaged.is_dir():
            state = f"get: from {entry.packaged}"
        images, size = f"{entry.train:,} + {entry.test:,}", "x".join(map(str, entry.shape))
        click.echo(f"{name:<15}{images:>18}{size:>10}{entry.classes:>9}  {state}")
    texts, folder = f"{agnews.OFFICIAL_TRAIN:,} + {agnews.OFFICIAL_TEST:,}", data_dir / "agnews"
    state = f"in {folder}" if os.path.isdir(folder) else f"get: {agnews.MEGABYTES} MB to download"
    click.echo(f"{'agnews':<15}{texts:>18}{'text':>10}{len(agnews.CLASSES):>9}  {state}")


@data_command.command("get")
@click.argument("name")
@data_dir_option
def get_command(name: str, data_dir: Path | None) -> None:
    """Download a published dataset and prepare its arrays, once."""
    if name not in (*PUBLISHED, "agnews"):
        raise UsageError(
            f"unknown dataset {name!r}: choose {', '.join(PUBLISHED)} or agnews (streetdigits "
            "needs no download)"
        )
    data_dir = data_dir or default_data_dir()
    with file_progress() as show:
        folder = agnews.get(data_dir, show) if name == "agnews" else get(name, data_dir, show)
    click.echo(f"{name} is in {folder}")


@data_command.command("import")
@click.argument("name")
@click.argument("path", type=PATH)
@data_dir_option
def import_command(name: str, path: Path, data_dir: Path | None) -> None:
    """Prepare a published dataset from its official files, or arrays, in PATH."""
    with file_progress() as show:
        folder = import_files(name, path, data_dir or default_data_dir(), show)
    click.echo(f"{name} is in {folder}")


@data_command.command("show")
@click.argument("name")
@click.option("--out", type=PATH, default=Path("grid.png"), show_default=True)
@click.option("--count", type=click.IntRange(1, 64), default=10, show_default=True, help="Images.")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), default=0, show_default=True)
@data_dir_option
def show_command(name: str, out: Path, count: int, seed: int, data_dir: Path | None) -> None:
    """Draw images beside their weak and strong views, and every op at five magnitudes."""
    arrays = load(name, data_dir or default_data_dir(), count, 1, 0)
    images = fit_images(arrays.train_images, channels=3)
    labels = [str(label) for label in arrays.train_labels]
    flip = SETTINGS.get(name, CIFAR10).flfl.flip
    for path in draw_gallery(images, out, flip=flip, seed=seed, names=labels):
        click.echo(f"drawn in {path}")
