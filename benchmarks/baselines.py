"""Do the baselines learn from unlabelled rows? python -m benchmarks.baselines

streetdigits with 250 labels at the mini scale of `fl2fast reproduce`, three seeds: each baseline
against the labels alone. Run folders stay in --out, and what is finished there is not run again.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.harness import write_record
from fl2fast.plot import draw_curves
from fl2fast.reproduce.cells import Cell
from fl2fast.reproduce.run import make_experiment, read_result, run_cells
from fl2fast.reproduce.scales import settings

METHODS = ("supervised", "fedmatch", "fedcon", "semifl", "flfl")
PICTURE = Path(__file__).parents[1] / "docs" / "baselines.svg"


def make_cell(method: str, seeds: int) -> Cell:
    own = {"dataset": "streetdigits", "partition": "iid", "method": method, "seeds": seeds}
    return Cell(method, "250", "mini", own | settings("mini", "streetdigits", method, 250))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/baselines"))
@click.option("--seeds", default=3, show_default=True)
@click.option("--lowering")
@click.option("--only", help="One method; no record is written.")
def main(out: Path, seeds: int, lowering: str | None, only: str | None) -> None:
    from fl2fast.cli.progress import progress

    cells = [make_cell(method, seeds) for method in METHODS if only in (None, method)]
    run_cells(
        cells,
        out,
        lambda cell, made: progress(made.rounds, f"{cell.row}: "),
        lowering=lowering,
    )
    if only:
        return
    rows: list[dict[str, Any]] = []
    curves = {}
    for cell in cells:
        result = read_result(cell, out)
        assert result is not None, f"{cell.row} is being run elsewhere"
        last = result.accuracy
        spread = {"mean": float(np.mean(last)), "std": float(np.std(last, ddof=1))}
        rows.append({"method": cell.row, "test_accuracy": last, **spread})
        curves[cell.row] = result.rounds
        print(rows[-1])
    draw_curves(curves, PICTURE)
    config = make_experiment(cells[0])
    about = {n: getattr(config, n) for n in ("labels", "rounds", "clients", "train_size", "model")}
    print(write_record("baselines", rows, **about))


if __name__ == "__main__":
    main()
