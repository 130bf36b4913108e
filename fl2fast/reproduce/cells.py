"""A target of the paper as cells: one method in one setting, beside the number it is held against.

published.toml has the targets; a cell is a row of one at one of its columns.
"""

import hashlib
import json
import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fl2fast.data.load import check_dataset
from fl2fast.data.settings import TEXTS
from fl2fast.errors import UsageError, brief
from fl2fast.reproduce.scales import settings


class Target(NamedTuple):
    """A table or figure of the paper."""

    name: str
    source: str
    title: str
    note: str
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    stated: tuple[dict[str, Any], ...] = ()  # what the text says of a figure


class Cell(NamedTuple):
    row: str
    column: str
    scale: str
    settings: dict[str, Any]  # of an experiment, and its preset
    mean: float | None = None  # published
    std: float | None = None

    @property
    def slug(self) -> str:
        """Readable, and unique by the hash of every setting."""
        s = self.settings
        parts = (Path(s["dataset"]).name, s["labels"], s["partition"], s["method"])
        digest = hashlib.sha256(json.dumps(s, sort_keys=True).encode()).hexdigest()[:10]
        return re.sub(r"[^\w.-]+", "-", "-".join(map(str, parts))) + f"-{digest}"


@cache
def _published() -> dict[str, Any]:
    text = files("fl2fast.reproduce").joinpath("published.toml").read_text()
    return tomllib.loads(text)


def paper() -> str:
    """The paper's title and authors."""
    return _published()["paper"]


def targets() -> list[str]:
    return [name for name in _published() if name != "paper"]


def find_target(name: str) -> Target:
    if name not in targets():
        raise UsageError(f"unknown target {name!r}: choose {', '.join(targets())}")
    return Target(name=name, **_published()[name])


def make_cells(
    target: Target,
    scale: str = "paper",
    seeds: int = 3,
    dataset: str | None = None,
    encoder: str | None = None,
) -> list[Cell]:
    """Every cell of a target; on another dataset nothing published stands beside them."""
    if seeds < 1:
        raise UsageError(f"seeds is {brief(seeds)}, but it must be at least 1")
    if dataset is not None:
        check_dataset(dataset)
    made: dict[tuple[str, str], Cell] = {}
    for row in target.rows:
        for place, column in enumerate(target.columns):
            name = dataset or column["dataset"]
            asked = {
                "dataset": name,
                "partition": row["partition"],
                "method": row["method"],
                "seeds": seeds,
                **settings(scale, name, row["method"], column["labels"]),
            }
            label, labels = column["label"], asked["labels"]
            if dataset is not None:
                label = f"{Path(dataset).name} with {labels} labels"
            elif labels != column["labels"]:
                label += f", run with {labels}"
            if encoder is not None and name in TEXTS:
                asked["encoder"] = encoder
            ours = dataset is not None
            mean, std = (None if ours or k not in row else row[k][place] for k in ("mean", "std"))
            # Columns that differ in their dataset only fall together on another one.
            made[row["label"], label] = Cell(row["label"], label, scale, asked, mean, std)
    return list(made.values())


def choose_cells(cells: list[Cell], wanted: str | None) -> list[Cell]:
    """Those that contain any of the comma-separated texts, in any case."""
    if wanted is None:
        return cells
    words = [word.strip().lower() for word in wanted.split(",") if word.strip()]
    chosen = [cell for cell in cells if any(word in _described(cell) for word in words)]
    if not chosen:
        rows, columns = (
            "; ".join(dict.fromkeys(names))
            for names in ([c.row for c in cells], [c.column for c in cells])
        )
        raise UsageError(
            f"no cell matches {wanted!r}: choose some text of a row ({rows}) or a column "
            f"({columns}), or leave --cells out"
        )
    return chosen


def _described(cell: Cell) -> str:
    s = cell.settings
    parts = (cell.row, cell.column, s["dataset"], s["partition"], s["method"])
    return ", ".join(parts).lower()
