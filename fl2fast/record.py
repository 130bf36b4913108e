"""The run folder: what was asked for, where it ran, what came out.

config.json and partition.json say what ran, metrics.jsonl what it measured (nothing in it depends
on the clock: equal runs give equal bytes), diagnostics.jsonl and confusion.json what the clients
did, timing.jsonl and env.json how fast and on what.
"""

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from fl2fast.engine.world import ServerState, World
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment
from fl2fast.machine import environment
from fl2fast.plot import draw_curves
from fl2fast.plot_diagnostics import draw_diagnostics, draw_partition
from fl2fast.simulate import RoundReport


def check_folder(out: Path) -> None:
    """Refuse a folder that is in use, before any work is done for it."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{str(out)!r} exists and is not an empty folder: choose another --out or remove it"
            )
    except OSError as error:
        raise UsageError(f"cannot write to {str(out)!r}: {error.strerror}") from error


def claim_folder(out: Path) -> Path:
    """Make `out`, which must be new or empty."""
    check_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(f"cannot write to {str(out)!r}: {error.strerror}") from error
    return out


def free_folder(stem: str) -> Path:
    """runs/STEM, numbered if taken."""
    number = 1
    while (out := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return out


def default_folder(experiment: Experiment) -> Path:
    dataset = Path(experiment.dataset).name
    return free_folder(f"{dataset}-{experiment.labels}-{experiment.method}")


class Recorder:
    """Writes a run folder as the rounds come in."""

    def __init__(self, out: Path, world: World) -> None:
        self.out, self.world = out, world
        self.started = time.perf_counter()
        self.rows: list[dict[str, Any]] = []
        self.num_trained, self.seconds = 0, 0.0
        self.inside: list[dict[str, Any]] = []  # of the first seed
        self.last: list[dict[str, Any]] = []
        _write_json(out / "config.json", asdict(world.experiment))
        _write_json(out / "env.json", environment(world.experiment.device))
        partition = _partition(world)
        _write_json(out / "partition.json", partition)
        held = [client["classes"] for client in partition["seeds"][0]["clients"]]
        draw_partition(np.array(held), out / "partition.png")

    def add(self, report: RoundReport) -> None:
        self.rows += report.metrics
        self.num_trained += report.num_trained
        self.seconds += report.seconds.get("local_training", 0.0)
        self.state = report.state  # the last one only: a state is as large as three models a seed
        _append_lines(self.out / "metrics.jsonl", report.metrics)
        _append_lines(self.out / "timing.jsonl", [timing_row(report)])
        if report.diagnostics:
            _append_lines(self.out / "diagnostics.jsonl", _without_confusion(report.diagnostics))
            self.inside += _of_first_seed(report.diagnostics)
            self.last = report.diagnostics

    def finish(self) -> dict[str, Any]:
        """Summary, model and curves, once the last round is in."""
        summary = {
            **accuracies(self.rows),
            "images_per_second": images_per_second(self.num_trained, self.seconds),
            "wall_seconds": time.perf_counter() - self.started,
        }
        _write_json(self.out / "summary.json", summary)
        save_file(named_tensors(self.world, self.state), self.out / "model.safetensors")
        draw_curves({self.world.experiment.method: self.rows}, self.out / "curves.png")
        if self.inside:
            confusion = [{n: row[n] for n in ("seed", "round", "confusion")} for row in self.last]
            _write_json(self.out / "confusion.json", confusion)
            draw_diagnostics(self.inside, self.out / "diagnostics.png")
        return summary


def _without_confusion(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A hundred classes would make it the bulk of a run: the last round's has its own file."""
    return [{name: value for name, value in row.items() if name != "confusion"} for row in rows]


def _of_first_seed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["seed"] == rows[0]["seed"]]


def accuracies(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Last and best test accuracy of every seed, and their mean over seeds."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if row["test_accuracy"] is not None:
            by_seed.setdefault(row["seed"], []).append(row["test_accuracy"])
    seeds = [
        {"seed": seed, "test_accuracy_last": values[-1], "test_accuracy_best": max(values)}
        for seed, values in by_seed.items()
    ]
    names = ("test_accuracy_last", "test_accuracy_best")
    return {"seeds": seeds, "mean": {n: float(np.mean([s[n] for s in seeds])) for n in names}}


def images_per_second(num_trained: int, seconds: float) -> float | None:
    """Images that clients trained on per second of local training, augmentation included."""
    return num_trained / seconds if seconds else None


def timing_row(report: RoundReport) -> dict[str, Any]:
    seconds = {name: round(value, 6) for name, value in report.seconds.items()}
    rate = images_per_second(report.num_trained, report.seconds.get("local_training", 0.0))
    return {"round": report.round, "seconds": seconds, "images_per_second": rate}


def named_tensors(world: World, state: ServerState) -> dict[str, torch.Tensor]:
    """The global model under its module's own names, ready for `load_state_dict`.

    With several seeds every name is preceded by `seed{n}.`.
    """
    seeds, named = world.experiment.seed_list, {}
    net = world.network
    for seed, params_P, stats in zip(seeds, world.models(state), state.stats_S, strict=True):
        own = dict(net.layout.split(params_P))
        own |= {f"{n}.running_mean": t for n, t in net.norms.split(stats.mean_Q).items()}
        own |= {f"{n}.running_var": t for n, t in net.norms.split(stats.var_Q).items()}
        own |= {
            f"{n}.num_batches_tracked": torch.zeros((), dtype=torch.int64) for n in net.norms.names
        }
        prefix = f"seed{seed}." if len(seeds) > 1 else ""
        named |= {prefix + name: tensor.cpu().contiguous() for name, tensor in own.items()}
    return named


def _partition(world: World) -> dict[str, Any]:
    seeds = []
    for seed, split in zip(world.experiment.seed_list, world.splits, strict=True):
        clients = [
            {
                "size": len(rows),
                "classes": np.bincount(
                    world.truth_host[rows], minlength=world.num_classes
                ).tolist(),
                "rows": rows.tolist(),
            }
            for rows in split.clients
        ]
        seeds.append({"seed": seed, "labelled": split.labelled.tolist(), "clients": clients})
    return {"partition": world.experiment.partition, "seeds": seeds}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def _append_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
