"""fl2fast reproduce"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fl2fast.cli.options import Asked, data_dir_option, fetch
from fl2fast.cli.paths import PATH
from fl2fast.cli.progress import progress
from fl2fast.experiment import Experiment
from fl2fast.reproduce.cells import Cell, choose_cells, find_target, make_cells
from fl2fast.reproduce.outputs import fill, write_outputs
from fl2fast.reproduce.run import DEFAULT_OUT, run_cells
from fl2fast.reproduce.scales import SCALES
from fl2fast.simulate import RoundReport


@click.command("reproduce")
@click.argument("target")
@click.option("--cells", "wanted", help="Only cells with this text; several, with commas: any.")
@click.option("--seeds", type=int, default=3, show_default=True, help="Seeds of a cell, stacked.")
@click.option("--scale", default="paper", show_default=True, help=" or ".join(SCALES) + ".")
@click.option("--dataset", help="Run the target's cells on another dataset.")
@click.option("--encoder", help="Of text cells, if other than the paper's bert-base-uncased.")
@click.option("--out", type=PATH, default=DEFAULT_OUT, show_default=True)
@data_dir_option
@click.option("--device", help="cpu (default), cuda or cuda:N.")
@click.option("--lowering", help="As in fl2fast train.")
@click.option("--list", "listing", is_flag=True, help="Print the cells, done or missing, and stop.")
def reproduce_command(
    target: str,
    wanted: str | None,
    seeds: int,
    scale: str,
    dataset: str | None,
    encoder: str | None,
    out: Path,
    data_dir: Path | None,
    device: str | None,
    lowering: str | None,
    listing: bool,
) -> None:
    """Run a table or figure of the paper: table1, table2, table3, fig1, fig3 or fig4.

    What is finished is not run again: repeat the command to go on after an interruption.
    """
    found = find_target(target)
    cells = make_cells(found, scale, seeds, dataset, encoder)
    chosen = choose_cells(cells, wanted)
    if listing:
        for cell, result in fill(chosen, out):
            click.echo(f"{'missing' if result is None else 'done':<9}{cell.row}, {cell.column}")
        return

    @contextmanager
    def listen(cell: Cell, made: Experiment) -> Iterator[Callable[[RoundReport], None]]:
        fetch(Asked(made, None, data_dir))
        with progress(f"{cell.row}, {cell.column}: ") as show:
            yield show

    run_cells(
        chosen,
        out,
        listen,
        after=lambda cell: write_outputs(found, cells, out, dataset),
        data_dir=data_dir,
        say=click.echo,
        device=device,
        lowering=lowering,
    )
    written = write_outputs(found, cells, out, dataset)
    click.echo("\n" + written[0].read_text())
    click.echo(f"written to {', '.join(map(str, written))}")
