"""A target's cells as Markdown, LaTeX and CSV: our mean(std) beside the paper's.

Nothing depends on the clock or the machine: equal runs give equal bytes.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from fl2fast.experiment import experiment
from fl2fast.reproduce.cells import Cell, Target, paper
from fl2fast.reproduce.run import Result, make_experiment
from fl2fast.reproduce.scales import SCALES

OF_THE_CELL = ("dataset", "labels", "partition", "method", "seeds")  # the rest is of the scale


class Filled(NamedTuple):
    """A cell with its result, if it has one."""

    cell: Cell
    result: Result | None


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Over seeds; the deviation divides by n - 1, as the paper's does."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def heading(target: Target, filled: list[Filled], dataset: str | None) -> str:
    """What the numbers are, in one paragraph."""
    first = filled[0].cell
    done, seeds = sum(f.result is not None for f in filled), first.settings["seeds"]
    compared = f"Published numbers: {target.source} of {paper()}."
    if dataset is not None:
        compared = (
            f"Run on {dataset} in place of the paper's data, so no published number stands beside: "
            f"the rows are those of {target.source} of {paper()}."
        )
    sentences = [
        f"Scale {first.scale}: {SCALES[first.scale].sentence}.",
        f"Test accuracy (%) after the last round: mean(standard deviation) of n = {seeds} seeds / "
        f"the paper's; a dash where there is none. {done} of {len(filled)} cells are run.",
        f"Settings that differ from the paper preset's: {describe_settings(filled)}.",
        compared,
        target.note if dataset is None else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def describe_settings(filled: list[Filled]) -> str:
    """rounds = 60, lr = 0.1; semifl: batch_size = 10"""
    own = [_not_the_papers(f.cell) for f in filled]
    common = {n: v for n, v in own[0].items() if all(n in o and o[n] == v for o in own)}
    parts = [_listed(common)] if common else []
    several = len({f.cell.settings["dataset"] for f in filled}) > 1
    groups: dict[str, dict[str, None]] = {}
    for f, settings in zip(filled, own, strict=True):
        rest = {n: v for n, v in settings.items() if n not in common}
        if rest:
            s = f.cell.settings
            name = f"{s['method']} on {s['dataset']}" if several else s["method"]
            groups.setdefault(_listed(rest), {})[name] = None
    parts += [f"{', '.join(names)}: {text}" for text, names in groups.items()]
    return "; ".join(parts) or "none"


def _not_the_papers(cell: Cell) -> dict[str, Any]:
    """What the cell's experiment has otherwise than (FL)^2's on the same data at paper scale."""
    data = {name: cell.settings[name] for name in ("dataset", "labels", "partition")}
    papers = asdict(experiment("paper", **data))
    return {
        name: value
        for name, value in asdict(make_experiment(cell)).items()
        if name not in OF_THE_CELL and value != papers[name]
    }


def _listed(settings: dict[str, Any]) -> str:
    parts = []
    for name, value in settings.items():
        inner = value.items() if isinstance(value, dict) else [(name, value)]
        parts += [f"{key} = {json.dumps(v) if isinstance(v, bool) else v}" for key, v in inner]
    return ", ".join(parts)


def number(mean: float | None, std: float | None) -> str:
    """71.6(2.9), or 71.6 without a deviation, or a dash."""
    if mean is None:
        return "-"
    return f"{mean:.1f}" if std is None else f"{mean:.1f}({std:.1f})"


def beside(filled: Filled) -> str:
    """Ours / the paper's."""
    theirs = number(filled.cell.mean, filled.cell.std)
    if filled.result is None:
        return f"{number(None, None)} / {theirs}"
    seeds, all_seeds = len(filled.result.accuracy), filled.cell.settings.get("seeds", 1)
    left = "" if seeds == all_seeds else f" [{seeds} of {all_seeds} seeds, the others diverged]"
    return f"{number(*mean_std(filled.result.accuracy))}{left} / {theirs}"


def grid(filled: list[Filled]) -> list[list[str]]:
    """A header row, then a row of the target each."""
    columns = list(dict.fromkeys(f.cell.column for f in filled))
    rows = list(dict.fromkeys(f.cell.row for f in filled))
    at = {(f.cell.row, f.cell.column): beside(f) for f in filled}
    return [["", *columns], *([row, *(at[row, c] for c in columns)] for row in rows)]


def markdown(target: Target, filled: list[Filled], dataset: str | None = None) -> str:
    head, *rows = grid(filled)
    lines = [f"# {target.title}", "", heading(target, filled, dataset), ""]
    lines += [_piped(head), "|" + "---|" * len(head), *map(_piped, rows)]
    if target.stated:
        lines += ["", *_stated(target, filled, dataset)]
    return "\n".join(lines) + "\n"


def _piped(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _stated(target: Target, filled: list[Filled], dataset: str | None) -> list[str]:
    """What the paper's text says of a figure, beside the mean over seeds of our last round."""
    results = {f.cell.row: f.result for f in filled}
    lines = ["| last round | ours | the paper's text |", "|---|---|---|"]
    for said in target.stated:
        result, ours = results[said["label"]], "-"
        if result is not None:
            final = result.rounds[-1]["round"]
            values = [r[said["metric"]] for r in result.rounds if r["round"] == final]
            if all(value is not None for value in values):
                ours = f"{np.mean(values):.1f}"
        theirs = said["text"] if dataset is None else "-"
        lines.append(_piped([f"{said['label']}: {said['name']}", ours, theirs]))
    return lines


_TEX = {"^2": r"\textsuperscript{2}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_"}


def latex(target: Target, filled: list[Filled], dataset: str | None = None) -> str:
    """A float for booktabs, with the heading as its caption."""
    head, *rows = [[_tex(text) for text in row] for row in grid(filled)]
    caption = _tex(f"{target.title}. {heading(target, filled, dataset)}")
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    for plain, escaped in _TEX.items():
        text = text.replace(plain, escaped)
    return text


def comma_separated(target: Target, filled: list[Filled], dataset: str | None = None) -> str:
    """A row per cell, every number whole; the heading is a line that starts with #."""
    file = io.StringIO()
    file.write(f"# {heading(target, filled, dataset)}\n")
    writer = csv.writer(file, lineterminator="\n")
    names = ("mean", "std", "seeds", "published_mean", "published_std", "settings")
    writer.writerow(
        ["target", "row", "column", *OF_THE_CELL[:-1], "scale", "n", *names],
    )
    for cell, result in filled:
        values = [] if result is None else result.accuracy
        mean, std = mean_std(values) if values else (None, None)
        extra = _not_the_papers(cell)
        writer.writerow(
            [
                *(target.name, cell.row, cell.column),
                *(cell.settings[name] for name in OF_THE_CELL[:-1]),
                *(cell.scale, len(values), mean, std, " ".join(map(str, values))),
                *(cell.mean, cell.std, json.dumps(extra, sort_keys=True)),
            ]
        )
    return file.getvalue()
