"""Run the cells that are missing; what is finished is read from its folder.

A cell's seeds train stacked, in one run. Its folder is the only state: an interrupted one is
resumed, so a command that is repeated goes on where it was stopped.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fl2fast.errors import UsageError, brief
from fl2fast.experiment import EXECUTION, Experiment, experiment
from fl2fast.guards import Diverged
from fl2fast.reading import read_small
from fl2fast.reproduce.cells import Cell
from fl2fast.simulate import RoundReport
from fl2fast.train import resume, train

MOST_JSON, MOST_METRICS = 1 << 24, 1 << 30  # bytes of a file of a cell
DAMAGED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # as JSON can be

DEFAULT_OUT = Path("runs/reproduce")

Listener = Callable[[Cell, Experiment], AbstractContextManager[Callable[[RoundReport], object]]]


class Result(NamedTuple):
    """A finished cell."""

    accuracy: list[float]  # of every seed, after the last round
    rounds: list[dict[str, Any]]  # metrics.jsonl


def make_experiment(cell: Cell, **execution: str | None) -> Experiment:
    given = {name: value for name, value in execution.items() if value is not None}
    return experiment(**(cell.settings | given))


def cell_folder(cell: Cell, out: Path) -> Path:
    return out / "cells" / cell.scale / cell.slug


def read_result(cell: Cell, out: Path) -> Result | None:
    """The cell's result if it is finished: a summary, under the settings asked for."""
    folder = cell_folder(cell, out)
    summary, config = _read_json(folder / "summary.json"), _read_json(folder / "config.json")
    if summary is None or config is None or not _same(cell, config):
        return None
    try:
        accuracy = [float(seed["test_accuracy_last"]) for seed in summary["seeds"]]
        lines = read_small(folder / "metrics.jsonl", MOST_METRICS).splitlines()
        rounds = [json.loads(line) for line in lines]
        if not rounds or not all(row["round"] >= 1 and "seed" in row for row in rounds):
            raise ValueError("metrics.jsonl holds no rounds")
        return Result(accuracy, rounds)
    except (OSError, *DAMAGED) as error:
        raise UsageError(
            f"the finished cell in {str(folder)!r} is damaged ({brief(error)}): remove that "
            "folder, and it is run again"
        ) from error


def run_cells(
    cells: list[Cell],
    out: Path,
    listener: Listener,
    after: Callable[[Cell], object] = lambda cell: None,
    data_dir: Path | None = None,
    say: Callable[[str], object] = lambda sentence: None,
    **execution: str | None,
) -> None:
    """Train what is missing, calling `after` with every cell that was.

    A cell that another process is running is left to it, so that two devices can share the work.
    """
    missing = [cell for cell in cells if read_result(cell, out) is None]
    made = [make_experiment(cell, **execution) for cell in missing]  # refuse before hours of work
    say(
        f"{len(cells)} cells, {len(missing)} to run: {sum(one.seeds for one in made)} runs, the "
        f"seeds of a cell stacked, {sum(one.rounds for one in made):,} stacked rounds"
    )
    changes = {name: value for name, value in execution.items() if value is not None}
    diverged = []
    for cell, one in zip(missing, made, strict=True):
        with _claim(cell_folder(cell, out)) as free:
            if not free:
                say(f"{cell.row}, {cell.column}: another process is at it")
            elif read_result(cell, out) is None:
                try:
                    _train(cell, one, changes, out, listener, data_dir, say)
                except Diverged as error:
                    say(f"{cell.row}, {cell.column}: {error}")
                    diverged.append(error)
                else:
                    after(cell)
    if diverged:
        raise diverged[0]  # once the others are done


def _train(
    cell: Cell,
    made: Experiment,
    changes: dict[str, str],
    out: Path,
    listener: Listener,
    data_dir: Path | None,
    say: Callable[[str], object],
) -> None:
    folder = cell_folder(cell, out)
    config = _read_json(folder / "config.json")
    goes_on = config is not None and set(config) == set(asdict(made)) and _same(cell, config)
    if folder.exists() and not goes_on:
        raise UsageError(
            f"{str(folder)!r} holds something else than this version's run for {cell.row}, "
            f"{cell.column}: move it away or choose another --out"
        )
    with listener(cell, made) as on_round:
        if goes_on:
            resume(folder, changes, None, data_dir, on_round, say, say)
        else:
            train(made, folder, data_dir, on_round, say, say)


def _same(cell: Cell, config: dict[str, Any]) -> bool:
    """A setting that is newer than the folder had its default value there."""
    asked = json.loads(json.dumps(asdict(make_experiment(cell))))
    default = json.loads(json.dumps(asdict(Experiment())))
    return all(
        config.get(name, default[name]) == value
        for name, value in asked.items()
        if name not in EXECUTION
    )


@contextmanager
def _claim(folder: Path) -> Iterator[bool]:
    """Whether the cell is ours until the end of the block; the system lets go of a dead one's."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = (folder.parent / f"{folder.name}.lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder.parent)!r}: {error.strerror}") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free


def _read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no whole file: a run may die while it writes."""
    try:
        found = json.loads(read_small(path, MOST_JSON))
    except (OSError, *DAMAGED):
        return None
    return found if isinstance(found, dict) else None
