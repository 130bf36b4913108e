"""Kill federations at any moment, resume them, compare: python -m benchmarks.kills [--kills N]

Every trial is a process of its own that SIGKILL ends at a keyed moment: half of them at a time
drawn over the whole run, from before its folder exists until after its last round, half while a
file of a checkpoint is being written. Half of both are killed once more while they resume. Resumed
to its end, a run must have the bytes of one that nobody killed: weights, rows, diagnostics,
settings and the last checkpoint. Exit code 1 if one trial is off.
"""

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks.harness import write_record
from fl2fast.checkpoint.manifest import Manifest
from fl2fast.checkpoint.restore import newest_whole
from fl2fast.checkpoint.writer import FOLDER
from fl2fast.data import streetdigits
from fl2fast.durable import SCRATCH
from fl2fast.selfcheck import differing

METHODS: dict[str, dict[str, Any]] = {
    "flfl": {},
    "semifl": {},
    "fedmatch": {"confidence": 0.2, "helper_every": 2},
}
LOWERINGS = ("loop", "grouped")
PARTITIONS = ("iid", "dirichlet:0.5")
SETTINGS: dict[str, Any] = {
    "labels": 20,
    "clients": 6,
    "cohort": 3,
    "rounds": 6,
    "epochs": 1,
    "pretrain": 1,
    "batch_size": 16,
    "seeds": 2,
    "sure": 0.3,
    "model": "cnn",
    "augment": "torch",
}
LIMIT = 120.0  # seconds that a run may take


class Kind(NamedTuple):
    method: str
    lowering: str
    partition: str

    def write(self, folder: Path, dataset: Path) -> Path:
        """The settings as a file."""
        settings = SETTINGS | {"dataset": str(dataset), **self._asdict()}
        settings["server_lowering"] = self.lowering
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        lines += ["[options]", *(f"{n} = {v}" for n, v in METHODS[self.method].items())]
        path = folder / f"{'-'.join(self).replace(':', '')}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path


class Trial(NamedTuple):
    number: int
    kind: Kind
    writing: bool  # killed while a checkpoint is written, else at any time
    shares: tuple[float, ...]  # of the run's time, or of its checkpoints: one for every kill


