"""Do the baselines learn from unlabelled rows? python -m benchmarks.baselines

streetdigits with 250 labels at the mini scale of `fl2fast reproduce`, three seeds: each baseline
against the labels alone. Run folders stay in --out, and what is finished there is not run again.
"""

from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.harness import write_record
from fl2fast.plot import draw_curves
from fl2fast.reproduce.cells import Cell
from fl2fast.reproduce.run import make_experiment, read_result, run_cells
from fl2fast.reproduce.scales import settings
from fl2fast.reproduce.tables import mean_std

PICTURE = Path(__file__).parents[1] / "docs" / "baselines.svg"


class Line(NamedTuple):
    method: str
    options: dict[str, Any]


LINES = {
    "supervised": Line("supervised", {}),
    "fedmatch": Line("fedmatch", {}),
    # its pseudo-labels heard: by default the L2 term, clipped, is nearly all of the gradient
    "fedmatch, lambda_a = 1, lambda_l2 = 0": Line("fedmatch", {"lambda_a": 1.0, "lambda_l2": 0.0}),
    "fedcon": Line("fedcon", {}),
    "semifl": Line("semifl", {}),
    "flfl": Line("flfl", {}),
}


def make_cell(title: str, seeds: int) -> Cell:
    method, options = LINES[title]
    own: dict[str, Any] = {"dataset": "streetdigits", "partition": "iid", "method": method}
    own |= {"seeds": seeds} | settings("mini", "streetdigits", method, 250)
    if options:
        own["options"] = own.get("options", {}) | options
    return Cell(title, "250", "mini", own)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/baselines"))
@click.option("--seeds", default=3, show_default=True)
@click.option("--lowering")
@click.option("--only", help="One line; no record is written.")
def main(out: Path, seeds: int, lowering: str | None, only: str | None) -> None:
    from fl2fast.cli.progress import progress

    cells = [make_cell(title, seeds) for title in LINES if only in (None, title)]
    run_cells(
        cells,
        out,
        lambda cell, made: progress(f"{cell.row}: "),
        lowering=lowering,
    )
    if only:
        return
    rows: list[dict[str, Any]] = []
    curves = {}
    for cell in cells:
        result = read_result(cell, out)
        assert result is not None, f"{cell.row} is being run elsewhere"
        mean, std = mean_std(result.accuracy)
        rows.append({"title": cell.row, "test_accuracy": result.accuracy, "mean": mean, "std": std})
        curves[cell.row] = result.rounds
        print(rows[-1])
    draw_curves(curves, PICTURE)
    config = make_experiment(cells[0])
    about = {n: getattr(config, n) for n in ("labels", "rounds", "clients", "train_size", "model")}
    print(write_record("baselines", rows, **about))


if __name__ == "__main__":
    main()
