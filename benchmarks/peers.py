"""Plain FedAvg of one small CNN in fl2fast, Flower and pfl: python -m benchmarks.peers

Cohorts of 50 clients with 50 images each and batches of 10 are those of pfl's own CIFAR-10
benchmark; one local epoch of SGD, averages weighted by rows, nothing trained on the server.
Initial weights, partition, cohorts and the order of every client's rows are written down once and
read by all (`peer_programs/protocol.py`), so the programs compute the same numbers up to rounding;
times count only where the accuracies agree.

A peer lives in an environment of its own under the user's cache folder, made here when it is
absent. The environment ends in a .pth file that appends the site-packages of the running
interpreter after its own: pip sees torch and numpy there and leaves them alone, so that all
programs run the very same torch, and gigabytes need not be downloaded again.

Whole runs are interleaved; seconds are those of the rounds with their evaluations. Imports, Ray's
start, data loading and shut-down are reported apart, installation not at all.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib import metadata
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks.harness import machine, write_record
from fl2fast.cache import cache_dir
from fl2fast.data.arrays import write_folder
from fl2fast.data.load import default_data_dir, load
from fl2fast.data.partition import split_rows
from fl2fast.data.plan import select, shuffled_batches
from fl2fast.experiment import Experiment, experiment
from fl2fast.simulate import make_module

PROGRAMS = Path(__file__).parent / "peer_programs"
MODEL = f"{PROGRAMS / 'small_cnn.py'}:small_cnn"
TRAIN_SIZE, TEST_SIZE = 5010, 1000  # ten labels stay with the server, unused: 50 rows a client
BAND = 2.0  # points of mean accuracy within which programs agree
LIMIT = 3600  # seconds that one run may take

# What makes fl2fast's `fedavg` the plain algorithm: no server training, momentum, decay or views.
PLAIN: dict[str, Any] = {
    "method": "fedavg",
    "labels": 10,
    "clients": 100,
    "cohort": 50,
    "epochs": 1,
    "batch_size": 10,
    "lr": 0.1,
    "schedule": "constant",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip": 0.0,
    "pretrain": 0,
    "server_epochs": 0,
    "aggregate_momentum": 0.0,
    "client_momentum": "fresh",
    "flip": False,
    "crop": 0.0,
    "augment": "torch",
}


class Peer(NamedTuple):
    """A program, and what it needs beside torch and numpy."""

    title: str
    program: str
    requirement: str | None = None  # None: this environment has it
    launcher: tuple[str, ...] = ()


CORES = os.cpu_count() or 1
PEERS = {
    "fl2fast": Peer("fl2fast", "fl2fast_fedavg.py"),
    "flower": Peer("Flower", "flower_fedavg.py", "flwr[simulation]==1.41.0"),
    # A process per core of one thread each is pfl's fastest way here; torchrun sets the threads.
    "pfl": Peer(
        "pfl",
        "pfl_fedavg.py",
        "pfl[pytorch]==0.6.0",
        ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}"),
    ),
}


class Failed(Exception):
    """A peer that cannot be installed or run: one sentence."""


def python_of(name: str, peer: Peer) -> Path:
    """The interpreter of a peer's environment, which is made unless it is complete."""
    if peer.requirement is None:
        return Path(sys.executable)
    folder = cache_dir() / "peers" / name
    python, marker = folder / "bin" / "python", folder / "complete.txt"
    pins = [f"{package}=={metadata.version(package)}" for package in ("torch", "numpy")]
    ours = sysconfig.get_paths()["purelib"]
    wanted = "\n".join([sys.version, ours, *pins, peer.requirement])
    if marker.is_file() and marker.read_text() == wanted:
        return python
    click.echo(f"{peer.title}: installing {peer.requirement} in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    _call([sys.executable, "-m", "venv", str(folder)], f"{peer.title} cannot have an environment")
    inside = {"base": str(folder), "platbase": str(folder)}
    (Path(sysconfig.get_path("purelib", vars=inside)) / "zz_ours.pth").write_text(f"{ours}\n")
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    _call([*install, peer.requirement], f"{peer.title} cannot be installed")
    marker.write_text(wanted)
    return python


def _call(command: list[str], problem: str, **how: Any) -> None:
    """Run to the end in silence; a failure is the last line that it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{problem}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Failed(f"{problem}: {lines[-1].strip() if lines else done.returncode}")


def write_task(folder: Path, seed: int, rounds: int, eval_every: int) -> None:
    """All that the programs read; every draw is the one that fl2fast makes for this seed."""
    arrays = load("streetdigits", default_data_dir(), TRAIN_SIZE, TEST_SIZE, 0)
    write_folder(arrays, folder)
    e = experiment(model=MODEL, seed=seed, rounds=rounds, eval_every=eval_every, **PLAIN)
    split = split_rows(
        arrays.train_labels, arrays.num_classes, e.labels, e.partition, e.clients, seed
    )
    cohorts, rows = zip(
        *(_plan(e, split.clients, round + 1) for round in range(rounds)), strict=True
    )
    np.savez(folder / "plan.npz", cohort=np.stack(cohorts), rows=np.stack(rows))
    initial = make_module(e, arrays.num_classes, seed).state_dict()
    np.savez(folder / "initial.npz", **{name: value.numpy() for name, value in initial.items()})
    own = PLAIN | {"seed": seed, "rounds": rounds, "eval_every": eval_every}
    settings = own | {"classes": arrays.num_classes, "mean": e.mean, "std": e.std}
    (folder / "settings.json").write_text(json.dumps(settings | {"experiment": own}))


def _plan(
    e: Experiment, clients: tuple[np.ndarray, ...], round: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """A round's cohort, and the rows of each of its clients in the order of training."""
    (cohort,) = select([e.seed], e.clients, e.cohort, round)
    steps = shuffled_batches(
        np.ones((e.cohort, len(clients[0])), dtype=bool),
        np.full(e.cohort, e.seed),
        cohort,
        purpose="client shuffle",
        round=round,
        epochs=e.epochs,
        batch_size=e.batch_size,
    )
    order = [np.concatenate([batch.position_B for batch in own]) for own in steps]
    return cohort, [clients[c][own] for c, own in zip(cohort, order, strict=True)]


def run(name: str, python: Path, folder: Path) -> dict[str, Any]:
    """One whole run: seconds, accuracies and final weights."""
    peer, out = PEERS[name], folder / f"{name}.json"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | quiet
    command = [str(python), *peer.launcher, str(PROGRAMS / peer.program), str(folder), str(out)]
    load_before, started = os.getloadavg()[0], time.perf_counter()
    _call(command, f"{peer.title} failed", env=environment, cwd=folder)
    whole = time.perf_counter() - started
    result = json.loads(out.read_text())
    seconds = sum(result["round_seconds"])
    return result | {
        "seconds": seconds,
        "seconds_per_round": seconds / len(result["round_seconds"]),
        "outside_seconds": whole - seconds,
        "final_accuracy": list(result["accuracy"].values())[-1],
        "load_before": load_before,
        "weights_apart": _apart(folder, name),
    }


def _apart(folder: Path, name: str) -> float | None:
    """How far the final weights are from fl2fast's, as a share of what training moved them."""
    if not (folder / "fl2fast.npz").is_file():
        return None
    own, ours, start = (np.load(folder / f"{n}.npz") for n in (name, "fl2fast", "initial"))
    apart, moved = (
        sum(np.square(a[key] - b[key], dtype=np.float64).sum() for key in start)
        for a, b in ((own, ours), (ours, start))
    )
    return float(np.sqrt(apart / moved))


def summarise(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row per program; its time counts where its mean accuracy is fl2fast's within the band."""
    rows: list[dict[str, Any]] = []
    for name, own in runs.items():
        times = [run["seconds_per_round"] for run in own]
        row = {
            "program": name,
            "title": PEERS[name].title,
            "how": own[0]["how"],
            "versions": own[0]["versions"],
            "seconds_per_round": median(times),
            "spread": [min(times), max(times)],
            "outside_seconds": median(run["outside_seconds"] for run in own),
            "accuracy": mean(run["final_accuracy"] for run in own),
            "runs": own,
        }
        ours = next((r for r in rows if r["program"] == "fl2fast"), None)
        if ours is not None and row is not ours:
            row["points_apart"] = row["accuracy"] - ours["accuracy"]
            row["counts"] = abs(row["points_apart"]) <= BAND
            row["times_fl2fast"] = row["seconds_per_round"] / ours["seconds_per_round"]
        rows.append(row)
    return rows


def table(record: dict[str, Any]) -> str:
    """For the README."""

    lines = [
        "| | seconds a round | spread | fl2fast is faster by | test accuracy (%) |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        low, high = row["spread"]
        if "times_fl2fast" not in row:
            ratio = ""
        else:
            ratio = f"{row['times_fl2fast']:.1f}x" if row["counts"] else "accuracies differ"
        version = row["versions"][next(iter(row["versions"]))]
        lines.append(
            f"| {row['title']} {version}, {row['how']} | {row['seconds_per_round']:.2f} | "
            f"{low:.2f} to {high:.2f} | {ratio} | {row['accuracy']:.1f} |"
        )
    task = record["task"]
    note = (
        f"FedAvg, {task['clients']} clients, cohort {task['cohort']}, batch {task['batch_size']}, "
        f"{task['rounds']} rounds; medians of {record['repeats']} interleaved runs; "
        f"{machine(record)}."
    )
    return "\n".join([*lines, "", note])


@click.command()
@click.option("--rounds", default=30, show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Whole runs, each of its own seed.")
@click.option("--only", type=click.Choice(list(PEERS)), multiple=True, help="Not recorded.")
def main(rounds: int, repeats: int, only: tuple[str, ...]) -> None:
    eval_every = max(1, rounds // 3)
    pythons: dict[str, Path] = {}
    failures: list[str] = []
    for name in (name for name in PEERS if not only or name in only):  # fl2fast first
        try:
            pythons[name] = python_of(name, PEERS[name])
        except Failed as failure:
            failures.append(str(failure))
            click.echo(failure)
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(repeats):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "task"
            write_task(folder, seed, rounds, eval_every)
            for name, python in list(pythons.items()):
                try:
                    made = run(name, python, folder) | {"seed": seed}
                except Failed as failure:
                    failures.append(str(failure))
                    click.echo(failure)
                    del pythons[name]
                    continue
                runs.setdefault(name, []).append(made)
                click.echo(
                    f"seed {seed} {PEERS[name].title}: {made['seconds_per_round']:.3f} s a round, "
                    f"{made['outside_seconds']:.1f} s outside, {made['final_accuracy']:.1f} %, "
                    f"weights apart {made['weights_apart']}"
                )
    rows = summarise(runs)
    for row in rows:
        if "counts" in row and not row["counts"]:
            click.echo(
                f"{row['title']} ends {row['points_apart']:+.1f} points from fl2fast, more than "
                f"{BAND:g}: its time does not count"
            )
        elif "counts" in row:
            click.echo(f"fl2fast is {row['times_fl2fast']:.2f}x as fast as {row['title']}")
    if not only and rows:
        sizes = {"train_size": TRAIN_SIZE, "test_size": TEST_SIZE, "dataset": "streetdigits"}
        task = PLAIN | sizes | {"rounds": rounds, "eval_every": eval_every}
        about = {"task": task, "repeats": repeats, "band": BAND, "failures": failures}
        click.echo(f"recorded in {write_record('peers', rows, **about)}")


if __name__ == "__main__":
    main()
