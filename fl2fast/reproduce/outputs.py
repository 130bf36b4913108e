"""What is written about a target, anew after every cell, each file at once or not at all."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from fl2fast.errors import UsageError
from fl2fast.reproduce.cells import Cell, Target
from fl2fast.reproduce.figures import draw
from fl2fast.reproduce.run import read_result
from fl2fast.reproduce.tables import Filled, comma_separated, latex, markdown

WRITERS: dict[str, Callable[[Target, list[Filled], str | None], str]] = {
    ".md": markdown,
    ".tex": latex,
    ".csv": comma_separated,
}


def fill(cells: list[Cell], out: Path) -> list[Filled]:
    return [Filled(cell, read_result(cell, out)) for cell in cells]


def write_outputs(
    target: Target, cells: list[Cell], out: Path, dataset: str | None = None
) -> list[Path]:
    """OUT/SCALE/TARGET.{md,tex,csv,png}, or TARGET-DATASET on another dataset."""
    filled = fill(cells, out)
    folder = out / cells[0].scale
    stem = target.name if dataset is None else f"{target.name}-{Path(dataset).name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = [Path(scratch) / f"{stem}{suffix}" for suffix in WRITERS]
            for path, write in zip(made, WRITERS.values(), strict=True):
                path.write_text(write(target, filled, dataset))
            picture = Path(scratch) / f"{stem}.png"
            if draw(target.name, filled, picture):
                made.append(picture)
            return [path.replace(folder / path.name) for path in made]
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