def run_command(words: list[str]) -> None:
    """One `fl2fast` command in this process, silent."""
    import torch

    from fl2fast.cli.main import main

    torch.set_num_threads(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    main(words)


def start(words: list[str]) -> Any:
    """A process forked from one that has imported everything: real, and quick to start."""
    process = multiprocessing.get_context("forkserver").Process(target=run_command, args=(words,))
    process.start()
    return process


def finish(words: list[str]) -> int | None:
    """Run a command to its end: its exit code."""
    process = start(words)
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
    process.join()
    return process.exitcode


def last_checkpoint(run: Path) -> Manifest | None:
    """All of it but the clock's; None: it is damaged, or not there."""
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    if checkpoint is None or warned:
        return None
    journals = {n: c for n, c in checkpoint.manifest.journals.items() if n != "timing.jsonl"}
    return checkpoint.manifest._replace(journals=journals, progress=None)  # type: ignore[arg-type]


def kill(writing_only: bool, share: float, process: Any, run: Path, seconds: float) -> None:
    """Wait for the moment and kill; the process may be faster."""
    begun, target = time.perf_counter(), share * seconds
    checkpoints, seen, was_writing = run / FOLDER, 0, False
    while process.is_alive() and time.perf_counter() - begun < LIMIT:
        if writing_only:
            writing = any(name.endswith(SCRATCH) for name in _names(checkpoints))
            seen += writing and not was_writing
            was_writing = writing
            if writing and seen > share * SETTINGS["rounds"]:
                break
        elif time.perf_counter() - begun >= target:
            break
        else:
            time.sleep(0.0005)
    process.kill()
    process.join()


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


FASTER = "not killed: it was faster"


def is_killed(row: dict[str, Any]) -> bool:
    return any(stage != FASTER for stage in row["killed"])


def stage(run: Path, exit_code: int | None) -> str:
    """How far a killed run had come."""
    if exit_code != -signal.SIGKILL:
        return FASTER
    if not run.is_dir():
        return "before its folder"
    if any(name.endswith(SCRATCH) for name in _names(run / FOLDER)):
        return "while a checkpoint was written"
    rounds = [name for name in _names(run / FOLDER) if name.startswith("round-")]
    if not rounds:
        return "before its first checkpoint"
    done = max(int(name.removeprefix("round-").removesuffix(".json")) for name in rounds)
    return "between rounds" if done < SETTINGS["rounds"] else "after its last round"


def attempt(trial: Trial, config: Path, whole: Path, seconds: float) -> dict[str, Any]:
    """Kill once or twice, resume, compare; the folder goes away if all is well."""
    run = config.parent / f"trial-{trial.number}"
    words = ["train", "--config", str(config), "--resume", "auto", "--out", str(run)]
    killed = []
    for share in trial.shares:
        process = start(words)
        kill(trial.writing, share, process, run, seconds)
        killed.append(stage(run, process.exitcode))
    code = finish(words)
    wrong = [] if code == 0 else [f"exit code {code}"]
    if not wrong:
        wrong = differing(run, whole)
        if last_checkpoint(run) is None or last_checkpoint(run) != last_checkpoint(whole):
            wrong.append("last checkpoint")
    if not wrong:
        shutil.rmtree(run)
    return {**trial._asdict(), "kind": " ".join(trial.kind), "killed": killed, "wrong": wrong}


def trials(seed: int) -> Iterator[Trial]:
    """Without end: kinds in turn, moments drawn."""
    draws = np.random.Generator(np.random.Philox(seed))
    kinds = itertools.cycle(map(Kind._make, itertools.product(METHODS, LOWERINGS, PARTITIONS)))
    for number, kind in enumerate(kinds):
        times = 1 + number // 24 % 2
        shares = tuple(draws.uniform(0, 1.05 / times, times).tolist())
        yield Trial(number, kind, number // 12 % 2 == 1, shares)


@click.command()
@click.option("--kills", "num", default=120, show_default=True, help="Runs that are killed.")
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", default=2, show_default=True)
def main(num: int, seed: int, workers: int) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "FL2FAST_OFFLINE": "1"}
    multiprocessing.set_forkserver_preload(["fl2fast.cli.main", "benchmarks.harness"])
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = run_trials(folder, num, seed, workers)
    real = [row for row in rows if is_killed(row)]
    wrong = [row for row in rows if row["wrong"]]
    for row in wrong:
        click.echo(f"OFF: {row}")
    stages = Counter(stage for row in rows for stage in row["killed"])
    kills = sum(count for name, count in stages.items() if name != FASTER)
    kinds = Counter(row["kind"] for row in real)
    for name, count in [*sorted(stages.items()), *sorted(kinds.items())]:
        click.echo(f"{name:<36}{count:>5}")
    equal = len(real) - sum(bool(row["wrong"]) for row in real)
    click.echo(f"{equal} of {len(real)} runs, killed {kills} times, ended as whole ones")
    about = {
        "kills": kills,
        "runs": len(real),
        "equal": equal,
        "stages": stages,
        "kinds": kinds,
        "settings": SETTINGS,
        "seed": seed,
        "seconds": time.perf_counter() - started,
    }
    click.echo(f"recorded in {write_record('kills', wrong, **about)}")
    sys.exit(bool(wrong))


def run_trials(folder: Path, kills: int, seed: int, workers: int) -> list[dict[str, Any]]:
    """Until so many runs were killed; what became of each."""
    dataset = small_digits(folder / "digits")
    kinds = [Kind._make(kind) for kind in itertools.product(METHODS, LOWERINGS, PARTITIONS)]
    configs = {kind: kind.write(folder, dataset) for kind in kinds}
    truths = {kind: folder / f"truth-{number}" for number, kind in enumerate(kinds)}
    seconds = {}
    for kind in kinds:
        begun = time.perf_counter()
        words = ["train", "--config", str(configs[kind]), "--out", str(truths[kind])]
        if finish(words):
            raise click.ClickException(f"{' '.join(kind)} does not run by itself")
        seconds[kind] = time.perf_counter() - begun
        click.echo(f"{' '.join(kind)}: {seconds[kind]:.1f} s")
    rows: list[dict[str, Any]] = []
    left, lock = kills, threading.Lock()
    queue = trials(seed)

    def work() -> None:
        nonlocal left
        while True:
            with lock:
                if left <= 0:
                    return
                left -= 1
                trial = next(queue)
            kind = trial.kind
            row = attempt(trial, configs[kind], truths[kind], seconds[kind])
            with lock:
                rows.append(row)
                left += not is_killed(row)
                click.echo(f"{row['number']:>4} {row['kind']}: {row['killed']} {row['wrong']}")

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return sorted(rows, key=lambda row: row["number"])


def small_digits(folder: Path) -> Path:
    """streetdigits at half the resolution, as a folder of arrays."""
    folder.mkdir()
    for split, num in (("train", 400), ("test", 60)):
        images, labels = streetdigits.draw(num, 0, split)
        np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images[:, :, ::2, ::2]))
        np.save(folder / f"{split}_labels.npy", labels)
    return folder


if __name__ == "__main__":
    main()
