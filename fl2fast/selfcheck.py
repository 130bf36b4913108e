"""Whether this machine keeps what DETERMINISM.md promises: of equal runs, and of killed ones.

A tiny federation runs to its end, runs so again, and runs a third time in a process that is killed
in the middle of a round and resumed. All three must have the same bytes.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fl2fast.checkpoint.changes import read_config_json, read_settings
from fl2fast.checkpoint.writer import FOLDER
from fl2fast.errors import UsageError
from fl2fast.experiment import experiment
from fl2fast.record import SETTINGS_FILES
from fl2fast.run_folder import CONFIG
from fl2fast.train import resume, train

SETTINGS: dict[str, Any] = {
    "dataset": "streetdigits",
    "labels": 20,
    "train_size": 600,
    "test_size": 100,
    "model": "cnn",
    "clients": 6,
    "cohort": 3,
    "rounds": 6,
    "epochs": 1,
    "pretrain": 1,
    "seeds": 2,
    "partition": "dirichlet:0.5",
}
KILLED_AFTER = 3  # rounds
LIMIT = 300.0  # seconds until the process to be killed must have come so far

# What says when, on what and how fast a run was made; checkpoints hold the clock's sums.
OF_THE_CLOCK = {"timing.jsonl", "summary.json", "env.json", "events.jsonl", FOLDER}


class Verdict(NamedTuple):
    what: str
    differing: list[str]  # files; none: the promise is kept


def selfcheck(
    folder: Path, say: Callable[[str], object] = lambda sentence: None, **changes: Any
) -> list[Verdict]:
    """Three runs in a folder of their own; `changes` are settings, such as device or method."""
    whole, again, killed = (folder / name for name in ("whole", "again", "killed"))
    say("a run")
    train(experiment(**SETTINGS | changes), whole)
    say("the same again")
    train(read_settings(read_config_json(whole), whole), again)
    say("the same again, killed and resumed")
    _kill(whole, killed)
    resume(killed)
    return [
        Verdict("the same run again", differing(again, whole)),
        Verdict("a run killed and resumed", differing(killed, whole)),
    ]


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run that equal runs have equal."""
    return {path.name: path.read_bytes() for path in run.iterdir() if path.name not in OF_THE_CLOCK}


def differing(one: Path, other: Path) -> list[str]:
    ours, theirs = contents(one), contents(other)
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


def _kill(whole: Path, run: Path) -> None:
    """The whole run in a process of its own, which SIGKILL ends in the middle of a round."""
    run.mkdir()
    for name in (CONFIG, *SETTINGS_FILES):
        shutil.copy(whole / name, run / name)
    words = [sys.executable, "-m", "fl2fast", "train", "--resume", str(run)]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # their number is in the rounding
    process = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | threads,
    )
    done, deadline = run / FOLDER / f"round-{KILLED_AFTER:06}.json", time.monotonic() + LIMIT
    while not done.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    said = process.communicate()[1].strip().splitlines()
    if process.returncode != -signal.SIGKILL:
        raise UsageError(
            f"the run that was to be killed ended by itself ({said[-1] if said else 'silently'}): "
            "check that `fl2fast train` works here"
        )
