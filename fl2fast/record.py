"""The run folder: what was asked for, where it ran, what came out.

config.json and partition.json say what ran, metrics.jsonl what it measured (nothing in it depends
on the clock: equal runs give equal bytes), diagnostics.jsonl and confusion.json what the clients
did, timing.jsonl and env.json how fast and on what, events.jsonl what went wrong, if anything did.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from fl2fast.checkpoint.manifest import BEYOND, Manifest, Progress
from fl2fast.checkpoint.writer import Snapshot
from fl2fast.durable import be_plain, write_whole
from fl2fast.engine.world import Federation, ServerState, World
from fl2fast.fingerprint import fingerprint
from fl2fast.guards import COLLAPSED_TESTS, Event, collapsed_since
from fl2fast.journal import DIAGNOSTICS, METRICS, TIMING, Journal, read_rows, trim
from fl2fast.machine import environment
from fl2fast.plot import draw_curves
from fl2fast.plot_diagnostics import draw_diagnostics, draw_partition
from fl2fast.reading import read_small
from fl2fast.run_folder import CONFIG
from fl2fast.simulate import METRIC_NAMES, RoundReport

INSIDE = ("seed", "round", "clients", "aggregation_weights", "status", "thresholds", "accepted")
PARTITION, MOST_PARTITION = "partition.json", 1 << 30  # bytes
SETTINGS_FILES = ("env.json", "partition.json", "partition.png")  # and CONFIG
ACCURACIES = ("test_accuracy_last", "test_accuracy_best")
SUMMARY, MOST_SUMMARY = "summary.json", 1 << 24  # bytes


def write_settings(world: World, folder: Path) -> None:
    """What is known before the first round."""
    write_config(world, folder)
    write_json(folder / "env.json", environment(world.experiment.device))
    partition = _partition(world)
    write_json(folder / PARTITION, partition)
    held = [client["classes"] for client in partition["seeds"][0]["clients"]]
    draw_partition(np.array(held), folder / "partition.png")


def write_config(world: World, folder: Path) -> None:
    write_json(folder / CONFIG, asdict(world.experiment))


class Recorder:
    """Writes a run folder as the rounds come in."""

    def __init__(
        self,
        out: Path,
        world: World,
        warn: Callable[[str], object],
        before: Manifest | None = None,
    ) -> None:
        """Of a run from its first round, or from the one after a checkpoint."""
        self.out, self.world, self._warn = out, world, warn
        self._before = before.progress if before else Progress()
        self._progress, self._started = self._before, time.perf_counter()
        cursors = before.journals if before else {}
        names = (METRICS, *((DIAGNOSTICS,) if world.method.client else ()))
        trim(out / TIMING, before.round if before else 0)
        self._journals = {name: Journal(out / name, cursors.get(name)) for name in names}
        self.rows = read_rows(out / METRICS, METRIC_NAMES)
        inside = read_rows(out / DIAGNOSTICS, INSIDE) if DIAGNOSTICS in names else []
        self._inside = _of_first_seed(world, inside)
        self._confusion = before.confusion if before else []  # of the last tested round

    def add(self, report: RoundReport) -> None:
        self.report = report  # the last one only: a state is as large as three models a seed
        self.rows += report.metrics
        training = report.seconds.get("local_training", 0.0)
        self._progress = Progress(
            self._progress.num_trained + report.num_trained,
            self._progress.training_seconds + training,
            self._before.wall_seconds + time.perf_counter() - self._started,
        )
        self._journals[METRICS].append(report.metrics)
        with (self.out / TIMING).open("a") as file:
            file.write(json.dumps(timing_row(report)) + "\n")
        if report.diagnostics:
            self._journals[DIAGNOSTICS].append(_without_confusion(report.diagnostics))
            self._inside += _of_first_seed(self.world, report.diagnostics)
            names = ("seed", "round", "confusion")
            self._confusion = [{n: row[n] for n in names} for row in report.diagnostics]
        self.tell([*report.events, *self._collapses(report.round)])

    def tell(self, events: list[Event]) -> None:
        """Keep what went wrong, and say it."""
        for event in events:
            be_plain(self.out / "events.jsonl")
            with (self.out / "events.jsonl").open("a") as file:
                file.write(json.dumps(event._asdict()) + "\n")
            self._warn(event.says)

    def snapshot(self) -> Snapshot:
        """Of the last round, for a checkpoint."""
        tested = [row["test_accuracy"] for row in self.report.metrics]
        score = None if None in tested or not tested else float(np.mean(tested))
        return Snapshot(
            self.report.federation,
            asdict(self.report.world.experiment),
            self._progress,
            score,
            {name: journal.cursor for name, journal in self._journals.items()},
            self._confusion,
        )

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()

    def finish(self, federation: Federation) -> dict[str, Any]:
        """Summary, model and curves, once the last round is in."""
        frozen = federation.frozen
        summary = {
            **accuracies([row for row in self.rows if row["seed"] not in frozen]),
            "diverged": [found._asdict() for found in federation.diverged],
            "collapsed": [
                {"seed": seed, "since_round": since}
                for seed, tests in self._tests().items()
                if (since := collapsed_since(tests)) is not None and seed not in frozen
            ],
            "images_per_second": images_per_second(*self._progress[:2]),
            "wall_seconds": self._progress.wall_seconds,
        }
        write_whole(
            self.out / "model.safetensors", save(named_tensors(self.world, federation.state))
        )
        draw_curves({self.world.experiment.method: self.rows}, self.out / "curves.png")
        if self._confusion:
            write_json(self.out / "confusion.json", self._confusion)
        for first in _of_first_seed(self.world, self._confusion):
            self._inside[-1]["confusion"] = first["confusion"]
            draw_diagnostics(self._inside, self.out / "diagnostics.png")
        write_json(self.out / SUMMARY, summary)  # last: a run that has one is finished
        return summary

    def _tests(self) -> dict[int, list[tuple[int, int]]]:
        """Of every seed, its tests' rounds and how many classes they named."""
        tests: dict[int, list[tuple[int, int]]] = {}
        for row in self.rows:
            if row["predicted_classes"] is not None:
                tests.setdefault(row["seed"], []).append((row["round"], row["predicted_classes"]))
        return tests

    def _collapses(self, round: int) -> list[Event]:
        """Seeds of which this round's test is the one that makes it news."""
        return [
            Event(
                round,
                "collapsed",
                f"seed {seed} has collapsed: since round {since} its tests name one class only",
            )
            for seed, tests in self._tests().items()
            if (since := collapsed_since(tests)) is not None
            and tests[-1][0] == round
            and sum(tested >= since for tested, _ in tests) == COLLAPSED_TESTS
        ]


def _without_confusion(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A hundred classes would make it the bulk of a run: the last round's has its own file."""
    return [{name: value for name, value in row.items() if name != "confusion"} for row in rows]


def _of_first_seed(world: World, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["seed"] == world.experiment.seed]


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
    mean = {name: float(np.mean([seed[name] for seed in seeds])) for name in ACCURACIES}
    return {"seeds": seeds, "mean": mean}


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
    about = {"partition": world.experiment.partition, "fingerprint": fingerprint(world)}
    return {**about, "seeds": seeds}


def read_fingerprint(run: Path) -> str | None:
    """Of what the run read when it was made; None: its file is not there, or not whole."""
    try:
        return json.loads(read_small(run / PARTITION, MOST_PARTITION))["fingerprint"]
    except (OSError, ValueError, TypeError, KeyError, *BEYOND):
        return None


def write_json(path: Path, value: Any) -> None:
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_summary(run: Path) -> dict[str, Any] | None:
    """Of a finished run; None: it has none that is whole, and is to be finished again."""
    try:
        found = json.loads(read_small(run / SUMMARY, MOST_SUMMARY))
        for row in found["seeds"]:
            if not all(isinstance(row[name], int | float) for name in ("seed", *ACCURACIES)):
                return None
        known = all({"seed", "round", "where"} <= set(row) for row in found["diverged"])
        return found if known else None
    except (OSError, ValueError, TypeError, KeyError, *BEYOND):
        return None
